// SPDX-License-Identifier: MIT
// Recursive linear filters: the sosfilt and lfilter of SciPy, for long signals in stretches that run side by side.
//
// A filter is a cascade of sections in transposed direct form II, each with the states z_0 .. z_{p-1}:
//   y = b_0 x + z_0;   z_i' = b_{i+1} x + z_{i+1} - a_{i+1} y   (z_p = 0)
// It is a linear chain with one A for all steps: stretches start from their neighbours' states, which follow from
// powers of A. Derivation: docs/math/filter.md.
#ifndef DEEPPCR_FILTER_H
#define DEEPPCR_FILTER_H

#include "array.h"
#include "context.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dpcr_filter dpcr_filter;

// A cascade of biquads, sos [sections][6] = b0 b1 b2 a0 a1 a2 each, as SciPy designs them; every number finite, a0 not
// 0 (a section is divided by it). Copied. The context must outlive the filter.
DPCR_API dpcr_status dpcr_filter_create_sos(dpcr_context *context, int64_t sections, const double *sos,
                                            dpcr_filter **filter, dpcr_error *error);

// One section from the transfer function (b_0 + b_1 z^-1 ..) / (a_0 + a_1 z^-1 ..): order p = max(nb, na) - 1 of at
// most 128, a_0 not 0. Without feedback (a_1, a_2 .. all 0) nothing is fed back, so what is not finite passes; above
// order 32 only such filters run in stretches.
DPCR_API dpcr_status dpcr_filter_create_ba(dpcr_context *context, int64_t nb, const double *b, int64_t na,
                                           const double *a, dpcr_filter **filter, dpcr_error *error);
DPCR_API void dpcr_filter_destroy(dpcr_filter *filter);

// Sections, and states of each (2 of a biquad).
DPCR_API int64_t dpcr_filter_sections(const dpcr_filter *filter);
DPCR_API int64_t dpcr_filter_order(const dpcr_filter *filter);
// Samples after which a state is forgotten (what is left of it is below 1e-24 of it); 0: never, or only above 2^40, or
// after growing beyond 1e12.
DPCR_API int64_t dpcr_filter_memory(const dpcr_filter *filter);

// Filters B channels of L samples:
//   for b: z = zi[b]; for l in 0..L-1: (y[b][l], z) = the cascade of (x[b][l], z); zf[b] = z
//   x, y [B][L], both float or both double, any strides (the transposed view of [L][B] serves interleaved sound).
//   zi, zf [B][sections][order] of double, the last two dimensions contiguous; NULL: zeros, not wanted; zf may be zi.
//   y shares memory with none of the others (its samples may lie between x's, as in frames), or is refused.
// Float signals are computed in double and rounded once. The result differs from the loop's by rounding of the states
// at the stretches' seams, which are compared, and refined where the filter makes much of it: a channel where stretches
// do not end where the next ones began, which carried on through the signal comes to 1e-10 of the largest state (of
// filters that make more of rounding than that: to more than rounding explains), is run again in order (so is all of a
// filter that grows beyond 1e12 over the length, and what follows a number that is not finite), and has the loop's
// bits. Bits depend neither on the number of threads nor on how many channels go together, but for which NaN a NaN is;
// seams follow from L and the filter alone. Denormal numbers are the caller's choice: workers take on the caller's
// mode. Scratch comes from the context (float signals through more than 16 sections: a channel of doubles, or as many
// as 32 MB hold).
DPCR_API dpcr_status dpcr_filter_execute(const dpcr_filter *filter, const dpcr_array *x, const dpcr_array *zi,
                                         const dpcr_array *y, const dpcr_array *zf, dpcr_error *error);

// The adjoint: gx = (dy/dx)^T gy + (dzf/dx)^T gzf, gzi likewise. Shapes as above: gy for y, gx for x, gzf for zf (NULL:
// zeros), gzi for zi (NULL: not wanted).
DPCR_API dpcr_status dpcr_filter_adjoint(const dpcr_filter *filter, const dpcr_array *gy, const dpcr_array *gzf,
                                         const dpcr_array *gx, const dpcr_array *gzi, dpcr_error *error);

// Gradients of the coefficients besides: adds to gb and ga [sections][order + 1] of double what a loss with the
// gradients gy by y and gzf by zf (NULL: zeros) has by the divided coefficients, at the signals x from zi (NULL:
// zeros), summed over samples and channels in a fixed order; ga's first column, of a_0 = 1, is left as it is. gx and
// gzi as above, written; NULL: not wanted. Computed in double, channel after channel, in scratch of sections + 3
// signals. x and gy are two arrays; gx and gzi share memory with none of the others, but that gzi may be zi or gzf.
DPCR_API dpcr_status dpcr_filter_gradient(const dpcr_filter *filter, const dpcr_array *x, const dpcr_array *zi,
                                          const dpcr_array *gy, const dpcr_array *gzf, double *gb, double *ga,
                                          const dpcr_array *gx, const dpcr_array *gzi, dpcr_error *error);

#ifdef __cplusplus
}
#endif
#endif
