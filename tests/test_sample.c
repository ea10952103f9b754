// SPDX-License-Identifier: MIT
// Samplers against published numbers: DDIM and DDPM of huggingface/diffusers' tests (tests/schedulers/
// test_scheduler_{ddim,ddpm}_parallel.py), orders of convergence on a Gaussian whose paths are known, spacings.
#include "sample/sample.h"
#include "sampling.h"

#include "fixtures/sampler_fixtures.h"

enum { PIXELS = 768, WIDTH = 8, ROWS = PIXELS / WIDTH };

// The tests' model: m = x t / (t + 1), element by element.
static int plain_linearise(void *user, int64_t rows, const void *x, const double *times, const int64_t *sequences,
                           void *m, void *j) {
    const double *from = x;
    double *to = m, *a = j;
    (void)user, (void)sequences;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < WIDTH; k++) {
            const double factor = times[i] / (times[i] + 1);
            to[i * WIDTH + k] = from[i * WIDTH + k] * factor;
            for (int64_t b = 0; a && b < WIDTH; b++) a[(i * WIDTH + k) * WIDTH + b] = b == k ? factor : 0;
        }
    return 0;
}

static int plain_predict(void *user, int64_t rows, const void *x, const double *times, const int64_t *sequences,
                         void *m) {
    return plain_linearise(user, rows, x, times, sequences, m, NULL);
}

static dpcr_denoiser plain(dpcr_prediction prediction) {
    return (dpcr_denoiser){.size = sizeof(dpcr_denoiser),
                           .width = WIDTH,
                           .dtype = DPCR_F64,
                           .prediction = prediction,
                           .flops = WIDTH,
                           .predict = plain_predict,
                           .linearise = plain_linearise,
                           .jacobian_flops = WIDTH * WIDTH};
}

typedef struct published {
    const char *name;
    dpcr_sampler_kind kind;
    dpcr_prediction prediction;
    int64_t steps, skip;
    double beta_first;
    int keep_last;
    double sum, mean;  // of absolute values
    bool noisy;
} published;

// A31a to A31e, and A32c to A32e. The last was published with abar in float32, where 1 - abar_0 cancels: 387.9466.
static const published cases[] = {
    {"DDIM", DPCR_SAMPLER_DDIM, DPCR_PREDICT_EPSILON, 10, 0, 1e-4, 0, 172.0067, 0.223967, false},
    {"DDIM, v", DPCR_SAMPLER_DDIM, DPCR_PREDICT_V, 10, 0, 1e-4, 0, 52.5302, 0.0684, false},
    {"DDIM, alpha one", DPCR_SAMPLER_DDIM, DPCR_PREDICT_EPSILON, 10, 0, 0.01, 0, 149.8295, 0.1951, false},
    {"DDIM, no alpha one", DPCR_SAMPLER_DDIM, DPCR_PREDICT_EPSILON, 10, 0, 0.01, 1, 149.0784, 0.1941, false},
    {"DDIM, noised", DPCR_SAMPLER_DDIM, DPCR_PREDICT_EPSILON, 10, 8, 1e-4, 0, 354.5418, 0.4616, false},
    {"DDPM without noise", DPCR_SAMPLER_DDPM, DPCR_PREDICT_EPSILON, 1000, 0, 1e-4, 0, 0.6609, 0.000861, false},
    {"DDPM", DPCR_SAMPLER_DDPM, DPCR_PREDICT_EPSILON, 1000, 0, 1e-4, 0, 258.9606, 0.3372, true},
    {"DDPM, v", DPCR_SAMPLER_DDPM, DPCR_PREDICT_V, 1000, 0, 1e-4, 0, 202.0296, 0.2631, true},
    {"DDPM, noised", DPCR_SAMPLER_DDPM, DPCR_PREDICT_EPSILON, 1000, 998, 1e-4, 0, 387.9673, 0.5051, true},
};

// ---- PyTorch's generator, seed 0: MT19937 (Matsumoto, Nishimura), and randn by Box and Muller, sixteen numbers at a
// time ----

enum { TWIST = 624, TWIST_AHEAD = 397 };

typedef struct torch_generator {
    uint32_t word[TWIST];
    int next;
} torch_generator;

