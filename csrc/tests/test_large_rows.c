/* Values, lists and maps of all sizes in a table with little memory: what is refused is done after a
 * step, from where it was, and no epoch is lost.
 */
#include <math.h>

#include "access/batch.h"
#include "fetch/room.h"
#include "memory/span.h"
#include "ownership.h"
#include "table_files.h"

enum { KEYS = 200, MOST_ITEMS = 12, ENTRIES = 6, MOST_BATCH = 40 };
enum {
    VALUE = 0,
    LIST = 1,
    MAP = 2,
    WRITES = 3,
    READ = 3,
    CLEAR = 4,
    REMOVE = 5,
    SEAL = 6,
    OPS = 7
};

static const pst_column KEY = {.name = "k", .type = PST_INT64};
static const pst_column STATES[] = {
    {.name = "v", .type = PST_STRING},
    {.name = "l", .type = PST_BINARY, .kind = PST_LIST},
    {.name = "m", .type = PST_BINARY, .kind = PST_MAP, .map_key = PST_STRING}};
static const pst_schema SCHEMA = {1, 3, &KEY, STATES, 0};

/* Bytes that their size and seed say; size 0 with seed 0: none. */
typedef struct text {
    uint32_t size;
    uint32_t seed;
} text;

typedef struct model {
    text value;
    text items[MOST_ITEMS];
    int n;
    text entries[ENTRIES];
} model;

typedef struct state {
    files f;
    uint64_t random;
    uint64_t limit;
    uint32_t largest;
    model keys[KEYS];
    uint64_t refused[WRITES]; /* batches that went on after a step */
    uint64_t alone[WRITES];   /* likewise of one key */
    uint64_t cut;             /* whose rows did not come together */
    uint64_t anew;
    uint64_t read;
} state;

static uint8_t *bytes_of(text x) {
    static uint8_t bytes[MOST_BATCH + 1][1 << 20];
    static int next;
    uint8_t *at = bytes[next++ % (MOST_BATCH + 1)];
    for (uint32_t i = 0; i < x.size; i++)
        at[i] = (uint8_t)(x.seed * 31 + i * (x.seed % 7 + 1));
    return at;
}

static text draw_text(state *s) {
    double of = (double)(check_random(&s->random) % 10000) / 10000;
    return (text){(uint32_t)exp(of * log(s->largest)), (uint32_t)check_random(&s->random) | 1};
}

static int is_text(text x, pst_bytes found) {
    return x.seed && found.size == x.size && !memcmp(bytes_of(x), found.data, x.size);
}

/* ---- room -------------------------------------------------------------------------------------- */

static void step(state *s, uint64_t keys) {
    uint64_t fits;
    pst_room leave, left;
    files_seal(&s->f, s->f.t);
    files_set_stack(&s->f);
    check_ownership(s->f.t);
    CHECK_EQ(pst_table_room(s->f.t, keys, &fits, &leave), PST_OK);
    if (!s->f.n)
        return;
    /* At the very end of what makes room may take none leaves: a new table has the whole limit. */
    pst_status st = pst_table_leave(s->f.t, &leave, &left);
    CHECK(st == PST_OK || st == PST_LIMIT);
    check_ownership(s->f.t);
}

static void open_above(state *s, const pst_lineage *l) {
    s->f.t = files_open(&s->f, s->limit);
    pst_table_set_steps(s->f.t, 1);
    pst_table_set_whole_rows(s->f.t, 512);
    REQUIRE(!pst_table_seal(s->f.t, l, NULL));
    if (s->f.n)
        pst_table_set_whole(s->f.t, 0);
    files_set_stack(&s->f);
}

/* A new table in the place of this one, which has nothing that its files have not. */
static void begin_anew(state *s) {
    files_seal(&s->f, s->f.t);
    pst_lineage l = lineage_of(s->f.t);
    pst_table_close(s->f.t);
    open_above(s, &l);
    s->anew++;
}

/* What makes room may pass the limit by an eighth, and so may rings. */
static void check_limit(const state *s) {
    pst_table_stats stats;
    pst_table_get_stats(s->f.t, &stats);
    CHECK(stats.committed_bytes <= s->limit + s->limit / 8);
}

/* After a refusal with nothing done: first rows leave, then there are fewer keys, and in the end all
 * memory is for one. */
