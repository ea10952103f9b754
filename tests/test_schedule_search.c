// SPDX-License-Identifier: MIT
// Planned schedules: zb-h2 against the golden tables of another planner; best against every named one and against brute
// force; LayerPipe's periods, delays and versions.
#include <math.h>
#include <stdbool.h>

#include "sampled.h"
#include "schedules.h"

static dpcr_simulation planned(scratch *s, const dpcr_schedule_options *o) {
    dpcr_schedule schedule;
    assert_ok(s, dpcr_schedule_make(s->context, o, &schedule, &s->error));
    assert_ok(s, dpcr_schedule_validate(s->context, &schedule, o->memory_limit, &s->error));
    dpcr_simulation x = simulate(s, &schedule, o->costs);
    dpcr_schedule_free(s->context, &schedule);
    return x;
}

// The spans that Zero Bubble's own heuristic reports (golden tables sailzb_*), with its memory limit in activations.
static void zb_h2_is_no_longer_than_theirs(void **state) {
    static const struct {
        int64_t p, m;
        double f, i, w, hop, limit, span;
    } cases[] = {{2, 4, 1, 1, 1, 0, 2, 13},     {2, 4, 1, 1, 1, 0, 4, 12},   {4, 12, 10, 12, 8, 1, 8, 368},
                 {4, 12, 10, 12, 8, 1, 4, 414}, {4, 12, 1, 1, 1, 0, 8, 36},  {4, 12, 1, 1, 1, 0, 4, 39},
                 {4, 12, 5, 6, 4, 0, 5, 193},   {4, 12, 5, 6, 4, 0, 7, 183}, {4, 12, 5478, 5806, 3534, 200, 16, 178898},
                 {4, 4, 1, 1, 1, 0, 8, 15},     {4, 4, 1, 1, 1, 0, 4, 15},   {4, 8, 10, 12, 8, 1, 8, 256},
                 {4, 8, 10, 12, 8, 1, 4, 294},  {4, 8, 1, 1, 1, 0, 8, 24},   {4, 8, 1, 1, 1, 0, 4, 27}};
    scratch *s = *state;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k += 1 + 2 * TESTS_SANITIZED) {
        const dpcr_schedule_costs costs = costs_of(cases[k].f, cases[k].i, cases[k].w, cases[k].hop);
        dpcr_schedule_options o = options_of(DPCR_SCHEDULE_ZB_H2, cases[k].p, 0, cases[k].m);
        o.costs = &costs;
        o.memory_limit = cases[k].limit;
        dpcr_simulation x = planned(s, &o);
        if (x.span > cases[k].span) fail_msg("case %zu: span %g, theirs %g", k, x.span, cases[k].span);
        dpcr_simulation_free(s->context, &x);
    }
}

// Unit times: an isolated iteration gains nothing over zb-h1, the span is the work alone; 2p - 1 microbatches on their
// way.
static void zb_h2_at_unit_times(void **state) {
    scratch *s = *state;
    for (int64_t p = 2; p <= 5; p++) {
        const dpcr_schedule_options o = options_of(DPCR_SCHEDULE_ZB_H2, p, 0, 3 * p);
        dpcr_simulation x = planned(s, &o);
        assert_true(x.idle_in_span == 0 && x.idle == (double)(p - 1) && x.steady_state == x.work);
        assert_int_equal(x.peak_activations[0], 2 * p - 1);
        dpcr_simulation_free(s->context, &x);
    }
}

// ---- best ----

static double value_of(const dpcr_simulation *x, dpcr_objective objective) {
    return objective == DPCR_OBJECTIVE_STEADY ? x->steady_state : x->makespan;
}

