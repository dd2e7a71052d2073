# What single nested values and columns of them share: buffers, scalars, the order of a map's
# entries. No Python objects; csrc/FORMAT.md ("Nested values") has the layout.

from libc.string cimport memcmp

cdef enum:
    NESTED_FIXED
    NESTED_BYTES
    NESTED_STRUCT
    NESTED_ARRAY
    NESTED_MAP

cdef struct nested_shape:  # one type of the tree, which lies in preorder
    int kind
    int code            # of a scalar
    int parent          # index
    int span            # types in this subtree
    uint32_t count      # children
    uint32_t width      # of a fixed-width scalar
    uint32_t at         # inline: where the value lies
    int bit             # inline: which bit says that it is there; of the root -1
    bint is_key
    uint64_t limit[2]   # decimals are smaller

cdef struct nested_buffer:  # bytes that grow
    uint8_t *data
    size_t size
    size_t capacity
    uint8_t *heap

cdef struct nested_reader:  # bytes that may be damaged
    const uint8_t *data
    const uint8_t *at
    const uint8_t *end
    const char *fault

cdef struct nested_span:  # one entry of a map in a buffer
    size_t at        # key
    size_t middle    # value
    size_t end
    Py_ssize_t index
    bint is_null     # the value
    const nested_shape *shape
    const uint8_t *key


cdef extern from *:
    """
    #include <stdint.h>
    /* Loads an offset once, however often it is used: its owner may write to it meanwhile. */
    static inline int64_t pst_load_offset(const int32_t *at) {
        return __atomic_load_n(at, __ATOMIC_RELAXED);
    }
    """
    int64_t pst_load_offset(const int32_t *at) noexcept nogil


# ---- writing

cdef inline void nested_begin(nested_buffer *b, uint8_t *room, size_t capacity) noexcept nogil:
    b.data = room
    b.size = 0
    b.capacity = capacity
    b.heap = NULL


cdef inline void nested_end(nested_buffer *b) noexcept nogil:
    free(b.heap)
    b.heap = NULL


cdef uint8_t *nested_grow(nested_buffer *b, size_t more) noexcept nogil:
    cdef size_t capacity = max(2 * b.capacity, max(b.size + more, <size_t> 64))
    cdef uint8_t *grown = <uint8_t *> realloc(b.heap, capacity)
    if grown is NULL:
        return NULL
    if b.heap is NULL and b.size:
        memcpy(grown, b.data, b.size)
    b.heap = grown
    b.data = grown
    b.capacity = capacity
    b.size += more
    return grown + b.size - more


cdef inline uint8_t *nested_room(nested_buffer *b, size_t more) noexcept nogil:
    """Room for so many bytes at the end, NULL without memory."""
    if b.capacity - b.size < more or b.capacity == 0:
        return nested_grow(b, more)
    b.size += more
    return b.data + b.size - more


cdef inline int nested_put_varint(nested_buffer *b, uint64_t number) noexcept nogil:
    cdef uint8_t *to = nested_room(b, 10)
    cdef size_t n = 0
    if to is NULL:
        return -1
    while number > 127:
        to[n] = <uint8_t> (number | 128)
        number >>= 7
        n += 1
    to[n] = <uint8_t> number
    b.size -= 9 - n
    return 0


cdef inline int nested_put_bytes(nested_buffer *b, const uint8_t *data, size_t n) noexcept nogil:
    cdef uint8_t *to
    if nested_put_varint(b, n) < 0:
        return -1
    to = nested_room(b, n)
    if to is NULL:
        return -1
    if n:
        memcpy(to, data, n)
    return 0


cdef int nested_put_count(nested_buffer *b, uint64_t n, bint nulls, size_t *bits) noexcept nogil:
    """An array's or map's head; the validity bits, at `bits`, are all zero."""
    cdef uint8_t *to
    if nested_put_varint(b, n << 1 | nulls) < 0:
        return -1
    bits[0] = b.size
    if nulls:
        to = nested_room(b, (n + 7) >> 3)
        if to is NULL:
            return -1
        memset(to, 0, (n + 7) >> 3)
    return 0


cdef int nested_compare(const nested_span *a, const nested_span *b) noexcept nogil:
    return nested_order(a.shape, a.key, b.key)


