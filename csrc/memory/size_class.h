/* size_class.h: the sizes that blocks have.
 *
 * Classes: 16, 32, 48, 64 bytes, then four to a doubling; at most a fifth of a block is padding
 * above that.
 *
 * Thread safety: pure functions.
 */
#ifndef PST_SIZE_CLASS_H
#define PST_SIZE_CLASS_H

#include <stdint.h>

uint32_t pst_class_of(uint64_t bytes); /* bytes in 1 .. PST_MAX_BYTES */

static inline uint64_t pst_class_size(uint32_t size_class) {
    if (size_class < 4)
        return (size_class + UINT64_C(1)) * 16;
    return (5 + (size_class & UINT64_C(3))) << ((size_class >> 2) + 3);
}

#endif
