/* buffer.h: bytes that grow, and words.
 *
 * Purpose: what holds encoded keys, blocks of files, and what an epoch changed. The memory is its
 * owner's.
 *
 * Thread safety: plain structures.
 */
#ifndef PST_BUFFER_H
#define PST_BUFFER_H

#include "pystate.h"

typedef struct pst_buffer {
    uint8_t *data;
    size_t size; /* what is in use, if its owner appends */
    size_t capacity;
} pst_buffer;

typedef struct pst_words {
    uint64_t *words;
    size_t capacity; /* words */
} pst_words;

/* Grows by half, or to `size` bytes, keeping the contents. PST_NO_MEMORY. */
pst_status pst_buffer_grow(pst_buffer *b, size_t size);
void pst_buffer_free(pst_buffer *b);

static inline pst_status pst_buffer_reserve(pst_buffer *b, size_t size) {
    return size <= b->capacity ? PST_OK : pst_buffer_grow(b, size);
}

#endif
