/* The index under keys that somebody chose, in the order of their hashes, and at any size: what a
 * look-up costs is counted in lines and rows looked at, never in time. */
#include <string.h>

#include "access/batch.h"
#include "files.h"
#include "key/siphash.h"
#include "memory/alloc.h"
#include "memory/ring.h"
#include "table/index.h"
#include "table/value.h"
#include "table_model.h"

static const pst_column LONG_KEY[] = {{.name = "k", .type = PST_INT64}};
static const pst_column BYTES_KEY[] = {{.name = "k", .type = PST_BINARY}};
static const pst_column TWO_KEYS[] = {{.name = "k", .type = PST_INT64},
                                      {.name = "at", .type = PST_BINARY}};
static const pst_column STATES[] = {{.name = "n", .type = PST_INT64, .has_default = 1}};
static const pst_schema LONGS = {1, 1, LONG_KEY, STATES};
static const pst_schema BYTES = {1, 1, BYTES_KEY, STATES};
static const pst_schema NAMESPACED = {2, 1, TWO_KEYS, STATES, 1};

static pst_table *make_table(const pst_schema *s, int32_t max_parallelism, int32_t last) {
    pst_table_options o = {.max_parallelism = max_parallelism,
                           .last_key_group = last,
                           .limit_bytes = (uint64_t)1 << 30};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(s, &o, &t, NULL, NULL) == PST_OK);
    return t;
}

static void seal(pst_table *t) {
    pst_lineage l;
    REQUIRE(pst_table_lineage(t, 0, &l) == PST_OK);
    l = model_lineage(l.epoch + 1);
    CHECK_EQ(pst_table_seal(t, &l, NULL), PST_OK);
}

/* ---- what a look-up costs -------------------------------------------------------------------- */

typedef struct cost {
    uint64_t lines;
    uint64_t rows; /* looked at in vain */
} cost;

/* Lines and rows between the home of a row's hash and its entry. */
static cost cost_of(const pst_table *t, uint32_t slot) {
    uint64_t hash = pst_row_hash(t, pst_row(t, slot));
    uint32_t tag = pst_tag_of(t, hash);
    cost n = {0, 0};
    pst_probe c;
    REQUIRE(pst_probe_home(&c, &t->m->shards[pst_directory_at(t, t->m->directory_bits, hash, tag)],
                           t->heap, tag));
    for (n.lines = 1; n.lines * PST_LINE <= c.capacity; n.lines++) {
        for (uint32_t m = pst_line_matches(c.line, tag); m; m &= m - 1) {
            uint64_t e = c.line[__builtin_ctz(m)];
            if (e == pst_entry(tag, slot))
                return n;
            n.rows += e && e != PST_TOMBSTONE;
        }
        pst_probe_step(&c, t->heap);
    }
    REQUIRE(!"the row has an entry");
    return n;
}

/* Over all rows: the worst, and the sum in `sum`. */
static cost worst_cost(const pst_table *t, cost *sum) {
    cost worst = {0, 0};
    *sum = worst;
    for (uint32_t slot = 0; slot < t->m->slots; slot++) {
        cost one = cost_of(t, slot);
        worst.lines = one.lines > worst.lines ? one.lines : worst.lines;
        worst.rows = one.rows > worst.rows ? one.rows : worst.rows;
        sum->lines += one.lines;
        sum->rows += one.rows;
    }
    return worst;
}

/* ---- choosing keys --------------------------------------------------------------------------- */

static uint64_t inverse(uint64_t odd) {
    uint64_t x = odd;
    for (int i = 0; i < 6; i++)
        x *= 2 - odd * x;
    return x;
}

static uint64_t unshift(uint64_t y, unsigned by) {
    uint64_t x = y;
    for (unsigned done = by; done < 64; done += by)
        x = y ^ x >> by;
    return x;
}

/* The long whose hash this is. */
static uint64_t long_of(uint64_t hash) {
    uint64_t h = unshift(hash, 32) * inverse(PST_XXH_P3);
    h = unshift(h, 29) * inverse(PST_XXH_P2);
    h = unshift(h, 33) - PST_XXH_P4;
    h = pst_xxh64_rotl(h * inverse(PST_XXH_P1), 64 - 27);
    h = (h ^ (PST_HASH_SEED + PST_XXH_P5 + 8)) * inverse(PST_XXH_P1);
    return pst_xxh64_rotl(h, 64 - 31) * inverse(PST_XXH_P2);
}

