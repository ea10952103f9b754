// SPDX-License-Identifier: MIT
// Recurrent networks by their definition in double, with the derivative along one direction of everything that goes in,
// step by step as recurrent.h writes them; for test_random_recurrent.c.
#ifndef TESTS_RANDOM_RECURRENT_H
#define TESTS_RANDOM_RECURRENT_H

#include "draws.h"

// A number and its derivative.
typedef struct dual {
    double x, d;
} dual;

static dual plus(dual a, dual b) { return (dual){a.x + b.x, a.d + b.d}; }
static dual times(dual a, dual b) { return (dual){a.x * b.x, a.d * b.x + a.x * b.d}; }
static dual less(dual a) { return (dual){1 - a.x, -a.d}; }

enum { MOST_ARRAYS = 64, MOST_UNITS = 96 };

typedef struct definition {
    dpcr_recurrent_options o;
    int64_t T, B, H, P, D, N;
    const int64_t *lengths;
    const unsigned char *resets;
    dpcr_array parameters[MOST_ARRAYS];
    char names[MOST_ARRAYS][64];
    int64_t count;
    dual *x, *h0, *c0;  // [T][B][I], [N][B][P], [N][B][H]
    dual *y, *ht, *ct;  // out
    bool certain;       // no function was asked near a bend
    double band;        // how near
} definition;

// A number in -1..1 that follows from its arguments.
static double along(int64_t array, int64_t i) {
    uint64_t x = (uint64_t)(array + 1) * 0x9e3779b97f4a7c15u ^ (uint64_t)(i + 1) * 0xbf58476d1ce4e5b9u;
    x ^= x >> 31, x *= 0xd6e8feb86659fd93u, x ^= x >> 32, x *= 0xd6e8feb86659fd93u, x ^= x >> 32;
    return (double)(x >> 11) / 4503599627370496.0 - 1;
}

static int64_t numbers_of(const dpcr_array *a) {
    int64_t n = 1;
    for (int32_t k = 0; k < a->ndim; k++) n *= a->shape[k];
    return n;
}

// Parameter "what_l{layer}{_reverse}", or -1.
static int64_t parameter_of(const definition *n, const char *what, int64_t layer, int64_t way) {
    char name[64];
    snprintf(name, sizeof name, "%s_l%d%s", what, (int)layer, way ? "_reverse" : "");
    for (int64_t i = 0; i < n->count; i++)
        if (strcmp(n->names[i], name) == 0) return i;
    return -1;
}

static dual parameter(const definition *n, int64_t array, int64_t i) {
    if (array < 0) return (dual){0, 0};
    return (dual){number_at(n->o.dtype, n->parameters[array].data, i), along(array, i)};
}

static dual clipped(definition *n, dual u) {
    const double c = n->o.clip;
    if (c <= 0) return u;
    if (fabs(fabs(u.x) - c) < n->band) n->certain = false;
    return u.x > c ? (dual){c, 0} : u.x < -c ? (dual){-c, 0} : u;
}

static dual sigmoid(definition *n, dual u) {
    u = clipped(n, u);
    const double s = 1 / (1 + exp(-u.x));
    return (dual){s, s * (1 - s) * u.d};
}

static dual hyperbolic(definition *n, dual u) {
    u = clipped(n, u);
    const double t = tanh(u.x);
    return (dual){t, (1 - t * t) * u.d};
}

static dual rectified(definition *n, dual u) {
    u = clipped(n, u);
    if (fabs(u.x) < n->band) n->certain = false;
    return u.x > 0 ? u : (dual){0, 0};
}

// Where a layer and direction's parameters lie.
typedef struct places {
    int64_t ih, hh, bih, bhh, hr, ch, peephole;
} places;

