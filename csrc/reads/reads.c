#include "reads/reads.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "reads/read_threads.h"
#include "reads/uring.h"

enum {
    POOL_BYTES = 8 << 20,
    POOL_LEAST = 1 << 20,
    DEPTH = 128,
    DEPTH_MOST = 4096,
    THREADS = 32,
    THREADS_MOST = 1024,
    /* Slots for each read in flight, so that one slow read does not stop those after it. */
    SLOTS_PER_READ = 2,
    /* Reads that are queued before the kernel is told, as long as others are on their way. */
    QUEUED_MOST = 16
};

/* Of the page cache, before what was read is dropped. */
#define CACHED_MOST ((uint64_t)8 << 20)

/* The kernel reads no more in one call; the rest follows. */
#define CALL_MOST ((size_t)1 << 30)

typedef enum engine { UNDECIDED, URING, THREADED } engine;

typedef struct slot {
    pst_read read; /* first: a read is found by it */
    uint64_t tag;
    uint32_t skip;  /* into the first page */
    uint32_t pages; /* of the pool, with those left over at its end before these; 0: own memory */
    int busy;
} slot;

struct pst_reads {
    pthread_mutex_t turn; /* of whoever has entered */
    int32_t pid; /* whose it is; the complement of a process's while a thread of it makes it new */
    int32_t references;
    pst_reads_options options;
    pst_charge charge;
    engine kind;
    pst_uring uring;
    pst_read_threads *threads;
    /* Slots and the pool are rings: what was started first is free first. */
    slot *slots;
    uint32_t n_slots;
    uint32_t first;
    uint32_t used;
    uint8_t *pool;
    size_t pool_pages;
    size_t pool_at; /* where the next buffer begins */
    size_t pool_used;
    uint64_t own_bytes; /* of reads that have memory of their own */
    uint32_t in_flight;
    slot *alone; /* in flight by itself: not handed on before there is another one */
    pst_reads_stats stats;
    pst_read_costs costs;
};

static void make_turn(pst_reads *r) {
    pthread_mutexattr_t checks;
    pthread_mutexattr_init(&checks);
    pthread_mutexattr_settype(&checks, PTHREAD_MUTEX_ERRORCHECK);
    pthread_mutex_init(&r->turn, &checks);
    pthread_mutexattr_destroy(&checks);
}

pst_status pst_reads_create(const pst_reads_options *options, pst_reads **reads) {
    pst_reads_options o = options ? *options : (pst_reads_options){0};
    o.pool_bytes = o.pool_bytes ? o.pool_bytes : POOL_BYTES;
    o.depth = o.depth ? o.depth : DEPTH;
    o.threads = o.threads ? o.threads : THREADS;
    if (o.pool_bytes < POOL_LEAST || o.pool_bytes > UINT32_MAX || o.depth < 1 ||
        o.depth > DEPTH_MOST || o.threads < 1 || o.threads > THREADS_MOST)
        return PST_INVALID;
    pst_reads *r = pst_calloc(1, sizeof *r);
    if (!r)
        return PST_NO_MEMORY;
    r->options = o;
    r->charge.budget = pst_budget_retain(o.budget);
    r->references = 1;
    r->n_slots = (uint32_t)o.depth * SLOTS_PER_READ;
    r->pool_pages = o.pool_bytes / PST_READ_ALIGN;
    r->uring.fd = -1;
    r->pid = (int32_t)getpid();
    make_turn(r);
    *reads = r;
    return PST_OK;
}

pst_reads *pst_reads_retain(pst_reads *r) {
    if (r)
        __atomic_add_fetch(&r->references, 1, __ATOMIC_RELAXED);
    return r;
}

static void *map_memory(size_t size) {
    void *p = PST_ALLOC_REFUSED()
                  ? MAP_FAILED
                  : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    /* The kernel writes into it, so a child must not share its pages. */
    (void)madvise(p, size, MADV_DONTFORK);
    return p;
}

/* Frees what was made for reads; in a forked child also what it has no part in. */
static void take_down(pst_reads *r, int forked) {
    if (forked) {
        pst_read_threads_forget(r->threads);
        pst_uring_forget(&r->uring);
    } else {
        pst_read_threads_destroy(r->threads);
        pst_uring_close(&r->uring);
        if (r->pool)
            munmap(r->pool, r->options.pool_bytes);
    }
    slot *slots = r->slots;
    r->slots = NULL; /* first: another fork may come in between, and its child begins here again */
    pst_free(slots);
    r->threads = NULL;
    r->pool = NULL;
    r->kind = UNDECIDED;
    r->first = r->used = r->in_flight = 0;
    r->alone = NULL;
    r->pool_at = r->pool_used = 0;
    pst_charge_drop(&r->charge);
    pst_budget_drop(r->charge.budget, r->own_bytes); /* only of a parent's reads there are some */
    r->own_bytes = 0;
}

