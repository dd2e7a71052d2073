/* words.h: a few bytes in registers.
 *
 * Thread safety: pure functions.
 */
#ifndef PST_WORDS_H
#define PST_WORDS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Up to 16 bytes as two words, padded with zeros: without a call, and without narrow stores that a
 * wider load would wait for. */
static inline void pst_short_words(const uint8_t *p, size_t size, uint64_t words[2]) {
    words[0] = words[1] = 0;
    if (size >= 8) {
        uint32_t half = 4 * (16 - (uint32_t)size); /* C has no shift by 64 */
        memcpy(&words[0], p, 8);
        memcpy(&words[1], p + size - 8, 8);
        words[1] = words[1] >> half >> half;
    } else if (size >= 4) {
        uint32_t first, last, past = 8 * (8 - (uint32_t)size);
        memcpy(&first, p, 4);
        memcpy(&last, p + size - 4, 4);
        words[0] = first | (uint64_t)last >> past << 32;
    } else if (size) {
        words[0] = p[0] | (uint64_t)p[size >> 1] << (size >> 1) * 8 |
                   (uint64_t)p[size - 1] << (size - 1) * 8;
    }
}

#endif
