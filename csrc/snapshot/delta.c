/* delta.c: a sealed epoch as a delta file: its entries sorted by key group, hash and key, and
 * written many rows at a time. Whichever thread does it never looks at the table (G2).
 *
 * Entries are sorted by items. An item is a word with the entry's place and as much of the order as
 * fits beside it. Items are dealt into buckets by the highest bits of the order; there are so many
 * buckets that one stays in the nearest cache while it is sorted by the following bits. Items that
 * are still equal are ordered by the whole hash and the key.
 *
 * In a large epoch the items are made for a part of the buckets at a time, so that writing needs
 * little memory beside what was gathered. Each part is one more walk over the entries.
 *
 * Invariants
 *  O1. Each entry is in one part, and the parts, one after the other, are in the file's order.
 *  O2. Hashes are Spark's from sorter_begin on: those under which a table keeps its keys are
 *      replaced in the entries.
 */
#include <string.h>

#include "base/coding.h"
#include "base/mem.h"
#include "key/hash.h"
#include "key/key.h"
#include "key/schema.h"
#include "key/xxh64.h"
#include "memory/store.h"
#include "snapshot/sealed.h"

enum {
    AT_BITS = 40, /* of an item: the word at which its entry begins */
    PLANS = 16,
    AHEAD = 48,            /* how many rows ahead entries are prefetched */
    CHUNK = 128,           /* rows that are written together */
    BUCKET_ITEMS_BITS = 9, /* the items of a bucket, if hashes are spread */
    MOST_BUCKETS_BITS = 16,
    MOST_PARTS = 4,
    DIGIT = 8,
    FEW = 24, /* up to this many are sorted by insertion */
    TIES = 64
};

#ifndef PST_PART_ITEMS
#define PST_PART_ITEMS ((size_t)8 << 20)
#endif

/* ---- keys of words --------------------------------------------------------------------------- */

/* Keys of several columns of which each is a word, as windows have them, and behind them an
 * element's few bytes: without going through cells, as most of a row's time would go there. */

enum { KEY_COLUMNS = 3, KEY_WORDS = KEY_COLUMNS + PST_ELEMENT_WORDS };

/* The columns of a file's keys that are words: all of them, but for an element behind them. As words
 * that compare as the keys do, an element is as in pst_rows. */
typedef struct key_shape {
    int32_t columns; /* 0: keys are not such */
    int32_t words;
    int32_t hashed;
    pst_type type[KEY_COLUMNS];
} key_shape;

static key_shape key_shape_of(const pst_schema *schema) {
    int element = pst_schema_has_element(schema);
    int32_t n = schema->n_keys - element;
    key_shape k = {0, n + (element ? PST_ELEMENT_WORDS : 0), pst_schema_hashed(schema), {0}};
    /* A single column that is not followed by an element has a simpler form. */
    if (n > KEY_COLUMNS || schema->n_keys < 2 || k.hashed > n)
        return k;
    for (int32_t i = 0; i < n; i++) {
        k.type[i] = schema->keys[i].type;
        if (k.type[i] >= PST_DECIMAL)
            return k;
    }
    k.columns = n;
    return k;
}

/* The element, behind the columns: a tag, a size and its bytes, or the tag alone. */
static inline int take_element(const uint8_t *p, const uint8_t *end, uint64_t *words) {
    words[0] = words[1] = words[2] = 0;
    if (end - p == 1 && !*p)
        return 1;
    enum { HEAD = 5, MOST = 16 };
    uint64_t bytes[2];
    size_t size = (size_t)(end - p) - HEAD;
    if (end - p < HEAD || size > MOST)
        return 0;
    pst_short_words(p + HEAD, size, bytes);
    words[0] = __builtin_bswap64(bytes[0]);
    words[1] = __builtin_bswap64(bytes[1]);
    words[2] = 1 + size;
    return 1;
}

/* Takes a canonical form apart; 0 where a column is null or an element is long. Eight bytes behind
 * the form can be read. */
static inline int take_words(const key_shape *k, pst_bytes form, uint64_t *words) {
    const uint8_t *p = form.data, *end = p + form.size;
    for (int32_t i = 0; i < k->columns; i++) {
        uint32_t size = *p - 1u;
        uint64_t folded;
        if (p == end || size >= PST_KEY_WORD_BYTES)
            return 0;
        memcpy(&folded, p + 1, sizeof folded);
        /* C has no shift by 64. */
        folded &= ~(~UINT64_C(0) << 4 * size << 4 * size);
        words[i] = folded >> 1 ^ (UINT64_C(0) - (folded & 1));
        p += 1 + size;
    }
    return k->words > k->columns ? take_element(p, end, words + k->columns) : p == end;
}

