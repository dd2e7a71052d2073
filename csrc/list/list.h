/* list.h: appending lists of any length, in blocks.
 *
 * Purpose: a list state. The row holds three words that name a chain of chunks. An append writes
 * behind what those words make visible. So it costs the same whatever the list's length, and no
 * epoch that still has the older three words notices.
 *
 * Thread safety: append, extend, clear and trim are the writer's alone. Cursors, copies and packing
 * only load. Beside the writer their results hold if the epoch of the list's words is still there
 * afterwards (reader.c). A list that went away gives PST_CORRUPT or nonsense, but never a crash or
 * a loop. Packed items are private memory.
 *
 * Invariants
 *  Q1. A chunk is immutable up to what a visible list shows of it: `used` bytes of the last chunk
 *      and the items before `end`. `next` of a list's last chunk, and whatever lies behind `used`,
 *      belong to the future.
 *  Q2. A chunk's class, number of its first item and predecessor never change. The items of a chunk
 *      that is not the last end where its successor's begin; none is empty.
 *  Q3. `born` is the epoch in which the chain was begun: if that is the open one, no sealed epoch
 *      knows any of its chunks, and they may be taken again at once (B3).
 *  Q4. An empty list has no chunk: all its words but `end` are zero. `end` stays where items were
 *      trimmed away, so that no sequence number is given twice.
 *  Q5. After a failed append the list's words are as before. After any other failed call the epoch
 *      is to be rolled back.
 *  Q6. `last_class` is what the last chunk's header says of its size, so that an append needs only
 *      the line that it writes to.
 *  Q7. The first chunk may stand for items that lie in files alone: it has their numbers and room for
 *      none. Who reads such an item here gets PST_NOT_HERE, whatever else is changed: appends, what
 *      was appended and what is compared know nothing of it. Trimming by times ends before it.
 *
 * Complexity: append O(item); clear and trim O(chunks dropped); seek O(chunks between the place and
 * the nearer end), so what was appended last is found in O(1). Chunks double from 32 bytes to 4 KB.
 */
#ifndef PST_LIST_H
#define PST_LIST_H

#include <string.h>

#include "memory/layout.h"
#include "memory/size_class.h"
#include "memory/store.h"
#include "pystate.h"

/* Three words of a row; all zero: an empty list whose first item gets the number 0. */
typedef struct pst_list {
    uint32_t first; /* granules of chunks */
    uint32_t last;
    uint32_t used; /* bytes of items in the last chunk */
    uint32_t born; /* low half of the epoch */
    uint64_t end;  /* sequence number after the last item; below 2^56 */
    uint64_t last_class;
} pst_list;

/* `end` and the last chunk's class share a word. */
enum { PST_LIST_WORDS = 3, PST_LIST_CLASS_SHIFT = 56 };
enum { PST_LIST_MAX_WIDTH = 256 };
enum { PST_LIST_CHUNK_HEADER = 16, PST_LIST_BELOW = 0x80 /* beside a chunk's size class */ };

typedef struct pst_list_shape {
    uint16_t width; /* bytes of an item: 1, 2, 4, 8, a multiple of 8 up to 256, or 0: variable */
    uint8_t timed;
} pst_list_shape;

/* Going in: `data` needs no alignment; `size` counts only for variable items, `time` only for timed
 * lists. Coming out: `data` has the width's alignment (at most 8; 4 for variable items) and is
 * valid until the next write; `size` is always set; `time` is 0 where none is known. */
typedef struct pst_item {
    const void *data;
    uint32_t size;
    int64_t time;
} pst_item;

/* Loaded and stored word by word: halves that were stored one by one and are loaded together, or
 * the reverse, wait for each other. */
static inline pst_list pst_list_load(const uint64_t *field) {
    uint64_t chunks = pst_get64(field), last = pst_get64(field + 1);
    pst_list l;
    l.first = (uint32_t)chunks;
    l.last = (uint32_t)(chunks >> 32);
    l.used = (uint32_t)last;
    l.born = (uint32_t)(last >> 32);
    uint64_t end = pst_get64(field + 2);
    l.end = end & ((UINT64_C(1) << PST_LIST_CLASS_SHIFT) - 1);
    l.last_class = end >> PST_LIST_CLASS_SHIFT;
    return l;
}

/* What an append to the last chunk changes.
 * REQUIRES: a release fence since the list was written to, as before any reference. */
static inline void pst_list_store_end(uint64_t *field, const pst_list *l) {
    pst_put64(field + 1, l->used | (uint64_t)l->born << 32);
    pst_put64(field + 2, l->end | l->last_class << PST_LIST_CLASS_SHIFT);
}

/* REQUIRES: the same. */
static inline void pst_list_store(uint64_t *field, const pst_list *l) {
    pst_put64(field, l->first | (uint64_t)l->last << 32);
    pst_list_store_end(field, l);
}

