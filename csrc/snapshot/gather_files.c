/* gather_files.c: the rows of files with their elements, merged without a table.
 *
 * Most rows are in one file alone, and stand there with their elements in blocks. Those are taken
 * from the blocks as they lie: a map's entries all at once, as their values are neighbours in the
 * column, and a list by its runs. What the files have in common, and whatever is not as a table
 * would have written it, is left to the merge, which checks and folds record by record.
 */
#include <string.h>

#include "base/coding.h"
#include "base/mem.h"
#include "key/schema.h"
#include "snapshot/gather.h"
#include "snapshot/merge.h"
#include "sst/record.h"

/* ---- records --------------------------------------------------------------------------------- */

static pst_status add_record(void *ctx, const pst_record *r, uint64_t start) {
    return pst_gather_record(ctx, r, start);
}

/* ---- stretches ------------------------------------------------------------------------------- */

/* What rows of a kind mean to the gatherer. */
typedef struct plan {
    uint64_t changed;
    uint64_t values;  /* of a row's record, the source's columns that are taken */
    uint64_t markers; /* those that must be null */
    int32_t state;    /* of an element, the source's column; -1: the merge is to look at it */
    int32_t to;       /* the gatherer's; -1: it is not taken */
    uint32_t id;
    int deletes;
} plan;

typedef struct stretch {
    pst_gatherer *g;
    const pst_source *source;
    const pst_stretch *part;
    const pst_sst_view *v;
    const pst_sst_values *elements;             /* NULL: the source has rows only */
    int32_t n_keys;                             /* the source's */
    uint32_t next[PST_MAX_STATES];              /* the values of the row at hand */
    uint64_t planned[PST_SST_BLOCK_KINDS / 64]; /* a bit per kind that has a plan */
    plan plans[PST_SST_BLOCK_KINDS];
} stretch;

static plan make_plan(const stretch *x, const pst_sst_kind *kind) {
    const pst_schema *from = x->v->schema;
    plan p = {.changed = kind->changed, .deletes = kind->op == PST_DELETE, .state = -1, .to = -1};
    for (uint64_t left = kind->changed; left; left &= left - 1) {
        int32_t i = __builtin_ctzll(left), to = pst_source_column(x->source, i);
        if (from->states[i].kind == PST_VALUE)
            p.values |= to < 0 ? 0 : UINT64_C(1) << i;
        else if (from->states[i].kind != PST_TIME && from->states[i].kind != PST_TIMER)
            p.markers |= UINT64_C(1) << i;
    }
    if (!kind->changed)
        return p;
    int32_t i = __builtin_ctzll(kind->changed);
    uint64_t beside = kind->changed & (kind->changed - 1);
    int is_time = i + 1 < from->n_states && from->states[i + 1].kind == PST_TIME;
    if (!(p.markers >> i & 1) || (beside && !(is_time && beside == UINT64_C(2) << i)))
        return p;
    p.state = i;
    p.to = from->states[i].kind == PST_TIMERS ? -1 : pst_source_column(x->source, i);
    if (p.to >= 0)
        p.id = x->g->states[p.to].id;
    return p;
}

static const plan *plan_of(stretch *x, uint32_t row) {
    uint32_t kind = x->v->row_kinds ? x->v->row_kinds[row] : 0;
    if (!(x->planned[kind / 64] >> kind % 64 & 1)) {
        x->planned[kind / 64] |= UINT64_C(1) << kind % 64;
        x->plans[kind] = make_plan(x, &x->v->kinds[kind]);
    }
    return &x->plans[kind];
}

/* Moves behind n rows of one kind. */
static void pass(stretch *x, const plan *p, uint32_t n) {
    for (uint64_t left = p->changed; left; left &= left - 1)
        x->next[__builtin_ctzll(left)] += n;
}

static const pst_sst_values *values_of(const stretch *x, int32_t state) {
    return &x->v->columns[x->n_keys + state];
}

static int has_next(const stretch *x, int32_t state) {
    return pst_sst_has_value(values_of(x, state), x->next[state]);
}

/* Has what the source's column has in this row, or `ahead` rows of the kind later, expired? */
static int hides_next(const stretch *x, const plan *p, int32_t state, uint32_t ahead) {
    const pst_expirer *expirer = &x->g->expirer;
    int32_t to = pst_source_column(x->source, state), time;
    if (!(expirer->columns >> to & 1))
        return 0;
    time = x->source->at[to + 1];
    if (time < 0 || !(p->changed >> time & 1))
        return 0;
    const pst_sst_values *v = values_of(x, time);
    uint32_t at = x->next[time] + ahead;
    return pst_sst_has_value(v, at) &&
           pst_expirer_hides(expirer, to, (int64_t)pst_sst_words(v)[at]);
}

static pst_status begin_row(stretch *x, uint32_t row) {
    return pst_gather_view_row(x->g, x->part->hash[row - x->part->first], x->v, row);
}

