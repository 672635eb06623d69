"""What mypy sees of the compiled half of `codec.py`, whose source is in Cython's terms."""

from kdist.records._reference_produced import assign as assign
from kdist.records._reference_produced import batch_totals as batch_totals
from kdist.records._reference_produced import check_batch as check_batch
from kdist.records._reference_produced import find_batch as find_batch
from kdist.records._reference_produced import find_plain_span as find_plain_span
