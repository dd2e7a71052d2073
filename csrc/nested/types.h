/* types.h: the tree of types behind nested values, and where scalars lie in values of constant
 * width.
 *
 * Thread safety: a pst_nested is immutable.
 *
 * Invariants:
 * 1. Shapes lie in preorder: the first child of shape i is i + 1, and the next sibling of a child c
 *    is c + shapes[c].span.
 * 2. No path through the tree has more than PST_NESTED_LEVELS + 1 shapes: what recurses along it is
 *    bounded, whatever the bytes say.
 * 3. A struct has at least one field, so that every value that is not null takes at least one byte.
 * 4. Where `width` is not 0, places[i] of each shape but the root are within the value, and no two
 *    of them overlap.
 */
#ifndef PST_NESTED_TYPES_H
#define PST_NESTED_TYPES_H

#include "pystate.h"

/* How a type is coded; of scalars one per way of loading or checking them. */
typedef enum pst_nested_op {
    PST_OP_BOOL,
    PST_OP_INT8,
    PST_OP_INT16,
    PST_OP_INT32,
    PST_OP_INT64,
    PST_OP_FLOAT32,
    PST_OP_FLOAT64,
    PST_OP_DECIMAL,
    PST_OP_STRING, /* from here on of variable width */
    PST_OP_BINARY,
    PST_OP_STRUCT, /* from here on with children */
    PST_OP_ARRAY,
    PST_OP_MAP,
} pst_nested_op;

typedef struct pst_shape {
    uint8_t op;
    uint8_t width;  /* of a scalar of fixed width, else 0 */
    uint8_t is_key; /* of a map */
    int32_t parent; /* of the root -1 */
    int32_t span;   /* shapes in this subtree */
    uint32_t count; /* children */
    int32_t bit;    /* in a value of constant width, see pst_nested_place */
    int32_t at;
    uint64_t limit[2]; /* decimals are below, and above its negative: low word, high word */
} pst_shape;

struct pst_nested {
    int32_t n;
    uint32_t width;                 /* of values, 0: it varies */
    uint8_t padding[PST_MAX_FIXED]; /* of constant width: the bits that no field has */
    pst_shape shapes[];
};

static inline int pst_bit(const uint8_t *bits, uint64_t i) {
    return bits[i >> 3] >> (i & 7) & 1;
}

static inline void pst_set_bit(uint8_t *bits, uint64_t i) {
    bits[i >> 3] |= (uint8_t)(1u << (i & 7));
}

/* Type `i`, NULL if there is none. */
static inline const pst_shape *pst_shape_at(const pst_nested *t, int32_t i) {
    return i >= 0 && i < t->n ? &t->shapes[i] : NULL;
}

#endif
