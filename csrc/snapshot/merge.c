#include <string.h>

#include "base/coding.h"
#include "base/mem.h"
#include "file/sst_writer.h"
#include "key/hash.h"
#include "key/key.h"
#include "key/schema.h"
#include "list/list.h"
#include "pystate.h"
#include "snapshot/expiry.h"
#include "snapshot/merge.h"

/* Invariants:
 *  1. Sources are numbered oldest first. The heap orders by (key group, hash, key, source), so
 *     the records of one key come out together and in the order in which they were written.
 *  2. A source's record stays as it is until all records of its key are folded and written, so
 *     folding moves cells, never bytes.
 *  3. A row's record comes before those of its elements, and a source without the element column
 *     has rows only. What a source's row record voids (the whole row, or a list or map) hides the
 *     elements of older sources, never its own. Timers do not belong to the row: each has records
 *     of its own until it is gone. Elements of a state that is dropped from a source do not count:
 *     under that name there may be another state now. Where the sink has no element column all are
 *     dropped, and rows remain.
 *  4. What a key was before the oldest record counts only where no tombstone hides it. A put after
 *     a tombstone is written with every column: those that it does not carry are null. A key that
 *     is left without any value is written as a tombstone, which means the same. */
/* What the records of a row say of its elements. */
typedef struct row_state {
    int known;
    pst_key key;
    pst_buffer bytes;
    int32_t deleted_by;                /* the newest source that deleted the row, or -1 */
    int32_t voided_by[PST_MAX_STATES]; /* likewise a list or map */
    uint64_t starts_at[PST_MAX_STATES];
    int32_t marked_by; /* the newest source that voided anything, or -1 */
    int starts;        /* some list does not begin with its first item */
} row_state;

typedef struct merge {
    const pst_sink *sink;
    const pst_schema *schema; /* the sink's */
    const pst_file_info *info;
    uint64_t all; /* a bit per state column */
    pst_source *sources;
    int32_t *heap; /* sources with a record, the least first */
    int32_t n_heap;
    int32_t *group;   /* sources of the key at hand */
    int32_t *visible; /* those of them that count */
    pst_record *folded;
    int has_element;
    uint64_t elements;            /* a bit per list or map column */
    uint32_t ids[PST_MAX_STATES]; /* by which elements name it */
    row_state row;                /* of the row whose elements follow */
    pst_buffer scratch;
} merge;

/* Records in memory are as the sink's. */
static void trust_source(const merge *m, pst_source *s) {
    s->taken = m->all;
    for (int32_t i = 0; i < m->schema->n_states; i++)
        s->at[i] = i;
}

static pst_status check_source(const merge *m, pst_source *s) {
    const pst_schema *from = pst_sst_reader_schema(s->reader);
    s->rows_only = m->has_element && !pst_schema_has_element(from);
    s->drops_elements = !m->has_element && pst_schema_has_element(from);
    if (from->n_keys + s->rows_only != m->schema->n_keys + s->drops_elements ||
        pst_schema_hashed(from) != pst_schema_hashed(m->schema))
        return PST_SCHEMA;
    int32_t groups = pst_sst_reader_info(s->reader)->max_parallelism;
    if (m->info->max_parallelism % groups)
        return PST_SCHEMA;
    s->splits = groups != m->info->max_parallelism;
    for (int32_t i = 0; i < from->n_keys - s->drops_elements; i++)
        if (!pst_column_same_type(&from->keys[i], &m->schema->keys[i]))
            return PST_SCHEMA;
    if (!s->columns && from->n_states != m->schema->n_states)
        return PST_SCHEMA;
    uint64_t taken = 0;
    memset(s->at, 0xFF, sizeof s->at);
    for (int32_t i = 0; i < from->n_states; i++) {
        int32_t to = s->columns ? s->columns[i] : i;
        if (to < 0)
            continue;
        if (to >= m->schema->n_states || (taken >> to) & 1)
            return PST_INVALID;
        taken |= UINT64_C(1) << to;
        s->at[to] = i;
        if (!pst_column_same_type(&from->states[i], &m->schema->states[to]))
            return PST_SCHEMA;
        if (!s->columns && strcmp(from->states[i].name, m->schema->states[i].name) != 0)
            return PST_SCHEMA;
        if (from->states[i].kind == PST_TIME && !pst_time_follows(s->columns, i))
            return PST_SCHEMA;
    }
    s->taken = taken;
    for (int32_t to = 1; to < m->schema->n_states; to++)
        if (m->schema->states[to].kind == PST_TIME && s->at[to] < 0 && s->at[to - 1] >= 0)
            s->timeless = 1;
    pst_dropped_note(&s->dropped, from, s->columns, from->n_states);
    return PST_OK;
}

