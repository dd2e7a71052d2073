#include "access/batch.h"

#include "base/mem.h"
#include "base/scratch.h"
#include "fetch/fetch.h"
#include "key/hash.h"
#include "key/schema.h"
#include "key/simd.h"

void pst_array_cell(const pst_array *a, int64_t i, pst_cell *cell) {
    int64_t at = a->offset + i;
    cell->word[0] = cell->word[1] = 0;
    switch (a->type) {
    case PST_BOOL:
        cell->word[0] = ((const uint8_t *)a->values)[at >> 3] >> (at & 7) & 1;
        break;
    case PST_INT8:
        cell->word[0] = (uint64_t)(int64_t)((const int8_t *)a->values)[at];
        break;
    case PST_INT16:
        cell->word[0] = (uint64_t)(int64_t)((const int16_t *)a->values)[at];
        break;
    case PST_INT32:
    case PST_DATE32:
        cell->word[0] = (uint64_t)(int64_t)((const int32_t *)a->values)[at];
        break;
    case PST_FLOAT32:
        cell->word[0] = ((const uint32_t *)a->values)[at];
        break;
    case PST_INT64:
    case PST_FLOAT64:
    case PST_TIMESTAMP:
        cell->word[0] = ((const uint64_t *)a->values)[at];
        break;
    case PST_DECIMAL:
        memcpy(cell->word, (const uint8_t *)a->values + at * 16, 16);
        break;
    case PST_STRING:
    case PST_BINARY:
    case PST_OBJECT:
    case PST_NESTED:
        cell->bytes = pst_array_bytes(a, at);
        break;
    case PST_FIXED:
        cell->bytes = (pst_bytes){(const uint8_t *)a->values + at * a->width, a->width};
    }
}

/* ---- taking keys ----------------------------------------------------------------------------- */

static int has_nulls(const pst_array *a) {
    if (!a->validity)
        return 0;
    for (int64_t i = 0; i < a->length; i++)
        if (pst_array_is_null(a, i))
            return 1;
    return 0;
}

/* Word keys: the caller's array itself, where its bits are canonical already. */
static pst_status take_words(pst_batch *b, const pst_array *keys) {
    pst_type type = keys->type;
    if ((type == PST_INT64 || type == PST_TIMESTAMP) && !b->nulls) {
        b->words = (const uint64_t *)keys->values + keys->offset;
        return PST_OK;
    }
    b->own_words = pst_scratch_take((size_t)b->length * sizeof *b->own_words);
    if (!b->own_words)
        return PST_NO_MEMORY;
    for (int64_t i = 0; i < b->length; i++) {
        pst_cell cell;
        pst_array_cell(keys, i, &cell);
        b->own_words[i] = b->nulls && b->nulls[i] ? 0 : pst_canonical_word(type, cell.word[0]);
    }
    b->words = b->own_words;
    return PST_OK;
}

/* A single string or binary column: its bytes are the canonical form, where the caller has them. */
static pst_status take_plain(pst_batch *b, const pst_array *keys) {
    const int32_t *offsets = keys->offsets + keys->offset;
    const uint8_t *values = keys->values;
    for (int64_t i = 0; i < b->length; i++) {
        int null = b->nulls && b->nulls[i];
        uint32_t size = null ? 0 : (uint32_t)(offsets[i + 1] - offsets[i]);
        if (size > PST_MAX_BYTES)
            return PST_TOO_LARGE;
        b->bytes[i] = (pst_bytes){size ? values + offsets[i] : NULL, size};
    }
    return PST_OK;
}

/* Charges for the arrays of n keys, and `more` bytes. */
static pst_status charge(pst_batch *b, size_t n, uint64_t more) {
    uint64_t key = b->t->lay.key_kind == PST_KEY_WORD ? sizeof *b->own_words : sizeof *b->bytes;
    uint64_t row = sizeof *b->hash + sizeof *b->slots + sizeof *b->nulls + key;
    pst_status s = pst_charge_raise(&b->charge, n * row + more);
    if (s)
        b->t->arena.refused = 0;
    return s;
}

/* Whether all columns are words. */
static int are_words(const pst_schema *schema) {
    for (int32_t k = 0; k < schema->n_keys; k++)
        if (schema->keys[k].type > PST_TIMESTAMP)
            return 0;
    return 1;
}