/* Spark's hash. */
static inline uint64_t hash_words(const key_shape *k, const uint64_t *words) {
    uint64_t hash = PST_HASH_SEED;
    for (int32_t i = 0; i < k->hashed; i++)
        hash = pst_hash_word(k->type[i], words[i], hash);
    return hash;
}

/* As pst_key_compare. */
static inline int compare_words(const key_shape *k, const uint64_t *a, const uint64_t *b) {
    for (int32_t i = 0; i < k->words; i++)
        if (a[i] != b[i])
            return a[i] < b[i] ? -1 : 1;
    return 0;
}

/* ---- entries and their plans ----------------------------------------------------------------- */

/* What an entry's info word and masks say: where its cells are, and where it ends. */
typedef struct plan {
    uint64_t info;
    uint64_t changed;
    uint64_t present;
    uint32_t words;
    uint32_t first_bytes; /* the words of its first and its last {offset, size}; 0: none */
    uint32_t last_bytes;
    pst_rows rows;
} plan;

typedef struct sorter {
    const pst_sealed *s;
    pst_charge charge;
    uint64_t *words; /* the sealed epoch's */
    uint32_t info_at;
    int of_elements; /* the last key column tells the elements of a row apart */
    key_shape key_shape;
    int group_bits;
    int bucket_bits;
    size_t *counts; /* of the buckets' items */
    size_t *ends;   /* of the buckets of the part at hand, in `items` */
    size_t part;    /* items that are sorted at a time, unless one bucket has more */
    size_t bucket;  /* the first one of the next part */
    size_t n_items;
    uint64_t *items; /* of the part at hand, sorted */
    uint64_t *room;  /* for as many as the largest bucket has */
    plan plans[PLANS];
} sorter;

static inline uint64_t *entry_at(const sorter *x, uint64_t item) {
    return x->words + (item & ((UINT64_C(1) << AT_BITS) - 1));
}

static void make_plan(const pst_sealed *s, uint32_t info_at, const uint64_t *w, plan *p) {
    uint32_t at = info_at + 1;
    p->info = w[info_at];
    p->changed = p->info >> 8 & 0x7F;
    p->present = p->info >> 16 & 0x7F;
    if (s->wide) {
        p->changed = w[at++];
        p->present = w[at++];
    }
    p->first_bytes = p->last_bytes = s->key_kind == PST_KEY_BYTES ? 1 : 0;
    for (uint64_t left = p->present; left; left &= left - 1) {
        int k = __builtin_ctzll(left);
        pst_type type = s->schema->states[k].type;
        p->rows.at[k] = (uint8_t)at;
        if (!pst_type_width(type)) {
            p->first_bytes = p->first_bytes ? p->first_bytes : at;
            p->last_bytes = at;
        }
        at += pst_is_wide_value(type) ? 2 : 1;
    }
    p->words = at;
    p->rows.bytes = s->bytes.data;
    p->rows.op = p->info & PST_INFO_DELETE ? PST_DELETE : PST_PUT;
    p->rows.changed = p->changed;
    p->rows.present = p->present;
    p->rows.key_at = s->key_kind == PST_KEY_BYTES ? 1 : 0;
}

static inline const plan *plan_of(sorter *x, const uint64_t *w) {
    uint64_t info = w[x->info_at], mixed = info;
    if (x->s->wide)
        mixed ^= w[x->info_at + 1] + w[x->info_at + 2] * 3;
    plan *p = &x->plans[(mixed * PST_XXH_P1) >> 60];
    if (p->info != info ||
        (x->s->wide && (p->changed != w[x->info_at + 1] || p->present != w[x->info_at + 2])))
        make_plan(x->s, x->info_at, w, p);
    return p;
}

static inline uint64_t hash_of(const sorter *x, const uint64_t *w) {
    if (x->s->key_kind != PST_KEY_WORD)
        return w[0];
    if (w[x->info_at] & PST_INFO_NULL)
        return PST_HASH_SEED;
    return pst_hash_word(x->s->schema->keys[0].type, w[0], PST_HASH_SEED);
}

