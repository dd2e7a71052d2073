/* leave.h: which rows leave a table, and that they do.
 *
 * Purpose: a table over files keeps the rows that are used. A clock's hand goes over the slots. A
 * row leaves that has no heat and, as its header says, was neither touched nor admitted since the
 * hand began the round before. Otherwise the hand lowers its heat and passes it over. A row with a
 * long list leaves however warm it is: it comes back without the items, which it has no use for; and so
 * does one with a map that is large, or of which much was put since it came.
 *
 * Thread safety: the writer's alone.
 *
 * Invariants
 *  DK1. Rows leave only while the table is exactly what its files say, in an epoch that does
 *       nothing else: so the files have the last change of each of them.
 *  DK2. A row with a timer before its domain's horizon stays. The horizon is at the end of all time
 *       until somebody sets it: then no row with timers leaves. So all timers before it are here.
 *  DK3. While rows are to stay in their slots (pst_table_keep_rows) none leaves.
 *  DK4. So every timer before its domain's horizon is of a row that is here. Whoever raises the
 *       horizon has admitted the rows of timers up to there before.
 *  DK5. A leaving row dies under undo as any other, and no delta says so: the epoch is sealed
 *       without one, under the lineage of the epoch before.
 *
 * Complexity: O(slots looked at + what leaves). Where rows with several timers leave only the trees
 * know their times: such rows wait until an eighth of the slots has come together, and then the
 * timers of their key groups are gone through once.
 */
#ifndef PST_LEAVE_H
#define PST_LEAVE_H

#include "memory/handle.h"

#ifndef PST_LEAVE_MOST
#define PST_LEAVE_MOST 65536u /* rows that leave in an epoch; tests have less */
#endif

#ifndef PST_LEAVE_CROWD
#define PST_LEAVE_CROWD 65536u /* rows with several timers that wait, at least; tests have less */
#endif

/* Rows with several timers that are to leave together. */
typedef struct pst_crowd {
    uint64_t *rows;   /* key group << 32 | slot; ordered once `at` moves on */
    uint64_t *listed; /* a bit per slot: it is one of them */
    uint64_t *going;  /* likewise: it leaves in the open epoch */
    uint32_t n;
    uint32_t at; /* those before it have left, or stay */
    uint32_t room;
    uint32_t most;
    uint32_t slots;   /* that have bits */
    int refused;      /* there is no memory for it: such rows stay */
    pst_room waiting; /* what is still to leave of it */
} pst_crowd;

typedef struct pst_leaving {
    pst_room wanted;
    pst_room left;   /* so far */
    uint64_t looks;  /* slots that may still be looked at */
    uint64_t walked; /* timers that were gone through, to find those of the crowd */
    pst_crowd crowd;
} pst_leaving;

void pst_leaving_begin(const pst_table *t, const pst_room *wanted, pst_leaving *l);
void pst_leaving_end(pst_leaving *l);
/* Is it enough, or is there nothing more that could leave? */
int pst_leaving_is_done(const pst_leaving *l);

/* Takes some rows out in the open epoch, which has touched nothing. `rows`: how many; 0 at the end
 * alone. After anything but PST_OK the epoch is to be rolled back, and the leaving to end. */
pst_status pst_leave_some(pst_table *t, pst_leaving *l, uint32_t *rows);

#endif
