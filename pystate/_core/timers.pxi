# Timers: registered and deleted by key, handed out in order when they are due.

cdef enum:
    MOST_TIMERS = 1 << 28
    DUE_ROOM = 4096            # rows that should fit where none does whose timer is due


cdef int domain_of(object name) except -1:
    if name == "event":
        return PST_EVENT
    if name == "processing":
        return PST_PROCESSING
    raise errors.InvalidArgumentError(
        f"a timer's domain is 'event' or 'processing', got {name!r}")


cdef int64_t time_of(object value) except? -1:
    cdef int overflow = 0
    cdef long long time_ms
    if not PyLong_CheckExact(value):
        value = plain_value(value)
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise errors.WrongTypeError(
                "a timer's time is a whole number of milliseconds since 1970, "
                f"got {value!r:.60}")
        value = int(value.__index__())
    time_ms = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow:
        raise errors.StateOverflowError(f"a timer's time has 64 bits: {value} does not fit")
    return time_ms


def timer_time(value):
    """Return a timer's time as an int of 64 bits, or say what is wrong with it."""
    return time_of(value)


cdef class DueTimers:
    """Timers that are due, with the batch of their keys.

    They stay registered until they are fired. If `stale`, another due timer was registered since
    and the order no longer holds: ask for the due timers again. Of a table on disk it is also said
    where rows left since, as it then does not know what was registered.
    """

    cdef readonly Batch keys
    cdef object times
    cdef Memory own         # the times from the core: the caller may write to its own
    cdef pst_domain domain
    cdef uint64_t missed_before
    cdef unsigned long epoch  # of the table

    def __cinit__(self):
        self.keys = NO_BATCH

    def __init__(self, Batch keys not None, Memory own not None, object times, domain):
        cdef pst_domain number = <pst_domain> domain_of(domain)
        once(self.keys is not NO_BATCH, "a batch of timers")
        keys.ready()
        if own.size < 8 * pst_batch_length(keys.b):
            raise errors.InvalidArgumentError("there is not a time for each key")
        self.times = times
        self.own = own
        self.domain = number
        self.missed_before = pst_timers_missed(keys.table.t)
        self.epoch = keys.table.epochs
        self.keys = keys

    @property
    def timestamps(self):
        """Milliseconds since 1970, as many as there are keys: a numpy array of int64."""
        return self.times

    @property
    def stale(self):
        """Whether another due timer was registered since."""
        return self.is_stale()

    @property
    def missed(self):
        """How many other due timers were registered since."""
        self.keys.ready_keys()
        return pst_timers_missed(self.keys.table.t) - self.missed_before

    cdef bint is_stale(self) except -1:
        self.keys.ready_keys()
        cdef Table table = self.keys.table
        return self.epoch != table.epochs or pst_timers_missed(table.t) != self.missed_before

    def __len__(self):
        return len(self.keys)

    def fire(self, Py_ssize_t i):
        """Take timer `i` away and make its key current; False if it was deleted meanwhile."""
        return self.take(i)

    cdef int64_t time_at(self, Py_ssize_t i) noexcept:
        return (<const int64_t *> self.own.data)[i]

    cdef bint take(self, Py_ssize_t i) except -1:
        cdef Batch keys = self.keys
        cdef Table table = keys.table
        cdef pst_status status
        keys.ready_keys()
        if not 0 <= i < pst_batch_length(keys.b):
            raise errors.InvalidArgumentError(f"there is no timer {i}")
        # The one before was taken away in a full table.
        if table.may_step and pst_table_passed(table.t):
            table.make_room(SETS_WATCHED)
        if self.epoch == table.epochs:
            status = pst_timer_fire(keys.b, i, self.domain, self.time_at(i))
        else:
            status = self.take_alone(i)
        if status == PST_NOT_FOUND:
            return False
        table.check_fetched(status)
        table.select(keys, i, status)
        return True

    cdef pst_status take_alone(self, Py_ssize_t i) except *:
        """Take timer `i` away where rows left since it was found: those of all keys may not fit."""
        cdef Table table = self.keys.table
        cdef pst_batch *b
        cdef pst_status status
        cdef bint placed = False
        cdef int tried = 0
        while True:
            b = self.keys.part(i, 1)
            status = pst_timer_fire(b, 0, self.domain, self.time_at(i))
            self.keys.drop_part(b)
            if status != PST_OK and not placed and table.find_files(status):
                placed = True
            elif status == PST_NO_ROOM and tried < 2 and table.make_room(SETS_WATCHED, tried == 1):
                tried += 1
            else:
                return status

    def fire_all(self):
        """Take all of them away."""
        cdef pst_array times
        self.keys.ready_keys()
        memset(&times, 0, sizeof(times))
        times.type = PST_INT64
        times.length = pst_batch_length(self.keys.b)
        times.values = self.own.data
        cdef Write w = write_of(WRITE_FIRED, -1, &times)
        w.domain = self.domain
        self.keys.table.check_fetched(self.keys.write(&w))


