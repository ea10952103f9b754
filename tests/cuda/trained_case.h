// SPDX-License-Identifier: MIT
// A recurrent layer with its gradients, and what is asked of every kind's way back, over the simulator.
#ifndef TESTS_CUDA_TRAINED_CASE_H
#define TESTS_CUDA_TRAINED_CASE_H

#include "network_case.h"

namespace {

// A network with the gradients that come in, and room for those that go out.
template <class T>
struct trained_case : network<T> {
    dpcri_device_way way_back = DPCRI_DEVICE_LOOP;  // of sequences alone
    std::vector<T> kept, dy, dht, dct, dx, dh0, dc0, dw_ih, dw_hh, db_ih, db_hh, dpeephole;

    trained_case(dpcri_device_gates k, int64_t l, int64_t b, int64_t in, int64_t h, double size)
        : network<T>(k, l, b, in, h, size) {
        kept.resize((size_t)(l * b * h));
        this->fill(dy, l * b * (h + 1), 1), this->fill(dht, b * h, 1), this->fill(dct, b * h, 1);
    }

    std::vector<std::vector<T> *> outputs() override {
        return {&this->y, &this->ht, &this->ct, &kept, &dx, &dh0, &dc0, &dw_ih, &dw_hh, &db_ih, &db_hh, &dpeephole};
    }

    // The states of the loop, and arguments to go back over them.
    dpcri_device_recurrent forward(dpcri_device_way way) {
        dpcri_device_recurrent c = this->arguments(DPCRI_DEVICE_LOOP);
        c.kept = kept.data();
        this->run(c, 1);
        c.way = way;
        return c;
    }
    dpcri_device_recurrent backward(dpcri_device_way way) {
        const int64_t H = this->hidden, L = this->length, B = this->rows, I = this->inputs, G = this->gates;
        dpcri_device_recurrent c = forward(way);
        dx.assign((size_t)(L * B * (I + 2)), T(NAN)), dh0.assign((size_t)(B * H), T(NAN)), dc0 = dh0;
        dw_ih.assign((size_t)(G * H * I), T(0)), dw_hh.assign(this->w_hh.size(), T(0));
        db_ih.assign((size_t)(G * H), T(0)), db_hh = db_ih, dpeephole.assign(this->peephole.size(), T(0));
        const int64_t last = this->back ? L - 1 : 0, sign = this->back ? -1 : 1;
        c.backward = 1;
        c.dy = dy.data() + last * B * (H + 1), c.dy_step = sign * B * (H + 1), c.dy_row = H + 1;
        c.dht = dht.data(), c.dct = this->cell() ? dct.data() : nullptr;
        c.dx = dx.data() + last * B * (I + 2), c.dx_step = sign * B * (I + 2), c.dx_row = I + 2;
        c.dh0 = dh0.data(), c.dc0 = this->cell() ? dc0.data() : nullptr;
        c.dw_ih = dw_ih.data(), c.dw_hh = dw_hh.data(), c.db_ih = db_ih.data(), c.db_hh = db_hh.data();
        c.dpeephole = dpeephole.data();
        return c;
    }
    void take(const trained_case &all, int64_t r) {
        const int64_t H = this->hidden;
        network<T>::take(all, r);
        this->take_row(dht, all.dht, r, H), this->take_row(dct, all.dct, r, H);
        for (int64_t l = 0; l < this->length; l++)
            for (int64_t j = 0; j <= H; j++)
                dy[(size_t)(l * (H + 1) + j)] = all.dy[(size_t)((l * all.rows + r) * (H + 1) + j)];
    }
    std::vector<T> all() const {
        std::vector<T> v;
        for (const std::vector<T> *p : {&dx, &dh0, &dc0, &dw_ih, &dw_hh, &db_ih, &db_hh, &dpeephole})
            for (const T a : *p) v.push_back(a);
        return v;
    }
    std::vector<T> loop() {
        this->run(backward(DPCRI_DEVICE_LOOP), 1);
        return all();
    }

    void assert_close(const char *what, const std::vector<T> &got, const std::vector<long double> &want, int64_t row,
                      int64_t room, double bound) const {
        long double size = 1;
        for (const long double v : want) size = std::fmax(size, std::fabs(v));
        for (size_t i = 0; i < want.size(); i++) {
            const T v = got[(size_t)((int64_t)i / row * room + (int64_t)i % row)];
            if (!(std::fabs(v - want[i]) <= bound * size))
                fail_msg("kind %d hidden %d %s: number %d: %.9g, wanted %.9g", this->kind, (int)this->hidden, what,
                         (int)i, (double)v, (double)want[i]);
        }
    }

