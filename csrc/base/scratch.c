#include "base/scratch.h"

#include <stdint.h>

#include "base/mem.h"

/* Before what is handed out. */
typedef struct header {
    void *start; /* of the allocation */
    size_t size; /* of what is handed out */
} header;

enum { ALIGNED = 64 };

#ifdef __SANITIZE_ADDRESS__
enum { KEPT = 0 }; /* so that the use of what was dropped is found */
static uint8_t *kept[1];
#else
enum { KEPT = PST_SCRATCH_KEPT };
static uint8_t *kept[KEPT];
#endif

static header *header_of(uint8_t *block) {
    return (header *)(void *)block - 1;
}

static uint8_t *allocate(size_t size) {
    uint8_t *start = pst_malloc(size + sizeof(header) + ALIGNED);
    if (!start)
        return NULL;
    uint8_t *block = start + sizeof(header);
    block += ALIGNED - (uintptr_t)block % ALIGNED;
    *header_of(block) = (header){start, size};
    return block;
}

/* Puts it where it was, or, where another thread has put one meanwhile, as the newest. */
static void put_back(int place, uint8_t *block) {
    uint8_t *none = NULL;
    if (!__atomic_compare_exchange_n(&kept[place], &none, block, 0, __ATOMIC_RELEASE,
                                     __ATOMIC_RELAXED))
        pst_scratch_drop(block);
}

void *pst_scratch_take(size_t size) {
    for (int i = 0; i < KEPT && size >= PST_SCRATCH_LEAST; i++) {
        uint8_t *block = __atomic_exchange_n(&kept[i], NULL, __ATOMIC_ACQUIRE);
        if (!block)
            continue;
        size_t have = header_of(block)->size;
        int fits = have >= size && have / 4 <= size, refused = fits && PST_ALLOC_REFUSED();
        if (fits && !refused)
            return block;
        put_back(i, block);
        if (refused)
            return NULL;
    }
    return allocate(size);
}

/* The newest comes first, and the oldest goes: sizes that nobody asks for any more do not stay. */
void pst_scratch_drop(void *block) {
    if (!block)
        return;
    uint8_t *moved = block;
    size_t size = header_of(moved)->size;
    int keep = size >= PST_SCRATCH_LEAST && size <= PST_SCRATCH_MOST;
    for (int i = 0; i < KEPT && keep && moved; i++)
        moved = __atomic_exchange_n(&kept[i], moved, __ATOMIC_ACQ_REL);
    if (moved)
        pst_free(header_of(moved)->start);
}
