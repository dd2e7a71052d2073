# Nested values: structs, arrays and maps <-> bytes, one value at a time. csrc/FORMAT.md has the
# layout. The files beside this one have what values and columns share, and the columns.

from cpython.dict cimport PyDict_CheckExact, PyDict_GetItemWithError
from cpython.unicode cimport PyUnicode_DecodeUTF8


#: What a wrong value raises; a message grows from the leaf to the root.
cdef tuple REFUSALS = (
    errors.WrongTypeError, errors.StateOverflowError, errors.InvalidArgumentError)


cdef class NestedNode:
    """A type inside a nested one, in preorder below the root; immutable."""

    cdef nested_shape shape
    cdef readonly tuple names
    cdef readonly tuple children
    cdef readonly str ddl
    cdef Codec leaf

    def __cinit__(self):
        self.names = self.children = ()
        self.shape.span = 1
        self.leaf = NO_CODEC

    def __init__(self, str name, int code, int precision, int scale, str ddl not None,
                 tuple names not None, tuple children not None, uint32_t width, bint is_key,
                 int bit, int at):
        cdef NestedNode child
        once(self.ddl is not None, "a type")
        if not all(isinstance(item, NestedNode) for item in children):
            raise errors.InvalidArgumentError(f"{ddl}: its children are types")
        memset(&self.shape, 0, sizeof(self.shape))
        self.names = names
        self.children = children
        self.ddl = ddl
        self.shape.kind = {"struct": NESTED_STRUCT, "array": NESTED_ARRAY, "map": NESTED_MAP}.get(
            name, NESTED_FIXED if width else NESTED_BYTES)
        self.shape.code = code
        self.shape.width = width
        self.shape.is_key = is_key
        self.shape.bit = bit
        self.shape.at = <uint32_t> max(at, 0)
        self.shape.count = <uint32_t> len(children)
        self.shape.span = 1
        for child in children:
            self.shape.span += child.shape.span
        if code == PST_DECIMAL:
            limit = TEN ** precision
            self.shape.limit[0] = <uint64_t> (limit & 0xFFFFFFFFFFFFFFFF)
            self.shape.limit[1] = <uint64_t> (limit >> 64)
        if not children:
            self.leaf = Codec("", code, precision, scale, ddl)
            self.leaf.label = ""

    cdef object wrong(self, object value, str hint=""):
        """An error whose message begins behind the value's path."""
        return errors.WrongTypeError(
            f" is {self.ddl}: it does not take {value!r:.80} ({type(value).__name__}){hint}")


