/* Stacks of files of which some extents are here: what is not is brought, what is dropped while it is
 * read is read again, and what is damaged is brought anew. */
#include "stack_world.h"

#include <errno.h>
#include <pthread.h>

#include "stack/due.h"

enum { EXTENT = 8192, GARBAGE = 0xAA };

/* The copy of a file, and what is done to it. */
typedef struct copy {
    pst_extents e;
    char path[300];
    int origin;
    int own;
    uint64_t n;
    pthread_mutex_t mutex;
    uint64_t brought;
    uint64_t dropped; /* by the core */
    int fails;        /* so many calls from now on */
    int closed;
} copy;

static world the_world;
static copy copies[WORLD_FILES];
/* One in so many reads has its extent dropped before the core looks at what came; 0: none. */
static uint32_t drops_at;
static uint32_t reads_seen;

/* What those who wait have let go of; bringing needs it. */
static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int holds;

static void *let_go(void) {
    if (!holds)
        return NULL;
    holds = 0;
    pthread_mutex_unlock(&held);
    return &held;
}

static void take_back(void *paused) {
    if (!paused)
        return;
    pthread_mutex_lock(&held);
    holds = 1;
}

static void forget(copy *c, uint64_t i) {
    static const uint8_t garbage[EXTENT] = {GARBAGE};
    uint8_t state = __atomic_load_n(&c->e.states[i], __ATOMIC_ACQUIRE);
    __atomic_store_n(&c->e.states[i], (uint8_t)((state & 0xFC) + 4), __ATOMIC_RELEASE);
    off_t at = (off_t)(i * EXTENT);
    size_t size = i + 1 < c->n ? EXTENT : (size_t)(c->e.file_bytes - i * EXTENT);
    CHECK_EQ(pwrite(c->own, garbage, size, at), (ssize_t)size);
}

