# Lists: of the current key, and of a batch of keys; and what maps share with them.

cdef enum:
    ELEMENTS_BYTES = 1 << 31


cdef class CollectionHandle:
    """The elements of the current key, and of a batch of keys."""

    cdef readonly Table table
    cdef readonly int column
    cdef readonly Codec codec
    cdef readonly Codec map_codec
    cdef pst_elements *walk
    cdef unsigned long opened  # which of the table's openings the walk is of

    def __cinit__(self):
        self.table = NO_TABLE
        self.codec = self.map_codec = NO_CODEC

    def __init__(self, Table table not None, int column, Codec codec not None, Codec map_codec):
        once(self.table is not NO_TABLE, "a handle")
        self.table = table
        self.column = column
        self.codec = codec
        self.map_codec = map_codec

    def __dealloc__(self):
        pst_elements_destroy(self.walk)

    def __reduce__(self):
        raise errors.DeclarationError(
            f"state {self.codec.name!r}: a handle belongs to its table and cannot be pickled or "
            "copied")

    cdef inline int ready(self) except -1:
        self.table.ready()
        if not self.table.has_key:
            self.table.need_key(self.codec)
        return 0

    cdef int start(self) except -1:
        """Begin a walk. The caller marks the table busy where it makes more than numbers of the
        elements, because making other objects may run anyone's finalizers."""
        self.ready()
        self.need_walk()
        cdef pst_status status = pst_elements_start(self.walk, self.column)
        if self.table.find_files(status):
            status = pst_elements_start(self.walk, self.column)
        return self.table.check_fetched(status)

    cdef int need_walk(self) except -1:
        if self.walk is not NULL and self.opened == self.table.openings:
            return 0
        pst_elements_destroy(self.walk)
        self.walk = NULL
        self.opened = self.table.openings
        return self.table.check(pst_elements_create(self.table.t, &self.walk))

    def count(self):
        """Return the number of elements."""
        cdef uint64_t count = 0
        self.ready()
        cdef pst_status status = pst_elements_count(self.table.t, self.column, &count)
        if self.table.find_files(status):
            status = pst_elements_count(self.table.t, self.column, &count)
        self.table.check_fetched(status)
        return count

    @cython.binding(False)
    def clear(self):
        """Remove all elements of the current key."""
        self.ready()
        self.table.check(pst_value_clear(self.table.t, self.column))

    cdef object none(self, str what):
        return errors.WrongTypeError(
            f"state {self.codec.name!r}: None is no {what}")

    def collect(self, Batch keys not None, size_t offsets):
        """Return all keys' elements in the keys' order: (rows, map keys or None, values), where map
        keys and values are (validity, values, offsets). Fills the 64-bit `offsets`, one more than
        keys: where the elements of each key begin."""
        cdef Cells cells[2]
        cdef pst_status status
        cdef bint is_map = self.map_codec is not None
        memset(cells, 0, sizeof(cells))
        cells[0].code = self.codec.code
        cells[0].width = cell_width(self.codec.code)
        if is_map:
            cells[1].code = self.map_codec.code
            cells[1].width = cell_width(self.map_codec.code)
        cdef Py_ssize_t n = 0
        try:
            status = self.collect_all(keys, is_map, cells, <int64_t *> offsets, &n)
            if self.table.find_files(status):
                status = self.collect_all(keys, is_map, cells, <int64_t *> offsets, &n)
            self.table.check_fetched(status)
            return n, take_cells(&cells[1], n) if is_map else None, take_cells(&cells[0], n)
        finally:
            free_cells(&cells[0])
            free_cells(&cells[1])

    cdef pst_status collect_all(self, Batch keys, bint is_map, Cells *cells, int64_t *offsets,
                                Py_ssize_t *n) except *:
        cdef pst_status status
        n[0] = cells[0].used = cells[1].used = 0
        keys.begin_reading_of(self.table)
        try:
            self.need_walk()
            with nogil:
                status = pst_batch_element_offsets(keys.b, self.column, offsets)
                if status == PST_OK:
                    status = self.collect_cells(keys.b, is_map, cells, offsets, n)
                if status == PST_OK:
                    status = pst_batch_elements_read(keys.b, self.column)
        finally:
            keys.end()
        return status

    cdef pst_status collect_cells(self, pst_batch *b, bint is_map, Cells *cells,
                                  const int64_t *offsets, Py_ssize_t *n) noexcept nogil:
        cdef pst_cell key, value
        cdef int64_t i
        cdef pst_status status
        for i in range(pst_batch_length(b)):
            status = pst_elements_start_row(self.walk, b, i, self.column)
            while status == PST_OK:
                status = pst_elements_next(self.walk, &key, &value)
                if status == PST_OK:
                    status = append_cell(&cells[0], n[0], &value,
                                         not pst_elements_is_null(self.walk))
                    if status == PST_OK and is_map:
                        status = append_cell(&cells[1], n[0], &key, True)
                    n[0] += 1
                    if n[0] >= ELEMENTS_BYTES - 1 or cells[0].used >= ELEMENTS_BYTES \
                            or cells[1].used >= ELEMENTS_BYTES:
                        return PST_TOO_LARGE
            if status != PST_NOT_FOUND:
                return status
            if n[0] != offsets[i + 1]:
                return PST_CHANGED
        return PST_OK

    cdef int check_elements(self, pst_status status, str what) except -1:
        cdef const pst_detail *detail = pst_table_detail(self.table.t)
        if status == PST_INVALID and detail.row >= 0:
            raise errors.WrongTypeError(
                f"{self.table.where}, state {self.codec.name!r}, row {detail.row}: null is not "
                f"{what}; nothing was written")
        return self.table.check(status)


