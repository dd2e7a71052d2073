/* siphash.h: SipHash-1-3, after its authors' description (Aumasson and Bernstein, 2012).
 *
 * A hash with a secret: whoever does not know it cannot choose inputs that collide more often than
 * chance. It is much slower than the public hash, so it is used only where that one was abused.
 *
 * Thread safety: a pure function.
 */
#ifndef PST_SIPHASH_H
#define PST_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

/* No alignment is required; NULL is allowed where size is 0. */
uint64_t pst_siphash(const void *data, size_t size, const uint64_t secret[2]);

#endif
