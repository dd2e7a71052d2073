/* Rows of some keys out of the files of an epoch, as columns: they are what a merge of all files has of
 * these keys, whatever is kept of their blocks, in any number of threads. */
#include <errno.h>
#include <pthread.h>

#include "base/mem.h"
#include "reads/read.h"
#include "stack/blocks.h"
#include "wanted_world.h"

enum { COLUMNS = 16, THREADS = 4, BLOCKS = 4096 /* of files with guides */ };

static world the_world;

/* ---- columns ----------------------------------------------------------------------------------- */

/* The columns of all batches, one value after the other. */
typedef struct dump {
    uint8_t *data[COLUMNS];
    size_t size[COLUMNS];
    uint64_t *keys; /* of each row, a number for its first key column */
    size_t rows;
    int64_t calls_left;
} dump;

static void put(dump *d, int32_t column, const void *data, size_t size) {
    d->data[column] = realloc(d->data[column], d->size[column] + size + 1);
    REQUIRE(d->data[column]);
    if (size)
        memcpy(d->data[column] + d->size[column], data, size);
    d->size[column] += size;
}

static uint64_t key_number(int valid, const void *data, size_t size) {
    return valid ? pst_xxh64(data, size, 1) : 0;
}

static void put_column(dump *d, int32_t at, const pst_block_column *c) {
    size_t width = c->offsets || !c->count ? 0 : c->values_bytes / c->count;
    for (uint32_t i = 0; i < c->count; i++) {
        uint8_t valid = !c->validity || (c->validity[i >> 3] >> (i & 7) & 1);
        const uint8_t *value = c->values + i * width;
        size_t size = width;
        if (c->offsets) {
            value = c->values ? c->values + c->offsets[i] : NULL;
            size = (size_t)(c->offsets[i + 1] - c->offsets[i]);
        }
        put(d, at, &valid, 1);
        put(d, at, &size, sizeof size);
        if (valid && value)
            put(d, at, value, size);
        if (at)
            continue;
        d->keys = realloc(d->keys, (d->rows + i + 1) * sizeof *d->keys);
        REQUIRE(d->keys);
        d->keys[d->rows + i] = key_number(valid, value, size);
    }
}

static int take_block(void *ctx, uint32_t rows, const pst_block_column *columns, int32_t n) {
    dump *d = ctx;
    if (d->calls_left >= 0 && d->calls_left-- == 0)
        return 1;
    REQUIRE(n <= COLUMNS);
    for (int32_t i = 0; i < n; i++)
        put_column(d, i, &columns[i]);
    d->rows += rows;
    return 0;
}

static dump dump_make(void) {
    return (dump){.calls_left = -1};
}

static void dump_free(dump *d) {
    for (int i = 0; i < COLUMNS; i++)
        free(d->data[i]);
    free(d->keys);
    *d = dump_make();
}

static int dump_same(const dump *a, const dump *b) {
    int same = a->rows == b->rows;
    for (int i = 0; same && i < COLUMNS; i++)
        same = a->size[i] == b->size[i] &&
               (!a->size[i] || !memcmp(a->data[i], b->data[i], a->size[i]));
    return same;
}

/* What the merged file has of the keys. */
static dump expected(const world *w, memory_file *whole, const wanted *x, int32_t n_columns) {
    int32_t n_keys = world_keys(w), identity[PST_MAX_STATES];
    const int32_t *columns = identity;
    pst_schema table = {n_keys, w->schema.n_states, (pst_column *)(uintptr_t)w->columns,
                        (pst_column *)(uintptr_t)w->columns + 4,
                        w->style == WORLD_NAMESPACES ? 1 : 0};
    memory_file some = {.calls_left = -1};
    pst_sst_reader *r;
    pst_wanted_keys keys = {.columns = x->columns, .n_columns = n_columns};
    pst_io to = file_io(&some, 0);
    pst_file_info info;
    dump d = dump_make();
    pst_io io = {.ctx = &d, .block = take_block};
    for (int32_t i = 0; i < PST_MAX_STATES; i++)
        identity[i] = i;
    REQUIRE(!file_open(whole, &r));
    REQUIRE(!pst_sst_reader_lookup(r, &keys, &to, &info));
    pst_sst_reader_close(r);
    REQUIRE(!file_open(&some, &r));
    REQUIRE(
        !pst_gather(&r, &columns, 1, &table, NULL, WORLD_GROUPS, 0, WORLD_GROUPS - 1, NULL, &io));
    pst_sst_reader_close(r);
    file_free(&some);
    return d;
}

