// SPDX-License-Identifier: MIT
// Networks as chains: an encoder, a chain of L steps of one width, a head. Encoder and head lie outside the chain.
//
//   mlp      z_l = act(norm(W_l z_{l-1} + b_l))
//   resnet   z_l = z_{l-1} + s f_l(z_{l-1}),  s = 1/sqrt(L) unless given, f by `branch`:
//            linear      f = act(norm(W z + b))                       (default, act tanh)
//            two-layer   f = W2 act(norm(W1 z + b1)) + b2             (act ReLU)
// `norm` is absent unless layer_norm is set. The loops, in PyTorch: nn.Linear, nn.LayerNorm and functionals.
#ifndef DEEPPCR_MODEL_H
#define DEEPPCR_MODEL_H

#include "activation.h"
#include "solve.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dpcr_architecture { DPCR_MLP = 1, DPCR_RESNET = 2 } dpcr_architecture;

typedef enum dpcr_branch { DPCR_BRANCH_LINEAR = 0, DPCR_BRANCH_TWO_LAYER = 1 } dpcr_branch;

typedef struct dpcr_model_options {
    size_t size;  // sizeof(dpcr_model_options) of the caller
    dpcr_architecture architecture;
    dpcr_dtype dtype;  // 0: DPCR_F32
    int64_t inputs;    // width of the encoder's input; 0: no encoder
    int64_t outputs;   // classes of the head; 0: no head
    int64_t layers;    // L >= 0
    int64_t width;     // w >= 1
    int64_t hidden;    // width inside the two-layer branch; 0: w
    dpcr_activation activation;
    dpcr_branch branch;  // resnet only
    int layer_norm;
    double scale;   // s of the resnet; 0: 1/sqrt(L)
    uint64_t seed;  // of the initialisation: PyTorch's default, U(-1/sqrt(fan_in), 1/sqrt(fan_in)), counter-based
    int64_t tie;    // T > 0: steps l and l mod T share their parameters (T = 1: all steps one set); 0: each has its own
    int blank;      // non-zero: parameters are left 0, for whoever sets them all; told as 0 afterwards
} dpcr_model_options;

typedef struct dpcr_model dpcr_model;

DPCR_API dpcr_status dpcr_model_create(dpcr_context *context, const dpcr_model_options *options, dpcr_model **model,
                                       dpcr_error *error);
DPCR_API void dpcr_model_destroy(dpcr_model *model);
// The options with every default filled in.
DPCR_API const dpcr_model_options *dpcr_model_get_options(const dpcr_model *model);

// Parameters by PyTorch's names and shapes: "encoder.weight" [w][inputs], "encoder.bias", "layers.{l}.weight" [w][w],
// "layers.{l}.bias", with layer_norm "layers.{l}.norm.weight", ".bias"; two-layer: "layers.{l}.linear1.weight" [h][w],
// ".linear1.bias", ".linear2.weight" [w][h], ".linear2.bias"; "head.weight" [outputs][w], "head.bias".
// The view is into the model's own memory and may be strided (weights lie as [in][out]); it stays valid until destroy.
// `name` (name_bytes at least 64), `parameter`, `gradient` may each be NULL.
DPCR_API int64_t dpcr_model_parameter_count(const dpcr_model *model);
DPCR_API dpcr_status dpcr_model_parameter(const dpcr_model *model, int64_t index, char *name, size_t name_bytes,
                                          dpcr_array *parameter, dpcr_array *gradient, dpcr_error *error);

// All parameters, and all gradients, as one vector each of `count` numbers in the model's dtype, 64-byte aligned, for
// optimisers: the steps one after the other (the order of their parameters above), then encoder, then head. `count` may
// be NULL.
DPCR_API void *dpcr_model_vector(dpcr_model *model, int64_t *count);
DPCR_API void *dpcr_model_gradient_vector(dpcr_model *model);
DPCR_API void dpcr_model_zero_gradients(dpcr_model *model);
// Of a model with tied steps, whose copies all stand in the vectors. Parameters: steps l >= T become copies of l mod T
// (creation and loading leave them so). Gradients: each set's are summed, for l = 0, 1, .. in this order, and the sum
// replaces every copy's, so that an optimiser over the whole vector keeps copies equal; dpcr_train does it before each
// update. Without ties nothing happens.
DPCR_API void dpcr_model_tie_parameters(dpcr_model *model);
DPCR_API void dpcr_model_tie_gradients(dpcr_model *model);
// The sums where the gradients, a vector of the model's form, lie on a device, put into the caller's stream: with the
// host's bits. Of the model only its form is read.
DPCR_API dpcr_status dpcr_model_tie_gradients_enqueue(const dpcr_model *model, const dpcr_array *gradients,
                                                      void *stream, dpcr_error *error);

