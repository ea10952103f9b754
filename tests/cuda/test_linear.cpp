// SPDX-License-Identifier: MIT
// Linear chains of the device's kernels on the CPU: the exact ring against the plain loop for every length, structure
// and width, across the borders of tiles and nodes; the same bits in every order of blocks and lanes; NaN in its own
// column.
#include <algorithm>

#include "cuda_testing.h"
#include "kern/cuda/linear.h"
#include "linear_problem.h"

namespace {

// Tiles so small that short chains cross borders of tiles, of nodes and of nodes of nodes.
template <int K>
struct small : linear::geometry<2, 4, K <= 4 ? 1 : 4> {};

template <int K>
void every_length() {
    for (int64_t length = 1; length <= 130; length++) {
        const bool transposed = length % 2 == 1, with_z0 = length % 3 != 0;
        const int64_t batch = K <= 4 ? 1 + length % 3 : 1;
        chain<uint32_t> c(K, length, batch, 1, transposed, with_z0);
        order((uint64_t)length, 1 + (int)(length % 7));
        solve<K, small<K>, 2>(c);
        c.assert_exact();
    }
}

void ring_at_every_length_1_to_4(void **) {
    every_length<1>();
    every_length<2>();
    every_length<3>();
    every_length<4>();
}

void ring_at_every_length_5_to_16(void **) {
    every_length<5>();
    every_length<6>();
    every_length<7>();
    every_length<8>();
    every_length<9>();
    every_length<10>();
    every_length<11>();
    every_length<12>();
    every_length<13>();
    every_length<14>();
    every_length<15>();
    every_length<16>();
}

template <int K>
void parts_of_width() {
    for (int64_t parts : {2, 3, 5})
        for (int64_t length : {9, 64, 100}) {
            chain<uint32_t> c(K, length, 2, parts, parts == 3, parts != 5);
            order((uint64_t)(length + parts), 4);
            solve<K, small<K>, 4>(c);
            c.assert_exact();
        }
}

void ring_of_components_and_blocks(void **) {
    parts_of_width<1>();
    parts_of_width<2>();
    parts_of_width<3>();
    parts_of_width<4>();
}

// Nodes of as many levels as tiles want: of two teams more than any width of the library has.
void ring_across_many_levels(void **) {
    chain<uint32_t> c(1, 2 * 4100, 1, 1, false, true);
    order(8, 5);
    solve<1, linear::geometry<1, 2, 1>, 1>(c);
    c.assert_exact();
}

// Every tile of as many as a launch has lies in a node of the last level, or in one that the look-back folds there.
template <class T, int K>
void levels_reach_all_tiles() {
    typedef linear::usual<T, K> S;
    linear::problem<T> p = {};
    p.length = (int64_t)INT32_MAX * S::steps;
    p.columns = p.parts = 1;
    const linear::sizes s = linear::plan<T, K, S, linear::usual_group<T, K>()>(&p);
    assert_true(s.fits && s.blocks == INT32_MAX);
    int64_t reach = 1;
    for (int l = 0; l < p.levels; l++) reach *= S::teams;
    if (reach <= p.tiles) fail_msg("width %d: %d levels reach %lld tiles", K, p.levels, (long long)reach);
    p.length += S::steps;
    assert_false((linear::plan<T, K, S, linear::usual_group<T, K>()>(&p).fits));
}

void levels_of_the_longest_chains(void **) {
    levels_reach_all_tiles<float, 3>();
    levels_reach_all_tiles<float, 16>();
    levels_reach_all_tiles<double, 2>();
    levels_reach_all_tiles<double, 8>();
    levels_reach_all_tiles<double, 9>();
    levels_reach_all_tiles<double, 16>();
    levels_reach_all_tiles<uint32_t, 16>();
}

void floats_are_close_to_the_loop(void **) {
    const auto check = [](auto c, auto solver) {
        solver(c);
        c.assert_close();
    };
    order(5, 3);
    check(chain<float>(1, 300, 3, 2, false, true), [](auto &c) { solve<1, small<1>, 4>(c); });
    check(chain<double>(2, 130, 2, 1, true, false), [](auto &c) { solve<2, small<2>, 2>(c); });
    check(chain<float>(4, 130, 2, 1, false, true), [](auto &c) { solve<4, small<4>, 2>(c); });
    check(chain<double>(7, 70, 1, 1, true, true), [](auto &c) { solve<7, small<7>, 1>(c); });
    check(chain<float>(16, 70, 1, 1, false, true), [](auto &c) { solve<16, small<16>, 1>(c); });
}

// What a float result is made of must not depend on who came first.
template <int K>
void one_set_of_bits() {
    chain<float> c(K, 150, 3, 1, false, true);
    order(0, 1);
    solve<K, small<K>, 2>(c);
    const std::vector<float> first = c.z;
    for (uint64_t seed = 1; seed < 12; seed++) {
        order(seed, 1 + (int)(seed % 9));
        solve<K, small<K>, 2>(c);
        if (std::memcmp(first.data(), c.z.data(), first.size() * sizeof(float)) != 0)
            fail_msg("width %d: other bits in order %d", K, (int)seed);
    }
}

void bits_are_those_of_any_order(void **) {
    one_set_of_bits<1>();
    one_set_of_bits<3>();
    one_set_of_bits<6>();
}

void bits_are_those_of_any_batch(void **) {
    chain<float> all(2, 90, 5, 1, true, true);
    order(3, 4);
    solve<2, small<2>, 4>(all);
    for (int64_t row = 0; row < 5; row++) {
        chain<float> one(2, 90, 1, 1, true, true);
        linear::problem<float> p = one.problem(), of_all = all.problem();
        const std::vector<float> kept = all.z;
        p.a = of_all.a + row * of_all.a_row;
        p.a_step = of_all.a_step;
        p.b = of_all.b + row * of_all.b_row;
        p.b_step = of_all.b_step;
        p.z0 = of_all.z0 + row * of_all.z0_row;
        solve<2, small<2>, 1>(p);
        all.z = kept;
        order(3, 4);
        solve<2, small<2>, 4>(all);
        for (int64_t m = 0; m < 90; m++)
            assert_memory_equal(&one.z[(size_t)(m * 2)], &all.z[(size_t)(m * 10 + row * 2)], 2 * sizeof(float));
    }
}

// NaN and infinities stay in their sequence, and do not touch what comes before them; A_0 without z0 is not looked at.
template <int K>
void hazards_of_width() {
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int64_t at : {0, 7, 8, 40, 99})
        for (const bool transposed : {false, true}) {
            chain<float> c(K, 100, 3, 1, transposed, false);
            chain<float> clean = c;
            for (int64_t row = 0; row < 3; row++)
                for (int i = 0; i < K * K; i++) c.a[(size_t)(row * K * K + i)] = NAN;  // of step 0
            c.b[(size_t)((at * 3 + 1) * K)] = bad[at % 3];
            order((uint64_t)at, 3);
            solve<K, small<K>, 4>(c);
            order((uint64_t)at + 1, 2);
            solve<K, small<K>, 4>(clean);
            for (int64_t m = 0; m < 100; m++)
                for (int64_t row = 0; row < 3; row++) {
                    const size_t z = (size_t)((m * 3 + row) * K);
                    if (row != 1 || m < at)
                        assert_memory_equal(&c.z[z], &clean.z[z], K * sizeof(float));
                    else if (m == at)
                        assert_false(std::isfinite(c.z[z]));
                }
        }
}