static void best_is_never_worse(void **state) {
    scratch *s = *state;
    uint64_t seed = 11;
    int compared = 0, better = 0;
    for (int k = 0; k < (TESTS_SANITIZED ? 4 : 16); k++) {
        const dpcr_schedule_costs costs = costs_of(1 + (double)draw(&seed, 9), 1 + (double)draw(&seed, 9),
                                                   1 + (double)draw(&seed, 9), (double)draw(&seed, 3));
        dpcr_schedule_options o = options_of(DPCR_SCHEDULE_BEST, 1 + (int64_t)draw(&seed, 5),
                                             1 + (int64_t)draw(&seed, 3), 1 + (int64_t)draw(&seed, 9));
        o.costs = &costs;
        o.objective = (dpcr_objective)(k % 2);
        o.memory_limit = k % 3 ? 0 : (double)(o.chunks * (1 + (int64_t)draw(&seed, 6)));
        dpcr_schedule best;
        const dpcr_status status = dpcr_schedule_make(s->context, &o, &best, &s->error);
        if (status != DPCR_OK) assert_int_equal(status, DPCR_ERROR_UNSUPPORTED);
        dpcr_simulation x = {0};
        if (status == DPCR_OK) {
            assert_ok(s, dpcr_schedule_validate(s->context, &best, o.memory_limit, &s->error));
            x = simulate(s, &best, &costs);
            dpcr_schedule_free(s->context, &best);
        }
        for (int kind = 0; kind < DPCR_SCHEDULE_BEST; kind++) {
            dpcr_schedule named;
            o.kind = (dpcr_schedule_kind)kind;
            if (kind == DPCR_SCHEDULE_DUALPIPE || dpcr_schedule_semantics(o.kind) != DPCR_SYNCHRONOUS) continue;
            if (dpcr_schedule_make(s->context, &o, &named, NULL) != DPCR_OK) continue;
            if (dpcr_schedule_validate(s->context, &named, o.memory_limit, NULL) == DPCR_OK) {
                dpcr_simulation y = simulate(s, &named, &costs);
                assert_int_equal(status, DPCR_OK);  // where a named one fits, so does best
                if (value_of(&x, o.objective) > value_of(&y, o.objective) * (1 + 1e-12))
                    fail_msg("case %d: %s %g, best %g", k, dpcr_schedule_name(o.kind), value_of(&y, o.objective),
                             value_of(&x, o.objective));
                better += value_of(&x, o.objective) < value_of(&y, o.objective);
                compared++;
                dpcr_simulation_free(s->context, &y);
            }
            dpcr_schedule_free(s->context, &named);
        }
        dpcr_simulation_free(s->context, &x);
    }
    assert_true(compared > (TESTS_SANITIZED ? 4 : 40) && better > compared / 4);
}

// With delays: rows of the same delays and updates, never slower than the named ones.
static void best_keeps_delays(void **state) {
    static const dpcr_schedule_kind kinds[] = {DPCR_SCHEDULE_PIPEDREAM, DPCR_SCHEDULE_PIPEDREAM_2BW,
                                               DPCR_SCHEDULE_LAYERPIPE};
    scratch *s = *state;
    uint64_t seed = 2;
    int better = 0;
    for (int k = 0; k < (TESTS_SANITIZED ? 6 : 18); k++) {
        const dpcr_schedule_costs costs = costs_of(1 + (double)draw(&seed, 5), 1 + (double)draw(&seed, 5),
                                                   1 + (double)draw(&seed, 5), (double)(k % 2));
        dpcr_schedule_options o = options_of(kinds[k % 3], 2 + (int64_t)draw(&seed, 3), 1, 8 + (int64_t)draw(&seed, 8));
        dpcr_schedule named, best;
        o.costs = &costs;
        o.objective = (dpcr_objective)(k / 3 % 2);
        o.split_input = k % 2;
        assert_ok(s, dpcr_schedule_make(s->context, &o, &named, &s->error));
        o.kind = DPCR_SCHEDULE_BEST;
        o.semantics = named.semantics;
        assert_ok(s, dpcr_schedule_make(s->context, &o, &best, &s->error));
        assert_ok(s, dpcr_schedule_validate(s->context, &best, 0, &s->error));
        assert_int_equal(best.semantics, named.semantics);
        assert_int_equal(best.accumulate, named.accumulate);
        assert_memory_equal(best.delay, named.delay, (size_t)named.stages * sizeof *named.delay);
        dpcr_simulation x = simulate(s, &best, &costs), y = simulate(s, &named, &costs);
        assert_true(value_of(&x, o.objective) <= value_of(&y, o.objective) * (1 + 1e-12));
        better += value_of(&x, o.objective) < value_of(&y, o.objective);
        dpcr_simulation_free(s->context, &x);
        dpcr_simulation_free(s->context, &y);
        dpcr_schedule_free(s->context, &named);
        dpcr_schedule_free(s->context, &best);
    }
    assert_true(better > (TESTS_SANITIZED ? 0 : 4));
}

