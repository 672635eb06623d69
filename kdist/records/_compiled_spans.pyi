"""What mypy sees of the compiled half of `codec.py`, whose source is in Cython's terms."""

from kdist.records._reference_spans import find_span as find_span
from kdist.records._reference_spans import producer_headers as producer_headers
