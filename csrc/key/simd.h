/* simd.h: whether wide vectors can be had.
 *
 * Purpose: loops with a version for AVX-512 beside the portable one ask here which to run. Both are
 * always compiled, and the tests compare them.
 *
 * Thread safety: functions without state.
 */
#ifndef PST_SIMD_H
#define PST_SIMD_H

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define PST_AVX512 1
/* For functions that only run where `pst_has_avx512` says so. */
#define PST_WITH_AVX512 __attribute__((target("avx512f,avx512dq,avx512vl")))
#endif

static inline int pst_has_avx512(void) {
#ifdef PST_AVX512
    return __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
    return 0;
#endif
}

#endif
