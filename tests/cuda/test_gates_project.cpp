// SPDX-License-Identifier: MIT
// LSTMs that project, of the device's kernels on the CPU: states and gradients are the definition's, in higher
// precision, over widths beside and across tiles, with peepholes and coupled gates, lengths of their own, resets and
// against time; overlapped chunks are the loop to the bit, in every order; what is there is added to.
#include "network_case.h"

namespace {

typedef std::vector<long double> reals;

template <class T>
struct projected {
    int64_t L, B, I, H, P;
    bool back = false, coupled = false, peepholes = false, starts = true;
    double clip = 0;
    std::vector<T> w_ih, w_hh, w_hr, b_ih, b_hh, peephole, x, h0, c0, dy, dht, dct;  // given
    std::vector<T> y, ht, ct, kept, dx, dh0, dc0, dw_ih, dw_hh, dw_hr, db_ih, db_hh, dpeephole;
    std::vector<int64_t> lengths;
    std::vector<unsigned char> resets;
    std::vector<dpcr_device_outcome> outcome;

    projected(int64_t l, int64_t b, int64_t i, int64_t h, int64_t p, double size) : L(l), B(b), I(i), H(h), P(p) {
        const auto fill = network<T>::fill;
        fill(w_ih, 4 * H * I, 0.5), fill(w_hh, 4 * H * P, size / (double)P), fill(w_hr, P * H, 0.8);
        fill(b_ih, 4 * H, 0.3), fill(b_hh, 4 * H, 0.3), fill(peephole, 3 * H, 0.5), fill(x, L * B * I, 1);
        fill(h0, B * P, 1), fill(c0, B * H, 1), fill(dy, L * B * (P + 1), 1), fill(dht, B * P, 1), fill(dct, B * H, 1);
        lengths.assign((size_t)B, L), outcome.resize((size_t)B);
    }

    dpcri_device_recurrent forward(dpcri_device_way way) {
        y.assign((size_t)(L * B * (P + 2)), T(NAN)), ht.assign(h0.size(), T(NAN)), ct.assign(c0.size(), T(NAN));
        kept.assign((size_t)(L * B * H), T(NAN));
        dpcri_device_recurrent c = {};
        const int64_t last = back ? L - 1 : 0, sign = back ? -1 : 1;
        c.dtype = sizeof(T) == 4 ? DPCR_F32 : DPCR_F64, c.gates = DPCRI_DEVICE_LSTM, c.way = way;
        c.length = L, c.rows = B, c.inputs = I, c.hidden = H, c.projected = P;
        c.w_ih = w_ih.data(), c.w_hh = w_hh.data(), c.w_hr = w_hr.data(), c.b_ih = b_ih.data(), c.b_hh = b_hh.data();
        c.coupled = coupled, c.peepholes = peepholes, c.clip = clip, c.peephole = peephole.data();
        c.x = x.data() + last * B * I, c.x_step = sign * B * I, c.x_row = I;
        c.h0 = starts ? h0.data() : nullptr, c.c0 = starts ? c0.data() : nullptr;
        c.y = y.data() + last * B * (P + 2), c.y_step = sign * B * (P + 2), c.y_row = P + 2;
        c.ht = ht.data(), c.ct = ct.data(), c.kept = kept.data(), c.outcome = outcome.data(), c.against = back;
        c.lengths = lengths.data(), c.parted = !resets.empty(), c.resets = resets.data();
        for (const int64_t n : lengths) c.packed = c.packed || n < L;
        return c;
    }
    void run(dpcri_device_recurrent c, uint64_t seed) {
        c.share = seed % 2 == 1;
        const size_t size = dpcri_cuda_recurrent_workspace(c), behind = 1 << 16;
        std::vector<unsigned char> workspace(size + behind, 0xff);
        order(seed, 2);
        const int status = dpcri_cuda_recurrent_run(c, workspace.data(), size, nullptr);
        if (status != DPCRI_CUDA_OK) fail_msg("status %d", status);
        for (size_t i = size; i < size + behind; i++)
            if (workspace[i] != 0xff) fail_msg("the workspace's byte %zu of %zu written", i, size);
    }
    // Arguments to go back over what ran; gradients of parameters are `there` at first.
    dpcri_device_recurrent backward(dpcri_device_recurrent c, T there = 0) {
        const int64_t last = back ? L - 1 : 0, sign = back ? -1 : 1;
        dx.assign(x.size(), T(NAN)), dh0.assign(h0.size(), T(NAN)), dc0.assign(c0.size(), T(NAN));
        dw_ih.assign(w_ih.size(), there), dw_hh.assign(w_hh.size(), there), dw_hr.assign(w_hr.size(), there);
        db_ih.assign(b_ih.size(), there), db_hh = db_ih, dpeephole.assign(peephole.size(), there);
        c.backward = 1;
        c.dy = dy.data() + last * B * (P + 1), c.dy_step = sign * B * (P + 1), c.dy_row = P + 1;
        c.dht = dht.data(), c.dct = dct.data(), c.dh0 = dh0.data(), c.dc0 = dc0.data();
        c.dx = dx.data() + last * B * I, c.dx_step = sign * B * I, c.dx_row = I;
        c.dw_ih = dw_ih.data(), c.dw_hh = dw_hh.data(), c.dw_hr = dw_hr.data();
        c.db_ih = db_ih.data(), c.db_hh = db_hh.data(), c.dpeephole = dpeephole.data();
        return c;
    }
    std::vector<T> all() const {
        std::vector<T> v;
        for (const std::vector<T> *p :
             {&y, &ht, &ct, &dx, &dh0, &dc0, &dw_ih, &dw_hh, &dw_hr, &db_ih, &db_hh, &dpeephole})
            v.insert(v.end(), p->begin(), p->end());
        return v;
    }
    std::vector<T> loop() {
        const dpcri_device_recurrent c = forward(DPCRI_DEVICE_LOOP);
        run(c, 1);
        run(backward(c), 2);
        return all();
    }

