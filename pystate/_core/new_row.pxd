# Rows of classes of tuples.

cdef extern from *:
    """
    /* A row that whoever made it has to fill before anybody sees it. */
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
    object pst_new_row(object type, Py_ssize_t n)
