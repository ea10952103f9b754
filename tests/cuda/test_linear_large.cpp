// SPDX-License-Identifier: MIT
// Linear chains wider than fit on chip (src/kern/cuda/linear_large.h) on the CPU: the exact ring and signed
// permutations against src/chain's loop for every length and many widths, across the borders of chunks, strips and
// tiles; the loop's bits against a plain one; the same bits in every order, batch and sharing; NaN in its own sequence.
#include <algorithm>
#include <cmath>

#include "kern/cuda/linear_large_run.h"
#include "launch_case.h"

namespace {

constexpr int64_t IN_ORDER = -1;  // in the place of a chunk's length

struct variant {
    bool transposed, shared_steps, shared_rows, start, in_place;
};

// Another one each time: all of them in some.
variant next_variant() {
    static unsigned count;
    const unsigned n = count++ * 5;
    return {(n & 1) != 0, (n & 2) != 0 && (n & 4) != 0, (n & 8) != 0, (n & 16) != 0, (n & 32) != 0};
}

void is_the_loop(kind k, dpcr_dtype dtype, int64_t length, int64_t rows, int64_t chunk) {
    static uint64_t seed;
    const variant v = next_variant();
    fixture f(k, dtype, length, rows, v.transposed, v.shared_steps, v.shared_rows, v.start);
    f.in_order = chunk == IN_ORDER;
    f.chunk = f.in_order ? 0 : chunk;
    f.solve(v.in_place, seed++);
    f.assert_loop();
}

void ring_at_every_length(void **) {
    for (int64_t length = 1; length <= 130; length++) {
        is_the_loop({DPCR_DENSE, 17, 0}, DPCR_U32, length, 1 + length % 3, 0);
        is_the_loop({DPCR_DENSE, 18, 0}, DPCR_U32, length, 1 + length % 2,
                    length % 3 == 0 ? IN_ORDER : 1 + length % 11);
    }
}

void every_width_around_the_limits(void **) {
    for (const int64_t w : {17, 18, 19, 31, 32, 33, 34, 47, 63, 64, 65, 66, 100, 127, 128, 129, 130})
        for (const dpcr_dtype dtype : {DPCR_U32, DPCR_F32, DPCR_F64})
            for (const int64_t chunk : {IN_ORDER, int64_t(3)})
                is_the_loop({DPCR_DENSE, w, 0}, dtype, w < 70 ? 10 : 7, 2, chunk);
}

// More outputs than a block has lanes, and tiles that no step's inputs fit into.
void wide_ones(void **) {
    is_the_loop({DPCR_DENSE, 257, 0}, DPCR_F64, 4, 1, IN_ORDER);
    is_the_loop({DPCR_DENSE, 300, 0}, DPCR_F32, 4, 5, IN_ORDER);
    is_the_loop({DPCR_DENSE, 300, 0}, DPCR_U32, 3, 1, 1);
    is_the_loop({DPCR_BLOCK, 520, 260}, DPCR_F32, 3, 1, IN_ORDER);
}

void blocks_and_batches(void **) {
    for (const int64_t rows : {1, 3, 4, 9, 17})
        for (int i = 0; i < 8; i++) {
            is_the_loop({DPCR_BLOCK, 51, 17}, DPCR_U32, 11, rows, i % 2 ? IN_ORDER : 4);
            is_the_loop({DPCR_DENSE, 20, 0}, DPCR_U32, 9, rows, i % 2 ? IN_ORDER : 2);
        }
}

// Chunks longer than the chain, as long, of one step, and one that is left over.
void borders_of_chunks(void **) {
    for (const int64_t chunk : {1, 2, 7, 8, 9, 15, 16, 17, 100})
        for (const int64_t length : {1, 2, 8, 16, 17, 33}) {
            is_the_loop({DPCR_DENSE, 17, 0}, DPCR_U32, length, 2, chunk);
            is_the_loop({DPCR_DENSE, 17, 0}, DPCR_F32, length, 1, chunk);
        }
}

void chunks_follow_from_the_length(void **) {
    const int64_t wanted[][2] = {{1, 1}, {2, 2}, {3, 2}, {4, 2}, {5, 4}, {16, 4}, {17, 8}, {4096, 64}, {4097, 128}};
    for (const auto &w : wanted) assert_int_equal(large::usual_chunk(w[0]), w[1]);
    assert_true(large::usual_chunk(INT64_MAX) > 0);
}

// ---- bits ----

template <class T>
struct numbers {
    int64_t w, length, rows;
    bool transposed;
    std::vector<T> a, b, z0, z;

