/* ops.c: the vectorised operations on a batch: apply, put, get, clear. */
#include <string.h>

#include "access/batch.h"
#include "key/schema.h"
#include "table/ttl.h"

/* ---- read, modify, write ------------------------------------------------------------------- */

typedef pst_status (*kernel)(pst_batch *b, int32_t column, pst_op op, const pst_array *values,
                             int64_t from, int64_t to);

static pst_status overflowed(pst_batch *b, int64_t i, int32_t column) {
    b->t->detail.row = i;
    b->t->detail.column = column;
    return PST_OVERFLOW;
}

/* Finds or makes the row of key i and touches it. */
static inline pst_status writable_row(pst_batch *b, int64_t i, uint64_t **row) {
    uint32_t slot = b->slots[i];
    if (__builtin_expect(slot == PST_NONE, 0)) {
        pst_status s = pst_batch_row(b, i, &slot);
        if (s)
            return s;
    }
    *row = pst_row(b->t, slot);
    pst_touch(b->t, slot, *row);
    return PST_OK;
}

/* A total order with NaN above all, as Spark compares. */
static inline int float_less(double a, double b) {
    if (a != a)
        return 0;
    return b != b || a < b;
}

#define INT_LESS(a, b) ((a) < (b))
#define FLOAT_LESS(a, b) float_less((double)(a), (double)(b))
#define INT_ADD(a, b, sum) __builtin_add_overflow(a, b, sum)
#define FLOAT_ADD(a, b, sum) (*(sum) = (a) + (b), 0)

/* One loop per type. What it needs of the table is in locals, which stores cannot alias. `bits` is
 * the unsigned integer of the same width, by which the field is loaded and stored. */
#define DEFINE_KERNEL(name, type, bits, get, put, ADD, LESS)                                       \
    static pst_status name(pst_batch *b, int32_t column, pst_op op, const pst_array *values,       \
                           int64_t from, int64_t to) {                                             \
        pst_table *t = b->t;                                                                       \
        const pst_field *f = &t->lay.fields[column];                                               \
        const type *v = (const type *)values->values + values->offset;                             \
        const uint32_t *slots = b->slots;                                                          \
        uint8_t *rows = t->rows;                                                                   \
        uint64_t row_size = t->lay.row_size, offset = f->offset;                                   \
        uint32_t stamp = t->stamp;                                                                 \
        int mixed = b->mixed;                                                                      \
        int scalar = values->length == 1 && b->length != 1, wide = t->lay.wide;                    \
        uint64_t bit = UINT64_C(1) << column, flag = bit << 1;                                     \
        bits start_bits = (bits)f->default_word[0];                                                \
        type start;                                                                                \
        memcpy(&start, &start_bits, sizeof start);                                                 \
        for (int64_t i = from; i < to; i++) {                                                      \
            int64_t at = scalar ? 0 : i;                                                           \
            if (values->validity && pst_array_is_null(values, at))                                 \
                continue;                                                                          \
            uint32_t slot = slots[i];                                                              \
            if (__builtin_expect(slot == PST_NONE, 0)) {                                           \
                pst_status s = pst_batch_row(b, i, &slot);                                         \
                if (s)                                                                             \
                    return s;                                                                      \
            }                                                                                      \
            uint64_t *row = (uint64_t *)(rows + slot * row_size);                                  \
            uint64_t first = pst_header_stamp(row[0]) != stamp;                                    \
            if (mixed)                                                                             \
                pst_touch_as(t, slot, row, first);                                                 \
            else if (first)                                                                        \
                pst_touch_first(t, slot, row);                                                     \
            uint8_t *field = (uint8_t *)row + offset;                                              \
            int present = wide ? pst_row_has(&t->lay, row, column) : (row[0] & flag) != 0;         \
            bits raw = get(field);                                                                 \
            type old, next = v[at];                                                                \
            memcpy(&old, &raw, sizeof old);                                                        \
            if (op == PST_ADD) {                                                                   \
                type sum;                                                                          \
                if (ADD(present ? old : start, next, &sum))                                        \
                    return overflowed(b, i, column);                                               \
                next = sum;                                                                        \
            } else if (present) {                                                                  \
                int replaces = op == PST_MIN ? LESS(next, old) : LESS(old, next);                  \
                if (!replaces)                                                                     \
                    continue;                                                                      \
            }                                                                                      \
            memcpy(&raw, &next, sizeof raw);                                                       \
            put(field, raw);                                                                       \
            if (!present)                                                                          \
                pst_row_mark(t, row, column);                                                      \
        }                                                                                          \
        return PST_OK;                                                                             \
    }