/* ---- finders ----------------------------------------------------------------------------------- */

typedef struct files {
    pst_reads *reads;
    pst_blocks *blocks;
    pst_finder *finder;
    pst_member *members[WORLD_FILES]; /* oldest first */
    int32_t n;
} files;

/* All files of the world as so many ranges, each of which has all of them. */
static files open_world(const world *w, int32_t ranges, uint64_t cache, pst_budget *budget) {
    files x = {0};
    pst_stack *stacks[8];
    int32_t bounds[16];
    pst_reads_options ro = {.no_direct = 1, .budget = budget};
    pst_stack_options o = {.budget = budget, .unguided = 1};
    REQUIRE(!pst_reads_create(&ro, &x.reads));
    REQUIRE(!pst_blocks_create(cache, budget, &x.blocks));
    o.reads = x.reads;
    for (int32_t i = 0; i < w->n; i++)
        REQUIRE(!pst_member_open(&w->schema, WORLD_GROUPS, w->paths[i], &o, &x.members[i], NULL));
    for (int32_t r = 0; r < ranges; r++) {
        pst_stack_file list[WORLD_FILES];
        bounds[2 * r] = r * WORLD_GROUPS / ranges;
        bounds[2 * r + 1] = (r + 1) * WORLD_GROUPS / ranges - 1;
        for (int32_t i = 0; i < w->n; i++)
            list[i] =
                (pst_stack_file){.member = x.members[i], .ranges = &bounds[2 * r], .n_ranges = 1};
        REQUIRE(!pst_stack_open(&w->schema, WORLD_GROUPS, list, w->n, &o, &stacks[r], NULL));
    }
    REQUIRE(!pst_finder_create(stacks, bounds, ranges, x.blocks, budget, &x.finder));
    for (int32_t r = 0; r < ranges; r++)
        pst_stack_close(stacks[r]);
    x.n = w->n;
    return x;
}

static void close_world(files *x) {
    for (int32_t i = 0; i < x->n; i++)
        pst_member_release(x->members[i]);
    pst_finder_destroy(x->finder);
    pst_blocks_release(x->blocks);
    pst_reads_release(x->reads);
}

static pst_status look_up(const files *x, const wanted *keys, int32_t n_columns, uint64_t states,
                          dump *d, int64_t *rows, pst_detail *detail) {
    pst_wanted_keys wanted_keys = {
        .columns = keys->columns, .n_columns = n_columns, .most_bytes = 3000, .states = states};
    pst_io io = {.ctx = d, .block = take_block};
    return pst_finder_find(x->finder, &wanted_keys, NULL, &io, rows, detail);
}

/* Whether each key's rows are its own, and all rows are some key's. */
static void check_rows(const world *w, const dump *d, const int64_t *rows, const uint64_t *ids,
                       size_t n) {
    uint8_t *seen = calloc(d->rows + 1, 1);
    uint64_t wrong = 0, all = 0;
    byte_heap *h = calloc(1, sizeof *h);
    REQUIRE(seen && h);
    for (size_t i = 0; i < n; i++) {
        pst_record r = {0};
        world_key(w, h, ids[i], &r);
        int string = w->style == WORLD_STRINGS;
        uint64_t number = key_number(!(r.key_nulls & 1),
                                     string ? (const void *)r.key[0].bytes.data : r.key[0].word,
                                     string ? r.key[0].bytes.size : 8);
        int64_t first = rows[2 * i], count = rows[2 * i + 1];
        wrong += count < 0 || (first < 0) != !count || first + count > (int64_t)d->rows;
        for (int64_t k = 0; !wrong && k < count; k++) {
            wrong += d->keys[first + k] != number;
            all += !seen[first + k];
            seen[first + k] = 1;
        }
        heap_free(h);
    }
    CHECK_EQ(wrong, 0);
    CHECK_EQ(all, d->rows);
    free(h);
    free(seen);
}

