"""`kdist bench`: measures a cluster."""
