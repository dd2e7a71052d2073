/* scalar.h: numbers of fixed width as nested values hold them, and the order of a map's keys.
 *
 * A scalar lies as little-endian bytes of its width. As a word it is what pst_cell.word holds:
 * integers sign-extended, floats their bits.
 *
 * Thread safety: pure functions.
 *
 * Invariants:
 * 1. pst_scalar_canonical gives equal numbers equal words: one NaN, and in a map's key one zero.
 * 2. pst_scalar_fault accepts exactly what pst_scalar_canonical and the type's range let through.
 * 3. Two canonical keys compare as equal if and only if their bytes are the same.
 */
#ifndef PST_NESTED_SCALAR_H
#define PST_NESTED_SCALAR_H

#include "nested/types.h"

#include <string.h>

static inline void pst_scalar_load(uint8_t op, const uint8_t *at, uint64_t *word) {
    int8_t n8;
    int16_t n16;
    int32_t n32;
    uint32_t u32;
    word[1] = 0;
    switch (op) {
    case PST_OP_BOOL:
    case PST_OP_INT8:
        memcpy(&n8, at, 1);
        word[0] = (uint64_t)(int64_t)n8;
        break;
    case PST_OP_INT16:
        memcpy(&n16, at, 2);
        word[0] = (uint64_t)(int64_t)n16;
        break;
    case PST_OP_INT32:
        memcpy(&n32, at, 4);
        word[0] = (uint64_t)(int64_t)n32;
        break;
    case PST_OP_FLOAT32:
        memcpy(&u32, at, 4);
        word[0] = u32;
        break;
    case PST_OP_DECIMAL:
        memcpy(word, at, 16);
        break;
    default:
        memcpy(word, at, 8);
        break;
    }
}

/* One copy for each width: a copy of a known size is one instruction. */
static inline void pst_scalar_store(uint8_t op, uint8_t *to, const void *word) {
    switch (op) {
    case PST_OP_BOOL:
    case PST_OP_INT8:
        memcpy(to, word, 1);
        break;
    case PST_OP_INT16:
        memcpy(to, word, 2);
        break;
    case PST_OP_INT32:
    case PST_OP_FLOAT32:
        memcpy(to, word, 4);
        break;
    case PST_OP_DECIMAL:
        memcpy(to, word, 16);
        break;
    default:
        memcpy(to, word, 8);
        break;
    }
}

static inline uint64_t pst_canonical_f64(uint64_t bits, int is_key) {
    if (bits << 1 > UINT64_C(0xFFE0000000000000))
        return UINT64_C(0x7FF8000000000000);
    return is_key && bits << 1 == 0 ? 0 : bits;
}

static inline uint32_t pst_canonical_f32(uint32_t bits, int is_key) {
    if (bits << 1 > 0xFF000000u)
        return 0x7FC00000u;
    return is_key && bits << 1 == 0 ? 0 : bits;
}

static inline void pst_scalar_canonical(const pst_shape *s, uint64_t *word) {
    if (s->op == PST_OP_FLOAT64)
        word[0] = pst_canonical_f64(word[0], s->is_key);
    else if (s->op == PST_OP_FLOAT32)
        word[0] = pst_canonical_f32((uint32_t)word[0], s->is_key);
}

/* Whether a decimal has no more digits than its type. */
static inline int pst_in_limit(const pst_shape *s, const uint64_t *word) {
    uint64_t low = word[0], high = word[1];
    if (high >> 63) {
        low = ~low + 1;
        high = ~high + (low == 0);
    }
    return high < s->limit[1] || (high == s->limit[1] && low < s->limit[0]);
}

/* What is wrong with a scalar's bytes; NULL if a writer could have written them. */
static inline const char *pst_scalar_fault(const pst_shape *s, const uint8_t *at) {
    uint64_t word[2], same;
    switch (s->op) {
    case PST_OP_BOOL:
        return at[0] > 1 ? "a boolean that is neither 0 nor 1" : NULL;
    case PST_OP_FLOAT32:
    case PST_OP_FLOAT64:
        pst_scalar_load(s->op, at, word);
        same = word[0];
        pst_scalar_canonical(s, word);
        return word[0] != same ? "a number that is not canonical" : NULL;
    case PST_OP_DECIMAL:
        pst_scalar_load(s->op, at, word);
        return pst_in_limit(s, word) ? NULL : "a decimal of too many digits";
    default:
        return NULL;
    }
}

/* -- Keys. A number is an unsigned rank that orders as the number does, two words of decimals with
 * the high one first. A string is its first sixteen bytes as a rank, padded with zeros, and all its
 * bytes. */

static inline uint64_t pst_rank_of(uint8_t op, uint64_t word) {
    if (op == PST_OP_FLOAT32)
        word = (uint64_t)(int64_t)(int32_t)word;
    /* Below zero the larger bits are the smaller number. */
    if ((op == PST_OP_FLOAT32 || op == PST_OP_FLOAT64) && word >> 63)
        word ^= INT64_MAX;
    return word ^ UINT64_C(1) << 63;
}

static inline uint64_t pst_rank_bytes(const uint8_t *bytes, size_t size) {
    uint64_t rank = 0;
    if (size >= 8)
        memcpy(&rank, bytes, 8);
    else
        for (size_t i = 0; i < size; i++)
            rank |= (uint64_t)bytes[i] << 8 * i;
    return __builtin_bswap64(rank);
}

/* Makes a key of checked bytes: `at` is where a number lies, or where a string's bytes begin. They
 * must stay there as long as the key is compared. */
static inline void pst_key_rank(const pst_shape *s, const uint8_t *at, uint32_t size,
                                pst_nested_key *key) {
    key->size = 0;
    key->bytes = at;
    key->rank[1] = 0;
    if (s->op >= PST_OP_STRING) {
        key->size = size;
        key->rank[0] = pst_rank_bytes(at, size);
        if (size > 8)
            key->rank[1] = pst_rank_bytes(at + 8, size - 8);
        return;
    }
    uint64_t word[2];
    pst_scalar_load(s->op, at, word);
    if (s->op == PST_OP_DECIMAL) {
        key->rank[0] = word[1] ^ UINT64_C(1) << 63;
        key->rank[1] = word[0];
    } else {
        key->rank[0] = pst_rank_of(s->op, word[0]);
    }
}

/* < 0, 0 or > 0. Both are of the same type. */
static inline int pst_key_order(const pst_nested_key *a, const pst_nested_key *b) {
    if (a->rank[0] != b->rank[0])
        return a->rank[0] < b->rank[0] ? -1 : 1;
    if (a->rank[1] != b->rank[1])
        return a->rank[1] < b->rank[1] ? -1 : 1;
    uint32_t size = a->size < b->size ? a->size : b->size;
    int found = size > 16 ? memcmp(a->bytes + 16, b->bytes + 16, size - 16) : 0;
    return found ? found : (a->size > b->size) - (a->size < b->size);
}

#endif
