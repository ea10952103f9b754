// SPDX-License-Identifier: MIT
// A recurrent layer's arrays and its runs by the launcher, over the simulator.
#ifndef TESTS_CUDA_NETWORK_CASE_H
#define TESTS_CUDA_NETWORK_CASE_H

#include <cmath>

#include "cuda_testing.h"
#include "kern/cuda/launch.h"

namespace {

inline double random_signed() { return (double)(random_bits() >> 11) * 0x1p-52 - 1.0; }
inline long double sigmoid(long double u) { return 1 / (1 + std::exp(-u)); }

template <class T>
struct network {
    dpcri_device_gates kind;
    int64_t length, rows, inputs, hidden, gates;
    bool back = false;                        // against time
    bool coupled = false, peepholes = false;  // variants of an LSTM
    bool reset_before = false;                // of a GRU
    double clip = 0;                          // 0: none
    std::vector<T> w_ih, w_hh, b_ih, b_hh, peephole, x, h0, c0, y, ht, ct;
    std::vector<int64_t> lengths;
    std::vector<unsigned char> resets;  // [length][rows] or empty
    std::vector<dpcr_device_outcome> outcome;

    network(dpcri_device_gates k, int64_t l, int64_t b, int64_t in, int64_t h, double size)
        : kind(k), length(l), rows(b), inputs(in), hidden(h) {
        gates = gates_of(kind);
        fill(w_ih, gates * h * in, 0.5), fill(b_ih, gates * h, 0.3), fill(b_hh, gates * h, 0.3);
        if (unmixed())
            fill(w_hh, 3 * h, size), fill(peephole, 2 * h, size);
        else
            fill(w_hh, gates * h * h, size / (double)h), fill(peephole, 3 * h, 0.5);
        fill(x, l * b * in, 1), fill(h0, b * h, 1), fill(c0, b * h, 1);
        y.resize((size_t)(l * b * (h + 3))), ht.resize((size_t)(b * h)), ct.resize((size_t)(b * h));
        outcome.resize((size_t)b), lengths.assign((size_t)b, l);
    }
    static int64_t gates_of(dpcri_device_gates kind) {
        switch (kind) {
            case DPCRI_DEVICE_MINGRU: return 2;
            case DPCRI_DEVICE_GRU:
            case DPCRI_DEVICE_PARAGRU:
            case DPCRI_DEVICE_PARALSTM: return 3;
            case DPCRI_DEVICE_LSTM: return 4;
            default: return 1;
        }
    }
    virtual ~network() = default;
    virtual std::vector<std::vector<T> *> outputs() { return {&y, &ht, &ct}; }
    bool unmixed() const { return kind >= DPCRI_DEVICE_PARAGRU; }
    bool cell() const { return kind == DPCRI_DEVICE_LSTM || kind == DPCRI_DEVICE_PARALSTM; }
    static void fill(std::vector<T> &v, int64_t n, double scale) {
        v.resize((size_t)n);
        for (T &a : v) a = (T)(scale * random_signed());
    }