static void make_room(state *s, int *tried, int64_t fits, int64_t *n) {
    check_limit(s);
    CHECK(!s->f.t->poisoned);
    if (*tried && *n > 1)
        *n = fits > 0 && fits < *n ? fits : *n / 4 + 1 < *n ? *n / 4 + 1 : 1;
    REQUIRE(*tried < 2);
    if (*tried && *n == 1) {
        begin_anew(s);
        *tried = 2;
        return;
    }
    step(s, (uint64_t)*n);
    *tried = 1;
}

/* ---- writes ------------------------------------------------------------------------------------ */

typedef struct batch {
    int64_t keys[MOST_BATCH];
    text texts[MOST_BATCH];
    int at[MOST_BATCH]; /* of maps: the entry */
    int64_t n;
} batch;

static void draw_batch(state *s, batch *b) {
    static const int64_t sizes[] = {1, 1, 4, MOST_BATCH};
    uint64_t all = 0;
    int64_t n = sizes[check_random(&s->random) % 4];
    for (b->n = 0; b->n < n && all < s->limit / 4; b->n++) {
        b->keys[b->n] = (int64_t)(check_random(&s->random) % KEYS);
        b->texts[b->n] = draw_text(s);
        b->at[b->n] = (int)(check_random(&s->random) % ENTRIES);
        all += b->texts[b->n].size;
    }
}

static void note(state *s, int op, const batch *b, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++) {
        model *m = &s->keys[b->keys[i]];
        if (op == VALUE)
            m->value = b->texts[i];
        else if (op == LIST)
            m->items[m->n++] = b->texts[i];
        else
            m->entries[b->at[i]] = b->texts[i];
    }
}

/* Column of texts as Arrow has it. */
static pst_array column_of(const batch *b, int64_t from, int64_t n, pst_type type) {
    static uint8_t data[4 << 20];
    static int32_t offsets[MOST_BATCH + 1];
    for (int64_t i = 0; i < n; i++) {
        text x = b->texts[from + i];
        REQUIRE((size_t)offsets[i] + x.size <= sizeof data);
        memcpy(data + offsets[i], bytes_of(x), x.size);
        offsets[i + 1] = offsets[i] + (int32_t)x.size;
    }
    return (pst_array){
        .type = type, .length = n, .values = data, .offsets = offsets, .values_bytes = offsets[n]};
}

static pst_array names_of(const batch *b, int64_t from, int64_t n) {
    static uint8_t data[20 * MOST_BATCH];
    static int32_t offsets[MOST_BATCH + 1];
    for (int64_t i = 0; i < n; i++) {
        memset(data + offsets[i], 'a' + b->at[from + i], 20);
        offsets[i + 1] = offsets[i] + 20;
    }
    return (pst_array){.type = PST_STRING,
                       .length = n,
                       .values = data,
                       .offsets = offsets,
                       .values_bytes = offsets[n]};
}

static pst_status write_some(state *s, int op, const batch *b, int64_t from, int64_t n) {
    pst_array k = {.type = PST_INT64, .length = n, .values = b->keys + from};
    pst_array v = column_of(b, from, n, op == VALUE ? PST_STRING : PST_BINARY), names;
    pst_batch *made = NULL;
    uint64_t absent;
    REQUIRE(!pst_batch_create(s->f.t, &k, &made));
    pst_status st = pst_batch_fetch(made, 0, &absent);
    s->cut += st == PST_NO_ROOM;
    if (st == PST_NO_ROOM && n > 1) {
        pst_batch_destroy(made);
        return PST_BUSY;
    }
    if (!st && op == VALUE)
        st = pst_batch_put(made, VALUE, &v);
    else if (!st && op == LIST)
        st = pst_batch_list_append(made, LIST, &v);
    else if (!st) {
        names = names_of(b, from, n);
        st = pst_batch_map_put(made, MAP, &names, &v);
    }
    s->refused[op] += st == PST_NO_ROOM;
    pst_batch_destroy(made);
    return st;
}

