"""What mypy sees of the compiled message sets, whose source is in Cython's terms: the reference."""

from kdist.records._reference_messages import read_columns as read_columns
from kdist.records._reference_messages import write_messages as write_messages
