/* Rows come from files and leave again, beside a table that has all of them.
 *
 * The same random operations are done to both, and to a model each. Only the table above files
 * admits rows, lets them leave and settles. Both must then have the same rows, and seal the same
 * deltas, byte for byte where nothing expires: so what was admitted is no change, and what was changed afterwards is.
 *
 *   test_resident [epochs] [seed]
 */
#include <unistd.h>

#include "access/batch.h"
#include "below.h"
#include "kinds.h"
#include "snapshot/leave_epochs.h"
#include "table/slots.h"

/* ---- both tables ----------------------------------------------------------------------------- */

typedef struct pair {
    const kind *kind;
    pst_table *disk, *whole;
    void *disk_model, *whole_model;
    below_files files;
    uint64_t random, seals;
    uint64_t admitted, left, back, reopened, refused, poisoned;
    pst_table *(*open)(struct pair *p);
    int alike; /* the deltas; not where what of a list has expired goes chunk by chunk */
} pair;

static int admit_some(pair *p, uint64_t one_in) {
    model_bytes room;
    pst_cell cells[2];
    for (int k = 0; k < p->kind->keys; k++) {
        p->kind->cells(p->disk_model, k, cells, &room);
        if (check_random(&p->random) % one_in || below_is_here(p->disk, cells))
            continue;
        uint64_t changed = pst_changed_rows(p->disk);
        pst_status s = below_admit(&p->files, p->disk, cells, UINT64_MAX);
        if (!CHECK(s == PST_OK || s == PST_NOT_FOUND) ||
            !CHECK_EQ(pst_changed_rows(p->disk), changed))
            return 0;
        p->admitted += s == PST_OK;
    }
    return 1;
}

/* With rows in every state of coming, what fails leaves nothing. */
static int admit_refused(pair *p) {
    model_bytes room;
    pst_cell cells[2];
    int k = (int)(check_random(&p->random) % (uint64_t)p->kind->keys);
    p->kind->cells(p->disk_model, k, cells, &room);
    if (below_is_here(p->disk, cells) || pst_table_dirty(p->disk))
        return 1;
    uint64_t live = p->disk->m->live, limit = p->disk->arena.limit;
    int by_limit = check_random(&p->random) % 2 != 0;
    for (int n = 0; n < 50; n++) {
        if (by_limit)
            p->disk->arena.limit = p->disk->arena.committed_total + 4096 * (uint64_t)n;
        else
            p->files.refuse = n + 1;
        pst_status s = below_admit(&p->files, p->disk, cells, UINT64_MAX);
        int refused = check_alloc_failed();
        check_fail_alloc(-1, 0);
        p->files.refuse = 0;
        p->disk->arena.limit = limit;
        if (s == PST_OK || s == PST_NOT_FOUND) {
            if (by_limit || !refused)
                break;
            continue;
        }
        p->refused++;
        if (!CHECK(s == PST_NO_MEMORY || s == PST_LIMIT))
            return 0;
        if (p->disk->poisoned) {
            p->poisoned++;
            CHECK_EQ(pst_table_rollback(p->disk, 0), PST_OK);
            live = p->disk->m->live;
        }
        if (!CHECK_EQ(p->disk->m->live, live) || !CHECK(!below_is_here(p->disk, cells)))
            return 0;
    }
    return 1;
}

