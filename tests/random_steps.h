// SPDX-License-Identifier: MIT
// Chains of steps drawn at random (draws.h): networks, cells, and callbacks of a caller's own; and one step of each by
// its definition in double, with derivatives along a direction of the state and one of the parameters, and with the
// sizes of what is summed, by which rounding is judged.
#ifndef TESTS_RANDOM_STEPS_H
#define TESTS_RANDOM_STEPS_H

#include "chains.h"
#include "draws.h"

// x and its derivatives along the state (v) and the parameters (p); sx, sv, sp: the terms' absolute values, summed.
typedef struct number {
    double x, v, p, sx, sv, sp;
} number;

enum { MOST_WIDTH = 160, ROLES = 6 };
enum { WEIGHT, BIAS, GAMMA, BETA, WEIGHT2, BIAS2 };

typedef enum subject_kind { NETWORK, CELL, CALLBACK } subject_kind;

typedef struct subject {
    subject_kind kind;
    dpcr_dtype dtype;
    int64_t length, batch, width, hidden;
    dpcr_steps steps;
    double scale;  // of a residual; 0: none
    int act;       // dpcr_activation
    dpcr_model *model;
    dpcr_array *parameters, *gradients;  // [L][ROLES]
    dpcr_cell *cell;
    dpcr_cell_options cell_options;
    table weight, input, input_gradient, weight_gradient;
    chain own;  // of callbacks
    double own_parameters[2];
} subject;

static double activation(int act, double u, double *slope) {
    const double s = 1 / (1 + exp(-u)), phi = 0.5 * erfc(-u * M_SQRT1_2);
    switch (act) {
        case DPCR_ACT_IDENTITY: return *slope = 1, u;
        case DPCR_ACT_RELU: return *slope = u > 0, u > 0 ? u : 0;
        case DPCR_ACT_TANH: return *slope = 1 - tanh(u) * tanh(u), tanh(u);
        case DPCR_ACT_SIGMOID: return *slope = s * (1 - s), s;
        case DPCR_ACT_GELU: return *slope = phi + u * exp(-u * u / 2) / sqrt(2 * M_PI), u * phi;
        default: return *slope = s * (1 + u * (1 - s)), u * s;  // SiLU
    }
}

// The direction of parameter i of a step.
static double direction(int64_t l, int role, int64_t i) { return chain_noise(l + 1, role + 7, i + 3); }

static double matrix_get(const dpcr_array *a, int64_t i, int64_t j) {
    return chain_get(a, i * a->strides[0] + j * a->strides[1]);
}

// out = W in + bias; W [n][m], bias may have data NULL.
static void apply_linear(int64_t l, int role, const dpcr_array *w, const dpcr_array *bias, int64_t n, int64_t m,
                         const number *in, number *out) {
    for (int64_t i = 0; i < n; i++) {
        number y = {0};
        for (int64_t j = 0; j < m; j++) {
            const double a = matrix_get(w, i, j), p = direction(l, role, i * m + j);
            y.x += a * in[j].x, y.sx += fabs(a) * in[j].sx;
            y.v += a * in[j].v, y.sv += fabs(a) * in[j].sv;
            y.p += a * in[j].p + p * in[j].x, y.sp += fabs(a) * in[j].sp + fabs(p) * in[j].sx;
        }
        if (bias && bias->data) {
            const double b = chain_get(bias, i * bias->strides[0]), p = direction(l, role + 1, i);
            y.x += b, y.sx += fabs(b), y.p += p, y.sp += fabs(p);
        }
        out[i] = y;
    }
}

