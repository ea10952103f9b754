// SPDX-License-Identifier: MIT
// A layer and direction of RNN, GRU or LSTM over few items (gates.h), whose W_hh stays on chip, spread over the blocks
// of the one cooperative launch. Not yet run on a device.
//
// A block has all gates of some units, 32 to 128 columns, and their rows of W_hh for the whole launch. A step: every
// block takes the items' h on chip, a warp some columns of an item; then a thread a unit does what follows the sums,
// and all blocks meet. What a unit needs of its own, g and c, is asked for before the sums. So a step reads H numbers
// an item from the second cache and costs one grid barrier and H multiply-adds one after another.
//
// Sums are those of gates.h, term by term: the bits are the same.
#ifndef DPCRI_CUDA_GATES_KEPT_H
#define DPCRI_CUDA_GATES_KEPT_H

#include "kern/cuda/gates.h"

namespace gates {

constexpr int most_kept_items = 16;

// All blocks of a cooperative launch meet; one alone needs no more than its own barrier.
SIMT void meet(simt::lane &me) {
    if (me.blocks() > 1)
        me.grid_barrier();
    else
        me.barrier();
}

template <class T, int G>
struct kept : columns<T, G> {
    typedef columns<T, G> plain;
    typedef problem<T> arguments;
    typedef chunks<T, kept<T, G>> all;

    // Warps along the columns: 1, 2 or 4; the others take further items.
    SIMT_BOTH static int units_of(int warps) { return warps * simt::warp_size / G; }
    SIMT_BOTH static int stride_of(int units) { return units * G | 1; }
    SIMT_BOTH static int64_t shared_numbers(const problem<T> &p, int units) {
        const int64_t at_once = threads / simt::warp_size;
        return p.hidden * stride_of(units) + at_once * (p.hidden + units * G);
    }

    struct block {
        simt::shared<T> s;
        int units, columns, stride, warps, at_once, states, sums;
        int64_t u0;
    };
    SIMT static block block_of(simt::lane &me, const problem<T> &p) {
        const int units = p.kept_units, columns = units * G, H = (int)p.hidden;
        const int warps = (columns + simt::warp_size - 1) / simt::warp_size;
        const int at_once = threads / simt::warp_size / warps, states = H * stride_of(units);
        return {me.template array<T>(0, (int)shared_numbers(p, units)),
                units,
                columns,
                stride_of(units),
                warps,
                at_once,
                states,
                states + at_once * H,
                me.block() * units};
    }

    SIMT static void begin(simt::lane &me, const problem<T> &p) {
        plain::begin(me, p);
        const block b = block_of(me, p);
        const int64_t H = p.hidden;
        for (int column = me.warp(); column < b.columns; column += threads / simt::warp_size) {
            const int64_t u = b.u0 + column % b.units;
            if (u >= H) continue;
            const T *const from = p.w_hh + (column / b.units * H + u) * H;
            for (int k = me.in_warp(); k < H; k += simt::warp_size) me.copy_async(b.s, k * b.stride + column, from + k);
        }
        me.copy_wait();
    }

    // One step of items first .. first + at_once - 1; states go from one buffer to the other, those that rest too.
    SIMT static void step(simt::lane &me, const problem<T> &p, const block &b, const stretch &s, int64_t first,
                          int64_t at, int turn) {
        const int64_t H = p.hidden, end = s.first + s.count;
        // Who sums: an item's column. And who goes on: an item's unit.
        const int group = me.warp() / b.warps, column = me.warp() % b.warps * simt::warp_size + me.in_warp();
        const int64_t summed = b.u0 + column % b.units, row_of_w = column / b.units * H + summed;
        const bool sums =
            group < b.at_once && column < b.columns && summed < H && all::step_of(me, p, first + group, end, at) >= 0;
        T sum = sums && p.b_hh ? p.b_hh[row_of_w] : T(0);
        const int which = me.thread() / b.units;
        const int64_t item = first + which, u = b.u0 + me.thread() % b.units;
        const bool goes = which < b.at_once && item < end && u < H;
        const int64_t m = goes ? all::step_of(me, p, item, end, at) : -1;
        typename plain::own own = {};
        if (m >= 0) own = plain::ready(me, p, item, m, u);
        me.barrier();  // the items before have been read
        for (int i = 0; i < b.at_once && first + i < end; i++) {
            const bool fresh = plain::fresh(p, first + i, at);
            for (int k = me.thread(); k < H; k += threads)
                b.s.set(b.states + i * (int)H + k, fresh ? T(0) : plain::load(me, p, first + i, k, turn));
        }
        me.barrier();
        if (sums) {
            sum = multiply_alone(b.s, column, b.stride, b.states + group * (int)H, (int)H, sum);
            b.s.set(b.sums + group * b.columns + column, sum);
        }
        me.barrier();
        if (!goes) return;
        if (m < 0) {
            plain::store(me, p, item, u, 1 - turn, plain::load(me, p, item, u, turn));
            return;
        }
        T of_item[G];
        SIMT_UNROLL for (int q = 0; q < G; q++) of_item[q] =
            b.s.get(b.sums + which * b.columns + q * b.units + me.thread() % b.units);
        T cell = 0;
        const T next = plain::finish(me, p, item, u, own, of_item, b.s.get(b.states + which * (int)H + (int)u), cell);
        plain::store(me, p, item, u, 1 - turn, next);
        plain::write(p, s, item, m, u, next, cell);
    }

    SIMT static void run(simt::lane &me, const problem<T> &p, const stretch &s, int &turn) {
        const block b = block_of(me, p);
        for (int64_t n = 0; n < s.steps; n++) {
            for (int64_t i = 0; i < s.count; i += b.at_once) step(me, p, b, s, s.first + i, s.from + n, turn);
            meet(me);
            turn = 1 - turn;
        }
    }
};

}  // namespace gates

#endif
