// SPDX-License-Identifier: MIT
// How many sweeps samplers take on mixtures of normal data, whose denoiser is a formula: eight in a ring and two moons
// in the plane, eight in 8 and 16 dimensions. Sweeps are those of docs/diffusion.md's table and at most one more, since
// the formulas hang on the C library's exp: most of four seeds, steps' tolerance 1e-3, one window. By such tolerances a
// path may end at another centre than the loop's. DEEPPCR_TEST_SEEDS=N takes more seeds than the table's four, and
// DEEPPCR_TEST_TABLE=1 prints the table's rows. Of confirmed paths by quasi-newton, picard, parataa and parareal one in
// 400 is farther from the loop than its tolerance, though estimated within it; of newton's none.
//
//   x = alpha x0 + sigma e,  x0 normal around centre c_k with deviation d:   e = sigma (x - alpha m) / v,
//   v = (alpha d)^2 + sigma^2,  m = sum_k p_k c_k,  p_k ~ exp(-|x - alpha c_k|^2 / 2v),  dm/dx = alpha cov_p(c) / v
#include "sample/sample.h"
#include "sampled.h"
#include "sampling.h"

enum { CENTRES = 16, MOST = 16, STATED_SEEDS = 4, SEEDS = TESTS_SANITIZED ? 1 : STATED_SEEDS };
#define CONFIRM 0.01

typedef struct mixture {
    const char *name;
    int64_t width;
    int centres;
    double deviation, centre[CENTRES][MOST];
    dpcr_noise_options noise;
    double abar[1000];
} mixture;

static int mixture_linearise(void *user, int64_t rows, const void *x, const double *times, const int64_t *sequences,
                             void *m, void *j) {
    const mixture *g = user;
    const int64_t w = g->width;
    (void)sequences;
    for (int64_t r = 0; r < rows; r++) {
        const dpcri_place at = dpcri_place_at(&g->noise, g->abar, times[r]);
        const double a = at.alpha, s = at.sigma, v = a * a * g->deviation * g->deviation + s * s;
        const double *from = (const double *)x + r * w;
        double p[CENTRES], sum = 0, best = HUGE_VAL, mean[MOST] = {0};
        for (int k = 0; k < g->centres; k++) {
            p[k] = 0;
            for (int64_t i = 0; i < w; i++) p[k] += pow(from[i] - a * g->centre[k][i], 2);
            best = fmin(best, p[k]);
        }
        for (int k = 0; k < g->centres; k++) sum += p[k] = exp((best - p[k]) / (2 * v));
        for (int k = 0; k < g->centres; k++)
            for (int64_t i = 0; i < w; i++) mean[i] += p[k] / sum * g->centre[k][i];
        for (int64_t i = 0; i < w; i++) ((double *)m)[r * w + i] = s * (from[i] - a * mean[i]) / v;
        for (int64_t i = 0; j && i < w; i++)
            for (int64_t q = 0; q < w; q++) {
                double covariance = 0;
                for (int k = 0; k < g->centres; k++)
                    covariance += p[k] / sum * (g->centre[k][i] - mean[i]) * (g->centre[k][q] - mean[q]);
                ((double *)j)[(r * w + i) * w + q] = s / v * ((i == q) - a * a * covariance / v);
            }
    }
    return 0;
}

static int mixture_predict(void *user, int64_t rows, const void *x, const double *times, const int64_t *sequences,
                           void *m) {
    return mixture_linearise(user, rows, x, times, sequences, m, NULL);
}

static const char *const names[] = {"eight in a ring", "two moons", "eight, 8-D", "eight, 16-D"};
enum { MIXTURES = sizeof names / sizeof *names };

static mixture make_mixture(int which) {
    static const int64_t widths[] = {2, 2, 8, 16};
    mixture g = {.name = names[which], .width = widths[which], .centres = which == 1 ? 16 : 8, .deviation = 0.05};
    for (int k = 0; k < g.centres; k++) {
        const double turn = acos(-1) * (which == 1 ? (k % 8) / 7.0 : k / 4.0);
        const bool lower = k >= 8;
        if (which < 2) {
            g.centre[k][0] = which == 0 ? 0.7 * cos(turn) : 0.5 * ((lower ? 1 - cos(turn) : cos(turn)) - 0.5);
            g.centre[k][1] = which == 0 ? 0.7 * sin(turn) : 0.5 * ((lower ? 0.5 - sin(turn) : sin(turn)) - 0.25);
        }
        for (int64_t i = 0; which > 1 && i < g.width; i++)
            g.centre[k][i] = sin(1 + 7.3 * k + 2.9 * (double)i * (k + 1));
    }
    assert_int_equal(dpcri_noise_options_fill(&(dpcr_noise_options){0}, &g.noise, NULL), DPCR_OK);
    dpcri_noise_fill(&g.noise, NULL, g.abar);
    return g;
}

