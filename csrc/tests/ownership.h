/* ownership.h: who has which block of a table.
 *
 * Right after a seal or a roll back each block of a span in use has one owner: a row that lives (its
 * key, its values, its lists and maps), the timers, the index, its class's ring, or nobody yet. Two
 * owners are a fault that would show much later and elsewhere; none is a leak. */
#ifndef PST_TEST_OWNERSHIP_H
#define PST_TEST_OWNERSHIP_H

#include "check.h"
#include "elements/timers.h"
#include "memory/ring.h"
#include "memory/size_class.h"
#include "memory/span.h"
#include "table/index.h"
#include "tree/tree_node.h"

typedef struct ownership {
    const pst_table *t;
    uint8_t *taken; /* a byte per granule */
    uint64_t blocks;
} ownership;

static inline void own_block(ownership *o, uint32_t granule, uint32_t c) {
    uint64_t n = pst_class_size(c) / PST_GRANULE;
    REQUIRE(granule && granule + n <= o->t->m->heap_top);
    const pst_span *s = pst_span_of(o->t, granule);
    uint64_t first = (uint64_t)(s - pst_span_at(o->t, 0)) * PST_SPAN_GRANULES;
    CHECK(s->state & PST_SPAN_USED && s->size_class == c && (granule - first) % n == 0);
    int taken = 0;
    for (uint64_t i = 0; i < n; i++)
        taken |= o->taken[granule + i]++;
    CHECK(!taken);
    o->blocks++;
}

/* A block of a tree has its birth behind the bytes (TN4). */
static inline void own_bytes(ownership *o, const uint64_t *ref, int in_tree) {
    uint32_t size = pst_ref_size(ref);
    if (pst_ref_is_block(ref))
        own_block(o, pst_ref_granule(ref),
                  pst_class_of(in_tree ? pst_tree_block_bytes(size) : size));
}

static inline void own_list(ownership *o, const pst_list *l) {
    uint32_t at = l->first, before = 0;
    while (at) {
        const uint8_t *chunk = pst_block(o->t, at);
        own_block(o, at, (uint32_t)pst_get64(chunk + 8) & (PST_LIST_BELOW - 1));
        CHECK(!before || pst_get32(chunk + 4) == before);
        before = at;
        at = at == l->last ? 0 : pst_get32(chunk);
    }
    CHECK_EQ(before, l->last);
}

/* The number of entries below a node. */
static inline uint64_t own_node(ownership *o, const pst_tree_shape *s, uint32_t granule) {
    uint64_t h, entries = 0;
    REQUIRE(pst_node_open(o->t->heap, pst_heap_bytes(o->t), s, granule, &h));
    own_block(o, granule, pst_node_class(h));
    const uint64_t *node = pst_node_at(o->t->heap, granule);
    uint32_t level = pst_node_level(h);
    for (uint32_t i = 0; i < pst_node_count(h); i++) {
        if (s->key_is_ref && (!level || i)) /* the first child needs no separator */
            own_bytes(o, pst_node_key(s, node, i), 1);
        if (!level && s->value_is_ref)
            own_bytes(o, pst_node_value(s, node, h, i), 1);
        entries += level ? own_node(o, s, pst_node_child(s, node, h, i)) : 1;
    }
    return entries;
}

static inline void own_tree(ownership *o, const pst_tree_shape *s, pst_tree_root root) {
    CHECK_EQ(root.node ? own_node(o, s, root.node) : 0, root.count);
}

static inline void own_row(ownership *o, uint32_t slot) {
    const pst_table *t = o->t;
    const uint64_t *row = pst_row(t, slot), *k = row + t->lay.key_offset / 8;
    pst_key key = {.hash = pst_row_hash(t, row), .word = k[0]};
    key.null = row[0] & PST_FLAG_NULL_KEY;
    if (t->lay.key_kind == PST_KEY_BYTES) {
        own_bytes(o, k + 1, 0);
        key.bytes = (pst_bytes){pst_ref_data(t->heap, k + 1), pst_ref_size(k + 1)};
    }
    CHECK_EQ(pst_index_walk(t, &key), slot);
    for (uint64_t left = pst_presence(&t->lay, row); left; left &= left - 1) {
        int32_t i = __builtin_ctzll(left);
        const pst_field *f = &t->lay.fields[i];
        if (f->kind == PST_LIST) {
            pst_list l = pst_row_list(t, row, i);
            own_list(o, &l);
        } else if (f->kind == PST_MAP) {
            own_tree(o, &t->collections[i].map, pst_row_map(t, row, i));
        } else if (f->is_bytes) {
            own_bytes(o, row + f->offset / 8, 0);
        }
    }
}

