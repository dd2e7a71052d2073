#include "stack/blocks.h"

#include <pthread.h>

#include "base/budget.h"
#include "base/mem.h"

enum {
    USUAL_BYTES = 4096, /* of a block, by which the table is sized */
    LEAST_BUCKETS = 64,
    MOST_BUCKETS = 1 << 20,
    PART = 4, /* a larger part than that of all no single block takes */
    MANY = 2  /* nor those that are wanted together than that */
};

struct pst_kept_block {
    pst_block_name name;
    pst_kept_block *next; /* of its bucket */
    pst_kept_block *newer;
    pst_kept_block *older;
    int32_t references; /* of those who hold it, and of the table */
    int32_t kept;       /* the table has it */
    _Alignas(16) uint8_t bytes[];
};

struct pst_blocks {
    pthread_mutex_t lock;
    int32_t references;
    pst_budget *budget;
    uint64_t most;
    uint64_t own; /* bytes of this and its table */
    uint64_t mask;
    pst_kept_block **buckets;
    /* Under the lock, as are the links of blocks. */
    pst_kept_block *newest;
    pst_kept_block *oldest;
    pst_blocks_stats stats;
};

static uint64_t size_of(uint64_t raw) {
    return sizeof(pst_kept_block) + raw;
}

pst_status pst_blocks_create(uint64_t most_bytes, pst_budget *budget, pst_blocks **blocks) {
    uint64_t buckets = LEAST_BUCKETS;
    while (buckets < MOST_BUCKETS && buckets * USUAL_BYTES < most_bytes)
        buckets *= 2;
    uint64_t own = sizeof(pst_blocks) + buckets * sizeof(pst_kept_block *);
    pst_status s = pst_budget_take(budget, PST_PRIVATE, own, PST_RELIEF);
    if (s)
        return s;
    pst_blocks *b = pst_calloc(1, sizeof *b);
    pst_kept_block **table = pst_calloc(buckets, sizeof(pst_kept_block *));
    if (!b || !table) {
        pst_free((void *)table);
        pst_free(b);
        pst_budget_drop(budget, own);
        return PST_NO_MEMORY;
    }
    b->references = 1;
    b->budget = pst_budget_retain(budget);
    b->most = most_bytes;
    b->own = own;
    b->mask = buckets - 1;
    b->buckets = table;
    pthread_mutex_init(&b->lock, NULL);
    *blocks = b;
    return PST_OK;
}

pst_blocks *pst_blocks_retain(pst_blocks *b) {
    __atomic_add_fetch(&b->references, 1, __ATOMIC_RELAXED);
    return b;
}

static pst_kept_block **bucket_of(pst_blocks *b, const pst_block_name *name) {
    return &b->buckets[(name->checksum ^ name->seed >> 32) & b->mask];
}

static int is_named(const pst_kept_block *k, const pst_block_name *name) {
    return k->name.checksum == name->checksum && k->name.seed == name->seed &&
           k->name.size == name->size;
}

/* ---- those that are kept: REQUIRES the lock ---------------------------------------------------- */

static void unlink_block(pst_blocks *b, pst_kept_block *k) {
    *(k->newer ? &k->newer->older : &b->newest) = k->older;
    *(k->older ? &k->older->newer : &b->oldest) = k->newer;
}

static void link_newest(pst_blocks *b, pst_kept_block *k) {
    k->newer = NULL;
    k->older = b->newest;
    *(b->newest ? &b->newest->newer : &b->oldest) = k;
    b->newest = k;
}

static pst_kept_block *find(pst_blocks *b, const pst_block_name *name) {
    pst_kept_block *k = *bucket_of(b, name);
    while (k && !is_named(k, name))
        k = k->next;
    return k;
}

