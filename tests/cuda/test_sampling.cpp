// SPDX-License-Identifier: MIT
// A sampler's kernels on the CPU: a denoiser's layers and the steps, over rows that lie apart, against the plain loop
// in the order of the definition, to the bit.
#include <cmath>

#include "cuda_testing.h"
#include "kern/cuda/launch.h"

extern "C" {
#include "kern/nn_kernels.h"
#include "rt/rt.h"
}

namespace {

std::vector<float> numbers(int64_t count) {
    std::vector<float> v((size_t)count);
    for (float &x : v) x = (float)((double)(random_bits() >> 11) * 0x1p-52 - 1.0);
    return v;
}

void assert_bits(float want, float got, const char *what, int64_t n) {
    if (std::memcmp(&want, &got, sizeof got) != 0 && (want != 0 || got != 0))
        fail_msg("%s: number %d is %.9g, wanted %.9g", what, (int)n, (double)got, (double)want);
}

// Classes: 0 none, 1 one for all rows, 2 of each row.
void layer_is_the_loop(int64_t rows, int64_t in, int64_t out, int activation, bool residual, int classes,
                       uint64_t seed) {
    const int64_t apart = 3, x_row = in + apart, y_row = out + apart, kinds = 4, more_row = out + 5;
    const std::vector<float> weight = numbers(out * in), bias = numbers(out), x = numbers(rows * x_row),
                             more = numbers(kinds * more_row);
    std::vector<float> y((size_t)(rows * y_row), NAN);
    std::vector<int32_t> index((size_t)rows);
    for (int32_t &i : index) i = (int32_t)(random_bits() % (uint64_t)kinds);
    dpcri_device_dense c = {};
    c.activation = activation, c.residual = residual, c.rows = rows, c.in = in, c.out = out;
    c.weight = weight.data(), c.bias = bias.data(), c.x = x.data(), c.x_row = x_row, c.y = y.data(), c.y_row = y_row;
    if (classes) c.more = more.data(), c.more_row = more_row, c.index = classes == 2 ? index.data() : nullptr;
    order(seed, 1 + (int)(seed % 3));
    assert_int_equal(dpcri_cuda_dense_run(c, nullptr), DPCRI_CUDA_OK);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t u = 0; u < y_row; u++) {
            if (u >= out) {
                assert_true(std::isnan(y[(size_t)(r * y_row + u)]));
                continue;
            }
            float sum = bias[(size_t)u];
            if (classes) sum += more[(size_t)((classes == 2 ? index[(size_t)r] : 0) * more_row + u)];
            for (int64_t k = 0; k < in; k++)
                sum = std::fma(weight[(size_t)(u * in + k)], x[(size_t)(r * x_row + k)], sum);
            dpcri_nn_kernels_get(DPCR_F32)->activate(activation, 1, &sum, &sum, nullptr);
            if (residual) sum = x[(size_t)(r * x_row + u)] + sum;
            assert_bits(sum, y[(size_t)(r * y_row + u)], "y", r * y_row + u);
        }
}

void layers_are_the_loop(void **) {
    uint64_t seed = 0;
    for (const int64_t rows : {1, 4, 15, 16, 17, 40})
        for (const int64_t in : {1, 16, 33})
            for (const int64_t out : {1, 31, 32, 33, 70}) {
                layer_is_the_loop(rows, in, out, DPCRI_ACT_IDENTITY, false, (int)(seed % 3), seed);
                seed++;
            }
    for (const int64_t width : {1, 16, 33, 64})
        for (int classes = 0; classes < 3; classes++)
            layer_is_the_loop(9, width, width, DPCRI_ACT_RELU, true, classes, seed++);
    // SiLU is the host's where that has fma.
    if (dpcri_isa_level() != DPCRI_PORTABLE)
        for (const int64_t width : {7, 32, 50})
            layer_is_the_loop(5, width, width, DPCRI_ACT_SILU, width != 7, 2, seed++);
}

double cut(double x0, double clip) { return clip > 0 && x0 > clip ? clip : clip > 0 && x0 < -clip ? -clip : x0; }

