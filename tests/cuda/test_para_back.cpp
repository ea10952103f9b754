// SPDX-License-Identifier: MIT
// The way back through cells whose units do not mix, of the device's kernels on the CPU: gradients are the
// definition's, in higher precision, over strides both ways, lengths of their own and pieces of the sums; overlapped
// chunks are the loop to the bit, in every order; the scan has one set of bits in every order; sequences of lengths of
// their own have the bits that they have alone.
#include "kern/cuda/para_back_run.h"
#include "trained_case.h"

namespace {

const dpcri_device_gates unmixed[] = {DPCRI_DEVICE_PARAGRU, DPCRI_DEVICE_PARALSTM, DPCRI_DEVICE_MINGRU};

typedef std::vector<long double> reals;

template <class T>
struct para_trained : trained_case<T> {
    using trained_case<T>::trained_case;
    reals want_x, want_ih, want_hh, want_bi, want_p, want_h, want_c;

    // What a unit's gates get by the input of the step at l.
    reals given(int64_t r, int64_t u, int64_t l) const {
        const int64_t I = this->inputs;
        reals sum((size_t)this->gates);
        for (int64_t g = 0; g < this->gates; g++) {
            const int64_t at = g * this->hidden + u;
            sum[(size_t)g] = this->b_ih[(size_t)at];
            for (int64_t j = 0; j < I; j++)
                sum[(size_t)g] +=
                    (long double)this->w_ih[(size_t)(at * I + j)] * this->x[(size_t)((l * this->rows + r) * I + j)];
        }
        return sum;
    }

    // One unit of one sequence: the definition, differentiated step by step.
    void unit(int64_t r, int64_t u) {
        const int64_t H = this->hidden, I = this->inputs, B = this->rows, n = this->lengths[(size_t)r];
        const size_t own = (size_t)(r * H + u);
        const bool gru = this->kind == DPCRI_DEVICE_PARAGRU, lstm = this->kind == DPCRI_DEVICE_PARALSTM;
        const long double a[3] = {this->w_hh[(size_t)u], this->w_hh[(size_t)(H + u)], this->w_hh[(size_t)(2 * H + u)]};
        const long double cf = this->peephole[(size_t)u], co = this->peephole[(size_t)(H + u)];
        reals h((size_t)n + 1), c = h, t0 = h, t1 = h, t2 = h;
        h[0] = this->h0[own], c[0] = this->c0[own];
        const auto place = [&](int64_t m) { return this->back ? n - 1 - m : m; };
        for (int64_t m = 0; m < n; m++) {
            const reals v = given(r, u, place(m));
            const size_t k = (size_t)m;
            if (gru) {
                t0[k] = sigmoid(v[0] + a[0] * h[k]), t1[k] = sigmoid(v[1] + a[1] * h[k]);
                t2[k] = std::tanh(v[2] + a[2] * t1[k] * h[k]);
                h[k + 1] = (1 - t0[k]) * h[k] + t0[k] * t2[k];
            } else if (lstm) {
                t0[k] = sigmoid(v[0] + a[0] * h[k] + cf * c[k]), t1[k] = std::tanh(v[1] + a[1] * h[k]);
                c[k + 1] = t0[k] * c[k] + (1 - t0[k]) * t1[k];
                t2[k] = sigmoid(v[2] + a[2] * h[k] + co * c[k + 1]);
                h[k + 1] = t2[k] * std::tanh(c[k + 1]);
            } else {
                t0[k] = sigmoid(v[0]), t1[k] = v[1];
                h[k + 1] = (1 - t0[k]) * h[k] + t0[k] * t1[k];
            }
        }
        long double g = this->dht[own], gc = lstm ? this->dct[own] : 0;
        for (int64_t m = n - 1; m >= 0; m--) {
            const size_t k = (size_t)m;
            long double e[3] = {};
            g += this->dy[(size_t)((place(m) * B + r) * (H + 1) + u)];
            if (gru) {
                e[0] = g * (t2[k] - h[k]) * t0[k] * (1 - t0[k]), e[2] = g * t0[k] * (1 - t2[k] * t2[k]);
                e[1] = e[2] * a[2] * h[k] * t1[k] * (1 - t1[k]);
                g = g * (1 - t0[k]) + e[0] * a[0] + e[1] * a[1] + e[2] * a[2] * t1[k];
            } else if (lstm) {
                const long double out = std::tanh(c[k + 1]);
                e[2] = g * out * t2[k] * (1 - t2[k]);
                const long double of_c = gc + g * t2[k] * (1 - out * out) + e[2] * co;
                e[0] = of_c * (c[k] - t1[k]) * t0[k] * (1 - t0[k]), e[1] = of_c * (1 - t0[k]) * (1 - t1[k] * t1[k]);
                gc = of_c * t0[k] + e[0] * cf;
                g = e[0] * a[0] + e[1] * a[1] + e[2] * a[2];
                want_p[(size_t)u] += e[0] * c[k], want_p[(size_t)(H + u)] += e[2] * c[k + 1];
            } else {
                e[0] = g * (t1[k] - h[k]) * t0[k] * (1 - t0[k]), e[1] = g * t0[k];
                g = g * (1 - t0[k]);
            }
            for (int64_t q = 0; q < this->gates; q++) {
                const int64_t at = q * H + u;
                want_bi[(size_t)at] += e[q];
                if (gru || lstm) want_hh[(size_t)at] += e[q] * h[k] * (gru && q == 2 ? t1[k] : 1);
                for (int64_t j = 0; j < I; j++) {
                    const size_t in = (size_t)((place(m) * B + r) * I + j);
                    want_ih[(size_t)(at * I + j)] += e[q] * this->x[in];
                    want_x[in] += e[q] * this->w_ih[(size_t)(at * I + j)];
                }
            }
        }
        want_h[own] = g, want_c[own] = gc;
    }

