// SPDX-License-Identifier: MIT
// Newton and shooting inside the callback: where a chain's steps bring a whole method of their own (dpcr_steps.window),
// each sequence is one call, which cuts the chain into windows and solves them one after the other without leaving
// registers and cache. What it measured is judged here; a sequence that it could not bring to the end is finished in
// order, from its beginning: a window's states are right to the tolerance only.
//
// A long chain that forgets is cut into pieces of fixed length, which are solved side by side. A piece starts from what
// a run-up of the loop makes of z0; that is tried from two starts first, which must meet at the end of every run-up.
// What a piece's start misses of the end of the piece before it is a residual like any other, and is measured; where it
// is not within tolerance, all that follows is solved anew. Nothing of this depends on the number of threads.
// Derivations: docs/math/newton.md, docs/math/shooting.md, docs/math/windows.md.
#include <math.h>
#include <string.h>

#include "solve/solve_internal.h"

bool dpcri_solve_has_windows(const dpcr_steps *steps, const dpcr_solve_options *options) {
    if (!steps->window || options->window || options->guess == DPCR_GUESS_GIVEN) return false;
    if (options->method == DPCR_METHOD_NEWTON) return options->scheme == DPCR_SCHEME_AUTO;
    return options->method == DPCR_METHOD_SHOOTING && !options->chunk;
}

enum {
    LEAST_PIECE = 16384,
    MOST_PIECES = 16,
    RUN_UP = 64,
    MOST_ROWS = 16,  // sequences on a cache line
    LINE = 64        // bytes
};

typedef struct windows_job {
    dpcri_run *run;
    int64_t rows;           // sequences of a task
    int64_t piece, pieces;  // steps
    dpcr_array starts;      // [pieces - 1][B][w]: where the pieces but the first begin
    dpcr_window found[MOST_ROWS][MOST_PIECES];
    _Atomic int64_t evaluations;
    _Atomic int code;
} windows_job;

// Steps [first, first + count) of sequence b from in [1][1][w].
static dpcr_window solve_span(windows_job *job, int64_t b, int64_t first, int64_t count, const dpcr_array *in) {
    const dpcr_solve_plan *plan = job->run->plan;
    dpcr_window window = {.size = sizeof window,
                          .method = (int)plan->options.method,
                          .atol = plan->options.atol,
                          .rtol = plan->options.rtol,
                          .max_sweeps = plan->options.max_sweeps,
                          .estimate = -1};
    const dpcr_array z = dpcri_outputs(&job->run->t, first, count, b, 1), states = dpcri_as_steps(&z);
    const dpcr_span span = dpcri_span(first, 1, 1, count, b, 1);
    const int code = plan->steps.window(plan->steps.user, &span, in, &states, &window);
    if (code < 0) job->code = code;
    if (code > 0) window.good = 0;
    job->evaluations += window.sweeps * count;
    return window;
}

static void judge(dpcri_run *run, int64_t b, const dpcr_window *window) {
    const dpcr_solve_plan *plan = run->plan;
    run->sweeps[b] = window->sweeps;
    run->last_residual[b] = window->residual;
    run->last_estimate[b] = window->estimate;
    run->front[b] = run->locked[b] = window->good;
    if (window->good < plan->steps.length) {
        if (plan->options.no_fallback) run->reason[b] = DPCR_REASON_NOT_CONVERGED;
        return;
    }
    const bool confirmed = window->estimate >= 0 && window->estimate <= plan->options.atol + plan->options.rtol;
    run->reason[b] = confirmed ? DPCR_REASON_CONVERGED : DPCR_REASON_RESIDUAL_ONLY;
}

static void solve_sequences(void *argument, int64_t task) {
    windows_job *job = argument;
    const dpcr_steps *steps = &job->run->plan->steps;
    const int64_t first = task * job->rows;
    for (int64_t b = first; b < steps->batch && b < first + job->rows; b++) {
        const dpcr_array in = dpcri_inputs(&job->run->t, 0, 1, b, 1);
        const dpcr_window window = solve_span(job, b, 0, steps->length, &in);
        judge(job->run, b, &window);
    }
}

// ---- pieces ----

int64_t dpcri_window_pieces(const dpcr_steps *steps) {
    const int64_t pieces = steps->length / LEAST_PIECE;
    const bool one_line = steps->batch * steps->width * (int64_t)dpcr_dtype_size(steps->dtype) <= LINE;
    if (!steps->concurrent || !one_line || pieces < 2) return 1;
    return pieces < MOST_PIECES ? pieces : MOST_PIECES;
}

