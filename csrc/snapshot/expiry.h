/* expiry.h: what of a file's records has expired.
 *
 * Purpose: a merge and a gatherer know no table, but leave out what a table of the same settings and
 * clock would hide (ttl.h).
 *
 * Thread safety: a plain structure that belongs to one thread.
 *
 * Invariants
 *  XP1. What a reader may still see stays: what was written when no time was known, which a file
 *       that has all there is gets with the time of now, as from a sweep; what is visible once after
 *       it has expired (X4) and was not seen; and timers.
 *  XP2. The items of a list are numbered by their place. So a file loses them by whole runs, from
 *       the list's head on, and only runs of which no item is seen. A list begins with the number of
 *       its first run.
 *
 * Complexity: O(1) a record; of a run of items that may go O(items).
 */
#ifndef PST_EXPIRY_H
#define PST_EXPIRY_H

#include "base/buffer.h"
#include "key/key.h"
#include "list/list.h"
#include "sst/record.h"
#include "table/ttl.h"

typedef struct pst_expirer {
    const pst_schema *schema; /* as files have it */
    const pst_ttl *ttl;
    pst_clock clock;
    uint64_t columns; /* a bit per value, list or map that expires; 0: nothing does */
    int has_element;
    /* The list whose run was kept last, so that later ones stay: its row's key, and its column. */
    int32_t kept;
    pst_key kept_row;
    pst_buffer kept_bytes;
    pst_buffer scratch;
} pst_expirer;

/* `expiry` may be NULL. PST_INVALID: it is none of the schema, which must outlive this. */
pst_status pst_expirer_init(pst_expirer *x, const pst_schema *schema, const pst_expiry *expiry);
void pst_expirer_free(pst_expirer *x);

static inline int pst_expirer_hides(const pst_expirer *x, int32_t column, int64_t written) {
    return pst_ttl_hides_at(&x->ttl[column], &x->clock, written);
}

/* When what the record puts into the column was written, PST_NO_TIME where it does not say. */
int64_t pst_expirer_time(const pst_record *r, int32_t column);
/* The columns of a row's record that are not seen any more, with those of their times. */
uint64_t pst_expirer_row(const pst_expirer *x, const pst_record *r);
/* Whether no item of a list's run is seen but for the first `skip`. PST_CORRUPT. */
pst_status pst_expirer_run(const pst_expirer *x, int32_t column, pst_bytes run, uint64_t skip,
                           int *hidden);
/* Whether an element's put is to be left out of a file that has all there is (XP2). The elements of
 * a row come one after the other. PST_CORRUPT, PST_NO_MEMORY. */
pst_status pst_expirer_element(pst_expirer *x, const pst_record *r, int *gone);

#endif
