// SPDX-License-Identifier: MIT
// The stand-in's kernels: the loop, in plain C, in the order of the definition.
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "fake.h"

// One sequence of `type`: x is the state before, y the one of this step, which may lie where b does.
#define DEFINE_LOOP(name, type)                                                                             \
    static type name##_entry(const dpcri_device_linear *c, const type *a, int64_t i, int64_t j) {           \
        const int64_t k = c->block;                                                                         \
        switch (c->structure) {                                                                             \
            case DPCR_IDENTITY: return i == j;                                                              \
            case DPCR_SCALAR: return i == j ? a[0] : 0;                                                     \
            case DPCR_DIAGONAL: return i == j ? a[i] : 0;                                                   \
            case DPCR_BLOCK: return i / k == j / k ? a[(i / k * k + i % k) * k + j % k] : 0;                \
            case DPCR_DENSE: return a[i * c->w + j];                                                        \
            default: return 0;                                                                              \
        }                                                                                                   \
    }                                                                                                       \
    static void name(const dpcri_device_linear *c, int64_t row, type *state) {                              \
        const type *x = c->z0 ? (const type *)c->z0 + row * c->z0_row : NULL;                               \
        for (int64_t n = 0; n < c->length; n++) {                                                           \
            const int64_t l = c->transposed ? c->length - 1 - n : n, at = c->transposed ? l + 1 : l;        \
            const type *a = c->a && x ? (const type *)c->a + at * c->a_step + row * c->a_row : NULL;        \
            const type *b = (const type *)c->b + l * c->b_step + row * c->b_row;                            \
            type *z = (type *)c->z + l * c->z_step + row * c->z_row;                                        \
            for (int64_t i = 0; i < c->w; i++) {                                                            \
                type sum = b[i];                                                                            \
                for (int64_t j = 0; x && j < c->w; j++) {                                                   \
                    const type entry = c->transposed ? name##_entry(c, a, j, i) : name##_entry(c, a, i, j); \
                    if (entry != 0) sum += entry * x[j];                                                    \
                }                                                                                           \
                state[i] = sum;                                                                             \
            }                                                                                               \
            for (int64_t i = 0; i < c->w; i++) z[i] = state[i];                                             \
            x = z;                                                                                          \
        }                                                                                                   \
    }
DEFINE_LOOP(loop_f32, float)
DEFINE_LOOP(loop_f64, double)
DEFINE_LOOP(loop_u32, uint32_t)
#undef DEFINE_LOOP

enum { WIDEST = 1024 };

static dpcr_status workspace_of(int id, const dpcri_device_linear *chain, size_t *bytes, dpcr_error *error) {
    *bytes = 256;
    if (chain->w <= WIDEST) return DPCR_OK;
    if (error) {
        error->status = DPCR_ERROR_UNSUPPORTED;
        snprintf(error->text, sizeof error->text, "cuda:%d: width %lld, the stand-in serves up to %d", id,
                 (long long)chain->w, WIDEST);
    }
    return DPCR_ERROR_UNSUPPORTED;
}

static dpcr_status run_linear(int id, const dpcri_device_linear *chain, void *workspace, size_t bytes, void *stream,
                              dpcr_error *error) {
    union {
        float f32[WIDEST];
        double f64[WIDEST];
        uint32_t u32[WIDEST];
    } state;
    (void)id;
    (void)stream;
    (void)error;
    for (size_t i = 0; i < bytes; i++) ((unsigned char *)workspace)[i] = 0x5a;  // it is ours to write, all of it
    for (int64_t row = 0; row < chain->rows; row++) {
        if (chain->dtype == DPCR_F32) loop_f32(chain, row, state.f32);
        if (chain->dtype == DPCR_F64) loop_f64(chain, row, state.f64);
        if (chain->dtype == DPCR_U32) loop_u32(chain, row, state.u32);
    }
    return DPCR_OK;
}

// ---- cells and recurrent layers, in double: their methods are all the loop here ----

static double get(dpcr_dtype dtype, const void *at, int64_t i) {
    return !at ? 0 : dtype == DPCR_F64 ? ((const double *)at)[i] : (double)((const float *)at)[i];
}

static void put(dpcr_dtype dtype, void *at, int64_t i, double value) {
    if (dtype == DPCR_F64)
        ((double *)at)[i] = value;
    else
        ((float *)at)[i] = (float)value;
}

static double act(int activation, double u) {
    switch (activation) {
        case 0: return u;
        case 1: return u <= 0 ? 0 : u;
        case 2: return tanh(u);
        case 4: return 0.5 * u * erfc(-u / sqrt(2));
        case 5: return u / (1 + exp(-u));
        default: return 1 / (1 + exp(-u));
    }
}

static double slope(int activation, double u) {
    const double y = act(activation, u), s = act(3, u), pi = 3.14159265358979323846;
    switch (activation) {
        case 0: return 1;
        case 1: return y > 0;
        case 2: return 1 - y * y;
        case 4: return 0.5 * erfc(-u / sqrt(2)) + u * exp(-u * u / 2) / sqrt(2 * pi);
        case 5: return s + u * s * (1 - s);
        default: return y - y * y;
    }
}

// Numbers that act gives.
static int64_t inner_of(const dpcri_device_cell *c) { return c->hidden ? c->hidden : c->w; }

// u_i of step l at the state `before`, and W_ij.
static double weight_at(const dpcri_device_cell *c, int64_t l, int64_t i, int64_t j) {
    if (c->diagonal) return i == j ? get(c->dtype, c->weight, l * c->weight_step + i) : 0;
    return get(c->dtype, c->weight, l * c->weight_step + (c->in_out ? j * inner_of(c) + i : i * c->w + j));
}

// Number of W2_ij among those of a step.
static int64_t second_at(const dpcri_device_cell *c, int64_t l, int64_t i, int64_t j) {
    return l * c->weight_step + (c->in_out ? j * c->w + i : i * c->hidden + j);
}

static double into(const dpcri_device_cell *c, int64_t row, int64_t l, int64_t i) {
    double u = get(c->dtype, c->x, l * c->x_step + row * c->x_row + i);
    for (int64_t j = 0; j < c->w; j++) {
        const double z = l > 0 ? get(c->dtype, c->z, (l - 1) * c->z_step + row * c->z_row + j)
                               : get(c->dtype, c->z0, row * c->z0_row + j);
        if (!c->diagonal || i == j) u += weight_at(c, l, i, j) * z;
    }
    return u;
}

static void tell_outcome(dpcr_device_outcome *outcome, int64_t row, int64_t length, bool finite) {
    const char *locked = getenv("DEEPPCR_FAKE_LOCKED");  // of sequence 0
    const bool told = locked && row == 0;
    if (outcome)
        outcome[row] = (dpcr_device_outcome){.sweeps = told ? 3 : 1,
                                             .locked = told ? atoll(locked) : length,
                                             .non_finite = told ? atoll(locked) == 0 : !finite,
                                             .residual = told ? 0.5 : 0};
}

