// SPDX-License-Identifier: MIT
// Two-layer branches in the stacks of layers.h: v = act(W1 z + b1), z' = z + s (W2 v + b2), v `inner` wide, normalised
// before act where there is a gamma (layers_norm.h).
//
//   forward   two passes a layer: v rests in the second buffer, and z stays in the first until z' takes its place
//   slopes    v and act' of all layers at once, from the states; of normalised ones norms, as layers_norm.h's
//   back      g = W2^T s lambda, e = act' g, or of normalised ones t = act' g and its way back; then
//             lambda of the layer before = direct + (lambda + W1^T e)
//   gradients dW1 += z^T e, db1 += sums of e; dW2 += v^T s lambda, db2 += sums of s lambda: two plain launches
//
// 4 w h flops a layer and row forward, as many back and for the gradients, and 2 w h for v again.
#ifndef DPCRI_CUDA_LAYERS_TWO_H
#define DPCRI_CUDA_LAYERS_TWO_H

#include "kern/cuda/layers_norm.h"

namespace layers {

// Passes 0, 2, .. are a layer's first, 1, 3, .. its second.
template <class T>
struct two_passes {
    static constexpr bool begins = false, two = true;
    static constexpr int buffers = 1;
    SIMT static int64_t passes(const problem<T> &p) { return 2 * p.c.length; }
    SIMT static bool first(int64_t n) { return (n & 1) == 0; }
};

// ---- forward ----

template <class T, bool normed>
struct two_onward : two_passes<T> {
    typedef two_passes<T> passing;
    static constexpr int fields = 1;  // b
    static constexpr bool settles = normed;
    SIMT static const T *weight(const problem<T> &p, int64_t n) {
        return (passing::first(n) ? p.c.weight : p.weight2) + n / 2 * p.c.weight_step;
    }
    SIMT_BOTH static bool along(const problem<T> &p) { return !p.c.in_out; }
    SIMT static T begin(simt::lane &me, const problem<T> &p, int64_t row, int64_t u, T &carry) {
        return onward<T>::begin(me, p, row, u, carry);
    }
    SIMT static const T *source(const problem<T> &p, int64_t n, int64_t row, int64_t u, int f) {
        return passing::first(n) ? onward<T>::source(p, n / 2, row, u, f) : p.x2 + n / 2 * p.c.x_step + u;
    }
    SIMT static T start(const problem<T> &, int64_t, int64_t, int64_t, const T (&own)[1], bool, T) { return own[0]; }
    SIMT static T finish(simt::lane &me, const problem<T> &p, int64_t n, int64_t row, int64_t u, const T (&)[1], T sum,
                         T before, T &) {
        if (!passing::first(n)) return onward<T>::leave(me, p, n / 2, row, u, sum, before);
        return normed ? sum : cells::value(p.c.activation, sum);
    }
    SIMT_BOTH static int64_t beside(const problem<T> &p, int64_t) { return normed ? 2 * p.inner : 0; }
    SIMT static void prepare(simt::lane &me, const problem<T> &p, const simt::shared<T> &s, int with, int64_t n,
                             int64_t, int64_t) {
        if (passing::first(n)) fetch_scales(me, p, s, with, n / 2);
    }
    SIMT static void settle(simt::lane &me, const problem<T> &p, const simt::shared<T> &s, int with, int to, int,
                            int64_t n, int64_t, int64_t count) {
        if (!passing::first(n)) return;
        normalise(me, p, s, with, to, count, [&](int, int, T v) { return cells::value(p.c.activation, v); });
    }
};

// ---- back: s lambda, and then e, at rest ----

template <class T, bool normed>
struct two_homeward : two_passes<T> {
    typedef two_passes<T> passing;
    typedef homeward<T> plain;
    static constexpr bool settles = normed;
    static constexpr int fields =
        normed ? 3 : 2;  // what comes in, of the layer before; slope and gamma of a first pass
    SIMT static int64_t layer(const problem<T> &p, int64_t n) { return p.c.length - 1 - n / 2; }
    SIMT static const T *weight(const problem<T> &p, int64_t n) {
        return (passing::first(n) ? p.weight2 : p.c.weight) + layer(p, n) * p.c.weight_step;
    }
    SIMT_BOTH static bool along(const problem<T> &p) { return p.c.in_out; }
    // Lambda is g; what W2 gets of it.
    SIMT static T come_to(const problem<T> &p, int64_t l, int64_t row, int64_t u, T g) {
        return plain::come_to(p, l, row, u, g, T(1));
    }
    SIMT static T begin(simt::lane &, const problem<T> &p, int64_t row, int64_t u, T &carry) {
        const int64_t l = p.c.length - 1;
        return come_to(p, l, row, u, carry = plain::come(p, l, row, u));
    }
    SIMT static const T *source(const problem<T> &p, int64_t n, int64_t row, int64_t u, int f) {
        const int64_t l = layer(p, n);
        if (f == 0)
            return passing::first(n) || l == 0 ? nullptr : p.direct + (l - 1) * p.direct_step + row * p.direct_row + u;
        if (!passing::first(n)) return nullptr;
        return f == 1 ? plain::slope(p, l, row, u) : p.gamma + l * p.c.x_step + u;
    }
    SIMT static T start(const problem<T> &p, int64_t n, int64_t row, int64_t u, const T (&)[fields], bool kept,
                        T carry) {
        return passing::first(n) ? T(0) : plain::made(p, layer(p, n), row, u, kept, carry);
    }
    SIMT static T finish(simt::lane &, const problem<T> &p, int64_t n, int64_t row, int64_t u, const T (&own)[fields],
                         T g, T, T &carry) {
        const int64_t l = layer(p, n);
        if (!passing::first(n))
            return l > 0 ? come_to(p, l - 1, row, u, carry = g + own[0]) : plain::first(p, row, u, g);
        const T t = g * own[1];
        if constexpr (!normed) return *plain::slope(p, l, row, u) = t;
        p.come[(l * p.c.columns + row) * p.inner + u] = t;
        return t * own[fields - 1];
    }
    SIMT_BOTH static int64_t beside(const problem<T> &p, int64_t rows) { return normed ? normals_of(p, rows) : 0; }
    SIMT static void prepare(simt::lane &me, const problem<T> &p, const simt::shared<T> &s, int with, int64_t n,
                             int64_t first, int64_t count) {
        if (passing::first(n)) fetch_normals(me, p, s, with, layer(p, n), first, count);
    }
    SIMT static void settle(simt::lane &me, const problem<T> &p, const simt::shared<T> &s, int with, int to, int,
                            int64_t n, int64_t first, int64_t count) {
        if (passing::first(n)) back_through_norm(me, p, s, with, to, layer(p, n), first, count);
    }
};

}  // namespace layers

#endif
