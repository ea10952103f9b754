// SPDX-License-Identifier: MIT
// The planner: lists the ways to run the chain at hand, predicts their seconds (cost.c) from the chain's costs, the
// machine's rates and how soon the chain forgets (contraction.c), measures the best of them where that was asked for
// (measure.c), chooses, and says why in one sentence (sentence.c). What was measured, and what earlier solves showed,
// it remembers (wisdom.c). docs/math/cost.md derives the model.
#include "rt/rates.h"
#include "solve/planner.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    EXPECTED_SWEEPS = 4,     // of Newton on chains that forget (docs/math/newton.md)
    NEUTRAL_SWEEPS = 5,      // on chains that keep their past
    PROBE_STEPS = 512,       // of the contraction estimate, at most;
    LAST_PART = 8,           // or, of chains that tell `coarse` or `slopes`, this part,
    LEAST_PROBE = 32,        // at least;
    LOOP_PART = 16,          // of the loop's time: what trials may take of it, and more of its own steps
    MOST_COMPOSED = 16,      // components of a dense chain, or as many as threads, of which Jacobians may pay
    GAIN_PART = 16,          // of what may be gained: what each run of a sweep's call may take of it,
    ASKED_PART = 8,          // or of planning_seconds
    PROBE_PART = 1024,       // or, where bits must meet, this part of the chain: 3 % of the loop's steps, side by side
    PROBE_LANES_PART = 128,  // of one whose lanes run side by side
    USUAL_WARM_UP = 64,      // overlap's default
    SHOOTING_CHUNK = 16,     // the driver's own, without windows
    MOST_GROUPS = 32,        // of overlap's chunks, tried when measuring
    FEWEST_SWEEPS = 2,       // of picard and its relatives
    FEWEST_WARM_UP = 24,     // of networks that forget
    TRIED_SWEEPS = 100000,   // at most told of a trial
    OVERLAP_SWEEPS = 3,      // overlap's default,
    FEWEST_OVERLAP = 2,      // and what it has at least: a place that forgets late costs one more
    MEASURED_WITHIN = 4      // times the best prediction: what is worth a measurement
};
static const double beside_other = 1.5;  // as much behind the loop alone a way may be ahead beside the other way
// A model's doubt goes to the loop, which is always right.
static const double known_doubt = 1.25, guessed_doubt = 1.5, shared_doubt = 1.05;
static const double tried_doubt[2] = {1.1, 1.2};  // sweeps counted, a call of them timed: on one thread, on several
static const double fewest_work = 1.5;            // evaluations of the chain by FEWEST_SWEEPS
static const double least_forgotten = 0.1;        // of a distance, over LAST_PART of a chain that forgets

static dpcr_candidate *add(dpcri_list *l, dpcr_method method, dpcr_scheme scheme, double seconds) {
    static dpcr_candidate none;
    if (l->count == DPCRI_CANDIDATES / 2) return &none;
    dpcr_candidate *c = &l->at[l->count++];
    *c = (dpcr_candidate){.size = sizeof *c, .method = method, .scheme = scheme, .seconds = seconds, .sweeps = 1};
    return c;
}

static void sort_predicted(dpcri_list *l) {
    for (int64_t i = 1; i < l->count; i++)
        for (int64_t k = i; k > 0 && l->at[k].seconds < l->at[k - 1].seconds; k--) {
            const dpcr_candidate c = l->at[k];
            l->at[k] = l->at[k - 1], l->at[k - 1] = c;
        }
}

// ---- what ends it ----

bool dpcri_planning_ends(const dpcri_outlook *o) { return *o->code < 0 || dpcri_watch_stopped(o->watch); }

bool dpcri_planning_heeds(const dpcri_outlook *o, int code) {
    if (code < 0 && *o->code == 0) *o->code = code;
    return code == 0;
}

bool dpcri_planning_heeds_solve(const dpcri_outlook *o, dpcr_status status, const dpcr_error *error) {
    if (status == DPCR_ERROR_CALLBACK) dpcri_planning_heeds(o, error->code);
    return !dpcri_watch_heard(o->watch, status) && status == DPCR_OK;
}

static dpcr_status ended(const dpcri_outlook *o, dpcr_error *error) {
    if (!dpcri_planning_ends(o)) return DPCR_OK;
    if (*o->code == 0) return dpcri_fail_stopped(error, "plan");
    return dpcri_fail_code(error, DPCR_ERROR_CALLBACK, *o->code, "plan: a callback aborted with code %d", *o->code);
}

// ---- what a chain allows ----

static bool can_run_beside(const dpcri_outlook *o) {
    return o->steps->length >= DPCRI_LEAST_LENGTH && o->steps->batch > 0;
}

// The loop's, which only chunks of the loop have: sweeps of any other method would go on to the end of their budget.
static bool wants_bits(const dpcri_outlook *o) { return dpcri_joins_in_bits(o->options); }

// Whether Jacobians are dense and so wide that composing them costs more than all threads together make up for.
static bool is_wide(const dpcri_outlook *o) {
    const double most = o->machine.threads > MOST_COMPOSED ? o->machine.threads : MOST_COMPOSED;
    return o->steps->jacobian.structure == DPCR_DENSE && (double)o->steps->width > most;
}

// Chains for which nothing but the loop is left, forward and back, by estimate: their sequences fill the processor, or
// no piece can begin without its past, and Jacobians are out of the question. No other way is timed.
static bool is_left_to_the_loop(const dpcri_outlook *o) {
    const dpcri_memory memory = o->contraction.memory;
    if (o->filled > 0) return true;
    const bool keeps = memory == DPCRI_MEMORY_KEEPS || memory == DPCRI_MEMORY_CHAOTIC;
    return keeps && is_wide(o) && !dpcri_is_weighed(o->steps) && !o->steps->window && !o->options->warm_up &&
           o->options->planning == DPCR_PLANNING_ESTIMATE;
}

