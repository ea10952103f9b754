// SPDX-License-Identifier: MIT
// Chunks of the loop side by side, where AUTO takes the loop and threads would idle, or where chunks of a dense chain,
// or of one of a few blocks, would be faster than what the shape suggests: the chain's own data are asked whether it
// forgets its start. Two starts at four places run until they agree, or until the rate at which they near each other
// says when they will; if that is soon, chunks overlap by a little more than that many steps (overlap.c), which checks
// every boundary whatever was seen here. Work of looking: 8 m applications, m steps, two looks or at most a twentieth
// of the loop's, a tenth where the starts near each other.
#include "chain/forgets.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "chain/auto.h"
#include "chain/flow.h"

enum {
    PLACES = 4,
    LOOK = 32,             // steps between two comparisons, at most
    SHORT_LOOK = 16,       // of chains so short that more would be felt
    LEAST_STEPS = 24,      // that looks may take of a chain worth a look
    RUN_UP = 150,          // steps that such a chain may need: a step that keeps nine tenths
    AHEAD = 3,             // times the steps that were seen, as far as an extrapolation is trusted,
    SHORT_AHEAD = 5,       // and of short looks
    PROBED = 2,            // steps of a place whose right-hand sides tell how far starts are to lie apart
    LEAST_LENGTH = 8192,   // below, starting threads costs what they win
    FAR_BYTES = 8 << 20,   // that threads' own caches do not hold
    MOST_BYTES = 64 << 20  // of states: overlap keeps a copy where a chain is solved in place
};
static const double least_gain = 5e-6;  // seconds that it shall gain, above what a look costs

static double epsilon(const dpcri_flow *f) { return f->size == sizeof(double) ? DBL_EPSILON : FLT_EPSILON; }

// Runs of narrow chains come to the same bits. Sums of more products keep some ulp of distance for ever: ends of chunks
// are the same state where each component is within eight roundings of the sum that it is (overlap.c), which is what
// the loop might have come to as well. Components that hardly mix are so told apart: a small one that remembers beside
// large ones that forget, or that grows from next to nothing between the places.
static bool keeps_a_distance(const dpcri_flow *f) { return f->form == DPCR_DENSE && !f->csr && f->w > 4; }

// Steps of a place that looks may take, and nobody would do without.
static int64_t most_steps(int64_t length) { return length / (20 * 2 * PLACES); }

static int64_t steps_of_look(int64_t length) {
    const int64_t fitting = length / 1024;
    return fitting < SHORT_LOOK ? SHORT_LOOK : fitting < LOOK ? fitting : LOOK;
}

// Chains whose overlap has a price (auto.c): dense ones, and blocks that are not shared out to threads as they are.
static bool is_priced(const dpcr_chain_shape *shape) {
    const dpcr_transition *t = &shape->transition;
    const dpcr_structure form = dpcri_kernel_form(t);
    return form == DPCR_DENSE ||
           (form == DPCR_BLOCK && t->rows < 2 * dpcri_part_width(form, t->block, dpcr_dtype_size(shape->dtype)));
}

// Seconds that chunks of such a chain gain with run-ups of so many steps: only threads that find a group of them work.
static double gain_of(const dpcr_chain_shape *shape, dpcr_scheme chosen, int64_t chunk, const dpcri_chain_place *place,
                      double warm_up) {
    const int64_t size = dpcri_chain_overlap_chunk(shape->length, (int64_t)warm_up, shape->transition.rows);
    const int64_t groups = 1 + (shape->length / size) / DPCRI_SIDE;
    dpcri_chain_place busy = *place;
    if (groups < busy.threads) busy.threads = (int)groups;
    return dpcri_chain_overlap_gain(shape, chosen, chunk, &busy, 1 + warm_up / (double)size);
}

bool dpcri_chain_may_overlap(const dpcr_chain_shape *shape, dpcr_scheme chosen, int64_t chunk,
                             const dpcri_chain_place *place, dpcr_chain_options *options) {
    const dpcr_transition *t = &shape->transition;
    const size_t real = dpcr_dtype_size(shape->dtype);
    const dpcr_structure form = dpcri_kernel_form(t);
    if (shape->dtype == DPCR_U32 || shape->batch != 1 || t->structure <= DPCR_IDENTITY ||
        most_steps(shape->length) < LEAST_STEPS || shape->length > MOST_BYTES / (t->rows * (int64_t)real))
        return false;
    if (is_priced(shape)) {
        if (gain_of(shape, chosen, chunk, place, RUN_UP) < least_gain) return false;
    } else {
        // Steps that wait, or threads that read every other line of a row, of more than their caches hold.
        const int64_t part = dpcri_part_width(form, t->block, real);
        const bool far = shape->length * t->rows * (int64_t)(3 * real) > FAR_BYTES;
        if (place->threads < 2 || chosen != DPCR_SCHEME_SEQUENTIAL || shape->length < LEAST_LENGTH) return false;
        const bool asked = form == DPCR_DIAGONAL && far && t->rows < 8 * part;
        if (t->rows >= 2 * part && !asked) return false;  // shared out as they are (sequential.c)
    }
    *options = (dpcr_chain_options){.size = sizeof *options,
                                    .scheme = DPCR_SCHEME_OVERLAP,
                                    .chunk = dpcri_chain_overlap_chunk(shape->length, 1, t->rows)};
    dpcri_chain_defaults(t, shape->length, shape->batch, options);
    return true;
}

