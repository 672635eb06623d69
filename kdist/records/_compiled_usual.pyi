"""What mypy sees of the compiled half of `usual.py`, whose source is in Cython's terms."""

from kdist.records._reference_usual import assign as assign
from kdist.records._reference_usual import check_batch as check_batch
from kdist.records._reference_usual import find_batch as find_batch
from kdist.records._reference_usual import find_run as find_run
from kdist.records._reference_usual import measure as measure
