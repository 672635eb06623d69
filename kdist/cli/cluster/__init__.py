"""`kdist cluster`: the cluster as a whole."""
