// SPDX-License-Identifier: MIT
// DLPack's tensors as arrays and back: the same view in other fields. Layout: dlpack.h, version 1.
#include <inttypes.h>

#include "base/base.h"
#include "rt/dev/device.h"

enum { CPU = 1, CUDA = 2, CUDA_HOST = 3, CUDA_MANAGED = 13 };  // DLDeviceType
enum { INTEGER = 0, UNSIGNED = 1, FLOATING = 2 };              // DLDataTypeCode

static bool find_dtype(const dpcr_dlpack *t, dpcr_dtype *dtype) {
    if (t->lanes != 1) return false;
    if (t->code == FLOATING && t->bits == 32) return *dtype = DPCR_F32, true;
    if (t->code == FLOATING && t->bits == 64) return *dtype = DPCR_F64, true;
    if (t->code == UNSIGNED && t->bits == 32) return *dtype = DPCR_U32, true;
    return false;
}

dpcr_status dpcr_array_from_dlpack(const dpcr_dlpack *tensor, dpcr_array *array, dpcr_error *error) {
    static const char *const function = "array_from_dlpack";
    dpcr_dtype dtype = DPCR_F32;
    if (!tensor || !array) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: wanted a tensor and an array", function);
    if (tensor->ndim < 0 || tensor->ndim > DPCR_MAX_DIMS || (tensor->ndim > 0 && !tensor->shape))
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: %d dimensions, wanted 0..%d with their shape", function,
                          (int)tensor->ndim, DPCR_MAX_DIMS);
    if (!find_dtype(tensor, &dtype))
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "%s: numbers of code %d, %d bits, %d lanes; wanted float32, float64 or uint32", function,
                          (int)tensor->code, (int)tensor->bits, (int)tensor->lanes);
    const bool host = tensor->device_type == CPU || tensor->device_type == CUDA_HOST;
    if (!host && tensor->device_type != CUDA && tensor->device_type != CUDA_MANAGED)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: memory of device type %d; wanted the host's or CUDA's",
                          function, (int)tensor->device_type);
    dpcr_array made = {.dtype = dtype, .ndim = tensor->ndim};
    made.device = (dpcr_device){.type = host ? DPCR_HOST : DPCR_CUDA, .id = host ? 0 : tensor->device_id};
    int64_t contiguous = 1;
    for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
        made.shape[i] = tensor->shape[i];
        made.strides[i] = tensor->strides ? tensor->strides[i] : contiguous;
        if (made.shape[i] < 0)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: extent %d is %" PRId64 ", wanted 0 or more", function,
                              (int)i, made.shape[i]);
        if (made.shape[i] > 0 && !dpcri_mul(contiguous, made.shape[i], &contiguous))
            return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "%s: extent %d is %" PRId64, function, (int)i, made.shape[i]);
    }
    made.data = tensor->data ? (char *)tensor->data + tensor->byte_offset : NULL;
    *array = made;
    return DPCR_OK;
}

dpcr_status dpcr_array_to_dlpack(dpcr_array *array, dpcr_dlpack *tensor, dpcr_error *error) {
    static const char *const function = "array_to_dlpack";
    if (!tensor || !array) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: wanted an array and a tensor", function);
    const size_t bytes = dpcr_dtype_size(array->dtype);
    if (array->ndim < 0 || array->ndim > DPCR_MAX_DIMS || bytes == 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %d dimensions of dtype %d", function, (int)array->ndim,
                          (int)array->dtype);
    if (array->device.type != DPCR_HOST && array->device.type != DPCR_CUDA)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: memory of device type %d", function,
                          (int)array->device.type);
    *tensor = (dpcr_dlpack){.data = array->data,
                            .device_type = array->device.type == DPCR_HOST ? CPU : CUDA,
                            .device_id = array->device.id,
                            .ndim = array->ndim,
                            .code = array->dtype == DPCR_U32 ? UNSIGNED : FLOATING,
                            .bits = (uint8_t)(8 * bytes),
                            .lanes = 1,
                            .shape = array->shape,
                            .strides = array->strides};
    return DPCR_OK;
}
