/* load.c: records and files into a table.
 *
 * A file's rows come in the order of their hashes, and each one's index line and row are in
 * nobody's cache. So the hashes of a block's rows are looked at ahead of the rows themselves: first
 * the line is prefetched, then the row that it names. A table that has never had a row is given
 * shards of the right size by the counts in the file's index. Where all rows of a block put the
 * same columns, a number of rows is made first, and then their values are put a column at a time,
 * without a record in between.
 *
 * A table above files takes of a file what its own rows need (pst_table_refresh): other rows stay
 * where they are.
 */
#include <string.h>

#include "access/batch.h"
#include "base/mem.h"
#include "elements/apply.h"
#include "elements/elements.h"
#include "file/sst_reader.h"
#include "key/schema.h"
#include "sst/record.h"
#include "table/resident.h"

/* ---- records ------------------------------------------------------------------------------- */

/* A mapping, and what is known of the records' keys. */
typedef struct loading {
    pst_mapping map;
    int all_new;  /* no record's key has a row */
    int here;     /* records of keys that have no row are passed over */
    int foreseen; /* the table keeps keys under the records' hashes */
    pst_dropped dropped;
} loading;

static pst_status apply_put(pst_table *t, const pst_key *key, const pst_record *r,
                            const pst_mapping *m, uint32_t *slot) {
    pst_status s = PST_OK;
    *slot = PST_NONE;
    if (r->changed & m->taken & r->present & m->values)
        s = pst_row_make(t, key, slot);
    else
        *slot = pst_index_find(t, key);
    return s || *slot == PST_NONE ? s : pst_apply_columns(t, *slot, r, m);
}

/* A record of a key that has no row here, and gets none. A timer that it brings is not here then, so
 * the horizon goes back to before it (DK4). */
static void pass_over(pst_table *t, const pst_record *r, const pst_mapping *m, int element) {
    pst_domain domain;
    int64_t time_ms;
    if (pst_record_timer(t, r, m, element, &domain, &time_ms) &&
        pst_horizon_is_after(&t->m->horizon[domain], time_ms))
        pst_horizon_store(&t->m->horizon[domain], (pst_horizon){time_ms, 0, 0, 0});
}

/* `more`, *slot: see pst_element_apply. */
static pst_status apply_row(pst_table *t, const pst_record *r, const loading *m, int has_element,
                            uint32_t more, uint32_t *slot) {
    if (t->poisoned)
        return PST_POISONED;
    if (!t->attached)
        return PST_INVALID;
    int32_t n_keys = t->schema.n_keys;
    pst_key key = {.hash = r->hash};
    t->current.generation = 0; /* its buffer serves as scratch */
    t->current_bytes.size = 0;
    pst_status s = pst_key_form(&t->schema, r->key, r->key_nulls & ((UINT32_C(1) << n_keys) - 1),
                                &t->current_bytes, &key);
    if (!s)
        s = pst_check_group(t, key.hash);
    if (!s)
        s = pst_undo_reserve(t, 1);
    if (s)
        return s;
    if (pst_key_has_namespace(&t->schema))
        key.hash = pst_key_spread(key.hash, key.bytes, t->max_parallelism);
    int element = has_element && !(r->key_nulls >> n_keys & 1);
    if (m->here && pst_index_find(t, &key) == PST_NONE) {
        *slot = PST_NONE;
        pass_over(t, r, &m->map, element);
        return PST_OK;
    }
    if (element)
        return t->lay.has_elements && !pst_dropped_has(&m->dropped, r->key[n_keys].bytes)
                   ? pst_poison(t,
                                pst_element_apply(t, &key, r, m->map.columns, m->map.n, more, slot))
                   : PST_OK;
    t->applied = PST_NONE;
    if (r->op == PST_PUT)
        return pst_poison(t, apply_put(t, &key, r, &m->map, slot));
    *slot = pst_index_find(t, &key);
    if (*slot == PST_NONE)
        return PST_OK;
    return pst_poison(t, pst_apply_delete(t, *slot, &m->map));
}

