// SPDX-License-Identifier: MIT
// parataa against its formula written out: what k steps substituted into each other come to, whole sweeps with their
// mixing in long double, the evaluations that are counted, and a caller who stops it.
#include <stdbool.h>
#include <time.h>

#include "solving.h"

enum { LENGTH = 120, MOST_MIXED = 4, MOST_SWEEPS = 12 };

static dpcr_solve_options parataa_of(int mixed, int64_t order, int sweeps) {
    return (dpcr_solve_options){.size = sizeof(dpcr_solve_options),
                                .method = DPCR_METHOD_PARATAA,
                                .scheme = DPCR_SCHEME_SEQUENTIAL,
                                .backward = DPCR_SCHEME_SEQUENTIAL,  // nothing is planned
                                .guess = DPCR_GUESS_GIVEN,
                                .mixed = mixed,
                                .order = order,
                                .max_sweeps = sweeps,
                                .no_fallback = sweeps > 0};
}

// ---- one sweep of a chain that takes nothing in: R is its residuals substituted, whatever the states are ----

static void step_of_integers(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)in, (void)j;
    for (int64_t i = 0; i < c->width; i++) out[i] = (double)((l * 7 + b * 3 + i * 5) % 11 - 5);
}

static long double times(long double c, long double x) { return c == 0 || x == 0 ? 0 : c * x; }

// States of one number after the first sweep from `guess`, and the largest number in each one's sum, as far as it is
// not cut.
static void substituted(const chain *c, const double *slopes, int64_t order, const double *guess, long double *to,
                        double *most) {
    long double r[LENGTH];
    for (int64_t l = 0; l < LENGTH; l++) {
        double f = 0;
        c->step(c, l, 0, NULL, &f, NULL);
        r[l] = (long double)f - (long double)guess[l];
        long double sum = 0;
        most[l] = 0;
        for (int64_t j = l - order < -1 ? 0 : l - order + 1; j <= l; j++) {
            if (slopes[j] == 0) most[l] = 0;
            sum = r[j] + times(slopes[j], sum);
            most[l] = fmax(most[l], fabs((double)sum));
        }
        to[l] = guess[l] + sum;
    }
    for (int64_t l = 0; l < LENGTH; l++)
        if (!isfinite((double)to[l])) to[l] = to[0];
}

// To the bit where no sum is rounded. Step 9 is far off, and the slopes do not forget it: no sum that it has left may
// know of it, which is where one that slides fails. Slopes of 0 cut, also behind one that is infinite,
// which makes nothing of steps that are right.
static void steps_are_substituted(void **state) {
    (void)state;
    static const int64_t orders[] = {1, 2, 3, 7, 8, 29, 40, 60, 61, LENGTH - 1, LENGTH};
    static const double drawn[] = {1, -1, 2, 1, -0.5, 1};
    dpcr_context *context = solving_context(1);
    chain c = {.step = step_of_integers, .length = LENGTH, .batch = 1, .width = 1, .dtype = DPCR_F64};
    const double z0 = 0;
    for (size_t k = 0; k < sizeof orders / sizeof *orders; k++)
        for (int kind = 0; kind < 4; kind++) {  // neutral; growing; drawn, with zeros; and with infinities
            double slopes[LENGTH], guess[LENGTH], most[LENGTH];
            long double wanted[LENGTH];
            int exact = 0;
            for (int64_t l = 0; l < LENGTH; l++) {
                slopes[l] = kind == 0 ? 1 : kind == 1 ? 2 : l % 17 == 5 ? 0 : drawn[l % 6];
                if (kind == 3 && l % 50 == 20) slopes[l] = INFINITY;
                guess[l] = (double)(l * l % 13);
                if (l % 50 == 18 || l % 50 == 19) c.step(&c, l, 0, NULL, &guess[l], NULL);  // nothing to carry on
            }
            guess[9] = 0x1p70;
            substituted(&c, slopes, orders[k], guess, wanted, most);
            dpcr_steps steps = chain_steps(&c);
            steps.slopes = slopes;
            const dpcr_solve_options by = parataa_of(1, orders[k], 1);
            solved s = solve_steps(context, &steps, &c, &z0, &by, guess, 0);
            assert_int_equal(s.status, DPCR_OK);
            assert_int_equal(s.report.sweeps, 1);
            for (int64_t l = 0; l < LENGTH; l++) {
                const double got = ((double *)s.z)[l], want = (double)wanted[l];
                const bool rounded = most[l] > 0x1p44 && isfinite(most[l]);
                exact += !rounded;
                if (rounded ? got != want && !(fabs(got - want) <= 1e-12 * most[l]) : got != want)
                    fail_msg("order %d, slopes %d, step %d: %.17g, wanted %.17g", (int)orders[k], kind, (int)l, got,
                             want);
            }
            if (orders[k] <= 8) assert_true(exact > LENGTH - 30);
            solved_free(&s);
        }
    dpcr_context_destroy(context);
}

