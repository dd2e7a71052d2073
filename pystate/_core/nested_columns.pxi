# Nested values: Arrow columns -> a column of bytes, row by row over the columns' buffers, without a
# Python object per value.

cdef struct nested_column:  # an Arrow array of one type of the tree
    nested_shape s
    const uint8_t *validity   # NULL: no nulls
    int64_t offset            # of row 0 in the buffers
    const uint8_t *values
    const int32_t *offsets
    int64_t base              # an array's or map's offsets count from here in its children
    int64_t rows
    int64_t values_bytes      # of bytes

cdef enum:
    NESTED_NO_MEMORY = -1
    NESTED_REFUSED = -2


cdef object nested_taken(nested_buffer *b):
    """What a buffer on the heap holds, which is empty afterwards."""
    cdef Memory taken = Memory.__new__(Memory)
    if b.heap is NULL and nested_grow(b, 0) is NULL:
        raise MemoryError
    taken.data = b.heap
    taken.size = <Py_ssize_t> b.size
    b.heap = NULL
    return memoryview(taken)


cdef inline int64_t nested_rows_below(const nested_column *c) noexcept nogil:
    """How many elements there are below an array or a map."""
    cdef const nested_column *key = c + 1
    if c.s.kind == NESTED_ARRAY:
        return key.rows
    return min(key.rows, (key + key.s.span).rows)


cdef inline bint nested_valid(const nested_column *c, int64_t row) noexcept nogil:
    return c.validity is NULL or nested_bit(c.validity, c.offset + row)


cdef inline const char *nested_cell(const nested_column *c, int64_t row,
                                    uint64_t *word) noexcept nogil:
    """Load a fixed-width value in its canonical form; returns what is wrong with it."""
    cdef uint8_t flag
    if c.s.code == PST_BOOL:
        word[0] = nested_bit(c.values, c.offset + row)
        return NULL
    nested_load(&c.s, c.values + (c.offset + row) * c.s.width, word)
    if c.s.code == PST_DECIMAL and not nested_in_limit(&c.s, word):
        return "a decimal of more digits than its type has"
    nested_canonical(&c.s, word)
    return NULL


cdef int nested_put_row(const nested_column *c, int64_t row, nested_buffer *out,
                        nested_reader *refused) noexcept nogil:
    """Append a value that is not null. `refused` tells what is wrong with it."""
    cdef uint64_t word[2]
    cdef int64_t first, last
    cdef uint8_t *to
    if c.s.kind == NESTED_STRUCT:
        return nested_put_fields(c, row, out, refused)
    if c.s.kind == NESTED_FIXED:
        refused.fault = nested_cell(c, row, word)
        if refused.fault is not NULL:
            return NESTED_REFUSED
        to = nested_room(out, c.s.width)
        if to is NULL:
            return NESTED_NO_MEMORY
        nested_store(to, word, c.s.width)
        return 0
    first = pst_load_offset(c.offsets + c.offset + row)
    last = pst_load_offset(c.offsets + c.offset + row + 1)
    if c.s.kind == NESTED_BYTES:
        if first < 0 or last < first or last > c.values_bytes:
            refused.fault = "offsets that lead outside of its bytes"
            return NESTED_REFUSED
        if c.s.code == PST_STRING and not nested_is_utf8(c.values + first,
                                                         <size_t> (last - first)):
            refused.fault = "a string that is not valid UTF-8"
            return NESTED_REFUSED
        return nested_put_bytes(out, c.values + first, <size_t> (last - first))
    if first < c.base or last < first or last - c.base > nested_rows_below(c):
        refused.fault = "offsets that lead outside of its elements"
        return NESTED_REFUSED
    if c.s.kind == NESTED_ARRAY:
        return nested_put_elements(c + 1, first - c.base, last - first, out, refused)
    return nested_put_entries(c + 1, first - c.base, last - first, out, refused)


