/* layout.h: what lies where in a table's address range.
 *
 * Purpose: the structures that all processes of a host share through a mapped table. They hold
 * offsets and slots, never pointers. A change here changes PST_TABLE_FORMAT; tables of another
 * format are discarded and restored from files, since a table is a cache.
 *
 * Thread safety: pst_header's state words are read by other processes; see epoch.h for who
 * writes them and in which order. A pst_meta is private to the writer until its epoch is sealed
 * and immutable from then until `floor` passes it.
 *
 * Invariants
 *  L1. The range is cut into spaces at offsets that follow from `reserve` and the row size alone.
 *      Each space is committed from its start in whole pages; committed[] falls where pages are
 *      given back (A5), never below what an epoch of the window holds.
 *  L2. A row is `row_size` bytes at slot * row_size in the rows space: word 0 is the header
 *      (undo index << 32 | stamp << 8 | flags), then the key, then the states' image. Of an
 *      admitted row that is untouched since, stamp is 0 and the undo index the low half of the
 *      epoch that admitted it (R1).
 *  L3. stamp 0 means: not touched in any epoch of the undo window, nor in one that could be
 *      confused with one of it. The stamp of epoch e is e % (2^24 - 1) + 1.
 *  L4. An index entry is tag << 32 | (slot + 1); 0 is empty, PST_TOMBSTONE a dead entry.
 *  L5. A block is named by its granule, its offset in the heap space / 16. Granule 0 is none.
 *  L6. A meta's directory has 2^directory_bits entries per key group. A shard of depth d stands in
 *      all 2^(directory_bits - d) entries, side by side, whose top d bits are its own; their shape
 *      and table are equal, and the first one's counts are the shard's.
 *  L7. The salt is drawn when a table is created and never leaves the host.
 */
#ifndef PST_LAYOUT_H
#define PST_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "pystate.h"

#define PST_TABLE_MAGIC UINT64_C(0x31454c4254545350) /* "PSTTBLE1" */
#define PST_TABLE_FORMAT 16u

enum {
    PST_UNDO_LOGS = 3, /* the open epoch and two sealed ones                                  */
    PST_METAS = 4,     /* the open epoch and the three sealed ones that one can return to     */
    PST_RECENT = 16,   /* epochs whose undo logs say how long the next ones may become */
    PST_PINS = 64,
    PST_SALT_WORDS = 5, /* three for tags, two for hashes of tied keys */
    PST_GRANULE = 16,
    PST_CLASSES = 96,             /* block sizes, see size_class.h                             */
    PST_RING_SLOTS = PST_CLASSES, /* the ring of reusable slots comes after those of blocks   */
    PST_RINGS = PST_CLASSES + 1,
    PST_SPACE_HEAD = 0,
    PST_SPACE_ROWS = 1,
    PST_SPACE_HEAP = 2,
    PST_SPACE_SPANS = 3, /* what becomes of the heap's spans, see span.h */
    PST_SPACE_HEAT = 4,  /* two bits a slot, where rows lie below, see resident.h */
    PST_SPACE_UNDO = 5,  /* and the two after it */
    PST_SPACE_RING = PST_SPACE_UNDO + PST_UNDO_LOGS,
    PST_SPACES = PST_SPACE_RING + PST_RINGS,
    PST_PAGE_ENTRIES = 512 /* index entries in a full page of 4 KB */
};

#ifndef PST_SHARD_MOST           /* tests make them small, to split often */
#define PST_SHARD_MOST 65536u    /* entries of a shard that can still be split */
#define PST_DIRECTORY_MOST 4096u /* entries of a directory, unless there are more key groups */
#endif

#define PST_NONE UINT32_MAX                /* no slot, no undo record */
#define PST_TOMBSTONE UINT64_C(0xFFFFFFFF) /* slot part all ones, tag 0 */
#define PST_STAMP_PERIOD UINT64_C(0xFFFFFF)

/* A ring: a queue of 32-bit names (slots or granules) that is at once the list of what was freed
 * and of what may be reused. Positions run modulo 2^32. */
typedef struct pst_ring {
    uint32_t head;
    uint32_t tail;
    uint32_t sealed_tail[3]; /* tail when the epoch 1, 2, 3 before this one was sealed */
    uint32_t sealed_head[3];
} pst_ring;

