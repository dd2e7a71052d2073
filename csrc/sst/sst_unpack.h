/* sst_unpack.h: LZ4 blocks, decompressed by the core itself.
 *
 * Purpose: threads that read small blocks need neither Python nor a library for it, and a damaged or
 * hostile block must not lead anywhere.
 *
 * Thread safety: a pure function over its arguments.
 *
 * Invariants
 *  UP1. Whatever the source says, nothing is read outside of [src, src + src_size), nothing written
 *       outside of [dst, dst + dst_size), and nothing read from dst that was not written before.
 *
 * Complexity: O(dst_size).
 */
#ifndef PST_SST_UNPACK_H
#define PST_SST_UNPACK_H

#include <stddef.h>
#include <stdint.h>

/* Decompresses an LZ4 block that makes exactly `dst_size` bytes, and returns how many bytes of the
 * source it took; what follows these is not looked at. 0: there is no such block at `src`. */
size_t pst_sst_unpack(const uint8_t *src, size_t src_size, uint8_t *dst, size_t dst_size);

#endif
