/* Guided files against a model: every key is found by its guide and nothing else is, whatever the
 * schema; filters lie only one way; rows of one hash go on in later blocks and segments; and no
 * flipped bit, and no cut, changes an answer. */
#include "guided.h"

#include "base/coding.h"
#include "file/sst_reader.h"
#include "key/schema.h"

static uint64_t mix(uint64_t x) {
    return check_random(&x);
}

typedef struct guided_file {
    memory_file f;
    pst_file_info info;
    random_rows rows;
} guided_file;

static const row_style WHOLE = {
    .max_parallelism = 128, .last_key_group = 127, .masks = 1, .block_bytes = 4096};

static void write_file(guided_file *x, const pst_schema *s, const row_style *style,
                       pst_file_kind kind, int compressed) {
    pst_io io = file_io(&x->f, compressed);
    x->info = info_of(kind, style, 7);
    REQUIRE(write_rows(s, &x->info, &io, x->rows.rows, x->rows.n) == PST_OK);
    as_stored(kind, &x->rows);
}

static void free_file(guided_file *x) {
    file_free(&x->f);
    rows_free(&x->rows);
}

static void check_sequential(guided_file *x, const pst_schema *s) {
    size_t equal;
    pst_io io = file_io(&x->f, 1);
    if (x->info.block_bytes)
        io.decompress = NULL; /* the core does it itself */
    CHECK_EQ(read_rows(s, &io, x->f.size, x->rows.rows, x->rows.n, &equal), PST_OK);
    CHECK_EQ(equal, x->rows.n);
}

/* Rows of a key that are next to each other: one, but for files with elements. */
static size_t rows_of(const pst_schema *s, const random_rows *rows, size_t i) {
    size_t n = 1;
    int32_t columns = s->n_keys - pst_schema_has_element(s);
    while (i + n < rows->n && columns < s->n_keys && rows->rows[i + n].hash == rows->rows[i].hash &&
           !pst_key_compare(s->keys, columns, rows->rows[i].key, rows->rows[i].key_nulls,
                            rows->rows[i + n].key, rows->rows[i + n].key_nulls))
        n++;
    return n;
}

static void check_found(guided_file *x, const pst_schema *s, size_t step) {
    guided g;
    REQUIRE(guided_open(&g, &x->f) == PST_OK);
    CHECK_EQ(g.guide->info.block_bytes, x->info.block_bytes);
    CHECK_EQ(g.guide->info.rows, x->info.rows);
    CHECK_EQ(g.guide->info.tombstones, x->info.tombstones);
    size_t wrong = 0, lost = 0, beyond = 0;
    for (size_t i = 0, n; i < x->rows.n; i += n) {
        n = rows_of(s, &x->rows, i);
        if (mix(i) % step)
            continue;
        const pst_record *r = &x->rows.rows[i];
        guided_found found = {.schema = s, .rows = r, .n = n};
        lost += guided_find(&g, r, &found) != PST_OK || found.records != n;
        wrong += found.equal != n;
        beyond += !pst_guide_is_within(g.guide, r->key, r->key_nulls, s->n_keys);
    }
    CHECK_EQ(lost, 0);
    CHECK_EQ(wrong, 0);
    CHECK_EQ(beyond, 0);
    guided_close(&g);
}

/* ---- random schemas -------------------------------------------------------------------------- */

static void test_schemas(void) {
    for (uint64_t seed = 1; seed <= 60; seed++) {
        uint64_t rng = seed;
        random_schema s;
        schema_random(&s, &rng, 1 + (int32_t)(seed % 3), (int32_t)(seed % 7));
        row_style style = {.domain = seed % 3 ? 0 : 500,
                           .null_keys = seed % 4 ? 0 : 10,
                           .null_values = 10,
                           .deletes = seed % 2 ? 10 : 0,
                           .masks = (uint32_t)(seed % 5),
                           .max_parallelism = seed % 2 ? 128 : 12,
                           .first_key_group = 0,
                           .last_key_group = seed % 2 ? 127 : 11,
                           .block_bytes = seed % 4 == 3 ? 0
                                          : seed % 3    ? 4096
                                                        : 10000};
        guided_file x = {.rows =
                             rows_random(&s.schema, &style, &rng, 1 + check_random(&rng) % 1500)};
        write_file(&x, &s.schema, &style, seed % 2 ? PST_DELTA : PST_BASE, seed % 3 != 0);
        check_sequential(&x, &s.schema);
        check_found(&x, &s.schema, 1);
        free_file(&x);
    }
}

