// SPDX-License-Identifier: MIT
// Chains of the library in the terms of the launchers: steps in the order of the recurrence, so that a transposed chain
// is one with negative strides whose step m reads the transition of the step before it.
#include "kern/cuda/adapter.h"

#include <stdbool.h>

#include "kern/cuda/launch.h"
#include "rt/dev/cuda/runtime.h"

static const void *at(const void *base, int64_t elements, size_t size) {
    return base ? (const char *)base + elements * (int64_t)size : NULL;
}

static dpcri_cuda_chain chain_of(const dpcri_device_linear *c) {
    const size_t size = c->dtype == DPCR_F64 ? 8 : 4;
    const int64_t last = c->length - 1;
    dpcri_cuda_chain chain = {.dtype = c->dtype,
                              .structure = c->structure,
                              .transposed = c->transposed,
                              .length = c->length,
                              .batch = c->rows,
                              .width = c->w,
                              .block = c->block,
                              .a = c->a,
                              .a_step = c->a_step,
                              .a_row = c->a_row,
                              .b = c->b,
                              .b_step = c->b_step,
                              .b_row = c->b_row,
                              .z0 = c->z0,
                              .z0_row = c->z0_row,
                              .z = c->z,
                              .z_step = c->z_step,
                              .z_row = c->z_row};
    if (!c->transposed) return chain;
    chain.a = at(c->a, (last + 1) * c->a_step, size);  // of step m = 0: not read
    chain.a_step = -c->a_step;
    chain.b = at(c->b, last * c->b_step, size);
    chain.b_step = -c->b_step;
    chain.z = (char *)c->z + last * c->z_step * (int64_t)size;
    chain.z_step = -c->z_step;
    return chain;
}

static bool served(const dpcri_device_linear *c) {
    switch (c->structure) {
        case DPCR_ZERO:
        case DPCR_IDENTITY:
        case DPCR_SCALAR:
        case DPCR_DIAGONAL: return true;
        case DPCR_BLOCK: return c->block <= DPCRI_CUDA_DENSE_WIDTH;
        case DPCR_DENSE: return c->w <= DPCRI_CUDA_DENSE_WIDTH;
        default: return false;
    }
}

static dpcr_status refuse(int id, const dpcri_device_linear *c, dpcr_error *error) {
    return dpcri_tell(error, DPCR_ERROR_UNSUPPORTED,
                      "cuda:%d: no kernel for %s of width %lld; up to %d work, and diagonals of any width", id,
                      c->structure == DPCR_BLOCK ? "blocks" : "dense transitions",
                      (long long)(c->structure == DPCR_BLOCK ? c->block : c->w), DPCRI_CUDA_DENSE_WIDTH);
}

static dpcr_status linear_workspace(int id, const dpcri_device_linear *chain, size_t *bytes, dpcr_error *error) {
    *bytes = 0;
    if (!served(chain)) return refuse(id, chain, error);
    *bytes = dpcri_cuda_chain_workspace(chain_of(chain));
    return DPCR_OK;
}

static dpcr_status linear(int id, const dpcri_device_linear *chain, void *workspace, size_t bytes, void *stream,
                          dpcr_error *error) {
    int before = 0;
    int code = dpcri_cuda_enter(id, &before);
    if (code == 0) {
        code = dpcri_cuda_chain_run(chain_of(chain), workspace, bytes, stream);
        dpcri_cuda_leave(id, before);
    }
    switch (code) {
        case DPCRI_CUDA_OK: return DPCR_OK;
        case DPCRI_CUDA_UNSUPPORTED: return refuse(id, chain, error);
        case DPCRI_CUDA_WORKSPACE:
            return dpcri_tell(error, DPCR_ERROR_MEMORY, "cuda:%d: a workspace of %zu bytes is too small", id, bytes);
        case DPCRI_CUDA_ARGUMENT:
            return dpcri_tell(error, DPCR_ERROR_ARGUMENT, "cuda:%d: a linear chain with wrong arguments", id);
        default: return dpcri_cuda_fail(id, code, "a linear chain's launch", error);
    }
}

// ---- narrow cells ----

static dpcri_cuda_adjoint cell_of(const dpcri_device_cell *c) {
    return (dpcri_cuda_adjoint){.cell = {.dtype = c->dtype,
                                         .activation = c->activation,
                                         .diagonal = c->diagonal,
                                         .residual = c->residual,
                                         .scale = c->scale,
                                         .length = c->length,
                                         .batch = c->rows,
                                         .width = c->w,
                                         .weight = c->weight,
                                         .weight_step = c->weight_step,
                                         .x = c->x,
                                         .x_step = c->x_step,
                                         .x_row = c->x_row,
                                         .z0 = c->z0,
                                         .z0_row = c->z0_row,
                                         .z = c->z,
                                         .z_step = c->z_step,
                                         .z_row = c->z_row,
                                         .method = c->way == DPCRI_DEVICE_OVERLAP  ? DPCRI_CUDA_OVERLAP
                                                   : c->way == DPCRI_DEVICE_NEWTON ? DPCRI_CUDA_NEWTON
                                                                                   : DPCRI_CUDA_LOOP,
                                         .chunk = c->chunk,
                                         .warm_up = c->warm_up,
                                         .atol = c->atol,
                                         .rtol = c->rtol,
                                         .max_sweeps = c->max_sweeps,
                                         .stop = c->stop,
                                         .outcome = c->outcome},
                                .direct = c->direct,
                                .direct_step = c->direct_step,
                                .direct_row = c->direct_row,
                                .adjoint = c->adjoint,
                                .adjoint_step = c->adjoint_step,
                                .adjoint_row = c->adjoint_row,
                                .z0_adjoint = c->z0_adjoint,
                                .z0_adjoint_row = c->z0_adjoint_row};
}

