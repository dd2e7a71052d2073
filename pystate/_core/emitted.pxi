# What a function emits: rows taken apart into typed columns as they come.

cdef extern from *:
    """
    /* The fields of a row whose names are in its own dict, borrowed; NULL where they are not. */
    static PyObject *pst_own_fields(PyObject *row) {
        static PyObject *name;
        PyObject **dict = _PyObject_GetDictPtr(row);
        if (!name)
            name = PyUnicode_InternFromString("__fields__");
        if (!name)
            PyErr_Clear();
        return name && dict && *dict ? PyDict_GetItemWithError(*dict, name) : NULL;
    }
    """
    PyObject *pst_own_fields(object row) except? NULL
    PyObject **PySequence_Fast_ITEMS(object sequence)


from cpython.float cimport PyFloat_CheckExact
from cpython.list cimport PyList_CheckExact
from cpython.tuple cimport PyTuple_GET_SIZE

cdef enum:
    MOST_TEXT = 1 << 30  # bytes of a column's strings; their offsets have 32 bits


cdef class Emitted:
    """Rows that a function emitted, in order, until they are taken.

    A row of exactly as many values as there are columns is taken apart at once: values of exactly
    the type of their column go into its buffer, and if one does not, the column becomes a list of
    Python objects. So nothing is decided here about a value that needs care. Any other row makes an
    end of the columns: it and those behind it are kept as they are.

    Parameters
    ----------
    codes : list of int or None
        The columns' types, 0 for a list of objects; None to keep all rows as they are.
    kind : type, optional
        The class of rows, whose own ``__fields__`` have to be exactly `names`; by default rows are
        plain tuples and lists.
    names : list of str, optional
        The columns.
    """

    cdef Cells *cells
    cdef int width
    cdef bint apart         # whether rows are taken apart
    cdef object kind
    cdef tuple names
    cdef Py_ssize_t n       # rows in the columns
    cdef Py_ssize_t ended   # rows in `parts`
    cdef list objects       # for each column a list, or None while it is in its cells
    cdef list parts
    cdef list rows          # None: the columns are open
    cdef list keys          # whose rows these are, one for each
    cdef list taken_keys    # those of the rows that were taken last
    cdef public object key
    """Whose rows come next; None for nobody's."""

    def __cinit__(self, codes, kind=None, names=()):
        cdef int i
        self.parts = []
        self.rows = []
        self.keys = []
        self.taken_keys = []
        if codes is None:
            return
        codes = list(codes)
        for code in codes:
            if code and code not in READABLE:
                raise errors.InvalidArgumentError(f"no column of rows has the type {code}")
        self.cells = <Cells *> calloc(len(codes) + 1, sizeof(Cells))
        if self.cells is NULL:
            raise MemoryError
        self.width = <int> len(codes)
        for i in range(self.width):
            self.cells[i].code = codes[i]
            self.cells[i].width = cell_width(codes[i])
        self.kind = kind
        self.names = tuple(names)
        if kind is not None and len(self.names) != self.width:
            raise errors.InvalidArgumentError(f"{len(self.names)} names of {self.width} columns")
        self.apart = self.width > 0
        self.begin()

    def __dealloc__(self):
        cdef int i
        if self.cells is not NULL:
            for i in range(self.width):
                free_cells(&self.cells[i])
            free(self.cells)

    cdef int begin(self) except -1:
        """Open empty columns, if rows are taken apart."""
        cdef int i
        self.n = 0
        self.rows = None if self.apart else []
        if self.apart:
            self.objects = [None if self.cells[i].code else [] for i in range(self.width)]
            for i in range(self.width):
                self.cells[i].used = 0
        return 0

    def __len__(self):
        return self.ended + self.n + (0 if self.rows is None else len(self.rows))

    cdef inline bint many(self, Py_ssize_t most) noexcept:
        """Whether there are so many rows."""
        return self.ended + self.n + (0 if self.rows is None else len(self.rows)) >= most

    def append(self, row):
        """Add a row."""
        self.add(row)

    def extend(self, rows):
        """Add rows."""
        self.add_all(rows)

    cdef int add_all(self, object rows) except -1:
        for row in rows:
            self.add(row)
        return 0

    cdef int add(self, object row) except -1:
        cdef PyObject **values
        cdef int i
        self.keys.append(self.key)
        if self.rows is None:
            if self.fits(row):
                values = PySequence_Fast_ITEMS(row)
                for i in range(self.width):
                    self.put(i, <object> values[i])
                self.n += 1
                return 0
            self.end_columns()
            self.rows = []
        self.rows.append(row)
        return 0

    cdef bint fits(self, object row) except -1:
        """Whether a row has a value for each column, in the columns' order."""
        cdef PyObject *fields
        cdef PyObject **given
        cdef int i
        if self.kind is None:
            if PyTuple_CheckExact(row):
                return PyTuple_GET_SIZE(row) == self.width
            return PyList_CheckExact(row) and len(<list> row) == self.width
        if type(row) is not self.kind or PyTuple_GET_SIZE(row) != self.width:
            return False
        fields = pst_own_fields(row)
        if fields is NULL:
            return False
        own = <object> fields
        # Those of `Row("a", "b")(1, 2)` are a Row.
        if PyList_CheckExact(own):
            if len(<list> own) != self.width:
                return False
        elif not isinstance(own, tuple) or PyTuple_GET_SIZE(own) != self.width:
            return False
        given = PySequence_Fast_ITEMS(own)
        for i in range(self.width):
            # Names in source code are the same objects; anything else is rare.
            if given[i] is not PyTuple_GET_ITEM(self.names, i):
                name = <object> given[i]
                if not PyUnicode_CheckExact(name) or name != self.names[i]:
                    return False
        return True

    cdef int put(self, int i, object value) except -1:
        """Add a value to a column."""
        cdef pst_cell cell
        cdef Cells *c = &self.cells[i]
        cdef int overflow = 0
        cdef long long number
        cdef double real
        cdef Py_ssize_t size = 0
        cdef bint fits = False
        if self.objects[i] is not None:
            (<list> self.objects[i]).append(value)
            return 0
        if value is None:
            written(append_cell(c, self.n, &cell, False))
            return 0
        if PyLong_CheckExact(value):
            if PST_INT8 <= c.code <= PST_INT64:
                number = PyLong_AsLongLongAndOverflow(value, &overflow)
                cell.word[0] = <uint64_t> number
                fits = not overflow and least_of(c.code) <= number <= most_of(c.code)
        elif PyUnicode_CheckExact(value):
            if c.code == PST_STRING and c.used < MOST_TEXT:
                try:
                    cell.bytes.data = <const uint8_t *> PyUnicode_AsUTF8AndSize(value, &size)
                except UnicodeEncodeError:
                    size = MOST_TEXT
                cell.bytes.size = <uint32_t> size
                fits = size < MOST_TEXT
        elif PyFloat_CheckExact(value):
            if c.code == PST_FLOAT64:
                real = value
                memcpy(cell.word, &real, 8)
                fits = True
        elif value is True or value is False:
            cell.word[0] = value is True
            fits = c.code == PST_BOOL
        if fits:
            written(append_cell(c, self.n, &cell, True))
            return 0
        found = [cell_value(c, k) for k in range(self.n)]
        found.append(value)
        self.objects[i] = found
        return 0

    cdef int end_columns(self) except -1:
        """Make a part of what is in the columns."""
        cdef list columns = []
        cdef int i
        if self.n:
            for i in range(self.width):
                found = self.objects[i]
                columns.append(taken_cells(&self.cells[i], self.n) if found is None else found)
            self.parts.append((self.n, columns))
            self.ended += self.n
        self.n = 0
        return 0

    def take(self):
        """Return the rows and keep none: parts in order, each a list of rows as they came, or (rows,
        columns); a column is a list of objects, or (nulls, validity, values, offsets)."""
        cdef list parts
        if self.rows is None:
            self.end_columns()
        elif self.rows:
            self.parts.append(self.rows)
        parts = self.parts
        self.parts = []
        self.taken_keys, self.keys = self.keys, []
        self.ended = 0
        self.begin()
        return parts

    def key_of(self, Py_ssize_t row):
        """Whose row it was, by its place among all that were taken last."""
        return self.taken_keys[row]