// ---- overlap ----

double dpcri_join_tolerance(const dpcri_outlook *o, const dpcr_candidate *c) {
    enum { ROUNDINGS = 16 };
    const dpcr_solve_options *asked = o->options;
    const double rounding = ROUNDINGS * (o->steps->dtype == DPCR_F64 ? DBL_EPSILON : FLT_EPSILON);
    const bool soon = dpcri_meets_soon(&o->contraction), enough = c->warm_up >= o->contraction.to_bits;
    const bool own = asked->join_tolerance != 0 || asked->atol <= rounding || asked->rtol <= rounding;
    return c->method == DPCR_METHOD_OVERLAP && soon && enough && !own ? rounding : asked->join_tolerance;
}

// The warm-up that the contraction wants: until the starts agree bit for bit where that was seen soon (nothing is then
// left to doubt), else until they are within the tolerance; a quarter more for places that were not tried. 0: never.
static int64_t wanted_warm_up(const dpcri_outlook *o, bool exact) {
    const dpcri_contraction *c = &o->contraction;
    if (o->options->warm_up) return o->options->warm_up;
    // Wide chains renew the last bits' noise at every step and agree late: the tolerance is enough then.
    const int64_t seen = exact || dpcri_meets_soon(c) ? c->to_bits : c->within;
    if (seen == 0) return 0;
    const int64_t m = seen + seen / 4 + 8;
    return m < o->steps->length ? m : 0;
}

static void overlap_shape(const dpcri_outlook *o, int64_t chunk, int64_t warm_up, int64_t *n) {
    dpcr_solve_plan shape = {.steps = *o->steps, .options = *o->options};
    if (chunk) shape.options.chunk = chunk;
    shape.options.warm_up = warm_up;
    *n = dpcri_overlap_chunk(&shape);
}

static void add_overlap(const dpcri_outlook *o, dpcri_list *l, int64_t chunk, int64_t warm_up) {
    int64_t n = 0;
    overlap_shape(o, chunk, warm_up, &n);
    if (2 * n > o->steps->length) return;  // one chunk: the loop
    dpcr_candidate *c = add(l, DPCR_METHOD_OVERLAP, DPCR_SCHEME_AUTO, dpcri_cost_overlap(o, n, warm_up));
    c->chunk = chunk, c->warm_up = warm_up;
}

// Where chunks side by side save nothing, as those that wait for their weights, one a thread has the fewest run-ups.
static int64_t chunk_a_thread(const dpcri_outlook *o, int64_t length, double latency, double lane, int64_t warm_up) {
    const int64_t each = (int64_t)((double)length / o->machine.threads);
    const bool alone = o->steps->concurrent && o->machine.threads > 1 && latency > 0 && 1.1 * lane >= latency;
    return alone && !o->options->chunk && each >= 2 * warm_up ? each : 0;
}

// Full calls of chunks, of which each thread gets as many; measured, all of them that the warm-up leaves room for.
static int64_t most_groups(const dpcri_outlook *o, bool variants) {
    return variants ? MOST_GROUPS : (int64_t)fmin(MOST_GROUPS, o->machine.threads);
}

static void list_overlap(const dpcri_outlook *o, dpcri_list *l, int64_t warm_up, bool variants) {
    int64_t n = 0;
    const int64_t m = warm_up > 0 ? warm_up : wanted_warm_up(o, wants_bits(o));
    if (m == 0 || o->options->step_scale || (o->failed & 1u << DPCR_METHOD_OVERLAP)) return;
    add_overlap(o, l, o->options->chunk, m);
    if (o->options->chunk) return;
    overlap_shape(o, 0, m, &n);
    // The default's chunks are for a few threads: shorter ones where there are more.
    const double lanes = o->machine.threads * (double)dpcri_overlap_call(o->steps);
    const int64_t share = (int64_t)fmax((double)m, (double)o->steps->length / lanes);
    const int64_t fair = o->steps->concurrent && 4 * share <= 3 * n ? share : 0;
    if (fair && (variants || !dpcri_overlap_aliased(o->steps, fair))) add_overlap(o, l, fair, m);
    const int64_t each = chunk_a_thread(o, o->steps->length, o->steps->latency, o->steps->lane_seconds, m);
    if (each && each != n) add_overlap(o, l, each, m);
    // Chunks of few run-ups spend much on them: half as many, where each thread gets one still.
    const int64_t longer = n < 3 * m && (double)(2 * n) * o->machine.threads <= (double)o->steps->length ? 2 * n : 0;
    if (longer && longer != each) add_overlap(o, l, longer, m);
    const int64_t width = dpcri_overlap_call(o->steps), most = most_groups(o, variants);
    for (int64_t groups = 1; groups <= most; groups *= 2) {
        const int64_t chunk = o->steps->length / (width * groups);  // rounded up, a call would lack its last
        const bool wanted = variants || !dpcri_overlap_aliased(o->steps, chunk);  // the model knows no sets of a cache
        if (wanted && chunk >= m && chunk != n && chunk != fair && chunk != each && chunk != longer)
            add_overlap(o, l, chunk, m);
    }
    // The estimate is of the worst of a few places from starts far off: half as much may be enough.
    if (variants && !o->options->warm_up && m > USUAL_WARM_UP) add_overlap(o, l, 0, USUAL_WARM_UP);
    if (variants && !o->options->warm_up && m > 4 * USUAL_WARM_UP) add_overlap(o, l, 0, m / 2);
}

