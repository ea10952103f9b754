// SPDX-License-Identifier: MIT
// Linear chains of widths 1 and 2 by linear_stream.h on the CPU: the exact ring against the plain loop for every
// length, number of columns and layout, across the borders of runs, tiles and nodes; the same bits in every order of
// blocks and lanes, for every number of columns and of columns in a tile; NaN in its own column.
#include <algorithm>

#include "cuda_testing.h"
#include "kern/cuda/linear_widths.h"
#include "linear_problem.h"

namespace {

// Runs of single steps, and ones that go by packs where a device's do.
struct tiny : linear::stream::geometry<1, 1> {};
struct small : linear::stream::geometry<4, 2> {};

// By the kernel of width K, geometry S, at most Group columns a tile, in a poisoned workspace of just the size.
template <int K, class S, int Group, class T>
void stream(linear::problem<T> p) {
    linear::problem<T> planned = p;
    const linear::sizes s = linear::stream::plan<T, K, S, Group>(&planned);
    // As aligned as a device's memory is.
    std::vector<unsigned char> room(s.bytes + 256, 0xff);
    unsigned char *workspace = room.data() + (256 - reinterpret_cast<uintptr_t>(room.data()) % 256) % 256;
    const int status = linear::stream::run<T, K, S, Group>(p, workspace, nullptr);
    if (status != 0) fail_msg("launch: %d", status);
    for (const unsigned char *i = workspace + s.bytes; i < room.data() + room.size(); i++) assert_int_equal(*i, 0xff);
}

template <int K, class S, int Group, class T>
void stream(chain<T> &c) {
    stream<K, S, Group>(c.problem());
}

template <int K, class S>
void every_length() {
    for (int64_t length = 1; length <= 130; length++) {
        const int64_t batch = length % 4 == 0 ? 1 : 1 + length % 37;
        chain<uint32_t> c(K, length, batch, 1, length % 2 == 1, length % 3 != 0);
        order((uint64_t)length, 1 + (int)(length % 7));
        stream<K, S, 32>(c);
        c.assert_exact();
    }
}

void ring_at_every_length(void **) {
    every_length<1, tiny>();
    every_length<2, tiny>();
    every_length<1, small>();
    every_length<2, small>();
}

// Tiles of every number of columns, through shared memory or not, over borders of nodes and of nodes of nodes.
template <int K, class S>
void every_group() {
    for (int64_t columns = 1; columns <= 70; columns += columns < 18 ? 1 : 13)
        for (const int64_t length : {int64_t(3) * S::node, int64_t(33) * S::node + 1, int64_t(67) * S::node - 1}) {
            chain<uint32_t> c(K, length, columns, 1, columns % 2 == 0, columns % 3 != 0);
            order((uint64_t)(length + columns), 1 + (int)(columns % 5));
            stream<K, S, 32>(c);
            c.assert_exact();
        }
}

void ring_of_every_number_of_columns(void **) {
    every_group<1, tiny>();
    every_group<2, tiny>();
    every_group<1, small>();
    every_group<2, small>();
}

void ring_over_nodes_of_nodes(void **) {
    for (const int64_t columns : {1, 2, 8, 20}) {
        for (const int64_t length : {1024, 1025, 2 * 1024 + 40}) {
            chain<uint32_t> c(1, length, columns, 1, false, columns != 8), d(2, length, columns, 1, true, columns == 8);
            order((uint64_t)(length + columns), 5);
            stream<1, tiny, 32>(c);
            c.assert_exact();
            stream<2, tiny, 32>(d);
            d.assert_exact();
        }
    }
    chain<uint32_t> c(1, 32 * 32 * 32 * 2 + 50, 1, 1, false, true);
    order(11, 6);
    stream<1, tiny, 32>(c);
    c.assert_exact();
}

template <int K>
void parts_of_width() {
    for (const int64_t parts : {2, 3, 5, 16})
        for (const int64_t length : {9, 64, 300}) {
            chain<uint32_t> c(K, length, 2, parts, parts == 3, parts != 5);
            order((uint64_t)(length + parts), 4);
            stream<K, small, 16>(c);
            c.assert_exact();
        }
}

void ring_of_components_and_blocks(void **) {
    parts_of_width<1>();
    parts_of_width<2>();
}

void usual_geometry(void **) {
    const auto check = [](auto c, auto solver) {
        order(4, 3);
        solver(c);
        c.assert_close();
    };
    namespace s = linear::stream;
    check(chain<float>(1, 4500, 1, 1, false, true), [](auto &c) { stream<1, s::usual<float, 1>, 16>(c); });
    check(chain<float>(1, 300, 3, 16, false, true), [](auto &c) { stream<1, s::usual<float, 1>, 16>(c); });
    check(chain<double>(1, 1100, 2, 1, false, true), [](auto &c) { stream<1, s::usual<double, 1>, 8>(c); });
    check(chain<double>(1, 140, 2, 8, false, false), [](auto &c) { stream<1, s::usual<double, 1>, 8>(c); });
    check(chain<float>(2, 1100, 1, 1, true, true), [](auto &c) { stream<2, s::usual<float, 2>, 8>(c); });
    check(chain<float>(2, 600, 1, 2, false, true), [](auto &c) { stream<2, s::usual<float, 2>, 8>(c); });
    check(chain<float>(2, 300, 2, 8, false, true), [](auto &c) { stream<2, s::usual<float, 2>, 8>(c); });
    check(chain<double>(2, 530, 1, 1, true, false), [](auto &c) { stream<2, s::usual<double, 2>, 4>(c); });
    check(chain<double>(2, 200, 2, 4, false, true), [](auto &c) { stream<2, s::usual<double, 2>, 4>(c); });
}

// Where a block has no room for a tile, the kernel of other widths serves, in the plan and in the run.
void small_devices_have_another_kernel(void **) {
    const auto solve_on = [](int64_t room, auto &c) {
        typedef linear::widths<float, 1, 8> kernels;
        const device d(8, room);
        linear::problem<float> p = c.problem(), planned = p;
        const linear::sizes s = kernels::plan((int)c.k, &planned);
        std::vector<unsigned char> workspace(s.bytes + 256, 0xff);
        order(7, 3);
        const size_t off = (256 - reinterpret_cast<uintptr_t>(workspace.data()) % 256) % 256;
        assert_int_equal(kernels::run((int)c.k, p, workspace.data() + off, nullptr), 0);
        c.assert_close();
        return s.bytes;
    };
    for (const int64_t k : {1, 2}) {
        chain<float> c(k, 3000, 3, 1, k == 2, true);
        assert_int_not_equal(solve_on(227 << 10, c), solve_on(64 << 10, c));
    }
}

// What a float result is made of must not depend on who came first.
template <int K, class S, int Group>
void one_set_of_bits(int64_t length, int64_t columns) {
    chain<float> c(K, length, columns, 1, false, true);
    order(0, 1);
    stream<K, S, Group>(c);
    const std::vector<float> first = c.z;
    for (uint64_t seed = 1; seed < 12; seed++) {
        order(seed, 1 + (int)(seed % 9));
        stream<K, S, Group>(c);
        if (std::memcmp(first.data(), c.z.data(), first.size() * sizeof(float)) != 0)
            fail_msg("width %d: other bits in order %d", K, (int)seed);
    }
}

void bits_are_those_of_any_order(void **) {
    one_set_of_bits<1, tiny, 32>(150, 9);
    one_set_of_bits<1, tiny, 32>(1100, 1);
    one_set_of_bits<2, small, 8>(300, 11);
    one_set_of_bits<2, small, 8>(700, 2);
}

// Tiles of other numbers of columns, and each column alone, give a column's bits.
template <int K, class S, class T>
void bits_of_every_group(int64_t length) {
    chain<T> all(K, length, 40, 1, true, true);
    order(3, 4);
    stream<K, S, 32>(all);
    const std::vector<T> first = all.z;
    const auto again = [&](auto run, int group) {
        linear::problem<T> p = all.problem();
        order((uint64_t)group, 4);
        run(p);
        if (std::memcmp(first.data(), all.z.data(), first.size() * sizeof(T)) != 0)
            fail_msg("width %d: other bits by tiles of %d columns", K, group);
    };
    again([](auto p) { stream<K, S, 16>(p); }, 16);
    again([](auto p) { stream<K, S, 8>(p); }, 8);
    again([](auto p) { stream<K, S, 4>(p); }, 4);
    again([](auto p) { stream<K, S, 2>(p); }, 2);
    again([](auto p) { stream<K, S, 1>(p); }, 1);
    const linear::problem<T> of_all = all.problem();
    for (const int64_t columns : {1, 3, 6}) {
        chain<T> few(K, length, columns, 1, true, true);
        linear::problem<T> p = few.problem();
        p.a = of_all.a + 7 * of_all.a_row;
        p.a_step = of_all.a_step;
        p.b = of_all.b + 7 * of_all.b_row;
        p.b_step = of_all.b_step;
        p.z0 = of_all.z0 + 7 * of_all.z0_row;
        stream<K, S, 32>(p);
        for (int64_t m = 0; m < length; m++)
            assert_memory_equal(&few.z[(size_t)(m * columns * K)], &first[(size_t)((m * 40 + 7) * K)],
                                (size_t)columns * K * sizeof(T));
    }
}

void bits_are_those_of_any_batch(void **) {
    bits_of_every_group<1, tiny, float>(1100);
    bits_of_every_group<1, small, double>(300);
    bits_of_every_group<2, tiny, double>(140);
    bits_of_every_group<2, small, float>(300);
}

// NaN and infinities stay in their sequence, and do not touch what comes before them; A_0 without z0 is not looked at.
template <int K, class S>
void hazards_of(int64_t columns) {
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int64_t at : {0, 7, 8, 40, 99})
        for (const bool transposed : {false, true}) {
            chain<float> c(K, 100, columns, 1, transposed, false);
            chain<float> clean = c;
            for (int64_t row = 0; row < columns; row++)
                for (int i = 0; i < K * K; i++) c.a[(size_t)(row * K * K + i)] = NAN;  // of step 0
            const int64_t hit = columns / 2;
            c.b[(size_t)((at * columns + hit) * K)] = bad[at % 3];
            order((uint64_t)at, 3);
            stream<K, S, 32>(c);
            order((uint64_t)at + 1, 2);
            stream<K, S, 32>(clean);
            for (int64_t m = 0; m < 100; m++)
                for (int64_t row = 0; row < columns; row++) {
                    const size_t z = (size_t)((m * columns + row) * K);
                    if (row != hit || m < at)
                        assert_memory_equal(&c.z[z], &clean.z[z], K * sizeof(float));
                    else if (m == at)
                        assert_false(std::isfinite(c.z[z]));
                }
        }
}

