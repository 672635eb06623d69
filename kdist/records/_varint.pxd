# Writing signed varints, for the compiled modules: zigzag-coded, seven bits a byte, lowest first.

cdef inline unsigned long long zigzag(long long value) noexcept nogil:
    cdef unsigned long long bits = <unsigned long long>value
    return ~(bits << 1) if value < 0 else bits << 1


cdef inline Py_ssize_t varint_size(long long value) noexcept nogil:
    cdef unsigned long long left = zigzag(value)
    cdef Py_ssize_t size = 1
    while left > 0x7F:
        left >>= 7
        size += 1
    return size


cdef inline unsigned char *put_varint(unsigned char *at, long long value) noexcept nogil:
    cdef unsigned long long left = zigzag(value)
    while left > 0x7F:
        at[0] = left & 0x7F | 0x80
        left >>= 7
        at += 1
    at[0] = <unsigned char>left
    return at + 1