void hazards_stay_where_they_are(void **) {
    hazards_of_width<1>();
    hazards_of_width<2>();
    hazards_of_width<5>();
}

void shared_and_reversed_strides(void **) {
    chain<uint32_t> c(3, 75, 2, 2, false, true);
    linear::problem<uint32_t> p = c.problem();
    // One transition for all steps and sequences, written out for the loop.
    for (size_t i = 0; i < c.a.size(); i++) c.a[i] = c.a[i % 18];
    p.a_step = p.a_row = 0;
    order(2, 3);
    solve<3, small<3>, 2>(p);
    c.assert_exact();

    chain<uint32_t> forward(2, 75, 2, 1, true, true), backward = forward;
    solve<2, small<2>, 2>(forward);
    p = backward.problem();
    const int64_t last = 74;
    std::vector<uint32_t> a(backward.a.size()), b(backward.b.size());
    for (int64_t m = 0; m <= last; m++) {
        std::copy_n(&backward.a[(size_t)(m * 8)], 8, &a[(size_t)((last - m) * 8)]);
        std::copy_n(&backward.b[(size_t)(m * 4)], 4, &b[(size_t)((last - m) * 4)]);
    }
    p.a = a.data() + last * p.a_step, p.a_step = -p.a_step;
    p.b = b.data() + last * p.b_step, p.b_step = -p.b_step;
    p.z += last * p.z_step, p.z_step = -p.z_step;
    solve<2, small<2>, 2>(p);
    for (int64_t m = 0; m <= last; m++)
        assert_memory_equal(&forward.z[(size_t)(m * 4)], &backward.z[(size_t)((last - m) * 4)], 16);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(ring_at_every_length_1_to_4),   cmocka_unit_test(ring_at_every_length_5_to_16),
        cmocka_unit_test(ring_of_components_and_blocks), cmocka_unit_test(ring_across_many_levels),
        cmocka_unit_test(levels_of_the_longest_chains),  cmocka_unit_test(floats_are_close_to_the_loop),
        cmocka_unit_test(bits_are_those_of_any_order),   cmocka_unit_test(bits_are_those_of_any_batch),
        cmocka_unit_test(hazards_stay_where_they_are),   cmocka_unit_test(shared_and_reversed_strides),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
