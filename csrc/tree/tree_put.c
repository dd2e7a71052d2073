#include "tree/tree.h"

#include "memory/ring.h"
#include "memory/size_class.h"
#include "tree/tree_write.h"

pst_status pst_tree_find(const uint8_t *heap, uint64_t bytes, const pst_tree_shape *s,
                         pst_tree_root root, pst_tree_entry *e) {
    pst_tree_probe p;
    uint32_t granule = root.node, i;
    uint64_t h;
    int equal;
    if (!granule)
        return PST_NOT_FOUND;
    pst_tree_probe_make(&p, heap, bytes, s, e);
    if (!pst_node_open(heap, bytes, s, granule, &h))
        return PST_CORRUPT;
    for (uint32_t level = pst_node_level(h); level; level--) {
        const uint64_t *node = pst_node_at(heap, granule);
        granule = pst_node_child(s, node, h, pst_node_branch(s, &p, node, h));
        if (!pst_node_open_child(heap, bytes, s, granule, level - 1, &h))
            return PST_CORRUPT;
    }
    i = pst_node_locate(s, &p, pst_node_at(heap, granule), h, &equal);
    if (p.corrupt)
        return PST_CORRUPT;
    if (!equal)
        return PST_NOT_FOUND;
    return pst_node_fill_value(heap, bytes, s, pst_node_at(heap, granule), h, i, e) ? PST_OK
                                                                                    : PST_CORRUPT;
}

int pst_tree_prefetch_paths(const uint8_t *heap, uint64_t bytes, const pst_tree_shape *s,
                            const pst_tree_root *roots, const pst_tree_entry *entries, int n) {
    pst_tree_probe p[PST_TREE_PATHS];
    uint32_t at[PST_TREE_PATHS];
    int apart = 0;
    for (int k = 0; k < n; k++) {
        pst_tree_probe_make(&p[k], heap, bytes, s, &entries[k]);
        at[k] = roots[k].node;
    }
    for (int level = 0, left = 1; left && level < PST_TREE_LEVELS; level++) {
        left = 0;
        for (int k = 0; k < n; k++) {
            uint64_t h;
            if (!pst_node_open(heap, bytes, s, at[k], &h) || !pst_node_level(h))
                continue;
            const uint64_t *node = pst_node_at(heap, at[k]);
            at[k] = pst_node_child(s, node, h, pst_node_branch(s, &p[k], node, h));
            pst_node_prefetch(heap, at[k], pst_node_level(h) - 1);
            left++;
        }
    }
    for (int k = 1; k < n; k++)
        apart |= at[k] != at[0];
    return apart;
}

/* ---- put ------------------------------------------------------------------------------------- */

/* What separates a leaf's entry from those before it. For bytes, the shortest such prefix. */
static pst_status make_separator(const pst_tree_writer *w, uint64_t *leaf, uint32_t cut,
                                 uint64_t sep[2]) {
    uint64_t *low = pst_tw_key(w, leaf, cut - 1), *high = pst_tw_key(w, leaf, cut);
    if (!w->s->key_is_ref) {
        sep[0] = high[0];
        sep[1] = w->s->key_words == 2 ? high[1] : 0;
        return PST_OK;
    }
    const uint8_t *a = pst_ref_data(w->t->heap, low), *b = pst_ref_data(w->t->heap, high);
    uint32_t size = pst_ref_size(low), shared = 0;
    if (size > pst_ref_size(high))
        size = pst_ref_size(high);
    while (shared < size && a[shared] == b[shared])
        shared++;
    return pst_tw_store_bytes(w, (pst_bytes){b, shared + 1}, sep);
}

/* Whether the path runs along an edge of the tree above this level. */
static int at_edge(const pst_tree_writer *w, uint32_t level, int last) {
    for (uint32_t l = level + 1; l <= w->top; l++) {
        uint32_t end = last ? pst_node_count(pst_tw_header(w, w->at[l].node)) - 1 : 0;
        if (w->at[l].index != end)
            return 0;
    }
    return 1;
}

