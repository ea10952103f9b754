// SPDX-License-Identifier: MIT
// The inside of verb plan: what it was asked for, what is told of every plan, and a file each for linear chains,
// recurrent networks and a network's chain on a device.
#ifndef CLI_PLAN_H
#define CLI_PLAN_H

#include "problem.h"
#include "solve.h"

typedef struct cli_plan {
    cli_common common;
    cli_solver solver;
    cli_network network;
    int64_t length;  // negative: not given
    const char *wisdom;
    bool calibrate;
    dpcr_machine machine;  // what is not this one's
    // Linear chains.
    dpcr_structure structure;
    bool structure_given, transposed;
    const char *transitions;  // a file of A, or NULL
    dpcr_ranks_model ranks;   // ranks 0: one process
    // Recurrent networks.
    dpcr_recurrent_kind kind;  // 0: none
    int64_t inputs;
    bool bidirectional, inference;
    const char *weights, *prefix, *input;
} cli_plan;

// Is the machine another than this one?
bool cli_plan_is_elsewhere(const cli_plan *p);

// ---- what is told ----

// Chain and shape: length, batch, width, dtype.
void cli_plan_set_shape(cli_result *r, const char *chain, int64_t length, int64_t batch, int64_t width,
                        dpcr_dtype dtype);
// A chain's plan: methods, what is known of the chain's memory, the sentence, candidates, and the options that pin it.
void cli_plan_tell_choice(const cli_plan *p, const dpcr_solve_plan *made, cli_result *r);

// ---- linear chains ----

// What a linear chain does not take. Returns the exit code, as all below.
int cli_plan_linear_refuse(const cli_plan *p);
int cli_plan_linear(dpcr_context *context, const cli_plan *p, cli_result *r);

// ---- recurrent networks ----

int cli_plan_recurrent_refuse(const cli_plan *p);
int cli_plan_recurrent(dpcr_context *context, const cli_plan *p, cli_result *r);

// ---- on a device ----

typedef struct cli_plan_there {
    dpcr_device device;
    dpcr_steps steps;
    dpcr_solve_plan *plan;
    dpcr_device_model *chain;
    cli_moved theta, start;
    void *stream;
} cli_plan_there;

// Sends the parameters and the start [B][w] and plans there, by the options; `t` is to be ended in any case.
dpcr_status cli_plan_there_make(dpcr_context *context, dpcr_device device, dpcr_model *model, const dpcr_array *start,
                                dpcr_solve_options options, cli_plan_there *t, dpcr_error *error);
void cli_plan_there_end(cli_plan_there *t);
// Whether the solve and its transfers take less there than `here` says of this machine; told in the report.
bool cli_plan_there_pays(const cli_plan_there *t, const dpcr_solve_plan *here);

#endif
