/* handle.h: the parts of a table that its modules share.
 *
 * Purpose: the process-local handle behind pst_table, and where its metas, blocks and key groups
 * are. It lies this low because blocks are taken from a table; what the words of a row mean is in
 * row.h, and tables are opened in open.c.
 *
 * Thread safety: a handle belongs to one thread at a time.
 *
 * Invariants
 *  T1. While attached, an epoch is open: h->active == h->sealed + 1 and m is its meta.
 *  T2. Nothing here is needed to recover: all that matters after a kill is in the shared header,
 *      metas, rows, blocks, rings and undo logs.
 *  T3. `generation` changes at each seal, roll back and attach; batches and the current key
 *      remember it.
 */
#ifndef PST_HANDLE_H
#define PST_HANDLE_H

#include "base/buffer.h"
#include "memory/arena.h"
#include "memory/layout.h"
#include "memory/store.h"
#include "pystate.h"

/* How a key is kept: one canonical word, or bytes with their hash beside them. */
typedef enum pst_key_kind { PST_KEY_WORD = 1, PST_KEY_BYTES = 2 } pst_key_kind;

/* A state's place in the row. `width` in bytes: of values 1, 2, 4, 8 or 16, or a struct's own;
 * strings, binary, objects and nested values are 16-byte references (see reference.h); of lists a
 * pst_list, of maps a pst_tree_root; 0 where nothing lies in the row. */
typedef struct pst_field {
    uint32_t offset;
    uint16_t width;
    uint8_t is_bytes; /* a reference */
    uint8_t type;     /* pst_type */
    uint8_t kind;     /* pst_kind */
    uint8_t has_default;
    int8_t time; /* the column that says when this one was written, or -1 */
    uint64_t default_word[2];
} pst_field;

/* Flags: the low byte of a row's header word. Up to seven states keep their presence in bits 1 to
 * 7; more have a word of presence bits at the start of the image, and bit 1 says that it is not
 * zero. A row without a present state is dead: its key does not exist. */
enum { PST_FLAG_NULL_KEY = 1, PST_FLAG_LIVE = 2, PST_INLINE_STATES = 7 };

typedef struct pst_row_layout {
    uint32_t row_size;
    uint32_t key_offset;   /* word, or {hash, 16-byte reference} */
    uint32_t image_offset; /* presence word (if wide), then the states */
    uint32_t image_words;
    uint32_t record_size; /* of an undo record: slot, previous header, image */
    pst_key_kind key_kind;
    int wide;         /* more than PST_INLINE_STATES states */
    uint64_t values;  /* a bit per column whose cells lie in the row */
    int has_blocks;   /* some state keeps blocks of its own */
    int has_elements; /* some state is a list, a map or the count of timers */
    int32_t timers;   /* the column that counts them, or -1 */
    int32_t timer;    /* the column for a key's only one, or -1 */
    uint64_t timed;   /* a bit for each of these two */
    int32_t n_states;
    pst_field fields[PST_MAX_STATES];
} pst_row_layout;

typedef struct pst_current_key {
    uint64_t generation; /* of the table when it was set; 0: none */
    uint64_t hash;
    uint64_t word;
    pst_bytes bytes;
    uint32_t slot; /* PST_NONE: absent */
    uint8_t null;
} pst_current_key;

struct pst_pool;       /* of gather buffers, see pool.h */
struct pst_collection; /* see roots.h */

struct pst_table {
    pst_budget *budget; /* NULL: none */
    pst_arena arena;
    pst_header *h;
    pst_meta *m; /* of the open epoch */
    uint8_t *rows;
    uint8_t *heap;
    uint8_t *undo; /* log of the open epoch */
    uint64_t undo_count;
    uint64_t undo_capacity; /* records committed in that log */
    uint64_t reused;        /* slots that the open epoch took from the ring */
    uint64_t admitted;      /* of those and of fresh ones, how many for rows of files (R2) */
    uint64_t vain;    /* of the admitted, how many for keys of which files leave nothing (R7) */
    uint32_t filling; /* admissions that have begun and not ended */
    uint64_t row_capacity; /* rows committed */
    uint32_t stamp;        /* of the open epoch, shifted to its place in the header */
    uint32_t birth;        /* what nodes and lists that are made bear: the open epoch's (R3) */
    uint8_t *heat;         /* see resident.h */
    uint32_t heat_slots;   /* that have heat */
    uint64_t heat_wanted;  /* slots for which it was asked last */
    int rows_leave;        /* rows were looked for that may leave, so heat counts */
    int32_t max_parallelism;
    int32_t first_key_group;
    int32_t last_key_group;
    uint32_t group_mask;  /* max_parallelism - 1 where that is a power of two, else 0 */
    int hot;              /* some chain of the open epoch is not empty */
    int deaths;           /* a row may have died in the open epoch */
    int index_due;        /* the open epoch has not yet looked for shards to make smaller */
    int keeps_rows;       /* somebody scans all rows: none moves into another slot */
    uint64_t whole_bytes; /* rows with so many bytes of values go whole into deltas; 0: none does */
    int steps;            /* what memory refuses is PST_NO_ROOM, see interface/table.h */
    int attached;         /* the lock is held (shared), or heap */
    pst_status poisoned;
    uint64_t generation;
    pst_row_layout lay;
    pst_schema schema; /* owned copy */
    pst_current_key current;
    pst_buffer current_bytes;
    pst_detail detail;
    pst_fetch_stats fetched;
    uint32_t span_cursor; /* no reusable span lies before it, in the open epoch */
    uint32_t spans_idle;  /* spans looked at in vain since there were fewer free blocks */
    uint32_t spans_left;  /* spans that were marked and have become free since marking began */
    uint32_t spans_rest;  /* low half of the epoch before which no span is marked */
    uint32_t span_none;   /* the open epoch has no free run of this length */
    uint64_t recovered_records;
    uint64_t recovery_ns;
    struct pst_pool *pool;
    struct pst_collection *collections; /* per state column */
    pst_ttl *ttl;                       /* per state column */
    pst_clock clock;
    int tight; /* the shard of this hash had no room for a row that was to be moved */
    uint64_t tight_hash;
    uint32_t shrink_at;         /* where in the directory shrinking goes on, see index.h */
    uint64_t entries_made;      /* of maps, since what has expired was last looked for */
    int64_t due_until[2];       /* per domain: up to where timers were handed out last */
    uint64_t due_generation[2]; /* and in which generation: it says nothing of later ones */
    uint64_t timers_missed;
    pst_buffer admitted_timers; /* of the open epoch, see timers.h */
    pst_charge admitted_charge;
    /* The row whose record of a file was last applied, and the timer that it bears; PST_NONE. */
    uint32_t applied;
    uint64_t applied_timer;
    struct pst_stack *stack;     /* of files below it, or NULL; see fetch.h */
    pst_lineage stack_lineage;   /* of the epoch that these files have */
    struct pst_due *due[2];      /* per domain: their timers, once asked for; see horizon.h */
    struct pst_entries *entries; /* of the map that was last looked into, see entries.h, or NULL */
    char *path;
    int lock_slot; /* in the registry of descriptors to close in forked children */
    uint64_t next_record_key[2 * PST_MAX_KEYS]; /* scratch for pst_table_next */
};