void step_is_the_loop(int64_t rows, int64_t width, int kind, uint64_t seed) {
    const int64_t x_row = width + 2, to_row = 2 * width + 1, count = rows * width;
    const bool twice = kind & 1, guided = kind & 2, masked = kind & 4, former = (kind & 8) && !twice, noisy = kind & 16;
    const std::vector<float> x = numbers(rows * x_row), before = numbers(rows * x_row), m = numbers(count),
                             plain = numbers(count), m1 = numbers(count), plain1 = numbers(count),
                             noise = numbers(count), known = numbers(count), start = numbers(count),
                             there = numbers(rows * to_row), f = numbers(18);
    std::vector<float> to = there;
    std::vector<uint8_t> mask((size_t)width);
    for (int64_t i = 0; i < width; i++) mask[(size_t)i] = i % 3 == 1;
    dpcri_device_denoise c = {};
    c.rows = rows, c.width = width, c.clip = seed % 2 ? 0.3 : 0;
    double *const factors[] = {&c.x0_x,    &c.x0_m,      &c.e_x,      &c.e_m,       &c.by_x,      &c.by_x0,
                               &c.by_e,    &c.by_former, &c.by_noise, &c.then_x0_x, &c.then_x0_m, &c.then_x,
                               &c.then_x0, &c.then_x1,   &c.then_x01, &c.alpha,     &c.sigma};
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) *factors[i] = (double)f[i];
    c.guidance = f[17];
    c.x = x.data(), c.x_row = x_row, c.m = m.data(), c.to = to.data(), c.to_row = to_row;
    if (guided) c.plain = plain.data(), c.plain1 = plain1.data();
    if (twice) c.m1 = m1.data();
    if (noisy) c.noise = noise.data();
    if (former) c.former = before.data(), c.former_row = x_row, c.kept = to.data() + width, c.kept_row = to_row;
    if (masked) c.mask = mask.data(), c.known = known.data(), c.start = start.data();
    order(seed, 2);
    assert_int_equal(dpcri_cuda_denoise_run(c, nullptr), DPCRI_CUDA_OK);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++) {
            const size_t n = (size_t)(r * width + i);
            const float said = guided ? plain[n] + c.guidance * (m[n] - plain[n]) : m[n],
                        said1 = guided ? plain1[n] + c.guidance * (m1[n] - plain1[n]) : m1[n];
            const double xi = (double)x[(size_t)(r * x_row + i)], at = (double)there[(size_t)(r * to_row + i)];
            const double x0 = cut(c.x0_x * xi + c.x0_m * (double)said, c.clip);
            const double e = c.e_x * xi + c.e_m * (double)said;
            double next = c.by_x * xi + c.by_x0 * x0 + c.by_e * e;
            if (former) next += c.by_former * (double)before[(size_t)(r * x_row + i)];
            if (noisy) next += c.by_noise * (double)noise[n];
            if (twice) {
                const double x01 = cut(c.then_x0_x * at + c.then_x0_m * (double)said1, c.clip);
                next = c.then_x * xi + c.then_x0 * x0 + c.then_x1 * at + c.then_x01 * x01;
            }
            if (masked && mask[(size_t)i]) next = c.alpha * (double)known[n] + c.sigma * (double)start[n];
            assert_bits((float)next, to[(size_t)(r * to_row + i)], "x'", (int64_t)n);
            const float kept = to[(size_t)(r * to_row + width + i)];
            assert_bits(former ? (float)x0 : there[(size_t)(r * to_row + width + i)], kept, "x0", (int64_t)n);
        }
}

void steps_are_the_loop(void **) {
    for (int kind = 0; kind < 32; kind++) {
        step_is_the_loop(1 + kind % 5, 1 + kind, kind, (uint64_t)kind);
        step_is_the_loop(17, 60, kind, (uint64_t)kind + 1);
    }
}

void what_cannot_be_is_refused(void **) {
    float x[4] = {0}, y[4] = {0};
    dpcri_device_dense d = {};
    d.rows = d.in = d.out = 2;
    assert_int_equal(dpcri_cuda_dense_run(d, nullptr), DPCRI_CUDA_ARGUMENT);
    d.weight = d.bias = d.x = x, d.y = x;  // in place
    assert_int_equal(dpcri_cuda_dense_run(d, nullptr), DPCRI_CUDA_ARGUMENT);
    d.y = y, d.activation = DPCRI_DEVICE_ACTIVATIONS;
    assert_int_equal(dpcri_cuda_dense_run(d, nullptr), DPCRI_CUDA_UNSUPPORTED);
    d.rows = 0, d.activation = 0;
    assert_int_equal(dpcri_cuda_dense_run(d, nullptr), DPCRI_CUDA_OK);
    dpcri_device_denoise s = {};
    s.rows = 1, s.width = 2, s.x = x, s.to = y;
    assert_int_equal(dpcri_cuda_denoise_run(s, nullptr), DPCRI_CUDA_ARGUMENT);
    s.rows = 0;
    assert_int_equal(dpcri_cuda_denoise_run(s, nullptr), DPCRI_CUDA_OK);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_the_loop),
        cmocka_unit_test(steps_are_the_loop),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
