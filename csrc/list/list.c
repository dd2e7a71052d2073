#include "list/list.h"

#include "memory/alloc.h"
#include "memory/handle.h"
#include "memory/ring.h"
#include "memory/size_class.h"
#include "memory/span.h"

/* A chunk:
 *
 *     u32 next, u32 prev            granules; `next` is stored when the next chunk is begun
 *     u64 start << 8 | size class, with BELOW where the items lie in files
 *     items                         from the front, the oldest first
 *     times                         timed lists: from the back, the oldest last
 *
 * A variable item is its size in 32 bits and its bytes, padded to whole words. */
enum {
    HEADER = PST_LIST_CHUNK_HEADER,
    LONG_CHUNK = 1024,
    BELOW = PST_LIST_BELOW,
    CLASS = BELOW - 1
};

typedef pst_list_chunk chunk;

static void describe(chunk *c, const uint8_t *at, uint32_t granule, uint64_t word) {
    c->at = at;
    c->bytes = pst_class_size((uint32_t)(word & CLASS));
    c->below = (uint32_t)(word & BELOW);
    c->start = word >> 8;
    c->granule = granule;
    c->next = pst_get32(at);
    c->prev = pst_get32(at + 4);
}

/* A chunk of the writer's own table. */
static chunk own_chunk(const pst_table *t, uint32_t granule) {
    chunk c;
    const uint8_t *at = pst_block(t, granule);
    describe(&c, at, granule, pst_get64(at + 8));
    return c;
}

/* 0 where no chunk can be: a list that went away may name anything. */
static int look(const uint8_t *heap, uint64_t heap_bytes, uint32_t granule, chunk *c) {
    uint64_t at = (uint64_t)granule * PST_GRANULE;
    if (!granule || at + HEADER > heap_bytes)
        return 0;
    uint64_t word = pst_get64(heap + at + 8);
    if ((word & CLASS) >= PST_CLASSES)
        return 0;
    describe(c, heap + at, granule, word);
    return c->bytes > HEADER && at + c->bytes <= heap_bytes;
}

static const int64_t *time_at(const chunk *c, uint64_t i) {
    return (const int64_t *)(const void *)(c->at + c->bytes) - 1 - i;
}

/* ---- taking away ------------------------------------------------------------------------------ */

/* Frees the first chunk. */
static pst_status drop_chunk(pst_table *t, pst_list *l, const chunk *first) {
    int born = l->born == t->birth;
    uint32_t granule = l->first;
    if (granule == l->last)
        *l = (pst_list){.end = l->end};
    else
        l->first = first->next;
    return pst_block_free(t, pst_class_of(first->bytes), granule, born);
}

static chunk first_chunk(const pst_table *t, const pst_list *l, uint64_t *end) {
    chunk c = own_chunk(t, l->first);
    *end = l->first == l->last ? l->end : own_chunk(t, c.next).start;
    return c;
}

pst_status pst_list_clear(pst_table *t, pst_list *l) {
    pst_status st = PST_OK;
    while (l->first && !st) {
        chunk c = own_chunk(t, l->first);
        st = drop_chunk(t, l, &c);
    }
    l->end = 0;
    return st;
}

pst_status pst_list_trim(pst_table *t, const pst_list_shape *s, pst_list *l, int64_t before,
                         uint64_t *dropped) {
    pst_status st = PST_OK;
    uint64_t n = 0;
    while (s->timed && l->first && !st) {
        uint64_t end, i;
        chunk c = first_chunk(t, l, &end);
        if (c.below)
            break; /* nobody here knows their times */
        /* The newest item first: times mostly rise, so this ends at once in a chunk that is to
         * stay. */
        for (i = end - c.start; i; i--) {
            int64_t time = *time_at(&c, i - 1);
            if (time >= before || time == PST_NO_TIME)
                break;
        }
        if (i)
            break;
        n += end - c.start;
        st = drop_chunk(t, l, &c);
    }
    if (dropped)
        *dropped = n;
    return st;
}

pst_status pst_list_trim_to(pst_table *t, pst_list *l, uint64_t seq) {
    pst_status st = PST_OK;
    while (l->first && !st) {
        uint64_t end;
        chunk c = first_chunk(t, l, &end);
        if (end > seq)
            break;
        st = drop_chunk(t, l, &c);
    }
    return st;
}

