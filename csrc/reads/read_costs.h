/* read_costs.h: whether what lies between two wanted blocks is read with them.
 *
 * Purpose: n reads of p pages take n c0 + p c1, where many are in flight. So two blocks are read
 * together if the pages between them are fewer than c0 / c1. That is 4 on a fast local disk, and 13 on
 * a cloud's with 3000 reads and 125 MB a second; so it is measured.
 *
 * Thread safety: whoever has entered the reads.
 *
 * Complexity: some milliseconds on a fast disk, at most once in a minute, and only for large searches.
 */
#ifndef PST_READ_COSTS_H
#define PST_READ_COSTS_H

#include "reads/reads.h"

/* The most pages that lie between blocks which are read together. Measures anew with that file if the
 * last time is long ago, unless it is small, or 0. REQUIRES: nothing is in flight. */
uint32_t pst_read_costs_gap(pst_reads *r, pst_read_file *file, uint64_t file_bytes);

#endif
