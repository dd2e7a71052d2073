# Values: Python objects <-> pst_cell, schemas, arrays by address.

cdef enum:
    PST_MAX_KEYS_ = 16
    PST_MAX_STATES_ = 64

TYPE_CODES = {
    "boolean": PST_BOOL, "byte": PST_INT8, "short": PST_INT16, "int": PST_INT32,
    "long": PST_INT64, "float": PST_FLOAT32, "double": PST_FLOAT64, "date": PST_DATE32,
    "timestamp": PST_TIMESTAMP, "decimal": PST_DECIMAL, "string": PST_STRING,
    "binary": PST_BINARY, "object": PST_OBJECT,
}
FIXED, NESTED = PST_FIXED, PST_NESTED

MAX_KEYS = PST_MAX_KEYS
MAX_STATES = PST_MAX_STATES

cdef dict TYPE_NAMES = {code: name for name, code in TYPE_CODES.items()}
cdef object UTC = datetime.timezone.utc
cdef object EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)
cdef object NAIVE_EPOCH = datetime.datetime(1970, 1, 1)
cdef object NAN = float("nan")
cdef object TEN = 10  # an object: C's integers are too short for decimals


cdef class Codec:
    """One column: turns Python values into cells and back."""

    cdef readonly str name
    cdef readonly str ddl
    cdef str label  # what messages begin with
    cdef readonly int code
    cdef readonly int precision
    cdef readonly int scale
    cdef readonly bint naive  # timestamps without a time zone
    cdef int64_t least
    cdef int64_t most
    cdef bint is_int
    cdef bint is_bytes

    def __init__(self, str name not None, int code, int precision, int scale, str ddl not None,
                 str label=""):
        once(self.name is not None or self is NO_CODEC, "a codec")
        self.name = name
        self.label = label or f"state {name!r}"
        self.code = code
        self.precision = precision
        self.scale = scale
        self.ddl = ddl
        self.naive = ddl == "timestamp_ntz"
        self.is_int = PST_INT8 <= code <= PST_INT64
        self.is_bytes = code >= PST_STRING
        self.least, self.most = INT64_MIN, INT64_MAX
        if code == PST_INT8:
            self.least, self.most = INT8_MIN, INT8_MAX
        elif code == PST_INT16:
            self.least, self.most = INT16_MIN, INT16_MAX
        elif code == PST_INT32 or code == PST_DATE32:
            self.least, self.most = INT32_MIN, INT32_MAX

    cdef object wrong(self, object value, str hint=""):
        return errors.WrongTypeError(
            f"{self.label} is {self.ddl}: it does not take {value!r:.80} "
            f"({type(value).__name__}){hint}")

    cdef object too_large(self, object value):
        return errors.StateOverflowError(
            f"{self.label}: {value!r:.80} is out of the range of {self.ddl}; nothing was written")

    cdef object encode(self, object value, pst_cell *cell):
        """Fill the cell; returns the owner of its bytes, to be kept until the cell was used."""
        cell.word[0] = 0
        cell.word[1] = 0
        cell.bytes.data = NULL
        cell.bytes.size = 0
        if self.is_int:
            self.encode_int(value, cell)
            return None
        if self.code == PST_STRING and isinstance(value, str):
            return self.encode_text(value, cell)
        if self.is_bytes and isinstance(value, (bytes, bytearray, memoryview)):
            if self.code != PST_STRING:
                return self.encode_bytes(bytes(value), cell)
        elif self.code == PST_BOOL:
            if value is True or value is False:
                cell.word[0] = 1 if value else 0
                return None
        elif self.code == PST_FLOAT64 or self.code == PST_FLOAT32:
            if self.encode_float(value, cell):
                return None
        elif self.code == PST_DATE32:
            if cdt.PyDate_Check(value) and not cdt.PyDateTime_Check(value):
                cell.word[0] = <uint64_t> <int64_t> (value.toordinal() - 719163)
                return None
        elif self.code == PST_TIMESTAMP:
            if cdt.PyDateTime_Check(value):
                self.encode_timestamp(value, cell)
                return None
        elif self.code == PST_DECIMAL:
            if isinstance(value, (Decimal, int)) and not isinstance(value, bool):
                self.encode_decimal(Decimal(value), cell)
                return None
        plain = plain_value(value)
        if type(plain) is type(value):
            raise self.wrong(value)
        # A plain value may itself have a plain value, and so on without end.
        Py_EnterRecursiveCall(" while a value was encoded")
        try:
            return self.encode(plain, cell)
        finally:
            Py_LeaveRecursiveCall()

    @cython.final
    cdef int encode_int(self, object value, pst_cell *cell) except -1:
        cdef int overflow = 0
        cdef long long number
        if not PyLong_CheckExact(value):
            value = plain_value(value)
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise self.wrong(value)
            try:
                value = int(value.__index__())
            except TypeError:  # an array has the method, too
                raise self.wrong(value) from None
        number = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow or number < self.least or number > self.most:
            raise self.too_large(value)
        cell.word[0] = <uint64_t> number
        return 0

    @cython.final
    cdef bint encode_float(self, object value, pst_cell *cell) except -1:
        cdef double number
        cdef float narrow
        cdef uint32_t bits
        if isinstance(value, float):
            number = value
        elif isinstance(value, int) and not isinstance(value, bool):
            try:
                number = value
            except OverflowError:
                raise self.too_large(value) from None
            if int(number) != value:
                raise self.wrong(value, "; as a double it would lose digits")
        else:
            return False
        if self.code == PST_FLOAT64:
            memcpy(cell.word, &number, 8)
            return True
        narrow = <float> number
        if isinf(narrow) and not isinf(number):
            raise self.too_large(value)
        if isinstance(value, int) and narrow != number:
            raise self.wrong(value, "; as a float it would lose digits")
        memcpy(&bits, &narrow, 4)
        cell.word[0] = bits
        return True

    @cython.final
    cdef int encode_timestamp(self, object value, pst_cell *cell) except -1:
        if not cdt.PyDateTime_CheckExact(value):
            # Those of pandas.
            if value != value:
                raise self.wrong(value, "; a missing time is None")
            if getattr(value, "nanosecond", 0):
                raise self.wrong(value, "; its nanoseconds would be lost: floor('us') drops them")
        if self.naive != (value.tzinfo is None):
            if self.naive:
                raise self.wrong(value, "; drop the time zone, or declare timestamp")
            raise self.wrong(value, "; a time without a time zone is no instant: attach one "
                             "(tzinfo=datetime.timezone.utc), or declare timestamp_ntz")
        delta = value - (NAIVE_EPOCH if self.naive else EPOCH)
        cell.word[0] = <uint64_t> <int64_t> (
            (<int64_t> delta.days * 86400 + <int64_t> delta.seconds) * 1000000
            + <int64_t> delta.microseconds)
        return 0

    @cython.final
    cdef int encode_decimal(self, object value, pst_cell *cell) except -1:
        if not value.is_finite():
            raise self.wrong(value)
        sign, digits, exponent = value.as_tuple()
        unscaled = int("".join(map(str, digits)))
        shift = self.scale + exponent
        if shift > 40 and unscaled:
            raise self.too_large(value)
        if shift >= 0:
            unscaled *= TEN ** min(shift, 40)
        elif unscaled:
            unscaled, rest = divmod(unscaled, TEN ** min(-shift, len(digits) + 1))
            if rest:
                raise self.wrong(value, f"; it has more than {self.scale} decimal places")
        if unscaled >= TEN ** self.precision:
            raise self.too_large(value)
        if sign:
            unscaled = -unscaled
        cell.word[0] = <uint64_t> (unscaled & 0xFFFFFFFFFFFFFFFF)
        cell.word[1] = <uint64_t> ((unscaled >> 64) & 0xFFFFFFFFFFFFFFFF)
        return 0

    @cython.final
    cdef object encode_text(self, object value, pst_cell *cell):
        cdef Py_ssize_t size = 0
        try:
            cell.bytes.data = <const uint8_t *> PyUnicode_AsUTF8AndSize(value, &size)
        except UnicodeEncodeError:
            raise self.wrong(value, "; it is not valid Unicode") from None
        self.check_size(size)
        cell.bytes.size = <uint32_t> size
        return value

    @cython.final
    cdef object encode_bytes(self, bytes value, pst_cell *cell):
        self.check_size(PyBytes_GET_SIZE(value))
        cell.bytes.data = <const uint8_t *> PyBytes_AS_STRING(value)
        cell.bytes.size = <uint32_t> PyBytes_GET_SIZE(value)
        return value

    @cython.final
    cdef int check_size(self, Py_ssize_t size) except -1:
        if size > PST_MAX_BYTES:
            raise errors.InvalidArgumentError(
                f"{self.label}: a value of {size} bytes; {PST_MAX_BYTES} are the most")
        return 0

    cdef object decode(self, const pst_cell *cell):
        cdef double number
        cdef float narrow
        cdef uint32_t bits
        if self.is_int:
            return PyLong_FromLongLong(<long long> cell.word[0])
        if self.code == PST_FLOAT64:
            memcpy(&number, cell.word, 8)
            return number
        if self.code == PST_STRING:
            return (<const char *> cell.bytes.data)[:cell.bytes.size].decode("utf-8") \
                if cell.bytes.size else ""
        if self.is_bytes:
            return PyBytes_FromStringAndSize(<const char *> cell.bytes.data, cell.bytes.size)
        if self.code == PST_BOOL:
            return cell.word[0] != 0
        if self.code == PST_FLOAT32:
            bits = <uint32_t> cell.word[0]
            memcpy(&narrow, &bits, 4)
            return <double> narrow
        try:
            if self.code == PST_DATE32:
                return datetime.date.fromordinal(<int64_t> cell.word[0] + 719163)
            if self.code == PST_TIMESTAMP:
                if not in_years(<int64_t> cell.word[0]):
                    raise OverflowError
                return instant(<int64_t> cell.word[0], None if self.naive else UTC)
        except (OverflowError, ValueError):
            raise errors.StateOverflowError(
                f"{self.label}: {<int64_t> cell.word[0]} since 1970 is no {self.ddl} that Python "
                "can hold (years 1 to 9999); read it as an Arrow column") from None
        unscaled = (<object> <int64_t> cell.word[1] << 64) | cell.word[0]
        return Decimal((1 if unscaled < 0 else 0, tuple(map(int, str(abs(unscaled)))),
                        -self.scale))

    def words(self, value):
        """Return the two words of a fixed-width value as a cell holds them."""
        cdef pst_cell cell
        self.encode(value, &cell)
        return cell.word[0], cell.word[1]

    def normalize(self, value):
        """Return the value as it would be read back; raises as `update` does."""
        cdef pst_cell cell
        owner = self.encode(value, &cell)
        result = self.decode(&cell)
        del owner
        return NAN if isinstance(result, float) and result != result else result


