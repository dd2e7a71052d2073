/* Rows of some keys out of files: what is written of a few keys is what a merge of all files has of
 * them, by a stack, file by file, and by both together. */
#include <errno.h>

#include "base/mem.h"
#include "wanted_world.h"

enum { BLOCKS = 4096 }; /* of files with guides */

static world the_world;
static uint64_t rooms;

static pst_stack *open_files(const world *w, int32_t from, int32_t n, pst_budget *budget) {
    pst_stack *st = NULL;
    pst_stack_options o = {.budget = budget, .unguided = 1};
    REQUIRE(!pst_stack_open(&w->schema, WORLD_GROUPS, w->files + from, n, &o, &st, NULL));
    return st;
}

/* Ids of every namespace of the wanted keys, of those below `domain`. */
static size_t spread(const uint64_t *ids, size_t n, uint64_t domain, uint64_t *all) {
    size_t made = 0;
    int classes[8] = {0};
    for (size_t i = 0; i < n; i++)
        classes[ids[i] == 5 ? 7 : ids[i] % 7] = 1;
    for (uint64_t id = 0; id < domain; id++)
        if (classes[id == 5 ? 7 : id % 7])
            all[made++] = id;
    return made;
}

/* ---- looking up -------------------------------------------------------------------------------- */

/* With fewer keys at a time, where they have too much. */
static pst_status look_up(pst_stack *st, const wanted *x, int32_t n_columns, uint64_t most,
                          pst_file_kind kind, memory_file *out) {
    pst_wanted_keys keys = {x->columns, n_columns, most};
    pst_io io = file_io(out, 1);
    pst_file_info info = {.kind = kind};
    pst_detail detail;
    pst_status s = pst_stack_lookup(st, &keys, &io, &info, &detail);
    if (!s)
        CHECK(info.kind == kind && info.file_bytes == out->size);
    if (s == PST_NO_ROOM) {
        CHECK(detail.row > 0 && detail.row < x->columns[0].length);
        rooms++;
    }
    return s;
}

static void read_file(const world *w, int32_t i, memory_file *f) {
    struct stat st;
    int fd = open(w->paths[i], O_RDONLY);
    REQUIRE(fd >= 0 && !fstat(fd, &st));
    *f = (memory_file){
        .data = malloc((size_t)st.st_size), .size = (size_t)st.st_size, .calls_left = -1};
    REQUIRE(f->data && read(fd, f->data, f->size) == (ssize_t)f->size);
    close(fd);
}

static void look_into(const world *w, int32_t i, const wanted *x, int32_t n_columns,
                      memory_file *out) {
    memory_file f;
    pst_sst_reader *r;
    pst_wanted_keys keys = {x->columns, n_columns, 0};
    pst_io io = file_io(out, 1);
    pst_file_info info;
    read_file(w, i, &f);
    REQUIRE(!file_open(&f, &r));
    CHECK_EQ(pst_sst_reader_lookup(r, &keys, &io, &info), PST_OK);
    CHECK_EQ(info.kind, i ? PST_DELTA : PST_BASE);
    /* It can be asked again. */
    memory_file again = {.calls_left = -1};
    pst_io other = file_io(&again, 1);
    CHECK_EQ(pst_sst_reader_lookup(r, &keys, &other, &info), PST_OK);
    CHECK(again.size == out->size && !memcmp(again.data, out->data, out->size));
    file_free(&again);
    pst_sst_reader_close(r);
    file_free(&f);
}

static void merge_found(const world *w, memory_file *files, int32_t n, memory_file *out) {
    row_style style = {.max_parallelism = WORLD_GROUPS, .last_key_group = WORLD_GROUPS - 1};
    pst_file_info info = info_of(PST_BASE, &style, 98);
    pst_sst_reader *readers[WORLD_FILES];
    pst_io io = file_io(out, 0);
    for (int32_t i = 0; i < n; i++)
        REQUIRE(!file_open(&files[i], &readers[i]));
    REQUIRE(!file_merge(&w->schema, &info, readers, NULL, n, &io));
    for (int32_t i = 0; i < n; i++)
        pst_sst_reader_close(readers[i]);
}

