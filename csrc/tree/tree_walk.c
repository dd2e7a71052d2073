#include "tree/tree_node.h"

/* ---- cursor ---------------------------------------------------------------------------------- */

static pst_status spoil(pst_tree_cursor *c) {
    c->low = c->top + 1;
    return c->status = PST_CORRUPT;
}

/* The child that the position names, one level below the lowest frame. */
static uint32_t unopened(const pst_tree_cursor *c) {
    const pst_tree_frame *f = &c->at[c->low];
    return pst_node_child(&c->shape, pst_node_at(c->heap, f->node), f->header, f->index);
}

static pst_status open_child(pst_tree_cursor *c) {
    uint32_t child = unopened(c), level = c->low - 1;
    uint64_t h;
    if (!pst_node_open_child(c->heap, c->heap_bytes, &c->shape, child, level, &h))
        return spoil(c);
    c->at[level] = (pst_tree_frame){h, child, 0};
    c->low = level;
    return PST_OK;
}

/* Past what the lowest frame's index names. */
static void advance(pst_tree_cursor *c) {
    while (++c->at[c->low].index == pst_node_count(c->at[c->low].header))
        if (++c->low > c->top)
            return;
}

static void open_root(pst_tree_cursor *c, const uint8_t *heap, uint64_t heap_bytes,
                      const pst_tree_shape *s, pst_tree_root root) {
    uint64_t h;
    c->heap = heap;
    c->heap_bytes = heap_bytes;
    c->shape = *s;
    c->status = PST_OK;
    c->left = root.count;
    c->whole = 1;
    c->top = 0;
    c->low = 1;
    if (!root.node && !root.count)
        return;
    if (!pst_node_open(heap, heap_bytes, s, root.node, &h)) {
        c->status = PST_CORRUPT;
        return;
    }
    c->top = c->low = pst_node_level(h);
    c->at[c->top] = (pst_tree_frame){h, root.node, 0};
}

void pst_tree_seek(pst_tree_cursor *c, const uint8_t *heap, uint64_t heap_bytes,
                   const pst_tree_shape *s, pst_tree_root root, const pst_tree_entry *from) {
    open_root(c, heap, heap_bytes, s, root);
    if (!from || c->low > c->top)
        return;
    pst_tree_probe p;
    int equal;
    pst_tree_probe_make(&p, heap, heap_bytes, s, from);
    c->whole = 0;
    for (; c->low && !c->status; (void)open_child(c)) {
        pst_tree_frame *f = &c->at[c->low];
        f->index = pst_node_branch(s, &p, pst_node_at(heap, f->node), f->header);
    }
    if (c->status)
        return;
    pst_tree_frame *leaf = &c->at[0];
    leaf->index = pst_node_locate(s, &p, pst_node_at(heap, leaf->node), leaf->header, &equal);
    if (p.corrupt) {
        (void)spoil(c);
    } else if (leaf->index == pst_node_count(leaf->header)) {
        leaf->index--;
        advance(c);
    }
}

/* The entry at the position; the lowest frame is a leaf's. */
static pst_status fill(pst_tree_cursor *c, pst_tree_entry *e) {
    const pst_tree_shape *s = &c->shape;
    const pst_tree_frame *f = &c->at[0];
    const uint64_t *node = pst_node_at(c->heap, f->node), *key = pst_node_key(s, node, f->index);
    e->key[0] = pst_get64(key);
    e->key[1] = s->key_words == 2 ? pst_get64(key + 1) : 0;
    if ((s->key_is_ref && !pst_tree_bytes(c->heap, c->heap_bytes, key, &e->key_bytes)) ||
        !pst_node_fill_value(c->heap, c->heap_bytes, s, node, f->header, f->index, e))
        return spoil(c);
    return PST_OK;
}

pst_status pst_tree_next(pst_tree_cursor *c, pst_tree_entry *e) {
    if (c->status)
        return c->status;
    if (c->low > c->top)
        return c->whole && c->left ? spoil(c) : PST_NOT_FOUND;
    while (c->low)
        if (open_child(c))
            return c->status;
    if (!c->left)
        return spoil(c);
    c->left--;
    pst_status s = fill(c, e);
    if (!s)
        advance(c);
    return s;
}

/* ---- diff ------------------------------------------------------------------------------------ */

void pst_tree_diff_open(pst_tree_diff *d, const uint8_t *heap, uint64_t heap_bytes,
                        const pst_tree_shape *s, pst_tree_root before, pst_tree_root after) {
    open_root(&d->before, heap, heap_bytes, s, before);
    open_root(&d->after, heap, heap_bytes, s, after);
}

static int at_end(const pst_tree_cursor *c) {
    return c->low > c->top;
}

/* The highest level of a node that begins exactly at the position; -1: there is none. The child
 * that is not opened, of level low - 1, does, and so does each node above it whose path is at its
 * first child. */
static int highest_start(const pst_tree_cursor *c) {
    int level = (int)c->low - 1;
    while (level + 1 <= (int)c->top && c->at[level + 1].index == 0)
        level++;
    return level;
}

static uint32_t start_at(const pst_tree_cursor *c, uint32_t level) {
    return level < c->low ? unopened(c) : c->at[level].node;
}

