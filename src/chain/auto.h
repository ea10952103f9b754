// SPDX-License-Identifier: MIT
#ifndef DPCRI_CHAIN_AUTO_H
#define DPCRI_CHAIN_AUTO_H

#include <stdbool.h>

#include "deeppcr/chain.h"
#include "deeppcr/context.h"

// Where a chain is to run: on this machine, or on one that is described (dpcr_context_set_machine).
typedef struct dpcri_chain_place {
    int threads;               // that work side by side there
    int have;                  // the context's own
    bool described;            // else the rates are not set
    dpcr_machine here, there;  // this machine's rates, and those of the one that is described
} dpcri_chain_place;

// Of the context's plans. This machine is measured where another is described.
dpcri_chain_place dpcri_chain_place_of(dpcr_context *context);

// The scheme for a shape, and why. `chunk` is the chunk that `chunked` would take.
dpcr_scheme dpcri_chain_auto(const dpcr_chain_shape *shape, int64_t chunk, const dpcri_chain_place *place,
                             char *sentence, size_t bytes);

// Whether `chunked`, chosen for its fused kernels, is sooner than the loop where the arrays' strides keep them out;
// shared: one transition for all steps.
bool dpcri_chain_spans_pay(const dpcr_chain_shape *shape, bool shared, int64_t chunk, int threads);

// Seconds by the scheme of `options`, whose fields are set; AUTO: 0. The context may know this machine's memory.
double dpcri_chain_seconds(dpcr_context *context, const dpcr_chain_shape *shape, const dpcr_chain_options *options,
                           const dpcri_chain_place *place);

// Seconds that overlapped chunks of a dense chain of one sequence would gain over what was chosen, taking `run_ups`
// times its steps; 0 where that is too little to be sure of.
double dpcri_chain_overlap_gain(const dpcr_chain_shape *shape, dpcr_scheme chosen, int64_t chunk,
                                const dpcri_chain_place *place, double run_ups);

#endif
