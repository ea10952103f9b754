// SPDX-License-Identifier: MIT
// schedule: pipeline schedules as data: make, check, lower to messages, time, draw; partition a network; compare.
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "schedule.h"

enum {
    KEY_SCHEDULE = 0x5000,
    KEY_RANKS,
    KEY_CHUNKS,
    KEY_MICROBATCHES,
    KEY_ACCUMULATE,
    KEY_SPLIT,
    KEY_STAGES,
    KEY_ACTIVATIONS,
    KEY_OBJECTIVE,
    KEY_SEMANTICS,
    KEY_FROM,
    KEY_OLD,
    KEY_TIMES,
    KEY_HOP,
    KEY_BANDWIDTH,
    KEY_UPDATE,
    KEY_RECOMPUTE,
    KEY_REPLICAS,
    KEY_ATOMIC,
    KEY_PROFILE,
    KEY_STRAIGHT,
    KEY_TRANSFERS,
    KEY_FEWER,
    KEY_SVG,
    KEY_PNG,
    KEY_TRACE
};

static const struct argp_option schedule_options[] = {
    {"schedule", KEY_SCHEDULE, "NAME", 0,
     "gpipe, 1f1b (default), interleaved-1f1b, zb-h1, zb-h2, interleaved-zb, zb-v, dualpipe, dualpipev, pipedream, "
     "pipedream-2bw, ooo, layerpipe, best",
     0},
    {"ranks", KEY_RANKS, "P", 0, "Processors, a row each (default 4; compare: a range, default 2-16)", 0},
    {"chunks", KEY_CHUNKS, "V", 0, "Stages a rank (default: what the schedule is made for)", 0},
    {"microbatches", KEY_MICROBATCHES, "M", 0, "Microbatches an iteration (default 8)", 0},
    {"accumulate", KEY_ACCUMULATE, "A", 0, "Microbatches an update, of pipedream-2bw (default: as many as ranks)", 0},
    {"split", KEY_SPLIT, NULL, 0, "LayerPipe: the input gradient in two halves (inter-layer)", 0},
    {"stages", KEY_STAGES, "S", 0, "LayerPipe: layers to spread over the ranks (default: ranks times chunks)", 0},
    {"activations", KEY_ACTIVATIONS, "N", 0,
     "Memory limit of zb-h2, best and validate: activations a rank (F takes one, I frees half, W half)", 0},
    {"objective", KEY_OBJECTIVE, "isolated|steady", 0,
     "Of best: the makespan of one iteration (default), or the period without a barrier", 0},
    {"semantics", KEY_SEMANTICS, "NAME", 0,
     "Of best: synchronous (default), or the delays of pipedream (stashed), pipedream-2bw (double-buffered), layerpipe "
     "(delayed)",
     0},
    {"from", KEY_FROM, "FILE", 0, "Read the table from a CSV file ('-': standard input) instead of making it", 0},
    {"old-notation", KEY_OLD, NULL, 0, "PyTorch's older cells, in and out: B is I, BW is B", 0},
    {0},
};

static const struct argp_option cost_options[] = {
    {"times", KEY_TIMES, "F,I,W", 0, "Times of a stage's tasks (default 1,1,1)", 0},
    {"profile", KEY_PROFILE, "NAME", 0,
     "Times and bytes of layers: a JSON file, PipeDream's graph.txt, or vgg16, resnet18, resnet50, alexnet, equal-N",
     0},
    {"hop", KEY_HOP, "T", 0, "Latency of a message between ranks (default 0)", 0},
    {"bandwidth", KEY_BANDWIDTH, "B", 0, "Bytes a unit of time between ranks (default 0: unlimited)", 0},
    {"update", KEY_UPDATE, "T", 0, "Time of the optimiser's step of a stage (default 0)", 0},
    {"replicas", KEY_REPLICAS, "N", 0, "Copies of the pipeline whose gradients are all-reduced (default 1)", 0},
    {"atomic-pairs", KEY_ATOMIC, NULL, 0, "An overlapped pair gives its results at its end", 0},
    {"recompute", KEY_RECOMPUTE, NULL, 0, "Only inputs are kept: I takes the time of F too, but right after its F", 0},
    {0},
};

static const struct argp_option more_options[] = {
    {"straight", KEY_STRAIGHT, NULL, 0, "partition: no replicated stages", 0},
    {"transfers", KEY_TRANSFERS, NULL, 0, "partition: activations between stages take time", 0},
    {"fewer", KEY_FEWER, NULL, 0, "partition: leave ranks out where that is as fast", 0},
    {"svg", KEY_SVG, "FILE", 0, "draw: Gantt chart ('-': standard output, also the default)", 0},
    {"png", KEY_PNG, "FILE", 0, "draw: Gantt chart as PNG (needs gnuplot)", 0},
    {"trace", KEY_TRACE, "FILE", 0, "draw: Chrome's trace, for chrome://tracing or Perfetto", 0},
    {0},
};

