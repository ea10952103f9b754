// SPDX-License-Identifier: MIT
// ReLU's kink: a Jacobian at states known to a tolerance has the slope that passes on the most (dpcr_span.slack), in
// all forms of cells and networks; and so no solve claims to agree with the loop where errors open closed units.
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "solving.h"

#include "deeppcr/deeppcr.h"
#include "noise.h"
#include "sampled.h"

static void put(dpcr_dtype dtype, void *data, int64_t i, double x) {
    if (dtype == DPCR_F64)
        ((double *)data)[i] = x;
    else
        ((float *)data)[i] = (float)x;
}
// Narrow steps have kernels of their own at every level: all of these run.
static bool takes_part(int64_t w, int64_t run) { return (w <= 4 && !TESTS_SANITIZED) || sampled(run); }
static double get(dpcr_dtype dtype, const void *data, int64_t i) {
    return dtype == DPCR_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

// ---- Jacobians ----

enum { L = 5, B = 3 };
static const double slack = 1e-3;

// u_i lies so many times what it moves by below 0: open from the fourth on, with slack; without, the last one.
static double below(int64_t i) {
    static const double places[] = {-1.1, -3, -30, -0.9, -0.3, 0.3};
    return places[i % 6];
}
static double slope_of(int64_t i, bool slackens) { return i % 6 > (slackens ? 2 : 4) ? 1 : 0; }

// J of step l and sequence b by `linearise`, every step and sequence in one call.
static void *jacobians(const dpcr_steps *steps, double with, const void *in) {
    const int64_t w = steps->width, values = dpcr_transition_values(&steps->jacobian);
    const int64_t shape[3] = {steps->length, steps->batch, w}, js[3] = {steps->length, steps->batch, values};
    void *a = calloc((size_t)(shape[0] * shape[1] * values), 8), *f = calloc((size_t)(shape[0] * shape[1] * w), 8);
    const dpcr_array from = dpcr_array_make((void *)in, steps->dtype, 3, shape),
                     to = dpcr_array_make(f, steps->dtype, 3, shape), j = dpcr_array_make(a, steps->dtype, 3, js);
    const dpcr_span span = {
        .size = sizeof span, .lanes = steps->length, .stride = 1, .steps = 1, .rows = steps->batch, .slack = with};
    assert_int_equal(steps->linearise(steps->user, &span, &from, &to, &j), 0);
    free(f);
    return a;
}

static double largest_of(int64_t w, const double *z) {
    double most = 1;
    for (int64_t j = 0; j < w; j++) most = fmax(most, fabs(z[j]));
    return most;
}

static void agrees(dpcr_dtype dtype, double a, double b) {
    const double most = (dtype == DPCR_F64 ? 1e-13 : 1e-5) * fmax(1, fabs(b));
    if (!(fabs(a - b) <= most)) fail_msg("%.9g instead of %.9g", a, b);
}

static void check_cell(dpcr_dtype dtype, dpcr_cell_kind kind, int64_t w, double scale, bool own) {
    const bool dense = kind == DPCR_CELL_DENSE;
    const int64_t values = dense ? w * w : w, shape[3] = {L, w, w}, states[3] = {L, B, w};
    void *weight = calloc((size_t)(L * values), 8), *x = calloc((size_t)(L * B * w), 8);
    void *in = calloc((size_t)(L * B * w), 8);
    noise_fill(dtype, weight, own ? L * values : values, 0.8), noise_fill(dtype, in, L * B * w, 3);
    for (int64_t l = 0; l < L; l++)
        for (int64_t b = 0; b < B; b++) {
            double z[300];
            const int64_t row = (l * B + b) * w, at = own ? l * values : 0;
            for (int64_t i = 0; i < w; i++) z[i] = get(dtype, in, row + i);
            for (int64_t i = 0; i < w; i++) {
                double u = 0, reach = 0;
                for (int64_t j = 0; j < (dense ? w : 1); j++) {
                    const double a = get(dtype, weight, at + (dense ? i * w + j : i));
                    u += a * z[dense ? j : i];
                    reach += fabs(a) * slack * largest_of(dense ? w : 1, dense ? z : z + i);
                }
                put(dtype, x, row + i, below(i + b) * reach - u);
            }
        }
    dpcr_context *const context = solving_context(1);
    const int ndim = dense ? 2 : 1;
    const dpcr_cell_options o = {.size = sizeof o,
                                 .kind = kind,
                                 .dtype = dtype,
                                 .length = L,
                                 .batch = B,
                                 .width = w,
                                 .activation = DPCR_ACT_RELU,
                                 .scale = scale,
                                 .weight = dpcr_array_make(weight, dtype, ndim + own, own ? shape : shape + 1),
                                 .input = dpcr_array_make(x, dtype, 3, states)};
    dpcr_cell *cell = NULL;
    dpcr_steps steps = {.size = sizeof steps};
    assert_int_equal(dpcr_cell_create(context, &o, &cell, NULL), DPCR_OK);
    assert_int_equal(dpcr_cell_steps(cell, &steps, NULL), DPCR_OK);
    for (int with = 0; with < 2; with++) {
        void *const a = jacobians(&steps, with ? slack : 0, in);
        for (int64_t l = 0; l < L; l++)
            for (int64_t b = 0; b < B; b++)
                for (int64_t i = 0; i < w; i++)
                    for (int64_t j = 0; j < (dense ? w : 1); j++) {
                        const int64_t at = dense ? i * w + j : i;
                        const double slope = slope_of(i + b, with) * get(dtype, weight, (own ? l * values : 0) + at);
                        const double identity = scale != 0 && (!dense || i == j) ? 1 : 0;
                        agrees(dtype, get(dtype, a, (l * B + b) * values + at),
                               identity + (scale != 0 ? scale : 1) * slope);
                    }
        free(a);
    }
    dpcr_cell_destroy(cell);
    dpcr_context_destroy(context);
    free(weight), free(x), free(in);
}

static void cells_open_beside_a_kink(void **state) {
    (void)state;
    static const int64_t widths[] = {1, 2, 3, 4, 5, 8, 33, 64, 65, 140};
    int64_t run = 0;
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
            for (int form = 0; form < 8; form++)
                if (takes_part(widths[i], run++))
                    check_cell((dpcr_dtype)dtype, form & 1 ? DPCR_CELL_DIAGONAL : DPCR_CELL_DENSE, widths[i],
                               form & 2 ? 0.25 : 0, form & 4);
}

// The parameter `name` of layer l, its shape's numbers by strides.
static dpcr_array parameter(dpcr_model *model, int64_t l, const char *name) {
    char wanted[64], found[64];
    snprintf(wanted, sizeof wanted, "layers.%d.%s", (int)l, name);
    const int64_t count = dpcr_model_parameter_count(model), layers = dpcr_model_get_options(model)->layers;
    for (int64_t i = l * count / layers; i < count; i++) {
        dpcr_array view;
        assert_int_equal(dpcr_model_parameter(model, i, found, sizeof found, &view, NULL, NULL), DPCR_OK);
        if (strcmp(found, wanted) == 0) return view;
    }
    fail_msg("no parameter %s", wanted);
    return (dpcr_array){0};
}
static double number(const dpcr_array *p, int64_t i, int64_t j) {
    return get(p->dtype, p->data, i * p->strides[0] + (p->ndim > 1 ? j * p->strides[1] : 0));
}

typedef struct inner {
    double u[300], reach[300], normal[300], deviation;
} inner;

// W z of one row and what it moves by, and both after the norm without gamma and beta.
static inner inner_of(const dpcr_array *W, int64_t h, int64_t w, const double *z, bool norm) {
    inner x = {0};
    double mean = 0, mean_reach = 0, square = 0, turned = 0;
    for (int64_t i = 0; i < h; i++) {
        for (int64_t j = 0; j < w; j++) {
            x.u[i] += number(W, i, j) * z[j];
            x.reach[i] += fabs(number(W, i, j)) * slack * largest_of(w, z);
        }
        mean += x.u[i] / (double)h, mean_reach += x.reach[i] / (double)h;
    }
    if (!norm) return x;
    for (int64_t i = 0; i < h; i++) square += (x.u[i] - mean) * (x.u[i] - mean) / (double)h;
    x.deviation = sqrt(square + 1e-5);
    for (int64_t i = 0; i < h; i++) x.normal[i] = (x.u[i] - mean) / x.deviation;
    for (int64_t i = 0; i < h; i++) turned += fabs(x.normal[i]) * x.reach[i] / (double)h;
    for (int64_t i = 0; i < h; i++) x.reach[i] = (x.reach[i] + mean_reach + fabs(x.normal[i]) * turned) / x.deviation;
    return x;
}

// One row a step, for biases and beta are a step's: each has its own place below the kink.
static void check_model(dpcr_dtype dtype, dpcr_architecture architecture, bool two, bool norm, int64_t w) {
    const bool residual = architecture == DPCR_RESNET;
    const int64_t h = two ? w + 3 : w;
    const dpcr_model_options o = {.size = sizeof o,
                                  .architecture = architecture,
                                  .dtype = dtype,
                                  .layers = L,
                                  .width = w,
                                  .hidden = two ? h : 0,
                                  .activation = DPCR_ACT_RELU,
                                  .branch = two ? DPCR_BRANCH_TWO_LAYER : DPCR_BRANCH_LINEAR,
                                  .layer_norm = norm,
                                  .scale = residual ? 0.25 : 0};
    dpcr_context *const context = solving_context(1);
    dpcr_model *model = NULL;
    dpcr_error error;
    if (dpcr_model_create(context, &o, &model, &error) != DPCR_OK) fail_msg("%s", error.text);
    void *in = calloc((size_t)(L * w), 8);
    noise_fill(dtype, in, L * w, 3);
    for (int64_t l = 0; l < L; l++) {
        double z[300];
        for (int64_t j = 0; j < w; j++) z[j] = get(dtype, in, l * w + j);
        const dpcr_array W = parameter(model, l, two ? "linear1.weight" : "weight"),
                         bias = parameter(model, l, two ? "linear1.bias" : "bias");
        if (norm)
            for (int64_t i = 0; i < h; i++) put(dtype, bias.data, i * bias.strides[0], 0);
        const inner x = inner_of(&W, h, w, z, norm);
        for (int64_t i = 0; i < h; i++) {
            if (norm) {
                const dpcr_array gamma = parameter(model, l, "norm.weight"), beta = parameter(model, l, "norm.bias");
                const double g = i % 2 ? -1.5 : 0.7;
                put(dtype, gamma.data, i * gamma.strides[0], g);
                put(dtype, beta.data, i * beta.strides[0], below(i) * fabs(g) * x.reach[i] - g * x.normal[i]);
            } else {
                put(dtype, bias.data, i * bias.strides[0], below(i) * x.reach[i] - x.u[i]);
            }
        }
    }
    dpcr_steps steps = {.size = sizeof steps};
    assert_int_equal(dpcr_model_steps(model, 1, &steps, NULL), DPCR_OK);
    for (int with = 0; with < 2; with++) {
        void *const a = jacobians(&steps, with ? slack : 0, in);
        for (int64_t l = 0; l < L; l++) {
            double z[300];
            for (int64_t j = 0; j < w; j++) z[j] = get(dtype, in, l * w + j);
            const dpcr_array W = parameter(model, l, two ? "linear1.weight" : "weight");
            const inner x = inner_of(&W, h, w, z, norm);
            for (int64_t j = 0; j < w; j++) {
                double y[300] = {0}, mean = 0, turned = 0;
                for (int64_t i = 0; i < h; i++) {
                    y[i] = number(&W, i, j);
                    mean += y[i] / (double)h, turned += x.normal[i] * y[i] / (double)h;
                }
                for (int64_t i = 0; i < h; i++) {
                    if (norm) y[i] = (i % 2 ? -1.5 : 0.7) * (y[i] - mean - x.normal[i] * turned) / x.deviation;
                    y[i] *= slope_of(i, with);
                }
                for (int64_t i = 0; i < w; i++) {
                    double sum = two ? 0 : y[i];
                    if (two) {
                        const dpcr_array V = parameter(model, l, "linear2.weight");
                        for (int64_t k = 0; k < h; k++) sum += number(&V, i, k) * y[k];
                    }
                    agrees(dtype, get(dtype, a, (l * w + i) * w + j),
                           (residual ? 0.25 : 1) * sum + (residual && i == j ? 1 : 0));
                }
            }
        }
        free(a);
    }
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
    free(in);
}

static void networks_open_beside_a_kink(void **state) {
    (void)state;
    static const int64_t widths[] = {1, 2, 3, 4, 5, 8, 40, 70};
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
            check_model((dpcr_dtype)dtype, DPCR_MLP, false, false, widths[i]);
            for (int form = 0; form < 4; form++)
                if (widths[i] > 2 || form < 2)
                    check_model((dpcr_dtype)dtype, DPCR_RESNET, form & 1, form & 2, widths[i]);
        }
}

