#include "base/coding.h"

size_t pst_varint_size(uint64_t v) {
    size_t n = 1;
    while (v >= 0x80) {
        v >>= 7;
        n++;
    }
    return n;
}

size_t pst_put_varint(uint8_t *p, uint64_t v) {
    size_t n = 0;
    while (v >= 0x80) {
        p[n++] = (uint8_t)(v | 0x80);
        v >>= 7;
    }
    p[n++] = (uint8_t)v;
    return n;
}

const uint8_t *pst_cursor_bytes(pst_cursor *c, uint64_t size) {
    if (c->bad || size > pst_cursor_left(c)) {
        c->bad = 1;
        return NULL;
    }
    const uint8_t *p = c->p;
    c->p += size;
    return p;
}

uint8_t pst_cursor_u8(pst_cursor *c) {
    const uint8_t *p = pst_cursor_bytes(c, 1);
    return p ? *p : 0;
}

uint64_t pst_cursor_varint(pst_cursor *c) {
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        uint8_t b = pst_cursor_u8(c);
        if (c->bad)
            return 0;
        if ((shift == 63 && b > 1) || (shift > 0 && b == 0))
            break; /* above 64 bits, or a needless last byte */
        v |= (uint64_t)(b & 0x7f) << shift;
        if (b < 0x80)
            return v;
    }
    c->bad = 1;
    return 0;
}
