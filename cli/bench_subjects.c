// SPDX-License-Identifier: MIT
// The cases of bench planner: their data, the plan that auto makes of them, and every other way to run them.
#include <math.h>
#include <string.h>

#include "bench_planner.h"

enum { STREAM_A = 0x401, STREAM_B, MOST_SWEEPS = 32, DEFAULT_WARM_UP = 64 };

// ---- data ----

static int make_linear(planner_subject *s, uint64_t seed) {
    const planner_case *c = s->what;
    dpcr_structure structure = DPCR_DENSE;
    dpcr_error error = {0};
    if (dpcr_structure_find(c->name, &structure, &error) != DPCR_OK) return cli_fail_error(&error, CLI_COMPUTING);
    const dpcr_transition t = dpcr_transition_square(structure, c->width, structure == DPCR_BLOCK ? 2 : 0);
    s->shape = (dpcr_chain_shape){
        .size = sizeof s->shape, .length = c->length, .batch = c->batch, .transition = t, .dtype = DPCR_F32};
    const int64_t all[] = {c->length, c->batch, c->width}, values[] = {c->length, c->batch, dpcr_transition_values(&t)};
    if (!cli_array_create(DPCR_F32, 3, all, &s->b) || !cli_array_create(DPCR_F32, 3, all, &s->z) ||
        !cli_array_create(DPCR_F32, 3, values, &s->a))
        return CLI_RESOURCES;
    cli_array_normal(&s->b, seed, STREAM_B);
    cli_array_normal(&s->a, seed, STREAM_A);
    const double mixed = structure == DPCR_DENSE ? (double)c->width : structure == DPCR_BLOCK ? 2 : 1;
    float *a = s->a.data;
    for (int64_t i = 0, n = cli_array_count(&s->a); i < n; i++) a[i] *= (float)(c->radius / sqrt(mixed));
    return CLI_DONE;
}

