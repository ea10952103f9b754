// SPDX-License-Identifier: MIT
// Fused Newton of the device's kernels on the CPU: the loop's states to the tolerance over tiles and windows, in few
// sweeps; one set of bits for any order and any batch; what does not converge is the loop's, and says so.
#include <algorithm>

#include "cell_case.h"
#include "kern/cuda/cells_run.h"

namespace {

typedef cells::span_of<32, 2, 3> small;  // tiles of 64 steps, windows of three

template <int K, class S, class T>
void solve(cell_case<T> &c, const dpcri_device_cell &arguments, uint64_t seed) {
    std::vector<unsigned char> workspace(cells::workspace_of<T, K, S>(arguments), 0xff);
    order(seed, 2);
    const int status = cells::run_width<T, K, S>(arguments, workspace.data(), nullptr);
    if (status != 0) fail_msg("status %d", status);
    (void)c;
}

template <class T>
void assert_near(const std::vector<T> &want, const std::vector<T> &got, double bound, const char *what) {
    for (size_t i = 0; i < want.size(); i++)
        if (!(std::fabs((double)got[i] - (double)want[i]) <= bound * (1 + std::fabs((double)want[i]))))
            fail_msg("%s: number %d: %.9g %.9g", what, (int)i, (double)want[i], (double)got[i]);
}

template <int K, class T>
void solves(int64_t length, int64_t batch, bool diagonal, bool own, double scale, uint64_t seed) {
    const int64_t width = diagonal ? 3 : K;
    cell_case<T> c(width, length, batch, diagonal, own, 0.8 / (double)K, 1);
    c.scale = scale;
    const std::vector<T> want = c.loop();
    const dpcri_device_cell n = c.arguments(DPCRI_DEVICE_NEWTON);
    solve<K, small>(c, n, seed);
    // The last correction is within the tolerance, and those to come are smaller; the chain contracts, or grows slowly.
    assert_near(want, c.z, sizeof(T) == 4 ? 2e-4 : 1e-8, "newton");
    for (const dpcr_device_outcome &o : c.outcome) {
        assert_int_equal(o.locked, length);
        assert_int_equal(o.non_finite, 0);
        if (o.sweeps < 1 || o.sweeps > 9) fail_msg("%d sweeps", o.sweeps);
        assert_true(o.residual <= 1e-5);
    }
}

void newton_is_the_loop(void **) {
    for (const int64_t length : {1, 63, 64, 65, 192, 193, 400}) {
        const bool own = length % 2 == 0;
        solves<1, float>(length, 1, false, own, 0, (uint64_t)length);
        solves<2, float>(length, 2, false, own, 0, (uint64_t)length + 1);
        solves<4, double>(length, 1, false, own, 0, (uint64_t)length + 2);
        solves<1, double>(length, 1, true, own, 0, (uint64_t)length);
    }
    solves<2, double>(300, 1, false, true, 0.05, 3);
    solves<1, float>(150, 5, true, false, 0, 4);  // more columns than go together
}

// All units are closed at the guess, 0, though the chain grows from far below the tolerance.
void relus_are_right_beyond_their_kinks(void **) {
    for (const bool diagonal : {false, true})
        for (const double scale : {0.0, 1.0}) {
            cell_case<float> c(diagonal ? 3 : 2, 150, 2, diagonal, true, 0, 0);
            c.activation = DPCRI_CUDA_RELU, c.scale = scale;
            for (size_t i = 0; i < c.weight.size(); i++)
                if (diagonal || i % 4 == 1 || i % 4 == 2)
                    c.weight[i] = scale == 0 ? 1.2f : i / (diagonal ? 3 : 4) % 2 ? 0.5f : -0.1f;
            for (float &v : c.z0) v = 1e-12f;
            const std::vector<float> want = c.loop();
            const dpcri_device_cell n = c.arguments(DPCRI_DEVICE_NEWTON);
            if (diagonal)
                solve<1, small>(c, n, 1);
            else
                solve<2, small>(c, n, 1);
            assert_near(want, c.z, 1e-5, "beyond kinks");
            assert_true(*std::max_element(want.begin(), want.end()) > 0.5f);
        }
}

// z1' = relu(K - K + 3 z1): a kick far below the rounding of its terms, and exact, turns a unit a step on.
void kicks_below_rounding_are_seen(void **) {
    for (const float times : {1.0f, 16.0f}) {
        cell_case<float> c(2, 20, 1, false, false, 0, 0);
        c.activation = DPCRI_CUDA_RELU;
        c.weight = {0, 0, times, 3};
        for (int64_t l = 0; l < c.length; l++) c.x[(size_t)(2 * l)] = 1, c.x[(size_t)(2 * l + 1)] = -times;
        c.x[2 * 5] = 1 + 0x1p-19f / times;
        c.z0 = {1, 0};
        const std::vector<float> want = c.loop();
        solve<2, small>(c, c.arguments(DPCRI_DEVICE_NEWTON), 1);
        assert_near(want, c.z, 1e-5, "a kick");
        assert_true(want.back() > 0.5f);
    }
}

// As many sweeps as others where nothing lies behind a kink that matters.
void usual_relus_converge(void **) {
    cell_case<double> c(2, 190, 1, false, true, 0.9, 1);
    c.activation = DPCRI_CUDA_RELU;
    const std::vector<double> want = c.loop();
    solve<2, small>(c, c.arguments(DPCRI_DEVICE_NEWTON), 1);
    assert_near(want, c.z, 1e-12, "usual");
    assert_true(c.outcome[0].locked == 190 && c.outcome[0].sweeps <= 9);
}

void affine_chains_take_one_sweep(void **) {
    cell_case<double> c(2, 300, 2, false, true, 0.4, 1);
    c.activation = DPCRI_CUDA_IDENTITY;
    const std::vector<double> want = c.loop();
    solve<2, small>(c, c.arguments(DPCRI_DEVICE_NEWTON), 1);
    assert_near(want, c.z, 1e-12, "affine");
    for (const dpcr_device_outcome &o : c.outcome)
        assert_int_equal(o.sweeps, 2);  // one, and one that finds nothing left
}

void bits_are_those_of_any_order_and_batch(void **) {
    cell_case<float> all(2, 200, 5, false, false, 0.6, 1);
    solve<2, small>(all, all.arguments(DPCRI_DEVICE_NEWTON), 0);
    const std::vector<float> first = all.z;
    for (uint64_t seed = 1; seed < 4; seed++) {
        solve<2, small>(all, all.arguments(DPCRI_DEVICE_NEWTON), seed);
        assert_memory_equal(first.data(), all.z.data(), first.size() * sizeof(float));
    }
    for (int64_t row = 0; row < 5; row += 2) {
        dpcri_device_cell one = all.arguments(DPCRI_DEVICE_NEWTON);
        one.rows = 1;
        one.x = all.x.data() + row * 2;
        one.z0 = all.z0.data() + row * 2;
        one.z = all.z.data() + row * 2;
        solve<2, small>(all, one, 2);
        for (int64_t m = 0; m < 200; m++) {
            const size_t at = (size_t)((m * 5 + row) * 2);
            assert_memory_equal(&all.z[at], &first[at], 2 * sizeof(float));
        }
    }
}

void what_does_not_converge_is_the_loops(void **) {
    // One sweep is too few; and one sequence meets NaN, which is nobody else's.
    cell_case<float> c(2, 250, 3, false, false, 0.6, 1);
    std::vector<float> want = c.loop();
    dpcri_device_cell n = c.arguments(DPCRI_DEVICE_NEWTON);
    n.max_sweeps = 1;
    solve<2, small>(c, n, 3);
    assert_same(want, c.z, "unconverged");
    for (const dpcr_device_outcome &o : c.outcome) assert_int_equal(o.locked, 0);

    c.x[(size_t)((100 * 3 + 1) * 2)] = NAN;
    want = c.loop();
    solve<2, small>(c, c.arguments(DPCRI_DEVICE_NEWTON), 4);
    for (int64_t m = 0; m < 250; m++)
        for (int64_t row = 0; row < 3; row++)
            for (int64_t i = 0; i < 2; i++) {
                const size_t at = (size_t)((m * 3 + row) * 2 + i);
                const bool same = c.z[at] == want[at] || (std::isnan(c.z[at]) && std::isnan(want[at]));
                assert_true(row == 1 && m >= 100 ? same : std::fabs(c.z[at] - want[at]) < 2e-4f);
            }
    assert_true(std::isnan(want[(249 * 3 + 1) * 2]));
    assert_int_equal(c.outcome[0].non_finite, 0);
    assert_int_equal(c.outcome[0].locked, 250);
    assert_int_not_equal(c.outcome[1].non_finite, 0);
    assert_int_equal(c.outcome[1].locked, 100);
}

// Components of a diagonal cell are columns of their own; what is told of a sequence is told of all of them.
void one_components_nan_is_told(void **) {
    for (uint64_t seed = 0; seed < 6; seed++) {
        cell_case<float> c(3, 250, 2, true, false, 0.6, 1);
        c.x[(size_t)((100 * 2 + 1) * 3 + 2)] = NAN;
        solve<1, small>(c, c.arguments(DPCRI_DEVICE_NEWTON), seed);
        assert_int_equal(c.outcome[0].non_finite, 0);
        assert_int_equal(c.outcome[0].locked, 250);
        assert_int_not_equal(c.outcome[1].non_finite, 0);
        assert_int_not_equal(c.outcome[1].locked, 250);
    }
}

void as_launched(void **) {
    cell_case<float> c(4, 700, 2, false, false, 0.2, 1);
    const std::vector<float> want = c.loop();
    const dpcri_device_cell n = c.arguments(DPCRI_DEVICE_NEWTON);
    c.run(n, 5);
    assert_near(want, c.z, 2e-4, "as launched");
    // A device that cannot hold a window refuses it.
    simt::host::config.cooperative_blocks = 1;
    std::vector<unsigned char> workspace(dpcri_cuda_cell_workspace(n) + 1);
    assert_int_equal(dpcri_cuda_cell_run(n, workspace.data(), workspace.size(), nullptr), DPCRI_CUDA_UNSUPPORTED);
    const dpcri_cuda_together blocks = dpcri_cuda_cell_together(n);
    assert_true(blocks.wanted > 1 && blocks.room == 1);
    simt::host::config.cooperative_blocks = 8;
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(newton_is_the_loop),
        cmocka_unit_test(relus_are_right_beyond_their_kinks),
        cmocka_unit_test(kicks_below_rounding_are_seen),
        cmocka_unit_test(usual_relus_converge),
        cmocka_unit_test(affine_chains_take_one_sweep),
        cmocka_unit_test(bits_are_those_of_any_order_and_batch),
        cmocka_unit_test(what_does_not_converge_is_the_loops),
        cmocka_unit_test(one_components_nan_is_told),
        cmocka_unit_test(as_launched),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
