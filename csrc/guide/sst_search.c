#include "guide/sst_search.h"

#include <string.h>

#include "key/hash.h"
#include "key/schema.h"
#include "key/xxh64.h"
#include "sst/sst_unpack.h"

void pst_search_free(pst_search *s) {
    pst_buffer_free(&s->raw);
}

static pst_status check_stored(const pst_guide *guide, const pst_guide_block *block,
                               const uint8_t *stored) {
    uint64_t seed = pst_sst_seed(guide->info.lineage.id, block->offset);
    return pst_xxh64(stored, block->stored, seed) == block->checksum ? PST_OK : PST_CORRUPT;
}

static pst_status decompress(const pst_guide_block *block, const uint8_t *stored, uint8_t *raw) {
    size_t taken = pst_sst_unpack(stored, block->stored, raw, block->raw);
    return pst_sst_align(taken) == block->stored ? PST_OK : PST_CORRUPT;
}

pst_status pst_search_unpack(const pst_guide *guide, const pst_guide_block *block,
                             const uint8_t *stored, uint8_t *raw) {
    pst_status st = check_stored(guide, block, stored);
    if (!st && block->packed)
        return decompress(block, stored, raw);
    if (!st)
        memcpy(raw, stored, block->raw);
    return st;
}

static uint64_t hash_of(const pst_search *s, const pst_cell *key, uint32_t nulls) {
    const pst_schema *schema = &s->guide->schema;
    return pst_hash_key(schema->keys, pst_schema_hashed(schema), key, nulls);
}

static void close_block(pst_search *s, const pst_guide *guide) {
    s->guide = guide;
    s->view.row = s->view.rows = s->row = 0;
}

pst_status pst_search_open(pst_search *s, const pst_guide *guide, const pst_guide_block *block,
                           int32_t last_key_group, uint64_t last_hash, const uint8_t *stored) {
    const uint8_t *raw = stored;
    close_block(s, guide);
    pst_status st = check_stored(guide, block, stored);
    if (!st && block->packed) {
        st = pst_buffer_reserve(&s->raw, block->raw);
        raw = s->raw.data;
        if (!st)
            st = decompress(block, stored, s->raw.data);
    }
    return st ? st : pst_search_open_raw(s, guide, block, last_key_group, last_hash, raw);
}

pst_status pst_search_open_raw(pst_search *s, const pst_guide *guide, const pst_guide_block *block,
                               int32_t last_key_group, uint64_t last_hash, const uint8_t *raw) {
    pst_cell key[PST_MAX_KEYS];
    uint32_t nulls;
    pst_status st = PST_OK;
    close_block(s, guide);
    if (pst_sst_view_open(&s->view, &guide->schema, raw, block->raw) ||
        s->view.rows != block->rows || (guide->info.kind == PST_BASE && s->view.deletes))
        st = PST_CORRUPT;
    if (!st) {
        pst_sst_view_key(&s->view, 0, key, &nulls);
        st = hash_of(s, key, nulls) == block->first_hash ? PST_OK : PST_CORRUPT;
    }
    if (st)
        s->view.row = s->view.rows = 0;
    s->row_group = block->key_group;
    s->row_hash = block->first_hash;
    s->last_group = last_key_group;
    s->last_hash = last_hash;
    return st;
}

/* ---- finding --------------------------------------------------------------------------------- */

typedef struct range {
    uint32_t low;      /* rows before it come before what is wanted */
    uint32_t high;     /* this row and those behind it do not */
    int32_t low_group; /* no row from `low` on is below this place, none before `high` above that */
    int32_t high_group;
    uint64_t low_hash;
    uint64_t high_hash;
} range;

/* The distance of two places, or 0 where b is below a, in steps of 2^-24 of a key group. */
static uint64_t distance(int32_t a_group, uint64_t a_hash, int32_t b_group, uint64_t b_hash) {
    int64_t groups = b_group - a_group;
    int64_t steps = groups * (INT64_C(1) << 40) + (int64_t)(b_hash >> 24) - (int64_t)(a_hash >> 24);
    return steps > 0 ? (uint64_t)steps : 0;
}

