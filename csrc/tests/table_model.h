/* table_model.h: a table beside a plain model of it, driven by the same random operations.
 *
 * A value in the model is 64 bits: for integers the value itself, for everything else the seed
 * that its bytes are made from. Sealed epochs are kept as whole copies, so that every roll back and
 * recovery has something exact to be compared with.
 */
#ifndef PST_TABLE_MODEL_H
#define PST_TABLE_MODEL_H

#include <string.h>

#include "check.h"
#include "key/hash.h"
#include "memory/handle.h"
#include "ownership.h"
#include "table/epoch.h"

enum { MODEL_KEYS = 640, MODEL_COLUMNS = 9, MODEL_EPOCHS = 4, MODEL_FIXED = 24 };

/* What schemas are made of: a key, and the first few of these. */
static const pst_column MODEL_LONG_KEY[] = {{.name = "k", .type = PST_INT64}};
static const pst_column MODEL_TEXT_KEY[] = {{.name = "k", .type = PST_STRING}};
static const pst_column MODEL_STATES[] = {{.name = "n", .type = PST_INT64, .has_default = 1},
                                          {.name = "s", .type = PST_STRING},
                                          {.name = "i", .type = PST_INT32},
                                          {.name = "d", .type = PST_FLOAT64},
                                          {.name = "x", .type = PST_DECIMAL, .precision = 38},
                                          {.name = "o", .type = PST_OBJECT},
                                          {.name = "b", .type = PST_INT8},
                                          {.name = "f", .type = PST_BOOL},
                                          {.name = "t", .type = PST_TIMESTAMP}};

typedef struct model_state {
    uint64_t value[MODEL_KEYS][MODEL_COLUMNS];
    uint8_t present[MODEL_KEYS][MODEL_COLUMNS];
} model_state;

typedef struct model {
    const pst_schema *schema;
    int32_t keys;
    uint64_t seals; /* the number of the last sealed epoch */
    model_state now;
    model_state sealed[MODEL_EPOCHS]; /* of seal n: at n % MODEL_EPOCHS */
} model;

typedef struct model_bytes {
    uint8_t data[400];
} model_bytes;

/* Key k as a cell. Every third byte key is long enough for a block of its own. Where the key has a
 * namespace, some keys share what is hashed. */
static inline void model_key(const pst_schema *s, int32_t k, pst_cell *cell, model_bytes *room) {
    memset(cell, 0, sizeof *cell * (size_t)s->n_keys);
    for (int32_t i = 0; i < s->n_keys; i++) {
        if (s->keys[i].type != PST_STRING) {
            int64_t n = s->n_hashed ? k % 11 : k;
            cell[i].word[0] = (uint64_t)(n * 7919 - 1000);
            continue;
        }
        int n =
            snprintf((char *)room->data, sizeof room->data, "key-%d-%.*s", k, k % 3 ? 0 : k % 90,
                     "a tail that makes the key longer than what fits into the row itself, "
                     "and then some more of it");
        cell[i].bytes = (pst_bytes){room->data, (uint32_t)n};
    }
}

static inline void model_cell(pst_type type, uint64_t seed, pst_cell *cell, model_bytes *room) {
    uint64_t x = seed;
    cell->word[0] = cell->word[1] = 0;
    switch (type) {
    case PST_BOOL:
        cell->word[0] = seed & 1;
        return;
    case PST_INT8:
        cell->word[0] = (uint64_t)(int64_t)(int8_t)seed;
        return;
    case PST_INT16:
        cell->word[0] = (uint64_t)(int64_t)(int16_t)seed;
        return;
    case PST_INT32:
    case PST_DATE32:
        cell->word[0] = (uint64_t)(int64_t)(int32_t)seed;
        return;
    case PST_FLOAT32:
        cell->word[0] = (uint32_t)seed;
        return;
    case PST_DECIMAL:
        cell->word[1] = check_random(&x); /* fall through */
    case PST_INT64:
    case PST_FLOAT64:
    case PST_TIMESTAMP:
        cell->word[0] = seed;
        return;
    case PST_STRING:
    case PST_BINARY:
    case PST_OBJECT:
    case PST_NESTED:
    case PST_FIXED:
        break;
    }
    uint32_t size = (uint32_t)(seed % 5 == 0 ? seed / 5 % 390 : seed / 5 % 30);
    if (type == PST_FIXED)
        size = MODEL_FIXED;
    for (uint32_t i = 0; i < size; i++)
        room->data[i] = (uint8_t)check_random(&x);
    cell->bytes = (pst_bytes){room->data, size};
}