static error_t taken(bool ok) { return ok ? 0 : EINVAL; }

static unsigned bit_of(int key) { return key >= KEY_SCHEDULE && key <= KEY_TRACE ? 1U << (key - KEY_SCHEDULE) : 0; }

static error_t read_name(const char *arg, cli_schedule *s) {
    const char *words[DPCR_SCHEDULE_COUNT];
    int index = 0;
    for (int i = 0; i < DPCR_SCHEDULE_COUNT; i++) words[i] = dpcr_schedule_name((dpcr_schedule_kind)i);
    if (!cli_read_word("--schedule", arg, words, DPCR_SCHEDULE_COUNT, &index)) return EINVAL;
    s->options.kind = (dpcr_schedule_kind)index;
    s->kind_given = true;
    return 0;
}

static error_t read_objective(const char *arg, dpcr_objective *objective) {
    static const char *const words[] = {"isolated", "steady"};
    int index = 0;
    if (!cli_read_word("--objective", arg, words, 2, &index)) return EINVAL;
    *objective = (dpcr_objective)index;
    return 0;
}

static error_t read_semantics(const char *arg, dpcr_semantics *semantics) {
    const char *words[DPCR_SEMANTICS_COUNT];
    int index = 0;
    for (int i = 0; i < DPCR_SEMANTICS_COUNT; i++) words[i] = dpcr_semantics_name((dpcr_semantics)i);
    if (!cli_read_word("--semantics", arg, words, DPCR_SEMANTICS_COUNT, &index)) return EINVAL;
    *semantics = (dpcr_semantics)index;
    return 0;
}

// "A,B,C"
static error_t read_times(const char *arg, dpcr_schedule_costs *costs) {
    char text[128];
    double *const to[] = {&costs->forward, &costs->input, &costs->weight};
    snprintf(text, sizeof text, "%s", strlen(arg) < sizeof text ? arg : "");
    char *rest = text;
    for (int i = 0; i < 3; i++) {
        const char *item = cli_next_item(&rest);
        if ((rest != NULL) != (i < 2)) {
            cli_fail(CLI_USAGE, "--times '%.100s': wanted three numbers, such as 1,1,1", arg);
            return EINVAL;
        }
        if (!cli_read_double("--times", item, 0, 1e15, to[i])) return EINVAL;
    }
    if (costs->forward + costs->input + costs->weight > 0) return 0;
    cli_fail(CLI_USAGE, "--times '%.100s': wanted at least one above 0", arg);
    return EINVAL;
}

// The library divides by none that is smaller.
static error_t read_bandwidth(const char *arg, double *bandwidth) {
    if (!cli_read_double("--bandwidth", arg, 0, 1e18, bandwidth)) return EINVAL;
    if (*bandwidth == 0 || *bandwidth >= 1e-100) return 0;
    cli_fail(CLI_USAGE, "--bandwidth '%.100s': wanted 0 (unlimited) or at least 1e-100", arg);
    return EINVAL;
}

static error_t read_replicas(const char *arg, double *replicas) {
    int64_t copies;
    if (!cli_read_int64("--replicas", arg, 1, 1000000000, &copies)) return EINVAL;
    *replicas = (double)copies;
    return 0;
}

static error_t read_ranks(const char *arg, cli_schedule *s) {
    char text[64];
    snprintf(text, sizeof text, "%s", strlen(arg) < sizeof text ? arg : "x");
    char *dash = text[0] ? strchr(text + 1, '-') : NULL;
    if (dash) *dash = 0;
    if (!cli_read_int64("--ranks", text, 1, INT32_MAX, &s->rank_low)) return EINVAL;
    s->rank_high = s->rank_low;
    if (dash && !cli_read_int64("--ranks", dash + 1, s->rank_low, INT32_MAX, &s->rank_high)) return EINVAL;
    s->options.ranks = s->rank_high;
    return 0;
}

