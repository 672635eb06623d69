"""Who may do what: principals, ACLs, the rights of each API, SASL. It does no I/O."""
