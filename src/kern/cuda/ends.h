// SPDX-License-Identifier: MIT
// A network's encoder and head on a device, and the cross-entropy behind them.
//
//   onward     y = x W + b: tiles of 16 rows x 64 outputs
//   homeward   dx = dy W^T: tiles of 16 rows x 64 inputs
//   gradients  dW += x^T dy, db += sums of dy over the rows: tiles of 16 inputs x 64 outputs, all rows
//              where W lies as [out][in], one is the other's: y = x W^T + b by homeward, dx = dy W by onward, dW +=
//              dy^T x
//   entropy    loss, dlogits and whether it is right, a thread a row; then a warp adds the rows up
//
// Every sum runs in model/ends.c's and train/loss.c's order, begins where theirs do and is of their operations: the
// bits are those of a CPU that has fma, as far as exp and log are, but for the sign of a 0: tiles that are not full add
// 0 * 0, and a sum of nothing but -0 becomes 0. So the rows of a gradient are not cut into pieces:
// 2 rows in out flops each, by as many blocks as W has tiles.
#ifndef DPCRI_CUDA_ENDS_H
#define DPCRI_CUDA_ENDS_H

#include "kern/cuda/gates_back.h"

namespace ends {

constexpr int Q = 2, across = Q * gates::units_of_tile;

template <class T>
struct problem {
    int64_t rows, in, out;  // W [in][out]
    const T *weight, *bias;
    const T *x, *y;  // [rows][in], [rows][out]
    T *to;           // onward [rows][out], homeward [rows][in]
    T *weight_gradient, *bias_gradient;
};

// What a sum of output u begins with.
template <class T>
SIMT T start_of(const problem<T> &p, int64_t u, int64_t count) {
    return p.bias && u < count ? p.bias[u] : T(0);
}

// Rows of an array of `width`, 16 from `first` on.
template <class T>
struct rows_of {
    const T *from;
    int64_t width, first, end;
    SIMT const T *at(int i) const { return first + i < end ? from + (first + i) * width : nullptr; }
};

template <class T>
SIMT void write(simt::lane &me, const T (&sum)[gates::mine][Q], T *to, int64_t width, int64_t first, int64_t rows,
                int64_t u0) {
    SIMT_UNROLL for (int i = 0; i < gates::mine; i++) SIMT_UNROLL for (int q = 0; q < Q; q++) {
        const int64_t row = first + me.warp() * gates::mine + i, u = u0 + q * gates::units_of_tile + me.in_warp();
        if (row < rows && u < width) to[row * width + u] = sum[i][q];
    }
}

template <class T>
struct onward {
    typedef problem<T> arguments;
    static constexpr int most = gates::threads;
    SIMT static void run(simt::lane &me, const arguments &p) {
        const int64_t wide = gates::tiles(p.out, across), tall = gates::tiles(p.rows, gates::items_of_tile);
        for (int64_t tile = me.block(); tile < wide * tall; tile += me.blocks()) {
            const int64_t first = tile / wide * gates::items_of_tile, u0 = tile % wide * across;
            T sum[gates::mine][Q];
            SIMT_UNROLL for (int q = 0; q < Q; q++) {
                const int64_t u = u0 + q * gates::units_of_tile + me.in_warp();
                SIMT_UNROLL for (int i = 0; i < gates::mine; i++) sum[i][q] = start_of(p, u, p.out);
            }
            gates::multiply_down<T, Q>(me, rows_of<T>{p.x, p.in, first, p.rows}, p.weight + u0, p.out, p.in, p.out - u0,
                                       sum);
            write(me, sum, p.to, p.out, first, p.rows, u0);
        }
    }
};

template <class T>
struct homeward {
    typedef problem<T> arguments;
    static constexpr int most = gates::threads;
    SIMT static void run(simt::lane &me, const arguments &p) {
        const int64_t wide = gates::tiles(p.in, across), tall = gates::tiles(p.rows, gates::items_of_tile);
        for (int64_t tile = me.block(); tile < wide * tall; tile += me.blocks()) {
            const int64_t first = tile / wide * gates::items_of_tile, k0 = tile % wide * across;
            T sum[gates::mine][Q];
            SIMT_UNROLL for (int q = 0; q < Q; q++) {
                const int64_t u = k0 + q * gates::units_of_tile + me.in_warp();
                SIMT_UNROLL for (int i = 0; i < gates::mine; i++) sum[i][q] = start_of(p, u, p.in);
            }
            gates::multiply<T, Q>(me, rows_of<T>{p.y, p.out, first, p.rows}, p.weight + k0 * p.out, p.out,
                                  gates::units_of_tile, p.in - k0, gates::units_of_tile, sum);
            write(me, sum, p.to, p.in, first, p.rows, k0);
        }
    }
};

// db is one warp's, of one row of W's tiles: across, or, `down`, where W lies as [out][in] and x and y have changed
// places, by a lane for each of the tile's items.
template <class T, bool down>
struct gradients {
    typedef problem<T> arguments;
    static constexpr int most = gates::threads;
    SIMT static void run(simt::lane &me, const arguments &p) {
        constexpr int depth = gates::depth, items = gates::items_of_tile;
        const int64_t wide = gates::tiles(p.out, across), tall = gates::tiles(p.in, items);
        const simt::shared<T> s = me.template array<T>(0, items * depth + depth * gates::stride<Q>);
        const int base = items * depth;
        for (int64_t tile = me.block(); tile < wide * tall; tile += me.blocks()) {
            const int64_t k0 = tile / wide * items, u0 = tile % wide * across;
            T sum[gates::mine][Q] = {}, whole[Q] = {};
            const bool sums = !down && k0 == 0 && me.warp() == 0 && p.bias_gradient;
            const int64_t item = k0 + me.in_warp();
            const bool item_sums =
                down && u0 == 0 && me.warp() == 0 && p.bias_gradient && me.in_warp() < items && item < p.in;
            T of_item = item_sums ? p.bias_gradient[item] : T(0);
            SIMT_UNROLL for (int q = 0; q < Q; q++) {
                const int64_t u = u0 + q * gates::units_of_tile + me.in_warp();
                if (sums && u < p.out) whole[q] = p.bias_gradient[u];
                SIMT_UNROLL for (int i = 0; i < gates::mine; i++) {
                    const int64_t k = k0 + me.warp() * gates::mine + i;
                    if (k < p.in && u < p.out && p.weight_gradient) sum[i][q] = p.weight_gradient[k * p.out + u];
                }
            }
            for (int64_t r0 = 0; r0 < p.rows; r0 += depth) {
                me.barrier();  // the slices before have been read
                for (int n = me.thread(); n < items * depth; n += gates::threads) {
                    const int64_t k = k0 + n % items, r = r0 + n / items;
                    s.set(n % items * depth + n / items, k < p.in && r < p.rows ? p.x[r * p.in + k] : T(0));
                }
                for (int n = me.thread(); n < across * depth; n += gates::threads) {
                    const int64_t u = u0 + n % across, r = r0 + n / across;
                    s.set(base + n / across * gates::stride<Q> + n % across,
                          u < p.out && r < p.rows ? p.y[r * p.out + u] : T(0));
                }
                me.barrier();
                gates::add_slice<T, Q>(me, s, sum);
                SIMT_ROLLED for (int r = 0; sums && r < depth; r++) SIMT_UNROLL for (int q = 0; q < Q; q++) whole[q] +=
                    s.get(base + r * gates::stride<Q> + q * gates::units_of_tile + me.in_warp());
                SIMT_ROLLED for (int r = 0; item_sums && r < depth; r++) of_item += s.get(me.in_warp() * depth + r);
            }
            if (item_sums) p.bias_gradient[item] = of_item;
            if (p.weight_gradient) write(me, sum, p.weight_gradient, p.out, k0, p.in, u0);
            SIMT_UNROLL for (int q = 0; q < Q; q++) {
                const int64_t u = u0 + q * gates::units_of_tile + me.in_warp();
                if (sums && u < p.out) p.bias_gradient[u] = whole[q];
            }
        }
    }
};

// ---- loss ----

template <class T>
struct entropy {
    typedef dpcri_device_loss arguments;
    static constexpr int most = 128;
    // The first largest one; NaN is never the largest.
    SIMT static int64_t largest(const T *y, int64_t classes) {
        int64_t best = 0;
        SIMT_ROLLED for (int64_t j = 1; j < classes; j++) if (y[j] > y[best] || y[best] != y[best]) best = j;
        return best;
    }
    SIMT static void run(simt::lane &me, const arguments &a) {
        for (int64_t b = me.block() * most + me.thread(); b < a.rows; b += me.blocks() * most) {
            const T *y = static_cast<const T *>(a.logits) + b * a.classes;
            T *dy = static_cast<T *>(a.dlogits);
            const int64_t best = largest(y, a.classes), label = a.labels[b];
            const double max = (double)y[best];
            double sum = 0;
            SIMT_ROLLED for (int64_t j = 0; j < a.classes; j++) sum += simt::exp((double)y[j] - max);
            a.parts[2 * b] = (max - (double)y[label]) + simt::log(sum);
            a.parts[2 * b + 1] = best == label && sum == sum ? 1 : 0;
            SIMT_ROLLED for (int64_t j = 0; dy && j < a.classes; j++) {
                const double probability = simt::exp((double)y[j] - max) / sum;
                dy[b * a.classes + j] = (T)((probability - (j == label ? 1 : 0)) / (double)a.rows);
            }
        }
    }
};

// A warp reads 32 rows at a time; each of its lanes adds them up in order.
struct whole {
    typedef dpcri_device_loss arguments;
    static constexpr int most = simt::warp_size;
    SIMT static void run(simt::lane &me, const arguments &a) {
        const int64_t block = a.block > 0 ? a.block : a.rows;
        double loss = 0, right = 0, of_block = 0;
        for (int64_t b = 0; b < a.rows; b += simt::warp_size) {
            const int64_t row = b + me.in_warp();
            const double own = row < a.rows ? a.parts[2 * row] : 0, is = row < a.rows ? a.parts[2 * row + 1] : 0;
            for (int j = 0; j < simt::warp_size; j++) {
                const double l = me.shuffle(own, j), r = me.shuffle(is, j);
                if (b + j >= a.rows) continue;
                of_block += l, right += r;
                if ((b + j + 1) % block != 0 && b + j + 1 != a.rows) continue;
                loss += of_block;
                of_block = 0;
            }
        }
        if (me.in_warp() != 0) return;
        a.told[0] = loss / (double)a.rows;
        a.told[1] = right;
    }
};

}  // namespace ends

#endif