/* A long, and `n` longs. */
static void make_longs(random_schema *s, int32_t n) {
    for (int32_t i = 0; i <= n; i++)
        schema_add(s, i, PST_INT64, 0);
    schema_done(s, 1, n);
}

static void check_absent(guided_file *x, const pst_schema *s, uint64_t *rng) {
    enum { ABSENT = 40000 };
    guided g;
    REQUIRE(guided_open(&g, &x->f) == PST_OK);
    CHECK(g.guide->n_segments > 2);
    size_t records = 0, failed = 0;
    pst_record *r = calloc(1, sizeof *r);
    REQUIRE(r);
    for (size_t i = 0; i < ABSENT; i++) {
        guided_found found = {.schema = s};
        r->key[0].word[0] = check_random(rng) | UINT64_C(1) << 63; /* others have fewer bits */
        r->hash = pst_hash_key(s->keys, 1, r->key, 0);
        r->key_group = pst_key_group(r->hash, 128);
        failed += guided_find(&g, r, &found) != PST_OK;
        records += found.records;
    }
    CHECK_EQ(failed, 0);
    CHECK_EQ(records, 0);
    CHECK(g.filters_asked > ABSENT / 10 * 9);
    CHECK(g.filters_passed < ABSENT / 150); /* a false answer in 150 is too many */
    CHECK(g.filters_passed > 0);
    free(r);
    guided_close(&g);
}

/* Several segments, several ranges, and keys that are not there. */
static void test_many(void) {
    enum { ROWS = 20000, STATES = 20 };
    uint64_t rng = 3;
    random_schema s;
    make_longs(&s, STATES);
    guided_file x = {.rows = rows_random(&s.schema, &WHOLE, &rng, ROWS)};
    size_t kept = 0;
    for (size_t i = 0; i < x.rows.n; i++)
        if (!(x.rows.rows[i].key[0].word[0] >> 63))
            x.rows.rows[kept++] = x.rows.rows[i];
    x.rows.n = kept;
    write_file(&x, &s.schema, &WHOLE, PST_BASE, 1);
    check_sequential(&x, &s.schema);
    check_found(&x, &s.schema, 8);
    check_absent(&x, &s.schema, &rng);
    for (int32_t first = 0; first < 120; first += 17) {
        pst_sst_reader *r = NULL;
        pst_record record;
        size_t n = 0, expected = 0;
        uint64_t rows = 0;
        REQUIRE(file_open(&x.f, &r) == PST_OK);
        CHECK_EQ(pst_sst_reader_seek(r, first, first + 2), PST_OK);
        while (!pst_sst_reader_next(r, &record))
            n++;
        for (size_t i = 0; i < x.rows.n; i++)
            expected += x.rows.rows[i].key_group >= first && x.rows.rows[i].key_group <= first + 2;
        for (int32_t k = first; k <= first + 2; k++)
            rows += pst_sst_reader_estimate(r, k);
        CHECK_EQ(n, expected);
        CHECK(rows > expected / 2 && rows < expected * 2);
        double puts[3] = {0}, deletes[3] = {0}, bytes[3] = {0};
        pst_sst_reader_spread(r, first, 3, puts, deletes, bytes);
        double spread = puts[0] + puts[1] + puts[2];
        CHECK(spread > (double)expected * 0.5 && spread < (double)expected * 2);
        CHECK(bytes[0] > 0 && bytes[1] > 0 && bytes[2] > 0);
        pst_sst_reader_close(r);
    }
    free_file(&x);
}

/* ---- rows of one hash ------------------------------------------------------------------------ */

enum { VALUE = 100, LARGE = 12000 };
static uint8_t element_bytes[LARGE + 1][12];
static uint8_t value_bytes[2 * VALUE];

