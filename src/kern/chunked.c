// SPDX-License-Identifier: MIT
// Which fused chunk kernels serve a chain.
#include "kern/chunked.h"

#include "kern/levels.h"

// Eight chunks of width 8 fill an eighth of a second-level cache; odd, so that they lie on different cache sets.
enum { SQUARES_STEPS = 65 };

static const dpcri_chunked_table *const f32[DPCRI_ISA_COUNT] =
    DPCRI_BY_LEVEL(&dpcri_chunked_f32, &dpcri_chunked_f32_portable),
                                        *const f64[DPCRI_ISA_COUNT] =
                                            DPCRI_BY_LEVEL(&dpcri_chunked_f64, &dpcri_chunked_f64_portable);

// Blocks on the diagonal; 0: the form has none.
static int64_t size_of_blocks(dpcr_structure form, int64_t width, int64_t block) {
    return form == DPCR_DIAGONAL ? 1 : form == DPCR_DENSE ? width : form == DPCR_BLOCK ? block : 0;
}

const dpcri_chunked_kernels *dpcri_chunked_at(dpcri_isa level, dpcr_dtype dtype, dpcr_structure form, int64_t width,
                                              int64_t block, bool transposed) {
    if (dtype != DPCR_F32 && dtype != DPCR_F64) return NULL;
    const int64_t size = size_of_blocks(form, width, block);
    const dpcri_chunked_table *table = dtype == DPCR_F32 ? f32[level] : f64[level];
#define DPCRI_CHUNKED(w, k, steps, name) \
    if (width == w && size == k) return transposed ? &table->name##_t : &table->name;
#include "kern/chunked.def"
#undef DPCRI_CHUNKED
    return NULL;
}

int64_t dpcri_chunked_steps(dpcr_structure form, int64_t width, int64_t block) {
    const int64_t size = size_of_blocks(form, width, block);
#define DPCRI_CHUNKED(w, k, steps, name) \
    if (width == w && size == k) return steps;
#include "kern/chunked.def"
#undef DPCRI_CHUNKED
    return form == DPCR_DENSE && width == 8 ? SQUARES_STEPS : 0;
}
