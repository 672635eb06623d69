"""The lab: containers on one machine, as hosts to deploy kdist on and to inject faults into.

It is not part of the installed package: run `python -m lab` from the source tree, as root.
"""
