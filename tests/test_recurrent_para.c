// SPDX-License-Identifier: MIT
// Recurrent networks whose units do not mix: golden numbers; every method and scheme gives the loop's numbers and
// gradients, wider than any dense Jacobian is offered; the linear kind takes one Newton sweep; k sweeps make k states
// exact; the numbers of threads do not change bits where rows or units are shared out; and products can be stopped.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>

#include "recurrent_job.h"

static const dpcr_recurrent_kind apart[] = {DPCR_PARAGRU, DPCR_PARALSTM, DPCR_MINGRU};
enum { APART = sizeof apart / sizeof apart[0] };

static void near(const char *what, double got, double wanted, double tolerance) {
    if (!(fabs(got - wanted) <= tolerance * fmax(1, fabs(wanted))))
        fail_msg("%s: %.12g, wanted %.12g", what, got, wanted);
}

// Tensor q, flat index k: 0.6 sin(1.3 k + 0.7 q).
static void set(const dpcr_array *to, int64_t from, int64_t count, int q, double clip) {
    for (int64_t k = 0; k < count; k++) {
        const double x = 0.6 * sin(1.3 * (double)k + 0.7 * q);
        put(to, from + k, fmax(-clip, fmin(clip, x)));
    }
}

// The literal numbers of case A8: states, slopes, and Newton's residuals from f(0).
static void test_golden(void **state) {
    (void)state;
    enum { T = 6, I = 2, H = 3, SWEEPS = 4 };
    static const double first[2][H] = {{-0.216761987466, 0.375571289319, -0.143702802689},
                                       {-0.104460735715, 0.116635433224, -0.086708283161}};
    static const double residuals[2][SWEEPS] = {{2.2e-1, 6.6e-3, 9.2e-6, 1.9e-11}, {2.2e-1, 1.2e-2, 3.6e-5, 1.9e-10}};
    static const double last[2][2 * H] = {
        {0.146030774392, 0.458085300816, -0.018182318160},
        {0.249515228120, 0.102103925871, -0.070574591013, 0.391314972650, 0.180621129151, -0.236359667391}};
    static const double slopes[2][2 * H] = {
        {1.946149920319, 1.215761999216, -0.017715999205},
        {0.486418871781, -0.109916482011, -0.099398033146, 0.445628277083, 0.915139058360, 0.332962582363}};
    dpcr_context *context = make_context(1);
    for (int lstm = 0; lstm < 2; lstm++) {
        job j = random_job(
            context, (dpcr_recurrent_options){.kind = apart[lstm], .dtype = DPCR_F64, .inputs = I, .hidden = H}, T, 1);
        for (int64_t i = 0; i < dpcr_recurrent_parameter_count(j.network); i++) {
            char name[64];
            dpcr_array p;
            assert_int_equal(dpcr_recurrent_parameter(j.network, i, name, sizeof name, &p, NULL, NULL), DPCR_OK);
            for (int q = 0; q < 3; q++) {
                // ParaGRU a 1..3, B 4..6, b 7..9; ParaLSTM a_f, C_f, a_z, a_o, C_o 1..5, B 6..8, b 9..11
                static const int diagonals[2][3] = {{1, 2, 3}, {1, 3, 4}};
                if (strcmp(name, "weight_ih_l0") == 0) set(&p, q * H * I, H * I, q + (lstm ? 6 : 4), 1);
                if (strcmp(name, "bias_ih_l0") == 0) set(&p, q * H, H, q + (lstm ? 9 : 7), 1);
                if (strcmp(name, "weight_hh_l0") == 0) set(&p, q * H, H, diagonals[lstm][q], 0.5);
                if (strcmp(name, "peephole_l0") == 0 && q < 2) set(&p, q * H, H, q ? 5 : 2, 0.5);
            }
        }
        memset(j.pass.h0.data, 0, H * sizeof(double));
        if (lstm) memset(j.pass.c0.data, 0, H * sizeof(double));
        if (lstm) j.gradients.c0 = alike(&j.pass.c0);
        for (int t = 0; t < T; t++)
            for (int i = 0; i < I; i++) put(&j.pass.x, t * I + i, cos(0.5 * (2 * t + i)));
        for (int i = 0; i < T * H; i++) put(&j.gradients.y, i, 1);
        const dpcr_solve_options newton = {.size = sizeof newton,
                                           .method = DPCR_METHOD_NEWTON,
                                           .scheme = DPCR_SCHEME_PCR,
                                           .atol = 1e-14,
                                           .rtol = 1e-14};
        double history[16];
        int64_t fronts[16];
        dpcr_solve_report report = {
            .size = sizeof report, .history_capacity = 16, .residual_history = history, .locked_history = fronts};
        open_plan(&j, newton, true);
        assert_int_equal(dpcr_recurrent_execute(j.plan, &j.pass, j.tape, j.workspace, j.bytes, &report, NULL), DPCR_OK);
        for (int k = 0; k < SWEEPS; k++) near("residual", history[k] / residuals[lstm][k], 1, 0.05);
        close_plan(&j);
        open_plan(&j, the_loop, true);
        forward(&j);
        backward(&j);
        for (int i = 0; i < H; i++) {
            near("h_1", get(&j.pass.y, i), first[lstm][i], 1e-11);
            near("h_6", get(&j.pass.ht, i), last[lstm][i], 1e-11);
            near("dh_0", get(&j.gradients.h0, i), slopes[lstm][i], 1e-11);
            if (lstm) near("c_6", get(&j.pass.ct, i), last[lstm][H + i], 1e-11);
            if (lstm) near("dc_0", get(&j.gradients.c0, i), slopes[lstm][H + i], 1e-11);
        }
        close_plan(&j);
        free_pass(&j);
        dpcr_recurrent_destroy(j.network);
    }
    dpcr_context_destroy(context);
}

