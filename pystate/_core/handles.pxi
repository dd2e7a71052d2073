# Batches of keys, and the scalar handle of one state.

cdef Py_ssize_t row_number(i) except? -1:
    if type(i) is not int:
        try:
            return i
        except TypeError:
            raise errors.InvalidArgumentError(
                f"select(i) takes the number of a row in the key batch, not {i!r:.80}; a key of its "
                "own is made current by set_current_key of the backend or store") from None
    return i


@cython.no_gc_clear
cdef class Walk:
    """A scan of all rows, or of those touched in the open epoch. As long as there is a scan of all
    rows, sealing leaves each in its slot, so that the scan meets it once."""

    cdef Table table
    cdef bint changed
    cdef uint64_t cursor
    cdef unsigned long epochs
    cdef unsigned long returns

    def __cinit__(self):
        self.table = NO_TABLE

    def __init__(self, Table table not None, bint changed):
        once(self.table is not NO_TABLE, "a walk")
        table.ready()
        self.changed = changed
        self.epochs = table.epochs
        self.returns = table.returns
        self.table = table
        table.walks += not changed

    def __dealloc__(self):
        if self.table is not NO_TABLE:
            self.table.walks -= not self.changed

    cdef int check(self, Table table) except -1:
        if self.table is not table:
            raise errors.InvalidArgumentError(f"{table.where}: the walk is another table's")
        if self.changed and self.epochs != table.epochs:
            raise errors.StaleKeyBatchError(
                f"{table.where}: the epoch whose keys these are was sealed or rolled back while "
                "they were gone over; begin again")
        if self.returns != table.returns:
            raise errors.StaleKeyBatchError(
                f"{table.where}: while its rows were gone over the table was detached, or taken "
                "back to a sealed epoch; begin again")
        return 0