/* Puts an inner root above the present one. */
static pst_status grow_root(pst_tree_writer *w) {
    uint32_t granule;
    if (w->top + 1 == PST_TREE_LEVELS)
        return PST_TOO_LARGE;
    pst_status s = pst_tw_make_node(w, w->top + 1, 0, 2, &granule);
    if (s)
        return s;
    uint64_t *node = pst_tw_node(w, granule);
    pst_put_words(pst_tw_key(w, node, 0), (const uint64_t[2]){0, 0}, w->s->key_words);
    pst_put64(pst_tw_value(w, node, 0), w->root->node);
    pst_tw_set_count(node, 1);
    w->top++;
    w->at[w->top] = (pst_tree_step){granule, 0};
    w->root->node = granule;
    return PST_OK;
}

/* Takes the root away that was put above a node, and nothing beside it. */
static void shrink_root(pst_tree_writer *w) {
    uint32_t granule = w->root->node;
    w->root->node = (uint32_t)*pst_tw_value(w, pst_tw_node(w, granule), 0);
    w->top--;
    (void)pst_tw_free_node(w, granule); /* born: cannot fail */
}

static int is_full(const pst_tree_writer *w, uint32_t level) {
    uint64_t h = pst_tw_header(w, w->at[level].node);
    return pst_node_count(h) == pst_node_capacity(h) &&
           pst_node_count(h) >= pst_tw_full_capacity(w, level);
}

/* How many entries stay in the left node when a node is split for one more at i. Puts at either end
 * of the tree leave full nodes behind. */
static uint32_t cut_of(const pst_tree_writer *w, uint32_t level, uint32_t i, uint32_t count) {
    if (i == count && at_edge(w, level, 1))
        return count - 1;
    if (i <= (level ? 1 : 0) && at_edge(w, level, 0))
        return 1;
    return count / 2;
}

/* A born parent with room for one more child, whose split may move the path. */
static pst_status prepare_parent(pst_tree_writer *w, uint32_t level, const pst_tree_probe *p);

/* Makes what a split of the path's node at `cut` needs: the node that gets the entries from there on,
 * and what separates it from the other one. */
static pst_status make_right(pst_tree_writer *w, uint32_t level, uint32_t cut, uint32_t want,
                             uint32_t *granule, uint64_t sep[2]) {
    uint32_t here = w->at[level].node;
    pst_status s =
        pst_tw_make_node(w, level, pst_node_is_marked(pst_tw_header(w, here)), want, granule);
    if (s || level)
        return s;
    s = make_separator(w, pst_tw_node(w, here), cut, sep);
    if (s)
        (void)pst_tw_free_node(w, *granule); /* born: cannot fail */
    return s;
}

/* Splits the path's full node, and continues the path in the half that the probe belongs to. */
static pst_status split(pst_tree_writer *w, uint32_t level, const pst_tree_probe *p) {
    pst_status s = pst_tw_own(w, level, 0);
    uint32_t top = w->top;
    if (!s)
        s = prepare_parent(w, level + 1, p);
    pst_tree_step *here = &w->at[level], *above = &w->at[level + 1];
    uint32_t granule, count = 0, cut = 0, want = PST_TREE_MOST + 1;
    uint64_t sep[2];
    if (!s) {
        count = pst_node_count(pst_tw_header(w, here->node));
        cut = cut_of(w, level, level ? here->index + 1 : here->index, count);
        if (w->more && !level)
            want = count - cut + 1 + w->more;
        s = make_right(w, level, cut, want, &granule, sep);
        if (s && level == top)
            shrink_root(w);
    }
    if (s)
        return s;
    uint64_t *left = pst_tw_node(w, here->node), *right = pst_tw_node(w, granule);
    pst_tw_copy_entries(w, right, 0, left, cut, count - cut);
    pst_tw_set_count(right, count - cut);
    pst_tw_set_count(left, cut);
    int goes_right = here->index > cut || (level && here->index == cut);
    if (level) {
        pst_get_words(sep, pst_tw_key(w, right, 0), w->s->key_words);
        pst_put_words(pst_tw_key(w, right, 0), (const uint64_t[2]){0, 0}, w->s->key_words);
    } else if (here->index == cut && w->s->key_is_ref) {
        /* A shortened separator may lie below the new key, although the key belongs before the
         * cut. */
        pst_tree_probe grown = *p;
        grown.heap_bytes = pst_tw_heap_bytes(w); /* the separator may lie in new memory */
        goes_right = pst_tree_compare_bytes(&grown, sep) <= 0;
        if (grown.corrupt)
            return PST_CORRUPT;
    }
    uint64_t *parent = pst_tw_node(w, above->node);
    pst_tw_shift_entries(w, parent, above->index + 1, 1);
    pst_put_words(pst_tw_key(w, parent, above->index + 1), sep, w->s->key_words);
    pst_put64(pst_tw_value(w, parent, above->index + 1), granule);
    if (goes_right) {
        *here = (pst_tree_step){granule, here->index - cut};
        above->index++;
    }
    return PST_OK;
}