// The loop once, for the states and the tape that backward starts from.
static int run_loop(planner_subject *s) {
    const dpcr_steps *steps = &s->problem.steps;
    const dpcr_solve_options options = {
        .size = sizeof options, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL};
    dpcr_solve_plan *plan = NULL;
    dpcr_error error = {0};
    if (dpcr_solve_plan_create(s->context, steps, &options, &plan, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    void *workspace = cli_allocate(bytes);
    int status = CLI_DONE;
    if (!workspace)
        status = cli_fail_memory("a workspace");
    else if (dpcr_solve_execute(plan, &s->problem.z0, &s->z, s->tape.data ? &s->tape : NULL, workspace, bytes, NULL,
                                &error) != DPCR_OK)
        status = cli_fail_error(&error, CLI_COMPUTING);
    cli_release(workspace);
    dpcr_solve_plan_destroy(plan);
    return status;
}

static int make_steps(planner_subject *s, uint64_t seed) {
    const planner_case *c = s->what;
    const bool map = c->kind == PLANNER_MAP;
    cli_network network = {.options = {.layers = c->length, .width = c->width, .activation = c->activation},
                           .init = c->init,
                           .gain = c->gain,
                           .batch = c->batch};
    network.options.dtype = map ? DPCR_F64 : DPCR_F32;
    int status = CLI_DONE;
    if (!map) {
        if (!cli_read_architecture(c->name, "", &network.options.architecture)) return CLI_USAGE;
        s->model = cli_model_create(s->context, &network, seed, &status);
    }
    if (!status)
        status = cli_problem_create(s->context, s->model, map ? c->name : NULL, &network, NULL, seed, &s->problem);
    if (status) return status;
    const dpcr_steps *steps = &s->problem.steps;
    const int64_t all[] = {steps->length, steps->batch, steps->width};
    const int64_t tape[] = {steps->length, steps->batch, steps->tape_values};
    if (!cli_array_create(steps->dtype, 3, all, &s->z)) return CLI_RESOURCES;
    if (steps->tape_values > 0 && !cli_array_create(steps->dtype, 3, tape, &s->tape)) return CLI_RESOURCES;
    return run_loop(s);
}

int planner_subject_create(dpcr_context *context, const planner_case *what, uint64_t seed, planner_subject *subject) {
    *subject = (planner_subject){.context = context, .what = what};
    const int status = what->kind == PLANNER_LINEAR      ? make_linear(subject, seed)
                       : what->kind == PLANNER_RECURRENT ? planner_recurrent_create(subject, seed)
                                                         : make_steps(subject, seed);
    if (status) planner_subject_destroy(subject);
    return status;
}

void planner_subject_destroy(planner_subject *s) {
    cli_array_destroy(&s->z);
    cli_array_destroy(&s->tape);
    cli_array_destroy(&s->a);
    cli_array_destroy(&s->b);
    if (s->what->kind == PLANNER_RECURRENT)
        planner_recurrent_destroy(s);
    else if (s->what->kind != PLANNER_LINEAR)
        cli_problem_destroy(&s->problem);
    dpcr_model_destroy(s->model);
    s->model = NULL;
}

// ---- ways ----

static planner_way *add_way(planner_subject *s, const char *name, void *plan, size_t workspace, bool loop) {
    planner_way *way = &s->ways[s->count++];
    *way = (planner_way){.plan = plan, .workspace = workspace, .loop = loop};
    snprintf(way->name, sizeof way->name, "%s", name);
    if (workspace > s->workspace_bytes) s->workspace_bytes = workspace;
    return way;
}

static void name_options(const dpcr_solve_options *o, bool backward, char *name, size_t bytes) {
    int used = snprintf(name, bytes, "%s", backward ? dpcr_scheme_name(o->backward) : dpcr_method_name(o->method));
    const bool overlap = backward ? o->backward == DPCR_SCHEME_OVERLAP : o->method == DPCR_METHOD_OVERLAP;
    const bool schemes = !backward && o->method != DPCR_METHOD_SEQUENTIAL && !overlap;
    if (schemes)
        used += snprintf(name + used, bytes - (size_t)used, " %s", o->scheme ? dpcr_scheme_name(o->scheme) : "windows");
    if (overlap) used += snprintf(name + used, bytes - (size_t)used, " %lld", (long long)o->warm_up);
    const int64_t chunk = backward && o->backward_chunk ? o->backward_chunk : o->chunk;
    if (overlap && chunk) snprintf(name + used, bytes - (size_t)used, "/%lld", (long long)chunk);
}

// A plan that is refused, or that another one equals, is no way of its own.
static int add_solve(planner_subject *s, const dpcr_solve_options *options) {
    dpcr_solve_plan *plan = NULL;
    dpcr_error error = {0};
    char name[64];
    if (s->count == PLANNER_WAYS) return CLI_DONE;
    if (dpcr_solve_plan_create(s->context, &s->problem.steps, options, &plan, &error) != DPCR_OK)
        return s->count ? CLI_DONE : cli_fail_error(&error, CLI_COMPUTING);
    const dpcr_solve_options *o = dpcr_solve_plan_options(plan);
    name_options(o, s->backward, name, sizeof name);
    for (int i = 0; i < s->count; i++)
        if (!strcmp(s->ways[i].name, name)) {
            dpcr_solve_plan_destroy(plan);
            return CLI_DONE;
        }
    const bool loop = s->backward ? o->backward == DPCR_SCHEME_SEQUENTIAL : o->method == DPCR_METHOD_SEQUENTIAL;
    if (s->count == 0) snprintf(s->sentence, sizeof s->sentence, "%s", dpcr_solve_plan_sentence(plan));
    add_way(s, name, plan, dpcr_solve_plan_workspace(plan), loop);
    return CLI_DONE;
}

static int add_forward(planner_subject *s, dpcr_method method, dpcr_scheme scheme, int64_t warm_up, int64_t chunk) {
    const dpcr_solve_options options = {.size = sizeof options,
                                        .method = method,
                                        .scheme = scheme,
                                        .backward = DPCR_SCHEME_SEQUENTIAL,
                                        .warm_up = warm_up,
                                        .chunk = chunk,
                                        .max_sweeps = method == DPCR_METHOD_OVERLAP ? 0 : MOST_SWEEPS};
    return add_solve(s, &options);
}

static int add_backward(planner_subject *s, dpcr_scheme scheme, int64_t warm_up, int64_t chunk) {
    const dpcr_solve_options options = {.size = sizeof options,
                                        .method = DPCR_METHOD_SEQUENTIAL,
                                        .backward = scheme,
                                        .warm_up = warm_up,
                                        .backward_chunk = chunk};
    return add_solve(s, &options);
}

// What the planner listed, whatever it made of it, and what it may have left out.
static int add_alternatives(planner_subject *s, const dpcr_solve_plan *automatic) {
    dpcr_candidate c = {.size = sizeof c};
    int status = CLI_DONE;
    for (int64_t i = 0; !status && dpcr_solve_plan_candidate(automatic, i, &c); i++)
        if ((c.backward != 0) == s->backward)
            status = c.backward ? add_backward(s, c.scheme, c.warm_up, c.chunk)
                                : add_forward(s, c.method, c.scheme, c.warm_up, c.chunk);
    if (s->backward) {
        for (int scheme = DPCR_SCHEME_SEQUENTIAL; !status && scheme < DPCR_SCHEME_COUNT; scheme++)
            status = add_backward(s, (dpcr_scheme)scheme, scheme == DPCR_SCHEME_OVERLAP ? DEFAULT_WARM_UP : 0, 0);
        return status;
    }
    static const dpcr_method methods[] = {DPCR_METHOD_SEQUENTIAL, DPCR_METHOD_OVERLAP, DPCR_METHOD_NEWTON,
                                          DPCR_METHOD_SHOOTING, DPCR_METHOD_PICARD};
    for (size_t i = 0; !status && i < sizeof methods / sizeof *methods; i++)
        status = add_forward(s, methods[i], DPCR_SCHEME_AUTO, 0, 0);
    if (!status) status = add_forward(s, DPCR_METHOD_NEWTON, DPCR_SCHEME_CHUNKED, 0, 0);
    return status;
}

static int plan_steps(planner_subject *s, dpcr_planning planning, double budget) {
    dpcr_solve_options options = {
        .size = sizeof options, .planning = planning, .planning_seconds = budget, .start = &s->problem.z0};
    if (s->backward)
        options.method = DPCR_METHOD_SEQUENTIAL;
    else
        options.backward = DPCR_SCHEME_SEQUENTIAL;
    const double start = cli_now();
    const int status = add_solve(s, &options);
    s->planning_seconds = cli_now() - start;
    return status ? status : add_alternatives(s, s->ways[0].plan);
}

static int add_chain(planner_subject *s, const dpcr_chain_options *options) {
    dpcr_chain_plan *plan = NULL;
    dpcr_error error = {0};
    if (dpcr_chain_plan_create(s->context, &s->shape, options, &plan, &error) != DPCR_OK)
        return s->count ? CLI_DONE : cli_fail_error(&error, CLI_COMPUTING);
    const dpcr_chain_options *o = dpcr_chain_plan_options(plan);
    char name[64];
    int used = snprintf(name, sizeof name, "%s", dpcr_scheme_name(o->scheme));
    if (o->scheme == DPCR_SCHEME_CHUNKED || o->scheme == DPCR_SCHEME_OVERLAP)
        used += snprintf(name + used, sizeof name - (size_t)used, " %lld", (long long)o->chunk);
    if (o->scheme == DPCR_SCHEME_OVERLAP)
        snprintf(name + used, sizeof name - (size_t)used, "/%lld", (long long)o->warm_up);
    for (int i = 0; i < s->count; i++)
        if (!strcmp(s->ways[i].name, name)) {
            dpcr_chain_plan_destroy(plan);
            return CLI_DONE;
        }
    if (s->count == 0) snprintf(s->sentence, sizeof s->sentence, "%s", dpcr_chain_plan_sentence(plan));
    add_way(s, name, plan, dpcr_chain_plan_workspace(plan), o->scheme == DPCR_SCHEME_SEQUENTIAL);
    return CLI_DONE;
}

static int plan_chain(planner_subject *s, dpcr_planning planning, double budget) {
    s->shape.transposed = s->backward;
    dpcr_chain_options options = {
        .size = sizeof options, .planning = planning, .planning_seconds = budget, .typical = &s->a};
    const double start = cli_now();
    int status = add_chain(s, &options);
    s->planning_seconds = cli_now() - start;
    for (int scheme = DPCR_SCHEME_SEQUENTIAL; !status && scheme < DPCR_SCHEME_COUNT; scheme++) {
        options = (dpcr_chain_options){.size = sizeof options, .scheme = (dpcr_scheme)scheme};
        status = add_chain(s, &options);
    }
    return status;
}

int planner_subject_plan(planner_subject *s, bool backward, dpcr_planning planning, double budget) {
    s->backward = backward;
    s->count = 0;
    s->workspace_bytes = 0;
    const planner_kind kind = s->what->kind;
    int status = kind == PLANNER_LINEAR      ? plan_chain(s, planning, budget)
                 : kind == PLANNER_RECURRENT ? planner_recurrent_plan(s, planning, budget)
                                             : plan_steps(s, planning, budget);
    if (status) return status;
    s->workspace = cli_allocate(s->workspace_bytes);
    if (!s->workspace) return cli_fail_memory("a workspace");
    memset(s->workspace, 0, s->workspace_bytes);
    return CLI_DONE;
}

void planner_subject_unplan(planner_subject *s) {
    if (s->what->kind == PLANNER_RECURRENT) planner_recurrent_unplan(s);
    for (int i = 0; i < s->count && s->what->kind != PLANNER_RECURRENT; i++) {
        if (s->what->kind == PLANNER_LINEAR)
            dpcr_chain_plan_destroy(s->ways[i].plan);
        else
            dpcr_solve_plan_destroy(s->ways[i].plan);
    }
    cli_release(s->workspace);
    s->workspace = NULL;
    s->count = 0;
}

dpcr_status planner_subject_run(planner_subject *s, int way, dpcr_error *error) {
    const cli_problem *p = &s->problem;
    void *plan = s->ways[way].plan;
    if (s->what->kind == PLANNER_RECURRENT) return planner_recurrent_run(s, way, error);
    if (s->what->kind == PLANNER_LINEAR)
        return dpcr_chain_execute(plan, &s->a, &s->b, NULL, &s->z, s->workspace, s->workspace_bytes, NULL, error);
    if (s->backward)
        return dpcr_solve_backward(plan, &p->z0, &s->z, s->tape.data ? &s->tape : NULL, NULL, &p->last, NULL, NULL,
                                   s->workspace, s->workspace_bytes, NULL, error);
    return dpcr_solve_execute(plan, &p->z0, &s->z, NULL, s->workspace, s->workspace_bytes, NULL, error);
}
