// SPDX-License-Identifier: MIT
// Recurrent networks over ranks against one process by the loop: with tolerance 0 the same bits, forward and back, also
// where run-ups are too short and boundaries have to be repaired or finished in order; else within the tolerance.
// Ranks are threads here (dpcri_threads_run).
#include "ranks_testing.h"

enum { MOST_RANKS = 4, MOST_CHAINS = 4 };

static void need(dpcr_status status, const dpcr_error *error) {
    if (status != DPCR_OK) fail_msg("%s", error->text);
}

// Everything of one run, in double.
typedef struct arrays {
    double *x, *h0, *c0, *y, *ht, *ct, *dy, *dht, *dct, *dx, *dh0, *dc0, *gradient;
} arrays;

typedef struct shape {
    dpcr_recurrent_kind kind;
    int64_t T, B, I, H, layers;
    int both, reverse;
} shape;

typedef struct trial {
    shape s;
    int64_t D, N, ranks, warm_up, parameters;
    double tolerance;
    int max_sweeps, recompute;
    dpcr_method method;  // within a rank; AUTO: the loop
    bool in_lengths, in_resets, back, has_cell;
    int64_t lengths[4];
    unsigned char *resets;
    int64_t first[MOST_RANKS + 1];
    arrays one, many;
    dpcr_solve_report reports[MOST_CHAINS], back_reports[MOST_CHAINS];
} trial;

static dpcr_array at(const trial *t, double *data, int64_t first, int64_t count, int64_t width) {
    return dpcr_array_make(data ? data + first * t->s.B * width : NULL, DPCR_F64, 3,
                           (const int64_t[]){count, t->s.B, width});
}

static dpcr_recurrent *network_of(const trial *t) {
    dpcr_error error = {0};
    dpcr_recurrent *network = NULL;
    const dpcr_recurrent_options o = {.size = sizeof o,
                                      .kind = t->s.kind,
                                      .dtype = DPCR_F64,
                                      .inputs = t->s.I,
                                      .hidden = t->s.H,
                                      .layers = t->s.layers,
                                      .bidirectional = t->s.both,
                                      .reverse = t->s.reverse,
                                      .seed = 7};
    need(dpcr_recurrent_create(context, &o, &network, &error), &error);
    return network;
}

static dpcr_recurrent_pass pass_of(const trial *t, const arrays *a, int64_t first, int64_t count) {
    dpcr_recurrent_pass pass = {.size = sizeof pass,
                                .x = at(t, a->x, first, count, t->s.I),
                                .h0 = at(t, a->h0, 0, t->N, t->s.H),
                                .lengths = t->in_lengths ? t->lengths : NULL,
                                .y = at(t, a->y, first, count, t->D * t->s.H),
                                .ht = at(t, a->ht, 0, t->N, t->s.H),
                                .resets = t->in_resets ? t->resets + first * t->s.B : NULL};
    if (t->has_cell) pass.c0 = at(t, a->c0, 0, t->N, t->s.H), pass.ct = at(t, a->ct, 0, t->N, t->s.H);
    return pass;
}

static dpcr_recurrent_gradients gradients_of(const trial *t, const arrays *a, int64_t first, int64_t count) {
    dpcr_recurrent_gradients g = {.size = sizeof g,
                                  .y = at(t, a->dy, first, count, t->D * t->s.H),
                                  .ht = at(t, a->dht, 0, t->N, t->s.H),
                                  .x = at(t, a->dx, first, count, t->s.I),
                                  .h0 = at(t, a->dh0, 0, t->N, t->s.H)};
    if (t->has_cell) g.ct = at(t, a->dct, 0, t->N, t->s.H), g.c0 = at(t, a->dc0, 0, t->N, t->s.H);
    return g;
}

