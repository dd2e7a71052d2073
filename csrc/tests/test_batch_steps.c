/* Forms of batches that visit each row once, against those that do the same one by one in a second
 * table: several steps, several columns, many timers registered and fired. */
#include <string.h>

#include "check.h"
#include "pystate.h"

enum { ROWS = 150, KEYS = 60, STATES = 4, TIMES = 12, DUE = 4096 };

static const pst_type TYPES[STATES - 1] = {PST_INT64, PST_FLOAT64, PST_INT64};

static pst_table *make_table(void) {
    pst_column key = {.name = "k", .type = PST_INT64};
    pst_column states[STATES] = {{.name = "n", .type = PST_INT64},
                                 {.name = "x", .type = PST_FLOAT64},
                                 {.name = "y", .type = PST_INT64},
                                 {.name = "#timers", .type = PST_INT32, .kind = PST_TIMERS}};
    pst_schema s = {.keys = &key, .n_keys = 1, .states = states, .n_states = STATES};
    pst_table_options o = {.max_parallelism = 8, .last_key_group = 7};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(&s, &o, &t, NULL, NULL) == PST_OK);
    return t;
}

static pst_batch *make_batch(pst_table *t, const int64_t *keys, int64_t rows) {
    pst_array array = {.type = PST_INT64, .length = rows, .values = keys};
    pst_batch *b = NULL;
    REQUIRE(pst_batch_create(t, &array, &b) == PST_OK);
    return b;
}

/* What both tables say about all keys, and about all timers that there are. */
static int compare(pst_table *one, pst_table *other) {
    static int64_t keys[KEYS], values[2][STATES][KEYS], times[2][DUE];
    static uint8_t valid[2][STATES][KEYS];
    pst_table *t[2] = {one, other};
    for (int i = 0; i < KEYS; i++)
        keys[i] = i;
    for (int w = 0; w < 2; w++) {
        pst_batch *b = make_batch(t[w], keys, KEYS);
        pst_get gets[STATES - 1];
        for (int32_t c = 0; c < STATES - 1; c++) {
            gets[c] = (pst_get){c, values[w][c], valid[w][c]};
            if (w)
                REQUIRE(pst_batch_get(b, c, values[w][c], valid[w][c]) == PST_OK);
        }
        if (!w)
            REQUIRE(pst_batch_get_all(b, STATES - 1, gets) == PST_OK);
        pst_batch_destroy(b);
    }
    int ok = CHECK(!memcmp(values[0], values[1], sizeof values[0])) &&
             CHECK(!memcmp(valid[0], valid[1], sizeof valid[0]));
    for (int domain = 0; domain < 2; domain++) {
        pst_batch *b[2] = {NULL, NULL};
        pst_status s[2];
        for (int w = 0; w < 2; w++)
            s[w] = pst_timers_due(t[w], (pst_domain)domain, INT64_MAX, DUE, times[w], &b[w]);
        ok &= CHECK_EQ(s[0], s[1]);
        if (s[0] || s[1])
            continue;
        int64_t n = pst_batch_length(b[0]);
        ok &= CHECK_EQ(n, pst_batch_length(b[1])) &&
              CHECK(!memcmp(times[0], times[1], (size_t)n * sizeof **times));
        static int64_t found[2][DUE];
        static uint8_t there[DUE];
        for (int w = 0; w < 2; w++)
            REQUIRE(pst_batch_get_key(b[w], 0, found[w], there) == PST_OK);
        ok &= CHECK(!memcmp(found[0], found[1], (size_t)n * sizeof **found));
        pst_batch_destroy(b[0]);
        pst_batch_destroy(b[1]);
    }
    return ok;
}