cdef int nested_put_fields(const nested_column *c, int64_t row, nested_buffer *out,
                           nested_reader *refused) noexcept nogil:
    cdef const nested_column *child = c + 1
    cdef uint32_t i
    cdef int status
    cdef size_t bits = out.size
    cdef uint8_t *to = nested_room(out, (c.s.count + 7) >> 3)
    if to is NULL:
        return NESTED_NO_MEMORY
    memset(to, 0, (c.s.count + 7) >> 3)
    for i in range(c.s.count):
        if nested_valid(child, row):
            out.data[bits + (i >> 3)] |= <uint8_t> (1 << (i & 7))
            status = nested_put_row(child, row, out, refused)
            if status < 0:
                return status
        child += child.s.span
    return 0


cdef int nested_put_elements(const nested_column *c, int64_t first, int64_t n,
                             nested_buffer *out, nested_reader *refused) noexcept nogil:
    cdef int64_t i
    cdef bint nulls = False
    cdef size_t bits
    cdef int status
    if c.validity is not NULL:
        for i in range(n):
            nulls |= not nested_valid(c, first + i)
    if nested_put_count(out, <uint64_t> n, nulls, &bits) < 0:
        return NESTED_NO_MEMORY
    for i in range(n):
        if nested_valid(c, first + i):
            if nulls:
                out.data[bits + <size_t> (i >> 3)] |= <uint8_t> (1 << (i & 7))
            status = nested_put_row(c, first + i, out, refused)
            if status < 0:
                return status
    return 0


cdef int nested_put_entries(const nested_column *key, int64_t first, int64_t n,
                            nested_buffer *out, nested_reader *refused) noexcept nogil:
    cdef const nested_column *value = key + key.s.span
    cdef size_t start = out.size
    cdef int64_t i
    cdef Py_ssize_t same
    cdef int status = 0
    cdef nested_span *spans = <nested_span *> malloc(<size_t> (n + 1) * sizeof(nested_span))
    if spans is NULL:
        return NESTED_NO_MEMORY
    for i in range(n):
        spans[i].at = out.size
        spans[i].is_null = not nested_valid(value, first + i)
        if not nested_valid(key, first + i):
            refused.fault = "a map with a null key"
            status = NESTED_REFUSED
        if status == 0:
            status = nested_put_row(key, first + i, out, refused)
        spans[i].middle = out.size
        if status == 0 and not spans[i].is_null:
            status = nested_put_row(value, first + i, out, refused)
        spans[i].end = out.size
        if status < 0:
            free(spans)
            return status
    same = nested_put_map(&key.s, out, start, spans, n)
    free(spans)
    if same == -2:
        return NESTED_NO_MEMORY
    if same >= 0:
        refused.fault = "a map in which a key is there twice"
        return NESTED_REFUSED
    return 0


cdef int nested_put_slots(const nested_column *root, const nested_column *c, int64_t rows,
                          uint8_t *to, uint32_t stride, int64_t *row,
                          nested_reader *refused) noexcept nogil:
    """Fill one field of inline structs, whose parents were filled before. `row` tells where."""
    cdef uint64_t word[2]
    cdef const nested_shape *parent = &root[c.s.parent].s
    # What lies under a null has no meaning, and stays zero.
    cdef bint always = c.validity is NULL and root.validity is NULL and c.s.parent == 0
    cdef int64_t i
    for i in range(rows):
        if always or (nested_valid(root, i) and nested_valid(c, i) and
                      (c.s.parent == 0 or nested_bit(to, parent.bit))):
            to[c.s.bit >> 3] |= <uint8_t> (1 << (c.s.bit & 7))
            if c.s.kind == NESTED_FIXED:
                refused.fault = nested_cell(c, i, word)
                if refused.fault is not NULL:
                    row[0] = i
                    return NESTED_REFUSED
                nested_store(to + c.s.at, word, c.s.width)
        to += stride
    return 0


