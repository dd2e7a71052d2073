/* Maps that are larger than memory: what lies in files stays there, and is read where it is wanted.
 *
 *   test_large_maps [seeds] [seed]
 */
#include "fetch/entries.h"
#include "killed.h"

enum { SEEDS = 8 };

/* ---- entries and a model of them ------------------------------------------------------------------ */

enum { VALUE = 200 };

typedef struct entry_bytes {
    char key[16];
    char value[VALUE];
    pst_cell k;
    pst_cell v;
} entry_bytes;

/* Keys of several lengths, which are in order as their numbers are. */
static void make_entry(entry_bytes *e, uint32_t at, uint32_t version) {
    int size = snprintf(e->key, sizeof e->key, at % 3 ? "k%07u" : "k%07u-x", at);
    e->k = (pst_cell){{0, 0}, {(const uint8_t *)e->key, (uint32_t)size}};
    uint64_t random = at * UINT64_C(77) + version;
    for (int i = 0; i < VALUE; i++)
        e->value[i] = (char)('a' + check_random(&random) % 26);
    e->v = (pst_cell){{0, 0}, {(const uint8_t *)e->value, version % 5 ? VALUE : version % 7}};
}

static int same_bytes(pst_bytes a, pst_bytes b) {
    return a.size == b.size && (!a.size || !memcmp(a.data, b.data, a.size));
}

/* Entry `at` of the current key's map is that version of it; 0: there is none; every ninth has no
 * value. */
static void check_entry(pst_table *t, uint32_t at, uint32_t version) {
    entry_bytes e;
    pst_cell value = {{0, 0}, {NULL, 0}};
    int is_null = 0;
    make_entry(&e, at, version);
    pst_status s = pst_map_get(t, W, &e.k, &value, &is_null);
    if (!CHECK_EQ(s, version ? PST_OK : PST_NOT_FOUND) || !version)
        return;
    CHECK_EQ(is_null, version % 9 == 0);
    CHECK(is_null || same_bytes(value.bytes, e.v.bytes));
}

static pst_status put(pst_table *t, uint32_t at, uint32_t version) {
    entry_bytes e;
    make_entry(&e, at, version);
    return pst_map_put(t, W, &e.k, version % 9 ? &e.v : NULL);
}

static pst_status take(pst_table *t, uint32_t at) {
    entry_bytes e;
    make_entry(&e, at, 1);
    return pst_map_remove(t, W, &e.k);
}

/* The whole map, in order. */
static void check_all(pst_table *t, const uint32_t *versions, uint32_t n) {
    pst_elements *e = NULL;
    pst_cell key, value;
    pst_status s;
    uint64_t count, have = 0, wrong = 0;
    REQUIRE(!pst_elements_create(t, &e));
    REQUIRE(!pst_elements_start(e, W));
    for (uint32_t at = 0; at < n; at++) {
        entry_bytes want;
        if (!versions[at])
            continue;
        have++;
        make_entry(&want, at, versions[at]);
        s = pst_elements_next(e, &key, &value);
        if (!CHECK_EQ(s, PST_OK))
            break;
        wrong += !same_bytes(key.bytes, want.k.bytes) ||
                 pst_elements_is_null(e) != (versions[at] % 9 == 0) ||
                 (!pst_elements_is_null(e) && !same_bytes(value.bytes, want.v.bytes));
    }
    CHECK_EQ(wrong, 0);
    CHECK_EQ(pst_elements_next(e, &key, &value), PST_NOT_FOUND);
    REQUIRE(!pst_elements_count(t, W, &count));
    CHECK_EQ(count, have);
    pst_elements_destroy(e);
}

