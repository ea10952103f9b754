// SPDX-License-Identifier: MIT
// bench bppsa: the backward pass of a network as a scan over transposed Jacobians, against plain back-propagation: over
// the same Jacobians (`loop`) and over those with an entry for every weight, pruned or not (`dense`). All three give
// the same gradients. Flops follow from the patterns; times are medians of interleaved rounds. `dense` has the flops of
// dense back-propagation, not its speed: it reads every entry of a convolution's Jacobian, where a kernel of its own
// would keep the weights in cache.
#include "bench_bppsa.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEY_NETWORK = 0x7000,
    KEY_PRUNE,
    KEY_LIMIT,
    KEY_TIMES,
    KEY_DIVISOR,
    KEY_LENGTH,
    KEY_WIDTH,
    KEY_BATCH,
    KEY_DTYPE
};
enum { DENSE = 0, LOOP, SCAN, WAYS, ROUNDS = 25, LEAST_ROUNDS = 3 };
static const char *const way_names[WAYS] = {"dense", "loop", "scan"};
static const double round_seconds = 1e-3;  // a round of one way lasts at least this
static const double long_call = 2;         // one round of calls that take longer than this and than the race

static const struct argp_option bppsa_options[] = {
    {"network", KEY_NETWORK, "NAME", 0, "mlp, lenet (default), vgg11 or rnn", 0},
    {"prune", KEY_PRUNE, "F", 0, "Fraction of each layer's weights that is zero, the smallest (default 0)", 0},
    {"level-limit", KEY_LIMIT, "N", 0, "Levels of the tree, L_m (default 2; 0: the loop; none: as many as there are)",
     0},
    {"batch", KEY_BATCH, "N", 0, "Sequences (default 16)", 0},
    {"divisor", KEY_DIVISOR, "N", 0, "Divides the channels of vgg11 and the widths of mlp (default 1)", 0},
    {"length", KEY_LENGTH, "N", 0, "Time steps of rnn (default 1000)", 0},
    {"width", KEY_WIDTH, "N", 0, "State of rnn (default 20)", 0},
    {"dtype", KEY_DTYPE, "TYPE", 0, "float32 (default) or float64", 0},
    {"seconds", KEY_TIMES, "T", 0, "Length of the race (default 1.5)", 0},
    {0},
};

static error_t read_limit(const char *arg, int *limit) {
    if (!strcmp(arg, "none")) {
        *limit = -1;
        return 0;
    }
    return cli_read_int("--level-limit", arg, 0, 62, limit) ? 0 : EINVAL;
}

static error_t parse_bppsa(int key, char *arg, struct argp_state *state) {
    bppsa_asked *a = state->input;
    switch (key) {
        case KEY_NETWORK:
            return cli_read_word("--network", arg, bppsa_networks, BPPSA_NETWORKS, &a->network) ? 0 : EINVAL;
        case KEY_PRUNE: return cli_read_double("--prune", arg, 0, 0.999999, &a->prune) ? 0 : EINVAL;
        case KEY_LIMIT: return read_limit(arg, &a->level_limit);
        case KEY_BATCH: return cli_read_int64("--batch", arg, 1, 1 << 20, &a->batch) ? 0 : EINVAL;
        case KEY_DIVISOR: return cli_read_int64("--divisor", arg, 1, 1 << 20, &a->divisor) ? 0 : EINVAL;
        case KEY_LENGTH: return cli_read_int64("--length", arg, 1, 1 << 26, &a->length) ? 0 : EINVAL;
        case KEY_WIDTH: return cli_read_int64("--width", arg, 1, 1 << 14, &a->width) ? 0 : EINVAL;
        case KEY_DTYPE: return cli_read_dtype("--dtype", arg, &a->dtype) ? 0 : EINVAL;
        case KEY_TIMES: return cli_read_double("--seconds", arg, 0, 3600, &a->seconds) ? 0 : EINVAL;
        default: return ARGP_ERR_UNKNOWN;
    }
}

// Refuses sizes that the network asked for has not, and sets those that it has and that were not given.
static bool settle_sizes(bppsa_asked *a) {
    const char *const name = bppsa_networks[a->network];
    const bool rnn = !strcmp(name, "rnn"), divides = !strcmp(name, "mlp") || !strcmp(name, "vgg11");
    if (a->divisor && !divides)
        return cli_fail(CLI_USAGE, "--divisor: that is of mlp and vgg11, not of %s", name), false;
    if ((a->length || a->width) && !rnn)
        return cli_fail(CLI_USAGE, "--%s: that is of rnn, not of %s", a->length ? "length" : "width", name), false;
    if (!a->divisor) a->divisor = 1;
    if (!a->length) a->length = 1000;
    if (!a->width) a->width = 20;
    return true;
}