/* Whether a file has just the rows of those ids that the merge of all files has. */
static void check_file(const world *w, memory_file *found, memory_file *whole, const uint64_t *ids,
                       size_t n) {
    pst_sst_reader *a, *b;
    pst_record x, y;
    uint64_t equal = 0, rows = 0;
    pst_place *places = world_places(w, ids, n);
    REQUIRE(!file_open(whole, &a) && !file_open(found, &b));
    for (;;) {
        pst_status s = next_wanted(w, a, places, ids, n, &x);
        CHECK_EQ(pst_sst_reader_next(b, &y), s);
        if (s)
            break;
        rows++;
        equal += (uint64_t)same_row(&w->schema, &x, &y);
    }
    CHECK_EQ(equal, rows);
    pst_sst_reader_close(a);
    pst_sst_reader_close(b);
    free(places);
}

/* By a stack of all files; by one of the newer files and by reading the others; by reading all. */
static void check_ways(const world *w, memory_file *whole, const uint64_t *ids, size_t n,
                       const uint64_t *all, size_t n_all, int32_t n_columns) {
    wanted x = want(w, ids, n);
    for (int32_t below = 0; below <= w->n; below++) {
        memory_file files[WORLD_FILES], out = {.calls_left = -1};
        int32_t made = 0;
        if (below > 2 && below < w->n)
            continue;
        for (int32_t i = 0; i < WORLD_FILES; i++)
            files[i] = (memory_file){.calls_left = -1};
        for (; made < below; made++)
            look_into(w, made, &x, n_columns, &files[made]);
        if (below < w->n) {
            pst_stack *st = open_files(w, below, w->n - below, NULL);
            pst_file_kind kind = below ? PST_DELTA : PST_BASE;
            CHECK_EQ(look_up(st, &x, n_columns, 64 << 20, kind, &files[made++]), PST_OK);
            pst_stack_close(st);
        }
        if (!below)
            check_file(w, &files[0], whole, all, n_all);
        merge_found(w, files, made, &out);
        check_file(w, &out, whole, all, n_all);
        file_free(&out);
        for (int32_t i = 0; i < made; i++)
            file_free(&files[i]);
    }
    wanted_free(&x);
}

static void run_model(world_style style, size_t base, uint64_t seed, uint32_t block_bytes) {
    world *w = &the_world;
    memory_file whole = {.calls_left = -1};
    uint64_t rng = seed, domain = 2 * base;
    uint64_t *ids = malloc(domain * sizeof *ids), *all = malloc(domain * sizeof *all);
    REQUIRE(ids && all);
    make_world(w, style, 2 + (int32_t)(check_random(&rng) % 5), base, seed, block_bytes);
    world_merge(w, w->rows, &whole);
    const size_t counts[] = {0, 1, 40, base};
    for (int c = 0; c < 4; c++) {
        size_t n = counts[c];
        for (size_t i = 0; i < n; i++)
            ids[i] = check_random(&rng) % domain;
        if (n > 4) {
            ids[0] = 3; /* which has many elements */
            ids[1] = 5; /* null */
            ids[2] = ids[3];
        }
        check_ways(w, &whole, ids, n, ids, n, world_keys(w));
        if (style == WORLD_NAMESPACES && n <= 40)
            check_ways(w, &whole, ids, n, all, spread(ids, n, domain, all), 1);
    }
    free(ids);
    free(all);
    file_free(&whole);
    world_free(w);
}

/* ---- order -------------------------------------------------------------------------------------- */

/* Each key once, in the order of files. */
static void run_order(void) {
    enum { KEYS = 300 };
    world *w = &the_world;
    uint64_t ids[KEYS], seen[100] = {0};
    uint32_t order[KEYS], n = 0, wrong = 0;
    byte_heap *h = calloc(1, sizeof *h);
    pst_record last = {0};
    REQUIRE(h);
    memset(w, 0, sizeof *w);
    world_schema(w, WORLD_STRINGS);
    for (size_t i = 0; i < KEYS; i++)
        ids[i] = i * 7 % 100;
    wanted x = want(w, ids, KEYS);
    pst_wanted_keys keys = {.columns = x.columns, .n_columns = 1};
    CHECK_EQ(pst_wanted_order(&w->schema, WORLD_GROUPS, &keys, order, &n), PST_OK);
    CHECK_EQ(n, 100);
    for (uint32_t i = 0; i < n; i++) {
        pst_record r = {0};
        world_key(w, h, ids[order[i]], &r);
        wrong += seen[ids[order[i]]]++ > 0;
        wrong += i && pst_place_compare(last.key_group, last.hash, r.key_group, r.hash) > 0;
        last = r;
    }
    CHECK_EQ(wrong, 0);
    CHECK_EQ(pst_wanted_order(&w->schema, 0, &keys, order, &n), PST_INVALID);
    keys.n_columns = 3;
    CHECK_EQ(pst_wanted_order(&w->schema, WORLD_GROUPS, &keys, order, &n), PST_INVALID);
    wanted_free(&x);
    heap_free(h);
    free(h);
    pst_file_schema_destroy(w->made);
}

