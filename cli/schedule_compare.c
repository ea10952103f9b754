// SPDX-License-Identifier: MIT
// schedule partition and schedule compare: PipeDream's stages, and LayerPipe beside them.
//
// The model of compare: per minibatch, layer l has F, I and W of equal cost (multiply-adds; the first layer has no I).
// A method's period is the largest load of a rank. PipeDream: {F, I + W} on contiguous layers, one rank a group, or
// groups on several ranks whose all-reduce takes time as its partitioner has it. LayerPipe: F, I and W packed one by
// one, with I in two halves as `layerpipe_half`. best: the least period of these without replication, and of equal ones
// the one that moves least. Bytes between ranks, those of updated weights too, are counted; with --bandwidth a period
// is at least what all ranks' links together need for them, as if messages ran beside the work and were spread evenly.
// Gradients are delayed in all of them. Replication divides any work evenly where its all-reduce costs nothing: no
// packing can win there.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "schedule.h"

// ---- partition ----

int cli_schedule_partition(cli_schedule *s, cli_result *r) {
    dpcr_error error = {0};
    dpcr_partition p;
    if (!s->profile_name) return cli_fail(CLI_USAGE, "partition needs --profile: a file, or vgg16, resnet18, ...");
    const int status = cli_schedule_profile(s);
    if (status) return status;
    s->partition.ranks = s->options.ranks;
    s->partition.bandwidth = s->bandwidth;
    if (dpcr_partition_pipedream(s->context, &s->profile, &s->partition, &p, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    json_t *stages = json_array();
    double all = 0;
    cli_say(&s->common, "%5s %8s %12s  %s\n", "stage", "ranks", "time", "layers");
    for (int64_t k = 0; k < p.stages; k++) {
        double time = 0;
        const int64_t first = p.first[k], last = p.first[k + 1] - 1;
        for (int64_t l = first; l <= last; l++)
            time += s->profile.forward[l] + s->profile.input[l] + s->profile.weight[l];
        all += time;
        cli_append(&stages, json_pack("{s:I,s:I,s:I,s:f}", "first", (json_int_t)first, "last", (json_int_t)last,
                                      "replicas", (json_int_t)p.replicas[k], "time", time));
        cli_say(&s->common, "%5lld %8lld %12.6g  %lld to %lld (%s to %s)\n", (long long)k, (long long)p.replicas[k],
                time, (long long)first, (long long)last, s->profile.names[first], s->profile.names[last]);
    }
    cli_say(&s->common,
            "period %.6g on %lld rank%s, speed-up %.3f over one; %.6g bytes and %.6g bytes of weights a minibatch\n",
            p.period, (long long)p.ranks, cli_s(p.ranks), all / p.period, p.bytes, p.weight_bytes);
    cli_set_text(r, "profile", s->profile_name);
    cli_set_int(r, "layers", s->profile.layers);
    cli_set_int(r, "ranks", p.ranks);
    cli_set_real(r, "time", all);
    cli_set_real(r, "period", p.period);
    cli_set_real(r, "speedup", all / p.period);
    cli_set_real(r, "bytes", p.bytes);
    cli_set_real(r, "weight_bytes", p.weight_bytes);
    cli_set(r, "stages", stages);
    dpcr_partition_free(s->context, &p);
    return cli_finish(&s->common, r, CLI_DONE);
}

// ---- compare ----

typedef struct figures {
    double period, bytes, weight_bytes;
    int64_t most_versions;
} figures;

typedef enum way { STRAIGHT, REPLICATED, WHOLE, HALF, BEST, WAYS } way;

static const char *const way_names[WAYS] = {"pipedream", "pipedream_replicated", "layerpipe", "layerpipe_half", "best"};

static int by_pipedream(const cli_schedule *s, int64_t ranks, bool straight, figures *f) {
    const dpcr_partition_options o = {
        .size = sizeof o, .ranks = ranks, .bandwidth = s->bandwidth, .straight = straight, .fewer = 1};
    dpcr_partition p;
    dpcr_error error = {0};
    if (dpcr_partition_pipedream(s->context, &s->profile, &o, &p, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    *f = (figures){p.period, p.bytes, p.weight_bytes, p.stages};
    dpcr_partition_free(s->context, &p);
    return CLI_DONE;
}

enum { MINIBATCHES = 64, MOST_RANKS = 1 << 12 };  // the partitioner's

static void take_links(const cli_schedule *s, int64_t ranks, figures *f) {
    if (s->bandwidth > 0) f->period = fmax(f->period, (f->bytes + f->weight_bytes) / ((double)ranks * s->bandwidth));
}

static int by_layerpipe(const cli_schedule *s, int64_t ranks, bool half, figures *f) {
    const dpcr_schedule_costs costs = dpcr_profile_costs(&s->profile);
    const dpcr_schedule_options o = {.size = sizeof o,
                                     .kind = DPCR_SCHEDULE_LAYERPIPE,
                                     .ranks = ranks,
                                     .stages = s->profile.layers,
                                     .microbatches = MINIBATCHES,
                                     .split_input = half,
                                     .costs = &costs};
    dpcr_schedule schedule;
    dpcr_simulation x = {0};
    dpcr_error error = {0};
    if (dpcr_schedule_make(s->context, &o, &schedule, &error) != DPCR_OK) return cli_fail_error(&error, CLI_COMPUTING);
    const dpcr_status status = dpcr_schedule_simulate(s->context, &schedule, &costs, &x, &error);
    *f = (figures){
        .period = x.work / MINIBATCHES, .bytes = x.bytes / MINIBATCHES, .weight_bytes = x.weight_bytes / MINIBATCHES};
    for (int64_t l = 0; status == DPCR_OK && l < schedule.stages; l++)
        if (schedule.delay[l] + 1 > f->most_versions) f->most_versions = schedule.delay[l] + 1;
    dpcr_simulation_free(s->context, &x);
    dpcr_schedule_free(s->context, &schedule);
    return status == DPCR_OK ? CLI_DONE : cli_fail_error(&error, CLI_COMPUTING);
}

static int measure(const cli_schedule *s, int64_t ranks, figures *f) {
    int status = by_pipedream(s, ranks, true, &f[STRAIGHT]);
    if (!status) status = by_pipedream(s, ranks, false, &f[REPLICATED]);
    if (!status) status = by_layerpipe(s, ranks, false, &f[WHOLE]);
    if (!status) status = by_layerpipe(s, ranks, true, &f[HALF]);
    for (int w = 0; w < BEST; w++) take_links(s, ranks, &f[w]);
    f[BEST] = f[STRAIGHT];
    for (int w = WHOLE; w <= HALF; w++) {
        const bool less = f[w].period < f[BEST].period * (1 - 1e-12);
        const bool same = f[w].period <= f[BEST].period * (1 + 1e-12);
        if (less || (same && f[w].bytes + f[w].weight_bytes < f[BEST].bytes + f[BEST].weight_bytes)) f[BEST] = f[w];
    }
    return status;
}

typedef struct gains {
    double sum, most, most_7_to_9, best_sum, replicated_sum, replicated_most;
    int count;
    bool seven_to_nine;  // there were 7 to 9 ranks
} gains;

static json_t *row_of(const cli_schedule *s, const char *model, int64_t ranks, const figures *f) {
    double work = 0;
    for (int64_t l = 0; l < s->profile.layers; l++)
        work += s->profile.forward[l] + s->profile.input[l] + s->profile.weight[l];
    cli_result row = cli_result_create();
    cli_set_text(&row, "model", model);
    cli_set_int(&row, "ranks", ranks);
    for (int w = 0; w < WAYS; w++)
        cli_set(&row, way_names[w],
                json_pack("{s:f,s:f,s:f,s:f,s:f,s:I}", "period", f[w].period, "utilisation",
                          work / ((double)ranks * f[w].period), "bytes", f[w].bytes, "weight_bytes", f[w].weight_bytes,
                          "gain", f[STRAIGHT].period / f[w].period - 1, "versions", (json_int_t)f[w].most_versions));
    json_t *object = row.failed ? NULL : json_incref(row.object);
    cli_result_destroy(&row);
    return object;
}

static void add_gain(gains *g, int64_t ranks, const figures *f) {
    const double gain = f[STRAIGHT].period / f[HALF].period - 1, apart = f[REPLICATED].period / f[HALF].period - 1;
    g->sum += gain;
    g->best_sum += f[STRAIGHT].period / f[BEST].period - 1;
    g->replicated_sum += apart;
    g->count++;
    if (g->count == 1 || gain > g->most) g->most = gain;
    if (g->count == 1 || apart > g->replicated_most) g->replicated_most = apart;
    if (ranks >= 7 && ranks <= 9 && (!g->seven_to_nine || gain > g->most_7_to_9)) g->most_7_to_9 = gain;
    g->seven_to_nine |= ranks >= 7 && ranks <= 9;
}

static void csv_row(FILE *out, const char *model, int64_t ranks, const figures *f) {
    if (strpbrk(model, ",\"\r\n"))  // the name of a file
        cli_csv_text(out, model);
    else
        fputs(model, out);
    fprintf(out, ",%lld", (long long)ranks);
    for (int w = 0; w < WAYS; w++) fprintf(out, ",%.17g,%.17g,%.17g", f[w].period, f[w].bytes, f[w].weight_bytes);
    fputc('\n', out);
}

// NAN where none had as many ranks.
static double most_7_to_9(const gains *g) { return g->seven_to_nine ? g->most_7_to_9 : NAN; }

static json_t *gains_of(const gains *g) {
    const double n = g->count ? g->count : 1;
    return json_pack("{s:f,s:f,s:f,s:o}", "mean_gain", g->sum / n, "mean_gain_best", g->best_sum / n, "max_gain",
                     g->most, "max_gain_7_to_9_ranks", cli_json_real(most_7_to_9(g)));
}

static int compare_model(cli_schedule *s, const char *model, json_t *rows, json_t *by_model, gains *g, FILE *csv) {
    gains own = {0};
    dpcr_profile_free(s->context, &s->profile);
    s->profile_name = model;
    int status = cli_schedule_profile(s);
    for (int64_t ranks = s->rank_low; !status && ranks <= s->rank_high; ranks++) {
        figures f[WAYS] = {{0}};
        status = measure(s, ranks, f);
        if (status) break;
        add_gain(g, ranks, f);
        add_gain(&own, ranks, f);
        if (g->count == 1)
            cli_say(&s->common, "%-10s %3s %11s %11s %11s %11s %10s %10s %11s %11s %11s\n", "model", "P", "pipedream",
                    "replicated", "layerpipe", "half", "gain", "gain half", "bytes pd", "bytes half", "weights");
        if (json_array_append_new(rows, row_of(s, model, ranks, f)) != 0) return cli_fail_memory("the comparison");
        csv_row(csv, model, ranks, f);
        cli_say(&s->common, "%-10s %3lld %11.5g %11.5g %11.5g %11.5g %8.1f %% %8.1f %% %11.4g %11.4g %11.4g\n", model,
                (long long)ranks, f[STRAIGHT].period, f[REPLICATED].period, f[WHOLE].period, f[HALF].period,
                100 * (f[STRAIGHT].period / f[WHOLE].period - 1), 100 * (f[STRAIGHT].period / f[HALF].period - 1),
                f[STRAIGHT].bytes, f[HALF].bytes, f[HALF].weight_bytes);
    }
    if (status) return status;
    const json_t *row = json_array_get(rows, json_array_size(rows) - 1);  // which has the name as JSON can tell it
    const char *told = json_string_value(json_object_get(row, "model"));
    return json_object_set_new(by_model, told, gains_of(&own)) == 0 ? CLI_DONE : cli_fail_memory("the comparison");
}

static void set_gains(const cli_schedule *s, const gains *g, json_t *rows, json_t *by_model, cli_result *r) {
    const double n = g->count ? g->count : 1;
    char few[32] = "not asked for";
    if (g->seven_to_nine) snprintf(few, sizeof few, "%.1f %%", 100 * g->most_7_to_9);
    cli_set_real(r, "mean_gain", g->sum / n);
    cli_set_real(r, "mean_gain_best", g->best_sum / n);
    cli_set_real(r, "max_gain", g->most);
    cli_set_real(r, "max_gain_7_to_9_ranks", most_7_to_9(g));
    cli_set_real(r, "paper_mean_gain", 0.25);
    cli_set_real(r, "paper_max_gain", 0.8);
    cli_set_real(r, "mean_gain_over_replicated", g->replicated_sum / n);
    cli_set_real(r, "max_gain_over_replicated", g->replicated_most);
    cli_set_real(r, "bandwidth", s->bandwidth);
    cli_set(r, "models", by_model);
    cli_set(r, "rows", rows);
    cli_say(&s->common,
            "gain over straight PipeDream: mean %.1f %% (paper 25 %%), most %.1f %%, most on 7 to 9 ranks %s "
            "(paper 80 %%)\n"
            "over PipeDream with replicated stages (bandwidth %s): mean %.1f %%, most %.1f %%\n",
            100 * g->sum / n, 100 * g->most, few, s->bandwidth > 0 ? "as given" : "unlimited",
            100 * g->replicated_sum / n, 100 * g->replicated_most);
}

int cli_schedule_compare(cli_schedule *s, cli_result *r) {
    if (s->rank_high > MOST_RANKS)  // before the ranks below are looked at
        return cli_fail(CLI_USAGE, "compare: %lld ranks; wanted at most %d", (long long)s->rank_high, (int)MOST_RANKS);
    static const char *const models[] = {"vgg16", "resnet18", "resnet50", "alexnet", "equal-8", "equal-16"};
    const char *given = s->profile_name;
    gains g = {0};
    cli_buffer text;
    json_t *rows = json_array(), *by_model = json_object();
    FILE *csv = cli_buffer_open(&text);
    if (!rows || !by_model || !csv) {
        json_decref(rows);
        json_decref(by_model);
        if (csv && cli_buffer_close(&text)) free(text.text);
        return cli_fail_memory("the comparison");
    }
    if (s->rank_low == 0) s->rank_low = 2, s->rank_high = 16;
    fprintf(csv, "model,ranks");
    for (int w = 0; w < WAYS; w++)
        fprintf(csv, ",%s_period,%s_bytes,%s_weight_bytes", way_names[w], way_names[w], way_names[w]);
    fputc('\n', csv);
    int status = CLI_DONE;
    const int count = given ? 1 : (int)(sizeof models / sizeof models[0]);
    for (int k = 0; k < count && !status; k++)
        status = compare_model(s, given ? given : models[k], rows, by_model, &g, csv);
    if (!cli_buffer_close(&text) && !status) status = cli_fail_memory("the comparison");
    if (status) {
        json_decref(rows);
        json_decref(by_model);
    } else {
        set_gains(s, &g, rows, by_model, r);
    }
    if (!status && s->common.csv) status = cli_write_file(s->common.csv, text.text, text.bytes);
    if (!status && s->common.json) status = cli_print_json(r);
    free(text.text);
    return status;
}
