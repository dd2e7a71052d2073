/* epoch_files.h: a world's epochs as files, and files as a table of the world.
 *
 * Thread safety: everything belongs to one thread.
 */
#ifndef PST_TEST_EPOCH_FILES_H
#define PST_TEST_EPOCH_FILES_H

#include "chain_world.h"

enum { EPOCH_FILES = 12 };

#define SMALL_TTL ((pst_ttl){.duration_ms = 500})

/* A world with one state, which expires. */
static inline world *small_world(pst_type type, pst_kind kind) {
    static const pst_column key = {.name = "k", .type = PST_INT64};
    world *w = world_create(1);
    w->columns[0] = (pst_column){.name = "a", .type = type, .kind = (uint8_t)kind};
    w->columns[1] = (pst_column){.name = "a#time", .type = PST_INT64, .kind = PST_TIME};
    w->states[0].ttl = SMALL_TTL;
    w->states[0].timed = 1;
    w->state_of[0] = &w->states[0];
    w->schema = (pst_schema){1, 2, &key, w->columns, 0};
    w->first = 0;
    w->last = w->max_parallelism - 1;
    return w;
}

static inline pst_lineage epoch_lineage(uint64_t epoch) {
    pst_lineage l = {.epoch = epoch, .query = 5};
    memcpy(l.id, &epoch, sizeof epoch);
    return l;
}

/* Writes and destroys it. */
static inline memory_file epoch_written(pst_sealed *sealed) {
    memory_file f = {.calls_left = -1};
    pst_io io = file_io(&f, 0);
    pst_file_info info;
    REQUIRE(pst_sealed_write(sealed, &io, &info) == PST_OK);
    pst_sealed_destroy(sealed);
    return f;
}

static inline memory_file epoch_sealed(pst_table *t, uint64_t epoch) {
    pst_sealed *sealed = NULL;
    pst_lineage l = epoch_lineage(epoch);
    REQUIRE(pst_table_seal(t, &l, &sealed) == PST_OK);
    return epoch_written(sealed);
}

static inline memory_file epoch_changes(pst_table *t) {
    pst_sealed *sealed = NULL;
    REQUIRE(pst_table_changes(t, &sealed) == PST_OK);
    return epoch_written(sealed);
}

/* Files of the world's schema of now, oldest first, as one; into a base without what has expired,
 * if `expiry` is not NULL. */
static inline pst_status epochs_merge(world *w, memory_file *files, int n, pst_file_kind kind,
                                      const pst_expiry *expiry, memory_file *out) {
    pst_io io = file_io(out, 0);
    pst_sst_reader *readers[EPOCH_FILES] = {NULL};
    pst_sst_writer *writer = NULL;
    pst_schema *schema = NULL;
    pst_status s = PST_OK;
    pst_file_info info = {.kind = kind,
                          .lineage = epoch_lineage(99),
                          .max_parallelism = w->max_parallelism,
                          .first_key_group = w->first,
                          .last_key_group = w->last};
    REQUIRE(n <= EPOCH_FILES);
    for (int i = 0; !s && i < n; i++) {
        s = file_open(&files[i], &readers[i]);
        info.null_entries |= !s && pst_sst_reader_info(readers[i])->null_entries;
    }
    if (!s)
        s = pst_file_schema_create(&w->schema, &schema);
    if (!s)
        s = pst_sst_writer_create(schema, &info, &io, &writer);
    if (!s)
        s = expiry ? pst_merge_expiring(readers, NULL, n, expiry, writer)
                   : pst_merge(readers, NULL, n, writer);
    if (!s)
        s = pst_sst_writer_finish(writer, &info);
    pst_sst_writer_destroy(writer);
    pst_file_schema_destroy(schema);
    for (int i = 0; i < n; i++)
        pst_sst_reader_close(readers[i]);
    return s;
}

static inline memory_file epochs_merged(world *w, memory_file *files, int n, pst_file_kind kind) {
    memory_file out = {.calls_left = -1};
    REQUIRE(epochs_merge(w, files, n, kind, NULL, &out) == PST_OK);
    return out;
}

static inline pst_table *epochs_loaded(world *w, memory_file *files, int n) {
    pst_table *t = world_open(w, w->first, w->last, WORLD_LIMIT);
    for (int i = 0; i < n; i++) {
        pst_sst_reader *r = NULL;
        REQUIRE(file_open(&files[i], &r) == PST_OK);
        REQUIRE(pst_sst_reader_seek(r, w->first, w->last) == PST_OK);
        REQUIRE(pst_table_load(t, r, NULL, w->schema.n_states, NULL) == PST_OK);
        pst_sst_reader_close(r);
    }
    return t;
}

/* The same records in the same order. */
static inline int epochs_equal(memory_file *x, memory_file *y) {
    pst_sst_reader *a = NULL, *b = NULL;
    static pst_record p, q;
    pst_status s, other;
    int same = 1;
    REQUIRE(file_open(x, &a) == PST_OK && file_open(y, &b) == PST_OK);
    do {
        s = pst_sst_reader_next(a, &p);
        other = pst_sst_reader_next(b, &q);
        same = CHECK_EQ(s, other) && (s || CHECK(same_row(pst_sst_reader_schema(a), &p, &q)));
    } while (same && !s);
    pst_sst_reader_close(a);
    pst_sst_reader_close(b);
    return same && CHECK_EQ(s, PST_NOT_FOUND);
}

static inline void epochs_free(memory_file *files, int n) {
    for (int i = 0; i < n; i++)
        file_free(&files[i]);
}

#endif
