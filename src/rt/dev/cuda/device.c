// SPDX-License-Identifier: MIT
// The table of devices over the CUDA runtime. Streams that it makes do not wait for the default stream.
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "rt/dev/cuda/runtime.h"

dpcr_status dpcri_cuda_fail(int id, int code, const char *what, dpcr_error *error) {
    (void)cudaGetLastError();
    const dpcr_status status = code == (int)cudaErrorMemoryAllocation ? DPCR_ERROR_MEMORY : DPCR_ERROR_DEVICE;
    dpcri_tell(error, status, "cuda:%d: %s: %s", id, what, cudaGetErrorString((cudaError_t)code));
    if (error) error->code = code;
    return status;
}

int dpcri_cuda_enter(int id, int *before) {
    cudaError_t code = cudaGetDevice(before);
    if (code == cudaSuccess && *before != id) code = cudaSetDevice(id);
    if (code != cudaSuccess) *before = id;
    return (int)code;
}

void dpcri_cuda_leave(int id, int before) {
    if (before != id) (void)cudaSetDevice(before);
}

static dpcr_status cuda_count(int *count, dpcr_error *error) {
    int driver = 0, runtime = 0;
    *count = 0;
    const cudaError_t code = cudaGetDeviceCount(count);
    if (code == cudaSuccess && *count > 0) return DPCR_OK;
    *count = 0;
    (void)cudaGetLastError();
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (driver == 0) return dpcri_tell(error, DPCR_ERROR_DEVICE, "no NVIDIA driver on this machine (libcuda.so.1)");
    if (code == cudaErrorInsufficientDriver)
        return dpcri_tell(error, DPCR_ERROR_DEVICE,
                          "the NVIDIA driver serves CUDA %d.%d, the CUDA backend wants %d.%d or newer", driver / 1000,
                          driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    if (code == cudaSuccess || code == cudaErrorNoDevice)
        return dpcri_tell(error, DPCR_ERROR_DEVICE, "an NVIDIA driver, but no CUDA device on this machine");
    return dpcri_tell(error, DPCR_ERROR_DEVICE, "CUDA does not start: %s", cudaGetErrorString(code));
}

static int attribute(int id, enum cudaDeviceAttr which) {
    int value = 0;
    return cudaDeviceGetAttribute(&value, which, id) == cudaSuccess ? value : 0;
}

static dpcr_status cuda_describe(int id, dpcr_device_info *info, dpcr_error *error) {
    struct cudaDeviceProp properties;
    cudaError_t code = cudaGetDeviceProperties(&properties, id);
    if (code != cudaSuccess) return dpcri_cuda_fail(id, (int)code, "cannot be described", error);
    if (10 * properties.major + properties.minor < 75)
        return dpcri_tell(error, DPCR_ERROR_DEVICE,
                          "cuda:%d (%.100s) has compute capability %d.%d, wanted 7.5 or newer", id, properties.name,
                          properties.major, properties.minor);
    int before = 0;
    size_t free_bytes = 0, all = 0;
    code = (cudaError_t)dpcri_cuda_enter(id, &before);
    if (code == cudaSuccess) code = cudaMemGetInfo(&free_bytes, &all);
    dpcri_cuda_leave(id, before);
    if (code != cudaSuccess) return dpcri_cuda_fail(id, (int)code, "cannot be used", error);
    *info = (dpcr_device_info){.size = sizeof *info,
                               .major = properties.major,
                               .minor = properties.minor,
                               .processors = properties.multiProcessorCount,
                               .memory_bytes = all,
                               .free_bytes = free_bytes,
                               .cache_bytes = properties.l2CacheSize > 0 ? (size_t)properties.l2CacheSize : 0};
    snprintf(info->name, sizeof info->name, "%.120s", properties.name);
    // Two transfers a clock (kHz), a bus in bits.
    info->bandwidth =
        2e3 * attribute(id, cudaDevAttrMemoryClockRate) * attribute(id, cudaDevAttrGlobalMemoryBusWidth) / 8;
    (void)cudaDriverGetVersion(&info->driver);
    (void)cudaRuntimeGetVersion(&info->runtime);
    return DPCR_OK;
}

static dpcr_status cuda_allocate(int id, size_t bytes, void **memory, dpcr_error *error) {
    int before = 0;
    size_t left = 0, all = 0;
    *memory = NULL;
    cudaError_t code = (cudaError_t)dpcri_cuda_enter(id, &before);
    if (code == cudaSuccess) code = cudaMalloc(memory, bytes);
    if (code == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&left, &all);
    }
    dpcri_cuda_leave(id, before);
    if (code == cudaSuccess) return DPCR_OK;
    *memory = NULL;
    if (code != cudaErrorMemoryAllocation) return dpcri_cuda_fail(id, (int)code, "no memory", error);
    return dpcri_tell(error, DPCR_ERROR_MEMORY, "cuda:%d: %zu bytes were refused, %zu of %zu are free", id, bytes, left,
                      all);
}

