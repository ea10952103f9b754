// SPDX-License-Identifier: MIT
// Running a recurrent network: layer by layer, direction by direction, each chain by its solve plan, over views of the
// caller's arrays where they fit and copies where not (the state of an LSTM, the reverse direction of a packed batch).
#include <stdio.h>
#include <string.h>

#include "model/recurrent_internal.h"
#include "solve/solve_internal.h"

static int64_t hidden_of(const dpcr_recurrent_plan *p) { return dpcri_recurrent_h(p->network); }  // of h
static int64_t state_of(const dpcr_recurrent_plan *p) { return dpcri_recurrent_w(p->network); }
static int64_t outputs_of(const dpcr_recurrent_plan *p) { return dpcri_recurrent_y(p->network); }

void dpcri_recurrent_worst(const dpcr_solve_report *reports, int64_t chains, dpcr_reason *reason, double *residual) {
    if (reason) *reason = reports[0].reason;
    if (residual) *residual = reports[0].residual;
    for (int64_t c = 1; c < chains; c++) {
        if (reason) *reason = dpcr_reason_worse(*reason, reports[c].reason);
        if (residual && reports[c].residual > *residual) *residual = reports[c].residual;
    }
}

// ---- checks ----

dpcr_status dpcri_recurrent_check_array(const dpcr_recurrent_plan *plan, const char *call, const char *name,
                                        const dpcr_array *array, bool optional, const int64_t shape[3],
                                        dpcr_error *error) {
    char got[96], wanted[96];
    const dpcr_array model = dpcr_array_make(NULL, plan->network->options.dtype, 3, shape);
    const bool empty = shape[0] == 0 || shape[1] == 0;
    if (optional && !array->data) return DPCR_OK;
    bool same =
        array->ndim == 3 && array->dtype == model.dtype && array->device.type == DPCR_HOST && (empty || array->data);
    for (int d = 2; same && d >= 0; d--)
        same = array->shape[d] == shape[d] && (empty || shape[d] == 1 || array->strides[d] == model.strides[d]);
    if (same) return DPCR_OK;
    const bool told = array->data || array->ndim;
    const char *where = !told                             ? ""
                        : array->device.type != DPCR_HOST ? " on a device"
                        : !array->data && !empty          ? " at NULL"
                                                          : "";
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s is %s%s, wanted %s, contiguous, on the host", call, name,
                      told ? dpcri_array_text(array, got, sizeof got) : "absent", where,
                      dpcri_array_text(&model, wanted, sizeof wanted));
}

typedef struct range {
    const char *name;
    const void *data;
    uintptr_t bytes;
} range;

// Of a contiguous array of three dimensions, or of none.
static range array_range(const char *name, const dpcr_array *a) {
    uintptr_t bytes = a->data ? dpcr_dtype_size(a->dtype) : 0;
    for (int d = 0; bytes > 0 && d < 3; d++) bytes *= (uintptr_t)a->shape[d];
    return (range){name, a->data, bytes};
}

static bool share_memory(const range *a, const range *b) {
    const uintptr_t x = (uintptr_t)a->data, y = (uintptr_t)b->data;
    return a->bytes > 0 && b->bytes > 0 && (x < y ? y - x < a->bytes : x - y < b->bytes);
}

// The first `read` are read, the others written. in_place: a written state may be the one read, of the same turn.
static dpcr_status check_apart(const char *call, const range *ranges, int read, int count, bool in_place,
                               dpcr_error *error) {
    for (int i = read; i < count; i++)
        for (int k = 0; k < i; k++) {
            const range *to = &ranges[i], *from = &ranges[k];
            const bool own = in_place && k < 2 && k == i - read;
            if (share_memory(to, from) && !(own && to->data == from->data))
                return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                                  "%s: %s is written and shares memory with %s, wanted it %s", call, to->name,
                                  from->name, own ? "elsewhere, or wholly there" : "elsewhere");
        }
    return DPCR_OK;
}

