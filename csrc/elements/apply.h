/* apply.h: what a row's record of a file says, put into a row.
 *
 * Purpose: loading and admitting (admit.h) do the same with a record. Those of elements are in
 * elements.h.
 *
 * Thread safety: as the table.
 */
#ifndef PST_APPLY_H
#define PST_APPLY_H

#include "elements/collections.h"

/* Which of the table's columns records have, and where. */
typedef struct pst_mapping {
    const int32_t *columns; /* NULL: as the table */
    int32_t n;
    uint64_t here;   /* the table's columns among them */
    uint64_t taken;  /* the records' columns that are the table's */
    uint64_t values; /* those of them that make a row: not lists, maps or times */
} pst_mapping;

/* `columns` and their number as in pst_table_apply, which must outlive the mapping. 0: some column
 * is not the table's, or is there twice. */
int pst_mapping_make(const pst_table *t, const int32_t *columns, int32_t n, pst_mapping *m);

/* The record's column that the mapping makes this one. */
static inline int32_t pst_mapped(const pst_mapping *m, int32_t i) {
    return m->columns ? m->columns[i] : i;
}

/* The timer that a record brings; 0: none. `element`: it is one of an element. */
int pst_record_timer(const pst_table *t, const pst_record *r, const pst_mapping *m, int element,
                     pst_domain *domain, int64_t *time_ms);

/* A column of the table takes a record's cell, or is absent. `here`: the mapping's. REQUIRES: room
 * for a touch was reserved. PST_CORRUPT, PST_WRONG_TYPE, PST_TOO_LARGE; memory. */
pst_status pst_apply_column(pst_table *t, uint32_t slot, int32_t column, const pst_cell *cell,
                            int present, uint64_t here);
/* All columns of a put of the row in that slot. REQUIRES, and statuses: the same. */
pst_status pst_apply_columns(pst_table *t, uint32_t slot, const pst_record *r,
                             const pst_mapping *m);
/* A delete of it. */
pst_status pst_apply_delete(pst_table *t, uint32_t slot, const pst_mapping *m);

#endif
