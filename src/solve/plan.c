// SPDX-License-Identifier: MIT
// Plans of nonlinear solves: names, checks, defaults, sizes. Everything that shapes the arithmetic is fixed here, from
// the chain's shape and the options alone, so that threads never change a bit.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "solve/backward.h"

static const char *const method_names[DPCR_METHOD_COUNT] = {"auto",    "sequential", "newton",   "diagonal",
                                                            "block",   "picard",     "jacobi",   "damped",
                                                            "overlap", "shooting",   "parareal", "parataa"};

const char *dpcr_method_name(dpcr_method method) {
    return (unsigned)method < DPCR_METHOD_COUNT ? method_names[method] : "unknown";
}

dpcr_status dpcr_method_find(const char *name, dpcr_method *method, dpcr_error *error) {
    for (int i = 0; name && method && i < DPCR_METHOD_COUNT; i++)
        if (strcmp(name, method_names[i]) == 0) {
            *method = (dpcr_method)i;
            return DPCR_OK;
        }
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                      "method is \"%s\", wanted auto, sequential, newton, diagonal, block, picard, jacobi, damped, "
                      "overlap, shooting, parareal or parataa",
                      name ? name : "");
}

static const char *const guess_names[DPCR_GUESS_COUNT] = {"zero", "step", "state", "given"};

const char *dpcr_guess_name(dpcr_guess guess) {
    return (unsigned)guess < DPCR_GUESS_COUNT ? guess_names[guess] : "unknown";
}

dpcr_status dpcr_guess_find(const char *name, dpcr_guess *guess, dpcr_error *error) {
    for (int i = 0; name && guess && i < DPCR_GUESS_COUNT; i++)
        if (strcmp(name, guess_names[i]) == 0) {
            *guess = (dpcr_guess)i;
            return DPCR_OK;
        }
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "guess is \"%s\", wanted zero, step, state or given",
                      name ? name : "");
}

const char *dpcr_reason_name(dpcr_reason reason) {
    switch (reason) {
        case DPCR_REASON_CONVERGED: return "converged";
        case DPCR_REASON_RESIDUAL_ONLY: return "residual-only";
        case DPCR_REASON_SCALED: return "scaled";
        case DPCR_REASON_EXACT: return "exact";
        case DPCR_REASON_SEQUENTIAL: return "sequential";
        case DPCR_REASON_FALLBACK: return "fallback";
        case DPCR_REASON_NOT_CONVERGED: return "not-converged";
        case DPCR_REASON_NONFINITE: return "nonfinite";
    }
    return "unknown";
}

dpcr_status dpcri_refuse_unconverged(const char *call, const dpcr_solve_report *report, dpcr_error *error) {
    if (report->reason != DPCR_REASON_NOT_CONVERGED) return DPCR_OK;
    return dpcri_fail(
        error, DPCR_ERROR_UNSUPPORTED,
        "%s: %s did not converge in %d sweep%s, and no_fallback is set; allow the fallback or more sweeps", call,
        dpcr_method_name(report->method), report->sweeps, report->sweeps == 1 ? "" : "s");
}

