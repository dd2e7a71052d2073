/* sst_writer.h: what a merge asks of the writer that it fills. The rest of it is public.
 *
 * Thread safety: a writer belongs to one thread at a time.
 *
 * Invariants
 *  1. At most one block is held in memory, whatever the size of the file; the index takes
 *     sizeof(pst_sst_ref) per block.
 *  2. A call that fails before it has changed anything (PST_INVALID, PST_TOO_LARGE) leaves the
 *     writer usable; after any other failure every call repeats that status.
 *  3. The block under construction keeps its last row until the next one has been compared with
 *     it: blocks are finished by the record that follows, never by the one that fills them.
 */
#ifndef PST_SST_WRITER_H
#define PST_SST_WRITER_H

#include "file/sst_reader.h"

const pst_schema *pst_sst_writer_schema(const pst_sst_writer *w);
/* Kind, lineage, max parallelism and range as given; the rest once finished. */
const pst_file_info *pst_sst_writer_info(const pst_sst_writer *w);

/* As pst_sst_writer_add of rows that put the same columns of a file with as many key groups: state k
 * is the file's state at[k]. REQUIRES: they come from a reader, and are
 * stored as they are: in a base none of them has a null. */
pst_status pst_sst_writer_add_stretch(pst_sst_writer *w, const pst_stretch *part, const int32_t *at,
                                      uint64_t changed);

#endif
