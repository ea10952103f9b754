// SPDX-License-Identifier: MIT
// The selective scan (include/deeppcr/selective.h) of one slab: neighbouring channels of one batch entry, `width` of
// them in the lanes of a vector, in a block. The length goes by tiles of DPCRI_SELECTIVE_TILE steps and in each all
// blocks, so that what all channels of a slab share is read once. A channel's bits depend on nothing beside it.
#ifndef DPCRI_SELECTIVE_H
#define DPCRI_SELECTIVE_H

#include "rt/rt.h"

enum { DPCRI_SELECTIVE_TILE = 16 };

// Numbers of a slab: [channels][steps], [channels] or [channels][states]; strides in numbers. data NULL: there are
// none, or they are not wanted.
typedef struct dpcri_selective_array {
    void *data;
    int64_t lane, step;  // of a channel; of a step, or of a state of a, h0 and last
} dpcri_selective_array;

// b, c and their gradients, [groups][states][steps]: `every` neighbouring channels share a group, the first of them
// `ahead` channels before the slab, or with 0 all of the slab do. A step of 0: constant in time; of a gradient the sum
// over the steps.
typedef struct dpcri_selective_shared {
    void *data;
    int64_t group, state, step;
    int64_t every, ahead;
} dpcri_selective_shared;

typedef struct dpcri_selective_run {
    int64_t channels, width, states, length;  // width: channels of a block, at most VN
    bool softplus;
    bool by_lane;                                          // b or c has groups within the slab
    dpcri_selective_array u, delta, z, a, skip, bias, h0;  // a.step 0: shared by all states, one e^x a step
    dpcri_selective_shared b, c;
    void *scratch;  // forward_bytes or adjoint_bytes
    // [blocks][tiles][states][VN]: the states before every tile. Forward writes them, or NULL; the adjoint reads them.
    void *kept;
    // Forward: y of data NULL makes the kept states alone.
    dpcri_selective_array y, last;
    // The adjoint. ga [states], gskip and gbias by channels; gb and gc are sums over groups' channels, each within a
    // block or, with `every` 0 as b's and c's then is, over the slab. They are written but where steps are summed, at
    // the end.
    dpcri_selective_array gy, glast, gu, gdelta, gz, ga, gskip, gbias, gh0;
    dpcri_selective_shared gb, gc;
} dpcri_selective_run;

typedef struct dpcri_selective_kernels {
    int64_t lanes;  // VN
    size_t (*forward_bytes)(int64_t blocks, int64_t states, bool by_lane);
    size_t (*adjoint_bytes)(int64_t blocks, int64_t states, bool by_lane);
    // begin, then forward over tiles one after another up to the last, then end; the adjoint from the last one down.
    void (*forward_begin)(const dpcri_selective_run *run);
    void (*forward)(const dpcri_selective_run *run, int64_t first_tile, int64_t end_tile);
    void (*forward_end)(const dpcri_selective_run *run);
    void (*adjoint_begin)(const dpcri_selective_run *run);
    void (*adjoint)(const dpcri_selective_run *run, int64_t first_tile, int64_t end_tile);
    void (*adjoint_end)(const dpcri_selective_run *run);
} dpcri_selective_kernels;

// As dpcri_para_kernels_get and _at.
const dpcri_selective_kernels *dpcri_selective_kernels_get(dpcr_dtype dtype);
const dpcri_selective_kernels *dpcri_selective_kernels_at(dpcri_isa level, dpcr_dtype dtype);

#endif
