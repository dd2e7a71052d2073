/* Time indexes against a model: every timer that a record bears comes once and in order, from any
 * time on, however many runs there are; and no flipped bit changes an answer. */
#include "guided.h"

#include "base/coding.h"
#include "guide/sst_times_build.h"
#include "key/schema.h"

enum { VALUE = 150, TIMERS = 1, TIMER = 2 };

static const pst_column COLUMNS[] = {{.name = "k", .type = PST_INT64},
                                     {.name = PST_ELEMENT_COLUMN, .type = PST_BINARY},
                                     {.name = "v", .type = PST_BINARY},
                                     {.name = "#timers", .type = PST_BOOL, .kind = PST_TIMERS},
                                     {.name = "#timer", .type = PST_INT64, .kind = PST_TIMER}};
static const pst_schema SCHEMA = {2, 3, COLUMNS, COLUMNS + 2, 1};
static const row_style WHOLE = {
    .max_parallelism = 12, .first_key_group = 2, .last_key_group = 9, .block_bytes = 4096};
static uint8_t value_bytes[VALUE];

/* All timers of rows are at a few times. */
static int few_times;

typedef struct times_file {
    memory_file f;
    random_rows rows;
    pst_timer_hint *timers;
    size_t n;
} times_file;

static int by_time(const void *a, const void *b) {
    const pst_timer_hint *x = a, *y = b;
    if (x->domain != y->domain)
        return x->domain < y->domain ? -1 : 1;
    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    return pst_place_compare(x->key_group, x->hash, y->key_group, y->hash);
}

static pst_record *add_record(times_file *x, uint64_t key) {
    pst_record *r = &x->rows.rows[x->rows.n];
    r->op = PST_PUT;
    r->key[0].word[0] = key;
    r->hash = pst_hash_key(SCHEMA.keys, 1, r->key, 0);
    r->key_group = pst_key_group(r->hash, WHOLE.max_parallelism);
    if (r->key_group < WHOLE.first_key_group || r->key_group > WHOLE.last_key_group)
        return NULL;
    x->rows.n++;
    return r;
}

static void expect_timer(times_file *x, const pst_record *r, uint32_t domain, int64_t time) {
    x->timers[x->n++] = (pst_timer_hint){time, r->hash, r->key_group, (int32_t)domain};
}

/* A key with its row, which may bear a timer, and timers that are elements, some of them deleted. */
static void add_key(times_file *x, uint64_t key, uint64_t *rng) {
    int64_t most = check_random(rng) % 3 ? 5000 : INT64_MAX / 4;
    pst_record *r = add_record(x, key);
    if (!r)
        return;
    r->key_nulls = 2;
    r->changed = 1u | 1u << TIMER;
    r->present = 1;
    r->cells[0].bytes = (pst_bytes){value_bytes, VALUE};
    if (check_random(rng) % 2) {
        int64_t time = (int64_t)(check_random(rng) % (uint64_t)(few_times ? 3 : most)) - 100;
        uint32_t domain = check_random(rng) % 4 == 0;
        r->present |= 1u << TIMER;
        r->cells[TIMER].word[0] = (uint64_t)time << 1 | domain;
        expect_timer(x, r, domain, time);
    }
    static const int64_t ends[] = {INT64_MIN, -1, 0, 77, INT64_MAX};
    uint64_t which = check_random(rng);
    for (int i = 0; i < 5 && which % 3 == 0; i++) {
        uint32_t domain = (uint32_t)(which >> 8) % 2;
        if (!(which >> (16 + i) & 1))
            continue;
        r = add_record(x, key);
        uint8_t *p = heap_take(x->rows.heap, PST_ELEMENT_TIMER);
        pst_put_big(p, 0, 4);
        p[4] = (uint8_t)domain;
        pst_put_big(p + 5, (uint64_t)ends[i] ^ UINT64_C(1) << 63, 8);
        r->key[1].bytes = (pst_bytes){p, PST_ELEMENT_TIMER};
        if (which >> (32 + i) & 1) {
            r->op = PST_DELETE;
            continue;
        }
        r->changed = r->present = 1u << TIMERS;
        r->cells[TIMERS].word[0] = 1;
        expect_timer(x, r, domain, ends[i]);
    }
}