static dpcr_status check_steps(const dpcr_steps *steps, bool on_device, dpcr_error *error) {
    if (steps->length < 0 || steps->batch < 0 || steps->width < 1)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "solve: length %lld, batch %lld, width %lld; wanted length and batch >= 0, width >= 1",
                          (long long)steps->length, (long long)steps->batch, (long long)steps->width);
    int64_t count =
        0;  // with room for the few more that window buffers take, so that counts below need no further check
    if (!dpcri_mul(steps->length, steps->batch, &count) || !dpcri_mul(count, steps->width, &count) ||
        !dpcri_mul(count, 64, &count) || steps->batch > INT64_MAX / 64 / steps->width || steps->length > INT64_MAX / 64)
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW,
                          "solve: length %lld times batch %lld times width %lld does not fit", (long long)steps->length,
                          (long long)steps->batch, (long long)steps->width);
    if (steps->dtype != DPCR_F32 && steps->dtype != DPCR_F64)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "solve: dtype is %s, wanted float32 or float64",
                          dpcr_dtype_name(steps->dtype));
    if (!steps->advance && !on_device)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "solve: the callback advance is missing%s",
                          steps->launch ? ": the chain's numbers lie on a device, wanted option device" : "");
    if (steps->tape_values < 0 || !dpcri_mul(steps->length * steps->batch, steps->tape_values, &count) ||
        !dpcri_mul(count, 8, &count))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "solve: tape_values is %lld, wanted 0 or more that fit",
                          (long long)steps->tape_values);
    const struct {
        const char *name;
        double value;
    } told[] = {{"flops", steps->flops},
                {"jacobian_flops", steps->jacobian_flops},
                {"coarse_flops", steps->coarse_flops},
                {"latency", steps->latency},
                {"lane_seconds", steps->lane_seconds},
                {"adjoint_latency", steps->adjoint_latency},
                {"adjoint_lane_seconds", steps->adjoint_lane_seconds},
                {"adjoint_window_seconds", steps->adjoint_window_seconds},
                {"gradient_latency", steps->gradient_latency},
                {"gradient_lane_seconds", steps->gradient_lane_seconds},
                {"weight_bytes", steps->weight_bytes}};
    for (size_t i = 0; i < sizeof told / sizeof *told; i++)
        if (!(told[i].value >= 0 && told[i].value < HUGE_VAL))
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "solve: %s is %g, wanted 0, unknown, or more, and finite",
                              told[i].name, told[i].value);
    if (steps->lanes > INT32_MAX)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "solve: lanes is %lld, wanted at most %lld",
                          (long long)steps->lanes, (long long)INT32_MAX);
    if ((int)steps->kinks < DPCR_KINKS_NONE || steps->kinks > DPCR_KINKS_AFFINE)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "solve: kinks is %d, wanted 0, none, to %d, affine",
                          (int)steps->kinks, (int)DPCR_KINKS_AFFINE);
    if (!steps->linearise) return DPCR_OK;
    if (steps->jacobian.rows != steps->width || steps->jacobian.cols != steps->width)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "solve: jacobian is %lld x %lld, wanted %lld x %lld",
                          (long long)steps->jacobian.rows, (long long)steps->jacobian.cols, (long long)steps->width,
                          (long long)steps->width);
    if (steps->jacobian.structure == DPCR_CSR)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "solve: a csr jacobian; wanted scalar, diagonal, block or dense");
    return dpcr_transition_check(&steps->jacobian, error);
}

static bool divides(int64_t k, int64_t w) { return k > 0 && w % k == 0; }

dpcr_status dpcri_method_transition(const dpcr_steps *steps, const dpcr_solve_options *options,
                                    dpcr_transition *transition, dpcr_error *error) {
    const dpcr_structure have = steps->jacobian.structure;
    const bool newton_like = options->method == DPCR_METHOD_NEWTON || options->method == DPCR_METHOD_DAMPED ||
                             options->method == DPCR_METHOD_DIAGONAL || options->method == DPCR_METHOD_BLOCK ||
                             options->method == DPCR_METHOD_SHOOTING;
    *transition = dpcr_transition_square(DPCR_ZERO, steps->width, 0);
    if (newton_like && !steps->linearise)
        return dpcri_fail(
            error, DPCR_ERROR_UNSUPPORTED,
            "solve: method %s needs the callback linearise; without it sequential, overlap, picard, jacobi, "
            "parareal and parataa work",
            dpcr_method_name(options->method));
    switch (options->method) {
        case DPCR_METHOD_NEWTON:
        case DPCR_METHOD_SHOOTING: *transition = steps->jacobian; break;
        case DPCR_METHOD_DAMPED:
            if (have == DPCR_IDENTITY)
                *transition = dpcr_transition_square(DPCR_SCALAR, steps->width, 0);
            else
                *transition = steps->jacobian;
            break;
        case DPCR_METHOD_DIAGONAL:
            *transition = have == DPCR_DENSE || have == DPCR_BLOCK || have == DPCR_DIAGONAL
                              ? dpcr_transition_square(DPCR_DIAGONAL, steps->width, 0)
                              : steps->jacobian;
            break;
        case DPCR_METHOD_BLOCK:
            if (!divides(options->block, steps->width))
                return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                                  "solve: block is %lld, wanted a divisor of the width %lld", (long long)options->block,
                                  (long long)steps->width);
            *transition = have == DPCR_DENSE || have == DPCR_BLOCK
                              ? dpcr_transition_square(DPCR_BLOCK, steps->width, options->block)
                              : steps->jacobian;
            break;
        case DPCR_METHOD_PICARD: *transition = dpcr_transition_square(DPCR_SCALAR, steps->width, 0); break;
        default: break;
    }
    // Single steps are cut out of the chain by A = 0, which a structure without values cannot express.
    if (newton_like && transition->structure == DPCR_IDENTITY)
        *transition = dpcr_transition_square(DPCR_SCALAR, steps->width, 0);
    return DPCR_OK;
}