    // ---- the definition, in long double ----

    reals sums_ih, sums_hh, sums_hr, sums_b, sums_p;
    double bound = 0;

    long double peep(int which, int64_t u, long double cell) const {
        return peepholes ? (long double)peephole[(size_t)(which * H + u)] * cell : 0;
    }
    long double cut(long double u) const {
        const long double most = (T)clip;
        return clip > 0 ? std::fmax(-most, std::fmin(most, u)) : u;
    }
    // Slopes of the functions at what they gave.
    long double of_sigmoid(long double v) const {
        const bool ends = clip > 0 && (v == sigmoid(cut(1e9L)) || v == sigmoid(cut(-1e9L)));
        return ends ? 0 : v * (1 - v);
    }
    long double of_tanh(long double v) const {
        return clip > 0 && std::fabs(v) == std::tanh(cut(1e9L)) ? 0 : 1 - v * v;
    }
    void close(const char *what, T got, long double want) const {
        if (!(std::fabs(got - want) <= bound * (1 + std::fabs(want))))
            fail_msg("%s, H %d P %d: %.9g, wanted %.9g", what, (int)H, (int)P, (double)got, (double)want);
    }

    void sequence(int64_t r) {
        const int64_t n = lengths[(size_t)r];
        const auto time = [&](int64_t m) { return back ? n - 1 - m : m; };
        const auto begins = [&](int64_t m) {  // before step m
            const int64_t t = back ? n - m : m;
            return !resets.empty() && t < n && resets[(size_t)(t * B + r)];
        };
        std::vector<reals> h((size_t)n + 1, reals((size_t)P)), c((size_t)n + 1, reals((size_t)H)), tape = h, before = h,
                                                                                                   past = c;
        for (int64_t j = 0; j < P && starts; j++) h[0][(size_t)j] = h0[(size_t)(r * P + j)];
        for (int64_t u = 0; u < H && starts; u++) c[0][(size_t)u] = c0[(size_t)(r * H + u)];
        for (int64_t m = 0; m < n; m++) {
            const size_t k = (size_t)m;
            before[k] = begins(m) ? reals((size_t)P) : h[k], past[k] = begins(m) ? reals((size_t)H) : c[k];
            tape[k].assign((size_t)(5 * H), 0);
            for (int64_t u = 0; u < H; u++) {
                long double a[4];
                for (int64_t g = 0; g < 4; g++) {
                    a[g] = (long double)b_ih[(size_t)(g * H + u)] + b_hh[(size_t)(g * H + u)];
                    for (int64_t j = 0; j < I; j++)
                        a[g] +=
                            (long double)w_ih[(size_t)((g * H + u) * I + j)] * x[(size_t)((time(m) * B + r) * I + j)];
                    for (int64_t j = 0; j < P; j++)
                        a[g] += (long double)w_hh[(size_t)((g * H + u) * P + j)] * before[k][(size_t)j];
                }
                const long double was = past[k][(size_t)u], i = sigmoid(cut(a[0] + peep(0, u, was)));
                const long double f = coupled ? 1 - i : sigmoid(cut(a[1] + peep(1, u, was))), v = std::tanh(cut(a[2]));
                const long double now = f * was + i * v, o = sigmoid(cut(a[3] + peep(2, u, now)));
                const long double values[] = {i, f, v, o, o * std::tanh(cut(now))};
                c[k + 1][(size_t)u] = now;
                for (int64_t q = 0; q < 5; q++) tape[k][(size_t)(q * H + u)] = values[q];
            }
            for (int64_t j = 0; j < P; j++) {
                for (int64_t u = 0; u < H; u++)
                    h[k + 1][(size_t)j] += (long double)w_hr[(size_t)(j * H + u)] * tape[k][(size_t)(4 * H + u)];
                close("y", y[(size_t)((time(m) * B + r) * (P + 2) + j)], h[k + 1][(size_t)j]);
            }
            assert_true(std::isnan(y[(size_t)((time(m) * B + r) * (P + 2) + P)]));
        }
        for (int64_t t = n; t < L; t++)
            for (int64_t j = 0; j < P; j++) assert_true(y[(size_t)((t * B + r) * (P + 2) + j)] == 0);
        for (int64_t j = 0; j < P; j++) close("ht", ht[(size_t)(r * P + j)], h[(size_t)n][(size_t)j]);
        for (int64_t u = 0; u < H; u++) close("ct", ct[(size_t)(r * H + u)], c[(size_t)n][(size_t)u]);
        reals g((size_t)P), gc((size_t)H);
        for (int64_t j = 0; j < P; j++) g[(size_t)j] = dht[(size_t)(r * P + j)];
        for (int64_t u = 0; u < H; u++) gc[(size_t)u] = dct[(size_t)(r * H + u)];
        for (int64_t m = n - 1; m >= 0; m--)
            step_back(r, time(m), before[(size_t)m], past[(size_t)m], c[(size_t)m + 1], tape[(size_t)m], begins(m), g,
                      gc);
        for (int64_t j = 0; j < P; j++) close("dh0", dh0[(size_t)(r * P + j)], g[(size_t)j]);
        for (int64_t u = 0; u < H; u++) close("dc0", dc0[(size_t)(r * H + u)], gc[(size_t)u]);
        for (int64_t t = n; t < L; t++)
            for (int64_t j = 0; j < I; j++) assert_true(dx[(size_t)((t * B + r) * I + j)] == 0);
    }
    void step_back(int64_t r, int64_t t, const reals &h, const reals &was, const reals &now, const reals &tape,
                   bool begun, reals &g, reals &gc) {
        reals e((size_t)(4 * H)), on((size_t)P), into((size_t)I);
        for (int64_t j = 0; j < P; j++) g[(size_t)j] += dy[(size_t)((t * B + r) * (P + 1) + j)];
        for (int64_t u = 0; u < H; u++) {
            const size_t s = (size_t)u;
            long double d = 0;
            for (int64_t j = 0; j < P; j++) {
                d += (long double)w_hr[(size_t)(j * H + u)] * g[(size_t)j];
                sums_hr[(size_t)(j * H + u)] += g[(size_t)j] * tape[(size_t)(4 * H + u)];
            }
            const long double i = tape[s], f = tape[(size_t)(H + u)], v = tape[(size_t)(2 * H + u)],
                              o = tape[(size_t)(3 * H + u)], th = std::tanh(cut(now[s]));
            const long double eo = d * th * of_sigmoid(o), dc = gc[s] + d * o * of_tanh(th) + peep(2, u, eo);
            e[s] = dc * (v - (coupled ? was[s] : 0)) * of_sigmoid(i);
            e[(size_t)(H + u)] = coupled ? 0 : dc * was[s] * of_sigmoid(f);
            e[(size_t)(2 * H + u)] = dc * i * of_tanh(v), e[(size_t)(3 * H + u)] = eo;
            gc[s] = begun ? 0 : dc * f + peep(0, u, e[s]) + peep(1, u, e[(size_t)(H + u)]);
            if (!peepholes) continue;
            sums_p[s] += e[s] * was[s], sums_p[(size_t)(H + u)] += e[(size_t)(H + u)] * was[s];
            sums_p[(size_t)(2 * H + u)] += eo * now[s];
        }
        for (int64_t q = 0; q < 4 * H; q++) {
            sums_b[(size_t)q] += e[(size_t)q];
            for (int64_t j = 0; j < P; j++) {
                on[(size_t)j] += e[(size_t)q] * w_hh[(size_t)(q * P + j)];
                sums_hh[(size_t)(q * P + j)] += e[(size_t)q] * h[(size_t)j];
            }
            for (int64_t j = 0; j < I; j++) {
                into[(size_t)j] += e[(size_t)q] * w_ih[(size_t)(q * I + j)];
                sums_ih[(size_t)(q * I + j)] += e[(size_t)q] * x[(size_t)((t * B + r) * I + j)];
            }
        }
        for (int64_t j = 0; j < I; j++) close("dx", dx[(size_t)((t * B + r) * I + j)], into[(size_t)j]);
        g = begun ? reals((size_t)P) : on;
    }
    void matches(double allowed) {
        bound = allowed;
        sums_ih.assign(w_ih.size(), 0), sums_hh.assign(w_hh.size(), 0), sums_hr.assign(w_hr.size(), 0);
        sums_b.assign(b_ih.size(), 0), sums_p.assign(peephole.size(), 0);
        for (int64_t r = 0; r < B; r++)  // nobody reads what comes to no step
            for (int64_t i = lengths[(size_t)r]; i < L; i++) dy[(size_t)((i * B + r) * (P + 1))] = T(NAN);
        (void)loop();
        for (int64_t r = 0; r < B; r++) sequence(r);
        const auto sums = [&](const char *what, const std::vector<T> &got, const reals &want) {
            for (size_t i = 0; i < want.size(); i++) close(what, got[i], want[i]);
        };
        bound = 4 * allowed;
        sums("dw_ih", dw_ih, sums_ih), sums("dw_hh", dw_hh, sums_hh), sums("dw_hr", dw_hr, sums_hr);
        sums("db_ih", db_ih, sums_b), sums("db_hh", db_hh, sums_b), sums("dpeephole", dpeephole, sums_p);
        for (const dpcr_device_outcome &o : outcome) assert_true(o.locked == L && !o.non_finite && o.residual == 0);
    }
};

template <class T>
void vary(projected<T> &n, int variant) {
    n.peepholes = variant & 1, n.coupled = variant >> 1 & 1, n.back = variant >> 2 & 1;
    n.clip = variant % 3 == 1 ? 0.4 : 0;
}

void states_and_gradients_are_the_definitions(void **) {
    const int64_t sizes[][2] = {{1, 1}, {2, 1}, {5, 3}, {8, 8}, {33, 7}, {40, 32}, {36, 33}, {12, 11}};
    int variant = 0;
    for (const auto &size : sizes) {
        projected<double> n(9, 1 + variant % 3, 3, size[0], size[1], 0.9);
        vary(n, variant);
        n.starts = variant % 3 != 2;
        n.matches(1e-12);
        projected<double> ragged(11, 4, 2, size[0], size[1], 0.9);
        vary(ragged, ++variant);
        ragged.lengths = {11, 0, 4, 7};
        ragged.matches(1e-12);
    }
    projected<float> wide(40, 15, 20, 130, 129, 0.9);  // beyond a tile both ways, and a piece of the sums
    wide.matches(2e-4);
    projected<double> more(65, 2, 1, 40, 200, 0.9);  // numbers than units or inputs, in pieces
    more.matches(1e-12);
    projected<float> one(1, 1, 130, 3, 2, 0.9);
    one.matches(1e-5);
}

void new_sequences_begin(void **) {
    for (int variant = 0; variant < 8; variant++) {
        projected<double> n(20, 3, 2, 5, 3, 0.9);
        vary(n, variant);
        n.lengths = {20, 13, 1};
        n.resets.assign(60, 0);
        for (const int at : {0 * 3 + 0, 7 * 3 + 0, 8 * 3 + 0, 19 * 3 + 0, 4 * 3 + 1, 12 * 3 + 1, 15 * 3 + 1, 0 * 3 + 2})
            n.resets[(size_t)at] = 1;
        n.matches(1e-12);
    }
}

// Of chains that forget, and that do not; with lengths of their own and resets.
void overlap_is_the_loop(void **) {
    uint64_t seed = 0;
    for (const double size : {0.5, 12.0})
        for (int variant = 0; variant < 8; variant++, seed++) {
            projected<float> n(1 + (int64_t)(seed * 7 % 41), 1 + (int64_t)(seed % 3), 2, 5, 3, size);
            vary(n, variant);
            if (variant % 2) n.lengths[0] = n.L / 2;
            if (variant % 3 == 2) n.resets.assign((size_t)(n.L * n.B), 0), n.resets[(size_t)(n.L / 3 * n.B)] = 1;
            const std::vector<float> want = n.loop();
            dpcri_device_recurrent c = n.forward(DPCRI_DEVICE_OVERLAP);
            vary(c, seed);
            n.run(c, seed);
            for (const dpcr_device_outcome &o : n.outcome) assert_true(o.residual == 0 && !o.non_finite);
            n.run(n.backward(c), seed + 1);
            assert_same(want, n.all(), "overlap");
        }
}

void bits_are_those_of_any_order(void **) {
    projected<float> n(24, 30, 5, 6, 4, 0.8);
    std::vector<float> first;
    for (const uint64_t seed : {0, 3, 4, 5}) {
        dpcri_device_recurrent c = n.forward(DPCRI_DEVICE_OVERLAP);
        c.chunk = 8, c.warm_up = 4, c.atol = c.rtol = 1e-3;
        n.run(c, seed);
        n.run(n.backward(c), seed);
        if (seed == 0) first = n.all();
        assert_same(first, n.all(), "another order");
    }
}

// Gradients add onto what is there; what is not wanted is left out; what does not come in is zero.
void what_is_there_is_added_to(void **) {
    projected<double> n(12, 2, 3, 5, 4, 0.9);
    (void)n.loop();
    const std::vector<double> hr = n.dw_hr, hh = n.dw_hh, dx = n.dx;
    const dpcri_device_recurrent ran = n.forward(DPCRI_DEVICE_LOOP);
    n.run(ran, 1);
    dpcri_device_recurrent c = n.backward(ran, 3);
    c.dh0 = c.dc0 = nullptr, c.dw_ih = c.db_hh = nullptr;
    n.run(c, 2);
    for (size_t i = 0; i < hr.size(); i++) assert_true(n.dw_hr[i] == 3 + hr[i]);
    for (size_t i = 0; i < hh.size(); i++) assert_true(n.dw_hh[i] == 3 + hh[i]);
    for (const double v : n.dw_ih) assert_true(v == 3);
    assert_same(dx, n.dx, "dx");
    n.dht.assign(n.dht.size(), 0), n.dy.assign(n.dy.size(), 0);
    n.run(n.backward(ran), 3);
    const std::vector<double> want = n.all();
    c = n.backward(ran);
    c.dht = c.dy = nullptr;
    n.run(c, 4);
    assert_same(want, n.all(), "nothing comes to h");
    c = n.backward(ran);
    c.dw_hr = nullptr, c.dx = nullptr;
    n.run(c, 5);
    assert_true(n.dw_hr[0] == 0 && std::isnan(n.dx[0]) && n.dw_hh[0] != 0);
}

void what_cannot_be_is_refused(void **) {
    projected<float> n(4, 2, 2, 3, 2, 0.5);
    dpcri_device_recurrent c = n.forward(DPCRI_DEVICE_LOOP);
    const size_t bytes = dpcri_cuda_recurrent_workspace(c);
    std::vector<unsigned char> w(bytes);
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), bytes - 1, nullptr), DPCRI_CUDA_WORKSPACE);
    c.w_hr = nullptr;
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), bytes, nullptr), DPCRI_CUDA_ARGUMENT);
    c = n.forward(DPCRI_DEVICE_LOOP), c.y_step++;
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), bytes, nullptr), DPCRI_CUDA_ARGUMENT);
    c = n.forward(DPCRI_DEVICE_LOOP), c.gates = DPCRI_DEVICE_GRU;
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), bytes, nullptr), DPCRI_CUDA_UNSUPPORTED);
    c = n.forward(DPCRI_DEVICE_NEWTON);
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), bytes, nullptr), DPCRI_CUDA_UNSUPPORTED);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(states_and_gradients_are_the_definitions),
        cmocka_unit_test(new_sequences_begin),
        cmocka_unit_test(overlap_is_the_loop),
        cmocka_unit_test(bits_are_those_of_any_order),
        cmocka_unit_test(what_is_there_is_added_to),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
