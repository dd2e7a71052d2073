/* extents.h: whether the parts of a file that are wanted are here.
 *
 * Purpose: the file may be an object of a store, and what is on the disk a copy of some parts of it.
 *
 * Thread safety: any thread; the callbacks are called by the threads that read.
 *
 * Invariants
 *  EX1. No byte of a file is used that was read while its extent was not here.
 *
 * Complexity: O(extents wanted), most often one.
 */
#ifndef PST_STACK_EXTENTS_H
#define PST_STACK_EXTENTS_H

#include "pystate.h"

/* Brings what is not here of a part of the file, and notes the use; *mark is for the other call. 0, or
 * an errno. */
int pst_extents_need(const pst_extents *e, uint64_t offset, uint64_t size, uint32_t *mark);
/* Whether all of the part has been here since. */
int pst_extents_stayed(const pst_extents *e, uint64_t offset, uint64_t size, uint32_t mark);
/* The part is damaged. */
void pst_extents_drop(const pst_extents *e, uint64_t offset, uint64_t size);

#endif