static void write_batch(state *s, int op) {
    batch b;
    draw_batch(s, &b);
    if (op == LIST)
        for (int64_t i = 0, added[KEYS] = {0}; i < b.n; i++)
            if (s->keys[b.keys[i]].n + ++added[b.keys[i]] > MOST_ITEMS)
                b.n = i;
    int tried = 0;
    for (int64_t at = 0, n = b.n; at < b.n;) {
        pst_status st = write_some(s, op, &b, at, n);
        int64_t row = pst_table_detail(s->f.t)->row, done = st == PST_OK ? n : 0;
        if (st == PST_NO_ROOM) {
            REQUIRE(row >= 0 && row < n);
            done = row;
        }
        REQUIRE(st == PST_OK || st == PST_NO_ROOM || st == PST_BUSY);
        note(s, op, &b, at, at + done);
        at += done;
        if (done) {
            tried = 0;
            n = b.n - at;
        }
        if (st)
            make_room(s, &tried, st == PST_BUSY ? row : 0, &n);
    }
}

static pst_status write_key(state *s, int op, int64_t key, int at, text x) {
    pst_cell v = {{0, 0}, {bytes_of(x), x.size}}, name = {{0, 0}, {NULL, 20}};
    uint8_t letters[20];
    pst_status st = pst_key_set_word(s->f.t, (uint64_t)key);
    memset(letters, 'a' + at, sizeof letters);
    name.bytes.data = letters;
    if (st)
        return st;
    if (op == VALUE)
        st = pst_value_put(s->f.t, VALUE, &v);
    else if (op == LIST)
        st = pst_list_add(s->f.t, LIST, &v);
    else
        st = pst_map_put(s->f.t, MAP, &name, &v);
    s->alone[op] += st == PST_NO_ROOM;
    return st;
}

static void write_keys(state *s, int op) {
    batch b;
    draw_batch(s, &b);
    for (int64_t i = 0; i < b.n; i++) {
        int tried = 0;
        pst_status st;
        if (op == LIST && s->keys[b.keys[i]].n == MOST_ITEMS)
            continue;
        while ((st = write_key(s, op, b.keys[i], b.at[i], b.texts[i])) == PST_NO_ROOM) {
            int64_t one = 1;
            make_room(s, &tried, 0, &one);
        }
        REQUIRE(!st);
        note(s, op, &b, i, i + 1);
    }
}

/* ---- reads ------------------------------------------------------------------------------------- */

static void set_key(state *s, int64_t key) {
    int tried = 0;
    pst_status st;
    while ((st = pst_key_set_word(s->f.t, (uint64_t)key)) == PST_NO_ROOM) {
        int64_t one = 1;
        make_room(s, &tried, 0, &one);
    }
    REQUIRE(!st);
}

static void check_key(state *s, int64_t key) {
    const model *m = &s->keys[key];
    pst_elements *e;
    pst_cell name, cell;
    set_key(s, key);
    pst_status st = pst_value_get(s->f.t, VALUE, &cell);
    if (CHECK_EQ(st, m->value.seed ? PST_OK : PST_NOT_FOUND) && !st)
        CHECK(is_text(m->value, cell.bytes));
    REQUIRE(!pst_elements_create(s->f.t, &e));
    REQUIRE(!pst_elements_start(e, LIST));
    int n = 0;
    for (; !pst_elements_next(e, &name, &cell); n++)
        CHECK(n < m->n && is_text(m->items[n], cell.bytes));
    CHECK_EQ(n, m->n);
    REQUIRE(!pst_elements_start(e, MAP));
    int there = 0, found = 0;
    for (int i = 0; i < ENTRIES; i++)
        there += m->entries[i].seed != 0;
    for (; !pst_elements_next(e, &name, &cell); found++)
        CHECK(is_text(m->entries[name.bytes.data[0] - 'a'], cell.bytes));
    CHECK_EQ(found, there);
    pst_elements_destroy(e);
    s->read++;
}

static void clear_key(state *s, int64_t key, int column) {
    model *m = &s->keys[key];
    set_key(s, key);
    REQUIRE(!pst_value_clear(s->f.t, column));
    if (column == VALUE)
        m->value = (text){0, 0};
    if (column == LIST)
        m->n = 0;
    if (column == MAP)
        memset(m->entries, 0, sizeof m->entries);
}