static void steps(pst_table *one, pst_table *other, const int64_t *keys, int64_t rows,
                  uint64_t *random) {
    static int64_t added[ROWS], count[KEYS];
    static double larger[ROWS];
    static uint8_t validity[ROWS / 8 + 1], had[KEYS], fresh[ROWS], seen[KEYS];
    static int64_t all[KEYS], one_more = 1;
    for (int64_t i = 0; i < rows; i++) {
        added[i] = (int64_t)(check_random(random) % 1000) - 500;
        larger[i] = (double)(check_random(random) % 1000);
        validity[i / 8] = (uint8_t)check_random(random);
    }
    for (int i = 0; i < KEYS; i++)
        all[i] = i;
    pst_step s[3] = {
        {0, PST_ADD, {.type = TYPES[0], .length = 1, .values = &one_more}},
        {1, PST_MAX, {.type = TYPES[1], .length = rows, .values = larger, .validity = validity}},
        {2, PST_ADD, {.type = TYPES[2], .length = rows, .values = added, .validity = validity}},
    };
    pst_batch *b = make_batch(one, all, KEYS);
    REQUIRE(pst_batch_get(b, 0, count, had) == PST_OK);
    pst_batch_destroy(b);
    b = make_batch(one, keys, rows);
    int noted = check_random(random) % 4 != 0;
    REQUIRE(pst_batch_apply_all(b, 3, s, noted ? fresh : NULL, NULL) == PST_OK);
    pst_batch_destroy(b);
    memset(seen, 0, sizeof seen);
    int right = 1;
    for (int64_t i = 0; i < rows && noted; i++) {
        right &= fresh[i] == (!had[keys[i]] && !seen[keys[i]]);
        seen[keys[i]] = 1;
    }
    CHECK(right);
    b = make_batch(other, keys, rows);
    for (int k = 0; k < 3; k++)
        REQUIRE(pst_batch_apply(b, s[k].column, s[k].op, &s[k].values) == PST_OK);
    pst_batch_destroy(b);
}

static void timers(pst_table *one, pst_table *other, const int64_t *keys, int64_t rows,
                   uint64_t *random) {
    enum { MOST_OFFSET = 20 };
    static int64_t times[ROWS + MOST_OFFSET];
    static uint8_t validity[(ROWS + MOST_OFFSET) / 8 + 1];
    int scalar = check_random(random) % 4 == 0, nulls = check_random(random) % 2 == 0;
    int64_t offset = (int64_t)(check_random(random) % (MOST_OFFSET + 1));
    pst_domain domain = (pst_domain)(check_random(random) % 2);
    for (int64_t i = 0; i < rows + offset; i++) {
        times[i] = (int64_t)(check_random(random) % TIMES) - TIMES / 2;
        validity[i / 8] = (uint8_t)check_random(random);
    }
    pst_array array = {
        .type = PST_INT64, .length = scalar ? 1 : rows, .offset = offset, .values = times};
    if (nulls)
        array.validity = validity;
    pst_batch *b = make_batch(one, keys, rows);
    REQUIRE(pst_batch_timer_register(b, domain, &array) == PST_OK);
    pst_batch_destroy(b);
    for (int64_t i = 0; i < rows; i++) {
        int64_t at = offset + (scalar ? 0 : i);
        pst_cell key = {.word = {(uint64_t)keys[i]}};
        if (nulls && !(validity[at / 8] >> at % 8 & 1))
            continue;
        REQUIRE(pst_key_set(other, &key, 0) == PST_OK);
        REQUIRE(pst_timer_register(other, domain, times[at]) == PST_OK);
    }
}

/* A batch of the same keys, as one is made when rows left in between. */
static void make_again(pst_table *t, pst_batch **b) {
    static int64_t keys[DUE];
    static uint8_t valid[DUE];
    int64_t n = pst_batch_length(*b);
    REQUIRE(pst_batch_get_key(*b, 0, keys, valid) == PST_OK);
    pst_batch_destroy(*b);
    *b = make_batch(t, keys, n);
}

/* Between handing out and firing, some are deleted and others registered. */
static void fire(pst_table *one, pst_table *other, const int64_t *keys, uint64_t *random) {
    static int64_t times[DUE];
    pst_domain domain = (pst_domain)(check_random(random) % 2);
    int64_t until = (int64_t)(check_random(random) % TIMES) - TIMES / 2, most = 40;
    for (int w = 0; w < 2; w++) {
        pst_table *t = w ? other : one;
        pst_batch *b = NULL;
        pst_status s = pst_timers_due(t, domain, until, most, times, &b);
        if (s == PST_NOT_FOUND)
            continue;
        REQUIRE(s == PST_OK);
        for (int i = 0; i < 3; i++) {
            pst_cell key = {.word = {(uint64_t)keys[i]}};
            REQUIRE(pst_key_set(t, &key, 0) == PST_OK);
            REQUIRE(pst_timer_delete(t, domain, until) == PST_OK);
            REQUIRE(pst_timer_register(t, domain, until - 1 - i) == PST_OK);
        }
        if (until % 3 == 0)
            make_again(t, &b);
        if (!w)
            CHECK_EQ(pst_timers_fire_all(b, domain, times), PST_OK);
        for (int64_t i = 0; w && i < pst_batch_length(b); i++) {
            s = pst_timer_fire(b, i, domain, times[i]);
            CHECK(s == PST_OK || s == PST_NOT_FOUND);
        }
        pst_batch_destroy(b);
    }
}

