/* buffer.h: bytes that grow, and words.
 *
 * Purpose: what holds encoded keys, and what an epoch changed. The memory is its owner's.
 *
 * Thread safety: plain structures.
 */
#ifndef PST_BUFFER_H
#define PST_BUFFER_H

#include <stddef.h>
#include <stdint.h>

typedef struct pst_key_buffer {
    uint8_t *data;
    size_t size;
    size_t capacity;
} pst_key_buffer;

typedef struct pst_words {
    uint64_t *words;
    size_t capacity; /* words */
} pst_words;

#endif
