/* Keys/s of look-ups in a base with some deltas, which have a seventh of its rows together, by the size
 * of the batch.
 *
 *   bench_stack [folder] [rows] [deltas] [threads: no io_uring] */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "key/hash.h"
#include "pystate.h"
#include "stack/search.h"

enum { GROUPS = 128, PIECE = 1 << 20 };

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t draw(uint64_t *state) {
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static void check(pst_status s, const char *what) {
    if (s) {
        fprintf(stderr, "%s: %s\n", what, pst_status_name(s));
        exit(1);
    }
}

/* ---- files ------------------------------------------------------------------------------------- */

static int append(void *ctx, const void *data, size_t size) {
    return fwrite(data, 1, size, ctx) != size;
}

static const pst_column COLUMNS[] = {{.name = "id", .type = PST_INT64},
                                     {.name = "count", .type = PST_INT64},
                                     {.name = "sum", .type = PST_INT64}};
static const pst_schema SCHEMA = {1, 2, COLUMNS, COLUMNS + 1, 0};

static int by_place(const void *a, const void *b) {
    const pst_place *x = a, *y = b;
    return pst_place_compare(x->key_group, x->hash, y->key_group, y->hash);
}

static pst_place place_of(uint64_t id, uint32_t key) {
    uint64_t hash = pst_hash_word(PST_INT64, id, PST_HASH_SEED);
    return (pst_place){hash, pst_key_group(hash, GROUPS), key};
}

/* A file of ids from..to, every `step`. */
static void write_file(const char *path, pst_file_kind kind, uint32_t rows, uint32_t step,
                       uint8_t id) {
    FILE *out = fopen(path, "wb");
    pst_place *places = malloc((size_t)rows / step * sizeof *places + sizeof *places);
    pst_record *r = calloc(1, sizeof *r);
    uint32_t n = 0;
    pst_sst_writer *w;
    pst_file_info info = {
        .kind = kind, .max_parallelism = GROUPS, .last_key_group = GROUPS - 1, .block_bytes = 4096};
    pst_io io = {.ctx = out, .write = append};
    memset(info.lineage.id, id, 16);
    for (uint32_t i = 0; i < rows; i += step, n++)
        places[n] = place_of(i, i);
    qsort(places, n, sizeof *places, by_place);
    check(pst_sst_writer_create(&SCHEMA, &info, &io, &w), "writer");
    r->op = PST_PUT;
    r->changed = r->present = 3;
    for (uint32_t i = 0; i < n; i++) {
        r->hash = places[i].hash;
        r->key_group = places[i].key_group;
        r->key[0].word[0] = places[i].key;
        r->cells[0].word[0] = places[i].key % 1000;
        r->cells[1].word[0] = places[i].key * UINT64_C(3);
        check(pst_sst_writer_add(w, r), "add");
    }
    check(pst_sst_writer_finish(w, &info), "finish");
    printf("%s: %" PRIu64 " rows, %.1f bytes each\n", kind == PST_BASE ? "base" : "delta",
           info.rows, (double)info.file_bytes / (double)info.rows);
    pst_sst_writer_destroy(w);
    fflush(out);
    fsync(fileno(out));
    fclose(out);
    free(places);
    free(r);
}

/* ---- batches ----------------------------------------------------------------------------------- */

typedef struct batch {
    const uint64_t *ids;
    uint64_t sum;
    uint32_t found;
    uint32_t done;
} batch;

static void key_of(void *ctx, uint32_t key, pst_cell *cells, uint32_t *nulls) {
    cells[0].word[0] = ((batch *)ctx)->ids[key];
    *nulls = 0;
}

static void ahead(void *ctx, uint32_t key) {
    __builtin_prefetch(&((batch *)ctx)->ids[key]);
}

static pst_status found(void *ctx, const pst_found *f) {
    batch *b = ctx;
    b->found++;
    b->sum += f->record->cells[1].word[0];
    return PST_OK;
}

static pst_status done(void *ctx, uint32_t key, int any) {
    batch *b = ctx;
    (void)key;
    b->done += any != 0;
    return PST_OK;
}

static int by_number(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void run(pst_stack *st, uint32_t n, uint32_t rows, uint32_t share, int batches) {
    uint64_t *ids = malloc(n * sizeof *ids), rng = n + share;
    pst_place *places = malloc(n * sizeof *places);
    double rate[64], cpu = 0;
    pst_stack_stats before, after;
    pst_stack_get_stats(st, &before);
    for (int i = 0; i < batches; i++) {
        batch b = {ids, 0, 0, 0};
        pst_seeker seeker = {&b, key_of, ahead, found, done};
        uint64_t sum = 0;
        for (uint32_t k = 0; k < n; k++) {
            ids[k] = draw(&rng) % ((uint64_t)rows * 100 / share);
            places[k] = place_of(ids[k], k);
            sum += ids[k] < rows ? ids[k] * 3 : 0;
        }
        qsort(places, n, sizeof *places, by_place);
        double t = now(CLOCK_MONOTONIC), c = now(CLOCK_PROCESS_CPUTIME_ID);
        check(pst_stack_search(st, places, n, &seeker), "search");
        rate[i] = n / (now(CLOCK_MONOTONIC) - t) / 1000;
        cpu += (now(CLOCK_PROCESS_CPUTIME_ID) - c) * 1e6 / n / batches;
        if (b.sum != sum || b.found != b.done) {
            fprintf(stderr, "wrong rows\n");
            exit(1);
        }
    }
    qsort(rate, (size_t)batches, sizeof *rate, by_number);
    pst_stack_get_stats(st, &after);
    double keys = (double)(after.keys - before.keys);
    printf(
        "%8u keys, %3u %% there: %6.0f k/s (best %5.0f), %.2f us of processor, %.3f reads, %.2f KB, "
        "%.3f blocks a key\n",
        n, share, rate[batches / 2], rate[batches - 1], cpu,
        (double)(after.reads - before.reads) / keys,
        (double)(after.bytes - before.bytes) / keys / 1024,
        (double)(after.blocks - before.blocks) / keys);
    free(ids);
    free(places);
}

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : "/tmp";
    uint32_t rows = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 2000000;
    int n = 1 + (argc > 3 ? atoi(argv[3]) : 3);
    char paths[49][300];
    pst_stack_file files[49];
    for (int i = 0; i < n && n < 49; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/bench_stack_%d", folder, i);
        files[i] = (pst_stack_file){.path = paths[i]};
        write_file(paths[i], i ? PST_DELTA : PST_BASE, rows,
                   i ? 7u * ((uint32_t)n - 1) + (uint32_t)i : 1, (uint8_t)(i + 1));
    }
    pst_reads_options ro = {.no_uring = argc > 4};
    pst_reads *reads;
    pst_stack *st;
    pst_stack_stats stats;
    pst_reads_stats read;
    check(pst_reads_create(&ro, &reads), "reads");
    double t = now(CLOCK_MONOTONIC);
    pst_stack_options so = {.reads = reads};
    check(pst_stack_open(&SCHEMA, GROUPS, files, n, &so, &st, NULL), "open");
    pst_stack_get_stats(st, &stats);
    printf("opened in %.1f ms, guides %.2f bytes a row, %u of %d files direct\n",
           (now(CLOCK_MONOTONIC) - t) * 1e3, (double)stats.guide_bytes / rows, stats.direct, n);
    run(st, 1, rows, 100, 64);
    run(st, 1000, rows, 100, 40);
    run(st, 10000, rows, 100, 15);
    run(st, 100000, rows, 100, 7);
    run(st, 1000000, rows, 100, 3);
    run(st, 1000, rows, 50, 40);
    run(st, 100000, rows, 50, 7);
    run(st, 1000000, rows, 50, 3);
    pst_reads_get_stats(reads, &read);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    pst_stack_get_stats(st, &stats);
    printf("gap %u pages\n", pst_reads_costs(reads)->gap);
    printf("%s, %u in flight at most, %.1f MB of the stack, %.1f MB peak of the process\n",
           read.uring ? "io_uring" : "threads", read.flight_most, (double)stats.private_bytes / 1e6,
           (double)usage.ru_maxrss / 1e3);
    pst_stack_close(st);
    pst_reads_release(reads);
    for (int i = 0; i < n; i++)
        unlink(paths[i]);
    return 0;
}
