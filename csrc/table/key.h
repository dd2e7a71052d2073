/* key.h: keys in their canonical form.
 *
 * Purpose: one form in which equal keys are equal bytes. A single fixed-width column up to eight
 * bytes is a word; all else is bytes: a single string or binary column its own bytes, several
 * columns (or a decimal) an encoding with a tag per column.
 *
 * Thread safety: pure functions over their arguments.
 *
 * Invariants
 *  K1. -0.0 and every NaN have one form each, so that keys equal as hashes are equal as bytes.
 *  K2. A null column encodes as one tag byte; a single-column null key is a flag, its word and
 *      bytes zero. Hash and form are decided by the columns alone.
 *  K3. Where the key has a namespace, `hash` within a table is not Spark's: pst_key_spread mixes all
 *      columns into it and keeps the key group. Records and files bear Spark's. The same holds of
 *      pst_key_untied.
 *  K4. A reference (16 bytes: length and 12 inline bytes, zero padded, or length, the first four
 *      bytes, granule, the next four) denotes its bytes wherever the heap base is.
 */
#ifndef PST_KEY_H
#define PST_KEY_H

#include <string.h>

#include "memory/layout.h"
#include "memory/store.h"

struct pst_table;

typedef struct pst_key {
    uint64_t hash;
    uint64_t word;
    pst_bytes bytes;
    uint8_t null;
} pst_key;

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

/* Brings in the beginning of bytes that lie in a block, which may lie across two lines. */
PST_PREFETCH void pst_prefetch_bytes(const uint8_t *data, uint32_t size) {
    enum { LINE = 64 };
    __builtin_prefetch(data, 0, 2);
    __builtin_prefetch(data + (size < LINE ? size : LINE) - 1, 0, 2);
}

/* The reference of bytes that fit inline; for longer ones with a zero granule, which the caller adds. */
static inline void pst_ref_make(uint64_t ref[2], pst_bytes b) {
    uint8_t image[16] = {0};
    memcpy(image, &b.size, 4);
    if (b.size > PST_INLINE_BYTES) {
        memcpy(image + 4, b.data, 4);
        memcpy(image + 12, b.data + 4, 4);
    } else if (b.size) {
        memcpy(image + 4, b.data, b.size);
    }
    memcpy(ref, image, 16);
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

int pst_key_is_word(const pst_schema *schema);
/* Whether the canonical form is the column's own bytes. */
int pst_key_is_plain(const pst_schema *schema);

/* Whether the key's last columns are a namespace. */
static inline int pst_key_has_namespace(const pst_schema *schema) {
    return pst_schema_hashed(schema) < schema->n_keys;
}

/* The hash under which a table keeps a key with a namespace: of the same key group. */
uint64_t pst_key_spread(uint64_t hash, pst_bytes bytes, int32_t max_parallelism);

/* The hash under which a table keeps a key whose hash too many others have: keyed, so that nobody
 * outside knows it, and of the same key group. */
uint64_t pst_key_untied(const uint64_t secret[2], uint64_t hash, pst_bytes bytes,
                        int32_t max_parallelism);

/* Spark's hash of a row's key as it lies in a table; `tied`: some of its rows lie under
 * pst_key_untied. */
uint64_t pst_key_row_hash(const pst_schema *schema, uint64_t word, pst_bytes bytes, int null,
                          int tied);

/* Decodes the canonical form into a cell per key column; byte cells point into `bytes`. Statuses:
 * PST_CORRUPT where the encoding does not hold together. */
pst_status pst_key_decode(const pst_schema *schema, uint64_t word, pst_bytes bytes, int null,
                          pst_cell *cells, uint32_t *nulls);

/* Canonical form and Spark's hash of one key; `buffer` holds bytes that had to be encoded.
 * PST_TOO_LARGE, PST_NO_MEMORY, PST_WRONG_TYPE. */
struct pst_key_buffer;
pst_status pst_key_encode(const pst_schema *schema, const pst_cell *cells, uint32_t nulls,
                          struct pst_key_buffer *buffer, pst_key *key);
/* As pst_key_encode where the hash is known already. */
pst_status pst_key_form(const pst_schema *schema, const pst_cell *cells, uint32_t nulls,
                        struct pst_key_buffer *buffer, pst_key *key);

#endif