pst_status pst_table_apply(pst_table *t, const pst_record *r, const int32_t *columns,
                           int32_t n_columns) {
    loading m = {.all_new = 0};
    if (!pst_mapping_make(t, columns, n_columns, &m.map))
        return PST_INVALID;
    if (t->attached && !t->poisoned && !pst_table_is_whole(t))
        return PST_NOT_HERE;
    uint32_t slot = PST_NONE;
    return apply_row(t, r, &m, t->lay.has_elements, 0, &slot);
}

/* Are the file's cells what the table takes them for? */
static pst_status check_schema(const pst_table *t, const pst_schema *from, const loading *m) {
    pst_schema *own = NULL;
    pst_status s = pst_file_schema_create(&t->schema, &own);
    if (s)
        return s;
    int32_t n_keys = t->schema.n_keys;
    int fits = from->n_keys - pst_schema_has_element(from) == n_keys &&
               pst_schema_hashed(from) == pst_schema_hashed(&t->schema) &&
               m->map.n <= from->n_states && (m->map.columns || from->n_states == m->map.n);
    for (int32_t i = 0; fits && i < n_keys; i++)
        fits = pst_column_same_type(&from->keys[i], &own->keys[i]);
    for (int32_t i = 0; fits && i < m->map.n; i++) {
        int32_t column = m->map.columns ? m->map.columns[i] : i;
        if (column < 0)
            continue;
        fits = pst_column_same_type(&from->states[i], &own->states[column]) &&
               (from->states[i].kind != PST_TIME || pst_time_follows(m->map.columns, i));
    }
    pst_file_schema_destroy(own);
    return fits ? PST_OK : PST_SCHEMA;
}

/* ---- what the rows ahead need ---------------------------------------------------------------- */

enum { LINES_AHEAD = 32, ROWS_AHEAD = 16 };

PST_PREFETCH void prefetch_row(const pst_table *t, uint64_t hash) {
    uint32_t tag;
    pst_probe c;
    if (!pst_probe_hash(t, hash, &tag, &c))
        return;
    uint32_t m = pst_line_matches(c.line, tag);
    uint32_t slot = m ? pst_entry_slot(c.line[__builtin_ctz(m)]) : PST_NONE;
    if (slot < t->m->slots)
        pst_prefetch_row(t, slot);
}

/* Prefetches what the rows ahead will need; at a block's first row, for all rows within reach, and
 * after rows that were passed together, for as many. A row and its elements have one hash. */
static void prefetch_ahead(const pst_table *t, const loading *m, pst_ahead ahead, uint32_t passed) {
    if (!m->foreseen)
        return;
    uint32_t lines = passed < LINES_AHEAD ? LINES_AHEAD - passed : 1;
    uint32_t rows = passed < ROWS_AHEAD ? ROWS_AHEAD - passed : 1;
    for (uint32_t i = ahead.begins ? 0 : lines; i <= LINES_AHEAD && i < ahead.rows; i++)
        if (!i || ahead.hash[i] != ahead.hash[i - 1])
            pst_index_prefetch(t, ahead.hash[i]);
    if (m->all_new)
        return;
    for (uint32_t i = rows; i <= ROWS_AHEAD && i < ahead.rows; i++)
        if (ahead.hash[i] != ahead.hash[i - 1])
            prefetch_row(t, ahead.hash[i]);
}

/* How many of the next rows in the block are elements of the same state and row as the row last
 * read: for so many the map or list is given room at once. */
static uint32_t followers(const pst_ahead *ahead) {
    enum { MOST = 64 };
    if (!ahead->same || ahead->rows < 2 || !ahead->same[1])
        return 0;
    const pst_sst_values *element = &ahead->view->columns[ahead->view->schema->n_keys - 1];
    uint32_t row = ahead->view->rows - ahead->rows, n = 0;
    pst_cell first, next;
    if (!pst_sst_has_value(element, row))
        return 0;
    pst_sst_value(element, row, &first);
    for (; n < MOST && n + 1 < ahead->rows && ahead->same[n + 1]; n++) {
        if (!pst_sst_has_value(element, row + n + 1))
            break;
        pst_sst_value(element, row + n + 1, &next);
        if (next.bytes.size < PST_ELEMENT_ID || first.bytes.size < PST_ELEMENT_ID ||
            memcmp(first.bytes.data, next.bytes.data, PST_ELEMENT_ID) != 0)
            break;
    }
    return n;
}

