/* Trees against a sorted array: random operations over all shapes with seals and roll backs, old
 * roots beside new ones, diffs, sharing, compactness, refused memory, a kill after any store, and
 * nodes that hold nonsense.
 *
 *   test_tree [steps] [seed]
 */
#include "crash.h"
#include "tree_model.h"

static const pst_tree_shape SHAPES[] = {
    {.key_words = 1, .value_words = 1},
    {.key_words = 1},
    {.key_words = 2},
    {.key_words = 1, .value_words = 2, .value_is_ref = 1, .timed = 1},
    {.key_words = 2, .key_is_ref = 1, .value_words = 1},
    {.key_words = 2, .key_is_ref = 1, .value_words = 2, .value_is_ref = 1, .timed = 1},
    {.key_words = 1, .value_words = 5, .timed = 1},
    {.key_words = 2, .value_words = 32, .timed = 1},
};
enum { SHAPE_COUNT = sizeof SHAPES / sizeof *SHAPES };

/* ---- random operations ----------------------------------------------------------------------- */

/* Every version that the window promises, and how one leads to the next. */
static int check_versions(const tree_model *m) {
    int ok = tree_compare(m, &m->now);
    for (uint64_t back = 0; ok && back <= tree_window(m); back++) {
        const tree_version *v = &m->sealed[(m->seals - back) % TREE_VERSIONS];
        ok = tree_compare(m, v) && tree_compare_diff(m, v, &m->now) &&
             tree_compare_diff(m, &m->now, v);
        if (ok && back)
            ok = tree_compare_diff(m, v, &m->sealed[m->seals % TREE_VERSIONS]);
    }
    (void)tree_inspect(m, m->now.root);
    return ok;
}

/* Neighbours in the order of keys, put or removed as runs where the shape has them; with gaps, and
 * now and then one of them out of order. */
static pst_status runs(tree_model *m, uint64_t *random, uint32_t from, uint32_t n, int put) {
    const pst_tree_shape *shape = &m->shape;
    uint64_t (*keys)[2] = malloc(n * sizeof *keys);
    uint32_t *names = malloc(n * sizeof *names), count = 0;
    pst_status s = PST_OK;
    REQUIRE(keys && names);
    for (uint32_t i = 0; i < n; i++) {
        if (check_random(random) % 16 == 0)
            continue;
        uint32_t place = check_random(random) % 40 == 0 ? (uint32_t)check_random(random) : from + i;
        tree_room room;
        pst_tree_entry e;
        names[count] = m->order[place % m->keys];
        tree_key(shape, names[count], &e, &room);
        memcpy(keys[count++], e.key, sizeof *keys);
    }
    for (uint32_t at = 0, done = 0; !s && at < count; at += done) {
        const uint64_t (*left)[2] = (const uint64_t (*)[2])keys + at;
        uint64_t fresh = 0, before = m->now.root.count;
        s = put ? pst_tree_put_run(m->t, shape, &m->now.root, left, count - at, &done, &fresh)
                : pst_tree_remove_run(m->t, shape, &m->now.root, left, count - at, &done);
        if (s == PST_NOT_FOUND) {
            CHECK(!put && !m->now.present[names[at]]);
            done = 1;
            s = PST_OK;
            continue;
        }
        if (s)
            break;
        CHECK(done >= 1 && done <= count - at && (!put || done <= PST_TREE_RUN));
        for (uint32_t i = 0; i < done; i++) {
            uint32_t k = names[at + i];
            CHECK_EQ(m->now.present[k], put ? !(fresh >> i & 1) : 1);
            m->now.present[k] = (uint8_t)put;
            m->now.seed[k] = 0;
            m->now.time[k] = 0;
        }
        uint64_t changed = put ? (uint64_t)__builtin_popcountll(fresh) : done;
        CHECK_EQ(m->now.root.count, put ? before + changed : before - changed);
    }
    free(keys);
    free(names);
    return s;
}

