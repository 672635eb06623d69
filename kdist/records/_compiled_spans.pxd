# Whether a header is one, for the compiled modules.

cdef bint is_sound(unsigned char *at, Py_ssize_t left, long long offset_max) noexcept