static int same_key(const merge *m, const pst_record *a, const pst_record *b) {
    return a->hash == b->hash && pst_key_compare(m->schema->keys, m->schema->n_keys, a->key,
                                                 a->key_nulls, b->key, b->key_nulls) == 0;
}

static int less(const merge *m, int32_t x, int32_t y) {
    const pst_record *a = m->sources[x].record, *b = m->sources[y].record;
    if (a->key_group != b->key_group)
        return a->key_group < b->key_group;
    if (a->hash != b->hash)
        return a->hash < b->hash;
    int order = pst_key_compare(m->schema->keys, m->schema->n_keys, a->key, a->key_nulls, b->key,
                                b->key_nulls);
    return order ? order < 0 : x < y;
}

static void sift_down(merge *m, int32_t at) {
    int32_t moving = m->heap[at];
    for (;;) {
        int32_t child = 2 * at + 1;
        if (child >= m->n_heap)
            break;
        if (child + 1 < m->n_heap && less(m, m->heap[child + 1], m->heap[child]))
            child++;
        if (!less(m, m->heap[child], moving))
            break;
        m->heap[at] = m->heap[child];
        at = child;
    }
    m->heap[at] = moving;
}

static void push(merge *m, int32_t s) {
    int32_t at = m->n_heap++;
    for (; at > 0 && less(m, s, m->heap[(at - 1) / 2]); at = (at - 1) / 2)
        m->heap[at] = m->heap[(at - 1) / 2];
    m->heap[at] = s;
}

static int32_t pop(merge *m) {
    int32_t top = m->heap[0];
    m->heap[0] = m->heap[--m->n_heap];
    if (m->n_heap > 0)
        sift_down(m, 0);
    return top;
}

static int is_element(const merge *m, const pst_record *r) {
    return m->has_element && !(r->key_nulls >> (m->schema->n_keys - 1) & 1);
}

/* The bit of a column's time, where the source has none because the state had no time to live then.
 * The value gets neither the time of an older value nor that of a cleared one. */
static uint64_t unknown_time(const merge *m, const pst_source *s, int32_t column) {
    const pst_column *c = &m->schema->states[column];
    if (column + 1 == m->schema->n_states || c[1].kind != PST_TIME ||
        (c->kind != PST_VALUE && !is_element(m, s->record)))
        return 0;
    return ~s->taken & UINT64_C(1) << (column + 1);
}

/* Applies one put to what the key is so far. */
static void fold_put(merge *m, const pst_source *s, pst_record *to) {
    const pst_record *from = s->record;
    if (to->op == PST_DELETE) {
        to->op = PST_PUT;
        to->changed = is_element(m, from) ? 0 : m->all;
        to->present = 0;
    }
    for (uint64_t bits = from->changed; bits; bits &= bits - 1) {
        int i = __builtin_ctzll(bits);
        int32_t column = s->columns ? s->columns[i] : i;
        if (column < 0)
            continue;
        uint64_t bit = UINT64_C(1) << column;
        if (m->elements & to->changed & ~to->present & bit && !is_element(m, from))
            continue; /* a list that is void and then begins later is void all the same */
        uint64_t unknown = unknown_time(m, s, column);
        to->changed |= bit | unknown;
        to->present &= ~(bit | unknown);
        if ((from->present >> i) & 1) {
            to->present |= bit;
            to->cells[column] = from->cells[i];
        }
    }
}

/* Folds the records of one key, oldest first, into m->folded. */
static const pst_record *fold(merge *m, const int32_t *group, int32_t n) {
    const pst_record *first = m->sources[group[0]].record;
    if (n == 1 && !m->sources[group[0]].columns)
        return first;
    pst_record *to = m->folded;
    to->hash = first->hash;
    to->key_group = first->key_group;
    to->key_nulls = first->key_nulls;
    memcpy(to->key, first->key, (size_t)m->schema->n_keys * sizeof *to->key);
    to->op = PST_PUT;
    to->changed = to->present = 0;
    for (int32_t i = 0; i < n; i++) {
        const pst_source *s = &m->sources[group[i]];
        if (s->record->op == PST_DELETE) {
            to->op = PST_DELETE;
            to->changed = to->present = 0;
        } else {
            fold_put(m, s, to);
        }
    }
    if (m->all && to->op == PST_PUT && to->changed == m->all && to->present == 0 &&
        !is_element(m, to)) {
        to->op = PST_DELETE;
        to->changed = 0;
    }
    return to;
}

