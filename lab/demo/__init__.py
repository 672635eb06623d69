"""`make demo`: two datacenters on this machine, a mirror between them, a load of what it brings."""
