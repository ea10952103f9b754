// SPDX-License-Identifier: MIT
// Scheme chunked by fused kernels, in windows of as many chunks as a vector has lanes (kern/chunked.h).
#ifndef DPCRI_CHAIN_WINDOWS_H
#define DPCRI_CHAIN_WINDOWS_H

#include "chain/flow.h"

// Whether fused kernels serve this flow's arrays, in chunks of `chunk` steps.
bool dpcri_windows_serve(const dpcri_flow *flow, int64_t chunk);

// Takes what any flow of this form needs, whether its arrays are served or not.
void dpcri_windows_carve(const dpcri_flow *flow, int64_t chunk, dpcri_arena *arena);

// Steps ahead of which kern/squares.h shall ask for this flow's matrices: 1 from the caches, more from memory.
int64_t dpcri_windows_ahead(const dpcri_flow *flow);

// Whether one thread takes a row's windows: n steps of so little work that other threads would not pay.
bool dpcri_windows_alone(int64_t n, int64_t values, int64_t w, int threads);

// Returns the first step that the loop had to finish, a product having left the finite numbers or chunks not joining
// (joins.h); n: none.
int64_t dpcri_windows_run(const dpcri_flow *flow, int64_t chunk, dpcri_arena *arena);

#endif