// ---- claims ----

// Where it says that it agrees, it does: within the tolerance of the loop, and twice as much for what rounding adds.
static void claims(const char *what, const dpcr_solve_options *o, int reason, double error) {
    const double most = 2 * (o->atol + o->rtol);
    if (reason == DPCR_REASON_CONVERGED && !(error <= most)) fail_msg("%s: converged, and off by %g", what, error);
}

// z' = relu(W z), W = g times a rotation of the components with something added, from a start far below the tolerance:
// all states of a first guess are 0, where every unit is closed, and the loop's grow by g a step out of it.
static void solve_cell(dpcr_dtype dtype, dpcr_cell_kind kind, int64_t w, double growth, int64_t length,
                       dpcr_method method) {
    const bool dense = kind == DPCR_CELL_DENSE;
    const int64_t values = dense ? w * w : w, shape[2] = {w, w}, states[3] = {length, 1, w};
    void *weight = calloc((size_t)values, 8), *x = calloc((size_t)(length * w), 8), *z0 = calloc((size_t)w, 8);
    for (int64_t i = 0; i < w; i++) {
        put(dtype, weight, dense ? i * w + (i + 1) % w : i, growth);
        put(dtype, z0, i, 1e-9 * (double)(1 + i % 3));
    }
    dpcr_context *const context = solving_context(1);
    const dpcr_cell_options o = {.size = sizeof o,
                                 .kind = kind,
                                 .dtype = dtype,
                                 .length = length,
                                 .batch = 1,
                                 .width = w,
                                 .activation = DPCR_ACT_RELU,
                                 .weight = dpcr_array_make(weight, dtype, dense ? 2 : 1, shape),
                                 .input = dpcr_array_make(x, dtype, 3, states)};
    dpcr_cell *cell = NULL;
    dpcr_steps steps = {.size = sizeof steps};
    assert_int_equal(dpcr_cell_create(context, &o, &cell, NULL), DPCR_OK);
    assert_int_equal(dpcr_cell_steps(cell, &steps, NULL), DPCR_OK);
    const chain c = {.length = length, .batch = 1, .width = w, .dtype = dtype};
    const dpcr_solve_options loop = {.size = sizeof loop, .method = DPCR_METHOD_SEQUENTIAL};
    solved by_loop = solve_steps(context, &steps, &c, z0, &loop, NULL, 0);
    for (int windows = 0; windows < 2; windows++) {
        if (windows && !steps.window) continue;
        dpcr_steps taken = steps;
        if (!windows) taken.window = NULL;
        const dpcr_solve_options by = {.size = sizeof by, .method = method, .atol = 1e-4, .rtol = 1e-4};
        solved s = solve_steps(context, &taken, &c, z0, &by, NULL, 0);
        assert_int_equal(s.status, DPCR_OK);
        char what[120];
        snprintf(what, sizeof what, "%s, dtype %d, w %d, growth %g, %d steps%s", dpcr_method_name(method), (int)dtype,
                 (int)w, growth, (int)length, windows ? ", windows" : "");
        claims(what, &by, s.reasons[0], largest_error(&c, s.z, by_loop.z));
        solved_free(&s);
    }
    solved_free(&by_loop);
    dpcr_cell_destroy(cell);
    dpcr_context_destroy(context);
    free(weight), free(x), free(z0);
}