DEFINE_KERNEL(apply_int8, int8_t, uint8_t, pst_get8, pst_put8, INT_ADD, INT_LESS)
DEFINE_KERNEL(apply_int16, int16_t, uint16_t, pst_get16, pst_put16, INT_ADD, INT_LESS)
DEFINE_KERNEL(apply_int32, int32_t, uint32_t, pst_get32, pst_put32, INT_ADD, INT_LESS)
DEFINE_KERNEL(apply_int64, int64_t, uint64_t, pst_get64, pst_put64, INT_ADD, INT_LESS)
DEFINE_KERNEL(apply_float32, float, uint32_t, pst_get32, pst_put32, FLOAT_ADD, FLOAT_LESS)
DEFINE_KERNEL(apply_float64, double, uint64_t, pst_get64, pst_put64, FLOAT_ADD, FLOAT_LESS)

static __int128 ten_to(uint8_t digits) {
    __int128 power = 1;
    for (uint8_t i = 0; i < digits; i++)
        power *= 10;
    return power;
}

/* Is the unscaled value outside what `precision` digits hold? */
static int exceeds(__int128 v, uint8_t precision) {
    __int128 bound = ten_to(precision);
    return v >= bound || v <= -bound;
}

static pst_status apply_decimal(pst_batch *b, int32_t column, pst_op op, const pst_array *values,
                                int64_t from, int64_t to) {
    pst_table *t = b->t;
    const pst_field *f = &t->lay.fields[column];
    for (int64_t i = from; i < to; i++) {
        int64_t at = values->length == 1 ? 0 : i;
        if (pst_array_is_null(values, at))
            continue;
        pst_cell cell;
        uint64_t *row, word[2];
        __int128 old, next;
        pst_array_cell(values, at, &cell);
        memcpy(&next, cell.word, 16);
        pst_status s = writable_row(b, i, &row);
        if (s)
            return s;
        int present = pst_row_has(&t->lay, row, column);
        pst_field_load(f, row, word);
        memcpy(&old, present ? word : f->default_word, 16);
        if (op == PST_ADD) {
            if (__builtin_add_overflow(old, next, &next) ||
                exceeds(next, t->schema.states[column].precision))
                return overflowed(b, i, column);
        } else if (present && !(op == PST_MIN ? next < old : old < next)) {
            continue;
        }
        memcpy(word, &next, 16);
        pst_field_store(f, row, word);
        pst_row_mark(t, row, column);
    }
    return PST_OK;
}

static kernel kernel_of(pst_type type) {
    switch (type) {
    case PST_INT8:
        return apply_int8;
    case PST_INT16:
        return apply_int16;
    case PST_INT32:
    case PST_DATE32:
        return apply_int32;
    case PST_INT64:
    case PST_TIMESTAMP:
        return apply_int64;
    case PST_FLOAT32:
        return apply_float32;
    case PST_FLOAT64:
        return apply_float64;
    case PST_DECIMAL:
        return apply_decimal;
    case PST_BOOL:
    case PST_STRING:
    case PST_BINARY:
    case PST_OBJECT:
    case PST_FIXED:
    case PST_NESTED:
        return NULL;
    }
    return NULL;
}

