/* hash.h: the hash of a key, its canonical form, and the order of keys.
 *
 * The hash is the value of Spark SQL's xxhash64(columns): seed 42, each column hashed with the
 * result of the one before as its seed, a null leaving it as it is. Narrow integers, booleans and
 * dates hash as Spark's hashInt, longs and timestamps as hashLong, floats by their canonical bits,
 * decimals of up to 18 digits as the unscaled long and wider ones as the shortest big-endian two's
 * complement bytes, strings and binaries by their bytes.
 *
 * A canonical word (pst_cell.word[0]) has one bit pattern per equal value: integers are
 * sign-extended, a float's word is its bits, -0.0 is 0.0 and every NaN the quiet positive one.
 *
 * Thread safety: pure functions.
 *
 * Invariants:
 * 1. pst_hash, pst_hash_word and pst_hash_cell agree for every type (OBJECT is never a key).
 * 2. Equal keys have equal canonical cells, and so equal hashes.
 * 3. pst_key_compare is a total order in which only equal keys compare equal. Files are sorted by
 *    (key group, hash, this order).
 */
#ifndef PST_HASH_H
#define PST_HASH_H

#include "key/xxh64.h"
#include "pystate.h"

#define PST_HASH_SEED UINT64_C(42)

/* The one word of two numerically or, for NaN, notionally equal values. */
static inline uint64_t pst_canonical_word(pst_type type, uint64_t word) {
    if (type == PST_FLOAT64) {
        uint64_t magnitude = word & UINT64_C(0x7fffffffffffffff);
        word = magnitude == 0 ? 0 : word;
        return magnitude > UINT64_C(0x7ff0000000000000) ? UINT64_C(0x7ff8000000000000) : word;
    }
    if (type == PST_FLOAT32) {
        uint64_t magnitude = word & UINT64_C(0x7fffffff);
        word = magnitude == 0 ? 0 : word;
        return magnitude > UINT64_C(0x7f800000) ? UINT64_C(0x7fc00000) : word;
    }
    return word;
}

/* The hash of a canonical word of a one-word type: all fixed-width types but DECIMAL. */
static inline uint64_t pst_hash_word(pst_type type, uint64_t word, uint64_t seed) {
    if (type == PST_INT64 || type == PST_TIMESTAMP || type == PST_FLOAT64)
        return pst_xxh64_long((int64_t)word, seed);
    return pst_xxh64_int((int32_t)(uint32_t)word, seed);
}

/* The hash of a cell that is not null; any type but OBJECT. The cell need not be canonical. */
uint64_t pst_hash_cell(const pst_column *column, const pst_cell *cell, uint64_t seed);

/* The hash of a whole key: `nulls` has a bit per null column. */
uint64_t pst_hash_key(const pst_column *columns, int32_t n_columns, const pst_cell *key,
                      uint32_t nulls);

/* <0, 0 or >0. Column by column: nulls first; words as unsigned (of decimals the high word
 * counts first); bytes as memcmp does, a prefix before what it begins. */
int pst_key_compare(const pst_column *columns, int32_t n_columns, const pst_cell *a,
                    uint32_t a_nulls, const pst_cell *b, uint32_t b_nulls);

/* The bytes of an array's physical row. Each offset is loaded once, as its owner may write to
 * it. */
static inline pst_bytes pst_array_bytes(const pst_array *a, int64_t at) {
    int32_t from = __atomic_load_n(&a->offsets[at], __ATOMIC_RELAXED);
    int32_t to = __atomic_load_n(&a->offsets[at + 1], __ATOMIC_RELAXED);
    if (from < 0 || to < from || to > a->values_bytes)
        return (pst_bytes){NULL, 0};
    return (pst_bytes){(const uint8_t *)a->values + from, (uint32_t)(to - from)};
}

#endif
