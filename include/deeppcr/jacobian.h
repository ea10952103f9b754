// SPDX-License-Identifier: MIT
// Transposed Jacobians of layers in closed form, as dpcr_bppsa takes them: A = (dz_out/dz_in)^T, a row for each input,
// a column for each output. Which entries there can be follows from the architecture; it is planned once, and the
// values are filled for every set of weights or inputs.
//
//   layer       structure   values                                               depend on
//   linear      csr         the weights, without those that are pruned           weights
//   conv2d      csr         W[j][a][ky][kx] for input (a,y,x), output (j,u,v),   weights
//                           ky = (y + p - u s) / d, kx alike, where there is one
//   relu        diagonal    0 where x <= 0, else 1                               inputs
//   max-pool2d  csr         1 where the input is the output's maximum, else 0    inputs
//
// Images are [channels][height][width] as in PyTorch. Values of linear and conv2d are shared by all sequences.
#ifndef DEEPPCR_JACOBIAN_H
#define DEEPPCR_JACOBIAN_H

#include "transition.h"

#ifdef __cplusplus
extern "C" {
#endif

// Pairs are of rows and columns.
typedef struct dpcr_conv2d {
    size_t size;  // sizeof(dpcr_conv2d) of the caller
    int64_t in_channels, out_channels;
    int64_t height, width;  // of the input
    int64_t kernel[2];
    int64_t stride[2];    // 0: 1
    int64_t padding[2];   // with zeros, on either side
    int64_t dilation[2];  // 0: 1
    int64_t groups;       // 0: 1; divides both numbers of channels
} dpcr_conv2d;

typedef struct dpcr_pool2d {
    size_t size;  // sizeof(dpcr_pool2d) of the caller
    int64_t channels, height, width;
    int64_t kernel[2];
    int64_t stride[2];   // 0: the kernel
    int64_t padding[2];  // with -infinity, at most half the kernel
} dpcr_pool2d;

typedef struct dpcr_jacobian dpcr_jacobian;

// z_out = W z_in, W [outputs][inputs]; conv2d: W [out_channels][in_channels / groups][kernel rows][kernel columns].
// `pruned`: weights as they come, contiguous; where they are zero (now: later values there are not looked at) A has no
// entry. NULL: nothing is pruned. Only read by this call.
DPCR_API dpcr_status dpcr_jacobian_linear(dpcr_context *context, int64_t inputs, int64_t outputs,
                                          const dpcr_array *pruned, dpcr_jacobian **jacobian, dpcr_error *error);
DPCR_API dpcr_status dpcr_jacobian_conv2d(dpcr_context *context, const dpcr_conv2d *layer, const dpcr_array *pruned,
                                          dpcr_jacobian **jacobian, dpcr_error *error);
DPCR_API dpcr_status dpcr_jacobian_relu(dpcr_context *context, int64_t width, dpcr_jacobian **jacobian,
                                        dpcr_error *error);
DPCR_API dpcr_status dpcr_jacobian_max_pool2d(dpcr_context *context, const dpcr_pool2d *layer, dpcr_jacobian **jacobian,
                                              dpcr_error *error);
DPCR_API void dpcr_jacobian_destroy(dpcr_jacobian *jacobian);

// A, whose pattern lives as long as the jacobian.
DPCR_API const dpcr_transition *dpcr_jacobian_transition(const dpcr_jacobian *jacobian);
// Non-zero where the values depend on the weights alone.
DPCR_API int dpcr_jacobian_shared(const dpcr_jacobian *jacobian);
// Rows and columns of the images that come out; 1 and the width for linear and relu.
DPCR_API void dpcr_jacobian_output(const dpcr_jacobian *jacobian, int64_t size[2]);

// Fills the values of A, values [1][values] from source = the weights (contiguous, of any shape with as many elements),
// or, for relu and max-pool2d, values [B][values] from source = the inputs [B][inputs]. One dtype. Ties go to the first
// input, row by row, and to the last NaN, as in PyTorch.
DPCR_API dpcr_status dpcr_jacobian_fill(const dpcr_jacobian *jacobian, const dpcr_array *source,
                                        const dpcr_array *values, dpcr_error *error);

// A convolution's g_in = A g_out without A, by dense products: what back-propagation does where nothing is pruned.
//   weights  as above, contiguous     g_out  [B][outputs]     g_in  [B][inputs], written; rows contiguous, one dtype
// One group; float or double. The same bits for any number of threads. Allocates scratch for B (output positions)
// (in_channels kernel + out_channels) numbers and for the weights.
DPCR_API dpcr_status dpcr_conv2d_adjoint(dpcr_context *context, const dpcr_conv2d *layer, const dpcr_array *weights,
                                         const dpcr_array *g_out, const dpcr_array *g_in, dpcr_error *error);
// The same way forward, and the parameters' gradients (written, not added); bias and g_bias [out_channels], or NULL:
//   out = W in + bias        g_weights = sum_b g_out[b] in[b]^T on the weights' places, g_bias = sum_b g_out[b]
//   in  [B][inputs]     out  [B][outputs], written; rows contiguous, one dtype
// Sums over images and positions in order; conditions, bits and scratch as the adjoint's, but gradients take about
// B (output positions) in_channels kernel numbers once more instead of the weights'.
DPCR_API dpcr_status dpcr_conv2d_forward(dpcr_context *context, const dpcr_conv2d *layer, const dpcr_array *weights,
                                         const dpcr_array *bias, const dpcr_array *in, const dpcr_array *out,
                                         dpcr_error *error);
DPCR_API dpcr_status dpcr_conv2d_gradients(dpcr_context *context, const dpcr_conv2d *layer, const dpcr_array *in,
                                           const dpcr_array *g_out, const dpcr_array *g_weights,
                                           const dpcr_array *g_bias, dpcr_error *error);

#ifdef __cplusplus
}
#endif
#endif
