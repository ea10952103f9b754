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

// What the library asks of a thread that calls it: this much stack, callbacks' own apart (the context's threads have
// the system's default), and floating-point exceptions that do not trap, as by default: it raises their flags, whatever
// the result. No exception of C++ and no longjmp may leave a callback.
enum { DPCR_STACK_BYTES = 512 * 1024 };

typedef struct dpcr_context_options {
    size_t size;  // sizeof(dpcr_context_options) of the caller
    int threads;  // worker threads, the caller's included, at most 4096; 0: as many as this process may run on
    // Every allocation of the library goes through `allocate` (alignment is a power of two; NULL means refused) and
    // `release`. Both NULL: aligned_alloc and free, 4 MB and more in large pages where the system gives
    // some to those who ask. Third parties' own allocations (thread pool, zlib, jansson) do not.
    void *(*allocate)(void *user, size_t bytes, size_t alignment);
    void (*release)(void *user, void *memory);
    void *allocator_user;
    // Called between sweeps, training steps and batches that are evaluated, and some times a second within long ones,
    // long linear chains and long filters, on the thread that called, whatever was told of a step; non-zero asks to
    // stop (DPCR_ERROR_CANCELLED). No callback is interrupted: the first call of advance or adjoint takes one step
    // where nothing is told of it, the next ones as many as take a twentieth of a second. May be NULL.
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

// How many threads it computes on, the caller's included.
DPCR_API int dpcr_context_threads(const dpcr_context *context);

// A cancel function that wants a lock held, such as an interpreter's: Python's are PyGILState_Ensure,
// PyOS_InterruptOccurred and PyGILState_Release, called so without a line of Python's own. None of them NULL.
typedef struct dpcr_locked_cancel {
    int (*lock)(void);
    int (*cancel)(void);
    void (*unlock)(int locked);  // gets what `lock` returned
} dpcr_locked_cancel;
// For `cancel` above; `cancel_user` is the address of a dpcr_locked_cancel of the caller's that lives as long as the
// context. Returns what its `cancel` said.
DPCR_API int dpcr_cancel_locked(void *locked_cancel);

// What a machine reaches: all that the cost models know of it.
typedef struct dpcr_machine {
    size_t size;                // sizeof(dpcr_machine) of the caller
    double threads;             // that work side by side, 1 or more
    double flops;               // a second and thread, of small products
    double latency;             // seconds of one dependent multiply-add
    double region;              // seconds of one empty parallel region; 0.85e-6 or more of several threads, unless set
    double bandwidth;           // bytes a second, read or written, that all threads together reach far from the caches
    double cache_bytes[3];      // L1, L2 (of a core) and L3 (of all that share it); 0: unknown
    double cache_bandwidth[3];  // bytes a second that one thread copies within each
    double wake;                // seconds until threads that sleep between calls are all at work; 0: one thread
    double thread_bandwidth;    // of `bandwidth`, what one thread reaches alone; 0: unknown
} dpcr_machine;

// The rates that plans of this context go by: those that were set, loaded with the wisdom, or else measured now (below
// a second, 64 MiB for a moment; once a context). From inside a parallel task they are measured without threads and not
// kept.
DPCR_API dpcr_status dpcr_context_machine(dpcr_context *context, dpcr_machine *machine, dpcr_error *error);
// Plans made from now on are for a machine with these rates, which need not be this one; a field that is 0 is as
// measured. NULL: as measured again. The threads that run are the context's all the same. Planning MEASURE and WISDOM,
// which go by what is timed here, are DPCR_ERROR_UNSUPPORTED for such a machine.
DPCR_API dpcr_status dpcr_context_set_machine(dpcr_context *context, const dpcr_machine *machine, dpcr_error *error);

// The processor's own name, with family and model where the name leaves several generations apart: "AMD EPYC (family 25
// model 17)". The library's memory; printable ASCII.
DPCR_API const char *dpcr_processor_name(void);

// The instruction set level that the kernels use: "portable", "avx2" or "avx512". Chosen at run time from the CPU; the
// environment variable DEEPPCR_ISA may force a lower one. On 64-bit ARM "portable" is NEON's, with fma.
DPCR_API const char *dpcr_isa_name(void);
// Level i, from 0, the least, of those that this build and this processor have; NULL past the last.
DPCR_API const char *dpcr_isa_level_name(int i);

// Of the thread that calls: from now on operands and results that are too small for a normal number (below 1.2e-38 in
// float, 2.2e-308 in double) become 0, or, `flush` 0, are computed with, as is the default of C. Returns what it was, 1
// or 0; -1, and nothing is done, on processors other than x86-64 and 64-bit ARM. The library itself never chooses: it
// computes in the mode of the thread that calls, on all its threads; threads that are started later inherit the mode of
// who starts them. States and gradients that die away end among such numbers and stay there (half of the least one
// rounds to itself), and many processors stop for each vector that holds one: on an Intel Xeon the loop back through
// 256 layers of width 64 that forget, batch 64, takes 11.3 ms, and 1.6 with them flushed (bench planner --only 'L 256 w
// 64 B 64' --denormals keep).
DPCR_API int dpcr_flush_denormals(int flush);

#ifdef __cplusplus
}
#endif
#endif
