// SPDX-License-Identifier: MIT
// One solve of a network on a device, forward and backward: parameters and states go there, what it left comes back.
// Times are the host's, from the launch to what the device says it is done, without the copies.
#include <math.h>
#include <string.h>

#include "problem.h"
#include "solve.h"

enum { REPETITIONS = 3 };
enum { THETA, Z0, DIRECT, Z, DZ0, GRADIENTS, LAMBDA, ALL };

typedef struct there {
    const cli_problem *problem;
    cli_solution *solution;
    dpcr_device device;
    dpcr_array direct;  // of the host: what comes in at every step, the end's own included
    cli_moved on[ALL];
    dpcr_device_model *chain;
    dpcr_solve_plan *plan;
    void *workspace, *stream;
    size_t bytes;
    dpcr_error error;
} there;

static int make_direct(there *t) {
    const dpcr_array *every = &t->problem->direct, *last = &t->problem->last;
    const int64_t count = cli_array_count(every), end = cli_array_count(last);
    if (!cli_array_create(every->dtype, 3, every->shape, &t->direct)) return CLI_RESOURCES;
    memcpy(t->direct.data, every->data, (size_t)count * dpcr_dtype_size(every->dtype));
    for (int64_t i = 0; i < end && count > 0; i++)
        cli_array_set(&t->direct, count - end + i, cli_array_get(every, count - end + i) + cli_array_get(last, i));
    return CLI_DONE;
}

static dpcr_status send_all(there *t) {
    const cli_problem *p = t->problem;
    int64_t count = 0;
    void *const theta = dpcr_model_vector(p->model, &count), *const sums = dpcr_model_gradient_vector(p->model);
    const dpcr_array vector = dpcr_array_make(theta, p->steps.dtype, 1, &count),
                     gradients = dpcr_array_make(sums, p->steps.dtype, 1, &count);
    const dpcr_array *const here[ALL] = {&vector,           &p->z0,     &t->direct, &t->solution->z,
                                         &t->solution->dz0, &gradients, &t->direct};
    dpcr_status status = dpcr_stream_create(t->device, &t->stream, &t->error);
    for (int i = 0; i < ALL && status == DPCR_OK; i++)
        status = cli_send(t->device, here[i], t->stream, &t->on[i], &t->error);
    return status == DPCR_OK ? dpcr_stream_wait(t->device, t->stream, &t->error) : status;
}

static dpcr_status make_plan(there *t, dpcr_context *context, const dpcr_solve_options *options) {
    cli_solution *s = t->solution;
    dpcr_steps steps = {.size = sizeof steps};
    dpcr_status status = dpcr_device_model_create(t->problem->model, t->problem->steps.batch, &t->on[THETA].array,
                                                  &t->on[GRADIENTS].array, &t->chain, &t->error);
    if (status == DPCR_OK) status = dpcr_device_model_steps(t->chain, &steps, &t->error);
    if (status == DPCR_OK) status = dpcr_solve_plan_create(context, &steps, options, &t->plan, &t->error);
    if (status != DPCR_OK) return status;
    s->method = dpcr_solve_plan_method(t->plan);
    s->tolerance = fmax(0, dpcr_solve_plan_options(t->plan)->atol);
    s->workspace = t->bytes = dpcr_solve_plan_workspace(t->plan);
    snprintf(s->sentence, sizeof s->sentence, "%s", dpcr_solve_plan_sentence(t->plan));
    return dpcr_device_allocate(t->device, t->bytes, &t->workspace, &t->error);
}

static dpcr_status forward(there *t) {
    cli_solution *s = t->solution;
    const double start = cli_now();
    s->report = (dpcr_solve_report){.size = sizeof s->report, .error_estimate = -1};
    dpcr_status status =
        dpcr_solve_enqueue(t->plan, &t->on[Z0].array, &t->on[Z].array, t->workspace, t->bytes, t->stream, &t->error);
    if (status == DPCR_OK)
        status = dpcr_solve_collect(t->plan, t->workspace, t->bytes, t->stream, &s->report, &t->error);
    s->forward_seconds = fmin(s->forward_seconds, cli_now() - start);
    return status;
}