#ifndef PST_SPAN_GRANULES
#define PST_SPAN_GRANULES 2048u /* 32 KB; tests make it small, to use up many */
#endif

enum {
    PST_SPAN_USED = 1,
    PST_SPAN_REST = 2,   /* of a run, but its first */
    PST_SPAN_ABSENT = 4, /* given back to the system */
    PST_SPAN_LEAVING = 8 /* in use: what lives in it is being moved; a hint */
};

/* A span of the heap: granules from its number times PST_SPAN_GRANULES on. */
typedef struct pst_span {
    uint32_t begun;    /* low half of the epoch in which it was taken */
    uint32_t freed;    /* and freed, where it is not in use */
    uint32_t position; /* freed: its ring's tail then; in use: the first span of its run */
    uint16_t listed;   /* blocks that the ring names; of a run kept by its first span */
    uint8_t size_class;
    uint8_t state;
} pst_span;

/* Tidying marks spans to be left, moves out of them, and takes the marks away that had no
 * effect. */
enum { PST_SPANS_MARKING = 0, PST_SPANS_LEFT = 1, PST_SPANS_DONE = 2 };

/* What tidying the heap remembers from seal to seal. Hints, not under undo. */
typedef struct pst_span_hints {
    uint32_t least[PST_CLASSES];   /* of the names that no epoch took lately */
    uint32_t surplus[PST_CLASSES]; /* names that may go with their spans */
    uint32_t place;                /* the span to look at next, from the start and from the end */
    uint32_t last;
    uint32_t phase;
    uint32_t marked; /* spans in this phase's pass over them */
    uint32_t slot;   /* the row at which moving values goes on */
    uint32_t keyed;  /* the row at which moving the bytes of keys goes on */
} pst_span_hints;

/* How far a cut of a table's slots has come, see cut.h. */
enum {
    PST_CUT_NONE = 0,
    PST_CUT_TURN = 1,   /* names from the cut on leave the ring; cut_at: its tail when this began */
    PST_CUT_MOVE = 2,   /* rows move below the cut; cut_at: none lives from there on */
    PST_CUT_PURGE = 3,  /* entries go; cut_at: the directory's next shard */
    PST_CUT_WAIT = 4,   /* for the window; cut_at: low half of the first epoch without entries */
    PST_CUT_RELIST = 5, /* given up: names go back to the ring; cut_at: the next slot */
};

/* What cutting slots remembers from seal to seal. Hints, not under undo. */
typedef struct pst_slot_hints {
    uint32_t least;   /* of the names that no epoch took lately */
    uint32_t surplus; /* names that nobody has wanted for a while */
    uint32_t pinned;  /* the slot after the last row that could not be moved */
    uint32_t until;   /* low half of the epoch until which it is not tried again */
} pst_slot_hints;

/* A shard of the index: a page table (a block of `capacity / 512` granules, at least one). */
typedef struct pst_shard {
    uint32_t shape; /* depth << 24 | capacity in entries; see pst_shard_capacity */
    uint32_t table; /* granule of the page table */
    uint32_t used;  /* entries and tombstones */
    uint32_t tombstones;
} pst_shard;

/* 0: no page yet. Below 512 a power of two, else a multiple of 512. */
static inline uint32_t pst_shard_capacity(uint32_t shape) {
    return shape & 0xFFFFFFu;
}

/* How many bits of the tag chose the shard within its key group. */
static inline uint32_t pst_shard_depth(uint32_t shape) {
    return shape >> 24;
}

/* A place in time: all timers before it, by time, key group, Spark's hash and a hash of the table's own
 * (horizon.h), are of rows that are here. */
typedef struct pst_horizon {
    int64_t time;
    uint64_t key_group; /* PST_HORIZON_END, with INT64_MAX: all timers are */
    uint64_t hash;
    uint64_t inner;
} pst_horizon;

#define PST_HORIZON_END UINT64_MAX

