# A batch's header where it lies, for the compiled modules. Its layout, and what it may claim, are in
# `batch.py`: that says what is wrong, and this only whether anything is.

cdef enum:
    HEADER_SIZE = 61
    PREFIX_SIZE = 12  # `batch.LENGTH_PREFIX_SIZE`
    CHECKED_POSITION = 21
    RECORD_SIZE_MIN = 7
    CODEC_MASK = 7
    CODEC_MAX = 4
    LOG_APPEND_TIME = 8
    TRANSACTIONAL = 16
    CONTROL = 32
    DELETE_HORIZON = 64
    _MAGIC = 2


cdef inline unsigned long long number(const unsigned char *at, int size) noexcept nogil:
    """The big-endian number of `size` bytes that is there; the compiler makes a `bswap` of it."""
    cdef unsigned long long value = 0
    cdef int i
    for i in range(size):
        value = value << 8 | at[i]
    return value


cdef inline int int32(const unsigned char *at) noexcept nogil:
    return <int>number(at, 4)


cdef inline long long _int64(const unsigned char *at) noexcept nogil:
    return <long long>number(at, 8)


cdef inline long long base_offset_of(const unsigned char *at) noexcept nogil:
    return _int64(at)


cdef inline long long size_of(const unsigned char *at) noexcept nogil:
    return <long long>PREFIX_SIZE + int32(at + 8)


cdef inline int leader_epoch_of(const unsigned char *at) noexcept nogil:
    return int32(at + 12)


cdef inline unsigned int crc_of(const unsigned char *at) noexcept nogil:
    return <unsigned int>number(at + 17, 4)


cdef inline short attributes_of(const unsigned char *at) noexcept nogil:
    return <short>number(at + 21, 2)


cdef inline long long offset_count_of(const unsigned char *at) noexcept nogil:
    return <long long>int32(at + 23) + 1


cdef inline long long last_offset_of(const unsigned char *at) noexcept nogil:
    return _int64(at) + int32(at + 23)


cdef inline long long base_timestamp_of(const unsigned char *at) noexcept nogil:
    return _int64(at + 27)


cdef inline long long max_timestamp_of(const unsigned char *at) noexcept nogil:
    return _int64(at + 35)


cdef inline long long producer_id_of(const unsigned char *at) noexcept nogil:
    return _int64(at + 43)


cdef inline int base_sequence_of(const unsigned char *at) noexcept nogil:
    return int32(at + 53)


cdef inline long long record_count_of(const unsigned char *at) noexcept nogil:
    return int32(at + 57)


cdef inline tuple header_fields(const unsigned char *at):
    """All of a header, in the order of `BatchHeader`."""
    return (
        base_offset_of(at),
        int32(at + 8),
        leader_epoch_of(at),
        <signed char>at[16],
        crc_of(at),
        attributes_of(at),
        int32(at + 23),
        base_timestamp_of(at),
        max_timestamp_of(at),
        producer_id_of(at),
        <short>number(at + 51, 2),
        base_sequence_of(at),
        int32(at + 57),
    )


cdef inline bint is_sound(
    const unsigned char *at, Py_ssize_t left, long long offset_max
) noexcept nogil:
    """Whether `batch.header_fault` finds nothing, and no offset is above `offset_max`."""
    cdef int codec = attributes_of(at) & CODEC_MASK
    cdef long long offset_count = offset_count_of(at)
    cdef long long record_count = record_count_of(at)
    return (
        at[16] == _MAGIC
        and HEADER_SIZE <= size_of(at) <= left
        and codec <= CODEC_MAX
        and base_offset_of(at) >= 0
        and offset_count > 0
        and base_offset_of(at) <= offset_max - (offset_count - 1)
        and 0 <= record_count <= offset_count
        and (codec or record_count * RECORD_SIZE_MIN <= size_of(at) - HEADER_SIZE)
    )


cdef inline bint is_dense(const unsigned char *at) noexcept nogil:
    """As `BatchHeader.is_dense`."""
    return 0 < record_count_of(at) == offset_count_of(at)


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
