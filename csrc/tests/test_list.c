/* Lists against plain arrays: random appends, trims, clears, seals and roll backs; the sealed lists
 * of the whole undo window read after stores in the middle of every write; damaged chains.
 *
 *   test_list [steps] [seed]
 */
#include <string.h>

#include "crash.h"
#include "list/list.h"
#include "memory/alloc.h"

enum { LISTS = 8, MOST = 3000, EPOCHS = 4, LONGEST = 9000 };

/* Item `seq` of a list is made from the seed that the model keeps of it. */
typedef struct model_list {
    pst_list list;
    uint64_t start;
    uint64_t count;
    uint64_t seed[MOST];
    int64_t time[MOST];
} model_list;

typedef struct model {
    pst_list_shape shape;
    pst_table *t;
    model_list now[LISTS];
    model_list sealed[EPOCHS][LISTS]; /* of epoch e: at e % EPOCHS */
} model;

static const pst_column KEY[] = {{.name = "k", .type = PST_INT64}};
static const pst_column STATE[] = {{.name = "n", .type = PST_INT64}};

static pst_table *make_table(uint64_t limit) {
    pst_schema s = {1, 1, KEY, STATE};
    pst_table_options o = {.max_parallelism = 1, .limit_bytes = limit};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(&s, &o, &t, NULL, NULL) == PST_OK);
    return t;
}

static uint64_t heap_bytes(const pst_table *t) {
    return t->h->committed[PST_SPACE_HEAP];
}

static void seal(pst_table *t) {
    pst_lineage l = {.epoch = t->h->active};
    memcpy(l.id, &t->h->active, sizeof t->h->active);
    REQUIRE(pst_table_seal(t, &l, NULL) == PST_OK);
}

static uint32_t make_item(const pst_list_shape *s, uint64_t seed, uint8_t *room) {
    uint64_t x = seed;
    uint32_t size = s->width;
    if (!size)
        size = (uint32_t)(seed % 97 == 0   ? seed / 97 % LONGEST
                          : seed % 13 == 0 ? seed / 13 % 1500
                                           : seed / 13 % 40);
    for (uint32_t i = 0; i < size; i++)
        room[i] = (uint8_t)check_random(&x);
    return size;
}

static int same_item(const pst_list_shape *s, uint64_t seed, int64_t time, const pst_item *item) {
    static uint8_t want[LONGEST], have[LONGEST];
    uint32_t size = make_item(s, seed, want);
    if (item->size != size || item->time != (s->timed ? time : 0))
        return 0;
    pst_get_bytes(have, item->data, size);
    return memcmp(want, have, size) == 0;
}

/* From item `from` to the end, one by one. */
static int same_rest(const model *m, const model_list *l, uint64_t from) {
    pst_list_cursor c;
    pst_item item;
    pst_status st;
    uint64_t seq, at = from > l->start ? from : l->start;
    pst_list_seek(&c, m->t->heap, heap_bytes(m->t), &m->shape, &l->list, from);
    for (; !(st = pst_list_next(&c, &item, &seq)); at++) {
        uint64_t i = at - l->start;
        if (seq != at || i >= l->count || !same_item(&m->shape, l->seed[i], l->time[i], &item))
            return 0;
    }
    return st == PST_NOT_FOUND && (at >= l->start + l->count);
}

static int same_packed(const model *m, const model_list *l, uint64_t from, size_t most) {
    static uint8_t blob[1 << 20];
    pst_list_cursor c;
    pst_status st = PST_OK;
    uint64_t i = from - l->start;
    pst_list_seek(&c, m->t->heap, heap_bytes(m->t), &m->shape, &l->list, from);
    while (!st) {
        size_t size = sizeof blob;
        uint64_t taken, again;
        st = pst_list_pack_next(&c, most, blob, &size, &taken);
        if (st)
            break;
        if (!taken || (size > most && taken > 1))
            return 0;
        pst_packed p;
        pst_item item;
        if (pst_packed_open(&p, &m->shape, (pst_bytes){blob, (uint32_t)size}))
            return 0;
        for (again = 0; !(st = pst_packed_next(&p, &item)); again++, i++)
            if (i >= l->count || !same_item(&m->shape, l->seed[i], l->time[i], &item))
                return 0;
        if (st != PST_NOT_FOUND || again != taken)
            return 0;
        st = PST_OK;
    }
    return st == PST_NOT_FOUND && i == l->count;
}

