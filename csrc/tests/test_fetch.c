/* Tables whose rows come from files when they are needed, against whole ones that do the same.
 *
 *   test_fetch [worlds] [seed] [epochs]
 */
#include <errno.h>
#include <fcntl.h>

#include "fetch_batches.h"
#include "reads/read.h"

enum { WORLDS = 40, EPOCHS = 30 };

/* The same step in both tables. */
static void step_both(pair *p) {
    world *w = p->w, before = *w;
    world_step(w, p->whole);
    pst_status failed = w->failed;
    uint64_t random = w->random;
    w->random = before.random;
    w->failed = before.failed;
    world_step(w, p->cached);
    CHECK_EQ(w->failed, failed);
    CHECK_EQ(w->random, random);
    pair_must(p, w->failed, "a step");
}

static void pass_time(pair *p) {
    world *w = p->w;
    w->now.processing_ms += (int64_t)world_below(w, 40);
    w->now.watermark_ms += (int64_t)world_below(w, 60);
    w->now.event_ms = w->now.watermark_ms + (int64_t)world_below(w, 100) - 50;
    pst_table_set_clock(p->whole, &w->now);
    pst_table_set_clock(p->cached, &w->now);
}

/* Timers that are due go, in portions of any size. */
static uint64_t fire(pair *p, pst_table *t, pst_domain domain, int64_t until, int64_t most) {
    int64_t times[1000];
    uint64_t fired = 0;
    pst_batch *b = NULL;
    pst_status s;
    while ((s = pst_timers_due(t, domain, until, most, times, &b)) == PST_OK) {
        for (int64_t i = 0; i < pst_batch_length(b); i++)
            CHECK(times[i] <= until);
        fired += (uint64_t)pst_batch_length(b);
        pair_must(p, pst_timers_fire_all(b, domain, times), "fire");
        pst_batch_destroy(b);
    }
    CHECK_EQ(s, PST_NOT_FOUND);
    return fired;
}

static void fire_both(pair *p) {
    world *w = p->w;
    pst_domain domain = (pst_domain)world_below(w, 2);
    int64_t until = (int64_t)world_below(w, 9000) - 2000, next = 0, hint = 0;
    if (!w->has_timers)
        return;
    /* Up to the last timers there can be, and to the last ones but those. */
    if (world_one_in(w, 6))
        until = INT64_MAX - (int64_t)world_below(w, 3);
    pst_status s = pst_timer_next(p->whole, domain, &next);
    pst_status mine = pst_timer_next(p->cached, domain, &hint);
    CHECK(mine == PST_OK || mine == PST_NOT_FOUND);
    CHECK(s == PST_NOT_FOUND || (mine == PST_OK && hint <= next));
    uint64_t fired = fire(p, p->whole, domain, until, 1000);
    CHECK_EQ(fire(p, p->cached, domain, until, 1 + (int64_t)world_below(w, 20)), fired);
    paired.fired += fired;
}

/* So many items to a list that files have them in many blocks. */
static void bulk_both(pair *p) {
    world *w = p->w;
    int32_t lists[PST_MAX_STATES], n = 0;
    for (int32_t c = 0; c < w->schema.n_states; c++)
        if (w->columns[c].kind == PST_LIST)
            lists[n++] = c;
    if (!n)
        return;
    int32_t column = lists[world_below(w, (uint64_t)n)];
    int k = draw_key(w);
    uint64_t items = 200 + world_below(w, 2500), seed = world_seed(w);
    pst_table *both[] = {p->whole, p->cached};
    for (int i = 0; i < 2; i++) {
        pair_must(p, pst_key_set(both[i], w->keys[k], w->nulls[k]), "a key");
        for (uint64_t j = 0; j < items; j++) {
            pst_cell v = world_value(w, column, seed + j);
            pair_must(p, pst_list_add(both[i], column, &v), "an item");
        }
    }
}

/* ---- faults ---------------------------------------------------------------------------------- */

static struct {
    int64_t left; /* reads until it fails */
    int what;
} fault;

static int64_t fail_read(const pst_read *r, int64_t result) {
    (void)r;
    if (fault.left-- > 0)
        return result;
    if (fault.what == 0)
        return -EIO;
    if (fault.what == 1)
        return 0;   /* the file is shorter than it was */
    fault.left = 2; /* the next ones are as they should be */
    return result > 1 ? 1 + result / 2 : result;
}

