// SPDX-License-Identifier: MIT
// Chunks of the loop side by side, where AUTO takes the loop and threads would idle, or where chunks of a dense chain
// would be faster than what the shape suggests: the chain's own data are asked whether it forgets its start. Two starts
// at four places run until they agree, or until the rate at which they near each other says when they will; if that is
// soon, chunks overlap by a little more than that many steps (overlap.c), which checks every boundary whatever was seen
// here. Work of a look: 8 m applications, m steps, at most a twentieth of the loop's, or a tenth where the starts of a
// dense chain near each other.
#include "chain/forgets.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "chain/auto.h"
#include "chain/flow.h"

enum {
    PLACES = 4,
    LOOK = 32,             // steps between two comparisons
    LEAST_LENGTH = 8192,   // below, starting threads costs what they win
    MOST_BYTES = 64 << 20  // of states: overlap keeps a copy where a chain is solved in place
};
static const double least_gain = 5e-6;  // seconds that a dense chain shall gain, above what a look costs

static double epsilon(const dpcri_flow *f) { return f->size == sizeof(double) ? DBL_EPSILON : FLT_EPSILON; }

// Runs of narrow chains come to the same bits. Sums of more products keep some ulp of distance for ever: ends of chunks
// within eight of the states' size are the same state, and their error dies away with the chain.
static bool keeps_a_distance(const dpcri_flow *f) { return f->form == DPCR_DENSE && f->w > 4; }

// Steps of a place that a look may take, and nobody would do without.
static int64_t steps_of_look(int64_t length) { return length / (20 * 2 * PLACES); }

bool dpcri_chain_may_overlap(const dpcr_chain_shape *shape, dpcr_scheme chosen, int64_t chunk, int threads,
                             dpcr_chain_options *options) {
    const dpcr_transition *t = &shape->transition;
    const size_t real = dpcr_dtype_size(shape->dtype);
    const dpcr_structure form = dpcri_kernel_form(t);
    if (threads < 2 || shape->dtype == DPCR_U32 || shape->batch != 1 || t->structure <= DPCR_IDENTITY ||
        steps_of_look(shape->length) < LOOK || shape->length > MOST_BYTES / (t->rows * (int64_t)real))
        return false;
    if (form == DPCR_DENSE) {
        if (dpcri_chain_overlap_gain(shape, chosen, chunk, threads) < least_gain) return false;
    } else {
        // Steps that wait, of blocks or elements too few to be shared out as they are (sequential.c).
        const int64_t part = dpcri_part_width(form, t->block, real);
        if (chosen != DPCR_SCHEME_SEQUENTIAL || t->rows >= 2 * part || shape->length < LEAST_LENGTH) return false;
    }
    *options = (dpcr_chain_options){
        .size = sizeof *options, .scheme = DPCR_SCHEME_OVERLAP, .chunk = dpcri_chain_overlap_chunk(shape->length, 1)};
    dpcri_chain_defaults(t, shape->length, shape->batch, options);
    return true;
}

// LOOK steps from step `at` of every place, from x [PLACES][w]; y [PLACES][LOOK][w], of which the last steps become x.
static void run_places(const dpcri_flow *f, int64_t apart, int64_t at, void *x, void *y) {
    dpcri_span span = dpcri_flow_span(f, LOOK, PLACES);
    span.a = dpcri_at(f, f->a, at * f->a_step);
    span.a_step = f->a_step;
    span.a_row = apart * f->a_step;
    span.r = dpcri_at(f, f->b, at * f->b_step);
    span.r_step = f->b_step;
    span.r_row = apart * f->b_step;
    span.x = x;
    span.x_row = f->w;
    span.y = y;
    span.y_step = f->w;
    span.y_row = LOOK * f->w;
    dpcri_flow_serial(f, &span);
    dpcri_span keep = dpcri_flow_span(f, 1, PLACES);
    keep.r = dpcri_at(f, y, (LOOK - 1) * f->w);
    keep.r_row = LOOK * f->w;
    keep.y = x;
    keep.y_row = f->w;
    dpcri_flow_copy(f, &keep);
}

