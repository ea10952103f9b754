// SPDX-License-Identifier: MIT
// bench planner: over a grid of chains, forward and backward, what the planner chose is timed against every
// alternative, in interleaved rounds. The regret of a choice is its time over that of the best way, minus 1; a choice
// that is the best way has none. Beside it the regret of always taking the loop, which shows that the grid asks
// something.
#include "bench_planner.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { ROUNDS = 15, LEAST_ROUNDS = 7, LOOKS = 3, KEY_MODE = 0x6000, KEY_QUICK, KEY_BUDGET, KEY_PART, KEY_ONLY };
static const double round_seconds = 100e-6;  // a round of one way lasts at least this
static const double case_seconds = 0.25;     // of the rounds of a case
static const double short_seconds = 2e-3;
static const double patience_seconds = 20e-3;  // what takes no longer is looked at again
static const double wrong = 0.05;              // a regret that is told

typedef struct asked {
    cli_common common;
    dpcr_planning mode;
    bool quick;
    double budget;  // of planning, a case; 0: not given
    int part, parts;
    const char *only;  // NULL: all
} asked;

typedef struct outcome {
    char name[96], choice[64], best[64], sentence[512];
    double regret, sequential_regret, planning_seconds, choice_seconds, best_seconds, loop_seconds;
    double parallel_gain;  // the loop's time over the best parallel way's
} outcome;

static const struct argp_option planner_options[] = {
    {"mode", KEY_MODE, "estimate|measure", 0, "How auto is decided (default measure)", 0},
    {"quick", KEY_QUICK, NULL, 0, "A few short cases only", 0},
    {"budget", KEY_BUDGET, "SECONDS", 0, "Of measuring, each case (default 0.2)", 0},
    {"part", KEY_PART, "K/N", 0, "Every Nth case, from the Kth on: a part of the grid", 0},
    {"only", KEY_ONLY, "TEXT", 0, "The cases that have TEXT in their names, such as 'gru' or 'w 16 B 256'", 0},
    {0},
};

static bool read_part(const char *arg, asked *a) {
    char text[32];
    snprintf(text, sizeof text, "%s", strlen(arg) < sizeof text ? arg : "");
    char *slash = strchr(text, '/');
    if (!slash) {
        cli_fail(CLI_USAGE, "--part is '%.100s', wanted K/N, such as 1/4", arg);
        return false;
    }
    *slash = 0;
    return cli_read_int("--part", slash + 1, 1, planner_grid_count, &a->parts) &&
           cli_read_int("--part", text, 1, a->parts, &a->part);
}

