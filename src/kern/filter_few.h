// SPDX-License-Identifier: MIT
// Part of filter_level.h: a cascade of biquads on few lanes, its sections in the lanes of vectors. While section s
// takes sample k the next one takes sample k - D, so a step of all sections waits for one section's arithmetic alone,
// which is that of filter_level.h: the same bits, but for which NaN it is. Of L lanes and V vectors of sections, L V go
// side by side; where those are few, D = 2 hides the move between the halves of a vector. docs/math/filter.md, "Few
// channels".

enum { PIPES = 4, PIECE = 4096 };  // vectors; samples of a lane before the next lanes have their turn

DPCRI_INLINE int delay_of(int pipes) { return VD > 2 && pipes <= 2 ? 2 : 1; }

typedef struct cascade {
    const dpcri_filter_run *run;
    int64_t lane, begin, steps;                                // the first lane, and samples, in the run's order
    int64_t behind;                                            // steps from the first section to the last one
    vd b0[PIPES], b1[PIPES], b2[PIPES], a1[PIPES], a2[PIPES];  // [V]: coefficients, those of a negated
    vd p[PIPES], q[PIPES], y[PIPES], z[PIPES];                 // [L][V]: states, what each section gave last, before
    double x[PIPES][TILE];                                     // samples that go in, in the order of the run
    vd out[PIPES][TILE];                                       // of each lane the vector of its last section
} cascade;

// The lanes of `own` moved one on, before them the last of `before`.
DPCRI_INLINE vd vd_push(vd before, vd own) {
#if DPCRI_VECTOR_BYTES == 64
    return __builtin_shufflevector(before, own, 7, 8, 9, 10, 11, 12, 13, 14);
#elif DPCRI_VECTOR_BYTES == 32
    return __builtin_shufflevector(before, own, 3, 4, 5, 6);
#else
    return __builtin_shufflevector(before, own, 1, 2);
#endif
}

DPCRI_INLINE vd vd_where(vdi mask, vd a, vd b) { return (vd)(((vdi)a & mask) | ((vdi)b & ~mask)); }

// Steps [at, at + count) of steps + behind; edge: some sections have no sample there.
DPCRI_INLINE void run_cascade(cascade *c, int64_t at, int64_t count, const int L, const int V, const bool backward,
                              const bool edge) {
    const int D = delay_of(L * V);
    vd p[PIPES], q[PIPES], y[PIPES], z[PIPES], place[PIPES];
    UNROLL
    for (int i = 0; i < L * V; i++) p[i] = c->p[i], q[i] = c->q[i], y[i] = c->y[i], z[i] = c->z[i];
    for (int i = 0; edge && i < V * VD; i++) ((double *)(void *)place)[i] = D * i;
    const vd steps = vd_set((double)c->steps);
    for (int64_t k = 0; k < count; k++) {
        UNROLL
        for (int l = 0; l < L; l++) {
            UNROLL
            for (int v = V - 1; v >= 0; v--) {
                const int i = l * V + v;
                const vd own = D > 1 ? z[i] : y[i], former = D > 1 ? z[i - (v > 0)] : y[i - (v > 0)];
                const vd x = vd_push(v ? former : vd_set(c->x[l][k]), own);
                z[i] = y[i];
                vd next_p, next_q;
                if (backward) {
                    const vd w = vd_fma(c->a1[v], p[i], vd_fma(c->a2[v], q[i], x));
                    y[i] = vd_fma(c->b0[v], w, vd_fma(c->b1[v], p[i], c->b2[v] * q[i]));
                    next_q = p[i];
                    next_p = w;
                } else {
                    y[i] = vd_fma(c->b0[v], x, p[i]);
                    next_p = vd_fma(c->a1[v], y[i], vd_fma(c->b1[v], x, q[i]));
                    next_q = vd_fma(c->a2[v], y[i], c->b2[v] * x);
                }
                if (edge) {
                    const vd sample = vd_set((double)(at + k)) - place[v];
                    const vdi inside = (sample >= 0) & (sample < steps);
                    next_p = vd_where(inside, next_p, p[i]);
                    next_q = vd_where(inside, next_q, q[i]);
                }
                p[i] = next_p;
                q[i] = next_q;
            }
            c->out[l][k] = y[l * V + V - 1];
        }
    }
    UNROLL
    for (int i = 0; i < L * V; i++) c->p[i] = p[i], c->q[i] = q[i], c->y[i] = y[i], c->z[i] = z[i];
}