static void check_keys(const world *w, memory_file *whole, const files *x, const uint64_t *ids,
                       size_t n, int32_t n_columns) {
    wanted keys = want(w, ids, n);
    int64_t *rows = malloc((2 * n + 2) * sizeof *rows);
    REQUIRE(rows);
    dump all = expected(w, whole, &keys, n_columns);
    for (int again = 0; again < 2; again++) {
        dump d = dump_make();
        CHECK_EQ(look_up(x, &keys, n_columns, 0, &d, rows, NULL), PST_OK);
        CHECK(dump_same(&d, &all));
        check_rows(w, &d, rows, ids, n);
        dump_free(&d);
    }
    dump_free(&all);
    free(rows);
    wanted_free(&keys);
}

/* Where few large blocks are wanted of a small cache none may be `kept`. */
static void check_cache(const files *x, uint64_t most, int kept) {
    pst_blocks_stats s;
    pst_blocks_get_stats(x->blocks, &s);
    CHECK(s.bytes <= most && s.found <= s.asked);
    CHECK(!most || s.found > 0 || !kept);
    CHECK(most || (!s.found && !s.blocks));
}

static void run_model(world_style style, size_t base, uint64_t seed, uint32_t block_bytes) {
    world *w = &the_world;
    memory_file whole = {.calls_left = -1};
    uint64_t rng = seed, domain = 2 * base;
    const uint64_t caches[] = {0, 40000, 16 << 20};
    uint64_t *ids = malloc((domain + 40) * sizeof *ids);
    REQUIRE(ids);
    make_world(w, style, 2 + (int32_t)(check_random(&rng) % 5), base, seed, block_bytes);
    world_merge(w, w->rows, &whole);
    for (int32_t c = 0; c < 3; c++) {
        files x = open_world(w, 1 + 2 * c, caches[c], NULL);
        const size_t counts[] = {0, 1, 40, base};
        for (int k = 0; k < 4; k++) {
            size_t n = counts[k];
            for (size_t i = 0; i < n; i++)
                ids[i] = check_random(&rng) % domain;
            if (n > 4) {
                ids[0] = 3; /* which has many elements */
                ids[1] = 5; /* null */
                ids[2] = ids[3];
            }
            check_keys(w, &whole, &x, ids, n, world_keys(w));
            if (style == WORLD_NAMESPACES && n <= 40)
                check_keys(w, &whole, &x, ids, n < 7 ? n : 7, 1);
        }
        check_cache(&x, caches[c], block_bytes || c == 2);
        close_world(&x);
    }
    free(ids);
    file_free(&whole);
    world_free(w);
}

/* Once as many keys were wanted of a delta's segment as it has blocks there is a filter, and not before. */
static void run_made(void) {
    enum { KEYS = 40 };
    world *w = &the_world;
    uint64_t filters = 0;
    for (size_t base = 64; base <= 32768; base *= 8) {
        make_world(w, WORLD_PLAIN, 2, base, base, 0);
        files x = open_world(w, 1, 0, NULL);
        pst_member *delta = x.members[1];
        uint32_t n = delta->guide->n_segments;
        CHECK((n > 1) == (base > 10000));
        for (uint64_t k = 0; k < KEYS; k++) {
            uint64_t id = 2 * base + k; /* which is not there */
            int64_t rows[2];
            wanted one = want(w, &id, 1);
            dump d = dump_make();
            CHECK(n > 1 || delta->guide->segments[0].blocks < k || !pst_member_filter(delta, 0));
            CHECK_EQ(look_up(&x, &one, 1, 0, &d, rows, NULL), PST_OK);
            CHECK(d.rows == 0 && rows[0] == -1);
            dump_free(&d);
            wanted_free(&one);
        }
        for (uint32_t s = 0; s < n; s++)
            filters += pst_member_filter(delta, s) != NULL;
        CHECK(!pst_member_filter(x.members[0], 0));
        close_world(&x);
        world_free(w);
    }
    CHECK(filters > 3);
}

