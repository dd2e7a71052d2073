# What the modules beside the core call of it: a few functions, so that they share no class's fields.
# A handle comes as an object, whose type only `array_of` and the functions `as_...` look at. The others
# trust that one of these gave it: whoever keeps a handle to call them with has checked it once.

from libc.stdint cimport int32_t, int64_t, uint8_t

from pystate._core.cpystate cimport pst_array, pst_cell, pst_status

cdef extern from *:
    """
    #include <stdint.h>
    /* Loads an offset once, however often it is used: its owner may write to it meanwhile. */
    static inline int64_t pst_load_offset(const int32_t *at) {
        return __atomic_load_n(at, __ATOMIC_RELAXED);
    }
    """
    int64_t pst_load_offset(const int32_t *at) noexcept nogil


# ---- guards --------------------------------------------------------------------------------------

cdef int once(bint made, str what) except -1
cdef int refused(pst_status status) except -1


# ---- handles -------------------------------------------------------------------------------------

# Of an ArrayRef, or TypeError; it lives as long as that.
cdef const pst_array *array_of(object reference) except NULL

# The same object, or TypeError. An object's own `__class__` does not count.
cdef object as_batch(object keys)
cdef object as_due_timers(object due)
cdef object as_scalar_handle(object handle)
cdef object as_map_elements(object handle)

# Makes the key of a row of a Batch current.
cdef int select_row(object keys, Py_ssize_t row) except -1

# Of DueTimers.
cdef bint take_timer(object due, Py_ssize_t i) except -1
cdef int64_t timer_at(object due, Py_ssize_t i) except? -1
cdef bint timers_stale(object due) except -1

# Of a ScalarHandle.
cdef object read_value(object handle)
cdef int write_value(object handle, object value) except -1

# Of MapElements.
cdef object map_get(object handle, object key, object default)
cdef int map_put(object handle, object key, object value) except -1
cdef bint map_contains(object handle, object key) except -1
cdef int map_remove(object handle, object key) except -1


# ---- columns that grow ---------------------------------------------------------------------------

cdef struct Cells:
    int code
    size_t width        # 0: variable
    uint8_t *values
    uint8_t *valid
    int32_t *offsets
    size_t rows_capacity
    size_t data_capacity
    size_t used         # of values, variable width

cdef size_t cell_width(int code) noexcept nogil
cdef pst_status append_cell(Cells *c, Py_ssize_t row, const pst_cell *cell,
                            bint present) noexcept nogil
cdef void free_cells(Cells *c) noexcept
