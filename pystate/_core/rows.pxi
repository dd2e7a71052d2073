# Rows as columns, and readers of the last sealed epoch.

cdef enum:
    ROWS_BYTES = 64 * 1024 * 1024


# ---- rows as columns -----------------------------------------------------------------------------

cdef class _Rows:
    """Collects records into Arrow-layout buffers, keys first, then states."""

    cdef Cells cells[80]
    cdef int n_keys
    cdef int n_states
    cdef Py_ssize_t n
    cdef size_t bytes

    def __cinit__(self, Schema schema not None):
        cdef int i = 0
        cdef Codec codec
        self.n_keys = <int> len(schema.key_codecs)
        self.n_states = <int> len(schema.state_codecs)
        for codec in schema.key_codecs + schema.state_codecs:
            self.cells[i].code = codec.code
            self.cells[i].width = cell_width(codec.code)
            i += 1

    def __dealloc__(self):
        cdef int i
        for i in range(self.n_keys + self.n_states):
            free(self.cells[i].values)
            free(self.cells[i].valid)
            free(self.cells[i].offsets)

    cdef pst_status append(self, const pst_record *record) noexcept nogil:
        cdef int i
        cdef pst_status status
        for i in range(self.n_keys):
            status = append_cell(&self.cells[i], self.n, &record.key[i],
                                 not (record.key_nulls >> i & 1))
            if status != PST_OK:
                return status
            self.bytes += 8 if self.cells[i].width else record.key[i].bytes.size
        for i in range(self.n_states):
            status = append_cell(&self.cells[self.n_keys + i], self.n, &record.cells[i],
                                 record.present >> i & 1)
            if status != PST_OK:
                return status
            if self.cells[self.n_keys + i].width:
                self.bytes += 8
            elif record.present >> i & 1:
                self.bytes += record.cells[i].bytes.size
        self.n += 1
        return PST_OK

    cdef list take(self):
        """(validity bytes, values, offsets or None) per column."""
        cdef Cells *c
        cdef int i
        result = []
        for i in range(self.n_keys + self.n_states):
            c = &self.cells[i]
            valid = PyBytes_FromStringAndSize(<const char *> c.valid, self.n)
            if c.width:
                values = PyBytes_FromStringAndSize(<const char *> c.values,
                                                   self.n * <Py_ssize_t> c.width)
                result.append((valid, values, None))
            else:
                values = PyBytes_FromStringAndSize(<const char *> c.values, <Py_ssize_t> c.used)
                if self.n:
                    offsets = PyBytes_FromStringAndSize(<const char *> c.offsets,
                                                        4 * (self.n + 1))
                else:
                    offsets = bytes(4)
                result.append((valid, values, offsets))
        return result


cdef size_t cell_width(int code) noexcept nogil:
    if code == PST_BOOL or code == PST_INT8:
        return 1
    if code == PST_INT16:
        return 2
    if code == PST_INT32 or code == PST_FLOAT32 or code == PST_DATE32:
        return 4
    if code == PST_DECIMAL:
        return 16
    if code >= PST_STRING:
        return 0
    return 8


cdef pst_status append_cell(Cells *c, Py_ssize_t row, const pst_cell *cell,
                            bint present) noexcept nogil:
    cdef size_t n = <size_t> row
    cdef size_t capacity
    cdef size_t size
    cdef void *grown
    if n >= c.rows_capacity:
        capacity = max(<size_t> 256, c.rows_capacity * 2)
        grown = realloc(c.valid, capacity)
        if grown is NULL:
            return PST_NO_MEMORY
        c.valid = <uint8_t *> grown
        if c.width:
            grown = realloc(c.values, capacity * c.width)
            if grown is NULL:
                return PST_NO_MEMORY
            c.values = <uint8_t *> grown
        else:
            grown = realloc(c.offsets, (capacity + 1) * 4)
            if grown is NULL:
                return PST_NO_MEMORY
            c.offsets = <int32_t *> grown
            c.offsets[0] = 0 if n == 0 else c.offsets[0]
        c.rows_capacity = capacity
    c.valid[n] = present
    if c.width:
        if present:
            memcpy(c.values + n * c.width, cell.word, c.width)
        else:
            memset(c.values + n * c.width, 0, c.width)
        return PST_OK
    size = cell.bytes.size if present else 0
    if c.used + size > c.data_capacity:
        capacity = max(c.used + size, c.data_capacity * 2)
        grown = realloc(c.values, capacity)
        if grown is NULL:
            return PST_NO_MEMORY
        c.values = <uint8_t *> grown
        c.data_capacity = capacity
    if size:
        memcpy(c.values + c.used, cell.bytes.data, size)
    c.used += size
    c.offsets[n + 1] = <int32_t> c.used
    return PST_OK


