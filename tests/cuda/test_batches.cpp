// SPDX-License-Identifier: MIT
// Batches, encoder and head, and loss on the CPU: the library's permutation, the loops' own sums and the library's
// losses, to the bit, for sizes across tiles, warps, blocks and windows.
#include <cmath>
#include <cstring>

#include "cuda_testing.h"
#include "deeppcr/deeppcr.h"
#include "kern/cuda/launch.h"

extern "C" {
#include "train/batches.h"
}

namespace {

template <class T>
constexpr dpcr_dtype type = sizeof(T) == 4 ? DPCR_F32 : DPCR_F64;

template <class T>
std::vector<T> numbers(int64_t count) {
    std::vector<T> v((size_t)count);
    for (T &x : v) x = (T)((double)(random_bits() >> 11) * 0x1p-52 - 1.0);
    return v;
}

enum sign_of_zero { SIGNED, ANY };

template <class T>
void assert_equal(const std::vector<T> &want, const std::vector<T> &got, const char *what, int64_t rows, int64_t in,
                  int64_t out, sign_of_zero zeros = SIGNED) {
    for (size_t i = 0; i < want.size(); i++)
        if (std::memcmp(&want[i], &got[i], sizeof(T)) != 0 && (zeros == SIGNED || want[i] != 0 || got[i] != 0) &&
            !(std::isnan((double)want[i]) && std::isnan((double)got[i])))
            fail_msg("%s of %d x %d x %d: number %d is %.17g, wanted %.17g", what, (int)rows, (int)in, (int)out, (int)i,
                     (double)got[i], (double)want[i]);
}

// ---- encoder and head ----

template <class T>
struct layer {
    int64_t rows, in, out;
    bool turned;  // W is [out][in]
    std::vector<T> weight, bias, x, y, dx, dweight, dbias;
    layer(int64_t b, int64_t n, int64_t m, bool out_in = false)
        : rows(b),
          in(n),
          out(m),
          turned(out_in),
          weight(numbers<T>(n * m)),
          bias(numbers<T>(m)),
          x(numbers<T>(b * n)),
          y(numbers<T>(b * m)),
          dx((size_t)(b * n), T(NAN)),
          dweight(numbers<T>(n * m)),
          dbias(numbers<T>(m)) {}

