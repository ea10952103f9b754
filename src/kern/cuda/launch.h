// SPDX-License-Identifier: MIT
// The kernels for CUDA devices, as C sees them. Not yet run on a device: proven on the CPU (tests/cuda) and compiled.
//
// Each launcher puts its work on `stream` (a cudaStream_t; NULL is the default stream) of the device that is current
// and returns at once: no synchronisation, no allocation, no copy to or from the host. What is captured into a graph
// may be replayed. Every pointer is to memory that the device reads. Arguments go by value; after the call the caller
// may do with the structure what it likes.
//
//   X_workspace(arguments)   bytes of device memory (256-byte aligned) that X_run needs with these sizes on the current
//                            device; pointers are not looked at. Nothing has to be cleared in it, and nothing in it
//                            outlives the run
//   X_run(arguments, memory, bytes, stream)   DPCRI_CUDA_OK, one of the reasons below, or a cudaError_t (> 0)
//
// Steps stand in the order of the recurrence, m = 0 .. length - 1, as in dpcri_flow (chain/flow.h): a chain that runs
// from its last step has negative strides. Strides are in elements and may be 0 (shared) or negative; the last
// dimension is contiguous. A sequence's bits depend on the length, structure, width and type alone: not on the batch,
// its place there, the device's size or who came first.
//
// Build: src/kern/cuda/*.cu are the sources, nothing else. C++17, -fmad=false and no -use_fast_math (bits: a fused
// multiply-add stands where the code says fma), -Isrc -Iinclude. CUDA 12 and 13, sm_75 and later.
#ifndef DPCRI_CUDA_LAUNCH_H
#define DPCRI_CUDA_LAUNCH_H

#include "deeppcr/device.h"
#include "deeppcr/transition.h"
#include "kern/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    DPCRI_CUDA_OK = 0,
    DPCRI_CUDA_ARGUMENT = -1,     // a size below 0, a pointer that is NULL and must not be
    DPCRI_CUDA_UNSUPPORTED = -2,  // no kernel for this structure, width, type or activation
    DPCRI_CUDA_WORKSPACE = -3,    // fewer bytes than X_workspace says
};

enum { DPCRI_CUDA_DENSE_WIDTH = 16 };  // dense transitions and blocks up to this width

// z_m = op(A_m) z_{m-1} + b_m, z_{-1} = z0; without z0, z_0 = b_0 and A_0 is not read. op is the transpose where
// `transposed` is not 0. Zero, identity, scalar, diagonal of any width; block and dense up to DPCRI_CUDA_DENSE_WIDTH.
// float, double, uint32 (the exact ring). z may be b itself, wholly. One pass over a, b and z.
typedef struct dpcri_cuda_chain {
    dpcr_dtype dtype;
    dpcr_structure structure;
    int transposed;
    int64_t length, batch, width;
    int64_t block;  // k of block, else unread
    const void *a;  // NULL for zero and identity
    int64_t a_step, a_row;
    const void *b;
    int64_t b_step, b_row;
    const void *z0;  // or NULL
    int64_t z0_row;
    void *z;
    int64_t z_step, z_row;
} dpcri_cuda_chain;

size_t dpcri_cuda_chain_workspace(dpcri_cuda_chain chain);
int dpcri_cuda_chain_run(dpcri_cuda_chain chain, void *workspace, size_t bytes, void *stream);

// Narrow elementwise cells, as dpcri_narrow (kern/narrow.h):
//     u = W_m z + x_m        z' = act(u)   or   z' = z + scale act(u) where `residual` is not 0
// dense of width 1, 2, 4 with W as [out][in], or diagonal of any width. float and double.
enum { DPCRI_CUDA_IDENTITY, DPCRI_CUDA_RELU, DPCRI_CUDA_TANH, DPCRI_CUDA_SIGMOID };  // kern/nn_kernels.h's numbers

typedef enum dpcri_cuda_method {
    DPCRI_CUDA_LOOP,     // one thread a sequence (diagonal: a component) from first to last
    DPCRI_CUDA_OVERLAP,  // chunks, one a thread, each after a warm-up; boundaries checked in the same launch
    DPCRI_CUDA_NEWTON    // all sweeps and the stopping rule in one launch
} dpcri_cuda_method;

typedef struct dpcri_cuda_cell {
    dpcr_dtype dtype;
    int activation;  // DPCRI_CUDA_IDENTITY, ...
    int diagonal, residual;
    double scale;
    int64_t length, batch, width;
    const void *weight;
    int64_t weight_step;  // 0: one W for all steps
    const void *x;
    int64_t x_step, x_row;
    const void *z0;  // [batch][width]; NULL: zero
    int64_t z0_row;
    void *z;
    int64_t z_step, z_row;
    dpcri_cuda_method method;
    // overlap: steps a chunk, warm-up; newton: unread. 0: chosen from the length alone.
    int64_t chunk, warm_up;
    // overlap: boundary defects |d| <= atol + rtol |z|; both 0: bit for bit the loop's states but for the sign of a 0.
    // newton: |z - f(z_before)| and the last correction <= atol + rtol |z|, for every step before the one that is
    // called the first open one.
    double atol, rtol;
    int max_sweeps;                // 0: overlap 3, newton 16; from the first open step on it is then finished in order,
    int stop;                      // or, not 0, left as it is
    dpcr_device_outcome *outcome;  // [batch] of device memory, or NULL
} dpcri_cuda_cell;

size_t dpcri_cuda_cell_workspace(dpcri_cuda_cell cell);
int dpcri_cuda_cell_run(dpcri_cuda_cell cell, void *workspace, size_t bytes, void *stream);

// The adjoint chain of a cell, one pass over its states: with J_m of step m at the states in cell.z, which are only
// read
//     g = direct_m for the last m; then downwards  adjoint_m = direct_m + J_{m+1}^T adjoint_{m+1};  z0_adjoint = J_0^T
//     adjoint_0
// Of `cell`, method, chunk, warm_up, atol, rtol, max_sweeps, stop and outcome are unread. adjoint may be direct itself,
// wholly.
typedef struct dpcri_cuda_adjoint {
    dpcri_cuda_cell cell;
    const void *direct;  // [length][batch][width]
    int64_t direct_step, direct_row;
    void *adjoint;  // [length][batch][width]
    int64_t adjoint_step, adjoint_row;
    void *z0_adjoint;  // [batch][width], or NULL
    int64_t z0_adjoint_row;
} dpcri_cuda_adjoint;

size_t dpcri_cuda_adjoint_workspace(dpcri_cuda_adjoint adjoint);
int dpcri_cuda_adjoint_run(dpcri_cuda_adjoint adjoint, void *workspace, size_t bytes, void *stream);

// A layer and direction of a recurrent network (kern/device.h): rnn, GRU and LSTM of any width, by the loop or by
// overlapped chunks, forward. Two launches; W_ih x of all steps lies in the workspace between them.
size_t dpcri_cuda_recurrent_workspace(dpcri_device_recurrent layer);
int dpcri_cuda_recurrent_run(dpcri_device_recurrent layer, void *workspace, size_t bytes, void *stream);

#ifdef __cplusplus
}
#endif
#endif
