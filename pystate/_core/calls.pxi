# Calls of a function of one key: for each row of a batch, and for each timer that is due.

cdef class _Calls:
    """Base of both. The parameters that they share:

    call : callable
        The function.
    context : RuntimeContext
        Its last argument.
    emitted : Emitted
        Takes the rows that it yields or returns.
    checked : tuple
        The types of values that can be iterated over, and ``check(value)`` for those of another
        type; None for the latter if the function is a generator.
    clock, leave : callable or None
        ``clock(time)`` comes before each call, ``leave()`` after it.
    """

    cdef object call
    cdef object context
    cdef object clock
    cdef object leave
    cdef set iterables
    cdef object check
    cdef Emitted emitted
    cdef readonly object key
    """The key of the last call."""
    cdef readonly bint calling
    """Whether a call has raised what comes out of `run`."""
    cdef Py_ssize_t at
    cdef Py_ssize_t end

    cdef int set_call(self, call, context, Emitted emitted, tuple checked, clock, leave) except -1:
        once(self.emitted is not None, "a loop of calls")
        if emitted is None:
            raise errors.InvalidArgumentError("there is nowhere to emit rows to")
        self.iterables, self.check = checked
        self.call = call
        self.context = context
        self.emitted = emitted
        self.clock = clock
        self.leave = leave
        return 0

    cdef inline int emit(self, object rows) except -1:
        kind = type(rows)
        if self.check is not None and kind not in self.iterables:
            self.check(rows)
        self.emitted.key = self.key
        return self.emitted.add_all(rows)


cdef class RowLoop(_Calls):
    """Calls ``call(key, row, context)`` for each row, with the row's key as the current one.

    Parameters
    ----------
    keys : Batch
        A key for each row.
    rows : RowSource or list
        The rows.
    key_of : int or list
        The field of a row that is its key, or the keys.
    times : ColumnReader or None
        The rows' event times.
    """

    cdef Batch keys
    cdef RowSource rows
    cdef list elements
    cdef ColumnReader times
    cdef list names
    cdef Py_ssize_t field

    def __init__(self, Batch keys not None, rows not None, key_of, ColumnReader times,
                 call, context, Emitted emitted, tuple checked not None, clock=None, leave=None):
        self.set_call(call, context, emitted, checked, clock, leave)
        self.keys = keys
        self.times = times
        self.end = len(keys)
        if isinstance(rows, list):
            self.elements = rows
            if len(self.elements) != self.end:
                raise errors.InvalidArgumentError(f"{len(rows)} rows for {self.end} keys")
        else:
            self.rows = <RowSource?> rows
        if isinstance(key_of, list):
            self.names = key_of
            if len(self.names) != self.end:
                raise errors.InvalidArgumentError(f"{len(key_of)} keys for {self.end} rows")
        else:
            self.field = key_of
            if self.rows is None or not 0 <= self.field < self.rows.width:
                raise errors.InvalidArgumentError(f"rows have no field {key_of}")
        if times is not None and times.length() != self.end:
            raise errors.InvalidArgumentError(f"{times.length()} times for {self.end} rows")

    def run(self, Py_ssize_t most):
        """Go on with the next rows; False at their end, True once `most` rows were emitted."""
        cdef Py_ssize_t i
        cdef bint timed = self.times is not None
        cdef Emitted emitted = self.emitted
        moment = None
        context = self.context
        while self.at < self.end:
            i = self.at
            self.at += 1
            row = self.elements[i] if self.rows is None else self.rows.make(i)
            if self.names is not None:
                self.key = self.names[i]
            else:
                self.key = <object> PyTuple_GET_ITEM(row, self.field)
            self.keys.select_row(i)
            if timed:
                moment = self.times.get(i)
                context.timestamp = moment
            if self.clock is not None:
                self.clock(moment)
            self.calling = True
            result = self.call(self.key, row, context)
            if result is not None:
                self.emit(result)
            self.calling = False
            if self.leave is not None:
                self.leave()
            if result is not None and emitted.many(most):
                return True
        return False


cdef class Firing:
    """The timer that fires, for who wants to know. Only while it is `watched` is it told of each
    one, which costs two calls for every timer."""

    cdef readonly object timestamp
    """None while none fires."""
    cdef public bint watched


cdef class TimerLoop(_Calls):
    """Calls ``call(key, timestamp, context)`` for each timer that is due, with its key current.

    Parameters
    ----------
    due : DueTimers
        The timers.
    keys : list
        Their keys.
    timed : bool
        Whether a timer's time becomes ``context.timestamp``.
    firing : Firing or None
        What is told which timer fires.
    before, after : callable or None
        ``before(timestamp)`` and ``after()`` of each call that is watched.
    """

    cdef DueTimers due
    cdef list names
    cdef bint timed
    cdef Firing firing
    cdef object before
    cdef object after
    cdef readonly Py_ssize_t fired
    """How many timers have fired."""
    cdef readonly object timestamp
    """The timer of the last call."""

    def __init__(self, DueTimers due not None, list keys not None, bint timed, call, context,
                 Emitted emitted, tuple checked not None, clock=None, leave=None,
                 Firing firing=None, before=None, after=None):
        self.set_call(call, context, emitted, checked, clock, leave)
        self.due = due
        self.names = keys
        self.timed = timed
        if firing is not None and not (callable(before) and callable(after)):
            raise errors.InvalidArgumentError("nobody is told of the timer that fires")
        self.firing = firing
        self.before = before
        self.after = after
        self.end = len(due)
        if len(keys) != self.end:
            raise errors.InvalidArgumentError(f"{len(keys)} keys for {self.end} timers")

    def run(self, Py_ssize_t most, bint to_end):
        """Go on with the next timers; False at their end, True once `most` rows were emitted. It
        also ends where another timer became due, unless `to_end`."""
        cdef Py_ssize_t i
        cdef DueTimers due = self.due
        context = self.context
        while self.at < self.end:
            i = self.at
            self.at += 1
            if not due.take(i):
                continue
            self.fired += 1
            self.key = self.names[i]
            self.timestamp = timestamp = due.time_at(i)
            if self.timed:
                context.timestamp = timestamp
            if self.clock is not None:
                self.clock(timestamp if self.timed else None)
            if self.firing is not None:
                self.firing.timestamp = timestamp
                if self.firing.watched:
                    self.before(timestamp)
            self.calling = True
            result = self.call(self.key, timestamp, context)
            if result is not None:
                self.emit(result)
            self.calling = False
            if self.firing is not None:
                if self.firing.watched:
                    self.after()
                self.firing.timestamp = None
            if self.leave is not None:
                self.leave()
            if not to_end and due.is_stale():
                self.at = self.end
            if self.emitted.many(most):
                return True
        return False
