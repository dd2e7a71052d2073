# Nested values: structs, arrays and maps <-> bytes, one value at a time. The code here walks Python
# objects and hands their parts to the core, which knows the bytes.

from cpython.bytes cimport PyBytes_CheckExact
from cpython.dict cimport PyDict_CheckExact, PyDict_GetItemWithError
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_New, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_CheckExact, PyUnicode_DecodeUTF8


#: What a wrong value raises; a message grows from the leaf to the root.
cdef tuple REFUSALS = (
    errors.WrongTypeError, errors.StateOverflowError, errors.InvalidArgumentError)


cdef enum:
    SCALARS = 16  # the most that are handed over at once


cdef class NestedCodec(Codec):
    """One column of nested values. As a `Codec` it fills cells with the encoded bytes.

    What it knows is immutable, but for `tuples`, which its owner sets before it is used: safe from
    any thread. A type is named by its number in preorder.
    """

    cdef readonly NestedNode root
    cdef readonly uint32_t inline_bytes
    cdef NestedTree tree
    cdef public bint tuples  # a struct is given back as a tuple of its fields, not as a dict

    def __cinit__(self, str name, int code, str ddl, NestedNode root not None):
        self.root = root
        self.tree = NestedTree.of(root)
        self.inline_bytes = pst_nested_width(self.tree.c)

    def __init__(self, str name, int code, str ddl, NestedNode root):
        Codec.__init__(self, name, code, 0, 0, ddl)
        self.is_bytes = True

    # ---- Python -> bytes

    cdef object encode(self, object value, pst_cell *cell):
        cdef bytes data = self.packed(value)
        cell.word[0] = 0
        cell.word[1] = 0
        cell.bytes.data = <const uint8_t *> PyBytes_AS_STRING(data)
        cell.bytes.size = <uint32_t> PyBytes_GET_SIZE(data)
        return data

    def pack(self, value):
        """Return the value's bytes."""
        return self.packed(value)

    @cython.final
    cdef bytes packed(self, object value):
        cdef uint8_t room[512]
        cdef pst_nested_writer w
        pst_nested_writer_open(&w, self.tree.c, room, sizeof(room))
        try:
            self.put(self.root, 0, NULL, 0, value, &w)
            self.check_size(<Py_ssize_t> w.out.size)
            return PyBytes_FromStringAndSize(<const char *> w.out.data, <Py_ssize_t> w.out.size)
        except REFUSALS as error:
            raise type(error)(self.located(str(error))) from None
        finally:
            pst_nested_writer_close(&w)

    cdef str located(self, str message):
        """The message as the user sees it; it begins with a path, or with what follows one."""
        if message.startswith((".", "[")):
            message = f": field {message.removeprefix('.')}"
        return f"{self.label}{message}" if message[:1] in " :" else message

    # A value of type `at` is the `i`-th child of what is begun.

    @cython.final
    cdef int put(self, NestedNode node, int32_t at, const pst_nested_open *in_, uint64_t i,
                 object value, pst_nested_writer *w) except -1:
        if node.type.kind == PST_NESTED_SCALAR:
            return put_scalar(node.leaf, at, in_, i, value, w)
        if node.type.kind == PST_NESTED_STRUCT:
            if PyTuple_CheckExact(value) and len(<tuple> value) == node.type.n_children:
                return self.put_tuple(node, at, in_, i, <tuple> value, w)
            return self.put_struct(
                node, at, in_, i,
                <dict> value if PyDict_CheckExact(value) else self.fields(node, value), w)
        if node.type.kind == PST_NESTED_ARRAY:
            return self.put_array(node, at, in_, i, self.items(node, value), w)
        return self.put_map(node, at, in_, i, value, self.pairs(node, value), w)

    @cython.final
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

    @cython.final
    @cython.boundscheck(False)
    cdef int put_struct(self, NestedNode node, int32_t at, const pst_nested_open *in_, uint64_t i,
                        dict value, pst_nested_writer *w) except -1:
        cdef uint32_t k = 0
        cdef Py_ssize_t known = 0
        cdef PyObject *found
        cdef NestedNode child
        cdef pst_nested_open open
        cdef tuple names = node.names
        cdef tuple children = node.children
        written(pst_nested_put_struct(w, at, in_, i, &open))
        at += 1
        try:
            for k in range(node.type.n_children):
                child = <NestedNode> children[k]
                found = PyDict_GetItemWithError(value, <object> names[k])
                if found is not NULL:
                    known += 1
                    item = <object> found
                    if item is not None:
                        if child.type.kind == PST_NESTED_SCALAR:
                            put_scalar(child.leaf, at, &open, k, item, w)
                        else:
                            self.put(child, at, &open, k, item, w)
                at += child.span
        except REFUSALS as error:
            raise deeper(error, f".{names[k]}")
        if known != len(value):
            raise self.unknown(node, value)
        return 0

    @cython.final
    @cython.boundscheck(False)
    @cython.wraparound(False)
    cdef int put_tuple(self, NestedNode node, int32_t at, const pst_nested_open *in_, uint64_t i,
                       tuple value, pst_nested_writer *w) except -1:
        """A struct as a plain tuple of all its fields."""
        cdef uint32_t k = 0
        cdef NestedNode child
        cdef pst_nested_open open
        cdef tuple children = node.children
        written(pst_nested_put_struct(w, at, in_, i, &open))
        at += 1
        try:
            for k in range(node.type.n_children):
                child = <NestedNode> children[k]
                item = <object> value[k]
                if item is not None:
                    if child.type.kind == PST_NESTED_SCALAR:
                        put_scalar(child.leaf, at, &open, k, item, w)
                    else:
                        self.put(child, at, &open, k, item, w)
                at += child.span
        except REFUSALS as error:
            raise deeper(error, f".{node.names[k]}")
        return 0

    cdef object unknown(self, NestedNode node, dict value):
        name = next((n for n in value if n not in node.names), None)
        return node.wrong(value, f"; it has no field {name!r:.60}")

    @cython.final
    cdef int put_array(self, NestedNode node, int32_t at, const pst_nested_open *in_, uint64_t i,
                       tuple items, pst_nested_writer *w) except -1:
        cdef Py_ssize_t k = 0
        cdef NestedNode child = <NestedNode> node.children[0]
        cdef pst_nested_open open
        cdef Py_ssize_t n = 0
        cdef pst_cell cells[SCALARS]
        cdef bint nulls = has_none(items)
        written(pst_nested_put_array(w, at, in_, i, <uint64_t> len(items), nulls, &open))
        try:
            if child.fixed and not nulls:
                for k in range(len(items)):
                    encoded(child.leaf, items[k], &cells[n])
                    n += 1
                    if n == SCALARS or k + 1 == len(items):
                        written(pst_nested_put_scalars(
                            w, at + 1, &open, <uint64_t> (k + 1 - n), <uint64_t> n, cells))
                        n = 0
                return 0
            for k in range(len(items)):
                item = items[k]
                if item is None:
                    continue
                if child.type.kind == PST_NESTED_SCALAR:
                    put_scalar(child.leaf, at + 1, &open, <uint64_t> k, item, w)
                else:
                    self.put(child, at + 1, &open, <uint64_t> k, item, w)
        except REFUSALS as error:
            raise deeper(error, f"[{k}]")
        return 0

    @cython.final
    cdef tuple items(self, NestedNode node, object value):
        """A copy of an array's elements: the user's code may run while they are converted."""
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

    @cython.final
    cdef int put_map(self, NestedNode node, int32_t at, const pst_nested_open *in_, uint64_t i,
                     object value, dict pairs, pst_nested_writer *w) except -1:
        cdef tuple keys = tuple(pairs)
        cdef tuple values = tuple(pairs.values())
        cdef Py_ssize_t k = 0, place, n = len(keys)
        cdef uint64_t same = 0
        cdef pst_status status = PST_OK
        cdef NestedNode key = <NestedNode> node.children[0]
        cdef NestedNode below = <NestedNode> node.children[1]
        cdef pst_nested_open open
        if has_none(keys):
            raise node.wrong(value, "; a map's key is never None")
        written(pst_nested_put_map(w, at, in_, i, <uint64_t> n, has_none(values), &open))
        try:
            for k in range(n):
                put_scalar(key.leaf, at + 1, &open, <uint64_t> k, keys[k], w)
            status = pst_nested_put_keys(w, at, &open, &same)
            if status == PST_OK:
                for place in range(n):
                    k = <Py_ssize_t> pst_nested_entry_at(w, &open, <uint64_t> place)
                    item = values[k]
                    if item is not None:
                        self.put(below, at + 1 + key.span, &open, <uint64_t> place, item, w)
                pst_nested_end_map(w, &open)
        except REFUSALS as error:
            raise deeper(error, f"[{keys[k]!r:.60}]")
        if status == PST_WRONG_TYPE:
            raise node.wrong(value, f"; the key {keys[<Py_ssize_t> same]!r:.60} is there twice")
        return written(status)

    @cython.final
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
        # From a copy: making objects may run finalizers, which may write where the bytes lie.
        cdef uint8_t room[512]
        cdef bytes own
        if cell.bytes.size <= sizeof(room):
            memcpy(room, cell.bytes.data, cell.bytes.size)
            return self.unpack_from(room, cell.bytes.size)
        own = PyBytes_FromStringAndSize(<const char *> cell.bytes.data, cell.bytes.size)
        return self.unpack_from(<const uint8_t *> PyBytes_AS_STRING(own), cell.bytes.size)

    def unpack(self, data):
        """Return the value of some bytes."""
        cdef bytes own = None
        if PyBytes_CheckExact(data):
            own = <bytes> data
        elif data is not None:
            own = bytes(data) if isinstance(data, (bytearray, memoryview)) else data
        if own is None:
            raise errors.WrongTypeError(f"state {self.name!r}: expected bytes, got None")
        return self.unpack_from(<const uint8_t *> PyBytes_AS_STRING(own),
                                <size_t> PyBytes_GET_SIZE(own))

    cdef object unpack_from(self, const uint8_t *data, size_t size):
        cdef pst_nested_parser p
        cdef pst_status status = pst_nested_parser_open(&p, self.tree.c, data, size)
        if status != PST_OK:
            self.read(&p, status)
        try:
            if self.tuples and self.root.type.kind == PST_NESTED_STRUCT:
                value = self.take_tuple(self.root, 0, &p)
            else:
                value = self.take(self.root, 0, &p)
        except errors.StateOverflowError as error:
            raise errors.StateOverflowError(self.located(str(error))) from None
        self.read(&p, pst_nested_parser_finish(&p))
        return value

    @cython.final
    cdef int read(self, const pst_nested_parser *p, pst_status status) except -1:
        """Raise what reading ended with."""
        cdef pst_nested_fault fault
        if status == PST_OK:
            return 0
        pst_nested_parser_fault(p, &fault)
        raise errors.CorruptFileError(
            f"state {self.name!r}: stored bytes are no {self.ddl}: at byte {fault.at} of "
            f"{fault.size} they are {(<bytes> fault.what).decode()}")

    @cython.final
    cdef object take(self, NestedNode node, int32_t at, pst_nested_parser *p):
        if node.type.kind == PST_NESTED_STRUCT:
            return self.take_struct(node, at, p)
        if node.type.kind == PST_NESTED_ARRAY:
            return self.take_array(node, at, p)
        if node.type.kind == PST_NESTED_MAP:
            return self.take_map(node, at, p)
        return self.take_scalar(node, at, p)

    @cython.final
    cdef inline object take_scalar(self, NestedNode node, int32_t at, pst_nested_parser *p):
        cdef pst_cell cell
        cdef pst_status status = pst_nested_take_scalar(p, at, &cell)
        if status != PST_OK:
            self.read(p, status)
        return scalar(node, &cell)

    @cython.final
    cdef list take_scalars(self, NestedNode node, int32_t at, uint64_t n, pst_nested_parser *p):
        """Take values of one type, none of them null."""
        cdef pst_cell cells[SCALARS]
        cdef uint64_t k, some, done = 0
        cdef pst_status status
        cdef list found = PyList_New(<Py_ssize_t> n)  # at most eight for each byte
        while done < n:
            some = min(n - done, <uint64_t> SCALARS)
            status = pst_nested_take_scalars(p, at, some, cells)
            if status != PST_OK:
                self.read(p, status)
            for k in range(some):
                fill_item(found, done + k, scalar(node, &cells[k]))
            done += some
        return found

    @cython.final
    @cython.boundscheck(False)
    cdef dict take_struct(self, NestedNode node, int32_t at, pst_nested_parser *p):
        cdef uint32_t k
        cdef dict found = {}
        cdef NestedNode child
        cdef tuple names = node.names
        cdef tuple children = node.children
        cdef const uint8_t *bits = NULL
        cdef pst_status status = pst_nested_take_struct(p, at, &bits)
        if status != PST_OK:
            self.read(p, status)
        at += 1
        for k in range(node.type.n_children):
            child = <NestedNode> children[k]
            if not pst_nested_is_valid(p, at, bits, k):
                found[<object> names[k]] = None
            elif child.type.kind == PST_NESTED_SCALAR:
                found[<object> names[k]] = self.take_scalar(child, at, p)
            else:
                found[<object> names[k]] = self.take(child, at, p)
            at += child.span
        return found

    @cython.final
    @cython.boundscheck(False)
    @cython.wraparound(False)
    cdef tuple take_tuple(self, NestedNode node, int32_t at, pst_nested_parser *p):
        """A struct as a tuple; structs inside it are dicts."""
        cdef uint32_t k
        cdef tuple found = PyTuple_New(<Py_ssize_t> node.type.n_children)
        cdef NestedNode child
        cdef tuple children = node.children
        cdef const uint8_t *bits = NULL
        cdef pst_status status = pst_nested_take_struct(p, at, &bits)
        if status != PST_OK:
            self.read(p, status)
        at += 1
        for k in range(node.type.n_children):
            child = <NestedNode> children[k]
            if not pst_nested_is_valid(p, at, bits, k):
                item = None
            elif child.type.kind == PST_NESTED_SCALAR:
                item = self.take_scalar(child, at, p)
            else:
                item = self.take(child, at, p)
            Py_INCREF(item)
            PyTuple_SET_ITEM(found, <Py_ssize_t> k, item)
            at += child.span
        return found

    @cython.final
    @cython.boundscheck(False)
    @cython.wraparound(False)
    cdef list take_array(self, NestedNode node, int32_t at, pst_nested_parser *p):
        cdef uint64_t k, n = 0
        cdef const uint8_t *bits = NULL
        cdef list found
        cdef NestedNode child = <NestedNode> node.children[0]
        cdef pst_status status = pst_nested_take_array(p, at, &n, &bits)
        if status != PST_OK:
            self.read(p, status)
        at += 1
        if bits is NULL and child.type.kind == PST_NESTED_SCALAR:
            return self.take_scalars(child, at, n, p)
        found = PyList_New(<Py_ssize_t> n)
        for k in range(n):
            if not pst_nested_is_valid(p, at, bits, k):
                fill_item(found, k, None)
            elif child.type.kind == PST_NESTED_SCALAR:
                fill_item(found, k, self.take_scalar(child, at, p))
            else:
                fill_item(found, k, self.take(child, at, p))
        return found

    @cython.final
    @cython.boundscheck(False)
    @cython.wraparound(False)
    cdef dict take_map(self, NestedNode node, int32_t at, pst_nested_parser *p):
        cdef uint64_t k, n = 0
        cdef const uint8_t *bits = NULL
        cdef list keys
        cdef dict found = {}
        cdef NestedNode key = <NestedNode> node.children[0]
        cdef NestedNode below = <NestedNode> node.children[1]
        cdef pst_status status = pst_nested_take_array(p, at, &n, &bits)
        if status != PST_OK:
            self.read(p, status)
        at += 1
        keys = self.take_scalars(key, at, n, p)
        at += key.span
        if bits is NULL and below.type.kind == PST_NESTED_SCALAR:
            self.take_entries(below, at, n, keys, found, p)
            return found
        for k in range(n):
            if not pst_nested_is_valid(p, at, bits, k):
                found[<object> keys[k]] = None
            elif below.type.kind == PST_NESTED_SCALAR:
                found[<object> keys[k]] = self.take_scalar(below, at, p)
            else:
                found[<object> keys[k]] = self.take(below, at, p)
        return found

    @cython.final
    @cython.boundscheck(False)
    @cython.wraparound(False)
    cdef int take_entries(self, NestedNode below, int32_t at, uint64_t n, list keys, dict found,
                          pst_nested_parser *p) except -1:
        """Take a map's values, none of them null, behind its keys."""
        cdef pst_cell cells[SCALARS]
        cdef uint64_t k, some, done = 0
        cdef pst_status status
        while done < n:
            some = min(n - done, <uint64_t> SCALARS)
            status = pst_nested_take_scalars(p, at, some, cells)
            if status != PST_OK:
                self.read(p, status)
            for k in range(some):
                found[<object> keys[done + k]] = scalar(below, &cells[k])
            done += some
        return 0