static uint64_t round_of(uint64_t lane) {
    return pst_xxh64_rotl(lane * PST_XXH_P2, 31) * PST_XXH_P1;
}

/* Rewrites the lane at `at` so that the hash of all bytes, fewer than 32, no longer depends on what
 * lies before it. */
static void tie_bytes(uint8_t *data, size_t size, size_t at, uint64_t seed) {
    const uint64_t meet = UINT64_C(0x0123456789abcdef);
    uint64_t h = seed + PST_XXH_P5 + size, lane;
    for (size_t i = 0; i < at; i += 8) {
        memcpy(&lane, data + i, 8);
        h = pst_xxh64_rotl(h ^ round_of(lane), 27) * PST_XXH_P1 + PST_XXH_P4;
    }
    lane = (h ^ meet) * inverse(PST_XXH_P1);
    lane = pst_xxh64_rotl(lane, 64 - 31) * inverse(PST_XXH_P2);
    memcpy(data + at, &lane, 8);
}

/* A number that takes eight bytes among several columns. */
#define NUMBER (UINT64_C(1) << 62)

/* Sixteen bytes, another for each i, that all have one hash: as a key, or encoded behind the number
 * under the hash of that. */
static void tied_bytes(const pst_schema *s, uint16_t i, uint8_t out[16]) {
    uint8_t encoded[30] = {9, 0, 0, 0, 0, 0, 0, 0, 0x80, 1, 16};
    uint8_t *key = s->n_keys == 1 ? out : encoded + 14;
    memset(key, 0, 16);
    memcpy(key, &i, sizeof i);
    if (s->n_keys == 1)
        tie_bytes(out, 16, 8, PST_HASH_SEED);
    else
        tie_bytes(encoded, 30, 16, pst_xxh64_long(NUMBER, PST_HASH_SEED));
    memmove(out, key, 16);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void put_longs(pst_table *t, const int64_t *keys, int64_t n) {
    int64_t one = 1;
    pst_array k = {PST_INT64, n, 0, NULL, keys, NULL}, v = {PST_INT64, 1, 0, NULL, &one, NULL};
    pst_batch *b = NULL;
    REQUIRE(pst_batch_create(t, &k, &b) == PST_OK);
    CHECK_EQ(pst_batch_apply(b, 0, PST_ADD, &v), PST_OK);
    pst_batch_destroy(b);
}

static void check_spread(const pst_table *t, uint64_t keys) {
    cost sum, worst = worst_cost(t, &sum);
    /* By chance alone 1 in 300 tables has a row further than 64 lines away, none of 1 600 80. */
    CHECK(worst.lines <= 128);
    CHECK(sum.lines <= 2 * keys);
    CHECK(sum.rows <= keys / 4);
}

/* Longs whose hashes share a half, or lie at equal distances, all of one key group. */
static void test_chosen_longs(void) {
    enum { N = 40000 };
    static int64_t keys[N];
    static const struct {
        uint64_t base, step;
    } families[] = {{UINT64_C(0x123456780000005), 1 << 7},
                    {5, UINT64_C(1) << 40},
                    {5, UINT64_C(0x9E3779B97F4A7C15) << 7},
                    {UINT64_C(0xFFFFFFFF00000005), UINT64_C(1) << 15}};
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        pst_table *t = make_table(&LONGS, 128, 127);
        for (uint64_t i = 0; i < N; i++) {
            uint64_t hash = families[f].base + i * families[f].step;
            keys[i] = (int64_t)long_of(hash);
            CHECK_EQ(pst_xxh64_long(keys[i], PST_HASH_SEED), hash);
        }
        for (int64_t from = 0; from < N; from += 1000)
            put_longs(t, keys + from, 1000);
        pst_table_stats stats;
        pst_table_get_stats(t, &stats);
        CHECK_EQ(stats.keys, N);
        check_spread(t, N);
        pst_table_close(t);
    }
}

static void put_bytes(pst_table *t, const uint8_t *at, uint64_t value) {
    pst_cell key[2] = {{{NUMBER, 0}, {NULL, 0}}}, cell = {{value, 0}, {NULL, 0}};
    key[t->schema.n_keys - 1].bytes = (pst_bytes){at, 16};
    CHECK_EQ(pst_key_set(t, key, 0), PST_OK);
    CHECK_EQ(pst_value_put(t, 0, &cell), PST_OK);
}

