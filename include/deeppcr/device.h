// SPDX-License-Identifier: MIT
// Devices: what there is, their memory and streams. "cpu" is always there. "cuda" devices come with a module of its own
// that the library loads at the first question after them (docs/gpu.md); every function here says in words why there is
// none. Nothing is chosen behind the caller's back: a call names its device, the thread's current one is put back.
//
// A stream is the backend's own (a cudaStream_t for CUDA, so a caller's own ones do); NULL is the default stream. What
// is put into a stream happens in order, and later: dpcr_stream_wait waits for it and tells what went wrong since.
#ifndef DEEPPCR_DEVICE_H
#define DEEPPCR_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "array.h"

#ifdef __cplusplus
extern "C" {
#endif

// "cpu", "cuda"; "unknown" otherwise.
DPCR_API const char *dpcr_device_type_name(dpcr_device_type type);

// Reads "cpu", "cuda" (its first device) or "cuda:N". DPCR_ERROR_ARGUMENT otherwise; whether there is such a device is
// another question.
DPCR_API dpcr_status dpcr_device_find(const char *name, dpcr_device *device, dpcr_error *error);

// How many devices of that type there are. DPCR_ERROR_DEVICE, *count 0 and the reason in words where there are none: no
// module, one that cannot be loaded or is of another version, no driver, no device.
DPCR_API dpcr_status dpcr_device_count(dpcr_device_type type, int *count, dpcr_error *error);

typedef struct dpcr_device_info {
    size_t size;          // sizeof(dpcr_device_info) of the caller
    char name[128];       // its maker's; printable ASCII
    int major, minor;     // compute capability; 0.0 for "cpu"
    int processors;       // multiprocessors; hardware threads of "cpu"
    size_t memory_bytes;  // of its memory, all
    size_t free_bytes;    // and free now
    size_t cache_bytes;   // of its last cache; 0: unknown
    double bandwidth;     // bytes a second of its memory as its clock and bus promise; 0: unknown
    int driver, runtime;  // versions as CUDA counts them (13000 is 13.0); 0 for "cpu"
} dpcr_device_info;

// DPCR_ERROR_DEVICE where there is no such device, or where it is too old to be used (the text says so).
DPCR_API dpcr_status dpcr_device_describe(dpcr_device device, dpcr_device_info *info, dpcr_error *error);

typedef struct dpcr_device_rates {
    size_t size;       // sizeof(dpcr_device_rates) of the caller
    double copy;       // bytes a second, read and written together, of a copy within its memory
    double to_device;  // bytes a second from the host's pageable memory
    double to_host;    // and back
    double launch;     // seconds of the smallest piece of work, a fill of 4 bytes, one after another: not a kernel's
} dpcr_device_rates;

// Measures them: 64 MiB (or less, where memory is short) for below a second. Not for "cpu": dpcr_context_machine.
DPCR_API dpcr_status dpcr_device_measure(dpcr_device device, dpcr_device_rates *rates, dpcr_error *error);

// Memory on the device, 256-byte aligned (64 on "cpu"). 0 bytes: NULL. DPCR_ERROR_MEMORY where it is refused, with what
// is free; the device stays usable.
DPCR_API dpcr_status dpcr_device_allocate(dpcr_device device, size_t bytes, void **memory, dpcr_error *error);
// NULL is allowed. May wait for the device (cudaFree does).
DPCR_API void dpcr_device_release(dpcr_device device, void *memory);

// Puts a copy of `bytes` into a stream of the device that is not the host (on the host alone it is done at once). Both
// have to stay as they are until the stream has been waited for. Between devices of two numbers: refused.
DPCR_API dpcr_status dpcr_device_copy(dpcr_device to_device, void *to, dpcr_device from_device, const void *from,
                                      size_t bytes, void *stream, dpcr_error *error);

DPCR_API dpcr_status dpcr_stream_create(dpcr_device device, void **stream, dpcr_error *error);
DPCR_API void dpcr_stream_destroy(dpcr_device device, void *stream);
// Waits for all that was put into the stream. DPCR_ERROR_DEVICE, with the device's own words, where any of it failed.
DPCR_API dpcr_status dpcr_stream_wait(dpcr_device device, void *stream, dpcr_error *error);

// What became of a sequence that was solved on a device: what a kernel writes, one a sequence, in the batch's order.
// dpcr_solve_collect makes a report of them.
typedef struct dpcr_device_outcome {
    int32_t sweeps;      // over the chain, or over its chunks
    int32_t non_finite;  // not 0: the last state is not finite
    int64_t locked;      // steps that the method left right; from there on finished in order, or left open
    double residual;     // the largest defect (overlap) or correction (newton) of the last sweep over max(1, |z|);
                         // of an affine chain that one sweep of newton solves (minGRU), the residual after it
} dpcr_device_outcome;

// ---- DLPack: views without a copy ----

// Field for field DLPack's DLTensor (dlpack.h), the first member of a DLManagedTensor.
typedef struct dpcr_dlpack {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;  // 2, 32: float32
    uint16_t lanes;      // 1
    int64_t *shape;
    int64_t *strides;  // in elements; NULL: contiguous, row by row
    uint64_t byte_offset;
} dpcr_dlpack;

// The tensor's numbers as an array: a view, nothing is copied, and who owned them owns them. float32, float64 and
// uint32; in host memory (pinned too), CUDA memory (managed too).
DPCR_API dpcr_status dpcr_array_from_dlpack(const dpcr_dlpack *tensor, dpcr_array *array, dpcr_error *error);
// An array as a tensor: a view whose shape and strides are the array's own, so it has to live as long. For a
// DLManagedTensor the caller adds what it knows: who owns the numbers.
DPCR_API dpcr_status dpcr_array_to_dlpack(dpcr_array *array, dpcr_dlpack *tensor, dpcr_error *error);

#ifdef __cplusplus
}
#endif
#endif