cdef Py_ssize_t nested_put_map(const nested_shape *key, nested_buffer *b, size_t start,
                               nested_span *spans, Py_ssize_t n) noexcept nogil:
    """Put the entries that lie behind `start` in any order into the map's form.

    Returns -1, -2 without memory, or the number of an entry whose key is there already.
    """
    cdef size_t size = b.size - start
    cdef size_t bits
    cdef Py_ssize_t i
    cdef bint sorted_ = True, nulls = False
    cdef uint8_t *entries = <uint8_t *> malloc(size + 1)
    if entries is NULL:
        return -2
    memcpy(entries, b.data + start, size)
    for i in range(n):
        spans[i].index = i
        spans[i].shape = key
        spans[i].key = entries + (spans[i].at - start)
        nulls |= spans[i].is_null
        if i and sorted_:
            sorted_ = nested_compare(&spans[i - 1], &spans[i]) < 0
    if not sorted_:
        qsort(spans, <size_t> n, sizeof(nested_span),
              <int (*)(const void *, const void *) noexcept nogil> &nested_compare)
        for i in range(1, n):
            if nested_compare(&spans[i - 1], &spans[i]) == 0:
                free(entries)
                return spans[i].index
    b.size = start
    if nested_put_count(b, <uint64_t> n, nulls, &bits) < 0 or nested_room(b, size) is NULL:
        free(entries)
        return -2
    b.size -= size
    for i in range(n):
        memcpy(b.data + b.size, spans[i].key, spans[i].middle - spans[i].at)
        b.size += spans[i].middle - spans[i].at
    for i in range(n):
        memcpy(b.data + b.size, spans[i].key + (spans[i].middle - spans[i].at),
               spans[i].end - spans[i].middle)
        b.size += spans[i].end - spans[i].middle
        if nulls and not spans[i].is_null:
            b.data[bits + <size_t> (i >> 3)] |= <uint8_t> (1 << (i & 7))
    free(entries)
    return -1


# ---- scalars

cdef inline void nested_canonical(const nested_shape *s, uint64_t *word) noexcept nogil:
    """Give every NaN the same bits; in a map's key also both zeros."""
    if s.code == PST_FLOAT64:
        if word[0] << 1 > <uint64_t> 0xFFE0000000000000:
            word[0] = 0x7FF8000000000000
        elif s.is_key and word[0] << 1 == 0:
            word[0] = 0
    elif s.code == PST_FLOAT32:
        if (word[0] & 0x7FFFFFFF) > 0x7F800000:
            word[0] = 0x7FC00000
        elif s.is_key and (word[0] & 0x7FFFFFFF) == 0:
            word[0] = 0


cdef inline void nested_load(const nested_shape *s, const uint8_t *at,
                             uint64_t *word) noexcept nogil:
    """Load a fixed-width value as a cell has it: integers sign-extended."""
    cdef int8_t n8
    cdef int16_t n16
    cdef int32_t n32
    word[1] = 0
    if s.width == 8:
        memcpy(word, at, 8)
    elif s.width == 4:
        memcpy(&n32, at, 4)
        word[0] = <uint64_t> <int64_t> n32 if s.code != PST_FLOAT32 else <uint32_t> n32
    elif s.width == 16:
        memcpy(word, at, 16)
    elif s.width == 2:
        memcpy(&n16, at, 2)
        word[0] = <uint64_t> <int64_t> n16
    else:
        memcpy(&n8, at, 1)
        word[0] = <uint64_t> <int64_t> n8


cdef inline void nested_store(uint8_t *to, const void *word, uint32_t width) noexcept nogil:
    """Copy a fixed-width value. Each width by itself: a copy of a known size is one instruction."""
    if width == 8:
        memcpy(to, word, 8)
    elif width == 4:
        memcpy(to, word, 4)
    elif width == 16:
        memcpy(to, word, 16)
    elif width == 2:
        memcpy(to, word, 2)
    else:
        memcpy(to, word, 1)


cdef inline bint nested_in_limit(const nested_shape *s, const uint64_t *word) noexcept nogil:
    """Whether a decimal has no more digits than its type."""
    cdef uint64_t low = word[0]
    cdef uint64_t high = word[1]
    if high >> 63:
        low = ~low + 1
        high = ~high + (low == 0)
    return high < s.limit[1] or (high == s.limit[1] and low < s.limit[0])