/* From any key on. */
static void check_seeks(pst_table *t, const uint32_t *versions, uint32_t n, uint32_t by) {
    pst_elements *e = NULL;
    pst_cell key, value;
    REQUIRE(!pst_elements_create(t, &e));
    for (uint32_t at = 3; at < n; at += by) {
        entry_bytes from, want;
        uint32_t next = at + 1;
        make_entry(&from, at, 1);
        while (next < n && !versions[next])
            next++;
        REQUIRE(!pst_elements_start(e, W) && !pst_elements_seek(e, &from.k));
        pst_status s = pst_elements_next(e, &key, &value);
        CHECK_EQ(s, next < n ? PST_OK : PST_NOT_FOUND);
        if (next == n)
            continue;
        make_entry(&want, next, versions[next]);
        CHECK(same_bytes(key.bytes, want.k.bytes));
    }
    pst_elements_destroy(e);
}

/* ---- ten times the memory ------------------------------------------------------------------------- */

enum { LIMIT = 2 << 20, ENTRIES = 130000, BATCH = 1500, BATCHES = 90 };

static uint32_t versions[ENTRIES];

/* Puts, or removes, entries of one map as a batch; each row of the batch names the same key. */
static pst_status change_many(pst_table *t, uint64_t key, const uint32_t *at, uint32_t version,
                              int64_t n) {
    static char keys_of[BATCH * 16], values_of[BATCH * VALUE];
    static int64_t k[BATCH], zero[BATCH];
    static int32_t key_offsets[BATCH + 1], value_offsets[BATCH + 1];
    for (int64_t i = 0; i < n; i++) {
        entry_bytes e;
        make_entry(&e, at[i], version);
        k[i] = (int64_t)key;
        memcpy(keys_of + key_offsets[i], e.key, e.k.bytes.size);
        key_offsets[i + 1] = key_offsets[i] + (int32_t)e.k.bytes.size;
        memcpy(values_of + value_offsets[i], e.value, e.v.bytes.size);
        value_offsets[i + 1] = value_offsets[i] + (int32_t)e.v.bytes.size;
    }
    pst_array keys[2] = {{.type = PST_INT64, .length = n, .values = k},
                         {.type = PST_INT64, .length = n, .values = zero}};
    pst_array names = {.type = PST_STRING,
                       .length = n,
                       .values = keys_of,
                       .offsets = key_offsets,
                       .values_bytes = sizeof keys_of};
    pst_array values = {.type = PST_STRING,
                        .length = n,
                        .values = values_of,
                        .offsets = value_offsets,
                        .values_bytes = sizeof values_of};
    pst_batch *b = NULL;
    REQUIRE(!pst_batch_create(t, keys, &b));
    pst_status s =
        version ? pst_batch_map_put(b, W, &names, &values) : pst_batch_map_remove(b, W, &names);
    pst_batch_destroy(b);
    return s;
}

static void drop_many(files *f, uint64_t key, uint64_t *random) {
    static uint32_t at[BATCH];
    for (int i = 0; i < BATCH; i++)
        versions[at[i] = (uint32_t)(check_random(random) % ENTRIES)] = 0;
    REQUIRE(change_many(f->t, key, at, 0, BATCH) == PST_OK);
}

/* Of the puts none reads, once the row is here. */
static uint64_t put_many(files *f, uint64_t key, uint32_t version, uint64_t *random) {
    static uint32_t at[BATCH];
    uint64_t before = reads_of(f);
    REQUIRE(!set_key(f->t, key, 0));
    uint64_t reads = reads_of(f) - before;
    for (int i = 0; i < BATCH; i++)
        versions[at[i] = (uint32_t)(check_random(random) % ENTRIES)] = version;
    before = reads_of(f);
    REQUIRE(change_many(f->t, key, at, version, BATCH) == PST_OK);
    CHECK_EQ(reads_of(f), before);
    return reads;
}

static void check_gets(files *f, uint64_t *random, int n) {
    enum { HALVINGS = 14 };
    for (int i = 0; i < n; i++) {
        uint32_t at = (uint32_t)(check_random(random) % ENTRIES);
        uint64_t before = reads_of(f);
        check_entry(f->t, at, versions[at]);
        CHECK(reads_of(f) - before <= (uint64_t)f->n * HALVINGS);
    }
}

