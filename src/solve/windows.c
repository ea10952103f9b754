// SPDX-License-Identifier: MIT
// Newton and shooting inside the callback: where a chain's steps bring a whole method of their own (dpcr_steps.window),
// each sequence is one call, which cuts the chain into windows and solves them one after the other without leaving
// registers and cache. What it measured is judged here; a sequence that it could not bring to the end is finished in
// order, from its beginning: a window's states are right to the tolerance only. Derivations: docs/math/newton.md,
// docs/math/shooting.md.
#include <math.h>

#include "solve/solve_internal.h"

bool dpcri_solve_has_windows(const dpcr_steps *steps, const dpcr_solve_options *options) {
    if (!steps->window || options->window || options->guess == DPCR_GUESS_GIVEN) return false;
    if (options->method == DPCR_METHOD_NEWTON) return options->scheme == DPCR_SCHEME_AUTO;
    return options->method == DPCR_METHOD_SHOOTING && !options->chunk;
}

typedef struct windows_job {
    dpcri_run *run;
    int64_t rows;  // sequences of a task
    _Atomic int64_t evaluations;
    _Atomic int code;
} windows_job;

static void solve_sequence(windows_job *job, int64_t b) {
    dpcri_run *run = job->run;
    const dpcr_solve_plan *plan = run->plan;
    const dpcr_steps *steps = &plan->steps;
    dpcr_window window = {.size = sizeof window,
                          .method = (int)plan->options.method,
                          .atol = plan->options.atol,
                          .rtol = plan->options.rtol,
                          .max_sweeps = plan->options.max_sweeps,
                          .estimate = -1};
    const dpcr_array in = dpcri_inputs(&run->t, 0, 1, b, 1), z = dpcri_outputs(&run->t, 0, steps->length, b, 1);
    const dpcr_array states = dpcri_as_steps(&z);
    const dpcr_span span = dpcri_span(0, 1, 1, steps->length, b, 1);
    const int code = steps->window(steps->user, &span, &in, &states, &window);
    if (code < 0) job->code = code;
    if (code > 0) window.good = 0;
    run->sweeps[b] = window.sweeps;
    run->last_residual[b] = window.residual;
    run->last_estimate[b] = window.estimate;
    run->front[b] = run->locked[b] = window.good;
    job->evaluations += window.sweeps * steps->length;
    if (window.good < steps->length) {
        if (plan->options.no_fallback) run->reason[b] = DPCR_REASON_NOT_CONVERGED;
        return;
    }
    const bool confirmed = window.estimate >= 0 && window.estimate <= plan->options.atol + plan->options.rtol;
    run->reason[b] = confirmed ? DPCR_REASON_CONVERGED : DPCR_REASON_RESIDUAL_ONLY;
}

static void solve_sequences(void *argument, int64_t task) {
    windows_job *job = argument;
    const int64_t batch = job->run->plan->steps.batch, first = task * job->rows;
    for (int64_t b = first; b < batch && b < first + job->rows; b++) solve_sequence(job, b);
}

dpcr_status dpcri_solve_windows(dpcri_run *run) {
    const dpcr_steps *steps = &run->plan->steps;
    windows_job job = {.run = run, .rows = dpcri_rows_of_line(steps)};
    const double start = dpcri_seconds();
    dpcri_for_tasks(run->plan, (double)steps->length * (double)steps->batch * steps->flops,
                    (steps->batch + job.rows - 1) / job.rows, solve_sequences, &job);
    run->report->seconds_evaluate = dpcri_seconds() - start;
    run->report->evaluations += job.evaluations;
    for (int64_t b = 0; b < steps->batch; b++) {
        run->residual = fmax(run->residual, run->last_residual[b]);
        run->estimate = fmax(run->estimate, run->last_estimate[b]);
    }
    dpcri_record_sweep(run, run->residual, run->last_residual);
    return dpcri_callback_status(run, "window", job.code);
}