static dpcr_sampler *make_sampler(dpcr_context *context, mixture *g, dpcr_sampler_kind kind, int64_t steps,
                                  uint64_t seed) {
    const dpcr_denoiser denoiser = {.size = sizeof denoiser,
                                    .user = g,
                                    .width = g->width,
                                    .dtype = DPCR_F64,
                                    .prediction = DPCR_PREDICT_EPSILON,
                                    .flops = 1,
                                    .predict = mixture_predict,
                                    .linearise = mixture_linearise,
                                    .jacobian_flops = 1};
    const dpcr_sampler_options options = {.size = sizeof options, .kind = kind, .steps = steps, .seed = seed};
    dpcr_sampler *sampler = NULL;
    assert_int_equal(dpcr_sampler_create(context, &denoiser, &options, 1, &sampler, NULL), DPCR_OK);
    return sampler;
}

enum { METHODS = 5, CHAINS = 5 };
static const dpcr_method methods[METHODS] = {DPCR_METHOD_NEWTON, DPCR_METHOD_DIAGONAL, DPCR_METHOD_PICARD,
                                             DPCR_METHOD_PARATAA, DPCR_METHOD_PARAREAL};
static const struct {
    dpcr_sampler_kind kind;
    int64_t steps;
} chains[CHAINS] = {{DPCR_SAMPLER_DDIM, 10},
                    {DPCR_SAMPLER_DDIM, 100},
                    {DPCR_SAMPLER_DDIM, 200},
                    {DPCR_SAMPLER_DDPM, 100},
                    {DPCR_SAMPLER_DDPM, 1000}};

static void jacobians_are_differences(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    for (int which = 0; which < MIXTURES; which++) {
        mixture g = make_mixture(which);
        dpcr_sampler *sampler = make_sampler(context, &g, DPCR_SAMPLER_DDIM, 20, 1);
        double z0[MOST];
        const dpcr_array start = dpcr_array_make(z0, DPCR_F64, 2, (const int64_t[]){1, g.width});
        dpcr_error error = {0};
        assert_int_equal(dpcr_sampler_start(sampler, NULL, &start, NULL), DPCR_OK);
        if (dpcr_steps_check(context, dpcr_sampler_steps(sampler), &start, 1e-4, &error) != DPCR_OK)
            fail_msg("%s: %s", g.name, error.text);
        dpcr_sampler_destroy(sampler);
    }
    dpcr_context_destroy(context);
}

static double relative_distance(const solved *a, const solved *b) {
    const double *x = a->z, *y = b->z;
    double most = 0;
    for (int64_t i = 0; i < a->length * a->batch * a->width; i++) {
        const double d = fabs(x[i] - y[i]) / fmax(1, fabs(y[i]));
        if (!(d <= most)) most = d;
    }
    return most;
}

// Most of the seeds: sweeps, evaluations a step (products with the Jacobian among them), distance of a state.
typedef struct counted {
    int sweeps, beyond;  // confirmed, and yet farther than CONFIRM
    double evaluations, distance, confirmed;
} counted;

