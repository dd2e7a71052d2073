#include "memory/alloc.h"

#include "memory/handle.h"
#include "memory/span.h"
#include "memory/store.h"

uint32_t pst_class_of(uint64_t bytes) {
    if (bytes <= 64)
        return bytes <= 16 ? 0 : (uint32_t)((bytes - 1) / 16);
    uint32_t top = 63u - (uint32_t)__builtin_clzll(bytes - 1); /* 2^top < bytes <= 2^(top+1) */
    uint64_t quarter = (uint64_t)1 << (top - 2);
    uint32_t step = (uint32_t)((bytes - 1 - ((uint64_t)1 << top)) / quarter);
    return 4 + (top - 6) * 4 + step;
}

static uint32_t *cells(const pst_table *t, uint32_t ring) {
    return (uint32_t *)pst_space(&t->arena, (int)(PST_SPACE_RING + ring));
}

uint32_t pst_ring_at(const pst_table *t, uint32_t ring, uint32_t position) {
    return pst_get32(cells(t, ring) + (position & (uint32_t)(t->h->ring_capacity[ring] - 1)));
}

#ifndef PST_RING_FIRST
#define PST_RING_FIRST 1024u /* tests make it small, to grow often */
#endif

static pst_status grow_ring(pst_table *t, uint32_t ring) {
    const pst_ring *r = &t->m->rings[ring];
    uint32_t old = (uint32_t)t->h->ring_capacity[ring], wide = old ? old * 2 : PST_RING_FIRST;
    if (!wide)
        return PST_TOO_LARGE;
    pst_status s = pst_arena_commit(&t->arena, (int)(PST_SPACE_RING + ring),
                                    (uint64_t)wide * sizeof(uint32_t));
    if (s)
        return s;
    uint32_t *c = cells(t, ring);
    if (old)
        for (uint32_t p = r->sealed_head[2]; p != r->tail; p++)
            if ((p & (wide - 1)) >= old)
                pst_put32(c + (p & (wide - 1)), c[p & (old - 1)]);
    pst_release64(&t->h->ring_capacity[ring], wide);
    return PST_OK;
}

/* Names that shrinking copies at most, so that no seal takes long for it. */
enum { MOVED_NAMES = 1 << 15 };

void pst_ring_shrink(pst_table *t, uint32_t ring) {
    uint32_t from = t->m->rings[ring].sealed_head[2], tail = t->m->rings[ring].tail;
    uint32_t capacity = (uint32_t)t->h->ring_capacity[ring], half = capacity / 2;
    /* Whatever epoch is returned to finds its names, and room as it counts it. */
    for (uint64_t e = t->h->active; e > t->h->floor; e--) {
        const pst_ring *r = &pst_meta_of(t, e - 1)->rings[ring];
        if ((int32_t)(r->sealed_head[2] - from) < 0)
            from = r->sealed_head[2];
    }
    uint64_t have = t->h->committed[PST_SPACE_RING + ring], needed = capacity * sizeof(uint32_t);
    if (have > needed + PST_GIVE_BACK)
        needed = have - PST_GIVE_BACK;
    pst_arena_give_back(&t->arena, (int)(PST_SPACE_RING + ring), needed);
    if (capacity <= PST_RING_FIRST || tail - from > capacity / 8 || tail - from > MOVED_NAMES)
        return;
    uint32_t first = from & (capacity - 1), last = first + (tail - from);
    if (first < half && last > half) {
        /* In both halves: they are turned over until they no longer are. */
        if (ring < PST_CLASSES && t->m->turn_to[ring] == t->m->rings[ring].head)
            pst_put32(&t->m->turn_to[ring], tail);
        return;
    }
    if (last > capacity)
        return;
    uint32_t *c = cells(t, ring);
    for (uint32_t p = from; first >= half && p != tail; p++)
        pst_put32(c + (p & (half - 1)), c[p & (capacity - 1)]);
    pst_release64(&t->h->ring_capacity[ring], half);
}

