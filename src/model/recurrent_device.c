// SPDX-License-Identifier: MIT
// Recurrent networks on a device: layer by layer, direction by direction, each put into the stream as the kernels want
// it, and back. What happened to each sequence of each chain lies first in the workspace, forward and then back; next y
// of the layers below the last, by turns, or for training each in its own place, with what dropout leaves of one of
// them, c of every step and the gradients of y by turns; then what a layer's kernels need.
#include <stdio.h>
#include <string.h>

#include "kern/device.h"
#include "model/recurrent_internal.h"
#include "nn/device.h"
#include "rt/dev/device.h"
#include "solve/solve_internal.h"

static dpcri_device_gates gates_of(dpcr_recurrent_kind kind) {
    switch (kind) {
        case DPCR_RNN_RELU: return DPCRI_DEVICE_RNN_RELU;
        case DPCR_GRU: return DPCRI_DEVICE_GRU;
        case DPCR_LSTM: return DPCRI_DEVICE_LSTM;
        case DPCR_PARAGRU: return DPCRI_DEVICE_PARAGRU;
        case DPCR_PARALSTM: return DPCRI_DEVICE_PARALSTM;
        case DPCR_MINGRU: return DPCRI_DEVICE_MINGRU;
        default: return DPCRI_DEVICE_RNN_TANH;
    }
}

// A layer and direction without arrays.
static dpcri_device_recurrent form_of(const dpcr_recurrent_plan *plan, int64_t chain, int backward, int packed,
                                      int parted) {
    const dpcr_recurrent *n = plan->network;
    const dpcr_solve_options *o = &plan->options.solve;
    return (dpcri_device_recurrent){.dtype = n->options.dtype,
                                    .gates = gates_of(n->options.kind),
                                    .length = plan->options.length,
                                    .rows = plan->options.batch,
                                    .inputs = dpcri_recurrent_inputs(n, chain),
                                    .hidden = n->options.hidden,
                                    .projected = n->options.projection,
                                    .clip = n->options.clip,
                                    .coupled = n->options.input_forget,
                                    .reset_before = n->options.reset_before,
                                    .peepholes = n->options.peepholes,
                                    .way = o->method == DPCR_METHOD_NEWTON    ? DPCRI_DEVICE_NEWTON
                                           : o->method == DPCR_METHOD_OVERLAP ? DPCRI_DEVICE_OVERLAP
                                                                              : DPCRI_DEVICE_LOOP,
                                    .chunk = o->chunk,
                                    .warm_up = o->warm_up,
                                    .atol = o->atol,
                                    .rtol = o->rtol,
                                    .max_sweeps = backward ? plan->sweeps_back : o->max_sweeps,
                                    .stop = o->no_fallback,
                                    .share = 1,
                                    .packed = packed,
                                    .parted = parted,
                                    .backward = backward};
}

enum { PAGE = 256 };

typedef struct device_space {
    dpcr_device_outcome *outcomes[2];  // [chains][B]: forward and, training, back
    char *between;                     // y of the layers but the last: `layers` of them, layer after layer by turns
    int64_t layers;
    size_t y_bytes;
    char *dropped;  // training with dropout: y of the layer below the one at work, some numbers dropped; else NULL
    char *kept;     // training, where there is c: that of each chain
    size_t kept_bytes;
    char *outer[2];  // training: gradients of y of the layers but the last, by turns
    char *kernels;
    size_t kernel_bytes, bytes;
} device_space;

// Bytes of T B width numbers, on a page; false: more than memory can number.
static bool bytes_of(const dpcr_recurrent_plan *plan, int64_t width, size_t *bytes) {
    int64_t numbers = 0;
    if (!dpcri_mul(plan->options.length, plan->options.batch, &numbers) ||
        !dpcri_mul(numbers, width * (int64_t)plan->network->element, &numbers) || numbers > INT64_MAX / 8192)
        return false;
    *bytes = ((size_t)numbers + PAGE - 1) / PAGE * PAGE;
    return true;
}

