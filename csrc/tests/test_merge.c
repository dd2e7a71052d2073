/* Merges held against a naive map: whatever the files say one after the other, their merge says at
 * once. */
#include "stack_world.h"

#include "sst/sst_format.h"

static const row_style WHOLE = {.masks = 1, .max_parallelism = 64, .last_key_group = 63};

enum { MAX_FILES = 24 };

/* ---- the map --------------------------------------------------------------------------------- */

typedef struct map {
    const pst_schema *schema;
    pst_record *rows; /* present columns only; a row without any does not exist */
    size_t n;
    size_t capacity;
} map;

static pst_record *map_find(map *m, const pst_record *key) {
    for (size_t i = 0; i < m->n; i++)
        if (compare_rows(m->schema, &m->rows[i], key) == 0)
            return &m->rows[i];
    return NULL;
}

static pst_record *map_make(map *m, const pst_record *key) {
    pst_record *row = map_find(m, key);
    if (row)
        return row;
    if (m->n == m->capacity) {
        m->capacity = 2 * m->capacity + 64;
        m->rows = realloc(m->rows, m->capacity * sizeof *m->rows);
        REQUIRE(m->rows);
    }
    row = &m->rows[m->n++];
    *row = *key;
    row->op = PST_PUT;
    row->changed = row->present = 0;
    return row;
}

/* `columns` as in pst_merge. */
static void map_apply(map *m, const pst_record *r, const int32_t *columns, int32_t n_columns) {
    pst_record *row = map_make(m, r);
    if (r->op == PST_DELETE)
        row->present = 0;
    for (int32_t c = 0; r->op == PST_PUT && c < n_columns; c++) {
        int32_t to = columns ? columns[c] : c;
        if (!((r->changed >> c) & 1) || to < 0)
            continue;
        row->present &= ~(UINT64_C(1) << to);
        row->present |= ((r->present >> c) & 1) << to;
        row->cells[to] = r->cells[c];
    }
    row->changed = row->present;
    if (!row->present)
        *row = m->rows[--m->n];
}

static map map_copy(const map *m) {
    map copy = *m;
    copy.capacity = m->n + 1;
    copy.rows = malloc(copy.capacity * sizeof *copy.rows);
    REQUIRE(copy.rows);
    if (m->n)
        memcpy(copy.rows, m->rows, m->n * sizeof *m->rows);
    return copy;
}

/* Whether both hold the same within the range. */
static int map_same(map *a, map *b, int32_t first, int32_t last) {
    size_t in_a = 0, in_b = 0;
    for (size_t i = 0; i < a->n; i++) {
        if (a->rows[i].key_group < first || a->rows[i].key_group > last)
            continue;
        pst_record *other = map_find(b, &a->rows[i]);
        if (!other || !same_row(a->schema, &a->rows[i], other))
            return 0;
        in_a++;
    }
    for (size_t i = 0; i < b->n; i++)
        in_b += b->rows[i].key_group >= first && b->rows[i].key_group <= last;
    return in_a == in_b;
}

/* ---- files to merge -------------------------------------------------------------------------- */

typedef struct source_set {
    int32_t n;
    random_schema schemas[MAX_FILES];
    random_rows rows[MAX_FILES];
    memory_file files[MAX_FILES];
    pst_io io[MAX_FILES];
    pst_sst_reader *readers[MAX_FILES];
    int32_t columns[MAX_FILES][PST_MAX_STATES];
    const int32_t *mapping[MAX_FILES];
} source_set;

static void set_add(source_set *x, const pst_schema *s, const row_style *style, uint64_t *rng,
                    size_t n_rows) {
    int32_t i = x->n++;
    x->rows[i] = rows_random(s, style, rng, n_rows);
    x->io[i] = file_io(&x->files[i], i % 2);
    pst_file_info info = info_of(PST_DELTA, style, (uint8_t)(i + 1));
    info.block_bytes = i % 3 == 1 ? 4096 : 0;
    REQUIRE(write_rows(s, &info, &x->io[i], x->rows[i].rows, x->rows[i].n) == PST_OK);
    REQUIRE(pst_sst_reader_open(&x->io[i], x->files[i].size, &x->readers[i], NULL) == PST_OK);
}

