// SPDX-License-Identifier: MIT
// bench chain: a linear chain z_l = A_l z_{l-1} + b_l by the loop and by every scheme; backward is the transposed
// chain. Entries of A_l are N(0, R^2 / n), n in a row, so that a step multiplies the mean square by R^2; b is N(0, 1).
#include <float.h>
#include <math.h>
#include <string.h>

#include "bench.h"

enum { STREAM_A = 0x301, STREAM_B, PERIOD = 1 << 20 };
static const double best_flops = 5e10;  // an optimistic rate of one thread

typedef struct subject {
    dpcr_context *context;
    const bench *asked;
    dpcr_chain_shape shape;
    dpcr_array a, b, z, reference;  // [L][B][values], [L][B][w]
    void *workspace;
    size_t workspace_bytes;
} subject;

static dpcr_status run(void *user, bench_entrant *e, bool fresh, dpcr_error *error) {
    subject *s = user;
    dpcr_chain_report report = {.size = sizeof report};
    if (fresh) memset(s->z.data, 0xff, (size_t)cli_array_count(&s->z) * dpcr_dtype_size(s->z.dtype));  // nobody else's
    const dpcr_status status = dpcr_chain_execute(e->plan, s->a.data ? &s->a : NULL, &s->b, NULL, &s->z, s->workspace,
                                                  s->workspace_bytes, fresh ? &report : NULL, error);
    if (!fresh) return status;
    const dpcr_transition *t = &s->shape.transition;
    e->chosen = dpcr_scheme_name(report.scheme);
    e->sweeps = report.sweeps;
    e->depth = report.depth;
    e->fallback = report.finished_from < s->shape.length;
    e->reason = dpcr_reason_name(report.scheme == DPCR_SCHEME_SEQUENTIAL ? DPCR_REASON_SEQUENTIAL
                                 : e->fallback                           ? DPCR_REASON_FALLBACK
                                                                         : DPCR_REASON_CONVERGED);
    e->flops = (double)report.compositions * dpcr_transition_compose_flops(t) +
               (double)report.applications * dpcr_transition_apply_flops(t);
    return status;
}

static void keep(void *user) {
    const subject *s = user;
    memcpy(s->reference.data, s->z.data, (size_t)cli_array_count(&s->z) * dpcr_dtype_size(s->z.dtype));
}

static double compare(void *user) {
    const subject *s = user;
    return cli_states_error(&s->z, &s->reference);
}

// ---- entrants ----

static double least_seconds(const subject *s, dpcr_scheme scheme) {
    const double n = (double)s->shape.length * (double)s->shape.batch;
    const double levels = scheme == DPCR_SCHEME_PCR ? ceil(log2((double)s->shape.length + 1)) : 1;
    const bool composes = scheme == DPCR_SCHEME_PCR || scheme == DPCR_SCHEME_BLELLOCH || scheme == DPCR_SCHEME_CHUNKED;
    if (!composes) return 0;
    return n * levels * dpcr_transition_compose_flops(&s->shape.transition) /
           (best_flops * dpcr_context_threads(s->context));
}

static int add_with(subject *s, bench_race *race, dpcr_scheme scheme, int64_t run_up, double tolerance) {
    const dpcr_solve_options *given = &s->asked->solver.options;
    const dpcr_chain_options options = {.size = sizeof options,
                                        .scheme = scheme,
                                        .chunk = given->chunk,
                                        .warm_up = run_up,
                                        .tolerance = tolerance,
                                        .max_sweeps = given->max_sweeps};
    bench_entrant *e = bench_race_add(race, dpcr_scheme_name(scheme));
    e->run_up = run_up;
    dpcr_chain_plan *plan = NULL;
    dpcr_error error = {0};
    e->least_seconds = least_seconds(s, scheme);
    e->tolerance = scheme == DPCR_SCHEME_OVERLAP ? options.tolerance : -1;
    if (dpcr_chain_plan_create(s->context, &s->shape, &options, &plan, &error) != DPCR_OK) {
        if (race->count <= 2) return cli_fail_error(&error, CLI_COMPUTING);
        snprintf(e->skipped, sizeof e->skipped, "%.150s", error.text);
        return CLI_DONE;
    }
    e->plan = plan;
    e->workspace = dpcr_chain_plan_workspace(plan);
    if (race->count > 2 && e->workspace > cli_memory_budget() / 4)
        snprintf(e->skipped, sizeof e->skipped, "it needs a workspace of %zu bytes", e->workspace);
    else if (e->workspace > s->workspace_bytes)
        s->workspace_bytes = e->workspace;
    return CLI_DONE;
}

static int add(subject *s, bench_race *race, dpcr_scheme scheme) {
    const dpcr_solve_options *given = &s->asked->solver.options;
    return add_with(s, race, scheme, given->warm_up, fmax(0, given->atol));
}

// Overlap with the loop's bits and to a few roundings, which is as near as the schemes that compose come: of wide
// chains two runs keep a distance of some ulp for ever. Each after the default run-up and after twice that, unless
// told.
static int add_overlaps(subject *s, bench_race *race) {
    static const int64_t run_ups[] = {0, 128};  // 0: the default
    const dpcr_solve_options *given = &s->asked->solver.options;
    const double roundings = s->shape.dtype == DPCR_F64   ? 8 * DBL_EPSILON
                             : s->shape.dtype == DPCR_F32 ? 8 * FLT_EPSILON
                                                          : 0;
    int status = CLI_DONE;
    for (int exact = given->atol <= 0 && roundings > 0; exact >= 0; exact--)
        for (size_t i = 0; i < (given->warm_up ? 1 : sizeof run_ups / sizeof *run_ups) && !status; i++)
            status = add_with(s, race, DPCR_SCHEME_OVERLAP, given->warm_up ? given->warm_up : run_ups[i],
                              given->atol > 0 ? given->atol
                              : exact         ? 0
                                              : roundings);
    return status;
}