/* Of states that are not wanted there is nothing, and keys that have no other are not there. */
static void run_some_states(void) {
    enum { KEYS = 500 };
    world *w = &the_world;
    uint64_t ids[KEYS];
    int64_t rows[2 * KEYS];
    make_world(w, WORLD_ELEMENTS, 3, KEYS, 4, BLOCKS);
    for (size_t i = 0; i < KEYS; i++)
        ids[i] = i;
    files x = open_world(w, 2, 1 << 20, NULL);
    wanted keys = want(w, ids, KEYS);
    dump all = dump_make(), map = dump_make(), value = dump_make();
    CHECK_EQ(look_up(&x, &keys, 1, 0, &all, rows, NULL), PST_OK);
    CHECK_EQ(look_up(&x, &keys, 1, 1, &value, rows, NULL), PST_OK);
    check_rows(w, &value, rows, ids, KEYS);
    CHECK_EQ(look_up(&x, &keys, 1, 2, &map, rows, NULL), PST_OK);
    check_rows(w, &map, rows, ids, KEYS);
    CHECK(value.rows > 0 && value.rows < all.rows && map.rows > 0 && map.rows < all.rows);
    CHECK(value.rows + map.rows >= all.rows);
    CHECK(value.size[3] == 0 && map.size[1] == 0 && map.size[4] == all.size[4]);
    dump_free(&all);
    dump_free(&map);
    dump_free(&value);
    wanted_free(&keys);
    close_world(&x);
    world_free(w);
}

/* ---- threads ----------------------------------------------------------------------------------- */

typedef struct caller {
    const world *w;
    const files *x;
    memory_file *whole;
    uint64_t seed;
    uint64_t wrong;
} caller;

enum { SETS = 24, SET_KEYS = 8, CACHE = 100000 };

static wanted sets[SETS];
static dump answers[SETS];

static void *call(void *ctx) {
    caller *c = ctx;
    int64_t rows[2 * SET_KEYS];
    for (int i = 0; i < 200; i++) {
        uint64_t set = check_random(&c->seed) % SETS;
        dump d = dump_make();
        c->wrong += look_up(c->x, &sets[set], 1, 0, &d, rows, NULL) != PST_OK;
        c->wrong += !dump_same(&d, &answers[set]);
        dump_free(&d);
    }
    return NULL;
}

/* Many threads with one finder, whose blocks make way for each other. */
static void run_threads(uint32_t block_bytes) {
    world *w = &the_world;
    memory_file whole = {.calls_left = -1};
    uint64_t rng = 6, ids[SET_KEYS];
    pthread_t threads[THREADS];
    caller callers[THREADS];
    make_world(w, WORLD_STRINGS, 4, block_bytes ? 3000 : 20000, 9, block_bytes);
    world_merge(w, w->rows, &whole);
    uint64_t cache = block_bytes ? CACHE : 4 * CACHE; /* blocks are larger */
    files x = open_world(w, 4, cache, NULL);
    for (int s = 0; s < SETS; s++) {
        for (size_t i = 0; i < SET_KEYS; i++)
            ids[i] = check_random(&rng) % 4000;
        sets[s] = want(w, ids, SET_KEYS);
        answers[s] = expected(w, &whole, &sets[s], 1);
    }
    for (int t = 0; t < THREADS; t++) {
        callers[t] = (caller){.w = w, .x = &x, .whole = &whole, .seed = (uint64_t)t + 1};
        REQUIRE(!pthread_create(&threads[t], NULL, call, &callers[t]));
    }
    for (int t = 0; t < THREADS; t++) {
        pthread_join(threads[t], NULL);
        CHECK_EQ(callers[t].wrong, 0);
    }
    pst_blocks_stats stats;
    pst_blocks_get_stats(x.blocks, &stats);
    CHECK(stats.left > 100 && stats.found > 100 && stats.bytes <= cache);
    for (int s = 0; s < SETS; s++) {
        dump_free(&answers[s]);
        wanted_free(&sets[s]);
    }
    close_world(&x);
    file_free(&whole);
    world_free(w);
}

/* ---- at hand ----------------------------------------------------------------------------------- */

static int waits; /* reads that may wait */

static int64_t count_read(const pst_read *r, int64_t result) {
    (void)r;
    waits++;
    return result;
}

static pst_status look_at_hand(const files *x, const wanted *keys, dump *d, int64_t *rows) {
    pst_wanted_keys wanted_keys = {.columns = keys->columns, .n_columns = 1, .at_hand = 1};
    pst_io io = {.ctx = d, .block = take_block};
    waits = 0;
    pst_read_hook = count_read;
    pst_status s = pst_finder_find(x->finder, &wanted_keys, NULL, &io, rows, NULL);
    pst_read_hook = NULL;
    CHECK_EQ(waits, 0);
    return s;
}