static pst_status pass_on(merge *m, const pst_record *r, uint64_t start) {
    if (m->info->kind == PST_BASE && r->op == PST_PUT && (r->changed & m->elements) &&
        !is_element(m, r)) {
        /* A base holds all there is: nothing older needs to be made void. */
        if (r != m->folded)
            *m->folded = *r;
        m->folded->changed &= ~m->elements;
        r = m->folded;
    }
    /* An entry may have no value. */
    if (m->info->kind == PST_BASE &&
        (r->op == PST_DELETE || (m->all && (r->changed & r->present) == 0 && !is_element(m, r))))
        return PST_OK;
    if (m->all && r->op == PST_PUT && r->changed == 0)
        return PST_OK; /* all that it carried was dropped */
    return m->sink->add(m->sink->ctx, r, start);
}

/* ---- rows and their elements ----------------------------------------------------------------- */

/* Makes m->row the state of the record's row, anew if it was another row's. */
static pst_status enter_row(merge *m, const pst_record *r) {
    pst_schema rows = *m->schema;
    pst_key key = {.hash = r->hash};
    row_state *row = &m->row;
    rows.n_keys--;
    m->scratch.size = 0;
    pst_status s = pst_key_form(&rows, r->key, r->key_nulls & ((UINT32_C(1) << rows.n_keys) - 1),
                                &m->scratch, &key);
    if (s || (row->known && pst_key_same_form(&row->key, &key)))
        return s;
    row->known = 1;
    row->deleted_by = row->marked_by = -1;
    row->starts = 0;
    memset(row->voided_by, 0xFF, sizeof row->voided_by);
    memset(row->starts_at, 0, sizeof row->starts_at);
    s = pst_buffer_reserve(&row->bytes, key.bytes.size);
    if (s)
        return s;
    if (key.bytes.size)
        key.bytes.data = memcpy(row->bytes.data, key.bytes.data, key.bytes.size);
    row->key = key;
    return PST_OK;
}

static void note_row(merge *m, int32_t at) {
    const pst_source *s = &m->sources[at];
    const pst_record *r = s->record;
    row_state *row = &m->row;
    if (r->op == PST_DELETE) {
        row->deleted_by = row->marked_by = at;
        memset(row->starts_at, 0, sizeof row->starts_at);
    }
    for (uint64_t left = r->op == PST_PUT ? r->changed : 0; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        int32_t column = s->columns ? s->columns[i] : i;
        if (column < 0 || !(m->elements >> column & 1))
            continue;
        if (!(r->present >> i & 1)) {
            row->voided_by[column] = row->marked_by = at;
            row->starts_at[column] = 0;
        } else if (r->cells[i].bytes.size == 8) {
            memcpy(&row->starts_at[column], r->cells[i].bytes.data, 8);
            row->starts = 1;
        }
    }
}

static pst_bytes element_of(const merge *m, const pst_record *r) {
    return r->key[m->schema->n_keys - 1].bytes;
}

/* The id of an element's state. */
static uint32_t id_of(const merge *m, const pst_record *r) {
    pst_bytes element = element_of(m, r);
    return element.size < 4 ? PST_TIMERS_ID : (uint32_t)pst_get_big(element.data, 4);
}

/* The list or map column of that name, or -1. */
static int32_t column_of(const merge *m, uint32_t id) {
    for (uint64_t left = m->elements; left; left &= left - 1) {
        int32_t i = __builtin_ctzll(left);
        if (m->ids[i] == id)
            return i;
    }
    return -1;
}

/* Is it a run of a list all of whose items lie before the list's present start? */
static int is_trimmed(const merge *m, int32_t column, const pst_source *s) {
    const pst_record *r = s->record;
    const pst_column *c = &m->schema->states[column];
    pst_bytes element = element_of(m, r);
    uint64_t start = m->row.starts_at[column], count = 0;
    if (!start || c->kind != PST_LIST || r->op != PST_PUT || element.size != 12)
        return 0;
    pst_type type = (pst_type)c->map_key;
    pst_list_shape shape = {(uint16_t)(type == PST_FIXED ? c->width : pst_type_width(type)), 0};
    pst_packed p;
    pst_item item;
    /* Of a sound element the first column that it carries is its state's (record.h). */
    if (!r->present ||
        pst_packed_open(&p, &shape, r->cells[__builtin_ctzll(r->present)].bytes) != PST_OK)
        return 0;
    while (pst_packed_next(&p, &item) == PST_OK)
        count++;
    return pst_get_big(element.data + 4, 8) + count <= start;
}

