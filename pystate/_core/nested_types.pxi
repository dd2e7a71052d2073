# Nested values: the types that they have, for walking Python objects and for the core.

cdef class NestedNode:
    """A type inside a nested one, in preorder below the root; immutable."""

    cdef pst_nested_type type
    cdef int32_t span   # types in this subtree
    cdef int depth
    cdef readonly tuple names
    cdef readonly tuple children
    cdef readonly str ddl
    cdef Codec leaf
    cdef bint fixed     # a scalar of fixed width

    def __cinit__(self):
        self.names = self.children = ()
        self.span = self.depth = 1
        self.leaf = NO_CODEC

    def __init__(self, str name, int code, int precision, int scale, str ddl not None,
                 tuple names not None, tuple children not None):
        cdef NestedNode child
        once(self.ddl is not None, "a type")
        if not all(isinstance(item, NestedNode) for item in children):
            raise errors.InvalidArgumentError(f"{ddl}: its children are types")
        self.names = names
        self.children = children
        self.ddl = ddl
        self.type = nested_type(name, code, precision, len(children), scale)
        for child in children:
            self.span += child.span
            self.depth = max(self.depth, child.depth + 1)
        if self.depth > PST_NESTED_LEVELS + 1:
            raise errors.InvalidArgumentError(f"{ddl:.80}: more than {PST_NESTED_LEVELS} levels")
        if self.type.kind == PST_NESTED_STRUCT and len(names) != len(children):
            raise errors.InvalidArgumentError(f"{ddl}: a name for each of its fields")
        self.fixed = self.type.kind == PST_NESTED_SCALAR and self.type.type < PST_STRING
        if not children:
            self.leaf = Codec("", code, precision, scale, ddl)
            self.leaf.label = ""

    cdef object wrong(self, object value, str hint=""):
        """An error whose message begins behind the value's path."""
        return errors.WrongTypeError(
            f" is {self.ddl}: it does not take {value!r:.80} ({type(value).__name__}){hint}")

    cdef int32_t spread(self, pst_nested_type *types, int32_t i) noexcept:
        """Write the tree in preorder from number `i` on; returns the next number."""
        cdef NestedNode child
        types[i] = self.type
        i += 1
        for item in self.children:
            child = <NestedNode> item
            i = child.spread(types, i)
        return i


cdef dict NESTED_KINDS = {
    "struct": PST_NESTED_STRUCT, "array": PST_NESTED_ARRAY, "map": PST_NESTED_MAP}


cdef pst_nested_type nested_type(str name, int code, int precision, Py_ssize_t children,
                                 int scale=0):
    cdef pst_nested_type found
    found.kind = <uint8_t> <int> NESTED_KINDS.get(name, PST_NESTED_SCALAR)
    found.type = <uint8_t> code
    found.precision = <uint8_t> precision
    found.n_children = <uint32_t> children
    found.scale = <uint8_t> scale
    return found


cdef class NestedTree:
    """The core's form of a tree of types; immutable."""

    cdef pst_nested *c

    def __dealloc__(self):
        pst_nested_destroy(self.c)

    cdef int create(self, const pst_nested_type *types, int32_t n, str ddl) except -1:
        cdef pst_status status = pst_nested_create(types, n, &self.c)
        if status == PST_NO_MEMORY:
            raise MemoryError
        if status != PST_OK:
            raise errors.InvalidArgumentError(f"{ddl!s:.80}: no tree of types that nest")
        return 0

    @staticmethod
    cdef NestedTree of(NestedNode root):
        cdef NestedTree tree = NestedTree.__new__(NestedTree)
        cdef pst_nested_type *types = <pst_nested_type *> malloc(
            <size_t> root.span * sizeof(pst_nested_type))
        if types is NULL:
            raise MemoryError
        try:
            tree.create(types, root.spread(types, 0), root.ddl)
        finally:
            free(types)
        return tree


def nested_places(types):
    """Return where scalars lie in values of constant width: (width, ((bit, offset), ...)).

    `types` are (name, code, precision, children) in preorder; the places are those of all but the
    root. (0, ()) where values have no constant width.
    """
    cdef tuple given = tuple(types)
    cdef NestedTree tree = NestedTree.__new__(NestedTree)
    cdef int32_t i, bit = -1, at = -1, n = <int32_t> len(given)
    cdef pst_nested_type *c = <pst_nested_type *> malloc(
        <size_t> (n + 1) * sizeof(pst_nested_type))
    if c is NULL:
        raise MemoryError
    try:
        for i, (name, code, precision, children) in enumerate(given):
            c[i] = nested_type(name, code, precision, children)
        tree.create(c, n, "a type")
    finally:
        free(c)
    places = []
    for i in range(1, n if pst_nested_width(tree.c) else 0):
        pst_nested_place(tree.c, i, &bit, &at)
        places.append((bit, at))
    return pst_nested_width(tree.c), tuple(places)
