#include "tree/tree_write.h"

#include "memory/ring.h"
#include "memory/size_class.h"

/* A full leaf's and a full inner node's block, unless fewer than LEAST entries fit into it. */
enum { LEAF_BYTES = 512, INNER_BYTES = 1024, LEAST = 8 };

/* ---- bytes ----------------------------------------------------------------------------------- */

pst_status pst_tw_store_bytes(const pst_tree_writer *w, pst_bytes b, uint64_t ref[2]) {
    pst_ref_make(ref, b);
    if (!pst_ref_is_block(ref))
        return PST_OK;
    uint32_t granule;
    pst_status s = pst_block_alloc(w->t, pst_class_of(pst_tree_block_bytes(b.size)), &granule);
    if (s)
        return s;
    uint8_t *block = pst_block(w->t, granule);
    pst_put_bytes(block, b.data, b.size);
    pst_put32(block + pst_tree_block_bytes(b.size) - 4, w->now);
    ref[1] |= granule;
    return PST_OK;
}

pst_status pst_tw_free_bytes(const pst_tree_writer *w, const uint64_t ref[2]) {
    if (!pst_ref_is_block(ref))
        return PST_OK;
    uint64_t bytes = pst_tree_block_bytes(pst_ref_size(ref));
    uint32_t granule = pst_ref_granule(ref), birth;
    memcpy(&birth, pst_block(w->t, granule) + bytes - 4, sizeof birth);
    return pst_block_free(w->t, pst_class_of(bytes), granule, birth == w->now);
}

/* ---- blocks of nodes ------------------------------------------------------------------------- */

static uint32_t capacity_of(uint64_t bytes, uint32_t head, uint32_t entry_bytes, uint32_t most) {
    uint64_t n = (bytes - head) / entry_bytes;
    return n > most ? most : (uint32_t)n;
}

static uint32_t full_class(uint32_t level, uint32_t entry_bytes) {
    uint32_t bytes = level ? INNER_BYTES : LEAF_BYTES, least = 8 + LEAST * entry_bytes;
    return pst_class_of(bytes > least ? bytes : least);
}

uint32_t pst_tw_full_capacity(const pst_tree_writer *w, uint32_t level) {
    uint32_t entry_bytes = pst_node_entry_words(w->s, level) * 8;
    return capacity_of(pst_class_size(full_class(level, entry_bytes)), 8, entry_bytes,
                       PST_TREE_MOST);
}

/* A full marked leaf has as many entries as another one, whatever its block would hold: they go from
 * the one to the other. */
pst_status pst_tw_make_node(const pst_tree_writer *w, uint32_t level, int marked, uint32_t want,
                            uint32_t *granule) {
    uint32_t entry_bytes = pst_node_entry_words(w->s, level) * 8, head = marked ? 16 : 8;
    uint32_t full = pst_tw_full_capacity(w, level);
    uint32_t c =
        marked ? pst_class_of(head + (uint64_t)full * entry_bytes) : full_class(level, entry_bytes);
    if (want <= PST_TREE_MOST && pst_class_of(head + (uint64_t)want * entry_bytes) < c)
        c = pst_class_of(head + (uint64_t)want * entry_bytes);
    pst_status s = pst_block_alloc(w->t, c, granule);
    if (s)
        return s;
    uint32_t capacity = capacity_of(pst_class_size(c), head, entry_bytes, full);
    uint64_t *node = pst_tw_node(w, *granule);
    pst_put64(node, pst_node_make(w->now, level, marked, c, 0, capacity));
    if (marked)
        pst_put64(pst_tw_marks(w, node), 0);
    return PST_OK;
}

pst_status pst_tw_free_node(const pst_tree_writer *w, uint32_t granule) {
    uint64_t h = pst_tw_header(w, granule);
    return pst_block_free(w->t, pst_node_class(h), granule, pst_node_birth(h) == w->now);
}

/* REQUIRES: n <= PST_TREE_MARKS. */
static uint64_t first_bits(uint32_t n) {
    return n < 64 ? (UINT64_C(1) << n) - 1 : ~UINT64_C(0);
}

void pst_tw_copy_entries(const pst_tree_writer *w, uint64_t *to, uint32_t at, uint64_t *from,
                         uint32_t first, uint32_t n) {
    uint32_t level = pst_node_level(*to);
    size_t keys = w->s->key_words, values = pst_node_value_words(w->s, level);
    pst_fill_words(pst_tw_key(w, to, at), pst_tw_key(w, from, first), n * keys);
    pst_fill_words(pst_tw_value(w, to, at), pst_tw_value(w, from, first), n * values);
    if (w->s->timed && !level)
        pst_fill_words(pst_tw_time(w, to, at), pst_tw_time(w, from, first), n);
    if (pst_node_is_marked(*to)) {
        uint64_t moved = first_bits(n);
        uint64_t marks = pst_node_marks(w->s, from, *from) >> first & moved;
        pst_put64(pst_tw_marks(w, to), (*pst_tw_marks(w, to) & ~(moved << at)) | marks << at);
    }
}

