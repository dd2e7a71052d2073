#include "base/pool.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"

enum { POOL_BUFFERS = 3 };

/* Bytes of a buffer that is kept whatever was used of it, and of one that is kept if it was used;
 * tests have less. */
#ifndef PST_POOL_SMALL
#define PST_POOL_SMALL ((size_t)8 << 20)
#define PST_POOL_KEEPS ((size_t)64 << 20)
#endif

struct pst_pool {
    pthread_mutex_t lock;
    pst_budget *budget;
    int references;
    int n;
    struct {
        pst_words entries;
        pst_buffer bytes;
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

pst_status pst_pool_take(pst_pool *p, size_t words, pst_words *entries, pst_buffer *bytes,
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
    /* A table that changed a little more than before may do so again; of the new ones only what is
     * written to will be there. */
    if (entries->capacity)
        words += words / 8;
    pst_free(entries->words);
    entries->words = pst_malloc(words * sizeof *entries->words);
    entries->capacity = entries->words ? words : 0;
    return entries->words ? PST_OK : PST_NO_MEMORY;
}

/* What becomes of a buffer. */
typedef enum fate { FREED, OFFERED, KEPT } fate;

/* One huge epoch must not pin its buffers for ever. */
static fate fate_of(size_t capacity, size_t used) {
    if (capacity <= PST_POOL_SMALL)
        return KEPT;
    if (used * 8 < capacity)
        return FREED;
    return capacity <= PST_POOL_KEEPS ? KEPT : OFFERED;
}

/* Lets the kernel take the memory where it is short of it, and have it again without a fault where
 * it was not. Returns whether it does. */
static int offer(void *data, size_t size) {
#ifdef MADV_FREE
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)data + page - 1) & ~(page - 1);
    uintptr_t to = ((uintptr_t)data + size) & ~(page - 1);
    return to <= from || !madvise((void *)from, to - from, MADV_FREE);
#else
    (void)data;
    (void)size;
    return 0;
#endif
}

void pst_pool_give(pst_pool *p, size_t used, pst_words *entries, pst_buffer *bytes,
                   pst_charge *charge) {
    fate one = fate_of(entries->capacity * 8, used * 8);
    fate other = fate_of(bytes->capacity, bytes->size), both = one < other ? one : other;
    if (both == OFFERED) {
        if (!offer(entries->words, entries->capacity * 8) || !offer(bytes->data, bytes->capacity))
            both = FREED;
        pst_charge_drop(charge);
    }
    pthread_mutex_lock(&p->lock);
    if (both != FREED && p->n < POOL_BUFFERS) {
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
