/* A state of many times a table's memory, batch by batch, with steps where rows do not fit; and when
 * a stack counts.
 */
#include "fetch/wants.h"
#include "table_files.h"

enum { KEYS = 30000 };

static const pst_column KEY = {.name = "k", .type = PST_INT64};
static const pst_column STATES[] = {{.name = "a", .type = PST_INT64},
                                    {.name = "s", .type = PST_STRING}};
static const pst_schema SCHEMA = {1, 2, &KEY, STATES, 0};

typedef struct state {
    files f;
    int64_t model[KEYS];
    uint64_t steps;
    uint64_t cuts;
    uint64_t emptied;
} state;

/* Adds one to these keys. What fits is done; *n says how many keys that were. */
static pst_status add(state *s, const int64_t *keys, int64_t *n) {
    static const int64_t one = 1;
    pst_array k = {.type = PST_INT64, .length = *n, .values = keys};
    pst_array v = {.type = PST_INT64, .length = 1, .values = &one};
    pst_batch *b = NULL;
    uint64_t changed = pst_changed_rows(s->f.t);
    REQUIRE(!pst_batch_create(s->f.t, &k, &b));
    pst_status st = pst_batch_apply(b, 0, PST_ADD, &v);
    pst_batch_destroy(b);
    if (st) {
        CHECK_EQ(pst_changed_rows(s->f.t), changed);
        CHECK(!s->f.t->poisoned);
        *n = st == PST_NO_ROOM ? pst_table_detail(s->f.t)->row : 0;
        return st;
    }
    for (int64_t i = 0; i < *n; i++)
        s->model[keys[i]]++;
    return st;
}

static void step(state *s, uint64_t keys) {
    uint64_t fits;
    pst_room leave, left;
    files_seal(&s->f, s->f.t);
    files_set_stack(&s->f);
    CHECK_EQ(pst_table_room(s->f.t, keys, &fits, &leave), PST_OK);
    CHECK(fits <= keys && (fits < keys || leave.rows == 0));
    CHECK_EQ(pst_table_leave(s->f.t, &leave, &left), PST_OK);
    s->steps++;
}

/* Lets all rows leave. */
static void empty(state *s) {
    pst_room all = {UINT64_MAX, 0}, left;
    files_seal(&s->f, s->f.t);
    files_set_stack(&s->f);
    CHECK_EQ(pst_table_leave(s->f.t, &all, &left), PST_OK);
    s->emptied++;
}

static void run_batch(state *s, const int64_t *keys, int64_t n) {
    while (n > 0) {
        int emptied = 0;
        int64_t did = n;
        pst_status st = add(s, keys, &did);
        if (st == PST_NO_ROOM) {
            CHECK(did >= 0 && did < n);
            s->cuts++;
            step(s, (uint64_t)n);
            did = n;
            st = add(s, keys, &did);
        }
        /* When rows have come it may turn out that they are larger than was reckoned. */
        for (int64_t most = n; st == PST_NO_ROOM;) {
            REQUIRE(did >= 0 && did < most);
            if (!did && !emptied++) {
                empty(s);
                did = n;
            }
            REQUIRE(did);
            most = did;
            st = add(s, keys, &did);
        }
        REQUIRE(st == PST_OK);
        keys += did;
        n -= did;
    }
}

static void check_all(state *s) {
    enum { PART = 500 };
    int again = 0;
    for (int64_t from = 0; from < KEYS; from += PART) {
        int64_t keys[PART], values[PART];
        uint8_t valid[PART];
        pst_array k = {.type = PST_INT64, .length = PART, .values = keys};
        for (int i = 0; i < PART; i++)
            keys[i] = from + i;
        pst_batch *b = NULL;
        REQUIRE(!pst_batch_create(s->f.t, &k, &b));
        pst_status st = pst_batch_get(b, 0, values, valid);
        pst_batch_destroy(b);
        if (st == PST_NO_ROOM) {
            REQUIRE(!again);
            empty(s);
            again = 1;
            from -= PART;
            continue;
        }
        again = 0;
        REQUIRE(!st);
        for (int i = 0; i < PART; i++)
            if (!CHECK_EQ(valid[i], s->model[from + i] != 0) ||
                !CHECK_EQ(values[i], s->model[from + i]))
                return;
    }
}