static void remove_entry(state *s, int64_t key, int at) {
    uint8_t letters[20];
    pst_cell name = {{0, 0}, {letters, sizeof letters}};
    memset(letters, 'a' + at, sizeof letters);
    set_key(s, key);
    CHECK_EQ(pst_map_remove(s->f.t, MAP, &name),
             s->keys[key].entries[at].seed ? PST_OK : PST_NOT_FOUND);
    s->keys[key].entries[at] = (text){0, 0};
}

/* ---- all of it --------------------------------------------------------------------------------- */

/* In each run rows do not come together and writes are refused; `each`: so often that every kind is. */
static void run(uint64_t limit, uint32_t largest, int kinds, int rounds, uint64_t seed, int each) {
    static state s;
    pst_lineage l = {.epoch = 1};
    memset(&s, 0, sizeof s);
    files_begin(&s.f, &SCHEMA);
    s.random = seed;
    s.limit = limit;
    s.largest = largest;
    open_above(&s, &l);
    for (int i = 0; i < rounds; i++) {
        int op = (int)(check_random(&s.random) % OPS),
            kind = (int)(check_random(&s.random) % (uint64_t)kinds);
        int64_t key = (int64_t)(check_random(&s.random) % KEYS);
        if (op < WRITES && check_random(&s.random) % 2)
            write_batch(&s, kind);
        else if (op < WRITES)
            write_keys(&s, kind);
        else if (op == READ)
            check_key(&s, key);
        else if (op == CLEAR)
            clear_key(&s, key, kind);
        else if (op == REMOVE)
            remove_entry(&s, key, (int)(check_random(&s.random) % ENTRIES));
        else if (check_random(&s.random) % 4 == 0)
            step(&s, 10);
        check_limit(&s);
    }
    for (int64_t k = 0; k < KEYS; k++)
        check_key(&s, k);
    uint64_t refused = 0;
    for (int k = 0; k < kinds; k++) {
        refused += s.refused[k] + s.alone[k];
        CHECK(!each || s.refused[k] + s.alone[k] > 0);
    }
    CHECK(refused > 0);
    CHECK(s.cut > 0);
    files_end(&s.f);
}

/* ---- each allocation refused --------------------------------------------------------------------- */

enum { NAMES = 400, NAME_BYTES = 24 };

/* The map of a key against what was put into it. */
static void check_map(pst_table *t, const text *entries) {
    pst_elements *e;
    pst_cell name, cell;
    int found = 0, there = 0;
    REQUIRE(!pst_elements_create(t, &e));
    REQUIRE(!pst_elements_start(e, MAP));
    while (!pst_elements_next(e, &name, &cell)) {
        char letters[NAME_BYTES + 1] = {0};
        memcpy(letters, name.bytes.data, NAME_BYTES);
        int at = atoi(letters);
        REQUIRE(at >= 0 && at < NAMES);
        CHECK(is_text(entries[at], cell.bytes));
        found++;
    }
    for (int i = 0; i < NAMES; i++)
        there += entries[i].seed != 0;
    CHECK_EQ(found, there);
    pst_elements_destroy(e);
}

/* Whatever block a put is refused, of a node, of a key or of a value, the map stays as it was, and
 * no block is lost. */
static void test_refused_puts(uint64_t seed) {
    static text entries[NAMES];
    pst_table_options o = {
        .max_parallelism = 1, .last_key_group = 0, .limit_bytes = (uint64_t)1 << 26};
    pst_table *t = NULL;
    pst_lineage l = {.epoch = 1};
    uint64_t refused = 0;
    memset(entries, 0, sizeof entries);
    REQUIRE(!pst_table_open(&SCHEMA, &o, &t, NULL, NULL));
    pst_table_set_steps(t, 1);
    uint64_t limit = t->arena.limit;
    for (int i = 0; i < 6000; i++) {
        char letters[NAME_BYTES + 1];
        int at = (int)(check_random(&seed) % NAMES);
        if (i < 200)
            at = i;
        text x = {(uint32_t)(check_random(&seed) % 60), (uint32_t)check_random(&seed) | 1};
        pst_cell name = {{0, 0}, {(uint8_t *)letters, NAME_BYTES}};
        uint8_t own[64];
        pst_cell v = {{0, 0}, {own, x.size}};
        memcpy(own, bytes_of(x), x.size);
        snprintf(letters, sizeof letters, "%0*d", NAME_BYTES, at);
        REQUIRE(!pst_key_set_word(t, 1));
        if (check_random(&seed) % 4 == 0) {
            pst_status st = pst_map_remove(t, MAP, &name);
            REQUIRE(st == PST_OK || st == PST_NOT_FOUND);
            entries[at] = (text){0, 0};
        }
        /* No more memory at all, and then a little. */
        t->arena.limit = t->arena.committed_total;
        pst_status st;
        while ((st = pst_map_put(t, MAP, &name, &v)) == PST_NO_ROOM) {
            check_map(t, entries);
            t->arena.limit += 4096;
            refused++;
        }
        REQUIRE(!st);
        t->arena.limit = limit;
        entries[at] = x;
        if (i % 7 == 0) {
            l.epoch++;
            REQUIRE(!pst_table_seal(t, &l, NULL));
            check_ownership(t);
        }
    }
    REQUIRE(!pst_key_set_word(t, 1));
    check_map(t, entries);
    CHECK(refused > 20);
    pst_table_close(t);
}

