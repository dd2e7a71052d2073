/* ttl_elements.c: the times of a list's items and a map's entries. */
#include "elements/collections.h"
#include "table/ttl.h"

/* The elements of one list or map that are looked at together. */
enum { SOME = 64 };

/* What becomes of an element's time: the same, or the stamp of a write now. */
typedef int64_t (*retime)(const pst_table *t, int32_t i, int64_t time);

static int64_t swept(const pst_table *t, int32_t i, int64_t time) {
    return time == PST_NO_TIME ? pst_ttl_stamp(t, i) : time;
}

static int64_t as_it_is(const pst_table *t, int32_t i, int64_t time) {
    (void)t;
    (void)i;
    return time;
}

static int64_t entry_read(const pst_table *t, int32_t i, int64_t time) {
    int young = !pst_ttl_expired(t, i, time);
    return young && pst_ttl_is_stale(t, i, time) ? pst_ttl_stamp(t, i) : time;
}

/* The times of a list's items move together, so that it is seldom written anew. */
static int64_t item_read(const pst_table *t, int32_t i, int64_t time) {
    int64_t stamp = pst_ttl_stamp(t, i);
    int settled = time != PST_NO_TIME && time >= stamp;
    return settled || pst_ttl_expired(t, i, time) ? time : stamp;
}

/* What becomes of all elements of a list or map. A list is written anew only where an item goes, or
 * its time would move if it were an entry. */
typedef struct pass {
    retime entry;
    retime item;
    uint8_t clears; /* what has expired goes */
} pass;

static const pass USED = {entry_read, item_read, 0};
static const pass SHOWN = {as_it_is, as_it_is, 1};
static const pass SWEPT = {swept, swept, 1};
/* Lists lose whole chunks to a sweep, and by themselves what is left. */
static const pass KEPT = {swept, swept, 0};

static int goes(const pst_table *t, int32_t i, const pass *p, int64_t time) {
    return p->clears && pst_ttl_expired(t, i, time);
}

/* ---- lists ---------------------------------------------------------------------------------- */

/* Appends the items of a list to another one, all but those that go. */
static pst_status append_passed(pst_table *t, int32_t i, const pass *p, pst_list *to,
                                const pst_list *from) {
    const pst_list_shape *s = &t->collections[i].list;
    pst_list_cursor c;
    pst_item item;
    pst_status st;
    pst_list_seek(&c, t->heap, pst_heap_bytes(t), s, from, 0);
    while ((st = pst_list_next(&c, &item, NULL)) == PST_OK) {
        if (goes(t, i, p, item.time))
            continue;
        item.time = p->item(t, i, item.time);
        st = pst_list_append(t, s, to, &item);
        if (st)
            return st;
    }
    return st == PST_NOT_FOUND ? PST_OK : st;
}

/* Writes the list anew. */
static pst_status rewrite_list(pst_table *t, int32_t i, const pass *p, pst_list *l) {
    pst_list fresh = {0};
    pst_status st = append_passed(t, i, p, &fresh, l);
    if (!st)
        st = pst_list_clear(t, l);
    *l = fresh;
    return st;
}

pst_status pst_row_list_take(pst_table *t, uint32_t to, uint32_t from, int32_t i) {
    pst_list list = pst_row_list(t, pst_row(t, to), i);
    pst_list items = pst_row_list(t, pst_row(t, from), i);
    pst_status st = append_passed(t, i, &KEPT, &list, &items);
    if (st)
        return st;
    pst_row_list_store(t, to, i, &list);
    pst_touch(t, from, pst_row(t, from));
    return pst_row_clear(t, pst_row(t, from), i);
}

/* Writes the list anew if any of its items goes or moves. */
static pst_status pass_list(pst_table *t, uint32_t slot, int32_t i, const pass *p) {
    pst_list l = pst_row_list(t, pst_row(t, slot), i);
    pst_list_cursor c;
    pst_item item;
    pst_status st;
    int changes = 0;
    pst_list_seek(&c, t->heap, pst_heap_bytes(t), &t->collections[i].list, &l, 0);
    while (!changes && (st = pst_list_next(&c, &item, NULL)) == PST_OK)
        changes = goes(t, i, p, item.time) || p->entry(t, i, item.time) != item.time;
    if (!changes)
        return st == PST_NOT_FOUND ? PST_OK : st;
    st = rewrite_list(t, i, p, &l);
    if (!st)
        pst_row_list_store(t, slot, i, &l);
    return st;
}

/* Frees expired items at the head chunk by chunk, and a short list once all of it has expired. A
 * long list counts as one without times if its first item has none. */