// What act gets in step l, of all units: u, or of normalised layers what becomes of it, with n in `normal`. Returns r.
static double given_to_act(const dpcri_device_cell *c, int64_t row, int64_t l, double *v, double *normal) {
    double mean = 0, variance = 0;
    const int64_t inner = inner_of(c);
    for (int64_t i = 0; i < inner; i++) v[i] = into(c, row, l, i);
    if (!c->gamma) return 1;
    for (int64_t i = 0; i < inner; i++) mean += v[i] / (double)inner;
    for (int64_t i = 0; i < inner; i++) variance += (v[i] - mean) * (v[i] - mean) / (double)inner;
    const double r = 1 / sqrt(variance + 1e-5);
    for (int64_t i = 0; i < inner; i++) {
        normal[i] = (v[i] - mean) * r;
        v[i] = normal[i] * get(c->dtype, c->gamma, l * c->x_step + i) + get(c->dtype, c->beta, l * c->x_step + i);
    }
    return r;
}

// What u of all units gets in step l where z' gets g; of normalised layers `t` is what v gets.
static void back_through_act(const dpcri_device_cell *c, int64_t row, int64_t l, const double *g, double *e, double *t,
                             double *normal) {
    double v[WIDEST], mean = 0, along = 0;
    const double r = given_to_act(c, row, l, v, normal);
    const int64_t inner = inner_of(c);
    for (int64_t i = 0; i < inner; i++) {
        double come = c->hidden ? 0 : g[i];
        for (int64_t k = 0; c->hidden && k < c->w; k++) come += get(c->dtype, c->weight2, second_at(c, l, k, i)) * g[k];
        t[i] = come * slope(c->activation, v[i]) * (c->residual ? c->scale : 1);
    }
    for (int64_t i = 0; i < inner; i++) e[i] = t[i];
    if (!c->gamma) return;
    for (int64_t i = 0; i < inner; i++) {
        e[i] *= get(c->dtype, c->gamma, l * c->x_step + i);
        mean += e[i] / (double)inner, along += e[i] * normal[i] / (double)inner;
    }
    for (int64_t i = 0; i < inner; i++) e[i] = r * (e[i] - mean - normal[i] * along);
}

static void cell_forward(const dpcri_device_cell *c, int64_t row) {
    double v[WIDEST], normal[WIDEST];
    for (int64_t l = 0; l < c->length; l++) {
        given_to_act(c, row, l, v, normal);
        for (int64_t i = 0; i < c->w; i++) {
            const double before = l > 0 ? get(c->dtype, c->z, (l - 1) * c->z_step + row * c->z_row + i)
                                        : get(c->dtype, c->z0, row * c->z0_row + i);
            double y = c->hidden ? get(c->dtype, c->x2, l * c->x_step + i) : act(c->activation, v[i]);
            for (int64_t k = 0; k < c->hidden; k++)
                y += get(c->dtype, c->weight2, second_at(c, l, i, k)) * act(c->activation, v[k]);
            put(c->dtype, c->z, l * c->z_step + row * c->z_row + i, c->residual ? before + c->scale * y : y);
        }
    }
    bool finite = true;
    for (int64_t i = 0; i < c->w; i++)
        finite = finite && isfinite(get(c->dtype, c->z, (c->length - 1) * c->z_step + row * c->z_row + i));
    tell_outcome(c->outcome, row, c->length, finite);
}

static void cell_backward(const dpcri_device_cell *c, int64_t row) {
    double g[WIDEST] = {0}, next[WIDEST], e[WIDEST], t[WIDEST], normal[WIDEST];
    for (int64_t l = c->length - 1; l >= 0; l--) {
        for (int64_t i = 0; i < c->w; i++) {
            g[i] += get(c->dtype, c->direct, l * c->direct_step + row * c->direct_row + i);
            put(c->dtype, c->adjoint, l * c->adjoint_step + row * c->adjoint_row + i, g[i]);
        }
        for (int64_t j = 0; j < c->w; j++) next[j] = c->residual ? g[j] : 0;
        back_through_act(c, row, l, g, e, t, normal);
        for (int64_t i = 0; i < inner_of(c); i++)
            for (int64_t j = c->diagonal ? i : 0; j < (c->diagonal ? i + 1 : c->w); j++)
                next[j] += e[i] * weight_at(c, l, i, j);
        for (int64_t j = 0; j < c->w; j++) g[j] = next[j];
    }
    for (int64_t j = 0; c->z0_adjoint && j < c->w; j++) put(c->dtype, c->z0_adjoint, row * c->z0_adjoint_row + j, g[j]);
}

static void add_to(dpcr_dtype dtype, void *at, int64_t i, double value) {
    if (at) put(dtype, at, i, get(dtype, at, i) + value);
}

// Over the adjoints; W's and x's gradients lie as both do.
static void cell_gradients(const dpcri_device_cell *c, int64_t row) {
    const int64_t w = c->w, inner = inner_of(c);
    double g[WIDEST] = {0}, e[WIDEST], t[WIDEST], normal[WIDEST], v[WIDEST];
    for (int64_t l = 0; l < c->length; l++) {
        for (int64_t i = 0; i < w; i++)
            g[i] = get(c->dtype, c->adjoint, l * c->adjoint_step + row * c->adjoint_row + i);
        back_through_act(c, row, l, g, e, t, normal);
        if (c->hidden) given_to_act(c, row, l, v, normal);
        for (int64_t i = 0; c->hidden && i < w; i++) {
            const double f = g[i] * (c->residual ? c->scale : 1);
            add_to(c->dtype, c->x2_gradient, l * c->x_step + i, f);
            for (int64_t k = 0; k < inner; k++)
                add_to(c->dtype, c->weight2_gradient, second_at(c, l, i, k), f * act(c->activation, v[k]));
        }
        for (int64_t i = 0; i < inner; i++) {
            add_to(c->dtype, c->x_gradient, l * c->x_step + i, e[i]);
            if (c->gamma) add_to(c->dtype, c->gamma_gradient, l * c->x_step + i, t[i] * normal[i]);
            if (c->gamma) add_to(c->dtype, c->beta_gradient, l * c->x_step + i, t[i]);
            for (int64_t j = 0; j < w; j++) {
                const double z = l > 0 ? get(c->dtype, c->z, (l - 1) * c->z_step + row * c->z_row + j)
                                       : get(c->dtype, c->z0, row * c->z0_row + j);
                add_to(c->dtype, c->weight_gradient, l * c->weight_step + (c->in_out ? j * inner + i : i * w + j),
                       e[i] * z);
            }
        }
    }
}

static dpcr_status cell_workspace(int id, const dpcri_device_cell *cell, size_t *bytes, dpcr_error *error) {
    *bytes = 256;
    const char *const refusal = dpcri_device_cell_refusal(cell);
    if (cell->w <= WIDEST && cell->hidden <= WIDEST && !refusal) return DPCR_OK;
    return dpcri_tell(error, DPCR_ERROR_UNSUPPORTED, "cuda:%d: %s", id,
                      refusal ? refusal : "too wide for the stand-in");
}

static dpcr_status run_cell(int id, const dpcri_device_cell *cell, void *workspace, size_t bytes, void *stream,
                            dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    memset(workspace, 0x5a, bytes);
    for (int64_t row = 0; row < cell->rows; row++) (cell->backward ? cell_backward : cell_forward)(cell, row);
    for (int64_t row = 0; cell->gradients && row < cell->rows; row++) cell_gradients(cell, row);
    return DPCR_OK;
}

static double sum_of(const dpcri_device_recurrent *c, const void *w, const void *b, int64_t row, int64_t n,
                     const double *x) {
    double sum = get(c->dtype, b, row);
    for (int64_t j = 0; j < n; j++) sum += get(c->dtype, w, row * n + j) * x[j];
    return sum;
}

