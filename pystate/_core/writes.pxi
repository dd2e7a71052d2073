# Writes to many keys, which go on with a part of them where memory was refused, after room was made.

cdef enum:
    WRITE_VALUES = 0
    WRITE_ITEMS = 1
    WRITE_LISTS = 2
    WRITE_ENTRIES = 3
    WRITE_TIMERS = 4
    WRITE_AGGREGATE = 5
    WRITE_MERGE = 6
    WRITE_STEPS = 7
    # What makes no row.
    WRITE_CLEAR = 8
    WRITE_REMOVE = 9
    WRITE_NO_TIMERS = 10
    WRITE_FIRED = 11           # as before, of timers that were found due

cdef enum:
    SMALL = 16                 # bytes of a value

cdef struct Write:
    int kind
    int32_t column
    pst_array map_keys
    pst_array values
    const int32_t *offsets     # of WRITE_LISTS: where each key's items are among the values
    const pst_agg_shape *shape
    pst_domain domain
    int32_t n_steps
    const pst_step *steps
    uint8_t *fresh
    uint8_t *refused
    int64_t all                # keys


cdef Write write_of(int kind, int32_t column, const pst_array *values) noexcept:
    cdef Write w
    memset(&w, 0, sizeof(w))
    w.kind = kind
    w.column = column
    w.values = values[0]
    return w


cdef pst_array part_of(const pst_array *a, int64_t at, int64_t n, int64_t all) noexcept nogil:
    """What is of n keys, from one on; of one value for all keys that one."""
    cdef pst_array part = a[0]
    if a.length == all:
        part.offset += at
        part.length = n
    return part


cdef pst_status write_part(const Write *w, pst_batch *b, int64_t at, const int32_t *offsets) \
        noexcept nogil:
    """Write to the keys of `b`, which are those from `at` on."""
    cdef int64_t n = pst_batch_length(b)
    cdef pst_array values, keys
    cdef pst_step steps[PST_MAX_STATES_]
    cdef int32_t i
    if w.kind == WRITE_LISTS:
        return pst_batch_list_append_many(b, w.column, offsets, &w.values)
    if w.kind == WRITE_CLEAR:
        return pst_batch_clear(b, w.column)
    if w.kind == WRITE_STEPS:
        for i in range(w.n_steps):
            steps[i] = w.steps[i]
            steps[i].values = part_of(&w.steps[i].values, at, n, w.all)
        return pst_batch_apply_all(b, w.n_steps, steps, NULL if w.fresh is NULL else w.fresh + at,
                                   NULL if w.refused is NULL else w.refused + at)
    if w.kind == WRITE_FIRED and n == w.all:
        return pst_timers_fire_all(b, w.domain, <const int64_t *> w.values.values)
    values = part_of(&w.values, at, n, w.all)
    if w.kind == WRITE_VALUES:
        return pst_batch_put(b, w.column, &values)
    if w.kind == WRITE_ITEMS:
        return pst_batch_list_append(b, w.column, &values)
    if w.kind == WRITE_TIMERS:
        return pst_batch_timer_register(b, w.domain, &values)
    if w.kind == WRITE_AGGREGATE:
        return pst_batch_aggregate(b, w.column, w.shape, &values)
    if w.kind == WRITE_MERGE:
        return pst_batch_merge(b, w.column, w.shape, &values)
    if w.kind in (WRITE_NO_TIMERS, WRITE_FIRED):
        return pst_batch_timer_delete(b, w.domain, &values)
    keys = part_of(&w.map_keys, at, n, w.all)
    if w.kind == WRITE_REMOVE:
        return pst_batch_map_remove(b, w.column, &keys)
    return pst_batch_map_put(b, w.column, &keys, &values)


cdef uint64_t bytes_of(const Write *w, int64_t at, int64_t n) noexcept:
    """How many bytes are written to n keys, from one on."""
    cdef const pst_array *v = &w.values
    cdef int64_t first = at, after = at + n
    if w.kind >= WRITE_STEPS:
        return 0
    if w.kind == WRITE_LISTS:
        first, after = w.offsets[at], w.offsets[at + n]
    elif v.length != w.all:
        first, after = 0, 1
    if v.offsets is NULL:
        return 8 * <uint64_t> (after - first)
    cdef uint64_t size = <uint64_t> (v.offsets[v.offset + after] - v.offsets[v.offset + first])
    return size if v.length == w.all or w.kind == WRITE_LISTS else size * <uint64_t> n


cdef bint has_null(const pst_array *a) noexcept:
    cdef int64_t i
    if a.validity is not NULL:
        for i in range(a.offset, a.offset + a.length):
            if not a.validity[i >> 3] >> (i & 7) & 1:
                return True
    return False


cdef bint is_repeatable(const Write *w) noexcept:
    """Whether what was done in part is right when all of it is done once more."""
    return w.kind in (WRITE_VALUES, WRITE_ENTRIES, WRITE_TIMERS) or w.kind >= WRITE_CLEAR


cdef bint is_cut(const Write *w) noexcept:
    """Whether it may be done in parts: what is refused as a whole is seen before anything else."""
    cdef int32_t i
    if w.kind in (WRITE_ENTRIES, WRITE_REMOVE):
        if w.map_keys.length != w.all or has_null(&w.map_keys):
            return False
    if w.kind in (WRITE_CLEAR, WRITE_REMOVE):
        return True
    if w.kind == WRITE_STEPS:
        for i in range(w.n_steps):
            if w.steps[i].values.length not in (1, w.all):
                return False
        return True
    if w.kind == WRITE_LISTS:
        return not has_null(&w.values)
    return w.values.length in (1, w.all) and not (w.kind == WRITE_ITEMS and has_null(&w.values))


cdef int32_t *cut_offsets(const Write *w, int32_t *old, int64_t at, int64_t item) except NULL:
    """Where the items of the keys from `at` on are, of which the first has had those before `item`."""
    cdef int64_t left = w.all - at
    cdef int32_t *made = <int32_t *> malloc(<size_t> (left + 1) * sizeof(int32_t))
    if made is NULL:
        raise MemoryError
    memcpy(made, w.offsets + at, <size_t> (left + 1) * sizeof(int32_t))
    made[0] = <int32_t> item
    free(old)
    return made


cdef uint64_t cell_size(Codec codec, const pst_cell *cell) noexcept:
    """How many bytes a value has."""
    return cell.bytes.size if codec.code >= PST_STRING else sizeof(cell.word)