static void set_free(source_set *x) {
    for (int32_t i = 0; i < x->n; i++) {
        pst_sst_reader_close(x->readers[i]);
        file_free(&x->files[i]);
        rows_free(&x->rows[i]);
    }
    free(x);
}

static source_set *set_new(void) {
    source_set *x = calloc(1, sizeof *x);
    REQUIRE(x);
    return x;
}

static pst_status merge_into(const pst_schema *s, pst_file_info *info, const source_set *x,
                             int mapped, const pst_io *io) {
    return file_merge(s, info, x->readers, mapped ? x->mapping : NULL, x->n, io);
}

/* Applies what a file says; checks that a base says nothing needless. */
static void map_apply_file(map *m, const pst_io *io, const pst_file_info *info) {
    pst_sst_reader *r = NULL;
    pst_record record;
    uint64_t rows = 0;
    REQUIRE(pst_sst_reader_open(io, info->file_bytes, &r, NULL) == PST_OK);
    while (!pst_sst_reader_next(r, &record)) {
        rows++;
        if (info->kind == PST_BASE)
            CHECK(record.op == PST_PUT && record.changed && record.changed == record.present);
        CHECK(record.key_group >= info->first_key_group &&
              record.key_group <= info->last_key_group);
        map_apply(m, &record, NULL, m->schema->n_states);
    }
    CHECK_EQ(rows, info->rows + info->tombstones);
    pst_sst_reader_close(r);
}

/* A map whose bytes must outlive the readers: rows of the sources have the same values. */
static void test_against_map(uint64_t seed) {
    uint64_t rng = seed;
    source_set *x = set_new();
    random_schema target;
    int32_t n_keys = 1 + (int32_t)(check_random(&rng) % 3);
    int32_t n_states = 1 + (int32_t)(check_random(&rng) % 8);
    int mapped = seed % 3 == 0;
    /* fixed-width states only, so that cells outlive the file that they were read from; a bytes
     * key lives in the rows */
    schema_random(&target, &rng, n_keys, n_states);
    for (int32_t i = 0; i < n_keys + n_states; i++)
        if (target.columns[i].type >= PST_STRING)
            target.columns[i].type = i < n_keys ? PST_INT16 : PST_FLOAT64;
    row_style style = WHOLE;
    style.domain = n_keys == 1 ? 300 : n_keys == 2 ? 18 : 7;
    style.null_keys = seed % 2 ? 5 : 0;
    /* A base and small deltas, whose rows stand together in stretches. */
    int plain = seed % 5 < 2;
    style.null_values = !plain ? 15 : seed % 5 ? 0 : 3;
    style.deletes = plain ? 0 : 15;
    style.masks = plain ? 1 : (uint32_t)(seed % 4);
    int32_t n_files = (int32_t)(check_random(&rng) % (seed % 10 ? 6 : MAX_FILES));
    for (int32_t i = 0; i < n_files; i++) {
        random_schema *s = &x->schemas[i];
        *s = target;
        schema_done(s, n_keys, n_states);
        if (mapped && i % 3 > 0) {
            /* an older schema: some of the columns in another order, and one that is gone */
            int32_t n = 0;
            int32_t from = (int32_t)(check_random(&rng) % (uint64_t)n_states);
            for (int32_t c = 0; c < n_states; c++) {
                int32_t to = (from + c) % n_states;
                if (check_random(&rng) % 3 == 0)
                    continue;
                s->columns[n_keys + n] = target.columns[n_keys + to];
                x->columns[i][n++] = to;
            }
            schema_add(s, n_keys + n, PST_STRING, 0);
            s->columns[n_keys + n].name = "gone";
            x->columns[i][n++] = -1;
            schema_done(s, n_keys, n);
            x->mapping[i] = x->columns[i];
        }
        set_add(x, &s->schema, &style, &rng,
                check_random(&rng) % (!plain     ? 400
                                      : i        ? 12
                                      : seed % 2 ? 400
                                                 : 40));
    }
    /* what was there before */
    random_rows before = rows_random(&target.schema, &style, &rng, 200);
    map prior = {.schema = &target.schema};
    for (size_t i = 0; i < before.n; i++)
        map_apply(&prior, &before.rows[i], NULL, n_states);
    map expected = map_copy(&prior), fresh = {.schema = &target.schema};
    for (int32_t i = 0; i < n_files; i++)
        for (size_t k = 0; k < x->rows[i].n; k++) {
            const int32_t *columns = mapped ? x->mapping[i] : NULL;
            int32_t n = x->schemas[i].schema.n_states;
            map_apply(&expected, &x->rows[i].rows[k], columns, n);
            map_apply(&fresh, &x->rows[i].rows[k], columns, n);
        }
    for (int part = 0; part < 2; part++) {
        row_style range = style;
        range.block_bytes = seed / 2 % 2 ? 4096 : 0;
        if (part == 1) {
            range.first_key_group = (int32_t)(check_random(&rng) % 64);
            range.last_key_group =
                range.first_key_group +
                (int32_t)(check_random(&rng) % (uint64_t)(64 - range.first_key_group));
        }
        memory_file f = {0};
        pst_io io = file_io(&f, part);
        pst_file_info info = info_of(PST_DELTA, &range, 99);
        CHECK_EQ(merge_into(&target.schema, &info, x, mapped, &io), PST_OK);
        map after = map_copy(&prior);
        map_apply_file(&after, &io, &info);
        CHECK(map_same(&expected, &after, range.first_key_group, range.last_key_group));
        free(after.rows);
        f.size = 0;
        info = info_of(PST_BASE, &range, 99);
        CHECK_EQ(merge_into(&target.schema, &info, x, mapped, &io), PST_OK);
        CHECK_EQ(info.tombstones, 0);
        map base = {.schema = &target.schema};
        map_apply_file(&base, &io, &info);
        CHECK(map_same(&fresh, &base, range.first_key_group, range.last_key_group));
        free(base.rows);
        file_free(&f);
    }
    free(prior.rows);
    free(expected.rows);
    free(fresh.rows);
    rows_free(&before);
    set_free(x);
}

