// SPDX-License-Identifier: MIT
// A step of a chain as a program of layers with an optional residual:  z' = p(z)  or  z' = z + scale p(z),  p of one to
// four layers: linear, [norm], activation, [linear]. Two forms take fused kernels instead, with the same bits: linear
// and activation alone, with and without the residual.
#ifndef DPCRI_NN_PROGRAM_H
#define DPCRI_NN_PROGRAM_H

#include "kern/narrow.h"
#include "nn/layer.h"

enum { DPCRI_PROGRAM_LAYERS = 4 };

typedef struct dpcri_program {
    const dpcri_nn_kernels *kernels;
    dpcri_nn_layer layers[DPCRI_PROGRAM_LAYERS];
    int count;
    bool residual, fused;
    double scale;              // 1 without the residual
    int64_t width, widest;     // of the state; of the widest layer
    int64_t parameters, tape;  // values a step; values a step and row
} dpcri_program;

typedef struct dpcri_program_options {
    int64_t width, hidden;  // hidden: width inside, read with two_layer only
    int activation;
    bool residual, two_layer, norm;
    double scale;
} dpcri_program_options;

// False when a size does not fit.
bool dpcri_program_make(dpcri_program *program, const dpcri_nn_kernels *kernels, const dpcri_program_options *options);

// Values of scratch that the calls below need for each row, and the rows that pay as one block.
int64_t dpcri_program_scratch(const dpcri_program *program);
enum { DPCRI_PROGRAM_ROWS = 64 };

// The chain whose steps begin at `parameters`, for the narrow kernels; false where they do not serve. Forward, jvp and
// slopes take them too, so that bits agree.
bool dpcri_program_narrow(const dpcri_program *program, const void *parameters, dpcri_narrow *narrow);

// What the next call of the same kind reads and (out, and tape of forward) writes, fetched meanwhile; a hint, all may
// be NULL.
typedef struct dpcri_program_next {
    const void *parameters;  // or gradients
    dpcri_rows in, out, tape;
} dpcri_program_next;
// Each works on `rows` rows at once, with dpcri_program_scratch() values of scratch for each of them.
// in and out may be the same rows; tape.data NULL: nothing is kept.
void dpcri_program_forward(const dpcri_program *program, const void *parameters, int64_t rows, dpcri_rows in,
                           dpcri_rows out, dpcri_rows tape, void *scratch, const dpcri_program_next *next);
// y = J x at `in`.
void dpcri_program_jvp(const dpcri_program *program, const void *parameters, int64_t rows, dpcri_rows in, dpcri_rows x,
                       dpcri_rows y, void *scratch);
// g += direct (NULL: 0); kept = g (NULL: not kept); g = J^T g. direct and kept may be the same rows. tape.data NULL:
// from `in`.
void dpcri_program_adjoint(const dpcri_program *program, const void *parameters, int64_t rows, dpcri_rows in,
                           dpcri_rows tape, dpcri_rows direct, dpcri_rows kept, dpcri_rows g, void *scratch,
                           const dpcri_program_next *next);
// Where it says so, adjoint with a tape and kept.data NULL leaves in the tape what gradient then takes with g.data
// NULL.
bool dpcri_program_turns_tape(const dpcri_program *program);
// gradients += (dp/dtheta)^T g, rows in order.
void dpcri_program_gradient(const dpcri_program *program, const void *parameters, void *gradients, int64_t rows,
                            dpcri_rows in, dpcri_rows tape, dpcri_rows g, void *scratch,
                            const dpcri_program_next *next);
// f (may be NULL) and a [rows][width * width], each row-major: a[i][j] = df_i/dz_j.
void dpcri_program_linearise(const dpcri_program *program, const void *parameters, int64_t rows, dpcri_rows in,
                             dpcri_rows f, dpcri_rows a, void *scratch);

#endif