/* Flips a byte of a file of the stack, or flips it back. */
static void flip(pair *p, int file, int64_t at, uint8_t by) {
    char path[96];
    uint8_t byte;
    pair_path(p, p->now.number[file], path);
    int fd = open(path, O_RDWR);
    REQUIRE(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= by;
    REQUIRE(pwrite(fd, &byte, 1, at) == 1);
    close(fd);
}

static int64_t size_of(pair *p, int file) {
    struct stat st;
    char path[96];
    pair_path(p, p->now.number[file], path);
    REQUIRE(!stat(path, &st));
    return st.st_size;
}

/* A batch of which something fails: then nothing has changed, or the epoch is undone. */
static void draw_failing(pair *p) {
    static draw d;
    static draw_read r[2];
    world *w = p->w;
    int what = (int)world_below(w, 5), file = 0;
    int64_t at = 0;
    int dirty = pst_table_dirty(p->cached);
    memset(r, 0, sizeof r);
    if (what == 3 && p->now.n) {
        file = (int)world_below(w, (uint64_t)p->now.n);
        at = (int64_t)world_below(w, (uint64_t)size_of(p, file));
        flip(p, file, at, 4);
    }
    draw_batch(w, &d);
    fault.left = (int64_t)world_below(w, 3);
    fault.what = what;
    pst_read_hook = what < 3 ? fail_read : NULL;
    if (what == 4)
        check_fail_alloc((int64_t)world_below(w, 40), world_one_in(w, 2));
    pst_status s = draw_run(p->cached, &d, &r[1]);
    pst_read_hook = NULL;
    int refused = check_alloc_failed();
    check_fail_alloc(-1, 0);
    if (what == 3 && p->now.n)
        flip(p, file, at, 4);
    paired.faults += s == PST_IO || s == PST_CORRUPT;
    paired.refused += s == PST_NO_MEMORY;
    CHECK(!s || s == PST_CHANGED || (what < 2 && s == PST_IO) || (what == 3 && s == PST_CORRUPT) ||
          (what == 4 && refused && s == PST_NO_MEMORY));
    if (what != 4)
        CHECK(!p->cached->poisoned);
    if (p->cached->poisoned) {
        pair_must(p, pst_table_rollback(p->whole, 0), "roll back");
        pair_must(p, pst_table_rollback(p->cached, 0), "roll back");
    } else if (s && s != PST_CHANGED && what != 4 && d.what < 9) {
        /* Of a list that lies in files the items are read behind the write that came first. */
        CHECK_EQ(pst_table_dirty(p->cached), dirty);
    }
    if (s && s != PST_CHANGED) {
        memset(r[1].valid, 0, sizeof r[1].valid);
        memset(r[1].offsets, 0, sizeof r[1].offsets);
        memset(r[1].counts, 0, sizeof r[1].counts);
        s = draw_run(p->cached, &d, &r[1]);
    }
    CHECK_EQ(draw_run(p->whole, &d, &r[0]), s);
    draw_compare(&d, &r[0], &r[1]);
    draw_end(&d);
}

/* ---- epochs ---------------------------------------------------------------------------------- */

/* Has a row that is here a map of which entries lie in files? */
static int has_map_below(const pst_table *t) {
    for (uint32_t slot = 0; slot < t->m->slots; slot++)
        for (int32_t i = 0; pst_is_live(pst_row(t, slot)[0]) && i < t->lay.n_states; i++)
            if (pst_entries_are_below(t, slot, i))
                return 1;
    return 0;
}

static void run_step(pair *p) {
    world *w = p->w;
    if (world_one_in(w, 40))
        bulk_both(p);
    if (world_one_in(w, 2))
        step_both(p);
    else if (world_one_in(w, 3))
        draw_failing(p);
    else
        draw_both(p);
    /* What is put into a map that lies in files, or removed from it, is not compared with what is there:
     * then more may be written, but never less. */
    int mine = pst_table_dirty(p->cached), theirs = pst_table_dirty(p->whole);
    if (!p->expired)
        CHECK(mine == theirs || (mine && has_map_below(p->cached)));
}

/* At times one step is all that an epoch does. */
static void run_epoch(pair *p) {
    world *w = p->w;
    pass_time(p);
    for (uint64_t n = world_one_in(w, 4) ? 1 : world_below(w, 12); n > 0; n--)
        run_step(p);
    if (world_one_in(w, 3))
        fire_both(p);
    if (world_one_in(w, 4))
        pair_is_same(p);
    if (world_one_in(w, 12)) {
        pair_kill(p);
        return;
    }
    if (world_one_in(w, 8)) {
        pair_return(p);
        return;
    }
    pair_seal(p);
    if (!world_one_in(w, 3))
        pair_leave(p);
    if (world_one_in(w, 10))
        pair_begin_anew(p);
    if (p->w->seed % 2 && world_one_in(w, 3))
        pair_jump(p);
}

int main(int argc, char **argv) {
    uint64_t worlds = argc > 1 ? strtoull(argv[1], NULL, 10) : WORLDS;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint64_t epochs = argc > 3 ? strtoull(argv[3], NULL, 10) : EPOCHS;
    for (uint64_t i = 0; i < worlds; i++) {
        static pair p;
        pair_create(&p, seed + i);
        for (uint64_t e = 0; e < epochs; e++)
            run_epoch(&p);
        if (!pair_is_same(&p))
            return check_report();
        pair_destroy(&p);
    }
    CHECK(paired.merges && paired.left && paired.undone && paired.returned && paired.anew);
    CHECK(paired.killed && paired.faults && paired.refused && paired.batches && paired.fired);
    CHECK(paired.expired && paired.refreshed && compared.below && compared.maps_below);
    if (getenv("VERBOSE"))
        fprintf(stderr,
                "epochs %lu merges %lu left %lu undone %lu returned %lu anew %lu killed %lu "
                "faults %lu refused %lu batches %lu fired %lu expired %lu refreshed %lu "
                "lists below %lu maps below %lu\n",
                paired.epochs, paired.merges, paired.left, paired.undone, paired.returned,
                paired.anew, paired.killed, paired.faults, paired.refused, paired.batches,
                paired.fired, paired.expired, paired.refreshed, compared.below,
                compared.maps_below);
    return check_report();
}
