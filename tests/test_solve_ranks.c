// SPDX-License-Identifier: MIT
// Cells over ranks by overlap, forward and back, against one process: the loop's bits with tolerance 0, also where
// run-ups are too short; within the tolerance else.
// Ranks are threads here (dpcri_threads_run).
#include <stdio.h>

#include "ranks_testing.h"

#include "chains.h"
#include "solve/relay.h"

enum { MOST_RANKS = 4, B = 2, W = 3 };

static dpcr_array steps_array(double *data, int64_t first, int64_t count) {
    return dpcr_array_make(data ? data + first * B * W : NULL, DPCR_F64, 3, (const int64_t[]){count, B, W});
}
static dpcr_array state_array(double *data) { return dpcr_array_make(data, DPCR_F64, 2, (const int64_t[]){B, W}); }

typedef struct trial {
    int64_t length, ranks, run_up, first[MOST_RANKS + 1];
    double tolerance;
    int max_sweeps;
    dpcr_method method;
    double growth;        // the chain is z <- growth z, from 1e-12; 0: what it is otherwise
    int64_t run_up_back;  // of each rank's own way back, by overlap in chunks of 10; 0: by the loop
    dpcr_activation activation;
    double *weight, *x, *z0, *direct, *last;
    double *z[2], *lambda[2], *dx[2], *dz0[2];  // of one process, of the ranks
    dpcr_solve_report report, back;
} trial;

// Steps first .. first + count - 1; gradients of the inputs to `dx` (NULL: not wanted).
static dpcr_cell *cell_of(trial *t, int64_t first, int64_t count, double *dx, dpcr_steps *steps) {
    dpcr_error error = {0};
    dpcr_cell *cell = NULL;
    const int64_t square[] = {W, W};
    dpcr_cell_options o = {.size = sizeof o,
                           .kind = DPCR_CELL_DENSE,
                           .activation = t->activation,
                           .dtype = DPCR_F64,
                           .length = count,
                           .batch = B,
                           .width = W,
                           .weight = dpcr_array_make(t->weight, DPCR_F64, 2, square),
                           .input = steps_array(t->x, first, count)};
    if (dx) o.input_gradient = steps_array(dx, first, count);
    if (dpcr_cell_create(context, &o, &cell, &error) != DPCR_OK) fail_msg("%s", error.text);
    *steps = (dpcr_steps){.size = sizeof *steps};
    if (dpcr_cell_steps(cell, steps, &error) != DPCR_OK) fail_msg("%s", error.text);
    return cell;
}

typedef struct dirty {
    double *data;
    int64_t count;
} dirty;

static void clear(void *user) {
    const dirty *d = user;
    memset(d->data, 0, (size_t)d->count * sizeof *d->data);
}

static dpcr_solve_plan *plan_of(const trial *t, const dpcr_steps *steps, dpcr_method method) {
    dpcr_error error = {0};
    dpcr_solve_plan *plan = NULL;
    const dpcr_solve_options o = {.size = sizeof o,
                                  .method = method,
                                  .backward = t->run_up_back ? DPCR_SCHEME_OVERLAP : DPCR_SCHEME_SEQUENTIAL,
                                  .backward_chunk = t->run_up_back ? 10 : 0,
                                  .backward_warm_up = t->run_up_back,
                                  .atol = t->tolerance,
                                  .rtol = t->tolerance};
    if (dpcr_solve_plan_create(context, steps, &o, &plan, &error) != DPCR_OK) fail_msg("%s", error.text);
    return plan;
}