static void put_element(const pst_schema *s, uint64_t key, uint32_t element, pst_record *r) {
    r->op = PST_PUT;
    r->key[0].word[0] = key;
    r->hash = pst_hash_key(s->keys, 1, r->key, 0);
    r->key_group = pst_key_group(r->hash, 128);
    r->changed = 1;
    if (!element) {
        r->key_nulls = 2;
        return;
    }
    pst_put_big(element_bytes[element], pst_collection_id("m"), 4);
    pst_put_big(element_bytes[element] + 4, element, 8);
    r->key[1].bytes = (pst_bytes){element_bytes[element], 12};
    r->present = 1;
    r->cells[0].bytes = (pst_bytes){value_bytes + (key + element) % VALUE, VALUE};
}

/* Maps, one of which takes more than a segment. */
static void test_elements(void) {
    enum { KEYS = 200, MOST = 90 };
    pst_column columns[] = {
        {.name = "k", .type = PST_INT64},
        {.name = PST_ELEMENT_COLUMN, .type = PST_BINARY},
        {.name = "m", .type = PST_BINARY, .kind = PST_MAP, .map_key = PST_INT64}};
    pst_schema s = {2, 1, columns, columns + 2, 1};
    guided_file x = {.rows = {calloc(2 * (LARGE + KEYS * MOST), sizeof(pst_record)), 0,
                              calloc(1, sizeof(byte_heap))}};
    REQUIRE(x.rows.rows && x.rows.heap);
    for (size_t i = 0; i < sizeof value_bytes; i++)
        value_bytes[i] = (uint8_t)mix(i);
    for (uint64_t key = 0; key < KEYS; key++) {
        uint32_t n = key == 17 ? LARGE : (uint32_t)(mix(key) % MOST);
        for (uint32_t i = key % 3 ? 0 : 1; i <= n; i++)
            put_element(&s, key, i, &x.rows.rows[x.rows.n++]);
    }
    sort_rows(&s, x.rows.rows, x.rows.rows + x.rows.n, x.rows.n);
    write_file(&x, &s, &WHOLE, PST_DELTA, 1);
    check_sequential(&x, &s);
    check_found(&x, &s, 1);
    guided g;
    REQUIRE(guided_open(&g, &x.f) == PST_OK);
    uint32_t continued = 0;
    for (uint32_t i = 0; i < g.guide->n_segments; i++)
        continued += g.guide->segments[i].continued;
    CHECK(continued > 0);
    guided_close(&g);
    free_file(&x);
}

/* Keys with namespaces: many rows of one hash, which the key's other columns tell apart. */
static void test_namespaces(void) {
    enum { KEYS = 60, WINDOWS = 120 };
    pst_column columns[] = {{.name = "k", .type = PST_INT64},
                            {.name = "window", .type = PST_TIMESTAMP},
                            {.name = "v", .type = PST_INT64}};
    pst_schema s = {2, 1, columns, columns + 2, 1};
    guided_file x = {
        .rows = {calloc(2 * KEYS * WINDOWS, sizeof(pst_record)), 0, calloc(1, sizeof(byte_heap))}};
    REQUIRE(x.rows.rows && x.rows.heap);
    for (uint64_t i = 0; i < KEYS * WINDOWS; i++) {
        pst_record *r = &x.rows.rows[x.rows.n++];
        r->op = PST_PUT;
        r->key[0].word[0] = i % KEYS;
        r->key[1].word[0] = 1000000 + i / KEYS * 60;
        r->hash = pst_hash_key(s.keys, 1, r->key, 0);
        r->key_group = pst_key_group(r->hash, 128);
        r->changed = r->present = 1;
        r->cells[0].word[0] = i;
    }
    sort_rows(&s, x.rows.rows, x.rows.rows + x.rows.n, x.rows.n);
    write_file(&x, &s, &WHOLE, PST_BASE, 1);
    check_sequential(&x, &s);
    check_found(&x, &s, 1);
    guided g;
    REQUIRE(guided_open(&g, &x.f) == PST_OK);
    pst_record r = x.rows.rows[5];
    guided_found found = {.schema = &s};
    CHECK(pst_guide_is_within(g.guide, r.key, 0, 2));
    r.key[1].word[0] = 1000000 + WINDOWS * 60;
    CHECK(!pst_guide_is_within(g.guide, r.key, 0, 2));
    r.key[1].word[0] = 1000001; /* within, and not there */
    CHECK(pst_guide_is_within(g.guide, r.key, 0, 2));
    CHECK_EQ(guided_find(&g, &r, &found), PST_OK);
    CHECK_EQ(found.records, 0);
    r.key[1].word[0] = (uint64_t)-1;
    CHECK(!pst_guide_is_within(g.guide, r.key, 0, 2));
    CHECK(pst_guide_is_within(g.guide, r.key, 2, 2)); /* a null has no bounds */
    guided_close(&g);
    free_file(&x);
}