static int gates_of(const dpcri_device_recurrent *c) {
    if (c->gates > DPCRI_DEVICE_LSTM) return c->gates == DPCRI_DEVICE_MINGRU ? 2 : 3;
    return c->gates == DPCRI_DEVICE_GRU ? 3 : c->gates == DPCRI_DEVICE_LSTM ? 4 : 1;
}

// Numbers of h.
static int64_t heard_of(const dpcri_device_recurrent *c) { return c->projected ? c->projected : c->hidden; }

// What an LSTM projects from numbers of its units: h of m, or back the gradient of m.
static double project(const dpcri_device_recurrent *c, int64_t j, const double *m) {
    double sum = 0;
    for (int64_t u = 0; u < c->hidden; u++) sum += get(c->dtype, c->w_hr, j * c->hidden + u) * m[u];
    return sum;
}
static double unproject(const dpcri_device_recurrent *c, int64_t u, const double *h) {
    double sum = 0;
    for (int64_t j = 0; j < c->projected; j++) sum += get(c->dtype, c->w_hr, j * c->hidden + u) * h[j];
    return c->projected ? sum : h[u];
}

static int64_t length_of(const dpcri_device_recurrent *c, int64_t row) {
    return c->packed ? c->lengths[row] : c->length;
}

// Where step l of the sequence lies.
static int64_t step_of(const dpcri_device_recurrent *c, int64_t row, int64_t l) {
    return c->against ? l + c->length - length_of(c, row) : l;
}

// Whether the state before step l of a sequence is 0.
static bool begins(const dpcri_device_recurrent *c, int64_t row, int64_t l) {
    const int64_t t = c->against ? length_of(c, row) - l : l;
    return c->parted && t < length_of(c, row) && c->resets[t * c->rows + row];
}

// What a step's gates get by the input, and by the state before it.
static void gates_sums(const dpcri_device_recurrent *c, int64_t row, int64_t l, const double *h, int64_t u, double *in,
                       double *of) {
    double x[WIDEST];
    for (int64_t j = 0; j < c->inputs; j++)
        x[j] = get(c->dtype, c->x, step_of(c, row, l) * c->x_step + row * c->x_row + j);
    for (int g = 0; g < gates_of(c); g++) {
        in[g] = sum_of(c, c->w_ih, c->b_ih, g * c->hidden + u, c->inputs, x);
        if (c->gates > DPCRI_DEVICE_LSTM) continue;
        of[g] = sum_of(c, c->w_hh, c->b_hh, g * c->hidden + u, heard_of(c), h);
    }
}

// Kinds whose units do not mix: the unit's next h, and c.
static double apart(const dpcri_device_recurrent *c, int64_t u, const double *x, double h, double *cell) {
    double a[3];
    for (int g = 0; g < 3; g++) a[g] = get(c->dtype, c->w_hh, g * c->hidden + u) * h;
    if (c->gates == DPCRI_DEVICE_MINGRU) return h + act(3, x[0]) * (x[1] - h);
    if (c->gates == DPCRI_DEVICE_PARAGRU)
        return h + act(3, x[0] + a[0]) * (tanh(x[2] + act(3, x[1] + a[1]) * a[2]) - h);
    const double f = act(3, x[0] + a[0] + get(c->dtype, c->peephole, u) * *cell), z = tanh(x[1] + a[1]);
    *cell = f * *cell + (1 - f) * z;
    return act(3, x[2] + a[2] + get(c->dtype, c->peephole, c->hidden + u) * *cell) * tanh(*cell);
}

// What an LSTM's gate gets of c.
static double peep(const dpcri_device_recurrent *c, int which, int64_t u, double cell) {
    return c->peepholes ? get(c->dtype, c->peephole, which * c->hidden + u) * cell : 0;
}

// r h of all units, of a GRU that resets before the product; and what W_n makes of it.
static void reset_states(const dpcri_device_recurrent *c, int64_t row, int64_t l, const double *h, double *product) {
    for (int64_t u = 0; c->reset_before && u < c->hidden; u++) {
        double in[4] = {0}, of[4] = {0};
        gates_sums(c, row, l, h, u, in, of);
        product[u] = act(3, in[0] + of[0]) * h[u];
    }
}
static double reset_sum(const dpcri_device_recurrent *c, int64_t u, const double *product) {
    return sum_of(c, c->w_hh, c->b_hh, 2 * c->hidden + u, c->hidden, product);
}

static void layer_forward(const dpcri_device_recurrent *c, int64_t row) {
    double h[WIDEST], next[WIDEST], cell[WIDEST], product[WIDEST] = {0};
    const int64_t H = c->hidden, K = heard_of(c), length = length_of(c, row);
    const int gates = gates_of(c);
    for (int64_t j = 0; j < K; j++) h[j] = get(c->dtype, c->h0, row * K + j);
    for (int64_t u = 0; u < H; u++) cell[u] = get(c->dtype, c->c0, row * H + u);
    for (int64_t l = 0; l < c->length; l++)
        for (int64_t j = 0; j < K; j++) put(c->dtype, c->y, l * c->y_step + row * c->y_row + j, 0);
    for (int64_t l = 0; l < length; l++) {
        const int64_t at = step_of(c, row, l);
        for (int64_t j = 0; j < K && begins(c, row, l); j++) h[j] = 0;
        for (int64_t u = 0; u < H && begins(c, row, l); u++) cell[u] = 0;
        reset_states(c, row, l, h, product);
        for (int64_t u = 0; u < H; u++) {
            double in[4] = {0}, of[4] = {0};
            gates_sums(c, row, l, h, u, in, of);
            if (c->gates > DPCRI_DEVICE_LSTM) {
                next[u] = apart(c, u, in, h[u], &cell[u]);
                if (c->kept) put(c->dtype, c->kept, (at * c->rows + row) * H + u, cell[u]);
                continue;
            }
            const double a = act(3, in[0] + of[0] + peep(c, 0, u, cell[u]));
            const double b = c->coupled ? 1 - a : act(3, in[1] + of[1] + peep(c, 1, u, cell[u]));
            if (gates == 1) next[u] = act(c->gates == DPCRI_DEVICE_RNN_RELU ? 1 : 2, in[0] + of[0]);
            const double to_n = c->reset_before ? reset_sum(c, u, product) : a * of[2];
            if (gates == 3) next[u] = (1 - b) * tanh(in[2] + to_n) + b * h[u];
            if (gates == 4) cell[u] = b * cell[u] + a * tanh(in[2] + of[2]);
            if (gates == 4) next[u] = act(3, in[3] + of[3] + peep(c, 2, u, cell[u])) * tanh(cell[u]);
            if (c->kept) put(c->dtype, c->kept, (at * c->rows + row) * H + u, cell[u]);
        }
        for (int64_t j = 0; j < K; j++) h[j] = c->projected ? project(c, j, next) : next[j];
        for (int64_t j = 0; j < K; j++) put(c->dtype, c->y, at * c->y_step + row * c->y_row + j, h[j]);
    }
    bool finite = true;
    for (int64_t j = 0; j < K; j++) finite = finite && isfinite(h[j]);
    for (int64_t j = 0; c->ht && j < K; j++) put(c->dtype, c->ht, row * K + j, h[j]);
    for (int64_t u = 0; c->ct && u < H; u++) put(c->dtype, c->ct, row * H + u, cell[u]);
    tell_outcome(c->outcome, row, c->length, finite);
}

static void add(dpcr_dtype dtype, void *to, int64_t i, double value) {
    if (to) put(dtype, to, i, get(dtype, to, i) + value);
}

