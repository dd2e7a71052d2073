/* sketch.h: how many distinct values there were, roughly: HyperLogLog in bytes.
 *
 * Purpose: the DISTINCT accumulator of aggregate.h, over 64-bit hashes.
 *
 * Thread safety: pure functions over their arguments.
 *
 * Invariants
 *  1. The bytes are decided by the set of hashes and the precision alone, not by order or merging.
 *  2. Bytes that come from outside are bounded by their size before they are looked into.
 */
#ifndef PST_SKETCH_H
#define PST_SKETCH_H

#include <stddef.h>
#include <stdint.h>

#include "pystate.h"

enum { PST_AGG_LEAST_PRECISION = 4, PST_AGG_MOST_PRECISION = 14 };

size_t pst_sketch_most(uint32_t precision);
/* PST_CORRUPT where the bytes are no sketch of that precision. No bytes are an empty one. */
pst_status pst_sketch_check(uint32_t precision, const uint8_t *data, size_t size);
int pst_sketch_has(const uint8_t *data, size_t size, uint64_t hash);
/* REQUIRES in both: checked bytes, and room for pst_sketch_most in `data`. */
void pst_sketch_add(uint32_t precision, uint8_t *data, size_t *size, uint64_t hash);
void pst_sketch_merge(uint32_t precision, uint8_t *data, size_t *size, const uint8_t *from,
                      size_t from_size);

#endif