static int same_copy(const model *m, const model_list *l) {
    static uint8_t all[MOST * PST_LIST_MAX_WIDTH], want[PST_LIST_MAX_WIDTH];
    uint32_t width = m->shape.width;
    uint64_t n = pst_list_count(m->t->heap, heap_bytes(m->t), &l->list);
    if (n != l->count ||
        pst_list_copy(m->t->heap, heap_bytes(m->t), &m->shape, &l->list, all, (size_t)n * width))
        return 0;
    for (uint64_t i = 0; i < n; i++) {
        make_item(&m->shape, l->seed[i], want);
        if (memcmp(all + i * width, want, width) != 0)
            return 0;
    }
    /* A caller who counted another list is told so. */
    return pst_list_copy(m->t->heap, heap_bytes(m->t), &m->shape, &l->list, all,
                         (size_t)(n + 1) * width) == PST_CORRUPT;
}

static int same_list(const model *m, const model_list *l, uint64_t *random) {
    uint64_t x = check_random(random), from = l->start + (l->count ? x % l->count : 0);
    if (pst_list_start(m->t->heap, heap_bytes(m->t), &l->list) != l->start)
        return 0;
    if (l->list.end != l->start + l->count || (l->count == 0) != (l->list.first == 0))
        return 0;
    if (!same_rest(m, l, from) || (x % 4 == 0 && !same_rest(m, l, 0)))
        return 0;
    if (m->shape.width && x % 3 == 0 && !same_copy(m, l))
        return 0;
    return x % 5 || same_packed(m, l, from, (size_t)(1 + x % 3000));
}

/* The older items that stayed, and the new ones, are the younger list. */
static void check_change(const model *m, const model_list *before, const model_list *after) {
    pst_list_change c = pst_list_compare(m->t->heap, heap_bytes(m->t), &before->list, &after->list);
    uint64_t end = after->start + after->count;
    CHECK_EQ(c.start, after->start);
    CHECK(c.from >= c.start && c.from <= (end > c.start ? end : c.start));
    for (uint64_t seq = c.start; seq < c.from && !c.replaced; seq++) {
        uint64_t i = seq - before->start;
        REQUIRE(seq >= before->start && i < before->count);
        CHECK_EQ(before->seed[i], after->seed[seq - after->start]);
    }
    if (c.replaced)
        CHECK_EQ(c.from, c.start);
    if (!c.changed)
        CHECK(before->count == after->count && c.from == end && !c.replaced);
    /* What did not change is not carried. */
    if (before->list.first && before->list.first == after->list.first)
        CHECK(!c.replaced && c.from == before->list.end);
}

/* ---- random work ----------------------------------------------------------------------------- */

static void append(model *m, model_list *l, uint64_t *random, uint64_t n) {
    static uint8_t room[LONGEST + 1];
    for (; n && l->count < MOST; n--) {
        uint64_t seed = check_random(random);
        int64_t time = (int64_t)(l->list.end * 10 + seed % 64);
        if (seed % 1000 == 0)
            time = seed % 2000 ? INT64_MIN : INT64_MAX;
        uint8_t *at = room + seed % 2; /* an item needs no alignment */
        pst_item item = {at, make_item(&m->shape, seed, at), time};
        CHECK_EQ(pst_list_append(m->t, &m->shape, &l->list, &item), PST_OK);
        l->seed[l->count] = seed;
        l->time[l->count++] = time;
    }
}

static void forget(model_list *l, uint64_t n) {
    l->start += n;
    l->count -= n;
    memmove(l->seed, l->seed + n, l->count * sizeof l->seed[0]);
    memmove(l->time, l->time + n, l->count * sizeof l->time[0]);
}

