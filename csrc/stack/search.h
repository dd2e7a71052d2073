/* search.h: many keys at once, out of the files of a stack.
 *
 * Purpose: wanted keys come in the order of files, so each block is read once, however many keys it
 * has. In rounds each key asks the newest file that it has not asked and whose filter has it. What
 * a file says may end a key's search: that it is deleted, or all of its columns. Blocks that lie near
 * each other are read together, many reads are in flight, and what arrives is searched meanwhile.
 *
 * Thread safety: as the stack.
 *
 * Invariants
 *  SR1. A key's search ends when no older file can add anything to what was found: not before, and
 *       `done` is called then, once; unless the seeker takes the key away (`is_long`), of which some
 *       was found then and nobody says that it is done.
 *  SR2. Records of a key come newest file first, and of one file in its order.
 *  SR3. Nothing outside of a file's blocks and filters is read, but for the pages around them and
 *       what lies between blocks of a segment that are read together.
 *  SR4. Memory is that of a slice of keys, of the reads and of the largest block.
 *  SR5. In a round the blocks of a place are read once for all keys of it that lie in one slice,
 *       however many they are, and each key is looked for in those blocks alone that may have it.
 *
 * Complexity: O(keys * files) looks at filters, a look for each key into a file whose filter has it,
 * and a read for each block of these, or for several. Of k keys of one place O(k log k) comparisons
 * besides, where that has several blocks.
 */
#ifndef PST_STACK_SEARCH_H
#define PST_STACK_SEARCH_H

#include "stack/stack.h"

/* A wanted key. Its hash is the one that files have, Spark's; a table may keep it under another one
 * (K3). */
typedef struct pst_place {
    uint64_t hash;
    int32_t key_group;
    uint32_t key; /* the caller's number for it */
} pst_place;

/* Records of a key in one block of a file. In files with elements the row's own record is the first
 * one of the file, if that has it; others may follow from the next block. */
typedef struct pst_found {
    uint32_t key;
    int32_t file;
    uint32_t rows;
    int only;                 /* it is all that the search will say of the key */
    const pst_record *record; /* the first one */
    uint32_t row;             /* for pst_found_record */
    pst_search *block;
} pst_found;

/* Record i of those; valid as long as the call of `found`. PST_CORRUPT. */
pst_status pst_found_record(const pst_found *f, uint32_t i, pst_record *record);

/* What a search asks and tells. A status other than PST_OK ends it. */
typedef struct pst_seeker {
    void *ctx;
    /* The key's columns, all but the element; bytes must stay as long as the search. NULL: all keys
     * of the places are wanted, and no file ends the search. */
    void (*key)(void *ctx, uint32_t key, pst_cell *cells, uint32_t *nulls);
    /* The key will be asked for soon: its memory may be prefetched. May be NULL. */
    void (*ahead)(void *ctx, uint32_t key);
    pst_status (*found)(void *ctx, const pst_found *found);
    /* `any`: something was found. */
    pst_status (*done)(void *ctx, uint32_t key, int any);
    /* A file has so much at the key's place that all of it should not be read: does the caller look
     * for the key by itself (walk.h)? May be NULL. */
    int (*is_long)(void *ctx, uint32_t key);
} pst_seeker;

/* `places` ascend by key group and hash; a key may be there more than once. PST_IO and PST_CORRUPT,
 * with file and offset in the stack's detail; PST_INVALID: places that do not ascend, or the callback
 * of a search of the same reads; PST_NO_MEMORY, PST_LIMIT; and what the callbacks say. */
pst_status pst_stack_search(pst_stack *st, const pst_place *places, size_t n,
                            const pst_seeker *seeker);

#endif
