/* Timers of rows below a table: all of them become due, at times that are spread or at a single one, and
 * are handed out and fired batch by batch; where rows do not fit, a step is sealed, and rows leave.
 *
 *   bench_timers [keys] [limit in MB] [times] [timers of a key] [folder]
 */
#include "bench_files.h"

enum { PART = 100000 };

typedef struct bench {
    bench_files f;
    int64_t keys;
    int64_t times;
    int64_t each;
    uint64_t steps;
    uint64_t left;
    double leaving;
} bench;

static void leave(bench *b) {
    pst_room all = {UINT64_MAX, 0}, left;
    double c = seconds(CLOCK_PROCESS_CPUTIME_ID);
    must(pst_table_leave(b->f.t, &all, &left), "leave");
    b->leaving += seconds(CLOCK_PROCESS_CPUTIME_ID) - c;
    b->left += left.rows;
}

static void step(bench *b) {
    bench_seal(&b->f, b->f.t);
    if (b->f.n == 9)
        bench_merge(&b->f, 1);
    bench_set_stack(&b->f);
    leave(b);
    b->steps++;
}

static int64_t keys[PART], values[PART], times[PART];

/* All keys with their timers, in the table. */
static void fill(bench *b, pst_table *t) {
    for (int64_t from = 0; from < b->keys; from += PART) {
        int64_t n = b->keys - from < PART ? b->keys - from : PART;
        pst_batch *batch;
        for (int64_t i = 0; i < n; i++)
            keys[i] = values[i] = from + i;
        pst_array k = {.type = PST_INT64, .length = n, .values = keys};
        pst_array v = {.type = PST_INT64, .length = n, .values = values};
        pst_array w = {.type = PST_INT64, .length = n, .values = times};
        must(pst_batch_create(t, &k, &batch), "batch");
        must(pst_batch_put(batch, 0, &v), "put");
        for (int64_t e = 0; e < b->each; e++) {
            for (int64_t i = 0; i < n; i++)
                times[i] = 1000 * e + (int64_t)((uint64_t)(keys[i] * 7919) % (uint64_t)b->times);
            must(pst_batch_timer_register(batch, PST_EVENT, &w), "register");
        }
        pst_batch_destroy(batch);
    }
}

/* Rows with several timers leave, all at once. */
static void run_leave(bench *b) {
    b->f.t = bench_open(&b->f, (uint64_t)1 << 35);
    fill(b, b->f.t);
    bench_seal(&b->f, b->f.t);
    bench_merge(&b->f, 0);
    bench_set_stack(&b->f);
    must(pst_table_set_horizon(b->f.t, PST_EVENT, -1), "horizon");
    leave(b);
    printf("%" PRIu64 " rows with %" PRId64 " timers left: %.2f s, %.0f ns a row\n", b->left,
           b->each, b->leaving, b->leaving / (double)b->left * 1e9);
    pst_table_close(b->f.t);
}

static void run_due(bench *b, uint64_t limit) {
    pst_lineage l = {.epoch = 1};
    uint64_t fired = 0, calls = 0;
    int idle = 0;
    b->f.t = bench_open(&b->f, limit);
    must(pst_table_seal(b->f.t, &l, NULL), "seal");
    pst_table_set_whole(b->f.t, 0);
    bench_set_stack(&b->f);
    b->left = 0;
    b->leaving = 0;
    double w = seconds(CLOCK_MONOTONIC), c = seconds(CLOCK_PROCESS_CPUTIME_ID);
    for (int64_t until = 0;;) {
        pst_batch *batch;
        pst_status s = pst_timers_due(b->f.t, PST_EVENT, until, PART, times, &batch);
        calls++;
        if (s == PST_NO_ROOM && idle++ < 2) {
            step(b);
            continue;
        }
        if (s == PST_NOT_FOUND) {
            if (until == b->times + 1000 * b->each)
                break;
            until += b->times / 200 + 1;
            if (until > b->times + 1000 * b->each)
                until = b->times + 1000 * b->each;
            continue;
        }
        must(s, "due");
        idle = 0;
        fired += (uint64_t)pst_batch_length(batch);
        must(pst_timers_fire_all(batch, PST_EVENT, times), "fire");
        pst_batch_destroy(batch);
    }
    w = seconds(CLOCK_MONOTONIC) - w;
    c = seconds(CLOCK_PROCESS_CPUTIME_ID) - c;
    printf("%" PRIu64 " timers fired in %" PRIu64
           " calls: %.2f s, %.2f of processor, %.0f ns each, of "
           "which leaving %.0f; %" PRIu64 " steps\n",
           fired, calls, w, c, c / (double)fired * 1e9, b->leaving / (double)fired * 1e9, b->steps);
    /* Nothing is due, asked often. */
    int64_t next;
    w = seconds(CLOCK_MONOTONIC);
    for (int i = 0; i < 1000; i++) {
        pst_batch *batch;
        if (!pst_timers_due(b->f.t, PST_EVENT, b->times + 1000 * b->each, PART, times, &batch))
            pst_batch_destroy(batch);
        (void)pst_timer_next(b->f.t, PST_EVENT, &next);
    }
    printf("asked in vain: %.1f us\n", (seconds(CLOCK_MONOTONIC) - w) * 1e3);
}

int main(int argc, char **argv) {
    pst_column key = {.name = "k", .type = PST_INT64};
    pst_column states[] = {{.name = "a", .type = PST_INT64},
                           {.name = "#timers", .type = PST_INT32, .kind = PST_TIMERS},
                           {.name = "#timer", .type = PST_INT64, .kind = PST_TIMER}};
    bench b = {.f.schema = {1, 3, &key, states, 0}};
    b.keys = argc > 1 ? atoll(argv[1]) : 500000;
    uint64_t limit = (argc > 2 ? strtoull(argv[2], NULL, 10) : 16) << 20;
    b.times = argc > 3 ? atoll(argv[3]) : 100000;
    b.each = argc > 4 ? atoll(argv[4]) : 1;
    b.f.folder = argc > 5 ? argv[5] : ".";
    must(pst_file_schema_create(&b.f.schema, &b.f.in_files), "schema");
    must(pst_reads_create(NULL, &b.f.reads), "reads");
    run_leave(&b);
    run_due(&b, limit);
    bench_close(&b.f);
    return 0;
}