static void seal(pst_table *t, uint64_t epoch) {
    pst_lineage l = {.epoch = epoch};
    uint64_t parent = epoch - 1;
    memcpy(l.id, &epoch, sizeof epoch);
    memcpy(l.parent, &parent, sizeof parent);
    REQUIRE(pst_table_seal(t, &l, NULL) == PST_OK);
}

static void test_random(int rounds, uint64_t seed) {
    pst_table *one = make_table(), *other = make_table();
    uint64_t failed = check_failed, epoch = 0;
    for (int round = 0; round < rounds && check_failed == failed; round++) {
        int64_t keys[ROWS], rows = 1 + (int64_t)(check_random(&seed) % ROWS);
        for (int64_t i = 0; i < ROWS; i++)
            keys[i] = (int64_t)(check_random(&seed) % KEYS);
        switch (check_random(&seed) % 6) {
        case 0:
        case 1:
            steps(one, other, keys, rows, &seed);
            break;
        case 2:
        case 3:
            timers(one, other, keys, rows, &seed);
            break;
        case 4:
            fire(one, other, keys, &seed);
            break;
        default:
            for (int w = 0; w < 2; w++) {
                pst_batch *b = make_batch(w ? other : one, keys, rows / 2);
                REQUIRE(pst_batch_clear(b, -1) == PST_OK);
                pst_batch_destroy(b);
            }
        }
        compare(one, other);
        if (check_random(&seed) % 3 == 0) {
            seal(one, ++epoch);
            seal(other, epoch);
        } else if (check_random(&seed) % 6 == 0) {
            REQUIRE(pst_table_rollback(one, 0) == PST_OK);
            REQUIRE(pst_table_rollback(other, 0) == PST_OK);
        }
        compare(one, other);
    }
    pst_table_close(one);
    pst_table_close(other);
}

/* Batches that were looked up while a key was not there, and are used again once it is. The table
 * is large enough that many keys are found some lines behind their own. */
static void test_made_meanwhile(void) {
    enum { MANY = 3000 };
    static int64_t keys[MANY], values[MANY], one_more = 1;
    static uint8_t valid[MANY];
    pst_table *t = make_table();
    pst_step add = {0, PST_ADD, {.type = PST_INT64, .length = 1, .values = &one_more}};
    for (int64_t i = 0; i < MANY; i++)
        keys[i] = i;
    for (uint64_t round = 0; round < 200; round++) {
        /* The first rows are new, then reused ones. */
        int64_t half = MANY / 2;
        pst_batch *all = make_batch(t, keys, MANY), *some = make_batch(t, keys + half, half);
        REQUIRE(pst_batch_get(all, 0, values, valid) == PST_OK);
        int64_t there = 0;
        for (int64_t i = 0; i < MANY; i++)
            there += valid[i];
        CHECK_EQ(there, 0);
        REQUIRE(pst_batch_get(all, 0, values, valid) == PST_OK);
        REQUIRE(pst_batch_apply_all(some, 1, &add, NULL, NULL) == PST_OK);
        REQUIRE(pst_batch_get(all, 0, values, valid) == PST_OK);
        for (int64_t i = 0; i < MANY; i++)
            there += valid[i] && i >= half && values[i] == 1;
        CHECK_EQ(there, half);
        seal(t, 3 * round + 1);
        pst_batch_destroy(all);
        pst_batch_destroy(some);
        /* Most go in one epoch, so that the next one's first write, which deletes the others,
         * rebuilds shards that the batch has begun to look at. */
        int64_t from = half;
        for (uint64_t part = 0; part < 2; part++) {
            int64_t to = part ? MANY : MANY - half / 6;
            some = make_batch(t, keys + from, to - from);
            REQUIRE(pst_batch_clear(some, -1) == PST_OK);
            pst_batch_destroy(some);
            seal(t, 3 * round + 2 + part);
            from = to;
        }
        pst_table_stats stats;
        pst_table_get_stats(t, &stats);
        CHECK_EQ(stats.keys, 0);
    }
    pst_table_close(t);
}

