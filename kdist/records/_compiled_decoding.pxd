# The cursor over a body's records, for the compiled modules.

ctypedef struct _Cursor:
    unsigned char *at
    unsigned char *end  # of the record being read; between records, of the body
    Py_ssize_t left  # records of this body
    unsigned char *header  # of the batch whose body it is, in a run
    unsigned char *run_end  # of all bodies
    long long offset_delta  # of the record before
    char *fault  # why it cannot go on, or NULL

ctypedef struct _Fields:
    long long offset_delta
    long long timestamp_delta
    unsigned char *key
    long long key_size  # -1 null
    unsigned char *value
    long long value_size
    long long header_count
    unsigned char *headers
    unsigned char *end  # of the record

cdef _Cursor _start(const unsigned char[::1] body, Py_ssize_t count, bint is_span=*)
cdef object _finish(_Cursor cursor, Py_ssize_t count)
cdef int _next(_Cursor *cursor, _Fields *fields) except? -1
cdef long long _sum(long long base, long long delta, str what) except? -1
