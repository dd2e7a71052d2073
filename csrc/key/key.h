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
 *      bytes zero. A word among several columns has a tag and as few bytes as it needs, so that most
 *      keys with a namespace fit into the row. Hash and form are decided by the columns alone.
 *  K3. A table may keep a key under another hash than Spark's: where it has a namespace,
 *      pst_key_spread mixes all columns in and keeps the key group; where it ties with too many
 *      keys, pst_key_untied gives one. Records and files always bear Spark's hash.
 */
#ifndef PST_KEY_H
#define PST_KEY_H

#include <string.h>

#include "base/buffer.h"
#include "key/hash.h"
#include "pystate.h"

typedef struct pst_key {
    uint64_t hash;
    uint64_t word;
    pst_bytes bytes;
    uint8_t null;
} pst_key;

/* The most bytes of a word among several columns; writing one may touch that many. */
enum { PST_KEY_WORD_BYTES = 9 };

/* Writes a canonical word among several columns: a tag, 1 + n, and n bytes of it, the sign folded
 * into the lowest bit so that small negative numbers are short, too. Returns 1 + n. */
static inline uint32_t pst_key_put_word(uint8_t *out, uint64_t word) {
    uint64_t folded = word << 1 ^ (uint64_t)((int64_t)word >> 63);
    uint32_t n = folded ? (71 - (uint32_t)__builtin_clzll(folded)) / 8 : 0;
    out[0] = (uint8_t)(1 + n);
    memcpy(out + 1, &folded, sizeof folded);
    return 1 + n;
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

/* Where the last of several columns begins in a canonical form; its end where it makes no sense. Two
 * forms that are equal up to there are of equal columns before the last. */
size_t pst_key_last(const pst_schema *schema, pst_bytes bytes);

/* Two keys of one schema. */
static inline int pst_key_same_form(const pst_key *a, const pst_key *b) {
    return a->hash == b->hash && a->null == b->null && a->word == b->word &&
           a->bytes.size == b->bytes.size &&
           (!a->bytes.size || !memcmp(a->bytes.data, b->bytes.data, a->bytes.size));
}

/* Canonical form and Spark's hash of one key; `buffer` holds bytes that had to be encoded.
 * PST_TOO_LARGE, PST_NO_MEMORY, PST_WRONG_TYPE. */
pst_status pst_key_encode(const pst_schema *schema, const pst_cell *cells, uint32_t nulls,
                          pst_buffer *buffer, pst_key *key);
/* As pst_key_encode where the hash is known already. */
pst_status pst_key_form(const pst_schema *schema, const pst_cell *cells, uint32_t nulls,
                        pst_buffer *buffer, pst_key *key);

#endif
