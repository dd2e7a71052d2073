/* How fast keys are hashed and files written, read and merged by one core, from and to memory,
 * without compression. MB are 10^6 bytes of raw state: keys and changed columns. Prints medians;
 * asserts nothing about time. */
#include "files.h"

#include <time.h>

enum { ROWS = 300000, ROUNDS = 7 };

/* Processor time: the figures are per core, and other work on the machine is not ours. */
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *seconds) {
    qsort(seconds, ROUNDS, sizeof *seconds, by_value);
    return seconds[ROUNDS / 2];
}

/* A pst_record is large; the rows at hand keep what the schema needs. */
typedef struct small_row {
    uint64_t hash;
    uint64_t key;
    uint64_t values[6];
    uint32_t text;
} small_row;

static int by_order(const void *a, const void *b) {
    const small_row *x = a, *y = b;
    int32_t i = pst_key_group(x->hash, 128), j = pst_key_group(y->hash, 128);
    if (i != j)
        return i < j ? -1 : 1;
    return (x->hash > y->hash) - (x->hash < y->hash);
}

typedef struct workload {
    const char *name;
    int strings;      /* a string key and a string state beside the longs */
    uint64_t changed; /* 0: one random column per row */
} workload;

static uint8_t text[4096];

static void fill(const workload *w, const small_row *row, pst_record *r) {
    r->hash = row->hash;
    r->key_group = pst_key_group(row->hash, 128);
    r->changed = r->present = w->changed ? w->changed : UINT64_C(1) << (row->key % 6);
    if (w->strings) {
        r->key[0].bytes = (pst_bytes){(const uint8_t *)&row->key, 12 + row->text % 13};
        r->cells[6].bytes = (pst_bytes){text + row->text % 2000, row->text % 40};
    } else {
        r->key[0].word[0] = row->key;
    }
    for (int i = 0; i < 6; i++)
        r->cells[i].word[0] = row->values[i];
}

static uint64_t row_bytes(const workload *w, const small_row *row) {
    uint64_t states = w->changed ? (uint64_t)__builtin_popcountll(w->changed & 63) : 1;
    return w->strings ? 12 + row->text % 13 + row->text % 40 + 8 * states : 8 + 8 * states;
}

