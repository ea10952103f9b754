// SPDX-License-Identifier: MIT
// Tables of kernels by instruction set level. A build has the portable one always, DPCRI_BUILT_AVX2 and
// DPCRI_BUILT_AVX512 say whether it has the others: those for another processor have neither, and those with a
// sanitizer have only what this processor runs (CMakeLists.txt).
#ifndef DPCRI_KERN_LEVELS_H
#define DPCRI_KERN_LEVELS_H

#include <stddef.h>

#include "deeppcr/array.h"
#include "rt/rt.h"

#if defined(DPCRI_BUILT_AVX2)
#define DPCRI_AVX2_OR(there, missing) (there)
#else
#define DPCRI_AVX2_OR(there, missing) (missing)
#endif
#if defined(DPCRI_BUILT_AVX512)
#define DPCRI_AVX512_OR(there, missing) (there)
#else
#define DPCRI_AVX512_OR(there, missing) (missing)
#endif

// {x_portable, x_avx2, x_avx512}, functions or tables' addresses, by dpcri_isa; MISSING for a level that the build
// lacks.
#define DPCRI_BY_LEVEL(x, missing) \
    { x##_portable, DPCRI_AVX2_OR(x##_avx2, missing), DPCRI_AVX512_OR(x##_avx512, missing) }

// Defines dpcri_NAME_kernels_at(level, dtype), which gives dpcri_NAME_f32_LEVEL or dpcri_NAME_f64_LEVEL, NULL where
// this build or this processor lacks the level or there are none for the dtype; and dpcri_NAME_kernels_get(dtype), of
// the level in use.
#define DPCRI_KERNEL_TABLES(name)                                                                                    \
    extern const dpcri_##name##_kernels dpcri_##name##_f32_portable, dpcri_##name##_f32_avx2,                        \
        dpcri_##name##_f32_avx512, dpcri_##name##_f64_portable, dpcri_##name##_f64_avx2, dpcri_##name##_f64_avx512;  \
    const dpcri_##name##_kernels *dpcri_##name##_kernels_at(dpcri_isa level, dpcr_dtype dtype) {                     \
        static const dpcri_##name##_kernels *const f32[DPCRI_ISA_COUNT] = DPCRI_BY_LEVEL(&dpcri_##name##_f32, NULL), \
                                                   *const f64[DPCRI_ISA_COUNT] =                                     \
                                                       DPCRI_BY_LEVEL(&dpcri_##name##_f64, NULL);                    \
        if (level > dpcri_isa_level()) return NULL;                                                                  \
        return dtype == DPCR_F32 ? f32[level] : dtype == DPCR_F64 ? f64[level] : NULL;                               \
    }                                                                                                                \
    const dpcri_##name##_kernels *dpcri_##name##_kernels_get(dpcr_dtype dtype) {                                     \
        return dpcri_##name##_kernels_at(dpcri_isa_level(), dtype);                                                  \
    }

#endif
