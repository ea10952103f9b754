// SPDX-License-Identifier: MIT
// A layer and direction of RNN, GRU or LSTM (gates.h) so narrow that a block has room for all of W_hh: each block takes
// items of its own through a stretch, so blocks meet once a stretch and not once a step.
//
// A lane has a unit of an item, with all its gates: h of all units lies on chip, by turns in two places, and a step is
// one barrier of the item's lanes, of a warp where there are 32. Its own h and c stay in registers, and g is asked for
// some steps before. A step costs H multiply-adds one after another, and the gates. Of an RNN of up to 32 units in
// float a lane's column of W_hh stays in registers.
//
// Sums are those of gates.h, term by term: the bits are the same.
#ifndef DPCRI_CUDA_GATES_ALONE_H
#define DPCRI_CUDA_GATES_ALONE_H

#include "kern/cuda/gates.h"

namespace gates {

// All blocks of a cooperative launch meet; one alone needs no more than its own barrier.
SIMT void meet(simt::lane &me) {
    if (me.blocks() > 1)
        me.grid_barrier();
    else
        me.barrier();
}

// Lanes of an item: a warp, two or four, the rest of which take further items.
SIMT_BOTH int lanes_of_item(int64_t hidden) {
    return hidden <= simt::warp_size ? simt::warp_size : hidden <= 2 * simt::warp_size ? 2 * simt::warp_size : threads;
}
SIMT void meet_item(simt::lane &me, int lanes) {
    if (lanes == simt::warp_size)
        me.warp_barrier();
    else
        me.barrier();
}

// Which of a block's items are open, at this thread and at any: they lie me.blocks() apart from n on.
template <class T>
SIMT bool open_of_group(simt::lane &me, const chunked<T> &p, int64_t n, int64_t end, int groups, int group, bool &any) {
    bool own = false;
    any = false;
    for (int g = 0; g < groups; g++) {
        const int64_t item = n + g * me.blocks();
        const bool open = item < end && me.peer_load(p.open + item) != 0;
        any = any || open;
        own = g == group ? open : own;
    }
    return own;
}

// Numbers of a state on chip: in quads, of which the last is filled up with zeros.
SIMT_BOTH int in_whole_quads(int64_t hidden) { return (int)(hidden + 3) / 4 * 4; }

// Of so few units that a lane has a number of each: its column of the weights, one gate's, stays in registers, and
// states are read in quads.
template <class T, int G>
constexpr bool in_registers = G == 1 && sizeof(T) == 4;
template <class T>
SIMT void take_column(const simt::shared<T> &s, int column, int stride, int tall, T (&weight)[simt::warp_size]) {
    SIMT_UNROLL for (int k = 0; k < simt::warp_size; k++) weight[k] = k < tall ? s.get(column + k * stride) : T(0);
}
template <class T>
SIMT T multiply_column(const simt::shared<T> &s, const T (&weight)[simt::warp_size], int row, int tall, T sum) {
    simt::pack<T, 4> state[simt::warp_size / 4] = {};
    SIMT_UNROLL for (int q = 0; q < simt::warp_size / 4; q++) if (4 * q < tall) state[q] =
        s.template get<4>(row + 4 * q);
    SIMT_UNROLL for (int q = 0; q < simt::warp_size / 4; q++) if (4 * q < tall) SIMT_UNROLL for (int j = 0; j < 4; j++)
        sum = simt::fma(weight[4 * q + j], state[q].at[j], sum);
    return sum;
}

// The stretch of a block's items, and then all blocks meet. Step, forward or back: block_of, and go of one item.
template <class T, int G, class Step>
SIMT void each_alone(simt::lane &me, const typename Step::arguments &a, const stretch &s, int turn) {
    const typename Step::block b = Step::block_of(me, a);
    for (int64_t n = me.block(); n < s.count; n += me.blocks() * b.groups) {
        if (in_registers<T, G> && b.lanes == simt::warp_size)
            Step::template go<in_registers<T, G>>(me, a, b, s, s.first + n, turn);
        else
            Step::template go<false>(me, a, b, s, s.first + n, turn);
    }
    meet(me);
}

template <class T, int G>
struct alone : columns<T, G> {
    typedef columns<T, G> plain;
    typedef problem<T> arguments;
    static constexpr int ahead = 4;  // steps whose g is asked for together

    SIMT_BOTH static int stride_of(const problem<T> &p) { return G * (int)p.hidden | 1; }
    SIMT_BOTH static int64_t shared_numbers(const problem<T> &p) {
        const int groups = threads / lanes_of_item(p.hidden);
        return in_whole_quads(p.hidden * stride_of(p)) + in_whole_quads(p.hidden) * (2 * groups + 1) +
               ahead * G * threads;
    }

    static int64_t bytes(const problem<T> &p) { return shared_numbers(p) * (int64_t)sizeof(T); }

    struct block {
        simt::shared<T> s;
        int stride, lanes, groups, group, u;
        int tall, zeros, states, given;  // zeros: in the place of a state, where a sequence begins
    };
    SIMT static block block_of(simt::lane &me, const problem<T> &p) {
        const int H = (int)p.hidden, lanes = lanes_of_item(H), groups = threads / lanes, stride = stride_of(p);
        const int tall = in_whole_quads(H), zeros = in_whole_quads(H * stride), states = zeros + tall;
        const int group = me.thread() / lanes;
        return {me.template array<T>(0, (int)shared_numbers(p)),
                stride,
                lanes,
                groups,
                group,
                me.thread() % lanes,
                tall,
                zeros,
                states + group * tall,
                states + 2 * groups * tall + me.thread()};
    }