dpcr_status dpcri_recurrent_check_apart(const char *call, const dpcr_recurrent *network, const dpcr_recurrent_pass *p,
                                        const dpcr_recurrent_gradients *g, bool training, dpcr_error *error) {
    const uintptr_t steps = (uintptr_t)p->x.shape[0], rows = (uintptr_t)p->x.shape[1];
    const uintptr_t vector = (uintptr_t)network->count * network->element;
    const range lengths = {"lengths", p->lengths, p->lengths ? rows * sizeof *p->lengths : 0},
                resets = {"resets", p->resets, p->resets ? steps * rows : 0},
                weights = {"the parameters", network->parameters, vector},
                sums = {"the parameters' gradients", network->gradients, vector};
    const range forward[] = {
        array_range("h0", &p->h0), array_range("c0", &p->c0), array_range("x", &p->x), lengths, resets, weights,
        array_range("ht", &p->ht), array_range("ct", &p->ct), array_range("y", &p->y)};
    if (!g) return check_apart(call, forward, 6, 9, !training, error);
    const range back[] = {array_range("h0", &p->h0),
                          array_range("c0", &p->c0),
                          array_range("x", &p->x),
                          array_range("y", &p->y),
                          array_range("gradients.y", &g->y),
                          array_range("gradients.ht", &g->ht),
                          array_range("gradients.ct", &g->ct),
                          lengths,
                          resets,
                          weights,
                          sums,
                          array_range("gradients.x", &g->x),
                          array_range("gradients.h0", &g->h0),
                          array_range("gradients.c0", &g->c0)};
    return check_apart(call, back, 11, 14, false, error);
}

bool dpcri_recurrent_take_pass(const dpcr_recurrent_pass *given, bool backward, dpcr_recurrent_pass *pass) {
    *pass = (dpcr_recurrent_pass){0};
    if (!given || given->size < offsetof(dpcr_recurrent_pass, resets)) return false;
    DPCRI_COPY_IN(*pass, given);
    if (backward) pass->ht = pass->ct = (dpcr_array){0};
    return true;
}

static dpcr_status check_pass(const dpcr_recurrent_plan *plan, const char *call, const dpcr_recurrent_pass *pass,
                              dpcr_error *error) {
    const dpcr_recurrent *n = plan->network;
    const int64_t T = plan->length, B = plan->options.batch;
    const int64_t x[3] = {T, B, n->options.inputs}, y[3] = {T, B, outputs_of(plan)},
                  h[3] = {n->chains, B, hidden_of(plan)}, c[3] = {n->chains, B, n->options.hidden};
    dpcr_status status;
    if (!pass) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: a pass with its size set is wanted", call);
    DPCR_TRY(dpcri_recurrent_check_array(plan, call, "x", &pass->x, false, x, error));
    DPCR_TRY(dpcri_recurrent_check_array(plan, call, "y", &pass->y, false, y, error));
    DPCR_TRY(dpcri_recurrent_check_array(plan, call, "h0", &pass->h0, true, h, error));
    DPCR_TRY(dpcri_recurrent_check_array(plan, call, "ht", &pass->ht, true, h, error));
    if (dpcri_gates_state[n->gates] == 1 && (pass->c0.data || pass->ct.data))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: c0 and ct are of an LSTM or a ParaLSTM; this is %s", call,
                          dpcr_recurrent_kind_name(n->options.kind));
    DPCR_TRY(dpcri_recurrent_check_array(plan, call, "c0", &pass->c0, true, c, error));
    DPCR_TRY(dpcri_recurrent_check_array(plan, call, "ct", &pass->ct, true, c, error));
    if (pass->lengths && !plan->options.packed)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: lengths are given; the plan wants the option packed for them", call);
    if (pass->resets && !plan->options.resets)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: resets are given; the plan wants the option resets for them",
                          call);
    for (int64_t b = 0; pass->lengths && b < B; b++)
        if (pass->lengths[b] < 0 || pass->lengths[b] > T)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: lengths[%lld] is %lld, wanted 0..%lld", call,
                              (long long)b, (long long)pass->lengths[b], (long long)T);
    status = dpcri_recurrent_check_apart(call, plan->network, pass, NULL, plan->options.training, error);