/* ---- the entries of a map that follow one another in a block --------------------------------- */

/* Most of what it costs to read a record, and to apply it, finds out whose it is. Entries of one map
 * are put together, from the block as they lie. */

enum { ENTRIES = 64 }; /* of a run */

typedef struct entry_run {
    const pst_sst_view *v;
    const pst_sst_values *elements;
    const pst_sst_values *values;
    const pst_tree_shape *shape;
    pst_type key_type; /* as the file has it */
    pst_cell cells[ENTRIES];
    pst_tree_entry entries[ENTRIES];
} entry_run;

/* The k-th entry, from row `row` of the view and value `at`; 0 where a record of its own is needed
 * to say what it is. */
static int take_entry(entry_run *x, uint32_t k, uint32_t row, uint32_t at) {
    const int32_t *offsets = &x->elements->offsets[row];
    pst_bytes element = {x->elements->values + offsets[0], (uint32_t)(offsets[1] - offsets[0])};
    const uint8_t *key = element.data + PST_ELEMENT_ID;
    pst_tree_entry *e = &x->entries[k];
    pst_cell *cell = &x->cells[k];
    if (!pst_sst_has_value(x->values, at) || !pst_map_key_is_sound(x->key_type, element))
        return 0;
    e->time = 0;
    e->is_null = e->is_gone = 0;
    e->key_bytes = (pst_bytes){key, element.size - PST_ELEMENT_ID};
    if (!x->shape->key_is_ref) {
        e->key[0] = pst_get_big64(key);
        e->key[1] = x->shape->key_words == 2 ? pst_get_big64(key + 8) : 0;
    }
    if (x->values->shape == PST_SHAPE_WORD64) {
        e->value = pst_sst_words(x->values) + at;
        return 1;
    }
    pst_sst_value(x->values, at, cell);
    e->value = cell->word;
    e->value_bytes = cell->bytes;
    return !x->shape->value_is_ref || cell->bytes.size <= PST_MAX_BYTES;
}

/* Whether entries of the map are a key and a value that need no room of their own, and the record
 * is one of them. */
static int is_plain(const pst_table *t, const pst_record *record, int32_t column) {
    return record->op == PST_PUT && t->lay.fields[column].kind == PST_MAP &&
           t->lay.fields[column].type != PST_FIXED && !t->collections[column].map.timed &&
           !(record->changed & (record->changed - 1));
}

/* The record was read from `r` and applied to the row in `slot`, and is an entry of the table's map
 * `column`. Puts those behind it, of `more` that are of the same row and state, up to the first that
 * a record of its own is needed for, and moves the reader behind them. *taken counts them, also
 * where it is 0. What writing to a map says; PST_OK otherwise. */
static pst_status load_entries(pst_table *t, pst_sst_reader *r, const pst_record *record,
                               int32_t column, uint32_t slot, uint32_t more, uint32_t *taken) {
    entry_run x;
    *taken = 0;
    if (!is_plain(t, record, column))
        return PST_OK;
    x.v = pst_sst_reader_ahead(r).view;
    int32_t n_keys = x.v->schema->n_keys, state = __builtin_ctzll(record->changed);
    uint32_t row = x.v->row, n = 0;
    const uint8_t *kinds = x.v->row_kinds;
    x.elements = &x.v->columns[n_keys - 1];
    x.values = &x.v->columns[n_keys + state];
    x.shape = &t->collections[column].map;
    x.key_type = (pst_type)x.v->schema->states[state].map_key;
    for (; n < more && n < ENTRIES && (!kinds || kinds[row + n] == kinds[row - 1]); n++)
        if (!take_entry(&x, n, row + n, x.values->next + n))
            break;
    if (!n)
        return PST_OK;
    pst_status s = pst_row_map_append_run(t, slot, column, x.entries, n, more - n, taken);
    pst_sst_reader_pass(r, *taken);
    return s;
}

