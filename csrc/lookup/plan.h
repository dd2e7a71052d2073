/* plan.h: which bytes of files a look-up will read, said before it reads.
 *
 * Purpose: where each read is a request to a store, whoever knows all of them sends them at once,
 * outside of the reads of the process, of which look-ups take turns.
 *
 * Thread safety: plain memory of one thread.
 *
 * Invariants
 *  PL1. All blocks that a look-up may read of a file are said, and nothing is that is neither in one
 *       of them nor within the gap between two; the parts of a file ascend and do not overlap.
 *
 * Complexity: O(keys) looks at each file's guide, or index.
 */
#ifndef PST_PLAN_H
#define PST_PLAN_H

#include "pystate.h"

/* The part that grows. */
typedef struct pst_plan {
    const pst_plan_sink *sink;
    int32_t file;
    uint64_t begin; /* what is before it was said */
    uint64_t end;   /* 0: nothing was added yet */
} pst_plan;

/* Adds bytes of the file that do not begin before those that were added last. */
pst_status pst_plan_add(pst_plan *p, uint64_t begin, uint64_t end);
/* Says what is left of the file's. */
pst_status pst_plan_end(pst_plan *p);

#endif
