/* More timers of one time than a table has room for rows, below it; and what asking for them reads.
 */
#include "elements/leave.h"
#include "fetch/horizon.h"
#include "fetch/parts.h"
#include "reads/read.h"
#include "stack/stack.h"
#include "table_files.h"

enum { MOST_KEYS = 20000, PART = 50 };

static const pst_column KEYS[] = {{.name = "k", .type = PST_INT64},
                                  {.name = "n", .type = PST_INT64}};
static const pst_column STATES[] = {{.name = "a", .type = PST_INT64},
                                    {.name = "#timers", .type = PST_INT32, .kind = PST_TIMERS},
                                    {.name = "#timer", .type = PST_INT64, .kind = PST_TIMER}};

typedef struct state {
    pst_schema schema;
    files f;
    uint64_t steps;
    int patience; /* steps that may follow one that did not help: rows came that have no timer */
    uint8_t fired[MOST_KEYS];
} state;

static uint64_t reads;

static int64_t count_read(const pst_read *r, int64_t result) {
    (void)r;
    reads++;
    return result;
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* Keys have a namespace or none, and then the key is one column. */
static void begin(state *s, int spaces) {
    memset(s, 0, sizeof *s);
    s->schema = (pst_schema){1 + spaces, 3, KEYS, STATES, 1};
    files_begin(&s->f, &s->schema);
    s->f.keeps = 1;
}

static void set_key(state *s, pst_table *t, int64_t k, int64_t n) {
    pst_cell cells[2] = {{{(uint64_t)k, 0}, {NULL, 0}}, {{(uint64_t)n, 0}, {NULL, 0}}};
    if (s->schema.n_keys == 1)
        REQUIRE(!pst_key_set_word(t, (uint64_t)k));
    else
        REQUIRE(!pst_key_set(t, cells, 0));
}

static void put(state *s, pst_table *t, int64_t k, int64_t n, int64_t value) {
    pst_cell a = {{(uint64_t)value, 0}, {NULL, 0}};
    set_key(s, t, k, n);
    REQUIRE(!pst_value_put(t, 0, &a));
}

/* A table without rows above the files. */
static void begin_anew(state *s, uint64_t limit) {
    if (!s->f.n)
        return;
    pst_table_close(s->f.t);
    s->f.t = files_open(&s->f, limit);
    REQUIRE(!pst_table_seal(s->f.t, &s->f.lineage, NULL));
    pst_table_set_whole(s->f.t, 0);
    files_set_stack(&s->f);
}

static void end(state *s) {
    files_end(&s->f);
}

/* Seals a step; as many rows as may leave. */
static void step(state *s) {
    pst_room all = {UINT64_MAX, 0};
    files_seal(&s->f, s->f.t);
    files_set_stack(&s->f);
    REQUIRE(!pst_table_leave(s->f.t, &all, NULL));
    s->steps++;
}

/* Fires a timer of each key that is due, and counts them; value `a` says which key it is. */
static uint64_t fire(state *s, int64_t until, int64_t least) {
    int64_t times[PART], values[PART];
    uint8_t valid[PART];
    uint64_t fired = 0;
    pst_batch *b = NULL;
    int idle = 0;
    for (;;) {
        pst_status st = pst_timers_due(s->f.t, PST_EVENT, until, PART, times, &b);
        if (st == PST_NO_ROOM) {
            CHECK_EQ(pst_table_detail(s->f.t)->row, 0);
            REQUIRE(idle++ <= s->patience);
            step(s);
            continue;
        }
        if (st == PST_NOT_FOUND)
            return fired;
        REQUIRE(st == PST_OK);
        idle = 0;
        REQUIRE(!pst_batch_get(b, 0, values, valid));
        for (int64_t i = 0; i < pst_batch_length(b); i++) {
            CHECK(times[i] <= until && times[i] >= least);
            if (CHECK(valid[i] && values[i] >= 0 && values[i] < MOST_KEYS))
                s->fired[values[i]]++;
        }
        fired += (uint64_t)pst_batch_length(b);
        st = pst_timers_fire_all(b, PST_EVENT, times);
        pst_batch_destroy(b);
        REQUIRE(!st);
    }
}

/* ---- many of one time ------------------------------------------------------------------------ */

enum { AT = 5000 };

/* All keys, or all namespaces of one key, have a timer at the same time, and some a later one. */
static void run_one_time(int spaces, int64_t keys, uint64_t limit) {
    static state s;
    begin(&s, spaces);
    pst_table *t = files_open(&s.f, (uint64_t)1 << 28);
    for (int64_t k = 0; k < keys; k++) {
        put(&s, t, spaces ? 3 : k, k, k);
        REQUIRE(!pst_timer_register(t, PST_EVENT, AT));
        if (k % 5 == 0)
            REQUIRE(!pst_timer_register(t, PST_EVENT, AT + 1 + k % 3));
    }
    files_seal(&s.f, t);
    pst_table_close(t);
    files_merge(&s.f, 0);
    begin_anew(&s, limit);
    CHECK_EQ(fire(&s, AT - 1, INT64_MIN), 0);
    CHECK_EQ(fire(&s, AT, AT), keys);
    if (getenv("VERBOSE"))
        fprintf(stderr, "%" PRId64 " keys, %" PRIu64 " steps\n", keys, s.steps);
    CHECK(s.steps > 1);
    for (int64_t k = 0; k < keys; k++)
        REQUIRE(CHECK_EQ(s.fired[k], 1));
    CHECK_EQ(fire(&s, AT + 1, AT + 1), (keys + 14) / 15);
    CHECK_EQ(fire(&s, INT64_MAX, AT + 2), (keys + 4) / 5 - (keys + 14) / 15);
    end(&s);
}

/* Timers that a newer file has in place of others: of both a row is made while the table is full. */
static void run_replaced(int64_t keys, uint64_t limit) {
    static state s;
    begin(&s, 0);
    pst_table *t = files_open(&s.f, (uint64_t)1 << 28);
    for (int64_t k = 0; k < keys; k++) {
        put(&s, t, k, 0, k);
        REQUIRE(!pst_timer_register(t, PST_EVENT, 2 * AT + k * 7919 % keys));
    }
    files_seal(&s.f, t);
    for (int64_t k = 0; k < keys; k++) {
        set_key(&s, t, k, 0);
        REQUIRE(!pst_timer_delete(t, PST_EVENT, 2 * AT + k * 7919 % keys));
        REQUIRE(!pst_timer_register(t, PST_EVENT, AT));
    }
    files_seal(&s.f, t);
    pst_table_close(t);
    s.patience = 10;
    begin_anew(&s, limit);
    CHECK_EQ(fire(&s, AT, AT), keys);
    for (int64_t k = 0; k < keys; k++)
        REQUIRE(CHECK_EQ(s.fired[k], 1));
    CHECK(s.steps > 0);
    CHECK_EQ(fire(&s, INT64_MAX, AT), 0);
    end(&s);
}

/* What comes to rows of the very time at which the horizon stands is handed out, too. */
static void test_within_a_time(void) {
    static state s;
    int64_t times[PART];
    pst_batch *b = NULL;
    begin(&s, 0);
    pst_table *t = files_open(&s.f, (uint64_t)1 << 28);
    for (int64_t k = 0; k < 100; k++) {
        put(&s, t, k, 0, k);
        REQUIRE(!pst_timer_register(t, PST_EVENT, AT));
    }
    files_seal(&s.f, t);
    pst_table_close(t);
    files_merge(&s.f, 0);
    begin_anew(&s, (uint64_t)1 << 26);
    REQUIRE(!pst_timers_due(s.f.t, PST_EVENT, AT, PART, times, &b));
    int64_t got = pst_batch_length(b);
    CHECK(got >= 1 && got < PART);
    CHECK_EQ(pst_table_horizon(s.f.t, PST_EVENT), AT);
    CHECK(!pst_horizon_is_beyond(s.f.t, PST_EVENT, AT));
    pst_batch_destroy(b);
    /* Rows that come with timers of that time were not late; a timer that is registered now is, but not
     * one of another epoch. */
    uint64_t missed = pst_timers_missed(s.f.t);
    for (int64_t k = 0; k < 100; k++)
        set_key(&s, s.f.t, k, 0);
    CHECK_EQ(pst_timers_missed(s.f.t), missed);
    REQUIRE(!pst_timer_register(s.f.t, PST_EVENT, AT - 5));
    CHECK_EQ(pst_timers_missed(s.f.t), missed + 1);
    REQUIRE(!pst_table_rollback(s.f.t, 0));
    put(&s, s.f.t, 1000, 0, 1000);
    REQUIRE(!pst_timer_register(s.f.t, PST_EVENT, AT - 5));
    CHECK_EQ(pst_timers_missed(s.f.t), missed + 1);
    REQUIRE(!pst_table_rollback(s.f.t, 0));
    CHECK_EQ(pst_table_horizon(s.f.t, PST_EVENT), INT64_MIN);
    REQUIRE(!pst_timers_due(s.f.t, PST_EVENT, AT, PART, times, &b));
    pst_batch_destroy(b);
    /* Rows whose timers were not fired stay, though others of that time are below. */
    files_seal(&s.f, s.f.t);
    files_set_stack(&s.f);
    pst_room all = {UINT64_MAX, 0}, left;
    put(&s, s.f.t, 1000, 0, 1000); /* no timers */
    files_seal(&s.f, s.f.t);
    files_set_stack(&s.f);
    CHECK_EQ(pst_table_leave(s.f.t, &all, &left), PST_OK);
    CHECK_EQ(left.rows, 1);
    CHECK_EQ(fire(&s, AT, AT), 100);
    for (int64_t k = 0; k < 100; k++)
        CHECK_EQ(s.fired[k], 1);
    end(&s);
}

/* ---- rows with several timers ---------------------------------------------------------------- */

/* They leave together: the timers of all others are gone through a few times, and not once for each
 * epoch in which some leave. One with a timer before the horizon stays. */
static void test_several(void) {
    enum { N = 3000, EARLY = 10 };
    static state s;
    pst_leaving l;
    uint32_t rows = 1;
    uint64_t left = 0, epochs = 0;
    begin(&s, 0);
    s.f.t = files_open(&s.f, (uint64_t)1 << 28);
    for (int64_t k = 0; k < N; k++) {
        put(&s, s.f.t, k, 0, k);
        for (int i = 0; i < 2; i++)
            REQUIRE(!pst_timer_register(s.f.t, i ? PST_EVENT : PST_PROCESSING,
                                        AT + k - (k < EARLY && i ? 2 * AT : 0)));
        if (k % 3 == 0)
            REQUIRE(!pst_timer_register(s.f.t, PST_EVENT, 2 * AT));
    }
    files_seal(&s.f, s.f.t);
    files_merge(&s.f, 0);
    files_set_stack(&s.f);
    for (int d = 0; d < 2; d++)
        REQUIRE(!pst_table_set_horizon(s.f.t, (pst_domain)d, AT));
    pst_leaving_begin(s.f.t, &(pst_room){UINT64_MAX, 0}, &l);
    for (; rows; left += rows, epochs++) {
        REQUIRE(!pst_leave_some(s.f.t, &l, &rows));
        REQUIRE(!rows || (!pst_table_seal(s.f.t, &s.f.lineage, NULL) && !pst_table_settle(s.f.t)));
    }
    CHECK(pst_leaving_is_done(&l));
    pst_leaving_end(&l);
    CHECK_EQ(left, N - EARLY);
    CHECK_EQ(l.left.rows, left);
    CHECK(epochs > N / PST_LEAVE_MOST);
    CHECK(l.walked < 40 * N);
    CHECK_EQ(fire(&s, AT, INT64_MIN), EARLY + 0);
    CHECK_EQ(fire(&s, INT64_MAX, AT), N - EARLY + N / 3);
    end(&s);
}

/* ---- the ends of time ------------------------------------------------------------------------ */

static void test_ends(void) {
    static const int64_t times[] = {INT64_MIN, INT64_MIN + 1, -1, 0, INT64_MAX - 1, INT64_MAX};
    enum { N = sizeof times / sizeof *times };
    for (int until = 0; until < N; until++) {
        static state s;
        begin(&s, 0);
        pst_table *t = files_open(&s.f, (uint64_t)1 << 28);
        for (int64_t k = 0; k < N; k++) {
            put(&s, t, k, 0, k);
            REQUIRE(!pst_timer_register(t, PST_EVENT, times[k]));
        }
        files_seal(&s.f, t);
        pst_table_close(t);
        files_merge(&s.f, 0);
        begin_anew(&s, (uint64_t)1 << 26);
        CHECK_EQ(fire(&s, times[until], INT64_MIN), (uint64_t)until + 1);
        step(&s);
        int64_t next = 0;
        if (until == N - 1)
            CHECK_EQ(pst_timer_next(s.f.t, PST_EVENT, &next), PST_NOT_FOUND);
        else if (CHECK_EQ(pst_timer_next(s.f.t, PST_EVENT, &next), PST_OK))
            CHECK_EQ(next, times[until + 1]);
        CHECK_EQ(fire(&s, INT64_MAX, times[until]), (uint64_t)(N - 1 - until));
        end(&s);
    }
}

/* ---- what is read ---------------------------------------------------------------------------- */

/* Nothing is read again while the horizon stays, nor for what was found and did not fit. */
static void test_reads(void) {
    static state s;
    int64_t next, times[PART];
    pst_batch *b = NULL;
    uint64_t due = 0;
    begin(&s, 0);
    pst_table *t = files_open(&s.f, (uint64_t)1 << 28);
    for (int64_t k = 0; k < 9000; k++) {
        due += k * 37 % 5000 < 100;
        if (k % 3000 == 1)
            files_seal(&s.f, t);
        if (k == 1)
            files_merge(&s.f, 0);
        put(&s, t, k, 0, k);
        REQUIRE(!pst_timer_register(t, PST_EVENT, AT + k * 37 % 5000));
        REQUIRE(!pst_timer_register(t, PST_PROCESSING, AT));
    }
    files_seal(&s.f, t);
    pst_table_close(t);
    begin_anew(&s, (uint64_t)1 << 26);
    pst_reads_stats before, after;
    /* Within their time the blocks of all runs are read at once. */
    pst_reads_get_stats(s.f.stack->reads, &before);
    REQUIRE(!pst_table_set_horizon(s.f.t, PST_EVENT, AT + 100));
    CHECK_EQ(pst_timer_next(s.f.t, PST_EVENT, &next), PST_OK);
    pst_reads_get_stats(s.f.stack->reads, &after);
    CHECK_EQ(next, AT + 100);
    CHECK(before.flight_most <= 1);
    CHECK(after.flight_most >= 3);
    begin_anew(&s, (uint64_t)1 << 26);
    pst_read_hook = count_read;
    for (int i = 0; i < 6; i++) {
        reads = 0;
        CHECK_EQ(pst_timer_next(s.f.t, (pst_domain)(i % 2), &next), PST_OK);
        CHECK_EQ(next, AT);
        CHECK_EQ(pst_timers_due(s.f.t, (pst_domain)(i % 2), AT - 1, PART, times, &b),
                 PST_NOT_FOUND);
        CHECK(i < 2 ? reads > 1 : reads == 0);
    }
    /* Then each block of hints is read once, and the rows' blocks. */
    uint64_t fired = 0;
    reads = 0;
    for (int64_t until = AT; until < AT + 100; until++)
        fired += fire(&s, until, until);
    CHECK_EQ(fired, due);
    CHECK(reads < 2 * fired + 20);
    pst_read_hook = NULL;
    end(&s);
}

/* ---- stale hints ----------------------------------------------------------------------------- */

/* Keys whose timers were fired, and that were deleted with them, in a newer file: hints name them still.
 * They make no rows; and a table that is told up to where there are none does not ask for them. */
static void test_stale(void) {
    enum { N = 600 };
    static state s;
    int64_t times[PART];
    pst_batch *b = NULL;
    begin(&s, 0);
    s.f.t = files_open(&s.f, (uint64_t)1 << 28);
    for (int64_t k = 0; k < N; k++) {
        put(&s, s.f.t, k, 0, k);
        REQUIRE(!pst_timer_register(s.f.t, PST_EVENT, AT + k % 7));
        if (k % 3 == 0)
            REQUIRE(!pst_timer_register(s.f.t, PST_EVENT, AT + 1 + k % 5));
    }
    put(&s, s.f.t, N, 0, N);
    REQUIRE(!pst_timer_register(s.f.t, PST_EVENT, 3 * AT));
    CHECK_EQ(pst_timers_from(s.f.t, PST_EVENT), AT);
    CHECK_EQ(pst_timers_from(s.f.t, PST_PROCESSING), INT64_MAX - 1);
    files_seal(&s.f, s.f.t);
    files_merge(&s.f, 0);
    files_set_stack(&s.f);
    while (!pst_timers_due(s.f.t, PST_EVENT, 2 * AT, PART, times, &b)) {
        REQUIRE(!pst_timers_fire_all(b, PST_EVENT, times));
        pst_batch_destroy(b);
    }
    for (int64_t k = 0; k < N; k++) {
        set_key(&s, s.f.t, k, 0);
        REQUIRE(!pst_value_clear(s.f.t, -1));
    }
    files_seal(&s.f, s.f.t);
    CHECK_EQ(pst_timers_from(s.f.t, PST_EVENT), 3 * AT);
    begin_anew(&s, (uint64_t)1 << 28);
    CHECK_EQ(pst_timers_from(s.f.t, PST_EVENT), INT64_MIN);
    CHECK_EQ(pst_timers_due(s.f.t, PST_EVENT, 2 * AT, PART, times, &b), PST_NOT_FOUND);
    CHECK_EQ(s.f.t->m->slots, 0);
    CHECK_EQ(pst_timers_from(s.f.t, PST_EVENT), 2 * AT + 1);
    pst_stack_stats before, after;
    begin_anew(&s, (uint64_t)1 << 28);
    REQUIRE(!pst_table_set_horizon(s.f.t, PST_EVENT, 3 * AT));
    pst_stack_get_stats(s.f.stack, &before);
    CHECK_EQ(pst_timers_due(s.f.t, PST_EVENT, 2 * AT, PART, times, &b), PST_NOT_FOUND);
    pst_stack_get_stats(s.f.stack, &after);
    CHECK_EQ(after.keys, before.keys);
    CHECK_EQ(fire(&s, 3 * AT, 3 * AT), 1);
    CHECK_EQ(s.fired[N], 1);
    end(&s);
}

/* A table that begins anew goes on within a time, and says no place behind a timer that is here. */
static void test_passed(void) {
    static state s;
    int64_t times[PART];
    pst_batch *b = NULL;
    pst_timers_place place, found;
    begin(&s, 0);
    s.f.t = files_open(&s.f, (uint64_t)1 << 28);
    put(&s, s.f.t, 1, 0, 1);
    REQUIRE(!pst_timer_register(s.f.t, PST_EVENT, AT));
    files_seal(&s.f, s.f.t);
    files_merge(&s.f, 0);
    begin_anew(&s, (uint64_t)1 << 28);
    place = (pst_timers_place){AT, (uint64_t)s.f.t->max_parallelism - 1, UINT64_MAX};
    REQUIRE(!pst_table_set_passed(s.f.t, PST_EVENT, &place));
    REQUIRE(!pst_timers_passed(s.f.t, PST_EVENT, &found));
    CHECK_EQ(memcmp(&found, &place, sizeof place), 0);
    CHECK_EQ(pst_timers_due(s.f.t, PST_EVENT, AT, PART, times, &b), PST_NOT_FOUND);
    REQUIRE(!pst_table_set_passed(s.f.t, PST_EVENT, &place));
    set_key(&s, s.f.t, 1, 0);
    REQUIRE(!pst_timers_passed(s.f.t, PST_EVENT, &found));
    CHECK(found.time_ms == AT && !found.key_group && !found.hash);
    begin_anew(&s, (uint64_t)1 << 28);
    REQUIRE(!pst_table_set_passed(s.f.t, PST_EVENT, &found));
    CHECK_EQ(fire(&s, AT, AT), 1);
    place.key_group++;
    CHECK_EQ(pst_table_set_passed(s.f.t, PST_EVENT, &place), PST_INVALID);
    end(&s);
}

/* 1 where parts leave nothing: `ops` are of the row, capital letters, or of one of two timers. */
static int leave_nothing(const pst_schema *schema, const char *ops) {
    pst_parts p = {.schema = schema};
    uint32_t parts[8], n = 0;
    uint8_t timer[PST_ELEMENT_TIMER] = {0};
    pst_record r = {.op = PST_PUT};
    for (; ops[n]; n++) {
        int row = ops[n] == 'P' || ops[n] == 'D';
        r.op = ops[n] == 'P' || ops[n] == 'p' || ops[n] == 'q' ? PST_PUT : PST_DELETE;
        r.key_nulls = row ? 2 : 0;
        timer[PST_ELEMENT_TIMER - 1] = ops[n] == 'q' || ops[n] == 'e';
        r.key[1].bytes = (pst_bytes){timer, row ? 0 : sizeof timer};
        REQUIRE(!pst_parts_add(&p, n ? parts[n - 1] : PST_NO_PART, 0, &r, &parts[n]));
    }
    int nothing = pst_parts_leave_nothing(&p, parts, n);
    pst_parts_free(&p);
    return nothing;
}

static void test_nothing(void) {
    static const char *none[] = {"D", "PD", "PpDd", "PpdD", "pqDde", "PDD", "DPpDd"};
    static const char *some[] = {"P",    "p",     "d",    "DP",  "PpD",
                                 "PpDe", "PpqDd", "PdpD", "PDp", "PpDdp"};
    static state s;
    begin(&s, 0);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        CHECK_EQ(leave_nothing(s.f.in_files, none[i]), 1);
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        CHECK_EQ(leave_nothing(s.f.in_files, some[i]), 0);
    end(&s);
}

int main(void) {
    test_ends();
    test_within_a_time();
    test_reads();
    test_several();
    test_stale();
    test_passed();
    test_nothing();
    run_one_time(0, 20000, (uint64_t)1 << 20);
    run_one_time(1, 6000, (uint64_t)1 << 19);
    for (uint64_t i = 0; i < 16; i++)
        run_replaced(8000, ((uint64_t)1 << 19) + 9000 * i);
    return check_report();
}
