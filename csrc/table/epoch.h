/* epoch.h: opening, sealing, rolling back and recovering epochs.
 *
 * Purpose: the order in which the header's state words change.
 *
 * Thread safety: the writer's alone. Readers watch sealed, active, floor and rollbacks.
 *
 * Invariants
 *  E1. `sealed` is the one word that decides. Whatever the table looks like, recovering means
 *      undoing every epoch above it, up to `active`, and then storing active = sealed. So one
 *      release store of `sealed` is the seal, and one is the start of a roll back.
 *  E2. Epoch e begins in this order: floor = e - 3; empty log e % 3; meta e % 4 from its
 *      predecessor; active = e. Killed in between, e has left no trace that counts.
 *  E3. While e is open, the metas of e - 1, e - 2, e - 3 and the logs of e, e - 1, e - 2 are
 *      whole, so that one can return to each of those three epochs, as far as they are not below
 *      `floor`. Settling raises it to the sealed epoch, to which alone one can then return. What
 *      an epoch of `floor` or before has freed can be taken (B1).
 *  E4. `rollbacks` is odd while rows move backwards; a reader that saw it change reads again.
 *  E5. Beginning an epoch clears a few stale stamps (the rows from `sweep` on), so that every row
 *      is looked at long before its stamp could come round to mean a later epoch.
 *  E6. Beginning an epoch gives back, some at a time, what its log has beyond what recent epochs
 *      needed; settling, all but a little of the logs, as nobody returns any more. It does not while a reader of an epoch that is gone is still there, which may be
 *      looking at that memory.
 */
#ifndef PST_EPOCH_H
#define PST_EPOCH_H

#include "memory/handle.h"

enum { PST_SWEEP_SHIFT = 20, PST_SWEEP_LEAST = 64 };

/* A log keeps this much more than recent epochs needed. */
#ifdef PST_GROW_BY_PAGES
#define PST_SPARE_LOG ((uint64_t)4096)
#else
#define PST_SPARE_LOG ((uint64_t)1 << 20)
#endif

/* Opens the epoch after the sealed one. Cannot fail. */
void pst_epoch_begin(pst_table *t);
/* Undoes what is above h->sealed and opens the epoch after it. */
void pst_epoch_recover(pst_table *t);

#endif
