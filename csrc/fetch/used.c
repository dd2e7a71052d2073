#include "fetch/used.h"

#include "elements/collections.h"
#include "fetch/items.h"
#include "fetch/room.h"
#include "table/ttl.h"

/* What reading makes of a list's items. */
typedef struct effect {
    uint64_t left;  /* items from the first one on that stays; 0: all go */
    int first;      /* some before it go */
    int between;    /* some behind it go */
    int moves;      /* the time of one changes */
    uint64_t bytes; /* what those that stay take in blocks */
} effect;

/* With its time; a variable item has its size, and is padded. */
static uint64_t bytes_of(const pst_list_shape *shape, const pst_item *item) {
    uint64_t size = shape->width ? shape->width : ((uint64_t)item->size + 4 + 7) / 8 * 8;
    return size + 8;
}

/* Whether an item that has expired goes: those that nobody sees do with a list that is written anew. */
static int goes(const pst_table *t, int32_t column, int clears) {
    return clears || !t->ttl[column].lenient;
}

static effect effect_of(pst_table *t, int32_t column, pst_items *x, int clears, pst_status *s) {
    effect e = {0};
    pst_item item;
    while ((*s = pst_items_next(x, &item)) == PST_OK) {
        int expired = pst_ttl_expired(t, column, item.time);
        if (expired && goes(t, column, clears)) {
            e.first |= clears && !e.left;
            e.between |= clears && e.left;
            continue;
        }
        if (!e.left)
            e.left = pst_items_left(x) + 1;
        e.bytes += bytes_of(&t->collections[column].list, &item);
        e.moves |= !clears && !expired && pst_ttl_is_stale(t, column, item.time);
    }
    *s = *s == PST_NOT_FOUND ? PST_OK : *s;
    return e;
}

/* The time that reading leaves: as ttl_elements.c, all that have not expired move together. */
static int64_t time_read(const pst_table *t, int32_t column, int64_t time) {
    int64_t stamp = pst_ttl_stamp(t, column);
    int settled = time != PST_NO_TIME && time >= stamp;
    return settled || pst_ttl_expired(t, column, time) ? time : stamp;
}

static pst_status append_left(pst_table *t, int32_t column, pst_items *x, int clears,
                              pst_list *to) {
    pst_item item;
    pst_status s;
    while ((s = pst_items_next(x, &item)) == PST_OK) {
        if (pst_ttl_expired(t, column, item.time) && goes(t, column, clears))
            continue;
        if (!clears)
            item.time = time_read(t, column, item.time);
        s = pst_list_append(t, &t->collections[column].list, to, &item);
        if (s)
            return s;
    }
    return s == PST_NOT_FOUND ? PST_OK : s;
}

/* Brings the list into the row, as reading leaves it. */
static pst_status bring(pst_table *t, uint32_t slot, int32_t column, int clears) {
    pst_list old = pst_row_list(t, pst_row(t, slot), column), fresh = {0};
    pst_items *x;
    pst_status s = pst_items_open(t, slot, column, &x);
    if (s)
        return s;
    s = append_left(t, column, x, clears, &fresh);
    pst_items_close(x);
    if (s) {
        /* Nobody has seen these chunks. */
        pst_status freed = pst_list_clear(t, &fresh);
        return freed ? pst_poison(t, freed) : s;
    }
    s = pst_list_clear(t, &old);
    if (!s)
        pst_row_list_store(t, slot, column, &fresh);
    return pst_poison(t, s);
}

/* Takes away all items but so many of the last ones. */
static pst_status drop_first(pst_table *t, uint32_t slot, int32_t column, uint64_t left) {
    pst_list l = pst_row_list(t, pst_row(t, slot), column);
    pst_status s = left ? pst_list_start_below(t, &l, l.end - left) : pst_list_clear(t, &l);
    if (!s)
        pst_row_list_store(t, slot, column, &l);
    return s;
}

static pst_status pass(pst_table *t, uint32_t slot, int32_t column, int clears) {
    pst_list l = pst_row_list(t, pst_row(t, slot), column);
    uint64_t below;
    pst_items *x;
    pst_status s = pst_items_open(t, slot, column, &x);
    if (s)
        return s;
    effect e = effect_of(t, column, x, clears, &s);
    pst_items_close(x);
    if (s || !(e.first || e.between || e.moves))
        return s;
    int shortens = !e.between && !e.moves && pst_list_is_below(t, &l, &below) &&
                   (!e.left || l.end - e.left < below);
    if (shortens)
        pst_clearing(t); /* of what was written: a full table can be read */
    else
        s = pst_room_for_blocks(t, e.bytes + e.bytes / 32);
    if (!s)
        s = pst_undo_reserve(t, 1);
    if (!s)
        s = shortens ? pst_poison(t, drop_first(t, slot, column, e.left))
                     : bring(t, slot, column, clears);
    return pst_cleared(t, s);
}

static int is_long(const pst_table *t, uint32_t slot, int32_t column) {
    return pst_ttl_is_set(t, column) && pst_items_are_below(t, slot, column);
}

pst_status pst_items_use(pst_table *t, uint32_t slot, int32_t column) {
    if (!t->ttl[column].on_read || !is_long(t, slot, column))
        return pst_row_use_elements(t, slot, column);
    return pass(t, slot, column, 0);
}

pst_status pst_items_drop_shown(pst_table *t, uint32_t slot, int32_t column) {
    if (!t->ttl[column].lenient || !is_long(t, slot, column))
        return pst_row_drop_shown(t, slot, column);
    return pass(t, slot, column, 1);
}
