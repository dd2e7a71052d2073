#include "memory/ring.h"

#ifndef PST_RING_FIRST
#define PST_RING_FIRST 1024u /* tests make it small, to grow often */
#endif

pst_status pst_ring_grow(pst_table *t, uint32_t ring) {
    const pst_ring *r = &t->m->rings[ring];
    uint32_t old = (uint32_t)t->h->ring_capacity[ring], wide = old ? old * 2 : PST_RING_FIRST;
    if (!wide)
        return PST_TOO_LARGE;
    /* What was freed is listed also where whoever freed it was about to grow. */
    int clearing = t->arena.clearing;
    t->arena.clearing = 1;
    pst_status s = pst_arena_commit(&t->arena, (int)(PST_SPACE_RING + ring),
                                    (uint64_t)wide * sizeof(uint32_t));
    t->arena.clearing = clearing;
    if (s)
        return s;
    uint32_t *c = pst_ring_cells(t, ring);
    if (old)
        for (uint32_t p = r->sealed_head[2]; p != r->tail; p++)
            if ((p & (wide - 1)) >= old)
                pst_put32(c + (p & (wide - 1)), c[p & (old - 1)]);
    pst_release64(&t->h->ring_capacity[ring], wide);
    return PST_OK;
}

/* The most names that shrinking copies, so that no seal takes long for it. */
enum { MOVED_NAMES = 1 << 15 };

void pst_ring_shrink(pst_table *t, uint32_t ring) {
    uint32_t from = t->m->rings[ring].sealed_head[2], tail = t->m->rings[ring].tail;
    uint32_t capacity = (uint32_t)t->h->ring_capacity[ring], half = capacity / 2;
    /* Every epoch that can be returned to finds its names, and the room that it counts on. */
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
        /* The names lie in both halves: they are turned over until they do not. */
        if (ring < PST_CLASSES && t->m->turn_to[ring] == t->m->rings[ring].head)
            pst_put32(&t->m->turn_to[ring], tail);
        return;
    }
    if (last > capacity)
        return;
    uint32_t *c = pst_ring_cells(t, ring);
    for (uint32_t p = from; first >= half && p != tail; p++)
        pst_put32(c + (p & (half - 1)), c[p & (capacity - 1)]);
    pst_release64(&t->h->ring_capacity[ring], half);
}
