// SPDX-License-Identifier: MIT
// The simulator that the kernels' proof stands on: what is allowed gives the right numbers in every order of lanes and
// blocks, and each thing that a device would not forgive stops it.
#include "cuda_testing.h"

enum { SEEDS = 12, STOPS = 3 };

namespace {

// ---- allowed ----

struct sums {  // of a block's numbers in order: a tree in shared memory, shuffles within the warp
    struct arguments {
        const uint32_t *in;
        uint32_t *out, *lanes;
    };
    static constexpr int most = 128;
    static void run(simt::lane &me, const arguments &a) {
        const int n = me.threads(), t = me.thread();
        const simt::shared<uint32_t> tree = me.array<uint32_t>(0, n);
        const uint32_t mine = a.in[me.block() * n + t];
        tree.set(t, mine);
        me.barrier();
        for (int s = n / 2; s > 0; s /= 2) {
            const uint32_t other = t < s ? tree.get(t + s) : 0;
            me.barrier();
            if (t < s) tree.set(t, tree.get(t) + other);
            me.barrier();
        }
        uint32_t sum = mine;
        for (int s = 16; s > 0; s /= 2) sum += me.shuffle_xor(sum, s);
        if (me.in_warp() == 0) a.lanes[me.block() * (n / 32) + me.warp()] = sum;
        if (t == 0) a.out[me.block()] = tree.get(0);
    }
};

void collectives_add_up(void **) {
    std::vector<uint32_t> in(7 * 128), out(7), lanes(7 * 4);
    for (size_t i = 0; i < in.size(); i++) in[i] = (uint32_t)random_bits();
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        order(seed, 1 + (int)(seed % 5));
        assert_int_equal(simt::launch<sums>({7, 128, 512, false}, nullptr, {in.data(), out.data(), lanes.data()}), 0);
        for (size_t b = 0; b < 7; b++) {
            uint32_t all = 0;
            for (size_t w = 0; w < 4; w++) {
                uint32_t sum = 0;
                for (size_t i = 0; i < 32; i++) sum += in[b * 128 + w * 32 + i];
                assert_int_equal(lanes[b * 4 + w], sum);
                all += sum;
            }
            assert_int_equal(out[b], all);
        }
    }
}

struct letters {  // lane t of each ticket adds t to the word that lane t of the one before posts, whoever holds it
    struct arguments {
        uint32_t *counter, *words, *found;
    };
    static constexpr int most = 32;
    static void run(simt::lane &me, const arguments &a) {
        const int t = me.in_warp();
        const uint32_t mine = me.shuffle(t == 0 ? me.ticket(a.counter) : 0u, 0);
        uint32_t *const own = a.words + mine * 32, *const before = own - 32;
        simt::pack<uint32_t, 2> two = {{1, 1}};
        for (bool all = mine == 0; !all;) {
            two = me.look(reinterpret_cast<const simt::pack<uint32_t, 2> *>(before + t / 2 * 2));
            const bool there = two.at[t % 2] != UINT32_MAX;
            if (me.first(!there) == 32)
                all = true;
            else
                me.look_again();
        }
        me.post(own + t, two.at[t % 2] + (uint32_t)me.opaque(t));
        const int odd = me.first(t >= 5 && t % 2 == 1), none = me.first(t > 31);
        if (t == 0) a.found[mine] = (uint32_t)(odd * 100 + none);
    }
};

void words_find_who_looks_for_them(void **) {
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        std::vector<uint32_t> counter(1), found(9);
        alignas(16) uint32_t words[9 * 32];
        std::memset(words, 0xff, sizeof words);
        order(seed, 1 + (int)(seed % 5));
        assert_int_equal(simt::launch<letters>({9, 32, 0, false}, nullptr, {counter.data(), words, found.data()}), 0);
        for (uint32_t n = 0; n < 9; n++) {
            assert_int_equal(found[n], 5 * 100 + 32);
            for (uint32_t t = 0; t < 32; t++) assert_int_equal(words[n * 32 + t], 1 + (n + 1) * t);
        }
    }
}

struct relay {  // each ticket waits for the one before, whichever block holds it
    struct arguments {
        uint32_t *counter, *flags, *out;
        bool by_block;
    };
    static constexpr int most = 32;
    static void run(simt::lane &me, const arguments &a) {
        uint32_t mine = 0;
        if (me.thread() == 0) mine = a.by_block ? (uint32_t)me.block() : me.ticket(a.counter);
        mine = me.shuffle(mine, 0);
        if (me.thread() == 0) {
            if (mine > 0) me.await(a.flags + mine - 1, 1);
            me.peer_store(a.out + mine, (mine > 0 ? me.peer_load(a.out + mine - 1) : 0) + mine);
            me.publish(a.flags + mine, 1);
        }
        me.warp_barrier();
    }
};

