// SPDX-License-Identifier: MIT
// Stacks whose units several blocks share, on the CPU: forward, back and gradients have the bits of one block a group,
// for every width up to some, plain, normalised and two-layer, every number of blocks, fewer than there are strips too,
// groups of rows, little room, any order of lanes; and are refused where there is no room for two.
#include "layers_case.h"

extern template struct layers::kinds<float>;
extern template struct layers::kinds<double>;

namespace {

int64_t blocks_of(const dpcri_device_cell &c, int *whole) {
    int64_t blocks = -1;
    assert_int_equal(dpcri_cuda_cell_share(c, &blocks, whole), DPCRI_CUDA_OK);
    return blocks;
}
int64_t blocks_of(const dpcri_device_cell &c) {
    int whole = -1;
    return blocks_of(c, &whole);
}

template <class T>
void assert_one_blocks(const layers_form &form, int blocks, uint64_t seed, int64_t bytes = 227 << 10) {
    layers_case<T> c(form);
    const bool in_place = seed % 2 == 1;
    c.solve(seed);
    const std::vector<T> states = c.z, sums = c.gradient;
    assert_int_equal(c.run(c.backward(in_place), seed + 1), DPCRI_CUDA_OK);
    const std::vector<T> back = c.adjoint, start = c.start, gradient = c.gradient;
    const device d(blocks, bytes);
    dpcri_device_cell a = c.forward();
    a.share = 1;
    const int64_t widest = form.hidden > form.width ? form.hidden : form.width, strips = (widest + 31) / 32;
    const int64_t groups = form.rows <= 8 ? 1 : (form.rows + 7) / 8, most = blocks / groups;
    const int64_t wanted = strips < most ? strips : most;
    assert_int_equal(blocks_of(a), wanted < 2 ? 0 : wanted);
    assert_int_equal(c.run(a, seed + 2), DPCRI_CUDA_OK);
    assert_same(states, c.z, "states");
    for (const dpcr_device_outcome &o : c.outcome)
        assert_true(o.locked == form.length && o.sweeps == 1 && !o.non_finite && o.residual == 0);
    c.gradient = sums;
    a = c.backward(in_place);
    a.share = 1;
    assert_int_equal(blocks_of(a), wanted < 2 ? 0 : wanted);
    assert_int_equal(c.run(a, seed + 3), DPCRI_CUDA_OK);
    assert_same(back, c.adjoint, "adjoints");
    assert_same(start, c.start, "the first adjoints");
    assert_same(gradient, c.gradient, "gradients");
}

void every_width_has_the_bits_of_one_block(void **) {
    uint64_t seed = 0;
    for (int64_t width = 33; width <= 100; width += 1 + width % 5)
        for (int kind = 0; kind < 4; kind++, seed++) {
            const int64_t hidden = kind < 2 ? 0 : seed % 3 == 0 ? width : 1 + width * 7 % 120;
            const layers_form form = {width,
                                      1 + (int64_t)(seed % 4),
                                      1 + (int64_t)(seed % 3),
                                      (int)(seed / 4 % 6),
                                      seed / 2 % 3 ? 0.25 : 0.0,
                                      seed / 3 % 2 == 0,
                                      kind % 2 == 1,
                                      hidden};
            if (seed / 4 % 2)
                assert_one_blocks<float>(form, 2 + (int)(seed % 4), seed);
            else
                assert_one_blocks<double>(form, 2 + (int)(seed % 4), seed);
        }
}

// Six strips: a block has one to three, or there is none for some in the narrower product.
void any_number_of_blocks(void **) {
    for (int blocks = 0; blocks <= 8; blocks++) {
        assert_one_blocks<float>({170, 3, 2, DPCRI_CUDA_TANH, 0.25, blocks % 2 == 0}, blocks, 10 + (uint64_t)blocks);
        assert_one_blocks<float>({40, 2, 1, DPCRI_CUDA_GELU, 0.25, blocks % 2 == 1, blocks % 3 == 0, 170}, blocks,
                                 30 + (uint64_t)blocks);
        assert_one_blocks<double>({170, 2, 3, DPCRI_CUDA_RELU, 0.5, blocks % 2 == 1, true}, blocks,
                                  50 + (uint64_t)blocks);
    }
}

void groups_of_rows(void **) {
    for (const int64_t rows : {8, 9, 17}) {
        assert_one_blocks<float>({70, 3, rows, DPCRI_CUDA_TANH, 0, true}, 9, 1 + (uint64_t)rows);
        assert_one_blocks<float>({70, 2, rows, DPCRI_CUDA_SILU, 0.25, false, true, 40}, 6, 2 + (uint64_t)rows);
    }
}

// W in tiles of a few inputs where states leave little room.
void little_room(void **) {
    const int64_t bytes = 2 * 2 * 150 * 4 + 2 * (20 * 36 + 2 * 256) * 4;  // states, tiles and what is units' own
    assert_one_blocks<float>({150, 3, 2, DPCRI_CUDA_TANH, 0.25, true}, 5, 1, bytes + 2 * 2 * 150 * 4);
    assert_one_blocks<double>({150, 2, 1, DPCRI_CUDA_TANH, 0.25, false}, 3, 2, 2 * bytes);
    layers_case<float> c({300, 2, 2, DPCRI_CUDA_TANH, 0, true});
    dpcri_device_cell a = c.forward();
    a.share = 1;
    const device none(8, 4 << 10);
    assert_int_equal(blocks_of(a), 0);
}

// One W for all steps, and inputs of each row.
void cells_of_one_weight(void **) {
    cell_case<float> c(90, 11, 3, false, false, 0.2, 1);
    const std::vector<float> loop = c.loop();
    for (int blocks = 2; blocks < 4; blocks++) {
        const device d(blocks);
        std::vector<float> z(loop.size(), NAN);
        dpcri_device_cell a = c.arguments(DPCRI_DEVICE_LOOP);
        a.z = z.data(), a.share = 1;
        assert_int_equal(blocks_of(a), blocks);
        std::vector<unsigned char> workspace(dpcri_cuda_cell_workspace(a), 0xff);
        order((uint64_t)blocks, 2);
        assert_int_equal(dpcri_cuda_cell_run(a, workspace.data(), workspace.size(), nullptr), DPCRI_CUDA_OK);
        assert_same(loop, z, "states");
        assert_int_equal(dpcri_cuda_cell_run(a, workspace.data(), workspace.size() - 1, nullptr), DPCRI_CUDA_WORKSPACE);
    }
}

void what_is_not_finite_is_its_rows(void **) {
    layers_case<float> c({65, 3, 3, DPCRI_CUDA_TANH, 0.25, true});
    c.z0[(size_t)c.room + 64] = NAN;
    c.solve(1);
    std::vector<float> states = c.z;
    dpcri_device_cell a = c.forward();
    a.share = 1;
    assert_int_equal(c.run(a, 2), DPCRI_CUDA_OK);
    for (size_t n = 0; n < states.size(); n++)
        assert_true(c.z[n] == states[n] || (std::isnan(c.z[n]) && std::isnan(states[n])));
    assert_true(!c.outcome[0].non_finite && c.outcome[1].non_finite && !c.outcome[2].non_finite);
}

// Those that go by other kernels are not shared.
void only_the_loop_of_wide_layers(void **) {
    layers_case<float> narrow({4, 3, 1, DPCRI_CUDA_TANH, 0, true}), wide({70, 3, 1, DPCRI_CUDA_TANH, 0, true});
    assert_int_equal(blocks_of(narrow.forward()), 0);
    assert_int_equal(blocks_of(wide.forward(DPCRI_DEVICE_OVERLAP)), 0);
    assert_int_equal(blocks_of(wide.forward()), 3);
    simt::host::config.room_error = 46;
    int64_t blocks = -1;
    int whole = -1;
    assert_int_equal(dpcri_cuda_cell_share(wide.forward(), &blocks, &whole), 46);
    simt::host::config.room_error = 0;
}

// Whether one block takes a layer as one tile: what the ways are priced by.
template <class T>
int whole(const layers_form &form, int64_t room = 227 << 10) {
    layers_case<T> c(form);
    const device d(8, room);
    int forward = -1, back = -1;
    (void)blocks_of(c.forward(), &forward);
    (void)blocks_of(c.backward(), &back);
    assert_int_equal(forward, back);
    return forward;
}

void whole_layers(void **) {
    assert_int_equal(whole<float>({64, 2, 1, DPCRI_CUDA_TANH, 0, true}), 1);
    assert_int_equal(whole<float>({128, 2, 32, DPCRI_CUDA_TANH, 0.5, false}), 1);
    assert_int_equal(whole<float>({128, 2, 33, DPCRI_CUDA_TANH, 0.5, false}), 1);  // four rows a thread
    assert_int_equal(whole<double>({64, 2, 1, DPCRI_CUDA_TANH, 0, true}), 1);
    assert_int_equal(whole<float>({132, 2, 1, DPCRI_CUDA_TANH, 0, true}), 0);            // too wide
    assert_int_equal(whole<float>({126, 2, 1, DPCRI_CUDA_TANH, 0, true}), 0);            // no fours
    assert_int_equal(whole<float>({128, 2, 1, DPCRI_CUDA_TANH, 0, true}, 96 << 10), 0);  // of a smaller device
    assert_int_equal(whole<float>({64, 2, 1, DPCRI_CUDA_TANH, 0, true, true}), 0);       // normalised
    assert_int_equal(whole<float>({64, 2, 1, DPCRI_CUDA_TANH, 0.5, true, false, 64}), 0);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(every_width_has_the_bits_of_one_block),
        cmocka_unit_test(any_number_of_blocks),
        cmocka_unit_test(groups_of_rows),
        cmocka_unit_test(little_room),
        cmocka_unit_test(cells_of_one_weight),
        cmocka_unit_test(what_is_not_finite_is_its_rows),
        cmocka_unit_test(only_the_loop_of_wide_layers),
        cmocka_unit_test(whole_layers),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
