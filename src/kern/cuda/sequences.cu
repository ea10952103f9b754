// SPDX-License-Identifier: MIT
// The launchers of sequences.h and dropout.h.
#include "kern/cuda/sequences.h"

#include "kern/cuda/dropout.h"
#include "kern/cuda/shapes.h"

namespace {

using namespace shapes;

template <class Kernel>
int run(int64_t count, int64_t each, void *stream, const typename Kernel::arguments &c) {
    return simt::launch<Kernel>({streaming_blocks(count, each), sequences::threads, 0, false}, stream, c);
}

template <class T>
int run_embedding(const dpcri_device_embedding &c, void *stream) {
    const int64_t wide = (c.width + simt::warp_size - 1) / simt::warp_size;
    return c.backward ? run<sequences::collect<T>>(c.symbols * wide, sequences::warps, stream, c)
                      : run<sequences::look<T>>(c.length * c.rows * c.width, sequences::threads, stream, c);
}

}  // namespace

int dpcri_cuda_sequences_run(dpcri_device_sequences c, void *stream) {
    const int64_t numbers = c.length * c.rows * c.features;
    if (!real(c.dtype)) return DPCRI_CUDA_UNSUPPORTED;
    if (c.first < 0 || c.rows < 0 || c.count < 1 || c.length < 1 || c.features < 1) return DPCRI_CUDA_ARGUMENT;
    if (c.parts > 1 && (c.part < 1 || c.part > (c.length - 1) / (c.parts - 1))) return DPCRI_CUDA_ARGUMENT;
    if (c.rows == 0) return DPCRI_CUDA_OK;
    if (!c.data || !c.labels || !c.x || !c.y || (c.steps && !c.lengths)) return DPCRI_CUDA_ARGUMENT;
    return c.dtype == DPCR_F32 ? run<sequences::gather<float>>(numbers, sequences::threads, stream, c)
                               : run<sequences::gather<double>>(numbers, sequences::threads, stream, c);
}

int dpcri_cuda_embedding_run(dpcri_device_embedding c, void *stream) {
    if (!real(c.dtype)) return DPCRI_CUDA_UNSUPPORTED;
    if (c.first < 0 || c.rows < 0 || c.length < 0 || c.symbols < 1 || c.width < 1) return DPCRI_CUDA_ARGUMENT;
    if (c.rows * c.length == 0) return DPCRI_CUDA_OK;
    const bool onward = c.text && c.weight && c.labels;
    if (!c.x || !c.indices || (c.backward ? !c.weight_gradient : !onward)) return DPCRI_CUDA_ARGUMENT;
    return c.dtype == DPCR_F32 ? run_embedding<float>(c, stream) : run_embedding<double>(c, stream);
}

int dpcri_cuda_readout_run(dpcri_device_readout c, void *stream) {
    const int64_t numbers = (c.mean && c.backward ? c.length : 1) * c.rows * c.width;
    if (!real(c.dtype)) return DPCRI_CUDA_UNSUPPORTED;
    if (c.rows < 0 || c.length < 0 || c.width < 1 || (!c.mean && (c.parts < 1 || c.width % c.parts)))
        return DPCRI_CUDA_ARGUMENT;
    if (numbers == 0) return DPCRI_CUDA_OK;
    if (!c.states || !c.v) return DPCRI_CUDA_ARGUMENT;
    return c.dtype == DPCR_F32 ? run<sequences::read<float>>(numbers, sequences::threads, stream, c)
                               : run<sequences::read<double>>(numbers, sequences::threads, stream, c);
}

int dpcri_cuda_drop_run(dpcri_device_drop c, void *stream) {
    const int64_t most = UINT32_MAX;
    if (!real(c.dtype)) return DPCRI_CUDA_UNSUPPORTED;
    if (c.length < 0 || c.rows < 0 || c.length > most || c.rows > most || c.width < 1) return DPCRI_CUDA_ARGUMENT;
    if (c.rows * c.length == 0) return DPCRI_CUDA_OK;
    if (!c.from || !c.to) return DPCRI_CUDA_ARGUMENT;
    const int64_t count = c.length * c.rows * dropout::pieces(c);
    return c.dtype == DPCR_F32 ? run<dropout::drop<float>>(count, dropout::threads, stream, c)
                               : run<dropout::drop<double>>(count, dropout::threads, stream, c);
}
