// SPDX-License-Identifier: MIT
// plan linear: the schemes of a linear chain, of its shape alone or over transitions like those to come, and what ranks
// would make of it.
#include <math.h>
#include <string.h>

#include "plan.h"

int cli_plan_linear_refuse(const cli_plan *p) {
    static const char *const of_network[] = {"layers", "width", "batch", "dtype", NULL};
    static const char *const of_solver[] = {"scheme", "chunk", "run-up", "max-sweeps", "block", "memory-limit", NULL};
    if (!cli_network_only(&p->network, "a linear chain", of_network)) return CLI_USAGE;
    if (p->solver.method_given) return cli_fail(CLI_USAGE, "--method: a linear chain wants --scheme");
    if (p->solver.backward_given)
        return cli_fail(CLI_USAGE, "--backward: a linear chain's backward pass takes --scheme too");
    if (!cli_solver_only(&p->solver, "a linear chain", of_solver)) return CLI_USAGE;
    if (p->solver.options.block && p->structure != DPCR_BLOCK)
        return cli_fail(CLI_USAGE, "--block beside structure %s, which has none; wanted --structure block",
                        dpcr_structure_name(p->structure));
    if (p->transitions && (p->structure_given || p->length >= 0))
        return cli_fail(CLI_USAGE, "--%s beside --A: the file holds it", p->structure_given ? "structure" : "length");
    if (p->transitions && cli_network_gives(&p->network, "layers"))
        return cli_fail(CLI_USAGE, "--layers beside --A: the file holds them");
    if (p->transitions && cli_network_gives(&p->network, "dtype"))
        return cli_fail(CLI_USAGE, "--dtype beside --A: the file holds it");
    if (p->machine.wake > 0) return cli_fail(CLI_USAGE, "a linear chain takes no --wake: its threads are awake");
    if (p->machine.cache_bytes[1] > 0)
        return cli_fail(CLI_USAGE, "a linear chain takes no --l2: its kernels' times are this machine's; --l3 counts");
    return CLI_DONE;
}

// ---- linear chains over ranks ----

// How many times as fast; a chain of no steps takes no time at all, however it is run.
static double times(double one, double many) { return many > 0 ? one / many : 1; }

// 1, 2, 4, ... and the number asked for: the same chain, and one as many times as long.
// Ranks that take turns share a machine; else each has one. shape->length times ranks fits.
static int tell_ranks(dpcr_context *context, const cli_plan *p, const dpcr_chain_shape *shape, cli_result *r) {
    dpcr_machine machine = {.size = sizeof machine};
    const bool known = dpcr_context_machine(context, &machine, NULL) == DPCR_OK;
    json_t *list = json_array();
    dpcr_error error = {0};
    double one = 0;
    cli_say(&p->common, "  %8s %12s %9s %12s %9s %12s %12s\n", "ranks", "distributed", "speed-up", "overlap",
            "speed-up", "P as long", "efficiency");
    for (int64_t ranks = 1;; ranks = 2 * ranks < p->ranks.ranks ? 2 * ranks : p->ranks.ranks) {
        dpcr_ranks_model m = p->ranks, weak = p->ranks;
        dpcr_chain_shape longer = *shape;
        m.ranks = weak.ranks = ranks;
        const double beside = p->ranks.cores ? (double)(ranks < p->ranks.cores ? ranks : p->ranks.cores) : 1;
        if (known) m.memory = weak.memory = machine.bandwidth / beside;
        if (known) m.cache = weak.cache = machine.cache_bytes[2] / beside;
        longer.length = shape->length * ranks;
        if (dpcr_chain_predict(shape, &m, &error) != DPCR_OK || dpcr_chain_predict(&longer, &weak, &error) != DPCR_OK) {
            json_decref(list);
            return cli_fail_error(&error, CLI_COMPUTING);
        }
        if (ranks == 1) one = m.distributed;
        json_t *item =
            json_pack("{sI sf sf sf sf sf sf sf sf sf}", "ranks", (json_int_t)ranks, "seconds", m.distributed, "reduce",
                      m.reduce, "scan", m.scan, "apply", m.apply, "speed_up", times(m.loop, m.distributed),
                      "overlap_seconds", m.overlap, "overlap_speed_up", times(m.loop, m.overlap), "weak_seconds",
                      weak.distributed, "weak_efficiency", times(one, weak.distributed));
        cli_append(&list, item);
        cli_say(&p->common, "  %8lld %9.4g us %9.3g %9.4g us %9.3g %9.4g us %12.3g\n", (long long)ranks,
                1e6 * m.distributed, times(m.loop, m.distributed), 1e6 * m.overlap, times(m.loop, m.overlap),
                1e6 * weak.distributed, times(one, weak.distributed));
        if (ranks == p->ranks.ranks) break;
    }
    cli_set(r, "ranks", list);
    return CLI_DONE;
}

// ---- linear chains ----

static int by_seconds(const void *a, const void *b) {
    const double x = ((const dpcr_chain_candidate *)a)->seconds, y = ((const dpcr_chain_candidate *)b)->seconds;
    return (x > y) - (x < y);
}

