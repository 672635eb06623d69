# The walk over a body's records, for the compiled modules.

cdef long long usual_newest(
    unsigned char *at,
    unsigned char *end,
    long long count,
    long long base_timestamp,
    bint *lacks_keys,
) noexcept nogil