static void *take_bytes(void *workspace, size_t *used, size_t bytes) {
    void *const piece = workspace ? (char *)workspace + *used : NULL;
    *used += bytes;
    return piece;
}

// NULL counts. False: more than memory can number.
static bool carve(const dpcr_recurrent_plan *plan, void *workspace, device_space *space) {
    const dpcr_recurrent *n = plan->network;
    const bool training = plan->options.training != 0, cell = dpcr_recurrent_kind_has_cell(n->options.kind) != 0;
    int64_t outcomes = 0;
    size_t used = 0;
    if (!dpcri_mul(n->chains * plan->options.batch, (int64_t)sizeof(dpcr_device_outcome), &outcomes) ||
        outcomes > INT64_MAX / 8 || !bytes_of(plan, dpcri_recurrent_y(n), &space->y_bytes) ||
        !bytes_of(plan, n->options.hidden, &space->kept_bytes))
        return false;
    const size_t told = ((size_t)outcomes + PAGE - 1) / PAGE * PAGE;
    const int64_t below = n->options.layers - 1;
    space->layers = training || below < 2 ? below : 2;
    space->outcomes[0] = take_bytes(workspace, &used, told);
    space->outcomes[1] = training ? take_bytes(workspace, &used, told) : NULL;
    space->between = take_bytes(workspace, &used, (size_t)space->layers * space->y_bytes);
    space->dropped =
        training && below > 0 && plan->options.dropout > 0 ? take_bytes(workspace, &used, space->y_bytes) : NULL;
    space->kept = training && cell ? take_bytes(workspace, &used, (size_t)n->chains * space->kept_bytes) : NULL;
    for (int i = 0; i < 2; i++)
        space->outer[i] = training && below > 0 ? take_bytes(workspace, &used, space->y_bytes) : NULL;
    space->kernels = take_bytes(workspace, &used, space->kernel_bytes);
    space->bytes = used;
    return true;
}

static bool empty(const dpcr_recurrent_plan *plan) { return plan->options.length == 0 || plan->options.batch == 0; }

