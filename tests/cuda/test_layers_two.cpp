// SPDX-License-Identifier: MIT
// Stacks of two-layer branches on the CPU, normalised or not: forward, back and all gradients are the definition's, in
// higher precision, for every width up to some inside and outside and beyond tiles; a row's bits are its own, in every
// order of blocks and lanes and any batch; sums over many rows; what does not fit.
#include "layers_case.h"

extern template struct layers::kinds<float>;
extern template struct layers::kinds<double>;

namespace {

// Wider inside, narrower, and as wide.
void every_width_is_the_definitions(void **) {
    uint64_t seed = 0;
    for (int64_t width = 1; width <= 40; width++)
        for (int turn = 0; turn < 3; turn++) {
            const int64_t hidden = turn == 0 ? 41 - width : turn == 1 ? width : 1 + width * 7 % 40;
            const int activation = (int)((seed + seed / 6) % DPCRI_DEVICE_ACTIVATIONS);
            const layers_form form = {width,
                                      1 + width % 4,
                                      1 + (int64_t)(seed % 4),
                                      activation,
                                      seed % 5 ? 0.25 : 0.0,
                                      seed / 2 % 2 == 0,
                                      (width + turn) % 2 == 0,
                                      hidden};
            if (seed % 2)
                matches<float>(form, seed++);
            else
                matches<double>(form, seed++);
        }
}

void every_activation_is_the_definitions(void **) {
    uint64_t seed = 0;
    for (int activation = 0; activation < DPCRI_DEVICE_ACTIVATIONS; activation++)
        for (const bool normed : {false, true})
            for (const int64_t width : {2, 4, 35}) {
                matches<float>({width, 3, 3, activation, 0.5, width == 35, normed, 37 - width}, seed++);
                matches<double>({width, 3, 3, activation, 0.5, width != 35, normed, width + 3}, seed++);
            }
}

void tiles_of_any_size(void **) {
    for (const bool normed : {false, true}) {
        matches<float>({64, 3, 2, DPCRI_CUDA_RELU, 0.5, true, normed, 64}, 1);
        matches<double>({65, 2, 3, DPCRI_CUDA_TANH, 0.125, true, normed, 33}, 2);   // two slices, then one
        matches<float>({31, 2, 2, DPCRI_CUDA_TANH, 0.125, false, normed, 129}, 3);  // two warps, then one
        matches<float>({270, 2, 1, DPCRI_CUDA_GELU, 0.5, true, normed, 40}, 4);     // two tiles beside each other
        matches<float>({40, 2, 1, DPCRI_CUDA_SILU, 0.5, false, normed, 300}, 5);
        matches<double>({33, 2, 35, DPCRI_CUDA_RELU, 0.25, true, normed, 70}, 6);    // groups of four rows
        matches<float>({7, 2, 1029, DPCRI_CUDA_TANH, 0.25, true, normed, 9}, 7);     // of eight; three pieces
        matches<float>({2, 20, 530, DPCRI_CUDA_SIGMOID, 0.1, false, normed, 3}, 8);  // two pieces
        matches<double>({300, 1, 34, DPCRI_CUDA_IDENTITY, 0.1, false, normed, 2}, 9);
    }
}

void bits_are_those_of_any_order_and_batch(void **) {
    for (const bool normed : {false, true}) {
        layers_case<float> all({37, 4, 40, DPCRI_CUDA_TANH, 0.3, true, normed, 50});
        all.solve(0);
        const std::vector<float> states = all.z, sums = all.gradient;
        assert_int_equal(all.run(all.backward(), 1), DPCRI_CUDA_OK);
        const std::vector<float> back = all.adjoint, gradient = all.gradient, start = all.start;
        for (uint64_t seed = 2; seed < 6; seed++) {
            all.solve(seed);
            assert_same(states, all.z, "states in another order");
            all.gradient = sums;
            assert_int_equal(all.run(all.backward(), seed), DPCRI_CUDA_OK);
            assert_same(back, all.adjoint, "adjoints in another order");
            assert_same(start, all.start, "the first adjoints in another order");
            assert_same(gradient, all.gradient, "gradients in another order");
        }
        for (const int64_t row : {0, 29, 39}) {  // alone, whose block has another shape
            const int64_t from = row * all.room;
            all.z = states;
            dpcri_device_cell one = all.backward();
            one.rows = 1, one.gradients = 0;
            one.z0 = all.z0.data() + from, one.z = all.z.data() + from;
            one.direct = all.direct.data() + from, one.adjoint = all.adjoint.data() + from, one.z0_adjoint = nullptr;
            assert_int_equal(all.run(one, 7), DPCRI_CUDA_OK);
            all.assert_row(back, all.adjoint, row, "adjoints alone");
            one = all.forward();
            one.rows = 1;
            one.z0 = all.z0.data() + from, one.z = all.z.data() + from;
            assert_int_equal(all.run(one, 6), DPCRI_CUDA_OK);
            all.assert_row(states, all.z, row, "states alone");
        }
    }
}

// Fewer blocks than there is work for: a block goes on with another group.
template <bool normed>
void few_blocks_for_many_groups(void **) {
    using namespace layers;
    layers_case<float> c({35, 3, 10, DPCRI_CUDA_SILU, 0.25, true, normed, 70});
    c.solve(1);
    const std::vector<float> states = c.z;
    dpcri_device_cell a = c.forward();
    problem<float> p = problem_of<float>(a);
    typedef stack<float, 1, two_onward<float, normed>> forward;
    typedef stack<float, 1, two_homeward<float, normed>> home;
    simt::shape shape = shape_of<float, 1, two_onward<float, normed>>(1, simt::host::config.shared_bytes, &p);
    for (uint64_t seed = 0; seed < 6; seed++) {
        c.z.assign(c.z.size(), NAN);
        order(seed, 2);
        shape.blocks = 2;
        assert_int_equal(simt::launch<forward>(shape, nullptr, p), 0);
        assert_same(states, c.z, "two blocks");
    }
    assert_int_equal(c.run(c.backward(), 1), DPCRI_CUDA_OK);
    const std::vector<float> adjoint = c.adjoint;
    a = c.backward();
    std::vector<unsigned char> workspace(dpcri_cuda_cell_workspace(a), 0xff);
    for (uint64_t seed = 0; seed < 6; seed++) {
        cells::cut pieces = {workspace.data(), 0};
        p = back_problem_of(a, space_of<float>(a, &pieces));
        order(seed, 2);
        assert_int_equal(launch_slopes(p, false, nullptr), 0);
        shape = shape_of<float, 1, two_homeward<float, normed>>(1, simt::host::config.shared_bytes, &p);
        shape.blocks = 3;
        c.adjoint.assign(c.adjoint.size(), NAN);
        assert_int_equal(simt::launch<home>(shape, nullptr, p), 0);
        assert_same(adjoint, c.adjoint, "three blocks");
    }
}

void what_does_not_fit_or_is_not_served(void **) {
    for (const bool normed : {false, true}) {
        layers_case<float> c({30, 2, 40, DPCRI_CUDA_TANH, 0.5, true, normed, 40});
        c.solve(1);
        const std::vector<float> states = c.z;
        const int64_t before = simt::host::config.shared_bytes;
        using namespace layers;
        simt::host::config.shared_bytes = normed ? least_room<two_onward<float, true>, float>(c.forward())
                                                 : least_room<two_onward<float, false>, float>(c.forward());
        c.solve(2);
        assert_same(states, c.z, "a row a block");
        simt::host::config.shared_bytes--;
        assert_int_equal(dpcri_cuda_cell_fits(c.forward()), DPCRI_CUDA_WIDTH);
        simt::host::config.shared_bytes = normed ? least_room<two_homeward<float, true>, float>(c.backward())
                                                 : least_room<two_homeward<float, false>, float>(c.backward());
        assert_int_equal(dpcri_cuda_cell_fits(c.backward()), DPCRI_CUDA_OK);
        simt::host::config.shared_bytes--;
        assert_int_equal(dpcri_cuda_cell_fits(c.backward()), DPCRI_CUDA_WIDTH);
        simt::host::config.shared_bytes = before;
    }
    layers_case<float> n({2, 70, 2, DPCRI_CUDA_TANH, 0.5, true, false, 2});
    assert_int_equal(n.run(n.forward(DPCRI_DEVICE_NEWTON), 1), DPCRI_CUDA_UNSUPPORTED);
    dpcri_device_cell a = n.forward();
    a.x2 = nullptr;
    assert_int_equal(n.run(a, 1), DPCRI_CUDA_ARGUMENT);
    a = n.forward(), a.hidden = -1;
    assert_int_equal(n.run(a, 1), DPCRI_CUDA_ARGUMENT);
    a = n.forward(), a.hidden = UINT32_MAX;
    assert_int_equal(dpcri_cuda_cell_fits(a), DPCRI_CUDA_WIDTH);
    a = n.forward(), a.diagonal = 1;
    assert_int_equal(n.run(a, 1), DPCRI_CUDA_UNSUPPORTED);
    n.solve(1);
    a = n.backward(), a.gradients = 0, a.weight_gradient = a.weight2_gradient = nullptr;
    assert_int_equal(n.run(a, 2), DPCRI_CUDA_OK);
    n.z0[0] = NAN;
    n.solve(2);
    for (int64_t u = 0; u < 2; u++) assert_true(std::isnan(n.z[(size_t)u]) && !std::isnan(n.z[(size_t)(n.room + u)]));
    assert_true(n.outcome[0].non_finite && !n.outcome[1].non_finite);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(every_width_is_the_definitions),
        cmocka_unit_test(every_activation_is_the_definitions),
        cmocka_unit_test(tiles_of_any_size),
        cmocka_unit_test(bits_are_those_of_any_order_and_batch),
        cmocka_unit_test(few_blocks_for_many_groups<false>),
        cmocka_unit_test(few_blocks_for_many_groups<true>),
        cmocka_unit_test(what_does_not_fit_or_is_not_served),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
