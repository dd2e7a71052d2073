# The table.

cdef enum:
    UNMADE = 0
    UNOPENED = 1
    USABLE = 2
    BUSY = 3
    DETACHED = 4
    CLOSED = 5

cdef enum:
    ROOM_SLACK = 1 << 17       # bytes
    SETS_WATCHED = 16          # of current keys: at so many it is asked whether there is room

cdef str NO_STEPS = (
    ". Rows leave memory only when files have what changed of them: a store sees to that, a job does "
    "between two epochs, and of a backend whoever writes its snapshots and calls below.set_files")
cdef object UNKNOWN = object()
cdef frozenset PLAIN_KEYS = frozenset((int, str, bytes, float, bool, type(None)))


cdef class Table:
    """A keyed table. Made unopened; the first use calls `on_first_use`, which must `open` it."""

    cdef pst_table *t
    cdef int state
    cdef int idle              # the state that `end` brings back
    cdef unsigned long fork
    cdef bint has_key
    cdef bint int_key
    cdef bint spaced           # the key's last column is a namespace
    cdef object space          # the current one
    cdef int64_t least
    cdef int64_t most
    cdef object current        # the current key, or UNKNOWN while only its batch row is known
    cdef object owner          # of the bytes that C may refer to
    cdef Batch current_batch
    cdef int64_t current_row
    cdef bint loose            # what is kept of the current key may run anyone's code as it goes
    cdef readonly unsigned long epochs  # seals, roll backs and detaches: what ends a batch
    cdef unsigned long returns  # to sealed epochs, and detaches: what ends a walk over all rows
    cdef int walks
    cdef unsigned long openings
    cdef readonly unsigned long turn    # how often another key, or none, was made current
    cdef object on_first_use
    cdef object on_no_room     # makes room for so many rows; None where nobody can
    cdef object on_no_stack    # sets the stack of the last sealed epoch, or raises why it cannot
    cdef object on_stale       # the same, with files that are opened anew
    cdef bint making_room
    cdef public bint may_step  # in the open epoch, so that a write may be done in parts
    cdef uint64_t limit_bytes  # its own, or its target; 0: neither
    cdef bint below            # rows lie in files
    cdef unsigned int sets     # of current keys
    cdef unsigned long ended   # the value of `epochs` since which batches can be made again
    cdef Stack stack           # in which rows are looked for
    cdef void *dependents      # a list of `_Dependent`
    cdef int32_t successor     # the locked file that `open` is to take; 0: none
    cdef Budget budget
    cdef readonly str where
    cdef readonly Schema schema

    def __init__(self, str where not None, on_first_use):
        once(self.state != UNMADE or self is NO_TABLE, "a table")
        self.where = where
        self.on_first_use = on_first_use
        self.fork = fork_generation
        self.state = UNOPENED

    def __dealloc__(self):
        self.drop_successor()
        if self.t is NULL:
            return
        if self.fork != fork_generation:
            pst_table_abandon(self.t)
        else:
            pst_table_close(self.t)
        self.t = NULL

    # -- guards

    cdef inline int ready(self) except -1:
        if self.state != USABLE or self.fork != fork_generation:
            self.refuse()
        return 0

    cdef int refuse(self) except -1:
        """Open the table if that is all that is missing, else say what is wrong."""
        if self.state == UNMADE:
            raise errors.ClosedError("the handle was made by __new__ alone: nothing is behind it")
        self.check_fork()
        if self.state == UNOPENED:
            self.on_first_use()
            if self.state == USABLE:
                return 0
            raise errors.ClosedError(f"{self.where}: the table is not open")
        if self.state == BUSY:
            raise errors.InUseError(f"{self.where}: the table is in use by another thread")
        if self.state == DETACHED:
            raise errors.ClosedError(f"{self.where}: the table is detached; attach it first")
        raise errors.ClosedError(f"{self.where}: the table is closed")

    cdef int check_fork(self) except -1:
        if self.fork != fork_generation:
            raise errors.ClosedError(f"{self.where}: a table does not survive a fork; open or "
                                     "attach it in the child")
        return 0

    cdef int begin(self) except -1:
        self.ready()
        self.hold()
        return 0

    cdef void hold(self) noexcept:
        """Mark the table busy, without a check."""
        self.idle = self.state
        self.state = BUSY

    cdef void end(self) noexcept:
        self.state = self.idle

    cdef inline int ready_for(self, unsigned long turn, Codec codec) except -1:
        """As `ready`, after the caller's code ran: the key of `turn` must still be current."""
        self.ready()
        if not self.has_key:
            self.need_key(codec)
        if self.turn != turn:
            self.moved(f"state {codec.name!r}")
        return 0

    cdef int moved(self, str what) except -1:
        raise errors.NoCurrentKeyError(
            f"{self.where}, {what}: code that was called to make the value (a reduce or aggregate "
            "function, an iterator, __index__) made another key current; nothing was written")

    def check_turn(self, unsigned long turn, str name):
        """Raise unless the key that was current in `turn` still is.

        Raises
        ------
        NoCurrentKeyError
            Another key is current, or none, as the epoch was ended or the table closed.
        """
        if self.turn != turn:
            self.ready()
            self.moved(f"state {name!r}")

    cdef int need_key(self, Codec codec) except -1:
        if self.has_key:
            return 0
        raise errors.NoCurrentKeyError(
            f"{self.where}, state {codec.name!r}: no key is current; set_current_key first "
            "(a seal or roll back ends the current key)")

    cdef inline int check(self, pst_status status) except -1:
        if status == PST_OK:
            return 0
        self.fail(status)

    cdef int fail(self, pst_status status) except -1:
        cdef pst_refusal refusal
        if status == PST_LIMIT:
            pst_table_refusal(self.t, &refusal)
            raise limit_error(self.where, &refusal)
        raise make_error(status, pst_table_detail(self.t), self.where, self.schema)

    # -- life

    @property
    def is_open(self):
        """Whether `open` has succeeded and `close` was not called."""
        return self.t is not NULL and self.fork == fork_generation

    def open(self, Schema schema not None, int32_t max_parallelism, int32_t first_key_group,
             int32_t last_key_group, uint64_t limit_bytes, path, identity, int32_t lock_timeout_ms,
             bint create, Budget budget=None, home=None):
        """Create or attach the table; returns whether it is new.

        `home`: the folder whose shared tables are counted with this one, and levels below it.
        """
        cdef pst_table_options options
        cdef pst_identity who
        cdef pst_detail detail
        cdef int created = 0
        cdef pst_status status
        cdef Codec codec = schema.key_codecs[0]
        cdef bytes encoded, folder
        memset(&options, 0, sizeof(options))
        memset(&detail, 0xFF, sizeof(detail))
        options.max_parallelism = max_parallelism
        options.first_key_group = first_key_group
        options.last_key_group = last_key_group
        options.limit_bytes = self.limit_bytes = limit_bytes
        options.lock_timeout_ms = lock_timeout_ms
        options.create = create
        if path is not None:
            encoded = os.fsencode(path)
            options.path = encoded
        options.budget = budget_of(budget)
        if home is not None:
            folder = os.fsencode(home[0])
            options.home = folder
            options.home_depth = home[1]
        if identity is not None:
            fill_identity(&who, identity)
            options.identity = &who
        if self.state == UNMADE:
            self.refuse()
        self.check_fork()
        if self.state != UNOPENED:
            raise errors.ClosedError(f"{self.where}: the table was opened before")
        options.successor, self.successor = self.successor, 0
        self.hold()
        try:
            with nogil:
                status = pst_table_open(&schema.c, &options, &self.t, &created, &detail)
        finally:
            self.end()
        if status == PST_NOT_FOUND:
            raise FileNotFoundError(2, "no shared table", path)
        if status == PST_INVALID and detail.column >= 0:
            raise errors.DeclarationError(
                f"{self.where}, state {schema.state_codecs[detail.column].name!r}: files know lists "
                "and maps by a hash of their names, and another one has the same: rename the state")
        place = self.where if path is None else f"{self.where}, {path}"
        check_limit(status, budget, place)
        check(status, &detail, place, schema)
        self.openings += 1
        self.schema = schema
        self.budget = budget
        self.int_key = len(schema.key_codecs) == 1 and codec.is_int
        self.spaced = 0 < schema.c.n_hashed < schema.c.n_keys
        self.least, self.most = codec.least, codec.most
        self.below = not pst_table_is_whole(self.t)
        self.state = USABLE
        return created != 0

    def close(self):
        """Release the table and everything that depends on it. Does nothing the second time."""
        if self.fork != fork_generation or self.state == UNMADE:
            return
        if self.state == BUSY:
            self.refuse()
        self.release_dependents()
        self.state = CLOSED
        self.forget_key()
        self.drop_successor()
        if self.t is not NULL:
            pst_table_close(self.t)
            self.t = NULL
        self.take_stack(None)
        # What these are bound to has the table.
        self.on_first_use = self.on_no_room = self.on_no_stack = self.on_stale = None

    def reopen(self, bint goes_on=False):
        """Free the table's rows, so that its next use opens an empty one; handles stay valid.

        A shared one is made in the old one's place, whose lock nobody else can have in between. With
        `goes_on` batches of keys stay valid, too: they look their keys up again. Where it raises,
        nothing has changed.
        """
        if self.state != UNOPENED or self.fork != fork_generation:
            self.ready()
        self.check_dependents()
        if self.t is not NULL:
            self.check(pst_table_succeed(self.t, &self.successor))
        self.release_dependents()
        self.forget_key()
        pst_table_close(self.t)
        self.t = NULL
        self.take_stack(None)
        self.below = False
        self.returns += 1
        if goes_on:
            self.begin_again()
        else:
            self.end_epoch()
        self.state = UNOPENED

    def give_way(self, Table other not None):
        """Close a shared table, and have one that was not opened make the next at its path.

        Nobody else can have the lock in between. Where it raises, nothing has changed.
        """
        if other.state != UNOPENED:
            raise errors.ClosedError(f"{other.where}: the table was opened before")
        self.reopen()
        other.drop_successor()
        other.successor, self.successor = self.successor, 0
        self.close()

    cdef void drop_successor(self) noexcept:
        # In a forked child it was closed, and its place may be another one's.
        if self.successor and self.fork == fork_generation:
            pst_successor_close(self.successor)
        self.successor = 0

    cdef int check_dependents(self) except -1:
        """Raise where a reader is at work."""
        cdef void *at = self.dependents
        while at is not NULL:
            if (<_Dependent> at).busy:
                (<_Dependent> at).ready()
            at = (<_Dependent> at).after
        return 0

    cdef int release_dependents(self) except -1:
        """Close all batches and readers, or none where a reader is at work."""
        self.check_dependents()
        while self.dependents is not NULL:
            (<_Dependent> self.dependents).release()
        return 0

    def detach(self):
        """Release the lock and keep the mapping."""
        self.forget_key()
        self.ready()
        self.release_dependents()
        self.check(pst_table_detach(self.t))
        self.returns += 1
        self.end_epoch()
        self.state = DETACHED

    def attach(self, int32_t lock_timeout_ms):
        """Take the lock again."""
        cdef pst_status status
        if self.state != DETACHED or self.fork != fork_generation:
            self.ready()
            return
        self.hold()
        try:
            with nogil:
                status = pst_table_attach(self.t, lock_timeout_ms)
        finally:
            self.end()
        self.check(status)
        self.below = not pst_table_is_whole(self.t)  # another process may have had rows leave
        self.state = USABLE

    # -- epochs

    def seal(self, bytes id, bytes parent, uint64_t epoch, uint64_t query, bint wanted,
             bint goes_on=False):
        """Seal the open epoch; returns its `Sealed`, or None where it is not wanted.

        With `goes_on` batches of keys stay valid: they look their keys up again.
        """
        cdef pst_lineage lineage
        cdef Sealed sealed = make_sealed(self.where, self.budget)
        cdef pst_status status
        fill_lineage(&lineage, id, parent, epoch, query)
        self.begin()
        pst_table_keep_rows(self.t, self.walks != 0)
        try:
            with nogil:
                status = pst_table_seal(self.t, &lineage, &sealed.s if wanted else NULL)
        finally:
            self.end()
        self.check(status)
        if goes_on:
            self.begin_again()
        else:
            self.end_epoch()
        return sealed if wanted else None

    def set_whole_rows(self, uint64_t bytes):
        """From now on deltas have changed rows of so many bytes whole; 0: only what changed."""
        self.ready()
        pst_table_set_whole_rows(self.t, bytes)

    def set_steps(self, bint steps):
        """Whether what memory refuses leaves the open epoch as it is, as room can be made in it."""
        self.ready()
        pst_table_set_steps(self.t, steps)

    def changes(self):
        """Return what the open epoch changed so far as a `Sealed`, and seal nothing."""
        cdef Sealed sealed = make_sealed(self.where, self.budget)
        cdef pst_status status
        self.begin()
        try:
            with nogil:
                status = pst_table_changes(self.t, &sealed.s)
        finally:
            self.end()
        self.check(status)
        return sealed

    def rollback(self, int32_t back):
        """Undo the open epoch and `back` sealed ones."""
        cdef pst_status status
        self.begin()
        try:
            with nogil:
                status = pst_table_rollback(self.t, back)
        finally:
            self.end()
        self.check(status)
        self.returns += back != 0
        self.end_epoch()

    def lineage(self, int32_t back):
        """Return (id, parent, epoch, query) of a sealed epoch, or None outside the window."""
        cdef pst_lineage lineage
        self.ready()
        cdef pst_status status = pst_table_lineage(self.t, back, &lineage)
        if status == PST_NO_UNDO:
            return None
        self.check(status)
        return lineage_tuple(&lineage)

    def dirty(self):
        """Whether the open epoch has touched anything."""
        self.ready()
        return pst_table_dirty(self.t) != 0

    def stats(self):
        """Return the counters in the order of ``pst_table_stats``."""
        cdef pst_table_stats s
        self.ready()
        pst_table_get_stats(self.t, &s)
        return (s.keys, s.slots, s.row_bytes, s.index_bytes, s.block_bytes, s.undo_bytes,
                s.ring_bytes, s.meta_bytes, s.committed_bytes, s.changed_rows,
                s.recovered_records, s.recovery_ns, s.row_size)

    # -- rows in files

    cdef void take_stack(self, Stack stack):
        if stack is not None:
            stack.tables += 1
        if self.stack is not None:
            self.stack.tables -= 1
        self.stack = stack

    def set_stack(self, Stack stack, lineage=None):
        """Look in these files for what the last sealed epoch has, which is of that lineage.

        None: in none.
        """
        cdef pst_lineage believed
        cdef pst_status status
        id, parent, epoch, query = (bytes(16), bytes(16), 0, 0) if lineage is None else lineage
        fill_lineage(&believed, id, parent, epoch, query)
        self.ready()
        if stack is not None:
            stack.ready()
        status = pst_table_set_stack(self.t, NULL if stack is None else stack.s, &believed)
        if status == PST_STALE:
            raise errors.LineageError(
                f"{self.where}: the files are not those of the table's last sealed epoch")
        if status == PST_INVALID:
            raise errors.SchemaError(
                f"{self.where}: the files below it have other columns, or another max_parallelism, "
                "than the table")
        self.check(status)
        self.take_stack(stack)

    def stack_stats(self):
        """Return what `Stack.stats` gives of the table's stack; None without one."""
        self.ready()
        return None if self.stack is None else self.stack.stats()

    def fetch_stats(self):
        """Return what was asked for since it was opened, in the order of ``pst_fetch_stats``."""
        cdef pst_fetch_stats s
        self.ready()
        pst_table_get_fetch_stats(self.t, &s)
        return (s.asked, s.missed, s.came)

    def set_whole(self, bint whole):
        """Say whether the table has all rows, so that none has to be looked for in files."""
        self.ready()
        pst_table_set_whole(self.t, whole)
        self.below = not whole

    @property
    def is_whole(self):
        """Whether no rows lie in files alone."""
        self.ready()
        return not self.below

    def on_room(self, make_room, place, place_anew):
        """Have `make_room(keys, fully)` called where no more rows fit; it says whether it did
        anything. `fully`: it was called before, and that did not suffice. `place()` is called where
        rows may lie in files and no stack of these is set: it sets it, or raises; `place_anew()`
        where one is set of files that are no longer the ones that were opened."""
        self.on_no_room = make_room
        self.on_no_stack = place
        self.on_stale = place_anew

    def keep_room(self, bint kept):
        """While it is said so, no room is made: what is written belongs to the open epoch.

        Returns what was said before.
        """
        before, self.making_room = self.making_room, kept
        return before

    def set_target(self, uint64_t size):
        """Grow only up to so many bytes, or with 0 as far as the budget lets it."""
        self.ready()
        self.check(pst_table_set_target(self.t, size))
        self.limit_bytes = size

    def room(self, uint64_t keys):
        """How many of so many more rows fit now, and how many rows and bytes are to leave so that
        all do."""
        cdef pst_room leave
        cdef uint64_t fits = 0
        self.ready()
        self.check(pst_table_room(self.t, keys, &fits, &leave))
        return fits, leave.rows, leave.bytes

    def settle(self):
        """Return no further than to the last sealed epoch any more; batches stay valid."""
        cdef pst_status status
        self.forget_key()
        self.begin()
        try:
            with nogil:
                status = pst_table_settle(self.t)
        finally:
            self.end()
        self.begin_again()
        self.check(status)

    def leave(self, uint64_t rows, uint64_t bytes):
        """Let rows leave, until so much is free; returns how many rows and bytes left.

        Batches of keys stay valid, as for `seal`.
        """
        cdef pst_room wanted = pst_room(rows=rows, bytes=bytes)
        cdef pst_room left = pst_room(rows=0, bytes=0)
        cdef pst_status status
        self.forget_key()
        self.begin()
        pst_table_keep_rows(self.t, self.walks != 0)
        try:
            with nogil:
                status = pst_table_leave(self.t, &wanted, &left)
        finally:
            self.end()
        self.begin_again()
        self.check(status)
        return left.rows, left.bytes

    cdef bint place(self) except -1:
        """Have the stack set that counts now; whether anybody does that."""
        if self.on_no_stack is None:
            return False
        self.on_no_stack()
        self.ready()
        return True

    cdef bint find_files(self, pst_status status) except -1:
        """See to the files that an operation did not find; whether it may now be tried again."""
        if status == PST_NO_STACK:
            return self.place()
        if self.on_stale is None or not is_stale(status, pst_table_detail(self.t)):
            return False
        self.on_stale()
        self.ready()
        return True

    cdef bint make_room(self, uint64_t keys, bint fully=False) except -1:
        """Have room made for so many rows. The current key stays."""
        if self.on_no_room is None or self.making_room:
            return False
        cdef bint had = self.has_key
        key = self.current_key() if had else None
        cdef unsigned long turn = self.turn
        self.making_room = True
        try:
            made = self.on_no_room(keys, fully)
        finally:
            self.making_room = False
        self.ready()
        if had and not self.has_key:
            self.set_any_key(key)
            # To whoever computes a value of the key nothing has happened.
            self.turn = turn
        return made

    def make_way(self, uint64_t keys, uint64_t bytes):
        """Make room for so many rows whose values have so many bytes, if few rows fit any more."""
        self.ready()
        if self.on_no_room is not None:
            self.watch_room(keys + bytes // self.row_bytes())

    cdef uint64_t rows_here(self) noexcept:
        """How many rows are in memory."""
        cdef pst_table_stats s
        pst_table_get_stats(self.t, &s)
        return s.keys

    cdef uint64_t row_bytes(self) noexcept:
        """About what one more row takes, if it is like those that are here."""
        cdef pst_table_stats s
        pst_table_get_stats(self.t, &s)
        return s.row_size + 64 + s.block_bytes // max(s.keys, <uint64_t> 1)

    cdef uint64_t wanted_room(self, uint64_t keys, uint64_t here=0) noexcept:
        """So many rows should fit beside those that are here: an eighth of these, at least.

        Of those that are written to, of which `here` are there, the values before are kept. Values
        grow, too, memory is taken in pieces, and what an operation is refused may end the epoch.
        """
        cdef pst_table_stats s
        pst_table_get_stats(self.t, &s)
        cdef uint64_t value_bytes = s.block_bytes // max(s.keys, <uint64_t> 1)
        cdef uint64_t row_bytes = self.row_bytes()
        keys += here * (s.row_size // 2 + value_bytes) // row_bytes
        return max(keys + ROOM_SLACK // row_bytes, s.keys // 8)

    cdef bint has_room(self, uint64_t keys) except -1:
        """Whether there is room to write to so many keys, wherever their rows are."""
        cdef uint64_t fits = 0, wanted = self.wanted_room(keys + keys // 8)
        cdef pst_room leave
        self.check(pst_table_room(self.t, wanted, &fits, &leave))
        return fits >= wanted

    cdef int watch_room(self, uint64_t keys) except -1:
        """Make room if few rows fit any more; whether there is any is found out elsewhere."""
        cdef uint64_t fits = 0, wanted = self.wanted_room(keys)
        cdef pst_room leave
        if self.making_room:
            return 0
        self.check(pst_table_room(self.t, wanted, &fits, &leave))
        if fits < wanted:
            self.make_room(wanted)
        return 0

    cdef int no_room(self, int64_t keys, bint could_make) except -1:
        """Raise that only so many of a batch's keys fit."""
        error = errors.MemoryLimitError(
            f"{self.where}: the rows of so many keys do not fit in memory together: "
            f"{max(keys, 0)} of the first ones would; pass fewer keys at a time, or raise "
            "limit_bytes" + ("" if could_make else NO_STEPS))
        error.keys = max(keys, 0)
        raise error

    cdef uint64_t room_for(self, int64_t keys, uint64_t size) noexcept:
        """For how many rows room is to be made, so that so much can be written; an eighth of the
        memory that the table has, at most."""
        cdef pst_table_stats s
        pst_table_get_stats(self.t, &s)
        cdef uint64_t row_bytes = self.row_bytes(), most = s.committed_bytes // 8
        return min(<uint64_t> keys + size // row_bytes, most // row_bytes) + 1

    cdef bint makes_room(self, int column, uint64_t size, int *tried) except -1:
        """Make room for what one row was refused; raises where that was in vain."""
        if tried[0] == 2:
            self.too_little(column, 1, size, 0, self.on_no_room is not None)
        made = self.make_room(self.room_for(1, size), tried[0] == 1)
        tried[0] = tried[0] + 1 if made else 2
        return True

    cdef pst_status check_room(self, pst_status status, int column, uint64_t size,
                               bint repeatable) except *:
        """Raise for what was refused where no room can be made; hand other statuses through."""
        cdef int64_t done
        if status == PST_NO_ROOM:
            done = pst_table_detail(self.t).row
            if done and not repeatable:
                pst_table_spoil(self.t)
            self.too_little(column, done + 1, size, done, False)
        return status

    cdef int too_little(self, int column, int64_t keys, uint64_t size, int64_t fits,
                        bint could_make) except -1:
        """Raise that what is written does not fit, though all left that may."""
        cdef pst_table_stats s
        cdef pst_refusal refusal
        pst_table_get_stats(self.t, &s)
        limit_bytes = self.limit_bytes
        if not limit_bytes:
            pst_table_refusal(self.t, &refusal)
            limit_bytes = refusal.limit_bytes
        name = ""
        if 0 <= column < len(self.schema.state_codecs):
            name = f", state {self.schema.state_codecs[column].name!r}"
        error = errors.MemoryLimitError(
            f"{self.where}{name}: {size_text(size)} for a key, with the row that it has, do not fit "
            f"in memory: the table may have {size_text(limit_bytes)}, and has "
            f"{size_text(s.committed_bytes)} for {s.keys} rows that have to stay; raise limit_bytes "
            "(of a Job: memory_limit_bytes)" + (", or pass fewer keys at a time" if keys > 1 else "")
            + ("" if could_make else NO_STEPS))
        error.keys = fits
        raise error

    cdef int check_fetched(self, pst_status status) except -1:
        if status == PST_OK:
            return 0
        cdef const pst_detail *detail = pst_table_detail(self.t)
        if status == PST_NO_ROOM:
            self.no_room(detail.row, True)
        if status in (PST_IO, PST_CORRUPT) and self.stack is not None and detail.row >= 0:
            raise file_error(status, detail, self.stack.names, self.where)
        self.fail(status)

    # -- the current key

    cdef void forget_key(self):
        # Dropping these may run anyone's code: so they leave the table first.
        key, owner, batch = self.current, self.owner, self.current_batch
        self.turn += 1
        self.loose = False
        self.has_key = False
        self.current = None
        self.owner = None
        self.current_batch = None

    cdef void begin_again(self):
        self.forget_key()
        self.epochs += 1

    cdef void end_epoch(self):
        self.begin_again()
        self.ended = self.epochs

    @cython.binding(False)
    def set_current_key(self, key):
        """Make a key current."""
        cdef int overflow = 0
        cdef long long word
        cdef pst_status status
        self.ready()
        if self.on_no_room is not None:
            self.sets += 1
            if self.sets % SETS_WATCHED == 0:
                self.forget_key()
                self.watch_room(SETS_WATCHED)
        if self.int_key and PyLong_CheckExact(key):
            word = PyLong_AsLongLongAndOverflow(key, &overflow)
            if not overflow and self.least <= word <= self.most:
                if self.loose:
                    self.forget_key()
                    self.ready()
                status = pst_key_set_word(self.t, <uint64_t> word)
                self.turn += 1
                self.current = key
                self.has_key = status == PST_OK
                if status == PST_OK:
                    return
                if status not in (PST_NO_ROOM, PST_NO_STACK, PST_IO):
                    self.check_fetched(status)
        self.set_any_key(key)

    cdef int select(self, Batch batch, Py_ssize_t row, pst_status status) except -1:
        """Say that the core has made the key and namespace of a row current."""
        if self.loose or self.current_batch is not batch:
            self.forget_key()
        self.turn += 1
        self.current = UNKNOWN
        self.owner = None
        self.current_batch = batch
        self.current_row = row
        self.has_key = status == PST_OK
        if self.spaced:
            self.space = batch.namespace_at(row)
        self.check(status)
        return 0

    cdef int set_any_key(self, object key) except -1:
        cdef pst_cell cells[PST_MAX_KEYS_]
        cdef uint32_t nulls = 0
        cdef pst_status status
        whole = self.with_space(key, self.space) if self.spaced else key
        self.forget_key()
        owner = self.schema.encode_key(whole, cells, &nulls)
        self.ready()
        # The caller's code may have set a key of its own.
        self.forget_key()
        status = pst_key_set(self.t, cells, nulls)
        if self.find_files(status):
            status = pst_key_set(self.t, cells, nulls)
        if status == PST_NO_ROOM and self.make_room(SETS_WATCHED):
            status = pst_key_set(self.t, cells, nulls)
        if status == PST_NO_ROOM and self.make_room(SETS_WATCHED, True):
            status = pst_key_set(self.t, cells, nulls)
        self.check_fetched(status)
        self.current = key
        self.owner = owner
        self.loose = type(key) not in PLAIN_KEYS
        self.has_key = True
        return 0

    cdef object encode_in(self, object namespace, pst_cell *cells, uint32_t *nulls):
        """Fill the cells of the current key in a namespace; returns the owner of their bytes."""
        return self.schema.encode_key(self.with_space(self.current_key(), namespace), cells, nulls)

    cdef tuple with_space(self, object key, object namespace):
        """The key as the table's columns have it, its namespace last."""
        if self.schema.c.n_hashed == 1:
            return key, namespace
        if not isinstance(key, (tuple, list)):
            raise errors.WrongTypeError(
                f"the key has {self.schema.c.n_hashed} columns: it is a tuple, got {key!r:.80}")
        return (*key, namespace)

    def set_namespace(self, value):
        """Make a namespace current; None: the default one. The current key stays."""
        value = self.normal_namespace(value)
        if not self.has_key:
            self.space = value
            return
        key = self.current_key()
        self.space = value
        self.set_any_key(key)

    def normal_namespace(self, value):
        """Return a namespace in normal form, as `normal_key` does a key."""
        if not self.spaced:
            raise errors.DeclarationError(f"{self.where}: it was opened without namespaces")
        return None if value is None else self.schema.key_codecs[-1].normalize(value)

    def merged_namespaces(self, target, sources):
        """Return the target of a merge, and its other sources in order, each once."""
        # In a list, because that finds a NaN by identity.
        names = [self.normal_namespace(target)]
        if isinstance(sources, (str, bytes)) or not hasattr(sources, "__iter__"):
            raise errors.WrongTypeError(
                f"{self.where}: merge_namespaces takes a list of sources, got {sources!r:.80}")
        for source in map(self.normal_namespace, sources):
            if source not in names:
                names.append(source)
        return names[0], names[1:]

    def current_namespace(self):
        """Return the current namespace, None for the default one."""
        return self.space

    @property
    def has_namespaces(self):
        """Whether rows have a namespace beside their key."""
        return self.spaced

    def current_name(self):
        """Return what names the current row: its key, with its namespace where there are any."""
        key = self.current_key()
        return (key, self.space) if self.spaced else key

    def clear_current_key(self):
        """Leave no key current."""
        self.forget_key()

    def current_key(self):
        """Return the current key in normal form: equal keys are equal and hash alike."""
        cdef unsigned long turn
        while True:
            if not self.has_key:
                raise errors.NoCurrentKeyError(f"{self.where}: no key is current")
            if self.current is not UNKNOWN:
                return self.normal_key(self.current)
            turn = self.turn
            key = self.current_batch.key_at(self.current_row)
            if turn == self.turn:
                self.current = key

    def normal_key(self, key):
        """Return a key in normal form."""
        if self.int_key and PyLong_CheckExact(key):
            return key
        if key is None:
            return None
        if self.schema is None:
            self.ready()
        return self.schema.normal_key(key, len(self.schema.key_codecs) - self.spaced)

    # -- time to live

    def set_ttl(self, int32_t column, int64_t duration_ms, int64_t granularity_ms,
                bint event_time, bint on_read, bint lenient, int64_t ahead_ms=0,
                bint goes_back=False):
        """Say how a column's values expire."""
        cdef pst_ttl ttl = pst_ttl(duration_ms=duration_ms, granularity_ms=granularity_ms,
                                   ahead_ms=ahead_ms, event_time=event_time, on_read=on_read,
                                   lenient=lenient, goes_back=goes_back)
        self.ready()
        self.check(pst_table_set_ttl(self.t, column, &ttl))

    @cython.binding(False)
    def set_clock(self, processing_ms, watermark_ms, event_ms):
        """Tell the table what time it is; None: unknown."""
        cdef pst_clock clock = pst_clock(
            processing_ms=PST_NO_TIME if processing_ms is None else processing_ms,
            watermark_ms=PST_NO_TIME if watermark_ms is None else watermark_ms,
            event_ms=PST_NO_TIME if event_ms is None else event_ms)
        self.ready()
        pst_table_set_clock(self.t, &clock)

    def expire(self, uint64_t budget):
        """Remove what has expired from up to `budget` rows; returns how many values went."""
        cdef uint64_t removed = 0
        cdef pst_status status
        self.begin()
        try:
            with nogil:
                status = pst_table_expire(self.t, budget, &removed)
        finally:
            self.end()
        self.check(status)
        return removed

    # -- rows

    def load(self, FileReader reader not None, int32_t first_key_group, int32_t last_key_group,
             list columns not None):
        """Apply a range of a file to the open epoch; returns the number of records."""
        cdef int32_t mapping[PST_MAX_STATES_]
        cdef int32_t n = <int32_t> len(columns)
        cdef uint64_t rows = 0
        cdef pst_status status
        fill_mapping(mapping, columns, n)
        self.ready()
        reader.begin()
        self.hold()
        try:
            self.forget_key()
            with nogil:
                status = pst_sst_reader_seek(reader.r, first_key_group, last_key_group)
                if status == PST_OK:
                    status = pst_table_load(self.t, reader.r, mapping, n, &rows)
        finally:
            self.end()
            reader.end()
        if status == PST_OK:
            return rows
        if status in (PST_CALLBACK, PST_CORRUPT, PST_NEWER_FORMAT, PST_SCHEMA, PST_IO):
            reader.check(status)
        self.check(status)

    def refresh(self, FileReader reader not None, int32_t first_key_group, int32_t last_key_group):
        """Apply what a file has of the rows that are here; returns the number of its records."""
        cdef uint64_t rows = 0
        cdef pst_status status
        self.ready()
        reader.begin()
        self.hold()
        try:
            self.forget_key()
            with nogil:
                status = pst_sst_reader_seek(reader.r, first_key_group, last_key_group)
                if status == PST_OK:
                    status = pst_table_refresh(self.t, reader.r, &rows)
        finally:
            self.end()
            reader.end()
        if status in (PST_CALLBACK, PST_CORRUPT, PST_NEWER_FORMAT, PST_SCHEMA, PST_IO):
            reader.check(status)
        self.check(status)
        return rows

    def get_bytes(self, int32_t column):
        """Return the bytes of the current key's column, or None."""
        cdef pst_cell cell
        self.ready()
        self.need_key(self.schema.state_codecs[column])
        cdef pst_status status = pst_value_get(self.t, column, &cell)
        if status == PST_NOT_FOUND:
            return None
        self.check(status)
        return PyBytes_FromStringAndSize(<const char *> cell.bytes.data, cell.bytes.size)

    def delete_current_key(self):
        """Delete the current key with all its states."""
        self.ready()
        if not self.has_key:
            raise errors.NoCurrentKeyError(f"{self.where}: no key is current")
        self.check(pst_value_clear(self.t, -1))


cdef Table NO_TABLE = Table.__new__(Table)
