/* member.h: one file of stacks, and what of its guide is in memory.
 *
 * Purpose: whoever looks for a key needs the entries of its segment, and of a delta the filter, which
 * tells that the file lacks it. These *parts* of a guide are read and checked when a key is first
 * wanted of their segment, so a file of any size is opened at once. They stay in memory until the file
 * is closed. A delta's filter costs some blocks' reads, so it is brought once as many keys were wanted
 * of its segment. The filters of a base stay on disk, as they are as large as those of all deltas may
 * be together. With a place for guides their parts lie in a file there, which all processes of a host
 * map. For which key groups the file counts is said by each stack, so that stacks share what has been
 * opened.
 *
 * Of a file without a guide the entries are made as it is opened. A delta's filter is made of its rows,
 * once as many keys were wanted of a segment as that has blocks, which is what it takes.
 *
 * Thread safety: it may be retained, released and looked into by any thread. Parts, what they take of
 * the budget, and `file.cached` belong to whoever has entered its reads, and a part that is in memory
 * stays as it is (MB3).
 *
 * Invariants
 *  MB1. A part is in memory only once it was checked against the file's own checksums, from wherever
 *       it came, and nobody else can change it: a copy that others own or may write to is none. So the
 *       folder of copies is to be private, as its owner may cut what is mapped. It may be removed.
 *  MB3. It is open, and what it has in memory is charged once, as long as its opener or a stack holds
 *       it. All stacks that hold it read by the same reads.
 *  MB4. What is damaged of a file with extents is brought anew before it is taken for damaged; of a
 *       time index this is said, and the next look brings it.
 *  MB5. To open it reads what the tail has, and no part: some 64 bytes for 256 blocks. A part is read
 *       where a key of its segment is wanted, and not again. Of a file without a guide it reads 64 bytes
 *       for each block, and a filter is made from blocks whose checksums held.
 *
 * Complexity: O(segments) to open, in memory; a read for each part that is brought.
 */
#ifndef PST_MEMBER_H
#define PST_MEMBER_H

#include "base/buffer.h"
#include "guide/sst_guide.h"
#include "reads/reads.h"
#include "stack/guide_copy.h"

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
    const uint8_t *
        *parts;          /* of each segment PST_PART_ENTRIES and PST_PART_FILTER; NULL: not here */
    uint64_t *places;    /* of each segment's first part, in copy and image */
    uint8_t *asked;      /* of each segment, keys that were wanted while its filter was not here */
    uint8_t *image;      /* parts that are in no copy; NULL: none */
    size_t image_bytes;  /* of all parts */
    uint64_t part_bytes; /* of those that are here */
    uint64_t image_used; /* of those, in the image, as charged */
    uint32_t lacking;    /* parts that are not here */
    int filtered;        /* of its segments the filters are parts, too */
    pst_guide_copy copy;
};

/* Of a segment. As a set: 1 << each. */
enum { PST_PART_ENTRIES, PST_PART_FILTER, PST_PARTS };

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

/* A segment's entries; NULL: they are not in memory. */
static inline const uint8_t *pst_member_entries(const pst_member *m, uint32_t segment) {
    return __atomic_load_n(&m->parts[PST_PARTS * (size_t)segment + PST_PART_ENTRIES],
                           __ATOMIC_ACQUIRE);
}

/* A segment's filter; NULL: it is not in memory, and the segment may have any key. */
static inline const uint8_t *pst_member_filter(const pst_member *m, uint32_t segment) {
    return __atomic_load_n(&m->parts[PST_PARTS * (size_t)segment + PST_PART_FILTER],
                           __ATOMIC_ACQUIRE);
}

/* Brings the entries of segments into memory, and with `filters` those that a delta has; of a guide
 * that was made, filters are made where they pay, and one that cannot be is left out. Without `filters`
 * they come where a copy has them. To be called where nobody of this thread has entered the reads.
 * PST_IO and PST_CORRUPT, with the offset in *detail; PST_LIMIT, PST_NO_MEMORY; PST_INVALID: the
 * callback of a search of the same reads. */
pst_status pst_member_bring(pst_member *m, uint32_t segment, uint32_t n, int filters,
                            pst_detail *detail);

/* All of these REQUIRE the reads entered. */

/* Which parts of a segment of which so many keys are wanted are to be read; others that are wanted are
 * here then. A read costs as much as `gap_pages` and its own pages, of two pages for a block. */
int pst_member_wants(pst_member *m, uint32_t segment, uint32_t keys, uint32_t gap_pages);
/* Starts the read of parts. Statuses of pst_reads_start. */
pst_status pst_member_start(pst_member *m, uint32_t segment, int parts, uint64_t tag);
/* Takes what has arrived, but does not give it back. A filter for which there is no room is not taken.
 * Statuses of pst_member_bring. */
pst_status pst_member_take(pst_member *m, uint32_t segment, int parts, const pst_arrival *a,
                           pst_detail *detail);
/* Gives back what was charged ahead. */
void pst_member_settle(pst_member *m);

/* ---------------------------------------------------------------------------------------------- */

/* How many blocks may have rows of a place, and how many raw bytes. More than two have nothing else.
 * REQUIRES: the entries of its segments. O(blocks of a segment + segments). */
uint64_t pst_member_blocks(const pst_member *m, int32_t key_group, uint64_t hash, uint64_t *bytes);

/* Whether segments can be searched now, for one key more: nothing is to be read for it, or made. */
int pst_member_at_hand(pst_member *m, uint32_t segment, uint32_t n);

/* Reads a part in this thread into a buffer; *data is where it lies. PST_NOT_HERE if it is to be
 * read from the page cache alone, and is not there; PST_IO, with the errno; PST_NO_MEMORY,
 * PST_LIMIT. */
pst_status pst_member_read(pst_member *m, uint64_t offset, uint64_t size, int cached,
                           pst_allowance *room, pst_buffer *buffer, const uint8_t **data,
                           int *sys_errno);

/* A block of a segment, and a place that no row of it is above. REQUIRES: the entries. */
pst_guide_block pst_member_block(const pst_member *m, uint32_t segment, uint32_t block,
                                 int32_t *last_key_group, uint64_t *last_hash);

/* Makes a buffer that large, without what is in it, and asks for that before it is taken: a block may
 * say any size of itself. PST_NO_MEMORY, PST_LIMIT. */
pst_status pst_allowance_room(pst_allowance *r, pst_buffer *b, uint64_t bytes);

#endif