void hazards_stay_where_they_are(void **) {
    for (const int64_t columns : {1, 3, 12}) {
        hazards_of<1, tiny>(columns);
        hazards_of<1, small>(columns);
        hazards_of<2, tiny>(columns);
        hazards_of<2, small>(columns);
    }
}

// A NaN of all ones is what says that nothing is there yet: another one goes between blocks in its place.
template <int K, class T>
void all_ones(int64_t columns) {
    typedef typename linear::stream::letter<T>::word word;
    chain<T> c(K, 400, columns, 1, false, true);
    const word ones = ~word(0);
    std::memcpy(&c.b[(size_t)(90 * columns * K)], &ones, sizeof(T));
    order((uint64_t)columns, 3);
    stream<K, tiny, 32>(c);
    for (int64_t m = 0; m < 400; m++)
        for (int64_t row = 0; row < columns; row++)
            assert_true(std::isnan(c.z[(size_t)((m * columns + row) * K)]) == (m >= 90 && row == 0));
}

void a_nan_of_all_ones_is_a_number_there(void **) {
    for (const int64_t columns : {1, 3, 12}) {
        all_ones<1, float>(columns);
        all_ones<1, double>(columns);
        all_ones<2, float>(columns);
    }
}

// So many blocks at a time that a tile sees no state within its reach, and looks again until there is one.
void states_beyond_reach(void **) {
    const device d(90);
    for (uint64_t seed = 0; seed < 6; seed++) {
        chain<uint32_t> c(1, 220 * tiny::node * 32 + 5, 1, 1, false, seed % 2 == 0),
            e(2, 150 * tiny::node * 32, 1, 1, true, true);
        order(seed, 90);
        stream<1, tiny, 32>(c);
        c.assert_exact();
        stream<2, tiny, 32>(e);
        e.assert_exact();
    }
    const device none(0);
    chain<float> c(1, 9, 1, 1, false, true);
    assert_int_equal(
        (linear::stream::run<float, 1, tiny, 32>(c.problem(), std::vector<unsigned char>(4096).data(), nullptr)), -1);
}