// ---- newton and shooting ----

static void list_newton(const dpcri_outlook *o, dpcri_list *l) {
    static const dpcr_scheme schemes[] = {DPCR_SCHEME_CHUNKED, DPCR_SCHEME_BLELLOCH, DPCR_SCHEME_PCR,
                                          DPCR_SCHEME_SEQUENTIAL};
    const dpcr_scheme wanted = o->options->scheme;
    if (!o->steps->linearise || (o->failed & 1u << DPCR_METHOD_NEWTON)) return;
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (wanted == DPCR_SCHEME_AUTO || wanted == schemes[i])
            add(l, DPCR_METHOD_NEWTON, schemes[i], dpcri_cost_newton(o, schemes[i]))->sweeps = o->sweeps;
    if (wanted == DPCR_SCHEME_OVERLAP)  // priced as the loop
        add(l, DPCR_METHOD_NEWTON, wanted, dpcri_cost_newton(o, DPCR_SCHEME_SEQUENTIAL))->sweeps = o->sweeps;
}

static void list_shooting(const dpcri_outlook *o, dpcri_list *l) {
    const int64_t chunk = o->options->chunk ? o->options->chunk : SHOOTING_CHUNK;
    if (!o->steps->linearise || o->options->step_scale || o->steps->length < 2 * chunk ||
        (o->failed & 1u << DPCR_METHOD_SHOOTING))
        return;
    add(l, DPCR_METHOD_SHOOTING, o->options->scheme, dpcri_cost_shooting(o, chunk))->sweeps = o->sweeps;
}

// ---- picard, parataa and parareal, of chains that tell what makes them worth a thought ----

// Sweeps that samplers took (docs/diffusion.md), at tolerances about 1e-3; each digit more wants a third more.
static double expected_told(const dpcri_outlook *o, dpcr_method method) {
    const double tolerance = fmax(0.5 * (o->options->atol + o->options->rtol), 1e-7), length = (double)o->steps->length;
    const double digits = fmax(0.5, 1 + (-log10(tolerance) - 3) / 3);
    if (method == DPCR_METHOD_PICARD) return 0.7 * sqrt(length) * digits;
    if (method == DPCR_METHOD_PARATAA) return 0.7 * sqrt(fmin(length, 100)) * digits;  // its slopes carry the rest
    const int64_t n = dpcri_parareal_chunk(o->steps, o->options);
    return fmin(1 + 0.45 * digits * length / (double)n, ceil(length / (double)n));
}

// The methods' places in dpcri_told that the chain's callbacks and the options allow, as bits.
static unsigned offered(const dpcri_outlook *o) {
    unsigned bits = 0;
    if (!can_run_beside(o) || wants_bits(o) || o->options->step_scale ||
        (o->options->confirm != 0 && !o->steps->coarse) ||
        o->steps->length < 2 * dpcri_parareal_chunk(o->steps, o->options))
        return 0;
    for (int i = 0; i < DPCRI_TOLD; i++) {
        const bool served = dpcri_told[i] == DPCR_METHOD_PARAREAL ? o->steps->coarse != NULL : o->steps->slopes != NULL;
        if (served && !(o->failed & 1u << dpcri_told[i])) bits |= 1u << i;
    }
    return bits;
}

static double told_seconds(const dpcri_outlook *o, int i, double sweeps, double work) {
    return dpcri_told[i] == DPCR_METHOD_PARAREAL
               ? dpcri_cost_parareal(o, dpcri_parareal_chunk(o->steps, o->options), sweeps, work)
               : dpcri_cost_picard(o, sweeps, work);
}

static void list_told(const dpcri_outlook *o, dpcri_list *l) {
    const unsigned bits = offered(o);
    for (int i = 0; i < DPCRI_TOLD; i++) {
        if (!(bits & 1u << i)) continue;
        const double sweeps = o->told[i] > 0 ? o->told[i] : expected_told(o, dpcri_told[i]);
        add(l, dpcri_told[i], DPCR_SCHEME_AUTO, told_seconds(o, i, sweeps, o->work[i]))->sweeps = sweeps;
    }
}

static double doubt_of_tried(const dpcri_outlook *o) { return tried_doubt[o->machine.threads > 1]; }

// Where the fewest sweeps that anybody takes would be ahead of the loop, those of this chain are counted; once, and
// when solves have taken so long that a trial is a small part of it.
static bool try_told(dpcri_outlook *o, dpcri_known *known) {
    const unsigned bits = o->options->start && !o->costs.at_best ? offered(o) : 0;
    const double loop = dpcri_cost_loop(o);
    bool learned = false;
    for (int i = 0; i < DPCRI_TOLD && !dpcri_planning_ends(o); i++) {
        const bool parareal = dpcri_told[i] == DPCR_METHOD_PARAREAL;
        double sweeps = 0, work = 0;
        if (!(bits & 1u << i) || o->told[i] > 0) continue;
        // What is left of the loop's time once the rest of the method is paid.
        const double first = told_seconds(o, i, 1, 1), second = told_seconds(o, i, 2, 2), rest = loop - first;
        const double most = 1 + rest / (second - first), seconds = dpcri_try_seconds(o, dpcri_told[i], most);
        if (doubt_of_tried(o) * told_seconds(o, i, FEWEST_SWEEPS, parareal ? 0 : fewest_work) >= loop) continue;
        if (seconds > o->allowance || !dpcri_try(o, dpcri_told[i], most, &sweeps, &work)) continue;
        o->allowance -= seconds;
        if (!(o->options->planning_seconds > 0)) known->spent = fmax(0, known->spent - LOOP_PART * seconds);
        known->told[i] = (int)fmin(ceil(sweeps), TRIED_SWEEPS), known->work[i] = work;
        o->told[i] = known->told[i], o->work[i] = work;
        learned = true;
    }
    return learned;
}

