"""`kdist consume`: shows the records of topics."""
