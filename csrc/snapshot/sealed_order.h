/* sealed_order.h: the order in which a sealed epoch's entries go to its delta.
 *
 * Purpose: sorting by key group, hash and key, a part of the entries at a time, so that writing
 * needs little memory beside what was gathered.
 *
 * Thread safety: as the sealed epoch, which is not to be used by others meanwhile.
 *
 * Invariants
 *  O1. Each entry is in one part, and the parts, one after the other, are in the file's order.
 *  O2. Hashes are Spark's from pst_order_begin on: those under which a table keeps its keys are
 *      replaced in the entries.
 */
#ifndef PST_SEALED_ORDER_H
#define PST_SEALED_ORDER_H

#include "base/hash.h"
#include "base/xxh64.h"
#include "snapshot/key_words.h"
#include "snapshot/sealed.h"

enum {
    PST_AT_BITS = 40, /* of an item: the word at which its entry begins */
    PST_PLANS = 16
};

/* What an entry's info word and masks say: where its cells are, and where it ends. */
typedef struct pst_plan {
    uint64_t info;
    uint64_t changed;
    uint64_t present;
    uint32_t words;
    uint32_t first_bytes; /* the words of its first and its last {offset, size}; 0: none */
    uint32_t last_bytes;
    pst_rows rows;
} pst_plan;

typedef struct pst_order {
    const pst_sealed *s;
    pst_charge charge;
    uint64_t *words; /* the sealed epoch's */
    uint32_t info_at;
    int of_elements; /* the last key column tells the elements of a row apart */
    pst_key_words key_words;
    int group_bits;
    int bucket_bits;
    size_t *counts; /* of the buckets' items */
    size_t *ends;   /* of the buckets of the part at hand, in `items` */
    size_t part;    /* items that are sorted at a time, unless one bucket has more */
    size_t bucket;  /* the first one of the next part */
    size_t n_items;
    uint64_t *items; /* of the part at hand, sorted */
    uint64_t *room;  /* for as many as the largest bucket has */
    pst_plan plans[PST_PLANS];
} pst_order;

/* Takes the epoch's buffers apart; `budget` is charged. Call pst_order_end in any case.
 * PST_TOO_LARGE, PST_NO_MEMORY, PST_LIMIT. */
pst_status pst_order_begin(pst_order *x, const pst_sealed *s, pst_budget *budget);
/* Makes x->items the next part; 0 after the last one. */
int pst_order_next(pst_order *x);
void pst_order_end(pst_order *x);

static inline uint64_t *pst_order_entry(const pst_order *x, uint64_t item) {
    return x->words + (item & ((UINT64_C(1) << PST_AT_BITS) - 1));
}

void pst_order_make_plan(const pst_sealed *s, uint32_t info_at, const uint64_t *w, pst_plan *p);

static inline const pst_plan *pst_order_plan(pst_order *x, const uint64_t *w) {
    uint64_t info = w[x->info_at], mixed = info;
    if (x->s->wide)
        mixed ^= w[x->info_at + 1] + w[x->info_at + 2] * 3;
    pst_plan *p = &x->plans[(mixed * PST_XXH_P1) >> 60];
    if (p->info != info ||
        (x->s->wide && (p->changed != w[x->info_at + 1] || p->present != w[x->info_at + 2])))
        pst_order_make_plan(x->s, x->info_at, w, p);
    return p;
}

static inline uint64_t pst_order_hash(const pst_order *x, const uint64_t *w) {
    if (x->s->key_kind != PST_KEY_WORD)
        return w[0];
    if (w[x->info_at] & PST_INFO_NULL)
        return PST_HASH_SEED;
    return pst_hash_word(x->s->schema->keys[0].type, w[0], PST_HASH_SEED);
}

static inline pst_bytes pst_order_key(const pst_sealed *s, const uint64_t *w) {
    return (pst_bytes){s->bytes.data + w[1], (uint32_t)w[2]};
}

/* The columns of a key, if they are words. */
static inline int pst_order_words(const pst_order *x, const uint64_t *w, uint64_t *words) {
    return x->key_words.columns && pst_key_words_take(&x->key_words, pst_order_key(x->s, w), words);
}

/* Decodes the key of an entry. */
static inline pst_status pst_order_decode(const pst_order *x, const uint64_t *w, pst_record *r) {
    const pst_sealed *s = x->s;
    pst_bytes bytes = {NULL, 0};
    if (s->key_kind == PST_KEY_BYTES)
        bytes = pst_order_key(s, w);
    return pst_key_decode(s->schema, w[0], bytes, (w[x->info_at] & PST_INFO_NULL) != 0, r->key,
                          &r->key_nulls);
}

PST_PREFETCH void pst_order_bring_entry(const pst_order *x, size_t i) {
    const uint64_t *w = pst_order_entry(x, x->items[i]);
    __builtin_prefetch(w, 0, 2);
    __builtin_prefetch(w + x->info_at + 2, 0, 2);
}

/* Prefetches the bytes of an entry that is in cache. */
PST_PREFETCH void pst_order_bring_bytes(pst_order *x, size_t i) {
    const uint64_t *w = pst_order_entry(x, x->items[i]);
    const pst_plan *p = pst_order_plan(x, w);
    if (p->first_bytes) {
        __builtin_prefetch(x->s->bytes.data + w[p->first_bytes], 0, 2);
        __builtin_prefetch(x->s->bytes.data + w[p->last_bytes] + w[p->last_bytes + 1], 0, 2);
    }
}

#endif
