# Maps: of the current key, and of a batch of keys.

cdef class MapElements(CollectionHandle):
    """The map of the current key, and of a batch of keys."""

    @cython.binding(False)
    def get(self, key, default=None, /):
        """Return the value under `key`, or the default."""
        return map_get(self, key, default)

    @cython.binding(False)
    def put(self, key, value, /):
        """Store a value under `key`. It may be None: the map has the key then, without a value.

        Raises
        ------
        WrongTypeError
            The key is None, or the key or the value is of another type; nothing was written.
        """
        map_put(self, key, value)

    @cython.binding(False)
    def remove(self, key, /):
        """Remove the entry under `key`, if there is one."""
        map_remove(self, key)

    @cython.binding(False)
    def contains(self, key, /):
        """Whether there is an entry under `key`."""
        return map_contains(self, key)

    def __contains__(self, key):
        return map_contains(self, key)

    @cython.binding(False)
    def entries_list(self):
        """Return the current key's entries as (key, value) pairs."""
        cdef pst_cell key, cell
        cdef pst_status status
        cdef list result = []
        self.start()
        self.table.hold()
        try:
            while True:
                status = pst_elements_next(self.walk, &key, &cell)
                if status != PST_OK:
                    break
                result.append((self.map_codec.decode(&key),
                               None if pst_elements_is_null(self.walk)
                               else self.codec.decode(&cell)))
        finally:
            self.table.end()
        if status != PST_NOT_FOUND:
            self.table.check_fetched(status)
        return result

    def below(self):
        """Return whether entries of the current key may lie in the files below the table alone."""
        cdef int below = 0
        self.ready()
        self.table.check(pst_map_below(self.table.t, self.column, &below))
        return below != 0

    def has_any(self):
        """Return whether there is an entry."""
        cdef pst_cell key, cell
        self.start()
        cdef pst_status status = pst_elements_next(self.walk, &key, &cell)
        if status == PST_NOT_FOUND:
            return False
        self.table.check_fetched(status)
        self.table.check(pst_elements_leave(self.walk))
        return True

    def entries_behind(self, last, bint begins, uint64_t count):
        """Return so many of the current key's entries as (key, value) pairs, in their order: the
        first ones, or those behind the key `last`."""
        cdef pst_cell key, cell, at
        cdef pst_status status = PST_OK
        cdef list result = []
        owner = None if begins else self.map_codec.encode(last, &at)
        self.start()
        self.table.hold()
        try:
            if not begins:
                status = pst_elements_seek(self.walk, &at)
            while status == PST_OK and <uint64_t> len(result) < count:
                status = pst_elements_next(self.walk, &key, &cell)
                if status != PST_OK:
                    break
                result.append((self.map_codec.decode(&key),
                               None if pst_elements_is_null(self.walk)
                               else self.codec.decode(&cell)))
            if status == PST_OK:
                status = pst_elements_leave(self.walk)
        finally:
            self.table.end()
        if status != PST_NOT_FOUND:
            self.table.check_fetched(status)
        return result

    def put_all_entries(self, Batch keys not None, ArrayRef map_keys not None,
                        ArrayRef values not None):
        """Put an entry into the map of each key."""
        cdef Write w = write_of(WRITE_ENTRIES, self.column, &values.c)
        w.map_keys = map_keys.c
        keys.check_length(values)
        keys.check_of(self.table)
        self.check_elements(keys.write(&w), "a map key")

    def remove_all(self, Batch keys not None, ArrayRef map_keys not None):
        """Remove an entry of the map of each key."""
        cdef Write w = write_of(WRITE_REMOVE, self.column, &map_keys.c)
        w.map_keys = map_keys.c
        keys.check_of(self.table)
        self.check_elements(keys.write(&w), "a map key")

    def get_all(self, Batch keys not None, ArrayRef map_keys not None, size_t values,
                size_t valid):
        """Copy a fixed-width value per key, as `Batch.get`."""
        cdef pst_status status = entries_of(self, keys, map_keys, values, valid)
        if self.table.find_files(status):
            status = entries_of(self, keys, map_keys, values, valid)
        check_entries(self, status)

    def get_all_bytes(self, Batch keys not None, ArrayRef map_keys not None, size_t offsets,
                      size_t valid):
        """Copy a value of variable width per key, as `Batch.get_bytes`."""
        cdef pst_bytes_out out = sized(offsets, valid)
        cdef Memory data = Memory.__new__(Memory)
        cdef pst_status status = entry_bytes_of(self, keys, map_keys, &out, data)
        if self.table.find_files(status):
            out = sized(offsets, valid)
            data = Memory.__new__(Memory)
            status = entry_bytes_of(self, keys, map_keys, &out, data)
        check_entries(self, status)
        return data


