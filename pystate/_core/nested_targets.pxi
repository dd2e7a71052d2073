# Nested values: a column of bytes -> Arrow columns, row by row into buffers that grow.

cdef struct nested_target:  # what becomes an Arrow array
    nested_shape s
    nested_buffer valid       # a byte each
    nested_buffer values      # booleans: a byte each
    nested_buffer offsets
    int64_t length
    int64_t nulls

cdef int nested_add(nested_target *t, bint valid) noexcept nogil:
    """Append the validity of a row."""
    cdef uint8_t *to = nested_room(&t.valid, 1)
    if to is NULL:
        return NESTED_NO_MEMORY
    to[0] = valid
    t.length += 1
    t.nulls += not valid
    return 0


cdef int nested_add_end(nested_target *t, int64_t end, nested_reader *r) noexcept nogil:
    """Append an offset behind a row."""
    cdef uint8_t *to
    cdef int32_t narrow = <int32_t> end
    if end > INT32_MAX:
        r.fault = "too much for one array: decode them in parts"
        return NESTED_REFUSED
    to = nested_room(&t.offsets, 4)
    if to is NULL:
        return NESTED_NO_MEMORY
    memcpy(to, &narrow, 4)
    return 0


cdef int nested_add_null(nested_target *t, nested_reader *r) noexcept nogil:
    cdef nested_target *child = t + 1
    cdef uint32_t i
    cdef int status
    cdef uint8_t *to
    if nested_add(t, False) < 0:
        return NESTED_NO_MEMORY
    if t.s.kind == NESTED_STRUCT:
        for i in range(t.s.count):
            status = nested_add_null(child, r)
            if status < 0:
                return status
            child += child.s.span
        return 0
    if t.s.kind == NESTED_FIXED:
        to = nested_room(&t.values, t.s.width)
        if to is NULL:
            return NESTED_NO_MEMORY
        memset(to, 0, t.s.width)
        return 0
    return nested_add_end(
        t, <int64_t> t.values.size if t.s.kind == NESTED_BYTES else (t + 1).length, r)


cdef int nested_add_scalar(nested_target *t, const uint8_t *at, size_t size,
                           nested_reader *r) noexcept nogil:
    cdef uint8_t *to
    if t.s.code == PST_STRING and not nested_is_utf8(at, size):
        r.fault = "no valid UTF-8"
        return NESTED_REFUSED
    to = nested_room(&t.values, size)
    if to is NULL or nested_add(t, True) < 0:
        return NESTED_NO_MEMORY
    if t.s.kind == NESTED_FIXED:
        nested_store(to, at, t.s.width)
    elif size:
        memcpy(to, at, size)
    return nested_add_end(t, <int64_t> t.values.size, r) if t.s.kind == NESTED_BYTES else 0


cdef int nested_take_row(nested_target *t, nested_reader *r) noexcept nogil:
    """Append a value that is not null to the targets of its tree."""
    cdef uint64_t size
    cdef uint32_t i
    cdef int status
    cdef const uint8_t *at
    cdef nested_target *child = t + 1
    if t.s.kind == NESTED_ARRAY or t.s.kind == NESTED_MAP:
        return nested_take_rows(t, r)
    if t.s.kind != NESTED_STRUCT:
        at = nested_take_leaf(&t.s, r, &size)
        return NESTED_REFUSED if at is NULL else nested_add_scalar(t, at, size, r)
    at = nested_take_bits(r, t.s.count)
    if at is NULL:
        return NESTED_REFUSED
    if nested_add(t, True) < 0:
        return NESTED_NO_MEMORY
    for i in range(t.s.count):
        status = nested_take_row(child, r) if nested_bit(at, i) else nested_add_null(child, r)
        if status < 0:
            return status
        child += child.s.span
    return 0


cdef int nested_take_rows(nested_target *t, nested_reader *r) noexcept nogil:
    """Append an array or a map."""
    cdef uint64_t i, n
    cdef int status
    cdef const uint8_t *bits
    cdef const uint8_t *before = NULL
    cdef const uint8_t *at
    cdef nested_target *child = t + 1
    if nested_take_count(r, &n, &bits) < 0:
        return NESTED_REFUSED
    if t.s.kind == NESTED_MAP:
        for i in range(n):
            at = r.at
            status = nested_take_row(child, r)
            if status < 0:
                return status
            if before is not NULL and not nested_ascends(&child.s, before, at):
                r.fault = "a map whose keys do not ascend"
                return NESTED_REFUSED
            before = at
        child += child.s.span
    for i in range(n):
        status = (nested_take_row(child, r) if bits is NULL or nested_bit(bits, <int64_t> i)
                  else nested_add_null(child, r))
        if status < 0:
            return status
    if nested_add(t, True) < 0:
        return NESTED_NO_MEMORY
    return nested_add_end(t, (t + 1).length, r)


