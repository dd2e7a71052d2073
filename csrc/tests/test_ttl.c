/* Times to live, rule by rule: the time that a write leaves, which equal writes and reads move it,
 * and what has expired and is seen for the last time. */
#include <string.h>

#include "check.h"
#include "files.h"
#include "pystate.h"
#include "table/ttl.h"

enum { N, TEXT = 2, ITEMS = 4, ENTRIES = 6, MEAN = 8, COLUMNS = 10, NOW = 1000, TTL = 100 };

static const pst_column KEY = {.name = "k", .type = PST_INT64};
static const pst_agg_shape SHAPE = {.kind = PST_AGG_MEAN, .type = PST_INT64};
static const char LONG_TEXT[] = "a text that does not fit into a reference";

/* Every other column has the times of the one before it. */
static const pst_schema *schema(void) {
    static pst_column states[COLUMNS] = {
        [N] = {.name = "n", .type = PST_INT64},
        [TEXT] = {.name = "t", .type = PST_STRING},
        [ITEMS] = {.name = "l", .type = PST_INT64, .kind = PST_LIST},
        [ENTRIES] = {.name = "m", .type = PST_INT64, .kind = PST_MAP, .map_key = PST_INT64},
        [MEAN] = {.name = "a", .type = PST_FIXED}};
    static const char *times[COLUMNS] = {"n#", "t#", "l#", "m#", "a#"};
    static const pst_schema s = {1, COLUMNS, &KEY, states, 0};
    uint32_t width;
    REQUIRE(pst_aggregate_width(&SHAPE, &width) == PST_OK);
    states[MEAN].width = (uint16_t)width;
    for (int i = 1; i < COLUMNS; i += 2)
        states[i] = (pst_column){.name = times[i / 2], .type = PST_INT64, .kind = PST_TIME};
    return &s;
}

static void set_ttl(pst_table *t, pst_ttl ttl) {
    for (int32_t i = 0; i < COLUMNS; i += 2)
        REQUIRE(pst_table_set_ttl(t, i, &ttl) == PST_OK);
}

static void set_now(pst_table *t, int64_t now_ms) {
    pst_clock clock = {now_ms, PST_NO_TIME, PST_NO_TIME};
    pst_table_set_clock(t, &clock);
}

/* A table that is told NOW, with key 1 at hand. */
static pst_table *open_table(pst_ttl ttl) {
    pst_table_options o = {.max_parallelism = 1, .limit_bytes = 1 << 26};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(schema(), &o, &t, NULL, NULL) == PST_OK);
    set_ttl(t, ttl);
    set_now(t, NOW);
    REQUIRE(pst_key_set_word(t, 1) == PST_OK);
    return t;
}

static void seal(pst_table *t, uint64_t epoch, pst_sealed **sealed) {
    REQUIRE(pst_table_seal(t, &(pst_lineage){.epoch = epoch}, sealed) == PST_OK);
    REQUIRE(pst_key_set_word(t, 1) == PST_OK);
}

/* ---- the time that a write leaves ------------------------------------------------------------ */

static pst_cell word(int64_t value) {
    return (pst_cell){{(uint64_t)value, 0}, {NULL, 0}};
}

static void put(pst_table *t, int64_t value) {
    pst_cell cell = word(value);
    CHECK_EQ(pst_value_put(t, N, &cell), PST_OK);
}

/* The time of the only row's value. */
static int64_t written(pst_table *t) {
    return pst_row_time(t, pst_row(t, 0), N);
}

static int64_t stamp_with(pst_table *t, pst_ttl ttl, pst_clock clock) {
    set_ttl(t, ttl);
    pst_table_set_clock(t, &clock);
    return pst_ttl_stamp(t, N);
}