enum { CANDIDATES = 2 * DPCR_SCHEME_COUNT };

// One scheme as predicted; false: it does not serve the shape.
static bool predict_scheme(dpcr_context *context, const dpcr_chain_shape *shape, const dpcr_chain_options *options,
                           dpcr_chain_candidate *found) {
    dpcr_chain_plan *made = NULL;
    if (dpcr_chain_plan_create(context, shape, options, &made, NULL) != DPCR_OK) return false;
    const dpcr_chain_options *o = dpcr_chain_plan_options(made);
    const bool overlaps = o->scheme == DPCR_SCHEME_OVERLAP, cuts = overlaps || o->scheme == DPCR_SCHEME_CHUNKED;
    *found = (dpcr_chain_candidate){.scheme = o->scheme,
                                    .chunk = cuts ? o->chunk : 0,
                                    .warm_up = overlaps ? o->warm_up : 0,
                                    .seconds = dpcr_chain_plan_seconds(made),
                                    .workspace = dpcr_chain_plan_workspace(made)};
    dpcr_chain_plan_destroy(made);
    return true;
}

// Every scheme that serves the shape, as predicted, the best first; on a machine that is described those that cut the
// chain also by chunks that give each of its cores eight, where that is sooner than their own.
static int64_t predict_schemes(dpcr_context *context, const cli_plan *p, const dpcr_chain_shape *shape,
                               const dpcr_chain_options *asked, dpcr_chain_candidate found[CANDIDATES]) {
    const double cores = p->machine.threads;
    int64_t count = 0;
    for (int scheme = DPCR_SCHEME_SEQUENTIAL; scheme < DPCR_SCHEME_COUNT; scheme++) {
        dpcr_chain_options options = *asked;
        options.scheme = (dpcr_scheme)scheme;
        if (!predict_scheme(context, shape, &options, &found[count])) continue;
        const dpcr_chain_candidate *own = &found[count++];
        options.chunk = cores > 1 ? (int64_t)ceil((double)shape->length / (8 * cores)) : 0;
        if (asked->chunk || own->chunk == 0 || options.chunk < 2 || options.chunk == own->chunk) continue;
        if (predict_scheme(context, shape, &options, &found[count]) && found[count].seconds < own->seconds) count++;
    }
    qsort(found, (size_t)count, sizeof *found, by_seconds);
    return count;
}

static json_t *tell_candidate(const cli_plan *p, const dpcr_chain_candidate *c) {
    char details[96] = "", measured[32] = "";
    const int sweeps = c->scheme == DPCR_SCHEME_SEQUENTIAL ? 0 : 1;
    if (c->measured > 0) snprintf(measured, sizeof measured, "%.4g us", 1e6 * c->measured);
    if (c->warm_up)
        snprintf(details, sizeof details, "run-up %lld, chunk %lld%s", (long long)c->warm_up, (long long)c->chunk,
                 c->measured > 0 ? "" : ", where the chain forgets within the run-up");
    else if (c->chunk)
        snprintf(details, sizeof details, "chunk %lld", (long long)c->chunk);
    cli_say(&p->common, "  %-11s %12.4g us %15s %7d sweep%-1s %12zu bytes  %s\n", dpcr_scheme_name(c->scheme),
            1e6 * c->seconds, measured, sweeps, cli_s(sweeps), c->workspace, details);
    return json_pack("{ss sI sI si so so sI}", "scheme", dpcr_scheme_name(c->scheme), "chunk", (json_int_t)c->chunk,
                     "run_up", (json_int_t)c->warm_up, "sweeps", sweeps, "seconds", cli_json_real(c->seconds),
                     "measured_seconds", c->measured > 0 ? cli_json_real(c->measured) : json_null(), "workspace_bytes",
                     (json_int_t)c->workspace);
}

// What was timed, or else what every scheme is predicted to take.
static void tell_schemes(dpcr_context *context, const cli_plan *p, const dpcr_chain_plan *made,
                         const dpcr_chain_shape *shape, const dpcr_chain_options *asked, cli_result *r) {
    dpcr_chain_candidate found[CANDIDATES], timed = {.size = sizeof timed};
    const bool measured = dpcr_chain_plan_candidate(made, 0, &timed);
    const int64_t count = measured ? 0 : predict_schemes(context, p, shape, asked, found);
    json_t *list = json_array();
    cli_say(&p->common, "  %-11s %15s %15s\n", "", "predicted", "measured");
    for (int64_t i = 0; measured ? dpcr_chain_plan_candidate(made, i, &timed) : i < count; i++) {
        json_t *item = tell_candidate(p, measured ? &timed : &found[i]);
        cli_append(&list, item);
    }
    cli_set(r, "candidates", list);
}

// ---- the chain asked about ----

// The state's width by a file of A; 0: A has no such shape. Of scalars it is not known.
static int64_t width_of(const dpcr_array *file, int64_t otherwise) {
    const int64_t *n = file->shape;
    switch (file->ndim) {
        case 2: return otherwise;
        case 3: return n[2];
        case 4: return n[2] == n[3] ? n[2] : 0;
        case 5: return n[3] == n[4] && n[3] > 0 && n[2] <= INT64_MAX / n[3] ? n[2] * n[3] : 0;
        default: return 0;
    }
}

