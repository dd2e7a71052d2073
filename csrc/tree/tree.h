/* tree.h: ordered maps in table memory, copied on write.
 *
 * Purpose: what a field of a row or of the meta holds when one word is not enough and order
 * matters: map states, timers. A B+tree whose nodes are heap blocks sized to what they hold, so
 * that a map of two entries is one block of 48 bytes and one of a million costs a put its path.
 *
 * Thread safety: put, remove, clear and diffs are the writer's. Find and cursors also read sealed
 * trees beside him: the caller decides afterwards whether the epoch was still there, and copies
 * bytes out with pst_get* before he does.
 *
 * Invariants
 *  TR1. A node that was not born in the open epoch is never changed. Its changed copy takes its
 *       place on the path to the root, and the node goes to the deferred-reuse rings. So a root
 *       that an epoch sealed names the same entries for as long as that epoch can be returned to.
 *  TR2. Two nodes of one granule inside the window have equal contents, so a diff skips them.
 *  TR3. Bytes of an entry are never changed in place; nodes that are copied share them.
 *  TR4. A separator lies above every key to its left and not above any to its right. Separators
 *       own their bytes; the first of an inner node is never looked at.
 *  TR5. All leaves have one level, 0. No node is empty. A level is one less than its parent's and
 *       below PST_TREE_LEVELS: whatever bytes a reader meets, a descent ends.
 *  TR6. An entry without a value has zeros in its place, as wide as a value. Its leaf marks it.
 *  TR7. A put that is refused memory leaves a whole tree with the entries that there were.
 *  TR8. A tree may be the newer part of a map. An entry that is gone has no value and a first word of
 *       one in its place; finding, cursors and diffs give it as any other.
 *
 * Complexity: find, put, remove O(log n); a first put of an epoch copies one node per level. An
 * append reads one node per level, and searches none. A cursor's step O(1) amortised, a diff O(what differs * log n).
 */
#ifndef PST_TREE_H
#define PST_TREE_H

#include "memory/layout.h"
#include "memory/store.h"
#include "pystate.h"

/* Files put four bytes before a key of bytes. */
enum { PST_TREE_MAX_KEY = PST_MAX_BYTES - 4 };
enum { PST_TREE_LEVELS = 16, PST_TREE_MAX_VALUE_WORDS = 32, PST_TREE_MAX_COUNT = INT32_MAX };

typedef struct pst_tree_shape {
    uint8_t key_words;    /* 1: a word, compared unsigned; 2: two words, the first first */
    uint8_t key_is_ref;   /* key_words == 2: bytes, compared as memcmp does, a prefix first */
    uint8_t value_words;  /* 0 .. PST_TREE_MAX_VALUE_WORDS */
    uint8_t value_is_ref; /* value_words == 2: bytes */
    uint8_t timed;        /* entries bear a 64-bit time */
} pst_tree_shape;

/* {0, 0}: empty. The caller keeps it as one word of table memory. */
typedef struct pst_tree_root {
    uint32_t node;
    uint32_t count;
} pst_tree_root;

/* An entry, in and out. What comes out points into table memory and is valid until the next write
 * to the table. What goes in must not point into the tree that it is put into. */
typedef struct pst_tree_entry {
    uint64_t key[2];
    pst_bytes key_bytes; /* key_is_ref */
    const uint64_t *value;
    pst_bytes value_bytes; /* value_is_ref */
    int64_t time;
    int is_null; /* it has no value: going in, `value` and `value_bytes` are not looked at */
    int is_gone; /* it only says that its key is in no older place (TR8); so is_null is set, too */
} pst_tree_entry;

/* Looks e->key up and fills value, value_bytes and time. PST_NOT_FOUND, PST_CORRUPT. */
pst_status pst_tree_find(const uint8_t *heap, uint64_t heap_bytes, const pst_tree_shape *s,
                         pst_tree_root root, pst_tree_entry *e);

/* Inserts or replaces. *root is the caller's private copy, to be stored. An entry that is there
 * with equal value and time changes nothing. PST_TOO_LARGE for bytes above PST_MAX_BYTES, a key
 * above PST_TREE_MAX_KEY, or 2^31 entries; what pst_block_alloc says: after these the tree is whole
 * and has the entries that it had, perhaps in other nodes, so *root is to be stored (TR7). After
 * PST_CORRUPT the epoch can only be rolled back. */
pst_status pst_tree_put(pst_table *t, const pst_tree_shape *s, pst_tree_root *root,
                        const pst_tree_entry *e);

/* The same, quicker where the key lies behind all others. `more` entries are about to be put behind
 * this one: a node that is made or grown has room for them, as far as a node has. */
pst_status pst_tree_append(pst_table *t, const pst_tree_shape *s, pst_tree_root *root,
                           const pst_tree_entry *e, uint32_t more);

/* The same for n entries that ascend, as far as they lie behind all others: *done of them, all or
 * none. The path is found once. */
