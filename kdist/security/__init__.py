"""Who may do what: principals, ACLs, rights, and exchanges that prove who somebody is.

Pure: no loop, clock, file or socket; times and randomness are passed in.
"""