done:
    return status;
}

dpcr_status dpcri_recurrent_open(dpcr_recurrent_plan *plan, const char *call, const dpcr_recurrent_pass *pass,
                                 void *tape, void *workspace, size_t workspace_bytes, bool backward,
                                 dpcri_recurrent_space *space, dpcr_error *error) {
    if (!plan) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: a plan is wanted", call);
    if (plan->kernels)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: the plan is of a device, where recurrent_enqueue runs",
                          call);
    dpcr_status status;
    DPCR_TRY(check_pass(plan, call, pass, error));
    *space = (dpcri_recurrent_space){.outputs = plan->outputs, .dropped = plan->dropped, .kept = plan->kept};
    if (plan->options.training) {
        dpcri_arena kept = {.base = tape, .size = SIZE_MAX};
        if (!tape && dpcr_recurrent_plan_tape(plan) > 0)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the plan is for training: a tape is wanted (%zu bytes)",
                              call, dpcr_recurrent_plan_tape(plan));
        dpcri_recurrent_carve_tape(plan, &kept, space);
    }
    dpcri_arena arena = {.base = workspace, .size = workspace ? workspace_bytes : 0};
    dpcri_recurrent_carve_workspace(plan, backward, &arena, space);
    if (arena.overflow || (!workspace && arena.used > 0))
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: workspace of %zu bytes, wanted %zu", call, workspace_bytes,
                          dpcr_recurrent_plan_workspace(plan));
    if (backward)
        dpcri_recurrent_lay_out_back(plan);
    else
        dpcri_recurrent_lay_out(plan);
done:
    return status;
}

// ---- views and copies ----

dpcri_grid dpcri_recurrent_input(const dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                                 const dpcri_recurrent_space *space, int64_t chain) {
    const int64_t layer = chain / plan->network->directions, width = plan->layers[chain].inputs;
    void *below = layer == 0                  ? pass->x.data
                  : space->dropped[layer - 1] ? space->dropped[layer - 1]
                                              : space->outputs[layer - 1];
    return (dpcri_grid){.data = below, .step = plan->options.batch * width, .row = width};
}

dpcri_grid dpcri_recurrent_output(const dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                                  const dpcri_recurrent_space *space, int64_t layer) {
    void *data = layer + 1 < plan->network->options.layers ? space->outputs[layer] : pass->y.data;
    return (dpcri_grid){.data = data, .step = plan->options.batch * outputs_of(plan), .row = outputs_of(plan)};
}

// The grid moved on by numbers, and turned against time.
static dpcri_grid moved(const dpcr_recurrent_plan *plan, dpcri_grid grid, int64_t numbers) {
    grid.data = grid.data ? (char *)grid.data + numbers * (int64_t)plan->network->element : NULL;
    return grid;
}

static dpcri_grid turned(const dpcr_recurrent_plan *plan, dpcri_grid grid) {
    grid = moved(plan, grid, plan->options.length > 0 ? (plan->options.length - 1) * grid.step : 0);
    grid.step = -grid.step;
    return grid;
}

dpcr_array dpcri_recurrent_view(const dpcr_recurrent_plan *plan, dpcri_grid grid, int64_t width, bool reverse) {
    const int64_t shape[3] = {plan->options.length, plan->options.batch, width};
    if (reverse) grid = turned(plan, grid);
    dpcr_array view = dpcr_array_make(grid.data, plan->network->options.dtype, 3, shape);
    view.strides[0] = grid.step;
    view.strides[1] = grid.row;
    return view;
}

// Where states before the chain's steps are zero: what begins with step t begins, against time, before step t - 1.
static void mark(const dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass, bool reverse, unsigned char *marks) {
    const int64_t T = plan->options.length, B = plan->options.batch;
    for (int64_t l = 0; l < T; l++)
        for (int64_t b = 0; b < B; b++) {
            const int64_t end = pass->lengths ? pass->lengths[b] : T, t = reverse ? end - l : l;
            marks[l * B + b] = l < end && t < end && pass->resets[t * B + b] != 0;
        }
}

