// SPDX-License-Identifier: MIT
// The way back through a narrow cell: g_{L-1} = c_{L-1}, g_l = c_l + J_{l+1}^T g_{l+1}, and J_0^T g_0 for z0. The
// linear chain of linear.h, transposed and from the last step, whose transitions are made from the states as a tile
// comes in: W and the states are read, a Jacobian is never written. docs/math/backward.md.
#ifndef DPCRI_CUDA_ADJOINT_H
#define DPCRI_CUDA_ADJOINT_H

#include "kern/cuda/cells.h"
#include "kern/cuda/linear.h"
#include "kern/cuda/shapes.h"

namespace cells {

// J of step l at the states that the cell's z holds.
template <class T, int K>
SIMT void jacobian_at(const problem<T> &p, const column<T, K> &c, int64_t l, T (&j)[K * K]) {
    T w[K * K] = {}, u[K], z[K], slopes[K];
    read_weight<T, K>(p, c, l, w);
    if (p.residual || !told_by_value(p.activation)) {
        SIMT_UNROLL for (int i = 0; i < K; i++) z[i] = l > 0 ? c.z[(l - 1) * p.z_step + i] : c.z0 ? c.z0[i] : T(0);
        inner<T, K>(w, c.x + l * p.x_step, z, u);
        SIMT_UNROLL for (int i = 0; i < K; i++) slopes[i] = slope(p.activation, u[i]);
    } else {  // the state is the activation's value
        SIMT_UNROLL for (int i = 0; i < K; i++) slopes[i] = slope_of_value(p.activation, c.z[l * p.z_step + i]);
    }
    jacobian<T, K>(p, w, slopes, j);
}

// Step m of the way back brings g from step length - m to the one before it.
template <class T, int K>
struct backward {
    static constexpr bool made = true, fused = false;
    typedef problem<T> arguments;
    SIMT static void transition(const arguments &p, int64_t index, int64_t m, T (&j)[K * K]) {
        jacobian_at<T, K>(p, column<T, K>(p, index), p.length - m, j);
    }
};

// J_0^T g_0, a thread a column.
template <class T, int K>
struct to_start {
    struct arguments {
        problem<T> p;
        const T *g;  // of step 0
        int64_t g_row;
        T *out;
        int64_t out_row;
    };
    static constexpr int most = 128;
    SIMT static void run(simt::lane &me, const arguments &a) {
        for (int64_t i = me.block() * me.threads() + me.thread(); i < a.p.columns; i += me.blocks() * me.threads()) {
            const int64_t row = i / a.p.parts, part = i % a.p.parts;
            T j[K * K];
            jacobian_at<T, K>(a.p, column<T, K>(a.p, i), 0, j);
            SIMT_UNROLL for (int r = 0; r < K; r++) {
                T sum = 0;
                SIMT_UNROLL for (int k = 0; k < K; k++) sum =
                    simt::fma(j[k * K + r], a.g[row * a.g_row + part * K + k], sum);
                a.out[row * a.out_row + part * K + r] = sum;
            }
        }
    }
};

template <class T>
linear::problem<T> chain_back(const problem<T> &p, int k, const dpcri_device_cell &a) {
    linear::problem<T> q = {};
    q.length = p.length;
    q.columns = p.columns;
    q.parts = p.parts;
    q.transposed = true;
    q.b = static_cast<const T *>(a.direct) + (p.length - 1) * a.direct_step;
    q.b_step = -a.direct_step;
    q.b_row = a.direct_row;
    q.z = static_cast<T *>(a.adjoint) + (p.length - 1) * a.adjoint_step;
    q.z_step = -a.adjoint_step;
    q.z_row = a.adjoint_row;
    (void)k;
    return q;
}

template <class T, int K, class S>
size_t backward_workspace(const problem<T> &p, const dpcri_device_cell &a) {
    linear::problem<T> q = chain_back(p, K, a);
    return linear::plan<T, K, S, linear::usual_group<T, K>()>(&q).bytes;
}

template <class T, int K, class S>
int run_backward(const problem<T> &p, const dpcri_device_cell &a, void *workspace, void *stream) {
    const int status =
        linear::run<T, K, S, linear::usual_group<T, K>(), backward<T, K>>(chain_back(p, K, a), workspace, stream, p);
    if (status != 0 || !a.z0_adjoint) return status;
    const int64_t blocks = shapes::blocks_of(shapes::over(p.columns, to_start<T, K>::most));
    return simt::launch<to_start<T, K>>(
        {blocks, to_start<T, K>::most, 0, false}, stream,
        {p, static_cast<const T *>(a.adjoint), a.adjoint_row, static_cast<T *>(a.z0_adjoint), a.z0_adjoint_row});
}

// By width of a column: 1, 2 or 4. Not inline, for `extern`.
template <class T>
struct backward_widths {
    static size_t workspace(const dpcri_device_cell &a, int k);
    static int run(const dpcri_device_cell &a, int k, void *workspace, void *stream);
};

}  // namespace cells

#endif
