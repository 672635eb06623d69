"""What mypy sees of the compiled half of `cleaning.py`, whose source is in Cython's terms."""

from kdist.records._reference_cleaning import Sieve as Sieve
from kdist.records._reference_cleaning import map_batches as map_batches
from kdist.records._reference_cleaning import map_body as map_body
