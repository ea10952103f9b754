// SPDX-License-Identifier: MIT
// The way back through RNN, GRU and LSTM over few items (gates_back.h), whose W_hh stays on chip as going forward
// (gates_kept.h): a block has some units' columns of it.
//
// A step: every block takes the items' e on chip, G H numbers each, and a thread a unit of an item sums what they make
// of its h, term by term as gates_back.h does, and goes on with the step's gates, whose tape it has asked for before
// the barrier: the bits are the same. One grid barrier and G H multiply-adds one after another.
#ifndef DPCRI_CUDA_GATES_KEPT_BACK_H
#define DPCRI_CUDA_GATES_KEPT_BACK_H

#include "kern/cuda/gates_back.h"
#include "kern/cuda/gates_kept.h"

namespace gates {

template <class T, int G>
struct kept_backs : backs<T, G> {
    typedef backs<T, G> plain;
    typedef back_problem<T> arguments;
    typedef chunks<T, kept_backs<T, G>> all;

    SIMT_BOTH static int units_of(int eights) { return 8 * eights; }  // of a block, 8 to 32
    SIMT_BOTH static int at_once(const arguments &b) {
        const int64_t items = b.chunks * b.rows;
        return (int)(items < 4 ? items : 4);
    }
    SIMT_BOTH static int64_t stride_of(int units) { return units | 1; }
    SIMT_BOTH static int64_t row_of(const arguments &b) { return G * b.hidden | 1; }
    SIMT_BOTH static int64_t shared_numbers(const arguments &b, int units) {
        return G * b.hidden * stride_of(units) + at_once(b) * row_of(b);
    }
    SIMT_BOTH static int64_t roll_byte(const arguments &b, int units) {
        return (shared_numbers(b, units) * (int64_t)sizeof(T) + 7) / 8 * 8;
    }
    SIMT_BOTH static int64_t shared_bytes(const arguments &b, int units) {
        return roll_byte(b, units) + roll::bytes(b.chunks * b.rows);
    }
    SIMT static simt::shared<T> chip(simt::lane &me, const arguments &b) {
        return me.template array<T>(0, (int)shared_numbers(b, b.p.kept_units));
    }

    SIMT static void begin(simt::lane &me, const arguments &b) {
        plain::begin(me, b);
        const simt::shared<T> s = chip(me, b);
        const int units = b.p.kept_units, stride = (int)stride_of(units), count = G * (int)b.hidden * units;
        const int64_t u0 = me.block() * units;
        for (int n = me.thread(); n < count; n += threads) {
            const int k = n / units, j = n % units;
            if (u0 + j < b.hidden) me.copy_async(s, k * stride + j, b.p.w_hh + k * b.hidden + u0 + j);
        }
        me.copy_wait();
    }

    // What this thread's unit of item s.first + i has at step n of the stretch.
    SIMT static typename plain::turned before(simt::lane &me, const arguments &b, const roll &r, const stretch &s,
                                              int i, int64_t u, int64_t n) {
        typename plain::turned t = {};
        t.m = t.done = -1;
        if (i >= s.count || u >= b.hidden) return t;
        const int64_t m = n < s.steps ? r.step_back(i, s.from + n) : -1;
        const int64_t done = n > 0 ? r.step_back(i, s.from + n - 1) : -1;
        return plain::before(me, b, s.first + i, r.row(i), m, done, u);
    }

    // Step n of the stretch for items first .. first + together - 1 of it.
    SIMT static void step(simt::lane &me, const arguments &b, const stretch &s, int first, int together, int64_t n,
                          const typename plain::turned &t, int turn) {
        const simt::shared<T> on_chip = chip(me, b);
        const int units = b.p.kept_units, wide = G * (int)b.hidden, stride = (int)stride_of(units);
        const int row = (int)row_of(b), states = wide * stride, left = (int)s.count - first;
        const int which = me.thread() / units, column = me.thread() % units;
        if (first > 0) me.barrier();  // the items before have been read
        if (n > 0)
            take_in(me, on_chip, states, row, b.columns + (turn * all::items(b) + s.first + first) * wide, wide,
                    (left < together ? left : together) * wide);
        me.barrier();
        T sum = plain::addend(t);
        if (t.done >= 0) sum = multiply_alone(on_chip, column, stride, states + which * row, wide, sum);
        if (t.m >= 0 || t.done >= 0)
            plain::after(me, b, s, s.first + first + which, me.block() * units + column, t, sum, turn);
    }

    SIMT static void run(simt::lane &me, const arguments &b, const stretch &s, int &turn) {
        const int units = b.p.kept_units, together = at_once(b), which = me.thread() / units;
        const roll r = roll_of<T>(me, b, s, roll_byte(b, units));
        const int64_t u = which < together ? me.block() * units + me.thread() % units : b.hidden;
        const bool one = s.count <= together;
        typename plain::turned t = before(me, b, r, s, which, u, 0);
        for (int64_t n = 0; n <= s.steps; n++) {
            for (int i = 0; i < s.count; i += together) {
                if (!one) t = before(me, b, r, s, i + which, u, n);
                step(me, b, s, i, together, n, t, turn);
            }
            if (one && n < s.steps) t = before(me, b, r, s, which, u, n + 1);
            me.grid_barrier();
            turn = 1 - turn;
        }
    }
};

}  // namespace gates

#endif