static torch_generator torch_seed(uint32_t seed) {
    torch_generator g = {.word = {seed}, .next = TWIST};
    for (uint32_t i = 1; i < TWIST; i++) g.word[i] = 1812433253U * (g.word[i - 1] ^ g.word[i - 1] >> 30) + i;
    return g;
}

static double torch_uniform(torch_generator *g) {
    for (int i = 0; g->next == TWIST && i < TWIST; i++) {
        const uint32_t y = (g->word[i] & 0x80000000U) | (g->word[(i + 1) % TWIST] & 0x7fffffffU);
        g->word[i] = g->word[(i + TWIST_AHEAD) % TWIST] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfU : 0);
    }
    uint32_t y = g->word[g->next = g->next % TWIST];
    g->next++;
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680U;
    y ^= y << 15 & 0xefc60000U;
    y ^= y >> 18;
    return (y & 0xffffffU) * 0x1p-24;
}

static void torch_randn(torch_generator *g, double *x, int count) {
    const double turn = 2 * acos(-1);
    for (int from = 0; from < count; from += 16) {
        for (int i = from; i < from + 16; i++) x[i] = torch_uniform(g);
        for (int i = from; i < from + 8; i++) {
            const double radius = sqrt(-2 * log(1 - x[i])), angle = turn * x[i + 8];
            x[i] = radius * cos(angle);
            x[i + 8] = radius * sin(angle);
        }
    }
}

// Noise [4][3][8][8] of every step but the last; number p of the sample is its place [p % 4][p / 4].
static void draw_noise(dpcr_sampler *sampler, int64_t length) {
    torch_generator generator = torch_seed(0);
    double drawn[PIXELS];
    for (int64_t l = 0; l + 1 < length; l++) {
        torch_randn(&generator, drawn, PIXELS);
        for (int p = 0; p < PIXELS; p++)
            ((double *)sampler->noise)[l * PIXELS + p] = drawn[p % 4 * (PIXELS / 4) + p / 4];
    }
}