static void apply_norm(int64_t l, const dpcr_array *gamma, const dpcr_array *beta, int64_t n, number *u) {
    double mean = 0, variance = 0, mv = 0, mp = 0, ms = 0, msv = 0, msp = 0;
    for (int64_t i = 0; i < n; i++) mean += u[i].x / (double)n;
    for (int64_t i = 0; i < n; i++) variance += (u[i].x - mean) * (u[i].x - mean) / (double)n;
    const double r = 1 / sqrt(variance + 1e-5);
    double nv = 0, np = 0;
    for (int64_t i = 0; i < n; i++) {
        const double x = (u[i].x - mean) * r;
        mv += u[i].v / (double)n, mp += u[i].p / (double)n, ms = fmax(ms, u[i].sx);
        msv = fmax(msv, u[i].sv), msp = fmax(msp, u[i].sp);
        nv += x * u[i].v / (double)n, np += x * u[i].p / (double)n;
    }
    for (int64_t i = 0; i < n; i++) {
        const double x = (u[i].x - mean) * r, g = chain_get(gamma, i * gamma->strides[0]),
                     b = chain_get(beta, i * beta->strides[0]);
        const double pg = direction(l, GAMMA, i), pb = direction(l, BETA, i), big = (2 + x * x) * r;
        const double more = 1 + 4 * r * ms;  // what x and r themselves are off by
        u[i] = (number){.x = g * x + b,
                        .v = g * r * (u[i].v - mv - x * nv),
                        .p = g * r * (u[i].p - mp - x * np) + pg * x + pb,
                        .sx = fabs(g) * big * 2 * ms + fabs(b),
                        .sv = fabs(g) * big * 2 * msv * more,
                        .sp = fabs(g) * big * 2 * msp * more + fabs(pg) * (fabs(x) + 2 * big * ms) + fabs(pb)};
    }
}

// True: all slopes are certain. `epsilon`: of the library's numbers.
static bool apply_activation(int act, int64_t n, number *u, double epsilon) {
    bool certain = true;
    for (int64_t i = 0; i < n; i++) {
        double slope = 0;
        const double y = activation(act, u[i].x, &slope);
        if (act == DPCR_ACT_RELU && fabs(u[i].x) <= 4 * (double)MOST_WIDTH * epsilon * u[i].sx) certain = false;
        const bool bent = act != DPCR_ACT_IDENTITY && act != DPCR_ACT_RELU;
        const double off = bent ? 2 * u[i].sx + 2 : 0;
        u[i] = (number){.x = y,
                        .v = slope * u[i].v,
                        .p = slope * u[i].p,
                        .sx = fabs(slope) * u[i].sx + fabs(y) + (bent ? 1 : 0),
                        .sv = fabs(slope) * u[i].sv + fabs(u[i].v) * off,
                        .sp = fabs(slope) * u[i].sp + fabs(u[i].p) * off};
    }
    return certain;
}

static bool network_step(const subject *s, int64_t l, const number *in, number *out, double epsilon) {
    const dpcr_array *p = s->parameters + l * ROLES;
    const dpcr_model_options *o = dpcr_model_get_options(s->model);
    const bool two = o->architecture == DPCR_RESNET && o->branch == DPCR_BRANCH_TWO_LAYER;
    number inner[MOST_WIDTH];
    const int64_t w = s->width, h = two ? s->hidden : w;
    number *u = two ? inner : out;
    apply_linear(l, WEIGHT, &p[WEIGHT], &p[BIAS], h, w, in, u);
    if (o->layer_norm) apply_norm(l, &p[GAMMA], &p[BETA], h, u);
    const bool certain = apply_activation(s->act, h, u, epsilon);
    if (two) apply_linear(l, WEIGHT2, &p[WEIGHT2], &p[BIAS2], w, h, inner, out);
    return certain;
}

static bool cell_step(const subject *s, int64_t l, int64_t b, const number *in, number *out, double epsilon) {
    const int64_t w = s->width, own = s->cell_options.weight.ndim - (s->cell_options.kind == DPCR_CELL_DENSE ? 2 : 1);
    dpcr_array a = s->cell_options.weight;
    const size_t size = dpcr_dtype_size(s->dtype);
    if (own) {
        a.data = (char *)a.data + l * a.strides[0] * (int64_t)size;
        for (int d = 0; d < 2; d++) a.strides[d] = a.strides[d + 1];
    }
    for (int64_t i = 0; i < w; i++) {
        number y = {0};
        const bool dense = s->cell_options.kind == DPCR_CELL_DENSE;
        for (int64_t j = dense ? 0 : i; j < (dense ? w : i + 1); j++) {
            const double k = dense ? matrix_get(&a, i, j) : chain_get(&a, i * a.strides[0]);
            const double p = s->weight_gradient.view.data ? direction(l, WEIGHT, dense ? i * w + j : i) : 0;
            y.x += k * in[j].x, y.sx += fabs(k) * in[j].sx;
            y.v += k * in[j].v, y.sv += fabs(k) * in[j].sv;
            y.p += p * in[j].x, y.sp += fabs(p) * in[j].sx;
        }
        const double x = table_get(&s->input, l, b, i), p = direction(l, BIAS, b * w + i);
        y.x += x, y.sx += fabs(x);
        if (s->input_gradient.view.data) y.p += p, y.sp += fabs(p);
        out[i] = y;
    }
    return apply_activation(s->act, w, out, epsilon);
}