static dpcr_status ask_bytes(dpcr_recurrent_plan *plan, dpcr_error *error) {
    const dpcr_device device = plan->options.solve.device;
    const size_t limit = plan->options.solve.memory_limit;
    device_space space = {0};
    if (!carve(plan, NULL, &space))  // before the kernels multiply the same extents
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "recurrent_plan: the workspace does not fit any size");
    for (int64_t c = 0; !empty(plan) && c < plan->network->chains; c++) {
        for (int form = 0; form < 8; form++) {  // both ways, with lengths and without, with resets and without
            const int backward = form & 1, packed = form >> 1 & 1, parted = form >> 2;
            if ((backward && !plan->options.training) || (packed && !plan->options.packed) ||
                (parted && !plan->options.resets))
                continue;
            const dpcri_device_recurrent layer = form_of(plan, c, backward, packed, parted);
            size_t bytes = 0;
            const dpcr_status status = plan->kernels->recurrent_workspace(device.id, &layer, &bytes, error);
            if (status != DPCR_OK) return status;
            space.kernel_bytes = bytes > space.kernel_bytes ? bytes : space.kernel_bytes;
        }
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

// Where W_hh stays on chip: over how many blocks.
static dpcr_status tell_share(dpcr_recurrent_plan *plan, dpcr_error *error) {
    const dpcri_device_recurrent layer = form_of(plan, 0, 0, plan->options.packed, plan->options.resets);
    const size_t used = strlen(plan->sentence);
    int64_t blocks = 0;
    if (empty(plan) || !plan->kernels->recurrent_share) return DPCR_OK;
    const dpcr_status status = plan->kernels->recurrent_share(plan->options.solve.device.id, &layer, &blocks, error);
    if (status == DPCR_OK && blocks > 0)
        snprintf(plan->sentence + used, sizeof plan->sentence - used, "; its weights stay on chip, in %lld block%s",
                 (long long)blocks, blocks == 1 ? "" : "s");
    return status;
}

dpcr_status dpcri_recurrent_plan_device(dpcr_recurrent_plan *plan, dpcr_error *error) {
    dpcr_solve_options *o = &plan->options.solve;
    const dpcr_recurrent *n = plan->network;
    dpcr_device_info info = {.size = sizeof info};
    dpcr_status status = DPCR_OK;
    char where[32];
    DPCR_TRY(dpcri_kernels_of(o->device, "recurrent_plan", &plan->kernels, error));
    DPCR_TRY(dpcr_device_describe(o->device, &info, error));
    DPCR_TRY(dpcri_device_check_options(o, false, error));
    if (o->planning)  // the parameters come later
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                            "recurrent_plan: planning %s on a device, wanted its default",
                            dpcr_planning_name(o->planning)));
    const dpcr_method asked = o->method;
    plan->sweeps_back = o->max_sweeps;
    dpcri_device_defaults(o, n->options.dtype, plan->options.length,
                          plan->options.batch * ((n->options.hidden + 31) / 32), info.processors);
    DPCR_TRY(ask_bytes(plan, error));
    dpcri_device_sentence(asked, o->method, dpcri_device_text(o->device, where, sizeof where), info.name,
                          plan->sentence, sizeof plan->sentence);
    DPCR_TRY(tell_share(plan, error));
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
    const int64_t T = plan->options.length, B = plan->options.batch, H = n->options.hidden, P = dpcri_recurrent_h(n);
    const bool cell = dpcr_recurrent_kind_has_cell(n->options.kind) != 0;
    dpcr_status status = DPCR_OK;
    const bool unplanned = pass->lengths && !plan->options.packed, parted = pass->resets && !plan->options.resets;
    if (unplanned || parted || (!cell && (pass->c0.data || pass->ct.data)))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s", call,
                          unplanned ? "lengths, but the plan is not for them (option packed)"
                          : parted  ? "resets, but the plan is not for them (option resets)"
                                    : "c of what is no LSTM or ParaLSTM");
    DPCR_TRY(dpcri_check_array_on(call, "parameters", parameters, n->options.dtype, plan->options.solve.device, 1,
                                  &n->count, error));
    DPCR_TRY(check_three(plan, call, "x", &pass->x, false, T, B, n->options.inputs, error));
    DPCR_TRY(check_three(plan, call, "y", &pass->y, false, T, B, dpcri_recurrent_y(n), error));
    DPCR_TRY(check_three(plan, call, "h0", &pass->h0, true, n->chains, B, P, error));
    DPCR_TRY(check_three(plan, call, "c0", &pass->c0, true, n->chains, B, H, error));
    DPCR_TRY(check_three(plan, call, "ht", &pass->ht, true, n->chains, B, P, error));
    DPCR_TRY(check_three(plan, call, "ct", &pass->ct, true, n->chains, B, H, error));
    status = dpcri_recurrent_check_apart(call, plan->network, pass, NULL, plan->options.training, error);
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

// The chain's [B][width] of [N][B][width].
static void *rows_of(const dpcr_recurrent_plan *plan, const dpcr_array *array, int64_t chain, int64_t width) {
    const int64_t numbers = chain * plan->options.batch * width;
    return array->data ? (char *)array->data + numbers * (int64_t)plan->network->element : NULL;
}

// The last step of [T][B][row] numbers, from which a chain that runs against time has negative strides.
static void *turn_round(const dpcr_recurrent_plan *plan, bool against, void *from, int64_t row, int64_t *step) {
    *step = plan->options.batch * row;
    if (!against || !from) return from;
    char *const last = (char *)from + (plan->options.length - 1) * *step * (int64_t)plan->network->element;
    *step = -*step;
    return last;
}