// Brute force, sharing nothing with the library: every order of F, I and W on each rank that a rank's own microbatches
// and memory allow, all combinations of ranks.
enum { MOST_WORDS = 512, MOST_LENGTH = 12 };

typedef struct words {
    int count;
    char text[MOST_WORDS][MOST_LENGTH + 1];
} words;

static void grow(words *w, char *text, int length, const int *done, int m, double held, double limit) {
    if (length == 3 * m) {
        assert_true(w->count < MOST_WORDS);
        memcpy(w->text[w->count++], text, (size_t)length);
        return;
    }
    for (int kind = 0; kind < 3; kind++) {
        int next[3] = {done[0], done[1], done[2]};
        const double after = held + (kind ? -0.5 : 1);
        if (next[kind]++ == (kind ? done[kind - 1] : m) || after > limit) continue;
        text[length] = "FIW"[kind];
        grow(w, text, length + 1, next, m, after, limit);
    }
}

static double brute_makespan(const words *w, const int *pick, int p, int m, const double *cost, double hop) {
    double ended[4][3][4], now[4] = {0}, most = 0;
    int at[4] = {0}, done[4][3] = {{0}};
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < p; r++)
            for (; at[r] < 3 * m; at[r]++, moved = true) {
                const char c = w->text[pick[r]][at[r]];
                const int kind = c == 'F' ? 0 : c == 'I' ? 1 : 2, i = done[r][kind];
                double ready = now[r];
                if (kind == 0 && r > 0) {
                    if (done[r - 1][0] <= i) break;
                    ready = fmax(ready, ended[r - 1][0][i] + hop);
                }
                if (kind == 1 && r < p - 1) {
                    if (done[r + 1][1] <= i) break;
                    ready = fmax(ready, ended[r + 1][1][i] + hop);
                }
                now[r] = ended[r][kind][i] = ready + cost[kind];
                done[r][kind]++;
            }
    }
    for (int r = 0; r < p; r++) {
        if (at[r] < 3 * m) return INFINITY;
        most = fmax(most, now[r]);
    }
    return most;
}

static double brute_best(int p, int m, const double *cost, double hop, double limit) {
    static words w;
    char text[MOST_LENGTH];
    w.count = 0;
    grow(&w, text, 0, (const int[3]){0}, m, 0, limit);
    int pick[4] = {0}, r = 0;
    double best = INFINITY;
    while (r < p && w.count > 0) {
        best = fmin(best, brute_makespan(&w, pick, p, m, cost, hop));
        for (r = 0; r < p && ++pick[r] == w.count; r++) pick[r] = 0;
    }
    return best;
}

static void best_is_optimal_on_small_cases(void **state) {
    scratch *s = *state;
    uint64_t seed = 5;
    for (int k = 0; k < (TESTS_SANITIZED ? 5 : 16); k++) {
        const int p = 1 + (int)draw(&seed, 3), m = 1 + (int)draw(&seed, p == 3 ? 3 : 4);
        const double cost[] = {1 + (double)draw(&seed, 6), 1 + (double)draw(&seed, 6), 1 + (double)draw(&seed, 6)};
        const double hop = (double)draw(&seed, 3), limit = 1 + 0.5 * (double)draw(&seed, 8);
        const dpcr_schedule_costs costs = costs_of(cost[0], cost[1], cost[2], hop);
        dpcr_schedule_options o = options_of(DPCR_SCHEDULE_BEST, p, 1, m);
        o.costs = &costs;
        o.memory_limit = limit;
        dpcr_simulation x = planned(s, &o);
        const double wanted = brute_best(p, m, cost, hop, limit);
        if (x.makespan != wanted)
            fail_msg("p %d m %d costs %g %g %g hop %g limit %g: %g, brute force %g", p, m, cost[0], cost[1], cost[2],
                     hop, limit, x.makespan, wanted);
        dpcr_simulation_free(s->context, &x);
    }
}

