"""What mypy sees of the compiled half of `stretch.py`, whose source is in Cython's terms."""

from kdist.records._reference_stretch import find_stretch as find_stretch
from kdist.records._reference_stretch import producer_headers as producer_headers
