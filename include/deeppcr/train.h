// SPDX-License-Identifier: MIT
// Losses, optimisers, clipping of gradients, and the training loop of a classifier, with checkpoints from which a
// killed run resumes to the same bits.
#ifndef DEEPPCR_TRAIN_H
#define DEEPPCR_TRAIN_H

#include "data.h"
#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- losses: sums in double, in a fixed order ----

// Mean over the rows b of  log sum_j exp(logits[b][j]) - logits[b][labels[b]].
//   logits [B][C], float32 or float64, any strides; B, C >= 1        labels [B]
//   dlogits [B][C] or NULL: the loss's gradient; same dtype; may be logits itself
//   correct or NULL: rows whose first largest logit is the label's; a row whose own loss is NaN is none of them
// Infinite or NaN logits give a loss that is not finite, which is no error here.
// A label >= C: DPCR_ERROR_ARGUMENT naming the row, and nothing is written.
DPCR_API dpcr_status dpcr_loss_cross_entropy(const dpcr_array *logits, const uint8_t *labels, double *loss,
                                             const dpcr_array *dlogits, int64_t *correct, dpcr_error *error);
// Mean over all elements of (y - target)^2. y, target and dy (its gradient, or NULL; may be y or target itself) have
// one shape and dtype, any strides.
DPCR_API dpcr_status dpcr_loss_mean_square(const dpcr_array *y, const dpcr_array *target, double *loss,
                                           const dpcr_array *dy, dpcr_error *error);

// ---- optimisers: the formulas of torch.optim.SGD, Adam, AdamW ----

typedef enum dpcr_optimiser_kind { DPCR_SGD = 1, DPCR_ADAM, DPCR_ADAMW } dpcr_optimiser_kind;

typedef struct dpcr_optimiser_options {
    size_t size;  // sizeof(dpcr_optimiser_options) of the caller
    dpcr_optimiser_kind kind;
    double rate;           // peak learning rate, >= 0
    double momentum;       // SGD; 0: none, and no state
    double beta1, beta2;   // Adam, AdamW: decay of the running means, in [0, 1); 0: 0.9 and 0.999
    double epsilon;        // Adam, AdamW: added to the root; 0: 1e-8
    double weight_decay;   // AdamW: decoupled, p *= 1 - rate weight_decay; SGD, Adam: added to the gradient
    int64_t warm_up;       // steps of linear warm-up: step t uses rate t / warm_up
    int64_t total;         // steps in all, warm-up included: half a cosine down to 0 after it; 0: constant rate.
                           // In dpcr_train_options also -1: all steps of the run
    uint64_t reserved[4];  // 0: room of fields to come, for these options lie within others
} dpcr_optimiser_options;

typedef struct dpcr_optimiser dpcr_optimiser;

// An optimiser of `count` numbers of `dtype` (DPCR_F32 or DPCR_F64), its state zero, which takes memory of the host
// from the first dpcr_optimiser_step or _state on. Options out of range: DPCR_ERROR_ARGUMENT naming the field. The
// context must outlive it.
DPCR_API dpcr_status dpcr_optimiser_create(dpcr_context *context, const dpcr_optimiser_options *options,
                                           dpcr_dtype dtype, int64_t count, dpcr_optimiser **optimiser,
                                           dpcr_error *error);
DPCR_API void dpcr_optimiser_destroy(dpcr_optimiser *optimiser);
// One update of `parameters` from `gradients`, [count] each, contiguous and apart; parallel over fixed blocks: same
// bits for any number of threads (and, as no fma is used, at every instruction set level). One call at a time.
DPCR_API dpcr_status dpcr_optimiser_step(dpcr_optimiser *optimiser, void *parameters, const void *gradients,
                                         dpcr_error *error);
// Learning rate of step t, counted from 1:  rate t / warm_up  up to the warm-up's end, then, with a total,
// rate (1 + cos(pi (t - 1 - warm_up) / (total - warm_up))) / 2; 0 before the first and after the last.
DPCR_API double dpcr_optimiser_rate(const dpcr_optimiser *optimiser, int64_t step);

// For checkpoints of a loop of one's own: the updates done, and views of the running means, which may be written before
// dpcr_optimiser_resume says how many updates they stand for. first: momentum, or Adam's mean of the gradient; second:
// Adam's of its square; [count] of the optimiser's dtype, data NULL where the kind has none. They live as long as it.
DPCR_API int64_t dpcr_optimiser_updates(const dpcr_optimiser *optimiser);
DPCR_API dpcr_status dpcr_optimiser_state(dpcr_optimiser *optimiser, dpcr_array *first, dpcr_array *second,
                                          dpcr_error *error);
DPCR_API dpcr_status dpcr_optimiser_resume(dpcr_optimiser *optimiser, int64_t updates, dpcr_error *error);

