// SPDX-License-Identifier: MIT
// bench cell: a recurrence z_l = act(W z_{l-1} + x_l), or elementwise act(a z + x_l), one W for all steps, scaled to a
// spectral radius, x normal. Backward gives the gradients of the inputs.
#include <math.h>
#include <string.h>

#include "bench.h"

enum { STREAM_W = 0x401, STREAM_X, SQUARINGS = 24, MOST_ROWS = 4096 };

// ---- W ----

// out = a a; returns its largest magnitude. Wide matrices take minutes: a signal ends it.
static double square(const double *a, double *out, int64_t w) {
    double largest = 0;
    for (int64_t i = 0; i < w && !cli_signal(); i++) {
        double *row = out + i * w;
        memset(row, 0, (size_t)w * sizeof *row);
        for (int64_t k = 0; k < w; k++)
            for (int64_t j = 0; j < w; j++) row[j] += a[i * w + k] * a[k * w + j];
        for (int64_t j = 0; j < w; j++) largest = fmax(largest, fabs(row[j]));
    }
    return largest;
}

// lim |A^n|^(1/n) (Gelfand), n doubled until the norm's constant factor no longer shows; complex pairs need no care.
// `a` and `other` [w][w] are used up.
static double spectral_radius(double *a, double *other, int64_t w) {
    double logarithm = 0, power = 1;  // A^power = a e^(power logarithm)
    for (int i = 0; i < SQUARINGS && !cli_signal(); i++) {
        const double largest = square(a, other, w);
        power *= 2;
        if (largest == 0) return 0;
        logarithm += log(largest) / power;
        for (int64_t k = 0; k < w * w; k++) a[k] = other[k] / largest;
    }
    return exp(logarithm);
}

// Normal numbers, scaled to the radius.
static int set_dense(const bench *b, const dpcr_array *weight) {
    const int64_t w = weight->shape[0], count = w * w;
    double *memory = cli_allocate(2 * (size_t)count * sizeof *memory);
    if (!memory) return cli_fail_memory("a cell's W");
    for (int64_t i = 0; i < count; i++) memory[i] = cli_normal(b->common.seed, STREAM_W, (uint64_t)i);
    const double radius = spectral_radius(memory, memory + count, w);
    if (cli_signal()) {
        cli_release(memory);
        return cli_fail_stopped();
    }
    for (int64_t i = 0; i < count; i++)
        cli_array_set(weight, i,
                      radius > 0 ? b->radius / radius * cli_normal(b->common.seed, STREAM_W, (uint64_t)i) : 0);
    cli_release(memory);
    return CLI_DONE;
}

// Evenly between the radius and its opposite, the first at the radius itself.
static void set_diagonal(const bench *b, const dpcr_array *weight) {
    const int64_t w = weight->shape[0];
    for (int64_t i = 0; i < w; i++) cli_array_set(weight, i, b->radius * (1 - 2 * (double)i / (double)w));
}

// ---- the cell ----

typedef struct parts {
    dpcr_array weight, input, input_gradient;
    dpcr_cell *cell;
    cli_problem problem;
} parts;

static int make_arrays(const bench *b, const bench_point *p, parts *all) {
    const int64_t states[] = {p->length, p->batch, p->width}, rows[] = {p->width, p->width};
    const bool dense = b->structure == DPCR_DENSE;
    if (p->width > MOST_ROWS)
        return cli_fail(CLI_USAGE, "a cell's width is %lld, wanted 1 to %d", (long long)p->width, MOST_ROWS);
    if (!cli_array_create(p->dtype, dense ? 2 : 1, rows, &all->weight) ||
        !cli_array_create(p->dtype, 3, states, &all->input) ||
        !cli_array_create(p->dtype, 3, states, &all->input_gradient))
        return CLI_RESOURCES;
    for (int64_t i = 0, n = cli_array_count(&all->input); i < n; i++)
        cli_array_set(&all->input, i, b->input_sd * cli_normal(b->common.seed, STREAM_X, (uint64_t)i));
    if (dense) return set_dense(b, &all->weight);
    set_diagonal(b, &all->weight);
    return CLI_DONE;
}

static int make_problem(dpcr_context *context, const bench *b, const bench_point *p, parts *all) {
    const dpcr_cell_options options = {.size = sizeof options,
                                       .kind = b->structure == DPCR_DENSE ? DPCR_CELL_DENSE : DPCR_CELL_DIAGONAL,
                                       .dtype = p->dtype,
                                       .length = p->length,
                                       .batch = p->batch,
                                       .width = p->width,
                                       .activation = b->cell,
                                       .weight = all->weight,
                                       .input = all->input,
                                       .input_gradient = all->input_gradient};
    dpcr_steps steps = {.size = sizeof steps};
    dpcr_error error = {0};
    if (dpcr_cell_create(context, &options, &all->cell, &error) != DPCR_OK ||
        dpcr_cell_steps(all->cell, &steps, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    return cli_problem_of_steps(&steps, b->common.seed, &all->problem);
}

int bench_cell_point(dpcr_context *context, const bench *b, bench_point *point) {
    parts all = {0};
    int status = make_arrays(b, point, &all);
    if (!status) status = make_problem(context, b, point, &all);
    if (!status) status = bench_steps_point(context, b, &all.problem, &all.input_gradient, point);
    cli_problem_destroy(&all.problem);
    dpcr_cell_destroy(all.cell);
    cli_array_destroy(&all.weight);
    cli_array_destroy(&all.input);
    cli_array_destroy(&all.input_gradient);
    return status;
}
