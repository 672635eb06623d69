"""What mypy sees of the compiled codec, whose source is in Cython's terms: the reference."""

from kdist.records._reference import decode_headers as decode_headers
from kdist.records._reference import decode_keys as decode_keys
from kdist.records._reference import decode_keys_into as decode_keys_into
from kdist.records._reference import decode_numbers as decode_numbers
from kdist.records._reference import decode_records as decode_records
from kdist.records._reference import decode_values as decode_values
from kdist.records._reference import decode_values_into as decode_values_into
from kdist.records._reference import encode_records as encode_records
from kdist.records._reference import find_null_key as find_null_key
from kdist.records._reference import pack_headers as pack_headers
from kdist.records._reference import running_sizes as running_sizes