void dpcri_recurrent_feed(dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                          const dpcri_recurrent_space *space, int64_t chain) {
    const dpcri_recurrent_flow flow = dpcri_recurrent_flow_of(plan, chain);
    dpcri_recurrent *layer = &plan->layers[chain];
    const dpcri_grid x = dpcri_recurrent_input(plan, pass, space, chain);
    layer->ends = pass->lengths;
    if (plan->chains[chain]) plan->chains[chain]->steps.ends = pass->lengths;
    if (plan->options.packed && layer->blocks > 1) dpcri_recurrent_divide(plan, chain, pass->lengths);
    layer->resets = (dpcri_marks){0};
    if (pass->resets) {
        mark(plan, pass, flow.reverse, space->marks);
        memset(space->zeros, 0, (size_t)state_of(plan) * plan->network->element);
        layer->resets = (dpcri_marks){.at = space->marks, .step = plan->options.batch, .zeros = space->zeros};
    }
    layer->given = (dpcri_grid){0};
    layer->x = flow.reverse && !flow.copied ? turned(plan, x) : x;
    if (!flow.copied) return;
    layer->x.data = space->reversed;
    dpcri_recurrent_copy(plan, pass->lengths, layer->inputs, x, layer->x, true);
}

dpcr_array dpcri_recurrent_states(const dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                                  const dpcri_recurrent_space *space, int64_t chain) {
    const dpcri_recurrent_flow flow = dpcri_recurrent_flow_of(plan, chain);
    const int64_t w = state_of(plan), D = plan->network->directions;
    const dpcri_grid y = dpcri_recurrent_output(plan, pass, space, chain / D);
    const dpcri_grid own = {.data = space->kept[chain].states, .step = plan->options.batch * w, .row = w};
    const dpcri_grid z = flow.in_outputs ? moved(plan, y, chain % D * hidden_of(plan)) : own;
    return dpcri_recurrent_view(plan, z, w, flow.reverse && !flow.copied);
}

dpcr_array dpcri_recurrent_tape(const dpcr_recurrent_plan *plan, const dpcri_recurrent_space *space, int64_t chain) {
    const dpcri_recurrent_flow flow = dpcri_recurrent_flow_of(plan, chain);
    const int64_t tape = dpcri_recurrent_taped(plan->network);
    const dpcri_grid grid = {.data = space->kept[chain].gates, .step = plan->options.batch * tape, .row = tape};
    return dpcri_recurrent_view(plan, grid, tape, flow.reverse && !flow.copied);
}

// ---- the pass ----

// Where y of the chain lies, [T][B][h's numbers].
static dpcri_grid own_output(const dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                             const dpcri_recurrent_space *space, int64_t chain) {
    const int64_t D = plan->network->directions;
    return moved(plan, dpcri_recurrent_output(plan, pass, space, chain / D), chain % D * hidden_of(plan));
}

// A plain LSTM's steps write y beside their states, where the method writes those in their place alone.
static bool writes_outputs(const dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass, int64_t chain) {
    const dpcr_method method = dpcr_solve_plan_method(plan->chains[chain]);
    return plan->network->gates == DPCRI_GATES_LSTM && !plan->network->cell.varied && !pass->lengths &&
           (method == DPCR_METHOD_SEQUENTIAL || method == DPCR_METHOD_OVERLAP) &&
           !dpcri_recurrent_flow_of(plan, chain).copied;
}

// y and the last states from the chain's z.
static void finish(const dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass, const dpcri_recurrent_space *space,
                   int64_t chain) {
    const dpcri_recurrent_flow flow = dpcri_recurrent_flow_of(plan, chain);
    const dpcr_array z = dpcri_recurrent_states(plan, pass, space, chain);
    const dpcri_grid states = {.data = z.data, .step = z.strides[0], .row = z.strides[1]};
    const dpcri_grid first = {.data = space->initial, .row = state_of(plan)};
    dpcri_recurrent_part_last(plan, chain, pass->lengths, states, first, &pass->ht, &pass->ct);
    if ((flow.in_outputs && !pass->lengths) || writes_outputs(plan, pass, chain)) return;
    const dpcri_grid y = own_output(plan, pass, space, chain);
    if (flow.reverse && !flow.copied)  // both in the order of time
        dpcri_recurrent_copy_hidden(plan, NULL, turned(plan, states), y, false);
    else
        dpcri_recurrent_copy_hidden(plan, pass->lengths, states, y, flow.copied);
}

