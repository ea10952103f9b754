// SPDX-License-Identifier: MIT
// Calls of compiled programs, run again without their host language: a foreign function of XLA (what jax.ffi
// registers), for hosts such as the Python package.
//
// XLA calls a foreign function with one structure, the frame: arrays in, arrays out, and an attribute, here text that
// says what to call. dpcr_xla_handler gives every frame that it does not know to its host, which does the work, and may
// tell what to run for frames that look like this one: the same text, and arrays of the same dtypes and shapes. Those
// it runs itself from then on: writes where the arrays' numbers lie to the places told, and takes the steps.
//
//   frame -> known, with a call that nobody runs now?  -- no --> host(frame, NULL, DPCR_OK)
//         -> places, steps                             -- a step fails --> host(frame, call, status)
#ifndef DEEPPCR_XLA_H
#define DEEPPCR_XLA_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

// What a step does with its pointers, `given` in the order named; p -> *p: the pointer that lies there.
typedef enum dpcr_xla_what {
    DPCR_XLA_CHAIN = 1,        // dpcr_chain_execute: plan, A, b, z0, z, workspace of `count` bytes
    DPCR_XLA_CHAIN_VJP,        // dpcr_chain_vjp: plan, A, z0, z, g, dA, db, dz0, workspace of `count` bytes
    DPCR_XLA_PARAMETERS,       // dpcr_recurrent_set_parameters: network, tensors
    DPCR_XLA_FORWARD,          // dpcr_recurrent_execute: plan, pass, tape, workspace of `count` bytes, reports
    DPCR_XLA_BACKWARD,         // dpcr_recurrent_zero_gradients of network, dpcr_recurrent_backward, and
                               // dpcr_recurrent_get_gradients: network, tensors, plan, pass, gradients, tape, workspace
                               // of `count` bytes
    DPCR_XLA_SECTIONS,         // where numbers [count][6] differ from kept: *filter = dpcr_filter_create_sos, the one
                               // before destroyed: context, numbers, kept, filter. a0 has to be 1
    DPCR_XLA_COEFFICIENTS,     // likewise dpcr_filter_create_ba; numbers are b [count], then a [more]
    DPCR_XLA_FILTER,           // dpcr_filter_execute: filter -> *filter, x, zi, y, zf
    DPCR_XLA_FILTER_GRADIENT,  // dpcr_filter_gradient: filter -> *filter, x, zi, gy, gzf, gb, ga, gx, gzi; gb and ga,
                               // of `count` numbers each, begin at 0
    DPCR_XLA_OF_SECTIONS,      // gb and ga [count][3] side by side, [count][6]: gb, ga, out
    DPCR_XLA_OF_COEFFICIENTS,  // gradients of b [count] and a [more], undivided, of those divided: gb, ga, numbers, out
    DPCR_XLA_ZERO,             // `count` bytes: to
    DPCR_XLA_COPY,             // `count` bytes: from, to
    DPCR_XLA_WIDEN,            // `count` floats to doubles: from, to
    DPCR_XLA_NARROW,           // `count` doubles to floats: from, to
    DPCR_XLA_APART             // where *p is `with`, copies `count` bytes of it to `to`, and *p is that: p, with, to
} dpcr_xla_what;

typedef struct dpcr_xla_step {
    dpcr_xla_what what;
    int64_t count, more;
    void *given[9];
} dpcr_xla_step;

// Array `array` of the frame, its arguments and then its results: the address of its numbers goes to *at.
typedef struct dpcr_xla_place {
    int64_t array;
    void **at;
} dpcr_xla_place;

// What to run. It serves one frame at a time. All that it points to, and itself, is the host's, and stays until
// dpcr_xla_forget and then dpcr_xla_busy is 0.
typedef struct dpcr_xla_call {
    size_t size;  // sizeof(dpcr_xla_call) of the caller
    int64_t steps, places;
    const dpcr_xla_step *step;
    const dpcr_xla_place *place;
    dpcr_error error;            // of the step that failed
    struct dpcr_xla_call *next;  // the library's, as all that follows
    int busy;
} dpcr_xla_call;

// What a host says of a frame; all 0 when it is asked.
typedef struct dpcr_xla_answer {
    void *error;   // what XLA's handlers return: NULL, or an error that XLA made
    int finished;  // 0: something tore the host away, such as an exception of its language before its first line. XLA
                   // gets the error "cancelled", and it counts as interrupted
    int interrupted;  // 1: `interrupt` is called when this frame needs the host no more
} dpcr_xla_answer;

// `failed` is NULL where the frame is not known.
typedef void dpcr_xla_host(void *frame, dpcr_xla_call *failed, dpcr_status status, dpcr_xla_answer *answer);

// An XLA_FFI_Handler. Several threads may be in it at once.
DPCR_API void *dpcr_xla_handler(void *frame);
// Who is asked from now on. NULL, as at the beginning: all is over. Every frame gets XLA's error "cancelled", also one
// by which XLA asks about the handler, so the first host comes before the handler is registered. And this returns when
// no call of the handler runs any more, so not from within one: it waits as long as the longest solve, and no signal
// ends that. So ends a host whose language ends before XLA's threads do.
//
// `interrupt`, which may be NULL, has the host's language raise an interruption, such as Ctrl-C, where it next runs:
// the handler calls it as the last thing that it does, for what a host raises itself cannot pass through XLA.
// `interrupted`, which may be NULL, says whether one waits that nothing has taken, and takes it: a host that the
// handler is about to ask is not asked then, where its language would tear it away, and counts as interrupted. `user`
// is the argument of `interrupted`.
DPCR_API void dpcr_xla_set_host(dpcr_xla_host *host, void (*interrupt)(void), int (*interrupted)(void *user),
                                void *user);

// Runs a call over a frame's arrays; not one that is kept. 1 in place of a status: coefficients of no filter, which
// those who made the call may refuse in their own words.
DPCR_API int dpcr_xla_run(const void *frame, dpcr_xla_call *call);
// Likewise over arrays at these addresses: several calls of the library for one of the host's, where such are dear.
DPCR_API int dpcr_xla_run_at(void *const *addresses, dpcr_xla_call *call);
// Keeps a call for frames like this one, besides those that are kept for them: 1. 0 where it never does: frames of
// which text, dtypes and shapes take more than 4 KB, or whose numbers do not lie at multiples of their size, and calls
// of a smaller `size`. -1 where there is no room until dpcr_xla_forget: more than 256 kinds of frames, no memory.
DPCR_API int dpcr_xla_keep(const void *frame, dpcr_xla_call *call);
// Forgets all calls. None begins after this; one may be running.
DPCR_API void dpcr_xla_forget(void);
// 1 while a call runs.
DPCR_API int dpcr_xla_busy(const dpcr_xla_call *call);

#ifdef __cplusplus
}
#endif
#endif
