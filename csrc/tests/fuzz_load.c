/* Forged files loaded, sealed, merged and gathered: random operators of chain_world.h write files, which are
 * changed in what their records say, or byte by byte, with all checksums right (forge.h). Whatever
 * is then done with them ends with a status, and what was taken from one is a table like any other:
 * it can be worked on, and its own files restore it to the byte. Deterministic; most of what it
 * finds only shows in an instrumented build.
 *
 *   fuzz_load [rounds] [seed]
 */
#include "chain_world.h"
#include "forge.h"
#include "gather_check.h"

enum { WORLDS = 60, EPOCHS = 4, ROUNDS = 1500 };

/* A world's deltas, and in the end the base that they make. */
typedef struct corpus {
    world *w;
    memory_file files[EPOCHS + 1];
    int n;
} corpus;

/* How often what was forged was taken, and what became of it. */
static struct {
    uint64_t read;
    uint64_t loaded;
    uint64_t merged;
    uint64_t gathered;
    uint64_t refused;
} tally;

static pst_lineage lineage_of(uint64_t epoch) {
    pst_lineage l = {.epoch = epoch, .query = 5};
    memcpy(l.id, &epoch, sizeof epoch);
    return l;
}

/* What a file may be refused with. */
static int is_refusal(pst_status s) {
    int is = s == PST_CORRUPT || s == PST_NEWER_FORMAT || s == PST_SCHEMA || s == PST_TOO_LARGE ||
             s == PST_CALLBACK;
    if (!is)
        fprintf(stderr, "    %s\n", pst_status_name(s));
    return is;
}

/* ---- files of a world ------------------------------------------------------------------------ */

static pst_status seal(pst_table *t, uint64_t epoch, memory_file *out) {
    pst_sealed *sealed = NULL;
    pst_lineage l = lineage_of(epoch);
    pst_status s = pst_table_seal(t, &l, out ? &sealed : NULL);
    if (!s && out) {
        pst_io io = file_io(out, 0);
        pst_file_info info;
        s = pst_sealed_write(sealed, &io, &info);
        pst_sealed_destroy(sealed);
    }
    return s;
}

static pst_status merge(world *w, memory_file *files, int n, pst_file_kind kind, memory_file *out) {
    int32_t columns[EPOCHS + 1][PST_MAX_STATES];
    const int32_t *mapping[EPOCHS + 1];
    pst_sst_reader *readers[EPOCHS + 1] = {NULL};
    pst_schema *schema = NULL;
    pst_io io = file_io(out, 0);
    pst_file_info info = {.kind = kind,
                          .lineage = lineage_of(99),
                          .max_parallelism = w->max_parallelism,
                          .first_key_group = w->first,
                          .last_key_group = w->last};
    pst_status s = pst_file_schema_create(&w->schema, &schema);
    for (int i = 0; i < n && !s; i++) {
        s = file_open(&files[i], &readers[i]);
        if (!s)
            mapping[i] = world_mapping(w, pst_sst_reader_schema(readers[i]), columns[i]);
    }
    if (!s)
        s = file_merge(schema, &info, readers, mapping, n, &io);
    for (int i = 0; i < n; i++)
        pst_sst_reader_close(readers[i]);
    pst_file_schema_destroy(schema);
    return s;
}

static void make(corpus *c, uint64_t seed) {
    c->w = world_create(seed);
    world *w = c->w;
    w->sizes = 12; /* short ones: a forged file is read many times */
    if (w->domain > 40)
        w->domain = 40;
    pst_table *t = world_open(w, w->first, w->last, WORLD_LIMIT);
    pst_table_set_clock(t, &w->now);
    for (int i = 0; i < EPOCHS; i++) {
        w->failed = PST_OK;
        for (uint64_t n = 4 + world_below(w, 20); n > 0; n--)
            world_step(w, t);
        world_pass_time(w, t);
        REQUIRE(!w->failed);
        REQUIRE(seal(t, (uint64_t)i + 1, &c->files[c->n]) == PST_OK);
        c->n++;
    }
    pst_table_close(t);
    REQUIRE(merge(w, c->files, EPOCHS, PST_BASE, &c->files[EPOCHS]) == PST_OK);
}

static void destroy(corpus *c) {
    for (int i = 0; i <= EPOCHS; i++)
        file_free(&c->files[i]);
    free(c->w);
}

/* ---- reading and loading --------------------------------------------------------------------- */

static pst_status read_all(memory_file *file) {
    pst_sst_reader *r = NULL;
    pst_record record;
    pst_status s = file_open(file, &r);
    while (!s)
        s = pst_sst_reader_next(r, &record);
    pst_sst_reader_close(r);
    return s;
}

static pst_status load(world *w, pst_table *t, memory_file *file) {
    int32_t columns[PST_MAX_STATES];
    pst_sst_reader *r = NULL;
    pst_status s = file_open(file, &r);
    if (s)
        return s;
    const pst_schema *schema = pst_sst_reader_schema(r);
    const int32_t *mapping = world_mapping(w, schema, columns);
    s = pst_table_load(t, r, mapping, schema->n_states, NULL);
    pst_sst_reader_close(r);
    return s;
}

/* A table's own file restores it: the restored one's file is the same. */
static void check_restores(world *w, const memory_file *own) {
    memory_file first = *own, again = {.calls_left = -1};
    pst_table *t = world_open(w, w->first, w->last, WORLD_LIMIT);
    pst_table_set_clock(t, &w->now);
    if (CHECK_EQ(load(w, t, &first), PST_OK) && CHECK_EQ(seal(t, 50, &again), PST_OK))
        CHECK(own->size == again.size && !memcmp(own->data, again.data, again.size));
    pst_table_close(t);
    file_free(&again);
}

