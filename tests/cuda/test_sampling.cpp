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
    const int64_t apart = in % 4 ? 3 : 4, x_row = in + apart, y_row = out + apart, kinds = 4, more_row = out + 5;
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
    // Inputs of whole quads that lie so, slices of them, and many rows.
    for (const int64_t in : {128, 129, 385, 516, 700})
        layer_is_the_loop(5, in, 9, DPCRI_ACT_RELU, false, (int)(in % 3), seed++);
    for (const int64_t width : {36, 261}) layer_is_the_loop(259, width, width, DPCRI_ACT_RELU, true, 2, seed++);
    for (int classes = 0; classes < 3; classes++)
        layer_is_the_loop(300, 20, 37, DPCRI_ACT_IDENTITY, false, classes, seed++);
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
    double *const factors[] = {&c.by.x0_x,      &c.by.x0_m,   &c.by.e_x,       &c.by.e_m,      &c.by.by_x,
                               &c.by.by_x0,     &c.by.by_e,   &c.by.by_former, &c.by.by_noise, &c.by.then_x0_x,
                               &c.by.then_x0_m, &c.by.then_x, &c.by.then_x0,   &c.by.then_x1,  &c.by.then_x01,
                               &c.by.alpha,     &c.by.sigma};
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) *factors[i] = (double)f[i];
    c.by.twice = twice;
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
            const double x0 = cut(c.by.x0_x * xi + c.by.x0_m * (double)said, c.clip);
            const double e = c.by.e_x * xi + c.by.e_m * (double)said;
            double next = c.by.by_x * xi + c.by.by_x0 * x0 + c.by.by_e * e;
            if (former) next += c.by.by_former * (double)before[(size_t)(r * x_row + i)];
            if (noisy) next += c.by.by_noise * (double)noise[n];
            if (twice) {
                const double x01 = cut(c.by.then_x0_x * at + c.by.then_x0_m * (double)said1, c.clip);
                next = c.by.then_x * xi + c.by.then_x0 * x0 + c.by.then_x1 * at + c.by.then_x01 * x01;
            }
            if (masked && mask[(size_t)i]) next = c.by.alpha * (double)known[n] + c.by.sigma * (double)start[n];
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

