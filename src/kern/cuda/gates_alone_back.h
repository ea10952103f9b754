// SPDX-License-Identifier: MIT
// The way back through an RNN, GRU or LSTM so narrow that a block has room for all of W_hh, as going forward
// (gates_alone.h): each block takes items of its own through a stretch.
//
// A lane has a unit of an item: what has come to its h and c stays in registers, a step's e of all units goes on chip,
// by turns to two places, and after one barrier of the item's lanes each sums what they make of its h, term by term as
// gates_back.h does: the bits are the same. The tape is asked for some steps before. A step costs G H multiply-adds one
// after another, and the gates.
#ifndef DPCRI_CUDA_GATES_ALONE_BACK_H
#define DPCRI_CUDA_GATES_ALONE_BACK_H

#include "kern/cuda/gates_alone.h"
#include "kern/cuda/gates_back.h"

namespace gates {

template <class T, int G>
struct alone_backs : backs<T, G> {
    typedef backs<T, G> plain;
    typedef back_problem<T> arguments;
    static constexpr int E = taped(G), numbers = G == 1 ? 2 : E + 2;  // of a unit's own: dy, the tape, h or c before
    static constexpr int ahead = 4;                                   // steps whose tape is asked for together

    SIMT_BOTH static int stride_of(const arguments &b) { return (int)b.hidden | 1; }
    SIMT_BOTH static int64_t shared_numbers(const arguments &b) {
        const int groups = threads / lanes_of_item(b.hidden);
        return in_whole_quads(G * b.hidden * stride_of(b)) + in_whole_quads(G * b.hidden) * 2 * groups +
               ahead * numbers * threads;
    }
    static int64_t bytes(const arguments &b) { return shared_numbers(b) * (int64_t)sizeof(T); }

    struct block {
        simt::shared<T> s;
        int stride, lanes, groups, group, u;
        int tall, columns, taped;
    };
    SIMT static block block_of(simt::lane &me, const arguments &b) {
        const int tall = in_whole_quads(G * b.hidden), lanes = lanes_of_item(b.hidden), groups = threads / lanes;
        const int stride = stride_of(b), group = me.thread() / lanes;
        const int columns = in_whole_quads(G * b.hidden * stride);
        return {me.template array<T>(0, (int)shared_numbers(b)),
                stride,
                lanes,
                groups,
                group,
                me.thread() % lanes,
                tall,
                columns + tall * group,
                columns + tall * 2 * groups + me.thread()};
    }

    SIMT static void begin(simt::lane &me, const arguments &b) {
        plain::begin(me, b);
        const block o = block_of(me, b);
        const int H = (int)b.hidden;
        for (int k = me.warp(); k < G * H; k += threads / simt::warp_size)
            for (int u = me.in_warp(); u < H; u += simt::warp_size)
                me.copy_async(o.s, k * o.stride + u, b.p.w_hh + (int64_t)k * H + u);
        me.copy_wait();
        // What fills the last quad of the two places of e.
        const int k = G * H + o.u;
        if (k < o.tall) SIMT_UNROLL for (int n = 0; n < 2; n++) o.s.set(o.columns + n * o.groups * o.tall + k, T(0));
    }