void pst_reads_release(pst_reads *r) {
    if (!r || __atomic_sub_fetch(&r->references, 1, __ATOMIC_ACQ_REL))
        return;
    int forked = r->pid != (int32_t)getpid();
    take_down(r, forked);
    if (!forked)
        pthread_mutex_destroy(&r->turn);
    pst_budget_release(r->charge.budget);
    pst_free(r);
}

/* The first thread of a child that comes by makes everything new; others wait for it. Where the child
 * was forked while a thread of its parent did that, nobody in it will end it: so it begins again. */
static void follow_fork(pst_reads *r) {
    int32_t own = (int32_t)getpid(), seen = __atomic_load_n(&r->pid, __ATOMIC_ACQUIRE);
    while (seen != own) {
        if (seen != ~own && __atomic_compare_exchange_n(&r->pid, &seen, ~own, 0, __ATOMIC_ACQUIRE,
                                                        __ATOMIC_ACQUIRE)) {
            take_down(r, 1);
            make_turn(r);
            __atomic_store_n(&r->pid, own, __ATOMIC_RELEASE);
        } else {
            sched_yield();
        }
        seen = __atomic_load_n(&r->pid, __ATOMIC_ACQUIRE);
    }
}

#ifdef PST_TEST_READS
int32_t *pst_reads_pid(pst_reads *r) {
    return &r->pid;
}
#endif

static pst_status set_up(pst_reads *r) {
    int sys_errno;
    if (r->pool)
        return PST_OK;
    pst_status s =
        pst_charge_raise(&r->charge, r->options.pool_bytes + r->n_slots * sizeof *r->slots);
    if (s)
        return s;
    r->slots = r->slots ? r->slots : pst_calloc(r->n_slots, sizeof *r->slots);
    if (r->slots && r->kind == UNDECIDED) {
        int ring = !r->options.no_uring &&
                   !pst_uring_open(&r->uring, (uint32_t)r->options.depth, &sys_errno);
        if (ring || !pst_read_threads_create(r->options.threads, &r->threads))
            r->kind = ring ? URING : THREADED;
    }
    r->pool = r->kind == UNDECIDED ? NULL : map_memory(r->options.pool_bytes);
    r->stats.uring = r->kind == URING;
    return r->pool ? PST_OK : PST_NO_MEMORY;
}

static void *pause_thread(const pst_reads *r) {
    return r->options.pause ? r->options.pause() : NULL;
}

static void resume_thread(const pst_reads *r, void *paused) {
    if (r->options.resume)
        r->options.resume(paused);
}

pst_status pst_reads_enter(pst_reads *r) {
    follow_fork(r);
    void *paused = pause_thread(r);
    int failed = pthread_mutex_lock(&r->turn);
    resume_thread(r, paused);
    if (failed)
        return PST_INVALID;
    pst_status s = set_up(r);
    if (s)
        pthread_mutex_unlock(&r->turn);
    return s;
}

void pst_reads_leave(pst_reads *r) {
    while (r->in_flight) {
        pst_arrival late;
        pst_reads_next(r, &late);
        pst_reads_give(r, &late);
    }
    for (uint32_t i = 0; r->used && i < r->n_slots; i++)
        if (r->slots[i].busy)
            pst_reads_give(r, &(pst_arrival){.slot = i});
    pthread_mutex_unlock(&r->turn);
}

void pst_reads_get_stats(const pst_reads *r, pst_reads_stats *stats) {
    *stats = r->stats;
}

int pst_reads_by_threads(const pst_reads *r) {
    return r->options.no_uring;
}

void pst_reads_make_direct(const pst_reads *r, pst_read_file *file) {
    if (r->options.no_direct)
        pst_read_file_random(file);
    else
        pst_read_file_direct(file);
}

/* ---- buffers ----------------------------------------------------------------------------------- */

/* Takes the next slot, and so many pages that lie side by side, from the pool. */
static slot *take_slot(pst_reads *r, size_t pages) {
    if (r->used == r->n_slots)
        return NULL;
    if (!r->used)
        r->pool_at = 0; /* few reads at a time keep to few pages */
    size_t left = r->pool_pages - r->pool_at;
    int around = pages > left;
    size_t skipped = around ? left : 0;
    if (pages + skipped > r->pool_pages - r->pool_used)
        return NULL;
    slot *s = &r->slots[(r->first + r->used) % r->n_slots];
    size_t at = around ? 0 : r->pool_at;
    s->read.data = r->pool + at * PST_READ_ALIGN;
    s->pages = pages ? (uint32_t)(pages + skipped) : 0;
    r->pool_at = pages ? at + pages : r->pool_at;
    r->pool_used += s->pages;
    r->used++;
    s->busy = 1;
    return s;
}

