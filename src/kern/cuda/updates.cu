// SPDX-License-Identifier: MIT
// The launcher of updates.h.
#include "kern/cuda/shapes.h"
#include "kern/cuda/updates.h"

namespace {

using namespace shapes;

template <class T>
int run_update(const dpcri_device_update &u, void *stream) {
    const simt::shape shape = {streaming_blocks(u.count, updates::threads), updates::threads, 0, false};
    return u.adam ? simt::launch<updates::adam<T>>(shape, stream, u) : simt::launch<updates::sgd<T>>(shape, stream, u);
}

template <class T>
int run_clip(const dpcri_device_clip &c, void *stream) {
    const int status = simt::launch<updates::squares<T>>({updates::blocks_of(c), simt::warp_size, 0, false}, stream, c);
    if (status != 0) return status;
    return simt::launch<updates::scale<T>>(
        {streaming_blocks(c.count + c.more_count, updates::threads), updates::threads, sizeof(double), false}, stream,
        c);
}

template <class T>
int run_tie(const dpcri_device_tie &t, void *stream) {
    typedef updates::ties<T> kernel;
    return simt::launch<kernel>({blocks_of(over(t.tie * t.each, kernel::most)), kernel::most, 0, false}, stream, t);
}

}  // namespace

int dpcri_cuda_update_run(dpcri_device_update u, void *stream) {
    if (!real(u.dtype)) return DPCRI_CUDA_UNSUPPORTED;
    if (u.count < 0 || (u.count > 0 && (!u.parameters || !u.gradients || (u.adam && (!u.first || !u.second)))))
        return DPCRI_CUDA_ARGUMENT;
    if (u.count == 0) return DPCRI_CUDA_OK;
    return u.dtype == DPCR_F32 ? run_update<float>(u, stream) : run_update<double>(u, stream);
}

int dpcri_cuda_clip_run(dpcri_device_clip c, void *stream) {
    if (!real(c.dtype)) return DPCRI_CUDA_UNSUPPORTED;
    if (c.count < 0 || c.more_count < 0 || !(c.most >= 0) || !c.sums) return DPCRI_CUDA_ARGUMENT;
    if ((c.count > 0 && !c.gradients) || (c.more_count > 0 && !c.more)) return DPCRI_CUDA_ARGUMENT;
    if (c.count + c.more_count == 0) return simt::clear(c.sums, sizeof *c.sums, stream);
    return c.dtype == DPCR_F32 ? run_clip<float>(c, stream) : run_clip<double>(c, stream);
}

int dpcri_cuda_tie_run(dpcri_device_tie t, void *stream) {
    if (!real(t.dtype)) return DPCRI_CUDA_UNSUPPORTED;
    if (t.steps < 0 || t.each < 0 || t.tie < 1 || (t.steps > 0 && t.each > 0 && !t.gradients))
        return DPCRI_CUDA_ARGUMENT;
    if (t.steps <= t.tie || t.each == 0) return DPCRI_CUDA_OK;
    return t.dtype == DPCR_F32 ? run_tie<float>(t, stream) : run_tie<double>(t, stream);
}
