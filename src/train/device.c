// SPDX-License-Identifier: MIT
// An optimiser's update and clipped gradients on a device, put into the caller's stream.
#include <assert.h>

#include "kern/device.h"
#include "nn/device.h"
#include "train/optimiser.h"

static_assert((1 + DPCRI_CLIP_BLOCKS) * sizeof(double) <= DPCR_CLIP_BYTES, "the sums fit");

static dpcr_status check_vector(const char *call, const char *name, const dpcr_array *array, dpcr_dtype dtype,
                                dpcr_device device, int64_t count, bool wanted, dpcr_error *error) {
    if (!wanted) {
        if (!array || !array->data) return DPCR_OK;
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s is given, but this kind has none", call, name);
    }
    return dpcri_check_array_on(call, name, array, dtype, device, 1, &count, error);
}

dpcr_status dpcr_optimiser_enqueue(dpcr_optimiser *o, const dpcr_array *parameters, const dpcr_array *gradients,
                                   const dpcr_array *first, const dpcr_array *second, int clear, void *stream,
                                   dpcr_error *error) {
    static const char *const call = "optimiser_enqueue";
    const dpcri_device_kernels *kernels = NULL;
    dpcr_status status = DPCR_OK;
    if (!o || !parameters)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: an optimiser and parameters are wanted", call);
    const dpcr_device device = parameters->device;
    const bool sgd = o->options.kind == DPCR_SGD;
    if (device.type == 0 || device.type == DPCR_HOST)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the parameters lie on the host, where optimiser_step is",
                          call);
    DPCR_TRY(check_vector(call, "parameters", parameters, o->dtype, device, o->count, true, error));
    DPCR_TRY(check_vector(call, "gradients", gradients, o->dtype, device, o->count, true, error));
    DPCR_TRY(check_vector(call, "first", first, o->dtype, device, o->count, !sgd || o->options.momentum > 0, error));
    DPCR_TRY(check_vector(call, "second", second, o->dtype, device, o->count, !sgd, error));
    DPCR_TRY(dpcri_kernels_of(device, call, &kernels, error));
    const int64_t step = o->step + 1;
    const double rate = dpcri_schedule_rate(&o->options, step);
    dpcri_device_update u = {.dtype = o->dtype,
                             .adam = !sgd,
                             .clear = clear,
                             .count = o->count,
                             .parameters = parameters->data,
                             .gradients = gradients->data,
                             .first = first ? first->data : NULL,
                             .second = second ? second->data : NULL};
    if (sgd) {
        const dpcri_sgd_update s = dpcri_optimiser_sgd(&o->options, rate);
        u.rate = s.rate, u.momentum = s.momentum, u.decay = s.decay;
    } else {
        const dpcri_adam_update a = dpcri_optimiser_adam(&o->options, rate, step);
        u.keep = a.keep, u.decay = a.decay, u.pull = a.pull, u.from_gradient = a.from_gradient;
        u.beta2 = a.beta2, u.rest2 = a.rest2, u.step = a.step, u.root = a.root, u.epsilon = a.epsilon;
    }
    DPCR_TRY(kernels->update(device.id, &u, stream, error));
    o->step = step;
done:
    return status;
}

dpcr_status dpcr_gradients_clip_enqueue(const dpcr_array *gradients, double most, void *workspace,
                                        size_t workspace_bytes, void *stream, dpcr_error *error) {
    static const char *const call = "gradients_clip_enqueue";
    const dpcri_device_kernels *kernels = NULL;
    dpcr_status status = DPCR_OK;
    if (!gradients) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: gradients are wanted", call);
    if (!(most >= 0)) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: most is %g, wanted 0 or more", call, most);
    const dpcr_device device = gradients->device;
    if (device.type == 0 || device.type == DPCR_HOST)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the gradients lie on the host, where gradients_clip_norm is",
                          call);
    if (gradients->dtype != DPCR_F32 && gradients->dtype != DPCR_F64)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: dtype is %s, wanted float32 or float64", call,
                          dpcr_dtype_name(gradients->dtype));
    DPCR_TRY(check_vector(call, "gradients", gradients, gradients->dtype, device, gradients->shape[0], true, error));
    DPCR_TRY(dpcri_check_device_workspace(call, workspace, workspace_bytes, DPCR_CLIP_BYTES, error));
    DPCR_TRY(dpcri_kernels_of(device, call, &kernels, error));
    const dpcri_device_clip c = {.dtype = gradients->dtype,
                                 .count = gradients->shape[0],
                                 .gradients = gradients->data,
                                 .most = most,
                                 .sums = workspace};
    status = kernels->clip(device.id, &c, stream, error);
done:
    return status;
}