static void add_input(const dpcri_device_recurrent *c, int64_t row, int64_t l, int64_t g, double in) {
    const int64_t at = step_of(c, row, l), I = c->inputs;
    add(c->dtype, c->db_ih, g, in);
    for (int64_t j = 0; j < I; j++) {
        add(c->dtype, c->dw_ih, g * I + j, in * get(c->dtype, c->x, at * c->x_step + row * c->x_row + j));
        add(c->dtype, c->dx, at * c->dx_step + row * c->dx_row + j, in * get(c->dtype, c->w_ih, g * I + j));
    }
}

// e of a gate's sum, its input's (in) and its state's part (of): what both weights get, and what goes on by them.
static void add_gate(const dpcri_device_recurrent *c, int64_t row, int64_t l, int64_t g, double in, double of,
                     const double *h, double *before) {
    const int64_t K = heard_of(c);
    add_input(c, row, l, g, in);
    add(c->dtype, c->db_hh, g, of);
    for (int64_t j = 0; j < K; j++) {
        add(c->dtype, c->dw_hh, g * K + j, of * h[j]);
        before[j] += of * get(c->dtype, c->w_hh, g * K + j);
    }
}

// Kinds whose units do not mix: what a unit's gradient d of h becomes a step before, and of c.
static double apart_back(const dpcri_device_recurrent *c, int64_t row, int64_t l, int64_t u, const double *x, double h,
                         double past, double d, double *gc) {
    const int64_t H = c->hidden;
    double a[3], e[3] = {0}, of[3] = {0};
    for (int g = 0; g < 3; g++) a[g] = get(c->dtype, c->w_hh, g * H + u);
    double before = 0;
    if (c->gates == DPCRI_DEVICE_MINGRU) {
        const double z = act(3, x[0]);
        e[0] = d * (x[1] - h) * z * (1 - z), e[1] = d * z, before = d * (1 - z);
    } else if (c->gates == DPCRI_DEVICE_PARAGRU) {
        const double z = act(3, x[0] + a[0] * h), r = act(3, x[1] + a[1] * h), q = tanh(x[2] + a[2] * r * h);
        e[0] = d * (q - h) * z * (1 - z), e[2] = d * z * (1 - q * q), e[1] = e[2] * a[2] * h * r * (1 - r);
        of[0] = e[0], of[1] = e[1], of[2] = e[2] * r, before = d * (1 - z);
    } else {
        const double by_f = get(c->dtype, c->peephole, u), by_o = get(c->dtype, c->peephole, H + u);
        const double f = act(3, x[0] + a[0] * h + by_f * past), z = tanh(x[1] + a[1] * h);
        const double cell = f * past + (1 - f) * z, o = act(3, x[2] + a[2] * h + by_o * cell), t = tanh(cell);
        e[2] = d * t * o * (1 - o);
        const double dc = *gc + d * o * (1 - t * t) + by_o * e[2];
        e[0] = dc * (past - z) * f * (1 - f), e[1] = dc * (1 - f) * (1 - z * z);
        *gc = dc * f + by_f * e[0];
        add(c->dtype, c->dpeephole, u, e[0] * past);
        add(c->dtype, c->dpeephole, H + u, e[2] * cell);
        for (int g = 0; g < 3; g++) of[g] = e[g];
    }
    for (int g = 0; g < gates_of(c); g++) add_input(c, row, l, g * H + u, e[g]);
    for (int g = 0; g < 3 && c->gates != DPCRI_DEVICE_MINGRU; g++) {
        add(c->dtype, c->dw_hh, g * H + u, of[g] * h);
        before += of[g] * a[g];
    }
    return before;
}

static double cell_before(const dpcri_device_recurrent *c, int64_t row, int64_t l, int64_t u) {
    if (begins(c, row, l)) return 0;
    return l > 0 ? get(c->dtype, c->kept, ((step_of(c, row, l) - 1) * c->rows + row) * c->hidden + u)
                 : get(c->dtype, c->c0, row * c->hidden + u);
}

// A step back of a GRU that resets before the product, d what has come to the state after it.
static void reset_back(const dpcri_device_recurrent *c, int64_t row, int64_t l, const double *h, const double *d,
                       double *before) {
    const int64_t H = c->hidden;
    double product[WIDEST], inner[WIDEST] = {0}, r[WIDEST];
    reset_states(c, row, l, h, product);
    for (int64_t u = 0; u < H; u++) {
        double in[4] = {0}, of[4] = {0};
        gates_sums(c, row, l, h, u, in, of);
        r[u] = act(3, in[0] + of[0]);
        const double z = act(3, in[1] + of[1]), n = tanh(in[2] + reset_sum(c, u, product));
        const double dz = d[u] * (h[u] - n) * z * (1 - z), dn = d[u] * (1 - z) * (1 - n * n);
        add_gate(c, row, l, H + u, dz, dz, h, before);
        add_gate(c, row, l, 2 * H + u, dn, dn, product, inner);
        before[u] += d[u] * z;
    }
    for (int64_t u = 0; u < H; u++) {
        const double dr = inner[u] * h[u] * r[u] * (1 - r[u]);
        add_gate(c, row, l, u, dr, dr, h, before);
        before[u] += inner[u] * r[u];
    }
}