    dpcri_device_affine arguments(bool backward) {
        return {type<T>,  backward, turned,    rows,           in,          out, weight.data(), bias.data(),
                x.data(), y.data(), dx.data(), dweight.data(), dbias.data()};
    }
    size_t place(int64_t k, int64_t u) const { return (size_t)(turned ? u * in + k : k * out + u); }
    void forward() {
        for (int64_t b = 0; b < rows; b++)
            for (int64_t u = 0; u < out; u++) {
                T sum = bias[(size_t)u];
                for (int64_t k = 0; k < in; k++) sum = std::fma(x[(size_t)(b * in + k)], weight[place(k, u)], sum);
                y[(size_t)(b * out + u)] = sum;
            }
    }
    void backward() {
        for (int64_t b = 0; b < rows; b++)
            for (int64_t k = 0; k < in; k++) {
                T sum = 0;
                for (int64_t u = 0; u < out; u++) sum = std::fma(y[(size_t)(b * out + u)], weight[place(k, u)], sum);
                dx[(size_t)(b * in + k)] = sum;
            }
        for (int64_t b = 0; b < rows; b++)
            for (int64_t u = 0; u < out; u++) {
                const T e = y[(size_t)(b * out + u)];
                dbias[(size_t)u] += e;
                for (int64_t k = 0; k < in; k++)
                    dweight[place(k, u)] = std::fma(x[(size_t)(b * in + k)], e, dweight[place(k, u)]);
            }
    }
};

template <class T>
void ends_are_the_loops(int64_t rows, int64_t in, int64_t out, uint64_t seed) {
    layer<T> got(rows, in, out, seed / 2 % 2 == 1), want = got;
    order(seed, 1 + (int)(seed % 3));
    assert_int_equal(dpcri_cuda_affine_run(got.arguments(true), nullptr), DPCRI_CUDA_OK);
    want.backward();
    assert_equal(want.dx, got.dx, "dx", rows, in, out);
    assert_equal(want.dweight, got.dweight, "dW", rows, in, out);
    assert_equal(want.dbias, got.dbias, "db", rows, in, out);
    assert_int_equal(dpcri_cuda_affine_run(got.arguments(false), nullptr), DPCRI_CUDA_OK);
    want.forward();
    assert_equal(want.y, got.y, "y", rows, in, out);
}

void ends_are_the_loops_to_the_bit(void **) {
    static const int64_t sizes[] = {1, 2, 3, 10, 15, 16, 17, 31, 32, 33, 64, 65, 130};
    uint64_t seed = 0;
    for (const int64_t in : sizes)
        for (const int64_t out : sizes) {
            const int64_t rows = sizes[seed % 13];
            if (seed % 2)
                ends_are_the_loops<float>(rows, in, out, seed);
            else
                ends_are_the_loops<double>(rows, in, out, seed);
            seed++;
        }
    for (int64_t rows = 1; rows <= 40; rows++) ends_are_the_loops<float>(rows, 19, 7, (uint64_t)rows);
    ends_are_the_loops<float>(700, 33, 10, 1);  // rows are not cut into pieces
    ends_are_the_loops<float>(700, 33, 10, 3);
    for (const int64_t out : {7, 16, 33, 64, 100}) ends_are_the_loops<double>(5, 130, out, 2);
}

// -0 and rows of zeros, by weights below 0: the loops' sums stay -0. Tiles that are not full add 0 to them.
void signs_of_zeros(void **) {
    for (const int64_t in : {5, 16, 17, 32, 33, 64}) {
        const int64_t out = 7, rows = 3;
        layer<float> got(rows, in, out);
        for (float &w : got.weight) w = -std::fabs(w);
        got.bias.assign(got.bias.size(), -0.0f);
        got.x.assign(got.x.size(), 0.0f);
        layer<float> want = got;
        order((uint64_t)in, 2);
        assert_int_equal(dpcri_cuda_affine_run(got.arguments(false), nullptr), DPCRI_CUDA_OK);
        want.forward();
        assert_true(std::signbit(want.y[0]));
        assert_equal(want.y, got.y, "y", rows, in, out, in % 16 ? ANY : SIGNED);
    }
}

void what_is_not_wanted_is_not_written(void **) {
    layer<float> l(5, 6, 7), kept = l;
    dpcri_device_affine c = l.arguments(true);
    c.dx = nullptr, c.bias_gradient = nullptr;
    assert_int_equal(dpcri_cuda_affine_run(c, nullptr), DPCRI_CUDA_OK);
    assert_equal(kept.dbias, l.dbias, "db", 5, 6, 7);
    kept.backward();
    assert_equal(kept.dweight, l.dweight, "dW", 5, 6, 7);
    assert_true(std::isnan(l.dx[0]));
    c.weight_gradient = nullptr, c.dx = l.dx.data(), c.x = nullptr;
    assert_int_equal(dpcri_cuda_affine_run(c, nullptr), DPCRI_CUDA_OK);
    assert_equal(kept.dx, l.dx, "dx", 5, 6, 7);
}

// ---- loss ----

template <class T>
void loss_is_the_librarys(int64_t rows, int64_t classes, uint64_t seed) {
    std::vector<T> y = numbers<T>(rows * classes), dy((size_t)(rows * classes), T(NAN)), dy2 = dy;
    for (size_t i = 0; i < y.size(); i++) y[i] *= T(seed % 3 == 0 ? 300 : 4);
    if (seed % 5 == 1) y[y.size() / 2] = T(INFINITY);
    if (seed % 5 == 2) y[y.size() / 3] = T(NAN);
    if (seed % 5 == 3) y[y.size() - 1] = y[0];
    std::vector<uint8_t> labels((size_t)rows);
    for (uint8_t &l : labels) l = (uint8_t)(random_bits() % (uint64_t)classes);
    std::vector<double> parts((size_t)(2 * rows), NAN);
    double told[2] = {NAN, NAN}, loss = 0;
    int64_t correct = 0;
    const int64_t shape[] = {rows, classes};
    const dpcr_array logits = dpcr_array_make(y.data(), type<T>, 2, shape),
                     slopes = dpcr_array_make(dy2.data(), type<T>, 2, shape);
    assert_int_equal(dpcr_loss_cross_entropy(&logits, labels.data(), &loss, &slopes, &correct, nullptr), DPCR_OK);
    dpcri_device_loss c = {type<T>, rows, classes, y.data(), labels.data(), dy.data(), parts.data(), told, 0};
    const bool in_place = seed % 2 == 1, only = seed % 7 == 4;
    if (in_place) c.dlogits = y.data();
    if (only) c.dlogits = nullptr;
    order(seed, 2);
    assert_int_equal(dpcri_cuda_loss_run(c, nullptr), DPCRI_CUDA_OK);
    assert_true(told[0] == loss || (std::isnan(told[0]) && std::isnan(loss)));
    assert_true(told[1] == (double)correct);
    if (!only) assert_equal(dy2, in_place ? y : dy, "dlogits", rows, classes, 0);
}

void loss_is_the_librarys_to_the_bit(void **) {
    uint64_t seed = 0;
    for (const int64_t rows : {1, 2, 31, 32, 33, 127, 128, 129, 300})
        for (const int64_t classes : {1, 2, 10, 256}) {
            loss_is_the_librarys<float>(rows, classes, seed++);
            loss_is_the_librarys<double>(rows, classes, seed++);
        }
}

// ---- batches ----

void assert_shuffled(uint64_t seed, int64_t epoch, int64_t count, uint64_t lanes) {
    std::vector<int64_t> want((size_t)count), got((size_t)count, -1);
    std::vector<uint32_t> marks((size_t)count, 77);
    dpcri_shuffle(seed, epoch, count, want.data());
    order(lanes, 1);
    const dpcri_device_shuffle c = {seed, dpcri_shuffle_stream(epoch), count, got.data(), marks.data()};
    assert_int_equal(dpcri_cuda_shuffle_run(c, nullptr), DPCRI_CUDA_OK);
    if (want != got) fail_msg("%d rows, epoch %d: another order", (int)count, (int)epoch);
}

void order_is_the_librarys(void **) {
    for (int64_t count = 0; count <= 40; count++) assert_shuffled(7, count, count, (uint64_t)count);
    for (const int64_t count : {255, 256, 257, 1023, 1024, 1025, 1026, 2049, 5000})  // windows of 1024
        assert_shuffled(0xfeedfacecafebeefu + (uint64_t)count, 3 + count % 5, count, (uint64_t)count);
    assert_shuffled(1, 4294967294, 300, 2);
}

template <class T>
void rows_are_gathered(int64_t first, int64_t rows, int64_t pixels, bool shuffled) {
    const int64_t count = 50;
    std::vector<uint8_t> images((size_t)(count * pixels)), labels((size_t)count), y((size_t)rows, 99);
    std::vector<int64_t> places((size_t)count);
    for (uint8_t &b : images) b = (uint8_t)random_bits();
    for (uint8_t &b : labels) b = (uint8_t)(random_bits() % 10);
    dpcri_shuffle(5, 0, count, places.data());
    const std::vector<T> table = numbers<T>(256);
    std::vector<T> x((size_t)(rows * pixels), T(NAN));
    order((uint64_t)rows, 2);
    const dpcri_device_gather c = {
        type<T>,      first,    rows,    pixels, images.data(), labels.data(), shuffled ? places.data() : nullptr,
        table.data(), x.data(), y.data()};
    assert_int_equal(dpcri_cuda_gather_run(c, nullptr), DPCRI_CUDA_OK);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t image = shuffled ? places[(size_t)(first + r)] : first + r;
        assert_int_equal(y[(size_t)r], labels[(size_t)image]);
        for (int64_t i = 0; i < pixels; i++)
            assert_true(x[(size_t)(r * pixels + i)] == table[images[(size_t)(image * pixels + i)]]);
    }
}

