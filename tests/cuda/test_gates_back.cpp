// SPDX-License-Identifier: MIT
// The way back through recurrent layers of the device's kernels on the CPU: gradients are the definition's, in higher
// precision, over kinds, widths beside and across tiles, pieces of the sums and strides both ways; overlapped chunks
// are the loop to the bit, on chains that forget and on chains that do not, in every order and any batch; sequences of
// lengths of their own have the bits that they have alone; what the report says.
#include "trained_case.h"

namespace {

template <class T>
struct trained : trained_case<T> {
    using trained_case<T>::trained_case;

    // torch.nn's definition differentiated step by step, in long double.
    void matches(double bound) {
        typedef std::vector<long double> reals;
        const int64_t H = this->hidden, L = this->length, B = this->rows, I = this->inputs, G = this->gates;
        (void)this->loop();
        const network<T> &n = *this;
        reals want_ih((size_t)(G * H * I)), want_hh((size_t)(G * H * H)), want_bi((size_t)(G * H)), want_bh = want_bi;
        reals want_p(n.peephole.size());
        reals want_x((size_t)(L * B * I)), want_h((size_t)(B * H)), want_c = want_h;
        for (int64_t r = 0; r < B; r++) {
            const int64_t count = this->lengths[(size_t)r];
            std::vector<reals> h((size_t)count + 1, reals((size_t)H)), c = h, in((size_t)count, reals((size_t)(G * H)));
            std::vector<reals> of = in;
            for (int64_t u = 0; u < H; u++) {
                h[0][(size_t)u] = n.h0[(size_t)(r * H + u)];
                c[0][(size_t)u] = n.c0[(size_t)(r * H + u)];
            }
            const auto time = [&](int64_t m) { return this->back ? count - 1 - m : m; };
            for (int64_t m = 0; m < count; m++)
                for (int64_t u = 0; u < H; u++) {
                    for (int64_t g = 0; g < G; g++) {
                        const int64_t row = g * H + u;
                        long double a = n.b_ih[(size_t)row], b = n.b_hh[(size_t)row];
                        for (int64_t j = 0; j < I; j++)
                            a += (long double)n.w_ih[(size_t)(row * I + j)] * n.x[(size_t)((time(m) * B + r) * I + j)];
                        for (int64_t j = 0; j < H; j++)
                            b += (long double)n.w_hh[(size_t)(row * H + j)] * h[(size_t)m][(size_t)j];
                        in[(size_t)m][(size_t)row] = a, of[(size_t)m][(size_t)row] = b;
                    }
                    const auto sum = [&](int64_t g) {
                        return in[(size_t)m][(size_t)(g * H + u)] + of[(size_t)m][(size_t)(g * H + u)];
                    };
                    long double &to = h[(size_t)m + 1][(size_t)u], &cell = c[(size_t)m + 1][(size_t)u];
                    const long double before = h[(size_t)m][(size_t)u];
                    const long double into = n.cut(sum(0));
                    if (G == 1) to = n.kind == DPCRI_DEVICE_RNN_RELU ? std::fmax(into, 0.0L) : std::tanh(into);
                    if (G == 3) {
                        const long double z = sigmoid(n.cut(sum(1)));
                        to = (1 - z) * std::tanh(n.cut(in[(size_t)m][(size_t)(2 * H + u)] +
                                                       sigmoid(into) * of[(size_t)m][(size_t)(2 * H + u)])) +
                             z * before;
                    }
                    if (G == 4) {
                        const long double past = c[(size_t)m][(size_t)u],
                                          i = sigmoid(n.cut(sum(0) + n.peep(0, u, past)));
                        const long double f = n.coupled ? 1 - i : sigmoid(n.cut(sum(1) + n.peep(1, u, past)));
                        cell = f * past + i * std::tanh(n.cut(sum(2)));
                        to = sigmoid(n.cut(sum(3) + n.peep(2, u, cell))) * std::tanh(n.cut(cell));
                    }
                }
            reals g((size_t)H), gc((size_t)H);
            for (int64_t u = 0; u < H; u++) {
                g[(size_t)u] = this->dht[(size_t)(r * H + u)];
                gc[(size_t)u] = G == 4 ? this->dct[(size_t)(r * H + u)] : 0;
            }
            for (int64_t m = count - 1; m >= 0; m--) {
                reals before((size_t)H), ei((size_t)(G * H)), eh;
                for (int64_t u = 0; u < H; u++) {
                    const long double d = g[(size_t)u] + this->dy[(size_t)((time(m) * B + r) * (H + 1) + u)];
                    const auto a = [&](int64_t q) { return in[(size_t)m][(size_t)(q * H + u)]; };
                    const auto b = [&](int64_t q) { return of[(size_t)m][(size_t)(q * H + u)]; };
                    const long double after = h[(size_t)m + 1][(size_t)u];
                    if (G == 1)
                        ei[(size_t)u] = d * (n.kind == DPCRI_DEVICE_RNN_RELU ? (after > 0) * n.whole(a(0) + b(0))
                                                                             : n.tanh_slope(after));
                    if (G == 3) {
                        const long double R = sigmoid(n.cut(a(0) + b(0))), z = sigmoid(n.cut(a(1) + b(1))),
                                          v = std::tanh(n.cut(a(2) + R * b(2)));
                        const long double dn = d * (1 - z) * n.tanh_slope(v);
                        ei[(size_t)u] = dn * b(2) * n.sigmoid_slope(R);
                        ei[(size_t)(H + u)] = d * (h[(size_t)m][(size_t)u] - v) * n.sigmoid_slope(z);
                        ei[(size_t)(2 * H + u)] = dn;
                        before[(size_t)u] = d * z;
                    }
                    if (G == 4) {
                        const long double past = c[(size_t)m][(size_t)u], now = c[(size_t)m + 1][(size_t)u];
                        const long double i = sigmoid(n.cut(a(0) + b(0) + n.peep(0, u, past)));
                        const long double f = n.coupled ? 1 - i : sigmoid(n.cut(a(1) + b(1) + n.peep(1, u, past)));
                        const long double v = std::tanh(n.cut(a(2) + b(2))), t = std::tanh(n.cut(now)),
                                          o = sigmoid(n.cut(a(3) + b(3) + n.peep(2, u, now)));
                        const long double eo = d * t * n.sigmoid_slope(o);
                        const long double dc = gc[(size_t)u] + d * o * n.tanh_slope(t) + n.peep(2, u, eo);
                        const long double e0 = dc * (v - (n.coupled ? past : 0)) * n.sigmoid_slope(i);
                        const long double e1 = n.coupled ? 0 : dc * past * n.sigmoid_slope(f);
                        ei[(size_t)u] = e0;
                        ei[(size_t)(H + u)] = e1;
                        ei[(size_t)(2 * H + u)] = dc * i * n.tanh_slope(v);
                        ei[(size_t)(3 * H + u)] = eo;
                        gc[(size_t)u] = dc * f + n.peep(0, u, e0) + n.peep(1, u, e1);
                        if (!n.peepholes) continue;
                        want_p[(size_t)u] += e0 * past, want_p[(size_t)(H + u)] += e1 * past;
                        want_p[(size_t)(2 * H + u)] += eo * now;
                    }
                }
                eh = ei;
                for (int64_t u = 0; G == 3 && u < H; u++)
                    eh[(size_t)(2 * H + u)] *= sigmoid(n.cut(in[(size_t)m][(size_t)u] + of[(size_t)m][(size_t)u]));
                for (int64_t row = 0; row < G * H; row++) {
                    want_bi[(size_t)row] += ei[(size_t)row], want_bh[(size_t)row] += eh[(size_t)row];
                    for (int64_t j = 0; j < I; j++) {
                        const size_t at = (size_t)((time(m) * B + r) * I + j);
                        want_ih[(size_t)(row * I + j)] += ei[(size_t)row] * n.x[at];
                        want_x[at] += ei[(size_t)row] * n.w_ih[(size_t)(row * I + j)];
                    }
                    for (int64_t j = 0; j < H; j++) {
                        want_hh[(size_t)(row * H + j)] += eh[(size_t)row] * h[(size_t)m][(size_t)j];
                        before[(size_t)j] += eh[(size_t)row] * n.w_hh[(size_t)(row * H + j)];
                    }
                }
                g = before;
            }
            for (int64_t u = 0; u < H; u++)
                want_h[(size_t)(r * H + u)] = g[(size_t)u], want_c[(size_t)(r * H + u)] = gc[(size_t)u];
        }
        this->assert_close("dx", this->dx, want_x, I, I + 2, bound);
        this->assert_close("dh0", this->dh0, want_h, H, H, bound);
        if (G == 4) this->assert_close("dc0", this->dc0, want_c, H, H, bound);
        this->assert_close("dw_ih", this->dw_ih, want_ih, I, I, bound);
        this->assert_close("dw_hh", this->dw_hh, want_hh, H, H, bound);
        this->assert_close("db_ih", this->db_ih, want_bi, H, H, bound);
        this->assert_close("db_hh", this->db_hh, want_bh, H, H, bound);
        this->assert_close("dpeephole", this->dpeephole, want_p, H, H, bound);
        for (int64_t i = 0; i < L * B; i++) assert_true(std::isnan(this->dx[(size_t)(i * (I + 2) + I)]));  // beside
        for (const dpcr_device_outcome &o : n.outcome) assert_true(o.locked == L && !o.non_finite && o.residual == 0);
    }
};

void loop_is_the_definitions(void **) {
    for (const dpcri_device_gates kind : kinds) {
        trained<double> narrow(kind, 9, 2, 3, 5, 0.9);
        narrow.matches(1e-13);
        trained<float> wide(kind, 40, 15, 20, 33, 0.9);  // beyond a tile both ways, a slice and a piece of the sums
        wide.back = true;
        wide.matches(3e-5);
        trained<double> two(kind, 3, 1, 130, 2, 0.9);  // an RNN whose states another kernel made; inputs beyond a tile
        two.matches(1e-13);
        uneven_matches<trained<double>>(kind, 1e-13);
    }
}

template <int variant>
struct varied : trained<double> {
    varied(dpcri_device_gates k, int64_t l, int64_t b, int64_t in, int64_t h, double size)
        : trained<double>(k, l, b, in, h, size) {
        vary_cell(*this, variant);
    }
};

void variants_are_the_definitions(void **) {
    uint64_t seed = 0;
    uneven_matches<varied<1>>(DPCRI_DEVICE_LSTM, 1e-13);
    uneven_matches<varied<2>>(DPCRI_DEVICE_LSTM, 1e-13);
    uneven_matches<varied<3>>(DPCRI_DEVICE_LSTM, 1e-13);
    for (int variant = 1; variant < 4; variant++) {
        for (int64_t width = 1; width <= 40; width += 1 + variant) {
            trained<double> one(DPCRI_DEVICE_LSTM, 1 + width % 6, 1 + width % 3, 3, width, 0.9);
            vary_cell(one, variant);
            one.matches(1e-13);
        }
        trained<float> wide(DPCRI_DEVICE_LSTM, 40, 15, 20, 33, 0.9);
        wide.back = true;
        vary_cell(wide, variant);
        wide.matches(3e-5);
        for (const double size : {0.5, 12.0}) back_is_the_loop(DPCRI_DEVICE_LSTM, size, seed, variant);
        packed_is_apart(DPCRI_DEVICE_LSTM, variant);
        for (const dpcri_device_way way : {DPCRI_DEVICE_LOOP, DPCRI_DEVICE_OVERLAP})
            parts_are_apart(DPCRI_DEVICE_LSTM, way, true, variant);
        trained<float> n(DPCRI_DEVICE_LSTM, 24, 30, 5, 3, 0.8);
        vary_cell(n, variant);
        assert_any_order(n);
    }
    trained<float> none(DPCRI_DEVICE_GRU, 4, 1, 2, 3, 0.5);
    dpcri_device_recurrent c = none.backward(DPCRI_DEVICE_LOOP);
    std::vector<unsigned char> w(dpcri_cuda_recurrent_workspace(c));
    c.peepholes = 1, c.peephole = none.peephole.data();
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), w.size(), nullptr), DPCRI_CUDA_UNSUPPORTED);
    trained<float> lstm(DPCRI_DEVICE_LSTM, 4, 1, 2, 3, 0.5);
    c = lstm.backward(DPCRI_DEVICE_LOOP), c.peepholes = 1;
    w.resize(dpcri_cuda_recurrent_workspace(c));
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), w.size(), nullptr), DPCRI_CUDA_ARGUMENT);
}