void pst_tw_mark(const pst_tree_writer *w, uint64_t *leaf, uint32_t i, int is_null) {
    if (!pst_node_is_marked(*leaf))
        return;
    uint64_t *marks = pst_tw_marks(w, leaf), bit = UINT64_C(1) << i;
    pst_put64(marks, is_null ? *marks | bit : *marks & ~bit);
}

static void link_node(pst_tree_writer *w, uint32_t level, uint32_t granule) {
    w->at[level].node = granule;
    if (level == w->top)
        w->root->node = granule;
    else
        pst_put64(pst_tw_value(w, pst_tw_node(w, w->at[level + 1].node), w->at[level + 1].index),
                  granule);
}

pst_status pst_tw_move_node(pst_tree_writer *w, uint32_t level, uint32_t want) {
    uint32_t old = w->at[level].node, granule;
    uint64_t *from = pst_tw_node(w, old);
    uint64_t marks = level ? 0 : pst_node_marks(w->s, from, *from);
    int marked = !level && (w->marked || (marks & first_bits(pst_node_count(*from))));
    pst_status s = pst_tw_make_node(w, level, marked, want, &granule);
    if (s)
        return s;
    s = pst_ring_reserve(w->t, pst_node_class(*from), 1);
    if (s) {
        (void)pst_tw_free_node(w, granule); /* born: cannot fail */
        return s;
    }
    pst_tw_copy_entries(w, pst_tw_node(w, granule), 0, from, 0, pst_node_count(*from));
    pst_tw_set_count(pst_tw_node(w, granule), pst_node_count(*from));
    link_node(w, level, granule);
    return pst_tw_free_node(w, old);
}

pst_status pst_tw_replace_node(pst_tree_writer *w, uint32_t level, uint32_t need) {
    uint64_t h = pst_tw_header(w, w->at[level].node);
    uint32_t count = pst_node_count(h), capacity = pst_node_capacity(h);
    pst_status s = level < w->top ? pst_tw_own(w, level + 1, 0) : PST_OK;
    if (s)
        return s;
    if (need < count)
        need = count;
    int keep = capacity >= need && 2 * need > capacity;
    return pst_tw_move_node(w, level, keep ? capacity : pst_tw_with_room(need));
}

/* Opens and closes gaps. memmove in words, each a single store. */
static void shift(uint64_t *at, size_t n, ptrdiff_t by) {
    if (by > 0)
        for (size_t i = n; i-- > 0;)
            pst_put64(at + i + by, at[i]);
    else
        for (size_t i = 0; i < n; i++)
            pst_put64(at + (ptrdiff_t)i + by, at[i]);
}

void pst_tw_shift_entries(const pst_tree_writer *w, uint64_t *node, uint32_t i, int by) {
    uint32_t level = pst_node_level(*node), count = pst_node_count(*node), n = count - i;
    ptrdiff_t keys = w->s->key_words, values = pst_node_value_words(w->s, level);
    shift(pst_tw_key(w, node, i), n * (size_t)keys, by * keys);
    shift(pst_tw_value(w, node, i), n * (size_t)values, by * values);
    if (w->s->timed && !level)
        shift(pst_tw_time(w, node, i), n, by);
    if (pst_node_is_marked(*node)) {
        uint64_t *marks = pst_tw_marks(w, node);
        uint64_t before = *marks & first_bits(by < 0 ? i - (uint32_t)-by : i);
        uint64_t behind = i < 64 ? *marks >> i : 0;
        pst_put64(marks, before | behind << ((int)i + by));
    }
    pst_tw_set_count(node, count + (uint32_t)by);
}

pst_status pst_tw_descend(pst_tree_writer *w, pst_tree_probe *p) {
    const pst_tree_shape *s = w->s;
    const uint8_t *heap = w->t->heap;
    uint64_t bytes = pst_tw_heap_bytes(w), h;
    uint32_t granule = w->root->node;
    int equal;
    if (!pst_node_open(heap, bytes, s, granule, &h))
        return PST_CORRUPT;
    uint32_t level = w->top = pst_node_level(h);
    for (; level; level--) {
        const uint64_t *node = pst_node_at(heap, granule);
        w->at[level].node = granule;
        w->at[level].index = pst_node_branch(s, p, node, h);
        granule = pst_node_child(s, node, h, w->at[level].index);
        if (!pst_node_open_child(heap, bytes, s, granule, level - 1, &h))
            return PST_CORRUPT;
    }
    w->at[0].node = granule;
    w->at[0].index = pst_node_locate(s, p, pst_node_at(heap, granule), h, &equal);
    if (p->corrupt)
        return PST_CORRUPT;
    return equal ? PST_OK : PST_NOT_FOUND;
}
