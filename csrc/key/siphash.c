#include "key/siphash.h"

#include "base/coding.h"

typedef struct state {
    uint64_t v[4];
} state;

static uint64_t rotate(uint64_t x, unsigned by) {
    return x << by | x >> (64 - by);
}

static void round_of(state *s) {
    uint64_t *v = s->v;
    v[0] += v[1];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[0] = rotate(v[0], 32);
    v[2] += v[3];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[2] = rotate(v[2], 32);
}

static void take(state *s, uint64_t word) {
    s->v[3] ^= word;
    round_of(s);
    s->v[0] ^= word;
}

uint64_t pst_siphash(const void *data, size_t size, const uint64_t secret[2]) {
    state s = {{secret[0] ^ UINT64_C(0x736f6d6570736575), secret[1] ^ UINT64_C(0x646f72616e646f6d),
                secret[0] ^ UINT64_C(0x6c7967656e657261),
                secret[1] ^ UINT64_C(0x7465646279746573)}};
    const uint8_t *p = data;
    size_t left = size;
    for (; left >= 8; left -= 8, p += 8)
        take(&s, pst_get_u64(p));
    uint64_t last = (uint64_t)size << 56;
    for (size_t i = 0; i < left; i++)
        last |= (uint64_t)p[i] << (8 * i);
    take(&s, last);
    s.v[2] ^= 0xff;
    for (int i = 0; i < 3; i++)
        round_of(&s);
    return s.v[0] ^ s.v[1] ^ s.v[2] ^ s.v[3];
}