// y, dx, dh0 and all parameters' gradients, one after the other.
static double *numbers_of(dpcr_context *context, const dpcr_recurrent_options *options, int64_t T, int64_t B,
                          dpcr_solve_options solve, int64_t *total, int *sweeps) {
    job j = random_job(context, *options, T, B);
    dpcr_solve_report reports[2] = {{.size = sizeof *reports}, {.size = sizeof *reports}};  // one a direction
    dpcr_error error = {0};
    open_plan(&j, solve, true);
    if (dpcr_recurrent_execute(j.plan, &j.pass, j.tape, j.workspace, j.bytes, reports, &error) != DPCR_OK)
        fail_msg("%s", error.text);
    assert_true(reports[0].reason > 0);
    if (sweeps) *sweeps = reports[0].sweeps;
    backward(&j);
    const dpcr_array *const arrays[] = {&j.pass.y, &j.gradients.x, &j.gradients.h0};
    int64_t count, at = 0;
    assert_non_null(dpcr_recurrent_vector(j.network, &count));
    const int64_t shape[1] = {count};
    const dpcr_array parameters = dpcr_array_make(dpcr_recurrent_gradient_vector(j.network), options->dtype, 1, shape);
    *total = count;
    for (int q = 0; q < 3; q++) *total += count_of(arrays[q]);
    double *numbers = malloc((size_t)*total * sizeof *numbers);
    for (int q = 0; q < 3; q++)
        for (int64_t i = 0; i < count_of(arrays[q]); i++) numbers[at++] = get(arrays[q], i);
    for (int64_t i = 0; i < count; i++) numbers[at++] = get(&parameters, i);
    close_plan(&j);
    free_pass(&j);
    dpcr_recurrent_destroy(j.network);
    return numbers;
}

