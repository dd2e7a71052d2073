/* index.h: from a key's hash to its slot; one open-addressing table per shard.
 *
 * Purpose: a shard is a key group, or a part of one. A shard that would outgrow PST_SHARD_MOST
 * splits in two, so that the largest step of growth, one shard's rebuild, stays small whatever the
 * number of keys. A key's tag is 32 bits of its hash mixed with the table's salt, so that neither
 * the order of keys nor who chooses them matters. The tag's first bits, as many as the shard's
 * depth, choose the shard. The other bits give the home position, as a fraction of the capacity,
 * rounded down to a line of eight entries. So a rebuild, or a split, is one pass over the old
 * entries and never looks at rows. Entries lie in pages of 512 that a page table names; capacities
 * need not be powers of two.
 *
 * Mixing does not help where whole hashes are equal, which anybody can bring about with keys of
 * bytes: such rows tie. The first few lie under their common hash. Each later one lies under a hash
 * of its own, a keyed hash of its bytes (pst_key_untied), which the row bears.
 *
 * Thread safety: the writer's alone; readers use the regions that a sealed meta names.
 *
 * Invariants
 *  I0. A key's entries lie in its home line or, while lines are full, in the next ones; a line is
 *      filled from its start. A line with an empty cell ends the walk.
 *  I1. In a region an entry goes empty -> entry -> tombstone. Undoing an insert, newest first,
 *      takes it back to empty, which is exactly what it was.
 *  I2. A region is freed when another took its place; its pages keep their content until no epoch
 *      of the window can refer to them (B1).
 *  I3. An entry whose row is dead stays until the slot is reused, or its shard is tidied; a lookup
 *      skips it unless the row died in the open epoch. Tidying keeps those that died in it.
 *  I4. When a slot is taken from the ring, no region of the window names it. So the entry that
 *      undoing an insert finds is the one that this insert made.
 *  I5. At most 4/5 of a region is in use after an insert; a rebuild leaves 0.58 to 0.71.
 *  I6. While the directory has room, no shard has more than PST_SHARD_MOST entries.
 *  I7. When a key of bytes is made, at most PST_TIES other rows lie under its hash; otherwise it
 *      goes under its own one. Whoever does not find a key of bytes under its hash looks under its
 *      own, if the epoch's `ties` is not 0.
 */
#ifndef PST_INDEX_H
#define PST_INDEX_H

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "key/key.h"
#include "memory/handle.h"
#include "memory/reference.h"
#include "table/row.h"

/* A walk goes along a shard by lines of eight entries, each one cache line. */
enum { PST_LINE = 8, PST_TIES = 8 };

/* About how many bytes of index a key takes in a shard that was just built. */
enum { PST_ENTRY_SHARE = 13 };

/* The part of the salt that tags are made with; loops keep a copy. */
typedef struct pst_salt {
    uint64_t add;
    uint64_t fold;   /* odd */
    uint64_t spread; /* odd */
} pst_salt;

static inline pst_salt pst_salt_of(const pst_table *t) {
    return (pst_salt){t->h->salt[0], t->h->salt[1], t->h->salt[2]};
}

/* The index tag of a hash, which is all that the index knows of a key beside its key group. The
 * hash is public, so it is mixed with the table's salt: by a folded multiplication, after which
 * hashes at equal distances no longer are, and by another one that moves all bits to the top. */
static inline uint32_t pst_salted_tag(pst_salt salt, uint64_t hash) {
    __extension__ typedef unsigned __int128 wide;
    wide product = (wide)(hash ^ salt.add) * salt.fold;
    return (uint32_t)(((uint64_t)product ^ (uint64_t)(product >> 64)) * salt.spread >> 32);
}

static inline uint32_t pst_tag_of(const pst_table *t, uint64_t hash) {
    return pst_salted_tag(pst_salt_of(t), hash);
}

/* The entry of a directory with 2^bits entries per group; groups count from the table's first. */
static inline uint32_t pst_directory_place(uint32_t group, uint32_t bits, uint32_t tag) {
    return group << bits | (uint32_t)((uint64_t)tag >> (32 - bits));
}

/* The same for a key whose key group is in range. */
static inline uint32_t pst_directory_at(const pst_table *t, uint32_t bits, uint64_t hash,
                                        uint32_t tag) {
    uint32_t group = (uint32_t)(pst_group_of(t, hash) - t->first_key_group);
    return pst_directory_place(group, bits, tag);
}

