// SPDX-License-Identifier: MIT
// The launchers of sampling.h and sweeps.h.
#include "kern/cuda/sampling.h"
#include "kern/cuda/sweeps.h"
#include "kern/cuda/shapes.h"

namespace {

using namespace shapes;

// Rows of a window have their places.
bool is_window(const dpcri_device_window &w) {
    return w.count == 0 || (w.count > 0 && w.who && w.places && w.batch > 0 && w.first >= 0);
}

}  // namespace

int dpcri_cuda_dense_run(dpcri_device_dense c, void *stream) {
    typedef sampling::dense kernel;
    if (c.rows < 0 || c.in < 1 || c.out < 1 || (c.residual && c.in != c.out) || !is_window(c.window) ||
        (c.path && !c.window.count))
        return DPCRI_CUDA_ARGUMENT;
    if (c.activation < 0 || c.activation >= DPCRI_DEVICE_ACTIVATIONS) return DPCRI_CUDA_UNSUPPORTED;
    if (c.rows == 0) return DPCRI_CUDA_OK;
    if (!c.weight || !c.bias || !c.x || !c.y || c.x == c.y) return DPCRI_CUDA_ARGUMENT;
    if (c.rows >= sampling::dense_tiles::least_rows) {
        const sampling::dense_tiles::task task = {c, product::in_quads(c.x, c.x_row),
                                                  product::in_quads(c.weight, c.in)};
        return product::launch<sampling::dense_tiles, float>(c.rows, c.out, 1, task, stream);
    }
    const int64_t tiles = over(c.rows, kernel::rows) * over(c.out, kernel::outputs);
    return simt::launch<kernel>({streaming_blocks(tiles, 1), kernel::most, kernel::shared_bytes(), false}, stream, c);
}

int dpcri_cuda_denoise_run(dpcri_device_denoise c, void *stream) {
    typedef sampling::denoise kernel;
    if (c.rows < 0 || c.width < 1 || !is_window(c.window) || (c.window.count && !c.steps)) return DPCRI_CUDA_ARGUMENT;
    if (c.rows == 0) return DPCRI_CUDA_OK;
    if (!c.x || !c.m || !c.to || (c.mask && (!c.known || !c.start))) return DPCRI_CUDA_ARGUMENT;
    return simt::launch<kernel>({streaming_blocks(c.rows * c.width, kernel::most), kernel::most, 0, false}, stream, c);
}

int dpcri_cuda_move_run(dpcri_device_move c, void *stream) {
    typedef sampling::move kernel;
    const int64_t count = c.steps * c.rows * c.width;
    if (c.steps < 0 || c.rows < 0 || c.width < 0) return DPCRI_CUDA_ARGUMENT;
    if (count == 0) return DPCRI_CUDA_OK;
    if (!c.to) return DPCRI_CUDA_ARGUMENT;
    return simt::launch<kernel>({streaming_blocks(count, kernel::most), kernel::most, 0, false}, stream, c);
}

int dpcri_cuda_sweep_run(dpcri_device_sweep c, void *stream) {
    const dpcri_device_window &w = c.window;
    const bool remembers = c.mixed > 1;
    if (w.count < 0 || !is_window(w) || w.first != 0 || w.most < 1 || w.length < 1 || c.width < 1)
        return DPCRI_CUDA_ARGUMENT;
    if (w.count == 0) return DPCRI_CUDA_OK;
    if (!c.path || !c.f || c.mixed < 0 || c.mixed > 4) return DPCRI_CUDA_ARGUMENT;
    if (!c.in_order && !c.mixed && (!c.r || !c.flags)) return DPCRI_CUDA_ARGUMENT;
    if (!c.in_order && c.mixed && (!c.change || !c.sums || !c.past || c.order < 1)) return DPCRI_CUDA_ARGUMENT;
    if (!c.in_order && remembers && (!c.past_z || !c.past_r || !c.old_z || !c.old_r)) return DPCRI_CUDA_ARGUMENT;
    const simt::shape shape = {w.count, sweeps::threads, sweeps::shared_bytes, false};
    return c.mixed ? simt::launch<sweeps::parataa>(shape, stream, c) : simt::launch<sweeps::picard>(shape, stream, c);
}