static void run_whole(trial *t) {
    dpcr_error error = {0};
    dpcr_steps steps;
    dpcr_cell *cell = cell_of(t, 0, t->length, t->dx[0], &steps);
    dpcr_solve_plan *plan = plan_of(t, &steps, DPCR_METHOD_SEQUENTIAL);
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    void *workspace = aligned_alloc(64, bytes / 64 * 64 + 128);
    const dpcr_array z0 = state_array(t->z0), z = steps_array(t->z[0], 0, t->length),
                     direct = steps_array(t->direct, 0, t->length), last = state_array(t->last),
                     lambda = steps_array(t->lambda[0], 0, t->length), dz0 = state_array(t->dz0[0]);
    if (dpcr_solve_execute(plan, &z0, &z, NULL, workspace, bytes, NULL, &error) != DPCR_OK ||
        dpcr_solve_backward(plan, &z0, &z, NULL, &direct, &last, &lambda, &dz0, workspace, bytes, NULL, &error) !=
            DPCR_OK)
        fail_msg("%s", error.text);
    free(workspace);
    dpcr_solve_plan_destroy(plan);
    dpcr_cell_destroy(cell);
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static dpcr_status run_rank(void *user, const dpcr_transport *by, dpcr_error *error) {
    trial *t = user;
    const int64_t r = by->rank, first = t->first[r], count = t->first[r + 1] - first;
    const int64_t lead = r > 0 ? least(t->run_up, first - t->first[r - 1]) : 0;
    const int64_t tail = r + 1 < t->ranks ? least(t->run_up, t->first[r + 2] - t->first[r + 1]) : 0;
    dpcr_steps own, before, after;
    dpcr_cell *cells[] = {cell_of(t, first, count, t->dx[1], &own), cell_of(t, first - lead, lead, NULL, &before),
                          cell_of(t, first + count, tail, NULL, &after)};
    before.size = after.size = offsetof(dpcr_steps, identity);  // of a program built on an older header
    dpcr_solve_plan *plan = plan_of(t, &own, t->method);
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    void *workspace = aligned_alloc(64, bytes / 64 * 64 + 128);
    double start_numbers[B * W], out[B * W];
    dirty mine = {t->dx[1] + first * B * W, count * B * W};
    const dpcr_array z0 = state_array(t->z0), z = steps_array(t->z[1], first, count),
                     direct = steps_array(t->direct, first, count), last = state_array(t->last),
                     lambda = steps_array(t->lambda[1], first, count), start = state_array(start_numbers),
                     dz0 = state_array(out), after_direct = steps_array(t->direct, first + count, tail);
    const dpcr_solve_ranks ranks = {.size = sizeof ranks,
                                    .transport = by,
                                    .deadline = 30,
                                    .max_sweeps = t->max_sweeps,
                                    .before = r > 0 ? &before : NULL,
                                    .after = r + 1 < t->ranks ? &after : NULL,
                                    .after_direct = &after_direct,
                                    .clear = clear,
                                    .clear_user = &mine};
    int64_t kept = 0;  // an array of the caller's stays the caller's, also where nothing is told by sweep
    dpcr_solve_report report = {.size = sizeof report, .history_capacity = 1, .locked_history = &kept},
                      back = {.size = sizeof back};
    dpcr_status status =
        dpcr_solve_execute_distributed(plan, &ranks, &z0, &z, NULL, &start, workspace, bytes, &report, error);
    if (status == DPCR_OK)
        status =
            dpcr_solve_backward_distributed(plan, &ranks, &start, &z, NULL, &direct, r + 1 == t->ranks ? &last : NULL,
                                            &lambda, &dz0, workspace, bytes, &back, error);
    if (status == DPCR_OK &&
        (report.locked_history != &kept || report.history_capacity != 1 || report.history_length)) {
        snprintf(error->text, sizeof error->text, "the report's arrays were changed");
        status = error->status = DPCR_ERROR_SYSTEM;
    }
    if (r == 0) {
        memcpy(t->dz0[1], out, sizeof out);
        t->report = report;
        t->back = back;
    }
    free(workspace);
    dpcr_solve_plan_destroy(plan);
    for (int i = 0; i < 3; i++) dpcr_cell_destroy(cells[i]);
    return status;
}

static void open_trial(trial *t) {
    const int64_t n = t->length * B * W;
    t->weight = numbers(W * W, 0.55);
    t->x = numbers(n, 1), t->z0 = numbers(B * W, 1), t->direct = numbers(n, 1), t->last = numbers(B * W, 1);
    for (int i = 0; i < 2; i++)
        t->z[i] = numbers(n, 0), t->lambda[i] = numbers(n, 0), t->dx[i] = numbers(n, 0), t->dz0[i] = numbers(B * W, 0);
    for (int64_t r = 0; r <= t->ranks; r++) t->first[r] = r * t->length / t->ranks;
    for (int64_t i = 0; t->growth > 0 && i < W * W; i++) t->weight[i] = i % (W + 1) == 0 ? t->growth : 0;
    for (int64_t i = 0; t->growth > 0 && i < n; i++) t->x[i] = 0;
    for (int64_t i = 0; t->growth > 0 && i < B * W; i++) t->z0[i] = 1e-12 * (double)(i + 1);
}

static void close_trial(trial *t) {
    free(t->weight), free(t->x), free(t->z0), free(t->direct), free(t->last);
    for (int i = 0; i < 2; i++) free(t->z[i]), free(t->lambda[i]), free(t->dx[i]), free(t->dz0[i]);
}

static double distance(const double *a, const double *b, int64_t count) {
    double worst = 0;
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(a[i] - b[i]) <= worst)) worst = fabs(a[i] - b[i]);
    return worst;
}