static void check_batch_gets(files *f, uint64_t key, uint64_t *random) {
    enum { SOME = 300 };
    static char names_of[SOME * 16], got[SOME * VALUE];
    static int64_t k[SOME], zero[SOME];
    static int32_t name_offsets[SOME + 1], offsets[SOME + 1];
    static uint32_t at[SOME];
    static uint8_t valid[SOME];
    entry_bytes e;
    for (int i = 0; i < SOME; i++) {
        at[i] = (uint32_t)(check_random(random) % ENTRIES);
        make_entry(&e, at[i], 1);
        k[i] = (int64_t)key;
        memcpy(names_of + name_offsets[i], e.key, e.k.bytes.size);
        name_offsets[i + 1] = name_offsets[i] + (int32_t)e.k.bytes.size;
    }
    pst_array keys[2] = {{.type = PST_INT64, .length = SOME, .values = k},
                         {.type = PST_INT64, .length = SOME, .values = zero}};
    pst_array names = {.type = PST_STRING,
                       .length = SOME,
                       .values = names_of,
                       .offsets = name_offsets,
                       .values_bytes = sizeof names_of};
    pst_bytes_out out = {.offsets = offsets, .valid = valid};
    pst_batch *b = NULL;
    REQUIRE(!pst_batch_create(f->t, keys, &b));
    REQUIRE(!pst_batch_map_get_bytes(b, W, &names, &out));
    out.data = (uint8_t *)got;
    out.capacity = sizeof got;
    REQUIRE(!pst_batch_map_get_bytes(b, W, &names, &out));
    for (int i = 0; i < SOME; i++) {
        uint32_t v = versions[at[i]];
        make_entry(&e, at[i], v);
        CHECK_EQ(valid[i], v && v % 9);
        if (valid[i])
            CHECK(same_bytes(
                (pst_bytes){(uint8_t *)got + offsets[i], (uint32_t)(offsets[i + 1] - offsets[i])},
                e.v.bytes));
    }
    pst_batch_destroy(b);
}

static void test_larger_than_memory(void) {
    files f;
    uint64_t key = long_key(7), random = 5, most = 0;
    memset(versions, 0, sizeof versions);
    begin(&f, LIMIT);
    REQUIRE(!set_key(f.t, 1, 0) && !put(f.t, 3, 4)); /* a small one beside it */
    seal(&f);
    for (uint32_t i = 1; i <= BATCHES; i++) {
        uint64_t reads = put_many(&f, key, i % 9 ? i : i + 1, &random);
        most = reads > most ? reads : most;
        if (i % 4 == 0)
            drop_many(&f, key, &random);
        REQUIRE(!set_key(f.t, key, 0));
        check_gets(&f, &random, 10);
        seal(&f);
        leave(&f, 1); /* however much it is used */
    }
    uint64_t have = 0;
    for (uint32_t at = 0; at < ENTRIES; at++)
        have += versions[at] != 0;
    CHECK(have * VALUE > 6 * (uint64_t)LIMIT);
    CHECK(f.left >= BATCHES);
    CHECK(most > 0 && most < 20 * LONG_FILES);
    for (int round = 0; round < 2; round++) {
        pst_budget_stats stats;
        int below;
        REQUIRE(!set_key(f.t, key, 0));
        CHECK(!pst_table_dirty(f.t));
        REQUIRE(!pst_map_below(f.t, W, &below));
        CHECK(below);
        check_gets(&f, &random, 200);
        check_all(f.t, versions, ENTRIES);
        check_seeks(f.t, versions, ENTRIES, ENTRIES / 50);
        check_batch_gets(&f, key, &random);
        pst_budget_get_stats(f.budget, &stats);
        CHECK(stats.private_bytes < (uint64_t)2 << 20);
        CHECK(!pst_table_dirty(f.t));
        REQUIRE(!set_key(f.t, 1, 0));
        check_entry(f.t, 3, 4);
        anew(&f, LIMIT);
    }
    /* It is emptied, begun again, and that is undone. */
    static uint32_t other[ENTRIES];
    REQUIRE(!set_key(f.t, key, 0) && !pst_value_clear(f.t, W));
    check_all(f.t, other, ENTRIES);
    REQUIRE(!put(f.t, 10, 5));
    other[10] = 5;
    check_all(f.t, other, ENTRIES);
    REQUIRE(!pst_table_rollback(f.t, 0));
    REQUIRE(!set_key(f.t, key, 0));
    check_gets(&f, &random, 50);
    REQUIRE(!pst_value_clear(f.t, W) && !put(f.t, 10, 5) && !put(f.t, 11, 6));
    other[11] = 6;
    seal(&f);
    REQUIRE(!set_key(f.t, key, 0) && !take(f.t, 11) && take(f.t, 12) == PST_NOT_FOUND);
    other[11] = 0;
    seal(&f);
    anew(&f, LIMIT);
    REQUIRE(!set_key(f.t, key, 0));
    check_all(f.t, other, ENTRIES);
    files_merge(&f, 0);
    files_set_stack(&f);
    anew(&f, LIMIT);
    REQUIRE(!set_key(f.t, key, 0));
    check_all(f.t, other, ENTRIES);
    end(&f);
}

