/* wanted_world.h: worlds of files, and keys of them as a caller of look-ups has them.
 *
 * Thread safety: everything belongs to one thread.
 */
#ifndef PST_TEST_WANTED_WORLD_H
#define PST_TEST_WANTED_WORLD_H

#include "stack_world.h"

/* Without guides if block_bytes is 0. */
static inline void make_world(world *w, world_style style, int32_t n, size_t base, uint64_t seed,
                              uint32_t block_bytes) {
    uint64_t rng = seed;
    memset(w, 0, sizeof *w);
    world_schema(w, style);
    world_folder(w);
    w->block_bytes = block_bytes;
    for (int32_t i = 0; i < n; i++)
        world_write(w, i, &rng, i ? base / 8 : base, base, check_random(&rng) % 5 ? 40 : 3000);
}

/* Damages a byte of a file. */
static inline void flip(const char *path, off_t at) {
    uint8_t byte;
    int fd = open(path, O_RDWR);
    REQUIRE(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 4;
    REQUIRE(pwrite(fd, &byte, 1, at) == 1);
    fsync(fd);
    close(fd);
}

/* ---- wanted keys ------------------------------------------------------------------------------- */

typedef struct wanted {
    pst_array columns[2];
    uint64_t *words[2];
    int32_t *offsets;
    uint8_t *text;
    uint8_t *validity;
} wanted;

static inline wanted want(const world *w, const uint64_t *ids, size_t n) {
    wanted x = {.offsets = calloc(n + 2, sizeof(int32_t)),
                .text = malloc(40 * (n + 1)),
                .validity = calloc(n / 8 + 1, 1)};
    byte_heap *h = calloc(1, sizeof *h);
    REQUIRE(x.offsets && x.text && x.validity && h);
    for (int k = 0; k < 2; k++) {
        x.words[k] = calloc(n + 1, sizeof(uint64_t));
        REQUIRE(x.words[k]);
    }
    for (size_t i = 0; i < n; i++) {
        pst_record r = {0};
        world_key(w, h, ids[i], &r);
        x.words[0][i] = r.key[0].word[0];
        x.words[1][i] = r.key[1].word[0];
        x.offsets[i + 1] = x.offsets[i];
        if (w->style == WORLD_STRINGS) {
            memcpy(x.text + x.offsets[i], r.key[0].bytes.data, r.key[0].bytes.size);
            x.offsets[i + 1] += (int32_t)r.key[0].bytes.size;
        }
        x.validity[i / 8] |= (uint8_t)(!(r.key_nulls & 1) << i % 8);
        heap_free(h);
    }
    free(h);
    for (int k = 0; k < 2; k++)
        x.columns[k] = (pst_array){.type = PST_INT64, .length = (int64_t)n, .values = x.words[k]};
    x.columns[0].validity = x.validity;
    if (w->style == WORLD_STRINGS) {
        x.columns[0].type = PST_STRING;
        x.columns[0].values = x.text;
        x.columns[0].offsets = x.offsets;
        x.columns[0].values_bytes = x.offsets[n];
    }
    return x;
}

static inline void wanted_free(wanted *x) {
    free(x->words[0]);
    free(x->words[1]);
    free(x->offsets);
    free(x->text);
    free(x->validity);
}

#endif