// A whole method inside the callback tells no cost: a stretch of the chain is solved by it and timed.
static void list_window(const dpcri_outlook *o, dpcri_list *l, dpcr_method method) {
    const dpcr_steps *s = o->steps;
    dpcr_solve_options options = *o->options;
    options.method = method;
    if (!dpcri_solve_has_windows(s, &options) || (o->failed & 1u << method)) return;
    double sweeps = 0;
    const double step = dpcri_window_step(o, &options, &sweeps);
    if (step > 0) add(l, method, DPCR_SCHEME_AUTO, dpcri_cost_window(o, method, step))->sweeps = sweeps;
}

// ---- lists ----

static void list_forward(const dpcri_outlook *o, dpcri_list *l, int64_t warm_up, bool variants) {
    add(l, DPCR_METHOD_SEQUENTIAL, DPCR_SCHEME_AUTO, dpcri_cost_loop(o))->sweeps = 0;
    if (!can_run_beside(o) || is_left_to_the_loop(o)) return;
    if (!wants_bits(o)) {
        list_window(o, l, DPCR_METHOD_NEWTON);
        list_window(o, l, DPCR_METHOD_SHOOTING);
        list_newton(o, l);
        list_shooting(o, l);
        list_told(o, l);
    }
    list_overlap(o, l, warm_up, variants);
}

static void add_backward_overlap(const dpcri_outlook *o, dpcri_list *l, int64_t chunk, int64_t warm_up) {
    int64_t n = chunk;
    if (warm_up <= 0 || !(o->steps->adjoint || o->steps->linearise)) return;
    if (n == 0) overlap_shape(o, 0, warm_up, &n);
    if (2 * n > o->steps->length) return;
    const double seconds = dpcri_backward_can_overlap(o->steps) ? dpcri_cost_adjoint_overlap(o, n, warm_up)
                                                                : dpcri_cost_backward(o, DPCR_SCHEME_OVERLAP);
    dpcr_candidate *c = add(l, DPCR_METHOD_SEQUENTIAL, DPCR_SCHEME_OVERLAP, seconds);
    c->chunk = chunk, c->warm_up = warm_up;
}

// Step 0 comes from z0, which lies elsewhere, and is no chunk's.
static void list_full_backward(const dpcri_outlook *o, dpcri_list *l, int64_t warm_up, int64_t other, bool variants) {
    const int64_t width = dpcri_overlap_call(o->steps), most = most_groups(o, variants);
    int64_t n = 0;
    if (warm_up <= 0 || !o->steps->adjoint || o->options->backward_chunk || o->options->chunk) return;
    overlap_shape(o, 0, warm_up, &n);
    for (int64_t groups = 1; groups <= most; groups *= 2) {
        const int64_t chunk = (o->steps->length - 1) / (width * groups);
        if (chunk >= warm_up && chunk != n && chunk != other) add_backward_overlap(o, l, chunk, warm_up);
    }
}

static void list_backward(const dpcri_outlook *o, dpcri_list *l, int64_t warm_up, bool variants) {
    static const dpcr_scheme schemes[] = {DPCR_SCHEME_CHUNKED, DPCR_SCHEME_BLELLOCH, DPCR_SCHEME_PCR};
    dpcr_candidate *loop = add(l, DPCR_METHOD_SEQUENTIAL, DPCR_SCHEME_SEQUENTIAL, dpcri_cost_adjoint_loop(o));
    loop->sweeps = 0, loop->backward = 1;
    if (!can_run_beside(o) || is_left_to_the_loop(o)) return;
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (o->steps->linearise || (schemes[i] == DPCR_SCHEME_CHUNKED && o->steps->adjoint && o->steps->adjoint_window))
            add(l, DPCR_METHOD_SEQUENTIAL, schemes[i], dpcri_cost_backward(o, schemes[i]));
    const int64_t given = o->options->backward_warm_up;
    const int64_t m = given > 0 ? given : warm_up > 0 ? warm_up : wanted_warm_up(o, false);
    add_backward_overlap(o, l, o->options->backward_chunk, m);
    const dpcr_steps *s = o->steps;
    const int64_t each = chunk_a_thread(o, s->length - 1, s->adjoint_latency, s->adjoint_lane_seconds, m);
    if (each && s->adjoint && !o->options->backward_chunk) add_backward_overlap(o, l, each, m);
    list_full_backward(o, l, m, each, variants);
    if (variants && !o->options->warm_up && !given && m > USUAL_WARM_UP)
        add_backward_overlap(o, l, o->options->backward_chunk, USUAL_WARM_UP);
    if (variants && !o->options->warm_up && !given && m > 4 * USUAL_WARM_UP)
        add_backward_overlap(o, l, o->options->backward_chunk, m / 2);
    for (int64_t i = 0; i < l->count; i++) l->at[i].backward = 1;
}

static int plainness(const dpcr_candidate *c) { return dpcri_is_loop(c) ? 0 : c->chunk == 0 ? 1 : 2; }

