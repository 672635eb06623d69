# A header's numbers, for the compiled modules.

cdef inline unsigned long long number(const unsigned char *at, int size) noexcept nogil:
    """The big-endian number of `size` bytes that is there; the compiler makes a `bswap` of it."""
    cdef unsigned long long value = 0
    cdef int i
    for i in range(size):
        value = value << 8 | at[i]
    return value


cdef inline short int16(const unsigned char *at) noexcept nogil:
    return <short>number(at, 2)


cdef inline int int32(const unsigned char *at) noexcept nogil:
    return <int>number(at, 4)


cdef inline long long int64(const unsigned char *at) noexcept nogil:
    return <long long>number(at, 8)


cdef inline tuple header_fields(const unsigned char *at):
    """All of a header, in the order of `BatchHeader`."""
    return (
        int64(at),
        int32(at + 8),
        int32(at + 12),
        <signed char>at[16],
        number(at + 17, 4),
        int16(at + 21),
        int32(at + 23),
        int64(at + 27),
        int64(at + 35),
        int64(at + 43),
        int16(at + 51),
        int32(at + 53),
        int32(at + 57),
    )


cdef inline void put_number(unsigned char *at, unsigned long long value, int size) noexcept nogil:
    cdef int i
    for i in range(size):
        at[size - 1 - i] = value >> 8 * i


cdef inline void put_int16(unsigned char *at, int value) noexcept nogil:
    put_number(at, <unsigned long long>value, 2)


cdef inline void put_int32(unsigned char *at, long long value) noexcept nogil:
    put_number(at, <unsigned long long>value, 4)


cdef inline void put_int64(unsigned char *at, long long value) noexcept nogil:
    put_number(at, <unsigned long long>value, 8)
