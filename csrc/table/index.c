#include "table/index.h"

#include "memory/alloc.h"
#include "memory/ring.h"
#include "memory/size_class.h"
#include "memory/span.h"

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

/* An empty cell has tag 0, and hardly any other entry has: so no branch depends on how full the
 * line is. */
static inline uint64_t *first_empty(uint64_t *line) {
    for (uint32_t m = pst_line_matches(line, 0); m; m &= m - 1)
        if (!line[__builtin_ctz(m)])
            return line + __builtin_ctz(m);
    return NULL;
}

/* The first empty cell on the tag's path; the region has one. */
static uint64_t *empty_cell(const pst_table *t, const pst_shard *s, uint32_t tag) {
    pst_probe c;
    if (!pst_probe_home(&c, s, t->heap, tag))
        return NULL;
    for (;; pst_probe_step(&c, t->heap)) {
        uint64_t *cell = first_empty(c.line);
        if (cell)
            return cell;
    }
}

/* The capacity for `live` entries and one more. It is an eighth to three eighths above what the
 * limit of 4/5 asks for, by a factor of the shard's own. Keys spread evenly, so with one factor all
 * shards would grow in the same epoch, and their old regions would wait for the window together. */
static uint32_t capacity_for(uint64_t live, uint32_t shard) {
    uint64_t whim = ((live + 1) * 31 + shard) * UINT64_C(0x9E3779B97F4A7C15) >> 56;
    uint64_t want = (live + 1) * 5 * (1152 + whim) / 4096 + 1;
    if (want > PST_PAGE_ENTRIES)
        want = (want + PST_PAGE_ENTRIES - 1) / PST_PAGE_ENTRIES * PST_PAGE_ENTRIES;
    else {
        uint64_t power = FIRST_CAPACITY;
        while (power < want)
            power *= 2;
        want = power;
    }
    return want > 0xFFFFFF ? 0 : (uint32_t)want;
}

/* ---- the directory --------------------------------------------------------------------------- */

/* The entries of the shard that stands at i. */
static uint32_t shard_entries(const pst_meta *m, uint32_t i) {
    return UINT32_C(1) << (m->directory_bits - pst_shard_depth(m->shards[i].shape));
}

/* The first entry of the shard, which has its counts. */
static uint32_t shard_first(const pst_meta *m, uint32_t i) {
    return i & ~(shard_entries(m, i) - 1);
}

static pst_shard *shard_under(const pst_table *t, pst_meta *m, uint64_t hash, uint32_t tag) {
    return m->shards + shard_first(m, pst_directory_at(t, m->directory_bits, hash, tag));
}

static pst_shard *shard_of(const pst_table *t, pst_meta *m, uint64_t hash) {
    return shard_under(t, m, hash, pst_tag_of(t, hash));
}

/* Each entry becomes two, from the end, so that nothing is overwritten before it was read. Only the
 * open epoch's meta changes. */
static int double_directory(pst_table *t) {
    pst_meta *m = t->m;
    uint32_t n = pst_directory_size(t, m);
    if (n > t->h->shards / 2)
        return 0;
    for (uint32_t i = n; i-- > 0;)
        for (uint32_t k = 2; k-- > 0;)
            pst_put_words((uint64_t *)(m->shards + 2 * i + k), (const uint64_t *)(m->shards + i),
                          sizeof(pst_shard) / 8);
    pst_put32(&m->directory_bits, m->directory_bits + 1);
    if (m->cut_phase == PST_CUT_PURGE)
        pst_put32(&m->cut_at, 2 * m->cut_at);
    return 1;
}

static void publish(pst_meta *m, uint32_t first, uint32_t n, const pst_shard *s) {
    for (uint32_t i = first; i < first + n; i++) {
        pst_put32(&m->shards[i].shape, s->shape);
        pst_put32(&m->shards[i].table, s->table);
        pst_put32(&m->shards[i].used, s->used);
        pst_put32(&m->shards[i].tombstones, s->tombstones);
    }
}

/* Room for one more entry. */
static int has_room(const pst_shard *s) {
    return (uint64_t)(s->used + 1) * 5 <= (uint64_t)pst_shard_capacity(s->shape) * 4;
}

/* ---- rebuilding ------------------------------------------------------------------------------ */