/* Where a look-up is in a shard: at a tag's home line, or at one of the lines after it. */
typedef struct pst_probe {
    const uint32_t *pages;
    uint64_t *line;
    uint32_t capacity;
    uint32_t at; /* position of the line's first entry in the shard */
} pst_probe;

static inline void pst_probe_point(pst_probe *c, const uint8_t *heap) {
    uint64_t page = (uint64_t)pst_get32(c->pages + c->at / PST_PAGE_ENTRIES) * PST_GRANULE;
    c->line = (uint64_t *)(heap + page) + c->at % PST_PAGE_ENTRIES;
}

/* The position of a tag's home line in a shard of this shape. */
static inline uint32_t pst_home(uint32_t shape, uint32_t tag) {
    uint64_t rest = (uint32_t)(tag << pst_shard_depth(shape));
    return (uint32_t)(rest * pst_shard_capacity(shape) >> 32) & ~(uint32_t)(PST_LINE - 1);
}

/* Points at the home line; 0 where the shard has no page yet. */
static inline int pst_probe_home(pst_probe *c, const pst_shard *s, const uint8_t *heap,
                                 uint32_t tag) {
    c->capacity = pst_shard_capacity(s->shape);
    if (!c->capacity)
        return 0;
    c->pages = (const uint32_t *)(heap + (uint64_t)s->table * PST_GRANULE);
    c->at = pst_home(s->shape, tag);
    pst_probe_point(c, heap);
    return 1;
}

/* Points at the home line of a hash, and says its tag; 0 also where its key group is not the
 * table's. */
static inline __attribute__((always_inline)) int pst_probe_hash(const pst_table *t, uint64_t hash,
                                                                uint32_t *tag, pst_probe *c) {
    int32_t group = pst_group_of(t, hash);
    if (group < t->first_key_group || group > t->last_key_group)
        return 0;
    *tag = pst_tag_of(t, hash);
    uint32_t at = pst_directory_at(t, t->m->directory_bits, hash, *tag);
    return pst_probe_home(c, &t->m->shards[at], t->heap, *tag);
}

/* Prefetches the line with which looking for a key of that hash, or making its row, begins. */
PST_PREFETCH void pst_index_prefetch(const pst_table *t, uint64_t hash) {
    uint32_t tag;
    pst_probe c;
    if (pst_probe_hash(t, hash, &tag, &c))
        __builtin_prefetch(c.line, 1, 2);
}

static inline void pst_probe_step(pst_probe *c, const uint8_t *heap) {
    c->at += PST_LINE;
    if (c->at == c->capacity)
        c->at = 0;
    pst_probe_point(c, heap);
}

/* A bit per entry of the line that bears the tag; with tag 0 also empty cells and tombstones. */
static inline uint32_t pst_line_matches(const uint64_t *line, uint32_t tag) {
#ifdef __SSE2__
    const __m128 *v = (const __m128 *)(const void *)line;
    __m128i want = _mm_set1_epi32((int)tag);
    __m128i low = _mm_castps_si128(_mm_shuffle_ps(v[0], v[1], 0xDD));
    __m128i high = _mm_castps_si128(_mm_shuffle_ps(v[2], v[3], 0xDD));
    __m128i both = _mm_packs_epi32(_mm_cmpeq_epi32(low, want), _mm_cmpeq_epi32(high, want));
    return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(both, _mm_setzero_si128()));
#else
    uint32_t mask = 0;
    for (uint32_t k = 0; k < PST_LINE; k++)
        mask |= (uint32_t)(line[k] >> 32 == tag) << k;
    return mask;
#endif
}

static inline uint64_t pst_entry(uint32_t tag, uint32_t slot) {
    return (uint64_t)tag << 32 | (uint64_t)(slot + 1);
}

static inline uint32_t pst_entry_slot(uint64_t entry) {
    return (uint32_t)entry - 1u;
}