static void leave_some(pair *p) {
    if (p->disk->admitted)
        CHECK_EQ(pst_table_rollback(p->disk, 0), PST_OK);
    pst_room wanted = {check_random(&p->random) % (uint64_t)(p->kind->keys + 1), 0}, left;
    if (check_random(&p->random) % 4 == 0)
        wanted = (pst_room){0, check_random(&p->random) % 10000};
    if (p->disk->lay.timers >= 0 && check_random(&p->random) % 4 == 0)
        for (int d = 0; d < 2; d++)
            CHECK_EQ(pst_table_set_horizon(p->disk, (pst_domain)d,
                                           em_time((int)(check_random(&p->random) % EM_TIMERS))),
                     PST_OK);
    pst_resident before, after;
    pst_table_get_resident(p->disk, &before);
    uint64_t looked = p->disk->m->live;
    CHECK_EQ(pst_leave_epochs(p->disk, &wanted, &left), PST_OK);
    pst_table_get_resident(p->disk, &after);
    CHECK_EQ(before.rows - after.rows, left.rows);
    CHECK_EQ(p->disk->m->live, looked - left.rows);
    CHECK(!left.rows || left.bytes >= left.rows * p->disk->lay.row_size);
    CHECK(!left.rows || !pst_table_is_whole(p->disk));
    CHECK(!left.rows || p->disk->h->floor == p->disk->h->sealed);
    /* A cut takes names out of the ring. */
    CHECK(p->disk->m->cut_phase != PST_CUT_NONE || after.free_rows >= left.rows);
    CHECK(before.block_bytes >= after.block_bytes);
    p->left += left.rows;
    check_ownership(p->disk);
}

static int same_deltas(pst_sealed *a, pst_sealed *b) {
    memory_file f = {.calls_left = -1}, g = {.calls_left = -1};
    pst_io one = file_io(&f, 0), other = file_io(&g, 0);
    pst_file_info info;
    REQUIRE(pst_sealed_write(a, &one, &info) == PST_OK);
    REQUIRE(pst_sealed_write(b, &other, &info) == PST_OK);
    int ok = CHECK_EQ(f.size, g.size) && CHECK(!memcmp(f.data, g.data, f.size));
    file_free(&f);
    file_free(&g);
    return ok;
}

static int seal_both(pair *p) {
    pst_sealed *disk = NULL, *whole = NULL;
    p->kind->seal(p->disk_model, p->disk, &disk);
    p->kind->seal(p->whole_model, p->whole, &whole);
    int ok = !p->alike || same_deltas(disk, whole);
    below_add(&p->files, ++p->seals, disk);
    pst_sealed_destroy(disk);
    pst_sealed_destroy(whole);
    return ok;
}

static void roll_back(pair *p) {
    int32_t back = (int32_t)(check_random(&p->random) % 3);
    pst_lineage l;
    if (pst_table_lineage(p->disk, back, &l) || pst_table_lineage(p->whole, back, &l))
        back = 0;
    /* Epochs in which rows left have the number of the one before. */
    REQUIRE(pst_table_lineage(p->disk, back, &l) == PST_OK);
    int32_t same = 0;
    pst_lineage w;
    while (!pst_table_lineage(p->whole, same, &w) && w.epoch != l.epoch)
        same++;
    REQUIRE(w.epoch == l.epoch);
    CHECK_EQ(pst_table_rollback(p->disk, back), PST_OK);
    CHECK_EQ(pst_table_rollback(p->whole, same), PST_OK);
    p->kind->back(p->disk_model, l.epoch);
    p->kind->back(p->whole_model, l.epoch);
    p->seals = l.epoch;
    below_back(&p->files, l.epoch);
    p->back += (uint64_t)back;
}

/* The process is gone, and another one attaches. Of a heap table the open epoch is undone. */
static void reopen(pair *p) {
    if (p->disk->path) {
        pst_table_abandon(p->disk);
        p->disk = p->open(p);
    } else {
        CHECK_EQ(pst_table_rollback(p->disk, 0), PST_OK);
    }
    CHECK_EQ(pst_table_rollback(p->whole, 0), PST_OK);
    p->kind->back(p->disk_model, p->seals);
    p->kind->back(p->whole_model, p->seals);
    p->reopened++;
}