/* Calls for each entry of a region; what it does is inlined. */
static inline __attribute__((always_inline)) void
each_entry(const pst_table *t, const pst_shard *s, void (*use)(const pst_table *, uint64_t, void *),
           void *with) {
    const uint32_t *names = (const uint32_t *)pst_block(t, s->table);
    for (uint32_t p = 0, left = pst_shard_capacity(s->shape); left; p++) {
        uint32_t n = left < PST_PAGE_ENTRIES ? left : PST_PAGE_ENTRIES;
        const uint64_t *page = (const uint64_t *)pst_block(t, names[p]);
        for (uint32_t i = 0; i < n; i++)
            if (page[i] && page[i] != PST_TOMBSTONE)
                use(t, page[i], with);
        left -= n;
    }
}

enum { MOST_LINES = PST_SHARD_MOST / PST_LINE };

/* A shard's one or two successors. How many entries each of their lines has is counted here,
 * because reading a line right after it was written to would wait for the write. Lines beyond those
 * that are counted exist only in shards that can split no more. */
typedef struct heirs {
    uint32_t n;
    uint32_t depth; /* of the shard */
    uint32_t below; /* entries of rows from there on are left out */
    int only_wanted;
    uint64_t live[2];
    pst_shard shards[2];
    uint8_t filled[2][MOST_LINES];
} heirs;

/* Begins one heir. Its large arrays are left as they are. */
static void begin(heirs *h, uint32_t shape, int only_wanted) {
    h->n = 1;
    h->depth = pst_shard_depth(shape);
    h->only_wanted = only_wanted;
    h->below = PST_NONE;
    h->live[0] = h->live[1] = 0;
}

/* An entry of a row that is there, or that may be revived while the epoch is open. */
static int is_wanted(const pst_table *t, const heirs *h, uint64_t entry) {
    if (pst_entry_slot(entry) >= h->below)
        return 0;
    if (!h->only_wanted)
        return 1;
    uint64_t header = pst_row(t, pst_entry_slot(entry))[0];
    return pst_is_live(header) || pst_header_stamp(header) == t->stamp;
}

static uint32_t heir_of(const heirs *h, uint64_t entry) {
    return h->n == 1 ? 0 : (uint32_t)(entry >> 32) << h->depth >> 31;
}

static void count_entry(const pst_table *t, uint64_t entry, void *with) {
    heirs *h = with;
    h->live[heir_of(h, entry)] += (uint64_t)is_wanted(t, h, entry);
}

static void move_entry(const pst_table *t, uint64_t entry, void *with) {
    heirs *h = with;
    if (!is_wanted(t, h, entry))
        return;
    uint32_t k = heir_of(h, entry), tag = (uint32_t)(entry >> 32);
    const pst_shard *s = &h->shards[k];
    uint32_t lines = pst_shard_capacity(s->shape) / PST_LINE;
    uint32_t line = pst_home(s->shape, tag) / PST_LINE;
    if (__builtin_expect(lines > MOST_LINES, 0)) {
        pst_put64(empty_cell(t, s, tag), entry);
        return;
    }
    while (h->filled[k][line] == PST_LINE)
        line = line + 1 == lines ? 0 : line + 1;
    const uint32_t *pages = (const uint32_t *)pst_block(t, s->table);
    uint64_t *page = (uint64_t *)pst_block(t, pages[line / (PST_PAGE_ENTRIES / PST_LINE)]);
    uint32_t at = line % (PST_PAGE_ENTRIES / PST_LINE) * PST_LINE + h->filled[k][line]++;
    pst_put64(page + at, entry);
}

static pst_status free_shard(pst_table *t, const pst_shard *s, int born) {
    uint32_t capacity = pst_shard_capacity(s->shape);
    return free_region(t, capacity, s->table, page_count(capacity), born);
}

static pst_status make_heirs(pst_table *t, heirs *h, uint32_t first) {
    for (uint32_t k = 0; k < h->n; k++) {
        uint32_t capacity = capacity_for(h->live[k], first + k);
        pst_shard *s = &h->shards[k];
        s->tombstones = 0;
        pst_status st = capacity ? make_region(t, capacity, &s->table) : PST_TOO_LARGE;
        if (st && k)
            (void)free_shard(t, &h->shards[0], 1); /* born: cannot fail */
        if (st)
            return st;
        s->shape = (h->depth + h->n - 1) << 24 | capacity;
        s->used = (uint32_t)h->live[k];
        uint32_t lines = capacity / PST_LINE;
        memset(h->filled[k], 0, lines < MOST_LINES ? lines : MOST_LINES);
    }
    return PST_OK;
}