    dpcri_device_recurrent arguments(dpcri_device_way way) {
        for (std::vector<T> *const v : {&y, &ht, &ct}) v->assign(v->size(), T(NAN));
        std::memset(outcome.data(), 0xff, outcome.size() * sizeof outcome[0]);
        dpcri_device_recurrent c = {};
        c.dtype = sizeof(T) == 4 ? DPCR_F32 : DPCR_F64;
        c.gates = kind;
        c.length = length, c.rows = rows, c.inputs = inputs, c.hidden = hidden;
        c.w_ih = w_ih.data(), c.b_ih = b_ih.data();
        c.w_hh = kind == DPCRI_DEVICE_MINGRU ? nullptr : w_hh.data(), c.b_hh = unmixed() ? nullptr : b_hh.data();
        c.peephole = kind == DPCRI_DEVICE_PARALSTM || peepholes ? peephole.data() : nullptr;
        c.coupled = coupled, c.peepholes = peepholes, c.reset_before = reset_before, c.clip = clip;
        const int64_t last = back ? length - 1 : 0, sign = back ? -1 : 1, step = rows * (hidden + 3);
        c.x = x.data() + last * rows * inputs, c.x_step = sign * rows * inputs, c.x_row = inputs;
        c.h0 = h0.data(), c.c0 = cell() ? c0.data() : nullptr;
        c.y = y.data() + last * step, c.y_step = sign * step, c.y_row = hidden + 3;
        c.ht = ht.data(), c.ct = ct.data();
        c.way = way;
        c.outcome = outcome.data();
        c.against = back;
        c.lengths = lengths.data();
        for (const int64_t n : lengths) c.packed = c.packed || n < length;
        c.parted = !resets.empty(), c.resets = resets.data();
        return c;
    }

    void run_once(const dpcri_device_recurrent &c, uint64_t seed) {
        std::vector<unsigned char> workspace(dpcri_cuda_recurrent_workspace(c), 0xff);
        order(seed, 2);
        const int status = dpcri_cuda_recurrent_run(c, workspace.data(), workspace.size(), nullptr);
        if (status != DPCRI_CUDA_OK) fail_msg("status %d", status);
    }
    // With weights that go past, and where they may stay on chip too: the same.
    void run(dpcri_device_recurrent c, uint64_t seed) {
        std::vector<std::vector<T>> before, first;
        for (std::vector<T> *const v : outputs()) before.push_back(*v);
        const std::vector<dpcr_device_outcome> untold = outcome;
        c.share = 0;
        run_once(c, seed);
        int64_t blocks = 0;
        assert_int_equal(dpcri_cuda_recurrent_share(c, &blocks), DPCRI_CUDA_OK);
        if (blocks == 0) return;
        for (std::vector<T> *const v : outputs()) first.push_back(*v);
        const std::vector<dpcr_device_outcome> told = outcome;
        for (size_t i = 0; i < before.size(); i++) *outputs()[i] = before[i];
        outcome = untold;
        c.share = 1;
        run_once(c, seed + 1);
        for (size_t i = 0; i < first.size(); i++)
            for (size_t n = 0; n < first[i].size(); n++) {
                const T a = first[i][n], b = (*outputs()[i])[n];
                if (!(a == b || (a != a && b != b)))
                    fail_msg("on chip: output %d, number %d: %.9g, not %.9g", (int)i, (int)n, (double)b, (double)a);
            }
        assert_memory_equal(told.data(), outcome.data(), told.size() * sizeof told[0]);
    }

    std::vector<T> loop() {
        run(arguments(DPCRI_DEVICE_LOOP), 1);
        return y;
    }

    // Every sequence's: done in 1 .. most sweeps to the bit, nothing lost.
    void assert_exact(int most) const {
        for (const dpcr_device_outcome &r : outcome) {
            assert_true(r.sweeps >= 1 && r.sweeps <= most);
            assert_true(r.residual == 0 && !r.non_finite);
            assert_true(r.locked > 0 && r.locked <= length);
        }
    }