static pst_status get_bytes(pst_table *t, const uint8_t *at, uint64_t *value) {
    pst_cell key[2] = {{{NUMBER, 0}, {NULL, 0}}}, cell = {{0, 0}, {NULL, 0}};
    key[t->schema.n_keys - 1].bytes = (pst_bytes){at, 16};
    CHECK_EQ(pst_key_set(t, key, 0), PST_OK);
    pst_status s = pst_value_get(t, 0, &cell);
    *value = cell.word[0];
    return s;
}

/* Every row's hash is Spark's, as the table gives it out, a reader, and the file of a seal. */
static void check_hashes(pst_table *t, uint64_t rows, uint64_t changed) {
    static pst_record r;
    uint64_t cursor = 0, n = 0;
    pst_reader *reader = NULL;
    pst_schema *s = &t->schema;
    for (; pst_table_next(t, &cursor, &r) == PST_OK; n++)
        CHECK_EQ(r.hash, pst_hash_key(s->keys, pst_schema_hashed(s), r.key, r.key_nulls));
    CHECK_EQ(n, rows);
    pst_lineage l = model_lineage(t->h->sealed + 1);
    pst_sealed *sealed = NULL;
    CHECK_EQ(pst_table_seal(t, &l, &sealed), PST_OK);
    memory_file f = {.calls_left = -1};
    pst_io io = {.ctx = &f, .write = file_write, .read_at = file_read_at};
    pst_file_info info;
    CHECK_EQ(pst_sealed_write(sealed, &io, &info), PST_OK);
    CHECK_EQ(info.rows, changed);
    pst_sealed_destroy(sealed);
    REQUIRE(pst_reader_open(t, s, NULL, &reader, NULL) == PST_OK);
    for (cursor = n = 0; pst_reader_next(reader, &cursor, &r) == PST_OK; n++)
        CHECK_EQ(r.hash, pst_hash_key(s->keys, pst_schema_hashed(s), r.key, r.key_nulls));
    CHECK_EQ(n, rows);
    pst_reader_close(reader);
    /* Another table, another salt. */
    pst_sst_reader *file = NULL;
    REQUIRE(pst_sst_reader_open(&io, f.size, &file, NULL) == PST_OK);
    pst_table *other = make_table(s, t->max_parallelism, t->last_key_group);
    CHECK(memcmp(other->h->salt, t->h->salt, sizeof t->h->salt) != 0);
    CHECK_EQ(pst_table_load(other, file, NULL, s->n_states, &n), PST_OK);
    CHECK_EQ(n, changed);
    check_spread(other, changed);
    pst_sst_reader_close(file);
    pst_table_close(other);
    free(f.data);
}

/* Keys of bytes that all have one hash; with a namespace, under the hash that is spread by it. */
static void test_ties(const pst_schema *s) {
    enum { N = 20000, FEW = 100 };
    static uint8_t keys[N][16];
    static pst_record r;
    pst_table *t = make_table(s, 16, 15);
    uint64_t value;
    for (uint64_t i = 0; i < N; i++)
        tied_bytes(s, (uint16_t)i, keys[i]);
    for (uint64_t i = 0; i < FEW; i++)
        put_bytes(t, keys[i], i);
    CHECK_EQ(t->m->ties, 1);
    /* Undone, they are gone, and so is the word that there are ties. */
    CHECK_EQ(pst_table_rollback(t, 0), PST_OK);
    CHECK_EQ(t->m->ties, 0);
    for (uint64_t i = 0; i < FEW; i++)
        CHECK_EQ(get_bytes(t, keys[i], &value), PST_NOT_FOUND);
    for (uint64_t i = 0; i < N; i++) {
        put_bytes(t, keys[i], i);
        if (i == N / 2)
            seal(t);
    }
    check_spread(t, N);
    for (uint64_t i = 0; i < N; i++)
        CHECK(get_bytes(t, keys[i], &value) == PST_OK && value == i);
    pst_reader *reader = NULL;
    REQUIRE(pst_reader_open(t, s, NULL, &reader, NULL) == PST_OK);
    for (uint64_t i = 0; i < N; i++) {
        pst_cell key[2] = {{{NUMBER, 0}, {NULL, 0}}};
        key[s->n_keys - 1].bytes = (pst_bytes){keys[i], 16};
        CHECK_EQ(pst_reader_get(reader, key, 0, &r), i <= N / 2 ? PST_OK : PST_NOT_FOUND);
    }
    pst_reader_close(reader);
    check_hashes(t, N, N - N / 2 - 1);
    /* Coming and going: slots are taken again, entries are buried under the right hash. */
    for (int e = 0; e < 12; e++) {
        for (uint64_t i = 0; i < N; i += 3) {
            put_bytes(t, keys[i], i);
            if (e % 2 == 0)
                CHECK_EQ(pst_value_clear(t, -1), PST_OK);
        }
        seal(t);
    }
    for (uint64_t i = 0; i < N; i++)
        CHECK(get_bytes(t, keys[i], &value) == PST_OK && value == i);
    pst_table_close(t);
}

