/* Rows gathered out of files against a table of the same files: random operators of chain_world.h,
 * their deltas alone, and merged in part.
 *
 *   test_gather [worlds] [seed]
 */
#include "epoch_files.h"
#include "gather_check.h"

enum { WORLDS = 150, EPOCHS = 5 };

static pst_lineage lineage_of(uint64_t epoch) {
    pst_lineage l = {.epoch = epoch, .query = 5};
    memcpy(l.id, &epoch, sizeof epoch);
    return l;
}

static void write_epoch(world *w, pst_table *t, uint64_t epoch, uint64_t steps, memory_file *out) {
    pst_sealed *sealed = NULL;
    pst_lineage l = lineage_of(epoch);
    pst_io io = file_io(out, (int)(epoch % 2));
    pst_file_info info;
    w->failed = PST_OK;
    for (; steps > 0; steps--)
        world_step(w, t);
    world_pass_time(w, t);
    REQUIRE(!w->failed);
    REQUIRE(pst_table_seal(t, &l, &sealed) == PST_OK);
    pst_sealed_guide(sealed, epoch % 3 ? 0 : 4096);
    REQUIRE(pst_sealed_write(sealed, &io, &info) == PST_OK);
    pst_sealed_destroy(sealed);
}

/* Files from `from` to `to` become one, which stands for the last of them. */
static void merge_some(world *w, memory_file *files, int from, int to) {
    pst_sst_reader *readers[EPOCHS] = {NULL};
    pst_schema *schema = NULL;
    memory_file out = {.calls_left = -1};
    pst_io io = file_io(&out, 0);
    pst_file_info info = {.kind = from || world_one_in(w, 3) ? PST_DELTA : PST_BASE,
                          .lineage = lineage_of(99),
                          .max_parallelism = w->max_parallelism,
                          .first_key_group = w->first,
                          .last_key_group = w->last,
                          .block_bytes = world_one_in(w, 2) ? 4096 : 0};
    REQUIRE(pst_file_schema_create(&w->schema, &schema) == PST_OK);
    for (int i = from; i < to; i++)
        REQUIRE(file_open(&files[i], &readers[i]) == PST_OK);
    REQUIRE(file_merge(schema, &info, readers + from, NULL, to - from, &io) == PST_OK);
    for (int i = from; i < to; i++)
        pst_sst_reader_close(readers[i]);
    pst_file_schema_destroy(schema);
    file_free(&files[to - 1]);
    files[to - 1] = out;
}

static pst_table *table_of(const gather_world *w, gather_files *files) {
    pst_table_options o = {.max_parallelism = w->max_parallelism,
                           .first_key_group = w->first,
                           .last_key_group = w->last,
                           .limit_bytes = WORLD_LIMIT};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(&w->schema, &o, &t, NULL, NULL) == PST_OK);
    for (int32_t i = 0; i < w->schema.n_states; i++)
        if (w->ttl[i].duration_ms)
            REQUIRE(pst_table_set_ttl(t, i, &w->ttl[i]) == PST_OK);
    for (int32_t i = 0; i < files->n; i++) {
        pst_sst_reader *r = files->readers[i];
        REQUIRE(pst_sst_reader_seek(r, w->first, w->last) == PST_OK);
        REQUIRE(pst_table_load(t, r, files->mapping[i], pst_sst_reader_schema(r)->n_states, NULL) ==
                PST_OK);
    }
    pst_table_set_clock(t, &w->now);
    return t;
}

/* Does a reader see anything of the current key? What it reads it may have seen for the last time. */
static int is_seen(const gather_world *w, pst_table *t) {
    pst_cell value;
    for (int32_t i = 0; i < w->schema.n_states; i++) {
        uint64_t n = 0;
        if (w->columns[i].kind == PST_VALUE && pst_value_get(t, i, &value) == PST_OK)
            return 1;
        if (w->columns[i].kind == PST_LIST || w->columns[i].kind == PST_MAP)
            CHECK_EQ(pst_elements_count(t, i, &n), PST_OK);
        if (n)
            return 1;
    }
    return 0;
}

static uint64_t rows_of(const gather_world *w, const world *of, pst_table *t) {
    uint64_t n = 0;
    for (int k = 0; k < WORLD_KEYS; k++) {
        if (of->groups[k] < w->first || of->groups[k] > w->last)
            continue;
        REQUIRE(pst_key_set(t, of->keys[k], of->nulls[k]) == PST_OK);
        n += (uint64_t)is_seen(w, t);
    }
    return n;
}