static pst_status prepare_parent(pst_tree_writer *w, uint32_t level, const pst_tree_probe *p) {
    if (level > w->top)
        return grow_root(w);
    if (is_full(w, level))
        return split(w, level, p);
    return pst_tw_own(w, level, pst_node_count(pst_tw_header(w, w->at[level].node)) + 1);
}

/* The words of an entry's value; for bytes, a reference to a new block. */
static pst_status value_of(const pst_tree_writer *w, const pst_tree_entry *e, uint64_t ref[2],
                           const uint64_t **value) {
    static const uint64_t NOTHING[PST_TREE_MAX_VALUE_WORDS];
    static const uint64_t GONE[PST_TREE_MAX_VALUE_WORDS] = {1};
    if (e->is_null) {
        *value = e->is_gone ? GONE : NOTHING;
        return PST_OK;
    }
    *value = w->s->value_is_ref ? ref : e->value;
    return w->s->value_is_ref ? pst_tw_store_bytes(w, e->value_bytes, ref) : PST_OK;
}

static int is_same(const pst_tree_writer *w, const pst_tree_entry *e) {
    uint64_t *leaf = pst_tw_node(w, w->at[0].node);
    uint32_t i = w->at[0].index;
    if (w->s->timed && *pst_tw_time(w, leaf, i) != (uint64_t)e->time)
        return 0;
    int is_null = pst_node_is_null(w->s, leaf, *leaf, i);
    const uint64_t *value = pst_tw_value(w, leaf, i);
    if (is_null || e->is_null)
        return is_null && e->is_null && (*value != 0) == e->is_gone;
    if (w->s->value_is_ref)
        return pst_ref_equals(w->t->heap, value, e->value_bytes);
    for (uint32_t k = 0; k < w->s->value_words; k++)
        if (value[k] != e->value[k])
            return 0;
    return 1;
}

/* Frees what value_of has made. */
static void drop_value(const pst_tree_writer *w, const pst_tree_entry *e, const uint64_t ref[2]) {
    if (!e->is_null && w->s->value_is_ref)
        (void)pst_tw_free_bytes(w, ref); /* born: cannot fail */
}

/* Sees to it that the block of the value at the path's end can be listed. */
static pst_status reserve_name(const pst_tree_writer *w) {
    uint64_t *leaf = pst_tw_node(w, w->at[0].node), ref[2];
    if (!w->s->value_is_ref)
        return PST_OK;
    pst_get_words(ref, pst_tw_value(w, leaf, w->at[0].index), 2);
    if (!pst_ref_is_block(ref))
        return PST_OK;
    return pst_ring_reserve(w->t, pst_class_of(pst_tree_block_bytes(pst_ref_size(ref))), 1);
}

