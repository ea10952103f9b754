// SPDX-License-Identifier: MIT
// Chunks join where s_c = M_c s_{c-1} + v_c is what the loop makes of s_{c-1}. A product may overflow, underflow or
// cancel where no state does, and stay finite where a state does not: then the loop's end of the chunk is another one.
//
// A component joins within a hundredth of itself; or, since sums that come near zero keep the rounding of what they are
// made of, of the largest state of its block in the chunk. The second does not hold where M's row has underflowed: the
// component depends on s_{c-1} by that row alone, so what is off is what was lost of it, however small beside states
// before. Work: K w comparisons; where one fails, a look at a chunk's states. Derivation: docs/math/chunked.md.
#include "chain/joins.h"

#include <float.h>
#include <math.h>

static const double most_off = 1e-2;

static double at(const dpcri_flow *f, const void *x, int64_t i) {
    return f->dtype == DPCR_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

static int64_t last_state(const dpcri_flow *f, const dpcri_joint *j, int64_t c) {
    return (j->first + (c + 1) * j->chunk - 1) * f->z_step + j->row * f->z_row;
}

#define NEAR(T, name, absolute)                                                                 \
    static bool name(const T *z, int64_t z_step, const T *s, const dpcri_joint *j, int64_t w) { \
        bool near = true;                                                                       \
        for (int64_t i = 0; i < w; i++)                                                         \
            for (int64_t c = 0; c < j->count; c++) {                                            \
                const T want = s[c * j->start_step + i * j->start_each];                        \
                near &= absolute(z[c * z_step + i] - want) <= (T)most_off * absolute(want);     \
            }                                                                                   \
        return near;                                                                            \
    }
NEAR(float, near_f32, fabsf)
NEAR(double, near_f64, fabs)
#undef NEAR

bool dpcri_joins_at_once(const dpcri_flow *f, const dpcri_joint *j) {
    if (f->z == f->b || (f->dtype != DPCR_F32 && f->dtype != DPCR_F64) || dpcri_watch_stopped(f->watch)) return true;
    const void *z = dpcri_at(f, f->z, last_state(f, j, 0));
    const int64_t z_step = j->chunk * f->z_step;
    return f->dtype == DPCR_F64 ? near_f64(z, z_step, j->start, j, f->w) : near_f32(z, z_step, j->start, j, f->w);
}

// Row i of op(M) has nothing but zeros and denormals.
static bool underflowed(const dpcri_flow *f, const dpcri_product *p, int64_t i, int64_t k, double least) {
    if (f->form == DPCR_SCALAR) i = 0;  // one value for all
    const int64_t block = i / k * k * k, in = i % k;
    for (int64_t l = 0; l < k; l++) {
        const int64_t v = block + (p->turned ? l * k + in : in * k + l);
        if (!(fabs(at(f, p->m, v * p->each)) < least)) return false;
    }
    return true;
}

// Of components [i, i + k) in chunk c.
static double largest_state(const dpcri_flow *f, const dpcri_joint *j, int64_t c, int64_t i, int64_t k) {
    double most = 0;
    for (int64_t m = j->first + c * j->chunk; m < j->first + (c + 1) * j->chunk; m++)
        for (int64_t l = i; l < i + k; l++) most = fmax(most, fabs(at(f, f->z, m * f->z_step + j->row * f->z_row + l)));
    return most;
}

bool dpcri_joins(const dpcri_flow *f, const dpcri_joint *j, int64_t c, const dpcri_product *product) {
    dpcri_joint one = *j;
    one.first += c * j->chunk, one.count = 1;
    one.start = dpcri_at(f, j->start, c * j->start_step);
    if (dpcri_joins_at_once(f, &one)) return true;
    const int64_t k = f->form == DPCR_DENSE ? f->w : f->form == DPCR_BLOCK ? f->block : 1;
    const double least = f->dtype == DPCR_F64 ? DBL_MIN : (double)FLT_MIN;
    for (int64_t i = 0; i < f->w; i++) {
        const double want = at(f, one.start, i * j->start_each), z = at(f, f->z, last_state(f, j, c) + i);
        const double off = fabs(z - want);
        if (off <= most_off * fabs(want)) continue;
        if (!isfinite(z)) return false;
        const bool lost = product->m && fabs(z) >= least && underflowed(f, product, i, k, least);
        if (lost || !(off <= most_off * largest_state(f, j, c, i / k * k, k))) return false;
    }
    return true;
}
