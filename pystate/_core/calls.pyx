# cython: language_level=3, binding=True, auto_pickle=False, autotestdict=False
"""Calls of users' functions: rows made of columns, the loops, and rows taken apart into columns.

Each row is one call of the core, through `core.pxd`.
"""

from cpython.bool cimport PyBool_FromLong
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.float cimport PyFloat_CheckExact, PyFloat_FromDouble
from cpython.list cimport PyList_CheckExact
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact, PyLong_FromLongLong
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport (
    PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_SET_ITEM,
)
from cpython.unicode cimport PyUnicode_CheckExact, PyUnicode_DecodeUTF8
from libc.stdint cimport (
    INT8_MAX, INT8_MIN, INT16_MAX, INT16_MIN, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN,
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t,
)
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from pystate._core.core cimport (
    Cells, append_cell, array_of, as_batch, as_due_timers, cell_width, free_cells, once,
    pst_load_offset, refused, select_row, take_timer, timer_at, timers_stale,
)
from pystate._core.cpystate cimport (
    PST_BOOL, PST_FLOAT64, PST_INT8, PST_INT16, PST_INT32, PST_INT64, PST_OK, PST_STRING,
    pst_array, pst_cell, pst_status,
)
from pystate._core.new_row cimport pst_new_row

from pystate import errors

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL


# ---- rows of columns -----------------------------------------------------------------------------

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
            "pystate._core.calls.named_tuple", 0, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
        if (!pst_positions_name)
            pst_positions_name = PyUnicode_InternFromString("__positions__");
        if (!pst_other_item_name)
            pst_other_item_name = PyUnicode_InternFromString("__other_item__");
        if (!pst_positions_name || !pst_other_item_name)
            return NULL;
        return PyType_FromSpecWithBases(&spec, bases);
    }
    """
    object pst_named_tuple(object bases)


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
    cdef object array
    cdef const pst_array *c

    def __init__(self, given):
        once(self.values is not None or self.array is not None, "a reader")
        if isinstance(given, list):
            self.values = given
            return
        cdef const pst_array *c = array_of(given)
        if c.type not in READABLE:
            raise errors.InvalidArgumentError("a column of this type is read from a list")
        self.array = given
        self.c = c

    cdef Py_ssize_t length(self) except -1:
        if self.values is not None:
            return len(self.values)
        if self.array is None:
            raise errors.ClosedError("the reader was made by __new__ alone: nothing is behind it")
        return self.c.length

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
        a = self.c
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


# ---- rows that come out ---------------------------------------------------------------------------

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


cdef inline int written(pst_status status) except -1:
    return 0 if status == PST_OK else refused(status)


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


# ---- loops ---------------------------------------------------------------------------------------

cdef class _Calls:
    """Base of both. The parameters that they share:

    call : callable
        The function.
    context : RuntimeContext
        Its last argument.
    emitted : Emitted
        Takes the rows that it yields or returns.
    checked : tuple
        The types of values that can be iterated over, and ``check(value)`` for those of another
        type; None for the latter if the function is a generator.
    clock, leave : callable or None
        ``clock(time)`` comes before each call, ``leave()`` after it.
    """

    cdef object call
    cdef object context
    cdef object clock
    cdef object leave
    cdef set iterables
    cdef object check
    cdef Emitted emitted
    cdef readonly object key
    """The key of the last call."""
    cdef readonly bint calling
    """Whether a call has raised what comes out of `run`."""
    cdef Py_ssize_t at
    cdef Py_ssize_t end

    cdef int set_call(self, call, context, Emitted emitted, tuple checked, clock, leave) except -1:
        once(self.emitted is not None, "a loop of calls")
        if emitted is None:
            raise errors.InvalidArgumentError("there is nowhere to emit rows to")
        self.iterables, self.check = checked
        self.call = call
        self.context = context
        self.emitted = emitted
        self.clock = clock
        self.leave = leave
        return 0

    cdef inline int emit(self, object rows) except -1:
        kind = type(rows)
        if self.check is not None and kind not in self.iterables:
            self.check(rows)
        self.emitted.key = self.key
        return self.emitted.add_all(rows)


cdef class RowLoop(_Calls):
    """Calls ``call(key, row, context)`` for each row, with the row's key as the current one.

    Parameters
    ----------
    keys : Batch
        A key for each row.
    rows : RowSource or list
        The rows.
    key_of : int or list
        The field of a row that is its key, or the keys.
    times : ColumnReader or None
        The rows' event times.
    """

    cdef object keys
    cdef RowSource rows
    cdef list elements
    cdef ColumnReader times
    cdef list names
    cdef Py_ssize_t field

    def __init__(self, keys not None, rows not None, key_of, ColumnReader times,
                 call, context, Emitted emitted, tuple checked not None, clock=None, leave=None):
        self.set_call(call, context, emitted, checked, clock, leave)
        self.keys = as_batch(keys)
        self.times = times
        cdef Py_ssize_t length = len(keys)
        if isinstance(rows, list):
            self.elements = rows
            if len(self.elements) != length:
                raise errors.InvalidArgumentError(f"{len(rows)} rows for {length} keys")
        else:
            self.rows = <RowSource?> rows
        if isinstance(key_of, list):
            self.names = key_of
            if len(self.names) != length:
                raise errors.InvalidArgumentError(f"{len(key_of)} keys for {length} rows")
        else:
            self.field = key_of
            if self.rows is None or not 0 <= self.field < self.rows.width:
                raise errors.InvalidArgumentError(f"rows have no field {key_of}")
        if times is not None and times.length() != length:
            raise errors.InvalidArgumentError(f"{times.length()} times for {length} rows")
        # Last: what was refused has no rows.
        self.end = length

    def run(self, Py_ssize_t most):
        """Go on with the next rows; False at their end, True once `most` rows were emitted."""
        cdef Py_ssize_t i
        cdef bint timed = self.times is not None
        cdef Emitted emitted = self.emitted
        moment = None
        context = self.context
        while self.at < self.end:
            i = self.at
            self.at += 1
            row = self.elements[i] if self.rows is None else self.rows.make(i)
            if self.names is not None:
                self.key = self.names[i]
            else:
                self.key = <object> PyTuple_GET_ITEM(row, self.field)
            select_row(self.keys, i)
            if timed:
                moment = self.times.get(i)
                context.timestamp = moment
            if self.clock is not None:
                self.clock(moment)
            self.calling = True
            result = self.call(self.key, row, context)
            if result is not None:
                self.emit(result)
            self.calling = False
            if self.leave is not None:
                self.leave()
            if result is not None and emitted.many(most):
                return True
        return False


cdef class Firing:
    """The timer that fires, for who wants to know. Only while it is `watched` is it told of each
    one, which costs two calls for every timer."""

    cdef readonly object timestamp
    """None while none fires."""
    cdef public bint watched


cdef class TimerLoop(_Calls):
    """Calls ``call(key, timestamp, context)`` for each timer that is due, with its key current.

    Parameters
    ----------
    due : DueTimers
        The timers.
    keys : list
        Their keys.
    timed : bool
        Whether a timer's time becomes ``context.timestamp``.
    firing : Firing or None
        What is told which timer fires.
    before, after : callable or None
        ``before(timestamp)`` and ``after()`` of each call that is watched.
    """

    cdef object due
    cdef list names
    cdef bint timed
    cdef Firing firing
    cdef object before
    cdef object after
    cdef readonly Py_ssize_t fired
    """How many timers have fired."""
    cdef readonly object timestamp
    """The timer of the last call."""

    def __init__(self, due not None, list keys not None, bint timed, call, context,
                 Emitted emitted, tuple checked not None, clock=None, leave=None,
                 Firing firing=None, before=None, after=None):
        self.set_call(call, context, emitted, checked, clock, leave)
        self.due = as_due_timers(due)
        self.names = keys
        self.timed = timed
        if firing is not None and not (callable(before) and callable(after)):
            raise errors.InvalidArgumentError("nobody is told of the timer that fires")
        self.firing = firing
        self.before = before
        self.after = after
        if len(keys) != len(due):
            raise errors.InvalidArgumentError(f"{len(keys)} keys for {len(due)} timers")
        self.end = len(due)

    def run(self, Py_ssize_t most, bint to_end):
        """Go on with the next timers; False at their end, True once `most` rows were emitted. It
        also ends where another timer became due, unless `to_end`."""
        cdef Py_ssize_t i
        due = self.due
        context = self.context
        while self.at < self.end:
            i = self.at
            self.at += 1
            if not take_timer(due, i):
                continue
            self.fired += 1
            self.key = self.names[i]
            self.timestamp = timestamp = timer_at(due, i)
            if self.timed:
                context.timestamp = timestamp
            if self.clock is not None:
                self.clock(timestamp if self.timed else None)
            if self.firing is not None:
                self.firing.timestamp = timestamp
                if self.firing.watched:
                    self.before(timestamp)
            self.calling = True
            result = self.call(self.key, timestamp, context)
            if result is not None:
                self.emit(result)
            self.calling = False
            if self.firing is not None:
                if self.firing.watched:
                    self.after()
                self.firing.timestamp = None
            if self.leave is not None:
                self.leave()
            if not to_end and timers_stale(due):
                self.at = self.end
            if self.emitted.many(most):
                return True
        return False


def grouped(size_t first, Py_ssize_t n, size_t order):
    """Sort rows by groups, in the order of the groups' first rows, and stably.

    `first`, 32-bit, has for each row the first row of its group, itself included. Fills `order`,
    64-bit, and returns the first row of each group, and where in the order each ends.
    """
    cdef const int32_t *of = <const int32_t *> first
    cdef int64_t *to = <int64_t *> order
    cdef int64_t *place
    cdef int64_t at = 0, size
    cdef Py_ssize_t i
    cdef list firsts = [], ends = []
    place = <int64_t *> calloc(<size_t> n + 1, 8)
    if place is NULL:
        raise MemoryError
    try:
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
    finally:
        free(place)
    return firsts, ends