    // Sequence r of `all`, to be run alone.
    void take(const network &all, int64_t r) {
        const int64_t H = hidden, I = inputs;
        back = all.back, coupled = all.coupled, peepholes = all.peepholes, reset_before = all.reset_before,
        clip = all.clip;
        w_ih = all.w_ih, w_hh = all.w_hh, b_ih = all.b_ih, b_hh = all.b_hh, peephole = all.peephole;
        take_row(h0, all.h0, r, H), take_row(c0, all.c0, r, H);
        for (int64_t l = 0; l < length; l++)
            for (int64_t j = 0; j < I; j++) x[(size_t)(l * I + j)] = all.x[(size_t)((l * all.rows + r) * I + j)];
    }
    static void take_row(std::vector<T> &to, const std::vector<T> &from, int64_t r, int64_t width) {
        for (int64_t u = 0; u < width; u++) to[(size_t)u] = from[(size_t)(r * width + u)];
    }
    static void assert_row(const std::vector<T> &one, const std::vector<T> &all, int64_t r, int64_t width,
                           const char *what) {
        for (int64_t u = 0; u < width; u++)
            if (!(all[(size_t)(r * width + u)] == one[(size_t)u])) fail_msg("%s of sequence %d", what, (int)r);
    }
    // Steps of `room` numbers, of which `width` are looked at; 0 where the sequence, now run alone, has none.
    static void assert_steps(const std::vector<T> &one, int64_t steps, const std::vector<T> &all, int64_t rows,
                             int64_t r, int64_t length, int64_t width, int64_t room, const char *what) {
        for (int64_t l = 0; l < length; l++)
            for (int64_t j = 0; j < width; j++)
                if (!(all[(size_t)((l * rows + r) * room + j)] == (l < steps ? one[(size_t)(l * room + j)] : 0)))
                    fail_msg("%s of sequence %d, step %d", what, (int)r, (int)l);
    }
    // The states of sequence r of `all`, run among others, are those that it had alone.
    void assert_states(const network &all, int64_t r) const {
        assert_row(length > 0 ? ht : h0, all.ht, r, hidden, "last h");
        if (cell()) assert_row(length > 0 ? ct : c0, all.ct, r, hidden, "last c");
        assert_steps(y, length, all.y, all.rows, r, all.length, hidden, hidden + 3, "y");
    }

    // What a gate gets of c.
    long double peep(int which, int64_t u, long double cell) const {
        return peepholes ? (long double)peephole[(size_t)(which * hidden + u)] * cell : 0;
    }

    // What a function gets of u, and whether that is u.
    long double cut(long double u) const {
        const long double most = (T)clip;
        return clip > 0 ? std::fmax(-most, std::fmin(most, u)) : u;
    }
    long double whole(long double u) const { return cut(u) == u; }
    // Slopes of the functions at what they gave.
    long double sigmoid_slope(long double v) const {
        const bool ends = clip > 0 && (v == sigmoid(cut(1e9L)) || v == sigmoid(cut(-1e9L)));
        return ends ? 0 : v * (1 - v);
    }
    long double tanh_slope(long double v) const {
        return clip > 0 && std::fabs(v) == std::tanh(cut(1e9L)) ? 0 : 1 - v * v;
    }