static void layer_backward(const dpcri_device_recurrent *c, int64_t row) {
    double h[WIDEST], g[WIDEST], gc[WIDEST], before[WIDEST], come[WIDEST];
    const int64_t H = c->hidden, K = heard_of(c);
    const int gates = gates_of(c);
    for (int64_t j = 0; j < K; j++) g[j] = get(c->dtype, c->dht, row * K + j);
    for (int64_t u = 0; u < H; u++) gc[u] = get(c->dtype, c->dct, row * H + u);
    for (int64_t l = 0; c->dx && !c->dx_adds && l < c->length; l++)
        for (int64_t j = 0; j < c->inputs; j++) put(c->dtype, c->dx, l * c->dx_step + row * c->dx_row + j, 0);
    for (int64_t l = length_of(c, row) - 1; l >= 0; l--) {
        const int64_t at = step_of(c, row, l);
        const bool begun = begins(c, row, l);
        for (int64_t j = 0; j < K; j++) {
            h[j] = begun   ? 0
                   : l > 0 ? get(c->dtype, c->y, (at - 1) * c->y_step + row * c->y_row + j)
                           : get(c->dtype, c->h0, row * K + j);
            before[j] = 0;
            come[j] = g[j] + get(c->dtype, c->dy, at * c->dy_step + row * c->dy_row + j);
        }
        for (int64_t u = 0; u < H; u++) {
            double in[4] = {0}, of[4] = {0};
            gates_sums(c, row, l, h, u, in, of);
            const double d = unproject(c, u, come);
            if (c->reset_before) continue;
            if (c->gates > DPCRI_DEVICE_LSTM) {
                const double past = cell_before(c, row, l, u);
                before[u] = apart_back(c, row, l, u, in, h[u], past, d, &gc[u]);
                continue;
            }
            const double past = gates == 4 ? cell_before(c, row, l, u) : 0;
            const double a = act(3, in[0] + of[0] + peep(c, 0, u, past));
            const double b = c->coupled ? 1 - a : act(3, in[1] + of[1] + peep(c, 1, u, past));
            if (gates == 1) {
                const int f = c->gates == DPCRI_DEVICE_RNN_RELU ? 1 : 2;
                const double e = d * slope(f, in[0] + of[0]);
                add_gate(c, row, l, u, e, e, h, before);
            }
            if (gates == 3) {
                const double n = tanh(in[2] + a * of[2]), dn = d * (1 - b) * (1 - n * n);
                const double dr = dn * of[2] * a * (1 - a), dz = d * (h[u] - n) * b * (1 - b);
                add_gate(c, row, l, u, dr, dr, h, before);
                add_gate(c, row, l, H + u, dz, dz, h, before);
                add_gate(c, row, l, 2 * H + u, dn, dn * a, h, before);
                before[u] += d * b;
            }
            if (gates == 4) {
                const double n = tanh(in[2] + of[2]);
                const double after = b * past + a * n, t = tanh(after),
                             o = act(3, in[3] + of[3] + peep(c, 2, u, after));
                const double eo = d * t * o * (1 - o), dc = gc[u] + d * o * (1 - t * t) + peep(c, 2, u, eo);
                const double e[4] = {dc * (n - (c->coupled ? past : 0)) * a * (1 - a),
                                     c->coupled ? 0 : dc * past * b * (1 - b), dc * a * (1 - n * n), eo};
                for (int q = 0; q < 4; q++) add_gate(c, row, l, q * H + u, e[q], e[q], h, before);
                gc[u] = dc * b + peep(c, 0, u, e[0]) + peep(c, 1, u, e[1]);
                for (int64_t j = 0; j < c->projected; j++) add(c->dtype, c->dw_hr, j * H + u, come[j] * o * t);
                for (int q = 0; c->peepholes && q < 3; q++)
                    add(c->dtype, c->dpeephole, q * H + u, e[q == 2 ? 3 : q] * (q == 2 ? after : past));
            }
        }
        if (c->reset_before) reset_back(c, row, l, h, come, before);
        for (int64_t j = 0; j < K; j++) g[j] = begun ? 0 : before[j];
        for (int64_t u = 0; u < H && begun; u++) gc[u] = 0;
    }
    bool finite = true;
    for (int64_t j = 0; j < K; j++) finite = finite && isfinite(g[j]);
    for (int64_t j = 0; c->dh0 && j < K; j++) put(c->dtype, c->dh0, row * K + j, g[j]);
    for (int64_t u = 0; c->dc0 && u < H; u++) put(c->dtype, c->dc0, row * H + u, gc[u]);
    tell_outcome(c->outcome, row, c->length, finite);
}

static dpcr_status layer_workspace(int id, const dpcri_device_recurrent *layer, size_t *bytes, dpcr_error *error) {
    *bytes = 256;
    const char *const refusal = dpcri_device_recurrent_refusal(layer);
    if (refusal) return dpcri_tell(error, DPCR_ERROR_UNSUPPORTED, "cuda:%d: %s", id, refusal);
    if (layer->hidden <= WIDEST && layer->inputs <= WIDEST) return DPCR_OK;
    return dpcri_tell(error, DPCR_ERROR_UNSUPPORTED, "cuda:%d: no such layer on the stand-in", id);
}

static dpcr_status run_layer(int id, const dpcri_device_recurrent *layer, void *workspace, size_t bytes, void *stream,
                             dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    memset(workspace, 0x5a, bytes);
    for (int64_t row = 0; row < layer->rows; row++) (layer->backward ? layer_backward : layer_forward)(layer, row);
    return DPCR_OK;
}

// ---- training, in the formulas' own order ----

#define DEFINE_UPDATE(name, T, root_of)                                                      \
    static void name(const dpcri_device_update *u) {                                         \
        T *p = u->parameters, *g = u->gradients, *m = u->first, *v = u->second;              \
        for (int64_t i = 0; i < u->count; i++) {                                             \
            const T x = u->adam ? (T)u->keep * p[i] : p[i];                                  \
            T d = g[i] + (T)u->decay * x;                                                    \
            if (u->adam) {                                                                   \
                m[i] = (u->from_gradient ? d : m[i]) + (T)u->pull * (d - m[i]);              \
                v[i] = (T)u->beta2 * v[i] + (T)u->rest2 * d * d;                             \
                p[i] = x - (T)u->step * m[i] / (root_of(v[i]) * (T)u->root + (T)u->epsilon); \
            } else {                                                                         \
                if (m) m[i] = d = (T)u->momentum * m[i] + d;                                 \
                p[i] = x - (T)u->rate * d;                                                   \
            }                                                                                \
            if (u->clear) g[i] = 0;                                                          \
        }                                                                                    \
    }
DEFINE_UPDATE(update_f32, float, sqrtf)
DEFINE_UPDATE(update_f64, double, sqrt)
#undef DEFINE_UPDATE

static dpcr_status update(int id, const dpcri_device_update *u, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    (u->dtype == DPCR_F32 ? update_f32 : update_f64)(u);
    return DPCR_OK;
}

// In the blocks and parts of kern/device.h, whose order is the bits.
static void add_squares(dpcr_dtype dtype, int64_t count, const void *gradients, double *sum) {
    const int64_t even = (count + DPCRI_CLIP_BLOCKS - 1) / DPCRI_CLIP_BLOCKS;
    const int64_t block = even < DPCRI_CLIP_LEAST ? DPCRI_CLIP_LEAST : even;
    for (int64_t from = 0; from < count; from += block) {
        double part[DPCRI_CLIP_PARTS] = {0}, of_block = 0;
        for (int64_t i = from; i < count && i < from + block; i++) {
            const double g = get(dtype, gradients, i);
            part[(i - from) % DPCRI_CLIP_PARTS] += g * g;
        }
        for (int j = 0; j < DPCRI_CLIP_PARTS; j++) of_block += part[j];
        *sum += of_block;
    }
}

static void scale(dpcr_dtype dtype, int64_t count, void *gradients, double factor) {
    for (int64_t i = 0; i < count; i++) {
        if (dtype == DPCR_F32)
            ((float *)gradients)[i] *= (float)factor;
        else
            ((double *)gradients)[i] *= factor;
    }
}

static dpcr_status clip(int id, const dpcri_device_clip *c, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    double sum = 0;
    add_squares(c->dtype, c->count, c->gradients, &sum);
    add_squares(c->dtype, c->more_count, c->more, &sum);
    c->sums[0] = sqrt(sum);
    const double factor = c->most / (c->sums[0] + 1e-6);
    if (factor >= 1 || isinf(c->most)) return DPCR_OK;
    scale(c->dtype, c->count, c->gradients, factor);
    scale(c->dtype, c->more_count, c->more, factor);
    return DPCR_OK;
}

static dpcr_status tie(int id, const dpcri_device_tie *t, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    for (int64_t l = t->tie; l < t->steps; l++)
        for (int64_t i = 0; i < t->each; i++) {
            const int64_t to = l % t->tie * t->each + i, from = l * t->each + i;
            put(t->dtype, t->gradients, to, get(t->dtype, t->gradients, to) + get(t->dtype, t->gradients, from));
        }
    for (int64_t l = t->tie; l < t->steps; l++)
        for (int64_t i = 0; i < t->each; i++)
            put(t->dtype, t->gradients, l * t->each + i, get(t->dtype, t->gradients, l % t->tie * t->each + i));
    return DPCR_OK;
}

