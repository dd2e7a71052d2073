# Files: sealed epochs that become one, readers, merges, and copies between tables.


cdef object info_tuple(const pst_file_info *info):
    return ("base" if info.kind == PST_BASE else "delta",
            PyBytes_FromStringAndSize(<const char *> info.lineage.id, 16).hex(),
            PyBytes_FromStringAndSize(<const char *> info.lineage.parent, 16).hex(),
            info.lineage.epoch, info.max_parallelism, info.first_key_group, info.last_key_group,
            info.rows, info.tombstones, info.raw_bytes, info.file_bytes, info.checksum,
            info.block_bytes)


# ---- sealed epochs -------------------------------------------------------------------------------

cdef enum:
    MUCH_BYTES = 4 << 20       # of rows: what was allocated for so many is not kept for later


cdef class Sealed(_Guarded):
    """What an epoch changed; independent of its table."""

    cdef pst_sealed *s
    cdef unsigned long fork
    cdef Budget budget
    cdef readonly str where

    def __dealloc__(self):
        if self.s is not NULL and self.fork == fork_generation:
            pst_sealed_destroy(self.s)

    cdef int ready(self) except -1:
        if self.busy:
            raise errors.InUseError(f"{self.where}: the snapshot is being written")
        if self.s is NULL or self.fork != fork_generation:
            raise errors.ClosedError(f"{self.where}: the snapshot is closed, or of another process")
        return 0

    @property
    def rows(self):
        """Rows that the epoch changed or deleted."""
        self.ready()
        return pst_sealed_rows(self.s)

    @property
    def raw_bytes(self):
        """Bytes of keys and changed columns."""
        self.ready()
        return pst_sealed_bytes(self.s)

    @property
    def lineage(self):
        """(id, parent, epoch, query)."""
        self.ready()
        return lineage_tuple(pst_sealed_lineage(self.s))

    def write(self, out, str name not None, uint32_t block_bytes=0):
        """Write the delta file into a writable binary object; returns its info tuple.

        With `block_bytes`, 4096 to 65536, it is a guided file with blocks of that size.
        """
        cdef _Io io = _Io(out, -1, name)
        cdef pst_file_info info
        cdef pst_status status
        self.begin()
        try:
            pst_sealed_guide(self.s, block_bytes)
            with nogil:
                if pst_sealed_bytes(self.s) >= MUCH_BYTES:
                    pst_memory_give_back()  # writing takes most of what a checkpoint takes
                status = pst_sealed_write(self.s, &io.c, &info)
        finally:
            self.end()
        if status == PST_CALLBACK:
            io.reraise()
        check_limit(status, self.budget, f"{self.where}, {name}")
        check(status, NULL, f"{self.where}, {name}", None)
        return info_tuple(&info)

    def close(self):
        """Free the memory. Does nothing the second time."""
        cdef bint much
        if self.s is not NULL and self.fork == fork_generation:
            self.begin()
            try:
                with nogil:
                    much = pst_sealed_bytes(self.s) >= MUCH_BYTES
                    pst_sealed_destroy(self.s)
                    if much:
                        pst_memory_give_back()
            finally:
                self.s = NULL
                self.end()


cdef Sealed make_sealed(str where, Budget budget):
    """One that is to be filled."""
    cdef Sealed self = Sealed.__new__(Sealed)
    self.fork = fork_generation
    self.budget = budget
    self.where = where
    return self


# ---- files ---------------------------------------------------------------------------------------

