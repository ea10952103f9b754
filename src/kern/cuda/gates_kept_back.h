// SPDX-License-Identifier: MIT
// The way back through RNN, GRU and LSTM over few items (gates_back.h), whose W_hh stays on chip as going forward
// (gates_kept.h): a block has some units' columns of it. Not yet run on a device.
//
// A step: every block takes the items' e on chip, G H numbers each, and a thread a unit of an item sums what they make
// of its h, term by term as gates_back.h does, and goes on with the step's gates, whose tape it has asked for before:
// the bits are the same. One grid barrier and G H multiply-adds one after another.
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

    SIMT_BOTH static int at_once(const arguments &b, int units) {
        const int64_t items = b.chunks * b.rows, most = threads / units < 4 ? threads / units : 4;
        return (int)(items < most ? items : most);
    }
    SIMT_BOTH static int64_t stride_of(int units) { return units | 1; }
    SIMT_BOTH static int64_t row_of(const arguments &b) { return G * b.hidden | 1; }
    SIMT_BOTH static int64_t shared_numbers(const arguments &b, int units) {
        return G * b.hidden * stride_of(units) + at_once(b, units) * row_of(b);
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

    // Step n of the stretch for items first .. first + at_once - 1.
    SIMT static void step(simt::lane &me, const arguments &b, const stretch &s, int64_t first, int64_t n, int turn) {
        const simt::shared<T> on_chip = chip(me, b);
        const int units = b.p.kept_units, together = at_once(b, units), wide = G * (int)b.hidden;
        const int stride = (int)stride_of(units), row = (int)row_of(b), states = wide * stride;
        const int64_t end = s.first + s.count;
        const int which = me.thread() / units, column = me.thread() % units;
        const int64_t item = first + which, u = me.block() * units + column;
        const bool goes = which < together && item < end && u < b.hidden;
        const int64_t done = goes ? plain::step_of_item(me, b, s, item, n - 1) : -1;
        const int64_t k = goes ? plain::step_of_item(me, b, s, item, n) : -1;
        typename plain::own own = {};
        if (k >= 0) own = plain::ready(me, b, item, k, u);
        T sum = G == 3 && done >= 0 ? me.peer_load(b.beside + item * b.hidden + u) : T(0);
        me.barrier();  // the items before have been read
        for (int i = 0; n > 0 && i < together && first + i < end; i++) {
            const T *const from = b.columns + (turn * all::items(b) + first + i) * wide;
            for (int j = me.thread(); j < wide; j += threads) on_chip.set(states + i * row + j, me.peer_load(from + j));
        }
        me.barrier();
        if (done >= 0) sum = multiply_alone(on_chip, column, stride, states + which * row, wide, sum);
        if (goes) plain::go_on(me, b, s, item, u, k, done, own, sum, turn);
    }

    SIMT static void run(simt::lane &me, const arguments &b, const stretch &s, int &turn) {
        const int together = at_once(b, b.p.kept_units);
        for (int64_t n = 0; n <= s.steps; n++) {
            for (int64_t i = 0; i < s.count; i += together) step(me, b, s, s.first + i, n, turn);
            meet(me);
            turn = 1 - turn;
        }
    }
};

}  // namespace gates

#endif