void run_relay(bool by_block, int resident, uint64_t seed) {
    std::vector<uint32_t> counter(1), flags(20), out(20);
    order(seed, resident);
    assert_int_equal(
        simt::launch<relay>({20, 32, 0, false}, nullptr, {counter.data(), flags.data(), out.data(), by_block}), 0);
    assert_int_equal(out[19], 190);
}

void tickets_hold_up_any_order(void **) {
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        for (int resident = 1; resident <= 20; resident += 6) run_relay(false, resident, seed);
}

struct rounds {  // a number passed around all blocks, a grid barrier between the hops
    struct arguments {
        uint32_t *out;
        bool skip;  // one lane does not come
    };
    static constexpr int most = 64;
    static void run(simt::lane &me, const arguments &a) {
        for (int64_t r = 0; r < me.blocks(); r++) {
            if (me.block() == r && me.thread() == 5) {
                const uint32_t before = r > 0 ? me.peer_load(a.out + r - 1) : 1;
                me.peer_store(a.out + r, before * 3);
            }
            if (a.skip && me.block() == 1 && me.thread() == 63) return;
            me.grid_barrier();
        }
    }
};

void grid_barriers_order_blocks(void **) {
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        uint32_t out[6] = {};
        order(seed, 1);
        assert_int_equal(simt::launch<rounds>({6, 64, 0, true}, nullptr, {out, false}), 0);
        assert_int_equal(out[5], 729);
    }
}

struct pieces {  // a copy that goes on by itself
    struct arguments {
        const float *in;
        float *out;
        int fault;  // 1: read before the wait, 2: no barrier after it, 3: no wait
    };
    static constexpr int most = 64;
    static void run(simt::lane &me, const arguments &a) {
        const int n = me.threads(), t = me.thread();
        const simt::shared<float> place = me.array<float>(0, n);
        me.copy_async(place, t, a.in + t);
        if (a.fault == 1) a.out[t] = place.get(t);
        if (a.fault != 3) me.copy_wait();
        if (a.fault != 2) me.barrier();
        a.out[t] = place.get(n - 1 - t);
    }
};

void run_pieces(int fault) {
    float in[64], out[64];
    for (int i = 0; i < 64; i++) in[i] = (float)i;
    assert_int_equal(simt::launch<pieces>({1, 64, 256, false}, nullptr, {in, out, fault}), 0);
    for (int i = 0; i < 64; i++) assert_true(out[i] == in[63 - i]);
}

void copies_land_at_their_wait(void **) {
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        order(seed, 1);
        run_pieces(0);
    }
}

struct groups {  // copies of 16 bytes, which land group by group
    struct arguments {
        const float *in;
        float *out;
        int fault;  // 1: to a place between, 2: the next group is read, 3: a wait for all but 8, 4: for all but the
                    // last 2
    };
    static constexpr int most = 32, count = 3;
    static void run(simt::lane &me, const arguments &a) {
        const int n = me.threads(), t = me.thread();
        const simt::shared<float> place = me.array<float>(0, 4 * n * count);
        for (int g = 0; g < count; g++) {
            const int at = 4 * (g * n + t);
            me.copy_async_wide(place, a.fault == 1 && t < n - 1 ? at + 1 : at, a.in + at);
            me.copy_close();
        }
        for (int g = 0; g < count; g++) {
            me.copy_wait_but(a.fault == 3 ? 8 : a.fault == 4 ? 2 : count - 1 - g);
            me.barrier();
            const int at = 4 * ((a.fault == 2 ? (g + 1) % count : g) * n + n - 1 - t);
            const simt::pack<float, 4> four = place.get<4>(at);
            for (int i = 0; i < 4; i++) a.out[at + i] = four.at[i];
        }
    }
};

void run_groups(int fault) {
    alignas(16) float in[4 * 32 * groups::count];
    float out[4 * 32 * groups::count];
    for (int i = 0; i < 4 * 32 * groups::count; i++) in[i] = (float)i, out[i] = -1;
    assert_int_equal(simt::launch<groups>({1, 32, (int64_t)sizeof in, false}, nullptr, {in, out, fault}), 0);
    assert_memory_equal(in, out, sizeof in);
}

