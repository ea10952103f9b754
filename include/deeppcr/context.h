// SPDX-License-Identifier: MIT
// The context: threads, allocator, log and cancel functions. It holds no numerical state; results never depend on it.
#ifndef DEEPPCR_CONTEXT_H
#define DEEPPCR_CONTEXT_H

#include <stddef.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dpcr_context dpcr_context;

typedef struct dpcr_context_options {
    size_t size;  // sizeof(dpcr_context_options) of the caller
    int threads;  // worker threads, the caller's included; 0: as many as this process may run on
    // Every allocation of the library goes through `allocate` (alignment is a power of two; NULL means refused) and
    // `release`. Both NULL: aligned_alloc and free. Third parties' own allocations (thread pool, zlib, jansson) do not.
    void *(*allocate)(void *user, size_t bytes, size_t alignment);
    void (*release)(void *user, void *memory);
    void *allocator_user;
    // Called between sweeps and between training steps; non-zero asks to stop (DPCR_ERROR_CANCELLED). May be NULL.
    int (*cancel)(void *user);
    void *cancel_user;
} dpcr_context_options;

// Creates a context; `options` NULL means all defaults. The thread pool starts at first use and is rebuilt after fork
// (fork only while no other thread is inside a call on the context: its lock would stay taken in the child).
// Several threads may share a context: executes that need the pool take turns.
DPCR_API dpcr_status dpcr_context_create(const dpcr_context_options *options, dpcr_context **context,
                                         dpcr_error *error);

// NULL is allowed. Everything created from the context must have been destroyed before.
DPCR_API void dpcr_context_destroy(dpcr_context *context);

DPCR_API int dpcr_context_threads(const dpcr_context *context);

// The instruction set level that the kernels use: "portable", "avx2" or "avx512". Chosen at run time from the CPU; the
// environment variable DEEPPCR_ISA may force a lower one.
DPCR_API const char *dpcr_isa_name(void);

#ifdef __cplusplus
}
#endif
#endif