static inline pst_bytes key_of(const pst_sealed *s, const uint64_t *w) {
    return (pst_bytes){s->bytes.data + w[1], (uint32_t)w[2]};
}

/* The columns of a key, if they are words. */
static inline int take_key_words(const sorter *x, const uint64_t *w, uint64_t *words) {
    return x->key_shape.columns && take_words(&x->key_shape, key_of(x->s, w), words);
}

/* Decodes the key of an entry. */
static inline pst_status decode_key(const sorter *x, const uint64_t *w, pst_record *r) {
    const pst_sealed *s = x->s;
    pst_bytes bytes = {NULL, 0};
    if (s->key_kind == PST_KEY_BYTES)
        bytes = key_of(s, w);
    return pst_key_decode(s->schema, w[0], bytes, (w[x->info_at] & PST_INFO_NULL) != 0, r->key,
                          &r->key_nulls);
}

PST_PREFETCH void prefetch_entry(const sorter *x, size_t i) {
    const uint64_t *w = entry_at(x, x->items[i]);
    __builtin_prefetch(w, 0, 2);
    __builtin_prefetch(w + x->info_at + 2, 0, 2);
}

/* Prefetches the bytes of an entry that is in cache. */
PST_PREFETCH void prefetch_bytes(sorter *x, size_t i) {
    const uint64_t *w = entry_at(x, x->items[i]);
    const plan *p = plan_of(x, w);
    if (p->first_bytes) {
        __builtin_prefetch(x->s->bytes.data + w[p->first_bytes], 0, 2);
        __builtin_prefetch(x->s->bytes.data + w[p->last_bytes] + w[p->last_bytes + 1], 0, 2);
    }
}

/* ---- sorting --------------------------------------------------------------------------------- */

/* Ascends as (key group, hash) does. */
static inline uint64_t order_of(const sorter *x, uint64_t hash) {
    if (!x->group_bits)
        return hash;
    uint64_t group = (uint64_t)(pst_key_group(hash, x->s->max_parallelism) - x->s->first_key_group);
    return group << (64 - x->group_bits) | hash >> x->group_bits;
}

/* The highest bits of an order name a bucket; the next ones stand first in an item. */
static inline uint64_t bucket_of(const sorter *x, uint64_t order) {
    return order >> (64 - x->bucket_bits);
}

static inline uint64_t item_of(const sorter *x, uint64_t order, uint64_t at) {
    return (order << x->bucket_bits) >> AT_BITS << AT_BITS | at;
}

/* Walks the entries in the order in which they were gathered. Most have the same info word as the
 * one before, so the place of the next entry is known without waiting for this one. */
typedef struct walk {
    uint64_t *w;
    uint64_t info;
    uint32_t words;
} walk;

static walk begin_walk(const sorter *x) {
    return (walk){x->words, ~UINT64_C(0), 0};
}

static inline void walk_on(sorter *x, walk *at) {
    uint64_t info = at->w[x->info_at];
    if (__builtin_expect(info != at->info || x->s->wide, 0)) {
        at->info = info;
        at->words = plan_of(x, at->w)->words;
    }
    at->w += at->words;
}

/* Replaces the hashes that are not Spark's, and counts the items of each bucket. The elements of a
 * row, which follow one another, have one hash. */
static void count_items(sorter *x) {
    const pst_sealed *s = x->s;
    pst_bytes row = {NULL, 0};
    uint64_t hash = 0, words[KEY_WORDS];
    int spread = s->key_kind == PST_KEY_BYTES && (pst_key_has_namespace(s->schema) || s->tied);
    walk at = begin_walk(x);
    for (uint64_t i = 0; i < s->rows; i++, walk_on(x, &at)) {
        uint64_t *w = at.w;
        if (spread && take_key_words(x, w, words)) {
            w[0] = hash_words(&x->key_shape, words);
        } else if (spread) {
            pst_bytes key = key_of(s, w);
            if (!row.size || key.size < row.size || memcmp(key.data, row.data, row.size) != 0) {
                hash = pst_key_row_hash(s->schema, w[0], key, 0, s->tied);
                row = key;
                row.size = x->of_elements ? (uint32_t)pst_key_last(s->schema, key) : 0;
            }
            w[0] = hash;
        }
        x->counts[bucket_of(x, order_of(x, hash_of(x, w)))]++;
    }
}

