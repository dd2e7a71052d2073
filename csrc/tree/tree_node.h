/* tree_node.h: the node of a tree, and how it is searched.
 *
 * Purpose: the layout that tree_put.c writes and tree_walk.c reads.
 *
 * Thread safety: reads only; loads are such that a writer may reuse the memory meanwhile.
 *
 * Invariants
 *  TN1. A node is an array of words: header, `capacity` keys, `capacity` values, `capacity` times
 *       (timed leaves), marks (marked leaves). In an inner node a value is one word, the child's
 *       granule.
 *  TN2. The header is one word, so that count and capacity are never seen apart: birth (32 bits),
 *       level (7), marked (1), size class (8), count (8), capacity (8).
 *  TN3. Birth is the low half of the epoch in which the node was allocated. It would come round
 *       after 2^32 epochs.
 *  TN4. A byte block of a tree bears its birth behind its bytes, rounded up to four.
 *  TN5. Only a leaf that had an entry without a value is marked, and has at most PST_TREE_MARKS
 *       entries. Bit i of its marks: entry i has no value. Bits of no entry mean nothing.
 */
#ifndef PST_TREE_NODE_H
#define PST_TREE_NODE_H

#include "memory/layout.h"
#include "memory/reference.h"
#include "memory/store.h"
#include "tree/tree.h"

enum { PST_TREE_MARKS = 64, PST_NODE_MARKED = 0x80 };

static inline uint64_t pst_node_make(uint32_t birth, uint32_t level, int marked,
                                     uint32_t size_class, uint32_t count, uint32_t capacity) {
    uint32_t flag = marked ? PST_NODE_MARKED : 0;
    return birth | (uint64_t)(level | flag) << 32 | (uint64_t)size_class << 40 |
           (uint64_t)count << 48 | (uint64_t)capacity << 56;
}

static inline uint32_t pst_node_birth(uint64_t header) {
    return (uint32_t)header;
}

static inline uint32_t pst_node_level(uint64_t header) {
    return (uint32_t)(header >> 32) & 0x7F;
}

static inline int pst_node_is_marked(uint64_t header) {
    return (int)(header >> 39) & 1;
}

static inline uint32_t pst_node_class(uint64_t header) {
    return (uint32_t)(header >> 40) & 0xFF;
}

static inline uint32_t pst_node_count(uint64_t header) {
    return (uint32_t)(header >> 48) & 0xFF;
}

static inline uint32_t pst_node_capacity(uint64_t header) {
    return (uint32_t)(header >> 56);
}

static inline uint32_t pst_node_value_words(const pst_tree_shape *s, uint32_t level) {
    return level ? 1 : s->value_words;
}

static inline uint32_t pst_node_entry_words(const pst_tree_shape *s, uint32_t level) {
    return s->key_words + (level ? 1u : (uint32_t)s->value_words + s->timed);
}

static inline const uint64_t *pst_node_at(const uint8_t *heap, uint32_t granule) {
    return (const uint64_t *)(const void *)(heap + (uint64_t)granule * PST_GRANULE);
}

static inline const uint64_t *pst_node_key(const pst_tree_shape *s, const uint64_t *node,
                                           uint32_t i) {
    return node + 1 + i * s->key_words;
}

static inline const uint64_t *pst_node_value(const pst_tree_shape *s, const uint64_t *node,
                                             uint64_t header, uint32_t i) {
    uint32_t words = pst_node_value_words(s, pst_node_level(header));
    return node + 1 + pst_node_capacity(header) * s->key_words + i * words;
}

static inline const uint64_t *pst_node_time(const pst_tree_shape *s, const uint64_t *node,
                                            uint64_t header, uint32_t i) {
    return node + 1 + pst_node_capacity(header) * (uint32_t)(s->key_words + s->value_words) + i;
}

static inline const uint64_t *pst_node_marks_at(const pst_tree_shape *s, const uint64_t *node,
                                                uint64_t header) {
    return node + 1 + pst_node_capacity(header) * pst_node_entry_words(s, 0);
}

/* The marks of a leaf's entries; 0 where all have values. */
static inline uint64_t pst_node_marks(const pst_tree_shape *s, const uint64_t *node,
                                      uint64_t header) {
    return pst_node_is_marked(header) ? pst_get64(pst_node_marks_at(s, node, header)) : 0;
}

