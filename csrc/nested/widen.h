/* widen.h: scalars of one type as scalars of a wider one.
 *
 * Thread safety: pure functions over their arguments.
 *
 * Invariants
 *  1. Nothing is lost: two values that differ still differ, and they keep their order. What could
 *     lose something is no widening.
 */
#ifndef PST_NESTED_WIDEN_H
#define PST_NESTED_WIDEN_H

#include <stddef.h>

#include "pystate.h"

typedef struct pst_scalar_type {
    uint8_t type; /* pst_type */
    uint8_t precision;
    uint8_t scale;
} pst_scalar_type;

typedef struct pst_widening {
    pst_scalar_type from;
    pst_scalar_type to;
    uint8_t same; /* the bytes stay as they are */
} pst_widening;

/* PST_SCHEMA: `to` does not hold every value of `from`. */
pst_status pst_widening_make(pst_scalar_type from, pst_scalar_type to, pst_widening *w);

/* Writes n widened values at `to`. Neither needs an alignment. PST_OVERFLOW: a date that no
 * timestamp reaches. REQUIRES: not w->same. */
pst_status pst_widen(const pst_widening *w, const uint8_t *from, uint64_t n, uint8_t *to);

#endif
