// SPDX-License-Identifier: MIT
// Tiles of products (product.h) on the CPU against the plain loop, to the bit: every shape of tiles, operands in both
// orders, ragged edges, missing lines, lines that lie in quads and lines that do not, sums that begin in the middle.
#include "cuda_testing.h"
#include "kern/cuda/product.h"

namespace {

template <class T>
T random_number() {
    return (T)((double)(random_bits() >> 11) * 0x1p-52 - 1.0);
}
template <>
uint32_t random_number<uint32_t>() {
    return (uint32_t)random_bits();
}

// Each seventh line is missing; a number beyond the third lies 4 further.
template <class T, bool Along>
struct holed : product::operand<T, Along> {
    const T *from;
    int64_t stride;
    typedef int64_t place, pace;
    static int64_t pace_of(int64_t by) { return by; }
    static int64_t start(int64_t n) { return n; }
    static void go(int64_t &n, int64_t by) { n += by; }
    const T *at(int64_t n) const { return n % 7 == 5 ? nullptr : from + n * stride; }
    int64_t lie(int64_t c) const { return c < 4 ? c : c + 4; }
    T value(T v) const { return v + v; }
};

struct line_of_step {
    const void *from;
    int64_t step, row;
};
template <class T>
struct at_step : line_of_step {
    const T *at(int64_t l, int64_t r) const {
        return (l + r) % 5 == 3 ? nullptr : static_cast<const T *>(from) + l * step + r * row;
    }
};

// c [m][n] += sum over first <= k < end, of a and b of `times` problems, one behind the other.
template <class T, bool a_along, bool b_along>
struct use {
    struct task {
        const T *a, *b;
        T *c;
        int64_t m, n, first, end, a_stride, b_stride, rows;
        bool a_quads, b_quads;
        T *sums;  // of a's numbers over k, [m]
    };
    template <class S>
    struct kernel {
        typedef task arguments;
        static constexpr int most = S::threads;
        static void run(simt::lane &me, const task &t) {
            const int64_t wide = (t.n + S::columns - 1) / S::columns, tall = (t.m + S::rows - 1) / S::rows;
            const holed<T, a_along> a{{a_along ? t.m : t.end, a_along ? t.end : t.m, t.a_quads}, t.a, t.a_stride};
            const product::steps<T, b_along, at_step<T>> b({{t.b, t.rows * t.b_stride, t.b_stride}}, t.rows,
                                                           {b_along ? t.n : t.end, b_along ? t.end : t.n, t.b_quads});
            for (int64_t tile = me.block(); tile < wide * tall; tile += me.blocks()) {
                const int64_t row = tile / wide * S::rows, column = tile % wide * S::columns;
                T sum[S::M][S::N], whole = 0;
                for (int i = 0; i < S::M; i++)
                    for (int j = 0; j < S::N; j++) {
                        const int64_t r = row + S::row(me, i), c = column + S::column(me, j);
                        sum[i][j] = r < t.m && c < t.n ? t.c[r * t.n + c] : T(0);
                    }
                product::add<T, S>(me, a, row, b, column, t.first, t.end, sum,
                                   [&](const simt::shared<T> &s, int of_a, int) {
                                       for (int k = 0; me.thread() < S::rows && k < S::depth; k++)
                                           whole += s.get(of_a + k * S::tall + me.thread());
                                   });
                for (int i = 0; i < S::M; i++)
                    for (int j = 0; j < S::N; j += 4) {
                        const int64_t r = row + S::row(me, i), c = column + S::column(me, j);
                        const T four[4] = {sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]};
                        if (r < t.m) product::give(t.c + r * t.n + c, t.n - c, t.n % 4 == 0, four);
                    }
                if (column == 0 && me.thread() < S::rows && row + me.thread() < t.m) t.sums[row + me.thread()] = whole;
            }
        }
    };
};

struct size {
    int64_t m, n, first, end, rows;
    bool quads;
};

