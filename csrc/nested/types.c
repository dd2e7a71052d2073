#include "nested/types.h"

#include "base/mem.h"

#include <string.h>

static const uint8_t op_of[] = {
    [PST_BOOL] = PST_OP_BOOL,       [PST_INT8] = PST_OP_INT8,     [PST_INT16] = PST_OP_INT16,
    [PST_INT32] = PST_OP_INT32,     [PST_INT64] = PST_OP_INT64,   [PST_FLOAT32] = PST_OP_FLOAT32,
    [PST_FLOAT64] = PST_OP_FLOAT64, [PST_DATE32] = PST_OP_INT32,  [PST_TIMESTAMP] = PST_OP_INT64,
    [PST_DECIMAL] = PST_OP_DECIMAL, [PST_STRING] = PST_OP_STRING, [PST_BINARY] = PST_OP_BINARY,
};

static const uint8_t width_of[] = {
    [PST_OP_BOOL] = 1,   [PST_OP_INT8] = 1,    [PST_OP_INT16] = 2,   [PST_OP_INT32] = 4,
    [PST_OP_INT64] = 8,  [PST_OP_FLOAT32] = 4, [PST_OP_FLOAT64] = 8, [PST_OP_DECIMAL] = 16,
    [PST_OP_STRING] = 0, [PST_OP_BINARY] = 0,  [PST_OP_STRUCT] = 0,  [PST_OP_ARRAY] = 0,
    [PST_OP_MAP] = 0,
};

/* limit = 10 ** precision, which has up to 127 bits. */
static void set_limit(pst_shape *s, int precision) {
    uint64_t low = 1, high = 0;
    for (int i = 0; i < precision; i++) {
        uint64_t carry = ((low >> 32) * 10 + ((low & UINT32_MAX) * 10 >> 32)) >> 32;
        low *= 10;
        high = high * 10 + carry;
    }
    s->limit[0] = low;
    s->limit[1] = high;
}

static int set_shape(pst_shape *s, const pst_nested_type *type) {
    *s = (pst_shape){.count = type->n_children, .parent = -1, .span = 1, .bit = -1, .at = -1};
    switch (type->kind) {
    case PST_NESTED_SCALAR:
        if (type->type < PST_BOOL || type->type > PST_BINARY || type->n_children)
            return 0;
        s->op = op_of[type->type];
        s->width = width_of[s->op];
        if (s->op != PST_OP_DECIMAL)
            return 1;
        set_limit(s, type->precision);
        return type->precision >= 1 && type->precision <= 38;
    case PST_NESTED_STRUCT:
        s->op = PST_OP_STRUCT;
        return type->n_children >= 1;
    case PST_NESTED_ARRAY:
        s->op = PST_OP_ARRAY;
        return type->n_children == 1;
    case PST_NESTED_MAP:
        s->op = PST_OP_MAP;
        return type->n_children == 2;
    default:
        return 0;
    }
}

/* A type whose children are being read. */
typedef struct level {
    int32_t at;
    uint32_t left;
} level;

/* Fills parents and spans; 0 where the types are not one tree. */
static int set_tree(pst_nested *t) {
    level levels[PST_NESTED_LEVELS];
    int depth = 0;
    for (int32_t i = 0; i < t->n; i++) {
        pst_shape *s = &t->shapes[i];
        if (i > 0) {
            if (depth == 0)
                return 0; /* the tree has ended */
            level *above = &levels[depth - 1];
            const pst_shape *parent = &t->shapes[above->at];
            s->parent = above->at;
            s->is_key = parent->op == PST_OP_MAP && above->left == 2;
            if (s->is_key && s->op >= PST_OP_STRUCT)
                return 0;
            above->left--;
        } else if (s->op < PST_OP_STRUCT) {
            return 0;
        }
        if (s->op >= PST_OP_STRUCT) {
            if (depth == PST_NESTED_LEVELS)
                return 0;
            levels[depth++] = (level){i, s->count};
        }
        for (; depth > 0 && levels[depth - 1].left == 0; depth--) {
            int32_t done = levels[depth - 1].at;
            t->shapes[done].span = i + 1 - done;
        }
    }
    return depth == 0;
}

/* Bits first, then scalars from narrow to wide, so that no more is lost to alignment than once per
 * width. */
static void set_places(pst_nested *t) {
    for (int32_t i = 0; i < t->n; i++)
        if (t->shapes[i].op != PST_OP_STRUCT && t->shapes[i].width == 0)
            return;
    uint64_t at = ((uint64_t)t->n - 1 + 7) / 8;
    for (uint32_t width = 1; width <= 16; width *= 2) {
        uint32_t alignment = width < 8 ? width : 8;
        for (int32_t i = 1; i < t->n; i++) {
            if (t->shapes[i].width != width)
                continue;
            at = (at + alignment - 1) / alignment * alignment;
            if (at > PST_MAX_FIXED)
                return;
            t->shapes[i].at = (int32_t)at;
            at += width;
        }
    }
    at = (at + 7) / 8 * 8;
    if (at > PST_MAX_FIXED)
        return;
    t->width = (uint32_t)at;
    memset(t->padding, 0xFF, at);
    for (int32_t i = 1; i < t->n; i++) {
        pst_shape *s = &t->shapes[i];
        s->bit = i - 1;
        t->padding[s->bit >> 3] &= (uint8_t)~(1u << (s->bit & 7));
        if (s->width)
            memset(t->padding + s->at, 0, s->width);
    }
}

pst_status pst_nested_create(const pst_nested_type *types, int32_t n_types, pst_nested **nested) {
    if (n_types < 1)
        return PST_INVALID;
    pst_nested *t = pst_malloc(sizeof *t + (size_t)n_types * sizeof *t->shapes);
    if (!t)
        return PST_NO_MEMORY;
    *t = (pst_nested){.n = n_types};
    int sound = 1;
    for (int32_t i = 0; i < n_types && sound; i++)
        sound = set_shape(&t->shapes[i], &types[i]);
    if (!sound || !set_tree(t)) {
        pst_free(t);
        return PST_INVALID;
    }
    set_places(t);
    *nested = t;
    return PST_OK;
}

void pst_nested_destroy(pst_nested *nested) {
    pst_free(nested);
}

uint32_t pst_nested_width(const pst_nested *nested) {
    return nested->width;
}

pst_status pst_nested_place(const pst_nested *nested, int32_t i, int32_t *bit, int32_t *at) {
    const pst_shape *s = pst_shape_at(nested, i);
    if (!s || !nested->width)
        return PST_INVALID;
    *bit = s->bit;
    *at = s->at;
    return PST_OK;
}
