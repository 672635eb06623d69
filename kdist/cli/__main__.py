"""`python -m kdist.cli` is the command `kdist`, for a tree that is not installed."""

from kdist.cli.start import main

main()