/* Makes the items of the buckets `from` to `to` - 1. */
static void deal_items(sorter *x, size_t from, size_t to) {
    walk at = begin_walk(x);
    for (uint64_t i = 0; i < x->s->rows; i++, walk_on(x, &at)) {
        uint64_t order = order_of(x, hash_of(x, at.w));
        size_t k = bucket_of(x, order);
        /* Without a branch, which would be mispredicted: items of other buckets are written to the
         * place behind the last one. */
        size_t taken = k - from < to - from;
        k = taken ? k : (size_t)1 << x->bucket_bits;
        x->items[x->ends[k]] = item_of(x, order, (uint64_t)(at.w - x->words));
        x->ends[k] += taken;
    }
}

static void insert_in_order(uint64_t *a, size_t n) {
    for (size_t i = 1; i < n; i++) {
        uint64_t moving = a[i];
        size_t at = i;
        for (; at && a[at - 1] > moving; at--)
            a[at] = a[at - 1];
        a[at] = moving;
    }
}

/* Sorts by the highest digit first. Items that are equal in all of them stay in gathering order. */
static void sort_items(uint64_t *a, size_t n, int shift, uint64_t *room) {
    size_t ends[(1 << DIGIT) + 1] = {0}, most = 0;
    if (n <= FEW) {
        insert_in_order(a, n);
        return;
    }
    /* Many may be of one key. */
    uint64_t differs = 0;
    for (size_t i = 1; i < n; i++)
        differs |= a[i] ^ a[0];
    if (!(differs >> AT_BITS))
        return;
    for (size_t i = 0; i < n; i++)
        ends[(a[i] >> shift & ((1 << DIGIT) - 1)) + 1]++;
    for (int k = 1; k <= 1 << DIGIT; k++) {
        most = ends[k] > most ? ends[k] : most;
        ends[k] += ends[k - 1];
    }
    memcpy(room, a, n * sizeof *a);
    for (size_t i = 0; i < n; i++)
        a[ends[room[i] >> shift & ((1 << DIGIT) - 1)]++] = room[i];
    for (size_t k = 0, from = 0; most > FEW && k < 1 << DIGIT; from = ends[k++])
        if (ends[k] - from > FEW)
            sort_items(a + from, ends[k] - from, shift - DIGIT, room);
    insert_in_order(a, n);
}

/* Whether two keys are of one row, which ends its part of them at *end. */
static int are_of_row(const sorter *x, pst_bytes v, pst_bytes w, size_t *end) {
    *end = pst_key_last(x->s->schema, v);
    return *end < v.size && *end < w.size && !memcmp(v.data, w.data, *end);
}

/* Of two elements of a row, from their tags on; the row itself has none. */
static int element_before(pst_bytes v, pst_bytes w) {
    enum { HEAD = 5 };
    if (v.size <= HEAD || w.size <= HEAD)
        return v.size < w.size;
    uint32_t size = (v.size < w.size ? v.size : w.size) - HEAD;
    int order = memcmp(v.data + HEAD, w.data + HEAD, size);
    return order ? order < 0 : v.size < w.size;
}

/* Of two items of one order. */
static int comes_before(const sorter *x, uint64_t a, uint64_t b) {
    const uint64_t *v = entry_at(x, a), *w = entry_at(x, b);
    uint64_t left = hash_of(x, v), right = hash_of(x, w);
    if (left != right)
        return left < right;
    const pst_schema *schema = x->s->schema;
    uint64_t v_words[KEY_WORDS], w_words[KEY_WORDS];
    size_t end;
    if (take_key_words(x, v, v_words) && take_key_words(x, w, w_words))
        return compare_words(&x->key_shape, v_words, w_words) < 0;
    if (x->of_elements) {
        pst_bytes one = key_of(x->s, v), other = key_of(x->s, w);
        if (are_of_row(x, one, other, &end))
            return element_before((pst_bytes){one.data + end, one.size - (uint32_t)end},
                                  (pst_bytes){other.data + end, other.size - (uint32_t)end});
    }
    pst_record p, q;
    (void)decode_key(x, v, &p);
    (void)decode_key(x, w, &q);
    return pst_key_compare(schema->keys, schema->n_keys, p.key, p.key_nulls, q.key, q.key_nulls) <
           0;
}

/* Where the ascending run ends that begins at `from`. */
static size_t run_end(const sorter *x, const uint64_t *a, size_t from, size_t n) {
    while (++from < n && !comes_before(x, a[from], a[from - 1]))
        ;
    return from < n ? from : n;
}

