// SPDX-License-Identifier: MIT
// Narrow cells of the device's kernels on the CPU: their loop is the library's to the bit (float, on a CPU with fma),
// overlapped chunks are the loop, on chains that forget and on chains that do not, in every order; what the report
// says.
#include "cell_case.h"
#include "deeppcr/deeppcr.h"

namespace {

// The library's loop, by its cell's own callback.
template <class T>
std::vector<T> library_loop(cell_case<T> &c) {
    dpcr_context *context = nullptr;
    dpcr_context_options with = {};
    with.size = sizeof with;
    with.threads = 1;
    assert_int_equal(dpcr_context_create(&with, &context, nullptr), DPCR_OK);
    const dpcr_dtype dtype = sizeof(T) == 4 ? DPCR_F32 : DPCR_F64;
    dpcr_cell_options o = {};
    o.size = sizeof o;
    o.kind = c.diagonal ? DPCR_CELL_DIAGONAL : DPCR_CELL_DENSE;
    o.dtype = dtype;
    o.length = c.length;
    o.batch = c.batch;
    o.width = c.width;
    o.activation = (dpcr_activation)(c.activation + 1);
    o.scale = c.scale;
    const int64_t w = c.width, shared[] = {w, w}, each[] = {c.length, w, w}, xs[] = {c.length, c.batch, w};
    const int64_t shared_diagonal[] = {w}, each_diagonal[] = {c.length, w}, starts[] = {1, c.batch, w};
    o.weight = c.diagonal
                   ? dpcr_array_make(c.weight.data(), dtype, c.own ? 2 : 1, c.own ? each_diagonal : shared_diagonal)
                   : dpcr_array_make(c.weight.data(), dtype, c.own ? 3 : 2, c.own ? each : shared);
    o.input = dpcr_array_make(c.x.data(), dtype, 3, xs);
    dpcr_cell *cell = nullptr;
    dpcr_error error = {};
    if (dpcr_cell_create(context, &o, &cell, &error) != DPCR_OK) fail_msg("%s", error.text);
    dpcr_steps steps = {};
    steps.size = sizeof steps;
    assert_int_equal(dpcr_cell_steps(cell, &steps, &error), DPCR_OK);
    std::vector<T> want(c.z.size());
    const int64_t all[] = {1, c.length, c.batch, w};
    dpcr_span span = {};
    span.lanes = 1;
    span.stride = 1;
    span.steps = c.length;
    span.rows = c.batch;
    const dpcr_array in = dpcr_array_make(c.z0.data(), dtype, 3, starts);
    const dpcr_array states = dpcr_array_make(want.data(), dtype, 4, all);
    assert_int_equal(steps.advance(steps.user, &span, &in, &states, nullptr, nullptr), 0);
    dpcr_cell_destroy(cell);
    dpcr_context_destroy(context);
    return want;
}

void loop_is_the_librarys(void **) {
    for (const int activation : {DPCRI_CUDA_IDENTITY, DPCRI_CUDA_RELU, DPCRI_CUDA_TANH, DPCRI_CUDA_SIGMOID})
        for (const int64_t width : {1, 2, 4, 7})
            for (const double scale : {0.0, 0.25}) {
                const bool diagonal = width == 7, own = scale == 0 && width != 2;
                cell_case<float> f(width, 60, 3, diagonal, own, 0.9 / (double)(diagonal ? 1 : width), 2);
                f.activation = activation, f.scale = scale;
                const std::vector<float> got = f.loop(), want = library_loop(f);
                cell_case<double> d(width, 60, 3, diagonal, own, 0.9 / (double)(diagonal ? 1 : width), 2);
                d.activation = activation, d.scale = scale;
                const std::vector<double> got_d = d.loop(), want_d = library_loop(d);
                for (size_t i = 0; i < got.size(); i++) {
                    const float error = std::fabs(got[i] - want[i]) / (1 + std::fabs(want[i]));
                    if (!(has_fma() ? got[i] == want[i] : error < 1e-5f))
                        fail_msg("float: activation %d width %d number %d: %.9g %.9g", activation, (int)width, (int)i,
                                 (double)got[i], (double)want[i]);
                    const double error_d = std::fabs(got_d[i] - want_d[i]) / (1 + std::fabs(want_d[i]));
                    if (!(error_d < 1e-13))
                        fail_msg("double: activation %d width %d: %g", activation, (int)width, error_d);
                }
            }
}

void overlap_is_the_loop(void **) {
    uint64_t seed = 0;
    for (const int64_t width : {1, 2, 4, 6})
        for (const int64_t length : {1, 5, 64, 65, 300})
            for (const double size : {0.5, 3.0}) {  // forgets at once, or not
                cell_case<float> c(width, length, 3, width == 6, length % 2 == 1, size, 1);
                const std::vector<float> want = c.loop();
                dpcri_device_cell o = c.arguments(DPCRI_DEVICE_OVERLAP);
                o.chunk = 1 + (int64_t)(seed % 40);
                o.warm_up = 1 + (int64_t)(seed % 30);
                o.max_sweeps = 1 + (int)(seed % 3);
                c.run(o, seed++);
                assert_same(want, c.z, "overlap");
                for (const dpcr_device_outcome &r : c.outcome) {
                    assert_true(r.sweeps >= 1 && r.sweeps <= o.max_sweeps);
                    assert_true(r.residual == 0 && !r.non_finite);
                    assert_true(r.locked > 0 && r.locked <= length);
                }
            }
    // More chunks than a cooperative launch has lanes.
    cell_case<float> many(6, 700, 2, true, false, 2.0, 1);
    const std::vector<float> all = many.loop();
    dpcri_device_cell few = many.arguments(DPCRI_DEVICE_OVERLAP);
    few.chunk = 2, few.warm_up = 3;
    many.run(few, 4);
    assert_same(all, many.z, "overlap, many chunks");

    // Chunks and run-ups longer than any chain.
    for (const int64_t chunk : {int64_t(701), INT64_MAX - 700, INT64_MAX}) {
        few = many.arguments(DPCRI_DEVICE_OVERLAP);
        few.chunk = few.warm_up = chunk;
        many.run(few, 5);
        assert_same(all, many.z, "overlap, one chunk");
        assert_int_equal(many.outcome[0].locked, 700);
    }

    cell_case<double> d(2, 500, 2, false, false, 0.4, 1);
    const std::vector<double> want = d.loop();
    d.run(d.arguments(DPCRI_DEVICE_OVERLAP), 7);
    assert_same(want, d.z, "overlap, double");
    for (const dpcr_device_outcome &r : d.outcome) assert_int_equal(r.locked, 500);
}

void overlap_by_tolerance(void **) {
    cell_case<float> c(4, 400, 2, false, false, 0.3, 1);
    const std::vector<float> want = c.loop();
    dpcri_device_cell o = c.arguments(DPCRI_DEVICE_OVERLAP);
    o.chunk = 50, o.warm_up = 8, o.atol = o.rtol = 1e-3;
    c.run(o, 3);
    float worst = 0;
    for (size_t i = 0; i < want.size(); i++) worst = std::fmax(worst, std::fabs(want[i] - c.z[i]));
    assert_true(worst > 0 && worst < 1e-2f);
    double most = 0;
    for (const dpcr_device_outcome &r : c.outcome) most = std::fmax(most, r.residual);
    if (!(most > 0 && most <= 2e-3)) fail_msg("residual %g", most);
}

void overlap_keeps_nan_apart(void **) {
    cell_case<float> c(2, 200, 3, false, false, 0.4, 1);
    const std::vector<float> clean = c.loop();
    c.x[(size_t)((70 * 3 + 1) * 2)] = NAN;
    dpcri_device_cell o = c.arguments(DPCRI_DEVICE_OVERLAP);
    o.chunk = 20, o.warm_up = 10;
    c.run(o, 5);
    for (int64_t m = 0; m < 200; m++)
        for (int64_t row = 0; row < 3; row++) {
            const size_t at = (size_t)((m * 3 + row) * 2);
            if (row != 1 || m < 70)
                assert_memory_equal(&c.z[at], &clean[at], 2 * sizeof(float));
            else
                assert_true(std::isnan(c.z[at]));
        }
    assert_int_equal(c.outcome[0].non_finite, 0);
    assert_int_not_equal(c.outcome[1].non_finite, 0);
}

// A chain that grows beyond all numbers: an end that is infinite is no end that agrees with a finite one.
void what_overflows_is_told(void **) {
    for (const dpcri_device_way method : {DPCRI_DEVICE_OVERLAP, DPCRI_DEVICE_NEWTON}) {
        cell_case<float> c(1, 1024, 1, false, false, 0, 0);
        c.activation = DPCRI_CUDA_RELU;
        c.weight[0] = 1.5f;
        for (float &v : c.x) v = 1;
        c.z0[0] = 1;
        const std::vector<float> want = c.loop();
        assert_true(std::isinf(want.back()));
        dpcri_device_cell o = c.arguments(method);
        o.chunk = o.warm_up = 64;
        o.atol = o.rtol = 1e-5;
        o.max_sweeps = 3;
        c.run(o, 11);
        for (size_t i = 0; i < want.size(); i++)
            if (std::isfinite(want[i]) != std::isfinite(c.z[i]))
                fail_msg("method %d, step %d: %g, the loop has %g", method, (int)i, (double)c.z[i], (double)want[i]);
        assert_int_not_equal(c.outcome[0].non_finite, 0);
    }
}

// Components of a diagonal cell are columns of their own; any of them makes its sequence one that is not finite.
void every_component_tells(void **) {
    for (int which = 0; which < 3; which++)
        for (const dpcri_device_way method : {DPCRI_DEVICE_LOOP, DPCRI_DEVICE_OVERLAP, DPCRI_DEVICE_NEWTON}) {
            cell_case<float> c(3, 100, 3, true, false, 0.4, 1);
            c.x[(size_t)((60 * 3 + 1) * 3 + which)] = NAN;
            c.run(c.arguments(method), 9);
            for (int row = 0; row < 3; row++) assert_int_equal(c.outcome[(size_t)row].non_finite != 0, row == 1);
        }
}

void what_cannot_be_is_refused(void **) {
    cell_case<float> f(2, 100, 2, false, false, 0.4, 1);
    const dpcri_device_cell good = f.arguments(DPCRI_DEVICE_OVERLAP);
    const size_t bytes = dpcri_cuda_cell_workspace(good);
    std::vector<unsigned char> workspace(bytes);
    const auto run = [&](dpcri_device_cell c, size_t n) {
        return dpcri_cuda_cell_run(c, workspace.data(), n, nullptr);
    };
    assert_int_equal(run(good, bytes), DPCRI_CUDA_OK);
    assert_int_equal(run(good, bytes - 1), DPCRI_CUDA_WORKSPACE);
    dpcri_device_cell c = good;
    c.activation = DPCRI_DEVICE_ACTIVATIONS;
    assert_int_equal(run(c, bytes), DPCRI_CUDA_UNSUPPORTED);
    c = good, c.dtype = DPCR_U32;
    assert_int_equal(run(c, bytes), DPCRI_CUDA_UNSUPPORTED);
    c = good, c.rtol = NAN;
    assert_int_equal(run(c, bytes), DPCRI_CUDA_ARGUMENT);
    c = good, c.x = nullptr;
    assert_int_equal(run(c, bytes), DPCRI_CUDA_ARGUMENT);
    c = good, c.length = 0;
    assert_int_equal(run(c, 0), DPCRI_CUDA_OK);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(loop_is_the_librarys),      cmocka_unit_test(overlap_is_the_loop),
        cmocka_unit_test(overlap_by_tolerance),      cmocka_unit_test(overlap_keeps_nan_apart),
        cmocka_unit_test(what_overflows_is_told),    cmocka_unit_test(every_component_tells),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