cdef class NestedColumns(_Guarded):
    """The buffers of an Arrow array of nested values, by address, a `set` per type of the tree."""

    cdef nested_column *columns
    cdef NestedCodec codec
    cdef list owners

    def __cinit__(self, NestedCodec codec not None):
        cdef int i
        self.codec = codec
        self.owners = []
        self.columns = <nested_column *> calloc(<size_t> codec.shapes.span, sizeof(nested_column))
        if self.columns is NULL:
            raise MemoryError
        for i in range(codec.shapes.span):
            self.columns[i].s = codec.shapes[i]

    def __dealloc__(self):
        free(self.columns)

    def set(self, int i, int64_t offset, size_t validity, size_t values, size_t offsets,
            int64_t base, int64_t rows, int64_t values_bytes, object owner):
        """Tell where the column of type `i` in preorder lies, which was validated; its owner stays
        alive."""
        self.ready()
        if not 0 <= i < self.codec.shapes.span:
            raise errors.InvalidArgumentError(f"there is no type {i}")
        self.owners.append(owner)
        self.columns[i].offset = offset
        self.columns[i].validity = <const uint8_t *> validity
        self.columns[i].values = <const uint8_t *> values
        self.columns[i].offsets = <const int32_t *> offsets
        self.columns[i].base = base
        self.columns[i].rows = rows
        self.columns[i].values_bytes = values_bytes

    def encode(self, int64_t rows):
        """Return (offsets, None for an inline struct; data) of the rows; nulls are empty or zero."""
        cdef nested_buffer offsets, data
        cdef nested_reader refused
        cdef int64_t row = 0
        cdef int status
        nested_begin(&offsets, NULL, 0)
        nested_begin(&data, NULL, 0)
        nested_open(&refused, NULL, 0)
        self.begin()
        try:
            self.check_rows(rows)
            with nogil:
                status = (self.fill(rows, &row, &data, &refused) if self.codec.inline_bytes else
                          self.append(rows, &row, &offsets, &data, &refused))
            if status == NESTED_NO_MEMORY:
                raise MemoryError
            if status == NESTED_REFUSED:
                raise errors.WrongTypeError(
                    f"state {self.codec.name!r}: row {row} is no {self.codec.ddl}: it has "
                    f"{(<bytes> refused.fault).decode()}")
            return (None if self.codec.inline_bytes else nested_taken(&offsets),
                    nested_taken(&data))
        finally:
            self.end()
            nested_end(&offsets)
            nested_end(&data)

    cdef int check_rows(self, int64_t rows) except -1:
        """Refuse more rows than the struct of all, or a field in it, has."""
        cdef int i = 0
        while i < self.codec.shapes.span:
            if not 0 <= rows <= self.columns[i].rows and self.is_by_row(i):
                raise errors.InvalidArgumentError(
                    f"{rows} rows of a column of {self.columns[i].rows}")
            i += 1
        return 0

    cdef bint is_by_row(self, int i) noexcept:
        """Whether type `i` lies in structs alone, so that its rows are the column's."""
        while i > 0:
            i = self.columns[i].s.parent
            if self.columns[i].s.kind != NESTED_STRUCT:
                return False
        return True

    cdef int fill(self, int64_t rows, int64_t *row, nested_buffer *data,
                  nested_reader *refused) noexcept nogil:
        cdef int i
        cdef uint32_t width = self.codec.inline_bytes
        cdef uint8_t *to = nested_grow(data, <size_t> rows * width + 8)
        if to is NULL:
            return NESTED_NO_MEMORY
        data.size -= 8
        memset(to, 0, <size_t> rows * width)
        for i in range(1, self.columns.s.span):
            if nested_put_slots(self.columns, self.columns + i, rows, to, width, row, refused) < 0:
                return NESTED_REFUSED
        return 0

    cdef int append(self, int64_t rows, int64_t *row, nested_buffer *offsets, nested_buffer *data,
                    nested_reader *refused) noexcept nogil:
        cdef int32_t *ends = <int32_t *> nested_grow(offsets, <size_t> (rows + 1) * 4)
        cdef size_t before
        cdef int status
        if ends is NULL or nested_grow(data, <size_t> rows * 16 + 64) is NULL:
            return NESTED_NO_MEMORY
        data.size = 0
        ends[0] = 0
        while row[0] < rows:
            before = data.size
            if nested_valid(self.columns, row[0]):
                status = nested_put_row(self.columns, row[0], data, refused)
                if status < 0:
                    return status
                if data.size - before > PST_MAX_BYTES or data.size > INT32_MAX:
                    refused.fault = "too many bytes for one value (256 MiB) or array (2 GiB)"
                    return NESTED_REFUSED
            row[0] += 1
            ends[row[0]] = <int32_t> data.size
        return 0
