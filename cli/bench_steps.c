// SPDX-License-Identifier: MIT
// bench mlp, resnet, cell: the loop against every method that may pay, forward; the adjoint loop against every scheme,
// backward, at the loop's states and with its tape.
#include <math.h>
#include <string.h>

#include "bench.h"

// Newton on a chain that suits it takes about five sweeps, shooting fewer; what needs more than this has lost.
enum { MOST_SWEEPS = 32 };
// An optimistic rate of one thread, and the least arithmetic of Newton: two sweeps. What is hopeless even so is.
static const double best_flops = 5e10;
enum { LEAST_SWEEPS = 2 };

typedef struct subject {
    dpcr_context *context;
    const bench *asked;
    cli_problem problem;
    dpcr_array z, reference;  // [L][B][w]: what an entrant leaves; the loop's states
    dpcr_array tape;          // as the loop left it; data NULL: none
    dpcr_array dz0;           // [B][w]
    dpcr_array gradient;      // where the chain's gradient callback adds
    void *gradients;          // of the loop: those two
    void *workspace;
    size_t workspace_bytes;
} subject;

static size_t bytes_of(const dpcr_array *array) {
    return (size_t)cli_array_count(array) * dpcr_dtype_size(array->dtype);
}

// ---- runs ----

static dpcr_status forward(void *user, bench_entrant *e, bool fresh, dpcr_error *error) {
    subject *s = user;
    dpcr_solve_report report = {.size = sizeof report};
    const bool given = s->asked->solver.options.guess == DPCR_GUESS_GIVEN;
    if (fresh && !given) memset(s->z.data, 0xff, bytes_of(&s->z));  // NaN, not what another entrant left
    const dpcr_status status = dpcr_solve_execute(e->plan, &s->problem.z0, &s->z, NULL, s->workspace,
                                                  s->workspace_bytes, fresh ? &report : NULL, error);
    if (!fresh) return status;
    e->sweeps = report.sweeps;
    e->evaluations = report.evaluations;
    e->chosen = dpcr_method_name(report.method);
    e->reason = dpcr_reason_name(report.reason);
    e->fallback = report.reason == DPCR_REASON_FALLBACK;
    e->unconverged = report.reason == DPCR_REASON_NOT_CONVERGED;
    e->scheme = report.scheme ? dpcr_scheme_name(report.scheme) : NULL;
    return status;
}

static void keep_states(void *user) {
    const subject *s = user;
    memcpy(s->reference.data, s->z.data, bytes_of(&s->z));
}

static double compare_states(void *user) {
    const subject *s = user;
    return cli_states_error(&s->z, &s->reference);
}

static dpcr_status backward(void *user, bench_entrant *e, bool fresh, dpcr_error *error) {
    subject *s = user;
    const cli_problem *p = &s->problem;
    dpcr_solve_report report = {.size = sizeof report};
    if (fresh) memset(s->gradient.data, 0, bytes_of(&s->gradient));
    if (fresh) memset(s->dz0.data, 0xff, bytes_of(&s->dz0));
    const dpcr_status status = dpcr_solve_backward(e->plan, &p->z0, &s->reference, s->tape.data ? &s->tape : NULL,
                                                   s->asked->loss_at_end ? NULL : &p->direct, &p->last, NULL, &s->dz0,
                                                   s->workspace, s->workspace_bytes, fresh ? &report : NULL, error);
    if (!fresh) return status;
    e->chosen = dpcr_scheme_name(dpcr_solve_plan_backward(e->plan));
    e->sweeps = report.sweeps;
    e->reason = report.reason ? dpcr_reason_name(report.reason) : NULL;
    e->fallback = report.reason == DPCR_REASON_FALLBACK;
    e->unconverged = report.reason == DPCR_REASON_NOT_CONVERGED;
    return status;
}

static void keep_gradients(void *user) {
    const subject *s = user;
    memcpy(s->gradients, s->dz0.data, bytes_of(&s->dz0));
    memcpy((char *)s->gradients + bytes_of(&s->dz0), s->gradient.data, bytes_of(&s->gradient));
}

static double compare_gradients(void *user) {
    const subject *s = user;
    dpcr_array dz0 = s->dz0, gradient = s->gradient;
    dz0.data = s->gradients;
    gradient.data = (char *)s->gradients + bytes_of(&s->dz0);
    return fmax(cli_states_error(&s->dz0, &dz0), cli_states_error(&s->gradient, &gradient));
}

// ---- entrants ----

static dpcr_solve_options options_of(const subject *s, dpcr_method method, dpcr_scheme backward_scheme) {
    dpcr_solve_options options = s->asked->solver.options;
    options.method = method;
    options.backward = backward_scheme;
    if (method != DPCR_METHOD_AUTO && method != DPCR_METHOD_OVERLAP && options.max_sweeps == 0)
        options.max_sweeps = MOST_SWEEPS;
    return options;
}