/* ---- a process that dies, memory that is refused, bytes that are flipped -------------------------- */

enum { SPACES = 4, NAMES = 300 };

typedef struct maps {
    uint32_t versions[SPACES][NAMES];
} maps;

static void compare(pst_table *t, const void *model) {
    const maps *m = model;
    for (uint64_t i = 0; i < SPACES; i++) {
        REQUIRE(!set_key(t, kill_.key, i));
        check_all(t, m->versions[i], NAMES);
        for (uint32_t at = (uint32_t)i; at < NAMES; at += 37)
            check_entry(t, at, m->versions[i][at]);
    }
}

static void change(files *f) {
    uint64_t i = check_random(&kill_.random) % SPACES, what = check_random(&kill_.random) % 12;
    maps *now = kill_.now;
    uint32_t *v = now->versions[i];
    REQUIRE(!set_key(f->t, kill_.key, i));
    uint32_t slot = f->t->current.slot;
    kill_.below += slot != PST_NONE && pst_entries_are_below(f->t, slot, W);
    if (what == 0) {
        REQUIRE(!pst_value_clear(f->t, check_random(&kill_.random) % 2 ? W : -1));
        memset(v, 0, sizeof now->versions[i]);
    } else if (what == 1) {
        pst_cell cell = {{what, 0}, {NULL, 0}};
        REQUIRE(!pst_value_put(f->t, A, &cell));
    }
    for (uint64_t n = check_random(&kill_.random) % 60; n > 0; n--) {
        uint32_t at = (uint32_t)(check_random(&kill_.random) % NAMES);
        if (check_random(&kill_.random) % 3 == 0) {
            CHECK_EQ(take(f->t, at), v[at] ? PST_OK : PST_NOT_FOUND);
            v[at] = 0;
        } else {
            v[at] = 1 + (uint32_t)(check_random(&kill_.random) % 40);
            REQUIRE(!put(f->t, at, v[at]));
        }
    }
}

/* Whatever allocation is refused, a look says so and may be tried again. */
static void refuse(files *f) {
    entry_bytes e;
    pst_cell key, value;
    int is_null;
    pst_status s;
    make_entry(&e, (uint32_t)(check_random(&kill_.random) % NAMES), 1);
    for (int what = 0; what < 2; what++)
        for (int64_t n = 0;; n++) {
            pst_elements *walk = NULL;
            REQUIRE(!set_key(f->t, kill_.key, 0));
            REQUIRE(!pst_elements_create(f->t, &walk));
            pst_entries_forget(f->t);
            check_fail_alloc(n, 0);
            s = what ? pst_elements_start(walk, W) : pst_map_get(f->t, W, &e.k, &value, &is_null);
            while (what && !s)
                s = pst_elements_next(walk, &key, &value);
            int failed = check_alloc_failed();
            check_fail_alloc(-1, 0);
            pst_elements_destroy(walk);
            CHECK(!f->t->poisoned && !pst_table_dirty(f->t));
            if (!failed)
                break;
            CHECK(s == PST_NO_MEMORY || s == PST_OK || s == PST_NOT_FOUND);
        }
}