// Where F runs again before I but right after F, what a rank has left to do hangs on the order: the exact search, which
// does not know, must not take rows for better than those of the local search.
static void best_counts_what_runs_again(void **state) {
    scratch *s = *state;
    dpcr_schedule_costs costs = costs_of(8, 3, 6, 2);
    costs.recompute = 1;
    dpcr_schedule_options o = options_of(DPCR_SCHEDULE_BEST, 2, 2, 5);
    o.costs = &costs;
    dpcr_simulation x = planned(s, &o);
    if (x.makespan > 250) fail_msg("makespan %g", x.makespan);
    dpcr_simulation_free(s->context, &x);
}

// Few microbatches have no middle whose rate lasts.
static void no_steady_state_is_below_the_work(void **state) {
    scratch *s = *state;
    for (int semantics = DPCR_STASHED; semantics <= DPCR_DELAYED; semantics++)
        for (int64_t m = 1; m <= 9; m++) {
            dpcr_schedule_options o = options_of(DPCR_SCHEDULE_BEST, 3, 1, m);
            o.semantics = (dpcr_semantics)semantics;
            if (semantics == DPCR_DELAYED) o.stages = 5;
            dpcr_simulation x = planned(s, &o);
            assert_true(m < 4 ? isnan(x.steady_state) : x.steady_state >= x.work && x.utilisation <= 1 + 1e-12);
            dpcr_simulation_free(s->context, &x);
        }
}

// Where the only candidate cannot be, best says what its maker said; the limit only where there is one.
static void best_says_why(void **state) {
    static const struct {
        dpcr_semantics semantics;
        int64_t chunks, stages;
        double limit;
        int recompute;
        const char *wanted;
    } cases[] = {
        {DPCR_STASHED, 2, 0, 0, 0, "pipedream: 2 stages a rank; it is made for 1"},
        {DPCR_STASHED, 2, 0, 9, 0, "pipedream: 2 stages a rank; it is made for 1"},
        {DPCR_STASHED, 0, 0, 1, 0, "best: no rows keep to 1 activations a rank"},
        {DPCR_DELAYED, 0, 2, 3, 0, "a limit of activations is for stages on one rank each"},
        {DPCR_DELAYED, 0, 2, 0, 1, "recomputing wants them on one"},
        {DPCR_SYNCHRONOUS, 0, 0, 0.25, 0, "best: no rows keep to 0.25 activations a rank"},
    };
    scratch *s = *state;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        dpcr_schedule_costs costs = costs_of(1, 1, 1, 0);
        dpcr_schedule_options o = options_of(DPCR_SCHEDULE_BEST, 3, cases[k].chunks, 4);
        dpcr_schedule schedule;
        costs.recompute = cases[k].recompute;
        o.costs = &costs;
        o.semantics = cases[k].semantics, o.stages = cases[k].stages, o.memory_limit = cases[k].limit;
        assert_refused_at(s, dpcr_schedule_make(s->context, &o, &schedule, &s->error), DPCR_ERROR_UNSUPPORTED,
                          cases[k].wanted, "case", (int)k);
    }
}

// ---- LayerPipe ----

static double period(scratch *s, int64_t p, int half, const dpcr_schedule_costs *costs, int64_t stages) {
    dpcr_schedule_options o = options_of(DPCR_SCHEDULE_LAYERPIPE, p, 0, 400);
    o.stages = stages;
    o.split_input = half;
    o.costs = costs;
    dpcr_simulation x = planned(s, &o);
    const double result = x.steady_state / 400;
    dpcr_simulation_free(s->context, &x);
    return result;
}

