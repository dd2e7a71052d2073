#include "nested/widen.h"

#include <string.h>

#include "base/coding.h"
#include "key/schema.h"

__extension__ typedef __int128 int128;

static const int64_t MICROSECONDS_PER_DAY = INT64_C(86400000000);

/* Decimal digits that an integer may have; 0: it is no integer. */
static int digits_of(uint8_t type) {
    switch ((pst_type)type) {
    case PST_INT8:
        return 3;
    case PST_INT16:
        return 5;
    case PST_INT32:
        return 10;
    case PST_INT64:
        return 19;
    default:
        return 0;
    }
}

static int is_exact(const pst_scalar_type *from, const pst_scalar_type *to) {
    int digits = digits_of(from->type);
    if (digits && digits_of(to->type))
        return digits < digits_of(to->type);
    switch ((pst_type)to->type) {
    case PST_FLOAT32:
        return digits && from->type <= PST_INT16;
    case PST_FLOAT64:
        return from->type == PST_FLOAT32 || (digits && from->type <= PST_INT32);
    case PST_TIMESTAMP:
        return from->type == PST_DATE32;
    case PST_DECIMAL:
        if (from->type == PST_DECIMAL)
            return to->scale >= from->scale &&
                   to->precision - to->scale >= from->precision - from->scale;
        return digits && to->precision - to->scale >= digits;
    default:
        return 0;
    }
}

pst_status pst_widening_make(pst_scalar_type from, pst_scalar_type to, pst_widening *w) {
    *w = (pst_widening){.from = from, .to = to};
    if (from.type == PST_DECIMAL && to.type == PST_DECIMAL)
        w->same = from.scale == to.scale && from.precision <= to.precision;
    else
        w->same = from.type == to.type;
    return w->same || is_exact(&from, &to) ? PST_OK : PST_SCHEMA;
}

static int64_t integer_at(uint8_t type, const uint8_t *from, uint64_t i) {
    switch ((pst_type)type) {
    case PST_INT8:
        return (int8_t)from[i];
    case PST_INT16:
        return (int16_t)pst_get_u16(from + 2 * i);
    case PST_INT32:
    case PST_DATE32:
        return (int32_t)pst_get_u32(from + 4 * i);
    default:
        return (int64_t)pst_get_u64(from + 8 * i);
    }
}

static void to_integers(const pst_widening *w, const uint8_t *from, uint64_t n, uint8_t *to) {
    uint32_t width = pst_type_width((pst_type)w->to.type);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t value = (uint64_t)integer_at(w->from.type, from, i);
        if (width == 2)
            pst_put_u16(to + 2 * i, (uint16_t)value);
        else if (width == 4)
            pst_put_u32(to + 4 * i, (uint32_t)value);
        else
            pst_put_u64(to + 8 * i, value);
    }
}

static void to_floats(const pst_widening *w, const uint8_t *from, uint64_t n, uint8_t *to) {
    for (uint64_t i = 0; i < n; i++) {
        float value = (float)integer_at(w->from.type, from, i);
        memcpy(to + 4 * i, &value, sizeof value);
    }
}

static void to_doubles(const pst_widening *w, const uint8_t *from, uint64_t n, uint8_t *to) {
    for (uint64_t i = 0; i < n; i++) {
        float narrow;
        double value;
        if (w->from.type == PST_FLOAT32) {
            memcpy(&narrow, from + 4 * i, sizeof narrow);
            value = (double)narrow;
        } else {
            value = (double)integer_at(w->from.type, from, i);
        }
        memcpy(to + 8 * i, &value, sizeof value);
    }
}

static pst_status to_timestamps(const uint8_t *from, uint64_t n, uint8_t *to) {
    for (uint64_t i = 0; i < n; i++) {
        int64_t value;
        if (__builtin_mul_overflow(integer_at(PST_DATE32, from, i), MICROSECONDS_PER_DAY, &value))
            return PST_OVERFLOW;
        pst_put_u64(to + 8 * i, (uint64_t)value);
    }
    return PST_OK;
}

/* The digits that a decimal may have bound the product: it has no more than its type, 38. */
static void to_decimals(const pst_widening *w, const uint8_t *from, uint64_t n, uint8_t *to) {
    int by = w->to.scale - (w->from.type == PST_DECIMAL ? w->from.scale : 0);
    unsigned __int128 factor = 1;
    for (; by > 0; by--)
        factor *= 10;
    for (uint64_t i = 0; i < n; i++) {
        unsigned __int128 value;
        if (w->from.type == PST_DECIMAL)
            value = (unsigned __int128)pst_get_u64(from + 16 * i + 8) << 64 |
                    pst_get_u64(from + 16 * i);
        else
            value = (unsigned __int128)(int128)integer_at(w->from.type, from, i);
        value *= factor; /* modulo 2^128, as two's complement wants it */
        pst_put_u64(to + 16 * i, (uint64_t)value);
        pst_put_u64(to + 16 * i + 8, (uint64_t)(value >> 64));
    }
}

pst_status pst_widen(const pst_widening *w, const uint8_t *from, uint64_t n, uint8_t *to) {
    switch ((pst_type)w->to.type) {
    case PST_FLOAT32:
        to_floats(w, from, n, to);
        return PST_OK;
    case PST_FLOAT64:
        to_doubles(w, from, n, to);
        return PST_OK;
    case PST_TIMESTAMP:
        return to_timestamps(from, n, to);
    case PST_DECIMAL:
        to_decimals(w, from, n, to);
        return PST_OK;
    default:
        to_integers(w, from, n, to);
        return PST_OK;
    }
}
