// SPDX-License-Identifier: MIT
// Stacks of layers with a W of their own on the CPU: forward, back and gradients are the definition's, in higher
// precision, for every width up to some and beyond tiles both ways; a row's bits are its own, in every order of blocks
// and lanes and any batch; sums over many rows; narrow ones by every method.
#include "layers_case.h"

extern "C" {
#include "kern/nn_kernels.h"
}

extern template struct layers::kinds<float>;
extern template struct layers::kinds<double>;

namespace {

void every_width_is_the_definitions(void **) {
    uint64_t seed = 0;
    for (int64_t width = 1; width <= 40; width++, seed++) {
        const layers_form form = {width,           1 + (int64_t)(seed % 5),   1 + (int64_t)(seed % 4),
                                  (int)(seed % 6), seed / 6 % 3 ? 0.0 : 0.25, seed / 2 % 2 == 0};
        if (seed % 2)
            matches<float>(form, seed);
        else
            matches<double>(form, seed);
    }
}

void every_activation_is_the_definitions(void **) {
    uint64_t seed = 0;
    for (int activation = 0; activation < DPCRI_DEVICE_ACTIVATIONS; activation++)
        for (const double scale : {0.0, 0.25})
            for (const int64_t width : {1, 2, 4, 7, 33}) {
                matches<float>({width, 3, 2, activation, scale, width % 3 == 1}, seed++);
                matches<double>({width, 3, 2, activation, scale, width % 3 != 1}, seed++);
            }
}

// GELU and SiLU, values and slopes, at all sizes: x alone where W is 0, and the slope is what comes back of an
// adjoint 1.
template <class T>
void bits_of_activation(int activation) {
    const dpcri_nn_kernels *host = dpcri_nn_kernels_get(sizeof(T) == 4 ? DPCR_F32 : DPCR_F64);
    const int64_t width = 331;
    layers_case<T> c({width, 1, 1, activation, 0, true});
    std::vector<T> y((size_t)width), d((size_t)width);
    T *const x = &c.theta[(size_t)(width * width)];
    for (T &v : c.theta) v = 0;
    const double sizes[] = {1e-30, 1e-5, 0.3, 2, 9, 30, 45, 90, 120, 740, 2e3, 1e30, INFINITY};
    for (int64_t i = 0; i < width; i++) x[i] = (T)(random_signed() * sizes[i % 13]);
    x[0] = 0, x[1] = -T(0), x[2] = NAN;
    host->activate(activation, width, x, y.data(), d.data());
    c.solve(1);
    const std::vector<T> states(c.z.begin(), c.z.begin() + width);
    assert_same(y, states, "values");
    for (T &v : c.direct) v = 1;
    for (T &v : c.gradient) v = 0;
    dpcri_device_cell b = c.backward();
    std::vector<T> slopes((size_t)width, 0);
    b.x_gradient = slopes.data(), b.weight_gradient = nullptr;
    assert_int_equal(c.run(b, 2), DPCRI_CUDA_OK);
    assert_same(d, slopes, "slopes");
}

void bits_of_gelu_and_silu_are_the_hosts(void **) {
    if (!has_fma()) skip();
    for (const int activation : {DPCRI_CUDA_GELU, DPCRI_CUDA_SILU}) {
        bits_of_activation<float>(activation);
        bits_of_activation<double>(activation);
    }
}

void tiles_of_any_size(void **) {
    matches<float>({64, 3, 2, DPCRI_CUDA_RELU, 0, true}, 1);
    matches<double>({65, 2, 3, DPCRI_CUDA_TANH, 0.125, true}, 2);   // two slices
    matches<float>({129, 2, 2, DPCRI_CUDA_TANH, 0.125, false}, 3);  // and a warp more
    matches<float>({270, 2, 1, DPCRI_CUDA_SIGMOID, 0.5, true}, 4);  // two tiles beside each other
    matches<double>({33, 2, 35, DPCRI_CUDA_RELU, 0, true}, 5);      // groups of four rows
    matches<float>({7, 2, 1029, DPCRI_CUDA_TANH, 0.25, true}, 6);   // of eight; three pieces of the rows
    matches<float>({2, 40, 530, DPCRI_CUDA_TANH, 0, true}, 7);      // narrow, two pieces
    matches<float>({300, 1, 34, DPCRI_CUDA_IDENTITY, 0, false}, 8);
    matches<float>({130, 2, 35, DPCRI_CUDA_GELU, 0.25, true}, 9);
    matches<double>({70, 3, 2, DPCRI_CUDA_SILU, 0, false}, 10);
    matches<float>({4, 30, 530, DPCRI_CUDA_GELU, 0, true}, 11);  // narrow, two pieces
}

// A layer is one tile, fetched by threads that make nothing: more layers than buffers, rows beside each other, both
// layouts of W, and weights that lie between multiples of 16 bytes, which go another way to the same bits.
void narrow_stacks(void **) {
    matches<float>({8, 20, 3, DPCRI_CUDA_TANH, 0.25, true}, 1);
    matches<float>({32, 11, 66, DPCRI_CUDA_RELU, 0, false}, 2);
    matches<float>({12, 10, 130, DPCRI_CUDA_GELU, 0.25, true}, 3);
    matches<float>({32, 9, 259, DPCRI_CUDA_TANH, 0, false}, 4);
    matches<float>({64, 9, 131, DPCRI_CUDA_SIGMOID, 0.25, false}, 5);
    matches<float>({36, 5, 1, DPCRI_CUDA_TANH, 0.25, false}, 6);
    matches<double>({32, 9, 130, DPCRI_CUDA_TANH, 0.25, true}, 7);
    matches<double>({6, 12, 257, DPCRI_CUDA_RELU, 0, false}, 8);
    for (const bool in_out : {false, true}) {
        layers_case<float> c({24, 12, 5, DPCRI_CUDA_TANH, 0.25, in_out});
        c.solve(9);
        const std::vector<float> states = c.z;
        std::vector<float> between(c.theta.size() + 1);
        std::copy(c.theta.begin(), c.theta.end(), between.begin() + 1);
        dpcri_device_cell a = c.forward();
        a.x = between.data() + 1 + (static_cast<const float *>(a.x) - c.theta.data());
        a.weight = between.data() + 1 + (static_cast<const float *>(a.weight) - c.theta.data());
        c.z.assign(c.z.size(), NAN);
        assert_int_equal(c.run(a, 10), DPCRI_CUDA_OK);
        assert_same(states, c.z, "weights between");
    }
}

void bits_are_those_of_any_order_and_batch(void **) {
    for (const double scale : {0.0, 0.3}) {
        layers_case<float> all(
            {scale == 0 ? 37 : 36, 4, 140, scale == 0 ? DPCRI_CUDA_TANH : DPCRI_CUDA_SILU, scale, true});
        all.solve(0);
        const std::vector<float> states = all.z, sums = all.gradient;
        assert_int_equal(all.run(all.backward(), 1), DPCRI_CUDA_OK);
        const std::vector<float> back = all.adjoint, gradient = all.gradient;
        for (uint64_t seed = 2; seed < 5; seed++) {
            all.solve(seed);
            assert_same(states, all.z, "states in another order");
            all.gradient = sums;
            assert_int_equal(all.run(all.backward(), seed), DPCRI_CUDA_OK);
            assert_same(back, all.adjoint, "adjoints in another order");
            assert_same(gradient, all.gradient, "gradients in another order");
        }
        // A row alone, whose block has another shape.
        const int64_t row = 29, from = row * all.room;
        dpcri_device_cell one = all.forward();
        one.rows = 1;
        one.z0 = all.z0.data() + from, one.z = all.z.data() + from;
        assert_int_equal(all.run(one, 6), DPCRI_CUDA_OK);
        all.assert_row(states, all.z, row, "states alone");
        all.z = states;
        one = all.backward();
        one.rows = 1, one.gradients = 0;
        one.z0 = all.z0.data() + from, one.z = all.z.data() + from;
        one.direct = all.direct.data() + from, one.adjoint = all.adjoint.data() + from, one.z0_adjoint = nullptr;
        assert_int_equal(all.run(one, 7), DPCRI_CUDA_OK);
        all.assert_row(back, all.adjoint, row, "adjoints alone");
    }
}

// Fewer blocks than there is work for: a block goes on with another group.
void few_blocks(int64_t width, bool in_out) {
    using namespace layers;
    layers_case<float> c({width, 3, 10, DPCRI_CUDA_RELU, 0.25, in_out});
    c.solve(1);
    const std::vector<float> states = c.z;
    const dpcri_device_cell a = c.forward();
    problem<float> p = problem_of<float>(a);
    simt::shape shape = shape_of<float, 1, onward<float>>(1, simt::host::config.shared_bytes, &p);
    for (uint64_t seed = 0; seed < 6; seed++) {
        c.z.assign(c.z.size(), NAN);
        order(seed, 2);
        shape.blocks = 2;
        assert_int_equal((simt::launch<stack<float, 1, onward<float>>>(shape, nullptr, p)), 0);
        assert_same(states, c.z, "two blocks");
    }
    std::vector<float> sums = c.gradient;
    assert_int_equal(c.run(c.backward(), 1), DPCRI_CUDA_OK);
    const std::vector<float> gradient = c.gradient;
    const dpcri_device_cell b = c.backward();
    std::vector<float> e((size_t)(3 * 10 * width), NAN);
    back_space<float> space = {};
    space.e = e.data(), space.pieces = 1, space.piece = 16;
    p = back_problem_of(b, space);
    shape = shape_of<float, 1, homeward<float>>(1, simt::host::config.shared_bytes, &p);
    shape.blocks = 3;
    const auto one_block = [&](auto of_tile) {
        typedef decltype(of_tile) tile;
        const simt::shape one = {1, tile::threads, tile::template shared_bytes<float>(), false};
        typedef typename slopes<float, true>::kernel<tile> slopes_in_out;
        typedef typename slopes<float, false>::kernel<tile> slopes_out_in;
        typedef typename weights_back<float, true>::kernel<tile> sums_in_out;
        typedef typename weights_back<float, false>::kernel<tile> sums_out_in;
        e.assign(e.size(), NAN);
        c.gradient = sums;
        const auto s = slopes_of(p, false);
        const auto g = sums_of(b, p, space);
        assert_int_equal(
            p.c.in_out ? simt::launch<slopes_in_out>(one, nullptr, s) : simt::launch<slopes_out_in>(one, nullptr, s),
            0);
        assert_int_equal((simt::launch<stack<float, 1, homeward<float>>>(shape, nullptr, p)), 0);
        assert_int_equal(
            p.c.in_out ? simt::launch<sums_in_out>(one, nullptr, g) : simt::launch<sums_out_in>(one, nullptr, g), 0);
        assert_same(gradient, c.gradient, "a block");
    };
    one_block(product::shapes<float>::low());
    one_block(product::medium());
    one_block(product::shapes<float>::large());
}

// Weights that lie in quads or not, states that do, both orders of W.
void few_blocks_for_many_groups(void **) {
    for (const int64_t width : {9, 20, 67})
        for (const bool in_out : {false, true}) few_blocks(width, in_out);
}

// A W for all steps and an x of each row, as cells have them.
void one_weight_and_inputs_of_rows(void **) {
    for (const int64_t rows : {3, 33}) {
        cell_case<double> c(11, 7, rows, false, false, 0.2, 1);
        const std::vector<double> got = c.loop();
        for (int64_t l = 0; l < 7; l++)
            for (int64_t r = 0; r < rows; r++)
                for (int64_t u = 0; u < 11; u++) {
                    const size_t at = (size_t)((l * rows + r) * 11);
                    const double *const before = l > 0 ? &got[at - (size_t)(rows * 11)] : &c.z0[(size_t)(r * 11)];
                    long double sum = c.x[at + (size_t)u];
                    for (int64_t k = 0; k < 11; k++) sum += (long double)c.weight[(size_t)(u * 11 + k)] * before[k];
                    assert_true(std::fabs((double)(got[at + (size_t)u] - std::tanh(sum))) < 1e-14);
                }
    }
}

// Layers of width 1, 2 and 4 by chunks and by Newton; W lies either way.
void narrow_layers_by_every_method(void **) {
    uint64_t seed = 0;
    for (const int64_t width : {1, 2, 4})
        for (const bool in_out : {false, true})
            for (const double scale : {0.0, 0.05}) {
                const int activations[] = {DPCRI_CUDA_TANH, DPCRI_CUDA_GELU, DPCRI_CUDA_SILU};
                layers_case<float> c({width, 90, 2, activations[seed % 3], scale, in_out});
                for (float &v : c.theta) v *= 0.4f;
                c.solve(seed);
                const std::vector<float> loop = c.z;
                dpcri_device_cell o = c.forward(DPCRI_DEVICE_OVERLAP);
                o.chunk = 16, o.warm_up = 12;
                assert_int_equal(c.run(o, seed + 1), DPCRI_CUDA_OK);
                assert_same(loop, c.z, "overlap");
                o = c.forward(DPCRI_DEVICE_NEWTON);
                o.atol = o.rtol = 5e-6;
                assert_int_equal(c.run(o, seed + 2), DPCRI_CUDA_OK);
                for (size_t i = 0; i < loop.size(); i++)
                    assert_true(std::isnan(loop[i]) || std::fabs(c.z[i] - loop[i]) < 2e-5);
                seed++;
            }
}

void what_does_not_fit_goes_row_by_row_or_not_at_all(void **) {
    layers_case<float> c({40, 2, 40, DPCRI_CUDA_TANH, 0, true});
    c.solve(1);
    const std::vector<float> states = c.z;
    const int64_t before = simt::host::config.shared_bytes;
    simt::host::config.shared_bytes = least_room<layers::onward<float>, float>(c.forward());
    assert_int_equal(simt::host::config.shared_bytes, 2 * 4 * (40 * 64 + 64) + 2 * 40 * 4);  // tiles, x, a row
    c.solve(2);
    assert_same(states, c.z, "a row a block");
    assert_int_equal(dpcri_cuda_cell_fits(c.forward()), DPCRI_CUDA_OK);
    const int together = simt::host::config.cooperative_blocks;
    simt::host::config.cooperative_blocks = 0;  // of no matter to plain launches
    assert_int_equal(dpcri_cuda_cell_fits(c.forward()), DPCRI_CUDA_OK);
    c.solve(3);
    assert_same(states, c.z, "no cooperative launches");
    simt::host::config.cooperative_blocks = together;
    simt::host::config.shared_bytes--;
    assert_int_equal(dpcri_cuda_cell_fits(c.forward()), DPCRI_CUDA_WIDTH);
    assert_int_equal(c.run(c.forward(), 3), DPCRI_CUDA_WIDTH);
    simt::host::config.shared_bytes = before;
    simt::host::config.room_error = 46;  // a device that is not to be asked: its code, not a width
    assert_int_equal(dpcri_cuda_cell_fits(c.forward()), 46);
    assert_int_equal(c.run(c.forward(), 3), 46);
    simt::host::config.room_error = 0;
    dpcri_device_cell vast = c.forward();  // whose sizes would not be numbers
    vast.w = vast.length = UINT32_MAX;
    assert_int_equal(dpcri_cuda_cell_fits(vast), DPCRI_CUDA_WIDTH);
    assert_int_equal(dpcri_cuda_cell_workspace(vast), 0);
}

void what_cannot_be_is_refused(void **) {
    layers_case<float> c({5, 3, 2, DPCRI_CUDA_TANH, 0, true});
    c.solve(1);
    dpcri_device_cell a = c.forward();
    a.activation = DPCRI_DEVICE_ACTIVATIONS;
    assert_int_equal(c.run(a, 1), DPCRI_CUDA_UNSUPPORTED);
    a = c.backward(), a.weight_step = 0;
    assert_int_equal(c.run(a, 1), DPCRI_CUDA_UNSUPPORTED);
    a = c.backward();
    std::vector<unsigned char> workspace(dpcri_cuda_cell_workspace(a));
    assert_int_equal(dpcri_cuda_cell_run(a, workspace.data(), workspace.size() - 1, nullptr), DPCRI_CUDA_WORKSPACE);
    a.direct = nullptr;
    assert_int_equal(c.run(a, 1), DPCRI_CUDA_ARGUMENT);
    a = c.backward(), a.rows = INT64_MAX / 8;
    assert_int_equal(dpcri_cuda_cell_fits(a), DPCRI_CUDA_SIZE);
    assert_int_equal(dpcri_cuda_cell_workspace(a), 0);
    assert_int_equal(dpcri_cuda_cell_run(a, workspace.data(), workspace.size(), nullptr), DPCRI_CUDA_SIZE);
    // A NaN is its row's.
    c.z0[0] = NAN;
    c.solve(2);
    for (int64_t u = 0; u < 5; u++) assert_true(std::isnan(c.z[(size_t)u]) && !std::isnan(c.z[(size_t)(c.room + u)]));
    assert_true(c.outcome[0].non_finite && !c.outcome[1].non_finite);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(every_width_is_the_definitions),
        cmocka_unit_test(every_activation_is_the_definitions),
        cmocka_unit_test(bits_of_gelu_and_silu_are_the_hosts),
        cmocka_unit_test(tiles_of_any_size),
        cmocka_unit_test(narrow_stacks),
        cmocka_unit_test(bits_are_those_of_any_order_and_batch),
        cmocka_unit_test(few_blocks_for_many_groups),
        cmocka_unit_test(one_weight_and_inputs_of_rows),
        cmocka_unit_test(narrow_layers_by_every_method),
        cmocka_unit_test(what_does_not_fit_goes_row_by_row_or_not_at_all),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