/* Refused memory and a failing callback end it with their own status, whenever they come. */
static void test_failures(gather_sight *x, gather_files *files) {
    pst_table *t = x->t;
    x->t = NULL;
    for (int64_t n = 0;; n++) {
        check_fail_alloc(n, 0);
        pst_status s = gather(x, files);
        int refused = check_alloc_failed();
        check_fail_alloc(-1, 0);
        CHECK_EQ(s, refused ? PST_NO_MEMORY : PST_OK);
        if (!refused)
            break;
    }
    uint64_t rows = x->rows;
    for (int64_t n = 0; n < 3; n++) {
        x->calls_left = n;
        pst_status s = gather(x, files);
        CHECK_EQ(s, x->calls_left < 0 ? PST_CALLBACK : PST_OK);
        CHECK(x->rows <= rows);
    }
    x->calls_left = -1;
    x->t = t;
}

static void compare(const gather_world *w, const world *of, memory_file *files, int n,
                    int failures) {
    gather_files x;
    REQUIRE(gather_open(w, files, n, &x) == PST_OK);
    pst_table *t = table_of(w, &x), *counted = table_of(w, &x);
    gather_sight sight = {.w = w, .t = t, .calls_left = -1};
    CHECK_EQ(gather(&sight, &x), PST_OK);
    CHECK_EQ(sight.rows, rows_of(w, of, counted));
    gather_sight cut = {.w = w, .calls_left = -1, .cuts = 4, .random = sight.rows + 1};
    CHECK_EQ(gather(&cut, &x), PST_OK);
    CHECK(cut.rows == sight.rows && cut.cells == sight.cells);
    pst_table_close(counted);
    if (w->whole) {
        gather_world timeless = *w;
        gather_sight all = {.w = &timeless, .calls_left = -1};
        timeless.whole = 0;
        CHECK_EQ(gather(&all, &x), PST_OK);
        CHECK(all.cells >= sight.cells && all.rows >= sight.rows);
        gathered_in_all.hidden_cells += all.cells - sight.cells;
        gathered_in_all.hidden_rows += all.rows - sight.rows;
    }
    if (failures)
        test_failures(&sight, &x);
    pst_table_close(t);
    gather_close(&x);
}

static void test_world(uint64_t seed) {
    memory_file files[EPOCHS];
    world *w = world_create(seed);
    gather_world sight;
    for (int i = 0; i < EPOCHS; i++)
        files[i] = (memory_file){.calls_left = -1};
    pst_table *t = world_open(w, w->first, w->last, WORLD_LIMIT);
    pst_table_set_clock(t, &w->now);
    for (int i = 0; i < EPOCHS; i++)
        write_epoch(w, t, (uint64_t)i + 1, i ? 4 + world_below(w, 40) : 200, &files[i]);
    pst_table_close(t);
    int left = EPOCHS, from = (int)world_below(w, EPOCHS - 1), to = from + 2;
    to += (int)world_below(w, (uint64_t)(EPOCHS - to) + 1);
    for (int whole = 0; whole < 2; whole++) {
        gather_world_of(w, &sight, whole);
        if (!sight.schema.n_states)
            continue;
        compare(&sight, w, files, left, seed % 10 == 0);
        compare(&sight, w, files, 1, 0);
    }
    merge_some(w, files, from, to);
    /* Of the files that became one, that one. */
    for (int i = from; i < to - 1; i++)
        file_free(&files[i]);
    memmove(files + from, files + to - 1, (size_t)(EPOCHS - to + 1) * sizeof *files);
    left = EPOCHS - (to - 1 - from);
    for (int whole = 0; whole < 2; whole++) {
        gather_world_of(w, &sight, whole);
        if (!sight.schema.n_states)
            continue;
        compare(&sight, w, files, left, 0);
        sight.schema.n_states = 1 + (int32_t)world_below(w, (uint64_t)sight.schema.n_states);
        if (whole)
            memset(&sight.ttl[sight.schema.n_states - 1], 0, sizeof *sight.ttl);
        compare(&sight, w, files, left, 0);
    }
    for (int i = 0; i < left; i++)
        file_free(&files[i]);
    free(w);
}

