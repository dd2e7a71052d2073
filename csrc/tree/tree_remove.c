#include "tree/tree_write.h"

/* ---- remove ---------------------------------------------------------------------------------- */

/* Takes child i out of the path's inner node. */
static pst_status drop_child(pst_tree_writer *w, uint32_t level, uint32_t i, int keep_separator) {
    uint64_t *node = pst_tw_node(w, w->at[level].node), ref[2] = {0, 0};
    uint32_t count = pst_node_count(*node);
    /* The second child's separator goes too: it becomes the first child, which needs none. */
    uint32_t at = i ? i : 1;
    if (w->s->key_is_ref && !keep_separator && at < count)
        pst_get_words(ref, pst_tw_key(w, node, at), 2);
    pst_tw_shift_entries(w, node, i + 1, -1);
    if (!i)
        pst_put_words(pst_tw_key(w, node, 0), (const uint64_t[2]){0, 0}, w->s->key_words);
    return pst_tw_free_bytes(w, ref);
}

/* Children i and i + 1 of the path's node of level + 1 become one. */
static pst_status merge(pst_tree_writer *w, uint32_t level, uint32_t i) {
    pst_tree_step *here = &w->at[level], *above = &w->at[level + 1];
    uint64_t *parent = pst_tw_node(w, above->node);
    uint32_t granule = (uint32_t)*pst_tw_value(w, parent, i + 1);
    above->index = i;
    here->node = (uint32_t)*pst_tw_value(w, parent, i);
    uint64_t *right = pst_tw_node(w, granule);
    uint32_t l = pst_node_count(pst_tw_header(w, here->node)), r = pst_node_count(*right);
    w->marked = pst_node_is_marked(*right);
    pst_status s = pst_tw_own(w, level, l + r);
    if (s)
        return s;
    uint64_t *left = pst_tw_node(w, here->node);
    pst_tw_copy_entries(w, left, l, right, 0, r);
    if (level)
        pst_put_words(pst_tw_key(w, left, l), pst_tw_key(w, parent, i + 1), w->s->key_words);
    pst_tw_set_count(left, l + r);
    s = pst_tw_free_node(w, granule);
    return s ? s : drop_child(w, level + 1, i + 1, level != 0);
}

/* Merges a sparse node with a neighbour if both fit well into one. */
static pst_status try_merge(pst_tree_writer *w, uint32_t level, int *merged) {
    const uint64_t *parent = pst_tw_node(w, w->at[level + 1].node);
    uint32_t i = w->at[level + 1].index,
             count = pst_node_count(pst_tw_header(w, w->at[level].node));
    uint32_t full = pst_tw_full_capacity(w, level);
    *merged = 0;
    if (count * 3 > full)
        return PST_OK;
    for (uint32_t left = i ? i - 1 : 0; left <= i; left++) {
        if (left + 1 >= pst_node_count(*parent))
            break;
        uint32_t other = pst_node_child(w->s, parent, *parent, left == i ? i + 1 : left);
        uint64_t h;
        if (!pst_node_open_child(w->t->heap, pst_tw_heap_bytes(w), w->s, other, level, &h))
            return PST_CORRUPT;
        if ((count + pst_node_count(h)) * 4 > full * 3)
            continue;
        *merged = 1;
        return merge(w, level, left);
    }
    return PST_OK;
}

/* A node in a block far too large for it moves to a smaller one. */
static pst_status fit(pst_tree_writer *w, uint32_t level) {
    uint64_t h = pst_tw_header(w, w->at[level].node);
    uint32_t want = pst_tw_with_room(pst_node_count(h));
    return pst_node_capacity(h) > 2 * want + 1 ? pst_tw_move_node(w, level, want) : PST_OK;
}

/* Frees an empty root; replaces a root that has one child left by that child. */
static pst_status shrink_root(pst_tree_writer *w) {
    pst_status s = PST_OK;
    while (w->top && !s && pst_node_count(pst_tw_header(w, w->root->node)) == 1) {
        uint32_t old = w->root->node;
        w->root->node = (uint32_t)*pst_tw_value(w, pst_tw_node(w, old), 0);
        w->at[--w->top].node = w->root->node;
        s = pst_tw_free_node(w, old);
    }
    if (s)
        return s;
    uint64_t h = pst_tw_header(w, w->root->node);
    if (pst_node_count(h)) /* a child that became the root may be older than the epoch */
        return pst_node_birth(h) == w->now ? fit(w, w->top) : PST_OK;
    s = pst_tw_free_node(w, w->root->node);
    w->root->node = 0;
    return s;
}

/* The path's node of this level has lost an entry: it is freed, merged, or moved to a block that
 * fits. Says whether its parent has lost a child by that. */
static pst_status shrink_node(pst_tree_writer *w, uint32_t level, int *parent_lost) {
    uint32_t granule = w->at[level].node;
    if (!pst_node_count(pst_tw_header(w, granule))) {
        *parent_lost = 1;
        pst_status s = pst_tw_free_node(w, granule);
        return s ? s : drop_child(w, level + 1, w->at[level + 1].index, 0);
    }
    pst_status s = try_merge(w, level, parent_lost);
    return s || *parent_lost ? s : fit(w, level);
}

