"""`kdist produce`: writes records to a topic."""
