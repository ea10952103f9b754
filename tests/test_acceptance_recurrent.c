// SPDX-License-Identifier: MIT
// Published cases that other projects test themselves by, continued: recurrent networks. PyTorch's cells as literal
// numbers with Newton's residuals (A4), ParaRNN's cells in parallel and in order (A8), and the two networks of BPPSA's
// paper, whose gradients are those of plain back-propagation through time by every way back (A24).
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>

#include "recurrent_job.h"
#include "solving.h"

static double farthest(const double *a, const double *b, int64_t count) {
    double most = 0;
    for (int64_t i = 0; i < count; i++) {
        const double d = fabs(a[i] - b[i]);
        if (!(d <= most)) most = d;
    }
    return most;
}

// ---- A4 ----

enum { T = 6, I = 2, H = 3, SWEEPS = 5 };
static const double h0[H] = {0.1, 0.2, 0.3}, c0[H] = {-0.2, -0.4, -0.6};

typedef struct golden {
    dpcr_recurrent_kind kind;
    int gates;
    double first[H], last[H], last_c[H], loss, dh0[H], dc0[H], dx0[I], dw_ih, dw_hh, db_ih, db_hh;
    double from_zeros[SWEEPS], from_step[SWEEPS - 1];  // residuals, before they are rounding
} golden;

static const golden cells[] = {
    {.kind = DPCR_RNN_TANH,
     .gates = 1,
     .first = {0.915165316621, -0.798662326132, -0.795801768252},
     .last = {0.906361059884, -0.939660318096, -0.148873132343},
     .loss = -3.572040343906,
     .dh0 = {0.009056578295, -0.043223293754, -0.032180939192},
     .dx0 = {-0.014523308670, 0.066034250150},
     .dw_ih = 5.958692264792,
     .dw_hh = 15.316020241432,
     .db_ih = 9.144564775216,
     .db_hh = 9.144564775216,
     .from_zeros = {9.2e-1, 3.6e-1, 3.0e-2, 2.3e-4, 1.6e-8},
     .from_step = {6.8e-1, 2.5e-2, 9.3e-5, 9.1e-10}},
    {.kind = DPCR_GRU,
     .gates = 3,
     .first = {-0.268800250647, 0.051229147672, 0.223647133324},
     .last = {-0.519360436023, -0.318178979849, -0.026147753894},
     .loss = -1.806061754521,
     .dh0 = {1.021149675794, 2.231422425534, 1.850997359882},
     .dx0 = {0.208496413239, 0.591001629298},
     .dw_ih = 11.022984772620,
     .dw_hh = 2.769344789137,
     .db_ih = 13.671157045365,
     .db_hh = 6.644192866521,
     .from_zeros = {4.1e-1, 2.1e-2, 1.6e-4, 2.3e-9},
     .from_step = {2.3e-1, 5.3e-3, 5.2e-6, 5.1e-12}},
    {.kind = DPCR_LSTM,
     .gates = 4,
     .first = {-0.494287578279, -0.246828589739, -0.060097730845},
     .last = {-0.519204629857, -0.517074847591, -0.012213198277},
     .last_c = {-0.811060823776, -1.037518225729, -0.081818102090},
     .loss = -4.733215169669,
     .dh0 = {0.082642300070, -0.094239530203, -0.133060227949},
     .dc0 = {0.452221901000, 0.844517331714, 0.338134394005},
     .dx0 = {0.067235000274, 0.068063235366},
     .dw_ih = 3.677352407742,
     .dw_hh = 4.138163974522,
     .db_ih = 7.122003386369,
     .db_hh = 7.122003386369,
     .from_zeros = {8.6e-1, 1.2e-1, 1.9e-3, 3.8e-7},
     .from_step = {4.7e-1, 8.0e-2, 3.4e-4, 1.7e-9}},
};

// Tensor q, flat index k. PyTorch's weight_ih is 1, weight_hh 2, bias_ih 3, bias_hh 4.
static double parameter(int q, int64_t k) { return 0.6 * sin(1.3 * (double)k + 0.7 * q); }
static double input(int64_t t, int64_t i) { return cos(0.5 * (double)(2 * t + i)); }

static double sum_of(const double *a, int64_t count, bool absolute) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += absolute ? fabs(a[i]) : a[i];
    return sum;
}

// Two digits are told, and ours are relative where a state is beyond 1, as the RNN's is after one sweep from zeros.
static void check_history(const double *got, const double *wanted, int count) {
    for (int k = 0; k < count && wanted[k] > 0; k++) near(got[k] / wanted[k], 1, 0.1);
}

