/* Stacks of files against a plain merge of them: what a search finds of wanted keys makes the rows
 * that all files make. */
#include "stack_world.h"

#include <errno.h>

#include "stack/due.h"

static world the_world;
static uint64_t filters_read;

static pst_stack *open_world(const world *w, const pst_stack_options *o) {
    pst_stack *st = NULL;
    pst_detail detail;
    pst_status s = pst_stack_open(&w->schema, WORLD_GROUPS, w->files, w->n, o, &st, &detail);
    CHECK_EQ(s, PST_OK);
    REQUIRE(st);
    return st;
}

static void make_world(world *w, world_style style, int32_t n, size_t base, uint64_t seed) {
    uint64_t rng = seed;
    world_begin(w, style);
    for (int32_t i = 0; i < n; i++) {
        size_t rows = i ? base / (4u + 8u * (uint32_t)i) : base;
        world_write(w, i, &rng, rows, base, check_random(&rng) % 5 ? 40 : 4000);
    }
}

/* Looks up n drawn keys, some of which no file has. */
static void check_batch(const world *w, pst_stack *st, const memory_file *whole, size_t n,
                        uint64_t domain, uint64_t seed) {
    uint64_t rng = seed, *ids = malloc((n + 2) * sizeof *ids);
    REQUIRE(ids);
    for (size_t i = 0; i < n; i++)
        ids[i] = check_random(&rng) % domain;
    if (n > 4) {
        ids[0] = 3; /* which has many elements */
        ids[1] = 5; /* null */
        ids[2] = ids[3];
    }
    finds f = finds_make(w, ids, n);
    CHECK_EQ(finds_search(&f, st, n), PST_OK);
    finds_check(&f, whole, n);
    finds_free(&f);
    free(ids);
}

static void run_model(world_style style, size_t base, uint64_t seed) {
    world *w = &the_world;
    memory_file whole = {.calls_left = -1};
    uint64_t rng = seed;
    make_world(w, style, 1 + (int32_t)(check_random(&rng) % 12), base, seed);
    world_merge(w, w->rows, &whole);
    for (int no_uring = 0; no_uring < 2; no_uring++) {
        pst_reads_options ro = {.no_uring = no_uring, .threads = 4, .no_direct = (int)(seed & 1)};
        pst_reads *reads = NULL;
        REQUIRE(!pst_reads_create(&ro, &reads));
        pst_stack_options so = {.reads = reads, .slice_keys = no_uring ? 100 : 0};
        pst_stack *st = open_world(w, &so);
        pst_reads_release(reads);
        check_batch(w, st, &whole, 1, base, seed);
        check_batch(w, st, &whole, 0, base, seed);
        check_batch(w, st, &whole, 50, base * 2, seed);
        check_batch(w, st, &whole, base / 4, base * 2, seed);
        check_batch(w, st, &whole, base * 2, base + 10, seed); /* nearly all */
        pst_stack_stats stats;
        pst_stack_get_stats(st, &stats);
        filters_read += stats.filters;
        CHECK(style == WORLD_NAMESPACES || stats.lies * 50 < stats.asked + 500);
        pst_stack_close(st);
    }
    file_free(&whole);
    world_free(w);
}

