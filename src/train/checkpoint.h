// SPDX-License-Identifier: MIT
// Checkpoints of a training run: the model's own file plus
//   tensors   optimiser.first, optimiser.second   [count], in the order of the model's vector (dpcr_model_vector); a
//             sequence model has them of its ends too, and the carried states
//   strings   deeppcr.train.*: what must agree on resume, what the planner chose, and the position
// dpcr_model_load ignores both, so a checkpoint is a model too. Numbers are written so that they come back bit for bit.
#ifndef DPCRI_TRAIN_CHECKPOINT_H
#define DPCRI_TRAIN_CHECKPOINT_H

#include "train/batches.h"
#include "train/optimiser.h"
#include "train/pass.h"

#define DPCRI_TRAIN_PREFIX "deeppcr.train."

enum { DPCRI_STRINGS = 96, DPCRI_KEY_BYTES = 48, DPCRI_VALUE_BYTES = 40 };

// Strings by key, in the order of adding.
typedef struct dpcri_strings {
    int count;
    char keys[DPCRI_STRINGS][DPCRI_KEY_BYTES];
    char values[DPCRI_STRINGS][DPCRI_VALUE_BYTES];
} dpcri_strings;

void dpcri_strings_add(dpcri_strings *strings, const char *key, const char *format, ...) DPCRI_PRINTF(3, 4);
void dpcri_strings_add_number(dpcri_strings *strings, const char *key, double value);

// Where a run stands. After its last step it stays in the last epoch, with all batches done.
typedef struct dpcri_position {
    int64_t epoch;          // in progress, from 0
    int64_t batch;          // batches done of it
    int64_t step;           // steps done of the whole run
    int64_t rows, correct;  // over the epoch's batches done
    double loss;            // sum over these rows
} dpcri_position;

// What the calling thread does with denormal numbers, "flush" or "keep"; NULL: the processor has no such mode.
const char *dpcri_denormals(void);
// What must agree on resume: denormals, batch, shuffling, the optimiser's and the solve's options; and the data.
void dpcri_agreement_add_options(dpcri_strings *strings, const dpcr_train_options *options);
void dpcri_agreement_add(dpcri_strings *strings, const dpcri_data_figures *figures, const dpcr_dataset *data,
                         const dpcr_train_options *options);
// What the planner chose for a size of batch, so that a resumed run computes the same whatever it would choose by then.
void dpcri_choices_add(dpcri_strings *strings, int size, const dpcr_solve_plan *plan);
void dpcri_choices_add_options(dpcri_strings *strings, int size, const dpcr_solve_options *chosen);

// What a checkpoint adds to a model's file.
typedef struct dpcri_checkpoint {
    dpcri_strings strings;
    char *keys[DPCRI_STRINGS], *values[DPCRI_STRINGS];
    dpcr_tensor items[8];
    dpcr_tensors extra;
} dpcri_checkpoint;

// `fixed` and the position as strings; then the tensors of an optimiser's state under the names given.
void dpcri_checkpoint_start(dpcri_checkpoint *checkpoint, const dpcri_strings *fixed, const dpcri_position *position);
void dpcri_checkpoint_optimiser(dpcri_checkpoint *checkpoint, const dpcr_optimiser *optimiser, const char *first,
                                const char *second);
// Index of the first number that is not finite; -1: all are.
int64_t dpcri_first_not_finite(dpcr_dtype dtype, const void *vector, int64_t count);
dpcr_status dpcri_refuse_not_finite(const dpcri_position *position, int64_t parameter, dpcr_error *error);
// The model's parameters are finite; else refused.
dpcr_status dpcri_parameters_check(dpcr_model *model, const dpcri_position *position, dpcr_error *error);

// Writes a checkpoint. fixed: the strings above. Refuses parameters that are not finite (DPCR_ERROR_UNSUPPORTED), so
// that the file at `path` keeps the last ones that were.
dpcr_status dpcri_checkpoint_write(const char *path, dpcr_model *model, const dpcr_optimiser *optimiser,
                                   const dpcri_strings *fixed, const dpcri_position *position, dpcr_error *error);

// A checkpoint that was read and found whole.
typedef struct dpcri_saved {
    dpcr_context *context;
    const char *path;
    dpcr_tensors tensors;
    dpcr_model *model;
    dpcri_position position;
} dpcri_saved;

// Reads and checks all that follows from the file alone, `open` without the model in it. *saved is to be freed also
// after a failure.
dpcr_status dpcri_saved_open(dpcri_saved *saved, dpcr_context *context, const char *path, dpcr_error *error);
dpcr_status dpcri_saved_read(dpcri_saved *saved, dpcr_context *context, const char *path, dpcr_error *error);
void dpcri_saved_free(dpcri_saved *saved);
// The model has the checkpoint's options, and every string of `agreement` stands in it alike; some that say nothing
// take what it tells.
dpcr_status dpcri_saved_agrees(const dpcri_saved *saved, const dpcr_model *model, dpcri_strings *agreement,
                               dpcr_error *error);
dpcr_status dpcri_saved_strings_agree(const dpcri_saved *saved, dpcri_strings *agreement, dpcr_error *error);
// Where the checkpoint's string is `value`, so is the agreement's.
void dpcri_saved_keep(const dpcri_saved *saved, const char *key, const char *value, dpcri_strings *agreement);
// Where the checkpoint left solve.`name` ("method" or "backward") open and all choices fell on the loop, who names the
// loop asks for the same run: the agreement's string then is the checkpoint's.
void dpcri_saved_keep_loop(const dpcri_saved *saved, const char *name, dpcri_strings *agreement);
// Fills the planner's part of the options: what the caller left open is what was chosen then.
dpcr_status dpcri_saved_choices(const dpcri_saved *saved, int size, dpcr_solve_options *solve, dpcr_error *error);
// A plan's sentence, made of such options, says that they were asked for: what `asked` leaves open the checkpoint has.
void dpcri_saved_tell(const dpcr_solve_options *asked, bool on_device, char *sentence, size_t bytes);
// The tensors of the optimiser's state are there; then copies them (nothing is changed before all are checked).
dpcr_status dpcri_saved_optimiser(const dpcri_saved *saved, dpcr_optimiser *optimiser, const char *first,
                                  const char *second, dpcr_error *error);
// A tensor of that many numbers of that type, whatever its shape.
dpcr_status dpcri_saved_numbers(const dpcri_saved *saved, const char *name, dpcr_dtype dtype, int64_t count,
                                const dpcr_tensor **tensor, dpcr_error *error);
// Copies the parameters.
void dpcri_saved_parameters(const dpcri_saved *saved, dpcr_model *model);

#endif
