// SPDX-License-Identifier: MIT
// Numbers of twice a double's digits, value + rest: sums and products with what rounding takes from them. A dot product
// of them is as if it were formed in about 106 bits. Knuth's and Dekker's; Ogita, Rump, Oishi, doi:10.1137/030601818.
#ifndef DPCRI_CHAIN_TWOFOLD_H
#define DPCRI_CHAIN_TWOFOLD_H

#include <math.h>

typedef struct dpcri_twofold {
    double value, rest;
} dpcri_twofold;

// a + b = sum + rest
static inline double dpcri_two_sum(double a, double b, double *rest) {
    const double sum = a + b, from_b = sum - a;
    *rest = (a - (sum - from_b)) + (b - from_b);
    return sum;
}

// a b = product + rest, where nothing leaves the range (a and b up to 1e300).
static inline double dpcri_two_product(double a, double b, double *rest) {
    const double product = a * b;
#ifdef FP_FAST_FMA
    *rest = fma(a, b, -product);
#else
    const double halves = 0x1p27 + 1;  // 26 bits and 26: products of halves are exact
    const double a_at = halves * a, b_at = halves * b;
    const double a_high = a_at - (a_at - a), b_high = b_at - (b_at - b), a_low = a - a_high, b_low = b - b_high;
    *rest = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low;
#endif
    return product;
}

// sum + x y; the sum's value stays rounded from nothing but values, until it is settled.
static inline void dpcri_twofold_add(double *sum, double *sum_rest, double x, double x_rest, double y, double y_rest) {
    double off, lost;
    const double product = dpcri_two_product(x, y, &off);
    *sum = dpcri_two_sum(*sum, product, &lost);
    *sum_rest += lost + (off + (x * y_rest + x_rest * y));
}

// The same number, its value the nearest double.
static inline void dpcri_twofold_settle(double *sum, double *rest) {
    const double value = *sum + *rest;
    *rest -= value - *sum;
    *sum = value;
}

#endif
