/* Rows gathered out of files against a table of the same files: random operators of chain_world.h,
 * their deltas alone, and merged in part.
 *
 *   test_gather [worlds] [seed]
 */
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
    for (int32_t i = 0; i < files->n; i++) {
        pst_sst_reader *r = files->readers[i];
        REQUIRE(pst_sst_reader_seek(r, w->first, w->last) == PST_OK);
        REQUIRE(pst_table_load(t, r, files->mapping[i], pst_sst_reader_schema(r)->n_states, NULL) ==
                PST_OK);
    }
    return t;
}

static uint64_t rows_of(pst_table *t) {
    pst_record record;
    uint64_t cursor = 0, n = 0;
    while (pst_table_next(t, &cursor, &record) == PST_OK)
        n++;
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

static void compare(const gather_world *w, memory_file *files, int n, int failures) {
    gather_files x;
    REQUIRE(gather_open(w, files, n, &x) == PST_OK);
    pst_table *t = table_of(w, &x);
    gather_sight sight = {.w = w, .t = t, .calls_left = -1};
    CHECK_EQ(gather(&sight, &x), PST_OK);
    CHECK_EQ(sight.rows, rows_of(t));
    if (failures)
        test_failures(&sight, &x);
    pst_table_close(t);
    gather_close(&x);
}

static void test_world(uint64_t seed) {
    memory_file files[EPOCHS];
    world *w = world_create(seed);
    gather_world reduced;
    for (int i = 0; i < EPOCHS; i++)
        files[i] = (memory_file){.calls_left = -1};
    pst_table *t = world_open(w, w->first, w->last, WORLD_LIMIT);
    pst_table_set_clock(t, &w->now);
    for (int i = 0; i < EPOCHS; i++)
        write_epoch(w, t, (uint64_t)i + 1, i ? 4 + world_below(w, 40) : 200, &files[i]);
    pst_table_close(t);
    gather_world_of(w, &reduced);
    if (reduced.schema.n_states) {
        compare(&reduced, files, EPOCHS, seed % 10 == 0);
        compare(&reduced, files, 1, 0);
        int from = (int)world_below(w, EPOCHS - 1), to = from + 2;
        to += (int)world_below(w, (uint64_t)(EPOCHS - to) + 1);
        merge_some(w, files, from, to);
        /* Of the files that became one, that one. */
        for (int i = from; i < to - 1; i++)
            file_free(&files[i]);
        memmove(files + from, files + to - 1, (size_t)(EPOCHS - to + 1) * sizeof *files);
        int left = EPOCHS - (to - 1 - from);
        compare(&reduced, files, left, 0);
        reduced.schema.n_states = 1 + (int32_t)world_below(w, (uint64_t)reduced.schema.n_states);
        compare(&reduced, files, left, 0);
        for (int i = 0; i < left; i++)
            file_free(&files[i]);
    } else {
        for (int i = 0; i < EPOCHS; i++)
            file_free(&files[i]);
    }
    free(w);
}

/* Worlds whose lists lose their first items where a file has several runs of them. */
static const uint64_t TRIMMED[] = {502864};

int main(int argc, char **argv) {
    uint64_t worlds = argc > 1 ? strtoull(argv[1], NULL, 10) : WORLDS;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (uint64_t i = 0; i < worlds && !check_failed; i++) {
        test_world(seed * 100000 + i);
        if (check_failed)
            fprintf(stderr, "    world %" PRIu64 "\n", seed * 100000 + i);
    }
    for (size_t i = 0; i < sizeof TRIMMED / sizeof *TRIMMED; i++)
        test_world(TRIMMED[i]);
    if (argc == 1)
        CHECK(gathered_in_all.values && gathered_in_all.items && gathered_in_all.entries &&
              gathered_in_all.null_entries && gathered_in_all.batches < gathered_in_all.rows);
    else
        fprintf(stderr,
                "    %" PRIu64 " batches, %" PRIu64 " rows, %" PRIu64 " values, %" PRIu64
                " items, %" PRIu64 " entries, %" PRIu64 " trimmed\n",
                gathered_in_all.batches, gathered_in_all.rows, gathered_in_all.values,
                gathered_in_all.items, gathered_in_all.entries, gathered_in_all.trimmed);
    return check_report();
}