template <class T, bool a_along, bool b_along>
void matches(const size &z, int shape) {
    typedef use<T, a_along, b_along> used;
    const int64_t wide_a = (a_along ? z.end : z.m), wide_b = (b_along ? z.end : z.n);
    // `lie` leaves 4 numbers out; a stride that is a multiple of 4, or not.
    const int64_t a_stride = z.quads ? (wide_a + 7) / 4 * 4 + 4 : (wide_a + 4) | 1;
    const int64_t b_stride = z.quads ? (wide_b + 3) / 4 * 4 : wide_b | 1;
    std::vector<T> a((size_t)(a_stride * (a_along ? z.m : z.end))),
        b((size_t)(b_stride * ((b_along ? z.n : z.end) + z.rows)));
    std::vector<T> c((size_t)(z.m * z.n)), sums((size_t)z.m);
    for (std::vector<T> *const v : {&a, &b, &c})
        for (T &x : *v) x = random_number<T>();
    std::vector<T> want = c, want_sums((size_t)z.m);
    const auto of_a = [&](int64_t i, int64_t k) {
        const int64_t line = a_along ? i : k, at = a_along ? k : i;
        const T v = a[(size_t)(line * a_stride + (at < 4 ? at : at + 4))];
        return line % 7 == 5 ? T(0) : v + v;
    };
    const auto of_b = [&](int64_t j, int64_t k) {
        const int64_t line = b_along ? j : k, at = b_along ? k : j;
        return (line / z.rows + line % z.rows) % 5 == 3 ? T(0) : b[(size_t)(line * b_stride + at)];
    };
    for (int64_t i = 0; i < z.m; i++) {
        for (int64_t k = z.first; k < z.end; k++) want_sums[(size_t)i] += of_a(i, k);
        for (int64_t j = 0; j < z.n; j++)
            for (int64_t k = z.first; k < z.end; k++) {
                T &sum = want[(size_t)(i * z.n + j)];
                sum = simt::fma(of_b(j, k), of_a(i, k), sum);
            }
    }
    const typename used::task t = {a.data(), b.data(), c.data(), z.m,     z.n,     z.first,    z.end,
                                   a_stride, b_stride, z.rows,   z.quads, z.quads, sums.data()};
    int status = 0;
    if (shape == 0) status = product::launch_shape<used, T, typename product::shapes<T>::low>(z.m, z.n, 1, t, nullptr);
    if (shape == 1) status = product::launch_shape<used, T, product::medium>(z.m, z.n, 1, t, nullptr);
    if (shape == 2)
        status = product::launch_shape<used, T, typename product::shapes<T>::large>(z.m, z.n, 1, t, nullptr);
    if (shape == 3)
        status = product::launch_shape<used, T, typename product::shapes<T>::small>(z.m, z.n, 1, t, nullptr);
    if (shape == 4) status = product::launch<used, T>(z.m, z.n, 1, t, nullptr);
    assert_int_equal(status, 0);
    for (size_t i = 0; i < want.size(); i++)
        if (std::memcmp(&want[i], &c[i], sizeof(T)) != 0)
            fail_msg("%dx%d %d..%d, shape %d, number %d", (int)z.m, (int)z.n, (int)z.first, (int)z.end, shape, (int)i);
    assert_memory_equal(want_sums.data(), sums.data(), sums.size() * sizeof(T));
}

template <class T>
void every_order(const size &z, int shape) {
    matches<T, true, true>(z, shape);
    matches<T, true, false>(z, shape);
    matches<T, false, true>(z, shape);
    matches<T, false, false>(z, shape);
}

template <class T>
void products_are_the_loop(void **) {
    const size sizes[] = {{1, 1, 0, 1, 1, false},     {5, 3, 0, 7, 2, true},      {16, 128, 0, 16, 1, true},
                          {17, 130, 0, 33, 3, false}, {130, 67, 0, 24, 20, true}, {131, 129, 0, 25, 2, true},
                          {128, 128, 0, 8, 1, true},  {70, 260, 0, 40, 5, true},  {3, 5, 0, 0, 1, false},
                          {33, 66, 8, 41, 3, true},   {20, 40, 16, 17, 1, false}};
    uint64_t seed = 0;
    for (const size &z : sizes)
        for (int shape = 0; shape < 5; shape++) {
            order(seed++, 2);
            every_order<T>(z, shape);
        }
}

// More tiles than blocks: each takes several, one behind the other.
void blocks_take_several(void **) {
    typedef use<uint32_t, true, false> used;
    const int64_t m = 50, n = 300, k = 20;
    std::vector<uint32_t> a(m * 28), b(k * n), c(m * n, 1), sums(m), want = c;
    for (uint32_t &v : a) v = (uint32_t)random_bits();
    for (uint32_t &v : b) v = (uint32_t)random_bits();
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            for (int64_t l = 0; i % 7 != 5 && l < k; l++)
                if (l % 5 != 3)
                    want[(size_t)(i * n + j)] += 2 * a[(size_t)(i * 28 + (l < 4 ? l : l + 4))] * b[(size_t)(l * n + j)];
    const used::task t = {a.data(), b.data(), c.data(), m, n, 0, k, 28, n, 1, true, true, sums.data()};
    order(5, 2);
    typedef product::shapes<uint32_t>::low low;
    typedef used::kernel<low> kernel;
    assert_int_equal(simt::launch<kernel>({3, low::threads, low::shared_bytes<uint32_t>(), false}, nullptr, t), 0);
    assert_memory_equal(want.data(), c.data(), c.size() * sizeof c[0]);
}

// The shape follows the size.
void large_products_take_large_tiles(void **) {
    using product::cost_of;
    typedef product::shapes<float>::large large;
    const auto dearer = [](int64_t tall, int64_t wide, int64_t times) {
        return cost_of<large>(tall, wide, times, 1.0) > cost_of<product::medium>(tall, wide, times, 1.3);
    };
    assert_false(dearer(65536, 3072, 1));
    assert_false(dearer(128, 256, 1024));
    assert_true(dearer(128, 128, 1));
    assert_true(dearer(64, 256, 1024));
}

// Little matrices of many pieces take the smallest tiles, of which a multiprocessor does several at once.
void little_products_take_little_tiles(void **) {
    using product::cost_of;
    typedef product::shapes<float>::small small;
    typedef product::shapes<float>::low low;
    const auto dearer = [](int64_t tall, int64_t wide, int64_t times) {
        const double each = cost_of<small>(tall, wide, times, 1.7);
        return each > cost_of<product::medium>(tall, wide, times, 1.3) || each > cost_of<low>(tall, wide, times, 1.6);
    };
    assert_false(dearer(20, 20, 1000));
    assert_false(dearer(480000, 20, 1));
    assert_true(dearer(16, 2048, 1));
    assert_true(dearer(4096, 4096, 1));
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(products_are_the_loop<uint32_t>), cmocka_unit_test(products_are_the_loop<float>),
        cmocka_unit_test(products_are_the_loop<double>),   cmocka_unit_test(blocks_take_several),
        cmocka_unit_test(large_products_take_large_tiles), cmocka_unit_test(little_products_take_little_tiles),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
