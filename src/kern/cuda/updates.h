// SPDX-License-Identifier: MIT
// What training does to whole vectors on a device: an optimiser's update, gradients scaled by their norm, and those of
// tied steps summed.
//
// Formulas, and the order of every operation, are those of kern/train_updates.inc, train/clip.c and model/model.c,
// without fma, so that the bits are the host's: squares are summed in double, in the blocks and parts of kern/device.h.
// One pass over p, g, m, v; over g one pass, and two where it is scaled; ties read g once and write it once.
#ifndef DPCRI_CUDA_UPDATES_H
#define DPCRI_CUDA_UPDATES_H

#include "kern/cuda/launch.h"
#include "kern/cuda/simt.h"

namespace updates {

constexpr int threads = 256, parts = DPCRI_CLIP_PARTS;
constexpr int64_t most_blocks = DPCRI_CLIP_BLOCKS, least_block = DPCRI_CLIP_LEAST;

template <class T>
struct sgd {
    typedef dpcri_device_update arguments;
    static constexpr int most = threads;
    SIMT static void run(simt::lane &me, const arguments &a) {
        T *p = static_cast<T *>(a.parameters), *g = static_cast<T *>(a.gradients), *m = static_cast<T *>(a.first);
        const T rate = (T)a.rate, keep = (T)a.momentum, decay = (T)a.decay;
        for (int64_t i = me.block() * threads + me.thread(); i < a.count; i += me.blocks() * threads) {
            const T x = p[i];
            T d = g[i] + decay * x;
            if (m) m[i] = d = keep * m[i] + d;
            p[i] = x - rate * d;
            if (a.clear) g[i] = 0;
        }
    }
};

template <class T>
struct adam {
    typedef dpcri_device_update arguments;
    static constexpr int most = threads;
    SIMT static void run(simt::lane &me, const arguments &a) {
        T *p = static_cast<T *>(a.parameters), *g = static_cast<T *>(a.gradients);
        T *m = static_cast<T *>(a.first), *v = static_cast<T *>(a.second);
        const T keep = (T)a.keep, decay = (T)a.decay, pull = (T)a.pull, beta2 = (T)a.beta2, rest2 = (T)a.rest2;
        const T step = (T)a.step, root = (T)a.root, epsilon = (T)a.epsilon;
        for (int64_t i = me.block() * threads + me.thread(); i < a.count; i += me.blocks() * threads) {
            const T x = keep * p[i], d = g[i] + decay * x, old = m[i];
            const T mean = (a.from_gradient ? d : old) + pull * (d - old);
            const T square = beta2 * v[i] + rest2 * d * d;
            m[i] = mean;
            v[i] = square;
            p[i] = x - step * mean / (simt::sqrt(square) * root + epsilon);
            if (a.clear) g[i] = 0;
        }
    }
};

// ---- norms: a warp a block of the gradients, a lane a part ----

SIMT_BOTH int64_t block_of(int64_t count) {
    const int64_t n = (count + most_blocks - 1) / most_blocks;
    return n < least_block ? least_block : n;
}

// Blocks of the gradients, and of both vectors.
SIMT_BOTH int64_t blocks_of(int64_t count) {
    const int64_t block = block_of(count);
    return (count + block - 1) / block;
}
SIMT_BOTH int64_t blocks_of(const dpcri_device_clip &c) { return blocks_of(c.count) + blocks_of(c.more_count); }

template <class T>
struct squares {
    typedef dpcri_device_clip arguments;
    static constexpr int most = simt::warp_size;
    SIMT static void run(simt::lane &me, const arguments &a) {
        const int64_t before = blocks_of(a.count);
        const bool more = me.block() >= before;
        const T *g = static_cast<const T *>(more ? a.more : a.gradients);
        const int64_t count = more ? a.more_count : a.count, block = block_of(count);
        const int64_t first = (me.block() - (more ? before : 0)) * block;
        const int64_t end = first + block < count ? first + block : count;
        double part = 0, sum = 0;
        for (int64_t i = first + me.in_warp(); me.in_warp() < parts && i < end; i += parts)
            part += (double)g[i] * (double)g[i];
        for (int j = 0; j < parts; j++) sum += me.shuffle(part, j);
        if (me.in_warp() == 0) a.sums[1 + me.block()] = sum;
    }
};

// Every block adds the sums up by itself; the first one tells the norm.
template <class T>
struct scale {
    typedef dpcri_device_clip arguments;
    static constexpr int most = threads;
    SIMT static void run(simt::lane &me, const arguments &a) {
        T *g = static_cast<T *>(a.gradients), *more = static_cast<T *>(a.more);
        const simt::shared<double> s = me.template array<double>(0, 1);
        if (me.thread() == 0) {
            const int64_t blocks = blocks_of(a);
            double sum = 0;
            for (int64_t b = 0; b < blocks; b++) sum += a.sums[1 + b];
            const double norm = simt::sqrt(sum), guard = 1e-6;  // PyTorch's
            if (me.block() == 0) a.sums[0] = norm;
            s.set(0, a.most <= 1.7976931348623157e308 ? a.most / (norm + guard) : 1);
        }
        me.barrier();
        const double factor = s.get(0);
        if (factor >= 1) return;  // one that is NaN goes on, and shows in all gradients
        const T by = (T)factor;
        for (int64_t i = me.block() * threads + me.thread(); i < a.count + a.more_count; i += me.blocks() * threads)
            (i < a.count ? g[i] : more[i - a.count]) *= by;
    }
};

// ---- ties: a thread a number of a set ----

template <class T>
struct ties {
    typedef dpcri_device_tie arguments;
    static constexpr int most = 64;   // a set has few numbers where steps are narrow
    static constexpr int ahead = 16;  // numbers that are on their way together
    SIMT static void run(simt::lane &me, const arguments &a) {
        const int64_t stride = a.tie * a.each;
        for (int64_t n = me.block() * most + me.thread(); n < stride; n += me.blocks() * most) {
            T *const g = static_cast<T *>(a.gradients) + n;
            const int64_t others = (a.steps - 1 - n / a.each) / a.tie;  // of the set, behind its first
            T sum = g[0];
            int64_t k = 1;
            for (; k + ahead <= others + 1; k += ahead) {
                T next[ahead];
                SIMT_UNROLL for (int i = 0; i < ahead; i++) next[i] = g[(k + i) * stride];
                SIMT_UNROLL for (int i = 0; i < ahead; i++) sum += next[i];
            }
            for (; k <= others; k++) sum += g[k * stride];
            for (k = 0; k <= others; k++) g[k * stride] = sum;
        }
    }
};

}  // namespace updates

#endif
