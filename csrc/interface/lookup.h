/* lookup.h: the rows of some keys out of files, without a table and without a lock.
 *
 * What files say of the keys becomes a file of these keys alone, with all that their rows have: lists,
 * maps, times and timers. It is read as any other file is: gathered in columns, with what has
 * expired by a clock left out (pst_gather), or loaded into a table of so many rows.
 *
 * Whoever looks keys up again and again keeps the files of an epoch in a finder, and gets columns.
 *
 * Thread safety: as the stack, or the reader; a finder and blocks: any thread. Statuses and ownership are as `pystate.h` says.
 */
#ifndef PST_INTERFACE_LOOKUP_H
#define PST_INTERFACE_LOOKUP_H

#include <stddef.h>
#include <stdint.h>

#include "interface/files.h"
#include "interface/stack.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Wanted keys: an array per column of the key, each of the column's type. Where keys have a namespace
 * its column may be left out: then the rows of all of a key's namespaces are wanted. A key may be
 * there more than once. The arrays must stay as they are during the call. */
typedef struct pst_wanted_keys {
    const pst_array *columns;
    int32_t n_columns;
    uint64_t most_bytes; /* of what files said of several keys, kept at a time; 0: 8 MiB */
    uint64_t
        states;  /* a bit for each of the files that is wanted; 0: all. Only finders look at it */
    int at_hand; /* 1: wait for no disk, and read no more than a little. Only finders look at it */
} pst_wanted_keys;

/* Puts into `order` which of the keys to ask for: each one once, in the order of files, so that parts of
 * them can be looked up one after the other. There is room for as many as there are keys; *n is how
 * many there are. `schema` is a table's, or as files have it. PST_INVALID: no key groups; and what is
 * said below of keys and memory. */
pst_status pst_wanted_order(const pst_schema *schema, int32_t max_parallelism,
                            const pst_wanted_keys *wanted, uint32_t *order, uint32_t *n);

/* Writes what the files of a stack say of those keys. `info` gives the lineage, and the kind: PST_BASE
 * where no older files have anything of the keys, else PST_DELTA, which says what of them is void;
 * all else is filled in. O(keys) reads at most, many at a time, and memory for most_bytes, the pool
 * of reads and a few words a key. PST_NO_ROOM: the keys have more than most_bytes; the row of `detail`,
 * which may be NULL, is how many of them to ask for. PST_IO and PST_CORRUPT: the row is the file's
 * number, and there is the offset. PST_INVALID: neither the key's columns nor those and the
 * namespace's, of different lengths, or 2^32 - 1 of them; PST_WRONG_TYPE, PST_TOO_LARGE: a key;
 * PST_CALLBACK, PST_NO_MEMORY, PST_LIMIT. */
pst_status pst_stack_lookup(pst_stack *st, const pst_wanted_keys *wanted, const pst_io *io,
                            pst_file_info *info, pst_detail *detail);

/* The same of any one file, block by block: each block that may have a wanted key is read, once.
 * `info` becomes the file's own but for what was counted. It ends any reading of the reader's. Statuses
 * are as above, and those of the reader; most_bytes is not looked at. */
pst_status pst_sst_reader_lookup(pst_sst_reader *r, const pst_wanted_keys *wanted, const pst_io *io,
                                 pst_file_info *info);

/* ---- again and again --------------------------------------------------------------------------- */

/* Blocks that look-ups have read, verified and decompressed, for those that follow: of any files, and
 * of any thread. */
typedef struct pst_blocks pst_blocks;

typedef struct pst_blocks_stats {
    uint64_t asked;  /* blocks that were wanted */
    uint64_t found;  /* of these, that were here */
    uint64_t blocks; /* that are here */
    uint64_t bytes;  /* of these */
    uint64_t left;   /* that made way */
} pst_blocks_stats;

/* Keeps up to so many bytes, those that were used last; 0: none. They are charged to the budget, which
 * may be NULL, and make way where it has no more. PST_NO_MEMORY, PST_LIMIT. */
pst_status pst_blocks_create(uint64_t most_bytes, pst_budget *budget, pst_blocks **blocks);
/* The owner lets go: they live as long as a finder has them. NULL is allowed. */
void pst_blocks_release(pst_blocks *b);
void pst_blocks_get_stats(pst_blocks *b, pst_blocks_stats *stats);

/* The files of ranges of key groups as of one epoch, for look-ups of any threads at a time, which read
 * through the page cache. It is immutable. */
typedef struct pst_finder pst_finder;