/* Takes the oldest one out of the table, whose reference is the caller's then. */
static pst_kept_block *take_oldest(pst_blocks *b) {
    pst_kept_block *k = b->oldest, **at;
    if (!k)
        return NULL;
    unlink_block(b, k);
    for (at = bucket_of(b, &k->name); *at != k;)
        at = &(*at)->next;
    *at = k->next;
    k->kept = 0;
    b->stats.bytes -= size_of(k->name.size);
    b->stats.blocks--;
    b->stats.left++;
    return k;
}

/* ------------------------------------------------------------------------------------------------ */

static int drop_oldest(pst_blocks *b) {
    pthread_mutex_lock(&b->lock);
    pst_kept_block *k = take_oldest(b);
    pthread_mutex_unlock(&b->lock);
    pst_blocks_drop(b, k);
    return k != NULL;
}

void pst_blocks_release(pst_blocks *b) {
    if (!b || __atomic_sub_fetch(&b->references, 1, __ATOMIC_ACQ_REL))
        return;
    while (drop_oldest(b))
        continue;
    pthread_mutex_destroy(&b->lock);
    pst_free((void *)b->buckets);
    pst_budget_drop(b->budget, b->own);
    pst_budget_release(b->budget);
    pst_free(b);
}

pst_kept_block *pst_blocks_take(pst_blocks *b, const pst_block_name *name) {
    pthread_mutex_lock(&b->lock);
    pst_kept_block *k = find(b, name);
    b->stats.asked++;
    if (k) {
        b->stats.found++;
        __atomic_add_fetch(&k->references, 1, __ATOMIC_RELAXED);
        if (k != b->newest) {
            unlink_block(b, k);
            link_newest(b, k);
        }
    }
    pthread_mutex_unlock(&b->lock);
    return k;
}

pst_status pst_blocks_make(pst_blocks *b, const pst_block_name *name, pst_kept_block **made) {
    uint64_t size = size_of(name->size);
    pst_status s;
    while ((s = pst_budget_take(b->budget, PST_PRIVATE, size, PST_RELIEF)) == PST_LIMIT)
        if (!drop_oldest(b))
            break;
    if (s)
        return s;
    pst_kept_block *k = pst_malloc(size);
    if (!k) {
        pst_budget_drop(b->budget, size);
        return PST_NO_MEMORY;
    }
    k->name = *name;
    k->next = k->newer = k->older = NULL;
    k->references = 1;
    k->kept = 0;
    *made = k;
    return PST_OK;
}

void pst_blocks_keep(pst_blocks *b, pst_kept_block *k, uint64_t wanted) {
    uint64_t size = size_of(k->name.size);
    pst_kept_block *left = NULL; /* as a list, by `newer` */
    if (size > b->most / PART || wanted > b->most / MANY / size)
        return;
    pthread_mutex_lock(&b->lock);
    if (!k->kept && !find(b, &k->name)) {
        while (b->stats.bytes + size > b->most) {
            pst_kept_block *old = take_oldest(b);
            old->newer = left;
            left = old;
        }
        pst_kept_block **bucket = bucket_of(b, &k->name);
        k->next = *bucket;
        *bucket = k;
        k->kept = 1;
        link_newest(b, k);
        __atomic_add_fetch(&k->references, 1, __ATOMIC_RELAXED);
        b->stats.bytes += size;
        b->stats.blocks++;
    }
    pthread_mutex_unlock(&b->lock);
    while (left) {
        pst_kept_block *next = left->newer;
        pst_blocks_drop(b, left);
        left = next;
    }
}

void pst_blocks_drop(pst_blocks *b, pst_kept_block *k) {
    if (!k || __atomic_sub_fetch(&k->references, 1, __ATOMIC_ACQ_REL))
        return;
    pst_budget_drop(b->budget, size_of(k->name.size));
    pst_free(k);
}

uint8_t *pst_block_bytes(pst_kept_block *k) {
    return k->bytes;
}

void pst_blocks_get_stats(pst_blocks *b, pst_blocks_stats *stats) {
    pthread_mutex_lock(&b->lock);
    *stats = b->stats;
    pthread_mutex_unlock(&b->lock);
}