static void test_stamps(void) {
    pst_table *t = open_table((pst_ttl){.duration_ms = TTL});
    const pst_clock none = {PST_NO_TIME, PST_NO_TIME, PST_NO_TIME};
    const pst_clock at[] = {{NOW, 5, 7}, {NOW, 7, 5}, {NOW, 7, PST_NO_TIME}};
    pst_ttl plain = {.duration_ms = TTL}, event = {.duration_ms = TTL, .event_time = 1};
    CHECK_EQ(stamp_with(t, plain, none), PST_NO_TIME);
    CHECK_EQ(stamp_with(t, event, none), PST_NO_TIME);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(stamp_with(t, plain, at[i]), NOW);
        CHECK_EQ(stamp_with(t, event, at[i]), 7);
    }
    for (int e = 0; e < 2; e++) {
        pst_ttl ahead = {.duration_ms = TTL, .event_time = (uint8_t)e};
        int64_t now = e ? 7 : NOW;
        for (ahead.ahead_ms = -3; ahead.ahead_ms <= 3; ahead.ahead_ms++) {
            CHECK_EQ(stamp_with(t, ahead, at[0]), now + ahead.ahead_ms);
            CHECK_EQ(stamp_with(t, ahead, none), PST_NO_TIME);
        }
        ahead.ahead_ms = INT64_MAX;
        CHECK_EQ(stamp_with(t, ahead, at[0]), INT64_MAX);
    }
    /* The time of what was seen for the last time, and none at all, are nobody's. */
    pst_ttl back = {.duration_ms = TTL, .ahead_ms = INT64_MIN};
    for (int64_t now = -3; now <= 3; now++) {
        int64_t least = now < 2 ? PST_SHOWN_TIME + 1 : INT64_MIN + now;
        pst_clock first = {PST_SHOWN_TIME + 3 + now, PST_NO_TIME, PST_NO_TIME};
        CHECK_EQ(stamp_with(t, back, (pst_clock){now, PST_NO_TIME, PST_NO_TIME}), least);
        back.ahead_ms = -3;
        CHECK_EQ(stamp_with(t, back, first), now < 1 ? PST_SHOWN_TIME + 1 : PST_SHOWN_TIME + now);
        back.ahead_ms = INT64_MIN;
    }
    CHECK_EQ(stamp_with(t, plain, (pst_clock){PST_SHOWN_TIME, PST_NO_TIME, PST_NO_TIME}),
             PST_SHOWN_TIME + 1);
    pst_table_close(t);
}

/* What is stored keeps its expiry where another duration is asked for: what is written anew expires
 * by that one. */
static void test_ahead(void) {
    pst_cell cell;
    for (int64_t ahead = -60; ahead <= 60; ahead += 120) {
        pst_table *t = open_table((pst_ttl){.duration_ms = TTL});
        put(t, 5);
        set_ttl(t, (pst_ttl){.duration_ms = TTL, .ahead_ms = ahead, .goes_back = 1});
        set_now(t, NOW + TTL - 1);
        CHECK_EQ(pst_value_get(t, N, &cell), PST_OK);
        set_now(t, NOW + TTL);
        CHECK_EQ(pst_value_get(t, N, &cell), PST_NOT_FOUND);
        put(t, 6);
        CHECK_EQ(written(t), NOW + TTL + ahead);
        set_now(t, NOW + TTL + ahead + TTL - 1);
        CHECK_EQ(pst_value_get(t, N, &cell), PST_OK);
        set_now(t, NOW + TTL + ahead + TTL);
        CHECK_EQ(pst_value_get(t, N, &cell), PST_NOT_FOUND);
        pst_table_close(t);
    }
}

