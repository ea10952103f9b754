// SPDX-License-Identifier: MIT
// Stacks of layers of few rows, whose units several blocks share (layers.h, layers_norm.h, layers_two.h), forward and
// back, in one cooperative launch.
//
// A group is up to 8 rows, a warp each. Of each pass every block makes strips of 32 units, reading no other rows of W
// than theirs, and leaves them for the others; then all blocks meet, and each takes all units of its rows on chip. The
// first tile of the next pass is on its way meanwhile. So W is read once a group, by as many multiprocessors as it has
// strips, and a pass costs, beside its bytes, one grid barrier and w multiply-adds one after another.
//
// A unit's sum is that of layers.h, term by term, and where units of a row meet every block does the whole of it: the
// bits are those of one block, for any number of them.
#ifndef DPCRI_CUDA_LAYERS_SHARED_H
#define DPCRI_CUDA_LAYERS_SHARED_H

#include "kern/cuda/layers_two.h"

namespace layers {

constexpr int shared_rows = most_threads / simt::warp_size, shared_tile_bytes = 64 << 10, least_depth = 16;

template <class T, class Way>
struct shared_stack {
    typedef problem<T> arguments;
    static constexpr int most = most_threads;
    SIMT static void run(simt::lane &me, const arguments &a) {
        problem<T> p = a;
        p.sharer = (int)(me.block() % p.sharers);
        stack<T, 1, Way, true>::run_group(me, p, me.block() / p.sharers);
    }
};

}  // namespace layers

#endif