// ---- whole sweeps ----

// z' = z + M h sin(3 z / M + l), M of parameters[0]; neighbours mix.
static void step_of_size(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    const double size = c->parameters[0];
    (void)j;
    for (int64_t i = 0; i < c->width; i++)
        out[i] = in[i] + size * 0.05 * sin(3 * in[(i + 1) % c->width] / size + (double)(l + b));
}

enum { WIDTH = 2, STATES = LENGTH * WIDTH };

// parataa as its file's head has it; a window's new steps copy the state before them.
typedef struct formula {
    const chain *c;
    const double *slopes;
    int64_t order, window, front;
    int mixed, sweep;
    double z0[WIDTH], z[STATES];
    long double R[MOST_SWEEPS][STATES], before[MOST_SWEEPS][STATES];
    int64_t lo[MOST_SWEEPS], hi[MOST_SWEEPS];
} formula;

static bool had(const formula *m, int sweep, int64_t l) {
    return l >= m->lo[sweep] && l < m->hi[sweep] && l >= m->lo[sweep - 1] && l < m->hi[sweep - 1];
}

static void formula_gamma(int n, long double b[3][3], const long double *d, long double *gamma) {
    long double a[3][4] = {{0}};
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < n; k++) a[i][k] = b[i][k] + (i == k ? 1e-3 : 0);
        a[i][3] = d[i];
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++) {
            const long double factor = k == i ? 0 : a[k][i] / a[i][i];
            for (int q = 0; q < 4; q++) a[k][q] -= factor * a[i][q];
        }
    for (int i = 0; i < n; i++) gamma[i] = a[i][3] / a[i][i];
}

// The residuals decide from where on states move, which the sweep returns.
static int64_t formula_residuals(formula *m, double tolerance, long double *r) {
    const int64_t lo = m->lo[m->sweep], hi = m->hi[m->sweep];
    int64_t good = lo;
    for (int64_t l = lo; l < hi; l++) {
        double f[WIDTH];
        bool within = true;
        m->c->step(m->c, l, 0, l ? m->z + (l - 1) * WIDTH : m->z0, f, NULL);
        for (int64_t i = 0; i < WIDTH; i++) {
            r[l * WIDTH + i] = (long double)f[i] - m->z[l * WIDTH + i];
            within = within && fabs(f[i] - m->z[l * WIDTH + i]) <= tolerance * (1 + fabs(m->z[l * WIDTH + i]));
        }
        if (good == l && within) good++;
    }
    return good;
}

static void formula_mix(formula *m, int64_t good, const long double *r) {
    const int now = m->sweep, n = now < m->mixed - 1 ? now : m->mixed - 1;
    const int64_t lo = m->lo[now], hi = m->hi[now];
    long double b[3][3] = {{0}}, d[3] = {0}, gamma[3] = {0};
    for (int64_t l = lo; l < hi; l++) {
        for (int q = 0; q < n; q++)
            for (int64_t i = l * WIDTH; had(m, now - q, l) && i < (l + 1) * WIDTH; i++) {
                const long double x = m->R[now - q][i] - m->R[now - q - 1][i];
                for (int k = 0; k < n; k++)
                    if (had(m, now - k, l)) b[q][k] += x * (m->R[now - k][i] - m->R[now - k - 1][i]);
                d[q] += x * m->R[now][i];
            }
        formula_gamma(n, b, d, gamma);
        for (int64_t i = l * WIDTH; l >= good && i < (l + 1) * WIDTH; i++) {
            long double next = m->z[i] + (l == lo ? r[i] : m->R[now][i]);
            for (int q = 0; l > lo && q < n; q++)
                if (had(m, now - q, l))
                    next -= gamma[q] * (m->before[now - q][i] - m->before[now - q - 1][i] + m->R[now - q][i] -
                                        m->R[now - q - 1][i]);
            m->z[i] = (double)next;
        }
    }
}

