"""The request handlers: one file for each API, or for a few that share everything."""
