// SPDX-License-Identifier: MIT
// Recurrent networks of the device's kernels on the CPU: the loop is the definition's, in higher precision, over kinds,
// widths beside and across tiles and strides both ways; overlapped chunks are the loop to the bit, on chains that
// forget and on chains that do not, in every order and any batch; what the report says.
#include "network_case.h"

namespace {

void loop_is_the_definitions(void **) {
    for (const dpcri_device_gates kind : kinds) {
        network<double> narrow(kind, 9, 2, 3, 5, 0.9);
        narrow.matches(1e-13);
        network<float> wide(kind, 5, 17, 20, 33, 0.9);  // beyond a tile both ways, and a slice of the sums
        wide.back = true;
        wide.matches(2e-5);
    }
}

void overlap_is_the_loop(void **) {
    uint64_t seed = 0;
    for (const dpcri_device_gates kind : kinds)
        for (const double size : {0.5, 12.0}) {  // forgets at once, or not
            if (kind == DPCRI_DEVICE_RNN_RELU && size > 1) continue;
            for (const int64_t length : {1, 17, 40}) {
                network<float> n(kind, length, 1 + (int64_t)(seed % 3), 2, 3, size);
                const std::vector<float> want = n.loop(), end = n.ht;
                dpcri_device_recurrent o = n.arguments(DPCRI_DEVICE_OVERLAP);
                vary(o, seed);
                n.run(o, seed++);
                assert_same(want, n.y, "overlap");
                assert_same(end, n.ht, "last states");
                n.assert_exact(o.max_sweeps);
            }
        }
}

void closed_gates_let_nothing_through(void **) {
    const int64_t length = 50, hidden = 4;
    network<float> n(DPCRI_DEVICE_LSTM, length, 1, 1, hidden, 0);
    for (std::vector<float> *const v : {&n.w_ih, &n.w_hh, &n.b_hh, &n.h0, &n.c0}) v->assign(v->size(), 0.0f);
    for (int64_t i = 0; i < 4 * hidden; i++) n.b_ih[(size_t)i] = i < hidden ? -40.0f : 40.0f;  // i closed; f, g, o open
    const std::vector<float> y = n.loop();
    for (int64_t i = 0; i < length * (hidden + 3); i++) assert_true(i % (hidden + 3) >= hidden || y[(size_t)i] == 0);
}

void what_is_open_is_told(void **) {
    network<float> n(DPCRI_DEVICE_GRU, 30, 2, 2, 3, 0.5);
    const std::vector<float> want = n.loop();
    dpcri_device_recurrent o = n.arguments(DPCRI_DEVICE_OVERLAP);
    o.chunk = 6, o.warm_up = 1, o.max_sweeps = 1, o.stop = 1;
    n.run(o, 2);
    for (const dpcr_device_outcome &r : n.outcome) assert_true(r.locked == 6 && r.residual > 0);
    for (int64_t i = 0; i < 6 * 2 * 6; i++) assert_true(n.y[(size_t)i] == want[(size_t)i] || i % 6 > 2);
    o.stop = 0, o.atol = o.rtol = 0.05;  // wide enough
    o.warm_up = 6;
    n.run(o, 3);
    for (const dpcr_device_outcome &r : n.outcome) assert_true(r.locked == 30 && r.residual > 0 && r.residual < 0.1);
    // Another sequence's NaN is its own.
    n.x[(size_t)((10 * 2 + 1) * 2)] = NAN;
    o.atol = o.rtol = 0;
    n.run(o, 4);
    for (int64_t m = 0; m < 30; m++)
        for (int64_t r = 0; r < 2; r++) {
            const size_t at = (size_t)((m * 2 + r) * 6);
            assert_true(r == 1 && m >= 10 ? std::isnan(n.y[at]) : n.y[at] == want[at]);
        }
    assert_true(!n.outcome[0].non_finite && n.outcome[1].non_finite);
}

// An end that is infinite is no end that agrees with a finite one.
void what_overflows_is_open(void **) {
    network<float> n(DPCRI_DEVICE_RNN_RELU, 600, 1, 1, 3, 0);
    n.w_hh.assign(9, 1), n.w_ih.assign(3, 0), n.b_ih.assign(3, 1), n.b_hh.assign(3, 0), n.h0.assign(3, 1);
    const std::vector<float> want = n.loop(), end = n.ht;
    assert_true(std::isinf(end[0]));
    dpcri_device_recurrent o = n.arguments(DPCRI_DEVICE_OVERLAP);
    o.chunk = 64, o.warm_up = 16, o.atol = o.rtol = 1e-5;
    n.run(o, 3);
    for (int64_t m = 0; m < 600; m++) {
        const float got = n.y[(size_t)(m * 6)], wanted = want[(size_t)(m * 6)];
        if (std::isfinite(got) != std::isfinite(wanted))
            fail_msg("step %d: %g, not %g", (int)m, (double)got, (double)wanted);
    }
    assert_true(n.outcome[0].non_finite && n.outcome[0].sweeps > 1);
}

void bits_are_those_of_any_order_and_batch(void **) {
    network<float> all(DPCRI_DEVICE_LSTM, 24, 18, 2, 3, 0.8);
    dpcri_device_recurrent o = all.arguments(DPCRI_DEVICE_OVERLAP);
    o.chunk = 8, o.warm_up = 4, o.atol = o.rtol = 1e-3;
    all.run(o, 0);
    const std::vector<float> first = all.y;
    all.run(o, 5);
    assert_same(first, all.y, "another order");
    dpcri_device_recurrent one = o;
    one.rows = 1;
    one.x = all.x.data() + 17 * 2, one.h0 = all.h0.data() + 17 * 3, one.c0 = all.c0.data() + 17 * 3;
    one.y = all.y.data() + 17 * 6;
    all.run(one, 6);
    assert_same(first, all.y, "alone");
}

// What an item starts from is noted before anybody goes on: a chain that forgets needs one sweep in any order.
void chains_that_forget_take_one_sweep(void **) {
    for (uint64_t seed = 0; seed < 6; seed++) {
        network<float> n(DPCRI_DEVICE_LSTM, 36, 12, 2, 3, 0.5);
        for (float &b : n.b_ih) b -= 1;  // forget gates at 0.3
        dpcri_device_recurrent o = n.arguments(DPCRI_DEVICE_OVERLAP);
        o.chunk = 12, o.warm_up = 10, o.atol = o.rtol = 1e-3;
        n.run(o, seed);
        for (const dpcr_device_outcome &r : n.outcome) assert_true(r.sweeps == 1 && r.locked == 36);
        o.length = 24, o.warm_up = 12, o.atol = o.rtol = 0;  // back to h0 itself
        n.run(o, seed);
        for (const dpcr_device_outcome &r : n.outcome) assert_true(r.sweeps == 1 && r.residual == 0);
    }
}

// RNNs of any width by newton: states and last states near the loop's; what has no room is told before anything is
// launched.
void rnns_by_newton(void **) {
    uint64_t seed = 0;
    for (const int64_t hidden : {3, 9, 33})
        for (const dpcri_device_gates kind : {DPCRI_DEVICE_RNN_TANH, DPCRI_DEVICE_RNN_RELU}) {
            network<float> n(kind, 30, 2, 3, hidden, 0.7);
            n.back = seed % 2 == 1;
            const std::vector<float> loop = n.loop(), last = n.ht;
            dpcri_device_recurrent c = n.arguments(DPCRI_DEVICE_NEWTON);
            c.atol = c.rtol = 2e-6;
            assert_int_equal(dpcri_cuda_recurrent_fits(c), DPCRI_CUDA_OK);
            n.run(c, seed++);
            for (size_t i = 0; i < loop.size(); i++)
                assert_true(std::isnan(loop[i]) || std::fabs(n.y[i] - loop[i]) <= 1e-4f * (1 + std::fabs(loop[i])));
            for (size_t i = 0; i < last.size(); i++)
                assert_true(std::fabs(n.ht[i] - last[i]) <= 1e-4f * (1 + std::fabs(last[i])));
            for (const dpcr_device_outcome &o : n.outcome) assert_true(o.locked == 30 && o.sweeps < 16);
        }
    network<float> n(DPCRI_DEVICE_RNN_TANH, 30, 2, 3, 40, 0.7);
    dpcri_device_recurrent c = n.arguments(DPCRI_DEVICE_NEWTON);
    std::vector<unsigned char> w(dpcri_cuda_recurrent_workspace(c), 0x5a);
    const struct {
        int blocks;
        int64_t bytes;
        int told;
    } devices[] = {{0, 227 << 10, DPCRI_CUDA_UNSUPPORTED}, {8, 4 << 10, DPCRI_CUDA_WIDTH}};
    for (const auto &of : devices) {
        const device d(of.blocks, of.bytes);
        assert_int_equal(dpcri_cuda_recurrent_fits(c), of.told);
        assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), w.size(), nullptr), of.told);
    }
    for (const unsigned char byte : w) assert_true(byte == 0x5a);
}

