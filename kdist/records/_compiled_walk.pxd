# The walk over a body's records, for the compiled modules.

cdef bint are_usual(unsigned char *at, unsigned char *end, long long count, long long base_timestamp) noexcept
