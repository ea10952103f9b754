// SPDX-License-Identifier: MIT
// The stand-in's kernels: the loop, in plain C, in the order of the definition.
#include <stdio.h>

#include "fake.h"

// One sequence of `type`: x is the state before, y the one of this step, which may lie where b does.
#define DEFINE_LOOP(name, type)                                                                             \
    static type name##_entry(const dpcri_device_linear *c, const type *a, int64_t i, int64_t j) {           \
        const int64_t k = c->block;                                                                         \
        switch (c->structure) {                                                                             \
            case DPCR_IDENTITY: return i == j;                                                              \
            case DPCR_SCALAR: return i == j ? a[0] : 0;                                                     \
            case DPCR_DIAGONAL: return i == j ? a[i] : 0;                                                   \
            case DPCR_BLOCK: return i / k == j / k ? a[(i / k * k + i % k) * k + j % k] : 0;                \
            case DPCR_DENSE: return a[i * c->w + j];                                                        \
            default: return 0;                                                                              \
        }                                                                                                   \
    }                                                                                                       \
    static void name(const dpcri_device_linear *c, int64_t row, type *state) {                              \
        const type *x = c->z0 ? (const type *)c->z0 + row * c->z0_row : NULL;                               \
        for (int64_t n = 0; n < c->length; n++) {                                                           \
            const int64_t l = c->transposed ? c->length - 1 - n : n, at = c->transposed ? l + 1 : l;        \
            const type *a = c->a && x ? (const type *)c->a + at * c->a_step + row * c->a_row : NULL;        \
            const type *b = (const type *)c->b + l * c->b_step + row * c->b_row;                            \
            type *z = (type *)c->z + l * c->z_step + row * c->z_row;                                        \
            for (int64_t i = 0; i < c->w; i++) {                                                            \
                type sum = b[i];                                                                            \
                for (int64_t j = 0; x && j < c->w; j++) {                                                   \
                    const type entry = c->transposed ? name##_entry(c, a, j, i) : name##_entry(c, a, i, j); \
                    if (entry != 0) sum += entry * x[j];                                                    \
                }                                                                                           \
                state[i] = sum;                                                                             \
            }                                                                                               \
            for (int64_t i = 0; i < c->w; i++) z[i] = state[i];                                             \
            x = z;                                                                                          \
        }                                                                                                   \
    }
DEFINE_LOOP(loop_f32, float)
DEFINE_LOOP(loop_f64, double)
DEFINE_LOOP(loop_u32, uint32_t)
#undef DEFINE_LOOP

enum { WIDEST = 1024 };

static dpcr_status workspace_of(int id, const dpcri_device_linear *chain, size_t *bytes, dpcr_error *error) {
    *bytes = 256;
    if (chain->w <= WIDEST) return DPCR_OK;
    if (error) {
        error->status = DPCR_ERROR_UNSUPPORTED;
        snprintf(error->text, sizeof error->text, "cuda:%d: width %lld, the stand-in serves up to %d", id,
                 (long long)chain->w, WIDEST);
    }
    return DPCR_ERROR_UNSUPPORTED;
}

static dpcr_status run_linear(int id, const dpcri_device_linear *chain, void *workspace, size_t bytes, void *stream,
                              dpcr_error *error) {
    union {
        float f32[WIDEST];
        double f64[WIDEST];
        uint32_t u32[WIDEST];
    } state;
    (void)id;
    (void)stream;
    (void)error;
    for (size_t i = 0; i < bytes; i++) ((unsigned char *)workspace)[i] = 0x5a;  // it is ours to write, all of it
    for (int64_t row = 0; row < chain->rows; row++) {
        if (chain->dtype == DPCR_F32) loop_f32(chain, row, state.f32);
        if (chain->dtype == DPCR_F64) loop_f64(chain, row, state.f64);
        if (chain->dtype == DPCR_U32) loop_u32(chain, row, state.u32);
    }
    return DPCR_OK;
}

const dpcri_device_kernels fake_kernels = {
    .size = sizeof fake_kernels, .linear_workspace = workspace_of, .linear = run_linear};
