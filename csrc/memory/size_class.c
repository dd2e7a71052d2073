#include "memory/size_class.h"

uint32_t pst_class_of(uint64_t bytes) {
    if (bytes <= 64)
        return bytes <= 16 ? 0 : (uint32_t)((bytes - 1) / 16);
    uint32_t top = 63u - (uint32_t)__builtin_clzll(bytes - 1); /* 2^top < bytes <= 2^(top+1) */
    uint64_t quarter = (uint64_t)1 << (top - 2);
    uint32_t step = (uint32_t)((bytes - 1 - ((uint64_t)1 << top)) / quarter);
    return 4 + (top - 6) * 4 + step;
}