/* Keeps those of the group's sources whose elements are still there; `column` is their state's. */
static int32_t keep_visible(merge *m, int32_t n, uint32_t id, int32_t column) {
    int32_t kept = 0;
    int32_t from = id == PST_TIMERS_ID ? -1 : m->row.deleted_by;
    if (column >= 0 && m->row.voided_by[column] > from)
        from = m->row.voided_by[column];
    for (int32_t i = 0; i < n; i++) {
        int32_t at = m->group[i];
        const pst_source *s = &m->sources[at];
        if (at >= from && !pst_dropped_has(&s->dropped, element_of(m, s->record)) &&
            !(column >= 0 && is_trimmed(m, column, s)))
            m->visible[kept++] = at;
    }
    return kept;
}

static pst_status write_group(merge *m, int32_t n) {
    const pst_record *first = m->sources[m->group[0]].record;
    if (!m->has_element)
        return pass_on(m, fold(m, m->group, n), 0);
    pst_status s = enter_row(m, first);
    if (s)
        return s;
    if (!is_element(m, first)) {
        for (int32_t i = 0; i < n; i++)
            note_row(m, m->group[i]);
        return pass_on(m, fold(m, m->group, n), 0);
    }
    uint32_t id = id_of(m, first);
    int32_t column = column_of(m, id);
    n = keep_visible(m, n, id, column);
    return n ? pass_on(m, fold(m, m->visible, n), column < 0 ? 0 : m->row.starts_at[column])
             : PST_OK;
}

/* Gives a record of a file with fewer key groups its own; 0: it is outside the sink's range. */
static int regroup(const merge *m, pst_record *r) {
    r->key_group = pst_key_group(r->hash, m->info->max_parallelism);
    return r->key_group >= m->info->first_key_group && r->key_group <= m->info->last_key_group;
}

/* Whether the sink has no such records: all elements, of a source that drops them. */
static int is_outside(const merge *m, const pst_source *from) {
    uint32_t row = UINT32_C(1) << m->schema->n_keys;
    if (from->drops_elements) {
        if (!(from->record->key_nulls & row))
            return 1;
        from->record->key_nulls &= ~row;
    }
    return from->splits && !regroup(m, from->record);
}

static pst_status advance(merge *m, int32_t s) {
    const pst_source *from = &m->sources[s];
    pst_status status;
    do {
        status = from->reader ? pst_sst_reader_next(from->reader, from->record)
                              : from->records.next(from->records.ctx, from->record);
    } while (!status && is_outside(m, from));
    if (status == PST_NOT_FOUND)
        return PST_OK;
    if (!status) {
        if (m->sources[s].rows_only)
            m->sources[s].record->key_nulls |= UINT32_C(1) << (m->schema->n_keys - 1);
        push(m, s);
    }
    return status;
}

/* Key group g of a file with n of them becomes g, n + g, 2 n + g, ... So a range of the sink's has
 * the order of the file as long as it meets no multiple of n but at its beginning. */
static pst_status seek(const merge *m, const pst_source *s) {
    int32_t groups = pst_sst_reader_info(s->reader)->max_parallelism;
    int32_t first = m->info->first_key_group, last = m->info->last_key_group;
    if (first / groups != last / groups)
        return PST_INVALID;
    pst_status status = pst_sst_reader_seek(s->reader, first % groups, last % groups);
    if (!status)
        pst_sst_reader_narrow(s->reader, m->sink->first_hash, m->sink->last_hash);
    return status;
}

/* Lets the sink take the source's next rows at once: most rows of a base, where its deltas changed
 * few. */
static pst_status pass_stretch(merge *m, int32_t at) {
    const pst_source *s = &m->sources[at];
    const pst_record *next = m->n_heap ? m->sources[m->heap[0]].record : NULL;
    if (s->splits || s->drops_elements || !s->reader)
        return PST_OK;
    if (m->has_element && (m->row.starts || m->row.marked_by > at)) {
        /* What hides elements of the row is known here alone. */
        pst_ahead ahead = pst_sst_reader_ahead(s->reader);
        if (ahead.rows > 1 && ahead.hash[1] == ahead.hash[0])
            return PST_OK;
    }
    return m->sink->stretch(m->sink->ctx, s, next);
}