/* A whole row, or a delete, ends the search for its key: the base is not asked. */
static void run_ends(void) {
    world *w = &the_world;
    row_style style = {.max_parallelism = WORLD_GROUPS, .last_key_group = WORLD_GROUPS - 1};
    memory_file f = {.calls_left = -1}, whole = {.calls_left = -1};
    pst_file_info info = info_of(PST_DELTA, &style, 2);
    pst_stack_stats stats;
    uint64_t key_ids[300];
    make_world(w, WORLD_PLAIN, 2, 3000, 5);
    rows_free(&w->rows[1]);
    random_rows *rows = &w->rows[1];
    *rows = (random_rows){calloc(600, sizeof(pst_record)), 300, calloc(1, sizeof(byte_heap))};
    REQUIRE(rows->rows && rows->heap);
    for (uint64_t id = 0; id < 300; id++) {
        pst_record *r = &rows->rows[id];
        key_ids[id] = id;
        world_key(w, rows->heap, id, r);
        r->op = id >= 100 && id < 200 ? PST_DELETE : PST_PUT;
        r->changed = r->op == PST_DELETE ? 0 : id < 100 ? 7 : 5;
        r->present = r->changed & 1;
        r->cells[0].word[0] = id;
    }
    sort_rows(&w->schema, rows->rows, rows->rows + 300, 300);
    pst_io io = file_io(&f, 1);
    info.block_bytes = 4096;
    REQUIRE(!write_rows(&w->schema, &info, &io, rows->rows, rows->n));
    int fd = open(w->paths[1], O_TRUNC | O_WRONLY);
    REQUIRE(fd >= 0 && write(fd, f.data, f.size) == (ssize_t)f.size);
    close(fd);
    world_merge(w, w->rows, &whole);
    pst_stack *st = open_world(w, NULL);
    finds found = finds_make(w, key_ids, 300);
    CHECK_EQ(finds_search(&found, st, 300), PST_OK);
    finds_check(&found, &whole, 300);
    finds_free(&found);
    pst_stack_get_stats(st, &stats);
    CHECK_EQ(stats.asked, 400);
    CHECK_EQ(stats.lies, 0);
    pst_stack_close(st);
    file_free(&f);
    file_free(&whole);
    world_free(w);
}

/* ---- timers ------------------------------------------------------------------------------------ */

static int by_time(const void *a, const void *b) {
    const pst_timer_hint *x = a, *y = b;
    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    return pst_place_compare(x->key_group, x->hash, y->key_group, y->hash);
}

/* The timers of a domain in all files, where these count. */
static size_t all_timers(const world *w, int32_t domain, pst_timer_hint *out) {
    size_t n = 0, kept = 0;
    for (int32_t f = 0; f < w->n; f++)
        for (size_t i = 0; i < w->rows[f].n; i++) {
            const pst_record *r = &w->rows[f].rows[i];
            if (r->key_nulls >> world_keys(w) & 1 || r->op == PST_DELETE ||
                r->key[world_keys(w)].bytes.data[4] != domain ||
                (w->files[f].n_ranges && r->key_group > w->files[f].ranges[1]))
                continue;
            uint64_t time = pst_get_big(r->key[world_keys(w)].bytes.data + 5, 8);
            out[n++] = (pst_timer_hint){(int64_t)(time ^ UINT64_C(1) << 63), r->hash, r->key_group,
                                        domain};
        }
    qsort(out, n, sizeof *out, by_time);
    for (size_t i = 0; i < n; i++)
        if (!kept || by_time(&out[kept - 1], &out[i]))
            out[kept++] = out[i];
    return kept;
}

static int64_t fail_always(const pst_read *r, int64_t result) {
    (void)r;
    return result < 0 ? result : -EIO;
}

/* Hints that are given back come again, and the cursor knows where it stands. */
static void run_return(pst_due *d, const pst_timer_hint *want, size_t n) {
    pst_timer_hint some[50], hint, from = want[0];
    uint64_t rng = 9;
    for (size_t at = 0; at + 60 < n;) {
        uint32_t k = (uint32_t)(check_random(&rng) % 50),
                 gone = (uint32_t)(check_random(&rng) % 50);
        gone = gone < k ? gone : k;
        pst_due_seek(d, &from);
        for (uint32_t i = 0; i < k; i++) {
            REQUIRE(!pst_due_next(d, &some[i]));
            if (!CHECK(!by_time(&some[i], &want[at + i])))
                return;
        }
        CHECK_EQ(pst_due_peek(d, &hint), PST_OK);
        pst_due_return(d, some + gone, k - gone);
        at += gone;
        /* The first one to come, or anything behind the last one where none came once more. */
        from = want[at];
        if (gone && gone == k) {
            from = want[at - 1];
            from.hash++;
        }
        pst_read_hook = fail_always; /* nothing is read there */
        pst_due_seek(d, &from);
        CHECK_EQ(pst_due_peek(d, &hint), PST_OK);
        CHECK(!by_time(&hint, &want[at]));
        pst_read_hook = NULL;
        if (k % 7 == 0)
            pst_due_seek(d, &(pst_timer_hint){.domain = 1}); /* somewhere else */
    }
}