static void run_whole(trial *t) {
    dpcr_error error = {0};
    dpcr_recurrent *network = network_of(t);
    dpcr_recurrent_plan *plan = NULL;
    const dpcr_solve_options loop = {
        .size = sizeof loop, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL};
    const dpcr_recurrent_plan_options o = {.size = sizeof o,
                                           .length = t->s.T,
                                           .batch = t->s.B,
                                           .training = t->back,
                                           .packed = t->in_lengths,
                                           .resets = t->in_resets,
                                           .solve = loop};
    need(dpcr_recurrent_plan_create(network, &o, &plan, &error), &error);
    const size_t bytes = dpcr_recurrent_plan_workspace(plan), tape = dpcr_recurrent_plan_tape(plan);
    void *workspace = aligned_alloc(64, bytes / 64 * 64 + 128), *kept = aligned_alloc(64, tape / 64 * 64 + 128);
    const dpcr_recurrent_pass pass = pass_of(t, &t->one, 0, t->s.T);
    need(dpcr_recurrent_execute(plan, &pass, t->back ? kept : NULL, workspace, bytes, NULL, &error), &error);
    if (t->back) {
        const dpcr_recurrent_gradients g = gradients_of(t, &t->one, 0, t->s.T);
        need(dpcr_recurrent_backward(plan, &pass, &g, kept, workspace, bytes, NULL, &error), &error);
        memcpy(t->one.gradient, dpcr_recurrent_gradient_vector(network), (size_t)t->parameters * sizeof(double));
    }
    free(workspace);
    free(kept);
    dpcr_recurrent_plan_destroy(plan);
    dpcr_recurrent_destroy(network);
}

// States of the whole sequences come to every rank: rank 0's are kept, the others' must be the same.
static dpcr_status run_rank(void *user, const dpcr_transport *by, dpcr_error *error) {
    trial *t = user;
    const int64_t first = t->first[by->rank], count = t->first[by->rank + 1] - first, states = t->N * t->s.B * t->s.H;
    dpcr_recurrent *network = network_of(t);
    arrays a = t->many;
    double *const spare = numbers(4 * states, 0), *const own = by->rank ? spare : NULL;
    if (own) a.ht = own, a.ct = own + states, a.dh0 = own + 2 * states, a.dc0 = own + 3 * states;
    const dpcr_recurrent_pass pass = pass_of(t, &a, first, count);
    const dpcr_recurrent_gradients g = gradients_of(t, &a, first, count);
    dpcr_recurrent_ranks o = {.size = sizeof o, .transport = by, .deadline = 30, .recompute = t->recompute};
    o.solve = (dpcr_solve_options){.size = sizeof o.solve,
                                   .method = t->method ? t->method : DPCR_METHOD_SEQUENTIAL,
                                   .backward = DPCR_SCHEME_SEQUENTIAL,
                                   .atol = t->tolerance,
                                   .rtol = t->method ? 0 : t->tolerance,  // none beside none, where not given
                                   .warm_up = t->warm_up,
                                   .max_sweeps = t->max_sweeps};
    dpcr_solve_report reports[MOST_CHAINS], back[MOST_CHAINS];
    for (int i = 0; i < MOST_CHAINS; i++) reports[i].size = back[i].size = sizeof *reports;
    const dpcr_status status =
        dpcr_recurrent_distributed(network, &o, &pass, t->back ? &g : NULL, reports, back, error);
    if (status == DPCR_OK && t->back && by->rank == t->ranks - 1)
        memcpy(t->many.gradient, dpcr_recurrent_gradient_vector(network), (size_t)t->parameters * sizeof(double));
    if (by->rank == 0) memcpy(t->reports, reports, sizeof reports), memcpy(t->back_reports, back, sizeof back);
    if (status == DPCR_OK) dpcr_ranks_agree(by, 30, DPCR_OK, error);
    if (own && status == DPCR_OK) {
        assert_memory_equal(own, t->many.ht, (size_t)states * sizeof(double));
        if (t->back) assert_memory_equal(own + 2 * states, t->many.dh0, (size_t)states * sizeof(double));
    }
    free(spare);
    dpcr_recurrent_destroy(network);
    return status;
}

