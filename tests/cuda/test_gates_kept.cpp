// SPDX-License-Identifier: MIT
// RNN, GRU and LSTM whose W_hh stays on chip, whole in each block or spread over them, on the CPU: what network::run
// compares with weights that go past, both ways and to the bit, over kinds, widths across blocks, numbers of blocks and
// items, chunks, resets, lengths and room; and where they do not stay. The other tests of gates do so for their own
// cases.
#include "sampled.h"
#include "trained_case.h"

namespace {

// Bytes with which a block has all of W_hh going forward: W_hh, h twice and zeros, and g of four steps.
int64_t alone_bytes(int64_t hidden, int64_t gates, int64_t size) {
    const int64_t items = hidden <= 32 ? 4 : hidden <= 64 ? 2 : 1;
    return (hidden * ((gates * hidden | 1) + 2 * items + 1) + 4 * gates * 128) * size;
}

constexpr int64_t few_bytes = 30 << 10;  // with which everything else runs

// Blocks that share W_hh, where none has room for all: units of 32 columns at least, or going back 8, and so many more
// that `most` blocks do.
int64_t wanted(int64_t hidden, int64_t gates, int most, bool back) {
    for (int64_t warps = 1; warps <= 4; warps *= 2) {
        const int64_t units = back ? 8 * warps : 32 * warps / gates, blocks = (hidden + units - 1) / units;
        if (blocks <= most) return blocks;
    }
    return 0;
}

void widths_and_blocks(void **) {
    uint64_t seed = 0;
    int spread = 0;
    for (const dpcri_device_gates kind : kinds)
        for (const int64_t hidden : {45, 64, 65, 96, 100, 129})
            for (int most = 1; most <= 8; most += 1 + (int)(seed % 3), seed++) {
                if (!sampled_quarter((int64_t)seed)) continue;
                trained_case<float> n(kind, 2 + (int64_t)(seed % 3), 1 + (int64_t)(seed % 7), 3, hidden, 0.9);
                n.back = seed % 2 == 1;
                vary_cell(n, kind == DPCRI_DEVICE_LSTM ? (int)(seed % 4) : 0);
                const int64_t bytes = alone_bytes(hidden, n.gates, 4) - 1;
                if (bytes < few_bytes) continue;
                const device d(most, bytes);
                const dpcri_device_recurrent f = n.forward(DPCRI_DEVICE_LOOP);
                const int64_t shared = blocks_of(f);
                assert_true(shared == 0 || shared == wanted(hidden, n.gates, most, false));
                spread += shared > 1;
                const dpcri_device_recurrent b = n.backward(DPCRI_DEVICE_LOOP);
                const int64_t blocks = blocks_of(b);
                assert_true(blocks == 0 || blocks == wanted(hidden, n.gates, most, true));
                n.run(b, seed);
            }
    assert_true(spread >= 4);
}

// A block has room for all: up to four items one after the other for each that a block takes.
void blocks_alone(void **) {
    uint64_t seed = 0;
    for (const dpcri_device_gates kind : kinds)
        for (const int64_t hidden : {5, 32, 33, 64, 65, 128, 129})
            for (const int most : {1, 2, 8}) {
                if (hidden <= 32 && most > 1) continue;  // many items
                if (!sampled_quarter((int64_t)++seed)) continue;
                const int64_t at_once = hidden <= 32 ? 4 : hidden <= 64 ? 2 : 1;
                const int64_t rows = (hidden <= 32 ? 16 : 4) * most * at_once;
                trained_case<float> n(kind, hidden > 64 ? 2 : 6, rows + (int64_t)(seed % 2), 3, hidden, 0.9);
                const bool fits = hidden <= 128 && alone_bytes(hidden, n.gates, 4) <= 227 << 10;
                n.back = seed % 3 == 1;
                vary_cell(n, kind == DPCRI_DEVICE_LSTM ? (int)(seed % 4) : 0);
                const device d(most);
                const dpcri_device_recurrent f = n.forward(DPCRI_DEVICE_LOOP);
                const bool alone = fits && n.rows == rows, in_tiles = hidden >= 32 && hidden % 4 == 0;
                if (n.rows > 16 && (alone || !in_tiles)) assert_int_equal(blocks_of(f), alone);
                const dpcri_device_recurrent b = n.backward(DPCRI_DEVICE_LOOP);
                if (alone && n.rows > 16) assert_int_equal(blocks_of(b), 1);
                n.run(b, seed);
            }
}

void items_and_chunks(void **) {
    int64_t run = 0;
    for (const bool alone : {false, true})
        for (const dpcri_device_gates kind : kinds)
            for (const int64_t rows : {1, 2, 4, 5, 16, 17}) {
                if (!sampled_quarter(run++)) continue;
                trained_case<double> n(kind, 9, rows, 2, kind < DPCRI_DEVICE_GRU ? 96 : 45, 0.8);
                const device d(8, alone ? 227 << 10 : alone_bytes(n.hidden, n.gates, 8) - 1);
                const dpcri_device_recurrent f = n.forward(DPCRI_DEVICE_LOOP);
                assert_int_equal(blocks_of(f) > 0, alone || rows <= 16);
                n.run(n.backward(DPCRI_DEVICE_LOOP), (uint64_t)rows);
                dpcri_device_recurrent o = n.arguments(DPCRI_DEVICE_OVERLAP);
                o.kept = n.kept.data();
                o.chunk = 4, o.warm_up = 2;
                assert_int_equal(blocks_of(o) > 0, 3 * rows <= (!alone ? 16 : n.hidden > 64 ? 32 : 64));
                n.run(o, (uint64_t)rows);
                o = n.backward(DPCRI_DEVICE_OVERLAP);
                o.chunk = 4, o.warm_up = 3;
                n.run(o, (uint64_t)rows + 1);
            }
}

void lengths_and_resets(void **) {
    uint64_t seed = 0;
    for (const dpcri_device_gates kind : kinds)
        for (const bool against : {false, true})
            for (const bool alone : {false, true})
                for (const dpcri_device_way way : {DPCRI_DEVICE_LOOP, DPCRI_DEVICE_OVERLAP}) {
                    if (!sampled_quarter((int64_t)++seed)) continue;
                    trained_case<float> n(kind, 14, 4, 2, kind < DPCRI_DEVICE_GRU ? 97 : 45, 0.7);
                    const device d(8, alone ? 227 << 10 : alone_bytes(n.hidden, n.gates, 4) - 1);
                    n.back = against, n.lengths = {14, 0, 5, 9};
                    n.resets.assign(14 * 4, 0);
                    for (int i = 0; i < 6; i++) n.resets[(size_t)((seed * 7 + (uint64_t)i * 11) % (14 * 4))] = 1;
                    dpcri_device_recurrent f = n.arguments(way);
                    f.kept = n.kept.data(), f.chunk = 5, f.warm_up = 3;
                    assert_true(blocks_of(f) > 0);
                    n.run(f, seed);
                    dpcri_device_recurrent b = n.backward(way);
                    b.chunk = 5, b.warm_up = 3;
                    n.run(b, seed + 1);
                }
}

// More units a block where W_hh fits in fewer; none where it does not.
void room_on_chip(void **) {
    network<float> n(DPCRI_DEVICE_LSTM, 3, 2, 2, 100, 0.9);
    const int64_t eight = (100 * (33 + 1) + 2 * (100 + 2 * 32 + 8)) * 4 + 3 * 2 * 8;
    for (const int64_t bytes : {eight - 1, eight}) {
        const device d(16, bytes);
        const dpcri_device_recurrent c = n.arguments(DPCRI_DEVICE_LOOP);
        assert_int_equal(blocks_of(c), bytes < eight ? 0 : 13);
        n.run(c, 1);
    }
    const device none(0);
    assert_int_equal(blocks_of(n.arguments(DPCRI_DEVICE_LOOP)), 0);
    simt::host::config.room_error = 46;
    int64_t blocks = 0;
    dpcri_device_recurrent c = n.arguments(DPCRI_DEVICE_LOOP);
    assert_int_equal(dpcri_cuda_recurrent_share(c, &blocks), 46);
    simt::host::config.room_error = 0;
}

// The widths that docs/gpu.md tells of an H200.
void widest_of_a_device(void **) {
    struct {
        dpcri_device_gates kind;
        int64_t most, back;
    } const told[] = {
        {DPCRI_DEVICE_RNN_TANH, 1658, 2112}, {DPCRI_DEVICE_GRU, 1320, 1076}, {DPCRI_DEVICE_LSTM, 1056, 1056}};
    const device d(132);
    for (const auto &t : told) {
        trained_case<float> n(t.kind, 3, 1, 2, 8, 0.9);
        dpcri_device_recurrent f = n.forward(DPCRI_DEVICE_LOOP), b = n.backward(DPCRI_DEVICE_LOOP);
        for (int more = 0; more < 2; more++) {
            f.hidden = t.most + more, b.hidden = t.back + more;
            assert_int_equal(blocks_of(f) > 0, !more);
            assert_int_equal(blocks_of(b) > 0, !more);
        }
        // So wide that what a block alone would want is no number of 32 bits.
        f.hidden = b.hidden = 46340;
        assert_int_equal(blocks_of(f) + blocks_of(b), 0);
    }
}

void other_cells_do_not(void **) {
    network<float> reset(DPCRI_DEVICE_GRU, 5, 1, 2, 9, 0.9), apart(DPCRI_DEVICE_PARAGRU, 5, 1, 2, 9, 0.9);
    network<float> narrow(DPCRI_DEVICE_RNN_TANH, 5, 1, 2, 4, 0.9);
    reset.reset_before = true;
    for (const network<float> *const n : {&reset, &apart, &narrow})
        assert_int_equal(blocks_of(const_cast<network<float> *>(n)->arguments(DPCRI_DEVICE_LOOP)), 0);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(widths_and_blocks),  cmocka_unit_test(blocks_alone), cmocka_unit_test(items_and_chunks),
        cmocka_unit_test(lengths_and_resets), cmocka_unit_test(room_on_chip), cmocka_unit_test(widest_of_a_device),
        cmocka_unit_test(other_cells_do_not),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