void batches_are_gathered(void **) {
    for (const int64_t pixels : {1, 7, 256, 784})
        for (const bool shuffled : {false, true}) {
            rows_are_gathered<float>(0, 1, pixels, shuffled);
            rows_are_gathered<double>(17, 33, pixels, shuffled);
            rows_are_gathered<float>(0, 50, pixels, shuffled);
        }
}

void what_cannot_be_is_refused(void **) {
    float numbers[4] = {0};
    double told[2] = {0};
    uint8_t labels[2] = {0};
    dpcri_device_affine a = {};
    a.dtype = DPCR_F32, a.rows = 2, a.in = 1, a.out = 2;
    assert_int_equal(dpcri_cuda_affine_run(a, nullptr), DPCRI_CUDA_ARGUMENT);
    a.rows = 0;
    assert_int_equal(dpcri_cuda_affine_run(a, nullptr), DPCRI_CUDA_OK);
    a.dtype = DPCR_U32;
    assert_int_equal(dpcri_cuda_affine_run(a, nullptr), DPCRI_CUDA_UNSUPPORTED);
    dpcri_device_loss l = {DPCR_F32, 2, 2, numbers, labels, nullptr, nullptr, told, 0};
    assert_int_equal(dpcri_cuda_loss_run(l, nullptr), DPCRI_CUDA_ARGUMENT);
    dpcri_device_shuffle s = {1, 1, 3, nullptr, nullptr};
    assert_int_equal(dpcri_cuda_shuffle_run(s, nullptr), DPCRI_CUDA_ARGUMENT);
    dpcri_device_gather g = {};
    g.dtype = DPCR_F64, g.rows = 1, g.pixels = 1;
    assert_int_equal(dpcri_cuda_gather_run(g, nullptr), DPCRI_CUDA_ARGUMENT);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(ends_are_the_loops_to_the_bit),
        cmocka_unit_test(signs_of_zeros),
        cmocka_unit_test(what_is_not_wanted_is_not_written),
        cmocka_unit_test(loss_is_the_librarys_to_the_bit),
        cmocka_unit_test(order_is_the_librarys),
        cmocka_unit_test(batches_are_gathered),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