static pst_status replace(pst_tree_writer *w, const pst_tree_entry *e) {
    uint64_t ref[2], old[2] = {0, 0};
    const uint64_t *value;
    if (is_same(w, e))
        return PST_OK;
    pst_status s = value_of(w, e, ref, &value);
    if (s)
        return s;
    s = pst_tw_own(w, 0, 0);
    if (!s)
        s = reserve_name(w);
    if (s) {
        drop_value(w, e, ref);
        return s;
    }
    uint64_t *leaf = pst_tw_node(w, w->at[0].node), *to = pst_tw_value(w, leaf, w->at[0].index);
    if (w->s->value_is_ref)
        pst_get_words(old, to, 2);
    pst_put_words(to, value, w->s->value_words);
    if (w->s->timed)
        pst_put64(pst_tw_time(w, leaf, w->at[0].index), (uint64_t)e->time);
    pst_tw_mark(w, leaf, w->at[0].index, e->is_null);
    return pst_tw_free_bytes(w, old);
}

/* A born leaf with room for one more entry, and where it must grow, for those that follow. */
static pst_status own_leaf(pst_tree_writer *w) {
    uint64_t h = pst_tw_header(w, w->at[0].node);
    uint32_t need = pst_node_count(h) + 1;
    return pst_tw_own(w, 0, need > pst_node_capacity(h) ? need + w->more : need);
}

/* Writes a new entry into a place of a leaf that is free. */
static inline void put_at(pst_tree_writer *w, uint64_t *leaf, uint32_t i, const uint64_t key[2],
                          const uint64_t *value, const pst_tree_entry *e) {
    pst_put_words(pst_tw_key(w, leaf, i), key, w->s->key_words);
    pst_put_words(pst_tw_value(w, leaf, i), value, w->s->value_words);
    if (w->s->timed)
        pst_put64(pst_tw_time(w, leaf, i), (uint64_t)e->time);
    pst_tw_mark(w, leaf, i, e->is_null);
    w->root->count++;
}

static void drop_key(const pst_tree_writer *w, const uint64_t key[2]) {
    if (w->s->key_is_ref)
        (void)pst_tw_free_bytes(w, key); /* born: cannot fail */
}

/* The words of an entry's key and value, in blocks of their own where they are long. */
static pst_status store_entry(const pst_tree_writer *w, const pst_tree_entry *e, uint64_t key[2],
                              uint64_t ref[2], const uint64_t **value) {
    pst_status s = w->s->key_is_ref ? pst_tw_store_bytes(w, e->key_bytes, key) : PST_OK;
    if (s)
        return s;
    s = value_of(w, e, ref, value);
    if (s)
        drop_key(w, key);
    return s;
}

static pst_status insert(pst_tree_writer *w, const pst_tree_probe *p, const pst_tree_entry *e) {
    uint64_t key[2] = {p->word[0], p->word[1]}, ref[2];
    const uint64_t *value;
    if (w->root->count >= PST_TREE_MAX_COUNT)
        return PST_TOO_LARGE;
    pst_status s = store_entry(w, e, key, ref, &value);
    if (s)
        return s;
    uint32_t granule = w->root->node;
    if (!granule) {
        s = pst_tw_make_node(w, 0, e->is_null, 1 + w->more, &granule);
        if (!s) {
            w->at[0] = (pst_tree_step){granule, 0};
            w->root->node = granule;
        }
    } else {
        s = is_full(w, 0) ? split(w, 0, p) : own_leaf(w);
        if (!s && w->marked)
            s = pst_tw_own(w, 0, pst_node_count(pst_tw_header(w, w->at[0].node)) + 1);
    }
    if (s) {
        drop_value(w, e, ref);
        drop_key(w, key);
        return s;
    }
    uint64_t *leaf = pst_tw_node(w, w->at[0].node);
    uint32_t i = w->at[0].index;
    if (i < pst_node_count(*leaf))
        pst_tw_shift_entries(w, leaf, i, 1);
    else
        pst_tw_set_count(leaf, i + 1);
    put_at(w, leaf, i, key, value, e);
    return PST_OK;
}

static inline int is_too_large(const pst_tree_shape *s, const pst_tree_entry *e) {
    return (s->key_is_ref && e->key_bytes.size > PST_TREE_MAX_KEY) ||
           (s->value_is_ref && !e->is_null && e->value_bytes.size > PST_MAX_BYTES);
}