// A plan that is refused is told as the entrant's, but for the loop and auto, which must run.
static int add(subject *s, bench_race *race, const char *name, const dpcr_solve_options *options,
               double least_seconds) {
    bench_entrant *e = bench_race_add(race, name);
    e->tolerance = options->atol > 0 ? options->atol : options->atol < 0 ? 0 : -1;
    e->run_up = options->warm_up;
    dpcr_solve_plan *plan = NULL;
    dpcr_error error = {0};
    e->least_seconds = least_seconds;
    if (dpcr_solve_plan_create(s->context, &s->problem.steps, options, &plan, &error) != DPCR_OK) {
        if (race->count <= 2) return cli_fail_error(&error, CLI_COMPUTING);
        snprintf(e->skipped, sizeof e->skipped, "%.150s", error.text);
        return CLI_DONE;
    }
    e->plan = plan;
    e->workspace = dpcr_solve_plan_workspace(plan);
    return CLI_DONE;
}

// A Jacobian and a product of two of them a step, at the least.
static double newton_seconds(const subject *s, double sweeps) {
    const dpcr_steps *steps = &s->problem.steps;
    const double products = dpcr_transition_compose_flops(&steps->jacobian);
    return sweeps * (double)steps->length * (double)steps->batch * (steps->flops + steps->jacobian_flops + products) /
           (best_flops * dpcr_context_threads(s->context));
}

static int add_method(subject *s, bench_race *race, dpcr_method method) {
    const dpcr_solve_options options = options_of(s, method, DPCR_SCHEME_SEQUENTIAL);
    const bool jacobians = method == DPCR_METHOD_NEWTON || method == DPCR_METHOD_SHOOTING;
    return add(s, race, dpcr_method_name(method), &options, jacobians ? newton_seconds(s, LEAST_SWEEPS) : 0);
}

// Overlap with the loop's bits and with the default tolerance, each after several run-ups: a short one costs less where
// the chain forgets soon, a long one saves a sweep where it does not.
static int add_overlaps(subject *s, bench_race *race) {
    static const int64_t run_ups[] = {0, 32, 128};  // 0: the default
    const dpcr_solve_options *given = &s->asked->solver.options;
    int status = CLI_DONE;
    for (int exact = given->atol == 0; exact >= 0; exact--)
        for (size_t i = 0; i < (given->warm_up ? 1 : sizeof run_ups / sizeof *run_ups) && !status; i++) {
            dpcr_solve_options options = options_of(s, DPCR_METHOD_OVERLAP, DPCR_SCHEME_SEQUENTIAL);
            if (exact) options.atol = options.rtol = -1;
            if (i > 0) options.warm_up = run_ups[i];
            status = add(s, race, dpcr_method_name(DPCR_METHOD_OVERLAP), &options, 0);
        }
    return status;
}

// The loop, auto, and what was asked for or all that may pay: overlap, newton, shooting.
static int enter_methods(subject *s, bench_race *race) {
    const cli_solver *given = &s->asked->solver;
    const bool chosen = given->method_given && given->options.method != DPCR_METHOD_AUTO;
    dpcr_solve_options automatic = options_of(s, DPCR_METHOD_AUTO, DPCR_SCHEME_AUTO);
    int status = add_method(s, race, DPCR_METHOD_SEQUENTIAL);
    race->chosen = race->count;
    if (!status) status = add(s, race, "auto", &automatic, 0);
    if (!status && chosen) {
        status = add_method(s, race, given->options.method);
        race->entrants[race->count - 1].asked = true;
    }
    if (status || chosen) return status;
    status = add_overlaps(s, race);
    if (!status) status = add_method(s, race, DPCR_METHOD_NEWTON);
    return status ? status : add_method(s, race, DPCR_METHOD_SHOOTING);
}

static int add_scheme(subject *s, bench_race *race, dpcr_scheme scheme) {
    const dpcr_solve_options options = options_of(s, DPCR_METHOD_SEQUENTIAL, scheme);
    const double levels = scheme == DPCR_SCHEME_PCR ? ceil(log2((double)s->problem.steps.length + 1)) : 1;
    const bool products = scheme == DPCR_SCHEME_PCR || scheme == DPCR_SCHEME_BLELLOCH || scheme == DPCR_SCHEME_CHUNKED;
    return add(s, race, dpcr_scheme_name(scheme), &options, products ? newton_seconds(s, levels) : 0);
}

static int enter_schemes(subject *s, bench_race *race) {
    static const dpcr_scheme all[] = {DPCR_SCHEME_OVERLAP, DPCR_SCHEME_CHUNKED, DPCR_SCHEME_BLELLOCH, DPCR_SCHEME_PCR};
    const cli_solver *given = &s->asked->solver;
    const bool chosen = given->backward_given && given->options.backward != DPCR_SCHEME_AUTO;
    const dpcr_solve_options automatic = options_of(s, DPCR_METHOD_SEQUENTIAL, DPCR_SCHEME_AUTO);
    int status = add_scheme(s, race, DPCR_SCHEME_SEQUENTIAL);
    race->chosen = race->count;
    if (!status) status = add(s, race, "auto", &automatic, 0);
    if (!status && chosen) {
        status = add_scheme(s, race, given->options.backward);
        race->entrants[race->count - 1].asked = true;
    }
    if (status || chosen) return status;
    for (size_t i = 0; i < sizeof all / sizeof *all && !status; i++) status = add_scheme(s, race, all[i]);
    return status;
}

