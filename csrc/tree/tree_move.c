/* tree_move.c: nodes and bytes moved out of spans that are to be left. */
#include "memory/ring.h"
#include "memory/size_class.h"
#include "memory/span.h"
#include "tree/tree.h"
#include "tree/tree_write.h"

static int must_move(const pst_tree_writer *w, uint32_t granule) {
    return pst_span_is_left(w->t, granule);
}

/* The bytes of word pair `which` (0: key, 1: value) of the entry that the path points at. */
static pst_status move_bytes(pst_tree_writer *w, uint32_t level, int which) {
    uint64_t *node = pst_tw_node(w, w->at[level].node), old[2], ref[2];
    uint32_t i = w->at[level].index;
    pst_get_words(old, which ? pst_tw_value(w, node, i) : pst_tw_key(w, node, i), 2);
    if (!pst_ref_is_block(old) || !must_move(w, pst_ref_granule(old)))
        return PST_OK;
    pst_status s = pst_tw_own(w, level, 0);
    if (s)
        return s;
    pst_bytes b = {pst_ref_data(w->t->heap, old), pst_ref_size(old)};
    s = pst_tw_store_bytes(w, b, ref);
    if (s)
        return s;
    s = pst_ring_reserve(w->t, pst_class_of(pst_tree_block_bytes(b.size)), 1);
    if (s) {
        (void)pst_tw_free_bytes(w, ref); /* born: cannot fail */
        return s;
    }
    node = pst_tw_node(w, w->at[level].node);
    PST_FENCE(__ATOMIC_RELEASE);
    pst_put_words(which ? pst_tw_value(w, node, i) : pst_tw_key(w, node, i), ref, 2);
    return pst_tw_free_bytes(w, old);
}

/* The path's node of this level and all below it. Writing may move the node, so that it is looked
 * up in the path each time. */
static pst_status move_below(pst_tree_writer *w, uint32_t level, uint64_t *looked) {
    pst_status s = PST_OK;
    uint32_t n = pst_node_count(pst_tw_header(w, w->at[level].node));
    *looked += 1;
    if (must_move(w, w->at[level].node)) {
        if (level < w->top)
            s = pst_tw_own(w, level + 1, 0);
        if (!s)
            s = pst_tw_move_node(w, level, pst_node_capacity(pst_tw_header(w, w->at[level].node)));
    }
    for (uint32_t i = 0; i < n && !s; i++) {
        w->at[level].index = i;
        /* The first separator of an inner node is never looked at, and none. */
        if (w->s->key_is_ref && !(level && !i))
            s = move_bytes(w, level, 0);
        if (!s && !level && w->s->value_is_ref)
            s = move_bytes(w, level, 1);
        if (s || !level)
            continue;
        w->at[level - 1].node = (uint32_t)*pst_tw_value(w, pst_tw_node(w, w->at[level].node), i);
        s = move_below(w, level - 1, looked);
    }
    return s;
}

pst_status pst_tree_move(pst_table *t, const pst_tree_shape *s, pst_tree_root *root,
                         uint64_t *looked) {
    pst_tree_writer w = pst_tw_begin(t, s, root);
    if (!root->node)
        return PST_OK;
    w.top = pst_node_level(pst_tw_header(&w, root->node));
    w.at[w.top].node = root->node;
    return move_below(&w, w.top, looked);
}