cdef class NestedCodec(Codec):
    """One column of nested values. As a `Codec` it fills cells with the encoded bytes.

    What it knows is immutable: safe from any thread.
    """

    cdef readonly NestedNode root
    cdef readonly uint32_t inline_bytes
    cdef nested_shape *shapes  # of the root and all below it, in preorder
    cdef uint8_t *padding      # inline: bits that no field has

    def __cinit__(self, str name, int code, str ddl, NestedNode root not None,
                  uint32_t inline_bytes):
        if inline_bytes > PST_MAX_FIXED:
            raise errors.InvalidArgumentError(f"a struct of {inline_bytes} bytes in the row")
        self.root = root
        self.inline_bytes = inline_bytes
        self.shapes = <nested_shape *> calloc(<size_t> root.shape.span, sizeof(nested_shape))
        self.padding = <uint8_t *> calloc(1, inline_bytes + 1)
        if self.shapes is NULL or self.padding is NULL:
            raise MemoryError
        self.spread(root, 0, 0)
        if inline_bytes:
            nested_padding(self.shapes, inline_bytes, self.padding)

    def __init__(self, str name, int code, str ddl, NestedNode root, uint32_t inline_bytes):
        Codec.__init__(self, name, code, 0, 0, ddl)
        self.is_bytes = True

    def __dealloc__(self):
        free(self.shapes)
        free(self.padding)

    cdef int spread(self, NestedNode node, int i, int parent) except -1:
        cdef NestedNode child
        if self.inline_bytes and node is not self.root and (
                node.shape.bit >= 8 * <int> self.inline_bytes or node.shape.bit < 0
                or node.shape.at + node.shape.width > self.inline_bytes):
            raise errors.InvalidArgumentError(f"{node.ddl}: outside of the struct it is in")
        self.shapes[i] = node.shape
        self.shapes[i].parent = parent
        parent = i
        i += 1
        for child in node.children:
            i = self.spread(child, i, parent)
        return i

    # ---- Python -> bytes

    cdef object encode(self, object value, pst_cell *cell):
        cdef bytes data = self.pack(value)
        cell.word[0] = 0
        cell.word[1] = 0
        cell.bytes.data = <const uint8_t *> PyBytes_AS_STRING(data)
        cell.bytes.size = <uint32_t> PyBytes_GET_SIZE(data)
        return data

    def pack(self, value):
        """Return the value's bytes."""
        cdef uint8_t room[512]
        cdef nested_buffer out
        nested_begin(&out, room, sizeof(room))
        try:
            if self.inline_bytes:
                memset(room, 0, self.inline_bytes)
                self.put_inline(self.root, self.fields(self.root, value), room)
                out.size = self.inline_bytes
            else:
                self.put(self.root, value, &out)
            self.check_size(<Py_ssize_t> out.size)
            return PyBytes_FromStringAndSize(<const char *> out.data, <Py_ssize_t> out.size)
        except REFUSALS as error:
            raise type(error)(self.located(str(error))) from None
        finally:
            nested_end(&out)

    cdef str located(self, str message):
        """A message that begins with a path, or behind it, as the user sees it."""
        if message.startswith((".", "[")):
            message = f": field {message.removeprefix('.')}"
        return f"{self.label}{message}" if message[:1] in " :" else message

    cdef int put(self, NestedNode node, object value, nested_buffer *out) except -1:
        cdef pst_cell cell
        cdef uint8_t *to
        if node.shape.kind == NESTED_STRUCT:
            return self.put_struct(node, self.fields(node, value), out)
        if node.shape.kind == NESTED_ARRAY:
            return self.put_array(node, value, out)
        if node.shape.kind == NESTED_MAP:
            return self.put_map(node, value, out)
        owner = node.leaf.encode(value, &cell)
        if node.shape.kind == NESTED_FIXED:
            nested_canonical(&node.shape, cell.word)
            to = nested_room(out, node.shape.width)
            if to is NULL:
                raise MemoryError
            nested_store(to, cell.word, node.shape.width)
        elif nested_put_bytes(out, cell.bytes.data, cell.bytes.size) < 0:
            raise MemoryError
        return 0

    cdef dict fields(self, NestedNode node, object value):
        """A struct's value as a dict; its names are looked at later."""
        if PyDict_CheckExact(value):
            return <dict> value
        if isinstance(value, tuple):
            names = getattr(value, "_fields", None) or getattr(value, "__fields__", node.names)
            if len(names) != len(value):
                raise node.wrong(value, f"; it has {len(node.names)} fields")
            return dict(zip(names, value))
        if isinstance(value, Mapping):
            return dict(value)
        plain = plain_value(value)
        if type(plain) is type(value):
            raise node.wrong(value)
        Py_EnterRecursiveCall(" while a struct was encoded")
        try:
            return self.fields(node, plain)
        finally:
            Py_LeaveRecursiveCall()

    cdef int put_struct(self, NestedNode node, dict value, nested_buffer *out) except -1:
        cdef uint32_t i = 0
        cdef Py_ssize_t known = 0
        cdef size_t bits = out.size
        cdef PyObject *found
        cdef uint8_t *to = nested_room(out, (node.shape.count + 7) >> 3)
        if to is NULL:
            raise MemoryError
        memset(to, 0, (node.shape.count + 7) >> 3)
        try:
            for i in range(node.shape.count):
                found = PyDict_GetItemWithError(value, <object> node.names[i])
                if found is NULL:
                    continue
                known += 1
                item = <object> found
                if item is not None:
                    out.data[bits + (i >> 3)] |= <uint8_t> (1 << (i & 7))
                    self.put(<NestedNode> node.children[i], item, out)
        except REFUSALS as error:
            raise deeper(error, f".{node.names[i]}")
        if known != len(value):
            raise self.unknown(node, value)
        return 0

    cdef int put_inline(self, NestedNode node, dict value, uint8_t *to) except -1:
        cdef uint32_t i = 0
        cdef Py_ssize_t known = 0
        cdef PyObject *found
        cdef NestedNode child
        cdef pst_cell cell
        try:
            for i in range(node.shape.count):
                found = PyDict_GetItemWithError(value, <object> node.names[i])
                if found is NULL:
                    continue
                known += 1
                item = <object> found
                if item is None:
                    continue
                child = <NestedNode> node.children[i]
                to[child.shape.bit >> 3] |= <uint8_t> (1 << (child.shape.bit & 7))
                if child.shape.kind == NESTED_STRUCT:
                    self.put_inline(child, self.fields(child, item), to)
                else:
                    child.leaf.encode(item, &cell)
                    nested_canonical(&child.shape, cell.word)
                    nested_store(to + child.shape.at, cell.word, child.shape.width)
        except REFUSALS as error:
            raise deeper(error, f".{node.names[i]}")
        if known != len(value):
            raise self.unknown(node, value)
        return 0

    cdef object unknown(self, NestedNode node, dict value):
        name = next((n for n in value if n not in node.names), None)
        return node.wrong(value, f"; it has no field {name!r:.60}")

    cdef int put_array(self, NestedNode node, object value, nested_buffer *out) except -1:
        cdef Py_ssize_t i = 0
        cdef tuple items = self.items(node, value)
        cdef NestedNode child = <NestedNode> node.children[0]
        cdef size_t bits
        cdef bint nulls = has_none(items)
        if nested_put_count(out, <uint64_t> len(items), nulls, &bits) < 0:
            raise MemoryError
        try:
            for i in range(len(items)):
                item = items[i]
                if item is not None:
                    if nulls:
                        out.data[bits + (i >> 3)] |= <uint8_t> (1 << (i & 7))
                    self.put(child, item, out)
        except REFUSALS as error:
            raise deeper(error, f"[{i}]")
        return 0

    cdef tuple items(self, NestedNode node, object value):
        """An array's elements, a copy: what converts them may be the user's code."""
        if isinstance(value, (list, tuple)):
            return tuple(value)
        if hasattr(value, "tolist") and getattr(value, "ndim", 1) == 1:
            return tuple(value.tolist())
        if hasattr(value, "to_pylist"):
            return tuple(value.to_pylist())
        if isinstance(value, Sequence) and not isinstance(
                value, (str, bytes, bytearray, memoryview)):
            return tuple(value)
        plain = plain_value(value)
        if type(plain) is type(value):
            raise node.wrong(value)
        Py_EnterRecursiveCall(" while an array was encoded")
        try:
            return self.items(node, plain)
        finally:
            Py_LeaveRecursiveCall()

    cdef int put_map(self, NestedNode node, object value, nested_buffer *out) except -1:
        cdef dict pairs = self.pairs(node, value)
        if None in pairs:
            raise node.wrong(value, "; a map's key is never None")
        cdef tuple keys = tuple(pairs)
        cdef tuple values = tuple(pairs.values())
        cdef Py_ssize_t i = 0, n = len(keys), same
        cdef size_t start = out.size
        cdef NestedNode key = <NestedNode> node.children[0]
        cdef nested_span *spans = <nested_span *> malloc(<size_t> (n + 1) * sizeof(nested_span))
        if spans is NULL:
            raise MemoryError
        try:
            for i in range(n):
                spans[i].at = out.size
                self.put(key, keys[i], out)
                spans[i].middle = out.size
                item = values[i]
                spans[i].is_null = item is None
                if item is not None:
                    self.put(<NestedNode> node.children[1], item, out)
                spans[i].end = out.size
            same = nested_put_map(&key.shape, out, start, spans, n)
        except REFUSALS as error:
            raise deeper(error, f"[{keys[i]!r:.60}]")
        finally:
            free(spans)
        if same == -2:
            raise MemoryError
        if same >= 0:
            raise node.wrong(value, f"; the key {keys[same]!r:.60} is there twice")
        return 0

    cdef dict pairs(self, NestedNode node, object value):
        if isinstance(value, Mapping):
            return value if PyDict_CheckExact(value) else dict(value)
        if isinstance(value, (list, tuple)):
            if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in value):
                raise node.wrong(value, "; a map is a dict, or a list of (key, value)")
            try:
                found = dict(value)
            except TypeError:
                raise node.wrong(value, "; a key cannot be hashed") from None
            if len(found) != len(value):
                raise node.wrong(value, "; a key is there twice")
            return found
        plain = plain_value(value)
        if type(plain) is type(value):
            raise node.wrong(value)
        Py_EnterRecursiveCall(" while a map was encoded")
        try:
            return self.pairs(node, plain)
        finally:
            Py_LeaveRecursiveCall()

    # ---- bytes -> Python

    cdef object decode(self, const pst_cell *cell):
        # Of a copy: what is made may run anyone's finalizers, which may write where the bytes lie.
        cdef uint8_t room[512]
        cdef bytes own
        if cell.bytes.size <= sizeof(room):
            memcpy(room, cell.bytes.data, cell.bytes.size)
            return self.unpack_from(room, cell.bytes.size)
        own = PyBytes_FromStringAndSize(<const char *> cell.bytes.data, cell.bytes.size)
        return self.unpack_from(<const uint8_t *> PyBytes_AS_STRING(own), cell.bytes.size)

    def unpack(self, data):
        """Return the value of some bytes."""
        cdef bytes own = bytes(data) if isinstance(data, (bytearray, memoryview)) else data
        if own is None:
            raise errors.WrongTypeError(f"state {self.name!r}: expected bytes, got None")
        return self.unpack_from(<const uint8_t *> PyBytes_AS_STRING(own),
                                <size_t> PyBytes_GET_SIZE(own))

    cdef object unpack_from(self, const uint8_t *data, size_t size):
        cdef nested_reader r
        nested_open(&r, data, size)
        try:
            if self.inline_bytes:
                if size != self.inline_bytes:
                    r.fault = "of another length"
                    raise self.damaged(&r)
                r.fault = nested_inline_fault(self.shapes, data, size, self.padding)
                if r.fault is not NULL:
                    raise self.damaged(&r)
                return self.take_inline(self.root, data)
            value = self.take(self.root, &r)
            if r.at != r.end:
                r.fault = "longer than their value"
                raise self.damaged(&r)
            return value
        except UnicodeDecodeError:
            r.fault = "no valid UTF-8"
            raise self.damaged(&r) from None
        except errors.StateOverflowError as error:
            raise errors.StateOverflowError(self.located(str(error))) from None

    cdef object damaged(self, const nested_reader *r):
        return errors.CorruptFileError(
            f"state {self.name!r}: stored bytes are no {self.ddl}: at byte {r.at - r.data} of "
            f"{r.end - r.data} they are {(<bytes> r.fault).decode()}")

    cdef object take(self, NestedNode node, nested_reader *r):
        cdef pst_cell cell
        cdef uint64_t size
        cdef const uint8_t *at
        if node.shape.kind == NESTED_STRUCT:
            return self.take_struct(node, r)
        if node.shape.kind == NESTED_ARRAY:
            return self.take_array(node, r)
        if node.shape.kind == NESTED_MAP:
            return self.take_map(node, r)
        at = nested_take_leaf(&node.shape, r, &size)
        if at is NULL:
            raise self.damaged(r)
        if node.shape.kind == NESTED_FIXED:
            nested_load(&node.shape, at, cell.word)
            return node.leaf.decode(&cell)
        if node.shape.code == PST_STRING:
            return PyUnicode_DecodeUTF8(<const char *> at, <Py_ssize_t> size, NULL)
        return PyBytes_FromStringAndSize(<const char *> at, <Py_ssize_t> size)

    cdef dict take_struct(self, NestedNode node, nested_reader *r):
        cdef uint32_t i
        cdef dict found = {}
        cdef const uint8_t *bits = nested_take_bits(r, node.shape.count)
        if bits is NULL:
            raise self.damaged(r)
        for i in range(node.shape.count):
            found[<object> node.names[i]] = (
                self.take(<NestedNode> node.children[i], r) if bits[i >> 3] >> (i & 7) & 1
                else None)
        return found

    cdef dict take_inline(self, NestedNode node, const uint8_t *data):
        cdef uint32_t i
        cdef dict found = {}
        cdef pst_cell cell
        cdef NestedNode child
        for i in range(node.shape.count):
            child = <NestedNode> node.children[i]
            if not data[child.shape.bit >> 3] >> (child.shape.bit & 7) & 1:
                value = None
            elif child.shape.kind == NESTED_STRUCT:
                value = self.take_inline(child, data)
            else:
                nested_load(&child.shape, data + child.shape.at, cell.word)
                value = child.leaf.decode(&cell)
            found[<object> node.names[i]] = value
        return found

    cdef list take_array(self, NestedNode node, nested_reader *r):
        cdef uint64_t i, n
        cdef const uint8_t *bits
        cdef list found = []
        cdef NestedNode child = <NestedNode> node.children[0]
        if nested_take_count(r, &n, &bits) < 0:
            raise self.damaged(r)
        for i in range(n):
            found.append(self.take(child, r) if bits is NULL or bits[i >> 3] >> (i & 7) & 1
                         else None)
        return found

    cdef dict take_map(self, NestedNode node, nested_reader *r):
        cdef uint64_t i, n
        cdef const uint8_t *bits
        cdef const uint8_t *before = NULL
        cdef const uint8_t *at
        cdef list keys = []
        cdef dict found = {}
        cdef NestedNode key = <NestedNode> node.children[0]
        if nested_take_count(r, &n, &bits) < 0:
            raise self.damaged(r)
        for i in range(n):
            at = r.at
            keys.append(self.take(key, r))
            if before is not NULL and not nested_ascends(&key.shape, before, at):
                r.fault = "a map whose keys do not ascend"
                raise self.damaged(r)
            before = at
        for i in range(n):
            found[keys[i]] = (
                self.take(<NestedNode> node.children[1], r)
                if bits is NULL or bits[i >> 3] >> (i & 7) & 1 else None)
        return found


cdef bint has_none(tuple items) noexcept:
    for item in items:
        if item is None:
            return True
    return False


cdef object deeper(object error, str step):
    """The error with one more step before its path."""
    return type(error)(step + str(error))
