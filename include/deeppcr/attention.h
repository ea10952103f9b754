// SPDX-License-Identifier: MIT
// Linear attention whose state is a matrix: the delta rule (DeltaNet), gated (Gated DeltaNet, Kimi Delta Attention) or
// not, gated linear attention, retention and plain linear attention. H heads of states [K][V]:
//
//   for batch b, head h, with g = h G / H:  S = s0[b][h]
//     for l in 0 .. L-1:
//       S = diag(e^g[b][l][h]) S                                one decay, or one for each of the K rows
//       u = beta[b][l][h] (v[b][l][h] - S^T k[b][l][g])         without beta: u = v[b][l][h]
//       S = S + k[b][l][g] u^T
//       o[b][l][h] = scale S^T q[b][l][g]
//     last[b][h] = S
//
// The length is walked by chunks of 16 steps: what a chunk's steps do to one another is a triangular system, what the
// state does to them and they to it products of matrices. So the products q.k and k.k of a chunk's steps, and those of
// decays with k, have to be in the dtype's range, also where the loop above, in its order, would not meet them. Heads
// and, forward, columns go over the context's threads. Bits depend neither on the number of threads nor on what else is
// in the batch. Sources: Katharopoulos et al., arXiv 2006.16236; Yang et al., arXiv 2312.06635, 2406.06484 and
// 2412.06464.
#ifndef DEEPPCR_ATTENTION_H
#define DEEPPCR_ATTENTION_H

#include "array.h"
#include "context.h"

#ifdef __cplusplus
extern "C" {
#endif

// All of one dtype, float32 or float64, on the host, with any strides (0 shares a value); NULL where that may be.
// Walked fastest where the stride over K or V is 1.
typedef struct dpcr_attention {
    size_t size;              // sizeof(dpcr_attention) of the caller
    const dpcr_array *q, *k;  // [B][L][G][K], K in 1..2^20
    const dpcr_array *v;      // [B][L][H][V], H a multiple of G, V in 1..2^20
    const dpcr_array *g;      // [B][L][H] or [B][L][H][K], logarithms of decays, at most 0; NULL: none. Below -87.33
                              // (float64: -708) e^g is 0, and what is finite is forgotten; digits of it are lost where
                              // those of up to 16 steps sum to less. Growth is taken where it
                              // stays finite over any 16 steps by itself; from 88.38 (709.4) on e^g is infinite
    const dpcr_array *beta;   // [B][L][H]; NULL: nothing is taken out of the state
    const dpcr_array *s0;     // [B][H][K][V]; NULL: 0
    double scale;             // finite, as a number of that dtype
} dpcr_attention;

// o [B][L][H][V] and last [B][H][K][V] (NULL: not wanted), which must not overlap one another or what goes in, but that
// last may be s0: a state that goes on, step by step or piece by piece, stays where it is. `kept`: NULL, or
// dpcr_attention_kept_bytes of memory aligned to 64 bytes, for dpcr_attention_adjoint.
//
// After an error of running, a request to stop among them, what was to be written holds anything: s0 too, if it is
// last. DPCR_ERROR_ARGUMENT names the array that does not fit and what was wanted, DPCR_ERROR_OVERFLOW sizes, or
// strides, that are beyond memory.
DPCR_API dpcr_status dpcr_attention_scan(dpcr_context *context, const dpcr_attention *in, const dpcr_array *o,
                                         const dpcr_array *last, void *kept, dpcr_error *error);

// Bytes of the states that a pass forward keeps, every 128 steps; 0 where the arrays do not fit together.
DPCR_API size_t dpcr_attention_kept_bytes(const dpcr_attention *in);

// Where gradients go, of the shapes of what they belong to; written, any strides but 0; NULL: not wanted. They must not
// overlap one another, nor what goes in, go and glast among it.
typedef struct dpcr_attention_gradients {
    size_t size;  // sizeof(dpcr_attention_gradients) of the caller
    const dpcr_array *q, *k, *v, *g, *beta, *s0;
} dpcr_attention_gradients;

// The gradients of a loss that has go by o, and glast by last (of that alone NULL is 0). `kept` is that of the pass
// forward, or NULL: it is made anew, in scratch. Those of q and k are summed over a group's heads, in an order that H
// and G fix.
DPCR_API dpcr_status dpcr_attention_adjoint(dpcr_context *context, const dpcr_attention *in, const dpcr_array *go,
                                            const dpcr_array *glast, const void *kept,
                                            const dpcr_attention_gradients *gradients, dpcr_error *error);

#ifdef __cplusplus
}
#endif
#endif