    // Sequence r, now run alone: what went back by step and to its start are those that it had among others.
    void assert_back(const trained_case &all, int64_t r) {
        const int64_t H = this->hidden, I = this->inputs;
        if (this->length > 0)
            this->run(backward(way_back), 1);
        else
            dh0 = dht, dc0 = dct;
        this->assert_states(all, r);
        this->assert_row(dh0, all.dh0, r, H, "dh0");
        if (this->cell()) this->assert_row(dc0, all.dc0, r, H, "dc0");
        this->assert_steps(dx, this->length, all.dx, all.rows, r, all.length, I, I + 2, "dx");
    }
};

// Sequences of lengths of their own: states, and what goes back by step, are those that each has alone.
inline void packed_is_apart(dpcri_device_gates kind, int variant = 0) {
    for (const bool against : {false, true}) {
        trained_case<float> all(kind, 30, 5, 2, 3, 0.7);
        all.back = against;
        vary_cell(all, variant);
        all.lengths = {13, 30, 0, 1, 22};
        dpcri_device_recurrent f = all.forward(DPCRI_DEVICE_OVERLAP);
        const std::vector<float> loop = all.y, end = all.ht;
        f.chunk = 7, f.warm_up = 5;
        all.y.assign(all.y.size(), NAN);
        all.run(f, 4);
        assert_same(loop, all.y, "forward, in chunks");
        assert_same(end, all.ht, "last states, in chunks");
        dpcri_device_recurrent o = all.backward(DPCRI_DEVICE_OVERLAP);
        o.chunk = 7, o.warm_up = 5;
        all.run(o, 5);
        for (int64_t r = 0; r < 5; r++) {
            trained_case<float> one(kind, all.lengths[(size_t)r], 1, 2, 3, 0.7);
            one.take(all, r);
            one.assert_back(all, r);
        }
    }
}

// New sequences that begin within: states, and what goes back by step, are those that each part has alone, to the bit
// (`exact`; else about), and the gradients of weights about their sums.
inline void parts_are_apart(dpcri_device_gates kind, dpcri_device_way way, bool exact = true, int variant = 0) {
    for (const bool against : {false, true}) {
        typedef double T;
        trained_case<T> all(kind, 30, 4, 2, 3, 0.7);
        const int64_t H = 3, I = 2, B = 4;
        all.back = against, all.lengths = {13, 30, 0, 22};
        vary_cell(all, variant);
        all.resets.assign((size_t)(30 * B), 0);
        for (const int at : {0 * 4 + 1, 1 * 4 + 0, 7 * 4 + 0, 12 * 4 + 0, 13 * 4 + 0, 2 * 4 + 1, 3 * 4 + 1, 16 * 4 + 1,
                             29 * 4 + 1, 21 * 4 + 3, 22 * 4 + 3, 5 * 4 + 2})
            all.resets[(size_t)at] = 1;
        const auto near = [&](T got, T want, const char *what) {
            if (!(exact ? got == want : std::fabs(got - want) <= 1e-9))
                fail_msg("%s: %.17g, not %.17g", what, got, want);
        };
        dpcri_device_recurrent f = all.forward(way);
        const std::vector<T> loop = all.y;
        f.chunk = 7, f.warm_up = 5, f.atol = f.rtol = exact ? 0 : 1e-12;
        all.y.assign(all.y.size(), NAN);
        all.run(f, 4);
        for (size_t i = 0; i < loop.size(); i++)
            if (!std::isnan(loop[i])) near(all.y[i], loop[i], "y by the method");
        for (const dpcr_device_outcome &told : all.outcome)  // newton's sweeps know that nothing goes over
            if (!exact && told.sweeps > 7) fail_msg("%d sweeps", told.sweeps);
        dpcri_device_recurrent o = all.backward(way);
        o.chunk = 7, o.warm_up = 5;
        all.run(o, 5);
        std::vector<T> sums(all.dw_hh.size(), 0), sums_p(all.dpeephole.size(), 0);
        for (int64_t r = 0; r < B; r++) {
            const int64_t n = all.lengths[(size_t)r];
            const auto mark = [&](int64_t t) { return t == n || all.resets[(size_t)(t * B + r)] != 0; };
            for (int64_t from = 0, to = 1; from < n; from = to, to = from + 1) {
                while (!mark(to)) to++;
                const bool first = against ? to == n : from == 0 && !mark(0), last = against ? from == 0 : to == n;
                trained_case<T> one(kind, to - from, 1, 2, 3, 0.7);
                one.length = 0, one.take(all, r), one.length = to - from;
                for (int64_t u = 0; u < H && !first; u++) one.h0[(size_t)u] = one.c0[(size_t)u] = 0;
                for (int64_t u = 0; u < H && !last; u++) one.dht[(size_t)u] = one.dct[(size_t)u] = 0;
                for (int64_t l = from; l < to; l++) {
                    for (int64_t j = 0; j < I; j++)
                        one.x[(size_t)((l - from) * I + j)] = all.x[(size_t)((l * B + r) * I + j)];
                    for (int64_t j = 0; j <= H; j++)
                        one.dy[(size_t)((l - from) * (H + 1) + j)] = all.dy[(size_t)((l * B + r) * (H + 1) + j)];
                }
                (void)one.loop();
                for (int64_t l = from; l < to; l++) {
                    for (int64_t u = 0; u < H; u++)
                        near(all.y[(size_t)((l * B + r) * (H + 3) + u)], one.y[(size_t)((l - from) * (H + 3) + u)],
                             "y");
                    for (int64_t j = 0; j < I; j++)
                        near(all.dx[(size_t)((l * B + r) * (I + 2) + j)], one.dx[(size_t)((l - from) * (I + 2) + j)],
                             "dx");
                }
                const size_t own = (size_t)(r * H);
                const bool cut = !against && mark(0);
                for (size_t u = 0; u < (size_t)H; u++) {
                    if (last) near(all.ht[own + u], one.ht[u], "last h");
                    if (last && all.cell()) near(all.ct[own + u], one.ct[u], "last c");
                    if (against ? first : from == 0) near(all.dh0[own + u], cut ? 0 : one.dh0[u], "dh0");
                    if ((against ? first : from == 0) && all.cell())
                        near(all.dc0[own + u], cut ? 0 : one.dc0[u], "dc0");
                }
                for (size_t i = 0; i < sums.size(); i++) sums[i] += one.dw_hh[i];
                for (size_t i = 0; i < sums_p.size(); i++) sums_p[i] += one.dpeephole[i];
            }
        }
        for (size_t i = 0; i < sums.size(); i++) assert_true(std::fabs(all.dw_hh[i] - sums[i]) < 1e-10);
        for (size_t i = 0; i < sums_p.size(); i++) assert_true(std::fabs(all.dpeephole[i] - sums_p[i]) < 1e-10);
        for (const dpcr_device_outcome &told : all.outcome) assert_true(told.locked > 0 && !told.non_finite);
    }
}

// Overlapped chunks are the loop to the bit, on chains that forget (size 0.5, say) and on chains that do not.
inline void back_is_the_loop(dpcri_device_gates kind, double size, uint64_t &seed, int variant = 0) {
    for (const int64_t length : {1, 17, 40}) {
        trained_case<float> n(kind, length, 1 + (int64_t)(seed % 3), 2, 3, size);
        n.back = seed % 2 == 1;
        vary_cell(n, variant);
        const std::vector<float> want = n.loop();
        dpcri_device_recurrent o = n.backward(DPCRI_DEVICE_OVERLAP);
        vary(o, seed);
        n.run(o, seed++);
        assert_same(want, n.all(), "overlap");
        n.assert_exact(o.max_sweeps);
    }
}

template <class Case>
void assert_any_order(Case &n) {
    std::vector<float> first;
    std::vector<dpcr_device_outcome> told;
    for (const uint64_t seed : {0, 3, 4, 5}) {
        dpcri_device_recurrent o = n.backward(DPCRI_DEVICE_OVERLAP);
        o.chunk = 8, o.warm_up = 4, o.atol = o.rtol = 1e-3;
        n.run(o, seed);
        if (seed == 0) first = n.all(), told = n.outcome;
        assert_same(first, n.all(), "another order");
        for (size_t r = 0; r < told.size(); r++)
            assert_true(n.outcome[r].sweeps == told[r].sweeps && n.outcome[r].locked == told[r].locked &&
                        n.outcome[r].residual == told[r].residual && told[r].sweeps > 0);
    }
}

// Over how many blocks W_hh stays on chip.
inline int64_t blocks_of(const dpcri_device_recurrent &c) {
    int64_t blocks = -1;
    assert_int_equal(dpcri_cuda_recurrent_share(c, &blocks), DPCRI_CUDA_OK);
    return blocks;
}

}  // namespace

#endif
