// SPDX-License-Identifier: MIT
#include "train_pipeline.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "schedule.h"

enum {
    KEY_PIPELINE = 0x8000,
    KEY_RANKS,
    KEY_MICROBATCHES,
    KEY_CHUNKS,
    KEY_ACCUMULATE,
    KEY_STAGES,
    KEY_SPLIT,
    KEY_CUT,
    KEY_RECONSTRUCT,
    KEY_COMPENSATE,
    KEY_SEGMENT,
    KEY_DEADLINE,
    KEY_TRACE,
    KEY_RECOMPUTE
};

enum { CUT_DEFAULT = 0, CUT_EVEN, CUT_MEASURED };

static const struct argp_option pipeline_options[] = {
    {"pipeline", KEY_PIPELINE, "NAME", 0,
     "Train by a pipeline: gpipe, 1f1b, interleaved-1f1b, zb-h1, zb-h2, interleaved-zb, zb-v, dualpipe, dualpipev, "
     "ooo, "
     "best, or with late gradients pipedream, pipedream-2bw, layerpipe",
     0},
    {"ranks", KEY_RANKS, "P", 0, "Ranks, or workers, a thread each (default 2); under mpirun -np P, a process each", 0},
    {"microbatches", KEY_MICROBATCHES, "M", 0, "Pieces of a minibatch (default 8; pipedream, layerpipe: always 1)", 0},
    {"chunks", KEY_CHUNKS, "V", 0, "Stages a rank (default: what the schedule is made for)", 0},
    {"accumulate", KEY_ACCUMULATE, "A", 0, "Pieces of a minibatch of pipedream-2bw (default: --microbatches)", 0},
    {"stages", KEY_STAGES, "S", 0, "Stages of layerpipe (default: ranks times chunks)", 0},
    {"split", KEY_SPLIT, NULL, 0, "layerpipe: the input gradient in two halves", 0},
    {"cut", KEY_CUT, "even|measured", 0,
     "Stages of as many layers each, or of as much measured time (default: measured; with late gradients, whose "
     "results depend on the cut, even)",
     0},
    {"reconstruct", KEY_RECONSTRUCT, NULL, 0, "Late gradients: rebuild old weights from mean updates, stash none", 0},
    {"compensate", KEY_COMPENSATE, "nothing|rate", 0,
     "Late gradients: rate divides a stage's learning rate by 1 + delay", 0},
    {"segment", KEY_SEGMENT, "N", 0, "Late gradients: updates after which the pipeline empties (default 256)", 0},
    {"deadline", KEY_DEADLINE, "S", 0, "Seconds that a rank waits for another (default 60)", 0},
    {"trace", KEY_TRACE, "FILE", 0, "The last whole run, as it was, for chrome://tracing or Perfetto ('-': stdout)", 0},
    {"recompute", KEY_RECOMPUTE, NULL, 0,
     "Keep a stage's inputs only and run F again before I; by one process keep states only, on a device those before "
     "every so many layers: less memory, the same bits",
     0},
    {0},
};

static error_t taken(bool ok) { return ok ? 0 : EINVAL; }

static error_t read_word(const char *option, const char *arg, const char *const *words, int count, int *index) {
    return taken(cli_read_word(option, arg, words, count, index));
}

static error_t read_name(const char *arg, cli_pipeline *p) {
    const char *words[DPCR_SCHEDULE_COUNT];
    int index = 0;
    for (int i = 0; i < DPCR_SCHEDULE_COUNT; i++) words[i] = dpcr_schedule_name((dpcr_schedule_kind)i);
    if (!cli_read_word("--pipeline", arg, words, DPCR_SCHEDULE_COUNT, &index)) return EINVAL;
    p->schedule.kind = (dpcr_schedule_kind)index;
    p->given = true;
    return 0;
}

static error_t read_cut(const char *arg, int *cut) {
    static const char *const words[] = {"even", "measured"};
    const error_t error = read_word("--cut", arg, words, 2, cut);
    *cut += CUT_EVEN;
    return error;
}

