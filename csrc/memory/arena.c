#include "memory/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "memory/size_class.h"
#include "memory/store.h"

#define PIECE ((uint64_t)16 << 20)
#define SMALL_STEP ((uint64_t)64 << 10)
#define LARGE_STEP ((uint64_t)2 << 20)

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1; unknown to older headers and kernels */
#endif

/* User addresses of common processors (47 bits), and what the spaces together take of a reserve. */
#define ADDRESSES ((uint64_t)1 << 47)
#define SPACES_PER_RESERVE 10

/* The bytes of the smallest row, and slots whose heat is a byte. */
enum { LEAST_ROW = 16, HEAT_SLOTS = 4 };

/* Bytes of addresses that the arenas of this process hold. */
static uint64_t reserved;

static uint64_t round_up(uint64_t n, uint64_t to) {
    return (n + to - 1) / to * to;
}

uint64_t pst_space_size(int space, uint64_t head_bytes, uint64_t reserve) {
    if (space == PST_SPACE_HEAD)
        return round_up(head_bytes, LARGE_STEP);
    uint64_t most = round_up((uint64_t)UINT32_MAX * PST_GRANULE, LARGE_STEP);
    if (space == PST_SPACE_SPANS) {
        uint64_t spans = (reserve < most ? reserve : most) / PST_SPAN_GRANULES / PST_GRANULE;
        return round_up(spans * sizeof(pst_span), LARGE_STEP);
    }
    if (space == PST_SPACE_HEAT)
        return round_up(reserve / LEAST_ROW / HEAT_SLOTS, LARGE_STEP);
    if (space < PST_SPACE_RING)
        return space == PST_SPACE_HEAP && reserve > most ? most : reserve;
    /* A ring can never hold more names than its space has blocks, and keeps a window's worth of
     * consumed ones; capacities are powers of two. */
    uint64_t unit = space == PST_SPACE_RING + PST_RING_SLOTS
                        ? 2 * PST_GRANULE
                        : pst_class_size((uint32_t)(space - PST_SPACE_RING));
    uint64_t names = reserve / unit + 1024, capacity = 1024;
    while (capacity < 2 * names)
        capacity *= 2;
    return round_up(capacity * sizeof(uint32_t), SMALL_STEP);
}

/* Gives a file its pages; 0 or an errno. After a signal the file system drops what it had reserved
 * for the call. Where signals come often a large piece may never succeed, but smaller ones do. */
static int allocate(int fd, uint64_t offset, uint64_t size) {
    uint64_t piece = size;
    while (size) {
        if (piece > size)
            piece = size;
        int err = posix_fallocate(fd, (off_t)offset, (off_t)piece);
        if (err == EINTR) {
            piece = round_up(piece / 2, 4096);
            continue;
        }
        if (err)
            return err;
        offset += piece;
        size -= piece;
    }
    return 0;
}

pst_status pst_space_status(int err) {
    return err == ENOSPC || err == EFBIG || err == EDQUOT || err == ENOMEM ? PST_NO_SPACE : PST_IO;
}

/* The whole heap is mapped from the start, without access, so that growing keeps one mapping that
 * the kernel can back with huge pages: random rows in 4 KB pages cost a TLB miss each. */
static pst_status map_piece(pst_arena *a, uint64_t offset, uint64_t size) {
    void *at = a->base + offset;
    int failed;
    if (a->fd < 0)
        failed = mprotect(at, size, PROT_READ | PROT_WRITE);
    else
        failed = mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, a->fd,
                      (off_t)offset) != at;
    if (!failed)
        return PST_OK;
    a->last_errno = errno;
    return PST_NO_MEMORY;
}

/* A space begins in small steps. What is touched before the rest of its huge page is committed lies
 * in small pages. Once the huge page is committed as a whole, the kernel is asked to collapse it;
 * where it cannot, access is only slower. */
static void collapse(const pst_arena *a, int space, uint64_t have) {
    uint64_t page = have / LARGE_STEP * LARGE_STEP;
    if (a->fd < 0 && space < PST_SPACE_RING && have > page && a->mapped[space] >= page + LARGE_STEP)
        (void)madvise(a->base + a->start[space] + page, LARGE_STEP, MADV_COLLAPSE);
}

uint64_t pst_arena_reserve(uint64_t want) {
    struct rlimit as;
    uint64_t all = ADDRESSES, share = 64, taken = __atomic_load_n(&reserved, __ATOMIC_RELAXED);
    if (getrlimit(RLIMIT_AS, &as) == 0 && as.rlim_cur != RLIM_INFINITY && as.rlim_cur < ADDRESSES) {
        all = (uint64_t)as.rlim_cur;
        share = 2;
    }
    uint64_t most = (all > taken ? all - taken : 0) / share / SPACES_PER_RESERVE;
    uint64_t granted = want < most ? want : most / LARGE_STEP * LARGE_STEP;
    return granted < PST_LEAST_RESERVE ? PST_LEAST_RESERVE : granted;
}