static void check(trial *t, double allowed) {
    dpcr_error error = {0};
    open_trial(t);
    run_whole(t);
    if (dpcr_ranks_run(context, t->ranks, run_rank, t, &error) != DPCR_OK) fail_msg("%s", error.text);
    const int64_t n = t->length * B * W;
    const double off[] = {distance(t->z[0], t->z[1], n), distance(t->lambda[0], t->lambda[1], n),
                          distance(t->dx[0], t->dx[1], n), distance(t->dz0[0], t->dz0[1], B * W)};
    for (int i = 0; i < (t->growth > 0 ? 1 : 4); i++)  // adjoints of what grows are large
        if (!(off[i] <= allowed))
            fail_msg("L %d, %d ranks, run-up %d: states %g, adjoints %g, gradients %g, dz0 %g", (int)t->length,
                     (int)t->ranks, (int)t->run_up, off[0], off[1], off[2], off[3]);
    assert_int_equal(t->report.method, DPCR_METHOD_OVERLAP);
    assert_true(t->report.reason > 0 && t->back.reason > 0);
    close_trial(t);
}

// A29: tanh and ReLU networks, over one process and over several.
static void bits_of_the_loop(void **state) {
    (void)state;
    for (int64_t ranks = 1; ranks <= MOST_RANKS; ranks++)
        for (int64_t length = 0; length <= 60; length = 2 * length + 1)
            for (int64_t run_up = 0; run_up <= 12; run_up += 6) {
                trial t = {.length = length,
                           .ranks = ranks,
                           .run_up = run_up,
                           .tolerance = -1,
                           .max_sweeps = 1 + (int)(run_up / 6),
                           .method = length % 2 ? DPCR_METHOD_SEQUENTIAL : DPCR_METHOD_OVERLAP};
                check(&t, 0);
                t.activation = DPCR_ACT_RELU;
                check(&t, 0);
            }
}

static void within_the_tolerance(void **state) {
    (void)state;
    trial t = {.length = 400, .ranks = 3, .run_up = 60, .tolerance = 1e-9, .method = DPCR_METHOD_SEQUENTIAL};
    check(&t, 1e-7);
    assert_int_equal(t.report.sweeps, 1);
    assert_int_equal(t.back.sweeps, 1);
}

// States below the tolerance, which a run-up from zeros does not have, grow to 1: nothing of them was forgotten.
static void small_states_join_beside_themselves(void **state) {
    (void)state;
    trial t = {.length = 900,
               .ranks = 3,
               .run_up = 60,
               .tolerance = 1e-6,
               .growth = 1.03,
               .activation = DPCR_ACT_IDENTITY,
               .method = DPCR_METHOD_SEQUENTIAL};
    check(&t, 1e-9);
    assert_true(t.report.sweeps > 1);
}

