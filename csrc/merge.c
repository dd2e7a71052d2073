#include <string.h>

#include "hash.h"
#include "mem.h"
#include "pystate.h"
#include "sst_writer.h"

/* Invariants:
 *  1. Sources are numbered oldest first. The heap orders by (key group, hash, key, source), so
 *     the records of one key come out together and in the order in which they were written.
 *  2. A source's record stays as it is until all records of its key are folded and written, so
 *     folding moves cells, never bytes.
 *  3. What a key was before the oldest record counts only where no tombstone hides it. A put
 *     after a tombstone is written with every column: those it does not carry are null. A key
 *     left without any value is written as a tombstone, which means the same. */
typedef struct source {
    pst_sst_reader *reader;
    const int32_t *columns; /* NULL: the identity */
    pst_record *record;
} source;

typedef struct merge {
    const pst_schema *schema; /* the writer's */
    const pst_file_info *info;
    pst_sst_writer *writer;
    uint64_t all; /* a bit per state column */
    source *sources;
    int32_t *heap; /* sources with a record, the least first */
    int32_t n_heap;
    int32_t *group; /* sources of the key at hand */
    pst_record *folded;
} merge;

static int same_type(const pst_column *a, const pst_column *b) {
    return a->type == b->type &&
           (a->type != PST_DECIMAL || (a->precision == b->precision && a->scale == b->scale));
}

static pst_status check_source(const merge *m, const source *s) {
    const pst_schema *from = pst_sst_reader_schema(s->reader);
    if (from->n_keys != m->schema->n_keys ||
        pst_sst_reader_info(s->reader)->max_parallelism != m->info->max_parallelism)
        return PST_SCHEMA;
    for (int32_t i = 0; i < from->n_keys; i++)
        if (!same_type(&from->keys[i], &m->schema->keys[i]))
            return PST_SCHEMA;
    if (!s->columns && from->n_states != m->schema->n_states)
        return PST_SCHEMA;
    uint64_t taken = 0;
    for (int32_t i = 0; i < from->n_states; i++) {
        int32_t to = s->columns ? s->columns[i] : i;
        if (to < 0)
            continue;
        if (to >= m->schema->n_states || (taken >> to) & 1)
            return PST_INVALID;
        taken |= UINT64_C(1) << to;
        if (!same_type(&from->states[i], &m->schema->states[to]))
            return PST_SCHEMA;
        if (!s->columns && strcmp(from->states[i].name, m->schema->states[i].name) != 0)
            return PST_SCHEMA;
    }
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

/* Lays one put over what the key is so far. */
static void fold_put(merge *m, const source *s, pst_record *to) {
    const pst_record *from = s->record;
    if (to->op == PST_DELETE) {
        to->op = PST_PUT;
        to->changed = m->all;
        to->present = 0;
    }
    for (uint64_t bits = from->changed; bits; bits &= bits - 1) {
        int i = __builtin_ctzll(bits);
        int32_t column = s->columns ? s->columns[i] : i;
        if (column < 0)
            continue;
        uint64_t bit = UINT64_C(1) << column;
        to->changed |= bit;
        if ((from->present >> i) & 1) {
            to->present |= bit;
            to->cells[column] = from->cells[i];
        } else {
            to->present &= ~bit;
        }
    }
}

/* Folds the records of one key, oldest first, into m->folded. */
static const pst_record *fold(merge *m, int32_t n) {
    const pst_record *first = m->sources[m->group[0]].record;
    if (n == 1 && !m->sources[m->group[0]].columns)
        return first;
    pst_record *to = m->folded;
    to->hash = first->hash;
    to->key_group = first->key_group;
    to->key_nulls = first->key_nulls;
    memcpy(to->key, first->key, (size_t)m->schema->n_keys * sizeof *to->key);
    to->op = PST_PUT;
    to->changed = to->present = 0;
    for (int32_t i = 0; i < n; i++) {
        const source *s = &m->sources[m->group[i]];
        if (s->record->op == PST_DELETE) {
            to->op = PST_DELETE;
            to->changed = to->present = 0;
        } else {
            fold_put(m, s, to);
        }
    }
    if (m->all && to->op == PST_PUT && to->changed == m->all && to->present == 0) {
        to->op = PST_DELETE;
        to->changed = 0;
    }
    return to;
}

static pst_status write_folded(merge *m, const pst_record *r) {
    if (m->info->kind == PST_BASE &&
        (r->op == PST_DELETE || (m->all && (r->changed & r->present) == 0)))
        return PST_OK;
    if (m->all && r->op == PST_PUT && r->changed == 0)
        return PST_OK; /* all that it carried was dropped */
    return pst_sst_writer_add(m->writer, r);
}

static pst_status advance(merge *m, int32_t s) {
    pst_status status = pst_sst_reader_next(m->sources[s].reader, m->sources[s].record);
    if (status == PST_NOT_FOUND)
        return PST_OK;
    if (!status)
        push(m, s);
    return status;
}

static pst_status run(merge *m, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        pst_status s = pst_sst_reader_seek(m->sources[i].reader, m->info->first_key_group,
                                           m->info->last_key_group);
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
        pst_status s = write_folded(m, fold(m, size));
        for (int32_t i = 0; i < size && !s; i++)
            s = advance(m, m->group[i]);
        if (s)
            return s;
    }
    return PST_OK;
}

pst_status pst_merge(pst_sst_reader *const *readers, const int32_t *const *columns, int32_t n,
                     pst_sst_writer *writer) {
    if (n < 0)
        return PST_INVALID;
    merge m = {.schema = pst_sst_writer_schema(writer),
               .info = pst_sst_writer_info(writer),
               .writer = writer};
    m.all = m.schema->n_states < 64 ? (UINT64_C(1) << m.schema->n_states) - 1 : ~UINT64_C(0);
    size_t count = (size_t)n;
    pst_record *records = pst_malloc((count + 1) * sizeof *records);
    m.sources = pst_malloc(count * sizeof *m.sources);
    m.heap = pst_malloc(2 * count * sizeof *m.heap);
    pst_status s = records && m.sources && m.heap ? PST_OK : PST_NO_MEMORY;
    if (!s) {
        m.group = m.heap + count;
        m.folded = &records[count];
        for (int32_t i = 0; i < n && !s; i++) {
            m.sources[i] = (source){readers[i], columns ? columns[i] : NULL, &records[i]};
            s = check_source(&m, &m.sources[i]);
        }
    }
    if (!s)
        s = run(&m, n);
    pst_free(records);
    pst_free(m.sources);
    pst_free(m.heap);
    return s;
}