/* An equal write moves a time by the granularity or more, and back only where that is wanted. */
static void test_equal_writes(void) {
    for (int back = 0; back < 2; back++) {
        pst_ttl ttl = {.duration_ms = TTL, .granularity_ms = 10, .goes_back = (uint8_t)back};
        pst_table *t = open_table(ttl);
        pst_cell key = word(1), value = word(2), shown;
        int is_null;
        put(t, 5);
        CHECK_EQ(pst_map_put(t, ENTRIES, &key, &value), PST_OK);
        seal(t, 1, NULL);
        for (int64_t moved = 0; moved < 10; moved++) {
            set_now(t, NOW + moved);
            put(t, 5);
            CHECK_EQ(pst_map_put(t, ENTRIES, &key, &value), PST_OK);
        }
        CHECK_EQ(written(t), NOW);
        set_now(t, NOW + 10);
        put(t, 5);
        CHECK_EQ(pst_map_put(t, ENTRIES, &key, &value), PST_OK);
        CHECK_EQ(written(t), NOW + 10);
        /* As with a shorter time to live than what is there was written with. */
        ttl.ahead_ms = -50;
        set_ttl(t, ttl);
        put(t, 5);
        CHECK_EQ(pst_map_put(t, ENTRIES, &key, &value), PST_OK);
        CHECK_EQ(written(t), back ? NOW - 40 : NOW + 10);
        set_now(t, NOW + 60);
        CHECK_EQ(pst_value_get(t, N, &shown), back ? PST_NOT_FOUND : PST_OK);
        CHECK_EQ(pst_map_get(t, ENTRIES, &key, &shown, &is_null), back ? PST_NOT_FOUND : PST_OK);
        /* Another value has the time of its write in any case. */
        put(t, 6);
        CHECK_EQ(written(t), NOW + 10);
        ttl.ahead_ms = -55;
        set_ttl(t, ttl);
        put(t, 7);
        CHECK_EQ(written(t), NOW + 5);
        pst_table_close(t);
    }
}

/* A late row does not shorten the time for which what a newer one wrote is kept, be the value the same
 * or another; of what has expired, and of times that no row gave, nothing is left. */
static void test_late_writes(void) {
    pst_ttl ttl = {.duration_ms = TTL, .granularity_ms = 10, .event_time = 1};
    for (int back = 0; back < 2; back++) {
        ttl.goes_back = (uint8_t)back;
        pst_table *t = open_table(ttl);
        pst_cell one = word(1), shown;
        int is_null;
        for (int64_t value = 0; value < 4; value++) {
            int64_t event = value == 1 ? NOW + 50 : NOW + value;
            pst_table_set_clock(t, &(pst_clock){0, NOW, event});
            pst_cell cell = word(value);
            put(t, value);
            CHECK_EQ(pst_map_put(t, ENTRIES, &one, &cell), PST_OK);
            CHECK_EQ(pst_aggregate_add(t, MEAN, &SHAPE, &cell), PST_OK);
            int64_t newest = value && !back ? NOW + 50 : event;
            CHECK_EQ(written(t), newest);
            CHECK_EQ(pst_row_time(t, pst_row(t, 0), MEAN), newest);
        }
        int64_t until = TTL + (back ? NOW + 3 : NOW + 50);
        for (int64_t now = until - 1; now <= until; now++) {
            pst_status found = now == until ? PST_NOT_FOUND : PST_OK;
            pst_table_set_clock(t, &(pst_clock){0, now, PST_NO_TIME});
            CHECK_EQ(pst_value_get(t, N, &shown), found);
            CHECK_EQ(pst_map_get(t, ENTRIES, &one, &shown, &is_null), found);
        }
        put(t, 7);
        CHECK_EQ(written(t), until);
        pst_table_set_clock(t, &(pst_clock){0, PST_NO_TIME, PST_NO_TIME});
        put(t, 8);
        CHECK_EQ(written(t), PST_NO_TIME);
        pst_table_close(t);
    }
    /* The clock of a machine that was set back is another matter: what is written has its time. */
    pst_table *t = open_table((pst_ttl){.duration_ms = TTL});
    put(t, 5);
    set_now(t, NOW - 50);
    put(t, 6);
    CHECK_EQ(written(t), NOW - 50);
    pst_table_close(t);
}

/* ---- what is seen for the last time ---------------------------------------------------------- */

enum { ALL = 31 };