static inline pst_meta *pst_meta_of(const pst_table *t, uint64_t epoch) {
    return (pst_meta *)(t->arena.base + 4096 * ((sizeof(pst_header) + 4095) / 4096) +
                        (epoch % PST_METAS) * t->h->meta_size);
}

/* Whether there is a stack, as the last sealed epoch left the table (FE1). */
static inline int pst_has_current_stack(const pst_table *t) {
    return t->stack && !memcmp(&t->stack_lineage, &pst_meta_of(t, t->h->sealed)->lineage,
                               sizeof t->stack_lineage);
}

static inline uint32_t pst_group_count(const pst_table *t) {
    return (uint32_t)(t->last_key_group - t->first_key_group + 1);
}

/* Rows that the open epoch has made, those aside that it has admitted. */
static inline uint64_t pst_made_rows(const pst_table *t) {
    const pst_meta *before = pst_meta_of(t, t->h->sealed);
    uint64_t fresh = t->m->slots > before->slots ? t->m->slots - before->slots : 0;
    return fresh + t->reused - t->admitted;
}

/* Rows that the open epoch has touched or made. */
static inline uint64_t pst_changed_rows(const pst_table *t) {
    return t->undo_count + pst_made_rows(t);
}

/* What nodes and lists of rows that are admitted bear: as if the sealed epoch had made them. */
static inline uint32_t pst_admitted_birth(const pst_table *t) {
    return (uint32_t)t->h->sealed;
}

/* Entries of an epoch's directory. */
static inline uint32_t pst_directory_size(const pst_table *t, const pst_meta *m) {
    return pst_group_count(t) << m->directory_bits;
}

static inline uint8_t *pst_block(const pst_table *t, uint32_t granule) {
    return t->heap + (uint64_t)granule * PST_GRANULE;
}

static inline uint64_t pst_heap_bytes(const pst_table *t) {
    return t->h->committed[PST_SPACE_HEAP];
}

static inline void pst_no_detail(pst_detail *d) {
    d->offset = d->row = -1;
    d->column = d->key_group = -1;
    d->sys_errno = 0;
}

/* From here to pst_cleared what is done makes room: it may pass the limit by an eighth. */
static inline void pst_clearing(pst_table *t) {
    t->arena.clearing = 1;
    t->arena.passed = 0;
}

static inline pst_status pst_cleared(pst_table *t, pst_status s) {
    t->arena.clearing = 0;
    return s;
}

/* Marks the open epoch as fit only for a roll back, and hands the status through. */
static inline pst_status pst_poison(pst_table *t, pst_status s) {
    if (s && !t->poisoned)
        t->poisoned = s;
    if (s)
        t->detail.sys_errno = t->arena.last_errno;
    return s;
}

/* What a write says after `s`, which has done the first `done` of its rows and left the next one as it
 * was: where the caller takes steps a refusal of memory does not end the epoch. */
static inline pst_status pst_refused(pst_table *t, int64_t done, pst_status s) {
    if (s != PST_LIMIT || !t->steps || t->poisoned)
        return pst_poison(t, s);
    pst_no_detail(&t->detail);
    t->detail.row = done;
    t->deaths = 1; /* a row may have been made for it */
    return PST_NO_ROOM;
}

/* What it may pass the limit by in one operation, of a table that takes steps: a part of what it has. */
enum { PST_PASSED_SHARE = 64 };

/* What one that makes room says when it has done its first `done` rows: PST_OK, or PST_NO_ROOM where
 * it has passed the limit by so much that rows should leave before it goes on. Some it always does. */
static inline pst_status pst_pause(pst_table *t, int64_t done) {
    if (!done || !t->steps || t->arena.passed <= t->arena.committed_total / PST_PASSED_SHARE)
        return PST_OK;
    pst_no_detail(&t->detail);
    t->detail.row = done;
    return PST_NO_ROOM;
}

#endif
