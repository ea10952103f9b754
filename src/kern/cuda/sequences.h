// SPDX-License-Identifier: MIT
// Batches of a sequence model on a device, and what its head reads.
//
//   gather   labelled sequences of an epoch's order, step by step: x[t][r][:] = data[order[first + r]][t][:]
//   look     a text as streams side by side: symbols, those that follow, and x = the symbols' rows of the embedding
//   collect  what goes back to the embedding: a warp a row of it and 32 columns, which reads all indices 32 at a time
//            and adds, in their order, those that name its row
//   read     v = the last states of the directions side by side, or the mean over a sequence's steps; and back
//
// Every sum runs in the order of model/embedding.c and train/sequence_pass.c and is of their operations: the host's
// bits. A collecting warp adds one vector after another, and the commonest symbol's is the longest row of them: B T
// times its share of dependent loads from the second cache.
#ifndef DPCRI_CUDA_SEQUENCES_H
#define DPCRI_CUDA_SEQUENCES_H

#include "kern/cuda/launch.h"
#include "kern/cuda/simt.h"

namespace sequences {

constexpr int threads = 256, warps = threads / simt::warp_size;

SIMT int64_t steps_of(const int64_t *lengths, int64_t row, int64_t length) {
    const int64_t n = lengths ? lengths[row] : length;
    return n < 0 ? 0 : n < length ? n : length;
}

template <class T>
struct gather {
    typedef dpcri_device_sequences arguments;
    static constexpr int most = threads;
    SIMT static void run(simt::lane &me, const arguments &a) {
        T *x = static_cast<T *>(a.x);
        const int64_t count = a.length * a.rows * a.features, step = me.blocks() * threads;
        for (int64_t n = me.block() * threads + me.thread(); n < count; n += step) {
            const int64_t i = n % a.features, row = n / a.features % a.rows, t = n / a.features / a.rows;
            const int64_t asked = a.first + row, at = asked < a.count ? asked : a.count - 1;
            const int64_t sequence = a.order ? a.order[at] : at;
            x[n] = (T)a.data[(sequence * a.length + t) * a.features + i];
            if (i != 0 || t != 0) continue;
            a.y[row] = a.labels[sequence];
            for (int64_t k = 0; a.steps && k <= last_part(a); k++)
                a.steps[k * a.rows + row] = steps_in(a, k, a.lengths[sequence]);
        }
    }
    SIMT static int64_t last_part(const arguments &a) { return a.parts > 0 ? a.parts - 1 : 0; }
    // Of `steps` those in part k.
    SIMT static int64_t steps_in(const arguments &a, int64_t k, int64_t steps) {
        const int64_t end = a.length - (last_part(a) - k) * a.part, begin = k > 0 ? end - a.part : 0;
        return steps < begin ? 0 : (steps < end ? steps : end) - begin;
    }
};

template <class T>
struct look {
    typedef dpcri_device_embedding arguments;
    static constexpr int most = threads;
    SIMT static void run(simt::lane &me, const arguments &a) {
        const T *weight = static_cast<const T *>(a.weight);
        T *x = static_cast<T *>(a.x);
        const int64_t count = a.length * a.rows * a.width, step = me.blocks() * threads;
        for (int64_t n = me.block() * threads + me.thread(); n < count; n += step) {
            const int64_t place = n / a.width, u = n % a.width;
            const uint8_t *from = a.text + a.first + place % a.rows * a.stream + place / a.rows;
            x[n] = weight[from[0] * a.width + u];
            if (u != 0) continue;
            a.indices[place] = from[0];
            a.labels[place] = from[1];
        }
    }
};

template <class T>
struct collect {
    typedef dpcri_device_embedding arguments;
    static constexpr int most = threads;
    SIMT static void run(simt::lane &me, const arguments &a) {
        const T *dx = static_cast<const T *>(a.x);
        T *gradient = static_cast<T *>(a.weight_gradient);
        const int64_t wide = (a.width + simt::warp_size - 1) / simt::warp_size, places = a.length * a.rows;
        for (int64_t task = me.block() * warps + me.warp(); task < a.symbols * wide; task += me.blocks() * warps) {
            const int symbol = (int)(task / wide);
            const int64_t u = task % wide * simt::warp_size + me.in_warp();
            T sum = u < a.width ? gradient[symbol * a.width + u] : T(0);
            for (int64_t first = 0; first < places; first += simt::warp_size) {
                const int own = first + me.in_warp() < places ? a.indices[first + me.in_warp()] : -1;
                if (!me.any(own == symbol)) continue;
                for (int j = 0; j < simt::warp_size; j++) {
                    const int named = me.shuffle(own, j);
                    if (named == symbol && u < a.width) sum += dx[(first + j) * a.width + u];
                }
            }
            if (u < a.width) gradient[symbol * a.width + u] = sum;
        }
    }
};

// A thread a number of v; with the mean back, one of the states.
template <class T>
struct read {
    typedef dpcri_device_readout arguments;
    static constexpr int most = threads;
    SIMT static T share(const arguments &a, int64_t row) {
        const int64_t steps = steps_of(a.lengths, row, a.length);
        return (T)(1.0 / (double)(steps > 0 ? steps : 1));
    }
    SIMT static void last(const arguments &a, int64_t n) {
        const int64_t row = n / a.width, own = a.width / a.parts, part = n % a.width / own;
        T *state = static_cast<T *>(a.states) + (part * a.rows + row) * own + n % own, *v = static_cast<T *>(a.v) + n;
        if (a.backward)
            *state = *v;
        else
            *v = *state;
    }
    SIMT static void mean(const arguments &a, int64_t n) {
        const int64_t row = n / a.width, steps = steps_of(a.lengths, row, a.length);
        const T *states = static_cast<const T *>(a.states), by = share(a, row);
        T sum = 0;
        for (int64_t t = 0; t < steps; t++) sum += by * states[t * a.rows * a.width + n];
        static_cast<T *>(a.v)[n] = sum;
    }
    SIMT static void spread(const arguments &a, int64_t n) {
        const int64_t of_step = n % (a.rows * a.width), row = of_step / a.width, t = n / (a.rows * a.width);
        const bool step = t < steps_of(a.lengths, row, a.length);
        static_cast<T *>(a.states)[n] = step ? share(a, row) * static_cast<const T *>(a.v)[of_step] : T(0);
    }
    SIMT static void run(simt::lane &me, const arguments &a) {
        const int64_t count = (a.mean && a.backward ? a.length : 1) * a.rows * a.width;
        for (int64_t n = me.block() * threads + me.thread(); n < count; n += me.blocks() * threads) {
            if (!a.mean)
                last(a, n);
            else if (a.backward)
                spread(a, n);
            else
                mean(a, n);
        }
    }
};

}  // namespace sequences

#endif
