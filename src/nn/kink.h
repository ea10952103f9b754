// SPDX-License-Identifier: MIT
// ReLU's slopes at states that are known to a tolerance: 1 wherever u = W z + b may be above 0 while no |z_j| moves by
// more than slack max(1, |z|). A Jacobian with 0 there would pass on nothing of errors that open the unit.
// docs/math/newton.md, "Beside a kink".
#ifndef DPCRI_NN_KINK_H
#define DPCRI_NN_KINK_H

#include <stddef.h>
#include <stdint.h>

// reach[i] = sum_j |W_ij|, i < out, j < in; W_ij at weight + i out_step + j in_step. element: sizeof float or double.
void dpcri_kink_reach(size_t element, int64_t out, int64_t in, const void *weight, int64_t out_step, int64_t in_step,
                      void *reach);
// What layer norm makes of reach: v_i = gamma_i normal_i + beta_i moves by at most |gamma_i| / deviation times
// reach_i + mean reach + |normal_i| mean (|normal| reach). reciprocal: 1 / deviation, one number.
void dpcri_kink_normed(size_t element, int64_t n, const void *reach, const void *gamma, const void *normal,
                       const void *reciprocal, void *to);
// max(1, |z|) of [n]
double dpcri_kink_size(size_t element, int64_t n, const void *z);
// slope[i] = 1 where u[i] <= 0 and u[i] + far reach[i] > 0, as it is elsewhere.
void dpcri_kink_open(size_t element, int64_t n, const void *u, const void *reach, double far, void *slope);

#endif