cdef object as_map_elements(object handle):
    return <MapElements?> handle


# Not methods, for the reason that `words_list` has.
cdef pst_status entries_of(MapElements elements, Batch keys, ArrayRef map_keys, size_t values,
                           size_t valid) except *:
    cdef pst_status status
    keys.begin_reading_of(elements.table)
    try:
        with nogil:
            status = pst_batch_map_get(keys.b, elements.column, &map_keys.c, <void *> values,
                                       <uint8_t *> valid)
    finally:
        keys.end()
    return status


cdef pst_status entry_bytes_of(MapElements elements, Batch keys, ArrayRef map_keys,
                               pst_bytes_out *out, Memory data) except *:
    cdef pst_status status
    keys.begin_reading_of(elements.table)
    try:
        with nogil:
            status = pst_batch_map_get_bytes(keys.b, elements.column, &map_keys.c, out)
            if status == PST_OK:
                status = data.take_for(out, pst_batch_length(keys.b))
            if status == PST_OK and out.capacity:
                status = pst_batch_map_get_bytes(keys.b, elements.column, &map_keys.c, out)
    finally:
        keys.end()
    return status


cdef int check_entries(MapElements elements, pst_status status) except -1:
    if status == PST_INVALID:
        return elements.check_elements(status, "a map key")
    return elements.table.check_fetched(status)


cdef object map_get(object handle, object key, object default):
    cdef MapElements elements = <MapElements> handle
    cdef pst_cell at, cell
    cdef pst_status status
    cdef int is_null = 0
    cdef unsigned long turn = elements.table.turn
    if key is None:
        raise elements.none("map key")
    owner = elements.map_codec.encode(key, &at)
    elements.table.ready_for(turn, elements.codec)
    status = pst_map_get(elements.table.t, elements.column, &at, &cell, &is_null)
    if status != PST_OK and status != PST_NOT_FOUND and elements.table.find_files(status):
        status = pst_map_get(elements.table.t, elements.column, &at, &cell, &is_null)
    if status == PST_OK:
        return None if is_null else elements.codec.decode(&cell)
    if status == PST_NOT_FOUND:
        return default
    elements.table.check_fetched(status)


cdef int map_put(object handle, object key, object value) except -1:
    cdef MapElements elements = <MapElements> handle
    cdef pst_cell at, cell
    cdef unsigned long turn = elements.table.turn
    if key is None:
        raise elements.none("map key")
    owner = elements.map_codec.encode(key, &at)
    other = None if value is None else elements.codec.encode(value, &cell)
    elements.table.ready_for(turn, elements.codec)
    cdef int tried = 0
    cdef const pst_cell *put = NULL if value is None else &cell
    cdef pst_status status = pst_map_put(elements.table.t, elements.column, &at, put)
    while status == PST_NO_ROOM and elements.table.makes_room(
            elements.column, 0 if value is None else cell_size(elements.codec, &cell), &tried):
        status = pst_map_put(elements.table.t, elements.column, &at, put)
    elements.table.check(status)
    return 0


cdef bint map_contains(object handle, object key) except -1:
    cdef MapElements elements = <MapElements> handle
    cdef pst_cell at, cell
    cdef pst_status status
    cdef int is_null
    cdef unsigned long turn = elements.table.turn
    if key is None:
        raise elements.none("map key")
    owner = elements.map_codec.encode(key, &at)
    elements.table.ready_for(turn, elements.codec)
    status = pst_map_get(elements.table.t, elements.column, &at, &cell, &is_null)
    if status != PST_OK and status != PST_NOT_FOUND and elements.table.find_files(status):
        status = pst_map_get(elements.table.t, elements.column, &at, &cell, &is_null)
    if status != PST_NOT_FOUND:
        elements.table.check_fetched(status)
    return status == PST_OK


cdef int map_remove(object handle, object key) except -1:
    cdef MapElements elements = <MapElements> handle
    cdef pst_cell at
    cdef pst_status status
    cdef int tried = 0
    cdef unsigned long turn = elements.table.turn
    if key is None:
        raise elements.none("map key")
    owner = elements.map_codec.encode(key, &at)
    elements.table.ready_for(turn, elements.codec)
    status = pst_map_remove(elements.table.t, elements.column, &at)
    if status != PST_OK and status != PST_NOT_FOUND and elements.table.find_files(status):
        status = pst_map_remove(elements.table.t, elements.column, &at)
    while status == PST_NO_ROOM and elements.table.makes_room(elements.column, 0, &tried):
        status = pst_map_remove(elements.table.t, elements.column, &at)
    if status != PST_NOT_FOUND:
        elements.table.check_fetched(status)
    return 0