/* Bytes come through a merge: the newest file's values where it has the key, else the older's. */
static void test_bytes(void) {
    uint64_t rng = 1000;
    source_set *x = set_new();
    random_schema s;
    schema_add(&s, 0, PST_STRING, 0);
    schema_add(&s, 1, PST_BINARY, 0);
    schema_add(&s, 2, PST_OBJECT, 0);
    schema_done(&s, 1, 2);
    row_style style = WHOLE;
    style.domain = 4000;
    for (int i = 0; i < 2; i++)
        set_add(x, &s.schema, &style, &rng, 3000);
    memory_file f = {0};
    pst_io io = file_io(&f, 1);
    pst_file_info info = info_of(PST_BASE, &style, 99);
    CHECK_EQ(merge_into(&s.schema, &info, x, 0, &io), PST_OK);
    pst_sst_reader *r = NULL;
    REQUIRE(pst_sst_reader_open(&io, f.size, &r, NULL) == PST_OK);
    pst_record record;
    size_t a = 0, b = 0, both = 0;
    const random_rows *old = &x->rows[0], *new = &x->rows[1];
    while (!pst_sst_reader_next(r, &record)) {
        int in_old = a < old->n && compare_rows(&s.schema, &old->rows[a], &record) == 0;
        int in_new = b < new->n && compare_rows(&s.schema, &new->rows[b], &record) == 0;
        CHECK(in_old || in_new);
        const pst_record *expected = in_new ? &new->rows[b] : &old->rows[a];
        CHECK(same_row(&s.schema, expected, &record));
        a += (size_t)in_old;
        b += (size_t)in_new;
        both += (size_t)(in_old && in_new);
    }
    CHECK(a == old->n && b == new->n && both > 100);
    pst_sst_reader_close(r);
    file_free(&f);
    set_free(x);
}