// The same update, with the same bits, where everything lies on one device: `parameters`, `gradients`, and the state
// `first` and `second` (or NULL, where the kind has none), which begins as zeros, as dpcr_optimiser_state's, and is the
// caller's. It is put into the stream; `clear` not 0: the gradients are zeros afterwards. Counts as an update: rate and
// corrections are those of now, so a graph that captured it repeats this one.
DPCR_API dpcr_status dpcr_optimiser_enqueue(dpcr_optimiser *optimiser, const dpcr_array *parameters,
                                            const dpcr_array *gradients, const dpcr_array *first,
                                            const dpcr_array *second, int clear, void *stream, dpcr_error *error);

// ---- clipping of gradients: the formulas of torch.nn.utils.clip_grad_norm_ and clip_grad_value_ ----

// Between backward and step. gradients: `arrays` contiguous arrays on the host, float32 or float64, changed in place;
// of a network dpcr_recurrent_gradient_vector as one array, or what there is besides. Same bits for any number of
// threads and at every instruction set level.
//
//   norm = sqrt(sum over all arrays of g^2), in double, in a fixed order
//   c = most / (norm + 1e-6);  if (c < 1) g *= c
//
// most >= 0; INFINITY: nothing is changed, the norm is told. norm may be NULL; it is the one before. A norm that is not
// finite is no error: as in PyTorch the gradients become NaN (or 0, where only the norm overflows).
DPCR_API dpcr_status dpcr_gradients_clip_norm(dpcr_context *context, const dpcr_array *gradients, int64_t arrays,
                                              double most, double *norm, dpcr_error *error);
//   g = -most where g < -most, most where g > most; NaN stays NaN
DPCR_API dpcr_status dpcr_gradients_clip_value(dpcr_context *context, const dpcr_array *gradients, int64_t arrays,
                                               double most, dpcr_error *error);
// The first of them for one vector on a device, with the same bits, into the stream. workspace: DPCR_CLIP_BYTES of its
// memory, 256-byte aligned, whose first double is the norm afterwards.
enum { DPCR_CLIP_BYTES = 4096 };
DPCR_API dpcr_status dpcr_gradients_clip_enqueue(const dpcr_array *gradients, double most, void *workspace,
                                                 size_t workspace_bytes, void *stream, dpcr_error *error);

// ---- training ----

struct dpcr_train_state;

typedef struct dpcr_train_options {
    size_t size;            // sizeof(dpcr_train_options) of the caller
    int64_t epochs, batch;  // >= 1; the last batch of an epoch holds the rows that are left, as PyTorch's loader does
    dpcr_optimiser_options optimiser;  // one step a batch; its size is not read
    dpcr_solve_options solve;   // method, scheme, backward, tolerances; its size is not read. DPCR_GUESS_GIVEN is
                                // refused: the last batch's states are no guess for the next one's. With a device
                                // everything lies there (below)
    uint64_t seed;              // of the shuffling, which depends on it and the epoch alone
    const char *save;           // checkpoint file (safetensors), or NULL: none. Written before the first step (so
                                // an unwritable path shows at once), then as below
    const char *resume;         // checkpoint to go on from, or NULL; may be `save`
    double checkpoint_seconds;  // a step that ends later than this after the last checkpoint writes one; 0: 10 s.
                                // Every epoch's end writes one too
    // Called after every step, the last of an epoch with epoch_ended set; non-zero: write a checkpoint and stop with
    // DPCR_ERROR_CANCELLED if steps are left. The context's cancel function does the same. Negative: stop so without
    // one, as who could take no note of the step wants it: a run that goes on does the step again. That may be the last
    // one: the call gives DPCR_OK then, and the file holds an earlier step. May be NULL.
    int (*progress)(void *user, const struct dpcr_train_state *state);
    void *progress_user;
    double clip;  // norm of all gradients together (of tied steps once) at most, as dpcr_gradients_clip_norm, finite;
                  // 0: any
    // Not 0: less memory for more time, with the same bits, so a checkpoint goes on with and without it. dpcr_train
    // keeps no tape, and the way back makes it again; on a device, by the loop and over layers that are normalised,
    // two-layer or of another width than 1, 2 and 4, the states before every so many layers alone, and the way back
    // runs those between again: about 4 sqrt(L) B w numbers for 4 L B w (the bits up to 512 rows a batch).
    // dpcr_sequence_train: dpcr_recurrent_plan_options. Workers refuse it; pipelines have an option of their own.
    int recompute;
} dpcr_train_options;

// Seconds of this call by phase; on a device all of a step is `forward`.
typedef struct dpcr_train_phases {
    double gather;    // rows picked and normalised
    double encode;    // encoder, forward
    double forward;   // the chain
    double head;      // head forward, loss, head backward
    double backward;  // the chain's adjoint and its parameter gradients
    double encode_backward;
    double update;  // optimiser, gradients cleared
    double checkpoint;
} dpcr_train_phases;