static double distance(const double *a, const double *b, int64_t count) {
    double worst = 0;
    for (int64_t i = 0; i < count; i++) {
        const double d = fabs(a[i] - b[i]) / fmax(1, fabs(a[i]));
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

static void open_trial(trial *t) {
    const shape *s = &t->s;
    t->D = s->both ? 2 : 1;
    t->N = s->layers * t->D;
    t->has_cell = dpcr_recurrent_kind_has_cell(s->kind) != 0;
    dpcr_recurrent *network = network_of(t);
    dpcr_recurrent_vector(network, &t->parameters);
    dpcr_recurrent_destroy(network);
    const int64_t steps = s->T * s->B, states = t->N * s->B * s->H;
    arrays *a = &t->one, *b = &t->many;
    *a = (arrays){numbers(steps * s->I, 1),        numbers(states, 1), numbers(states, 1),
                  numbers(steps * t->D * s->H, 0), numbers(states, 0), numbers(states, 0),
                  numbers(steps * t->D * s->H, 1), numbers(states, 1), numbers(states, 1),
                  numbers(steps * s->I, 0),        numbers(states, 0), numbers(states, 0),
                  numbers(t->parameters, 0)};
    *b = *a;
    b->y = numbers(steps * t->D * s->H, 0), b->ht = numbers(states, 0), b->ct = numbers(states, 0);
    b->dx = numbers(steps * s->I, 0), b->dh0 = numbers(states, 0), b->dc0 = numbers(states, 0);
    b->gradient = numbers(t->parameters, 0);
    t->resets = calloc((size_t)steps + 8, 1);
    for (int64_t i = 0; i < steps; i++) t->resets[i] = i % 7 == 3;
    for (int64_t i = 0; i < 4; i++) t->lengths[i] = (i + 1) * s->T / 4;
    for (int64_t r = 0; r <= t->ranks; r++) t->first[r] = r * s->T / t->ranks;
}

static void close_trial(trial *t) {
    arrays *a = &t->one, *b = &t->many;
    double *const made[] = {a->x,   a->h0,  a->c0,       a->y, a->ht, a->ct, a->dy, a->dht, a->dct, a->dx,
                            a->dh0, a->dc0, a->gradient, b->y, b->ht, b->ct, b->dx, b->dh0, b->dc0, b->gradient};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) free(made[i]);
    free(t->resets);
}

static void run_trial(trial *t) {
    dpcr_error error = {0};
    open_trial(t);
    run_whole(t);
    if (dpcr_ranks_run(context, t->ranks, run_rank, t, &error) != DPCR_OK) fail_msg("%s", error.text);
    const shape *s = &t->s;
    const int64_t steps = s->T * s->B, states = t->N * s->B * s->H;
    const double allowed = t->tolerance < 0 ? 0 : 4 * t->tolerance;
    const double behind = s->both ? 1e-13 + 100 * allowed : 100 * allowed;  // two directions' sums round once more
    const double off[] = {distance(t->one.y, t->many.y, steps * t->D * s->H), distance(t->one.ht, t->many.ht, states),
                          distance(t->one.ct, t->many.ct, states)};
    const double back[] = {distance(t->one.dx, t->many.dx, steps * s->I), distance(t->one.dh0, t->many.dh0, states),
                           distance(t->one.dc0, t->many.dc0, states)};
    for (int i = 0; i < 3; i++)
        if (!(off[i] <= allowed) || (t->back && !(back[i] <= behind)))
            fail_msg(
                "%s, %d layers, both %d, T %d, %d ranks, warm-up %d, lengths %d, resets %d: %g %g %g, back %g %g %g",
                dpcr_recurrent_kind_name(s->kind), (int)s->layers, s->both, (int)s->T, (int)t->ranks, (int)t->warm_up,
                t->in_lengths, t->in_resets, off[0], off[1], off[2], back[0], back[1], back[2]);
    if (t->back) assert_true(distance(t->one.gradient, t->many.gradient, t->parameters) <= 1e-12 + 100 * allowed);
}

static const dpcr_recurrent_kind kinds[] = {DPCR_RNN_TANH, DPCR_GRU,      DPCR_LSTM,
                                            DPCR_PARAGRU,  DPCR_PARALSTM, DPCR_MINGRU};

// A29. Run-ups of a step or two forget nothing: every boundary is repaired.
static void bits_of_the_loop(void **state) {
    (void)state;
    int turn = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int64_t ranks = 1; ranks <= MOST_RANKS; ranks++)
            for (int64_t T = turn % 3; T <= 40; T = 3 * T + 2, turn++) {
                trial t = {.s = {kinds[k], T, 2, 3, 5, 1 + turn % 2, turn % 3 == 1, turn % 5 == 2 && turn % 3 != 1},
                           .ranks = ranks,
                           .warm_up = 1 + turn % 2 * 30,
                           .tolerance = -1,
                           .max_sweeps = 1 + turn % 4,
                           .in_lengths = turn % 4 == 3,
                           .in_resets = turn % 7 == 5,
                           .recompute = turn % 2,
                           .back = turn % 3 != 2};
                run_trial(&t);
                for (int64_t c = 0; c < t.N; c++) {
                    assert_int_equal(t.reports[c].method, DPCR_METHOD_OVERLAP);
                    assert_true(t.reports[c].reason == DPCR_REASON_EXACT ||
                                t.reports[c].reason == DPCR_REASON_FALLBACK);
                }
                close_trial(&t);
            }
}

