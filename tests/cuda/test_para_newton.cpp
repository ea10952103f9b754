// SPDX-License-Identifier: MIT
// Newton over time for cells whose units do not mix, of the device's kernels on the CPU: the loop's states to the
// tolerance over tiles, windows and groups of units, in few sweeps, with lengths of their own; affine chains in one;
// one set of bits for any order and any batch; what does not converge is the loop's, and says so; chains that do not
// forget.
#include "kern/cuda/para_run.h"
#include "network_case.h"

namespace {

const dpcri_device_gates apart[] = {DPCRI_DEVICE_PARAGRU, DPCRI_DEVICE_PARALSTM, DPCRI_DEVICE_MINGRU};

typedef gates::slab<2, 2, 4> small;  // tiles of four steps, windows of four

template <class T>
struct solved : network<T> {
    using network<T>::network;

    dpcri_device_recurrent newton() {
        dpcri_device_recurrent c = this->arguments(DPCRI_DEVICE_NEWTON);
        c.atol = c.rtol = sizeof(T) == 4 ? 5e-6 : 5e-11;
        return c;
    }
    template <int Kind>
    void solve_kind(const dpcri_device_recurrent &c, uint64_t seed) {
        std::vector<unsigned char> workspace(gates::para_workspace_of<T, Kind, small>(c), 0xff);
        order(seed, 2);
        const int status = gates::para_run_of<T, Kind, small>(c, workspace.data(), nullptr);
        if (status != 0) fail_msg("status %d", status);
    }
    void solve(const dpcri_device_recurrent &c, uint64_t seed) {
        if (this->kind == DPCRI_DEVICE_PARAGRU) solve_kind<DPCRI_DEVICE_PARAGRU>(c, seed);
        if (this->kind == DPCRI_DEVICE_PARALSTM) solve_kind<DPCRI_DEVICE_PARALSTM>(c, seed);
        if (this->kind == DPCRI_DEVICE_MINGRU) solve_kind<DPCRI_DEVICE_MINGRU>(c, seed);
    }
};

template <class T>
void assert_near(const std::vector<T> &want, const std::vector<T> &got, const char *what) {
    const double bound = sizeof(T) == 4 ? 1e-4 : 1e-9;
    for (size_t i = 0; i < want.size(); i++)
        if (!(std::isnan(want[i]) && std::isnan(got[i])) && want[i] != got[i] &&
            !(std::fabs((double)got[i] - (double)want[i]) <= bound))
            fail_msg("%s: number %d: %.9g, wanted %.9g", what, (int)i, (double)got[i], (double)want[i]);
}

// The last correction is within the tolerance, and those to come are smaller.
template <class T>
void solves(solved<T> &n, uint64_t seed) {
    const std::vector<T> want = n.loop(), end = n.ht, cells = n.ct;
    const dpcri_device_recurrent c = n.newton();
    n.solve(c, seed);
    assert_near(want, n.y, "states");
    assert_near(end, n.ht, "last states");
    if (n.cell()) assert_near(cells, n.ct, "last c");
    for (size_t r = 0; r < n.outcome.size(); r++) {
        const dpcr_device_outcome &o = n.outcome[r];
        assert_int_equal(o.locked, n.length);
        assert_int_equal(o.non_finite, 0);
        if (o.sweeps < (n.lengths[r] > 0) || o.sweeps > (n.kind == DPCRI_DEVICE_MINGRU ? 1 : 7))
            fail_msg("%d sweeps", o.sweeps);
        assert_true(o.residual <= 1e-5);
    }
}

void newton_is_the_loop(void **) {
    uint64_t seed = 0;
    for (const dpcri_device_gates kind : apart)
        for (const int64_t length : {1, 2, 3, 4, 5, 16, 17, 40}) {
            solved<float> n(kind, length, 1 + (int64_t)(seed % 3), 2, seed % 2 ? 33 : 5, 0.9);
            n.back = seed % 3 == 1;
            solves(n, seed++);
            solved<double> d(kind, length, 2, 3, 3, 0.9);
            solves(d, seed++);
        }
    for (const dpcri_device_gates kind : apart) {
        solved<float> many(kind, 30, 4, 2, 35, 0.7);  // more groups than go together
        solves(many, seed++);
        for (const bool back : {false, true}) {
            solved<double> uneven(kind, 40, 5, 2, 9, 0.9);
            uneven.lengths = {40, 0, 17, 16, 26};
            uneven.back = back;
            solves(uneven, seed++);
        }
    }
}

// A memory that lasts longer than the chain: chunks that warm up are far off, newton has nothing to wait for.
void chains_need_not_forget(void **) {
    for (const dpcri_device_gates kind : apart) {
        solved<double> n(kind, 60, 2, 2, 5, 0.3);
        for (int64_t u = 0; u < 5; u++) n.b_ih[(size_t)u] += kind == DPCRI_DEVICE_PARALSTM ? 6 : -6;
        dpcri_device_recurrent o = n.arguments(DPCRI_DEVICE_OVERLAP);
        o.chunk = 10, o.warm_up = 10, o.atol = o.rtol = 1e-3;
        n.run(o, 1);
        for (const dpcr_device_outcome &r : n.outcome) assert_true(r.locked < 60);
        solves(n, 2);
    }
}

void bits_are_those_of_any_order_batch_and_device(void **) {
    for (const dpcri_device_gates kind : apart) {
        solved<float> all(kind, 30, 5, 2, 27, 0.8);
        all.lengths[3] = 17;
        all.solve(all.newton(), 0);
        const std::vector<float> first = all.y, end = all.ht, cells = all.ct;
        const std::vector<dpcr_device_outcome> told = all.outcome;
        for (uint64_t seed = 1; seed < 4; seed++) {
            all.solve(all.newton(), seed);
            assert_same(first, all.y, "another order");
        }
        for (const int blocks : {4, 16}) {  // one group of units at a time, and four
            simt::host::config.cooperative_blocks = blocks;
            all.solve(all.newton(), 2);
            simt::host::config.cooperative_blocks = 8;
            assert_same(first, all.y, "another device");
            assert_same(end, all.ht, "another device's last states");
            if (all.cell()) assert_same(cells, all.ct, "another device's last c");
            for (size_t r = 0; r < told.size(); r++) {
                const dpcr_device_outcome &a = told[r], &b = all.outcome[r];
                assert_true(a.sweeps == b.sweeps && a.locked == b.locked && a.residual == b.residual &&
                            a.non_finite == b.non_finite);
            }
        }
        for (const int64_t r : {1, 3, 4}) {
            solved<float> one(kind, all.lengths[(size_t)r], 1, 2, 27, 0.8);
            one.take(all, r);
            one.solve(one.newton(), 5);
            one.assert_states(all, r);
        }
    }
}

void what_does_not_converge_is_the_loops(void **) {
    for (const dpcri_device_gates kind : {DPCRI_DEVICE_PARAGRU, DPCRI_DEVICE_PARALSTM}) {
        solved<float> n(kind, 30, 2, 2, 5, 0.9);
        const std::vector<float> want = n.loop(), end = n.ht, cells = n.ct;
        dpcri_device_recurrent c = n.newton();
        c.max_sweeps = 1;
        n.solve(c, 3);
        assert_same(want, n.y, "one sweep is too few");
        assert_same(end, n.ht, "last states");
        if (n.cell()) assert_same(cells, n.ct, "last c");
        for (const dpcr_device_outcome &o : n.outcome) assert_true(o.locked == 0 && o.sweeps == 1 && o.residual > 0);
        c.stop = 1;
        n.solve(c, 4);
        for (const dpcr_device_outcome &o : n.outcome) assert_true(o.locked == 0 && !o.non_finite);
        float worst = 0;
        for (size_t i = 0; i < want.size(); i++)
            if (!std::isnan(want[i])) worst = std::fmax(worst, std::fabs(want[i] - n.y[i]));
        assert_true(worst > 1e-4f && worst < 1);  // left as it was
    }
}

// Zeros, which are solved at once, into the second window; then steps that a sweep does not solve, but for the first.
// What is finished in order begins at a tile's border, of 23 zeros, and within a tile.
void a_locked_prefix_is_kept(void **) {
    for (const dpcri_device_gates kind : {DPCRI_DEVICE_PARAGRU, DPCRI_DEVICE_PARALSTM})
        for (const int zeros : {23, 24, 25}) {
            solved<float> n(kind, 36, 2, 2, 5, 0.9);
            n.b_ih.assign(n.b_ih.size(), 0), n.h0.assign(n.h0.size(), 0), n.c0.assign(n.c0.size(), 0);
            for (int i = 0; i < zeros * 2 * 2; i++) n.x[(size_t)i] = 0;
            const std::vector<float> want = n.loop(), end = n.ht;
            dpcri_device_recurrent c = n.newton();
            c.max_sweeps = 1;
            n.solve(c, 2);
            assert_same(want, n.y, "from the first open step on");
            assert_same(end, n.ht, "last states");
            for (const dpcr_device_outcome &o : n.outcome) assert_true(o.locked == zeros + 1 && o.sweeps == 1);
        }
}

// Nobody sweeps when all columns are done.
void it_ends_when_all_is_solved(void **) {
    solved<float> n(DPCRI_DEVICE_PARAGRU, 16, 2, 2, 5, 0.9);
    int64_t switches[2];
    for (const int most : {16, 100}) {
        dpcri_device_recurrent c = n.newton();
        c.max_sweeps = most;
        simt::host::config.switches = 0;
        n.solve(c, 3);
        switches[most == 100] = simt::host::config.switches;
        for (const dpcr_device_outcome &o : n.outcome) assert_true(o.sweeps < 8);
    }
    assert_true(switches[0] == switches[1]);
}

// Of three sequences the second is the loop's to its end, and locked up to a state of the loop that is not finite.
void assert_second_lost(solved<float> &n, int64_t locked) {
    const std::vector<float> want = n.loop(), end = n.ht, cells = n.ct;
    n.solve(n.newton(), 4);
    assert_near(want, n.y, "beside what is not finite");
    assert_near(end, n.ht, "last states beside what is not finite");
    if (n.cell()) assert_near(cells, n.ct, "last c beside what is not finite");
    for (int64_t r = 0; r < 3; r++) {
        assert_int_equal(n.outcome[(size_t)r].locked, r == 1 ? locked : 30);
        assert_int_equal(n.outcome[(size_t)r].non_finite != 0, r == 1 && locked < 30);
    }
}

// An infinity that gates bound is gone after a step, and the sequence solved.
void what_is_not_finite_stays_in_its_sequence(void **) {
    for (const dpcri_device_gates kind : apart) {
        solved<float> n(kind, 30, 3, 2, 5, 0.6), start = n, cell = n, input = n;
        n.x[(size_t)((14 * 3 + 1) * 2)] = NAN;
        assert_second_lost(n, 14);
        start.h0[5 + 2] = INFINITY;
        assert_second_lost(start, kind == DPCRI_DEVICE_PARALSTM ? 30 : 0);
        cell.c0[5 + 2] = INFINITY;
        assert_second_lost(cell, kind == DPCRI_DEVICE_PARALSTM ? 0 : 30);
        input.x[(size_t)((14 * 3 + 1) * 2)] = INFINITY;
        assert_second_lost(input, kind == DPCRI_DEVICE_MINGRU ? 14 : 30);
    }
}

void as_launched(void **) {
    for (const dpcri_device_gates kind : apart) {
        solved<float> n(kind, 200, 2, 2, 5, 0.8);
        const std::vector<float> want = n.loop();
        const dpcri_device_recurrent c = n.newton();
        n.run(c, 5);
        assert_near(want, n.y, "as launched");
        // A device that cannot hold a window refuses it.
        simt::host::config.cooperative_blocks = 1;
        std::vector<unsigned char> workspace(dpcri_cuda_recurrent_workspace(c) + 1);
        assert_int_equal(dpcri_cuda_recurrent_run(c, workspace.data(), workspace.size(), nullptr),
                         DPCRI_CUDA_UNSUPPORTED);
        const dpcri_cuda_together blocks = dpcri_cuda_recurrent_together(c);
        assert_int_equal(blocks.wanted, kind == DPCRI_DEVICE_PARALSTM ? 4 : 2);
        assert_int_equal(blocks.room, 1);
        simt::host::config.cooperative_blocks = 8;
        assert_int_equal(dpcri_cuda_recurrent_together(c).room, 8);
        assert_int_equal(dpcri_cuda_recurrent_together(n.arguments(DPCRI_DEVICE_LOOP)).wanted, 0);
    }
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(newton_is_the_loop),
        cmocka_unit_test(chains_need_not_forget),
        cmocka_unit_test(bits_are_those_of_any_order_batch_and_device),
        cmocka_unit_test(what_does_not_converge_is_the_loops),
        cmocka_unit_test(a_locked_prefix_is_kept),
        cmocka_unit_test(it_ends_when_all_is_solved),
        cmocka_unit_test(what_is_not_finite_stays_in_its_sequence),
        cmocka_unit_test(as_launched),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