static void test_refused(void) {
    static int64_t keys[ROWS], value = INT64_MAX, values[ROWS];
    static uint8_t fresh[ROWS], validity[ROWS / 8 + 1];
    pst_table *t = make_table();
    pst_batch *b = make_batch(t, keys, ROWS);
    pst_step s[2] = {{0, PST_ADD, {.type = PST_INT64, .length = 1, .values = &value}},
                     {2, PST_ADD, {.type = PST_INT64, .length = ROWS, .values = values}}};
    pst_get get = {STATES - 1, values, fresh};
    CHECK_EQ(pst_batch_apply_all(b, 0, s, NULL, NULL), PST_INVALID);
    CHECK_EQ(pst_batch_apply_all(b, PST_MAX_STATES + 1, s, NULL, NULL), PST_INVALID);
    CHECK_EQ(pst_batch_get_all(b, 1, &get), PST_INVALID);
    s[1].column = 1;
    CHECK_EQ(pst_batch_apply_all(b, 2, s, fresh, NULL), PST_WRONG_TYPE);
    s[1].column = 2;
    s[0].values.validity = validity;
    CHECK_EQ(pst_batch_apply_all(b, 2, s, fresh, NULL), PST_INVALID);
    s[0].values.validity = NULL;
    CHECK_EQ(pst_table_dirty(t), 0);
    CHECK_EQ(pst_batch_apply_all(b, 2, s, fresh, NULL), PST_OVERFLOW);
    CHECK_EQ(pst_batch_apply_all(b, 2, s, fresh, NULL), PST_POISONED);
    CHECK_EQ(pst_table_rollback(t, 0), PST_OK);
    CHECK_EQ(pst_batch_apply_all(b, 2, s, fresh, NULL), PST_STALE);
    pst_batch_destroy(b);
    pst_table_close(t);
}

/* Rows whose sums would overflow take no step; the others do what they did without them. Keys come
 * anew, and of some batches all values are small, whatever is there already. */
static void test_refused_rows(uint64_t seed) {
    enum { FEW = 50, AT_ONCE = 5, ROUNDS = 400 };
    static const int64_t LARGE[] = {INT64_MAX, INT64_MIN, INT64_MAX / 2 + 1, -INT64_MAX / 2 - 2, 1};
    static int64_t keys[ROWS], counts[ROWS], added[ROWS], found[FEW], all[FEW], one_more = 1;
    static double larger[ROWS], most[FEW];
    static uint8_t refused[ROWS], fresh[ROWS], validity[ROWS / 8 + 1], valid[FEW];
    int64_t n[FEW] = {0}, sum[FEW] = {0};
    double x[FEW] = {0};
    uint64_t random = seed;
    pst_table *t = make_table();
    pst_step s[3] = {
        {0, PST_ADD, {.type = PST_INT64, .length = 1, .values = &one_more}},
        {2, PST_ADD, {.type = PST_INT64, .length = ROWS, .values = added, .validity = validity}},
        {1, PST_MAX, {.type = PST_FLOAT64, .length = ROWS, .values = larger}},
    };
    for (int i = 0; i < FEW; i++)
        all[i] = i;
    int64_t gone = 0, gone_of_small = 0;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        int small = round % 3 == 1;
        for (int64_t i = 0; i < ROWS; i++) {
            keys[i] = (int64_t)(round / 40 * AT_ONCE + check_random(&random) % AT_ONCE);
            added[i] = small || check_random(&random) % 8
                           ? (int64_t)(check_random(&random) % 100) - 50
                           : LARGE[check_random(&random) % 5];
            larger[i] = (double)(check_random(&random) % 1000000);
            validity[i / 8] = (uint8_t)check_random(&random);
        }
        memset(refused, 0, sizeof refused);
        pst_batch *b = make_batch(t, keys, ROWS);
        REQUIRE(pst_batch_apply_all(b, 3, s, fresh, refused) == PST_OK);
        pst_batch_destroy(b);
        int right = 1;
        for (int64_t i = 0; i < ROWS; i++) {
            int64_t k = keys[i], next = sum[k];
            int over =
                (validity[i / 8] >> i % 8 & 1) && __builtin_add_overflow(sum[k], added[i], &next);
            right &= refused[i] == (over ? 3 : 0) && fresh[i] == (!over && n[k] == 0);
            gone += over;
            gone_of_small += over && small;
            if (over)
                continue;
            n[k]++;
            sum[k] = next;
            x[k] = larger[i] > x[k] ? larger[i] : x[k];
        }
        CHECK(right);
        b = make_batch(t, all, FEW);
        REQUIRE(pst_batch_get(b, 0, counts, valid) == PST_OK);
        REQUIRE(pst_batch_get(b, 2, found, valid) == PST_OK);
        REQUIRE(pst_batch_get(b, 1, most, valid) == PST_OK);
        for (int i = 0; i < FEW; i++)
            right &= counts[i] == n[i] && (!valid[i] || most[i] == x[i]) && found[i] == sum[i];
        CHECK(right);
        pst_batch_destroy(b);
        if (round % 7 == 0)
            seal(t, round + 1);
    }
    CHECK(gone > ROUNDS);
    CHECK(gone_of_small > 10);
    pst_table_close(t);
}