/* From the level on whose node has lost an entry. */
static pst_status shrink(pst_tree_writer *w, uint32_t level) {
    int lost = 1;
    for (; level < w->top; level++) {
        pst_status s = shrink_node(w, level, &lost);
        if (s || !lost)
            return s;
    }
    return shrink_root(w);
}

pst_status pst_tree_remove(pst_table *t, const pst_tree_shape *s, pst_tree_root *root,
                           const pst_tree_entry *e) {
    pst_tree_writer w = pst_tw_begin(t, s, root);
    pst_tree_probe p;
    if (!root->node)
        return PST_NOT_FOUND;
    pst_tree_probe_make(&p, t->heap, pst_tw_heap_bytes(&w), s, e);
    pst_status st = pst_tw_descend(&w, &p);
    if (!st)
        st = pst_tw_own(&w, 0, 0);
    if (st)
        return st;
    uint64_t *leaf = pst_tw_node(&w, w.at[0].node), key[2] = {0, 0}, value[2] = {0, 0};
    uint32_t i = w.at[0].index;
    if (s->key_is_ref)
        pst_get_words(key, pst_tw_key(&w, leaf, i), 2);
    if (s->value_is_ref)
        pst_get_words(value, pst_tw_value(&w, leaf, i), 2);
    pst_tw_shift_entries(&w, leaf, i + 1, -1);
    root->count--;
    st = pst_tw_free_bytes(&w, key);
    if (!st)
        st = pst_tw_free_bytes(&w, value);
    return st ? st : shrink(&w, 0);
}

/* Takes the path's leaf out with all its entries, which need no copy for that. */
static pst_status drop_leaf(pst_tree_writer *w) {
    pst_status s = w->top ? pst_tw_own(w, 1, 0) : PST_OK;
    if (!s)
        s = pst_tw_free_node(w, w->at[0].node);
    if (s)
        return s;
    if (!w->top) {
        w->root->node = 0;
        return PST_OK;
    }
    s = drop_child(w, 1, w->at[1].index, 0);
    return s ? s : shrink(w, 1);
}

pst_status pst_tree_remove_run(pst_table *t, const pst_tree_shape *s, pst_tree_root *root,
                               const uint64_t (*keys)[2], uint32_t n, uint32_t *done) {
    pst_tree_writer w = pst_tw_begin(t, s, root);
    pst_tree_entry e = {.key = {keys[0][0], keys[0][1]}};
    pst_tree_probe p;
    if (!root->node)
        return PST_NOT_FOUND;
    pst_tree_probe_make(&p, t->heap, pst_tw_heap_bytes(&w), s, &e);
    pst_status st = pst_tw_descend(&w, &p);
    if (st)
        return st;
    const uint64_t *leaf = pst_tw_node(&w, w.at[0].node);
    uint32_t i = w.at[0].index, count = pst_node_count(*leaf), m = 1;
    for (; m < n && i + m < count; m++) {
        const uint64_t *key = pst_node_key(s, leaf, i + m);
        if (key[0] != keys[m][0] || key[1] != keys[m][1])
            break;
    }
    *done = m;
    root->count -= m;
    if (m == count)
        return drop_leaf(&w);
    st = pst_tw_own(&w, 0, 0);
    if (st)
        return st;
    pst_tw_shift_entries(&w, pst_tw_node(&w, w.at[0].node), i + m, -(int)m);
    return shrink(&w, 0);
}

/* ---- clear ----------------------------------------------------------------------------------- */

static pst_status clear_node(const pst_tree_writer *w, uint32_t granule, uint64_t header) {
    uint64_t *node = pst_tw_node(w, granule), h;
    uint32_t level = pst_node_level(header), n = pst_node_count(header);
    pst_status s = PST_OK;
    for (uint32_t i = 0; w->s->key_is_ref && !s && i < n; i++)
        s = pst_tw_free_bytes(w, pst_tw_key(w, node, i));
    for (uint32_t i = 0; w->s->value_is_ref && !level && !s && i < n; i++)
        s = pst_tw_free_bytes(w, pst_tw_value(w, node, i));
    for (uint32_t i = 0; level && !s && i < n; i++) {
        uint32_t child = pst_node_child(w->s, node, header, i);
        if (!pst_node_open_child(w->t->heap, pst_tw_heap_bytes(w), w->s, child, level - 1, &h))
            return PST_CORRUPT;
        s = clear_node(w, child, h);
    }
    return s ? s : pst_tw_free_node(w, granule);
}

pst_status pst_tree_clear(pst_table *t, const pst_tree_shape *s, pst_tree_root *root) {
    pst_tree_writer w = pst_tw_begin(t, s, root);
    uint64_t h;
    if (!root->node)
        return PST_OK;
    if (!pst_node_open(t->heap, pst_tw_heap_bytes(&w), s, root->node, &h))
        return PST_CORRUPT;
    pst_status st = clear_node(&w, root->node, h);
    *root = (pst_tree_root){0, 0};
    return st;
}