static pst_status run(merge *m, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        pst_status s = m->sources[i].reader ? seek(m, &m->sources[i]) : PST_OK;
        if (!s)
            s = advance(m, i);
        if (s)
            return s;
    }
    while (m->n_heap > 0) {
        int32_t size = 0;
        m->group[size++] = pop(m);
        const pst_record *first = m->sources[m->group[0]].record;
        while (m->n_heap > 0 && same_key(m, first, m->sources[m->heap[0]].record))
            m->group[size++] = pop(m);
        pst_status s = write_group(m, size);
        if (!s && size == 1)
            s = pass_stretch(m, m->group[0]);
        for (int32_t i = 0; i < size && !s; i++)
            s = advance(m, m->group[i]);
        if (s)
            return s;
    }
    return PST_OK;
}

/* Of readers or of records, one of which is NULL. */
static pst_status merge_sources(pst_sst_reader *const *readers, const int32_t *const *columns,
                                const pst_records *sources, int32_t n, const pst_sink *sink) {
    merge m = {.sink = sink, .schema = sink->schema, .info = sink->info};
    m.all = m.schema->n_states < 64 ? (UINT64_C(1) << m.schema->n_states) - 1 : ~UINT64_C(0);
    m.has_element = pst_schema_has_element(m.schema);
    for (int32_t i = 0; m.has_element && i < m.schema->n_states; i++) {
        const pst_column *c = &m.schema->states[i];
        if (c->kind != PST_LIST && c->kind != PST_MAP)
            continue;
        m.elements |= UINT64_C(1) << i;
        m.ids[i] = pst_collection_id(c->name);
    }
    size_t count = (size_t)n;
    pst_record *records = pst_malloc((count + 1) * sizeof *records);
    m.sources = pst_malloc(count * sizeof *m.sources);
    m.heap = pst_malloc(3 * count * sizeof *m.heap);
    pst_status s = records && m.sources && m.heap ? PST_OK : PST_NO_MEMORY;
    if (!s) {
        m.group = m.heap + count;
        m.visible = m.group + count;
        m.folded = &records[count];
        for (int32_t i = 0; i < n && !s; i++) {
            m.sources[i] =
                (pst_source){.columns = columns ? columns[i] : NULL, .record = &records[i]};
            if (sources)
                m.sources[i].records = sources[i];
            else
                m.sources[i].reader = readers[i];
            if (sources)
                trust_source(&m, &m.sources[i]);
            else
                s = check_source(&m, &m.sources[i]);
        }
    }
    if (!s)
        s = run(&m, n);
    pst_free(records);
    pst_free(m.sources);
    pst_free(m.heap);
    pst_free(m.scratch.data);
    pst_free(m.row.bytes.data);
    return s;
}

pst_status pst_merge_into(pst_sst_reader *const *readers, const int32_t *const *columns, int32_t n,
                          const pst_sink *sink) {
    return n < 0 ? PST_INVALID : merge_sources(readers, columns, NULL, n, sink);
}

pst_status pst_merge_records(const pst_records *sources, int32_t n, const pst_sink *sink) {
    return merge_sources(NULL, NULL, sources, n, sink);
}

/* ---- into a file ----------------------------------------------------------------------------- */

typedef struct file_sink {
    pst_sst_writer *writer;
    pst_expirer expirer;
    pst_record seen;  /* a record without what has expired, and with the times that it lacked */
    uint64_t stamped; /* a bit per column whose values get a time where they have none */
    pst_buffer run;
} file_sink;

static int64_t stamp_of(const file_sink *f, int32_t column) {
    return pst_ttl_stamp_at(&f->expirer.ttl[column], &f->expirer.clock);
}

/* Gives a time to a value or an entry that has none. */
static void stamp_value(file_sink *f, const pst_record **record, int32_t i) {
    const pst_record *r = *record;
    uint64_t time = UINT64_C(2) << i;
    if (!(f->stamped >> i & 1) || pst_expirer_time(r, i) != PST_NO_TIME)
        return;
    if (r != &f->seen)
        f->seen = *r;
    f->seen.changed |= time;
    f->seen.present |= time;
    f->seen.cells[i + 1].word[0] = (uint64_t)stamp_of(f, i);
    *record = &f->seen;
}