static char *between(const device_space *space, int64_t layer) {
    return space->between + (size_t)(layer % space->layers) * space->y_bytes;
}

static dpcri_recurrent_tensor peepholes_of(const dpcr_recurrent *n) {
    return n->options.peepholes ? DPCRI_WEIGHT_CH : DPCRI_PEEPHOLE;
}

// The chain with its arrays.
static dpcri_device_recurrent layer_of(const dpcr_recurrent_plan *plan, const dpcr_array *parameters,
                                       const dpcr_recurrent_pass *pass, const device_space *space, int64_t chain,
                                       int backward) {
    const dpcr_recurrent *n = plan->network;
    const int64_t D = n->directions, layer = chain / D, B = plan->options.batch;
    const int64_t P = dpcri_recurrent_h(n), H = n->options.hidden, outputs = dpcri_recurrent_y(n);
    const int64_t own = chain % D * P * (int64_t)n->element;
    dpcri_device_recurrent form = form_of(plan, chain, backward, pass->lengths != NULL, pass->resets != NULL);
    char *const theta = parameters->data;
    char *x = layer == 0 ? pass->x.data : space->dropped ? space->dropped : between(space, layer - 1);
    char *y = layer + 1 == n->options.layers ? pass->y.data : between(space, layer);
    form.against = chain % D == 1 || n->options.reverse;
    form.x_row = form.inputs;
    form.y_row = outputs;
    form.x = turn_round(plan, form.against, x, form.inputs, &form.x_step);
    form.y = turn_round(plan, form.against, y + own, outputs, &form.y_step);
    form.lengths = pass->lengths;
    form.resets = pass->resets;
    form.kept = space->kept ? space->kept + (size_t)chain * space->kept_bytes : NULL;
    form.w_ih = dpcri_recurrent_at(n, theta, dpcri_recurrent_offset(n, chain, DPCRI_WEIGHT_IH));
    form.w_hh = dpcri_recurrent_at(n, theta, dpcri_recurrent_offset(n, chain, DPCRI_WEIGHT_HH));
    form.b_ih = dpcri_recurrent_at(n, theta, dpcri_recurrent_offset(n, chain, DPCRI_BIAS_IH));
    form.b_hh = dpcri_recurrent_at(n, theta, dpcri_recurrent_offset(n, chain, DPCRI_BIAS_HH));
    form.peephole = dpcri_recurrent_at(n, theta, dpcri_recurrent_offset(n, chain, peepholes_of(n)));
    form.w_hr = dpcri_recurrent_at(n, theta, dpcri_recurrent_offset(n, chain, DPCRI_WEIGHT_HR));
    form.h0 = rows_of(plan, &pass->h0, chain, P);
    form.c0 = rows_of(plan, &pass->c0, chain, H);
    form.ht = rows_of(plan, &pass->ht, chain, P);
    form.ct = rows_of(plan, &pass->ct, chain, H);
    form.outcome = space->outcomes[backward] + chain * B;
    return form;
}

// What both ways begin with: the pass as it is read, and the workspace's pieces.
static dpcr_status begin(const dpcr_recurrent_plan *plan, const char *call, bool backward, const dpcr_array *parameters,
                         const dpcr_recurrent_pass *given, void *workspace, size_t workspace_bytes,
                         dpcr_recurrent_pass *pass, device_space *space, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    *space = (device_space){0};
    DPCR_TRY(check_ready(plan, call, workspace, workspace_bytes, error));
    if (!dpcri_recurrent_take_pass(given, backward, pass))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: a pass with its size set is wanted", call);
    DPCR_TRY(check_pass(plan, call, parameters, pass, error));
    space->kernel_bytes = plan->kernel_bytes;
    carve(plan, workspace, space);
done:
    return status;
}