static int has_runs(const pst_tree_shape *s) {
    return s->key_words == 2 && !s->key_is_ref && !s->value_words && !s->timed;
}

/* Some operations of one kind, so that trees grow, thin out and shrink. */
static pst_status burst(tree_model *m, uint64_t *random) {
    uint64_t what = check_random(random) % 12, n = check_random(random) % (m->keys / 4) + 1;
    uint32_t from = (uint32_t)(check_random(random) % m->keys);
    pst_status s = PST_OK;
    if (what == 0 && check_random(random) % 4 == 0)
        return tree_clear(m);
    if (has_runs(&m->shape) && check_random(random) % 2)
        return runs(m, random, from, (uint32_t)n, what < 7);
    for (uint64_t i = 0; i < n && !s; i++) {
        uint32_t k = (uint32_t)(check_random(random) % m->keys), next = (from + (uint32_t)i);
        uint64_t seed = check_random(random) % 200;
        int64_t time = (int64_t)(check_random(random) % 3);
        next = m->order[next % m->keys];
        if (what < 5)
            s = tree_put(m, k, seed, time);
        else if (what < 7)
            s = tree_put(m, next, seed, time);
        else if (what == 7)
            s = tree_put(m, m->order[(from + m->keys - (uint32_t)i) % m->keys], seed, time);
        else if (what < 10)
            s = tree_remove(m, k);
        else
            s = tree_remove(m, next);
    }
    return s;
}

static void test_random(const pst_tree_shape *shape, uint32_t keys, int steps, uint64_t seed) {
    tree_model *m = tree_model_open(*shape, keys, (uint64_t)1 << 28);
    uint64_t failed = check_failed;
    for (int i = 0; i < steps && check_failed == failed; i++) {
        REQUIRE(burst(m, &seed) == PST_OK);
        uint64_t what = check_random(&seed) % 8;
        if (what < 3)
            tree_seal(m);
        else if (what == 3)
            tree_rollback(m, check_random(&seed) % (tree_window(m) + 1));
        check_versions(m);
        if (i % 8 == 0)
            tree_compare_find(m, &m->now);
    }
    if (check_failed != failed)
        fprintf(stderr, "    shape %d, %u keys\n", (int)(shape - SHAPES), keys);
    tree_model_close(m);
}

/* Runs of ascending keys, as files have them, at the end of what is there and elsewhere; what is
 * said to follow does so, or not. */
static void test_append(const pst_tree_shape *shape, int rounds, uint64_t seed) {
    enum { KEYS = 2000 };
    tree_model *m = tree_model_open(*shape, KEYS, 0);
    for (int round = 0; round < rounds; round++) {
        uint32_t from = (uint32_t)(check_random(&seed) % KEYS);
        uint32_t end = from + (uint32_t)(check_random(&seed) % (round % 3 ? 40 : 700));
        int lies = round % 5 == 4;
        if (round % 40 == 0) {
            REQUIRE(tree_clear(m) == PST_OK);
            from = 0;
        }
        if (end > KEYS)
            end = KEYS;
        if (round % 2) {
            uint32_t more = lies ? (uint32_t)check_random(&seed) : 0, half = (end - from) / 2;
            uint64_t value = check_random(&seed) % 100;
            REQUIRE(!tree_append_run(m, from, half, value, round, end - from - half));
            REQUIRE(!tree_append_run(m, from + half, end - from - half, value, round, more));
            from = end;
        }
        for (uint32_t i = from; i < end; i++) {
            uint32_t more = lies ? (uint32_t)check_random(&seed) : end - i - 1;
            REQUIRE(tree_put_before(m, m->order[i], check_random(&seed) % 3, round, more) ==
                    PST_OK);
        }
        if (check_random(&seed) % 2)
            tree_seal(m);
        else if (check_random(&seed) % 4 == 0)
            tree_rollback(m, 0);
        check_versions(m);
        tree_compare_find(m, &m->now);
    }
    tree_model_close(m);
}

