// SPDX-License-Identifier: MIT
#include "train_workers.h"

#include <errno.h>
#include <math.h>

enum {
    KEY_DATA_PARALLEL = 0x9000,
    KEY_SWAP,
    KEY_ENOUGH,
    KEY_APART_EPOCHS,
    KEY_APART_BATCH,
    KEY_APART_RATE,
    KEY_LAYERWISE,
    KEY_FORWARDS,
    KEY_BACKWARDS,
    KEY_AHEAD,
    KEY_GROUPS,
    KEY_FREE
};

static const struct argp_option workers_options[] = {
    {"data-parallel", KEY_DATA_PARALLEL, NULL, 0,
     "Each minibatch's rows over --ranks workers: the loop's network to the bit, by any number of them", 0},
    {"swap", KEY_SWAP, NULL, 0,
     "Data-parallel for --epochs of --batch, then each worker alone, then the mean of their weights", 0},
    {"enough", KEY_ENOUGH, "A", 0, "swap: part after an epoch of this training accuracy (default: after --epochs)", 0},
    {"apart-epochs", KEY_APART_EPOCHS, "N", 0, "swap: epochs of a worker alone (default 1)", 0},
    {"apart-batch", KEY_APART_BATCH, "B", 0, "swap: minibatch of a worker alone (default 32)", 0},
    {"apart-rate", KEY_APART_RATE, "R", 0, "swap: first learning rate of a worker alone (default: a tenth of --rate)",
     0},
    {"layer-wise", KEY_LAYERWISE, NULL, 0,
     "Forward and backward passes on threads of their own, each layer updated as soon as its gradient exists", 0},
    {"forwards", KEY_FORWARDS, "N", 0, "layer-wise: threads that go forward (default 1)", 0},
    {"backwards", KEY_BACKWARDS, "N", 0, "layer-wise: threads that go back (default 1)", 0},
    {"ahead", KEY_AHEAD, "N", 0, "layer-wise: minibatches under way at most (default: as many as threads)", 0},
    {"groups", KEY_GROUPS, "N", 0, "layer-wise: pieces of the network updated by themselves (default: at most 16)", 0},
    {"free-running", KEY_FREE, NULL, 0, "layer-wise: updates as they come, by no clock: another network every time", 0},
    {0},
};

const char *cli_workers_name(cli_workers_kind kind) {
    static const char *const names[CLI_WORKERS_KINDS] = {"", "data-parallel", "swap", "layer-wise"};
    return names[kind];
}

bool cli_workers_are_threads_only(const cli_workers *w) { return w->kind == CLI_LAYERWISE; }

static error_t choose(cli_workers *w, cli_workers_kind kind) {
    if (w->kind && w->kind != kind) w->other = w->kind;
    w->kind = kind;
    return 0;
}

static error_t taken(bool ok) { return ok ? 0 : EINVAL; }

// 0 would be the library's word for none.
static error_t read_enough(const char *arg, double *accuracy) {
    if (!cli_read_double("--enough", arg, 0, 1, accuracy)) return EINVAL;
    if (*accuracy > 0) return 0;
    cli_fail(CLI_USAGE, "--enough '%s': wanted more than 0; to part after the first epoch it is --epochs 1", arg);
    return EINVAL;
}

