/* batch_first.c: which keys of a batch are equal. */
#include <string.h>

#include "access/batch.h"
#include "base/mem.h"
#include "base/scratch.h"
#include "key/siphash.h"
#include "table/index.h"

enum { AHEAD = 16, LEAST_BITS = 4, MOST_TIES = 8 };

/* A place of the table below: half of the key's hash, and the row after its first one; 0 for
 * none. */
typedef uint64_t place;

/* Homes are mixed with the table's salt, and keys that tie too often are hashed under its secret:
 * whoever chooses the keys cannot make a batch's rows crowd. */
typedef struct places {
    place *at;
    uint64_t mask;
    int shift;
    int tied; /* so many keys have one public hash that each is hashed again */
    pst_salt salt;
} places;

static inline uint64_t hash_of(const places *p, const pst_batch *b, int64_t i) {
    return p->tied ? pst_siphash(b->bytes[i].data, b->bytes[i].size, b->t->h->salt + 3)
                   : b->hash[i];
}

static inline uint64_t home(const places *p, uint64_t hash) {
    return pst_salted_tag(p->salt, hash) >> p->shift;
}

static inline int same_key(const pst_batch *b, int64_t i, int64_t k) {
    if (b->hash[i] != b->hash[k] || (b->nulls && b->nulls[i] != b->nulls[k]))
        return 0;
    if (b->words)
        return b->words[i] == b->words[k];
    pst_bytes x = b->bytes[i], y = b->bytes[k];
    return x.size == y.size && (x.size == 0 || memcmp(x.data, y.data, x.size) == 0);
}

/* -1: too many other keys have its hash. */
static int64_t first_of(const pst_batch *b, places *p, int64_t i) {
    uint64_t hash = hash_of(p, b, i), at = home(p, hash);
    uint32_t tag = (uint32_t)(hash >> 32);
    int ties = p->tied || !b->bytes ? -INT32_MAX : 0;
    for (;; at = (at + 1) & p->mask) {
        place found = p->at[at];
        if (!found) {
            p->at[at] = (uint64_t)tag << 32 | (uint64_t)(i + 1);
            return i;
        }
        int64_t k = (int64_t)(found & UINT32_MAX) - 1;
        if ((uint32_t)(found >> 32) != tag)
            continue;
        if (same_key(b, i, k))
            return k;
        if (b->hash[i] == b->hash[k] && ++ties > MOST_TIES)
            return -1;
    }
}

static void find_firsts(const pst_batch *b, places *p, int32_t *first) {
    memset(p->at, 0, (size_t)(p->mask + 1) * sizeof *p->at);
    for (int64_t i = 0; i < b->length; i++) {
        if (!p->tied && i + AHEAD < b->length)
            __builtin_prefetch(&p->at[home(p, b->hash[i + AHEAD])], 1);
        int64_t k = first_of(b, p, i);
        if (k < 0) {
            p->tied = 1;
            find_firsts(b, p, first);
            return;
        }
        first[i] = (int32_t)k;
    }
}

pst_status pst_batch_first(pst_batch *b, int32_t *first) {
    pst_status s = pst_batch_usable(b);
    if (s)
        return s;
    if (b->length > INT32_MAX)
        return PST_TOO_LARGE;
    places p = {.mask = (1 << LEAST_BITS) - 1, .shift = 32 - LEAST_BITS, .salt = pst_salt_of(b->t)};
    while (p.mask + 1 < 2 * (uint64_t)b->length) {
        p.mask = 2 * p.mask + 1;
        p.shift--;
    }
    size_t size = (size_t)(p.mask + 1) * sizeof *p.at;
    pst_charge charge = {b->t->budget, 0, PST_SMALL_BUFFER};
    s = pst_charge_raise(&charge, size);
    if (s) {
        b->t->arena.refused = 0;
        return s;
    }
    p.at = pst_scratch_take(size);
    if (p.at) {
        find_firsts(b, &p, first);
        pst_scratch_drop(p.at);
    }
    pst_charge_drop(&charge);
    return p.at ? PST_OK : PST_NO_MEMORY;
}