enum { JOIN_STEPS = 128 };  // about so many steps between two calls of gradient_join, each of which costs some steps

static int64_t clamp(int64_t value, int64_t low, int64_t high) {
    return value < low ? low : value > high ? high : value;
}

int64_t dpcri_rows_of_line(const dpcr_steps *steps) {
    const int64_t rows = 64 / (steps->width * (int64_t)dpcr_dtype_size(steps->dtype));
    return rows > 1 ? rows : 1;
}

// Light steps' rows of at most 16 bytes go side by side: eight of them take as long as sixteen.
static int64_t fair_block(const dpcr_steps *steps, int64_t line) {
    enum { LIGHT = 200 };  // flops of a row: a narrow network's, of simple activations
    const bool side_by_side =
        steps->width * (int64_t)dpcr_dtype_size(steps->dtype) <= 16 && steps->flops > 0 && steps->flops <= LIGHT;
    const int64_t batch = steps->batch, few = side_by_side ? 16 : 8;
    const int64_t least = batch >= 128 ? 64 : batch >= 64 ? 32 : batch > 16 ? 16 : few;
    return least > line ? least : line;
}

static bool mixes(const dpcr_steps *steps) {
    return steps->jacobian.structure == DPCR_DENSE || steps->jacobian.structure == DPCR_CSR;
}

// A callback that is called by one thread has all sequences at once. Threads whose blocks of a step share a page wait
// for each other's cache lines, some 14 ns a line: steps that do less with one go in blocks that fill a page. Recurrent
// networks write past the caches then.
int64_t dpcri_row_block(const dpcr_steps *steps) {
    enum { PAGE = 1 << 12, LINE = 64, LINE_FLOPS = 1700 };
    if (!steps->concurrent) return steps->batch > 1 ? steps->batch : 1;
    const int64_t row = steps->width * (int64_t)dpcr_dtype_size(steps->dtype);
    const bool light = !mixes(steps) ||
                       (steps->flops > 0 && !steps->gradient_whole && steps->flops * LINE < (double)(LINE_FLOPS * row));
    return fair_block(steps, light && row > 0 ? (PAGE + row - 1) / row : dpcri_rows_of_line(steps));
}

// Going back there is more to do with a line, where components mix.
int64_t dpcri_back_block(const dpcr_steps *steps) {
    return mixes(steps) && steps->concurrent ? fair_block(steps, dpcri_rows_of_line(steps)) : dpcri_row_block(steps);
}

enum {
    DPCRI_FEW_BLOCKS = 16,  // more keep threads at work by themselves
    PAST_PART = 16          // a step past a sequence's end takes about such a part of one
};

static int64_t steps_of(const dpcr_steps *steps, int64_t from, int64_t to, int64_t row) {
    const int64_t left = steps->ends[row] - from, live = left < to - from ? left : to - from;
    return PAST_PART * (live > 0 ? live : 0) + to - from;
}