static void merge_runs(const sorter *x, uint64_t *a, size_t n_left, size_t n) {
    uint64_t *room = x->room;
    memcpy(room, a, n_left * sizeof *a);
    size_t left = 0, right = n_left, out = 0;
    while (left < n_left && right < n)
        a[out++] = comes_before(x, a[right], room[left]) ? a[right++] : room[left++];
    memcpy(a + out, room + left, (n_left - left) * sizeof *a);
}

/* Merges neighbouring runs until there is one. The elements of a key, which all have its hash, come
 * as one run, and its timers as another. */
static void sort_tied(const sorter *x, uint64_t *a, size_t n) {
    size_t runs;
    do {
        runs = 0;
        for (size_t from = 0, end; from < n; from = end, runs++) {
            size_t middle = end = run_end(x, a, from, n);
            if (middle == n)
                continue;
            end = run_end(x, a, middle, n);
            merge_runs(x, a + from, middle - from, end - from);
        }
    } while (runs > 1);
}

/* Sorts a few items of one order whose keys are words; 0 where one is not. */
static int sort_tied_words(const sorter *x, uint64_t *a, size_t n) {
    struct tied {
        uint64_t hash;
        uint64_t words[KEY_WORDS];
        uint64_t item;
    } sorted[TIES], one;
    if (n > TIES)
        return 0;
    for (size_t i = 0, at; i < n; i++) {
        const uint64_t *w = entry_at(x, a[i]);
        if (!take_key_words(x, w, one.words))
            return 0;
        one.hash = hash_of(x, w);
        one.item = a[i];
        for (at = i; at; at--) {
            const struct tied *before = &sorted[at - 1];
            if (before->hash != one.hash
                    ? before->hash < one.hash
                    : compare_words(&x->key_shape, before->words, one.words) < 0)
                break;
            sorted[at] = *before;
        }
        sorted[at] = one;
    }
    for (size_t i = 0; i < n; i++)
        a[i] = sorted[i].item;
    return 1;
}

/* Called for each i in turn: prefetches the entry of an item further on, and the bytes of a nearer
 * one. */
PST_PREFETCH void prefetch_ahead(sorter *x, size_t i) {
    if (i + AHEAD < x->n_items)
        prefetch_entry(x, i + AHEAD);
    if (x->s->bytes.size && i + AHEAD / 2 < x->n_items)
        prefetch_bytes(x, i + AHEAD / 2);
}

static void settle_ties(sorter *x, size_t begin, size_t end) {
    const uint64_t *a = x->items;
    for (size_t from = begin, to; from < end; from = to) {
        for (to = from + 1; to < end && (a[to] ^ a[from]) >> AT_BITS == 0; to++)
            ;
        for (size_t i = from; to - from > 1 && i < to; i++)
            prefetch_ahead(x, i);
        if (to - from > 1 && !sort_tied_words(x, x->items + from, to - from))
            sort_tied(x, x->items + from, to - from);
    }
}

/* The end of the part that begins at bucket `from`: as many buckets as there is room for, at least
 * one. */
static size_t part_end(const sorter *x, size_t from, size_t *items) {
    size_t to = from, n = x->counts[to++];
    while (to < (size_t)1 << x->bucket_bits && n + x->counts[to] <= x->part)
        n += x->counts[to++];
    *items = n;
    return to;
}

/* Makes room for the items of the largest part, and of the largest bucket. */
static pst_status make_room(sorter *x) {
    size_t buckets = (size_t)1 << x->bucket_bits, most = 0, largest = 0;
    for (size_t from = 0, n; from < buckets;) {
        from = part_end(x, from, &n);
        if (n > most)
            most = n;
    }
    for (size_t k = 0; k < buckets; k++)
        largest = x->counts[k] > largest ? x->counts[k] : largest;
    pst_status st =
        pst_charge_raise(&x->charge, x->charge.bytes + (most + largest) * sizeof *x->items);
    if (st)
        return st;
    x->items = pst_malloc((most + 1) * sizeof *x->items);
    x->room = pst_malloc(largest * sizeof *x->room);
    return x->items && x->room ? PST_OK : PST_NO_MEMORY;
}

