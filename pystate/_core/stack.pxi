# Stacks: files in which rows are looked up that are not in the memory of a table.


cdef extern from "Python.h" nogil:
    ctypedef struct PyThreadState:
        pass
    int PyGILState_Check()
    PyThreadState *PyEval_SaveThread()
    void PyEval_RestoreThread(PyThreadState *state)


cdef void *reads_pause() noexcept nogil:
    # Threads that read may have to run Python, and some calls of the core are made with the GIL.
    return PyEval_SaveThread() if PyGILState_Check() else NULL


cdef void reads_resume(void *paused) noexcept nogil:
    if paused is not NULL:
        PyEval_RestoreThread(<PyThreadState *> paused)


cdef class Reads:
    """What reads files for the stacks of a process; one search at a time, others wait.

    With `threads`, so many read: it is for files that are brought as they are read. `cached`: by the
    page cache, where what was read stays.
    """

    cdef pst_reads *r
    cdef unsigned long fork

    def __cinit__(self, Budget budget=None, int32_t threads=0, bint cached=False):
        cdef pst_reads_options options
        memset(&options, 0, sizeof(options))
        options.budget = budget_of(budget)
        options.threads = threads
        options.no_uring = threads > 0
        options.no_direct = cached
        if threads > 0:
            options.pause, options.resume = reads_pause, reads_resume
        self.fork = fork_generation
        check(pst_reads_create(&options, &self.r), NULL, "reads of files", None)

    def __dealloc__(self):
        # In a forked child the threads of its parent are not there, so that nobody ends them.
        if self.fork == fork_generation:
            pst_reads_release(self.r)


#: Bits of the state of an extent of a file, which is a byte.
EXTENT_HERE, EXTENT_USED = PST_EXTENT_HERE, PST_EXTENT_USED