/* A column's words, not canonical yet, into every `n_keys`th one. */
static void gather_words(const pst_array *a, int64_t n, size_t n_keys, uint64_t *out) {
    const uint64_t *words = a->values;
    int whole = a->type == PST_INT64 || a->type == PST_TIMESTAMP;
    for (int64_t i = 0; i < n; i++, out += n_keys) {
        pst_cell cell;
        if (whole) {
            *out = words[a->offset + i];
            continue;
        }
        pst_array_cell(a, i, &cell);
        *out = pst_canonical_word(a->type, cell.word[0]);
    }
}

/* Such keys in the form that `pst_key_form` gives them one by one. */
static pst_status take_word_tuples(pst_batch *b, const pst_schema *schema, const pst_array *keys) {
    size_t n = (size_t)b->length, n_keys = (size_t)schema->n_keys;
    size_t capacity = n * n_keys * PST_KEY_WORD_BYTES + 1;
    uint64_t words[PST_GROUP * PST_MAX_KEYS];
    pst_status s = charge(b, n, capacity);
    if (!s)
        s = pst_buffer_reserve(&b->encoded, capacity);
    if (s)
        return s;
    uint8_t *at = b->encoded.data;
    for (size_t from = 0; from < n; from += PST_GROUP) {
        size_t count = n - from < PST_GROUP ? n - from : PST_GROUP;
        for (size_t k = 0; k < n_keys; k++) {
            pst_array part = keys[k];
            part.offset += (int64_t)from;
            gather_words(&part, (int64_t)count, n_keys, words + k);
        }
        for (size_t i = 0; i < count; i++) {
            uint8_t *start = at;
            for (size_t k = 0; k < n_keys; k++)
                if (pst_array_is_null(&keys[k], (int64_t)(from + i)))
                    *at++ = 0;
                else
                    at += pst_key_put_word(at, words[i * n_keys + k]);
            b->bytes[from + i] = (pst_bytes){start, (uint32_t)(at - start)};
        }
    }
    b->encoded.size = (size_t)(at - b->encoded.data);
    return PST_OK;
}

static pst_status take_bytes(pst_batch *b, const pst_schema *schema, const pst_array *keys) {
    b->bytes = pst_scratch_take((size_t)b->length * sizeof *b->bytes);
    if (!b->bytes)
        return PST_NO_MEMORY;
    if (pst_key_is_plain(schema))
        return take_plain(b, keys);
    if (are_words(schema))
        return take_word_tuples(b, schema, keys);
    pst_cell cells[PST_MAX_KEYS];
    /* So much most keys take; the buffer grows for longer ones. */
    size_t usual = (size_t)b->length * (size_t)schema->n_keys * PST_KEY_WORD_BYTES;
    pst_status reserved = pst_buffer_reserve(&b->encoded, usual);
    if (reserved)
        return reserved;
    for (int64_t i = 0; i < b->length; i++) {
        uint32_t nulls = 0;
        for (int32_t k = 0; k < schema->n_keys; k++)
            if (pst_array_is_null(&keys[k], i))
                nulls |= UINT32_C(1) << k;
            else
                pst_array_cell(&keys[k], i, &cells[k]);
        pst_key key;
        pst_status s = pst_key_form(schema, cells, nulls, &b->encoded, &key);
        if (s)
            return s;
        b->bytes[i] = key.bytes;
        s = charge(b, (size_t)b->length, b->encoded.size);
        if (s)
            return s;
    }
    /* Encoding may have moved the buffer, so pointers into it are made only now, from offsets. */
    size_t at = 0;
    for (int64_t i = 0; i < b->length; i++) {
        if (!b->bytes[i].size)
            continue;
        b->bytes[i].data = b->encoded.data + at;
        at += b->bytes[i].size;
    }
    return PST_OK;
}

static pst_status check_arrays(const pst_table *t, const pst_array *keys, pst_detail *detail) {
    for (int32_t k = 0; k < t->schema.n_keys; k++) {
        detail->column = k;
        if (keys[k].type != t->schema.keys[k].type)
            return PST_WRONG_TYPE;
        if (keys[k].length != keys[0].length || keys[k].length < 0)
            return PST_INVALID;
    }
    detail->column = -1;
    return PST_OK;
}