// Of a file's transitions, whose view is `a`. Those of one sequence may serve several.
static int shape_of_file(const cli_plan *p, const dpcr_array *file, dpcr_chain_shape *shape, dpcr_array *a) {
    const int64_t w = width_of(file, p->network.options.width), steps = file->shape[0];
    const bool batch_given = cli_network_gives(&p->network, "batch");
    if (w < 1 || (file->dtype != DPCR_F32 && file->dtype != DPCR_F64))
        return cli_fail(CLI_INPUT, "--A: wanted floating-point [L][B] and then nothing, [w], [w][w] or [m][k][k]");
    if (file->ndim > 2 && cli_network_gives(&p->network, "width"))
        return cli_fail(CLI_USAGE, "--width beside --A: the file holds it");
    if (file->shape[1] != 1 && batch_given)
        return cli_fail(CLI_USAGE, "--batch beside --A of %lld sequences: the file holds it",
                        (long long)file->shape[1]);
    const int64_t batch = batch_given ? p->network.batch : file->shape[1];
    const dpcr_array b = {.dtype = file->dtype, .ndim = 3, .shape = {steps, batch, w}};  // what is to come
    return cli_linear_shape(file, &b, NULL, p->transposed, shape, a);
}

static dpcr_chain_shape shape_of_options(const cli_plan *p) {
    const dpcr_model_options *o = &p->network.options;
    const int64_t block = p->structure == DPCR_BLOCK ? (p->solver.options.block ? p->solver.options.block : 2) : 0;
    return (dpcr_chain_shape){.size = sizeof(dpcr_chain_shape),
                              .length = o->layers,
                              .batch = p->network.batch,
                              .transition = dpcr_transition_square(p->structure, o->width, block),
                              .dtype = o->dtype,
                              .transposed = p->transposed};
}

static int plan_shape(dpcr_context *context, const cli_plan *p, const dpcr_chain_shape *shape,
                      const dpcr_array *typical, cli_result *r) {
    const dpcr_solve_options *o = &p->solver.options;
    const dpcr_chain_options options = {.size = sizeof options,
                                        .scheme = o->scheme,
                                        .chunk = o->chunk,
                                        .warm_up = o->warm_up,
                                        .max_sweeps = o->max_sweeps,
                                        .planning = o->planning,
                                        .planning_seconds = o->planning_seconds,
                                        .typical = typical};
    dpcr_chain_plan *made = NULL;
    char why[CLI_WHY];
    if (p->ranks.ranks && shape->length > INT64_MAX / p->ranks.ranks)
        return cli_fail(CLI_USAGE, "--length %lld times %lld ranks is more than can be numbered",
                        (long long)shape->length, (long long)p->ranks.ranks);
    const double before = cli_now();
    const int status = cli_linear_plan(context, shape, &options, o->memory_limit, &made, why);
    const double seconds = cli_now() - before;
    if (status) {
        dpcr_chain_plan_destroy(made);
        return status;
    }
    cli_plan_set_shape(r, "linear", shape->length, shape->batch, shape->transition.rows, shape->dtype);
    cli_set_text(r, "structure", dpcr_structure_name(shape->transition.structure));
    cli_set_bool(r, "transposed", shape->transposed != 0);
    cli_set_text(r, "scheme", dpcr_scheme_name(dpcr_chain_plan_scheme(made)));
    cli_set_text(r, "planning", dpcr_planning_name(o->planning));
    cli_set_real(r, "planning_seconds", seconds);
    cli_set_int(r, "workspace_bytes", (json_int_t)dpcr_chain_plan_workspace(made));
    cli_set_text(r, "sentence", why);
    cli_say(&p->common, "%s\n", why);
    if (o->scheme == DPCR_SCHEME_AUTO && o->planning == DPCR_PLANNING_ESTIMATE && !p->wisdom &&
        !cli_plan_is_elsewhere(p))
        cli_say(
            &p->common,
            "auto goes by shape, threads and instruction set, never by measured rates, so that bits stay; the list, "
            "by this machine's rates:\n");
    tell_schemes(context, p, made, shape, &options, r);
    cli_say(&p->common, "workspace %zu bytes; planned in %.3g s\n", dpcr_chain_plan_workspace(made), seconds);
    dpcr_chain_plan_destroy(made);
    return p->ranks.ranks ? tell_ranks(context, p, shape, r) : CLI_DONE;
}

int cli_plan_linear(dpcr_context *context, const cli_plan *p, cli_result *r) {
    dpcr_chain_shape shape = shape_of_options(p);
    dpcr_tensors file = {0};
    const dpcr_array *read = NULL;
    dpcr_array a = {0};
    int status = p->transitions ? cli_array_read(context, "A", p->transitions, &file, &read) : CLI_DONE;
    if (!status && read) status = shape_of_file(p, read, &shape, &a);
    if (!status) status = plan_shape(context, p, &shape, read ? &a : NULL, r);
    dpcr_tensors_free(context, &file);
    return status;
}