// Keeps what is worth a measurement, the loop always; the plainest first, which win where nothing is between them.
static void keep_likely(dpcri_list *l) {
    const double limit = MEASURED_WITHIN * l->at[0].seconds;
    int64_t kept = 0;
    for (int64_t i = 0; i < l->count; i++)
        if (dpcri_is_loop(&l->at[i]) || l->at[i].seconds < limit) l->at[kept++] = l->at[i];
    l->count = kept;
    for (int64_t i = 1; i < l->count; i++)
        for (int64_t k = i; k > 0 && plainness(&l->at[k]) < plainness(&l->at[k - 1]); k--) {
            const dpcr_candidate c = l->at[k];
            l->at[k] = l->at[k - 1], l->at[k - 1] = c;
        }
}

// ---- choosing ----

// A parallel prediction must be below the loop's by the model's doubt, which is small where both share what is hard to
// tell (a backward pass that forms all Jacobians either way), or where sweeps were counted and timed.
static double doubt_of(const dpcri_outlook *o, const dpcr_candidate *c) {
    if (c->backward && !o->steps->adjoint) return shared_doubt;
    const bool priced = o->costs.sweep > 0 || o->steps->lane_seconds > 0;
    for (int i = 0; i < DPCRI_TOLD && !c->backward; i++)
        if (dpcri_told[i] == c->method && o->work[i] > 0 && priced) return doubt_of_tried(o);
    return o->doubt;
}

// A forward way of which only bounds are known: there was too little to gain for a closer look.
static bool is_bound(const dpcri_outlook *o, const dpcr_candidate *c) {
    return o->costs.at_best && !c->backward && !dpcri_is_loop(c);
}

// The best; a measurement knows.
static const dpcr_candidate *pick(const dpcri_outlook *o, const dpcri_list *l) {
    const dpcr_candidate *loop = dpcri_loop_of(l), *best = loop;
    double least = loop->seconds;
    if (l->at[0].measured > 0) return &l->at[0];
    for (int64_t i = 0; i < l->count; i++) {
        const double known = l->at[i].backward ? dpcri_cost_shared_gradients(o) : 0;  // no matter of doubt
        const double seconds = known + doubt_of(o, &l->at[i]) * (l->at[i].seconds - known);
        if (dpcri_is_loop(&l->at[i]) || is_bound(o, &l->at[i]) || !dpcri_wakes_in_time(o, l, &l->at[i])) continue;
        if (seconds < least) best = &l->at[i], least = seconds;
    }
    return best;
}

// max_sweeps counts evaluations of the chain: what has to be finished in order after all then costs at most twice the
// loop; of overlap, which may run its chunks again once whatever that costs, 2.6 times (known_doubt).
static double afforded(const dpcri_outlook *o, const dpcr_candidate *c, double loop) {
    const bool whole = c->method == DPCR_METHOD_PICARD || c->method == DPCR_METHOD_PARATAA;
    return loop / (whole ? dpcri_cost_evaluation(o) : dpcri_candidate_seconds(c) / fmax(1, c->sweeps));
}

static int budget(const dpcri_outlook *o, const dpcr_candidate *c, double loop) {
    const double sweeps = afforded(o, c, loop);
    if (c->method == DPCR_METHOD_OVERLAP) return (int)fmin(fmax(floor(sweeps), FEWEST_OVERLAP), OVERLAP_SWEEPS);
    return (int)fmin(fmax(ceil(sweeps), 1), 1000);
}

// What a measurement allowed is kept with it: the same plan, and the same bits, when it is known.
static void take_forward(dpcr_solve_plan *plan, const dpcri_outlook *o, dpcri_known *known, const dpcr_candidate *c,
                         double loop) {
    dpcr_solve_options *options = &plan->options;
    options->method = c->method;
    if (c->method == DPCR_METHOD_SEQUENTIAL) return;
    if (c->scheme) options->scheme = c->scheme;
    if (c->chunk) options->chunk = c->chunk;
    if (c->warm_up) options->warm_up = c->warm_up;
    options->join_tolerance = dpcri_join_tolerance(o, c);
    if (options->max_sweeps > 0) return;
    if (known->max_sweeps == 0) known->max_sweeps = budget(o, c, loop);
    options->max_sweeps = known->max_sweeps;
}

// Forward's chunk is backward's too where that has none, so what was chosen for forward alone is not left to stand.
static void take_backward(dpcr_solve_plan *plan, const dpcri_outlook *o, const dpcr_candidate *c) {
    plan->options.backward = c->scheme;
    if (c->scheme == DPCR_SCHEME_OVERLAP && c->chunk)
        plan->options.backward_chunk = c->chunk;
    else if (c->scheme == DPCR_SCHEME_OVERLAP && plan->options.chunk != o->options->chunk &&
             !o->options->backward_chunk)
        overlap_shape(o, 0, c->warm_up, &plan->options.backward_chunk);
    if (c->scheme == DPCR_SCHEME_OVERLAP) plan->options.backward_warm_up = c->warm_up;
}

