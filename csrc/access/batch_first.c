/* batch_first.c: which keys of a batch are equal. */
#include <string.h>

#include "access/batch.h"
#include "base/mem.h"
#include "base/scratch.h"

enum { AHEAD = 16 };

/* A place of the table below: the upper half of the key's hash, and the row after its first one; 0
 * for none. */
typedef uint64_t place;

typedef struct places {
    place *at;
    uint64_t mask;
    int shift;
} places;

static inline uint64_t home(const places *p, uint64_t hash) {
    return (hash * UINT64_C(0x9E3779B97F4A7C15)) >> p->shift;
}

static inline int same_key(const pst_batch *b, int64_t i, int64_t k) {
    if (b->hash[i] != b->hash[k] || (b->nulls && b->nulls[i] != b->nulls[k]))
        return 0;
    if (b->words)
        return b->words[i] == b->words[k];
    pst_bytes x = b->bytes[i], y = b->bytes[k];
    return x.size == y.size && (x.size == 0 || memcmp(x.data, y.data, x.size) == 0);
}

static int64_t first_of(const pst_batch *b, places *p, int64_t i) {
    uint64_t hash = b->hash[i], at = home(p, hash);
    uint32_t tag = (uint32_t)(hash >> 32);
    for (;; at = (at + 1) & p->mask) {
        place found = p->at[at];
        if (!found) {
            p->at[at] = (uint64_t)tag << 32 | (uint64_t)(i + 1);
            return i;
        }
        int64_t k = (int64_t)(found & UINT32_MAX) - 1;
        if ((uint32_t)(found >> 32) == tag && same_key(b, i, k))
            return k;
    }
}

pst_status pst_batch_first(pst_batch *b, int32_t *first) {
    pst_status s = pst_batch_usable(b);
    if (s)
        return s;
    if (b->length > INT32_MAX)
        return PST_TOO_LARGE;
    places p = {NULL, AHEAD - 1, 60};
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
        memset(p.at, 0, size);
        for (int64_t i = 0; i < b->length; i++) {
            if (i + AHEAD < b->length)
                __builtin_prefetch(&p.at[home(&p, b->hash[i + AHEAD])], 1);
            first[i] = (int32_t)first_of(b, &p, i);
        }
        pst_scratch_drop(p.at);
    }
    pst_charge_drop(&charge);
    return p.at ? PST_OK : PST_NO_MEMORY;
}