cdef inline void fill_item(list items, uint64_t at, object item) noexcept:
    """Set an item of a list that has none there yet."""
    Py_INCREF(item)
    PyList_SET_ITEM(items, <Py_ssize_t> at, item)


cdef inline object scalar(NestedNode node, const pst_cell *cell):
    # The most frequent types come first, without a call by the codec's table.
    if node.leaf.is_int:
        return PyLong_FromLongLong(<long long> cell.word[0])
    if node.type.type == PST_STRING:
        return PyUnicode_DecodeUTF8(<const char *> cell.bytes.data,
                                    <Py_ssize_t> cell.bytes.size, NULL)
    return node.leaf.decode(cell)


cdef inline object encoded(Codec leaf, object value, pst_cell *cell):
    """As `Codec.encode`; what is frequent takes no call by a table of methods."""
    if leaf.is_int:
        leaf.encode_int(value, cell)
        return None
    if leaf.code == PST_STRING and PyUnicode_CheckExact(value):
        return leaf.encode_text(value, cell)
    return leaf.encode(value, cell)


cdef inline int put_scalar(Codec leaf, int32_t at, const pst_nested_open *in_, uint64_t i,
                           object value, pst_nested_writer *w) except -1:
    cdef pst_cell cell
    owner = encoded(leaf, value, &cell)
    return written(pst_nested_put_scalar(w, at, in_, i, &cell))


cdef inline int written(pst_status status) except -1:
    return 0 if status == PST_OK else refused(status)


cdef int refused(pst_status status) except -1:
    if status == PST_NO_MEMORY:
        raise MemoryError
    raise errors.InvalidArgumentError(f": {pst_status_name(status).decode()}")


cdef bint has_none(tuple items) noexcept:
    for item in items:
        if item is None:
            return True
    return False


cdef object deeper(object error, str step):
    """The error with one more step before its path."""
    return type(error)(step + str(error))
