#include "pystate.h"

#include <string.h>

#include "base/mem.h"
#include "file/sst_reader.h"
#include "file/sst_writer.h"
#include "key/schema.h"
#include "lookup/said.h"
#include "lookup/wanted.h"
#include "stack/search.h"

static const pst_detail NOWHERE = {-1, -1, -1, -1, -1};

enum { USUAL_BYTES = 8 << 20 };

/* ---- what files say -------------------------------------------------------------------------- */

typedef struct lookup {
    pst_stack *st;
    pst_wanted_list wanted;
    pst_said said;
    pst_place *places; /* where each namespace of a key is wanted, one of a run */
    uint32_t n_places;
    uint64_t most;
    int crowded; /* more than `most` was said */
    pst_record record;
} lookup;

static void on_key(void *ctx, uint32_t number, pst_cell *cells, uint32_t *nulls) {
    const lookup *x = ctx;
    pst_wanted_cells(&x->wanted, number, cells, nulls);
}

static pst_status on_found(void *ctx, const pst_found *f) {
    lookup *x = ctx;
    for (uint32_t i = 0; i < f->rows; i++) {
        const pst_record *r = f->record;
        if (i) {
            pst_status s = pst_found_record(f, i, &x->record);
            if (s)
                return s;
            r = &x->record;
        }
        if (x->wanted.every && !pst_wanted_has(&x->wanted, f->key, r))
            continue;
        pst_status s = pst_said_add(&x->said, f->key, f->file, r);
        if (x->wanted.n > 1 && (s == PST_LIMIT || x->said.parts.bytes.size > x->most)) {
            x->crowded = 1;
            return PST_NO_ROOM;
        }
        if (s)
            return s;
    }
    return PST_OK;
}

static pst_status on_done(void *ctx, uint32_t number, int any) {
    (void)ctx;
    (void)number;
    (void)any;
    return PST_OK;
}

static pst_status search(lookup *x) {
    const pst_wanted_list *w = &x->wanted;
    pst_seeker seeker = {x, w->every ? NULL : on_key, NULL, on_found, on_done, NULL};
    for (uint32_t i = 0; i < w->n; i = w->every ? w->keys[i].end : i + 1)
        x->places[x->n_places++] = (pst_place){w->keys[i].hash, w->keys[i].key_group, i};
    return pst_stack_search(x->st, x->places, x->n_places, &seeker);
}

/* ---- merged ---------------------------------------------------------------------------------- */

static pst_status add_record(void *ctx, const pst_record *r, uint64_t start) {
    (void)start; /* of a run that begins before, a file has all */
    return pst_sst_writer_add(ctx, r);
}

static pst_status merge(const lookup *x, pst_sst_writer *writer) {
    pst_sink sink = {.ctx = writer,
                     .schema = pst_sst_writer_schema(writer),
                     .info = pst_sst_writer_info(writer),
                     .last_hash = UINT64_MAX,
                     .add = add_record};
    return pst_said_merge(&x->said, 0, x->wanted.n, x->st->n, &sink);
}

/* ---- stacks ---------------------------------------------------------------------------------- */

static pst_status write_said(const lookup *x, const pst_io *io, pst_file_info *info) {
    const pst_stack *st = x->st;
    pst_sst_writer *writer = NULL;
    pst_file_info made = {.kind = info->kind,
                          .lineage = info->lineage,
                          .max_parallelism = st->max_parallelism,
                          .last_key_group = st->max_parallelism - 1};
    for (int32_t i = 0; i < st->n; i++)
        made.null_entries |= st->files[i]->guide->info.null_entries;
    pst_status s = pst_sst_writer_create(&st->schema, &made, io, &writer);
    if (!s)
        s = merge(x, writer);
    if (!s)
        s = pst_sst_writer_finish(writer, info);
    pst_sst_writer_destroy(writer);
    return s;
}

static pst_status run(lookup *x, const pst_io *io, pst_file_info *info) {
    size_t n = x->wanted.n + (size_t)1;
    x->places = pst_malloc(n * sizeof *x->places);
    pst_status s = pst_said_init(&x->said, x->st, x->wanted.n);
    if (!s)
        s = x->places ? search(x) : PST_NO_MEMORY;
    return s ? s : write_said(x, io, info);
}