/* A table that is full of small rows has room for large ones when these have left, without being
 * made anew; and again the other way. */
static void test_sizes_that_change(void) {
    enum { SMALL = 40, LARGE = 9000, TIMES = 6, FULL = 4000 };
    static state s;
    pst_lineage l = {.epoch = 1};
    uint64_t fitted[TIMES] = {0};
    memset(&s, 0, sizeof s);
    files_begin(&s.f, &SCHEMA);
    s.limit = 1 << 20;
    open_above(&s, &l);
    for (int time = 0; time < TIMES; time++) {
        text x = {time % 2 ? LARGE : SMALL, 3};
        pst_cell v = {{0, 0}, {bytes_of(x), x.size}};
        for (uint64_t k = 0; k < FULL; k++) {
            pst_status st = pst_key_set_word(s.f.t, 100000 * (uint64_t)(time + 1) + k);
            if (!st)
                st = pst_value_put(s.f.t, VALUE, &v);
            if (st)
                break;
            fitted[time]++;
        }
        CHECK(!s.f.t->poisoned);
        pst_room all = {UINT64_MAX, 0}, left;
        files_seal(&s.f, s.f.t);
        files_set_stack(&s.f);
        for (int i = 0; i < 4; i++)
            CHECK_EQ(pst_table_leave(s.f.t, &all, &left), PST_OK);
        CHECK_EQ(s.f.t->m->live, 0);
        check_ownership(s.f.t);
    }
    for (int time = 2; time < TIMES; time++)
        CHECK(fitted[time] >= fitted[time % 2] / 2);
    files_end(&s.f);
}

/* A table that is above its limit has room when rows have left: it gives back by how much it is above. */
static void test_above_the_limit(void) {
    static state s;
    pst_lineage l = {.epoch = 1};
    memset(&s, 0, sizeof s);
    files_begin(&s.f, &SCHEMA);
    s.limit = 1 << 20;
    open_above(&s, &l);
    text x = {5000, 3};
    pst_cell v = {{0, 0}, {bytes_of(x), x.size}};
    for (uint64_t k = 0; k < 100; k++)
        REQUIRE(!pst_key_set_word(s.f.t, k) && !pst_value_put(s.f.t, VALUE, &v));
    pst_room all = {UINT64_MAX, 0}, leave;
    uint64_t fits;
    files_seal(&s.f, s.f.t);
    files_set_stack(&s.f);
    REQUIRE(!pst_table_settle(s.f.t));
    files_set_stack(&s.f);
    s.f.t->arena.limit = s.f.t->arena.committed_total - (16 << 10);
    CHECK_EQ(pst_table_room(s.f.t, 20, &fits, &leave), PST_OK);
    CHECK(fits < 20 && leave.rows > 0);
    CHECK_EQ(pst_table_leave(s.f.t, &all, NULL), PST_OK);
    CHECK(s.f.t->arena.committed_total <= s.f.t->arena.limit);
    CHECK_EQ(pst_table_room(s.f.t, 20, &fits, &leave), PST_OK);
    CHECK_EQ(fits, 20);
    files_end(&s.f);
}

