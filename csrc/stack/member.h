/* member.h: one file of a stack, with its guide in memory.
 *
 * Purpose: entries of all segments lie in one piece of memory, those of a delta with their filters.
 * The filters of a base stay on disk, as they are as large as those of all deltas may be together.
 * With a folder of guides that piece is a file there, which all processes of a host map.
 *
 * Thread safety: opened and closed by one thread; immutable in between but for `file.cached`.
 *
 * Invariants
 *  MB1. All that is in memory was checked against the file's own checksums, from wherever it came,
 *       and nobody else can change it: a copy that others own or may write to is none. So the folder
 *       of guides is to be private, as its owner may cut what is mapped.
 *  MB2. A copy gets its name when it is whole. One that is missing, damaged or of another file is
 *       made again; one that cannot be made is no error, and the guide then is this process's own.
 *       What killed processes left of one is removed by whoever makes the next.
 *
 * Complexity: O(segments) to open: one read each, many at a time.
 */
#ifndef PST_MEMBER_H
#define PST_MEMBER_H

#include "sst/sst_guide.h"
#include "stack/reads.h"

typedef struct pst_member {
    pst_read_file file;
    pst_guide *guide;
    const uint8_t **entries; /* of each segment */
    uint8_t *image;          /* in which these are */
    size_t image_bytes;
    int filtered; /* behind the entries is their filter */
    int mapped;
    int made;        /* its copy in the folder of guides */
    uint8_t *groups; /* a bit per key group for which it counts; NULL: all of the file's */
} pst_member;

/* What a stack takes of its budget. */
typedef struct pst_allowance {
    pst_charge charge;
    uint64_t used;
} pst_allowance;

static inline pst_status pst_allowance_take(pst_allowance *r, uint64_t bytes) {
    pst_status s = pst_charge_raise(&r->charge, r->used + bytes);
    r->used += s ? 0 : bytes;
    return s;
}

/* What to open, and how. */
typedef struct pst_member_options {
    const pst_schema *schema;
    int32_t max_parallelism;
    const char *guides;
    pst_reads *reads;
    pst_allowance *room;
} pst_member_options;

/* Statuses as pst_stack_open. After a failure it is to be closed, too. */
pst_status pst_member_open(pst_member *m, const pst_stack_file *from, const pst_member_options *o,
                           pst_detail *detail);
void pst_member_close(pst_member *m);

static inline int pst_member_counts(const pst_member *m, int32_t key_group) {
    return !m->groups || (m->groups[key_group >> 3] >> (key_group & 7) & 1);
}

/* REQUIRES: m->filtered. */
static inline const uint8_t *pst_member_filter(const pst_member *m, uint32_t segment) {
    return m->entries[segment] + pst_guide_entries_size(&m->guide->segments[segment]);
}

#endif