cdef inline const char *nested_fixed_fault(const nested_shape *s,
                                           const uint8_t *at) noexcept nogil:
    """What is wrong with a fixed-width value, NULL if it could have been written."""
    cdef uint64_t word[2]
    cdef uint64_t same
    if s.code == PST_BOOL:
        if at[0] > 1:
            return "a boolean that is neither 0 nor 1"
    elif s.code == PST_FLOAT64 or s.code == PST_FLOAT32:
        nested_load(s, at, word)
        same = word[0]
        nested_canonical(s, word)
        if word[0] != same:
            return "a number that is not canonical"
    elif s.code == PST_DECIMAL:
        nested_load(s, at, word)
        if not nested_in_limit(s, word):
            return "a decimal of too many digits"
    return NULL


cdef int nested_order(const nested_shape *s, const uint8_t *a, const uint8_t *b) noexcept nogil:
    """Compare two map keys as they are encoded: < 0, 0, > 0. Both are sound."""
    cdef uint64_t x[2]
    cdef uint64_t y[2]
    cdef uint64_t n, m
    cdef int found
    if s.kind == NESTED_BYTES:
        a = nested_skip_varint(a, &n)
        b = nested_skip_varint(b, &m)
        found = memcmp(a, b, min(n, m))
        return found if found else (n > m) - (n < m)
    nested_load(s, a, x)
    nested_load(s, b, y)
    if s.width == 16:
        if x[1] != y[1]:
            return 1 if <int64_t> x[1] > <int64_t> y[1] else -1
        return (x[0] > y[0]) - (x[0] < y[0])
    # Floats by their bits: below zero the larger bits are the smaller number.
    if s.code == PST_FLOAT32:
        x[0] = <uint64_t> <int64_t> <int32_t> x[0]
        y[0] = <uint64_t> <int64_t> <int32_t> y[0]
    if s.code == PST_FLOAT32 or s.code == PST_FLOAT64:
        if x[0] >> 63:
            x[0] ^= <uint64_t> INT64_MAX
        if y[0] >> 63:
            y[0] ^= <uint64_t> INT64_MAX
    return (<int64_t> x[0] > <int64_t> y[0]) - (<int64_t> x[0] < <int64_t> y[0])


cdef inline bint nested_ascends(const nested_shape *s, const uint8_t *a,
                                const uint8_t *b) noexcept nogil:
    return nested_order(s, a, b) < 0


cdef bint nested_is_utf8(const uint8_t *s, size_t n) noexcept nogil:
    """Whether bytes are UTF-8: shortest forms, no surrogates, up to U+10FFFF."""
    cdef size_t i = 0, more
    cdef uint64_t word
    cdef uint8_t low, high
    while i < n:
        if n - i >= 8:
            memcpy(&word, s + i, 8)
            if not word & <uint64_t> 0x8080808080808080:
                i += 8
                continue
        low, high = 0x80, 0xBF
        if s[i] < 0x80:
            i += 1
            continue
        elif 0xC2 <= s[i] <= 0xDF:
            more = 1
        elif 0xE0 <= s[i] <= 0xEF:
            more = 2
            low = 0xA0 if s[i] == 0xE0 else 0x80
            high = 0x9F if s[i] == 0xED else 0xBF
        elif 0xF0 <= s[i] <= 0xF4:
            more = 3
            low = 0x90 if s[i] == 0xF0 else 0x80
            high = 0x8F if s[i] == 0xF4 else 0xBF
        else:
            return False
        if n - i <= more or not low <= s[i + 1] <= high:
            return False
        for word in range(2, more + 1):
            if s[i + word] & 0xC0 != 0x80:
                return False
        i += more + 1
    return True


# ---- reading

cdef inline void nested_open(nested_reader *r, const uint8_t *data, size_t size) noexcept nogil:
    r.data = data
    r.at = data
    r.end = data + size
    r.fault = NULL


cdef inline const uint8_t *nested_skip_varint(const uint8_t *at, uint64_t *number) noexcept nogil:
    """Read a varint that is known to be sound; returns what follows it."""
    cdef int shift = 0
    number[0] = 0
    while at[0] & 128:
        number[0] |= <uint64_t> (at[0] & 127) << shift
        shift += 7
        at += 1
    number[0] |= <uint64_t> at[0] << shift
    return at + 1


