"""`kdist mirror`: runs a mirror, shows its lag and moves its positions."""