// The simulator stops at packs from addresses between; those have to be seen beforehand.
template <int K, class T>
void at_any_address(int64_t length, int64_t columns) {
    for (int64_t shift = 0; shift < 5; shift++) {
        chain<T> c(K, length, columns, 1, false, true);
        const linear::problem<T> good = c.problem();
        const auto moved = [&](const std::vector<T> &x, int64_t by) {
            std::vector<T> y(x.size() + 8);
            std::copy(x.begin(), x.end(), y.begin() + by);
            return y;
        };
        const std::vector<T> a = moved(c.a, shift), b = moved(c.b, (shift + 1) % 4);
        std::vector<T> z = moved(c.z, (shift + 2) % 4);
        linear::problem<T> p = good;
        p.a = a.data() + shift;
        p.b = b.data() + (shift + 1) % 4;
        p.z = z.data() + (shift + 2) % 4;
        order((uint64_t)shift, 3);
        stream<K, small, 32>(p);
        std::copy_n(p.z, c.z.size(), c.z.begin());
        c.assert_exact();
    }
}

void arrays_at_any_address(void **) {
    for (const int64_t columns : {1, 2, 4, 8, 16}) {
        at_any_address<1, uint32_t>(150, columns);
        at_any_address<2, uint32_t>(150, columns);
    }
}

