// SPDX-License-Identifier: MIT
// Newton over wide layers (src/kern/cuda/layers_newton.h) on the CPU: the loop's states to the tolerance over chunks
// and windows, in few sweeps; affine chains in one; one set of bits for any order, batch and device; what does not
// converge, or meets NaN, is the loop's, and says so.
#include "kern/cuda/layers_newton_run.h"
#include "layers_case.h"

namespace {

// By the launcher's own pieces, so that windows are short: `chunk` steps a chunk, as many chunks a window, `together`
// rows at a time, blocks of so many threads.
struct cut_short {
    int64_t chunk, together;
    int threads;
};

template <class T>
dpcri_device_cell newton_of(layers_case<T> &c) {
    dpcri_device_cell o = c.forward(DPCRI_DEVICE_NEWTON);
    o.atol = o.rtol = sizeof(T) == 4 ? 2e-6 : 1e-11;
    return o;
}

template <class T>
int solve(const dpcri_device_cell &c, const cut_short &s, uint64_t seed) {
    cells::cut counted = {nullptr, 0};
    size_t cleared = 0;
    (void)layers::newton_of<T>(c, {s.chunk, s.together}, &counted, &cleared);
    std::vector<unsigned char> workspace(counted.used, 0xff);
    cells::cut pieces = {workspace.data(), 0};
    layers::newton_arguments<T> a = layers::newton_of<T>(c, {s.chunk, s.together}, &pieces, &cleared);
    std::memset(workspace.data(), 0, cleared);
    order(seed, 1 + (int)(seed % 4));
    return layers::launch_newton<T>(a, s.threads, true, nullptr);
}

template <class T>
void assert_near(const layers_case<T> &c, const std::vector<T> &want, double bound, const char *what) {
    for (size_t i = 0; i < want.size(); i++) {
        if (std::isnan(want[i]) && std::isnan(c.z[i])) continue;  // beside the states
        if (!(std::fabs((double)c.z[i] - (double)want[i]) <= bound * (1 + std::fabs((double)want[i]))))
            fail_msg("%s: width %d, number %d: %.9g, not %.9g", what, (int)c.width, (int)i, (double)c.z[i],
                     (double)want[i]);
    }
}

template <class T>
void damp(layers_case<T> &c, double factor) {
    for (int64_t l = 0; l < c.length; l++)
        for (int64_t i = 0; i < c.width * c.width; i++) c.theta[(size_t)(l * c.layer + i)] *= (T)factor;
}

template <class T>
void is_near_the_loop(const layers_form &f, const cut_short &s, uint64_t seed) {
    layers_case<T> c(f);
    damp(c, f.scale != 0 ? 1 : 0.5);
    c.solve(seed);
    const std::vector<T> loop = c.z;
    assert_int_equal(solve<T>(newton_of(c), s, seed + 1), 0);
    assert_near(c, loop, sizeof(T) == 4 ? 1e-4 : 1e-9, "newton");
    for (const dpcr_device_outcome &o : c.outcome) {
        assert_int_equal(o.locked, f.length);
        assert_int_equal(o.non_finite, 0);
        if (o.sweeps < 1 || o.sweeps > 9) fail_msg("width %d: %d sweeps", (int)f.width, o.sweeps);
        assert_true(o.residual <= 1e-5);
    }
}

void every_width_is_near_the_loop(void **) {
    uint64_t seed = 0;
    for (const int64_t w : {3, 5, 8, 16, 17, 31, 33, 40})
        for (int i = 0; i < 2; i++, seed++) {
            const int activations[] = {DPCRI_CUDA_TANH, DPCRI_CUDA_SIGMOID, DPCRI_CUDA_GELU, DPCRI_CUDA_SILU};
            const layers_form f = {w,
                                   w < 20 ? 21 : 11,
                                   1 + (int64_t)(seed % 3),
                                   activations[seed / 2 % 4],
                                   i == 1 ? 0.2 : 0,
                                   seed % 3 == 1};
            if (seed % 4 < 2)
                is_near_the_loop<float>(f, {2 + (int64_t)(seed % 3), 1 + (int64_t)(seed % 2), 64}, seed);
            else
                is_near_the_loop<double>(f, {2 + (int64_t)(seed % 3), 4, w > 32 ? 128 : 32}, seed);
        }
}

// Lengths around the borders of chunks and windows of 3 x 3 steps.
void every_length_is_near_the_loop(void **) {
    for (int64_t length = 1; length <= 22; length++)
        is_near_the_loop<float>({5, length, 2, DPCRI_CUDA_TANH, length % 2 ? 0.2 : 0, length % 3 == 0}, {3, 2, 32},
                                (uint64_t)length);
}

// ReLUs near the loop; and where all are closed at the guess, 0, though the chain grows from far below the tolerance.
void relus_are_right_beyond_their_kinks(void **) {
    for (const int64_t w : {5, 17}) {
        is_near_the_loop<float>({w, 14, 2, DPCRI_CUDA_RELU, 0, w == 17}, {3, 2, 64}, (uint64_t)w);
        is_near_the_loop<double>({w, 14, 2, DPCRI_CUDA_RELU, 0.2, w == 5}, {3, 1, 32}, (uint64_t)w + 1);
        for (const double scale : {0.0, 1.0}) {
            layers_case<float> c({w, 12, 1, DPCRI_CUDA_RELU, scale, false});
            for (float &v : c.theta) v = 0;
            for (int64_t l = 0; l < c.length; l++)
                for (int64_t i = 0; i < w; i++)
                    c.theta[(size_t)(l * c.layer + i * w + (i + 1) % w)] = scale == 0 ? 5 : l % 2 ? 5 : -1;
            for (float &v : c.z0) v = 1e-8f;
            c.solve(1);
            const std::vector<float> loop = c.z;
            assert_int_equal(solve<float>(newton_of(c), {3, 1, 64}, 2), 0);
            assert_near(c, loop, 1e-6, "beyond kinks");
        }
    }
}

// u1 = K - K + 1.1 z1: a kick far below the rounding of its terms, and exact, turns a unit a step on.
void kicks_below_rounding_are_seen(void **) {
    for (const bool in_out : {false, true}) {
        layers_case<float> c({5, 170, 1, DPCRI_CUDA_RELU, 0, in_out});
        const auto weight = [&](int64_t l, int64_t i, int64_t j) -> float & {
            return c.theta[(size_t)(l * c.layer + (in_out ? j * 5 + i : i * 5 + j))];
        };
        for (float &v : c.theta) v = 0;
        for (int64_t l = 0; l < c.length; l++) {
            weight(l, 1, 0) = 16, weight(l, 1, 1) = 1.1f;
            c.theta[(size_t)(l * c.layer + 25)] = l == 5 ? 1 + 0x1p-23f : 1;
            c.theta[(size_t)(l * c.layer + 26)] = -16;
        }
        for (float &v : c.z0) v = 0;
        c.z0[0] = 1;
        c.solve(1);
        const std::vector<float> loop = c.z;
        assert_int_equal(solve<float>(newton_of(c), {14, 1, 64}, 2), 0);
        assert_near(c, loop, 1e-5, "a kick");
        assert_true(c.z[(size_t)(169 * c.room + 1)] > 0.5f);
    }
}

void affine_chains_take_one_sweep(void **) {
    for (const double scale : {0.0, 0.3}) {
        layers_case<double> c({9, 40, 2, DPCRI_CUDA_IDENTITY, scale, scale == 0});
        damp(c, 0.5);
        c.solve(1);
        const std::vector<double> loop = c.z;
        assert_int_equal(solve<double>(newton_of(c), {8, 2, 64}, 2), 0);
        assert_near(c, loop, 1e-12, "affine");
        for (const dpcr_device_outcome &o : c.outcome) assert_int_equal(o.sweeps, 2);  // one finds nothing left
    }
}

// As a device launches it: windows, chunks and blocks by the launcher.
void through_the_door(void **) {
    layers_case<float> c({19, 30, 2, DPCRI_CUDA_TANH, 0.1, true});
    c.solve(1);
    const std::vector<float> loop = c.z;
    assert_int_equal(c.run(newton_of(c), 2), DPCRI_CUDA_OK);
    assert_near(c, loop, 1e-4, "newton");
    for (const dpcr_device_outcome &out : c.outcome) assert_true(out.locked == 30 && out.sweeps < 8);
    dpcri_device_cell none = newton_of(c);
    none.outcome = nullptr;
    assert_int_equal(c.run(none, 3), DPCRI_CUDA_OK);
    assert_near(c, loop, 1e-4, "without outcomes");
    // One W for all steps, inputs of each row's own.
    const std::vector<float> x((size_t)(30 * 2 * 19), 0.3f);
    dpcri_device_cell o = c.forward();
    o.weight_step = 0, o.x = x.data(), o.x_step = 38, o.x_row = 19, o.z0 = nullptr;
    assert_int_equal(c.run(o, 4), DPCRI_CUDA_OK);
    const std::vector<float> want = c.z;
    dpcri_device_cell n = newton_of(c);
    n.weight_step = 0, n.x = x.data(), n.x_step = 38, n.x_row = 19, n.z0 = nullptr;
    assert_int_equal(c.run(n, 5), DPCRI_CUDA_OK);
    assert_near(c, want, 1e-4, "one W");
}

void bits_are_those_of_any_order_and_batch(void **) {
    const cut_short s = {3, 2, 32};
    layers_case<float> c({7, 20, 5, DPCRI_CUDA_TANH, 0, false});
    damp(c, 0.6);
    assert_int_equal(solve<float>(newton_of(c), s, 1), 0);
    const std::vector<float> first = c.z;
    const int blocks = simt::host::config.cooperative_blocks;
    for (uint64_t seed = 2; seed < 6; seed++) {
        simt::host::config.cooperative_blocks = 1 + (int)seed % 3;
        const cut_short other = {3, 1 + (int64_t)seed % 5, seed % 2 ? 64 : 32};
        assert_int_equal(solve<float>(newton_of(c), other, seed), 0);
        for (int64_t r = 0; r < c.rows; r++) c.assert_row(first, c.z, r, "any order");
    }
    simt::host::config.cooperative_blocks = blocks;
    for (int64_t r = 0; r < c.rows; r += 2) {
        dpcri_device_cell one = newton_of(c);
        one.rows = 1;
        one.z0 = c.z0.data() + r * c.room, one.z = c.z.data() + r * c.room;
        assert_int_equal(solve<float>(one, s, 7), 0);
        c.assert_row(first, c.z, r, "alone");
    }
}

// Within a loose tolerance rows end after different sweeps, and what goes on beside them no longer moves them.
void rows_end_by_themselves(void **) {
    layers_case<float> c({6, 24, 4, DPCRI_CUDA_TANH, 0.1, true});
    for (int64_t i = 0; i < 6; i++) c.z0[(size_t)(c.room + i)] *= 40, c.z0[(size_t)i] *= 0.01f;
    const auto loose = [&](dpcri_device_cell o) {
        o.atol = o.rtol = 3e-3;
        return o;
    };
    assert_int_equal(solve<float>(loose(newton_of(c)), {3, 4, 128}, 1), 0);  // a warp a row
    const std::vector<float> together = c.z;
    const std::vector<dpcr_device_outcome> told = c.outcome;
    assert_int_not_equal(told[0].sweeps, told[1].sweeps);
    for (int64_t r = 0; r < c.rows; r++) {
        dpcri_device_cell one = loose(newton_of(c));
        one.rows = 1;
        one.z0 = c.z0.data() + r * c.room, one.z = c.z.data() + r * c.room;
        assert_int_equal(solve<float>(one, {3, 1, 32}, 2), 0);
        c.assert_row(together, c.z, r, "alone");
        assert_int_equal(c.outcome[0].sweeps, told[(size_t)r].sweeps);
        assert_true(c.outcome[0].residual == told[(size_t)r].residual);
    }
}

void what_does_not_converge_is_the_loops(void **) {
    const cut_short s = {3, 3, 32};
    layers_case<float> c({6, 24, 3, DPCRI_CUDA_TANH, 0, true});
    c.solve(1);
    const std::vector<float> loop = c.z;
    dpcri_device_cell n = newton_of(c);
    n.max_sweeps = 1;
    assert_int_equal(solve<float>(n, s, 2), 0);
    for (int64_t r = 0; r < 3; r++) c.assert_row(loop, c.z, r, "unconverged");
    for (const dpcr_device_outcome &o : c.outcome) {
        assert_int_equal(o.locked, 0);
        assert_int_equal(o.sweeps, 1);
        assert_true(o.residual > 1e-5);
    }
    n = newton_of(c);
    n.max_sweeps = 2, n.stop = 1;
    assert_int_equal(solve<float>(n, s, 3), 0);
    bool far = false;
    for (const dpcr_device_outcome &o : c.outcome) assert_true(o.locked < 24);
    for (int64_t l = 0; l < 24; l++)
        for (int64_t r = 0; r < 3; r++)
            for (int64_t u = 0; u < 6; u++) {
                const size_t at = (size_t)((l * 3 + r) * c.room + u);
                const float off = std::fabs(c.z[at] - loop[at]);
                if (l < c.outcome[(size_t)r].locked) assert_true(off < 1e-4f);
                far = far || off > 1e-4f;
            }
    assert_true(far);
}

// From the first open step on, wherever in a window it is, the states are the loop's from the one before.
void what_is_open_is_finished_in_order(void **) {
    layers_case<float> c({6, 40, 3, DPCRI_CUDA_TANH, 0, true});
    damp(c, 0.8);
    int within = 0;
    for (int sweeps = 1; sweeps <= 3; sweeps++) {
        dpcri_device_cell n = newton_of(c);
        n.max_sweeps = sweeps;
        assert_int_equal(solve<float>(n, {3, 3, 32}, (uint64_t)sweeps), 0);
        const std::vector<float> states = c.z;
        const std::vector<dpcr_device_outcome> told = c.outcome;
        for (int64_t r = 0; r < c.rows; r++) {
            const int64_t from = told[(size_t)r].locked;  // in the first window that was not done
            if (from % 9 == 0) continue;
            const int64_t end = from / 9 * 9 + 9 < 40 ? from / 9 * 9 + 9 : 40, before = (from - 1) * 3 + r;
            within++;
            dpcri_device_cell rest = c.forward();
            rest.rows = 1, rest.length = end - from, rest.outcome = nullptr;
            rest.weight = c.theta.data() + from * c.layer, rest.x = c.theta.data() + from * c.layer + 36;
            rest.z0 = states.data() + before * c.room, rest.z = c.z.data() + (from * 3 + r) * c.room;
            assert_int_equal(c.run(rest, 1), DPCRI_CUDA_OK);
            for (int64_t l = from; l < end; l++)
                for (int64_t u = 0; u < 6; u++) {
                    const size_t at = (size_t)((l * 3 + r) * c.room + u);
                    assert_true(states[at] == c.z[at]);
                }
        }
    }
    assert_true(within > 2);
}

// One row meets NaN in a bias of its own, another begins with it, a third overflows.
void a_rows_nan_is_its_own(void **) {
    layers_case<float> c({5, 30, 4, DPCRI_CUDA_RELU, 0, true});
    std::vector<float> x((size_t)(30 * 4 * 5), 0.1f);
    damp(c, 0.5);
    x[(size_t)((13 * 4 + 1) * 5 + 2)] = NAN;
    x[(size_t)((20 * 4 + 3) * 5 + 1)] = 3e38f, x[(size_t)((21 * 4 + 3) * 5 + 1)] = 3e38f;
    c.z0[(size_t)(2 * c.room + 4)] = NAN;
    const auto own = [&](dpcri_device_cell o) {
        o.x = x.data(), o.x_step = 20, o.x_row = 5;
        return o;
    };
    for (int64_t i = 0; i < 25; i++) c.theta[(size_t)(21 * c.layer + i)] = 2;
    assert_int_equal(c.run(own(c.forward()), 1), DPCRI_CUDA_OK);
    const std::vector<float> loop = c.z;
    assert_true(std::isinf(loop[(size_t)((21 * 4 + 3) * c.room)]));
    for (const int64_t chunk : {2, 4, 8}) {
        assert_int_equal(solve<float>(own(newton_of(c)), {chunk, 4, 32}, (uint64_t)chunk), 0);
        const int64_t good[] = {30, 13, 0, 21};
        for (int64_t r = 0; r < 4; r++) {
            assert_int_equal(c.outcome[(size_t)r].locked, good[r]);
            assert_int_equal(
                c.outcome[(size_t)r].non_finite != 0,
                std::isnan(loop[(size_t)((29 * 4 + r) * c.room)]) || std::isinf(loop[(size_t)((29 * 4 + r) * c.room)]));
            for (int64_t l = 0; l < 30; l++)
                for (int64_t u = 0; u < 5; u++) {
                    const size_t at = (size_t)((l * 4 + r) * c.room + u);
                    const bool same = c.z[at] == loop[at] || (std::isnan(c.z[at]) && std::isnan(loop[at]));
                    if (!(same || std::fabs(c.z[at] - loop[at]) <= 1e-4f * std::fabs(loop[at]) + 1e-4f))
                        fail_msg("row %d, layer %d, unit %d: %g, not %g", (int)r, (int)l, (int)u, c.z[at], loop[at]);
                }
        }
    }
}

void what_cannot_be_is_refused(void **) {
    const layers_form normed = {5, 3, 2, DPCRI_CUDA_TANH, 0, true, true},
                      two = {5, 3, 2, DPCRI_CUDA_TANH, 0, true, false, 7};
    for (const layers_form &f : {normed, two}) {
        layers_case<float> c(f);
        assert_int_equal(c.run(newton_of(c), 1), DPCRI_CUDA_UNSUPPORTED);
    }
    layers_case<float> c({40, 9, 2, DPCRI_CUDA_TANH, 0, true});
    damp(c, 0.5);
    dpcri_device_cell n = newton_of(c);
    std::vector<unsigned char> workspace(dpcri_cuda_cell_workspace(n));
    assert_int_equal(dpcri_cuda_cell_run(n, workspace.data(), workspace.size() - 1, nullptr), DPCRI_CUDA_WORKSPACE);
    const auto before = simt::host::config;
    simt::host::config.cooperative_blocks = 0;
    assert_int_equal(dpcri_cuda_cell_fits(n), DPCRI_CUDA_UNSUPPORTED);
    assert_int_equal(c.run(n, 1), DPCRI_CUDA_UNSUPPORTED);
    simt::host::config = before;
    // Room for one warp's columns alone, and for not even these.
    const int64_t least = 2 * (4 << 10) / 64 * (64 + 1) + 2 * 4 * 40 * 4;
    c.solve(1);
    const std::vector<float> loop = c.z;
    simt::host::config.shared_bytes = least;
    assert_int_equal(c.run(newton_of(c), 2), DPCRI_CUDA_OK);
    assert_near(c, loop, 1e-4, "little room");
    simt::host::config.shared_bytes = least - 1;
    assert_int_equal(dpcri_cuda_cell_fits(newton_of(c)), DPCRI_CUDA_WIDTH);
    assert_int_equal(c.run(newton_of(c), 3), DPCRI_CUDA_WIDTH);
    simt::host::config = before;
}

// What rows keep beside their states is bounded, and as few products as may be go one after another.
void windows_and_chunks(void **) {
    assert_int_equal(layers::newton_chunk(1, 8), 2);
    assert_int_equal(layers::newton_chunk(17, 8), 8);
    assert_int_equal(layers::newton_chunk(1 << 20, 8), 64);
    assert_int_equal(layers::newton_chunk(1 << 20, 512), 64);
    assert_int_equal(layers::newton_chunk(1 << 20, 1024), 16);
    assert_int_equal(layers::newton_chunk(1 << 20, 9000), 2);
    for (const int64_t w : {3, 64, 512, 1024}) {
        layers_form f = {3, 5000, 4096, DPCRI_CUDA_TANH, 0, true};
        dpcri_device_cell c = {};
        c.dtype = DPCR_F32, c.length = f.length, c.rows = f.rows, c.w = w, c.way = DPCRI_DEVICE_NEWTON;
        const size_t bytes = layers::newton_kinds<float>::workspace(c);
        assert_true(bytes > 0 && bytes < (size_t)1 << 29);
    }
}

}  // namespace

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_width_is_near_the_loop),
        cmocka_unit_test(every_length_is_near_the_loop),
        cmocka_unit_test(relus_are_right_beyond_their_kinks),
        cmocka_unit_test(kicks_below_rounding_are_seen),
        cmocka_unit_test(affine_chains_take_one_sweep),
        cmocka_unit_test(through_the_door),
        cmocka_unit_test(bits_are_those_of_any_order_and_batch),
        cmocka_unit_test(rows_end_by_themselves),
        cmocka_unit_test(what_does_not_converge_is_the_loops),
        cmocka_unit_test(what_is_open_is_finished_in_order),
        cmocka_unit_test(a_rows_nan_is_its_own),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(windows_and_chunks),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
