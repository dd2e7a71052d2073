/* tree_model.h: a tree beside a sorted array that is driven by the same operations.
 *
 * A key is a number below `keys`; its words or bytes follow from it, and `order` lists the numbers
 * as the tree must order them. Sealed versions are kept with their roots, so that whatever the
 * undo window promises has something exact to be compared with.
 */
#ifndef PST_TREE_MODEL_H
#define PST_TREE_MODEL_H

#include <string.h>

#include "memory/alloc.h"
#include "memory/size_class.h"
#include "memory/span.h"
#include "table_model.h"
#include "tree/tree_node.h"

enum { TREE_VERSIONS = 4, TREE_TEXT = 160 };

typedef struct tree_version {
    pst_tree_root root;
    uint8_t *present; /* by key number */
    uint64_t *seed;   /* of the value */
    int64_t *time;
} tree_version;

typedef struct tree_model {
    pst_tree_shape shape;
    pst_table *t;
    uint32_t keys;
    uint32_t *order;
    uint64_t seals;
    tree_version now;
    tree_version sealed[TREE_VERSIONS];
} tree_model;

typedef struct tree_room {
    uint8_t key[TREE_TEXT];
    uint8_t value_bytes[TREE_TEXT];
    uint64_t value[PST_TREE_MAX_VALUE_WORDS];
} tree_room;

static inline void tree_key(const pst_tree_shape *s, uint32_t k, pst_tree_entry *e,
                            tree_room *room) {
    uint64_t mixed = k;
    (void)check_random(&mixed);
    memset(e, 0, sizeof *e);
    if (!s->key_is_ref) {
        e->key[0] = s->key_words == 1 ? k * UINT64_C(0x0123456789ABCDEF) + 5
                                      : (uint64_t)(k % 11) << 60 | k % 7;
        e->key[1] = s->key_words == 1 ? 0 : ~(uint64_t)k * 3;
        return;
    }
    /* Many share beginnings, some are others' beginnings, some hold zeros, one is empty. */
    uint32_t n = 0, digits = k;
    if (k % 3 == 1)
        for (; n < k % 90; n++)
            room->key[n] = (uint8_t)("shared"[n % 6]);
    for (; digits; digits /= 4)
        room->key[n++] = (uint8_t)(digits % 4 ? 200 + digits % 4 : 0);
    e->key_bytes = (pst_bytes){room->key, n};
}

static inline void tree_value(const pst_tree_shape *s, uint64_t seed, pst_tree_entry *e,
                              tree_room *room) {
    uint64_t x = seed;
    for (uint32_t i = 0; i < s->value_words; i++)
        room->value[i] = check_random(&x);
    uint32_t size = (uint32_t)(seed % (seed & 64 ? TREE_TEXT : 16));
    for (uint32_t i = 0; i < size; i++)
        room->value_bytes[i] = (uint8_t)check_random(&x);
    e->is_null = s->value_words && seed % 5 == 2;
    e->value = room->value;
    e->value_bytes = (pst_bytes){room->value_bytes, size};
}

static inline uint64_t tree_heap(const tree_model *m) {
    return m->t->h->committed[PST_SPACE_HEAP];
}

static tree_model *tree_order_of; /* qsort has no argument for it */

static inline int tree_by_key(const void *x, const void *y) {
    const pst_tree_shape *s = &tree_order_of->shape;
    tree_room ra, rb;
    pst_tree_entry a, b;
    tree_key(s, *(const uint32_t *)x, &a, &ra);
    tree_key(s, *(const uint32_t *)y, &b, &rb);
    if (s->key_is_ref) {
        uint32_t n = a.key_bytes.size, k = b.key_bytes.size;
        int d = memcmp(ra.key, rb.key, n < k ? n : k);
        return d ? d : (n > k) - (n < k);
    }
    if (a.key[0] != b.key[0])
        return a.key[0] < b.key[0] ? -1 : 1;
    return (a.key[1] > b.key[1]) - (a.key[1] < b.key[1]);
}

static inline void tree_version_open(tree_version *v, uint32_t keys) {
    v->root = (pst_tree_root){0, 0};
    v->present = calloc(keys, 1);
    v->seed = calloc(keys, sizeof *v->seed);
    v->time = calloc(keys, sizeof *v->time);
    REQUIRE(v->present && v->seed && v->time);
}