// What goes into the functions is cut, of every kind and variant, narrow RNNs too.
void what_is_cut_is_the_definitions(void **) {
    uint64_t seed = 0;
    for (const dpcri_device_gates kind : kinds) {
        uneven_matches<varied<8>>(kind, 1e-13);
        for (const int64_t width : {1, 2, 4, 33}) {
            trained<double> one(kind, 7, 2, 3, width, 0.9);
            vary_cell(one, 8);
            one.matches(1e-13);
        }
        for (const double size : {0.5, 12.0}) back_is_the_loop(kind, size, seed, 8);
        packed_is_apart(kind, 8);
        for (const dpcri_device_way way : {DPCRI_DEVICE_LOOP, DPCRI_DEVICE_OVERLAP})
            parts_are_apart(kind, way, true, 8);
    }
    uneven_matches<varied<9>>(DPCRI_DEVICE_LSTM, 1e-13);
    uneven_matches<varied<10>>(DPCRI_DEVICE_LSTM, 1e-13);
    uneven_matches<varied<11>>(DPCRI_DEVICE_LSTM, 1e-13);
    trained<float> none(DPCRI_DEVICE_MINGRU, 4, 1, 2, 3, 0.5);
    dpcri_device_recurrent c = none.backward(DPCRI_DEVICE_LOOP);
    std::vector<unsigned char> w(dpcri_cuda_recurrent_workspace(c));
    c.clip = 1;
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), w.size(), nullptr), DPCRI_CUDA_UNSUPPORTED);
}