// What a rank finishes in order of its own steps is told of all of them.
static void the_ranks_own_ways_back(void **state) {
    (void)state;
    for (int64_t ranks = 1; ranks <= MOST_RANKS; ranks++)
        for (int64_t run_up = 1; run_up <= 200; run_up += 199) {
            trial t = {.length = 400,
                       .ranks = ranks,
                       .run_up = 60,
                       .tolerance = -1,
                       .method = DPCR_METHOD_SEQUENTIAL,
                       .run_up_back = run_up};
            check(&t, 0);
            assert_int_equal(t.back.reason == DPCR_REASON_FALLBACK, run_up == 1);
        }
}

static dpcr_status refused_rank(void *user, const dpcr_transport *by, dpcr_error *error) {
    trial *t = user;
    dpcr_steps own, other;
    dpcr_cell *cell = cell_of(t, 0, t->length, t->dx[1], &own);
    dpcr_solve_plan *plan = plan_of(t, &own, DPCR_METHOD_SEQUENTIAL);
    double numbers_of[B * W] = {0};
    const dpcr_array z0 = state_array(t->z0), start = state_array(numbers_of), z = steps_array(t->z[1], 0, t->length);
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    void *workspace = aligned_alloc(64, bytes / 64 * 64 + 128);
    dpcr_solve_ranks ranks = {.size = sizeof ranks, .transport = by};
    other = own;
    other.width++;
    ranks.before = &other;
    assert_int_equal(dpcr_solve_execute_distributed(plan, &ranks, &z0, &z, NULL, &start, workspace, bytes, NULL, error),
                     DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error->text, "before is of another"));
    ranks.before = NULL;
    dpcr_array first = z0;
    first.data = z.data;
    assert_int_equal(
        dpcr_solve_execute_distributed(plan, &ranks, &first, &z, NULL, &start, workspace, bytes, NULL, error),
        DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error->text, "z0 shares memory with z"));
    assert_int_equal(dpcr_solve_backward_distributed(plan, &ranks, &start, &z, NULL, NULL, NULL, NULL, NULL, workspace,
                                                     bytes, NULL, error),
                     DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error->text, "no `clear`"));
    dpcr_array still = z;
    still.strides[0] = 0;
    dirty mine = {t->dx[1], t->length * B * W};
    ranks.clear = clear, ranks.clear_user = &mine;
    assert_int_equal(
        dpcr_solve_execute_distributed(plan, &ranks, &z0, &still, NULL, &start, workspace, bytes, NULL, error),
        DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error->text, "solve_execute_distributed: z is written"));
    assert_int_equal(dpcr_solve_backward_distributed(plan, &ranks, &start, &z, NULL, NULL, NULL, &still, NULL,
                                                     workspace, bytes, NULL, error),
                     DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error->text, "solve_backward_distributed: lambda is written"));
    ranks.transport = NULL;
    assert_int_equal(dpcr_solve_execute_distributed(plan, &ranks, &z0, &z, NULL, &start, workspace, bytes, NULL, error),
                     DPCR_ERROR_ARGUMENT);
    free(workspace);
    dpcr_solve_plan_destroy(plan);
    dpcr_cell_destroy(cell);
    return DPCR_OK;
}

// Of the steps of one rank the first call, or one that repairs a boundary, fails: all ranks hear of it at once.
typedef struct faulty {
    trial *t;
    int64_t rank;
    int call;
} faulty;

typedef struct counted {
    dpcr_steps steps;
    int left;
} counted;

static int advance_till(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                        const dpcr_array *last, const dpcr_array *tape) {
    counted *c = user;
    if (c->left-- == 0) return -7;
    return c->steps.advance(c->steps.user, span, in, states, last, tape);
}