cdef object as_due_timers(object due):
    return <DueTimers?> due


cdef bint take_timer(object due, Py_ssize_t i) except -1:
    return (<DueTimers> due).take(i)


cdef int64_t timer_at(object due, Py_ssize_t i) except? -1:
    return (<DueTimers> due).time_at(i)


cdef bint timers_stale(object due) except -1:
    return (<DueTimers> due).is_stale()


cdef class TimerService:
    """A table's timers."""

    cdef readonly Table table

    def __cinit__(self):
        self.table = NO_TABLE

    def __init__(self, Table table not None):
        once(self.table is not NO_TABLE, "a timer service")
        self.table = table

    cdef int ready_for(self, unsigned long turn) except -1:
        self.table.ready()
        if not self.table.has_key:
            raise errors.NoCurrentKeyError(
                f"{self.table.where}: no key is current; a timer belongs to one")
        if self.table.turn != turn:
            self.table.moved("a timer")
        return 0

    cdef int check(self, pst_status status) except -1:
        if status == PST_INVALID:
            raise errors.DeclarationError(
                f"{self.table.where}: it was opened without timers")
        return self.table.check_fetched(status)

    @cython.binding(False)
    def register(self, domain, timestamp):
        """Register a timer of the current key."""
        cdef unsigned long turn = self.table.turn
        cdef int64_t time_ms = time_of(timestamp)
        cdef int number = domain_of(domain)
        self.ready_for(turn)
        cdef int tried = 0
        cdef pst_status status = pst_timer_register(self.table.t, <pst_domain> number, time_ms)
        while status == PST_NO_ROOM and self.table.makes_room(-1, 0, &tried):
            status = pst_timer_register(self.table.t, <pst_domain> number, time_ms)
        self.check(status)

    @cython.binding(False)
    def delete(self, domain, timestamp):
        """Delete a timer of the current key."""
        cdef unsigned long turn = self.table.turn
        cdef int64_t time_ms = time_of(timestamp)
        cdef int number = domain_of(domain)
        self.ready_for(turn)
        self.check(pst_timer_delete(self.table.t, <pst_domain> number, time_ms))

    def register_all(self, Batch keys not None, domain, ArrayRef times not None):
        """Register a timer per key; nulls are skipped."""
        cdef Write w = write_of(WRITE_TIMERS, -1, &times.c)
        w.domain = <pst_domain> domain_of(domain)
        keys.check_length(times)
        keys.check_of(self.table)
        self.check(keys.write(&w))

    def delete_all(self, Batch keys not None, domain, ArrayRef times not None):
        """Delete a timer per key; nulls are skipped."""
        cdef Write w = write_of(WRITE_NO_TIMERS, -1, &times.c)
        w.domain = <pst_domain> domain_of(domain)
        keys.check_length(times)
        keys.check_of(self.table)
        self.check(keys.write(&w))

    def next(self, domain):
        """Return the earliest timer's time, or None."""
        cdef int64_t time_ms = 0
        cdef int number = domain_of(domain)
        self.table.ready()
        cdef pst_status status = pst_timer_next(self.table.t, <pst_domain> number, &time_ms)
        if self.table.find_files(status):
            status = pst_timer_next(self.table.t, <pst_domain> number, &time_ms)
        if status == PST_NOT_FOUND:
            return None
        self.check(status)
        return time_ms

    def take_due(self, Batch keys not None, domain, until, int64_t most):
        """Fill an unmade batch with the keys of due timers; returns their times (int64, one for
        each key), None where none is due."""
        cdef pst_status status
        cdef int number = domain_of(domain)
        cdef int64_t until_ms = time_of(until)
        cdef Memory times = Memory.__new__(Memory)
        if most < 1 or most > MOST_TIMERS:
            raise errors.InvalidArgumentError(f"{most} timers at once: 1 to {MOST_TIMERS}")
        if keys.table is not self.table:
            raise errors.InvalidArgumentError(
                f"{self.table.where}: the key batch belongs to another table")
        self.table.ready()
        if keys.b is not NULL:
            raise errors.InvalidArgumentError("a batch is made once")
        self.table.check(times.take(<uint64_t> most * 8))
        status = self.due_with_room(keys, <pst_domain> number, until_ms, most, times)
        if status == PST_NOT_FOUND:
            return None
        self.check(status)
        keys.epoch = self.table.epochs
        keys.link()
        times.size = 8 * pst_batch_length(keys.b)
        return times

    cdef pst_status due_with_room(self, Batch keys, pst_domain domain, int64_t until_ms,
                                  int64_t most, Memory times) except *:
        """As `due`; where no more rows fit others leave, as long as some come for them.

        Of rows that come none needs to have a timer: files name those that were taken away since.
        """
        cdef Table table = self.table
        cdef pst_status status
        cdef bint came = True, emptied = False, placed = False
        cdef uint64_t rows = 0
        cdef pst_timers_place emptied_at, at
        # Of few rows at a time each would have a step of its own.
        if table.below and table.may_step:
            table.watch_room(min(most, DUE_ROOM))
        while True:
            status = self.due(keys, domain, until_ms, most, times)
            if status != PST_OK and not placed and table.find_files(status):
                placed = True
                continue
            if status != PST_NO_ROOM:
                return status
            came = came and table.rows_here() > rows
            if not came:
                self.check(pst_timers_passed(table.t, domain, &at))
                if (emptied and at.time_ms == emptied_at.time_ms
                        and at.key_group == emptied_at.key_group and at.hash == emptied_at.hash):
                    return status
                emptied, emptied_at = True, at
            if not table.make_room(min(most, DUE_ROOM), not came):
                return status
            came, rows = True, table.rows_here()

    cdef pst_status due(self, Batch keys, pst_domain domain, int64_t until_ms, int64_t most,
                        Memory times) except *:
        cdef pst_status status
        self.table.begin()
        try:
            with nogil:
                status = pst_timers_due(self.table.t, domain, until_ms, most,
                                        <int64_t *> times.data, &keys.b)
        finally:
            self.table.end()
        return status

    def knows(self, domain, until):
        """Whether the rows of all timers up to a time are in memory."""
        cdef int64_t until_ms = time_of(until)
        cdef int number = domain_of(domain)
        self.table.ready()
        return (not self.table.below
                or pst_table_horizon(self.table.t, <pst_domain> number) > until_ms)

    def passed(self, domain):
        """Return a place before which no key has a timer, neither in memory nor in files.

        It is a time, and among its timers a key group and a hash.
        """
        cdef pst_timers_place place
        cdef int number = domain_of(domain)
        self.table.ready()
        self.check(pst_timers_passed(self.table.t, <pst_domain> number, &place))
        return place.time_ms, place.key_group, place.hash

    def set_passed(self, domain, int64_t time_ms, uint64_t key_group, uint64_t hash):
        """Say that no key has a timer before that place, of a table that looks in files for rows."""
        cdef pst_timers_place place = pst_timers_place(time_ms=time_ms, key_group=key_group,
                                                       hash=hash)
        cdef int number = domain_of(domain)
        self.table.ready()
        self.check(pst_table_set_passed(self.table.t, <pst_domain> number, &place))