static void test_killed(uint64_t seed) {
    static maps models[3];
    files f;
    kill_begin(models, sizeof *models);
    kill_.change = change;
    kill_.compare = compare;
    kill_.every = 1501;
    kill_run(&f, seed);
    anew(&f, (uint64_t)1 << 26);
    refuse(&f);
    kill_end(&f);
}

/* A flipped byte is an error or changes nothing, and the table goes on. */
static void test_flipped(void) {
    enum { FLIPS = 60 };
    files f;
    struct stat st;
    char path[96];
    uint64_t random = 3, found = 0;
    maps m;
    memset(&m, 0, sizeof m);
    begin(&f, (uint64_t)1 << 26);
    kill_.key = long_key(3);
    REQUIRE(!set_key(f.t, kill_.key, 0));
    for (uint32_t at = 0; at < NAMES; at++)
        REQUIRE(!put(f.t, at, m.versions[0][at] = 1 + at % 30));
    seal(&f);
    files_path(&f, f.number[0], path);
    REQUIRE(!stat(path, &st));
    for (int i = 0; i < FLIPS; i++) {
        off_t at = (off_t)(check_random(&random) % (uint64_t)st.st_size);
        uint8_t byte;
        anew(&f, (uint64_t)1 << 26);
        REQUIRE(!set_key(f.t, kill_.key, 0));
        int fd = open(path, O_RDWR);
        REQUIRE(fd >= 0 && pread(fd, &byte, 1, at) == 1);
        byte ^= 0x10;
        REQUIRE(pwrite(fd, &byte, 1, at) == 1);
        for (uint32_t name = 0; name < NAMES; name += 11) {
            entry_bytes e;
            pst_cell value;
            int is_null;
            make_entry(&e, name, m.versions[0][name]);
            pst_status s = pst_map_get(f.t, W, &e.k, &value, &is_null);
            CHECK(s == PST_OK || s == PST_CORRUPT);
            found += s == PST_CORRUPT;
            if (s)
                CHECK(f.t->detail.row == 0 && f.t->detail.offset >= 0);
            else
                CHECK(is_null == (m.versions[0][name] % 9 == 0) &&
                      (is_null || same_bytes(value.bytes, e.v.bytes)));
        }
        CHECK(!f.t->poisoned && !pst_table_dirty(f.t));
        byte ^= 0x10;
        REQUIRE(pwrite(fd, &byte, 1, at) == 1 && !close(fd));
        REQUIRE(!set_key(f.t, kill_.key, 0));
        check_all(f.t, m.versions[0], NAMES);
    }
    CHECK(found > FLIPS);
    end(&f);
}

/* ---- what is refused, and what cannot be read ------------------------------------------------------ */

/* A map of one key, all of whose entries lie in files: version `at % 30 + 1` of each. */
static void begin_below(files *f, maps *m, uint64_t limit) {
    int below;
    memset(m, 0, sizeof *m);
    begin(f, limit);
    kill_.key = long_key(3);
    REQUIRE(!set_key(f->t, kill_.key, 0));
    for (uint32_t at = 0; at < NAMES; at++)
        REQUIRE(!put(f->t, at, m->versions[0][at] = 1 + at % 30));
    seal(f);
    anew(f, limit);
    REQUIRE(!set_key(f->t, kill_.key, 0));
    REQUIRE(!pst_map_below(f->t, W, &below) && below);
}

