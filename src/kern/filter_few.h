// SPDX-License-Identifier: MIT
// Part of filter_level.h: few lanes, of which it is the sections, or a section's states, that lie in the lanes of
// vectors. The arithmetic is that of filter_level.h: the same bits, but for which NaN it is. docs/math/filter.md, "Few
// channels".
//
// A cascade of biquads: while section s takes sample k the next one takes sample k - D, so a step of all sections waits
// for one section's arithmetic alone. Of L lanes and V vectors of sections, L V go side by side; where those are few,
// D = 2 hides the move between the halves of a vector.
//
// A lone section of order p, L lanes side by side: the states of a step do not wait for each other. Backward the sum
// that is w would, but those of the next p steps can take what is known already, their oldest terms first:
//   t_j' = t_{j+1} - a_j w   (j = 1..p, t_{p+1} = x of p steps later);   the next w is t_1'
// where p steps whose w are the states come first. Then y is sums over w, of VD samples at once.

enum {
    PIECE = 4096,                     // samples of a lane before the next lanes have their turn
    PIPES = 4,                        // vectors of a cascade
    PAIR = 2,                         // lanes of a lone section
    WIDE = DPCRI_FILTER_STATES / VD,  // vectors of its states, at most
    GROUP = 8,                        // vectors of samples
    FIXED = 8                         // those of a code of its own, which keeps them in registers
};

typedef struct part {
    const dpcri_filter_run *run;
    int64_t lane, begin, steps;  // the first lane, and samples, in the run's order
} part;

DPCRI_INLINE int delay_of(int pipes) { return VD > 2 && pipes <= 2 ? 2 : 1; }

typedef struct cascade {
    part of;
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
    const vd steps = vd_set((double)c->of.steps);
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
DPCRI_INLINE char *place_of(const part *c, const void *data, int64_t bytes, int64_t i) {
    return (char *)(uintptr_t)data + (c->run->backward ? c->run->steps - 1 - c->begin - i : c->begin + i) * bytes;
}

DPCRI_INLINE void take_lane(double *x, const char *from, int64_t bytes, int64_t count, const bool narrow) {
    for (int64_t k = 0; k < count; k++) {
        const void *sample = from + k * bytes;
        x[k] = narrow ? (double)*(const float *)sample : *(const double *)sample;
    }
}

// Of lane l; past the last sample zeros.
static void take_samples(const part *c, int64_t l, int64_t at, int64_t count, double *x) {
    const dpcri_filter_run *r = c->run;
    const bool narrow = r->x_dtype == DPCR_F32;
    const int64_t bytes = r->x_stride * (narrow ? 4 : 8), next = r->backward ? -bytes : bytes;
    const int64_t left = at < c->steps ? c->steps - at : 0, taken = left < count ? left : count;
    for (int64_t k = taken; k < count; k++) x[k] = 0;
    if (taken == 0) return;
    const char *from = place_of(c, r->x[c->lane + l], bytes, at);
    if (next == 4 && narrow)
        take_lane(x, from, 4, taken, true);
    else if (next == 8 && !narrow)
        take_lane(x, from, 8, taken, false);
    else
        narrow ? take_lane(x, from, next, taken, true) : take_lane(x, from, next, taken, false);
}

DPCRI_INLINE void give_lane(char *to, int64_t bytes, const double *y, int64_t apart, int64_t count, const bool narrow) {
    for (int64_t k = 0; k < count; k++) {
        void *sample = to + k * bytes;
        if (narrow)
            *(float *)sample = (float)y[k * apart];
        else
            *(double *)sample = y[k * apart];
    }
}

// To lane l, every `apart`-th number.
DPCRI_INLINE void give_samples(const part *c, int64_t l, int64_t at, int64_t count, const double *y, int64_t apart) {
    const dpcri_filter_run *r = c->run;
    const bool narrow = r->y_dtype == DPCR_F32;
    const int64_t bytes = r->y_stride * (narrow ? 4 : 8), next = r->backward ? -bytes : bytes;
    char *to = place_of(c, r->y[c->lane + l], bytes, at);
    if (next == 4 && narrow)
        give_lane(to, 4, y, apart, count, true);
    else if (next == 8 && !narrow)
        give_lane(to, 8, y, apart, count, false);
    else
        narrow ? give_lane(to, next, y, apart, count, true) : give_lane(to, next, y, apart, count, false);
}

static void run_cascades(const dpcri_filter_run *r, int64_t first, int64_t lanes, int64_t begin, int64_t steps) {
    const int L = (int)lanes, V = (int)((r->sections + VD - 1) / VD);
    const int64_t behind = delay_of(L * V) * (r->sections - 1);
    cascade c;
    c.of = (part){r, first, begin, steps}, c.behind = behind;
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
        for (int64_t l = 0; l < lanes; l++) take_samples(&c.of, l, at, count, c.x[l]);
        if (r->backward)
            inside ? run_cascade_of(&c, at, count, L, V, true, false) : run_cascade_of(&c, at, count, L, V, true, true);
        else
            inside ? run_cascade_of(&c, at, count, L, V, false, false)
                   : run_cascade_of(&c, at, count, L, V, false, true);
        const int64_t from = at < behind ? behind - at : 0;
        for (int64_t l = 0; l < lanes && r->y && from < count; l++) {
            const double *last = (const double *)(const void *)&c.out[l][from] + (r->sections - 1) % VD;
            give_samples(&c.of, l, at + from - behind, count - from, last, VD);
        }
    }
    for (int64_t s = 0; s < r->sections; s++) {
        const int64_t of = r->backward ? r->sections - 1 - s : s;
        for (int64_t l = 0; l < lanes; l++) {
            r->state[first + l][2 * of] = ((double *)(void *)(c.p + l * V))[s];
            r->state[first + l][2 * of + 1] = ((double *)(void *)(c.q + l * V))[s];
        }
    }
}