static void drawn_as_torch_does(void **state) {
    (void)state;
    torch_generator generator = torch_seed(0);
    double x[2 * PIXELS];
    torch_randn(&generator, x, PIXELS);
    torch_randn(&generator, x + PIXELS, PIXELS);
    static const struct {
        int at;
        double value;  // torch.manual_seed(0); torch.randn(4, 3, 8, 8), twice; float32
    } wanted[] = {{0, -1.1258398}, {1, -1.1523602}, {767, -0.2326160}, {768, 0.4974166}, {770, 1.4768786}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        assert_true(fabs(x[wanted[i].at] - wanted[i].value) < 2e-6);
}

static dpcr_sampler *make_case(dpcr_context *context, const published *c) {
    const dpcr_denoiser denoiser = plain(c->prediction);
    const dpcr_sampler_options options = {.size = sizeof options,
                                          .kind = c->kind,
                                          .steps = c->steps,
                                          .skip = c->skip,
                                          .clip = 1,
                                          .keep_last = c->keep_last,
                                          .noise = {.beta_first = c->beta_first}};
    dpcr_sampler *sampler = NULL;
    dpcr_error error = {0};
    if (dpcr_sampler_create(context, &denoiser, &options, ROWS, &sampler, &error) != DPCR_OK)
        fail_msg("%s", error.text);
    for (int64_t i = 0; i < PIXELS; i++) ((double *)sampler->start)[i] = (double)(PIXELS - 1 - i) / PIXELS;
    const int64_t length = c->steps - c->skip;
    if (sampler->noise) memset(sampler->noise, 0, sizeof(double) * (size_t)(length * PIXELS));
    if (c->noisy) draw_noise(sampler, length);
    return sampler;
}

// ---- PyTorch's paths ----

static int tanh_predict(void *user, int64_t rows, const void *x, const double *times, const int64_t *sequences,
                        void *m) {
    const double *from = x;
    double *to = m;
    (void)user, (void)sequences;
    for (int64_t n = 0; n < rows; n++)
        for (int64_t i = 0; i < SAMPLER_WIDTH; i++) {
            double sum = 0.01 * times[n];
            for (int64_t j = 0; j < SAMPLER_WIDTH; j++)
                sum += sin((double)(1 + 3 * i + j)) / 2 * from[n * SAMPLER_WIDTH + j];
            to[n * SAMPLER_WIDTH + i] = tanh(sum);
        }
    return 0;
}

static void torch_paths(void **state) {
    (void)state;
    enum { NUMBERS = SAMPLER_ROWS * SAMPLER_WIDTH };
    dpcr_context *context = sampling_context(1);
    double x[NUMBERS];
    const dpcr_array start = dpcr_array_make(x, DPCR_F64, 2, (const int64_t[]){SAMPLER_ROWS, SAMPLER_WIDTH});
    for (int i = 0; i < NUMBERS; i++) x[i] = cos((double)i);
    for (size_t k = 0; k < sizeof sampler_paths / sizeof *sampler_paths; k++) {
        const dpcr_denoiser denoiser = {.size = sizeof denoiser,
                                        .width = SAMPLER_WIDTH,
                                        .dtype = DPCR_F64,
                                        .prediction = sampler_paths[k].prediction,
                                        .flops = 1,
                                        .predict = tanh_predict};
        const dpcr_sampler_options options = {.size = sizeof options,
                                              .kind = sampler_paths[k].kind,
                                              .steps = SAMPLER_STEPS,
                                              .eta = sampler_paths[k].eta,
                                              .clip = sampler_paths[k].clip,
                                              .noise = {.steps = SAMPLER_T, .kind = sampler_paths[k].noise}};
        dpcr_sampler *sampler = NULL;
        assert_int_equal(dpcr_sampler_create(context, &denoiser, &options, SAMPLER_ROWS, &sampler, NULL), DPCR_OK);
        for (int i = 0; sampler->noise && i < SAMPLER_STEPS * NUMBERS; i++)
            ((double *)sampler->noise)[i] = sin(2 + (double)(i % NUMBERS) + 5 * (double)(i / NUMBERS));
        for (int m = 0; m < 2; m++) {
            dpcr_solve_options by = by_method(m ? DPCR_METHOD_PARAREAL : DPCR_METHOD_SEQUENTIAL);
            by.atol = by.rtol = 1e-13;
            solved got = solve_sampler(context, sampler, &by, &start);
            for (int i = 0; i < NUMBERS; i++) {
                const int64_t row = i / SAMPLER_WIDTH * got.width + i % SAMPLER_WIDTH;
                const double middle = ((double *)got.z)[3 * SAMPLER_ROWS * got.width + row];
                const double end = ((const double *)path_end(&got))[row];
                if (!(fabs(middle - sampler_paths[k].middle[i]) < 1e-10 && fabs(end - sampler_paths[k].end[i]) < 1e-10))
                    fail_msg("path %d, number %d: %.15g and %.15g, wanted %.15g and %.15g", (int)k, i, middle, end,
                             sampler_paths[k].middle[i], sampler_paths[k].end[i]);
            }
            path_free(&got);
        }
        dpcr_sampler_destroy(sampler);
    }
    dpcr_context_destroy(context);
}

static double sum_of(const void *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += fabs(((const double *)x)[i]);
    return sum;
}

static void published_numbers_by_every_method(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    double x[PIXELS];
    const dpcr_array start = dpcr_array_make(x, DPCR_F64, 2, (const int64_t[]){ROWS, WIDTH});
    static const dpcr_method methods[] = {DPCR_METHOD_SEQUENTIAL, DPCR_METHOD_NEWTON, DPCR_METHOD_DIAGONAL,
                                          DPCR_METHOD_PICARD};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const published *c = &cases[i];
        dpcr_sampler *sampler = make_case(context, c);
        solved loop = {0};
        for (size_t k = 0; k < sizeof methods / sizeof *methods; k++) {
            const dpcr_solve_options options = by_method(methods[k]);
            for (int64_t p = 0; p < PIXELS; p++) x[p] = (double)p / PIXELS;
            if (c->skip) assert_int_equal(dpcr_sampler_noise(sampler, &start, NULL), DPCR_OK);
            solved got = solve_sampler(context, sampler, &options, &start);
            const double sum = sum_of(path_end(&got), PIXELS);
            if (fabs(sum - c->sum) > 1e-2 || fabs(sum / PIXELS - c->mean) > 1e-3)
                fail_msg("%s by %s: %.6f", c->name, dpcr_method_name(methods[k]), sum);
            if (k == 0) {
                loop = got;
                continue;
            }
            assert_true(path_distance(&got, &loop) < 1e-8);
            if (i == 0 && methods[k] == DPCR_METHOD_DIAGONAL)
                assert_true(got.report.sweeps <= 2 && path_distance(&got, &loop) < 1e-14);
            path_free(&got);
        }
        path_free(&loop);
        dpcr_sampler_destroy(sampler);
    }
    dpcr_context_destroy(context);
}

