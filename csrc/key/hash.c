#include "key/hash.h"

#include <string.h>

#include "base/coding.h"
#include "key/simd.h"

/* One column over one chunk: h[i] becomes the hash of v[i] seeded with h[i]. `values` begins at
 * the chunk's first value; all loops are free of branches. */
#define DEFINE_KERNEL(name, width, expression)                                                     \
    static void name(const uint8_t *values, int64_t n, uint64_t *restrict h) {                     \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const uint8_t *p = values + i * (width);                                               \
            h[i] = (expression);                                                                   \
        }                                                                                          \
    }

enum { CHUNK = 1024 };

/* Below AVX-512 a vector unit has no 64-bit multiplication, and a loop that the compiler builds
 * from 32-bit ones is slower than the scalar multiplier. */
static inline uint64_t unvectorised(uint64_t x) {
#ifdef __GNUC__
    __asm__("" : "+r"(x));
#endif
    return x;
}

DEFINE_KERNEL(hash_8, 1, pst_xxh64_int((int8_t)*p, h[i]))
DEFINE_KERNEL(hash_16, 2, pst_xxh64_int((int16_t)pst_get_u16(p), h[i]))
DEFINE_KERNEL(hash_32, 4, pst_xxh64_int((int32_t)pst_get_u32(p), h[i]))
DEFINE_KERNEL(hash_64_scalar, 8, pst_xxh64_long((int64_t)unvectorised(pst_get_u64(p)), h[i]))
DEFINE_KERNEL(hash_f32, 4,
              pst_hash_word(PST_FLOAT32, pst_canonical_word(PST_FLOAT32, pst_get_u32(p)), h[i]))
DEFINE_KERNEL(hash_f64, 8,
              pst_hash_word(PST_FLOAT64, pst_canonical_word(PST_FLOAT64, pst_get_u64(p)), h[i]))

#ifdef PST_AVX512
/* pst_xxh64_long, eight lanes at a time. */
PST_WITH_AVX512 static void hash_64_avx512(const uint8_t *values, int64_t n, uint64_t *restrict h) {
    const __m512i p1 = _mm512_set1_epi64((int64_t)PST_XXH_P1);
    const __m512i p2 = _mm512_set1_epi64((int64_t)PST_XXH_P2);
    const __m512i p3 = _mm512_set1_epi64((int64_t)PST_XXH_P3);
    const __m512i p4 = _mm512_set1_epi64((int64_t)PST_XXH_P4);
    const __m512i start = _mm512_set1_epi64((int64_t)(PST_XXH_P5 + 8));
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m512i v = _mm512_loadu_si512(values + i * 8);
        v = _mm512_rol_epi64(_mm512_mullo_epi64(v, p2), 31);
        __m512i x = _mm512_add_epi64(_mm512_loadu_si512(h + i), start);
        x = _mm512_xor_si512(x, _mm512_mullo_epi64(v, p1));
        x = _mm512_add_epi64(_mm512_mullo_epi64(_mm512_rol_epi64(x, 27), p1), p4);
        x = _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 33)), p2);
        x = _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 29)), p3);
        _mm512_storeu_si512(h + i, _mm512_xor_si512(x, _mm512_srli_epi64(x, 32)));
    }
    /* The tail call below keeps the compiler from emitting this, and any SSE code in the process
     * would be slow from here on. */
    _mm256_zeroupper();
    hash_64_scalar(values + i * 8, n - i, h + i);
}
#endif

static void hash_64(const uint8_t *values, int64_t n, uint64_t *h) {
#ifdef PST_AVX512
    if (pst_has_avx512()) {
        hash_64_avx512(values, n, h);
        return;
    }
#endif
    hash_64_scalar(values, n, h);
}

static int bit_at(const uint8_t *bitmap, int64_t i) {
    return (bitmap[i >> 3] >> (i & 7)) & 1;
}