    dpcri_device_way way = DPCRI_DEVICE_LOOP;

    void matches(double bound) {
        const int64_t H = this->hidden, I = this->inputs, B = this->rows, L = this->length;
        this->run(this->backward(way), 1);
        want_x.assign((size_t)(L * B * I), 0), want_ih.assign((size_t)(this->gates * H * I), 0);
        want_hh.assign((size_t)(3 * H), 0), want_bi.assign((size_t)(this->gates * H), 0);
        want_p.assign((size_t)(2 * H), 0), want_h.assign((size_t)(B * H), 0), want_c = want_h;
        for (int64_t r = 0; r < B; r++)
            for (int64_t u = 0; u < H; u++) unit(r, u);
        this->assert_close("dx", this->dx, want_x, I, I + 2, bound);
        this->assert_close("dh0", this->dh0, want_h, H, H, bound);
        if (this->cell()) this->assert_close("dc0", this->dc0, want_c, H, H, bound);
        this->assert_close("dw_ih", this->dw_ih, want_ih, I, I, bound);
        this->assert_close("dw_hh", this->dw_hh, want_hh, H, H, bound);
        this->assert_close("db_ih", this->db_ih, want_bi, H, H, bound);
        this->assert_close("dpeephole", this->dpeephole, want_p, H, H, bound);
        for (const dpcr_device_outcome &o : this->outcome)
            assert_true(o.locked == L && !o.non_finite && o.residual == 0);
    }
};

void loop_is_the_definitions(void **) {
    for (const dpcri_device_gates kind : unmixed) {
        para_trained<double> narrow(kind, 9, 2, 3, 5, 0.9);
        narrow.matches(1e-13);
        para_trained<float> wide(kind, 60, 10, 20, 45, 0.9);  // beyond a tile of gates, and a piece of the sums
        wide.back = true;
        wide.matches(5e-5);
        uneven_matches<para_trained<double>>(kind, 1e-13);
    }
}

void overlap_is_the_loop(void **) {
    uint64_t seed = 0;
    for (const dpcri_device_gates kind : unmixed)
        for (const double size : {0.4, 6.0}) back_is_the_loop(kind, size, seed);
}

void bits_are_those_of_any_order(void **) {
    for (const dpcri_device_gates kind : unmixed) {
        trained_case<float> n(kind, 24, 9, 5, 9, 0.8);
        assert_any_order(n);
    }
}

void sequences_are_apart(void **) {
    for (const dpcri_device_gates kind : unmixed) packed_is_apart(kind);
}

void parts_of_sequences_are_apart(void **) {
    for (const dpcri_device_gates kind : unmixed) {
        for (const dpcri_device_way way : {DPCRI_DEVICE_LOOP, DPCRI_DEVICE_OVERLAP}) parts_are_apart(kind, way);
        parts_are_apart(kind, DPCRI_DEVICE_NEWTON, false);
    }
}

// ---- after newton: a scan ----

template <class T>
void scan_matches(dpcri_device_gates kind, int64_t length, int64_t rows, int64_t hidden, double size, double bound) {
    para_trained<T> n(kind, length, rows, 2, hidden, size);
    n.way = DPCRI_DEVICE_NEWTON;
    n.back = length % 2 == 1;
    n.matches(bound);
    for (const dpcr_device_outcome &o : n.outcome) assert_int_equal(o.sweeps, 1);
}

template <class T>
struct scanned : para_trained<T> {
    scanned(dpcri_device_gates k, int64_t l, int64_t b, int64_t in, int64_t h, double size)
        : para_trained<T>(k, l, b, in, h, size) {
        this->way = DPCRI_DEVICE_NEWTON;
    }
};

// Lengths on both sides of a tile, and of two; more columns than a tile has; chains that forget and that do not.
void scan_is_the_definitions(void **) {
    for (const dpcri_device_gates kind : unmixed) {
        const int64_t tile = kind == DPCRI_DEVICE_PARALSTM ? 256 : 512;
        for (const int64_t length : {(int64_t)1, (int64_t)40, tile + 1})
            scan_matches<double>(kind, length, 1, 2, 0.9, 1e-11);
        scan_matches<double>(kind, 2 * tile + 9, 1, 1, 0.3, 1e-11);
        scan_matches<float>(kind, 70, 3, 11, 2.0, 2e-4);
        uneven_matches<scanned<double>>(kind, 1e-13);
    }
}

// The bits are those of every order of blocks and lanes, and of each sequence alone.
void scan_has_bits_of_its_own(void **) {
    for (const dpcri_device_gates kind : unmixed) {
        const int64_t tile = kind == DPCRI_DEVICE_PARALSTM ? 256 : 512;
        trained_case<float> all(kind, tile + 18, 4, 2, 2, 0.7);
        all.back = kind != DPCRI_DEVICE_PARAGRU;
        all.lengths = {tile + 1, tile + 18, 0, 1};
        std::vector<float> first;
        for (const uint64_t seed : {0, 4, 5}) {
            all.run(all.backward(DPCRI_DEVICE_NEWTON), seed);
            if (seed == 0) first = all.all();
            assert_same(first, all.all(), "another order");
        }
        for (int64_t r = 0; r < 4; r++) {
            trained_case<float> one(kind, all.lengths[(size_t)r], 1, 2, 2, 0.7);
            one.take(all, r);
            one.way_back = DPCRI_DEVICE_NEWTON;
            one.assert_back(all, r);
        }
    }
}

// Gradients add onto what is there; what is not wanted is left out; what does not come in is zero.
void what_is_there_is_added_to(void **) {
    trained_case<double> n(DPCRI_DEVICE_PARALSTM, 12, 2, 3, 4, 0.9);
    (void)n.loop();
    const std::vector<double> hh = n.dw_hh, of_c = n.dpeephole;
    dpcri_device_recurrent c = n.backward(DPCRI_DEVICE_LOOP);
    n.dw_hh.assign(n.dw_hh.size(), 3), n.dpeephole.assign(n.dpeephole.size(), -2);
    c.dw_ih = c.db_ih = nullptr;
    n.run(c, 2);
    for (size_t i = 0; i < hh.size(); i++) assert_true(n.dw_hh[i] == 3 + hh[i]);
    for (size_t i = 0; i < of_c.size(); i++) assert_true(n.dpeephole[i] == of_c[i] - 2);
    for (const double v : n.dw_ih) assert_true(v == 0);
    c = n.backward(DPCRI_DEVICE_LOOP);
    c.dy = nullptr, c.dx = c.dh0 = c.dc0 = c.dw_ih = c.dw_hh = c.db_ih = c.dpeephole = nullptr;
    n.run(c, 4);
    assert_true(std::isnan(n.dx[0]) && std::isnan(n.dh0[0]) && n.dw_hh[0] == 0 && n.dpeephole[0] == 0);
    // c of all steps is what the way back reads.
    c = n.backward(DPCRI_DEVICE_LOOP), c.kept = nullptr;
    std::vector<unsigned char> w(dpcri_cuda_recurrent_workspace(c));
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), w.size(), nullptr), DPCRI_CUDA_ARGUMENT);
}

