/* mem.h: the allocator under every handle of the core.
 *
 * Thread safety: as malloc.
 *
 * Invariants:
 * 1. Every allocation of the core goes through pst_malloc or pst_realloc, and each result is
 *    checked before use.
 * 2. A zero-byte request returns a pointer that pst_free takes, so NULL always means "refused".
 * 3. In test builds (PST_TEST_ALLOC) the calling thread can make any one allocation fail;
 *    release builds compile to the C library's calls and hold no state.
 */
#ifndef PST_MEM_H
#define PST_MEM_H

#include <stdlib.h>

#ifdef PST_TEST_ALLOC
/* Defined by the test programs: 1 if this request is to be refused. */
int pst_test_alloc_refuse(void);
#define PST_ALLOC_REFUSED() pst_test_alloc_refuse()
#else
#define PST_ALLOC_REFUSED() 0
#endif

static inline void *pst_malloc(size_t size) {
    return PST_ALLOC_REFUSED() ? NULL : malloc(size ? size : 1);
}

static inline void *pst_calloc(size_t count, size_t size) {
    return PST_ALLOC_REFUSED() ? NULL : calloc(count ? count : 1, size ? size : 1);
}

/* On refusal `p` stays valid. */
static inline void *pst_realloc(void *p, size_t size) {
    return PST_ALLOC_REFUSED() ? NULL : realloc(p, size ? size : 1);
}

static inline void pst_free(void *p) {
    free(p);
}

#endif