// A31f and A32a: one step of three copies of the sample at times 0, 1, 2: sums of the published batched step.
static void published_single_steps(void **state) {
    (void)state;
    double abar[1000];
    const dpcr_noise_options noise = {.steps = 1000};
    dpcr_noise_options filled;
    assert_int_equal(dpcri_noise_options_fill(&noise, &filled, NULL), DPCR_OK);
    dpcri_noise_fill(&filled, NULL, abar);
    static const double shift[] = {0, 0.1, -0.1};
    static const struct {
        dpcr_sampler_kind kind;
        double back, sum, mean;
    } wanted[] = {{DPCR_SAMPLER_DDIM, 100, 1147.7904, 0.4982}, {DPCR_SAMPLER_DDPM, 1, 1153.1833, 0.5005}};
    for (int c = 0; c < 2; c++) {
        double sum = 0;
        for (int t = 0; t < 3; t++) {
            const dpcri_place at = dpcri_place_at(&filled, abar, t), done = {.time = -1, .alpha = 1};
            const dpcri_place to = t < wanted[c].back ? done : dpcri_place_at(&filled, abar, t - wanted[c].back);
            const dpcri_step s = dpcri_step_make(wanted[c].kind, DPCR_PREDICT_EPSILON, 0, at, to, NULL);
            for (int p = 0; p < PIXELS; p++) {
                const double x = (double)p / PIXELS + shift[t], m = x * t / (t + 1);
                const double x0 = fmax(fmin(s.first.x0_x * x + s.first.x0_m * m, 1), -1);
                sum += fabs(s.x * x + s.x0 * x0 + s.e * (s.first.e_x * x + s.first.e_m * m));
            }
        }
        assert_true(fabs(sum - wanted[c].sum) < 1e-2 && fabs(sum / PIXELS / 3 - wanted[c].mean) < 1e-3);
    }
}

// A31g, and A32b.
static void published_variances(void **state) {
    (void)state;
    double abar[1000];
    const dpcr_noise_options noise = {.size = sizeof noise, .steps = 1000};
    dpcr_noise_options filled;
    assert_int_equal(dpcri_noise_options_fill(&noise, &filled, NULL), DPCR_OK);
    assert_int_equal(dpcr_noise_fill(&noise, NULL, abar, NULL), DPCR_OK);
    static const struct {
        double at, to, variance;
    } wanted[] = {{420, 400, 0.14771}, {980, 960, 0.32460}, {487, 486, 0.00979}, {999, 998, 0.02}};
    for (int i = 0; i < 4; i++) {
        const dpcri_step s =
            dpcri_step_make(DPCR_SAMPLER_DDIM, DPCR_PREDICT_EPSILON, 1, dpcri_place_at(&filled, abar, wanted[i].at),
                            dpcri_place_at(&filled, abar, wanted[i].to), NULL);
        assert_true(fabs(s.variance - wanted[i].variance) < 1e-5 && fabs(s.noise * s.noise - s.variance) < 1e-15);
    }
    for (int i = 2; i < 4; i++) {
        const dpcri_step s =
            dpcri_step_make(DPCR_SAMPLER_DDPM, DPCR_PREDICT_EPSILON, 0, dpcri_place_at(&filled, abar, wanted[i].at),
                            dpcri_place_at(&filled, abar, wanted[i].to), NULL);
        assert_true(fabs(s.variance - wanted[i].variance) < 1e-5);
    }
    const dpcri_step last = dpcri_step_make(DPCR_SAMPLER_DDPM, DPCR_PREDICT_EPSILON, 0,
                                            dpcri_place_at(&filled, abar, 0), (dpcri_place){-1, 1, 0}, NULL);
    assert_true(last.variance == 0 && last.noise == 0);
    // With eta 1 DDIM is DDPM, for any prediction.
    const dpcri_place at = dpcri_place_at(&filled, abar, 700), to = dpcri_place_at(&filled, abar, 500);
    const dpcri_step a = dpcri_step_make(DPCR_SAMPLER_DDIM, DPCR_PREDICT_EPSILON, 1, at, to, NULL);
    const dpcri_step b = dpcri_step_make(DPCR_SAMPLER_DDPM, DPCR_PREDICT_EPSILON, 0, at, to, NULL);
    const double x = 0.3, m = -0.7, x0 = a.first.x0_x * x + a.first.x0_m * m;
    assert_true(fabs(a.x * x + a.x0 * x0 + a.e * m - (b.x * x + b.x0 * x0 + b.e * m)) < 1e-12);
    assert_true(fabs(a.noise - b.noise) < 1e-15);
}

