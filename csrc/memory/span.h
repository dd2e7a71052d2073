/* span.h: the heap in spans of 32 KB, each of which serves one size class at a time.
 *
 * Purpose: memory that values of one size have left can serve values of another, or go back to the
 * system. A ring alone cannot do that: it knows names, not which of them lie together.
 *
 * Thread safety: the writer's alone.
 *
 * Invariants
 *  SP1. A block lies in a span, or in a run of spans where its class needs one, that serves its
 *       class. `listed` counts the span's blocks that its class's ring names. When all of them are
 *       listed the span may be freed: its names stay in the ring and are dropped where they come
 *       up.
 *  SP2. A freed span is taken again only when the head that the oldest epoch of the window would
 *       restore has passed the ring's tail as of its freeing. So no epoch of the window has
 *       anything in it, and no name of its former life can come up again, whatever is rolled back.
 *  SP3. Entries bear the epochs in which they were taken and freed. So going back to an epoch is
 *       one pass that frees what was taken after it and takes what was freed after it. The same
 *       pass counts `listed` anew from the rings. After a kill it may run again and ends the same.
 *  SP4. Only a span that could be taken again is given back. It is marked PST_SPAN_ABSENT before
 *       its pages go, and its pages are requested again before the mark is removed.
 *  SP5. A class keeps what it needed within the last eight epochs: only spans of names that nobody
 *       wanted for that long are freed. Work per seal is bounded, whatever the heap's size. Where
 *       rows left because memory is short no class keeps any (pst_span_release).
 */
#ifndef PST_SPAN_H
#define PST_SPAN_H

#include "memory/handle.h"

static inline uint32_t pst_span_count(const pst_table *t) {
    return (uint32_t)(t->m->heap_top / PST_SPAN_GRANULES);
}

static inline pst_span *pst_span_at(const pst_table *t, uint32_t i) {
    return (pst_span *)(void *)pst_space(&t->arena, PST_SPACE_SPANS) + i;
}

/* The span of a block; the first span of a run. */
static inline pst_span *pst_span_of(const pst_table *t, uint32_t granule) {
    pst_span *s = pst_span_at(t, granule / PST_SPAN_GRANULES);
    int rest = (s->state & (PST_SPAN_REST | PST_SPAN_USED)) == (PST_SPAN_REST | PST_SPAN_USED);
    return rest ? pst_span_at(t, s->position) : s;
}

/* Is the block in a span that is being left? */
static inline int pst_span_is_left(const pst_table *t, uint32_t granule) {
    return (pst_span_of(t, granule)->state & PST_SPAN_LEAVING) != 0;
}

static inline void pst_span_list(const pst_table *t, uint32_t granule, int by) {
    pst_span *s = pst_span_of(t, granule);
    pst_put16(&s->listed, (uint16_t)(s->listed + by));
}

/* How many spans a run of that class has, and how many blocks such a run has. */
uint32_t pst_span_run(uint32_t size_class);
uint32_t pst_span_blocks(uint32_t size_class);

/* Gives the class a span (a run), from which m->bump takes. PST_LIMIT, PST_NO_SPACE,
 * PST_TOO_LARGE. */
pst_status pst_span_take(pst_table *t, uint32_t size_class);

/* Bytes of all blocks ever taken from the spans in use, those in rings too. */
uint64_t pst_span_taken_bytes(const pst_table *t);

/* To be called after an older meta was restored, or after a kill: SP3. */
void pst_span_recover(pst_table *t);
/* Counts `listed` anew from the rings of `m`. */
void pst_span_count_listed(pst_table *t, const pst_meta *m);

/* Notes in the header that the next process to attach can rely on `listed`, if the open epoch has
 * changed nothing. */
void pst_span_leave(pst_table *t);

/* Part of sealing, when nothing can fail any more: frees spans, drops names, gives back. */
void pst_span_tidy(pst_table *t);

/* Frees all spans of which no block is in use, whoever wanted them lately, so that any class may take
 * them once the epoch is sealed and settled. REQUIRES: the table was settled, and the open epoch has
 * done nothing. Returns how many; a class whose ring has no room to turn over waits. O(spans, and the
 * names of the classes that lose some). */
uint32_t pst_span_release(pst_table *t);
/* Gives free spans back to the system, up to so many bytes, so that another space may grow by them.
 * Returns how many bytes it was. O(spans). */
uint64_t pst_span_yield(pst_table *t, uint64_t bytes);
/* Bytes of spans that the open epoch may take and that the system has not got back. O(spans). */
uint64_t pst_span_free_bytes(const pst_table *t);

#endif
