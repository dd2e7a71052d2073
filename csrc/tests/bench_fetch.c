/* Keys of a table that is smaller than its state: each batch reads all of its keys and adds to half
 * of them; where rows do not fit, a step is sealed, and rows leave.
 *
 *   bench_fetch [keys] [limit in MB] [folder]
 */
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "files.h"
#include "stack/stack.h"

enum { GROUPS = 128, MOST_FILES = 12, BLOCK = 4096 };

typedef struct bench {
    pst_schema schema;
    pst_schema *in_files;
    pst_table *t;
    pst_stack *stack;
    pst_reads *reads;
    const char *folder;
    uint64_t numbers[MOST_FILES]; /* of files, oldest first */
    uint64_t deltas;              /* bytes of all but the first */
    int n;
    uint64_t next;
    uint64_t random;
    int64_t keys;
    uint64_t steps;
    uint64_t cuts;
    uint64_t written;
    pst_io io; /* of the file that is written */
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

/* ---- files ----------------------------------------------------------------------------------- */

static void path_of(const bench *b, uint64_t number, char path[256]) {
    snprintf(path, 256, "%s/bench_fetch_%d_%" PRIu64 ".sst", b->folder, (int)getpid(), number);
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
    b->deltas = from ? info.file_bytes : 0;
    b->written += info.file_bytes;
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
        b->deltas += info.file_bytes;
        b->written += info.file_bytes;
    }
    pst_sealed_destroy(sealed);
}

/* ---- batches --------------------------------------------------------------------------------- */

static void show(const bench *b, const char *when) {
    pst_table_stats s;
    pst_resident r;
    if (!getenv("VERBOSE"))
        return;
    pst_table_get_stats(b->t, &s);
    pst_table_get_resident(b->t, &r);
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
    seal(b, b->t);
    if (b->n == 9)
        merge(b, 1);
    set_stack(b);
    must(pst_table_room(b->t, keys, &fits, &leave), "room");
    if (fits < keys)
        must(pst_table_leave(b->t, &leave, &left), "leave");
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
    must(pst_batch_create(b->t, &k, &batch), "batch");
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
            part = pst_table_detail(b->t)->row;
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
    b->steps = b->cuts = b->written = 0;
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
           n, all / wall, cpu / all * 1e6, b->steps, b->cuts, (double)b->written / 1e6);
    free(keys);
    free(values);
    free(ones);
    free(valid);
    free(half);
}

/* ---- the state ------------------------------------------------------------------------------- */

static pst_table *open_table(bench *b, uint64_t limit) {
    pst_table_options o = {
        .max_parallelism = GROUPS, .last_key_group = GROUPS - 1, .limit_bytes = limit};
    pst_table *t;
    must(pst_table_open(&b->schema, &o, &t, NULL, NULL), "table");
    return t;
}

static void make_base(bench *b) {
    enum { PART = 1 << 16 };
    static int64_t keys[PART], values[PART];
    pst_table *t = open_table(b, (uint64_t)1 << 34);
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
    seal(b, t);
    pst_table_close(t);
    merge(b, 0);
    printf("%" PRId64 " keys, a file of %.1f MB\n", b->keys, (double)b->written / 2e6);
}

/* All keys of the batches are here: what does it cost that they might not be? */
static double resident(bench *b, int whole) {
    enum { KEYS = 300000, N = 100000, TIMES = 20 };
    static int64_t keys[KEYS], ones[KEYS];
    pst_table *t = open_table(b, (uint64_t)1 << 30);
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
    bench b = {.schema = {1, 2, &key, states, 0}, .random = 7};
    b.keys = argc > 1 ? atoll(argv[1]) : 2000000;
    uint64_t limit = (argc > 2 ? strtoull(argv[2], NULL, 10) : 32) << 20;
    b.folder = argc > 3 ? argv[3] : ".";
    must(pst_file_schema_create(&b.schema, &b.in_files), "schema");
    must(pst_reads_create(NULL, &b.reads), "reads");
    double all = resident(&b, 1), here = resident(&b, 0);
    printf("all rows here, two sums: %.1f ns a key of a whole table, %.1f else: %.2f of the rate\n",
           all, here, all / here);
    make_base(&b);
    b.t = open_table(&b, limit);
    pst_lineage l = {.epoch = 1};
    must(pst_table_seal(b.t, &l, NULL), "seal");
    pst_table_set_whole(b.t, 0);
    set_stack(&b);
    run_size(&b, 1000, 100);
    run_size(&b, 100000, 8);
    run_size(&b, 1000000, 3);
    pst_table_close(b.t);
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