/* Makes x->items the sorted items of a part. */
static void sort_part(sorter *x, size_t from, size_t to) {
    size_t sum = 0;
    for (size_t k = from; k < to; k++) {
        x->ends[k] = sum;
        sum += x->counts[k];
    }
    x->n_items = x->ends[(size_t)1 << x->bucket_bits] = sum;
    deal_items(x, from, to);
    for (size_t k = from, begin = 0; k < to; begin = x->ends[k++])
        sort_items(x->items + begin, x->ends[k] - begin, 64 - DIGIT, x->room);
    for (size_t k = from, begin = 0; k < to; begin = x->ends[k++])
        settle_ties(x, begin, x->ends[k]);
}

/* ---- part by part ---------------------------------------------------------------------------- */

static int bits_of(uint64_t n) {
    return n ? 64 - __builtin_clzll(n) : 0;
}

/* Takes the epoch's buffers apart; `budget` is charged. Call sorter_end in any case.
 * PST_TOO_LARGE, PST_NO_MEMORY, PST_LIMIT. */
static pst_status sorter_begin(sorter *x, const pst_sealed *s, pst_budget *budget) {
    int bits = bits_of(s->rows) - BUCKET_ITEMS_BITS;
    *x = (sorter){.s = s, .charge = {budget, 0, PST_SMALL_BUFFER}};
    if (s->n_words >> AT_BITS)
        return PST_TOO_LARGE;
    x->words = s->entries.words;
    x->info_at = s->key_kind == PST_KEY_BYTES ? 3 : 1;
    x->of_elements = s->key_kind == PST_KEY_BYTES && pst_schema_has_element(s->schema);
    x->key_shape = key_shape_of(s->schema);
    x->group_bits = bits_of((uint64_t)(s->last_key_group - s->first_key_group));
    x->bucket_bits = bits < 1 ? 1 : bits > MOST_BUCKETS_BITS ? MOST_BUCKETS_BITS : bits;
    for (int i = 0; i < PLANS; i++)
        x->plans[i].info = ~UINT64_C(0);
    size_t rows = (size_t)s->rows, parts = rows / PST_PART_ITEMS + 1;
    /* Alike, but for the buckets that lie across. */
    x->part = rows / (parts < MOST_PARTS ? parts : MOST_PARTS) + rows / 64 + 1;
    size_t buckets = (size_t)1 << x->bucket_bits;
    pst_status st = pst_charge_raise(&x->charge, 2 * buckets * sizeof *x->ends);
    if (st)
        return st;
    x->counts = pst_calloc(2 * buckets + 1, sizeof *x->counts);
    if (!x->counts)
        return PST_NO_MEMORY;
    x->ends = x->counts + buckets;
    count_items(x);
    return make_room(x);
}

/* Makes x->items the next part; 0 after the last one. */
static int sorter_next(sorter *x) {
    if (x->bucket == (size_t)1 << x->bucket_bits)
        return 0;
    size_t from = x->bucket, n;
    x->bucket = part_end(x, from, &n);
    sort_part(x, from, x->bucket);
    return 1;
}

static void sorter_end(sorter *x) {
    pst_free(x->counts);
    pst_free(x->items);
    pst_free(x->room);
    pst_charge_drop(&x->charge);
}

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct writer {
    sorter sorter;
    pst_sst_writer *writer;
    int columnar; /* rows with one key column need not be decoded */
    uint64_t last_hash;
    pst_record record;
} writer;

static pst_status write_record(writer *x, const uint64_t *w, uint64_t hash) {
    const plan *p = plan_of(&x->sorter, w);
    pst_record *r = &x->record;
    pst_status st = decode_key(&x->sorter, w, r);
    r->hash = hash;
    r->key_group = pst_key_group(hash, x->sorter.s->max_parallelism);
    r->op = p->rows.op;
    r->changed = p->changed;
    r->present = p->present;
    for (uint64_t left = p->present; left; left &= left - 1) {
        int k = __builtin_ctzll(left);
        pst_type type = x->sorter.s->schema->states[k].type;
        const uint64_t *word = w + p->rows.at[k];
        if (!pst_type_width(type)) {
            r->cells[k].bytes = (pst_bytes){x->sorter.s->bytes.data + word[0], (uint32_t)word[1]};
            continue;
        }
        r->cells[k].word[0] = word[0];
        r->cells[k].word[1] = pst_is_wide_value(type) ? word[1] : 0;
    }
    x->last_hash = hash;
    return st ? st : pst_sst_writer_add(x->writer, r);
}

static int same_kind(const writer *x, const uint64_t *v, const uint64_t *w) {
    uint32_t at = x->sorter.info_at;
    return v[at] == w[at] &&
           (!x->sorter.s->wide || (v[at + 1] == w[at + 1] && v[at + 2] == w[at + 2]));
}