// f_l(in) of sequence b. False where a slope is not certain.
static bool step_by_definition(const subject *s, int64_t l, int64_t b, const number *in, number *out) {
    const double epsilon = s->dtype == DPCR_F32 ? 0x1p-23 : 0x1p-52;
    bool certain = true;
    if (s->kind == CALLBACK) {
        double x[CHAIN_MAX_WIDTH], y[CHAIN_MAX_WIDTH], j[CHAIN_MAX_WIDTH * CHAIN_MAX_WIDTH];
        for (int64_t i = 0; i < s->width; i++) x[i] = in[i].x;
        s->own.step(&s->own, l, b, x, y, j);
        for (int64_t i = 0; i < s->width; i++) {
            const double p = s->own.gradients ? direction(l, BIAS, i) : 0;
            out[i] = (number){.x = y[i], .p = p, .sx = fabs(y[i]) + 1, .sp = fabs(p)};
            for (int64_t k = 0; k < s->width; k++)
                out[i].v += j[i * s->width + k] * in[k].v, out[i].sv += fabs(j[i * s->width + k]) * in[k].sv;
        }
        return true;
    }
    if (s->kind == NETWORK)
        certain = network_step(s, l, in, out, epsilon);
    else
        certain = cell_step(s, l, b, in, out, epsilon);
    for (int64_t i = 0; i < s->width && s->scale != 0; i++) {
        const double c = s->scale, d = fabs(c);
        const number f = out[i];
        out[i] = (number){in[i].x + c * f.x,   in[i].v + c * f.v,   in[i].p + c * f.p,
                          in[i].sx + d * f.sx, in[i].sv + d * f.sv, in[i].sp + d * f.sp};
    }
    return certain;
}

// ---- drawing them ----

// How large they may be: numbers of W and the like times sequences, widths of networks and cells, sequences.
typedef struct subject_limits {
    double work;
    int64_t width, rows;
    bool callbacks;
} subject_limits;

static void shape_of_subject(subject *s, int64_t most_width, int64_t most_rows, double work) {
    s->dtype = draw_chance(65) ? DPCR_F32 : DPCR_F64;
    s->width = draw_chance(30) ? draw_between(1, 4) : draw_log(1, most_width);
    s->batch = draw_chance(2) ? 0 : draw_chance(30) ? 1 : draw_log(1, most_rows);
    const double each = (double)(s->width * s->width + 20) * (double)(s->batch + 1);
    const double most = fmin(2000, work / each);
    s->length = draw_chance(6) ? draw_below(4) : draw_log(1, most < 2 ? 2 : (int64_t)most);
    tell(" %s w %lld L %lld B %lld", dpcr_dtype_name(s->dtype), (long long)s->width, (long long)s->length,
         (long long)s->batch);
}

static void find_parameters(subject *s) {
    static const char *const names[ROLES] = {"weight",    "bias",           "norm.weight",
                                             "norm.bias", "linear2.weight", "linear2.bias"};
    s->parameters = calloc((size_t)(s->length + 1) * ROLES, sizeof *s->parameters);
    s->gradients = calloc((size_t)(s->length + 1) * ROLES, sizeof *s->gradients);
    for (int64_t i = 0; i < dpcr_model_parameter_count(s->model); i++) {
        char name[64];
        dpcr_array parameter, gradient;
        dpcr_error error = {0};
        check_done(dpcr_model_parameter(s->model, i, name, sizeof name, &parameter, &gradient, &error), &error,
                   "parameter");
        char *rest = NULL;
        if (strncmp(name, "layers.", 7) != 0) continue;
        const int64_t l = strtoll(name + 7, &rest, 10);
        rest++;
        if (strncmp(rest, "linear1.", 8) == 0) rest += 8;
        for (int r = 0; r < ROLES; r++)
            if (strcmp(rest, names[r]) == 0)
                s->parameters[l * ROLES + r] = parameter, s->gradients[l * ROLES + r] = gradient;
    }
}