cdef class FileReader(_Guarded):
    """An open state file.

    If `fd` >= 0 it is read by pread without the GIL, else `source` is by seek and readinto. Both
    belong to the caller and outlive the reader.
    """

    cdef pst_sst_reader *r
    cdef _Io io
    cdef readonly str name

    def __init__(self, str name not None, uint64_t size_bytes, int fd, source,
                 Budget budget=None):
        cdef pst_detail detail
        cdef pst_status status
        once(self.name is not None, "a reader")
        memset(&detail, 0xFF, sizeof(detail))
        self.name = name
        self.io = _Io(source, fd, name, budget)
        self.hold()
        try:
            with nogil:
                status = pst_sst_reader_open(&self.io.c, size_bytes, &self.r, &detail)
        finally:
            self.end()
        if status == PST_CALLBACK:
            self.io.reraise()
        check_limit(status, budget, name)
        check(status, &detail, name, None)

    def __dealloc__(self):
        if self.r is not NULL:
            pst_sst_reader_close(self.r)

    cdef int ready(self) except -1:
        if self.busy:
            raise errors.InUseError(f"{self.name}: the file is being read")
        if self.r is NULL:
            raise errors.ClosedError(f"{self.name}: the file is closed")
        return 0

    cdef int check(self, pst_status status) except -1:
        if status == PST_CALLBACK:
            self.io.reraise()
        check_limit(status, self.io.budget, self.name)
        return check(status, pst_sst_reader_detail(self.r), self.name, None)

    def close(self):
        """Close the reader. Does nothing the second time."""
        if self.busy or self.r is not NULL:
            self.ready()
            pst_sst_reader_close(self.r)
            self.r = NULL

    def info(self):
        """Return the info tuple: kind, id, parent, epoch, ..., checksum."""
        self.ready()
        return info_tuple(pst_sst_reader_info(self.r))

    def lineage(self):
        """(id, parent, epoch, query) of the file."""
        self.ready()
        return lineage_tuple(&pst_sst_reader_info(self.r).lineage)

    def schema(self):
        """Return key and state columns as the first 11 fields of `Column`, and how many key
        columns are hashed."""
        self.ready()
        cdef const pst_schema *schema = pst_sst_reader_schema(self.r)
        return (column_tuples(schema.keys, schema.n_keys),
                column_tuples(schema.states, schema.n_states),
                schema.n_hashed if schema.n_hashed else schema.n_keys)

    def evolve(self, list changes not None, Schema schema not None):
        """Give states from now on as a later program declares them.

        A change is (column of the file, types there, types now, what each of the latter is made
        of, what fills fields that are made of nothing: a value's bytes, or None); types are (name,
        code, precision, scale, children) in preorder. The schema's states are the columns as a
        file has them then, one for each change.
        """
        cdef pst_evolution evolutions[PST_MAX_STATES_]
        cdef list kept = []
        cdef Numbers sources
        cdef TypeList old, new
        cdef pst_status status
        cdef int32_t i, n = <int32_t> len(changes)
        if n != schema.c.n_states:
            raise errors.InvalidArgumentError(f"{n} changes, and columns for {schema.c.n_states}")
        cdef bytes value
        for i, (column, from_types, to_types, made_of, fill) in enumerate(changes):
            old, new = TypeList(from_types), TypeList(to_types)
            sources = Numbers(made_of)
            if sources.n != new.n:
                raise errors.InvalidArgumentError(f"{new.n} types, and sources of {sources.n}")
            value = b"" if fill is None else fill
            kept.append((old, new, sources, value))
            evolutions[i] = pst_evolution(column, &schema.c.states[i], old.c, old.n, new.c, new.n,
                                          sources.c, NULL, 0)
            if fill is not None:
                evolutions[i].fill = <const uint8_t *> PyBytes_AS_STRING(value)
                evolutions[i].fill_bytes = <uint32_t> len(value)
        self.ready()
        status = pst_sst_reader_evolve(self.r, evolutions, n)
        self.check(status)

    def seek(self, int32_t first_key_group, int32_t last_key_group):
        """Position before the first record of the range."""
        cdef pst_status status
        self.begin()
        try:
            with nogil:
                status = pst_sst_reader_seek(self.r, first_key_group, last_key_group)
        finally:
            self.end()
        self.check(status)

    def spread(self, int32_t first_key_group, int32_t last_key_group):
        """(puts, deletes, stored bytes) of each key group of the range, about, by the index alone.

        Each is the bytes of as many doubles. Nothing is read.
        """
        self.ready()
        if not 0 <= first_key_group <= last_key_group < 65536:
            raise errors.InvalidArgumentError(
                f"{first_key_group} to {last_key_group}: no range of key groups")
        cdef int32_t n = last_key_group - first_key_group + 1
        cdef bytearray puts = bytearray(8 * n), deletes = bytearray(8 * n)
        cdef bytearray stored = bytearray(8 * n)
        pst_sst_reader_spread(self.r, first_key_group, n, <double *> PyByteArray_AS_STRING(puts),
                              <double *> PyByteArray_AS_STRING(deletes),
                              <double *> PyByteArray_AS_STRING(stored))
        return puts, deletes, stored

    def count(self):
        """Read and check every remaining record of the range: (puts, deletes)."""
        cdef pst_record *record = new_record()
        cdef uint64_t puts = 0, deletes = 0
        cdef pst_status status
        try:
            self.begin()
            try:
                with nogil:
                    while True:
                        status = pst_sst_reader_next(self.r, record)
                        if status != PST_OK:
                            break
                        if record.op == PST_DELETE:
                            deletes += 1
                        else:
                            puts += 1
            finally:
                self.end()
        finally:
            free(record)
        if status != PST_NOT_FOUND:
            self.check(status)
        return puts, deletes