static pst_status check_groups(pst_batch *b) {
    pst_table *t = b->t;
    if (t->first_key_group == 0 && t->last_key_group == t->max_parallelism - 1)
        return PST_OK;
    for (int64_t i = 0; i < b->length; i++) {
        int32_t group = pst_group_of(t, b->hash[i]);
        if (group >= t->first_key_group && group <= t->last_key_group)
            continue;
        t->detail.row = i;
        t->detail.key_group = group;
        return PST_WRONG_KEY_GROUP;
    }
    return PST_OK;
}

pst_status pst_batch_allocate(pst_batch *b, size_t n) {
    b->charge = (pst_charge){b->t->budget, 0, PST_SMALL_BUFFER};
    pst_status s = charge(b, n, 0);
    if (s)
        return s;
    b->hash = pst_scratch_take(n * (sizeof *b->hash + sizeof *b->slots));
    if (!b->hash)
        return PST_NO_MEMORY;
    b->slots = (uint32_t *)(void *)(b->hash + n);
    return PST_OK;
}

static pst_status fill(pst_batch *b, const pst_array *keys) {
    pst_table *t = b->t;
    size_t n = (size_t)b->length;
    uint8_t precision[PST_MAX_KEYS];
    for (int32_t k = 0; k < t->schema.n_keys; k++)
        precision[k] = t->schema.keys[k].precision;
    pst_status s = pst_batch_allocate(b, n);
    if (s)
        return s;
    s = pst_hash(keys, precision, pst_schema_hashed(&t->schema), b->hash);
    if (!s)
        s = check_groups(b);
    if (s)
        return s;
    if (t->schema.n_keys == 1 && has_nulls(keys)) {
        b->nulls = pst_malloc(n);
        if (!b->nulls)
            return PST_NO_MEMORY;
        for (size_t i = 0; i < n; i++)
            b->nulls[i] = (uint8_t)pst_array_is_null(keys, (int64_t)i);
    }
    if (t->lay.key_kind == PST_KEY_WORD)
        return take_words(b, keys);
    s = take_bytes(b, &t->schema, keys);
    if (!s && pst_key_has_namespace(&t->schema))
        for (size_t i = 0; i < n; i++)
            b->hash[i] = pst_key_spread(b->hash[i], b->bytes[i], t->max_parallelism);
    return s;
}

pst_status pst_batch_create(pst_table *t, const pst_array *keys, pst_batch **batch) {
    if (!t->attached)
        return PST_INVALID;
    pst_no_detail(&t->detail);
    pst_status s = check_arrays(t, keys, &t->detail);
    if (s)
        return s;
    pst_batch *b = pst_calloc(1, sizeof *b);
    if (!b)
        return PST_NO_MEMORY;
    b->t = t;
    b->generation = t->generation;
    b->length = keys[0].length;
    s = fill(b, keys);
    if (s) {
        pst_batch_destroy(b);
        return s;
    }
    *batch = b;
    return PST_OK;
}

void pst_batch_destroy(pst_batch *b) {
    if (!b)
        return;
    pst_scratch_drop(b->hash);
    pst_scratch_drop(b->own_words);
    pst_scratch_drop(b->bytes);
    pst_free(b->nulls);
    pst_free(b->encoded.data);
    pst_charge_drop(&b->charge);
    pst_free(b);
}

int64_t pst_batch_length(const pst_batch *b) {
    return b->length;
}

pst_status pst_batch_usable(const pst_batch *b) {
    if (b->generation != b->t->generation)
        return PST_STALE;
    return b->t->poisoned ? PST_POISONED : PST_OK;
}

/* ---- from keys to rows, in stages that prefetch for each other -------------------------------- */

/* The line of a key whose shard has no page yet. */
static const uint64_t NOTHING[PST_LINE] __attribute__((aligned(64)));

static int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* For code that few keys need: kept out of the loops, whose registers it would take. */
#define RARE __attribute__((noinline))