typedef struct numbers {
    uint64_t items[4];
    uint32_t rows;
    uint32_t n;
} numbers;

static int note_items(void *ctx, uint32_t rows, const pst_block_column *columns, int32_t n) {
    numbers *x = ctx;
    CHECK_EQ(n, 3);
    x->rows += rows;
    for (uint32_t i = 0; i < columns[2].count && x->n < 4; i++)
        x->items[x->n++] = block_cell(&columns[2], PST_INT64, i).word[0];
    return 0;
}

/* Items that have expired between two that are seen, of one file or of several. */
static void test_items_between(void) {
    static const int64_t times[] = {PST_NO_TIME, 1000, 2000};
    world *w = small_world(PST_INT64, PST_LIST);
    pst_ttl ttl[2] = {SMALL_TTL, {0}};
    memory_file files[4];
    pst_table *t = world_open(w, w->first, w->last, WORLD_LIMIT);
    for (uint64_t e = 0; e < 3; e++) {
        w->now = (pst_clock){times[e], PST_NO_TIME, PST_NO_TIME};
        pst_table_set_clock(t, &w->now);
        pst_cell key = {{1, 0}, {NULL, 0}}, item = {{e, 0}, {NULL, 0}};
        REQUIRE(pst_key_set(t, &key, 0) == PST_OK && pst_list_add(t, 0, &item) == PST_OK);
        files[e] = epoch_sealed(t, e + 1);
    }
    files[3] = epochs_merged(w, files, 3, PST_BASE);
    for (int one = 0; one < 2; one++)
        for (int late = 0; late < 2; late++) {
            numbers x = {.n = 0};
            pst_io io = {.ctx = &x, .block = note_items};
            pst_expiry expiry = {ttl, {late ? 3000 : 2000, 0, 0}};
            pst_sst_reader *readers[3];
            int n = one ? 1 : 3;
            for (int i = 0; i < n; i++)
                REQUIRE(file_open(&files[one ? 3 : i], &readers[i]) == PST_OK);
            CHECK_EQ(pst_gather(readers, NULL, n, &w->schema, &expiry, w->max_parallelism, w->first,
                                w->last, NULL, &io),
                     PST_OK);
            CHECK(x.rows == 1 && x.n == (late ? 1 : 2) && x.items[0] == 0 &&
                  (late || x.items[1] == 2));
            for (int i = 0; i < n; i++)
                pst_sst_reader_close(readers[i]);
        }
    pst_table_close(t);
    epochs_free(files, 4);
    free(w);
}

typedef struct sum {
    uint64_t rows, keys, values;
} sum;

static int add_up(void *ctx, uint32_t rows, const pst_block_column *columns, int32_t n) {
    sum *x = ctx;
    CHECK_EQ(n, 2);
    x->rows += rows;
    for (uint32_t i = 0; i < rows; i++) {
        x->keys += block_cell(&columns[0], PST_INT64, i).word[0];
        x->values += block_cell(&columns[1], PST_INT64, i).word[0];
        CHECK(block_has(&columns[1], i));
    }
    return 0;
}

/* Rows that are taken by column up to one that has expired. */
static void test_many_rows(uint64_t apart) {
    enum { ROWS = 5000 };
    world *w = small_world(PST_INT64, PST_VALUE);
    pst_ttl ttl[2] = {SMALL_TTL, {0}};
    pst_table *t = world_open(w, w->first, w->last, WORLD_LIMIT);
    sum want = {0}, x = {0};
    for (uint64_t i = 0; i < ROWS; i++) {
        int old = apart && i % apart == 0;
        pst_clock now = {old ? 1000 : 2000, 0, 0};
        pst_cell key = {{i, 0}, {NULL, 0}}, value = {{i * i, 0}, {NULL, 0}};
        pst_table_set_clock(t, &now);
        REQUIRE(pst_key_set(t, &key, 0) == PST_OK && pst_value_put(t, 0, &value) == PST_OK);
        want.rows += !old;
        want.keys += old ? 0 : i;
        want.values += old ? 0 : i * i;
    }
    memory_file file = epoch_sealed(t, 1);
    pst_sst_reader *reader = NULL;
    REQUIRE(file_open(&file, &reader) == PST_OK);
    pst_io io = {.ctx = &x, .block = add_up};
    pst_expiry expiry = {ttl, {2100, 0, 0}};
    CHECK_EQ(pst_gather(&reader, NULL, 1, &w->schema, &expiry, w->max_parallelism, w->first,
                        w->last, NULL, &io),
             PST_OK);
    CHECK(x.rows == want.rows && x.keys == want.keys && x.values == want.values);
    pst_sst_reader_close(reader);
    file_free(&file);
    pst_table_close(t);
    free(w);
}

