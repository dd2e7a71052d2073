/* stack.h: the files of a range of key groups, in which keys are looked up without a table.
 *
 * Thread safety: pst_reads: any thread. A pst_stack belongs to one thread at a time.
 * Statuses and ownership are as `pystate.h` says.
 */
#ifndef PST_INTERFACE_STACK_H
#define PST_INTERFACE_STACK_H

#include <stddef.h>
#include <stdint.h>

#include "interface/files.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- reads of a process ---------------------------------------------------------------------- */

/* Reads files for the stacks of a process, one search at a time: others wait. What it needs is made
 * with the first read. After a fork it begins anew in the child, if no search was running. */
typedef struct pst_reads pst_reads;

typedef struct pst_reads_options {
    uint64_t pool_bytes; /* of buffers; 0: 8 MiB */
    int32_t depth;       /* reads in flight at most; 0: 128 */
    int32_t threads;     /* where there is no io_uring; 0: 32 */
    int no_uring;        /* threads in any case */
    int no_direct;       /* through the page cache in any case, where it stays */
    pst_budget *budget;  /* to which buffers are charged; NULL: none */
    /* Called where a thread begins to wait for others that read, and when it goes on, with what
     * `pause` has returned: it lets go of what those may need. NULL: nothing. */
    void *(*pause)(void);
    void (*resume)(void *paused);
} pst_reads_options;

/* `options` NULL: as usual. PST_INVALID: one is out of range; PST_NO_MEMORY. */
pst_status pst_reads_create(const pst_reads_options *options, pst_reads **reads);
/* The owner lets go: it lives as long as stacks that use it. NULL is allowed. */
void pst_reads_release(pst_reads *r);

typedef struct pst_reads_stats {
    uint64_t reads;
    uint64_t bytes;       /* as read, pages around what was wanted included */
    uint64_t retried;     /* reads that one call did not end */
    uint32_t flight_most; /* in flight at a time */
    int uring;            /* 0: threads, or nothing was read yet */
} pst_reads_stats;
void pst_reads_get_stats(const pst_reads *r, pst_reads_stats *stats);

/* ---- stacks ---------------------------------------------------------------------------------- */

/* Guided files (pst_file_info.block_bytes), oldest first. It is immutable. */
typedef struct pst_stack pst_stack;
/* One such file, open, for any number of stacks and threads. */
typedef struct pst_member pst_member;

/* A file and the key groups for which it counts: n_ranges pairs of first and last, inclusive; 0: all
 * of its own. */
typedef struct pst_stack_file {
    const char *path; /* where `member` is NULL */
    const int32_t *ranges;
    int32_t n_ranges;
    pst_member *member; /* the file, if it is open already; it stays its owner's */
} pst_stack_file;

/* Of a file of which some parts are elsewhere: it is cut into extents, which are brought as they are
 * read. Any thread of the process may be reading, and others may bring and drop extents meanwhile. */
typedef struct pst_extents {
    uint64_t file_bytes;   /* of the whole file; the one that is opened is no shorter */
    uint64_t extent_bytes; /* but of the last one; not 0 */
    /* A byte of each. Whoever brings an extent sets PST_EXTENT_HERE once all of it is there. Who drops
     * one changes its other bits before its bytes go, so that who has read it meanwhile sees that. */
    uint8_t *states;
    /* Brings those of these extents that are not here, both inclusive. 0, or an errno: EREMOTEIO says
     * that `ctx` knows more. */
    int (*bring)(void *ctx, uint64_t first, uint64_t last);
    /* They are not what was written: drops them. */
    void (*drop)(void *ctx, uint64_t first, uint64_t last);
    /* The file was closed. May be NULL. */
    void (*close)(void *ctx);
    void *ctx;
} pst_extents;

/* Bits of an extent's state; the others say which time it is here. */
enum { PST_EXTENT_HERE = 1, PST_EXTENT_USED = 2 /* set by each read */ };