static void run_due(void) {
    static const int32_t ranges[] = {0, 90};
    world *w = &the_world;
    make_world(w, WORLD_TIMERS, 4, 3000, 15);
    w->files[2].ranges = ranges;
    w->files[2].n_ranges = 1;
    pst_timer_hint *want = malloc(40000 * sizeof *want), hint, peeked;
    pst_stack *st = open_world(w, NULL);
    pst_due *d = NULL;
    pst_reads_stats before, after;
    pst_reads_get_stats(st->reads, &before);
    REQUIRE(want && !pst_due_open(st, &d));
    /* The indexes of all files are read together. */
    pst_reads_get_stats(st->reads, &after);
    CHECK_EQ(before.reads, 0);
    CHECK_EQ(after.flight_most, 4);
    CHECK_EQ(after.reads - before.reads, 4);
    CHECK_EQ(pst_due_peek(d, &hint), PST_NOT_FOUND); /* it stands nowhere */
    for (int32_t domain = 0; domain < 2; domain++) {
        size_t n = all_timers(w, domain, want), equal = 0;
        int64_t from = domain ? 2 : INT64_MIN;
        size_t i = 0;
        while (i < n && want[i].time < from)
            i++;
        size_t first = i;
        CHECK(n > 100 && i < n);
        pst_due_seek(d, &(pst_timer_hint){from, 0, 0, domain});
        for (size_t left = n - i; left > 0; left--, i++) {
            CHECK(pst_due_peek(d, &peeked) == PST_OK);
            CHECK(pst_due_next(d, &hint) == PST_OK);
            equal += !by_time(&hint, &want[i]) && !by_time(&peeked, &hint);
        }
        CHECK_EQ(equal, n - first);
        CHECK_EQ(pst_due_next(d, &hint), PST_NOT_FOUND);
    }
    run_return(d, want, all_timers(w, 0, want));
    pst_due_seek(d, &(pst_timer_hint){0});
    pst_read_hook = fail_always;
    CHECK_EQ(pst_due_next(d, &hint), PST_IO);
    CHECK_EQ(pst_stack_detail(st)->sys_errno, EIO);
    CHECK(pst_stack_detail(st)->row >= 0);
    pst_read_hook = NULL;
    pst_due_seek(d, &(pst_timer_hint){0});
    CHECK_EQ(pst_due_next(d, &hint), PST_OK);
    pst_due_close(d);
    for (int64_t i = 0;; i++) {
        check_fail_alloc(i, 0);
        pst_status s = pst_due_open(st, &d);
        int refused = check_alloc_failed();
        check_fail_alloc(-1, 0);
        CHECK_EQ(s, refused ? PST_NO_MEMORY : PST_OK);
        if (!s) {
            pst_due_close(d);
            break;
        }
    }
    pst_stack_close(st);
    free(want);
    world_free(w);
}

/* ---- memory ------------------------------------------------------------------------------------ */

enum { MANY = 400000 };

static int to_file(void *ctx, const void *data, size_t size) {
    return fwrite(data, 1, size, ctx) != size;
}

static void many_key(void *ctx, uint32_t key, pst_cell *cells, uint32_t *nulls) {
    (void)ctx;
    cells[0].word[0] = key;
    *nulls = 0;
}

static void many_ahead(void *ctx, uint32_t key) {
    uint64_t *sum = ctx;
    sum[2] += key < MANY;
}

static pst_status many_found(void *ctx, const pst_found *f) {
    uint64_t *sum = ctx;
    sum[0] += f->record->cells[0].word[0] == f->key * UINT64_C(3);
    return PST_OK;
}

static pst_status many_done(void *ctx, uint32_t key, int any) {
    uint64_t *sum = ctx;
    (void)key;
    sum[1] += any != 0;
    return PST_OK;
}