static int enter(subject *s, bench_race *race) {
    const cli_solver *given = &s->asked->solver;
    const bool chosen = given->scheme_given && given->options.scheme != DPCR_SCHEME_AUTO;
    int status = add(s, race, DPCR_SCHEME_SEQUENTIAL);
    race->chosen = race->count;
    if (!status) status = add(s, race, DPCR_SCHEME_AUTO);
    if (status || chosen) return status ? status : add(s, race, given->options.scheme);
    for (int scheme = DPCR_SCHEME_SEQUENTIAL + 1; scheme < DPCR_SCHEME_COUNT && !status; scheme++)
        status = scheme == DPCR_SCHEME_OVERLAP ? add_overlaps(s, race) : add(s, race, (dpcr_scheme)scheme);
    return status;
}

static int run_direction(subject *s, bench_race *race, bool transposed) {
    const double values = (double)dpcr_transition_values(&s->shape.transition);
    const double states = (double)s->shape.length * (double)s->shape.batch;
    *race = (bench_race){.subject = s, .run = run, .keep = keep, .compare = compare};
    race->bytes = states * (values + 2 * (double)s->shape.transition.rows) * (double)dpcr_dtype_size(s->shape.dtype);
    s->shape.transposed = transposed;
    s->workspace_bytes = 0;
    int status = enter(s, race);
    s->workspace = status ? NULL : cli_allocate(s->workspace_bytes);
    if (!status && !s->workspace)
        status = cli_fail(CLI_RESOURCES, "not enough memory for a workspace of %zu bytes", s->workspace_bytes);
    if (s->workspace) {
        memset(s->workspace, 0, s->workspace_bytes);
        status = bench_race_run(race, s->asked->seconds);
    }
    for (int i = 0; i < race->count; i++) dpcr_chain_plan_destroy(race->entrants[i].plan);
    for (int i = 0; i < race->count; i++) race->entrants[i].plan = NULL;
    cli_release(s->workspace);
    return status;
}

// ---- the chain ----

static int entries_of_a_row(const dpcr_transition *t) {
    return t->structure == DPCR_DENSE ? (int)t->rows : t->structure == DPCR_BLOCK ? (int)t->block : 1;
}

// Normal numbers; in long arrays they repeat, which changes neither time nor contraction and saves seconds.
static void fill(const dpcr_array *array, double deviation, uint64_t seed, uint64_t stream) {
    const int64_t n = cli_array_count(array), own = n < PERIOD ? n : PERIOD;
    const size_t bytes = dpcr_dtype_size(array->dtype);
    for (int64_t i = 0; i < own; i++) cli_array_set(array, i, deviation * cli_normal(seed, stream, (uint64_t)i));
    for (int64_t i = own; i < n; i += PERIOD)
        memcpy((char *)array->data + (size_t)i * bytes, array->data, (size_t)(n - i < PERIOD ? n - i : PERIOD) * bytes);
}

static int make_arrays(subject *s) {
    const dpcr_chain_shape *shape = &s->shape;
    const int64_t values = dpcr_transition_values(&shape->transition);
    const int64_t all[] = {shape->length, shape->batch, shape->transition.rows};
    const int64_t entries[] = {shape->length, shape->batch, values};
    if (!cli_array_create(shape->dtype, 3, all, &s->b) || !cli_array_create(shape->dtype, 3, all, &s->z) ||
        !cli_array_create(shape->dtype, 3, all, &s->reference))
        return CLI_RESOURCES;
    if (values > 0 && !cli_array_create(shape->dtype, 3, entries, &s->a)) return CLI_RESOURCES;
    const double deviation = s->asked->radius / sqrt(entries_of_a_row(&shape->transition));
    fill(&s->b, 1, s->asked->common.seed, STREAM_B);
    if (values > 0) fill(&s->a, deviation, s->asked->common.seed, STREAM_A);
    return CLI_DONE;
}

int bench_chain_point(dpcr_context *context, const bench *b, bench_point *point) {
    const int64_t k = b->structure == DPCR_BLOCK ? (b->solver.options.block ? b->solver.options.block : 2) : 0;
    subject s = {.context = context,
                 .asked = b,
                 .shape = {.size = sizeof s.shape,
                           .length = point->length,
                           .batch = point->batch,
                           .transition = dpcr_transition_square(b->structure, point->width, k),
                           .dtype = point->dtype}};
    dpcr_error error = {0};
    if (dpcr_transition_check(&s.shape.transition, &error) != DPCR_OK) return cli_fail_error(&error, CLI_COMPUTING);
    int status = make_arrays(&s);
    if (!status) status = run_direction(&s, &point->forward, false);
    if (!status) status = run_direction(&s, &point->backward, true);
    cli_array_destroy(&s.a);
    cli_array_destroy(&s.b);
    cli_array_destroy(&s.z);
    cli_array_destroy(&s.reference);
    return status;
}
