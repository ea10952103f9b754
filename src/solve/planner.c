// SPDX-License-Identifier: MIT
// The planner: predicts the seconds of the loop and of every candidate from the chain's cost and rates of the
// machine (measured once a context), chooses the least, and says why in one sentence. docs/math/cost.md has the model.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "solve/solve_internal.h"

// Of Newton on networks as they are initialised (docs/math/newton.md), and what part of the peak rate is reached by
// steps over a batch, and by Jacobians and their products. A model's doubt goes to the loop, which is always right.
enum { EXPECTED_SWEEPS = 4 };
static const double step_efficiency = 0.5, jacobian_efficiency = 0.1, doubt = 1.25;
static const double call_seconds = 2e-6;  // of the driver itself, a sweep

typedef struct candidate {
    dpcr_method method;
    dpcr_scheme scheme;
    double seconds;
} candidate;

static double more(double a, double b) { return a > b ? a : b; }
static double less(double a, double b) { return a < b ? a : b; }

// What one step of one sequence waits for.
static double step_latency(const dpcri_rates *rates, const dpcr_steps *steps) {
    return steps->latency > 0 ? steps->latency : rates->latency * (4 + (double)steps->width);
}

static double loop_seconds(const dpcri_rates *rates, const dpcr_steps *steps) {
    const double threads = less(rates->threads, more(1, (double)steps->batch / 8));
    const double work = steps->flops * (double)steps->batch / (step_efficiency * rates->flops * threads);
    return (double)steps->length * more(step_latency(rates, steps), work);
}

// Products of transitions wait for no latency but in the loop, whose width is that of what mixes.
static double linear_seconds(const dpcri_rates *rates, const dpcr_transition *t, int64_t length, int64_t batch,
                             dpcr_scheme scheme) {
    const double rate = jacobian_efficiency * rates->flops * rates->threads;
    const double apply = dpcr_transition_apply_flops(t) / rate, compose = dpcr_transition_compose_flops(t) / rate;
    const double n = (double)length, rows = (double)batch, levels = length > 1 ? ceil(log2(n)) : 1;
    const double mixed = t->structure == DPCR_DENSE   ? (double)t->rows
                         : t->structure == DPCR_BLOCK ? (double)t->block
                                                      : 1;
    switch (scheme) {
        case DPCR_SCHEME_PCR: return n * rows * levels * (compose + apply) + levels * rates->region;
        case DPCR_SCHEME_BLELLOCH: return n * rows * (compose + 2 * apply) + 2 * levels * rates->region;
        case DPCR_SCHEME_CHUNKED: return n * rows * (compose + 2 * apply) + 3 * rates->region;
        default: {
            const double threads = less(rates->threads, more(1, rows / 8));
            return n * more(rates->latency * (1 + mixed), rows * apply * rates->threads / threads);
        }
    }
}

// Values and Jacobians of all steps, written and read once. Every step has its own parameters, so side by side it takes
// no less than in the loop, and its Jacobian as much again.
static double evaluation_seconds(const dpcri_rates *rates, const dpcr_steps *steps) {
    const double states = (double)steps->length * (double)steps->batch;
    const double flops = steps->flops / step_efficiency + steps->jacobian_flops / jacobian_efficiency;
    const double values = (double)dpcr_transition_values(&steps->jacobian) + 4 * (double)steps->width;
    const double bytes = 2 * values * (double)dpcr_dtype_size(steps->dtype);
    const double least = 2 * (double)steps->length * step_latency(rates, steps) / rates->threads;
    return more(least, states * (flops / (rates->flops * rates->threads) + bytes / rates->bandwidth)) + rates->region;
}

static double newton_seconds(const dpcri_rates *rates, const dpcr_steps *steps, dpcr_scheme scheme) {
    return EXPECTED_SWEEPS * (evaluation_seconds(rates, steps) + call_seconds + rates->region +
                              linear_seconds(rates, &steps->jacobian, steps->length, steps->batch, scheme));
}

static candidate best_newton(const dpcri_rates *rates, const dpcr_steps *steps, dpcr_scheme wanted) {
    static const dpcr_scheme schemes[] = {DPCR_SCHEME_CHUNKED, DPCR_SCHEME_BLELLOCH, DPCR_SCHEME_PCR,
                                          DPCR_SCHEME_SEQUENTIAL};
    candidate best = {DPCR_METHOD_NEWTON, wanted, HUGE_VAL};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        const bool listed =
            wanted != DPCR_SCHEME_AUTO && wanted != DPCR_SCHEME_OVERLAP;  // overlap is priced as the loop
        if (listed && schemes[i] != wanted) continue;
        const double seconds = newton_seconds(rates, steps, schemes[i]);
        const dpcr_scheme scheme = wanted == DPCR_SCHEME_OVERLAP ? wanted : schemes[i];
        if (wanted == DPCR_SCHEME_OVERLAP && schemes[i] != DPCR_SCHEME_SEQUENTIAL) continue;
        if (seconds < best.seconds) best = (candidate){DPCR_METHOD_NEWTON, scheme, seconds};
    }
    return best;
}