/* How many of the rows can be written together with the first. `keys` are theirs, if they are words,
 * or NULL. */
static uint32_t alike(const writer *x, const uint64_t *const *words, const uint64_t *hash,
                      const uint64_t *const *keys, uint32_t n) {
    uint64_t before = x->last_hash;
    uint32_t i = 0;
    if (x->sorter.key_shape.columns) {
        while (i < n && keys[i] && same_kind(x, words[0], words[i]))
            i++;
        return i;
    }
    if (!x->columnar || words[0][x->sorter.info_at] & PST_INFO_NULL)
        return 0;
    for (; i < n && hash[i] != before && same_kind(x, words[0], words[i]); i++)
        before = hash[i];
    return i;
}

/* Prefetches what is written after the chunk that begins at `done`: the entries of the one after
 * the next, and the bytes of the next, whose entries are in cache by then. A row's bytes a few rows
 * after its entry would wait for it, since prefetching is all that is done in between. */
static void prefetch_chunks(writer *x, size_t done) {
    size_t n = x->sorter.n_items, from = done ? done + 2 * CHUNK : 0, to = done + 3 * CHUNK;
    for (size_t i = from; i < to && i < n; i++)
        prefetch_entry(&x->sorter, i);
    from = done ? done + CHUNK : 0;
    to = done + 2 * CHUNK;
    for (size_t i = from; x->sorter.s->bytes.size && i < to && i < n; i++)
        prefetch_bytes(&x->sorter, i);
}

static pst_status write_sorted(writer *x) {
    const uint64_t *words[CHUNK], *keys[CHUNK];
    uint64_t hash[CHUNK], key_words[CHUNK][KEY_WORDS];
    size_t rows = x->sorter.n_items;
    pst_status st = PST_OK;
    for (size_t done = 0; !st && done < rows; done += CHUNK) {
        uint32_t n = rows - done < CHUNK ? (uint32_t)(rows - done) : CHUNK;
        prefetch_chunks(x, done);
        for (uint32_t i = 0; i < n; i++) {
            words[i] = entry_at(&x->sorter, x->sorter.items[done + i]);
            hash[i] = hash_of(&x->sorter, words[i]);
            keys[i] = take_key_words(&x->sorter, words[i], key_words[i]) ? key_words[i] : NULL;
        }
        for (uint32_t i = 0, together; !st && i < n; i += together ? together : 1) {
            together = alike(x, words + i, hash + i, keys + i, n - i);
            if (!together) {
                st = write_record(x, words[i], hash[i]);
                continue;
            }
            pst_rows part = plan_of(&x->sorter, words[i])->rows;
            part.words = words + i;
            part.keys = x->sorter.key_shape.columns ? keys + i : NULL;
            part.hash = hash + i;
            part.n = together;
            st = pst_sst_writer_add_rows(x->writer, &part);
            x->last_hash = hash[i + together - 1];
        }
    }
    return st;
}

void pst_sealed_guide(pst_sealed *s, uint32_t block_bytes) {
    s->block_bytes = block_bytes;
}

pst_status pst_sealed_write(pst_sealed *s, const pst_io *io, pst_file_info *info) {
    pst_file_info out = {.kind = PST_DELTA,
                         .lineage = s->lineage,
                         .max_parallelism = s->max_parallelism,
                         .first_key_group = s->first_key_group,
                         .last_key_group = s->last_key_group,
                         .null_entries = s->null_entries,
                         .block_bytes = s->block_bytes};
    writer *x = pst_calloc(1, sizeof *x);
    if (!x)
        return PST_NO_MEMORY;
    x->columnar = s->schema->n_keys == 1 && s->schema->keys[0].type != PST_DECIMAL;
    pst_io own = *io;
    own.budget = io->budget ? io->budget : s->charge.budget;
    pst_status st = pst_sst_writer_create(s->schema, &out, &own, &x->writer);
    if (!st)
        st = sorter_begin(&x->sorter, s, s->charge.budget);
    while (!st && sorter_next(&x->sorter))
        st = write_sorted(x);
    if (!st)
        st = pst_sst_writer_finish(x->writer, &out);
    pst_sst_writer_destroy(x->writer);
    sorter_end(&x->sorter);
    pst_free(x);
    pst_huge_make(&s->huge);
    if (!st)
        *info = out;
    return st;
}
