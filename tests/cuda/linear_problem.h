// SPDX-License-Identifier: MIT
// A linear chain's arrays, its plain loop, and its solution by the device's kernels over the simulator.
#ifndef TESTS_CUDA_LINEAR_PROBLEM_H
#define TESTS_CUDA_LINEAR_PROBLEM_H

#include <cmath>

#include "cuda_testing.h"
#include "kern/cuda/linear.h"

namespace {

inline double random_signed() { return (double)(random_bits() >> 11) * 0x1p-52 - 1.0; }

inline void draw(uint32_t &x, double) { x = (uint32_t)random_bits(); }
inline void draw(float &x, double scale) { x = (float)(scale * random_signed()); }
inline void draw(double &x, double scale) { x = scale * random_signed(); }

// Sequences of `parts` columns of width k; arrays of exactly their size, so that fences see what lies beyond.
template <class T>
struct chain {
    int64_t k, length, batch, parts, w;
    bool transposed;
    std::vector<T> a, b, z0, z;

    chain(int64_t width, int64_t l, int64_t rows, int64_t part, bool back, bool start)
        : k(width), length(l), batch(rows), parts(part), w(width * part), transposed(back) {
        a.resize((size_t)(length * batch * w * k));
        b.resize((size_t)(length * batch * w));
        z0.resize(start ? (size_t)(batch * w) : 0);
        z.resize(b.size());
        for (T &x : a) draw(x, 0.95 / (double)k);
        for (T &x : b) draw(x, 1);
        for (T &x : z0) draw(x, 1);
    }

    // As the kernels see it, in the order of the recurrence. z is poisoned.
    linear::problem<T> problem() {
        std::memset(static_cast<void *>(z.data()), 0xff, z.size() * sizeof(T));
        linear::problem<T> p = {};
        p.length = length;
        p.columns = batch * parts;
        p.parts = parts;
        p.transposed = transposed;
        p.a = a.data();
        p.a_step = batch * w * k;
        p.a_row = w * k;
        p.a_part = k * k;
        p.b = b.data();
        p.b_step = batch * w;
        p.b_row = w;
        p.z0 = z0.empty() ? nullptr : z0.data();
        p.z0_row = w;
        p.z = z.data();
        p.z_step = batch * w;
        p.z_row = w;
        return p;
    }

    // The loop on N, with |.| of everything where `absolute`.
    template <class N>
    std::vector<N> loop(bool absolute) const {
        const auto of = [&](T x) { return absolute && x < T(0) ? N(-N(x)) : N(x); };
        std::vector<N> want(z.size());
        for (int64_t c = 0; c < batch * parts; c++)
            for (int64_t m = 0; m < length; m++) {
                const int64_t at = m * batch * w + c * k;
                for (int64_t i = 0; i < k; i++) {
                    N sum = of(b[(size_t)(at + i)]);
                    for (int64_t j = 0; j < k && (m > 0 || !z0.empty()); j++) {
                        const N x = m > 0 ? want[(size_t)(at - batch * w + j)] : of(z0[(size_t)(c * k + j)]);
                        sum += of(a[(size_t)(at * k + (transposed ? j * k + i : i * k + j))]) * x;
                    }
                    want[(size_t)(at + i)] = sum;
                }
            }
        return want;
    }

    void assert_exact() const {
        const std::vector<uint32_t> want = loop<uint32_t>(false);
        for (size_t i = 0; i < z.size(); i++)
            if (z[i] != want[i])
                fail_msg("width %d parts %d length %d batch %d%s%s: step %d", (int)k, (int)parts, (int)length,
                         (int)batch, transposed ? " transposed" : "", z0.empty() ? "" : " z0",
                         (int)((int64_t)i / (batch * w)));
    }

    // A scan's rounding: each of the sums on the way to a state has at most that many terms.
    void assert_close() const {
        const std::vector<long double> want = loop<long double>(false), scale = loop<long double>(true);
        const long double bound = (sizeof(T) == 4 ? 0x1p-23L : 0x1p-52L) * 4 * (long double)((k + 4) * (length + 2));
        for (size_t i = 0; i < z.size(); i++)
            if (!(std::fabs((long double)z[i] - want[i]) <= bound * scale[i]))
                fail_msg("width %d length %d: step %d", (int)k, (int)length, (int)((int64_t)i / (batch * w)));
    }
};

// By the kernel of width K, geometry S, at most Group columns a tile, in a poisoned workspace of just the size.
template <int K, class S, int Group, class T>
void solve(linear::problem<T> p) {
    linear::problem<T> planned = p;
    const linear::sizes s = linear::plan<T, K, S, Group>(&planned);
    std::vector<unsigned char> workspace(s.bytes, 0xff);
    const int status = linear::run<T, K, S, Group>(p, workspace.data(), nullptr);
    if (status != 0) fail_msg("launch: %d", status);
}

template <int K, class S, int Group, class T>
void solve(chain<T> &c) {
    solve<K, S, Group>(c.problem());
}

}  // namespace

#endif