static int bring(void *ctx, uint64_t first, uint64_t last) {
    copy *c = ctx;
    uint8_t data[EXTENT];
    int error = 0, own = holds;
    if (!own)
        pthread_mutex_lock(&held);
    pthread_mutex_lock(&c->mutex);
    CHECK(first <= last && last < c->n);
    if (c->fails) {
        c->fails--;
        error = EREMOTEIO;
    }
    for (uint64_t i = first; !error && i <= last; i++) {
        uint8_t state = __atomic_load_n(&c->e.states[i], __ATOMIC_ACQUIRE);
        if (state & PST_EXTENT_HERE)
            continue;
        ssize_t n = pread(c->origin, data, EXTENT, (off_t)(i * EXTENT));
        CHECK(n > 0 && pwrite(c->own, data, (size_t)n, (off_t)(i * EXTENT)) == n);
        c->brought++;
        __atomic_fetch_or(&c->e.states[i], PST_EXTENT_HERE, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&c->mutex);
    if (!own)
        pthread_mutex_unlock(&held);
    return error;
}

static void drop(void *ctx, uint64_t first, uint64_t last) {
    copy *c = ctx;
    pthread_mutex_lock(&c->mutex);
    for (uint64_t i = first; i <= last; i++)
        forget(c, i);
    c->dropped++;
    pthread_mutex_unlock(&c->mutex);
}

static void closed(void *ctx) {
    ((copy *)ctx)->closed++;
}

/* Another process drops what this one reads. */
static int64_t drop_meanwhile(const pst_read *r, int64_t result) {
    if (!r->file->extents || !drops_at ||
        __atomic_add_fetch(&reads_seen, 1, __ATOMIC_RELAXED) % drops_at)
        return result;
    copy *c = r->file->extents->ctx;
    uint64_t i = r->offset / EXTENT;
    if (i >= c->n)
        return result;
    pthread_mutex_lock(&c->mutex);
    forget(c, i);
    pthread_mutex_unlock(&c->mutex);
    memset(r->data, GARBAGE, r->size);
    return result;
}

static void make_copy(const world *w, int32_t i) {
    copy *c = &copies[i];
    struct stat st;
    memset(c, 0, sizeof *c);
    pthread_mutex_init(&c->mutex, NULL);
    snprintf(c->path, sizeof c->path, "%s.copy", w->paths[i]);
    c->origin = open(w->paths[i], O_RDWR);
    c->own = open(c->path, O_RDWR | O_CREAT | O_EXCL, 0600);
    REQUIRE(c->origin >= 0 && c->own >= 0 && !fstat(c->origin, &st));
    c->n = ((uint64_t)st.st_size + EXTENT - 1) / EXTENT;
    c->e = (pst_extents){(uint64_t)st.st_size, EXTENT, calloc(c->n, 1), bring, drop, closed, c};
    REQUIRE(c->e.states && !ftruncate(c->own, st.st_size + 999)); /* what lies behind is others' */
}

static void make_world(world *w, world_style style, int32_t n, size_t base, uint64_t seed) {
    uint64_t rng = seed;
    world_begin(w, style);
    for (int32_t i = 0; i < n; i++) {
        world_write(w, i, &rng, i ? base / (4u + 8u * (uint32_t)i) : base, base, 4000);
        make_copy(w, i);
    }
}

static void free_world(world *w) {
    for (int32_t i = 0; i < w->n; i++) {
        CHECK_EQ(copies[i].closed, 1);
        close(copies[i].origin);
        close(copies[i].own);
        (void)unlink(copies[i].path);
        free(copies[i].e.states);
        pthread_mutex_destroy(&copies[i].mutex);
    }
    world_free(w);
}

static pst_reads *make_reads(void) {
    pst_reads_options o = {.no_uring = 1, .threads = 4, .pause = let_go, .resume = take_back};
    pst_reads *reads = NULL;
    REQUIRE(!pst_reads_create(&o, &reads));
    return reads;
}

static pst_stack *open_world(world *w, pst_reads *reads) {
    pst_stack_options o = {.reads = reads};
    pst_stack *st = NULL;
    pst_detail detail;
    for (int32_t i = 0; i < w->n; i++) {
        pst_member *m = NULL;
        o.extents = &copies[i].e;
        REQUIRE(!pst_member_open(&w->schema, WORLD_GROUPS, copies[i].path, &o, &m, &detail));
        w->files[i] = (pst_stack_file){.member = m};
    }
    REQUIRE(!pst_stack_open(&w->schema, WORLD_GROUPS, w->files, w->n, &o, &st, &detail));
    for (int32_t i = 0; i < w->n; i++)
        pst_member_release(w->files[i].member);
    return st;
}

static pst_status look_up(const world *w, pst_stack *st, const memory_file *whole, size_t n,
                          uint64_t domain, uint64_t seed) {
    uint64_t rng = seed, *ids = malloc((n + 2) * sizeof *ids);
    REQUIRE(ids);
    for (size_t i = 0; i < n; i++)
        ids[i] = check_random(&rng) % domain;
    finds f = finds_make(w, ids, n);
    pst_status s = finds_search(&f, st, n);
    if (!s)
        finds_check(&f, whole, n);
    finds_free(&f);
    free(ids);
    return s;
}

static uint64_t total(const world *w, int dropped) {
    uint64_t n = 0;
    for (int32_t i = 0; i < w->n; i++)
        n += dropped ? copies[i].dropped : copies[i].brought;
    return n;
}

/* All that was brought is as it was not written. */
static void damage(const world *w, int origin) {
    for (int32_t i = 0; i < w->n; i++)
        for (uint64_t at = 0; at < copies[i].e.file_bytes; at += 97) {
            uint8_t byte;
            int fd = origin ? copies[i].origin : copies[i].own;
            CHECK_EQ(pread(fd, &byte, 1, (off_t)at), 1);
            byte ^= 0x40;
            CHECK_EQ(pwrite(fd, &byte, 1, (off_t)at), 1);
        }
}

static void run_model(world_style style, size_t base, uint64_t seed) {
    world *w = &the_world;
    memory_file whole = {.calls_left = -1};
    make_world(w, style, 5, base, seed);
    world_merge(w, w->rows, &whole);
    pst_reads *reads = make_reads();
    pst_stack *st = open_world(w, reads);
    /* Header, tail and entries alone. */
    CHECK(copies[0].brought < copies[0].n);
    uint64_t before = total(w, 0);
    CHECK_EQ(look_up(w, st, &whole, 1, base, seed), PST_OK);
    CHECK(total(w, 0) - before <= 3 * (uint64_t)w->n);
    for (int round = 0; round < 2; round++) {
        CHECK_EQ(look_up(w, st, &whole, 300, base * 2, seed), PST_OK);
        before = round ? before : total(w, 0);
    }
    CHECK_EQ(total(w, 0), before);
    for (int32_t i = 0; i < w->n; i++) {
        uint64_t here = 0;
        for (uint64_t at = 0; at < copies[i].n; at++)
            here += (copies[i].e.states[at] & PST_EXTENT_HERE) != 0;
        CHECK_EQ(here, copies[i].brought);
    }
    /* EX1: what came of an extent that was dropped meanwhile is never looked at. */
    pst_read_hook = drop_meanwhile;
    drops_at = 3;
    CHECK_EQ(look_up(w, st, &whole, base, base * 2, seed + 1), PST_OK);
    CHECK_EQ(total(w, 1), 0);
    pst_stack_close(st);
    for (int32_t i = 0; i < w->n; i++)
        copies[i].closed = 0;
    st = open_world(w, reads);
    CHECK_EQ(total(w, 1), 0);
    drops_at = 0;
    pst_read_hook = NULL;
    /* MB4: blocks and filters, and then what is read as a file is opened. */
    damage(w, 0);
    CHECK_EQ(look_up(w, st, &whole, base, base * 2, seed + 2), PST_OK);
    CHECK(total(w, 1) > 0);
    pst_stack_close(st);
    for (int32_t i = 0; i < w->n; i++)
        copies[i].closed = 0;
    damage(w, 0);
    st = open_world(w, reads);
    CHECK_EQ(look_up(w, st, &whole, base, base * 2, seed + 3), PST_OK);
    damage(w, 0);
    damage(w, 1);
    CHECK_EQ(look_up(w, st, &whole, base, base * 2, seed + 3), PST_CORRUPT);
    damage(w, 1); /* as it was */
    CHECK_EQ(look_up(w, st, &whole, base, base * 2, seed + 3), PST_OK);
    pst_stack_close(st);
    pst_reads_release(reads);
    file_free(&whole);
    free_world(w);
}

/* What cannot be brought is said, and comes the next time. */
static void run_refused(void) {
    world *w = &the_world;
    memory_file whole = {.calls_left = -1};
    pst_member *m;
    pst_detail detail;
    make_world(w, WORLD_PLAIN, 2, 3000, 5);
    world_merge(w, w->rows, &whole);
    pst_reads *reads = make_reads(), *ring = NULL;
    REQUIRE(!pst_reads_create(NULL, &ring));
    pst_stack_options o = {.reads = ring, .extents = &copies[0].e};
    CHECK_EQ(pst_member_open(&w->schema, WORLD_GROUPS, copies[0].path, &o, &m, &detail),
             PST_INVALID);
    pst_reads_release(ring);
    o.reads = reads;
    copies[0].e.file_bytes += 1000;
    CHECK_EQ(pst_member_open(&w->schema, WORLD_GROUPS, copies[0].path, &o, &m, &detail),
             PST_INVALID);
    copies[0].e.file_bytes -= 1000;
    for (int fails = 1; fails < 4; fails++) {
        copies[0].fails = 1;
        CHECK_EQ(pst_member_open(&w->schema, WORLD_GROUPS, copies[0].path, &o, &m, &detail),
                 PST_IO);
        CHECK_EQ(detail.sys_errno, EREMOTEIO);
        CHECK_EQ(copies[0].closed, 0);
        if (!bring(&copies[0], (uint64_t)fails - 1, (uint64_t)fails - 1))
            continue;
    }
    pst_stack *st = open_world(w, reads);
    for (uint64_t i = 0; i < copies[0].n; i++)
        forget(&copies[0], i);
    copies[0].fails = 2;
    CHECK_EQ(look_up(w, st, &whole, 500, 3000, 9), PST_IO);
    CHECK_EQ(pst_stack_detail(st)->sys_errno, EREMOTEIO);
    CHECK_EQ(pst_stack_detail(st)->row, 0);
    copies[0].fails = 0;
    CHECK_EQ(look_up(w, st, &whole, 500, 3000, 9), PST_OK);
    pst_stack_close(st);
    pst_reads_release(reads);
    file_free(&whole);
    free_world(w);
}

static uint64_t count_due(pst_stack *st, pst_status *s) {
    pst_due *d = NULL;
    pst_timer_hint hint = {.time = INT64_MIN};
    uint64_t n = 0;
    *s = pst_due_open(st, &d);
    if (*s)
        return 0;
    for (int domain = 0; domain < 2; domain++) {
        hint = (pst_timer_hint){.domain = domain, .time = INT64_MIN};
        pst_due_seek(d, &hint);
        while ((*s = pst_due_next(d, &hint)) == PST_OK && hint.domain == domain)
            n++;
        if (*s && *s != PST_NOT_FOUND)
            break;
        *s = PST_OK;
    }
    pst_due_close(d);
    return n;
}

/* A time index that is damaged is said to be so once. */
static void run_due(void) {
    world *w = &the_world;
    pst_status s;
    make_world(w, WORLD_TIMERS, 3, 3000, 8);
    pst_reads *reads = make_reads();
    pst_stack *st = open_world(w, reads);
    uint64_t n = count_due(st, &s);
    CHECK_EQ(s, PST_OK);
    CHECK(n > 100);
    damage(w, 0);
    int failures = 0;
    uint64_t again = 0;
    for (; failures < 10; failures++) {
        again = count_due(st, &s);
        if (!s)
            break;
        CHECK_EQ(s, PST_CORRUPT);
    }
    CHECK(failures > 0 && failures <= w->n);
    CHECK_EQ(again, n);
    pst_stack_close(st);
    pst_reads_release(reads);
    free_world(w);
}

int main(int argc, char **argv) {
    pthread_mutex_lock(&held);
    holds = 1;
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    for (uint64_t seed = 1; seed <= rounds; seed++)
        for (int style = 0; style < WORLD_STYLES; style++)
            run_model((world_style)style, 3000, seed * 10 + (uint64_t)style);
    run_refused();
    run_due();
    return check_report();
}
