/* below.h: files below a table, in memory, and rows admitted from them.
 *
 * The files are the deltas of sealed epochs; old ones are merged into a base. A key's records are
 * found by reading all of them.
 */
#ifndef PST_TEST_BELOW_H
#define PST_TEST_BELOW_H

#include "elements/admit.h"
#include "files.h"
#include "table/resident.h"

enum { BELOW_FILES = 10, BELOW_KEPT = 4 };

typedef struct below_files {
    const pst_schema *schema; /* as files have it */
    int32_t max_parallelism;
    int n;
    memory_file files[BELOW_FILES];
    pst_sst_reader *readers[BELOW_FILES];
    pst_sst_reader *inner[BELOW_FILES]; /* where something is admitted within an admission */
    int within;
    uint64_t epochs[BELOW_FILES]; /* the file has what was changed up to there */
    pst_schema *own;
    int64_t refuse; /* the allocation of an admission that is refused, from 1; 0: none */
} below_files;

static inline void below_init(below_files *b, const pst_schema *table, int32_t max_parallelism) {
    memset(b, 0, sizeof *b);
    REQUIRE(pst_file_schema_create(table, &b->own) == PST_OK);
    b->schema = b->own;
    b->max_parallelism = max_parallelism;
}

static inline void below_open(below_files *b, int i) {
    REQUIRE(file_open(&b->files[i], &b->readers[i]) == PST_OK);
    REQUIRE(file_open(&b->files[i], &b->inner[i]) == PST_OK);
}

static inline void below_close(below_files *b, int i) {
    pst_sst_reader_close(b->readers[i]);
    pst_sst_reader_close(b->inner[i]);
}

static inline void below_drop(below_files *b) {
    below_close(b, --b->n);
    file_free(&b->files[b->n]);
}

static inline void below_free(below_files *b) {
    while (b->n)
        below_drop(b);
    pst_file_schema_destroy(b->own);
}

/* Merges all but the newest files into one. */
static inline void below_merge(below_files *b) {
    int n = b->n - BELOW_KEPT;
    memory_file merged = {.calls_left = -1};
    pst_io io = file_io(&merged, 0);
    pst_file_info info = *pst_sst_reader_info(b->readers[n - 1]);
    info.kind = PST_BASE;
    REQUIRE(file_merge(b->schema, &info, b->readers, NULL, n, &io) == PST_OK);
    for (int i = 0; i < n; i++) {
        below_close(b, i);
        file_free(&b->files[i]);
    }
    b->epochs[0] = b->epochs[n - 1];
    b->files[0] = merged;
    for (int i = 0; i < BELOW_KEPT; i++) {
        b->files[1 + i] = b->files[n + i];
        b->epochs[1 + i] = b->epochs[n + i];
        below_close(b, n + i);
    }
    b->n = BELOW_KEPT + 1;
    for (int i = 0; i < b->n; i++)
        below_open(b, i);
}

/* Adds what an epoch changed. */
static inline void below_add(below_files *b, uint64_t epoch, pst_sealed *sealed) {
    if (b->n == BELOW_FILES)
        below_merge(b);
    memory_file *f = &b->files[b->n];
    *f = (memory_file){.calls_left = -1};
    pst_io io = file_io(f, 0);
    pst_file_info info;
    REQUIRE(pst_sealed_write(sealed, &io, &info) == PST_OK);
    below_open(b, b->n);
    b->epochs[b->n++] = epoch;
}

/* Forgets epochs after that one. */
static inline void below_back(below_files *b, uint64_t epoch) {
    while (b->n && b->epochs[b->n - 1] > epoch)
        below_drop(b);
}

/* The key as the table's index has it. */
static inline pst_key below_key(const pst_table *t, const pst_cell *cells, pst_buffer *room) {
    pst_key key;
    room->size = 0;
    REQUIRE(pst_key_encode(&t->schema, cells, 0, room, &key) == PST_OK);
    if (pst_key_has_namespace(&t->schema))
        key.hash = pst_key_spread(key.hash, key.bytes, t->max_parallelism);
    return key;
}

static inline int below_is_key(const pst_table *t, const pst_record *r, const pst_cell *cells,
                               uint64_t hash) {
    for (int32_t i = 0; i < t->schema.n_keys; i++) {
        pst_cell cell = r->key[i];
        if (r->key_nulls >> i & 1 || !same_cell(&t->schema.keys[i], &cell, &cells[i]))
            return 0;
    }
    return r->hash == hash;
}

/* Adds all records of the key in files up to that epoch. */
static inline pst_status below_add_records(const below_files *b, pst_admission *a,
                                           const pst_cell *cells, uint64_t epoch, int *found) {
    static pst_record records[2]; /* large */
    pst_record *r = &records[b->within];
    const pst_table *t = a->t;
    pst_mapping m;
    uint64_t hash = pst_hash_key(t->schema.keys, pst_schema_hashed(&t->schema), cells, 0);
    int32_t group = pst_key_group(hash, b->max_parallelism), n_keys = t->schema.n_keys;
    int has_element = b->schema->n_keys > n_keys;
    REQUIRE(pst_mapping_make(t, NULL, t->schema.n_states, &m));
    for (int i = 0; i < b->n && b->epochs[i] <= epoch; i++) {
        pst_sst_reader *from = b->within ? b->inner[i] : b->readers[i];
        pst_status s = pst_sst_reader_seek(from, group, group);
        while (!s && (s = pst_sst_reader_next(from, r)) == PST_OK) {
            if (!below_is_key(t, r, cells, hash))
                continue;
            int element = has_element && !(r->key_nulls >> n_keys & 1);
            *found = 1;
            s = pst_admission_add(a, r, &m, element, 0);
            if (s)
                return s;
        }
        if (s != PST_NOT_FOUND)
            return s; /* also where an allocation of the reader's was refused */
    }
    return PST_OK;
}

/* Admits a key that has no row. PST_NOT_FOUND where the files have none either; where they say
 * nothing of it, without a trace. */
static inline pst_status below_admit(const below_files *b, pst_table *t, const pst_cell *cells,
                                     uint64_t epoch) {
    pst_buffer room = {NULL, 0, 0};
    pst_key key = below_key(t, cells, &room);
    pst_admission a;
    int here = 0, found = 0;
    if (b->refuse)
        check_fail_alloc(b->refuse - 1, 0);
    pst_status s = pst_admission_begin(&a, t, &key, &here);
    if (!s && !here) {
        s = below_add_records(b, &a, cells, epoch, &found);
        if (s || !found)
            pst_admission_drop(&a);
        else
            s = pst_admission_end(&a);
        if (!s && !found)
            s = PST_NOT_FOUND;
        if (!s)
            CHECK(pst_is_admitted(pst_row(t, a.slot)[0], t->h->active));
    }
    free(room.data);
    return s;
}

/* Has the key a row in the table, alive or dead since the open epoch began? */
static inline int below_is_here(pst_table *t, const pst_cell *cells) {
    pst_buffer room = {NULL, 0, 0};
    pst_key key = below_key(t, cells, &room);
    uint32_t slot = pst_index_find(t, &key);
    free(room.data);
    return slot != PST_NONE;
}

#endif