// `look` steps from step `at` of every place, from x [PLACES][w]; y [PLACES][LOOK][w], of which the last become x.
static void run_places(const dpcri_flow *f, int64_t apart, int64_t at, int64_t look, void *x, void *y) {
    dpcri_span span = dpcri_flow_span(f, look, PLACES);
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
    keep.r = dpcri_at(f, y, (look - 1) * f->w);
    keep.r_row = LOOK * f->w;
    keep.y = x;
    keep.y_row = f->w;
    dpcri_flow_copy(f, &keep);
}

// The largest right-hand side of the first steps of each place; 1 where all are 0 or one is not finite.
static double probe_of(const dpcri_flow *f, int64_t apart) {
    double most = 0;
    for (int64_t p = 0; p < PLACES; p++)
        for (int64_t l = 0; l < PROBED; l++)
            for (int64_t i = 0; i < f->w; i++)
                most = fmax(most, fabs(dpcri_number(f, f->b, (p * apart + 1 + l) * f->b_step + i)));
    return most > 0 && isfinite(most) ? most : 1;
}

typedef struct distance {
    double apart;     // the two runs' largest distance in a place
    double relative;  // to the place's states
} distance;

static distance compare(const dpcri_flow *f, const void *x, const void *other) {
    distance seen = {0, 0};
    for (int64_t p = 0; p < PLACES; p++) {
        double apart = 0, size = 0;
        for (int64_t i = p * f->w; i < (p + 1) * f->w; i++) {
            const double a = dpcri_number(f, x, i), b = dpcri_number(f, other, i);
            apart = fmax(apart, fabs(a - b));
            size = fmax(size, fmax(fabs(a), fabs(b)));
        }
        seen.apart = fmax(seen.apart, apart);
        seen.relative = fmax(seen.relative, size > 0 ? apart / size : 0);
    }
    return seen;
}

// Whether chunks pay that take a run-up of so many steps.
static bool pays(const dpcri_chain_place *place, const dpcr_chain_shape *shape, const dpcr_chain_options *chosen,
                 double warm_up) {
    if (!is_priced(shape)) return warm_up < (double)shape->length / 24;
    if (warm_up >= (double)shape->length / 8) return false;
    return gain_of(shape, chosen->scheme, chosen->chunk, place, warm_up) > 0;
}

void dpcri_chain_forgets(dpcr_context *context, const dpcr_chain_shape *shape, const dpcri_chain_place *place,
                         const dpcri_linear *chain, void *workspace, dpcr_chain_options *options) {
    const dpcri_flow f = dpcri_flow_of(context, chain);
    dpcri_arena arena = {.base = workspace, .size = SIZE_MAX};
    void *x = dpcri_flow_take(&f, &arena, PLACES, 1, f.w), *other = dpcri_flow_take(&f, &arena, PLACES, 1, f.w);
    void *y = dpcri_flow_take(&f, &arena, PLACES, LOOK, f.w);
    const size_t bytes = (size_t)(PLACES * f.w) * f.size;
    const double own = keeps_a_distance(&f) ? 8 * epsilon(&f) : 0;
    const double wanted = 0.75 * fmax(options->tolerance, own) + (own > 0 ? 0 : epsilon(&f) / 8);
    // Places from step 1 on: the first transition is not read without z0.
    const int64_t apart = (f.n - 1) / PLACES, most = most_steps(f.n), look = steps_of_look(f.n);
    const double probe = probe_of(&f, apart);
    memset(x, 0, bytes);
    for (int64_t i = 0; i < PLACES * f.w; i++)
        if (f.size == sizeof(double))
            ((double *)other)[i] = i % 2 ? -probe : probe;
        else
            ((float *)other)[i] = (float)(i % 2 ? -probe : probe);
    distance seen = {0}, before = {.apart = probe}, first = {0};
    bool nears = false;
    double agree = HUGE_VAL;
    for (int64_t m = look; agree == HUGE_VAL && m <= (nears || m == 2 * look ? 2 * most : most);
         m += look, before = seen) {
        run_places(&f, apart, 1 + m - look, look, x, y);
        run_places(&f, apart, 1 + m - look, look, other, y);
        seen = compare(&f, x, other);
        nears = seen.apart < before.apart * pow(0.5, (double)look / LOOK);
        if (memcmp(x, other, bytes) == 0 || (wanted > epsilon(&f) && seen.relative <= wanted)) {
            agree = (double)m;
        } else if (m == look) {
            first = seen;  // the first steps may have been quicker than those to come
        } else if (nears && seen.apart < first.apart) {
            const double rate = log(first.apart / seen.apart) / (double)(m - look);
            const double expected = 1.15 * ((double)m + fmax(0, log(seen.relative / wanted) / rate));
            if (expected <= (double)((look < LOOK ? SHORT_AHEAD : AHEAD) * m)) agree = expected;
        }
    }
    const double warm_up = 1.25 * agree;
    if (!pays(place, shape, options, warm_up)) return;
    options->scheme = DPCR_SCHEME_OVERLAP;
    options->warm_up = (int64_t)warm_up;
    options->chunk = dpcri_chain_overlap_chunk(f.n, options->warm_up, f.w);
    if (options->tolerance == 0) options->tolerance = -own;
    options->max_sweeps = 3;
}