/* Several wanted keys in one block, in the order of places. */
static void test_wanted_together(void) {
    uint64_t rng = 11;
    random_schema s;
    make_longs(&s, 2);
    guided_file x = {.rows = rows_random(&s.schema, &WHOLE, &rng, 5000)};
    write_file(&x, &s.schema, &WHOLE, PST_BASE, 1);
    guided g;
    REQUIRE(guided_open(&g, &x.f) == PST_OK);
    size_t at = 0, wrong = 0;
    for (uint32_t k = 0; k < g.guide->n_segments; k++) {
        const pst_guide_segment *segment = &g.guide->segments[k];
        const uint8_t *entries = x.f.data + segment->guide;
        for (uint32_t i = 0; i < segment->blocks; i++) {
            pst_guide_block b = pst_guide_block_at(segment, entries, i);
            int32_t group;
            uint64_t hash = guided_end(segment, entries, i, &group);
            uint8_t *stored = guided_part(&x.f, b.offset, b.offset + b.stored);
            REQUIRE(!pst_search_open(&g.search, g.guide, &b, group, hash, stored));
            for (uint32_t row = 0; row < b.rows; row++) {
                const pst_record *r = &x.rows.rows[at + row];
                pst_record record = *r;
                uint32_t n;
                if (check_random(&rng) % 3 == 0) {
                    pst_wanted w = {r->hash, r->key_group, 0, r->key};
                    wrong += pst_search_find(&g.search, &w, &n) != row || n != 1;
                    wrong += pst_search_record(&g.search, row, &record) != PST_OK ||
                             !same_row(&s.schema, r, &record);
                } else if (row + 1 < b.rows && r[1].hash - r->hash > 1) {
                    pst_wanted w = {r->hash + 128, r->key_group, 0, r->key};
                    (void)pst_search_find(&g.search, &w, &n);
                    wrong += n != 0;
                }
            }
            /* Records may be read in any order. */
            pst_record record = x.rows.rows[at];
            wrong += pst_search_record(&g.search, 0, &record) != PST_OK ||
                     !same_row(&s.schema, &x.rows.rows[at], &record);
            at += b.rows;
            free(stored);
        }
    }
    CHECK_EQ(at, x.rows.n);
    CHECK_EQ(wrong, 0);
    guided_close(&g);
    free_file(&x);
}

/* ---- sizes ----------------------------------------------------------------------------------- */

/* Values that are larger than all that a segment's entry can say, compressed or not. */
static void test_large_values(void) {
    enum { ROWS = 3000, HUGE = 9 * 1024 * 1024 };
    uint64_t rng = 5;
    random_schema s;
    schema_add(&s, 0, PST_INT64, 0);
    schema_add(&s, 1, PST_BINARY, 0);
    schema_done(&s, 1, 1);
    uint8_t *noise = malloc(HUGE), *zeros = calloc(1, HUGE);
    REQUIRE(noise && zeros);
    for (size_t i = 0; i < HUGE; i++)
        noise[i] = (uint8_t)check_random(&rng);
    guided_file x = {.rows = rows_random(&s.schema, &WHOLE, &rng, ROWS)};
    for (size_t i = 100; i < x.rows.n; i += 500) {
        x.rows.rows[i].cells[0].bytes = (pst_bytes){noise, HUGE};
        x.rows.rows[i + 1].cells[0].bytes = (pst_bytes){zeros, HUGE};
        x.rows.rows[i + 3].cells[0].bytes = (pst_bytes){noise, 3 * 1024 * 1024};
        x.rows.rows[i + 4].cells[0].bytes = (pst_bytes){noise + 17, 3 * 1024 * 1024};
        for (size_t k = 0; k < 5; k++)
            x.rows.rows[i + k].present = 1;
    }
    write_file(&x, &s.schema, &WHOLE, PST_DELTA, 1);
    check_sequential(&x, &s.schema);
    check_found(&x, &s.schema, 1);
    free_file(&x);
    free(noise);
    free(zeros);
}

