// SPDX-License-Identifier: MIT
// The inside of verb plan: a network's chain on a device.
#ifndef CLI_PLAN_H
#define CLI_PLAN_H

#include "problem.h"
#include "solve.h"

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
