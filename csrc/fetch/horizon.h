/* horizon.h: timers of rows that are not in the table.
 *
 * Purpose: timers are in trees of the rows that are here. Files say in the order of time which of
 * their keys have timers, so the rows of those that come next are fetched before they are due.
 *
 * Thread safety: as the table.
 *
 * Invariants
 *  HZ1. Every timer before the domain's horizon is of a row that is here. The horizon is a place in
 *       time: a time, and among its timers a key group, a hash of files and, among keys of one hash,
 *       a keyed hash of their form. It moves on only when the rows of all hints up to it were
 *       fetched, in the same epoch, and goes back with it.
 *  HZ2. What files say are hints: the row decides, so a timer that a newer file deletes costs a
 *       look-up and no more; where the whole key is deleted not even a slot.
 *  HZ3. What fits is fetched, be it a single row, and the horizon stands behind it. So where rows
 *       leave in between it gets to the end of any time, however many timers that has.
 *  HZ4. A move has memory for some hints and as many keys, which is charged.
 *
 * Complexity: O(hints), a search of the stack for their hashes, and pst_fetch for their keys.
 */
#ifndef PST_HORIZON_H
#define PST_HORIZON_H

#include "table/resident.h"

/* Whether all timers up to that time are of rows that are here. */
static inline int pst_horizon_is_beyond(const pst_table *t, pst_domain domain, int64_t until_ms) {
    const pst_horizon *h = &t->m->horizon[domain];
    return t->m->whole || pst_horizon_is_end(h) || until_ms < h->time;
}

/* Moves the horizon on towards that time, by some hints. REQUIRES: it is not beyond. What pst_fetch
 * says; PST_NO_ROOM: not one of the next rows fits. */
pst_status pst_horizon_move(pst_table *t, pst_domain domain, int64_t until_ms);
/* The first hint from the horizon on. PST_NOT_FOUND; PST_NO_STACK; PST_IO, PST_CORRUPT, with the
 * detail as in pst_fetch; PST_NO_MEMORY, PST_LIMIT. REQUIRES: as above. */
pst_status pst_horizon_peek(pst_table *t, pst_domain domain, int64_t *time_ms);

#endif
