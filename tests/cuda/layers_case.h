// SPDX-License-Identifier: MIT
// A stack of layers with its gradients, and the definition of both in higher precision.
#ifndef TESTS_CUDA_LAYERS_CASE_H
#define TESTS_CUDA_LAYERS_CASE_H

#include "cell_case.h"
#include "kern/cuda/layers_run.h"

namespace {

inline long double normal_cdf(long double u) { return std::erfc(-u / std::sqrt(2.0L)) / 2; }
inline long double act(int activation, long double u) {
    switch (activation) {
        case DPCRI_CUDA_IDENTITY: return u;
        case DPCRI_CUDA_RELU: return u > 0 ? u : 0;
        case DPCRI_CUDA_TANH: return std::tanh(u);
        case DPCRI_CUDA_GELU: return u * normal_cdf(u);
        case DPCRI_CUDA_SILU: return u / (1 + std::exp(-u));
        default: return 1 / (1 + std::exp(-u));
    }
}
inline long double act_slope(int activation, long double u) {
    const long double y = act(activation, u), s = 1 / (1 + std::exp(-u)), pi = 3.14159265358979323846264L;
    switch (activation) {
        case DPCRI_CUDA_IDENTITY: return 1;
        case DPCRI_CUDA_RELU: return u > 0 ? 1 : 0;
        case DPCRI_CUDA_TANH: return 1 - y * y;
        case DPCRI_CUDA_GELU: return normal_cdf(u) + u * std::exp(-u * u / 2) / std::sqrt(2 * pi);
        case DPCRI_CUDA_SILU: return s + u * s * (1 - s);
        default: return y - y * y;
    }
}

struct layers_form {
    int64_t width, length, rows;
    int activation;
    double scale;  // 0: no residual
    bool in_out;
    bool normed = false;
    int64_t hidden = 0;  // width inside two-layer branches
};

// Layer by layer W and then x, gamma and beta where there are any, W2 and its x of two-layer branches, as models have
// them; states and adjoints in rows with room between them.
template <class T>
struct layers_case : layers_form {
    int64_t inner, second, layer, room;  // `second`: where W2 is
    std::vector<T> theta, z0, z, direct, adjoint, start, gradient;
    std::vector<dpcr_device_outcome> outcome;

    explicit layers_case(const layers_form &f)
        : layers_form(f),
          inner(hidden ? hidden : width),
          second(inner * (width + (normed ? 3 : 1))),
          layer(second + (hidden ? width * (inner + 1) : 0)),
          room(width + 1) {
        const size_t all = (size_t)(length * rows * room);
        theta.resize((size_t)(length * layer)), gradient.resize(theta.size());
        z0.resize((size_t)(rows * room)), start.resize(z0.size());
        z.resize(all), direct.resize(all), adjoint.resize(all), outcome.resize((size_t)rows);
        for (T &v : theta) v = (T)(random_signed() * 1.5 / std::sqrt((double)width));
        for (T &v : z0) v = (T)random_signed();
        for (T &v : direct) v = (T)random_signed();
        for (T &v : gradient) v = (T)random_signed();
    }

    dpcri_device_cell forward(dpcri_device_way way = DPCRI_DEVICE_LOOP) {
        z.assign(z.size(), T(NAN));
        std::memset(outcome.data(), 0xff, outcome.size() * sizeof outcome[0]);
        dpcri_device_cell c = {};
        c.dtype = sizeof(T) == 4 ? DPCR_F32 : DPCR_F64;
        c.activation = activation;
        c.residual = scale != 0, c.scale = scale;
        c.in_out = in_out;
        c.length = length, c.rows = rows, c.w = width;
        c.weight = theta.data(), c.weight_step = c.x_step = layer;
        c.x = theta.data() + width * inner;
        if (normed) c.gamma = theta.data() + inner * (width + 1), c.beta = theta.data() + inner * (width + 2);
        c.hidden = hidden;
        if (hidden) c.weight2 = theta.data() + second, c.x2 = theta.data() + second + width * inner;
        c.z0 = z0.data(), c.z0_row = room;
        c.z = z.data(), c.z_step = rows * room, c.z_row = room;
        c.way = way;
        c.outcome = outcome.data();
        return c;
    }
    // Over the states that are there; `in_place`: the adjoints take the place of what comes in.
    dpcri_device_cell backward(bool in_place = false) {
        const std::vector<T> states = z;
        dpcri_device_cell c = forward();
        z = states;
        adjoint.assign(adjoint.size(), T(NAN)), start.assign(start.size(), T(NAN));
        if (in_place) adjoint = direct;
        c.backward = 1;
        c.direct = in_place ? adjoint.data() : direct.data();
        c.adjoint = adjoint.data();
        c.direct_step = c.adjoint_step = rows * room;
        c.direct_row = c.adjoint_row = c.z0_adjoint_row = room;
        c.z0_adjoint = start.data();
        c.gradients = 1;
        c.weight_gradient = gradient.data(), c.x_gradient = gradient.data() + width * inner;
        if (normed) c.gamma_gradient = gradient.data() + inner * (width + 1);
        if (normed) c.beta_gradient = gradient.data() + inner * (width + 2);
        if (hidden) c.weight2_gradient = gradient.data() + second;
        if (hidden) c.x2_gradient = gradient.data() + second + width * inner;
        return c;
    }
    static int run(const dpcri_device_cell &c, uint64_t seed) {
        std::vector<unsigned char> workspace(dpcri_cuda_cell_workspace(c) + 1, 0xff);
        order(seed, 1 + (int)(seed % 4));
        return dpcri_cuda_cell_run(c, workspace.data(), workspace.size() - 1, nullptr);
    }
    void solve(uint64_t seed) { assert_int_equal(run(forward(), seed), DPCRI_CUDA_OK); }