typedef struct lone {
    part of;
    int order, vectors;                      // p, and how many hold that many numbers
    vdi last;                                // marks the p-th number of the last one
    vd b0, b[WIDE], a[WIDE], s[PAIR][WIDE];  // b_1, b_2 ..; a_1, a_2 .. negated; states, backward t
    double x[PAIR][TILE], y[PAIR][TILE];
    double w[PAIR][DPCRI_FILTER_STATES + TILE];  // backward: those of p steps before come first
} lone;

typedef enum lone_way { FORWARD, FORWARD_OPEN, BACK } lone_way;

// The lanes of `own` moved one back, behind them the first of `next`.
DPCRI_INLINE vd vd_pull(vd own, vd next) {
#if DPCRI_VECTOR_BYTES == 64
    return __builtin_shufflevector(own, next, 1, 2, 3, 4, 5, 6, 7, 8);
#elif DPCRI_VECTOR_BYTES == 32
    return __builtin_shufflevector(own, next, 1, 2, 3, 4);
#else
    return __builtin_shufflevector(own, next, 1, 2);
#endif
}

// sum + b x + a y, of those that there are.
DPCRI_INLINE vd terms(vd sum, const vd *b, vd x, const vd *a, vd y) {
    if (b) sum = vd_fma(*b, x, sum);
    return a ? vd_fma(*a, y, sum) : sum;
}

// s_i = s_{i+1} + b_i x + a_i y; what follows the last one is `behind`.
DPCRI_INLINE void advance(vd *s, const int V, const bool fixed, vdi last, vd behind, const vd *b, vd x, const vd *a,
                          vd y) {
    vd own = s[0];
    if (fixed) {
        UNROLL
        for (int v = 0; v < V - 1; v++) {
            const vd next = s[v + 1];
            s[v] = terms(vd_pull(own, next), b ? b + v : NULL, x, a ? a + v : NULL, y);
            own = next;
        }
    } else {  // the same, of any V
        for (int v = 0; v < V - 1; v++) {
            const vd next = s[v + 1];
            s[v] = terms(vd_pull(own, next), b ? b + v : NULL, x, a ? a + v : NULL, y);
            own = next;
        }
    }
    own = vd_where(last, behind, vd_pull(own, behind));
    s[V - 1] = terms(own, b ? b + V - 1 : NULL, x, a ? a + V - 1 : NULL, y);
}

// Step k of lane l.
DPCRI_INLINE void lone_step(lone *c, int l, int64_t k, const int V, const bool fixed, const lone_way way, const vd *b,
                            const vd *a, vd *s) {
    if (way == FORWARD || way == FORWARD_OPEN) {
        const vd x = vd_set(c->x[l][k]), y = vd_fma(c->b0, x, vd_set(s[0][0]));
        // With -0 behind, the last sum is its products alone, whichever zero they are.
        advance(s, V, fixed, c->last, vd_set(-0.0), b, x, way == FORWARD ? a : NULL, y);
        c->y[l][k] = y[0];
        return;
    }
    const vd w = vd_set(s[0][0]);
    c->w[l][c->order + k] = w[0];
    advance(s, V, fixed, c->last, vd_set(c->x[l][k]), NULL, w, a, w);
}