// Run-ups of all pieces from z0, and from elsewhere; whether they meet.
static bool run_up(windows_job *job, void *memory, void *others) {
    const dpcr_solve_plan *plan = job->run->plan;
    const dpcr_steps *steps = &plan->steps;
    const dpcri_row_ops *ops = dpcri_row_ops_of(steps->dtype);
    const int64_t lanes = job->pieces - 1, shape[3] = {lanes, steps->batch, steps->width};
    const size_t state = (size_t)steps->width * dpcr_dtype_size(steps->dtype);
    const dpcr_array from[2] = {dpcr_array_make(memory, steps->dtype, 3, shape),
                                dpcr_array_make(others, steps->dtype, 3, shape)};
    const dpcr_span span = dpcri_span(job->piece - RUN_UP, lanes, job->piece, RUN_UP, 0, steps->batch);
    const dpcr_array z0 = dpcri_inputs(&job->run->t, 0, 1, 0, steps->batch);
    for (int64_t c = 0; c < lanes; c++) {
        const dpcr_array here = dpcri_slice(&from[0], c, 1, 0, steps->batch);
        ops->copy(&z0, &here);
    }
    for (int64_t i = 0; i < lanes * steps->batch * steps->width; i++)  // at a distance of one
        if (steps->dtype == DPCR_F64)
            ((double *)others)[i] = ((double *)memory)[i] + (((double *)memory)[i] > 0 ? -1 : 1);
        else
            ((float *)others)[i] = ((float *)memory)[i] + (((float *)memory)[i] > 0 ? -1 : 1);
    for (int i = 0; i < 2; i++) {
        const int code = dpcri_advance(steps, &span, &from[i], NULL, &from[i], NULL);
        if (code < 0) job->code = code;
        job->evaluations += lanes * RUN_UP;
    }
    job->starts = from[0];
    for (int64_t i = 0; i < lanes * steps->batch; i++)
        if (!ops->close((char *)others + (size_t)i * state, (char *)memory + (size_t)i * state, steps->width,
                        plan->options.atol / 8, plan->options.rtol / 8))
            return false;
    return job->code == 0;
}

static void solve_piece(void *argument, int64_t c) {
    windows_job *job = argument;
    const dpcr_steps *steps = &job->run->plan->steps;
    const int64_t first = c * job->piece, left = steps->length - first;
    const int64_t count = c + 1 < job->pieces ? job->piece : left;
    for (int64_t b = 0; b < steps->batch; b++) {
        const dpcr_array z0 = dpcri_inputs(&job->run->t, 0, 1, b, 1);
        const dpcr_array in = c > 0 ? dpcri_slice(&job->starts, c - 1, 1, b, 1) : z0;
        job->found[b][c] = solve_span(job, b, first, count, &in);
    }
}

// What the pieces of sequence b come to as one.
static dpcr_window join(windows_job *job, int64_t b) {
    const dpcr_solve_options *o = &job->run->plan->options;
    const dpcr_steps *steps = &job->run->plan->steps;
    const dpcri_row_ops *ops = dpcri_row_ops_of(steps->dtype);
    dpcr_window whole = job->found[b][0];
    for (int64_t c = 1; c < job->pieces && whole.good == c * job->piece; c++) {
        const int64_t at = c * job->piece;
        const dpcr_array start = dpcri_slice(&job->starts, c - 1, 1, b, 1),
                         end = dpcri_inputs(&job->run->t, at, 1, b, 1);
        const bool met = ops->close(start.data, end.data, steps->width, o->atol, o->rtol);
        const dpcr_window next = met ? job->found[b][c] : solve_span(job, b, at, steps->length - at, &end);
        const double missed = met ? ops->distance(start.data, end.data, steps->width) : 0;
        whole.sweeps = next.sweeps > whole.sweeps ? next.sweeps : whole.sweeps;
        whole.residual = fmax(missed, fmax(whole.residual, next.residual));
        const bool confirmed = whole.estimate >= 0 && next.estimate >= 0;
        whole.estimate = confirmed ? fmax(missed, fmax(whole.estimate, next.estimate)) : -1;
        whole.good = at + next.good;
        if (!met) break;
    }
    return whole;
}

static bool solve_in_pieces(windows_job *job, double flops) {
    _Alignas(64) char starts[(MOST_PIECES - 1) * LINE], others[(MOST_PIECES - 1) * LINE];
    const dpcr_steps *steps = &job->run->plan->steps;
    job->pieces = dpcri_window_pieces(steps);
    if (job->pieces < 2) return false;
    job->piece = steps->length / job->pieces;
    if (!run_up(job, starts, others)) return false;
    dpcri_for_tasks(job->run->plan, flops, job->pieces, solve_piece, job);
    for (int64_t b = 0; b < steps->batch; b++) {
        const dpcr_window whole = join(job, b);
        judge(job->run, b, &whole);
    }
    return true;
}

dpcr_status dpcri_solve_windows(dpcri_run *run) {
    const dpcr_steps *steps = &run->plan->steps;
    const double flops = (double)steps->length * (double)steps->batch * steps->flops, start = dpcri_seconds();
    windows_job job = {.run = run, .rows = dpcri_rows_of_line(steps)};
    if (!solve_in_pieces(&job, flops) && job.code == 0)
        dpcri_for_tasks(run->plan, flops, (steps->batch + job.rows - 1) / job.rows, solve_sequences, &job);
    run->report->seconds_evaluate = dpcri_seconds() - start;
    run->report->evaluations += job.evaluations;
    for (int64_t b = 0; b < steps->batch; b++) {
        run->residual = fmax(run->residual, run->last_residual[b]);
        run->estimate = fmax(run->estimate, run->last_estimate[b]);
    }
    dpcri_record_sweep(run, run->residual, run->last_residual);
    return dpcri_callback_status(run, "window", job.code);
}
