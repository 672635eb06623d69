"""`kdist groups`: consumer groups, and their committed offsets."""
