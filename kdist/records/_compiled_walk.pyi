"""What mypy sees of `_compiled_walk.py`, whose source is in Cython's terms."""

from kdist.records._reference_walk import are_whole as are_whole
from kdist.records._reference_walk import body_summary as body_summary