    numbers(int64_t width, int64_t l, int64_t n, bool back)
        : w(width),
          length(l),
          rows(n),
          transposed(back),
          a((size_t)(l * n * w * w)),
          b((size_t)(l * n * w)),
          z0((size_t)(n * w)),
          z(b.size()) {
        for (T &x : a) x = (T)(((double)(random_bits() >> 11) * 0x1p-52 - 1) / (double)w);
        for (T &x : b) x = (T)((double)(random_bits() >> 11) * 0x1p-52 - 1);
        for (T &x : z0) x = (T)((double)(random_bits() >> 11) * 0x1p-52 - 1);
    }
    dpcri_device_linear arguments() {
        dpcri_device_linear c = {};
        c.structure = DPCR_DENSE;
        c.dtype = sizeof(T) == 8 ? DPCR_F64 : DPCR_F32;
        c.transposed = transposed;
        c.length = length, c.rows = rows, c.w = w;
        c.a = a.data(), c.a_step = rows * w * w, c.a_row = w * w;
        c.b = b.data(), c.b_step = rows * w, c.b_row = w;
        c.z0 = transposed ? nullptr : z0.data(), c.z0_row = w;
        c.z = z.data(), c.z_step = rows * w, c.z_row = w;
        return c;
    }
    void run(const dpcri_device_linear &c, uint64_t seed) {
        std::vector<unsigned char> workspace(dpcri_cuda_chain_workspace(c), 0xff);
        std::fill(z.begin(), z.end(), (T)NAN);
        order(seed, 1 + (int)(seed % 7));
        const int status = dpcri_cuda_chain_run(c, workspace.data(), workspace.size(), nullptr);
        if (status != DPCRI_CUDA_OK) fail_msg("status %d", status);
    }
    // One sequence by the loop of the definition, sums from b on and in order.
    std::vector<T> by_loop(int64_t row) const {
        std::vector<T> x(z0.begin() + row * w, z0.begin() + (row + 1) * w), all((size_t)(length * w));
        for (int64_t n = 0; n < length; n++) {
            const int64_t l = transposed ? length - 1 - n : n, at = transposed ? l + 1 : l;
            std::vector<T> y(b.begin() + (l * rows + row) * w, b.begin() + (l * rows + row + 1) * w);
            for (int64_t i = 0; i < w && (n > 0 || !transposed); i++)
                for (int64_t j = 0; j < w; j++) {
                    const int64_t e = transposed ? j * w + i : i * w + j;
                    y[(size_t)i] = simt::fma(a[(size_t)((at * rows + row) * w * w + e)], x[(size_t)j], y[(size_t)i]);
                }
            std::copy(y.begin(), y.end(), all.begin() + l * w);
            x = y;
        }
        return all;
    }
    void assert_row(int64_t row, const std::vector<T> &wanted, const char *what) const {
        for (int64_t l = 0; l < length; l++)
            if (std::memcmp(&z[(size_t)((l * rows + row) * w)], &wanted[(size_t)(l * w)], (size_t)w * sizeof(T)) != 0)
                fail_msg("%s: width %d, sequence %d, step %d", what, (int)w, (int)row, (int)l);
    }
    std::vector<T> row_of(int64_t row) const {
        std::vector<T> r;
        for (int64_t l = 0; l < length; l++)
            r.insert(r.end(), z.begin() + (l * rows + row) * w, z.begin() + (l * rows + row + 1) * w);
        return r;
    }
};

template <class T>
void loop_has_a_plain_loops_bits() {
    for (const int64_t w : {17, 40, 129, 270})
        for (const bool transposed : {false, true}) {
            numbers<T> c(w, 5, 2, transposed);
            dpcri_device_linear a = c.arguments();
            a.in_order = 1;
            c.run(a, (uint64_t)w);
            for (int64_t row = 0; row < 2; row++) c.assert_row(row, c.by_loop(row), "loop");
        }
}

void the_loop_is_a_plain_loop(void **) {
    loop_has_a_plain_loops_bits<float>();
    loop_has_a_plain_loops_bits<double>();
}

void chunks_are_close_to_the_loop(void **) {
    numbers<double> c(33, 60, 2, true);
    c.run(c.arguments(), 3);
    for (int64_t row = 0; row < 2; row++) {
        const std::vector<double> wanted = c.by_loop(row), got = c.row_of(row);
        for (size_t i = 0; i < got.size(); i++)
            if (!(std::fabs(got[i] - wanted[i]) <= 1e-13)) fail_msg("number %d", (int)i);
    }
}

// Who came first, who is beside a sequence, and who shares its transitions: all the same.
void one_set_of_bits(void **) {
    for (const int in_order : {0, 1}) {
        numbers<float> c(37, 20, 6, false);
        for (size_t i = 0; i < c.a.size(); i++) {  // the same A for all sequences, written out
            const size_t step = i / (6 * 37 * 37), e = i % (37 * 37);
            c.a[i] = c.a[step * 6 * 37 * 37 + e];
        }
        dpcri_device_linear all = c.arguments(), shared = all;
        all.in_order = shared.in_order = in_order;
        shared.a_row = 0;
        c.run(all, 0);
        const std::vector<float> first = c.z;
        for (uint64_t seed = 1; seed < 6; seed++) {
            c.run(seed % 2 ? shared : all, seed);
            assert_memory_equal(first.data(), c.z.data(), first.size() * sizeof(float));
        }
        dpcri_device_linear one = all;
        one.rows = 1;
        one.b = c.b.data() + 4 * 37, one.z0 = c.z0.data() + 4 * 37, one.z = c.z.data() + 4 * 37;
        c.run(one, 7);
        const std::vector<float> alone = c.row_of(4);
        c.z = first;
        c.assert_row(4, alone, "alone");
    }
}

// Fewer blocks than there are items: a block goes on with another one.
void few_blocks_for_many_items(void **) {
    using namespace large;
    numbers<float> c(19, 12, 3, true);
    dpcri_device_linear a = c.arguments();
    a.chunk = 2;
    c.run(a, 1);
    const std::vector<float> wanted = c.z;
    std::vector<unsigned char> workspace(dpcri_cuda_chain_workspace(a), 0xff);
    problem<float> p = problem_of<float>(a);
    cells::cut pieces = {workspace.data(), 0};
    take(a, &pieces, &p);
    const auto run = [](auto kernel, problem<float> q, simt::shape s) {
        s.blocks = 2;
        assert_int_equal(simt::launch<decltype(kernel)>(s, nullptr, q), 0);
    };
    simt::shape s;
    std::fill(c.z.begin(), c.z.end(), NAN);
    order(5, 2);
    assert_true((shape_of<float, 1, 4, reducing<float>>(&p, 2, least_tile, 1 << 20, &s)));
    run(strips<float, 1, 4, reducing<float>>{}, p, s);
    problem<float> f = fold_of(p);
    assert_true((shape_of<float, 1, 1, running<float>>(&f, 1, least_tile, 1 << 20, &s)));
    run(strips<float, 1, 1, running<float>>{}, f, s);
    assert_true((shape_of<float, 1, 1, running<float>>(&p, 1, least_tile, 1 << 20, &s)));
    run(strips<float, 1, 1, running<float>>{}, p, s);
    assert_memory_equal(wanted.data(), c.z.data(), wanted.size() * sizeof(float));
}

// ---- hazards ----

void hazards_stay_where_they_are(void **) {
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (const int in_order : {0, 1})
        for (const bool shared : {false, true})
            for (const int64_t at : {0, 3, 4, 17, 18}) {
                numbers<float> c(21, 19, 5, at % 2 == 1);
                dpcri_device_linear a = c.arguments();
                a.in_order = in_order;
                a.chunk = in_order ? 0 : 4;
                a.z0 = nullptr;
                if (shared) a.a_row = 0;
                c.run(a, 1);
                const std::vector<float> clean = c.z;
                const int64_t w = c.w,
                              unread = c.transposed ? -1 : 0;  // the first transition, without a state before it
                for (int64_t e = 0; unread == 0 && e < 5 * w * w; e++) c.a[(size_t)e] = NAN;
                c.b[(size_t)((at * 5 + 1) * w + 2)] = bad[at % 3];
                c.run(a, 2);
                for (int64_t l = 0; l < 19; l++)
                    for (int64_t row = 0; row < 5; row++) {
                        const size_t z = (size_t)((l * 5 + row) * w);
                        const bool before = c.transposed ? l > at : l < at;
                        if (row != 1 || before)
                            assert_memory_equal(&c.z[z], &clean[z], (size_t)w * sizeof(float));
                        else if (l == at)
                            assert_false(std::isfinite(c.z[z + 2]));
                    }
            }
}

void what_cannot_be_is_refused(void **) {
    numbers<float> c(40, 10, 2, false);
    const dpcri_device_linear good = c.arguments();
    const size_t bytes = dpcri_cuda_chain_workspace(good);
    assert_true(bytes > 0);
    std::vector<unsigned char> workspace(bytes);
    const auto run = [&](const dpcri_device_linear &a, size_t n) {
        return dpcri_cuda_chain_run(a, workspace.data(), n, nullptr);
    };
    assert_int_equal(run(good, bytes), DPCRI_CUDA_OK);
    assert_int_equal(run(good, bytes - 1), DPCRI_CUDA_WORKSPACE);
    dpcri_device_linear a = good;
    a.in_order = 1;
    assert_int_equal(dpcri_cuda_chain_workspace(a), 0);
    assert_int_equal(run(a, 0), DPCRI_CUDA_OK);
    a = good, a.a = nullptr;
    assert_int_equal(run(a, bytes), DPCRI_CUDA_ARGUMENT);
    a = good, a.length = 0;
    assert_int_equal(run(a, 0), DPCRI_CUDA_OK);
    // What a block has room for: a state twice and tiles; for products four columns.
    a = good, a.w = 3000;
    assert_int_equal(dpcri_cuda_chain_fits(a), DPCRI_CUDA_OK);
    a.w = 8000;
    assert_int_equal(dpcri_cuda_chain_fits(a), DPCRI_CUDA_WIDTH);
    a.in_order = 1;
    assert_int_equal(dpcri_cuda_chain_fits(a), DPCRI_CUDA_OK);
    a.w = 30000;
    assert_int_equal(dpcri_cuda_chain_fits(a), DPCRI_CUDA_WIDTH);
    simt::host::config.shared_bytes = 64 << 10;  // as of compute capability 7.5
    a.w = 5000;
    assert_int_equal(dpcri_cuda_chain_fits(a), DPCRI_CUDA_OK);
    assert_int_equal(dpcri_cuda_chain_fits(good), DPCRI_CUDA_OK);
    a.w = 7000;
    assert_int_equal(dpcri_cuda_chain_fits(a), DPCRI_CUDA_WIDTH);
    simt::host::config.shared_bytes = 227 << 10;
    // A workspace that no number holds.
    a = good, a.w = 2000, a.length = INT64_MAX / 2, a.rows = 4096;
    assert_int_equal(dpcri_cuda_chain_fits(a), DPCRI_CUDA_SIZE);
    simt::host::config.room_error = 35;
    assert_int_equal(run(good, bytes), 35);
    simt::host::config.room_error = 0;
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(ring_at_every_length),
        cmocka_unit_test(every_width_around_the_limits),
        cmocka_unit_test(wide_ones),
        cmocka_unit_test(blocks_and_batches),
        cmocka_unit_test(borders_of_chunks),
        cmocka_unit_test(chunks_follow_from_the_length),
        cmocka_unit_test(the_loop_is_a_plain_loop),
        cmocka_unit_test(chunks_are_close_to_the_loop),
        cmocka_unit_test(one_set_of_bits),
        cmocka_unit_test(few_blocks_for_many_items),
        cmocka_unit_test(hazards_stay_where_they_are),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
