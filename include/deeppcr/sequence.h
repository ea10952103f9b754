// SPDX-License-Identifier: MIT
// Sequence models: an embedding or vectors, a recurrent network (recurrent.h), a linear head; their training, with
// checkpoints from which a killed run resumes to the same bits; the likelihood of a long text as one sequence.
//
//   x_t = embedding[symbol_t], or the vector given;   y, hT = network(x)
//   logits = W v + b    v = hT of the last layer (its directions side by side), or the mean of y_t over the sequence's
//                       steps, or, at every step, y_t
#ifndef DEEPPCR_SEQUENCE_H
#define DEEPPCR_SEQUENCE_H

#include "recurrent.h"
#include "train.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dpcr_readout { DPCR_READOUT_LAST = 1, DPCR_READOUT_MEAN, DPCR_READOUT_EACH } dpcr_readout;

// "last", "mean", "each".
DPCR_API const char *dpcr_readout_name(dpcr_readout readout);
DPCR_API dpcr_status dpcr_readout_find(const char *name, dpcr_readout *readout, dpcr_error *error);

typedef struct dpcr_sequence_options {
    size_t size;                     // sizeof(dpcr_sequence_options) of the caller
    dpcr_recurrent_options network;  // its seed is that of all parameters; inputs: numbers a step, of the embedding too
    int64_t symbols;                 // V in 1..256: steps are bytes below V, through an embedding; 0: vectors
    int64_t outputs;                 // C in 1..256 classes
    dpcr_readout readout;
} dpcr_sequence_options;

typedef struct dpcr_sequence dpcr_sequence;

// The embedding starts from N(0, 1), the head from U(-1, 1) / sqrt(its inputs): PyTorch's distributions.
DPCR_API dpcr_status dpcr_sequence_create(dpcr_context *context, const dpcr_sequence_options *options,
                                          dpcr_sequence **model, dpcr_error *error);
DPCR_API void dpcr_sequence_destroy(dpcr_sequence *model);
// The options with every default filled in.
DPCR_API const dpcr_sequence_options *dpcr_sequence_get_options(const dpcr_sequence *model);
// The network inside; the model's.
DPCR_API dpcr_recurrent *dpcr_sequence_network(dpcr_sequence *model);
// Number of parameters in all.
DPCR_API int64_t dpcr_sequence_parameter_count(const dpcr_sequence *model);

// The user's strings, saved with the model: what the symbols or classes are, say. Copied; a key that begins with
// "deeppcr." or "onnx." is refused, and so is what is not UTF-8.
DPCR_API dpcr_status dpcr_sequence_set_metadata(dpcr_sequence *model, const char *key, const char *value,
                                                dpcr_error *error);
// NULL when there is none. Valid until it is set again.
DPCR_API const char *dpcr_sequence_metadata(const dpcr_sequence *model, const char *key);

// safetensors: "embedding.weight" [V][I], the network's parameters by PyTorch's names after "rnn.", "head.weight"
// [C][D H], "head.bias" [C]; the readout and the network's kind as metadata. Load refuses what does not fit together or
// is not finite: DPCR_ERROR_FORMAT naming the tensor.
DPCR_API dpcr_status dpcr_sequence_save(const dpcr_sequence *model, const char *path, dpcr_error *error);
DPCR_API dpcr_status dpcr_sequence_load(dpcr_context *context, const char *path, dpcr_sequence **model,
                                        dpcr_error *error);

// ---- data ----

// Either labelled sequences, for the readouts last and mean, or one text, for the readout each.
typedef struct dpcr_sequence_data {
    size_t size;       // sizeof(dpcr_sequence_data) of the caller
    int64_t count;     // sequences; of a text its symbols
    int64_t longest;   // steps of the longest sequence
    int same_length;   // non-zero: all have `longest` steps
    int64_t features;  // numbers a step, the model's inputs
    uint64_t hash;     // of the sequences, for resuming: they must be the same then; of a text, whose symbols train
                       // hashes itself, of what they stand for
    // Writes the steps [length][features] of sequence `index`, its length (1..longest) and its label. Called at once
    // from several threads; must give the same each time.
    void (*read)(void *user, int64_t index, float *x, int64_t *length, uint8_t *label);
    void *user;
    const uint8_t *text;  // [count] symbols, each below the model's; NULL: labelled sequences
} dpcr_sequence_data;

// ---- training ----