void overlap_is_the_loop(void **) {
    uint64_t seed = 0;
    for (const dpcri_device_gates kind : kinds)
        for (const double size : {0.5, 12.0})  // forgets at once, or not
            if (kind != DPCRI_DEVICE_RNN_RELU || size < 1) back_is_the_loop(kind, size, seed);
}

void bits_are_those_of_any_order(void **) {
    trained<float> n(DPCRI_DEVICE_GRU, 24, 30, 5, 3, 0.8);
    assert_any_order(n);
}

void sequences_are_apart(void **) {
    for (const dpcri_device_gates kind : kinds) packed_is_apart(kind);
}

void parts_of_sequences_are_apart(void **) {
    for (const dpcri_device_gates kind : kinds)
        for (const dpcri_device_way way : {DPCRI_DEVICE_LOOP, DPCRI_DEVICE_OVERLAP}) parts_are_apart(kind, way);
}

// Gradients add onto what is there; what is not wanted is left out; what does not come in is zero.
void what_is_there_is_added_to(void **) {
    trained<double> n(DPCRI_DEVICE_LSTM, 12, 2, 3, 4, 0.9);
    (void)n.loop();
    const std::vector<double> x = n.dx, hh = n.dw_hh, bi = n.db_ih, h0 = n.dh0;
    dpcri_device_recurrent c = n.backward(DPCRI_DEVICE_LOOP);
    n.dw_hh.assign(n.dw_hh.size(), 3), n.db_ih.assign(n.db_ih.size(), -2), n.dx.assign(n.dx.size(), 1);
    c.dx_adds = 1, c.dw_ih = c.db_hh = nullptr;
    n.run(c, 2);
    for (size_t i = 0; i < hh.size(); i++) assert_true(n.dw_hh[i] == 3 + hh[i] && n.dw_ih[i % n.dw_ih.size()] == 0);
    for (size_t i = 0; i < bi.size(); i++) assert_true(n.db_ih[i] == bi[i] - 2 && n.db_hh[i] == 0);
    for (size_t i = 0; i < x.size(); i++) assert_true(i % 5 > 2 || n.dx[i] == 1 + x[i]);
    n.dht.assign(n.dht.size(), 0), n.dct.assign(n.dct.size(), 0), n.dy.assign(n.dy.size(), 0);
    n.dy[5] = 1;
    const std::vector<double> want = n.loop();
    c = n.backward(DPCRI_DEVICE_LOOP);
    c.dht = c.dct = nullptr;
    n.run(c, 3);
    assert_same(want, n.all(), "no last gradients");
    c = n.backward(DPCRI_DEVICE_LOOP);
    c.dy = nullptr, c.dx = nullptr, c.dh0 = c.dc0 = c.dw_ih = c.dw_hh = c.db_ih = c.db_hh = nullptr;
    n.run(c, 4);
    assert_true(std::isnan(n.dx[0]) && std::isnan(n.dh0[0]) && n.dw_hh[0] == 0);
}

