/* due.h: which keys the timers in the files of a stack are of, in the order of time.
 *
 * Purpose: a table that keeps some rows only must learn which others have timers that are due. What
 * comes is a hint, as in sst_times.h: an older file still has a timer that a newer one deletes, and
 * the row decides.
 *
 * Thread safety: as the stack, which must live as long.
 *
 * Invariants
 *  DU1. Every timer that a record bears, of key groups for which its file counts, comes once: one that
 *       several files have of one hash comes as one.
 *  DU2. Where no timer lies between the cursor and the place that it is put to, nothing is read
 *       again.
 *
 * Complexity: O(files) for each hint; of each run of a file a block of some 10 KB in memory. What
 * comes first is found by reads of all runs together, those after it one by one.
 */
#ifndef PST_STACK_DUE_H
#define PST_STACK_DUE_H

#include "guide/sst_times.h"
#include "stack/stack.h"

typedef struct pst_due pst_due;

/* Reads the indexes of the time indexes; stands nowhere. PST_IO and PST_CORRUPT, with the file in the
 * stack's detail; PST_NO_MEMORY, PST_LIMIT. */
pst_status pst_due_open(pst_stack *st, pst_due **due);
void pst_due_close(pst_due *d);

/* Stands before the first timer of `from`'s domain that is not before it, by time, key group and
 * hash. Reads nothing. */
void pst_due_seek(pst_due *d, const pst_timer_hint *from);
/* The next one, without moving. PST_NOT_FOUND at the end; PST_IO and PST_CORRUPT, until a seek;
 * PST_NO_MEMORY. */
pst_status pst_due_peek(pst_due *d, pst_timer_hint *hint);
/* The next one, by time, key group and hash. */
pst_status pst_due_next(pst_due *d, pst_timer_hint *hint);
/* The last n that came since the last seek come once more. Without memory for them the next seek reads
 * anew. */
void pst_due_return(pst_due *d, const pst_timer_hint *hints, uint32_t n);

#endif