static void closed_units_that_open_are_no_agreement(void **state) {
    (void)state;
    static const int64_t widths[] = {1, 2, 3, 4, 7, 64, 80};
    static const dpcr_method methods[] = {DPCR_METHOD_NEWTON, DPCR_METHOD_DIAGONAL, DPCR_METHOD_SHOOTING,
                                          DPCR_METHOD_DAMPED, DPCR_METHOD_AUTO};
    int64_t run = 0;
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
            for (size_t m = 0; m < sizeof methods / sizeof *methods; m++)
                for (int kind = 0; kind < 2; kind++) {
                    if (!takes_part(widths[i], run++)) continue;
                    const dpcr_cell_kind k = kind ? DPCR_CELL_DIAGONAL : DPCR_CELL_DENSE;
                    solve_cell((dpcr_dtype)dtype, k, widths[i], 5, 20, methods[m]);
                    solve_cell((dpcr_dtype)dtype, k, widths[i], widths[i] > 4 ? 1.1 : 1.02, widths[i] > 4 ? 250 : 1500,
                               methods[m]);
                }
}

// The same of a network with W for all steps, and of a recurrent layer.
static void *step_weights(dpcr_dtype dtype, int64_t w, double growth, const dpcr_array *to) {
    for (int64_t i = 0; i < w; i++)
        for (int64_t j = 0; j < w; j++)
            put(dtype, to->data, i * to->strides[0] + j * to->strides[1], j == (i + 1) % w ? growth : 0);
    return to->data;
}

