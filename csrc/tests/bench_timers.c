/* Timers of rows below a table: all of them become due, at times that are spread or at a single one, and
 * are handed out and fired batch by batch; where rows do not fit, a step is sealed, and rows leave.
 *
 *   bench_timers [keys] [limit in MB] [times] [timers of a key] [folder]
 */
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "files.h"
#include "stack/stack.h"

enum { GROUPS = 128, MOST_FILES = 12, BLOCK = 4096, PART = 100000 };

typedef struct bench {
    pst_schema schema;
    pst_schema *in_files;
    pst_table *t;
    pst_stack *stack;
    pst_reads *reads;
    const char *folder;
    uint64_t numbers[MOST_FILES]; /* of files, oldest first */
    int n;
    uint64_t next;
    int64_t keys;
    int64_t times;
    int64_t each;
    uint64_t steps;
    uint64_t left;
    double leaving;
} bench;

static void must(pst_status s, const char *what) {
    if (!s)
        return;
    fprintf(stderr, "%s: %s\n", what, pst_status_name(s));
    exit(1);
}

static double seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void path_of(const bench *b, uint64_t number, char path[256]) {
    snprintf(path, 256, "%s/bench_timers_%d_%" PRIu64 ".sst", b->folder, (int)getpid(), number);
}

static int write_out(void *ctx, const void *data, size_t size) {
    return fwrite(data, 1, size, ctx) != size;
}

static int read_in(void *ctx, uint64_t offset, void *data, size_t size) {
    return pread(fileno(ctx), data, size, (off_t)offset) != (ssize_t)size;
}

static int compress(void *ctx, const void *src, size_t size, void *dst, size_t *dst_size) {
    (void)ctx;
    *dst_size = lz4_pack(src, size, dst, *dst_size);
    return 0;
}

static int decompress(void *ctx, const void *src, size_t size, void *dst, size_t dst_size) {
    (void)ctx;
    return pst_sst_unpack(src, size, dst, dst_size) != size;
}

static pst_io open_file(const bench *b, uint64_t number, const char *mode) {
    char path[256];
    path_of(b, number, path);
    FILE *f = fopen(path, mode);
    if (!f)
        must(PST_IO, path);
    return (pst_io){f, write_out, read_in, compress, decompress, NULL, NULL};
}

/* All files from `from` on as one. */
static void merge(bench *b, int from) {
    pst_sst_reader *readers[MOST_FILES];
    const int32_t *mapping[MOST_FILES] = {NULL};
    pst_io in[MOST_FILES];
    uint64_t number = ++b->next;
    pst_io io = open_file(b, number, "wb");
    pst_file_info info = {.kind = from ? PST_DELTA : PST_BASE,
                          .max_parallelism = GROUPS,
                          .last_key_group = GROUPS - 1,
                          .block_bytes = BLOCK};
    info.lineage.id[0] = 1;
    for (int i = from; i < b->n; i++) {
        in[i] = open_file(b, b->numbers[i], "rb");
        fseek(in[i].ctx, 0, SEEK_END);
        must(pst_sst_reader_open(&in[i], (uint64_t)ftell(in[i].ctx), &readers[i], NULL), "open");
    }
    must(file_merge(b->in_files, &info, readers + from, mapping, b->n - from, &io), "merge");
    for (int i = from; i < b->n; i++) {
        char path[256];
        pst_sst_reader_close(readers[i]);
        fclose(in[i].ctx);
        path_of(b, b->numbers[i], path);
        unlink(path);
    }
    fclose(io.ctx);
    b->numbers[from] = number;
    b->n = from + 1;
}

static void set_stack(bench *b) {
    char paths[MOST_FILES][256];
    pst_stack_file files[MOST_FILES] = {{0}};
    pst_stack_options o = {.reads = b->reads};
    pst_stack *old = b->stack;
    for (int i = 0; i < b->n; i++) {
        path_of(b, b->numbers[i], paths[i]);
        files[i].path = paths[i];
    }
    must(pst_stack_open(b->in_files, GROUPS, files, b->n, &o, &b->stack, NULL), "stack");
    pst_lineage lineage;
    must(pst_table_lineage(b->t, 0, &lineage), "lineage");
    must(pst_table_set_stack(b->t, b->stack, &lineage), "set stack");
    pst_stack_close(old);
}

