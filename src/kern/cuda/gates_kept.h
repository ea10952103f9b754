// SPDX-License-Identifier: MIT
// A layer and direction of RNN, GRU or LSTM over few items (gates.h), whose W_hh stays on chip, spread over the blocks
// of the one cooperative launch.
//
// A block has all gates of some units, about 32 to 128 columns, and their rows of W_hh for the whole launch. A step:
// every block takes all items' h on chip, a warp some columns of an item or four; then a thread a unit does what
// follows the sums, and all blocks meet. What a unit needs of its own is there before: c stays on chip through a
// stretch, and g is asked for a step ahead. So a step is a grid barrier, one way to the second cache and H
// multiply-adds one after another.
//
// Sums are those of gates.h, term by term: the bits are the same.
#ifndef DPCRI_CUDA_GATES_KEPT_H
#define DPCRI_CUDA_GATES_KEPT_H

#include "kern/cuda/gates_alone.h"

namespace gates {

constexpr int most_kept_items = 16;

// What items there are in a stretch, on chip: by item its sequence, the first step of its chunk, and the steps that its
// sequence has, 0 where it rests.
struct roll {
    simt::shared<int64_t> s;
    SIMT_BOTH static int64_t bytes(int64_t items) { return 3 * items * (int64_t)sizeof(int64_t); }
    SIMT int64_t row(int i) const { return s.get(3 * i); }
    // The step that it has at step `at` of its chunk, or -1.
    SIMT int64_t step(int i, int64_t at) const {
        const int64_t m = s.get(3 * i + 1) + at;
        return m >= 0 && m < s.get(3 * i + 2) ? m : -1;
    }
    // The same of a chain that runs from the sequence's last step.
    SIMT int64_t step_back(int i, int64_t at) const {
        const int64_t k = step(i, at);
        return k < 0 ? -1 : s.get(3 * i + 2) - 1 - k;
    }
};
template <class T>
SIMT roll roll_of(simt::lane &me, const chunked<T> &p, const stretch &s, int64_t byte) {
    const roll r = {me.template array<int64_t>(byte, 3 * (int)(p.chunks * p.rows))};
    const int i = me.thread();
    me.barrier();  // what was there before has been read
    if (i < s.count) {
        const int64_t item = s.first + i, row = item % p.rows;
        r.s.set(3 * i, row);
        r.s.set(3 * i + 1, item / p.rows * p.chunk);
        r.s.set(3 * i + 2, me.peer_load(p.open + item) ? length_of<T>(p, row) : 0);
    }
    me.barrier();
    return r;
}

// Rows of `wide` numbers, which other blocks wrote before the last grid barrier, `stride` apart on chip from `to` on:
// `count` numbers in all.
template <class T>
SIMT void take_in(simt::lane &me, const simt::shared<T> &s, int to, int stride, const T *from, int wide, int count) {
    constexpr int together = 8;
    const int gap = stride - wide;
    for (int n0 = me.thread(); n0 < count; n0 += together * threads) {
        T number[together];
        SIMT_UNROLL for (int i = 0; i < together; i++) number[i] =
            n0 + i * threads < count ? me.peer_load(from + n0 + i * threads) : T(0);
        SIMT_UNROLL for (int i = 0; i < together; i++) if (n0 + i * threads < count)
            s.set(to + n0 + i * threads + (gap > 0 ? (n0 + i * threads) / wide * gap : 0), number[i]);
    }
}

template <class T, int G>
struct kept : columns<T, G> {
    typedef columns<T, G> plain;
    typedef problem<T> arguments;
    typedef chunks<T, kept<T, G>> all;

    // Warps along the columns: 1, 2 or 4; the others take further items.
    SIMT_BOTH static int units_of(int warps) { return warps * simt::warp_size / G; }
    SIMT_BOTH static int warps_of(int units) { return (units * G + simt::warp_size - 1) / simt::warp_size; }
    SIMT_BOTH static int at_once_of(int units) { return threads / simt::warp_size / warps_of(units); }
    SIMT_BOTH static int stride_of(int units) { return units * G | 1; }
    // W_hh; of each item h, its columns' sums and g, and c of its units; and zeros.
    SIMT_BOTH static int64_t shared_numbers(const problem<T> &p, int units) {
        const int64_t each = p.hidden + (2 * G + plain::cell) * units;
        return p.hidden * (stride_of(units) + 1) + p.chunks * p.rows * each;
    }
    SIMT_BOTH static int64_t roll_byte(const problem<T> &p, int units) {
        return (shared_numbers(p, units) * (int64_t)sizeof(T) + 7) / 8 * 8;
    }
    SIMT_BOTH static int64_t shared_bytes(const problem<T> &p, int units) {
        return roll_byte(p, units) + roll::bytes(p.chunks * p.rows);
    }

