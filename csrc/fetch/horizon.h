/* horizon.h: timers of rows that are not in the table.
 *
 * Purpose: timers are in trees of the rows that are here. Files say in the order of time which of
 * their keys have timers, so the rows of those that come next are fetched before they are due.
 *
 * Thread safety: as the table.
 *
 * Invariants
 *  HZ1. Every timer before the domain's horizon is of a row that is here. The horizon moves on only
 *       when the rows of all hints up to it were fetched, in the same epoch, and goes back with it.
 *  HZ2. What files say are hints: the row decides, so a timer that a newer file deletes costs a
 *       look-up and no more.
 *
 * Complexity: O(hints), a search of the stack for their hashes, and pst_fetch for their keys.
 */
#ifndef PST_HORIZON_H
#define PST_HORIZON_H

#include "memory/handle.h"

/* Whether all timers up to that time are of rows that are here. */
static inline int pst_horizon_is_beyond(const pst_table *t, pst_domain domain, int64_t until_ms) {
    int64_t horizon = t->m->horizon[domain];
    return t->m->whole || horizon == INT64_MAX || until_ms < horizon;
}

/* Moves the horizon on towards that time, by some hints. REQUIRES: it is not beyond. What pst_fetch
 * says. */
pst_status pst_horizon_move(pst_table *t, pst_domain domain, int64_t until_ms);
/* The first hint from the horizon on. PST_NOT_FOUND; PST_NO_STACK; PST_IO, PST_CORRUPT, with the
 * detail as in pst_fetch; PST_NO_MEMORY, PST_LIMIT. REQUIRES: as above. */
pst_status pst_horizon_peek(pst_table *t, pst_domain domain, int64_t *time_ms);

#endif