int64_t dpcri_block_begin(const dpcr_steps *steps, int64_t from, int64_t to, int64_t row, int64_t rows, int64_t block,
                          int64_t k) {
    const int64_t count = (rows + block - 1) / block, line = dpcri_rows_of_line(steps);
    if (k <= 0 || k >= count) return row + (k <= 0 ? 0 : rows);
    if (!steps->ends || count > DPCRI_FEW_BLOCKS) return row + k * block;
    double all = 0, before = 0;
    for (int64_t r = 0; r < rows; r++) all += (double)steps_of(steps, from, to, row + r);
    int64_t at = 0;
    while (at < rows && before * (double)count < (double)k * all) {
        for (int64_t r = at; r < at + line && r < rows; r++) before += (double)steps_of(steps, from, to, row + r);
        at += line;
    }
    return row + (at < rows ? at : rows);
}

// What the gradients of a window read should lie in cache from its adjoint loop. But weights' gradients that are made
// of whole windows and that a core's caches do not hold pass once a window, which has rows enough for that.
int64_t dpcri_loop_back_window(const dpcr_steps *steps) {
    enum { LARGE = 1 << 20, ROWS = 256 };
    // Without adjoint the windows are linear chains, whose seams are seen in the bits: they lie as for one sequence.
    const int64_t jacobian = !steps->adjoint && steps->linearise ? dpcr_transition_values(&steps->jacobian) : 0;
    const int64_t numbers = steps->width + jacobian + (steps->gradient_whole ? steps->tape_values : 0);
    const int64_t real = (int64_t)dpcr_dtype_size(steps->dtype);
    const int64_t batch = steps->adjoint && steps->batch > 0 ? steps->batch : 1;
    const int64_t bytes = batch * numbers * real, state = bytes > 0 ? bytes : 1;
    const bool large =
        steps->adjoint && steps->gradient_whole && mixes(steps) && steps->flops / 2 * (double)real > LARGE;
    const int64_t first_cache = (32 << 10) / state, most = first_cache > 256 ? first_cache : 256;
    return clamp((256 << 10) / state, large ? (ROWS + batch - 1) / batch : 1, clamp(steps->length, 1, most));
}

dpcr_status dpcri_plan_derive(dpcr_solve_plan *plan, dpcr_error *error) {
    const dpcr_steps *steps = &plan->steps;
    dpcr_status status = dpcri_method_transition(steps, &plan->options, &plan->transition, error);
    if (status != DPCR_OK) return status;
    const int64_t piece_bytes = 128 << 10, real = (int64_t)dpcr_dtype_size(steps->dtype);
    const int64_t length = steps->length > 0 ? steps->length : 1;
    const int64_t jacobian = steps->linearise ? dpcr_transition_values(&steps->jacobian) : 0;
    int64_t each = 0;
    if (!dpcri_mul(steps->batch ? steps->batch : 1, (jacobian + 4 * steps->width) * real, &each))
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "solve: batch %lld times width %lld does not fit",
                          (long long)steps->batch, (long long)steps->width);
    plan->piece = clamp(piece_bytes / each, 1, clamp(steps->length / 16, 1, 256));
    // A callback that uses the threads itself wants all its lanes at once.
    if (!steps->concurrent && steps->lanes > plan->piece) plan->piece = clamp(steps->lanes, 1, length);
    if (plan->window && plan->piece > plan->window) plan->piece = plan->window;
    plan->row_block = dpcri_row_block(steps);
    plan->back_block = dpcri_back_block(steps);
    plan->linear =
        (dpcr_chain_options){.size = sizeof plan->linear, .scheme = plan->options.scheme, .chunk = plan->options.chunk};
    dpcri_chain_defaults(&plan->transition, plan->window ? plan->window : 1, steps->batch, &plan->linear);
    const dpcr_scheme backward = plan->options.backward;
    plan->transposed = (dpcr_chain_options){.size = sizeof plan->transposed, .scheme = backward};
    dpcri_chain_defaults(&steps->jacobian, steps->length ? steps->length : 1, steps->batch, &plan->transposed);
    return DPCR_OK;
}