static dpcr_status affine(int id, const dpcri_device_affine *a, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t u = 0; u < a->out; u++) {
            double sum = a->backward ? get(a->dtype, a->y, r * a->out + u) : get(a->dtype, a->bias, u);
            for (int64_t k = 0; k < a->in; k++) {
                const int64_t w = a->out_in ? u * a->in + k : k * a->out + u, x = r * a->in + k;
                if (!a->backward) sum += get(a->dtype, a->x, x) * get(a->dtype, a->weight, w);
                if (a->backward && a->dx)
                    put(a->dtype, a->dx, x, (u > 0 ? get(a->dtype, a->dx, x) : 0) + sum * get(a->dtype, a->weight, w));
                if (a->backward && a->weight_gradient)
                    put(a->dtype, a->weight_gradient, w,
                        get(a->dtype, a->weight_gradient, w) + sum * get(a->dtype, a->x, x));
            }
            if (!a->backward)
                put(a->dtype, a->y, r * a->out + u, sum);
            else if (a->bias_gradient)
                put(a->dtype, a->bias_gradient, u, get(a->dtype, a->bias_gradient, u) + sum);
        }
    return DPCR_OK;
}

static dpcr_status loss(int id, const dpcri_device_loss *l, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    l->told[0] = l->told[1] = 0;
    for (int64_t r = 0; r < l->rows; r++) {
        const int64_t row = r * l->classes;
        int64_t best = 0;
        double sum = 0;
        for (int64_t j = 1; j < l->classes; j++)
            if (get(l->dtype, l->logits, row + j) > get(l->dtype, l->logits, row + best)) best = j;
        const double max = get(l->dtype, l->logits, row + best);
        for (int64_t j = 0; j < l->classes; j++) sum += exp(get(l->dtype, l->logits, row + j) - max);
        l->told[0] += (max - get(l->dtype, l->logits, row + l->labels[r]) + log(sum)) / (double)l->rows;
        l->told[1] += best == l->labels[r];
        for (int64_t j = 0; l->dlogits && j < l->classes; j++)
            put(l->dtype, l->dlogits, row + j,
                (exp(get(l->dtype, l->logits, row + j) - max) / sum - (j == l->labels[r])) / (double)l->rows);
    }
    return DPCR_OK;
}

static dpcr_status shuffle(int id, const dpcri_device_shuffle *s, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    for (int64_t i = 0; i < s->count; i++) s->order[i] = i;
    for (int64_t i = 0; i + 1 < s->count; i++) {
        const int64_t j = i + (int64_t)dpcri_random_below(s->seed, s->stream, (uint64_t)i, (uint64_t)(s->count - i));
        const int64_t kept = s->order[i];
        s->order[i] = s->order[j];
        s->order[j] = kept;
    }
    return DPCR_OK;
}

static dpcr_status gather(int id, const dpcri_device_gather *g, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    for (int64_t r = 0; r < g->rows; r++) {
        const int64_t image = g->order ? g->order[g->first + r] : g->first + r;
        for (int64_t i = 0; i < g->pixels; i++)
            put(g->dtype, g->x, r * g->pixels + i, get(g->dtype, g->table, g->images[image * g->pixels + i]));
        g->y[r] = g->labels[image];
    }
    return DPCR_OK;
}

static int64_t steps_of(const int64_t *lengths, int64_t row, int64_t length) { return lengths ? lengths[row] : length; }

static dpcr_status sequences(int id, const dpcri_device_sequences *s, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    for (int64_t r = 0; r < s->rows; r++) {
        const int64_t asked = s->first + r, at = asked < s->count ? asked : s->count - 1;
        const int64_t from = s->order ? s->order[at] : at;
        for (int64_t t = 0; t < s->length; t++)
            for (int64_t i = 0; i < s->features; i++)
                put(s->dtype, s->x, (t * s->rows + r) * s->features + i,
                    (double)s->data[(from * s->length + t) * s->features + i]);
        s->y[r] = s->labels[from];
        const int64_t parts = s->parts > 1 ? s->parts : 1;
        for (int64_t k = 0, begin = 0; s->steps && k < parts; k++) {
            const int64_t end = s->length - (parts - 1 - k) * s->part, left = s->lengths[from] - begin;
            s->steps[k * s->rows + r] = left < 0 ? 0 : left < end - begin ? left : end - begin;
            begin = end;
        }
    }
    return DPCR_OK;
}

static dpcr_status embedding(int id, const dpcri_device_embedding *e, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    for (int64_t n = 0; n < e->length * e->rows; n++) {
        if (!e->backward) {
            const uint8_t *const from = e->text + e->first + n % e->rows * e->stream + n / e->rows;
            e->indices[n] = from[0];
            e->labels[n] = from[1];
        }
        for (int64_t j = 0; j < e->width; j++) {
            const int64_t w = e->indices[n] * e->width + j, x = n * e->width + j;
            if (e->backward)
                add(e->dtype, e->weight_gradient, w, get(e->dtype, e->x, x));
            else
                put(e->dtype, e->x, x, get(e->dtype, e->weight, w));
        }
    }
    return DPCR_OK;
}

// The number of the states that number `n` of v is, of the last ones.
static int64_t state_of(const dpcri_device_readout *r, int64_t n) {
    const int64_t own = r->width / r->parts, row = n / r->width, part = n % r->width / own;
    return (part * r->rows + row) * own + n % own;
}

static dpcr_status readout(int id, const dpcri_device_readout *r, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    for (int64_t n = 0; n < r->rows * r->width; n++) {
        if (!r->mean && r->backward) put(r->dtype, r->states, state_of(r, n), get(r->dtype, r->v, n));
        if (!r->mean && !r->backward) put(r->dtype, r->v, n, get(r->dtype, r->states, state_of(r, n)));
        if (!r->mean) continue;
        const int64_t steps = steps_of(r->lengths, n / r->width, r->length);
        const double share = 1.0 / (double)(steps > 0 ? steps : 1);
        double sum = 0;
        for (int64_t t = 0; t < r->length; t++) {
            const int64_t at = t * r->rows * r->width + n;
            if (r->backward)
                put(r->dtype, r->states, at, t < steps ? share * get(r->dtype, r->v, n) : 0);
            else if (t < steps)
                sum += share * get(r->dtype, r->states, at);
        }
        if (!r->backward) put(r->dtype, r->v, n, sum);
    }
    return DPCR_OK;
}

static dpcr_status drop(int id, const dpcri_device_drop *d, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    for (int64_t t = 0; t < d->length; t++)
        for (int64_t b = 0; b < d->rows; b++)
            for (int64_t i = 0; i < d->width; i++) {
                const int64_t at = (t * d->rows + b) * d->width + i;
                const double scale = d->dtype == DPCR_F32 ? (double)(float)d->scale : d->scale;
                uint32_t words[4];
                dpcri_random_block(d->seed, (uint64_t)t << 32 | (uint64_t)b, (uint64_t)i / 4, words);
                const bool kept = words[i % 4] >= d->below && scale != 0;
                put(d->dtype, d->to, at, kept ? get(d->dtype, d->from, at) * scale : 0);
            }
    return DPCR_OK;
}

// The step and the sequence of a row; false: there is none.
static bool place_of(const dpcri_device_window *w, int64_t row, int64_t *step, int64_t *sequence) {
    *step = 0, *sequence = row;
    if (!w->count) return true;
    *sequence = w->who[row % w->count];
    *step = w->places[*sequence].front + w->first + row / w->count;
    return w->first + row / w->count < w->most && *step < w->length;
}

