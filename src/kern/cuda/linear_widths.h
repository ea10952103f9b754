// SPDX-License-Identifier: MIT
// The kernels of linear_stream.h and linear.h by width, from a number that is known when the program runs. Each range
// of widths is compiled in a file of its own.
#ifndef DPCRI_CUDA_LINEAR_WIDTHS_H
#define DPCRI_CUDA_LINEAR_WIDTHS_H

#include "kern/cuda/linear.h"
#include "kern/cuda/linear_stream_run.h"

namespace linear {

// Widths that linear_stream.h serves. Not 2 in double: what nvcc 13.0 makes of that for sm_90, of one column, reads
// shared memory at a wrong address (lanes of a warp that go apart share a register for its base), so that an H100
// stopped.
template <class T, int K>
constexpr bool streams = K == 1 || (K == 2 && sizeof(T) == 4);

// Functions outside the class are not inline, so that `extern` below keeps other files from compiling the kernels too.
template <class T, int First, int Last>
struct widths {
    // First <= k <= Last
    static sizes plan(int k, problem<T> *p);
    static int run(int k, problem<T> p, void *workspace, void *stream);
};

template <class T, int First, int Last>
sizes widths<T, First, Last>::plan(int k, problem<T> *p) {
    if constexpr (First < Last) {
        if (k > First) return widths<T, First + 1, Last>::plan(k, p);
    }
    if constexpr (streams<T, First>) {
        typedef stream::usual<T, First> S;
        constexpr int group = stream::usual_group<T, First>;
        if (stream::has_room<T, First, S, group>()) return stream::plan<T, First, S, group>(p);
    }
    return linear::plan<T, First, usual<T, First>, usual_group<T, First>()>(p);
}

template <class T, int First, int Last>
int widths<T, First, Last>::run(int k, problem<T> p, void *workspace, void *stream) {
    if constexpr (First < Last) {
        if (k > First) return widths<T, First + 1, Last>::run(k, p, workspace, stream);
    }
    if constexpr (streams<T, First>) {
        typedef stream::usual<T, First> S;
        constexpr int group = stream::usual_group<T, First>;
        if (stream::has_room<T, First, S, group>()) return stream::run<T, First, S, group>(p, workspace, stream);
    }
    return linear::run<T, First, usual<T, First>, usual_group<T, First>()>(p, workspace, stream);
}

}  // namespace linear

// What one file compiles (linkage empty), and others only name (extern).
#define DPCRI_LINEAR_NARROW(linkage, T) linkage template struct linear::widths<T, 1, 8>
#define DPCRI_LINEAR_WIDE(linkage, T) linkage template struct linear::widths<T, 9, 16>

#endif
