"""The `kdist` command, one file per sub-command."""
