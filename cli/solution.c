// SPDX-License-Identifier: MIT
// One solve, forward and backward, timed: the smallest of a few repetitions where they are short.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "problem.h"

static const double enough_seconds = 0.3;  // of repetitions
enum { REPETITIONS = 3 };

typedef struct run {
    const cli_problem *problem;
    const dpcr_solve_plan *plan;
    void *workspace;
    dpcr_array tape;  // data NULL: none
    cli_solution *solution;
    dpcr_error error;
} run;

static dpcr_status forward(run *r) {
    cli_solution *s = r->solution;
    s->report = (dpcr_solve_report){.size = sizeof s->report,
                                    .error_estimate = -1,
                                    .history_capacity = CLI_HISTORY,
                                    .residual_history = s->residuals,
                                    .locked_history = s->locked};
    return dpcr_solve_execute(r->plan, &r->problem->z0, &s->z, r->tape.data ? &r->tape : NULL, r->workspace,
                              s->workspace, &s->report, &r->error);
}

static dpcr_status backward(run *r) {
    cli_solution *s = r->solution;
    if (r->problem->model) dpcr_model_zero_gradients(r->problem->model);
    dpcr_solve_report report = {.size = sizeof report};
    const dpcr_status status =
        dpcr_solve_backward(r->plan, &r->problem->z0, &s->z, r->tape.data ? &r->tape : NULL, &r->problem->direct,
                            &r->problem->last, NULL, &s->dz0, r->workspace, s->workspace, &report, &r->error);
    s->backward_reason = report.reason;
    return status;
}

// Runs `work` and keeps its smallest time.
static dpcr_status repeat(run *r, dpcr_status (*work)(run *), double *seconds) {
    double spent = 0;
    *seconds = HUGE_VAL;
    for (int i = 0; i < REPETITIONS && spent < enough_seconds; i++) {
        const double start = cli_now();
        const dpcr_status status = work(r);
        const double took = cli_now() - start;
        if (status != DPCR_OK) return status;
        *seconds = fmin(*seconds, took);
        spent += took;
    }
    return DPCR_OK;
}

static int keep_gradients(cli_solution *s, const cli_problem *problem) {
    if (!problem->model) return CLI_DONE;
    dpcr_model_vector(problem->model, &s->gradient_count);
    const size_t bytes = (size_t)s->gradient_count * dpcr_dtype_size(problem->steps.dtype);
    s->gradients = cli_allocate(bytes);
    if (!s->gradients) return cli_fail_memory("the gradients");
    memcpy(s->gradients, dpcr_model_gradient_vector(problem->model), bytes);
    return CLI_DONE;
}

static int solve(run *r, const dpcr_array *at) {
    cli_solution *s = r->solution;
    if (at) {
        memcpy(s->z.data, at->data, (size_t)cli_array_count(at) * dpcr_dtype_size(at->dtype));
    } else if (repeat(r, forward, &s->forward_seconds) != DPCR_OK) {
        return cli_fail_error(&r->error, CLI_COMPUTING);
    }
    // A state that has left the finite numbers has no gradient worth comparing; the solve itself is still told.
    if (repeat(r, backward, &s->backward_seconds) != DPCR_OK) return cli_fail_error(&r->error, CLI_COMPUTING);
    s->seconds = s->forward_seconds + s->backward_seconds;
    return keep_gradients(s, r->problem);
}

static int allocate_and_solve(run *r, const dpcr_array *at) {
    const dpcr_steps *steps = &r->problem->steps;
    cli_solution *s = r->solution;
    const int64_t all[] = {steps->length, steps->batch, steps->width}, row[] = {steps->batch, steps->width};
    const int64_t tape[] = {steps->length, steps->batch, steps->tape_values};
    if (!cli_array_create(steps->dtype, 3, all, &s->z) || !cli_array_create(steps->dtype, 2, row, &s->dz0))
        return CLI_RESOURCES;
    // Backward at other states than forward's own has no tape to go by.
    if (!at && steps->tape_values > 0 && !cli_array_create(steps->dtype, 3, tape, &r->tape)) return CLI_RESOURCES;
    s->workspace = dpcr_solve_plan_workspace(r->plan);
    r->workspace = cli_allocate(s->workspace);
    if (!r->workspace) return cli_fail(CLI_RESOURCES, "not enough memory for a workspace of %zu bytes", s->workspace);
    const int status = solve(r, at);
    cli_release(r->workspace);
    return status;
}

static int plan_and_solve(dpcr_context *context, const dpcr_solve_options *options, const dpcr_array *at, run *r) {
    dpcr_solve_plan *plan = NULL;
    cli_solution *s = r->solution;
    if (dpcr_solve_plan_create(context, &r->problem->steps, options, &plan, &r->error))
        return cli_fail_error(&r->error, CLI_COMPUTING);
    r->plan = plan;
    s->method = dpcr_solve_plan_method(plan);
    s->backward = dpcr_solve_plan_backward(plan);
    s->tolerance = fmax(0, dpcr_solve_plan_options(plan)->atol);
    snprintf(s->sentence, sizeof s->sentence, "%s", dpcr_solve_plan_sentence(plan));
    const int status = allocate_and_solve(r, at);
    cli_array_destroy(&r->tape);
    dpcr_solve_plan_destroy(plan);
    return status;
}

int cli_solution_create(dpcr_context *context, const cli_problem *problem, const dpcr_solve_options *options,
                        const dpcr_array *at, cli_solution **solution) {
    *solution = calloc(1, sizeof **solution);
    if (!*solution) return cli_fail_memory("a solution");
    run r = {.problem = problem, .solution = *solution};
    const int status = options->device.type == DPCR_CUDA ? cli_solution_on_device(context, problem, options, *solution)
                                                         : plan_and_solve(context, options, at, &r);
    if (!status) return CLI_DONE;
    cli_solution_destroy(*solution);
    *solution = NULL;
    return status;
}

void cli_solution_destroy(cli_solution *solution) {
    if (!solution) return;
    cli_array_destroy(&solution->z);
    cli_array_destroy(&solution->dz0);
    cli_release(solution->gradients);
    free(solution);
}
