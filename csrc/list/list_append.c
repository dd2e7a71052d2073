/* list_append.c: items at the end of a list; list.c has the layout of its chunks. */
#include "list/list.h"
#include "memory/alloc.h"
#include "memory/handle.h"
#include "memory/size_class.h"

enum { HEADER = PST_LIST_CHUNK_HEADER, FIRST_CHUNK = 32, LARGE_CHUNK = 4096 };

/* Numbers for a whole chunk of items are left. */
#define MAX_SEQ ((UINT64_C(1) << PST_LIST_CLASS_SHIFT) - LARGE_CHUNK)

static uint64_t item_bytes(const pst_list_shape *s, const pst_item *item) {
    return s->width ? s->width : ((uint64_t)item->size + 4 + 7) & ~UINT64_C(7);
}

static void put_words(uint8_t *to, const uint8_t *from, uint64_t bytes) {
    uint64_t word;
    for (uint64_t i = 0; i < bytes; i += 8) {
        memcpy(&word, from + i, 8);
        pst_put64(to + i, word);
    }
}

static void put_variable(uint8_t *to, const pst_item *item) {
    const uint8_t *from = item->data;
    uint64_t word = item->size, size = item->size, head = size < 4 ? size : 4;
    if (head)
        memcpy((uint8_t *)&word + 4, from, head);
    pst_put64(to, word);
    if (size <= 4)
        return;
    uint64_t rest = size - 4, whole = rest & ~UINT64_C(7);
    put_words(to + 8, from + 4, whole);
    if (rest == whole)
        return;
    word = 0;
    memcpy(&word, from + 4 + whole, rest - whole);
    pst_put64(to + 8 + whole, word);
}

/* As put_variable. REQUIRES: seven more bytes can be read behind the item's. */
static inline void put_near(uint8_t *to, const uint8_t *from, uint64_t size) {
    uint64_t word;
    memcpy(&word, from, 8);
    word = size < 4 ? word & ((UINT64_C(1) << 8 * size) - 1) : word;
    pst_put64(to, size | word << 32);
    for (uint64_t at = 4; at < size; at += 8) {
        memcpy(&word, from + at, 8);
        word = size - at < 8 ? word & ((UINT64_C(1) << 8 * (size - at)) - 1) : word;
        pst_put64(to + 4 + at, word);
    }
}

static void put_item(const pst_list_shape *s, uint8_t *to, const pst_item *item) {
    uint16_t half;
    uint32_t word;
    switch (s->width) {
    case 0:
        put_variable(to, item);
        return;
    case 1:
        pst_put8(to, *(const uint8_t *)item->data);
        return;
    case 2:
        memcpy(&half, item->data, 2);
        pst_put16(to, half);
        return;
    case 4:
        memcpy(&word, item->data, 4);
        pst_put32(to, word);
        return;
    default:
        put_words(to, item->data, s->width);
    }
}

static void put_time(uint8_t *at, uint64_t bytes, uint64_t i, int64_t time) {
    pst_put64(at + bytes - 8 * (i + 1), (uint64_t)time);
}

/* The item becomes the first of a new chunk at the end of the chain. */
static pst_status append_chunk(pst_table *t, const pst_list_shape *s, pst_list *l,
                               const pst_item *item, uint64_t room) {
    uint64_t used = item_bytes(s, item), need = HEADER + used + (s->timed ? 8 : 0);
    uint64_t bytes = l->first ? 2 * pst_class_size((uint32_t)l->last_class) : FIRST_CHUNK;
    if (bytes < HEADER + room)
        bytes = HEADER + room;
    if (need > PST_MAX_BYTES || l->end >= MAX_SEQ)
        return PST_TOO_LARGE;
    if (bytes > LARGE_CHUNK)
        bytes = LARGE_CHUNK;
    /* A large item gets a chunk that fits it; in an ordinary chunk it would leave most of the room
     * unused. */
    if (bytes < need || need > LARGE_CHUNK / 4)
        bytes = need;
    uint32_t granule, class = pst_class_of(bytes);
    pst_status st = pst_block_alloc(t, class, &granule);
    if (st)
        return st;
    uint8_t *at = pst_block(t, granule);
    pst_put64(at, (uint64_t)l->last << 32);
    pst_put64(at + 8, l->end << 8 | class);
    put_item(s, at + HEADER, item);
    if (s->timed)
        put_time(at, pst_class_size(class), 0, item->time);
    if (l->first) {
        pst_put32(pst_block(t, l->last), granule);
    } else {
        l->first = granule;
        l->born = t->birth;
    }
    l->last = granule;
    l->last_class = class;
    l->used = (uint32_t)used;
    l->end++;
    return PST_OK;
}

