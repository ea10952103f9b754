// SPDX-License-Identifier: MIT
// Recurrent cells whose units do not mix, of the device's kernels on the CPU: the loop is the definition's, in higher
// precision, over strides both ways and lengths of their own; overlapped chunks are the loop to the bit, in every
// order.
#include "network_case.h"

namespace {

const dpcri_device_gates apart[] = {DPCRI_DEVICE_PARAGRU, DPCRI_DEVICE_PARALSTM, DPCRI_DEVICE_MINGRU};

template <class T>
struct para_case : network<T> {
    std::vector<T> peephole;
    std::vector<int64_t> lengths;

    para_case(dpcri_device_gates k, int64_t l, int64_t b, int64_t in, int64_t h, double size)
        : network<T>(k, l, b, in, h, size) {
        this->gates = k == DPCRI_DEVICE_MINGRU ? 2 : 3;
        this->fill(this->w_ih, this->gates * h * in, 0.5), this->fill(this->b_ih, this->gates * h, 0.3);
        this->fill(this->w_hh, 3 * h, size), this->fill(peephole, 2 * h, size);
        lengths.assign((size_t)b, l);
    }
    dpcri_device_recurrent with(dpcri_device_way way) {
        dpcri_device_recurrent c = this->arguments(way);
        c.c0 = this->kind == DPCRI_DEVICE_PARALSTM ? this->c0.data() : nullptr;
        c.w_hh = this->kind == DPCRI_DEVICE_MINGRU ? nullptr : c.w_hh;
        c.b_hh = nullptr;
        c.peephole = peephole.data();
        c.against = this->back;
        c.lengths = lengths.data();
        for (const int64_t n : lengths) c.packed = c.packed || n < this->length;
        return c;
    }

