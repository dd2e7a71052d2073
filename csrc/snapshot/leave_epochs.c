/* leave_epochs.c: rows leave a table, in epochs of their own. */
#include "snapshot/leave_epochs.h"

#include "elements/leave.h"

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

pst_status pst_leave_epochs(pst_table *t, const pst_room *wanted, pst_room *left) {
    pst_leaving l;
    if (!t->attached || pst_table_dirty(t) || t->admitted)
        return PST_INVALID;
    if (t->poisoned)
        return PST_POISONED;
    pst_leaving_begin(t, wanted, &l);
    pst_status s = leave(t, &l);
    if (left)
        *left = l.left;
    return s;
}

pst_status pst_table_leave(pst_table *t, const pst_room *wanted, pst_room *left) {
    if (t->attached && !pst_has_current_stack(t))
        return PST_NO_STACK;
    return pst_leave_epochs(t, wanted, left);
}