// The scheme of a sweep when the caller leaves it open: what does the least work where the batch or the width fills the
// lanes (the loop over A delta + r), chunks where one step is a few operations only.
static dpcr_scheme default_scheme(const dpcr_transition *transition, int64_t length) {
    const bool elementwise = transition->structure != DPCR_DENSE && transition->structure != DPCR_BLOCK;
    return elementwise && length >= 256 ? DPCR_SCHEME_CHUNKED : DPCR_SCHEME_SEQUENTIAL;
}

// Methods whose result an error estimate confirms, or that have no residuals to speak of.
static bool has_estimate(dpcr_method method) {
    return method == DPCR_METHOD_AUTO || method == DPCR_METHOD_SEQUENTIAL || method == DPCR_METHOD_NEWTON ||
           method == DPCR_METHOD_OVERLAP || method == DPCR_METHOD_SHOOTING;
}

// Of the method that the options name, from what the caller gave.
static void fill_tolerances(dpcr_solve_options *o, const double given[2], dpcr_dtype dtype) {
    const double full = dtype == DPCR_F64 ? DPCR_TOLERANCE_F64 : DPCR_TOLERANCE_F32;
    const double tolerance = has_estimate(o->method) ? full : DPCR_UNCONFIRMED * full;
    const double open[2] = {given[1] < 0 ? 0 : tolerance, given[0] < 0 ? 0 : tolerance};
    o->atol = given[0] == 0 ? open[0] : fmax(given[0], 0);
    o->rtol = given[1] == 0 ? open[1] : fmax(given[1], 0);
}

dpcr_status dpcri_check_step_scale(const dpcr_solve_options *o, int64_t length, dpcr_error *error) {
    for (int64_t l = 0; o->step_scale && l < length; l++)
        if (!(o->step_scale[l] >= 0))
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "solve: step_scale of step %lld is %g, wanted 0 or more",
                              (long long)l, o->step_scale[l]);
    return DPCR_OK;
}