/* ---- what it costs --------------------------------------------------------------------------- */

static void test_small_is_small(void) {
    tree_model *m = tree_model_open(SHAPES[0], 64, 0);
    for (uint32_t k = 0; k < 31; k++) {
        REQUIRE(tree_put(m, k, k, 0) == PST_OK);
        tree_shape_stats stats = tree_inspect(m, m->now.root);
        CHECK_EQ(stats.nodes, 1);
        CHECK(stats.bytes <= 32 + k * 24);
    }
    for (uint32_t k = 31; k-- > 2;)
        REQUIRE(tree_remove(m, k) == PST_OK);
    CHECK(tree_inspect(m, m->now.root).bytes <= 96);
    tree_model_close(m);
}

/* A run whose length is said is not much larger than its entries. */
static void test_append_is_small(void) {
    for (uint32_t n = 1; n < 1000; n += n / 7 + 1) {
        tree_model *m = tree_model_open(SHAPES[0], 1000, 0);
        for (uint32_t i = 0; i < n; i++)
            REQUIRE(tree_put_before(m, m->order[i], i, 0, n - i - 1) == PST_OK);
        tree_shape_stats stats = tree_inspect(m, m->now.root);
        CHECK(stats.bytes <= 96 + n * 20);
        tree_model_close(m);
    }
}

/* Filled by one order, then thinned out: nodes stay well filled. */
static void test_compact(int ascending) {
    enum { N = 30000 };
    static uint32_t order[N];
    tree_model *m = tree_model_open(SHAPES[0], N, (uint64_t)1 << 28);
    uint64_t random = 3;
    for (uint32_t i = 0; i < N; i++)
        order[i] = m->order[ascending < 0 ? N - 1 - i : i];
    for (uint32_t i = N; !ascending && i-- > 1;) {
        uint32_t other = (uint32_t)(check_random(&random) % (i + 1)), k = order[i];
        order[i] = order[other];
        order[other] = k;
    }
    for (uint32_t i = 0; i < N; i++)
        REQUIRE(tree_put(m, order[i], i, 0) == PST_OK);
    tree_shape_stats stats = tree_inspect(m, m->now.root);
    CHECK(stats.bytes < (uint64_t)N * (ascending ? 19 : 27));
    for (uint32_t left = N; left > 10;) {
        uint32_t k = (uint32_t)(check_random(&random) % N);
        left -= m->now.present[k];
        REQUIRE(tree_remove(m, k) == PST_OK);
        if (left % 1000 == 0) {
            stats = tree_inspect(m, m->now.root);
            CHECK(stats.bytes < (uint64_t)left * 16 * 3);
        }
    }
    CHECK_EQ(tree_inspect(m, m->now.root).nodes, 1);
    tree_compare(m, &m->now);
    tree_model_close(m);
}

/* In at the end, out at the front, for many epochs: neither nodes nor the heap grow. */
static void test_queue(const pst_tree_shape *shape) {
    enum { N = 20000, LENGTH = 1000, PER_EPOCH = 100 };
    tree_model *m = tree_model_open(*shape, N, (uint64_t)1 << 28);
    tree_shape_stats stats;
    uint64_t early = 0, entry = pst_node_entry_words(shape, 0) * 8;
    for (uint32_t i = 0; i < N; i++) {
        REQUIRE(tree_put(m, m->order[i], i, 0) == PST_OK);
        if (i >= LENGTH)
            REQUIRE(tree_remove(m, m->order[i - LENGTH]) == PST_OK);
        if (i % PER_EPOCH == 0)
            tree_seal(m);
        if (i == N / 4)
            early = pst_span_taken_bytes(m->t);
        if (i > LENGTH && i % 1000 == 0) {
            stats = tree_inspect(m, m->now.root);
            CHECK(stats.bytes < LENGTH * (entry + entry / 2));
            CHECK(stats.levels <= 3);
        }
    }
    CHECK(pst_span_taken_bytes(m->t) <= early + early / 4);
    for (uint32_t i = N - LENGTH; i < N; i++)
        REQUIRE(tree_remove(m, m->order[i]) == PST_OK);
    CHECK_EQ(m->now.root.node, 0);
    CHECK_EQ(m->now.root.count, 0);
    tree_model_close(m);
}