// Room between steps, between rows, and a start in the middle: no packs, or not of all arrays.
template <int K>
void room_between(int64_t columns) {
    for (const int64_t extra : {0, 1, 2, 4}) {
        chain<uint32_t> c(K, 90, columns, 1, extra == 1, extra != 2);
        const linear::problem<uint32_t> tight = c.problem();
        const int64_t a_row = K * K + extra, a_step = columns * a_row + extra, b_row = K + extra / 2,
                      b_step = columns * b_row + extra;
        std::vector<uint32_t> a((size_t)(90 * a_step)), b((size_t)(90 * b_step)), z(b.size(), 77);
        for (int64_t m = 0; m < 90; m++)
            for (int64_t r = 0; r < columns; r++) {
                std::copy_n(tight.a + m * tight.a_step + r * tight.a_row, K * K, &a[(size_t)(m * a_step + r * a_row)]);
                std::copy_n(tight.b + m * tight.b_step + r * tight.b_row, K, &b[(size_t)(m * b_step + r * b_row)]);
            }
        linear::problem<uint32_t> p = tight;
        p.a = a.data(), p.a_step = a_step, p.a_row = a_row;
        p.b = b.data(), p.b_step = b_step, p.b_row = b_row;
        p.z = z.data(), p.z_step = b_step, p.z_row = b_row;
        order((uint64_t)extra, 3);
        stream<K, small, 16>(p);
        for (int64_t m = 0; m < 90; m++)
            for (int64_t r = 0; r < columns; r++)
                for (int64_t i = 0; i < K; i++) {
                    uint32_t &x = z[(size_t)(m * b_step + r * b_row + i)];
                    c.z[(size_t)((m * columns + r) * K + i)] = x;
                    x = 77;
                }
        c.assert_exact();
        for (const uint32_t x : z) assert_int_equal(x, 77);
    }
}

