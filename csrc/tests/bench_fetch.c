/* Keys of a table that is smaller than its state: each batch reads all of its keys and adds to half
 * of them; where rows do not fit, a step is sealed, and rows leave.
 *
 *   bench_fetch [keys] [limit in MB] [folder]
 */
#include "bench_files.h"

typedef struct bench {
    bench_files f;
    uint64_t random;
    int64_t keys;
    uint64_t steps;
    uint64_t cuts;
} bench;

/* ---- batches --------------------------------------------------------------------------------- */

static void show(const bench *b, const char *when) {
    pst_table_stats s;
    pst_resident r;
    if (!getenv("VERBOSE"))
        return;
    pst_table_get_stats(b->f.t, &s);
    pst_table_get_resident(b->f.t, &r);
    fprintf(stderr,
            "%s: keys %" PRIu64 " slots %" PRIu64 " rows %" PRIu64 "K index %" PRIu64
            "K blocks %" PRIu64 "K undo %" PRIu64 "K rings %" PRIu64 "K all %" PRIu64
            "K; free rows %" PRIu64 " index %" PRIu64 "K block %" PRIu64 "K free %" PRIu64 "K\n",
            when, s.keys, s.slots, s.row_bytes >> 10, s.index_bytes >> 10, s.block_bytes >> 10,
            s.undo_bytes >> 10, s.ring_bytes >> 10, s.committed_bytes >> 10, r.free_rows,
            r.index_bytes >> 10, r.block_bytes >> 10, r.free_block_bytes >> 10);
}

static void step(bench *b, uint64_t keys) {
    uint64_t fits;
    pst_room leave, left;
    show(b, "before");
    bench_seal(&b->f, b->f.t);
    if (b->f.n == 9)
        bench_merge(&b->f, 1);
    bench_set_stack(&b->f);
    must(pst_table_room(b->f.t, keys, &fits, &leave), "room");
    if (fits < keys)
        must(pst_table_leave(b->f.t, &leave, &left), "leave");
    if (getenv("VERBOSE"))
        fprintf(stderr,
                "step: %" PRIu64 " of %" PRIu64 " fit, leave %" PRIu64 ", left %" PRIu64 "\n", fits,
                keys, leave.rows, fits < keys ? left.rows : 0);
    b->steps++;
    show(b, "after");
}

static pst_status try_keys(bench *b, const int64_t *keys, int64_t n, int64_t *values,
                           uint8_t *valid, const uint8_t *half, const int64_t *ones) {
    pst_array k = {.type = PST_INT64, .length = n, .values = keys};
    pst_array v = {.type = PST_INT64, .length = n, .validity = half, .values = ones};
    pst_batch *batch;
    must(pst_batch_create(b->f.t, &k, &batch), "batch");
    pst_status s = pst_batch_get(batch, 0, values, valid);
    if (!s)
        must(pst_batch_apply(batch, 1, PST_ADD, &v), "apply");
    else if (s != PST_NO_ROOM)
        must(s, "get");
    pst_batch_destroy(batch);
    return s;
}

/* Parts are as large as the one that fitted last, and a little more. */
static void run_batch(bench *b, int64_t *keys, int64_t n, int64_t *values, uint8_t *valid,
                      const uint8_t *half, const int64_t *ones) {
    int64_t part = n;
    while (n > 0) {
        if (part > n)
            part = n;
        pst_status s = try_keys(b, keys, part, values, valid, half, ones);
        if (s) {
            b->cuts++;
            step(b, (uint64_t)part);
            s = try_keys(b, keys, part, values, valid, half, ones);
        }
        for (; s; s = try_keys(b, keys, part, values, valid, half, ones)) {
            part = pst_table_detail(b->f.t)->row;
            show(b, "again");
            if (!part)
                must(s, "not a single row");
        }
        n -= part;
        keys += part;
        part += part / 8;
    }
}

static void run_size(bench *b, int64_t n, int batches) {
    int64_t *keys = malloc((size_t)n * 8), *values = malloc((size_t)n * 8);
    int64_t *ones = malloc((size_t)n * 8);
    uint8_t *valid = malloc((size_t)n), *half = malloc((size_t)n / 8 + 1);
    REQUIRE(keys && values && ones && valid && half);
    memset(half, 0x55, (size_t)n / 8 + 1);
    for (int64_t i = 0; i < n; i++)
        ones[i] = 1;
    double wall = 0, cpu = 0;
    int warm = n >= 1000000 ? 1 : 3;
    b->steps = b->cuts = b->f.written = 0;
    for (int i = 0; i < warm + batches; i++) {
        for (int64_t k = 0; k < n; k++)
            keys[k] = (int64_t)(check_random(&b->random) % (uint64_t)b->keys) * 7;
        double w = seconds(CLOCK_MONOTONIC), c = seconds(CLOCK_PROCESS_CPUTIME_ID);
        run_batch(b, keys, n, values, valid, half, ones);
        if (i < warm)
            continue;
        wall += seconds(CLOCK_MONOTONIC) - w;
        cpu += seconds(CLOCK_PROCESS_CPUTIME_ID) - c;
    }
    double all = (double)n * batches;
    printf("batches of %8" PRId64 ": %8.0f keys/s, %6.2f us of processor a key; %" PRIu64
           " steps, %" PRIu64 " cuts, %.1f MB written\n",
           n, all / wall, cpu / all * 1e6, b->steps, b->cuts, (double)b->f.written / 1e6);
    free(keys);
    free(values);
    free(ones);
    free(valid);
    free(half);
}

