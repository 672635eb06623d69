# The cleaner's map of keys, for the compiled modules.

ctypedef struct _Slot:
    unsigned long long low  # of the key's hash
    unsigned long long high
    long long offset_after  # one more than the key's last offset; 0 in a free slot

cdef extern from *:
    """
    #define kdist_prefetch(at) __builtin_prefetch(at)
    """
    void _prefetch "kdist_prefetch" (const void *at) noexcept nogil

cdef class KeyMap:
    cdef readonly Py_ssize_t limit
    cdef readonly bint is_full
    cdef Py_buffer _memory
    cdef _Slot *_slots
    cdef unsigned long long _slot_count
    cdef Py_ssize_t _used
    cdef unsigned long long _k0
    cdef unsigned long long _k1

    cdef void _aim(self, unsigned char *key, Py_ssize_t size, _Slot *aimed) noexcept
    cdef bint _put(self, _Slot *aimed, long long offset) noexcept
    cdef long long _get(self, _Slot *aimed) noexcept
    cdef unsigned long long _number(self, unsigned long long low) noexcept
    cdef _Slot *_find(self, _Slot *aimed) noexcept