void copies_land_group_by_group(void **) {
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        order(seed, 1);
        run_groups(0);
    }
    static const char *const words[] = {"between multiples of 16", "while a copy to it is under way",
                                        "all but 8 groups", "while a copy to it is under way"};
    for (int fault = 1; fault <= 4; fault++) assert_stops([&] { run_groups(fault); }, words[fault - 1]);
}

void launches_are_refused_as_a_device_does(void **) {
    uint32_t out[6] = {};
    order(1, 1);
    assert_int_not_equal(simt::launch<rounds>({9, 64, 0, true}, nullptr, {out, false}), 0);  // more than are resident
    assert_int_not_equal(simt::launch<rounds>({1, 96, 0, true}, nullptr, {out, false}), 0);  // more than `most`
    assert_int_not_equal(simt::launch<rounds>({1, 40, 0, true}, nullptr, {out, false}), 0);  // no whole warps
    assert_int_not_equal(simt::launch<rounds>({0, 32, 0, true}, nullptr, {out, false}), 0);  // no block
    assert_int_not_equal(simt::launch<rounds>({1, 32, 1 << 20, true}, nullptr, {out, false}), 0);
    assert_int_equal(simt::cooperative_blocks<rounds>(64, 0), 8);
}

// ---- not allowed ----

enum fault {
    SHUFFLE_OF_HALF,
    SHUFFLES_APART,
    SHUFFLE_AND_BARRIER,
    BARRIER_OF_SOME,
    BARRIERS_APART,
    LEFT_AT_BARRIER,
    LEFT_AT_SHUFFLE,
    READ_WITHOUT_BARRIER,
    WRITE_AFTER_READ,
    WRITE_AFTER_WRITE,
    WARP_BARRIER_FOR_A_BLOCK,
    NEVER_WRITTEN,
    OUT_OF_ARRAY,
    OUT_OF_MEMORY,
    GRID_BARRIER,
    FLAG_OF_NOBODY,
    WORD_OF_NOBODY,
    PACK_BETWEEN,
    FOUR_OUT_OF_PLACE,
    FOUR_OUT_OF_ARRAY,
    READ_OF_FOUR,
    WRITE_OF_FOUR,
    ALLOWED_IN_WARP,
};

struct faulty {
    struct arguments {
        fault is;
        uint32_t *flag;
    };
    static constexpr int most = 64;
    static void run(simt::lane &me, const arguments &a) {
        const int t = me.thread(), other = (t + 1) % me.threads();
        const int beside = t / 32 * 32 + (t + 1) % 32;
        const simt::shared<int> numbers = me.array<int>(0, 64);
        const simt::pack<int, 4> same = {{t, t, t, t}};
        switch (a.is) {
            case SHUFFLE_OF_HALF:
                if (t % 32 < 16) me.shuffle(t, 0);
                break;
            case SHUFFLES_APART:
                if (t % 2)
                    me.shuffle(t, 0);
                else
                    me.shuffle(t, 0);
                break;
            case SHUFFLE_AND_BARRIER:
                if (t % 2)
                    me.shuffle(t, 0);
                else
                    me.barrier();
                break;
            case BARRIER_OF_SOME:
                if (t < 32) me.barrier();
                break;
            case BARRIERS_APART:
                if (t < 32)
                    me.barrier();
                else
                    me.barrier();
                break;
            case LEFT_AT_BARRIER:
                if (t == 63) return;
                me.barrier();
                break;
            case LEFT_AT_SHUFFLE:
                if (t == 63) return;
                me.any(true);
                break;
            case READ_WITHOUT_BARRIER:
                numbers.set(t, t);
                (void)numbers.get(other);
                break;
            case WRITE_AFTER_READ:
                numbers.set(t, t);
                me.barrier();
                (void)numbers.get(other);
                numbers.set(t, t);
                break;
            case WRITE_AFTER_WRITE:
                numbers.set(t, t);
                numbers.set(other, t);
                break;
            case WARP_BARRIER_FOR_A_BLOCK:
                numbers.set(t, t);
                me.warp_barrier();
                (void)numbers.get(other);
                break;
            case NEVER_WRITTEN: (void)numbers.get(t); break;
            case OUT_OF_ARRAY: numbers.set(t + 1, t); break;
            case OUT_OF_MEMORY: (void)me.array<double>(8, 32); break;
            case GRID_BARRIER: me.grid_barrier(); break;
            case FLAG_OF_NOBODY: me.await(a.flag, 1); break;
            case WORD_OF_NOBODY:
                for (;;) {
                    (void)me.look(reinterpret_cast<const simt::pack<uint32_t, 2> *>(a.flag));
                    me.look_again();
                }
                break;
            case PACK_BETWEEN: (void)me.stream_load<2>(a.flag + 1 - (t & 1)); break;
            case FOUR_OUT_OF_PLACE: numbers.set(t % 32 + 2 - t % 4, same); break;
            case FOUR_OUT_OF_ARRAY: numbers.set(t + 64 - t % 4, same); break;
            case READ_OF_FOUR:  // of which the last is another's
                numbers.set(t, t);
                (void)numbers.get<4>(t / 4 * 4);
                break;
            case WRITE_OF_FOUR:
                if (t % 4 == 0) numbers.set(t, same);
                if (t % 4 == 3) numbers.set(t, t);
                break;
            case ALLOWED_IN_WARP:
                numbers.set(t, t);
                me.warp_barrier();
                if (numbers.get(beside) != beside) std::abort();
                me.warp_barrier();
                numbers.set(beside, 0);
                break;
        }
    }
};

