// SPDX-License-Identifier: MIT
// The gradients of a stack of layers (layers.h) once its adjoints are there: of W and bias, sums over the rows of all
// layers at once.
#ifndef DPCRI_CUDA_LAYERS_SUMS_H
#define DPCRI_CUDA_LAYERS_SUMS_H

#include "kern/cuda/layers.h"

namespace layers {

// ---- dW_l += z_{l-1}^T e_l, dx_l += sums of e_l: pieces of the rows ----

// What goes into a W, z_{l-1} or act's values, layer by layer.
template <class T>
struct going_in {
    const T *first;  // NULL: zeros
    int64_t first_row;
    const T *rest;  // of layer 1
    int64_t step, row;
    SIMT product::matrix<T, false> of(int64_t l, const product::operand<T, false> &o) const {
        return l == 0 ? product::matrix<T, false>(first, first_row, o)
                      : product::matrix<T, false>(rest + (l - 1) * step, row, o);
    }
};

// e, times a factor.
template <class T>
struct scaled : product::matrix<T, false> {
    T times;
    SIMT scaled(const T *e, int64_t apart, T by, const product::operand<T, false> &o)
        : product::matrix<T, false>(e, apart, o), times(by) {}
    SIMT T value(T v) const { return times * v; }
};

template <class T>
struct gradients {
    struct arguments {
        problem<T> p;
        int64_t in, out;  // W's
        going_in<T> z;
        const T *e;  // times `times`
        int64_t e_step, e_row;
        T times;
        int64_t lines;                 // rows of `out` numbers that the sums take, W's first
        int64_t pieces, piece;         // and rows of each
        T *weight, *x, *gamma, *beta;  // what they are added to, or NULL
        T *parts;  // [pieces][length][lines][out], W's first, as W lies, then x's; of one piece unread
        bool quads_z, quads_e, quads_to;
    };

    // Where number (k, u) of W lies.
    SIMT static int64_t lie(const arguments &a, int64_t k, int64_t u) {
        return a.p.c.in_out ? k * a.out + u : u * a.in + k;
    }
    // Number (k, u) of layer l, k = in: x's, then gamma's and beta's.
    SIMT static void add(const arguments &a, int64_t l, int64_t k, int64_t u, T sum) {
        T *const to = k < a.in ? a.weight : k == a.in ? a.x : k == a.in + 1 ? a.gamma : a.beta;
        if (to) to[k < a.in ? l * a.p.c.weight_step + lie(a, k, u) : l * a.p.c.x_step + u] += sum;
    }
    SIMT static void give(const arguments &a, int64_t piece, int64_t l, int64_t k, int64_t u, T sum) {
        if (a.pieces == 1)
            add(a, l, k, u, sum);
        else
            a.parts[(piece * a.p.c.length + l) * a.lines * a.out + (k < a.in ? lie(a, k, u) : k * a.out + u)] = sum;
    }
};

// The columns of a tile lie side by side in W: outputs where in_out, else inputs.
template <class T, bool in_out>
struct weights_back {
    typedef gradients<T> sums;
    typedef typename sums::arguments task;
    template <class S>
    struct kernel {
        typedef task arguments;
        static constexpr int most = S::threads;

        template <class A, class B>
        SIMT static void make(simt::lane &me, const task &a, const A &of_a, const B &of_b, int64_t l, int64_t piece,
                              int64_t row, int64_t column) {
            const int64_t first = piece * a.piece, columns = a.p.c.columns;
            const int64_t end = first + a.piece < columns ? first + a.piece : columns;
            const bool with_x = (in_out ? row : column) == 0;
            constexpr int outputs = in_out ? S::columns : S::rows, apart = in_out ? S::wide : S::tall;
            T sum[S::M][S::N] = {}, whole = 0;
            product::add<T, S>(me, of_a, row, of_b, column, first, end, sum,
                               [&](const simt::shared<T> &s, int at_a, int at_b) {
                                   if (!with_x || me.thread() >= outputs) return;
                                   SIMT_UNROLL for (int k = 0; k < S::depth; k++) whole +=
                                       s.get((in_out ? at_b : at_a) + k * apart + me.thread());
                               });
            const bool adds = a.pieces == 1;
            const int64_t tall = in_out ? a.in : a.out, wide = in_out ? a.out : a.in;
            T *const to = !adds      ? a.parts + (piece * a.p.c.length + l) * a.lines * a.out
                          : a.weight ? a.weight + l * a.p.c.weight_step
                                     : nullptr;
            product::each_row<S>(me, sum, [&](int i, const T(&numbers)[S::N]) {
                const int64_t r = row + i;
                SIMT_UNROLL for (int j = 0; j < S::N && to && r < tall; j += 4) {
                    const int64_t c = column + S::column(me, j);
                    T four[4] = {};
                    if (adds) product::take<T>(to + r * wide + c, wide - c, a.quads_to, four);
                    SIMT_UNROLL for (int n = 0; n < 4; n++) four[n] = adds ? four[n] + numbers[j + n] : numbers[j + n];
                    product::give(to + r * wide + c, wide - c, a.quads_to, four);
                }
            });
            const int64_t u = (in_out ? column : row) + me.thread();
            if (with_x && me.thread() < outputs && u < a.out) sums::give(a, piece, l, a.in, u, whole);
        }
        SIMT static void run(simt::lane &me, const arguments &a) {
            const int64_t rows = in_out ? a.in : a.out, columns = in_out ? a.out : a.in, steps = a.p.c.columns;
            const int64_t wide = gates::tiles(columns, S::columns), each = wide * gates::tiles(rows, S::rows);
            for (int64_t tile = me.block(); tile < a.p.c.length * a.pieces * each; tile += me.blocks()) {
                const int64_t l = tile / (each * a.pieces), piece = tile / each % a.pieces;
                const int64_t row = tile % each / wide * S::rows, column = tile % wide * S::columns;
                const product::matrix<T, false> z = a.z.of(l, {steps, a.in, a.quads_z});
                const scaled<T> e(a.e + l * a.e_step, a.e_row, a.times, {steps, a.out, a.quads_e});
                if constexpr (in_out)
                    make(me, a, z, e, l, piece, row, column);
                else
                    make(me, a, e, z, l, piece, row, column);
            }
        }
    };
};

// The pieces' sums, in order, onto what is there: a thread a number.
template <class T>
struct fold {
    static constexpr int most = gates::threads;
    typedef typename gradients<T>::arguments arguments;
    SIMT static void run(simt::lane &me, const arguments &a) {
        const int64_t layer = a.lines * a.out, count = a.p.c.length * layer, of_weight = a.in * a.out;
        for (int64_t n = me.block() * most + me.thread(); n < count; n += me.blocks() * most) {
            const int64_t at = n % layer;
            const bool turned = at < of_weight && !a.p.c.in_out;  // W's lie as W does
            const T sum = gates::sum_of_pieces(a.parts, a.pieces, count, n);
            gradients<T>::add(a, n / layer, turned ? at % a.in : at / a.out, turned ? at / a.in : at % a.out, sum);
        }
    }
};

}  // namespace layers

#endif