/* One epoch of both. */
static int go_on(pair *p) {
    uint64_t what = check_random(&p->random);
    if (what % 3 == 0 && p->seals)
        leave_some(p);
    else if (what % 16 == 1 && !p->disk->admitted)
        CHECK_EQ(pst_table_settle(p->disk), PST_OK);
    if (what / 16 % 4 == 0 && !admit_refused(p))
        return 0;
    if (!admit_some(p, 1 + what / 64 % 4))
        return 0;
    int steps = (int)(what / 256 % 12);
    if (steps || what / 4096 % 2) {
        if (!admit_some(p, 1))
            return 0;
        for (int i = 0; i < steps; i++) {
            uint64_t random = check_random(&p->random), same = random;
            p->kind->step(p->disk_model, p->disk, &random);
            p->kind->step(p->whole_model, p->whole, &same);
        }
        int64_t ms = (int64_t)(check_random(&p->random) % 40);
        p->kind->pass(p->disk_model, p->disk, ms);
        p->kind->pass(p->whole_model, p->whole, ms);
        if (!p->kind->compare(p->disk_model, p->disk) ||
            !p->kind->compare(p->whole_model, p->whole))
            return 0;
    }
    if (what / 8192 % 8 == 0)
        roll_back(p);
    else if (what / 8192 % 8 == 1)
        reopen(p);
    else
        return seal_both(p);
    return admit_some(p, 1) && p->kind->compare(p->disk_model, p->disk);
}

static void run(pair *p, int epochs) {
    below_init(&p->files, &p->disk->schema, p->disk->max_parallelism);
    pst_table_set_whole(p->disk, 0);
    for (int e = 0; e < epochs; e++)
        if (!go_on(p)) {
            fprintf(stderr, "    in epoch %d\n", e);
            break;
        }
    fprintf(stderr,
            "%llu admitted, %llu left, %llu back, %llu reopened, %llu refused, %llu poisoned\n",
            (unsigned long long)p->admitted, (unsigned long long)p->left,
            (unsigned long long)p->back, (unsigned long long)p->reopened,
            (unsigned long long)p->refused, (unsigned long long)p->poisoned);
    CHECK(p->admitted && p->left && p->back && p->refused && (!p->disk->path || p->reopened));
    below_free(&p->files);
    pst_table_close(p->disk);
    pst_table_close(p->whole);
    free(p->disk_model);
    free(p->whole_model);
}

static char *shared_path(void) {
    static char path[200];
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/pst_resident_%d.table", folder ? folder : "/tmp", getpid());
    return path;
}

static pst_table *open_shared(const pst_schema *schema, int32_t max_parallelism) {
    static const pst_identity identity = {.owner_pid = 1};
    pst_table_options o = {.max_parallelism = max_parallelism,
                           .last_key_group = max_parallelism - 1,
                           .limit_bytes = (uint64_t)1 << 26,
                           .path = shared_path(),
                           .identity = &identity,
                           .lock_timeout_ms = 1000,
                           .create = 1};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(schema, &o, &t, NULL, NULL) == PST_OK);
    return t;
}

static pst_table *open_elements_shared(pair *p) {
    elements_model *m = p->disk_model;
    pst_table *t = open_shared(&m->schema, 4);
    static const int timed[] = {EM_N, EM_LONGS, EM_STRINGS, EM_MAP, EM_BOOK};
    pst_ttl ttl = {.duration_ms = m->ttl_ms};
    for (size_t i = 0; m->ttl_ms && i < sizeof timed / sizeof *timed; i++)
        REQUIRE(pst_table_set_ttl(t, m->column[timed[i]], &ttl) == PST_OK);
    em_clock(m, t);
    return t;
}

static void run_elements(int spaces, int64_t ttl_ms, int shared, int epochs, uint64_t seed) {
    pair p = {.kind = &ELEMENTS, .alike = !ttl_ms, .random = seed, .open = open_elements_shared};
    elements_model *m = p.disk_model = calloc(1, sizeof *m);
    elements_model *w = p.whole_model = calloc(1, sizeof *w);
    REQUIRE(m && w);
    em_init(m, spaces, ttl_ms);
    em_init(w, spaces, ttl_ms);
    p.disk = shared ? open_elements_shared(&p) : em_open(m, 0, 3);
    p.whole = em_open(w, 0, 3);
    run(&p, epochs);
    if (shared)
        unlink(shared_path());
}

static pst_table *open_values_shared(pair *p) {
    return open_shared(((model *)p->disk_model)->schema, 2);
}