static inline int model_same(pst_type type, uint64_t seed, const pst_cell *cell) {
    model_bytes room;
    pst_cell want = {{0, 0}, {NULL, 0}};
    model_cell(type, seed, &want, &room);
    if ((type >= PST_STRING))
        return cell->bytes.size == want.bytes.size &&
               !memcmp(cell->bytes.data, want.bytes.data, want.bytes.size);
    return cell->word[0] == want.word[0] && cell->word[1] == want.word[1];
}

static inline int model_alive(const model_state *m, const pst_schema *s, int32_t k) {
    for (int32_t c = 0; c < s->n_states; c++)
        if (m->present[k][c])
            return 1;
    return 0;
}

/* Every key of the model and nothing else, by iteration and by look-up. */
static inline int model_compare(pst_table *t, const model_state *m, const pst_schema *s,
                                int32_t keys) {
    static pst_record r; /* large */
    uint64_t cursor = 0, rows = 0, alive = 0;
    pst_status st;
    while ((st = pst_table_next(t, &cursor, &r)) == PST_OK) {
        CHECK_EQ(r.hash, pst_hash_key(s->keys, pst_schema_hashed(s), r.key, r.key_nulls));
        rows++;
    }
    if (!CHECK_EQ(st, PST_NOT_FOUND))
        return 0;
    for (int32_t k = 0; k < keys; k++) {
        pst_cell key[2], cell;
        model_bytes room;
        model_key(s, k, key, &room);
        if (!CHECK_EQ(pst_key_set(t, key, 0), PST_OK))
            return 0;
        alive += (uint64_t)model_alive(m, s, k);
        for (int32_t c = 0; c < s->n_states; c++) {
            st = pst_value_get(t, c, &cell);
            if (!CHECK_EQ(st, m->present[k][c] ? PST_OK : PST_NOT_FOUND))
                return 0;
            if (!st && !CHECK(model_same(s->states[c].type, m->value[k][c], &cell)))
                return 0;
        }
    }
    pst_table_stats stats;
    pst_table_get_stats(t, &stats);
    return CHECK_EQ(rows, alive) && CHECK_EQ(stats.keys, alive);
}

static inline pst_lineage model_lineage(uint64_t seal) {
    pst_lineage l = {.epoch = seal, .query = 77};
    uint64_t parent = seal - 1;
    memcpy(l.id, &seal, sizeof seal);
    memcpy(l.parent, &parent, sizeof parent);
    return l;
}

/* The table stands at a sealed epoch with nothing open; the model goes there. */
static inline int model_follow(pst_table *t, model *m) {
    pst_lineage l;
    if (!CHECK_EQ(pst_table_lineage(t, 0, &l), PST_OK))
        return 0;
    m->seals = l.epoch;
    m->now = m->sealed[l.epoch % MODEL_EPOCHS];
    check_ownership(t);
    return model_compare(t, &m->now, m->schema, m->keys);
}

/* ---- one random operation on both --------------------------------------------------------- */

static inline void model_one_key(pst_table *t, model *m, uint64_t *random) {
    int32_t k = (int32_t)(check_random(random) % (uint64_t)m->keys);
    int32_t c = (int32_t)(check_random(random) % (uint64_t)m->schema->n_states);
    uint64_t seed = check_random(random), what = check_random(random) % 8;
    pst_cell key[2], cell;
    model_bytes room, value;
    model_key(m->schema, k, key, &room);
    CHECK_EQ(pst_key_set(t, key, 0), PST_OK);
    if (what == 0) {
        CHECK_EQ(pst_value_clear(t, -1), PST_OK);
        memset(m->now.present[k], 0, sizeof m->now.present[k]);
    } else if (what == 1) {
        CHECK_EQ(pst_value_clear(t, c), PST_OK);
        m->now.present[k][c] = 0;
    } else {
        pst_type type = m->schema->states[c].type;
        model_cell(type, seed, &cell, &value);
        CHECK_EQ(pst_value_put(t, c, &cell), PST_OK);
        m->now.present[k][c] = 1;
        m->now.value[k][c] = type == PST_INT64 ? cell.word[0] : seed;
    }
}

