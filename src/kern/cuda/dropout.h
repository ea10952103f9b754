// SPDX-License-Identifier: MIT
// Dropout between the layers of a recurrent network, forward and, over gradients, back, with the host's masks
// (model/recurrent_dropout.c).
//
//   y[t][b][i] = x[t][b][i] / (1 - p), or 0 where word i of the stream (t, b) is below p
//
// A thread four numbers of a row, which are one block of the generator: ten rounds of two multiplications. No mask is
// stored; who goes back makes it again. Numbers are read and written once.
#ifndef DPCRI_CUDA_DROPOUT_H
#define DPCRI_CUDA_DROPOUT_H

#include "kern/cuda/launch.h"
#include "kern/cuda/random.h"

namespace dropout {

constexpr int threads = 256, each = 4;

SIMT_BOTH int64_t pieces(const dpcri_device_drop &a) { return (a.width + each - 1) / each; }

template <class T>
struct drop {
    typedef dpcri_device_drop arguments;
    static constexpr int most = threads;
    SIMT static void run(simt::lane &me, const arguments &a) {
        const T *from = static_cast<const T *>(a.from), scale = (T)a.scale;
        T *to = static_cast<T *>(a.to);
        const int64_t row_of = pieces(a), count = a.length * a.rows * row_of, step = me.blocks() * threads;
        for (int64_t n = me.block() * threads + me.thread(); n < count; n += step) {
            const int64_t row = n / row_of, piece = n % row_of;
            const uint64_t t = (uint64_t)(row / a.rows), b = (uint64_t)(row % a.rows);
            uint32_t x[4];
            generator::words(a.seed, t << 32 | b, (uint64_t)piece, x);
            SIMT_UNROLL for (int j = 0; j < each; j++) {
                const int64_t i = piece * each + j, at = row * a.width + i;
                if (i < a.width) to[at] = x[j] < a.below || a.scale == 0 ? T(0) : from[at] * scale;
            }
        }
    }
};

}  // namespace dropout

#endif