DPCRI_INLINE void lone_steps(lone *c, int64_t count, const int L, const int V, const bool fixed, const lone_way way) {
    vd b[FIXED], a[FIXED], s[PAIR][FIXED];
    for (int64_t k = 0; k < count && !fixed; k++) {
        UNROLL
        for (int l = 0; l < L; l++) lone_step(c, l, k, V, false, way, c->b, c->a, c->s[l]);
    }
    if (!fixed) return;
    UNROLL
    for (int v = 0; v < V; v++) {
        b[v] = c->b[v], a[v] = c->a[v];
        UNROLL
        for (int l = 0; l < L; l++) s[l][v] = c->s[l][v];
    }
    for (int64_t k = 0; k < count; k++) {
        UNROLL
        for (int l = 0; l < L; l++) lone_step(c, l, k, V, true, way, b, a, s[l]);
    }
    UNROLL
    for (int v = 0; v < V; v++) {
        UNROLL
        for (int l = 0; l < L; l++) c->s[l][v] = s[l][v];
    }
}

DPCRI_INLINE void lone_steps_of(lone *c, int64_t count, const int L, const lone_way way) {
    switch (c->vectors) {
        case 1: lone_steps(c, count, L, 1, true, way); break;
        case 2: lone_steps(c, count, L, 2, true, way); break;
        case 3: lone_steps(c, count, L, 3, true, way); break;
        case 4: lone_steps(c, count, L, 4, true, way); break;
        case 5: lone_steps(c, count, L, 5, true, way); break;
        case 6: lone_steps(c, count, L, 6, true, way); break;
        case 7: lone_steps(c, count, L, 7, true, way); break;
        case 8: lone_steps(c, count, L, 8, true, way); break;
        default: lone_steps(c, count, L, c->vectors, false, way); break;
    }
}

DPCRI_INLINE void lone_steps_so(lone *c, int64_t count, int64_t lanes, const lone_way way) {
    lanes == 1 ? lone_steps_of(c, count, 1, way) : lone_steps_of(c, count, PAIR, way);
}

static void run_steps(lone *c, int64_t count, int64_t lanes, lone_way way) {
    switch (way) {
        case FORWARD: lone_steps_so(c, count, lanes, FORWARD); break;
        case FORWARD_OPEN: lone_steps_so(c, count, lanes, FORWARD_OPEN); break;
        case BACK: lone_steps_so(c, count, lanes, BACK); break;
    }
}

static void lone_forward(lone *c, int64_t lanes) {
    const dpcri_filter_run *r = c->of.run;
    const size_t bytes = (size_t)c->order * sizeof(double);
    for (int64_t l = 0; l < lanes; l++) memcpy(c->s[l], r->state[c->of.lane + l], bytes);
    for (int64_t at = 0, count; at < c->of.steps; at += count) {
        count = least_of(TILE, c->of.steps - at);
        for (int64_t l = 0; l < lanes; l++) take_samples(&c->of, l, at, count, c->x[l]);
        run_steps(c, count, lanes, r->open ? FORWARD_OPEN : FORWARD);
        for (int64_t l = 0; l < lanes && r->y; l++) give_samples(&c->of, l, at, count, c->y[l], 1);
    }
    for (int64_t l = 0; l < lanes; l++) memcpy(r->state[c->of.lane + l], c->s[l], bytes);
}

// y_k = b_0 w_k + sum_i b_i w_{k-i}, from b_p on; whole groups of samples, of which `count` count.
static void sum_back(lone *c, int64_t l, int64_t count) {
    const double *b = c->of.run->b, *w = c->w[l] + c->order;
    for (int64_t k = 0; k < count; k += GROUP * VD) {
        vd sum[GROUP] = {0};
        for (int64_t i = c->order; i >= 0; i--) {
            const vd bi = vd_set(b[i]);
            UNROLL
            for (int g = 0; g < GROUP; g++) sum[g] = vd_fma(bi, vd_load(w + k + g * VD - i), sum[g]);
        }
        UNROLL
        for (int g = 0; g < GROUP; g++) vd_store(c->y[l] + k + g * VD, sum[g]);
    }
}

// The p steps whose w are the states.
static void begin_back(lone *c, int64_t lanes) {
    for (int64_t at = 0, count; at < c->order; at += count) {
        count = least_of(TILE, c->order - at);
        for (int64_t l = 0; l < lanes; l++) take_samples(&c->of, l, at, count, c->x[l]);
        for (int64_t k = 0; k < count; k++)
            for (int64_t l = 0; l < lanes; l++) {
                const vd w = vd_set(c->w[l][at + k]);
                advance(c->s[l], c->vectors, false, c->last, vd_set(c->x[l][k]), NULL, w, c->a, w);
            }
    }
}

