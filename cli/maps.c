// SPDX-License-Identifier: MIT
// Built-in chaotic maps in float64: chains that no parallel method shortens much, so a solve has to end right by its
// fallback.
//   lorenz    forward Euler of x' = 10 (y - x), y' = x (28 - z) - y, z' = x y - 8/3 z. Step and start: XBraid's
//             example ex-07, half a Lyapunov time over 256 steps.
//   logistic  z <- 3.9 z (1 - z)
#include <string.h>

#include "problem.h"

static const double lorenz_step = 1.2792139405522477 / 256;  // ln(10)/0.9 * 0.5 / 256

const char cli_map_names[] = ", lorenz, logistic";
const char *const cli_map_options[] = {"layers", "batch", "dtype", NULL};

typedef struct map {
    const char *name;
    int64_t width;
    double start[3];
    void (*advance)(const double *in, double *out);  // out may be in
    void (*jacobian)(const double *in, double *j);
} map;

static void lorenz_advance(const double *in, double *out) {
    const double x = in[0], y = in[1], z = in[2], h = lorenz_step;
    out[0] = x + h * (10 * (y - x));
    out[1] = y + h * (x * (28 - z) - y);
    out[2] = z + h * (x * y - 8.0 / 3 * z);
}

static void lorenz_jacobian(const double *in, double *j) {
    const double x = in[0], y = in[1], z = in[2], h = lorenz_step;
    const double rows[9] = {1 - 10 * h, 10 * h, 0, h * (28 - z), 1 - h, -h * x, h * y, h * x, 1 - h * 8.0 / 3};
    memcpy(j, rows, sizeof rows);
}

static void logistic_advance(const double *in, double *out) { out[0] = 3.9 * in[0] * (1 - in[0]); }
static void logistic_jacobian(const double *in, double *j) { j[0] = 3.9 * (1 - 2 * in[0]); }

static const map maps[] = {
    {"lorenz", 3, {9.614521163788712, 17.519127090401067, 13.94230712158098}, lorenz_advance, lorenz_jacobian},
    {"logistic", 1, {0.4}, logistic_advance, logistic_jacobian}};

static const map *find(const char *name) {
    for (int i = 0; i < 2; i++)
        if (!strcmp(name, maps[i].name)) return &maps[i];
    return NULL;
}

static double *row(const dpcr_array *array, int64_t i, int64_t b) {
    return (double *)array->data + i * array->strides[0] + b * array->strides[1];
}

static bool idle(const dpcr_span *span, int64_t b) { return span->active && !span->active[b]; }

static int advance(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                   const dpcr_array *last, const dpcr_array *tape) {
    const map *m = user;
    const size_t bytes = sizeof(double) * (size_t)m->width;
    (void)tape;
    for (int64_t c = 0; c < span->lanes; c++)
        for (int64_t b = 0; b < span->rows; b++) {
            double z[3];
            if (idle(span, b)) continue;
            memcpy(z, row(in, c, b), bytes);
            for (int64_t k = 0; k < span->steps; k++) {
                m->advance(z, z);
                if (states)
                    memcpy((double *)states->data + c * states->strides[0] + k * states->strides[1] +
                               b * states->strides[2],
                           z, bytes);
            }
            if (last) memcpy(row(last, c, b), z, bytes);
        }
    return 0;
}

static int linearise(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *f,
                     const dpcr_array *a) {
    const map *m = user;
    for (int64_t c = 0; c < span->lanes; c++)
        for (int64_t b = 0; b < span->rows; b++) {
            if (idle(span, b)) continue;
            if (f) m->advance(row(in, c, b), row(f, c, b));
            if (a) m->jacobian(row(in, c, b), row(a, c, b));
        }
    return 0;
}

bool cli_map_known(const char *name) { return find(name) != NULL; }
int64_t cli_map_width(const char *name) { return find(name)->width; }

dpcr_steps cli_map_steps(const char *name, int64_t length, int64_t batch) {
    const map *m = find(name);
    return (dpcr_steps){.size = sizeof(dpcr_steps),
                        .user = (void *)m,
                        .length = length,
                        .batch = batch,
                        .width = m->width,
                        .dtype = DPCR_F64,
                        .concurrent = 1,
                        .jacobian = dpcr_transition_square(DPCR_DENSE, m->width, 0),
                        .flops = m->width == 3 ? 14 : 3,
                        .jacobian_flops = m->width == 3 ? 12 : 3,
                        .advance = advance,
                        .linearise = linearise};
}

// Sequence 0 starts at a point of the literature, the others near it.
void cli_map_start(const char *name, const dpcr_array *z0, uint64_t seed) {
    const map *m = find(name);
    const int64_t w = z0->shape[1];
    if (!m) return;
    for (int64_t b = 0; b < z0->shape[0]; b++)
        for (int64_t i = 0; i < w; i++) {
            const double noise = b ? 0.01 * cli_normal(seed, CLI_STREAM_STATES, (uint64_t)(b * w + i)) : 0;
            cli_array_set(z0, b * w + i, m->start[i] + noise);
        }
}