    SIMT static void begin(simt::lane &me, const problem<T> &p) {
        plain::begin(me, p);
        const block b = block_of(me, p);
        const int H = (int)p.hidden;
        for (int column = me.warp(); column < G * H; column += threads / simt::warp_size)
            for (int k = me.in_warp(); k < H; k += simt::warp_size)
                me.copy_async(b.s, k * b.stride + column, p.w_hh + (int64_t)column * H + k);
        for (int k = me.thread(); k < b.tall; k += threads) b.s.set(b.zeros + k, T(0));
        me.copy_wait();
    }

    // A unit of an item through a stretch: at steps low .. high - 1 of it the item has one, m = start + n.
    struct course {
        int64_t row, start, low, high;
        const T *given;
        int64_t given_step;
    };
    SIMT static course course_of(const problem<T> &p, const stretch &s, int64_t item, bool goes, int64_t u) {
        course c = {};
        if (!goes) return c;
        c.row = item % p.rows;
        c.start = item / p.rows * p.chunk + s.from;
        c.low = c.start < 0 ? -c.start : 0;
        c.high = length_of<T>(p, c.row) - c.start;
        if (c.high > s.steps) c.high = s.steps;
        c.given_step = p.rows * p.given_row;
        c.given = p.given + (place_of(p, c.row, c.start) * p.rows + c.row) * p.given_row + u;
        return c;
    }
    // g of the steps from n on, and whether they begin from 0.
    struct asked {
        T g[ahead][G];
        unsigned char fresh[ahead];
    };
    SIMT static void ask(const problem<T> &p, const course &c, int64_t n, asked &a) {
        SIMT_UNROLL for (int d = 0; d < ahead; d++) {
            const bool is = n + d >= c.low && n + d < c.high;
            SIMT_UNROLL for (int q = 0; q < G; q++) a.g[d][q] =
                is ? c.given[(n + d) * c.given_step + q * p.hidden] : T(0);
            a.fresh[d] = p.resets && is && begins(p, c.row, c.start + n + d);
        }
    }
    SIMT static uint32_t put(const block &b, const asked &a) {
        uint32_t fresh = 0;
        SIMT_UNROLL for (int d = 0; d < ahead; d++) {
            SIMT_UNROLL for (int q = 0; q < G; q++) b.s.set(b.given + (d * G + q) * threads, a.g[d][q]);
            fresh |= (uint32_t)(a.fresh[d] != 0) << d;
        }
        return fresh;
    }

    // Items n, n + me.blocks(), ...: one a group of lanes.
    template <bool registers>
    SIMT static void go(simt::lane &me, const problem<T> &p, const block &b, const stretch &s, int64_t n, int turn) {
        const int H = (int)p.hidden;
        const int64_t item = n + b.group * me.blocks();
        bool any = false;
        const bool open = open_of_group<T>(me, p, n, s.first + s.count, b.groups, b.group, any), goes = open && b.u < H;
        if (!any) return;
        const course c = course_of(p, s, item, goes, b.u);
        T h = goes ? plain::load(me, p, item, b.u, turn) : T(0), cell = 0, bias[G] = {};
        if (goes && plain::cell) cell = plain::load_cell(me, p, item, b.u);
        SIMT_UNROLL for (int q = 0; q < G; q++) if (goes && p.b_hh) bias[q] = p.b_hh[q * H + b.u];
        asked next;
        ask(p, c, 0, next);
        uint32_t fresh = put(b, next);
        T weight[simt::warp_size];
        if constexpr (registers) take_column(b.s, b.u < H ? b.u : 0, b.stride, H, weight);
        int from = b.states, to = b.states + b.groups * b.tall;
        if (b.u < b.tall) b.s.set(from + b.u, h);
        meet_item(me, b.lanes);
        SIMT_ROLLED for (int64_t n0 = 0; n0 < s.steps; n0 += ahead) {
            ask(p, c, n0 + ahead, next);
            const int steps = s.steps - n0 < ahead ? (int)(s.steps - n0) : ahead;
            SIMT_ROLLED for (int d = 0; d < steps; d++) {
                if (n0 + d >= c.low && n0 + d < c.high) {
                    const bool anew = (fresh >> d & 1) != 0;
                    typename plain::own own;
                    const int rows[1] = {anew ? b.zeros : from};
                    T sum[1][G], after = 0;
                    SIMT_UNROLL for (int q = 0; q < G; q++) {
                        sum[0][q] = bias[q];
                        own.g[q] = b.s.get(b.given + (d * G + q) * threads);
                    }
                    own.cell = anew ? T(0) : cell;
                    if constexpr (registers)
                        sum[0][0] = multiply_column(b.s, weight, rows[0], b.tall, sum[0][0]);
                    else
                        multiply_rows<T, 1, G>(b.s, b.u, H, b.stride, rows, H, sum);
                    h = plain::pass(p, b.u, own, sum[0], anew ? T(0) : h, after);
                    cell = after;
                    plain::write(p, s, c.row, c.start + n0 + d, b.u, h, cell);
                }
                if (b.u < b.tall) b.s.set(to + b.u, h);
                meet_item(me, b.lanes);
                const int other = from;
                from = to, to = other;
            }
            fresh = put(b, next);
        }
        if (!goes) return;
        plain::store(me, p, item, b.u, turn, h);
        if (plain::cell) plain::store_cell(me, p, item, b.u, cell);
    }

    SIMT static void run(simt::lane &me, const problem<T> &p, const stretch &s, int &turn) {
        each_alone<T, G, alone<T, G>>(me, p, s, turn);
    }
};

}  // namespace gates

#endif