static inline
    __attribute__((always_inline)) void find_lines_as(pst_batch *b, int64_t to, int masked) {
    const pst_table *t = b->t;
    const pst_shard *shards = t->m->shards;
    const uint8_t *heap = t->heap;
    const uint64_t *hashes = b->hash;
    const uint64_t **lines = b->lines;
    uint32_t *tags = b->tags, bits = t->m->directory_bits, mask = t->group_mask;
    uint32_t first = (uint32_t)t->first_key_group;
    pst_salt salt = pst_salt_of(t);
    for (uint64_t i = (uint64_t)b->lined; i < (uint64_t)to; i++) {
        uint64_t hash = hashes[i];
        uint32_t group = masked ? (uint32_t)hash & mask : (uint32_t)pst_group_of(t, hash);
        uint32_t tag = pst_salted_tag(salt, hash);
        pst_probe c;
        c.line = (uint64_t *)(uintptr_t)NOTHING;
        if (pst_probe_home(&c, &shards[pst_directory_place(group - first, bits, tag)], heap, tag))
            __builtin_prefetch(c.line, 0, 3);
        lines[i % PST_LINES] = c.line;
        tags[i % PST_LINES] = tag;
    }
}

static RARE void find_lines_of_any_groups(pst_batch *b, int64_t to) {
    find_lines_as(b, to, 0);
}

#ifdef PST_AVX512
enum { GRANULE_BITS = 4, PAGE_BITS = 9, CAPACITY_BITS = 24 };
_Static_assert(PST_GRANULE == 1 << GRANULE_BITS && PST_PAGE_ENTRIES == 1 << PAGE_BITS, "shifts");

/* Products of the low halves of 64-bit lanes. */
#define MUL_LOW(a, b) _mm512_mul_epu32(a, b)

/* pst_salted_tag, eight lanes at a time. */
PST_WITH_AVX512 static inline __m512i salted_tags(__m512i hash, __m512i add, __m512i fold,
                                                  __m512i fold_high, __m512i spread) {
    const __m512i low_half = _mm512_set1_epi64(0xFFFFFFFF);
    __m512i x = _mm512_xor_si512(hash, add), x_high = _mm512_srli_epi64(x, 32);
    __m512i middle = MUL_LOW(x, fold_high), other = MUL_LOW(x_high, fold);
    __m512i carry = _mm512_srli_epi64(MUL_LOW(x, fold), 32);
    carry = _mm512_add_epi64(carry, _mm512_and_si512(middle, low_half));
    carry = _mm512_add_epi64(carry, _mm512_and_si512(other, low_half));
    __m512i high = _mm512_add_epi64(MUL_LOW(x_high, fold_high), _mm512_srli_epi64(carry, 32));
    high = _mm512_add_epi64(high, _mm512_srli_epi64(middle, 32));
    high = _mm512_add_epi64(high, _mm512_srli_epi64(other, 32));
    __m512i folded = _mm512_xor_si512(_mm512_mullo_epi64(x, fold), high);
    return _mm512_srli_epi64(_mm512_mullo_epi64(folded, spread), 32);
}