/* ---- room -------------------------------------------------------------------------------------- */

/* Keys that have too much are asked for again, fewer at a time; a single one always comes. */
static void run_room(void) {
    enum { KEYS = 500 };
    world *w = &the_world;
    memory_file whole = {.calls_left = -1};
    uint64_t ids[KEYS];
    make_world(w, WORLD_ELEMENTS, 3, 3000, 8, BLOCKS);
    world_merge(w, w->rows, &whole);
    pst_stack *st = open_files(w, 0, w->n, NULL);
    for (size_t i = 0; i < KEYS; i++)
        ids[i] = i;
    for (size_t from = 0, n = KEYS; from < KEYS;) {
        if (n > KEYS - from)
            n = KEYS - from;
        wanted x = want(w, ids + from, n);
        memory_file out = {.calls_left = -1};
        pst_status s = look_up(st, &x, 1, 2000, PST_BASE, &out);
        CHECK(s == PST_OK || (s == PST_NO_ROOM && n > 1));
        if (s == PST_OK) {
            check_file(w, &out, &whole, ids + from, n);
            from += n;
        }
        n = s ? n / 4 + 1 : n;
        n -= s && n == 2;
        file_free(&out);
        wanted_free(&x);
    }
    CHECK(rooms > 0);
    pst_stack_close(st);
    file_free(&whole);
    world_free(w);
}

/* ---- what will be read ------------------------------------------------------------------------- */

typedef struct plan {
    const pst_stack *st;
    struct {
        int32_t file;
        uint64_t begin, end;
    } parts[4096];
    size_t n;
    uint64_t bytes;
    uint64_t gap, most;
    uint64_t wrong;
} plan;

static plan the_plan;

static pst_status on_part(void *ctx, int32_t file, uint64_t offset, uint64_t size) {
    plan *p = ctx;
    REQUIRE(p->n < sizeof p->parts / sizeof *p->parts);
    if (p->n && p->parts[p->n - 1].file == file)
        p->wrong += offset < p->parts[p->n - 1].end;
    else
        p->wrong += p->n && file < p->parts[p->n - 1].file;
    p->wrong += size == 0 || size > p->most;
    p->parts[p->n].file = file;
    p->parts[p->n].begin = offset;
    p->parts[p->n++].end = offset + size;
    p->bytes += size;
    return PST_OK;
}

/* Whether all that a read needs was said, but for the rest of its first page. */
static int64_t is_planned(const pst_read *r, int64_t result) {
    plan *p = &the_plan;
    int32_t file = 0;
    while (file < p->st->n && &p->st->files[file]->file != r->file)
        file++;
    uint64_t at = r->offset, end = r->offset + r->need;
    for (size_t i = 0; i < p->n && at < end; i++)
        if (p->parts[i].file == file && p->parts[i].end > at &&
            p->parts[i].begin < (at == r->offset ? at + PST_READ_ALIGN : at + 1))
            at = p->parts[i].end;
    const pst_guide *g = p->st->files[file]->guide;
    for (uint32_t i = 0; i < g->n_segments; i++)
        at = end == g->segments[i].end ? end : at; /* it is a base's filter */
    if (at < end)
        __atomic_fetch_add(&p->wrong, 1, __ATOMIC_RELAXED);
    return result;
}

