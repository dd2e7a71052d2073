/* member.h: one file of stacks, with its guide in memory.
 *
 * Purpose: entries of all segments lie in one piece of memory, those of a delta with their filters.
 * The filters of a base stay on disk, as they are as large as those of all deltas may be together.
 * With a place for guides that piece is a file there, which all processes of a host map. For which
 * key groups the file counts is said by each stack, so that stacks share what has been opened.
 *
 * Thread safety: it may be retained, released and used by any thread: nothing of it changes but the
 * count, and `file.cached`, which belongs to whoever has entered its reads (MB3).
 *
 * Invariants
 *  MB1. All that is in memory was checked against the file's own checksums, from wherever it came,
 *       and nobody else can change it: a copy that others own or may write to is none. So the folder
 *       of copies is to be private, as its owner may cut what is mapped. It may be removed.
 *  MB2. A copy gets its name when it is whole. One that is missing, damaged or of another file is
 *       made again; one that cannot be made is no error, and the guide then is this process's own.
 *       What killed processes left of one is removed by whoever makes the next.
 *  MB3. It is open, and its guide is charged once, as long as its opener or a stack holds it. All
 *       stacks that hold it read by the same reads.
 *  MB4. What is damaged of a file with extents is brought anew before it is taken for damaged; of a
 *       time index this is said, and the next look brings it.
 *
 * Complexity: O(segments) to open: one read each, many at a time.
 */
#ifndef PST_MEMBER_H
#define PST_MEMBER_H

#include "base/buffer.h"
#include "sst/sst_guide.h"
#include "stack/reads.h"

/* What an owner takes of its budget. */
typedef struct pst_allowance {
    pst_charge charge;
    uint64_t used;
} pst_allowance;

struct pst_member {
    int32_t references;
    pst_reads *reads;
    pst_allowance room;
    pst_read_file file;
    pst_extents extents; /* `file.extents` is this, or NULL */
    pst_guide *guide;
    const uint8_t **entries; /* of each segment */
    uint8_t *image;          /* in which these are */
    size_t image_bytes;
    int filtered; /* behind the entries is their filter */
    int mapped;
    int made; /* its copy, by this process */
};

static inline pst_status pst_allowance_take(pst_allowance *r, uint64_t bytes) {
    pst_status s = pst_charge_raise(&r->charge, r->used + bytes);
    r->used += s ? 0 : bytes;
    return s;
}

static inline pst_member *pst_member_retain(pst_member *m) {
    __atomic_add_fetch(&m->references, 1, __ATOMIC_RELAXED);
    return m;
}

/* Whether rows of tables with that file schema and so many key groups are looked up in it. */
int pst_member_fits(const pst_member *m, const pst_schema *schema, int32_t max_parallelism);

/* How many blocks may have rows of a place, and how many raw bytes. More than two have nothing else.
 * O(blocks of a segment + segments). */
uint64_t pst_member_blocks(const pst_member *m, int32_t key_group, uint64_t hash, uint64_t *bytes);

/* Makes a buffer that large, without what is in it, and asks for that before it is taken: a block may
 * say any size of itself. PST_NO_MEMORY, PST_LIMIT. */
pst_status pst_allowance_room(pst_allowance *r, pst_buffer *b, uint64_t bytes);

/* REQUIRES: m->filtered. */
static inline const uint8_t *pst_member_filter(const pst_member *m, uint32_t segment) {
    return m->entries[segment] + pst_guide_entries_size(&m->guide->segments[segment]);
}

#endif