cdef class ListElements(CollectionHandle):
    """The list of the current key, and of a batch of keys."""

    @cython.binding(False)
    def add(self, value):
        """Append an item to the current key's list."""
        cdef pst_cell cell
        cdef unsigned long turn = self.table.turn
        if value is None:
            raise self.none("item")
        owner = self.codec.encode(value, &cell)
        self.table.ready_for(turn, self.codec)
        cdef int tried = 0
        cdef pst_status status = pst_list_add(self.table.t, self.column, &cell)
        while status == PST_NO_ROOM and self.table.makes_room(self.column, cell_size(self.codec, &cell), &tried):
            status = pst_list_add(self.table.t, self.column, &cell)
        self.table.check(status)

    def take(self, namespace):
        """Append the current key's items of another namespace, which it loses there."""
        cdef pst_cell cells[PST_MAX_KEYS_]
        cdef uint32_t nulls = 0
        cdef unsigned long turn = self.table.turn
        self.ready()
        owner = self.table.encode_in(namespace, cells, &nulls)
        self.table.ready_for(turn, self.codec)
        cdef pst_status status = pst_list_take(self.table.t, self.column, cells, nulls)
        if self.table.find_files(status):
            status = pst_list_take(self.table.t, self.column, cells, nulls)
        self.table.check_fetched(status)

    def below(self):
        """Return how many of the current key's items lie in the files below the table alone."""
        cdef uint64_t items = 0
        self.ready()
        self.table.check(pst_list_below(self.table.t, self.column, &items))
        return items

    @cython.binding(False)
    def items_list(self):
        """Return the current key's items."""
        cdef pst_cell key, cell
        cdef pst_status status
        cdef list result = words_list(self)
        if result is not None:
            return result
        result = []
        self.start()
        self.table.hold()
        try:
            while True:
                status = pst_elements_next(self.walk, &key, &cell)
                if status != PST_OK:
                    break
                result.append(self.codec.decode(&cell))
        finally:
            self.table.end()
        if status != PST_NOT_FOUND:
            self.table.check_fetched(status)
        return result

    def items_from(self, uint64_t first, uint64_t count):
        """Return so many of the current key's items, from the one with that number on."""
        cdef pst_cell key, cell
        cdef pst_status status
        cdef list result = []
        self.start()
        self.table.hold()
        try:
            status = pst_elements_skip(self.walk, first)
            while status == PST_OK and <uint64_t> len(result) < count:
                status = pst_elements_next(self.walk, &key, &cell)
                if status == PST_OK:
                    result.append(self.codec.decode(&cell))
            if status == PST_OK:
                status = pst_elements_leave(self.walk)
        finally:
            self.table.end()
        if status != PST_NOT_FOUND:
            self.table.check_fetched(status)
        return result

    @cython.binding(False)
    def items_bytes(self):
        """Return the current key's items of fixed width side by side, as an array has them."""
        cdef pst_run run
        cdef pst_cell key, cell
        cdef pst_status status
        cdef size_t width = cell_width(self.codec.code), filled = 0, size
        cdef bytearray result
        self.start()
        status = pst_elements_next_run(self.walk, &run)
        if status == PST_INVALID:
            result = bytearray()
            while True:
                status = pst_elements_next(self.walk, &key, &cell)
                if status != PST_OK:
                    break
                result += (<char *> &cell.word[0])[:width]
        else:
            # No other object is made, so nobody's code runs meanwhile.
            result = PyByteArray_FromStringAndSize(NULL, <Py_ssize_t> (run.left * width))
            while status == PST_OK:
                size = run.count * width
                if filled + size > <size_t> len(result):
                    status = PST_CHANGED
                    break
                memcpy(PyByteArray_AS_STRING(result) + filled, run.items, size)
                filled += size
                status = pst_elements_next_run(self.walk, &run)
            if status == PST_NOT_FOUND and filled != <size_t> len(result):
                status = PST_CHANGED
        if status != PST_NOT_FOUND:
            self.table.check_fetched(status)
        return result

    def append_all(self, Batch keys not None, ArrayRef items not None):
        """Append an item to the list of each key."""
        cdef Write w = write_of(WRITE_ITEMS, self.column, &items.c)
        keys.check_length(items)
        keys.check_of(self.table)
        self.check_elements(keys.write(&w), "an item")

    def append_lists(self, Batch keys not None, size_t offsets, ArrayRef items not None):
        """Append items[offsets[i]:offsets[i + 1]] to the list of key i."""
        cdef Write w = write_of(WRITE_LISTS, self.column, &items.c)
        w.offsets = <const int32_t *> offsets
        keys.check_of(self.table)
        self.check_elements(keys.write(&w), "an item")

    def copy_items(self, Batch keys not None, size_t offsets, uint32_t width):
        """Copy items of fixed width; fills `offsets` as `collect` does, returns the items."""
        cdef Memory items = Memory.__new__(Memory)
        cdef pst_status status = copy_lists(self, keys, <int64_t *> offsets, width, items)
        if self.table.find_files(status):
            items = Memory.__new__(Memory)
            status = copy_lists(self, keys, <int64_t *> offsets, width, items)
        self.table.check_fetched(status)
        return items