static dpcr_status dense(int id, const dpcri_device_dense *d, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    int64_t l, b;
    for (int64_t r = 0; r < d->rows; r++)
        for (int64_t u = 0; u < d->out && place_of(&d->window, r, &l, &b); u++) {
            const float *const x = d->x + (d->path ? l * d->window.batch + b : r) * d->x_row;
            const float more = d->more ? d->more[(d->index ? d->index[b] : 0) * d->more_row + u] : 0;
            double sum = d->bias[l * d->bias_row + u] + more;
            for (int64_t k = 0; k < d->in; k++) sum += (double)x[k] * (double)d->weight[u * d->in + k];
            const double y = act(d->activation, sum);
            d->y[r * d->y_row + u] = (float)(d->residual ? (double)x[u] + y : y);
        }
    return DPCR_OK;
}

static double said(const float *m, const float *plain, float guidance, int64_t n) {
    return plain ? plain[n] + guidance * (m[n] - plain[n]) : m[n];
}

static double cut(double x0, double clip) { return clip > 0 ? fmax(-clip, fmin(clip, x0)) : x0; }

static dpcr_status denoise(int id, const dpcri_device_denoise *d, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    int64_t l, b;
    for (int64_t n = 0; n < d->rows * d->width; n++) {
        const int64_t r = n / d->width, i = n % d->width;
        if (!place_of(&d->window, r, &l, &b)) continue;
        const dpcri_device_factors *const by = d->window.count ? &d->steps[l] : &d->by;
        if (d->m1 && !by->twice) continue;
        const int64_t at = l * d->window.batch + b;
        float *const to = d->to + r * d->to_row + i;
        const double x = d->x[at * d->x_row + i], m = said(d->m, d->plain, d->guidance, n);
        const double x0 = cut(by->x0_x * x + by->x0_m * m, d->clip);
        double next = by->by_x * x + by->by_x0 * x0 + by->by_e * (by->e_x * x + by->e_m * m);
        if (d->former) next += by->by_former * d->former[at * d->former_row + i];
        if (d->noise) next += by->by_noise * d->noise[at * d->width + i];
        if (d->m1) {
            const double m1 = said(d->m1, d->plain1, d->guidance, n);
            next = by->then_x * x + by->then_x0 * x0 + by->then_x1 * *to +
                   by->then_x01 * cut(by->then_x0_x * *to + by->then_x0_m * m1, d->clip);
        }
        if (d->kept) d->kept[r * d->kept_row + i] = (float)x0;
        if (d->mask && d->mask[i] && (d->m1 || !by->twice))
            next = by->alpha * d->known[b * d->width + i] + by->sigma * d->start[b * d->width + i];
        *to = (float)next;
    }
    return DPCR_OK;
}

static dpcr_status move(int id, const dpcri_device_move *m, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    for (int64_t l = 0; l < m->steps; l++)
        for (int64_t n = 0; n < m->rows * m->width; n++) {
            const int64_t row = n / m->width, i = n % m->width;
            m->to[l * m->to_step + row * m->to_row + i] =
                m->from ? m->from[l * m->from_step + row * m->from_row + i] : 0;
        }
    return DPCR_OK;
}

// ---- sweeps of picard ----

static float *state_at(const dpcri_device_sweep *s, int64_t l, int64_t b) {
    return s->path + ((l + 1) * s->window.batch + b) * s->width;
}

static bool all_finite(const float *x, int64_t width) {
    bool finite = true;
    for (int64_t k = 0; k < width; k++) finite = finite && isfinite(x[k]);
    return finite;
}

// The residual over max(1, |z|), and whether the step is within its tolerance.
static double residual_of(const dpcri_device_sweep *s, const float *f, const float *z, double unit, bool *within) {
    double worst = 0;
    *within = all_finite(f, s->width) && all_finite(z, s->width);
    for (int64_t k = 0; k < s->width; k++) {
        const double size = fabs((double)f[k] - (double)z[k]), value = fabs((double)z[k]);
        *within = *within && size <= unit * (s->atol + s->rtol * value);
        worst = fmax(worst, size / fmax(1, value));
    }
    return worst;
}

static void end_sweep(const dpcri_device_sweep *s, int64_t b, int64_t hi, dpcri_device_progress *p) {
    const int64_t length = s->window.length, left = length - p->front;
    const int64_t next = left < s->window.most ? left : s->window.most;
    p->filled = p->filled > hi ? p->filled : hi;
    for (; p->filled < p->front + next; p->filled++)
        if (s->guess)
            memcpy(state_at(s, p->filled, b), state_at(s, p->filled - 1, b), (size_t)s->width * sizeof(float));
    if (!p->ended && p->front >= length) p->ended = DPCRI_DEVICE_LOCKED;
    if (!p->ended && p->work + next > s->max_sweeps * length) p->ended = DPCRI_DEVICE_SPENT;
    p->locked = p->front;
    if (p->ended == DPCRI_DEVICE_NOT_FINITE || (p->ended == DPCRI_DEVICE_SPENT && !s->no_fallback)) p->front = p->exact;
}

static void sweep_sequence(const dpcri_device_sweep *s, int64_t item) {
    const int64_t b = s->window.who[item], w = s->width, count = s->window.count;
    dpcri_device_progress *const p = (dpcri_device_progress *)(uintptr_t)&s->window.places[b];
    const int64_t lo = p->front, end = lo + s->window.most, hi = end < s->window.length ? end : s->window.length;
    int64_t good = lo, small = lo;
    if (s->in_order) {
        if (lo < hi) memcpy(state_at(s, p->front++, b), s->f + item * w, (size_t)w * sizeof(float));
        return;
    }
    p->residual = 0;
    for (int64_t l = lo; l < hi; l++) {
        const float *const f = s->f + ((l - lo) * count + item) * w, *const z = state_at(s, l, b);
        float *const r = s->r + ((l - lo) * count + item) * w;
        bool within;
        p->residual = fmax(p->residual, residual_of(s, f, z, s->scale ? s->scale[l] : 1, &within));
        if (within && good == l) good++;
        for (int64_t k = 0; k < w; k++) {
            const bool linked = l > lo && all_finite(f, w);
            r[k] = (all_finite(f, w) ? f[k] - z[k] : 0) + (linked ? r[k - count * w] : 0);
        }
    }
    p->work += hi - lo;
    if (s->mean || good < hi || hi < s->window.length) p->sweeps++;
    if (!all_finite(s->f + item * w, w)) {
        p->ended = DPCRI_DEVICE_NOT_FINITE;
        end_sweep(s, b, hi, p);
        return;
    }
    for (int64_t l = lo; l < hi; l++) {
        const float *const f = s->f + ((l - lo) * count + item) * w, *const d = s->r + ((l - lo) * count + item) * w;
        float *const z = state_at(s, l, b);
        const double limit = (s->scale ? s->scale[l] : 1) * s->atol;
        double square = 0;
        for (int64_t k = 0; k < w; k++) square += (double)d[k] * (double)d[k];
        if (square <= (double)w * limit * limit && small == l) small++;
        for (int64_t k = 0; k < w && (s->mean || l >= good); k++) z[k] = l == lo ? f[k] : z[k] + d[k];
    }
    if (s->mean) good = small < hi && s->atol > 0 ? small + 1 : small;
    if (p->exact == p->front && (s->mean || good == lo)) p->exact++;
    p->front = good > lo ? good : lo + 1;
    if (s->atol == 0 && s->rtol == 0) p->exact = p->front;
    end_sweep(s, b, hi, p);
}

// ---- and of parataa ----

static double slope_of(const dpcri_device_sweep *s, int64_t l) { return s->slopes ? s->slopes[l] : 1; }