/* What is at hand is what is there, and nothing is waited for where it is not. */
static void run_at_hand(void) {
    enum { KEYS = 40, MANY = 6000 };
    world *w = &the_world;
    memory_file whole = {.calls_left = -1};
    uint64_t *ids = calloc(MANY, sizeof *ids);
    int64_t *rows = calloc(2 * MANY, sizeof *rows);
    REQUIRE(ids && rows);
    make_world(w, WORLD_PLAIN, 3, MANY, 12, BLOCKS);
    world_merge(w, w->rows, &whole);
    for (size_t i = 0; i < MANY; i++)
        ids[i] = i;
    wanted few = want(w, ids, KEYS), many = want(w, ids, MANY);
    dump all = expected(w, &whole, &few, 1), d = dump_make();
    files x = open_world(w, 2, 16 << 20, NULL), without = open_world(w, 2, 0, NULL);
    /* The guides are not here yet. */
    CHECK_EQ(look_at_hand(&x, &few, &d, rows), PST_NOT_HERE);
    REQUIRE(!look_up(&x, &many, 1, 0, &d, rows, NULL));
    dump_free(&d);
    CHECK_EQ(look_at_hand(&x, &few, &d, rows), PST_OK);
    CHECK(dump_same(&d, &all));
    check_rows(w, &d, rows, ids, KEYS);
    dump_free(&d);
    /* That is more than a little. */
    CHECK_EQ(look_at_hand(&x, &many, &d, rows), PST_NOT_HERE);
    dump_free(&d);
    /* Without blocks of its own it has those of the page cache, where the file system can say. */
    REQUIRE(!look_up(&without, &few, 1, 0, &d, rows, NULL));
    dump_free(&d);
    pst_status s = look_at_hand(&without, &few, &d, rows);
    CHECK(s == PST_NOT_HERE || (s == PST_OK && dump_same(&d, &all)));
    dump_free(&d);
    close_world(&x);
    close_world(&without);
    dump_free(&all);
    wanted_free(&few);
    wanted_free(&many);
    file_free(&whole);
    free(ids);
    free(rows);
    world_free(w);
}

/* ---- blocks ------------------------------------------------------------------------------------ */

/* What is held stays as it is while others make way; what was used last is kept. */
static void run_blocks(void) {
    enum { SIZE = 1000, MOST = 16000 };
    pst_blocks *b = NULL;
    pst_budget *budget = NULL;
    pst_budget_stats s;
    pst_blocks_stats stats;
    REQUIRE(!pst_budget_create(64 << 20, &budget));
    REQUIRE(!pst_blocks_create(MOST, budget, &b));
    pst_budget_get_stats(budget, &s);
    uint64_t own = s.private_bytes;
    pst_kept_block *held = NULL, *other;
    for (uint64_t i = 0; i < 100; i++) {
        pst_block_name name = {i, i * i, SIZE};
        pst_kept_block *made;
        REQUIRE(!pst_blocks_take(b, &name) && !pst_blocks_make(b, &name, &made));
        memset(pst_block_bytes(made), (int)i, SIZE);
        pst_blocks_keep(b, made, 1);
        pst_blocks_keep(b, made, 1);
        if (i == 20)
            held = made;
        else
            pst_blocks_drop(b, made);
        name = (pst_block_name){3, 9, SIZE}; /* which is always used */
        other = pst_blocks_take(b, &name);
        CHECK((other != NULL) == (i >= 3));
        CHECK(!other || pst_block_bytes(other)[SIZE - 1] == 3);
        pst_blocks_drop(b, other);
        pst_blocks_get_stats(b, &stats);
        CHECK(stats.bytes <= MOST && stats.bytes >= stats.blocks * SIZE);
    }
    CHECK(stats.blocks >= 13 && stats.left + stats.blocks == 100);
    for (size_t i = 0; i < SIZE; i++)
        CHECK(pst_block_bytes(held)[i] == 20);
    pst_block_name name = {20, 400, SIZE};
    CHECK(!pst_blocks_take(b, &name));
    name = (pst_block_name){99, 99 * 99, SIZE - 1};
    CHECK(!pst_blocks_take(b, &name));
    pst_blocks_drop(b, held);
    /* One that is too large is not kept. */
    name = (pst_block_name){1, 2, MOST};
    REQUIRE(!pst_blocks_make(b, &name, &other));
    pst_blocks_keep(b, other, 1);
    pst_blocks_drop(b, other);
    CHECK(!pst_blocks_take(b, &name));
    /* Nor is one of many. */
    for (uint64_t many = 1; many < 40; many += 8) {
        name = (pst_block_name){7, many, SIZE};
        REQUIRE(!pst_blocks_make(b, &name, &other));
        pst_blocks_keep(b, other, many);
        pst_blocks_drop(b, other);
        other = pst_blocks_take(b, &name);
        CHECK((other != NULL) == (many * SIZE < MOST / 2));
        pst_blocks_drop(b, other);
    }
    pst_budget_get_stats(budget, &s);
    pst_blocks_get_stats(b, &stats);
    CHECK_EQ(s.private_bytes, own + stats.bytes);
    pst_blocks_release(b);
    pst_budget_get_stats(budget, &s);
    CHECK_EQ(s.private_bytes, 0);
    pst_budget_release(budget);
}