static const char *duration(double seconds, char *buffer, size_t bytes) {
    if (seconds < 1e-3)
        snprintf(buffer, bytes, "%.3g us", seconds * 1e6);
    else if (seconds < 1)
        snprintf(buffer, bytes, "%.3g ms", seconds * 1e3);
    else
        snprintf(buffer, bytes, "%.3g s", seconds);
    return buffer;
}

static void choose_backward(const dpcri_rates *rates, const dpcr_steps *steps, dpcr_solve_options *options,
                            char *sentence, size_t bytes) {
    static const dpcr_scheme schemes[] = {DPCR_SCHEME_CHUNKED, DPCR_SCHEME_BLELLOCH, DPCR_SCHEME_PCR};
    char a[32], b[32];
    const double loop = loop_seconds(rates, steps);  // a vector-Jacobian product costs what a step does
    dpcr_scheme best = DPCR_SCHEME_CHUNKED;
    double least = HUGE_VAL;
    for (size_t i = 0; steps->linearise && i < sizeof schemes / sizeof *schemes; i++) {
        const double seconds = evaluation_seconds(rates, steps) + call_seconds +
                               linear_seconds(rates, &steps->jacobian, steps->length, steps->batch, schemes[i]);
        if (seconds < least) least = seconds, best = schemes[i];
    }
    const bool parallel = doubt * least < loop;
    options->backward = parallel ? best : DPCR_SCHEME_SEQUENTIAL;
    const size_t used = strlen(sentence);
    if (least == HUGE_VAL || used >= bytes) return;
    snprintf(sentence + used, bytes - used, "; backward %s: %s would take about %s, the loop %s",
             dpcr_scheme_name(options->backward), dpcr_scheme_name(best), duration(least, a, sizeof a),
             duration(loop, b, sizeof b));
}

static void choose_method(const dpcri_rates *rates, const dpcr_steps *steps, dpcr_solve_options *options,
                          char *sentence, size_t bytes) {
    char a[32], b[32];
    const double loop = loop_seconds(rates, steps);
    if (!steps->linearise || steps->length < 2 || steps->batch == 0) {
        options->method = DPCR_METHOD_SEQUENTIAL;
        snprintf(sentence, bytes, "sequential: %s",
                 steps->length < 2 || steps->batch == 0 ? "nothing to run side by side"
                                                        : "the chain gives no Jacobian to solve it with");
        return;
    }
    const candidate newton = best_newton(rates, steps, options->scheme);
    const bool parallel = doubt * newton.seconds < loop;
    options->method = parallel ? DPCR_METHOD_NEWTON : DPCR_METHOD_SEQUENTIAL;
    if (parallel) {
        options->scheme = newton.scheme;
        // What has to be finished in order after all has then cost at most twice the loop.
        const double afforded = loop / (newton.seconds / EXPECTED_SWEEPS);
        if (options->max_sweeps == 0) options->max_sweeps = (int)less(more(afforded, 1), 1000);
    }
    snprintf(sentence, bytes, "%s: newton (%s) would need about %d sweeps at %s, the loop takes %s",
             dpcr_method_name(options->method), dpcr_scheme_name(newton.scheme), EXPECTED_SWEEPS,
             duration(newton.seconds / EXPECTED_SWEEPS, a, sizeof a), duration(loop, b, sizeof b));
}

void dpcri_planner_choose(dpcr_context *context, const dpcr_steps *steps, dpcr_solve_options *options, char *sentence,
                          size_t bytes) {
    dpcri_rates rates;
    if (options->method != DPCR_METHOD_AUTO && options->backward != DPCR_SCHEME_AUTO) {
        snprintf(sentence, bytes, "%s, backward %s: as asked", dpcr_method_name(options->method),
                 dpcr_scheme_name(options->backward));
        return;
    }
    dpcri_rates_of(context, &rates);
    if (options->method == DPCR_METHOD_AUTO)
        choose_method(&rates, steps, options, sentence, bytes);
    else
        snprintf(sentence, bytes, "%s: as asked", dpcr_method_name(options->method));
    if (options->backward == DPCR_SCHEME_AUTO) choose_backward(&rates, steps, options, sentence, bytes);
}