/* A row's record; *taken is 0 where a list does not begin with its first item. */
static pst_status take_row(stretch *x, const plan *p, uint32_t row, int *open, int *taken) {
    pst_status s = PST_OK;
    for (uint64_t left = p->markers; left; left &= left - 1)
        if (has_next(x, __builtin_ctzll(left)))
            *taken = 0;
    if (!*taken)
        return PST_OK;
    for (uint64_t left = p->values; !s && left; left &= left - 1) {
        int32_t i = __builtin_ctzll(left);
        if (!has_next(x, i) || hides_next(x, p, i, 0))
            continue;
        if (!*open)
            s = begin_row(x, row);
        *open = 1;
        if (!s)
            s = pst_gather_view_value(x->g, pst_source_column(x->source, i), values_of(x, i),
                                      x->next[i]);
    }
    pass(x, p, 1);
    return s;
}

static pst_bytes element_at(const stretch *x, uint32_t row) {
    const int32_t *at = &x->elements->offsets[row];
    return (pst_bytes){x->elements->values + at[0], (uint32_t)(at[1] - at[0])};
}

static int is_of(const plan *p, pst_bytes element) {
    return element.size >= PST_ELEMENT_ID && pst_get_u32(element.data) == p->id;
}

static pst_status take_run(stretch *x, const plan *p, uint32_t row, int *open, int *taken) {
    pst_bytes element = element_at(x, row), run;
    pst_cell cell;
    pst_status s = PST_OK;
    if (element.size != PST_ELEMENT_RUN || !has_next(x, p->state)) {
        *taken = 0;
        return PST_OK;
    }
    pst_sst_value(values_of(x, p->state), x->next[p->state], &cell);
    run = cell.bytes;
    pass(x, p, 1);
    int hidden = run.size <= 1;
    if (!hidden && !*open && x->g->expirer.columns >> p->to & 1)
        s = pst_expirer_run(&x->g->expirer, p->to, run, 0, &hidden);
    if (s || hidden)
        return s;
    if (!*open)
        s = begin_row(x, row);
    *open = 1;
    return s ? s
             : pst_gather_items(x->g, p->to, pst_get_big64(element.data + PST_ELEMENT_ID), 0, run);
}

/* How many entries of one map stand together from `row` on, all of which have expired or none; 0: the
 * merge is to look at the first. */
static uint32_t count_entries(const stretch *x, const plan *p, uint32_t row, uint32_t end,
                              int *hidden) {
    const pst_gathered *c = &x->g->states[p->to];
    const pst_sst_values *v = values_of(x, p->state);
    const uint8_t *same = x->part->same - x->part->first, *kinds = x->v->row_kinds;
    uint32_t i = row, at = x->next[p->state];
    int words = c->keys.shape == PST_SHAPE_WORD64 && c->key_type != PST_FLOAT64;
    *hidden = hides_next(x, p, p->state, 0);
    for (; i < end; i++, at++) {
        pst_bytes element = element_at(x, i);
        if (i > row && (!same[i] || (kinds && kinds[i] != kinds[row])))
            break;
        if (!is_of(p, element) || (v->validity && !pst_sst_has_value(v, at)))
            break;
        if (i > row && hides_next(x, p, p->state, i - row) != *hidden)
            break;
        if (words ? element.size != PST_ELEMENT_RUN : !pst_map_key_is_sound(c->key_type, element))
            break;
    }
    return i - row;
}

static pst_status take_entries(stretch *x, const plan *p, uint32_t row, uint32_t n, int *open) {
    pst_status s = *open ? PST_OK : begin_row(x, row);
    *open = 1;
    if (!s)
        s = pst_gather_view_entries(x->g, p->to, x->elements, row, values_of(x, p->state),
                                    x->next[p->state], n);
    pass(x, p, n);
    return s;
}

/* *taken rows of the stretch, up to one that the merge is to look at. */
static pst_status take_rows(stretch *x, uint32_t *taken) {
    const pst_stretch *part = x->part;
    pst_cell key[PST_MAX_KEYS];
    uint32_t nulls, row = part->first, end = row + part->rows;
    pst_sst_view_key(x->v, row, key, &nulls);
    int open = pst_gather_is_last(x->g, part->hash[0], key, nulls);
    pst_status s = PST_OK;
    while (!s && row < end) {
        const plan *p = plan_of(x, row);
        uint32_t n = 1;
        int took = 1, hidden;
        if (row > part->first && !(part->same && part->same[row - part->first]))
            open = 0;
        if (p->deletes) {
            /* Of older files: there are none here. */
        } else if (!x->elements || !pst_sst_has_value(x->elements, row)) {
            s = take_row(x, p, row, &open, &took);
        } else if (p->state < 0) {
            took = 0;
        } else if (p->to < 0) {
            pass(x, p, 1);
        } else if (x->g->states[p->to].kind == PST_MAP) {
            n = count_entries(x, p, row, end, &hidden);
            took = n > 0;
            if (took && hidden)
                pass(x, p, n);
            else if (took)
                s = take_entries(x, p, row, n, &open);
        } else if (is_of(p, element_at(x, row))) {
            s = take_run(x, p, row, &open, &took);
        } else {
            took = 0;
        }
        if (!took)
            break;
        row += n;
    }
    *taken = row - part->first;
    return s;
}