// Against time, and marks of new sequences where ranks begin, past the ends of some rows.
static void lengths_and_resets(void **state) {
    (void)state;
    for (int64_t T = 20; T < 40; T++) {
        trial t = {.s = {T % 3 ? DPCR_GRU : DPCR_LSTM, T, 3, 2, 3, 1, (int)(T % 2), (int)(1 - T % 2)},
                   .ranks = 4,
                   .warm_up = 1 + T % 5,
                   .tolerance = -1,
                   .max_sweeps = 2,
                   .in_lengths = true,
                   .in_resets = true,
                   .back = true};
        run_trial(&t);
        close_trial(&t);
    }
}

// The chunks within a rank keep to the boundaries' tolerance: none.
static void bits_of_the_loop_by_overlap_within(void **state) {
    (void)state;
    for (int64_t ranks = 1; ranks <= 2; ranks++)
        for (int64_t warm_up = 4; warm_up <= 16; warm_up += 4) {
            trial t = {.s = {DPCR_GRU, 1200, 1, 3, 5, 1, 0, 0},
                       .ranks = ranks,
                       .warm_up = warm_up,
                       .tolerance = -1,
                       .method = DPCR_METHOD_OVERLAP,
                       .max_sweeps = 3,
                       .back = true};
            run_trial(&t);
            close_trial(&t);
        }
}

// A budget that is spent within a rank is told, also where no boundary says so.
static void finished_in_order_within(void **state) {
    (void)state;
    for (int64_t ranks = 1; ranks <= 2; ranks++) {
        trial t = {.s = {DPCR_GRU, 40, 1, 3, 5, 1, 0, 0},
                   .ranks = ranks,
                   .warm_up = 4,
                   .tolerance = 1e-8,
                   .method = DPCR_METHOD_NEWTON,
                   .max_sweeps = 1};
        run_trial(&t);
        assert_int_equal(t.reports[0].reason, DPCR_REASON_FALLBACK);
        close_trial(&t);
    }
}