# Not methods: a Python class with two of these as bases has only the first one's C methods.
cdef pst_status copy_lists(ListElements elements, Batch keys, int64_t *ends, uint32_t width,
                           Memory items) except *:
    cdef pst_status status
    keys.begin_reading_of(elements.table)
    try:
        with nogil:
            status = pst_batch_element_offsets(keys.b, elements.column, ends)
            if status == PST_OK:
                status = items.take(<uint64_t> ends[pst_batch_length(keys.b)] * width)
            if status == PST_OK:
                status = pst_batch_list_copy(keys.b, elements.column, ends, items.data,
                                             <uint64_t> items.size)
            if status == PST_OK:
                status = pst_batch_elements_read(keys.b, elements.column)
    finally:
        keys.end()
    return status


cdef list words_list(ListElements elements):
    """The current key's items if they are longs or doubles whose number is known, else None."""
    cdef pst_run run
    cdef uint64_t i, filled = 0, left
    cdef bint is_long = elements.codec.code == PST_INT64
    cdef pst_status status
    cdef list result
    if not is_long and elements.codec.code != PST_FLOAT64:
        return None
    elements.start()
    status = pst_elements_next_run(elements.walk, &run)
    if status == PST_INVALID:
        return None
    left = run.left
    # Making a list may run the garbage collector, and with it anybody's code, so what was found
    # before is looked up again. Making numbers does not.
    result = PyList_New(<Py_ssize_t> left)
    elements.start()
    while True:
        status = pst_elements_next_run(elements.walk, &run)
        if status != PST_OK or filled + run.left != left:
            break
        for i in range(run.count):
            if is_long:
                item = PyLong_FromLongLong((<const int64_t *> run.items)[i])
            else:
                item = PyFloat_FromDouble((<const double *> run.items)[i])
            Py_INCREF(item)
            PyList_SET_ITEM(result, <Py_ssize_t> (filled + i), item)
        filled += run.count
    if status == PST_NOT_FOUND and filled == left:
        return result
    if status != PST_OK and status != PST_NOT_FOUND and status != PST_INVALID:
        elements.table.check_fetched(status)
    return None