cdef class TypeList:
    """Types as the core takes them, from (name, code, precision, scale, children)."""

    cdef pst_nested_type *c
    cdef int32_t n

    def __cinit__(self, types):
        cdef int32_t i
        given = tuple(types)
        self.n = <int32_t> len(given)
        self.c = <pst_nested_type *> malloc(<size_t> (self.n + 1) * sizeof(pst_nested_type))
        if self.c is NULL:
            raise MemoryError
        for i, (name, code, precision, scale, children) in enumerate(given):
            self.c[i] = nested_type(name, code, precision, children, scale)

    def __dealloc__(self):
        free(self.c)


cdef class Numbers:
    """Integers of 32 bits."""

    cdef int32_t *c
    cdef int32_t n

    def __cinit__(self, numbers):
        cdef int32_t i
        given = tuple(numbers)
        self.n = <int32_t> len(given)
        self.c = <int32_t *> malloc(<size_t> (self.n + 1) * sizeof(int32_t))
        if self.c is NULL:
            raise MemoryError
        for i, number in enumerate(given):
            self.c[i] = number

    def __dealloc__(self):
        free(self.c)


def widens(tuple old not None, tuple new not None):
    """Whether values of one scalar type, (code, precision, scale), are all values of another."""
    cdef pst_nested_type a = nested_type("", old[0], old[1], 0, old[2])
    cdef pst_nested_type b = nested_type("", new[0], new[1], 0, new[2])
    return bool(pst_widens(&a, &b))


cdef list column_tuples(const pst_column *columns, int32_t n):
    cdef const pst_column *c
    cdef int32_t i
    result = []
    for i in range(n):
        c = &columns[i]
        result.append((c.name.decode(), <int> c.type, c.precision, c.scale,
                       "" if c.ddl is NULL else c.ddl.decode(), None, c.kind, c.map_key,
                       c.map_precision, c.map_scale, c.width))
    return result


def file_checksum(str name not None, uint64_t size_bytes, int fd, source):
    """Return XXH64 of the whole file, as its writer reported it."""
    cdef _Io io = _Io(source, fd, name)
    cdef uint64_t checksum = 0
    cdef pst_status status
    io.begin()
    try:
        with nogil:
            status = pst_file_checksum(&io.c, size_bytes, &checksum)
    finally:
        io.end()
    if status == PST_CALLBACK:
        io.reraise()
    check(status, NULL, name, None)
    return checksum