// One workspace for all, as large as the largest needs; who needs too much is left out.
static int make_workspace(subject *s, bench_race *race) {
    const size_t limit = cli_memory_budget() / 4;
    s->workspace_bytes = 0;
    for (int i = 0; i < race->count; i++) {
        bench_entrant *e = &race->entrants[i];
        if (e->skipped[0]) continue;
        if (i > 1 && e->workspace > limit)
            snprintf(e->skipped, sizeof e->skipped, "it needs a workspace of %zu bytes", e->workspace);
        else if (e->workspace > s->workspace_bytes)
            s->workspace_bytes = e->workspace;
    }
    s->workspace = cli_allocate(s->workspace_bytes);
    if (!s->workspace)
        return cli_fail(CLI_RESOURCES, "not enough memory for a workspace of %zu bytes", s->workspace_bytes);
    memset(s->workspace, 0, s->workspace_bytes);
    return CLI_DONE;
}

static int run_race(subject *s, bench_race *race, int entered) {
    int status = entered ? entered : make_workspace(s, race);
    if (!status) status = bench_race_run(race, s->asked->seconds);
    for (int i = 0; i < race->count; i++) dpcr_solve_plan_destroy(race->entrants[i].plan);
    for (int i = 0; i < race->count; i++) race->entrants[i].plan = NULL;
    cli_release(s->workspace);
    s->workspace = NULL;
    return status;
}

// ---- the subject ----

// The loop once more, for its tape.
static int make_tape(subject *s) {
    const dpcr_steps *steps = &s->problem.steps;
    const dpcr_solve_options options = options_of(s, DPCR_METHOD_SEQUENTIAL, DPCR_SCHEME_SEQUENTIAL);
    dpcr_solve_plan *plan = NULL;
    dpcr_error error = {0};
    if (steps->tape_values == 0) return CLI_DONE;
    const int64_t shape[] = {steps->length, steps->batch, steps->tape_values};
    if (!cli_array_create(steps->dtype, 3, shape, &s->tape)) return CLI_RESOURCES;
    if (dpcr_solve_plan_create(s->context, steps, &options, &plan, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    void *workspace = cli_allocate(bytes);
    int status = CLI_DONE;
    if (!workspace)
        status = cli_fail(CLI_RESOURCES, "not enough memory for a workspace of %zu bytes", bytes);
    else if (dpcr_solve_execute(plan, &s->problem.z0, &s->reference, &s->tape, workspace, bytes, NULL, &error))
        status = cli_fail_error(&error, CLI_COMPUTING);
    cli_release(workspace);
    dpcr_solve_plan_destroy(plan);
    return status;
}

static int make_arrays(subject *s) {
    const dpcr_steps *steps = &s->problem.steps;
    const int64_t all[] = {steps->length, steps->batch, steps->width}, row[] = {steps->batch, steps->width};
    if (!cli_array_create(steps->dtype, 3, all, &s->z) || !cli_array_create(steps->dtype, 3, all, &s->reference) ||
        !cli_array_create(steps->dtype, 2, row, &s->dz0))
        return CLI_RESOURCES;
    s->gradients = cli_allocate(bytes_of(&s->dz0) + bytes_of(&s->gradient));
    return s->gradients ? CLI_DONE : cli_fail_memory("the gradients");
}

static int race_both(subject *s, bench_point *point) {
    point->forward = (bench_race){.subject = s, .run = forward, .keep = keep_states, .compare = compare_states};
    point->backward = (bench_race){.subject = s, .run = backward, .keep = keep_gradients, .compare = compare_gradients};
    int status = make_arrays(s);
    if (!status) status = run_race(s, &point->forward, enter_methods(s, &point->forward));
    if (!status) status = make_tape(s);
    if (!status) status = run_race(s, &point->backward, enter_schemes(s, &point->backward));
    cli_array_destroy(&s->z);
    cli_array_destroy(&s->reference);
    cli_array_destroy(&s->tape);
    cli_array_destroy(&s->dz0);
    cli_release(s->gradients);
    return status;
}

int bench_steps_point(dpcr_context *context, const bench *b, const cli_problem *problem, const dpcr_array *gradient,
                      bench_point *point) {
    subject s = {.context = context, .asked = b, .problem = *problem, .gradient = *gradient};
    return race_both(&s, point);
}

int bench_network_point(dpcr_context *context, const bench *b, bench_point *point) {
    int status = CLI_DONE;
    dpcr_model *model = cli_model_create(context, &b->network, b->common.seed, &status);
    if (!model) return status;
    cli_problem problem;
    status = cli_problem_create(context, model, NULL, &b->network, NULL, b->common.seed, &problem);
    if (!status) {
        int64_t count = 0;
        dpcr_model_vector(model, &count);
        const dpcr_array gradient = dpcr_array_make(dpcr_model_gradient_vector(model), problem.steps.dtype, 1, &count);
        status = bench_steps_point(context, b, &problem, &gradient, point);
        cli_problem_destroy(&problem);
    }
    dpcr_model_destroy(model);
    return status;
}
