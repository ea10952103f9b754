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

enum {
    MOST_BLOCK = 512,  // components that mix whose rounding is followed
    PRODUCTS = 4096,   // round by so many times as much as the loop
    ROUNDINGS = 64     // what e may be of the loop's own
};

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

// Component first + l after step m, or of what goes out after it, as the sum of what it is made of: of sizes in *terms,
// and, of d in the place of the state before, without b.
static double sum_of(const dpcri_flow *f, const dpcri_joint *j, int64_t m, int64_t first, int64_t k, int64_t l,
                     const double *d, double *terms) {
    const void *const z = dpcri_at(f, f->z, m * f->z_step + j->row * f->z_row);
    const void *const z0 = f->z0 ? dpcri_at(f, f->z0, j->row * f->z0_row) : NULL;
    const int64_t c = j->start.x ? (m - j->first) / j->chunk : 0;
    const bool starts = j->start.x && m > 0 && m == j->first + c * j->chunk;
    const void *const before = starts  ? dpcri_at(f, j->start.x, c * j->start.step)
                               : m > 0 ? dpcri_at(f, z, -f->z_step)
                                       : z0;
    const void *const x = j->goes_out ? z : before;
    const int64_t each = starts && !j->goes_out ? j->start.each : 1;
    const void *const a = dpcri_at(f, f->a, (m + j->goes_out) * f->a_step + j->row * f->a_row);
    double sum = 0;
    *terms = j->goes_out ? 0 : fabs(dpcri_number(f, f->b, m * f->b_step + j->row * f->b_row + first + l));
    for (int64_t q = 0; x && q < k; q++) {
        const double value = dpcri_joins_entry(f, a, first, k, l, q);
        *terms += fabs(value) * fabs(dpcri_number(f, x, (first + q) * each));
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
                draw = dpcri_next_signs(draw);
                next[l] = sum + (draw >> 31 ? -1 : 1) * eps * terms;
            }
            memcpy(d, next, (size_t)k * sizeof *d);
        }
        for (int64_t l = 0; l < k; l++) size[l] = fmax(size[l], fabs(d[l]));
    }
}

bool dpcri_joins(const dpcri_flow *f, const dpcri_joint *j, int64_t c) {
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
        if (off <= PRODUCTS * dpcri_joins_least(f->size)) continue;
        if (k > MOST_BLOCK) return false;  // in doubt it does not join
        if (first != block) disturb(f, j, c, first, k, disturbed);
        block = first;
        if (!(off <= PRODUCTS * disturbed[i - first])) return false;
    }
    return true;
}

bool dpcri_mixes(const dpcri_flow *f) {
    return (f->dtype == DPCR_F32 || f->dtype == DPCR_F64) && dpcri_joins_block(f) > 1;
}

bool dpcri_carries(const dpcri_flow *f) { return dpcri_mixes(f) && (f->z != f->b || f->lost); }

enum { LANES = 8 };  // compared at a time: as many as there are always, so that they are compared in vectors

