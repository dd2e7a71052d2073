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

/* Bytes of the character that begins with this one, 0 if none does; and the least and most that the
 * second one may be. */
static size_t utf8_form(uint8_t first, uint8_t *least, uint8_t *most) {
    *least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    *most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (first >= 0xC2 && first <= 0xDF)
        return 2;
    if (first >= 0xE0 && first <= 0xEF)
        return 3;
    return first >= 0xF0 && first <= 0xF4 ? 4 : 0;
}

int pst_is_utf8_beyond_ascii(const uint8_t *bytes, size_t size) {
    size_t i = 0;
    while (i < size) {
        if (size - i >= 8 && !(pst_get_u64(bytes + i) & UINT64_C(0x8080808080808080))) {
            i += 8;
            continue;
        }
        if (bytes[i] < 0x80) {
            i++;
            continue;
        }
        uint8_t least, most;
        size_t n = utf8_form(bytes[i], &least, &most);
        if (n == 0 || size - i < n || bytes[i + 1] < least || bytes[i + 1] > most)
            return 0;
        for (size_t k = 2; k < n; k++)
            if ((bytes[i + k] & 0xC0) != 0x80)
                return 0;
        i += n;
    }
    return 1;
}
