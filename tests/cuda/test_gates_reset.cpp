// SPDX-License-Identifier: MIT
// GRUs that reset before the product, of the device's kernels on the CPU: states and gradients are the definition's, in
// higher precision; overlapped chunks are the loop to the bit, in every order; sequences of lengths of their own, and
// those that begin within others, have the bits that they have alone.
#include "trained_case.h"

namespace {

typedef std::vector<long double> reals;

template <class T>
struct reset : trained_case<T> {
    reset(dpcri_device_gates k, int64_t l, int64_t b, int64_t in, int64_t h, double size)
        : trained_case<T>(k, l, b, in, h, size) {
        vary_cell(*this, 4);
    }

    reals want_ih, want_hh, want_bi, want_x, want_h;

    // W v of gate q's unit u.
    long double of(int64_t q, int64_t u, const reals &v) const {
        const int64_t H = this->hidden;
        long double sum = this->b_hh[(size_t)(q * H + u)];
        for (int64_t j = 0; j < H; j++) sum += (long double)this->w_hh[(size_t)((q * H + u) * H + j)] * v[(size_t)j];
        return sum;
    }
    long double into(int64_t r, int64_t t, int64_t q, int64_t u) const {
        const int64_t H = this->hidden, I = this->inputs;
        long double sum = this->b_ih[(size_t)(q * H + u)];
        for (int64_t j = 0; j < I; j++)
            sum += (long double)this->w_ih[(size_t)((q * H + u) * I + j)] *
                   this->x[(size_t)((t * this->rows + r) * I + j)];
        return sum;
    }

    void sequence(int64_t r, double bound) {
        const int64_t H = this->hidden, I = this->inputs, B = this->rows, n = this->lengths[(size_t)r];
        std::vector<reals> h((size_t)n + 1, reals((size_t)H)), R = h, z = h, v = h, product = h;
        for (int64_t u = 0; u < H; u++) h[0][(size_t)u] = this->h0[(size_t)(r * H + u)];
        const auto time = [&](int64_t m) { return this->back ? n - 1 - m : m; };
        for (int64_t m = 0; m < n; m++) {
            const size_t k = (size_t)m;
            for (int64_t u = 0; u < H; u++) {
                R[k][(size_t)u] = sigmoid(this->cut(into(r, time(m), 0, u) + of(0, u, h[k])));
                z[k][(size_t)u] = sigmoid(this->cut(into(r, time(m), 1, u) + of(1, u, h[k])));
                product[k][(size_t)u] = R[k][(size_t)u] * h[k][(size_t)u];
            }
            for (int64_t u = 0; u < H; u++) {
                v[k][(size_t)u] = std::tanh(this->cut(into(r, time(m), 2, u) + of(2, u, product[k])));
                h[k + 1][(size_t)u] = (1 - z[k][(size_t)u]) * v[k][(size_t)u] + z[k][(size_t)u] * h[k][(size_t)u];
                const T got = this->y[(size_t)((time(m) * B + r) * (H + 3) + u)];
                if (!(std::fabs(got - h[k + 1][(size_t)u]) <= bound)) fail_msg("state %d, unit %d", (int)m, (int)u);
            }
        }
        reals g((size_t)H);
        for (int64_t u = 0; u < H; u++) g[(size_t)u] = this->dht[(size_t)(r * H + u)];
        for (int64_t m = n - 1; m >= 0; m--) {
            const size_t k = (size_t)m;
            reals before((size_t)H), e((size_t)(3 * H)), inner((size_t)H);
            for (int64_t u = 0; u < H; u++) {
                const size_t i = (size_t)u;
                const long double d = g[i] + this->dy[(size_t)((time(m) * B + r) * (H + 1) + u)];
                e[(size_t)(H + u)] = d * (h[k][i] - v[k][i]) * this->sigmoid_slope(z[k][i]);
                e[(size_t)(2 * H + u)] = d * (1 - z[k][i]) * this->tanh_slope(v[k][i]);
                before[i] = d * z[k][i];
            }
            for (int64_t u = 0; u < H; u++)
                for (int64_t j = 0; j < H; j++)
                    inner[(size_t)j] += e[(size_t)(2 * H + u)] * this->w_hh[(size_t)((2 * H + u) * H + j)];
            for (size_t i = 0; i < (size_t)H; i++) {
                e[i] = inner[i] * h[k][i] * this->sigmoid_slope(R[k][i]);
                before[i] += inner[i] * R[k][i];
            }
            for (int64_t row = 0; row < 3 * H; row++) {
                want_bi[(size_t)row] += e[(size_t)row];
                for (int64_t j = 0; j < H; j++) {
                    want_hh[(size_t)(row * H + j)] += e[(size_t)row] * (row < 2 * H ? h : product)[k][(size_t)j];
                    if (row < 2 * H) before[(size_t)j] += e[(size_t)row] * this->w_hh[(size_t)(row * H + j)];
                }
                for (int64_t j = 0; j < I; j++) {
                    const size_t at = (size_t)((time(m) * B + r) * I + j);
                    want_ih[(size_t)(row * I + j)] += e[(size_t)row] * this->x[at];
                    want_x[at] += e[(size_t)row] * this->w_ih[(size_t)(row * I + j)];
                }
            }
            g = before;
        }
        for (int64_t u = 0; u < H; u++) want_h[(size_t)(r * H + u)] = g[(size_t)u];
    }