/* ---- rows by column -------------------------------------------------------------------------- */

/* The rows that are made before their values are put, a column at a time. */
enum { CHUNK = 64 };

/* Does any of these columns of the records have a value? */
static int any_value(const pst_stretch *part, uint64_t columns, uint32_t i) {
    for (uint64_t left = columns; left; left &= left - 1)
        if (pst_sst_has_value(
                &part->view->columns[part->view->schema->n_keys + __builtin_ctzll(left)], i))
            return 1;
    return 0;
}

static pst_status key_at(pst_table *t, const pst_stretch *part, uint32_t i, pst_key *key) {
    const pst_sst_values *c = &part->view->columns[0];
    key->hash = part->hash[i - part->first];
    if (t->lay.key_kind == PST_KEY_WORD && c->shape == PST_SHAPE_WORD64 && !c->validity) {
        key->word = pst_sst_words(c)[i];
        key->null = 0;
        return PST_OK;
    }
    pst_cell cells[PST_MAX_KEYS];
    uint32_t nulls;
    pst_sst_view_key(part->view, i, cells, &nulls);
    t->current_bytes.size = 0;
    pst_status s = pst_key_form(&t->schema, cells, nulls, &t->current_bytes, key);
    if (!s && pst_key_has_namespace(&t->schema))
        key->hash = pst_key_spread(key->hash, key->bytes, t->max_parallelism);
    return s;
}

/* The rows of keys i to i + n - 1, touched; made where a value is put. */
static pst_status make_rows(pst_table *t, const pst_stretch *part, const loading *m, uint32_t i,
                            uint32_t n, uint32_t *slots) {
    uint64_t values = part->view->kinds[0].changed & m->map.values;
    pst_status s = PST_OK;
    for (uint32_t k = 0; !s && k < n; k++) {
        pst_key key;
        slots[k] = PST_NONE;
        prefetch_ahead(t, m,
                       (pst_ahead){part->hash + (i + k - part->first),
                                   part->first + part->rows - i - k, NULL, part->view,
                                   i + k == part->first},
                       0);
        s = key_at(t, part, i + k, &key);
        if (!s && any_value(part, values, i + k))
            s = pst_row_make(t, &key, &slots[k]);
        else if (!s)
            slots[k] = pst_index_find(t, &key);
        if (!s && slots[k] != PST_NONE)
            pst_touch(t, slots[k], pst_row(t, slots[k]));
    }
    return s;
}

/* Puts the values of the records' column `from`. */
static pst_status put_column(pst_table *t, const pst_stretch *part, const loading *m, int32_t from,
                             uint32_t i, uint32_t n, const uint32_t *slots) {
    const pst_sst_values *c = &part->view->columns[part->view->schema->n_keys + from];
    int32_t column = m->map.columns ? m->map.columns[from] : from;
    const pst_field *f = &t->lay.fields[column];
    pst_status s = PST_OK;
    /* Such a value makes a row, so each slot is one. */
    if (f->kind == PST_VALUE && f->time < 0 && c->shape == PST_SHAPE_WORD64 && !c->validity) {
        for (uint32_t k = 0; k < n; k++) {
            uint64_t *row = pst_row(t, slots[k]);
            pst_put64(pst_field_at(&t->lay, row, column), pst_sst_words(c)[i + k]);
            pst_row_mark(t, row, column);
        }
        return PST_OK;
    }
    for (uint32_t k = 0; !s && k < n; k++) {
        pst_cell cell = {{0, 0}, {NULL, 0}};
        int present = pst_sst_has_value(c, i + k);
        if (slots[k] == PST_NONE)
            continue;
        if (present)
            pst_sst_value(c, i + k, &cell);
        s = pst_apply_column(t, slots[k], column, &cell, present, m->map.here);
    }
    return s;
}