static void begin(state *s, uint64_t limit) {
    pst_lineage l = {.epoch = 1};
    memset(s, 0, sizeof *s);
    files_begin(&s->f, &SCHEMA);
    pst_table *t = files_open(&s->f, (uint64_t)1 << 28);
    for (int64_t k = 0; k < KEYS; k += 2) {
        char text[100];
        pst_cell a = {{(uint64_t)k + 1, 0}, {NULL, 0}}, b = {{0, 0}, {(uint8_t *)text, 0}};
        memset(text, 'a' + (int)(k % 26), sizeof text);
        b.bytes.size = (uint32_t)(k % 100);
        REQUIRE(!pst_key_set_word(t, (uint64_t)k) && !pst_value_put(t, 0, &a) &&
                !pst_value_put(t, 1, &b));
        s->model[k] = k + 1;
    }
    files_seal(&s->f, t);
    pst_table_close(t);
    files_merge(&s->f, 0);
    s->f.t = files_open(&s->f, limit);
    REQUIRE(!pst_table_seal(s->f.t, &l, NULL));
    pst_table_set_whole(s->f.t, 0);
}

static void end(state *s) {
    files_end(&s->f);
}

static void run_steps(state *s, uint64_t limit) {
    static int64_t keys[KEYS];
    uint64_t random = limit;
    begin(s, limit);
    files_set_stack(&s->f);
    for (int i = 0; i < 30; i++) {
        int64_t n = 1 + (int64_t)(check_random(&random) % (i % 3 ? 2000 : KEYS));
        for (int64_t k = 0; k < n; k++)
            keys[k] = (int64_t)(check_random(&random) % KEYS);
        run_batch(s, keys, n);
    }
    CHECK(s->cuts > 5);
    check_all(s);
    end(s);
}

/* A stack counts for one lineage. */
static void test_when_a_stack_counts(void) {
    static state s;
    int64_t keys[2] = {2, 3}, n = 2;
    begin(&s, (uint64_t)1 << 26);
    CHECK_EQ(add(&s, keys, &n), PST_NO_STACK);
    CHECK_EQ(pst_key_set_word(s.f.t, 2), PST_NO_STACK);
    files_set_stack(&s.f);
    n = 2;
    CHECK_EQ(add(&s, keys, &n), PST_OK);
    pst_lineage l = {.epoch = 77};
    /* Key 4 goes, and the stack has it still. */
    CHECK_EQ(pst_key_set_word(s.f.t, 4), PST_OK);
    CHECK_EQ(pst_value_clear(s.f.t, -1), PST_OK);
    CHECK_EQ(pst_table_seal(s.f.t, &l, NULL), PST_OK);
    CHECK_EQ(pst_key_set_word(s.f.t, 4), PST_NO_STACK);
    CHECK_EQ(pst_key_set_word(s.f.t, 2), PST_OK);
    /* Back where it had it. */
    CHECK_EQ(pst_table_rollback(s.f.t, 1), PST_OK);
    pst_cell a;
    CHECK_EQ(pst_key_set_word(s.f.t, 4), PST_OK);
    CHECK_EQ(pst_value_get(s.f.t, 0, &a), PST_OK);
    CHECK_EQ(a.word[0], 5);
    CHECK(!pst_table_dirty(s.f.t));
    /* Rows that leave change nothing. */
    pst_room all = {UINT64_MAX, UINT64_MAX}, left;
    CHECK_EQ(pst_table_leave(s.f.t, &all, &left), PST_INVALID); /* some were admitted */
    CHECK_EQ(pst_table_rollback(s.f.t, 0), PST_OK);
    CHECK_EQ(pst_table_leave(s.f.t, &all, &left), PST_OK);
    CHECK_EQ(pst_key_set_word(s.f.t, 4), PST_OK);
    /* Nor do they without a stack, or with one of another epoch. */
    CHECK_EQ(pst_table_set_stack(s.f.t, NULL, NULL), PST_OK);
    CHECK_EQ(pst_table_leave(s.f.t, &all, &left), PST_NO_STACK);
    CHECK_EQ(pst_key_set_word(s.f.t, 6), PST_NO_STACK);
    end(&s);
}

