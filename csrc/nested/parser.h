/* parser.h: the parts of a nested value's bytes, which may be anything.
 *
 * Each function takes what its name says from the bytes that are left. If they cannot be that, it
 * returns NULL or 0, `fault` says why, and `at` is where reading stopped.
 *
 * Thread safety: a parser belongs to one thread.
 *
 * Invariants:
 * 1. No byte outside of [data, end) is read; data <= at <= end.
 * 2. What is taken is what pst_nested_writer would have written: lengths in their shortest form,
 *    canonical numbers, no bits of no value, keys that ascend strictly.
 */
#ifndef PST_NESTED_PARSER_H
#define PST_NESTED_PARSER_H

#include "base/coding.h"
#include "nested/scalar.h"

static inline void pst_parser_over(pst_nested_parser *p, const pst_nested *nested, const void *data,
                                   size_t size) {
    const uint8_t *bytes = data ? data : (const uint8_t *)"";
    p->data = bytes;
    p->at = bytes;
    p->end = bytes + size;
    p->nested = nested;
    p->fault = NULL;
    p->by_number = nested->width != 0;
    p->has_key = 0;
}

static inline uint64_t pst_parser_left(const pst_nested_parser *p) {
    return (uint64_t)(p->end - p->at);
}

/* Lengths and counts of more than 35 bits are refused, whatever follows. */
int pst_parser_long_varint(pst_nested_parser *p, uint64_t *number);

static inline int pst_parser_varint(pst_nested_parser *p, uint64_t *number) {
    if (p->at != p->end && *p->at < 0x80) {
        *number = *p->at++;
        return 1;
    }
    return pst_parser_long_varint(p, number);
}

/* The validity bits of `n` values; the bits behind them must be zero. */
static inline const uint8_t *pst_parser_bits(pst_nested_parser *p, uint64_t n) {
    const uint8_t *bits = p->at;
    uint64_t size = (n + 7) >> 3;
    if (pst_parser_left(p) < size) {
        p->fault = "cut off";
        return NULL;
    }
    if (n & 7 && bits[size - 1] >> (n & 7)) {
        p->fault = "validity bits of no value";
        return NULL;
    }
    p->at += size;
    return bits;
}

/* An array's or map's head. *bits is NULL where no value is null. */
int pst_parser_head(pst_nested_parser *p, uint64_t *n, const uint8_t **bits);

static inline const uint8_t *pst_parser_fixed(pst_nested_parser *p, const pst_shape *s) {
    const uint8_t *at = p->at;
    if (pst_parser_left(p) < s->width) {
        p->fault = "cut off";
        return NULL;
    }
    p->fault = pst_scalar_fault(s, at);
    if (p->fault)
        return NULL;
    p->at += s->width;
    return at;
}

/* A string's or binary's bytes. */
static inline const uint8_t *pst_parser_bytes(pst_nested_parser *p, const pst_shape *s,
                                              uint64_t *size) {
    if (!pst_parser_varint(p, size))
        return NULL;
    const uint8_t *at = p->at;
    if (pst_parser_left(p) < *size) {
        p->fault = "cut off";
        return NULL;
    }
    if (*size > PST_MAX_BYTES) {
        p->fault = "a length that is too large";
        return NULL;
    }
    p->at += *size;
    if (s->op == PST_OP_STRING && !pst_is_utf8(at, *size)) {
        p->fault = "no valid UTF-8";
        return NULL;
    }
    return at;
}

/* Any scalar. */
static inline const uint8_t *pst_parser_scalar(pst_nested_parser *p, const pst_shape *s,
                                               uint64_t *size) {
    *size = s->width;
    return s->width ? pst_parser_fixed(p, s) : pst_parser_bytes(p, s, size);
}

/* Called after a map's key was taken: whether it is above the previous one, *key, if there is
 * one. */
static inline int pst_parser_ascends(pst_nested_parser *p, const pst_shape *s, const uint8_t *at,
                                     uint64_t size, int has_key, pst_nested_key *key) {
    pst_nested_key next;
    pst_key_rank(s, at, (uint32_t)size, &next);
    int ascends = !has_key || pst_key_order(key, &next) < 0;
    key->rank[0] = next.rank[0];
    key->rank[1] = next.rank[1];
    key->bytes = next.bytes;
    key->size = next.size;
    if (!ascends)
        p->fault = "a map whose keys do not ascend";
    return ascends;
}

/* What is wrong with a value of constant width, of `width` bytes; NULL if nothing is. */
const char *pst_places_fault(const pst_nested *nested, const uint8_t *data);

#endif