/* What one key's records become: the forms that the map cannot tell apart. */
static void test_folding(void) {
    random_schema s;
    schema_add(&s, 0, PST_INT64, 0);
    schema_add(&s, 1, PST_INT64, 0);
    schema_add(&s, 2, PST_INT64, 0);
    schema_done(&s, 1, 2);
    static const struct {
        pst_record_op op[2];
        uint64_t changed[2], present[2]; /* older, newer */
        int rows;                        /* in a delta */
        pst_record_op folded_op;
        uint64_t folded_changed, folded_present;
        int base_rows;
    } cases[] = {
        {{PST_PUT, PST_PUT}, {1, 2}, {1, 2}, 1, PST_PUT, 3, 3, 1},
        {{PST_PUT, PST_PUT}, {1, 1}, {1, 0}, 1, PST_PUT, 1, 0, 0},
        {{PST_PUT, PST_PUT}, {3, 3}, {3, 0}, 1, PST_DELETE, 0, 0, 0},
        {{PST_PUT, PST_DELETE}, {3, 0}, {3, 0}, 1, PST_DELETE, 0, 0, 0},
        {{PST_DELETE, PST_PUT}, {0, 1}, {0, 1}, 1, PST_PUT, 3, 1, 1},
        {{PST_DELETE, PST_PUT}, {0, 1}, {0, 0}, 1, PST_DELETE, 0, 0, 0},
        {{PST_DELETE, PST_DELETE}, {0, 0}, {0, 0}, 1, PST_DELETE, 0, 0, 0},
        {{PST_PUT, PST_PUT}, {4, 4}, {4, 0}, 0, PST_PUT, 0, 0, 0}, /* only what is dropped */
        {{PST_DELETE, PST_PUT}, {0, 4}, {0, 4}, 1, PST_DELETE, 0, 0, 0},
        {{PST_PUT, PST_PUT}, {4, 5}, {4, 5}, 1, PST_PUT, 1, 1, 1},
    };
    random_schema from = s;
    for (int32_t i = 0; i < 3; i++)
        from.columns[i].name = from.names[i];
    schema_add(&from, 3, PST_STRING, 0);
    schema_done(&from, 1, 3);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        source_set *x = set_new();
        x->n = 2;
        for (int32_t k = 0; k < 2; k++) {
            pst_record r;
            memset(&r, 0, sizeof r);
            r.op = cases[i].op[k];
            r.key[0].word[0] = 77;
            r.hash = pst_hash_key(s.schema.keys, 1, r.key, 0);
            r.key_group = pst_key_group(r.hash, 64);
            r.changed = cases[i].changed[k];
            r.present = cases[i].present[k];
            x->io[k] = file_io(&x->files[k], 0);
            pst_file_info info = info_of(PST_DELTA, &WHOLE, (uint8_t)(k + 1));
            REQUIRE(write_rows(&from.schema, &info, &x->io[k], &r, 1) == PST_OK);
            REQUIRE(pst_sst_reader_open(&x->io[k], x->files[k].size, &x->readers[k], NULL) ==
                    PST_OK);
            memcpy(x->columns[k], (int32_t[]){0, 1, -1}, 3 * sizeof(int32_t));
            x->mapping[k] = x->columns[k];
        }
        memory_file f = {0};
        pst_io io = file_io(&f, 0);
        pst_file_info info = info_of(PST_DELTA, &WHOLE, 99);
        CHECK_EQ(merge_into(&s.schema, &info, x, 1, &io), PST_OK);
        CHECK_EQ(info.rows + info.tombstones, cases[i].rows);
        pst_sst_reader *r = NULL;
        pst_record record;
        REQUIRE(pst_sst_reader_open(&io, f.size, &r, NULL) == PST_OK);
        if (pst_sst_reader_next(r, &record) == PST_OK) {
            CHECK_EQ(record.op, cases[i].folded_op);
            CHECK_EQ(record.changed, cases[i].folded_changed);
            CHECK_EQ(record.present, cases[i].folded_present);
        }
        pst_sst_reader_close(r);
        f.size = 0;
        info = info_of(PST_BASE, &WHOLE, 99);
        CHECK_EQ(merge_into(&s.schema, &info, x, 1, &io), PST_OK);
        CHECK_EQ(info.rows, cases[i].base_rows);
        file_free(&f);
        set_free(x);
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

static pst_record one_row(const pst_schema *s, uint64_t key, int32_t max_parallelism) {
    pst_record r;
    memset(&r, 0, sizeof r);
    r.op = PST_PUT;
    r.key[0].word[0] = key;
    r.hash = pst_hash_key(s->keys, 1, r.key, 0);
    r.key_group = pst_key_group(r.hash, max_parallelism);
    r.changed = r.present = 1;
    return r;
}

static pst_status merge_one(const pst_schema *from, int32_t max_parallelism, const pst_schema *to,
                            const int32_t *columns) {
    memory_file f = {0}, out = {0};
    pst_io io = file_io(&f, 0), out_io = file_io(&out, 0);
    pst_record row = one_row(from, 5, max_parallelism);
    row_style style = {.max_parallelism = max_parallelism, .last_key_group = max_parallelism - 1};
    pst_file_info info = info_of(PST_DELTA, &style, 1), target = info_of(PST_DELTA, &WHOLE, 2);
    REQUIRE(write_rows(from, &info, &io, &row, 1) == PST_OK);
    source_set *x = set_new();
    REQUIRE(pst_sst_reader_open(&io, f.size, &x->readers[0], NULL) == PST_OK);
    x->n = 1;
    x->mapping[0] = columns;
    pst_status status = merge_into(to, &target, x, columns != NULL, &out_io);
    set_free(x);
    file_free(&f);
    file_free(&out);
    return status;
}

static void test_refusals(void) {
    random_schema a, b;
    schema_add(&a, 0, PST_INT64, 0);
    schema_add(&a, 1, PST_INT32, 0);
    schema_add(&a, 2, PST_STRING, 0);
    schema_done(&a, 1, 2);
    CHECK_EQ(merge_one(&a.schema, 64, &a.schema, NULL), PST_OK);
    CHECK_EQ(merge_one(&a.schema, 48, &a.schema, NULL), PST_SCHEMA);
    CHECK_EQ(merge_one(&a.schema, 128, &a.schema, NULL), PST_SCHEMA);
    CHECK_EQ(merge_one(&a.schema, 32, &a.schema, NULL), PST_INVALID); /* two parts of each group */
    b = a;
    schema_done(&b, 1, 1);
    CHECK_EQ(merge_one(&b.schema, 64, &a.schema, NULL), PST_SCHEMA);
    CHECK_EQ(merge_one(&a.schema, 64, &b.schema, NULL), PST_SCHEMA);
    CHECK_EQ(merge_one(&b.schema, 64, &a.schema, (int32_t[]){0}), PST_OK);
    CHECK_EQ(merge_one(&b.schema, 64, &a.schema, (int32_t[]){1}), PST_SCHEMA);
    CHECK_EQ(merge_one(&b.schema, 64, &a.schema, (int32_t[]){2}), PST_INVALID);
    CHECK_EQ(merge_one(&a.schema, 64, &b.schema, (int32_t[]){0, -1}), PST_OK);
    CHECK_EQ(merge_one(&a.schema, 64, &b.schema, (int32_t[]){0, 0}), PST_INVALID);
    b = a;
    schema_done(&b, 1, 2);
    b.columns[1].type = PST_DATE32;
    CHECK_EQ(merge_one(&b.schema, 64, &a.schema, NULL), PST_SCHEMA);
    b = a;
    schema_done(&b, 1, 2);
    b.columns[2].name = "another";
    CHECK_EQ(merge_one(&b.schema, 64, &a.schema, NULL), PST_SCHEMA);
    b = a;
    schema_done(&b, 1, 2);
    b.columns[0].type = PST_TIMESTAMP;
    CHECK_EQ(merge_one(&b.schema, 64, &a.schema, NULL), PST_SCHEMA);
}

/* Damage, refused memory and failing callbacks of a source or of the target end a merge with
 * their own status. */
static void test_failures(void) {
    uint64_t rng = 2000;
    source_set *x = set_new();
    random_schema s;
    schema_add(&s, 0, PST_INT64, 0);
    schema_add(&s, 1, PST_INT64, 0);
    schema_done(&s, 1, 1);
    for (int i = 0; i < 3; i++)
        set_add(x, &s.schema, &WHOLE, &rng, 20000);
    memory_file f = {0};
    pst_io io = file_io(&f, 0);
    pst_file_info info;
    for (int64_t n = 0;; n++) {
        f.size = 0;
        info = info_of(PST_BASE, &WHOLE, 99);
        check_fail_alloc(n, 0);
        pst_status status = merge_into(&s.schema, &info, x, 0, &io);
        int refused = check_alloc_failed();
        check_fail_alloc(-1, 0);
        CHECK_EQ(status, refused ? PST_NO_MEMORY : PST_OK);
        if (!refused)
            break;
    }
    CHECK(info.rows > 40000);
    for (int32_t source = 0; source < 3; source++) {
        for (int64_t calls = 0; calls < 3; calls++) {
            x->files[source].calls_left = calls;
            info = info_of(PST_BASE, &WHOLE, 99);
            CHECK_EQ(merge_into(&s.schema, &info, x, 0, &io),
                     x->files[source].calls_left < 0 ? PST_OK : PST_CALLBACK);
        }
        x->files[source].calls_left = -1;
        uint8_t *byte = x->files[source].data + x->files[source].size / 2;
        *byte ^= 4;
        info = info_of(PST_BASE, &WHOLE, 99);
        CHECK_EQ(merge_into(&s.schema, &info, x, 0, &io), PST_CORRUPT);
        CHECK(pst_sst_reader_detail(x->readers[source])->offset > 0);
        *byte ^= 4;
    }
    for (f.calls_left = 0; f.calls_left < 4;) {
        int64_t calls = f.calls_left;
        info = info_of(PST_BASE, &WHOLE, 99);
        CHECK_EQ(merge_into(&s.schema, &info, x, 0, &io), PST_CALLBACK);
        f.calls_left = calls + 1;
    }
    file_free(&f);
    set_free(x);
}

/* ---- times that a file does not have --------------------------------------------------------- */

static pst_column value_key = {.name = "k", .type = PST_INT64};
static pst_column value_states[] = {{.name = "v", .type = PST_INT64},
                                    {.name = "v#time", .type = PST_INT64, .kind = PST_TIME}};
static pst_schema with_time = {
    .n_keys = 1, .n_states = 2, .keys = &value_key, .states = value_states};
static pst_schema without_time = {
    .n_keys = 1, .n_states = 1, .keys = &value_key, .states = value_states};

static pst_table *value_table(const pst_schema *schema, int64_t now_ms) {
    pst_table_options o = {
        .max_parallelism = 4, .last_key_group = 3, .limit_bytes = (uint64_t)1 << 26};
    pst_ttl ttl = {.duration_ms = 100};
    pst_clock clock = {now_ms, PST_NO_TIME, PST_NO_TIME};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(schema, &o, &t, NULL, NULL) == PST_OK);
    if (schema->n_states == 2)
        REQUIRE(pst_table_set_ttl(t, 0, &ttl) == PST_OK);
    pst_table_set_clock(t, &clock);
    return t;
}