// A gradient that is tiny or large is judged by its own size; one that is infinite spoils its own sequence alone.
void tolerances_are_of_the_gradients_size(void **) {
    for (const float size : {1e-20f, 1.0f, 1e20f}) {
        trained<float> n(DPCRI_DEVICE_LSTM, 60, 2, 2, 3, 0.5);
        for (float &b : n.b_ih) b -= 1;  // forget gates at 0.3
        for (float &v : n.dy) v *= size;
        for (float &v : n.dht) v *= size;
        for (float &v : n.dct) v *= size;
        const std::vector<float> want = n.loop();
        dpcri_device_recurrent o = n.backward(DPCRI_DEVICE_OVERLAP);
        o.chunk = 12, o.warm_up = 5, o.atol = o.rtol = 1e-3;
        n.run(o, 7);
        const std::vector<float> got = n.all();
        float worst = 0;
        for (size_t i = 0; i < want.size(); i++)
            if (!std::isnan(want[i])) worst = std::fmax(worst, std::fabs(got[i] - want[i]) / size);
        if (!(worst > 0 && worst < 2e-2f)) fail_msg("size %g: off by %g", (double)size, (double)worst);
        for (const dpcr_device_outcome &r : n.outcome)
            assert_true(r.sweeps == 1 && r.locked == 60 && r.residual > 0 && r.residual < 3e-3);
    }
    trained<float> n(DPCRI_DEVICE_GRU, 60, 2, 2, 3, 0.5);
    (void)n.loop();
    const std::vector<float> clean = n.dx;
    n.dy[(size_t)((30 * 2 + 1) * 4)] = INFINITY;
    dpcri_device_recurrent o = n.backward(DPCRI_DEVICE_OVERLAP);
    o.chunk = 12, o.warm_up = 5, o.atol = o.rtol = 0;
    n.run(o, 8);
    for (int64_t l = 0; l < 60; l++)
        for (int j = 0; j < 2; j++) {
            assert_true(n.dx[(size_t)((l * 2) * 4 + j)] == clean[(size_t)((l * 2) * 4 + j)]);
            assert_true(std::isfinite(n.dx[(size_t)((l * 2 + 1) * 4 + j)]) == (l > 30));
        }
    assert_true(!n.outcome[0].non_finite && n.outcome[1].non_finite);
}