// Strings that save and load keep with the model, such as the pixels' mean. Both are copied; value NULL removes the
// key. Keys that begin with "deeppcr." are the library's own: DPCR_ERROR_ARGUMENT, as for what is not UTF-8.
DPCR_API dpcr_status dpcr_model_set_metadata(dpcr_model *model, const char *key, const char *value, dpcr_error *error);
// NULL when there is none; the text stays valid until the key is set again or the model destroyed.
DPCR_API const char *dpcr_model_metadata(const dpcr_model *model, const char *key);

// The chain of the L steps for a batch: callbacks over the model, for dpcr_solve_plan_create. Callbacks of one model
// may run at once; parameters must not change meanwhile. `gradient` adds into the model's gradient vector. Work buffers
// lie on the stack; models wider than a few hundred take one allocation a call, and DPCR_ERROR_MEMORY comes back as a
// negative code only where not even one row fits the stack (widths of several thousand). `steps` says its size.
DPCR_API dpcr_status dpcr_model_steps(dpcr_model *model, int64_t batch, dpcr_steps *steps, dpcr_error *error);

// The same chain where the parameters lie on a device: vectors there of the model's form (dpcr_model_vector), for plans
// of that device (option device of dpcr_solve_options). Any width and hidden width that a block of the device holds a
// row of, by newton several, and without layer_norm and two-layer branches.
// dpcr_solve_enqueue_backward adds to `gradients`, or, where that or its data are NULL, makes none; a plan's
// dpcr_solve_plan_workspace is enough for either way. The numbers are the caller's, must outlive the handle and may
// change between solves; of the model only its form is read, now. Of tied steps each has the gradients of its own copy:
// dpcr_model_tie_gradients_enqueue sums them.
typedef struct dpcr_device_model dpcr_device_model;
DPCR_API dpcr_status dpcr_device_model_create(const dpcr_model *model, int64_t batch, const dpcr_array *parameters,
                                              const dpcr_array *gradients, dpcr_device_model **there,
                                              dpcr_error *error);
// Before the context of the model.
DPCR_API void dpcr_device_model_destroy(dpcr_device_model *there);
// The chain, for dpcr_solve_plan_create; the handle must outlive the plan.
DPCR_API dpcr_status dpcr_device_model_steps(const dpcr_device_model *there, dpcr_steps *steps, dpcr_error *error);

// z0 [B][w] = x [B][inputs] W^T + b. Without an encoder: DPCR_ERROR_UNSUPPORTED.
DPCR_API dpcr_status dpcr_model_encode(const dpcr_model *model, const dpcr_array *x, const dpcr_array *z0,
                                       dpcr_error *error);
// Adds the encoder's gradients, given dz0 [B][w].
DPCR_API dpcr_status dpcr_model_encode_backward(dpcr_model *model, const dpcr_array *x, const dpcr_array *dz0,
                                                dpcr_error *error);
// logits [B][outputs] = z [B][w] W^T + b, and back: dz [B][w] is written, the head's gradients are added.
DPCR_API dpcr_status dpcr_model_head(const dpcr_model *model, const dpcr_array *z, const dpcr_array *logits,
                                     dpcr_error *error);
DPCR_API dpcr_status dpcr_model_head_backward(dpcr_model *model, const dpcr_array *z, const dpcr_array *dlogits,
                                              const dpcr_array *dz, dpcr_error *error);

// safetensors with PyTorch's names; the options lie in its metadata, so load needs the file alone. One with a sum, as
// checkpoints have, that is not the file's own is refused (dpcr_tensors_sum_agrees).
DPCR_API dpcr_status dpcr_model_save(const dpcr_model *model, const char *path, dpcr_error *error);
DPCR_API dpcr_status dpcr_model_load(dpcr_context *context, const char *path, dpcr_model **model, dpcr_error *error);

#ifdef __cplusplus
}
#endif
#endif
