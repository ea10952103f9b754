// SPDX-License-Identifier: MIT
// Optimisers' updates, clipped gradients and those of tied steps on the CPU: the library's own, to the bit, for sizes
// across warps, blocks and pieces of the norm, and numbers at the ends of what there is.
#include <cmath>

#include "cuda_testing.h"
#include "deeppcr/deeppcr.h"
#include "kern/cuda/launch.h"

extern "C" {
#include "kern/train_kernels.h"
}

namespace {

template <class T>
std::vector<T> numbers(int64_t count) {
    std::vector<T> v((size_t)count);
    for (size_t i = 0; i < v.size(); i++) {
        const double x = (double)(random_bits() >> 11) * 0x1p-52 - 1.0;
        v[i] = (T)(i % 7 == 3 ? x * 1e-30 : i % 11 == 5 ? x * 1e15 : x);
    }
    return v;
}

template <class T>
constexpr dpcr_dtype type = sizeof(T) == 4 ? DPCR_F32 : DPCR_F64;

template <class T>
void assert_bits(const std::vector<T> &a, const std::vector<T> &b, const char *what) {
    if (std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) != 0) fail_msg("%s: other bits", what);
}

template <class T>
void update_is_the_librarys(int64_t count, bool adam, bool momentum, bool from_gradient, bool clear) {
    std::vector<T> p = numbers<T>(count), g = numbers<T>(count), m = numbers<T>(count), v = numbers<T>(count);
    for (T &x : v) x = std::fabs(x);
    std::vector<T> p2 = p, g2 = g, m2 = m, v2 = v;
    dpcri_device_update u = {};
    u.dtype = type<T>, u.adam = adam, u.clear = clear, u.from_gradient = from_gradient, u.count = count;
    u.parameters = p.data(), u.gradients = g.data();
    u.first = adam || momentum ? m.data() : nullptr, u.second = adam ? v.data() : nullptr;
    u.rate = 0.1, u.momentum = 0.9, u.decay = 0.01, u.keep = 0.999, u.pull = from_gradient ? -0.3 : 0.1;
    u.beta2 = 0.999, u.rest2 = 0.001, u.step = 0.01, u.root = 3, u.epsilon = 1e-8;
    order((uint64_t)count, 3);
    assert_int_equal(dpcri_cuda_update_run(u, nullptr), DPCRI_CUDA_OK);
    const dpcri_sgd_update s = {u.rate, u.momentum, u.decay};
    const dpcri_adam_update a = {u.keep, u.decay, u.pull, from_gradient, u.beta2, u.rest2, u.step, u.root, u.epsilon};
    const dpcri_train_kernels *kernels = dpcri_train_kernels_get(type<T>);
    if (adam)
        kernels->adam(count, p2.data(), m2.data(), v2.data(), g2.data(), clear, &a);
    else
        kernels->sgd(count, p2.data(), momentum ? m2.data() : nullptr, g2.data(), clear, &s);
    assert_bits(p2, p, "parameters"), assert_bits(g2, g, "gradients");
    assert_bits(m2, m, "first"), assert_bits(v2, v, "second");
}

void updates_are_the_librarys(void **) {
    for (const int64_t count : {1, 31, 257, 1000}) {
        update_is_the_librarys<float>(count, false, false, false, true);
        update_is_the_librarys<double>(count, false, true, false, false);
        update_is_the_librarys<float>(count, true, false, false, false);
        update_is_the_librarys<double>(count, true, false, true, true);
        update_is_the_librarys<float>(count, true, false, true, true);
    }
}

template <class T>
void clipping_is_the_librarys(dpcr_context *context, int64_t count, double most, bool nan, int64_t more = 0) {
    std::vector<T> g = numbers<T>(count + more);
    if (nan) g[(size_t)count / 2] = NAN;
    std::vector<T> g2 = g;
    std::vector<double> sums(1 + 2 * DPCRI_CLIP_BLOCKS, NAN);
    dpcri_device_clip c = {type<T>, count, g.data(), most, sums.data(), more, g.data() + count};
    order((uint64_t)count, 2);
    assert_int_equal(dpcri_cuda_clip_run(c, nullptr), DPCRI_CUDA_OK);
    double norm = 0;
    const dpcr_array arrays[] = {dpcr_array_make(g2.data(), type<T>, 1, &count),
                                 dpcr_array_make(g2.data() + count, type<T>, 1, &more)};
    assert_int_equal(dpcr_gradients_clip_norm(context, arrays, 2, most, &norm, nullptr), DPCR_OK);
    assert_true(norm == sums[0] || (std::isnan(norm) && std::isnan(sums[0])));
    for (size_t i = 0; i < g.size(); i++) assert_true(g[i] == g2[i] || (std::isnan(g[i]) && std::isnan(g2[i])));
}