static void check_plan(const world *w, const uint64_t *ids, size_t n, int32_t n_columns,
                       uint64_t gap, uint64_t most) {
    plan *p = &the_plan;
    wanted x = want(w, ids, n);
    pst_wanted_keys keys = {x.columns, n_columns, 0};
    memory_file out = {.calls_left = -1};
    pst_stack *st = open_files(w, 0, w->n, NULL);
    pst_stack_stats stats;
    pst_detail detail;
    *p = (plan){.st = st, .gap = gap, .most = most};
    const pst_plan_sink sink = {on_part, p, gap, most};
    CHECK_EQ(pst_stack_plan(st, &keys, &sink, &detail), PST_OK);
    pst_stack_get_stats(st, &stats);
    CHECK_EQ(stats.reads, 0);
    pst_read_hook = is_planned;
    CHECK_EQ(look_up(st, &x, n_columns, 64 << 20, PST_BASE, &out), PST_OK);
    pst_read_hook = NULL;
    CHECK_EQ(p->wrong, 0);
    CHECK((p->n == 0) == (n == 0));
    pst_stack_get_stats(st, &stats);
    if (n == 1 && ids[0] != 3)
        CHECK(p->bytes <= 3 * stats.bytes + 8192);
    pst_stack_close(st);
    file_free(&out);
    wanted_free(&x);
}

/* A file that is read through a reader: after each step of the plan, which reads are outside of it. */
typedef struct noted_file {
    memory_file file;
    int open; /* what is read now is neither header nor tail */
    uint64_t outside;
    uint64_t bytes;
} noted_file;

static int read_noted(void *ctx, uint64_t offset, void *data, size_t size) {
    noted_file *f = ctx;
    plan *p = &the_plan;
    int within = !f->open;
    for (size_t i = 0; i < p->n; i++)
        within |= p->parts[i].begin <= offset && offset + size <= p->parts[i].end + 64;
    f->outside += !within;
    f->bytes += size;
    memcpy(data, f->file.data + offset, size);
    return 0;
}

static void check_file_plan(memory_file *file, const world *w, const uint64_t *ids, size_t n,
                            int guided) {
    noted_file f = {.file = *file};
    plan *p = &the_plan;
    wanted x = want(w, ids, n);
    pst_wanted_keys keys = {x.columns, world_keys(w), 0};
    memory_file out = {.calls_left = -1};
    pst_io io = {.ctx = &f, .read_at = read_noted, .decompress = file_io(file, 0).decompress};
    pst_io to = file_io(&out, 1);
    pst_file_info info;
    pst_sst_reader *r;
    *p = (plan){.most = 1 << 20};
    REQUIRE(!pst_sst_reader_open(&io, file->size, &r, NULL));
    const pst_plan_sink sink = {on_part, p, 0, 1 << 20};
    f.open = 1;
    CHECK_EQ(pst_sst_reader_plan(r, &keys, 1, &sink), PST_OK);
    CHECK((p->n > 0) == (guided && n));
    size_t entries = p->n;
    p->n = 0;
    if (entries) { /* the second step reads what the first one told */
        CHECK_EQ(pst_sst_reader_plan(r, &keys, 1, &sink), PST_OK);
        CHECK_EQ(p->n, entries);
    }
    CHECK_EQ(f.outside, 0);
    plan told = *p;
    p->n = 0;
    f.open = 0;
    CHECK_EQ(pst_sst_reader_plan(r, &keys, 0, &sink), PST_OK);
    CHECK((p->n > 0) == (n > 0));
    CHECK_EQ(p->wrong, 0);
    for (size_t i = 0; i < told.n; i++)
        p->parts[p->n++] = told.parts[i];
    f.open = 1;
    f.bytes = 0;
    CHECK_EQ(pst_sst_reader_lookup(r, &keys, &to, &info), PST_OK);
    CHECK(guided || f.bytes <= 2 * file->size); /* each block is read about once */
    /* Behind the last row of a block the next one may be looked at. */
    CHECK(f.outside <= 2 * n);
    CHECK(n != 400 || f.outside <= 60);
    pst_sst_reader_close(r);
    file_free(&out);
    wanted_free(&x);
}

