/* table.h: tables: the memory they may take, their life, their epochs.
 *
 * Thread safety: a pst_table belongs to one thread at a time (any thread); a budget to all.
 * Statuses and ownership are as `pystate.h` says.
 */
#ifndef PST_INTERFACE_TABLE_H
#define PST_INTERFACE_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "interface/values.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- memory ---------------------------------------------------------------------------------- */

/* One limit for what a process takes, and what the shared tables of its host take. It binds tables
 * without a limit of their own, and the buffers of batches, sealed epochs, files and merges. A
 * table with its own limit is bound by that alone, and counts for the others; while there is one,
 * buffers are counted but not bound. Buffers, seals, and whatever clears, removes or fires may pass
 * a limit by an eighth: a table that is full can be read, emptied and written. Any thread. */
typedef struct pst_budget pst_budget;

/* The memory that this process may use: the machine's, or that of its control group or a group
 * above it if less; versions 1 and 2. `proc` and `cgroups`: where they are looked for, NULL as
 * usual. */
uint64_t pst_memory_bytes(const char *proc, const char *cgroups);
/* Gives what the allocator has kept of freed memory back to the system: nobody counts it. It may take
 * milliseconds, and more for whoever then allocates, so it is for those who have freed much. */
void pst_memory_give_back(void);

/* `limit_bytes` 0: three quarters of pst_memory_bytes. PST_NO_MEMORY. */
pst_status pst_budget_create(uint64_t limit_bytes, pst_budget **budget);
/* The owner lets go: it lives as long as what was made with it. NULL is allowed. */
void pst_budget_release(pst_budget *b);

typedef struct pst_budget_stats {
    uint64_t limit_bytes;
    uint64_t private_bytes; /* heap tables and buffers of this process */
    uint64_t shared_bytes;  /* shared tables of all processes, in the homes that this one uses */
} pst_budget_stats;
/* Counts the files of shared tables. */
void pst_budget_get_stats(pst_budget *b, pst_budget_stats *stats);

/* What a PST_LIMIT was about. */
typedef struct pst_refusal {
    uint64_t asked_bytes;
    uint64_t
        private_bytes; /* as in pst_budget_stats; of a table's own limit or target, what it had */
    uint64_t shared_bytes;
    uint64_t limit_bytes;
    int own; /* 1: the table's own limit; 2: its target */
} pst_refusal;
/* The last one of the budget, by whatever thread. */
void pst_budget_refusal(const pst_budget *b, pst_refusal *refusal);

/* ---- memory of operands ---------------------------------------------------------------------- */

/* Memory of any content, aligned to a cache line, for the time of one operation. What is dropped is
 * kept for the next request. NULL: refused. Any thread. */
void *pst_scratch_take(size_t size);
void pst_scratch_drop(void *block); /* or NULL */

/* ---- table --------------------------------------------------------------------------------- */

typedef struct pst_table pst_table;
typedef struct pst_batch pst_batch;
typedef struct pst_sealed pst_sealed;
typedef struct pst_reader pst_reader;

/* The name of a sealed epoch. `id` all zero: the empty table before its first seal. */
typedef struct pst_lineage {
    uint8_t id[16];     /* attempt uuid = id of the epoch's delta file */
    uint8_t parent[16]; /* the id that it was built on                 */
    uint64_t epoch;     /* the coordinator's number                    */
    uint64_t query;     /* fingerprint of (query id, operator uid, range) */
} pst_lineage;

/* Who may use a shared table. Differences make it PST_MISMATCH. */
typedef struct pst_identity {
    uint8_t boot_id[16];
    uint64_t pid_namespace;
    uint32_t owner_pid;   /* the executor JVM, or the process itself */
    uint64_t owner_start; /* its start time in clock ticks since boot */
    uint8_t application[32];
} pst_identity;

