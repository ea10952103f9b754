// SPDX-License-Identifier: MIT
// Chunks of the loop side by side, where AUTO takes the loop and threads would idle, or where chunks of a dense chain
// would be faster than what the shape suggests: the chain's own data are asked whether it forgets its start. Two starts
// at four places run until they agree, or until the rate at which they near each other says when they will; if that is
// soon, chunks overlap by a little more than that many steps (overlap.c), which checks every boundary and has the
// loop's states whatever was seen here. Work of a look: 8 m applications, m steps, at most a twentieth of the loop's,
// or a tenth where the starts near each other.
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

// Runs of a chain of this width come to the same bits. Sums of more products keep some ulp of distance for ever: ends
// of chunks that near are the same state, and their error dies away with the chain.
static double tolerance_of(const dpcri_flow *f, const dpcr_chain_options *options) {
    const double eps = f->size == sizeof(double) ? DBL_EPSILON : FLT_EPSILON;
    return options->tolerance > 0 ? options->tolerance : f->form == DPCR_DENSE && f->w > 4 ? 8 * eps : 0;
}

bool dpcri_chain_may_overlap(const dpcr_chain_shape *shape, dpcr_scheme chosen, int64_t chunk, int threads,
                             dpcr_chain_options *options) {
    const dpcr_transition *t = &shape->transition;
    const size_t real = dpcr_dtype_size(shape->dtype);
    const dpcr_structure form = dpcri_kernel_form(t);
    if (threads < 2 || shape->dtype == DPCR_U32 || shape->batch != 1 || t->structure <= DPCR_IDENTITY ||
        shape->length > MOST_BYTES / (t->rows * (int64_t)real))
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

// Largest distance of the two runs' states over all places, relative to the states.
static double distance(const dpcri_flow *f, const void *x, const void *other) {
    double apart = 0, size = 0;
    for (int64_t i = 0; i < PLACES * f->w; i++) {
        const bool is_double = f->size == sizeof(double);
        const double a = is_double ? ((const double *)x)[i] : (double)((const float *)x)[i];
        const double b = is_double ? ((const double *)other)[i] : (double)((const float *)other)[i];
        apart = fmax(apart, fabs(a - b));
        size = fmax(size, fmax(fabs(a), fabs(b)));
    }
    return size > 0 ? apart / size : 0;
}

// Steps until runs that were `before` apart LOOK steps ago and are `now` at step m are as good as the same; HUGE_VAL
// for such as do not near each other.
static double steps_to_agree(const dpcri_flow *f, double tolerance, int64_t m, double before, double now) {
    const double eps = f->size == sizeof(double) ? DBL_EPSILON : FLT_EPSILON;
    const double wanted = tolerance > 0 ? tolerance / 2 : eps / 8;
    if (!(now < before / 2)) return HUGE_VAL;
    return 1.15 * ((double)m + (now > wanted ? LOOK * log(now / wanted) / log(before / now) : 0));
}

void dpcri_chain_forgets(dpcr_context *context, const dpcri_linear *chain, void *workspace,
                         dpcr_chain_options *options) {
    const dpcri_flow f = dpcri_flow_of(context, chain);
    dpcri_arena arena = {.base = workspace, .size = SIZE_MAX};
    void *x = dpcri_flow_take(&f, &arena, PLACES, 1, f.w), *other = dpcri_flow_take(&f, &arena, PLACES, 1, f.w);
    void *y = dpcri_flow_take(&f, &arena, PLACES, LOOK, f.w);
    const size_t bytes = (size_t)(PLACES * f.w) * f.size;
    const double tolerance = tolerance_of(&f, options);
    // Places from step 1 on: the first transition is not read without z0.
    const int64_t apart = (f.n - 1) / PLACES, most = f.n / (20 * 2 * PLACES);
    memset(x, 0, bytes);
    for (int64_t i = 0; i < PLACES * f.w; i++)
        if (f.size == sizeof(double))
            ((double *)other)[i] = i % 2 ? -1 : 1;
        else
            ((float *)other)[i] = i % 2 ? -1 : 1;
    double before = 1, agree = HUGE_VAL;
    for (int64_t m = LOOK; agree == HUGE_VAL && m <= most; m += LOOK) {
        run_places(&f, apart, 1 + m - LOOK, x, y);
        run_places(&f, apart, 1 + m - LOOK, other, y);
        if (memcmp(x, other, bytes) == 0) {
            agree = (double)m;
        } else if (f.form == DPCR_DENSE) {
            const double now = distance(&f, x, other);
            const double then = steps_to_agree(&f, tolerance, m, before, now);
            // The first steps may be quicker than those to come: a second look where there is time.
            if (m > LOOK || m + LOOK > 2 * most || then <= (double)m) agree = then;
            before = now;
        }
    }
    if (!(agree < (double)f.n / 32)) return;
    options->scheme = DPCR_SCHEME_OVERLAP;
    options->warm_up = (int64_t)(1.25 * agree);
    options->chunk = dpcri_chain_overlap_chunk(f.n, options->warm_up);
    options->tolerance = tolerance;
    options->max_sweeps = 3;
}
