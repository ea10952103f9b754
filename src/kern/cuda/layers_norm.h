// SPDX-License-Identifier: MIT
// Layers of layers.h that are normalised: v = n gamma + beta, n = (u - mean) r, r = 1 / sqrt(variance + 1e-5), z' from
// act(v).
//
//   forward   u of all units stays where the next state will be; then a warp a row takes mean and variance, and v, act
//             and the state follow: a barrier a layer more
//   norms     n, r and act'(v) of all layers, a warp a row, once slopes has made their u: a plain launch
//   back      t = gamma scale act'(v) lambda at first; then a warp a row:  e = r (t - mean(t) - n mean(n t))
//   scales    dgamma_l += sums of n scale act'(v) lambda over the rows, dbeta_l += the same without n: all layers at
//             once, a plain launch
//
// What a layer settles with, gamma and beta or the rows' n and r, comes with its first tile. A row's sums run over a
// lane's units in order, then over the lanes as a tree, so its bits are its own; the host's are in another order.
#ifndef DPCRI_CUDA_LAYERS_NORM_H
#define DPCRI_CUDA_LAYERS_NORM_H

#include "kern/cuda/layers_sums.h"

namespace layers {

// The sum of all lanes' numbers, in all of them.
template <class T>
SIMT T over_lanes(simt::lane &me, T x) {
    SIMT_UNROLL for (int n = simt::warp_size / 2; n > 0; n /= 2) x += me.shuffle_xor(x, n);
    return x;
}

// Of a row's u, from(u) for u < w: its mean and r.
template <class T>
struct measure {
    T mean, reciprocal;
    template <class From>
    SIMT measure(simt::lane &me, int w, const From &from) {
        const T inverse = T(1) / (T)w;
        T sum = 0, square = 0;
        for (int u = me.in_warp(); u < w; u += simt::warp_size) sum += from(u);
        mean = over_lanes(me, sum) * inverse;
        for (int u = me.in_warp(); u < w; u += simt::warp_size) {
            const T d = from(u) - mean;
            square = simt::fma(d, d, square);
        }
        reciprocal = T(1) / simt::sqrt(over_lanes(me, square) * inverse + T(1e-5));
    }
    SIMT T normal(T u) const { return reciprocal * (u - mean); }
};

// ---- forward ----

// Asks for a layer's gamma and beta.
template <class T>
SIMT void fetch_scales(simt::lane &me, const problem<T> &p, const simt::shared<T> &s, int with, int64_t l) {
    for (int u = me.thread(); u < p.inner; u += me.threads()) {
        me.copy_async(s, with + u, p.gamma + l * p.c.x_step + u);
        me.copy_async(s, with + (int)p.inner + u, p.beta + l * p.c.x_step + u);
    }
}

// A warp a row: of what lies at `to`, u, becomes make(row, u, v).
template <class T, class Make>
SIMT void normalise(simt::lane &me, const problem<T> &p, const simt::shared<T> &s, int with, int to, int64_t count,
                    const Make &make) {
    const int w = (int)p.inner, warps = me.threads() / simt::warp_size;
    for (int row = me.warp(); row < count; row += warps) {
        const int own = to + row * w;
        const measure<T> m(me, w, [&](int u) { return s.get(own + u); });
        for (int u = me.in_warp(); u < w; u += simt::warp_size)
            s.set(own + u, make(row, u, simt::fma(m.normal(s.get(own + u)), s.get(with + u), s.get(with + w + u))));
    }
}

template <class T>
struct normed_onward : onward<T> {
    static constexpr bool settles = true;
    SIMT_BOTH static int64_t beside(const problem<T> &p, int64_t) { return 2 * p.w; }
    SIMT static T finish(simt::lane &, const problem<T> &, int64_t, int64_t, int64_t, const T (&)[1], T sum, T, T &) {
        return sum;
    }
    SIMT static void prepare(simt::lane &me, const problem<T> &p, const simt::shared<T> &s, int with, int64_t n,
                             int64_t, int64_t) {
        fetch_scales(me, p, s, with, n);
    }
    SIMT static void settle(simt::lane &me, const problem<T> &p, const simt::shared<T> &s, int with, int to, int from,
                            int64_t n, int64_t first, int64_t count) {
        normalise(me, p, s, with, to, count, [&](int row, int u, T v) {
            return onward<T>::state(me, p, n, first + row, u, v, s.get(from + row * (int)p.w + u));
        });
    }
};

// ---- n in the place of u, r, and act'(v) ----

template <class T>
struct norms {
    typedef problem<T> arguments;
    static constexpr int most = gates::threads;
    SIMT static void run(simt::lane &me, const arguments &p) {
        const int64_t w = p.inner, all = p.c.length * p.c.columns, warps = most / simt::warp_size;
        for (int64_t row = me.block() * warps + me.warp(); row < all; row += me.blocks() * warps) {
            T *const own = p.normal + row * w;
            const int64_t at = row / p.c.columns * p.c.x_step;
            const measure<T> m(me, (int)w, [&](int u) { return own[u]; });
            for (int64_t u = me.in_warp(); u < w; u += simt::warp_size) {
                const T n = m.normal(own[u]), v = simt::fma(n, p.gamma[at + u], p.beta[at + u]);
                own[u] = n;
                if (!p.two) {
                    p.e[row * w + u] = cells::slope(p.c.activation, v);
                    continue;
                }
                const T y = cells::value(p.c.activation, v);
                p.value[row * w + u] = y;
                p.e[row * w + u] = cells::slope(p.c.activation, v, y);
            }
            if (me.in_warp() == 0) p.reciprocal[row] = m.reciprocal;
        }
    }
};

// ---- back ----

// Asks for the rows' n of layer l, and the r of each behind it: beside numbers in all.
template <class T>
SIMT_BOTH int64_t normals_of(const problem<T> &p, int64_t rows) {
    return rows * (p.inner + 1);
}
template <class T>
SIMT void fetch_normals(simt::lane &me, const problem<T> &p, const simt::shared<T> &s, int with, int64_t l,
                        int64_t first, int64_t count) {
    const int64_t w = p.inner, from = l * p.c.columns + first;
    for (int64_t i = me.thread(); i < count * w; i += me.threads())
        me.copy_async(s, with + (int)(i / w * (w + 1) + i % w), p.normal + from * w + i);
    for (int64_t i = me.thread(); i < count; i += me.threads())
        me.copy_async(s, with + (int)(i * (w + 1) + w), p.reciprocal + from + i);
}

// A warp a row: of what lies at `to`, gamma t, becomes e, which is stored in the slopes' place.
template <class T>
SIMT void back_through_norm(simt::lane &me, const problem<T> &p, const simt::shared<T> &s, int with, int to, int64_t l,
                            int64_t first, int64_t count) {
    const int w = (int)p.inner, warps = me.threads() / simt::warp_size;
    const T inverse = T(1) / (T)w;
    for (int row = me.warp(); row < count; row += warps) {
        const int t = to + row * w, normal = with + row * (w + 1);
        T sum = 0, shared = 0;
        for (int u = me.in_warp(); u < w; u += simt::warp_size) {
            sum += s.get(t + u);
            shared = simt::fma(s.get(t + u), s.get(normal + u), shared);
        }
        const T mean = over_lanes(me, sum) * inverse, along = over_lanes(me, shared) * inverse;
        const T reciprocal = s.get(normal + w);
        for (int u = me.in_warp(); u < w; u += simt::warp_size) {
            const T e = reciprocal * simt::fma(-along, s.get(normal + u), s.get(t + u) - mean);
            s.set(t + u, e);
            if (holds(p, u)) *homeward<T>::slope(p, l, first + row, u) = e;
        }
    }
}

template <class T>
struct normed_homeward : homeward<T> {
    typedef homeward<T> plain;
    static constexpr bool settles = true, begins = true;
    static constexpr int fields = 3;  // gamma of the layer before
    SIMT static const T *gamma(const problem<T> &p, int64_t l, int64_t u) { return p.gamma + l * p.c.x_step + u; }
    SIMT static T begin(simt::lane &, const problem<T> &p, int64_t row, int64_t u, T &carry) {
        const int64_t l = p.c.length - 1;
        carry = plain::come(p, l, row, u);
        return plain::come_to(p, l, row, u, carry, *plain::slope(p, l, row, u)) * *gamma(p, l, u);
    }
    SIMT static const T *source(const problem<T> &p, int64_t n, int64_t row, int64_t u, int f) {
        if (f < 2) return plain::source(p, n, row, u, f);
        return plain::layer(p, n) > 0 ? gamma(p, plain::layer(p, n) - 1, u) : nullptr;
    }
    SIMT static T start(const problem<T> &p, int64_t n, int64_t row, int64_t u, const T (&)[fields], bool kept,
                        T carry) {
        return plain::made(p, plain::layer(p, n), row, u, kept, carry);
    }
    SIMT static T finish(simt::lane &, const problem<T> &p, int64_t n, int64_t row, int64_t u, const T (&own)[fields],
                         T g, T, T &carry) {
        const int64_t l = plain::layer(p, n);
        if (l == 0) return plain::first(p, row, u, g);
        return plain::come_to(p, l - 1, row, u, carry = g + own[0], own[1]) * own[2];
    }
    SIMT_BOTH static int64_t beside(const problem<T> &p, int64_t rows) { return normals_of(p, rows); }
    SIMT static void prepare(simt::lane &me, const problem<T> &p, const simt::shared<T> &s, int with, int64_t n,
                             int64_t first, int64_t count) {
        const int64_t l = plain::layer(p, n) - 1;
        if (l >= 0) fetch_normals(me, p, s, with, l, first, count);
    }
    SIMT static void settle(simt::lane &me, const problem<T> &p, const simt::shared<T> &s, int with, int to, int,
                            int64_t n, int64_t first, int64_t count) {
        const int64_t l = plain::layer(p, n) - 1;
        if (l >= 0) back_through_norm(me, p, s, with, to, l, first, count);
    }
};

// ---- dgamma_l += sums of n t, dbeta_l += sums of t, t = scale act'(v) lambda: a block 32 units of a layer and a piece
// of the rows, which its warps take by turns ----

template <class T>
struct scales {
    typedef typename gradients<T>::arguments arguments;
    static constexpr int most = gates::threads, warps = most / simt::warp_size;
    static constexpr int64_t shared_bytes() { return 2 * most * (int64_t)sizeof(T); }
    SIMT static T remade(const problem<T> &p, int64_t l, int64_t row, int64_t u, T n, int64_t at) {
        const T slope = cells::slope(p.c.activation, simt::fma(n, p.gamma[at], p.beta[at]));
        return turned(p, slope, p.adjoint[l * p.adjoint_step + row * p.adjoint_row + u]);
    }
    SIMT static void run(simt::lane &me, const arguments &a) {
        const problem<T> &p = a.p;
        const int64_t w = p.inner, wide = gates::tiles(w, simt::warp_size);
        const simt::shared<T> s = me.template array<T>(0, 2 * most);
        for (int64_t tile = me.block(); tile < p.c.length * a.pieces * wide; tile += me.blocks()) {
            const int64_t l = tile / (wide * a.pieces), piece = tile / wide % a.pieces, first = piece * a.piece;
            const int64_t end = first + a.piece < p.c.columns ? first + a.piece : p.c.columns;
            const int64_t u = tile % wide * simt::warp_size + me.in_warp(), at = l * p.c.x_step + u;
            T gamma = 0, beta = 0;
            for (int64_t row = first + me.warp(); row < end && u < w; row += warps) {
                const T n = p.normal[(l * p.c.columns + row) * w + u];
                const T t = p.come ? p.come[(l * p.c.columns + row) * w + u] : remade(p, l, row, u, n, at);
                gamma = simt::fma(t, n, gamma);
                beta += t;
            }
            me.barrier();  // the tile before has been read
            s.set(me.thread(), gamma), s.set(most + me.thread(), beta);
            me.barrier();
            if (me.warp() != 0 || u >= w) continue;
            for (int i = 1; i < warps; i++) {
                gamma += s.get(i * simt::warp_size + me.in_warp());
                beta += s.get(most + i * simt::warp_size + me.in_warp());
            }
            gradients<T>::give(a, piece, l, a.in + 1, u, gamma);
            gradients<T>::give(a, piece, l, a.in + 2, u, beta);
        }
    }
};

}  // namespace layers

#endif