typedef struct pst_table_options {
    int32_t max_parallelism;
    int32_t first_key_group; /* inclusive */
    int32_t last_key_group;  /* inclusive */
    uint64_t limit_bytes;    /* of committed memory; 0: the budget's, or without one        */
    pst_budget *budget;      /* three quarters of pst_memory_bytes                          */
    const char *path;        /* shared: the table's file; NULL: heap                        */
    /* Shared: a folder, and how many levels of folders below it, where all files that end in .table
     * are counted together; or a file that is counted alone. NULL: not counted. */
    const char *home;
    int32_t home_depth;
    const pst_identity *identity; /* shared only */
    int32_t lock_timeout_ms;      /* shared only: how long to wait for the lock               */
    int32_t create;               /* shared only: make the file if it is not there           */
    int32_t successor;            /* shared only: from pst_table_succeed, which open takes over
                                   * whatever it returns; 0: none                             */
} pst_table_options;

/* Creates a heap table, or creates or attaches a shared one under its exclusive lock. An attached
 * table that its last owner left in the middle of an epoch or of a roll back is recovered to its
 * last sealed epoch first. `created` (may be NULL) tells whether the table is new and empty.
 * `detail` may be NULL. PST_INVALID: the schema or an option is out of range; with a column in the
 * detail, files could not tell that one from one before it. PST_BUSY: the lock was not to be had in
 * time. PST_MISMATCH: the file is another's and is left as it is. PST_NOT_FOUND: there is no file,
 * and create == 0. PST_ADDRESS_SPACE, PST_NO_SPACE, PST_LIMIT, PST_NO_MEMORY, PST_IO; PST_CORRUPT:
 * the file's header contradicts itself. The schema is copied; the budget is kept for as long as the
 * table lives. */
pst_status pst_table_open(const pst_schema *schema, const pst_table_options *options,
                          pst_table **table, int *created, pst_detail *detail);

/* Releases the lock, keeping the mapping so that pst_table_attach is warm. An unsealed epoch is
 * rolled back first. No other call but attach and close is valid until then. PST_INVALID: a heap
 * table, or one that is not attached. */
pst_status pst_table_detach(pst_table *t);
/* Takes the lock again, and recovers like open. PST_INVALID: a heap table, or one that is attached.
 * PST_BUSY as open; PST_MISMATCH if the file was replaced meanwhile (close and open again); PST_IO,
 * PST_NO_MEMORY, PST_CORRUPT. On any of them the table stays detached. */
pst_status pst_table_attach(pst_table *t, int32_t lock_timeout_ms);

/* Puts an empty file with a lock, which the caller then has, in the place of a shared table's own. So
 * whoever waits for the table's lock waits for that of its successor once the table is closed, and
 * nobody comes between. A kill in the middle may leave an empty file of another name beside it.
 * `successor` is for pst_table_open with the same path, or pst_successor_close; 0: a heap table has
 * none. PST_INVALID: a table that is not attached; PST_NO_SPACE, PST_IO, PST_NO_MEMORY: nothing has
 * changed. */
pst_status pst_table_succeed(pst_table *t, int32_t *successor);
/* Gives the lock up, and leaves the empty file for whoever comes. Not in a forked child. */
void pst_successor_close(int32_t successor);

/* Unmaps and frees. An unsealed epoch of a heap table is lost; of a shared one, undone by the next
 * attach. Batches must be destroyed first. NULL is allowed. */
void pst_table_close(pst_table *t);

/* From now on the table grows only up to `bytes`, if the budget has as much: beyond them it is given
 * what makes room. It is a share that is divided anew as tables come and go, so a table may have more
 * already; it keeps that. 0: as much as the budget has. PST_INVALID: not attached, or a table that no
 * budget binds, as it has a limit of its own. O(1). */
pst_status pst_table_set_target(pst_table *t, uint64_t bytes);

/* A forked child's copy: frees the handle and closes the descriptor without unlocking. NULL is
 * allowed. */
void pst_table_abandon(pst_table *t);

/* Where the last call that failed did so: valid until the next call on the table. */
const pst_detail *pst_table_detail(const pst_table *t);

