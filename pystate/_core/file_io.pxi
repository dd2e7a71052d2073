# The I/O of files, their codec, and where the rows go that are merged into none.


cdef struct IoState:
    PyObject *io
    int fd             # >= 0: read here, without the GIL
    int failed         # errno of a failed read, -1: the file ended
    uint64_t offset    # of the failed read


cdef class _Io(_Guarded):
    """What the callbacks work on, and the exception that they had to keep."""

    cdef pst_io c
    cdef IoState state
    cdef object target
    cdef object error
    cdef str name
    cdef Budget budget
    cdef list blocks       # of rows that are gathered

    def __cinit__(self, target, int fd, str name, Budget budget=None):
        self.target = target
        self.name = name
        self.budget = budget
        self.c.budget = budget_of(budget)
        self.state.io = <PyObject *> self
        self.state.fd = fd
        self.c.ctx = &self.state
        self.c.write = io_write
        self.c.read_at = io_pread if fd >= 0 else io_read_at
        self.c.compress = io_compress
        self.c.decompress = io_decompress

    cdef int reraise(self) except -1:
        """Raise what made a callback fail."""
        error, self.error = self.error, None
        cdef int failed = self.state.failed
        self.state.failed = 0
        if error is not None:
            if isinstance(error, OSError) and not isinstance(error, errors.PystateError) \
                    and error.errno in FULL:
                raise errors.NoSpaceError(
                    error.errno, f"{self.name}: {os.strerror(error.errno)}: free space and try "
                    "again; what was sealed is kept") from error
            raise error
        if failed == -1:
            raise errors.CorruptFileError(
                f"{self.name}: the file ends before byte {self.state.offset}, where a block "
                "should be")
        raise errors.SystemCallError(failed, f"{self.name}: {os.strerror(failed)}")


cdef int io_write(void *ctx, const void *data, size_t size) noexcept with gil:
    cdef _Io io = <_Io> (<IoState *> ctx).io
    try:
        view = PyMemoryView_FromMemory(<char *> data, <Py_ssize_t> size, PyBUF_READ)
        done = 0
        while done < size:
            written = io.target.write(view[done:] if done else view)
            if written is None:
                break
            done += written
        view.release()  # an error where the object keeps a view of it
        return 0
    except BaseException as error:
        io.error = error
        return 1


cdef int io_pread(void *ctx, uint64_t offset, void *data, size_t size) noexcept nogil:
    cdef IoState *state = <IoState *> ctx
    cdef size_t done = 0
    cdef ssize_t n
    while done < size:
        n = pread(state.fd, <char *> data + done, size - done, <long> (offset + done))
        if n < 0 and errno == EINTR:
            continue
        if n <= 0:
            state.failed = errno if n < 0 else -1
            state.offset = offset + size
            return 1
        done += <size_t> n
    return 0


cdef int io_read_at(void *ctx, uint64_t offset, void *data, size_t size) noexcept with gil:
    cdef _Io io = <_Io> (<IoState *> ctx).io
    try:
        view = PyMemoryView_FromMemory(<char *> data, <Py_ssize_t> size, PyBUF_WRITE)
        io.target.seek(offset)
        done = 0
        while done < size:
            n = io.target.readinto(view[done:] if done else view)
            if not n:
                io.state.failed = -1
                io.state.offset = offset + size
                return 1
            done += n
        view.release()
        return 0
    except BaseException as error:
        io.error = error
        return 1


cdef enum:
    # A tenth faster than LZ4's default, for files of strings that are two hundredths larger.
    LZ4_ACCELERATION = 2


cdef int io_compress(void *ctx, const void *src, size_t size, void *dst,
                     size_t *dst_size) noexcept with gil:
    cdef _Io io = <_Io> (<IoState *> ctx).io
    cdef bytes packed
    try:
        packed = lz4_compress(PyMemoryView_FromMemory(<char *> src, <Py_ssize_t> size, PyBUF_READ),
                              store_size=False, mode="fast", acceleration=LZ4_ACCELERATION)
        if <size_t> len(packed) < size and <size_t> len(packed) <= dst_size[0]:
            memcpy(dst, PyBytes_AS_STRING(packed), <size_t> len(packed))
            dst_size[0] = <size_t> len(packed)
        else:
            dst_size[0] = 0
        return 0
    except BaseException as error:
        io.error = error
        return 1


cdef int io_decompress(void *ctx, const void *src, size_t size, void *dst,
                       size_t dst_size) noexcept with gil:
    cdef _Io io = <_Io> (<IoState *> ctx).io
    cdef bytes raw
    try:
        try:
            raw = lz4_decompress(
                PyMemoryView_FromMemory(<char *> src, <Py_ssize_t> size, PyBUF_READ),
                uncompressed_size=dst_size)
        except RuntimeError as error:  # lz4.block.LZ4BlockError
            raise errors.CorruptFileError(f"{io.name}: corrupt: a block does not unpack: {error}")
        if <size_t> len(raw) != dst_size:
            raise errors.CorruptFileError(
                f"{io.name}: corrupt: a block unpacks to {len(raw)} bytes, not {dst_size}")
        memcpy(dst, PyBytes_AS_STRING(raw), dst_size)
        return 0
    except BaseException as error:
        io.error = error
        return 1


cdef bytes copied(const void *data, size_t size):
    return PyBytes_FromStringAndSize(<const char *> data, <Py_ssize_t> size)


cdef int io_block(void *ctx, uint32_t rows, const pst_block_column *columns,
                  int32_t n) noexcept with gil:
    cdef _Io io = <_Io> (<IoState *> ctx).io
    cdef const pst_block_column *c
    cdef int32_t i
    cdef list made = []
    try:
        for i in range(n):
            c = &columns[i]
            made.append((
                c.count,
                c.nulls,
                None if c.validity is NULL else copied(c.validity, (c.count + 7) // 8),
                None if c.offsets is NULL else copied(c.offsets, (c.count + 1) * sizeof(int32_t)),
                None if c.values is NULL else copied(c.values, c.values_bytes),
            ))
        io.blocks.append((rows, made))
        return 0
    except BaseException as error:
        io.error = error
        return 1


cdef int io_count(void *ctx, uint32_t rows, const pst_block_column *columns,
                  int32_t n) noexcept with gil:
    cdef _Io io = <_Io> (<IoState *> ctx).io
    try:
        io.blocks.append((rows, []))
        return 0
    except BaseException as error:
        io.error = error
        return 1
