/* admit.h: rows with lists, maps and timers admitted from the records of files.
 *
 * Purpose: as resident.h, for keys of which several files have records, and rows that have more than
 * values. What a file says of a key is its row's record and those of its elements (elements.h).
 *
 * Thread safety: as the table.
 *
 * Invariants
 *  AD1. An admitted row is as if its records had been loaded, oldest file first, before the clock
 *       was known: what has no time in files has none here, until an epoch gives it one. What the
 *       table's own epochs do to it afterwards is what a delta says, in values, elements and
 *       timers: no more, and no less.
 *  AD2. The timers of an admitted row stand in the trees of the open epoch, so undoing it takes them
 *       out with the meta (TM1). Those that are elements in files are noted in the handle, where
 *       they count as having been there before the epoch; a single one is in the row's image.
 */
#ifndef PST_ADMIT_H
#define PST_ADMIT_H

#include "elements/apply.h"
#include "elements/timers.h"

enum { PST_ADMIT_TIMERS = 4 }; /* for which no memory is needed */

/* One at a time. */
typedef struct pst_admission {
    pst_table *t;
    pst_key key;
    uint32_t slot;
    uint32_t birth;
    pst_clock clock;   /* the table's own */
    pst_timer *timers; /* that were put, each perhaps several times and taken away again */
    uint32_t n_timers;
    uint32_t room;
    pst_timer few[PST_ADMIT_TIMERS];
} pst_admission;

/* As pst_admit_begin, with room for a touch and a row reserved here. PST_WRONG_KEY_GROUP. If the key
 * has a row already (`here`) there is no admission to end; a->slot is that row. */
pst_status pst_admission_begin(pst_admission *a, pst_table *t, const pst_key *key, int *here);

/* Applies a record of the key, all of the oldest file first. `element`: it is one of an element.
 * `more` as in pst_element_apply. The record's key is not looked at but for its element. Elements of
 * states that are not taken (sst/record.h) must not come. PST_CORRUPT, and what writing says. */
pst_status pst_admission_add(pst_admission *a, const pst_record *r, const pst_mapping *m,
                             int element, uint32_t more);

/* PST_OK: a->slot is the key's row. PST_NOT_FOUND: the records leave nothing of it, so it does not
 * exist. PST_NO_MEMORY, PST_LIMIT; PST_CORRUPT: then it is as pst_admission_drop leaves it. */
pst_status pst_admission_end(pst_admission *a);

/* Ends an admission that failed: the key has no row, and may be admitted again. The epoch goes on,
 * also where a list, a map or a timer was refused memory; it is poisoned where something was that
 * makes less of them, for which a full table has an eighth more. */
void pst_admission_drop(pst_admission *a);

#endif
