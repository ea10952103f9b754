// SPDX-License-Identifier: MIT
// PipeDream's partitioner: the dynamic program at dpcr_partition_pipedream, over a chain of layers. best[j][n] is the
// period of layers 0..j on n ranks with what its last stage is; going back from the last layer gives the stages.
// Source: PipeDream (arXiv 1806.03377), optimizer; derived in docs/math/schedules.md.
#include <math.h>

#include "pipe/profile.h"

typedef struct choice {
    double period;     // infinite: cannot be
    int64_t before;    // layers before the last stage; 0: it is the only one
    int64_t replicas;  // of the last stage
} choice;

typedef struct program {
    const dpcr_profile *profile;
    const dpcr_partition_options *options;
    double *time, *weights;  // [layers + 1] sums of the layers before
    choice *best;            // [layers + 1][ranks + 1], by number of layers
} program;

static choice *at(const program *g, int64_t layers, int64_t ranks) {
    return &g->best[layers * (g->options->ranks + 1) + ranks];
}

static double over(double bytes, double bandwidth) { return bandwidth > 0 ? bytes / bandwidth : 0; }

// Layers from..to - 1 as one stage on n ranks.
static double stage_time(const program *g, int64_t from, int64_t to, int64_t n) {
    const double b = g->options->bandwidth, copies = (double)n;
    const double all_reduce = over(4 * (copies - 1) * (g->weights[to] - g->weights[from]), b * copies);
    return (g->time[to] - g->time[from] + all_reduce) / copies;
}

static double split_time(const program *g, int64_t from, int64_t to, int64_t ranks, int64_t n) {
    double period = at(g, from, ranks - n)->period;
    period = fmax(period, stage_time(g, from, to, n));
    if (!g->options->transfers) return period;
    const double copies = (double)n, b = g->options->bandwidth * copies;
    period = fmax(period, over(2 * g->profile->activation_bytes[from - 1], b));
    if (to < g->profile->layers) period = fmax(period, over(2 * g->profile->activation_bytes[to - 1], b));
    return period;
}

static void solve(const program *g, int64_t layers, int64_t ranks) {
    choice best = {INFINITY, 0, 0};
    if (!g->options->straight || ranks == 1) best = (choice){stage_time(g, 0, layers, ranks), 0, ranks};
    const int64_t most = g->options->straight ? 1 : ranks - 1;
    for (int64_t n = 1; n <= most && n < ranks; n++)
        for (int64_t from = 1; from < layers; from++) {
            const double period = split_time(g, from, layers, ranks, n);
            if (period < best.period) best = (choice){period, from, n};
        }
    if (g->options->fewer && ranks > 1 && at(g, layers, ranks - 1)->period <= best.period)
        best = *at(g, layers, ranks - 1);
    *at(g, layers, ranks) = best;
}

// With ranks left out, a choice is that of fewer ranks.
static int64_t ranks_of(const program *g, int64_t layers, int64_t ranks) {
    while (g->options->fewer && ranks > 1 && at(g, layers, ranks - 1)->period == at(g, layers, ranks)->period) ranks--;
    return ranks;
}

static void fill(const program *g, dpcr_partition *partition) {
    int64_t layers = g->profile->layers, ranks = ranks_of(g, layers, g->options->ranks), stages = 0;
    partition->period = at(g, layers, ranks)->period;
    for (int64_t l = layers, n = ranks; l > 0; stages++) {
        const choice c = *at(g, l, n);
        l = c.before;
        n = l ? ranks_of(g, l, n - c.replicas) : 0;
    }
    partition->stages = stages;
    partition->first[stages] = layers;
    for (int64_t s = stages - 1; s >= 0; s--) {
        const choice c = *at(g, layers, ranks);
        const double copies = (double)c.replicas;
        partition->first[s] = c.before;
        partition->replicas[s] = c.replicas;
        partition->ranks += c.replicas;
        // An all-reduce moves 2 (copies - 1) |w| bytes and serves as many minibatches as there are copies.
        partition->weight_bytes += 2 * (copies - 1) / copies * (g->weights[layers] - g->weights[c.before]);
        if (c.before) partition->bytes += 2 * g->profile->activation_bytes[c.before - 1];
        layers = c.before;
        ranks = layers ? ranks_of(g, layers, ranks - c.replicas) : 0;
    }
}