// Lists, measures where asked, picks, remembers. `slot` 0: forward, 1: backward.
static dpcr_status choose(dpcr_solve_plan *plan, dpcri_outlook *o, dpcri_known *known, int slot, dpcr_error *error) {
    dpcri_list l = {.at = plan->candidates + plan->candidate_count};
    const bool backward = slot == 1, measure = plan->options.planning == DPCR_PLANNING_MEASURE;
    dpcr_candidate chosen;
    if (backward)
        list_backward(o, &l, known->warm_up, measure);
    else
        list_forward(o, &l, known->warm_up, measure);
    sort_predicted(&l);
    const dpcr_status status = ended(o, error);  // a method inside a callback was run
    if (status != DPCR_OK) return status;
    if (known->chosen[slot]) {
        chosen = known->candidate[slot];
        chosen.backward = backward;
        dpcri_say(plan, slot ? "; backward " : "");
        dpcri_say(plan, backward ? dpcr_scheme_name(chosen.scheme) : dpcr_method_name(chosen.method));
        dpcri_say(plan, ": known from an earlier measurement");
    } else if (plan->options.planning == DPCR_PLANNING_WISDOM && l.count > 1) {  // one way needs no measurement
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "solve: nothing is known of this chain%s; planning measure would find out",
                          backward ? " backward" : "");
    } else {
        if (measure && l.count > 1) {
            keep_likely(&l);
            const double budget = plan->options.planning_seconds > 0 ? plan->options.planning_seconds : 1;
            known->chosen[slot] = dpcri_measure(o, backward, l.at, l.count, budget / 2);
        }
        const dpcr_candidate *best = pick(o, &l);
        dpcri_tell_choice(plan, o, &l, best, backward);
        if (measure && l.count > 1 && !known->chosen[slot])
            dpcri_say(plan, " (estimated: not enough memory to measure)");
        chosen = known->candidate[slot] = *best;
        if (!backward) known->max_sweeps = 0;
    }
    plan->candidate_count += l.count;
    if (backward)
        take_backward(plan, o, &chosen);
    else
        take_forward(plan, o, known, &chosen, dpcri_candidate_seconds(dpcri_loop_of(&l)));
    return DPCR_OK;
}

// ---- both directions together ----

// A forward pass leaves its tape where its threads are, so for training the best of both directions are timed in pairs
// too, unless nothing but the loop comes near either way.
static bool near_loop(const dpcri_list *l) {
    const dpcr_candidate *best = dpcri_best_parallel(l), *loop = dpcri_loop_of(l);
    return best && best->measured > 0 && loop->measured > 0 && best->measured < beside_other * loop->measured;
}

static const dpcr_candidate *other_than_loop(const dpcri_list *l) {
    const dpcr_candidate *best = dpcri_best_parallel(l);
    return best ? best : dpcri_loop_of(l);
}

static void choose_pair(dpcr_solve_plan *plan, const dpcri_outlook *o, dpcri_known *known, int64_t ahead) {
    const dpcri_list forward = {plan->candidates, ahead},
                     backward = {plan->candidates + ahead, plan->candidate_count - ahead};
    const double budget = plan->options.planning_seconds > 0 ? plan->options.planning_seconds : 1;
    if (!known->chosen[0] || !known->chosen[1] || !(near_loop(&forward) || near_loop(&backward))) return;
    const dpcr_candidate there[2] = {*dpcri_loop_of(&forward), *other_than_loop(&forward)},
                         back[2] = {*dpcri_loop_of(&backward), *other_than_loop(&backward)};
    dpcri_pair best;
    if (!dpcri_measure_pair(o, there, back, budget / 2, &best)) return;
    known->candidate[0] = best.forward, known->candidate[1] = best.backward;
    plan->options = *o->options;
    known->max_sweeps = 0;
    take_forward(plan, o, known, &known->candidate[0], dpcri_candidate_seconds(&there[0]));
    take_backward(plan, o, &known->candidate[1]);
    dpcri_tell_pair(plan, &best.forward, &best.backward, best.seconds, best.loops);
}

static double expected_sweeps(const dpcri_contraction *c, int64_t length) {
    switch (c->memory) {
        case DPCRI_MEMORY_CHAOTIC: return fmin(100, (double)length);
        case DPCRI_MEMORY_KEEPS: return NEUTRAL_SWEEPS;
        default: return EXPECTED_SWEEPS;
    }
}

// ---- looking at the chain ----

static double tolerance_of(const dpcr_solve_plan *plan) {
    const double rounding = plan->steps.dtype == DPCR_F64 ? 1e-15 : 1e-6;
    return fmax(0.1 * (plan->options.atol + plan->options.rtol), rounding);
}

// Whether lanes run side by side, so that overlap may be worth a look.
static bool has_lanes(const dpcri_outlook *o) {
    return can_run_beside(o) && ((o->steps->concurrent && o->machine.threads > 1) || o->steps->lanes > 1);
}

// Is a step what it is here, as far as the machine is described? What was not told of it is this one's.
static bool steps_as_here(dpcr_context *context) {
    dpcr_machine given;
    if (!dpcri_is_described(context, &given)) return true;
    bool told = given.flops > 0 || given.latency > 0 || given.bandwidth > 0 || given.thread_bandwidth > 0;
    for (int i = 0; i < 3; i++) told = told || given.cache_bytes[i] > 0 || given.cache_bandwidth[i] > 0;
    return !told;
}

// A chain that tells what its lanes cost is believed for one sequence; any other is timed, unless the machine is
// another one.
static bool wants_timing(const dpcri_outlook *o) {
    const bool here = steps_as_here(o->context), told = o->steps->latency > 0;
    return can_run_beside(o) && (!(o->steps->lane_seconds > 0) || o->steps->batch > 1) && (here || !told);
}

static void follow_starts(dpcr_solve_plan *plan, dpcri_outlook *o, int64_t usual) {
    const dpcr_steps *s = o->steps;
    if (dpcri_planning_ends(o)) return;
    const int64_t most = wants_bits(o) ? s->length / (s->lanes > 1 ? PROBE_LANES_PART : PROBE_PART) : 0;
    plan->contraction = dpcri_contraction_of(plan->context, s, plan->options.start, tolerance_of(plan), wants_bits(o),
                                             most > usual ? most : usual, o->watch);
    o->evaluations += plan->contraction.evaluations;
    dpcri_planning_heeds(o, plan->contraction.code);
}