/* Reserves the range so that every space begins on a huge page. */
static pst_status reserve_range(pst_arena *a) {
    uint8_t *at = mmap(NULL, a->total + LARGE_STEP, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        a->last_errno = errno;
        return PST_ADDRESS_SPACE;
    }
    uint64_t skip = round_up((uintptr_t)at, LARGE_STEP) - (uintptr_t)at;
    if (skip)
        munmap(at, skip);
    munmap(at + skip + a->total, LARGE_STEP - skip);
    a->base = at + skip;
    __atomic_add_fetch(&reserved, a->total, __ATOMIC_RELAXED);
    /* A refusal is only slower. */
    if (a->fd < 0)
        (void)madvise(a->base, a->start[PST_SPACE_RING], MADV_HUGEPAGE);
    return PST_OK;
}

pst_status pst_arena_map(pst_arena *a, int fd, uint64_t head_bytes, uint64_t reserve,
                         uint64_t limit, int create) {
    memset(a, 0, sizeof *a);
    a->fd = fd;
    a->limit = limit;
    for (int s = 0; s < PST_SPACES; s++)
        a->start[s + 1] = a->start[s] + pst_space_size(s, head_bytes, reserve);
    a->total = a->start[PST_SPACES];
    pst_status s = reserve_range(a);
    if (s)
        return s;
    if (create && fd >= 0) {
        int err = allocate(fd, 0, head_bytes);
        if (err) {
            pst_arena_unmap(a);
            a->last_errno = err;
            return pst_space_status(err);
        }
    }
    s = map_piece(a, 0, head_bytes);
    if (s) {
        int err = a->last_errno;
        pst_arena_unmap(a);
        a->last_errno = err;
        return s;
    }
    a->mapped[PST_SPACE_HEAD] = head_bytes;
    if (create)
        pst_put64(&pst_arena_header(a)->committed[PST_SPACE_HEAD], head_bytes);
    a->committed_total = head_bytes;
    return PST_OK;
}

static pst_memory memory_of(const pst_arena *a) {
    return a->fd < 0 ? PST_PRIVATE : PST_SHARED;
}

/* Bytes that are the system's again. Those of files are counted. */
static void release(pst_arena *a, uint64_t bytes) {
    if (a->fd < 0)
        pst_budget_drop(a->budget, bytes);
}

void pst_arena_unmap(pst_arena *a) {
    if (a->base) {
        munmap(a->base, a->total);
        __atomic_sub_fetch(&reserved, a->total, __ATOMIC_RELAXED);
        release(a, a->committed_total);
    }
    if (!a->bound)
        pst_budget_free_tables(a->budget, -1);
    a->budget = NULL;
    a->base = NULL;
}

pst_status pst_arena_join(pst_arena *a, pst_budget *budget, int bound, int fresh) {
    if (!budget)
        return PST_OK;
    pst_status s = fresh ? pst_budget_take(budget, memory_of(a), a->committed_total,
                                           bound ? PST_GROWTH : PST_COUNTED)
                         : PST_OK;
    if (s)
        return s;
    a->budget = budget;
    a->bound = bound;
    if (!bound)
        pst_budget_free_tables(budget, 1);
    a->limit = bound ? UINT64_MAX : a->limit;
    return PST_OK;
}

static pst_status ask(pst_arena *a, int space, uint64_t bytes) {
    pst_need need = !a->clearing ? PST_GROWTH : space < PST_SPACE_RING ? PST_RELIEF : PST_LISTING;
    int may_pass = a->bound && need != PST_GROWTH;
    int fits = a->committed_total + bytes <= pst_limit_for(a->limit, need);
    a->refused = fits || may_pass ? 0 : bytes;
    if (a->refused)
        return PST_LIMIT;
    return pst_budget_take(a->budget, memory_of(a), bytes, a->bound ? need : PST_COUNTED);
}

int pst_arena_has_room(pst_arena *a, uint64_t bytes) {
    uint64_t refused = a->refused;
    pst_status s = ask(a, PST_SPACE_HEAP, bytes);
    a->refused = refused;
    /* Shared memory is counted from its files instead. */
    if (!s && a->fd < 0)
        pst_budget_drop(a->budget, bytes);
    return !s;
}

static pst_status commit_piece(pst_arena *a, int space, uint64_t at, uint64_t size) {
    uint64_t offset = a->start[space] + at;
    int err = a->fd < 0 ? 0 : allocate(a->fd, offset, size);
    if (err) {
        a->last_errno = err;
        return pst_space_status(err);
    }
    /* What was given back is mapped still. */
    return at + size > a->mapped[space] ? map_piece(a, offset, size) : PST_OK;
}

/* Near the limit steps are smaller, but not so small that there are many. */
static pst_status ask_less(pst_arena *a, int space, uint64_t have, uint64_t least, uint64_t *want) {
    pst_status s;
    while ((s = ask(a, space, *want - have)) == PST_LIMIT && *want > least)
        *want = least + (*want - least) / 4 / 4096 * 4096;
    return s;
}

