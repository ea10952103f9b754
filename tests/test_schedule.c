// SPDX-License-Identifier: MIT
// Named schedules against the golden tables, cell by cell; figures against the golden summary and the bubble formulas;
// text in and out; refusals; memory that runs out.
#include <math.h>
#include <stdbool.h>

#include "pipe/pipe.h"
#include "schedules.h"

typedef struct golden {
    char name[80];
    double f, i, w, hop, makespan, atomic, work, idle, span, idle_in_span;
    char at_i[128], at_w[128];
} golden;

// A line of SUMMARY.csv; false at its end.
static bool next_golden(char **line, golden *g) {
    char *fields[16], *end = *line ? strchr(*line, '\n') : NULL;
    int count = 0;
    if (!end) return false;
    *end = 0;
    for (char *field = *line; field && count < 16; count++) {
        fields[count] = field;
        field = strchr(field, ',');
        if (field) *field++ = 0;
    }
    assert_int_equal(count, 15);
    *g = (golden){.f = atof(fields[1]), .i = atof(fields[2]), .w = atof(fields[3]), .hop = atof(fields[4])};
    g->makespan = atof(fields[6]);
    g->atomic = fields[7][0] ? atof(fields[7]) : -1;
    g->work = atof(fields[8]);
    g->idle = atof(fields[9]);
    g->span = atof(fields[10]);
    g->idle_in_span = atof(fields[11]);
    snprintf(g->name, sizeof g->name, "%s", fields[0]);
    snprintf(g->at_i, sizeof g->at_i, "%s", fields[12]);
    snprintf(g->at_w, sizeof g->at_w, "%s", fields[13]);
    *line = end + 1;
    return true;
}

// The rule behind a table's name; false: a solver made it.
static bool kind_of(const char *name, dpcr_schedule_kind *kind) {
    static const struct {
        const char *prefix;
        dpcr_schedule_kind kind;
    } rules[] = {{"gpipe_", DPCR_SCHEDULE_GPIPE},
                 {"1f1b_", DPCR_SCHEDULE_1F1B},
                 {"int1f1b_", DPCR_SCHEDULE_INTERLEAVED_1F1B},
                 {"zbh1_", DPCR_SCHEDULE_ZB_H1},
                 {"intzb1p_", DPCR_SCHEDULE_INTERLEAVED_ZB},
                 {"zbv_", DPCR_SCHEDULE_ZB_V},
                 {"dualpipev_", DPCR_SCHEDULE_DUALPIPEV}};
    for (size_t k = 0; k < sizeof rules / sizeof rules[0]; k++) {
        if (strncmp(name, rules[k].prefix, strlen(rules[k].prefix)) != 0) continue;
        *kind = rules[k].kind;
        return true;
    }
    return false;
}

static int64_t number_after(const char *name, const char *word) {
    const char *at = strstr(name, word);
    return at ? atoll(at + strlen(word)) : 0;
}

static void assert_peaks(const int64_t *got, int64_t count, const char *wanted) {
    char text[256] = "";
    size_t used = 0;
    for (int64_t r = 0; r < count; r++)
        used += (size_t)snprintf(text + used, sizeof text - used, r ? " %lld" : "%lld", (long long)got[r]);
    assert_string_equal(text, wanted);
}

static void assert_figures(scratch *s, const dpcr_schedule *schedule, const golden *g) {
    dpcr_schedule_costs costs = costs_of(g->f, g->i, g->w, g->hop);
    dpcr_simulation x = simulate(s, schedule, &costs);
    if (x.makespan != g->makespan) fail_msg("%s: makespan %g, wanted %g", g->name, x.makespan, g->makespan);
    assert_true(x.idle == g->idle && x.span == g->span && x.idle_in_span == g->idle_in_span &&
                x.rank_work[0] == g->work);
    assert_peaks(x.peak_activations, x.ranks, g->at_i);
    assert_peaks(x.peak_operands, x.ranks, g->at_w);
    dpcr_simulation_free(s->context, &x);
    if (g->atomic < 0) return;
    costs.atomic_pairs = 1;
    x = simulate(s, schedule, &costs);
    assert_true(x.makespan == g->atomic);
    dpcr_simulation_free(s->context, &x);
}

// A33 and A35.
static void golden_tables_and_figures(void **state) {
    scratch *s = *state;
    size_t bytes;
    char *summary = golden_text("SUMMARY", &bytes), *line = strchr(summary, '\n') + 1;
    golden g;
    int made = 0, read = 0;
    while (next_golden(&line, &g)) {
        char *text = golden_text(g.name, &bytes), *again;
        dpcr_schedule schedule;
        dpcr_schedule_kind kind;
        assert_ok(s, dpcr_schedule_read(s->context, text, bytes, DPCR_NOTATION_NEW, NULL, &schedule, &s->error));
        assert_figures(s, &schedule, &g);
        if (kind_of(g.name, &kind)) {
            dpcr_schedule_free(s->context, &schedule);
            schedule =
                make(s, kind, number_after(g.name, "_p"), number_after(g.name, "_v"), number_after(g.name, "_m"));
            made++;
        }
        assert_ok(s, dpcr_schedule_write(s->context, &schedule, DPCR_NOTATION_NEW, &again, &bytes, &s->error));
        assert_string_equal(again, text);
        assert_figures(s, &schedule, &g);
        dpcr_schedule_text_free(s->context, again);
        dpcr_schedule_free(s->context, &schedule);
        free(text);
        read++;
    }
    assert_int_equal(made, 25);
    assert_int_equal(read, 41);
    free(summary);
}