/* Whoever sets a stack says of which epoch it is, and may let go of it. */
static void test_a_stack_that_is_held(void) {
    static state s;
    int64_t keys[2] = {2, 3}, n = 2;
    begin(&s, (uint64_t)1 << 26);
    files_set_stack(&s.f);
    pst_lineage last = lineage_of(s.f.t), other = last;
    other.id[3] ^= 1;
    CHECK_EQ(pst_table_set_stack(s.f.t, s.f.stack, &other), PST_STALE);
    CHECK_EQ(pst_table_set_stack(s.f.t, s.f.stack, NULL), PST_INVALID);
    other = last;
    other.epoch++;
    CHECK_EQ(pst_table_seal(s.f.t, &other, NULL), PST_OK);
    CHECK_EQ(pst_table_set_stack(s.f.t, s.f.stack, &last), PST_STALE);
    CHECK_EQ(pst_table_set_stack(s.f.t, s.f.stack, &other), PST_OK);
    CHECK_EQ(pst_table_set_stack(s.f.t, s.f.stack, &other), PST_OK);
    pst_stack_close(s.f.stack);
    s.f.stack = NULL;
    CHECK_EQ(add(&s, keys, &n), PST_OK);
    uint64_t fits = 0;
    pst_room leave;
    CHECK_EQ(pst_table_room(s.f.t, 10, &fits, &leave), PST_OK);
    CHECK(fits > 0);
    end(&s);
}

/* Files of another operator are none of the table's. */
static void test_other_files(void) {
    static state s;
    static const pst_column other[] = {{.name = "a", .type = PST_INT64},
                                       {.name = "s", .type = PST_BINARY}};
    const pst_schema schema = {1, 2, &KEY, other, 0};
    pst_table_options o = {.max_parallelism = GROUPS, .last_key_group = GROUPS - 1};
    pst_table *t = NULL;
    begin(&s, (uint64_t)1 << 26);
    files_set_stack(&s.f);
    REQUIRE(!pst_table_open(&schema, &o, &t, NULL, NULL));
    pst_lineage lineage = lineage_of(t);
    CHECK_EQ(pst_table_set_stack(t, s.f.stack, &lineage), PST_INVALID);
    pst_table_close(t);
    end(&s);
}

/* Key groups for which no file counts have no rows: of the ranges that make a new one, some may never
 * have had any. */
static void test_key_groups_without_files(void) {
    static state s;
    static const int32_t part[] = {1, GROUPS - 2};
    pst_stack *stack = NULL;
    char path[96];
    begin(&s, (uint64_t)1 << 26);
    files_path(&s.f, s.f.number[0], path);
    pst_stack_file file = {path, part, 1};
    REQUIRE(!pst_stack_open(s.f.in_files, GROUPS, &file, 1, NULL, &stack, NULL));
    pst_lineage lineage = lineage_of(s.f.t);
    REQUIRE(!pst_table_set_stack(s.f.t, stack, &lineage));
    pst_stack_close(stack);
    int left_out = 0;
    for (int64_t k = 0; k < KEYS; k++) {
        const pst_cell key = {{(uint64_t)k, 0}, {NULL, 0}};
        int32_t group = pst_key_group(pst_hash_key(&KEY, 1, &key, 0), GROUPS);
        if (group < part[0] || group > part[1]) {
            left_out += s.model[k] != 0;
            s.model[k] = 0;
        }
    }
    CHECK(left_out > 0);
    check_all(&s);
    end(&s);
}

/* Files that say more of key 4 than that it was deleted, as it might have timers. */
static void begin_with_nothing(state *s) {
    static const pst_column states[] = {{.name = "a", .type = PST_INT64},
                                        {.name = "#timers", .type = PST_INT32, .kind = PST_TIMERS},
                                        {.name = "#timer", .type = PST_INT64, .kind = PST_TIMER}};
    static const pst_schema schema = {1, 3, &KEY, states, 0};
    pst_cell a = {{1, 0}, {NULL, 0}};
    pst_lineage l = {.epoch = 1};
    memset(s, 0, sizeof *s);
    files_begin(&s->f, &schema);
    pst_table *t = files_open(&s->f, (uint64_t)1 << 26);
    for (uint64_t k = 0; k < 10; k++)
        REQUIRE(!pst_key_set_word(t, k) && !pst_value_put(t, 0, &a));
    files_seal(&s->f, t);
    REQUIRE(!pst_key_set_word(t, 4) && !pst_value_clear(t, -1));
    files_seal(&s->f, t);
    pst_table_close(t);
    s->f.t = files_open(&s->f, (uint64_t)1 << 26);
    REQUIRE(!pst_table_seal(s->f.t, &l, NULL));
    pst_table_set_whole(s->f.t, 0);
    files_set_stack(&s->f);
}