/* Each timer is a living row's, and each row knows how many it has. */
static inline void own_timers(ownership *o) {
    const pst_table *t = o->t;
    uint32_t *timers = calloc(t->m->slots + 1, sizeof *timers);
    REQUIRE(timers);
    for (int32_t g = t->first_key_group; g <= t->last_key_group; g++)
        for (int domain = 0; domain < 2; domain++) {
            pst_tree_root root = *pst_timer_root(t, t->m, g, (pst_domain)domain);
            pst_tree_cursor c;
            pst_tree_entry e;
            own_tree(o, &pst_timer_shape, root);
            pst_tree_seek(&c, t->heap, pst_heap_bytes(t), &pst_timer_shape, root, NULL);
            while (pst_tree_next(&c, &e) == PST_OK) {
                REQUIRE(e.key[1] < t->m->slots);
                const uint64_t *row = pst_row(t, (uint32_t)e.key[1]);
                CHECK(pst_is_live(row[0]) && pst_group_of(t, pst_row_hash(t, row)) == g);
                timers[e.key[1]]++;
            }
        }
    for (uint32_t slot = 0; slot < t->m->slots; slot++)
        if (pst_is_live(pst_row(t, slot)[0]))
            CHECK_EQ(pst_timer_count(t, slot), timers[slot]);
    free(timers);
}

static inline void own_index(ownership *o) {
    const pst_meta *m = o->t->m;
    for (uint32_t i = 0, step; i < pst_directory_size(o->t, m); i += step) {
        uint32_t capacity = pst_shard_capacity(m->shards[i].shape), used = 0, n;
        step = UINT32_C(1) << (m->directory_bits - pst_shard_depth(m->shards[i].shape));
        if (!capacity)
            continue;
        uint32_t pages = (capacity + PST_PAGE_ENTRIES - 1) / PST_PAGE_ENTRIES;
        uint32_t page = capacity < PST_PAGE_ENTRIES ? capacity : PST_PAGE_ENTRIES;
        const uint32_t *names = (const uint32_t *)(void *)pst_block(o->t, m->shards[i].table);
        own_block(o, m->shards[i].table, pst_class_of(pages * sizeof *names));
        for (uint32_t p = 0; p < pages; p++) {
            const uint64_t *cells = (const uint64_t *)(void *)pst_block(o->t, names[p]);
            own_block(o, names[p], pst_class_of(page * sizeof *cells));
            for (n = 0; n < page && p * page + n < capacity; n++)
                used += cells[n] != 0;
        }
        CHECK(used <= m->shards[i].used && used < capacity);
    }
}

/* Names of blocks, each once, and blocks that were never taken. */
static inline void own_free(ownership *o) {
    const pst_table *t = o->t;
    const pst_meta *m = t->m;
    uint32_t *listed = calloc(pst_span_count(t) + 1, sizeof *listed), stale, free_spans = 0;
    uint64_t blocks = 0;
    REQUIRE(listed);
    for (uint32_t c = 0; c < PST_CLASSES; c++) {
        stale = 0;
        for (uint32_t p = m->rings[c].head; p != m->rings[c].tail; p++) {
            uint32_t granule = pst_ring_at(t, c, p);
            const pst_span *s = pst_span_of(t, granule);
            if (s->state & PST_SPAN_USED) {
                own_block(o, granule, c);
                listed[s - pst_span_at(t, 0)]++;
            } else {
                stale++;
            }
        }
        CHECK_EQ(stale, m->stale[c]);
        CHECK_EQ(m->hot[c], 0);
        for (uint32_t i = 0; i < m->bump_left[c]; i++)
            own_block(o, m->bump[c] + i * (uint32_t)(pst_class_size(c) / PST_GRANULE), c);
    }
    for (uint32_t i = 1; i < pst_span_count(t); i++) {
        const pst_span *s = pst_span_at(t, i);
        free_spans += !(s->state & PST_SPAN_USED);
        if ((s->state & (PST_SPAN_USED | PST_SPAN_REST)) != PST_SPAN_USED)
            continue;
        blocks += pst_span_blocks(s->size_class);
        CHECK_EQ(s->listed, listed[i]);
    }
    CHECK_EQ(free_spans, m->free_spans);
    CHECK_EQ(o->blocks, blocks);
    free(listed);
}

/* REQUIRES: the open epoch has changed nothing. */
static inline void check_ownership(const pst_table *t) {
    ownership o = {.t = t};
    uint64_t live = 0;
    o.taken = calloc(t->m->heap_top + 1, 1);
    REQUIRE(o.taken);
    for (uint32_t slot = 0; slot < t->m->slots; slot++)
        if (pst_is_live(pst_row(t, slot)[0])) {
            own_row(&o, slot);
            live++;
        }
    CHECK_EQ(live, t->m->live);
    if (t->lay.timers >= 0)
        own_timers(&o);
    own_index(&o);
    own_free(&o);
    free(o.taken);
}

#endif