/* Of decimals the digits count, and every batch starts from what is kept. */
static void test_refused_decimals(void) {
    static const __int128 values[6] = {60, 39, 1, -100, -99, -1};
    static const uint8_t over[6] = {0, 0, 1, 0, 1, 0};
    static int64_t keys[6];
    static uint8_t refused[6];
    pst_column key = {.name = "k", .type = PST_INT64};
    pst_column state = {.name = "d", .type = PST_DECIMAL, .precision = 2};
    pst_schema schema = {.keys = &key, .n_keys = 1, .states = &state, .n_states = 1};
    pst_table_options o = {.max_parallelism = 1};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(&schema, &o, &t, NULL, NULL) == PST_OK);
    pst_step add = {0, PST_ADD, {.type = PST_DECIMAL, .length = 6, .values = values}};
    pst_batch *b = make_batch(t, keys, 6);
    REQUIRE(pst_batch_apply_all(b, 1, &add, NULL, refused) == PST_OK);
    CHECK(!memcmp(refused, over, sizeof over));
    pst_batch_destroy(b);
    pst_table_close(t);
}

/* A sum that another batch has brought near its end, after this one has looked for the row. */
static void test_refused_made_meanwhile(void) {
    static int64_t keys[2] = {1, 2}, most = INT64_MAX, one_more = 1;
    static uint8_t refused[2], valid[2];
    pst_table *t = make_table();
    pst_step add = {0, PST_ADD, {.type = PST_INT64, .length = 1, .values = &one_more}};
    pst_batch *b = make_batch(t, keys, 2), *other = make_batch(t, keys, 1);
    int64_t values[2];
    REQUIRE(pst_batch_get(b, 0, values, valid) == PST_OK);
    CHECK_EQ(valid[0] + valid[1], 0);
    add.values.values = &most;
    REQUIRE(pst_batch_apply_all(other, 1, &add, NULL, refused) == PST_OK);
    add.values.values = &one_more;
    REQUIRE(pst_batch_apply_all(b, 1, &add, NULL, refused) == PST_OK);
    CHECK_EQ(refused[0], 1);
    CHECK_EQ(refused[1], 0);
    REQUIRE(pst_batch_get(b, 0, values, valid) == PST_OK);
    CHECK_EQ(values[0], INT64_MAX);
    CHECK_EQ(values[1], 1);
    pst_batch_destroy(b);
    pst_batch_destroy(other);
    pst_table_close(t);
}

/* Each value is far from the end, and so is the sum before; many of one key are too much. */
static void test_refused_together(void) {
    enum { MANY = 40, MOST = 20 };
    static int64_t keys[MANY], value = INT64_MAX / MOST;
    static uint8_t refused[MANY];
    pst_table *t = make_table();
    pst_step add = {0, PST_ADD, {.type = PST_INT64, .length = 1, .values = &value}};
    pst_batch *b = make_batch(t, keys, MANY);
    REQUIRE(pst_batch_apply_all(b, 1, &add, NULL, refused) == PST_OK);
    for (int i = 0; i < MANY; i++)
        CHECK_EQ(refused[i], i >= MOST);
    pst_batch_destroy(b);
    pst_table_close(t);
}