static dpcr_status run_chain(dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                             const dpcri_recurrent_space *space, int64_t chain, void *solve, size_t solve_bytes,
                             dpcr_solve_report *report, dpcr_error *error) {
    const dpcr_array z = dpcri_recurrent_states(plan, pass, space, chain);
    const dpcr_array tape = dpcri_recurrent_tape(plan, space, chain);
    const int64_t shape[2] = {plan->options.batch, state_of(plan)};
    const dpcr_array z0 = dpcr_array_make(space->initial, plan->network->options.dtype, 2, shape);
    if (writes_outputs(plan, pass, chain)) {
        const dpcri_grid y = own_output(plan, pass, space, chain);
        plan->layers[chain].hidden = dpcri_recurrent_flow_of(plan, chain).reverse ? turned(plan, y) : y;
    }
    const dpcr_status status =
        dpcr_solve_execute(plan->chains[chain], &z0, &z, tape.data ? &tape : NULL, solve, solve_bytes, report, error);
    plan->layers[chain].hidden = (dpcri_grid){0};
    if (status == DPCR_ERROR_CALLBACK)  // ours abort for one reason alone
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "recurrent_execute: no memory for a block of steps");
    if (status == DPCR_OK) finish(plan, pass, space, chain);
    return status;
}

dpcr_status dpcr_recurrent_execute(dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass, void *tape,
                                   void *workspace, size_t workspace_bytes, dpcr_solve_report *reports,
                                   dpcr_error *error) {
    dpcri_recurrent_space space;
    dpcr_recurrent_pass whole;
    const bool given = dpcri_recurrent_take_pass(pass, false, &whole);
    dpcr_status status = dpcri_recurrent_open(plan, "recurrent_execute", given ? &whole : NULL, tape, workspace,
                                              workspace_bytes, false, &space, error);
    if (status == DPCR_OK) status = dpcri_check_reports("recurrent_execute", reports, plan->network->chains, error);
    if (status != DPCR_OK) return status;
    pass = &whole;
    for (int64_t c = 0; c < plan->network->chains; c++) {
        const int64_t layer = c / plan->network->directions;
        if (c % plan->network->directions == 0 && layer > 0)
            dpcri_recurrent_drop(plan, pass, layer - 1, space.outputs[layer - 1], space.dropped[layer - 1]);
        dpcri_recurrent_feed(plan, pass, &space, c);
        status = dpcri_recurrent_multiply(plan, &space, c, "recurrent_execute", error);
        if (status != DPCR_OK) return status;
        dpcri_recurrent_join(plan, c, &pass->h0, &pass->c0, space.initial);
        status = run_chain(plan, pass, &space, c, space.solve, space.solve_bytes, dpcri_report_at(reports, c), error);
        if (status != DPCR_OK) return status;
    }
    return DPCR_OK;
}

// ---- planning over a sample ----

// What comes in at h of every step while ways back are tried: of a chain that forgets, where something came in at the
// last step alone, most adjoints would be so near 0 that processors take ten times as long with them.
static void fill_ones(dpcr_dtype dtype, int64_t count, void *ones) {
    const dpcr_array all = dpcr_array_make(ones, dtype, 3, (const int64_t[]){1, 1, count});
    dpcri_row_ops_of(dtype)->fill(&all, 1);
}