static void test_methods(void **state) {
    (void)state;
    enum { T = 50, B = 3, H = 130 };
    static const dpcr_method methods[] = {DPCR_METHOD_AUTO,    DPCR_METHOD_NEWTON,  DPCR_METHOD_DIAGONAL,
                                          DPCR_METHOD_PICARD,  DPCR_METHOD_JACOBI,  DPCR_METHOD_DAMPED,
                                          DPCR_METHOD_OVERLAP, DPCR_METHOD_SHOOTING};
    static const dpcr_scheme schemes[] = {DPCR_SCHEME_SEQUENTIAL, DPCR_SCHEME_PCR, DPCR_SCHEME_BLELLOCH,
                                          DPCR_SCHEME_CHUNKED, DPCR_SCHEME_OVERLAP};
    dpcr_context *context = make_context(2);
    for (int k = 0; k < APART; k++) {
        const dpcr_recurrent_options options = {
            .kind = apart[k], .dtype = DPCR_F64, .inputs = 4, .hidden = H, .bidirectional = 1};
        int64_t count;
        double *wanted = numbers_of(context, &options, T, B, the_loop, &count, NULL);
        for (size_t m = 0; m < sizeof methods / sizeof methods[0]; m++)
            for (size_t s = 0; s < sizeof schemes / sizeof schemes[0]; s++) {
                if (methods[m] != DPCR_METHOD_NEWTON && s != m % 5) continue;
                const dpcr_solve_options solve = {.size = sizeof solve,
                                                  .method = methods[m],
                                                  .scheme = schemes[s],
                                                  .backward = schemes[s],
                                                  .chunk = 10,
                                                  .warm_up = 40,
                                                  .atol = 1e-13,
                                                  .rtol = 1e-13};
                int sweeps;
                double *got = numbers_of(context, &options, T, B, solve, &count, &sweeps);
                for (int64_t i = 0; i < count; i++)
                    if (!(fabs(got[i] - wanted[i]) <= 1e-9 * fmax(1, fabs(wanted[i]))))
                        fail_msg("%s by %s, %s: number %d is %.12g, the loop has %.12g",
                                 dpcr_recurrent_kind_name(apart[k]), dpcr_method_name(methods[m]),
                                 dpcr_scheme_name(schemes[s]), (int)i, got[i], wanted[i]);
                if (methods[m] == DPCR_METHOD_NEWTON) assert_true(apart[k] == DPCR_MINGRU ? sweeps <= 2 : sweeps <= 12);
                free(got);
            }
        free(wanted);
    }
    dpcr_context_destroy(context);
}

// One batch row shares its units out, several rows go apart; and newton as well.
static void test_threads(void **state) {
    (void)state;
    enum { T = 500, H = 150 };
    for (int k = 0; k < APART; k++)
        for (int64_t B = 1; B <= 3; B += 2)
            for (int newton = 0; newton < 2; newton++) {
                const dpcr_recurrent_options options = {.kind = apart[k], .dtype = DPCR_F32, .inputs = 2, .hidden = H};
                dpcr_solve_options solve = the_loop;
                if (newton) solve.method = DPCR_METHOD_NEWTON, solve.scheme = solve.backward = DPCR_SCHEME_CHUNKED;
                double *numbers[2];
                int64_t count;
                for (int many = 0; many < 2; many++) {
                    dpcr_context *context = make_context(many ? 3 : 1);
                    numbers[many] = numbers_of(context, &options, T, B, solve, &count, NULL);
                    dpcr_context_destroy(context);
                }
                assert_memory_equal(numbers[0], numbers[1], (size_t)count * sizeof(double));
                free(numbers[0]), free(numbers[1]);
            }
}

// With tolerance 0 jacobi locks one state a sweep and nothing but bits count: T sweeps give the loop's.
static void test_sweeps_are_exact(void **state) {
    (void)state;
    enum { T = 12, B = 2, H = 5 };
    dpcr_context *context = make_context(1);
    for (int k = 0; k < APART; k++)
        for (int newton = 0; newton < 2; newton++) {
            const dpcr_recurrent_options options = {.kind = apart[k], .dtype = DPCR_F64, .inputs = 2, .hidden = H};
            const dpcr_solve_options solve = {.size = sizeof solve,
                                              .method = newton ? DPCR_METHOD_NEWTON : DPCR_METHOD_JACOBI,
                                              .backward = DPCR_SCHEME_SEQUENTIAL,
                                              .atol = -1,
                                              .rtol = -1,
                                              .max_sweeps = T + 1,
                                              .no_fallback = 1};
            int64_t count;
            int sweeps;
            double *wanted = numbers_of(context, &options, T, B, the_loop, &count, NULL);
            double *got = numbers_of(context, &options, T, B, solve, &count, &sweeps);
            assert_true(sweeps <= T + 1);
            for (int64_t i = 0; i < T * B * H; i++) assert_true(got[i] == wanted[i]);
            free(got), free(wanted);
        }
    dpcr_context_destroy(context);
}

