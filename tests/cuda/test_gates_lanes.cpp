// SPDX-License-Identifier: MIT
// RNN, GRU and LSTM of few units whose gates have lanes of their own (gates_lanes.h), on the CPU: what network::run
// compares with weights that go past, to the bit, over kinds, widths across those of a block, one and two items a
// block, variants, chunks that agree at once and that do not, lengths, resets and orders of lanes; and what is served.
#include "kern/cuda/gates_lanes.h"

#include "trained_case.h"

namespace {

template <int G>
gates::lanes_chosen chosen_of(int64_t hidden, int64_t items) {
    gates::chunked<float> p = {};
    gates::lanes_chosen best = {};
    p.hidden = hidden, p.chunks = 1, p.rows = items;
    assert_int_equal((gates::choose_lanes<float, G>(p, &best)), 0);
    return best;
}
gates::lanes_chosen chosen(int gates, int64_t hidden, int64_t items) {
    return gates == 1   ? chosen_of<1>(hidden, items)
           : gates == 3 ? chosen_of<3>(hidden, items)
                        : chosen_of<4>(hidden, items);
}
int64_t least(int64_t gates) { return gates == 1 ? 33 : 1; }
int64_t most(int64_t gates) { return gates == 4 ? 64 : 128; }

void what_is_served(void **) {
    for (const int gates : {1, 3, 4})
        for (const int64_t hidden : {1, 20, 32, 33, 64, 65, 128, 129})
            for (const int64_t items : {1, 7, 8, 9, 16, 17}) {
                const device d(8);
                const gates::lanes_chosen c = chosen(gates, hidden, items);
                if (hidden < least(gates) || hidden > most(gates) || items > 16) {
                    assert_int_equal(c.shape.blocks, 0);
                    continue;
                }
                assert_int_equal(c.tall, hidden <= 32 ? 32 : hidden <= 64 ? 64 : 128);
                assert_int_equal(c.items, items <= 8 ? 1 : 2);
                assert_int_equal(c.shape.blocks, items <= 8 ? items : (items + 1) / 2);
                assert_int_equal(c.shape.threads, gates * c.tall);
                assert_true(c.shape.cooperative && c.shape.shared_bytes <= 227 << 10);
            }
    const device none(0);
    assert_int_equal(chosen(3, 40, 1).shape.blocks, 0);
    const device narrow(8, 40 << 10);
    assert_int_equal(chosen(3, 20, 1).shape.blocks, 1);
    assert_int_equal(chosen(3, 128, 1).shape.blocks, 0);  // a piece of W_hh for each of 12 warps
}

void assert_served(const network<float> &n, int64_t items, int at_once) {
    if (n.hidden < least(n.gates) || n.hidden > most(n.gates)) return;
    assert_int_equal(chosen((int)n.gates, n.hidden, items).items, at_once);
}

std::vector<float> loop_of(trained_case<float> &n) { return n.network<float>::loop(); }

// The forward pass of a case, all that it leaves.
void run_forward(trained_case<float> &n, dpcri_device_recurrent c, uint64_t seed) {
    c.kept = n.kept.data();
    const bool by_cells = c.gates <= DPCRI_DEVICE_RNN_RELU && c.hidden < 5 && !(c.clip > 0);
    assert_int_equal(blocks_of(c), !by_cells);
    n.run(c, seed);
}

void widths_and_items(void **) {
    uint64_t seed = 0;
    for (const dpcri_device_gates kind : kinds)
        for (const int64_t hidden : {1, 5, 20, 31, 32, 33, 64, 100, 128})
            for (const int at_once : {1, 2}) {
                if (hidden > most(network<float>::gates_of(kind))) continue;
                const int64_t blocks = 2 + (int64_t)(seed % 2), rows = at_once * blocks - (int64_t)(seed / 2 % 2);
                trained_case<float> n(kind, 3 + (int64_t)(seed % 4) * 2, rows, 3, hidden, 0.9);
                n.back = seed % 3 == 1;
                vary_cell(n, (kind == DPCRI_DEVICE_LSTM ? (int)(seed % 4) : 0) + (hidden < 5 || seed % 5 == 0 ? 8 : 0));
                const device d((int)blocks);
                assert_served(n, rows, at_once);
                run_forward(n, n.arguments(DPCRI_DEVICE_LOOP), seed++);
            }
}

// Chains that forget at once, and that do not: boundaries that agree, sweeps again, and what is finished in order.
void chunks_and_sweeps(void **) {
    uint64_t seed = 0;
    for (const dpcri_device_gates kind : kinds)
        for (const double size : {0.5, 12.0}) {
            if (kind == DPCRI_DEVICE_RNN_RELU && size > 1) continue;
            for (const int64_t length : {1, 17, 40})
                for (const int64_t hidden : {20, 40}) {
                    trained_case<float> n(kind, length, 1 + (int64_t)(seed % 2), 2, hidden, size);
                    n.back = seed % 2 == 1;
                    vary_cell(n, kind == DPCRI_DEVICE_LSTM ? (int)(seed / 2 % 4) : 0);
                    const device d(n.rows > 1 ? 10 : 8);
                    const std::vector<float> want = loop_of(n), end = n.ht;
                    dpcri_device_recurrent o = n.arguments(DPCRI_DEVICE_OVERLAP);
                    vary(o, seed);
                    const int64_t items = (length + o.chunk - 1) / o.chunk * n.rows;
                    assert_served(n, items, items <= (n.rows > 1 ? 10 : 8) ? 1 : 2);
                    run_forward(n, o, seed++);
                    assert_same(want, n.y, "overlap");
                    assert_same(end, n.ht, "last states");
                    n.assert_exact(o.max_sweeps);
                }
        }
}

void lengths_and_resets(void **) {
    uint64_t seed = 0;
    for (const dpcri_device_gates kind : kinds)
        for (const bool against : {false, true})
            for (const dpcri_device_way way : {DPCRI_DEVICE_LOOP, DPCRI_DEVICE_OVERLAP})
                for (const int blocks : {2, 8}) {  // two items a block, or one
                    trained_case<float> n(kind, 14, 4, 2, kind < DPCRI_DEVICE_GRU ? 45 : 20, 0.7);
                    const device d(way == DPCRI_DEVICE_LOOP ? blocks : 3 * blocks);
                    n.back = against, n.lengths = {14, 0, 5, 9};
                    vary_cell(n, kind == DPCRI_DEVICE_LSTM ? (int)(seed / 2 % 4) : 0);
                    n.resets.assign(14 * 4, 0);
                    for (int i = 0; i < 6; i++) n.resets[(size_t)((seed * 7 + (uint64_t)i * 11) % (14 * 4))] = 1;
                    for (int r = 0; r < 4; r++) n.resets[(size_t)(13 * (seed % 2) * 4 + (uint64_t)r)] = 1;
                    dpcri_device_recurrent f = n.arguments(way);
                    f.chunk = 5, f.warm_up = 3;
                    assert_served(n, way == DPCRI_DEVICE_LOOP ? 4 : 12, blocks == 2 ? 2 : 1);
                    run_forward(n, f, seed++);
                }
}

void any_order(void **) {
    for (const dpcri_device_gates kind : kinds)
        for (const uint64_t seed : {0, 3, 4, 5, 6, 7}) {
            trained_case<float> n(kind, 24, 3, 2, 33, 0.8);
            vary_cell(n, kind == DPCRI_DEVICE_LSTM ? 1 : 0);
            const device d(seed % 2 ? 5 : 9);
            dpcri_device_recurrent o = n.arguments(DPCRI_DEVICE_OVERLAP);
            o.chunk = 8, o.warm_up = 4, o.atol = o.rtol = 1e-3;
            run_forward(n, o, seed);
        }
}

// What is not a number in one item stays there.
void items_are_apart(void **) {
    trained_case<float> n(DPCRI_DEVICE_GRU, 9, 2, 2, 20, 0.8);
    const device d(1);
    assert_served(n, 2, 2);
    const std::vector<float> want = loop_of(n);
    n.x[(size_t)((3 * 2 + 1) * 2)] = NAN;
    run_forward(n, n.arguments(DPCRI_DEVICE_LOOP), 2);
    for (int64_t m = 0; m < 9; m++)
        for (int64_t r = 0; r < 2; r++) {
            const size_t at = (size_t)((m * 2 + r) * 23);
            assert_true(r == 1 && m >= 3 ? std::isnan(n.y[at]) : n.y[at] == want[at]);
        }
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(what_is_served),     cmocka_unit_test(widths_and_items), cmocka_unit_test(chunks_and_sweeps),
        cmocka_unit_test(lengths_and_resets), cmocka_unit_test(any_order),        cmocka_unit_test(items_are_apart),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
