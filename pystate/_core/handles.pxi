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

    def bring(self):
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
                status = pst_batch_fetch(self.b, &absent)
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
            self.fetched = False  # there may have to be room to write

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
        self.table.ready()
        if self.b is NULL or self.epoch != self.table.epochs:
            self.renew()
        if not self.fetched and self.table.on_no_room is not None:
            self.fetch()
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
        self.fetched = False
        return 0

    cdef int fetch(self) except -1:
        """Bring the rows of its keys into the table, and see to it that there is room to write."""
        cdef Table table = self.table
        cdef uint64_t n = <uint64_t> pst_batch_length(self.b)
        cdef uint64_t fits = 0, absent = 0, wanted
        cdef pst_room leave
        cdef pst_status status
        cdef bint may = not table.making_room and self.columns is not None, made = True
        cdef bint placed = False
        cdef int tried = 0
        # Where nothing lies below, and all of them could come, none is looked for before its use.
        if pst_table_is_whole(table.t) and (not may or table.has_room(n)):
            self.fetched = True
            return 0
        while True:
            table.hold()
            try:
                with nogil:
                    status = pst_batch_fetch(self.b, &absent)
            finally:
                table.end()
            if status != PST_OK and not placed and table.find_files(status):
                placed = True
                self.renew()
                continue
            if status == PST_NO_ROOM:
                wanted = n
            else:
                table.check_fetched(status)
                wanted = table.wanted_room(absent + absent // 8, n - absent)
                table.check(pst_table_room(table.t, wanted, &fits, &leave))
                if not may or fits >= (absent if tried else wanted):
                    break
            if may and tried < 2:
                made = table.make_room(wanted, tried == 1)
                tried = tried + 1 if made else 2
                self.renew()
            elif status == PST_NO_ROOM:
                table.no_room(pst_table_detail(table.t).row, made)
            else:
                table.no_room(<int64_t> (fits * n // absent), made)
        self.fetched = True
        return 0

    cdef int begin(self) except -1:
        self.ready()
        self.table.hold()
        return 0

    cdef int begin_read(self) except -1:
        """As `begin`, of an operation that changes nothing: where all keys could come it looks for
        them as it goes, and what fails then may be done once more; see `again`."""
        self.table.ready()
        if self.b is NULL or self.epoch != self.table.epochs:
            self.renew()
        if not self.fetched and self.table.on_no_room is not None and not self.table.has_room(
                <uint64_t> pst_batch_length(self.b)):
            self.fetch()
        self.table.hold()
        return 0

    cdef bint again(self, pst_status status) except -1:
        """Whether the read that has ended is to be done again, as its keys were not fetched."""
        if self.fetched or self.table.on_no_room is None:
            return False
        if status == PST_OK:
            self.fetched = True
            return False
        self.ready()
        return True

    cdef void end(self) noexcept:
        self.table.end()

    cdef int begin_of(self, Table table) except -1:
        """Begin an operation of one of a table's handles."""
        if self.table is not table:
            raise errors.InvalidArgumentError(
                f"{table.where}: the key batch belongs to another table")
        return self.begin()

    def check(self):
        """Raise what an operation on a stale or closed batch would."""
        self.ready()

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
        self.begin()
        try:
            with nogil:
                status = pst_batch_first(self.b, <int32_t *> first)
        finally:
            self.end()
        self.table.check(status)

    def get(self, int32_t column, size_t values, size_t valid):
        """Copy a fixed-width column to `values`, a byte of validity each to `valid`."""
        cdef pst_status status
        while True:
            self.begin_read()
            try:
                with nogil:
                    status = pst_batch_get(self.b, column, <void *> values, <uint8_t *> valid)
            finally:
                self.end()
            if not self.again(status):
                break
        self.table.check(status)

    def get_bytes(self, int32_t column, size_t offsets, size_t valid):
        """Copy a column of variable width: fills offsets and validity, returns the bytes."""
        cdef pst_status status
        cdef pst_bytes_out out = sized(offsets, valid)
        cdef Memory data = Memory.__new__(Memory)
        self.begin()
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
        cdef pst_status status
        self.check_length(values)
        self.begin()
        try:
            with nogil:
                status = pst_batch_put(self.b, column, &values.c)
        finally:
            self.end()
        self.table.check(status)

    def apply(self, int32_t column, int op, ArrayRef values not None):
        """Add (1), or take the minimum (2) or maximum (3), per key."""
        cdef pst_status status
        self.check_length(values)
        self.begin()
        try:
            with nogil:
                status = pst_batch_apply(self.b, column, <pst_op> op, &values.c)
        finally:
            self.end()
        self.table.check(status)

    def apply_all(self, list steps, size_t fresh=0, size_t refused=0):
        """Several steps (column, 1 to 3 as for `apply`, values) with one visit to each row; `fresh`
        becomes 1 per key to whose row the first step gave its first value, else 0. With `refused` a
        row whose sum would overflow takes no step, and its byte becomes 1 + the sum's column."""
        cdef pst_step found[PST_MAX_STATES_]
        cdef list operands = []
        cdef pst_status status
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
        self.begin()
        try:
            with nogil:
                status = pst_batch_apply_all(self.b, n, found, <uint8_t *> fresh,
                                             <uint8_t *> refused)
        finally:
            self.end()
        self.table.check(status)

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
        while True:
            self.begin_read()
            try:
                with nogil:
                    status = pst_batch_get_all(self.b, n, found)
            finally:
                self.end()
            if not self.again(status):
                break
        self.table.check(status)

    def clear(self, int32_t column):
        """Clear a column of every key, or with -1 delete the keys."""
        cdef pst_status status
        self.begin()
        try:
            with nogil:
                status = pst_batch_clear(self.b, column)
        finally:
            self.end()
        self.table.check(status)

    cdef int check_length(self, ArrayRef values) except -1:
        self.ready()
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
            table.check(pst_value_put(table.t, self.column, &cell))
        elif value is None:
            self.clear()
        else:
            turn = table.turn
            owner = self.codec.encode(value, &cell)
            table.ready_for(turn, self.codec)
            table.check(pst_value_put(table.t, self.column, &cell))
        return 0

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
        table.check(pst_value_put(table.t, self.column, &cell))
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