/* Range i is of the key groups bounds[2 i] to bounds[2 i + 1], both inclusive; ranges ascend and do not
 * overlap, and each stack has all files of its range, none of them with extents. Stacks are held; while
 * they are, nobody else may use them but to open others. PST_SCHEMA: their files are of several
 * schemas; PST_INVALID: no ranges, or such ones; PST_NO_MEMORY. */
pst_status pst_finder_create(pst_stack *const *stacks, const int32_t *bounds, int32_t n,
                             pst_blocks *blocks, pst_budget *budget, pst_finder **finder);
/* NULL is allowed. */
void pst_finder_destroy(pst_finder *f);

/* Looks keys up: the rows that a table with their files would have, in columns for io->block, as those
 * of pst_gather, each state of the files' schema but for times and timers; those of states that are
 * not wanted are empty, and keys that have no other have no row. Keys that are not there have
 * none. `expiry`, of that schema, may be NULL. Of wanted key i rows[2 i] is the number of its first row,
 * or -1, and rows[2 i + 1] how many it has: of keys with namespaces whose column is left out, several.
 * What is said of keys becomes rows once it has most_bytes; 0: 1 MiB.
 * PST_NOT_HERE: keys that are to be `at_hand` are not in memory, neither here nor in the page cache, or
 * files say more than 64 KiB of them.
 * PST_IO and PST_CORRUPT: the row of `detail` is the file's number, all ranges' files counted, and
 * there is the offset. PST_INVALID: keys as in pst_stack_lookup, or no block. PST_WRONG_TYPE and
 * PST_TOO_LARGE: a key; PST_TOO_LARGE also as in pst_gather; PST_CALLBACK, PST_NO_MEMORY, PST_LIMIT. */
pst_status pst_finder_find(const pst_finder *f, const pst_wanted_keys *wanted,
                           const pst_expiry *expiry, const pst_io *io, int64_t *rows,
                           pst_detail *detail);

/* ---- which keys files have --------------------------------------------------------------------- */

/* Passes the keys to io->block of which the files have any record, a delete too, between two places:
 * each once, in the order of files, with its namespace and without its states. Those of the first key
 * group have hashes from hashes->first on, and those of the last one up to hashes->last; NULL: all. A
 * batch is as large as one of pst_gather. The readers are of one operator's files, in any order, and
 * are seeked. O(records) and memory for one batch. PST_INVALID: no readers, no
 * range, no `block`; PST_SCHEMA: the files have other keys, or numbers of key groups; PST_TOO_LARGE:
 * a batch of a key; PST_CALLBACK, PST_NO_MEMORY, PST_LIMIT; and those of the readers. */
pst_status pst_gather_keys(pst_sst_reader *const *readers, int32_t n, int32_t first_key_group,
                           int32_t last_key_group, const pst_hashes *hashes, const pst_io *io);

/* ---- before it reads -------------------------------------------------------------------------- */

/* Told which parts of files a look-up will read. */
typedef struct pst_plan_sink {
    /* `size` bytes of a file of the stack, by its number; those of a file ascend. A status other than
     * PST_OK ends the plan. */
    pst_status (*part)(void *ctx, int32_t file, uint64_t offset, uint64_t size);
    void *ctx;
    uint64_t gap;  /* parts that lie no farther apart are one */
    uint64_t most; /* bytes of a part; not 0 */
} pst_plan_sink;

/* Tells which blocks pst_stack_lookup of those keys may read, oldest file first. Of the guides the
 * entries that lead to them are read where they are not in memory, and nothing else. Fewer blocks are
 * read of keys that a newer file has as a whole; filters are not among them. Statuses are those of
 * pst_wanted_order, PST_LIMIT, and those of the sink; PST_IO and PST_CORRUPT of a guide, with the file
 * in the detail's row; PST_INVALID: parts of no bytes, too. */
pst_status pst_stack_plan(pst_stack *st, const pst_wanted_keys *wanted, const pst_plan_sink *sink,
                          pst_detail *detail);

/* The same of pst_sst_reader_lookup, in two steps: with `entries`, what of a guided file leads to the
 * blocks, and is read to tell these; of other files that is nothing. It ends any reading of the
 * reader's. Statuses are those of pst_stack_plan and of the reader: PST_INVALID, PST_WRONG_TYPE,
 * PST_TOO_LARGE, PST_CALLBACK, PST_CORRUPT, PST_NO_MEMORY, PST_LIMIT. */
pst_status pst_sst_reader_plan(pst_sst_reader *r, const pst_wanted_keys *wanted, int entries,
                               const pst_plan_sink *sink);

#ifdef __cplusplus
}
#endif

#endif