static error_t parse_workers(int key, char *arg, struct argp_state *state) {
    cli_workers *w = state->input;
    const bool chooses = key == KEY_DATA_PARALLEL || key == KEY_SWAP || key == KEY_LAYERWISE;
    if (key > KEY_DATA_PARALLEL && key <= KEY_FREE && !chooses && !w->first_given) {
        w->first_given = workers_options[key - KEY_DATA_PARALLEL].name;
        w->first_kind = key < KEY_LAYERWISE ? CLI_SWAP : CLI_LAYERWISE;
    }
    switch (key) {
        case KEY_DATA_PARALLEL: return choose(w, CLI_DATA_PARALLEL);
        case KEY_SWAP: return choose(w, CLI_SWAP);
        case KEY_LAYERWISE: return choose(w, CLI_LAYERWISE);
        case KEY_ENOUGH: return read_enough(arg, &w->swap.accuracy);
        case KEY_APART_EPOCHS: return taken(cli_read_int64("--apart-epochs", arg, 1, UINT32_MAX, &w->swap.epochs));
        case KEY_APART_BATCH: return taken(cli_read_int64("--apart-batch", arg, 1, INT64_MAX, &w->swap.batch));
        case KEY_APART_RATE: return taken(cli_read_double("--apart-rate", arg, 0, HUGE_VAL, &w->rate));
        case KEY_FORWARDS: return taken(cli_read_int64("--forwards", arg, 1, 1024, &w->layerwise.forwards));
        case KEY_BACKWARDS: return taken(cli_read_int64("--backwards", arg, 1, 1024, &w->layerwise.backwards));
        case KEY_AHEAD: return taken(cli_read_int64("--ahead", arg, 1, 4096, &w->layerwise.ahead));
        case KEY_GROUPS: return taken(cli_read_int64("--groups", arg, 1, 1 << 20, &w->layerwise.groups));
        case KEY_FREE: w->layerwise.free_running = 1; return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp cli_workers_argp = {workers_options, parse_workers, NULL, NULL, NULL, NULL, NULL};

// ---- before the run ----

static int check_given(const cli_workers *w, const cli_pipeline *p) {
    if (w->other || (w->kind && p->given))
        return cli_fail(CLI_USAGE, "--%s beside --%s; wanted one of them", cli_workers_name(w->kind),
                        w->other ? cli_workers_name(w->other) : "pipeline");
    if (!p->given && p->first_given) return cli_fail(CLI_USAGE, "--%s is for --pipeline", p->first_given);
    if (w->first_given && w->first_kind != w->kind)
        return cli_fail(CLI_USAGE, "--%s is for --%s", w->first_given, cli_workers_name(w->first_kind));
    if (!p->given && !w->kind && p->shared_given)
        return cli_fail(CLI_USAGE, "--%s is for --pipeline, --data-parallel, --swap or --layer-wise", p->shared_given);
    if (w->kind && p->options.recompute)
        return cli_fail(CLI_USAGE, "--recompute is not for --%s", cli_workers_name(w->kind));
    if (w->kind && w->kind != CLI_LAYERWISE && p->options.segment)
        return cli_fail(CLI_USAGE, "--segment is for late gradients; --%s has none", cli_workers_name(w->kind));
    if (w->kind == CLI_LAYERWISE && p->ranks_given)
        return cli_fail(CLI_USAGE, "--ranks is not for --layer-wise; wanted --forwards and --backwards");
    return CLI_DONE;
}

int cli_workers_settle(cli_workers *w, const cli_pipeline *p) {
    const int status = check_given(w, p);
    w->options.workers = p->schedule.ranks;
    w->options.deadline = w->layerwise.deadline = p->options.deadline;
    w->layerwise.segment = p->options.segment;
    return status;
}

// ---- the run ----

// The second phase has the first's optimiser, at its own rate from the start, and a schedule of its own.
static int on_moment(void *user, dpcr_swap_moment moment, int64_t worker, dpcr_model *model) {
    cli_workers *w = user;
    cli_accuracy a = {0};
    (void)worker;
    w->status = w->test(w->test_user, model, &a);
    if (moment == DPCR_SWAP_TOGETHER) w->together = a;
    if (moment == DPCR_SWAP_AVERAGED) w->averaged = a;
    if (moment == DPCR_SWAP_APART) cli_append(&w->apart, cli_json_real(a.accuracy));
    return w->status;
}

dpcr_status cli_workers_train(cli_workers *w, dpcr_context *context, dpcr_model *model, const dpcr_dataset *data,
                              const dpcr_train_options *train, dpcr_train_state *last, dpcr_error *error) {
    if (w->kind == CLI_DATA_PARALLEL)
        return dpcr_train_data_parallel(context, model, data, train, &w->options, last, &w->figures, error);
    if (w->kind == CLI_LAYERWISE)
        return dpcr_train_layerwise(context, model, data, train, &w->layerwise, last, &w->figures, error);
    w->apart = json_array();
    w->swap.optimiser = train->optimiser;
    w->swap.optimiser.rate = w->rate >= 0 ? w->rate : train->optimiser.rate / 10;
    w->swap.optimiser.warm_up = 0;
    if (w->swap.optimiser.total != 0) w->swap.optimiser.total = -1;
    w->swap.moment = on_moment;
    w->swap.moment_user = w;
    return dpcr_train_swap(context, model, data, train, &w->options, &w->swap, last, &w->figures, error);
}

// ---- after it ----

static void set_swap(const cli_workers *w, cli_result *x) {
    cli_set_int(x, "together_epochs", w->figures.together);
    cli_set_real(x, "together_accuracy", w->together.accuracy);
    cli_set(x, "apart_accuracies", json_incref(w->apart));
    cli_set_real(x, "averaged_accuracy", w->averaged.accuracy);
    cli_set_int(x, "apart_epochs", w->swap.epochs);
    cli_set_int(x, "apart_batch", w->swap.batch);
    cli_set_real(x, "apart_rate", w->swap.optimiser.rate);
    cli_set_real(x, "together_seconds", w->figures.seconds[0]);
    cli_set_real(x, "apart_seconds", w->figures.seconds[1]);
    cli_set_real(x, "averaging_seconds", w->figures.seconds[2]);
}

static void set_layerwise(const cli_workers *w, cli_result *x) {
    cli_set_int(x, "forwards", w->layerwise.forwards ? w->layerwise.forwards : 1);
    cli_set_int(x, "backwards", w->layerwise.backwards ? w->layerwise.backwards : 1);
    cli_set(x, "free_running", json_boolean(w->layerwise.free_running));
    cli_set_real(x, "staleness", w->figures.staleness);
    cli_set_int(x, "stalest", w->figures.stalest);
    cli_set_real(x, "gap", w->figures.gap);
}

void cli_workers_set(const cli_workers *w, cli_result *r) {
    cli_result x = cli_result_create();
    cli_set_text(&x, "kind", cli_workers_name(w->kind));
    if (w->kind != CLI_LAYERWISE) cli_set_int(&x, "workers", w->options.workers);
    cli_set_int(&x, "groups", w->figures.groups);
    cli_set_int(&x, "updates", w->figures.updates);
    cli_set_real(&x, "waited", w->figures.waited);
    if (w->kind == CLI_SWAP) set_swap(w, &x);
    if (w->kind == CLI_LAYERWISE) set_layerwise(w, &x);
    if (x.failed) r->failed = true;
    cli_set(r, "workers", x.object);
    x.object = NULL;
    cli_result_destroy(&x);
}

static void say_swap(const cli_workers *w, const cli_common *common) {
    cli_say(common, "swap: together %lld epoch%s, test accuracy %.2f %%; apart", (long long)w->figures.together,
            cli_s(w->figures.together), 100 * w->together.accuracy);
    for (size_t k = 0; k < json_array_size(w->apart); k++)
        cli_say(common, "%s %.2f %%", k ? "," : "", 100 * json_number_value(json_array_get(w->apart, k)));
    cli_say(common, "; averaged %.2f %%; %.1f s + %.1f s\n", 100 * w->averaged.accuracy, w->figures.seconds[0],
            w->figures.seconds[1]);
}

void cli_workers_say(const cli_workers *w, const cli_common *common) {
    if (w->kind == CLI_SWAP) say_swap(w, common);
    if (w->figures.updates == 0) return;
    if (w->kind == CLI_LAYERWISE)
        cli_say(common,
                "layer-wise in %lld group%s%s: gradients %.2f updates late, at most %lld; %.2f between the passes\n",
                (long long)w->figures.groups, cli_s(w->figures.groups),
                w->layerwise.free_running ? ", running free (never the same twice)" : "", w->figures.staleness,
                (long long)w->figures.stalest, w->figures.gap);
    else
        cli_say(common, "%lld worker%s: worker 0 waited %.3f ms an update for others\n", (long long)w->options.workers,
                cli_s(w->options.workers), 1e3 * w->figures.waited);
}

void cli_workers_free(cli_workers *w) { json_decref(w->apart); }