static void count(dpcr_context *context, mixture *g, int chain, dpcr_method method, uint64_t seed, counted *most) {
    dpcr_sampler *sampler = make_sampler(context, g, chains[chain].kind, chains[chain].steps, seed);
    const dpcr_solve_options in_order = by_method(DPCR_METHOD_SEQUENTIAL);
    dpcr_solve_options by = by_method(method);
    by.atol = by.rtol = 1e-3;
    by.guess = DPCR_GUESS_STATE;
    int64_t rows = 0, products = 0;
    solved loop = solve_sampler(context, sampler, &in_order, NULL);
    dpcr_sampler_counts_reset(sampler);
    solved got = solve_sampler(context, sampler, &by, NULL);
    dpcr_sampler_counts(sampler, &rows, &products, NULL);
    if (got.report.sweeps > most->sweeps) most->sweeps = got.report.sweeps;
    most->evaluations = fmax(most->evaluations, (double)(rows + products) / (double)chains[chain].steps);
    most->distance = fmax(most->distance, path_distance(&got, &loop));
    path_free(&got);
    by.confirm = CONFIRM;
    got = solve_sampler(context, sampler, &by, NULL);
    const double distance = relative_distance(&got, &loop);
    most->confirmed = fmax(most->confirmed, distance);
    if (!(distance <= (seed > STATED_SEEDS ? 20 : 5) * CONFIRM) || got.report.reason < 0)
        fail_msg("%s, %s %d by %s, seed %d: confirmed, %g from the loop, %s", g->name,
                 dpcr_sampler_name(chains[chain].kind), (int)chains[chain].steps, dpcr_method_name(method), (int)seed,
                 distance, dpcr_reason_name(got.report.reason));
    most->beyond += distance > CONFIRM;
    path_free(&got);
    path_free(&loop);
    dpcr_sampler_destroy(sampler);
}

static void sweeps_are_those_stated(void **state) {
    (void)state;
    static const int stated[MIXTURES][CHAINS][METHODS] = {
        {{2, 3, 6, 4, 2}, {2, 6, 11, 6, 3}, {1, 6, 12, 5, 3}, {5, 6, 27, 9, 3}, {8, 8, 34, 12, 4}},
        {{3, 3, 5, 4, 2}, {4, 5, 10, 7, 3}, {3, 5, 12, 7, 3}, {7, 7, 27, 10, 2}, {7, 9, 34, 7, 3}},
        {{3, 5, 6, 7, 3}, {4, 8, 12, 14, 4}, {3, 11, 14, 16, 4}, {11, 13, 29, 18, 5}, {6, 7, 36, 10, 3}},
        {{2, 3, 5, 5, 3}, {2, 4, 12, 7, 3}, {2, 4, 12, 6, 4}, {9, 12, 28, 17, 4}, {12, 17, 36, 21, 6}}};
    dpcr_context *context = sampling_context(1);
    const bool print = getenv("DEEPPCR_TEST_TABLE") != NULL;
    const char *asked = getenv("DEEPPCR_TEST_SEEDS");
    const uint64_t seeds = asked ? strtoull(asked, NULL, 10) : SEEDS;
    assert_true(seeds >= 1);
    int beyond = 0, beyond_by[METHODS] = {0};
    double worst = 0;
    for (int which = 0; which < MIXTURES; which++) {
        mixture g = make_mixture(which);
        for (int c = 0; c < CHAINS; c++) {
            if (print) printf("| %s | %s %d ", g.name, dpcr_sampler_name(chains[c].kind), (int)chains[c].steps);
            for (int k = 0; k < METHODS; k++) {
                counted most = {0};
                for (uint64_t seed = 1; seed <= seeds; seed++) count(context, &g, c, methods[k], seed, &most);
                beyond_by[k] += most.beyond;
                worst = fmax(worst, most.confirmed);
                if (print) printf("| %d, %.2g, %.1g ", most.sweeps, most.evaluations, most.distance);
                if (most.sweeps < 1 || (seeds <= STATED_SEEDS && most.sweeps > stated[which][c][k] + 1))
                    fail_msg("%s, %s %d by %s: %d sweeps, wanted at most %d", g.name, dpcr_sampler_name(chains[c].kind),
                             (int)chains[c].steps, dpcr_method_name(methods[k]), most.sweeps, stated[which][c][k] + 1);
            }
            if (print) printf("|\n");
        }
    }
    for (int k = 0; k < METHODS; k++) {
        beyond += beyond_by[k];
        if (print) printf("%s: %d confirmed paths beyond %g\n", dpcr_method_name(methods[k]), beyond_by[k], CONFIRM);
    }
    if (print) printf("the farthest: %.2g\n", worst);
    assert_int_equal(beyond_by[0], 0);
    assert_true(beyond <= 1 + (int)(seeds * MIXTURES * CHAINS * METHODS / 400));
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jacobians_are_differences),
        cmocka_unit_test(sweeps_are_those_stated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