/* What went was old, and what stays begins with a chunk that has something younger. */
static void trim(model *m, model_list *l, int64_t before) {
    uint64_t dropped, again, end = l->list.end;
    CHECK_EQ(pst_list_trim(m->t, &m->shape, &l->list, before, &dropped), PST_OK);
    CHECK_EQ(l->list.end, end);
    REQUIRE(dropped <= l->count);
    for (uint64_t i = 0; i < dropped; i++)
        CHECK(l->time[i] < before && l->time[i] != PST_NO_TIME);
    forget(l, dropped);
    CHECK_EQ(pst_list_trim(m->t, &m->shape, &l->list, before, &again), PST_OK);
    CHECK_EQ(again, 0);
    if (!m->shape.timed) {
        CHECK_EQ(dropped, 0);
        return;
    }
    int younger = l->count == 0;
    for (uint64_t i = 0; i < l->count && i < 4096 && !younger; i++)
        younger = l->time[i] >= before || l->time[i] == PST_NO_TIME;
    CHECK(younger);
}

static void trim_to(model *m, model_list *l, uint64_t seq) {
    uint64_t end = l->list.end;
    CHECK_EQ(pst_list_trim_to(m->t, &l->list, seq), PST_OK);
    uint64_t start = pst_list_start(m->t->heap, heap_bytes(m->t), &l->list);
    CHECK_EQ(l->list.end, end);
    REQUIRE(start >= l->start && start <= end);
    CHECK(start <= seq || start == l->start);
    if (m->shape.width >= 8 && seq <= end)
        CHECK(seq < start + 512);
    if (seq >= end)
        CHECK_EQ(start, end);
    forget(l, start - l->start);
}

static void roll_back(model *m, int32_t back) {
    pst_table *t = m->t;
    if (pst_table_rollback(t, back) != PST_OK)
        CHECK_EQ(pst_table_rollback(t, 0), PST_OK);
    memcpy(m->now, m->sealed[t->h->sealed % EPOCHS], sizeof m->now);
}

static void step(model *m, uint64_t *random) {
    uint64_t what = check_random(random) % 100, x = check_random(random);
    model_list *l = &m->now[x % LISTS];
    if (what < 55) {
        append(m, l, random, what < 5 ? 600 : x % 40);
    } else if (what < 62) {
        CHECK_EQ(pst_list_clear(m->t, &l->list), PST_OK);
        static const pst_list zero;
        CHECK(memcmp(&l->list, &zero, sizeof zero) == 0);
        l->start = l->count = 0;
    } else if (what < 70) {
        trim(m, l, (int64_t)(l->start * 10 + (l->count ? x % (l->count * 11) : 0)));
    } else if (what < 76) {
        trim_to(m, l, l->start + x % (l->count + 10));
    } else if (what < 93) {
        for (int i = 0; i < LISTS; i++)
            check_change(m, &m->sealed[m->t->h->sealed % EPOCHS][i], &m->now[i]);
        memcpy(m->sealed[m->t->h->active % EPOCHS], m->now, sizeof m->now);
        seal(m->t);
    } else {
        roll_back(m, (int32_t)(x % 3));
    }
}

/* After a store in the middle of a write: what was sealed in the window reads as it did. */
static struct {
    const model *m;
    uint64_t every;
    uint64_t points;
    uint64_t looked;
    uint64_t random;
} watch;

static void after_store(void) {
    const pst_header *h = watch.m->t->h;
    if (++watch.points % watch.every || (h->rollbacks & 1) || h->active != h->sealed + 1)
        return;
    pst_crash_hook = NULL;
    uint64_t e = h->floor + check_random(&watch.random) % (h->sealed - h->floor + 1);
    const model_list *l = &watch.m->sealed[e % EPOCHS][check_random(&watch.random) % LISTS];
    REQUIRE(same_list(watch.m, l, &watch.random));
    watch.looked++;
    pst_crash_hook = after_store;
}

static void test_random(pst_list_shape shape, int steps, uint64_t seed) {
    model *m = calloc(1, sizeof *m);
    REQUIRE(m != NULL);
    m->shape = shape;
    m->t = make_table((uint64_t)1 << 28);
    watch.m = m;
    watch.every = 211;
    watch.looked = 0;
    for (int i = 0; i < steps; i++) {
        uint64_t failed = check_failed;
        pst_crash_hook = after_store;
        step(m, &seed);
        pst_crash_hook = NULL;
        model_list *l = &m->now[check_random(&seed) % LISTS];
        if (!CHECK(same_list(m, l, &seed)) || check_failed != failed) {
            fprintf(stderr, "    width %u, timed %u, step %d\n", shape.width, shape.timed, i);
            break;
        }
    }
    CHECK(watch.looked > 0);
    for (uint64_t e = m->t->h->floor; e <= m->t->h->sealed; e++)
        for (int i = 0; i < LISTS; i++)
            CHECK(same_list(m, &m->sealed[e % EPOCHS][i], &seed));
    pst_table_close(m->t);
    free(m);
}

