// SPDX-License-Identifier: MIT
// Recurrent networks on a device: layer by layer, direction by direction, each put into the stream as the kernels want
// it. What happened to each sequence of each chain lies first in the workspace, y of the layers between the ends next,
// by turns, then what a layer's kernels need.
#include <string.h>

#include "kern/device.h"
#include "model/recurrent_internal.h"
#include "nn/device.h"
#include "rt/dev/device.h"
#include "solve/solve_internal.h"

static dpcri_device_gates gates_of(dpcr_recurrent_kind kind) {
    return kind == DPCR_GRU        ? DPCRI_DEVICE_GRU
           : kind == DPCR_LSTM     ? DPCRI_DEVICE_LSTM
           : kind == DPCR_RNN_RELU ? DPCRI_DEVICE_RNN_RELU
                                   : DPCRI_DEVICE_RNN_TANH;
}

static dpcr_status check_network(const dpcr_recurrent_plan *plan, dpcr_error *error) {
    const dpcr_recurrent *n = plan->network;
    const dpcr_recurrent_plan_options *o = &plan->options;
    const char *const kind = dpcr_recurrent_kind_name(n->options.kind);
    if (n->options.kind > DPCR_LSTM || n->cell.varied)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "recurrent_plan: %s%s on a device; rnn, rnn-relu, gru and lstm without variants work there",
                          n->cell.varied ? "a variant of " : "", kind);
    if (o->training || o->packed || o->resets)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "recurrent_plan: %s on a device; passes forward over whole sequences work there",
                          o->training ? "training"
                          : o->packed ? "lengths"
                                      : "resets");
    return DPCR_OK;
}

// A layer and direction without arrays.
static dpcri_device_recurrent form_of(const dpcr_recurrent_plan *plan, int64_t chain) {
    const dpcr_recurrent *n = plan->network;
    const dpcr_solve_options *o = &plan->options.solve;
    return (dpcri_device_recurrent){.dtype = n->options.dtype,
                                    .gates = gates_of(n->options.kind),
                                    .length = plan->options.length,
                                    .rows = plan->options.batch,
                                    .inputs = dpcri_recurrent_inputs(n, chain),
                                    .hidden = n->options.hidden,
                                    .way = o->method == DPCR_METHOD_NEWTON    ? DPCRI_DEVICE_NEWTON
                                           : o->method == DPCR_METHOD_OVERLAP ? DPCRI_DEVICE_OVERLAP
                                                                              : DPCRI_DEVICE_LOOP,
                                    .chunk = o->chunk,
                                    .warm_up = o->warm_up,
                                    .atol = o->atol,
                                    .rtol = o->rtol,
                                    .max_sweeps = o->max_sweeps,
                                    .stop = o->no_fallback};
}

enum { PAGE = 256 };

typedef struct device_space {
    dpcr_device_outcome *outcomes;  // [chains][B]
    char *between[2];               // y of the layers but the last, by turns
    char *kernels;
    size_t kernel_bytes, bytes;
} device_space;

// NULL counts. False: more than memory can number.
static bool carve(const dpcr_recurrent_plan *plan, void *workspace, device_space *space) {
    const dpcr_recurrent *n = plan->network;
    int64_t outcomes = 0, y = 0;
    if (!dpcri_mul(n->chains * plan->options.batch, (int64_t)sizeof(dpcr_device_outcome), &outcomes) ||
        !dpcri_mul(plan->options.length * plan->options.batch, dpcri_recurrent_y(n) * (int64_t)n->element, &y) ||
        outcomes > INT64_MAX / 8 || y > INT64_MAX / 8)
        return false;
    const size_t rounded[2] = {((size_t)outcomes + PAGE - 1) / PAGE * PAGE, ((size_t)y + PAGE - 1) / PAGE * PAGE};
    const int64_t buffers = n->options.layers > 2 ? 2 : n->options.layers - 1;
    char *base = workspace;
    size_t used = rounded[0];
    space->outcomes = workspace;
    for (int64_t i = 0; i < buffers; i++, used += rounded[1]) space->between[i] = base ? base + used : NULL;
    space->kernels = base ? base + used : NULL;
    space->bytes = used + space->kernel_bytes;
    return true;
}

static bool empty(const dpcr_recurrent_plan *plan) { return plan->options.length == 0 || plan->options.batch == 0; }