typedef struct dpcr_sequence_train_options {
    size_t size;     // sizeof(dpcr_sequence_train_options) of the caller
    int64_t length;  // of a text: steps between two updates
    double dropout;  // between the network's layers
    // Labelled sequences, readout last, one direction, forward, without dropout and recompute (else refused): states
    // are kept only every so many steps, counted from the end, and the steps between are run again on the way back.
    // Memory for the inputs, `segment` steps and length / segment states; time for one more forward pass. Rounded up to
    // a multiple of the steps that go back at once, so that by the loop, both ways, the bits are those without
    // segments. 0: all steps.
    int64_t segment;
    dpcr_train_options train;  // its size is not read. epochs, batch, optimiser, solve, seed, clip, recompute, ...; the
                               // last field, for it may grow
} dpcr_sequence_train_options;

// Labelled sequences, by cross-entropy; an epoch is count / batch steps over shuffled sequences, what is left of a
// batch waits for another epoch:
//   for epoch: for each batch:  logits = model(x);  loss(logits, labels);  gradients backward, clipped;  optimiser step
// A text: `batch` streams of S = (count - 1) / batch symbols run side by side, an update every `length` steps, S /
// length of them an epoch; each step predicts the next symbol. States are carried from one update to the next,
// gradients are not (truncated back-propagation); an epoch starts from zeros.
//
// The method's and the backward scheme's open choices are made once, over the first batch, for the first chain, and are
// all chains'. In the states that progress gets, images are sequences or symbols. Checkpoints, errors, progress and
// `last` are as dpcr_train has them; a checkpoint holds the carried states too.
//
// train.solve.device: the networks that a recurrent plan of a device takes, with data, parameters, gradients, states
// and the optimiser's state on the device; the host reads loss and accuracy. Segments are not rounded there. All
// sequences are read once, when the run begins, and a label >= outputs is refused then. What is current when, the way
// back, checkpoints that go on elsewhere and memory that the device refuses: as dpcr_train has them. What recompute
// saves is made again there in any case.
DPCR_API dpcr_status dpcr_sequence_train(dpcr_context *context, dpcr_sequence *model, const dpcr_sequence_data *data,
                                         const dpcr_sequence_train_options *options, dpcr_train_state *last,
                                         dpcr_error *error);

// Mean loss and accuracy over labelled sequences, `batch` at a time, and the worst of their solves' reasons (each may
// be NULL); solve NULL: all defaults, DPCR_GUESS_GIVEN: refused. Where the last state is read, of one direction
// forward, a batch whose steps are more than 65536 over all its sequences goes by in pieces of about so many, each from
// the states before it: memory for a batch's inputs and for the states of one piece. solve.device: parameters and
// sequences are sent there, and a batch is one piece. The context's cancel function is asked once a batch.
DPCR_API dpcr_status dpcr_sequence_evaluate(dpcr_context *context, dpcr_sequence *model, const dpcr_sequence_data *data,
                                            int64_t batch, const dpcr_solve_options *solve, double *loss,
                                            double *accuracy, dpcr_reason *reason, dpcr_error *error);

// What dpcr_sequence_likelihood found.
typedef struct dpcr_sequence_likelihood_report {
    size_t size;             // sizeof(dpcr_sequence_likelihood_report) of the caller
    double loss, accuracy;   // mean of -log p(symbol | those before it), natural logarithm; over count - 1 symbols
    double seconds;          // all in all, planning apart
    double network_seconds;  // the network's pass alone; on a device all of the pass
    double plan_seconds;     // on a device what sending text and parameters takes too
    dpcr_method method;      // the first layer's; of a text in stretches the first one's, as all below
    dpcr_reason reason;      // the worst of the layers' and stretches'
    double residual;         // overlap: largest defect of a boundary
    char memory[32];         // dpcr_solve_plan_memory of the first layer, where the planner looked
    int64_t memory_steps;    // steps after which two starts agree; 0: never, or unknown
    double memory_rate;
    char sentence[256];
} dpcr_sequence_likelihood_report;

// The likelihood of a text [count], count >= 2, as one sequence from a zero state, by any method. solve NULL: all
// defaults, DPCR_GUESS_GIVEN: refused. A text of more than 131072 steps goes by in stretches of so many, each from the
// states before it: memory for the states of one. On a device (solve.device) memory for all states and logits at once.
// The context's cancel function is asked once a stretch.
DPCR_API dpcr_status dpcr_sequence_likelihood(dpcr_context *context, dpcr_sequence *model, const uint8_t *text,
                                              int64_t count, const dpcr_solve_options *solve,
                                              dpcr_sequence_likelihood_report *report, dpcr_error *error);

#ifdef __cplusplus
}
#endif
#endif
