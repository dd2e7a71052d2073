#include "memory/span.h"

#include "memory/pins.h"
#include "memory/ring.h"
#include "memory/size_class.h"

#ifndef PST_PATIENCE
#define PST_PATIENCE 8 /* tests have less */
#endif

enum {
    PATIENCE = PST_PATIENCE, /* epochs for which a class keeps what it does not need */
    LOOKS = 4096,            /* spans looked at per seal */
    REST = 8 * PST_PATIENCE, /* epochs after marking in vain */
    TURNS = 16384,           /* names turned over per seal */
    RINGS_LOOKED_AT = PST_PATIENCE < 8 ? PST_RINGS : 4
};

#define SPAN_BYTES ((uint64_t)PST_SPAN_GRANULES * PST_GRANULE)

/* ---- geometry ------------------------------------------------------------------------------- */

/* The fewest spans of which blocks leave at most an eighth unused. */
uint32_t pst_span_run(uint32_t size_class) {
    uint64_t size = pst_class_size(size_class), run = (size + SPAN_BYTES - 1) / SPAN_BYTES;
    while (run * SPAN_BYTES % size * 8 > run * SPAN_BYTES)
        run++;
    return (uint32_t)run;
}

uint32_t pst_span_blocks(uint32_t size_class) {
    return (uint32_t)(pst_span_run(size_class) * SPAN_BYTES / pst_class_size(size_class));
}

/* Compares epochs in 32 bits, which are never half of that range apart. */
static int is_after(uint32_t epoch, uint64_t other) {
    return (int32_t)(epoch - (uint32_t)other) > 0;
}

/* Spans of a huge page. */
enum { TOGETHER = (2 << 20) / (PST_SPAN_GRANULES * PST_GRANULE) };

/* ---- taking --------------------------------------------------------------------------------- */

/* SP2. */
static int is_reusable(const pst_table *t, const pst_span *s) {
    if (s->state & PST_SPAN_USED)
        return 0;
    uint32_t head = t->m->rings[s->size_class].sealed_head[2];
    return (int32_t)(head - s->position) >= 0;
}

/* The first run of reusable spans, or a count of spans that says that there is none. */
static uint32_t find_run(pst_table *t, uint32_t run) {
    uint32_t n = pst_span_count(t), found = 0;
    for (uint32_t i = run == 1 ? t->span_cursor : 1; i < n; i++) {
        found = is_reusable(t, pst_span_at(t, i)) ? found + 1 : 0;
        if (found == run) {
            if (run == 1)
                t->span_cursor = i + 1;
            return i + 1 - run;
        }
    }
    return n;
}

/* The same of spans that the system has not got back. */
static uint32_t find_present(const pst_table *t, uint32_t run) {
    uint32_t n = pst_span_count(t), found = 0;
    for (uint32_t i = 1; i < n; i++) {
        const pst_span *s = pst_span_at(t, i);
        found = is_reusable(t, s) && !(s->state & PST_SPAN_ABSENT) ? found + 1 : 0;
        if (found == run)
            return i + 1 - run;
    }
    return n;
}

static pst_status fill_run(pst_table *t, uint32_t first, uint32_t run) {
    for (uint32_t i = first; i < first + run; i++) {
        pst_span *s = pst_span_at(t, i);
        if (!(s->state & PST_SPAN_ABSENT))
            continue;
        pst_status st = pst_arena_fill(&t->arena, PST_SPACE_HEAP, i * SPAN_BYTES, SPAN_BYTES);
        if (st)
            return st;
        pst_put8(&s->state, s->state & (uint8_t)~PST_SPAN_ABSENT);
        uint32_t from = i / TOGETHER * TOGETHER, k = from, n = pst_span_count(t);
        while (k < from + TOGETHER && k < n && !(pst_span_at(t, k)->state & PST_SPAN_ABSENT))
            k++;
        if (k == from + TOGETHER || k == n)
            pst_arena_whole(&t->arena, PST_SPACE_HEAP, i * SPAN_BYTES);
    }
    return PST_OK;
}