static void draw_network(subject *s) {
    dpcr_model_options o = {.size = sizeof o,
                            .architecture = draw_chance(50) ? DPCR_MLP : DPCR_RESNET,
                            .dtype = s->dtype,
                            .layers = s->length,
                            .width = s->width,
                            .activation = (dpcr_activation)draw_below(DPCR_ACT_COUNT),
                            .layer_norm = draw_chance(15),
                            .seed = (uint64_t)draw_below(1000)};
    if (o.architecture == DPCR_RESNET && draw_chance(40)) {
        o.branch = DPCR_BRANCH_TWO_LAYER;
        if (draw_chance(60)) o.hidden = draw_log(1, 70);
    }
    if (o.architecture == DPCR_RESNET && draw_chance(40)) o.scale = DRAW_OF(0.01, 0.1, 0.3);
    if (draw_chance(15)) o.tie = draw_between(1, 3);
    const bool identity = o.activation == DPCR_ACT_IDENTITY;
    tell(" %s act %s%s%s hidden %lld scale %g tie %lld", o.architecture == DPCR_MLP ? "mlp" : "resnet",
         dpcr_activation_name(o.activation), o.layer_norm ? " norm" : "", o.branch ? " two-layer" : "",
         (long long)o.hidden, o.scale, (long long)o.tie);
    dpcr_error error = {0};
    check_done(dpcr_model_create(draw_contexts[1], &o, &s->model, &error), &error, "model");
    const dpcr_model_options *full = dpcr_model_get_options(s->model);
    s->hidden = full->hidden;
    s->act = full->activation;
    s->scale = full->architecture == DPCR_RESNET ? full->scale : 0;
    find_parameters(s);
    // PyTorch's start, larger or smaller weights, and other scales of norms.
    const double gain = identity ? DRAW_OF(0.3, 1) : DRAW_OF(0.3, 1, 1, 1, 1.5);
    int64_t count = 0;
    void *vector = dpcr_model_vector(s->model, &count);
    for (int64_t i = 0; i < count; i++) put_number(s->dtype, vector, i, gain * number_at(s->dtype, vector, i));
    dpcr_model_tie_parameters(s->model);
    tell(" gain %g", gain);
    check_done(dpcr_model_steps(s->model, s->batch, &s->steps, &error), &error, "steps");
}

static void fill_with(const table *t, double scale) {
    for (int64_t l = 0; l < (t->steps < 0 ? 1 : t->steps); l++)
        for (int64_t b = 0; b < t->rows; b++)
            for (int64_t i = 0; i < t->values; i++) table_put(t, l, b, i, scale * draw_signed());
}

static void clear_table(const table *t) {
    for (int64_t l = 0; l < (t->steps < 0 ? 1 : t->steps); l++)
        for (int64_t b = 0; b < t->rows; b++)
            for (int64_t i = 0; i < t->values; i++) table_put(t, l, b, i, 0);
}