/* As much as the pool has is asked for at a time, or for one read. */
static pst_status own_memory(pst_reads *r, slot *s, size_t size) {
    if (r->own_bytes && r->own_bytes + size > r->options.pool_bytes)
        return PST_BUSY;
    pst_status status = pst_budget_take(r->charge.budget, PST_PRIVATE, size, PST_RELIEF);
    s->read.data = status ? NULL : map_memory(size);
    if (!status && !s->read.data) {
        pst_budget_drop(r->charge.budget, size);
        status = PST_NO_MEMORY;
    }
    r->own_bytes += status ? 0 : size;
    return status == PST_LIMIT && r->own_bytes ? PST_BUSY : status;
}

static void free_slots(pst_reads *r) {
    while (r->used && !r->slots[r->first].busy) {
        r->pool_used -= r->slots[r->first].pages;
        r->first = (r->first + 1) % r->n_slots;
        r->used--;
    }
}

void pst_reads_give(pst_reads *r, const pst_arrival *arrival) {
    slot *s = &r->slots[arrival->slot];
    if (!s->pages && s->read.data) {
        munmap(s->read.data, s->read.size);
        pst_budget_drop(r->charge.budget, s->read.size);
        r->own_bytes -= s->read.size;
    }
    s->busy = 0;
    free_slots(r);
}

/* ---- reads ------------------------------------------------------------------------------------- */

static void submit(pst_reads *r, slot *s) {
    pst_read *read = &s->read;
    if (r->kind == URING) {
        size_t size = read->size < CALL_MOST ? read->size : CALL_MOST;
        pst_uring_queue(&r->uring, read->file->fd, read->offset, read->data, (uint32_t)size, s);
        /* A refusal is seen by whoever waits. */
        if (r->uring.queued >= QUEUED_MOST)
            (void)pst_uring_enter(&r->uring, 0);
    } else {
        pst_read_threads_queue(r->threads, read);
    }
}

pst_status pst_reads_start(pst_reads *r, pst_read_file *file, uint64_t offset, size_t size,
                           uint64_t tag) {
    uint64_t from = offset & ~(uint64_t)(PST_READ_ALIGN - 1);
    size_t skip = (size_t)(offset - from);
    size_t pages = (skip + size + PST_READ_ALIGN - 1) / PST_READ_ALIGN;
    int large = pages > r->pool_pages / 8;
    slot *s = r->in_flight < (uint32_t)r->options.depth ? take_slot(r, large ? 0 : pages) : NULL;
    if (!s)
        return PST_BUSY;
    s->read =
        (pst_read){file, from, s->read.data, pages * PST_READ_ALIGN, skip + size, 0, 0, 0, 0, 0};
    s->tag = tag;
    s->skip = (uint32_t)skip;
    pst_status status = large ? own_memory(r, s, s->read.size) : PST_OK;
    if (status) {
        r->used--;
        s->busy = 0;
        return status;
    }
    r->in_flight++;
    r->stats.reads++;
    r->stats.bytes += s->read.size;
    if (r->in_flight > r->stats.flight_most)
        r->stats.flight_most = r->in_flight;
    if (r->in_flight == 1) {
        r->alone = s;
        return PST_OK;
    }
    if (r->alone)
        submit(r, r->alone);
    r->alone = NULL;
    submit(r, s);
    return PST_OK;
}

pst_read_costs *pst_reads_costs(pst_reads *r) {
    return &r->costs;
}

int pst_reads_pending(const pst_reads *r) {
    return r->in_flight > 0;
}

/* Nobody reads a single one faster than this thread does. */
static slot *read_alone(pst_reads *r) {
    slot *s = r->alone;
    r->alone = NULL;
    pst_read_run(&s->read);
    return s;
}

static slot *next_of_uring(pst_reads *r) {
    for (;;) {
        int32_t result;
        slot *s = pst_uring_next(&r->uring, &result);
        if (s) {
            if (!pst_read_take(&s->read, result)) {
                r->stats.retried++;
                pst_read_run(&s->read);
            }
            return s;
        }
        /* The kernel may refuse to take more for now, or for good: then this thread reads. */
        if (pst_uring_enter(&r->uring, r->in_flight > r->uring.queued)) {
            s = pst_uring_unqueue(&r->uring);
            if (s) {
                pst_read_run(&s->read);
                return s;
            }
            sched_yield();
        }
    }
}

static slot *next_of_threads(pst_reads *r) {
    void *paused = pause_thread(r);
    pst_read *read = pst_read_threads_next(r->threads);
    resume_thread(r, paused);
    return (slot *)(void *)read;
}

void pst_reads_next(pst_reads *r, pst_arrival *arrival) {
    slot *s;
    if (r->alone)
        s = read_alone(r);
    else if (r->kind == URING)
        s = next_of_uring(r);
    else
        s = next_of_threads(r);
    pst_read_file *file = s->read.file;
    r->in_flight--;
    if (!r->options.no_direct) {
        file->cached += s->read.size;
        pst_read_file_drop(file, CACHED_MOST);
    }
    *arrival = (pst_arrival){s->tag, s->read.data + s->skip, s->read.error,
                             (uint32_t)(s - r->slots), s->read.mark};
}