/* Opened, a file has no part of its guide in memory, and a key brings what its segment has. */
static void check_opening(pst_stack *st, const pst_place *places, const pst_seeker *seeker) {
    pst_stack_stats own;
    pst_reads_stats reads;
    pst_member *m = st->files[0];
    uint32_t n = m->guide->n_segments, brought = 0;
    CHECK(n > 3);
    pst_stack_get_stats(st, &own);
    pst_reads_get_stats(st->reads, &reads);
    CHECK_EQ(own.guide_bytes, 0);
    CHECK_EQ(reads.reads, 0);
    CHECK(own.private_bytes < n * UINT64_C(128));
    CHECK_EQ(pst_stack_search(st, &places[MANY / 2], 1, seeker), PST_OK);
    pst_stack_get_stats(st, &own);
    pst_reads_get_stats(st->reads, &reads);
    for (uint32_t i = 0; i < n; i++)
        brought += pst_member_entries(m, i) != NULL;
    CHECK_EQ(brought, 1);
    CHECK(own.guide_bytes <= pst_guide_entries_bytes(PST_GUIDE_BLOCKS));
    CHECK_EQ(reads.reads, 2);
    CHECK_EQ(pst_stack_search(st, &places[MANY / 2], 1, seeker), PST_OK);
    pst_reads_get_stats(st->reads, &reads);
    CHECK_EQ(reads.reads, 3); /* the block alone */
}

/* All keys of a large base, in memory that does not grow with it. */
static void run_many(void) {
    world *w = &the_world;
    row_style style = {.max_parallelism = WORLD_GROUPS, .last_key_group = WORLD_GROUPS - 1};
    pst_file_info info = info_of(PST_BASE, &style, 3);
    pst_place *places = malloc(MANY * sizeof *places);
    pst_record *r = calloc(1, sizeof *r);
    pst_budget *budget = NULL;
    pst_budget_stats stats;
    pst_stack_stats own;
    uint64_t sum[3] = {0, 0, 0};
    pst_sst_writer *writer;
    world_begin(w, WORLD_PLAIN);
    snprintf(w->paths[0], sizeof w->paths[0], "%.190s/many", w->folder);
    w->files[0].path = w->paths[0];
    FILE *out = fopen(w->paths[0], "wb");
    REQUIRE(places && r && out);
    for (uint32_t i = 0; i < MANY; i++) {
        places[i].hash = pst_hash_word(PST_INT64, i, PST_HASH_SEED);
        places[i].key_group = pst_key_group(places[i].hash, WORLD_GROUPS);
        places[i].key = i;
    }
    qsort(places, MANY, sizeof *places, by_place);
    info.block_bytes = 4096;
    pst_io io = {.ctx = out, .write = to_file};
    REQUIRE(!pst_sst_writer_create(&w->schema, &info, &io, &writer));
    r->op = PST_PUT;
    r->changed = r->present = 1;
    for (uint32_t i = 0; i < MANY; i++) {
        r->hash = places[i].hash;
        r->key_group = places[i].key_group;
        r->key[0].word[0] = places[i].key;
        r->cells[0].word[0] = places[i].key * UINT64_C(3);
        REQUIRE(!pst_sst_writer_add(writer, r));
    }
    REQUIRE(!pst_sst_writer_finish(writer, &info));
    pst_sst_writer_destroy(writer);
    fclose(out);
    w->n = 1;
    REQUIRE(!pst_budget_create(64 << 20, &budget));
    pst_stack_options o = {.budget = budget};
    pst_stack *st = open_world(w, &o);
    pst_seeker seeker = {sum, many_key, many_ahead, many_found, many_done};
    check_opening(st, places, &seeker);
    memset(sum, 0, sizeof sum);
    CHECK_EQ(pst_stack_search(st, places, MANY, &seeker), PST_OK);
    CHECK_EQ(sum[0], MANY);
    CHECK_EQ(sum[1], MANY);
    CHECK(sum[2] >= MANY && sum[2] < MANY + MANY / 8);
    pst_stack_get_stats(st, &own);
    pst_budget_get_stats(budget, &stats);
    CHECK(own.guide_bytes * 5 < MANY && own.private_bytes < (uint64_t)3 << 20);
    CHECK(stats.private_bytes < (uint64_t)13 << 20); /* 8 MiB of them to read into */
    pst_stack_close(st);
    pst_budget_get_stats(budget, &stats);
    CHECK_EQ(stats.private_bytes, 0);
    pst_budget_release(budget);
    free(places);
    free(r);
    world_free(w);
}

