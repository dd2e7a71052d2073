/* reference.h: bytes of any length in 16 of a row or a node.
 *
 * Thread safety: pure functions over their arguments.
 *
 * Invariants
 *  K4. A reference (16 bytes: length and 12 inline bytes, zero padded, or length, the first four
 *      bytes, granule, the next four) denotes its bytes wherever the heap base is.
 */
#ifndef PST_REFERENCE_H
#define PST_REFERENCE_H

#include <string.h>

#include "base/coding.h"
#include "memory/layout.h"
#include "memory/store.h"

enum { PST_INLINE_BYTES = 12 };

static inline uint32_t pst_ref_size(const uint64_t ref[2]) {
    return (uint32_t)ref[0];
}

static inline int pst_ref_is_block(const uint64_t ref[2]) {
    return (uint32_t)ref[0] > PST_INLINE_BYTES;
}

static inline uint32_t pst_ref_granule(const uint64_t ref[2]) {
    return (uint32_t)ref[1];
}

/* The second word of a reference whose bytes lie in another block. */
static inline uint64_t pst_ref_moved(const uint64_t ref[2], uint32_t granule) {
    return (ref[1] & ~(uint64_t)UINT32_MAX) | granule;
}

static inline const uint8_t *pst_ref_data(const uint8_t *heap, const uint64_t ref[2]) {
    if (pst_ref_is_block(ref))
        return heap + (uint64_t)pst_ref_granule(ref) * PST_GRANULE;
    return (const uint8_t *)ref + 4;
}

/* Prefetches the beginning of bytes in a block, on both lines where it lies across two. */
PST_PREFETCH void pst_prefetch_bytes(const uint8_t *data, uint32_t size) {
    enum { LINE = 64 };
    __builtin_prefetch(data, 0, 2);
    __builtin_prefetch(data + (size < LINE ? size : LINE) - 1, 0, 2);
}

/* The reference of bytes that fit inline; for longer ones with a zero granule, which the caller
 * adds. */
static inline void pst_ref_make(uint64_t ref[2], pst_bytes b) {
    uint64_t words[2];
    if (b.size > PST_INLINE_BYTES) {
        memcpy(words, b.data, 8);
        ref[0] = b.size | words[0] << 32;
        ref[1] = words[0] >> 32 << 32;
        return;
    }
    pst_short_words(b.data, b.size, words);
    ref[0] = b.size | words[0] << 32;
    ref[1] = words[0] >> 32 | words[1] << 32;
}

static inline int pst_ref_equals(const uint8_t *heap, const uint64_t ref[2], pst_bytes b) {
    uint64_t other[2];
    if (pst_ref_size(ref) != b.size)
        return 0;
    pst_ref_make(other, b);
    if (ref[0] != other[0])
        return 0;
    if (!pst_ref_is_block(ref))
        return ref[1] == other[1];
    return ref[1] >> 32 == other[1] >> 32 && memcmp(pst_ref_data(heap, ref), b.data, b.size) == 0;
}

#endif