void strides_of_any_size(void **) {
    for (const int64_t columns : {1, 2, 3, 8, 17}) {
        room_between<1>(columns);
        room_between<2>(columns);
    }
}

// One transition for all steps and columns; none at all; b's place for the states; backwards in memory.
template <int K>
void shared_and_reversed(int64_t columns) {
    constexpr int64_t n = 75;
    chain<uint32_t> c(K, n, columns, 1, false, true);
    linear::problem<uint32_t> p = c.problem();
    for (size_t i = 0; i < c.a.size(); i++) c.a[i] = c.a[i % (K * K)];
    p.a_step = p.a_row = 0;
    order(2, 3);
    stream<K, small, 16>(p);
    c.assert_exact();

    for (size_t i = 0; i < c.a.size(); i++) c.a[i] = i % (K * K) % (K + 1) == 0;
    for (const bool start : {true, false}) {
        p = c.problem();
        p.a = nullptr;
        if (!start) p.z0 = nullptr, c.z0.clear();
        stream<K, small, 16>(p);
        c.assert_exact();
    }

    chain<uint32_t> forward(K, n, columns, 1, true, true), backward = forward, place = forward;
    stream<K, small, 16>(forward);
    std::vector<uint32_t> a(backward.a.size()), b(backward.b.size());
    p = backward.problem();
    for (int64_t m = 0; m < n; m++) {
        std::copy_n(p.a + m * p.a_step, p.a_step, &a[(size_t)((n - 1 - m) * p.a_step)]);
        std::copy_n(p.b + m * p.b_step, p.b_step, &b[(size_t)((n - 1 - m) * p.b_step)]);
    }
    p.a = a.data() + (n - 1) * p.a_step, p.a_step = -p.a_step;
    p.b = b.data() + (n - 1) * p.b_step, p.b_step = -p.b_step;
    p.z += (n - 1) * p.z_step, p.z_step = -p.z_step;
    stream<K, small, 16>(p);
    const size_t step = (size_t)(columns * K);
    for (size_t m = 0; m < n; m++)
        assert_memory_equal(&forward.z[m * step], &backward.z[(n - 1 - m) * step], step * sizeof(uint32_t));

    p = place.problem();
    std::vector<uint32_t> both = place.b;
    p.b = p.z = both.data();
    stream<K, small, 16>(p);
    assert_memory_equal(both.data(), forward.z.data(), both.size() * sizeof(uint32_t));
}

void shared_and_reversed_strides(void **) {
    for (const int64_t columns : {1, 2, 5, 16}) {
        shared_and_reversed<1>(columns);
        shared_and_reversed<2>(columns);
    }
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(ring_at_every_length),
        cmocka_unit_test(ring_of_every_number_of_columns),
        cmocka_unit_test(ring_over_nodes_of_nodes),
        cmocka_unit_test(ring_of_components_and_blocks),
        cmocka_unit_test(usual_geometry),
        cmocka_unit_test(small_devices_have_another_kernel),
        cmocka_unit_test(bits_are_those_of_any_order),
        cmocka_unit_test(bits_are_those_of_any_batch),
        cmocka_unit_test(hazards_stay_where_they_are),
        cmocka_unit_test(a_nan_of_all_ones_is_a_number_there),
        cmocka_unit_test(states_beyond_reach),
        cmocka_unit_test(arrays_at_any_address),
        cmocka_unit_test(strides_of_any_size),
        cmocka_unit_test(shared_and_reversed_strides),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