static pst_status apply_stretch(pst_table *t, const pst_stretch *part, const loading *m,
                                uint64_t *rows) {
    uint32_t slots[CHUNK], end = part->first + part->rows;
    t->current.generation = 0; /* its buffer serves as scratch */
    for (uint32_t i = part->first; i < end; i += CHUNK) {
        uint32_t n = end - i < CHUNK ? end - i : CHUNK;
        pst_status s = pst_undo_reserve(t, n);
        for (uint32_t k = 0; !s && k < n; k++)
            s = pst_check_group(t, part->hash[i + k - part->first]);
        if (s)
            return s;
        s = make_rows(t, part, m, i, n, slots);
        for (uint64_t left = part->view->kinds[0].changed & m->map.taken; !s && left;
             left &= left - 1)
            s = put_column(t, part, m, __builtin_ctzll(left), i, n, slots);
        if (s)
            return pst_poison(t, s);
        *rows += n;
    }
    return PST_OK;
}

/* Puts entries of the record's map that follow it. */
static pst_status apply_followers(pst_table *t, pst_sst_reader *r, const pst_record *record,
                                  const loading *m, uint32_t slot, uint32_t more,
                                  uint32_t *passed) {
    int32_t from = record->changed ? __builtin_ctzll(record->changed) : m->map.n;
    int32_t column = from < m->map.n ? (m->map.columns ? m->map.columns[from] : from) : -1;
    pst_bytes element = record->key[t->schema.n_keys].bytes;
    *passed = 0;
    if (column < 0 || t->lay.fields[column].kind != PST_MAP ||
        t->collections[column].id != (uint32_t)pst_get_big(element.data, PST_ELEMENT_ID) ||
        pst_dropped_has(&m->dropped, element))
        return PST_OK;
    return pst_poison(t, load_entries(t, r, record, column, slot, more, passed));
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Makes an index of the right size from the start, and gives an empty table its memory in one
 * piece: step by step it would come in small pages first. Memory that is refused here may not be
 * needed either. */
static pst_status expect(pst_table *t, const pst_sst_reader *r, int all_new) {
    pst_status s = PST_OK;
    uint64_t all = 0;
    for (int32_t g = t->first_key_group; all_new && g <= t->last_key_group; g++)
        all += pst_sst_reader_estimate(r, g);
    if (all) {
        uint64_t index = t->m->heap_top * PST_GRANULE + all * PST_ENTRY_SHARE;
        (void)pst_arena_commit(&t->arena, PST_SPACE_ROWS, all * t->lay.row_size);
        (void)pst_arena_commit(&t->arena, PST_SPACE_HEAP, index);
    }
    for (int32_t g = t->first_key_group; !s && g <= t->last_key_group; g++) {
        uint64_t rows = pst_sst_reader_estimate(r, g);
        if (rows)
            s = pst_index_expect(t, g, rows);
    }
    return s;
}

/* Whether nearly all that the file has will be lists, maps and timers of the table: not the values of
 * rows, and not keys of many bytes, which each record repeats. */
static int is_of_elements(const pst_table *t, const pst_schema *from, const loading *m) {
    if (t->lay.key_kind != PST_KEY_WORD)
        return 0;
    for (int32_t i = 0; i < from->n_states; i++) {
        int32_t column = m->map.columns ? m->map.columns[i] : i;
        if (!(m->map.taken >> i & 1) || t->lay.fields[column].kind == PST_VALUE)
            return 0;
    }
    return 1;
}

/* Such elements take more of the heap than half of their bytes in the file, so an empty table is
 * given that in one piece. How many rows they make, the file does not say. */
static void expect_elements(pst_table *t, const pst_sst_reader *r, const loading *m) {
    const pst_file_info *info = pst_sst_reader_info(r);
    uint64_t all = 0;
    if (t->m->slots || !info->rows || info->tombstones ||
        !is_of_elements(t, pst_sst_reader_schema(r), m))
        return;
    for (int32_t g = t->first_key_group; g <= t->last_key_group; g++)
        all += pst_sst_reader_estimate(r, g);
    uint64_t bytes = info->raw_bytes / info->rows * all / 2;
    (void)pst_arena_commit(&t->arena, PST_SPACE_HEAP, t->m->heap_top * PST_GRANULE + bytes);
}

/* Applies what the reader has. */
static pst_status apply_file(pst_table *t, pst_sst_reader *r, loading *m, pst_record *record,
                             uint64_t *rows) {
    int has_element = pst_schema_has_element(pst_sst_reader_schema(r));
    uint32_t slot = PST_NONE, more = 0, passed = 0;
    pst_status s = PST_OK;
    for (pst_stretch part = {0}; !s; part.rows = 0) {
        if (!m->here)
            s = pst_sst_reader_stretch(r, &part);
        if (!s && part.rows) {
            s = apply_stretch(t, &part, m, rows);
            continue;
        }
        if (!s)
            s = pst_sst_reader_next(r, record);
        if (s)
            break;
        pst_ahead ahead = pst_sst_reader_ahead(r);
        prefetch_ahead(t, m, ahead, passed);
        passed = 0;
        more = more ? more - 1 : followers(&ahead);
        s = apply_row(t, record, m, has_element, more, &slot);
        *rows += !s;
        if (!s && more && slot != PST_NONE)
            s = apply_followers(t, r, record, m, slot, more, &passed);
        *rows += passed;
        more -= passed;
    }
    return s;
}

static pst_status load(pst_table *t, pst_sst_reader *r, loading *m, int32_t n_columns,
                       uint64_t *rows) {
    const pst_schema *from = pst_sst_reader_schema(r);
    pst_status s = check_schema(t, from, m);
    if (s)
        return s;
    pst_record *record = pst_malloc(sizeof *record);
    if (!record)
        return PST_NO_MEMORY;
    t->arena.refused = 0;
    t->applied = PST_NONE;
    uint64_t n = 0;
    int has_element = pst_schema_has_element(from);
    m->foreseen = !pst_key_has_namespace(&t->schema);
    pst_dropped_note(&m->dropped, from, m->map.columns, n_columns);
    m->all_new = !has_element && !t->m->slots;
    if (!m->here && has_element)
        expect_elements(t, r, m);
    else if (!m->here)
        s = expect(t, r, m->all_new);
    if (!s)
        s = apply_file(t, r, m, record, &n);
    pst_free(record);
    /* A file that ends in an error has been applied in part. */
    if (s != PST_NOT_FOUND)
        return n ? pst_poison(t, s) : s;
    if (rows)
        *rows = n;
    return PST_OK;
}

pst_status pst_table_load(pst_table *t, pst_sst_reader *r, const int32_t *columns,
                          int32_t n_columns, uint64_t *rows) {
    loading m = {.all_new = 0};
    if (!t->attached || !pst_mapping_make(t, columns, n_columns, &m.map))
        return PST_INVALID;
    if (t->poisoned)
        return PST_POISONED;
    if (!pst_table_is_whole(t))
        return PST_NOT_HERE;
    return load(t, r, &m, n_columns, rows);
}

/* Has it lists whose items expire? A merge may have left out all of one, which then begins at 0 once
 * more for whoever reads it, but not in a row that was here before. */
static int has_timed_lists(const pst_table *t) {
    for (int32_t i = 0; i < t->lay.n_states; i++)
        if (t->lay.fields[i].kind == PST_LIST && t->lay.fields[i].time >= 0)
            return 1;
    return 0;
}

pst_status pst_table_refresh(pst_table *t, pst_sst_reader *r, uint64_t *rows) {
    loading m = {.here = 1};
    if (!t->attached || !pst_mapping_make(t, NULL, t->lay.n_states, &m.map) ||
        pst_table_is_whole(t) || has_timed_lists(t))
        return PST_INVALID;
    if (t->poisoned)
        return PST_POISONED;
    /* What has no time in the file has none in a row that is admitted from it. */
    pst_clock clock = t->clock;
    t->clock = (pst_clock){PST_NO_TIME, PST_NO_TIME, PST_NO_TIME};
    pst_status s = load(t, r, &m, t->lay.n_states, rows);
    t->clock = clock;
    return s;
}
