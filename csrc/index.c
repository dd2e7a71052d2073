#include "index.h"

#include "alloc.h"

enum { FIRST_CAPACITY = 32 };

static uint32_t page_entries(uint32_t capacity) {
    return capacity < PST_PAGE_ENTRIES ? capacity : PST_PAGE_ENTRIES;
}

static uint32_t page_count(uint32_t capacity) {
    return (capacity + PST_PAGE_ENTRIES - 1) / PST_PAGE_ENTRIES;
}

static uint32_t page_class(uint32_t capacity) {
    return pst_class_of((uint64_t)page_entries(capacity) * sizeof(uint64_t));
}

static uint32_t table_class(uint32_t capacity) {
    return pst_class_of((uint64_t)page_count(capacity) * sizeof(uint32_t));
}

static uint64_t region_granules(uint32_t capacity) {
    return (pst_class_size(page_class(capacity)) * page_count(capacity) +
            pst_class_size(table_class(capacity))) /
           PST_GRANULE;
}

static pst_status free_region(pst_table *t, uint32_t capacity, uint32_t table, uint32_t pages,
                              int born) {
    const uint32_t *names = (const uint32_t *)pst_block(t, table);
    for (uint32_t i = 0; i < pages; i++) {
        pst_status s = pst_block_free(t, page_class(capacity), names[i], born);
        if (s)
            return s;
    }
    return pst_block_free(t, table_class(capacity), table, born);
}

static pst_status make_region(pst_table *t, uint32_t capacity, uint32_t *table) {
    pst_status s = pst_block_alloc(t, table_class(capacity), table);
    if (s)
        return s;
    uint32_t *names = (uint32_t *)pst_block(t, *table);
    for (uint32_t i = 0; i < page_count(capacity); i++) {
        uint32_t name;
        s = pst_block_alloc(t, page_class(capacity), &name);
        if (s) {
            (void)free_region(t, capacity, *table, i, 1); /* born: cannot fail */
            return s;
        }
        uint64_t *page = (uint64_t *)pst_block(t, name);
        for (uint32_t k = 0; k < page_entries(capacity); k++)
            pst_put64(page + k, 0);
        pst_put32(names + i, name);
    }
    return PST_OK;
}

/* The first empty cell on the tag's path; the region has one. */
static uint64_t *empty_cell(const pst_table *t, const pst_shard *s, uint32_t tag) {
    pst_cursor c;
    if (!pst_cursor_home(&c, s, t->heap, tag))
        return NULL;
    for (;; pst_cursor_step(&c, t->heap))
        for (uint32_t k = 0; k < PST_LINE; k++)
            if (!c.line[k])
                return c.line + k;
}

static void place(const pst_table *t, const pst_shard *s, uint64_t entry) {
    uint64_t *cell = empty_cell(t, s, (uint32_t)(entry >> 32));
    PST_FENCE(__ATOMIC_RELEASE);
    if (cell)
        pst_put64(cell, entry);
}

/* The capacity for `live` entries and one more: above what the limit of 6/7 asks for by an eighth to
 * three eighths, by a whim of the shard. Keys spread evenly, so with one factor all shards would
 * grow in the same epoch, and their old regions would wait for the window together. */
static uint32_t capacity_for(uint64_t live, uint32_t shard) {
    uint64_t whim = ((live + 1) * 31 + shard) * UINT64_C(0x9E3779B97F4A7C15) >> 56;
    uint64_t want = (live + 1) * 7 * (1152 + whim) / 6144 + 1;
    if (want > PST_PAGE_ENTRIES)
        want = (want + PST_PAGE_ENTRIES - 1) / PST_PAGE_ENTRIES * PST_PAGE_ENTRIES;
    else {
        uint64_t power = FIRST_CAPACITY;
        while (power < want)
            power *= 2;
        want = power;
    }
    return want > UINT32_MAX / 2 ? 0 : (uint32_t)want;
}