static inline void tree_version_copy(tree_version *to, const tree_version *from, uint32_t keys) {
    to->root = from->root;
    memcpy(to->present, from->present, keys);
    memcpy(to->seed, from->seed, keys * sizeof *to->seed);
    memcpy(to->time, from->time, keys * sizeof *to->time);
}

static inline void tree_version_close(tree_version *v) {
    free(v->present);
    free(v->seed);
    free(v->time);
}

static inline tree_model *tree_model_open(pst_tree_shape shape, uint32_t keys, uint64_t limit) {
    static const pst_column column[] = {{.name = "k", .type = PST_INT64}};
    pst_schema schema = {1, 1, column, column};
    pst_table_options o = {.max_parallelism = 1, .limit_bytes = limit};
    tree_model *m = calloc(1, sizeof *m);
    REQUIRE(m != NULL);
    m->shape = shape;
    m->keys = keys;
    m->order = calloc(keys, sizeof *m->order);
    REQUIRE(m->order && pst_table_open(&schema, &o, &m->t, NULL, NULL) == PST_OK);
    for (uint32_t k = 0; k < keys; k++)
        m->order[k] = k;
    tree_order_of = m;
    qsort(m->order, keys, sizeof *m->order, tree_by_key);
    tree_version_open(&m->now, keys);
    for (int i = 0; i < TREE_VERSIONS; i++)
        tree_version_open(&m->sealed[i], keys);
    return m;
}

static inline void tree_model_close(tree_model *m) {
    pst_table_close(m->t);
    tree_version_close(&m->now);
    for (int i = 0; i < TREE_VERSIONS; i++)
        tree_version_close(&m->sealed[i]);
    free(m->order);
    free(m);
}

/* ---- operations ------------------------------------------------------------------------------ */

/* Outputs of a failed call say nothing: the caller rolls back. `more`: see pst_tree_append, which is
 * right for any key. */
static inline pst_status tree_put_before(tree_model *m, uint32_t k, uint64_t seed, int64_t time,
                                         uint32_t more) {
    tree_room room;
    pst_tree_entry e;
    tree_key(&m->shape, k, &e, &room);
    tree_value(&m->shape, seed, &e, &room);
    e.time = time;
    pst_status s = more || seed & 1 ? pst_tree_append(m->t, &m->shape, &m->now.root, &e, more)
                                    : pst_tree_put(m->t, &m->shape, &m->now.root, &e);
    if (s)
        return s;
    m->now.present[k] = 1;
    m->now.seed[k] = seed;
    m->now.time[k] = m->shape.timed ? time : 0;
    return PST_OK;
}

/* The n keys from place `from` of the order on, which are put together if all others lie before them,
 * else one by one. */
static inline pst_status tree_append_run(tree_model *m, uint32_t from, uint32_t n, uint64_t seed,
                                         int64_t time, uint32_t more) {
    tree_room *rooms = calloc(n + 1, sizeof *rooms);
    pst_tree_entry *e = calloc(n + 1, sizeof *e);
    uint32_t done, behind = 1;
    REQUIRE(rooms && e);
    for (uint32_t i = from; i < m->keys; i++)
        behind &= !m->now.present[m->order[i]];
    for (uint32_t i = 0; i < n; i++) {
        tree_key(&m->shape, m->order[from + i], &e[i], &rooms[i]);
        tree_value(&m->shape, seed + i, &e[i], &rooms[i]);
        e[i].time = time;
    }
    pst_status s = pst_tree_append_run(m->t, &m->shape, &m->now.root, e, n, more, &done);
    CHECK_EQ(done, behind && !s ? n : 0);
    for (uint32_t i = 0; i < done; i++) {
        uint32_t k = m->order[from + i];
        m->now.present[k] = 1;
        m->now.seed[k] = seed + i;
        m->now.time[k] = m->shape.timed ? time : 0;
    }
    free(rooms);
    free(e);
    for (uint32_t i = done; !s && i < n; i++)
        s = tree_put_before(m, m->order[from + i], seed + i, time, n - i - 1);
    return s;
}

static inline pst_status tree_put(tree_model *m, uint32_t k, uint64_t seed, int64_t time) {
    return tree_put_before(m, k, seed, time, 0);
}