static pst_status blind_found(void *ctx, const pst_found *f) {
    (void)ctx;
    CHECK(f->rows == 0);
    return PST_OK;
}

static pst_status blind_done(void *ctx, uint32_t key, int any) {
    (void)ctx;
    (void)key;
    CHECK(!any);
    return PST_OK;
}

/* A delta's filter comes once as many keys were wanted as cost as much without it. */
static void run_blind(void) {
    enum { SEARCHES = 200, MOST_BLIND = 40 };
    world *w = &the_world;
    memory_file whole = {.calls_left = -1};
    pst_stack_stats stats;
    make_world(w, WORLD_PLAIN, 2, 3000, 31);
    world_merge(w, w->rows, &whole);
    w->files[0] = w->files[1]; /* alone */
    w->n = 1;
    pst_stack *st = open_world(w, NULL);
    const pst_member *m = st->files[0];
    CHECK(m->filtered && m->guide->n_segments == 1 && !pst_member_entries(m, 0));
    pst_place place = {0, 0, 0};
    pst_seeker seeker = {NULL, NULL, NULL, blind_found, blind_done};
    for (uint32_t i = 0; i < SEARCHES; i++) {
        place.hash = pst_hash_word(PST_INT64, UINT64_C(1) << 40 | i, PST_HASH_SEED);
        place.key_group = pst_key_group(place.hash, WORLD_GROUPS);
        CHECK_EQ(pst_stack_search(st, &place, 1, &seeker), PST_OK);
        if (i == 0)
            CHECK(pst_member_entries(m, 0) && !pst_member_filter(m, 0));
    }
    CHECK(pst_member_filter(m, 0) != NULL);
    pst_stack_get_stats(st, &stats);
    CHECK(stats.absent > 0 && stats.absent < MOST_BLIND);
    CHECK(stats.lies < SEARCHES / 20);
    CHECK_EQ(m->lacking, 0);
    pst_stack_close(st);
    w->n = 2;
    file_free(&whole);
    world_free(w);
}

/* However many keys there are of each place, so many searches have read each file once in a round. */
static void check_once(const pst_stack *st, uint64_t searches) {
    enum { PLACES = 8, BLOCK = 8192 }; /* two of them may share a block */
    pst_stack_stats stats;
    uint64_t blocks = 0, bytes = 0, rounds = searches * (uint64_t)st->n;
    for (int32_t f = 0; f < st->n; f++) {
        const pst_guide *g = st->files[f]->guide;
        bytes += g->info.file_bytes;
        for (uint32_t i = 0; i < g->n_segments; i++)
            blocks += g->segments[i].blocks;
    }
    pst_stack_get_stats(st, &stats);
    CHECK(stats.blocks <= rounds * (blocks + PLACES));
    CHECK(stats.bytes <= rounds * (bytes + PLACES * BLOCK));
}

/* One place goes on in another segment. */
static void run_long(void) {
    world *w = &the_world;
    memory_file whole = {.calls_left = -1};
    make_world(w, WORLD_NAMESPACES, 2, 22000, 77);
    world_merge(w, w->rows, &whole);
    pst_stack *st = open_world(w, NULL);
    CHECK(st->files[0]->guide->n_segments > 1 && st->files[0]->guide->segments[1].continued);
    check_batch(w, st, &whole, 300, 22100, 5);
    check_once(st, 1);
    check_batch(w, st, &whole, 20, 22100, 6);
    check_batch(w, st, &whole, 9000, 22100, 7);
    check_once(st, 3);
    pst_stack_close(st);
    file_free(&whole);
    world_free(w);
}

/* ---- files that are open for several stacks ---------------------------------------------------- */

static uint64_t reads_of(const pst_reads *reads) {
    pst_reads_stats stats;
    pst_reads_get_stats(reads, &stats);
    return stats.reads;
}