/* The same work again and again ends in the same heap: every node and byte block comes back. */
static void test_nothing_leaks(const pst_tree_shape *shape) {
    enum { N = 400 };
    tree_model *m = tree_model_open(*shape, N, (uint64_t)1 << 28);
    uint64_t tops[24];
    for (int cycle = 0; cycle < 24; cycle++) {
        uint64_t random = 11;
        for (int part = 0; part < 4; part++) {
            for (int i = 0; i < N; i++) {
                uint32_t k = (uint32_t)(check_random(&random) % N);
                REQUIRE((part == 2 ? tree_remove(m, k)
                                   : tree_put(m, k, check_random(&random) % 200, part)) == PST_OK);
            }
            if (part == 3)
                REQUIRE(tree_clear(m) == PST_OK);
            tree_seal(m);
        }
        tops[cycle] = pst_span_taken_bytes(m->t);
    }
    CHECK_EQ(tops[23], tops[8]);
    tree_model_close(m);
}

/* A put into a large tree takes its path anew and shares the rest; the same put again, nothing. */
static void test_sharing(void) {
    enum { N = 1000000 };
    pst_tree_shape s = SHAPES[0];
    tree_model *m = tree_model_open(s, 16, (uint64_t)1 << 30);
    pst_tree_root root = {0, 0}, before;
    pst_tree_entry e = {0};
    uint64_t value = 0, random = 1;
    e.value = &value;
    for (uint64_t i = 0; i < N; i++) {
        e.key[0] = i * 7;
        REQUIRE(pst_tree_put(m->t, &s, &root, &e) == PST_OK);
    }
    for (int epoch = 0; epoch < 100; epoch++) {
        tree_seal(m);
        before = root;
        e.key[0] = check_random(&random) % N * 7 + (epoch & 1);
        value = (uint64_t)epoch + 1;
        REQUIRE(pst_tree_put(m->t, &s, &root, &e) == PST_OK);
        pst_tree_root again = root;
        REQUIRE(pst_tree_put(m->t, &s, &root, &e) == PST_OK);
        CHECK(!memcmp(&again, &root, sizeof root));
        uint64_t top = pst_span_taken_bytes(m->t);
        pst_tree_diff d;
        pst_tree_entry found;
        pst_record_op op;
        pst_tree_diff_open(&d, m->t->heap, tree_heap(m), &s, before, root);
        CHECK_EQ(pst_tree_diff_next(&d, &op, &found), PST_OK);
        CHECK(op == PST_PUT && found.key[0] == e.key[0] && found.value[0] == value);
        CHECK_EQ(pst_tree_diff_next(&d, &op, &found), PST_NOT_FOUND);
        CHECK_EQ(pst_span_taken_bytes(m->t), top);
        /* It looked at one leaf, or at two halves of one. */
        CHECK(before.count - d.before.left <= 63 && root.count - d.after.left <= 64);
        if (epoch % 20 == 0) {
            tree_shape_stats stats = tree_inspect(m, root);
            CHECK(stats.born >= stats.levels && stats.born <= stats.levels + 2);
        }
    }
    /* Equal to what is there: not even a path. */
    tree_seal(m);
    before = root;
    REQUIRE(pst_tree_put(m->t, &s, &root, &e) == PST_OK);
    CHECK(!memcmp(&before, &root, sizeof root));
    tree_model_close(m);
}