static places places_of(const definition *n, int64_t layer, int64_t way) {
    return (places){parameter_of(n, "weight_ih", layer, way), parameter_of(n, "weight_hh", layer, way),
                    parameter_of(n, "bias_ih", layer, way),   parameter_of(n, "bias_hh", layer, way),
                    parameter_of(n, "weight_hr", layer, way), parameter_of(n, "weight_ch", layer, way),
                    parameter_of(n, "peephole", layer, way)};
}

// Row `row` of W x + b.
static dual row_of(const definition *n, int64_t w, int64_t b, int64_t row, const dual *x, int64_t width) {
    dual sum = parameter(n, b, row);
    for (int64_t j = 0; j < width; j++) sum = plus(sum, times(parameter(n, w, row * width + j), x[j]));
    return sum;
}

static void gru_step(definition *n, const places *p, const dual *in, int64_t I, const dual *h, dual *next) {
    const int64_t H = n->H;
    dual r[MOST_UNITS], z[MOST_UNITS], rh[MOST_UNITS];
    for (int64_t i = 0; i < H; i++) {
        r[i] = sigmoid(n, plus(row_of(n, p->ih, p->bih, i, in, I), row_of(n, p->hh, p->bhh, i, h, H)));
        z[i] = sigmoid(n, plus(row_of(n, p->ih, p->bih, H + i, in, I), row_of(n, p->hh, p->bhh, H + i, h, H)));
        rh[i] = times(r[i], h[i]);
    }
    for (int64_t i = 0; i < H; i++) {
        const dual x = row_of(n, p->ih, p->bih, 2 * H + i, in, I);
        const dual u = n->o.reset_before ? row_of(n, p->hh, p->bhh, 2 * H + i, rh, H)
                                         : times(r[i], row_of(n, p->hh, p->bhh, 2 * H + i, h, H));
        next[i] = plus(times(less(z[i]), hyperbolic(n, plus(x, u))), times(z[i], h[i]));
    }
}

static void lstm_step(definition *n, const places *p, const dual *in, int64_t I, const dual *h, const dual *c,
                      dual *next, dual *cell) {
    const int64_t H = n->H, P = n->P;
    dual out[MOST_UNITS];
    for (int64_t i = 0; i < H; i++) {
        dual u[4];
        for (int g = 0; g < 4; g++)
            u[g] = plus(row_of(n, p->ih, p->bih, g * H + i, in, I), row_of(n, p->hh, p->bhh, g * H + i, h, P));
        if (p->ch >= 0) {
            u[0] = plus(u[0], times(parameter(n, p->ch, i), c[i]));
            u[1] = plus(u[1], times(parameter(n, p->ch, H + i), c[i]));
        }
        const dual in_gate = sigmoid(n, u[0]), forget = n->o.input_forget ? less(in_gate) : sigmoid(n, u[1]);
        cell[i] = plus(times(forget, c[i]), times(in_gate, hyperbolic(n, u[2])));
        if (p->ch >= 0) u[3] = plus(u[3], times(parameter(n, p->ch, 2 * H + i), cell[i]));
        out[i] = times(sigmoid(n, u[3]), hyperbolic(n, cell[i]));
    }
    for (int64_t i = 0; i < P; i++) next[i] = n->o.projection ? row_of(n, p->hr, -1, i, out, H) : out[i];
}

static void units_step(definition *n, const places *p, const dual *in, int64_t I, const dual *h, const dual *c,
                       dual *next, dual *cell) {
    const int64_t H = n->H;
    for (int64_t i = 0; i < H; i++) {
        dual u[3];
        for (int g = 0; g < (n->o.kind == DPCR_MINGRU ? 2 : 3); g++)
            u[g] = plus(row_of(n, p->ih, p->bih, g * H + i, in, I), times(parameter(n, p->hh, g * H + i), h[i]));
        if (n->o.kind == DPCR_PARALSTM) {
            const dual f = sigmoid(n, plus(u[0], times(parameter(n, p->peephole, i), c[i])));
            cell[i] = plus(times(f, c[i]), times(less(f), hyperbolic(n, u[1])));
            const dual o = sigmoid(n, plus(u[2], times(parameter(n, p->peephole, H + i), cell[i])));
            next[i] = times(o, hyperbolic(n, cell[i]));
            continue;
        }
        const dual z = sigmoid(n, u[0]);
        dual q = u[1];
        if (n->o.kind == DPCR_PARAGRU) {
            const dual rh = times(sigmoid(n, u[1]), h[i]);
            q = hyperbolic(n,
                           plus(row_of(n, p->ih, p->bih, 2 * H + i, in, I), times(parameter(n, p->hh, 2 * H + i), rh)));
        }
        next[i] = plus(times(less(z), h[i]), times(z, q));
    }
}

