// SPDX-License-Identifier: MIT
// The filter kernel of filter.h at one instruction set level: included once by each filter_LEVEL.c, whose flags choose
// the level. SIDE vectors go side by side, so that one's latency (two multiply-adds a step) is the others' work.
#include "kern/filter.h"
#include "kern/interleave.h"
#include "kern/simd.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum { SIDE = 4, TILE = 64, AHEAD = 128, MOST = SIDE * VD };  // MOST lanes at once; a call of more goes in turns
_Static_assert((int)MOST <= (int)DPCRI_FILTER_LANES, "a call holds a whole turn");

typedef float vn __attribute__((vector_size(VD * 4)));  // as many floats as a vector has doubles

typedef struct tile {
    vd v[TILE][SIDE];
} tile;

typedef struct turn {
    const dpcri_filter_run *run;
    const char *x[MOST];  // the lanes' places; past the last one, the first one's, and nowhere to write
    char *y[MOST];
    int64_t lanes, used;  // lanes, and vectors of them
    int64_t head;         // samples before the first whole cache line of every lane's y; negative: no streaming
} turn;

DPCRI_INLINE vd load_samples(const char *p, const bool narrow) {
    if (!narrow) return vd_load((const double *)(const void *)p);
    vn v;
    memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, vd);
}

// Past the caches, a whole line at once.
DPCRI_INLINE void stream_samples(char *p, vd v) {
#if DPCRI_VECTOR_BYTES == 64
    _mm512_stream_pd((double *)(void *)p, (__m512d)v);
#else
    memcpy(p, &v, sizeof v);
#endif
}

DPCRI_INLINE void store_samples(char *p, vd v, const bool narrow) {
    if (narrow) {
        const vn n = __builtin_convertvector(v, vn);
        memcpy(p, &n, sizeof n);
    } else {
        memcpy(p, &v, sizeof v);
    }
}

// Squares of VD lanes by VD steps, turned: rounds of zips.
DPCRI_INLINE void transpose(vd r[VD]) {
    UNROLL
    for (int round = 1; round < VD; round *= 2) {
        vd t[VD];
        UNROLL
        for (int i = 0; i < VD / 2; i++) vd_zip(r[i], r[i + VD / 2], &t[2 * i], &t[2 * i + 1]);
        UNROLL
        for (int i = 0; i < VD; i++) r[i] = t[i];
    }
}

DPCRI_INLINE double *element(tile *t, int64_t k, int64_t lane) { return (double *)(void *)t->v[k] + lane; }

// Samples [at, at + count) of all lanes.
DPCRI_INLINE void load_tile(const turn *c, tile *t, int64_t at, int64_t count, const bool narrow) {
    const int64_t bytes = narrow ? 4 : 8, stride = c->run->x_stride * bytes;
    const int64_t whole = stride == bytes ? count / VD * VD : 0;
    for (int64_t g = 0; g < c->used; g++) {
        const char *const *x = c->x + g * VD;
        for (int64_t k = 0; k < whole; k += VD) {
            vd r[VD];
            UNROLL
            for (int i = 0; i < VD; i++) {
                r[i] = load_samples(x[i] + (at + k) * bytes, narrow);
                if (!narrow || k % (2 * VD) == 0) __builtin_prefetch(x[i] + (at + k + AHEAD) * bytes);
            }
            transpose(r);
            UNROLL
            for (int i = 0; i < VD; i++) t->v[k + i][g] = r[i];
        }
        for (int64_t i = 0; i < VD; i++)
            for (int64_t k = whole; k < count; k++) {
                const char *p = x[i] + (at + k) * stride;
                *element(t, k, g * VD + i) =
                    narrow ? (double)*(const float *)(const void *)p : *(const double *)(const void *)p;
            }
    }
}

DPCRI_INLINE void store_tile(const turn *c, tile *t, int64_t at, int64_t count, const bool narrow) {
    const bool stream = !narrow && c->head >= 0 && (at - c->head) % VD == 0;
    const int64_t bytes = narrow ? 4 : 8, stride = c->run->y_stride * bytes;
    for (int64_t g = 0; g < c->used; g++) {
        char *const *y = c->y + g * VD;
        const bool squares = stride == bytes && (g + 1) * VD <= c->lanes;
        const int64_t whole = squares ? count / VD * VD : 0;
        for (int64_t k = 0; k < whole; k += VD) {
            vd r[VD];
            UNROLL
            for (int i = 0; i < VD; i++) r[i] = t->v[k + i][g];
            transpose(r);
            if (stream) {
                UNROLL
                for (int i = 0; i < VD; i++) stream_samples(y[i] + (at + k) * bytes, r[i]);
            } else {
                UNROLL
                for (int i = 0; i < VD; i++) store_samples(y[i] + (at + k) * bytes, r[i], narrow);
            }
        }
        for (int64_t i = 0; i < VD && g * VD + i < c->lanes; i++)
            for (int64_t k = whole; k < count; k++) {
                char *p = y[i] + (at + k) * stride;
                const double v = *element(t, k, g * VD + i);
                if (narrow)
                    *(float *)(void *)p = (float)v;
                else
                    *(double *)(void *)p = v;
            }
    }
}