static void check_cell(dpcr_context *context, const golden *g, dpcr_solve_options solve) {
    job j = random_job(context, (dpcr_recurrent_options){.kind = g->kind, .dtype = DPCR_F64, .inputs = I, .hidden = H},
                       T, 1);
    const bool lstm = g->kind == DPCR_LSTM;
    dpcr_array gradients[4];
    assert_int_equal(dpcr_recurrent_parameter_count(j.network), 4);
    for (int q = 0; q < 4; q++) {
        dpcr_array p;
        assert_int_equal(dpcr_recurrent_parameter(j.network, q, NULL, 0, &p, &gradients[q], NULL), DPCR_OK);
        for (int64_t k = 0; k < count_of(&p); k++) put(&p, k, parameter(q + 1, k));
    }
    for (int k = 0; k < H; k++) put(&j.pass.h0, k, h0[k]);
    for (int k = 0; lstm && k < H; k++) put(&j.pass.c0, k, c0[k]);
    for (int t = 0; t < T; t++)
        for (int i = 0; i < I; i++) put(&j.pass.x, t * I + i, input(t, i));
    for (int k = 0; k < T * H; k++) put(&j.gradients.y, k, 1);
    if (lstm) j.gradients.c0 = alike(&j.pass.c0);
    open_plan(&j, solve, true);
    double history[16];
    int64_t fronts[16];
    dpcr_solve_report report = {
        .size = sizeof report, .history_capacity = 16, .residual_history = history, .locked_history = fronts};
    assert_int_equal(dpcr_recurrent_execute(j.plan, &j.pass, j.tape, j.workspace, j.bytes, &report, NULL), DPCR_OK);
    if (solve.method == DPCR_METHOD_NEWTON) check_history(history, g->from_step, SWEEPS - 1);
    backward(&j);
    const double *y = j.pass.y.data;
    assert_true(farthest(y, g->first, H) < 1e-11);
    assert_true(farthest(y + (T - 1) * H, g->last, H) < 1e-11);
    near(sum_of(y, T * H, false), g->loss, 1e-11);
    assert_true(farthest(j.gradients.h0.data, g->dh0, H) < 1e-11);
    assert_true(farthest(j.gradients.x.data, g->dx0, I) < 1e-11);
    if (lstm) assert_true(farthest(j.pass.ct.data, g->last_c, H) < 1e-11);
    if (lstm) assert_true(farthest(j.gradients.c0.data, g->dc0, H) < 1e-11);
    const double sums[4] = {g->dw_ih, g->dw_hh, g->db_ih, g->db_hh};
    for (int q = 0; q < 4; q++) near(sum_of(gradients[q].data, count_of(&gradients[q]), true), sums[q], 2e-11);
    close_plan(&j);
    free_pass(&j);
    dpcr_recurrent_destroy(j.network);
}