/* ---- memory and cost ------------------------------------------------------------------------- */

static uint64_t block_bytes(pst_table *t) {
    pst_table_stats stats;
    pst_table_get_stats(t, &stats);
    return stats.block_bytes;
}

/* A list that comes and goes within an epoch takes no memory with it; a queue over many epochs
 * takes what it holds, and what waits for the window. */
static void test_reuse(void) {
    pst_table *t = make_table((uint64_t)1 << 28);
    pst_list_shape s = {.width = 8, .timed = 1};
    pst_list l = {0};
    uint64_t n = 0, early = 0;
    for (int round = 0; round < 2000; round++) {
        for (int i = 0; i < 100; i++, n++) {
            pst_item item = {&n, 8, (int64_t)n};
            CHECK_EQ(pst_list_append(t, &s, &l, &item), PST_OK);
        }
        CHECK_EQ(pst_list_clear(t, &l), PST_OK);
        if (round == 0)
            early = block_bytes(t);
    }
    CHECK_EQ(block_bytes(t), early);
    n = 0;
    for (int epoch = 0; epoch < 300; epoch++) {
        for (int i = 0; i < 1000; i++, n++) {
            pst_item item = {&n, 8, (int64_t)n};
            CHECK_EQ(pst_list_append(t, &s, &l, &item), PST_OK);
        }
        uint64_t dropped;
        CHECK_EQ(pst_list_trim(t, &s, &l, (int64_t)n - 3000, &dropped), PST_OK);
        seal(t);
        if (epoch == 20)
            early = block_bytes(t);
    }
    CHECK(block_bytes(t) <= early + early / 8);
    uint64_t kept = pst_list_count(t->heap, heap_bytes(t), &l);
    CHECK(kept >= 3000 && kept < 3000 + 512);
    CHECK_EQ(l.end, n);
    /* Trimmed away altogether, it goes on counting. */
    CHECK_EQ(pst_list_trim(t, &s, &l, INT64_MAX, NULL), PST_OK);
    CHECK(l.first == 0 && l.end == n);
    pst_item item = {&n, 8, (int64_t)n};
    CHECK_EQ(pst_list_append(t, &s, &l, &item), PST_OK);
    CHECK_EQ(pst_list_start(t->heap, heap_bytes(t), &l), n);
    pst_table_close(t);
}

static uint64_t stores;
static void count_store(void) {
    stores++;
}

/* Stores per append, and bytes of memory per item, do not depend on the length. */
static void test_cost(void) {
    pst_table *t = make_table((uint64_t)1 << 30);
    pst_list_shape s = {.width = 8};
    pst_list l = {0};
    uint64_t before = block_bytes(t), per_thousand[2] = {0, 0};
    for (uint64_t n = 0; n < 1000000; n++) {
        pst_item item = {&n, 8, 0};
        if (n == 2000 || n == 990000) {
            stores = 0;
            pst_crash_hook = count_store;
        }
        CHECK_EQ(pst_list_append(t, &s, &l, &item), PST_OK);
        if (n == 2999 || n == 990999) {
            pst_crash_hook = NULL;
            per_thousand[n > 3000] = stores;
        }
    }
    CHECK(per_thousand[0] < 1100 && per_thousand[1] <= per_thousand[0] + 10);
    CHECK(block_bytes(t) - before < 8 * 1000000 * 102 / 100);
    /* The end is near from the end, the start from the start. */
    pst_list_cursor c;
    pst_item item;
    for (uint64_t from = 0; from < 1000000; from += from < 1000 || from > 998999 ? 1 : 7919) {
        uint64_t seq, have;
        pst_list_seek(&c, t->heap, heap_bytes(t), &s, &l, from);
        CHECK_EQ(pst_list_next(&c, &item, &seq), PST_OK);
        memcpy(&have, item.data, 8);
        CHECK(seq == from && have == from);
    }
    pst_table_close(t);
}

