/* What rows that come and go cost: admitting, leaving, and the heat of those that are found. Prints
 * ns per row and asserts nothing. What is compared comes by turns.
 *
 *   bench_resident [millions of rows] [rounds]
 */
#include <time.h>

#include "check.h"
#include "key/hash.h"
#include "snapshot/leave_epochs.h"
#include "table/resident.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* whatever else there is to do */
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

enum { BATCH = 1 << 17, CHUNK = 64, AHEAD = 24 };

static pst_table *make_table(void) {
    static const pst_column key[] = {{.name = "k", .type = PST_INT64}};
    static const pst_column states[] = {{.name = "a", .type = PST_INT64, .has_default = 1},
                                        {.name = "b", .type = PST_INT64, .has_default = 1}};
    pst_schema schema = {1, 2, key, states};
    pst_table_options o = {
        .max_parallelism = 16, .last_key_group = 15, .limit_bytes = (uint64_t)4 << 30};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(&schema, &o, &t, NULL, NULL) == PST_OK);
    return t;
}

static void seal(pst_table *t, uint64_t n) {
    pst_lineage l = {.epoch = n};
    REQUIRE(pst_table_seal(t, &l, NULL) == PST_OK);
}

/* Rows of the keys from .. to - 1 that are not there. */
static uint64_t admit(pst_table *t, uint64_t from, uint64_t to) {
    uint64_t admitted = 0;
    uint32_t slot;
    int here;
    for (uint64_t k = from; k < to; k++) {
        if (k % CHUNK == 0)
            REQUIRE(pst_undo_reserve(t, CHUNK) == PST_OK);
        if (k + AHEAD < to)
            pst_index_prefetch(t, pst_hash_word(PST_INT64, k + AHEAD, PST_HASH_SEED));
        pst_key key = {.word = k, .hash = pst_hash_word(PST_INT64, k, PST_HASH_SEED)};
        REQUIRE(pst_admit_begin(t, &key, &slot, &here) == PST_OK);
        if (here)
            continue;
        uint64_t *row = pst_row(t, slot);
        pst_put64(pst_field_at(&t->lay, row, 0), k);
        pst_put64(pst_field_at(&t->lay, row, 1), 2 * k);
        pst_row_set_presence(t, row, 3);
        admitted += (uint64_t)pst_admit_end(t, slot);
    }
    return admitted;
}

/* Random keys, read or added to. */
static double use(pst_table *t, uint64_t rows, uint64_t *random, int adds) {
    static int64_t keys[BATCH], values[BATCH], out[2][BATCH];
    static uint8_t valid[BATCH];
    for (int i = 0; i < BATCH; i++) {
        keys[i] = (int64_t)(check_random(random) % rows);
        values[i] = i;
    }
    pst_array k = {.type = PST_INT64, .length = BATCH, .values = keys};
    pst_array v = {.type = PST_INT64, .length = BATCH, .values = values};
    pst_batch *b = NULL;
    double start = now();
    REQUIRE(pst_batch_create(t, &k, &b) == PST_OK);
    pst_get gets[] = {{0, out[0], valid}, {1, out[1], valid}};
    pst_step steps[] = {{0, PST_ADD, v}, {1, PST_ADD, v}};
    REQUIRE((adds ? pst_batch_apply_all(b, 2, steps, NULL, NULL) : pst_batch_get_all(b, 2, gets)) ==
            PST_OK);
    double took = now() - start;
    pst_batch_destroy(b);
    return took / BATCH;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void bench_heat(pst_table *t, uint64_t rows, int rounds, int adds, uint64_t *epoch) {
    double took[2][1000];
    uint64_t random = 5;
    uint32_t heat_slots = t->heat_slots;
    for (int i = 0; i < rounds; i++) {
        for (int k = 0; k < 2; k++) {
            int with = (i + k) % 2;
            t->heat_slots = with ? heat_slots : 0;
            took[with][i] = use(t, rows, &random, adds);
        }
        /* Half of the bits are to be raised again. */
        for (uint32_t s = 0; i % 4 == 0 && s < t->m->slots; s++)
            pst_heat_set(t, s, s % 2 ? 2 : 3);
        if (adds)
            seal(t, ++*epoch);
    }
    t->heat_slots = heat_slots;
    qsort(took[0], (size_t)rounds, sizeof(double), by_size);
    qsort(took[1], (size_t)rounds, sizeof(double), by_size);
    printf("%s two columns: %.1f without heat, %.1f with it (tenths: %.1f, %.1f)\n",
           adds ? "add to" : "read", took[0][rounds / 2], took[1][rounds / 2], took[0][rounds / 10],
           took[1][rounds / 10]);
}

int main(int argc, char **argv) {
    uint64_t rows = (argc > 1 ? strtoull(argv[1], NULL, 10) : 4) << 20, epoch = 1;
    int rounds = argc > 2 ? atoi(argv[2]) : 200;
    REQUIRE(rounds > 0 && rounds <= 1000);
    pst_table *t = make_table();
    seal(t, epoch);
    pst_table_set_whole(t, 0);
    double start = now();
    CHECK_EQ(admit(t, 0, rows), rows);
    printf("admit %.1f\n", (now() - start) / (double)rows);
    seal(t, ++epoch);
    bench_heat(t, rows, rounds, 0, &epoch);
    bench_heat(t, rows, rounds, 1, &epoch);
    for (int i = 0; i < 4; i++)
        seal(t, ++epoch);
    pst_room wanted = {rows / 2, 0}, left;
    start = now();
    REQUIRE(pst_leave_epochs(t, &wanted, &left) == PST_OK);
    printf("leave %.1f\n", (now() - start) / (double)left.rows);
    start = now();
    CHECK_EQ(admit(t, 0, rows), left.rows);
    printf("look for %.0f million keys and admit half of them: %.1f\n", (double)rows / 1048576,
           (now() - start) / (double)rows);
    pst_table_close(t);
    return 0;
}