void what_cannot_be_is_refused(void **) {
    network<float> n(DPCRI_DEVICE_GRU, 10, 1, 2, 3, 0.5);
    dpcri_device_recurrent c = n.arguments(DPCRI_DEVICE_OVERLAP);
    const size_t bytes = dpcri_cuda_recurrent_workspace(c);
    std::vector<unsigned char> w(bytes);
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), bytes - 1, nullptr), DPCRI_CUDA_WORKSPACE);
    c.way = DPCRI_DEVICE_NEWTON;
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), bytes, nullptr), DPCRI_CUDA_UNSUPPORTED);
    c = n.arguments(DPCRI_DEVICE_LOOP), c.x = nullptr;
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), bytes, nullptr), DPCRI_CUDA_ARGUMENT);
    c = n.arguments(DPCRI_DEVICE_LOOP), c.hidden = 0;
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), bytes, nullptr), DPCRI_CUDA_ARGUMENT);
    c = n.arguments(DPCRI_DEVICE_LOOP), c.length = 0;
    assert_int_equal(dpcri_cuda_recurrent_run(c, nullptr, 0, nullptr), DPCRI_CUDA_OK);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(loop_is_the_definitions),
        cmocka_unit_test(overlap_is_the_loop),
        cmocka_unit_test(closed_gates_let_nothing_through),
        cmocka_unit_test(what_is_open_is_told),
        cmocka_unit_test(what_overflows_is_open),
        cmocka_unit_test(bits_are_those_of_any_order_and_batch),
        cmocka_unit_test(chains_that_forget_take_one_sweep),
        cmocka_unit_test(rnns_by_newton),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