static dpcr_status set_defaults(dpcr_solve_plan *plan, dpcr_error *error) {
    dpcr_solve_options *o = &plan->options;
    if ((unsigned)o->method >= DPCR_METHOD_COUNT || (unsigned)o->scheme >= DPCR_SCHEME_COUNT ||
        (unsigned)o->backward >= DPCR_SCHEME_COUNT || (unsigned)o->guess >= DPCR_GUESS_COUNT)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "solve: method %d, scheme %d, backward %d or guess %d is none of the named ones",
                          (int)o->method, (int)o->scheme, (int)o->backward, (int)o->guess);
    if (o->window < 0 || o->chunk < 0 || o->backward_chunk < 0 || o->warm_up < 0 || o->backward_warm_up < 0 ||
        o->block < 0 || o->max_sweeps < 0 || isnan(o->atol) || isnan(o->rtol) || isnan(o->join_tolerance))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "solve: window, chunk, backward_chunk, warm_up, backward_warm_up, block and max_sweeps must "
                          "not be negative, tolerances not NaN");
    if ((unsigned)o->planning >= DPCR_PLANNING_COUNT || !(o->planning_seconds >= 0))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "solve: planning is %d and planning_seconds %g, wanted a named one and 0 or more",
                          (int)o->planning, o->planning_seconds);
    const int64_t row[2] = {plan->steps.batch, plan->steps.width};
    if ((dpcri_confirms(o) || (o->method == DPCR_METHOD_PARAREAL && o->confirm != 0)) && !plan->steps.coarse)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "solve: confirm is %g, but the chain has no callback coarse, by which errors of %s are "
                          "estimated; newton has an estimate of its own",
                          o->confirm, dpcr_method_name(o->method));
    if (dpcri_confirms(o) && o->confirm < 0 && o->memory_limit)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "solve: confirm is %g, the estimate alone, beside a memory_limit, under which parareal "
                          "estimates and corrects; wanted 0 or more, or no limit",
                          o->confirm);
    if (o->start) {
        const dpcr_status started =
            dpcri_check_array("solve_plan_create", "options.start", o->start, plan->steps.dtype, 2, row, error);
        if (started != DPCR_OK) return started;
    }
    if (isnan(o->confirm) || (unsigned)o->lock >= DPCR_LOCK_COUNT || o->order < 0 || o->mixed < 0 || o->mixed > 4)
        return dpcri_fail(
            error, DPCR_ERROR_ARGUMENT,
            "solve: confirm is %g, lock %d, order %lld, mixed %d; wanted a number, a named one, 0 or more, "
            "0 to 4",
            o->confirm, (int)o->lock, (long long)o->order, o->mixed);
    if (o->lock && o->method != DPCR_METHOD_PICARD)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "solve: locks by the mean square of corrections are picard's, not %s's",
                          dpcr_method_name(o->method));
    if (!(o->damping >= 0 && o->damping <= 1))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "solve: damping is %g, wanted 0..1", o->damping);
    plan->given[0] = o->atol, plan->given[1] = o->rtol;
    fill_tolerances(o, plan->given, plan->steps.dtype);
    if (o->step_scale &&
        (o->method == DPCR_METHOD_OVERLAP || o->method == DPCR_METHOD_SHOOTING || o->method == DPCR_METHOD_PARAREAL))
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "solve: step_scale is given, but method %s has no residual a step; wanted a method of sweeps",
                          dpcr_method_name(o->method));
    const dpcr_status scaled = dpcri_check_step_scale(o, plan->steps.length, error);
    if (scaled != DPCR_OK) return scaled;
    if (o->damping == 0) o->damping = 0.7;
    if (o->block == 0) o->block = 2;
    const int64_t length = plan->steps.length > 0 ? plan->steps.length : 1;
    if (o->chunk > length) o->chunk = length;
    if (o->warm_up > length) o->warm_up = length;
    if (o->backward_chunk > length) o->backward_chunk = length;
    if (o->backward_warm_up > length) o->backward_warm_up = length;
    if (o->mixed == 0) o->mixed = 2;
    if (o->order == 0 || o->order > length) o->order = length;
    const dpcr_status chosen = dpcri_planner_choose(plan, error);
    if (chosen != DPCR_OK) return chosen;
    fill_tolerances(o, plan->given, plan->steps.dtype);  // of AUTO's choice
    o->start = NULL;                                     // the caller's, and read
    if (o->warm_up == 0) o->warm_up = 64;
    o->warm_up = clamp(o->warm_up, 1, length);
    o->backward_warm_up = clamp(o->backward_warm_up ? o->backward_warm_up : o->warm_up, 1, length);
    if (o->max_sweeps == 0) o->max_sweeps = o->method == DPCR_METHOD_OVERLAP ? 3 : 100;
    if (o->chunk == 0 && o->method == DPCR_METHOD_PARAREAL) o->chunk = (int64_t)ceil(sqrt((double)length));
    plan->windows = dpcri_solve_has_windows(&plan->steps, o);
    dpcr_transition transition;
    const dpcr_status status = dpcri_method_transition(&plan->steps, o, &transition, error);
    if (status != DPCR_OK) return status;
    if (o->scheme == DPCR_SCHEME_AUTO) o->scheme = default_scheme(&transition, plan->steps.length);
    return DPCR_OK;
}

static dpcr_status check_backward(const dpcr_solve_plan *plan, dpcr_error *error) {
    const dpcr_steps *steps = &plan->steps;
    const bool by_lanes = plan->options.backward == DPCR_SCHEME_OVERLAP && dpcri_backward_can_overlap(steps);
    if (plan->options.backward != DPCR_SCHEME_SEQUENTIAL && !by_lanes && !dpcri_backward_by_windows(plan) &&
        !steps->linearise)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "solve: backward %s needs the callback linearise; without it backward sequential works",
                          dpcr_scheme_name(plan->options.backward));
    return DPCR_OK;
}