pst_status pst_stack_lookup(pst_stack *st, const pst_wanted_keys *wanted, const pst_io *io,
                            pst_file_info *info, pst_detail *detail) {
    pst_detail own = NOWHERE;
    pst_budget *budget = st->room.charge.budget;
    if (info->kind != PST_BASE && info->kind != PST_DELTA)
        return PST_INVALID;
    lookup *x = pst_calloc(1, sizeof *x);
    if (!x)
        return PST_NO_MEMORY;
    x->st = st;
    x->most = wanted->most_bytes ? wanted->most_bytes : USUAL_BYTES;
    st->detail = NOWHERE;
    pst_status s =
        pst_wanted_make(&x->wanted, &st->schema, st->max_parallelism, wanted, budget, NULL);
    if (!s)
        s = run(x, io, info);
    if (s == PST_NO_ROOM && x->crowded)
        own.row = x->wanted.n / 4 + 1;
    else if (s)
        own = st->detail;
    if (detail)
        *detail = own;
    pst_free(x->places);
    pst_said_free(&x->said);
    pst_wanted_free(&x->wanted);
    pst_free(x);
    return s;
}

/* ---- any file -------------------------------------------------------------------------------- */

static int comes_before(const pst_record *r, const pst_wanted_key *key) {
    if (r->key_group != key->key_group)
        return r->key_group < key->key_group;
    return r->hash < key->hash;
}

/* Whether a key behind the record that was read last may be in its block. */
static int is_near(const pst_sst_reader *r, const pst_record *record, const pst_wanted_key *key) {
    if (!comes_before(record, key))
        return 1;
    pst_ahead ahead = pst_sst_reader_ahead(r);
    uint64_t hash = ahead.hash[ahead.rows - 1];
    int32_t group = pst_key_group(hash, pst_sst_reader_info(r)->max_parallelism);
    return key->key_group != group ? key->key_group < group : key->hash <= hash;
}

/* Reads on to the first record that does not come before the key; PST_NOT_FOUND: there is none. */
static pst_status read_to(pst_sst_reader *r, const pst_wanted_key *key, int here,
                          pst_record *record) {
    pst_status s = PST_OK;
    if (!here || !is_near(r, record, key)) {
        int32_t last = pst_sst_reader_info(r)->last_key_group;
        s = pst_sst_reader_seek(r, key->key_group, last);
        pst_sst_reader_narrow(r, key->hash, UINT64_MAX);
        if (!s)
            s = pst_sst_reader_next(r, record);
    }
    while (!s && comes_before(record, key))
        s = pst_sst_reader_next(r, record);
    return s;
}

/* Each run of wanted keys is of one place, whose records follow each other. */
static pst_status read_keys(pst_sst_reader *r, const pst_wanted_list *w, pst_record *record,
                            pst_sst_writer *writer) {
    const pst_file_info *info = pst_sst_reader_info(r);
    pst_status s = PST_OK;
    int here = 0;
    for (uint32_t i = 0; !s && i < w->n; i = w->keys[i].end) {
        const pst_wanted_key *key = &w->keys[i];
        if (key->key_group < info->first_key_group || key->key_group > info->last_key_group)
            continue;
        s = read_to(r, key, here, record);
        while (!s && record->hash == key->hash && record->key_group == key->key_group) {
            if (pst_wanted_has(w, i, record))
                s = pst_sst_writer_add(writer, record);
            if (!s)
                s = pst_sst_reader_next(r, record);
        }
        here = 1;
    }
    return s == PST_NOT_FOUND ? PST_OK : s;
}

pst_status pst_sst_reader_lookup(pst_sst_reader *r, const pst_wanted_keys *wanted, const pst_io *io,
                                 pst_file_info *info) {
    pst_wanted_list w;
    pst_sst_writer *writer = NULL;
    const pst_schema *schema = pst_sst_reader_schema(r);
    pst_file_info made = *pst_sst_reader_info(r);
    pst_record *record = pst_malloc(sizeof *record);
    if (!record)
        return PST_NO_MEMORY;
    made.block_bytes = 0;
    pst_status s = pst_wanted_make(&w, schema, made.max_parallelism, wanted, io->budget, NULL);
    if (!s)
        s = pst_sst_writer_create(schema, &made, io, &writer);
    if (!s)
        s = read_keys(r, &w, record, writer);
    if (!s)
        s = pst_sst_writer_finish(writer, info);
    pst_sst_writer_destroy(writer);
    pst_wanted_free(&w);
    pst_free(record);
    return s;
}