// The sums' pieces are of W_ih alone: all memory is linear in the units, and wide layers are summed in pieces too, of
// more rows than narrow ones.
void memory_is_linear_in_units(void **) {
    for (const dpcri_device_gates kind : unmixed)
        for (const dpcr_dtype dtype : {DPCR_F32, DPCR_F64}) {
            dpcri_device_recurrent c = {};
            c.dtype = dtype, c.gates = kind, c.length = 700, c.rows = 2, c.inputs = 8, c.backward = 1;
            c.way = dtype == DPCR_F32 ? DPCRI_DEVICE_LOOP : DPCRI_DEVICE_NEWTON;
            size_t before = 0;
            for (c.hidden = 1024; c.hidden <= 16384; c.hidden *= 2) {
                const size_t bytes = dpcri_cuda_recurrent_workspace(c);
                assert_true(bytes > 0 && (before == 0 || bytes <= 2 * before));
                before = bytes;
                const int64_t pieces = gates::pieces_of(gates::gates_as_units(c, gates::gates_of(kind)), 1, c.inputs);
                assert_true(pieces >= 3 && pieces <= 22 && (c.hidden > 1024 || pieces == 22));
            }
        }
}

void what_is_not_finite_stays_in_its_sequence(void **) {
    for (const dpcri_device_way way : {DPCRI_DEVICE_OVERLAP, DPCRI_DEVICE_NEWTON})
        for (const dpcri_device_gates kind : unmixed) {
            trained_case<float> n(kind, 40, 2, 2, 3, 0.5);
            n.run(n.backward(way == DPCRI_DEVICE_NEWTON ? way : DPCRI_DEVICE_LOOP), 1);
            const std::vector<float> clean = n.dx;
            n.dy[(size_t)((20 * 2 + 1) * 4)] = INFINITY;
            dpcri_device_recurrent o = n.backward(way);
            o.chunk = 10, o.warm_up = 5;
            n.run(o, 8);
            for (int64_t l = 0; l < 40; l++)
                for (int64_t j = 0; j < 2; j++) {
                    assert_true(n.dx[(size_t)(l * 2 * 4 + j)] == clean[(size_t)(l * 2 * 4 + j)]);
                    assert_true(std::isfinite(n.dx[(size_t)((l * 2 + 1) * 4 + j)]) == (l > 20));
                }
            assert_true(!n.outcome[0].non_finite && n.outcome[1].non_finite);
        }
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(loop_is_the_definitions),     cmocka_unit_test(overlap_is_the_loop),
        cmocka_unit_test(bits_are_those_of_any_order), cmocka_unit_test(sequences_are_apart),
        cmocka_unit_test(what_is_there_is_added_to),   cmocka_unit_test(what_is_not_finite_stays_in_its_sequence),
        cmocka_unit_test(memory_is_linear_in_units),   cmocka_unit_test(scan_is_the_definitions),
        cmocka_unit_test(scan_has_bits_of_its_own),    cmocka_unit_test(parts_of_sequences_are_apart),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