/* A removal that is refused memory leaves the map as it was, and is done when there is some. */
static void test_refused_removals(void) {
    files f;
    maps m;
    uint64_t refused = 0, random = 11;
    begin_below(&f, &m, (uint64_t)1 << 26);
    pst_table_set_steps(f.t, 1);
    uint64_t limit = f.t->arena.limit;
    for (uint32_t i = 0; i < NAMES; i++) {
        uint32_t at = i * 7 % NAMES;
        int many = check_random(&random) % 2 != 0;
        pst_status s;
        f.t->arena.limit = f.t->arena.committed_total / 9 * 8;
        while ((s = many ? change_many(f.t, kill_.key, &at, 0, 1) : take(f.t, at)) == PST_NO_ROOM) {
            CHECK(!f.t->poisoned);
            check_all(f.t, m.versions[0], NAMES);
            f.t->arena.limit += 4096;
            refused++;
        }
        REQUIRE(!s);
        f.t->arena.limit = limit;
        m.versions[0][at] = 0;
        if (i % 3 == 0) /* then nodes are copied again */
            seal(&f);
        REQUIRE(!set_key(f.t, kill_.key, 0));
    }
    check_all(f.t, m.versions[0], NAMES);
    CHECK(refused > 3);
    seal(&f);
    check_ownership(f.t);
    anew(&f, (uint64_t)1 << 26);
    REQUIRE(!set_key(f.t, kill_.key, 0));
    check_all(f.t, m.versions[0], NAMES);
    end(&f);
}

/* A map that was cleared and begun again has what is put, also what is as it was before. */
static void test_begun_again_alike(void) {
    files f;
    maps m;
    begin_below(&f, &m, (uint64_t)1 << 26);
    REQUIRE(!put(f.t, 5, 35) && !put(f.t, 6, 36));
    seal(&f);
    REQUIRE(!set_key(f.t, kill_.key, 0) && !pst_value_clear(f.t, W) && !put(f.t, 5, 35));
    memset(&m, 0, sizeof m);
    m.versions[0][5] = 35;
    for (int round = 0; round < 3; round++) {
        check_all(f.t, m.versions[0], NAMES);
        if (!round)
            seal(&f);
        if (round == 1) {
            files_merge(&f, 0);
            files_set_stack(&f);
        }
        anew(&f, (uint64_t)1 << 26);
        REQUIRE(!set_key(f.t, kill_.key, 0));
    }
    end(&f);
}

static int64_t fail_read(const pst_read *r, int64_t result) {
    (void)r;
    (void)result;
    return -EIO;
}

/* A file whose guide cannot be read is not passed over: it may have the newest word. */
static void test_unread_guide(void) {
    files f;
    maps m;
    entry_bytes e;
    pst_cell value;
    int is_null;
    begin_below(&f, &m, (uint64_t)1 << 26);
    REQUIRE(!put(f.t, 5, m.versions[0][5] = 35) && !take(f.t, 6));
    m.versions[0][6] = 0;
    seal(&f);
    anew(&f, (uint64_t)1 << 26);
    REQUIRE(!set_key(f.t, kill_.key, 0));
    for (uint32_t at = 5; at < 7; at++) {
        files_set_stack(&f);
        make_entry(&e, at, 1);
        pst_read_hook = fail_read;
        CHECK_EQ(pst_map_get(f.t, W, &e.k, &value, &is_null), PST_IO);
        pst_read_hook = NULL;
        CHECK(!f.t->poisoned);
        check_entry(f.t, at, m.versions[0][at]);
    }
    check_all(f.t, m.versions[0], NAMES);
    end(&f);
}

/* ---- entries that expire --------------------------------------------------------------------------- */

static const pst_column TIMED[] = {
    {.name = "m", .type = PST_INT64, .kind = PST_MAP, .map_key = PST_INT64},
    {.name = "m#", .type = PST_INT64, .kind = PST_TIME}};
static const pst_schema TIMED_SCHEMA = {2, 2, KEYS, TIMED, 1};

static void set_times(files *f, int64_t processing_ms, int64_t watermark_ms, int64_t event_ms) {
    f->now = (pst_clock){processing_ms, watermark_ms, event_ms};
    pst_table_set_clock(f->t, &f->now);
}

static pst_status timed_get(files *f, uint64_t at) {
    pst_cell k = {{at, 0}, {NULL, 0}}, value;
    int is_null;
    return pst_map_get(f->t, 0, &k, &value, &is_null);
}