static void formula_sweep(formula *m, double tolerance) {
    const int now = m->sweep;
    long double r[STATES] = {0};
    const int64_t lo = m->lo[now] = m->front,
                  hi = m->hi[now] = m->front + m->window < LENGTH ? m->front + m->window : LENGTH;
    for (int64_t i = (now ? m->hi[now - 1] : 0) * WIDTH; i < hi * WIDTH; i++)
        if (m->window < LENGTH) m->z[i] = i < WIDTH ? m->z0[i] : m->z[i - WIDTH];
    for (int64_t i = 0; i < STATES; i++) m->before[now][i] = m->z[i];
    const int64_t good = formula_residuals(m, tolerance, r);
    for (int64_t l = lo; l < hi; l++)
        for (int64_t i = 0; i < WIDTH; i++) {
            long double sum = 0;
            for (int64_t j = l - m->order + 1 > lo ? l - m->order + 1 : lo; j <= l; j++)
                sum = r[j * WIDTH + i] + times(m->slopes[j], sum);
            m->R[now][l * WIDTH + i] = sum;
        }
    formula_mix(m, good, r);
    m->front = good > lo ? good : lo + 1;
    m->sweep++;
}

// Sweep after sweep, states of size 1 and, within double's digits of them, 2^33: the differences of the last sweeps are
// kept in the chain's numbers.
static void sweeps_are_the_formulas(void **state) {
    (void)state;
    static const double sizes[] = {1, 0x1p33};
    static const int64_t orders[] = {1, 5, 30, LENGTH}, windows[] = {LENGTH, 50};
    dpcr_context *context = solving_context(1);
    double slopes[LENGTH];
    int compared = 0;
    for (int64_t l = 0; l < LENGTH; l++) slopes[l] = 1 + 0.01 * (double)(l % 5 - 2);
    for (int way = 0; way < 4 * 2 * 2 * MOST_MIXED; way++) {
        const double size = sizes[way % 2], tolerance = 1e-9;
        const int64_t window = windows[way / 2 % 2], order = orders[way / 4 % 4];
        const int mixed = way / 16 + 1;
        chain c = {
            .step = step_of_size, .length = LENGTH, .batch = 1, .width = WIDTH, .dtype = DPCR_F64, .parameters = &size};
        dpcr_steps steps = chain_steps(&c);
        steps.slopes = slopes;
        formula *m = calloc(1, sizeof *m);
        m->c = &c, m->slopes = slopes, m->order = order < window ? order : window, m->window = window, m->mixed = mixed;
        for (int64_t i = 0; i < WIDTH; i++) m->z0[i] = size * (0.4 - 0.3 * (double)i);
        for (int64_t i = 0; i < STATES; i++) m->z[i] = m->z0[i % WIDTH];
        int64_t work = 0;
        for (int sweeps = 1; sweeps <= (order < 5 ? MOST_SWEEPS : 8) && m->front < LENGTH; sweeps++) {
            formula_sweep(m, tolerance);
            work += m->hi[m->sweep - 1] - m->lo[m->sweep - 1];
            dpcr_solve_options by = parataa_of(mixed, order, 0);
            by.guess = DPCR_GUESS_STATE, by.window = window, by.atol = by.rtol = tolerance;
            by.no_fallback = 1;
            by.max_sweeps = (int)((work + LENGTH - 1) / LENGTH);
            solved s = solve_steps(context, &steps, &c, m->z0, &by, NULL, 0);
            assert_int_equal(s.status, DPCR_OK);
            const bool same = s.report.sweeps == m->sweep && s.report.reason == DPCR_REASON_NOT_CONVERGED;
            compared += same;  // the budget, in evaluations of the chain, does not end after every sweep of a window
            for (int64_t i = 0; same && i < m->hi[m->sweep - 1] * WIDTH; i++)
                if (!(fabs(((double *)s.z)[i] - m->z[i]) <= 1e-9 * size))
                    fail_msg("size %g, order %d, window %d, mixed %d, sweep %d, step %d: %.17g, wanted %.17g", size,
                             (int)order, (int)window, mixed, m->sweep, (int)(i / WIDTH), ((double *)s.z)[i] / size,
                             m->z[i] / size);
            solved_free(&s);
        }
        free(m);
    }
    assert_true(compared > 300);
    dpcr_context_destroy(context);
}