static void cuda_release(int id, void *memory) {
    int before = 0;
    if (dpcri_cuda_enter(id, &before) != cudaSuccess) return;
    if (cudaFree(memory) != cudaSuccess) (void)cudaGetLastError();
    dpcri_cuda_leave(id, before);
}

// One runtime call on the device `id`; its words where it fails.
#define CUDA_CALL(what, call)                                      \
    int before = 0;                                                \
    cudaError_t code = (cudaError_t)dpcri_cuda_enter(id, &before); \
    if (code == cudaSuccess) code = (call);                        \
    dpcri_cuda_leave(id, before);                                  \
    return code == cudaSuccess ? DPCR_OK : dpcri_cuda_fail(id, (int)code, what, error)

static dpcr_status cuda_copy(int id, void *to, const void *from, size_t bytes, dpcri_direction direction, void *stream,
                             dpcr_error *error) {
    const enum cudaMemcpyKind kind = direction == DPCRI_TO_DEVICE ? cudaMemcpyHostToDevice
                                     : direction == DPCRI_TO_HOST ? cudaMemcpyDeviceToHost
                                                                  : cudaMemcpyDeviceToDevice;
    CUDA_CALL("a copy", cudaMemcpyAsync(to, from, bytes, kind, (cudaStream_t)stream));
}

static dpcr_status cuda_fill(int id, void *memory, int byte, size_t bytes, void *stream, dpcr_error *error) {
    CUDA_CALL("a fill", cudaMemsetAsync(memory, byte, bytes, (cudaStream_t)stream));
}

static dpcr_status cuda_stream_create(int id, void **stream, dpcr_error *error) {
    CUDA_CALL("no stream", cudaStreamCreateWithFlags((cudaStream_t *)stream, cudaStreamNonBlocking));
}

static void cuda_stream_destroy(int id, void *stream) {
    int before = 0;
    if (dpcri_cuda_enter(id, &before) != cudaSuccess) return;
    if (cudaStreamDestroy((cudaStream_t)stream) != cudaSuccess) (void)cudaGetLastError();
    dpcri_cuda_leave(id, before);
}

static dpcr_status cuda_stream_wait(int id, void *stream, dpcr_error *error) {
    CUDA_CALL("what ran in the stream", cudaStreamSynchronize((cudaStream_t)stream));
}

static dpcr_status cuda_event_create(int id, void **event, dpcr_error *error) {
    CUDA_CALL("no event", cudaEventCreate((cudaEvent_t *)event));
}

static void cuda_event_destroy(int id, void *event) {
    int before = 0;
    if (dpcri_cuda_enter(id, &before) != cudaSuccess) return;
    if (cudaEventDestroy((cudaEvent_t)event) != cudaSuccess) (void)cudaGetLastError();
    dpcri_cuda_leave(id, before);
}

static dpcr_status cuda_event_record(int id, void *event, void *stream, dpcr_error *error) {
    CUDA_CALL("an event", cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream));
}

static dpcr_status cuda_event_seconds(int id, void *from, void *to, double *seconds, dpcr_error *error) {
    float milliseconds = 0;
    const cudaError_t code = cudaEventElapsedTime(&milliseconds, (cudaEvent_t)from, (cudaEvent_t)to);
    if (code != cudaSuccess) return dpcri_cuda_fail(id, (int)code, "the time between events", error);
    *seconds = 1e-3 * (double)milliseconds;
    return DPCR_OK;
}

static dpcr_status cuda_last_error(int id, dpcr_error *error) { CUDA_CALL("an earlier launch", cudaGetLastError()); }

const dpcri_device_table dpcri_cuda_table = {.abi = DPCRI_DEVICE_ABI,
                                             .version = DPCR_VERSION_STRING,
                                             .name = "cuda",
                                             .size = sizeof(dpcri_device_table),
                                             .count = cuda_count,
                                             .describe = cuda_describe,
                                             .allocate = cuda_allocate,
                                             .release = cuda_release,
                                             .copy = cuda_copy,
                                             .fill = cuda_fill,
                                             .stream_create = cuda_stream_create,
                                             .stream_destroy = cuda_stream_destroy,
                                             .stream_wait = cuda_stream_wait,
                                             .event_create = cuda_event_create,
                                             .event_destroy = cuda_event_destroy,
                                             .event_record = cuda_event_record,
                                             .event_seconds = cuda_event_seconds,
                                             .last_error = cuda_last_error};