static dpcr_status ask_bytes(dpcr_recurrent_plan *plan, dpcr_error *error) {
    const dpcr_device device = plan->options.solve.device;
    const size_t limit = plan->options.solve.memory_limit;
    device_space space = {0};
    for (int64_t c = 0; !empty(plan) && c < plan->network->chains; c++) {
        const dpcri_device_recurrent form = form_of(plan, c);
        size_t bytes = 0;
        const dpcr_status status = plan->kernels->recurrent_workspace(device.id, &form, &bytes, error);
        if (status != DPCR_OK) return status;
        space.kernel_bytes = bytes > space.kernel_bytes ? bytes : space.kernel_bytes;
    }
    if (!carve(plan, NULL, &space))
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "recurrent_plan: the workspace does not fit any size");
    plan->kernel_bytes = space.kernel_bytes;
    plan->device_bytes = space.bytes;
    if (limit && space.bytes > limit)
        return dpcri_fail(error, DPCR_ERROR_MEMORY,
                          "recurrent_plan: a workspace of %zu bytes on the device, the limit is %zu", space.bytes,
                          limit);
    return DPCR_OK;
}

dpcr_status dpcri_recurrent_plan_device(dpcr_recurrent_plan *plan, dpcr_error *error) {
    dpcr_solve_options *o = &plan->options.solve;
    const dpcr_recurrent *n = plan->network;
    dpcr_device_info info = {.size = sizeof info};
    dpcr_status status = DPCR_OK;
    char where[32];
    DPCR_TRY(dpcri_kernels_of(o->device, "recurrent_plan", &plan->kernels, error));
    DPCR_TRY(dpcr_device_describe(o->device, &info, error));
    DPCR_TRY(check_network(plan, error));
    DPCR_TRY(dpcri_device_check_options(o, error));
    const dpcr_method asked = o->method;
    dpcri_device_defaults(o, n->options.dtype, plan->options.length,
                          plan->options.batch * ((n->options.hidden + 31) / 32), info.processors);
    DPCR_TRY(ask_bytes(plan, error));
    dpcri_device_sentence(asked, o->method, dpcri_device_text(o->device, where, sizeof where), info.name,
                          plan->sentence, sizeof plan->sentence);
done:
    return status;
}

// ---- running ----

static dpcr_status check_three(const dpcr_recurrent_plan *plan, const char *call, const char *name,
                               const dpcr_array *array, bool optional, int64_t a, int64_t b, int64_t c,
                               dpcr_error *error) {
    if (optional && !array->data) return DPCR_OK;
    const int64_t shape[3] = {a, b, c};
    const dpcr_status status = dpcri_check_array_on(call, name, array, plan->network->options.dtype,
                                                    plan->options.solve.device, 3, shape, error);
    if (status != DPCR_OK || a * b == 0) return status;
    const bool contiguous = (b == 1 || array->strides[1] == c) && (a == 1 || array->strides[0] == b * c);
    return contiguous ? DPCR_OK : dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s is not contiguous", call, name);
}

static dpcr_status check_pass(const dpcr_recurrent_plan *plan, const char *call, const dpcr_array *parameters,
                              const dpcr_recurrent_pass *pass, dpcr_error *error) {
    const dpcr_recurrent *n = plan->network;
    const int64_t T = plan->options.length, B = plan->options.batch, H = n->options.hidden;
    const bool cell = dpcr_recurrent_kind_has_cell(n->options.kind) != 0;
    dpcr_status status = DPCR_OK;
    if (pass->lengths || pass->resets || (!cell && (pass->c0.data || pass->ct.data)))
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: lengths, resets, or c of what is no LSTM", call);
    DPCR_TRY(dpcri_check_array_on(call, "parameters", parameters, n->options.dtype, plan->options.solve.device, 1,
                                  &n->count, error));
    DPCR_TRY(check_three(plan, call, "x", &pass->x, false, T, B, n->options.inputs, error));
    DPCR_TRY(check_three(plan, call, "y", &pass->y, false, T, B, dpcri_recurrent_y(n), error));
    DPCR_TRY(check_three(plan, call, "h0", &pass->h0, true, n->chains, B, H, error));
    DPCR_TRY(check_three(plan, call, "c0", &pass->c0, true, n->chains, B, H, error));
    DPCR_TRY(check_three(plan, call, "ht", &pass->ht, true, n->chains, B, H, error));
    DPCR_TRY(check_three(plan, call, "ct", &pass->ct, true, n->chains, B, H, error));
done:
    return status;
}

static dpcr_status check_ready(const dpcr_recurrent_plan *plan, const char *call, const void *workspace, size_t bytes,
                               dpcr_error *error) {
    if (!plan) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: a plan is wanted", call);
    if (!plan->kernels)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: the plan is of the host, where recurrent_execute runs",
                          call);
    return dpcri_check_device_workspace(call, workspace, bytes, plan->device_bytes, error);
}

static void *row_of(const dpcr_recurrent_plan *plan, const dpcr_array *array, int64_t chain) {
    const int64_t numbers = chain * plan->options.batch * plan->network->options.hidden;
    return array->data ? (char *)array->data + numbers * (int64_t)plan->network->element : NULL;
}

