// SPDX-License-Identifier: MIT
// The inside of a chain plan, for execute and the derivatives.
#ifndef DPCRI_CHAIN_PLAN_H
#define DPCRI_CHAIN_PLAN_H

#include "chain/auto.h"
#include "chain/chain_internal.h"
#include "transition/transition_internal.h"

enum { DPCRI_CHAIN_TRIALS = 16 };

struct dpcr_chain_plan {
    dpcr_context *context;
    dpcr_chain_shape shape;
    dpcr_chain_options options;  // every field set, the scheme chosen
    int64_t values;
    dpcri_chain_place place;  // as the context was told when the plan was made; not of a device
    bool may_overlap;  // the scheme was chosen, not asked for: chunks of the loop side by side where the data forget
    bool fused[2];     // chunks that were chosen pay by their fused kernels alone [of one transition for all steps]
    size_t workspace;
    char sentence[256];
    dpcr_chain_candidate timed[DPCRI_CHAIN_TRIALS];  // by MEASURE, the chosen one first
    int64_t timed_count;
    const struct dpcri_device_table *table;  // of the device in options; NULL: the host
    void *pattern;                           // csr's, on the device: offsets, columns and, transposed, places
};

// device.c: is the plan one of a device? Checks the device and what its kernels serve, and sets table, workspace,
// scheme and sentence.
bool dpcri_plan_on_device(const dpcr_chain_options *options);
dpcr_status dpcri_plan_device(dpcr_chain_plan *plan, dpcr_error *error);

// device_pattern.c: sends the pattern of a csr chain to the plan's device, and gives its memory back.
dpcr_status dpcri_plan_pattern(dpcr_chain_plan *plan, dpcr_error *error);
void dpcri_plan_pattern_release(dpcr_chain_plan *plan);

// The plan's options for a chain's arrays: the loop in the place of chunks whose fused kernels the strides keep out.
dpcr_chain_options dpcri_plan_options(const dpcr_chain_plan *plan, const dpcri_linear *chain);

// What every execute checks of its plan and workspace.
dpcr_status dpcri_plan_ready(const dpcr_chain_plan *plan, const char *function, const void *workspace, size_t bytes,
                             dpcr_error *error);

// In place only as a whole: otherwise a state would be written over a right-hand side that is still to be read.
dpcr_status dpcri_check_in_place(const char *function, const dpcri_view *b, const dpcri_view *z, dpcr_error *error);

// What an array of `values` a step and sequence has to be in this plan; steps < 0 for [B][values].
dpcri_wanted dpcri_plan_wants(const dpcr_chain_plan *plan, const char *function, const char *name, int64_t steps,
                              int64_t values);

// A watch over the plan's work, NULL where it is soon done; and what a call says at its end.
dpcri_watch *dpcri_plan_watch(const dpcr_chain_plan *plan, dpcri_watch *watch);
dpcr_status dpcri_plan_finished(dpcri_watch *watch, const char *function, dpcr_error *error);

// As dpcr_chain_execute, but where that refuses, as states are lost in place, it sets *lost alone.
dpcr_status dpcri_plan_execute(const dpcr_chain_plan *plan, const dpcr_array *a, const dpcr_array *b,
                               const dpcr_array *z0, const dpcr_array *z, void *workspace, size_t workspace_bytes,
                               dpcr_chain_report *report, bool *lost, dpcr_error *error);

// Says that a chain in place, states z where the right-hand side b was, has lost states (dpcri_linear.lost).
dpcr_status dpcri_fail_lost(const char *function, const char *z, const char *b, dpcr_error *error);

// The chain of the plan with transitions `a` and no other array.
dpcri_linear dpcri_plan_linear(const dpcr_chain_plan *plan, const dpcri_view *a, int transposed);

#endif
