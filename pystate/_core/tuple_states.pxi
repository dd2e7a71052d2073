# States of structs as Spark's processors use them, and the rows that these make: each call of a
# processor is one call of the core.

cdef inline int made(object handle) except -1:
    if handle is None:
        raise errors.ClosedError("the state was made by __new__ alone: nothing is behind it")
    return 0


cdef class TupleValue:
    """A value that is a plain tuple of a struct's fields.

    Parameters
    ----------
    handle : ScalarHandle
        Its codec gives tuples.
    size : int
        The number of fields.
    pack : callable
        Makes such a tuple of anything else that is taken.
    """

    cdef ScalarHandle handle
    cdef Py_ssize_t size
    cdef object pack

    def __init__(self, ScalarHandle handle not None, Py_ssize_t size, pack):
        once(self.handle is not None, "a state")
        self.handle = handle
        self.size = size
        self.pack = pack

    @cython.binding(False)
    def get(self):
        """Return the current key's value, or None."""
        made(self.handle)
        return self.handle.read()

    @cython.binding(False)
    def update(self, newValue):
        """Store a value under the current key."""
        made(self.handle)
        if not (PyTuple_CheckExact(newValue) and PyTuple_GET_SIZE(newValue) == self.size):
            newValue = self.pack(newValue)
        self.handle.write(newValue)


cdef class TupleMap:
    """A map whose values are plain tuples of a struct's fields, and whose keys have one field.

    Parameters
    ----------
    handle : MapElements
        Its codec gives tuples.
    size : int
        The number of a value's fields.
    pack, key_of : callable
        Make a tuple of any other value that is taken, and the map's key of any other key.
    kind : type
        The class of the rows that are given.
    """

    cdef MapElements handle
    cdef Py_ssize_t size
    cdef object pack
    cdef object key_of
    cdef object kind

    def __init__(self, MapElements handle not None, Py_ssize_t size, pack, key_of, kind not None):
        once(self.handle is not None, "a state")
        if not (isinstance(kind, type) and issubclass(kind, tuple)):
            raise errors.InvalidArgumentError(f"rows are tuples, not {kind!r:.80}")
        self.handle = handle
        self.size = size
        self.pack = pack
        self.key_of = key_of
        self.kind = kind

    cdef object key(self, object key):
        """The map's key; a tuple of a None is for `key_of` to refuse."""
        if PyTuple_CheckExact(key) and PyTuple_GET_SIZE(key) == 1:
            field = <object> PyTuple_GET_ITEM(key, 0)
            if field is not None:
                return field
        return self.key_of(key)

    @cython.binding(False)
    def get(self, key):
        """Return the value of a key as a row, or None."""
        cdef Py_ssize_t i
        made(self.handle)
        found = looked_up(self.handle, self.key(key), None)
        if found is None:
            return None
        if not PyTuple_CheckExact(found):
            raise errors.InvalidArgumentError("the state's codec gives no tuples")
        row = pst_new_row(self.kind, PyTuple_GET_SIZE(found))
        for i in range(PyTuple_GET_SIZE(found)):
            value = <object> PyTuple_GET_ITEM(found, i)
            Py_INCREF(value)
            PyTuple_SET_ITEM(row, i, value)
        return row

    @cython.binding(False)
    def put(self, key, value):
        """Store the value of a key."""
        made(self.handle)
        key = self.key(key)
        if not (PyTuple_CheckExact(value) and PyTuple_GET_SIZE(value) == self.size):
            value = self.pack(value)
        stored(self.handle, key, value)


# ---- Spark's rows --------------------------------------------------------------------------------

cdef extern from *:
    """
    /* Row(name=value, ...) of Spark as it is made in Python: a tuple of the values, and the names as
     * its own __fields__. Any other call is for the function that the class had before. The function
     * is bound to (class, that function). */
    static PyObject *pst_quick_row(PyObject *bound, PyObject *const *args, Py_ssize_t n_args,
                                   PyObject *names) {
        static PyObject *fields_name;
        PyObject *row, *fields, *kind = PyTuple_GET_ITEM(bound, 0);
        Py_ssize_t i, n = names ? PyTuple_GET_SIZE(names) : 0;
        if (!fields_name && !(fields_name = PyUnicode_InternFromString("__fields__")))
            return NULL;
        if (n_args != 1 || !n || args[0] != kind)
            return PyObject_Vectorcall(PyTuple_GET_ITEM(bound, 1), args, (size_t)n_args, names);
        row = pst_new_row(kind, n);
        fields = row ? PyList_New(n) : NULL;
        if (!fields) {
            Py_XDECREF(row);
            return NULL;
        }
        for (i = 0; i < n; i++) {
            PyObject *name = PyTuple_GET_ITEM(names, i), *value = args[1 + i];
            Py_INCREF(name);
            PyList_SET_ITEM(fields, i, name);
            Py_INCREF(value);
            PyTuple_SET_ITEM(row, i, value);
        }
        if (PyObject_GenericSetAttr(row, fields_name, fields))
            Py_CLEAR(row);
        Py_DECREF(fields);
        return row;
    }

    static PyMethodDef pst_quick_row_def = {
        "__new__", (PyCFunction)(void (*)(void))pst_quick_row, METH_FASTCALL | METH_KEYWORDS,
        "Make a row of its fields' values by name."};

    static PyObject *pst_quick_row_of(PyObject *bound) {
        return PyCFunction_NewEx(&pst_quick_row_def, bound, NULL);
    }
    """
    object pst_quick_row_of(object bound)


def quick_new(kind, other):
    """Return what may take the place of the `__new__` of Spark's class of rows, which is `other`."""
    if not (isinstance(kind, type) and issubclass(kind, tuple)):
        raise errors.InvalidArgumentError(f"rows are tuples, not {kind!r:.80}")
    return pst_quick_row_of((kind, other))