static void run_plan(void) {
    enum { KEYS = 400 };
    uint64_t ids[KEYS], rng = 5;
    world *w = &the_world;
    for (int style = 0; style < WORLD_STYLES; style++) {
        memory_file whole = {.calls_left = -1};
        make_world(w, (world_style)style, 4, 3000, 12, BLOCKS);
        world_merge(w, w->rows, &whole);
        for (size_t n = 0; n <= KEYS; n = n < 2 ? n + 1 : n * 5) {
            for (size_t i = 0; i < n; i++)
                ids[i] = check_random(&rng) % 4000;
            check_plan(w, ids, n, world_keys(w), PST_WINDOW_BYTES, 1 << 20);
            check_plan(w, ids, n, world_keys(w), PST_WINDOW_BYTES, 5000);
            check_file_plan(&whole, w, ids, n, 0);
            for (int32_t i = 0; i < 2; i++) {
                memory_file file;
                read_file(w, i, &file);
                check_file_plan(&file, w, ids, n, 1);
                file_free(&file);
            }
        }
        if (style == WORLD_NAMESPACES)
            check_plan(w, ids, 3, 1, PST_WINDOW_BYTES, 1 << 20);
        file_free(&whole);
        world_free(w);
    }
    pst_wanted_keys none = {NULL, 0, 0};
    const pst_plan_sink sink = {on_part, &the_plan, 0, 0};
    pst_detail detail;
    make_world(w, WORLD_STRINGS, 1, 10, 1, BLOCKS);
    pst_stack *st = open_files(w, 0, 1, NULL);
    CHECK_EQ(pst_stack_plan(st, &none, &sink, &detail), PST_INVALID);
    pst_stack_close(st);
    world_free(w);
}

/* ---- which keys files have --------------------------------------------------------------------- */

typedef struct key_sight {
    const world *w;
    const pst_record **expected; /* one for each key, in the order of files */
    size_t n, at;
    uint64_t wrong;
    int fail;
} key_sight;

static int compare_keys(const world *w, const pst_record *a, const pst_record *b) {
    uint32_t own = (UINT32_C(1) << world_keys(w)) - 1;
    int order = pst_place_compare(a->key_group, a->hash, b->key_group, b->hash);
    return order ? order
                 : pst_key_compare(w->schema.keys, world_keys(w), a->key, a->key_nulls & own,
                                   b->key, b->key_nulls & own);
}

static int compare_expected(const void *a, const void *b) {
    return compare_keys(&the_world, *(const pst_record *const *)a, *(const pst_record *const *)b);
}

static int is_cell(const pst_block_column *c, uint32_t row, const pst_record *r, int32_t k) {
    int null = c->validity && !(c->validity[row / 8] >> row % 8 & 1);
    if (null || r->key_nulls >> k & 1)
        return null == (int)(r->key_nulls >> k & 1);
    if (!c->offsets)
        return !memcmp(c->values + (size_t)row * 8, &r->key[k].word[0], 8);
    uint32_t size = (uint32_t)(c->offsets[row + 1] - c->offsets[row]);
    return size == r->key[k].bytes.size &&
           (!size || !memcmp(c->values + c->offsets[row], r->key[k].bytes.data, size));
}

static int on_keys(void *ctx, uint32_t rows, const pst_block_column *columns, int32_t n) {
    key_sight *x = ctx;
    x->wrong += n != world_keys(x->w) || x->at + rows > x->n;
    for (uint32_t i = 0; i < rows && x->at < x->n; i++, x->at++)
        for (int32_t k = 0; k < n; k++)
            x->wrong += !is_cell(&columns[k], i, x->expected[x->at], k);
    return x->fail;
}

/* The records of files from one on, each key once. */
static void expect_keys(key_sight *x, int32_t from) {
    size_t total = 0, n = 0;
    for (int32_t i = from; i < x->w->n; i++)
        total += x->w->rows[i].n;
    x->expected = malloc((total + 1) * sizeof *x->expected);
    REQUIRE(x->expected);
    for (int32_t i = from; i < x->w->n; i++)
        for (size_t k = 0; k < x->w->rows[i].n; k++)
            x->expected[n++] = &x->w->rows[i].rows[k];
    qsort(x->expected, n, sizeof *x->expected, compare_expected);
    for (size_t i = 0; i < n; i++)
        if (!x->n || compare_keys(x->w, x->expected[x->n - 1], x->expected[i]))
            x->expected[x->n++] = x->expected[i];
}