/* Memory is refused: a status, the list as it was, and the table goes on after a roll back. */
static void test_limit(void) {
    pst_table *t = make_table((uint64_t)3 << 19);
    pst_list_shape shapes[] = {{.width = 256}, {.width = 0, .timed = 1}};
    static uint8_t big[100000];
    for (int i = 0; i < 2; i++) {
        pst_list l = {0}, before;
        uint64_t n = 0;
        pst_status st = PST_OK;
        for (; !st && n < 100000; n++) {
            pst_item item = {big, (uint32_t)sizeof big, (int64_t)n};
            before = l;
            st = pst_list_append(t, &shapes[i], &l, &item);
        }
        CHECK_EQ(st, PST_LIMIT);
        CHECK(memcmp(&before, &l, sizeof l) == 0);
        pst_list_cursor c;
        pst_item item;
        uint64_t have = 0;
        pst_list_seek(&c, t->heap, heap_bytes(t), &shapes[i], &l, 0);
        while (!(st = pst_list_next(&c, &item, NULL)))
            have++;
        CHECK(st == PST_NOT_FOUND && have == n - 1);
        CHECK_EQ(pst_table_rollback(t, 0), PST_OK);
    }
    pst_list_shape s = {0};
    pst_list l = {0};
    pst_item item = {big, UINT32_MAX, 0};
    CHECK_EQ(pst_list_append(t, &s, &l, &item), PST_TOO_LARGE);
    item.size = PST_MAX_BYTES;
    CHECK_EQ(pst_list_append(t, &s, &l, &item), PST_TOO_LARGE);
    pst_table_close(t);
}

/* ---- damage ---------------------------------------------------------------------------------- */

static void read_all(const uint8_t *heap, uint64_t bytes, const pst_list_shape *s,
                     const pst_list *l, uint64_t from) {
    static uint8_t out[1 << 16];
    pst_list_cursor c;
    pst_item item;
    pst_status st;
    pst_list_seek(&c, heap, bytes, s, l, from);
    while (!(st = pst_list_next(&c, &item, NULL)))
        pst_get_bytes(out, item.data, item.size < sizeof out ? item.size : sizeof out);
    CHECK(st == PST_NOT_FOUND || st == PST_CORRUPT || st == PST_NOT_HERE);
    if (s->width)
        (void)pst_list_copy(heap, bytes, s, l, out, sizeof out / s->width * s->width);
    size_t size = sizeof out;
    uint64_t taken;
    st = pst_list_pack(heap, bytes, s, l, from, 5000, out, &size, &taken);
    CHECK(st == PST_OK || st == PST_CORRUPT || st == PST_TOO_LARGE || st == PST_NOT_HERE);
}

/* A reader's list that went away: words of the chunks and of the list itself are anything. */
static void test_damage(pst_list_shape shape, uint64_t seed, int rounds) {
    pst_table *t = make_table((uint64_t)1 << 28);
    model *m = calloc(1, sizeof *m);
    REQUIRE(m != NULL);
    m->shape = shape;
    m->t = t;
    for (int i = 0; i < 3; i++)
        append(m, &m->now[i], &seed, (uint64_t)i * 100 + 20);
    uint64_t bytes = t->m->heap_top * PST_GRANULE;
    for (int round = 0; round < rounds; round++) {
        uint8_t *heap = malloc(bytes);
        REQUIRE(heap != NULL);
        memcpy(heap, t->heap, bytes);
        model_list *l = &m->now[check_random(&seed) % 3];
        pst_list words = l->list;
        for (uint64_t n = check_random(&seed) % 4 + 1; n; n--) {
            uint64_t x = check_random(&seed), granule = x % (bytes / 16);
            /* Mostly the chunks' headers, with values that may pass for others. */
            if (x >> 62)
                granule = (x >> 60 & 1) ? words.last : words.first;
            uint32_t value = (uint32_t)(x >> 32 & 1 ? x >> 34 : x >> 34 & 0x3FF);
            uint64_t at = granule * 16 + (x >> 50 & 3) * 4;
            if (at + 4 <= bytes && x >> 33 & 3)
                memcpy(heap + at, &value, 4);
            else
                memcpy((uint8_t *)&words + (x >> 40) % 6 * 4, &value, 4);
        }
        if (round % 8 == 0) {
            /* More items than the last chunk has room for, in numbers that agree. */
            uint64_t more = check_random(&seed) % 500;
            words = l->list;
            words.end += more;
            words.used += (uint32_t)(more * shape.width);
        }
        read_all(heap, bytes, &shape, &words, words.end ? check_random(&seed) % words.end : 0);
        read_all(heap, bytes, &shape, &words, 0);
        free(heap);
    }
    pst_table_close(t);
    free(m);
}

