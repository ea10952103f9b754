// SPDX-License-Identifier: MIT
// The kernels for CUDA devices, as C sees them. Proven on the CPU (tests/cuda) and on a device
// (docs/gpu.md).
//
// Each launcher puts its work on `stream` (a cudaStream_t; NULL is the default stream) of the device that is current
// and returns at once: no synchronisation, no allocation, no copy to or from the host. What is captured into a graph
// may be replayed. Every pointer is to memory that the device reads. Arguments go by value; after the call the caller
// may do with the structure what it likes.
//
//   X_workspace(arguments)   bytes of device memory (256-byte aligned) that X_run needs with these sizes on the current
//                            device; pointers are not looked at, but for gamma: is it there? Nothing has to be cleared
//                            in it, and nothing in it outlives the run
//   X_run(arguments, memory, bytes, stream)   DPCRI_CUDA_OK, one of the reasons below, or a cudaError_t (> 0)
//
// What is solved, and how its arrays lie, is kern/device.h's. Strides are in elements and may be 0 (shared) or
// negative; the last dimension is contiguous. A sequence's bits depend on the length, structure, width and type alone:
// not on the batch, its place there, the device's size or who came first.
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
    DPCRI_CUDA_WIDTH = -4,        // a row that no block of the device has room for
    DPCRI_CUDA_SIZE = -5,         // states or a workspace whose bytes do not fit in a number
};

// Linear chains: zero, identity, scalar, diagonal of any width, block, dense and csr, float, double, uint32 (the exact
// ring). In one pass over a, b and z where at most DPCRI_DEVICE_CHIP_WIDTH numbers mix; wider ones and csr by the loop
// or by products of chunks, as far as a state, or four, and a tile of A fit on chip (_fits: DPCRI_CUDA_OK on the
// current device, or as _run).
int dpcri_cuda_chain_fits(dpcri_device_linear chain);
size_t dpcri_cuda_chain_workspace(dpcri_device_linear chain);
int dpcri_cuda_chain_run(dpcri_device_linear chain, void *workspace, size_t bytes, void *stream);

// Cells: diagonal or dense of any width; by the loop and overlap normalised ones too, and two-layer branches; where
// dense ones are of other widths than 1, 2 and 4, as far as a row, by newton several, and a tile of W fit on chip
// (_fits: DPCRI_CUDA_OK on the current device, or as _run). float and double. With `backward` one pass over the states,
// which are only read; chunk, warm_up, tolerances, max_sweeps, stop and outcome are unread. Sizes that matter to the
// workspace are those of the gradients too: `gradients` is read.
enum {  // kern/nn_kernels.h's numbers
    DPCRI_CUDA_IDENTITY,
    DPCRI_CUDA_RELU,
    DPCRI_CUDA_TANH,
    DPCRI_CUDA_SIGMOID,
    DPCRI_CUDA_GELU,
    DPCRI_CUDA_SILU
};

size_t dpcri_cuda_cell_workspace(dpcri_device_cell cell);
int dpcri_cuda_cell_run(dpcri_device_cell cell, void *workspace, size_t bytes, void *stream);
int dpcri_cuda_cell_fits(dpcri_device_cell cell);
int dpcri_cuda_cell_share(dpcri_device_cell cell, int64_t *blocks, int *whole);  // kern/device.h's cell_share

// Blocks that a solve by newton launches together at least, so that its windows are the same on every device, and how
// many the current device takes of them; zeros by another way, and where any number will do.
typedef struct dpcri_cuda_together {
    int64_t wanted, room;
} dpcri_cuda_together;

dpcri_cuda_together dpcri_cuda_cell_together(dpcri_device_cell cell);

// A layer and direction of a recurrent network of any width: rnn, GRU, LSTM, ParaGRU, ParaLSTM and minGRU by the loop
// or by overlapped chunks, and back; those whose units do not mix by newton too, forward. Forward two launches; W_ih x
// of all steps lies in the workspace between them.
size_t dpcri_cuda_recurrent_workspace(dpcri_device_recurrent layer);
int dpcri_cuda_recurrent_fits(dpcri_device_recurrent layer);  // DPCRI_CUDA_OK on the current device, or as _run
int dpcri_cuda_recurrent_run(dpcri_device_recurrent layer, void *workspace, size_t bytes, void *stream);
int dpcri_cuda_recurrent_share(dpcri_device_recurrent layer, int64_t *blocks);  // kern/device.h's recurrent_share
dpcri_cuda_together dpcri_cuda_recurrent_together(dpcri_device_recurrent layer);

// A block a multiprocessor, all of which meet `count` times: what a step costs whose blocks meet.
int dpcri_cuda_barriers_run(int64_t count, void *stream);

// Training's passes over whole vectors, with the host's bits. Nothing is asked for before.
int dpcri_cuda_update_run(dpcri_device_update update, void *stream);
int dpcri_cuda_clip_run(dpcri_device_clip clip, void *stream);
int dpcri_cuda_tie_run(dpcri_device_tie tie, void *stream);
// Its batches, encoder and head, and loss, alike.
int dpcri_cuda_affine_run(dpcri_device_affine affine, void *stream);
int dpcri_cuda_loss_run(dpcri_device_loss loss, void *stream);
int dpcri_cuda_shuffle_run(dpcri_device_shuffle shuffle, void *stream);
int dpcri_cuda_gather_run(dpcri_device_gather gather, void *stream);
// Those of sequence models.
int dpcri_cuda_sequences_run(dpcri_device_sequences sequences, void *stream);
int dpcri_cuda_embedding_run(dpcri_device_embedding embedding, void *stream);
int dpcri_cuda_readout_run(dpcri_device_readout readout, void *stream);
int dpcri_cuda_drop_run(dpcri_device_drop drop, void *stream);
// Those of samplers.
int dpcri_cuda_dense_run(dpcri_device_dense dense, void *stream);
int dpcri_cuda_denoise_run(dpcri_device_denoise denoise, void *stream);
int dpcri_cuda_move_run(dpcri_device_move move, void *stream);
int dpcri_cuda_sweep_run(dpcri_device_sweep sweep, void *stream);

#ifdef __cplusplus
}
#endif
#endif