// However large the states, mixing does no harm. (The differences of four sweeps are so nearly alike that rounding
// decides what becomes of them.)
static void large_states_converge(void **state) {
    (void)state;
    static const double sizes[] = {1, 1e4, 1e8, 1e12, 1e39, 1e100};
    dpcr_context *context = solving_context(1);
    for (int way = 0; way < 6 * MOST_MIXED; way++) {
        const double size = sizes[way / MOST_MIXED];
        chain c = {
            .step = step_of_size, .length = LENGTH, .batch = 1, .width = WIDTH, .dtype = DPCR_F64, .parameters = &size};
        const double z0[WIDTH] = {0.4 * size, 0.1 * size};
        dpcr_solve_options by = parataa_of(way % MOST_MIXED + 1, 0, 0);
        by.guess = DPCR_GUESS_STATE;
        solved s = solve(context, &c, z0, &by);
        void *loop = loop_of(&c, z0);
        assert_int_equal(s.status, DPCR_OK);
        if (s.report.reason != DPCR_REASON_RESIDUAL_ONLY || s.report.sweeps > (by.mixed < 4 ? 30 : LENGTH / 2))
            fail_msg("size %g, mixed %d: %s, %d sweeps", size, by.mixed, dpcr_reason_name(s.report.reason),
                     s.report.sweeps);
        assert_true(largest_error(&c, s.z, loop) < 1e-7);
        free(loop);
        solved_free(&s);
    }
    dpcr_context_destroy(context);
}

static void bits_are_those_of_one_thread(void **state) {
    (void)state;
    dpcr_context *contexts[2] = {solving_context(1), solving_context(3)};
    const double size = 1;
    for (int way = 0; way < 8; way++) {
        chain c = {.step = step_of_size,
                   .length = LENGTH,
                   .batch = 3,
                   .width = WIDTH,
                   .dtype = way % 2 ? DPCR_F64 : DPCR_F32,
                   .parameters = &size};
        void *z0 = starts(&c);
        dpcr_solve_options by = parataa_of(3, way / 2 % 2 ? 17 : 0, 0);
        by.guess = DPCR_GUESS_STATE, by.window = way / 4 ? 50 : 0;
        dpcr_steps steps = chain_steps(&c);
        steps.flops = 1e6;
        solved one = solve_steps(contexts[0], &steps, &c, z0, &by, NULL, 0);
        solved three = solve_steps(contexts[1], &steps, &c, z0, &by, NULL, 0);
        assert_true(one.status == DPCR_OK && three.status == DPCR_OK);
        assert_memory_equal(one.z, three.z, solving_bytes(&c) - 64);
        solved_free(&one), solved_free(&three);
        free(z0);
    }
    for (int i = 0; i < 2; i++) dpcr_context_destroy(contexts[i]);
}

// ---- what a sweep costs, and who stops it ----

static int64_t made;        // evaluations of sequences that are at work
static bool at_end;         // the last step was evaluated
static double last_pauses;  // seconds that this took, and that every question then takes

static int counted_advance(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                           const dpcr_array *last, const dpcr_array *tape) {
    const chain *c = user;
    for (int64_t b = 0; b < span->rows; b++)
        if (!span->active || span->active[b]) made += span->lanes * span->steps;
    at_end = span->first + span->lanes == c->length;
    if (at_end && last_pauses > 0) nanosleep(&(struct timespec){.tv_nsec = (long)(last_pauses * 1e9)}, NULL);
    return chain_advance(user, span, in, states, last, tape);
}

// What is reported was made: sequences that are done are not evaluated.
static void evaluations_are_those_made(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    const double size = 1, z0[6] = {0.4, 0.1, 1e3, 1e3, 1.5, 2};
    for (int64_t window = 0; window <= 30; window += 30) {
        chain c = {
            .step = step_of_size, .length = LENGTH, .batch = 3, .width = WIDTH, .dtype = DPCR_F64, .parameters = &size};
        dpcr_steps steps = chain_steps(&c);
        steps.advance = counted_advance;
        dpcr_solve_options by = parataa_of(2, 0, 0);
        by.window = window, by.guess = DPCR_GUESS_ZERO;
        made = 0;
        solved s = solve_steps(context, &steps, &c, z0, &by, NULL, 0);
        assert_int_equal(s.status, DPCR_OK);
        assert_int_equal(s.report.reason, DPCR_REASON_RESIDUAL_ONLY);
        assert_true(s.sweeps[0] != s.sweeps[1] || s.sweeps[0] != s.sweeps[2]);
        assert_int_equal(s.report.evaluations, made);
        solved_free(&s);
    }
    dpcr_context_destroy(context);
}