/* Everything in the table is read, some of it is changed, and it is sealed again. */
static void work_on(world *w, pst_table *t) {
    pst_record record;
    uint64_t cursor = 0;
    pst_status s;
    while ((s = pst_table_next(t, &cursor, &record)) == PST_OK)
        ;
    CHECK_EQ(s, PST_NOT_FOUND);
    w->failed = PST_OK;
    for (int i = 0; i < 10; i++) {
        for (int32_t c = 0; c < w->schema.n_states; c++)
            if (w->state_of[c] && !w->failed && i % 3 == 0 &&
                pst_key_set(t, w->keys[i], w->nulls[i]) == PST_OK)
                world_read(w, t, c);
        world_step(w, t);
        world_fire(w, t);
    }
    world_pass_time(w, t);
    /* A forged list may be at the end of its numbers, a forged row at that of its column. */
    CHECK(!w->failed || w->failed == PST_TOO_LARGE || w->failed == PST_LIMIT);
    if (w->failed)
        CHECK_EQ(pst_table_rollback(t, 0), PST_OK);
    else
        CHECK_EQ(seal(t, 51, NULL), PST_OK);
}

/* Loads the files one after the other, into one epoch or into an epoch each. */
static void load_forged(world *w, memory_file *files, int n, int one_epoch) {
    memory_file own = {.calls_left = -1};
    pst_status s = PST_OK;
    pst_table *t = world_open(w, w->first, w->last, WORLD_LIMIT);
    pst_table_set_clock(t, &w->now);
    for (int i = 0; i < n && !s; i++) {
        s = load(w, t, &files[i]);
        if (!s && !one_epoch)
            CHECK_EQ(seal(t, (uint64_t)i + 1, i % 2 ? &own : NULL), PST_OK);
        own.size = 0;
    }
    if (s) {
        CHECK(is_refusal(s));
        CHECK_EQ(pst_table_rollback(t, 0), PST_OK);
        tally.refused++;
    } else if (one_epoch) {
        if (CHECK_EQ(seal(t, 50, &own), PST_OK))
            check_restores(w, &own);
        tally.loaded++;
    }
    work_on(w, t);
    pst_table_close(t);
    file_free(&own);
}

static void merge_forged(world *w, memory_file *files, int n, pst_file_kind kind) {
    memory_file merged = {.calls_left = -1};
    pst_status s = merge(w, files, n, kind, &merged);
    if (s) {
        CHECK(is_refusal(s));
    } else {
        CHECK_EQ(read_all(&merged), PST_NOT_FOUND);
        load_forged(w, &merged, 1, 1);
        tally.merged++;
    }
    file_free(&merged);
}

/* Whatever the files say, the batches are what batches are. */
static void gather_forged(world *w, memory_file *files, int n) {
    gather_world reduced;
    gather_files x;
    gather_sight sight = {.w = &reduced, .calls_left = -1};
    gather_world_of(w, &reduced, 0);
    if (!reduced.schema.n_states)
        return;
    pst_status s = gather_open(&reduced, files, n, &x);
    if (!s)
        s = gather(&sight, &x);
    CHECK(!s || is_refusal(s));
    tally.gathered += !s;
    gather_close(&x);
}

static void run_round(corpus *c, uint64_t *rng) {
    memory_file files[EPOCHS + 1];
    int n = EPOCHS, from = 0;
    if (check_random(rng) % 4 == 0) {
        from = EPOCHS;
        n = 1;
    }
    memcpy(files, c->files + from, (size_t)n * sizeof *files);
    int at = (int)(check_random(rng) % (uint64_t)n);
    memory_file forged =
        check_random(rng) % 4 ? forge_lie(&files[at], rng) : forge_copy(&files[at], rng);
    files[at] = forged;
    pst_status s = read_all(&forged);
    CHECK(s == PST_NOT_FOUND || is_refusal(s));
    tally.read += s == PST_NOT_FOUND;
    load_forged(c->w, files, n, check_random(rng) % 2 == 0);
    merge_forged(c->w, files, n, from || check_random(rng) % 2 ? PST_BASE : PST_DELTA);
    gather_forged(c->w, files, n);
    file_free(&forged);
}

int main(int argc, char **argv) {
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : ROUNDS;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    static corpus worlds[WORLDS];
    for (uint64_t i = 0; i < WORLDS; i++)
        make(&worlds[i], seed * WORLDS + i);
    for (uint64_t round = 0; round < rounds && check_failed == 0; round++) {
        uint64_t rng = seed * UINT64_C(1000000007) + round;
        corpus *c = &worlds[check_random(&rng) % WORLDS];
        c->w->random = check_random(&rng);
        world before = *c->w;
        run_round(c, &rng);
        if (check_failed)
            fprintf(stderr, "    round %" PRIu64 " of seed %" PRIu64 ", world %" PRIu64 "\n", round,
                    seed, c->w->seed);
        c->w->now = before.now;
    }
    for (int i = 0; i < WORLDS; i++)
        destroy(&worlds[i]);
    if (argc == 1)
        CHECK(tally.read && tally.loaded && tally.merged && tally.gathered && tally.refused);
    else
        fprintf(stderr,
                "    %" PRIu64 " read, %" PRIu64 " loaded, %" PRIu64 " refused, %" PRIu64
                " merged, %" PRIu64 " gathered\n",
                tally.read, tally.loaded, tally.refused, tally.merged, tally.gathered);
    return check_report();
}