/* No rows; one row; the smallest and the largest blocks; and what is refused. */
static void test_bounds(void) {
    uint64_t rng = 9;
    random_schema s;
    make_longs(&s, 2);
    for (size_t n = 0; n < 3; n++) {
        guided_file x = {.rows = rows_random(&s.schema, &WHOLE, &rng, n)};
        write_file(&x, &s.schema, &WHOLE, PST_BASE, 1);
        check_sequential(&x, &s.schema);
        check_found(&x, &s.schema, 1);
        guided g;
        REQUIRE(guided_open(&g, &x.f) == PST_OK);
        CHECK_EQ(g.guide->n_segments, n > 0);
        pst_cell key = {{123, 0}, {NULL, 0}};
        guided_found found = {.schema = &s.schema};
        pst_record absent = {.hash = 1 << 8 | 127, .key_group = 127, .key = {key}};
        CHECK_EQ(guided_find(&g, &absent, &found), PST_OK);
        CHECK_EQ(found.records, 0);
        if (n == 0)
            CHECK(!pst_guide_is_within(g.guide, &key, 0, 1));
        guided_close(&g);
        free_file(&x);
    }
    static const struct {
        uint32_t block_bytes;
        int32_t max_parallelism;
        pst_status status;
    } cases[] = {{4096, 128, PST_OK},        {65536, 128, PST_OK},  {4095, 128, PST_INVALID},
                 {65537, 128, PST_INVALID},  {1, 128, PST_INVALID}, {4096, 65536, PST_OK},
                 {4096, 65537, PST_INVALID}, {0, 1 << 20, PST_OK}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        row_style style = WHOLE;
        style.block_bytes = cases[i].block_bytes;
        style.max_parallelism = cases[i].max_parallelism;
        style.last_key_group = cases[i].max_parallelism - 1;
        guided_file x = {.rows = rows_random(&s.schema, &style, &rng, 20000)};
        pst_io io = file_io(&x.f, 1);
        x.info = info_of(PST_BASE, &style, 7);
        CHECK_EQ(write_rows(&s.schema, &x.info, &io, x.rows.rows, x.rows.n), cases[i].status);
        as_stored(PST_BASE, &x.rows);
        if (!cases[i].status)
            check_sequential(&x, &s.schema);
        if (!cases[i].status && cases[i].block_bytes)
            check_found(&x, &s.schema, 16);
        guided g;
        if (!cases[i].block_bytes)
            CHECK_EQ(guided_open(&g, &x.f), PST_SCHEMA);
        free_file(&x);
    }
}

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct small_row {
    int32_t key_group;
    uint64_t hash;
    uint64_t key;
} small_row;

static int by_place(const void *a, const void *b) {
    const small_row *x = a, *y = b;
    return pst_place_compare(x->key_group, x->hash, y->key_group, y->hash);
}

/* No filter is of more hashes than a segment may have. */
static void check_segments(memory_file *f) {
    guided g;
    REQUIRE(guided_open(&g, f) == PST_OK);
    CHECK(g.guide->n_segments > 1);
    for (uint32_t i = 0; i < g.guide->n_segments; i++)
        CHECK(pst_guide_filter_size(&g.guide->segments[i]) <=
              (PST_GUIDE_KEYS + PST_GUIDE_ROWS) * PST_GUIDE_KEY_BITS / 8);
    guided_close(&g);
}