static inline pst_status tree_remove(tree_model *m, uint32_t k) {
    tree_room room;
    pst_tree_entry e;
    tree_key(&m->shape, k, &e, &room);
    pst_status s = pst_tree_remove(m->t, &m->shape, &m->now.root, &e);
    CHECK((s == PST_NOT_FOUND) == !m->now.present[k]);
    if (!s)
        m->now.present[k] = 0;
    return s == PST_NOT_FOUND ? PST_OK : s;
}

static inline pst_status tree_clear(tree_model *m) {
    pst_status s = pst_tree_clear(m->t, &m->shape, &m->now.root);
    if (!s)
        memset(m->now.present, 0, m->keys);
    return s;
}

static inline pst_status tree_try_seal(tree_model *m) {
    pst_lineage l = model_lineage(m->seals + 1);
    pst_status s = pst_table_seal(m->t, &l, NULL);
    if (s)
        return s;
    m->seals++;
    tree_version_copy(&m->sealed[m->seals % TREE_VERSIONS], &m->now, m->keys);
    return PST_OK;
}

static inline void tree_seal(tree_model *m) {
    REQUIRE(tree_try_seal(m) == PST_OK);
}

/* How many epochs one can go back. */
static inline uint64_t tree_window(const tree_model *m) {
    return m->seals - m->t->h->floor;
}