/* One key group in parts of equal hashes: a file gives the rows of a part, and reads few others. */
static void test_parts(uint32_t block_bytes) {
    enum { ROWS = 20000, PARTS = 16 };
    world *w = small_world(PST_INT64, PST_VALUE);
    w->max_parallelism = 1;
    w->first = w->last = 0;
    pst_table *t = world_open(w, 0, 0, WORLD_LIMIT);
    sum x = {0};
    for (uint64_t i = 0; i < ROWS; i++) {
        pst_cell key = {{i, 0}, {NULL, 0}};
        REQUIRE(pst_key_set(t, &key, 0) == PST_OK && pst_value_put(t, 0, &key) == PST_OK);
    }
    pst_sealed *sealed = NULL;
    pst_lineage l = lineage_of(1);
    memory_file file = {.calls_left = -1};
    pst_io out = file_io(&file, 0), io = {.ctx = &x, .block = add_up};
    pst_file_info info;
    REQUIRE(pst_table_seal(t, &l, &sealed) == PST_OK);
    pst_sealed_guide(sealed, block_bytes);
    REQUIRE(pst_sealed_write(sealed, &out, &info) == PST_OK);
    pst_sealed_destroy(sealed);
    pst_sst_reader *reader = NULL;
    REQUIRE(file_open(&file, &reader) == PST_OK);
    uint64_t opened = file.bytes_read;
    for (uint64_t part = 0; part < PARTS; part++) {
        pst_hashes hashes = {part << 60, (part << 60) + (UINT64_MAX >> 4)};
        uint64_t before = x.rows;
        CHECK_EQ(pst_gather(&reader, NULL, 1, &w->schema, NULL, 1, 0, 0, &hashes, &io), PST_OK);
        CHECK(x.rows - before > ROWS / PARTS / 2 && x.rows - before < ROWS / PARTS * 2);
    }
    CHECK(!block_bytes || file.bytes_read - opened < 2 * file.size);
    CHECK(x.rows == ROWS && x.keys == (uint64_t)ROWS * (ROWS - 1) / 2);
    pst_sst_reader_close(reader);
    file_free(&file);
    pst_table_close(t);
    free(w);
}

/* Worlds whose lists lose their first items where a file has several runs of them. */
static const uint64_t TRIMMED[] = {502864};

int main(int argc, char **argv) {
    uint64_t worlds = argc > 1 ? strtoull(argv[1], NULL, 10) : WORLDS;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    test_items_between();
    test_parts(0);
    test_parts(4096);
    for (uint64_t apart = 0; apart < 200; apart = apart * 3 + 1)
        test_many_rows(apart);
    for (uint64_t i = 0; i < worlds && !check_failed; i++) {
        test_world(seed * 100000 + i);
        if (check_failed)
            fprintf(stderr, "    world %" PRIu64 "\n", seed * 100000 + i);
    }
    for (size_t i = 0; i < sizeof TRIMMED / sizeof *TRIMMED; i++)
        test_world(TRIMMED[i]);
    if (argc == 1)
        CHECK(gathered_in_all.values && gathered_in_all.items && gathered_in_all.entries &&
              gathered_in_all.null_entries && gathered_in_all.hidden_cells &&
              gathered_in_all.hidden_rows && gathered_in_all.batches < gathered_in_all.rows);
    else
        fprintf(stderr,
                "    %" PRIu64 " batches, %" PRIu64 " rows, %" PRIu64 " values, %" PRIu64
                " items, %" PRIu64 " entries, %" PRIu64 " trimmed, %" PRIu64 " hidden, %" PRIu64
                " rows\n",
                gathered_in_all.batches, gathered_in_all.rows, gathered_in_all.values,
                gathered_in_all.items, gathered_in_all.entries, gathered_in_all.trimmed,
                gathered_in_all.hidden_cells, gathered_in_all.hidden_rows);
    return check_report();
}