/* Whether entry i has no value. */
static inline int pst_node_is_null(const pst_tree_shape *s, const uint64_t *node, uint64_t header,
                                   uint32_t i) {
    return pst_node_is_marked(header) && (pst_node_marks(s, node, header) >> i & 1);
}

static inline uint32_t pst_node_child(const pst_tree_shape *s, const uint64_t *node,
                                      uint64_t header, uint32_t i) {
    return (uint32_t)pst_get64(pst_node_value(s, node, header, i));
}

/* Loads the header; 0 where no node of this shape can lie. */
static inline int pst_node_open(const uint8_t *heap, uint64_t heap_bytes, const pst_tree_shape *s,
                                uint32_t granule, uint64_t *header) {
    uint64_t at = (uint64_t)granule * PST_GRANULE;
    if (!granule || at + PST_GRANULE > heap_bytes)
        return 0;
    uint64_t h = pst_get64(heap + at);
    uint32_t level = pst_node_level(h), count = pst_node_count(h), capacity = pst_node_capacity(h);
    uint64_t words = 1 + (uint64_t)capacity * pst_node_entry_words(s, level);
    *header = h;
    if (pst_node_is_marked(h) && (level || capacity > PST_TREE_MARKS))
        return 0;
    return count - 1 < capacity && level < PST_TREE_LEVELS &&
           at + (words + (uint64_t)pst_node_is_marked(h)) * 8 <= heap_bytes;
}

/* As pst_node_open, for a child of a node of level + 1. The search needs several lines of its keys
 * one after the other, so all of them are prefetched together. */
static inline int pst_node_open_child(const uint8_t *heap, uint64_t heap_bytes,
                                      const pst_tree_shape *s, uint32_t granule, uint32_t level,
                                      uint64_t *header) {
    const uint8_t *node = heap + (uint64_t)granule * PST_GRANULE;
    for (int line = 1; line < 8; line++)
        __builtin_prefetch(node + line * 64);
    return pst_node_open(heap, heap_bytes, s, granule, header) && pst_node_level(*header) == level;
}

