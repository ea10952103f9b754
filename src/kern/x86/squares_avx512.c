// SPDX-License-Identifier: MIT
#include "kern/squares.h"

#include "kern/beside.h"
#include "kern/simd.h"
#include "kern/transpose.h"

// Sixteen places of a vector.
#define PLACES(...) ((__m512i)(vfi){__VA_ARGS__})

DPCRI_INLINE vf pick(vf a, __m512i places) { return (vf)_mm512_permutexvar_ps(places, (__m512)a); }

#define T float
#define V vf
#define VV(name) vf_##name
#define K(name) name##_f32
#define LANES 16
#include "kern/fours.inc"
#undef T
#undef V
#undef VV
#undef K
#undef LANES

// ---- w = 8: pairs of chains. Order of sums as wide_apply and wide_apply_t of linear.inc. ----

DPCRI_INLINE vf halves(const float *low, const float *high) { return (vf)vd_pair(low, high); }

// Sums along the rows of A x, x in both halves: row i in places 4 (i mod 4) + i / 4 * 2 and the next, to be added.
DPCRI_INLINE vf eights_rows(const float *a, vf x) {
    vd p[4], s[2];
    DPCRI_UNROLL_ALL
    for (int i = 0; i < 4; i++) p[i] = (vd)vf_fma(vf_load(a + 16 * i), x, vf_set(0));
    DPCRI_UNROLL_ALL
    for (int i = 0; i < 2; i++)
        s[i] = (vd)((vf)vd_quarters_02(p[2 * i], p[2 * i + 1]) + (vf)vd_quarters_13(p[2 * i], p[2 * i + 1]));
    return (vf)vd_even(s[0], s[1]) + (vf)vd_odd(s[0], s[1]);
}

