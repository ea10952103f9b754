// SPDX-License-Identifier: MIT
// Activations of cells and layers, and their slopes. Sigmoid, GELU and SiLU are those of kern/nn_activations.inc
// operation by operation, so that their bits are the host's with fma. They are calls: what they take stays out of the
// loops of others. docs/math/cells.md, docs/math/activations.md.
#ifndef DPCRI_CUDA_ACTIVATIONS_H
#define DPCRI_CUDA_ACTIVATIONS_H

#include "kern/cuda/launch.h"
#include "kern/cuda/simt.h"

namespace cells {

SIMT float magnitude(float x) { return x < 0 ? -x : x; }
SIMT double magnitude(double x) { return x < 0 ? -x : x; }
SIMT bool finite(float x) { return magnitude(x) <= 3.40282347e38f; }
SIMT bool finite(double x) { return magnitude(x) <= 1.7976931348623157e308; }

SIMT uint32_t bits_of(float x) {
    union {
        float f;
        uint32_t u;
    } b;
    b.f = x;
    return b.u;
}
SIMT float float_of(uint32_t x) {
    union {
        float f;
        uint32_t u;
    } b;
    b.u = x;
    return b.f;
}
SIMT uint64_t bits_of(double x) {
    union {
        double f;
        uint64_t u;
    } b;
    b.f = x;
    return b.u;
}
SIMT double double_of(uint64_t x) {
    union {
        double f;
        uint64_t u;
    } b;
    b.u = x;
    return b.f;
}

// The rational function of kern/narrow_activations.inc (docs/math/cells.md): 5.2e-7 absolute.
SIMT float tanh_of(float u) {
    u = u > 7.8f ? 7.8f : u < -7.8f ? -7.8f : u;
    const float q = u * u;
    const float n = ((q + 9.87868118f) * (q + 42.9891815f)) * ((u * 46.0594864f) * (q + 202.371078f));
    const float d = ((q + 2.46745563f) * (q + 22.5042305f)) * ((q + 84.2467117f) * (q + 846.173157f));
    return n / d;
}

// tanh|u| = -m / (2 + m), m = e^t - 1, t = -2|u| = n log 2 + r: m = 2^n (e^r - 1) + (2^n - 1).
SIMT double tanh_of(double u) {
    const double size = magnitude(u);
    const double t = -2 * (size > 22 ? 22 : size);  // NaN stays
    const double k = t * 1.4426950408889634 - 0.5;
    const int n = k >= -64 ? (int)k : 0;
    double r = simt::fma(-(double)n, 0.693147180369123816490, t);
    r = simt::fma(-(double)n, 1.90821492927058770002e-10, r);
    double q = 1.0 / 87178291200.0;  // e^r - 1, |r| <= log(2) / 2
    const double inverse[] = {1.0 / 6227020800.0,
                              1.0 / 479001600.0,
                              1.0 / 39916800.0,
                              1.0 / 3628800.0,
                              1.0 / 362880.0,
                              1.0 / 40320.0,
                              1.0 / 5040.0,
                              1.0 / 720.0,
                              1.0 / 120.0,
                              1.0 / 24.0,
                              1.0 / 6.0,
                              0.5,
                              1.0};
    SIMT_UNROLL for (int i = 0; i < 13; i++) q = simt::fma(q, r, inverse[i]);
    q *= r;
    double scale = 1;
    for (int i = 0; i > n; i--) scale *= 0.5;
    const double m = simt::fma(scale, q, scale - 1);
    const double y = -m / (2 + m);
    return u < 0 ? -y : y;
}

// tanh_of, and 1 to the bit where tanh is: a closed gate lets nothing through, however many steps there are.
SIMT float gate_tanh(float u) { return magnitude(u) < 9.0109f || u != u ? tanh_of(u) : u > 0 ? 1.0f : -1.0f; }
SIMT double gate_tanh(double u) { return tanh_of(u); }

// e^y 2^64, or 2^512, from t, whose low bits hold n, and r: e^y = 2^n (1 + q), r = y - n log 2. Times its inverse it is
// rounded once, denormal results included.
SIMT float raised_power(float t, float r) {
    const float c[] = {0.5f, 0.16666576845993976f, 0.04166655443768594f, 0.0083632029715758550f,
                       0.0013926213466332443f};
    float p = c[4];
    SIMT_UNROLL for (int i = 3; i >= 0; i--) p = simt::fma(p, r, c[i]);
    return (1.0f + simt::fma(p, r * r, r)) * float_of((bits_of(t) + 64u + 127u) << 23);
}
SIMT double raised_power(double t, double r) {
    const double c[] = {0.5000000000000001,         0.16666666666666667456,   0.041666666666623991516,
                        0.0083333333333300513464,   0.0013888888917281793308, 0.00019841269863105968748,
                        0.000024801521190217727651, 2.7557268378684192873e-6, 2.7620138719733995569e-7,
                        2.5100424157005066788e-8};
    double p = c[9];
    SIMT_UNROLL for (int i = 8; i >= 0; i--) p = simt::fma(p, r, c[i]);
    return (1.0 + simt::fma(p, r * r, r)) * double_of((bits_of(t) + 512u + 1023u) << 52);
}
// n of that, in t's low bits, and what is left of y without n log 2.
SIMT float turns(float y) { return simt::fma(y, 1.44269504088896340736f, 12582912.0f); }
SIMT double turns(double y) { return simt::fma(y, 1.44269504088896340736, 6755399441055744.0); }
SIMT float without_turns(float y, float t) {
    const float k = t - 12582912.0f;
    return simt::fma(k, 2.12194440e-4f, simt::fma(k, -0.693359375f, y));
}
SIMT double without_turns(double y, double t) {
    const double k = t - 6755399441055744.0;
    return simt::fma(k, -1.90821492927058770002e-10, simt::fma(k, -6.93147180369123816490e-01, y));
}

// e^-|u|, raised
SIMT float fall_end(float) { return 111.0f; }
SIMT double fall_end(double) { return 755.0; }
template <class T>
SIMT T raised_fall(T u) {
    const T size = magnitude(u), end = fall_end(u), y = -(size > end ? end : size), t = turns(y);
    return raised_power(t, without_turns(y, t));
}
SIMT float lowering(float) { return 0x1p-64f; }
SIMT double lowering(double) { return 0x1p-512; }

template <class T>
SIMT_CALLED T sigmoid(T u) {
    const T e = raised_fall(u) * lowering(u), r = T(1) / (T(1) + e);
    return u >= T(0) ? r : e / (T(1) + e);
}
template <class T>
SIMT_CALLED T sigmoid_slope(T u) {
    const T e = raised_fall(u) * lowering(u), r = T(1) / (T(1) + e);
    return e * r * r;
}

// u sigmoid(u); infinities give 0 and infinity.
template <class T>
SIMT_CALLED T silu(T u) {
    const T low = u < T(-1000) ? T(-1000) : u;
    const T raised = raised_fall(u), e = raised * lowering(u), r = T(1) / (T(1) + e);
    return u >= T(0) ? low * r : (low * raised * r) * lowering(u);  // e alone may be denormal already
}
template <class T>
SIMT_CALLED T silu_slope(T u) {
    const T low = u < T(-1000) ? T(-1000) : u, both = low > T(1000) ? T(1000) : low;
    const T e = raised_fall(u) * lowering(u), r = T(1) / (T(1) + e), f = e / (T(1) + e);
    const T s = u >= T(0) ? r : f, other = u >= T(0) ? f : r;  // sigmoid(u), sigmoid(-u)
    return simt::fma(both * other, s, s);
}

// e^(-s^2 / 2), raised, 0 <= s <= 16 or 40: s^2 = a^2 + (s + a)(s - a), whose first part is exact.
SIMT float upper_half(float s) { return float_of(bits_of(s) & ~uint32_t(0) << 12); }
SIMT double upper_half(double s) { return double_of(bits_of(s) & ~uint64_t(0) << 27); }
template <class T>
SIMT T raised_square(T s) {
    const T a = upper_half(s), y = T(-0.5) * (a * a), low = (T(-0.5) * (s + a)) * (s - a), t = turns(y + low);
    return raised_power(t, without_turns(y, t) + low);
}

// Phi(-s) e^(s^2 / 2)
SIMT float normal_tail(float s) {
    const float c[] = {1.980848453f,     -1.075143659f,   0.3049629865f,    0.02139060701f,   -0.04138807402f,
                       0.0004030906951f, 0.006556178232f, 0.0004238276477f, -0.001026707811f, -0.0002941912582f};
    const float i = 1.0f / (s + 3.0f), q = (s - 3.0f) * i;
    float h = c[9];
    SIMT_UNROLL for (int k = 8; k >= 0; k--) h = simt::fma(h, q, c[k]);
    return simt::fma(i, h, 0.39894228040143267794f) * i;
}
SIMT double normal_tail(double s) {
    const double c[] = {2.8507428001145505,    -2.0124303356605857,     1.0846688702771405,      -0.4075059934001935,
                        0.07566660572677314,   0.015345093995243947,    -0.01249244493274346,    0.0005541026970020542,
                        0.0016208570725511997, -0.00022790218330689743, -0.00024316743817940096, 3.798909887118102e-5,
                        4.3719054184941255e-5, -3.6399912432879823e-6,  -8.66846362055313e-6,    -4.990614381273207e-7,
                        1.6594725490570724e-6, 4.206202344303782e-7,    -2.4526972350948203e-7,  -1.3618580681450112e-7,
                        9.980818978436138e-9,  2.1708920508481595e-8,   4.437665676032138e-9};
    const double i = 1.0 / (s + 4.0), q = (s - 4.0) * i;
    double h = c[22];
    SIMT_UNROLL for (int k = 21; k >= 0; k--) h = simt::fma(h, q, c[k]);
    return simt::fma(i, h, 0.39894228040143267794) * i;
}

// u Phi(u); beyond -16, or -40, it and its slope are 0.
SIMT float fall_limit(float) { return 16.0f; }
SIMT double fall_limit(double) { return 40.0; }
template <class T>
SIMT T fallen(T u) {
    const T size = magnitude(u), limit = fall_limit(u);
    return size > limit ? limit : size;
}
template <class T>
SIMT_CALLED T gelu(T u) {
    const T s = fallen(u), low = u < -fall_limit(u) ? -fall_limit(u) : u;
    const T raised = raised_square(s), tail = normal_tail(s);
    return u >= T(0) ? low * (T(1) - tail * (raised * lowering(u))) : (low * raised * tail) * lowering(u);
}
template <class T>
SIMT_CALLED T gelu_slope(T u) {
    const T s = fallen(u);
    const T slope = simt::fma(s, T(-0.39894228040143267794), normal_tail(s)) * raised_square(s) * lowering(u);
    return u >= T(0) ? T(1) - slope : slope;
}

template <class T>
SIMT T value(int activation, T u) {
    switch (activation) {
        case DPCRI_CUDA_IDENTITY: return u;
        case DPCRI_CUDA_RELU: return u <= 0 ? T(0) : u;
        case DPCRI_CUDA_TANH: return tanh_of(u);
        case DPCRI_CUDA_GELU: return gelu(u);
        case DPCRI_CUDA_SILU: return silu(u);
        default: return sigmoid(u);
    }
}

// Whether y = act(u) tells act'(u); sigmoid's less well where y is near 1.
SIMT_BOTH bool told_by_value(int activation) { return activation != DPCRI_CUDA_GELU && activation != DPCRI_CUDA_SILU; }

// act'(u) from y = act(u), where that tells it
template <class T>
SIMT T slope_of_value(int activation, T y) {
    switch (activation) {
        case DPCRI_CUDA_IDENTITY: return T(1);
        case DPCRI_CUDA_RELU: return y <= 0 ? T(0) : T(1);
        case DPCRI_CUDA_TANH: return simt::fma(-y, y, T(1));
        default: return simt::fma(-y, y, y);
    }
}

// act'(u), y = act(u)
template <class T>
SIMT T slope(int activation, T u, T y) {
    switch (activation) {
        case DPCRI_CUDA_GELU: return gelu_slope(u);
        case DPCRI_CUDA_SILU: return silu_slope(u);
        case DPCRI_CUDA_SIGMOID: return sigmoid_slope(u);
        default: return slope_of_value(activation, y);
    }
}
template <class T>
SIMT T slope(int activation, T u) {
    return slope(activation, u, activation == DPCRI_CUDA_TANH ? tanh_of(u) : u);
}

}  // namespace cells

#endif