static void biquad(tile *t, int64_t count, const double *b, const double *a, vd (*state)[SIDE]) {
    const vd b0 = vd_set(b[0]), b1 = vd_set(b[1]), b2 = vd_set(b[2]), a1 = vd_set(-a[1]), a2 = vd_set(-a[2]);
    vd p[SIDE], q[SIDE];
    UNROLL
    for (int g = 0; g < SIDE; g++) p[g] = state[0][g], q[g] = state[1][g];
    for (int64_t k = 0; k < count; k++) {
        UNROLL
        for (int g = 0; g < SIDE; g++) {
            const vd x = t->v[k][g], y = vd_fma(b0, x, p[g]);
            p[g] = vd_fma(a1, y, vd_fma(b1, x, q[g]));
            q[g] = vd_fma(a2, y, b2 * x);
            t->v[k][g] = y;
        }
    }
    UNROLL
    for (int g = 0; g < SIDE; g++) state[0][g] = p[g], state[1][g] = q[g];
}

static void biquad_back(tile *t, int64_t count, const double *b, const double *a, vd (*state)[SIDE]) {
    const vd b0 = vd_set(b[0]), b1 = vd_set(b[1]), b2 = vd_set(b[2]), a1 = vd_set(-a[1]), a2 = vd_set(-a[2]);
    vd p[SIDE], q[SIDE];
    UNROLL
    for (int g = 0; g < SIDE; g++) p[g] = state[0][g], q[g] = state[1][g];
    for (int64_t k = count - 1; k >= 0; k--) {
        UNROLL
        for (int g = 0; g < SIDE; g++) {
            const vd w = vd_fma(a1, p[g], vd_fma(a2, q[g], t->v[k][g]));
            t->v[k][g] = vd_fma(b0, w, vd_fma(b1, p[g], b2 * q[g]));
            q[g] = p[g];
            p[g] = w;
        }
    }
    UNROLL
    for (int g = 0; g < SIDE; g++) state[0][g] = p[g], state[1][g] = q[g];
}

// Any order; a NULL: no feedback. Of the first `used` vectors alone.
DPCRI_INLINE void section(tile *t, int64_t count, int64_t order, const double *b, const double *a, vd (*state)[SIDE],
                          const int used) {
    for (int64_t k = 0; k < count; k++) {
        vd x[SIDE], y[SIDE];
        UNROLL
        for (int g = 0; g < used; g++) {
            x[g] = t->v[k][g];
            t->v[k][g] = y[g] = order ? vd_fma(vd_set(b[0]), x[g], state[0][g]) : vd_set(b[0]) * x[g];
        }
        for (int64_t i = 1; i < order; i++) {
            const vd bi = vd_set(b[i]), ai = vd_set(a ? -a[i] : 0);
            UNROLL
            for (int g = 0; g < used; g++) {
                const vd next = vd_fma(bi, x[g], state[i][g]);
                state[i - 1][g] = a ? vd_fma(ai, y[g], next) : next;
            }
        }
        UNROLL
        for (int g = 0; g < used && order; g++) {
            const vd next = vd_set(b[order]) * x[g];
            state[order - 1][g] = a ? vd_fma(vd_set(-a[order]), y[g], next) : next;
        }
    }
}

DPCRI_INLINE void section_back(tile *t, int64_t count, int64_t order, const double *b, const double *a,
                               vd (*state)[SIDE], const int used) {
    for (int64_t k = count - 1; k >= 0; k--) {
        vd w[SIDE], y[SIDE];
        UNROLL
        for (int g = 0; g < used; g++) w[g] = t->v[k][g], y[g] = (vd){0};
        for (int64_t i = order; i > 0; i--) {
            const vd bi = vd_set(b[i]), ai = vd_set(a ? -a[i] : 0);
            UNROLL
            for (int g = 0; g < used; g++) {
                const vd s = state[i - 1][g];
                if (a) w[g] = vd_fma(ai, s, w[g]);
                y[g] = vd_fma(bi, s, y[g]);
                if (i < order) state[i][g] = s;
            }
        }
        UNROLL
        for (int g = 0; g < used; g++) {
            if (order) state[0][g] = w[g];
            t->v[k][g] = vd_fma(vd_set(b[0]), w[g], y[g]);
        }
    }
}

