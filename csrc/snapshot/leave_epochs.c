/* leave_epochs.c: rows leave a table, in epochs of their own. */
#include "snapshot/leave_epochs.h"

#include "elements/leave.h"
#include "memory/span.h"

static pst_status leave(pst_table *t, pst_leaving *l) {
    /* Of the epoch before: nothing that it says has changed. */
    pst_lineage lineage;
    uint32_t rows = 1;
    pst_status s = pst_table_lineage(t, 0, &lineage);
    while (!s && rows && !pst_leaving_is_done(l)) {
        pst_room before = l->left;
        s = pst_leave_some(t, l, &rows);
        if (!s && rows)
            s = pst_table_seal(t, &lineage, NULL);
        if (s) {
            l->left = before;
            (void)pst_table_rollback(t, 0);
        } else if (rows) {
            s = pst_table_settle(t);
        }
    }
    return s;
}

/* What left was perhaps of other sizes than what comes: spans that are empty now may serve any, in an
 * epoch of its own, as the names of what has left in one are taken no earlier than in the next one. */
static pst_status release(pst_table *t) {
    pst_lineage lineage;
    pst_status s = pst_table_lineage(t, 0, &lineage);
    pst_clearing(t);
    if (s || !pst_span_release(t))
        return pst_cleared(t, s);
    s = pst_cleared(t, pst_table_seal(t, &lineage, NULL));
    if (s)
        (void)pst_table_rollback(t, 0);
    return s ? s : pst_table_settle(t);
}

/* What made room may have passed the limit. Above it nothing would be granted, whatever has left. */
static void return_excess(pst_table *t) {
    uint64_t bytes = (uint64_t)PST_SPAN_GRANULES * PST_GRANULE;
    while (!pst_arena_has_room(&t->arena, 1) && pst_span_yield(t, bytes))
        bytes *= 2;
}

pst_status pst_leave_epochs(pst_table *t, const pst_room *wanted, pst_room *left) {
    pst_leaving l;
    if (!t->attached || pst_table_dirty(t) || t->admitted)
        return PST_INVALID;
    if (t->poisoned)
        return PST_POISONED;
    pst_leaving_begin(t, wanted, &l);
    pst_status s = leave(t, &l);
    pst_leaving_end(&l);
    if (!s && t->lay.has_blocks && t->h->floor == t->h->sealed)
        s = release(t);
    if (!s)
        return_excess(t);
    if (left)
        *left = l.left;
    return s;
}

pst_status pst_table_leave(pst_table *t, const pst_room *wanted, pst_room *left) {
    if (t->attached && !pst_has_current_stack(t))
        return PST_NO_STACK;
    return pst_leave_epochs(t, wanted, left);
}