/* Where the budget has no more, what is kept makes way. */
static void run_limit(void) {
    enum { LIMIT = 4 << 20 };
    pst_blocks *b = NULL;
    pst_budget *budget = NULL;
    pst_blocks_stats stats;
    pst_block_name name = {0, 0, 64 << 10};
    pst_kept_block *made;
    REQUIRE(!pst_budget_create(LIMIT, &budget));
    REQUIRE(!pst_blocks_create(64 << 20, budget, &b));
    for (; name.seed < 200; name.seed++) {
        REQUIRE(!pst_blocks_make(b, &name, &made));
        pst_blocks_keep(b, made, 1);
        pst_blocks_drop(b, made);
    }
    pst_blocks_get_stats(b, &stats);
    CHECK(stats.bytes <= LIMIT + LIMIT / 8 && stats.left > 0);
    name.size = 2 * LIMIT;
    CHECK_EQ(pst_blocks_make(b, &name, &made), PST_LIMIT);
    pst_blocks_get_stats(b, &stats);
    CHECK_EQ(stats.blocks, 0);
    pst_blocks_release(b);
    pst_budget_release(budget);
}

/* ---- failures ---------------------------------------------------------------------------------- */

static int64_t hook_countdown;

static int64_t fail_once(const pst_read *r, int64_t result) {
    (void)r;
    return __atomic_fetch_sub(&hook_countdown, 1, __ATOMIC_RELAXED) == 0 ? -EIO : result;
}

/* Memory that is refused and reads that fail are said, and afterwards all is as before. */
static void run_faults(uint32_t block_bytes) {
    enum { KEYS = 40 };
    world *w = &the_world;
    memory_file whole = {.calls_left = -1};
    uint64_t ids[KEYS];
    int64_t rows[2 * KEYS];
    uint64_t failed = 0, without = 0;
    pst_budget *budget = NULL;
    pst_budget_stats s;
    pst_detail detail;
    make_world(w, WORLD_ELEMENTS, 3, 2000, 12, block_bytes);
    world_merge(w, w->rows, &whole);
    for (size_t i = 0; i < KEYS; i++)
        ids[i] = 7 * i;
    wanted x = want(w, ids, KEYS);
    dump all = expected(w, &whole, &x, 1), d = dump_make();
    REQUIRE(!pst_budget_create(64 << 20, &budget));
    for (int64_t i = 0, refused = 1; refused; i++) {
        files f = open_world(w, 2, 100000, budget);
        check_fail_alloc(i, 0);
        pst_status status = look_up(&f, &x, 1, 0, &d, rows, NULL);
        refused = check_alloc_failed();
        check_fail_alloc(-1, 0);
        /* Reads are by threads where there is no memory for a ring. */
        CHECK(status == PST_OK || (refused && status == PST_NO_MEMORY));
        failed += status != PST_OK;
        dump_free(&d);
        CHECK_EQ(look_up(&f, &x, 1, 0, &d, rows, NULL), PST_OK);
        CHECK(dump_same(&d, &all));
        dump_free(&d);
        close_world(&f);
    }
    CHECK(failed > 20);
    for (int64_t i = 0; i < 6; i++) {
        files f = open_world(w, 2, 100000, budget);
        hook_countdown = i;
        pst_read_hook = fail_once;
        pst_status status = look_up(&f, &x, 1, 0, &d, rows, &detail);
        pst_read_hook = NULL;
        /* Who wants keys does without a filter that cannot be made. */
        CHECK(status == PST_IO || (!block_bytes && status == PST_OK && dump_same(&d, &all)));
        CHECK(!status || (detail.row >= 0 && detail.row < 2 * w->n && detail.offset > 0 &&
                          detail.sys_errno == EIO));
        without += !status;
        dump_free(&d);
        close_world(&f);
    }
    CHECK(block_bytes ? !without : without > 0 && without < 6);
    files f = open_world(w, 2, 100000, budget);
    d.calls_left = 1;
    CHECK_EQ(look_up(&f, &x, 1, 0, &d, rows, &detail), PST_CALLBACK);
    dump_free(&d);
    CHECK_EQ(look_up(&f, &x, 2, 0, &d, rows, &detail), PST_INVALID);
    CHECK_EQ(look_up(&f, &x, 0, 0, &d, rows, &detail), PST_INVALID);
    x.columns[0].type = PST_INT32;
    CHECK_EQ(look_up(&f, &x, 1, 0, &d, rows, &detail), PST_WRONG_TYPE);
    close_world(&f);
    pst_budget_get_stats(budget, &s);
    CHECK_EQ(s.private_bytes, 0);
    pst_budget_release(budget);
    dump_free(&all);
    wanted_free(&x);
    file_free(&whole);
    world_free(w);
}