/* Was the region made in the open epoch? The sealed one has it at the same place, if at all. */
static int is_born(pst_table *t, uint32_t i, const pst_shard *old) {
    const pst_meta *sealed = pst_meta_of(t, t->h->sealed);
    const pst_shard *s = sealed->shards + (i >> (t->m->directory_bits - sealed->directory_bits));
    return !(pst_shard_capacity(s->shape) && s->table == old->table);
}

/* Makes sure that a region of that capacity can be freed. */
static pst_status reserve_names(pst_table *t, uint32_t capacity) {
    uint32_t pages = page_class(capacity), table = table_class(capacity);
    pst_status s = pst_ring_reserve(t, table, 1);
    return s ? s : pst_ring_reserve(t, pages, page_count(capacity) + (pages == table));
}

/* Replaces the shard that stands at this entry by its heirs, whose entries were counted. On failure
 * nothing has changed. */
static pst_status replace(pst_table *t, uint32_t first, heirs *h) {
    pst_meta *m = t->m;
    pst_shard old = m->shards[first];
    uint32_t n = shard_entries(m, first) / h->n, capacity = pst_shard_capacity(old.shape);
    pst_status st = make_heirs(t, h, first);
    if (st)
        return st;
    int born = capacity && is_born(t, first, &old);
    st = capacity && !born ? reserve_names(t, capacity) : PST_OK;
    if (st) {
        for (uint32_t k = 0; k < h->n; k++)
            (void)free_shard(t, &h->shards[k], 1); /* born: cannot fail */
        return st;
    }
    each_entry(t, &old, move_entry, h);
    uint64_t granules = m->index_granules - (capacity ? region_granules(capacity) : 0);
    for (uint32_t k = 0; k < h->n; k++) {
        publish(m, first + k * n, n, &h->shards[k]);
        granules += region_granules(pst_shard_capacity(h->shards[k].shape));
    }
    pst_put64(&m->index_granules, granules);
    return capacity ? free_shard(t, &old, born) : PST_OK;
}

/* Gives a hash's shard a new region, or where it has become too large, splits it. */
static pst_status rebuild(pst_table *t, uint64_t hash) {
    pst_meta *m = t->m;
    uint32_t tag = pst_tag_of(t, hash);
    uint32_t first = shard_first(m, pst_directory_at(t, m->directory_bits, hash, tag));
    const pst_shard *old = m->shards + first;
    heirs h;
    begin(&h, old->shape, 0);
    h.live[0] = old->used - old->tombstones;
    if (capacity_for(h.live[0], first) > PST_SHARD_MOST &&
        (shard_entries(m, first) > 1 || double_directory(t))) {
        first = shard_first(m, pst_directory_at(t, m->directory_bits, hash, tag));
        h.n = 2;
        h.live[0] = 0;
        each_entry(t, m->shards + first, count_entry, &h);
    }
    return replace(t, first, &h);
}

/* Rebuilds the shard without the entries of dead rows, if they are at least half of it. Where
 * `room` is wanted it does so in any case. */
static pst_status drop_dead(pst_table *t, uint32_t first, int room) {
    const pst_shard *s = t->m->shards + first;
    heirs h;
    begin(&h, s->shape, 1);
    each_entry(t, s, count_entry, &h);
    uint32_t capacity = capacity_for(h.live[0], first);
    if (!capacity || (capacity > pst_shard_capacity(s->shape) / 2 && !room))
        return PST_OK;
    return replace(t, first, &h);
}

/* What failed for want of memory changed nothing, and can wait. */
static pst_status if_changed(const pst_meta *m, uint32_t first, pst_shard before, pst_status s) {
    const pst_shard *now = m->shards + first;
    return now->table == before.table && now->shape == before.shape ? PST_OK : s;
}

#ifndef PST_INDEX_LOOKS
#define PST_INDEX_LOOKS 4096 /* tests have less */
#endif