// ---- data normal with mean 0.5 and deviation 0.3: x(t) = alpha 0.5 + sqrt(0.09 alpha^2 + sigma^2) z on every path
// ----

typedef struct gaussian {
    dpcr_noise_options noise;
    double abar[1000];
    dpcr_prediction prediction;
} gaussian;

static int gaussian_predict(void *user, int64_t rows, const void *x, const double *times, const int64_t *sequences,
                            void *m) {
    const gaussian *g = user;
    (void)sequences;
    for (int64_t i = 0; i < rows; i++) {
        const dpcri_place p = dpcri_place_at(&g->noise, g->abar, times[i]);
        const double a = p.alpha, s = p.sigma, xi = ((const double *)x)[i];
        const double x0 = 0.5 + 0.09 * a / (0.09 * a * a + s * s) * (xi - 0.5 * a), e = (xi - a * x0) / s;
        ((double *)m)[i] = g->prediction == DPCR_PREDICT_X0 ? x0 : g->prediction == DPCR_PREDICT_V ? a * e - s * x0 : e;
    }
    return 0;
}

static double end_error(dpcr_context *context, gaussian *g, dpcr_sampler_kind kind, dpcr_spacing spacing,
                        int64_t steps) {
    const dpcr_denoiser denoiser = {.size = sizeof denoiser,
                                    .user = g,
                                    .width = 1,
                                    .dtype = DPCR_F64,
                                    .prediction = g->prediction,
                                    .predict = gaussian_predict};
    const dpcr_sampler_options options = {.size = sizeof options,
                                          .kind = kind,
                                          .steps = steps,
                                          .spacing = spacing,
                                          .noise = g->noise,
                                          .keep_last = 1,
                                          .seed = 3};
    const dpcr_solve_options solve = by_method(DPCR_METHOD_SEQUENTIAL);
    dpcr_sampler *sampler = NULL;
    assert_int_equal(dpcr_sampler_create(context, &denoiser, &options, 4, &sampler, NULL), DPCR_OK);
    solved p = solve_sampler(context, sampler, &solve, NULL);
    double time = 0, worst = 0;
    assert_int_equal(dpcr_sampler_step(sampler, 0, &time, NULL, NULL), DPCR_OK);
    const dpcri_place first = dpcri_place_at(&g->noise, g->abar, time), last = dpcri_place_at(&g->noise, g->abar, 0);
    for (int64_t b = 0; b < 4; b++) {
        const double spread = sqrt(0.09 * first.alpha * first.alpha + first.sigma * first.sigma);
        const double z = (((double *)p.z0)[b * p.width] - 0.5 * first.alpha) / spread;
        const double wanted = 0.5 * last.alpha + sqrt(0.09 * last.alpha * last.alpha + last.sigma * last.sigma) * z;
        worst = fmax(worst, fabs(((const double *)path_end(&p))[b * p.width] - wanted));
    }
    path_free(&p);
    dpcr_sampler_destroy(sampler);
    return worst;
}

static void orders_of_convergence(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    static const struct {
        dpcr_sampler_kind kind;
        double order, most;  // least observed order from 20 to 40 steps, error at 40
    } wanted[] = {{DPCR_SAMPLER_EULER, 0.8, 0.1}, {DPCR_SAMPLER_HEUN, 1.6, 5e-3}, {DPCR_SAMPLER_DPM_SOLVER, 1.6, 2e-2}};
    for (int i = 0; i < 3; i++)
        for (int p = 0; p < DPCR_PREDICTION_COUNT; p++) {
            gaussian g = {.noise = {.size = sizeof g.noise, .steps = 1000}, .prediction = (dpcr_prediction)p};
            assert_int_equal(dpcri_noise_options_fill(&(dpcr_noise_options){0}, &g.noise, NULL), DPCR_OK);
            dpcri_noise_fill(&g.noise, NULL, g.abar);
            const double coarse = end_error(context, &g, wanted[i].kind, DPCR_SPACING_KARRAS, 20);
            const double fine = end_error(context, &g, wanted[i].kind, DPCR_SPACING_KARRAS, 40);
            if (!(log2(coarse / fine) > wanted[i].order && fine < wanted[i].most))
                fail_msg("%s, %s: %g at 20 steps, %g at 40", dpcr_sampler_name(wanted[i].kind),
                         dpcr_prediction_name((dpcr_prediction)p), coarse, fine);
        }
    dpcr_context_destroy(context);
}