    // A unit of an item through a stretch: at steps low .. high - 1 of it the item has one, m = last - n.
    struct course {
        int64_t row, last, low, high;
    };
    SIMT static course course_of(const arguments &b, const stretch &s, int64_t item, bool goes) {
        course c = {};
        if (!goes) return c;
        c.row = item % b.rows;
        const int64_t start = item / b.rows * b.chunk + s.from, length = length_of<T>(b, c.row);
        c.last = length - 1 - start;
        c.low = start < 0 ? -start : 0;
        c.high = length - start < s.steps ? length - start : s.steps;
        return c;
    }
    // What the steps from n on need, and whether a sequence begins with them.
    struct asked {
        typename plain::own of[ahead];
        unsigned char anew[ahead];
    };
    SIMT static void ask(const arguments &b, const course &c, int64_t u, int64_t n, asked &a) {
        SIMT_UNROLL for (int d = 0; d < ahead; d++) {
            const bool is = n + d >= c.low && n + d < c.high;
            a.of[d] = {};
            if (is) a.of[d] = plain::ready(b, c.row, c.last - n - d, u);
            a.anew[d] = is && begins(b.p, c.row, c.last - n - d);
        }
    }
    SIMT static uint32_t put(const block &o, const asked &a) {
        uint32_t anew = 0;
        SIMT_UNROLL for (int d = 0; d < ahead; d++) {
            const int to = o.taped + d * numbers * threads;
            o.s.set(to, a.of[d].dy);
            SIMT_UNROLL for (int q = 0; q < E; q++) o.s.set(to + (1 + q) * threads, a.of[d].tape[q]);
            if (G > 1) o.s.set(to + (1 + E) * threads, a.of[d].before);
            anew |= (uint32_t)(a.anew[d] != 0) << d;
        }
        return anew;
    }
    SIMT static typename plain::own get(const block &o, int d) {
        const int from = o.taped + d * numbers * threads;
        typename plain::own own = {};
        own.dy = o.s.get(from);
        SIMT_UNROLL for (int q = 0; q < E; q++) own.tape[q] = o.s.get(from + (1 + q) * threads);
        if (G > 1) own.before = o.s.get(from + (1 + E) * threads);
        return own;
    }

    // Items n, n + me.blocks(), ...: one a group of lanes.
    template <bool registers>
    SIMT static void go(simt::lane &me, const arguments &b, const block &o, const stretch &s, int64_t n, int turn) {
        const int H = (int)b.hidden;
        const int64_t item = n + o.group * me.blocks();
        bool any = false;
        const bool open = open_of_group<T>(me, b, n, s.first + s.count, o.groups, o.group, any), goes = open && o.u < H;
        if (!any) return;
        const course c = course_of(b, s, item, goes);
        T come = goes ? plain::load(me, b, item, o.u, turn) : T(0), beside = 0;
        if (G == 4 && goes) beside = plain::load_cell(me, b, item, o.u);
        asked next;
        ask(b, c, o.u, 0, next);
        uint32_t anew = put(o, next);
        T weight[simt::warp_size];
        if constexpr (registers) take_column(o.s, o.u < H ? o.u : 0, o.stride, H, weight);
        int here = o.columns, there = here + o.groups * o.tall;
        SIMT_ROLLED for (int64_t n0 = 0; n0 < s.steps; n0 += ahead) {
            ask(b, c, o.u, n0 + ahead, next);
            const int steps = s.steps - n0 < ahead ? (int)(s.steps - n0) : ahead;
            SIMT_ROLLED for (int d = 0; d < steps; d++) {
                const bool is = n0 + d >= c.low && n0 + d < c.high, first = (anew >> d & 1) != 0;
                if (is) {
                    T e[E];
                    plain::gates_of(b, o.u, get(o, d), first, come, beside, e);
                    SIMT_UNROLL for (int q = 0; q < G; q++) o.s.set(here + q * H + o.u, e[q]);
                    plain::write(b, s, c.row, c.last - n0 - d, o.u, e);
                }
                meet_item(me, o.lanes);
                if constexpr (registers) {
                    if (is) come = multiply_column(o.s, weight, here, o.tall, T(0));
                } else if (is) {
                    come = multiply_alone(o.s, o.u, o.stride, here, G * H, G == 3 ? beside : T(0));
                }
                if (is && first) come = 0;
                const int other = here;
                here = there, there = other;
            }
            anew = put(o, next);
        }
        meet_item(me, o.lanes);  // what was read last may be another item's next
        if (!goes) return;
        plain::store(me, b, item, o.u, turn, come);
        if (G == 4) plain::store_cell(me, b, item, o.u, beside);
    }

    SIMT static void run(simt::lane &me, const arguments &b, const stretch &s, int &turn) {
        each_alone<T, G, alone_backs<T, G>>(me, b, s, turn);
    }
};

}  // namespace gates

#endif