// A gate that is open for the new state alone leaves nothing of the old one, however large that was.
static void test_what_is_forgotten(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    static const double before[] = {1e8, -3e38}, after[] = {1, 3e38};
    for (int large = 0; large < 2; large++)
        for (int method = 0; method < 2; method++) {
            job j = random_job(context, (dpcr_recurrent_options){.kind = DPCR_MINGRU, .inputs = 1, .hidden = 9}, 3, 1);
            int64_t count;
            float *const all = dpcr_recurrent_vector(j.network, &count);
            memset(all, 0, (size_t)count * sizeof *all);
            for (int64_t i = 0; i < dpcr_recurrent_parameter_count(j.network); i++) {
                char name[32];
                dpcr_array to;
                assert_int_equal(dpcr_recurrent_parameter(j.network, i, name, sizeof name, &to, NULL, NULL), DPCR_OK);
                if (strcmp(name, "bias_ih_l0") != 0) continue;
                for (int64_t u = 0; u < 9; u++) put(&to, u, 40), put(&to, 9 + u, after[large]);
            }
            for (int64_t u = 0; u < 9; u++) put(&j.pass.h0, u, before[large]);
            const dpcr_solve_options overlap = {.size = sizeof overlap,
                                                .method = DPCR_METHOD_OVERLAP,
                                                .backward = DPCR_SCHEME_SEQUENTIAL,
                                                .chunk = 1,
                                                .atol = -1,
                                                .rtol = -1};
            open_plan(&j, method ? overlap : the_loop, true);
            forward(&j);
            for (int64_t i = 0; i < 3 * 9; i++) assert_true(get(&j.pass.y, i) == (double)(float)after[large]);
            close_plan(&j);
            free_pass(&j);
            dpcr_recurrent_destroy(j.network);
        }
    dpcr_context_destroy(context);
}

typedef struct asked {
    int times, stop_at;  // 0: never
} asked;

static int ask(void *user) {
    asked *a = user;
    return ++a->times == a->stop_at;
}

// The first question comes while the input's products are made, forward and back; afterwards all is as ever.
static void test_products_are_stopped(void **state) {
    (void)state;
    asked a = {0};
    const dpcr_context_options asks = {.size = sizeof asks, .threads = 2, .cancel = ask, .cancel_user = &a};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&asks, &context, NULL), DPCR_OK);
    const dpcr_recurrent_options options = {.kind = DPCR_MINGRU, .inputs = 64, .hidden = 64};
    job j = random_job(context, options, 2000, 4);
    const dpcr_solve_options newton = {
        .size = sizeof newton, .method = DPCR_METHOD_NEWTON, .backward = DPCR_SCHEME_CHUNKED};
    open_plan(&j, newton, true);
    forward(&j);
    const size_t bytes = (size_t)count_of(&j.pass.y) * sizeof(float);
    void *before = malloc(bytes);
    assert_non_null(before);
    memcpy(before, j.pass.y.data, bytes);
    dpcr_error error = {0};
    a = (asked){.stop_at = 1};
    assert_int_equal(dpcr_recurrent_backward(j.plan, &j.pass, &j.gradients, j.tape, j.workspace, j.bytes, NULL, &error),
                     DPCR_ERROR_CANCELLED);
    assert_non_null(strstr(error.text, "recurrent_backward: stopped"));
    a = (asked){.stop_at = 1};
    assert_int_equal(dpcr_recurrent_execute(j.plan, &j.pass, j.tape, j.workspace, j.bytes, NULL, &error),
                     DPCR_ERROR_CANCELLED);
    assert_non_null(strstr(error.text, "recurrent_execute: stopped"));
    assert_int_equal(a.times, 1);
    forward(&j);
    assert_memory_equal(j.pass.y.data, before, bytes);
    backward(&j);
    free(before);
    close_plan(&j);
    free_pass(&j);
    dpcr_recurrent_destroy(j.network);
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden),
                                       cmocka_unit_test(test_methods),
                                       cmocka_unit_test(test_threads),
                                       cmocka_unit_test(test_sweeps_are_exact),
                                       cmocka_unit_test(test_what_is_forgotten),
                                       cmocka_unit_test(test_products_are_stopped)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