/* The same of decimals of all lengths, drawn. */
static void test_refused_long_decimals(uint8_t precision, uint64_t seed) {
    enum { FEW = 20, AT_ONCE = 2, ROUNDS = 200 };
    static __int128 added[ROWS], found[FEW];
    static int64_t keys[ROWS], all[FEW];
    static uint8_t refused[ROWS], valid[FEW];
    __int128 sum[FEW] = {0}, most = 1;
    uint64_t random = seed;
    int64_t gone = 0;
    for (uint8_t i = 0; i < precision; i++)
        most *= 10;
    most--;
    pst_column key = {.name = "k", .type = PST_INT64};
    pst_column state = {.name = "d", .type = PST_DECIMAL, .precision = precision};
    pst_schema schema = {.keys = &key, .n_keys = 1, .states = &state, .n_states = 1};
    pst_table_options o = {.max_parallelism = 1};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(&schema, &o, &t, NULL, NULL) == PST_OK);
    pst_step add = {0, PST_ADD, {.type = PST_DECIMAL, .length = ROWS, .values = added}};
    for (int i = 0; i < FEW; i++)
        all[i] = i;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        const __int128 large[4] = {most, -most, most / 2 + 1, -most / 2 - 1};
        for (int64_t i = 0; i < ROWS; i++) {
            keys[i] = (int64_t)(round / 20 * AT_ONCE + check_random(&random) % AT_ONCE);
            added[i] = round % 3 == 1 || check_random(&random) % 8
                           ? (__int128)(check_random(&random) % 11) - 5
                           : large[check_random(&random) % 4];
        }
        memset(refused, 0, sizeof refused);
        pst_batch *b = make_batch(t, keys, ROWS);
        REQUIRE(pst_batch_apply_all(b, 1, &add, NULL, refused) == PST_OK);
        pst_batch_destroy(b);
        int right = 1;
        for (int64_t i = 0; i < ROWS; i++) {
            __int128 next;
            int over = __builtin_add_overflow(sum[keys[i]], added[i], &next) || next > most ||
                       next < -most;
            right &= refused[i] == over;
            gone += over;
            sum[keys[i]] = over ? sum[keys[i]] : next;
        }
        b = make_batch(t, all, FEW);
        REQUIRE(pst_batch_get(b, 0, found, valid) == PST_OK);
        for (int i = 0; i < FEW; i++)
            right &= found[i] == sum[i];
        CHECK(right);
        pst_batch_destroy(b);
        if (round % 7 == 0)
            seal(t, round + 1);
    }
    CHECK(gone > ROUNDS);
    pst_table_close(t);
}

/* A group whose rows were all touched as their values expired, in an undo log that is full now,
 * after a group of which only some rows were touched for the first time. */
static void test_full_log(void) {
    enum { MANY = 128, OLD = 80, SOME = 16, LATER = 1000 };
    static int64_t keys[MANY], values[MANY], one_more = 1;
    static uint8_t valid[MANY];
    pst_column key = {.name = "k", .type = PST_INT64};
    pst_column states[2] = {{.name = "n", .type = PST_INT64},
                            {.name = "#n", .type = PST_INT64, .kind = PST_TIME}};
    pst_schema s = {.keys = &key, .n_keys = 1, .states = states, .n_states = 2};
    pst_table_options o = {.max_parallelism = 1};
    pst_ttl ttl = {.duration_ms = LATER};
    pst_clock clock = {0, PST_NO_TIME, PST_NO_TIME};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(&s, &o, &t, NULL, NULL) == PST_OK);
    REQUIRE(pst_table_set_ttl(t, 0, &ttl) == PST_OK);
    pst_table_set_clock(t, &clock);
    pst_step add = {0, PST_ADD, {.type = PST_INT64, .length = 1, .values = &one_more}};
    for (int64_t i = 0; i < MANY; i++)
        keys[i] = i;
    pst_batch *b = make_batch(t, keys, MANY);
    REQUIRE(pst_batch_apply_all(b, 1, &add, NULL, NULL) == PST_OK);
    pst_batch_destroy(b);
    seal(t, 1);
    clock.processing_ms = LATER;
    pst_table_set_clock(t, &clock);
    for (int64_t from = 0; from < MANY; from += OLD - SOME) {
        b = make_batch(t, keys + from, from ? MANY - from : OLD);
        REQUIRE(pst_batch_apply_all(b, 1, &add, NULL, NULL) == PST_OK);
        REQUIRE(pst_batch_get(b, 0, values + from, valid + from) == PST_OK);
        pst_batch_destroy(b);
    }
    for (int64_t i = 0; i < MANY; i++)
        CHECK_EQ(values[i], i >= OLD - SOME && i < OLD ? 2 : 1);
    REQUIRE(pst_table_rollback(t, 1) == PST_OK);
    pst_table_close(t);
}

int main(void) {
    test_full_log();
    test_random(2500, 1);
    test_random(2500, 7);
    test_made_meanwhile();
    test_refused();
    test_refused_rows(1);
    test_refused_rows(2);
    test_refused_decimals();
    test_refused_made_meanwhile();
    test_refused_together();
    test_refused_long_decimals(38, 3);
    test_refused_long_decimals(19, 4);
    test_refused_long_decimals(5, 5);
    return check_report();
}