typedef struct dpcr_train_state {
    int64_t epoch, epochs;  // epoch counts from 1
    int64_t step, steps;    // steps done of those of the whole run, those before a resume included
    int epoch_ended;        // non-zero: loss and accuracy below are the whole epoch's
    double loss,
        accuracy;  // means over the epoch's rows so far, each at the parameters of its own step (training data)
    double images_per_second;  // of this call, checkpoints included
    double seconds;            // since this call began
    double seconds_left;       // estimate for the rest of the run
    int64_t sweeps;            // of this step's forward solve
    dpcr_method method;        // that ran this step's forward solve
    dpcr_scheme backward;      // of this step's backward solve; auto: the device's own
    dpcr_reason reason;        // of this step's forward solve
    const char *sentence;      // the planner's, for this batch size; lives until dpcr_train returns
    dpcr_train_phases phases;
    int threads;  // of the context's, that this step ran on: fewer where a trial found that faster (bits stay); 0: not
                  // told
    // Lies where the struct had no field but room before: programs of old headers have it too.
    dpcr_reason backward_reason;  // of this step's backward solve; 0: not told, on a device
} dpcr_train_state;

// Trains a classifier (a model with a head; without an encoder its width must be the number of pixels) by
// cross-entropy:
//   for epoch: for each batch of rows, shuffled:  x = (pixels / 255 - mean) / deviation;  z0 = encoder(x);  z =
//   chain(z0)
//              loss(head(z), labels);  gradients backward, clipped;  optimiser step
// mean and deviation are those of all pixels of `data` and are kept in the model's metadata "pixel_mean" and
// "pixel_deviation" (one number each; a deviation of 0 counts as 1). The model's parameters are updated in place; its
// gradients are zero afterwards. Same model, data, options and plan: same bits, for any number of threads.
//
// A checkpoint holds the model (dpcr_model_load reads it as one), the optimiser's state and the position. Resuming
// reads the parameters from it; a run stopped or killed at any moment and resumed ends with the bits of the
// uninterrupted run, also with DPCR_METHOD_AUTO, whose choices it keeps. What must agree: the model's options, the
// data, batch, seed, clip, the optimiser's and the solve's options (epochs may grow where `total` does not follow from
// them).
//
// solve.device: the layers that dpcr_device_model_create takes, with everything on the device: images,
// labels, parameters, gradients, states and the optimiser's state; the host reads loss and accuracy. The model's
// parameters are then current at an epoch's end, after a checkpoint and at the end, also where a step is refused, but
// not at other calls of `progress` or after DPCR_ERROR_DEVICE. The way back is the device's own, told as auto.
// Checkpoints are the same and may go on elsewhere, with the bits of there, where all options agree that the device
// takes: a processor's with default scheme, guess and window, and with backward auto or sequential (to a device they
// are one, and its checkpoints keep the word); where the method was left open and the device does not serve the
// processor's, it goes on with its own. Memory that the device refuses: DPCR_ERROR_MEMORY, and the model is unchanged.
//
// `last` (may be NULL) gets the state of the last step, also on failure; a run that was complete already: the state at
// its end. Errors besides the arguments' and those of the parts, each in words, the last checkpoint left as it is:
//   DPCR_ERROR_ARGUMENT     the data's pixels do not fit the model's inputs, a label >= its outputs;
//                           on resume: what disagrees
//   DPCR_ERROR_FORMAT       the checkpoint is none, or damaged; neither model nor file is changed
//   DPCR_ERROR_UNSUPPORTED  a solve did not converge and `no_fallback` was set; last->reason tells
//                           also: the loss is no longer finite, where the text names step, loss and rate; or, where an
//                           epoch ends, a checkpoint is due or it stops as asked, a parameter, with `save` or without
//   DPCR_ERROR_CANCELLED    stopped as asked with steps left, after a checkpoint, or where `progress` was negative
//                           without one; with `save` the text names it and, if it is an earlier one, the step it holds
DPCR_API dpcr_status dpcr_train(dpcr_context *context, dpcr_model *model, const dpcr_dataset *data,
                                const dpcr_train_options *options, dpcr_train_state *last, dpcr_error *error);

// Mean loss and accuracy over a data set, `batch` rows at a time, pixels normalised by the model's metadata
// "pixel_mean" and "pixel_deviation" (absent: 0 and 1), and the worst of the batches' reasons; each may be NULL.
// `solve` NULL: all defaults. With one exact method the mean depends on the batch by the rounding of its sum only;
// DPCR_METHOD_AUTO may choose another method for another batch, or for the rows that are left, and then it depends
// within the solve's tolerance. A loss that is not finite is no error. solve.device: parameters and images are sent
// there, as for dpcr_train. The context's cancel function is asked once a batch. Batches by the loop, on the host, go
// in pieces of as many rows as have 32 MB of states, with the same accuracy.
DPCR_API dpcr_status dpcr_evaluate(dpcr_context *context, dpcr_model *model, const dpcr_dataset *data, int64_t batch,
                                   const dpcr_solve_options *solve, double *loss, double *accuracy, dpcr_reason *reason,
                                   dpcr_error *error);

#ifdef __cplusplus
}
#endif
#endif
