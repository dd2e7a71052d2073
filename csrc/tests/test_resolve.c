/* The first stage of a look-up, many keys at a time, against the index's own way of one key. A wrong
 * line would cost time, not results, so only this test sees it. */
#include "access/batch.h"
#include "check.h"
#include "pystate.h"
#include "table/index.h"

static pst_table *make_table(int32_t max_parallelism, int32_t first, int32_t last) {
    pst_column key = {.name = "k", .type = PST_INT64}, state = {.name = "n", .type = PST_INT64};
    pst_schema s = {.keys = &key, .n_keys = 1, .states = &state, .n_states = 1};
    pst_table_options o = {
        .max_parallelism = max_parallelism, .first_key_group = first, .last_key_group = last};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(&s, &o, &t, NULL, NULL) == PST_OK);
    return t;
}

static pst_batch *make_batch(pst_table *t, const int64_t *keys, int64_t n) {
    pst_array array = {.type = PST_INT64, .length = n, .values = keys};
    pst_batch *b = NULL;
    REQUIRE(pst_batch_create(t, &array, &b) == PST_OK);
    return b;
}

/* Random keys of these groups. */
static void draw(int64_t *keys, int64_t n, int32_t max_parallelism, int32_t first, int32_t last,
                 uint64_t *random) {
    for (int64_t i = 0; i < n;) {
        uint64_t hash;
        keys[i] = (int64_t)check_random(random);
        pst_array one = {.type = PST_INT64, .length = 1, .values = keys + i};
        uint8_t precision = 0;
        REQUIRE(pst_hash(&one, &precision, 1, &hash) == PST_OK);
        int32_t group = pst_key_group(hash, max_parallelism);
        i += group >= first && group <= last;
    }
}

static void check_lines(pst_table *t, const int64_t *keys, int64_t n) {
    pst_batch *b = make_batch(t, keys, n);
    pst_batch_resolve(b, 1);
    CHECK_EQ(b->lined, n < PST_LINES ? n : PST_LINES);
    for (int64_t i = 0; i < b->lined; i++) {
        uint32_t tag = pst_tag_of(t, b->hash[i]);
        uint32_t at = pst_directory_at(t, t->m->directory_bits, b->hash[i], tag);
        pst_probe c;
        CHECK_EQ(b->tags[i], tag);
        if (pst_probe_home(&c, &t->m->shards[at], t->heap, tag))
            CHECK(b->lines[i] == c.line);
        else
            for (int k = 0; k < PST_LINE; k++)
                CHECK_EQ(b->lines[i][k], 0);
    }
    pst_batch_destroy(b);
}

int main(void) {
    enum { N = 6000, ROUNDS = 40 };
    static const struct {
        int32_t max_parallelism, first, last;
    } shapes[] = {{1, 0, 0},     {2, 0, 1},      {128, 0, 127},
                  {128, 32, 63}, {4096, 5, 700}, {100, 10, 70}};
    static int64_t keys[N], one = 1;
    uint64_t random = 5;
    for (size_t shape = 0; shape < sizeof shapes / sizeof *shapes; shape++) {
        int32_t most = shapes[shape].max_parallelism;
        int32_t first = shapes[shape].first, last = shapes[shape].last;
        pst_table *t = make_table(most, first, last);
        pst_step add = {0, PST_ADD, {.type = PST_INT64, .length = 1, .values = &one}};
        draw(keys, N, most, first, last, &random);
        for (int round = 0; round < ROUNDS; round++) {
            int64_t from = (int64_t)(check_random(&random) % N);
            int64_t n = 1 + (int64_t)(check_random(&random) % 200);
            check_lines(t, keys + from, from + n > N ? N - from : n);
            /* Shards grow, and split. */
            pst_batch *b = make_batch(t, keys + round * (N / ROUNDS), N / ROUNDS);
            CHECK_EQ(pst_batch_apply_all(b, 1, &add, NULL, NULL), PST_OK);
            pst_batch_destroy(b);
        }
        pst_table_close(t);
    }
    return check_report();
}
