// SPDX-License-Identifier: MIT
// Indices instead of vectors as input: torch.nn.Embedding on plain arrays. V rows of D numbers, row `index` for every
// index.
#ifndef DEEPPCR_EMBEDDING_H
#define DEEPPCR_EMBEDDING_H

#include "array.h"
#include "context.h"

#ifdef __cplusplus
extern "C" {
#endif

// Arrays are contiguous, on the host, all float32 or all float64. padding: PyTorch's padding_idx, a row that counts as
// zero in the beginning and gets no gradient, less than V; negative: none. An index outside 0..V-1: DPCR_ERROR_ARGUMENT
// naming its place, and nothing is written.

// weight [V][D] from N(0, 1), counter-based, number i from (seed, i); row `padding` zero. PyTorch's distribution, not
// its numbers.
DPCR_API dpcr_status dpcr_embedding_initialise(dpcr_context *context, const dpcr_array *weight, uint64_t seed,
                                               int64_t padding, dpcr_error *error);
// for i in 0..count-1: y[i] = weight[indices[i]].  y has count D numbers in any shape that ends in D: [T][B][D], say.
DPCR_API dpcr_status dpcr_embedding_forward(dpcr_context *context, const dpcr_array *weight, const int64_t *indices,
                                            int64_t count, const dpcr_array *y, dpcr_error *error);
// for i in 0..count-1: if indices[i] != padding: dweight[indices[i]] += dy[i].  A row's sum goes by ascending i, so the
// bits do not depend on threads.
DPCR_API dpcr_status dpcr_embedding_backward(dpcr_context *context, const dpcr_array *dy, const int64_t *indices,
                                             int64_t count, int64_t padding, const dpcr_array *dweight,
                                             dpcr_error *error);

#ifdef __cplusplus
}
#endif
#endif
