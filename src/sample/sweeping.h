// SPDX-License-Identifier: MIT
// What the samplers' own methods share: states of either dtype, calls of the chain.
#ifndef DPCRI_SWEEPING_H
#define DPCRI_SWEEPING_H

#include <math.h>

#include "rt/rt.h"
#include "sample/sample.h"

typedef struct dpcri_sweeping {
    dpcr_sampler *sampler;
    dpcr_sampling_options options;  // every default filled in; tolerance 0 is 0
    dpcr_array z0, z;               // contiguous [B][w], [L][B][w]
    int64_t length, batch, width;
    dpcr_dtype dtype;
    unsigned char *active;  // [B]: sequences at work
    int sweeps;
    double residual;
    dpcr_reason reason;  // the worst of the sequences that are done
    dpcr_error *error;
} dpcri_sweeping;

static inline double dpcri_state_get(dpcr_dtype dtype, const void *x, int64_t i) {
    return dtype == DPCR_F32 ? (double)((const float *)x)[i] : ((const double *)x)[i];
}

static inline void dpcri_state_set(dpcr_dtype dtype, void *x, int64_t i, double value) {
    if (dtype == DPCR_F32)
        ((float *)x)[i] = (float)value;
    else
        ((double *)x)[i] = value;
}

static inline void *dpcri_state_at(dpcr_dtype dtype, const void *x, int64_t i) {
    return (char *)(uintptr_t)x + i * (int64_t)dpcr_dtype_size(dtype);
}

// |a - b| / (1 + |b|) of the worst component; NaN where any is not finite.
static inline double dpcri_state_distance(dpcr_dtype dtype, const void *a, const void *b, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        const double x = dpcri_state_get(dtype, a, i), y = dpcri_state_get(dtype, b, i);
        const double d = fabs(x - y) / (1 + fabs(y));
        if (!(d <= most)) most = d;
        if (isnan(d)) return NAN;
    }
    return most;
}

// Runs lanes x steps of a sampler's chain from `in` [lanes][B][w]; states [lanes][steps][B][w] or last [lanes][B][w],
// lanes `lane_stride` numbers apart, for the
// sequences that are active (NULL: all). DPCR_ERROR_CALLBACK where the denoiser aborts.
dpcr_status dpcri_sweeping_run(dpcr_sampler *sampler, int64_t first, int64_t lanes, int64_t stride, int64_t steps,
                               const void *in, int64_t in_stride, void *states, void *last, int64_t out_stride,
                               const unsigned char *active, dpcr_error *error);

// Sequence b is done, for this reason.
void dpcri_sweeping_done(dpcri_sweeping *s, int64_t b, dpcr_reason reason);
bool dpcri_sweeping_any(const dpcri_sweeping *s);

dpcr_status dpcri_solve_parareal(dpcri_sweeping *s);
dpcr_status dpcri_solve_parataa(dpcri_sweeping *s);

#endif