/* Copies the words of a chunk that a list may show to another block. */
static void copy_chunk(const pst_table *t, uint32_t to, const chunk *from) {
    pst_fill_words((uint64_t *)(void *)pst_block(t, to), (const uint64_t *)(const void *)from->at,
                   from->bytes / 8);
}

/* Undoes what pst_list_move began. */
static pst_status drop_copies(pst_table *t, uint32_t first, pst_status why) {
    while (first) {
        chunk c = own_chunk(t, first);
        (void)pst_block_free(t, pst_class_of(c.bytes), first, 1); /* born: cannot fail */
        first = c.next;
    }
    return why;
}

/* Makes sure that all chunks can be freed. */
static pst_status reserve_chain(pst_table *t, const pst_list *l) {
    uint32_t n[PST_CLASSES] = {0}, at = l->first;
    pst_status s = PST_OK;
    while (at && !s) {
        chunk c = own_chunk(t, at);
        uint32_t class = pst_class_of(c.bytes);
        s = pst_ring_reserve(t, class, ++n[class]);
        at = at == l->last ? 0 : c.next;
    }
    return s;
}

/* Copies the whole chain, and frees it. A list that lies in files then begins at `start`, unless that is 0. */
static pst_status copy_chain(pst_table *t, pst_list *l, uint64_t start) {
    pst_list fresh = *l;
    fresh.first = fresh.last = 0;
    for (uint32_t at = l->first; at;) {
        chunk c = own_chunk(t, at);
        uint32_t copy;
        pst_status s = pst_block_alloc(t, pst_class_of(c.bytes), &copy);
        if (s)
            return drop_copies(t, fresh.first, s);
        copy_chunk(t, copy, &c);
        pst_put32(pst_block(t, copy), 0);
        pst_put32(pst_block(t, copy) + 4, fresh.last);
        if (fresh.last)
            pst_put32(pst_block(t, fresh.last), copy);
        else
            fresh.first = copy;
        fresh.last = copy;
        at = at == l->last ? 0 : c.next;
    }
    if (start) {
        uint8_t *first = pst_block(t, fresh.first);
        pst_put64(first + 8, start << 8 | (pst_get64(first + 8) & 0xFF));
    }
    pst_status s = reserve_chain(t, l);
    if (s)
        return drop_copies(t, fresh.first, s);
    pst_list old = *l;
    *l = fresh;
    return pst_list_clear(t, &old);
}

pst_status pst_list_move(pst_table *t, pst_list *l, uint64_t *looked) {
    enum { MOST = 1024 }; /* chunks */
    int chunks = 0, leaves = 0;
    for (uint32_t at = l->first; at && chunks <= MOST; chunks++) {
        leaves |= pst_span_is_left(t, at);
        at = at == l->last ? 0 : own_chunk(t, at).next;
    }
    *looked += (uint64_t)chunks;
    return leaves && chunks <= MOST ? copy_chain(t, l, 0) : PST_OK;
}

/* ---- items in files -------------------------------------------------------------------------- */

int pst_list_is_below(const pst_table *t, const pst_list *l, uint64_t *end) {
    if (!l->first)
        return 0;
    chunk c = first_chunk(t, l, end);
    return c.below != 0;
}

pst_status pst_list_start_below(pst_table *t, pst_list *l, uint64_t seq) {
    uint64_t end = 0;
    if (!pst_list_is_below(t, l, &end) || seq >= end || seq <= own_chunk(t, l->first).start)
        return PST_CORRUPT;
    return copy_chain(t, l, seq);
}

int pst_list_has_bytes(const pst_table *t, const pst_list *l, uint64_t bytes) {
    uint64_t found = 0;
    if (!l->first || pst_class_size((uint32_t)l->last_class) < LONG_CHUNK)
        return 0;
    for (uint32_t at = l->last; at && found < bytes;) {
        chunk c = own_chunk(t, at);
        found += c.bytes;
        at = at == l->first ? 0 : c.prev;
    }
    return found >= bytes;
}

/* ---- reading --------------------------------------------------------------------------------- */

uint64_t pst_list_start(const uint8_t *heap, uint64_t heap_bytes, const pst_list *l) {
    chunk c;
    if (!look(heap, heap_bytes, l->first, &c) || c.start > l->end)
        return l->end;
    return c.start;
}