    void matches(double bound) {
        this->run(with(DPCRI_DEVICE_LOOP), 1);
        const network<T> &n = *this;
        const int64_t H = n.hidden, I = n.inputs, B = n.rows;
        for (int64_t r = 0; r < B; r++)
            for (int64_t u = 0; u < H; u++) {
                long double h = n.h0[(size_t)(r * H + u)], c = n.c0[(size_t)(r * H + u)];
                const int64_t count = lengths[(size_t)r];
                const auto a = [&](int64_t g) { return (long double)n.w_hh[(size_t)(g * H + u)] * h; };
                for (int64_t k = 0; k < n.length; k++) {
                    const int64_t l = k < count && n.back ? count - 1 - k : k;
                    long double v[3] = {}, want = 0;
                    for (int64_t g = 0; g < n.gates; g++) {
                        v[g] = n.b_ih[(size_t)(g * H + u)];
                        for (int64_t j = 0; j < I; j++)
                            v[g] +=
                                (long double)n.w_ih[(size_t)((g * H + u) * I + j)] * n.x[(size_t)((l * B + r) * I + j)];
                    }
                    if (k < count) {
                        if (n.kind == DPCRI_DEVICE_MINGRU) h = (1 - sigmoid(v[0])) * h + sigmoid(v[0]) * v[1];
                        if (n.kind == DPCRI_DEVICE_PARAGRU) {
                            const long double z = sigmoid(v[0] + a(0));
                            h = (1 - z) * h + z * std::tanh(v[2] + sigmoid(v[1] + a(1)) * a(2));
                        }
                        if (n.kind == DPCRI_DEVICE_PARALSTM) {
                            const long double f = sigmoid(v[0] + a(0) + peephole[(size_t)u] * c),
                                              z = std::tanh(v[1] + a(1));
                            c = f * c + (1 - f) * z;
                            h = sigmoid(v[2] + a(2) + peephole[(size_t)(H + u)] * c) * std::tanh(c);
                        }
                        want = h;
                    }
                    const T got = n.y[(size_t)((l * B + r) * (H + 3) + u)];
                    if (!(std::fabs(got - want) <= bound * (1 + std::fabs(want))))
                        fail_msg("kind %d row %d step %d unit %d: %.9g, wanted %.9g", n.kind, (int)r, (int)l, (int)u,
                                 (double)got, (double)want);
                }
                assert_true(std::fabs(n.ht[(size_t)(r * H + u)] - h) <= bound * 2);
                if (n.kind == DPCRI_DEVICE_PARALSTM) assert_true(std::fabs(n.ct[(size_t)(r * H + u)] - c) <= bound * 4);
            }
        for (const dpcr_device_outcome &o : n.outcome) assert_true(o.locked == n.length && !o.non_finite);
    }
};

void loop_is_the_definitions(void **) {
    for (const dpcri_device_gates kind : apart) {
        para_case<double> narrow(kind, 9, 2, 3, 5, 0.9);
        narrow.matches(1e-13);
        para_case<float> wide(kind, 20, 9, 20, 37, 0.9);
        wide.back = true;
        wide.matches(3e-5);
        para_case<double> uneven(kind, 11, 4, 2, 3, 0.9);
        uneven.lengths = {11, 0, 4, 7};
        uneven.matches(1e-13);
        uneven.back = true;
        uneven.matches(1e-13);
    }
}

void overlap_is_the_loop(void **) {
    uint64_t seed = 0;
    for (const dpcri_device_gates kind : apart)
        for (const double size : {0.4, 6.0})  // forgets soon, or not
            for (const int64_t length : {1, 17, 40}) {
                para_case<float> n(kind, length, 1 + (int64_t)(seed % 3), 2, 50, size);
                n.back = seed % 2 == 1;
                if (seed % 3 == 2) n.lengths[1] = length / 2;
                n.run(n.with(DPCRI_DEVICE_LOOP), 1);
                const std::vector<float> want = n.y, end = n.ht;
                dpcri_device_recurrent o = n.with(DPCRI_DEVICE_OVERLAP);
                o.chunk = 4 + (int64_t)(seed % 5);
                o.warm_up = 1 + (int64_t)(seed % 7);
                o.max_sweeps = 1 + (int)(seed % 3);
                n.run(o, seed++);
                assert_same(want, n.y, "overlap");
                assert_same(end, n.ht, "last states");
                for (const dpcr_device_outcome &r : n.outcome)
                    assert_true(r.sweeps >= 1 && r.sweeps <= o.max_sweeps && r.residual == 0 && !r.non_finite);
            }
}

// A warm-up that would begin before the chain begins with it, and what is left of it is run.
void chains_that_forget_take_one_sweep(void **) {
    for (uint64_t seed = 0; seed < 4; seed++) {
        para_case<float> n(DPCRI_DEVICE_PARAGRU, 60, 3, 2, 5, 0.2);
        dpcri_device_recurrent o = n.with(DPCRI_DEVICE_OVERLAP);
        o.chunk = 10, o.warm_up = 25, o.atol = o.rtol = 1e-3;
        n.run(o, seed);
        for (const dpcr_device_outcome &r : n.outcome) {
            assert_int_equal(r.sweeps, 1);
            assert_int_equal(r.locked, 60);
        }
    }
}

void what_cannot_be_is_refused(void **) {
    para_case<float> n(DPCRI_DEVICE_PARALSTM, 10, 1, 2, 3, 0.5);
    dpcri_device_recurrent c = n.with(DPCRI_DEVICE_OVERLAP);
    const size_t bytes = dpcri_cuda_recurrent_workspace(c);
    std::vector<unsigned char> w(bytes);
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), bytes - 1, nullptr), DPCRI_CUDA_WORKSPACE);
    c.peephole = nullptr;
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), bytes, nullptr), DPCRI_CUDA_ARGUMENT);
    c = n.with(DPCRI_DEVICE_NEWTON);
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), bytes, nullptr), DPCRI_CUDA_UNSUPPORTED);
    c = n.with(DPCRI_DEVICE_LOOP), c.backward = 1;
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), bytes, nullptr), DPCRI_CUDA_UNSUPPORTED);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(loop_is_the_definitions),
        cmocka_unit_test(overlap_is_the_loop),
        cmocka_unit_test(chains_that_forget_take_one_sweep),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