cdef object take_cells(Cells *c, Py_ssize_t n):
    """(validity, values, offsets or None)."""
    valid = PyBytes_FromStringAndSize(<const char *> c.valid, n)
    if c.width:
        return valid, PyBytes_FromStringAndSize(<const char *> c.values,
                                                n * <Py_ssize_t> c.width), None
    values = PyBytes_FromStringAndSize(<const char *> c.values, <Py_ssize_t> c.used)
    if not n:
        return valid, values, bytes(4)
    return valid, values, PyBytes_FromStringAndSize(<const char *> c.offsets, 4 * (n + 1))


cdef void free_cells(Cells *c) noexcept:
    free(c.values)
    free(c.valid)
    free(c.offsets)


# ---- aggregates ----------------------------------------------------------------------------------

cdef class Accumulator:
    """The accumulator of the current key in one column, changed by the core."""

    cdef readonly Table table
    cdef readonly int column
    cdef readonly Codec codec   # of the values that are added
    cdef pst_agg_shape shape

    def __cinit__(self):
        self.table = NO_TABLE
        self.codec = NO_CODEC

    def __init__(self, Table table not None, int column, Codec codec not None, int kind,
                 int parameter):
        once(self.table is not NO_TABLE, "an accumulator")
        self.table = table
        self.column = column
        self.codec = codec
        self.shape.kind = <uint8_t> kind
        self.shape.type = <uint8_t> codec.code
        self.shape.parameter = <uint16_t> parameter

    cdef inline int ready(self) except -1:
        self.table.ready()
        if not self.table.has_key:
            self.table.need_key(self.codec)
        return 0

    @cython.binding(False)
    def add(self, value):
        """Add a value to the current key's accumulator."""
        cdef pst_cell cell
        cdef unsigned long turn = self.table.turn
        owner = self.codec.encode(value, &cell)
        self.table.ready_for(turn, self.codec)
        cdef int tried = 0
        cdef pst_status status = pst_aggregate_add(self.table.t, self.column, &self.shape, &cell)
        while status == PST_NO_ROOM and self.table.makes_room(self.column, cell_size(self.codec, &cell), &tried):
            status = pst_aggregate_add(self.table.t, self.column, &self.shape, &cell)
        self.table.check(status)

    def merge(self, bytes state not None):
        """Merge another accumulator into the current key's."""
        cdef pst_bytes other
        self.ready()
        other.data = <const uint8_t *> PyBytes_AS_STRING(state)
        other.size = <uint32_t> PyBytes_GET_SIZE(state)
        cdef int tried = 0
        cdef pst_status status = pst_aggregate_merge(self.table.t, self.column, &self.shape, other)
        while status == PST_NO_ROOM and self.table.makes_room(self.column, other.size, &tried):
            status = pst_aggregate_merge(self.table.t, self.column, &self.shape, other)
        self.table.check(status)

    def add_all(self, Batch keys not None, ArrayRef values not None):
        """Add a value per key."""
        cdef Write w = write_of(WRITE_AGGREGATE, self.column, &values.c)
        w.shape = &self.shape
        keys.check_length(values)
        keys.check_of(self.table)
        self.table.check(keys.write(&w))

    def merge_all(self, Batch keys not None, ArrayRef accumulators not None):
        """Merge an accumulator per key."""
        cdef Write w = write_of(WRITE_MERGE, self.column, &accumulators.c)
        w.shape = &self.shape
        keys.check_length(accumulators)
        keys.check_of(self.table)
        self.table.check(keys.write(&w))
