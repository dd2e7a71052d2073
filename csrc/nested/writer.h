/* writer.h: bytes that grow, and the parts of nested values that single values and columns share.
 *
 * Thread safety: a writer belongs to one thread.
 *
 * Invariants:
 * 1. data[0, size) is what was written; size <= capacity, and `heap` is NULL or `data`.
 * 2. The keys of the maps that are open lie in keys[0, n_keys), those of an inner map behind those
 *    of an outer one; between pst_nested_put_keys and pst_nested_end_map a map's are sorted, and
 *    `index` says which was which.
 */
#ifndef PST_NESTED_WRITER_H
#define PST_NESTED_WRITER_H

#include "base/coding.h"
#include "nested/types.h"

#include <string.h>

/* Makes room for `more` bytes; 0: refused by the limit (`limit` is then 0), or by the allocator. */
int pst_growing_reserve(pst_growing *b, size_t more);
void pst_growing_free(pst_growing *b);

/* Room for `more` bytes at the end; NULL where they are refused. */
static inline uint8_t *pst_growing_room(pst_growing *b, size_t more) {
    if ((b->capacity - b->size < more || !b->data) && !pst_growing_reserve(b, more))
        return NULL;
    uint8_t *to = b->data + b->size;
    b->size += more;
    return to;
}

/* Appends bytes behind their size as a varint; 0: refused. */
static inline int pst_growing_bytes(pst_growing *b, const uint8_t *bytes, size_t size) {
    uint8_t *to = pst_growing_room(b, PST_VARINT_MAX + size);
    if (!to)
        return 0;
    size_t n = 1;
    if (size < 0x80)
        *to = (uint8_t)size;
    else
        n = pst_put_varint(to, size);
    pst_copy_short(to + n, bytes, size);
    b->size -= PST_VARINT_MAX - n;
    return 1;
}

/* Writes the head of an array or a map: the number of its children, and if some are null, their
 * bits at *bits, all of them zero. 0: refused. */
int pst_growing_head(pst_growing *b, uint64_t n, int nulls, size_t *bits);

/* Notes the key that was written at `start` as the next one of the map that is open.
 * PST_NO_MEMORY. */
pst_status pst_writer_key(pst_nested_writer *w, const pst_shape *s, size_t start);

#endif
