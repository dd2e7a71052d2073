/* walk.h: the records of one key in one file of a stack, from any of its elements on.
 *
 * Purpose: a key's list or map may fill many blocks of a file. Whoever needs a few of its records
 * finds the block that has them by halving, and whoever needs all of them holds a few blocks at a
 * time.
 *
 * Thread safety: as the stack, which it holds. It reads between other searches, not during one.
 *
 * Invariants
 *  WK1. Every record of the key at or behind the wanted element comes, once and in order; no other.
 *  WK2. Memory is that of a window of blocks and of one that is open, both charged to the stack.
 *
 * Complexity: a seek reads O(log blocks of the key's place) blocks, one where the wanted one is open;
 * a pass through n blocks reads windows of them, the first of one block, each of twice as many.
 */
#ifndef PST_WALK_H
#define PST_WALK_H

#include "stack/stack.h"

typedef struct pst_walk {
    pst_stack *stack;
    int32_t file;
    int32_t key_group;
    uint64_t hash;
    const pst_cell *key; /* the caller's */
    uint32_t nulls;
    uint32_t segment; /* the first one of the place */
    uint64_t blocks;  /* of the place, in all its segments */
    uint64_t open;    /* which of them is open */
    uint32_t row;     /* the next one of it */
    uint32_t ahead;   /* blocks that the next window may have */
    pst_search search;
    pst_buffer window;
    uint64_t first; /* block of the window */
    uint64_t held;  /* blocks in it */
} pst_walk;

/* Of the key with that place, all columns but the element: cells and what they point to must stay as
 * long as the walk. Reads what the guide lacks of its place in memory. PST_NOT_FOUND: as the guide or
 * a filter say the file has nothing of it, or does not count for its key group; then, and where that
 * cannot be read (statuses as below), there is no walk to close. */
pst_status pst_walk_open(pst_walk *w, pst_stack *st, int32_t file, int32_t key_group, uint64_t hash,
                         const pst_cell *key, uint32_t nulls);
void pst_walk_close(pst_walk *w);

/* Stands before the key's first record that is not before that element; NULL: before its own record.
 * Statuses of all that read: PST_IO and PST_CORRUPT, with file and offset in the stack's detail;
 * PST_NO_MEMORY, PST_LIMIT; PST_INVALID in a callback of a search of the same reads. */
pst_status pst_walk_seek(pst_walk *w, const pst_bytes *element);
/* Stands before the key's last record that is before that element. PST_NOT_FOUND: there is none. */
pst_status pst_walk_seek_last(pst_walk *w, const pst_bytes *element);
/* The next record; its bytes are valid until the next call. PST_NOT_FOUND: the key has no more. */
pst_status pst_walk_next(pst_walk *w, pst_record *record);
/* Where it stands: the number of the open block among those of the place, and its raw bytes. */
uint64_t pst_walk_block(const pst_walk *w, uint64_t *bytes);

#endif
