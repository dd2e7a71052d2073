#include "aggregate/aggregate.h"

#include <string.h>

#include "aggregate/sketch.h"
#include "key/hash.h"

__extension__ typedef __int128 int128;
__extension__ typedef unsigned __int128 uint128;

static int is_float(uint8_t type) {
    return type == PST_FLOAT32 || type == PST_FLOAT64;
}

static int is_number(uint8_t type) {
    return (type >= PST_INT8 && type <= PST_FLOAT64) || type == PST_DECIMAL;
}

static int is_bytes(uint8_t type) {
    return type > PST_DECIMAL;
}

/* Words of one value of a fixed-width type. */
static uint32_t value_words(uint8_t type) {
    return type == PST_DECIMAL ? 2 : 1;
}

pst_status pst_agg_check(const pst_agg_shape *s) {
    int number = is_number(s->type), in_time = s->type == PST_DATE32 || s->type == PST_TIMESTAMP;
    if (!s->type)
        return PST_WRONG_TYPE;
    switch (s->kind) {
    case PST_AGG_MEAN:
    case PST_AGG_VARIANCE:
        return !number ? PST_WRONG_TYPE : s->parameter ? PST_INVALID : PST_OK;
    case PST_AGG_FIRST:
    case PST_AGG_LAST:
        return s->parameter ? PST_INVALID : PST_OK;
    case PST_AGG_TOP_K:
        if (!number && !in_time)
            return PST_WRONG_TYPE;
        return s->parameter && s->parameter <= PST_AGG_MAX_K ? PST_OK : PST_INVALID;
    case PST_AGG_DISTINCT:
        if (s->type == PST_OBJECT)
            return PST_WRONG_TYPE;
        return s->parameter >= PST_AGG_LEAST_PRECISION && s->parameter <= PST_AGG_MOST_PRECISION
                   ? PST_OK
                   : PST_INVALID;
    default:
        return PST_INVALID;
    }
}

uint32_t pst_agg_width(const pst_agg_shape *s) {
    uint32_t width = 0;
    switch (s->kind) {
    case PST_AGG_MEAN:
        return is_float(s->type) ? 16 : 24;
    case PST_AGG_VARIANCE:
        return 24;
    case PST_AGG_FIRST:
    case PST_AGG_LAST:
        return is_bytes(s->type) ? 0 : 8 + 8 * value_words(s->type);
    case PST_AGG_TOP_K:
        width = 8 + 8 * value_words(s->type) * s->parameter;
        break;
    default:
        break;
    }
    return width <= PST_AGG_MAX_WIDTH ? width : 0;
}

void pst_agg_init(const pst_agg_shape *s, uint64_t *state) {
    memset(state, 0, pst_agg_width(s));
}

/* ---- numbers --------------------------------------------------------------------------------- */