    const T *before(int64_t l, int64_t r) const {
        return l > 0 ? &z[(size_t)(((l - 1) * rows + r) * room)] : &z0[(size_t)(r * room)];
    }
    long double weight(int64_t l, int64_t in, int64_t out) const {
        return theta[(size_t)(l * layer + (in_out ? in * inner + out : out * width + in))];
    }
    long double weight2(int64_t l, int64_t in, int64_t out) const {
        return theta[(size_t)(l * layer + second + (in_out ? in * width + out : out * inner + in))];
    }
    // Of a layer and row: what act gets, n and r where it is normalised.
    struct given {
        std::vector<long double> v, n;
        long double r = 1;
    };
    long double parameter(int64_t l, int64_t line, int64_t u) const {
        return theta[(size_t)(l * layer + (width + line) * inner + u)];
    }
    given into(int64_t l, int64_t r) const {
        given g;
        long double mean = 0, variance = 0;
        for (int64_t u = 0; u < inner; u++) {
            long double sum = parameter(l, 0, u);
            for (int64_t k = 0; k < width; k++) sum += weight(l, k, u) * before(l, r)[k];
            g.v.push_back(sum), mean += sum / inner;
        }
        if (!normed) return g;
        for (const long double u : g.v) variance += (u - mean) * (u - mean) / inner;
        g.r = 1 / std::sqrt(variance + 1e-5L);
        for (int64_t u = 0; u < inner; u++) {
            g.n.push_back((g.v[(size_t)u] - mean) * g.r);
            g.v[(size_t)u] = g.n[(size_t)u] * parameter(l, 1, u) + parameter(l, 2, u);
        }
        return g;
    }
    // What u gets of what v gets, t.
    std::vector<long double> back(const given &g, int64_t l, const std::vector<long double> &t) const {
        if (!normed) return t;
        std::vector<long double> e(t);
        long double mean = 0, along = 0;
        for (int64_t u = 0; u < inner; u++) {
            e[(size_t)u] *= parameter(l, 1, u);
            mean += e[(size_t)u] / inner, along += e[(size_t)u] * g.n[(size_t)u] / inner;
        }
        for (int64_t u = 0; u < inner; u++) e[(size_t)u] = g.r * (e[(size_t)u] - mean - g.n[(size_t)u] * along);
        return e;
    }
    void near(const char *what, T got, long double want, double size, int64_t l, int64_t r, int64_t u) const {
        const double bound = (sizeof(T) == 4 ? 1e-5 : 1e-13) * (size + std::fabs((double)want));
        if (!(std::fabs((double)(got - want)) <= bound))
            fail_msg(
                "width %d (%d) length %d rows %d activation %d scale %g: %s of layer %d, row %d, unit %d: %.9g, not "
                "%.9g",
                (int)width, (int)hidden, (int)length, (int)rows, activation, scale, what, (int)l, (int)r, (int)u,
                (double)got, (double)want);
    }
    void assert_row(const std::vector<T> &want, const std::vector<T> &got, int64_t r, const char *what) const {
        for (int64_t l = 0; l < length; l++)
            for (int64_t u = 0; u < width; u++) {
                const size_t at = (size_t)((l * rows + r) * room + u);
                if (!(want[at] == got[at])) fail_msg("%s: layer %d, unit %d", what, (int)l, (int)u);
            }
    }
    // Each state is its step's from the one before it. Rounding of u grows by r, and back once more.
    void assert_states() const {
        for (int64_t l = 0; l < length; l++)
            for (int64_t r = 0; r < rows; r++) {
                const given g = into(l, r);
                for (int64_t u = 0; u < width; u++) {
                    long double y = hidden ? (long double)theta[(size_t)(l * layer + second + width * inner + u)]
                                           : act(activation, g.v[(size_t)u]);
                    for (int64_t k = 0; k < hidden; k++) y += weight2(l, k, u) * act(activation, g.v[(size_t)k]);
                    const long double want = scale != 0 ? before(l, r)[u] + (long double)(T)scale * y : y;
                    near("state", z[(size_t)((l * rows + r) * room + u)], want, 1 + (double)g.r, l, r, u);
                }
                assert_true(std::isnan(z[(size_t)((l * rows + r) * room + width)]));  // beside the states
            }
    }
    // Adjoints each from the one behind it; the gradients' sums from the adjoints.
    void assert_adjoints(const std::vector<T> &start_of) const {
        const int64_t w = width;
        std::vector<long double> sums(gradient.size());
        std::vector<double> sizes(gradient.size());
        const auto add = [&](int64_t l, int64_t number, long double part, double size) {
            sums[(size_t)(l * layer + number)] += part;
            sizes[(size_t)(l * layer + number)] += std::fabs((double)part) * size + size - 1;
        };
        for (int64_t l = length - 1; l >= -1; l--)
            for (int64_t r = 0; r < rows; r++) {
                std::vector<long double> want((size_t)w), t((size_t)inner), e, f((size_t)w);  // f: what act gets, or W2
                const T *const behind = l + 1 < length ? &adjoint[(size_t)(((l + 1) * rows + r) * room)] : nullptr;
                const given g = behind ? into(l + 1, r) : given();
                const double size = 1 + (double)(normed ? g.r * g.r : 0);
                for (int64_t u = 0; u < w && behind; u++)
                    f[(size_t)u] = (scale != 0 ? (long double)(T)scale : 1) * behind[u];
                for (int64_t u = 0; u < inner && behind; u++) {
                    long double come = hidden ? 0 : f[(size_t)u];
                    for (int64_t k = 0; k < w && hidden; k++) come += weight2(l + 1, u, k) * f[(size_t)k];
                    t[(size_t)u] = come * act_slope(activation, g.v[(size_t)u]);
                }
                if (behind) e = back(g, l + 1, t);
                for (int64_t j = 0; j < w; j++) {
                    if (l >= 0) want[(size_t)j] = direct[(size_t)((l * rows + r) * room + j)];
                    for (int64_t u = 0; u < inner && behind; u++) want[(size_t)j] += weight(l + 1, j, u) * e[(size_t)u];
                    if (behind && scale != 0) want[(size_t)j] += behind[j];
                    const T got = l >= 0 ? adjoint[(size_t)((l * rows + r) * room + j)] : start[(size_t)(r * room + j)];
                    near("adjoint", got, want[(size_t)j], 1 + size, l, r, j);
                }
                for (int64_t u = 0; u < inner && behind; u++) {
                    for (int64_t k = 0; k < w; k++)
                        add(l + 1, in_out ? k * inner + u : u * w + k, e[(size_t)u] * before(l + 1, r)[k], size);
                    add(l + 1, inner * w + u, e[(size_t)u], size);
                    if (normed) add(l + 1, inner * (w + 1) + u, t[(size_t)u] * g.n[(size_t)u], size);
                    if (normed) add(l + 1, inner * (w + 2) + u, t[(size_t)u], size);
                }
                for (int64_t u = 0; u < w && behind && hidden; u++) {
                    for (int64_t k = 0; k < inner; k++)
                        add(l + 1, second + (in_out ? k * w + u : u * inner + k),
                            f[(size_t)u] * act(activation, g.v[(size_t)k]), size);
                    add(l + 1, second + w * inner + u, f[(size_t)u], size);
                }
            }
        for (size_t n = 0; n < gradient.size(); n++)
            near("gradient", gradient[n], sums[n] + start_of[n], 1 + sizes[n], (int64_t)n / layer, 0,
                 (int64_t)n % layer);
    }
};

// Forward, back, in place every other time, and gradients are the definition's.
template <class T>
void matches(const layers_form &form, uint64_t seed) {
    layers_case<T> c(form);
    c.solve(seed);
    c.assert_states();
    for (const dpcr_device_outcome &o : c.outcome)
        assert_true(o.locked == form.length && o.sweeps == 1 && !o.non_finite && o.residual == 0);
    const std::vector<T> given = c.gradient;
    assert_int_equal(c.run(c.backward(seed % 2 == 1), seed + 1), DPCRI_CUDA_OK);
    c.assert_adjoints(given);
}

// Bytes that a block wants at least, of a row alone.
template <class Way, class T>
int64_t least_room(const dpcri_device_cell &c) {
    layers::problem<T> p = layers::problem_of<T>(c);
    return layers::shape_of<T, 1, Way>(1, 0, &p).shared_bytes;
}

}  // namespace

#endif