// Eight equal layers, the first without I: tasks packed, I halved (section 10 of the reference, its third column and
// more).
static void layerpipe_periods(void **state) {
    static const struct {
        int64_t p;
        double task, half;
    } rows[] = {{2, 12, 11.5}, {3, 8, 8}, {4, 6, 6}, {5, 5, 5},    {6, 4, 4},
                {7, 4, 3.5},   {8, 3, 3}, {9, 3, 3}, {10, 3, 2.5}, {12, 2, 2}};
    const double f[] = {1, 1, 1, 1, 1, 1, 1, 1}, i[] = {0, 1, 1, 1, 1, 1, 1, 1};
    const dpcr_schedule_costs costs = {
        .size = sizeof costs, .stage_forward = f, .stage_input = i, .stage_weight = f, .forward = 1};
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        const double task = period(*state, rows[k].p, 0, &costs, 8), half = period(*state, rows[k].p, 1, &costs, 8);
        if (fabs(task - rows[k].task) > 1e-9 || fabs(half - rows[k].half) > 1e-9)
            fail_msg("P = %d: %g and %g, wanted %g and %g", (int)rows[k].p, task, half, rows[k].task, rows[k].half);
    }
}

// A delay is what the schedule's own order needs: one less deadlocks or is late, and versions are delay + 1.
static void layerpipe_delays(void **state) {
    scratch *s = *state;
    for (int64_t p = 2; p <= 9; p++) {
        dpcr_schedule_options o = options_of(DPCR_SCHEDULE_LAYERPIPE, p, 1, 60);
        o.split_input = (int)(p % 2);
        dpcr_schedule schedule;
        assert_ok(s, dpcr_schedule_make(s->context, &o, &schedule, &s->error));
        dpcr_simulation x = simulate(s, &schedule, NULL);
        const double before = x.steady_state;
        for (int64_t r = 0; r < p; r++) assert_true(x.weight_versions[r] <= 1 + schedule.delay[0]);
        assert_true(schedule.delay[0] >= schedule.delay[p - 1] && schedule.delay[0] > 0);
        assert_true(schedule.delay[0] <= 2 * (p - 1) + 2);
        dpcr_simulation_free(s->context, &x);
        schedule.delay[0]--;
        dpcr_status status = dpcr_schedule_simulate(s->context, &schedule, NULL, &x, &s->error);
        if (status == DPCR_OK) assert_true(x.steady_state > before);
        dpcr_simulation_free(s->context, &x);
        dpcr_schedule_free(s->context, &schedule);
    }
}

typedef struct stay {
    double begin, end, until_i;  // of a copy on a rank; until_i: its last F or I, negative: it has neither
    int64_t read;                // the version that its tasks take
} stay;

// What rank r holds of each microbatch of a stage: [m]. False: it runs none of its tasks.
static bool find_stays(const dpcr_schedule *s, const dpcr_simulation *x, int64_t r, int64_t stage, stay *stays) {
    bool here = false;
    for (int64_t i = 0; i < s->microbatches; i++) {
        stays[i] = (stay){.end = -1, .until_i = -1, .read = i > s->delay[stage] ? i - s->delay[stage] : 0};
        double f_begin = -1, f_end = -1;
        for (int64_t q = 0; q < s->ranks; q++)
            for (int64_t n = s->first[q]; n < s->first[q + 1]; n++) {
                const dpcr_action *a = &s->actions[n];
                if (a->stage != stage || a->microbatch != i) continue;
                if (a->task == DPCR_TASK_F && q == r) f_begin = x->start[n];
                if (a->task == DPCR_TASK_F) f_end = x->end[n];
                if (q != r) continue;
                here = true;
                stays[i].end = fmax(stays[i].end, x->end[n]);
                if (a->task != DPCR_TASK_W) stays[i].until_i = fmax(stays[i].until_i, x->end[n]);
            }
        stays[i].begin = f_begin < 0 ? f_end : f_begin;
    }
    return here;
}

