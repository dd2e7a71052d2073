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
 *
 * Complexity: O(files) for each hint; of each file a block of some 10 KB in memory.
 */
#ifndef PST_STACK_DUE_H
#define PST_STACK_DUE_H

#include "sst/sst_times.h"
#include "stack/stack.h"

typedef struct pst_due pst_due;

/* Reads the indexes of the time indexes; stands nowhere. PST_IO and PST_CORRUPT, with the file in the
 * stack's detail; PST_NO_MEMORY, PST_LIMIT. */
pst_status pst_due_open(pst_stack *st, pst_due **due);
void pst_due_close(pst_due *d);

/* Stands before the first timer of a domain whose time is at least that. Reads nothing. */
void pst_due_seek(pst_due *d, int32_t domain, int64_t time);
/* The next one, without moving. PST_NOT_FOUND at the end; PST_IO and PST_CORRUPT, until a seek;
 * PST_NO_MEMORY. */
pst_status pst_due_peek(pst_due *d, pst_timer_hint *hint);
/* The next one, by time, key group and hash. */
pst_status pst_due_next(pst_due *d, pst_timer_hint *hint);

#endif