void dpcr_partition_free(dpcr_context *context, dpcr_partition *partition) {
    if (!partition) return;
    dpcri_free(context, partition->first);
    dpcri_free(context, partition->replicas);
    *partition = (dpcr_partition){0};
}

static dpcr_status check(const dpcr_profile *profile, const dpcr_partition_options *o, dpcr_error *error) {
    if (o->size < sizeof *o || o->ranks < 1 || !isfinite(o->bandwidth) || o->bandwidth < 0 || profile->layers < 1)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "partition: wanted at least 1 rank and 1 layer and a bandwidth of at least 0");
    if (o->straight && !o->fewer && o->ranks > profile->layers)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "partition: %lld layers do not make %lld straight stages; allow fewer ranks or replication",
                          (long long)profile->layers, (long long)o->ranks);
    if (o->ranks > 1 << 12 || profile->layers > 1 << 12)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "partition: more than 4096 layers or ranks");
    const double *const arrays[] = {profile->forward, profile->input, profile->weight, profile->activation_bytes,
                                    profile->parameter_bytes};
    for (int64_t l = 0; l < profile->layers; l++)
        for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
            if (!(arrays[i][l] >= 0))
                return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                                  "partition: layer %lld: %g; wanted times and bytes of at least 0", (long long)l,
                                  arrays[i][l]);
    return DPCR_OK;
}

dpcr_status dpcr_partition_pipedream(dpcr_context *context, const dpcr_profile *profile,
                                     const dpcr_partition_options *options, dpcr_partition *partition,
                                     dpcr_error *error) {
    if (partition) *partition = (dpcr_partition){0};
    if (!context || !profile || !options || !partition)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "partition: context, profile, options or partition is NULL");
    program g = {.profile = profile, .options = options};
    dpcr_status status;
    DPCR_TRY(check(profile, options, error));
    const size_t layers = (size_t)profile->layers, ranks = (size_t)options->ranks;
    g.time = dpcri_alloc_zero(context, 2 * (layers + 1) * sizeof *g.time);
    g.best = dpcri_alloc_zero(context, (layers + 1) * (ranks + 1) * sizeof *g.best);
    partition->first = dpcri_alloc_zero(context, (layers + 1) * sizeof *partition->first);
    partition->replicas = dpcri_alloc_zero(context, layers * sizeof *partition->replicas);
    if (!g.time || !g.best || !partition->first || !partition->replicas)
        DPCR_TRY(
            dpcri_fail(error, DPCR_ERROR_MEMORY, "partition: no memory for %zu layers on %zu ranks", layers, ranks));
    g.weights = g.time + layers + 1;
    for (int64_t l = 0; l < profile->layers; l++) {
        g.time[l + 1] = g.time[l] + profile->forward[l] + profile->input[l] + profile->weight[l];
        g.weights[l + 1] = g.weights[l] + profile->parameter_bytes[l];
    }
    for (int64_t l = 1; l <= profile->layers; l++)
        for (int64_t n = 1; n <= options->ranks; n++) solve(&g, l, n);
    if (!isfinite(at(&g, profile->layers, options->ranks)->period) || !isfinite(g.weights[profile->layers]))
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_OVERFLOW,
                            "partition: the layers' times or bytes, or those over the bandwidth, add up to no finite "
                            "number"));
    fill(&g, partition);
done:
    dpcri_free(context, g.time);
    dpcri_free(context, g.best);
    if (status != DPCR_OK) dpcr_partition_free(context, partition);
    return status;
}
