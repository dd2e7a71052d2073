#include "fetch/wants.h"

#include "base/mem.h"
#include "key/schema.h"
#include "key/xxh64.h"
#include "table/row.h"

/* Fewer are sorted by comparison; a pass over the bits takes two digits. */
enum { FEW = 256, DIGIT_BITS = 12, DIGITS = 1 << DIGIT_BITS };

static int by_place(const void *x, const void *y) {
    const pst_want *a = x, *b = y;
    if (a->key_group != b->key_group)
        return a->key_group < b->key_group ? -1 : 1;
    if (a->hash != b->hash)
        return a->hash < b->hash ? -1 : 1;
    if (a->own != b->own)
        return a->own < b->own ? -1 : 1;
    return (a->at > b->at) - (a->at < b->at);
}

/* The first bits of a place: never less than those of a place before it. */
static uint32_t place_bits(const pst_table *t, const pst_want *w) {
    uint64_t group = w->key_group - (uint32_t)t->first_key_group;
    return (uint32_t)((group << 32 | w->hash >> 32) /
                      ((uint64_t)pst_group_count(t) << (32 - 2 * DIGIT_BITS)));
}

static uint32_t digit_of(uint32_t bits, int digit) {
    return bits >> digit * DIGIT_BITS & (DIGITS - 1);
}

/* Sorts by the first bits, from `a` over `b` back to `a`. */
static void sort_bits(const pst_table *t, pst_want *a, pst_want *b, uint32_t n,
                      uint32_t counts[2][DIGITS]) {
    memset(counts, 0, 2 * DIGITS * sizeof counts[0][0]);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = place_bits(t, &a[i]);
        counts[0][digit_of(bits, 0)]++;
        counts[1][digit_of(bits, 1)]++;
    }
    for (int d = 0; d < 2; d++) {
        pst_want *from = d ? b : a, *to = d ? a : b;
        uint32_t at = 0;
        for (int k = 0; k < DIGITS; k++) {
            uint32_t count = counts[d][k];
            counts[d][k] = at;
            at += count;
        }
        for (uint32_t i = 0; i < n; i++)
            to[counts[d][digit_of(place_bits(t, &from[i]), d)]++] = from[i];
    }
}

/* Sorts runs of equal first bits, most of which are one want. */
static void sort_rest(const pst_table *t, pst_want *w, uint32_t n) {
    for (uint32_t i = 0; i < n;) {
        uint32_t bits = place_bits(t, &w[i]), end = i + 1;
        while (end < n && place_bits(t, &w[end]) == bits)
            end++;
        if (end - i > 1)
            qsort(w + i, end - i, sizeof *w, by_place);
        i = end;
    }
}

static pst_status sort_wants(const pst_table *t, pst_wants *w) {
    if (w->n < FEW) {
        qsort(w->wants, w->n, sizeof *w->wants, by_place);
        return PST_OK;
    }
    pst_want *other = pst_malloc(w->n * sizeof *other);
    uint32_t (*counts)[DIGITS] = pst_malloc(2 * sizeof *counts);
    if (other && counts) {
        sort_bits(t, w->wants, other, w->n, counts);
        sort_rest(t, w->wants, w->n);
    }
    pst_status s = other && counts ? PST_OK : PST_NO_MEMORY;
    pst_free(other);
    pst_free(counts);
    return s;
}

static int are_equal(const pst_table *t, const pst_keys *keys, const pst_want *a,
                     const pst_want *b) {
    pst_key x, y;
    pst_want_key(t, keys, a, &x);
    pst_want_key(t, keys, b, &y);
    return x.null == y.null && x.word == y.word && x.bytes.size == y.bytes.size &&
           (!x.bytes.size || !memcmp(x.bytes.data, y.bytes.data, x.bytes.size));
}

/* Anybody can make keys of one hash, and keys with a namespace have it anyway. Under a secret those
 * that are equal come together, and hardly any others. */
static void sort_tied(const pst_table *t, const pst_keys *keys, pst_want *run, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        pst_key key;
        keys->get(keys->ctx, run[i].at, &key);
        run[i].own = pst_key_untied(t->h->salt + 3, run[i].hash, key.bytes, t->max_parallelism);
    }
    qsort(run, n, sizeof *run, by_place);
}