    struct block {
        simt::shared<T> s;
        int units, columns, stride, warps, at_once;
        int zeros, states, sums, given, cells;
        int group, column, which, unit;  // who sums: an item's column; and who goes on: an item's unit
        int64_t u0, u;
    };
    SIMT static block block_of(simt::lane &me, const problem<T> &p) {
        block b;
        const int units = p.kept_units, H = (int)p.hidden, items = (int)all::items(p);
        b.s = me.template array<T>(0, (int)shared_numbers(p, units));
        b.units = units, b.columns = units * G, b.stride = stride_of(units);
        b.warps = warps_of(units), b.at_once = at_once_of(units);
        b.zeros = H * b.stride, b.states = b.zeros + H, b.sums = b.states + items * H;
        b.given = b.sums + items * b.columns, b.cells = b.given + items * b.columns;
        b.group = me.warp() / b.warps, b.column = me.warp() % b.warps * simt::warp_size + me.in_warp();
        b.which = me.thread() / units, b.unit = me.thread() % units;
        b.u0 = me.block() * units, b.u = b.u0 + b.unit;
        if (b.which >= b.at_once || b.u >= p.hidden) b.which = items;  // none
        if (b.group >= b.at_once || b.column >= b.columns || b.u0 + b.column % units >= p.hidden) b.group = items;
        return b;
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
        for (int k = me.thread(); k < H; k += threads) b.s.set(b.zeros + k, T(0));
        me.copy_wait();
    }

    // g of this thread's units at step `at`.
    SIMT static void ask(simt::lane &me, const problem<T> &p, const block &b, const roll &r, const stretch &s,
                         int64_t at) {
        for (int i = b.which; i < s.count; i += b.at_once) {
            const int64_t m = r.step(i, at), row = r.row(i);
            if (m < 0) continue;
            const T *const from = p.given + (place_of(p, row, m) * p.rows + row) * p.given_row + b.u;
            SIMT_UNROLL for (int q = 0; q < G; q++)
                me.copy_async(b.s, b.given + (i * G + q) * b.units + b.unit, from + q * p.hidden);
        }
    }

    // The sums of this thread's columns of I items, at_once apart.
    template <int I>
    SIMT static void add(const problem<T> &p, const block &b, const roll &r, const stretch &s, int64_t at, T bias) {
        const int H = (int)p.hidden;
        for (int first = b.group; first < s.count; first += I * b.at_once) {
            int rows[I];
            T sum[I][1];
            bool any = false;
            SIMT_UNROLL for (int n = 0; n < I; n++) {
                const int i = first + n * b.at_once;
                const int64_t m = i < s.count ? r.step(i, at) : -1;
                rows[n] = m < 0 || begins(p, r.row(i), m) ? b.zeros : b.states + i * H;
                sum[n][0] = bias;
                any = any || m >= 0;
            }
            if (!any) continue;
            multiply_rows<T, I, 1>(b.s, b.column, 0, b.stride, rows, H, sum);
            SIMT_UNROLL for (int n = 0; n < I; n++) if (first + n * b.at_once < s.count)
                b.s.set(b.sums + (first + n * b.at_once) * b.columns + b.column, sum[n][0]);
        }
    }

    // What follows the sums; states go from one buffer to the other, those that rest too.
    SIMT static void go_on(simt::lane &me, const problem<T> &p, const block &b, const roll &r, const stretch &s,
                           int64_t at, int turn) {
        for (int i = b.which; i < s.count; i += b.at_once) {
            const int64_t m = r.step(i, at), row = r.row(i);
            T next = b.s.get(b.states + i * (int)p.hidden + (int)b.u), cell = 0;
            if (m >= 0) {
                const bool anew = begins(p, row, m);
                typename plain::own own = {};
                T sum[G];
                SIMT_UNROLL for (int q = 0; q < G; q++) {
                    sum[q] = b.s.get(b.sums + i * b.columns + q * b.units + b.unit);
                    own.g[q] = b.s.get(b.given + (i * G + q) * b.units + b.unit);
                }
                if (plain::cell && !anew) own.cell = b.s.get(b.cells + i * b.units + b.unit);
                next = plain::pass(p, b.u, own, sum, anew ? T(0) : next, cell);
                if (plain::cell) b.s.set(b.cells + i * b.units + b.unit, cell);
            }
            plain::store(me, p, s.first + i, b.u, 1 - turn, next);
            if (m >= 0) plain::write(p, s, row, m, b.u, next, cell);
        }
    }

    SIMT static void run(simt::lane &me, const problem<T> &p, const stretch &s, int &turn) {
        const block b = block_of(me, p);
        const roll r = roll_of<T>(me, p, s, roll_byte(p, b.units));
        const int64_t summed = b.column / b.units * p.hidden + b.u0 + b.column % b.units;
        const T bias = p.b_hh && b.group < s.count ? p.b_hh[summed] : T(0);
        for (int i = b.which; plain::cell && i < s.count; i += b.at_once)
            b.s.set(b.cells + i * b.units + b.unit, plain::load_cell(me, p, s.first + i, b.u));
        ask(me, p, b, r, s, s.from);
        for (int64_t n = 0; n < s.steps; n++) {
            take_in(me, b.s, b.states, (int)p.hidden, plain::state_at(p, s.first, 0, turn), (int)p.hidden,
                    (int)(s.count * p.hidden));
            me.barrier();
            if (s.count > b.at_once)
                add<4>(p, b, r, s, s.from + n, bias);
            else
                add<1>(p, b, r, s, s.from + n, bias);
            me.barrier();
            me.copy_wait();
            go_on(me, p, b, r, s, s.from + n, turn);
            if (n + 1 < s.steps) ask(me, p, b, r, s, s.from + n + 1);
            meet(me);
            turn = 1 - turn;
        }
        for (int i = b.which; plain::cell && i < s.count; i += b.at_once)
            plain::store_cell(me, p, s.first + i, b.u, b.s.get(b.cells + i * b.units + b.unit));
        if (plain::cell) meet(me);
    }
};

}  // namespace gates

#endif
