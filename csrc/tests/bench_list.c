/* What an append to a list and a read of one cost on one core: one long list, and many lists that
 * do not fit the cache, in an order that it cannot foresee. Prints medians; asserts nothing. */
#include <time.h>

#include "check.h"
#include "list/list.h"
#include "memory/handle.h"

enum { ROUNDS = 5, LONG = 1000000, MANY = 200000, EACH = 20, AHEAD = 16 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *ns) {
    qsort(ns, ROUNDS, sizeof *ns, by_value);
    return ns[ROUNDS / 2];
}

static pst_table *make_table(void) {
    static const pst_column column[] = {{.name = "k", .type = PST_INT64}};
    pst_schema s = {1, 1, column, column};
    pst_table_options o = {.max_parallelism = 1};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(&s, &o, &t, NULL, NULL) == PST_OK);
    return t;
}

static void bench_one(const char *name, pst_list_shape s, uint32_t size, uint64_t from) {
    double ns[ROUNDS];
    static const uint8_t data[256] = {1};
    for (int r = 0; r < ROUNDS; r++) {
        pst_table *t = make_table();
        pst_list l = {0};
        pst_item item = {data, size, 0};
        for (uint64_t i = 0; i < from; i++)
            REQUIRE(pst_list_append(t, &s, &l, &item) == PST_OK);
        unsigned bad = 0;
        double start = now();
        for (uint64_t i = 0; i < 1000; i++)
            bad |= pst_list_append(t, &s, &l, &item);
        ns[r] = (now() - start) / 1000;
        CHECK(!bad);
        pst_table_close(t);
    }
    printf("%-34s after %7d: %5.1f ns an append\n", name, (int)from, median(ns));
}

static void bench_many(pst_list_shape s, int ahead) {
    double put[ROUNDS], get[ROUNDS];
    static pst_list lists[MANY];
    static uint64_t out[EACH];
    for (int r = 0; r < ROUNDS; r++) {
        pst_table *t = make_table();
        memset(lists, 0, sizeof lists);
        uint64_t random = 1, next[AHEAD];
        unsigned bad = 0;
        for (int i = 0; i < AHEAD; i++)
            next[i] = check_random(&random) % MANY;
        double start = now();
        for (uint64_t i = 0; i < (uint64_t)MANY * EACH; i++) {
            pst_item item = {&i, 8, 0};
            uint64_t which = next[i % AHEAD];
            next[i % AHEAD] = check_random(&random) % MANY;
            if (ahead) {
                __builtin_prefetch(&lists[next[i % AHEAD]], 1);
                uint64_t words[PST_LIST_WORDS];
                pst_list_store(words, &lists[next[(i + AHEAD / 2) % AHEAD]]);
                pst_list_prefetch(t->heap, words);
            }
            bad |= pst_list_append(t, &s, &lists[which], &item);
        }
        put[r] = (now() - start) / ((double)MANY * (double)EACH);
        uint64_t bytes = t->h->committed[PST_SPACE_HEAP], read = 0;
        start = now();
        for (int i = 0; i < MANY; i++) {
            pst_list *l = &lists[check_random(&random) % MANY];
            uint64_t n = pst_list_count(t->heap, bytes, l);
            if (n <= EACH)
                bad |= pst_list_copy(t->heap, bytes, &s, l, out, n * 8);
            read += n;
        }
        CHECK(!bad);
        get[r] = (now() - start) / (double)read;
        pst_table_close(t);
    }
    printf("%d lists, random order%s: %5.1f ns an append, %5.1f ns an item read\n", MANY,
           ahead ? ", prefetched" : "            ", median(put), median(get));
}

static void bench_read(pst_list_shape s, uint64_t n) {
    static uint64_t out[LONG];
    double ns[ROUNDS];
    pst_table *t = make_table();
    pst_list l = {0};
    for (uint64_t i = 0; i < n; i++)
        REQUIRE(!pst_list_append(t, &s, &l, &(pst_item){&i, 8, 0}));
    uint64_t bytes = t->h->committed[PST_SPACE_HEAP], times = LONG / n;
    for (int r = 0; r < ROUNDS; r++) {
        unsigned bad = 0;
        double start = now();
        for (uint64_t i = 0; i < times; i++)
            bad |= pst_list_copy(t->heap, bytes, &s, &l, out, n * 8);
        CHECK(!bad);
        ns[r] = (now() - start) / (double)times;
    }
    printf("copy of %7d longs             : %5.0f ns a list\n", (int)n, median(ns));
    pst_table_close(t);
}

int main(void) {
    pst_list_shape longs = {.width = 8}, timed = {.width = 8, .timed = 1}, text = {0};
    for (uint64_t from = 1000; from <= LONG; from *= 1000) {
        bench_one("one list of longs", longs, 8, from);
        bench_one("one list of timed longs", timed, 8, from);
        bench_one("one list of strings of 20 bytes", text, 20, from);
    }
    bench_many(longs, 0);
    bench_many(longs, 1);
    bench_read(longs, 100);
    bench_read(longs, LONG);
    return check_report();
}