// Halves the windows until the workspace fits the limit: each by what its own pass needs, so that a plan made with the
// window that was found finds it again, and the same one backward.
static dpcr_status fit_memory(dpcr_solve_plan *plan, dpcr_error *error) {
    const size_t limit = plan->options.memory_limit ? plan->options.memory_limit : SIZE_MAX - 1;
    for (;;) {
        const bool derived = dpcri_plan_derive(plan, error) == DPCR_OK;
        const size_t forward = derived ? dpcri_solve_bytes(plan, error) : SIZE_MAX,
                     backward = derived ? dpcri_backward_bytes(plan) : SIZE_MAX;
        plan->workspace = forward > backward ? forward : backward;
        if (plan->workspace <= limit) return DPCR_OK;
        const bool shorter = forward > limit && plan->window > 1, back = backward > limit && plan->backward_window > 1;
        if (!shorter && !back) break;
        if (shorter) plan->window = (plan->window + 1) / 2;
        if (back) plan->backward_window = (plan->backward_window + 1) / 2;
    }
    if (plan->workspace == SIZE_MAX)
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW,
                          "solve: the workspace of length %lld, batch %lld, width %lld does not fit any size",
                          (long long)plan->steps.length, (long long)plan->steps.batch, (long long)plan->steps.width);
    return dpcri_fail(error, DPCR_ERROR_MEMORY,
                      "solve: needs %zu bytes of workspace even with windows of one step, the limit is %zu",
                      plan->workspace, limit);
}

// The options as a caller gives them: none of what is 0 there means a default.
static dpcr_solve_options pinned_options(const dpcr_solve_plan *plan) {
    dpcr_solve_options o = plan->options;
    o.size = sizeof o;
    o.planning = DPCR_PLANNING_ESTIMATE;
    if (o.atol == 0) o.atol = -1;
    if (o.rtol == 0) o.rtol = -1;
    if (plan->windows) o.scheme = DPCR_SCHEME_AUTO;  // a scheme of its own would be another way to run it
    if (plan->window < plan->steps.length) o.window = plan->window;
    return o;
}

dpcr_status dpcr_solve_plan_create(dpcr_context *context, const dpcr_steps *steps, const dpcr_solve_options *options,
                                   dpcr_solve_plan **plan, dpcr_error *error) {
    if (!context || !steps || !plan)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "solve_plan_create: context, steps or plan is NULL");
    *plan = NULL;
    if (steps->size < offsetof(dpcr_steps, linearise))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "solve_plan_create: steps.size is %zu, wanted sizeof(dpcr_steps)",
                          steps->size);
    dpcr_solve_plan *made = dpcri_alloc_zero(context, sizeof *made);
    if (!made)
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "solve_plan_create: no memory for the plan (%zu bytes)",
                          sizeof *made);
    dpcr_status status;
    made->context = context;
    DPCRI_COPY_IN(made->steps, steps);
    if (options) {
        if (options->size < offsetof(dpcr_solve_options, scheme)) {
            status =
                dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                           "solve_plan_create: options.size is %zu, wanted sizeof(dpcr_solve_options)", options->size);
            goto done;
        }
        DPCRI_COPY_IN(made->options, options);
    }
    const bool on_device = dpcri_solve_on_device(&made->options);
    DPCR_TRY(dpcri_check_reserved("solve: options", made->options.reserved, sizeof made->options.reserved, error));
    DPCR_TRY(check_steps(&made->steps, on_device, error));
    if (on_device) {
        DPCR_TRY(dpcri_solve_plan_device(made, error));
        *plan = made;
        made = NULL;
        goto done;
    }
    DPCR_TRY(set_defaults(made, error));
    DPCR_TRY(check_backward(made, error));
    const int64_t length = made->steps.length > 0 ? made->steps.length : 1;
    made->window = made->options.window ? clamp(made->options.window, 1, length) : length;
    made->backward_window = length;
    if (made->options.backward == DPCR_SCHEME_SEQUENTIAL) {
        made->backward_window = dpcri_loop_back_window(&made->steps);
    } else if (dpcri_backward_by_windows(made)) {
        // Whole pieces: the bits of a sequence follow from the cuts, and must not depend on what is beside it.
        const int64_t state = made->steps.width * (int64_t)dpcr_dtype_size(made->steps.dtype);
        const int64_t piece = dpcri_backward_piece(&made->steps), wanted = clamp((128 << 10) / state, 4096, INT64_MAX);
        made->backward_window = clamp((wanted + piece - 1) / piece * piece, 1, length);
    }
    DPCR_TRY(fit_memory(made, error));
    made->join_windows = clamp(JOIN_STEPS / made->backward_window, 1, JOIN_STEPS);
    made->pinned = pinned_options(made);
    *plan = made;
    made = NULL;