// Dropout over y of `layer`, or its gradient; nothing where the plan has none.
static dpcr_status drop(const dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass, int64_t layer,
                        const void *from, void *to, void *stream, dpcr_error *error) {
    dpcri_recurrent_mask mask;
    if (!dpcri_recurrent_mask_of(plan, pass, layer, &mask)) return DPCR_OK;
    const dpcri_device_drop d = {.dtype = plan->network->options.dtype,
                                 .length = plan->options.length,
                                 .rows = plan->options.batch,
                                 .width = dpcri_recurrent_y(plan->network),
                                 .seed = mask.seed,
                                 .below = mask.below,
                                 .scale = mask.scale,
                                 .from = from,
                                 .to = to};
    return plan->kernels->drop(plan->options.solve.device.id, &d, stream, error);
}

// What dropout leaves for the layer, going forward, and again going back: it is kept of no layer.
static dpcr_status drop_below(const dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                              const device_space *space, int64_t layer, void *stream, dpcr_error *error) {
    if (layer == 0) return DPCR_OK;
    return drop(plan, pass, layer - 1, between(space, layer - 1), space->dropped, stream, error);
}

static dpcr_status put(const dpcr_recurrent_plan *plan, const dpcri_device_recurrent *layer, const device_space *space,
                       void *stream, dpcr_error *error) {
    return plan->kernels->recurrent(plan->options.solve.device.id, layer, space->kernels, space->kernel_bytes, stream,
                                    error);
}

dpcr_status dpcr_recurrent_enqueue(const dpcr_recurrent_plan *plan, const dpcr_array *parameters,
                                   const dpcr_recurrent_pass *given, void *workspace, size_t workspace_bytes,
                                   void *stream, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcr_recurrent_pass pass;
    device_space space;
    DPCR_TRY(
        begin(plan, "recurrent_enqueue", false, parameters, given, workspace, workspace_bytes, &pass, &space, error));
    const int64_t D = plan->network->directions;
    for (int64_t c = 0; !empty(plan) && c < plan->network->chains; c++) {
        if (c % D == 0) DPCR_TRY(drop_below(plan, &pass, &space, c / D, stream, error));
        const dpcri_device_recurrent layer = layer_of(plan, parameters, &pass, &space, c, 0);
        DPCR_TRY(put(plan, &layer, &space, stream, error));
    }
done:
    return status;
}

// ---- and back ----

static dpcr_status check_gradients(const dpcr_recurrent_plan *plan, const char *call, const dpcr_recurrent_gradients *g,
                                   const dpcr_array *parameters, dpcr_error *error) {
    const dpcr_recurrent *n = plan->network;
    const int64_t T = plan->options.length, B = plan->options.batch, H = n->options.hidden, P = dpcri_recurrent_h(n);
    dpcr_status status = DPCR_OK;
    if (!plan->options.training)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the plan is not for training (option training)", call);
    if (!g || g->size < sizeof *g)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: gradients with their size set are wanted", call);
    if (!dpcr_recurrent_kind_has_cell(n->options.kind) && (g->c0.data || g->ct.data))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: gradients of c0 and ct are of an LSTM or a ParaLSTM; this is %s", call,
                          dpcr_recurrent_kind_name(n->options.kind));
    if (parameters)
        DPCR_TRY(dpcri_check_array_on(call, "parameter_gradients", parameters, n->options.dtype,
                                      plan->options.solve.device, 1, &n->count, error));
    DPCR_TRY(check_three(plan, call, "gradients.y", &g->y, true, T, B, dpcri_recurrent_y(n), error));
    DPCR_TRY(check_three(plan, call, "gradients.x", &g->x, true, T, B, n->options.inputs, error));
    DPCR_TRY(check_three(plan, call, "gradients.ht", &g->ht, true, n->chains, B, P, error));
    DPCR_TRY(check_three(plan, call, "gradients.ct", &g->ct, true, n->chains, B, H, error));
    DPCR_TRY(check_three(plan, call, "gradients.h0", &g->h0, true, n->chains, B, P, error));
    DPCR_TRY(check_three(plan, call, "gradients.c0", &g->c0, true, n->chains, B, H, error));