/* Eight keys at a time, as far as they go; returns the first key that is left. */
PST_WITH_AVX512 static int64_t find_lines_avx512(pst_batch *b, int64_t to) {
    const pst_table *t = b->t;
    const uint8_t *heap = t->heap;
    pst_salt salt = pst_salt_of(t);
    const __m512i add = _mm512_set1_epi64((int64_t)salt.add);
    const __m512i fold = _mm512_set1_epi64((int64_t)salt.fold);
    const __m512i fold_high = _mm512_set1_epi64((int64_t)(salt.fold >> 32));
    const __m512i spread = _mm512_set1_epi64((int64_t)salt.spread);
    const __m512i mask = _mm512_set1_epi64((int64_t)t->group_mask);
    const __m512i first = _mm512_set1_epi64(t->first_key_group);
    const __m512i capacity_bits = _mm512_set1_epi64((1 << CAPACITY_BITS) - 1);
    const __m512i tag_bits = _mm512_set1_epi64(0xFFFFFFFF);
    const __m512i line_start = _mm512_set1_epi64(~(int64_t)(PST_LINE - 1));
    const __m512i in_page = _mm512_set1_epi64(PST_PAGE_ENTRIES - 1);
    const __m512i empty = _mm512_set1_epi64((int64_t)(uintptr_t)NOTHING);
    const __m512i base = _mm512_set1_epi64((int64_t)(uintptr_t)heap);
    const __m128i depth_shift = _mm_cvtsi32_si128((int)t->m->directory_bits);
    const __m128i tag_shift = _mm_cvtsi32_si128(32 - (int)t->m->directory_bits);
    int64_t i = b->lined;
    for (; i + 8 <= to; i += 8) {
        __m512i hash = _mm512_loadu_si512(b->hash + i);
        __m512i tag = salted_tags(hash, add, fold, fold_high, spread);
        __m512i group = _mm512_sub_epi64(_mm512_and_si512(hash, mask), first);
        __m512i place =
            _mm512_or_si512(_mm512_sll_epi64(group, depth_shift), _mm512_srl_epi64(tag, tag_shift));
        __m512i shard = _mm512_i64gather_epi64(_mm512_slli_epi64(place, 1), t->m->shards, 8);
        __m512i capacity = _mm512_and_si512(shard, capacity_bits);
        __m512i depth = _mm512_srli_epi64(_mm512_and_si512(shard, tag_bits), CAPACITY_BITS);
        __m512i rest = _mm512_and_si512(_mm512_sllv_epi64(tag, depth), tag_bits);
        __m512i home = _mm512_srli_epi64(MUL_LOW(rest, capacity), 32);
        home = _mm512_and_si512(home, line_start);
        __m512i table = _mm512_slli_epi64(_mm512_srli_epi64(shard, 32), GRANULE_BITS);
        __m512i at =
            _mm512_add_epi64(table, _mm512_slli_epi64(_mm512_srli_epi64(home, PAGE_BITS), 2));
        __mmask8 has = _mm512_test_epi64_mask(shard, capacity_bits);
        __m512i page = _mm512_cvtepu32_epi64(
            _mm512_mask_i64gather_epi32(_mm256_setzero_si256(), has, at, heap, 1));
        __m512i line = _mm512_add_epi64(base, _mm512_slli_epi64(page, GRANULE_BITS));
        line = _mm512_add_epi64(line, _mm512_slli_epi64(_mm512_and_si512(home, in_page), 3));
        line = _mm512_mask_mov_epi64(empty, has, line);
        const uint64_t **lines = b->lines + i % PST_LINES;
        _mm512_storeu_si512(lines, line);
        _mm256_storeu_si256((__m256i *)(void *)(b->tags + i % PST_LINES),
                            _mm512_cvtepi64_epi32(tag));
        for (int k = 0; k < 8; k++)
            __builtin_prefetch(lines[k], 0, 3);
    }
    _mm256_zeroupper();
    return i;
}
#endif

static void find_lines(pst_batch *b, int64_t to) {
    if (to <= b->lined)
        return;
    if (pst_groups_are_masked(b->t)) {
#ifdef PST_AVX512
        if (pst_has_avx512() && b->lined % 8 == 0)
            b->lined = find_lines_avx512(b, to);
#endif
        find_lines_as(b, to, 1);
    } else {
        find_lines_of_any_groups(b, to);
    }
    b->lined = to;
}

/* Points at the home line of key i; 0 where its shard has no page. */
static int walk_home(const pst_batch *b, int64_t i, pst_probe *c) {
    const pst_table *t = b->t;
    uint32_t tag = b->tags[i % PST_LINES];
    uint32_t at = pst_directory_at(t, t->m->directory_bits, b->hash[i], tag);
    return pst_probe_home(c, &t->m->shards[at], t->heap, tag);
}

/* The home line is full of other keys: prefetches the lines after it. */
static RARE void try_next_lines(pst_batch *b, int64_t i) {
    enum { NEXT = 4 };
    pst_probe c;
    if (!walk_home(b, i, &c))
        return;
    b->moved[b->moved_tail++ % PST_LINES] = i;
    for (int k = 0; k < NEXT; k++) {
        pst_probe_step(&c, b->t->heap);
        __builtin_prefetch(c.line);
    }
}

/* Takes the first entry with the right tag. The line may be out of date: a slot found here is
 * compared later, and if a row was made meanwhile, callers to whom it matters look again where they
 * see PST_NONE. */
static void guess_slots(pst_batch *b, int64_t to) {
    const pst_table *t = b->t;
    uint32_t taken = t->m->slots, *slots = b->slots;
    const uint32_t *tags = b->tags;
    const uint64_t **lines = b->lines;
    for (int64_t i = b->guessed; i < to; i++) {
        uint64_t at = (uint64_t)i % PST_LINES;
        const uint64_t *line = lines[at];
        uint32_t m = pst_line_matches(line, tags[at]);
        uint32_t slot = m ? pst_entry_slot(line[__builtin_ctz(m)]) : PST_NONE;
        if (slot < taken) {
            pst_prefetch_row(t, slot);
        } else if (m) { /* to a key whose tag is 0, empty cells bear it */
            slot = pst_batch_find_row(b, i);
        } else if (line[PST_LINE - 1]) {
            try_next_lines(b, i);
        }
        slots[i] = slot;
    }
    if (to > b->guessed)
        b->guessed = to;
}