/* Do all items of a run have a time? */
static pst_status is_timed(const pst_list_shape *shape, pst_bytes run, int *timed) {
    pst_packed p;
    pst_item item;
    pst_status s = pst_packed_open(&p, shape, run);
    *timed = !s && p.timed;
    while (!s && *timed && (s = pst_packed_next(&p, &item)) == PST_OK)
        *timed = item.time != PST_NO_TIME;
    return s == PST_NOT_FOUND ? PST_OK : s;
}

/* Gives the items of a list's run a time where they have none. */
static pst_status stamp_run(file_sink *f, const pst_record **record, int32_t i) {
    const pst_record *r = *record;
    const pst_column *c = &f->expirer.schema->states[i];
    pst_type type = (pst_type)c->map_key;
    pst_list_shape shape = {(uint16_t)(type == PST_FIXED ? c->width : pst_type_width(type)), 1};
    pst_packed p;
    pst_item item = {0};
    uint64_t time = 0;
    uint8_t head = pst_packed_head(1, shape.width);
    int timed = 1;
    pst_status s = PST_OK;
    if (f->stamped >> i & 1)
        s = is_timed(&shape, r->cells[i].bytes, &timed);
    if (s || timed)
        return s;
    s = pst_packed_open(&p, &shape, r->cells[i].bytes);
    f->run.size = 0;
    if (s)
        return s;
    s = pst_buffer_reserve(&f->run, 1);
    if (s)
        return s;
    f->run.data[f->run.size++] = head;
    while (!s && (s = pst_packed_next(&p, &item)) == PST_OK) {
        if (!p.timed || item.time == PST_NO_TIME)
            item.time = stamp_of(f, i);
        s = pst_buffer_reserve(&f->run, f->run.size + item.size + (size_t)2 * PST_VARINT_MAX);
        if (!s)
            f->run.size += pst_packed_add(f->run.data + f->run.size, head, &time, &item);
    }
    if (s != PST_NOT_FOUND)
        return s;
    f->seen = *r;
    f->seen.cells[i].bytes = (pst_bytes){f->run.data, (uint32_t)f->run.size};
    *record = &f->seen;
    return PST_OK;
}

/* *record: NULL where nothing of it is left. */
static pst_status leave_expired(file_sink *f, const pst_record **record) {
    const pst_record *r = *record;
    int gone = 0;
    if (f->expirer.has_element && !(r->key_nulls >> (f->expirer.schema->n_keys - 1) & 1)) {
        pst_status s = pst_expirer_element(&f->expirer, r, &gone);
        if (gone)
            *record = NULL;
        if (s || gone || r->op != PST_PUT || !r->changed)
            return s;
        int32_t i = __builtin_ctzll(r->changed);
        if (f->expirer.schema->states[i].kind == PST_LIST)
            return stamp_run(f, record, i);
        stamp_value(f, record, i);
        return PST_OK;
    }
    uint64_t hidden = pst_expirer_row(&f->expirer, r);
    if (hidden) {
        f->seen = *r;
        f->seen.changed &= ~hidden;
        *record = f->seen.changed & f->seen.present ? &f->seen : NULL;
    }
    uint64_t values = *record ? (*record)->changed & (*record)->present & f->stamped : 0;
    for (; values; values &= values - 1) {
        int32_t i = __builtin_ctzll(values);
        if (f->expirer.schema->states[i].kind == PST_VALUE)
            stamp_value(f, record, i);
    }
    return PST_OK;
}

static pst_status write_record(void *ctx, const pst_record *r, uint64_t start) {
    file_sink *f = ctx;
    (void)start; /* of a run that begins before, a file has all */
    pst_status s = f->expirer.columns ? leave_expired(f, &r) : PST_OK;
    return s || !r ? s : pst_sst_writer_add(f->writer, r);
}

/* How many rows of a stretch come before the first of which something has expired, or lacks a
 * time. */