static void skip(pst_tree_cursor *c, uint32_t level) {
    c->low = level + 1;
    if (c->low <= c->top)
        advance(c);
}

/* Words from the start that are the same. */
static uint32_t common(const uint64_t *a, const uint64_t *b, uint32_t n) {
    uint32_t i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* Compares what follows in the nodes of both lowest frames. */
static uint32_t both_left(const pst_tree_frame *a, const pst_tree_frame *b) {
    uint32_t n = pst_node_count(a->header) - a->index, m = pst_node_count(b->header) - b->index;
    return n < m ? n : m;
}

/* Passes n entries or children of the lowest node. */
static void pass(pst_tree_cursor *c, uint32_t n) {
    c->at[c->low].index += n - 1;
    advance(c);
}

/* Passes the children that two nodes of one level share from their positions on. Says whether there
 * was one. */
static void pass_children(pst_tree_cursor *a, pst_tree_cursor *b) {
    const pst_tree_shape *s = &a->shape;
    const pst_tree_frame *f = &a->at[a->low], *g = &b->at[b->low];
    const uint64_t *old = pst_node_value(s, pst_node_at(a->heap, f->node), f->header, f->index);
    const uint64_t *now = pst_node_value(s, pst_node_at(b->heap, g->node), g->header, g->index);
    uint32_t n = 1 + common(old + 1, now + 1, both_left(f, g) - 1);
    pass(a, n);
    pass(b, n);
}

/* Passes the largest node that begins at both positions, if there is one. */
static int skip_shared(pst_tree_cursor *a, pst_tree_cursor *b) {
    int high = highest_start(a), other = highest_start(b);
    int low = a->low > b->low ? (int)a->low - 1 : (int)b->low - 1;
    if (high > other)
        high = other;
    for (int level = high; level >= (low > 0 ? low : 0); level--) {
        if (start_at(a, (uint32_t)level) != start_at(b, (uint32_t)level))
            continue;
        if (a->low == b->low && level < (int)a->low) {
            pass_children(a, b);
        } else {
            skip(a, (uint32_t)level);
            skip(b, (uint32_t)level);
        }
        return 1;
    }
    return 0;
}

/* Prefetches the leaves that two nodes above leaves do not share. A leaf that was split or merged
 * shifts those behind it by a place. */
static void prefetch_leaves(const pst_tree_cursor *a, uint32_t before, uint32_t after) {
    const uint8_t *heap = a->heap;
    uint64_t f, g;
    if (before == after || !pst_node_open(heap, a->heap_bytes, &a->shape, before, &f) ||
        !pst_node_open(heap, a->heap_bytes, &a->shape, after, &g) || pst_node_level(f) != 1 ||
        pst_node_level(g) != 1)
        return;
    const uint64_t *old = pst_node_value(&a->shape, pst_node_at(heap, before), f, 0);
    const uint64_t *now = pst_node_value(&a->shape, pst_node_at(heap, after), g, 0);
    uint32_t n = pst_node_count(f), m = pst_node_count(g);
    for (uint32_t i = 0, k = 0; i < n && k < m; i++, k++) {
        if (old[i] == now[k])
            continue;
        pst_node_prefetch(heap, (uint32_t)old[i], 0);
        pst_node_prefetch(heap, (uint32_t)now[k], 0);
        if (i + 1 < n && k + 2 < m && old[i + 1] == now[k + 2])
            pst_node_prefetch(heap, (uint32_t)now[++k], 0);
        else if (i + 2 < n && k + 1 < m && old[i + 2] == now[k + 1])
            pst_node_prefetch(heap, (uint32_t)old[++i], 0);
    }
}

/* The sibling at this distance behind the cursor's node above leaves; 0 where their parent has
 * none. */
static uint32_t sibling(const pst_tree_cursor *c, uint32_t by) {
    const pst_tree_frame *f = &c->at[2];
    if (f->index + by >= pst_node_count(f->header))
        return 0;
    return pst_node_child(&c->shape, pst_node_at(c->heap, f->node), f->header, f->index + by);
}

/* Two nodes above leaves were opened: what they and their siblings lead to is fetched side by
 * side. */
static void prefetch_ahead(const pst_tree_cursor *a, const pst_tree_cursor *b) {
    pst_node_prefetch(a->heap, sibling(a, 2), 1);
    pst_node_prefetch(b->heap, sibling(b, 2), 1);
    if (b->at[2].index == 0)
        prefetch_leaves(a, a->at[1].node, b->at[1].node);
    prefetch_leaves(a, sibling(a, 1), sibling(b, 1));
}

/* Opens the higher of the two nodes at the positions, or both if they are of one level. REQUIRES:
 * at least one is not an entry. */
static pst_status open_higher(pst_tree_cursor *a, pst_tree_cursor *b) {
    uint32_t la = at_end(a) ? 0 : a->low, lb = at_end(b) ? 0 : b->low;
    if (la >= lb && la && open_child(a))
        return PST_CORRUPT;
    if (lb >= la && lb && open_child(b))
        return PST_CORRUPT;
    if (a->low == 1 && b->low == 1 && la == lb)
        prefetch_ahead(a, b);
    return PST_OK;
}

static int compare_keys(const pst_tree_cursor *c, const pst_tree_entry *a,
                        const pst_tree_entry *b) {
    if (!c->shape.key_is_ref) {
        unsigned __int128 x = pst_tree_pair(a->key[0], a->key[1]);
        unsigned __int128 y = pst_tree_pair(b->key[0], b->key[1]);
        return (x > y) - (x < y);
    }
    uint32_t n = a->key_bytes.size, m = b->key_bytes.size, shared = n < m ? n : m;
    if (n == m && a->key_bytes.data == b->key_bytes.data)
        return 0;
    int d = shared ? memcmp(a->key_bytes.data, b->key_bytes.data, shared) : 0;
    return d ? d : (n > m) - (n < m);
}

static int same_value(const pst_tree_shape *s, const pst_tree_entry *a, const pst_tree_entry *b) {
    if (s->timed && a->time != b->time)
        return 0;
    if (a->is_null || b->is_null)
        return a->is_null && b->is_null && a->is_gone == b->is_gone;
    if (s->value_is_ref)
        return a->value_bytes.size == b->value_bytes.size &&
               (a->value_bytes.data == b->value_bytes.data ||
                !memcmp(a->value_bytes.data, b->value_bytes.data, a->value_bytes.size));
    for (uint32_t i = 0; i < s->value_words; i++)
        if (pst_get64(a->value + i) != pst_get64(b->value + i))
            return 0;
    return 1;
}

/* How many of the n entries at both positions have a value, or have none, alike. */
static uint32_t same_marks(const pst_tree_shape *s, const pst_tree_frame *f, const uint64_t *old,
                           const pst_tree_frame *g, const uint64_t *now, uint32_t n) {
    uint32_t i = 0;
    while (i < n && pst_node_is_null(s, old, f->header, f->index + i) ==
                        pst_node_is_null(s, now, g->header, g->index + i))
        i++;
    return i;
}

/* Passes entries that are the same words on both sides, references too (TR3). Says whether there
 * was one. */
static int pass_entries(pst_tree_cursor *a, pst_tree_cursor *b) {
    const pst_tree_shape *s = &a->shape;
    const pst_tree_frame *f = &a->at[0], *g = &b->at[0];
    const uint64_t *old = pst_node_at(a->heap, f->node), *now = pst_node_at(b->heap, g->node);
    uint32_t n = both_left(f, g), i = f->index, k = g->index;
    /* The words that change most often are compared first. */
    if (s->timed)
        n = common(pst_node_time(s, old, f->header, i), pst_node_time(s, now, g->header, k), n);
    if (n && s->value_words)
        n = common(pst_node_value(s, old, f->header, i), pst_node_value(s, now, g->header, k),
                   n * s->value_words) /
            s->value_words;
    if (n)
        n = common(pst_node_key(s, old, i), pst_node_key(s, now, k), n * s->key_words) /
            s->key_words;
    if (pst_node_is_marked(f->header) || pst_node_is_marked(g->header))
        n = same_marks(s, f, old, g, now, n);
    if (!n || a->left < n || b->left < n)
        return 0;
    a->left -= n;
    b->left -= n;
    pass(a, n);
    pass(b, n);
    return 1;
}

/* Both positions are entries or ends, not both ends. PST_NOT_FOUND: nothing to tell. */
static pst_status step_entries(pst_tree_cursor *a, pst_tree_cursor *b, pst_record_op *op,
                               pst_tree_entry *e) {
    pst_tree_entry old;
    if (!at_end(a) && !at_end(b) && pass_entries(a, b))
        return PST_NOT_FOUND;
    pst_status s = at_end(a) ? PST_OK : fill(a, &old);
    if (!s && !at_end(b))
        s = fill(b, e);
    if (s)
        return s;
    int d = at_end(a) ? 1 : at_end(b) ? -1 : compare_keys(a, &old, e);
    int tell = d != 0 || !same_value(&a->shape, &old, e);
    if ((d <= 0 && !a->left--) || (d >= 0 && !b->left--))
        return PST_CORRUPT;
    if (d <= 0)
        advance(a);
    if (d >= 0)
        advance(b);
    *op = d < 0 ? PST_DELETE : PST_PUT;
    if (d < 0)
        *e = old;
    return tell ? PST_OK : PST_NOT_FOUND;
}

pst_status pst_tree_diff_next(pst_tree_diff *d, pst_record_op *op, pst_tree_entry *e) {
    pst_tree_cursor *a = &d->before, *b = &d->after;
    while (!a->status && !b->status) {
        if (at_end(a) && at_end(b))
            return PST_NOT_FOUND;
        if (!at_end(a) && !at_end(b) && skip_shared(a, b))
            continue;
        if ((!at_end(a) && a->low) || (!at_end(b) && b->low)) {
            (void)open_higher(a, b);
            continue;
        }
        pst_status s = step_entries(a, b, op, e);
        if (s == PST_OK)
            return s;
        if (s == PST_CORRUPT)
            (void)spoil(a);
    }
    return PST_CORRUPT;
}