static float *past_of(const dpcri_device_sweep *s, float *of, int64_t b, int64_t q, int64_t l) {
    return of + ((b * (s->mixed - 1) + q) * s->window.most + l % s->window.most) * s->width;
}

static float *old_of(const dpcri_device_sweep *s, float *of, int64_t b, int64_t l) {
    return of + (b * s->window.most + l % s->window.most) * s->width;
}

static bool holds(const dpcri_device_past *past, int64_t q, int64_t l) {
    return q < past->count && l >= past->lo[q] && l < past->hi[q];
}

static void solve_three(int64_t n, double m[3][4], double *gamma) {
    for (int64_t i = 0; i < n; i++) m[i][i] += 1e-3;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < n; k++) {
            const double factor = m[k][i] / m[i][i];
            for (int64_t j = 0; j < 4 && k != i; j++) m[k][j] -= factor * m[i][j];
        }
    for (int64_t i = 0; i < n; i++) gamma[i] = m[i][3] / m[i][i];
}

static double *changes(const dpcri_device_sweep *s, int64_t item, int64_t j) {
    return s->change + (j * s->window.count + item) * s->width;
}

// R of the window; the first step that is not within its tolerance.
static int64_t substitute(const dpcri_device_sweep *s, int64_t item, int64_t b, int64_t lo, int64_t hi, double *worst) {
    const int64_t w = s->width, count = s->window.count;
    int64_t good = lo;
    for (int64_t l = lo; l < hi; l++) {
        const float *const f = s->f + ((l - lo) * count + item) * w, *const z = state_at(s, l, b);
        bool within;
        *worst = fmax(*worst, residual_of(s, f, z, s->scale ? s->scale[l] : 1, &within));
        if (within && good == l) good++;
        for (int64_t k = 0; k < w; k++) {
            const double r = (double)f[k] - (double)z[k];
            double sum = isfinite(r) ? r : 0, product = 1;
            if (l > lo) sum += slope_of(s, l) * changes(s, item, l - lo - 1)[k];
            for (int64_t i = l; i > l - s->order && l - lo >= s->order; i--) product *= slope_of(s, i);
            if (l - lo >= s->order) {
                const double out = (double)f[k - s->order * count * w] - (double)state_at(s, l - s->order, b)[k];
                if (isfinite(out)) sum -= product * out;
            }
            changes(s, item, l - lo)[k] = sum;
        }
    }
    return good;
}

static void remember(const dpcri_device_sweep *s, int64_t item, int64_t b, int64_t lo, int64_t hi, int64_t sweeps) {
    dpcri_device_past *const past = &s->past[b];
    const int64_t pasts = s->mixed - 1, slot = pasts ? (sweeps + pasts - 2) % pasts : 0;
    const int64_t from = lo > past->old_lo ? lo : past->old_lo, to = hi < past->old_hi ? hi : past->old_hi;
    if (!pasts) return;
    for (int64_t l = lo; l < hi; l++)
        for (int64_t k = 0; k < s->width; k++) {
            const double r = changes(s, item, l - lo)[k], z = state_at(s, l, b)[k];
            float *const old_r = old_of(s, s->old_r, b, l) + k, *const old_z = old_of(s, s->old_z, b, l) + k;
            if (l >= from && l < to) {
                past_of(s, s->past_r, b, slot, l)[k] = (float)(r - (double)*old_r);
                past_of(s, s->past_z, b, slot, l)[k] = (float)(z - (double)*old_z);
            }
            *old_r = (float)r, *old_z = (float)z;
        }
    past->lo[slot] = from, past->hi[slot] = to;
    past->count += sweeps > 1 && past->count < pasts;
    past->old_lo = lo, past->old_hi = hi;
}

static void mix(const dpcri_device_sweep *s, int64_t item, int64_t b, int64_t lo, int64_t hi, int64_t good, int64_t n) {
    double sums[3][4] = {{0}};
    if (good == lo) memcpy(state_at(s, lo, b), s->f + item * s->width, (size_t)s->width * sizeof(float));
    for (int64_t l = good == lo ? lo + 1 : lo; l < hi; l++) {
        const double *const R = changes(s, item, l - lo);
        double m[3][4], gamma[3] = {0};
        for (int64_t q = 0; q < n; q++)
            for (int64_t k = 0; k < s->width && holds(&s->past[b], q, l); k++) {
                const double x = past_of(s, s->past_r, b, q, l)[k];
                for (int64_t p = 0; p < n; p++)
                    if (holds(&s->past[b], p, l)) sums[q][p] += x * (double)past_of(s, s->past_r, b, p, l)[k];
                sums[q][3] += x * R[k];
            }
        memcpy(m, sums, sizeof m);
        solve_three(n, m, gamma);
        for (int64_t k = 0; k < s->width && l >= good; k++) {
            double next = (double)state_at(s, l, b)[k] + R[k];
            for (int64_t q = 0; q < n; q++)
                if (holds(&s->past[b], q, l))
                    next -= gamma[q] *
                            ((double)past_of(s, s->past_z, b, q, l)[k] + (double)past_of(s, s->past_r, b, q, l)[k]);
            state_at(s, l, b)[k] = isfinite(next) ? (float)next : state_at(s, lo, b)[k];
        }
    }
}

static void mixed_sweep(const dpcri_device_sweep *s, int64_t item) {
    const int64_t b = s->window.who[item];
    dpcri_device_progress *const p = (dpcri_device_progress *)(uintptr_t)&s->window.places[b];
    const int64_t lo = p->front, end = lo + s->window.most, hi = end < s->window.length ? end : s->window.length;
    p->residual = 0;
    p->work += hi - lo;
    p->sweeps++;
    if (!all_finite(s->f + item * s->width, s->width)) {
        p->ended = DPCRI_DEVICE_NOT_FINITE;
        end_sweep(s, b, hi, p);
        return;
    }
    const int64_t good = substitute(s, item, b, lo, hi, &p->residual);
    if (good < s->window.length) {
        remember(s, item, b, lo, hi, p->sweeps);
        mix(s, item, b, lo, hi, good, p->sweeps > 1 ? s->past[b].count : 0);
    } else {
        p->sweeps--;
    }
    if (p->exact == lo && good == lo) p->exact++;
    p->front = good > lo ? good : lo + 1;
    if (s->atol == 0 && s->rtol == 0) p->exact = p->front;
    end_sweep(s, b, hi, p);
}

static dpcr_status sweep(int id, const dpcri_device_sweep *s, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    for (int64_t item = 0; item < s->window.count; item++)
        (s->mixed && !s->in_order ? mixed_sweep : sweep_sequence)(s, item);
    return DPCR_OK;
}

const dpcri_device_kernels fake_kernels = {.size = sizeof fake_kernels,
                                           .linear_workspace = workspace_of,
                                           .linear = run_linear,
                                           .cell_workspace = cell_workspace,
                                           .cell = run_cell,
                                           .recurrent_workspace = layer_workspace,
                                           .recurrent = run_layer,
                                           .update = update,
                                           .clip = clip,
                                           .tie = tie,
                                           .affine = affine,
                                           .loss = loss,
                                           .shuffle = shuffle,
                                           .gather = gather,
                                           .sequences = sequences,
                                           .embedding = embedding,
                                           .readout = readout,
                                           .drop = drop,
                                           .dense = dense,
                                           .denoise = denoise,
                                           .move = move,
                                           .sweep = sweep};