static error_t read_compensation(const char *arg, dpcr_compensation *compensation) {
    static const char *const words[] = {"nothing", "rate"};
    int index = 0;
    const error_t error = read_word("--compensate", arg, words, 2, &index);
    *compensation = (dpcr_compensation)index;
    return error;
}

// Workers without a pipeline have them too.
static bool is_shared(int key) { return key == KEY_RANKS || key == KEY_SEGMENT || key == KEY_DEADLINE; }

static error_t parse_pipeline(int key, char *arg, struct argp_state *state) {
    cli_pipeline *p = state->input;
    dpcr_schedule_options *s = &p->schedule;
    if (key > KEY_PIPELINE && key < KEY_RECOMPUTE) {  // which one process has too
        const char **first = is_shared(key) ? &p->shared_given : &p->first_given;
        if (!*first) *first = pipeline_options[key - KEY_PIPELINE].name;
    }
    switch (key) {
        case KEY_PIPELINE: return read_name(arg, p);
        case KEY_RANKS: p->ranks_given = true; return taken(cli_read_int64("--ranks", arg, 1, 1024, &s->ranks));
        case KEY_MICROBATCHES:
            p->microbatches_given = true;
            return taken(cli_read_int64("--microbatches", arg, 1, INT32_MAX / 4, &s->microbatches));
        case KEY_CHUNKS: return taken(cli_read_int64("--chunks", arg, 1, INT32_MAX, &s->chunks));
        case KEY_ACCUMULATE: return taken(cli_read_int64("--accumulate", arg, 1, INT32_MAX / 4, &s->accumulate));
        case KEY_STAGES: return taken(cli_read_int64("--stages", arg, 1, INT32_MAX, &s->stages));
        case KEY_SPLIT: s->split_input = 1; return 0;
        case KEY_CUT: return read_cut(arg, &p->cut);
        case KEY_RECOMPUTE: p->options.recompute = 1; return 0;
        case KEY_RECONSTRUCT: p->options.reconstruct = 1; return 0;
        case KEY_COMPENSATE: return read_compensation(arg, &p->options.compensation);
        case KEY_SEGMENT: return taken(cli_read_int64("--segment", arg, 1, INT32_MAX / 4, &p->options.segment));
        case KEY_DEADLINE: return taken(cli_read_double("--deadline", arg, 1e-3, 1e9, &p->options.deadline));
        case KEY_TRACE:
            p->trace = arg;
            p->figures.trace = 1;
            return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp cli_pipeline_argp = {pipeline_options, parse_pipeline, NULL, NULL, NULL, NULL, NULL};

// ---- stages ----

typedef struct plan {
    dpcr_context *context;
    const dpcr_model *model;
    dpcr_profile profile;  // layer by layer
} plan;

static bool synchronous(const cli_pipeline *p) { return dpcr_schedule_semantics(p->schedule.kind) == DPCR_SYNCHRONOUS; }

// Of a minibatch.
static int64_t pieces_of(const cli_pipeline *p) {
    if (p->schedule.kind == DPCR_SCHEDULE_PIPEDREAM_2BW && p->schedule.accumulate) return p->schedule.accumulate;
    return synchronous(p) || p->schedule.kind == DPCR_SCHEDULE_PIPEDREAM_2BW ? p->schedule.microbatches : 1;
}

int cli_pipeline_settle(const cli_pipeline *p) {
    const dpcr_schedule_kind kind = p->schedule.kind;
    const char *name = dpcr_schedule_name(kind);
    if (!p->given) return CLI_DONE;
    if (p->options.segment && synchronous(p))
        return cli_fail(CLI_USAGE, "--segment is for late gradients; %s has none", name);
    if (p->schedule.accumulate && kind != DPCR_SCHEDULE_PIPEDREAM_2BW)
        return cli_fail(CLI_USAGE, "--accumulate is for pipedream-2bw, not %s", name);
    if (p->schedule.split_input && kind != DPCR_SCHEDULE_LAYERPIPE)
        return cli_fail(CLI_USAGE, "--split is for layerpipe, not %s", name);
    if (p->microbatches_given && p->schedule.microbatches != pieces_of(p))
        return kind == DPCR_SCHEDULE_PIPEDREAM_2BW
                   ? cli_fail(CLI_USAGE, "--microbatches %lld beside --accumulate %lld: wanted one of them",
                              (long long)p->schedule.microbatches, (long long)p->schedule.accumulate)
                   : cli_fail(CLI_USAGE, "--microbatches %lld: %s takes whole minibatches, smaller ones by --batch",
                              (long long)p->schedule.microbatches, name);
    return CLI_DONE;
}

static int64_t units_of(const dpcr_model *model) { return dpcr_profile_unit(model, 0, INT64_MAX); }

// Rows of a microbatch at most.
static int64_t rows_of(const cli_pipeline *p, const dpcr_train_options *train, int64_t images) {
    const int64_t batch = train->batch < images ? train->batch : images;
    return (batch - 1) / pieces_of(p) + 1;
}

static void cut_evenly(cli_pipeline *p, const plan *x) {
    const int64_t units = units_of(x->model);
    for (int64_t s = 0; s <= p->stages; s++)
        p->first[s] = s * (units / p->stages) + (s < units % p->stages ? s : units % p->stages);
}

static int cut_by_time(cli_pipeline *p, const plan *x) {
    const dpcr_partition_options options = {.size = sizeof options, .ranks = p->stages, .straight = 1};
    dpcr_partition partition;
    dpcr_error error = {0};
    if (x->profile.layers < p->stages) {
        cut_evenly(p, x);
        return CLI_DONE;
    }
    if (dpcr_partition_pipedream(x->context, &x->profile, &options, &partition, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    for (int64_t s = 0; s <= p->stages; s++) p->first[s] = dpcr_profile_unit(x->model, 0, partition.first[s]);
    dpcr_partition_free(x->context, &partition);
    return CLI_DONE;
}

// The schedule of one run.
static int make_schedule(cli_pipeline *p, const dpcr_train_options *train, int64_t images, const plan *x) {
    dpcr_schedule_options o = p->schedule;
    dpcr_error error = {0};
    const int64_t batches = (images - 1) / train->batch + 1;
    const int64_t asked = p->options.segment ? p->options.segment : 256, segment = asked < batches ? asked : batches;
    if (!synchronous(p)) {
        if (o.kind == DPCR_SCHEDULE_PIPEDREAM_2BW && !o.accumulate) o.accumulate = o.microbatches;
        o.microbatches = segment * (o.kind == DPCR_SCHEDULE_PIPEDREAM_2BW ? o.accumulate : 1);
    }
    return dpcr_schedule_make(x->context, &o, &p->run, &error) == DPCR_OK ? CLI_DONE
                                                                          : cli_fail_error(&error, CLI_COMPUTING);
}

static int prepare(cli_pipeline *p, const dpcr_train_options *train, int64_t images, plan *x) {
    dpcr_error error = {0};
    int status = make_schedule(p, train, images, x);
    if (status) return status;
    p->stages = p->run.stages / p->run.chains;
    const int64_t units = units_of(x->model);
    if (p->stages > units)
        return cli_fail(CLI_USAGE,
                        "--pipeline %s makes %lld stages of a network of %lld layers, encoder and head "
                        "included; wanted fewer ranks or chunks, or --layers",
                        dpcr_schedule_name(p->schedule.kind), (long long)p->stages, (long long)units);
    p->first = malloc((size_t)(p->stages + 1) * sizeof *p->first);
    if (!p->first) return cli_fail_memory("the stages");
    p->options.first = p->first;
    if (p->cut == CUT_EVEN || (p->cut == CUT_DEFAULT && !synchronous(p))) {
        cut_evenly(p, x);
        return CLI_DONE;
    }
    const int64_t processors = dpcr_context_threads(x->context),
                  workers = p->schedule.ranks < processors ? p->schedule.ranks : processors;
    if (dpcr_profile_measure(x->context, x->model, rows_of(p, train, images), 0, workers, &x->profile, &error) !=
        DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    return cut_by_time(p, x);
}

// All ranks cut where rank 0 does.
static int share_cut(const cli_pipeline *p) {
    const dpcr_transport *t = p->options.transport;
    const size_t bytes = (size_t)(p->stages + 1) * sizeof *p->first;
    const double deadline = p->options.deadline > 0 ? p->options.deadline : 60;
    dpcr_error error = {0};
    dpcr_status status = DPCR_OK;
    if (t->rank > 0) status = t->receive(t->user, 0, 0, p->first, bytes, deadline, &error);
    for (int64_t r = 1; t->rank == 0 && r < t->ranks && status == DPCR_OK; r++)
        status = t->send(t->user, r, 0, p->first, bytes, &error);
    return status == DPCR_OK ? CLI_DONE : cli_fail_error(&error, CLI_COMPUTING);
}

int cli_pipeline_prepare(cli_pipeline *p, dpcr_context *context, const dpcr_model *model,
                         const dpcr_train_options *train, int64_t images) {
    plan x = {.context = context, .model = model};
    int status = prepare(p, train, images, &x);
    if (!status && p->options.transport) status = share_cut(p);
    dpcr_profile_free(context, &x.profile);
    return status;
}

void cli_pipeline_free(cli_pipeline *p, dpcr_context *context) {
    free(p->first);
    p->first = NULL;
    dpcr_schedule_free(context, &p->run);
    dpcr_pipeline_figures_free(context, &p->figures);
}

// ---- telling ----

void cli_pipeline_set(const cli_pipeline *p, cli_result *r) {
    cli_result x = cli_result_create();
    cli_set_text(&x, "schedule", dpcr_schedule_name(p->schedule.kind));
    cli_set_text(&x, "semantics", dpcr_semantics_name(dpcr_schedule_semantics(p->schedule.kind)));
    cli_set_int(&x, "ranks", p->schedule.ranks);
    cli_set_int(&x, "stages", p->figures.stages);
    cli_set_int(&x, "microbatches", pieces_of(p));
    cli_set_int(&x, "updates_a_run", p->figures.updates);
    cli_set_int(&x, "runs", p->figures.runs);
    cli_set(&x, "first_units", cli_json_ints(p->first, p->stages + 1));
    cli_set_real(&x, "makespan", p->figures.makespan);
    cli_set_real(&x, "busy", p->figures.busy);
    cli_set_real(&x, "activation_bytes", p->figures.activation_bytes);
    cli_set_real(&x, "simulated_makespan", p->figures.simulated);
    cli_set_real(&x, "simulated_work", p->figures.work);
    if (x.failed) r->failed = true;
    cli_set(r, "pipeline", x.object);
    x.object = NULL;
    cli_result_destroy(&x);
}

int cli_pipeline_trace(const cli_pipeline *p, bool trained) {
    if (!p->trace) return CLI_DONE;
    if (!p->figures.actions && !trained)
        return cli_fail(CLI_USAGE,
                        "no trace: the training that --resume goes on with was complete, so no run was made");
    if (!p->figures.actions)
        return cli_fail(CLI_USAGE, "no trace: no whole run was made; wanted more images or a smaller --%s",
                        synchronous(p) ? "batch" : "segment");
    return cli_schedule_trace(&p->run, p->figures.start, p->figures.end, 1e6, p->trace);
}

void cli_pipeline_say(const cli_pipeline *p, const cli_common *common) {
    if (p->figures.runs == 0) return;
    cli_say(common, "%s on %lld rank%s, %lld stage%s: a run of %lld update%s took %.3f ms, simulated %.3f ms\n",
            dpcr_schedule_name(p->schedule.kind), (long long)p->schedule.ranks, cli_s(p->schedule.ranks),
            (long long)p->figures.stages, cli_s(p->figures.stages), (long long)p->figures.updates,
            cli_s(p->figures.updates), 1e3 * p->figures.makespan, 1e3 * p->figures.simulated);
}
