// SPDX-License-Identifier: MIT
// Overlapped chunks of wide layers (src/kern/cuda/layers_chunks.h) on the CPU: without tolerance the loop's bits, for
// widths up to some, normalised and two-layer branches too, layers that forget and layers that do not; what is told of
// sweeps, locks and residuals; a row's bits in any batch and order; NaN in its own row.
#include <algorithm>

#include "layers_case.h"

namespace {

void assert_same(const std::vector<float> &want, const std::vector<float> &got, const char *what) {
    for (size_t i = 0; i < want.size(); i++)
        if (!(want[i] == got[i] || (std::isnan(want[i]) && std::isnan(got[i]))))
            fail_msg("%s: number %d", what, (int)i);
}

// Layers that forget what they began with in some steps, for factors well below 1.
void forget(layers_case<float> &c, float factor) {
    for (int64_t l = 0; l < c.length; l++)
        for (int64_t i = 0; i < c.width * c.inner; i++) c.theta[(size_t)(l * c.layer + i)] *= factor;
}

dpcri_device_cell chunks_of(layers_case<float> &c, int64_t chunk, int64_t warm_up, int sweeps) {
    dpcri_device_cell o = c.forward(DPCRI_DEVICE_OVERLAP);
    o.chunk = chunk, o.warm_up = warm_up, o.max_sweeps = sweeps;
    return o;
}

// By the loop, then by chunks: the same bits.
void is_the_loop(const layers_form &f, float factor, int64_t chunk, int64_t warm_up, int sweeps, uint64_t seed) {
    layers_case<float> c(f);
    forget(c, factor);
    c.solve(seed);
    const std::vector<float> loop = c.z;
    assert_int_equal(c.run(chunks_of(c, chunk, warm_up, sweeps), seed + 1), DPCRI_CUDA_OK);
    assert_same(loop, c.z, "states");
    for (const dpcr_device_outcome &o : c.outcome) {
        assert_true(o.sweeps >= 1 && o.sweeps <= (sweeps ? sweeps : 3));
        assert_true(o.residual == 0 && o.non_finite == 0 && o.locked <= f.length);
    }
}

void every_width_is_the_loop(void **) {
    uint64_t seed = 0;
    const int activations[] = {DPCRI_CUDA_TANH, DPCRI_CUDA_RELU, DPCRI_CUDA_GELU, DPCRI_CUDA_SILU};
    for (const int64_t w : {3, 5, 7, 8, 16, 17, 31, 32, 33, 40, 65, 130})
        for (int i = 0; i < 3; i++, seed++)
            is_the_loop({w, w < 50 ? 40 : 14, 1 + (int64_t)(seed % 3), activations[seed % 4], i == 1 ? 0.1 : 0, i == 2},
                        i == 1 ? 1 : 0.3f, 8, 3 + (int64_t)(seed % 5), (int)(seed % 4), seed);
}

void other_layers_are_the_loop(void **) {
    uint64_t seed = 0;
    for (const int64_t w : {2, 6, 19, 34})
        for (const bool normed : {false, true})
            for (const int64_t hidden : {int64_t(0), w + 3}) {
                if (!normed && hidden == 0) continue;
                is_the_loop({w, 30, 2, DPCRI_CUDA_TANH, seed % 2 ? 0.2 : 0, seed % 3 == 0, normed, hidden}, 0.4f, 7, 5,
                            3, seed);
                seed++;
            }
}

// Groups of four and of eight rows, and a last one that is not full.
void many_rows(void **) {
    is_the_loop({5, 24, 39, DPCRI_CUDA_TANH, 0, true}, 0.4f, 6, 4, 3, 1);
    is_the_loop({5, 12, 1030, DPCRI_CUDA_RELU, 0, false}, 0.2f, 6, 4, 2, 2);
    is_the_loop({5, 24, 39, DPCRI_CUDA_TANH, 0.2, true, true}, 1, 6, 4, 2, 3);
}

// Chunks longer than the chain, of one layer, one left over; chunks and warm-up from the length.
void borders_of_chunks(void **) {
    uint64_t seed = 0;
    for (const int64_t chunk : {1, 2, 7, 8, 9, 40})
        for (const int64_t length : {1, 2, 8, 9, 17})
            is_the_loop({6, length, 2, DPCRI_CUDA_TANH, 0, true}, 0.5f, chunk, 1 + (int64_t)(seed % 9), 3, seed),
                seed++;
    for (const int64_t chunk : {INT64_MAX - 150, INT64_MAX})
        is_the_loop({6, 150, 2, DPCRI_CUDA_TANH, 0, true}, 0.5f, chunk, chunk, 3, seed++);
    is_the_loop({3, 150, 1, DPCRI_CUDA_TANH, 0, true}, 0.3f, 0, 0, 0, 7);
}

// One W and x of every step and row for all: a recurrent cell.
void shared_weights(void **) {
    layers_case<float> c({9, 50, 3, DPCRI_CUDA_TANH, 0, true});
    forget(c, 0.4f);
    const std::vector<float> x((size_t)(50 * 3 * 9), 0.3f);
    dpcri_device_cell loop = c.forward();
    loop.weight_step = 0, loop.x = x.data(), loop.x_step = 27, loop.x_row = 9;
    assert_int_equal(c.run(loop, 1), DPCRI_CUDA_OK);
    const std::vector<float> want = c.z;
    dpcri_device_cell o = chunks_of(c, 8, 6, 3);
    o.weight_step = 0, o.x = x.data(), o.x_step = 27, o.x_row = 9;
    assert_int_equal(c.run(o, 2), DPCRI_CUDA_OK);
    assert_same(want, c.z, "one W");
}

// Layers that forget nothing: open to the end of the sweeps, finished in order, or left with `stop`.
void does_not_forget(int64_t w) {
    layers_case<float> c({w, 40, 2, DPCRI_CUDA_TANH, 0.05, true});
    c.solve(1);
    const std::vector<float> loop = c.z;
    dpcri_device_cell o = chunks_of(c, 8, 4, 2);
    assert_int_equal(c.run(o, 2), DPCRI_CUDA_OK);
    assert_same(loop, c.z, "finished");
    for (const dpcr_device_outcome &out : c.outcome) {
        assert_int_equal(out.sweeps, 2);
        assert_int_equal(out.locked, 16);  // chunk 0, and chunk 1 after the second sweep
        assert_true(out.residual == 0);
    }
    o = chunks_of(c, 8, 4, 2);
    o.stop = 1;
    assert_int_equal(c.run(o, 3), DPCRI_CUDA_OK);
    for (const dpcr_device_outcome &out : c.outcome) {
        assert_int_equal(out.locked, 16);
        assert_true(out.residual > 0);
    }
    const size_t end = (size_t)(16 * 2 * c.room);
    assert_same({loop.begin(), loop.begin() + (int64_t)end}, {c.z.begin(), c.z.begin() + (int64_t)end}, "locked");
    // As many sweeps as chunks: nothing is left to finish.
    assert_int_equal(c.run(chunks_of(c, 8, 4, 5), 4), DPCRI_CUDA_OK);
    assert_same(loop, c.z, "by sweeps");
    for (const dpcr_device_outcome &out : c.outcome) assert_int_equal(out.locked, 40);
}

// Of one warp and of several, which wait for each other.
void what_does_not_forget(void **) {
    for (const int64_t w : {6, 40, 100}) does_not_forget(w);
}

// With a tolerance chunks join within it; a row has the same bits alone, in any order, and with few blocks.
void bits_with_a_tolerance(void **) {
    layers_case<float> c({11, 48, 37, DPCRI_CUDA_TANH, 0, true});
    forget(c, 0.6f);
    c.solve(1);
    const std::vector<float> loop = c.z;
    dpcri_device_cell o = chunks_of(c, 8, 5, 3);
    o.atol = o.rtol = 1e-3;
    assert_int_equal(c.run(o, 2), DPCRI_CUDA_OK);
    const std::vector<float> states = c.z;
    for (size_t i = 0; i < loop.size(); i++) assert_true(std::isnan(loop[i]) || std::fabs(loop[i] - states[i]) < 1e-2);
    const int before = simt::host::config.cooperative_blocks;
    for (uint64_t seed = 3; seed < 6; seed++) {
        simt::host::config.cooperative_blocks = 1 + (int)seed;
        c.z.assign(c.z.size(), NAN);
        assert_int_equal(c.run(o, seed), DPCRI_CUDA_OK);
        assert_same(states, c.z, "in another order");
    }
    simt::host::config.cooperative_blocks = before;
    const int64_t row = 30, from = row * c.room;
    dpcri_device_cell one = o;
    one.rows = 1;
    one.z0 = c.z0.data() + from, one.z = c.z.data() + from, one.outcome = c.outcome.data() + row;
    assert_int_equal(c.run(one, 6), DPCRI_CUDA_OK);
    c.assert_row(states, c.z, row, "alone");
}

void hazards_stay_in_their_row(void **) {
    layers_case<float> c({6, 40, 3, DPCRI_CUDA_TANH, 0, true});
    forget(c, 0.4f);
    c.solve(1);
    const std::vector<float> clean = c.z;
    c.z0[(size_t)c.room + 2] = NAN;
    c.solve(2);
    const std::vector<float> loop = c.z;
    assert_int_equal(c.run(chunks_of(c, 8, 6, 3), 3), DPCRI_CUDA_OK);
    assert_same(loop, c.z, "with a NaN");
    c.assert_row(clean, c.z, 0, "beside it");
    c.assert_row(clean, c.z, 2, "beside it");
    assert_int_equal(c.outcome[0].non_finite, 0);
    assert_int_not_equal(c.outcome[1].non_finite, 0);
}

void what_cannot_be_is_refused(void **) {
    layers_case<float> c({9, 40, 2, DPCRI_CUDA_TANH, 0, true});
    const dpcri_device_cell good = chunks_of(c, 8, 6, 3);
    const size_t bytes = dpcri_cuda_cell_workspace(good);
    std::vector<unsigned char> workspace(bytes);
    assert_int_equal(dpcri_cuda_cell_run(good, workspace.data(), bytes, nullptr), DPCRI_CUDA_OK);
    assert_int_equal(dpcri_cuda_cell_run(good, workspace.data(), bytes - 1, nullptr), DPCRI_CUDA_WORKSPACE);
    const int before = simt::host::config.cooperative_blocks;
    simt::host::config.cooperative_blocks = 0;
    assert_int_equal(c.run(good, 1), DPCRI_CUDA_UNSUPPORTED);
    simt::host::config.cooperative_blocks = before;
    const int64_t room = simt::host::config.shared_bytes;
    simt::host::config.shared_bytes = 1 << 10;
    assert_int_equal(dpcri_cuda_cell_fits(good), DPCRI_CUDA_WIDTH);
    simt::host::config.shared_bytes = room;
    dpcri_device_cell untold = good;
    untold.outcome = nullptr;
    c.z.assign(c.z.size(), NAN);
    assert_int_equal(c.run(untold, 2), DPCRI_CUDA_OK);
    assert_true(std::isfinite(c.z[0]));
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(every_width_is_the_loop),
        cmocka_unit_test(other_layers_are_the_loop),
        cmocka_unit_test(many_rows),
        cmocka_unit_test(borders_of_chunks),
        cmocka_unit_test(shared_weights),
        cmocka_unit_test(what_does_not_forget),
        cmocka_unit_test(bits_with_a_tolerance),
        cmocka_unit_test(hazards_stay_in_their_row),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