/* ---- the state ------------------------------------------------------------------------------- */

static void make_base(bench *b) {
    enum { PART = 1 << 16 };
    static int64_t keys[PART], values[PART];
    pst_table *t = bench_open(&b->f, (uint64_t)1 << 34);
    for (int64_t from = 0; from < b->keys; from += PART) {
        int64_t n = b->keys - from < PART ? b->keys - from : PART;
        pst_batch *batch;
        for (int64_t i = 0; i < n; i++) {
            keys[i] = (from + i) * 7;
            values[i] = from + i;
        }
        pst_array k = {.type = PST_INT64, .length = n, .values = keys};
        pst_array v = {.type = PST_INT64, .length = n, .values = values};
        must(pst_batch_create(t, &k, &batch), "batch");
        must(pst_batch_put(batch, 0, &v), "put");
        must(pst_batch_put(batch, 1, &v), "put");
        pst_batch_destroy(batch);
    }
    bench_seal(&b->f, t);
    pst_table_close(t);
    bench_merge(&b->f, 0);
    printf("%" PRId64 " keys, a file of %.1f MB\n", b->keys, (double)b->f.written / 2e6);
}

/* All keys of the batches are here: what does it cost that they might not be? */
static double resident(bench *b, int whole) {
    enum { KEYS = 300000, N = 100000, TIMES = 20 };
    static int64_t keys[KEYS], ones[KEYS];
    pst_table *t = bench_open(&b->f, (uint64_t)1 << 30);
    pst_lineage l = {.epoch = 1};
    double best = 1e9;
    for (int i = 0; i < KEYS; i++) {
        keys[i] = i * 7;
        ones[i] = 1;
    }
    for (int i = -1; i < TIMES; i++) {
        pst_array k = {.type = PST_INT64, .length = i < 0 ? KEYS : N, .values = keys};
        pst_array v = {.type = PST_INT64, .length = k.length, .values = ones};
        pst_batch *batch;
        for (int j = 0; i >= 0 && j < N; j++)
            keys[j] = (int64_t)(check_random(&b->random) % KEYS) * 7;
        double c = seconds(CLOCK_THREAD_CPUTIME_ID);
        must(pst_batch_create(t, &k, &batch), "batch");
        must(pst_batch_apply(batch, 0, PST_ADD, &v), "apply");
        must(pst_batch_apply(batch, 1, PST_ADD, &v), "apply");
        pst_batch_destroy(batch);
        l.id[0]++;
        pst_sealed *sealed = NULL;
        must(pst_table_seal(t, &l, &sealed), "seal");
        pst_sealed_destroy(sealed);
        c = seconds(CLOCK_THREAD_CPUTIME_ID) - c;
        if (i > 4 && c < best)
            best = c;
        if (i < 0 && !whole)
            pst_table_set_whole(t, 0);
    }
    pst_table_close(t);
    return best / N * 1e9;
}

int main(int argc, char **argv) {
    pst_column key = {.name = "k", .type = PST_INT64};
    pst_column states[] = {{.name = "a", .type = PST_INT64}, {.name = "b", .type = PST_INT64}};
    bench b = {.f.schema = {1, 2, &key, states, 0}, .random = 7};
    b.keys = argc > 1 ? atoll(argv[1]) : 2000000;
    uint64_t limit = (argc > 2 ? strtoull(argv[2], NULL, 10) : 32) << 20;
    b.f.folder = argc > 3 ? argv[3] : ".";
    must(pst_file_schema_create(&b.f.schema, &b.f.in_files), "schema");
    must(pst_reads_create(NULL, &b.f.reads), "reads");
    double all = resident(&b, 1), here = resident(&b, 0);
    printf("all rows here, two sums: %.1f ns a key of a whole table, %.1f else: %.2f of the rate\n",
           all, here, all / here);
    make_base(&b);
    b.f.t = bench_open(&b.f, limit);
    pst_lineage l = {.epoch = 1};
    must(pst_table_seal(b.f.t, &l, NULL), "seal");
    pst_table_set_whole(b.f.t, 0);
    bench_set_stack(&b.f);
    run_size(&b, 1000, 100);
    run_size(&b, 100000, 8);
    run_size(&b, 1000000, 3);
    bench_close(&b.f);
    return 0;
}
