// SPDX-License-Identifier: MIT
// Chunks join where s_c = M_c s_{c-1} + v_c is what the loop makes of s_{c-1}. A product may overflow, underflow or
// cancel where no state does, and stay finite where a state does not: then the loop's end of the chunk is another one.
//
// A component joins within a thousandth of itself (double: a millionth), far more than products round by; or, since
// sums that come near zero keep the rounding of what they are made of, of the terms of its last sum, or within what
// rounding makes of it in that chunk (of blocks up to MOST_BLOCK). Work: K w comparisons; where one fails, those terms;
// where that fails, the chunk once more. Derivation: docs/math/chunked.md.
#include "chain/joins.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "kern/chunked.h"

enum { MOST_BLOCK = 512 };  // components that mix whose rounding is followed

dpcri_chunk_states dpcri_joint_ends(const dpcri_flow *f, const dpcri_joint *j) {
    const int64_t last = (j->first + j->chunk - 1) * f->z_step + j->row * f->z_row;
    return (dpcri_chunk_states){dpcri_at(f, f->z, last), j->chunk * f->z_step, 1};
}

// I: an integer of T's size, so that what lies side by side is compared in vectors. Nothing is near what is not finite.
#define NEAR(T, I, name, absolute, most)                                                                            \
    static inline bool name##_by(const T *z, int64_t z_step, int64_t z_each, const T *s, int64_t s_step,            \
                                 int64_t s_each, int64_t count, int64_t w, T bound) {                               \
        I near = -1;                                                                                                \
        for (int64_t i = 0; i < w; i++)                                                                             \
            for (int64_t c = 0; c < count; c++) {                                                                   \
                const T want = s[c * s_step + i * s_each], size = absolute(want) < most ? absolute(want) : most;    \
                near &= absolute(z[c * z_step + i * z_each] - want) <= bound * size ? -1 : 0;                       \
            }                                                                                                       \
        return near != 0;                                                                                           \
    }                                                                                                               \
    static bool name(const dpcri_chunk_states *z, const dpcri_chunk_states *s, int64_t count, int64_t w, T bound) { \
        if (z->step == 1 && s->step == 1) return name##_by(z->x, 1, z->each, s->x, 1, s->each, count, w, bound);    \
        return name##_by(z->x, z->step, z->each, s->x, s->step, s->each, count, w, bound);                          \
    }
NEAR(float, int32_t, near_f32, fabsf, FLT_MAX)
NEAR(double, int64_t, near_f64, fabs, DBL_MAX)
#undef NEAR

// The float's bound is less by more than the comparison rounds by.
bool dpcri_states_near(dpcr_dtype dtype, const dpcri_chunk_states *z, const dpcri_chunk_states *want, int64_t count,
                       int64_t w, double bound) {
    const float less = (float)(bound * (1 - 4 * (double)FLT_EPSILON));
    return dtype == DPCR_F64 ? near_f64(z, want, count, w, bound) : near_f32(z, want, count, w, less);
}

bool dpcri_joins_at_once(const dpcri_flow *f, const dpcri_joint *j) {
    if ((f->z == f->b && !f->lost) || (f->dtype != DPCR_F32 && f->dtype != DPCR_F64)) return true;
    return dpcri_states_near(f->dtype, &j->end, &j->next, j->count, f->w, DPCRI_JOINS(f->size)) ||
           dpcri_watch_stopped(f->watch);  // to ask takes a clock
}

double dpcri_joins_least(size_t size) {
    volatile float half = FLT_MIN;
    half *= 0.5f;
    const double normal = size == 8 ? DBL_MIN : (double)FLT_MIN;
    return half == 0 ? normal : normal * (size == 8 ? DBL_EPSILON : (double)FLT_EPSILON);
}

// The transitions' values that make component i of op(A) x, of which x's block has k from `first` on.
static double entry(const dpcri_flow *f, const void *a, int64_t first, int64_t k, int64_t i, int64_t l) {
    switch (f->form) {
        case DPCR_ZERO: return 0;
        case DPCR_IDENTITY: return 1;
        case DPCR_SCALAR: return dpcri_number(f, a, 0);
        case DPCR_DIAGONAL: return dpcri_number(f, a, first);
        default: return dpcri_number(f, a, first * k + (f->transposed ? l * k + i : i * k + l));
    }
}