// The sums begin from zeros, which the host's are.
static dpcr_status backward(there *t) {
    cli_solution *s = t->solution;
    const dpcr_device host = {.type = DPCR_HOST};
    dpcr_status status =
        dpcr_device_copy(t->device, t->on[GRADIENTS].array.data, host, dpcr_model_gradient_vector(t->problem->model),
                         t->on[GRADIENTS].bytes, t->stream, &t->error);
    if (status == DPCR_OK) status = dpcr_stream_wait(t->device, t->stream, &t->error);
    const double start = cli_now();
    if (status == DPCR_OK)
        status = dpcr_solve_enqueue_backward(t->plan, &t->on[Z0].array, &t->on[Z].array, &t->on[DIRECT].array,
                                             &t->on[LAMBDA].array, &t->on[DZ0].array, t->workspace, t->bytes, t->stream,
                                             &t->error);
    if (status == DPCR_OK) status = dpcr_stream_wait(t->device, t->stream, &t->error);
    s->backward_seconds = fmin(s->backward_seconds, cli_now() - start);
    return status;
}

static int keep(there *t) {
    cli_solution *s = t->solution;
    int64_t count = 0;
    dpcr_model_vector(t->problem->model, &count);
    s->gradient_count = count;
    s->gradients = cli_allocate(t->on[GRADIENTS].bytes);
    if (!s->gradients) return cli_fail_memory("the gradients");
    const dpcr_array gradients = dpcr_array_make(s->gradients, t->problem->steps.dtype, 1, &count);
    dpcr_status status = cli_bring(t->device, &t->on[Z], &s->z, t->stream, &t->error);
    if (status == DPCR_OK) status = cli_bring(t->device, &t->on[DZ0], &s->dz0, t->stream, &t->error);
    if (status == DPCR_OK) status = cli_bring(t->device, &t->on[GRADIENTS], &gradients, t->stream, &t->error);
    if (status == DPCR_OK) status = dpcr_stream_wait(t->device, t->stream, &t->error);
    // Of no steps the device writes nothing: what comes in at the end goes out.
    if (t->problem->steps.length == 0 && s->dz0.data) memcpy(s->dz0.data, t->problem->last.data, t->on[DZ0].bytes);
    return status == DPCR_OK ? CLI_DONE : cli_fail_error(&t->error, CLI_COMPUTING);
}

static int solve(there *t, dpcr_context *context, const dpcr_solve_options *options) {
    cli_solution *s = t->solution;
    dpcr_model_zero_gradients(t->problem->model);
    s->forward_seconds = s->backward_seconds = HUGE_VAL;
    dpcr_status status = send_all(t);
    if (status == DPCR_OK) status = make_plan(t, context, options);
    for (int i = 0; i < REPETITIONS && status == DPCR_OK; i++) status = forward(t);
    for (int i = 0; i < REPETITIONS && status == DPCR_OK; i++) status = backward(t);
    s->seconds = s->forward_seconds + s->backward_seconds;
    return status == DPCR_OK ? keep(t) : cli_fail_error(&t->error, CLI_COMPUTING);
}

int cli_solution_on_device(dpcr_context *context, const cli_problem *problem, const dpcr_solve_options *options,
                           cli_solution *solution) {
    const dpcr_steps *steps = &problem->steps;
    const int64_t all[] = {steps->length, steps->batch, steps->width}, row[] = {steps->batch, steps->width};
    there t = {.problem = problem, .solution = solution, .device = options->device};
    if (!cli_array_create(steps->dtype, 3, all, &solution->z) ||
        !cli_array_create(steps->dtype, 2, row, &solution->dz0))
        return CLI_RESOURCES;
    int status = make_direct(&t);
    if (!status) status = solve(&t, context, options);
    dpcr_solve_plan_destroy(t.plan);
    dpcr_device_model_destroy(t.chain);
    for (int i = 0; i < ALL; i++) dpcr_device_release(t.device, t.on[i].array.data);
    dpcr_device_release(t.device, t.workspace);
    dpcr_stream_destroy(t.device, t.stream);
    cli_array_destroy(&t.direct);
    return status;
}