static void solve_network(dpcr_dtype dtype, int64_t w, double growth, int64_t length) {
    const dpcr_model_options o = {.size = sizeof o,
                                  .architecture = DPCR_MLP,
                                  .dtype = dtype,
                                  .layers = length,
                                  .width = w,
                                  .activation = DPCR_ACT_RELU,
                                  .blank = 1};
    dpcr_context *const context = solving_context(1);
    dpcr_model *model = NULL;
    assert_int_equal(dpcr_model_create(context, &o, &model, NULL), DPCR_OK);
    for (int64_t l = 0; l < length; l++) {
        const dpcr_array W = parameter(model, l, "weight");
        step_weights(dtype, w, growth, &W);
    }
    dpcr_steps steps = {.size = sizeof steps};
    assert_int_equal(dpcr_model_steps(model, 1, &steps, NULL), DPCR_OK);
    double z0[100];
    for (int64_t i = 0; i < w; i++) put(dtype, z0, i, 1e-9 * (double)(1 + i % 3));
    const chain c = {.length = length, .batch = 1, .width = w, .dtype = dtype};
    const dpcr_solve_options loop = {.size = sizeof loop, .method = DPCR_METHOD_SEQUENTIAL},
                             by = {.size = sizeof by, .method = DPCR_METHOD_NEWTON, .atol = 1e-4, .rtol = 1e-4};
    steps.window = NULL;
    solved by_loop = solve_steps(context, &steps, &c, z0, &loop, NULL, 0),
           s = solve_steps(context, &steps, &c, z0, &by, NULL, 0);
    assert_int_equal(s.status, DPCR_OK);
    char what[60];
    snprintf(what, sizeof what, "network, dtype %d, w %d", (int)dtype, (int)w);
    claims(what, &by, s.reasons[0], largest_error(&c, s.z, by_loop.z));
    solved_free(&s), solved_free(&by_loop);
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
}