# ---- readers of the last sealed epoch ------------------------------------------------------------

@cython.no_gc_clear  # the table outlives the reader
cdef class Reader(_Dependent):
    """The last sealed epoch of a table of this process, or of a shared table's file."""

    cdef object __weakref__
    cdef pst_reader *r
    cdef pst_record *record
    cdef unsigned long fork
    cdef readonly Schema schema
    cdef readonly str where

    def __init__(self, Table table, Schema schema not None, path, str where not None):
        cdef pst_detail detail
        cdef pst_status status
        cdef bytes encoded = b"" if path is None else os.fsencode(path)
        cdef const char *file = NULL if path is None else <const char *> encoded
        cdef pst_table *t = NULL
        once(self.where is not None, "a reader")
        memset(&detail, 0xFF, sizeof(detail))
        self.fork = fork_generation
        self.schema = schema
        self.where = where
        self.record = new_record()
        self.hold()
        try:
            if table is not None:
                table.begin()
                t = table.t
                self.table = table
            try:
                with nogil:
                    status = pst_reader_open(t, &schema.c, file, &self.r, &detail)
            finally:
                if table is not None:
                    table.end()
        finally:
            self.end()
        if status == PST_NOT_FOUND:
            raise FileNotFoundError(2, "no shared table", path)
        self.check(status, &detail)
        if table is not None:
            self.link()

    def __dealloc__(self):
        self.unlink()
        # A forked child must not release its parent's pin.
        if self.r is not NULL and self.fork == fork_generation:
            pst_reader_close(self.r)
        free(self.record)

    cdef int check(self, pst_status status, const pst_detail *detail) except -1:
        if status == PST_BUSY:
            raise errors.TableBusyError(
                f"{self.where}: a roll back of the table does not end, or its writer was killed "
                "in it; whoever opens the table to write ends it: try again then, or read the "
                "checkpoint")
        return check(status, detail, self.where, self.schema)

    cdef int ready(self) except -1:
        if self.busy:
            raise errors.InUseError(f"{self.where}: the reader is in use by another thread")
        if self.r is NULL or self.fork != fork_generation:
            raise errors.ClosedError(f"{self.where}: the reader is closed, or of another process")
        return 0

    def close(self):
        """Release the epoch. Does nothing the second time."""
        if self.r is not NULL and self.fork == fork_generation:
            self.ready()
            self.release()

    cdef void release(self) noexcept:
        self.unlink()
        pst_reader_close(self.r)
        self.r = NULL

    @property
    def key_columns(self):
        """How many columns of `scan` are the key's and its namespace's."""
        if self.schema is None:
            self.ready()
        return len(self.schema.key_codecs)

    def lineage(self):
        """(id, parent, epoch, query) of the pinned epoch."""
        self.ready()
        return lineage_tuple(pst_reader_lineage(self.r))

    def get(self, key):
        """Return the states of a key as a list, None for an absent one; None without the key."""
        cdef pst_cell cells[PST_MAX_KEYS_]
        cdef uint32_t nulls = 0
        cdef Codec codec
        cdef int i
        cdef pst_status status
        self.ready()
        owner = self.schema.encode_key(key, cells, &nulls)
        self.begin()
        try:
            # It waits for a roll back, which another thread of this process may be doing.
            with nogil:
                status = pst_reader_get(self.r, cells, nulls, self.record)
            if status == PST_NOT_FOUND:
                return None
            self.check(status, NULL)
            result = []
            for i in range(len(self.schema.state_codecs)):
                codec = self.schema.state_codecs[i]
                result.append(codec.decode(&self.record.cells[i])
                              if self.record.present >> i & 1 else None)
            return result
        finally:
            self.end()

    def scan(self, uint64_t cursor, Py_ssize_t limit):
        """Copy up to `limit` rows: (cursor or None at the end, rows, columns)."""
        cdef _Rows rows
        cdef pst_status status = PST_OK
        self.ready()
        rows = _Rows(self.schema)
        self.begin()
        try:
            with nogil:
                while rows.n < limit and rows.bytes < ROWS_BYTES:
                    status = pst_reader_next(self.r, &cursor, self.record)
                    if status == PST_OK:
                        status = rows.append(self.record)
                    if status != PST_OK:
                        break
        finally:
            self.end()
        if status != PST_NOT_FOUND:
            self.check(status, NULL)
        return None if status == PST_NOT_FOUND else cursor, rows.n, rows.take()