// Component first + l after step m, or of what goes out after it, as the sum of what it is made of: of sizes in *terms,
// and, of d in the place of the state before, without b.
static double sum_of(const dpcri_flow *f, const dpcri_joint *j, int64_t m, int64_t first, int64_t k, int64_t l,
                     const double *d, double *terms) {
    const void *const z = dpcri_at(f, f->z, m * f->z_step + j->row * f->z_row);
    const void *const z0 = f->z0 ? dpcri_at(f, f->z0, j->row * f->z0_row) : NULL;
    const void *const x = j->goes_out ? z : m > 0 ? dpcri_at(f, z, -f->z_step) : z0;
    const void *const a = dpcri_at(f, f->a, (m + j->goes_out) * f->a_step + j->row * f->a_row);
    double sum = 0;
    *terms = j->goes_out ? 0 : fabs(dpcri_number(f, f->b, m * f->b_step + j->row * f->b_row + first + l));
    for (int64_t q = 0; x && q < k; q++) {
        const double value = entry(f, a, first, k, l, q);
        *terms += fabs(value) * fabs(dpcri_number(f, x, first + q));
        if (d) sum += value * d[q];
    }
    return sum;
}

double dpcri_joins_terms(const dpcri_flow *f, int64_t m, int64_t row, int64_t i) {
    const int64_t k = dpcri_joins_block(f);
    const dpcri_joint joint = {.row = row};
    double terms;
    sum_of(f, &joint, m, i / k * k, k, i % k, NULL, &terms);
    return terms;
}

// How far rounding leads each component of a block's end in chunk c from where it would be: disturbances of eps times
// the terms of each sum, of either sign, carried on by the chunk's own transitions. A state
// that shrinks with all that it came from has one that is small beside it; a sum that comes near zero has that of its
// terms. Of two, the larger: one alone may come near zero.
static void disturb(const dpcri_flow *f, const dpcri_joint *j, int64_t c, int64_t first, int64_t k, double *size) {
    const double eps = f->size == 8 ? DBL_EPSILON : (double)FLT_EPSILON;
    memset(size, 0, (size_t)k * sizeof *size);
    for (uint32_t sign = 1; sign <= 2; sign++) {
        double d[MOST_BLOCK] = {0}, next[MOST_BLOCK];
        uint32_t draw = sign;
        for (int64_t m = j->first + c * j->chunk; m < j->first + (c + 1) * j->chunk; m++) {
            for (int64_t l = 0; l < k; l++) {
                double terms;
                const double sum = sum_of(f, j, m, first, k, l, d, &terms);
                draw = draw * 1664525u + 1013904223u;
                next[l] = sum + (draw >> 31 ? -1 : 1) * eps * terms;
            }
            memcpy(d, next, (size_t)k * sizeof *d);
        }
        for (int64_t l = 0; l < k; l++) size[l] = fmax(size[l], fabs(d[l]));
    }
}

double dpcri_joins_disturbed(const dpcri_flow *f, int64_t m, int64_t n, int64_t row, int64_t i) {
    const int64_t k = dpcri_joins_block(f);
    const dpcri_joint joint = {.first = m - n + 1, .chunk = n, .row = row};
    double size[MOST_BLOCK];
    if (k > MOST_BLOCK) return 0;
    disturb(f, &joint, 0, i / k * k, k, size);
    return size[i % k];
}

bool dpcri_joins(const dpcri_flow *f, const dpcri_joint *j, int64_t c) {
    const double products = 4096;  // round by so many times as much as the loop
    const double bound = DPCRI_JOINS(f->size);
    const int64_t k = dpcri_joins_block(f);
    dpcri_joint one = *j;
    one.first += c * j->chunk, one.count = 1;
    one.end.x = dpcri_at(f, j->end.x, c * j->end.step);
    one.next.x = dpcri_at(f, j->next.x, c * j->next.step);
    if (dpcri_joins_at_once(f, &one)) return true;
    int64_t block = -1;  // whose disturbances are known
    double disturbed[MOST_BLOCK];
    for (int64_t i = 0; i < f->w; i++) {
        const double want = dpcri_number(f, one.next.x, i * j->next.each),
                     z = dpcri_number(f, one.end.x, i * j->end.each);
        const double off = fabs(z - want);
        if (off <= bound * fabs(want)) continue;
        if (!isfinite(z)) return false;
        const int64_t first = i / k * k;
        double terms;
        sum_of(f, j, j->first + (c + 1) * j->chunk - 1, first, k, i - first, NULL, &terms);
        if (off <= bound * terms) continue;
        if (off <= products * dpcri_joins_least(f->size)) continue;
        if (k > MOST_BLOCK) return false;  // in doubt it does not join
        if (first != block) disturb(f, j, c, first, k, disturbed);
        block = first;
        if (!(off <= products * disturbed[i - first])) return false;
    }
    return true;
}
