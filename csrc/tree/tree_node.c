#include "tree/tree_node.h"

/* As memcmp, of a block beside a writer and private memory: the first n bytes. */
static int compare_block(const uint8_t *block, const uint8_t *data, uint32_t n) {
    for (uint32_t i = 0; i < n; i += 8) {
        uint32_t size = n - i < 8 ? n - i : 8;
        uint64_t a = pst_get64(block + i), b = 0;
        memcpy(&b, data + i, size);
        if (size < 8)
            a &= (UINT64_C(1) << size * 8) - 1;
        if (a != b)
            return __builtin_bswap64(a) < __builtin_bswap64(b) ? -1 : 1;
    }
    return 0;
}

static int compare_sizes(uint32_t a, uint32_t b) {
    return (a > b) - (a < b);
}

static int compare_four(uint32_t a, uint32_t b) {
    uint32_t x = __builtin_bswap32(a), y = __builtin_bswap32(b);
    return (x > y) - (x < y);
}

/* Both are padded with zeros, which compare as their ends would; if all is equal, sizes decide. */
int pst_tree_compare_bytes(pst_tree_probe *p, const uint64_t *slot) {
    uint64_t a[2] = {pst_get64(slot), pst_get64(slot + 1)};
    const uint64_t *b = p->word;
    if (a[0] >> 32 != b[0] >> 32)
        return compare_four((uint32_t)(a[0] >> 32), (uint32_t)(b[0] >> 32));
    uint32_t n = pst_ref_size(a), m = pst_ref_size(b), shared = n < m ? n : m;
    int long_a = pst_ref_is_block(a), long_b = pst_ref_is_block(b);
    uint32_t next_a = (uint32_t)(long_a ? a[1] >> 32 : a[1]);
    uint32_t next_b = (uint32_t)(long_b ? b[1] >> 32 : b[1]);
    if (next_a != next_b)
        return compare_four(next_a, next_b);
    if (long_a) {
        uint64_t at = (uint64_t)pst_ref_granule(a) * PST_GRANULE;
        if (!at || at + pst_tree_block_bytes(n) > p->heap_bytes) {
            p->corrupt = 1;
            return 1;
        }
        int d = compare_block(p->heap + at, p->bytes.data, shared);
        return d ? d : compare_sizes(n, m);
    }
    uint32_t last_a = (uint32_t)(a[1] >> 32), last_b = (uint32_t)(b[1] >> 32);
    if (long_b)
        memcpy(&last_b, p->bytes.data + 8, 4);
    return last_a != last_b ? compare_four(last_a, last_b) : compare_sizes(n, m);
}

uint32_t pst_tree_search_bytes(pst_tree_probe *p, const uint64_t *keys, uint32_t n, int inclusive) {
    uint32_t from = 0;
    while (n) {
        uint32_t half = n / 2;
        int d = pst_tree_compare_bytes(p, keys + (size_t)(from + half) * 2);
        if (d < 0 || (inclusive && d == 0)) {
            from += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return from;
}
