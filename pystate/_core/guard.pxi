# Who may use a handle while it is at work: nobody else, in any thread.
#
# The GIL is released in one way:
#
#     handle.begin()
#     try:
#         with nogil:
#             ...
#     finally:
#         handle.end()
#
# `begin` checks that the handle may be used and marks it busy, so that `close` and every other call
# raise `InUseError` until `end`. What may run the caller's code (`__index__`, encoders, iterators,
# `__fspath__`) comes before `begin`, or before `ready` where the GIL is kept. So none of it runs
# between a check and the use of what was checked.
#
# `hold` is `begin` without the check, for a handle that was checked in another way.
#
# A handle that was made by `__new__` alone has `NO_TABLE`, `NO_CODEC` or `NO_BATCH`, whose checks
# fail; so no method has to ask for None.

cdef class _Guarded:
    """A handle that no table closes, and that one thread at a time uses."""

    cdef bint busy

    cdef int ready(self) except -1:
        """Raise where the handle may not be used now."""
        if self.busy:
            raise errors.InUseError("in use by another thread")
        return 0

    cdef int begin(self) except -1:
        self.ready()
        self.hold()
        return 0

    cdef void hold(self) noexcept:
        """Mark the handle busy, without a check."""
        self.busy = True

    cdef void end(self) noexcept:
        self.busy = False


@cython.no_gc_clear  # the table outlives it
cdef class _Dependent(_Guarded):
    """A handle that is closed with its table, which knows it without keeping it alive."""

    cdef readonly Table table
    cdef void *before
    cdef void *after

    cdef void link(self) noexcept:
        self.after = self.table.dependents
        if self.after is not NULL:
            (<_Dependent> self.after).before = <void *> self
        self.table.dependents = <void *> self

    cdef void unlink(self) noexcept:
        if self.before is not NULL:
            (<_Dependent> self.before).after = self.after
        elif self.table is not None and self.table.dependents is <void *> self:
            self.table.dependents = self.after
        if self.after is not NULL:
            (<_Dependent> self.after).before = self.before
        self.before = self.after = NULL

    cdef void release(self) noexcept:
        """Close the handle, which is not busy."""
        self.unlink()


cdef int once(bint made, str what) except -1:
    """Refuse a second `__init__`: others may rely on what the first one made."""
    if made:
        raise errors.InvalidArgumentError(f"{what} is made once")
    return 0


# ---- memory that the core fills ------------------------------------------------------------------

from posix.mman cimport MADV_HUGEPAGE, madvise

cdef enum:
    PAGE = 4096
    LARGE = 4 << 20


cdef class Memory:
    """Memory that the core fills, as a read-only buffer."""

    cdef uint8_t *data
    cdef Py_ssize_t size
    cdef bint scratch

    def __dealloc__(self):
        if self.scratch:
            pst_scratch_drop(self.data)
        else:
            free(self.data)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.size, 1, flags)

    cdef pst_status take(self, uint64_t size) noexcept nogil:
        """Allocate, once."""
        cdef size_t skipped
        self.data = <uint8_t *> malloc(size if size else 1)
        if self.data is NULL:
            return PST_NO_MEMORY
        self.size = <Py_ssize_t> size
        if size >= LARGE:
            # It is filled in order: a fault for each small page would take as long as the copy.
            skipped = PAGE - <size_t> self.data % PAGE
            madvise(self.data + skipped, (size - skipped) // PAGE * PAGE, MADV_HUGEPAGE)
        return PST_OK

    cdef pst_status borrow(self, uint64_t size) noexcept nogil:
        """Allocate, once, memory that is used for a short time."""
        self.scratch = True
        self.data = <uint8_t *> pst_scratch_take(size)
        self.size = <Py_ssize_t> size
        return PST_OK if self.data is not NULL else PST_NO_MEMORY

    cdef pst_status take_for(self, pst_bytes_out *out, int64_t rows) noexcept nogil:
        """Allocate the bytes that a sizing call asked for, and let the next call fill them."""
        cdef pst_status status = self.take(<uint64_t> out.offsets[rows])
        out.data = self.data
        out.capacity = <uint64_t> out.offsets[rows]
        return status


cdef pst_bytes_out sized(size_t offsets, size_t valid) noexcept nogil:
    cdef pst_bytes_out out
    out.offsets = <int32_t *> offsets
    out.valid = <uint8_t *> valid
    out.data = NULL
    out.capacity = 0
    return out