cdef inline int nested_take_varint(nested_reader *r, uint64_t *number) noexcept nogil:
    cdef int shift = 0
    cdef uint8_t byte = 128
    number[0] = 0
    while byte & 128:
        if r.at == r.end or shift > 35:
            r.fault = "cut off"
            if r.at != r.end:
                r.fault = "a length that is too large"
            return -1
        byte = r.at[0]
        number[0] |= <uint64_t> (byte & 127) << shift
        shift += 7
        r.at += 1
    if byte == 0 and shift > 7:
        r.fault = "a length in a longer form than needed"
        return -1
    return 0


cdef inline const uint8_t *nested_take_bits(nested_reader *r, uint64_t n) noexcept nogil:
    """Validity bits of `n` values, those behind them zero; NULL on a fault."""
    cdef const uint8_t *bits = r.at
    cdef uint64_t size = (n + 7) >> 3
    if <uint64_t> (r.end - r.at) < size:
        r.fault = "cut off"
        return NULL
    if n & 7 and bits[size - 1] >> (n & 7):
        r.fault = "validity bits of no value"
        return NULL
    r.at += size
    return bits


cdef inline int nested_take_count(nested_reader *r, uint64_t *n,
                                  const uint8_t **bits) noexcept nogil:
    """An array's or map's head. `bits` is NULL without nulls."""
    cdef uint64_t i, ones = 0
    bits[0] = NULL
    if nested_take_varint(r, n) < 0:
        return -1
    if not n[0] & 1:
        n[0] >>= 1
        # Every value takes a byte at least: a count is checked before it can cost memory.
        if n[0] > <uint64_t> (r.end - r.at):
            r.fault = "cut off"
            return -1
        return 0
    n[0] >>= 1
    bits[0] = nested_take_bits(r, n[0])
    if bits[0] is NULL:
        return -1
    for i in range(n[0]):
        ones += bits[0][i >> 3] >> (i & 7) & 1
    if ones == n[0]:
        r.fault = "validity bits without a null"
        return -1
    return 0


cdef inline const uint8_t *nested_take_leaf(const nested_shape *s, nested_reader *r,
                                            uint64_t *size) noexcept nogil:
    """A scalar's bytes, checked but for a string's UTF-8; NULL on a fault."""
    cdef const uint8_t *at
    size[0] = s.width
    if s.kind == NESTED_BYTES and nested_take_varint(r, size) < 0:
        return NULL
    if <uint64_t> (r.end - r.at) < size[0]:
        r.fault = "cut off"
        return NULL
    at = r.at
    if s.kind == NESTED_FIXED:
        r.fault = nested_fixed_fault(s, at)
        if r.fault is not NULL:
            return NULL
    r.at += size[0]
    return at


# ---- inline structs

cdef void nested_padding(const nested_shape *shapes, uint32_t size, uint8_t *mask) noexcept nogil:
    """Set the bits of an inline struct that no field has."""
    cdef int i
    cdef const nested_shape *s
    memset(mask, 0xFF, size)
    for i in range(1, shapes.span):
        s = &shapes[i]
        mask[s.bit >> 3] &= <uint8_t> ~(1 << (s.bit & 7))
        if s.kind == NESTED_FIXED:
            memset(mask + s.at, 0, s.width)


cdef inline bint nested_bit(const uint8_t *bits, int64_t i) noexcept nogil:
    return bits[i >> 3] >> (i & 7) & 1


cdef bint nested_is_zero(const uint8_t *at, uint32_t width) noexcept nogil:
    cdef uint32_t i
    cdef uint8_t all_ = 0
    for i in range(width):
        all_ |= at[i]
    return all_ == 0


cdef const char *nested_inline_fault(const nested_shape *shapes, const uint8_t *data, size_t size,
                                     const uint8_t *padding) noexcept nogil:
    """What is wrong with an inline struct of the right size, NULL if nothing is."""
    cdef int i
    cdef size_t word
    cdef uint64_t a, b
    cdef const nested_shape *s
    cdef const char *fault
    for word in range(size >> 3):
        memcpy(&a, data + 8 * word, 8)
        memcpy(&b, padding + 8 * word, 8)
        if a & b:
            return "set where no field is"
    for i in range(1, shapes.span):
        s = &shapes[i]
        if nested_bit(data, s.bit):
            if s.parent and not nested_bit(data, shapes[s.parent].bit):
                return "a field of a null struct"
            if s.kind == NESTED_FIXED:
                fault = nested_fixed_fault(s, data + s.at)
                if fault is not NULL:
                    return fault
        elif s.kind == NESTED_FIXED and not nested_is_zero(data + s.at, s.width):
            return "set where a null is"
    return NULL