static inline void tree_rollback(tree_model *m, uint64_t back) {
    REQUIRE(pst_table_rollback(m->t, (int32_t)back) == PST_OK);
    m->seals -= back;
    tree_version_copy(&m->now, &m->sealed[m->seals % TREE_VERSIONS], m->keys);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static inline int tree_same_value(const pst_tree_shape *s, const tree_version *v, uint32_t k,
                                  const pst_tree_entry *e) {
    tree_room room;
    pst_tree_entry want;
    tree_value(s, v->seed[k], &want, &room);
    if (e->time != v->time[k] || e->is_null != want.is_null)
        return 0;
    if (e->is_null) {
        memset(room.value, 0, sizeof room.value);
        want.value_bytes.size = 0;
    }
    if (s->value_is_ref)
        return e->value_bytes.size == want.value_bytes.size &&
               !memcmp(e->value_bytes.data, room.value_bytes, want.value_bytes.size);
    return !s->value_words || !memcmp(e->value, room.value, s->value_words * sizeof *room.value);
}

static inline int tree_same_key(const pst_tree_shape *s, uint32_t k, const pst_tree_entry *e) {
    tree_room room;
    pst_tree_entry want;
    tree_key(s, k, &want, &room);
    if (s->key_is_ref)
        return e->key_bytes.size == want.key_bytes.size &&
               !memcmp(e->key_bytes.data, room.key, want.key_bytes.size);
    return e->key[0] == want.key[0] && e->key[1] == want.key[1];
}

/* A version by cursor: everything, in order. */
static inline int tree_compare(const tree_model *m, const tree_version *v) {
    pst_tree_cursor c;
    pst_tree_entry e;
    pst_status st;
    uint32_t at = 0, n = 0;
    int ok = 1;
    pst_tree_seek(&c, m->t->heap, tree_heap(m), &m->shape, v->root, NULL);
    while (ok && (st = pst_tree_next(&c, &e)) == PST_OK) {
        while (at < m->keys && !v->present[m->order[at]])
            at++;
        ok = CHECK(at < m->keys) && CHECK(tree_same_key(&m->shape, m->order[at], &e)) &&
             CHECK(tree_same_value(&m->shape, v, m->order[at], &e));
        at++;
        n++;
    }
    while (at < m->keys && !v->present[m->order[at]])
        at++;
    return ok && CHECK_EQ(st, PST_NOT_FOUND) && CHECK_EQ(at, m->keys) && CHECK_EQ(n, v->root.count);
}

/* A version by look-up, and by seeking to each key. */
static inline int tree_compare_find(const tree_model *m, const tree_version *v) {
    uint32_t following = UINT32_MAX;
    for (uint32_t i = m->keys; i-- > 0;) {
        uint32_t k = m->order[i];
        tree_room room;
        pst_tree_entry e, next;
        pst_tree_cursor c;
        tree_key(&m->shape, k, &e, &room);
        pst_tree_seek(&c, m->t->heap, tree_heap(m), &m->shape, v->root, &e);
        pst_status st = pst_tree_find(m->t->heap, tree_heap(m), &m->shape, v->root, &e);
        if (!CHECK_EQ(st, v->present[k] ? PST_OK : PST_NOT_FOUND))
            return 0;
        if (!st && !CHECK(tree_same_value(&m->shape, v, k, &e)))
            return 0;
        if (v->present[k])
            following = k;
        st = pst_tree_next(&c, &next);
        if (!CHECK_EQ(st, following == UINT32_MAX ? PST_NOT_FOUND : PST_OK))
            return 0;
        if (!st && !CHECK(tree_same_key(&m->shape, following, &next)))
            return 0;
    }
    return 1;
}

static inline int tree_unchanged(const pst_tree_shape *s, const tree_version *before,
                                 const tree_version *after, uint32_t k) {
    tree_room room;
    pst_tree_entry e;
    tree_value(s, before->seed[k], &e, &room);
    e.time = before->time[k];
    if (e.is_null) {
        memset(room.value, 0, sizeof room.value);
        e.value_bytes.size = 0;
    }
    return tree_same_value(s, after, k, &e);
}

/* What the diff of two versions says against what the model's differ in. */
static inline int tree_compare_diff(const tree_model *m, const tree_version *before,
                                    const tree_version *after) {
    pst_tree_diff d;
    pst_tree_entry e;
    pst_record_op op;
    pst_tree_diff_open(&d, m->t->heap, tree_heap(m), &m->shape, before->root, after->root);
    for (uint32_t i = 0; i < m->keys; i++) {
        uint32_t k = m->order[i];
        int had = before->present[k], has = after->present[k];
        if (had == has && (!had || tree_unchanged(&m->shape, before, after, k)))
            continue;
        if (!CHECK_EQ(pst_tree_diff_next(&d, &op, &e), PST_OK) ||
            !CHECK_EQ(op, has ? PST_PUT : PST_DELETE) || !CHECK(tree_same_key(&m->shape, k, &e)) ||
            !CHECK(tree_same_value(&m->shape, has ? after : before, k, &e)))
            return 0;
    }
    return CHECK_EQ(pst_tree_diff_next(&d, &op, &e), PST_NOT_FOUND);
}

/* ---- structure ------------------------------------------------------------------------------- */

typedef struct tree_shape_stats {
    uint64_t nodes, bytes, entries, born, marked;
    uint32_t levels;
} tree_shape_stats;

/* Walks every node; checks TR5 and counts. Order is what the cursor's comparison checks. */
static inline int tree_inspect_node(const tree_model *m, uint32_t granule, int64_t level,
                                    tree_shape_stats *stats) {
    uint64_t h;
    if (!CHECK(pst_node_open(m->t->heap, tree_heap(m), &m->shape, granule, &h)) ||
        !CHECK(level < 0 || pst_node_level(h) == level))
        return 0;
    if (level < 0)
        stats->levels = pst_node_level(h) + 1;
    stats->nodes++;
    stats->bytes += pst_class_size(pst_node_class(h));
    stats->born += pst_node_birth(h) == (uint32_t)m->t->h->active;
    uint32_t level_of = pst_node_level(h), words = pst_node_entry_words(&m->shape, level_of);
    uint64_t head = pst_node_is_marked(h) ? 16 : 8;
    CHECK(head + (uint64_t)pst_node_capacity(h) * words * 8 <= pst_class_size(pst_node_class(h)));
    stats->marked += (uint64_t)pst_node_is_marked(h);
    if (!level_of) {
        stats->entries += pst_node_count(h);
        return 1;
    }
    for (uint32_t i = 0; i < pst_node_count(h); i++)
        if (!tree_inspect_node(m, pst_node_child(&m->shape, pst_node_at(m->t->heap, granule), h, i),
                               (int64_t)pst_node_level(h) - 1, stats))
            return 0;
    return 1;
}

static inline tree_shape_stats tree_inspect(const tree_model *m, pst_tree_root root) {
    tree_shape_stats stats = {0};
    if (root.node)
        CHECK(tree_inspect_node(m, root.node, -1, &stats));
    CHECK_EQ(stats.entries, root.count);
    return stats;
}

#endif