/* Rewritten with what was there before: new nodes, and nothing to tell. */
static void test_rewritten_is_not_changed(const pst_tree_shape *shape) {
    tree_model *m = tree_model_open(*shape, 300, 0);
    for (uint32_t k = 0; k < 300; k += 2)
        REQUIRE(tree_put(m, k, k, 1) == PST_OK);
    tree_seal(m);
    for (uint32_t k = 0; k < 300; k++) {
        if (k % 2 == 0 && k % 3 == 0)
            REQUIRE(tree_remove(m, k) == PST_OK);
        REQUIRE(tree_put(m, k, k + 1, 2) == PST_OK);
    }
    for (uint32_t k = 0; k < 300; k++)
        REQUIRE((k % 2 ? tree_remove(m, k) : tree_put(m, k, k, 1)) == PST_OK);
    pst_tree_diff d;
    pst_tree_entry e;
    pst_record_op op;
    pst_tree_diff_open(&d, m->t->heap, tree_heap(m), &m->shape, m->sealed[1].root, m->now.root);
    CHECK_EQ(pst_tree_diff_next(&d, &op, &e), PST_NOT_FOUND);
    tree_model_close(m);
}

/* Names whose separators lie in blocks, so that a split allocates, and the heap may grow, between
 * its steps. */
static void test_long_separators(void) {
    static const pst_tree_shape shape = {.key_words = 2, .key_is_ref = 1, .value_words = 1};
    enum { NAMES = 60000 };
    tree_model *m = tree_model_open(shape, 16, (uint64_t)1 << 30);
    pst_tree_root root = {0, 0};
    char name[40];
    for (int pass = 0; pass < 2; pass++) {
        uint64_t random = 7, lost = 0;
        for (uint64_t i = 0; i < NAMES; i++) {
            pst_tree_entry e = {.value = &i};
            int size = snprintf(name, sizeof name, "https://example.org/%" PRIu64,
                                check_random(&random) % 1000000000);
            e.key_bytes = (pst_bytes){(const uint8_t *)name, (uint32_t)size};
            if (pass == 0)
                REQUIRE(pst_tree_put(m->t, &shape, &root, &e) == PST_OK);
            else
                lost += pst_tree_find(m->t->heap, tree_heap(m), &shape, root, &e) != PST_OK;
        }
        CHECK_EQ(lost, 0);
    }
    tree_model_close(m);
}

/* A root that promises fewer entries than there are: a diff ends, and says so. */
static void test_root_counts_too_few(void) {
    static const pst_tree_shape words = {.key_words = 1, .value_words = 1, .timed = 1};
    tree_model *m = tree_model_open(words, 300, 0);
    for (uint32_t k = 0; k < 10; k++)
        REQUIRE(tree_put(m, k, k, 1) == PST_OK);
    tree_seal(m);
    REQUIRE(tree_put(m, 4, 99, 2) == PST_OK);
    REQUIRE(tree_put(m, 8, 99, 2) == PST_OK);
    for (int side = 0; side < 2; side++)
        for (uint32_t count = 0; count < 9; count++) {
            pst_tree_root before = m->sealed[1].root, after = m->now.root;
            pst_tree_diff d;
            pst_tree_entry e;
            pst_record_op op;
            pst_status st;
            (side ? &before : &after)->count = count;
            pst_tree_diff_open(&d, m->t->heap, tree_heap(m), &m->shape, before, after);
            while ((st = pst_tree_diff_next(&d, &op, &e)) == PST_OK)
                continue;
            CHECK_EQ(st, PST_CORRUPT);
        }
    tree_model_close(m);
}

/* ---- failing --------------------------------------------------------------------------------- */

/* A table that may not grow: a status, and after the roll back everything sealed is there. */
static void test_limit(const pst_tree_shape *shape) {
    tree_model *m = tree_model_open(*shape, 120000, (uint64_t)5 << 18);
    uint64_t random = 4, refused = 0;
    for (int round = 0; round < 8; round++) {
        pst_status s = PST_OK;
        for (uint32_t i = 0; i < 40 && !s; i++)
            s = tree_put(m, (uint32_t)(check_random(&random) % m->keys), i, 0);
        if (!s)
            s = tree_try_seal(m);
        for (uint32_t i = 0; i < m->keys && !s; i++)
            s = i % 5 ? tree_put(m, i, check_random(&random), round)
                      : tree_remove(m, (uint32_t)(check_random(&random) % m->keys));
        CHECK(s == PST_OK || s == PST_LIMIT);
        refused += s != PST_OK;
        tree_rollback(m, 0);
        tree_compare(m, &m->now);
    }
    CHECK(refused > 0);
    tree_model_close(m);
}

