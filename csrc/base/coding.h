/* coding.h: how numbers lie in files and shared memory.
 *
 * Fixed-width integers are little-endian and need no alignment; those of elements, which are sorted
 * as bytes, are big-endian. A varint holds seven bits per
 * byte, lowest first, the high bit set on all but the last byte; it is at most ten bytes long.
 * A pst_cursor reads a byte string that may be damaged: reads past the end yield zero and set
 * `bad`, so that a decoder checks once, at its end.
 *
 * Thread safety: pure functions.
 *
 * Invariants:
 * 1. A cursor never touches a byte outside [p, end).
 * 2. Once `bad` is set it stays set, and every later read yields zero or NULL.
 * 3. pst_cursor_varint accepts exactly what pst_put_varint writes: the shortest form.
 */
#ifndef PST_CODING_H
#define PST_CODING_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Arrow arrays are used as they lie in memory: the core needs a little-endian machine"
#endif

enum { PST_VARINT_MAX = 10 };

static inline uint16_t pst_get_u16(const void *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint32_t pst_get_u32(const void *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint64_t pst_get_u64(const void *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void pst_put_u16(void *p, uint16_t v) {
    memcpy(p, &v, sizeof v);
}

static inline void pst_put_u32(void *p, uint32_t v) {
    memcpy(p, &v, sizeof v);
}

static inline void pst_put_u64(void *p, uint64_t v) {
    memcpy(p, &v, sizeof v);
}

/* Writes 1 to PST_VARINT_MAX bytes and returns how many. */
size_t pst_put_varint(uint8_t *p, uint64_t v);
size_t pst_varint_size(uint64_t v);

typedef struct pst_cursor {
    const uint8_t *p;
    const uint8_t *end;
    int bad;
} pst_cursor;

static inline pst_cursor pst_cursor_over(const void *data, size_t size) {
    const uint8_t *p = data;
    return (pst_cursor){p, p + size, 0};
}

static inline size_t pst_cursor_left(const pst_cursor *c) {
    return (size_t)(c->end - c->p);
}

/* The next `size` bytes, or NULL. */
const uint8_t *pst_cursor_bytes(pst_cursor *c, uint64_t size);
uint8_t pst_cursor_u8(pst_cursor *c);
uint64_t pst_cursor_varint(pst_cursor *c);

/* Whether any of a few bytes, up to 8, is not ASCII. */
static inline int pst_few_beyond_ascii(const uint8_t *bytes, size_t size) {
    if (size >= 4)
        return ((pst_get_u32(bytes) | pst_get_u32(bytes + size - 4)) & 0x80808080u) != 0;
    return size && ((bytes[0] | bytes[size >> 1] | bytes[size - 1]) & 0x80);
}

/* The rest of the check, from the first byte that is not ASCII, or any before it. */
int pst_is_utf8_beyond_ascii(const uint8_t *bytes, size_t size);

/* Whether bytes are UTF-8: shortest forms, no surrogates, up to U+10FFFF. */
static inline int pst_is_utf8(const uint8_t *bytes, size_t size) {
    while (size > 8) {
        if (pst_get_u64(bytes) & UINT64_C(0x8080808080808080))
            return pst_is_utf8_beyond_ascii(bytes, size);
        bytes += 8;
        size -= 8;
    }
    return !pst_few_beyond_ascii(bytes, size) || pst_is_utf8_beyond_ascii(bytes, size);
}

/* memcpy, where most copies are short: without a call up to 16 bytes. */
static inline void pst_copy_short(uint8_t *to, const uint8_t *from, size_t size) {
    if (size > 16) {
        memcpy(to, from, size);
    } else if (size >= 8) {
        uint64_t first = pst_get_u64(from), last = pst_get_u64(from + size - 8);
        pst_put_u64(to, first);
        pst_put_u64(to + size - 8, last);
    } else if (size >= 4) {
        uint32_t first = pst_get_u32(from), last = pst_get_u32(from + size - 4);
        pst_put_u32(to, first);
        pst_put_u32(to + size - 4, last);
    } else if (size) {
        uint8_t middle = from[size >> 1], last = from[size - 1];
        to[0] = from[0];
        to[size >> 1] = middle;
        to[size - 1] = last;
    }
}

/* Up to 16 bytes as two words, padded with zeros: without a call, and without narrow stores that a
 * wider load would wait for. */
static inline void pst_short_words(const uint8_t *p, size_t size, uint64_t words[2]) {
    words[0] = words[1] = 0;
    if (size >= 8) {
        uint32_t half = 4 * (16 - (uint32_t)size); /* C has no shift by 64 */
        memcpy(&words[0], p, 8);
        memcpy(&words[1], p + size - 8, 8);
        words[1] = words[1] >> half >> half;
    } else if (size >= 4) {
        uint32_t first, last, past = 8 * (8 - (uint32_t)size);
        memcpy(&first, p, 4);
        memcpy(&last, p + size - 4, 4);
        words[0] = first | (uint64_t)last >> past << 32;
    } else if (size) {
        words[0] = p[0] | (uint64_t)p[size >> 1] << (size >> 1) * 8 |
                   (uint64_t)p[size - 1] << (size - 1) * 8;
    }
}

/* Big-endian numbers, which sort as bytes. */
static inline void pst_put_big(uint8_t *p, uint64_t v, int bytes) {
    for (int i = bytes; i-- > 0; v >>= 8)
        p[i] = (uint8_t)v;
}

static inline uint64_t pst_get_big(const uint8_t *p, int bytes) {
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++)
        v = v << 8 | p[i];
    return v;
}

static inline void pst_put_big64(uint8_t *p, uint64_t v) {
    v = __builtin_bswap64(v);
    memcpy(p, &v, sizeof v);
}

static inline uint64_t pst_get_big64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return __builtin_bswap64(v);
}

#endif