uint64_t pst_span_free_bytes(const pst_table *t) {
    uint32_t n = t->m->free_spans ? pst_span_count(t) : 0;
    uint64_t bytes = 0;
    for (uint32_t i = 1; i < n; i++) {
        const pst_span *s = pst_span_at(t, i);
        bytes += is_reusable(t, s) && !(s->state & PST_SPAN_ABSENT) ? SPAN_BYTES : 0;
    }
    return bytes;
}

/* SP4. 0, or an errno. */
static int drop_span(pst_table *t, uint32_t i) {
    pst_span *s = pst_span_at(t, i);
    pst_put8(&s->state, s->state | PST_SPAN_ABSENT);
    int err = pst_arena_drop(&t->arena, PST_SPACE_HEAP, i * SPAN_BYTES, SPAN_BYTES);
    if (err)
        pst_put8(&s->state, s->state & (uint8_t)~PST_SPAN_ABSENT);
    return err;
}

uint64_t pst_span_yield(pst_table *t, uint64_t bytes) {
    uint64_t given = 0;
    if (!pst_span_free_bytes(t) || pst_reader_lags(t->h))
        return 0;
    for (uint32_t i = pst_span_count(t); i > 1 && given < bytes;) {
        const pst_span *s = pst_span_at(t, --i);
        if (s->state & PST_SPAN_ABSENT || !is_reusable(t, s) || drop_span(t, i))
            continue;
        given += SPAN_BYTES;
    }
    return given;
}

static pst_status extend(pst_table *t, uint32_t run) {
    uint64_t top = t->m->heap_top + (uint64_t)run * PST_SPAN_GRANULES;
    pst_status s = top > UINT32_MAX ? PST_TOO_LARGE : PST_OK;
    if (!s)
        s = pst_arena_commit(&t->arena, PST_SPACE_SPANS,
                             top / PST_SPAN_GRANULES * sizeof(pst_span));
    if (!s)
        s = pst_arena_commit(&t->arena, PST_SPACE_HEAP, top * PST_GRANULE);
    /* Those that are free lie apart, and when more are they may not. */
    return s == PST_TOO_LARGE && t->m->free_spans >= run ? PST_LIMIT : s;
}

/* At the limit: a run that is there, or one that takes the place of spans that lie apart. */
static pst_status take_tight(pst_table *t, uint32_t run, uint32_t *first) {
    uint32_t n = pst_span_count(t), found = find_present(t, run);
    if (found < n) {
        *first = found;
        return fill_run(t, found, run);
    }
    if (pst_span_yield(t, 2 * run * SPAN_BYTES) < run * SPAN_BYTES)
        return PST_LIMIT;
    return *first == n ? extend(t, run) : fill_run(t, *first, run);
}

pst_status pst_span_take(pst_table *t, uint32_t c) {
    uint32_t run = pst_span_run(c), now = (uint32_t)t->h->active, n = pst_span_count(t), first = n;
    pst_meta *m = t->m;
    if (m->free_spans >= run && run < t->span_none) {
        first = find_run(t, run);
        if (first == n)
            t->span_none = run; /* nor any longer one, in this epoch */
    }
    pst_status st = first == n ? extend(t, run) : fill_run(t, first, run);
    if (st == PST_LIMIT)
        st = take_tight(t, run, &first);
    if (st)
        return st;
    for (uint32_t i = first; i < first + run; i++) {
        pst_span *s = pst_span_at(t, i);
        pst_put32(&s->begun, now);
        pst_put16(&s->listed, 0);
        pst_put8(&s->size_class, (uint8_t)c);
        pst_put32(&s->position, first);
        pst_put8(&s->state, i == first ? PST_SPAN_USED : PST_SPAN_USED | PST_SPAN_REST);
    }
    if (first == n)
        pst_put64(&m->heap_top, m->heap_top + (uint64_t)run * PST_SPAN_GRANULES);
    else
        pst_put32(&m->free_spans, m->free_spans - run);
    pst_put32(&m->bump[c], first * PST_SPAN_GRANULES);
    pst_put32(&m->bump_left[c], pst_span_blocks(c));
    return PST_OK;
}

uint64_t pst_span_taken_bytes(const pst_table *t) {
    const pst_meta *m = t->m;
    uint64_t bytes = (pst_span_count(t) - UINT64_C(1) - m->free_spans) * SPAN_BYTES;
    for (uint32_t c = 0; c < PST_CLASSES; c++)
        bytes -= m->bump_left[c] * pst_class_size(c);
    return bytes;
}