static void fill(pst_table *t) {
    pst_cell text = {{0, 0}, {(const uint8_t *)LONG_TEXT, sizeof LONG_TEXT}}, one = word(1);
    put(t, 5);
    CHECK_EQ(pst_value_put(t, TEXT, &text), PST_OK);
    CHECK_EQ(pst_list_add(t, ITEMS, &one), PST_OK);
    CHECK_EQ(pst_list_add(t, ITEMS, &one), PST_OK);
    CHECK_EQ(pst_map_put(t, ENTRIES, &one, &one), PST_OK);
    CHECK_EQ(pst_aggregate_add(t, MEAN, &SHAPE, &one), PST_OK);
}

/* Elements that a walk finds; it ends after `most`. */
static uint64_t walked(pst_table *t, int32_t column, uint64_t most) {
    pst_elements *e = NULL;
    pst_cell key, value;
    pst_status s = PST_OK;
    uint64_t n = 0;
    REQUIRE(pst_elements_create(t, &e) == PST_OK && pst_elements_start(e, column) == PST_OK);
    while (n < most && (s = pst_elements_next(e, &key, &value)) == PST_OK)
        n++;
    CHECK_EQ(pst_elements_leave(e), PST_OK);
    CHECK_EQ(pst_elements_next(e, &key, &value), PST_NOT_FOUND);
    pst_elements_destroy(e);
    return n;
}

/* Which states the key at hand has, one bit each. */
static int one_by_one(pst_table *t) {
    pst_cell cell, key = word(1);
    int is_null, found = pst_value_get(t, N, &cell) == PST_OK;
    if (pst_value_get(t, TEXT, &cell) == PST_OK)
        found |= 2 * (cell.bytes.size == sizeof LONG_TEXT &&
                      !memcmp(cell.bytes.data, LONG_TEXT, sizeof LONG_TEXT));
    found |= 4 * (walked(t, ITEMS, UINT64_MAX) == 2);
    found |= 8 * (pst_map_get(t, ENTRIES, &key, &cell, &is_null) == PST_OK && cell.word[0] == 1);
    found |= 16 * (pst_value_get(t, MEAN, &cell) == PST_OK);
    return found;
}

/* The same by walks that end early, or over a map instead of a look-up. */
static int in_part(pst_table *t) {
    pst_cell cell;
    int found = pst_value_get(t, N, &cell) == PST_OK;
    found |= 2 * (pst_value_get(t, TEXT, &cell) == PST_OK);
    found |= 4 * (walked(t, ITEMS, 1) == 1);
    found |= 8 * (walked(t, ENTRIES, 1) == 1);
    found |= 16 * (pst_value_get(t, MEAN, &cell) == PST_OK);
    return found;
}

/* The same for a batch that has the key twice, with one between that has nothing. */
static int many(pst_table *t) {
    enum { ROWS = 3 };
    static const int64_t keys[ROWS] = {1, 2, 1}, places[ROWS] = {1, 1, 1};
    pst_array k = {.type = PST_INT64, .length = ROWS, .values = keys}, at = k;
    pst_batch *b = NULL;
    int64_t values[ROWS], offsets[ROWS + 1], items[2 * ROWS];
    int32_t ends[ROWS + 1];
    uint8_t text[2 * sizeof LONG_TEXT], state[ROWS * PST_MAX_FIXED];
    uint8_t valid[5][ROWS];
    int found = 0;
    at.values = places;
    REQUIRE(pst_batch_create(t, &k, &b) == PST_OK);
    pst_get gets[2] = {{N, values, valid[0]}, {MEAN, state, valid[4]}};
    CHECK_EQ(pst_batch_get_all(b, 2, gets), PST_OK);
    pst_bytes_out out = {.offsets = ends, .valid = valid[1]};
    CHECK_EQ(pst_batch_get_bytes(b, TEXT, &out), PST_OK);
    out.data = text;
    out.capacity = sizeof text;
    if (ends[ROWS])
        CHECK_EQ(pst_batch_get_bytes(b, TEXT, &out), PST_OK);
    CHECK_EQ(pst_batch_element_offsets(b, ITEMS, offsets), PST_OK);
    CHECK_EQ(pst_batch_list_copy(b, ITEMS, offsets, items, sizeof items), PST_OK);
    CHECK_EQ(pst_batch_elements_read(b, ITEMS), PST_OK);
    for (int i = 0; i < ROWS; i++)
        valid[2][i] = (uint8_t)(offsets[i + 1] - offsets[i] == 2);
    CHECK_EQ(pst_batch_map_get(b, ENTRIES, &at, values, valid[3]), PST_OK);
    for (int c = 0; c < 5; c++) {
        CHECK_EQ(valid[c][0], valid[c][2]);
        CHECK_EQ(valid[c][1], 0);
        found |= valid[c][0] << c;
    }
    pst_batch_destroy(b);
    return found;
}