/* Where the wanted row would lie if hashes were spread evenly. */
static uint32_t guess(const range *r, const pst_wanted *w) {
    uint64_t all = distance(r->low_group, r->low_hash, r->high_group, r->high_hash);
    uint64_t part = distance(r->low_group, r->low_hash, w->key_group, w->hash);
    uint32_t rows = r->high - r->low;
    if (part >= all)
        return part ? r->high - 1 : r->low;
    uint32_t ahead = (uint32_t)((double)part / (double)all * (double)rows);
    return r->low + (ahead < rows ? ahead : rows - 1); /* the quotient may have been rounded to 1 */
}

typedef enum step { BEFORE_PLACE, BEFORE_KEY, EQUAL, BEHIND } step;

/* How a row lies to what is wanted, and its place. */
static step compare_row(const pst_search *s, const pst_wanted *w, uint32_t row, int32_t *key_group,
                        uint64_t *hash) {
    const pst_schema *schema = &s->guide->schema;
    pst_cell key[PST_MAX_KEYS];
    uint32_t nulls;
    pst_sst_view_key(&s->view, row, key, &nulls);
    *hash = hash_of(s, key, nulls);
    *key_group = pst_key_group(*hash, s->guide->info.max_parallelism);
    int d = pst_place_compare(*key_group, *hash, w->key_group, w->hash);
    if (d)
        return d < 0 ? BEFORE_PLACE : BEHIND;
    if (!w->key)
        return EQUAL;
    d = pst_key_compare(schema->keys, schema->n_keys - s->guide->rules.has_element, key, nulls,
                        w->key, w->nulls);
    return d < 0 ? BEFORE_KEY : d == 0 ? EQUAL : BEHIND;
}

/* The first row of the key, or where it would be. *found says whether it is there. */
static uint32_t first_of(pst_search *s, const pst_wanted *w, int *found) {
    enum { GUESSES = 4 }; /* then halves, which end whatever the hashes are */
    range r = {s->row, s->view.rows, s->row_group, s->last_group, s->row_hash, s->last_hash};
    *found = 0;
    for (int i = 0; r.low < r.high; i++) {
        uint32_t row = i < GUESSES ? guess(&r, w) : r.low + (r.high - r.low) / 2;
        int32_t key_group;
        uint64_t hash;
        step to = compare_row(s, w, row, &key_group, &hash);
        if (to == EQUAL && !s->guide->rules.has_element && w->key) {
            *found = 1;
            return row;
        }
        if (to == BEFORE_PLACE || to == BEFORE_KEY) {
            r.low = row + 1;
            r.low_group = key_group;
            r.low_hash = hash;
        } else {
            *found |= to == EQUAL;
            r.high = row;
            r.high_group = key_group;
            r.high_hash = hash;
        }
        /* Other keys of this place may be wanted next. */
        if (to == BEFORE_PLACE) {
            s->row = r.low;
            s->row_group = key_group;
            s->row_hash = hash;
        }
    }
    return r.low;
}

uint32_t pst_search_find(pst_search *s, const pst_wanted *wanted, uint32_t *n) {
    int found;
    uint32_t first = first_of(s, wanted, &found), end = first + 1;
    int32_t key_group;
    uint64_t hash;
    *n = 0;
    if (!found)
        return 0;
    if (s->guide->rules.has_element || !wanted->key)
        while (end < s->view.rows && compare_row(s, wanted, end, &key_group, &hash) == EQUAL)
            end++;
    *n = end - first;
    return first;
}

pst_status pst_search_record(pst_search *s, uint32_t row, pst_record *record) {
    pst_sst_view *v = &s->view;
    if (row < v->row) {
        for (int32_t i = 0; i < v->schema->n_states; i++)
            v->columns[v->schema->n_keys + i].next = 0;
        v->row = 0;
    }
    if (row > v->row)
        pst_sst_view_skip(v, row);
    pst_sst_view_next(v, record);
    record->hash = hash_of(s, record->key, record->key_nulls);
    record->key_group = pst_key_group(record->hash, s->guide->info.max_parallelism);
    if (s->guide->rules.has_element && !pst_record_is_sound(&s->guide->rules, record))
        return PST_CORRUPT;
    return PST_OK;
}
