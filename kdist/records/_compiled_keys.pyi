"""What mypy sees of the compiled hash of keys, whose source is in Cython's terms: the reference."""

from kdist.records._reference_keys import murmur2 as murmur2
from kdist.records._reference_keys import partition_for as partition_for
from kdist.records._reference_keys import partitions_for as partitions_for