static void run(const workload *w) {
    uint64_t rng = 1, raw = 0;
    random_schema s;
    schema_add(&s, 0, w->strings ? PST_STRING : PST_INT64, 0);
    for (int i = 1; i <= 6; i++)
        schema_add(&s, i, PST_INT64, 0);
    schema_add(&s, 7, PST_STRING, 0);
    schema_done(&s, 1, w->strings ? 7 : 6);
    small_row *rows = malloc(ROWS * sizeof *rows);
    REQUIRE(rows);
    pst_record r;
    memset(&r, 0, sizeof r);
    r.op = PST_PUT;
    for (size_t i = 0; i < ROWS; i++) {
        rows[i].key = check_random(&rng);
        rows[i].text = (uint32_t)check_random(&rng);
        for (int k = 0; k < 6; k++)
            rows[i].values[k] = check_random(&rng);
        fill(w, &rows[i], &r);
        rows[i].hash = pst_hash_key(s.schema.keys, 1, r.key, 0);
        raw += row_bytes(w, &rows[i]);
    }
    qsort(rows, ROWS, sizeof *rows, by_order);
    row_style style = {.max_parallelism = 128, .last_key_group = 127};
    memory_file f = {0}, g = {0};
    pst_io io = file_io(&f, 0), out = file_io(&g, 0);
    pst_file_info info = {0};
    double writing[ROUNDS], reading[ROUNDS], merging[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        f.size = 0;
        info = info_of(PST_DELTA, &style, 1);
        pst_sst_writer *writer = NULL;
        int failures = 0;
        double t = now();
        REQUIRE(pst_sst_writer_create(&s.schema, &info, &io, &writer) == PST_OK);
        for (size_t i = 0; i < ROWS; i++) {
            fill(w, &rows[i], &r);
            failures += pst_sst_writer_add(writer, &r) != PST_OK;
        }
        REQUIRE(pst_sst_writer_finish(writer, &info) == PST_OK);
        pst_sst_writer_destroy(writer);
        writing[round] = now() - t;
        REQUIRE(failures == 0);

        pst_sst_reader *reader = NULL;
        uint64_t sum = 0;
        t = now();
        REQUIRE(pst_sst_reader_open(&io, f.size, &reader, NULL) == PST_OK);
        while (!pst_sst_reader_next(reader, &r))
            sum += r.hash;
        reading[round] = now() - t;
        REQUIRE(sum != 0);

        pst_sst_reader *other = NULL;
        REQUIRE(pst_sst_reader_open(&io, f.size, &other, NULL) == PST_OK);
        pst_sst_reader *both[2] = {reader, other};
        g.size = 0;
        info = info_of(PST_BASE, &style, 2);
        t = now();
        REQUIRE(pst_sst_writer_create(&s.schema, &info, &out, &writer) == PST_OK);
        REQUIRE(pst_merge(both, NULL, 2, writer) == PST_OK);
        REQUIRE(pst_sst_writer_finish(writer, &info) == PST_OK);
        pst_sst_writer_destroy(writer);
        merging[round] = now() - t;
        pst_sst_reader_close(reader);
        pst_sst_reader_close(other);
    }
    double mb = (double)raw / 1e6, wt = median(writing), rt = median(reading), mt = median(merging);
    printf("%-28s write %6.0f MB/s %5.1f ns/row   read %6.0f MB/s %5.1f ns/row   "
           "merge of 2 %6.0f MB/s in   raw/changed %.3f   file/changed %.3f\n",
           w->name, mb / wt, wt / (double)ROWS * 1e9, mb / rt, rt / (double)ROWS * 1e9, 2 * mb / mt,
           (double)info.raw_bytes / (double)raw, (double)f.size / (double)raw);
    file_free(&f);
    file_free(&g);
    free(rows);
}

static void bench_hash(const char *name, pst_type type, const uint8_t *validity) {
    enum { N = 1 << 16 };
    int64_t *values = malloc(N * sizeof *values);
    uint64_t *hash = malloc(N * sizeof *hash);
    double seconds[ROUNDS];
    uint64_t rng = 1;
    REQUIRE(values && hash);
    for (size_t i = 0; i < N; i++)
        values[i] = (int64_t)check_random(&rng);
    pst_array a = {type, N, 0, validity, values, NULL};
    for (int round = 0; round < ROUNDS; round++) {
        double t = now();
        for (int i = 0; i < 50; i++)
            pst_hash(&a, NULL, 1, hash);
        seconds[round] = now() - t;
    }
    printf("hash of %-20s %.2f ns/row\n", name, median(seconds) / 50 / (double)N * 1e9);
    free(values);
    free(hash);
}

int main(void) {
    static uint8_t validity[8192];
    uint64_t rng = 2;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (uint8_t)('a' + check_random(&rng) % 26);
    for (size_t i = 0; i < sizeof validity; i++)
        validity[i] = (uint8_t)check_random(&rng);
    bench_hash("long", PST_INT64, NULL);
    bench_hash("long with nulls", PST_INT64, validity);
    bench_hash("double", PST_FLOAT64, NULL);
    bench_hash("int", PST_INT32, NULL);
    static const workload workloads[] = {
        {"long key, all of 6 longs", 0, 63},
        {"long key, one of 6 longs", 0, 8},
        {"long key, any one of 6", 0, 0},
        {"string key, 2 longs, string", 1, 64 | 3},
    };
    for (size_t i = 0; i < sizeof workloads / sizeof *workloads; i++)
        run(&workloads[i]);
    return 0;
}