typedef struct pst_stack_options {
    pst_reads *reads;    /* of the process; NULL: some of its own, as usual */
    pst_budget *budget;  /* to which guides and the memory of searches are charged; NULL: none */
    const char *guides;  /* how the paths of copies of guides begin, which all processes of a host
                          * map: a folder, and the beginning of their names; or NULL */
    uint32_t slice_keys; /* looked up at a time; 0: 65536 */
    /* Of the file that pst_member_open opens, which has it closed once it has succeeded; NULL: all
     * of it is there. */
    const pst_extents *extents;
    /* Files without a guide, too, for look-ups alone: what a guide says is made of their index, and of
     * deltas' rows once many keys were wanted. A table takes no such files. */
    int unguided;
} pst_stack_options;

/* Opens a file for stacks with that schema, as pst_file_schema_create makes it, and those key groups.
 * `options->reads` is theirs, too. Reads its tail alone: of its guide what keys need is read when they are
 * looked up, and what is damaged of it is found then. The file may be removed afterwards.
 * Statuses are as those of pst_stack_open; PST_NO_MEMORY, too; PST_INVALID: no reads, or extents and
 * reads that are not by threads (`no_uring`). */
pst_status pst_member_open(const pst_schema *schema, int32_t max_parallelism, const char *path,
                           const pst_stack_options *options, pst_member **member,
                           pst_detail *detail);
/* The owner lets go: it stays open as long as stacks have it. NULL is allowed. */
void pst_member_release(pst_member *m);
/* Of the open file, perhaps for aligned reads only; it is closed with the file. */
int pst_member_descriptor(const pst_member *m);
/* What the file says of itself, as long as it is open; its checksum is not known. */
const pst_file_info *pst_member_info(const pst_member *m);

/* Opens files that all have that schema, as pst_file_schema_create makes it, and those key groups.
 * Reads the tails of those that are not open: so a stack with one file more than
 * another costs that file. `detail` (may be NULL) has the file's number as its row.
 * PST_SCHEMA: a file without a guide where that is not allowed or none can be made, of another schema or with other key groups: such files are to
 * be merged first. PST_NOT_FOUND: there is no such file. PST_IO, with the errno; ENODATA is a file
 * that is shorter than it was. PST_CORRUPT, PST_NEWER_FORMAT, PST_NO_MEMORY, PST_LIMIT; PST_INVALID:
 * no files, or a range or an option that is none, or an open file with other reads. */
pst_status pst_stack_open(const pst_schema *schema, int32_t max_parallelism,
                          const pst_stack_file *files, int32_t n_files,
                          const pst_stack_options *options, pst_stack **stack, pst_detail *detail);
/* The owner lets go: it lives as long as a table has it. NULL is allowed. */
void pst_stack_close(pst_stack *st);

/* Where the last call that failed did so; the file's number is the row. */
const pst_detail *pst_stack_detail(const pst_stack *st);

typedef struct pst_stack_stats {
    uint64_t keys;          /* asked for */
    uint64_t asked;         /* files in which one of them was looked up, each counted */
    uint64_t lies;          /* of these, where a filter had a key and the file had not */
    uint64_t absent;        /* of these, where there was no filter in memory and no key */
    uint64_t reads;         /* of blocks and filters */
    uint64_t bytes;         /* wanted of them */
    uint64_t blocks;        /* searched */
    uint64_t filters;       /* read for a batch */
    uint64_t guide_bytes;   /* of guides and filters what keys needed, of this process or mapped */
    uint64_t private_bytes; /* of them, of this process; with what searches have */
    uint32_t guides_made;   /* copies of guides, and parts of them, that were missing or damaged */
    uint32_t direct;        /* files that are read past the page cache */
} pst_stack_stats;
void pst_stack_get_stats(const pst_stack *st, pst_stack_stats *stats);

/* The values of one key, as all of the files together say: those of its row, not the elements of
 * lists and maps. The record is valid until the next call on the stack. PST_NOT_FOUND: no file has
 * anything of it, or it is deleted. PST_IO and PST_CORRUPT, with the file and the offset;
 * PST_TOO_LARGE: the key; PST_NO_MEMORY, PST_LIMIT. */
pst_status pst_stack_get(pst_stack *st, const pst_cell *key, uint32_t nulls, pst_record *record);

#ifdef __cplusplus
}
#endif

#endif
