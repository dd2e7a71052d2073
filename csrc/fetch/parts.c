#include "fetch/parts.h"

#include <string.h>

#include "base/coding.h"
#include "base/mem.h"
#include "key/schema.h"

/* How a record lies: this, then the bytes of the element, then each cell of the key that is kept and
 * not null, then each present cell: two words, or its bytes. All begin at multiples of eight. */
typedef struct head {
    uint64_t hash;
    uint64_t changed;
    uint64_t present;
    int32_t key_group;
    uint32_t key_nulls;
    uint32_t element;
    uint32_t op;
    uint32_t before;
    int32_t file;
    uint64_t size;
} head;

enum { UNIT = 8 }; /* a part is named by where it begins, in these */

static size_t up(size_t n) {
    return (n + 7) & ~(size_t)7;
}

static int is_bytes(const pst_schema *schema, int i) {
    return schema->states[i].kind == PST_LIST || !pst_type_width(schema->states[i].type);
}

static const pst_bytes *element_of(const pst_schema *schema, const pst_record *r) {
    int32_t last = schema->n_keys - 1;
    return pst_schema_has_element(schema) && !(r->key_nulls >> last & 1) ? &r->key[last].bytes
                                                                         : NULL;
}

static size_t size_of(const pst_parts *p, const pst_record *r) {
    const pst_schema *schema = p->schema;
    const pst_bytes *element = element_of(schema, r);
    size_t n = sizeof(head) + (element ? up(element->size) : 0);
    for (int32_t k = 0; k < p->n_keys; k++)
        if (!(r->key_nulls >> k & 1))
            n += pst_type_width(schema->keys[k].type) ? 16 : 8 + up(r->key[k].bytes.size);
    for (uint64_t left = r->changed & r->present; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        n += is_bytes(schema, i) ? 8 + up(r->cells[i].bytes.size) : 16;
    }
    return n;
}

static uint8_t *put_bytes(uint8_t *to, pst_bytes bytes) {
    if (bytes.size)
        memcpy(to, bytes.data, bytes.size);
    return to + up(bytes.size);
}

static uint8_t *put_cell(uint8_t *to, const pst_cell *cell, int bytes) {
    uint64_t size = cell->bytes.size;
    if (bytes) {
        memcpy(to, &size, sizeof size);
        return put_bytes(to + sizeof size, cell->bytes);
    }
    memcpy(to, cell->word, 16);
    return to + 16;
}

static const uint8_t *get_cell(const uint8_t *from, pst_cell *cell, int bytes) {
    uint64_t size;
    if (!bytes) {
        memcpy(cell->word, from, 16);
        return from + 16;
    }
    memcpy(&size, from, sizeof size);
    from += sizeof size;
    cell->bytes = (pst_bytes){from, (uint32_t)size};
    return from + up(size);
}

pst_status pst_parts_add(pst_parts *p, uint32_t before, int32_t file, const pst_record *r,
                         uint32_t *part) {
    size_t size = size_of(p, r), end = p->bytes.size + size;
    if (end / UNIT >= PST_NO_PART)
        return PST_TOO_LARGE;
    pst_status s = PST_OK;
    if (end > p->bytes.capacity)
        s = pst_charge_raise(&p->charge, end + end / 2);
    if (!s)
        s = pst_buffer_reserve(&p->bytes, end);
    if (s)
        return s;
    const pst_bytes *element = element_of(p->schema, r);
    uint8_t *to = p->bytes.data + p->bytes.size;
    head h = {.hash = r->hash,
              .changed = r->changed,
              .present = r->present & r->changed,
              .key_group = r->key_group,
              .key_nulls = r->key_nulls,
              .element = element ? element->size : 0,
              .op = (uint32_t)r->op,
              .before = before,
              .file = file,
              .size = size};
    memcpy(to, &h, sizeof h);
    to += sizeof h;
    if (element)
        to = put_bytes(to, *element);
    for (int32_t k = 0; k < p->n_keys; k++)
        if (!(r->key_nulls >> k & 1))
            to = put_cell(to, &r->key[k], !pst_type_width(p->schema->keys[k].type));
    for (uint64_t left = h.present; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        to = put_cell(to, &r->cells[i], is_bytes(p->schema, i));
    }
    *part = (uint32_t)(p->bytes.size / UNIT);
    p->bytes.size = end;
    return PST_OK;
}

static head head_of(const pst_parts *p, uint32_t part) {
    head h;
    memcpy(&h, p->bytes.data + (size_t)part * UNIT, sizeof h);
    return h;
}

uint32_t pst_parts_before(const pst_parts *p, uint32_t part) {
    return head_of(p, part).before;
}

int32_t pst_parts_file(const pst_parts *p, uint32_t part) {
    return head_of(p, part).file;
}

void pst_parts_get(const pst_parts *p, uint32_t part, pst_record *r) {
    head h = head_of(p, part);
    const uint8_t *from = p->bytes.data + (size_t)part * UNIT + sizeof h;
    r->hash = h.hash;
    r->key_group = h.key_group;
    r->op = (pst_record_op)h.op;
    r->key_nulls = h.key_nulls;
    r->changed = h.changed;
    r->present = h.present;
    r->key[p->schema->n_keys - 1].bytes = (pst_bytes){from, h.element};
    from += up(h.element);
    for (int32_t k = 0; k < p->n_keys; k++)
        if (!(h.key_nulls >> k & 1))
            from = get_cell(from, &r->key[k], !pst_type_width(p->schema->keys[k].type));
    for (uint64_t left = h.present; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        from = get_cell(from, &r->cells[i], is_bytes(p->schema, i));
    }
}

/* The element of a part, without bytes where it has none. */
static pst_bytes element_at(const pst_parts *p, uint32_t part, const head *h) {
    return (pst_bytes){p->bytes.data + (size_t)part * UNIT + sizeof *h, h->element};
}

static int is_timer(pst_bytes element) {
    return element.size == PST_ELEMENT_TIMER &&
           pst_get_big(element.data, PST_ELEMENT_ID) == PST_TIMERS_ID;
}

/* Is the timer of parts[i] deleted by a later part? */
static int is_deleted(const pst_parts *p, const uint32_t *parts, uint32_t n, uint32_t i) {
    head h = head_of(p, parts[i]);
    pst_bytes timer = element_at(p, parts[i], &h);
    for (uint32_t j = n; j-- > i + 1;) {
        head later = head_of(p, parts[j]);
        pst_bytes element = element_at(p, parts[j], &later);
        if (element.size == timer.size && !memcmp(element.data, timer.data, timer.size))
            return later.op == PST_DELETE;
    }
    return 0;
}

int pst_parts_leave_nothing(const pst_parts *p, const uint32_t *parts, uint32_t n) {
    enum { MOST = 64 };
    uint32_t i = n;
    if (n > MOST)
        return 0;
    /* Behind the row's last delete nothing may be put. */
    while (i > 0) {
        head h = head_of(p, parts[--i]);
        if (h.op != PST_DELETE)
            return 0;
        if (!h.element)
            break;
        if (i == 0)
            return 0;
    }
    /* It says nothing of timers that are elements. */
    while (i > 0) {
        head h = head_of(p, parts[--i]);
        if (h.op == PST_PUT && is_timer(element_at(p, parts[i], &h)) && !is_deleted(p, parts, n, i))
            return 0;
    }
    return 1;
}

void pst_parts_clear(pst_parts *p) {
    p->bytes.size = 0;
}

void pst_parts_free(pst_parts *p) {
    pst_free(p->bytes.data);
    pst_charge_drop(&p->charge);
    p->bytes = (pst_buffer){NULL, 0, 0};
}