@cython.no_gc_clear  # the table outlives the batch
cdef class Batch(_Dependent):
    """The rows of a list of keys, looked up once. Valid until the next seal or roll back."""

    cdef object __weakref__
    cdef pst_batch *b
    cdef list columns
    cdef unsigned long epoch
    cdef bint closed
    cdef bint fetched          # the rows of its keys are in the table, or nowhere
    cdef bint roomy            # and there is room to write to them

    def __cinit__(self):
        self.table = NO_TABLE

    def __init__(self, Table table not None, list columns):
        """Look up the keys; with None for columns, `take_rows` has to follow."""
        cdef pst_array arrays[PST_MAX_KEYS_]
        cdef int32_t i
        cdef pst_status status
        cdef ArrayRef column
        once(self.table is not NO_TABLE, "a key batch")
        table.ready()
        self.table = table
        self.epoch = table.epochs
        if columns is None:
            return
        columns = list(columns)
        if check_columns(columns) != len(table.schema.key_codecs):
            raise errors.InvalidArgumentError(
                f"{table.where}: the key has {len(table.schema.key_codecs)} columns, "
                f"got {len(columns)}")
        for i in range(len(columns)):
            column = <ArrayRef?> columns[i]
            arrays[i] = column.c
        self.columns = columns
        table.begin()
        try:
            with nogil:
                status = pst_batch_create(table.t, arrays, &self.b)
        finally:
            table.end()
        table.check(status)
        self.link()

    def take_rows(self, Walk walk not None, int64_t most):
        """Take the next rows of a walk; False at its end."""
        cdef pst_status status
        cdef Table table = self.table
        cdef uint64_t cursor = walk.cursor
        cdef bint changed = walk.changed
        table.begin()
        try:
            walk.check(table)
            if self.b is not NULL:
                raise errors.InvalidArgumentError("a batch is made once")
            with nogil:
                if changed:
                    status = pst_batch_changed(table.t, &cursor, most, &self.b)
                else:
                    status = pst_batch_all(table.t, &cursor, most, &self.b)
        finally:
            table.end()
        if status == PST_NOT_FOUND:
            return False
        table.check(status)
        walk.cursor = cursor
        self.epoch = table.epochs
        self.link()
        return True

    def take_hottest(self, int64_t most):
        """Take the rows that were used most; False if the table has none in memory."""
        cdef pst_status status
        cdef Table table = self.table
        table.begin()
        try:
            if self.b is not NULL:
                raise errors.InvalidArgumentError("a batch is made once")
            with nogil:
                status = pst_batch_hottest(table.t, most, &self.b)
        finally:
            table.end()
        if status == PST_NOT_FOUND:
            return False
        table.check(status)
        self.epoch = table.epochs
        self.link()
        return True

    def bring_if_fits(self):
        """Bring the rows of its keys into the table; False if no other ones may leave for them, and
        they do not fit."""
        cdef uint64_t absent = 0
        cdef pst_status status
        self.table.ready()
        if self.b is NULL or self.epoch != self.table.epochs:
            self.renew()
        self.table.hold()
        try:
            with nogil:
                status = pst_batch_fetch(self.b, False, &absent)
        finally:
            self.table.end()
        if status == PST_NO_ROOM:
            return False
        self.table.check_fetched(status)
        return True

    def keep_keys(self, list columns not None):
        """Keep the keys of a batch of rows, so that it stays valid where rows leave."""
        columns = list(columns)
        if self.columns is None and check_columns(columns) == len(self.table.schema.key_codecs):
            for column in columns:
                if (<ArrayRef?> column).c.length != len(self):
                    raise errors.InvalidArgumentError("there is not a key for each row")
            self.columns = columns
            self.roomy = False

    def __dealloc__(self):
        self.unlink()
        # In a forked child the memory is left alone: it goes with the process.
        if self.b is not NULL and self.table.fork == fork_generation:
            pst_batch_destroy(self.b)

    def __len__(self):
        if self.b is NULL:
            self.table.ready()
            self.renew()
        return pst_batch_length(self.b)

    def close(self):
        """Free the batch early. Does nothing the second time."""
        if self.b is not NULL and self.table.fork == fork_generation:
            if self.table.state == BUSY:
                self.table.refuse()
            if self.table.current_batch is self:
                self.table.forget_key()
            self.release()
        self.closed = True

    cdef void release(self) noexcept:
        self.unlink()
        pst_batch_destroy(self.b)
        self.b = NULL

    cdef int refuse(self) except -1:
        self.table.ready()
        if self.epoch != self.table.epochs:
            raise make_error(PST_STALE, NULL, self.table.where, None)
        raise errors.ClosedError(f"{self.table.where}: the key batch was closed")

    cdef int ready(self) except -1:
        self.ready_keys()
        if not self.roomy and self.table.on_no_room is not None:
            self.fetch(False)
        return 0

    cdef int ready_keys(self) except -1:
        """As `ready`, but the rows of the keys may lie below."""
        self.table.ready()
        if self.b is NULL or self.epoch != self.table.epochs:
            self.renew()
        return 0

    cdef int renew(self) except -1:
        """Make it again of its keys, if its epoch only began anew."""
        cdef pst_array arrays[PST_MAX_KEYS_]
        cdef pst_batch *made = NULL
        cdef ArrayRef column
        cdef pst_status status
        cdef int32_t i
        if self.closed or self.columns is None or self.epoch < self.table.ended:
            self.refuse()
        if self.b is not NULL and self.epoch == self.table.epochs:
            return 0
        for i in range(len(self.columns)):
            column = <ArrayRef> self.columns[i]
            arrays[i] = column.c
        self.table.hold()
        try:
            with nogil:
                status = pst_batch_create(self.table.t, arrays, &made)
        finally:
            self.table.end()
        self.table.check(status)
        if self.b is NULL:
            self.link()  # it was unlinked when its table was emptied
        pst_batch_destroy(self.b)
        self.b = made
        self.epoch = self.table.epochs
        self.fetched = self.roomy = False
        return 0

    cdef int fetch(self, bint reading) except -1:
        """Bring the rows of its keys into the table, and unless they are only read see to it that
        there is room to write."""
        cdef Table table = self.table
        cdef int64_t fits = 0
        cdef uint64_t wanted = 0
        cdef bint may = not table.making_room and self.columns is not None, made = True
        cdef bint placed = False
        cdef int tried = 0
        cdef pst_status status
        # Where nothing lies below, and all of them could come, none is looked for before its use.
        if pst_table_is_whole(table.t) and (
                reading or may and table.has_room(<uint64_t> pst_batch_length(self.b))):
            self.fetched = True
            self.roomy = not reading
            return 0
        while True:
            status = self.bring_rows(self.b, reading, may and not tried, 0, &fits, &wanted, &placed)
            if status == PST_OK:
                break
            if status == PST_NO_STACK:
                self.renew()
            elif may and tried < 2:
                made = table.make_room(wanted, tried == 1)
                tried = tried + 1 if made else 2
                self.renew()
            else:
                table.no_room(fits, made)
        self.fetched = True
        self.roomy = not reading
        return 0

    cdef pst_status bring_rows(self, pst_batch *b, bint reading, bint well, uint64_t size,
                               int64_t *fits, uint64_t *wanted, bint *placed) except *:
        """Bring the rows of a batch of its keys into the table.

        PST_NO_STACK: the files were seen to (once: `placed`), and the batch is to be made anew.
        PST_NO_ROOM: about so many of the first ones fit, and room for so many rows is wanted; with
        `well` also where there is little room to write so many bytes.
        """
        cdef Table table = self.table
        cdef int64_t n = pst_batch_length(b)
        cdef uint64_t absent = 0, found = 0
        cdef pst_room leave
        cdef pst_status status
        table.hold()
        try:
            with nogil:
                status = pst_batch_fetch(b, reading, &absent)
        finally:
            table.end()
        if status != PST_OK and not placed[0] and table.find_files(status):
            placed[0] = True
            return PST_NO_STACK
        if status == PST_NO_ROOM:
            fits[0], wanted[0] = pst_table_detail(table.t).row, <uint64_t> n
            return status
        table.check_fetched(status)
        if reading:
            return status
        wanted[0] = table.wanted_room(absent + absent // 8, <uint64_t> n - absent)
        if well:
            wanted[0] = max(wanted[0], table.room_for(0, size))
        table.check(pst_table_room(table.t, wanted[0], &found, &leave))
        if found >= (wanted[0] if well else absent):
            return status
        fits[0] = <int64_t> (found * <uint64_t> n // max(absent, <uint64_t> 1))
        return PST_NO_ROOM

    cdef pst_batch *part(self, int64_t at, int64_t n) except NULL:
        """A batch of n of its keys, from one on; all of them are its own."""
        cdef pst_array arrays[PST_MAX_KEYS_]
        cdef pst_batch *made = NULL
        cdef pst_status status
        cdef ArrayRef column
        cdef int32_t i
        self.ready_keys()
        if at == 0 and n == pst_batch_length(self.b):
            return self.b
        for i in range(len(self.columns)):
            column = <ArrayRef> self.columns[i]
            arrays[i] = column.c
            arrays[i].offset += at
            arrays[i].length = n
        self.table.hold()
        try:
            with nogil:
                status = pst_batch_create(self.table.t, arrays, &made)
        finally:
            self.table.end()
        self.table.check(status)
        return made

    cdef pst_status write(self, Write *w) except *:
        """Write to all keys; in parts, between which room is made, where their rows do not fit in
        memory together."""
        cdef pst_status status
        self.ready_keys()
        w.all = pst_batch_length(self.b)
        cdef int64_t again = w.all
        if self.table.may_step and self.columns is not None and w.all \
                and not self.table.making_room and is_cut(w):
            return self.write_in_parts(w)
        self.begin()
        try:
            with nogil:
                status = write_part(w, self.b, 0, w.offsets)
                # Nobody can make room, and what was cleared already takes none.
                while status == PST_NO_ROOM and w.kind >= WRITE_CLEAR and again:
                    again -= 1
                    status = write_part(w, self.b, 0, w.offsets)
        finally:
            self.end()
        return self.table.check_room(status, w.column, bytes_of(w, 0, w.all), is_repeatable(w))

    cdef pst_status write_in_parts(self, Write *w) except *:
        cdef Table table = self.table
        cdef pst_batch *b = NULL
        cdef pst_status status = PST_OK
        cdef int64_t at = 0, n = w.all, fits, done
        cdef uint64_t wanted = 0, size
        cdef bint began = False, placed = False
        cdef int tried = 0
        cdef int32_t *rest = NULL      # where items are, once some of a key's were appended
        cdef const int32_t *offsets = w.offsets
        try:
            while at < w.all:
                b = self.part(at, n)
                fits = done = 0
                size = bytes_of(w, at, n)
                # An earlier operation has seen to it that there is room for small values.
                if b is self.b and (self.roomy or (self.fetched and w.kind >= WRITE_CLEAR)) \
                        and size <= SMALL * <uint64_t> n:
                    status = PST_OK
                else:
                    status = self.bring_rows(b, w.kind >= WRITE_CLEAR, not tried, size, &fits,
                                             &wanted, &placed)
                if status == PST_OK and b is self.b:
                    self.fetched = True
                    self.roomy |= w.kind < WRITE_CLEAR
                if status == PST_OK:
                    table.hold()
                    try:
                        with nogil:
                            status = write_part(w, b, at, offsets)
                    finally:
                        table.end()
                    if status == PST_OK:
                        done = n
                        if w.kind == WRITE_LISTS:
                            offsets += n
                    elif status == PST_NO_ROOM:
                        done = pst_table_detail(table.t).row
                        wanted = table.room_for(n - done, bytes_of(w, at + done, n - done))
                        if w.kind == WRITE_LISTS:
                            if pst_table_detail(table.t).offset > offsets[done]:
                                tried, began = 0, True
                            rest = cut_offsets(w, rest, at + done,
                                               pst_table_detail(table.t).offset)
                            offsets = rest
                    else:
                        if began and not is_repeatable(w):
                            pst_table_spoil(table.t)
                        if pst_table_detail(table.t).row >= 0:
                            (<pst_detail *> pst_table_detail(table.t)).row += at
                        break
                self.drop_part(b)
                b = NULL
                if done:
                    tried, began, placed = 0, True, False
                    at += done
                    n = w.all - at
                elif status == PST_NO_ROOM and tried and n > 1:
                    # What came for the others takes the room.
                    n = fits if 0 < fits < n else n // 4 + 1 if n > 2 else 1
                if status == PST_NO_ROOM:
                    self.room_or_raise(w, at, n, wanted, &tried)
        except BaseException:
            if began and table.state == USABLE and not is_repeatable(w):
                pst_table_spoil(table.t)
            raise
        finally:
            self.drop_part(b)
            free(rest)
        return status

    cdef int room_or_raise(self, Write *w, int64_t at, int64_t n, uint64_t wanted,
                           int *tried) except -1:
        """Make room for the next part of a write. A single key has all that there is."""
        cdef Table table = self.table
        cdef bint fully = tried[0] and n == 1
        if tried[0] == 2:
            table.too_little(w.column, w.all, bytes_of(w, at, 1), at, True)
        made = table.make_room(wanted, fully)
        if not made and n == 1:
            table.too_little(w.column, w.all, bytes_of(w, at, 1), at, fully)
        tried[0] = 2 if fully else 1
        return 0

    cdef void drop_part(self, pst_batch *b) noexcept:
        if b is not self.b:
            pst_batch_destroy(b)

    cdef int begin(self) except -1:
        self.ready()
        self.table.hold()
        return 0

    cdef void end(self) noexcept:
        self.table.end()

    cdef int begin_reading(self) except -1:
        """Begin an operation that makes no row."""
        self.ready_keys()
        if not self.fetched and self.table.on_no_room is not None:
            self.fetch(True)
        self.table.hold()
        return 0

    cdef int begin_of(self, Table table) except -1:
        """Begin an operation of one of a table's handles."""
        self.check_of(table)
        return self.begin()

    cdef int begin_reading_of(self, Table table) except -1:
        self.check_of(table)
        return self.begin_reading()

    cdef int check_of(self, Table table) except -1:
        if self.table is not table:
            raise errors.InvalidArgumentError(
                f"{table.where}: the key batch belongs to another table")
        return 0

    def check(self):
        """Raise what an operation would that writes to all keys, and do what comes before it: their
        rows are in memory then."""
        self.ready()

    def check_valid(self):
        """Raise what an operation on a stale or closed batch would."""
        self.ready_keys()

    def bring(self):
        """Bring the rows of the keys into memory, to be read."""
        self.begin_reading()
        self.end()

    @property
    def is_cut(self):
        """Whether it can be made again of a part of its keys."""
        return self.columns is not None

    def key_at(self, Py_ssize_t i):
        """Return key `i` as a Python value; made by the subclass that knows the arrays."""
        raise NotImplementedError

    def namespace_at(self, Py_ssize_t i):
        """Return the namespace of row `i` in normal form; as `key_at`."""
        raise NotImplementedError

    @cython.binding(False)
    def select(self, i):
        """Make the key of row `i` current."""
        self.select_row(row_number(i))

    cdef int select_row(self, Py_ssize_t at) except -1:
        cdef pst_status status
        self.ready()
        if not 0 <= at < pst_batch_length(self.b):
            raise errors.InvalidArgumentError(
                f"there is no row {at} in a key batch of {pst_batch_length(self.b)}")
        status = pst_key_set_row(self.table.t, self.b, at)
        return self.table.select(self, at, status)

    def first(self, size_t first):
        """Fill `first`, 32-bit, with the first row that has the same key, for each row."""
        cdef pst_status status
        self.ready_keys()
        self.table.hold()
        try:
            with nogil:
                status = pst_batch_first(self.b, <int32_t *> first)
        finally:
            self.end()
        self.table.check(status)

    def get(self, int32_t column, size_t values, size_t valid):
        """Copy a fixed-width column to `values`, a byte of validity each to `valid`."""
        cdef pst_status status
        self.begin_reading()
        try:
            with nogil:
                status = pst_batch_get(self.b, column, <void *> values, <uint8_t *> valid)
        finally:
            self.end()
        self.table.check(status)

    def get_bytes(self, int32_t column, size_t offsets, size_t valid):
        """Copy a column of variable width: fills offsets and validity, returns the bytes."""
        cdef pst_status status
        cdef pst_bytes_out out = sized(offsets, valid)
        cdef Memory data = Memory.__new__(Memory)
        self.begin_reading()
        try:
            with nogil:
                status = pst_batch_get_bytes(self.b, column, &out)
                if status == PST_OK:
                    status = data.take_for(&out, pst_batch_length(self.b))
                if status == PST_OK and out.capacity:
                    status = pst_batch_get_bytes(self.b, column, &out)
        finally:
            self.end()
        self.table.check(status)
        return data

    def get_key(self, int32_t column, size_t values, size_t valid):
        """Copy a key column of a batch of rows, as `get` does."""
        cdef pst_status status
        self.begin()
        try:
            with nogil:
                status = pst_batch_get_key(self.b, column, <void *> values, <uint8_t *> valid)
        finally:
            self.end()
        self.table.check(status)

    def get_key_bytes(self, int32_t column, size_t offsets, size_t valid):
        """Copy a key column of variable width, as `get_bytes` does."""
        cdef pst_status status
        cdef pst_bytes_out out = sized(offsets, valid)
        cdef Memory data = Memory.__new__(Memory)
        self.begin()
        try:
            with nogil:
                status = pst_batch_get_key_bytes(self.b, column, &out)
                if status == PST_OK:
                    status = data.take_for(&out, pst_batch_length(self.b))
                if status == PST_OK and out.capacity:
                    status = pst_batch_get_key_bytes(self.b, column, &out)
        finally:
            self.end()
        self.table.check(status)
        return data

    def put(self, int32_t column, ArrayRef values not None):
        """Store a value per key."""
        cdef Write w = write_of(WRITE_VALUES, column, &values.c)
        self.check_length(values)
        self.table.check(self.write(&w))

    def apply(self, int32_t column, int op, ArrayRef values not None):
        """Add (1), or take the minimum (2) or maximum (3), per key."""
        cdef pst_step step
        step.column, step.op, step.values = column, <pst_op> op, values.c
        self.check_length(values)
        self.run_steps(1, &step, 0, 0)

    cdef int run_steps(self, int32_t n, const pst_step *steps, size_t fresh,
                       size_t refused) except -1:
        cdef Write w
        memset(&w, 0, sizeof(w))
        w.kind, w.column, w.n_steps, w.steps = WRITE_STEPS, steps[0].column, n, steps
        w.fresh, w.refused = <uint8_t *> fresh, <uint8_t *> refused
        return self.table.check(self.write(&w))

    def apply_all(self, list steps, size_t fresh=0, size_t refused=0):
        """Several steps (column, 1 to 3 as for `apply`, values) with one visit to each row; `fresh`
        becomes 1 per key to whose row the first step gave its first value, else 0. With `refused` a
        row whose sum would overflow takes no step, and its byte becomes 1 + the sum's column."""
        cdef pst_step found[PST_MAX_STATES_]
        cdef list operands = []
        cdef ArrayRef values
        cdef int32_t n, i
        for column, op, given in list(steps):
            if len(operands) == PST_MAX_STATES:
                raise errors.InvalidArgumentError(f"{len(steps)} steps at once")
            i = <int32_t> len(operands)
            found[i].column = column
            found[i].op = <pst_op> <int> op
            operands.append(<ArrayRef?> given)
        n = <int32_t> len(operands)
        # From here on no Python code runs, which might change an operand.
        for i in range(n):
            values = <ArrayRef> operands[i]
            self.check_length(values)
            found[i].values = values.c
        self.run_steps(n, found, fresh, refused)

    def get_all(self, list columns):
        """Copy columns of fixed width, (column, values, valid) as for `get`, with one visit to each
        row."""
        cdef pst_get found[PST_MAX_STATES_]
        cdef pst_status status
        cdef int32_t n = 0
        for column, values, valid in list(columns):
            if n == PST_MAX_STATES:
                raise errors.InvalidArgumentError(f"{len(columns)} columns at once")
            found[n].column = column
            found[n].values = <void *> <size_t> values
            found[n].valid = <uint8_t *> <size_t> valid
            n += 1
        self.begin_reading()
        try:
            with nogil:
                status = pst_batch_get_all(self.b, n, found)
        finally:
            self.end()
        self.table.check(status)

    def clear(self, int32_t column):
        """Clear a column of every key, or with -1 delete the keys."""
        cdef Write w
        memset(&w, 0, sizeof(w))
        w.kind, w.column = WRITE_CLEAR, column
        self.table.check(self.write(&w))

    cdef int check_length(self, ArrayRef values) except -1:
        self.ready_keys()
        if values.c.length != 1 and values.c.length != pst_batch_length(self.b):
            raise errors.InvalidArgumentError(
                f"{values.c.length} values for {pst_batch_length(self.b)} keys")
        return 0


cdef Batch NO_BATCH = Batch.__new__(Batch)


cdef object as_batch(object keys):
    return <Batch?> keys


cdef int select_row(object keys, Py_ssize_t row) except -1:
    return (<Batch> keys).select_row(row)


cdef class ScalarHandle:
    """One state of the current key."""

    cdef readonly Table table
    cdef readonly int column
    cdef readonly object default
    cdef readonly Codec codec
    cdef bint is_long

    def __cinit__(self):
        self.table = NO_TABLE
        self.codec = NO_CODEC

    def __init__(self, Table table not None, int column, Codec codec not None, default):
        once(self.table is not NO_TABLE, "a handle")
        self.table = table
        self.column = column
        self.codec = codec
        self.default = default
        self.is_long = codec.is_int

    def __reduce__(self):
        raise errors.DeclarationError(
            f"state {self.codec.name!r}: a handle belongs to its table and cannot be pickled or "
            "copied")

    @cython.binding(False)
    def value(self):
        """Return the current key's value, or the default."""
        return self.read()

    cdef object read(self):
        cdef pst_cell cell
        cdef Table table = self.table
        cdef pst_status status
        table.ready()
        if not table.has_key:
            table.need_key(self.codec)
        status = pst_value_get(table.t, self.column, &cell)
        if status == PST_OK:
            if self.is_long:
                return PyLong_FromLongLong(<long long> cell.word[0])
            return self.codec.decode(&cell)
        if status == PST_NOT_FOUND:
            return self.default
        table.check(status)

    @cython.binding(False)
    def update(self, value):
        """Store a value under the current key; None clears."""
        self.write(value)

    cdef int write(self, value) except -1:
        cdef pst_cell cell
        cdef Table table = self.table
        cdef int overflow = 0
        cdef long long number
        cdef unsigned long turn
        table.ready()
        if not table.has_key:
            table.need_key(self.codec)
        if self.is_long and PyLong_CheckExact(value):
            number = PyLong_AsLongLongAndOverflow(value, &overflow)
            if overflow or number < self.codec.least or number > self.codec.most:
                raise self.codec.too_large(value)
            cell.word[0] = <uint64_t> number
            cell.word[1] = 0
            self.put_cell(&cell, 8)
        elif value is None:
            self.clear()
        else:
            turn = table.turn
            owner = self.codec.encode(value, &cell)
            table.ready_for(turn, self.codec)
            self.put_cell(&cell, cell_size(self.codec, &cell))
        return 0

    cdef int put_cell(self, const pst_cell *cell, uint64_t size) except -1:
        cdef Table table = self.table
        cdef pst_status status = pst_value_put(table.t, self.column, cell)
        cdef int tried = 0
        while status == PST_NO_ROOM and table.makes_room(self.column, size, &tried):
            status = pst_value_put(table.t, self.column, cell)
        return table.check(status)

    @cython.binding(False)
    def reduce(self, value, step):
        """Store ``step(old, value)`` under the current key, or the value where there is none.

        Returns False, and has stored nothing, where that made None.
        """
        cdef pst_cell cell
        cdef Table table = self.table
        cdef pst_status status
        cdef unsigned long turn
        table.ready()
        if not table.has_key:
            table.need_key(self.codec)
        turn = table.turn
        status = pst_value_get(table.t, self.column, &cell)
        if status == PST_OK:
            old = self.codec.decode(&cell)
            value = step(old, self.codec.normalize(value))
            if value is None:
                return False
        elif status != PST_NOT_FOUND:
            table.check(status)
        owner = self.codec.encode(value, &cell)
        table.ready_for(turn, self.codec)
        self.put_cell(&cell, cell_size(self.codec, &cell))
        return True

    @cython.binding(False)
    def clear(self):
        """Clear the current key's value."""
        cdef Table table = self.table
        table.ready()
        if not table.has_key:
            table.need_key(self.codec)
        cdef pst_status status = pst_value_clear(table.t, self.column)
        if status != PST_NOT_FOUND:
            table.check(status)


cdef object as_scalar_handle(object handle):
    return <ScalarHandle?> handle


cdef object read_value(object handle):
    return (<ScalarHandle> handle).read()


cdef int write_value(object handle, object value) except -1:
    return (<ScalarHandle> handle).write(value)