/* Keys that do not exist want no room where they are only read. */
static void test_absent(void) {
    enum { ABSENT = 200000 };
    static int64_t keys[ABSENT];
    static state s;
    pst_lineage l = {.epoch = 1};
    uint64_t absent;
    pst_batch *b = NULL;
    memset(&s, 0, sizeof s);
    files_begin(&s.f, &SCHEMA);
    s.limit = 1 << 20;
    open_above(&s, &l);
    pst_cell v = {{0, 0}, {(uint8_t *)"value", 5}};
    for (uint64_t k = 0; k < 10; k++)
        REQUIRE(!pst_key_set_word(s.f.t, k) && !pst_value_put(s.f.t, VALUE, &v));
    files_seal(&s.f, s.f.t);
    files_set_stack(&s.f);
    pst_table_set_whole(s.f.t, 0);
    for (int64_t i = 0; i < ABSENT; i++)
        keys[i] = i * 7;
    pst_array k = {.type = PST_INT64, .length = ABSENT, .values = keys};
    REQUIRE(!pst_batch_create(s.f.t, &k, &b));
    CHECK_EQ(pst_batch_fetch(b, 0, &absent), PST_NO_ROOM);
    CHECK_EQ(pst_batch_fetch(b, 1, &absent), PST_OK);
    CHECK_EQ(absent, ABSENT - 2);
    pst_batch_destroy(b);
    CHECK(!pst_table_dirty(s.f.t));
    files_end(&s.f);
}

/* ---- what makes room, of more keys than it may pass the limit for ------------------------------- */

enum { TIMER_AT = 1000, CROWD = 60000 };

static const pst_column TIMED[] = {
    {.name = "v", .type = PST_STRING},
    {.name = "m", .type = PST_INT64, .kind = PST_MAP, .map_key = PST_STRING},
    {.name = "#timers", .type = PST_INT32, .kind = PST_TIMERS},
    {.name = "#timer", .type = PST_INT64, .kind = PST_TIMER}};
static const pst_schema TIMED_SCHEMA = {1, 4, &KEY, TIMED, 0};

typedef enum clearing { DELETES, REMOVES, DELETES_TIMERS, FIRES, CLEARINGS } clearing;

/* Rows with a value, an entry and a timer, as many as fit. */
static int64_t fill_timed(state *s, int64_t *keys) {
    pst_cell v = {{0, 0}, {bytes_of((text){100, 3}), 100}};
    pst_cell name = {{0, 0}, {(uint8_t *)"an entry", 8}}, word = {{7, 0}, {NULL, 0}};
    int64_t n = 0;
    for (; n < CROWD; n++) {
        if (pst_key_set_word(s->f.t, (uint64_t)n) || pst_value_put(s->f.t, 0, &v) ||
            pst_map_put(s->f.t, 1, &name, &word) || pst_timer_register(s->f.t, PST_EVENT, TIMER_AT))
            break;
        keys[n] = n;
    }
    REQUIRE(!s->f.t->poisoned && n > 500 && n < CROWD);
    files_seal(&s->f, s->f.t);
    files_set_stack(&s->f);
    return n;
}

static uint64_t key_of(const pst_batch *b, int64_t i) {
    pst_key key;
    pst_batch_key(b, i, &key);
    return key.word;
}

static pst_array entry_names(int64_t n) {
    static int32_t offsets[CROWD + 1];
    static uint8_t names[8 * CROWD];
    for (int64_t i = 0; i < n; i++) {
        memcpy(names + 8 * i, "an entry", 8);
        offsets[i + 1] = (int32_t)(8 * (i + 1));
    }
    return (pst_array){.type = PST_STRING,
                       .length = n,
                       .values = names,
                       .offsets = offsets,
                       .values_bytes = 8 * n};
}

static void let_leave(state *s, uint64_t rows) {
    pst_room some = {rows, 0}, left;
    files_seal(&s->f, s->f.t);
    files_set_stack(&s->f);
    CHECK_EQ(pst_table_leave(s->f.t, &some, &left), PST_OK);
    check_ownership(s->f.t);
}

/* A batch of as many of n keys as fit together, if need be after all others have left. */
static pst_batch *batch_of(state *s, const int64_t *keys, int64_t *n) {
    for (;; *n = (*n + 1) / 2) {
        pst_array k = {.type = PST_INT64, .length = *n, .values = keys};
        pst_batch *b = NULL;
        uint64_t absent;
        REQUIRE(!pst_batch_create(s->f.t, &k, &b));
        pst_status st = pst_batch_fetch(b, 1, &absent);
        if (!st)
            return b;
        CHECK_EQ(st, PST_NO_ROOM);
        pst_batch_destroy(b);
        if (*n == 1)
            let_leave(s, CROWD);
    }
}