    // The definition (torch.nn's; ONNX's where it is varied), gates in PyTorch's order.
    void matches(double bound) {
        const std::vector<T> got = loop();
        for (int64_t r = 0; r < rows; r++) {
            std::vector<long double> h((size_t)hidden), c((size_t)hidden), next;
            for (int64_t u = 0; u < hidden; u++) h[(size_t)u] = h0[(size_t)(r * hidden + u)];
            for (int64_t u = 0; u < hidden; u++) c[(size_t)u] = c0[(size_t)(r * hidden + u)];
            for (int64_t n = 0; n < length; n++) {
                const int64_t m = back ? length - 1 - n : n;
                next = h;
                for (int64_t u = 0; u < hidden; u++) {
                    long double in[4] = {}, of[4] = {};
                    for (int64_t g = 0; g < gates; g++) {
                        const int64_t row = g * hidden + u;
                        in[g] = b_ih[(size_t)row], of[g] = b_hh[(size_t)row];
                        for (int64_t j = 0; j < inputs; j++)
                            in[g] += (long double)w_ih[(size_t)(row * inputs + j)] *
                                     x[(size_t)((m * rows + r) * inputs + j)];
                        for (int64_t j = 0; j < hidden; j++)
                            of[g] += (long double)w_hh[(size_t)(row * hidden + j)] * h[(size_t)j];
                    }
                    long double &to = next[(size_t)u], &cell = c[(size_t)u];
                    if (gates == 1) to = std::tanh(cut(in[0] + of[0]));
                    if (kind == DPCRI_DEVICE_RNN_RELU) to = std::fmax(cut(in[0] + of[0]), 0.0L);
                    if (gates == 3) {
                        const long double z = sigmoid(cut(in[1] + of[1])), R = sigmoid(cut(in[0] + of[0]));
                        to = (1 - z) * std::tanh(cut(in[2] + R * of[2])) + z * h[(size_t)u];
                    }
                    if (gates != 4) continue;
                    const long double i = sigmoid(cut(in[0] + of[0] + peep(0, u, cell)));
                    const long double f = coupled ? 1 - i : sigmoid(cut(in[1] + of[1] + peep(1, u, cell)));
                    cell = f * cell + i * std::tanh(cut(in[2] + of[2]));
                    to = sigmoid(cut(in[3] + of[3] + peep(2, u, cell))) * std::tanh(cut(cell));
                }
                h = next;
                for (int64_t u = 0; u < hidden; u++) {
                    const T value = got[(size_t)((m * rows + r) * (hidden + 3) + u)];
                    if (!(std::fabs(value - h[(size_t)u]) <= bound * (1 + std::fabs(h[(size_t)u]))))
                        fail_msg("kind %d hidden %d step %d unit %d: %.9g, wanted %.9g", kind, (int)hidden, (int)m,
                                 (int)u, (double)value, (double)h[(size_t)u]);
                }
                assert_true(std::isnan(got[(size_t)((m * rows + r) * (hidden + 3) + hidden)]));  // beside the states
            }
            for (int64_t u = 0; u < hidden; u++) {
                assert_true(std::fabs(ht[(size_t)(r * hidden + u)] - h[(size_t)u]) <= bound * 2);
                if (gates == 4) assert_true(std::fabs(ct[(size_t)(r * hidden + u)] - c[(size_t)u]) <= bound * 4);
            }
            assert_int_equal(outcome[(size_t)r].locked, length);
            assert_int_equal(outcome[(size_t)r].non_finite, 0);
        }
    }
};

// Of an LSTM, by number: as it is, with peepholes, with f = 1 - i, with both; 4, of a GRU: it resets before. 8 more:
// what goes into the functions is cut.
template <class Case>
void vary_cell(Case &n, int which) {
    n.peepholes = which & 1, n.coupled = which >> 1 & 1, n.reset_before = which >> 2 & 1, n.clip = which & 8 ? 0.4 : 0;
}

const dpcri_device_gates kinds[] = {DPCRI_DEVICE_RNN_TANH, DPCRI_DEVICE_RNN_RELU, DPCRI_DEVICE_GRU, DPCRI_DEVICE_LSTM};

// Chunks, warm-ups and numbers of sweeps that fit each other and that do not.
inline void vary(dpcri_device_recurrent &o, uint64_t seed) {
    o.chunk = 4 + (int64_t)(seed % 5);
    o.warm_up = 1 + (int64_t)(seed % 7);
    o.max_sweeps = 1 + (int)(seed % 3);
}

// Against the definition where sequences have lengths of their own, with time and against it.
template <class Case>
void uneven_matches(dpcri_device_gates kind, double bound) {
    Case uneven(kind, 11, 4, 2, 3, 0.9);
    uneven.lengths = {11, 0, 4, 7};
    uneven.matches(bound);
    uneven.back = true;
    uneven.matches(bound);
}

template <class T>
void assert_same(const std::vector<T> &a, const std::vector<T> &b, const char *what) {
    for (size_t i = 0; i < a.size(); i++)
        if (!(a[i] == b[i] || (a[i] != a[i] && b[i] != b[i])))
            fail_msg("%s: number %d: %.17g %.17g", what, (int)i, (double)a[i], (double)b[i]);
}

}  // namespace

#endif