/* What a writer of n rows holds at most. */
static uint64_t peak_of(const random_schema *s, size_t n, uint32_t block_bytes) {
    small_row *rows = malloc(n * sizeof *rows);
    pst_record *r = calloc(1, sizeof *r);
    memory_file f = {0};
    pst_io io = file_io(&f, 1);
    pst_budget_stats stats;
    uint64_t peak = 0;
    REQUIRE(rows && r && pst_budget_create(0, &io.budget) == PST_OK);
    r->op = PST_PUT;
    r->changed = r->present = 3;
    for (size_t i = 0; i < n; i++) {
        r->key[0].word[0] = rows[i].key = i;
        rows[i].hash = pst_hash_key(s->schema.keys, 1, r->key, 0);
        rows[i].key_group = pst_key_group(rows[i].hash, 128);
    }
    qsort(rows, n, sizeof *rows, by_place);
    pst_file_info info = info_of(PST_BASE, &WHOLE, 7);
    pst_sst_writer *w;
    info.block_bytes = block_bytes;
    REQUIRE(pst_sst_writer_create(&s->schema, &info, &io, &w) == PST_OK);
    for (size_t i = 0; i < n; i++) {
        r->key[0].word[0] = rows[i].key;
        r->hash = rows[i].hash;
        r->key_group = rows[i].key_group;
        REQUIRE(pst_sst_writer_add(w, r) == PST_OK);
        if (i % 1000)
            continue;
        pst_budget_get_stats(io.budget, &stats);
        peak = stats.private_bytes > peak ? stats.private_bytes : peak;
    }
    REQUIRE(pst_sst_writer_finish(w, &info) == PST_OK);
    pst_sst_writer_destroy(w);
    pst_budget_get_stats(io.budget, &stats);
    CHECK_EQ(stats.private_bytes, 0);
    pst_budget_release(io.budget);
    check_segments(&f);
    file_free(&f);
    free(rows);
    free(r);
    return peak;
}

/* A writer holds a segment's hashes, however many segments it writes. */
static void test_memory(void) {
    random_schema s;
    make_longs(&s, 2);
    uint64_t small = peak_of(&s, 60000, 4096), large = peak_of(&s, 300000, 4096);
    (void)peak_of(&s, 300000, 65536);
    CHECK(small > 400000);
    CHECK(large < small + 100000);
}

/* Every allocation of writing, reading and searching may be refused, once. */
static void test_refused_memory(void) {
    uint64_t rng = 21;
    random_schema s;
    make_longs(&s, 2);
    guided_file x = {.rows = rows_random(&s.schema, &WHOLE, &rng, 3000)};
    write_file(&x, &s.schema, &WHOLE, PST_BASE, 1);
    pst_status status = PST_NO_MEMORY;
    for (int64_t k = 0; status; k++) {
        memory_file f = {0};
        pst_io io = file_io(&f, 1);
        pst_file_info info = info_of(PST_BASE, &WHOLE, 7);
        check_fail_alloc(k, 0);
        status = write_rows(&s.schema, &info, &io, x.rows.rows, x.rows.n);
        check_fail_alloc(-1, 0);
        CHECK(status == PST_NO_MEMORY || (f.size == x.f.size && !memcmp(f.data, x.f.data, f.size)));
        file_free(&f);
    }
    status = PST_NO_MEMORY;
    for (int64_t k = 0; status; k++) {
        guided g;
        guided_found found = {.schema = &s.schema, .rows = x.rows.rows, .n = 1};
        check_fail_alloc(k, 0);
        status = guided_open(&g, &x.f);
        if (!status)
            status = guided_find(&g, x.rows.rows, &found);
        check_fail_alloc(-1, 0);
        CHECK(status == PST_NO_MEMORY || (!status && found.equal == 1));
        if (g.guide)
            guided_close(&g);
    }
    status = PST_NO_MEMORY;
    for (int64_t k = 0; status; k++) {
        size_t equal;
        pst_io io = file_io(&x.f, 1);
        check_fail_alloc(k, 0);
        status = read_rows(&s.schema, &io, x.f.size, x.rows.rows, x.rows.n, &equal);
        check_fail_alloc(-1, 0);
        CHECK(status == PST_NO_MEMORY || (!status && equal == x.rows.n));
    }
    free_file(&x);
}