typedef struct pst_table_stats {
    uint64_t keys;        /* live rows, of those below none                         */
    uint64_t slots;       /* rows ever taken (live, dead and reusable)              */
    uint64_t row_bytes;   /* committed for rows                                     */
    uint64_t index_bytes; /* in use by the index                                    */
    uint64_t block_bytes; /* in use or reusable for their size: bytes, index pages  */
    uint64_t undo_bytes;  /* committed for undo logs                                */
    uint64_t ring_bytes;  /* committed for rings of reusable memory                 */
    uint64_t meta_bytes;
    uint64_t committed_bytes;   /* all of the above as taken from the system              */
    uint64_t changed_rows;      /* rows touched in the open epoch                         */
    uint64_t recovered_records; /* undo records replayed by the last attach or open     */
    uint64_t recovery_ns;
    uint32_t row_size;
} pst_table_stats;
void pst_table_get_stats(const pst_table *t, pst_table_stats *stats);
/* After a PST_LIMIT. */
void pst_table_refusal(const pst_table *t, pst_refusal *refusal);

/* ---- time to live ---------------------------------------------------------------------------- */

#define PST_NO_TIME INT64_MIN

/* Milliseconds since 1970; PST_NO_TIME where unknown. */
typedef struct pst_clock {
    int64_t processing_ms;
    int64_t watermark_ms;
    int64_t event_ms; /* of the row at hand */
} pst_clock;

typedef struct pst_ttl {
    int64_t duration_ms;    /* 0: nothing expires */
    int64_t granularity_ms; /* a time that moved by less is not written again */
    int64_t ahead_ms;       /* the time that a write leaves is that of the clock and this */
    uint8_t event_time;     /* else processing time */
    uint8_t on_read;        /* reading counts as use: of a value, an entry, or all elements */
    uint8_t lenient;        /* what has expired is visible once, unless it is taken away before */
    uint8_t goes_back;      /* a write may leave an earlier time than there was */
} pst_ttl;

/* How column's values (the elements of a list or map) expire. The column after it must be of kind
 * PST_TIME, and no duration negative, else PST_INVALID. Holds for this handle until it is
 * closed. */
pst_status pst_table_set_ttl(pst_table *t, int32_t column, const pst_ttl *ttl);
/* What TTL takes for now. A fresh handle knows no time: nothing expires. */
void pst_table_set_clock(pst_table *t, const pst_clock *clock);
/* Removes what has expired, in the open epoch, though nothing touched it. It looks at `budget` rows
 * and map entries, and at four more for each row that the epoch made and each entry made since the
 * last call; later calls go on from there. Rows below the table are not looked at: what has expired
 * there is hidden when it comes, and goes when files are merged. `removed` (may be NULL) counts values and elements, also
 * where this fails. PST_INVALID: not attached. PST_POISONED; PST_CORRUPT in a map. Memory: the rest
 * waits, and the epoch goes on unless the table says that it is poisoned. */
pst_status pst_table_expire(pst_table *t, uint64_t budget, uint64_t *removed);

/* ---- epochs -------------------------------------------------------------------------------- */

/* Seals the open epoch under `lineage` and opens the next one. O(rows changed). `sealed` (may be
 * NULL: no delta wanted) receives the after-images of the changed columns. On failure nothing is
 * sealed. Batches made before become stale. PST_INVALID: not attached. PST_POISONED; PST_CORRUPT in
 * a list or map; memory, after which the same may be tried again unless the table is poisoned. */
pst_status pst_table_seal(pst_table *t, const pst_lineage *lineage, pst_sealed **sealed);

/* From now on deltas have a changed row with all of its values, absent ones as null, where these
 * take at most so many bytes together, or the row is new; 0, as at first: with those that changed.
 * Whoever looks for a key in files, newest first, then needs no older one than that of a put that
 * carries all columns, none of them with what it says of a list's beginning, or that of a delete.
 * In longer rows a value goes with its time. Holds for this handle until it is closed. */
void pst_table_set_whole_rows(pst_table *t, uint64_t bytes);

/* What sealing now would give, without sealing: nothing changes, batches stay valid, and the epoch
 * goes on. Written as a delta it is what the files of the sealed epochs lack of the table, so that
 * a merge of them all (pst_gather, pst_merge) has what the table has now. Its lineage has no id, and
 * as parent that of the last seal. O(rows changed). PST_INVALID: not attached. PST_POISONED;
 * PST_CORRUPT in a list or map; PST_NO_MEMORY, PST_LIMIT. */