pst_status pst_tree_put(pst_table *t, const pst_tree_shape *s, pst_tree_root *root,
                        const pst_tree_entry *e) {
    pst_tree_writer w = pst_tw_begin(t, s, root);
    pst_tree_probe p;
    if (is_too_large(s, e))
        return PST_TOO_LARGE;
    w.marked = e->is_null;
    pst_tree_probe_make(&p, t->heap, pst_tw_heap_bytes(&w), s, e);
    pst_status st = root->node ? pst_tw_descend(&w, &p) : PST_NOT_FOUND;
    if (st == PST_OK)
        return replace(&w, e);
    return st == PST_NOT_FOUND ? insert(&w, &p, e) : st;
}

/* Leads the path behind the last entry; 0 where the probe's key does not belong there. */
static int is_behind_all(pst_tree_writer *w, pst_tree_probe *p) {
    const pst_tree_shape *s = w->s;
    const uint8_t *heap = w->t->heap;
    uint64_t bytes = pst_tw_heap_bytes(w), h;
    uint32_t granule = w->root->node;
    if (!pst_node_open(heap, bytes, s, granule, &h))
        return 0;
    uint32_t level = w->top = pst_node_level(h);
    for (; level; level--) {
        w->at[level] = (pst_tree_step){granule, pst_node_count(h) - 1};
        granule = pst_node_child(s, pst_node_at(heap, granule), h, pst_node_count(h) - 1);
        if (!pst_node_open(heap, bytes, s, granule, &h) || pst_node_level(h) != level - 1)
            return 0;
    }
    w->at[0] = (pst_tree_step){granule, pst_node_count(h)};
    const uint64_t *last = pst_node_key(s, pst_node_at(heap, granule), pst_node_count(h) - 1);
    return pst_node_search(s, p, last, 1, 0) == 1;
}

pst_status pst_tree_append(pst_table *t, const pst_tree_shape *s, pst_tree_root *root,
                           const pst_tree_entry *e, uint32_t more) {
    pst_tree_writer w = pst_tw_begin(t, s, root);
    pst_tree_probe p;
    if (is_too_large(s, e))
        return PST_TOO_LARGE;
    w.marked = e->is_null;
    pst_tree_probe_make(&p, t->heap, pst_tw_heap_bytes(&w), s, e);
    w.more = more > PST_TREE_MOST ? PST_TREE_MOST : more;
    if (root->node && !is_behind_all(&w, &p)) {
        pst_status st = pst_tw_descend(&w, &p);
        if (st == PST_OK)
            return replace(&w, e);
        if (st != PST_NOT_FOUND)
            return st;
        w.more = 0;
    }
    return p.corrupt ? PST_CORRUPT : insert(&w, &p, e);
}

/* Puts an entry behind the path's last one, where the leaf is born and has room. */
static pst_status put_last(pst_tree_writer *w, uint64_t *leaf, uint32_t count,
                           const pst_tree_entry *e) {
    uint64_t key[2] = {e->key[0], e->key[1]}, ref[2];
    const uint64_t *value;
    pst_status s = store_entry(w, e, key, ref, &value);
    if (s)
        return s;
    pst_tw_set_count(leaf, count + 1);
    put_at(w, leaf, count, key, value, e);
    w->at[0].index = count;
    return PST_OK;
}