void clipping_is_the_librarys_own(void **) {
    dpcr_context *context = nullptr;
    assert_int_equal(dpcr_context_create(nullptr, &context, nullptr), DPCR_OK);
    for (const double most : {0.0, 0.5, 1e30, (double)INFINITY}) {
        clipping_is_the_librarys<float>(context, 1, most, false);
        clipping_is_the_librarys<double>(context, 37, most, false);
        clipping_is_the_librarys<float>(context, 3 * 16384 + 5, most, most == 0.5);  // four pieces
        clipping_is_the_librarys<double>(context, 16384, most, most == 0);
        clipping_is_the_librarys<float>(context, 16384 + 7, most, false, 3 * 16384);  // a vector after another
        clipping_is_the_librarys<double>(context, 0, most, false, 41);
    }
    clipping_is_the_librarys<float>(context, 4200005, INFINITY, false);  // blocks of more than the least
    dpcr_context_destroy(context);
}

template <class T>
void ties_are_the_models(dpcr_context *context, int64_t layers, int64_t width, int64_t tie, int norm) {
    dpcr_model_options o = {};
    o.size = sizeof o, o.architecture = DPCR_RESNET, o.dtype = type<T>;
    o.layers = layers, o.width = width, o.tie = tie, o.outputs = 3, o.layer_norm = norm;
    dpcr_model *model = nullptr;
    int64_t count = 0;
    assert_int_equal(dpcr_model_create(context, &o, &model, nullptr), DPCR_OK);
    (void)dpcr_model_vector(model, &count);
    T *const wanted = static_cast<T *>(dpcr_model_gradient_vector(model));
    std::vector<T> g = numbers<T>(count);
    std::memcpy(wanted, g.data(), g.size() * sizeof(T));
    dpcr_model_tie_gradients(model);
    const int64_t each = width * width + width + (norm ? 2 * width : 0);
    const dpcri_device_tie t = {type<T>, layers, each, tie, g.data()};
    order((uint64_t)(layers + width), 3);
    assert_int_equal(dpcri_cuda_tie_run(t, nullptr), DPCRI_CUDA_OK);
    if (std::memcmp(g.data(), wanted, g.size() * sizeof(T)) != 0)  // the head's too, which stay
        fail_msg("%d layers %d wide tied every %d: other bits", (int)layers, (int)width, (int)tie);
    dpcr_model_destroy(model);
}

void ties_are_the_librarys(void **) {
    dpcr_context *context = nullptr;
    assert_int_equal(dpcr_context_create(nullptr, &context, nullptr), DPCR_OK);
    for (const int64_t tie : {1, 2, 3, 7, 40})
        for (const int64_t layers : {0, 1, 2, 3, 8, 17, 18, 40, 49, 101}) {
            ties_are_the_models<float>(context, layers, 1 + layers % 9, tie, layers % 2 == 1);
            ties_are_the_models<double>(context, layers, 11, tie, 0);
        }
    dpcr_context_destroy(context);
}

void what_cannot_be_is_refused(void **) {
    float g[4] = {1, 2, 3, 4};
    double sums[1 + DPCRI_CLIP_BLOCKS];
    dpcri_device_clip c = {DPCR_F32, 4, g, NAN, sums, 0, nullptr};
    assert_int_equal(dpcri_cuda_clip_run(c, nullptr), DPCRI_CUDA_ARGUMENT);
    c = {DPCR_U32, 4, g, 1, sums, 0, nullptr};
    assert_int_equal(dpcri_cuda_clip_run(c, nullptr), DPCRI_CUDA_UNSUPPORTED);
    c = {DPCR_F32, 4, g, 1, sums, 2, nullptr};
    assert_int_equal(dpcri_cuda_clip_run(c, nullptr), DPCRI_CUDA_ARGUMENT);
    c = {DPCR_F32, 0, nullptr, 1, sums, 0, nullptr};
    sums[0] = 5;
    assert_int_equal(dpcri_cuda_clip_run(c, nullptr), DPCRI_CUDA_OK);
    assert_true(sums[0] == 0);
    dpcri_device_tie t = {DPCR_F32, 4, 1, 0, g};
    assert_int_equal(dpcri_cuda_tie_run(t, nullptr), DPCRI_CUDA_ARGUMENT);
    t = {DPCR_F32, 4, 1, 2, nullptr};
    assert_int_equal(dpcri_cuda_tie_run(t, nullptr), DPCRI_CUDA_ARGUMENT);
    t = {DPCR_U32, 4, 1, 2, g};
    assert_int_equal(dpcri_cuda_tie_run(t, nullptr), DPCRI_CUDA_UNSUPPORTED);
    dpcri_device_update u = {};
    u.dtype = DPCR_F32, u.count = 4, u.parameters = g, u.gradients = g, u.adam = 1;
    assert_int_equal(dpcri_cuda_update_run(u, nullptr), DPCRI_CUDA_ARGUMENT);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(updates_are_the_librarys),
        cmocka_unit_test(clipping_is_the_librarys_own),
        cmocka_unit_test(ties_are_the_librarys),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
