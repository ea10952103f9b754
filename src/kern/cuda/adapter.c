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

const dpcri_device_kernels dpcri_cuda_kernels = {
    .size = sizeof dpcri_cuda_kernels, .linear_workspace = linear_workspace, .linear = linear};