static int64_t updates_before(const dpcr_schedule *s, const dpcr_simulation *x, int64_t stage, double when) {
    int64_t count = 0;
    for (int64_t n = 0; n < s->first[s->ranks]; n++)
        count += s->actions[n].stage == stage && s->actions[n].task == DPCR_TASK_W && x->end[n] < when;
    return count;
}

typedef struct peaks {
    int64_t until_i, until_w, versions;
} peaks;

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// The most of one stage's copies and versions at once: when a copy begins, and when one ends.
static peaks peaks_of(const dpcr_schedule *s, const dpcr_simulation *x, int64_t stage, const stay *stays) {
    peaks most = {.versions = 1};
    for (int64_t i = 0; i < s->microbatches; i++) {
        int64_t until_i = 0, until_w = 0, oldest = INT64_MAX;
        for (int64_t j = 0; j < s->microbatches; j++) {
            const bool begun = stays[j].begin <= stays[i].begin;
            until_i += begun && stays[j].until_i > stays[i].begin;
            until_w += begun && stays[j].end > stays[i].begin;
            if (stays[j].end >= stays[i].end && stays[j].read < oldest) oldest = stays[j].read;
        }
        most.until_i = larger(most.until_i, until_i);
        most.until_w = larger(most.until_w, until_w);
        most.versions = larger(most.versions, updates_before(s, x, stage, stays[i].end) - oldest + 1);
    }
    return most;
}

enum { COPIED_MICROBATCHES = 14 };

// Returns how many stages have nothing but W on the rank.
static int64_t check_memory(const dpcr_schedule *s, const dpcr_simulation *x, const dpcr_schedule_costs *costs,
                            int64_t r) {
    stay stays[COPIED_MICROBATCHES];
    peaks sum = {0};
    double bytes = 0;
    int64_t away = 0;
    for (int64_t stage = 0; stage < s->stages; stage++) {
        if (!find_stays(s, x, r, stage, stays)) continue;
        const peaks most = peaks_of(s, x, stage, stays);
        away += stays[0].until_i < 0;
        sum.until_i += most.until_i;
        sum.until_w += most.until_w;
        sum.versions = larger(sum.versions, most.versions);
        bytes += (double)most.until_w * costs->activation_bytes[stage];
        bytes += (double)most.versions * costs->parameter_bytes[stage];
    }
    if (x->peak_activations[r] != sum.until_i || x->peak_operands[r] != sum.until_w ||
        x->peak_memory[r] != (double)sum.until_w || x->weight_versions[r] != sum.versions || x->peak_bytes[r] != bytes)
        fail_msg("%d ranks, %d stages, rank %d: %d, %d, %g, %d, %g; wanted %d, %d, %d, %d, %g", (int)s->ranks,
                 (int)s->stages, (int)r, (int)x->peak_activations[r], (int)x->peak_operands[r], x->peak_memory[r],
                 (int)x->weight_versions[r], x->peak_bytes[r], (int)sum.until_i, (int)sum.until_w, (int)sum.until_w,
                 (int)sum.versions, bytes);
    return away;
}

