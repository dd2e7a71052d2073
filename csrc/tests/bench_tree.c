/* What a tree costs: small maps in the cache, and one of a million entries. Prints ns per call and
 * asserts nothing.
 *
 *   bench_tree [millions of calls]
 */
#include <time.h>

#include "check.h"
#include "memory/alloc.h"
#include "memory/handle.h"
#include "memory/span.h"
#include "tree/tree.h"
#include "tree/tree_node.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static pst_table *make_table(void) {
    static const pst_column column[] = {{.name = "k", .type = PST_INT64}};
    pst_schema schema = {1, 1, column, column};
    pst_table_options o = {.max_parallelism = 1, .limit_bytes = (uint64_t)4 << 30};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(&schema, &o, &t, NULL, NULL) == PST_OK);
    return t;
}

static void seal(pst_table *t, uint64_t n) {
    pst_lineage l = {.epoch = n};
    REQUIRE(pst_table_seal(t, &l, NULL) == PST_OK);
}

/* `maps` maps of ten entries, visited in turn: 1 shows instructions, more what prediction and
 * caches add. */
static void bench_small(int maps, int64_t calls) {
    enum { MOST = 4096, ENTRIES = 10 };
    static pst_tree_root roots[MOST];
    static uint32_t which[MOST];
    static const pst_tree_shape s = {.key_words = 1, .value_words = 1};
    pst_table *t = make_table();
    pst_tree_entry e = {0};
    uint64_t value = 1, random = 1, sum = 0;
    e.value = &value;
    memset(roots, 0, sizeof roots);
    for (int m = 0; m < maps; m++)
        for (uint64_t k = 0; k < ENTRIES; k++) {
            e.key[0] = k * 17;
            REQUIRE(pst_tree_put(t, &s, &roots[m], &e) == PST_OK);
        }
    for (int i = 0; i < MOST; i++)
        which[i] = (uint32_t)(check_random(&random) % ENTRIES) * 17;
    uint64_t heap = t->h->committed[PST_SPACE_HEAP];
    double start = now();
    for (int64_t i = 0; i < calls; i++) {
        e.key[0] = which[i % MOST];
        (void)pst_tree_find(t->heap, heap, &s, roots[i % maps], &e);
        sum += *e.value;
    }
    double find = now() - start;
    e.value = &value;
    start = now();
    for (int64_t i = 0; i < calls; i++) {
        e.key[0] = which[i % MOST];
        value = (uint64_t)i;
        (void)pst_tree_put(t, &s, &roots[i % maps], &e);
    }
    double put = now() - start;
    start = now();
    for (int64_t i = 0; i < calls; i++) {
        e.key[0] = which[i % MOST];
        (void)pst_tree_remove(t, &s, &roots[i % maps], &e);
        (void)pst_tree_put(t, &s, &roots[i % maps], &e);
    }
    double both = now() - start;
    printf("%5d maps of %d: find %.1f, put %.1f, remove and put %.1f ns (%d)\n", maps, ENTRIES,
           find / (double)calls, put / (double)calls, both / (double)calls, (int)(sum & 1));
    pst_table_close(t);
}

static void bench_large(const char *name, const pst_tree_shape *s, uint64_t entries,
                        int64_t calls) {
    pst_table *t = make_table();
    pst_tree_root root = {0, 0};
    pst_tree_entry e = {0};
    uint64_t value[2] = {1, 1}, random = 1, sealed = 0, text[4] = {0};
    e.value = value;
    uint64_t before = pst_span_taken_bytes(t);
    double start = now();
    for (uint64_t i = 0; i < entries; i++) {
        uint64_t x = i;
        e.key[0] = text[0] = text[2] = check_random(&x);
        e.key_bytes =
            (pst_bytes){(const uint8_t *)text, s->key_is_ref ? 8 + (uint32_t)(i % 24) : 0};
        REQUIRE(pst_tree_put(t, s, &root, &e) == PST_OK);
    }
    double fill = (now() - start) / (double)entries;
    double bytes = (double)(pst_span_taken_bytes(t) - before) / (double)entries;
    double times[3];
    for (int what = 0; what < 3; what++) {
        uint64_t heap = t->h->committed[PST_SPACE_HEAP];
        seal(t, ++sealed);
        start = now();
        for (int64_t i = 0; i < calls; i++) {
            uint64_t k = check_random(&random) % entries, x = k;
            e.key[0] = text[0] = text[2] = check_random(&x);
            e.key_bytes =
                (pst_bytes){(const uint8_t *)text, s->key_is_ref ? 8 + (uint32_t)(k % 24) : 0};
            value[0] = (uint64_t)i;
            e.value = value;
            if (what == 0)
                (void)pst_tree_find(t->heap, heap, s, root, &e);
            else
                (void)pst_tree_put(t, s, &root, &e);
            if (what == 2 && i % 64 == 0)
                seal(t, ++sealed);
        }
        times[what] = (now() - start) / (double)calls;
    }
    start = now();
    pst_tree_cursor c;
    uint64_t n = 0;
    pst_tree_seek(&c, t->heap, t->h->committed[PST_SPACE_HEAP], s, root, NULL);
    while (pst_tree_next(&c, &e) == PST_OK)
        n++;
    double walk = (now() - start) / (double)n;
    printf("%s, %" PRIu64 " entries: fill %.0f, find %.0f, put %.0f, put with a seal each 64 %.0f, "
           "cursor %.1f ns; %.1f bytes an entry\n",
           name, entries, fill, times[0], times[1], times[2], walk, bytes);
    pst_table_close(t);
}

int main(int argc, char **argv) {
    int64_t calls = (argc > 1 ? atoll(argv[1]) : 2) * 1000000;
    bench_small(1, calls);
    bench_small(64, calls);
    bench_small(4096, calls);
    static const pst_tree_shape words = {.key_words = 1, .value_words = 1},
                                pairs = {.key_words = 2};
    static const pst_tree_shape texts = {.key_words = 2, .key_is_ref = 1, .value_words = 1};
    for (uint64_t entries = 1000; entries <= 1000000; entries *= 1000) {
        bench_large("word -> word", &words, entries, calls);
        bench_large("pair", &pairs, entries, calls);
        bench_large("bytes -> word", &texts, entries, calls);
    }
    return 0;
}