static int by_hash(const void *a, const void *b) {
    uint64_t x = pst_xxh64_long(*(const int64_t *)a, PST_HASH_SEED);
    uint64_t y = pst_xxh64_long(*(const int64_t *)b, PST_HASH_SEED);
    return (x > y) - (x < y);
}

/* Keys that come in the order of their hashes, as files have them, while shards grow and split. */
static void test_order_of_hashes(void) {
    enum { N = 60000, STEP = 2000 };
    static int64_t keys[N];
    for (int64_t i = 0; i < N; i++)
        keys[i] = i;
    qsort(keys, N, sizeof *keys, by_hash);
    pst_table *t = make_table(&LONGS, 1, 0);
    for (int64_t from = 0; from < N; from += STEP) {
        put_longs(t, keys + from, STEP);
        check_spread(t, (uint64_t)(from + STEP));
        if (from % (4 * STEP) == 0)
            seal(t);
    }
    CHECK_EQ(pst_directory_size(t, t->m), t->h->shards);
    pst_table_close(t);
}

/* No shard is larger than it must be while the directory has room, also where all keys are of one
 * group, and however often the epochs that split it were undone. */
static void test_splits(void) {
    enum { N = 1500 };
    static int64_t keys[N];
    static const pst_schema *s = &LONGS;
    for (int32_t groups = 1; groups <= 32; groups *= 32) {
        pst_table *t = make_table(s, 128, groups - 1);
        int64_t n = 0;
        for (int64_t k = 0; n < N; k++) {
            uint64_t hash = pst_xxh64_long(k, PST_HASH_SEED);
            if (pst_group_of(t, hash) < groups && (groups == 1 || hash >> 60 < 8))
                keys[n++] = k;
        }
        for (int64_t from = 0; from < N; from += 100) {
            for (int undone = 0; undone < 3; undone++) {
                put_longs(t, keys + from, 100);
                if (undone < 2)
                    CHECK_EQ(pst_table_rollback(t, 0), PST_OK);
            }
            seal(t);
            if (from % 300 == 0) {
                CHECK_EQ(pst_table_rollback(t, 1), PST_OK);
                put_longs(t, keys + from, 100);
                seal(t);
            }
            pst_table_stats stats;
            pst_table_get_stats(t, &stats);
            CHECK_EQ(stats.keys, from + 100);
            check_spread(t, (uint64_t)(from + 100));
        }
        uint32_t n_shards = pst_directory_size(t, t->m);
        for (uint32_t i = 0; n_shards < t->h->shards && i < n_shards; i++)
            CHECK(pst_shard_capacity(t->m->shards[i].shape) <= PST_SHARD_MOST);
        CHECK(n_shards > 16);
        pst_table_close(t);
    }
}

/* Keys that go, for good or to come back: the index gives back what it no longer needs, some at
 * each seal, and every epoch of the window is what it was. */