// Adjoints that are 1 at every step. A run-up that misses what comes from beyond it makes 10^9 of that, and its chunk
// goes again; elsewhere run-ups leave 0. What was so large by mistake is not what those are judged by, nor where chunks
// are finished in order. A sequence beside it, whose run-ups miss no more than a tolerance of its largest adjoint,
// which comes last, has the bits that it has alone.
void a_wrong_start_sets_no_scale(void **) {
    constexpr int64_t L = 72, H = 3, chunk = 12, warm_up = 10;
    constexpr double small = 1e-6;
    const auto state = [](int64_t l, bool near) {
        return near ? std::sqrt(0.9) : l == 47 ? 1 : l >= 37 && l <= 45 ? 0 : std::sqrt(0.9);
    };
    // What lambda does at a step.
    const auto grows = [&](int64_t l, bool near) { return 10 * (1 - state(l, near) * state(l, near)); };
    // The last chunk starts behind both, 5e-7 of which its run-up misses.
    const auto given = [](int64_t l) { return l == 14 ? 1 : l == 22 ? 5e-7 : 0; };
    const auto set = [&](trained<double> &n, int64_t row, bool near) {
        const int64_t B = n.rows;
        for (int64_t u = 0; u < H; u++) {
            n.w_hh[(size_t)(u * H + u)] = 10, n.w_ih[(size_t)u] = 1, n.b_ih[(size_t)u] = n.b_hh[(size_t)u] = 0;
            n.h0[(size_t)(row * H + u)] = 0, n.dht[(size_t)(row * H + u)] = near ? small : 1;
            for (int64_t l = 0; l < L; l++)
                n.dy[(size_t)((l * B + row) * (H + 1) + u)] = l + 1 == L ? 0
                                                              : near     ? given(l)
                                                                         : 1 - grows(l + 1, false);
        }
        for (int64_t l = 0; l < L; l++)
            n.x[(size_t)(l * B + row)] =
                (state(l, near) == 1 ? 40 : std::atanh(state(l, near))) - (l > 0 ? 10 * state(l - 1, near) : 0);
    };
    const auto go_back = [&](trained<double> &n, int most) {
        dpcri_device_recurrent o = n.backward(DPCRI_DEVICE_OVERLAP);
        o.chunk = chunk, o.warm_up = warm_up, o.atol = o.rtol = small, o.max_sweeps = most;
        n.run(o, (uint64_t)most);
    };
    for (const int most : {1, 2, 8}) {
        trained<double> n(DPCRI_DEVICE_RNN_TANH, L, 3, 1, H, 0), alone(DPCRI_DEVICE_RNN_TANH, L, 1, 1, H, 0);
        set(n, 0, false), set(n, 1, true), set(n, 2, true), set(alone, 0, true);
        // Of the third a sweep leaves a chunk open, 1e-4 off; in order, the last chunk's start is near enough what the
        // one before it ended with, though not for what that began with.
        for (int64_t u = 0; u < H; u++)
            n.dy[(size_t)((50 * 3 + 2) * (H + 1) + u)] = 1e-4, n.dy[(size_t)((40 * 3 + 2) * (H + 1) + u)] = -1e-4;
        const std::vector<double> want = n.loop();
        go_back(n, most), go_back(alone, most);
        const std::vector<double> got = n.all();
        for (size_t i = 0; i < want.size(); i++)
            if (!std::isnan(want[i]) && !(std::fabs(got[i] - want[i]) <= 1e-4))
                fail_msg("%d sweeps, number %d: %.9g, wanted %.9g", most, (int)i, got[i], want[i]);
        if (n.outcome[0].sweeps < (most < 3 ? most : 3) || !(n.outcome[0].residual < 3e-6))
            fail_msg("%d sweeps: told %d, residual %g", most, n.outcome[0].sweeps, n.outcome[0].residual);
        n.assert_steps(alone.dx, L, n.dx, 3, 1, L, 1, 3, "dx");
        n.assert_row(alone.dh0, n.dh0, 1, H, "dh0");
        assert_int_equal(n.outcome[1].sweeps, 1);
        assert_int_equal(n.outcome[1].locked, L);
        assert_true(n.outcome[1].residual > 0 && n.outcome[1].residual == alone.outcome[0].residual);
        assert_true(n.outcome[2].residual > 1e-7 && n.outcome[2].residual < 3e-6);
    }
}