static void cell_step(definition *n, const places *p, const dual *in, int64_t I, dual *h, dual *c) {
    dual next[MOST_UNITS], cell[MOST_UNITS] = {{0, 0}};
    const int64_t H = n->H;
    switch (n->o.kind) {
        case DPCR_RNN_TANH:
        case DPCR_RNN_RELU:
            for (int64_t i = 0; i < H; i++) {
                const dual u = plus(row_of(n, p->ih, p->bih, i, in, I), row_of(n, p->hh, p->bhh, i, h, H));
                next[i] = n->o.kind == DPCR_RNN_TANH ? hyperbolic(n, u) : rectified(n, u);
            }
            break;
        case DPCR_GRU: gru_step(n, p, in, I, h, next); break;
        case DPCR_LSTM: lstm_step(n, p, in, I, h, c, next, cell); break;
        default: units_step(n, p, in, I, h, c, next, cell);
    }
    memcpy(h, next, (size_t)n->P * sizeof *h);
    memcpy(c, cell, (size_t)H * sizeof *c);
}

// One layer and direction of sequence b.
static void run_direction(definition *n, int64_t layer, int64_t way, int64_t b, const dual *in, int64_t I, dual *out) {
    const int64_t chain = layer * n->D + way, length = n->lengths ? n->lengths[b] : n->T, P = n->P, H = n->H;
    const bool back = way == 1 || n->o.reverse;
    const places p = places_of(n, layer, way);
    dual h[MOST_UNITS] = {{0, 0}}, c[MOST_UNITS] = {{0, 0}};
    for (int64_t i = 0; n->h0 && i < P; i++) h[i] = n->h0[(chain * n->B + b) * P + i];
    for (int64_t i = 0; n->c0 && i < H; i++) c[i] = n->c0[(chain * n->B + b) * H + i];
    for (int64_t k = 0; k < length; k++) {
        const int64_t t = back ? length - 1 - k : k;
        // Going with time a mark at t, against it one at t + 1: the state before it is zero.
        const int64_t mark = back ? t + 1 : t;
        if (n->resets && mark < length && n->resets[mark * n->B + b]) memset(h, 0, sizeof h), memset(c, 0, sizeof c);
        cell_step(n, &p, in + (t * n->B + b) * I, I, h, c);
        memcpy(out + ((t * n->B + b) * n->D + way) * P, h, (size_t)P * sizeof *h);
    }
    memcpy(n->ht + (chain * n->B + b) * P, h, (size_t)P * sizeof *h);
    memcpy(n->ct + (chain * n->B + b) * H, c, (size_t)H * sizeof *c);
}

static void run_definition(definition *n) {
    const int64_t wide = n->D * n->P;
    dual *in = n->x, *below = NULL;
    n->certain = true;
    for (int64_t layer = 0; layer < n->o.layers; layer++) {
        dual *out = calloc((size_t)(n->T * n->B * wide) + 1, sizeof *out);
        for (int64_t way = 0; way < n->D; way++)
            for (int64_t b = 0; b < n->B; b++) run_direction(n, layer, way, b, in, layer ? wide : n->o.inputs, out);
        free(below);
        in = below = out;
    }
    n->y = below;
}

#endif