static void draw_cell(subject *s) {
    const bool dense = draw_chance(60), own = draw_chance(40);
    const int64_t w = s->width;
    dpcr_cell_options *o = &s->cell_options;
    *o = (dpcr_cell_options){.size = sizeof *o,
                             .kind = dense ? DPCR_CELL_DENSE : DPCR_CELL_DIAGONAL,
                             .dtype = s->dtype,
                             .length = s->length,
                             .batch = s->batch,
                             .width = w,
                             .activation = (dpcr_activation)draw_below(DPCR_ACT_COUNT),
                             .scale = draw_chance(30) ? DRAW_OF(0.05, 0.3, -0.2) : 0};
    const double gain = DRAW_OF(0.1, 0.5, 0.9) / (dense ? sqrt((double)w) : 1);
    tell(" cell %s%s act %s scale %g gain %g", dense ? "dense" : "diagonal", own ? " own" : "",
         dpcr_activation_name(o->activation), o->scale, gain);
    s->weight = draw_table("weight", s->dtype, own ? s->length : 1, 1, dense ? w * w : w, PLAIN);
    fill_with(&s->weight, gain);
    s->input = draw_table("input", s->dtype, s->length, s->batch, w, STRIDED);
    fill_with(&s->input, 1);
    o->weight = dense ? dpcr_array_make(s->weight.view.data, s->dtype, own ? 3 : 2,
                                        own ? (const int64_t[]){s->length, w, w} : (const int64_t[]){w, w})
                      : dpcr_array_make(s->weight.view.data, s->dtype, own ? 2 : 1,
                                        own ? (const int64_t[]){s->length, w} : (const int64_t[]){w});
    o->input = s->input.view;
    if (draw_chance(70)) {
        s->input_gradient = draw_table("input gradient", s->dtype, s->length, s->batch, w, STRIDED | WRITTEN);
        o->input_gradient = s->input_gradient.view;
    }
    if (own && draw_chance(70)) {
        s->weight_gradient = draw_table("weight gradient", s->dtype, s->length, 1, dense ? w * w : w, WRITTEN);
        o->weight_gradient = o->weight;
        o->weight_gradient.data = s->weight_gradient.view.data;
    }
    keep_sum(&s->weight), keep_sum(&s->input);
    dpcr_error error = {0};
    check_done(dpcr_cell_create(draw_contexts[1], o, &s->cell, &error), &error, "cell");
    *o = *dpcr_cell_get_options(s->cell);
    s->act = o->activation;
    s->scale = o->scale;
    check_done(dpcr_cell_steps(s->cell, &s->steps, &error), &error, "steps");
}

static void draw_callback(subject *s) {
    static const chain_step dense[] = {step_tanh, step_affine, step_growing};
    const bool blocks = draw_chance(40);
    const int64_t w = s->width;
    int64_t k = 0;
    s->own = (chain){.length = s->length, .batch = s->batch, .width = w, .dtype = s->dtype};
    if (blocks) {
        k = draw_chance(40) ? 1 : draw_between(1, w);
        while (w % k) k--;
        s->own.step = step_blocks;
        s->own_parameters[0] = (double)k;
        s->own.jacobian = k == 1   ? dpcr_transition_square(DPCR_DIAGONAL, w, 0)
                          : k == w ? dpcr_transition_square(DPCR_DENSE, w, 0)
                                   : dpcr_transition_square(DPCR_BLOCK, w, k);
    } else {
        const int which = (int)draw_below(20);
        s->own.step = dense[which < 13 ? 0 : which < 19 || s->length > 60 ? 1 : 2];
        s->own_parameters[0] = DRAW_OF(0.3, 0.8, 1.2);
        if (s->own.step == step_affine) s->own_parameters[0] = 0.7;
        if (s->own.step == step_tanh && draw_chance(30)) s->own_parameters[1] = 0.1;
    }
    s->own.parameters = s->own_parameters;
    if (draw_chance(60)) s->own.gradients = calloc((size_t)(s->length * w) + 1, sizeof(double));
    s->steps = chain_steps(&s->own);
    if (!s->own.gradients) s->steps.gradient = NULL;
    s->steps.concurrent = draw_chance(70);
    s->steps.lanes = draw_chance(50) ? 0 : draw_between(1, 9);
    if (draw_chance(30)) s->steps.flops = 0;
    if (draw_chance(15)) s->steps.linearise = NULL;
    if (draw_chance(15) && s->steps.linearise) s->steps.adjoint = NULL;
    tell(" callback %s k %lld (%g, %g) lanes %lld%s%s%s%s",
         blocks                       ? "blocks"
         : s->own.step == step_tanh   ? "tanh"
         : s->own.step == step_affine ? "affine"
                                      : "growing",
         (long long)k, s->own_parameters[0], s->own_parameters[1], (long long)s->steps.lanes,
         s->steps.concurrent ? "" : " alone", s->steps.flops > 0 ? "" : " no flops",
         s->steps.linearise ? "" : " no linearise", s->steps.adjoint ? "" : " no adjoint");
}

