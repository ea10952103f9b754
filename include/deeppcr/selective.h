// SPDX-License-Identifier: MIT
// The selective scan of state-space models (Mamba): D channels with N states each, a diagonal linear chain whose
// transitions are made from the input while it runs, so that nothing of size L D N is ever in memory.
//
//   for batch b, channel d:  h[n] = h0[b][d][n]
//     for l in 0 .. L-1:
//       t = delta[b][d][l] + delta_bias[d];  if softplus: t = log(1 + e^t)
//       for n:  h[n] = e^(t a[d][n]) h[n] + t b[b][g][n][l] u[b][d][l]                 g = d G / D
//       y[b][d][l] = (sum_n c[b][g][n][l] h[n] + skip[d] u[b][d][l]) silu(z[b][d][l])   of c's own G
//     last[b][d][n] = h[n]
//
// Channels lie in the lanes of vectors and go over the context's threads; the length is walked. Bits depend neither on
// the number of threads nor on what else is in the batch. Source: Gu and Dao, arXiv 2312.00752; names are those of
// mamba_ssm's selective_scan_fn, `skip` its D.
#ifndef DEEPPCR_SELECTIVE_H
#define DEEPPCR_SELECTIVE_H

#include "array.h"
#include "context.h"

#ifdef __cplusplus
extern "C" {
#endif

// All of one dtype, float32 or float64, on the host, with any strides (0 shares a value); NULL where that may be.
// Walked fastest where the stride over L or over D is 1; an `a` with a stride of 0 over N (Mamba-2's, whose heads are
// channels that share delta and a) takes one exponential a step instead of N.
typedef struct dpcr_selective {
    size_t size;                   // sizeof(dpcr_selective) of the caller
    const dpcr_array *u, *delta;   // [B][D][L]
    const dpcr_array *a;           // [D][N], N in 1..2^20
    const dpcr_array *b, *c;       // [B][G][N][L], D a multiple of G, which c may have of its own
    const dpcr_array *skip;        // [D]; NULL: 0
    const dpcr_array *z;           // [B][D][L]; NULL: no gate
    const dpcr_array *delta_bias;  // [D]; NULL: 0
    const dpcr_array *h0;          // [B][D][N]; NULL: 0
    int softplus;
} dpcr_selective;

// y [B][D][L] and last [B][D][N] (NULL: not wanted), which must not overlap one another or what goes in. `kept`: NULL,
// or dpcr_selective_kept_bytes of memory aligned to 64 bytes, for dpcr_selective_adjoint.
//
// DPCR_ERROR_ARGUMENT names the array that does not fit and what was wanted, DPCR_ERROR_OVERFLOW sizes, or strides,
// that are beyond memory.
DPCR_API dpcr_status dpcr_selective_scan(dpcr_context *context, const dpcr_selective *in, const dpcr_array *y,
                                         const dpcr_array *last, void *kept, dpcr_error *error);

// Bytes of the states that a pass forward keeps, every 16 steps; 0 where the arrays do not fit together, or where an
// `a` with a stride of 0 over N makes them again as fast as they are read: `kept` is not looked at then.
DPCR_API size_t dpcr_selective_kept_bytes(const dpcr_selective *in);

// Where gradients go, of the shapes of what they belong to; any strides; NULL: not wanted. In those of a, b, c, skip
// and delta_bias a stride of 0 is the sum over its axis, as is due to what shares a value there; those of u, delta, z
// and h0 have none. They must not overlap one another, nor what goes in, gy and glast among it.
typedef struct dpcr_selective_gradients {
    size_t size;  // sizeof(dpcr_selective_gradients) of the caller
    const dpcr_array *u, *delta, *a, *b, *c, *skip, *z, *delta_bias, *h0;
} dpcr_selective_gradients;

// The gradients of a loss that has gy by y, and glast by last (of that alone NULL is 0). `kept` is that of the pass
// forward, or NULL: it is made anew, in scratch. Those of a, skip and delta_bias are summed over the batch, from its
// first entry on, those of b and c over a group's channels, in an order that D and both G fix; then over axes of stride
// 0, in double and by rows. Sums over the steps go by pieces of 256, in the dtype, and over these in double.
DPCR_API dpcr_status dpcr_selective_adjoint(dpcr_context *context, const dpcr_selective *in, const dpcr_array *gy,
                                            const dpcr_array *glast, const void *kept,
                                            const dpcr_selective_gradients *gradients, dpcr_error *error);

#ifdef __cplusplus
}
#endif
#endif