static void test_shrinking(void) {
    enum { N = 40000, KEPT = 50, EPOCHS = 200 };
    static int64_t keys[N];
    pst_table *t = make_table(&LONGS, 128, 127);
    pst_table_stats full, now;
    for (int64_t i = 0; i < N; i++)
        keys[i] = i * 3;
    put_longs(t, keys, N);
    seal(t);
    pst_table_get_stats(t, &full);
    for (int round = 0; round < 2; round++) {
        pst_array k = {PST_INT64, N - KEPT, 0, NULL, keys + KEPT, NULL};
        pst_batch *b = NULL;
        REQUIRE(pst_batch_create(t, &k, &b) == PST_OK);
        CHECK_EQ(pst_batch_clear(b, -1), PST_OK);
        /* Those that died in the open epoch can still come back to their rows. */
        pst_table_get_stats(t, &now);
        CHECK_EQ(pst_index_tidy(t), PST_OK);
        uint64_t slots = now.slots;
        put_longs(t, keys + KEPT, N - KEPT);
        pst_table_get_stats(t, &now);
        CHECK_EQ(now.slots, slots);
        CHECK_EQ(pst_batch_clear(b, -1), PST_OK);
        pst_batch_destroy(b);
        seal(t);
        for (int e = 0; e < EPOCHS; e++) {
            pst_cell c;
            put_longs(t, keys, KEPT);
            seal(t);
            if (e % 7 == 3) {
                CHECK_EQ(pst_table_rollback(t, 2), PST_OK);
                put_longs(t, keys, KEPT);
                put_longs(t, keys, KEPT);
                seal(t);
            }
            pst_table_get_stats(t, &now);
            CHECK_EQ(now.keys, KEPT);
            CHECK_EQ(pst_key_set_word(t, (uint64_t)keys[e % KEPT]), PST_OK);
            CHECK_EQ(pst_value_get(t, 0, &c), PST_OK);
            CHECK_EQ(pst_key_set_word(t, (uint64_t)keys[KEPT + e]), PST_OK);
            CHECK_EQ(pst_value_get(t, 0, &c), PST_NOT_FOUND);
        }
        CHECK(now.index_bytes <= full.index_bytes / 8);
        put_longs(t, keys, N);
        /* Undone, the large shards that are no longer there do not come back. */
        CHECK_EQ(pst_table_rollback(t, 0), PST_OK);
        pst_table_get_stats(t, &now);
        CHECK(now.index_bytes <= full.index_bytes / 8);
        put_longs(t, keys, N);
        seal(t);
        pst_table_get_stats(t, &now);
        CHECK_EQ(now.keys, N);
    }
    pst_table_close(t);
}

/* Where there is no memory to free what a smaller shard leaves, it waits, and nothing is lost. */
static void test_refused_shrinking(void) {
    enum { N = 20000, KEPT = 50, BLOCKS = 60, OF_CLASSES = 32, TRIES = 60 };
    static int64_t keys[N];
    uint32_t kept[BLOCKS];
    uint64_t random = 1;
    pst_table *t = make_table(&LONGS, 128, 127);
    pst_array gone = {PST_INT64, N - KEPT, 0, NULL, keys + KEPT, NULL};
    pst_batch *b = NULL;
    for (int64_t i = 0; i < N; i++)
        keys[i] = i * 3;
    put_longs(t, keys, N);
    seal(t);
    REQUIRE(pst_batch_create(t, &gone, &b) == PST_OK);
    CHECK_EQ(pst_batch_clear(b, -1), PST_OK);
    pst_batch_destroy(b);
    seal(t);
    for (uint32_t c = 0; c < OF_CLASSES; c++) {
        for (int i = 0; i < BLOCKS; i++)
            REQUIRE(pst_block_alloc(t, c, &kept[i]) == PST_OK);
        for (int i = 0; i < BLOCKS; i++)
            REQUIRE(pst_block_free(t, c, kept[i], 1) == PST_OK);
    }
    for (uint32_t c = 0; c < PST_CLASSES; c++)
        REQUIRE(pst_ring_reserve(t, c, 4) == PST_OK);
    uint64_t limit = t->arena.limit, index = t->m->index_granules;
    t->arena.limit = t->arena.committed_total / 9 * 8; /* what makes room may pass it */
    for (int i = 0; i < TRIES; i++) {
        for (uint32_t c = 0; c < PST_CLASSES; c++) {
            while (pst_ring_push(t, c, 0) == PST_OK)
                ;
            t->m->rings[c].tail -= (uint32_t)(check_random(&random) % 3);
        }
        CHECK_EQ(pst_index_tidy(t), PST_OK);
    }
    t->arena.limit = limit;
    CHECK(t->arena.refused > 0 && t->m->index_granules < index);
    for (int i = 0; i < KEPT; i++) {
        pst_cell c;
        CHECK_EQ(pst_key_set_word(t, (uint64_t)keys[i]), PST_OK);
        CHECK_EQ(pst_value_get(t, 0, &c), PST_OK);
    }
    pst_table_close(t);
}

