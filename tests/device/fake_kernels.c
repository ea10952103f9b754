// SPDX-License-Identifier: MIT
// The stand-in's chains: the loop, in plain C, in the order of the definition; and the table of all its kernels.
#include <string.h>

#include "fake_kernels.h"

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
    static type name##_sparse(const dpcri_device_linear *c, const type *a, int64_t i, const type *x) {      \
        type sum = 0;                                                                                       \
        for (int32_t e = c->offsets[i]; e < c->offsets[i + 1]; e++)                                         \
            sum += a[c->places ? c->places[e] : e] * x[c->columns[e]];                                      \
        return sum;                                                                                         \
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
                if (x && c->structure == DPCR_CSR) sum += name##_sparse(c, a, i, x);                        \
                for (int64_t j = 0; x && c->structure != DPCR_CSR && j < c->w; j++) {                       \
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

static dpcr_status workspace_of(int id, const dpcri_device_linear *chain, size_t *bytes, dpcr_error *error) {
    *bytes = 256;
    const char *const refusal = dpcri_device_linear_refusal(chain);
    if (refusal) return dpcri_tell(error, DPCR_ERROR_UNSUPPORTED, "cuda:%d: %s", id, refusal);
    if (chain->w <= WIDEST) return DPCR_OK;
    return dpcri_tell(error, DPCR_ERROR_UNSUPPORTED, "cuda:%d: width %lld, the stand-in serves up to %d", id,
                      (long long)chain->w, WIDEST);
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

// ---- cells, in double: their methods are all the loop here ----

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
            add(c->dtype, c->x2_gradient, l * c->x_step + i, f);
            for (int64_t k = 0; k < inner; k++)
                add(c->dtype, c->weight2_gradient, second_at(c, l, i, k), f * act(c->activation, v[k]));
        }
        for (int64_t i = 0; i < inner; i++) {
            add(c->dtype, c->x_gradient, l * c->x_step + i, e[i]);
            if (c->gamma) add(c->dtype, c->gamma_gradient, l * c->x_step + i, t[i] * normal[i]);
            if (c->gamma) add(c->dtype, c->beta_gradient, l * c->x_step + i, t[i]);
            for (int64_t j = 0; j < w; j++) {
                const double z = l > 0 ? get(c->dtype, c->z, (l - 1) * c->z_step + row * c->z_row + j)
                                       : get(c->dtype, c->z0, row * c->z0_row + j);
                add(c->dtype, c->weight_gradient, l * c->weight_step + (c->in_out ? j * inner + i : i * w + j),
                    e[i] * z);
            }
        }
    }
}

static dpcr_status cell_workspace(int id, const dpcri_device_cell *cell, size_t *bytes, dpcr_error *error) {
    *bytes = cell->way == DPCRI_DEVICE_NEWTON ? 512 : 256;
    const char *const refusal = dpcri_device_cell_refusal(cell);
    if (cell->w <= WIDEST && cell->hidden <= WIDEST && !refusal) return DPCR_OK;
    return dpcri_tell(error, DPCR_ERROR_UNSUPPORTED, "cuda:%d: %s", id,
                      refusal ? refusal : "too wide for the stand-in");
}

// As the backend does on a device of eight blocks; nothing runs otherwise for it.
static dpcr_status cell_share(int id, const dpcri_device_cell *c, int64_t *blocks, int *whole, dpcr_error *error) {
    const int64_t strips = (inner_of(c) > c->w ? inner_of(c) + 31 : c->w + 31) / 32, groups = (c->rows + 7) / 8;
    const bool loop = c->backward || c->way == DPCRI_DEVICE_LOOP;
    (void)id;
    (void)error;
    *blocks = c->diagonal || !loop || groups == 0 ? 0 : strips < 8 / groups ? strips : 8 / groups;
    if (*blocks < 2) *blocks = 0;
    *whole = !c->gamma && c->hidden == 0 && c->w <= 64 && c->w % 4 == 0;
    return DPCR_OK;
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

static dpcr_status recurrent_share(int id, const dpcri_device_recurrent *layer, int64_t *blocks, dpcr_error *error) {
    (void)id;
    (void)error;
    *blocks = layer->gates <= DPCRI_DEVICE_LSTM && layer->rows <= 16 ? (layer->hidden + 7) / 8 : 0;
    return DPCR_OK;
}

const dpcri_device_kernels fake_kernels = {.size = sizeof fake_kernels,
                                           .linear_workspace = workspace_of,
                                           .linear = run_linear,
                                           .cell_workspace = cell_workspace,
                                           .cell = run_cell,
                                           .cell_share = cell_share,
                                           .recurrent_workspace = fake_recurrent_workspace,
                                           .recurrent = fake_recurrent,
                                           .recurrent_share = recurrent_share,
                                           .update = fake_update,
                                           .clip = fake_clip,
                                           .tie = fake_tie,
                                           .affine = fake_affine,
                                           .loss = fake_loss,
                                           .shuffle = fake_shuffle,
                                           .gather = fake_gather,
                                           .sequences = fake_sequences,
                                           .embedding = fake_embedding,
                                           .readout = fake_readout,
                                           .drop = fake_drop,
                                           .dense = fake_dense,
                                           .denoise = fake_denoise,
                                           .move = fake_move,
                                           .sweep = fake_sweep};