DPCRI_INLINE void run_cascade_of(cascade *c, int64_t at, int64_t count, int L, int V, const bool backward,
                                 const bool edge) {
    switch (10 * L + V) {
        case 11: run_cascade(c, at, count, 1, 1, backward, edge); break;
        case 12: run_cascade(c, at, count, 1, 2, backward, edge); break;
        case 13: run_cascade(c, at, count, 1, 3, backward, edge); break;
        case 14: run_cascade(c, at, count, 1, 4, backward, edge); break;
        case 21: run_cascade(c, at, count, 2, 1, backward, edge); break;
        case 22: run_cascade(c, at, count, 2, 2, backward, edge); break;
        case 31: run_cascade(c, at, count, 3, 1, backward, edge); break;
        default: run_cascade(c, at, count, 4, 1, backward, edge); break;
    }
}

// Where sample i of the piece lies.
DPCRI_INLINE char *place_of(const cascade *c, const void *data, int64_t bytes, int64_t i) {
    return (char *)(uintptr_t)data + (c->run->backward ? c->run->steps - 1 - c->begin - i : c->begin + i) * bytes;
}

DPCRI_INLINE void take_lane(double *x, const char *from, int64_t bytes, int64_t count, const bool narrow) {
    for (int64_t k = 0; k < count; k++) {
        const void *sample = from + k * bytes;
        x[k] = narrow ? (double)*(const float *)sample : *(const double *)sample;
    }
}

// Past the last sample zeros.
static void take_samples(cascade *c, int64_t at, int64_t count, int64_t lanes) {
    const dpcri_filter_run *r = c->run;
    const bool narrow = r->x_dtype == DPCR_F32;
    const int64_t bytes = r->x_stride * (narrow ? 4 : 8), next = r->backward ? -bytes : bytes;
    const int64_t left = at < c->steps ? c->steps - at : 0, taken = left < count ? left : count;
    for (int64_t l = 0; l < lanes; l++) {
        for (int64_t k = taken; k < count; k++) c->x[l][k] = 0;
        if (taken == 0) continue;
        const char *from = place_of(c, r->x[c->lane + l], bytes, at);
        if (next == 4 && narrow)
            take_lane(c->x[l], from, 4, taken, true);
        else if (next == 8 && !narrow)
            take_lane(c->x[l], from, 8, taken, false);
        else
            narrow ? take_lane(c->x[l], from, next, taken, true) : take_lane(c->x[l], from, next, taken, false);
    }
}

DPCRI_INLINE void give_lane(char *to, int64_t bytes, const double *y, int64_t count, const bool narrow) {
    for (int64_t k = 0; k < count; k++) {
        void *sample = to + k * bytes;
        if (narrow)
            *(float *)sample = (float)y[k * VD];
        else
            *(double *)sample = y[k * VD];
    }
}

// Of lane `last` of the vectors, what is a sample.
static void give_samples(cascade *c, int64_t at, int64_t count, int64_t lanes, int64_t last) {
    const dpcri_filter_run *r = c->run;
    const bool narrow = r->y_dtype == DPCR_F32;
    const int64_t bytes = r->y_stride * (narrow ? 4 : 8), next = r->backward ? -bytes : bytes;
    const int64_t behind = c->behind, from = at < behind ? behind - at : 0;
    for (int64_t l = 0; l < lanes && from < count; l++) {
        char *to = place_of(c, r->y[c->lane + l], bytes, at + from - behind);
        const double *y = (const double *)(const void *)&c->out[l][from] + last;
        narrow ? give_lane(to, next, y, count - from, true) : give_lane(to, next, y, count - from, false);
    }
}

