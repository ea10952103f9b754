// SPDX-License-Identifier: MIT
// Recurrent cells whose units do not mix, of the device's kernels on the CPU: the loop is the definition's, in higher
// precision, over strides both ways and lengths of their own; overlapped chunks are the loop to the bit, in every
// order.
#include "network_case.h"

namespace {

const dpcri_device_gates apart[] = {DPCRI_DEVICE_PARAGRU, DPCRI_DEVICE_PARALSTM, DPCRI_DEVICE_MINGRU};

template <class T>
struct para_case : network<T> {
    using network<T>::network;

    void matches(double bound) {
        (void)this->loop();
        const network<T> &n = *this;
        const int64_t H = n.hidden, I = n.inputs, B = n.rows;
        for (int64_t r = 0; r < B; r++)
            for (int64_t u = 0; u < H; u++) {
                long double h = n.h0[(size_t)(r * H + u)], c = n.c0[(size_t)(r * H + u)];
                const int64_t count = n.lengths[(size_t)r];
                const auto a = [&](int64_t g) { return (long double)n.w_hh[(size_t)(g * H + u)] * h; };
                for (int64_t k = 0; k < n.length; k++) {
                    const int64_t l = k < count && n.back ? count - 1 - k : k;
                    long double v[3] = {}, want = 0;
                    for (int64_t g = 0; g < n.gates; g++) {
                        v[g] = n.b_ih[(size_t)(g * H + u)];
                        for (int64_t j = 0; j < I; j++)
                            v[g] +=
                                (long double)n.w_ih[(size_t)((g * H + u) * I + j)] * n.x[(size_t)((l * B + r) * I + j)];
                    }
                    if (k < count) {
                        if (n.kind == DPCRI_DEVICE_MINGRU) h = (1 - sigmoid(v[0])) * h + sigmoid(v[0]) * v[1];
                        if (n.kind == DPCRI_DEVICE_PARAGRU) {
                            const long double z = sigmoid(v[0] + a(0));
                            h = (1 - z) * h + z * std::tanh(v[2] + sigmoid(v[1] + a(1)) * a(2));
                        }
                        if (n.kind == DPCRI_DEVICE_PARALSTM) {
                            const long double f = sigmoid(v[0] + a(0) + n.peephole[(size_t)u] * c),
                                              z = std::tanh(v[1] + a(1));
                            c = f * c + (1 - f) * z;
                            h = sigmoid(v[2] + a(2) + n.peephole[(size_t)(H + u)] * c) * std::tanh(c);
                        }
                        want = h;
                    }
                    const T got = n.y[(size_t)((l * B + r) * (H + 3) + u)];
                    if (!(std::fabs(got - want) <= bound * (1 + std::fabs(want))))
                        fail_msg("kind %d row %d step %d unit %d: %.9g, wanted %.9g", n.kind, (int)r, (int)l, (int)u,
                                 (double)got, (double)want);
                }
                assert_true(std::fabs(n.ht[(size_t)(r * H + u)] - h) <= bound * 2);
                if (n.kind == DPCRI_DEVICE_PARALSTM) assert_true(std::fabs(n.ct[(size_t)(r * H + u)] - c) <= bound * 4);
            }
        for (const dpcr_device_outcome &o : n.outcome) assert_true(o.locked == n.length && !o.non_finite);
    }
};

void loop_is_the_definitions(void **) {
    for (const dpcri_device_gates kind : apart) {
        para_case<double> narrow(kind, 9, 2, 3, 5, 0.9);
        narrow.matches(1e-13);
        para_case<float> wide(kind, 20, 9, 20, 37, 0.9);
        wide.back = true;
        wide.matches(3e-5);
        uneven_matches<para_case<double>>(kind, 1e-13);
    }
}

void overlap_is_the_loop(void **) {
    uint64_t seed = 0;
    for (const dpcri_device_gates kind : apart)
        for (const double size : {0.4, 6.0})  // forgets soon, or not
            for (const int64_t length : {1, 17, 40}) {
                network<float> n(kind, length, 1 + (int64_t)(seed % 3), 2, 50, size);
                n.back = seed % 2 == 1;
                if (seed % 3 == 2) n.lengths[1] = length / 2;
                const std::vector<float> want = n.loop(), end = n.ht, cells = n.ct;
                dpcri_device_recurrent o = n.arguments(DPCRI_DEVICE_OVERLAP);
                vary(o, seed);
                n.run(o, seed++);
                assert_same(want, n.y, "overlap");
                assert_same(end, n.ht, "last states");
                if (n.cell()) assert_same(cells, n.ct, "last c");
                n.assert_exact(o.max_sweeps);
            }
}

void packed_is_apart(void **) {
    for (const bool against : {false, true})
        for (const dpcri_device_gates kind : apart)
            for (const dpcri_device_way way : {DPCRI_DEVICE_LOOP, DPCRI_DEVICE_OVERLAP}) {
                network<float> all(kind, 30, 5, 2, 3, 0.7);
                all.back = against;
                all.lengths = {13, 30, 0, 1, 22};
                dpcri_device_recurrent o = all.arguments(way);
                o.chunk = 7, o.warm_up = 5;
                all.run(o, 4);
                for (int64_t r = 0; r < 5; r++) {
                    network<float> one(kind, all.lengths[(size_t)r], 1, 2, 3, 0.7);
                    one.take(all, r);
                    if (one.length > 0) (void)one.loop();
                    one.assert_states(all, r);
                }
            }
}

// A NaN is its sequence's own, from its step on.
void what_is_not_finite_stays_in_its_sequence(void **) {
    for (const dpcri_device_gates kind : apart)
        for (const dpcri_device_way way : {DPCRI_DEVICE_LOOP, DPCRI_DEVICE_OVERLAP}) {
            network<float> n(kind, 30, 3, 2, 5, 0.5);
            const std::vector<float> want = n.loop();
            n.x[(size_t)((10 * 3 + 1) * 2)] = NAN;
            dpcri_device_recurrent o = n.arguments(way);
            o.chunk = 6, o.warm_up = 4;
            n.run(o, 4);
            for (int64_t m = 0; m < 30; m++)
                for (int64_t r = 0; r < 3; r++)
                    for (int64_t u = 0; u < 5; u++) {
                        const size_t at = (size_t)((m * 3 + r) * 8 + u);
                        assert_true(r == 1 && m >= 10 ? std::isnan(n.y[at]) : n.y[at] == want[at]);
                    }
            for (size_t r = 0; r < 3; r++) assert_int_equal(n.outcome[r].non_finite != 0, r == 1);
        }
}

// A warm-up that would begin before the chain begins with it, and what is left of it is run.
void chains_that_forget_take_one_sweep(void **) {
    for (uint64_t seed = 0; seed < 4; seed++) {
        network<float> n(DPCRI_DEVICE_PARAGRU, 60, 3, 2, 5, 0.2);
        dpcri_device_recurrent o = n.arguments(DPCRI_DEVICE_OVERLAP);
        o.chunk = 10, o.warm_up = 25, o.atol = o.rtol = 1e-3;
        n.run(o, seed);
        for (const dpcr_device_outcome &r : n.outcome) {
            assert_int_equal(r.sweeps, 1);
            assert_int_equal(r.locked, 60);
        }
    }
}

void what_cannot_be_is_refused(void **) {
    network<float> n(DPCRI_DEVICE_PARALSTM, 10, 1, 2, 3, 0.5);
    dpcri_device_recurrent c = n.arguments(DPCRI_DEVICE_OVERLAP);
    const size_t bytes = dpcri_cuda_recurrent_workspace(c);
    std::vector<unsigned char> w(bytes);
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), bytes - 1, nullptr), DPCRI_CUDA_WORKSPACE);
    c.peephole = nullptr;
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), bytes, nullptr), DPCRI_CUDA_ARGUMENT);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(loop_is_the_definitions),
        cmocka_unit_test(overlap_is_the_loop),
        cmocka_unit_test(packed_is_apart),
        cmocka_unit_test(what_is_not_finite_stays_in_its_sequence),
        cmocka_unit_test(chains_that_forget_take_one_sweep),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