static uint32_t rows_seen(const file_sink *f, const pst_source *s, const pst_stretch *part,
                          uint64_t changed) {
    const pst_expirer *x = &f->expirer;
    const uint64_t *times[PST_MAX_STATES];
    int32_t of[PST_MAX_STATES], n = 0;
    uint32_t rows = 0;
    for (uint64_t left = changed & x->columns; left; left &= left - 1) {
        int32_t to = __builtin_ctzll(left);
        if (x->schema->states[to].kind == PST_LIST)
            return 0;
        if (!(changed >> (to + 1) & 1) && f->stamped >> to & 1)
            return 0;
        if (!(changed >> (to + 1) & 1))
            continue;
        const pst_sst_view *v = part->view;
        const pst_sst_values *c = &v->columns[v->schema->n_keys + s->at[to + 1]];
        times[n] = pst_sst_words(c) + c->next;
        of[n++] = to;
    }
    for (; rows < part->rows; rows++)
        for (int32_t k = 0; k < n; k++) {
            int64_t time = (int64_t)times[k][rows];
            if (pst_expirer_hides(x, of[k], time) ||
                (time == PST_NO_TIME && f->stamped >> of[k] & 1))
                return rows;
        }
    return rows;
}

enum { LEAST_STRETCH = 2 };

/* A row that has values in none of its columns, or in a base a null, is left to fold, as is one whose
 * time is not known, and one of which something has expired. */
static pst_status write_stretch(void *ctx, const pst_source *s, const pst_record *next) {
    file_sink *f = ctx;
    pst_stretch part;
    const pst_schema *schema = pst_sst_writer_schema(f->writer);
    uint64_t changed = 0, nulls = 0;
    if (s->timeless || s->rows_only)
        return PST_OK;
    const pst_sst_view *v = pst_sst_reader_stretch_columns(s->reader);
    if (!v)
        return PST_OK;
    for (uint64_t left = v->kinds[0].changed; left; left &= left - 1) {
        int32_t i = __builtin_ctzll(left), to = pst_source_column(s, i);
        uint64_t bit = to < 0 ? 0 : UINT64_C(1) << to;
        changed |= bit;
        nulls |= v->columns[v->schema->n_keys + i].validity ? bit : 0;
    }
    if (nulls == changed || (nulls && pst_sst_writer_info(f->writer)->kind == PST_BASE))
        return PST_OK;
    pst_sst_reader_stretch_before(s->reader, next ? next->key_group : INT32_MAX,
                                  next ? next->hash : 0, LEAST_STRETCH, &part);
    if (part.rows && changed & f->expirer.columns)
        part.rows = rows_seen(f, s, &part, changed);
    if (part.rows < LEAST_STRETCH)
        return PST_OK;
    int32_t at[PST_MAX_STATES];
    for (int32_t to = 0; to < schema->n_states; to++)
        at[to] = changed >> to & 1 ? s->at[to] : -1;
    pst_sst_reader_skip(s->reader, part.rows);
    return pst_sst_writer_add_stretch(f->writer, &part, at, changed);
}

static pst_status merge_files(pst_sst_reader *const *readers, const int32_t *const *columns,
                              int32_t n, const pst_expiry *expiry, pst_sst_writer *writer) {
    const pst_schema *schema = pst_sst_writer_schema(writer);
    file_sink *f = pst_malloc(sizeof *f);
    if (!f)
        return PST_NO_MEMORY;
    f->writer = writer;
    f->run = (pst_buffer){0};
    pst_status s = pst_expirer_init(&f->expirer, schema, expiry);
    if (!s) {
        f->stamped = 0;
        for (uint64_t left = f->expirer.columns; left; left &= left - 1) {
            int32_t i = __builtin_ctzll(left);
            f->stamped |= stamp_of(f, i) == PST_NO_TIME ? 0 : UINT64_C(1) << i;
        }
        pst_sink sink = {.ctx = f,
                         .schema = schema,
                         .info = pst_sst_writer_info(writer),
                         .last_hash = UINT64_MAX,
                         .add = write_record,
                         .stretch = write_stretch};
        s = pst_merge_into(readers, columns, n, &sink);
    }
    pst_expirer_free(&f->expirer);
    pst_free(f->run.data);
    pst_free(f);
    return s;
}

pst_status pst_merge(pst_sst_reader *const *readers, const int32_t *const *columns, int32_t n,
                     pst_sst_writer *writer) {
    return merge_files(readers, columns, n, NULL, writer);
}

pst_status pst_merge_expiring(pst_sst_reader *const *readers, const int32_t *const *columns,
                              int32_t n, const pst_expiry *expiry, pst_sst_writer *writer) {
    if (pst_sst_writer_info(writer)->kind != PST_BASE)
        return PST_INVALID;
    return merge_files(readers, columns, n, expiry, writer);
}