// What stands in the executor's memory and its messages: each rank that runs a task of a stage gets what F keeps when F
// ends, and every version of the weights as it is made, and frees what its own tasks want no more.
static void layerpipe_memory(void **state) {
    static const double bytes[] = {10, 20, 30, 40, 50, 60}, weights[] = {1e3, 2e3, 3e3, 4e3, 5e3, 6e3};
    scratch *s = *state;
    uint64_t seed = 8;
    int64_t away = 0;
    for (int k = 0; k < 40; k++) {
        dpcr_schedule_costs costs = costs_of(1 + (double)draw(&seed, 4), 1 + (double)draw(&seed, 4),
                                             1 + (double)draw(&seed, 4), (double)draw(&seed, 2));
        costs.activation_bytes = bytes, costs.parameter_bytes = weights;
        dpcr_schedule_options o =
            options_of(DPCR_SCHEDULE_LAYERPIPE, 1 + (int64_t)draw(&seed, 5), 0, COPIED_MICROBATCHES);
        o.stages = 1 + (int64_t)draw(&seed, 6);
        o.split_input = k % 2;
        o.costs = &costs;
        dpcr_schedule schedule;
        assert_ok(s, dpcr_schedule_make(s->context, &o, &schedule, &s->error));
        dpcr_simulation x = simulate(s, &schedule, &costs);
        for (int64_t r = 0; r < schedule.ranks; r++) away += check_memory(&schedule, &x, &costs, r);
        dpcr_simulation_free(s->context, &x);
        dpcr_schedule_free(s->context, &schedule);
    }
    assert_true(away > 20);
}

static double some_time(uint64_t *seed) { return draw(seed, 3) ? (double)draw(seed, 4) : 0.25; }

// Tasks that take no time, such as W of layers without parameters, and messages of any length and bytes.
static void layerpipe_runs_with_tasks_of_no_time(void **state) {
    scratch *s = *state;
    uint64_t seed = 3;
    for (int k = 0; k < 400; k++) {
        double f[12], i[12], w[12], bytes[12];
        for (int l = 0; l < 12; l++) {
            f[l] = some_time(&seed), i[l] = some_time(&seed), w[l] = some_time(&seed);
            bytes[l] = 40 * some_time(&seed);
        }
        f[0] = 1;  // a period
        const dpcr_schedule_costs costs = {.size = sizeof costs,
                                           .forward = 1,
                                           .stage_forward = f,
                                           .stage_input = i,
                                           .stage_weight = w,
                                           .hop = (double)draw(&seed, 3),
                                           .bandwidth = (double)draw(&seed, 3),
                                           .activation_bytes = bytes};
        dpcr_schedule_options o = options_of(DPCR_SCHEDULE_LAYERPIPE, 1 + (int64_t)draw(&seed, 5), 0, 0);
        o.stages = 1 + (int64_t)draw(&seed, 12);
        o.microbatches = 1 + (int64_t)draw(&seed, 9);
        o.split_input = (int)draw(&seed, 2);
        o.costs = &costs;
        dpcr_simulation x = planned(s, &o);
        dpcr_simulation_free(s->context, &x);
    }
}

// Rows are written in no more steps than they have actions, and what takes millions of periods is refused.
static void layerpipe_bounds_its_delays(void **state) {
    scratch *s = *state;
    dpcr_schedule_costs costs = costs_of(1, 1, 1, 1e6);
    dpcr_schedule_options o = options_of(DPCR_SCHEDULE_LAYERPIPE, 3, 2, 5);
    o.costs = &costs;
    dpcr_simulation x = planned(s, &o);
    assert_true(x.staleness[0] > 600000);
    dpcr_simulation_free(s->context, &x);
    static const double hops[] = {1e8, 1e12, 1e100};
    for (int k = 0; k < 6; k++) {
        dpcr_schedule schedule;
        costs.hop = k < 3 ? hops[k] : 0;
        costs.update = k < 3 ? 0 : hops[k - 3];
        assert_refused_at(s, dpcr_schedule_make(s->context, &o, &schedule, &s->error), DPCR_ERROR_UNSUPPORTED,
                          "too long for a period of 6", __FILE__, __LINE__);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)
        TEST(zb_h2_is_no_longer_than_theirs),
        TEST(zb_h2_at_unit_times),
        TEST(best_is_never_worse),
        TEST(best_keeps_delays),
        TEST(best_is_optimal_on_small_cases),
        TEST(best_counts_what_runs_again),
        TEST(no_steady_state_is_below_the_work),
        TEST(best_says_why),
        TEST(layerpipe_periods),
        TEST(layerpipe_delays),
        TEST(layerpipe_memory),
        TEST(layerpipe_runs_with_tasks_of_no_time),
        TEST(layerpipe_bounds_its_delays)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