DPCRI_INLINE void section_of(tile *t, int64_t count, const dpcri_filter_run *r, int64_t s, vd (*state)[SIDE],
                             const int used) {
    const double *b = r->b + s * (r->order + 1), *a = r->open ? NULL : r->a + s * (r->order + 1);
    if (r->backward && a)
        section_back(t, count, r->order, b, a, state, used);
    else if (r->backward)
        section_back(t, count, r->order, b, NULL, state, used);
    else if (a)
        section(t, count, r->order, b, a, state, used);
    else
        section(t, count, r->order, b, NULL, state, used);
}

static void sections(const dpcri_filter_run *r, tile *t, int64_t count, int64_t used, vd (*state)[SIDE]) {
    for (int64_t i = 0; i < r->sections; i++) {
        const int64_t s = r->backward ? r->sections - 1 - i : i, at = s * (r->order + 1);
        vd(*own)[SIDE] = state + s * r->order;
        if (r->order == 2 && !r->open)
            (r->backward ? biquad_back : biquad)(t, count, r->b + at, r->a + at, own);
        else if (used == 1)
            section_of(t, count, r, s, own, 1);
        else if (used == 2)
            section_of(t, count, r, s, own, 2);
        else
            section_of(t, count, r, s, own, SIDE);
    }
}

// The first tile is short where tiles then begin at whole lines.
DPCRI_INLINE void run_tiles(const turn *c, vd (*state)[SIDE], const bool narrow_x, const bool narrow_y) {
    const dpcri_filter_run *r = c->run;
    const int64_t odd = c->head < 0 ? 0 : r->backward ? (r->steps - c->head) % VD : c->head;
    tile t = {0};
    for (int64_t done = 0, count; done < r->steps; done += count) {
        count = done == 0 && odd > 0 ? odd : TILE;
        if (count > r->steps - done) count = r->steps - done;
        const int64_t at = r->backward ? r->steps - done - count : done;
        load_tile(c, &t, at, count, narrow_x);
        sections(r, &t, count, c->used, state);
        if (r->y) store_tile(c, &t, at, count, narrow_y);
    }
}

// Streaming wants whole lines: vectors of 64 bytes, and lanes that lie alike in their lines.
static int64_t head_of(const turn *c) {
    const dpcri_filter_run *r = c->run;
    if (!r->stream || !r->y || DPCRI_VECTOR_BYTES != 64 || r->y_dtype != DPCR_F64 || r->y_stride != 1) return -1;
    const uintptr_t phase = (uintptr_t)c->y[0] % 64;
    for (int64_t i = 1; i < c->lanes; i++)
        if ((uintptr_t)c->y[i] % 64 != phase) return -1;
    return phase % 8 ? -1 : (int64_t)((64 - phase) % 64 / 8);
}

static void run_turn(const dpcri_filter_run *r, int64_t first, int64_t lanes) {
    turn c = {.run = r, .lanes = lanes, .used = (lanes + VD - 1) / VD};
    vd state[DPCRI_FILTER_STATES][SIDE];
    const int64_t states = r->sections * r->order;
    memset(state, 0, (size_t)states * sizeof *state);
    for (int64_t i = 0; i < MOST; i++) {
        const int64_t lane = first + (i < lanes ? i : 0);
        c.x[i] = r->x[lane];
        c.y[i] = r->y && i < lanes ? r->y[lane] : NULL;
        for (int64_t s = 0; s < states; s++) ((double *)(void *)state[s])[i] = r->state[lane][s];
    }
    c.head = head_of(&c);
    const bool narrow_x = r->x_dtype == DPCR_F32, narrow_y = r->y_dtype == DPCR_F32;
    if (narrow_x && narrow_y)
        run_tiles(&c, state, true, true);
    else if (narrow_x)
        run_tiles(&c, state, true, false);
    else if (narrow_y)
        run_tiles(&c, state, false, true);
    else
        run_tiles(&c, state, false, false);
#if DPCRI_VECTOR_BYTES == 64
    if (c.head >= 0) _mm_sfence();
#endif
    for (int64_t i = 0; i < lanes; i++)
        for (int64_t s = 0; s < states; s++) r->state[first + i][s] = ((double *)(void *)state[s])[i];
}

DPCRI_INLINE int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }

#include "kern/filter_few.h"

void DPCRI_LEVEL(dpcri_filter)(const dpcri_filter_run *r);
void DPCRI_LEVEL(dpcri_filter)(const dpcri_filter_run *r) {
    const int64_t few = few_at_once(r), piece = few && r->lanes > few ? PIECE : r->steps;
    for (int64_t begin = 0; few && begin < r->steps; begin += piece)
        for (int64_t first = 0; first < r->lanes; first += few)
            run_few(r, first, least_of(few, r->lanes - first), begin, least_of(piece, r->steps - begin));
    for (int64_t first = 0; !few && first < r->lanes; first += MOST)
        run_turn(r, first, least_of(MOST, r->lanes - first));
}

#undef UNROLL