// How many lanes go side by side so; 0: lanes in vectors are quicker. Tenths of nanoseconds, measured at AVX2: of
// steps, and of what comes before and after them. What would be streamed is not: arithmetic is slower than memory here.
static int64_t few_at_once(const dpcri_filter_run *r) {
    const int64_t sections = r->sections, vectors = (sections + VD - 1) / VD, steps = least_of(r->steps, PIECE);
    if (r->order != 2 || r->open || sections < 1 || vectors > PIPES || steps < 1 || r->lanes > MOST) return 0;
    const int64_t at_once = PIPES / vectors, lanes = r->lanes, groups = (lanes + at_once - 1) / at_once;
    const int64_t few = 30 * groups + (11 * vectors + 7) * lanes, many = 20 + 35 * sections + 8 * lanes;
    const int64_t few_around = groups * (500 + 100 * sections), many_around = 2000 + 150 * sections;
    return few * (steps + delay_of((int)(least_of(at_once, lanes) * vectors)) * (sections - 1)) + few_around <
                   many * steps + many_around
               ? at_once
               : 0;
}

static void run_few(const dpcri_filter_run *r, int64_t first, int64_t lanes, int64_t begin, int64_t steps) {
    const int L = (int)lanes, V = (int)((r->sections + VD - 1) / VD);
    const int64_t behind = delay_of(L * V) * (r->sections - 1);
    cascade c;
    c.run = r, c.lane = first, c.begin = begin, c.steps = steps, c.behind = behind;
    for (int v = 0; v < V; v++) c.b0[v] = c.b1[v] = c.b2[v] = c.a1[v] = c.a2[v] = (vd){0};
    for (int i = 0; i < L * V; i++) c.p[i] = c.q[i] = c.y[i] = c.z[i] = (vd){0};
    for (int64_t s = 0; s < r->sections; s++) {
        const int64_t of = r->backward ? r->sections - 1 - s : s;
        const double *b = r->b + 3 * of, *a = r->a + 3 * of;
        ((double *)(void *)c.b0)[s] = b[0], ((double *)(void *)c.b1)[s] = b[1], ((double *)(void *)c.b2)[s] = b[2];
        ((double *)(void *)c.a1)[s] = -a[1], ((double *)(void *)c.a2)[s] = -a[2];
        for (int64_t l = 0; l < lanes; l++) {
            ((double *)(void *)(c.p + l * V))[s] = r->state[first + l][2 * of];
            ((double *)(void *)(c.q + l * V))[s] = r->state[first + l][2 * of + 1];
        }
    }
    for (int64_t at = 0, count; at < steps + behind; at += count) {
        const bool inside = at >= behind && at < steps;
        count = inside ? steps - at : at < behind ? behind - at : steps + behind - at;
        if (count > TILE) count = TILE;
        take_samples(&c, at, count, lanes);
        if (r->backward)
            inside ? run_cascade_of(&c, at, count, L, V, true, false) : run_cascade_of(&c, at, count, L, V, true, true);
        else
            inside ? run_cascade_of(&c, at, count, L, V, false, false)
                   : run_cascade_of(&c, at, count, L, V, false, true);
        if (r->y) give_samples(&c, at, count, lanes, (r->sections - 1) % VD);
    }
    for (int64_t s = 0; s < r->sections; s++) {
        const int64_t of = r->backward ? r->sections - 1 - s : s;
        for (int64_t l = 0; l < lanes; l++) {
            r->state[first + l][2 * of] = ((double *)(void *)(c.p + l * V))[s];
            r->state[first + l][2 * of + 1] = ((double *)(void *)(c.q + l * V))[s];
        }
    }
}
