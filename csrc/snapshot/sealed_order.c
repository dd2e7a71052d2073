/* sealed_order.c: see sealed_order.h.
 *
 * Entries are sorted by items. An item is a word with the entry's place and as much of the order as
 * fits beside it. Items are dealt into buckets by the highest bits of the order; there are so many
 * buckets that one stays in the nearest cache while it is sorted by the following bits. Items that
 * are still equal are ordered by the whole hash and the key.
 *
 * In a large epoch the items are made for a part of the buckets at a time. Each part is one more walk
 * over the entries. */
#include "snapshot/sealed_order.h"

#include <string.h>

#include "base/mem.h"

enum {
    AHEAD = 48,            /* how many rows ahead entries are prefetched */
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

void pst_order_make_plan(const pst_sealed *s, uint32_t info_at, const uint64_t *w, pst_plan *p) {
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

/* Ascends as (key group, hash) does. */
static inline uint64_t order_of(const pst_order *x, uint64_t hash) {
    if (!x->group_bits)
        return hash;
    uint64_t group = (uint64_t)(pst_key_group(hash, x->s->max_parallelism) - x->s->first_key_group);
    return group << (64 - x->group_bits) | hash >> x->group_bits;
}

/* The highest bits of an order name a bucket; the next ones stand first in an item. */
static inline uint64_t bucket_of(const pst_order *x, uint64_t order) {
    return order >> (64 - x->bucket_bits);
}

static inline uint64_t item_of(const pst_order *x, uint64_t order, uint64_t at) {
    return (order << x->bucket_bits) >> PST_AT_BITS << PST_AT_BITS | at;
}

/* Walks the entries in the order in which they were gathered. Most have the same info word as the
 * one before, so the place of the next entry is known without waiting for this one. */
typedef struct walk {
    uint64_t *w;
    uint64_t info;
    uint32_t words;
} walk;

static walk begin_walk(const pst_order *x) {
    return (walk){x->words, ~UINT64_C(0), 0};
}

static inline void walk_on(pst_order *x, walk *at) {
    uint64_t info = at->w[x->info_at];
    if (__builtin_expect(info != at->info || x->s->wide, 0)) {
        at->info = info;
        at->words = pst_order_plan(x, at->w)->words;
    }
    at->w += at->words;
}

/* Replaces the hashes that are not Spark's, and counts the items of each bucket. The elements of a
 * row, which follow one another, have one hash. */
static void count_items(pst_order *x) {
    const pst_sealed *s = x->s;
    pst_bytes row = {NULL, 0};
    uint64_t hash = 0, words[PST_KEY_WORDS];
    int spread = s->key_kind == PST_KEY_BYTES && (pst_key_has_namespace(s->schema) || s->tied);
    walk at = begin_walk(x);
    for (uint64_t i = 0; i < s->rows; i++, walk_on(x, &at)) {
        uint64_t *w = at.w;
        if (spread && pst_order_words(x, w, words)) {
            w[0] = pst_key_words_hash(&x->key_words, words);
        } else if (spread) {
            pst_bytes key = pst_order_key(s, w);
            if (!row.size || key.size < row.size || memcmp(key.data, row.data, row.size) != 0) {
                hash = pst_key_row_hash(s->schema, w[0], key, 0, s->tied);
                row = key;
                row.size = x->of_elements ? (uint32_t)pst_key_last(s->schema, key) : 0;
            }
            w[0] = hash;
        }
        x->counts[bucket_of(x, order_of(x, pst_order_hash(x, w)))]++;
    }
}

/* Makes the items of the buckets `from` to `to` - 1. */
static void deal_items(pst_order *x, size_t from, size_t to) {
    walk at = begin_walk(x);
    for (uint64_t i = 0; i < x->s->rows; i++, walk_on(x, &at)) {
        uint64_t order = order_of(x, pst_order_hash(x, at.w));
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
    if (!(differs >> PST_AT_BITS))
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
static int are_of_row(const pst_order *x, pst_bytes v, pst_bytes w, size_t *end) {
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
static int comes_before(const pst_order *x, uint64_t a, uint64_t b) {
    const uint64_t *v = pst_order_entry(x, a), *w = pst_order_entry(x, b);
    uint64_t left = pst_order_hash(x, v), right = pst_order_hash(x, w);
    if (left != right)
        return left < right;
    const pst_schema *schema = x->s->schema;
    uint64_t v_words[PST_KEY_WORDS], w_words[PST_KEY_WORDS];
    size_t end;
    if (pst_order_words(x, v, v_words) && pst_order_words(x, w, w_words))
        return pst_key_words_compare(&x->key_words, v_words, w_words) < 0;
    if (x->of_elements) {
        pst_bytes one = pst_order_key(x->s, v), other = pst_order_key(x->s, w);
        if (are_of_row(x, one, other, &end))
            return element_before((pst_bytes){one.data + end, one.size - (uint32_t)end},
                                  (pst_bytes){other.data + end, other.size - (uint32_t)end});
    }
    pst_record p, q;
    (void)pst_order_decode(x, v, &p);
    (void)pst_order_decode(x, w, &q);
    return pst_key_compare(schema->keys, schema->n_keys, p.key, p.key_nulls, q.key, q.key_nulls) <
           0;
}

/* Where the ascending run ends that begins at `from`. */
static size_t run_end(const pst_order *x, const uint64_t *a, size_t from, size_t n) {
    while (++from < n && !comes_before(x, a[from], a[from - 1]))
        ;
    return from < n ? from : n;
}

static void merge_runs(const pst_order *x, uint64_t *a, size_t n_left, size_t n) {
    uint64_t *room = x->room;
    memcpy(room, a, n_left * sizeof *a);
    size_t left = 0, right = n_left, out = 0;
    while (left < n_left && right < n)
        a[out++] = comes_before(x, a[right], room[left]) ? a[right++] : room[left++];
    memcpy(a + out, room + left, (n_left - left) * sizeof *a);
}

/* Merges neighbouring runs until there is one. The elements of a key, which all have its hash, come
 * as one run, and its timers as another. */
static void sort_tied(const pst_order *x, uint64_t *a, size_t n) {
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
static int sort_tied_words(const pst_order *x, uint64_t *a, size_t n) {
    struct tied {
        uint64_t hash;
        uint64_t words[PST_KEY_WORDS];
        uint64_t item;
    } sorted[TIES], one;
    if (n > TIES)
        return 0;
    for (size_t i = 0, at; i < n; i++) {
        const uint64_t *w = pst_order_entry(x, a[i]);
        if (!pst_order_words(x, w, one.words))
            return 0;
        one.hash = pst_order_hash(x, w);
        one.item = a[i];
        for (at = i; at; at--) {
            const struct tied *before = &sorted[at - 1];
            if (before->hash != one.hash
                    ? before->hash < one.hash
                    : pst_key_words_compare(&x->key_words, before->words, one.words) < 0)
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
PST_PREFETCH void bring(pst_order *x, size_t i) {
    if (i + AHEAD < x->n_items)
        pst_order_bring_entry(x, i + AHEAD);
    if (x->s->bytes.size && i + AHEAD / 2 < x->n_items)
        pst_order_bring_bytes(x, i + AHEAD / 2);
}

static void settle_ties(pst_order *x, size_t begin, size_t end) {
    const uint64_t *a = x->items;
    for (size_t from = begin, to; from < end; from = to) {
        for (to = from + 1; to < end && (a[to] ^ a[from]) >> PST_AT_BITS == 0; to++)
            ;
        for (size_t i = from; to - from > 1 && i < to; i++)
            bring(x, i);
        if (to - from > 1 && !sort_tied_words(x, x->items + from, to - from))
            sort_tied(x, x->items + from, to - from);
    }
}

/* The end of the part that begins at bucket `from`: as many buckets as there is room for, at least
 * one. */
static size_t part_end(const pst_order *x, size_t from, size_t *items) {
    size_t to = from, n = x->counts[to++];
    while (to < (size_t)1 << x->bucket_bits && n + x->counts[to] <= x->part)
        n += x->counts[to++];
    *items = n;
    return to;
}

/* Makes room for the items of the largest part, and of the largest bucket. */
static pst_status make_room(pst_order *x) {
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
static void sort_part(pst_order *x, size_t from, size_t to) {
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

/* ---- all of it -------------------------------------------------------------------------------- */

static int bits_of(uint64_t n) {
    return n ? 64 - __builtin_clzll(n) : 0;
}

pst_status pst_order_begin(pst_order *x, const pst_sealed *s, pst_budget *budget) {
    int bits = bits_of(s->rows) - BUCKET_ITEMS_BITS;
    *x = (pst_order){.s = s, .charge = {budget, 0, PST_SMALL_BUFFER}};
    if (s->n_words >> PST_AT_BITS)
        return PST_TOO_LARGE;
    x->words = s->entries.words;
    x->info_at = s->key_kind == PST_KEY_BYTES ? 3 : 1;
    x->of_elements = s->key_kind == PST_KEY_BYTES && pst_schema_has_element(s->schema);
    x->key_words = pst_key_words_of(s->schema);
    x->group_bits = bits_of((uint64_t)(s->last_key_group - s->first_key_group));
    x->bucket_bits = bits < 1 ? 1 : bits > MOST_BUCKETS_BITS ? MOST_BUCKETS_BITS : bits;
    for (int i = 0; i < PST_PLANS; i++)
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

int pst_order_next(pst_order *x) {
    if (x->bucket == (size_t)1 << x->bucket_bits)
        return 0;
    size_t from = x->bucket, n;
    x->bucket = part_end(x, from, &n);
    sort_part(x, from, x->bucket);
    return 1;
}

void pst_order_end(pst_order *x) {
    pst_free(x->counts);
    pst_free(x->items);
    pst_free(x->room);
    pst_charge_drop(&x->charge);
}