cdef class _Sources:
    """Open files, oldest first, and whose columns theirs are; held from `begin` to `end`."""

    cdef list readers
    cdef list busy
    cdef int32_t n
    cdef pst_sst_reader **files
    cdef const int32_t **mappings
    cdef int32_t *mapping

    def __cinit__(self, list readers not None, list columns not None):
        cdef FileReader reader
        cdef int32_t i
        self.busy = []
        self.readers = list(readers)
        self.n = <int32_t> len(self.readers)
        mapped = list(columns)
        if len(mapped) != self.n:
            raise errors.InvalidArgumentError(f"{self.n} files, and columns of {len(mapped)}")
        self.files = <pst_sst_reader **> calloc(self.n + 1, sizeof(void *))
        self.mappings = <const int32_t **> calloc(self.n + 1, sizeof(void *))
        self.mapping = <int32_t *> calloc((self.n + 1) * PST_MAX_STATES_, sizeof(int32_t))
        if self.files is NULL or self.mappings is NULL or self.mapping is NULL:
            raise MemoryError
        for i in range(self.n):
            reader = <FileReader?> self.readers[i]
            self.mappings[i] = self.mapping + i * PST_MAX_STATES_
            fill_mapping(self.mapping + i * PST_MAX_STATES_, <list?> mapped[i],
                         <int32_t> len(mapped[i]))

    def __dealloc__(self):
        free(self.files)
        free(self.mappings)
        free(self.mapping)

    cdef int begin(self) except -1:
        """Hold all readers; none, where one is in use."""
        cdef FileReader reader
        cdef int32_t i
        try:
            for i in range(self.n):
                reader = self.readers[i]
                reader.begin()
                self.busy.append(reader)
                self.files[i] = reader.r
        except BaseException:
            self.end()
            raise
        return 0

    cdef int end(self) except -1:
        cdef FileReader reader
        for reader in self.busy:
            reader.end()
        self.busy = []
        return 0

    cdef int check(self, pst_status status, _Io io, Schema schema, Budget budget) except -1:
        """Raise what made it fail: the target's callbacks, a file, or both together."""
        cdef FileReader reader
        if status == PST_CALLBACK and io.error is not None:
            io.reraise()
        for reader in self.readers:
            if reader.r is NULL:
                continue
            if status == PST_CALLBACK and (reader.io.error is not None or reader.io.state.failed):
                reader.io.reraise()
            if status == PST_CORRUPT and pst_sst_reader_detail(reader.r).offset >= 0:
                reader.check(status)
        check_limit(status, budget, io.name)
        return check(status, NULL, io.name, schema)


cdef class Expiry:
    """What has expired: as a table with these settings is told that it is so late.

    A setting is (column, duration in milliseconds, event time, lenient, ahead in milliseconds), as
    `Table.set_ttl` takes them. A time of None is unknown; `event_ms` is what gives a time to what has
    none.
    """

    cdef pst_expiry c
    cdef pst_ttl ttl[PST_MAX_STATES_]

    def __init__(self, list settings not None, processing_ms, watermark_ms, event_ms=None):
        memset(self.ttl, 0, sizeof(self.ttl))
        for column, duration_ms, event_time, lenient, ahead_ms in settings:
            if not 0 <= column < PST_MAX_STATES_:
                raise errors.InvalidArgumentError(f"no state has the column {column}")
            self.ttl[<int32_t> column].duration_ms = duration_ms
            self.ttl[<int32_t> column].event_time = event_time
            self.ttl[<int32_t> column].lenient = lenient
            self.ttl[<int32_t> column].ahead_ms = ahead_ms
        self.c.ttl = self.ttl
        self.c.clock.processing_ms = PST_NO_TIME if processing_ms is None else processing_ms
        self.c.clock.watermark_ms = PST_NO_TIME if watermark_ms is None else watermark_ms
        self.c.clock.event_ms = PST_NO_TIME if event_ms is None else event_ms


def merge(list readers not None, list columns not None, Schema schema not None, str kind,
          bytes id, bytes parent, uint64_t epoch, uint64_t query, int32_t max_parallelism,
          int32_t first_key_group, int32_t last_key_group, out not None, str name not None,
          Budget budget=None, uint32_t block_bytes=0, Expiry expiry=None):
    """Merge open files, oldest first, into `out`; returns the new file's info tuple.

    `columns[f]` maps file f's states to the schema's. With `block_bytes` as in `Sealed.write`. With
    `expiry`, whose columns are the schema's, a base has nothing that no reader sees any more, and
    what has no time gets one. Deltas behind it must be of tables with `set_whole_rows`.
    """
    cdef _Io io = _Io(out, -1, name, budget)
    cdef pst_file_info info
    cdef pst_sst_writer *writer = NULL
    cdef const pst_expiry *left_out = NULL if expiry is None else &expiry.c
    cdef pst_status status
    memset(&info, 0, sizeof(info))
    info.kind = PST_BASE if kind == "base" else PST_DELTA
    fill_lineage(&info.lineage, id, parent, epoch, query)
    info.max_parallelism = max_parallelism
    info.first_key_group = first_key_group
    info.last_key_group = last_key_group
    info.block_bytes = block_bytes
    cdef _Sources sources = _Sources(readers, columns)
    cdef int32_t i
    sources.begin()
    try:
        for i in range(sources.n):
            info.null_entries |= pst_sst_reader_info(sources.files[i]).null_entries
        with nogil:
            status = pst_sst_writer_create(&schema.c, &info, &io.c, &writer)
            if status == PST_OK and left_out is NULL:
                status = pst_merge(sources.files, sources.mappings, sources.n, writer)
            elif status == PST_OK:
                status = pst_merge_expiring(sources.files, sources.mappings, sources.n, left_out,
                                            writer)
            if status == PST_OK:
                status = pst_sst_writer_finish(writer, &info)
            pst_sst_writer_destroy(writer)
            if info.raw_bytes >= MUCH_BYTES:
                pst_memory_give_back()
    finally:
        sources.end()
    sources.check(status, io, schema, budget)
    return info_tuple(&info)