static pst_status check_operand(pst_batch *b, int32_t column, const pst_array *values) {
    pst_table *t = b->t;
    pst_status s = pst_batch_ready(b);
    if (s)
        return s;
    pst_no_detail(&t->detail);
    t->detail.column = column;
    if (column < 0 || column >= t->lay.n_states)
        return PST_INVALID;
    pst_type have = t->schema.states[column].type;
    if (values->type != have && !(have == PST_OBJECT && values->type == PST_BINARY))
        return PST_WRONG_TYPE;
    if (have == PST_FIXED && values->width != t->lay.fields[column].width)
        return PST_WRONG_TYPE;
    if (t->lay.fields[column].kind != PST_VALUE)
        return PST_INVALID;
    return values->length == b->length || values->length == 1 ? PST_OK : PST_INVALID;
}

/* Values that are hidden by their age count as absent: they are cleared before the group's rows are
 * read. A key that the guess did not find may still be there. */
static pst_status expire_group(pst_batch *b, int32_t column, int64_t from, int64_t to) {
    pst_table *t = b->t;
    pst_status s = PST_OK;
    for (int64_t i = from; !s && i < to; i++) {
        uint32_t slot = pst_batch_slot(b, i);
        uint64_t *row = slot == PST_NONE ? NULL : pst_row(t, slot);
        if (!row || !pst_row_has(&t->lay, row, column) ||
            !pst_ttl_hides(t, column, pst_row_time(t, row, column)))
            continue;
        pst_touch(t, slot, row);
        s = pst_row_clear(t, row, column);
    }
    return s;
}

static void stamp_group(pst_batch *b, int32_t column, const pst_array *values, int64_t from,
                        int64_t to) {
    pst_table *t = b->t;
    for (int64_t i = from; i < to; i++) {
        uint32_t slot = b->slots[i];
        uint64_t *row = slot == PST_NONE ? NULL : pst_row(t, slot);
        if (!row || pst_array_is_null(values, values->length == 1 ? 0 : i) ||
            !pst_row_has(&t->lay, row, column))
            continue;
        pst_touch(t, slot, row);
        pst_row_stamp(t, row, column);
    }
}

/* Whether there is such a step, and what runs it. */
static pst_status check_step(pst_batch *b, const pst_step *step, kernel *run) {
    pst_status s = check_operand(b, step->column, &step->values);
    if (s)
        return s;
    *run = kernel_of(step->values.type);
    if (!*run)
        return PST_WRONG_TYPE;
    return step->op < PST_ADD || step->op > PST_MAX ? PST_INVALID : PST_OK;
}

static pst_status run_step(pst_batch *b, const pst_step *step, kernel run, int64_t from,
                           int64_t to) {
    int timed = b->t->lay.fields[step->column].time >= 0;
    pst_status s = timed ? expire_group(b, step->column, from, to) : PST_OK;
    if (!s)
        s = run(b, step->column, step->op, &step->values, from, to);
    if (timed)
        stamp_group(b, step->column, &step->values, from, to);
    return s;
}

/* ---- rows whose sums would overflow ---------------------------------------------------------- */

/* The unscaled value of a cell that integers, dates, timestamps or decimals are summed in. */
static __int128 whole(pst_type type, const uint64_t *word) {
    __int128 v;
    switch (type) {
    case PST_INT8:
        return (int8_t)word[0];
    case PST_INT16:
        return (int16_t)word[0];
    case PST_INT32:
    case PST_DATE32:
        return (int32_t)word[0];
    case PST_DECIMAL:
        memcpy(&v, word, 16);
        return v;
    default:
        return (int64_t)word[0];
    }
}

/* Above all that the type holds; the negative of it is not held, or only just. */
static __int128 bound_of(const pst_column *state) {
    switch (state->type) {
    case PST_INT8:
        return (__int128)1 << 7;
    case PST_INT16:
        return (__int128)1 << 15;
    case PST_INT32:
    case PST_DATE32:
        return (__int128)1 << 31;
    case PST_DECIMAL:
        return ten_to(state->precision);
    default:
        return (__int128)1 << 63;
    }
}

