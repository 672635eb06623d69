"""What operating a cluster needs and no application: the gate, the roll lock, probes and plans."""
