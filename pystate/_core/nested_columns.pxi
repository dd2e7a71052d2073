# Columns of nested values <-> columns of bytes, by the addresses of their buffers.

cdef object owned(void *block, uint64_t size):
    """A buffer that frees a block from malloc; None for NULL."""
    cdef Memory memory
    if block is NULL:
        return None
    memory = Memory.__new__(Memory)
    memory.data = <uint8_t *> block
    memory.size = <Py_ssize_t> size
    return memoryview(memory)


cdef class NestedColumns(_Guarded):
    """The buffers of an Arrow array of nested values, by address, a `set` per type of the tree."""

    cdef pst_nested_array *arrays
    cdef NestedCodec codec
    cdef list owners

    def __cinit__(self, NestedCodec codec not None):
        self.codec = codec
        self.owners = []
        self.arrays = <pst_nested_array *> calloc(<size_t> codec.root.span,
                                                  sizeof(pst_nested_array))
        if self.arrays is NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.arrays)

    def set(self, int i, int64_t offset, size_t validity, size_t values, size_t offsets,
            int64_t first, int64_t length, int64_t values_bytes, object owner):
        """Tell where the column of type `i` in preorder lies, which was validated; its owner stays
        alive."""
        self.ready()
        if not 0 <= i < self.codec.root.span:
            raise errors.InvalidArgumentError(f"there is no type {i}")
        self.owners.append(owner)
        self.arrays[i].length = length
        self.arrays[i].offset = offset
        self.arrays[i].validity = <const uint8_t *> validity
        self.arrays[i].values = <const void *> values
        self.arrays[i].values_bytes = values_bytes
        self.arrays[i].offsets = <const int32_t *> offsets
        self.arrays[i].first = first

    def encode(self, int64_t rows):
        """Return (offsets, None for an inline struct; data) of rows; nulls are empty or zero."""
        cdef pst_nested_rows out
        cdef pst_nested_fault fault
        cdef pst_status status
        self.begin()
        try:
            with nogil:
                status = pst_nested_encode(self.codec.tree.c, self.arrays, rows, &out, &fault)
        finally:
            self.end()
        if status == PST_INVALID:
            raise errors.InvalidArgumentError(
                f"state {self.codec.name!r}: a column is shorter than {rows} rows, or than it says")
        if status == PST_WRONG_TYPE:
            raise errors.WrongTypeError(
                f"state {self.codec.name!r}: row {fault.row} is no {self.codec.ddl}: it has "
                f"{(<bytes> fault.what).decode()}")
        written(status)
        return owned(out.offsets, <uint64_t> (rows + 1) * 4), owned(out.data, out.data_bytes)


def nested_columns(NestedCodec codec not None, int64_t rows, int64_t offset, size_t validity,
                   size_t offsets, size_t values, int64_t values_bytes):
    """Return (length, nulls, validity, values, offsets) of each type in preorder.

    The rows are those of an Arrow array: binary, or of fixed size for an inline struct. A buffer
    that an array does not need is None, as a validity bitmap where there are no nulls.
    """
    cdef pst_array stored
    cdef pst_nested_fault fault
    cdef pst_status status
    cdef int32_t i
    cdef pst_nested_column *columns = <pst_nested_column *> calloc(
        <size_t> codec.root.span, sizeof(pst_nested_column))
    if columns is NULL:
        raise MemoryError
    memset(&stored, 0, sizeof(stored))
    stored.type = PST_FIXED if codec.inline_bytes else PST_NESTED
    stored.width = codec.inline_bytes
    stored.length = rows
    stored.offset = offset
    stored.validity = <const uint8_t *> validity
    stored.offsets = <const int32_t *> offsets
    stored.values = <const void *> values
    stored.values_bytes = values_bytes
    # A codec is immutable and the columns are new: there is nothing to mark.
    try:
        with nogil:
            status = pst_nested_decode(codec.tree.c, &stored, columns, &fault)
        if status == PST_INVALID:
            raise errors.InvalidArgumentError(f"{values_bytes} bytes are not {rows} structs")
        if status == PST_CORRUPT:
            raise errors.CorruptFileError(
                f"state {codec.name!r}, row {fault.row}: stored bytes are no {codec.ddl}: at byte "
                f"{fault.at} of {fault.size} they are {(<bytes> fault.what).decode()}")
        written(status)
        return [taken(&columns[i]) for i in range(codec.root.span)]
    finally:
        for i in range(codec.root.span):
            free(columns[i].validity)
            free(columns[i].values)
            free(columns[i].offsets)
        free(columns)


cdef tuple taken(pst_nested_column *column):
    """A column's parts, which own their blocks from then on."""
    validity = owned(column.validity, <uint64_t> (column.length + 7) // 8)
    column.validity = NULL
    values = owned(column.values, column.values_bytes)
    column.values = NULL
    offsets = owned(column.offsets, <uint64_t> (column.length + 1) * 4)
    column.offsets = NULL
    return column.length, column.nulls, validity, values, offsets