static int (*const READS[])(pst_table *) = {one_by_one, in_part, many};
enum { WAYS = sizeof READS / sizeof *READS };

static void test_shown_once(void) {
    for (int way = 0; way < WAYS; way++)
        for (int on_read = 0; on_read < 2; on_read++) {
            pst_ttl ttl = {.duration_ms = TTL, .lenient = 1, .on_read = (uint8_t)on_read};
            pst_table *t = open_table(ttl);
            uint64_t count = 0;
            pst_table_stats stats;
            fill(t);
            seal(t, 1, NULL);
            set_now(t, on_read ? NOW : NOW + TTL - 1);
            CHECK_EQ(READS[way](t), ALL);
            pst_table_get_stats(t, &stats);
            CHECK_EQ(stats.changed_rows, 0); /* nothing has changed by that */
            set_now(t, NOW + TTL);
            CHECK_EQ(pst_elements_count(t, ITEMS, &count), PST_OK);
            CHECK_EQ(count, 2); /* counting them does not show them */
            CHECK_EQ(READS[way](t), ALL);
            for (int again = 0; again < WAYS; again++)
                CHECK_EQ(READS[again](t), 0);
            /* An epoch that is computed again sees it again. */
            REQUIRE(pst_table_rollback(t, 0) == PST_OK);
            REQUIRE(pst_key_set_word(t, 1) == PST_OK);
            CHECK_EQ(READS[way](t), ALL);
            seal(t, 2, NULL);
            CHECK_EQ(READS[way](t), 0);
            /* What was there counts as new, also where it is equal. */
            fill(t);
            CHECK_EQ(READS[way](t), ALL);
            CHECK_EQ(READS[way](t), ALL);
            pst_table_close(t);
        }
}

/* Also for a table that is restored and does not know the time, and if the strict read it. */
static void test_shown_in_files(void) {
    for (int lenient = 0; lenient < 2; lenient++)
        for (int way = 0; way < WAYS; way++) {
            pst_ttl ttl = {.duration_ms = TTL, .lenient = 1};
            pst_table *t = open_table(ttl);
            pst_sealed *sealed = NULL;
            memory_file f = {.calls_left = -1};
            pst_io io = file_io(&f, 1);
            pst_file_info info;
            pst_sst_reader *reader = NULL;
            fill(t);
            set_now(t, NOW + TTL);
            CHECK_EQ(READS[way](t), ALL);
            seal(t, 1, &sealed);
            REQUIRE(pst_sealed_write(sealed, &io, &info) == PST_OK);
            pst_sealed_destroy(sealed);
            pst_table_close(t);
            ttl.lenient = (uint8_t)lenient;
            t = open_table(ttl);
            set_now(t, PST_NO_TIME);
            REQUIRE(file_open(&f, &reader) == PST_OK);
            int32_t columns[COLUMNS];
            for (int32_t i = 0; i < COLUMNS; i++)
                columns[i] = i;
            CHECK_EQ(pst_table_load(t, reader, columns, COLUMNS, NULL), PST_OK);
            REQUIRE(pst_key_set_word(t, 1) == PST_OK);
            CHECK_EQ(READS[way](t), 0);
            /* A write before the clock is known has no time yet. */
            fill(t);
            CHECK_EQ(written(t), PST_NO_TIME);
            set_now(t, NOW + TTL);
            CHECK_EQ(READS[way](t), ALL);
            CHECK_EQ(READS[way](t), ALL);
            pst_sst_reader_close(reader);
            file_free(&f);
            pst_table_close(t);
        }
}