static subject draw_subject(subject_limits most) {
    subject s = {.steps.size = sizeof s.steps, .kind = draw_chance(55) ? NETWORK : draw_chance(60) ? CELL : CALLBACK};
    if (!most.callbacks && s.kind == CALLBACK) s.kind = NETWORK;
    shape_of_subject(&s, s.kind == CALLBACK ? CHAIN_MAX_WIDTH : most.width, most.rows, most.work);
    if (s.kind == NETWORK) draw_network(&s);
    if (s.kind == CELL) draw_cell(&s);
    if (s.kind == CALLBACK) draw_callback(&s);
    return s;
}

// The steps point to the subject, which must not have moved since.
static void settle_subject(subject *s) {
    s->own.parameters = s->own_parameters;
    if (s->kind == CALLBACK) s->steps.user = &s->own;
}

static void drop_subject(subject *s) {
    dpcr_model_destroy(s->model);
    dpcr_cell_destroy(s->cell);
    free(s->parameters), free(s->gradients), free(s->own.gradients);
}

static void clear_gradients(subject *s) {
    if (s->model) dpcr_model_zero_gradients(s->model);
    if (s->input_gradient.view.data) clear_table(&s->input_gradient);
    if (s->weight_gradient.view.data) clear_table(&s->weight_gradient);
    if (s->own.gradients) memset(s->own.gradients, 0, (size_t)(s->length * s->width) * sizeof(double));
}

static bool has_gradients(const subject *s) {
    return s->model || s->input_gradient.view.data || s->weight_gradient.view.data || s->own.gradients;
}

// The step's gradient along the direction, and the sum of its terms' absolute values.
static double gradient_along(const subject *s, int64_t l, double *size) {
    double sum = 0;
    *size = 0;
#define TERM(value, d)                     \
    do {                                   \
        const double term = (value) * (d); \
        sum += term, *size += fabs(term);  \
    } while (0)
    for (int r = 0; s->model && r < ROLES; r++) {
        const dpcr_array *g = &s->gradients[l * ROLES + r];
        const bool matrix = r == WEIGHT || r == WEIGHT2;
        for (int64_t i = 0; g->data && i < g->shape[0]; i++)
            for (int64_t j = 0; j < (matrix ? g->shape[1] : 1); j++)
                TERM(matrix ? matrix_get(g, i, j) : chain_get(g, i * g->strides[0]),
                     direction(l, r, matrix ? i * g->shape[1] + j : i));
    }
    for (int64_t b = 0; s->input_gradient.view.data && b < s->batch; b++)
        for (int64_t i = 0; i < s->width; i++)
            TERM(table_get(&s->input_gradient, l, b, i), direction(l, BIAS, b * s->width + i));
    for (int64_t i = 0; s->weight_gradient.view.data && i < s->weight_gradient.values; i++)
        TERM(table_get(&s->weight_gradient, l, 0, i), direction(l, WEIGHT, i));
    for (int64_t i = 0; s->own.gradients && i < s->width; i++)
        TERM(s->own.gradients[l * s->width + i], direction(l, BIAS, i));
#undef TERM
    return sum;
}

// All gradients as one vector, to compare bits.
static void *all_gradients(const subject *s, size_t *bytes) {
    int64_t count = 0;
    const size_t size = dpcr_dtype_size(s->dtype);
    if (s->model) dpcr_model_vector(s->model, &count);
    const table *tables[] = {&s->input_gradient, &s->weight_gradient};
    const size_t most = (size_t)count * size + (size_t)(2 * s->length * (s->batch + s->width + 1) * s->width + 1) * 8;
    char *all = calloc(1, most), *to = all;
    if (s->model) memcpy(to, dpcr_model_gradient_vector(s->model), (size_t)count * size), to += (size_t)count * size;
    for (int i = 0; i < 2; i++) {
        if (!tables[i]->view.data) continue;
        void *packed = packed_table(tables[i]);
        const size_t n = (size_t)(tables[i]->steps * tables[i]->rows * tables[i]->values) * size;
        memcpy(to, packed, n), to += n;
        free(packed);
    }
    if (s->own.gradients) {
        const size_t n = (size_t)(s->length * s->width) * sizeof(double);
        memcpy(to, s->own.gradients, n), to += n;
    }
    *bytes = (size_t)(to - all);
    return all;
}

#endif