// Sums over the last k steps take as long whatever k is, where products over k steps, one for each, take hundreds of
// times that.
static void orders_cost_alike(void **state) {
    (void)state;
    enum { LONG = 30000 };
    dpcr_context *context = solving_context(1);
    const double size = 1, z0[1] = {0.3};
    double *slopes = malloc(LONG * sizeof *slopes), seconds[2] = {1e9, 1e9};
    for (int64_t l = 0; l < LONG; l++) slopes[l] = 1 - 1e-6 * (double)(l % 7);
    chain c = {.step = step_of_size, .length = LONG, .batch = 1, .width = 1, .dtype = DPCR_F64, .parameters = &size};
    dpcr_steps steps = chain_steps(&c);
    steps.slopes = slopes;
    for (int i = 0; i < 6; i++) {
        const dpcr_solve_options by = parataa_of(1, i % 2 ? LONG / 3 : 0, 1);
        solved s = solve_steps(context, &steps, &c, z0, &by, NULL, 0);
        assert_int_equal(s.status, DPCR_OK);
        seconds[i % 2] = fmin(seconds[i % 2], s.report.seconds_linear);
        solved_free(&s);
    }
    if (seconds[1] > 20 * seconds[0] + 0.01)
        fail_msg("%g s by a third of the steps, %g s by all", seconds[1], seconds[0]);
    free(slopes);
    dpcr_context_destroy(context);
}

static int asked_at(void *user) {
    if (at_end && last_pauses > 0) nanosleep(&(struct timespec){.tv_nsec = (long)(last_pauses * 1e9)}, NULL);
    return --*(int *)user == 0;
}

// A caller is asked before a sweep, where its evaluation begins, and, where questions are far enough apart, by each
// part of what follows it: whichever question is answered yes ends the call, and leaves out what was left.
static void cancel_is_heard(void **state) {
    (void)state;
    int left = 0;
    const dpcr_context_options made_with = {
        .size = sizeof made_with, .threads = 1, .cancel = asked_at, .cancel_user = &left};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&made_with, &context, NULL), DPCR_OK);
    const double size = 1;
    for (int after = 0; after < 2; after++) {  // steps that take long; and long sums over short steps
        chain c = {.step = step_of_size,
                   .length = after ? 10000 : LENGTH,
                   .batch = 1,
                   .width = after ? 40 : WIDTH,
                   .dtype = DPCR_F32,
                   .parameters = &size};
        void *z0 = starts(&c), *guess = calloc(1, solving_bytes(&c));
        dpcr_steps steps = chain_steps(&c);
        steps.advance = counted_advance;
        steps.flops = after ? 1 : 1e9;
        const dpcr_solve_options by = parataa_of(2, 0, 0);
        last_pauses = after ? 0.03 : 0;
        const int questions = after ? 7 : 2 * 10;  // of the first sweeps, that do not hang on the time between them
        for (int k = 1; k <= questions; k++) {
            left = k, made = 0, at_end = false;
            solved s = solve_steps(context, &steps, &c, z0, &by, guess, 0);
            if (s.status != DPCR_ERROR_CANCELLED) fail_msg("question %d was not heard", k);
            if (k < 3) assert_int_equal(made, 0);
            if (k < 3 || after) assert_memory_equal(s.z, guess, solving_bytes(&c) - 64);
            solved_free(&s);
        }
        free(z0), free(guess);
    }
    last_pauses = 0;
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_substituted),
        cmocka_unit_test(sweeps_are_the_formulas),
        cmocka_unit_test(large_states_converge),
        cmocka_unit_test(bits_are_those_of_one_thread),
        cmocka_unit_test(evaluations_are_those_made),
        cmocka_unit_test(orders_cost_alike),
        cmocka_unit_test(cancel_is_heard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