static void run_values(const pst_schema *s, int shared, int epochs, uint64_t seed) {
    pst_table_options o = {
        .max_parallelism = 2, .last_key_group = 1, .limit_bytes = (uint64_t)1 << 26};
    pair p = {.kind = &VALUES, .alike = 1, .random = seed, .open = open_values_shared};
    model *m = p.disk_model = calloc(1, sizeof *m), *w = p.whole_model = calloc(1, sizeof *w);
    REQUIRE(m && w);
    m->schema = w->schema = s;
    m->keys = w->keys = VALUE_KEYS;
    REQUIRE(pst_table_open(s, &o, &p.whole, NULL, NULL) == PST_OK);
    if (shared)
        p.disk = open_values_shared(&p);
    else
        REQUIRE(pst_table_open(s, &o, &p.disk, NULL, NULL) == PST_OK);
    run(&p, epochs);
    if (shared)
        unlink(shared_path());
}

/* ---- one thing at a time --------------------------------------------------------------------- */

static pst_table *values_table(void) {
    static pst_schema s = {1, 2, MODEL_LONG_KEY, MODEL_STATES};
    pst_table_options o = {
        .max_parallelism = 2, .last_key_group = 1, .limit_bytes = (uint64_t)1 << 26};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(&s, &o, &t, NULL, NULL) == PST_OK);
    return t;
}

static pst_status admit_value(pst_table *t, uint64_t k, uint64_t value) {
    pst_key key = {.word = k, .hash = pst_hash_word(PST_INT64, k, PST_HASH_SEED)};
    pst_cell cell = {{value, 0}, {NULL, 0}};
    uint32_t slot;
    int here;
    pst_status s = pst_undo_reserve(t, 1);
    if (!s)
        s = pst_admit_begin(t, &key, &slot, &here);
    if (s || here)
        return s ? s : PST_CHANGED;
    s = pst_row_put(t, pst_row(t, slot), 0, &cell);
    CHECK(pst_admit_end(t, slot));
    return s;
}

/* As if the files had been asked. */
static void set_word(pst_table *t, uint64_t k) {
    uint32_t whole = kind_enter(t);
    REQUIRE(pst_key_set_word(t, k) == PST_OK);
    kind_leave(t, whole);
}

static void put_value(pst_table *t, uint64_t k, uint64_t value) {
    pst_cell cell = {{value, 0}, {NULL, 0}};
    set_word(t, k);
    CHECK_EQ(pst_value_put(t, 0, &cell), PST_OK);
}

static void seal_value(pst_table *t, uint64_t epoch) {
    pst_lineage l = model_lineage(epoch);
    REQUIRE(pst_table_seal(t, &l, NULL) == PST_OK);
}

static pst_status read_value(pst_reader *r, uint64_t k, uint64_t *value) {
    static pst_record record;
    pst_cell key = {{k, 0}, {NULL, 0}};
    pst_status s = pst_reader_get(r, &key, 0, &record);
    if (!s)
        *value = record.cells[0].word[0];
    return s;
}

/* A reader sees neither what a later epoch has admitted, where a reused slot of its own epoch lies
 * too, nor does it take for absent what may lie below. */