static void within_the_tolerance(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        trial t = {.s = {kinds[k], 300, 1, 3, 4, 2, 1, 0},
                   .ranks = 3,
                   .warm_up = 60,
                   .tolerance = 1e-8,
                   .max_sweeps = 3,
                   .back = true};
        run_trial(&t);
        for (int64_t c = 0; c < t.N; c++) {
            assert_int_equal(t.reports[c].sweeps, 1);
            assert_true(t.reports[c].reason > 0 && t.reports[c].residual <= 2e-8);
            assert_int_equal(t.back_reports[c].sweeps, 1);
        }
        close_trial(&t);
    }
}

static dpcr_status misfit(void *user, const dpcr_transport *by, dpcr_error *error) {
    trial t = *(trial *)user;
    dpcr_recurrent *network = network_of(&t);
    dpcr_recurrent_pass pass = pass_of(&t, &t.many, t.first[by->rank], t.first[by->rank + 1] - t.first[by->rank]);
    dpcr_recurrent_ranks o = {.size = sizeof o, .transport = by};
    o.solve = (dpcr_solve_options){.size = sizeof o.solve, .method = DPCR_METHOD_SEQUENTIAL, .warm_up = 3 + by->rank};
    assert_int_equal(dpcr_recurrent_distributed(network, &o, &pass, NULL, NULL, NULL, error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error->text, "rank 1 has another network"));
    o.solve.warm_up = 3;
    if (by->rank == 1) pass.x.shape[2]++;
    assert_int_equal(dpcr_recurrent_distributed(network, &o, &pass, NULL, NULL, NULL, error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error->text, by->rank == 1 ? "x" : "rank 1: recurrent_distributed"));
    if (by->rank == 1) pass.x.shape[2]--, pass.x.strides[0] *= 2;
    assert_int_equal(dpcr_recurrent_distributed(network, &o, &pass, NULL, NULL, NULL, error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error->text, "contiguous"));
    if (by->rank == 1) pass.x.strides[0] /= 2;
    const int64_t lengths[] = {by->rank == 1 ? t.s.T + 1 : t.s.T};
    pass.lengths = lengths;
    assert_int_equal(dpcr_recurrent_distributed(network, &o, &pass, NULL, NULL, NULL, error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error->text, "lengths[0]"));
    o.transport = NULL;
    assert_int_equal(dpcr_recurrent_distributed(network, &o, &pass, NULL, NULL, NULL, error), DPCR_ERROR_ARGUMENT);
    dpcr_recurrent_destroy(network);
    return DPCR_OK;
}

// What each rank has by itself would be put together without a word: weights, variants, lengths, initial states.
static dpcr_status misfit_of_values(void *user, const dpcr_transport *by, dpcr_error *error) {
    trial t = *(trial *)user;
    t.many.ht = t.many.ct = NULL;  // the ranks share these numbers, and each would write the last states whole
    const int64_t lengths[] = {by->rank == 1 ? t.s.T - 1 : t.s.T};
    double h0 = by->rank == 1 ? 0.5 : 0.25, *const states = t.many.h0;
    double last = h0, zero = 0;
    for (int what = 0; what < 11; what++) {
        t.s.reverse = what == 0 && by->rank == 1;
        t.many.h0 = what == 3 ? &h0 : what == 4 && by->rank == 1 ? NULL : states;
        t.s.kind = what == 10 ? DPCR_LSTM : DPCR_GRU;
        if (what == 8) t.many.h0 = by->rank == 1 ? &zero : NULL;
        dpcr_recurrent *network = network_of(&t);
        double *const weights = dpcr_recurrent_vector(network, NULL), second = weights[1];
        if (what == 1 && by->rank == 1) weights[1] += 1;
        if (what == 9 && by->rank == 1) weights[1] = weights[0], weights[0] = second;
        dpcr_recurrent_pass pass = pass_of(&t, &t.many, t.first[by->rank], t.first[by->rank + 1] - t.first[by->rank]);
        if (what == 2) pass.lengths = lengths;
        if (what == 10) pass.c0 = at(&t, &last, 0, 1, 1);
        dpcr_recurrent_ranks o = {.size = sizeof o, .transport = by};
        o.solve = (dpcr_solve_options){.size = sizeof o.solve, .method = DPCR_METHOD_SEQUENTIAL};
        o.solve.no_fallback = what == 5 && by->rank == 1;
        if (what == 6 && by->rank == 1) o.solve.atol = 1e-6;
        const dpcr_recurrent_gradients g = {.size = sizeof g, .ht = at(&t, &last, 0, 1, 1)};
        const dpcr_status status =
            dpcr_recurrent_distributed(network, &o, &pass, what == 7 ? &g : NULL, NULL, NULL, error);
        if (what == 8 && status != DPCR_OK)  // zeros are what none is
            fail_msg("zeros and none on rank %d: %d, %s", (int)by->rank, (int)status, error->text);
        if (what != 8 && (status != DPCR_ERROR_ARGUMENT || !strstr(error->text, "rank 1 has another network")))
            fail_msg("misfit %d on rank %d: %d, %s", what, (int)by->rank, (int)status, error->text);
        dpcr_recurrent_destroy(network);
    }
    return DPCR_OK;
}