// ---- schedules and spacings ----

static int predict_nothing(void *user, int64_t rows, const void *x, const double *times, const int64_t *steps,
                           void *to) {
    (void)user, (void)x, (void)times, (void)steps;
    memset(to, 0, (size_t)rows * sizeof(float));
    return 0;
}

// Karras' times begin with the last one and end with 0, and every step of the samplers that add noise has a number.
static void times_of_karras_reach_both_ends(void **state) {
    (void)state;
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(NULL, &context, NULL), DPCR_OK);
    for (int kind = 0; kind < 2; kind++)
        for (int64_t all = 2; all <= 1000; all += all < 30 ? 1 : 97)
            for (int64_t count = 2; count <= all && count <= 40; count += 1 + count / 4) {
                const dpcr_noise_options noise = {.size = sizeof noise, .kind = (dpcr_noise_kind)kind, .steps = all};
                const dpcr_denoiser denoiser = {
                    .size = sizeof denoiser, .width = 1, .dtype = DPCR_F32, .predict = predict_nothing};
                const dpcr_sampler_options o = {.size = sizeof o,
                                                .kind = all % 2 ? DPCR_SAMPLER_DDPM : DPCR_SAMPLER_DDIM,
                                                .eta = all % 2 ? 0 : 1,
                                                .noise = noise,
                                                .spacing = DPCR_SPACING_KARRAS,
                                                .steps = count,
                                                .keep_last = 1};
                dpcr_sampler *sampler = NULL;
                double times[40];
                assert_int_equal(dpcr_spacing_fill(DPCR_SPACING_KARRAS, &noise, count, times, NULL), DPCR_OK);
                assert_true(times[0] == (double)(all - 1) && times[count - 1] == 0);
                dpcr_error error = {0};
                if (dpcr_sampler_create(context, &denoiser, &o, 1, &sampler, &error) != DPCR_OK)
                    fail_msg("%s", error.text);
                for (int64_t k = 0; k < count; k++) {
                    double time = -1, variance = -1;
                    assert_int_equal(dpcr_sampler_step(sampler, k, &time, &variance, NULL), DPCR_OK);
                    if (!(variance >= 0)) fail_msg("%d of %d times: variance %g", (int)count, (int)all, variance);
                }
                dpcr_sampler_destroy(sampler);
            }
    dpcr_context_destroy(context);
}

static void schedules_are_their_formulas(void **state) {
    (void)state;
    double beta[1000], abar[1000];
    const dpcr_noise_options linear = {.size = sizeof linear, .kind = DPCR_NOISE_LINEAR},
                             cosine = {.size = sizeof cosine, .kind = DPCR_NOISE_COSINE};
    assert_int_equal(dpcr_noise_fill(&linear, beta, abar, NULL), DPCR_OK);
    assert_true(beta[0] == 1e-4 && fabs(beta[999] - 0.02) < 1e-15 && fabs(abar[999] - 4.0358e-5) < 1e-8);
    assert_int_equal(dpcr_noise_fill(&cosine, beta, abar, NULL), DPCR_OK);
    assert_true(beta[999] == 0.999 && fabs(abar[499] - 0.4938) < 1e-3);
    for (int t = 1; t < 1000; t++) assert_true(abar[t] < abar[t - 1]);
    static const struct {
        dpcr_spacing spacing;
        double first, second, last;
    } wanted[] = {{DPCR_SPACING_LEADING, 900, 800, 0},
                  {DPCR_SPACING_TRAILING, 999, 899, 99},
                  {DPCR_SPACING_LINSPACE, 999, 888, 0}};
    double times[10];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(dpcr_spacing_fill(wanted[i].spacing, &linear, 10, times, NULL), DPCR_OK);
        assert_true(times[0] == wanted[i].first && times[1] == wanted[i].second && times[9] == wanted[i].last);
    }
    assert_int_equal(dpcr_spacing_fill(DPCR_SPACING_KARRAS, &linear, 10, times, NULL), DPCR_OK);
    assert_true(times[0] == 999 && times[9] == 0);
    assert_int_equal(dpcr_noise_fill(&linear, NULL, abar, NULL), DPCR_OK);
    dpcr_noise_options filled;
    assert_int_equal(dpcri_noise_options_fill(&linear, &filled, NULL), DPCR_OK);
    for (int i = 1; i < 9; i++) {  // equal parts of the seventh root, as far as the interpolation follows
        const double low = exp(dpcri_log_ratio(&filled, abar, times[9]) / 7),
                     high = exp(dpcri_log_ratio(&filled, abar, times[0]) / 7);
        const double here = exp(dpcri_log_ratio(&filled, abar, times[i]) / 7);
        assert_true(fabs(here - (high + i / 9.0 * (low - high))) < 1e-9);
    }
}