/* ---- damage ---------------------------------------------------------------------------------- */

/* Asks for keys that are there and that are not; counts answers that are neither right nor an
 * error. */
static size_t wrong_answers(memory_file *f, const pst_schema *s, const random_rows *rows,
                            const random_rows *absent, size_t step) {
    guided g;
    size_t wrong = 0;
    if (guided_open(&g, f) != PST_OK)
        return 0;
    for (size_t i = 0; i < rows->n; i += step) {
        guided_found found = {.schema = s, .rows = &rows->rows[i], .n = 1};
        pst_status st = guided_find(&g, &rows->rows[i], &found);
        wrong += st ? st != PST_CORRUPT : found.records != 1 || found.equal != 1;
    }
    for (size_t i = 0; i < absent->n; i++) {
        guided_found found = {.schema = s};
        pst_status st = guided_find(&g, &absent->rows[i], &found);
        wrong += st ? st != PST_CORRUPT : found.records != 0;
    }
    guided_close(&g);
    return wrong;
}

static void test_damage(uint32_t block_bytes) {
    row_style style = WHOLE;
    uint64_t rng = 31;
    random_schema s;
    make_longs(&s, 2);
    style.block_bytes = block_bytes;
    guided_file x = {.rows = rows_random(&s.schema, &style, &rng, 220)};
    random_rows absent = rows_random(&s.schema, &style, &rng, 3);
    write_file(&x, &s.schema, &style, PST_BASE, 1);
    size_t wrong = 0, unseen = 0, equal;
    pst_io io = file_io(&x.f, 1);
    for (size_t bit = 0; bit < x.f.size * 8; bit++) {
        x.f.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        wrong += wrong_answers(&x.f, &s.schema, &x.rows, &absent, 109);
        /* A reader of all looks at everything but the filters. */
        pst_status st = read_rows(&s.schema, &io, x.f.size, x.rows.rows, x.rows.n, &equal);
        unseen += st == PST_OK;
        wrong += st == PST_OK && equal != x.rows.n;
        x.f.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    CHECK_EQ(wrong, 0);
    guided g;
    REQUIRE(guided_open(&g, &x.f) == PST_OK);
    CHECK_EQ(unseen, g.guide->made ? 0 : pst_guide_filter_size(&g.guide->segments[0]) * 8);
    guided_close(&g);
    memory_file cut = x.f;
    size_t opened = 0;
    for (cut.size = 0; cut.size < x.f.size; cut.size++) {
        opened += guided_open(&g, &cut) == PST_OK;
        pst_io short_io = file_io(&cut, 1);
        opened +=
            read_rows(&s.schema, &short_io, cut.size, x.rows.rows, x.rows.n, &equal) == PST_OK;
    }
    CHECK_EQ(opened, 0);
    rows_free(&absent);
    free_file(&x);
}

/* What is compressed may take as much room as before, with its padding: then its sizes do not tell. */
static void test_as_stored(void) {
    enum { MOST = 64 };
    uint64_t rng = 5, as_stored = 0;
    row_style style = WHOLE;
    style.block_bytes = 0;
    for (int32_t states = 1; states < 4; states++)
        for (size_t n = 1; n < MOST; n++) {
            random_schema s;
            make_longs(&s, states);
            guided_file x = {.rows = rows_random(&s.schema, &style, &rng, n)};
            write_file(&x, &s.schema, &style, PST_BASE, 1);
            check_sequential(&x, &s.schema);
            check_found(&x, &s.schema, 1);
            guided g;
            REQUIRE(guided_open(&g, &x.f) == PST_OK);
            pst_guide_block b = pst_guide_block_at(&g.guide->segments[0], g.guide->made, 0);
            as_stored += b.packed && b.stored == b.raw;
            guided_close(&g);
            free_file(&x);
        }
    CHECK(as_stored > 0);
}

int main(void) {
    test_bounds();
    test_schemas();
    test_many();
    test_elements();
    test_namespaces();
    test_wanted_together();
    test_large_values();
    test_memory();
    test_refused_memory();
    test_damage(0);
    test_damage(4096);
    test_as_stored();
    return check_report();
}