static int sums_whole(const pst_step *step) {
    pst_type type = step->values.type;
    return step->op == PST_ADD && type != PST_FLOAT32 && type != PST_FLOAT64;
}

/* What row i of the step starts from, and what is added; 0 where nothing is. */
static int addends(pst_batch *b, const pst_step *step, int64_t i, __int128 *old, __int128 *more) {
    pst_table *t = b->t;
    const pst_field *f = &t->lay.fields[step->column];
    int64_t at = step->values.length == 1 ? 0 : i;
    if (pst_array_is_null(&step->values, at))
        return 0;
    uint32_t slot = pst_batch_slot(b, i);
    const uint64_t *row = slot == PST_NONE ? NULL : pst_row(t, slot);
    uint64_t word[2] = {f->default_word[0], f->default_word[1]};
    pst_cell cell;
    if (row && pst_row_has(&t->lay, row, step->column) && !pst_row_hides(t, row, step->column))
        pst_field_load(f, row, word);
    pst_array_cell(&step->values, at, &cell);
    *old = whole(step->values.type, word);
    *more = whole(step->values.type, cell.word);
    return 1;
}

/* The largest absolute value of which any two are within the range together. */
static __int128 half_of(const pst_batch *b, const pst_step *step) {
    return (bound_of(&b->t->schema.states[step->column]) - 1) / 2;
}

/* Whether no order of the group's rows, which may all be one key's, makes the step overflow. What
 * a field without a value holds may only make the answer no, which is never wrong. */
static int group_fits(pst_batch *b, const pst_step *step, int64_t from, int64_t to) {
    __int128 half = half_of(b, step), small = half / PST_GROUP;
    for (int64_t i = from; i < to; i++) {
        __int128 old, more;
        if (addends(b, step, i, &old, &more) &&
            (old > half || old < -half || more > small || more < -small))
            return 0;
    }
    return 1;
}

/* Whether a sum starts so low, and all values of some rows are so small, that these rows together
 * add less than `half_of`, to one key. Of two's complements the bits are gathered that are not
 * copies of the sign. */
static int is_small(const pst_batch *b, const pst_step *step, int64_t from, int64_t to) {
    const pst_array *v = &step->values;
    const uint64_t *start = b->t->lay.fields[step->column].default_word;
    unsigned __int128 half = (unsigned __int128)half_of(b, step);
    unsigned __int128 most = half / (uint64_t)(to > from ? to - from : 1), bits = 0;
    if (v->length == 1)
        from = 0, to = 1;
    if (v->type == PST_INT64 || v->type == PST_TIMESTAMP) {
        const int64_t *values = (const int64_t *)v->values + v->offset;
        uint64_t low = 0;
        for (int64_t i = from; i < to; i++)
            low |= (uint64_t)(values[i] ^ (values[i] >> 63));
        bits = low;
    } else if (v->type == PST_DECIMAL) {
        const uint8_t *values = (const uint8_t *)v->values + 16 * v->offset;
        for (int64_t i = from; i < to; i++) {
            __int128 value;
            memcpy(&value, values + 16 * i, 16);
            bits |= (unsigned __int128)(value ^ (value >> 127));
        }
    } else {
        return 0;
    }
    __int128 first = whole(v->type, start);
    return bits < most && (unsigned __int128)(first ^ (first >> 127)) < half;
}

/* Whether the sums of some rows are so far from their ends that what `is_small` cannot take them
 * there. */