/* ---- writing ------------------------------------------------------------------------------- */

/* `l` is the caller's private copy in all of these; the caller stores it afterwards. PST_TOO_LARGE
 * for an item near PST_MAX_BYTES; what pst_block_alloc returns. */
pst_status pst_list_append(pst_table *t, const pst_list_shape *s, pst_list *l,
                           const pst_item *item);
/* The frequent append: an item of a word, without time, behind others in the last chunk. 0: there
 * is no room for it. */
static inline int pst_list_append_word(uint8_t *heap, pst_list *l, uint64_t word) {
    uint64_t at = PST_LIST_CHUNK_HEADER + (uint64_t)l->used;
    if (at + 8 > pst_class_size((uint32_t)l->last_class))
        return 0;
    pst_put64(heap + (uint64_t)l->last * PST_GRANULE + at, word);
    l->used += 8;
    l->end++;
    return 1;
}
/* Makes an empty list one whose items from `start` to before `end` lie in files. REQUIRES: the list is
 * all zero, start < end. PST_TOO_LARGE: numbers that no list has. */
pst_status pst_list_begin_below(pst_table *t, pst_list *l, uint64_t start, uint64_t end);
/* Lets a list of which items lie in files begin at number `seq`, which is one of theirs. What is in the
 * row is copied. PST_CORRUPT: it is not; what pst_block_alloc returns, and then *l is as before. */
pst_status pst_list_start_below(pst_table *t, pst_list *l, uint64_t seq);
/* Frees the chain; *l becomes all zero. */
pst_status pst_list_clear(pst_table *t, pst_list *l);
/* Frees head chunks all of whose items have a time below `before`, up to the first that has not;
 * items of a list that is not timed, and those of PST_NO_TIME, never go. `dropped` (may be NULL)
 * counts them. */
pst_status pst_list_trim(pst_table *t, const pst_list_shape *s, pst_list *l, int64_t before,
                         uint64_t *dropped);
/* Frees head chunks that hold nothing from number `seq` on. */
pst_status pst_list_trim_to(pst_table *t, pst_list *l, uint64_t seq);

/* Moves the whole chain if a chunk of it lies in a span that is being left; PST_OK also where it
 * need not move. */
pst_status pst_list_move(pst_table *t, pst_list *l, uint64_t *looked);

/* ---- reading ------------------------------------------------------------------------------- */

/* The number of the first item that is kept; `end` for an empty list. */
uint64_t pst_list_start(const uint8_t *heap, uint64_t heap_bytes, const pst_list *l);

/* Whether items of the writer's own list lie in files alone (Q7): those before *end, from the list's
 * start on. */
int pst_list_is_below(const pst_table *t, const pst_list *l, uint64_t *end);
/* Does it have that many bytes in blocks? Only where its last chunk is not a short one that is asked. */
int pst_list_has_bytes(const pst_table *t, const pst_list *l, uint64_t bytes);

static inline uint64_t pst_list_count(const uint8_t *heap, uint64_t heap_bytes, const pst_list *l) {
    return l->end - pst_list_start(heap, heap_bytes, l);
}

/* What became of a row's list between two of its images. */
typedef struct pst_list_change {
    uint64_t start;   /* what lies before this number is gone */
    uint64_t from;    /* the items from this number on are new */
    uint8_t replaced; /* all older items are gone, and numbers begin again */
    uint8_t changed;  /* 0: the lists are equal */
} pst_list_change;

pst_list_change pst_list_compare(const uint8_t *heap, uint64_t heap_bytes, const pst_list *before,
                                 const pst_list *after);

/* Prefetches the line that an append to the list in a row touches; of a timed list not that of the
 * time. */
PST_PREFETCH void pst_list_prefetch(const uint8_t *heap, const uint64_t *field) {
    uint64_t last = pst_get64(field) >> 32, used = (uint32_t)pst_get64(field + 1);
    __builtin_prefetch(heap + last * PST_GRANULE + PST_LIST_CHUNK_HEADER + used, 1, 2);
}
/* Prefetches the header of the last chunk, where looking for what was appended last begins. */
PST_PREFETCH void pst_list_prefetch_last(const uint8_t *heap, const uint64_t *field) {
    __builtin_prefetch(heap + (pst_get64(field) >> 32) * PST_GRANULE);
}
/* Prefetches the line with which a reader begins. */
PST_PREFETCH void pst_list_prefetch_first(const uint8_t *heap, const uint64_t *field) {
    __builtin_prefetch(heap + (uint64_t)(uint32_t)pst_get64(field) * PST_GRANULE);
}
/* Prefetches a chunk whose first line is in cache, and the first line of the next one, which it
 * returns; 0 after the last. It checks only that the chunk lies in the heap. */