/* Looks for the keys that were not in their home lines: half of them are in the next line, but one
 * in five is four lines or more behind. The epoch's first write may have rebuilt the shard since the
 * home line was looked at, so the walk begins there again. */
static RARE void guess_moved(pst_batch *b, int64_t to) {
    const pst_table *t = b->t;
    while (b->moved_head < b->moved_tail && b->moved[b->moved_head % PST_LINES] < to) {
        int64_t i = b->moved[b->moved_head++ % PST_LINES];
        uint32_t tag = b->tags[i % PST_LINES], slot = PST_NONE, m = 0;
        pst_probe c;
        if (!walk_home(b, i, &c))
            continue;
        for (uint32_t n = 0; n < c.capacity; n += PST_LINE) {
            m = pst_line_matches(c.line, tag);
            if (m)
                slot = pst_entry_slot(c.line[__builtin_ctz(m)]);
            if (m || !c.line[PST_LINE - 1])
                break;
            pst_probe_step(&c, t->heap);
        }
        if (slot < t->m->slots)
            pst_prefetch_row(t, slot);
        else if (m)
            slot = pst_batch_find_row(b, i);
        b->slots[i] = slot;
    }
}

/* For rows of bytes keys whose slots were guessed: prefetches the block that holds the rest of the
 * key. Keys that were not in their home lines are found too late for that. */
PST_PREFETCH void prefetch_keys(const pst_batch *b, int64_t from, int64_t to) {
    const pst_table *t = b->t;
    for (int64_t i = from; i < to; i++) {
        if (b->slots[i] == PST_NONE)
            continue;
        const uint64_t *ref = pst_row(t, b->slots[i]) + t->lay.key_offset / 8 + 1;
        if (pst_ref_is_block(ref) && pst_ref_size(ref) == b->bytes[i].size)
            pst_prefetch_bytes(pst_ref_data(t->heap, ref), pst_ref_size(ref));
    }
}

/* Looks again where the guess was another key's row. */
static void compare_slots(pst_batch *b, int64_t from, int64_t to) {
    const pst_table *t = b->t;
    for (int64_t i = from; i < to; i++) {
        if (b->slots[i] == PST_NONE)
            continue;
        pst_key key;
        pst_batch_key(b, i, &key);
        if (!pst_row_matches(t, pst_row(t, b->slots[i]), &key))
            b->slots[i] = pst_index_find(t, &key);
    }
}

/* The same for word keys without nulls, by far the most frequent. */
static void compare_words(pst_batch *b, int64_t from, int64_t to) {
    const pst_table *t = b->t;
    const uint8_t *rows = t->rows;
    uint64_t row_size = t->lay.row_size;
    uint32_t *slots = b->slots;
    const uint64_t *words = b->words;
    for (int64_t i = from; i < to; i++) {
        if (slots[i] == PST_NONE)
            continue;
        const uint64_t *row = (const uint64_t *)(rows + slots[i] * row_size);
        if (row[1] == words[i] && (row[0] & 0xFF) >= PST_FLAG_LIVE && !(row[0] & PST_FLAG_NULL_KEY))
            continue;
        pst_key key;
        pst_batch_key(b, i, &key);
        slots[i] = pst_index_find(t, &key);
    }
}

/* Of so many keys one's row is noted as in use, another one in each epoch: the line of a slot's heat
 * is one more that nobody's cache has, and rows that are written to bear the epoch's stamp. Where no
 * row has left yet, and maybe none ever does, of a group. */
static int64_t heated_of(const pst_batch *b) {
    enum { WHERE_ROWS_LEAVE = 4 };
    return b->t->rows_leave ? WHERE_ROWS_LEAVE : PST_GROUP;
}

static int64_t heated(const pst_batch *b, int64_t from, int64_t of) {
    uint64_t turn = b->t->generation + (uint64_t)from / PST_GROUP;
    return from + (int64_t)(turn % (uint64_t)of);
}