// The new states [y of the first | y of the second].
DPCRI_INLINE vf eights_step(const float *a0, const float *a1, const float *r0, const float *r1, const vf *x) {
    const vf t0 = eights_rows(a0, x[0]), t1 = eights_rows(a1, x[1]);
    // Place 4 i + j: rows i and i + 4 of the first, of the second.
    const vf sums = __builtin_shufflevector(t0, t1, 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30) +
                    __builtin_shufflevector(t0, t1, 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31);
    const vf right = pick(halves(r0, r1), PLACES(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    return right + sums;
}

// Components 2 k and 2 k + 1 of the first, or the second, of [x | x], each along half a vector.
DPCRI_INLINE vf two_components(vf x, const int second, const int k) {
    const int i = 8 * second + 2 * k, j = i + 1;
    return pick(x, PLACES(i, i, i, i, i, i, i, i, j, j, j, j, j, j, j, j));
}

// r + A^T x of one of the two: [p_0 + p_1 | p_2 + p_3].
DPCRI_INLINE vd eights_columns(const float *a, const float *r, vf x, const int second) {
    const vf right = (vf)_mm512_maskz_loadu_ps(0x00ff, r);
    const vf p0 = vf_fma(vf_load(a), two_components(x, second, 0), right);
    const vf p2 = vf_fma(vf_load(a + 16), two_components(x, second, 1), vf_set(0));
    const vd p01 = (vd)vf_fma(vf_load(a + 32), two_components(x, second, 2), p0);
    const vd p23 = (vd)vf_fma(vf_load(a + 48), two_components(x, second, 3), p2);
    return (vd)((vf)__builtin_shufflevector(p01, p23, 0, 1, 2, 3, 8, 9, 10, 11) +
                (vf)__builtin_shufflevector(p01, p23, 4, 5, 6, 7, 12, 13, 14, 15));
}

// Component i of the first, of the second chain: from place 4 (i mod 4) + i / 4, and 2 further on, into both halves.
DPCRI_INLINE void eights_spread(vf y, vf *x) {
    x[0] = pick(y, PLACES(0, 4, 8, 12, 1, 5, 9, 13, 0, 4, 8, 12, 1, 5, 9, 13));
    x[1] = pick(y, PLACES(2, 6, 10, 14, 3, 7, 11, 15, 2, 6, 10, 14, 3, 7, 11, 15));
}

DPCRI_INLINE void eights_serial(const dpcri_span *s, bool transposed, const bool whole, const bool far, const int pairs,
                                int64_t q) {
    dpcri_besides p = dpcri_besides_of(s, q, 2 * pairs, sizeof(float));
    vf x[4][2];  // forward the states, each in both halves; transposed [x | x] of both
    int64_t left = dpcri_besides_begin(s, &p, whole, 2 * pairs, 8 * sizeof(float));
    DPCRI_UNROLL_ALL
    for (int g = 0; g < pairs; g++) {
        const float *const x0 = dpcri_start_of(s, q, 2 * g, sizeof(float)), *const x1 = dpcri_start_of(s, q, 2 * g + 1,
                                                                                                       sizeof(float));
        x[g][0] = transposed ? halves(x0, x1) : halves(x0, x0);
        x[g][1] = halves(x1, x1);
    }
    enum { AHEAD_BYTES = 4096 };
    const int matrices = pairs * 512, states = pairs * 64;
    for (; left > 0; left--) {
        if (far) {
            dpcri_beside_fetch(&p.a, whole, AHEAD_BYTES / matrices, matrices);
            dpcri_beside_fetch(&p.r, whole, AHEAD_BYTES / matrices, states);
        }
        DPCRI_UNROLL_ALL
        for (int g = 0; g < pairs; g++) {
            const float *const a0 = dpcri_place(&p.a, whole, 2 * g), *const a1 = dpcri_place(&p.a, whole, 2 * g + 1);
            const float *const r0 = dpcri_place(&p.r, whole, 2 * g), *const r1 = dpcri_place(&p.r, whole, 2 * g + 1);
            float *const y0 = dpcri_place(&p.y, whole, 2 * g), *const y1 = dpcri_place(&p.y, whole, 2 * g + 1);
            if (transposed) {
                const vd t0 = eights_columns(a0, r0, x[g][0], 0), t1 = eights_columns(a1, r1, x[g][0], 1);
                x[g][0] = (vf)__builtin_shufflevector(t0, t1, 0, 1, 2, 3, 8, 9, 10, 11) +
                          (vf)__builtin_shufflevector(t0, t1, 4, 5, 6, 7, 12, 13, 14, 15);
                vd_unpair(y0, y1, (vd)x[g][0]);
            } else {
                eights_spread(eights_step(a0, a1, r0, r1, x[g]), x[g]);
                _mm256_storeu_ps(y0, _mm512_castps512_ps256((__m512)x[g][0]));
                _mm256_storeu_ps(y1, _mm512_castps512_ps256((__m512)x[g][1]));
            }
        }
        dpcri_besides_step(&p, whole);
    }
}

// Those whose numbers memory has and lie one after another. Called, so that the loops that ask for nothing keep their
// registers.
#define FAR(name, whole, pairs)                                               \
    DPCRI_CALLED void name(const dpcri_span *s, bool transposed, int64_t q) { \
        if (transposed)                                                       \
            eights_serial(s, true, whole, true, pairs, q);                    \
        else                                                                  \
            eights_serial(s, false, whole, true, pairs, q);                   \
    }
FAR(far_eights, true, 4)
FAR(far_fours, false, 2)
#undef FAR

// A stand-in shares its pair with the chain that it stands for, so y = r is read before either writes.
DPCRI_INLINE void squares_serial(const dpcri_span *s, bool transposed) {
    int64_t q = 0;
    if (s->far && s->a_row == 64 && s->r_row == 8) {
        for (; q + 8 <= s->rows; q += 8) far_eights(s, transposed, q);
        for (; q + 2 < s->rows; q += 4) far_fours(s, transposed, q);
    }
    for (; q + 8 <= s->rows; q += 8) eights_serial(s, transposed, true, false, 4, q);
    for (; q + 2 < s->rows; q += 4) eights_serial(s, transposed, false, false, 2, q);
    if (q < s->rows) eights_serial(s, transposed, false, false, 1, q);
}

void dpcri_squares_serial_avx512(const dpcri_span *span, bool transposed) {
    if (transposed)
        squares_serial(span, true);
    else
        squares_serial(span, false);
}

// ---- summaries: four chunks, a quarter of a vector each ----
//
// The product grows by its right factor, N <- N A. From the last step to the first it is N_l = A_{n-1} ... A_{l+1}, and
// v = b_{n-1} + sum N_l b_l. The transposed chain's goes from the first step to the last, N = A_0 ... A_l, and
// v' = v' A_l + b_l' is one more row.

// N of four chunks, row i in n[i], and, transposed, v' in v; forward the terms of v, not yet added up along the rows.
typedef struct fours {
    vf n[4], terms[4], v;
} fours;

// Row <- row A + next.
DPCRI_INLINE vf fours_product(vf row, const vf rows[4], const vf *next) {
    const vf first = spread_entry_f32(row, 0), even = next ? vf_fma(first, rows[0], *next) : first * rows[0];
    const vf odd = vf_fma(spread_entry_f32(row, 3), rows[3], spread_entry_f32(row, 1) * rows[1]);
    return vf_fma(spread_entry_f32(row, 2), rows[2], even) + odd;
}

DPCRI_INLINE void fours_step(bool transposed, const dpcri_beside *a, const dpcri_beside *b, const bool whole,
                             const int first, fours *g) {
    vf rows[4];
    const vf right = fours_load_f32(b, whole, first, 4, 0);
    fours_rows_f32(4, a, whole, first, 0, rows);
    if (transposed) g->v = fours_product(g->v, rows, &right);
    DPCRI_UNROLL_ALL
    for (int i = 0; i < 4; i++) {
        if (!transposed) g->terms[i] = vf_fma(g->n[i], right, g->terms[i]);
        g->n[i] = fours_product(g->n[i], rows, NULL);
    }
}

DPCRI_INLINE void fours_summary(const dpcri_summary *s, bool transposed, const bool whole, int64_t first) {
    const int groups = whole ? 2 : 1;
    const int64_t way = transposed ? 1 : -1;
    dpcri_beside a = dpcri_beside_of(s->a, s->a_step, s->a_row, first, s->count, 4 * groups, sizeof(float));
    dpcri_beside b = dpcri_beside_of(s->b, s->b_step, s->b_row, first, s->count, 4 * groups, sizeof(float));
    fours group[2];
    if (!transposed) {
        dpcri_beside_advance(&a, whole, s->n - 1);
        dpcri_beside_advance(&b, whole, s->n - 1);
    }
    DPCRI_UNROLL_ALL
    for (int g = 0; g < groups; g++) {
        fours_rows_f32(4, &a, whole, 4 * g, 0, group[g].n);
        group[g].v = fours_load_f32(&b, whole, 4 * g, 4, 0);
        DPCRI_UNROLL_ALL
        for (int i = 0; i < 4; i++) group[g].terms[i] = vf_set(0);
    }
    for (int64_t i = 1; i < s->n; i++) {
        dpcri_beside_advance(&a, whole, way);
        dpcri_beside_advance(&b, whole, way);
        DPCRI_UNROLL_ALL
        for (int g = 0; g < groups; g++) fours_step(transposed, &a, &b, whole, 4 * g, &group[g]);
    }
    DPCRI_UNROLL_ALL
    for (int g = 0; g < groups; g++) {
        fours *const one = &group[g];
        if (!transposed) {
            fours_columns_f32(one->terms);
            one->v = one->v + (one->terms[0] + one->terms[1] + one->terms[2] + one->terms[3]);
        }
        float m[4][16], v[16];
        for (int i = 0; i < 4; i++) vf_store(m[i], one->n[i]);
        vf_store(v, one->v);
        for (int c = 0; c < 4 && first + 4 * g + c < s->count; c++) {
            const int64_t number = first + 4 * g + c;
            for (int i = 0; i < 4; i++) memcpy((float *)s->m + number * 16 + 4 * i, m[i] + 4 * c, 4 * sizeof(float));
            memcpy((float *)s->v + number * 4, v + 4 * c, 4 * sizeof(float));
        }
    }
}

// w = 8: columns 4 h .. 4 h + 3 of row i in n[i][h]; v, or v', in n[8], forward b_{n-1} until the terms are added up.
// In memory: the sums of the next N fill half of the registers.
typedef struct eights {
    vf n[9][2], terms[8];
} eights;

DPCRI_INLINE void eights_product(bool transposed, const dpcri_beside *a, int64_t ahead, const dpcri_beside *b,
                                 const bool whole, eights *g) {
    const int all = transposed ? 9 : 8;
    vf next[9][2];
    const vf right[2] = {fours_load_f32(b, whole, 0, 4, 0), fours_load_f32(b, whole, 0, 4, 4)};
    DPCRI_UNROLL_ALL
    for (int i = 0; i < all; i++) next[i][0] = next[i][1] = vf_set(0);
    if (transposed) {
        next[8][0] = right[0], next[8][1] = right[1];
    } else {
        DPCRI_UNROLL_ALL
        for (int i = 0; i < 8; i++)
            g->terms[i] = vf_fma(g->n[i][1], right[1], vf_fma(g->n[i][0], right[0], g->terms[i]));
    }
    for (int64_t half = 0; half < 2; half++) {
        DPCRI_UNROLL_ALL
        for (int pair = 0; pair < 2; pair++) {
            vf rows[4];
            fours_rows_f32(4, a, whole, 0, 32 * half + 16 * pair, rows);
            DPCRI_UNROLL_ALL
            for (int c = 0; c < 4; c++)  // lines of four chunks are no stream that the processor fetches
                __builtin_prefetch(
                    (const void *)((uintptr_t)((const float *)dpcri_place(a, whole, c) + 32 * half + 16 * pair) +
                                   (uintptr_t)ahead));
            DPCRI_UNROLL_ALL
            for (int k = 0; k < 2; k++) {
                DPCRI_UNROLL_ALL
                for (int i = 0; i < all; i++) {
                    const vf entry = spread_entry_f32(g->n[i][half], 2 * pair + k);
                    next[i][0] = vf_fma(entry, rows[2 * k], next[i][0]);
                    next[i][1] = vf_fma(entry, rows[2 * k + 1], next[i][1]);
                }
            }
        }
    }
    DPCRI_UNROLL_ALL
    for (int i = 0; i < all; i++) g->n[i][0] = next[i][0], g->n[i][1] = next[i][1];
}

// Chunks first .. first + 3, of which those up to the last one count.
DPCRI_INLINE void eights_summary(const dpcri_summary *s, bool transposed, const bool whole, int64_t first) {
    const int64_t way = transposed ? 1 : -1;
    dpcri_beside a = dpcri_beside_of(s->a, s->a_step, s->a_row, first, s->count, 4, sizeof(float));
    dpcri_beside b = dpcri_beside_of(s->b, s->b_step, s->b_row, first, s->count, 4, sizeof(float));
    eights g;
    if (!transposed) {
        dpcri_beside_advance(&a, whole, s->n - 1);
        dpcri_beside_advance(&b, whole, s->n - 1);
    }
    for (int i = 0; i < 4; i++) {
        vf rows[4];
        fours_rows_f32(4, &a, whole, 0, 16 * i, rows);
        for (int r = 0; r < 2; r++) g.n[2 * i + r][0] = rows[2 * r], g.n[2 * i + r][1] = rows[2 * r + 1];
    }
    g.n[8][0] = fours_load_f32(&b, whole, 0, 4, 0), g.n[8][1] = fours_load_f32(&b, whole, 0, 4, 4);
    for (int i = 0; i < 8; i++) g.terms[i] = vf_set(0);
    // Known when it is compiled, the distance made the transposed product a quarter slower (gcc 12).
    const int64_t ahead = s->ahead * way * a.step;
    for (int64_t i = 1; i < s->n; i++) {
        dpcri_beside_advance(&a, whole, way);
        dpcri_beside_advance(&b, whole, way);
        eights_product(transposed, &a, ahead, &b, whole, &g);
    }
    for (int h = 0; h < 2 && !transposed; h++) {
        vf *const t = g.terms + 4 * h;
        fours_columns_f32(t);
        g.n[8][h] = g.n[8][h] + (t[0] + t[1] + t[2] + t[3]);
    }
    const float *const n = (const float *)g.n;
    for (int c = 0; c < 4 && first + c < s->count; c++)
        for (int i = 0; i < 9; i++) {
            float *const row = i < 8 ? (float *)s->m + (first + c) * 64 + 8 * i : (float *)s->v + (first + c) * 8;
            memcpy(row, n + 32 * i + 4 * c, 4 * sizeof(float));
            memcpy(row + 4, n + 32 * i + 16 + 4 * c, 4 * sizeof(float));
        }
}

DPCRI_INLINE void summary(const dpcri_summary *s, const int w, bool transposed) {
    int64_t c = 0;
    if (w == 4) {
        for (; c + 8 <= s->count; c += 8) fours_summary(s, transposed, true, c);
        for (; c < s->count; c += 4) fours_summary(s, transposed, false, c);
        return;
    }
    for (; c + 4 <= s->count; c += 4) eights_summary(s, transposed, true, c);
    for (; c < s->count; c += 4) eights_summary(s, transposed, false, c);
}

void dpcri_summary_w4_avx512(const dpcri_summary *s) { summary(s, 4, false); }
void dpcri_summary_w4_t_avx512(const dpcri_summary *s) { summary(s, 4, true); }
void dpcri_summary_w8_avx512(const dpcri_summary *s) { summary(s, 8, false); }
void dpcri_summary_w8_t_avx512(const dpcri_summary *s) { summary(s, 8, true); }