static dpcr_status sample_chain(dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                                const dpcri_recurrent_space *space, int64_t chain, dpcr_solve_options options,
                                void *ones, dpcr_error *error) {
    const dpcr_recurrent *n = plan->network;
    const int64_t shape[2] = {plan->options.batch, state_of(plan)};
    const dpcr_array start = dpcr_array_make(space->initial, n->options.dtype, 2, shape);
    dpcr_steps steps;
    dpcri_recurrent_plan_steps(plan, chain, &steps);
    dpcri_recurrent_feed(plan, pass, space, chain);
    dpcr_status status = dpcri_recurrent_multiply(plan, space, chain, "recurrent_plan", error);
    if (status != DPCR_OK) return status;
    dpcri_recurrent_join(plan, chain, &pass->h0, &pass->c0, space->initial);
    options.start = &start;
    steps.ends = pass->lengths;
    dpcri_recurrent_stage stage = {.plan = plan, .pass = pass, .space = space, .chain = chain};
    if (steps.gradient) steps.rehearse = dpcri_recurrent_rehearse, steps.rehearsed = dpcri_recurrent_rehearsed;
    plan->layers[chain].products_user = &stage;
    plan->layers[chain].outer = (dpcri_grid){.data = ones};
    status = dpcr_solve_plan_create(plan->context, &steps, &options, &plan->chains[chain], error);
    plan->layers[chain].products_user = NULL;
    plan->layers[chain].outer = (dpcri_grid){0};
    if (status == DPCR_OK) plan->chains[chain]->steps.rehearse = NULL;  // it was for this stage
    if (status == DPCR_ERROR_CALLBACK)                                  // ours abort for one reason alone
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "recurrent_plan: no memory for a block of steps");
    if (status != DPCR_OK || chain / n->directions + 1 == n->options.layers) return status;
    const size_t bytes = dpcr_solve_plan_workspace(plan->chains[chain]);
    void *solve = bytes == SIZE_MAX ? NULL : dpcri_alloc(plan->context, bytes + 64);
    if (!solve)
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "recurrent_plan: no memory to try a layer (%zu bytes)", bytes);
    status = run_chain(plan, pass, space, chain, solve, bytes, NULL, error);
    dpcri_free(plan->context, solve);
    return status;
}

dpcr_status dpcri_recurrent_sample(dpcr_recurrent_plan *plan, const dpcr_solve_options *options, dpcr_error *error) {
    const int training = plan->options.training;
    if (training) dpcri_recurrent_lay_out_back(plan);  // the planner times that too
    dpcri_recurrent_space space;
    dpcr_recurrent_pass pass;
    dpcr_status status;
    const bool given = dpcri_recurrent_take_pass(plan->options.sample, false, &pass);
    plan->options.training = 0;  // the chains are only run forward here
    const size_t bytes = dpcr_recurrent_plan_workspace(plan),
                 outputs = (size_t)plan->options.length * (size_t)plan->options.batch * (size_t)outputs_of(plan) *
                           plan->network->element;
    const int64_t hidden = dpcri_recurrent_h(plan->network);
    const size_t all = (bytes + 63) / 64 * 64 + (outputs + 63) / 64 * 64;
    char *memory = bytes == SIZE_MAX ? NULL : dpcri_alloc(plan->context, all + (size_t)hidden * plan->network->element);
    if (!memory) {
        status =
            dpcri_fail(error, DPCR_ERROR_MEMORY, "recurrent_plan: no memory to try the network (%zu bytes)", bytes);
        goto done;
    }
    const int64_t shape[3] = {plan->options.length, plan->options.batch, outputs_of(plan)};
    pass.y = dpcr_array_make(memory + (bytes + 63) / 64 * 64, plan->network->options.dtype, 3, shape);
    pass.ht = pass.ct = (dpcr_array){0};
    DPCR_TRY(
        dpcri_recurrent_open(plan, "recurrent_plan", given ? &pass : NULL, NULL, memory, bytes, false, &space, error));
    fill_ones(plan->network->options.dtype, hidden, memory + all);
    for (int64_t c = 0; c < plan->network->chains; c++)
        DPCR_TRY(sample_chain(plan, &pass, &space, c, *options, memory + all, error));
done:
    plan->options.training = training;
    dpcri_free(plan->context, memory);
    return status;
}