static pst_status expire_list(pst_table *t, uint32_t slot, int32_t i, pst_sweep *sweep) {
    const pst_list_shape *s = &t->collections[i].list;
    pst_list l = pst_row_list(t, pst_row(t, slot), i), before = l;
    uint64_t dropped = 0, below;
    if (pst_list_is_below(t, &l, &below)) {
        pst_sweep_look(sweep, 1); /* merges take away what has expired */
        return PST_OK;
    }
    pst_status st = pst_list_trim(t, s, &l, pst_ttl_horizon(t, i) + 1, &dropped);
    uint64_t left = pst_list_count(t->heap, pst_heap_bytes(t), &l), dead = 0, timeless = 0;
    pst_sweep_look(sweep, dropped / SOME);
    if (!st && l.first) {
        /* Of few items all: whole chunks are too coarse for them. */
        uint64_t most = left <= SOME ? left : 1;
        pst_list_cursor c;
        pst_item item;
        pst_list_seek(&c, t->heap, pst_heap_bytes(t), s, &l, 0);
        for (uint64_t k = 0; k < most && (st = pst_list_next(&c, &item, NULL)) == PST_OK; k++) {
            dead += (uint64_t)pst_ttl_expired(t, i, item.time);
            timeless += item.time == PST_NO_TIME;
        }
        if (!st && dead == left) {
            st = pst_list_clear(t, &l);
            dropped += dead;
        } else if (!st && timeless) {
            pst_sweep_look(sweep, left);
            st = rewrite_list(t, i, &KEPT, &l);
        }
    }
    sweep->removed += dropped;
    if (!st && memcmp(&l, &before, sizeof l) != 0)
        pst_row_list_store(t, slot, i, &l);
    return st;
}

/* ---- maps ----------------------------------------------------------------------------------- */

/* Short keys lie in the node, which a write may change. The block of a long one is its entry's own
 * and goes with it alone. */
static void keep_key_bytes(const pst_tree_shape *s, pst_tree_entry *e,
                           uint8_t room[PST_INLINE_BYTES]) {
    pst_bytes *key = &e->key_bytes;
    if (s->key_is_ref && key->size && key->size <= PST_INLINE_BYTES)
        key->data = memcpy(room, key->data, key->size);
}

/* Gives an entry that is there a time. Its value is copied: what goes into a tree must not point
 * into it. */
static pst_status stamp_entry(pst_table *t, int32_t i, int64_t time, pst_tree_root *root,
                              pst_tree_entry *e) {
    const pst_tree_shape *s = &t->collections[i].map;
    uint64_t value[PST_TREE_MAX_VALUE_WORDS];
    uint8_t inlined[PST_INLINE_BYTES];
    pst_status st = pst_tree_find(t->heap, pst_heap_bytes(t), s, *root, e);
    if (st)
        return st;
    if (s->value_is_ref && e->value_bytes.size && e->value_bytes.size <= PST_INLINE_BYTES)
        e->value_bytes.data = memcpy(inlined, e->value_bytes.data, e->value_bytes.size);
    else if (!s->value_is_ref && s->value_words)
        e->value = memcpy(value, e->value, s->value_words * sizeof *value);
    e->time = time;
    return pst_tree_put(t, s, root, e);
}

pst_status pst_row_map_use(pst_table *t, uint32_t slot, int32_t i, pst_tree_entry *e) {
    const pst_tree_shape *s = &t->collections[i].map;
    pst_status st = pst_row_map_get(t, slot, i, e);
    int64_t left = st || !s->timed ? 0 : pst_ttl_read(t, i, e->time);
    if (st || !s->timed || left == e->time)
        return st;
    pst_tree_root before = pst_row_map(t, pst_row(t, slot), i), root = before;
    pst_clearing(t); /* of what was written: a full table can be read */
    st = pst_undo_reserve(t, 1);
    if (!st)
        st = stamp_entry(t, i, left, &root, e);
    (void)pst_cleared(t, st);
    if (!st) {
        pst_row_map_replace(t, slot, i, before, root);
        st = pst_tree_find(t->heap, pst_heap_bytes(t), s, root, e);
    }
    return pst_poison(t, st);
}

/* The place as an entry to seek. */
static void place_entry(const pst_tree_shape *s, const pst_sweep_place *at, pst_tree_entry *e) {
    e->key[0] = at->key[0];
    e->key[1] = at->key[1];
    if (s->key_is_ref)
        e->key_bytes = (pst_bytes){(const uint8_t *)at->key, at->size};
}

/* Puts the place at an entry of map i, or at as much of its key as the place can hold. Says whether
 * that is another place. */