cdef class _Extents:
    """A file of which some extents are here; see `GuidedFile`. It belongs to the open file."""

    cdef object file
    cdef bint opened
    cdef const unsigned char[::1] states
    cdef pst_extents c

    def __cinit__(self, file):
        self.file = file
        self.states = file.states
        self.c.file_bytes = file.size_bytes
        self.c.extent_bytes = file.extent_bytes
        extents = -(-file.size_bytes // file.extent_bytes)
        if not 0 < extents <= self.states.shape[0]:
            raise ValueError(f"{file.name}: {self.states.shape[0]} states of {extents} extents")
        self.c.states = <uint8_t *> &self.states[0]
        self.c.bring = extents_bring
        self.c.drop = extents_drop
        self.c.close = extents_close
        self.c.ctx = <void *> self


#: Why extents of files, by their names, could not be brought: until somebody says so.
cdef dict not_brought = {}


cdef int extents_bring(void *ctx, uint64_t first, uint64_t last) noexcept with gil:
    cdef _Extents extents = <_Extents> ctx
    try:
        # Of what leads to rows little lies at a place.
        extents.file.bring(first, last, extents.opened)
        return 0
    except BaseException as error:
        not_brought[extents.file.name] = error
        return EREMOTEIO


cdef void extents_drop(void *ctx, uint64_t first, uint64_t last) noexcept with gil:
    cdef _Extents extents = <_Extents> ctx
    try:
        extents.file.drop(first, last)
    except BaseException as error:
        # It is read as it is then, and found to be damaged once more.
        not_brought[extents.file.name] = error


cdef void extents_close(void *ctx) noexcept with gil:
    Py_DECREF(<object> ctx)


cdef object file_error(pst_status status, const pst_detail *detail, tuple names, str where):
    """The error of a file of a stack, whose number is the detail's row."""
    cdef str name = where
    if 0 <= detail.row < len(names):
        name = names[detail.row]
    if status == PST_NOT_FOUND:
        return errors.CheckpointError(
            f"{name}: there is no such file, and it holds rows of the state: bring it back")
    if status == PST_SCHEMA:
        return errors.SchemaError(
            f"{name}: it has no guide to its rows, or other columns than the table: rows cannot be "
            "looked up in it before it is merged into a new base")
    if status == PST_IO and detail.sys_errno == EREMOTEIO and name in not_brought:
        return not_brought.pop(name)
    if status == PST_IO and detail.sys_errno == ENODATA:
        return errors.CorruptFileError(f"{name}: corrupt: it is shorter than when it was opened")
    if is_stale(status, detail):
        return errors.CheckpointError(
            f"{name}: it was replaced, or removed, where it lies while it was open here, and so it "
            "was when it was opened once more: bring it back, and let nothing change files there")
    return make_error(status, detail, name, None)


cdef bint is_stale(pst_status status, const pst_detail *detail) noexcept:
    """Whether an open file is no longer the one that was opened: it was replaced on its server, or
    some code closes descriptors that are not its own."""
    return status == PST_IO and (detail.sys_errno == ESTALE or detail.sys_errno == EBADF)


cdef class GuidedFile(_Guarded):
    """A state file with a guide, open for any number of stacks, in any thread.

    It may be removed. It is closed when nothing has it any more. The schema is a table's; `stored`:
    it is as files have it.

    Of a file of which some parts are elsewhere, `extents` is what brings them as they are read: it
    has a `name` for messages, the `size_bytes` of the whole and `extent_bytes`; a writable buffer
    `states` of a byte per extent, with `EXTENT_HERE` once it is there; `bring(first, last, opened)`,
    which any thread may call, and is told whether it is for rows; `drop(first, last)` for what is
    damaged. `reads` are by threads then.
    """

    cdef pst_member *m
    cdef unsigned long fork
    cdef Reads reads
    cdef Budget budget
    cdef readonly str name
    cdef readonly object extents

    def __init__(self, Schema schema not None, int32_t max_parallelism, path,
                 Reads reads not None, Budget budget=None, guides=None, bint stored=False,
                 extents=None):
        cdef pst_stack_options options
        cdef pst_schema *own = NULL
        cdef const pst_schema *columns = &schema.c
        cdef pst_detail detail
        cdef pst_status status
        cdef _Extents brought = None
        cdef bytes encoded = os.fsencode(path)
        cdef const char *where = encoded
        cdef bytes folder = b"" if guides is None else os.fsencode(guides)
        once(self.name is not None, "an open file")
        memset(&options, 0, sizeof(options))
        memset(&detail, 0xFF, sizeof(detail))
        self.name = os.fsdecode(path) if extents is None else extents.name
        self.extents = extents
        self.fork = fork_generation
        self.reads, self.budget = reads, budget
        if extents is not None:
            brought = _Extents(extents)
            options.extents = &brought.c
        options.reads = reads.r
        options.budget = budget_of(budget)
        options.unguided = stored
        if guides is not None:
            options.guides = folder
        self.hold()
        try:
            with nogil:
                status = PST_OK
                if not stored:
                    status = pst_file_schema_create(&schema.c, &own)
                    columns = own
                if status == PST_OK:
                    status = pst_member_open(columns, max_parallelism, where, &options, &self.m,
                                             &detail)
                pst_file_schema_destroy(own)
        finally:
            self.end()
        if status == PST_OK and brought is not None:
            brought.opened = True
            Py_INCREF(brought)  # until the file is closed
        check_limit(status, budget, f"{self.name}: its guide")
        if status != PST_OK:
            detail.row = 0
            raise file_error(status, &detail, (self.name,), self.name)

    def __dealloc__(self):
        if self.m is not NULL and self.fork == fork_generation:
            pst_member_release(self.m)

    cdef int ready(self) except -1:
        if self.m is NULL or self.fork != fork_generation:
            raise errors.ClosedError("the file is not open, or of another process")
        return 0

    def fileno(self):
        """Return its descriptor, which may be for aligned reads only."""
        self.ready()
        return pst_member_descriptor(self.m)

    def info(self):
        """Return what `FileReader.info` does of the file."""
        self.ready()
        return info_tuple(pst_member_info(self.m))


cdef int fill_wanted(pst_wanted_keys *wanted, pst_array *columns, list keys,
                     uint64_t most_bytes) except -1:
    """Name keys for a look-up: references, one for each column."""
    cdef int32_t i = 0
    if len(keys) > PST_MAX_KEYS:
        raise errors.InvalidArgumentError(f"a key has at most {PST_MAX_KEYS} columns")
    for reference in keys:
        columns[i] = array_of(reference)[0]
        i += 1
    wanted.columns = columns
    wanted.n_columns = i
    wanted.most_bytes = most_bytes
    wanted.states = 0
    wanted.at_hand = 0
    return 0


def wanted_order(Schema schema not None, int32_t max_parallelism, list keys not None,
                 size_t order):
    """Put into `order`, of 32 bits each, which keys to ask for: each once, in the order of files.

    `keys` are as for `Stack.look_up`, and the schema is a table's. Returns how many they are.
    """
    cdef pst_array columns[PST_MAX_KEYS_]
    cdef pst_wanted_keys wanted
    cdef pst_status status
    cdef uint32_t n = 0
    keys = list(keys)  # nobody else takes an array out of it
    fill_wanted(&wanted, columns, keys, 0)
    with nogil:
        status = pst_wanted_order(&schema.c, max_parallelism, &wanted, <uint32_t *> order, &n)
    check(status, NULL, "keys that are looked up", schema)
    return n


def look_into(FileReader reader not None, list keys not None, out not None):
    """`Stack.look_up` in one file of any kind, block by block; it keeps its kind and lineage."""
    cdef pst_array columns[PST_MAX_KEYS_]
    cdef pst_wanted_keys wanted
    cdef pst_file_info info
    cdef _Io io = _Io(out, -1, "rows that were looked up", reader.io.budget)
    cdef pst_status status
    reader.ready()
    keys = list(keys)
    fill_wanted(&wanted, columns, keys, 0)
    memset(&info, 0, sizeof(info))
    io.c.compress = NULL
    reader.begin()
    try:
        with nogil:
            status = pst_sst_reader_lookup(reader.r, &wanted, &io.c, &info)
    finally:
        reader.end()
    if status == PST_CALLBACK and io.error is not None:
        io.reraise()
    reader.check(status)
    return info_tuple(&info)


cdef pst_status plan_part(void *ctx, int32_t file, uint64_t offset,
                          uint64_t size) noexcept with gil:
    try:
        (<list> ctx).append((file, offset, size))
        return PST_OK
    except MemoryError:
        return PST_NO_MEMORY


def plan_into(FileReader reader not None, list keys not None, bint entries, uint64_t gap,
              uint64_t most):
    """`Stack.plan` of `look_into`, in two steps: with `entries`, what of a file with a guide leads to
    the blocks, and is read to say these; of other files that is nothing.
    """
    cdef pst_array columns[PST_MAX_KEYS_]
    cdef pst_wanted_keys wanted
    cdef list parts = []
    cdef pst_plan_sink sink = pst_plan_sink(plan_part, <void *> parts, gap, most)
    cdef pst_status status
    reader.ready()
    keys = list(keys)
    fill_wanted(&wanted, columns, keys, 0)
    reader.begin()
    try:
        with nogil:
            status = pst_sst_reader_plan(reader.r, &wanted, entries, &sink)
    finally:
        reader.end()
    reader.check(status)
    return parts


cdef class Stack(_Guarded):
    """State files with guides, oldest first, in which rows are looked up. It is immutable.

    `files` are (path or `GuidedFile`, the first and last key groups for which it counts, one after
    the other; none: all of its own). It cannot be closed while it is a table's. The schema is a
    table's; `stored`: it is as files have it, for `look_up`.
    """

    cdef pst_stack *s
    cdef int tables
    cdef unsigned long fork
    cdef Reads reads
    cdef Budget budget
    cdef Schema schema
    cdef readonly tuple names

    def __init__(self, Schema schema not None, int32_t max_parallelism, list files not None,
                 Reads reads=None, Budget budget=None, guides=None, bint stored=False):
        cdef pst_stack_options options
        cdef pst_stack_file *c
        cdef pst_schema *own = NULL
        cdef const pst_schema *columns = &schema.c
        cdef pst_detail detail
        cdef pst_status status
        cdef Numbers ranges
        cdef bytes path
        cdef GuidedFile opened
        cdef bytes folder = b"" if guides is None else os.fsencode(guides)
        cdef list kept = [], names = []
        cdef int32_t i, n
        once(self.names is not None, "a stack")
        memset(&options, 0, sizeof(options))
        memset(&detail, 0xFF, sizeof(detail))
        for name, counting in list(files):
            ranges = Numbers(counting)
            if isinstance(name, GuidedFile):
                opened = <GuidedFile> name
                opened.ready()
                kept.append((b"", opened, ranges))
                names.append(opened.name)
            else:
                kept.append((os.fsencode(name), None, ranges))
                names.append(os.fsdecode(name))
        n = <int32_t> len(kept)
        self.fork = fork_generation
        self.reads, self.budget, self.schema = reads, budget, schema
        self.names = tuple(names)
        options.budget = budget_of(budget)
        options.unguided = stored
        if reads is not None:
            options.reads = reads.r
        if guides is not None:
            options.guides = folder
        c = <pst_stack_file *> calloc(<size_t> n + 1, sizeof(pst_stack_file))
        if c is NULL:
            raise MemoryError
        for i, (path, opened, ranges) in enumerate(kept):
            c[i].path, c[i].ranges, c[i].n_ranges = path, ranges.c, ranges.n // 2
            c[i].member = NULL if opened is None else opened.m
        self.hold()
        try:
            with nogil:
                status = PST_OK
                if not stored:
                    status = pst_file_schema_create(&schema.c, &own)
                    columns = own
                if status == PST_OK:
                    status = pst_stack_open(columns, max_parallelism, c, n, &options, &self.s,
                                            &detail)
                pst_file_schema_destroy(own)
        finally:
            self.end()
            free(c)
        check_limit(status, budget, "a stack of files")
        if status != PST_OK:
            raise file_error(status, &detail, self.names, "a stack of files")

    def __dealloc__(self):
        if self.s is not NULL and self.fork == fork_generation:
            pst_stack_close(self.s)

    cdef int ready(self) except -1:
        if self.busy:
            raise errors.InUseError("the stack is in use by another thread")
        if self.s is NULL or self.fork != fork_generation:
            raise errors.ClosedError("the stack is closed, or of another process")
        return 0

    def close(self):
        """Close the files. Does nothing the second time."""
        if self.s is NULL or self.fork != fork_generation:
            return
        self.ready()
        if self.tables:
            raise errors.InUseError("a table has its rows in the files of the stack")
        pst_stack_close(self.s)
        self.s = NULL

    def get(self, key):
        """Return a key's states as `Reader.get` does; lists and maps have no value."""
        cdef pst_cell cells[PST_MAX_KEYS_]
        cdef uint32_t nulls = 0
        cdef pst_record *record
        cdef Codec codec
        cdef int i
        cdef pst_status status
        if self.tables:
            raise errors.InUseError("the stack is a table's")
        self.ready()
        owner = self.schema.encode_key(key, cells, &nulls)
        record = new_record()
        try:
            self.begin()
            try:
                with nogil:
                    status = pst_stack_get(self.s, cells, nulls, record)
                if status == PST_NOT_FOUND:
                    return None
                if status != PST_OK:
                    raise file_error(status, pst_stack_detail(self.s), self.names, "a stack")
                result = []
                for i in range(len(self.schema.state_codecs)):
                    codec = self.schema.state_codecs[i]
                    result.append(codec.decode(&record.cells[i])
                                  if record.present >> i & 1 else None)
                return result
            finally:
                self.end()
        finally:
            free(record)

    def plan(self, list keys not None, uint64_t gap, uint64_t most):
        """Which parts of the files `look_up` may read of blocks: (file's number, offset, size).

        Those of a file ascend; those no more than `gap` bytes apart are one, of at most `most`
        bytes. Entries of the guides are read for it. Filters are not among them.
        """
        cdef pst_array columns[PST_MAX_KEYS_]
        cdef pst_detail detail
        cdef pst_wanted_keys wanted
        cdef list parts = []
        cdef pst_plan_sink sink = pst_plan_sink(plan_part, <void *> parts, gap, most)
        cdef pst_status status
        self.ready()
        keys = list(keys)
        fill_wanted(&wanted, columns, keys, 0)
        self.begin()
        try:
            with nogil:
                status = pst_stack_plan(self.s, &wanted, &sink, &detail)
        finally:
            self.end()
        check_limit(status, self.budget, "keys that are looked up")
        if status in (PST_IO, PST_CORRUPT):
            raise file_error(status, &detail, self.names, "a stack")
        check(status, NULL, "keys that are looked up", self.schema)
        return parts

    def look_up(self, list keys not None, out not None, str kind not None, bytes id not None,
                uint64_t epoch, uint64_t most_bytes=0):
        """Write what the files say of some keys into `out`, as a file of these keys; its info tuple.

        `keys` are references to arrays, one for each column of the key; without the namespace's, of
        all namespaces. `kind` is "base" where no older files have anything of them. Where the keys
        have more than `most_bytes` nothing is written, and returned is how many to ask for.
        """
        cdef pst_array columns[PST_MAX_KEYS_]
        cdef pst_wanted_keys wanted
        cdef pst_file_info info
        cdef pst_detail detail
        cdef _Io io = _Io(out, -1, "rows that were looked up", self.budget)
        cdef pst_status status
        self.ready()
        keys = list(keys)
        fill_wanted(&wanted, columns, keys, most_bytes)
        memset(&info, 0, sizeof(info))
        memset(&detail, 0xFF, sizeof(detail))
        info.kind = PST_BASE if kind == "base" else PST_DELTA
        fill_lineage(&info.lineage, id, bytes(16), epoch, 0)
        io.c.compress = NULL
        self.begin()
        try:
            with nogil:
                status = pst_stack_lookup(self.s, &wanted, &io.c, &info, &detail)
        finally:
            self.end()
        if status == PST_NO_ROOM:
            return detail.row
        if status == PST_CALLBACK:
            io.reraise()
        check_limit(status, self.budget, io.name)
        if status in (PST_IO, PST_CORRUPT):
            raise file_error(status, &detail, self.names, "a stack")
        check(status, NULL, io.name, self.schema)
        return info_tuple(&info)

    def stats(self):
        """Return what was read, in the order of ``pst_stack_stats``."""
        cdef pst_stack_stats s
        self.ready()
        pst_stack_get_stats(self.s, &s)
        return (s.keys, s.asked, s.lies, s.absent, s.reads, s.bytes, s.blocks, s.filters,
                s.guide_bytes, s.private_bytes, s.guides_made, s.direct)


# ---- again and again -----------------------------------------------------------------------------

cdef class Blocks:
    """Blocks of files that look-ups have read, of at most so many bytes, for those that follow.

    Any thread of the process that made it.
    """

    cdef pst_blocks *b
    cdef unsigned long fork

    def __cinit__(self, uint64_t most_bytes, Budget budget=None):
        self.fork = fork_generation
        status = pst_blocks_create(most_bytes, budget_of(budget), &self.b)
        check_limit(status, budget, "blocks that are kept")
        check(status, NULL, "blocks that are kept", None)

    def __dealloc__(self):
        # A thread of the parent may have had the lock.
        if self.fork == fork_generation:
            pst_blocks_release(self.b)

    def stats(self):
        """Blocks that were wanted, found, are here, their bytes, and blocks that made way."""
        cdef pst_blocks_stats s
        if self.fork != fork_generation:
            raise errors.ClosedError("the blocks are of another process")
        pst_blocks_get_stats(self.b, &s)
        return (s.asked, s.found, s.blocks, s.bytes, s.left)


cdef class Finder:
    """The files of ranges of key groups as of one epoch, in which any thread looks keys up.

    `ranges` are (stack, first key group, last one), which ascend; the stacks are its own from now on.
    """

    cdef pst_finder *f
    cdef unsigned long fork
    cdef Budget budget
    cdef readonly tuple names

    def __init__(self, list ranges not None, Blocks blocks not None, Budget budget=None):
        cdef pst_stack **stacks
        cdef int32_t *bounds
        cdef pst_status status
        cdef Stack stack
        cdef int32_t i, n
        cdef list names = []
        once(self.names is not None, "a finder")
        if blocks.fork != fork_generation:
            raise errors.ClosedError("the blocks are of another process")
        ranges = [(stack_, <int32_t> first, <int32_t> last) for stack_, first, last in ranges]
        n = <int32_t> len(ranges)
        stacks = <pst_stack **> calloc(<size_t> n + 1, sizeof(pst_stack *))
        bounds = <int32_t *> calloc(2 * <size_t> n + 2, sizeof(int32_t))
        try:
            if stacks is NULL or bounds is NULL:
                raise MemoryError
            for i in range(n):
                stack = <Stack?> ranges[i][0]
                stack.ready()
                stacks[i] = stack.s
                bounds[2 * i], bounds[2 * i + 1] = ranges[i][1], ranges[i][2]
                names += stack.names
            status = pst_finder_create(stacks, bounds, n, blocks.b, budget_of(budget), &self.f)
        finally:
            free(stacks)
            free(bounds)
        check(status, NULL, "the files of an epoch", None)
        self.fork = fork_generation
        self.budget = budget
        self.names = tuple(names)

    def __dealloc__(self):
        if self.f is not NULL and self.fork == fork_generation:
            pst_finder_destroy(self.f)

    def find(self, list keys not None, uint64_t states=0, Expiry expiry=None,
             uint64_t part_bytes=0, bint at_hand=False):
        """The rows of keys: blocks as `gather` gives them, and which rows each key has.

        `keys` are references to arrays, one for each column of the key; without the namespace's, of
        all namespaces. `states` has a bit for each of the files that is wanted; 0: all. What rows each key has is in bytes: two numbers of 64 bits, its first row or
        -1, and how many. With `expiry`, whose columns are the files', there is only what a reader
        sees. `part_bytes` is said of keys before rows are made of it; 0: as usual.
        None if keys are to be `at_hand`, and a disk would have to be waited for, or much be read.
        """
        cdef pst_array columns[PST_MAX_KEYS_]
        cdef pst_wanted_keys wanted
        cdef pst_detail detail
        cdef pst_status status
        cdef const pst_expiry *hidden = NULL if expiry is None else &expiry.c
        cdef _Io io = _Io(None, -1, "rows that were looked up", self.budget)
        cdef bytes rows
        cdef int64_t *numbers
        if self.f is NULL or self.fork != fork_generation:
            raise errors.ClosedError("the files are not open, or of another process")
        keys = list(keys)
        fill_wanted(&wanted, columns, keys, part_bytes)
        wanted.states = states
        wanted.at_hand = at_hand
        rows = PyBytes_FromStringAndSize(
            NULL, 16 * <Py_ssize_t> columns[0].length if keys else 0)
        numbers = <int64_t *> PyBytes_AS_STRING(rows)
        memset(&detail, 0xFF, sizeof(detail))
        io.blocks = []
        io.c.block = io_block
        # Any threads at a time: it lives as long as any of them has it.
        with nogil:
            status = pst_finder_find(self.f, &wanted, hidden, &io.c, numbers, &detail)
        if status == PST_NOT_HERE:
            return None
        if status != PST_OK:
            if status == PST_CALLBACK:
                io.reraise()
            check_limit(status, self.budget, io.name)
            if status in (PST_IO, PST_CORRUPT) and detail.row >= 0:
                raise file_error(status, &detail, self.names, "files of an epoch")
            check(status, NULL, io.name, None)
        return io.blocks, rows
