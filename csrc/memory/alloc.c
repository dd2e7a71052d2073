#include "memory/alloc.h"

#include "memory/ring.h"
#include "memory/size_class.h"
#include "memory/span.h"
#include "memory/store.h"

/* Prefetches the block that will be reused some blocks later: it was freed long ago. */
PST_PREFETCH void prefetch_block(const pst_table *t, uint32_t c) {
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
        prefetch_block(t, c);
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