static double value_at(const dpcri_flow *f, const void *values, int64_t i) {
    return f->size == sizeof(double) ? ((const double *)values)[i] : (double)((const float *)values)[i];
}

// The largest right-hand side of the steps that the first look takes; 1 where all are 0 or one is not finite.
static double probe_of(const dpcri_flow *f, int64_t apart) {
    double most = 0;
    for (int64_t p = 0; p < PLACES; p++)
        for (int64_t l = 0; l < LOOK; l++)
            for (int64_t i = 0; i < f->w; i++)
                most = fmax(most, fabs(value_at(f, f->b, (p * apart + 1 + l) * f->b_step + i)));
    return most > 0 && isfinite(most) ? most : 1;
}

typedef struct look {
    double apart;     // the two runs' largest distance in a place
    double relative;  // to the place's states
    double least;     // largest component, in the place where it is least
} look;

static look compare(const dpcri_flow *f, const void *x, const void *other) {
    look seen = {0, 0, HUGE_VAL};
    for (int64_t p = 0; p < PLACES; p++) {
        double apart = 0, size = 0;
        for (int64_t i = p * f->w; i < (p + 1) * f->w; i++) {
            const double a = value_at(f, x, i), b = value_at(f, other, i);
            apart = fmax(apart, fabs(a - b));
            size = fmax(size, fmax(fabs(a), fabs(b)));
        }
        seen.apart = fmax(seen.apart, apart);
        seen.relative = fmax(seen.relative, size > 0 ? apart / size : 0);
        seen.least = fmin(seen.least, size);
    }
    return seen;
}

void dpcri_chain_forgets(dpcr_context *context, const dpcri_linear *chain, void *workspace,
                         dpcr_chain_options *options) {
    const dpcri_flow f = dpcri_flow_of(context, chain);
    dpcri_arena arena = {.base = workspace, .size = SIZE_MAX};
    void *x = dpcri_flow_take(&f, &arena, PLACES, 1, f.w), *other = dpcri_flow_take(&f, &arena, PLACES, 1, f.w);
    void *y = dpcri_flow_take(&f, &arena, PLACES, LOOK, f.w);
    const size_t bytes = (size_t)(PLACES * f.w) * f.size;
    const double own = keeps_a_distance(&f) ? 8 * epsilon(&f) : 0;
    const double wanted = 0.75 * fmax(options->tolerance, own) + (own > 0 ? 0 : epsilon(&f) / 8);
    // Places from step 1 on: the first transition is not read without z0.
    const int64_t apart = (f.n - 1) / PLACES, most = steps_of_look(f.n);
    const double probe = probe_of(&f, apart);
    memset(x, 0, bytes);
    for (int64_t i = 0; i < PLACES * f.w; i++)
        if (f.size == sizeof(double))
            ((double *)other)[i] = i % 2 ? -probe : probe;
        else
            ((float *)other)[i] = (float)(i % 2 ? -probe : probe);
    look seen = {0}, before = {.apart = probe};
    bool nears = false;
    double agree = HUGE_VAL;
    for (int64_t m = LOOK; agree == HUGE_VAL && m <= (nears ? 2 * most : most); m += LOOK, before = seen) {
        run_places(&f, apart, 1 + m - LOOK, x, y);
        run_places(&f, apart, 1 + m - LOOK, other, y);
        seen = compare(&f, x, other);
        nears = f.form == DPCR_DENSE && seen.apart < before.apart / 2;
        if (memcmp(x, other, bytes) == 0 || (wanted > epsilon(&f) && seen.relative <= wanted))
            agree = (double)m;
        else if (nears && m > LOOK)  // the first steps may have been quicker than those to come
            agree = 1.15 * ((double)m + fmax(0, LOOK * log(seen.relative / wanted) / log(before.apart / seen.apart)));
    }
    if (!(agree < (double)f.n / 32)) return;
    options->scheme = DPCR_SCHEME_OVERLAP;
    options->warm_up = (int64_t)(1.25 * agree);
    options->chunk = dpcri_chain_overlap_chunk(f.n, options->warm_up);
    if (options->tolerance == 0) options->tolerance = own * fmin(1, seen.least);
    options->max_sweeps = 3;
}