void what_cannot_be_is_refused(void **) {
    trained<float> n(DPCRI_DEVICE_LSTM, 10, 1, 2, 3, 0.5);
    dpcri_device_recurrent c = n.backward(DPCRI_DEVICE_OVERLAP);
    const size_t bytes = dpcri_cuda_recurrent_workspace(c);
    std::vector<unsigned char> w(bytes);
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), bytes - 1, nullptr), DPCRI_CUDA_WORKSPACE);
    c.kept = nullptr;
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), bytes, nullptr), DPCRI_CUDA_ARGUMENT);
    c = n.backward(DPCRI_DEVICE_LOOP), c.packed = 1, c.lengths = nullptr;
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), bytes, nullptr), DPCRI_CUDA_ARGUMENT);
    c = n.backward(DPCRI_DEVICE_LOOP), c.parted = 1;
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), bytes, nullptr), DPCRI_CUDA_ARGUMENT);
    c = n.backward(DPCRI_DEVICE_LOOP), c.rows = 0;
    assert_int_equal(dpcri_cuda_recurrent_run(c, nullptr, 0, nullptr), DPCRI_CUDA_OK);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(variants_are_the_definitions), cmocka_unit_test(what_is_cut_is_the_definitions),
        cmocka_unit_test(loop_is_the_definitions),      cmocka_unit_test(overlap_is_the_loop),
        cmocka_unit_test(bits_are_those_of_any_order),  cmocka_unit_test(sequences_are_apart),
        cmocka_unit_test(what_is_there_is_added_to),    cmocka_unit_test(tolerances_are_of_the_gradients_size),
        cmocka_unit_test(what_cannot_be_is_refused),    cmocka_unit_test(parts_of_sequences_are_apart),
        cmocka_unit_test(a_wrong_start_sets_no_scale),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