static void make(times_file *x, size_t keys) {
    uint64_t rng = keys;
    *x = (times_file){
        .rows = {calloc(12 * keys, sizeof(pst_record)), 0, calloc(1, sizeof(byte_heap))},
        .timers = calloc(6 * keys, sizeof *x->timers)};
    REQUIRE(x->rows.rows && x->rows.heap && x->timers);
    for (uint64_t key = 0; key < keys; key++)
        add_key(x, key, &rng);
    sort_rows(&SCHEMA, x->rows.rows, x->rows.rows + x->rows.n, x->rows.n);
    qsort(x->timers, x->n, sizeof *x->timers, by_time);
    pst_io io = file_io(&x->f, 1);
    pst_file_info info = info_of(PST_DELTA, &WHOLE, 7);
    REQUIRE(write_rows(&SCHEMA, &info, &io, x->rows.rows, x->rows.n) == PST_OK);
}

static void destroy(times_file *x) {
    file_free(&x->f);
    rows_free(&x->rows);
    free(x->timers);
}

/* Reads from a time on; counts what is as it must be. PST_OK: it came to the end. */
static pst_status walk_from(const times_file *x, pst_times *t, const pst_timer_hint *from,
                            uint64_t most, size_t *wrong) {
    pst_timer_hint hint;
    int32_t domain = from->domain;
    size_t at = 0;
    pst_status s = PST_OK;
    while (at < x->n && by_time(&x->timers[at], from) < 0)
        at++;
    pst_times_seek(t, from);
    for (; most > 0 && !(s = pst_times_next(t, &hint)); at++, most--)
        *wrong += at >= x->n || by_time(&x->timers[at], &hint) != 0;
    if (s == PST_NOT_FOUND)
        *wrong += at < x->n && x->timers[at].domain == domain;
    return s == PST_NOT_FOUND ? PST_OK : s;
}

static pst_status walk(const times_file *x, pst_times *t, int32_t domain, int64_t time,
                       uint64_t most, size_t *wrong) {
    pst_timer_hint from = {time, 0, 0, domain};
    return walk_from(x, t, &from, most, wrong);
}

static pst_status open_times(memory_file *f, pst_guide **guide, pst_times **times) {
    pst_io io = file_io(f, 0);
    *guide = NULL;
    *times = NULL;
    pst_status s = pst_guide_open(&io, f->size, guide, NULL);
    return s ? s : pst_times_open(&io, *guide, times);
}

static uint32_t runs_of(const memory_file *f, const pst_guide *g) {
    uint32_t runs = 0;
    for (uint32_t i = 0; i < g->times_blocks; i++)
        runs += f->data[g->data_end + i * PST_GUIDE_TIMES_REF + 29];
    return runs;
}

/* What a writer has held at most: the timers of a run are of both domains. */
static uint64_t largest_run(const memory_file *f, const pst_guide *g) {
    uint64_t run = 0, largest = 0;
    int32_t domain = 0;
    for (uint32_t i = 0; i < g->times_blocks; i++) {
        const uint8_t *ref = f->data + g->data_end + i * PST_GUIDE_TIMES_REF;
        if (ref[29] && ref[28] <= domain)
            run = 0;
        domain = ref[28];
        run += pst_get_u16(ref + 26);
        largest = run > largest ? run : largest;
    }
    return largest;
}

/* A segment's rows have at most so many timers. */
static uint64_t largest_segment(const pst_guide *g) {
    uint64_t largest = 0;
    for (uint32_t i = 0; i < g->n_segments; i++)
        largest = g->segments[i].puts > largest ? g->segments[i].puts : largest;
    return largest;
}

