/* wants.h: keys that a table lacks, in the order of files and each once.
 *
 * Purpose: whoever looks for many keys in sorted files goes along them once, and asks for a key that
 * comes a hundred times in a batch only once.
 *
 * Thread safety: plain memory of one thread.
 *
 * Invariants
 *  FW1. Wants ascend by (key group, hash of files). Of equal keys the first is asked for; the others
 *       follow it and say so.
 *
 * Complexity: O(keys), and O(k log k) for k keys of one hash.
 */
#ifndef PST_WANTS_H
#define PST_WANTS_H

#include "base/budget.h"
#include "key/key.h"
#include "memory/handle.h"

/* Keys in the form, and under the hash, in which the table keeps them. */
typedef struct pst_keys {
    void *ctx;
    void (*get)(void *ctx, int64_t i, pst_key *key);
    uint32_t *slots; /* of each key: its row, or PST_NONE */
    int64_t n;
    int reading; /* a key without a row stays without one */
} pst_keys;

typedef struct pst_want {
    uint64_t hash; /* of files (K3) */
    uint64_t own;  /* 1 where it is the same key as the one before */
    uint64_t word; /* of a key that is one, so that few have to look for theirs */
    uint32_t at;   /* which of the keys */
    uint32_t null : 1;
    uint32_t is_long : 1; /* files have much of it: whoever fetches looks for it by itself */
    uint32_t key_group : 30;
} pst_want;

typedef struct pst_wants {
    pst_want *wants;
    uint32_t n;
    uint32_t unique;
    pst_charge charge;
} pst_wants;

/* A want's key. */
static inline void pst_want_key(const pst_table *t, const pst_keys *keys, const pst_want *w,
                                pst_key *key) {
    if (t->lay.key_kind == PST_KEY_WORD)
        *key = (pst_key){w->hash, w->word, {NULL, 0}, (uint8_t)w->null};
    else
        keys->get(keys->ctx, w->at, key);
}

/* About how many different keys have no slot; at least nine tenths of that is said, and hardly ever
 * more. *missing: how many have none. A pass over the keys, in their own order. PST_NO_MEMORY. */
pst_status pst_wants_estimate(const pst_keys *keys, uint64_t *missing, uint64_t *different);

/* Those of the keys whose slot is PST_NONE. PST_TOO_LARGE: more than 2^32 - 1 keys; PST_NO_MEMORY,
 * PST_LIMIT. */
pst_status pst_wants_make(const pst_table *t, const pst_keys *keys, pst_wants *w);
void pst_wants_free(pst_wants *w);

#endif