/* Whatever byte of a file is another one, or missing, rows are right or it is said where it is wrong;
 * and what was read before is not read again. */
static void run_damage(uint32_t block_bytes) {
    enum { KEYS = 600, FLIPS = 60 };
    world *w = &the_world;
    memory_file whole = {.calls_left = -1};
    uint64_t ids[KEYS], rng = 5, found = 0;
    int64_t rows[2 * KEYS];
    pst_detail detail;
    make_world(w, WORLD_PLAIN, 2, 2 * KEYS, 12, block_bytes);
    world_merge(w, w->rows, &whole);
    for (size_t i = 0; i < KEYS; i++)
        ids[i] = 2 * i;
    wanted x = want(w, ids, KEYS);
    dump all = expected(w, &whole, &x, 1), d = dump_make();
    files warm = open_world(w, 1, 64 << 20, NULL);
    REQUIRE(!look_up(&warm, &x, 1, 0, &d, rows, NULL));
    dump_free(&d);
    for (int i = 0; i < FLIPS; i++) {
        int file = i & 1;
        files f = open_world(w, 1, 64 << 20, NULL);
        const pst_guide *g = f.members[file]->guide;
        off_t at = (off_t)(g->data_offset + check_random(&rng) % (g->data_end - g->data_offset));
        flip(w->paths[file], at);
        pst_status s = look_up(&f, &x, 1, 0, &d, rows, &detail);
        CHECK(s == PST_OK || s == PST_CORRUPT);
        if (s)
            CHECK(detail.row == file && detail.offset >= 0 && detail.offset <= at);
        else
            CHECK(dump_same(&d, &all));
        found += s == PST_CORRUPT;
        dump_free(&d);
        CHECK_EQ(look_up(&warm, &x, 1, 0, &d, rows, NULL), PST_OK);
        CHECK(dump_same(&d, &all));
        dump_free(&d);
        flip(w->paths[file], at);
        CHECK_EQ(look_up(&f, &x, 1, 0, &d, rows, NULL), PST_OK);
        CHECK(dump_same(&d, &all));
        dump_free(&d);
        close_world(&f);
    }
    CHECK(found > FLIPS / 3);
    files cut = open_world(w, 1, 64 << 20, NULL);
    REQUIRE(!truncate(w->paths[0], (off_t)cut.members[0]->guide->data_offset + 4096));
    CHECK_EQ(look_up(&cut, &x, 1, 0, &d, rows, &detail), PST_IO);
    CHECK(detail.row == 0 && detail.sys_errno == ENODATA);
    dump_free(&d);
    close_world(&cut);
    close_world(&warm);
    dump_free(&all);
    wanted_free(&x);
    file_free(&whole);
    world_free(w);
}