/* All keys of files, deleted ones too, each once and in order, however the files are cut. */
static void check_keys(const world *w, int32_t from) {
    memory_file files[WORLD_FILES];
    pst_sst_reader *readers[WORLD_FILES];
    key_sight x = {.w = w};
    pst_io io = {.ctx = &x, .block = on_keys};
    int32_t n = w->n - from, middle = WORLD_GROUPS / 3;
    for (int32_t i = 0; i < n; i++) {
        read_file(w, from + i, &files[i]);
        REQUIRE(!file_open(&files[i], &readers[n - 1 - i]));
    }
    expect_keys(&x, from);
    CHECK_EQ(pst_gather_keys(readers, n, 0, WORLD_GROUPS - 1, NULL, &io), PST_OK);
    CHECK_EQ(x.at, x.n);
    x.at = 0;
    const pst_hashes low = {0, UINT64_MAX / 2}, high = {UINT64_MAX / 2 + 1, UINT64_MAX};
    CHECK_EQ(pst_gather_keys(readers, n, 0, middle, &low, &io), PST_OK);
    CHECK(x.at < x.n);
    CHECK_EQ(pst_gather_keys(readers, n, middle, WORLD_GROUPS - 1, &high, &io), PST_OK);
    CHECK_EQ(x.at, x.n);
    CHECK_EQ(x.wrong, 0);
    x.at = 0;
    x.fail = x.n > 0;
    CHECK_EQ(pst_gather_keys(readers, n, 0, WORLD_GROUPS - 1, NULL, &io),
             x.n ? PST_CALLBACK : PST_OK);
    CHECK_EQ(pst_gather_keys(readers, 0, 0, WORLD_GROUPS - 1, NULL, &io), PST_INVALID);
    CHECK_EQ(pst_gather_keys(readers, n, 3, 2, NULL, &io), PST_INVALID);
    io.block = NULL;
    CHECK_EQ(pst_gather_keys(readers, n, 0, WORLD_GROUPS - 1, NULL, &io), PST_INVALID);
    for (int32_t i = 0; i < n; i++) {
        pst_sst_reader_close(readers[n - 1 - i]);
        file_free(&files[i]);
    }
    free(x.expected);
}

static void run_keys(void) {
    world *w = &the_world;
    for (int style = 0; style < WORLD_STYLES; style++) {
        make_world(w, (world_style)style, 5, 2000, 31 + (uint64_t)style, BLOCKS);
        check_keys(w, 0);
        check_keys(w, 1);
        check_keys(w, 4);
        world_free(w);
    }
}

/* Files of other keys are refused. */
static void run_other_keys(void) {
    memory_file files[2];
    pst_sst_reader *readers[2];
    key_sight x = {0};
    const pst_io io = {.ctx = &x, .block = on_keys};
    for (int i = 0; i < 2; i++) {
        make_world(&the_world, i ? WORLD_STRINGS : WORLD_PLAIN, 1, 10, 1, BLOCKS);
        read_file(&the_world, 0, &files[i]);
        REQUIRE(!file_open(&files[i], &readers[i]));
        world_free(&the_world);
    }
    CHECK_EQ(pst_gather_keys(readers, 2, 0, WORLD_GROUPS - 1, NULL, &io), PST_SCHEMA);
    for (int i = 0; i < 2; i++) {
        pst_sst_reader_close(readers[i]);
        file_free(&files[i]);
    }
}

/* ---- failures ---------------------------------------------------------------------------------- */

static int64_t hook_countdown;

static int64_t fail_once(const pst_read *r, int64_t result) {
    (void)r;
    return __atomic_fetch_sub(&hook_countdown, 1, __ATOMIC_RELAXED) == 0 ? -EIO : result;
}

static void check_detail(const pst_stack *st, const pst_wanted_keys *keys, pst_status want_status) {
    memory_file out = {.calls_left = -1};
    pst_io io = file_io(&out, 1);
    pst_file_info info = {.kind = PST_BASE};
    pst_detail detail;
    pst_status s = pst_stack_lookup((pst_stack *)(uintptr_t)st, keys, &io, &info, &detail);
    CHECK_EQ(s, want_status);
    CHECK(detail.row == 0 && detail.offset > 0);
    file_free(&out);
}