static memory_file value_file(const pst_schema *schema, int64_t now_ms, uint64_t key) {
    pst_table *t = value_table(schema, now_ms);
    pst_cell k = {{key, 0}, {NULL, 0}}, v = {{(uint64_t)now_ms, 0}, {NULL, 0}};
    pst_lineage l = {.epoch = 1};
    pst_sealed *sealed = NULL;
    memory_file f = {.calls_left = -1};
    pst_io io = file_io(&f, 1);
    pst_file_info info;
    REQUIRE(pst_key_set(t, &k, 0) == PST_OK && pst_value_put(t, 0, &v) == PST_OK);
    REQUIRE(pst_table_seal(t, &l, &sealed) == PST_OK);
    REQUIRE(pst_sealed_write(sealed, &io, &info) == PST_OK);
    pst_sealed_destroy(sealed);
    pst_table_close(t);
    return f;
}

/* With a time to live, without, with: the value of the second is not as old as that of the
 * first. */
static void test_time_to_live_off_and_on(void) {
    static const int32_t both[] = {0, 1}, alone[] = {0};
    const int32_t *maps[] = {both, alone, both};
    memory_file files[] = {value_file(&with_time, 1000, 7), value_file(&without_time, 9990, 7),
                           value_file(&with_time, 9995, 8)};
    for (int first = 0; first < 3; first++) {
        /* A base comes first. */
        for (pst_file_kind kind = PST_DELTA; kind <= (first ? PST_DELTA : PST_BASE); kind++) {
            pst_table *t = value_table(&with_time, 10000);
            pst_sst_reader *readers[3], *merged = NULL;
            memory_file out = {.calls_left = -1};
            pst_io io = file_io(&out, 1);
            pst_file_info info = {.kind = kind, .max_parallelism = 4, .last_key_group = 3};
            for (int i = 0; i < 3; i++)
                REQUIRE(file_open(&files[i], &readers[i]) == PST_OK);
            /* What comes before the merged ones is loaded by itself. */
            for (int i = 0; i < first; i++)
                REQUIRE(pst_table_load(t, readers[i], maps[i], i == 1 ? 1 : 2, NULL) == PST_OK);
            CHECK_EQ(file_merge(&with_time, &info, readers + first, maps + first, 3 - first, &io),
                     PST_OK);
            REQUIRE(file_open(&out, &merged) == PST_OK);
            CHECK_EQ(pst_table_load(t, merged, both, 2, NULL), PST_OK);
            pst_cell key = {{7, 0}, {NULL, 0}}, v;
            REQUIRE(pst_key_set(t, &key, 0) == PST_OK);
            CHECK_EQ(pst_value_get(t, 0, &v), PST_OK);
            CHECK_EQ(v.word[0], 9990);
            for (int i = 0; i < 3; i++)
                pst_sst_reader_close(readers[i]);
            pst_sst_reader_close(merged);
            pst_table_close(t);
            file_free(&out);
        }
    }
    for (int i = 0; i < 3; i++)
        file_free(&files[i]);
}