/* ---- going back ----------------------------------------------------------------------------- */

void pst_span_count_listed(pst_table *t, const pst_meta *m) {
    uint32_t n = (uint32_t)(m->heap_top / PST_SPAN_GRANULES);
    for (uint32_t i = 1; i < n; i++)
        pst_put16(&pst_span_at(t, i)->listed, 0);
    for (uint32_t c = 0; c < PST_CLASSES; c++)
        for (uint32_t p = m->rings[c].head; p != m->rings[c].tail; p++) {
            pst_span *s = pst_span_of(t, pst_ring_at(t, c, p));
            if (s->state & PST_SPAN_USED)
                pst_put16(&s->listed, (uint16_t)(s->listed + 1));
        }
}

void pst_span_recover(pst_table *t) {
    uint64_t to = t->h->sealed;
    const pst_meta *m = pst_meta_of(t, to);
    uint32_t n = (uint32_t)(m->heap_top / PST_SPAN_GRANULES), first = 0, absent = 0;
    for (uint32_t i = 1; i < n; i++) {
        pst_span *s = pst_span_at(t, i);
        if (is_after(s->begun, to)) {
            /* Even the oldest epoch no longer has its former names: that is why it was taken. */
            pst_put32(&s->position, m->rings[s->size_class].sealed_head[2]);
            pst_put32(&s->freed, (uint32_t)to);
            pst_put8(&s->state, s->state & PST_SPAN_ABSENT);
        } else if (!(s->state & PST_SPAN_USED) && is_after(s->freed, to)) {
            if (!(s->state & PST_SPAN_REST))
                first = i;
            pst_put32(&s->position, first);
            pst_put8(&s->state, s->state | PST_SPAN_USED);
        }
        absent += (s->state & PST_SPAN_ABSENT) != 0;
    }
    pst_put64(&t->h->absent_bytes, absent * SPAN_BYTES);
    pst_span_count_listed(t, m);
}

void pst_span_leave(pst_table *t) {
    const pst_meta *before = pst_meta_of(t, t->h->sealed), *m = t->m;
    int same = m->heap_top == before->heap_top && m->free_spans == before->free_spans;
    for (int r = 0; r < PST_RINGS && same; r++)
        same =
            m->rings[r].head == before->rings[r].head && m->rings[r].tail == before->rings[r].tail;
    if (same)
        pst_put64(&t->h->counted, 1);
}

/* ---- tidying -------------------------------------------------------------------------------- */

/* Names that no epoch has wanted for a while: the least number left at any seal. */
static void measure(pst_table *t) {
    pst_span_hints *hints = &t->h->spans;
    int over = t->h->active % PATIENCE == 0;
    for (uint32_t c = 0; c < PST_CLASSES; c++) {
        const pst_ring *r = &t->m->rings[c];
        if (r->tail == 0)
            continue;
        uint32_t left = r->sealed_tail[2] - r->head, stale = t->m->stale[c];
        left = left > stale ? left - stale : 0;
        if (left < hints->least[c])
            pst_put32(&hints->least[c], left);
        if (r->tail != r->sealed_tail[0] || (over && hints->least[c] > hints->surplus[c]))
            t->spans_idle = 0;
        if (over) {
            pst_put32(&hints->surplus[c], hints->least[c]);
            pst_put32(&hints->least[c], left);
        }
    }
}

/* Frees the run that begins at i, all of whose blocks are listed. */
static void free_run(pst_table *t, uint32_t i, uint32_t c) {
    t->spans_left += (pst_span_at(t, i)->state & PST_SPAN_LEAVING) != 0;
    t->spans_idle = 0;
    uint32_t run = pst_span_run(c), tail = t->m->rings[c].tail;
    pst_meta *m = t->m;
    pst_put32(&m->stale[c], m->stale[c] + pst_span_blocks(c));
    pst_put32(&m->turn_to[c], tail);
    for (uint32_t k = i; k < i + run; k++) {
        pst_span *s = pst_span_at(t, k);
        pst_put32(&s->freed, (uint32_t)t->h->active);
        pst_put32(&s->position, tail);
        pst_put8(&s->state, s->state & (uint8_t)~(PST_SPAN_USED | PST_SPAN_LEAVING));
    }
    pst_put32(&m->free_spans, m->free_spans + run);
}

