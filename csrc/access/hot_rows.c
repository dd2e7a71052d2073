/* hot_rows.c: the rows that are used most, as a batch. */
#include "access/batch.h"
#include "base/scratch.h"
#include "table/resident.h"

/* How often a row was used, from 1 on: twice its heat, and one more if it was touched, or came, just
 * now. Heat is noted of few of a batch's keys. */
enum { LEVELS = 2 * (PST_HEAT_MOST + 1) + 1, AHEAD = 16, JUST_NOW = 2 };

static int is_fresh(const pst_table *t, uint64_t header) {
    uint32_t stamp = pst_header_stamp(header) >> 8, now = t->stamp >> 8;
    if (!stamp)
        return (uint32_t)t->h->active - (uint32_t)(header >> 32) <= JUST_NOW;
    return (now >= stamp ? now - stamp : now + PST_STAMP_PERIOD - stamp) <= JUST_NOW;
}

/* 0: a slot without a row. */
static uint32_t level_of(const pst_table *t, uint32_t slot) {
    uint64_t header = pst_row(t, slot)[0];
    uint32_t heat = 0;
    if (!pst_is_live(header))
        return 0;
    if (slot < t->heat_slots)
        heat =
            pst_get8(t->heat + slot / PST_HEAT_SLOTS) >> slot % PST_HEAT_SLOTS * 2 & PST_HEAT_MOST;
    return 1 + 2 * heat + (uint32_t)is_fresh(t, header);
}

/* The slots of up to `most` rows, the highest level first; of those of the lowest one that is taken
 * every so many. */
static uint32_t choose(const pst_table *t, uint64_t most, uint32_t *chosen) {
    uint64_t rows[LEVELS] = {0}, at[LEVELS] = {0}, turn = 0;
    uint32_t slots = t->m->slots, least = LEVELS - 1;
    for (uint32_t slot = 0; slot < slots; slot++)
        rows[level_of(t, slot)]++;
    for (; least > 1 && at[least] + rows[least] < most; least--)
        at[least - 1] = at[least] + rows[least];
    uint64_t left = most - at[least], some = rows[least] < left ? rows[least] : left;
    uint32_t n = (uint32_t)(at[least] + some);
    for (uint32_t slot = 0; slot < slots; slot++) {
        uint32_t level = level_of(t, slot);
        if (level < least)
            continue;
        if (level == least) {
            turn += some;
            if (turn < rows[least])
                continue;
            turn -= rows[least];
        }
        chosen[at[level]++] = slot;
    }
    return n;
}

pst_status pst_batch_hottest(pst_table *t, int64_t most, pst_batch **batch) {
    pst_batch *b;
    pst_status s = pst_batch_of_rows(t, most, &b);
    if (s)
        return s;
    uint32_t *slots = pst_scratch_take((size_t)most * sizeof *slots);
    if (!slots) {
        pst_batch_destroy(b);
        return PST_NO_MEMORY;
    }
    uint32_t n = choose(t, (uint64_t)most, slots);
    for (uint32_t i = 0; i < n; i++) {
        if (i + AHEAD < n)
            pst_prefetch_row(t, slots[i + AHEAD]);
        pst_batch_take_row(b, slots[i]);
    }
    pst_scratch_drop(slots);
    b->lined = b->guessed = b->resolved = b->length;
    if (!b->length) {
        pst_batch_destroy(b);
        return PST_NOT_FOUND;
    }
    *batch = b;
    return PST_OK;
}
