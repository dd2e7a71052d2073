#include "guide/sst_times.h"

#include <string.h>

#include "base/buffer.h"
#include "base/mem.h"
#include "sst/sst_open.h"

/* Offsets in the index entry of a block. */
enum {
    T_OFFSET = 0,
    T_CHECKSUM = 8,
    T_FIRST = 16,
    T_SIZE = 24,
    T_ENTRIES = 26,
    T_DOMAIN = 28,
    T_BEGINS = 29
};

typedef struct run {
    uint32_t first; /* its blocks, from this one to `end` */
    uint32_t end;
    uint32_t next;       /* the block to be read once those of `bytes` are exhausted */
    uint32_t until;      /* while it is behind the one after that, the block is still looked for */
    uint32_t left;       /* behind the head; with none and not `loaded`, the head is only a bound */
    int idle;            /* it is of another domain, or at its end */
    int loaded;          /* the head is a timer */
    pst_timer_hint head; /* what is next; the bound comes before all of its time */
    pst_buffer bytes;
    pst_cursor cursor;
} run;

struct pst_times {
    pst_io io;
    const pst_guide *guide;
    uint8_t *index;
    run *runs;
    uint32_t n_runs;
    uint32_t *heap; /* of runs that have more, the least head first */
    uint32_t n_heap;
    pst_timer_hint from; /* timers before it are skipped */
    int unordered;       /* heads have changed without the heap */
    pst_status failed;
};

static const uint8_t *ref_at(const pst_times *t, uint32_t block) {
    return t->index + (size_t)block * PST_GUIDE_TIMES_REF;
}

static int64_t first_time(const pst_times *t, uint32_t block) {
    return (int64_t)pst_get_u64(ref_at(t, block) + T_FIRST);
}

/* ---- opening --------------------------------------------------------------------------------- */

static int ref_is_sound(const pst_times *t, uint32_t block) {
    const uint8_t *ref = ref_at(t, block);
    uint64_t offset = pst_get_u64(ref + T_OFFSET);
    uint64_t size = (uint64_t)pst_get_u16(ref + T_SIZE) * PST_SST_ALIGN;
    uint32_t entries = pst_get_u16(ref + T_ENTRIES);
    if (offset < t->guide->data_offset || offset > t->guide->data_end || offset % PST_SST_ALIGN ||
        size == 0 || size > t->guide->data_end - offset || entries == 0 ||
        entries > PST_TIMES_BLOCK || ref[T_DOMAIN] > 1 || ref[T_BEGINS] > 1)
        return 0;
    return ref[T_BEGINS] || (block > 0 && ref[T_DOMAIN] == ref_at(t, block - 1)[T_DOMAIN] &&
                             first_time(t, block) >= first_time(t, block - 1));
}

static pst_status find_runs(pst_times *t, uint32_t blocks) {
    uint64_t timers = 0;
    for (uint32_t i = 0; i < blocks; i++) {
        if (!ref_is_sound(t, i))
            return PST_CORRUPT;
        t->n_runs += ref_at(t, i)[T_BEGINS];
        timers += pst_get_u16(ref_at(t, i) + T_ENTRIES);
    }
    if (timers != t->guide->timers)
        return PST_CORRUPT;
    t->runs = pst_calloc(t->n_runs, sizeof *t->runs);
    t->heap = pst_malloc(t->n_runs * sizeof *t->heap);
    if (!t->runs || !t->heap)
        return PST_NO_MEMORY;
    run *r = t->runs - 1;
    for (uint32_t i = 0; i < blocks; i++) {
        if (ref_at(t, i)[T_BEGINS])
            (++r)->first = i;
        r->end = i + 1;
    }
    return PST_OK;
}

pst_status pst_times_open(const pst_io *io, const pst_guide *guide, pst_times **times) {
    if (!(guide->features & PST_SST_FEATURE_TIMES))
        return PST_NOT_FOUND;
    size_t size = (size_t)pst_sst_align((uint64_t)guide->times_blocks * PST_GUIDE_TIMES_REF);
    pst_times *t = pst_calloc(1, sizeof *t);
    if (!t)
        return PST_NO_MEMORY;
    t->io = *io;
    t->guide = guide;
    t->index = pst_malloc(size);
    pst_status s = t->index ? PST_OK : PST_NO_MEMORY;
    if (!s && io->read_at(io->ctx, guide->data_end, t->index, size) != 0)
        s = PST_CALLBACK;
    uint64_t seed = pst_sst_seed(guide->info.lineage.id, guide->data_end);
    if (!s && pst_xxh64(t->index, size, seed) != guide->times_checksum)
        s = PST_CORRUPT;
    if (!s)
        s = find_runs(t, guide->times_blocks);
    if (s)
        pst_times_close(t);
    else
        *times = t;
    return s;
}