static void test_order(void) {
    times_file x;
    pst_guide *g;
    pst_times *t;
    uint64_t rng = 5;
    size_t wrong = 0, equal;
    make(&x, 24000);
    REQUIRE(open_times(&x.f, &g, &t) == PST_OK);
    CHECK_EQ(g->timers, x.n);
    CHECK(g->n_segments > 1);
    CHECK(runs_of(&x.f, g) > 3);
    CHECK(largest_run(&x.f, g) >= PST_TIMES_RUN);
    CHECK(largest_run(&x.f, g) <= PST_TIMES_RUN + largest_segment(g));
    CHECK(largest_run(&x.f, g) < x.n / 2);
    for (int i = 0; i < 60; i++) {
        int64_t time = i == 0   ? INT64_MIN
                       : i == 1 ? INT64_MAX
                       : i < 50 ? (int64_t)(check_random(&rng) % 6000) - 500
                                : (int64_t)check_random(&rng);
        for (int32_t domain = 0; domain < 2; domain++)
            CHECK_EQ(walk(&x, t, domain, time, i % 3 ? 40 : UINT64_MAX, &wrong), PST_OK);
    }
    CHECK_EQ(wrong, 0);
    /* What is not due is not read. */
    x.f.bytes_read = 0;
    (void)walk(&x, t, 0, INT64_MIN, 1, &wrong);
    CHECK(x.f.bytes_read < 25000 * runs_of(&x.f, g));
    pst_times_close(t);
    pst_guide_close(g);
    pst_io io = file_io(&x.f, 1);
    CHECK_EQ(read_rows(&SCHEMA, &io, x.f.size, x.rows.rows, x.rows.n, &equal), PST_OK);
    CHECK_EQ(equal, x.rows.n);
    destroy(&x);
}

/* Gives all runs what they want, as many times as they want something. */
static pst_status give_all(const memory_file *f, pst_times *t, uint64_t *given) {
    pst_times_read read;
    uint64_t before;
    do {
        before = *given;
        for (uint32_t i = 0; i < pst_times_runs(t); i++) {
            if (!pst_times_wants(t, i, &read))
                continue;
            REQUIRE(read.offset <= f->size && read.size <= f->size - read.offset);
            pst_status s = pst_times_give(t, i, f->data + read.offset);
            if (s)
                return s;
            ++*given;
        }
    } while (*given > before);
    return PST_OK;
}

/* From any place within a time, of which there are many blocks; what is wanted is then not read by
 * the cursor, and by halves it is soon found. */
static void test_places(void) {
    times_file x;
    pst_guide *g;
    pst_times *t;
    uint64_t rng = 6, most = 0;
    size_t wrong = 0;
    few_times = 1;
    make(&x, 40000);
    few_times = 0;
    REQUIRE(open_times(&x.f, &g, &t) == PST_OK);
    for (int i = 0; i < 200; i++) {
        pst_timer_hint from = x.timers[check_random(&rng) % x.n], hint;
        from.hash += check_random(&rng) % 3 - 1;
        CHECK_EQ(walk_from(&x, t, &from, i % 4 ? 30 : 20000, &wrong), PST_OK);
        uint64_t given = 0;
        size_t at = 0;
        while (at < x.n && by_time(&x.timers[at], &from) < 0)
            at++;
        pst_times_seek(t, &from);
        REQUIRE(!give_all(&x.f, t, &given));
        most = given > most ? given : most;
        x.f.bytes_read = 0;
        pst_status s = pst_times_next(t, &hint);
        CHECK_EQ(s, at < x.n && x.timers[at].domain == from.domain ? PST_OK : PST_NOT_FOUND);
        CHECK(s || !by_time(&hint, &x.timers[at]));
        /* Only of runs of which the place is at the end another block is read. */
        CHECK(x.f.bytes_read < 25000 * runs_of(&x.f, g));
    }
    CHECK_EQ(wrong, 0);
    CHECK(most <= 4 * runs_of(&x.f, g));
    /* What is given is verified. */
    pst_times_read read;
    pst_times_seek(t, &(pst_timer_hint){.time = INT64_MIN});
    for (uint32_t i = 0; i < pst_times_runs(t); i++)
        if (pst_times_wants(t, i, &read)) {
            x.f.data[read.offset + 3] ^= 8;
            CHECK_EQ(pst_times_give(t, i, x.f.data + read.offset), PST_CORRUPT);
            CHECK_EQ(pst_times_next(t, &(pst_timer_hint){0}), PST_CORRUPT);
            break;
        }
    pst_times_close(t);
    pst_guide_close(g);
    destroy(&x);
}

