/* xxh64.h: the 64-bit xxHash, after its published specification.
 *
 * It serves twice: as the checksum of files and shared headers, and as the hash of keys, where it
 * must give what Spark's XXH64 gives. The two inline functions are the general algorithm for
 * exactly four and eight little-endian bytes, which is what Spark calls hashInt and hashLong.
 *
 * Thread safety: pure functions; a state belongs to one thread at a time.
 *
 * Invariants:
 * 1. pst_xxh64(x ++ y, s) == init(s), update(x), update(y), digest, wherever the split falls.
 * 2. pst_xxh64_int(v, s) == pst_xxh64(the 4 little-endian bytes of v, s); likewise _long and 8.
 * 3. No alignment is required of the input; a NULL input is allowed where its size is zero.
 */
#ifndef PST_XXH64_H
#define PST_XXH64_H

#include <stddef.h>
#include <stdint.h>

#define PST_XXH_P1 UINT64_C(0x9E3779B185EBCA87)
#define PST_XXH_P2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define PST_XXH_P3 UINT64_C(0x165667B19E3779F9)
#define PST_XXH_P4 UINT64_C(0x85EBCA77C2B2AE63)
#define PST_XXH_P5 UINT64_C(0x27D4EB2F165667C5)

typedef struct pst_xxh64_state {
    uint64_t lane[4];
    uint64_t seed;
    uint64_t total;
    uint8_t tail[32]; /* total % 32 bytes are waiting */
} pst_xxh64_state;

uint64_t pst_xxh64(const void *data, size_t size, uint64_t seed);

void pst_xxh64_init(pst_xxh64_state *s, uint64_t seed);
void pst_xxh64_update(pst_xxh64_state *s, const void *data, size_t size);
/* May be called in between; the state is not changed. */
uint64_t pst_xxh64_digest(const pst_xxh64_state *s);

static inline uint64_t pst_xxh64_rotl(uint64_t x, unsigned r) {
    return (x << r) | (x >> (64 - r));
}

static inline uint64_t pst_xxh64_avalanche(uint64_t h) {
    h ^= h >> 33;
    h *= PST_XXH_P2;
    h ^= h >> 29;
    h *= PST_XXH_P3;
    h ^= h >> 32;
    return h;
}

static inline uint64_t pst_xxh64_int(int32_t v, uint64_t seed) {
    uint64_t h = seed + PST_XXH_P5 + 4;
    h ^= (uint32_t)v * PST_XXH_P1;
    return pst_xxh64_avalanche(pst_xxh64_rotl(h, 23) * PST_XXH_P2 + PST_XXH_P3);
}

static inline uint64_t pst_xxh64_long(int64_t v, uint64_t seed) {
    uint64_t h = seed + PST_XXH_P5 + 8;
    h ^= pst_xxh64_rotl((uint64_t)v * PST_XXH_P2, 31) * PST_XXH_P1;
    return pst_xxh64_avalanche(pst_xxh64_rotl(h, 27) * PST_XXH_P1 + PST_XXH_P4);
}

#endif