cdef inline int64_t least_of(int code) noexcept:
    if code == PST_INT64:
        return INT64_MIN
    return INT32_MIN if code == PST_INT32 else INT16_MIN if code == PST_INT16 else INT8_MIN


cdef inline int64_t most_of(int code) noexcept:
    if code == PST_INT64:
        return INT64_MAX
    return INT32_MAX if code == PST_INT32 else INT16_MAX if code == PST_INT16 else INT8_MAX


cdef object cell_value(const Cells *c, Py_ssize_t i):
    """A value of a column that `Emitted` fills."""
    cdef double real
    if not c.valid[i]:
        return None
    if c.code == PST_STRING:
        return PyUnicode_DecodeUTF8(<const char *> c.values + c.offsets[i],
                                    c.offsets[i + 1] - c.offsets[i], NULL)
    if c.code == PST_FLOAT64:
        memcpy(&real, c.values + 8 * i, 8)
        return real
    if c.code == PST_BOOL:
        return c.values[i] != 0
    if c.code == PST_INT64:
        return (<const int64_t *> <const void *> c.values)[i]
    if c.code == PST_INT32:
        return (<const int32_t *> <const void *> c.values)[i]
    if c.code == PST_INT16:
        return (<const int16_t *> <const void *> c.values)[i]
    return (<const int8_t *> c.values)[i]


cdef tuple taken_cells(const Cells *c, Py_ssize_t n):
    """Arrow's buffers of a column: (nulls, validity or None, values, offsets or None)."""
    cdef Py_ssize_t nulls = 0, i
    for i in range(n):
        nulls += not c.valid[i]
    validity = packed(c.valid, n) if nulls else None
    if c.code == PST_STRING:
        return (nulls, validity,
                PyBytes_FromStringAndSize(<const char *> c.values, <Py_ssize_t> c.used),
                PyBytes_FromStringAndSize(<const char *> c.offsets, 4 * (n + 1)))
    if c.code == PST_BOOL:
        return nulls, validity, packed(c.values, n), None
    return (nulls, validity,
            PyBytes_FromStringAndSize(<const char *> c.values, n * <Py_ssize_t> c.width), None)


cdef bytes packed(const uint8_t *flags, Py_ssize_t n):
    """Flags of a byte each as a bitmap of Arrow."""
    cdef bytes bits = bytes((n + 7) // 8)
    cdef uint8_t *to = <uint8_t *> PyBytes_AS_STRING(bits)
    cdef Py_ssize_t i
    for i in range(n):
        if flags[i]:
            to[i >> 3] |= <uint8_t> (1 << (i & 7))
    return bits