static void solve_recurrent(dpcr_dtype dtype, int64_t inputs, int64_t H, double clip, double growth, int64_t length) {
    const dpcr_recurrent_options o = {.size = sizeof o,
                                      .kind = DPCR_RNN_RELU,
                                      .dtype = dtype,
                                      .inputs = inputs,
                                      .hidden = H,
                                      .no_bias = 1,
                                      .clip = clip};
    dpcr_context *const context = solving_context(1);
    dpcr_recurrent *network = NULL;
    assert_int_equal(dpcr_recurrent_create(context, &o, &network, NULL), DPCR_OK);
    dpcr_array W;
    assert_int_equal(dpcr_recurrent_parameter(network, 1, NULL, 0, &W, NULL, NULL), DPCR_OK);
    step_weights(dtype, H, growth, &W);
    const int64_t given[3] = {length, 1, inputs}, first[3] = {1, 1, H}, all[3] = {length, 1, H};
    void *x = calloc((size_t)(length * inputs), 8), *h0 = calloc((size_t)H, 8), *y[2];
    for (int64_t i = 0; i < H; i++) put(dtype, h0, i, 1e-9 * (double)(1 + i % 3));
    dpcr_recurrent_plan_options p = {.size = sizeof p, .length = length, .batch = 1};
    dpcr_solve_report report = {.size = sizeof report};
    for (int newton = 0; newton < 2; newton++) {
        y[newton] = calloc((size_t)(length * H), 8);
        const dpcr_recurrent_pass pass = {.size = sizeof pass,
                                          .x = dpcr_array_make(x, dtype, 3, given),
                                          .h0 = dpcr_array_make(h0, dtype, 3, first),
                                          .y = dpcr_array_make(y[newton], dtype, 3, all)};
        if (newton)
            p.solve =
                (dpcr_solve_options){.size = sizeof p.solve, .method = DPCR_METHOD_NEWTON, .atol = 1e-4, .rtol = 1e-4};
        dpcr_recurrent_plan *plan = NULL;
        assert_int_equal(dpcr_recurrent_plan_create(network, &p, &plan, NULL), DPCR_OK);
        const size_t bytes = dpcr_recurrent_plan_workspace(plan);
        void *workspace = aligned_alloc(64, (bytes + 127) / 64 * 64);
        assert_int_equal(dpcr_recurrent_execute(plan, &pass, NULL, workspace, bytes, &report, NULL), DPCR_OK);
        dpcr_recurrent_plan_destroy(plan);
        free(workspace);
    }
    const chain c = {.length = length, .batch = 1, .width = H, .dtype = dtype};
    char what[80];
    snprintf(what, sizeof what, "recurrent, dtype %d, %d inputs, H %d, clip %g", (int)dtype, (int)inputs, (int)H, clip);
    claims(what, &p.solve, (int)report.reason, largest_error(&c, y[1], y[0]));
    free(x), free(h0), free(y[0]), free(y[1]);
    dpcr_recurrent_destroy(network);
    dpcr_context_destroy(context);
}

static void closed_units_of_networks_and_layers_too(void **state) {
    (void)state;
    static const int64_t widths[] = {1, 3, 5, 40};
    int64_t run = 0;
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++) {
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
            if (!takes_part(widths[i], run++)) continue;
            solve_network((dpcr_dtype)dtype, widths[i], 5, 20);
            solve_network((dpcr_dtype)dtype, widths[i], 1.02, 1500);
            for (int clip = 0; clip < 2; clip++) {
                solve_recurrent((dpcr_dtype)dtype, 2, widths[i], clip ? 1e30 : 0, 5, 20);
                solve_recurrent((dpcr_dtype)dtype, 2, widths[i], clip ? 1e30 : 0, 1.02, 1500);
            }
        }
        if (takes_part(80, run++))
            solve_recurrent((dpcr_dtype)dtype, 16000, 80, 0, 5, 16);  // the inputs' products made ahead
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cells_open_beside_a_kink),
        cmocka_unit_test(networks_open_beside_a_kink),
        cmocka_unit_test(closed_units_that_open_are_no_agreement),
        cmocka_unit_test(closed_units_of_networks_and_layers_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
