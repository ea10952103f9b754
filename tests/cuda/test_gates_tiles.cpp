// SPDX-License-Identifier: MIT
// RNN, GRU and LSTM of many items whose W_hh stays on chip in tiles, on the CPU: what network::run compares with
// weights that go past, both ways and to the bit, over kinds and their variants, widths and items beside and across
// tiles, numbers of blocks, room, chunks, resets, lengths and directions; and where they do not go in tiles.
#include "kern/cuda/gates_tiles_back.h"
#include "sampled.h"
#include "trained_case.h"

namespace {

// What is cut, and an LSTM's peepholes and coupled gates.
int variant_of(dpcri_device_gates kind, uint64_t seed) {
    const int variants[] = {0, 8, 1, 2, 3, 11};
    return variants[seed % (kind == DPCRI_DEVICE_LSTM ? 6 : 2)];
}

// Blocks alone have no room, or items are too many for them, or units too many; so few items go spread over blocks too.
void widths_items_and_blocks(void **) {
    uint64_t seed = 0;
    int served = 0, asked = 0;
    for (const dpcri_device_gates kind : kinds)
        for (const int64_t hidden : {140, 160})
            for (const int64_t rows : {9, 17, 33, 40}) {
                if (!sampled_quarter((int64_t)++seed)) continue;
                const int most[] = {6, 10, 24, 40};
                trained_case<float> n(kind, 2 + (int64_t)(seed % 2), rows, 3, hidden, 0.9);
                n.back = seed % 2 == 1;
                vary_cell(n, variant_of(kind, seed));
                const device d(most[(seed / 2 + seed / 12) % 4]);
                const dpcri_device_recurrent f = n.forward(DPCRI_DEVICE_LOOP), b = n.backward(DPCRI_DEVICE_LOOP);
                served += blocks_of(f) > 0;
                served += blocks_of(b) > 0;
                n.run(b, seed);
                asked += 2;
            }
    assert_int_equal(served, asked);
    assert_true(asked > 0);
}

// Numbers for which a block has less room, down to none.
void room_of_blocks(void **) {
    uint64_t seed = 0;
    for (const dpcri_device_gates kind : kinds)
        for (const int64_t bytes : {10 << 10, 30 << 10, 60 << 10, 100 << 10}) {
            if (!sampled_quarter((int64_t)++seed)) continue;
            trained_case<float> n(kind, 2, 130 + (int64_t)(seed % 3), 2, 64, 0.9);
            n.back = seed % 2 == 0;
            vary_cell(n, variant_of(kind, seed));
            const device d(8, bytes);
            const dpcri_device_recurrent f = n.forward(DPCRI_DEVICE_LOOP), b = n.backward(DPCRI_DEVICE_LOOP);
            assert_int_equal(blocks_of(f) > 0, bytes > 10 << 10);
            assert_int_equal(blocks_of(b) > 0, bytes > 10 << 10);
            n.run(b, seed);
        }
}

void chunks_lengths_and_resets(void **) {
    uint64_t seed = 0;
    for (const dpcri_device_gates kind : kinds)
        for (const bool against : {false, true})
            for (const int most : {1, 2}) {
                const int64_t rows = 7, length = 14;
                trained_case<float> n(kind, length, rows, 2, 36 + 4 * (int64_t)(seed / 2 % 2), 0.7);
                const device d(most, 100 << 10);
                n.back = against, n.lengths = {14, 0, 5, 9, 13, 1, 14};
                if (seed % 3 > 0) {
                    n.resets.assign((size_t)(length * rows), 0);
                    for (int i = 0; i < 12; i++) n.resets[(size_t)((seed * 7 + (uint64_t)i * 11) % 98)] = 1;
                }
                dpcri_device_recurrent f = n.arguments(DPCRI_DEVICE_OVERLAP);
                f.kept = n.kept.data(), f.chunk = 5, f.warm_up = 3;
                // More items than blocks alone (eight each) or spread over blocks take: in tiles, or not at all.
                assert_true(3 * rows > 16 && 3 * rows > 8 * most && blocks_of(f) > 0);
                n.run(f, seed++);
                dpcri_device_recurrent b = n.backward(DPCRI_DEVICE_OVERLAP);
                b.chunk = 4, b.warm_up = 3;
                assert_true(blocks_of(b) > 0);
                n.run(b, seed++);
            }
}

// A tile's items eight to a thread, of one unit: many items, few units a block.
void tall_tiles(void **) {
    uint64_t seed = 0;
    for (const dpcri_device_gates kind : kinds) {
        trained_case<float> n(kind, 2, 128, 2, 36, 0.9);
        const device d(5, 70 << 10);
        gates::tiles_chosen chosen = {};
        gates::problem<float> p = {};
        p.hidden = 36, p.rows = 128, p.chunks = 1;
        const int status = kind == DPCRI_DEVICE_GRU    ? gates::choose_tiles<float, gates::tiled, 3>(p, &chosen)
                           : kind == DPCRI_DEVICE_LSTM ? gates::choose_tiles<float, gates::tiled, 4>(p, &chosen)
                                                       : gates::choose_tiles<float, gates::tiled, 1>(p, &chosen);
        assert_int_equal(status, 0);
        assert_int_equal(chosen.which, 1);
        const dpcri_device_recurrent f = n.forward(DPCRI_DEVICE_LOOP), b = n.backward(DPCRI_DEVICE_LOOP);
        assert_int_equal(blocks_of(f), 5);
        assert_int_equal(blocks_of(b), 5);
        n.run(b, seed++);
    }
}

// Widths that are no fours, few items, and double, go past as before.
void what_does_not_go_in_tiles(void **) {
    const device d(40);
    network<float> odd(DPCRI_DEVICE_GRU, 2, 40, 2, 133, 0.9), even(DPCRI_DEVICE_GRU, 2, 40, 2, 132, 0.9);
    network<double> twice(DPCRI_DEVICE_GRU, 2, 40, 2, 132, 0.9);
    assert_int_equal(blocks_of(odd.arguments(DPCRI_DEVICE_LOOP)), 0);
    assert_true(blocks_of(even.arguments(DPCRI_DEVICE_LOOP)) > 0);
    assert_int_equal(blocks_of(twice.arguments(DPCRI_DEVICE_LOOP)), 0);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(widths_items_and_blocks),   cmocka_unit_test(room_of_blocks),
        cmocka_unit_test(chunks_lengths_and_resets), cmocka_unit_test(tall_tiles),
        cmocka_unit_test(what_does_not_go_in_tiles),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