static dpcr_status faulty_rank(void *user, const dpcr_transport *by, dpcr_error *error) {
    const faulty *f = user;
    trial *t = f->t;
    const int64_t first = t->first[by->rank], count = t->first[by->rank + 1] - first;
    counted c = {.left = by->rank == f->rank ? f->call : -1};
    dpcr_cell *cell = cell_of(t, first, count, NULL, &c.steps);
    const dpcr_steps own = {.size = sizeof own,
                            .user = &c,
                            .length = count,
                            .batch = B,
                            .width = W,
                            .dtype = DPCR_F64,
                            .advance = advance_till};
    dpcr_solve_plan *plan = plan_of(t, &own, DPCR_METHOD_SEQUENTIAL);
    double numbers_of[B * W] = {0};
    const dpcr_array z0 = state_array(t->z0), start = state_array(numbers_of), z = steps_array(t->z[1], first, count);
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    void *workspace = aligned_alloc(64, bytes / 64 * 64 + 128);
    const dpcr_solve_ranks ranks = {.size = sizeof ranks, .transport = by, .max_sweeps = t->max_sweeps, .deadline = 60};
    assert_int_equal(dpcr_solve_execute_distributed(plan, &ranks, &z0, &z, NULL, &start, workspace, bytes, NULL, error),
                     DPCR_ERROR_CALLBACK);
    free(workspace);
    dpcr_solve_plan_destroy(plan);
    dpcr_cell_destroy(cell);
    return DPCR_OK;
}

static void failures_of_one_rank(void **state) {
    (void)state;
    for (int64_t rank = 0; rank < 3; rank++)
        for (int call = 0; call < (rank > 0 ? 2 : 1); call++)
            for (int sweeps = 1; sweeps <= 3; sweeps++) {
                dpcr_error error = {0};
                trial t = {.length = 12, .ranks = 3, .tolerance = -1, .max_sweeps = sweeps};
                open_trial(&t);
                faulty f = {&t, rank, call};
                if (dpcr_ranks_run(context, 3, faulty_rank, &f, &error) != DPCR_OK) fail_msg("%s", error.text);
                close_trial(&t);
            }
}

static void refusals(void **state) {
    (void)state;
    dpcr_error error = {0};
    trial t = {.length = 5, .ranks = 1};
    open_trial(&t);
    if (dpcr_ranks_run(context, 1, refused_rank, &t, &error) != DPCR_OK) fail_msg("%s", error.text);
    close_trial(&t);
}

// ---- what the report tells ----

// A chain of one number, N steps a rank, each z + 0.1 (or tanh 2 z + 0.1: curved), that has no value above `limit`, or
// an infinite one.
enum { N = 4 };
typedef struct told {
    int64_t ranks;
    int max_sweeps;
    bool curved, infinite;
    double limit;
    dpcr_solve_options options;
    dpcr_solve_report reports[MOST_RANKS], alone;  // by dpcr_solve_execute, of the last rank's steps
} told;

static void step_of(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    const told *t = (const told *)(const void *)c->parameters;
    const double y = tanh(2 * in[0]);
    (void)l, (void)b;
    out[0] = in[0] > t->limit ? t->infinite ? HUGE_VAL : NAN : (t->curved ? y : in[0]) + 0.1;
    if (j) j[0] = t->curved ? 2 * (1 - y * y) : 1;
}

static dpcr_status told_rank(void *user, const dpcr_transport *by, dpcr_error *error) {
    told *t = user;
    chain c = {.step = step_of, .length = N, .batch = 1, .width = 1, .dtype = DPCR_F64, .parameters = (double *)t};
    const dpcr_steps steps = chain_steps(&c);
    dpcr_solve_plan *plan = NULL;
    double first = 0, came = 0, states[N] = {0};
    const int64_t shape[] = {N, 1, 1};
    const dpcr_array z0 = dpcr_array_make(&first, DPCR_F64, 2, shape + 1),
                     start = dpcr_array_make(&came, DPCR_F64, 2, shape + 1),
                     z = dpcr_array_make(states, DPCR_F64, 3, shape);
    dpcr_solve_report *report = &t->reports[by->rank];
    const dpcr_solve_ranks ranks = {
        .size = sizeof ranks, .transport = by, .max_sweeps = t->max_sweeps, .before = t->curved ? &steps : NULL};
    dpcr_status status = dpcr_solve_plan_create(context, &steps, &t->options, &plan, error);
    if (status != DPCR_OK) return status;
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    void *workspace = aligned_alloc(64, bytes / 64 * 64 + 128);
    report->size = sizeof *report;
    status = dpcr_solve_execute_distributed(plan, &ranks, &z0, &z, NULL, &start, workspace, bytes, report, error);
    if (status == DPCR_OK && by->rank + 1 == by->ranks)
        status = dpcr_solve_execute(plan, &start, &z, NULL, workspace, bytes, &t->alone, error);
    free(workspace);
    dpcr_solve_plan_destroy(plan);
    return status;
}

