/* store.h: every store to memory that another process or thread may look at.
 *
 * Purpose: one vocabulary for stores and loads of table memory, so that (1) no store is torn or
 * moved by the compiler across a fence, (2) a test build can stop the world after each of them.
 *
 * Thread safety: these are the primitives that it is made of.
 *
 * Invariants
 *  S1. Table memory is written through these functions only; never by memcpy or by assignment.
 *  S2. What a concurrent reader may look at is loaded through these functions only.
 *  S3. In a build with PST_CRASH_POINTS each store is followed by pst_crash_hook(), so a test
 *      sees memory exactly as a SIGKILL between two stores leaves it.
 *
 * Relaxed stores of naturally aligned words cost what plain ones cost. ThreadSanitizer does not
 * model fences; all accesses that can race are atomic, so it needs none.
 */
#ifndef PST_STORE_H
#define PST_STORE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#ifdef PST_CRASH_POINTS
extern void (*pst_crash_hook)(void);
#define PST_POINT()                                                                                \
    do {                                                                                           \
        if (pst_crash_hook)                                                                        \
            pst_crash_hook();                                                                      \
    } while (0)
#else
#define PST_POINT() ((void)0)
#endif

#ifdef __SANITIZE_THREAD__
#define PST_FENCE(order) __atomic_signal_fence(order)
#else
#define PST_FENCE(order) __atomic_thread_fence(order)
#endif

static inline void pst_put8(void *p, uint8_t v) {
    __atomic_store_n((uint8_t *)p, v, __ATOMIC_RELAXED);
    PST_POINT();
}

static inline void pst_put16(void *p, uint16_t v) {
    __atomic_store_n((uint16_t *)p, v, __ATOMIC_RELAXED);
    PST_POINT();
}

static inline void pst_put32(void *p, uint32_t v) {
    __atomic_store_n((uint32_t *)p, v, __ATOMIC_RELAXED);
    PST_POINT();
}

static inline void pst_put64(void *p, uint64_t v) {
    __atomic_store_n((uint64_t *)p, v, __ATOMIC_RELAXED);
    PST_POINT();
}

/* All earlier stores are visible to whoever sees this one with pst_acquire64. */
static inline void pst_release64(void *p, uint64_t v) {
    __atomic_store_n((uint64_t *)p, v, __ATOMIC_RELEASE);
    PST_POINT();
}

static inline uint8_t pst_get8(const void *p) {
    return __atomic_load_n((const uint8_t *)p, __ATOMIC_RELAXED);
}

static inline uint16_t pst_get16(const void *p) {
    return __atomic_load_n((const uint16_t *)p, __ATOMIC_RELAXED);
}

static inline uint32_t pst_get32(const void *p) {
    return __atomic_load_n((const uint32_t *)p, __ATOMIC_RELAXED);
}

static inline uint64_t pst_get64(const void *p) {
    return __atomic_load_n((const uint64_t *)p, __ATOMIC_RELAXED);
}

static inline uint64_t pst_acquire64(const void *p) {
    return __atomic_load_n((const uint64_t *)p, __ATOMIC_ACQUIRE);
}

/* For functions that only prefetch. They must be inlined: a compiler drops a call that seems to
 * have no effect. */
#define PST_PREFETCH static inline __attribute__((always_inline))

/* n words from private or immutable memory into the table. */
static inline void pst_put_words(uint64_t *dst, const uint64_t *src, size_t n) {
    for (size_t i = 0; i < n; i++)
        pst_put64(dst + i, src[i]);
}

/* The same into memory that no sealed epoch names. Only a reader whose epoch is gone may look
 * there, and it discards what it read. */
static inline void pst_fill_words(uint64_t *dst, const uint64_t *src, size_t n) {
#if defined(PST_CRASH_POINTS) || defined(__SANITIZE_THREAD__)
    pst_put_words(dst, src, n);
#else
    memcpy(dst, src, n * sizeof *dst);
#endif
}

/* n words of the table into private memory, beside a writer. */
static inline void pst_get_words(uint64_t *dst, const uint64_t *src, size_t n) {
    for (size_t i = 0; i < n; i++)
        dst[i] = pst_get64(src + i);
}

/* Bytes from private or immutable memory into a block, whose last word is filled up with zeros. */
static inline void pst_put_bytes(void *dst, const void *src, size_t n) {
    uint64_t *to = (uint64_t *)dst, word;
    size_t whole = n / 8, rest = n % 8;
    for (size_t i = 0; i < whole; i++) {
        memcpy(&word, (const uint8_t *)src + i * 8, 8);
        pst_put64(to + i, word);
    }
    if (!rest)
        return;
    word = 0;
    memcpy(&word, (const uint8_t *)src + whole * 8, rest);
    pst_put64(to + whole, word);
}

/* n bytes of the table into private memory, beside a writer. Bytes that are stored meanwhile come
 * out old, new or mixed. A reader trusts none of them before it has looked again (reader.c); the
 * fence of that look orders the copy before it. */
static inline void pst_get_bytes(void *dst, const void *src, size_t n) {
#ifdef __SANITIZE_THREAD__
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)dst)[i] = pst_get8((const uint8_t *)src + i);
#else
    memcpy(dst, src, n);
#endif
}

/* The same for whole words to a buffer that is larger than the caches and aligned to words. The
 * stores bypass the caches: a line that is written as a whole need not be read first, nor does it
 * evict another. pst_streamed() must come before anybody else looks at the buffer. */
static inline void pst_stream_words(void *dst, const void *src, size_t n) {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
    for (size_t i = 0; i < n; i += 8) {
        long long word;
        memcpy(&word, (const uint8_t *)src + i, 8);
        _mm_stream_si64((long long *)(void *)((uint8_t *)dst + i), word);
    }
#else
    pst_get_bytes(dst, src, n);
#endif
}

static inline void pst_streamed(void) {
#ifdef __SSE2__
    _mm_sfence();
#endif
}

#endif
