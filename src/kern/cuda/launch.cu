// SPDX-License-Identifier: MIT
// From the arguments of launch.h to the kernels' instances.
#include "kern/cuda/launch.h"

size_t dpcri_cuda_chain_workspace(dpcri_cuda_chain chain) {
    (void)chain;
    return 0;
}

int dpcri_cuda_chain_run(dpcri_cuda_chain chain, void *workspace, size_t bytes, void *stream) {
    (void)chain, (void)workspace, (void)bytes, (void)stream;
    return DPCRI_CUDA_UNSUPPORTED;
}

size_t dpcri_cuda_cell_workspace(dpcri_cuda_cell cell) {
    (void)cell;
    return 0;
}

int dpcri_cuda_cell_run(dpcri_cuda_cell cell, void *workspace, size_t bytes, void *stream) {
    (void)cell, (void)workspace, (void)bytes, (void)stream;
    return DPCRI_CUDA_UNSUPPORTED;
}
