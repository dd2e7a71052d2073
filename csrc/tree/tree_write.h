/* tree_write.h: what inserting and removing share.
 *
 * Purpose: a write's path through a tree, and the steps that keep the invariants of tree.h while
 * nodes are copied, grown and freed.
 *
 * Thread safety: the writer's alone.
 *
 * Invariants
 *  TW1. A born node's ancestors are born. So whoever finds a node born may write to it without
 *       looking at those above it.
 *  TW2. The path's steps stay valid through every function here: when a node moves, the path and
 *       its parent are updated.
 */
#ifndef PST_TREE_WRITE_H
#define PST_TREE_WRITE_H

#include "memory/alloc.h"
#include "memory/handle.h"
#include "tree/tree_node.h"

enum { PST_TREE_MOST = 255 }; /* entries that a header can count */

typedef struct pst_tree_step {
    uint32_t node;
    uint32_t index; /* of the entry, or of the child that the path goes on to */
} pst_tree_step;

/* A write under way: the path from the leaf, at[0], to the root, at[top]. */
typedef struct pst_tree_writer {
    pst_table *t;
    const pst_tree_shape *s;
    pst_tree_root *root;
    uint32_t now;  /* the open epoch, as nodes bear it; of rows that are admitted see R3 */
    uint32_t more; /* entries that are about to follow the one that is put at the end */
    int marked;    /* the leaf that is made born is to have marks */
    uint32_t top;
    pst_tree_step at[PST_TREE_LEVELS];
} pst_tree_writer;

static inline uint64_t *pst_tw_node(const pst_tree_writer *w, uint32_t granule) {
    return (uint64_t *)(void *)pst_block(w->t, granule);
}

static inline uint64_t pst_tw_header(const pst_tree_writer *w, uint32_t granule) {
    return *pst_tw_node(w, granule);
}

static inline uint64_t pst_tw_heap_bytes(const pst_tree_writer *w) {
    return w->t->h->committed[PST_SPACE_HEAP];
}

static inline uint64_t *pst_tw_key(const pst_tree_writer *w, uint64_t *node, uint32_t i) {
    return node + 1 + i * w->s->key_words;
}

static inline uint64_t *pst_tw_value(const pst_tree_writer *w, uint64_t *node, uint32_t i) {
    return node + (pst_node_value(w->s, node, *node, i) - node);
}

static inline uint64_t *pst_tw_time(const pst_tree_writer *w, uint64_t *node, uint32_t i) {
    return node + (pst_node_time(w->s, node, *node, i) - node);
}

static inline uint64_t *pst_tw_marks(const pst_tree_writer *w, uint64_t *node) {
    return node + (pst_node_marks_at(w->s, node, *node) - node);
}

static inline void pst_tw_set_count(uint64_t *node, uint32_t count) {
    pst_put64(node, (*node & ~(UINT64_C(0xFF) << 48)) | (uint64_t)count << 48);
}

static inline pst_tree_writer pst_tw_begin(pst_table *t, const pst_tree_shape *s,
                                           pst_tree_root *root) {
    pst_tree_writer w;
    w.t = t;
    w.s = s;
    w.root = root;
    w.now = t->birth;
    w.more = 0;
    w.marked = 0;
    w.top = 0;
    return w;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* A reference to these bytes, in a new block if they are long. */
pst_status pst_tw_store_bytes(const pst_tree_writer *w, pst_bytes b, uint64_t ref[2]);
pst_status pst_tw_free_bytes(const pst_tree_writer *w, const uint64_t ref[2]);

/* ---- nodes ----------------------------------------------------------------------------------- */

/* Room for a quarter more, so that a growing node is copied a bounded number of times per entry. */
static inline uint32_t pst_tw_with_room(uint32_t n) {
    return n + n / 4;
}

/* Entries of a full node of this level. */
uint32_t pst_tw_full_capacity(const pst_tree_writer *w, uint32_t level);
/* A node without entries, for at least `want` of them or a full node's number. */
pst_status pst_tw_make_node(const pst_tree_writer *w, uint32_t level, int marked, uint32_t want,
                            uint32_t *granule);
pst_status pst_tw_free_node(const pst_tree_writer *w, uint32_t granule);
/* Copies n entries to another node of the same level, which is marked if one of them has no value.
 * Leaves the counts as they are. */
void pst_tw_copy_entries(const pst_tree_writer *w, uint64_t *to, uint32_t at, uint64_t *from,
                         uint32_t first, uint32_t n);
/* Makes room for `by` entries at i, or closes the gap of -by before it. REQUIRES: a born node. */
void pst_tw_shift_entries(const pst_tree_writer *w, uint64_t *node, uint32_t i, int by);
/* Marks entry i, which was just written. REQUIRES: a marked leaf, if the entry has no value. */
void pst_tw_mark(const pst_tree_writer *w, uint64_t *leaf, uint32_t i, int is_null);
/* Moves the path's node of this level to a block for `want` entries. REQUIRES: its parent is
 * born. */
pst_status pst_tw_move_node(pst_tree_writer *w, uint32_t level, uint32_t want);
/* The same for at least `need` entries, after its ancestors were made born. */
pst_status pst_tw_replace_node(pst_tree_writer *w, uint32_t level, uint32_t need);

/* Makes the path's node of this level born, with room for `need` entries, and with marks if
 * w->marked. */
static inline pst_status pst_tw_own(pst_tree_writer *w, uint32_t level, uint32_t need) {
    uint64_t h = pst_tw_header(w, w->at[level].node);
    if (pst_node_birth(h) == w->now && pst_node_capacity(h) >= need &&
        (level || !w->marked || pst_node_is_marked(h)))
        return PST_OK;
    return pst_tw_replace_node(w, level, need);
}

/* Finds e's key by the probe. PST_OK: the path ends at the entry. PST_NOT_FOUND: where it would be
 * inserted. */
pst_status pst_tw_descend(pst_tree_writer *w, pst_tree_probe *p);

#endif