static uint64_t charged(pst_budget *budget) {
    pst_budget_stats stats;
    pst_budget_get_stats(budget, &stats);
    return stats.private_bytes;
}

/* Stacks of open files read nothing and charge no guide again, and live on without their paths and
 * without whoever opened them. Each counts its files for key groups of its own. */
static void run_shared(void) {
    world *w = &the_world;
    memory_file whole = {.calls_left = -1};
    pst_member *members[WORLD_FILES], *other;
    pst_stack *first, *second;
    pst_reads *reads = NULL, *others = NULL;
    pst_budget *budget = NULL;
    pst_detail detail;
    const int32_t part[] = {0, 0};
    make_world(w, WORLD_PLAIN, 4, 6000, 21);
    world_merge(w, w->rows, &whole);
    REQUIRE(!pst_reads_create(NULL, &reads) && !pst_reads_create(NULL, &others));
    REQUIRE(!pst_budget_create(256 << 20, &budget));
    pst_stack_options o = {.reads = reads, .budget = budget}, none = {0}, apart = {.reads = others};
    CHECK_EQ(pst_member_open(&w->schema, WORLD_GROUPS, w->paths[0], &none, &other, NULL),
             PST_INVALID);
    CHECK_EQ(pst_member_open(&w->schema, 64, w->paths[0], &o, &other, NULL), PST_SCHEMA);
    CHECK_EQ(pst_member_open(&w->schema, WORLD_GROUPS, "/nowhere/at/all", &o, &other, &detail),
             PST_NOT_FOUND);
    CHECK_EQ(detail.sys_errno, ENOENT);
    CHECK_EQ(charged(budget), 0);
    for (int32_t i = 0; i < w->n; i++) {
        REQUIRE(!pst_member_open(&w->schema, WORLD_GROUPS, w->paths[i], &o, &members[i], NULL));
        CHECK(pst_member_descriptor(members[i]) >= 0);
        CHECK(pst_member_info(members[i])->rows > 0 && pst_member_info(members[i])->block_bytes);
        REQUIRE(!unlink(w->paths[i]));
        w->files[i] = (pst_stack_file){.member = members[i]};
    }
    uint64_t before = charged(budget), read = reads_of(reads);
    /* No more than they take, though there are small ones. */
    CHECK(before > 0 && before < (uint64_t)w->n * (64 << 10));
    first = open_world(w, &o);
    w->files[0].ranges = part;
    w->files[0].n_ranges = 1;
    second = open_world(w, &o);
    CHECK_EQ(charged(budget), before);
    CHECK_EQ(reads_of(reads), read);
    CHECK(pst_stack_counts(first, 0, 1) && !pst_stack_counts(second, 0, 1));
    CHECK_EQ(pst_stack_open(&w->schema, WORLD_GROUPS, w->files, w->n, &apart, &first, &detail),
             PST_INVALID);
    CHECK_EQ(detail.row, 0);
    CHECK_EQ(pst_stack_open(&w->schema, 64, w->files, w->n, &o, &first, &detail), PST_SCHEMA);
    for (int32_t i = 0; i < w->n; i++)
        pst_member_release(members[i]);
    pst_stack_close(second);
    pst_reads_release(reads);
    check_batch(w, first, &whole, 3000, 6100, 9);
    pst_stack_close(first);
    CHECK_EQ(charged(budget), 0);
    pst_reads_release(others);
    pst_budget_release(budget);
    for (int32_t i = 0; i < w->n; i++) /* for world_free */
        w->files[i] = (pst_stack_file){.path = w->paths[i]};
    file_free(&whole);
    world_free(w);
}

int main(int argc, char **argv) {
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 2;
    for (uint64_t seed = 1; seed <= rounds; seed++)
        for (int style = 0; style < WORLD_STYLES; style++)
            run_model((world_style)style, seed % 2 ? 1500 : 6000, seed * 10 + (uint64_t)style);
    CHECK(filters_read > 0);
    run_long();
    run_ends();
    run_due();
    run_many();
    run_blind();
    run_shared();
    return check_report();
}