/* What is added to it counts it in, and what goes before anybody reads it was not seen. */
static void test_not_shown(void) {
    pst_ttl ttl = {.duration_ms = TTL, .lenient = 1};
    pst_table *t = open_table(ttl);
    pst_cell one = word(1), cell;
    uint8_t both[PST_MAX_FIXED];
    uint64_t removed = 0;
    int64_t two = 2;
    pst_array add = {.type = PST_INT64, .length = 1, .values = &two};
    pst_array key = {.type = PST_INT64, .length = 1, .values = &(int64_t){1}};
    pst_batch *b = NULL;
    fill(t);
    set_now(t, NOW + TTL);
    REQUIRE(pst_batch_create(t, &key, &b) == PST_OK);
    CHECK_EQ(pst_batch_apply(b, N, PST_ADD, &add), PST_OK);
    pst_batch_destroy(b);
    CHECK_EQ(pst_value_get(t, N, &cell), PST_OK);
    CHECK_EQ(cell.word[0], 7);
    CHECK_EQ(pst_aggregate_add(t, MEAN, &SHAPE, &one), PST_OK);
    CHECK_EQ(pst_value_get(t, MEAN, &cell), PST_OK);
    memcpy(both, cell.bytes.data, cell.bytes.size);
    REQUIRE(pst_key_set_word(t, 2) == PST_OK);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pst_aggregate_add(t, MEAN, &SHAPE, &one), PST_OK);
    CHECK_EQ(pst_value_get(t, MEAN, &cell), PST_OK);
    CHECK_EQ(memcmp(both, cell.bytes.data, cell.bytes.size), 0);
    REQUIRE(pst_key_set_word(t, 1) == PST_OK);
    CHECK_EQ(pst_map_remove(t, ENTRIES, &one), PST_OK);
    CHECK_EQ(pst_table_expire(t, 1000, &removed), PST_OK);
    CHECK_EQ(removed, 3); /* the text and two items */
    CHECK_EQ(one_by_one(t), 1 | 16);
    CHECK_EQ(one_by_one(t), 1 | 16);
    /* Once seen it is not counted in. */
    set_now(t, NOW + 2 * TTL);
    CHECK_EQ(pst_value_get(t, N, &cell), PST_OK);
    REQUIRE(pst_batch_create(t, &key, &b) == PST_OK);
    CHECK_EQ(pst_batch_apply(b, N, PST_ADD, &add), PST_OK);
    pst_batch_destroy(b);
    CHECK_EQ(pst_value_get(t, N, &cell), PST_OK);
    CHECK_EQ(cell.word[0], 2);
    pst_table_close(t);
}

/* Of elements those that have expired go, and the others stay, whoever walked how far. */
static void test_shown_elements(void) {
    for (uint64_t most = 1; most <= 200; most *= 2) {
        pst_table *t = open_table((pst_ttl){.duration_ms = TTL, .lenient = 1});
        for (int64_t i = 0; i < 100; i++) {
            pst_cell cell = word(i);
            set_now(t, i % 3 ? NOW : NOW + 50);
            CHECK_EQ(pst_list_add(t, ITEMS, &cell), PST_OK);
            CHECK_EQ(pst_map_put(t, ENTRIES, &cell, &cell), PST_OK);
        }
        set_now(t, NOW + TTL);
        for (int32_t column = ITEMS; column <= ENTRIES; column += 2) {
            uint64_t found = walked(t, column, most), left;
            CHECK_EQ(found, most < 100 ? most : 100);
            CHECK_EQ(pst_elements_count(t, column, &left), PST_OK);
            CHECK_EQ(left, 34);
            CHECK_EQ(walked(t, column, UINT64_MAX), 34);
        }
        pst_table_close(t);
    }
}

int main(void) {
    test_stamps();
    test_ahead();
    test_equal_writes();
    test_late_writes();
    test_shown_once();
    test_shown_in_files();
    test_not_shown();
    test_shown_elements();
    return check_report();
}