static void lone_backward(lone *c, int64_t lanes) {
    const dpcri_filter_run *r = c->of.run;
    const int64_t p = c->order;
    for (int64_t l = 0; l < lanes; l++)
        for (int64_t i = 0; i < p; i++) c->w[l][i] = r->state[c->of.lane + l][p - 1 - i];
    if (!r->open) begin_back(c, lanes);
    for (int64_t at = 0, count; at < c->of.steps; at += count) {
        count = least_of(TILE, c->of.steps - at);
        for (int64_t l = 0; l < lanes; l++)
            r->open ? take_samples(&c->of, l, at, count, c->w[l] + p) : take_samples(&c->of, l, at + p, count, c->x[l]);
        if (!r->open) run_steps(c, count, lanes, BACK);
        for (int64_t l = 0; l < lanes; l++) {
            if (r->y) sum_back(c, l, count);
            if (r->y) give_samples(&c->of, l, at, count, c->y[l], 1);
            memmove(c->w[l], c->w[l] + count, (size_t)p * sizeof *c->w[l]);
        }
    }
    for (int64_t l = 0; l < lanes; l++)
        for (int64_t i = 0; i < p; i++) r->state[c->of.lane + l][i] = c->w[l][p - 1 - i];
}

static void run_lone(const dpcri_filter_run *r, int64_t first, int64_t lanes, int64_t begin, int64_t steps) {
    lone c;
    c.of = (part){r, first, begin, steps};
    c.order = (int)r->order, c.vectors = (c.order + VD - 1) / VD;
    c.last = (vdi){0}, c.last[(c.order - 1) % VD] = -1;
    c.b0 = vd_set(r->b[0]);
    for (int v = 0; v < c.vectors; v++) {
        c.b[v] = c.a[v] = (vd){0};
        for (int l = 0; l < PAIR; l++) c.s[l][v] = (vd){0};
    }
    for (int i = 0; i < c.order; i++) {
        ((double *)(void *)c.b)[i] = r->b[i + 1];
        ((double *)(void *)c.a)[i] = r->open ? 0 : -r->a[i + 1];
    }
    if (r->backward) memset(c.w, 0, sizeof c.w);
    r->backward ? lone_backward(&c, lanes) : lone_forward(&c, lanes);
}

static bool is_cascade(const dpcri_filter_run *r) { return r->order == 2 && !r->open; }

// How many lanes go side by side so; 0: lanes in vectors are quicker. Tenths of nanoseconds, measured at AVX2: of
// steps, and of what comes before and after them. What would be streamed is not: arithmetic is slower than memory here.
static int64_t few_of_cascade(const dpcri_filter_run *r) {
    const int64_t sections = r->sections, vectors = (sections + VD - 1) / VD, steps = least_of(r->steps, PIECE);
    if (sections < 1 || vectors > PIPES || steps < 1 || r->lanes > MOST) return 0;
    const int64_t at_once = PIPES / vectors, lanes = r->lanes, groups = (lanes + at_once - 1) / at_once;
    const int64_t few = 30 * groups + (11 * vectors + 7) * lanes, many = 20 + 35 * sections + 8 * lanes;
    const int64_t few_around = groups * (500 + 100 * sections), many_around = 2000 + 150 * sections;
    return few * (steps + delay_of((int)(least_of(at_once, lanes) * vectors)) * (sections - 1)) + few_around <
                   many * steps + many_around
               ? at_once
               : 0;
}

// Likewise of a lone section; backward with p steps more, but for one without feedback.
static int64_t few_of_lone(const dpcri_filter_run *r) {
    const bool sums = r->backward && r->open;
    const int64_t p = r->order, vectors = (p + VD - 1) / VD, steps = least_of(r->steps, PIECE), lanes = r->lanes;
    if (r->sections != 1 || p < 1 || vectors > WIDE || steps < 1 || lanes > (sums ? MOST : 2 * PAIR)) return 0;
    const int64_t groups = (lanes + PAIR - 1) / PAIR, each = sums ? 3 : r->backward ? 9 : 7;
    const int64_t few = (sums ? 10 * lanes : (r->open ? 45 : 50) * groups) + each * vectors * lanes;
    const int64_t more = (lanes + VD - 1) / VD - 1, one = (r->open ? 35 : 60) + (r->backward ? 8 : 7) * p;
    const int64_t many = one + more * one / 2;
    const int64_t few_around = groups * (700 + 16 * p), many_around = 1500 + 80 * p;
    return few * (steps + (r->backward && !sums ? p : 0)) + few_around < many * steps + many_around ? PAIR : 0;
}

static int64_t few_at_once(const dpcri_filter_run *r) { return is_cascade(r) ? few_of_cascade(r) : few_of_lone(r); }

static void run_few(const dpcri_filter_run *r, int64_t first, int64_t lanes, int64_t begin, int64_t steps) {
    (is_cascade(r) ? run_cascades : run_lone)(r, first, lanes, begin, steps);
}