static void test_too_large(void) {
    tree_model *m = tree_model_open(SHAPES[5], 16, 0);
    static const uint8_t byte;
    pst_tree_entry e = {.key_bytes = {&byte, PST_TREE_MAX_KEY + 1}};
    CHECK_EQ(pst_tree_put(m->t, &m->shape, &m->now.root, &e), PST_TOO_LARGE);
    e.value_bytes = (pst_bytes){&byte, PST_MAX_BYTES + 1};
    e.key_bytes.size = 1;
    CHECK_EQ(pst_tree_put(m->t, &m->shape, &m->now.root, &e), PST_TOO_LARGE);
    CHECK_EQ(m->now.root.node, 0);
    tree_model_close(m);
}

/* ---- killed ---------------------------------------------------------------------------------- */

static struct {
    tree_model *m;
    pst_table *copy;
    uint64_t points, looked;
} sweep;

/* Another process finds what is committed, recovers it, and works on until blocks are reused. */
static void look_after_store(void) {
    if (++sweep.points % 97)
        return;
    pst_crash_hook = NULL;
    tree_model *m = sweep.m, other = *m;
    const pst_header *h = m->t->h;
    memcpy(sweep.copy->arena.base, m->t->arena.base, h->committed[PST_SPACE_HEAD]);
    REQUIRE(pst_arena_refresh(&sweep.copy->arena) == PST_OK);
    for (int s = 1; s < PST_SPACES; s++)
        memcpy(pst_space(&sweep.copy->arena, s), pst_space(&m->t->arena, s), h->committed[s]);
    other.t = sweep.copy;
    pst_epoch_recover(other.t);
    for (uint64_t back = 0; back <= tree_window(m); back++)
        REQUIRE(tree_compare(&other, &m->sealed[(m->seals - back) % TREE_VERSIONS]));
    if (++sweep.looked % 4 == 0) {
        uint64_t random = sweep.points;
        for (int i = 0; i <= TREE_VERSIONS; i++)
            tree_version_open(i ? &other.sealed[i - 1] : &other.now, m->keys);
        for (int i = 0; i < TREE_VERSIONS; i++)
            tree_version_copy(&other.sealed[i], &m->sealed[i], m->keys);
        tree_rollback(&other, sweep.points % (tree_window(m) + 1));
        for (int i = 0; i < 6; i++) {
            REQUIRE(burst(&other, &random) == PST_OK);
            tree_seal(&other);
        }
        REQUIRE(check_versions(&other));
        for (int i = 0; i <= TREE_VERSIONS; i++)
            tree_version_close(i ? &other.sealed[i - 1] : &other.now);
    }
    pst_crash_hook = look_after_store;
}

static void test_killed(const pst_tree_shape *shape, int steps) {
    tree_model *m = tree_model_open(*shape, 150, (uint64_t)1 << 24);
    tree_model *beside = tree_model_open(*shape, 16, (uint64_t)1 << 24);
    uint64_t random = 21;
    sweep.m = m;
    sweep.copy = beside->t;
    for (int i = 0; i < steps; i++) {
        pst_crash_hook = look_after_store;
        REQUIRE(burst(m, &random) == PST_OK);
        pst_crash_hook = NULL;
        if (i % 3 == 0)
            tree_seal(m);
        else if (i % 11 == 0)
            tree_rollback(m, check_random(&random) % (tree_window(m) + 1));
    }
    CHECK(sweep.looked > 0);
    tree_model_close(beside);
    tree_model_close(m);
}

