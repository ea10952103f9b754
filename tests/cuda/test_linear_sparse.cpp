// SPDX-License-Identifier: MIT
// Linear chains of csr transitions (src/kern/cuda/linear_sparse.h) on the CPU: the exact ring against a plain loop for
// every length and many widths and patterns, forward and transposed, by the loop and by products of chunks; the loop's
// bits; the same bits in every order, batch and sharing; values staged and read where they lie; NaN in its own
// sequence.
#include <algorithm>
#include <cmath>

#include "cuda_testing.h"
#include "kern/cuda/launch.h"
#include "kern/cuda/linear_large_run.h"

namespace {

double random_signed() { return (double)(random_bits() >> 11) * 0x1p-52 - 1; }
void draw(uint32_t &x) { x = (uint32_t)random_bits(); }
void draw(float &x) { x = (float)random_signed() / 4; }
void draw(double &x) { x = random_signed() / 4; }

// A chain whose every `each`-th place, at random, is an entry: each 0: none, 1: all.
template <class T>
struct sparse {
    int64_t w, length, rows;
    bool transposed, start;
    std::vector<int32_t> offsets, columns;      // as callers have them
    std::vector<int32_t> turned, from, places;  // of op(A)
    std::vector<T> a, b, z0, z;

    sparse(int64_t width, int64_t l, int64_t n, int each, bool back, bool with_z0)
        : w(width), length(l), rows(n), transposed(back), start(with_z0 && !back), offsets(1, 0) {
        for (int64_t i = 0; i < w; i++) {
            for (int64_t j = 0; j < w; j++)
                if (each > 0 && random_bits() % (uint64_t)each == 0) columns.push_back((int32_t)j);
            offsets.push_back((int32_t)columns.size());
        }
        turned.assign(1, 0);
        for (int64_t i = 0; i < w; i++) {
            for (int64_t j = 0; j < w; j++)
                for (int32_t e = offsets[(size_t)j]; e < offsets[(size_t)j + 1]; e++)
                    if (columns[(size_t)e] == i) from.push_back((int32_t)j), places.push_back(e);
            turned.push_back((int32_t)from.size());
        }
        a.resize((size_t)(length * rows) * columns.size());
        b.resize((size_t)(length * rows * w));
        z0.resize((size_t)(rows * w));
        z.resize(b.size());
        for (T &x : a) draw(x);
        for (T &x : b) draw(x);
        for (T &x : z0) draw(x);
    }
    int64_t entries() const { return (int64_t)columns.size(); }
    dpcri_device_linear arguments() {
        dpcri_device_linear c = {};
        c.structure = DPCR_CSR;
        c.dtype = std::is_same<T, float>::value ? DPCR_F32 : std::is_same<T, double>::value ? DPCR_F64 : DPCR_U32;
        c.transposed = transposed;
        c.length = length, c.rows = rows, c.w = w, c.entries = entries();
        c.offsets = transposed ? turned.data() : offsets.data();
        c.columns = transposed ? from.data() : columns.data();
        c.places = transposed ? places.data() : nullptr;
        c.a = a.data(), c.a_step = rows * entries(), c.a_row = entries();
        c.b = b.data(), c.b_step = rows * w, c.b_row = w;
        c.z0 = start ? z0.data() : nullptr, c.z0_row = w;
        c.z = z.data(), c.z_step = rows * w, c.z_row = w;
        return c;
    }
    void run(const dpcri_device_linear &c, uint64_t seed) {
        std::vector<unsigned char> workspace(dpcri_cuda_chain_workspace(c), 0xff);
        std::memset(static_cast<void *>(z.data()), 0xff, z.size() * sizeof(T));
        order(seed, 1 + (int)(seed % 7));
        const int status = dpcri_cuda_chain_run(c, workspace.data(), workspace.size(), nullptr);
        if (status != DPCRI_CUDA_OK) fail_msg("status %d", status);
    }
    // By the definition, sums from b on over the entries in ascending order.
    template <class N>
    std::vector<N> loop() const {
        std::vector<N> want(z.size());
        for (int64_t row = 0; row < rows; row++) {
            std::vector<N> x(z0.begin() + row * w, z0.begin() + (row + 1) * w);
            for (int64_t n = 0; n < length; n++) {
                const int64_t l = transposed ? length - 1 - n : n, at = transposed ? l + 1 : l;
                std::vector<N> y(b.begin() + (l * rows + row) * w, b.begin() + (l * rows + row + 1) * w);
                for (int64_t i = 0; i < w && (n > 0 || start); i++)
                    for (int64_t j = 0; j < w; j++) {
                        const int64_t r = transposed ? j : i;
                        const int32_t column = (int32_t)(transposed ? i : j);
                        for (int32_t e = offsets[(size_t)r]; e < offsets[(size_t)r + 1]; e++)
                            if (columns[(size_t)e] == column)
                                y[(size_t)i] = simt::fma((N)a[(size_t)((at * rows + row) * entries() + e)],
                                                         x[(size_t)j], y[(size_t)i]);
                    }
                std::copy(y.begin(), y.end(), want.begin() + (l * rows + row) * w);
                x = y;
            }
        }
        return want;
    }
    void assert_loop(const char *what) const {
        const std::vector<T> want = loop<T>();
        for (size_t i = 0; i < z.size(); i++)
            if (std::memcmp(&z[i], &want[i], sizeof(T)) != 0)
                fail_msg("%s: width %d, %d entries, length %d, sequences %d%s%s: number %d", what, (int)w,
                         (int)entries(), (int)length, (int)rows, transposed ? ", transposed" : "", start ? ", z0" : "",
                         (int)i);
    }
};

// By the loop and by chunks.
void both_ways(int64_t w, int64_t length, int64_t rows, int each, int64_t chunk, unsigned n) {
    sparse<uint32_t> c(w, length, rows, each, n & 1, n & 2);
    dpcri_device_linear a = c.arguments();
    a.chunk = chunk;
    c.run(a, n);
    c.assert_loop("chunks");
    a.in_order = 1;
    c.run(a, n + 1);
    c.assert_loop("loop");
}

void ring_at_every_length(void **) {
    for (int64_t length = 1; length <= 130; length++) {
        both_ways(11, length, 1 + length % 3, 3, length % 2 ? 0 : 1 + length % 13, (unsigned)length);
    }
}

void every_width_and_pattern(void **) {
    unsigned n = 0;
    for (const int64_t w : {1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100})
        for (const int each : {0, 1, 2, 7, 40}) both_ways(w, 6, 1 + n % 5, w > 40 && each == 1 ? 3 : each, 2, n), n++;
    both_ways(300, 4, 1, 30, 2, 2);
    both_ways(300, 4, 1, 30, 2, 3);
}

void borders_of_chunks(void **) {
    unsigned n = 0;
    for (const int64_t chunk : {1, 2, 7, 8, 9, 16, 17, 100})
        for (const int64_t length : {1, 2, 8, 16, 17, 33}) both_ways(9, length, 2, 3, chunk, n++);
}

template <class T>
void loop_has_a_plain_loops_bits() {
    for (const int64_t w : {5, 40, 270})
        for (const bool transposed : {false, true}) {
            sparse<T> c(w, 5, 5, 6, transposed, true);
            dpcri_device_linear a = c.arguments();
            a.in_order = 1;
            c.run(a, (uint64_t)w);
            c.assert_loop("loop");
        }
}

void the_loop_is_a_plain_loop(void **) {
    loop_has_a_plain_loops_bits<float>();
    loop_has_a_plain_loops_bits<double>();
}

void chunks_are_close_to_the_loop(void **) {
    for (const bool transposed : {false, true}) {
        sparse<double> c(23, 60, 2, 6, transposed, true);
        c.run(c.arguments(), 3);
        const std::vector<double> wanted = c.loop<double>();
        for (size_t i = 0; i < wanted.size(); i++)
            if (!(std::fabs(c.z[i] - wanted[i]) <= 1e-12 * (1 + std::fabs(wanted[i])))) fail_msg("number %d", (int)i);
    }
}

void one_set_of_bits(void **) {
    for (const int in_order : {0, 1}) {
        sparse<float> c(21, 20, 6, 4, true, false);
        const size_t entries = (size_t)c.entries();
        for (size_t i = 0; i < c.a.size(); i++) c.a[i] = c.a[i / (6 * entries) * 6 * entries + i % entries];
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
        one.b = c.b.data() + 4 * 21, one.z = c.z.data() + 4 * 21;
        c.run(one, 7);
        for (size_t l = 0; l < 20; l++)
            assert_memory_equal(&c.z[(l * 6 + 4) * 21], &first[(l * 6 + 4) * 21], 21 * sizeof(float));
    }
}

// One transition for all steps and sequences, and b where z comes to lie.
void shared_and_in_place(void **) {
    for (const bool transposed : {false, true})
        for (const int in_order : {0, 1}) {
            sparse<uint32_t> c(14, 30, 7, 4, transposed, true);
            const size_t entries = (size_t)c.entries();
            for (size_t i = 0; i < c.a.size(); i++) c.a[i] = c.a[i % entries];
            dpcri_device_linear a = c.arguments();
            a.a_step = a.a_row = 0;
            a.in_order = in_order;
            std::vector<unsigned char> workspace(dpcri_cuda_chain_workspace(a), 0xff);
            c.z = c.b;
            a.b = a.z;
            order(4, 3);
            assert_int_equal(dpcri_cuda_chain_run(a, workspace.data(), workspace.size(), nullptr), DPCRI_CUDA_OK);
            c.assert_loop("in place");
        }
}

// Fewer blocks than there are items: a block goes on with another one.
void few_blocks_for_many_items(void **) {
    using namespace large;
    sparse<float> c(19, 12, 3, 4, true, false);
    dpcri_device_linear a = c.arguments();
    a.chunk = 2;
    c.run(a, 1);
    const std::vector<float> wanted = c.z;
    std::vector<unsigned char> workspace(dpcri_cuda_chain_workspace(a), 0xff);
    problem<float> p = problem_of<float>(a);
    cells::cut pieces = {workspace.data(), 0};
    take(a, &pieces, &p);
    simt::shape s;
    std::memset(static_cast<void *>(c.z.data()), 0xff, c.z.size() * sizeof(float));
    order(5, 2);
    assert_true((shape_of_entries<float, 4, reducing<float>>(&p, 2, false, 1 << 20, &s)));
    s.blocks = 2;
    assert_int_equal((simt::launch<sparse_strips<float, 4, reducing<float>>>(s, nullptr, p)), 0);
    assert_int_equal(launch_running(fold_of(p), true, nullptr), 0);
    assert_true((shape_of_entries<float, 1, running<float>>(&p, 1, true, 1 << 20, &s)));
    s.blocks = 2;
    assert_int_equal((simt::launch<sparse_strips<float, 1, running<float>>>(s, nullptr, p)), 0);
    assert_memory_equal(wanted.data(), c.z.data(), wanted.size() * sizeof(float));
}

// Less room on chip: fewer columns side by side, then values read where they lie; the same bits.
void less_room(void **) {
    for (const bool transposed : {false, true}) {
        sparse<float> c(150, 5, 1, 4, transposed, true);
        dpcri_device_linear a = c.arguments();
        a.chunk = 2;
        c.run(a, 1);
        const std::vector<float> wanted = c.z;
        for (const int64_t room : {60000, 40000, 18500}) {
            simt::host::config.shared_bytes = room;
            c.run(a, (uint64_t)room);
            assert_memory_equal(wanted.data(), c.z.data(), wanted.size() * sizeof(float));
        }
        simt::host::config.shared_bytes = 227 << 10;
    }
}

void hazards_stay_where_they_are(void **) {
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (const int in_order : {0, 1})
        for (const bool shared : {false, true})
            for (const int64_t at : {0, 3, 4, 17, 18}) {
                sparse<float> c(21, 19, 5, 4, at % 2 == 1, false);
                dpcri_device_linear a = c.arguments();
                a.in_order = in_order;
                a.chunk = in_order ? 0 : 4;
                if (shared) a.a_row = 0;
                c.run(a, 1);
                const std::vector<float> clean = c.z;
                for (int64_t e = 0; !c.transposed && e < 5 * c.entries(); e++) c.a[(size_t)e] = NAN;  // unread
                c.b[(size_t)((at * 5 + 1) * c.w + 2)] = bad[at % 3];
                c.run(a, 2);
                for (int64_t l = 0; l < 19; l++)
                    for (int64_t row = 0; row < 5; row++) {
                        const size_t z = (size_t)((l * 5 + row) * c.w);
                        const bool before = c.transposed ? l > at : l < at;
                        if (row != 1 || before)
                            assert_memory_equal(&c.z[z], &clean[z], (size_t)c.w * sizeof(float));
                        else if (l == at)
                            assert_false(std::isfinite(c.z[z + 2]));
                    }
            }
}

void what_cannot_be_is_refused(void **) {
    sparse<float> c(30, 10, 2, 3, false, true);
    const dpcri_device_linear good = c.arguments();
    const size_t bytes = dpcri_cuda_chain_workspace(good);
    std::vector<unsigned char> workspace(bytes);
    const auto run = [&](const dpcri_device_linear &a, size_t n) {
        return dpcri_cuda_chain_run(a, workspace.data(), n, nullptr);
    };
    assert_int_equal(run(good, bytes), DPCRI_CUDA_OK);
    assert_int_equal(run(good, bytes - 1), DPCRI_CUDA_WORKSPACE);
    dpcri_device_linear a = good;
    a.offsets = nullptr;
    assert_int_equal(run(a, bytes), DPCRI_CUDA_ARGUMENT);
    a = good, a.columns = nullptr;
    assert_int_equal(run(a, bytes), DPCRI_CUDA_ARGUMENT);
    a = good, a.a = nullptr;
    assert_int_equal(run(a, bytes), DPCRI_CUDA_ARGUMENT);
    a = good, a.entries = -1;
    assert_int_equal(run(a, bytes), DPCRI_CUDA_ARGUMENT);
    a = good, a.entries = (int64_t)INT32_MAX + 1;
    assert_int_equal(run(a, bytes), DPCRI_CUDA_UNSUPPORTED);
    // Any number of entries, but a state twice has to fit on chip, and for chunks four columns.
    a = good, a.w = 20000, a.entries = 100000000;
    assert_int_equal(dpcri_cuda_chain_fits(a), DPCRI_CUDA_WIDTH);
    a.in_order = 1;
    assert_int_equal(dpcri_cuda_chain_fits(a), DPCRI_CUDA_OK);
    a.w = 30000;
    assert_int_equal(dpcri_cuda_chain_fits(a), DPCRI_CUDA_WIDTH);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(ring_at_every_length),
        cmocka_unit_test(every_width_and_pattern),
        cmocka_unit_test(borders_of_chunks),
        cmocka_unit_test(the_loop_is_a_plain_loop),
        cmocka_unit_test(chunks_are_close_to_the_loop),
        cmocka_unit_test(one_set_of_bits),
        cmocka_unit_test(shared_and_in_place),
        cmocka_unit_test(few_blocks_for_many_items),
        cmocka_unit_test(less_room),
        cmocka_unit_test(hazards_stay_where_they_are),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