/* Do two lists have the same items, the times of the second being `time` where the first has none? */
static int same_items(const pst_table *t, const pst_list_shape *from, const pst_list *a,
                      const pst_list_shape *to, const pst_list *b, int64_t time) {
    pst_list_cursor c, d;
    pst_item x, y;
    pst_status st;
    pst_list_seek(&c, t->heap, heap_bytes(t), from, a, 0);
    pst_list_seek(&d, t->heap, heap_bytes(t), to, b, 0);
    while ((st = pst_list_next(&c, &x, NULL)) == PST_OK) {
        if (pst_list_next(&d, &y, NULL) || x.size != y.size || memcmp(x.data, y.data, x.size) != 0)
            return 0;
        if (to->timed && y.time != (from->timed ? x.time : time))
            return 0;
    }
    return st == PST_NOT_FOUND && pst_list_next(&d, &y, NULL) == PST_NOT_FOUND;
}

/* Lists packed and appended again, in pieces of any size, to lists of either kind of time. */
static void test_append_packed(uint64_t seed) {
    static const uint16_t widths[] = {0, 1, 2, 4, 8, 16, 24, 256};
    static uint8_t blob[1 << 16], data[6000];
    pst_table *t = make_table(0);
    for (uint32_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)check_random(&seed);
    for (int round = 0; round < 2000; round++) {
        pst_list_shape from = {.width = widths[round % 8], .timed = round >> 3 & 1}, to = from;
        to.timed = round >> 4 & 1;
        pst_list a = {.end = 7}, b = {.end = 7};
        uint64_t n = check_random(&seed) % (round % 5 ? 40 : 900), taken = 0, large = n / 2 + 1;
        for (uint64_t i = 0; i < n; i++) {
            uint32_t size = (uint32_t)(check_random(&seed) % (i == large ? 5000 : 150));
            pst_item item = {data + check_random(&seed) % 900, from.width ? from.width : size,
                             (int64_t)(check_random(&seed) % 100)};
            REQUIRE(pst_list_append(t, &from, &a, &item) == PST_OK);
        }
        pst_list_cursor c;
        pst_list_seek(&c, t->heap, heap_bytes(t), &from, &a, 0);
        for (;;) {
            size_t size = sizeof blob;
            pst_packed p;
            if (pst_list_pack_next(&c, 1 + check_random(&seed) % 9000, blob, &size, &taken))
                break;
            REQUIRE(!pst_packed_open(&p, &to, (pst_bytes){blob, (uint32_t)size}));
            CHECK_EQ(pst_list_append_packed(t, &to, &b, &p, -3), PST_OK);
        }
        CHECK(b.end == a.end && same_items(t, &from, &a, &to, &b, -3));
        CHECK(pst_list_clear(t, &a) == PST_OK && pst_list_clear(t, &b) == PST_OK);
    }
    pst_table_close(t);
}

static void test_damaged_blobs(uint64_t seed) {
    pst_table *t = make_table(0);
    for (int round = 0; round < 20000; round++) {
        pst_list_shape s = {.width = (uint16_t)(round % 3 * 8), .timed = round & 1};
        uint32_t size = (uint32_t)(check_random(&seed) % 40);
        uint8_t *blob = malloc(size ? size : 1), sum = 0;
        REQUIRE(blob != NULL);
        for (uint32_t i = 0; i < size; i++)
            blob[i] = (uint8_t)(check_random(&seed) % (i ? 256 : 5));
        pst_packed p;
        pst_item item;
        pst_status st = pst_packed_open(&p, &s, (pst_bytes){blob, size});
        while (!st && !(st = pst_packed_next(&p, &item)))
            for (uint32_t i = 0; i < item.size; i++)
                sum = (uint8_t)(sum + ((const uint8_t *)item.data)[i]);
        CHECK(st == PST_NOT_FOUND || st == PST_CORRUPT);
        pst_list l = {0};
        if (!pst_packed_open(&p, &s, (pst_bytes){blob, size}))
            CHECK_EQ(pst_list_append_packed(t, &s, &l, &p, 0), st == PST_CORRUPT ? st : PST_OK);
        CHECK_EQ(pst_list_clear(t, &l), PST_OK);
        free(blob);
    }
    pst_table_close(t);
}