static int sums_fit(const pst_batch *b, const pst_step *step, const uint8_t *const *rows, int n) {
    uint64_t offset = b->t->lay.fields[step->column].offset, low = 0;
    if (step->values.type == PST_DECIMAL) {
        unsigned __int128 bits = 0;
        for (int k = 0; k < n; k++) {
            __int128 sum;
            memcpy(&sum, rows[k] + offset, sizeof sum);
            bits |= (unsigned __int128)(sum ^ (sum >> 127));
        }
        return bits < (unsigned __int128)half_of(b, step);
    }
    for (int k = 0; k < n; k++) {
        int64_t sum;
        memcpy(&sum, rows[k] + offset, sizeof sum);
        low |= (uint64_t)(sum ^ (sum >> 63));
    }
    return low < UINT64_C(1) << 62;
}

/* The first step that would overflow in row i; n if there is none. */
static int32_t overflowing(pst_batch *b, int32_t n, const pst_step *steps, int64_t i) {
    for (int32_t k = 0; k < n; k++) {
        const pst_column *state = &b->t->schema.states[steps[k].column];
        __int128 old, more, sum, bound = bound_of(state);
        if (!sums_whole(&steps[k]) || !addends(b, &steps[k], i, &old, &more))
            continue;
        if (__builtin_add_overflow(old, more, &sum) || sum >= bound || sum < -bound ||
            (sum == -bound && state->type == PST_DECIMAL))
            return k;
    }
    return n;
}

/* Takes the steps of a group of which some sum may overflow, row by row. */
static pst_status run_apart(pst_batch *b, int32_t n, const pst_step *steps, const kernel *run,
                            int64_t from, int64_t to, uint8_t *refused) {
    for (int64_t i = from; i < to; i++) {
        int32_t k = overflowing(b, n, steps, i);
        if (k < n)
            refused[i] = (uint8_t)(1 + steps[k].column);
        for (int32_t j = 0; k == n && j < n; j++) {
            pst_status s = run_step(b, &steps[j], run[j], i, i + 1);
            if (s)
                return s;
        }
    }
    return PST_OK;
}

/* Whether a row of the group may make a sum overflow; `small` says of each step whether all rows of
 * the batch are. */
