// SPDX-License-Identifier: MIT
// Stacks of normalised layers on the CPU: forward, back and all gradients are the definition's, in higher precision,
// for every width up to some and beyond tiles both ways; a row's bits are its own, in every order of blocks and lanes
// and any batch; sums over many rows; rows without variance.
#include "layers_case.h"

extern template struct layers::kinds<float>;
extern template struct layers::kinds<double>;

namespace {

void every_width_is_the_definitions(void **) {
    uint64_t seed = 0;
    for (int64_t width = 1; width <= 40; width++)
        for (const double scale : {0.0, 0.25}) {
            const int activation = (int)((seed + seed / 2) % DPCRI_DEVICE_ACTIVATIONS);
            const layers_form form = {width, 1 + width % 5, 1 + width % 4, activation, scale, width / 2 % 2 == 0, true};
            if (width % 2)
                matches<float>(form, seed++);
            else
                matches<double>(form, seed++);
        }
}

void every_activation_is_the_definitions(void **) {
    uint64_t seed = 0;
    for (int activation = 0; activation < DPCRI_DEVICE_ACTIVATIONS; activation++)
        for (const double scale : {0.0, 0.5})
            for (const int64_t width : {3, 4, 35}) {
                matches<float>({width, 3, 3, activation, scale, width == 35, true}, seed++);
                matches<double>({width, 3, 3, activation, scale, width != 35, true}, seed++);
            }
}

void tiles_of_any_size(void **) {
    matches<float>({64, 3, 2, DPCRI_CUDA_RELU, 0, true, true}, 1);
    matches<double>({65, 2, 3, DPCRI_CUDA_TANH, 0.125, true, true}, 2);    // two slices
    matches<float>({129, 2, 2, DPCRI_CUDA_TANH, 0.125, false, true}, 3);   // and a warp more
    matches<float>({270, 2, 1, DPCRI_CUDA_GELU, 0.5, true, true}, 4);      // two tiles beside each other
    matches<double>({33, 2, 35, DPCRI_CUDA_RELU, 0, true, true}, 5);       // groups of four rows
    matches<float>({7, 2, 1029, DPCRI_CUDA_TANH, 0.25, true, true}, 6);    // of eight; three pieces of the rows
    matches<float>({2, 40, 530, DPCRI_CUDA_SIGMOID, 0.1, true, true}, 7);  // two pieces
    matches<double>({300, 1, 34, DPCRI_CUDA_IDENTITY, 0, false, true}, 8);
    matches<double>({5, 33, 2, DPCRI_CUDA_SILU, 0.2, true, true}, 9);
}

void bits_are_those_of_any_order_and_batch(void **) {
    for (const double scale : {0.0, 0.3}) {
        layers_case<float> all({37, 4, 40, DPCRI_CUDA_TANH, scale, true, true});
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

// Fewer blocks than there is work for: a block goes on with another group, row or tile.
void few_blocks_for_many_groups(void **) {
    using namespace layers;
    layers_case<float> c({35, 3, 10, DPCRI_CUDA_SILU, 0.25, true, true});
    c.solve(1);
    const std::vector<float> states = c.z, sums = c.gradient;
    const dpcri_device_cell a = c.forward();
    problem<float> p = problem_of<float>(a);
    simt::shape shape = shape_of<float, 1, normed_onward<float>>(1, simt::host::config.shared_bytes, &p);
    for (uint64_t seed = 0; seed < 6; seed++) {
        c.z.assign(c.z.size(), NAN);
        order(seed, 2);
        shape.blocks = 2;
        assert_int_equal((simt::launch<stack<float, 1, normed_onward<float>>>(shape, nullptr, p)), 0);
        assert_same(states, c.z, "two blocks");
    }
    assert_int_equal(c.run(c.backward(), 1), DPCRI_CUDA_OK);
    const std::vector<float> gradient = c.gradient, adjoint = c.adjoint;
    const dpcri_device_cell b = c.backward();
    std::vector<float> e((size_t)(3 * 10 * 35), NAN), normal = e, reciprocal((size_t)(3 * 10), NAN);
    back_space<float> space = {};
    space.e = e.data(), space.normal = normal.data(), space.reciprocal = reciprocal.data();
    space.pieces = 1, space.piece = 16;
    p = back_problem_of(b, space);
    c.gradient = sums;
    typedef product::shapes<float>::low tile;
    const simt::shape one = {1, tile::threads, tile::shared_bytes<float>(), false};
    const auto s = slopes_of(p, false);
    typedef slopes<float, true>::kernel<tile> all_slopes;  // W lies [in][out]
    assert_true(p.c.in_out);
    assert_int_equal(simt::launch<all_slopes>(one, nullptr, s), 0);
    assert_int_equal(simt::launch<norms<float>>({1, gates::threads, 0, false}, nullptr, p), 0);
    shape = shape_of<float, 1, normed_homeward<float>>(1, simt::host::config.shared_bytes, &p);
    shape.blocks = 3;
    assert_int_equal((simt::launch<stack<float, 1, normed_homeward<float>>>(shape, nullptr, p)), 0);
    assert_same(adjoint, c.adjoint, "three blocks");
    const gradients<float>::arguments g = sums_of(b, p, space);
    typedef weights_back<float, true>::kernel<tile> of_weights;
    assert_int_equal(simt::launch<of_weights>(one, nullptr, g), 0);
    assert_int_equal(simt::launch<scales<float>>({1, gates::threads, scales<float>::shared_bytes(), false}, nullptr, g),
                     0);
    assert_same(gradient, c.gradient, "a block");
}

// Units that are all alike are 0, whatever gamma: beta alone goes on; a NaN is its row's.
void rows_without_variance(void **) {
    layers_case<double> c({34, 2, 3, DPCRI_CUDA_TANH, 0, true, true});
    for (int64_t l = 0; l < 2; l++) {
        double *const layer = c.theta.data() + l * c.layer;
        for (int64_t i = 0; i < 34 * 34; i++) layer[i] = 0;
        for (int64_t u = 0; u < 34; u++) layer[34 * 34 + u] = 0.75;
    }
    c.solve(1);
    c.assert_states();
    for (int64_t u = 0; u < 34; u++)
        assert_true(std::fabs(c.z[(size_t)u] - std::tanh(c.theta[(size_t)(34 * 36 + u)])) < 1e-15);
    layers_case<float> d({5, 3, 2, DPCRI_CUDA_TANH, 0.5, true, true});
    d.z0[0] = NAN;
    d.solve(2);
    for (int64_t u = 0; u < 5; u++) assert_true(std::isnan(d.z[(size_t)u]) && !std::isnan(d.z[(size_t)(d.room + u)]));
    assert_true(d.outcome[0].non_finite && !d.outcome[1].non_finite);
}

void what_does_not_fit_or_is_not_served(void **) {
    layers_case<float> c({40, 2, 40, DPCRI_CUDA_TANH, 0, true, true});
    c.solve(1);
    const std::vector<float> states = c.z;
    const int64_t before = simt::host::config.shared_bytes;
    simt::host::config.shared_bytes = least_room<layers::normed_onward<float>, float>(c.forward());
    c.solve(2);
    assert_same(states, c.z, "a row a block");
    simt::host::config.shared_bytes--;
    assert_int_equal(dpcri_cuda_cell_fits(c.forward()), DPCRI_CUDA_WIDTH);
    simt::host::config.shared_bytes = least_room<layers::normed_homeward<float>, float>(c.backward());
    assert_int_equal(dpcri_cuda_cell_fits(c.backward()), DPCRI_CUDA_OK);
    simt::host::config.shared_bytes--;
    assert_int_equal(dpcri_cuda_cell_fits(c.backward()), DPCRI_CUDA_WIDTH);
    simt::host::config.shared_bytes = before;
    layers_case<float> n({2, 70, 2, DPCRI_CUDA_TANH, 0, true, true});
    assert_int_equal(n.run(n.forward(DPCRI_DEVICE_NEWTON), 1), DPCRI_CUDA_UNSUPPORTED);
    dpcri_device_cell a = n.forward();
    a.beta = nullptr;
    assert_int_equal(n.run(a, 1), DPCRI_CUDA_ARGUMENT);
    a = n.forward(), a.diagonal = 1;
    assert_int_equal(n.run(a, 1), DPCRI_CUDA_UNSUPPORTED);
    n.solve(1);
    a = n.backward(), a.gradients = 0, a.weight_gradient = a.gamma_gradient = nullptr;
    assert_int_equal(n.run(a, 2), DPCRI_CUDA_OK);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(every_width_is_the_definitions),
        cmocka_unit_test(every_activation_is_the_definitions),
        cmocka_unit_test(tiles_of_any_size),
        cmocka_unit_test(bits_are_those_of_any_order_and_batch),
        cmocka_unit_test(few_blocks_for_many_groups),
        cmocka_unit_test(rows_without_variance),
        cmocka_unit_test(what_does_not_fit_or_is_not_served),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
