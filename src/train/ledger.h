// SPDX-License-Identifier: MIT
// The books of a training run, by one process or by several workers in steps of the loop: options, position,
// checkpoints, and what the caller is told. All workers read it; the one that reports writes below the line.
#ifndef DPCRI_TRAIN_LEDGER_H
#define DPCRI_TRAIN_LEDGER_H

#include "train/checkpoint.h"

// ---- what every loop over epochs and batches does with its position ----

// The checkpoint's position is one of a run of so many epochs of so many batches.
dpcr_status dpcri_position_check(const char *call, const dpcri_saved *saved, int64_t epochs, int64_t batches,
                                 dpcr_error *error);
// Fills what follows from the position; `count`: rows of an epoch, `rows`: those of the call that began then.
void dpcri_position_describe(const dpcri_position *position, int64_t epochs, int64_t batches, int64_t count,
                             int64_t rows, double began, dpcr_train_state *state);
// DPCR_ERROR_UNSUPPORTED for a loss that is not finite, of step `step`.
dpcr_status dpcri_position_refuse_loss(const char *call, const dpcri_position *position, int64_t step, double loss,
                                       const dpcr_optimiser_options *optimiser, dpcr_error *error);
// DPCR_ERROR_CANCELLED, with the file to go on from (NULL: none) and, where it is an earlier one, the step it holds.
dpcr_status dpcri_position_stopped(const dpcri_position *position, int64_t steps, const char *save, int64_t saved,
                                   dpcr_error *error);
// The run goes on in the same file, which holds its checkpoint already.
bool dpcri_goes_on_in_place(const dpcr_train_options *options);

// What comes after a step, as a sum. DPCRI_STOP alone: the caller could take no note of the step, which is done again.
typedef enum dpcri_decision { DPCRI_GO_ON = 0, DPCRI_SAVE = 1, DPCRI_STOP = 2 } dpcri_decision;
// Of what a progress function returned.
int64_t dpcri_heed(const dpcr_context *context, int answer);

// A run by one process from where the position stands to its last step. A checkpoint is written before the first step,
// when checkpoint_seconds have passed, at the end of an epoch and when somebody asks to stop.
typedef struct dpcri_loop {
    void *run;  // for the functions
    dpcr_context *context;
    const dpcr_train_options *options;  // every default filled in
    dpcri_position *position;
    int *threads;                                       // gets how many the last step ran on
    int64_t batches, steps;                             // an epoch's, and the whole run's
    void (*begin)(void *run, bool first);               // an epoch; `first`: from its first batch, not resumed within
    dpcr_status (*step)(void *run, dpcr_error *error);  // takes the position along
    int64_t (*report)(void *run);                       // as dpcri_heed
    dpcr_status (*save)(void *run, dpcr_error *error);
    // Where nothing is saved of the last step: its parameters are the caller's, and refused if they are not finite.
    dpcr_status (*check)(void *run, dpcr_error *error);
} dpcri_loop;
dpcr_status dpcri_loop_run(const dpcri_loop *loop, dpcr_error *error);

// ---- the books ----

typedef struct dpcri_ledger {
    dpcr_context *context;
    dpcr_model *model;  // the whole one
    const dpcr_dataset *data;
    dpcr_train_options options;  // every default filled in
    int64_t batches;             // an epoch's
    dpcri_normaliser normaliser;
    dpcri_position start;  // where this call begins
    dpcri_saved from;      // the checkpoint gone on from, between read and take
    double mean, deviation;
    bool planned;  // the caller adds its plans' choices to `fixed`; else they are sequential
    // ----
    dpcr_optimiser *optimiser;  // of the whole network: what checkpoints hold
    dpcri_strings fixed;
    dpcri_position position;
    dpcr_train_state state;
    double began, saved;  // when the call, and when the last checkpoint was
    int64_t held;         // the step of that, or of where the call begins
    int64_t images;       // of this call
} dpcri_ledger;

// Copies and checks the options, and that the data fit the model. *ledger is zero before, and to be closed also after a
// failure.
dpcr_status dpcri_ledger_open(dpcri_ledger *ledger, const char *call, dpcr_context *context, dpcr_model *model,
                              const dpcr_dataset *data, const dpcr_train_options *given, dpcr_error *error);
// Measures the data and reads the checkpoint, if one is to be gone on from: `start` is known. Then makes the optimiser
// and changes the model.
dpcr_status dpcri_ledger_read(dpcri_ledger *ledger, dpcr_error *error);
dpcr_status dpcri_ledger_take(dpcri_ledger *ledger, dpcr_error *error);
void dpcri_ledger_close(dpcri_ledger *ledger);
bool dpcri_ledger_ended(const dpcri_ledger *ledger, const dpcri_position *position);

// Refuses the step that ran last, before its update, where its solve was left open or its loss is not finite.
dpcr_status dpcri_ledger_judge(const dpcri_ledger *ledger, const dpcr_solve_report *report, double loss,
                               dpcr_error *error);
// `updates` steps over `rows` rows with this mean loss join the books; a loss that is not finite is refused.
dpcr_status dpcri_ledger_note(dpcri_ledger *ledger, double loss, int64_t correct, int64_t updates, int64_t rows,
                              dpcr_error *error);
// As the loop: `sentence` says why, and may be NULL.
void dpcri_ledger_describe(dpcri_ledger *ledger, const char *sentence);
// As a plan (NULL: of no layers) ran its last step; and what the caller says to it, as dpcri_heed.
void dpcri_ledger_describe_solve(dpcri_ledger *ledger, const dpcr_solve_plan *plan, const dpcr_solve_report *report);
int64_t dpcri_ledger_report(const dpcri_ledger *ledger);

// Reports, and says what comes next: a sum of dpcri_decision.
int64_t dpcri_ledger_decide(dpcri_ledger *ledger, const char *sentence);
// Refuses parameters that are not finite; then writes the model and the optimiser as they stand, where there is a file.
dpcr_status dpcri_ledger_write(dpcri_ledger *ledger, dpcr_error *error);
dpcr_status dpcri_ledger_check(const dpcri_ledger *ledger, dpcr_error *error);  // the first of that
// DPCR_ERROR_CANCELLED in words.
dpcr_status dpcri_ledger_stopped(const dpcri_ledger *ledger, dpcr_error *error);
// Of a run whose parameters are the books' again: those of a step that nothing was saved of are checked, and one that
// was stopped before its last step is DPCR_ERROR_CANCELLED.
dpcr_status dpcri_ledger_end(const dpcri_ledger *ledger, dpcr_error *error);

#endif