done:
    return status;
}

// What comes in and goes out of a layer, the gradients. The second direction adds to what the first left for the input.
static void add_gradients(const dpcr_recurrent_plan *plan, const dpcr_recurrent_gradients *g,
                          const dpcr_array *parameters, const device_space *space, int64_t chain,
                          dpcri_device_recurrent *form) {
    const dpcr_recurrent *n = plan->network;
    const int64_t D = n->directions, layer = chain / D, outputs = dpcri_recurrent_y(n);
    const int64_t P = dpcri_recurrent_h(n), H = n->options.hidden, own = chain % D * P * (int64_t)n->element;
    char *const above = layer + 1 == n->options.layers ? g->y.data : space->outer[(layer + 1) % 2];
    char *const below = layer == 0 ? g->x.data : space->outer[layer % 2];
    char *const theta = parameters ? parameters->data : NULL;
    form->dy_row = outputs;
    form->dy = turn_round(plan, form->against, above ? above + own : NULL, outputs, &form->dy_step);
    form->dx_row = form->inputs;
    form->dx = turn_round(plan, form->against, below, form->inputs, &form->dx_step);
    form->dx_adds = chain % D == 1;
    form->dht = rows_of(plan, &g->ht, chain, P);
    form->dct = rows_of(plan, &g->ct, chain, H);
    form->dh0 = rows_of(plan, &g->h0, chain, P);
    form->dc0 = rows_of(plan, &g->c0, chain, H);
    if (!theta) return;
    form->dw_ih = dpcri_recurrent_at(n, theta, dpcri_recurrent_offset(n, chain, DPCRI_WEIGHT_IH));
    form->dw_hh = dpcri_recurrent_at(n, theta, dpcri_recurrent_offset(n, chain, DPCRI_WEIGHT_HH));
    form->db_ih = dpcri_recurrent_at(n, theta, dpcri_recurrent_offset(n, chain, DPCRI_BIAS_IH));
    form->db_hh = dpcri_recurrent_at(n, theta, dpcri_recurrent_offset(n, chain, DPCRI_BIAS_HH));
    form->dw_hr = dpcri_recurrent_at(n, theta, dpcri_recurrent_offset(n, chain, DPCRI_WEIGHT_HR));
    form->dpeephole = dpcri_recurrent_at(n, theta, dpcri_recurrent_offset(n, chain, peepholes_of(n)));
}

dpcr_status dpcr_recurrent_enqueue_backward(const dpcr_recurrent_plan *plan, const dpcr_array *parameters,
                                            const dpcr_recurrent_pass *given, const dpcr_recurrent_gradients *gradients,
                                            const dpcr_array *parameter_gradients, void *workspace,
                                            size_t workspace_bytes, void *stream, dpcr_error *error) {
    static const char *const call = "recurrent_enqueue_backward";
    dpcr_status status = DPCR_OK;
    dpcr_recurrent_pass pass;
    device_space space;
    DPCR_TRY(begin(plan, call, true, parameters, given, workspace, workspace_bytes, &pass, &space, error));
    DPCR_TRY(check_gradients(plan, call, gradients, parameter_gradients, error));
    DPCR_TRY(dpcri_recurrent_check_apart(call, plan->network, &pass, gradients, true, error));
    const int64_t D = plan->network->directions;
    for (int64_t l = plan->network->options.layers - 1; !empty(plan) && l >= 0; l--) {
        void *const outer = space.outer[l % 2];  // of y below
        DPCR_TRY(drop_below(plan, &pass, &space, l, stream, error));
        for (int64_t d = 0; d < D; d++) {
            dpcri_device_recurrent layer = layer_of(plan, parameters, &pass, &space, l * D + d, 1);
            add_gradients(plan, gradients, parameter_gradients, &space, l * D + d, &layer);
            DPCR_TRY(put(plan, &layer, &space, stream, error));
        }
        if (l > 0) DPCR_TRY(drop(plan, &pass, l - 1, outer, outer, stream, error));
    }
done:
    return status;
}

