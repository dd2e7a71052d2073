#include "nested/parser.h"

int pst_parser_long_varint(pst_nested_parser *p, uint64_t *number) {
    uint64_t n = 0;
    for (unsigned shift = 0;; shift += 7) {
        if (p->at == p->end) {
            p->fault = "cut off";
            return 0;
        }
        if (shift > 35) {
            p->fault = "a length that is too large";
            return 0;
        }
        uint8_t byte = *p->at++;
        n |= (uint64_t)(byte & 0x7F) << shift;
        if (byte & 0x80)
            continue;
        if (byte == 0 && shift > 0) {
            p->fault = "a length in a longer form than needed";
            return 0;
        }
        *number = n;
        return 1;
    }
}

static uint64_t count_ones(const uint8_t *bits, uint64_t n) {
    uint64_t ones = 0;
    for (uint64_t i = 0; i < (n + 7) >> 3; i++)
        ones += (uint64_t)__builtin_popcount(bits[i]);
    return ones;
}

int pst_parser_head(pst_nested_parser *p, uint64_t *n, const uint8_t **bits) {
    uint64_t head;
    if (!pst_parser_varint(p, &head))
        return 0;
    *n = head >> 1;
    *bits = NULL;
    if (head & 1) {
        *bits = pst_parser_bits(p, *n);
        if (!*bits)
            return 0;
        if (count_ones(*bits, *n) == *n) {
            p->fault = "validity bits without a null";
            return 0;
        }
    } else if (*n > pst_parser_left(p)) {
        /* Every value takes a byte at least: a count is checked before it can cost memory. */
        p->fault = "cut off";
        return 0;
    }
    return 1;
}

/* ---- values of constant width ---------------------------------------------------------------- */

static int is_zero(const uint8_t *at, uint32_t width) {
    uint8_t all = 0;
    for (uint32_t i = 0; i < width; i++)
        all |= at[i];
    return all == 0;
}

const char *pst_places_fault(const pst_nested *nested, const uint8_t *data) {
    for (uint32_t i = 0; i < nested->width; i += 8)
        if (pst_get_u64(data + i) & pst_get_u64(nested->padding + i))
            return "set where no field is";
    for (int32_t i = 1; i < nested->n; i++) {
        const pst_shape *s = &nested->shapes[i];
        if (pst_bit(data, (uint64_t)s->bit)) {
            if (s->parent && !pst_bit(data, (uint64_t)nested->shapes[s->parent].bit))
                return "a field of a null struct";
            const char *fault = s->width ? pst_scalar_fault(s, data + s->at) : NULL;
            if (fault)
                return fault;
        } else if (s->width && !is_zero(data + s->at, s->width)) {
            return "set where a null is";
        }
    }
    return NULL;
}

/* ---- one value ------------------------------------------------------------------------------- */

pst_status pst_nested_parser_open(pst_nested_parser *p, const pst_nested *nested, const void *data,
                                  size_t size) {
    pst_parser_over(p, nested, data, size);
    if (!nested->width)
        return PST_OK;
    p->fault = size == nested->width ? pst_places_fault(nested, p->data) : "of another length";
    return p->fault ? PST_CORRUPT : PST_OK;
}

pst_status pst_nested_parser_finish(pst_nested_parser *p) {
    if (p->nested->width || p->at == p->end)
        return PST_OK;
    p->fault = "longer than their value";
    return PST_CORRUPT;
}

void pst_nested_parser_fault(const pst_nested_parser *p, pst_nested_fault *fault) {
    *fault = (pst_nested_fault){.what = p->fault ? p->fault : "sound",
                                .row = -1,
                                .at = (uint64_t)(p->at - p->data),
                                .size = (uint64_t)(p->end - p->data)};
}

static inline pst_status take_scalar(pst_nested_parser *p, const pst_shape *s, pst_cell *cell) {
    uint64_t size = 0;
    const uint8_t *at = p->by_number ? p->data + s->at : pst_parser_scalar(p, s, &size);
    if (!at)
        return PST_CORRUPT;
    if (s->is_key) {
        if (!pst_parser_ascends(p, s, at, size, p->has_key, &p->key))
            return PST_CORRUPT;
        p->has_key = 1;
    }
    cell->bytes = (pst_bytes){at, (uint32_t)size};
    if (s->width)
        pst_scalar_load(s->op, at, cell->word);
    return PST_OK;
}

pst_status pst_nested_take_scalars(pst_nested_parser *p, int32_t i, uint64_t n, pst_cell *cells) {
    const pst_shape *s = pst_shape_at(p->nested, i);
    if (!s || s->op >= PST_OP_STRUCT)
        return PST_INVALID;
    for (uint64_t k = 0; k < n; k++) {
        pst_status status = take_scalar(p, s, &cells[k]);
        if (status)
            return status;
    }
    return PST_OK;
}

pst_status pst_nested_take_scalar(pst_nested_parser *p, int32_t i, pst_cell *cell) {
    const pst_shape *s = pst_shape_at(p->nested, i);
    return s && s->op < PST_OP_STRUCT ? take_scalar(p, s, cell) : PST_INVALID;
}

pst_status pst_nested_take_struct(pst_nested_parser *p, int32_t i, const uint8_t **bits) {
    const pst_shape *s = pst_shape_at(p->nested, i);
    if (!s || s->op != PST_OP_STRUCT)
        return PST_INVALID;
    const uint8_t *found = p->nested->width ? p->data : pst_parser_bits(p, s->count);
    if (!found)
        return PST_CORRUPT;
    *bits = found;
    return PST_OK;
}

pst_status pst_nested_take_array(pst_nested_parser *p, int32_t i, uint64_t *n,
                                 const uint8_t **bits) {
    const pst_shape *s = pst_shape_at(p->nested, i);
    if (!s || s->op < PST_OP_ARRAY)
        return PST_INVALID;
    p->has_key = 0;
    return pst_parser_head(p, n, bits) ? PST_OK : PST_CORRUPT;
}

/* ---- checking -------------------------------------------------------------------------------- */

/* Takes a value of type `s`; 0: a fault. The recursion ends with the tree. */
static int skip(pst_nested_parser *p, const pst_shape *s) {
    const uint8_t *bits;
    uint64_t n = s->count, size;
    pst_nested_key key = {.size = 0};
    if (s->op < PST_OP_STRUCT)
        return pst_parser_scalar(p, s, &size) != NULL;
    if (s->op == PST_OP_STRUCT) {
        bits = pst_parser_bits(p, n);
        if (!bits)
            return 0;
    } else if (!pst_parser_head(p, &n, &bits)) {
        return 0;
    }
    const pst_shape *child = s + 1;
    if (s->op == PST_OP_MAP) {
        for (uint64_t i = 0; i < n; i++) {
            const uint8_t *at = pst_parser_scalar(p, child, &size);
            if (!at || !pst_parser_ascends(p, child, at, size, i > 0, &key))
                return 0;
        }
        child++;
    }
    for (uint64_t i = 0; i < n; i++) {
        if ((!bits || pst_bit(bits, i)) && !skip(p, child))
            return 0;
        if (s->op == PST_OP_STRUCT)
            child += child->span;
    }
    return 1;
}

pst_status pst_nested_check(const pst_nested *nested, const void *data, size_t size,
                            pst_nested_fault *fault) {
    pst_nested_parser p;
    pst_status s = pst_nested_parser_open(&p, nested, data, size);
    if (!s && !nested->width)
        s = skip(&p, nested->shapes) ? pst_nested_parser_finish(&p) : PST_CORRUPT;
    if (s && fault)
        pst_nested_parser_fault(&p, fault);
    return s;
}
