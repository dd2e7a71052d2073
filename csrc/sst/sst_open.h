/* sst_open.h: what a file says of itself: header, schema section, footer and tail.
 *
 * Thread safety: a head belongs to one thread at a time while it is read; afterwards it is immutable.
 *
 * Invariants
 *  1. Bytes are used only after the checksum over them held.
 *  2. No allocation is larger than what the file's own size bounds.
 */
#ifndef PST_SST_OPEN_H
#define PST_SST_OPEN_H

#include "base/buffer.h"
#include "sst/record.h"
#include "sst/sst_format.h"

typedef struct pst_sst_head {
    pst_file_info info; /* totals are not known before the index was read */
    pst_schema schema;
    pst_record_rules rules; /* of that schema */
    uint64_t features;
    uint64_t data_offset; /* where the blocks begin */
    pst_detail detail;    /* of the last failure */
} pst_sst_head;

/* Nowhere in particular. */
pst_detail pst_sst_nowhere(void);
/* Notes where it failed, and returns the status. */
pst_status pst_sst_fail_at(pst_sst_head *head, pst_status s, uint64_t offset);
/* PST_CALLBACK. */
pst_status pst_sst_read_at(const pst_io *io, pst_sst_head *head, uint64_t offset, void *data,
                           size_t size);

/* Reads header and schema into a head of zeroes, and the footer; `scratch` grows as it needs.
 * Statuses as pst_sst_reader_open. The schema is the head's also after a failure
 * (pst_schema_clear). */
pst_status pst_sst_read_head(const pst_io *io, uint64_t file_bytes, pst_buffer *scratch,
                             pst_sst_head *head, pst_sst_footer *footer);
/* Reads the tail into a buffer. Statuses as pst_sst_reader_open. */
pst_status pst_sst_read_tail(const pst_io *io, pst_sst_head *head, const pst_sst_footer *footer,
                             pst_buffer *tail);
/* Checks the verified tail of a file without a guide, and fills the totals of `info` and
 * footer->blocks refs: blocks follow one another without a gap, in order of key group and hash,
 * within the file's range. PST_CORRUPT. */
pst_status pst_sst_read_refs(pst_file_info *info, uint64_t data_offset,
                             const pst_sst_footer *footer, const uint8_t *tail, pst_sst_ref *refs);

#endif