/* A blob with times for a list without, and the reverse; the empty list; no room. */
static void test_packed_edges(void) {
    pst_table *t = make_table(0);
    pst_list_shape plain = {.width = 8}, timed = {.width = 8, .timed = 1}, bytes = {0};
    pst_list l = {.end = 1000}, none = {0};
    uint64_t value = 7, taken;
    uint8_t blob[64];
    size_t size = sizeof blob;
    pst_item item = {&value, 8, -5};
    pst_packed p;
    CHECK_EQ(pst_list_append(t, &timed, &l, &item), PST_OK);
    CHECK_EQ(pst_list_start(t->heap, heap_bytes(t), &l), 1000);
    CHECK_EQ(pst_list_pack(t->heap, heap_bytes(t), &timed, &l, 0, 64, blob, &size, &taken), PST_OK);
    CHECK(size == 10 && taken == 1);
    CHECK_EQ(pst_packed_open(&p, &plain, (pst_bytes){blob, (uint32_t)size}), PST_OK);
    CHECK_EQ(pst_packed_next(&p, &item), PST_OK);
    CHECK(item.time == -5 && item.size == 8 && memcmp(item.data, &value, 8) == 0);
    CHECK_EQ(pst_packed_next(&p, &item), PST_NOT_FOUND);
    CHECK_EQ(pst_packed_open(&p, &bytes, (pst_bytes){blob, (uint32_t)size}), PST_CORRUPT);
    size = 9;
    CHECK_EQ(pst_list_pack(t->heap, heap_bytes(t), &timed, &l, 0, 64, blob, &size, &taken),
             PST_TOO_LARGE);
    CHECK_EQ(size, 10);
    CHECK_EQ(pst_list_clear(t, &l), PST_OK);
    l.end = 5;
    CHECK_EQ(pst_list_append(t, &plain, &l, &(pst_item){&value, 8, 0}), PST_OK);
    size = sizeof blob;
    CHECK_EQ(pst_list_pack(t->heap, heap_bytes(t), &plain, &l, 0, 64, blob, &size, &taken), PST_OK);
    CHECK_EQ(pst_packed_open(&p, &timed, (pst_bytes){blob, (uint32_t)size}), PST_OK);
    CHECK_EQ(pst_packed_next(&p, &item), PST_OK);
    CHECK(item.time == 0 && memcmp(item.data, &value, 8) == 0);
    size = sizeof blob;
    CHECK_EQ(pst_list_pack(t->heap, heap_bytes(t), &plain, &none, 0, 64, blob, &size, &taken),
             PST_OK);
    CHECK(size == 1 && taken == 0);
    CHECK_EQ(pst_packed_open(&p, &timed, (pst_bytes){blob, 1}), PST_OK);
    CHECK_EQ(pst_packed_next(&p, &item), PST_NOT_FOUND);
    uint64_t field[PST_LIST_WORDS];
    pst_list_store(field, &l);
    none = pst_list_load(field);
    CHECK(memcmp(&none, &l, sizeof l) == 0);
    pst_table_close(t);
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 600;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    pst_list_shape shapes[] = {{.width = 8},
                               {.width = 8, .timed = 1},
                               {.width = 1},
                               {.width = 2},
                               {.width = 4, .timed = 1},
                               {.width = 16},
                               {.width = 24},
                               {.width = 256, .timed = 1},
                               {.width = 0},
                               {.width = 0, .timed = 1}};
    for (uint64_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        test_random(shapes[i], steps, seed + i);
        test_damage(shapes[i], seed + i, steps);
    }
    test_damaged_blobs(seed);
    test_append_packed(seed);
    test_packed_edges();
    test_reuse();
    test_cost();
    test_limit();
    return check_report();
}
