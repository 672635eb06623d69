"""`kdist topics`: topics, and the records in them."""