pst_status pst_tree_append_run(pst_table *t, const pst_tree_shape *s, pst_tree_root *root,
                               const pst_tree_entry *e, uint32_t n, uint32_t more, uint32_t *done) {
    pst_tree_writer w = pst_tw_begin(t, s, root);
    pst_status st = PST_OK;
    *done = 0;
    for (uint32_t i = 0; !st && i < n; i++) {
        pst_tree_probe p;
        if (is_too_large(s, &e[i]))
            return PST_TOO_LARGE;
        if (i && root->count < PST_TREE_MAX_COUNT) {
            uint64_t *leaf = pst_tw_node(&w, w.at[0].node);
            uint32_t count = pst_node_count(*leaf);
            w.at[0].index = count;
            if (count < pst_node_capacity(*leaf) && (!e[i].is_null || pst_node_is_marked(*leaf))) {
                st = put_last(&w, leaf, count, &e[i]);
                continue;
            }
        }
        pst_tree_probe_make(&p, t->heap, pst_tw_heap_bytes(&w), s, &e[i]);
        if (!i && root->node && !is_behind_all(&w, &p))
            return p.corrupt ? PST_CORRUPT : PST_OK;
        w.more = n - 1 - i + more > PST_TREE_MOST ? PST_TREE_MOST : n - 1 - i + more;
        w.marked = e[i].is_null;
        st = insert(&w, &p, &e[i]);
    }
    *done = n;
    return st;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static unsigned __int128 pair_at(const uint64_t *key) {
    return pst_tree_pair(key[0], key[1]);
}

/* What lies behind the path's leaf begins at *bound; 0 for the last leaf. */
static int bound_of(const pst_tree_writer *w, unsigned __int128 *bound) {
    for (uint32_t l = 1; l <= w->top; l++) {
        uint64_t *node = pst_tw_node(w, w->at[l].node);
        if (w->at[l].index + 1 < pst_node_count(*node)) {
            *bound = pair_at(pst_tw_key(w, node, w->at[l].index + 1));
            return 1;
        }
    }
    return 0;
}

/* Puts a key that belongs behind the path's entry in the same leaf. PST_NOT_FOUND: the leaf is
 * full. */
static pst_status put_behind(pst_tree_writer *w, const uint64_t key[2], int *fresh) {
    uint64_t *leaf = pst_tw_node(w, w->at[0].node);
    uint32_t count = pst_node_count(*leaf), from = w->at[0].index + 1;
    uint32_t i = from + pst_tree_search_pairs(pst_tw_key(w, leaf, from), count - from, key, 0);
    w->at[0].index = i;
    *fresh = i == count || pair_at(pst_tw_key(w, leaf, i)) != pair_at(key);
    if (!*fresh)
        return PST_OK;
    if (is_full(w, 0))
        return PST_NOT_FOUND;
    if (w->root->count >= PST_TREE_MAX_COUNT)
        return PST_TOO_LARGE;
    pst_status s = pst_tw_own(w, 0, count + 1);
    if (s)
        return s;
    leaf = pst_tw_node(w, w->at[0].node);
    pst_tw_shift_entries(w, leaf, i, 1);
    pst_put_words(pst_tw_key(w, leaf, i), key, 2);
    w->root->count++;
    return PST_OK;
}

pst_status pst_tree_put_run(pst_table *t, const pst_tree_shape *s, pst_tree_root *root,
                            const uint64_t (*keys)[2], uint32_t n, uint32_t *done,
                            uint64_t *fresh) {
    pst_tree_writer w = pst_tw_begin(t, s, root);
    pst_tree_entry e = {.key = {keys[0][0], keys[0][1]}};
    pst_tree_probe p;
    pst_tree_probe_make(&p, t->heap, pst_tw_heap_bytes(&w), s, &e);
    pst_status st = root->node ? pst_tw_descend(&w, &p) : PST_NOT_FOUND;
    *fresh = st == PST_NOT_FOUND;
    if (*fresh)
        st = insert(&w, &p, &e);
    unsigned __int128 bound = 0;
    int bounded = st ? 0 : bound_of(&w, &bound);
    uint32_t i = st ? 0 : 1;
    for (; !st && i < n && i < PST_TREE_RUN; i++) {
        unsigned __int128 key = pair_at(keys[i]);
        int added;
        if (key <= pair_at(keys[i - 1]) || (bounded && key >= bound))
            break;
        st = put_behind(&w, keys[i], &added);
        if (st)
            break;
        *fresh |= (uint64_t)added << i;
    }
    *done = i;
    return st == PST_NOT_FOUND ? PST_OK : st;
}
