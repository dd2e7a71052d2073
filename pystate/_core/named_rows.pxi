# Rows of named columns: tuples whose items are also found by name, and rows made of Arrow columns.

cdef extern from *:
    """
    /* row[item] where row is a tuple with names. The class has a dict of the names' positions; what
     * is neither an int nor one of the names is for its method. */
    static PyObject *pst_positions_name, *pst_other_item_name;

    static PyObject *pst_named_item(PyObject *row, PyObject *item) {
        if (PyLong_CheckExact(item))
            return PyTuple_Type.tp_as_mapping->mp_subscript(row, item);
        if (PyUnicode_CheckExact(item)) {
            PyObject *at, *positions = _PyType_Lookup(Py_TYPE(row), pst_positions_name);
            at = positions && PyDict_CheckExact(positions)
                ? PyDict_GetItemWithError(positions, item) : NULL;
            if (at && PyLong_CheckExact(at)) {
                Py_ssize_t i = PyLong_AsSsize_t(at);
                if (i >= 0 && i < Py_SIZE(row)) {
                    PyObject *found = PyTuple_GET_ITEM(row, i);
                    Py_INCREF(found);
                    return found;
                }
            }
            if (PyErr_Occurred())
                return NULL;
        }
        return PyObject_CallMethodOneArg(row, pst_other_item_name, item);
    }

    static PyObject *pst_named_tuple(PyObject *bases) {
        static PyType_Slot slots[] = {{Py_mp_subscript, (void *)pst_named_item}, {0, NULL}};
        static PyType_Spec spec = {
            "pystate._core.core.named_tuple", 0, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
        if (!pst_positions_name)
            pst_positions_name = PyUnicode_InternFromString("__positions__");
        if (!pst_other_item_name)
            pst_other_item_name = PyUnicode_InternFromString("__other_item__");
        if (!pst_positions_name || !pst_other_item_name)
            return NULL;
        return PyType_FromSpecWithBases(&spec, bases);
    }

    /* A row that `pst_fill` has to fill before anybody sees it. */
    static PyObject *pst_new_row(PyObject *type, Py_ssize_t n) {
        PyObject *row = ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, n);
    #if PY_VERSION_HEX >= 0x030E0000
        /* Tuples keep their hash, and 0 would be one. */
        if (row)
            ((PyTupleObject *)row)->ob_hash = -1;
    #endif
        return row;
    }
    """
    object pst_named_tuple(object bases)
    object pst_new_row(object type, Py_ssize_t n)


from cpython.bool cimport PyBool_FromLong
from cpython.tuple cimport PyTuple_GET_ITEM


def named_tuple(base=tuple):
    """Make a class of tuples for others to derive from: ``row["name"]`` is looked up in the class's
    ``__positions__``, and what is neither an int nor there goes to its ``__other_item__(item)``."""
    if not (isinstance(base, type) and issubclass(base, tuple)):
        raise errors.InvalidArgumentError(f"rows are tuples, not {base!r:.80}")
    return pst_named_tuple((base,))


cdef class ColumnReader:
    """The values of a column as Python objects: of an Arrow array of a plain type, made when they
    are asked for, or of a list."""

    cdef list values
    cdef ArrayRef array

    def __init__(self, given):
        once(self.values is not None or self.array is not None, "a reader")
        if isinstance(given, list):
            self.values = given
            return
        self.array = <ArrayRef?> given
        if self.array.c.type not in READABLE:
            self.array = None
            raise errors.InvalidArgumentError("a column of this type is read from a list")

    cdef Py_ssize_t length(self) except -1:
        if self.values is not None:
            return len(self.values)
        if self.array is None:
            raise errors.ClosedError("the reader was made by __new__ alone: nothing is behind it")
        return self.array.c.length

    def to_list(self):
        """Return all values."""
        cdef Py_ssize_t i
        return [self.get(i) for i in range(self.length())]

    # The caller has compared `i` with the length.
    cdef object get(self, Py_ssize_t i):
        cdef const pst_array *a
        cdef int64_t at, begin, size
        if self.values is not None:
            return self.values[i]
        a = &self.array.c
        at = a.offset + i
        if a.validity is not NULL and not a.validity[at >> 3] >> (at & 7) & 1:
            return None
        if a.type == PST_INT64:
            return PyLong_FromLongLong((<const int64_t *> a.values)[at])
        if a.type == PST_FLOAT64:
            return PyFloat_FromDouble((<const double *> a.values)[at])
        if a.type == PST_STRING:
            begin = pst_load_offset(a.offsets + at)
            size = pst_load_offset(a.offsets + at + 1) - begin
            if begin < 0 or size < 0 or begin + size > a.values_bytes:
                raise errors.InvalidArgumentError("not a valid Arrow array: an offset leads outside")
            return PyUnicode_DecodeUTF8(<const char *> a.values + begin, size, NULL)
        if a.type == PST_INT32:
            return PyLong_FromLongLong((<const int32_t *> a.values)[at])
        if a.type == PST_BOOL:
            return PyBool_FromLong((<const uint8_t *> a.values)[at >> 3] >> (at & 7) & 1)
        if a.type == PST_INT16:
            return PyLong_FromLongLong((<const int16_t *> a.values)[at])
        return PyLong_FromLongLong((<const int8_t *> a.values)[at])