cdef int nested_take_slots(nested_target *t, const uint8_t *validity, int64_t offset, int64_t rows,
                           const uint8_t *slots, uint32_t stride) noexcept nogil:
    """Take one field of inline structs that were checked, or with bit -1 the structs' nulls."""
    cdef uint32_t width = t.s.width if t.s.kind == NESTED_FIXED else 0
    cdef uint8_t *valid = nested_grow(&t.valid, <size_t> rows)
    cdef uint8_t *to = nested_grow(&t.values, <size_t> rows * width)
    cdef int64_t i
    cdef bint there
    if valid is NULL or to is NULL:
        return NESTED_NO_MEMORY
    for i in range(rows):
        there = validity is NULL or nested_bit(validity, offset + i)
        # A null field is zero, what a null struct's bytes are is not known.
        if width:
            if there:
                nested_store(to, slots + t.s.at, width)
            else:
                memset(to, 0, width)
            to += width
        if there and t.s.bit >= 0:
            there = nested_bit(slots, t.s.bit)
        valid[i] = there
        t.nulls += not there
        slots += stride
    t.length += rows
    return 0


cdef class NestedTargets(_Guarded):
    """Columns that grow by the rows of a column of bytes."""

    cdef nested_target *targets
    cdef NestedCodec codec

    def __cinit__(self, NestedCodec codec not None):
        cdef int i
        self.codec = codec
        self.targets = <nested_target *> calloc(<size_t> codec.shapes.span, sizeof(nested_target))
        if self.targets is NULL:
            raise MemoryError
        for i in range(codec.shapes.span):
            self.targets[i].s = codec.shapes[i]

    def __dealloc__(self):
        cdef int i
        if self.targets is not NULL:
            for i in range(self.codec.shapes.span):
                nested_end(&self.targets[i].valid)
                nested_end(&self.targets[i].values)
                nested_end(&self.targets[i].offsets)
            free(self.targets)

    def decode(self, int64_t rows, int64_t offset, size_t validity, size_t offsets, size_t values,
               int64_t values_bytes):
        """Append the rows of an Arrow array: binary, or of fixed size for an inline struct."""
        cdef nested_reader r
        cdef int64_t row = 0
        cdef int status
        nested_open(&r, NULL, 0)
        if self.codec.inline_bytes and (
                offset < 0 or (offset + rows) * self.codec.inline_bytes > values_bytes):
            raise errors.InvalidArgumentError(f"{values_bytes} bytes are not {rows} structs")
        self.begin()
        try:
            with nogil:
                if self.codec.inline_bytes:
                    status = self.slots(rows, offset, <const uint8_t *> validity,
                                        <const uint8_t *> values, &row, &r)
                else:
                    status = self.bytes_(rows, offset, <const uint8_t *> validity,
                                         <const int32_t *> offsets, <const uint8_t *> values,
                                         values_bytes, &row, &r)
        finally:
            self.end()
        if status == NESTED_NO_MEMORY:
            raise MemoryError
        if status == NESTED_REFUSED:
            raise errors.CorruptFileError(
                f"state {self.codec.name!r}, row {row}: stored bytes are no "
                f"{self.codec.ddl}: at byte {r.at - r.data} of {r.end - r.data} they are "
                f"{(<bytes> r.fault).decode()}")

    cdef int slots(self, int64_t rows, int64_t offset, const uint8_t *validity,
                   const uint8_t *values, int64_t *row, nested_reader *r) noexcept nogil:
        cdef uint32_t width = self.codec.inline_bytes
        cdef int i
        if rows:
            values += offset * width
        while row[0] < rows:
            if validity is NULL or nested_bit(validity, offset + row[0]):
                nested_open(r, values + row[0] * width, width)
                r.fault = nested_inline_fault(self.codec.shapes, r.data, width, self.codec.padding)
                if r.fault is not NULL:
                    return NESTED_REFUSED
            row[0] += 1
        for i in range(self.codec.shapes.span):
            if nested_take_slots(&self.targets[i], validity, offset, rows, values, width) < 0:
                return NESTED_NO_MEMORY
        return 0

    cdef int bytes_(self, int64_t rows, int64_t offset, const uint8_t *validity,
                    const int32_t *offsets, const uint8_t *values, int64_t values_bytes,
                    int64_t *row, nested_reader *r) noexcept nogil:
        cdef int i, status
        cdef int64_t first, last
        for i in range(self.codec.shapes.span):
            if self.targets[i].s.kind in (NESTED_BYTES, NESTED_ARRAY, NESTED_MAP):
                if nested_add_end(&self.targets[i], 0, r) < 0:
                    return NESTED_NO_MEMORY
        if rows:
            offsets += offset
        while row[0] < rows:
            if validity is not NULL and not nested_bit(validity, offset + row[0]):
                status = nested_add_null(self.targets, r)
            else:
                first = pst_load_offset(offsets + row[0])
                last = pst_load_offset(offsets + row[0] + 1)
                if first < 0 or last < first or last > values_bytes:
                    r.fault = "outside of the column's buffer"
                    return NESTED_REFUSED
                nested_open(r, values + first, <size_t> (last - first))
                status = nested_take_row(self.targets, r)
                if status == 0 and r.at != r.end:
                    r.fault = "longer than their value"
                    status = NESTED_REFUSED
            if status < 0:
                return status
            row[0] += 1
        return 0

    def take(self):
        """Return (length, nulls, validity, values, offsets) of each type in preorder, once."""
        cdef int i
        self.ready()
        return [(self.targets[i].length, self.targets[i].nulls,
                 nested_taken(&self.targets[i].valid), nested_taken(&self.targets[i].values),
                 nested_taken(&self.targets[i].offsets))
                for i in range(self.codec.shapes.span)]
