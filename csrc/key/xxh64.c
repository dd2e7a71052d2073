#include "key/xxh64.h"

#include <string.h>

#include "base/coding.h"
#include "base/mem.h"
#include "pystate.h"

static inline uint64_t lane_round(uint64_t lane, uint64_t input) {
    return pst_xxh64_rotl(lane + input * PST_XXH_P2, 31) * PST_XXH_P1;
}

static inline uint64_t merge_lane(uint64_t h, uint64_t lane) {
    return (h ^ lane_round(0, lane)) * PST_XXH_P1 + PST_XXH_P4;
}

static void start_lanes(uint64_t lane[4], uint64_t seed) {
    lane[0] = seed + PST_XXH_P1 + PST_XXH_P2;
    lane[1] = seed + PST_XXH_P2;
    lane[2] = seed;
    lane[3] = seed - PST_XXH_P1;
}

/* Consumes whole stripes of 32 bytes; returns what is left of `size`. */
static size_t stripes(uint64_t lane[4], const uint8_t *p, size_t size) {
    uint64_t a = lane[0], b = lane[1], c = lane[2], d = lane[3];
    for (; size >= 32; size -= 32, p += 32) {
        a = lane_round(a, pst_get_u64(p));
        b = lane_round(b, pst_get_u64(p + 8));
        c = lane_round(c, pst_get_u64(p + 16));
        d = lane_round(d, pst_get_u64(p + 24));
    }
    lane[0] = a;
    lane[1] = b;
    lane[2] = c;
    lane[3] = d;
    return size;
}

static uint64_t join_lanes(const uint64_t lane[4]) {
    uint64_t h = pst_xxh64_rotl(lane[0], 1) + pst_xxh64_rotl(lane[1], 7) +
                 pst_xxh64_rotl(lane[2], 12) + pst_xxh64_rotl(lane[3], 18);
    for (int i = 0; i < 4; i++)
        h = merge_lane(h, lane[i]);
    return h;
}

/* The last 0 to 31 bytes. */
static uint64_t finish(uint64_t h, const uint8_t *p, size_t size) {
    for (; size >= 8; size -= 8, p += 8)
        h = pst_xxh64_rotl(h ^ lane_round(0, pst_get_u64(p)), 27) * PST_XXH_P1 + PST_XXH_P4;
    if (size >= 4) {
        h = pst_xxh64_rotl(h ^ pst_get_u32(p) * PST_XXH_P1, 23) * PST_XXH_P2 + PST_XXH_P3;
        p += 4;
        size -= 4;
    }
    for (; size > 0; size--, p++)
        h = pst_xxh64_rotl(h ^ *p * PST_XXH_P5, 11) * PST_XXH_P1;
    return pst_xxh64_avalanche(h);
}

uint64_t pst_xxh64(const void *data, size_t size, uint64_t seed) {
    const uint8_t *p = data;
    uint64_t h = seed + PST_XXH_P5;
    size_t left = size;
    if (size >= 32) {
        uint64_t lane[4];
        start_lanes(lane, seed);
        left = stripes(lane, p, size);
        h = join_lanes(lane);
        p += size - left;
    }
    return finish(h + size, p, left);
}

void pst_xxh64_init(pst_xxh64_state *s, uint64_t seed) {
    start_lanes(s->lane, seed);
    s->seed = seed;
    s->total = 0;
}

void pst_xxh64_update(pst_xxh64_state *s, const void *data, size_t size) {
    if (size == 0)
        return;
    const uint8_t *p = data;
    size_t waiting = s->total % 32;
    s->total += size;
    if (waiting > 0) {
        size_t take = 32 - waiting < size ? 32 - waiting : size;
        memcpy(s->tail + waiting, p, take);
        p += take;
        size -= take;
        if (waiting + take < 32)
            return;
        stripes(s->lane, s->tail, 32);
    }
    size_t left = stripes(s->lane, p, size);
    if (left > 0)
        memcpy(s->tail, p + (size - left), left);
}

uint64_t pst_xxh64_digest(const pst_xxh64_state *s) {
    uint64_t h = s->total >= 32 ? join_lanes(s->lane) : s->seed + PST_XXH_P5;
    return finish(h + s->total, s->tail, s->total % 32);
}

pst_status pst_file_checksum(const pst_io *io, uint64_t file_bytes, uint64_t *checksum) {
    enum { PIECE = 1 << 18 };
    uint8_t *buffer = pst_malloc(PIECE);
    if (!buffer)
        return PST_NO_MEMORY;
    pst_xxh64_state state;
    pst_xxh64_init(&state, 0);
    pst_status s = PST_OK;
    for (uint64_t at = 0; !s && at < file_bytes; at += PIECE) {
        size_t size = file_bytes - at < PIECE ? (size_t)(file_bytes - at) : PIECE;
        if (io->read_at(io->ctx, at, buffer, size))
            s = PST_CALLBACK;
        if (!s)
            pst_xxh64_update(&state, buffer, size);
    }
    pst_free(buffer);
    if (!s)
        *checksum = pst_xxh64_digest(&state);
    return s;
}