// PyTorch's own lowering of interleaved ZB-1P on two ranks, in its older notation.
static void lowering_is_torchs(void **state) {
    scratch *s = *state;
    size_t bytes;
    char *comms = golden_text("torch_zb1p_2rank_2stagep_comms", &bytes), *text;
    dpcr_schedule schedule = make(s, DPCR_SCHEDULE_INTERLEAVED_ZB, 2, 2, 8), lowered, compute;
    assert_ok(s, dpcr_schedule_lower(s->context, &schedule, &lowered, &s->error));
    assert_ok(s, dpcr_schedule_validate(s->context, &lowered, 0, &s->error));
    assert_ok(s, dpcr_schedule_write(s->context, &lowered, DPCR_NOTATION_OLD, &text, &bytes, &s->error));
    if (comms[strlen(comms) - 1] != '\n') text[--bytes] = 0;
    assert_string_equal(text, comms);
    dpcr_schedule_text_free(s->context, text);
    free(comms);
    comms = golden_text("torch_zb1p_2rank_2stagep_compute", &bytes);
    assert_ok(s, dpcr_schedule_read(s->context, comms, bytes, DPCR_NOTATION_OLD, NULL, &compute, &s->error));
    assert_int_equal(compute.first[2], schedule.first[2]);
    assert_memory_equal(compute.actions, schedule.actions, (size_t)compute.first[2] * sizeof *compute.actions);
    dpcr_schedule_free(s->context, &compute);
    dpcr_schedule_free(s->context, &lowered);
    dpcr_schedule_free(s->context, &schedule);
    free(comms);
}

static void assert_lowers(scratch *s, const char *from, const char *to) {
    dpcr_schedule schedule, lowered;
    char *text;
    size_t bytes;
    assert_ok(s, dpcr_schedule_read(s->context, from, strlen(from), DPCR_NOTATION_NEW, NULL, &schedule, &s->error));
    assert_ok(s, dpcr_schedule_lower(s->context, &schedule, &lowered, &s->error));
    assert_ok(s, dpcr_schedule_write(s->context, &lowered, DPCR_NOTATION_NEW, &text, &bytes, &s->error));
    assert_string_equal(text, to);
    dpcr_schedule_text_free(s->context, text);
    dpcr_schedule_free(s->context, &lowered);
    dpcr_schedule_free(s->context, &schedule);
}