/* A file into an empty table: shards have their size from the start, so nothing was outgrown and
 * the heap holds the index alone; a delta after it, and the part of a range, find their way. */
static void test_restore(int32_t max_parallelism) {
    enum { N = 30000 };
    static int64_t keys[N];
    memory_file f[2] = {{.calls_left = -1}, {.calls_left = -1}};
    pst_file_info info;
    pst_table *t = make_table(&LONGS, max_parallelism, max_parallelism - 1);
    for (int64_t i = 0; i < N; i++)
        keys[i] = i * 5;
    for (int part = 0; part < 2; part++) {
        pst_sealed *sealed = NULL;
        pst_lineage l = model_lineage((uint64_t)part + 1);
        pst_io io = {.ctx = &f[part], .write = file_write};
        put_longs(t, keys + part * N / 2, N / 2);
        put_longs(t, keys, 100);
        CHECK_EQ(pst_table_seal(t, &l, &sealed), PST_OK);
        CHECK_EQ(pst_sealed_write(sealed, &io, &info), PST_OK);
        pst_sealed_destroy(sealed);
    }
    pst_table_close(t);
    for (int32_t last = max_parallelism - 1; last >= 0; last -= (max_parallelism + 1) / 2) {
        t = make_table(&LONGS, max_parallelism, last);
        for (int part = 0; part < 2; part++) {
            pst_io io = {.ctx = &f[part], .read_at = file_read_at};
            pst_sst_reader *r = NULL;
            REQUIRE(pst_sst_reader_open(&io, f[part].size, &r, NULL) == PST_OK);
            CHECK_EQ(pst_sst_reader_seek(r, 0, last), PST_OK);
            CHECK_EQ(pst_table_load(t, r, NULL, 1, NULL), PST_OK);
            pst_sst_reader_close(r);
            pst_table_stats stats;
            pst_table_get_stats(t, &stats);
            if (part == 0)
                CHECK(stats.block_bytes <= stats.index_bytes + stats.index_bytes / 32);
            check_spread(t, stats.keys);
        }
        uint64_t found = 0;
        for (int64_t i = 0; i < N; i++) {
            uint64_t hash = pst_xxh64_long(keys[i], PST_HASH_SEED);
            pst_cell c = {{0, 0}, {NULL, 0}};
            if (pst_group_of(t, hash) > last)
                continue;
            CHECK_EQ(pst_key_set_word(t, (uint64_t)keys[i]), PST_OK);
            CHECK_EQ(pst_value_get(t, 0, &c), PST_OK);
            CHECK_EQ(c.word[0], i < 100 ? 3 : 1);
            found++;
        }
        pst_table_stats stats;
        pst_table_get_stats(t, &stats);
        CHECK_EQ(stats.keys, found);
        CHECK_EQ(stats.slots, found);
        pst_table_close(t);
    }
    free(f[0].data);
    free(f[1].data);
}

/* The first ones as implementations of SipHash-1-3 publish them; the last two are CPython's hash of
 * bytes where PYTHONHASHSEED is 0. */
static void test_siphash(void) {
    static const uint64_t secret[2] = {UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)};
    static const uint64_t none[2];
    uint8_t data[64];
    for (uint8_t i = 0; i < 64; i++)
        data[i] = i;
    CHECK_EQ(pst_siphash(NULL, 0, secret), UINT64_C(0xabac0158050fc4dc));
    CHECK_EQ(pst_siphash(data, 1, secret), UINT64_C(0xc9f49bf37d57ca93));
    CHECK_EQ(pst_siphash(data, 8, none), UINT64_C(0xead411e67ebe2eea));
    CHECK_EQ(pst_siphash(data, 20, none), UINT64_C(0x639e355ae68c0100));
}

int main(void) {
    test_siphash();
    test_chosen_longs();
    test_ties(&BYTES);
    test_ties(&NAMESPACED);
    test_order_of_hashes();
    test_shrinking();
    test_refused_shrinking();
    test_restore(1);
    test_restore(16);
    test_restore(128);
    test_splits();
    return check_report();
}