cdef Codec NO_CODEC = Codec.__new__(Codec)


cdef object plain_value(object value):
    """The Python value of a numpy or Arrow scalar; any other value itself."""
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        return value.item()
    if hasattr(value, "as_py"):
        return value.as_py()
    return value


cdef class Schema:
    """Key and state columns, as C sees them.

    `keys` and `states` are lists of `pystate.state.columns.Column`. The first `n_hashed` of the key
    columns (0: all) are the key, the others its namespace.
    """

    cdef pst_schema c
    cdef pst_column *columns
    cdef list names
    cdef readonly tuple key_codecs
    cdef readonly tuple state_codecs
    cdef readonly tuple map_codecs

    def __cinit__(self, keys, states, int32_t n_hashed=0):
        cdef int i = 0
        cdef pst_cell cell
        cdef Codec codec
        cdef pst_column *c
        keys, states = tuple(keys), tuple(states)
        if not 0 < len(keys) <= PST_MAX_KEYS:
            raise errors.InvalidArgumentError(
                f"a key has 1 to {PST_MAX_KEYS} columns, got {len(keys)}")
        if len(states) > PST_MAX_STATES:
            raise errors.InvalidArgumentError(
                f"an operator has at most {PST_MAX_STATES} states, got {len(states)}")
        self.columns = <pst_column *> calloc(len(keys) + len(states), sizeof(pst_column))
        if self.columns is NULL:
            raise MemoryError
        codecs = []
        map_codecs = []
        self.names = []
        for (name, code, precision, scale, ddl, default, kind, map_key, map_precision, map_scale,
             width, given, map_codec) in [*keys, *states]:
            codec = Codec(name, code, precision, scale, ddl) if given is None else given
            codecs.append(codec)
            map_codecs.append(map_codec)
            c = &self.columns[i]
            c.name = self.keep(name)
            c.type = <pst_type> <int> code
            c.precision = <uint8_t> <int> precision
            c.scale = <uint8_t> <int> scale
            c.kind = <uint8_t> <int> kind
            c.map_key = <uint8_t> <int> map_key
            c.map_precision = <uint8_t> <int> map_precision
            c.map_scale = <uint8_t> <int> map_scale
            c.width = <uint16_t> <int> width
            # Types that their code alone does not tell; a file without any is an older version's.
            if (code in (PST_FIXED, PST_NESTED) or map_key in (PST_FIXED, PST_NESTED)
                    or ddl.startswith("#")):
                c.ddl = self.keep(ddl)
            if default is not None and not codec.is_bytes:
                codec.encode(default, &cell)
                c.has_default = 1
                c.default_word[0] = cell.word[0]
                c.default_word[1] = cell.word[1]
            i += 1
        self.map_codecs = tuple(map_codecs[len(keys):])
        self.key_codecs = tuple(codecs[:len(keys)])
        self.state_codecs = tuple(codecs[len(keys):])
        self.c.n_keys = <int32_t> len(keys)
        self.c.n_states = <int32_t> len(states)
        self.c.keys = self.columns
        self.c.states = self.columns + len(keys)
        self.c.n_hashed = n_hashed

    cdef const char *keep(self, str text) except NULL:
        encoded = text.encode()
        self.names.append(encoded)
        return encoded

    def __dealloc__(self):
        free(self.columns)

    cdef object normal_key(self, object key, Py_ssize_t n):
        """Return a key of the first `n` columns in normal form."""
        cdef Codec codec
        if n == 1:
            codec = self.key_codecs[0]
            return codec.normalize(key)
        return tuple([None if value is None else codec.normalize(value)
                      for codec, value in zip(self.key_codecs[:n], key)])

    cdef object encode_key(self, object key, pst_cell *cells, uint32_t *nulls):
        """Fill a cell per key column; returns the owner of their bytes."""
        cdef Codec codec
        cdef int i
        nulls[0] = 0
        if len(self.key_codecs) == 1:
            if key is None:
                nulls[0] = 1
                return None
            codec = self.key_codecs[0]
            return codec.encode(key, cells)
        if not isinstance(key, (tuple, list)) or len(key) != len(self.key_codecs):
            raise errors.WrongTypeError(
                f"the key has {len(self.key_codecs)} columns "
                f"({', '.join([c.name for c in self.key_codecs])}): it is a tuple of as many "
                f"values, got {key!r:.80}")
        owners = []
        for i in range(len(self.key_codecs)):
            if key[i] is None:
                nulls[0] |= <uint32_t> 1 << i
            else:
                codec = self.key_codecs[i]
                owners.append(codec.encode(key[i], &cells[i]))
        return owners

    cdef object decode_key(self, const pst_cell *cells, uint32_t nulls):
        cdef Codec codec
        cdef int i
        if len(self.key_codecs) == 1:
            codec = self.key_codecs[0]
            return None if nulls & 1 else codec.decode(cells)
        values = []
        for i in range(len(self.key_codecs)):
            codec = self.key_codecs[i]
            values.append(None if nulls >> i & 1 else codec.decode(&cells[i]))
        return tuple(values)