    void matches(double bound) {
        const int64_t H = this->hidden, I = this->inputs, B = this->rows, L = this->length;
        (void)this->loop();
        want_ih.assign((size_t)(3 * H * I), 0), want_hh.assign((size_t)(3 * H * H), 0);
        want_bi.assign((size_t)(3 * H), 0), want_x.assign((size_t)(L * B * I), 0), want_h.assign((size_t)(B * H), 0);
        for (int64_t r = 0; r < B; r++) sequence(r, bound);
        this->assert_close("dx", this->dx, want_x, I, I + 2, bound);
        this->assert_close("dh0", this->dh0, want_h, H, H, bound);
        this->assert_close("dw_ih", this->dw_ih, want_ih, I, I, bound);
        this->assert_close("dw_hh", this->dw_hh, want_hh, H, H, bound);
        this->assert_close("db_ih", this->db_ih, want_bi, H, H, bound);
        this->assert_close("db_hh", this->db_hh, want_bi, H, H, bound);
        for (const dpcr_device_outcome &o : this->outcome)
            assert_true(o.locked == L && !o.non_finite && o.residual == 0);
    }
};

void what_is_cut_is_the_definitions(void **) {
    uint64_t seed = 0;
    for (const int64_t width : {1, 5, 33}) {
        reset<double> one(DPCRI_DEVICE_GRU, 9, 2, 3, width, 0.9);
        vary_cell(one, 12);
        one.matches(1e-13);
    }
    for (const double size : {0.5, 12.0}) back_is_the_loop(DPCRI_DEVICE_GRU, size, seed, 12);
    packed_is_apart(DPCRI_DEVICE_GRU, 12);
    for (const dpcri_device_way way : {DPCRI_DEVICE_LOOP, DPCRI_DEVICE_OVERLAP})
        parts_are_apart(DPCRI_DEVICE_GRU, way, true, 12);
}

void loop_is_the_definitions(void **) {
    for (int64_t width = 1; width <= 40; width++) {
        reset<double> one(DPCRI_DEVICE_GRU, 1 + width % 6, 1 + width % 3, 1 + width % 4, width, 0.9);
        one.back = width % 2 == 1;
        one.matches(1e-13);
    }
    reset<float> wide(DPCRI_DEVICE_GRU, 40, 15, 20, 70, 0.9);  // beyond tiles both ways, and a piece of the sums
    wide.matches(3e-5);
    uneven_matches<reset<double>>(DPCRI_DEVICE_GRU, 1e-13);
}

void overlap_is_the_loop(void **) {
    uint64_t seed = 0;
    for (const double size : {0.5, 12.0})  // forgets at once, or not
        for (int turn = 0; turn < 2; turn++) back_is_the_loop(DPCRI_DEVICE_GRU, size, seed, 4);
}

void bits_are_those_of_any_order(void **) {
    reset<float> n(DPCRI_DEVICE_GRU, 24, 30, 5, 35, 0.8);
    assert_any_order(n);
    const std::vector<float> want = n.network<float>::loop();
    for (uint64_t seed = 2; seed < 6; seed++) {
        n.run(n.arguments(DPCRI_DEVICE_LOOP), seed);
        assert_same(want, n.y, "states in another order");
    }
}

void sequences_are_apart(void **) {
    packed_is_apart(DPCRI_DEVICE_GRU, 4);
    for (const dpcri_device_way way : {DPCRI_DEVICE_LOOP, DPCRI_DEVICE_OVERLAP})
        parts_are_apart(DPCRI_DEVICE_GRU, way, true, 4);
}

void what_cannot_be_is_refused(void **) {
    reset<float> n(DPCRI_DEVICE_LSTM, 10, 1, 2, 3, 0.5);
    const dpcri_device_recurrent c = n.arguments(DPCRI_DEVICE_LOOP);
    std::vector<unsigned char> w(1 << 16);
    assert_int_equal(dpcri_cuda_recurrent_run(c, w.data(), w.size(), nullptr), DPCRI_CUDA_UNSUPPORTED);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(loop_is_the_definitions), cmocka_unit_test(what_is_cut_is_the_definitions),
        cmocka_unit_test(overlap_is_the_loop),     cmocka_unit_test(bits_are_those_of_any_order),
        cmocka_unit_test(sequences_are_apart),     cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
