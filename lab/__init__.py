"""The lab: hosts to deploy kdist on, as containers on one machine, and faults to try on them.

Not part of the package that is installed: `python -m lab` runs it from the tree, as root.
"""