/* Prefetches all lines of a full node, for a writer that may have to copy it. */
PST_PREFETCH void pst_node_prefetch(const uint8_t *heap, uint32_t granule, uint32_t level) {
    enum { LINE = 64, LEAF = 512, INNER = 1024 };
    const uint8_t *node = heap + (uint64_t)granule * PST_GRANULE;
    for (int at = 0; at < (level ? INNER : LEAF); at += LINE)
        __builtin_prefetch(node + at, 0, 2);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* The size of the block for this many bytes (TN4). */
static inline uint64_t pst_tree_block_bytes(uint32_t size) {
    return ((uint64_t)size + 3) / 4 * 4 + 4;
}

/* A reference in a node as bytes; 0 where it leads out of the heap. */
static inline int pst_tree_bytes(const uint8_t *heap, uint64_t heap_bytes, const uint64_t *slot,
                                 pst_bytes *out) {
    uint64_t ref[2] = {pst_get64(slot), pst_get64(slot + 1)};
    out->size = pst_ref_size(ref);
    if (!pst_ref_is_block(ref)) {
        out->data = (const uint8_t *)slot + 4;
        return 1;
    }
    uint64_t at = (uint64_t)pst_ref_granule(ref) * PST_GRANULE;
    out->data = heap + at;
    return at && at + pst_tree_block_bytes(out->size) <= heap_bytes;
}

/* ---- search ---------------------------------------------------------------------------------- */

/* What is looked for. Bytes are a reference whose granule is not used. */
typedef struct pst_tree_probe {
    uint64_t word[2];
    pst_bytes bytes;
    const uint8_t *heap;
    uint64_t heap_bytes;
    int corrupt; /* a reference led out of the heap */
} pst_tree_probe;

static inline void pst_tree_probe_make(pst_tree_probe *p, const uint8_t *heap, uint64_t heap_bytes,
                                       const pst_tree_shape *s, const pst_tree_entry *e) {
    p->heap = heap;
    p->heap_bytes = heap_bytes;
    p->corrupt = 0;
    if (s->key_is_ref) {
        p->bytes = e->key_bytes;
        pst_ref_make(p->word, e->key_bytes);
    } else {
        p->word[0] = e->key[0];
        p->word[1] = s->key_words == 2 ? e->key[1] : 0;
    }
}

/* Compares stored bytes with the probe's: below, at or above 0. */
int pst_tree_compare_bytes(pst_tree_probe *p, const uint64_t *slot);
/* The number of keys below the probe's, or not above it (`inclusive`). */
uint32_t pst_tree_search_bytes(pst_tree_probe *p, const uint64_t *keys, uint32_t n, int inclusive);

static inline unsigned __int128 pst_tree_pair(uint64_t first, uint64_t second) {
    return (unsigned __int128)first << 64 | second;
}

static inline uint32_t pst_tree_search_words(const uint64_t *keys, uint32_t n, uint64_t key,
                                             int inclusive) {
    const uint64_t *base = keys;
    while (n > 1) {
        uint32_t half = n / 2;
        uint64_t k = pst_get64(base + half - 1);
        base += (inclusive ? k <= key : k < key) ? half : 0;
        n -= half;
    }
    if (n) {
        uint64_t k = pst_get64(base);
        base += inclusive ? k <= key : k < key;
    }
    return (uint32_t)(base - keys);
}

/* The mask keeps compilers from a branch, which would be mispredicted every other time. */
static inline uint32_t pst_tree_search_pairs(const uint64_t *keys, uint32_t n,
                                             const uint64_t word[2], int inclusive) {
    unsigned __int128 key = pst_tree_pair(word[0], word[1]);
    uint32_t from = 0;
    while (n) {
        uint32_t half = (n + 1) / 2;
        const uint64_t *at = keys + (from + half - 1) * 2;
        unsigned __int128 k = pst_tree_pair(pst_get64(at), pst_get64(at + 1));
        uint32_t below = inclusive ? k <= key : k < key;
        from += half & (0 - below);
        n -= half;
    }
    return from;
}

static inline uint32_t pst_node_search(const pst_tree_shape *s, pst_tree_probe *p,
                                       const uint64_t *keys, uint32_t n, int inclusive) {
    if (s->key_words == 1)
        return pst_tree_search_words(keys, n, p->word[0], inclusive);
    if (!s->key_is_ref)
        return pst_tree_search_pairs(keys, n, p->word, inclusive);
    return pst_tree_search_bytes(p, keys, n, inclusive);
}

/* The child that the probe's key belongs to. */
static inline uint32_t pst_node_branch(const pst_tree_shape *s, pst_tree_probe *p,
                                       const uint64_t *node, uint64_t header) {
    return pst_node_search(s, p, pst_node_key(s, node, 1), pst_node_count(header) - 1, 1);
}

/* The first entry of a leaf that is not below the probe's key, and whether it is equal. */
static inline uint32_t pst_node_locate(const pst_tree_shape *s, pst_tree_probe *p,
                                       const uint64_t *node, uint64_t header, int *equal) {
    uint32_t count = pst_node_count(header);
    uint32_t i = pst_node_search(s, p, node + 1, count, 0);
    *equal = 0;
    if (i < count) {
        const uint64_t *k = pst_node_key(s, node, i);
        if (s->key_is_ref)
            *equal = pst_tree_compare_bytes(p, k) == 0;
        else
            *equal =
                pst_get64(k) == p->word[0] && (s->key_words == 1 || pst_get64(k + 1) == p->word[1]);
    }
    return i;
}

/* Value and time of a leaf's entry; 0 where its bytes lead out of the heap. */
static inline int pst_node_fill_value(const uint8_t *heap, uint64_t heap_bytes,
                                      const pst_tree_shape *s, const uint64_t *node,
                                      uint64_t header, uint32_t i, pst_tree_entry *e) {
    e->value = pst_node_value(s, node, header, i);
    e->time = s->timed ? (int64_t)pst_get64(pst_node_time(s, node, header, i)) : 0;
    e->is_null = pst_node_is_null(s, node, header, i);
    e->is_gone = e->is_null && s->value_words && pst_get64(e->value) != 0;
    return !s->value_is_ref || pst_tree_bytes(heap, heap_bytes, e->value, &e->value_bytes);
}

#endif