pst_status pst_list_append(pst_table *t, const pst_list_shape *s, pst_list *l,
                           const pst_item *item) {
    if (!l->first)
        return append_chunk(t, s, l, item, 0);
    uint8_t *at = pst_block(t, l->last);
    uint64_t bytes = pst_class_size((uint32_t)l->last_class), used = item_bytes(s, item);
    uint64_t i = s->timed ? l->end - (pst_get64(at + 8) >> 8) : 0;
    if (HEADER + l->used + used + (s->timed ? 8 * (i + 1) : 0) > bytes)
        return append_chunk(t, s, l, item, 0);
    put_item(s, at + HEADER + l->used, item);
    if (s->timed)
        put_time(at, bytes, i, item->time);
    l->used += (uint32_t)used;
    l->end++;
    return PST_OK;
}

pst_status pst_list_begin_below(pst_table *t, pst_list *l, uint64_t start, uint64_t end) {
    uint32_t granule, class = pst_class_of(FIRST_CHUNK);
    if (end >= MAX_SEQ)
        return PST_TOO_LARGE;
    pst_status s = pst_block_alloc(t, class, &granule);
    if (s)
        return s;
    uint8_t *at = pst_block(t, granule);
    pst_put64(at, 0);
    pst_put64(at + 8, start << 8 | PST_LIST_BELOW | class);
    /* No room is left in it, so the next item begins a chunk of its own. */
    *l = (pst_list){granule, granule, FIRST_CHUNK - HEADER, t->birth, end, class};
    return PST_OK;
}

/* ---- packed items ---------------------------------------------------------------------------- */

/* What the items that are left take in chunks, with their times: those of the first few thousand
 * bytes. */
static uint64_t room_of(pst_packed p, const pst_list_shape *s) {
    uint64_t room = 0;
    if (s->width && !p.timed && !s->timed)
        return (uint64_t)(p.end - p.p);
    /* Most items of bytes are short, and their size is one byte. */
    while (!p.timed && !s->timed && room < LARGE_CHUNK && p.p < p.end && *p.p < 0x80) {
        uint64_t size = *p.p;
        if (size >= (uint64_t)(p.end - p.p))
            return room; /* whoever reads the item finds that it is cut off */
        room += (size + 4 + 7) & ~UINT64_C(7);
        p.p += 1 + size;
    }
    for (pst_item item; room < LARGE_CHUNK && pst_packed_next(&p, &item) == PST_OK;)
        room += item_bytes(s, &item) + (s->timed ? 8 : 0);
    return room;
}

/* Appends whole words that are items without times, as many as the last chunk has room for. */
static void append_words(pst_table *t, const pst_list_shape *s, pst_list *l, pst_packed *packed) {
    uint64_t n = (uint64_t)(packed->end - packed->p) / s->width;
    uint64_t left = pst_class_size((uint32_t)l->last_class) - HEADER - l->used;
    if (n > left / s->width)
        n = left / s->width;
    put_words(pst_block(t, l->last) + HEADER + l->used, packed->p, n * s->width);
    packed->p += n * s->width;
    l->used += (uint32_t)(n * s->width);
    l->end += n;
}

/* Appends short items of bytes without times, as many as the last chunk has room for. */
static void append_short(pst_table *t, pst_list *l, pst_packed *packed) {
    uint8_t *at = pst_block(t, l->last) + HEADER;
    uint64_t room = pst_class_size((uint32_t)l->last_class) - HEADER, used = l->used, n = 0;
    const uint8_t *p = packed->p, *end = packed->end;
    for (uint64_t size; p < end && (size = *p) < 0x80; n++) {
        uint64_t bytes = (size + 4 + 7) & ~UINT64_C(7), left = (uint64_t)(end - p);
        if (size >= left || used + bytes > room)
            break;
        pst_item item = {p + 1, (uint32_t)size, 0};
        if (left > size + 8)
            put_near(at + used, p + 1, size);
        else
            put_variable(at + used, &item);
        used += bytes;
        p += 1 + size;
    }
    packed->p = p;
    l->end += n;
    l->used = (uint32_t)used;
}

pst_status pst_list_append_packed(pst_table *t, const pst_list_shape *s, pst_list *l,
                                  pst_packed *packed, int64_t time) {
    pst_item item;
    int plain = !packed->timed && !s->timed, words = s->width && s->width % 8 == 0;
    uint64_t room = l->first ? 0 : room_of(*packed, s);
    for (pst_status st;; room = 0) {
        if (plain && words && l->first)
            append_words(t, s, l, packed);
        else if (plain && !s->width && l->first)
            append_short(t, l, packed);
        st = pst_packed_next(packed, &item);
        if (st)
            return st == PST_NOT_FOUND ? PST_OK : st;
        if (!packed->timed)
            item.time = time;
        st = room ? append_chunk(t, s, l, &item, room) : pst_list_append(t, s, l, &item);
        if (st)
            return st;
    }
}