done:
    dpcri_free(context, made);
    return status;
}

void dpcr_solve_plan_destroy(dpcr_solve_plan *plan) {
    if (plan) dpcri_free(plan->context, plan);
}

const char *dpcr_solve_plan_sentence(const dpcr_solve_plan *plan) { return plan ? plan->sentence : ""; }
dpcr_method dpcr_solve_plan_method(const dpcr_solve_plan *plan) {
    return plan ? plan->options.method : DPCR_METHOD_AUTO;
}
dpcr_scheme dpcr_solve_plan_backward(const dpcr_solve_plan *plan) {
    return plan ? plan->options.backward : DPCR_SCHEME_AUTO;
}
size_t dpcr_solve_plan_workspace(const dpcr_solve_plan *plan) { return plan ? plan->workspace : 0; }
const dpcr_solve_options *dpcr_solve_plan_options(const dpcr_solve_plan *plan) { return plan ? &plan->pinned : NULL; }

const char *dpcr_solve_plan_memory(const dpcr_solve_plan *plan, double *rate, int64_t *steps) {
    const dpcri_contraction none = {0}, *c = plan ? &plan->contraction : &none;
    if (rate) *rate = c->rate;
    if (steps) *steps = c->to_bits ? c->to_bits : c->within;
    return dpcri_memory_name(c->memory);
}

void dpcr_solve_plan_effort(const dpcr_solve_plan *plan, double *seconds, int64_t *evaluations) {
    if (seconds) *seconds = plan ? plan->planning_seconds : 0;
    if (evaluations) *evaluations = plan ? plan->planning_evaluations : 0;
}

// The workspace of a candidate is that of a plan which asks for it.
static size_t candidate_workspace(const dpcr_solve_plan *plan, const dpcr_candidate *c) {
    dpcr_solve_options options = plan->pinned;
    options.method = c->backward ? DPCR_METHOD_SEQUENTIAL : c->method;
    options.scheme = c->backward ? DPCR_SCHEME_AUTO : c->scheme;
    options.backward = c->backward                            ? c->scheme
                       : dpcri_solve_on_device(&plan->pinned) ? DPCR_SCHEME_AUTO
                                                              : DPCR_SCHEME_SEQUENTIAL;
    options.chunk = c->backward ? 0 : c->chunk;
    options.backward_chunk = c->backward ? c->chunk : 0;
    options.window = 0;
    if (c->warm_up && c->backward) options.backward_warm_up = c->warm_up;
    if (c->warm_up && !c->backward) options.warm_up = c->warm_up;
    dpcr_solve_plan *trial = NULL;
    if (dpcr_solve_plan_create(plan->context, &plan->steps, &options, &trial, NULL) != DPCR_OK) return 0;
    const size_t bytes = trial->workspace;
    dpcr_solve_plan_destroy(trial);
    return bytes;
}

int dpcr_solve_plan_candidate(const dpcr_solve_plan *plan, int64_t index, dpcr_candidate *candidate) {
    if (!plan || !candidate || index < 0 || index >= plan->candidate_count) return 0;
    dpcr_candidate c = plan->candidates[index];
    c.workspace = candidate_workspace(plan, &c);
    dpcri_copy_out(candidate, &c, sizeof c);
    return 1;
}