static error_t parse_planner(int key, char *arg, struct argp_state *state) {
    asked *a = state->input;
    static const char *const words[] = {"estimate", "measure"};
    int index = 0;
    switch (key) {
        case KEY_MODE:
            if (!cli_read_word("--mode", arg, words, 2, &index)) return EINVAL;
            a->mode = index ? DPCR_PLANNING_MEASURE : DPCR_PLANNING_ESTIMATE;
            return 0;
        case KEY_QUICK: a->quick = true; return 0;
        case KEY_BUDGET: return cli_read_double("--budget", arg, 1e-3, 60, &a->budget) ? 0 : EINVAL;
        case KEY_PART: return read_part(arg, a) ? 0 : EINVAL;
        case KEY_ONLY: a->only = arg; return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp planner_argp = {planner_options, parse_planner, NULL, NULL, NULL, NULL, NULL};

// ---- timing ----

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double *values, int count, double q) {
    if (count == 0) return 0;
    qsort(values, (size_t)count, sizeof *values, by_size);
    const double at = q * (count - 1);
    const int below = (int)at, above = below + 1 < count ? below + 1 : below;
    return values[below] + (at - below) * (values[above] - values[below]);
}

static int run_many(planner_subject *s, int way, int runs, double *seconds) {
    dpcr_error error = {0};
    const double start = cli_now();
    for (int i = 0; i < runs; i++)
        if (planner_subject_run(s, way, &error) != DPCR_OK) return cli_fail_error(&error, CLI_COMPUTING);
    *seconds = (cli_now() - start) / runs;
    return CLI_DONE;
}

typedef struct rounds {
    double times[PLANNER_WAYS][ROUNDS];
    int inner[PLANNER_WAYS];
    int warm[PLANNER_WAYS];
    bool in[PLANNER_WAYS];
    int count;
} rounds;

// Twice each, the loop and the choice first, and short work more often, for a thread that sleeps makes a look too long;
// who takes thrice the best is not raced (its time is known well enough).
static int first_look(planner_subject *s, rounds *r, double *round) {
    double best = HUGE_VAL;
    for (int i = 0; i < s->count; i++) {
        double cold = 0;
        int status = run_many(s, i, 1, &cold);
        double warm = cold;
        const int looks = cold < short_seconds ? LOOKS : cold < patience_seconds || cold < 6 * best ? 1 : 0;
        for (int k = 0; k < looks && !status; k++) {
            status = run_many(s, i, 1, &cold);
            warm = k == 0 ? cold : fmin(warm, cold);
        }
        if (status) return status;
        s->ways[i].seconds = warm;
        best = fmin(best, warm);
    }
    *round = 0;
    for (int i = 0; i < s->count; i++) {
        const double each = s->ways[i].seconds;
        r->in[i] = i == 0 || s->ways[i].loop ? each < 10 * best : each < 2.5 * best;
        r->inner[i] = each < round_seconds ? (int)fmin(1000, ceil(round_seconds / fmax(each, 1e-9))) : 1;
        r->warm[i] = bench_warm_runs(each);
        if (r->in[i]) *round += each * (r->inner[i] + r->warm[i]);
    }
    return CLI_DONE;
}

static int race(planner_subject *s, rounds *r) {
    double round = 0, unused;
    int status = first_look(s, r, &round);
    const double fit = case_seconds / fmax(round, 1e-9);
    r->count = fit > ROUNDS ? ROUNDS : fit < LEAST_ROUNDS ? LEAST_ROUNDS : (int)fit;
    if (round * r->count > 4) r->count = 3;
    for (int k = 0; k < r->count && !status; k++)
        for (int j = 0; j < s->count && !status; j++) {
            const int i = k % 2 ? s->count - 1 - j : j;
            if (!r->in[i]) continue;
            if (r->warm[i]) status = run_many(s, i, r->warm[i], &unused);
            if (!status) status = run_many(s, i, r->inner[i], &r->times[i][k]);
        }
    for (int i = 0; i < s->count && !status; i++) {
        double sorted[ROUNDS];
        if (!r->in[i]) continue;
        memcpy(sorted, r->times[i], sizeof sorted);
        s->ways[i].seconds = quantile(sorted, r->count, 0.5);
    }
    return status;
}

// Over the rounds, the median of one way's time over the other's; of the single times where one was not raced.
static double paired_ratio(const planner_subject *s, const rounds *r, int a, int b) {
    double ratios[ROUNDS];
    if (!r->in[a] || !r->in[b]) return s->ways[a].seconds / s->ways[b].seconds;
    for (int k = 0; k < r->count; k++) ratios[k] = r->times[a][k] / r->times[b][k];
    return quantile(ratios, r->count, 0.5);
}

static void judge(const planner_subject *s, const rounds *r, outcome *o) {
    int best = 0, loop = 0, parallel = -1;
    for (int i = 0; i < s->count; i++) {
        if (s->ways[i].seconds < s->ways[best].seconds) best = i;
        if (s->ways[i].loop)
            loop = i;
        else if (parallel < 0 || s->ways[i].seconds < s->ways[parallel].seconds)
            parallel = i;
    }
    snprintf(o->choice, sizeof o->choice, "%s", s->ways[0].name);
    snprintf(o->best, sizeof o->best, "%s", s->ways[best].name);
    snprintf(o->sentence, sizeof o->sentence, "%s", s->sentence);
    o->regret = best == 0 ? 0 : fmax(0, paired_ratio(s, r, 0, best) - 1);
    o->sequential_regret = best == loop ? 0 : fmax(0, paired_ratio(s, r, loop, best) - 1);
    o->planning_seconds = s->planning_seconds;
    o->choice_seconds = s->ways[0].seconds;
    o->best_seconds = s->ways[best].seconds;
    o->loop_seconds = s->ways[loop].seconds;
    o->parallel_gain = parallel < 0 ? 0 : s->ways[loop].seconds / s->ways[parallel].seconds;
}

// ---- cases ----

static void name_case(const planner_case *c, bool backward, char *name, size_t bytes) {
    char more[48] = "";
    if (c->init || c->activation || c->gain != 1)
        snprintf(more, sizeof more, " init %d act %d gain %g", (int)c->init, (int)c->activation, c->gain);
    if (c->kind == PLANNER_LINEAR) snprintf(more, sizeof more, " radius %g", c->radius);
    snprintf(name, bytes, "%s%s L %lld w %lld B %lld%s %s", c->kind == PLANNER_LINEAR ? "linear " : "", c->name,
             (long long)c->length, (long long)c->width, (long long)c->batch, more,
             c->kind == PLANNER_RECURRENT ? backward ? "training" : "inference"
             : backward                   ? "backward"
                                          : "forward");
}

static int run_direction(planner_subject *s, const asked *a, bool backward, outcome *o) {
    rounds *r = calloc(1, sizeof *r);
    if (!r) return cli_fail_memory("the rounds");
    int status = planner_subject_plan(s, backward, a->mode, a->mode == DPCR_PLANNING_MEASURE ? a->budget : 0);
    if (!status) status = race(s, r);
    if (!status) judge(s, r, o);
    planner_subject_unplan(s);
    free(r);
    if (!status)
        cli_say(&a->common, "%-52s %-20s %10.4g us  best %-20s %10.4g us  loop %10.4g us  regret %6.2f %%\n", o->name,
                o->choice, o->choice_seconds * 1e6, o->best, o->best_seconds * 1e6, o->loop_seconds * 1e6,
                100 * o->regret);
    return status;
}

static bool is_asked(const asked *a, const outcome *o) { return !a->only || strstr(o->name, a->only); }

static bool is_in_part(const asked *a, int i) {
    return (!a->quick || planner_grid[i].quick) && i % a->parts == a->part - 1;
}

// Before anything is measured.
static int refuse_nothing(const asked *a) {
    bool named = false, asked_for = false;
    for (int i = 0; i < planner_grid_count; i++)
        for (int backward = 0; backward < 2; backward++) {
            outcome o = {0};
            name_case(&planner_grid[i], backward, o.name, sizeof o.name);
            named = named || is_asked(a, &o);
            asked_for = asked_for || (is_asked(a, &o) && is_in_part(a, i));
        }
    if (!named) return cli_fail(CLI_USAGE, "--only is '%s', which no case has in its name", a->only);
    return asked_for ? CLI_DONE : cli_fail(CLI_USAGE, "no case is left by --part, --quick and --only together");
}

static int run_cases(dpcr_context *context, const asked *a, outcome *outcomes, int *count) {
    for (int i = 0; i < planner_grid_count; i++) {
        planner_subject s;
        outcome both[2] = {0};
        for (int backward = 0; backward < 2; backward++)
            name_case(&planner_grid[i], backward, both[backward].name, sizeof both[backward].name);
        if (!is_in_part(a, i)) continue;
        if (!is_asked(a, &both[0]) && !is_asked(a, &both[1])) continue;
        if (cli_signal()) return cli_fail_stopped();
        int status = planner_subject_create(context, &planner_grid[i], a->common.seed, &s);
        for (int backward = 0; backward < 2 && !status; backward++) {
            if (!is_asked(a, &both[backward])) continue;
            outcomes[*count] = both[backward];
            status = run_direction(&s, a, backward, &outcomes[(*count)++]);
        }
        if (status) return status;
        planner_subject_destroy(&s);
    }
    return CLI_DONE;
}

// ---- what is told ----

static json_t *case_of(const outcome *o) {
    return json_pack("{ss ss sf ss sf sf sf sf sf sf ss}", "case", o->name, "chose", o->choice, "seconds",
                     o->choice_seconds, "best", o->best, "best_seconds", o->best_seconds, "loop_seconds",
                     o->loop_seconds, "regret", o->regret, "sequential_regret", o->sequential_regret, "parallel_gain",
                     o->parallel_gain, "planning_seconds", o->planning_seconds, "sentence", o->sentence);
}

static int tell(const asked *a, const outcome *o, int count, double calibration, double seconds, cli_result *r) {
    double *values = calloc(3 * (size_t)count + 1, sizeof *values);
    int wins = 0, loses = 0;
    if (!values) return cli_fail_memory("the figures");
    json_t *wrong_choices = json_array(), *all = json_array();
    double *sequential = values + count, *planning = sequential + count, total = 0;
    for (int i = 0; i < count; i++) {
        values[i] = o[i].regret, sequential[i] = o[i].sequential_regret, planning[i] = o[i].planning_seconds;
        total += o[i].planning_seconds;
        wins += o[i].parallel_gain >= 1.5, loses += o[i].parallel_gain < 1;
        cli_append(&all, case_of(&o[i]));
        if (o[i].regret > wrong) cli_append(&wrong_choices, case_of(&o[i]));
    }
    cli_set_int(r, "cases", count);
    cli_set_text(r, "mode", dpcr_planning_name(a->mode));
    cli_set_real(r, "median_regret", quantile(values, count, 0.5));
    cli_set_real(r, "p95_regret", quantile(values, count, 0.95));
    cli_set_real(r, "max_regret", quantile(values, count, 1));
    cli_set_real(r, "always_sequential_median", quantile(sequential, count, 0.5));
    cli_set_real(r, "always_sequential_max", quantile(sequential, count, 1));
    cli_set_int(r, "parallel_wins", wins);
    cli_set_int(r, "parallel_loses", loses);
    cli_set_real(r, "planning_median_seconds", quantile(planning, count, 0.5));
    cli_set_real(r, "planning_max_seconds", quantile(planning, count, 1));
    cli_set_real(r, "planning_seconds", total);
    cli_set_real(r, "calibration_seconds", calibration);
    cli_set_real(r, "seconds", seconds);
    cli_say(&a->common,
            "%d case%s, mode %s: regret median %.3g %%, p95 %.3g %%, max %.3g %%; always the loop: median %.3g %%, max "
            "%.3g %%; a parallel way wins by 1.5 in %d and loses in %d; planned in %.3g s (calibration %.3g s apart), "
            "all in %.3g s\n",
            count, cli_s(count), dpcr_planning_name(a->mode), 100 * quantile(values, count, 0.5),
            100 * quantile(values, count, 0.95), 100 * quantile(values, count, 1),
            100 * quantile(sequential, count, 0.5), 100 * quantile(sequential, count, 1), wins, loses, total,
            calibration, seconds);
    cli_set(r, "wrong_choices", wrong_choices);
    cli_set(r, "all", all);
    free(values);
    return CLI_DONE;
}

static int run(const asked *a) {
    int status = CLI_DONE, count = 0;
    const double start = cli_now();
    outcome *outcomes = calloc(2 * (size_t)planner_grid_count, sizeof *outcomes);
    if (!outcomes) return cli_fail_memory("the outcomes");
    dpcr_context *context = cli_context_create(&a->common, &status);
    if (context) {
        cli_machine_load(context, true);
        const double calibration = cli_now() - start;
        cli_result r = cli_result_create();
        status = run_cases(context, a, outcomes, &count);
        if (!status) status = tell(a, outcomes, count, calibration, cli_now() - start, &r);
        if (!status) status = cli_finish(&a->common, &r, CLI_DONE);
        cli_result_destroy(&r);
    }
    dpcr_context_destroy(context);
    free(outcomes);
    return status;
}

int cli_bench_planner(int argc, char **argv) {
    asked a = {.common = CLI_COMMON_DEFAULTS, .mode = DPCR_PLANNING_MEASURE, .part = 1, .parts = 1};
    const cli_syntax syntax = {
        .arguments = "",
        .doc =
            "Plans every chain of a grid, forward and backward, and times what was chosen against every alternative in "
            "interleaved rounds. Tells how much slower than the best way the choices were, how much slower it would "
            "have been to take the loop always, and which choices were wrong by more than 5 %.",
        .groups = {{&planner_argp, &a, "Planner:"}, {&cli_common_argp, &a.common, "Output and resources:"}},
        .most = 0};
    const char *positional[CLI_MAX_POSITIONAL];
    int status;
    if (!cli_parse(&syntax, argc, argv, positional, &status)) return status;
    if (a.budget > 0 && a.mode != DPCR_PLANNING_MEASURE)
        return cli_fail(CLI_USAGE, "--budget beside mode %s, which measures nothing; wanted --mode measure",
                        dpcr_planning_name(a.mode));
    if (a.budget == 0) a.budget = 0.2;
    status = refuse_nothing(&a);
    return status ? status : run(&a);
}