/* A value that is cleared while its state has no time to live leaves no time of an older one's. */
static void test_time_goes_with_its_value(void) {
    static const int32_t all[] = {0, 1, 2}, fewer[] = {0, 2};
    pst_column timed[] = {value_states[0], value_states[1], {.name = "n", .type = PST_INT64}};
    pst_column untimed[] = {timed[0], timed[2]};
    pst_schema schemas[] = {{.n_keys = 1, .n_states = 3, .keys = &value_key, .states = timed},
                            {.n_keys = 1, .n_states = 2, .keys = &value_key, .states = untimed}};
    pst_record rows[] = {one_row(schemas, 5, 64), one_row(schemas, 5, 64)};
    rows[0].changed = rows[0].present = 7;
    rows[1].present = 0;
    for (pst_file_kind kind = PST_DELTA; kind <= PST_BASE; kind++) {
        source_set *x = set_new();
        memory_file out = {.calls_left = -1};
        pst_io io = file_io(&out, 0);
        pst_sst_reader *r = NULL;
        pst_record merged;
        for (int i = 0; i < 2; i++, x->n++) {
            pst_file_info info = info_of(PST_DELTA, &WHOLE, (uint8_t)(i + 1));
            x->io[i] = file_io(&x->files[i], 0);
            REQUIRE(write_rows(&schemas[i], &info, &x->io[i], &rows[i], 1) == PST_OK);
            REQUIRE(file_open(&x->files[i], &x->readers[i]) == PST_OK);
            x->mapping[i] = i ? fewer : all;
        }
        pst_file_info info = info_of(kind, &WHOLE, 3);
        CHECK_EQ(merge_into(schemas, &info, x, 1, &io), PST_OK);
        REQUIRE(file_open(&out, &r) == PST_OK);
        CHECK_EQ(pst_sst_reader_next(r, &merged), PST_OK);
        CHECK_EQ(merged.changed, kind == PST_BASE ? 4 : 7);
        CHECK_EQ(merged.present, 4);
        pst_sst_reader_close(r);
        file_free(&out);
        set_free(x);
    }
}