/* A batch over column 0 (INT64) of keys that may repeat; `what`: 0 add, 1 min, 2 put, 3 delete. */
static inline void model_many(pst_table *t, model *m, uint64_t *random, int n, int what) {
    enum { MOST = 400 };
    int64_t words[MOST], values[MOST];
    int32_t offsets[MOST + 1], which[MOST];
    uint8_t text[MOST * 120];
    uint8_t validity[(MOST + 7) / 8];
    offsets[0] = 0;
    for (int i = 0; i < n; i++) {
        pst_cell key[2];
        model_bytes room;
        which[i] = (int32_t)(check_random(random) % (uint64_t)m->keys);
        model_key(m->schema, which[i], key, &room);
        for (int32_t x = 0; x < m->schema->n_keys; x++)
            if (m->schema->keys[x].type == PST_STRING) {
                memcpy(text + offsets[i], key[x].bytes.data, key[x].bytes.size);
                offsets[i + 1] = offsets[i] + (int32_t)key[x].bytes.size;
            } else {
                words[i] = (int64_t)key[x].word[0];
            }
        values[i] = (int64_t)(check_random(random) % 2001) - 1000;
        if (check_random(random) % 8)
            validity[i / 8] |= (uint8_t)(1 << i % 8);
        else
            validity[i / 8] &= (uint8_t)~(1 << i % 8);
    }
    pst_array keys[2], operand = {PST_INT64, n, 0, validity, values, NULL};
    for (int32_t x = 0; x < m->schema->n_keys; x++)
        if (m->schema->keys[x].type == PST_STRING)
            keys[x] =
                (pst_array){PST_STRING, n, 0, NULL, text, offsets, .values_bytes = offsets[n]};
        else
            keys[x] = (pst_array){PST_INT64, n, 0, NULL, words, NULL};
    pst_batch *b = NULL;
    REQUIRE(pst_batch_create(t, keys, &b) == PST_OK);
    if (what == 3)
        CHECK_EQ(pst_batch_clear(b, -1), PST_OK);
    else if (what == 2)
        CHECK_EQ(pst_batch_put(b, 0, &operand), PST_OK);
    else
        CHECK_EQ(pst_batch_apply(b, 0, what ? PST_MIN : PST_ADD, &operand), PST_OK);
    pst_batch_destroy(b);
    for (int i = 0; i < n; i++) {
        uint64_t *value = &m->now.value[which[i]][0];
        uint8_t *present = &m->now.present[which[i]][0];
        int valid = validity[i / 8] >> i % 8 & 1;
        if (what == 3) {
            memset(present, 0, MODEL_COLUMNS);
        } else if (what == 2) {
            *present = (uint8_t)valid;
            *value = (uint64_t)values[i];
        } else if (valid) {
            int64_t old = *present ? (int64_t)*value : 0;
            if (what == 0)
                *value = (uint64_t)(old + values[i]);
            else if (!*present || values[i] < old)
                *value = (uint64_t)values[i];
            *present = 1;
        }
    }
}

static inline void model_seal(pst_table *t, model *m, pst_sealed **sealed) {
    pst_lineage l = model_lineage(m->seals + 1);
    m->sealed[(m->seals + 1) % MODEL_EPOCHS] = m->now; /* first: a kill may come after the store */
    REQUIRE(pst_table_seal(t, &l, sealed) == PST_OK);
    m->seals++;
    check_ownership(t);
}

static inline void model_step(pst_table *t, model *m, uint64_t *random) {
    uint64_t what = check_random(random) % 100;
    if (what < 50) {
        model_one_key(t, m, random);
    } else if (what < 80) {
        model_many(t, m, random, 1 + (int)(check_random(random) % 60),
                   (int)(check_random(random) % 4));
    } else if (what < 93) {
        pst_sealed *sealed = NULL;
        model_seal(t, m, what & 1 ? &sealed : NULL);
        pst_sealed_destroy(sealed);
    } else {
        int32_t back = (int32_t)(check_random(random) % 3);
        pst_lineage l;
        if (pst_table_lineage(t, back, &l))
            back = 0;
        CHECK_EQ(pst_table_rollback(t, back), PST_OK);
        CHECK(model_follow(t, m));
    }
}

#endif
