/* roots.h: where a row keeps its lists and maps.
 *
 * Purpose: to find the shape of a state column's list or tree, and its root in the row, and to free
 * both. What is in them is read and written in collections.h.
 *
 * Thread safety: as the table.
 *
 * Invariants
 *  MP1. A map's word has a mark where entries lie in files below the table: the row's tree is then the
 *       newer part of the map, with an entry for all that was put or removed since it came. Only
 *       admission sets the mark, and the map keeps it until it is cleared, also without an entry in
 *       its tree: then it is present all the same.
 */
#ifndef PST_ROOTS_H
#define PST_ROOTS_H

#include "list/list.h"
#include "table/row.h"
#include "tree/tree.h"

/* Of one state column; zeros where it is a value. */
typedef struct pst_collection {
    pst_tree_shape map;
    pst_list_shape list;
    uint32_t id; /* by which files name the column: a hash of its name */
    int32_t nth; /* entry k: the column whose id is the k-th in order, as files have them */
} pst_collection;

pst_status pst_collections_create(const pst_schema *schema, pst_collection **collections);
/* The first list or map whose id is that of an earlier one or of timers, so that files could not
 * tell them apart; -1: there is none. */
int32_t pst_collections_clash(const pst_schema *schema);

static inline pst_list pst_row_list(const pst_table *t, const uint64_t *row, int32_t i) {
    if (!pst_row_has(&t->lay, row, i))
        return (pst_list){0};
    return pst_list_load((const uint64_t *)((const uint8_t *)row + t->lay.fields[i].offset));
}

/* In the word of a present map (MP1). */
#define PST_MAP_BELOW (UINT64_C(1) << 63)

static inline uint64_t pst_row_map_word(const pst_table *t, const uint64_t *row, int32_t i) {
    return pst_row_has(&t->lay, row, i) ? pst_get64((const uint8_t *)row + t->lay.fields[i].offset)
                                        : 0;
}

/* The tree that a map's word names. */
static inline pst_tree_root pst_map_root(uint64_t word) {
    pst_tree_root root;
    word &= ~PST_MAP_BELOW;
    memcpy(&root, &word, sizeof root);
    return root;
}

static inline pst_tree_root pst_row_map(const pst_table *t, const uint64_t *row, int32_t i) {
    return pst_map_root(pst_row_map_word(t, row, i));
}

/* Do entries of the row's map lie in files? */
static inline int pst_row_map_is_below(const pst_table *t, const uint64_t *row, int32_t i) {
    return (pst_row_map_word(t, row, i) & PST_MAP_BELOW) != 0;
}

/* Frees what the row's list or map holds. The caller clears its presence bit. */
pst_status pst_row_drop_elements(pst_table *t, const uint64_t *row, int32_t i);

#endif