static error_t parse_schedule(int key, char *arg, struct argp_state *state) {
    cli_schedule *s = state->input;
    dpcr_schedule_options *o = &s->options;
    s->given |= bit_of(key);
    switch (key) {
        case KEY_SCHEDULE: return read_name(arg, s);
        case KEY_RANKS: return read_ranks(arg, s);
        case KEY_CHUNKS: return taken(cli_read_int64("--chunks", arg, 1, INT32_MAX, &o->chunks));
        case KEY_MICROBATCHES: return taken(cli_read_int64("--microbatches", arg, 1, INT32_MAX, &o->microbatches));
        case KEY_ACCUMULATE: return taken(cli_read_int64("--accumulate", arg, 1, INT32_MAX, &o->accumulate));
        case KEY_SPLIT: o->split_input = 1; return 0;
        case KEY_STAGES: return taken(cli_read_int64("--stages", arg, 1, INT32_MAX, &o->stages));
        case KEY_ACTIVATIONS: return taken(cli_read_double("--activations", arg, 1, 1e12, &o->memory_limit));
        case KEY_OBJECTIVE: return read_objective(arg, &o->objective);
        case KEY_SEMANTICS: return read_semantics(arg, &o->semantics);
        case KEY_FROM: s->from = arg; return 0;
        case KEY_OLD: s->notation = DPCR_NOTATION_OLD; return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_costs(int key, char *arg, struct argp_state *state) {
    cli_schedule *s = state->input;
    dpcr_schedule_costs *c = &s->costs;
    s->given |= bit_of(key);
    switch (key) {
        case KEY_TIMES: s->times_given = true; return read_times(arg, c);
        case KEY_PROFILE: s->profile_name = arg; return 0;
        case KEY_HOP: return taken(cli_read_double("--hop", arg, 0, 1e15, &c->hop));
        case KEY_BANDWIDTH: return read_bandwidth(arg, &s->bandwidth);
        case KEY_RECOMPUTE: c->recompute = 1; return 0;
        case KEY_UPDATE: return taken(cli_read_double("--update", arg, 0, 1e15, &c->update));
        case KEY_REPLICAS: return read_replicas(arg, &c->replicas);
        case KEY_ATOMIC: c->atomic_pairs = 1; return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_more(int key, char *arg, struct argp_state *state) {
    cli_schedule *s = state->input;
    s->given |= bit_of(key);
    switch (key) {
        case KEY_STRAIGHT: s->partition.straight = 1; return 0;
        case KEY_TRANSFERS: s->partition.transfers = 1; return 0;
        case KEY_FEWER: s->partition.fewer = 1; return 0;
        case KEY_SVG: s->svg = arg; return 0;
        case KEY_PNG: s->png = arg; return 0;
        case KEY_TRACE: s->trace = arg; return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp schedule_argp = {schedule_options, parse_schedule, NULL, NULL, NULL, NULL, NULL};
static const struct argp cost_argp = {cost_options, parse_costs, NULL, NULL, NULL, NULL, NULL};
static const struct argp more_argp = {more_options, parse_more, NULL, NULL, NULL, NULL, NULL};

// ---- files ----

enum { MOST_BYTES = 1 << 28 };

// The whole of a file ("-": standard input), to be freed; NULL: told.
static char *read_whole(const char *what, const char *path, size_t *bytes) {
    const bool is_stdin = !strcmp(path, "-");
    if (!is_stdin && !cli_readable(what, path)) return NULL;
    FILE *file = is_stdin ? stdin : fopen(path, "rb");
    char *text = NULL;
    size_t room = 0;
    *bytes = 0;
    if (!file) {
        cli_fail_reading(what, path, errno);
        return NULL;
    }
    for (size_t got = 1; got > 0; *bytes += got) {
        if (*bytes == room) {
            room = room ? 2 * room : 1 << 16;
            char *more = room <= MOST_BYTES ? realloc(text, room) : NULL;
            if (!more) {
                if (room <= MOST_BYTES)
                    cli_fail_reading(what, path, ENOMEM);
                else
                    cli_fail(CLI_INPUT, "%s '%s' is too long", what, path);
                break;
            }
            text = more;
        }
        got = fread(text + *bytes, 1, room - *bytes, file);
    }
    if (ferror(file)) cli_fail_reading(what, path, errno);
    if (!is_stdin) fclose(file);
    if (!cli_failed()) {
        const bool marked = *bytes >= 3 && !memcmp(text, "\xef\xbb\xbf", 3);  // as Windows' editors have it
        if (marked) memmove(text, text + 3, *bytes -= 3);
        return text;
    }
    free(text);
    return NULL;
}

static bool is_model(const char *name) {
    static const char *const models[] = {"vgg16", "resnet18", "resnet50", "alexnet"};
    for (int i = 0; i < 4; i++)
        if (!strcmp(name, models[i])) return true;
    return !strncmp(name, "equal-", 6);
}

// What is wrong with a file, by its name; NULL: there is none.
static int fail_file(const char *path, const dpcr_error *error) {
    if (!path) return cli_fail_error(error, CLI_COMPUTING);
    if (error->status != DPCR_ERROR_FORMAT) return cli_fail_error(error, CLI_READING);
    return cli_fail(CLI_INPUT, "'%s': %s", path, error->text);
}

static bool takes_time(const dpcr_profile *x) {
    for (int64_t l = 0; l < x->layers; l++)
        if (x->forward[l] > 0 || x->input[l] > 0 || x->weight[l] > 0) return true;
    return false;
}

// As 'schedule profile' writes it; graph.txt is no JSON.
static bool says_seconds(const char *text, size_t bytes) {
    json_t *file = json_loadb(text, bytes, 0, NULL);
    const char *unit = json_string_value(json_object_get(file, "unit"));
    const bool seconds = unit && !strcmp(unit, "seconds");
    json_decref(file);
    return seconds;
}

int cli_schedule_profile(cli_schedule *s) {
    dpcr_error error = {0};
    if (is_model(s->profile_name))
        return dpcr_profile_model(s->context, s->profile_name, &s->profile, &error) == DPCR_OK
                   ? CLI_DONE
                   : cli_fail_error(&error, CLI_COMPUTING);
    size_t bytes;
    char *text = read_whole("the profile", s->profile_name, &bytes);
    if (!text) return cli_failed();
    const dpcr_status status = dpcr_profile_read(s->context, text, bytes, &s->profile, &error);
    s->in_seconds = says_seconds(text, bytes);
    free(text);
    if (status != DPCR_OK) return fail_file(s->profile_name, &error);
    return takes_time(&s->profile) ? CLI_DONE : cli_fail(CLI_INPUT, "'%s': wanted a time above 0", s->profile_name);
}

// ---- the schedule asked for ----

// Stages of the profile's layers, as even as contiguous ones can be.
static int group_layers(cli_schedule *s, int64_t stages) {
    const dpcr_partition_options options = {.size = sizeof options, .ranks = stages, .straight = 1};
    dpcr_partition partition;
    dpcr_error error = {0};
    if (stages > s->profile.layers)
        return cli_fail(CLI_USAGE, "--profile of %lld layer%s for %lld stages; wanted a layer a stage at least",
                        (long long)s->profile.layers, cli_s(s->profile.layers), (long long)stages);
    if (dpcr_partition_pipedream(s->context, &s->profile, &options, &partition, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    const dpcr_status status =
        dpcr_profile_group(s->context, &s->profile, partition.first, partition.stages, &s->stages, &error);
    dpcr_partition_free(s->context, &partition);
    return status == DPCR_OK ? CLI_DONE : cli_fail_error(&error, CLI_COMPUTING);
}

static int group_for(cli_schedule *s) {
    dpcr_schedule_options *o = &s->options;
    const bool by_layer =
        o->kind == DPCR_SCHEDULE_LAYERPIPE || (o->kind == DPCR_SCHEDULE_BEST && o->semantics == DPCR_DELAYED);
    if (by_layer && !o->stages && !o->chunks) o->stages = s->profile.layers;
    const int64_t chunks = o->chunks ? o->chunks : dpcr_schedule_default_chunks(o->kind);
    return group_layers(s, o->stages ? o->stages : o->ranks * chunks);
}

static int take_costs(cli_schedule *s, int64_t stages_read) {
    const dpcr_schedule_costs given = s->costs;
    if (s->profile_name) {
        int status = cli_schedule_profile(s);
        // DualPipe's second chain has the first one's stages, which a profile's layers have not.
        if (!status && s->options.kind == DPCR_SCHEDULE_DUALPIPE)
            status = cli_fail(CLI_USAGE, "--profile with dualpipe: its two chains hold the same stages; use dualpipev");
        if (!status) status = stages_read ? group_layers(s, stages_read) : group_for(s);
        if (status) return status;
        s->costs = dpcr_profile_costs(&s->stages);
        s->costs.hop = given.hop;
        s->costs.update = given.update;
        s->costs.recompute = given.recompute;
        s->costs.replicas = given.replicas;
        s->costs.atomic_pairs = given.atomic_pairs;
        s->costs.forward = 1;  // told apart from unit costs; the arrays hold the times
    }
    s->costs.bandwidth = s->bandwidth;
    return CLI_DONE;
}

static int make_schedule(cli_schedule *s) {
    dpcr_error error = {0};
    const int status = take_costs(s, 0);
    if (status) return status;
    s->options.costs = &s->costs;
    return dpcr_schedule_make(s->context, &s->options, &s->schedule, &error) == DPCR_OK
               ? CLI_DONE
               : cli_fail_error(&error, CLI_COMPUTING);
}

// The sizes of a like that are not given are the table's.
static void take_sizes(cli_schedule *s, const dpcr_schedule *table) {
    dpcr_schedule_options *o = &s->options;
    const bool sized = s->given & (bit_of(KEY_STAGES) | bit_of(KEY_CHUNKS));
    if (!(s->given & bit_of(KEY_RANKS))) o->ranks = table->ranks;
    if (!(s->given & bit_of(KEY_MICROBATCHES)))
        o->microbatches = table->microbatches * (o->kind == DPCR_SCHEDULE_DUALPIPE ? 2 : 1);  // a chain's
    if (!sized && (o->kind == DPCR_SCHEDULE_LAYERPIPE || o->semantics == DPCR_DELAYED)) o->stages = table->stages;
}

// What a like has and the table does not say: its chains, and which updates its tasks wait for. LayerPipe's delays
// follow from the times.
static bool is_told_by_like(const cli_schedule *s) {
    const dpcr_schedule_kind kind = s->options.kind;
    return s->kind_given && (kind == DPCR_SCHEDULE_DUALPIPE || dpcr_schedule_semantics(kind) != DPCR_SYNCHRONOUS ||
                             s->options.semantics != DPCR_SYNCHRONOUS);
}

static int make_like(cli_schedule *s, dpcr_schedule *like) {
    dpcr_error error = {0};
    const int64_t stages = s->schedule.stages;
    take_sizes(s, &s->schedule);
    const int status = take_costs(s, stages);
    if (status) return status;
    s->options.costs = &s->costs;
    if (dpcr_schedule_make(s->context, &s->options, like, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    if (like->stages == stages) return CLI_DONE;
    return cli_fail(CLI_USAGE, "--schedule %s of %lld stages beside a table of %lld; wanted as many",
                    dpcr_schedule_name(s->options.kind), (long long)like->stages, (long long)stages);
}

// A table says nothing of semantics: --schedule does, for its like of the same size.
static int read_schedule(cli_schedule *s) {
    dpcr_error error = {0};
    dpcr_schedule like = {0};
    size_t bytes;
    char *text = read_whole("the schedule", s->from, &bytes);
    if (!text) return cli_failed();
    int status = CLI_DONE;
    if (dpcr_schedule_read(s->context, text, bytes, s->notation, NULL, &s->schedule, &error) != DPCR_OK)
        status = fail_file(s->from, &error);
    if (!status && !is_told_by_like(s)) {
        status = take_costs(s, s->schedule.stages);
    } else if (!status) {
        status = make_like(s, &like);
        dpcr_schedule_free(s->context, &s->schedule);
        if (!status && dpcr_schedule_read(s->context, text, bytes, s->notation, &like, &s->schedule, &error) != DPCR_OK)
            status = fail_file(s->from, &error);
    }
    free(text);
    dpcr_schedule_free(s->context, &like);
    return status;
}

static int get_schedule(cli_schedule *s) { return s->from ? read_schedule(s) : make_schedule(s); }

// ---- actions ----

static void set_shape(const cli_schedule *s, cli_result *r) {
    const dpcr_schedule *d = &s->schedule;
    cli_set_text(r, "schedule", s->from && !s->kind_given ? "table" : dpcr_schedule_name(s->options.kind));
    cli_set_text(r, "semantics", dpcr_semantics_name(d->semantics));
    cli_set_int(r, "ranks", d->ranks);
    cli_set_int(r, "stages", d->stages);
    cli_set_int(r, "microbatches", d->microbatches * d->chains);
    cli_set_int(r, "actions", d->first[d->ranks]);
}

// The rows as lists of cells.
static void set_rows(const cli_schedule *s, const char *text, cli_result *r) {
    json_t *rows = json_array();
    (void)s;
    while (rows && *text) {
        json_t *row = json_array();
        while (*text && *text != '\n') {
            const size_t n = strcspn(text, ",\n");
            if (n) cli_append(&row, json_stringn(text, n));
            text += n + (text[n] == ',');
        }
        cli_append(&rows, row);
        text += *text == '\n';
    }
    cli_set(r, "rows", rows);
}

// The table: on standard output, or where --csv says; with --json among the result.
static int give_table(const cli_schedule *s, const dpcr_schedule *schedule, cli_result *r) {
    dpcr_error error = {0};
    char *text;
    size_t bytes;
    if (dpcr_schedule_write(s->context, schedule, s->notation, &text, &bytes, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    int status = CLI_DONE;
    if (s->common.json) set_rows(s, text, r);
    if (s->common.csv)
        status = cli_write_file(s->common.csv, text, bytes);
    else
        cli_say(&s->common, "%s", text);
    dpcr_schedule_text_free(s->context, text);
    if (!status && s->common.json) status = cli_print_json(r);
    return status;
}

static int act_generate(cli_schedule *s, cli_result *r) {
    const int status = get_schedule(s);
    if (status) return status;
    set_shape(s, r);
    return give_table(s, &s->schedule, r);
}

static int act_validate(cli_schedule *s, cli_result *r) {
    dpcr_error error = {0};
    const int status = get_schedule(s);
    if (status) return status;
    if (dpcr_schedule_validate(s->context, &s->schedule, s->options.memory_limit, &error) != DPCR_OK) {
        const bool own = !s->from && error.status == DPCR_ERROR_FORMAT;  // no file, but a limit beside it
        return own ? cli_fail(CLI_USAGE, "%s", error.text) : fail_file(s->from, &error);
    }
    const int64_t microbatches = s->schedule.microbatches * s->schedule.chains;
    set_shape(s, r);
    cli_set_bool(r, "valid", true);
    cli_say(&s->common, "valid: %lld rank%s, %lld stage%s, %lld microbatch%s, %lld actions, no deadlock\n",
            (long long)s->schedule.ranks, cli_s(s->schedule.ranks), (long long)s->schedule.stages,
            cli_s(s->schedule.stages), (long long)microbatches, microbatches == 1 ? "" : "es",
            (long long)s->schedule.first[s->schedule.ranks]);
    return cli_finish(&s->common, r, CLI_DONE);
}

static int act_lower(cli_schedule *s, cli_result *r) {
    dpcr_error error = {0};
    dpcr_schedule lowered;
    int status = get_schedule(s);
    if (status) return status;
    if (dpcr_schedule_lower(s->context, &s->schedule, &lowered, &error) != DPCR_OK)
        return s->from ? fail_file(s->from, &error) : cli_fail_error(&error, CLI_COMPUTING);
    set_shape(s, r);
    cli_set_int(r, "actions", lowered.first[lowered.ranks]);
    status = give_table(s, &lowered, r);
    dpcr_schedule_free(s->context, &lowered);
    return status;
}

static void set_simulation(const dpcr_simulation *x, cli_result *r) {
    cli_set_real(r, "makespan", x->makespan);
    cli_set_real(r, "work", x->work);
    cli_set_real(r, "idle", x->idle);
    cli_set_real(r, "idle_share", x->makespan > 0 ? x->idle / x->makespan : 0);
    cli_set_real(r, "span", x->span);
    cli_set_real(r, "idle_in_span", x->idle_in_span);
    cli_set_real(r, "steady_state", x->steady_state);
    cli_set_real(r, "utilisation", x->utilisation);
    cli_set(r, "rank_work", cli_json_reals(x->rank_work, x->ranks));
    cli_set(r, "peak_activations", cli_json_ints(x->peak_activations, x->ranks));
    cli_set(r, "peak_operands", cli_json_ints(x->peak_operands, x->ranks));
    cli_set(r, "peak_memory", cli_json_reals(x->peak_memory, x->ranks));
    cli_set(r, "peak_bytes", cli_json_reals(x->peak_bytes, x->ranks));
    cli_set(r, "weight_versions", cli_json_ints(x->weight_versions, x->ranks));
    cli_set(r, "staleness", cli_json_ints(x->staleness, x->stages));
    cli_set_int(r, "messages", x->messages);
    cli_set_real(r, "bytes", x->bytes);
    cli_set_real(r, "weight_bytes", x->weight_bytes);
}

static void say_ints(const cli_common *common, const char *what, const int64_t *values, int64_t count) {
    cli_say(common, "%-22s", what);
    for (int64_t i = 0; i < count; i++) cli_say(common, " %lld", (long long)values[i]);
    cli_say(common, "\n");
}

static void say_simulation(const cli_common *common, const dpcr_simulation *x) {
    cli_say(common, "makespan               %.6g, work %.6g, idle %.6g (%.1f %%)\n", x->makespan, x->work, x->idle,
            x->makespan > 0 ? 100 * x->idle / x->makespan : 0.0);
    cli_say(common, "longest span           %.6g, idle in it %.6g\n", x->span, x->idle_in_span);
    if (isnan(x->steady_state))
        cli_say(common, "steady state           not told: wanted at least 4 microbatches\n");
    else
        cli_say(common, "steady state           %.6g, utilisation %.1f %%\n", x->steady_state, 100 * x->utilisation);
    say_ints(common, "peak activations", x->peak_activations, x->ranks);
    say_ints(common, "peak until W", x->peak_operands, x->ranks);
    say_ints(common, "weight versions", x->weight_versions, x->ranks);
    say_ints(common, "staleness by stage", x->staleness, x->stages);
    cli_say(common, "messages               %lld, bytes %.6g, weights %.6g\n", (long long)x->messages, x->bytes,
            x->weight_bytes);
}

static int simulate(cli_schedule *s, dpcr_simulation *x) {
    dpcr_error error = {0};
    const int status = get_schedule(s);
    if (status) return status;
    if (dpcr_schedule_simulate(s->context, &s->schedule, &s->costs, x, &error) != DPCR_OK)
        return fail_file(s->from, &error);
    return CLI_DONE;
}

static int act_simulate(cli_schedule *s, cli_result *r) {
    dpcr_simulation x = {0};
    int status = simulate(s, &x);
    if (!status) {
        set_shape(s, r);
        set_simulation(&x, r);
        say_simulation(&s->common, &x);
        status = cli_finish(&s->common, r, CLI_DONE);
    }
    dpcr_simulation_free(s->context, &x);
    return status;
}

static int act_draw(cli_schedule *s, cli_result *r) {
    dpcr_simulation x = {0};
    if (!s->svg && !s->png && !s->trace) s->svg = "-";
    const bool drawn = cli_is_stdout(s->svg) || cli_is_stdout(s->trace);
    if (cli_is_stdout(s->svg) && cli_is_stdout(s->trace))
        return cli_fail(CLI_USAGE, "--svg and --trace both want standard output");
    if (drawn && (s->common.json || cli_is_stdout(s->common.csv)))
        return cli_fail(CLI_USAGE, "%s and a picture both want standard output; name a file with --svg",
                        s->common.json ? "--json" : "--csv -");
    if (!cli_schedule_drawable(s)) return cli_failed();
    int status = simulate(s, &x);
    if (!status) status = cli_schedule_draw(s, &x);
    if (!status) {
        set_shape(s, r);
        cli_set_real(r, "makespan", x.makespan);
        status = cli_finish(&s->common, r, CLI_DONE);
    }
    dpcr_simulation_free(s->context, &x);
    return status;
}

enum { GENERATE, VALIDATE, LOWER, SIMULATE, COMPARE, PARTITION, DRAW, ACTIONS };
static const struct {
    const char *name;
    int (*act)(cli_schedule *s, cli_result *r);
} actions[ACTIONS] = {[GENERATE] = {"generate", act_generate},
                      [VALIDATE] = {"validate", act_validate},
                      [LOWER] = {"lower", act_lower},
                      [SIMULATE] = {"simulate", act_simulate},
                      [COMPARE] = {"compare", cli_schedule_compare},
                      [PARTITION] = {"partition", cli_schedule_partition},
                      [DRAW] = {"draw", act_draw}};

// ---- options that would do nothing ----

static const char *option_name(int key) {
    static const struct argp_option *const lists[] = {schedule_options, cost_options, more_options};
    for (int i = 0; i < 3; i++)
        for (const struct argp_option *o = lists[i]; o->name; o++)
            if (o->key == key) return o->name;
    return "";
}

static const char *users_of(int key, int action) {
    const bool one = action != COMPARE && action != PARTITION;  // that looks at one schedule
    switch (key) {
        case KEY_RANKS:
        case KEY_PROFILE:
        case KEY_BANDWIDTH: return NULL;
        case KEY_STRAIGHT:
        case KEY_TRANSFERS:
        case KEY_FEWER: return action == PARTITION ? NULL : "partition";
        case KEY_SVG:
        case KEY_PNG:
        case KEY_TRACE: return action == DRAW ? NULL : "draw";
        default: return one ? NULL : "generate, validate, lower, simulate and draw";
    }
}

// A file's table has its own ranks and so on; --schedule beside --from makes one of its like, where that says more.
static int refuse_beside_table(const cli_schedule *s, int action) {
    for (int key = KEY_RANKS; key <= KEY_SEMANTICS; key++) {
        if (!(s->given & bit_of(key)) || (key == KEY_ACTIVATIONS && action == VALIDATE)) continue;
        if (key == KEY_OBJECTIVE) return cli_fail(CLI_USAGE, "--objective beside --from: the table is made already");
        if (s->kind_given)
            return cli_fail(CLI_USAGE, "--%s beside --from: the table says it, and --schedule %s adds nothing",
                            option_name(key), dpcr_schedule_name(s->options.kind));
        return cli_fail(CLI_USAGE, "--%s beside --from: the table says it; wanted --schedule too, for one of its like",
                        option_name(key));
    }
    return CLI_DONE;
}

static int refuse_of_other_kinds(const cli_schedule *s, int action) {
    const dpcr_schedule_kind kind = s->options.kind;
    const dpcr_semantics semantics = s->options.semantics;
    const bool best = kind == DPCR_SCHEDULE_BEST;
    const struct {
        int key;
        bool used;
        const char *of;
    } rules[] = {
        {KEY_OBJECTIVE, best, "best"},
        {KEY_SEMANTICS, best, "best"},
        {KEY_SPLIT, kind == DPCR_SCHEDULE_LAYERPIPE || (best && semantics == DPCR_DELAYED), "layerpipe"},
        {KEY_ACCUMULATE, kind == DPCR_SCHEDULE_PIPEDREAM_2BW || (best && semantics == DPCR_DOUBLE_BUFFERED),
         "pipedream-2bw"},
        {KEY_ACTIVATIONS, best || kind == DPCR_SCHEDULE_ZB_H2 || action == VALIDATE, "zb-h2, best and validate"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (s->given & bit_of(rules[i].key) && !rules[i].used)
            return cli_fail(CLI_USAGE, "--%s is for %s, not %s", option_name(rules[i].key), rules[i].of,
                            dpcr_schedule_name(kind));
    return CLI_DONE;
}

static int refuse_idle(const cli_schedule *s, int action) {
    for (int key = KEY_SCHEDULE; key <= KEY_TRACE; key++) {
        const char *users = s->given & bit_of(key) ? users_of(key, action) : NULL;
        if (users) return cli_fail(CLI_USAGE, "--%s is for %s, not %s", option_name(key), users, actions[action].name);
    }
    return s->from && !is_told_by_like(s) ? refuse_beside_table(s, action) : refuse_of_other_kinds(s, action);
}

static bool spares_inputs(const cli_schedule *s) {
    const cli_file written[] = {{"--svg", s->svg}, {"--png", s->png}, {"--trace", s->trace}, {"--csv", s->common.csv}};
    const cli_file read[] = {{"--from", s->from},
                             {"--profile", s->profile_name && !is_model(s->profile_name) ? s->profile_name : NULL}};
    return cli_distinct(written, 4) && cli_spares(written, 4, read, 2);
}

static int run(cli_schedule *s) {
    const char *names[ACTIONS + 1];
    int index = 0, status;
    for (int i = 0; i < ACTIONS; i++) names[i] = actions[i].name;
    names[ACTIONS] = "profile";  // gone before, unless it stands behind another word
    if (!cli_read_word("schedule", s->action ? s->action : "", names, ACTIONS + 1, &index)) return CLI_USAGE;
    if (index == ACTIONS) return cli_fail(CLI_USAGE, "profile: wanted before the network, 'schedule profile mlp'");
    if (s->times_given && s->profile_name) return cli_fail(CLI_USAGE, "--times and --profile both give the times");
    if (s->rank_low != s->rank_high && actions[index].act != cli_schedule_compare)
        return cli_fail(CLI_USAGE, "--ranks %lld-%lld: a range is for compare", (long long)s->rank_low,
                        (long long)s->rank_high);
    if ((status = refuse_idle(s, index))) return status;
    if (!spares_inputs(s)) return CLI_USAGE;
    s->context = cli_context_create(&s->common, &status);
    if (!s->context) return status;
    cli_result result = cli_result_create();
    status = actions[index].act(s, &result);
    cli_result_destroy(&result);
    dpcr_schedule_free(s->context, &s->schedule);
    dpcr_profile_free(s->context, &s->profile);
    dpcr_profile_free(s->context, &s->stages);
    dpcr_context_destroy(s->context);
    return status;
}

static bool names_profile(const char *word) { return !strcmp(word, "profile"); }
static bool names_action(const char *word) {
    for (int i = 0; i < ACTIONS; i++)
        if (!strcmp(word, actions[i].name)) return true;
    return false;
}

int cli_verb_schedule(int argc, char **argv) {
    cli_signals_at_once(true);
    if (cli_name_first(argc, argv, names_profile, names_action)) return cli_schedule_measure(argc - 1, argv + 1);
    cli_schedule s = {
        .common = CLI_COMMON_DEFAULTS,
        .options = {.size = sizeof(dpcr_schedule_options), .kind = DPCR_SCHEDULE_1F1B, .ranks = 4, .microbatches = 8},
        .costs = {.size = sizeof(dpcr_schedule_costs)},
        .partition = {.size = sizeof(dpcr_partition_options)}};
    const cli_syntax syntax = {
        .arguments = "generate|validate|lower|simulate|compare|partition|draw|profile",
        .doc =
            "Pipeline schedules as data. generate prints a schedule's table (a line a rank, cells such as 0F3: stage, "
            "task, microbatch), validate checks one, lower adds its sends and receives, simulate times it, draw makes "
            "pictures of it; partition cuts a network into stages, compare sets LayerPipe beside PipeDream, profile "
            "times "
            "our own networks ('schedule profile --help').\vTasks: F forward, I gradient of the input, W gradient of "
            "the weights, B both.",
        .groups = {{&schedule_argp, &s, "Schedule:"},
                   {&cost_argp, &s, "Times and bytes:"},
                   {&more_argp, &s, "Partition and pictures:"},
                   {&cli_common_argp, &s.common, "Output and resources:"}},
        .most = 1};
    const char *positional[CLI_MAX_POSITIONAL];
    int status;
    if (!cli_parse(&syntax, argc, argv, positional, &status)) return status;
    s.action = positional[0];
    return run(&s);
}
