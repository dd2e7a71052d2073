/* element.h: the element column of a file's key.
 *
 * Purpose: what the table and the file layer must agree about where an operator has lists, maps or
 * timers: the id by which an element names its state, and numbers that sort as bytes. FORMAT.md
 * describes the bytes.
 *
 * Thread safety: pure functions.
 */
#ifndef PST_ELEMENT_H
#define PST_ELEMENT_H

#include <stdint.h>
#include <string.h>

/* Bytes of a state's id, and of the elements of lists and timers with it. */
enum { PST_ELEMENT_ID = 4, PST_ELEMENT_RUN = 12, PST_ELEMENT_TIMER = 13 };

/* The id of timers. */
#define PST_TIMERS_ID 0u

/* The id of a list or map: a hash of its name, so that it means the same whatever else there is. */
uint32_t pst_collection_id(const char *name);

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