READABLE = frozenset((PST_BOOL, PST_INT8, PST_INT16, PST_INT32, PST_INT64, PST_FLOAT64, PST_STRING))


cdef class RowSource:
    """Rows of a class of tuples, made one at a time of a window of their columns.

    `refill(i)` has to fill a window that row `i` is in.
    """

    cdef object kind
    cdef object refill
    cdef Py_ssize_t width
    cdef Py_ssize_t begin
    cdef Py_ssize_t end
    cdef list readers

    def __init__(self, kind not None, Py_ssize_t width, refill=None):
        once(self.kind is not None, "a source of rows")
        if not (isinstance(kind, type) and issubclass(kind, tuple)):
            raise errors.InvalidArgumentError(f"rows are tuples, not {kind!r:.80}")
        self.kind = kind
        self.width = width
        self.refill = refill

    def fill(self, Py_ssize_t begin, list columns not None):
        """Set the window: the columns' first value belongs to row `begin`."""
        cdef list readers = [ColumnReader(each) for each in columns]
        cdef Py_ssize_t length = 0
        if len(readers) != self.width:
            raise errors.InvalidArgumentError(f"{len(readers)} columns for {self.width} fields")
        for i in range(len(readers)):
            if i and (<ColumnReader> readers[i]).length() != length:
                raise errors.InvalidArgumentError("columns differ in length")
            length = (<ColumnReader> readers[i]).length()
        self.readers = readers
        self.begin = begin
        self.end = begin + length

    cdef object make(self, Py_ssize_t i):
        """Row `i`."""
        cdef Py_ssize_t k
        cdef list readers
        if not self.begin <= i < self.end:
            if self.refill is not None:
                self.refill(i)
            if not self.begin <= i < self.end:
                raise errors.InvalidArgumentError(f"there is no row {i}")
        readers = self.readers
        i -= self.begin
        row = pst_new_row(self.kind, self.width)
        for k in range(self.width):
            value = (<ColumnReader> readers[k]).get(i)
            Py_INCREF(value)
            PyTuple_SET_ITEM(row, k, value)
        return row

    def rows(self, Py_ssize_t begin, Py_ssize_t end):
        """An iterator of the rows from `begin` to before `end`."""
        cdef RowRange rows = RowRange.__new__(RowRange)
        rows.source = self
        rows.at = begin
        rows.end = end
        rows.num_rows = end - begin
        return rows


cdef class RowRange:
    """An iterator of some rows of a source."""

    cdef RowSource source
    cdef Py_ssize_t at
    cdef Py_ssize_t end
    cdef readonly Py_ssize_t num_rows

    def __iter__(self):
        return self

    def __next__(self):
        if self.at >= self.end:
            raise StopIteration
        row = self.source.make(self.at)
        self.at += 1
        return row

    def stop(self):
        """End it: whoever has kept it gets no more rows."""
        self.at = self.end


def grouped(size_t first, Py_ssize_t n, size_t order):
    """Sort rows by groups, in the order of the groups' first rows, and stably.

    `first`, 32-bit, has for each row the first row of its group, itself included. Fills `order`,
    64-bit, and returns the first row of each group, and where in the order each ends.
    """
    cdef const int32_t *of = <const int32_t *> first
    cdef int64_t *to = <int64_t *> order
    cdef Memory counts = Memory.__new__(Memory)
    cdef int64_t *place
    cdef int64_t at = 0, size
    cdef Py_ssize_t i
    cdef list firsts = [], ends = []
    if counts.borrow(<uint64_t> n * 8) != PST_OK:
        raise MemoryError
    place = <int64_t *> counts.data
    memset(place, 0, <size_t> n * 8)
    for i in range(n):
        if not 0 <= of[i] <= i:
            raise errors.InvalidArgumentError("a group's first row comes after it")
        place[of[i]] += 1
    for i in range(n):
        size = place[i]
        place[i] = at
        if size:
            at += size
            firsts.append(i)
            ends.append(at)
    for i in range(n):
        to[place[of[i]]] = i
        place[of[i]] += 1
    return firsts, ends
