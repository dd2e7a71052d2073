/* aggregate.h: what an aggregating state keeps of the values added to it.
 *
 * Purpose: accumulators as plain memory. A fixed one is a few words, a variable one a byte string;
 * the caller copies it out of the table, changes the copy and stores it. Counts, sums, minima and
 * maxima need none of this: they are operations on columns (pst_op). pystate/state/aggregators.py
 * turns accumulators into results.
 *
 * Thread safety: pure functions over their arguments.
 *
 * Invariants
 *  W1. The layouts below are part of the file format. All zero words, or no bytes, are the
 *      accumulator of no value.
 *  W2. merge(add*(a), add*(b)) is add*(a, then b): exactly for all but the doubles in MEAN and
 *      VARIANCE, which round.
 *  W3. TOP_K and DISTINCT do not depend on the order: equal multisets (sets) give equal bytes.
 *  W4. After a status other than PST_OK the accumulator is as it was.
 *
 * Complexity: O(1); TOP_K O(k); DISTINCT O(entries) while it is sparse; merging O(both).
 *
 *     kind      types                       accumulator
 *     MEAN      integers, decimals          u64 count, i128 sum (low word first), exact
 *               floats                      u64 count, f64 sum: a plain sum, in order of arrival
 *     VARIANCE  numbers, taken as doubles   u64 count, f64 mean, f64 sum of squared deviations
 *     FIRST     any                         u64 1 if set, one word or two of the value;
 *     LAST                                  of bytes: a byte of 1, then the bytes
 *     TOP_K     numbers, dates, timestamps  u64 count, then k values, the largest first;
 *                                           above PST_AGG_MAX_WIDTH a byte string: the values
 *     DISTINCT  all but objects             byte string, see sketch.c
 */
#ifndef PST_AGGREGATE_H
#define PST_AGGREGATE_H

#include "pystate.h"

enum {
    PST_AGG_MAX_WIDTH = 256, /* bytes of a fixed accumulator */
    PST_AGG_MAX_K = 4096
};

/* PST_WRONG_TYPE: the kind does not take the type. PST_INVALID: kind or parameter. */
pst_status pst_agg_check(const pst_agg_shape *s);

/* ---- fixed accumulators -------------------------------------------------------------------- */

/* Bytes of one, a multiple of 8; 0: it is variable. */
uint32_t pst_agg_width(const pst_agg_shape *s);
void pst_agg_init(const pst_agg_shape *s, uint64_t *state);
/* Values are cells in the type's form; never null. PST_OVERFLOW: a sum above 128 bits. */
pst_status pst_agg_add(const pst_agg_shape *s, uint64_t *state, const pst_cell *cell);
/* As if the values of `from` had been added to `into` after its own. */
pst_status pst_agg_merge(const pst_agg_shape *s, uint64_t *into, const uint64_t *from);

/* ---- variable accumulators ------------------------------------------------------------------ */

/* The caller's memory; size 0: no value yet. */
typedef struct pst_agg_buffer {
    uint8_t *data;
    size_t size;
    size_t capacity;
} pst_agg_buffer;

/* The capacity that a call needs: `size` bytes there are, `input` come as a value or another
 * accumulator. Does not depend on either for TOP_K and DISTINCT. */
size_t pst_agg_room(const pst_agg_shape *s, size_t size, size_t input);
/* 1 where adding the value would change nothing, so that nothing need be copied or stored. The
 * accumulator may lie in table memory. */
int pst_agg_absorbs(const pst_agg_shape *s, pst_bytes state, const pst_cell *cell);
/* PST_TOO_LARGE: too little capacity. PST_CORRUPT: bytes that no accumulator of the shape has. */
pst_status pst_agg_add_bytes(const pst_agg_shape *s, pst_agg_buffer *state, const pst_cell *cell);
pst_status pst_agg_merge_bytes(const pst_agg_shape *s, pst_agg_buffer *into, pst_bytes from);

#endif
