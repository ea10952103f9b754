// SPDX-License-Identifier: MIT
// bench planner's recurrent networks: an inference pass, and a training step, both passes together, by what auto chose
// and by every pair of ways there and back.
#include <string.h>

#include "bench_planner.h"

enum { STREAM_X = 0x411, STREAM_Y, DEFAULT_WARM_UP = 64 };

int planner_recurrent_create(planner_subject *s, uint64_t seed) {
    const planner_case *c = s->what;
    dpcr_error error = {0};
    dpcr_recurrent_options options = {
        .size = sizeof options, .inputs = c->width, .hidden = c->width, .layers = 1, .seed = seed};
    if (dpcr_recurrent_kind_find(c->name, &options.kind, &error) != DPCR_OK ||
        dpcr_recurrent_create(s->context, &options, &s->network, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    const int64_t shape[] = {c->length, c->batch, c->width};
    s->pass = (dpcr_recurrent_pass){.size = sizeof s->pass};
    s->gradients = (dpcr_recurrent_gradients){.size = sizeof s->gradients};
    dpcr_array *const arrays[] = {&s->pass.x, &s->pass.y, &s->gradients.x, &s->gradients.y};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        if (!cli_array_create(DPCR_F32, 3, shape, arrays[i])) return CLI_RESOURCES;
    cli_array_normal(&s->pass.x, seed, STREAM_X);
    cli_array_normal(&s->gradients.y, seed, STREAM_Y);
    return CLI_DONE;
}

void planner_recurrent_destroy(planner_subject *s) {
    dpcr_array *const arrays[] = {&s->pass.x, &s->pass.y, &s->gradients.x, &s->gradients.y};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) cli_array_destroy(arrays[i]);
    dpcr_recurrent_destroy(s->network);
    s->network = NULL;
}

static int name_way(const dpcr_solve_options *o, bool training, char *name, size_t bytes) {
    int used = snprintf(name, bytes, "%s", dpcr_method_name(o->method));
    if (training) used += snprintf(name + used, bytes - (size_t)used, " + %s", dpcr_scheme_name(o->backward));
    const bool overlap = o->method == DPCR_METHOD_OVERLAP || (training && o->backward == DPCR_SCHEME_OVERLAP);
    if (overlap) used += snprintf(name + used, bytes - (size_t)used, " %lld", (long long)o->warm_up);
    if (o->method == DPCR_METHOD_OVERLAP && o->chunk)
        used += snprintf(name + used, bytes - (size_t)used, "/%lld", (long long)o->chunk);
    if (training && o->backward == DPCR_SCHEME_OVERLAP && o->backward_chunk)
        used += snprintf(name + used, bytes - (size_t)used, " back /%lld", (long long)o->backward_chunk);
    return used;
}

// A plan that is refused, or that another one equals, is no way of its own.
static int add(planner_subject *s, const dpcr_solve_options *solve) {
    const planner_case *c = s->what;
    const dpcr_recurrent_plan_options options = {.size = sizeof options,
                                                 .length = c->length,
                                                 .batch = c->batch,
                                                 .training = s->backward,
                                                 .solve = *solve,
                                                 .sample = &s->pass};
    dpcr_recurrent_plan *plan = NULL;
    dpcr_error error = {0};
    if (s->count == PLANNER_WAYS) return CLI_DONE;
    if (dpcr_recurrent_plan_create(s->network, &options, &plan, &error) != DPCR_OK)
        return s->count ? CLI_DONE : cli_fail_error(&error, CLI_COMPUTING);
    const dpcr_solve_plan *chain = dpcr_recurrent_plan_chain(plan, 0);
    const dpcr_solve_options *o = dpcr_solve_plan_options(chain);
    planner_way *way = &s->ways[s->count];
    *way = (planner_way){
        .plan = plan,
        .workspace = dpcr_recurrent_plan_workspace(plan),
        .loop = o->method == DPCR_METHOD_SEQUENTIAL && (!s->backward || o->backward == DPCR_SCHEME_SEQUENTIAL)};
    name_way(o, s->backward, way->name, sizeof way->name);
    for (int i = 0; i < s->count; i++)
        if (!strcmp(s->ways[i].name, way->name)) {
            dpcr_recurrent_plan_destroy(plan);
            return CLI_DONE;
        }
    if (s->count == 0) snprintf(s->sentence, sizeof s->sentence, "%s", dpcr_solve_plan_sentence(chain));
    if (way->workspace > s->workspace_bytes) s->workspace_bytes = way->workspace;
    if (dpcr_recurrent_plan_tape(plan) > s->taped_bytes) s->taped_bytes = dpcr_recurrent_plan_tape(plan);
    s->count++;
    return CLI_DONE;
}

static int add_pairs(planner_subject *s, int64_t warm_up, int64_t chunk, int64_t backward_chunk) {
    static const dpcr_method there[] = {DPCR_METHOD_SEQUENTIAL, DPCR_METHOD_OVERLAP};
    static const dpcr_scheme back[] = {DPCR_SCHEME_SEQUENTIAL, DPCR_SCHEME_OVERLAP};
    int status = CLI_DONE;
    for (int i = 0; i < 2 && !status; i++)
        for (int k = 0; k < (s->backward ? 2 : 1) && !status; k++) {
            const bool overlap = there[i] == DPCR_METHOD_OVERLAP || back[k] == DPCR_SCHEME_OVERLAP;
            const dpcr_solve_options solve = {.size = sizeof solve,
                                              .method = there[i],
                                              .backward = back[k],
                                              .warm_up = overlap ? warm_up : 0,
                                              .chunk = there[i] == DPCR_METHOD_OVERLAP ? chunk : 0,
                                              .backward_chunk = back[k] == DPCR_SCHEME_OVERLAP ? backward_chunk : 0};
            status = add(s, &solve);
        }
    return status;
}

int planner_recurrent_plan(planner_subject *s, dpcr_planning planning, double budget) {
    const dpcr_solve_options solve = {.size = sizeof solve, .planning = planning, .planning_seconds = budget};
    const double start = cli_now();
    s->taped_bytes = 0;
    int status = add(s, &solve);
    s->planning_seconds = cli_now() - start;
    if (!status) status = add_pairs(s, DEFAULT_WARM_UP, 0, 0);
    const dpcr_solve_plan *automatic = status ? NULL : dpcr_recurrent_plan_chain(s->ways[0].plan, 0);
    dpcr_candidate c = {.size = sizeof c};
    for (int64_t i = 0; !status && dpcr_solve_plan_candidate(automatic, i, &c); i++)
        if (c.warm_up > 0) status = add_pairs(s, c.warm_up, c.backward ? 0 : c.chunk, c.backward ? c.chunk : 0);
    s->taped = status ? NULL : cli_allocate(s->taped_bytes);
    if (!status && !s->taped) return cli_fail_memory("a tape");
    if (!status) memset(s->taped, 0, s->taped_bytes);
    return status;
}

void planner_recurrent_unplan(planner_subject *s) {
    for (int i = 0; i < s->count; i++) dpcr_recurrent_plan_destroy(s->ways[i].plan);
    cli_release(s->taped);
    s->taped = NULL;
}

dpcr_status planner_recurrent_run(planner_subject *s, int way, dpcr_error *error) {
    dpcr_recurrent_plan *plan = s->ways[way].plan;
    const dpcr_status status = dpcr_recurrent_execute(plan, &s->pass, s->backward ? s->taped : NULL, s->workspace,
                                                      s->workspace_bytes, NULL, error);
    if (status != DPCR_OK || !s->backward) return status;
    return dpcr_recurrent_backward(plan, &s->pass, &s->gradients, s->taped, s->workspace, s->workspace_bytes, NULL,
                                   error);
}