/* ---- ranges ------------------------------------------------------------------------------------ */

/* A file without a guide is no table's, even if it is open. */
static void run_not_allowed(void) {
    static world w;
    pst_reads *reads;
    pst_stack *st;
    pst_member *m;
    make_world(&w, WORLD_PLAIN, 1, 50, 3, 0);
    REQUIRE(!pst_reads_create(NULL, &reads));
    pst_stack_options o = {.reads = reads};
    CHECK_EQ(pst_member_open(&w.schema, WORLD_GROUPS, w.paths[0], &o, &m, NULL), PST_SCHEMA);
    o.unguided = 1;
    REQUIRE(!pst_member_open(&w.schema, WORLD_GROUPS, w.paths[0], &o, &m, NULL));
    pst_stack_file file = {.member = m};
    o.unguided = 0;
    CHECK_EQ(pst_stack_open(&w.schema, WORLD_GROUPS, &file, 1, &o, &st, NULL), PST_SCHEMA);
    pst_member_release(m);
    pst_reads_release(reads);
    world_free(&w);
}

static void run_refused(void) {
    world *w = &the_world;
    make_world(w, WORLD_PLAIN, 1, 50, 3, BLOCKS);
    pst_finder *f = NULL;
    pst_blocks *b = NULL;
    pst_stack *st[2] = {NULL, NULL};
    REQUIRE(!pst_blocks_create(0, NULL, &b));
    for (int i = 0; i < 2; i++)
        REQUIRE(!pst_stack_open(&w->schema, WORLD_GROUPS, w->files, 1, NULL, &st[i], NULL));
    const int32_t overlap[] = {0, 64, 64, 127}, behind[] = {64, 127, 0, 63}, none[] = {5, 4};
    CHECK_EQ(pst_finder_create(st, overlap, 0, b, NULL, &f), PST_INVALID);
    CHECK_EQ(pst_finder_create(st, overlap, 2, b, NULL, &f), PST_INVALID);
    CHECK_EQ(pst_finder_create(st, behind, 2, b, NULL, &f), PST_INVALID);
    CHECK_EQ(pst_finder_create(st, none, 1, b, NULL, &f), PST_INVALID);
    for (int64_t i = 0, refused = 1; refused; i++) {
        check_fail_alloc(i, 0);
        pst_status s = pst_finder_create(st, overlap, 1, b, NULL, &f);
        refused = check_alloc_failed();
        check_fail_alloc(-1, 0);
        CHECK_EQ(s, refused ? PST_NO_MEMORY : PST_OK);
    }
    pst_finder_destroy(f);
    run_not_allowed();
    world other;
    uint64_t rng = 2;
    world_begin(&other, WORLD_STRINGS);
    world_write(&other, 0, &rng, 20, 50, 0);
    pst_stack_close(st[1]);
    REQUIRE(!pst_stack_open(&other.schema, WORLD_GROUPS, other.files, 1, NULL, &st[1], NULL));
    const int32_t halves[] = {0, 63, 64, 127};
    CHECK_EQ(pst_finder_create(st, halves, 2, b, NULL, &f), PST_SCHEMA);
    pst_stack_close(st[0]);
    pst_stack_close(st[1]);
    pst_blocks_release(b);
    pst_finder_destroy(NULL);
    pst_blocks_release(NULL);
    world_free(&other);
    world_free(w);
}

int main(int argc, char **argv) {
    uint64_t runs = argc > 1 ? strtoull(argv[1], NULL, 10) : 2;
    for (uint64_t seed = 1; seed <= runs; seed++)
        for (int style = 0; style < WORLD_STYLES; style++)
            for (uint32_t blocks = 0; blocks <= BLOCKS; blocks += BLOCKS)
                run_model((world_style)style, 600 + 100 * seed, seed, blocks);
    for (size_t base = 1; base < 20; base++)
        run_model((world_style)(base % WORLD_STYLES), base, base, 0);
    run_made();
    run_some_states();
    run_at_hand();
    run_blocks();
    run_limit();
    for (uint32_t blocks = 0; blocks <= BLOCKS; blocks += BLOCKS) {
        run_threads(blocks);
        run_faults(blocks);
        run_damage(blocks);
    }
    run_refused();
    return check_report();
}
