/* list_pack.c: items of a list as one record of a file. FORMAT.md describes the bytes. */
#include "base/coding.h"
#include "list/list.h"

enum { TIMED = 1, VARIABLE = 2, KNOWN = TIMED | VARIABLE };

static uint64_t zigzag(uint64_t difference) {
    return difference << 1 ^ (uint64_t)((int64_t)difference >> 63);
}

static uint64_t unzigzag(uint64_t z) {
    return z >> 1 ^ (0 - (z & 1));
}

/* Whole runs, where items are of fixed width and bear no times. */
static pst_status pack_runs(pst_list_cursor *c, size_t most, uint8_t *out, size_t *size,
                            uint64_t *taken) {
    uint64_t width = c->shape.width;
    pst_list_run run;
    pst_status st = PST_OK;
    for (size_t room; (room = most - *size) >= width;) {
        st = pst_list_next_run(c, &run);
        if (st)
            break;
        uint64_t n = run.count < room / width ? run.count : room / width;
        pst_get_bytes(out + *size, run.data, (size_t)(n * width));
        *size += (size_t)(n * width);
        *taken += n;
        c->seq = run.seq + n;
    }
    return st == PST_NOT_FOUND ? PST_OK : st;
}

/* The item that was read last is the next one again. */
static void unread(pst_list_cursor *c, const pst_item *item) {
    c->seq--;
    if (!c->shape.width)
        c->at = (uint64_t)((const uint8_t *)item->data - 4 - c->chunk.at);
}

static pst_status pack_items(pst_list_cursor *c, size_t most, size_t room, uint8_t *out,
                             size_t *size, uint64_t *taken) {
    uint64_t time = 0;
    for (;;) {
        pst_item item;
        pst_status st = pst_list_next(c, &item, NULL);
        if (st)
            return st == PST_NOT_FOUND ? PST_OK : st;
        uint64_t step = zigzag((uint64_t)item.time - time);
        size_t need = item.size;
        if (c->shape.timed)
            need += pst_varint_size(step);
        if (!c->shape.width)
            need += pst_varint_size(item.size);
        if (need > (*taken ? most : room) - *size) {
            unread(c, &item);
            if (*taken)
                return PST_OK;
            *size += need;
            return PST_TOO_LARGE;
        }
        *size += pst_packed_add(out + *size, out[0], &time, &item);
        if (++*taken && *size >= most)
            return PST_OK;
    }
}

pst_status pst_list_pack_next(pst_list_cursor *c, size_t max_bytes, uint8_t *out, size_t *size,
                              uint64_t *taken) {
    size_t room = *size, most = max_bytes < room ? max_bytes : room;
    *taken = 0;
    *size = 1;
    pst_item first;
    pst_list_cursor ahead = *c;
    pst_status st = pst_list_next(&ahead, &first, NULL);
    if (st)
        return st;
    if (room < 1) {
        *size = 1 + (size_t)first.size + 2 * PST_VARINT_MAX;
        return PST_TOO_LARGE;
    }
    out[0] = pst_packed_head(c->shape.timed, c->shape.width);
    if (c->shape.width && !c->shape.timed && most > c->shape.width)
        return pack_runs(c, most, out, size, taken);
    return pack_items(c, most, room, out, size, taken);
}

pst_status pst_list_pack(const uint8_t *heap, uint64_t heap_bytes, const pst_list_shape *s,
                         const pst_list *l, uint64_t from, size_t max_bytes, uint8_t *out,
                         size_t *size, uint64_t *taken) {
    pst_list_cursor c;
    size_t room = *size;
    pst_list_seek(&c, heap, heap_bytes, s, l, from);
    pst_status st = pst_list_pack_next(&c, max_bytes, out, size, taken);
    if (st != PST_NOT_FOUND)
        return st;
    *size = 1;
    if (!room)
        return PST_TOO_LARGE;
    out[0] = pst_packed_head(s->timed, s->width);
    return PST_OK;
}

uint8_t pst_packed_head(int timed, uint32_t width) {
    return (uint8_t)((timed ? TIMED : 0) | (width ? 0 : VARIABLE));
}

size_t pst_packed_add(uint8_t *out, uint8_t head, uint64_t *time, const pst_item *item) {
    size_t size = 0;
    if (head & TIMED)
        size += pst_put_varint(out, zigzag((uint64_t)item->time - *time));
    if (head & VARIABLE)
        size += pst_put_varint(out + size, item->size);
    pst_get_bytes(out + size, item->data, item->size);
    *time = (uint64_t)item->time;
    return size + item->size;
}

pst_status pst_packed_open(pst_packed *p, const pst_list_shape *s, pst_bytes blob) {
    if (!blob.size || blob.data[0] & ~KNOWN)
        return PST_CORRUPT;
    if (((blob.data[0] & VARIABLE) != 0) != (s->width == 0))
        return PST_CORRUPT;
    *p = (pst_packed){.p = blob.data + 1,
                      .end = blob.data + blob.size,
                      .width = s->width,
                      .timed = blob.data[0] & TIMED};
    return PST_OK;
}

pst_status pst_packed_next(pst_packed *p, pst_item *item) {
    if (p->p == p->end)
        return PST_NOT_FOUND;
    pst_cursor c = {p->p, p->end, 0};
    if (p->timed)
        p->time += unzigzag(pst_cursor_varint(&c));
    uint64_t size = p->width ? p->width : pst_cursor_varint(&c);
    const uint8_t *data = pst_cursor_bytes(&c, size);
    if (c.bad || size > PST_MAX_BYTES)
        return PST_CORRUPT;
    item->data = data;
    item->size = (uint32_t)size;
    item->time = (int64_t)p->time;
    p->p = c.p;
    return PST_OK;
}
