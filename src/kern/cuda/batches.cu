// SPDX-License-Identifier: MIT
// The launchers of batches.h and ends.h.
#include "kern/cuda/batches.h"
#include "kern/cuda/ends.h"
#include "kern/cuda/shapes.h"

namespace {

using namespace shapes;

template <class T>
int run_affine(const dpcri_device_affine &c, void *stream) {
    const T *x = static_cast<const T *>(c.x), *y = static_cast<const T *>(c.y);
    const bool turned = c.out_in != 0;  // W is [out][in], so each is the other's
    const ends::problem<T> p = {c.rows,
                                turned ? c.out : c.in,
                                turned ? c.in : c.out,
                                static_cast<const T *>(c.weight),
                                c.backward ? nullptr : static_cast<const T *>(c.bias),
                                turned ? y : x,
                                turned ? x : y,
                                static_cast<T *>(c.backward ? c.dx : c.y),
                                static_cast<T *>(c.weight_gradient),
                                static_cast<T *>(c.bias_gradient)};
    const int64_t tall = gates::tiles(c.rows, gates::items_of_tile), bytes = gates::shared_bytes<T, ends::Q>();
    const int64_t wide = gates::tiles(c.backward ? c.in : c.out, ends::across);
    const int64_t weights = gates::tiles(p.in, gates::items_of_tile) * gates::tiles(p.out, ends::across);
    const simt::shape rows = {streaming_blocks(tall * wide, 1), gates::threads, bytes, false},
                      all = {streaming_blocks(weights, 1), gates::threads, bytes, false};
    int status = 0;
    if (c.backward && (c.weight_gradient || c.bias_gradient))
        status = turned ? simt::launch<ends::gradients<T, true>>(all, stream, p)
                        : simt::launch<ends::gradients<T, false>>(all, stream, p);
    if (status != 0 || (c.backward && !c.dx)) return status;
    return turned != (c.backward != 0) ? simt::launch<ends::homeward<T>>(rows, stream, p)
                                       : simt::launch<ends::onward<T>>(rows, stream, p);
}

template <class T>
int run_loss(const dpcri_device_loss &c, void *stream) {
    typedef ends::entropy<T> kernel;
    const int status =
        simt::launch<kernel>({streaming_blocks(c.rows, kernel::most), kernel::most, 0, false}, stream, c);
    return status == 0 ? simt::launch<ends::whole>({1, simt::warp_size, 0, false}, stream, c) : status;
}

template <class T>
int run_gather(const dpcri_device_gather &c, void *stream) {
    typedef batches::gather<T> kernel;
    return simt::launch<kernel>({streaming_blocks(c.rows * c.pixels, kernel::threads), kernel::threads, 0, false},
                                stream, c);
}

}  // namespace

int dpcri_cuda_affine_run(dpcri_device_affine c, void *stream) {
    if (!real(c.dtype)) return DPCRI_CUDA_UNSUPPORTED;
    if (c.rows < 0 || c.in < 1 || c.out < 1) return DPCRI_CUDA_ARGUMENT;
    if (c.rows == 0) return DPCRI_CUDA_OK;
    const bool onward = c.weight && c.bias && c.x && c.y, weights = c.weight_gradient || c.bias_gradient;
    const bool homeward = c.y && (!c.dx || c.weight) && (!weights || c.x);
    if (c.backward ? !homeward : !onward) return DPCRI_CUDA_ARGUMENT;
    return c.dtype == DPCR_F32 ? run_affine<float>(c, stream) : run_affine<double>(c, stream);
}

int dpcri_cuda_loss_run(dpcri_device_loss c, void *stream) {
    if (!real(c.dtype)) return DPCRI_CUDA_UNSUPPORTED;
    if (c.rows < 1 || c.classes < 1 || !c.logits || !c.labels || !c.parts || !c.told) return DPCRI_CUDA_ARGUMENT;
    return c.dtype == DPCR_F32 ? run_loss<float>(c, stream) : run_loss<double>(c, stream);
}

int dpcri_cuda_shuffle_run(dpcri_device_shuffle c, void *stream) {
    typedef batches::shuffle kernel;
    if (c.count < 0 || (c.count > 0 && (!c.order || !c.marks))) return DPCRI_CUDA_ARGUMENT;
    if (c.count == 0) return DPCRI_CUDA_OK;
    const int status = simt::clear(c.marks, (size_t)c.count * sizeof *c.marks, stream);
    if (status != 0) return status;
    return simt::launch<kernel>({1, kernel::threads, kernel::warps * (int64_t)sizeof(uint32_t), false}, stream, c);
}

int dpcri_cuda_gather_run(dpcri_device_gather c, void *stream) {
    if (!real(c.dtype)) return DPCRI_CUDA_UNSUPPORTED;
    if (c.first < 0 || c.rows < 0 || c.pixels < 1) return DPCRI_CUDA_ARGUMENT;
    if (c.rows == 0) return DPCRI_CUDA_OK;
    if (!c.images || !c.labels || !c.table || !c.x || !c.y) return DPCRI_CUDA_ARGUMENT;
    return c.dtype == DPCR_F32 ? run_gather<float>(c, stream) : run_gather<double>(c, stream);
}