static void test_readers(void) {
    static pst_record record;
    pst_table *t = values_table();
    pst_reader *r = NULL;
    uint64_t value = 0, cursor = 0, seen = 0;
    pst_status s;
    for (uint64_t k = 0; k < 8; k++)
        put_value(t, k, k);
    seal_value(t, 1);
    for (uint64_t k = 4; k < 8; k++) {
        REQUIRE(pst_key_set_word(t, k) == PST_OK);
        CHECK_EQ(pst_value_clear(t, -1), PST_OK);
    }
    for (uint64_t e = 2; e < 6; e++)
        seal_value(t, e);
    REQUIRE(pst_reader_open(t, NULL, NULL, &r, NULL) == PST_OK);
    CHECK_EQ(read_value(r, 20, &value), PST_NOT_FOUND);
    pst_reader_close(r);
    pst_table_set_whole(t, 0);
    REQUIRE(pst_reader_open(t, NULL, NULL, &r, NULL) == PST_OK);
    CHECK_EQ(read_value(r, 20, &value), PST_NOT_HERE);
    CHECK_EQ(read_value(r, 5, &value), PST_NOT_HERE);
    for (uint64_t k = 20; k < 26; k++)
        CHECK_EQ(admit_value(t, k, 7), PST_OK);
    CHECK_EQ(admit_value(t, 20, 8), PST_CHANGED);
    put_value(t, 21, 9);
    for (uint64_t e = 6; e < 9; e++) {
        for (uint64_t k = 20; k < 26; k++)
            CHECK_EQ(read_value(r, k, &value), PST_NOT_HERE);
        for (uint64_t k = 0; k < 4; k++)
            CHECK(read_value(r, k, &value) == PST_OK && value == k);
        for (seen = cursor = 0; (s = pst_reader_next(r, &cursor, &record)) == PST_OK; seen++)
            CHECK(record.key[0].word[0] < 4);
        CHECK(s == PST_NOT_HERE && seen == 4);
        if (e < 8)
            seal_value(t, e);
    }
    pst_reader_close(r);
    REQUIRE(pst_reader_open(t, NULL, NULL, &r, NULL) == PST_OK);
    CHECK(read_value(r, 20, &value) == PST_OK && value == 7);
    CHECK(read_value(r, 21, &value) == PST_OK && value == 9);
    pst_room wanted = {1, 0}, left;
    CHECK_EQ(pst_leave_epochs(t, &wanted, &left), PST_OK);
    CHECK_EQ(left.rows, 1);
    CHECK_EQ(read_value(r, 20, &value), PST_SNAPSHOT_TOO_OLD);
    pst_reader_close(r);
    pst_table_close(t);
}

/* Which rows leave: neither those touched or admitted lately, nor those that were looked up. */
static void test_heat(void) {
    enum { ROWS = 300 };
    pst_table *t = values_table();
    for (uint64_t k = 0; k < ROWS; k++)
        put_value(t, k, k);
    seal_value(t, 1);
    pst_table_set_whole(t, 0);
    pst_room wanted = {1, 0}, left;
    CHECK(!t->rows_leave);
    CHECK_EQ(pst_leave_epochs(t, &wanted, &left), PST_OK);
    CHECK(t->rows_leave);
    for (uint64_t e = 2; e < 4; e++) {
        for (uint64_t k = 100; k < 150; k++) {
            put_value(t, k, e);
            for (int i = 0; i < 3; i++)
                set_word(t, k + 100);
        }
        seal_value(t, e);
    }
    wanted.rows = 200;
    CHECK_EQ(pst_leave_epochs(t, &wanted, &left), PST_OK);
    CHECK_EQ(left.rows, 200);
    uint64_t kept = 0;
    for (uint64_t k = 0; k < ROWS; k++) {
        pst_cell cell = {{k, 0}, {NULL, 0}};
        int here = below_is_here(t, &cell), used = (k >= 100 && k < 150) || (k >= 200 && k < 250);
        kept += (uint64_t)(here && used);
    }
    CHECK(kept >= 99);
    /* What nobody uses leaves in the end, and never more than there is. */
    wanted.rows = 1000;
    CHECK_EQ(pst_leave_epochs(t, &wanted, &left), PST_OK);
    CHECK_EQ(left.rows, ROWS - 201);
    CHECK_EQ(t->m->live, 0);
    pst_table_close(t);
}