static void mark_equal(const pst_table *t, const pst_keys *keys, pst_wants *w) {
    pst_want *wants = w->wants;
    for (uint32_t i = 0; i < w->n;) {
        uint32_t end = i + 1;
        while (end < w->n && wants[end].hash == wants[i].hash &&
               wants[end].key_group == wants[i].key_group)
            end++;
        if (end - i > 2 && t->lay.key_kind == PST_KEY_BYTES)
            sort_tied(t, keys, wants + i, end - i);
        for (uint32_t k = end - 1; k > i; k--)
            wants[k].own =
                wants[k].own == wants[k - 1].own && are_equal(t, keys, &wants[k], &wants[k - 1]);
        wants[i].own = 0;
        i = end;
    }
    w->unique = 0;
    for (uint32_t i = 0; i < w->n; i++)
        w->unique += !wants[i].own;
}

/* Of a key as the table keeps it. Those of callers lie under no hash of their own (I7). */
static uint64_t file_hash(const pst_table *t, const pst_key *key) {
    if (!pst_key_has_namespace(&t->schema))
        return key->hash;
    return pst_key_row_hash(&t->schema, key->hash, key->bytes, key->null, 0);
}

pst_status pst_wants_make(const pst_table *t, const pst_keys *keys, pst_wants *w) {
    uint64_t n = 0;
    *w = (pst_wants){.charge = {t->budget, 0, PST_SMALL_BUFFER}};
    for (int64_t i = 0; i < keys->n; i++)
        n += keys->slots[i] == PST_NONE;
    if (n >= UINT32_MAX || keys->n >= UINT32_MAX)
        return PST_TOO_LARGE;
    if (!n)
        return PST_OK;
    pst_status s = pst_charge_raise(&w->charge, 2 * n * sizeof *w->wants);
    if (s)
        return s;
    w->wants = pst_malloc(n * sizeof *w->wants);
    if (!w->wants) {
        pst_wants_free(w);
        return PST_NO_MEMORY;
    }
    for (int64_t i = 0; i < keys->n; i++) {
        pst_key key;
        if (keys->slots[i] != PST_NONE)
            continue;
        keys->get(keys->ctx, i, &key);
        uint64_t hash = file_hash(t, &key);
        w->wants[w->n++] = (pst_want){.hash = hash,
                                      .own = key.null,
                                      .word = key.word,
                                      .at = (uint32_t)i,
                                      .null = key.null & 1u,
                                      .key_group = (uint32_t)pst_group_of(t, hash) & 0x3FFFFFFFu};
    }
    s = sort_wants(t, w);
    if (s)
        pst_wants_free(w);
    else
        mark_equal(t, keys, w);
    return s;
}

/* ---- how many -------------------------------------------------------------------------------- */

/* Minus the logarithm of 1 - x, for x up to 0.6, within a hundredth. */
static double log_of_rest(double x) {
    double sum = 0, power = x;
    for (int i = 1; i <= 12; i++, power *= x)
        sum += power / i;
    return sum;
}

pst_status pst_wants_estimate(const pst_keys *keys, uint64_t *missing, uint64_t *different) {
    uint64_t n = 0, bits = 1024, set = 0;
    for (int64_t i = 0; i < keys->n; i++)
        n += keys->slots[i] == PST_NONE;
    *missing = *different = n;
    if (n < bits)
        return PST_OK;
    while (bits < 2 * n)
        bits *= 2;
    uint64_t *seen = pst_calloc(bits / 64, sizeof *seen);
    if (!seen)
        return PST_NO_MEMORY;
    for (int64_t i = 0; i < keys->n; i++) {
        pst_key key;
        if (keys->slots[i] != PST_NONE)
            continue;
        keys->get(keys->ctx, i, &key);
        uint64_t at = pst_xxh64_avalanche(key.hash) & (bits - 1), bit = UINT64_C(1) << at % 64;
        set += !(seen[at / 64] & bit);
        seen[at / 64] |= bit;
    }
    pst_free(seen);
    *different = (uint64_t)(0.93 * (double)bits * log_of_rest((double)set / (double)bits));
    return PST_OK;
}

void pst_wants_free(pst_wants *w) {
    pst_free(w->wants);
    w->wants = NULL;
    pst_charge_drop(&w->charge);
}
