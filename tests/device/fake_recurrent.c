// SPDX-License-Identifier: MIT
// The stand-in's recurrent layers: the loop and its adjoint, in double, in the order of the definition, whatever the
// way.
#include <string.h>

#include "fake_kernels.h"

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

// What a function gets of u, and whether it is cut off there.
static double cut(const dpcri_device_recurrent *c, double u) {
    return c->clip > 0 ? fmax(-c->clip, fmin(c->clip, u)) : u;
}
static bool whole(const dpcri_device_recurrent *c, double u) { return !(c->clip > 0) || fabs(u) <= c->clip; }

// What an LSTM's gate gets of c.
static double peep(const dpcri_device_recurrent *c, int which, int64_t u, double cell) {
    return c->peepholes ? get(c->dtype, c->peephole, which * c->hidden + u) * cell : 0;
}

// r h of all units, of a GRU that resets before the product; and what W_n makes of it.
static void reset_states(const dpcri_device_recurrent *c, int64_t row, int64_t l, const double *h, double *product) {
    for (int64_t u = 0; c->reset_before && u < c->hidden; u++) {
        double in[4] = {0}, of[4] = {0};
        gates_sums(c, row, l, h, u, in, of);
        product[u] = act(3, cut(c, in[0] + of[0])) * h[u];
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
            const double a = act(3, cut(c, in[0] + of[0] + peep(c, 0, u, cell[u])));
            const double b = c->coupled ? 1 - a : act(3, cut(c, in[1] + of[1] + peep(c, 1, u, cell[u])));
            if (gates == 1) next[u] = act(c->gates == DPCRI_DEVICE_RNN_RELU ? 1 : 2, cut(c, in[0] + of[0]));
            const double to_n = c->reset_before ? reset_sum(c, u, product) : a * of[2];
            if (gates == 3) next[u] = (1 - b) * tanh(cut(c, in[2] + to_n)) + b * h[u];
            if (gates == 4) cell[u] = b * cell[u] + a * tanh(cut(c, in[2] + of[2]));
            if (gates == 4) next[u] = act(3, cut(c, in[3] + of[3] + peep(c, 2, u, cell[u]))) * tanh(cut(c, cell[u]));
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
    bool open[WIDEST];
    reset_states(c, row, l, h, product);
    for (int64_t u = 0; u < H; u++) {
        double in[4] = {0}, of[4] = {0};
        gates_sums(c, row, l, h, u, in, of);
        const double to_z = in[1] + of[1], to_n = in[2] + reset_sum(c, u, product);
        r[u] = act(3, cut(c, in[0] + of[0]));
        open[u] = whole(c, in[0] + of[0]);
        const double z = act(3, cut(c, to_z)), n = tanh(cut(c, to_n));
        const double dz = whole(c, to_z) ? d[u] * (h[u] - n) * z * (1 - z) : 0;
        const double dn = whole(c, to_n) ? d[u] * (1 - z) * (1 - n * n) : 0;
        add_gate(c, row, l, H + u, dz, dz, h, before);
        add_gate(c, row, l, 2 * H + u, dn, dn, product, inner);
        before[u] += d[u] * z;
    }
    for (int64_t u = 0; u < H; u++) {
        const double dr = open[u] ? inner[u] * h[u] * r[u] * (1 - r[u]) : 0;
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
            const double to_a = in[0] + of[0] + peep(c, 0, u, past), to_b = in[1] + of[1] + peep(c, 1, u, past);
            const double a = act(3, cut(c, to_a)), b = c->coupled ? 1 - a : act(3, cut(c, to_b));
            const double open_a = whole(c, to_a), open_b = whole(c, to_b);
            if (gates == 1) {
                const int f = c->gates == DPCRI_DEVICE_RNN_RELU ? 1 : 2;
                const double e = open_a * d * slope(f, in[0] + of[0]);
                add_gate(c, row, l, u, e, e, h, before);
            }
            if (gates == 3) {
                const double to_n = in[2] + a * of[2], n = tanh(cut(c, to_n));
                const double dn = whole(c, to_n) * d * (1 - b) * (1 - n * n);
                const double dr = open_a * dn * of[2] * a * (1 - a), dz = open_b * d * (h[u] - n) * b * (1 - b);
                add_gate(c, row, l, u, dr, dr, h, before);
                add_gate(c, row, l, H + u, dz, dz, h, before);
                add_gate(c, row, l, 2 * H + u, dn, dn * a, h, before);
                before[u] += d * b;
            }
            if (gates == 4) {
                const double n = tanh(cut(c, in[2] + of[2])), after = b * past + a * n, t = tanh(cut(c, after));
                const double to_o = in[3] + of[3] + peep(c, 2, u, after), o = act(3, cut(c, to_o));
                const double eo = whole(c, to_o) * d * t * o * (1 - o);
                const double dc = gc[u] + whole(c, after) * d * o * (1 - t * t) + peep(c, 2, u, eo);
                const double e[4] = {open_a * dc * (n - (c->coupled ? past : 0)) * a * (1 - a),
                                     c->coupled ? 0 : open_b * dc * past * b * (1 - b),
                                     whole(c, in[2] + of[2]) * dc * a * (1 - n * n), eo};
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

dpcr_status fake_recurrent_workspace(int id, const dpcri_device_recurrent *layer, size_t *bytes, dpcr_error *error) {
    *bytes = 256;
    const char *const refusal = dpcri_device_recurrent_refusal(layer);
    if (refusal) return dpcri_tell(error, DPCR_ERROR_UNSUPPORTED, "cuda:%d: %s", id, refusal);
    if (layer->hidden <= WIDEST && layer->inputs <= WIDEST) return DPCR_OK;
    return dpcri_tell(error, DPCR_ERROR_UNSUPPORTED, "cuda:%d: no such layer on the stand-in", id);
}

dpcr_status fake_recurrent(int id, const dpcri_device_recurrent *layer, void *workspace, size_t bytes, void *stream,
                           dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    memset(workspace, 0x5a, bytes);
    for (int64_t row = 0; row < layer->rows; row++) (layer->backward ? layer_backward : layer_forward)(layer, row);
    return DPCR_OK;
}