/* What makes room passes the limit by little more than it needs: that is there for whatever makes room
 * until rows have left, and a large step of one space would take it from all others. */
pst_status pst_arena_commit(pst_arena *a, int space, uint64_t need) {
    pst_header *h = pst_arena_header(a);
    uint64_t have = h->committed[space];
    uint64_t most = a->start[space + 1] - a->start[space];
    if (need <= have)
        return PST_OK;
    if (need > most)
        return PST_TOO_LARGE;
#ifdef PST_GROW_BY_PAGES /* tests, to grow often */
    uint64_t step = 0, grain = 4096;
#else
    uint64_t step = have / 32, grain = have >= (LARGE_STEP << 2) ? LARGE_STEP : SMALL_STEP;
    if (space >= PST_SPACE_RING || space == PST_SPACE_SPANS)
        grain = 4096;
#endif
    if (step > PIECE)
        step = PIECE;
    uint64_t want = round_up(need > have + step ? need : have + step, grain);
    uint64_t least = round_up(need, 4096), tight = round_up(need + have / 32, 4096);
    if (want > most)
        want = most;
    int clearing = a->clearing;
    a->clearing = 0;
    pst_status s = ask_less(a, space, have, least, &want);
    a->clearing = clearing;
    if (s == PST_LIMIT && clearing) {
        want = tight < most ? tight : most;
        s = ask_less(a, space, have, least, &want);
        a->passed += s ? 0 : want - have;
    }
    if (s)
        return s;
    for (uint64_t at = have; at < want;) {
        uint64_t size = want - at < PIECE ? want - at : PIECE;
        s = commit_piece(a, space, at, size);
        if (s) {
            release(a, want - at);
            return s;
        }
        at += size;
        if (at > a->mapped[space])
            a->mapped[space] = at;
        a->committed_total += size;
        pst_release64(&h->committed[space], at);
    }
    collapse(a, space, have);
    return PST_OK;
}

/* 0, or an errno. */
static int drop_pages(const pst_arena *a, uint64_t offset, uint64_t size) {
    /* Otherwise the kernel would fill the hole to make a huge page around it. */
    if (a->fd < 0)
        (void)madvise(a->base + offset / LARGE_STEP * LARGE_STEP, LARGE_STEP, MADV_NOHUGEPAGE);
    if (a->fd < 0)
        return madvise(a->base + offset, size, MADV_DONTNEED) ? errno : 0;
    while (fallocate(a->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)size))
        if (errno != EINTR)
            return errno;
    return 0;
}

void pst_arena_give_back(pst_arena *a, int space, uint64_t keep) {
    pst_header *h = pst_arena_header(a);
    uint64_t have = h->committed[space];
#ifdef PST_GROW_BY_PAGES
    keep = round_up(keep, 4096);
#else
    keep = round_up(keep, a->fd < 0 && space < PST_SPACE_RING ? LARGE_STEP : 4096);
#endif
    if (keep >= have)
        return;
    pst_release64(&h->committed[space], keep);
    if (drop_pages(a, a->start[space] + keep, have - keep)) {
        pst_release64(&h->committed[space], have);
        return;
    }
    release(a, have - keep);
    a->committed_total -= have - keep;
}

int pst_arena_drop(pst_arena *a, int space, uint64_t at, uint64_t size) {
    pst_header *h = pst_arena_header(a);
    pst_put64(&h->absent_bytes, h->absent_bytes + size);
    int err = drop_pages(a, a->start[space] + at, size);
    if (err) {
        pst_put64(&h->absent_bytes, h->absent_bytes - size);
        return err;
    }
    release(a, size);
    a->committed_total -= size;
    return 0;
}

pst_status pst_arena_fill(pst_arena *a, int space, uint64_t at, uint64_t size) {
    pst_header *h = pst_arena_header(a);
    pst_status s = ask(a, space, size);
    if (s)
        return s;
    int err = a->fd < 0 ? 0 : allocate(a->fd, a->start[space] + at, size);
    if (err) {
        a->last_errno = err;
        return pst_space_status(err);
    }
    pst_put64(&h->absent_bytes, h->absent_bytes - size);
    a->committed_total += size;
    return PST_OK;
}

void pst_arena_whole(const pst_arena *a, int space, uint64_t at) {
    if (a->fd < 0)
        (void)madvise(a->base + a->start[space] + at / LARGE_STEP * LARGE_STEP, LARGE_STEP,
                      MADV_HUGEPAGE);
}

pst_status pst_arena_refresh(pst_arena *a) {
    const pst_header *h = pst_arena_header(a);
    uint64_t total = 0;
    for (int s = 0; s < PST_SPACES; s++) {
        uint64_t have = a->mapped[s], want = pst_acquire64(&h->committed[s]);
        if (want > a->start[s + 1] - a->start[s])
            return PST_CORRUPT;
        total += want;
        if (want <= have)
            continue;
        pst_status st = map_piece(a, a->start[s] + have, want - have);
        if (st)
            return st;
        a->mapped[s] = want;
    }
    a->committed_total = total - h->absent_bytes;
    return PST_OK;
}
