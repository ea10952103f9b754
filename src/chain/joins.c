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

#include "kern/chunked.h"

static double at(const dpcri_flow *f, const void *x, int64_t i) {
    return f->dtype == DPCR_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

dpcri_chunk_states dpcri_joint_ends(const dpcri_flow *f, const dpcri_joint *j) {
    const int64_t last = (j->first + j->chunk - 1) * f->z_step + j->row * f->z_row;
    return (dpcri_chunk_states){dpcri_at(f, f->z, last), j->chunk * f->z_step, 1};
}

// I: an integer of T's size, so that what lies side by side is compared in vectors.
#define NEAR(T, I, name, absolute)                                                                               \
    static inline bool name##_by(const T *z, int64_t z_step, int64_t z_each, const T *s, int64_t s_step,         \
                                 int64_t s_each, int64_t count, int64_t w) {                                     \
        I near = -1;                                                                                             \
        for (int64_t i = 0; i < w; i++)                                                                          \
            for (int64_t c = 0; c < count; c++) {                                                                \
                const T want = s[c * s_step + i * s_each];                                                       \
                near &= absolute(z[c * z_step + i * z_each] - want) <= (T)DPCRI_JOINS * absolute(want) ? -1 : 0; \
            }                                                                                                    \
        return near != 0;                                                                                        \
    }                                                                                                            \
    static bool name(const dpcri_joint *j, int64_t w) {                                                          \
        const dpcri_chunk_states *z = &j->end, *s = &j->next;                                                    \
        if (z->step == 1 && s->step == 1) return name##_by(z->x, 1, z->each, s->x, 1, s->each, j->count, w);     \
        return name##_by(z->x, z->step, z->each, s->x, s->step, s->each, j->count, w);                           \
    }
NEAR(float, int32_t, near_f32, fabsf)
NEAR(double, int64_t, near_f64, fabs)
#undef NEAR

bool dpcri_joins_nearly(const dpcri_flow *f, const dpcri_joint *j) {
    if (f->dtype != DPCR_F32 && f->dtype != DPCR_F64) return true;
    return f->dtype == DPCR_F64 ? near_f64(j, f->w) : near_f32(j, f->w);
}

bool dpcri_joins_at_once(const dpcri_flow *f, const dpcri_joint *j) {
    return f->z == f->b || dpcri_joins_nearly(f, j) || dpcri_watch_stopped(f->watch);  // to ask takes a clock
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
    one.end.x = dpcri_at(f, j->end.x, c * j->end.step);
    one.next.x = dpcri_at(f, j->next.x, c * j->next.step);
    if (dpcri_joins_at_once(f, &one)) return true;
    const int64_t k = f->form == DPCR_DENSE ? f->w : f->form == DPCR_BLOCK ? f->block : 1;
    const double least = f->dtype == DPCR_F64 ? DBL_MIN : (double)FLT_MIN;
    for (int64_t i = 0; i < f->w; i++) {
        const double want = at(f, one.next.x, i * j->next.each), z = at(f, one.end.x, i * j->end.each);
        const double off = fabs(z - want);
        if (off <= DPCRI_JOINS * fabs(want)) continue;
        if (!isfinite(z)) return false;
        const bool lost = product->m && fabs(z) >= least && underflowed(f, product, i, k, least);
        if (lost || !(off <= DPCRI_JOINS * largest_state(f, j, c, i / k * k, k))) return false;
    }
    return true;
}