PST_PREFETCH void prefetch_heat(const pst_batch *b, int64_t from) {
    int64_t to = min64(from + PST_GROUP, b->guessed), of = heated_of(b);
    for (int64_t i = heated(b, from, of); i < to; i += of)
        if (b->slots[i] < b->t->heat_slots)
            __builtin_prefetch(b->t->heat + b->slots[i] / PST_HEAT_SLOTS, 1, 3);
}

static void raise_heat(const pst_batch *b, int64_t from, int64_t to) {
    int64_t of = heated_of(b);
    for (int64_t i = heated(b, from, of); i < to; i += of)
        pst_heat(b->t, b->slots[i]);
}

void pst_batch_resolve(pst_batch *b, int64_t to) {
    if (!b->lined)
        b->made = b->t->m->ties ? UINT64_MAX : pst_rows_made(b->t);
    while (b->resolved < to) {
        int64_t from = b->resolved, end = min64(from + PST_GROUP, b->length);
        pst_prefetch_words(b->hash, from + 3 * PST_GROUP, b->length);
        if (b->words)
            pst_prefetch_words(b->words, from, b->length);
        find_lines(b, min64(end + 3 * PST_GROUP, b->length));
        guess_slots(b, min64(end + 2 * PST_GROUP, b->length));
        if (b->t->heat_slots)
            prefetch_heat(b, end + PST_GROUP);
        if (b->bytes)
            prefetch_keys(b, from ? end : 0, min64(end + PST_GROUP, b->length));
        guess_moved(b, min64(end + PST_GROUP, b->length));
        if (b->words && !b->nulls)
            compare_words(b, from, end);
        else
            compare_slots(b, from, end);
        if (b->t->heat_slots)
            raise_heat(b, from, end);
        b->resolved = end;
    }
}

PST_PREFETCH void prefetch_rows(const pst_batch *b, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++)
        if (b->slots[i] != PST_NONE)
            pst_prefetch_row(b->t, b->slots[i]);
}

void pst_batch_prepare(pst_batch *b, int64_t i) {
    int64_t end = min64(i + PST_GROUP, b->length);
    if (b->resolved < end) {
        pst_batch_resolve(b, end);
        return;
    }
    if (i == 0)
        prefetch_rows(b, 0, end);
    prefetch_rows(b, end, min64(end + PST_GROUP, b->length));
}

void pst_batch_prepare_rows(pst_batch *b, int64_t i) {
    int64_t end = min64(i + PST_GROUP, b->length);
    if (b->resolved < end)
        pst_batch_resolve(b, end);
    else
        prefetch_rows(b, i ? end + PST_GROUP : 0, min64(end + 2 * PST_GROUP, b->guessed));
}

static void get_key(void *ctx, int64_t i, pst_key *key) {
    pst_batch_key(ctx, i, key);
}

pst_status pst_batch_complete(pst_batch *b) {
    pst_table *t = b->t;
    pst_status s = PST_OK;
    if (!b->of_rows) {
        int64_t missing = 0;
        pst_batch_resolve(b, b->length);
        for (int64_t i = 0; i < b->length; i++)
            missing += pst_batch_slot(b, i) == PST_NONE;
        pst_keys keys = {b, get_key, b->slots, b->length, b->reading};
        if (missing)
            s = pst_fetch(t, &keys);
        if (!s && !t->m->ties)
            b->made = pst_rows_made(t);
        t->fetched.asked += s ? 0 : (uint64_t)b->length;
    }
    b->complete = !s;
    return s;
}

pst_status pst_batch_fetch(pst_batch *b, int reading, uint64_t *absent) {
    b->reading = reading;
    pst_status s = pst_batch_ready(b);
    b->reading = 0;
    *absent = 0;
    if (s || b->of_rows)
        return s;
    pst_batch_resolve(b, b->length);
    for (int64_t i = 0; i < b->length; i++)
        *absent += pst_batch_slot(b, i) == PST_NONE;
    return PST_OK;
}

uint32_t pst_batch_find_row(pst_batch *b, int64_t i) {
    pst_key key;
    pst_batch_key(b, i, &key);
    return b->slots[i] = pst_index_find(b->t, &key);
}

pst_status pst_batch_make_row(pst_batch *b, int64_t i, uint32_t *slot) {
    pst_key key;
    pst_batch_key(b, i, &key);
    pst_status s = pst_row_make(b->t, &key, slot);
    if (!s)
        b->slots[i] = *slot;
    return s;
}