/* No timers at all; and no index without a guide, or without a column of timers. */
static void test_none(void) {
    times_file x;
    pst_guide *g;
    pst_times *t;
    pst_timer_hint hint;
    make(&x, 1);
    REQUIRE(open_times(&x.f, &g, &t) == PST_OK);
    CHECK_EQ(g->timers, x.n);
    pst_times_seek(t, &(pst_timer_hint){.time = INT64_MIN});
    for (size_t i = 0; i < x.n; i++)
        (void)pst_times_next(t, &hint);
    CHECK_EQ(pst_times_next(t, &hint), PST_NOT_FOUND);
    pst_times_close(t);
    pst_guide_close(g);
    pst_schema without = SCHEMA;
    pst_io io = file_io(&x.f, 1);
    pst_file_info info = info_of(PST_DELTA, &WHOLE, 7);
    without.n_states = 1;
    x.f.size = 0;
    REQUIRE(write_rows(&without, &info, &io, NULL, 0) == PST_OK);
    CHECK_EQ(open_times(&x.f, &g, &t), PST_NOT_FOUND);
    pst_guide_close(g);
    destroy(&x);
}

static void test_damage(void) {
    times_file x;
    pst_guide *g;
    pst_times *t;
    make(&x, 60);
    REQUIRE(open_times(&x.f, &g, &t) == PST_OK);
    uint64_t from = g->segments[g->n_segments - 1].end, to = x.f.size;
    pst_times_close(t);
    pst_guide_close(g);
    size_t wrong = 0, unseen = 0;
    CHECK(x.n > 20);
    for (uint64_t bit = from * 8; bit < to * 8; bit++) {
        x.f.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        pst_status s = open_times(&x.f, &g, &t);
        for (int32_t domain = 0; !s && domain < 2; domain++)
            s = walk(&x, t, domain, INT64_MIN, UINT64_MAX, &wrong);
        unseen += s == PST_OK;
        CHECK(s == PST_CORRUPT || s == PST_OK);
        pst_times_close(t);
        pst_guide_close(g);
        x.f.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    CHECK_EQ(wrong, 0);
    CHECK_EQ(unseen, 0);
    destroy(&x);
}

static void test_refused(void) {
    times_file x;
    make(&x, 400);
    pst_status s = PST_NO_MEMORY;
    for (int64_t k = 0; s; k++) {
        pst_guide *g;
        pst_times *t;
        size_t wrong = 0;
        check_fail_alloc(k, 0);
        s = open_times(&x.f, &g, &t);
        if (!s)
            s = walk(&x, t, 0, INT64_MIN, UINT64_MAX, &wrong);
        check_fail_alloc(-1, 0);
        CHECK(wrong == 0 && (s == PST_OK || s == PST_NO_MEMORY));
        pst_times_close(t);
        pst_guide_close(g);
    }
    s = PST_NO_MEMORY;
    for (int64_t k = 0; s; k++) {
        memory_file f = {0};
        pst_io io = file_io(&f, 1);
        pst_file_info info = info_of(PST_DELTA, &WHOLE, 7);
        check_fail_alloc(k, 0);
        s = write_rows(&SCHEMA, &info, &io, x.rows.rows, x.rows.n);
        check_fail_alloc(-1, 0);
        CHECK(s == PST_NO_MEMORY || (f.size == x.f.size && !memcmp(f.data, x.f.data, f.size)));
        file_free(&f);
    }
    /* A read that fails ends the walk until the next seek. */
    pst_guide *g;
    pst_times *t;
    pst_timer_hint hint;
    REQUIRE(open_times(&x.f, &g, &t) == PST_OK);
    pst_times_seek(t, &(pst_timer_hint){0});
    x.f.calls_left = 0;
    CHECK_EQ(pst_times_next(t, &hint), PST_CALLBACK);
    x.f.calls_left = -1;
    CHECK_EQ(pst_times_next(t, &hint), PST_CALLBACK);
    pst_times_seek(t, &(pst_timer_hint){0});
    CHECK_EQ(pst_times_next(t, &hint), PST_OK);
    pst_times_close(t);
    pst_guide_close(g);
    destroy(&x);
}

int main(void) {
    test_order();
    test_places();
    test_none();
    test_damage();
    test_refused();
    return check_report();
}
