// SPDX-License-Identifier: MIT
// bench cell: a recurrence z_l = act(W z_{l-1} + x_l), one W for all steps, scaled to a spectral radius, x normal. It
// is run as a network whose layers all hold W and whose biases are the inputs.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { STREAM_W = 0x401, STREAM_X, SQUARINGS = 24 };

// out = a a; returns its largest magnitude.
static double square(const double *a, double *out, int64_t w) {
    double largest = 0;
    for (int64_t i = 0; i < w; i++)
        for (int64_t j = 0; j < w; j++) {
            double sum = 0;
            for (int64_t k = 0; k < w; k++) sum += a[i * w + k] * a[k * w + j];
            out[i * w + j] = sum;
            largest = fmax(largest, fabs(sum));
        }
    return largest;
}

// lim |A^n|^(1/n) (Gelfand), n doubled until the norm's constant factor no longer shows; complex pairs need no care.
// `a` and `other` [w][w] are used up.
static double spectral_radius(double *a, double *other, int64_t w) {
    double logarithm = 0, weight = 1;  // of A = e^logarithm a^(1/weight), powers as they grow
    for (int i = 0; i < SQUARINGS; i++) {
        const double largest = square(a, other, w);
        weight *= 2;
        if (largest == 0) return 0;
        logarithm += log(largest) / weight;
        for (int64_t k = 0; k < w * w; k++) a[k] = other[k] / largest;
    }
    return exp(logarithm);
}

// [w][w], of that spectral radius; NULL: told.
static double *make_weight(const bench *b, int64_t w) {
    if (w > 4096) return cli_fail(CLI_RESOURCES, "--width %lld: a cell's W has 4096 rows at most", (long long)w), NULL;
    const size_t count = (size_t)(w * w);
    double *memory = cli_allocate(3 * count * sizeof *memory);
    if (!memory) return cli_fail_memory("a cell's W"), NULL;
    for (size_t i = 0; i < count; i++) memory[i] = memory[count + i] = cli_normal(b->common.seed, STREAM_W, i);
    const double radius = spectral_radius(memory + count, memory + 2 * count, w);
    for (size_t i = 0; i < count && radius > 0; i++) memory[i] *= b->radius / radius;
    return memory;
}

// Parameters come in pairs, a layer's weight and its bias, which is the input of its step.
static int set_layers(const bench *b, dpcr_model *model, const double *weight) {
    const int64_t count = dpcr_model_parameter_count(model);
    for (int64_t k = 0; k < count; k++) {
        dpcr_array p;
        dpcr_error error = {0};
        if (dpcr_model_parameter(model, k, NULL, 0, &p, NULL, &error)) return cli_fail_error(&error, CLI_COMPUTING);
        const int64_t w = p.shape[0], cols = p.ndim == 2 ? p.shape[1] : 1;
        for (int64_t i = 0; i < w; i++)
            for (int64_t j = 0; j < cols; j++) {
                const uint64_t input = (uint64_t)(k / 2 * w + i);
                const double value =
                    p.ndim == 2 ? weight[i * w + j] : b->input_sd * cli_normal(b->common.seed, STREAM_X, input);
                cli_array_set(&p, i * p.strides[0] + (p.ndim == 2 ? j * p.strides[1] : 0), value);
            }
    }
    return CLI_DONE;
}

int bench_cell_point(dpcr_context *context, const bench *b, bench_point *point) {
    cli_network network = b->network;
    network.options.architecture = DPCR_MLP;
    network.options.activation = b->cell;
    int status = CLI_DONE;
    dpcr_model *model = cli_model_create(context, &network, b->common.seed, &status);
    if (!model) return status;
    double *weight = make_weight(b, point->width);
    status = weight ? set_layers(b, model, weight) : cli_failed();
    cli_problem problem;
    if (!status) status = cli_problem_create(context, model, NULL, &network, NULL, b->common.seed, &problem);
    if (!status) {
        status = bench_steps_point(context, b, &problem, point);
        cli_problem_destroy(&problem);
    }
    cli_release(weight);
    dpcr_model_destroy(model);
    return status;
}