static double as_double(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint64_t as_bits(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static int128 as_wide(const uint64_t word[2]) {
    return (int128)((uint128)word[1] << 64 | word[0]);
}

static double number(uint8_t type, const uint64_t word[2]) {
    if (type == PST_FLOAT64)
        return as_double(word[0]);
    if (type == PST_FLOAT32) {
        uint32_t bits = (uint32_t)word[0];
        float x;
        memcpy(&x, &bits, sizeof x);
        return (double)x;
    }
    return type == PST_DECIMAL ? (double)as_wide(word) : (double)(int64_t)word[0];
}

static pst_status add_wide(uint64_t *state, int128 value, uint64_t count) {
    int128 sum;
    if (__builtin_add_overflow(as_wide(state + 1), value, &sum))
        return PST_OVERFLOW;
    state[0] += count;
    state[1] = (uint64_t)sum;
    state[2] = (uint64_t)((uint128)sum >> 64);
    return PST_OK;
}

static void add_double(uint64_t *state, double value, uint64_t count) {
    state[0] += count;
    state[1] = as_bits(as_double(state[1]) + value);
}

/* Welford 1962. */
static void add_variance(uint64_t *state, double x) {
    double mean = as_double(state[1]), away = x - mean;
    state[0]++;
    mean += away / (double)state[0];
    state[1] = as_bits(mean);
    state[2] = as_bits(as_double(state[2]) + away * (x - mean));
}

/* Chan, Golub, LeVeque 1979. */
static void merge_variance(uint64_t *into, const uint64_t *from) {
    if (!from[0])
        return;
    if (!into[0]) {
        memcpy(into, from, 24);
        return;
    }
    double a = (double)into[0], b = (double)from[0], n = a + b;
    double away = as_double(from[1]) - as_double(into[1]);
    into[0] += from[0];
    into[1] = as_bits(as_double(into[1]) + away * (b / n));
    into[2] = as_bits(as_double(into[2]) + as_double(from[2]) + away * away * (a * (b / n)));
}

/* ---- the largest k --------------------------------------------------------------------------- */

/* Ascending as the values are; every NaN the same, above all numbers. Words are canonical. */
static uint64_t rank_of(uint8_t type, uint64_t word) {
    if (type == PST_FLOAT64)
        return word >> 63 ? ~word : word | UINT64_C(1) << 63;
    if (type == PST_FLOAT32)
        return word >> 31 & 1 ? ~word & UINT32_MAX : (word & UINT32_MAX) | UINT64_C(1) << 31;
    return word ^ UINT64_C(1) << 63;
}

static int is_larger(uint8_t type, const uint64_t *a, const uint64_t *b) {
    if (type == PST_DECIMAL)
        return as_wide(a) > as_wide(b);
    return rank_of(type, a[0]) > rank_of(type, b[0]);
}

static void canonical(uint8_t type, const uint64_t word[2], uint64_t out[2]) {
    out[0] = pst_canonical_word((pst_type)type, word[0]);
    out[1] = word[1];
}

/* Puts the value among the n largest, kept descending; returns how many there are now. */
static uint64_t add_largest(const pst_agg_shape *s, uint64_t *values, uint64_t n,
                            const uint64_t word[2]) {
    uint64_t words = value_words(s->type), at = n, kept;
    if (n == s->parameter && !is_larger(s->type, word, values + (n - 1) * words))
        return n;
    while (at && is_larger(s->type, word, values + (at - 1) * words))
        at--;
    kept = n < s->parameter ? n + 1 : n;
    memmove(values + (at + 1) * words, values + at * words, (kept - 1 - at) * words * 8);
    memcpy(values + at * words, word, words * 8);
    return kept;
}

/* ---- fixed accumulators ---------------------------------------------------------------------- */

pst_status pst_agg_add(const pst_agg_shape *s, uint64_t *state, const pst_cell *cell) {
    uint64_t word[2];
    switch (s->kind) {
    case PST_AGG_MEAN:
        if (is_float(s->type))
            add_double(state, number(s->type, cell->word), 1);
        else if (s->type == PST_DECIMAL)
            return add_wide(state, as_wide(cell->word), 1);
        else
            return add_wide(state, (int64_t)cell->word[0], 1);
        return PST_OK;
    case PST_AGG_VARIANCE:
        add_variance(state, number(s->type, cell->word));
        return PST_OK;
    case PST_AGG_FIRST:
        if (state[0])
            return PST_OK; /* fall through */
    case PST_AGG_LAST:
        state[0] = 1;
        memcpy(state + 1, cell->word, 8 * value_words(s->type));
        return PST_OK;
    case PST_AGG_TOP_K:
        if (state[0] > s->parameter)
            return PST_CORRUPT;
        canonical(s->type, cell->word, word);
        state[0] = add_largest(s, state + 1, state[0], word);
        return PST_OK;
    default:
        return PST_INVALID;
    }
}

pst_status pst_agg_merge(const pst_agg_shape *s, uint64_t *into, const uint64_t *from) {
    switch (s->kind) {
    case PST_AGG_MEAN:
        if (!is_float(s->type))
            return add_wide(into, as_wide(from + 1), from[0]);
        if (from[0])
            add_double(into, as_double(from[1]), from[0]);
        return PST_OK;
    case PST_AGG_VARIANCE:
        merge_variance(into, from);
        return PST_OK;
    case PST_AGG_FIRST:
    case PST_AGG_LAST:
        if (from[0] && !(into[0] && s->kind == PST_AGG_FIRST))
            memcpy(into, from, pst_agg_width(s));
        return PST_OK;
    case PST_AGG_TOP_K:
        if (from[0] > s->parameter || into[0] > s->parameter)
            return PST_CORRUPT;
        for (uint64_t i = 0; i < from[0]; i++)
            into[0] = add_largest(s, into + 1, into[0], from + 1 + i * value_words(s->type));
        return PST_OK;
    default:
        return PST_INVALID;
    }
}

/* ---- variable accumulators ------------------------------------------------------------------- */

/* Equal values have equal hashes: strings and binary by their bytes, decimals by both words. */
static uint64_t hash_of(uint8_t type, const pst_cell *cell) {
    if (is_bytes(type))
        return pst_xxh64(cell->bytes.data, cell->bytes.size, PST_HASH_SEED);
    if (type == PST_DECIMAL)
        return pst_xxh64(cell->word, 16, PST_HASH_SEED);
    uint64_t word = pst_canonical_word((pst_type)type, cell->word[0]);
    return pst_hash_word((pst_type)type, word, PST_HASH_SEED);
}

size_t pst_agg_room(const pst_agg_shape *s, size_t size, size_t input) {
    if (s->kind == PST_AGG_DISTINCT)
        return pst_sketch_most(s->parameter);
    if (s->kind == PST_AGG_TOP_K)
        return (size_t)8 * value_words(s->type) * s->parameter;
    return size > input + 1 ? size : input + 1;
}

static pst_status check_bytes(const pst_agg_shape *s, const uint8_t *data, size_t size) {
    size_t value = (size_t)8 * value_words(s->type);
    if (s->kind == PST_AGG_DISTINCT)
        return pst_sketch_check(s->parameter, data, size);
    if (s->kind == PST_AGG_TOP_K)
        return size % value == 0 && size / value <= s->parameter ? PST_OK : PST_CORRUPT;
    return !size || data[0] == 1 ? PST_OK : PST_CORRUPT;
}

int pst_agg_absorbs(const pst_agg_shape *s, pst_bytes state, const pst_cell *cell) {
    size_t value = (size_t)8 * value_words(s->type);
    uint64_t word[2], least[2];
    if (!state.size || check_bytes(s, state.data, state.size))
        return 0;
    switch (s->kind) {
    case PST_AGG_FIRST:
        return 1;
    case PST_AGG_LAST:
        return state.size - 1 == cell->bytes.size &&
               (!cell->bytes.size || !memcmp(state.data + 1, cell->bytes.data, cell->bytes.size));
    case PST_AGG_TOP_K:
        if (state.size < value * s->parameter)
            return 0;
        canonical(s->type, cell->word, word);
        memcpy(least, state.data + state.size - value, value);
        return !is_larger(s->type, word, least);
    default:
        return pst_sketch_has(state.data, state.size, hash_of(s->type, cell));
    }
}

/* The values lie in bytes without alignment, so they are placed by memcpy alone. */
static void add_largest_bytes(const pst_agg_shape *s, pst_agg_buffer *state,
                              const uint64_t word[2]) {
    size_t value = (size_t)8 * value_words(s->type), most = value * s->parameter;
    size_t at = state->size;
    for (; at; at -= value) {
        uint64_t other[2];
        memcpy(other, state->data + at - value, value);
        if (!is_larger(s->type, word, other))
            break;
    }
    if (at == most)
        return;
    if (state->size < most)
        state->size += value;
    memmove(state->data + at + value, state->data + at, state->size - value - at);
    memcpy(state->data + at, word, value);
}

static void set_bytes(pst_agg_buffer *state, const uint8_t *data, size_t size) {
    state->data[0] = 1;
    if (size)
        memcpy(state->data + 1, data, size);
    state->size = size + 1;
}

pst_status pst_agg_add_bytes(const pst_agg_shape *s, pst_agg_buffer *state, const pst_cell *cell) {
    uint64_t word[2];
    if (s->kind < PST_AGG_FIRST || pst_agg_width(s))
        return PST_INVALID;
    size_t input = is_bytes(s->type) ? cell->bytes.size : 0;
    if (state->capacity < pst_agg_room(s, state->size, input))
        return PST_TOO_LARGE;
    pst_status st = check_bytes(s, state->data, state->size);
    if (st)
        return st;
    if (s->kind == PST_AGG_DISTINCT) {
        pst_sketch_add(s->parameter, state->data, &state->size, hash_of(s->type, cell));
    } else if (s->kind == PST_AGG_TOP_K) {
        canonical(s->type, cell->word, word);
        add_largest_bytes(s, state, word);
    } else if (s->kind == PST_AGG_LAST || !state->size) {
        set_bytes(state, cell->bytes.data, cell->bytes.size);
    }
    return PST_OK;
}

pst_status pst_agg_merge_bytes(const pst_agg_shape *s, pst_agg_buffer *into, pst_bytes from) {
    size_t value = (size_t)8 * value_words(s->type);
    uint64_t word[2];
    if (s->kind < PST_AGG_FIRST || pst_agg_width(s))
        return PST_INVALID;
    if (into->capacity < pst_agg_room(s, into->size, from.size))
        return PST_TOO_LARGE;
    pst_status st = check_bytes(s, into->data, into->size);
    if (!st)
        st = check_bytes(s, from.data, from.size);
    if (st || !from.size)
        return st;
    if (s->kind == PST_AGG_DISTINCT) {
        pst_sketch_merge(s->parameter, into->data, &into->size, from.data, from.size);
    } else if (s->kind == PST_AGG_TOP_K) {
        for (size_t at = 0; at < from.size; at += value) {
            memcpy(word, from.data + at, value);
            add_largest_bytes(s, into, word);
        }
    } else if (s->kind == PST_AGG_LAST || !into->size) {
        set_bytes(into, from.data + 1, from.size - 1);
    }
    return PST_OK;
}