/* ---- nonsense -------------------------------------------------------------------------------- */

/* Random words in a copy of the heap that ends where it ends: statuses, no crash and no loop. */
static void test_nonsense(const pst_tree_shape *shape, int rounds) {
    tree_model *m = tree_model_open(*shape, 700, 0);
    uint64_t random = 8;
    for (int i = 0; i < 30; i++) {
        REQUIRE(burst(m, &random) == PST_OK);
        if (i % 9 == 0)
            tree_seal(m);
    }
    for (uint32_t k = 0; k < 500; k++)
        REQUIRE(tree_put(m, k, k, 0) == PST_OK);
    uint64_t bytes = m->t->m->heap_top * PST_GRANULE, refused = 0;
    for (int round = 0; round < rounds; round++) {
        uint64_t *heap = malloc(bytes);
        REQUIRE(heap != NULL);
        memcpy(heap, m->t->heap, bytes);
        for (uint64_t n = check_random(&random) % 40; n-- > 0;) {
            uint64_t *word = heap + check_random(&random) % (bytes / 8);
            uint64_t noise = check_random(&random);
            *word = noise % 3 == 0   ? noise
                    : noise % 3 == 1 ? *word ^ UINT64_C(1) << (noise >> 8) % 64
                                     : heap[noise % (bytes / 8)];
        }
        const uint8_t *h = (const uint8_t *)heap;
        pst_tree_cursor c;
        pst_tree_diff d;
        pst_tree_entry e;
        pst_record_op op;
        tree_room room;
        pst_status st;
        uint64_t n = 0;
        volatile uint8_t sum = 0;
        pst_tree_seek(&c, h, bytes, shape, m->now.root, NULL);
        while ((st = pst_tree_next(&c, &e)) == PST_OK && ++n)
            for (uint32_t i = 0; shape->value_is_ref && i < e.value_bytes.size; i++)
                sum = (uint8_t)(sum + e.value_bytes.data[i]);
        CHECK(n <= m->now.root.count && (st == PST_NOT_FOUND || st == PST_CORRUPT));
        refused += st == PST_CORRUPT;
        pst_tree_diff_open(&d, h, bytes, shape, m->sealed[m->seals % TREE_VERSIONS].root,
                           m->now.root);
        while ((st = pst_tree_diff_next(&d, &op, &e)) == PST_OK)
            n++;
        CHECK(st == PST_NOT_FOUND || st == PST_CORRUPT);
        for (uint32_t k = 0; k < 50; k++) {
            tree_key(shape, (uint32_t)(check_random(&random) % m->keys), &e, &room);
            st = pst_tree_find(h, bytes, shape, m->now.root, &e);
            CHECK(st == PST_OK || st == PST_NOT_FOUND || st == PST_CORRUPT);
            pst_tree_seek(&c, h, bytes, shape,
                          (pst_tree_root){(uint32_t)check_random(&random) % 9999, 5}, &e);
            (void)pst_tree_next(&c, &e);
        }
        free(heap);
    }
    CHECK(refused > 0);
    tree_model_close(m);
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 50;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (int i = 0; i < SHAPE_COUNT; i++) {
        const pst_tree_shape *s = &SHAPES[i];
        test_random(s, 40, steps, seed + (uint64_t)i);
        test_random(s, 3000, steps / 2, seed + 100 + (uint64_t)i);
        test_append(s, steps, seed + 200 + (uint64_t)i);
        test_nothing_leaks(s);
        test_rewritten_is_not_changed(s);
        test_limit(s);
        test_killed(s, 30);
        test_nonsense(s, 4000);
    }
    test_small_is_small();
    test_append_is_small();
    for (int ascending = -1; ascending <= 1; ascending++)
        test_compact(ascending);
    test_queue(&SHAPES[2]);
    test_queue(&SHAPES[0]);
    test_sharing();
    test_root_counts_too_few();
    test_long_separators();
    test_too_large();
    return check_report();
}