static void tell(told *t, dpcr_method method, int64_t ranks, double tolerance) {
    dpcr_error error = {0};
    t->ranks = ranks;
    t->alone.size = sizeof t->alone;
    t->options.size = sizeof t->options;
    t->options.method = method, t->options.atol = t->options.rtol = tolerance;
    if (dpcr_ranks_run(context, ranks, told_rank, t, &error) != DPCR_OK) fail_msg("%s", error.text);
    for (int64_t r = 0; r < ranks; r++) {
        assert_int_equal(t->reports[r].reason, t->reports[0].reason);
        assert_true(t->reports[r].residual == t->reports[0].residual);
        assert_true(t->reports[r].error_estimate == t->reports[0].error_estimate);
    }
}

// Nothing is told of the error of what is not finite, be it at a boundary or at the chain's end, or after it was
// finished in order alone.
static void no_estimate_of_what_is_not_finite(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        told t = {.limit = i < 4 ? 0.55 : 1.05, .infinite = i % 2, .max_sweeps = i & 2 ? 1 : 3};
        tell(&t, DPCR_METHOD_SEQUENTIAL, 3, 1e-9);
        assert_int_equal(t.reports[0].reason, i & 2 ? DPCR_REASON_FALLBACK : DPCR_REASON_RESIDUAL_ONLY);
        assert_true(t.reports[0].error_estimate == -1);
    }
    told t = {.limit = 2, .max_sweeps = 3};
    tell(&t, DPCR_METHOD_SEQUENTIAL, 3, 1e-9);
    assert_int_equal(t.reports[0].reason, DPCR_REASON_CONVERGED);
    assert_true(t.reports[0].error_estimate == 0);
}

// What a rank's own steps came to, after the last run of them, is the chain's verdict, on every rank.
static void ranks_own_verdicts(void **state) {
    (void)state;
    static const struct {
        dpcr_method method;
        double tolerance, limit;
        int sweeps, no_fallback;
        dpcr_reason wanted;
    } trials[] = {{DPCR_METHOD_NEWTON, 1e-9, HUGE_VAL, 1, 1, DPCR_REASON_NOT_CONVERGED},
                  {DPCR_METHOD_NEWTON, -1, HUGE_VAL, 1, 1, DPCR_REASON_NOT_CONVERGED},
                  {DPCR_METHOD_NEWTON, 1e-9, HUGE_VAL, 1, 0, DPCR_REASON_FALLBACK},
                  {DPCR_METHOD_NEWTON, -1, HUGE_VAL, 1, 0, DPCR_REASON_FALLBACK},
                  {DPCR_METHOD_PICARD, 1e-9, HUGE_VAL, 0, 0, DPCR_REASON_RESIDUAL_ONLY},
                  {DPCR_METHOD_NEWTON, 1e-9, HUGE_VAL, 0, 0, DPCR_REASON_CONVERGED},
                  {DPCR_METHOD_NEWTON, -1, HUGE_VAL, 0, 0, DPCR_REASON_EXACT},
                  {DPCR_METHOD_NEWTON, 1e-9, 0.15, 0, 0, DPCR_REASON_NONFINITE}};
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++)
        for (int64_t ranks = 1; ranks <= 3; ranks++) {
            told t = {.curved = true, .limit = trials[i].limit, .max_sweeps = 3};
            t.options.max_sweeps = trials[i].sweeps, t.options.no_fallback = trials[i].no_fallback;
            tell(&t, trials[i].method, ranks, trials[i].tolerance);
            const dpcr_solve_report *got = &t.reports[0];
            if (got->reason != trials[i].wanted)
                fail_msg("%d, %d ranks: %s", (int)i, (int)ranks, dpcr_reason_name(got->reason));
            if (got->reason == DPCR_REASON_NOT_CONVERGED) assert_true(got->residual > 1e-3);
            if (got->reason == DPCR_REASON_RESIDUAL_ONLY) assert_true(got->error_estimate == -1);
            if (got->reason == DPCR_REASON_CONVERGED) assert_true(got->error_estimate >= 0);
            if (ranks > 1) continue;
            assert_int_equal(t.alone.reason, trials[i].wanted);
            assert_true(got->residual == t.alone.residual);
            assert_true(got->error_estimate == (got->reason == DPCR_REASON_EXACT ? 0 : t.alone.error_estimate));
        }
    // From z0 every rank's steps have values; those of the last one have none when they run again, in order.
    told t = {.limit = 1.05, .max_sweeps = 1};
    tell(&t, DPCR_METHOD_NEWTON, 3, 1e-9);
    assert_int_equal(t.reports[0].reason, DPCR_REASON_NONFINITE);
}