cdef class ArrayRef:
    """An Arrow column by the addresses of its buffers, with the owner that keeps them alive."""

    cdef pst_array c
    cdef uint8_t precision
    cdef object owner
    cdef Memory copy
    cdef int64_t values_at
    cdef int64_t offsets_at
    cdef int64_t validity_at

    def __init__(self, int code, int precision, int64_t length, int64_t offset, size_t validity,
                 size_t values, size_t offsets, object owner, uint32_t width=0,
                 int64_t values_bytes=0):
        once(self.c.type != 0, "a reference")
        if offsets and not offsets_rise(<const int32_t *> offsets + offset, length, values_bytes):
            raise errors.InvalidArgumentError(
                "not a valid Arrow array: its offsets descend, or lead outside of its bytes; "
                "validate(full=True) of the array tells where")
        self.c.type = <pst_type> code
        self.precision = <uint8_t> precision
        self.c.length = length
        self.c.offset = offset
        self.c.validity = <const uint8_t *> validity
        self.c.values = <const void *> values
        self.c.offsets = <const int32_t *> offsets
        self.c.width = width
        self.c.values_bytes = values_bytes
        self.owner = owner

    def __len__(self):
        return self.c.length

    def part(self, int64_t at, int64_t length):
        """Return a column of some of the rows, or this one where these are all."""
        cdef ArrayRef some
        if at == 0 and length == self.c.length:
            return self
        if not 0 <= at <= at + length <= self.c.length:
            raise errors.InvalidArgumentError("there are not so many rows")
        some = ArrayRef.__new__(ArrayRef)
        some.c = self.c
        some.c.offset += at
        some.c.length = length
        some.precision = self.precision
        some.owner = self
        return some

    def own(self):
        """From now on, refer to a copy that nobody else can write to."""
        cdef int64_t first, begin = 0, end = 0, rows, i, ends_bytes = 0, bits, values, before, at
        cdef size_t width = cell_width(self.c.type)
        cdef const uint8_t *from_ = <const uint8_t *> self.c.values
        cdef Memory copy = Memory.__new__(Memory)
        cdef uint8_t *to
        cdef int32_t *ends
        if self.copy is not None or self.c.length == 0:
            return
        first = self.c.offset - self.c.offset % 8  # bits are copied by the byte
        rows = self.c.offset + self.c.length - first
        bits = (rows + 7) // 8
        if self.c.offsets is not NULL:
            begin = pst_load_offset(self.c.offsets + first)
            end = pst_load_offset(self.c.offsets + first + rows)
            ends_bytes = (rows + 1) * 4
        elif self.c.type == PST_BOOL:
            begin, end = first // 8, first // 8 + bits
        else:
            begin, end = first * <int64_t> width, (first + rows) * <int64_t> width
        if not 0 <= begin <= end or (ends_bytes and end > self.c.values_bytes):
            raise errors.InvalidArgumentError("not a valid Arrow array: its offsets lead outside")
        self.values_at = 0
        self.offsets_at = (end - begin + 63) // 64 * 64
        self.validity_at = self.offsets_at + (ends_bytes + 63) // 64 * 64
        if copy.borrow(<uint64_t> (self.validity_at + (bits if self.c.validity else 0))) != PST_OK:
            raise MemoryError
        to = copy.data
        if end > begin:
            memcpy(to, from_ + begin, <size_t> (end - begin))
        if ends_bytes:
            ends = <int32_t *> (to + self.offsets_at)
            before = begin
            for i in range(rows + 1):
                at = pst_load_offset(self.c.offsets + first + i)
                if at < before or at > end:
                    raise errors.InvalidArgumentError("not a valid Arrow array: its offsets descend")
                ends[i] = <int32_t> (at - begin)
                before = at
            self.c.offsets = ends
        if self.c.validity is not NULL:
            memcpy(to + self.validity_at, self.c.validity + first // 8, <size_t> bits)
            self.c.validity = to + self.validity_at
        self.c.values = to
        self.c.values_bytes = end - begin
        self.c.offset -= first
        self.copy = copy
        self.owner = None

    def parts(self):
        """Return the copy that `own` made: (buffer, offset in rows, validity, offsets, values). The
        last three are (place, size) in the buffer, or None where there is none."""
        cdef int64_t rows = self.c.offset + self.c.length
        return (self.copy, self.c.offset,
                (self.validity_at, (rows + 7) // 8) if self.c.validity else None,
                (self.offsets_at, (rows + 1) * 4) if self.c.offsets else None,
                (self.values_at, self.c.values_bytes))


cdef const pst_array *array_of(object reference) except NULL:
    return &(<ArrayRef?> reference).c


cdef bint offsets_rise(const int32_t *offsets, int64_t length, int64_t most) noexcept nogil:
    """Whether offsets rise and all values lie within `most` bytes."""
    cdef int64_t i
    cdef int falls = offsets[0] < 0
    for i in range(length):
        falls |= offsets[i + 1] < offsets[i]
    return not falls and offsets[length] <= most