// What lies beyond the size that a caller told is not read.
static void older_noise_has_the_defaults(void **state) {
    (void)state;
    double beta[1000], wanted[1000], times[10];
    dpcr_error error = {0};
    const dpcr_noise_options whole = {.size = sizeof whole, .steps = 1000};
    dpcr_noise_options older = {.size = offsetof(dpcr_noise_options, steps), .steps = -7, .beta_last = NAN};
    assert_int_equal(dpcr_noise_fill(&whole, wanted, NULL, NULL), DPCR_OK);
    assert_int_equal(dpcr_noise_fill(&older, beta, NULL, NULL), DPCR_OK);
    assert_memory_equal(beta, wanted, sizeof beta);
    assert_int_equal(dpcr_spacing_fill(DPCR_SPACING_TRAILING, &older, 10, times, NULL), DPCR_OK);
    assert_true(times[0] == 999);
    older.size--;
    assert_int_equal(dpcr_noise_fill(&older, beta, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "noise_fill: the noise's size is 15"));
    older.size = 0;
    assert_int_equal(dpcr_spacing_fill(DPCR_SPACING_TRAILING, &older, 10, times, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "spacing_fill: the noise's size is 0"));
}

static void names_are_found_and_others_refused(void **state) {
    (void)state;
    dpcr_error error = {0};
    dpcr_noise_kind noise;
    dpcr_spacing spacing;
    dpcr_prediction prediction;
    dpcr_sampler_kind sampler;
    assert_int_equal(dpcr_noise_find("cosine", &noise, NULL), DPCR_OK);
    assert_int_equal(noise, DPCR_NOISE_COSINE);
    assert_int_equal(dpcr_spacing_find("karras", &spacing, NULL), DPCR_OK);
    assert_int_equal(spacing, DPCR_SPACING_KARRAS);
    assert_int_equal(dpcr_prediction_find("v", &prediction, NULL), DPCR_OK);
    assert_int_equal(prediction, DPCR_PREDICT_V);
    for (int i = 0; i < DPCR_SAMPLER_COUNT; i++) {
        assert_int_equal(dpcr_sampler_find(dpcr_sampler_name((dpcr_sampler_kind)i), &sampler, NULL), DPCR_OK);
        assert_int_equal(sampler, i);
    }
    assert_int_equal(dpcr_sampler_find("plms", &sampler, &error), DPCR_ERROR_ARGUMENT);
    assert_string_equal(error.text, "sampler is \"plms\", wanted ddpm, ddim, dpm-solver++, euler or heun");
    assert_int_equal(dpcr_noise_find(NULL, &noise, NULL), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_spacing_find("", &spacing, NULL), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_prediction_find("noise", &prediction, NULL), DPCR_ERROR_ARGUMENT);
    assert_string_equal(dpcr_noise_name((dpcr_noise_kind)9), "unknown");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drawn_as_torch_does),
        cmocka_unit_test(torch_paths),
        cmocka_unit_test(published_numbers_by_every_method),
        cmocka_unit_test(published_single_steps),
        cmocka_unit_test(published_variances),
        cmocka_unit_test(orders_of_convergence),
        cmocka_unit_test(schedules_are_their_formulas),
        cmocka_unit_test(times_of_karras_reach_both_ends),
        cmocka_unit_test(older_noise_has_the_defaults),
        cmocka_unit_test(names_are_found_and_others_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