static void recall(dpcr_solve_plan *plan, dpcri_outlook *o, dpcri_known *known) {
    dpcri_wisdom_key(o, plan->key);
    *known = (dpcri_known){0};
    dpcri_wisdom_recall(plan->context, plan->key, known);
    o->failed = known->failed;
    o->sweeps_are_seen = known->sweeps > 0;
    for (int i = 0; i < DPCRI_TOLD; i++) o->told[i] = known->told[i], o->work[i] = known->work[i];
}

// ---- chains that tell `coarse` or `slopes`: a look at them may take no more than a small part of their loop ----

// What is left of a distance after the chain's last part, where what has come so far forgets least: by its slopes, else
// by one coarse step from two starts, zeros and halves. 0: it cannot be told.
static double left_of_distance(dpcri_outlook *o) {
    const dpcr_steps *s = o->steps;
    const int64_t n = s->length / LAST_PART;
    double product = 1;
    for (int64_t l = s->length - n; s->slopes && l < s->length; l++) product *= s->slopes[l];
    if (s->slopes) return fabs(product);
    const size_t state = (size_t)s->width * dpcr_dtype_size(s->dtype);
    char *memory = dpcri_alloc_zero(o->context, 4 * state);
    if (!memory) return 0;
    const int64_t shape[3] = {1, 1, s->width};
    const dpcr_span span = dpcri_span(s->length - n, 1, 1, n, 0, 1);
    const dpcri_row_ops *ops = dpcri_row_ops_of(s->dtype);
    bool ran = true;
    for (size_t i = 0; i < 2 && ran; i++) {
        const dpcr_array from = dpcr_array_make(memory + i * state, s->dtype, 3, shape),
                         to = dpcr_array_make(memory + (2 + i) * state, s->dtype, 3, shape);
        if (i == 1) ops->fill(&from, 0.5);
        ran = dpcri_planning_heeds(o, s->coarse(s->user, &span, &from, &to));
        o->evaluations++;
    }
    const double left = ran ? ops->distance(memory + 2 * state, memory + 3 * state, s->width) / 0.5 : 0;
    dpcri_free(o->context, memory);
    return left;
}

// The least that another way than the loop may take, by the costs as they are.
static double fewest_seconds(const dpcri_outlook *o, int64_t warm_up) {
    const unsigned bits = offered(o);
    dpcr_candidate others[DPCRI_CANDIDATES / 2];
    dpcri_list l = {.at = others};
    dpcri_outlook best = *o;
    double least = HUGE_VAL;
    best.sweeps = FEWEST_SWEEPS;
    for (int i = 0; i < DPCRI_TOLD; i++) {
        const double work = dpcri_told[i] == DPCR_METHOD_PARAREAL ? 0 : fewest_work;
        if (bits & 1u << i) least = fmin(least, told_seconds(o, i, FEWEST_SWEEPS, work));
    }
    if (!wants_bits(o)) {
        list_newton(&best, &l);
        list_shooting(&best, &l);
    }
    list_overlap(&best, &l, warm_up, false);
    for (int64_t i = 0; i < l.count; i++) least = fmin(least, l.at[i].seconds);
    return least;
}

// Seconds that are to be gained, by the costs as they are.
static double gain(const dpcri_outlook *o, const dpcri_known *known) {
    return dpcri_cost_loop(o) - doubt_of_tried(o) * fewest_seconds(o, known->warm_up);
}

// A sweep's call is timed where the processor's peak leaves something to gain; and before the loop is given up, as many
// more of its steps as show what it takes once caches and threads have settled. Where only bounds are known from
// before, since the call would have taken too long, solves since then pay for it.
static void glance(dpcri_outlook *o, const dpcri_known *known) {
    const int64_t length = o->steps->length;
    const double asked = o->options->planning_seconds;
    if (!(o->costs.block > 0)) {
        if (!dpcri_time_step(o, 2 + length / 256)) return;
        dpcri_bound_costs(o);
    }
    const double most = gain(o, known);
    if (!(most > 0)) return;
    const double call = asked > 0 ? asked / ASKED_PART : most / GAIN_PART + known->spent / (2 * LOOP_PART);
    if (dpcri_time_sweep(o, call) && gain(o, known) > 0) dpcri_time_step(o, 2 + length / LOOP_PART);
}

static void look_with_care(dpcr_solve_plan *plan, dpcri_outlook *o, dpcri_known *known) {
    const int64_t part = o->steps->length / LAST_PART, least = part > LEAST_PROBE ? part : LEAST_PROBE;
    const double asked = plan->options.planning_seconds, began = dpcri_seconds();
    dpcri_rates_at_hand(plan->context, &o->machine);
    recall(plan, o, known);
    o->costs = known->costs;
    plan->contraction = known->memory;
    if (has_lanes(o) && plan->contraction.memory == DPCRI_MEMORY_UNKNOWN) {
        if (left_of_distance(o) > least_forgotten)
            plan->contraction.memory = DPCRI_MEMORY_KEEPS;
        else
            follow_starts(plan, o, least < PROBE_STEPS ? least : PROBE_STEPS);
    }
    o->contraction = plan->contraction;  // whether overlap may gain
    const bool again = o->costs.at_best && (asked > 0 || known->spent > 0);
    if ((!(o->costs.block > 0) || again) && wants_timing(o)) glance(o, known);
    known->costs = o->costs;
    known->memory = plan->contraction;
    const double looked = o->evaluations > 0 ? dpcri_seconds() - began : 0;
    if (!(asked > 0)) known->spent = fmax(0, known->spent - LOOP_PART * looked);
    o->allowance = asked > 0 ? asked - looked : (dpcri_cost_loop(o) + known->spent) / LOOP_PART;
}