pst_list_change pst_list_compare(const uint8_t *heap, uint64_t heap_bytes, const pst_list *before,
                                 const pst_list *after) {
    pst_list_change c = {.start = pst_list_start(heap, heap_bytes, after)};
    int same = before->first && after->first && before->born == after->born;
    /* Only clearing takes numbers back; a list that was trimmed empty goes on where it ended. */
    c.replaced = !same && c.start < before->end;
    c.from = c.replaced || c.start > before->end ? c.start : before->end;
    c.changed = before->first != after->first || before->end != after->end;
    return c;
}

uint32_t pst_list_prefetch_chunk(const uint8_t *heap, uint64_t heap_bytes, const pst_list *l,
                                 uint32_t granule) {
    enum { LINE = 64, MOST = 512 }; /* of longer chunks the processor sees the pattern */
    chunk c;
    if (!look(heap, heap_bytes, granule, &c))
        return 0;
    uint64_t bytes = granule == l->last ? HEADER + (uint64_t)l->used : c.bytes;
    for (uint64_t at = LINE; at < bytes && at < MOST; at += LINE)
        __builtin_prefetch(c.at + at, 0, 2);
    if (granule == l->last)
        return 0;
    __builtin_prefetch(heap + (uint64_t)c.next * PST_GRANULE, 0, 2);
    return c.next;
}

/* The number after the last item of a chunk of the list, and the chunk behind it (granule 0: none).
 * 0 where the items do not fit the chunk. */
static inline int look_ahead(const uint8_t *heap, uint64_t heap_bytes, const pst_list_shape *s,
                             const pst_list *l, const chunk *k, chunk *ahead, uint64_t *end) {
    uint64_t items = l->used, room = k->bytes - HEADER;
    *end = l->end;
    ahead->granule = 0;
    if (k->granule != l->last) {
        if (!look(heap, heap_bytes, k->next, ahead) || ahead->prev != k->granule)
            return 0;
        *end = ahead->start;
        items = (ahead->start - k->start) * s->width;
    }
    if (*end <= k->start || *end > l->end)
        return 0;
    uint64_t count = *end - k->start;
    if (k->below)
        return 1;
    if (count > room || items > room || (s->width && count * s->width != items))
        return 0;
    return items + (s->timed ? 8 * count : 0) <= room;
}

/* Makes *k the current chunk, or sets PST_CORRUPT where its items do not fit it. */
static void enter(pst_list_cursor *c, const chunk *k) {
    c->chunk = *k;
    c->at = HEADER;
    c->status = look_ahead(c->heap, c->heap_bytes, &c->shape, &c->list, k, &c->ahead, &c->chunk_end)
                    ? PST_OK
                    : PST_CORRUPT;
}

/* `ahead` begins where the current chunk ends: that is how its end is known. */
static void enter_next(pst_list_cursor *c) {
    chunk k = c->ahead;
    enter(c, &k);
}

/* Enters the chunk of item `from`, from the nearer end of the chain. */
static void find_chunk(pst_list_cursor *c, const chunk *first, const chunk *last, uint64_t from) {
    if (from < last->start && from - first->start <= last->start - from) {
        enter(c, first);
        while (!c->status && from >= c->chunk_end)
            enter_next(c);
        return;
    }
    chunk k = *last;
    while (k.start > from) {
        uint64_t above = k.start;
        if (!look(c->heap, c->heap_bytes, k.prev, &k) || k.start >= above) {
            c->status = PST_CORRUPT;
            return;
        }
    }
    enter(c, &k);
    if (from < c->chunk.start || from >= c->chunk_end)
        c->status = PST_CORRUPT;
}

/* Reads the size of the current variable item; 0 where it would leave its chunk. */
static int variable_fits(pst_list_cursor *c, uint32_t *size) {
    uint64_t end = c->ahead.granule ? c->chunk.bytes : HEADER + (uint64_t)c->list.used;
    if (c->at + 8 > end)
        return 0;
    *size = pst_get32(c->chunk.at + c->at);
    return ((uint64_t)*size + 4 + 7) / 8 * 8 <= end - c->at;
}