/* The next record of a row. */
static pst_status next_row(pst_sst_reader *r, uint32_t element, pst_record *record) {
    pst_status s;
    do {
        s = pst_sst_reader_next(r, record);
    } while (!s && element && !(record->key_nulls & element));
    return s;
}

/* The last list and map were dropped: a merge without the element column has the rows that one with
 * that column has. */
static void test_dropped_elements(world_style style, uint32_t block_bytes) {
    static world w;
    static const int32_t kept[] = {0, -1, -1};
    const int32_t *mapping[WORLD_FILES];
    uint64_t rng = 5;
    memory_file files[2] = {{.calls_left = -1}, {.calls_left = -1}};
    pst_sst_reader *all = NULL, *rows = NULL;
    pst_record a, b;
    size_t n = 0;
    world_begin(&w, style);
    for (int32_t i = 0; i < 4; i++) {
        world_write(&w, i, &rng, i ? 200 : 800, 700, 40);
        mapping[i] = kept;
    }
    for (int k = 0; k < 2; k++) {
        pst_sst_reader *readers[WORLD_FILES];
        memory_file copies[WORLD_FILES];
        for (int32_t i = 0; i < w.n; i++) {
            copies[i] = (memory_file){.calls_left = -1};
            pst_io io = file_io(&copies[i], 0);
            row_style whole = {.max_parallelism = WORLD_GROUPS, .last_key_group = WORLD_GROUPS - 1};
            pst_file_info info = info_of(i ? PST_DELTA : PST_BASE, &whole, (uint8_t)(i + 1));
            REQUIRE(!write_rows(&w.schema, &info, &io, w.rows[i].rows, w.rows[i].n));
            REQUIRE(!file_open(&copies[i], &readers[i]));
        }
        row_style whole = {.max_parallelism = WORLD_GROUPS,
                           .last_key_group = WORLD_GROUPS - 1,
                           .block_bytes = block_bytes};
        pst_file_info info = info_of(PST_BASE, &whole, 99);
        pst_io io = file_io(&files[k], 0);
        pst_schema target = w.schema;
        target.n_states = k ? 1 : w.schema.n_states;
        target.n_keys = k ? w.schema.n_keys - 1 : w.schema.n_keys;
        REQUIRE(!file_merge(&target, &info, readers, k ? mapping : NULL, w.n, &io));
        for (int32_t i = 0; i < w.n; i++) {
            pst_sst_reader_close(readers[i]);
            file_free(&copies[i]);
        }
    }
    REQUIRE(!file_open(&files[0], &all) && !file_open(&files[1], &rows));
    uint32_t element = UINT32_C(1) << (w.schema.n_keys - 1);
    while (!next_row(rows, 0, &b)) {
        /* A row that had nothing else is none any more. */
        do
            REQUIRE(!next_row(all, element, &a));
        while (!(a.present & 1));
        CHECK_EQ(a.hash, b.hash);
        CHECK(!pst_key_compare(w.schema.keys, w.schema.n_keys - 1, a.key, a.key_nulls & ~element,
                               b.key, b.key_nulls));
        CHECK_EQ(b.present, 1);
        CHECK_EQ(a.cells[0].word[0], b.cells[0].word[0]);
        n++;
    }
    while (!next_row(all, element, &a))
        CHECK(!(a.present & 1));
    CHECK(n > 300);
    pst_sst_reader_close(all);
    pst_sst_reader_close(rows);
    file_free(&files[0]);
    file_free(&files[1]);
    world_free(&w);
}

int main(void) {
    for (uint64_t seed = 1; seed <= 120; seed++)
        test_against_map(seed);
    test_bytes();
    test_folding();
    test_refusals();
    test_failures();
    test_time_to_live_off_and_on();
    test_time_goes_with_its_value();
    for (uint32_t block_bytes = 0; block_bytes <= 4096; block_bytes += 4096) {
        test_dropped_elements(WORLD_ELEMENTS, block_bytes);
        test_dropped_elements(WORLD_TIMERS, block_bytes);
    }
    return check_report();
}