pst_status pst_table_changes(pst_table *t, pst_sealed **sealed);

/* The lineage of the sealed epoch `back` before the last one: 0, 1 or 2, else PST_INVALID.
 * PST_NO_UNDO where the window does not reach. */
pst_status pst_table_lineage(const pst_table *t, int32_t back, pst_lineage *lineage);

/* Undoes the open epoch, and then `back` sealed ones (0, 1 or 2). Killed at any point, the next
 * attach completes it. O(rows changed). PST_NO_UNDO where the window does not reach; PST_INVALID:
 * not attached, or `back` is negative. Nothing else fails. */
pst_status pst_table_rollback(pst_table *t, int32_t back);

/* 1 while the open epoch has touched anything. Rows that were admitted from files are no change. */
int pst_table_dirty(const pst_table *t);

/* ---- a table above files --------------------------------------------------------------------- */

/* Whether the table has all rows of its key groups. A new one has. 0, when files with rows are set
 * below it: then a key without a row may have one there, and what counts or visits all rows sees
 * those alone that are here. Of all epochs that can be returned to; 1 is said from the open epoch
 * on, and undone with it. */
void pst_table_set_whole(pst_table *t, int whole);
int pst_table_is_whole(const pst_table *t);

/* Whether the caller takes steps: seals the epoch, lets rows leave, and goes on. If so, a limit does
 * not poison an epoch that has put a value, an item or an entry: such an operation is PST_NO_ROOM, the
 * detail's row says how many of the batch's rows it has done, and the next one is as it was; of one
 * key nothing has changed. `pst_batch_list_append_many` says in the detail's offset up to which item.
 * Holds for this handle until it is closed. */
void pst_table_set_steps(pst_table *t, int steps);
/* Whether the last operation that makes room, which clearing and firing do, has passed the limit for
 * that: rows should leave before many others do. Of a batch it then is PST_NO_ROOM, as above. */
int pst_table_passed(const pst_table *t);
/* Marks the open epoch as fit only for a roll back, as a write that failed half way does: whoever
 * cannot go on after such a PST_NO_ROOM calls it. */
void pst_table_spoil(pst_table *t);

/* Nobody returns further than to the last sealed epoch any more: pst_table_rollback and readers of
 * earlier ones say so, and what was freed up to now can be taken at once. The open epoch begins
 * anew, so batches become stale. Killed at any point, the table is as before or settled. PST_INVALID:
 * not attached, or the open epoch has touched, made or admitted rows. PST_POISONED. */
pst_status pst_table_settle(pst_table *t);

/* Rows, and bytes of them with their index and what their states have in blocks. */
typedef struct pst_room {
    uint64_t rows;
    uint64_t bytes;
} pst_room;

/* Rows leave the table until at least `wanted` of both is free for others, the ones that were used
 * least lately first; or until no more may: rows with timers before a horizon stay, and all do
 * while pst_table_keep_rows says so. What they leave serves values of any size. Each 65536 rows, or less, are an epoch, sealed under the last
 * one's lineage and without a delta, and settled. `left` (may be NULL) says how much it was, also
 * where this fails; then the epoch that failed was rolled back. PST_NO_STACK: no stack of files that
 * counts for the last sealed epoch is set (pst_table_set_stack). PST_INVALID: not attached, or the open epoch has touched, made or
 * admitted rows. PST_POISONED; PST_CORRUPT in a list, map or timers; memory. */
pst_status pst_table_leave(pst_table *t, const pst_room *wanted, pst_room *left);

/* What the rows that are here take of the table's memory, and what of it is free for others. */
typedef struct pst_resident {
    uint64_t rows;
    uint64_t row_bytes;        /* of them alone */
    uint64_t index_bytes;      /* of the whole index */
    uint64_t block_bytes;      /* in use: bytes, lists, maps, timers; not the index */
    uint64_t free_rows;        /* that the open epoch can take before the table gets longer */
    uint64_t free_block_bytes; /* listed for their size, now or once the window has passed */
} pst_resident;
/* O(size classes). */
void pst_table_get_resident(const pst_table *t, pst_resident *resident);

#ifdef __cplusplus
}
#endif

#endif