/* Entries that an epoch looks at, or one shard. */
enum { LOOKS = PST_INDEX_LOOKS };

static pst_status shrink_some(pst_table *t) {
    pst_meta *m = t->m;
    uint32_t n = pst_directory_size(t, m), steps = 0, looked = 0;
    /* A granule has two cells. Where no row has gone, more than half of them are in use; and shards
     * made for keys to come have no dead entries. */
    if (m->live > m->index_granules / 2 || m->live * 2 >= m->slots)
        return PST_OK;
    while (steps < n && looked < LOOKS) {
        uint32_t at = t->shrink_at < n ? t->shrink_at : 0;
        uint32_t first = shard_first(m, at), entries = shard_entries(m, first);
        pst_shard before = m->shards[first];
        looked += pst_shard_capacity(before.shape);
        t->shrink_at = first + entries;
        steps += entries;
        if (pst_shard_capacity(before.shape) <= FIRST_CAPACITY)
            continue;
        pst_status s = drop_dead(t, first, 0);
        if (s)
            return if_changed(m, first, before, s);
    }
    return PST_OK;
}

/* Takes the entries of rows from the cut on out of the shards. */
static pst_status purge_some(pst_table *t) {
    pst_meta *m = t->m;
    uint32_t n = pst_directory_size(t, m), looked = 0;
    while (m->cut_at < n && looked < LOOKS) {
        uint32_t first = m->cut_at;
        pst_shard before = m->shards[first];
        heirs h;
        begin(&h, before.shape, 0);
        h.below = m->cut;
        if (pst_shard_capacity(before.shape))
            each_entry(t, &before, count_entry, &h);
        looked += pst_shard_capacity(before.shape);
        if (h.live[0] < before.used - before.tombstones) {
            pst_status s = replace(t, first, &h);
            if (s)
                return if_changed(m, first, before, s);
        }
        pst_put32(&m->cut_at, first + shard_entries(m, first));
    }
    if (m->cut_at < n)
        return PST_OK;
    pst_put32(&m->cut_at, (uint32_t)m->epoch);
    pst_put32(&m->cut_phase, PST_CUT_WAIT);
    return PST_OK;
}

pst_status pst_index_tidy(pst_table *t) {
    t->index_due = 0;
    if (t->tight) {
        pst_meta *m = t->m;
        uint32_t first = (uint32_t)(shard_of(t, m, t->tight_hash) - m->shards);
        pst_shard before = m->shards[first];
        t->tight = 0;
        if (!has_room(&before)) {
            pst_status s = drop_dead(t, first, 1);
            return s ? if_changed(m, first, before, s) : s;
        }
    }
    return t->m->cut_phase == PST_CUT_PURGE ? purge_some(t) : shrink_some(t);
}

int pst_index_find_room(const pst_table *t, uint64_t hash, pst_vacancy *v) {
    v->tag = pst_tag_of(t, hash);
    v->shard = shard_under(t, t->m, hash, v->tag);
    if (!has_room(v->shard))
        return 0;
    v->cell = empty_cell(t, v->shard, v->tag);
    return 1;
}

pst_status pst_index_reserve(pst_table *t, const pst_key *key, pst_vacancy *v) {
    if (has_room(v->shard))
        return PST_OK;
    pst_status st = rebuild(t, key->hash);
    if (st)
        return st;
    v->shard = shard_under(t, t->m, key->hash, v->tag);
    v->cell = empty_cell(t, v->shard, v->tag);
    return PST_OK;
}

pst_status pst_index_expect(pst_table *t, int32_t key_group, uint64_t rows) {
    pst_meta *m = t->m;
    uint32_t group = (uint32_t)(key_group - t->first_key_group), depth = m->directory_bits;
    uint32_t first = group << depth, n = 1u << depth;
    for (uint32_t i = first; i < first + n; i++)
        if (pst_shard_capacity(m->shards[i].shape))
            return PST_OK;
    while (capacity_for(rows >> depth, first) > PST_SHARD_MOST && double_directory(t))
        depth++;
    first = group << depth;
    n = 1u << depth;
    for (uint32_t i = first; i < first + n; i++) {
        pst_shard s = {depth << 24, 0, 0, 0};
        uint32_t capacity = capacity_for(rows >> depth, i);
        pst_status st = capacity ? make_region(t, capacity, &s.table) : PST_TOO_LARGE;
        if (st)
            return st;
        s.shape |= capacity;
        publish(m, i, 1, &s);
        pst_put64(&m->index_granules, m->index_granules + region_granules(capacity));
    }
    return PST_OK;
}