/* Spark hashes decimals by precision, not by value. */
static uint64_t hash_decimal(uint64_t low, uint64_t high, uint8_t precision, uint64_t seed) {
    if (precision <= 18)
        return pst_xxh64_long((int64_t)low, seed);
    uint8_t bytes[16];
    for (int i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(high >> (56 - 8 * i));
        bytes[8 + i] = (uint8_t)(low >> (56 - 8 * i));
    }
    /* A leading byte is needless while the sign bit after it says the same. */
    uint8_t fill = high >> 63 ? 0xff : 0;
    int skip = 0;
    while (skip < 15 && bytes[skip] == fill && ((bytes[skip + 1] ^ fill) & 0x80) == 0)
        skip++;
    return pst_xxh64(bytes + skip, (size_t)(16 - skip), seed);
}

static void hash_decimals(const pst_array *a, int64_t begin, int64_t n, uint8_t precision,
                          uint64_t *h) {
    const uint8_t *p = (const uint8_t *)a->values + (a->offset + begin) * 16;
    for (int64_t i = 0; i < n; i++, p += 16)
        h[i] = hash_decimal(pst_get_u64(p), pst_get_u64(p + 8), precision, h[i]);
}

static void hash_bools(const pst_array *a, int64_t begin, int64_t n, uint64_t *h) {
    for (int64_t i = 0; i < n; i++)
        h[i] = pst_xxh64_int(bit_at(a->values, a->offset + begin + i), h[i]);
}

static void hash_bytes(const pst_array *a, int64_t begin, int64_t n, uint64_t *h) {
    for (int64_t i = 0; i < n; i++) {
        pst_bytes v = pst_array_bytes(a, a->offset + begin + i);
        h[i] = pst_xxh64(v.data, v.size, h[i]);
    }
}

static pst_status hash_chunk(const pst_array *a, int64_t begin, int64_t n, uint8_t precision,
                             uint64_t *h) {
    const uint8_t *values = a->values;
    int64_t at = a->offset + begin;
    switch (a->type) {
    case PST_BOOL:
        hash_bools(a, begin, n, h);
        return PST_OK;
    case PST_INT8:
        hash_8(values + at, n, h);
        return PST_OK;
    case PST_INT16:
        hash_16(values + at * 2, n, h);
        return PST_OK;
    case PST_INT32:
    case PST_DATE32:
        hash_32(values + at * 4, n, h);
        return PST_OK;
    case PST_INT64:
    case PST_TIMESTAMP:
        hash_64(values + at * 8, n, h);
        return PST_OK;
    case PST_FLOAT32:
        hash_f32(values + at * 4, n, h);
        return PST_OK;
    case PST_FLOAT64:
        hash_f64(values + at * 8, n, h);
        return PST_OK;
    case PST_DECIMAL:
        hash_decimals(a, begin, n, precision, h);
        return PST_OK;
    case PST_STRING:
    case PST_BINARY:
        hash_bytes(a, begin, n, h);
        return PST_OK;
    case PST_OBJECT:
    case PST_FIXED:
    case PST_NESTED:
        break;
    }
    return PST_WRONG_TYPE;
}

/* Null slots hold any value, so they are hashed like the others and then put back. */
static pst_status hash_nullable_chunk(const pst_array *a, int64_t begin, int64_t n,
                                      uint8_t precision, uint64_t *h) {
    uint64_t seeds[CHUNK];
    memcpy(seeds, h, (size_t)n * sizeof *h);
    pst_status s = hash_chunk(a, begin, n, precision, h);
    if (s)
        return s;
    for (int64_t i = 0; i < n; i++) {
        uint64_t keep = (uint64_t)bit_at(a->validity, a->offset + begin + i) - 1;
        h[i] ^= (h[i] ^ seeds[i]) & keep;
    }
    return PST_OK;
}