void pst_times_close(pst_times *t) {
    if (!t)
        return;
    for (uint32_t i = 0; t->runs && i < t->n_runs; i++)
        pst_buffer_free(&t->runs[i].bytes);
    pst_free(t->runs);
    pst_free(t->heap);
    pst_free(t->index);
    pst_free(t);
}

/* ---- the heap -------------------------------------------------------------------------------- */

static int comes_before(const run *a, const run *b) {
    if (a->head.time != b->head.time)
        return a->head.time < b->head.time;
    if (a->loaded != b->loaded)
        return !a->loaded;
    return pst_place_compare(a->head.key_group, a->head.hash, b->head.key_group, b->head.hash) < 0;
}

static void sift(pst_times *t, uint32_t i) {
    uint32_t moved = t->heap[i];
    for (uint32_t child; (child = 2 * i + 1) < t->n_heap; i = child) {
        if (child + 1 < t->n_heap &&
            comes_before(&t->runs[t->heap[child + 1]], &t->runs[t->heap[child]]))
            child++;
        if (!comes_before(&t->runs[t->heap[child]], &t->runs[moved]))
            break;
        t->heap[i] = t->heap[child];
    }
    t->heap[i] = moved;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int is_before(const pst_timer_hint *a, const pst_timer_hint *b) {
    if (a->time != b->time)
        return a->time < b->time;
    return pst_place_compare(a->key_group, a->hash, b->key_group, b->hash) < 0;
}

/* The head becomes a bound: no timer of the run's next block is before it. */
static void await_block(pst_times *t, run *r) {
    int64_t first = first_time(t, r->next);
    r->loaded = 0;
    r->left = 0;
    r->head.time = first > t->from.time ? first : t->from.time;
}

/* The first of the blocks low .. high - 1 that begins at that time or later. */
static uint32_t block_from(const pst_times *t, uint32_t low, uint32_t high, int64_t time) {
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (first_time(t, middle) < time)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void pst_times_seek(pst_times *t, const pst_timer_hint *from) {
    t->from = *from;
    t->failed = PST_OK;
    t->n_heap = 0;
    t->unordered = 1;
    for (uint32_t i = 0; i < t->n_runs; i++) {
        run *r = &t->runs[i];
        r->loaded = 0;
        r->idle = ref_at(t, r->first)[T_DOMAIN] != from->domain;
        if (r->idle)
            continue;
        uint32_t at = block_from(t, r->first, r->end, from->time);
        r->next = at > r->first ? at - 1 : at;
        /* Of blocks that begin at that very time only their bytes say where the place is. */
        r->until = r->next;
        if (from->key_group || from->hash)
            r->until = from->time == INT64_MAX ? r->end : block_from(t, at, r->end, from->time + 1);
        await_block(t, r);
        t->heap[t->n_heap++] = i;
    }
}

static void order(pst_times *t) {
    for (uint32_t i = t->n_heap / 2; i-- > 0;)
        sift(t, i);
    t->unordered = 0;
}

/* Reads the timer behind the head, which it must come after. */
static pst_status advance(const pst_times *t, run *r, int first) {
    pst_timer_hint before = r->head;
    uint64_t delta = pst_cursor_varint(&r->cursor);
    const uint8_t *hash = pst_cursor_bytes(&r->cursor, 8);
    if (!hash || (first && delta))
        return PST_CORRUPT;
    r->left--;
    r->head.time = (int64_t)((uint64_t)before.time + delta);
    r->head.hash = pst_get_u64(hash);
    r->head.key_group = pst_key_group(r->head.hash, t->guide->info.max_parallelism);
    if (r->head.time < before.time || r->head.key_group < t->guide->info.first_key_group ||
        r->head.key_group > t->guide->info.last_key_group)
        return PST_CORRUPT;
    if (!first && !delta &&
        pst_place_compare(before.key_group, before.hash, r->head.key_group, r->head.hash) > 0)
        return PST_CORRUPT;
    return PST_OK;
}

static int is_looked_for(const run *r) {
    return r->until > r->next + 1;
}

/* The block that the run is to read. */
static uint32_t wanted(const run *r) {
    return is_looked_for(r) ? r->next + (r->until - r->next) / 2 : r->next;
}

static pst_times_read read_of(const pst_times *t, const run *r) {
    const uint8_t *ref = ref_at(t, wanted(r));
    return (pst_times_read){pst_get_u64(ref + T_OFFSET),
                            (size_t)pst_get_u16(ref + T_SIZE) * PST_SST_ALIGN};
}

/* Takes the block that it wanted, which is in its buffer: halves where it looks, or goes on to the
 * block's first timer that is wanted, or its last one. */
static pst_status take(pst_times *t, run *r) {
    uint32_t block = wanted(r);
    const uint8_t *ref = ref_at(t, block);
    pst_times_read read = read_of(t, r);
    uint64_t seed = pst_sst_seed(t->guide->info.lineage.id, read.offset);
    if (pst_xxh64(r->bytes.data, read.size, seed) != pst_get_u64(ref + T_CHECKSUM))
        return PST_CORRUPT;
    r->cursor = pst_cursor_over(r->bytes.data, read.size);
    r->left = pst_get_u16(ref + T_ENTRIES);
    r->head.time = first_time(t, block);
    r->head.domain = ref[T_DOMAIN];
    pst_status s = advance(t, r, 1);
    if (s || is_looked_for(r)) {
        if (!s && is_before(&r->head, &t->from))
            r->next = block;
        else
            r->until = block;
        await_block(t, r);
        return s;
    }
    r->loaded = 1;
    while (!s && r->left && is_before(&r->head, &t->from))
        s = advance(t, r, 0);
    r->next++;
    return s;
}

static pst_status load(pst_times *t, run *r) {
    pst_times_read read = read_of(t, r);
    pst_status s = pst_buffer_reserve(&r->bytes, read.size);
    if (!s && t->io.read_at(t->io.ctx, read.offset, r->bytes.data, read.size) != 0)
        s = PST_CALLBACK;
    return s ? s : take(t, r);
}

/* Takes a step with the run of the least head: to its next timer, block or end. */
static pst_status step_over(pst_times *t, run *r) {
    pst_status s = PST_OK;
    if (r->loaded && r->left) {
        s = advance(t, r, 0);
    } else if (r->loaded && r->next < r->end) {
        await_block(t, r);
    } else if (r->loaded) {
        r->idle = 1;
        t->heap[0] = t->heap[--t->n_heap];
    } else {
        s = load(t, r);
    }
    if (!s && t->n_heap)
        sift(t, 0);
    return s;
}

pst_status pst_times_next(pst_times *t, pst_timer_hint *hint) {
    if (t->unordered)
        order(t);
    while (!t->failed && t->n_heap) {
        run *r = &t->runs[t->heap[0]];
        int found = r->loaded && !is_before(&r->head, &t->from);
        if (found)
            *hint = r->head;
        t->failed = step_over(t, r);
        if (found && !t->failed)
            return PST_OK;
    }
    return t->failed ? t->failed : PST_NOT_FOUND;
}

/* ---- many reads at a time -------------------------------------------------------------------- */

uint32_t pst_times_runs(const pst_times *t) {
    return t->n_runs;
}

int pst_times_wants(const pst_times *t, uint32_t run_number, pst_times_read *read) {
    const run *r = &t->runs[run_number];
    if (!t->n_heap || t->failed || r->idle || r->loaded || r->head.time != t->from.time)
        return 0;
    *read = read_of(t, r);
    return 1;
}

pst_status pst_times_give(pst_times *t, uint32_t run_number, const uint8_t *data) {
    run *r = &t->runs[run_number];
    size_t size = read_of(t, r).size;
    t->unordered = 1;
    pst_status s = pst_buffer_reserve(&r->bytes, size);
    if (!s) {
        memcpy(r->bytes.data, data, size);
        s = take(t, r);
    }
    return t->failed = s;
}