// ---- what a tolerance is of ----

// Two sequences over ranks that hand on what they are given, but the first two of sequence 0, who end as they do; the
// third is guessed to start from `huge`, whose end is about 1.
typedef struct handed {
    double huge, ends[8][2];
    int max_sweeps;
} handed;

typedef struct hand {
    int64_t rank;
    double start[2], end[2];
} hand;

static dpcr_status hand_on(void *user, dpcr_error *error) {
    hand *h = user;
    (void)error;
    memcpy(h->end, h->start, sizeof h->end);
    if (h->rank < 2) h->end[0] = 1;
    return DPCR_OK;
}

static dpcr_status handing_rank(void *user, dpcri_comm *comm, dpcr_error *error) {
    handed *t = user;
    hand h = {.rank = comm->rank, .start = {comm->rank == 2 ? t->huge : 0, comm->rank ? 1 + 1e-9 : 1}};
    dpcri_relay relay = {.comm = comm,
                         .dtype = DPCR_F64,
                         .rows = 2,
                         .width = 1,
                         .atol = 1e-9,
                         .rtol = 1e-9,
                         .scaled = true,
                         .max_sweeps = t->max_sweeps,
                         .start = h.start,
                         .end = h.end,
                         .user = &h,
                         .run = hand_on};
    const dpcr_status status = dpcri_relay_run(&relay, context, error);
    memcpy(t->ends[comm->rank], h.end, sizeof h.end);
    return status;
}

// A wrong start is no measure of what is small, also where the rest goes in order; sequences beside keep their bits.
static void a_wrong_start_sets_no_scale(void **state) {
    (void)state;
    for (int sweeps = 1; sweeps < 9; sweeps++) {
        handed t = {.huge = 1e10, .max_sweeps = sweeps};
        dpcr_error error = {0};
        if (dpcri_threads_run(context, 8, 30, handing_rank, &t, &error) != DPCR_OK) fail_msg("%s", error.text);
        for (int r = 0; r < 8; r++) {
            if (t.ends[r][0] != 1) fail_msg("%d sweeps, rank %d: %g", sweeps, r, t.ends[r][0]);
            assert_true(t.ends[r][1] == (r ? 1 + 1e-9 : 1));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_of_the_loop),
        cmocka_unit_test(within_the_tolerance),
        cmocka_unit_test(small_states_join_beside_themselves),
        cmocka_unit_test(the_ranks_own_ways_back),
        cmocka_unit_test(refusals),
        cmocka_unit_test(failures_of_one_rank),
        cmocka_unit_test(ranks_own_verdicts),
        cmocka_unit_test(no_estimate_of_what_is_not_finite),
        cmocka_unit_test(a_wrong_start_sets_no_scale),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