pst_status pst_tree_append_run(pst_table *t, const pst_tree_shape *s, pst_tree_root *root,
                               const pst_tree_entry *e, uint32_t n, uint32_t more, uint32_t *done);

/* Looks only at the key of `e`. PST_NOT_FOUND changes nothing; other statuses as for put. */
pst_status pst_tree_remove(pst_table *t, const pst_tree_shape *s, pst_tree_root *root,
                           const pst_tree_entry *e);

/* Runs of entries that are two words and nothing else (timers). A descent is paid per leaf, where
 * put and remove pay it per entry. Statuses as for put. */
enum { PST_TREE_RUN = 64 };
/* Puts keys[0] and the next ones, of up to PST_TREE_RUN, as far as they ascend and belong into the
 * same leaf, which has room for them: *done of them, at least one unless it is refused. Bit i of
 * *fresh: keys[i] was not there. */
pst_status pst_tree_put_run(pst_table *t, const pst_tree_shape *s, pst_tree_root *root,
                            const uint64_t (*keys)[2], uint32_t n, uint32_t *done, uint64_t *fresh);
/* Removes keys[0] and the next ones, of n, as far as they are the next entries of its leaf: *done
 * of them. PST_NOT_FOUND where keys[0] is not there: nothing is changed. After any other status
 * `done` means nothing. */
pst_status pst_tree_remove_run(pst_table *t, const pst_tree_shape *s, pst_tree_root *root,
                               const uint64_t (*keys)[2], uint32_t n, uint32_t *done);

/* Frees every node and byte block; *root becomes {0, 0}. O(nodes), with bytes O(entries). */
pst_status pst_tree_clear(pst_table *t, const pst_tree_shape *s, pst_tree_root *root);

/* Moves nodes and the bytes of entries out of spans that are being left; PST_OK also where none
 * need move. *root is the caller's private copy, to be stored also where this fails: the tree is
 * whole after every step. */
pst_status pst_tree_move(pst_table *t, const pst_tree_shape *s, pst_tree_root *root,
                         uint64_t *looked);

/* Prefetches the first lines of the root node of the tree in a row. */
PST_PREFETCH void pst_tree_prefetch(const uint8_t *heap, const uint64_t *root) {
    const uint8_t *node = heap + (uint64_t)(uint32_t)pst_get64(root) * PST_GRANULE;
    __builtin_prefetch(node);
    __builtin_prefetch(node + 64);
    __builtin_prefetch(node + 128);
}

/* Brings the paths to the keys of n entries into cache, each in a tree of its own, level by level
 * for all at once: a descent alone waits at every level. Returns whether the paths end in more than
 * one leaf. */
enum { PST_TREE_PATHS = 32 };
int pst_tree_prefetch_paths(const uint8_t *heap, uint64_t heap_bytes, const pst_tree_shape *s,
                            const pst_tree_root *roots, const pst_tree_entry *entries, int n);

/* A node on the way from the root to a position. */
typedef struct pst_tree_frame {
    uint64_t header;
    uint32_t node;
    uint32_t index;
} pst_tree_frame;

/* A position in one immutable tree: a frame for each of the levels low .. top. The lowest frame's
 * index names an entry (low == 0) or a child that has not been opened. low > top: the end. Private
 * memory. */
typedef struct pst_tree_cursor {
    const uint8_t *heap;
    uint64_t heap_bytes;
    pst_tree_shape shape;
    pst_status status; /* PST_CORRUPT once seen */
    uint32_t low;
    uint32_t top;
    uint64_t left; /* entries that may still come */
    int whole;     /* began at the first entry: the end must come where the root's count says */
    pst_tree_frame at[PST_TREE_LEVELS];
} pst_tree_cursor;

/* Moves to the first entry whose key is not below that of `from`, or to the first of all (NULL). */
void pst_tree_seek(pst_tree_cursor *c, const uint8_t *heap, uint64_t heap_bytes,
                   const pst_tree_shape *s, pst_tree_root root, const pst_tree_entry *from);
/* PST_NOT_FOUND at the end. PST_CORRUPT where a node makes no sense, and at each later call. */
pst_status pst_tree_next(pst_tree_cursor *c, pst_tree_entry *e);

typedef struct pst_tree_diff {
    pst_tree_cursor before;
    pst_tree_cursor after;
} pst_tree_diff;

/* What leads from one version of a tree to a later one. Both must lie in the undo window. */
void pst_tree_diff_open(pst_tree_diff *d, const uint8_t *heap, uint64_t heap_bytes,
                        const pst_tree_shape *s, pst_tree_root before, pst_tree_root after);
/* Changes in key order. PST_PUT: the entry is new, or has another value or time; it comes as it is
 * after. PST_DELETE: it is gone, and comes as it was. What was rewritten equal is not told.
 * PST_NOT_FOUND at the end, PST_CORRUPT. */
pst_status pst_tree_diff_next(pst_tree_diff *d, pst_record_op *op, pst_tree_entry *e);

#endif
