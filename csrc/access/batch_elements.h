/* batch_elements.h: what the batches of lists and of maps share.
 *
 * Purpose: checking elements that come in, and having the first lines of lists and maps in cache
 * when their turn comes.
 *
 * Thread safety: as the table.
 */
#ifndef PST_BATCH_ELEMENTS_H
#define PST_BATCH_ELEMENTS_H

#include "access/batch.h"
#include "elements/collections.h"

/* Checks whether these values fit a column of that kind: what pst_batch_usable and pst_check_kind
 * return; PST_WRONG_TYPE. */
pst_status pst_check_values(pst_batch *b, int32_t column, pst_kind kind, uint8_t type,
                            const pst_array *values);
/* The same, and PST_INVALID for a null, whose row is noted. */
pst_status pst_check_elements(pst_batch *b, int32_t column, pst_kind kind, uint8_t type,
                              const pst_array *values);

/* Prefetches the lists and maps of the group that begins at i, for a caller that selects one key at
 * a time. */
void pst_batch_prepare_roots(pst_batch *b, int64_t i);

/* What an operation reads first of a list or map. A constant wherever it is passed. */
typedef enum pst_wanted { PST_LIST_TAIL, PST_LIST_HEAD, PST_MAP_ROOT } pst_wanted;

/* Where a column's roots lie. The caller has it as a local copy: a compiler must assume that any
 * store to the table may change the table's handle. */
typedef struct pst_roots {
    const uint32_t *slots;
    int64_t length;
    uint8_t *rows;
    uint64_t row_size;
    uint8_t *heap;
    uint32_t offset;
    int32_t column;
} pst_roots;

static inline pst_roots pst_roots_of(const pst_batch *b, int32_t column) {
    const pst_table *t = b->t;
    return (pst_roots){b->slots,        b->length, t->rows,
                       t->lay.row_size, t->heap,   t->lay.fields[column].offset,
                       column};
}

/* The column's words in row i; they are a root only if the state is present. */
static inline const uint64_t *pst_root_at(const pst_roots *r, int64_t i) {
    return (const uint64_t *)(const void *)(r->rows + r->slots[i] * r->row_size + r->offset);
}

/* Prefetches what the root of row i names. The row is in cache. Where the state is absent, this
 * prefetches something useless. */
PST_PREFETCH void pst_prefetch_root(const pst_roots *r, int64_t i, pst_wanted wanted) {
    if (i >= r->length || r->slots[i] == PST_NONE)
        return;
    const uint64_t *root = pst_root_at(r, i);
    if (wanted == PST_MAP_ROOT)
        pst_tree_prefetch(r->heap, root);
    else if (wanted == PST_LIST_TAIL)
        pst_list_prefetch(r->heap, root);
    else
        pst_list_prefetch_first(r->heap, root);
}

/* Prefetches row i + 2 * PST_GROUP, and what the root of row i + PST_GROUP names. */
PST_PREFETCH void pst_prefetch_ahead(pst_batch *b, const pst_roots *r, int64_t i,
                                     pst_wanted wanted) {
    if (i % PST_GROUP == 0 && i + PST_GROUP < r->length)
        pst_batch_prepare(b, i + PST_GROUP);
    pst_prefetch_root(r, i + PST_GROUP, wanted);
}

/* Called for each i in turn: row i is ready, the row a group further on is in cache, and what its
 * root names is on its way. It does one row at a time, because the processor has few lines in
 * flight. */
PST_PREFETCH void pst_prefetch_elements(pst_batch *b, const pst_roots *r, int64_t i,
                                        pst_wanted wanted) {
    for (int64_t k = -PST_GROUP; i == 0 && k < 0; k++)
        pst_prefetch_ahead(b, r, k, wanted);
    pst_prefetch_ahead(b, r, i, wanted);
}

#endif