// The literal numbers of PyTorch's RNN, GRU and LSTM: states, the loss sum h, its gradients; in order and by newton.
static void pytorchs_cells(void **state) {
    (void)state;
    dpcr_context *context = make_context(2);
    for (size_t k = 0; k < sizeof cells / sizeof *cells; k++) {
        check_cell(context, &cells[k], the_loop);
        for (size_t s = 0; s < sizeof schemes / sizeof *schemes; s++)
            check_cell(context, &cells[k],
                       (dpcr_solve_options){.size = sizeof(dpcr_solve_options),
                                            .method = DPCR_METHOD_NEWTON,
                                            .scheme = schemes[s],
                                            .backward = schemes[s],
                                            .atol = 1e-14,
                                            .rtol = 1e-14});
    }
    dpcr_context_destroy(context);
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

// One step of torch.nn's documentation, state (h) or (h, c).
static void advance(const golden *g, int64_t t, const double *in, double *out) {
    double u[4][H], v[4][H];  // of W_ih x + b_ih and of W_hh h + b_hh
    for (int gate = 0; gate < g->gates; gate++)
        for (int i = 0; i < H; i++) {
            const int row = gate * H + i;
            u[gate][i] = parameter(3, row), v[gate][i] = parameter(4, row);
            for (int k = 0; k < I; k++) u[gate][i] += parameter(1, row * I + k) * input(t, k);
            for (int k = 0; k < H; k++) v[gate][i] += parameter(2, row * H + k) * in[k];
        }
    for (int i = 0; i < H; i++) {
        if (g->kind == DPCR_RNN_TANH) {
            out[i] = tanh(u[0][i] + v[0][i]);
        } else if (g->kind == DPCR_GRU) {
            const double r = sigmoid(u[0][i] + v[0][i]), z = sigmoid(u[1][i] + v[1][i]);
            out[i] = (1 - z) * tanh(u[2][i] + r * v[2][i]) + z * in[i];
        } else {
            const double c =
                sigmoid(u[1][i] + v[1][i]) * in[H + i] + sigmoid(u[0][i] + v[0][i]) * tanh(u[2][i] + v[2][i]);
            out[H + i] = c;
            out[i] = sigmoid(u[3][i] + v[3][i]) * tanh(c);
        }
    }
}

// Its Jacobian by differences, whose errors are far below the residuals that are told.
static void step_cell(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    const golden *g = (const golden *)(const void *)c->parameters;
    const int64_t w = c->width;
    const double h = 1e-5;
    (void)b;
    advance(g, l, in, out);
    for (int64_t k = 0; j && k < w; k++) {
        double at[2 * H], low[2 * H], high[2 * H];
        memcpy(at, in, (size_t)w * sizeof *at);
        at[k] = in[k] - h, advance(g, l, at, low);
        at[k] = in[k] + h, advance(g, l, at, high);
        for (int64_t i = 0; i < w; i++) j[i * w + k] = (high[i] - low[i]) / (2 * h);
    }
}

// The same cells as chains of the caller's, from a guess of zeros and from f(0).
static void residuals_of_pytorchs_cells(void **state) {
    (void)state;
    dpcr_context *context = make_context(2);
    for (size_t k = 0; k < sizeof cells / sizeof *cells; k++)
        for (int zeros = 0; zeros < 2; zeros++) {
            const golden *g = &cells[k];
            const bool lstm = g->kind == DPCR_LSTM;
            chain c = {.step = step_cell,
                       .length = T,
                       .batch = 1,
                       .width = lstm ? 2 * H : H,
                       .dtype = DPCR_F64,
                       .parameters = (const double *)(const void *)g};
            const dpcr_solve_options options = {.size = sizeof options,
                                                .method = DPCR_METHOD_NEWTON,
                                                .scheme = DPCR_SCHEME_PCR,
                                                .backward = DPCR_SCHEME_SEQUENTIAL,
                                                .guess = zeros ? DPCR_GUESS_GIVEN : DPCR_GUESS_ZERO,
                                                .atol = 1e-14,
                                                .rtol = 1e-14};
            double z0[2 * H];
            memcpy(z0, h0, sizeof h0), memcpy(z0 + H, c0, sizeof c0);
            solved r = solve(context, &c, z0, &options);
            assert_true(r.report.reason > 0 && r.report.reason != DPCR_REASON_FALLBACK);
            check_history(r.history, zeros ? g->from_zeros : g->from_step, zeros ? SWEEPS : SWEEPS - 1);
            const double *last = (const double *)r.z + (T - 1) * c.width;
            assert_true(farthest(last, g->last, H) < 1e-11);
            if (lstm) assert_true(farthest(last + H, g->last_c, H) < 1e-11);
            solved_free(&r);
        }
    dpcr_context_destroy(context);
}

// ---- A8 and A24: by one way and by another ----

// y, then the gradients of all parameters of the loss sum c y, c in `gradients.y`.
static double *numbers_of(dpcr_context *context, dpcr_recurrent_options options, int64_t steps, int64_t rows,
                          bool at_end, dpcr_solve_options solve, int64_t *values, int64_t *count) {
    job j = random_job(context, options, steps, rows);
    const int64_t all = count_of(&j.pass.y), end = all / steps;
    memset(j.pass.h0.data, 0, (size_t)count_of(&j.pass.h0) * dpcr_dtype_size(j.pass.h0.dtype));
    if (j.pass.c0.data) memset(j.pass.c0.data, 0, (size_t)count_of(&j.pass.c0) * dpcr_dtype_size(j.pass.c0.dtype));
    for (int64_t k = 0; k < all; k++)  // a mean over what is read out
        put(&j.gradients.y, k, at_end ? k < all - end ? 0 : get(&j.gradients.y, k) / (double)rows : 1 / (double)all);
    open_plan(&j, solve, true);
    forward(&j);
    backward(&j);
    dpcr_recurrent_vector(j.network, count);
    const dpcr_array g =
        dpcr_array_make(dpcr_recurrent_gradient_vector(j.network), options.dtype ? options.dtype : DPCR_F32, 1, count);
    *values = all;
    double *numbers = malloc((size_t)(all + *count) * sizeof *numbers);
    assert_non_null(numbers);
    for (int64_t k = 0; k < all; k++) numbers[k] = get(&j.pass.y, k);
    for (int64_t k = 0; k < *count; k++) numbers[all + k] = get(&g, k);
    close_plan(&j);
    free_pass(&j);
    dpcr_recurrent_destroy(j.network);
    return numbers;
}

// ParaRNN's own test, two lengths in float, with its cells' distances between the two times ten.
static void parallel_and_in_order(void **state) {
    (void)state;
    static const struct {
        dpcr_recurrent_kind kind;
        double states[2], gradients;  // of T = 64 and 4096; dW
    } allowed[] = {{DPCR_PARAGRU, {1.0e-6, 2.4e-6}, 9.5e-5}, {DPCR_PARALSTM, {1.2e-6, 9.8e-6}, 2.9e-5}};
    dpcr_context *context = make_context(2);
    for (int k = 0; k < 2; k++)
        for (int longer = 0; longer < 2; longer++) {
            const dpcr_recurrent_options o = {.kind = allowed[k].kind, .inputs = 16, .hidden = 16};
            int64_t values, count;
            double *loop = numbers_of(context, o, longer ? 4096 : 64, 2, false, the_loop, &values, &count);
            for (size_t s = 0; s < sizeof schemes / sizeof *schemes; s++) {
                const dpcr_solve_options newton = {.size = sizeof newton,
                                                   .method = DPCR_METHOD_NEWTON,
                                                   .scheme = schemes[s],
                                                   .backward = schemes[s],
                                                   .atol = 1e-6,
                                                   .rtol = 1e-6,
                                                   .no_fallback = 1};
                double *got = numbers_of(context, o, longer ? 4096 : 64, 2, false, newton, &values, &count);
                assert_true(farthest(got, loop, values) <= allowed[k].states[longer]);
                assert_true(farthest(got + values, loop + values, count) <= allowed[k].gradients);
                free(got);
            }
            free(loop);
        }
    dpcr_context_destroy(context);
}

// The classifier of bit streams (one input, 20 units, 16 streams of 1000) and the GRU that reads recordings (12
// features, 20 units, 16 of 186 steps): every gradient is plain back-propagation's, to 1e-6 in float.
static void networks_of_bppsa(void **state) {
    (void)state;
    static const struct {
        dpcr_method method;
        dpcr_scheme backward;
    } ways[] = {{DPCR_METHOD_SEQUENTIAL, DPCR_SCHEME_BLELLOCH},
                {DPCR_METHOD_NEWTON, DPCR_SCHEME_CHUNKED},
                {DPCR_METHOD_OVERLAP, DPCR_SCHEME_OVERLAP},
                {DPCR_METHOD_SEQUENTIAL, DPCR_SCHEME_PCR}};
    dpcr_context *context = make_context(2);
    for (int gru = 0; gru < 2; gru++) {
        const dpcr_recurrent_options o = {.kind = gru ? DPCR_GRU : DPCR_RNN_TANH, .inputs = gru ? 12 : 1, .hidden = 20};
        const int64_t steps = gru ? 186 : 1000;
        int64_t values, count;
        double *loop = numbers_of(context, o, steps, 16, true, the_loop, &values, &count), most = 0;
        for (int64_t k = 0; k < count; k++) most = fmax(most, fabs(loop[values + k]));
        assert_true(most > 1e-2);  // there is something to agree in
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            const dpcr_solve_options solve = {
                .size = sizeof solve, .method = ways[w].method, .backward = ways[w].backward, .no_fallback = 1};
            double *got = numbers_of(context, o, steps, 16, true, solve, &values, &count);
            assert_true(farthest(got, loop, values) <= 1e-5);
            const double error = farthest(got + values, loop + values, count);
            if (!(error <= 1e-6))
                fail_msg("%s, %s, back by %s: gradients differ by %g", gru ? "gru" : "rnn",
                         dpcr_method_name(ways[w].method), dpcr_scheme_name(ways[w].backward), error);
            free(got);
        }
        free(loop);
    }
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pytorchs_cells),
        cmocka_unit_test(residuals_of_pytorchs_cells),
        cmocka_unit_test(parallel_and_in_order),
        cmocka_unit_test(networks_of_bppsa),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