static const struct argp bppsa_argp = {bppsa_options, parse_bppsa, NULL, NULL, NULL, NULL, NULL};

// ---- the three ways ----

typedef struct way {
    dpcr_bppsa_plan *plan;
    const dpcr_array *values;
    dpcr_array *gradients;
    void *workspace;
    double planning_seconds, times[ROUNDS], seconds, spread;
    int runs;  // of a round
} way;

typedef struct race {
    const bppsa_network *n;
    way ways[WAYS];
    int rounds;
    // From `dense`: largest over the boundaries, relative to the largest gradient there, where that is far from
    // underflow.
    double difference[WAYS];
    double fill_seconds;
} race;

static int plan_way(dpcr_context *context, const bppsa_network *n, int which, int levels, way *w) {
    const dpcr_bppsa_shape shape = {.size = sizeof shape,
                                    .length = n->length,
                                    .batch = n->batch,
                                    .steps = which == DENSE ? n->full_steps : n->steps,
                                    .shared = n->shared,
                                    .dtype = n->dtype};
    const dpcr_bppsa_options options = {
        .size = sizeof options, .levels = levels, .most_bytes = cli_memory_budget() / 4 * 3};
    dpcr_error error = {0};
    const double start = cli_now();
    if (dpcr_bppsa_plan_create(context, &shape, &options, &w->plan, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    w->planning_seconds = cli_now() - start;
    w->values = which == DENSE ? n->full_values : n->values;
    w->workspace = cli_allocate(dpcr_bppsa_plan_workspace(w->plan));
    w->gradients = calloc((size_t)n->length, sizeof *w->gradients);
    if (!w->workspace || !w->gradients) return cli_fail_memory("the workspace");
    for (int64_t l = 0; l < n->length; l++)
        if (!cli_array_create(n->dtype, 2, (const int64_t[]){n->batch, shape.steps[l].rows}, &w->gradients[l]))
            return CLI_RESOURCES;
    return CLI_DONE;
}

static void drop_way(const bppsa_network *n, way *w) {
    for (int64_t l = 0; w->gradients && l < n->length; l++) cli_array_destroy(&w->gradients[l]);
    free(w->gradients);
    cli_release(w->workspace);
    dpcr_bppsa_plan_destroy(w->plan);
}

static int run_way(const bppsa_network *n, way *w, int runs, double *seconds) {
    dpcr_error error = {0};
    const double start = cli_now();
    for (int i = 0; i < runs; i++)
        if (dpcr_bppsa_execute(w->plan, w->values, &n->last, w->gradients, w->workspace,
                               dpcr_bppsa_plan_workspace(w->plan), &error) != DPCR_OK)
            return cli_fail_error(&error, CLI_COMPUTING);
    *seconds = (cli_now() - start) / runs;
    return CLI_DONE;
}

// ---- results ----

static double difference_at(const dpcr_array *x, const dpcr_array *y) {
    double most = 0, scale = x->dtype == DPCR_F32 ? 1e-30 : 1e-290;
    for (int64_t i = 0; i < cli_array_count(x); i++) {
        const double difference = fabs(cli_array_get(x, i) - cli_array_get(y, i));
        scale = fmax(scale, fabs(cli_array_get(x, i)));
        most = difference > most || isnan(difference) ? difference : most;
    }
    return most / scale;
}

static void compare(race *r) {
    for (int i = LOOP; i < WAYS; i++)
        for (int64_t l = 0; l < r->n->length; l++) {
            const double d = difference_at(&r->ways[DENSE].gradients[l], &r->ways[i].gradients[l]);
            if (d > r->difference[i] || isnan(d)) r->difference[i] = d;
        }
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void summarise(race *r) {
    for (int i = 0; i < WAYS; i++) {
        way *w = &r->ways[i];
        qsort(w->times, (size_t)r->rounds, sizeof *w->times, by_size);
        w->seconds = w->times[r->rounds / 2];
        w->spread = (w->times[3 * (r->rounds - 1) / 4] - w->times[(r->rounds - 1) / 4]) / w->seconds;
    }
}

// Of what does not look at signals by itself.
static int heard(int status) { return !status && cli_signal() ? cli_fail_stopped() : status; }

static int run_race(race *r, double seconds) {
    int status = CLI_DONE;
    bool over = false;  // what warmed up was the round
    for (int i = 0; !status && i < WAYS; i++) {
        way *w = &r->ways[i];
        double *once = &w->times[0];
        status = heard(run_way(r->n, w, 1, once));
        const bool is_long = *once > fmax(seconds, long_call);
        if (!status && !is_long) status = heard(run_way(r->n, w, 1, once));
        w->runs = *once < round_seconds ? (int)fmin(1e4, ceil(round_seconds / fmax(*once, 1e-7))) : 1;
        over = over || is_long;
    }
    if (!status) compare(r);
    if (over) r->rounds = 1;
    const double start = cli_now();
    for (; !status && !over && r->rounds < ROUNDS && !cli_signal(); r->rounds++) {
        if (r->rounds >= LEAST_ROUNDS && cli_now() - start > seconds) break;
        for (int i = 0; !status && i < WAYS; i++)
            status = run_way(r->n, &r->ways[i], r->ways[i].runs, &r->ways[i].times[r->rounds]);
    }
    status = heard(status);
    if (!status) summarise(r);
    return status;
}

static int time_fill(race *r) {
    dpcr_error error = {0};
    const double start = cli_now();
    if (bppsa_network_refill(r->n, &error) != DPCR_OK) return cli_fail_error(&error, CLI_COMPUTING);
    r->fill_seconds = cli_now() - start;
    return CLI_DONE;
}

// ---- what is told ----

static json_t *way_object(const race *r, int which) {
    const way *w = &r->ways[which];
    const dpcr_bppsa_cost *c = dpcr_bppsa_plan_cost(w->plan);
    cli_result o = cli_result_create();
    cli_set_text(&o, "name", way_names[which]);
    cli_set_real(&o, "seconds", w->seconds);
    cli_set_real(&o, "spread", w->spread);
    cli_set_real(&o, "flops", c->flops);
    cli_set_real(&o, "critical_flops", c->critical_flops);
    cli_set_int(&o, "compositions", c->compositions);
    cli_set_int(&o, "applications", c->applications);
    cli_set_int(&o, "depth", c->depth);
    cli_set_int(&o, "levels", c->levels);
    cli_set_int(&o, "patterns", c->patterns);
    cli_set_int(&o, "product_values", c->product_values);
    cli_set_int(&o, "pattern_bytes", (int64_t)c->pattern_bytes);
    cli_set_int(&o, "workspace_bytes", (int64_t)c->workspace_bytes);
    cli_set_real(&o, "planning_seconds", w->planning_seconds);
    cli_set_real(&o, "max_error", r->difference[which]);
    return cli_result_take(&o);
}

static json_t *level_objects(const dpcr_bppsa_plan *plan) {
    static const char *const phases[] = {"up", "middle", "down"};
    json_t *all = json_array();
    for (int64_t i = 0; i < dpcr_bppsa_plan_levels(plan); i++) {
        const dpcr_bppsa_level *level = dpcr_bppsa_plan_level(plan, i);
        cli_append(&all, json_pack("{s:s, s:i, s:I, s:I, s:f, s:f}", "phase", phases[level->phase], "level",
                                   level->level, "compositions", (json_int_t)level->compositions, "applications",
                                   (json_int_t)level->applications, "flops", level->flops, "critical_flops",
                                   level->critical_flops));
    }
    return all;
}

// Rounding grows with the chain: products of many steps lose more than the loop does, about half an epsilon a step in
// recurrent networks of width 64.
static double allowed_difference(const bppsa_network *n) {
    const bool whole = n->dtype == DPCR_F64;
    return fmax(whole ? 1e-10 : 1e-4, 4 * (whole ? DBL_EPSILON : (double)FLT_EPSILON) * (double)n->length);
}

static int tell(const bppsa_asked *a, const race *r) {
    const bppsa_network *n = r->n;
    const dpcr_bppsa_cost *dense = dpcr_bppsa_plan_cost(r->ways[DENSE].plan),
                          *scan = dpcr_bppsa_plan_cost(r->ways[SCAN].plan);
    const double allowed = allowed_difference(n), error = fmax(r->difference[LOOP], r->difference[SCAN]);
    const bool agree = r->difference[LOOP] <= allowed && r->difference[SCAN] <= allowed;
    cli_result o = cli_result_create();
    cli_set_text(&o, "network", bppsa_networks[a->network]);
    cli_set_text(&o, "dtype", dpcr_dtype_name(a->dtype));
    cli_set_text(&o, "isa", dpcr_isa_name());
    cli_set_int(&o, "steps", n->length);
    cli_set_int(&o, "batch", n->batch);
    cli_set_real(&o, "prune", a->prune);
    cli_set_int(&o, "weights", n->weights);
    cli_set_int(&o, "weights_kept", n->kept);
    cli_set_int(&o, "rounds", r->rounds);
    cli_set_real(&o, "flops_ratio", dense->loop_flops / scan->flops);
    cli_set_real(&o, "critical_flops_ratio", dense->loop_flops / scan->critical_flops);
    cli_set_real(&o, "pruned_critical_flops_ratio", scan->loop_flops / scan->critical_flops);
    cli_set_real(&o, "seconds_ratio", r->ways[DENSE].seconds / r->ways[SCAN].seconds);
    cli_set_real(&o, "pruned_seconds_ratio", r->ways[LOOP].seconds / r->ways[SCAN].seconds);
    cli_set_real(&o, "fill_seconds", r->fill_seconds);
    cli_set_real(&o, "max_error", error);
    cli_set_bool(&o, "agree", agree);
    json_t *ways = json_array();
    for (int i = 0; i < WAYS; i++) cli_append(&ways, way_object(r, i));
    cli_set(&o, "ways", ways);
    cli_set(&o, "scan_levels", level_objects(r->ways[SCAN].plan));
    cli_say(&a->common, "%s, %lld steps, batch %lld, %lld of %lld weights\n", bppsa_networks[a->network],
            (long long)n->length, (long long)n->batch, (long long)n->kept, (long long)n->weights);
    for (int i = 0; i < WAYS; i++) {
        const dpcr_bppsa_cost *c = dpcr_bppsa_plan_cost(r->ways[i].plan);
        cli_say(&a->common,
                "  %-6s %10.4g s  spread %4.0f %%  flops a sequence %10.4g, on the critical path %10.4g, error %.2g\n",
                way_names[i], r->ways[i].seconds, 100 * r->ways[i].spread, c->flops, c->critical_flops,
                r->difference[i]);
    }
    cli_say(&a->common,
            "  L_m = %d: %lld products of %lld patterns, %.4g MB of patterns, workspace %.4g MB, planned in %.3g s\n",
            scan->levels, (long long)scan->compositions, (long long)scan->patterns, 1e-6 * (double)scan->pattern_bytes,
            1e-6 * (double)scan->workspace_bytes, r->ways[SCAN].planning_seconds);
    const int status =
        agree ? CLI_DONE : cli_fail(CLI_DISAGREE, "gradients differ by %.3g, allowed are %.3g", error, allowed);
    const int told = cli_finish(&a->common, &o, status);
    cli_result_destroy(&o);
    return told;
}

static int run(const bppsa_asked *a) {
    int status = CLI_DONE;
    bppsa_network n = {0};
    race r = {.n = &n};
    dpcr_context *context = cli_context_create(&a->common, &status);
    if (context) status = heard(bppsa_network_create(context, a, &n));
    if (context && !status) status = heard(plan_way(context, &n, DENSE, 1, &r.ways[DENSE]));
    if (context && !status) status = heard(plan_way(context, &n, LOOP, 1, &r.ways[LOOP]));
    if (context && !status) status = heard(plan_way(context, &n, SCAN, a->level_limit + 1, &r.ways[SCAN]));
    if (context && !status) status = heard(time_fill(&r));
    if (context && !status) status = run_race(&r, a->seconds);
    if (context && !status) status = tell(a, &r);
    for (int i = 0; i < WAYS; i++) drop_way(&n, &r.ways[i]);
    bppsa_network_destroy(&n);
    dpcr_context_destroy(context);
    return status;
}

int cli_bench_bppsa(int argc, char **argv) {
    bppsa_asked a = {
        .common = CLI_COMMON_DEFAULTS, .network = 1, .dtype = DPCR_F32, .batch = 16, .level_limit = 2, .seconds = 1.5};
    const cli_syntax syntax = {
        .arguments = "",
        .doc =
            "Runs the backward pass of a network, from the gradient of its outputs to those of all layers' inputs, as "
            "a "
            "scan over sparse transposed Jacobians with a limited number of levels (BPPSA), and by plain "
            "back-propagation over the same Jacobians (loop) and over those of the unpruned network (dense: sparse "
            "products too, of every entry; a convolution's own kernel would be faster). Tells flops, all of them and "
            "those on the critical path, from the patterns; times on this machine; and the largest difference of the "
            "gradients.",
        .groups = {{&bppsa_argp, &a, "Network:"}, {&cli_common_argp, &a.common, "Output and resources:"}},
        .most = 0};
    const char *positional[CLI_MAX_POSITIONAL];
    int status;
    if (!cli_parse(&syntax, argc, argv, positional, &status)) return status;
    return settle_sizes(&a) ? run(&a) : CLI_USAGE;
}