/* A batch notes rows as in use, one of a group in each epoch, and of four where rows leave. */
static void heat_of_batches(int rows_leave) {
    enum { ROWS = 320 };
    pst_table *t = values_table();
    uint64_t epochs = rows_leave ? 4 : PST_GROUP;
    int64_t keys[ROWS], values[ROWS];
    uint8_t valid[ROWS];
    pst_table_set_whole(t, 0);
    for (uint64_t k = 0; k < ROWS; k++) {
        keys[k] = (int64_t)k;
        CHECK_EQ(admit_value(t, k, k), PST_OK);
    }
    pst_array array = {.type = PST_INT64, .length = ROWS, .values = keys};
    for (uint32_t s = 0; s < t->m->slots; s++)
        pst_heat_set(t, s, 0);
    t->rows_leave = rows_leave;
    for (uint64_t e = 1; e <= epochs; e++) {
        pst_batch *b = NULL;
        REQUIRE(pst_batch_create(t, &array, &b) == PST_OK);
        CHECK_EQ(pst_batch_get(b, 0, values, valid), PST_OK);
        pst_batch_destroy(b);
        seal_value(t, e);
    }
    uint32_t warm = 0;
    for (uint32_t s = 0; s < t->m->slots; s++)
        warm += pst_heat_lower(t, s) == 1;
    CHECK_EQ(warm, ROWS);
    pst_table_close(t);
}

static void test_heat_of_batches(void) {
    heat_of_batches(0);
    heat_of_batches(1);
}

/* Who may not leave, and when nothing may. */
static void test_who_stays(void) {
    elements_model *m = calloc(1, sizeof *m);
    REQUIRE(m);
    em_init(m, 0, 0);
    pst_table *t = em_open(m, 0, 3);
    pst_cell cell = {{1, 0}, {NULL, 0}};
    pst_lineage l = em_lineage(1);
    for (int k = 0; k < 6; k++) {
        em_set_key(m, t, k);
        CHECK_EQ(pst_value_put(t, m->column[EM_N], &cell), PST_OK);
        for (int i = 0; k && i < (k < 4 ? 1 : 2); i++)
            CHECK_EQ(pst_timer_register(t, PST_EVENT, 100 * k + i), PST_OK);
    }
    REQUIRE(pst_table_seal(t, &l, NULL) == PST_OK);
    pst_room all = {100, 0}, left;
    pst_table_keep_rows(t, 1);
    CHECK_EQ(pst_leave_epochs(t, &all, &left), PST_OK);
    CHECK(left.rows == 0 && pst_table_is_whole(t));
    pst_table_keep_rows(t, 0);
    em_set_key(m, t, 0);
    CHECK_EQ(pst_value_put(t, m->column[EM_N], &cell), PST_OK);
    CHECK_EQ(pst_leave_epochs(t, &all, &left), PST_INVALID);
    CHECK_EQ(pst_table_settle(t), PST_INVALID);
    CHECK_EQ(pst_table_rollback(t, 0), PST_OK);
    /* No row with timers, then those whose timers are at 300 or later: one with one timer, two with
     * two. */
    CHECK_EQ(pst_leave_epochs(t, &all, &left), PST_OK);
    CHECK_EQ(left.rows, 1);
    CHECK_EQ(pst_table_set_horizon(t, PST_EVENT, 300), PST_OK);
    CHECK_EQ(pst_table_horizon(t, PST_EVENT), 300);
    CHECK_EQ(pst_table_horizon(t, PST_PROCESSING), INT64_MAX);
    CHECK_EQ(pst_leave_epochs(t, &all, &left), PST_OK);
    CHECK_EQ(left.rows, 3);
    CHECK_EQ(t->m->live, 2);
    check_ownership(t);
    CHECK(!pst_table_is_whole(t));
    pst_lineage now;
    CHECK_EQ(pst_table_lineage(t, 0, &now), PST_OK);
    CHECK(!memcmp(&now, &l, sizeof l));
    CHECK_EQ(pst_table_lineage(t, 1, &now), PST_NO_UNDO);
    CHECK_EQ(pst_table_copy(t, t, 0, 0, NULL), PST_INVALID);
    pst_table *other = em_open(m, 0, 3);
    CHECK_EQ(pst_table_copy(other, t, 0, 3, NULL), PST_NOT_HERE);
    pst_table_close(other);
    pst_table_close(t);
    free(m);
}