/* Seals what has changed as a file above the others. */
static void seal(bench *b, pst_table *t) {
    pst_lineage l = {.epoch = ++b->next};
    pst_sealed *sealed = NULL;
    pst_file_info info = {.file_bytes = 0};
    memcpy(l.id, &b->next, sizeof b->next);
    must(pst_table_seal(t, &l, &sealed), "seal");
    if (pst_sealed_rows(sealed)) {
        pst_io io = open_file(b, b->next, "wb");
        pst_sealed_guide(sealed, BLOCK);
        must(pst_sealed_write(sealed, &io, &info), "write");
        fclose(io.ctx);
        b->numbers[b->n++] = b->next;
    }
    pst_sealed_destroy(sealed);
}

static void leave(bench *b) {
    pst_room all = {UINT64_MAX, 0}, left;
    double c = seconds(CLOCK_PROCESS_CPUTIME_ID);
    must(pst_table_leave(b->t, &all, &left), "leave");
    b->leaving += seconds(CLOCK_PROCESS_CPUTIME_ID) - c;
    b->left += left.rows;
}

static void step(bench *b) {
    seal(b, b->t);
    if (b->n == 9)
        merge(b, 1);
    set_stack(b);
    leave(b);
    b->steps++;
}

static pst_table *open_table(bench *b, uint64_t limit) {
    pst_table_options o = {
        .max_parallelism = GROUPS, .last_key_group = GROUPS - 1, .limit_bytes = limit};
    pst_table *t;
    must(pst_table_open(&b->schema, &o, &t, NULL, NULL), "table");
    return t;
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
    b->t = open_table(b, (uint64_t)1 << 35);
    fill(b, b->t);
    seal(b, b->t);
    merge(b, 0);
    set_stack(b);
    must(pst_table_set_horizon(b->t, PST_EVENT, -1), "horizon");
    leave(b);
    printf("%" PRIu64 " rows with %" PRId64 " timers left: %.2f s, %.0f ns a row\n", b->left,
           b->each, b->leaving, b->leaving / (double)b->left * 1e9);
    pst_table_close(b->t);
}

static void run_due(bench *b, uint64_t limit) {
    pst_lineage l = {.epoch = 1};
    uint64_t fired = 0, calls = 0;
    int idle = 0;
    b->t = open_table(b, limit);
    must(pst_table_seal(b->t, &l, NULL), "seal");
    pst_table_set_whole(b->t, 0);
    set_stack(b);
    b->left = 0;
    b->leaving = 0;
    double w = seconds(CLOCK_MONOTONIC), c = seconds(CLOCK_PROCESS_CPUTIME_ID);
    for (int64_t until = 0;;) {
        pst_batch *batch;
        pst_status s = pst_timers_due(b->t, PST_EVENT, until, PART, times, &batch);
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
        if (!pst_timers_due(b->t, PST_EVENT, b->times + 1000 * b->each, PART, times, &batch))
            pst_batch_destroy(batch);
        (void)pst_timer_next(b->t, PST_EVENT, &next);
    }
    printf("asked in vain: %.1f us\n", (seconds(CLOCK_MONOTONIC) - w) * 1e3);
    pst_table_close(b->t);
}

int main(int argc, char **argv) {
    pst_column key = {.name = "k", .type = PST_INT64};
    pst_column states[] = {{.name = "a", .type = PST_INT64},
                           {.name = "#timers", .type = PST_INT32, .kind = PST_TIMERS},
                           {.name = "#timer", .type = PST_INT64, .kind = PST_TIMER}};
    bench b = {.schema = {1, 3, &key, states, 0}};
    b.keys = argc > 1 ? atoll(argv[1]) : 500000;
    uint64_t limit = (argc > 2 ? strtoull(argv[2], NULL, 10) : 16) << 20;
    b.times = argc > 3 ? atoll(argv[3]) : 100000;
    b.each = argc > 4 ? atoll(argv[4]) : 1;
    b.folder = argc > 5 ? argv[5] : ".";
    must(pst_file_schema_create(&b.schema, &b.in_files), "schema");
    must(pst_reads_create(NULL, &b.reads), "reads");
    run_leave(&b);
    run_due(&b, limit);
    pst_stack_close(b.stack);
    pst_reads_release(b.reads);
    for (int i = 0; i < b.n; i++) {
        char path[256];
        path_of(&b, b.numbers[i], path);
        unlink(path);
    }
    pst_file_schema_destroy(b.in_files);
    return 0;
}