static pst_status clear_some(state *s, clearing what, const int64_t *keys, int64_t *n,
                             pst_batch *due, const int64_t *times) {
    pst_batch *b = due ? due : batch_of(s, keys, n);
    pst_array at = {.type = PST_INT64, .length = *n, .values = times};
    pst_array names = entry_names(*n);
    pst_status st;
    if (what == DELETES)
        st = pst_batch_clear(b, -1);
    else if (what == REMOVES)
        st = pst_batch_map_remove(b, 1, &names);
    else if (what == DELETES_TIMERS)
        st = pst_batch_timer_delete(b, PST_EVENT, &at);
    else
        st = pst_timers_fire_all(b, PST_EVENT, times);
    pst_batch_destroy(b);
    return st;
}

/* What clears says how far it came before it has used up what it may pass the limit by, and goes on
 * after a step. */
static void test_pauses(clearing what) {
    static int64_t keys[CROWD], times[CROWD];
    static state s;
    pst_lineage l = {.epoch = 1};
    pst_batch *due = NULL;
    memset(&s, 0, sizeof s);
    files_begin(&s.f, &TIMED_SCHEMA);
    s.limit = 1 << 20;
    s.f.t = files_open(&s.f, s.limit);
    pst_table_set_steps(s.f.t, 1);
    REQUIRE(!pst_table_seal(s.f.t, &l, NULL));
    int64_t n = fill_timed(&s, keys);
    for (int64_t i = 0; i < n; i++)
        times[i] = TIMER_AT;
    if (what == FIRES) {
        REQUIRE(!pst_timers_due(s.f.t, PST_EVENT, TIMER_AT, CROWD, times, &due));
        n = pst_batch_length(due);
        for (int64_t i = 0; i < n; i++)
            keys[i] = (int64_t)key_of(due, i);
    }
    pst_table_set_whole(s.f.t, 0);
    s.f.t->arena.limit = s.f.t->arena.committed_total / 32 * 31;
    int paused = 0;
    for (int64_t at = 0; at < n; due = NULL) {
        int64_t some = n - at;
        pst_status st = clear_some(&s, what, keys + at, &some, due, times);
        REQUIRE(st == PST_OK || st == PST_NO_ROOM);
        CHECK(!s.f.t->poisoned);
        int64_t done = st ? pst_table_detail(s.f.t)->row : some;
        CHECK(done > 0 && (!st || done < some));
        CHECK(!st || pst_table_passed(s.f.t));
        at += done;
        paused += st != PST_OK;
        s.f.t->arena.limit = s.limit;
        if (st)
            let_leave(&s, (uint64_t)n / 4);
    }
    CHECK(paused > 0);
    /* Files name the timers that there were. */
    pst_status st = PST_NO_ROOM;
    for (int tries = 0; st == PST_NO_ROOM && tries < 50; tries++) {
        let_leave(&s, CROWD);
        st = pst_timers_due(s.f.t, PST_EVENT, TIMER_AT, 10, times, &due);
    }
    /* Keys that were deleted keep their timers. */
    CHECK_EQ(st, what == REMOVES || what == DELETES ? PST_OK : PST_NOT_FOUND);
    pst_batch_destroy(due);
    files_end(&s.f);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 600;
    uint64_t seed = argc > 2 ? (uint64_t)atoi(argv[2]) : 1;
    test_absent();
    for (uint64_t i = 0; i < 4; i++)
        test_refused_puts(seed + i);
    test_sizes_that_change();
    test_above_the_limit();
    for (int what = 0; what < CLEARINGS; what++)
        test_pauses((clearing)what);
    run((uint64_t)1 << 20, 20000, 1, rounds, seed, 1);
    run((uint64_t)1 << 20, 20000, WRITES, rounds, seed + 1, 0);
    run((uint64_t)2 << 20, 100000, WRITES, rounds, seed + 2, 1);
    run((uint64_t)8 << 20, 1000000, WRITES, rounds / 4, seed + 3, 0);
    return check_report();
}
