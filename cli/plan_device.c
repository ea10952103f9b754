// SPDX-License-Identifier: MIT
// plan with --device: a network's chain planned on a device, over its parameters and a start that are sent there; with
// auto, whether going there would pay, transfers included.
#include "plan.h"

void cli_plan_there_end(cli_plan_there *t) {
    dpcr_solve_plan_destroy(t->plan);
    dpcr_device_model_destroy(t->chain);
    dpcr_device_release(t->device, t->theta.array.data);
    dpcr_device_release(t->device, t->start.array.data);
    dpcr_stream_destroy(t->device, t->stream);
}

dpcr_status cli_plan_there_make(dpcr_context *context, dpcr_device device, dpcr_model *model, const dpcr_array *start,
                                dpcr_solve_options options, cli_plan_there *t, dpcr_error *error) {
    int64_t count = 0;
    void *const vector = dpcr_model_vector(model, &count);
    const dpcr_array theta = dpcr_array_make(vector, start->dtype, 1, &count);
    *t = (cli_plan_there){.device = device, .steps = {.size = sizeof t->steps}};
    dpcr_status status = dpcr_stream_create(device, &t->stream, error);
    if (status == DPCR_OK) status = cli_send(device, &theta, t->stream, &t->theta, error);
    if (status == DPCR_OK) status = cli_send(device, start, t->stream, &t->start, error);
    if (status == DPCR_OK) status = dpcr_stream_wait(device, t->stream, error);
    if (status == DPCR_OK)
        status = dpcr_device_model_create(model, start->shape[0], &t->theta.array, NULL, &t->chain, error);
    if (status == DPCR_OK) status = dpcr_device_model_steps(t->chain, &t->steps, error);
    options.device = device;
    options.start = &t->start.array;
    if (status == DPCR_OK) status = dpcr_solve_plan_create(context, &t->steps, &options, &t->plan, error);
    return status;
}

// Of the way forward that the plan takes: as it was timed, or, of the host's, as it is predicted. 0: nothing is known.
static double seconds_of(const dpcr_solve_plan *plan) {
    dpcr_candidate c = {.size = sizeof c};
    for (int64_t i = 0; dpcr_solve_plan_candidate(plan, i, &c); i++)
        if (!c.backward && c.method == dpcr_solve_plan_method(plan)) return c.measured > 0 ? c.measured : c.seconds;
    return 0;
}

bool cli_plan_there_pays(const cli_plan_there *t, const dpcr_solve_plan *here) {
    dpcr_device_rates rates = {.size = sizeof rates};
    dpcr_error error = {0};
    if (dpcr_device_measure(t->device, &rates, &error) != DPCR_OK) {
        cli_device_decide("cpu: %.300s", error.text);
        return false;
    }
    const double states = (double)t->steps.length * (double)t->start.bytes;
    const double moved = (double)(t->theta.bytes + t->start.bytes) / rates.to_device + states / rates.to_host;
    const double there = seconds_of(t->plan), own = seconds_of(here);
    if (there <= 0 || own <= 0) {
        cli_device_decide("cpu: what the chain takes %s is not known", there <= 0 ? "on the device" : "here");
        return false;
    }
    const bool pays = there + moved < own;
    cli_device_decide("%s: there %.3g us and %.3g us of transfers, here %.3g us", pays ? "cuda:0" : "cpu", 1e6 * there,
                      1e6 * moved, 1e6 * own);
    return pays;
}