// Rows of a window, each its own step's, against the same rows step by step.
void window_is_the_steps(int64_t steps, int64_t batch, int64_t width, int kind, uint64_t seed) {
    const int64_t L = steps + 3, x_row = 2 * width, most = steps, out = width + 1, states = batch * x_row;
    const bool twice = kind & 1, noisy = kind & 2, masked = kind & 4, former = (kind & 8) && !twice;
    std::vector<float> path = numbers(L * states), weight = numbers(out * width), shifts = numbers(L * out),
                       more = numbers(3 * out), noise = numbers(L * batch * width), known = numbers(batch * width),
                       first = numbers(batch * width);
    std::vector<uint8_t> mask((size_t)width);
    for (int64_t i = 0; i < width; i++) mask[(size_t)i] = i % 2 == 1;
    std::vector<dpcri_device_factors> factors((size_t)L);
    for (size_t l = 0; l < factors.size(); l++) {
        double values[17];
        const std::vector<float> drawn = numbers(17);
        for (size_t i = 0; i < 17; i++) values[i] = (double)drawn[i];
        std::memcpy(&factors[l], values, sizeof values);
        factors[l].twice = twice && l + 1 < factors.size();
    }
    std::vector<dpcri_device_progress> places((size_t)batch);
    std::vector<int32_t> who, index;
    for (int64_t b = 0; b < batch; b++) {
        places[(size_t)b].front = (int64_t)(random_bits() % (uint64_t)(L + 1));
        index.push_back((int32_t)(b % 3));
        if (b % 4 != 2) who.push_back((int32_t)b);
    }
    dpcri_device_window w = {};
    w.count = (int64_t)who.size(), w.first = kind % 3 ? 1 : 0, w.most = most, w.length = L, w.batch = batch;
    w.who = who.data(), w.places = places.data();
    const int64_t rows = w.count * (most - w.first + 2);  // some beyond the window
    std::vector<float> y((size_t)(rows * out), NAN), m = numbers(rows * width), m1 = numbers(rows * width),
                                                     to((size_t)(rows * x_row), 7);
    dpcri_device_dense d = {};
    d.path = 1, d.rows = rows, d.in = width, d.out = out, d.weight = weight.data(), d.bias = shifts.data();
    d.bias_row = out, d.more = more.data(), d.more_row = out, d.index = index.data(), d.x = path.data();
    d.x_row = x_row, d.y = y.data(), d.y_row = out, d.window = w;
    order(seed, 2);
    assert_int_equal(dpcri_cuda_dense_run(d, nullptr), DPCRI_CUDA_OK);
    dpcri_device_denoise c = {};
    c.rows = rows, c.width = width, c.clip = 0.5, c.steps = factors.data(), c.x = path.data(), c.x_row = x_row;
    c.m = m.data(), c.to = to.data(), c.to_row = x_row, c.window = w;
    if (noisy) c.noise = noise.data();
    if (former) c.former = path.data() + width, c.former_row = x_row, c.kept = to.data() + width, c.kept_row = x_row;
    if (masked) c.mask = mask.data(), c.known = known.data(), c.start = first.data();
    assert_int_equal(dpcri_cuda_denoise_run(c, nullptr), DPCRI_CUDA_OK);
    if (twice) c.m1 = m1.data();
    if (twice) assert_int_equal(dpcri_cuda_denoise_run(c, nullptr), DPCRI_CUDA_OK);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t b = who[(size_t)(r % w.count)], j = w.first + r / w.count, l = places[(size_t)b].front + j;
        if (j >= most || l >= L) {
            for (int64_t u = 0; u < out; u++) assert_true(std::isnan(y[(size_t)(r * out + u)]));
            for (int64_t u = 0; u < x_row; u++) assert_true(to[(size_t)(r * x_row + u)] == 7);
            continue;
        }
        const std::vector<float> got_y(y.begin() + r * out, y.begin() + (r + 1) * out),
            got(to.begin() + r * x_row, to.begin() + (r + 1) * x_row);
        std::vector<float> one_y((size_t)out), one((size_t)x_row, 7);
        dpcri_device_dense one_d = d;
        one_d.window = {}, one_d.path = 0, one_d.rows = 1, one_d.bias = shifts.data() + l * out;
        one_d.index = index.data() + b, one_d.x = path.data() + (l * batch + b) * x_row, one_d.y = one_y.data();
        assert_int_equal(dpcri_cuda_dense_run(one_d, nullptr), DPCRI_CUDA_OK);
        for (int64_t u = 0; u < out; u++) assert_bits(one_y[(size_t)u], got_y[(size_t)u], "y of a window", u);
        dpcri_device_denoise step = c;
        step.window = {}, step.rows = 1, step.by = factors[(size_t)l], step.x = path.data() + (l * batch + b) * x_row;
        step.m = m.data() + r * width, step.m1 = nullptr, step.to = one.data();
        if (noisy) step.noise = noise.data() + (l * batch + b) * width;
        if (former) step.former = step.x + width, step.kept = one.data() + width;
        if (masked) step.known = known.data() + b * width, step.start = first.data() + b * width;
        assert_int_equal(dpcri_cuda_denoise_run(step, nullptr), DPCRI_CUDA_OK);
        step.m1 = m1.data() + r * width;
        if (factors[(size_t)l].twice) assert_int_equal(dpcri_cuda_denoise_run(step, nullptr), DPCRI_CUDA_OK);
        for (int64_t u = 0; u < x_row; u++) assert_bits(one[(size_t)u], got[(size_t)u], "x' of a window", u);
    }
}

void windows_are_the_steps(void **) {
    for (int kind = 0; kind < 16; kind++) {
        window_is_the_steps(1 + kind % 5, 1 + kind % 4, 2 + kind, kind, (uint64_t)kind);
        window_is_the_steps(7, 5, 3, kind, (uint64_t)kind + 50);
        window_is_the_steps(30, 16, 5, kind, (uint64_t)kind + 90);  // so many rows go in the tiles of all products
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
    s.m = x, s.window.count = 1;
    assert_int_equal(dpcri_cuda_denoise_run(s, nullptr), DPCRI_CUDA_ARGUMENT);
    s.rows = 0, s.window.count = 0;
    assert_int_equal(dpcri_cuda_denoise_run(s, nullptr), DPCRI_CUDA_OK);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_the_loop),
        cmocka_unit_test(steps_are_the_loop),
        cmocka_unit_test(windows_are_the_steps),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