/* Do all rows put the same columns, at least one of them in every row, and are there no elements? */
static int by_column(stretch *x, int32_t *at) {
    int always = 0;
    if (x->v->n_kinds > 1 || x->elements || x->v->deletes)
        return 0;
    memset(at, 0xFF, PST_MAX_STATES * sizeof *at);
    for (uint64_t left = plan_of(x, 0)->values; left; left &= left - 1) {
        int32_t i = __builtin_ctzll(left);
        at[pst_source_column(x->source, i)] = i;
        always |= !values_of(x, i)->validity;
    }
    return always;
}

/* Of rows that put the same columns, how many come before the first of which something has
 * expired. */
static uint32_t rows_seen(stretch *x) {
    const plan *p = plan_of(x, x->part->first);
    uint32_t rows = 0;
    if (!x->g->expirer.columns)
        return x->part->rows;
    for (; rows < x->part->rows; rows++)
        for (uint64_t left = p->values; left; left &= left - 1)
            if (hides_next(x, p, __builtin_ctzll(left), rows))
                return rows;
    return rows;
}

static pst_status add_stretch(void *ctx, const pst_source *s, const pst_record *next) {
    enum { LEAST = 1, FEW = 16 };
    pst_stretch part;
    stretch x;
    int32_t at[PST_MAX_STATES];
    const pst_schema *from = pst_sst_reader_schema(s->reader);
    pst_sst_reader_stretch_before(s->reader, next ? next->key_group : INT32_MAX,
                                  next ? next->hash : 0, LEAST, &part);
    if (!part.rows)
        return PST_OK;
    uint32_t taken = part.rows;
    x.g = ctx;
    x.source = s;
    x.part = &part;
    x.v = part.view;
    x.n_keys = from->n_keys;
    x.elements = pst_schema_has_element(from) ? &x.v->columns[from->n_keys - 1] : NULL;
    memset(x.planned, 0, sizeof x.planned);
    for (int32_t i = 0; i < from->n_states; i++)
        x.next[i] = x.v->columns[from->n_keys + i].next;
    uint32_t seen = by_column(&x, at) ? rows_seen(&x) : 0;
    pst_status status;
    if (seen == part.rows || seen >= FEW) {
        taken = seen;
        status = pst_gather_view_rows(x.g, x.v, part.first, seen, at);
    } else {
        status = take_rows(&x, &taken);
    }
    pst_sst_reader_skip(s->reader, taken);
    return status;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* The schema of a file with these states, and with elements where a source has them. */
static pst_status file_schema(const pst_schema *schema, pst_sst_reader *const *readers, int32_t n,
                              pst_schema **file) {
    int element = 0;
    for (int32_t i = 0; i < n; i++)
        element |= pst_schema_has_element(pst_sst_reader_schema(readers[i]));
    return pst_schema_in_files(schema, element, file);
}

pst_status pst_gather(pst_sst_reader *const *readers, const int32_t *const *columns, int32_t n,
                      const pst_schema *schema, const pst_expiry *expiry, int32_t max_parallelism,
                      int32_t first_key_group, int32_t last_key_group, const pst_hashes *hashes,
                      const pst_io *io) {
    pst_schema *file = NULL;
    pst_file_info info = {.kind = PST_BASE,
                          .max_parallelism = max_parallelism,
                          .first_key_group = first_key_group,
                          .last_key_group = last_key_group};
    if (n < 0 || pst_schema_check(schema) || max_parallelism < 1)
        return PST_INVALID;
    pst_gatherer *g = pst_malloc(sizeof *g);
    if (!g)
        return PST_NO_MEMORY;
    pst_status s = file_schema(schema, readers, n, &file);
    if (!s) {
        pst_sink sink = {.ctx = g,
                         .schema = file,
                         .info = &info,
                         .first_hash = hashes ? hashes->first : 0,
                         .last_hash = hashes ? hashes->last : UINT64_MAX,
                         .add = add_record,
                         .stretch = add_stretch};
        s = pst_gatherer_init(g, file, expiry, io);
        if (!s)
            s = pst_merge_into(readers, columns, n, &sink);
        if (!s)
            s = pst_gather_flush(g);
        pst_gatherer_free(g);
    }
    pst_file_schema_destroy(file);
    pst_free(g);
    return s;
}