static void every_rank_hears_of_a_misfit(void **state) {
    (void)state;
    dpcr_error error = {0};
    trial t = {.s = {DPCR_GRU, 10, 1, 2, 3, 1, 0, 0}, .ranks = 2};
    open_trial(&t);
    if (dpcr_ranks_run(context, 2, misfit, &t, &error) != DPCR_OK) fail_msg("%s", error.text);
    close_trial(&t);
    t = (trial){.s = {DPCR_GRU, 10, 1, 2, 1, 1, 0, 0}, .ranks = 2};
    open_trial(&t);
    if (dpcr_ranks_run(context, 2, misfit_of_values, &t, &error) != DPCR_OK) fail_msg("%s", error.text);
    close_trial(&t);
}

// Each rank says for itself which last states it wants.
static dpcr_status wants_some(void *user, const dpcr_transport *by, dpcr_error *error) {
    trial *t = user;
    dpcr_recurrent *network = network_of(t);
    const int64_t first = t->first[by->rank], states = t->N * t->s.B * t->s.H;
    double *const ht = numbers(states, 0);
    arrays a = t->many;
    a.ht = by->rank == t->max_sweeps ? NULL : ht;
    dpcr_recurrent_pass pass = pass_of(t, &a, first, t->first[by->rank + 1] - first);
    dpcr_recurrent_ranks o = {.size = sizeof o, .transport = by, .deadline = 60};
    o.solve = (dpcr_solve_options){.size = sizeof o.solve, .atol = -1};
    for (int turn = 0; turn < 2; turn++) {
        const dpcr_status status = dpcr_recurrent_distributed(network, &o, &pass, NULL, NULL, NULL, error);
        if (status != DPCR_OK) return status;
        if (a.ht) assert_memory_equal(ht, t->one.ht, (size_t)states * sizeof *ht);
    }
    free(ht);
    dpcr_recurrent_destroy(network);
    return DPCR_OK;
}

static void last_states_for_some(void **state) {
    (void)state;
    for (int without = 0; without < 3; without++) {
        dpcr_error error = {0};
        trial t = {.s = {DPCR_GRU, 50, 2, 2, 3, 2, 1, 0}, .ranks = 3, .max_sweeps = without};
        open_trial(&t);
        run_whole(&t);
        if (dpcr_ranks_run(context, 3, wants_some, &t, &error) != DPCR_OK) fail_msg("%s", error.text);
        close_trial(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_of_the_loop),
        cmocka_unit_test(lengths_and_resets),
        cmocka_unit_test(bits_of_the_loop_by_overlap_within),
        cmocka_unit_test(finished_in_order_within),
        cmocka_unit_test(within_the_tolerance),
        cmocka_unit_test(last_states_for_some),
        cmocka_unit_test(every_rank_hears_of_a_misfit),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