/* Everything that is not a row, as of one epoch. */
typedef struct pst_meta {
    uint64_t epoch;
    pst_lineage lineage; /* of this epoch, once sealed */
    uint64_t live;       /* keys */
    uint64_t sweep;      /* next slot whose stamp is looked at, see epoch.c */
    uint64_t heap_top;   /* granules of all spans ever taken */
    uint64_t index_granules;
    uint32_t slots;                  /* slots ever taken */
    uint32_t ties;                   /* 1: rows may lie under hashes of their own, see index.h */
    uint32_t hot[PST_CLASSES];       /* blocks taken and freed in this epoch: heads of chains */
    uint32_t bump[PST_CLASSES];      /* the next block that was never taken */
    uint32_t bump_left[PST_CLASSES]; /* how many there are of them in its span */
    uint32_t stale[PST_CLASSES];     /* names in the ring that are to be dropped */
    uint32_t turn_to[PST_CLASSES];   /* such names lie before this position of it */
    pst_ring rings[PST_RINGS];
    uint32_t free_spans;
    uint32_t directory_bits;
    uint32_t cut_phase; /* of making slots fewer: down to `cut` */
    uint32_t cut;
    uint32_t cut_at;
    uint32_t timed_apart;   /* rows whose timers are elements in files (TM4) */
    uint32_t whole;         /* not 0: no rows lie below, so a key without a row is absent (R4) */
    uint32_t pad;           /* a shard lies in one cache line, a root in one word */
    pst_horizon horizon[2]; /* per domain: timers before it have their rows here (DK2) */
    pst_shard shards[];     /* room for header.shards; then, with timers, two roots per key group */
} pst_meta;

_Static_assert(offsetof(pst_meta, shards) % sizeof(pst_shard) == 0, "shards are aligned");

/* Where the sweep for expired elements goes on: a row, and an entry if it is within a map. A hint,
 * not under undo: after a kill any place is good. */
enum { PST_SWEEP_KEY = 240 };
typedef struct pst_sweep_place {
    uint64_t slot;   /* PST_NONE: nowhere yet */
    uint32_t column; /* of that map, from 1; else 0 */
    uint32_t size;   /* of what is known of its next key */
    uint64_t key[PST_SWEEP_KEY / 8];
} pst_sweep_place;

typedef struct pst_pin {
    uint64_t owner; /* pid << 32 | low bits of its start time; 0: free */
    uint64_t epoch;
} pst_pin;

typedef struct pst_header {
    uint64_t magic; /* stored last at creation */
    uint32_t format;
    uint32_t row_size;
    uint64_t fingerprint; /* of the schema and the geometry */
    pst_identity identity;
    int32_t max_parallelism;
    int32_t first_key_group;
    int32_t last_key_group;
    uint32_t shards; /* entries that a meta's directory has room for */
    uint64_t salt[PST_SALT_WORDS];
    uint64_t reserve;   /* bytes of address space per large space */
    uint64_t meta_size; /* bytes of one pst_meta with its shards */
    /* The state words. */
    uint64_t sealed;    /* the last sealed epoch, or the one that a roll back is heading for   */
    uint64_t active;    /* the newest epoch of which rows may bear traces                      */
    uint64_t floor;     /* the oldest epoch that can be read or returned to                    */
    uint64_t rollbacks; /* counts roll backs; odd while one runs                               */
    uint64_t undone;    /* counts roll backs of sealed epochs                                  */
    uint64_t undo_count[PST_UNDO_LOGS]; /* records of epoch e: at e % 3 */
    uint64_t undo_recent[PST_RECENT];   /* bytes of epoch e's log: at e % PST_RECENT; a hint */
    uint64_t committed[PST_SPACES];
    uint64_t absent_bytes; /* of spans that were given back, within committed[] */
    pst_span_hints spans;
    pst_slot_hints slots;
    /* Where looking for cold rows goes on, and in which epochs it was last at the first slot, and
     * before that. Hints. */
    uint64_t hand;
    uint64_t hand_began;
    uint64_t hand_before;
    uint64_t counted; /* 1: the last owner left with pst_span.listed as the rings have it */
    uint64_t ring_capacity[PST_RINGS]; /* entries, a power of two or 0 */
    uint64_t huge_rows;                /* bytes of rows that were taken for huge pages (huge.h)  */
    uint64_t huge_heap;                /* likewise of blocks                                     */
    pst_sweep_place sweep;
    pst_pin pins[PST_PINS];
} pst_header;

static inline uint32_t pst_stamp(uint64_t epoch) {
    return (uint32_t)(epoch % PST_STAMP_PERIOD) + 1u;
}

#endif