static void run_refused(const world *w, pst_stack *st, wanted *x) {
    memory_file out = {.calls_left = -1};
    pst_io io = file_io(&out, 1);
    pst_file_info info = {.kind = PST_BASE};
    pst_wanted_keys keys = {x->columns, 2, 0};
    CHECK_EQ(pst_stack_lookup(st, &keys, &io, &info, NULL), PST_INVALID);
    keys.n_columns = 0;
    CHECK_EQ(pst_stack_lookup(st, &keys, &io, &info, NULL), PST_INVALID);
    keys.n_columns = 1;
    info.kind = 0;
    CHECK_EQ(pst_stack_lookup(st, &keys, &io, &info, NULL), PST_INVALID);
    info.kind = PST_BASE;
    x->columns[0].type = PST_INT32;
    CHECK_EQ(pst_stack_lookup(st, &keys, &io, &info, NULL), PST_WRONG_TYPE);
    x->columns[0].type = w->schema.keys[0].type;
    out.calls_left = 0;
    CHECK_EQ(pst_stack_lookup(st, &keys, &io, &info, NULL), PST_CALLBACK);
    file_free(&out);
}

/* Memory that is refused, reads that fail and blocks that are damaged are said, with the file and the
 * place; afterwards all is as before. */
static void run_faults(void) {
    enum { KEYS = 60 };
    world *w = &the_world;
    uint64_t ids[KEYS];
    pst_budget *budget = NULL;
    pst_budget_stats before, after;
    make_world(w, WORLD_ELEMENTS, 1, 2000, 12, BLOCKS);
    for (size_t i = 0; i < KEYS; i++)
        ids[i] = 7 * i;
    wanted x = want(w, ids, KEYS);
    pst_wanted_keys keys = {.columns = x.columns, .n_columns = 1};
    REQUIRE(!pst_budget_create(64 << 20, &budget));
    pst_stack *st = open_files(w, 0, w->n, budget);
    run_refused(w, st, &x);
    memory_file out = {.calls_left = -1};
    REQUIRE(!look_up(st, &x, 1, 0, PST_BASE, &out));
    file_free(&out);
    pst_budget_get_stats(budget, &before);
    for (int64_t i = 0;; i++) {
        check_fail_alloc(i, 0);
        pst_status s = look_up(st, &x, 1, 0, PST_BASE, &out);
        int refused = check_alloc_failed();
        check_fail_alloc(-1, 0);
        CHECK_EQ(s, refused ? PST_NO_MEMORY : PST_OK);
        file_free(&out);
        if (!refused)
            break;
    }
    pst_budget_get_stats(budget, &after);
    CHECK(after.private_bytes <= before.private_bytes);
    pst_read_hook = fail_once;
    hook_countdown = 0;
    check_detail(st, &keys, PST_IO);
    pst_read_hook = NULL;
    off_t block = (off_t)pst_guide_block_at(&st->files[0]->guide->segments[0],
                                            pst_member_entries(st->files[0], 0), 1)
                      .offset;
    flip(w->paths[0], block + 50);
    uint64_t every[2000];
    for (size_t i = 0; i < 2000; i++)
        every[i] = i;
    wanted all = want(w, every, 2000);
    pst_wanted_keys all_keys = {all.columns, 1, 64 << 20};
    check_detail(st, &all_keys, PST_CORRUPT);
    memory_file f;
    pst_sst_reader *r;
    pst_io io = file_io(&out, 1);
    pst_file_info info;
    read_file(w, 0, &f);
    REQUIRE(!file_open(&f, &r));
    CHECK_EQ(pst_sst_reader_lookup(r, &all_keys, &io, &info), PST_CORRUPT);
    CHECK_EQ(pst_sst_reader_detail(r)->offset, block);
    pst_sst_reader_close(r);
    file_free(&f);
    file_free(&out);
    wanted_free(&all);
    wanted_free(&x);
    pst_stack_close(st);
    pst_budget_get_stats(budget, &after);
    CHECK_EQ(after.private_bytes, 0);
    pst_budget_release(budget);
    world_free(w);
}

int main(int argc, char **argv) {
    uint64_t runs = argc > 1 ? strtoull(argv[1], NULL, 10) : 2;
    for (uint64_t seed = 1; seed <= runs; seed++)
        for (int style = 0; style < WORLD_STYLES; style++)
            for (uint32_t blocks = 0; blocks <= BLOCKS; blocks += BLOCKS)
                run_model((world_style)style, 600 + 100 * seed, seed, blocks);
    run_order();
    run_room();
    run_plan();
    run_keys();
    run_other_keys();
    run_faults();
    return check_report();
}