/* What has left makes room at once, and so does what died before the table settled. */
static void test_room_at_once(void) {
    pst_table *t = values_table();
    for (uint64_t k = 0; k < 100; k++)
        put_value(t, k, k);
    seal_value(t, 1);
    pst_room wanted = {12, 0}, left;
    CHECK_EQ(pst_leave_epochs(t, &wanted, &left), PST_OK);
    uint32_t slots = t->m->slots;
    for (uint64_t k = 200; k < 212; k++)
        CHECK_EQ(admit_value(t, k, k), PST_OK);
    CHECK_EQ(t->m->slots, slots);
    for (uint64_t k = 200; k < 212; k++) {
        REQUIRE(pst_key_set_word(t, k) == PST_OK);
        CHECK_EQ(pst_value_clear(t, -1), PST_OK);
    }
    seal_value(t, 2);
    CHECK_EQ(pst_table_settle(t), PST_OK);
    for (uint64_t k = 300; k < 312; k++)
        put_value(t, k, k);
    CHECK_EQ(t->m->slots, slots);
    /* Going back to the floor gives them back once more. */
    seal_value(t, 3);
    CHECK_EQ(pst_table_rollback(t, 1), PST_OK);
    check_ownership(t);
    for (uint64_t k = 400; k < 412; k++)
        put_value(t, k, k);
    CHECK_EQ(t->m->slots, slots);
    seal_value(t, 3);
    check_ownership(t);
    pst_table_close(t);
}

/* What is refused while rows leave undoes the epoch in which it was refused, and no other. */
static void test_leave_refused(void) {
    uint64_t random = 3, refused = 0;
    elements_model *m = calloc(1, sizeof *m);
    REQUIRE(m);
    for (int trial = 0; trial < 60; trial++) {
        em_init(m, trial % 2, 0);
        pst_table *t = em_open(m, 0, 3);
        for (int i = 0; i < 60; i++)
            em_step(m, t, &random);
        em_seal(m, t, NULL);
        for (int d = 0; d < 2; d++)
            CHECK_EQ(pst_table_set_horizon(t, (pst_domain)d, em_time(trial % 3)), PST_OK);
        uint64_t live = t->m->live, limit = t->arena.limit;
        pst_room all = {100, 0}, left = {0, 0};
        if (trial % 3)
            t->arena.limit = 1 + t->arena.committed_total * (uint64_t)(trial % 8) / 8;
        else
            check_fail_alloc(trial / 3 % 8, trial % 2);
        pst_status s = pst_leave_epochs(t, &all, &left);
        check_fail_alloc(-1, 0);
        t->arena.limit = limit;
        refused += s != PST_OK;
        CHECK(s == PST_OK || s == PST_LIMIT || s == PST_NO_MEMORY);
        CHECK(!t->poisoned && !pst_table_dirty(t));
        CHECK_EQ(live - t->m->live, left.rows);
        check_ownership(t);
        for (int d = 0; d < 2; d++)
            CHECK_EQ(pst_table_set_horizon(t, (pst_domain)d, INT64_MIN), PST_OK);
        CHECK_EQ(pst_leave_epochs(t, &all, NULL), PST_OK);
        CHECK_EQ(t->m->live, 0);
        check_ownership(t);
        pst_table_close(t);
    }
    CHECK(refused > 5);
    free(m);
}

/* Admitted rows are no change: for `dirty`, for batches of changed rows, and for counters. */
static void test_no_change(void) {
    pst_table *t = values_table();
    pst_table_stats stats;
    pst_batch *b = NULL;
    uint64_t cursor = 0;
    pst_table_set_whole(t, 0);
    seal_value(t, 1);
    for (uint64_t k = 0; k < 10; k++)
        CHECK_EQ(admit_value(t, k, k), PST_OK);
    pst_table_get_stats(t, &stats);
    CHECK(!pst_table_dirty(t) && stats.changed_rows == 0 && stats.keys == 10);
    CHECK_EQ(pst_batch_changed(t, &cursor, 100, &b), PST_NOT_FOUND);
    put_value(t, 3, 5);
    put_value(t, 30, 5);
    CHECK(pst_table_dirty(t));
    cursor = 0;
    REQUIRE(pst_batch_changed(t, &cursor, 100, &b) == PST_OK);
    CHECK_EQ(pst_batch_length(b), 2);
    pst_batch_destroy(b);
    /* A row that was admitted and dies leaves its slot once. */
    REQUIRE(pst_key_set_word(t, 4) == PST_OK);
    CHECK_EQ(pst_value_clear(t, -1), PST_OK);
    seal_value(t, 2);
    check_ownership(t);
    CHECK_EQ(pst_slot_ring(t)->tail - pst_slot_ring(t)->head, 1);
    pst_table_close(t);
}