static void lowering_by_hand(void **state) {
    assert_lowers(*state, "0F0,0B0\n1F0,1B0\n", "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
    assert_lowers(*state, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
                  "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                  "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
    assert_lowers(*state, "0F0,0I0,0W0\n1F0,1I0,1W0\n", "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
}

// (v, m, p) that must generate, validate, lower and run, for every interleaved schedule.
static void grid_of_sizes(void **state) {
    static const int64_t grid[][3] = {{2, 2, 2},   {2, 4, 4},    {2, 8, 2},  {2, 8, 4},  {2, 8, 8},  {4, 4, 4},
                                      {4, 8, 4},   {4, 8, 8},    {4, 16, 4}, {4, 32, 4}, {4, 64, 4}, {4, 16, 16},
                                      {4, 32, 32}, {4, 128, 64}, {3, 2, 2},  {3, 8, 2},  {3, 12, 4}, {4, 6, 3},
                                      {4, 10, 5},  {2, 3, 4},    {2, 10, 4}, {2, 15, 4}};
    scratch *s = *state;
    for (size_t k = 0; k < sizeof grid / sizeof grid[0]; k++)
        for (int zb = 0; zb < 2; zb++) {
            dpcr_schedule schedule = make(s, zb ? DPCR_SCHEDULE_INTERLEAVED_ZB : DPCR_SCHEDULE_INTERLEAVED_1F1B,
                                          grid[k][2], grid[k][0], grid[k][1]),
                          lowered;
            assert_ok(s, dpcr_schedule_lower(s->context, &schedule, &lowered, &s->error));
            assert_ok(s, dpcr_schedule_validate(s->context, &lowered, 0, &s->error));
            dpcr_schedule_free(s->context, &lowered);
            dpcr_schedule_free(s->context, &schedule);
        }
}

// Random sizes: what a generator takes is valid, runs and lowers; what it does not take it refuses in words.
static void every_schedule_is_valid(void **state) {
    scratch *s = *state;
    uint64_t seed = 7;
    int made[DPCR_SCHEDULE_COUNT] = {0};
    for (int k = 0; k < 600; k++) {
        dpcr_schedule_options o = options_of((dpcr_schedule_kind)(k % DPCR_SCHEDULE_COUNT), 1 + (int64_t)draw(&seed, 6),
                                             (int64_t)draw(&seed, 4), 1 + (int64_t)draw(&seed, 12));
        if (o.kind == DPCR_SCHEDULE_DUALPIPE) o.microbatches = 2 * o.ranks + (int64_t)draw(&seed, 6);
        dpcr_schedule schedule, lowered;
        const dpcr_status status = dpcr_schedule_make(s->context, &o, &schedule, &s->error);
        if (status != DPCR_OK) {
            assert_int_equal(status, DPCR_ERROR_UNSUPPORTED);
            assert_non_null(strstr(s->error.text, dpcr_schedule_name(o.kind)));
            continue;
        }
        made[o.kind]++;
        assert_ok(s, dpcr_schedule_validate(s->context, &schedule, 0, &s->error));
        if (schedule.semantics != DPCR_DELAYED) {
            assert_ok(s, dpcr_schedule_lower(s->context, &schedule, &lowered, &s->error));
            assert_ok(s, dpcr_schedule_validate(s->context, &lowered, 0, &s->error));
            dpcr_schedule_free(s->context, &lowered);
        }
        dpcr_simulation x = simulate(s, &schedule, NULL);
        assert_true(x.makespan >= x.work && x.span <= x.makespan);
        dpcr_simulation_free(s->context, &x);
        dpcr_schedule_free(s->context, &schedule);
    }
    for (int k = 0; k < DPCR_SCHEDULE_COUNT; k++) assert_true(made[k] > 3);
}

static double makespan(scratch *s, dpcr_schedule_kind kind, int64_t p, int64_t m, const dpcr_schedule_costs *costs) {
    dpcr_schedule schedule = make(s, kind, p, 0, m);
    dpcr_simulation x = simulate(s, &schedule, costs);
    const double result = x.makespan;
    dpcr_simulation_free(s->context, &x);
    dpcr_schedule_free(s->context, &schedule);
    return result;
}

// docs/math/schedules.md: idle of one isolated iteration, exactly.
static void bubble_formulas(void **state) {
    scratch *s = *state;
    uint64_t seed = 3;
    for (int k = 0; k < 400; k++) {
        const int64_t p = 1 + (int64_t)draw(&seed, 7), m = p + (int64_t)draw(&seed, 12);
        const double f = 1 + (double)draw(&seed, 9), i = 1 + (double)draw(&seed, 9), w = 1 + (double)draw(&seed, 9);
        const dpcr_schedule_costs costs = costs_of(f, i, w, 0);
        const double work = (double)m * (f + i + w), hops = (double)(p - 1);
        assert_true(makespan(s, DPCR_SCHEDULE_GPIPE, p, m, &costs) == work + hops * (f + i + w));
        assert_true(makespan(s, DPCR_SCHEDULE_1F1B, p, m, &costs) == work + hops * (f + i + w));
        assert_true(makespan(s, DPCR_SCHEDULE_ZB_H1, p, m, &costs) == work + hops * fmax(f + i - w, fmax(f, i)));
    }
}

// GPipe's every B waits behind other forwards; a rank alone by 1F1B has each B right behind its F, which then is there.
// Rank 0 ends last: its stage's update counts.
static void recomputing_and_updates_take_their_time(void **state) {
    scratch *s = *state;
    for (int64_t p = 1; p <= 5; p++)
        for (int64_t m = 2; m <= 6; m++) {
            dpcr_schedule_costs costs = costs_of(2, 3, 4, 0);
            const double steps = (double)(m + p - 1), updates[] = {7, 1, 0, 2, 3};
            costs.recompute = 1;
            assert_true(makespan(s, DPCR_SCHEDULE_GPIPE, p, m, &costs) == steps * (2 + 2 + 3 + 4));
            assert_true(makespan(s, DPCR_SCHEDULE_1F1B, 1, m, &costs) == (double)m * 9);
            costs.recompute = 0;
            costs.stage_update = updates;
            assert_true(makespan(s, DPCR_SCHEDULE_GPIPE, p, m, &costs) == steps * 9 + 7);
            assert_true(makespan(s, DPCR_SCHEDULE_PIPEDREAM, 1, m, &costs) == (double)m * (9 + 7));
        }
}

// Unequal times and hops: section 4 of the reference.
static void unequal_times_and_hops(void **state) {
    static const struct {
        double f, i, w, hop, wanted[6];  // gpipe, 1f1b, zb-h1, zb-v, interleaved, interleaved zb
    } rows[] = {{1, 1, 1, 0, {33, 33, 27, 51, 57, 51}},         {1, 1, 1, 1, {39, 49, 41, 65, 71, 72}},
                {10, 12, 8, 0, {330, 330, 282, 516, 570, 522}}, {10, 12, 8, 1, {336, 346, 294, 529, 584, 538}},
                {5, 6, 4, 0, {165, 165, 141, 258, 285, 261}},   {1, 2, 1, 0, {44, 44, 38, 70, 76, 70}},
                {2, 2, 1, 0, {55, 55, 49, 86, 95, 89}},         {1, 1, 2, 0, {44, 44, 35, 69, 76, 67}}};
    static const dpcr_schedule_kind kinds[] = {DPCR_SCHEDULE_GPIPE,
                                               DPCR_SCHEDULE_1F1B,
                                               DPCR_SCHEDULE_ZB_H1,
                                               DPCR_SCHEDULE_ZB_V,
                                               DPCR_SCHEDULE_INTERLEAVED_1F1B,
                                               DPCR_SCHEDULE_INTERLEAVED_ZB};
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        const dpcr_schedule_costs costs = costs_of(rows[k].f, rows[k].i, rows[k].w, rows[k].hop);
        for (int j = 0; j < 6; j++) assert_true(makespan(*state, kinds[j], 4, 8, &costs) == rows[k].wanted[j]);
    }
}

// Atomic pairs: (R/2-1)(F&B + B - 3W) of the paper at unit costs, 2(p-1) of a V of p ranks.
static void dualpipe_bubble(void **state) {
    scratch *s = *state;
    dpcr_schedule_costs costs = costs_of(1, 1, 1, 0);
    costs.atomic_pairs = 1;
    for (int64_t p = 1; p <= 6; p++)
        for (int64_t m = 2 * p; m < 2 * p + 9; m++) {
            assert_true(makespan(s, DPCR_SCHEDULE_DUALPIPEV, p, m, &costs) == (double)(6 * m + 2 * (p - 1)));
            assert_true(makespan(s, DPCR_SCHEDULE_DUALPIPE, 2 * p, 2 * m, &costs) == (double)(6 * m + 2 * (p - 1)));
        }
}

// PipeDream: stage s keeps p-s versions and is p-1-s updates late; 2BW keeps 2 and is 1 late; both are busy all the
// time.
static void asynchronous_versions(void **state) {
    scratch *s = *state;
    for (int64_t p = 2; p <= 6; p++) {
        dpcr_schedule a = make(s, DPCR_SCHEDULE_PIPEDREAM, p, 0, 40),
                      b = make(s, DPCR_SCHEDULE_PIPEDREAM_2BW, p, 0, 40);
        dpcr_simulation x = simulate(s, &a, NULL), y = simulate(s, &b, NULL);
        for (int64_t r = 0; r < p; r++) {
            assert_int_equal(x.weight_versions[r], p - r);
            assert_int_equal(x.staleness[r], p - 1 - r);
            assert_int_equal(x.peak_activations[r], p - r);
            assert_int_equal(y.weight_versions[r], 2);
            assert_int_equal(y.staleness[r], 1);
        }
        assert_true(x.steady_state == 3 * 40 && y.steady_state == 3 * 40 && x.utilisation == 1);
        dpcr_simulation_free(s->context, &x);
        dpcr_simulation_free(s->context, &y);
        dpcr_schedule_free(s->context, &a);
        dpcr_schedule_free(s->context, &b);
    }
}

static double steady(scratch *s, dpcr_schedule_kind kind, int64_t p, int64_t m) {
    dpcr_schedule schedule = make(s, kind, p, 0, m);
    dpcr_simulation x = simulate(s, &schedule, NULL);
    const double result = x.steady_state;
    dpcr_simulation_free(s->context, &x);
    dpcr_schedule_free(s->context, &schedule);
    return result;
}

// Without a barrier the period is the longest span: zero-bubble schedules reach the work alone.
static void steady_state(void **state) {
    assert_true(steady(*state, DPCR_SCHEDULE_1F1B, 4, 12) == 45);
    assert_true(steady(*state, DPCR_SCHEDULE_ZB_H1, 4, 12) == 39);
    assert_true(steady(*state, DPCR_SCHEDULE_ZB_V, 4, 12) == 72);
}

// An estimate, but never more than what filling and draining take as well.
static void steady_state_is_within_the_makespan(void **state) {
    scratch *s = *state;
    for (int64_t p = 1; p <= 4; p++)
        for (int64_t m = 4; m <= 9; m++)
            for (int k = 0; k < 8; k++) {
                dpcr_schedule schedule = make(s, DPCR_SCHEDULE_PIPEDREAM, p, 0, m);
                const dpcr_schedule_costs costs = costs_of(k & 1 ? 2 : 0, 2, k & 2 ? 4 : 1, k & 4 ? 4 : 0);
                dpcr_simulation x = simulate(s, &schedule, &costs);
                assert_true(x.steady_state >= x.work && x.steady_state <= x.makespan && x.utilisation <= 1);
                if (p == 2 && m == 4 && k == 6) assert_true(x.makespan == 46 && x.steady_state == 46);
                dpcr_simulation_free(s->context, &x);
                dpcr_schedule_free(s->context, &schedule);
            }
}

// The rate of a stage that is updated every a microbatches shows over whole updates alone.
static void steady_state_of_rare_updates(void **state) {
    scratch *s = *state;
    dpcr_schedule_costs costs = costs_of(1, 1, 1, 0);
    costs.update = 10;
    for (int64_t p = 1; p <= 4; p++)
        for (int64_t a = p; a <= p + 3; a++)
            for (int64_t m = a < 4 ? 4 : a; m <= 40; m++) {
                dpcr_schedule_options o = options_of(DPCR_SCHEDULE_PIPEDREAM_2BW, p, 0, m);
                dpcr_schedule schedule;
                o.accumulate = a;
                assert_ok(s, dpcr_schedule_make(s->context, &o, &schedule, &s->error));
                dpcr_simulation x = simulate(s, &schedule, &costs);
                const double wanted = (double)(3 * m) + 10 * (double)m / (double)a;
                if (fabs(x.steady_state - wanted) > 1e-9 * wanted)
                    fail_msg("p %d a %d m %d: %g, wanted %g", (int)p, (int)a, (int)m, x.steady_state, wanted);
                dpcr_simulation_free(s->context, &x);
                dpcr_schedule_free(s->context, &schedule);
            }
}

static void updates_and_all_reduce(void **state) {
    scratch *s = *state;
    const double bytes[] = {1000, 1000, 1000, 1000};
    dpcr_schedule_costs costs = costs_of(1, 1, 1, 0);
    costs.update = 5;
    assert_true(makespan(s, DPCR_SCHEDULE_1F1B, 4, 8, &costs) == 33 + 5);
    costs.replicas = 2;
    costs.bandwidth = 100;
    costs.parameter_bytes = bytes;
    // 2 (n-1)/n 1000 bytes at 100 a unit: 10, after the last W of the first stage; messages of one byte take 0.01.
    assert_true(fabs(makespan(s, DPCR_SCHEDULE_GPIPE, 4, 8, &costs) - (33 + 6 * 0.01 + 10 + 5)) < 1e-9);
}

// The error of the last stage goes on at 4, its update takes until 9; the first stage's B until 6, its update until 11.
static void errors_do_not_wait_for_updates(void **state) {
    dpcr_schedule_costs costs = costs_of(1, 1, 1, 0);
    costs.update = 5;
    assert_true(makespan(*state, DPCR_SCHEDULE_PIPEDREAM, 2, 1, &costs) == 11);
    assert_true(makespan(*state, DPCR_SCHEDULE_PIPEDREAM_2BW, 3, 3, &costs) == 15 + 5);  // 1f1b's, and an update
}

// A rank's span ends with its updates, as its work does.
static void spans_hold_the_updates(void **state) {
    scratch *s = *state;
    dpcr_schedule_costs costs = costs_of(1, 1, 1, 0);
    costs.update = 10;
    for (int kind = 0; kind < DPCR_SCHEDULE_COUNT; kind++) {
        dpcr_schedule schedule = make(s, (dpcr_schedule_kind)kind, 2, 0, 4);
        dpcr_simulation x = simulate(s, &schedule, &costs);
        assert_true(x.idle_in_span >= 0 && x.span >= x.work && x.span <= x.makespan);
        if (kind == DPCR_SCHEDULE_1F1B) assert_true(x.span == 15 + 10 && x.idle_in_span == 3);
        dpcr_simulation_free(s->context, &x);
        dpcr_schedule_free(s->context, &schedule);
    }
}

// 64 ranks, 1024 microbatches: an action is looked at once, and once more for each time its rank has to wait for it.
static void work_of_a_run(void **state) {
    scratch *s = *state;
    for (int kind = 0; kind < DPCR_SCHEDULE_LAYERPIPE; kind++) {
        dpcr_schedule schedule = make(s, (dpcr_schedule_kind)kind, 64, 0, 1024);
        dpcri_run run;
        assert_ok(s, dpcri_run_create(s->context, &schedule, NULL, &run, &s->error));
        assert_true(dpcri_run_once(&run, NULL, NULL));
        assert_true(run.looks >= schedule.first[64] && run.looks <= 2 * schedule.first[64]);
        dpcri_run_destroy(s->context, &run);
        dpcr_schedule_free(s->context, &schedule);
    }
}

static void refused(scratch *s, const char *text, const char *wanted) {
    dpcr_schedule schedule;
    dpcr_status status =
        dpcr_schedule_read(s->context, text, strlen(text), DPCR_NOTATION_NEW, NULL, &schedule, &s->error);
    if (status == DPCR_OK) {
        status = dpcr_schedule_validate(s->context, &schedule, 0, &s->error);
        dpcr_schedule_free(s->context, &schedule);
    }
    assert_refused_at(s, status, DPCR_ERROR_FORMAT, wanted, text, __LINE__);
}

static void damaged_tables(void **state) {
    scratch *s = *state;
    refused(s, "", "no actions");
    refused(s, "\n,,\n", "no actions");
    refused(s, "0F0,0X0\n", "line 1, cell 2 '0X0': wanted F, I, W, B");
    refused(s, "0F0,0B0\n1F0,F0\n", "line 2, cell 2 'F0': wanted a stage");
    refused(s, "0F\n", "wanted a microbatch");
    refused(s, "0F0 0B0\n", "wanted a comma");
    refused(s, "0F99999999999\n", "wanted numbers below");
    refused(s, "0F0,0B0.1\n", "a half only of I");
    refused(s, "0F0,0I0.3\n", "a half only of I");
    refused(s, "(0F0;0F1)OVERLAP_F_B\n", "wanted a pair");
    refused(s, "(0F0;0B0\n", "wanted a pair");
    refused(s, "0F0,0B0\n400000000F0\n", "some have none");
    refused(s, "0F0,0B0,0B0\n", "0B0 comes twice");
    refused(s, "0F0,0I0,0B0,0W0\n", "0B0 comes twice");
    refused(s, "0F0,0B0,1F0\n1B0\n", "another rank than the rest of its stage");
    refused(s, "0B0,0F0\n", "before its F");
    refused(s, "0F0,0W0,0I0\n", "before its I");
    refused(s, "0F0,0I0\n", "no W or B of microbatch 0");
    refused(s, "0F0,0I0.1,0F1,0I1,0W1\n", "no I or B of microbatch 0");
    refused(s, "0F0,0F1,0B1\n", "no I or B of microbatch 0");
    refused(s, "1F0,0F0,1B0,0B0\n", "rank 0 at 1F0 (cell 1) waits for F of stage 0, microbatch 0");
    refused(s, "0F0,0F1,0B1,0B0\n1F0,1B0,1F1,1B1\n2F1,2F0,2B0,2B1\n", "the rows wait for each other");
    refused(s, "0F0,0SEND_F0,0B0\n1F0,1B0\n", "SEND_F without RECV_F");
    refused(s, "0RECV_F0,0F0,0B0\n", "beyond the ends");
    refused(s, "0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n", "rank 1: 1RECV_F0 comes after its F");
    refused(s, "0F0,0RECV_B0,0SEND_F0,0B0\n1F0,1B0,1SEND_B0,1RECV_F0\n", "rank 1: 1RECV_F0 comes after its F");
    refused(s, "0F0,0SEND_F0,0B0,0RECV_B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", "rank 0: 0RECV_B0 comes after its I or B");
    refused(s, "0F0,0SEND_F0,0I0.1,0RECV_B0,0I0.2,0W0\n1RECV_F0,1F0,1B0,1SEND_B0\n", "comes after its I or B");
}

// A stage's I may come in halves for some microbatches and whole for others.
static void halves_for_some_microbatches(void **state) {
    static const char text[] = "0F0,0F1,0B0,0I1,0W1\n1F0,1I0.1,1I0.2,1W0,1F1,1B1\n";
    scratch *s = *state;
    dpcr_schedule schedule;
    assert_ok(s, dpcr_schedule_read(s->context, text, strlen(text), DPCR_NOTATION_NEW, NULL, &schedule, &s->error));
    assert_ok(s, dpcr_schedule_validate(s->context, &schedule, 0, &s->error));
    dpcr_simulation x = simulate(s, &schedule, NULL);
    assert_true(x.makespan == 9 && x.peak_activations[0] == 2 && x.peak_memory[1] == 1);
    dpcr_simulation_free(s->context, &x);
    dpcr_schedule_free(s->context, &schedule);
}

// A table read as what a schedule of one microbatch an update and no delays is.
static dpcr_schedule read_as(scratch *s, const char *text, dpcr_semantics semantics) {
    int64_t delay[1] = {0};
    const dpcr_schedule like = {.stages = 1, .chains = 1, .semantics = semantics, .accumulate = 1, .delay = delay};
    dpcr_schedule schedule;
    assert_ok(s, dpcr_schedule_read(s->context, text, strlen(text), DPCR_NOTATION_NEW, &like, &schedule, &s->error));
    return schedule;
}

// A microbatch is held to whichever half of its I is the later.
static void halves_in_any_order(void **state) {
    static const char *const texts[] = {"0F0,0I0.1,0F1,0I0.2,0W0,0I1.1,0I1.2,0W1\n",
                                        "0F0,0I0.2,0F1,0I0.1,0W0,0I1.1,0I1.2,0W1\n"};
    scratch *s = *state;
    for (int k = 0; k < 2; k++) {
        dpcr_schedule schedule = read_as(s, texts[k], DPCR_SYNCHRONOUS);
        dpcr_simulation x = simulate(s, &schedule, NULL);
        assert_int_equal(x.peak_activations[0], 2);
        dpcr_simulation_free(s->context, &x);
        dpcr_schedule_free(s->context, &schedule);
    }
}

static void refused_simulation(scratch *s, const char *text, const dpcr_schedule_costs *costs, const char *wanted) {
    dpcr_schedule schedule = read_as(s, text, DPCR_DELAYED);
    dpcr_simulation x;
    assert_ok(s, dpcr_schedule_validate(s->context, &schedule, 0, &s->error));
    assert_refused_at(s, dpcr_schedule_simulate(s->context, &schedule, costs, &x, &s->error), DPCR_ERROR_UNSUPPORTED,
                      wanted, text, __LINE__);
    dpcr_schedule_free(s->context, &schedule);
}

// Figures want each kind of a stage's tasks on one rank, and recomputing all of them, however few microbatches.
static void spread_stages(void **state) {
    scratch *s = *state;
    dpcr_schedule_costs again = costs_of(1, 1, 1, 0);
    again.recompute = 1;
    refused_simulation(s, "0F0,1F0,1I0,1W0,0I0,0W0,0F1,1I1,1W1,0I1,0W1\n1F1\n", NULL,
                       "stage 1 has the F of its microbatches on several ranks");
    refused_simulation(s, "0F0,0I0.1,0I0.2,0W0,0F1,0I1.1,0W1\n0I1.2\n", NULL,
                       "stage 0 has the I of its microbatches on several ranks");
    refused_simulation(s, "0F0\n0I0\n0W0\n", &again, "stage 0 lie on several ranks; recomputing wants them on one");
    refused_simulation(s, "0F0,0F1\n0I0,0I1\n0W0,0W1\n", &again, "recomputing wants them on one");
    // what ends a row is not before what begins the next
    dpcr_schedule schedule = read_as(s, "0F0,0I0,0W0,1F0\n1I0,1W0\n", DPCR_DELAYED);
    dpcri_run run;
    assert_ok(s, dpcri_run_create(s->context, &schedule, &again, &run, &s->error));
    assert_true(dpcri_duration(&run, 0, &schedule.actions[1]) == 1 &&
                dpcri_duration(&run, 1, &schedule.actions[4]) == 2);
    dpcri_run_destroy(s->context, &run);
    dpcr_schedule_free(s->context, &schedule);
}

// Ranks without anything to do come back, also at the end; a last line that has no end is one where it says something.
static void idle_ranks_come_back(void **state) {
    scratch *s = *state;
    static const char *const texts[] = {"\n0F0,0B0\n\n,\n", "0F0,0B0\n\n\n\n ", "\n\n\n0F0,0B0"};
    for (int k = 0; k < 3; k++) {
        dpcr_schedule schedule = read_as(s, texts[k], DPCR_SYNCHRONOUS);
        assert_int_equal(schedule.ranks, 4);
        dpcr_simulation x = simulate(s, &schedule, NULL);
        assert_true(x.ranks == 4 && x.utilisation == 0.25);
        dpcr_simulation_free(s->context, &x);
        dpcr_schedule_free(s->context, &schedule);
    }
}

// What no text says, a program may.
static void damaged_structures(void **state) {
    scratch *s = *state;
    dpcr_schedule schedule = make(s, DPCR_SCHEDULE_GPIPE, 3, 0, 2), bad[] = {schedule, schedule, schedule};
    int64_t first[] = {0, 5, 2, 12}, delay[] = {0, -1, 0};
    bad[0].chains = 3;
    bad[1].semantics = DPCR_SEMANTICS_COUNT;
    bad[2].first = first;
    for (int k = 0; k < 3; k++)
        assert_refused_at(s, dpcr_schedule_validate(s->context, &bad[k], 0, &s->error), DPCR_ERROR_ARGUMENT,
                          "sizes or arrays are missing", __FILE__, __LINE__);
    for (int k = 0; k < 2; k++)
        assert_refused_at(s, dpcr_schedule_validate(s->context, &schedule, k ? NAN : -1, &s->error),
                          DPCR_ERROR_ARGUMENT, "a limit of", __FILE__, __LINE__);
    bad[0] = schedule;
    bad[0].delay = delay;
    assert_refused_at(s, dpcr_schedule_validate(s->context, &bad[0], 0, &s->error), DPCR_ERROR_ARGUMENT,
                      "the delay of stage 1 is -1", __FILE__, __LINE__);
    const int64_t sizes[][3] = {{3, 3, (INT64_C(1) << 62) + 1}, {3, 3, INT64_C(1) << 31}, {3, INT64_C(1) << 31, 2}};
    for (int k = 0; k < 3; k++) {
        bad[0] = schedule;
        bad[0].stages = sizes[k][1], bad[0].microbatches = sizes[k][2];
        schedule.actions[0].microbatch = k == 0 ? 2000000000 : 0;
        assert_refused_at(s, dpcr_schedule_validate(s->context, &bad[0], 0, &s->error), DPCR_ERROR_ARGUMENT,
                          "too large", __FILE__, __LINE__);
    }
    bad[0] = schedule;
    bad[0].microbatches = INT32_MAX;
    assert_refused_at(s, dpcr_schedule_validate(s->context, &bad[0], 0, &s->error), DPCR_ERROR_FORMAT, "some have none",
                      __FILE__, __LINE__);
    char *text;
    size_t bytes;
    bad[0] = bad[1] = schedule;
    bad[0].actions = NULL;
    bad[1].ranks = -1;
    for (int k = 0; k < 2; k++)
        assert_refused_at(s, dpcr_schedule_write(s->context, &bad[k], DPCR_NOTATION_NEW, &text, &bytes, &s->error),
                          DPCR_ERROR_ARGUMENT, "its arrays", __FILE__, __LINE__);
    schedule.actions[1].part = 1;  // an F
    assert_refused_at(s, dpcr_schedule_validate(s->context, &schedule, 0, &s->error), DPCR_ERROR_ARGUMENT,
                      "action 1 is out of range", __FILE__, __LINE__);
    dpcr_schedule_free(s->context, &schedule);
}

static void impossible_sizes(void **state) {
    static const struct {
        dpcr_schedule_kind kind;
        int64_t p, v, m;
        dpcr_status status;
        const char *text;
    } cases[] = {{DPCR_SCHEDULE_GPIPE, 0, 0, 4, DPCR_ERROR_ARGUMENT, "at least 1 rank"},
                 {DPCR_SCHEDULE_GPIPE, 4, 0, 0, DPCR_ERROR_ARGUMENT, "1 microbatch"},
                 {DPCR_SCHEDULE_GPIPE, 4, 2, 4, DPCR_ERROR_UNSUPPORTED, "gpipe: 2 stages a rank; it is made for 1"},
                 {DPCR_SCHEDULE_ZB_V, 4, 3, 8, DPCR_ERROR_UNSUPPORTED, "made for 2"},
                 {DPCR_SCHEDULE_DUALPIPEV, 4, 0, 7, DPCR_ERROR_UNSUPPORTED, "at least as many as stages, 8"},
                 {DPCR_SCHEDULE_DUALPIPE, 3, 0, 8, DPCR_ERROR_UNSUPPORTED, "both even"},
                 {DPCR_SCHEDULE_INTERLEAVED_ZB, 2, 2, 7, DPCR_ERROR_UNSUPPORTED, "wanted a multiple of 3"},
                 {DPCR_SCHEDULE_GPIPE, INT64_MAX, 0, 4, DPCR_ERROR_OVERFLOW, "do not fit"},
                 {DPCR_SCHEDULE_GPIPE, 4, 0, INT64_MAX, DPCR_ERROR_OVERFLOW, "do not fit"}};
    scratch *s = *state;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        const dpcr_schedule_options o = options_of(cases[k].kind, cases[k].p, cases[k].v, cases[k].m);
        dpcr_schedule schedule;
        const dpcr_status status = dpcr_schedule_make(s->context, &o, &schedule, &s->error);
        assert_refused_at(s, status, cases[k].status, cases[k].text, __FILE__, __LINE__);
    }
    dpcr_schedule_options o = options_of(DPCR_SCHEDULE_PIPEDREAM_2BW, 4, 0, 8);
    dpcr_schedule schedule;
    o.accumulate = 3;
    assert_refused_at(s, dpcr_schedule_make(s->context, &o, &schedule, &s->error), DPCR_ERROR_UNSUPPORTED,
                      "at least as many as ranks", __FILE__, __LINE__);
}

// Costs of an older caller, no longer than their size says; options of a newer one; costs whose sums would leave the
// finite numbers, which had rows that waited for each other; objectives that there are not.
static void costs_and_options(void **state) {
    scratch *s = *state;
    dpcr_schedule schedule = make(s, DPCR_SCHEDULE_1F1B, 2, 0, 4);
    dpcr_schedule_costs costs = costs_of(2, 3, 4, 0);
    dpcr_simulation x = simulate(s, &schedule, &costs);
    const double wanted = x.makespan;
    dpcr_simulation_free(s->context, &x);
    costs.size = offsetof(dpcr_schedule_costs, stage_forward);
    costs.stage_weight = (const double *)(uintptr_t)8, costs.hop = -1, costs.update = NAN;
    x = simulate(s, &schedule, &costs);
    assert_true(x.makespan == wanted);
    dpcr_simulation_free(s->context, &x);
    costs.size--;
    assert_refused_at(s, dpcr_schedule_simulate(s->context, &schedule, &costs, &x, &s->error), DPCR_ERROR_ARGUMENT,
                      "wanted sizeof(dpcr_schedule_costs)", __FILE__, __LINE__);
    dpcr_schedule_free(s->context, &schedule);
    dpcr_schedule_options o = options_of(DPCR_SCHEDULE_1F1B, 2, 0, 4);
    o.size += 64;
    assert_int_equal(dpcr_schedule_make(s->context, &o, &schedule, &s->error), DPCR_OK);
    dpcr_schedule_free(s->context, &schedule);

    double high[4] = {1e308, 1, 1e308, 1};
    o = options_of(DPCR_SCHEDULE_LAYERPIPE, 2, 0, 4);
    o.costs = &costs, o.stages = 4;
    for (int k = 0; k < 4; k++) {
        costs = costs_of(k == 0 ? 1e308 : 1, 1, 1, 0);
        if (k == 1) costs.stage_input = high;
        if (k == 2) costs.hop = INFINITY;
        if (k == 3) costs.bandwidth = 1e-308;
        assert_refused_at(s, dpcr_schedule_make(s->context, &o, &schedule, &s->error), DPCR_ERROR_ARGUMENT,
                          k == 1   ? "got 1e+308 at stage 0, wanted 0 to 1e+100"
                          : k == 3 ? "bandwidth 1e-308, wanted 0 or at least 1e-100"
                                   : "wanted 0 to 1e+100",
                          __FILE__, __LINE__);
    }
    high[0] = high[2] = 1e100;
    costs = costs_of(1e100, 1, 1e100, 0);
    costs.stage_input = high;
    assert_ok(s, dpcr_schedule_make(s->context, &o, &schedule, &s->error));
    x = simulate(s, &schedule, &costs);
    assert_true(isfinite(x.makespan) && isfinite(x.steady_state));
    dpcr_simulation_free(s->context, &x);
    dpcr_schedule_free(s->context, &schedule);
    for (int kind = 0; kind < DPCR_SCHEDULE_COUNT; kind++) {
        o = options_of((dpcr_schedule_kind)kind, 2, 0, 4);
        o.objective = (dpcr_objective)9;
        assert_refused_at(s, dpcr_schedule_make(s->context, &o, &schedule, &s->error), DPCR_ERROR_ARGUMENT,
                          "no such kind, semantics or objective", __FILE__, __LINE__);
    }
}

static void memory_limit(void **state) {
    scratch *s = *state;
    dpcr_schedule schedule = make(s, DPCR_SCHEDULE_GPIPE, 4, 0, 8);
    assert_ok(s, dpcr_schedule_validate(s->context, &schedule, 8, &s->error));
    assert_refused_at(s, dpcr_schedule_validate(s->context, &schedule, 7, &s->error), DPCR_ERROR_FORMAT,
                      "0F7 makes it hold 8 activations; the limit is 7", __FILE__, __LINE__);
    dpcr_schedule_free(s->context, &schedule);
}

// Every allocation of making, lowering, writing, reading and simulating fails once; nothing leaks (teardown counts).
static void memory_runs_out(void **state) {
    scratch *s = *state;
    for (int kind = 0; kind < DPCR_SCHEDULE_COUNT; kind++) {
        const dpcr_schedule_options o = options_of((dpcr_schedule_kind)kind, 2, 0, 4);
        for (int64_t fail = 0;; fail++) {
            dpcr_schedule schedule = {0}, lowered = {0}, read = {0};
            dpcr_simulation x = {0};
            char *text = NULL;
            size_t bytes = 0;
            s->memory.fail_at = s->memory.calls + fail;
            dpcr_status status = dpcr_schedule_make(s->context, &o, &schedule, &s->error);
            if (status == DPCR_OK) status = dpcr_schedule_simulate(s->context, &schedule, NULL, &x, &s->error);
            if (status == DPCR_OK)
                status = dpcr_schedule_write(s->context, &schedule, DPCR_NOTATION_NEW, &text, &bytes, &s->error);
            if (status == DPCR_OK)
                status = dpcr_schedule_read(s->context, text, bytes, DPCR_NOTATION_NEW, &schedule, &read, &s->error);
            if (status == DPCR_OK && schedule.semantics != DPCR_DELAYED)
                status = dpcr_schedule_lower(s->context, &read, &lowered, &s->error);
            s->memory.fail_at = -1;
            dpcr_simulation_free(s->context, &x);
            dpcr_schedule_text_free(s->context, text);
            dpcr_schedule_free(s->context, &schedule);
            dpcr_schedule_free(s->context, &lowered);
            dpcr_schedule_free(s->context, &read);
            if (status == DPCR_OK) break;
            assert_int_equal(status, DPCR_ERROR_MEMORY);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)
        TEST(golden_tables_and_figures),
        TEST(lowering_is_torchs),
        TEST(lowering_by_hand),
        TEST(grid_of_sizes),
        TEST(every_schedule_is_valid),
        TEST(bubble_formulas),
        TEST(recomputing_and_updates_take_their_time),
        TEST(unequal_times_and_hops),
        TEST(dualpipe_bubble),
        TEST(asynchronous_versions),
        TEST(steady_state),
        TEST(steady_state_is_within_the_makespan),
        TEST(steady_state_of_rare_updates),
        TEST(updates_and_all_reduce),
        TEST(spans_hold_the_updates),
        TEST(errors_do_not_wait_for_updates),
        TEST(work_of_a_run),
        TEST(damaged_tables),
        TEST(damaged_structures),
        TEST(halves_for_some_microbatches),
        TEST(halves_in_any_order),
        TEST(spread_stages),
        TEST(idle_ranks_come_back),
        TEST(impossible_sizes),
        TEST(costs_and_options),
        TEST(memory_limit),
        TEST(memory_runs_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