#define HALVE(T, I, name, absolute)                                                                                \
    static inline bool name##_some(const T *m, int64_t each, int64_t step, int64_t row, int64_t column, int64_t w, \
                                   int64_t k, int64_t count) {                                                     \
        I halve = -1;                                                                                              \
        for (int64_t first = 0; first < w; first += k)                                                             \
            for (int64_t i = 0; i < k; i++) {                                                                      \
                T sum[LANES] = {0};                                                                                \
                const T *at = m + (first * k + i * row) * each;                                                    \
                for (int64_t l = 0; l < k; l++, at += column * each)                                               \
                    for (int64_t q = 0; q < count; q++) sum[q] += absolute(at[q * step]);                          \
                for (int64_t q = 0; q < count; q++) halve &= sum[q] <= (T)0.5 ? -1 : 0;                            \
            }                                                                                                      \
        return halve != 0;                                                                                         \
    }                                                                                                              \
    static bool name(const dpcri_chunk_maps *maps, int64_t w, int64_t k, int64_t count) {                          \
        const int64_t row = maps->transposed ? 1 : k, column = maps->transposed ? k : 1;                           \
        const T *m = maps->m;                                                                                      \
        for (; maps->step == 1 && count >= LANES; count -= LANES, m += LANES)                                      \
            if (!name##_some(m, maps->each, 1, row, column, w, k, LANES)) return false;                            \
        for (; count > 0; count--, m += maps->step)                                                                \
            if (!name##_some(m, maps->each, 0, row, column, w, k, 1)) return false;                                \
        return true;                                                                                               \
    }
HALVE(float, int32_t, halve_f32, fabsf)
HALVE(double, int64_t, halve_f64, fabs)
#undef HALVE

bool dpcri_chunks_halve(const dpcri_flow *f, const dpcri_chunk_maps *maps, int64_t count) {
    const int64_t k = dpcri_joins_block(f);
    return f->size == 8 ? halve_f64(maps, f->w, k, count) : halve_f32(maps, f->w, k, count);
}

// Nothing holds beside what is not finite.
#define HOLDS(T, I, name, absolute)                                                                                    \
    static inline bool name##_some(const T *s, const T *e, int64_t each, int64_t count, int64_t w, int64_t k, T bound, \
                                   T least) {                                                                          \
        I holds = -1;                                                                                                  \
        for (int64_t block = 0; block < w; block += k) {                                                               \
            T most[LANES] = {0};                                                                                       \
            for (int64_t i = block; i < block + k; i++)                                                                \
                for (int64_t q = 0; q < count; q++) {                                                                  \
                    const T size = absolute(s[i * each + q]);                                                          \
                    most[q] = size > most[q] ? size : most[q];                                                         \
                }                                                                                                      \
            for (int64_t q = 0; q < count; q++) most[q] = bound * most[q] + least;                                     \
            for (int64_t i = block; i < block + k; i++)                                                                \
                for (int64_t q = 0; q < count; q++) holds &= absolute(e[i * each + q]) <= most[q] ? -1 : 0;            \
        }                                                                                                              \
        return holds != 0;                                                                                             \
    }                                                                                                                  \
    static bool name(const T *s, const T *e, int64_t each, int64_t count, int64_t w, int64_t k, T bound, T least) {    \
        for (; count >= LANES; count -= LANES, s += LANES, e += LANES)                                                 \
            if (!name##_some(s, e, each, LANES, w, k, bound, least)) return false;                                     \
        for (; count > 0; count--, s++, e++)                                                                           \
            if (!name##_some(s, e, each, 1, w, k, bound, least)) return false;                                         \
        return true;                                                                                                   \
    }
HOLDS(float, int32_t, holds_f32, fabsf)
HOLDS(double, int64_t, holds_f64, fabs)
#undef HOLDS

static bool holds_within(const dpcri_flow *f, const void *s, const void *e, int64_t each, int64_t count, double bound,
                         double least) {
    const int64_t k = dpcri_joins_block(f);
    if (f->size == 8) return holds_f64(s, e, each, count, f->w, k, bound, least);
    return holds_f32(s, e, each, count, f->w, k, (float)bound, (float)least);
}

bool dpcri_carried_holds(const dpcri_flow *f, const void *s, const void *e, int64_t each, int64_t count, double bound) {
    return holds_within(f, s, e, each, count, bound, 0) ||
           holds_within(f, s, e, each, count, bound, PRODUCTS * dpcri_joins_least(f->size));
}

void dpcri_carried_add(const dpcri_flow *f, const void *s, const void *e, int64_t each, void *sum) {
    for (int64_t i = 0; i < f->w; i++) {
        const double of_s = dpcri_number(f, s, i * each), of_e = dpcri_number(f, e, i * each);
        const double both = of_e == 0 ? of_s : of_s + of_e;  // and -0 stays what it is
        if (f->size == 8)
            ((double *)sum)[i * each] = isfinite(both) ? both : of_s;
        else
            ((float *)sum)[i * each] = isfinite((float)both) ? (float)both : (float)of_s;
    }
}

void dpcri_difference(const dpcri_flow *f, const void *end, const void *next, void *difference) {
    for (int64_t i = 0; i < f->w; i++) {
        if (f->size == 8)
            ((double *)difference)[i] = ((const double *)end)[i] - ((const double *)next)[i];
        else
            ((float *)difference)[i] = ((const float *)end)[i] - ((const float *)next)[i];
    }
}

void dpcri_rounding_begin(const dpcri_flow *f, dpcri_chunk_rounding *r, double *room) {
    *r = (dpcri_chunk_rounding){.d = room, .next = room + 2 * f->w, .draw = 1};
    memset(room, 0, (size_t)(DPCRI_ROUNDING_NUMBERS * f->w) * sizeof *room);
}

void dpcri_rounding_take(const dpcri_flow *f, dpcri_chunk_rounding *r, const dpcri_chunk_maps *map, int64_t lo,
                         int64_t hi, int64_t row) {
    const int64_t w = f->w, k = dpcri_joins_block(f), across = map && map->transposed ? k : 1,
                  down = map && map->transposed ? 1 : k;
    const double eps = f->size == 8 ? DBL_EPSILON : (double)FLT_EPSILON;
    for (int64_t first = 0; first < w; first += k) {
        double size = 0;
        for (int64_t m = lo; m < hi; m++)
            for (int64_t i = first; i < first + k; i++) {
                const double z = fabs(dpcri_number(f, f->z, m * f->z_step + row * f->z_row + i));
                size = isfinite(z) && z > size ? z : size;
            }
        for (int64_t i = first; i < first + k; i++) {
            double sums[2] = {0};
            for (int64_t q = 0; q < k && map; q++) {
                const double value = dpcri_number(f, map->m, (first * k + (i - first) * down + q * across) * map->each);
                sums[0] += value * r->d[first + q], sums[1] += value * r->d[w + first + q];
            }
            r->draw = dpcri_next_signs(r->draw);
            r->next[i] = sums[0] + (r->draw >> 31 ? -eps : eps) * size;
            r->next[w + i] = sums[1] + (r->draw >> 30 & 1 ? -eps : eps) * size;
        }
    }
    double *const before = r->d;
    r->d = r->next, r->next = before;
    r->chunks++;
}

bool dpcri_is_rounding(const dpcri_flow *f, const dpcri_chunk_rounding *r, const void *e, int64_t each) {
    const int64_t w = f->w, k = dpcri_joins_block(f);
    for (int64_t first = 0; first < w; first += k) {
        double off = 0, allowed = dpcri_joins_least(f->size);
        for (int64_t i = first; i < first + k; i++) {
            if (!isfinite(dpcri_number(f, e, i * each))) return false;
            off = fmax(off, fabs(dpcri_number(f, e, i * each)));
            allowed = fmax(allowed, fmax(fabs(r->d[i]), fabs(r->d[w + i])));
        }
        if (!(off <= ROUNDINGS * allowed)) return false;
    }
    return true;
}