static dpcr_status refuse_cell(int id, const dpcri_device_cell *c, dpcr_error *error) {
    return dpcri_tell(
        error, DPCR_ERROR_UNSUPPORTED,
        "cuda:%d: no kernel for a %s cell of width %lld, length %lld and that function; dense of width 1, "
        "2 or 4 and diagonals of any, up to 2^32 - 1 steps, of identity, ReLU, tanh or sigmoid work",
        id, c->diagonal ? "diagonal" : "dense", (long long)c->w, (long long)c->length);
}

static bool cell_served(const dpcri_device_cell *c) {
    const bool width = c->diagonal || c->w == 1 || c->w == 2 || c->w == 4;
    return width && c->activation >= DPCRI_CUDA_IDENTITY && c->activation <= DPCRI_CUDA_SIGMOID &&
           c->length <= UINT32_MAX && (c->dtype == DPCR_F32 || c->dtype == DPCR_F64);
}

// Asked of the device that it is for: how many blocks go together is its own.
static dpcr_status cell_workspace(int id, const dpcri_device_cell *cell, size_t *bytes, dpcr_error *error) {
    int before = 0;
    *bytes = 0;
    if (!cell_served(cell)) return refuse_cell(id, cell, error);
    const int code = dpcri_cuda_enter(id, &before);
    if (code != 0) return dpcri_cuda_fail(id, code, "cannot be used", error);
    const dpcri_cuda_adjoint c = cell_of(cell);
    *bytes = cell->backward ? dpcri_cuda_adjoint_workspace(c) : dpcri_cuda_cell_workspace(c.cell);
    dpcri_cuda_leave(id, before);
    return DPCR_OK;
}

static dpcr_status told(int id, int code, size_t bytes, const char *what, dpcr_error *error) {
    switch (code) {
        case DPCRI_CUDA_OK: return DPCR_OK;
        case DPCRI_CUDA_UNSUPPORTED:
            return dpcri_tell(error, DPCR_ERROR_UNSUPPORTED,
                              "cuda:%d: the device takes no cooperative launch as large as %s wants", id, what);
        case DPCRI_CUDA_WORKSPACE:
            return dpcri_tell(error, DPCR_ERROR_MEMORY, "cuda:%d: a workspace of %zu bytes is too small", id, bytes);
        case DPCRI_CUDA_ARGUMENT:
            return dpcri_tell(error, DPCR_ERROR_ARGUMENT, "cuda:%d: %s with wrong arguments", id, what);
        default: return dpcri_cuda_fail(id, code, what, error);
    }
}

static dpcr_status cell(int id, const dpcri_device_cell *given, void *workspace, size_t bytes, void *stream,
                        dpcr_error *error) {
    int before = 0;
    if (!cell_served(given)) return refuse_cell(id, given, error);
    int code = dpcri_cuda_enter(id, &before);
    if (code == 0) {
        const dpcri_cuda_adjoint c = cell_of(given);
        code = given->backward ? dpcri_cuda_adjoint_run(c, workspace, bytes, stream)
                               : dpcri_cuda_cell_run(c.cell, workspace, bytes, stream);
        dpcri_cuda_leave(id, before);
    }
    return told(id, code, bytes, "a cell's launch", error);
}

// ---- recurrent networks ----

static dpcr_status check_recurrent(int id, const dpcri_device_recurrent *layer, dpcr_error *error) {
    const bool narrow = layer->gates <= DPCRI_DEVICE_RNN_RELU && layer->hidden <= 4 && layer->hidden != 3;
    if ((layer->way != DPCRI_DEVICE_NEWTON || narrow) && layer->length <= UINT32_MAX) return DPCR_OK;
    return dpcri_tell(error, DPCR_ERROR_UNSUPPORTED,
                      "cuda:%d: newton is of rnn and rnn-relu with 1, 2 or 4 units there; the loop and overlap are of "
                      "all, up to 2^32 - 1 steps",
                      id);
}

static dpcr_status recurrent_workspace(int id, const dpcri_device_recurrent *layer, size_t *bytes, dpcr_error *error) {
    int before = 0;
    *bytes = 0;
    const dpcr_status status = check_recurrent(id, layer, error);
    if (status != DPCR_OK) return status;
    const int code = dpcri_cuda_enter(id, &before);
    if (code != 0) return dpcri_cuda_fail(id, code, "cannot be used", error);
    *bytes = dpcri_cuda_recurrent_workspace(*layer);
    dpcri_cuda_leave(id, before);
    return DPCR_OK;
}

static dpcr_status recurrent(int id, const dpcri_device_recurrent *layer, void *workspace, size_t bytes, void *stream,
                             dpcr_error *error) {
    int before = 0;
    const dpcr_status status = check_recurrent(id, layer, error);
    if (status != DPCR_OK) return status;
    int code = dpcri_cuda_enter(id, &before);
    if (code == 0) {
        code = dpcri_cuda_recurrent_run(*layer, workspace, bytes, stream);
        dpcri_cuda_leave(id, before);
    }
    return told(id, code, bytes, "a recurrent layer's launch", error);
}

const dpcri_device_kernels dpcri_cuda_kernels = {.size = sizeof dpcri_cuda_kernels,
                                                 .linear_workspace = linear_workspace,
                                                 .linear = linear,
                                                 .cell_workspace = cell_workspace,
                                                 .cell = cell,
                                                 .recurrent_workspace = recurrent_workspace,
                                                 .recurrent = recurrent};