pst_status pst_hash(const pst_array *columns, const uint8_t *precision, int32_t n_columns,
                    uint64_t *hash) {
    if (n_columns < 1 || n_columns > PST_MAX_KEYS)
        return PST_INVALID;
    for (int32_t c = 0; c < n_columns; c++) {
        if (columns[c].length != columns[0].length || columns[c].length < 0)
            return PST_INVALID;
        if (columns[c].type < PST_BOOL || columns[c].type > PST_BINARY)
            return PST_WRONG_TYPE;
        if (columns[c].type == PST_DECIMAL && !precision)
            return PST_INVALID;
    }
    int64_t rows = columns[0].length;
    for (int64_t begin = 0; begin < rows; begin += CHUNK) {
        int64_t n = rows - begin < CHUNK ? rows - begin : CHUNK;
        uint64_t *h = hash + begin;
        for (int64_t i = 0; i < n; i++)
            h[i] = PST_HASH_SEED;
        for (int32_t c = 0; c < n_columns; c++) {
            uint8_t digits = precision ? precision[c] : 0;
            pst_status s = columns[c].validity
                               ? hash_nullable_chunk(&columns[c], begin, n, digits, h)
                               : hash_chunk(&columns[c], begin, n, digits, h);
            if (s)
                return s;
        }
    }
    return PST_OK;
}

uint64_t pst_hash_cell(const pst_column *column, const pst_cell *cell, uint64_t seed) {
    switch (column->type) {
    case PST_STRING:
    case PST_BINARY:
    case PST_OBJECT:
    case PST_FIXED:
    case PST_NESTED:
        return pst_xxh64(cell->bytes.data, cell->bytes.size, seed);
    case PST_DECIMAL:
        return hash_decimal(cell->word[0], cell->word[1], column->precision, seed);
    default:
        return pst_hash_word(column->type, pst_canonical_word(column->type, cell->word[0]), seed);
    }
}

uint64_t pst_hash_key(const pst_column *columns, int32_t n_columns, const pst_cell *key,
                      uint32_t nulls) {
    uint64_t h = PST_HASH_SEED;
    for (int32_t c = 0; c < n_columns; c++)
        if (!((nulls >> c) & 1))
            h = pst_hash_cell(&columns[c], &key[c], h);
    return h;
}

static int compare_words(uint64_t a, uint64_t b) {
    return (a > b) - (a < b);
}

static int compare_cells(pst_type type, const pst_cell *a, const pst_cell *b) {
    if (type >= PST_STRING) {
        uint32_t shared = a->bytes.size < b->bytes.size ? a->bytes.size : b->bytes.size;
        int d = shared ? memcmp(a->bytes.data, b->bytes.data, shared) : 0;
        return d ? d : compare_words(a->bytes.size, b->bytes.size);
    }
    if (type == PST_DECIMAL) {
        int d = compare_words(a->word[1], b->word[1]);
        if (d)
            return d;
    }
    return compare_words(a->word[0], b->word[0]);
}

int pst_key_compare(const pst_column *columns, int32_t n_columns, const pst_cell *a,
                    uint32_t a_nulls, const pst_cell *b, uint32_t b_nulls) {
    for (int32_t c = 0; c < n_columns; c++) {
        uint32_t a_null = (a_nulls >> c) & 1;
        uint32_t b_null = (b_nulls >> c) & 1;
        if (a_null != b_null)
            return a_null ? -1 : 1;
        if (a_null)
            continue;
        int d = compare_cells(columns[c].type, &a[c], &b[c]);
        if (d)
            return d;
    }
    return 0;
}

int32_t pst_key_group(uint64_t hash, int32_t max_parallelism) {
    if ((max_parallelism & (max_parallelism - 1)) == 0)
        return (int32_t)(hash & (uint64_t)(max_parallelism - 1));
    int64_t r = (int64_t)hash % max_parallelism;
    return (int32_t)(r < 0 ? r + max_parallelism : r);
}

int32_t pst_range_of(int32_t key_group, int32_t max_parallelism, int32_t parallelism) {
    return (int32_t)((int64_t)key_group * parallelism / max_parallelism);
}

void pst_range_bounds(int32_t i, int32_t max_parallelism, int32_t parallelism, int32_t *first,
                      int32_t *last) {
    int64_t m = max_parallelism;
    *first = (int32_t)((i * m + parallelism - 1) / parallelism);
    *last = (int32_t)(((i + 1) * m - 1) / parallelism);
}