static pst_status rebuild(pst_table *t, uint32_t shard) {
    pst_shard *s = &t->m->shards[shard], old = *s;
    pst_shard next = {capacity_for(old.used - old.tombstones, shard), 0, 0, 0};
    if (!next.capacity)
        return PST_TOO_LARGE;
    pst_status st = make_region(t, next.capacity, &next.table);
    if (st)
        return st;
    const uint32_t *names = (const uint32_t *)pst_block(t, old.table);
    for (uint32_t p = 0, left = old.capacity; left; p++) {
        uint32_t n = left < PST_PAGE_ENTRIES ? left : PST_PAGE_ENTRIES;
        const uint64_t *page = (const uint64_t *)pst_block(t, names[p]);
        for (uint32_t i = 0; i < n; i++)
            if (page[i] && page[i] != PST_TOMBSTONE) {
                place(t, &next, page[i]);
                next.used++;
            }
        left -= n;
    }
    pst_put32(&s->capacity, next.capacity);
    pst_put32(&s->used, next.used);
    pst_put32(&s->tombstones, 0);
    pst_put32(&s->table, next.table);
    pst_put64(&t->m->index_granules, t->m->index_granules + region_granules(next.capacity) -
                                         (old.capacity ? region_granules(old.capacity) : 0));
    if (!old.capacity)
        return PST_OK;
    const pst_shard *sealed = &pst_meta_of(t, t->h->sealed)->shards[shard];
    int born = !(sealed->capacity && sealed->table == old.table);
    return free_region(t, old.capacity, old.table, page_count(old.capacity), born);
}

pst_status pst_index_reserve(pst_table *t, uint64_t hash) {
    uint32_t shard = pst_shard_of(t, hash);
    const pst_shard *s = &t->m->shards[shard];
    if ((uint64_t)(s->used + 1) * 7 <= (uint64_t)s->capacity * 6)
        return PST_OK;
    return rebuild(t, shard);
}

void pst_index_insert(pst_table *t, uint64_t hash, uint32_t slot) {
    pst_shard *s = &t->m->shards[pst_shard_of(t, hash)];
    place(t, s, pst_entry(pst_tag_of(t, hash), slot));
    pst_put32(&s->used, s->used + 1);
}

/* The cell that names the slot, on the path of its hash; NULL where the path ends before it. */
static uint64_t *cell_of(pst_table *t, const pst_shard *s, uint64_t hash, uint32_t slot) {
    uint32_t tag = pst_tag_of(t, hash);
    pst_cursor c;
    if (!pst_cursor_home(&c, s, t->heap, tag))
        return NULL;
    for (uint32_t n = 0; n < c.capacity; n += PST_LINE) {
        for (uint32_t k = 0; k < PST_LINE; k++) {
            if (!c.line[k])
                return NULL;
            if (c.line[k] == pst_entry(tag, slot))
                return c.line + k;
        }
        pst_cursor_step(&c, t->heap);
    }
    return NULL;
}

void pst_index_undo(pst_table *t, pst_meta *m, uint64_t hash, uint32_t slot) {
    uint64_t *cell = cell_of(t, &m->shards[pst_shard_of(t, hash)], hash, slot);
    if (cell)
        pst_put64(cell, 0);
}

/* Of an insert that was undone, or killed half way, the row does not say whose it was: its hash may be
 * anything, and it has no entry left. */
void pst_index_bury(pst_table *t, uint64_t hash, uint32_t slot) {
    int32_t group = pst_group_of(t, hash);
    if (group < t->first_key_group || group > t->last_key_group)
        return;
    uint32_t shard = pst_shard_of(t, hash), seen = 0;
    for (uint64_t e = t->h->active;; e--) {
        pst_shard *s = &pst_meta_of(t, e)->shards[shard];
        uint64_t *cell = s->table != seen ? cell_of(t, s, hash, slot) : NULL;
        seen = s->table;
        if (cell) {
            pst_put64(cell, PST_TOMBSTONE);
            pst_put32(&s->tombstones, s->tombstones + 1);
        }
        if (e == t->h->floor)
            return;
    }
}
