// SPDX-License-Identifier: MIT
// What linear_stream.h computes with: shapes of tiles, summaries and states, words on their way between blocks, and
// where things lie on chip.
#ifndef DPCRI_CUDA_LINEAR_STREAM_PARTS_H
#define DPCRI_CUDA_LINEAR_STREAM_PARTS_H

#include <cstring>
#include <type_traits>

#include "kern/cuda/linear.h"

namespace linear {

namespace stream {

constexpr int radix = 32, radix_log = 5;                     // nodes of a span
constexpr int bundle = 4;                                    // nodes
constexpr int most_slots = radix / bundle - 1 + bundle - 1;  // bundles and single nodes to the left in a span
constexpr int octet = 8;                                     // spans
constexpr int reach = 32;                                    // octets that a tile looks back over

template <int Items, int Teams>
struct geometry {
    static constexpr int items = Items, teams = Teams, node = Items * Teams, threads = radix * Teams;
};
// Some 90 KB of A and b, and little between runs (apart), leave room for two blocks on a multiprocessor of an H100:
// what blocks tell each other costs by the tile.
template <class T, int K>
struct usual : geometry<(K == 1 ? 176 : 56) / (int)sizeof(T), 8> {};

// Columns of a tile at most: 128 bytes of b.
template <class T, int K>
constexpr int usual_group = 128 / (K * (int)sizeof(T));
// Columns that fill a sector.
template <class T, int K>
constexpr int sector_group = (32 + K * (int)sizeof(T) - 1) / (K * (int)sizeof(T));

template <class T, int K>
struct summary {
    T x[K * K + K];  // M row-major, then v
};

// `first`, and then `then`.
template <class T, int K>
SIMT summary<T, K> compose(const summary<T, K> &first, const summary<T, K> &then) {
    constexpr int E = K * K;
    summary<T, K> y;
    SIMT_UNROLL for (int i = 0; i < K; i++) {
        SIMT_UNROLL for (int j = 0; j < K; j++) {
            y.x[i * K + j] = then.x[i * K] * first.x[j];
            SIMT_UNROLL for (int k = 1; k < K; k++) y.x[i * K + j] =
                simt::fma(then.x[i * K + k], first.x[k * K + j], y.x[i * K + j]);
        }
        y.x[E + i] = then.x[E + i];
        SIMT_UNROLL for (int k = 0; k < K; k++) y.x[E + i] = simt::fma(then.x[i * K + k], first.x[E + k], y.x[E + i]);
    }
    return y;
}

template <class T, int K>
struct state {
    T x[K];
    SIMT void step(const summary<T, K> &s) {
        T y[K];
        SIMT_UNROLL for (int i = 0; i < K; i++) {
            y[i] = s.x[K * K + i];
            SIMT_UNROLL for (int j = 0; j < K; j++) y[i] = simt::fma(s.x[i * K + j], x[j], y[i]);
        }
        SIMT_UNROLL for (int i = 0; i < K; i++) x[i] = y[i];
    }
};

// A number on its way between blocks: a word of which all bits set says that it is not there yet. The ring has no
// number to spare for that.
template <class T>
struct letter {
    typedef uint32_t word;
};
template <>
struct letter<double> {
    typedef uint64_t word;
};
template <>
struct letter<uint32_t> {
    typedef uint64_t word;
};
constexpr int absent = 0xff;  // each byte of it

template <class T>
SIMT typename letter<T>::word written(T x) {
    typename letter<T>::word w = 0;
    memcpy(&w, &x, sizeof x);
    if constexpr (std::is_floating_point<T>::value) {
        if (w == (typename letter<T>::word) - 1) w >>= 1;  // another NaN
    }
    return w;
}
template <class T>
SIMT T number_in(typename letter<T>::word w) {
    T x;
    memcpy(&x, &w, sizeof x);
    return x;
}

// Bytes of a block's shared memory, first ones of each array; records are of K^2 + K numbers.
struct layout {
    int a, b, teams, nodes, bundles, made, states, heads, slots, bytes;
};

// What the launcher knows and the kernel wants to.
template <class T>
struct arguments_of {
    problem<T> p;
    bool wide_a, wide_b, wide_z;  // whole packs may go: numbers that follow each other, aligned
    layout at;
    int64_t work;    // tiles of all groups of columns
    uint32_t ahead;  // of them, that come from memory at a time
    // [index][group of columns][column]: what spans make of a state, the states at octets' ends, and, where tiles are
    // not spans, what nodes make.
    typename letter<T>::word *spans, *ends, *nodes;
};

// Numbers of shared memory from one warp's run of all columns to its next, `each` numbers a step and column: an odd
// number of what lanes beside each other read at once, so that they meet every bank once.
template <class T>
SIMT_BOTH constexpr int apart(int items, int group, int each) {
    const int across = 16 / (int)sizeof(T), step = group * each;
    if (step % across == 0) return odd(items) * step;
    return items * step % across == 0 ? odd(items * step / across) * across : odd(items * step);
}

// A tile of one column is a span.
template <class T, int K, class S>
inline layout layout_of(int group) {
    constexpr int record = (K * K + K) * (int)sizeof(T);
    const int runs = S::threads / group;
    layout l = {};
    const auto next = [](int from, int bytes) { return (from + bytes + 15) / 16 * 16; };
    l.a = 16;
    l.b = next(l.a, runs * apart<T>(S::items, group, K * K) * (int)sizeof(T));
    l.teams = next(l.b, runs * apart<T>(S::items, group, K) * (int)sizeof(T));
    l.nodes = next(l.teams, radix * (S::teams + 1) * record);
    l.bundles = next(l.nodes, radix * record);
    l.made = next(l.bundles, radix / bundle * record);
    l.states = next(l.made, group * record);
    l.heads = next(l.states, (group > S::teams ? group : S::teams) * K * (int)sizeof(T));
    l.slots = next(l.heads, S::teams * (int)sizeof(int32_t));
    l.bytes = next(l.slots, (group == 1 ? reach + octet : most_slots * group) * record);
    return l;
}

}  // namespace stream

}  // namespace linear

#endif