/* What one sweep could not empty, index pages for one, the next one seldom empties either. */
static void begin_marking(pst_table *t) {
    if (!t->spans_left)
        t->spans_rest = (uint32_t)t->h->active + REST;
    t->spans_left = 0;
}

/* Is at least a quarter of the span free, and does its class need none of that? */
static void mark(pst_table *t, pst_span *s, uint32_t blocks) {
    pst_span_hints *hints = &t->h->spans;
    uint32_t c = s->size_class;
    if (s->listed * 4u < blocks || hints->surplus[c] < blocks || s->state & PST_SPAN_LEAVING)
        return;
    pst_put32(&hints->surplus[c], hints->surplus[c] - blocks);
    pst_put8(&s->state, s->state | PST_SPAN_LEAVING);
    pst_put32(&hints->marked, hints->marked + 1);
    t->spans_idle = 0;
}

/* Looks at some spans, in turn. Frees those without a live block. Marks those worth leaving, or
 * takes such marks away. */
static void look_at_spans(pst_table *t) {
    pst_span_hints *hints = &t->h->spans;
    uint32_t n = pst_span_count(t), looks = n < LOOKS ? n : LOOKS, i = hints->place;
    for (; looks > 1; looks--, i++) {
        t->spans_idle++;
        if (i == 0 || i >= n) {
            i = 1;
            if (hints->phase == PST_SPANS_MARKING && hints->marked) {
                pst_put32(&hints->slot, 0);
                pst_put32(&hints->keyed, 0);
                pst_put32(&hints->phase, PST_SPANS_LEFT);
            } else if (hints->phase == PST_SPANS_DONE) {
                /* The first pass completes the sweep, the second takes the marks away. */
                pst_put32(&hints->phase, hints->marked ? PST_SPANS_DONE : PST_SPANS_MARKING);
                pst_put32(&hints->marked, 0);
                if (hints->phase == PST_SPANS_MARKING)
                    begin_marking(t);
            }
        }
        pst_span *s = pst_span_at(t, i);
        uint32_t c = s->size_class, blocks;
        if ((s->state & (PST_SPAN_USED | PST_SPAN_REST)) != PST_SPAN_USED)
            continue;
        if (hints->phase == PST_SPANS_DONE && !hints->marked && s->state & PST_SPAN_LEAVING)
            pst_put8(&s->state, s->state & (uint8_t)~PST_SPAN_LEAVING);
        if (!s->listed)
            continue;
        blocks = pst_span_blocks(c);
        if (s->listed == blocks && hints->surplus[c] >= blocks) {
            pst_put32(&hints->surplus[c], hints->surplus[c] - blocks);
            free_run(t, i, c);
        } else if (hints->phase == PST_SPANS_MARKING && !is_after(t->spans_rest, t->h->active)) {
            mark(t, s, blocks);
        }
    }
    pst_put32(&hints->place, i);
}

/* Turns rings over, up to where they were as their last span was freed: names of freed spans are
 * dropped, the others go to the tail. */
static void turn_rings(pst_table *t) {
    uint32_t turns = TURNS;
    for (uint32_t c = 0; c < PST_CLASSES; c++) {
        pst_ring *r = &t->m->rings[c];
        /* Names that are turned over cannot be taken for three epochs, so some stay. */
        uint32_t some = (r->sealed_tail[2] - r->head) / 8 + 1;
        for (; turns && some && r->head != r->sealed_tail[2]; some--, turns--) {
            if ((int32_t)(t->m->turn_to[c] - r->head) <= 0)
                break;
            uint32_t granule = pst_ring_at(t, c, r->head);
            if (pst_span_of(t, granule)->state & PST_SPAN_USED) {
                if (pst_ring_push(t, c, granule))
                    return;
            } else {
                pst_put32(&t->m->stale[c], t->m->stale[c] - 1);
            }
            pst_put32(&r->head, r->head + 1);
        }
        /* Kept close to the ring, because positions wrap. */
        if (t->m->turn_to[c] != r->head && (int32_t)(t->m->turn_to[c] - r->head) < 0)
            pst_put32(&t->m->turn_to[c], r->head);
    }
}