// ---- what happened ----

// The rules of the way back, and how it goes: after newton a scan where units do not mix, which has no tolerance to
// keep, else overlapped chunks.
static dpcr_solve_options options_back(const dpcr_recurrent_plan *plan, dpcr_scheme *scheme) {
    dpcr_solve_options o = plan->options.solve;
    const bool apart = gates_of(plan->network->options.kind) >= DPCRI_DEVICE_PARAGRU;
    const bool scan = o.method == DPCR_METHOD_NEWTON && apart;
    if (o.method == DPCR_METHOD_NEWTON) o.method = DPCR_METHOD_OVERLAP;
    if (scan) o.atol = o.rtol = 0;
    o.no_fallback = 0;
    *scheme = scan                              ? DPCR_SCHEME_CHUNKED
              : o.method == DPCR_METHOD_OVERLAP ? DPCR_SCHEME_OVERLAP
                                                : DPCR_SCHEME_SEQUENTIAL;
    return o;
}

static dpcr_status collect(const dpcr_recurrent_plan *plan, const char *call, int backward, const void *workspace,
                           size_t workspace_bytes, void *stream, dpcr_solve_report *reports, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcr_device_outcome *outcomes = NULL;
    device_space space = {0};
    DPCR_TRY(check_ready(plan, call, workspace, workspace_bytes, error));
    DPCR_TRY(dpcri_check_reports(call, reports, plan->network->chains, error));
    if (backward && !plan->options.training)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the plan is not for training (option training)", call);
    const double start = dpcri_seconds();
    const int64_t chains = plan->network->chains, batch = plan->options.batch;
    const dpcr_device device = plan->options.solve.device, host = {.type = DPCR_HOST};
    const size_t bytes = (size_t)(chains * batch) * sizeof *outcomes;
    outcomes = dpcri_alloc_zero(plan->context, bytes + 1);
    if (!outcomes) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: no memory for %zu bytes", call, bytes));
    carve(plan, (void *)(uintptr_t)workspace, &space);
    if (!empty(plan))
        DPCR_TRY(dpcr_device_copy(host, outcomes, device, space.outcomes[backward], bytes, stream, error));
    DPCR_TRY(dpcr_stream_wait(device, stream, error));
    for (int64_t c = 0; reports && c < chains; c++) {
        dpcr_solve_report own = {.size = sizeof own}, *report = dpcri_report_at(reports, c);
        dpcr_scheme scheme = DPCR_SCHEME_AUTO;
        const dpcr_solve_options options = backward ? options_back(plan, &scheme) : plan->options.solve;
        DPCRI_COPY_IN(own, report);
        dpcri_device_report(&options, plan->options.length, batch, outcomes + c * batch, &own);
        if (backward) own.scheme = scheme;
        own.method = plan->options.solve.method;
        own.sentence = plan->sentence;
        own.bytes = plan->device_bytes;
        own.seconds = dpcri_seconds() - start;
        dpcri_copy_out(report, &own, sizeof own);
    }
done:
    if (plan) dpcri_free(plan->context, outcomes);
    return status;
}

dpcr_status dpcr_recurrent_collect(const dpcr_recurrent_plan *plan, const void *workspace, size_t workspace_bytes,
                                   void *stream, dpcr_solve_report *reports, dpcr_error *error) {
    return collect(plan, "recurrent_collect", 0, workspace, workspace_bytes, stream, reports, error);
}

dpcr_status dpcr_recurrent_collect_backward(const dpcr_recurrent_plan *plan, const void *workspace,
                                            size_t workspace_bytes, void *stream, dpcr_solve_report *reports,
                                            dpcr_error *error) {
    return collect(plan, "recurrent_collect_backward", 1, workspace, workspace_bytes, stream, reports, error);
}
