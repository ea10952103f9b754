// SPDX-License-Identifier: MIT
#ifndef DPCRI_CHAIN_AUTO_H
#define DPCRI_CHAIN_AUTO_H

#include <stdbool.h>

#include "deeppcr/chain.h"

// The scheme for a shape on so many threads, and why. `chunk` is the chunk that `chunked` would take.
dpcr_scheme dpcri_chain_auto(const dpcr_chain_shape *shape, int64_t chunk, int threads, char *sentence, size_t bytes);

// Whether `chunked`, chosen for its fused kernels, is sooner than the loop where the arrays' strides keep them out;
// shared: one transition for all steps.
bool dpcri_chain_spans_pay(const dpcr_chain_shape *shape, bool shared, int64_t chunk, int threads);

// Seconds by the scheme of `options`, whose fields are set; AUTO: 0.
double dpcri_chain_seconds(const dpcr_chain_shape *shape, const dpcr_chain_options *options, int threads);

// Seconds that overlapped chunks of a dense chain of one sequence would gain over what was chosen, taking `run_ups`
// times its steps; 0 where that is too little to be sure of.
double dpcri_chain_overlap_gain(const dpcr_chain_shape *shape, dpcr_scheme chosen, int64_t chunk, int threads,
                                double run_ups);

#endif