static int may_overflow(pst_batch *b, int32_t n, const pst_step *steps, const uint8_t *small,
                        int64_t from, int64_t to) {
    const uint8_t *rows[PST_GROUP];
    const uint8_t *first = b->t->rows;
    uint64_t row_size = b->t->lay.row_size;
    int found = 0;
    for (int64_t i = from; i < to; i++) {
        rows[found] = first + b->slots[i] * row_size;
        found += b->slots[i] != PST_NONE;
    }
    for (int32_t k = 0; k < n; k++) {
        const pst_step *step = &steps[k];
        if (!sums_whole(step))
            continue;
        /* Rows that were not found are new, or the batch has made them of what is small. */
        int fits = small[k] || (found == to - from && is_small(b, step, from, to));
        if (!(fits && sums_fit(b, step, rows, found)) && !group_fits(b, step, from, to))
            return 1;
    }
    return 0;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Makes the group's rows and says which of them have no value in the column yet, a repeated key
 * only once. */
static pst_status note_fresh(pst_batch *b, int32_t column, int64_t from, int64_t to,
                             uint8_t *fresh) {
    pst_table *t = b->t;
    for (int64_t i = from; i < to; i++) {
        uint32_t slot;
        pst_status s = pst_batch_row(b, i, &slot);
        if (s)
            return s;
        fresh[i] = !pst_row_has(&t->lay, pst_row(t, slot), column);
        for (int64_t k = from; fresh[i] && k < i; k++)
            if (b->slots[k] == slot)
                fresh[i] = 0;
    }
    return PST_OK;
}

/* Whether so many first touches in a group make the next group's a toss-up, for which a branch is
 * often mispredicted. */
static int is_mixed(uint64_t firsts) {
    return firsts >= PST_GROUP / 8 && firsts <= PST_GROUP - PST_GROUP / 8;
}

pst_status pst_batch_apply_all(pst_batch *b, int32_t n, const pst_step *steps, uint8_t *fresh,
                               uint8_t *refused) {
    kernel run[PST_MAX_STATES];
    uint8_t small[PST_MAX_STATES];
    pst_status s = n < 1 || n > PST_MAX_STATES ? PST_INVALID : PST_OK;
    for (int32_t k = 0; !s && k < n; k++)
        s = check_step(b, &steps[k], &run[k]);
    if (s)
        return s;
    pst_table *t = b->t;
    if (fresh && (steps[0].values.validity || t->lay.fields[steps[0].column].time >= 0))
        return PST_INVALID;
    for (int32_t k = 0; refused && k < n; k++)
        small[k] = (uint8_t)(sums_whole(&steps[k]) && is_small(b, &steps[k], 0, b->length));
    for (int64_t from = 0; !s && from < b->length; from += PST_GROUP) {
        int64_t to = from + PST_GROUP < b->length ? from + PST_GROUP : b->length;
        pst_batch_prepare(b, from);
        if (from == 0 && b->made != pst_rows_made(t))
            memset(small, 0, sizeof small);     /* others may have made rows that were not found */
        s = pst_undo_reserve(t, PST_GROUP + 1); /* one that is not counted, too */
        if (!s && fresh)
            s = note_fresh(b, steps[0].column, from, to, fresh);
        uint64_t before = t->undo_count;
        int apart = !s && refused && may_overflow(b, n, steps, small, from, to);
        if (apart)
            s = run_apart(b, n, steps, run, from, to, refused);
        for (int32_t k = 0; !s && !apart && k < n; k++) {
            s = run_step(b, &steps[k], run[k], from, to);
            b->mixed = 0; /* later steps find all rows touched */
        }
        b->mixed = is_mixed(t->undo_count - before);
    }
    return pst_poison(t, s);
}

pst_status pst_batch_apply(pst_batch *b, int32_t column, pst_op op, const pst_array *values) {
    pst_step step = {column, op, *values};
    return pst_batch_apply_all(b, 1, &step, NULL, NULL);
}

/* ---- write ----------------------------------------------------------------------------------- */

static pst_status put_one(pst_batch *b, int64_t i, int32_t column, const pst_array *values) {
    pst_table *t = b->t;
    int64_t at = values->length == 1 ? 0 : i;
    uint64_t *row;
    if (pst_array_is_null(values, at)) {
        uint32_t at_slot = pst_batch_slot(b, i);
        row = at_slot == PST_NONE ? NULL : pst_row(t, at_slot);
        if (!row || !pst_row_has(&t->lay, row, column))
            return PST_OK;
        pst_touch(t, at_slot, row);
        return pst_row_clear(t, row, column);
    }
    uint32_t slot;
    pst_status s = pst_batch_row(b, i, &slot);
    if (s)
        return s;
    pst_cell cell;
    pst_array_cell(values, at, &cell);
    return pst_state_put(t, slot, column, &cell);
}

pst_status pst_batch_put(pst_batch *b, int32_t column, const pst_array *values) {
    pst_status s = check_operand(b, column, values);
    for (int64_t from = 0; !s && from < b->length; from += PST_GROUP) {
        int64_t to = from + PST_GROUP < b->length ? from + PST_GROUP : b->length;
        pst_batch_prepare(b, from);
        s = pst_undo_reserve(b->t, PST_GROUP);
        int64_t i = from;
        while (!s && i < to) {
            s = put_one(b, i, column, values);
            i += !s;
        }
        if (s)
            return pst_refused(b->t, i, s);
    }
    return s;
}

static pst_status clear_batch(pst_batch *b, int32_t column) {
    pst_table *t = b->t;
    pst_status s = pst_batch_ready(b);
    if (s)
        return s;
    if (column < -1 || column >= t->lay.n_states)
        return PST_INVALID;
    for (int64_t from = 0; from < b->length; from += PST_GROUP) {
        int64_t to = from + PST_GROUP < b->length ? from + PST_GROUP : b->length;
        s = pst_pause(t, from);
        if (s)
            return s;
        pst_batch_prepare(b, from);
        s = pst_undo_reserve(t, PST_GROUP);
        for (int64_t i = from; !s && i < to; i++) {
            uint32_t slot = pst_batch_slot(b, i);
            if (slot == PST_NONE)
                continue;
            uint64_t *row = pst_row(t, slot);
            if (!pst_is_live(row[0]))
                continue;
            pst_touch(t, slot, row);
            s = column < 0 ? pst_row_delete(t, row) : pst_row_clear(t, row, column);
        }
        if (s)
            return pst_poison(t, s);
    }
    return PST_OK;
}

pst_status pst_batch_clear(pst_batch *b, int32_t column) {
    pst_clearing(b->t);
    return pst_cleared(b->t, clear_batch(b, column));
}

/* ---- read ------------------------------------------------------------------------------------ */

/* The row of key i if the column is present in it, else NULL. */
static const uint64_t *present_row(pst_batch *b, int64_t i, int32_t column) {
    const pst_table *t = b->t;
    uint32_t slot = pst_batch_slot(b, i);
    const uint64_t *row = slot == PST_NONE ? NULL : pst_row(t, slot);
    return row && pst_row_has(&t->lay, row, column) && !pst_row_hides(t, row, column) ? row : NULL;
}

/* Whether reading is noted with each group's values, or at the end of them all, as a batch sees what
 * has expired at each place of its key. */
static int noted(const pst_table *t, int32_t column, int at_end) {
    return at_end ? t->ttl[column].lenient : t->ttl[column].on_read && !t->ttl[column].lenient;
}

/* Notes reading, after the values were copied. */
static pst_status refresh_group(pst_batch *b, int32_t column, int64_t from, int64_t to) {
    pst_table *t = b->t;
    pst_status s = PST_OK;
    for (int64_t i = from; !s && i < to; i++)
        if (present_row(b, i, column))
            s = pst_row_refresh(t, b->slots[i], column);
    return pst_poison(t, s);
}

static pst_status check_type(const pst_batch *b, int32_t column, int is_bytes) {
    if (column < 0 || column >= b->t->lay.n_states)
        return PST_INVALID;
    if (b->t->lay.fields[column].kind != PST_VALUE)
        return PST_INVALID;
    return b->t->lay.fields[column].is_bytes == is_bytes ? PST_OK : PST_WRONG_TYPE;
}

static pst_status check_column(pst_batch *b, int32_t column, int is_bytes) {
    pst_status s = pst_batch_ready(b);
    return s ? s : check_type(b, column, is_bytes);
}

/* Inlined once per width, so that copying a value is a load and a store. */
static inline __attribute__((always_inline)) void copy_out(const pst_table *t, const pst_get *get,
                                                           size_t width,
                                                           const uint64_t *const *rows,
                                                           int64_t from, int64_t to) {
    int32_t column = get->column;
    uint32_t offset = t->lay.fields[column].offset;
    uint8_t *values = get->values;
    for (int64_t i = from; i < to; i++) {
        const uint64_t *row = rows[i - from];
        uint8_t *out = values + (size_t)i * width;
        int has = row && pst_row_has(&t->lay, row, column) && !pst_row_hides(t, row, column);
        get->valid[i] = (uint8_t)has;
        if (has)
            memcpy(out, (const uint8_t *)row + offset, width);
        else
            memset(out, 0, width);
    }
}

static void get_group(const pst_table *t, const pst_get *get, const uint64_t *const *rows,
                      int64_t from, int64_t to) {
    uint32_t width = t->lay.fields[get->column].width;
    switch (width) {
    case 1:
        copy_out(t, get, 1, rows, from, to);
        break;
    case 2:
        copy_out(t, get, 2, rows, from, to);
        break;
    case 4:
        copy_out(t, get, 4, rows, from, to);
        break;
    case 8:
        copy_out(t, get, 8, rows, from, to);
        break;
    case 16:
        copy_out(t, get, 16, rows, from, to);
        break;
    default:
        copy_out(t, get, width, rows, from, to);
    }
}

/* What of the batch's rows is here. */
static pst_status get_here(pst_batch *b, int32_t n, const pst_get *gets) {
    pst_status s = PST_OK;
    for (int64_t from = 0; !s && from < b->length; from += PST_GROUP) {
        const uint64_t *rows[PST_GROUP];
        int64_t to = from + PST_GROUP < b->length ? from + PST_GROUP : b->length;
        pst_batch_prepare(b, from);
        for (int64_t i = from; i < to; i++) {
            uint32_t slot = pst_batch_slot(b, i);
            rows[i - from] = slot == PST_NONE ? NULL : pst_row(b->t, slot);
        }
        for (int32_t k = 0; !s && k < n; k++) {
            get_group(b->t, &gets[k], rows, from, to);
            if (noted(b->t, gets[k].column, 0))
                s = refresh_group(b, gets[k].column, from, to);
        }
    }
    for (int32_t k = 0; !s && k < n; k++)
        if (noted(b->t, gets[k].column, 1))
            s = refresh_group(b, gets[k].column, 0, b->length);
    return s;
}

/* Whether reading changes nothing, so that it may be done before it is known which rows are here. */
static int is_pure(const pst_batch *b, int32_t n, const pst_get *gets) {
    for (int32_t k = 0; k < n; k++)
        if (noted(b->t, gets[k].column, 0) || noted(b->t, gets[k].column, 1))
            return 0;
    return 1;
}

pst_status pst_batch_get_all(pst_batch *b, int32_t n, const pst_get *gets) {
    pst_status s = n > 0 ? pst_batch_usable(b) : PST_OK;
    for (int32_t k = 0; !s && k < n; k++)
        s = check_type(b, gets[k].column, 0);
    if (s || n <= 0)
        return s;
    int waits = !b->complete && !b->of_rows && !pst_is_whole(b->t);
    if (waits && !is_pure(b, n, gets)) {
        s = pst_batch_complete(b);
        waits = 0;
    }
    if (!s)
        s = get_here(b, n, gets);
    if (s || !waits)
        return s;
    /* Mostly all were here, and then their rows need no visit before this one. */
    uint64_t missed = b->t->fetched.missed;
    s = pst_batch_complete(b);
    return s || b->t->fetched.missed == missed ? s : get_here(b, n, gets);
}

pst_status pst_batch_get(pst_batch *b, int32_t column, void *values, uint8_t *valid) {
    pst_get get = {column, values, valid};
    return pst_batch_get_all(b, 1, &get);
}

pst_status pst_batch_get_bytes(pst_batch *b, int32_t column, const pst_bytes_out *out) {
    pst_status s = check_column(b, column, 1);
    if (s)
        return s;
    const pst_field *f = &b->t->lay.fields[column];
    int64_t total = 0;
    for (int64_t from = 0; from < b->length; from += PST_GROUP) {
        int64_t to = from + PST_GROUP < b->length ? from + PST_GROUP : b->length;
        pst_batch_prepare(b, from);
        for (int64_t i = from; i < to; i++) {
            const uint64_t *row = present_row(b, i, column);
            pst_cell cell = {{0, 0}, {NULL, 0}};
            if (row)
                pst_field_cell(f, row, b->t->heap, &cell);
            s = pst_out_value(out, i, row != NULL, cell.bytes, &total);
            if (s)
                return s;
        }
        /* Noted in the pass that sizes, as empty values need no other. */
        if (!out->data && noted(b->t, column, 0))
            s = refresh_group(b, column, from, to);
        if (s)
            return s;
    }
    if ((out->data || !total) && noted(b->t, column, 1)) {
        s = refresh_group(b, column, 0, b->length);
        if (s)
            return s;
    }
    return pst_out_end(out, b->length, total);
}