/* Gives back spans that have been free for a while, from the end on. Some stay for later growth. */
static void give_back(pst_table *t) {
    pst_header *h = t->h;
    uint32_t n = pst_span_count(t), free = t->m->free_spans, looks = LOOKS, most, present;
    present = free - (uint32_t)(h->absent_bytes / SPAN_BYTES);
    uint32_t keep = (n - free) / 16 + PATIENCE;
    uint64_t have = h->committed[PST_SPACE_HEAP], top = t->m->heap_top * PST_GRANULE;
    int ahead = free > n / 8 && have > top; /* committed for growth that did not come */
    if ((!ahead && (int32_t)present <= (int32_t)keep) || pst_reader_lags(h))
        return;
    if (ahead) {
        uint64_t rest = have > PST_GIVE_BACK ? have - PST_GIVE_BACK : 0;
        pst_arena_give_back(&t->arena, PST_SPACE_HEAP, rest > top ? rest : top);
    }
    if ((int32_t)present <= (int32_t)keep)
        return;
    most = present - keep;
    if (most > PST_GIVE_BACK / SPAN_BYTES)
        most = PST_GIVE_BACK / SPAN_BYTES;
    uint32_t i = h->spans.last > n || h->spans.last < 2 ? n : h->spans.last;
    for (; i > 1 && most && looks; looks--) {
        pst_span *s = pst_span_at(t, --i);
        if (s->state & PST_SPAN_ABSENT || !is_reusable(t, s) ||
            is_after(s->freed + PATIENCE, h->active))
            continue;
        (void)drop_span(t, i);
        most--;
    }
    pst_put32(&h->spans.last, i);
}

void pst_span_tidy(pst_table *t) {
    for (uint32_t k = 0; k < RINGS_LOOKED_AT; k++)
        pst_ring_shrink(t, (uint32_t)((t->h->active * RINGS_LOOKED_AT + k) % PST_RINGS));
    measure(t);
    if (t->spans_rest == (uint32_t)t->h->active)
        t->spans_idle = 0;
    if (t->spans_idle < pst_span_count(t) || t->h->spans.phase != PST_SPANS_MARKING)
        look_at_spans(t);
    turn_rings(t);
    give_back(t);
}

/* ---- releasing ------------------------------------------------------------------------------ */

/* Passes over all names of a ring: those of freed spans are dropped, the others go to the tail. */
static void turn_over(pst_table *t, uint32_t c) {
    pst_ring *r = &t->m->rings[c];
    uint32_t end = r->tail, stale = t->m->stale[c];
    for (uint32_t p = r->head; p != end; p++) {
        uint32_t granule = pst_ring_at(t, c, p);
        if (!(pst_span_of(t, granule)->state & PST_SPAN_USED))
            stale--;
        else if (pst_ring_push(t, c, granule))
            return; /* reserved before */
    }
    pst_put32(&t->m->stale[c], stale);
    pst_put32(&r->head, end);
    pst_put32(&t->m->turn_to[c], end);
}

uint32_t pst_span_release(pst_table *t) {
    uint8_t ready[PST_CLASSES] = {0}; /* 1: its ring has room, 2: it has not */
    uint8_t lost[PST_CLASSES] = {0};
    uint32_t released = 0, n = pst_span_count(t);
    for (uint32_t i = 1; i < n; i++) {
        pst_span *s = pst_span_at(t, i);
        uint32_t c = s->size_class;
        if ((s->state & (PST_SPAN_USED | PST_SPAN_REST)) != PST_SPAN_USED || !s->listed ||
            s->listed != pst_span_blocks(c))
            continue;
        if (!ready[c]) {
            const pst_ring *r = &t->m->rings[c];
            ready[c] = pst_ring_reserve(t, c, r->tail - r->head) ? 2 : 1;
        }
        if (ready[c] == 2)
            continue;
        free_run(t, i, c);
        released += pst_span_run(c);
        lost[c] = 1;
    }
    for (uint32_t c = 0; c < PST_CLASSES; c++) {
        if (!lost[c])
            continue;
        turn_over(t, c);
        pst_put32(&t->h->spans.surplus[c], 0);
        pst_put32(&t->h->spans.least[c], 0);
    }
    return released;
}