static pst_status timed_put(files *f, uint64_t at, uint64_t n) {
    pst_cell k = {{at, 0}, {NULL, 0}}, v = {{n, 0}, {NULL, 0}};
    return pst_map_put(f->t, 0, &k, &v);
}

static void begin_timed(files *f, const pst_ttl *ttl, int64_t processing_ms, int64_t event_ms) {
    begin_with(f, &TIMED_SCHEMA, ttl, (uint64_t)1 << 26);
    kill_.key = long_key(3);
    set_times(f, processing_ms, PST_NO_TIME, event_ms);
    REQUIRE(!set_key(f->t, kill_.key, 0));
    for (uint64_t at = 0; at < NAMES; at++)
        REQUIRE(!timed_put(f, at, at));
    seal(f);
    anew(f, (uint64_t)1 << 26);
    REQUIRE(!set_key(f->t, kill_.key, 0));
}

/* A late write does not make an entry expire before what the newer one promised, wherever that lies. */
static void test_late_puts(void) {
    static const pst_ttl ttl = {.duration_ms = 100, .event_time = 1};
    files f;
    begin_timed(&f, &ttl, PST_NO_TIME, 1000);
    set_times(&f, PST_NO_TIME, 900, 950);
    REQUIRE(!timed_put(&f, 4, 44));
    set_times(&f, PST_NO_TIME, 1060, 1060);
    CHECK_EQ(timed_get(&f, 4), PST_OK);
    CHECK_EQ(timed_get(&f, 5), PST_OK);
    set_times(&f, PST_NO_TIME, 1100, 1100);
    CHECK_EQ(timed_get(&f, 4), PST_NOT_FOUND);
    end(&f);
}

/* What had expired and was removed does not come back where a later run lets entries live longer. */
static void test_removed_stays_removed(void) {
    static const pst_ttl ttl = {.duration_ms = 100}, longer = {.duration_ms = 1000};
    files f;
    int below;
    begin_timed(&f, &ttl, 1000, PST_NO_TIME);
    REQUIRE(!pst_map_below(f.t, 0, &below));
    CHECK(below);
    set_times(&f, 1200, PST_NO_TIME, PST_NO_TIME);
    pst_cell k = {{4, 0}, {NULL, 0}};
    CHECK_EQ(timed_get(&f, 4), PST_NOT_FOUND);
    CHECK_EQ(pst_map_remove(f.t, 0, &k), PST_NOT_FOUND);
    CHECK(pst_table_dirty(f.t));
    seal(&f);
    f.ttl = &longer;
    anew(&f, (uint64_t)1 << 26);
    REQUIRE(!set_key(f.t, kill_.key, 0));
    CHECK_EQ(timed_get(&f, 4), PST_NOT_FOUND);
    CHECK_EQ(timed_get(&f, 5), PST_OK);
    end(&f);
}

/* One that was removed and is put without a value is there, also before there is a clock. */
static void test_gone_and_null(void) {
    static const pst_ttl ttl = {.duration_ms = 100};
    files f;
    pst_cell k = {{4, 0}, {NULL, 0}}, value;
    int is_null = 0;
    begin_timed(&f, &ttl, PST_NO_TIME, PST_NO_TIME);
    CHECK_EQ(pst_map_remove(f.t, 0, &k), PST_OK);
    CHECK_EQ(timed_get(&f, 4), PST_NOT_FOUND);
    CHECK_EQ(pst_map_put(f.t, 0, &k, NULL), PST_OK);
    CHECK_EQ(pst_map_get(f.t, 0, &k, &value, &is_null), PST_OK);
    CHECK(is_null);
    end(&f);
}

int main(int argc, char **argv) {
    uint64_t seeds = argc > 1 ? strtoull(argv[1], NULL, 10) : SEEDS;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    test_larger_than_memory();
    test_flipped();
    test_refused_removals();
    test_begun_again_alike();
    test_unread_guide();
    test_late_puts();
    test_removed_stays_removed();
    test_gone_and_null();
    for (uint64_t i = 0; i < seeds; i++)
        test_killed(seed + i);
    return check_report();
}
