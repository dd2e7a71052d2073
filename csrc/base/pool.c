#include "base/pool.h"

#include <pthread.h>

#include "base/mem.h"

enum { POOL_BUFFERS = 3 };

/* Bytes of a buffer that is worth keeping. */
#define POOL_KEEPS ((size_t)64 << 20)

struct pst_pool {
    pthread_mutex_t lock;
    pst_budget *budget;
    int references;
    int n;
    struct {
        pst_words entries;
        pst_key_buffer bytes;
        uint64_t charged;
    } spare[POOL_BUFFERS];
};

pst_pool *pst_pool_create(pst_budget *budget) {
    pst_pool *p = pst_calloc(1, sizeof *p);
    if (!p)
        return NULL;
    if (pthread_mutex_init(&p->lock, NULL)) {
        pst_free(p);
        return NULL;
    }
    p->references = 1;
    p->budget = pst_budget_retain(budget);
    return p;
}

static void pool_drop(pst_pool *p) {
    pthread_mutex_lock(&p->lock);
    int left = --p->references;
    pthread_mutex_unlock(&p->lock);
    if (left)
        return;
    for (int i = 0; i < p->n; i++) {
        pst_free(p->spare[i].entries.words);
        pst_free(p->spare[i].bytes.data);
        pst_budget_drop(p->budget, p->spare[i].charged);
    }
    pst_budget_release(p->budget);
    pthread_mutex_destroy(&p->lock);
    pst_free(p);
}

void pst_pool_release(pst_pool *p) {
    if (p)
        pool_drop(p);
}

pst_status pst_pool_take(pst_pool *p, size_t words, pst_words *entries, pst_key_buffer *bytes,
                         pst_charge *charge) {
    pthread_mutex_lock(&p->lock);
    p->references++;
    *charge = (pst_charge){p->budget, 0, PST_SMALL_BUFFER};
    if (p->n) {
        *entries = p->spare[--p->n].entries;
        *bytes = p->spare[p->n].bytes;
        bytes->size = 0;
        charge->bytes = p->spare[p->n].charged;
    }
    pthread_mutex_unlock(&p->lock);
    if (entries->capacity >= words)
        return PST_OK;
    /* Of the new ones only what is written to will be there. */
    pst_free(entries->words);
    entries->words = pst_malloc(words * sizeof *entries->words);
    entries->capacity = entries->words ? words : 0;
    return entries->words ? PST_OK : PST_NO_MEMORY;
}

/* One huge epoch must not pin its buffers for ever. */
static int worth_keeping(size_t capacity, size_t used) {
    return capacity <= ((size_t)1 << 23) || (capacity <= POOL_KEEPS && used * 8 >= capacity);
}

void pst_pool_give(pst_pool *p, size_t used, pst_words *entries, pst_key_buffer *bytes,
                   pst_charge *charge) {
    int keep = worth_keeping(entries->capacity * 8, used * 8) &&
               worth_keeping(bytes->capacity, bytes->size);
    pthread_mutex_lock(&p->lock);
    if (keep && p->n < POOL_BUFFERS) {
        p->spare[p->n].entries = *entries;
        p->spare[p->n].bytes = *bytes;
        p->spare[p->n++].charged = charge->bytes;
        entries->words = NULL;
        bytes->data = NULL;
        charge->bytes = 0;
    }
    pthread_mutex_unlock(&p->lock);
    pst_charge_drop(charge);
    pst_free(entries->words);
    pst_free(bytes->data);
    pool_drop(p);
}
