#include "sst/sst_unpack.h"

#include <string.h>

#include "base/coding.h"

enum {
    LEAST_MATCH = 4,
    LONG = 15, /* a length that goes on in further bytes */
    SHORT_IN =
        18, /* the source's bytes that a short sequence may look at: 16 literals, an offset */
    SHORT_OUT = 40, /* what it may write: 14 literals, a match of 18, and up to a step beyond */
    STEP = 16
};

/* Adds the bytes behind a length of LONG; 0 where the source ends before. The sum is at most 255
 * times the source's size. */
static int add_length(const uint8_t **ip, const uint8_t *end, size_t *length) {
    uint8_t byte;
    do {
        if (*ip == end)
            return 0;
        byte = *(*ip)++;
        *length += byte;
    } while (byte == 255);
    return 1;
}

/* Puts bytes that repeat every 1, 2, 4 or 8, in steps; returns where the next one would begin. */
static uint8_t *repeat_word(uint8_t *op, size_t offset, const uint8_t *end) {
    const uint8_t *from = op - offset;
    uint64_t word[2];
    if (offset == 8)
        memcpy(word, from, 8);
    else if (offset == 4)
        word[0] = pst_get_u32(from) * (~UINT64_C(0) / UINT32_MAX);
    else if (offset == 2)
        word[0] = pst_get_u16(from) * (~UINT64_C(0) / UINT16_MAX);
    else
        word[0] = *from * (~UINT64_C(0) / UINT8_MAX);
    word[1] = word[0];
    for (; op < end; op += STEP)
        memcpy(op, word, STEP);
    return op;
}

/* Copies a match, which may overlap what it makes. Steps write up to STEP - 1 bytes beyond it where
 * there is `room` for them, which later sequences overwrite. A processor waits for bytes that it has
 * just written in other pieces than it reads, so few are read that have just been written. */
static void copy_match(uint8_t *op, size_t offset, size_t length, size_t room) {
    /* Offsets up to STEP that are no power of two become a multiple of themselves. */
    static const uint8_t puts[STEP] = {0, 0, 0, 15, 0, 15, 12, 14, 0, 9, 10, 11, 12, 13, 14, 15};
    const uint8_t *from = op - offset;
    uint8_t *end = op + length, *last = end; /* no step begins behind it */
    if (length + STEP > room)
        last = room < 2 * STEP ? op : op + room - STEP;
    if (offset < STEP && !puts[offset]) {
        op = repeat_word(op, offset, last);
        from = op - offset;
    } else if (offset < STEP) {
        uint8_t *near = puts[offset] < length ? op + puts[offset] : end;
        for (const uint8_t *next = from; op < near; op++, next++)
            *op = *next;
    }
    while (op < last) {
        /* What is known repeats, and becomes twice as much. */
        const uint8_t *next = from;
        uint8_t *stop = op - from < last - op ? op + (op - from) : last;
        for (; op < stop; op += STEP, next += STEP)
            memcpy(op, next, STEP);
        op = stop;
    }
    for (from = op - offset; op < end; op++, from++)
        *op = *from;
}

size_t pst_sst_unpack(const uint8_t *src, size_t src_size, uint8_t *dst, size_t dst_size) {
    const uint8_t *ip = src, *end = src + src_size;
    uint8_t *op = dst, *out = dst + dst_size;
    while (ip < end) {
        uint32_t token = *ip++;
        size_t literals = token >> 4, length = token & LONG;
        /* Most sequences are short and far from both ends. */
        if (literals < LONG && end - ip >= SHORT_IN && out - op >= SHORT_OUT) {
            memcpy(op, ip, STEP);
            op += literals;
            ip += literals;
            size_t offset = pst_get_u16(ip);
            if (length < LONG && offset >= 8 && offset <= (size_t)(op - dst)) {
                const uint8_t *from = op - offset;
                memcpy(op, from, 8);
                memcpy(op + 8, from + 8, 8);
                memcpy(op + 16, from + 16, 2);
                op += length + LEAST_MATCH;
                ip += 2;
                continue;
            }
        } else {
            if (literals == LONG && !add_length(&ip, end, &literals))
                return 0;
            if (literals > (size_t)(end - ip) || literals > (size_t)(out - op))
                return 0;
            if (literals)
                memcpy(op, ip, literals);
            op += literals;
            ip += literals;
            if (op == out)
                return (size_t)(ip - src);
        }
        if (end - ip < 2)
            return 0;
        size_t offset = pst_get_u16(ip);
        ip += 2;
        if (length == LONG && !add_length(&ip, end, &length))
            return 0;
        length += LEAST_MATCH;
        /* A block ends with literals. */
        if (offset == 0 || offset > (size_t)(op - dst) || length >= (size_t)(out - op))
            return 0;
        copy_match(op, offset, length, (size_t)(out - op));
        op += length;
    }
    return 0;
}