pst_status pst_ring_reserve(pst_table *t, uint32_t ring, uint32_t n) {
    const pst_ring *r = &t->m->rings[ring];
    pst_status s = PST_OK;
    while (!s && (uint32_t)t->h->ring_capacity[ring] - (r->tail - r->sealed_head[2]) < n)
        s = grow_ring(t, ring);
    return s;
}

pst_status pst_ring_push(pst_table *t, uint32_t ring, uint32_t name) {
    pst_ring *r = &t->m->rings[ring];
    pst_status s = pst_ring_reserve(t, ring, 1);
    if (s)
        return s;
    pst_put32(cells(t, ring) + (r->tail & (uint32_t)(t->h->ring_capacity[ring] - 1)), name);
    pst_put32(&r->tail, r->tail + 1);
    return PST_OK;
}

pst_status pst_ring_pop(pst_table *t, uint32_t ring, uint32_t *name) {
    pst_ring *r = &t->m->rings[ring];
    if (r->head == r->sealed_tail[2])
        return PST_NOT_FOUND;
    *name = pst_ring_at(t, ring, r->head);
    pst_put32(&r->head, r->head + 1);
    return PST_OK;
}

/* Brings in the block that will be reused some blocks later: it was let go of long ago. */
PST_PREFETCH void bring_block(const pst_table *t, uint32_t c) {
    enum { AHEAD = 8, LINE = 64, MOST = 512 };
    const pst_ring *r = &t->m->rings[c];
    if (r->sealed_tail[2] - r->head <= AHEAD)
        return;
    const uint8_t *block = pst_block(t, pst_ring_at(t, c, r->head + AHEAD));
    uint64_t size = pst_class_size(c);
    for (uint64_t at = 0; at < size && at < MOST; at += LINE)
        __builtin_prefetch(block + at, 1, 2);
}

pst_status pst_block_alloc(pst_table *t, uint32_t c, uint32_t *granule) {
    pst_meta *m = t->m;
    if (m->hot[c]) {
        *granule = m->hot[c];
        pst_put32(&m->hot[c], *(uint32_t *)pst_block(t, *granule));
        return PST_OK;
    }
    for (int skipped = 0; pst_ring_pop(t, c, granule) == PST_OK;) {
        bring_block(t, c);
        pst_span *span = pst_span_of(t, *granule);
        if (!(span->state & PST_SPAN_USED)) {
            pst_put32(&m->stale[c], m->stale[c] - 1);
            continue;
        }
        if (span->state & PST_SPAN_LEAVING && skipped++ < PST_MOST_SKIPPED &&
            !pst_ring_push(t, c, *granule))
            continue;
        pst_put16(&span->listed, (uint16_t)(span->listed - 1));
        return PST_OK;
    }
    if (!m->bump_left[c]) {
        pst_status s = pst_span_take(t, c);
        if (s)
            return s;
    }
    *granule = m->bump[c];
    pst_put32(&m->bump[c], *granule + (uint32_t)(pst_class_size(c) / PST_GRANULE));
    pst_put32(&m->bump_left[c], m->bump_left[c] - 1);
    return PST_OK;
}

/* Names a block in its class's ring. */
static pst_status list_block(pst_table *t, uint32_t c, uint32_t granule) {
    pst_status s = pst_ring_push(t, c, granule);
    if (!s)
        pst_span_list(t, granule, 1);
    return s;
}

pst_status pst_block_free(pst_table *t, uint32_t c, uint32_t granule, int born) {
    if (!born)
        return list_block(t, c, granule);
    pst_put32(pst_block(t, granule), t->m->hot[c]);
    pst_put32(&t->m->hot[c], granule);
    t->hot = 1;
    return PST_OK;
}

pst_status pst_block_settle(pst_table *t) {
    if (!t->hot)
        return PST_OK;
    for (uint32_t c = 0; c < PST_CLASSES; c++)
        while (t->m->hot[c]) {
            uint32_t g = t->m->hot[c], next = *(uint32_t *)pst_block(t, g);
            pst_status s = list_block(t, c, g);
            if (s)
                return s;
            pst_put32(&t->m->hot[c], next);
        }
    t->hot = 0;
    return PST_OK;
}