static int move_place(const pst_tree_shape *s, int32_t i, const pst_tree_entry *e,
                      pst_sweep_place *at) {
    pst_bytes key =
        s->key_is_ref ? e->key_bytes : (pst_bytes){(const uint8_t *)e->key, s->key_words * 8u};
    uint32_t size = key.size < PST_SWEEP_KEY ? key.size : PST_SWEEP_KEY, column = (uint32_t)i + 1;
    if (at->column == column && at->size == size && !memcmp(at->key, key.data, size))
        return 0;
    at->column = column;
    at->size = size;
    memset(at->key, 0, sizeof at->key);
    if (size)
        memcpy(at->key, key.data, size);
    return 1;
}

/* Removes the entries that go, and stamps the others whose time moves. They are found first and
 * written to afterwards, some at a time: a cursor does not outlive a write. */
static pst_status pass_map(pst_table *t, uint32_t slot, int32_t i, const pass *p,
                           pst_sweep *sweep) {
    const pst_tree_shape *s = &t->collections[i].map;
    pst_tree_root before = pst_row_map(t, pst_row(t, slot), i), root = before;
    pst_tree_entry found[SOME], next, *from = NULL;
    uint8_t keys[SOME + 1][PST_INLINE_BYTES], dead[SOME];
    int n, ended;
    pst_status st;
    if (sweep->at.column) {
        place_entry(s, &sweep->at, &next);
        from = &next;
    }
    do {
        pst_tree_cursor c;
        pst_tree_seek(&c, t->heap, pst_heap_bytes(t), s, root, from);
        for (n = 0; (st = pst_tree_next(&c, &next)) == PST_OK && n < SOME && sweep->left;) {
            int64_t time = next.time;
            pst_sweep_look(sweep, 1);
            dead[n] = (uint8_t)goes(t, i, p, time);
            if (!dead[n] && p->entry(t, i, time) == time)
                continue;
            keep_key_bytes(s, &next, keys[n]);
            found[n++] = next;
        }
        ended = st == PST_NOT_FOUND;
        st = ended ? PST_OK : st;
        if (!st && !ended)
            keep_key_bytes(s, &next, keys[SOME]);
        for (int k = 0; k < n && !st; k++) {
            st = dead[k] ? pst_tree_remove(t, s, &root, &found[k])
                         : stamp_entry(t, i, pst_ttl_stamp(t, i), &root, &found[k]);
            sweep->removed += dead[k];
        }
        from = &next;
        /* Keys with a common beginning longer than a place can hold are passed together. */
        if (!st && !ended && !sweep->left && !move_place(s, i, &next, &sweep->at))
            sweep->left = SOME;
    } while (!st && !ended && sweep->left);
    if (ended)
        sweep->at.column = 0;
    if (!st)
        pst_row_map_replace(t, slot, i, before, root);
    return st;
}

/* ---- both ----------------------------------------------------------------------------------- */

/* The whole list or map; whoever reads has reserved nothing. */
static pst_status pass_over(pst_table *t, uint32_t slot, int32_t i, const pass *p) {
    if (!pst_ttl_is_set(t, i) || !pst_row_has(&t->lay, pst_row(t, slot), i))
        return PST_OK;
    if (t->lay.fields[i].kind == PST_MAP && pst_row_map_is_below(t, pst_row(t, slot), i))
        return PST_OK; /* it came before its state was said to change by reading */
    pst_sweep all = {.left = UINT64_MAX};
    pst_clearing(t); /* of what was written: a full table can be read */
    pst_status st = pst_undo_reserve(t, 1);
    if (!st)
        st = t->lay.fields[i].kind == PST_LIST ? pass_list(t, slot, i, p)
                                               : pass_map(t, slot, i, p, &all);
    return pst_poison(t, pst_cleared(t, st));
}

pst_status pst_row_use_elements(pst_table *t, uint32_t slot, int32_t i) {
    return t->ttl[i].on_read ? pass_over(t, slot, i, &USED) : PST_OK;
}

pst_status pst_row_drop_shown(pst_table *t, uint32_t slot, int32_t i) {
    return t->ttl[i].lenient ? pass_over(t, slot, i, &SHOWN) : PST_OK;
}

pst_status pst_row_expire_elements(pst_table *t, uint32_t slot, int32_t i, pst_sweep *s) {
    if (!pst_row_has(&t->lay, pst_row(t, slot), i)) {
        s->at.column = 0;
        return PST_OK;
    }
    if (t->lay.fields[i].kind == PST_LIST)
        return expire_list(t, slot, i, s);
    if (pst_row_map_is_below(t, pst_row(t, slot), i)) {
        pst_sweep_look(s, 1); /* merges take away what has expired */
        s->at.column = 0;
        return PST_OK;
    }
    return pass_map(t, slot, i, &SWEPT, s);
}