cdef enum:
    MOST_HASH = 0xFFFFFFFFFFFFFFFF


def gather(list readers not None, list columns not None, Schema schema not None,
           int32_t max_parallelism, int32_t first_key_group, int32_t last_key_group,
           str name not None, Budget budget=None, Expiry expiry=None, uint64_t first_hash=0,
           uint64_t last_hash=MOST_HASH, bint counted=False):
    """Merge open files, oldest first, into rows: a list of (how many, columns).

    `columns[f]` maps file f's states to the schema's, which is a table's. A column is (how many,
    nulls, validity, offsets, values), in Arrow's layout. Those of the key come first, then those of
    each state: of a list its offsets and its items, of a map its offsets, its keys and its values;
    of times and timers none. With `expiry`, whose columns are the schema's, there is only what a
    reader sees. Of the first key group only keys with `first_hash` or a larger one are there, of the
    last one those up to `last_hash`. Where rows are only `counted` there are no columns.
    """
    cdef pst_hashes hashes = pst_hashes(first=first_hash, last=last_hash)
    cdef _Io io = _Io(None, -1, name, budget)
    cdef _Sources sources
    cdef const pst_expiry *hidden = NULL if expiry is None else &expiry.c
    cdef pst_status status
    io.blocks = []
    io.c.block = io_count if counted else io_block
    sources = _Sources(readers, columns)
    sources.begin()
    try:
        with nogil:
            status = pst_gather(sources.files, sources.mappings, sources.n, &schema.c, hidden,
                                max_parallelism, first_key_group, last_key_group, &hashes,
                                &io.c)
    finally:
        sources.end()
    sources.check(status, io, schema, budget)
    return io.blocks


def gather_keys(list readers not None, int32_t first_key_group, int32_t last_key_group,
                str name not None, Budget budget=None, uint64_t first_hash=0,
                uint64_t last_hash=MOST_HASH):
    """The keys of which open files have any record, each once: what `gather` returns, without states.

    The files are of one operator. A namespace comes behind the key.
    """
    cdef pst_hashes hashes = pst_hashes(first=first_hash, last=last_hash)
    cdef _Io io = _Io(None, -1, name, budget)
    cdef _Sources sources = _Sources(readers, [[]] * len(readers))
    cdef pst_status status
    io.blocks = []
    io.c.block = io_block
    sources.begin()
    try:
        with nogil:
            status = pst_gather_keys(sources.files, sources.n, first_key_group, last_key_group,
                                     &hashes, &io.c)
    finally:
        sources.end()
    sources.check(status, io, None, budget)
    return io.blocks


def copy_rows(Table source not None, Table to not None, int32_t first_key_group,
              int32_t last_key_group):
    """Put the rows of some key groups into the open epoch of another table; returns how many."""
    cdef uint64_t rows = 0
    cdef pst_status status
    source.ready()
    to.ready()
    if source is to:
        raise errors.InvalidArgumentError(f"{to.where}: a table is not copied into itself")
    source.forget_key()
    to.forget_key()
    source.begin()
    try:
        to.begin()
        try:
            with nogil:
                status = pst_table_copy(to.t, source.t, first_key_group, last_key_group, &rows)
        finally:
            to.end()
    finally:
        source.end()
    if status == PST_CORRUPT:
        source.check(status)
    to.check(status)
    return rows