static void seal_below(pst_table *t, below_files *files, uint64_t epoch) {
    pst_lineage l = em_lineage(epoch);
    pst_sealed *sealed = NULL;
    pst_room all = {1, 0}, left;
    REQUIRE(pst_table_seal(t, &l, &sealed) == PST_OK);
    below_add(files, epoch, sealed);
    pst_sealed_destroy(sealed);
    for (int d = 0; d < 2; d++)
        CHECK_EQ(pst_table_set_horizon(t, (pst_domain)d, INT64_MIN), PST_OK);
    CHECK_EQ(pst_leave_epochs(t, &all, &left), PST_OK);
    CHECK_EQ(left.rows, 1);
}

/* A timer joins a row that came with another one, from which it differs by a bit that their words
 * lack. That is a change. */
static void run_lost_bit(pst_domain domain, int64_t whole, int64_t beyond, int stays) {
    elements_model *m = calloc(1, sizeof *m);
    REQUIRE(m);
    em_init(m, 0, 0);
    pst_table *t = em_open(m, 0, 3);
    below_files files;
    pst_cell key = {{0, 0}, {NULL, 0}};
    int64_t times[3];
    pst_batch *b = NULL;
    below_init(&files, &t->schema, 4);
    em_set_key(m, t, 0);
    CHECK_EQ(pst_timer_register(t, domain, whole), PST_OK);
    seal_below(t, &files, 1);
    CHECK_EQ(below_admit(&files, t, &key, UINT64_MAX), PST_OK);
    em_set_key(m, t, 0);
    CHECK_EQ(pst_timer_register(t, domain, beyond), PST_OK);
    if (!stays)
        CHECK_EQ(pst_timer_delete(t, domain, whole), PST_OK);
    seal_below(t, &files, 2);
    CHECK_EQ(below_admit(&files, t, &key, UINT64_MAX), PST_OK);
    pst_table_set_whole(t, 1); /* nobody asks files here */
    if (CHECK_EQ(pst_timers_due(t, domain, INT64_MAX, 3, times, &b), PST_OK)) {
        CHECK_EQ(pst_batch_length(b), 1 + stays);
        CHECK_EQ(times[stays && beyond > whole], beyond);
        pst_batch_destroy(b);
    }
    below_free(&files);
    pst_table_close(t);
    free(m);
}

static void test_lost_bit(void) {
    for (int i = 0; i < 8; i++)
        run_lost_bit((pst_domain)(i & 1), i & 2 ? -1 : 0, i & 2 ? INT64_MAX : INT64_MIN, i >> 2);
}

int main(int argc, char **argv) {
    int epochs = argc > 1 ? atoi(argv[1]) : 200;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    pst_schema schemas[] = {{1, 2, MODEL_LONG_KEY, MODEL_STATES},
                            {1, 1, MODEL_LONG_KEY, MODEL_STATES},
                            {1, 3, MODEL_TEXT_KEY, MODEL_STATES},
                            {1, 9, MODEL_LONG_KEY, MODEL_STATES}};
    test_readers();
    test_heat();
    test_heat_of_batches();
    test_who_stays();
    test_no_change();
    test_leave_refused();
    test_room_at_once();
    test_lost_bit();
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++)
        run_values(&schemas[i], (int)i % 2, epochs, seed + i);
    for (int i = 0; i < 4; i++)
        run_elements(i % 2, i < 2 ? 0 : 100, i % 2, epochs, seed + 10 + (uint64_t)i);
    return check_report();
}