/* ---- entries --------------------------------------------------------------------------------- */

uint32_t pst_index_find_untied(const pst_table *t, const pst_key *key) {
    if (t->lay.key_kind != PST_KEY_BYTES)
        return PST_NONE;
    pst_key own = pst_untied(t, key);
    return pst_index_walk(t, &own);
}

/* Has a span of the reference's block been given back? Of a dead row it may have. Reading there
 * would take memory, or where there is none end the process. */
static int has_gone(const pst_table *t, const uint64_t ref[2]) {
    uint32_t at = pst_ref_granule(ref) / PST_SPAN_GRANULES;
    uint32_t last = (pst_ref_granule(ref) + pst_ref_size(ref) / PST_GRANULE) / PST_SPAN_GRANULES;
    for (; pst_ref_is_block(ref) && at <= last; at++)
        if (at >= pst_span_count(t) || pst_span_at(t, at)->state & PST_SPAN_ABSENT)
            return 1;
    return 0;
}

/* A row that bears the hash and another key. The key's own row, if there is one, is dead. */
static int ties(const pst_table *t, uint32_t slot, const pst_key *key) {
    const uint64_t *k = pst_row(t, slot) + t->lay.key_offset / 8;
    if (k[0] != key->hash)
        return 0;
    return has_gone(t, k + 1) || !pst_ref_equals(t->heap, k + 1, key->bytes);
}

uint32_t pst_index_seek(const pst_table *t, const pst_key *key, pst_vacancy *v) {
    uint32_t tag = pst_tag_of(t, key->hash);
    pst_probe c;
    *v = (pst_vacancy){shard_under(t, t->m, key->hash, tag), NULL, tag, 0};
    if (!pst_probe_home(&c, v->shard, t->heap, tag))
        return PST_NONE;
    for (;; pst_probe_step(&c, t->heap)) {
        for (uint32_t m = pst_line_matches(c.line, tag); m; m &= m - 1) {
            uint64_t e = c.line[__builtin_ctz(m)];
            if (!e || e == PST_TOMBSTONE)
                continue;
            if (pst_row_matches(t, pst_row(t, pst_entry_slot(e)), key))
                return pst_entry_slot(e);
            v->ties += t->lay.key_kind == PST_KEY_BYTES && ties(t, pst_entry_slot(e), key);
        }
        v->cell = first_empty(c.line);
        if (v->cell)
            return PST_NONE;
    }
}

/* The cell that names the slot, on the path of its hash; NULL where the path ends before it. */
static uint64_t *cell_of(pst_table *t, const pst_shard *s, uint64_t hash, uint32_t slot) {
    uint32_t tag = pst_tag_of(t, hash);
    pst_probe c;
    if (!pst_probe_home(&c, s, t->heap, tag))
        return NULL;
    for (uint32_t n = 0; n < c.capacity; n += PST_LINE) {
        for (uint32_t k = 0; k < PST_LINE; k++) {
            if (!c.line[k])
                return NULL;
            if (c.line[k] == pst_entry(tag, slot))
                return c.line + k;
        }
        pst_probe_step(&c, t->heap);
    }
    return NULL;
}

void pst_index_undo(pst_table *t, pst_meta *m, uint64_t hash, uint32_t slot) {
    uint64_t *cell = cell_of(t, shard_of(t, m, hash), hash, slot);
    if (cell)
        pst_put64(cell, 0);
}

/* The row of an insert that was undone, or killed half way, may not have its key: its hash may then
 * be anything, and no entry names it. */
void pst_index_bury(pst_table *t, uint64_t hash, uint32_t slot) {
    int32_t group = pst_group_of(t, hash);
    if (group < t->first_key_group || group > t->last_key_group)
        return;
    uint32_t seen = 0;
    for (uint64_t e = t->h->active;; e--) {
        pst_shard *s = shard_of(t, pst_meta_of(t, e), hash);
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