uint32_t pst_list_prefetch_chunk(const uint8_t *heap, uint64_t heap_bytes, const pst_list *l,
                                 uint32_t granule);

typedef struct pst_list_chunk {
    const uint8_t *at;
    uint64_t bytes;
    uint64_t start; /* number of its first item */
    uint32_t granule;
    uint32_t next;
    uint32_t prev;
    uint32_t below; /* its items lie in files */
} pst_list_chunk;

typedef struct pst_list_cursor {
    const uint8_t *heap;
    uint64_t heap_bytes;
    pst_list list;
    uint64_t seq; /* of the next item */
    pst_list_chunk chunk;
    pst_list_chunk ahead; /* granule 0: the current chunk is the last */
    uint64_t chunk_end;   /* the number after its last item */
    uint64_t at;          /* variable items: where the next one lies in the chunk */
    pst_list_shape shape;
    pst_status status;
} pst_list_cursor;

/* Positions before item `from`, or before the first one kept if that is later. */
void pst_list_seek(pst_list_cursor *c, const uint8_t *heap, uint64_t heap_bytes,
                   const pst_list_shape *s, const pst_list *l, uint64_t from);
/* PST_NOT_FOUND at the end, PST_CORRUPT. `seq` may be NULL. */
pst_status pst_list_next(pst_list_cursor *c, pst_item *item, uint64_t *seq);

/* Items of fixed width that lie side by side. `times` points at the time of the first; that of item
 * i is times[-i]. NULL for a list that is not timed. */
typedef struct pst_list_run {
    const uint8_t *data;
    const int64_t *times;
    uint64_t seq;
    uint64_t count;
} pst_list_run;

/* The rest of the current chunk, or the next chunk. PST_NOT_FOUND, PST_CORRUPT; PST_INVALID for
 * variable items. */
pst_status pst_list_next_run(pst_list_cursor *c, pst_list_run *run);

/* All items of fixed width as one run; `size` is count * width. PST_CORRUPT where the chunks hold
 * more or less, as those of a list that went away since it was counted. PST_INVALID for variable
 * items. */
pst_status pst_list_copy(const uint8_t *heap, uint64_t heap_bytes, const pst_list_shape *s,
                         const pst_list *l, void *out, size_t size);
/* The same, bypassing the caches (store.h), for a part of an output that is larger than they are.
 * REQUIRES: items of whole words; pst_streamed() when all is copied. */
pst_status pst_list_stream(const uint8_t *heap, uint64_t heap_bytes, const pst_list_shape *s,
                           const pst_list *l, void *out, size_t size);

/* ---- packed items: what files carry (FORMAT.md) -------------------------------------------- */

/* Packs items from the cursor on and moves it behind them: as many as fit `max_bytes`, the first
 * one whatever its size. `size`: in, the room at `out`; out, the bytes written. PST_NOT_FOUND at
 * the end; PST_TOO_LARGE where the room does not take the first item, *size then says what would;
 * PST_CORRUPT. */
pst_status pst_list_pack_next(pst_list_cursor *c, size_t max_bytes, uint8_t *out, size_t *size,
                              uint64_t *taken);
/* The same from item `from` on. An empty rest is PST_OK: a blob of no items. */
pst_status pst_list_pack(const uint8_t *heap, uint64_t heap_bytes, const pst_list_shape *s,
                         const pst_list *l, uint64_t from, size_t max_bytes, uint8_t *out,
                         size_t *size, uint64_t *taken);

/* The first byte of packed items. */
uint8_t pst_packed_head(int timed, uint32_t width);
/* Writes one item behind the first byte `head` and those before it, the last of which has the time
 * *time, at first 0; how many bytes. REQUIRES: room for them and two varints. */
size_t pst_packed_add(uint8_t *out, uint8_t head, uint64_t *time, const pst_item *item);

typedef struct pst_packed {
    const uint8_t *p;
    const uint8_t *end;
    uint64_t time;
    uint16_t width;
    uint8_t timed; /* the blob, whatever the shape says */
} pst_packed;

/* PST_CORRUPT, also where the blob has variable items and the shape has not, or the reverse. */
pst_status pst_packed_open(pst_packed *p, const pst_list_shape *s, pst_bytes blob);
/* `item->data` points into the blob, without alignment. PST_NOT_FOUND at the end, PST_CORRUPT. */
pst_status pst_packed_next(pst_packed *p, pst_item *item);
/* Appends all that is left of `packed`; without times of its own its items have `time`. The first
 * chunk of a list has room for all of them, as far as a chunk has. PST_CORRUPT, and as an append. */
pst_status pst_list_append_packed(pst_table *t, const pst_list_shape *s, pst_list *l,
                                  pst_packed *packed, int64_t time);

#endif