void run_faulty(fault is, uint64_t seed) {
    alignas(8) uint32_t flags[4] = {};
    order(seed, 2);
    (void)simt::launch<faulty>({3, 64, 256, false}, nullptr, {is, flags});
}

// In every order, not only in a lucky one.
void faults_are_stopped(void **) {
    static const struct {
        fault is;
        const char *text;
    } cases[] = {
        {SHUFFLE_OF_HALF, "divergent collective"},
        {SHUFFLES_APART, "divergent collective"},
        {SHUFFLE_AND_BARRIER, "divergent collective"},
        {BARRIER_OF_SOME, "barrier"},
        {BARRIERS_APART, "divergent barrier"},
        {LEFT_AT_BARRIER, "barrier"},
        {LEFT_AT_SHUFFLE, "divergent collective"},
        {READ_WITHOUT_BARRIER, "shared byte"},
        {FOUR_OUT_OF_PLACE, "between multiples of 16"},
        {FOUR_OUT_OF_ARRAY, "shared array of"},
        {READ_OF_FOUR, "shared byte"},
        {WRITE_OF_FOUR, "race"},
        {WRITE_AFTER_READ, "race"},
        {WRITE_AFTER_WRITE, "race"},
        {WARP_BARRIER_FOR_A_BLOCK, "shared byte"},
        {NEVER_WRITTEN, "nothing was written"},
        {OUT_OF_ARRAY, "place 64"},
        {OUT_OF_MEMORY, "shared array"},
        {GRID_BARRIER, "not cooperative"},
        {FLAG_OF_NOBODY, "deadlock"},
        {WORD_OF_NOBODY, "deadlock"},
        {PACK_BETWEEN, "between"},
    };
    for (const auto &c : cases)
        for (uint64_t seed = 0; seed < STOPS; seed++) assert_stops([&] { run_faulty(c.is, seed); }, c.text);
    run_faulty(ALLOWED_IN_WARP, 0);
}

void waits_by_block_number_are_stopped(void **) {
    // Blocks that wait for one with a lower number: whoever is resident first decides, so some order has to show it.
    int stopped = 0;
    for (uint64_t seed = 0; seed < 6; seed++) stopped += stops([&] { run_relay(true, 2, seed); }, "deadlock");
    assert_true(stopped > 0);
}

void missing_lanes_of_a_grid_are_stopped(void **) {
    for (uint64_t seed = 0; seed < STOPS; seed++)
        assert_stops(
            [&] {
                uint32_t out[6] = {};
                order(seed, 1);
                (void)simt::launch<rounds>({6, 64, 0, true}, nullptr, {out, true});
            },
            "barrier");
}

void copies_touched_too_early_are_stopped(void **) {
    for (uint64_t seed = 0; seed < STOPS; seed++) {
        const auto with = [&](int fault) {
            order(seed, 1);
            run_pieces(fault);
        };
        assert_stops([&] { with(1); }, "under way");
        assert_stops([&] { with(2); }, "shared byte");
        assert_stops([&] { with(3); }, "under way");
    }
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(collectives_add_up),
        cmocka_unit_test(words_find_who_looks_for_them),
        cmocka_unit_test(tickets_hold_up_any_order),
        cmocka_unit_test(grid_barriers_order_blocks),
        cmocka_unit_test(copies_land_at_their_wait),
        cmocka_unit_test(copies_land_group_by_group),
        cmocka_unit_test(launches_are_refused_as_a_device_does),
        cmocka_unit_test(faults_are_stopped),
        cmocka_unit_test(waits_by_block_number_are_stopped),
        cmocka_unit_test(missing_lanes_of_a_grid_are_stopped),
        cmocka_unit_test(copies_touched_too_early_are_stopped),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
