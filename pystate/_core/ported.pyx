# cython: language_level=3, binding=True, auto_pickle=False, autotestdict=False
"""States of structs as Spark's processors use them, and Spark's rows: each call of a processor is
one call of the core, through `core.pxd`.
"""

cimport cython
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport (
    PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_SET_ITEM,
)

from pystate._core.core cimport (
    as_map_elements, as_scalar_handle, map_contains, map_get, map_put, map_remove, once, read_value,
    write_value,
)
from pystate._core.new_row cimport pst_new_row

from pystate import errors


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

    cdef object handle
    cdef Py_ssize_t size
    cdef object pack

    def __init__(self, handle not None, Py_ssize_t size, pack):
        once(self.handle is not None, "a state")
        self.handle = as_scalar_handle(handle)
        self.size = size
        self.pack = pack

    @cython.binding(False)
    def get(self):
        """Return the current key's value, or None."""
        made(self.handle)
        return read_value(self.handle)

    @cython.binding(False)
    def update(self, newValue):
        """Store a value under the current key."""
        made(self.handle)
        if not (PyTuple_CheckExact(newValue) and PyTuple_GET_SIZE(newValue) == self.size):
            newValue = self.pack(newValue)
        write_value(self.handle, newValue)


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

    cdef object handle
    cdef Py_ssize_t size
    cdef object pack
    cdef object key_of
    cdef object kind

    def __init__(self, handle not None, Py_ssize_t size, pack, key_of, kind not None):
        once(self.handle is not None, "a state")
        if not (isinstance(kind, type) and issubclass(kind, tuple)):
            raise errors.InvalidArgumentError(f"rows are tuples, not {kind!r:.80}")
        self.handle = as_map_elements(handle)
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
    def getValue(self, key):
        """Return the value of a key as a row, or None."""
        cdef Py_ssize_t i
        made(self.handle)
        found = map_get(self.handle, self.key(key), None)
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
    def updateValue(self, key, value):
        """Store the value of a key."""
        made(self.handle)
        key = self.key(key)
        if not (PyTuple_CheckExact(value) and PyTuple_GET_SIZE(value) == self.size):
            value = self.pack(value)
        map_put(self.handle, key, value)

    @cython.binding(False)
    def containsKey(self, key):
        """Whether there is the key."""
        made(self.handle)
        return map_contains(self.handle, self.key(key))

    @cython.binding(False)
    def removeKey(self, key):
        """Remove a key."""
        made(self.handle)
        map_remove(self.handle, self.key(key))


# ---- Spark's rows --------------------------------------------------------------------------------

cdef extern from *:
    """
    /* As without a vectorcall. */
    static PyObject *pst_slow_call(PyObject *kind, PyObject *const *args, Py_ssize_t given,
                                   PyObject *names) {
        Py_ssize_t i, n = names ? PyTuple_GET_SIZE(names) : 0;
        PyObject *made = NULL, *plain = PyTuple_New(given), *named = n ? PyDict_New() : NULL;
        if (!plain || (n && !named))
            goto out;
        for (i = 0; i < given; i++) {
            Py_INCREF(args[i]);
            PyTuple_SET_ITEM(plain, i, args[i]);
        }
        for (i = 0; i < n; i++)
            if (PyDict_SetItem(named, PyTuple_GET_ITEM(names, i), args[given + i]))
                goto out;
        made = PyType_Type.tp_call(kind, plain, named);
    out:
        Py_XDECREF(plain);
        Py_XDECREF(named);
        return made;
    }

    /* Row(name=value, ...) of Spark as its __new__ makes it in Python: a tuple of the values, and the
     * names as its own __fields__. Any other call is the class's as before. */
    static PyObject *pst_row_call(PyObject *kind, PyObject *const *args, size_t n_args,
                                  PyObject *names) {
        static PyObject *fields_name;
        PyObject *row, *fields;
        Py_ssize_t i, given = PyVectorcall_NARGS(n_args), n = names ? PyTuple_GET_SIZE(names) : 0;
        if (!fields_name && !(fields_name = PyUnicode_InternFromString("__fields__")))
            return NULL;
        if (given || !n)
            return pst_slow_call(kind, args, given, names);
        row = pst_new_row(kind, n);
        fields = row ? PyList_New(n) : NULL;
        if (!fields) {
            Py_XDECREF(row);
            return NULL;
        }
        for (i = 0; i < n; i++) {
            PyObject *name = PyTuple_GET_ITEM(names, i), *value = args[i];
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

    /* A class's own vectorcall is what calling it comes to first; no other class inherits it. */
    static int pst_set_row_call(PyObject *kind, int quick) {
        PyTypeObject *type = (PyTypeObject *)kind;
        if (quick ? type->tp_vectorcall != NULL : type->tp_vectorcall != pst_row_call)
            return 0;
        type->tp_vectorcall = quick ? pst_row_call : NULL;
        return 1;
    }
    """
    bint pst_set_row_call(object kind, bint quick)
    enum:
        HEAP_TYPE "Py_TPFLAGS_HEAPTYPE"


def set_quick_rows(kind, bint quick):
    """Have calls ``kind(name=value, ...)`` of Spark's class of rows make the row in one step, or no
    more; False, and nothing has changed, if they did so already, or did not."""
    if not (isinstance(kind, type) and issubclass(kind, tuple) and kind.__flags__ & HEAP_TYPE):
        raise errors.InvalidArgumentError(f"rows are tuples, not {kind!r:.80}")
    return pst_set_row_call(kind, quick)