// Sequences that keep all threads' multiply-adds at work in step leave nothing to lanes: seen from a few steps of the
// loop beside what the machine reaches, in hardly more time than they take. What forgets at once gains most, so that is
// supposed; whether it forgets is then not asked, nor is any other way timed, but where time is given for planning.
static void see_whether_filled(dpcri_outlook *o) {
    const dpcr_steps *s = o->steps;
    if (!(s->batch > 1 && s->flops > 0 && is_wide(o)) || s->window || o->options->warm_up || o->options->chunk ||
        o->options->planning != DPCR_PLANNING_ESTIMATE || o->options->planning_seconds > 0 || !wants_timing(o) ||
        dpcri_wisdom_knows(o) || !dpcri_time_loop(o))
        return;
    dpcr_candidate others[DPCRI_CANDIDATES / 2];
    dpcri_list l = {.at = others};
    dpcri_outlook best = *o;
    best.costs.lane = s->flops / o->machine.flops;
    list_overlap(&best, &l, FEWEST_WARM_UP, false);
    double seconds = HUGE_VAL;
    for (int64_t i = 0; i < l.count; i++) seconds = fmin(seconds, l.at[i].seconds);
    if (l.count > 0 && known_doubt * seconds >= dpcri_cost_loop(o)) o->filled = seconds;
}

static void look_closely(dpcr_solve_plan *plan, dpcri_outlook *o, dpcri_known *known) {
    dpcri_rates_of(plan->context, &o->machine);
    see_whether_filled(o);
    if (has_lanes(o) && !(o->filled > 0)) follow_starts(plan, o, PROBE_STEPS);
    o->contraction = plan->contraction;  // of the key
    if (wants_timing(o) && !is_left_to_the_loop(o))
        o->costs = dpcri_costs_of(o, dpcri_row_block(o->steps), !is_wide(o));
    recall(plan, o, known);
}

static void look(dpcr_solve_plan *plan, dpcri_outlook *o, dpcri_known *known) {
    if (dpcri_is_weighed(o->steps))
        look_with_care(plan, o, known);
    else
        look_closely(plan, o, known);
    o->contraction = plan->contraction;
    o->doubt = o->steps->latency > 0 || o->costs.lane > 0 ? known_doubt : guessed_doubt;
    o->sweeps = known->sweeps ? known->sweeps : expected_sweeps(&o->contraction, o->steps->length);
}

static bool goes_back(const dpcr_steps *steps) { return steps->adjoint || steps->linearise || steps->adjoint_window; }

dpcr_status dpcri_planner_choose(dpcr_solve_plan *plan, dpcr_error *error) {
    const dpcr_solve_options asked = plan->options;
    const bool forward = asked.method == DPCR_METHOD_AUTO, backward = asked.backward == DPCR_SCHEME_AUTO;
    if (!forward && !backward) {
        snprintf(plan->sentence, sizeof plan->sentence, "%s, backward %s: as asked", dpcr_method_name(asked.method),
                 dpcr_scheme_name(asked.backward));
        return DPCR_OK;
    }
    dpcr_status status = dpcri_planning_serves(plan->context, asked.planning, "solve", error);
    if (status != DPCR_OK) return status;
    if (!forward && !goes_back(&plan->steps)) {  // there is nothing to choose, so nothing is looked at
        plan->options.backward = DPCR_SCHEME_SEQUENTIAL;
        snprintf(plan->sentence, sizeof plan->sentence, "%s: as asked; backward sequential: the only candidate",
                 dpcr_method_name(asked.method));
        return DPCR_OK;
    }
    dpcri_watch watch;
    int code = 0;
    dpcri_outlook o = {.context = plan->context,
                       .steps = &plan->steps,
                       .options = &asked,
                       .given = plan->given,
                       .watch = dpcri_watch_begin(&watch, plan->context, HUGE_VAL),
                       .code = &code};
    const double began = dpcri_seconds();
    dpcri_known known;
    look(plan, &o, &known);
    DPCR_TRY(ended(&o, error));
    const bool before[2] = {known.chosen[0], known.chosen[1]};
    const int allowed = known.max_sweeps;  // 0 in a record of older wisdom: what is predicted now holds from now on
    const bool wants_trial = forward && !known.chosen[0] && asked.planning == DPCR_PLANNING_ESTIMATE;
    const bool timed = dpcri_is_weighed(&plan->steps) && o.evaluations > 0;
    const bool learned = (wants_trial && try_told(&o, &known)) || timed;
    DPCR_TRY(ended(&o, error));
    if (forward)
        DPCR_TRY(choose(plan, &o, &known, 0, error));
    else
        snprintf(plan->sentence, sizeof plan->sentence, "%s: as asked", dpcr_method_name(asked.method));
    const int64_t ahead = plan->candidate_count;
    if (backward) DPCR_TRY(choose(plan, &o, &known, 1, error));
    const bool new = known.chosen[0] && known.chosen[1] && !(before[0] && before[1]);
    if (forward && backward && asked.consume_tape && new) choose_pair(plan, &o, &known, ahead);
    DPCR_TRY(ended(&o, error));  // what was timed by then is worth nothing
    if (learned || known.chosen[0] != before[0] || known.chosen[1] != before[1] ||
        (known.chosen[0] && known.max_sweeps != allowed))
        dpcri_wisdom_remember(plan->context, plan->key, &known);
    plan->planning_seconds = dpcri_seconds() - began;
    plan->planning_evaluations = o.evaluations;
done:
    return status;
}