/* Does the row hold this key, alive or dead since the open epoch began? */
static inline int pst_row_matches(const pst_table *t, const uint64_t *row, const pst_key *key) {
    uint64_t header = row[0];
    if (((uint32_t)header & PST_FLAG_NULL_KEY) != key->null)
        return 0;
    if (!pst_is_live(header) && pst_header_stamp(header) != t->stamp)
        return 0;
    const uint64_t *k = row + t->lay.key_offset / 8;
    if (t->lay.key_kind == PST_KEY_WORD)
        return k[0] == key->word;
    return k[0] == key->hash && pst_ref_equals(t->heap, k + 1, key->bytes);
}

/* Where a key without a row goes: the first empty cell on its path. Valid until its shard is
 * rebuilt. Both pointers are NULL where there is no region yet. */
typedef struct pst_vacancy {
    pst_shard *shard;
    uint64_t *cell;
    uint32_t tag;
    uint32_t ties; /* rows of other keys with the same hash on the path */
} pst_vacancy;

/* The slot of a key under its hash, or PST_NONE. */
static inline uint32_t pst_index_walk(const pst_table *t, const pst_key *key) {
    uint32_t tag = pst_tag_of(t, key->hash);
    pst_probe c;
    if (!pst_probe_home(&c,
                        &t->m->shards[pst_directory_at(t, t->m->directory_bits, key->hash, tag)],
                        t->heap, tag))
        return PST_NONE;
    for (uint32_t n = 0; n < c.capacity; n += PST_LINE) {
        for (uint32_t m = pst_line_matches(c.line, tag); m; m &= m - 1) {
            uint64_t e = c.line[__builtin_ctz(m)];
            if (!e || e == PST_TOMBSTONE)
                continue;
            if (pst_row_matches(t, pst_row(t, pst_entry_slot(e)), key))
                return pst_entry_slot(e);
        }
        if (!c.line[PST_LINE - 1])
            return PST_NONE;
        pst_probe_step(&c, t->heap);
    }
    return PST_NONE;
}

/* The same key under its own hash (I7). */
static inline pst_key pst_untied(const pst_table *t, const pst_key *key) {
    pst_key own = *key;
    own.hash = pst_key_untied(t->h->salt + 3, key->hash, key->bytes, t->max_parallelism);
    return own;
}

uint32_t pst_index_find_untied(const pst_table *t, const pst_key *key);

/* The key's slot, or PST_NONE. */
static inline uint32_t pst_index_find(const pst_table *t, const pst_key *key) {
    uint32_t slot = pst_index_walk(t, key);
    if (slot != PST_NONE || __builtin_expect(!t->m->ties, 1))
        return slot;
    return pst_index_find_untied(t, key);
}

/* The key's slot under its hash; or PST_NONE, and in *v where the key goes. */
uint32_t pst_index_seek(const pst_table *t, const pst_key *key, pst_vacancy *v);

/* Makes room for `rows` keys of a group that has none yet, as far as memory goes. If fewer keys
 * come the index is larger than it need be, and if more come it grows. */
pst_status pst_index_expect(pst_table *t, int32_t key_group, uint64_t rows);

/* Rebuilds shards that are mostly dead entries, where the whole index is, or that have entries of
 * slots above the cut. Each epoch does one shard, or several with a few thousand entries together.
 * This is part of an epoch's first write, as growth is of any: a seal has no time for a whole
 * shard. What there is no memory for waits for another epoch. */
pst_status pst_index_tidy(pst_table *t);

/* Makes room for one more entry for the key; *v may be another place then. */
pst_status pst_index_reserve(pst_table *t, const pst_key *key, pst_vacancy *v);

/* Finds where one more entry of that hash goes, for any key; 0 where its shard has no room. */
int pst_index_find_room(const pst_table *t, uint64_t hash, pst_vacancy *v);

/* Publishes the slot at *v. REQUIRES: room was reserved, and the row is complete. */
static inline void pst_index_take(const pst_vacancy *v, uint32_t slot) {
    PST_FENCE(__ATOMIC_RELEASE);
    pst_put64(v->cell, pst_entry(v->tag, slot));
    pst_put32(&v->shard->used, v->shard->used + 1);
}
/* Takes an undone insert out of the regions that `m` names, where it is there. */
void pst_index_undo(pst_table *t, pst_meta *m, uint64_t hash, uint32_t slot);
/* Turns the entry of a dead row into a tombstone in every region of the window that has it. Then no
 * epoch that can be returned to names the slot, which is about to be reused. */
void pst_index_bury(pst_table *t, uint64_t hash, uint32_t slot);

#endif