void pst_list_seek(pst_list_cursor *c, const uint8_t *heap, uint64_t heap_bytes,
                   const pst_list_shape *s, const pst_list *l, uint64_t from) {
    chunk first, last;
    memset(c, 0, sizeof *c);
    c->heap = heap;
    c->heap_bytes = heap_bytes;
    c->shape = *s;
    c->list = *l;
    c->seq = from;
    c->status = PST_NOT_FOUND;
    if (!l->first)
        return;
    c->status = PST_CORRUPT;
    if (!look(heap, heap_bytes, l->first, &first) || !look(heap, heap_bytes, l->last, &last) ||
        first.start > last.start || last.start >= l->end)
        return;
    if (from < first.start)
        c->seq = from = first.start;
    if (from >= l->end) {
        c->status = PST_NOT_FOUND;
        return;
    }
    c->status = PST_OK;
    find_chunk(c, &first, &last, from);
    for (uint64_t i = c->chunk.start; !s->width && !c->chunk.below && !c->status && i < from; i++) {
        uint32_t size;
        if (!variable_fits(c, &size))
            c->status = PST_CORRUPT;
        else
            c->at += ((uint64_t)size + 4 + 7) / 8 * 8;
    }
}

static pst_status at_item(pst_list_cursor *c) {
    if (!c->status && c->seq >= c->chunk_end) {
        if (!c->ahead.granule)
            c->status = PST_NOT_FOUND;
        else
            enter_next(c);
    }
    if (!c->status && c->chunk.below)
        c->status = PST_NOT_HERE;
    return c->status;
}

pst_status pst_list_next(pst_list_cursor *c, pst_item *item, uint64_t *seq) {
    pst_status st = at_item(c);
    if (st)
        return st;
    uint64_t i = c->seq - c->chunk.start;
    uint32_t size = c->shape.width;
    if (size) {
        item->data = c->chunk.at + HEADER + i * size;
    } else {
        if (!variable_fits(c, &size))
            return c->status = PST_CORRUPT;
        item->data = c->chunk.at + c->at + 4;
        c->at += ((uint64_t)size + 4 + 7) / 8 * 8;
    }
    item->size = size;
    item->time = c->shape.timed ? (int64_t)pst_get64(time_at(&c->chunk, i)) : 0;
    if (seq)
        *seq = c->seq;
    c->seq++;
    return PST_OK;
}

pst_status pst_list_next_run(pst_list_cursor *c, pst_list_run *run) {
    if (!c->shape.width)
        return PST_INVALID;
    pst_status st = at_item(c);
    if (st)
        return st;
    uint64_t i = c->seq - c->chunk.start;
    run->data = c->chunk.at + HEADER + i * c->shape.width;
    run->times = c->shape.timed ? time_at(&c->chunk, i) : NULL;
    run->seq = c->seq;
    run->count = c->chunk_end - c->seq;
    c->seq = c->chunk_end;
    return PST_OK;
}

static inline pst_status copy_chunks(const uint8_t *heap, uint64_t heap_bytes,
                                     const pst_list_shape *s, const pst_list *l, void *out,
                                     size_t size, void (*copy)(void *, const void *, size_t)) {
    uint8_t *to = out;
    chunk c, ahead;
    uint64_t end;
    if (!s->width)
        return PST_INVALID;
    if (!l->first)
        return size ? PST_CORRUPT : PST_OK;
    if (!look(heap, heap_bytes, l->first, &c))
        return PST_CORRUPT;
    for (;; c = ahead) {
        if (!look_ahead(heap, heap_bytes, s, l, &c, &ahead, &end))
            return PST_CORRUPT;
        if (c.below)
            return PST_NOT_HERE;
        size_t bytes = (size_t)(end - c.start) * s->width; /* within a chunk */
        if (bytes > size)
            return PST_CORRUPT;
        copy(to, c.at + HEADER, bytes);
        to += bytes;
        size -= bytes;
        if (!ahead.granule)
            return size ? PST_CORRUPT : PST_OK;
    }
}

pst_status pst_list_copy(const uint8_t *heap, uint64_t heap_bytes, const pst_list_shape *s,
                         const pst_list *l, void *out, size_t size) {
    return copy_chunks(heap, heap_bytes, s, l, out, size, pst_get_bytes);
}

pst_status pst_list_stream(const uint8_t *heap, uint64_t heap_bytes, const pst_list_shape *s,
                           const pst_list *l, void *out, size_t size) {
    return copy_chunks(heap, heap_bytes, s, l, out, size, pst_stream_words);
}