// The chain with its arrays; against time from the last step with negative strides.
static dpcri_device_recurrent layer_of(const dpcr_recurrent_plan *plan, const dpcr_array *parameters,
                                       const dpcr_recurrent_pass *pass, const device_space *space, int64_t chain) {
    const dpcr_recurrent *n = plan->network;
    const int64_t D = n->directions, layer = chain / D, T = plan->options.length, B = plan->options.batch;
    const int64_t outputs = dpcri_recurrent_y(n), element = (int64_t)n->element;
    dpcri_device_recurrent form = form_of(plan, chain);
    char *const theta = parameters->data;
    const char *x = layer == 0 ? pass->x.data : space->between[(layer - 1) % 2];
    char *y = layer + 1 == n->options.layers ? pass->y.data : space->between[layer % 2];
    const bool reverse = chain % D == 1 || n->options.reverse;
    form.x_row = form.inputs;
    form.x_step = B * form.inputs;
    form.y_row = outputs;
    form.y_step = B * outputs;
    y += chain % D * n->options.hidden * element;
    if (reverse) {
        x += (T - 1) * form.x_step * element;
        y += (T - 1) * form.y_step * element;
        form.x_step = -form.x_step;
        form.y_step = -form.y_step;
    }
    form.x = x;
    form.y = y;
    form.w_ih = dpcri_recurrent_at(n, theta, dpcri_recurrent_offset(n, chain, DPCRI_WEIGHT_IH));
    form.w_hh = dpcri_recurrent_at(n, theta, dpcri_recurrent_offset(n, chain, DPCRI_WEIGHT_HH));
    form.b_ih = dpcri_recurrent_at(n, theta, dpcri_recurrent_offset(n, chain, DPCRI_BIAS_IH));
    form.b_hh = dpcri_recurrent_at(n, theta, dpcri_recurrent_offset(n, chain, DPCRI_BIAS_HH));
    form.h0 = row_of(plan, &pass->h0, chain);
    form.c0 = row_of(plan, &pass->c0, chain);
    form.ht = row_of(plan, &pass->ht, chain);
    form.ct = row_of(plan, &pass->ct, chain);
    form.outcome = space->outcomes + chain * B;
    return form;
}

dpcr_status dpcr_recurrent_enqueue(const dpcr_recurrent_plan *plan, const dpcr_array *parameters,
                                   const dpcr_recurrent_pass *given, void *workspace, size_t workspace_bytes,
                                   void *stream, dpcr_error *error) {
    static const char *const call = "recurrent_enqueue";
    dpcr_status status = DPCR_OK;
    dpcr_recurrent_pass pass;
    device_space space = {0};
    DPCR_TRY(check_ready(plan, call, workspace, workspace_bytes, error));
    if (!dpcri_recurrent_take_pass(given, &pass))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: a pass with its size set is wanted", call);
    DPCR_TRY(check_pass(plan, call, parameters, &pass, error));
    if (empty(plan)) return DPCR_OK;
    space.kernel_bytes = plan->kernel_bytes;
    carve(plan, workspace, &space);
    for (int64_t c = 0; c < plan->network->chains; c++) {
        const dpcri_device_recurrent layer = layer_of(plan, parameters, &pass, &space, c);
        DPCR_TRY(plan->kernels->recurrent(plan->options.solve.device.id, &layer, space.kernels, space.kernel_bytes,
                                          stream, error));
    }
done:
    return status;
}

dpcr_status dpcr_recurrent_collect(const dpcr_recurrent_plan *plan, const void *workspace, size_t workspace_bytes,
                                   void *stream, dpcr_solve_report *reports, dpcr_error *error) {
    static const char *const call = "recurrent_collect";
    dpcr_status status = DPCR_OK;
    dpcr_device_outcome *outcomes = NULL;
    DPCR_TRY(check_ready(plan, call, workspace, workspace_bytes, error));
    const double start = dpcri_seconds();
    const int64_t chains = plan->network->chains, batch = plan->options.batch;
    const dpcr_device device = plan->options.solve.device, host = {.type = DPCR_HOST};
    const size_t bytes = (size_t)(chains * batch) * sizeof *outcomes;
    outcomes = dpcri_alloc_zero(plan->context, bytes + 1);
    if (!outcomes) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: no memory for %zu bytes", call, bytes));
    if (!empty(plan)) DPCR_TRY(dpcr_device_copy(host, outcomes, device, workspace, bytes, stream, error));
    DPCR_TRY(dpcr_stream_wait(device, stream, error));
    for (int64_t c = 0; reports && c < chains; c++) {
        dpcr_solve_report own = {.size = sizeof own};
        DPCRI_COPY_IN(own, &reports[c]);
        dpcri_device_report(&plan->options.solve, plan->options.length, batch, outcomes + c * batch, &own);
        own.sentence = plan->sentence;
        own.bytes = plan->device_bytes;
        own.seconds = dpcri_seconds() - start;
        own.size = reports[c].size;
        memcpy(&reports[c], &own, own.size < sizeof own ? own.size : sizeof own);
    }
done:
    if (plan) dpcri_free(plan->context, outcomes);
    return status;
}