/* Such a key twice in a batch: it is put, and then cleared again. */
static void test_of_nothing(void) {
    static const int64_t keys[] = {4, 4}, values[] = {9, 0};
    static const uint8_t first = 1;
    static state s;
    pst_cell a;
    begin_with_nothing(&s);
    pst_array k = {.type = PST_INT64, .length = 2, .values = keys};
    pst_array v = {.type = PST_INT64, .length = 2, .values = values, .validity = &first};
    pst_batch *b = NULL;
    REQUIRE(!pst_batch_create(s.f.t, &k, &b));
    CHECK_EQ(pst_batch_put(b, 0, &v), PST_OK);
    pst_batch_destroy(b);
    REQUIRE(!pst_key_set_word(s.f.t, 4));
    CHECK_EQ(pst_value_get(s.f.t, 0, &a), PST_NOT_FOUND);
    REQUIRE(!pst_key_set_word(s.f.t, 5));
    CHECK_EQ(pst_value_get(s.f.t, 0, &a), PST_OK);
    end(&s);
}

/* An epoch that writes such a key alone has changed something, and its delta says so. */
static void test_alone(void) {
    static state s;
    pst_cell a = {{0, 0}, {NULL, 0}};
    begin_with_nothing(&s);
    REQUIRE(!pst_key_set_word(s.f.t, 4));
    CHECK_EQ(pst_value_get(s.f.t, 0, &a), PST_NOT_FOUND);
    REQUIRE(!pst_key_set_word(s.f.t, 5));
    CHECK_EQ(pst_value_get(s.f.t, 0, &a), PST_OK);
    CHECK(!pst_table_dirty(s.f.t));
    CHECK_EQ(pst_changed_rows(s.f.t), 0);
    REQUIRE(!pst_key_set_word(s.f.t, 4));
    a.word[0] = 7;
    CHECK_EQ(pst_value_put(s.f.t, 0, &a), PST_OK);
    CHECK(pst_table_dirty(s.f.t));
    CHECK_EQ(pst_changed_rows(s.f.t), 1);
    empty(&s);
    CHECK_EQ(s.f.n, 3);
    REQUIRE(!pst_key_set_word(s.f.t, 4));
    CHECK_EQ(pst_value_get(s.f.t, 0, &a), PST_OK);
    CHECK_EQ(a.word[0], 7);
    end(&s);
}

static void get_numbered(void *ctx, int64_t i, pst_key *key) {
    uint64_t word = (uint64_t)i % *(const uint64_t *)ctx;
    *key = (pst_key){pst_hash_word(PST_INT64, word, PST_HASH_SEED), word, {NULL, 0}, 0};
}

/* How many different keys a batch lacks is known before they are sorted. */
static void test_estimates(void) {
    enum { N = 100000 };
    static uint32_t slots[N];
    static const uint64_t different[] = {1, 700, 5000, 40000, N};
    for (size_t d = 0; d < sizeof different / sizeof *different; d++) {
        uint64_t missing, about, of = different[d];
        memset(slots, 0xFF, sizeof slots);
        pst_keys keys = {&of, get_numbered, slots, N, 0};
        CHECK_EQ(pst_wants_estimate(&keys, &missing, &about), PST_OK);
        CHECK_EQ(missing, N);
        CHECK(about <= of && about + 2 >= of * 9 / 10);
        for (int i = 500; i < N; i++)
            slots[i] = 7;
        CHECK_EQ(pst_wants_estimate(&keys, &missing, &about), PST_OK);
        CHECK_EQ(missing, 500);
    }
}

int main(void) {
    static state s;
    test_estimates();
    test_of_nothing();
    test_alone();
    test_when_a_stack_counts();
    test_a_stack_that_is_held();
    test_other_files();
    test_key_groups_without_files();
    run_steps(&s, (uint64_t)1 << 19);
    run_steps(&s, (uint64_t)3 << 18);
    run_steps(&s, (uint64_t)1 << 20);
    return check_report();
}
