// SPDX-License-Identifier: MIT
// Backward through a recurrent network, layer by layer from the last. Each chain's adjoint leaves the gates' gradients
// e in the tape; then, over all T B rows at once,
//     dx = e_x W_ih,   dW_ih += e_x^T x,   dW_hh += e_h^T h_before,   db_ih += sum e_x,   db_hh += sum e_h
// where e_x and e_h are the columns of e that go with the input's part and with W_hh. A task owns rows of the result
// and takes the T B rows in order, so the bits do not depend on the number of threads.
#include <string.h>

#include "model/recurrent_internal.h"
#include "nn/layer.h"

enum { RESULT_ROWS = 32, BLOCK = 64 };

static int64_t hidden_of(const dpcr_recurrent_plan *p) { return p->network->options.hidden; }
static int64_t state_of(const dpcr_recurrent_plan *p) { return dpcri_gates_state[p->network->gates] * hidden_of(p); }
static int64_t tape_of(const dpcr_recurrent_plan *p) { return dpcri_gates_tape[p->network->gates] * hidden_of(p); }
static int64_t outputs_of(const dpcr_recurrent_plan *p) { return p->network->directions * hidden_of(p); }

// Columns of e and the rows of a weight matrix that they go with.
typedef struct stripe {
    int64_t column, row, count;
} stripe;

// Of W_ih (input) or W_hh: a GRU's e is r, z, m, n, and m goes with W_hh, n with W_ih. Returns their number.
static int stripes_of(const dpcr_recurrent_plan *plan, bool input, stripe stripes[2]) {
    const int64_t H = hidden_of(plan);
    const bool gru = plan->network->gates == DPCRI_GATES_GRU;
    stripes[0] = (stripe){0, 0, gru && input ? 2 * H : dpcri_gates_count[plan->network->gates] * H};
    if (!gru || !input) return 1;
    stripes[1] = (stripe){3 * H, 2 * H, H};
    return 2;
}

// ---- products over all rows ----

// dW[stripe] += e^T v, db[stripe] += sum e, over `rows` rows of e and v; data of v NULL: zeros.
typedef struct weight_job {
    const dpcri_nn_kernels *nn;
    stripe stripe;
    int64_t rows, width;
    dpcri_rows e, v;
    char *weight, *bias;
} weight_job;

static void weight_task(void *argument, int64_t task) {
    const weight_job *j = argument;
    const size_t element = j->nn->element;
    const int64_t begin = task * RESULT_ROWS, left = j->stripe.count - begin,
                  m = left < RESULT_ROWS ? left : RESULT_ROWS;
    const int64_t to = j->stripe.row + begin;
    void *weight = j->weight + (size_t)(to * j->width) * element;
    void *bias = j->bias ? j->bias + (size_t)to * element : NULL;
    for (int64_t k = 0; k < j->rows; k += BLOCK) {
        const int64_t depth = j->rows - k < BLOCK ? j->rows - k : BLOCK;
        const dpcri_rows e = dpcri_rows_at(j->e, k, j->stripe.column + begin, element);
        if (j->v.data)
            j->nn->product(&(dpcri_product){.m = m,
                                            .n = j->width,
                                            .depth = depth,
                                            .a = e.data,
                                            .a_row = 1,
                                            .a_col = e.row,
                                            .b = dpcri_rows_at(j->v, k, 0, element).data,
                                            .b_row = j->v.row,
                                            .init = weight,
                                            .init_row = j->width,
                                            .c = weight,
                                            .c_row = j->width});
        if (bias) dpcri_column_sums(j->nn, depth, m, e, bias);
    }
}

static void add_weights(const dpcr_recurrent_plan *plan, bool input, int64_t rows, int64_t width, dpcri_rows e,
                        dpcri_rows v, void *weight, void *bias) {
    stripe stripes[2];
    const int count = stripes_of(plan, input, stripes);
    for (int i = 0; rows > 0 && i < count; i++) {
        weight_job job = {plan->layers[0].nn, stripes[i], rows, width, e, v, weight, bias};
        dpcri_parallel(plan->context, (stripes[i].count + RESULT_ROWS - 1) / RESULT_ROWS, weight_task, &job);
    }
}

// x[row] (+)= e_x W_ih
typedef struct input_job {
    const dpcr_recurrent_plan *plan;
    int64_t rows, width;
    dpcri_rows e, x;
    const char *weight;
    bool add;
} input_job;

static void input_task(void *argument, int64_t task) {
    const input_job *j = argument;
    const dpcri_nn_kernels *nn = j->plan->layers[0].nn;
    const int64_t begin = task * BLOCK, left = j->rows - begin;
    stripe stripes[2];
    const int count = stripes_of(j->plan, true, stripes);
    const dpcri_rows x = dpcri_rows_at(j->x, begin, 0, nn->element);
    for (int i = 0; i < count; i++)
        nn->product(&(dpcri_product){.m = left < BLOCK ? left : BLOCK,
                                     .n = j->width,
                                     .depth = stripes[i].count,
                                     .a = dpcri_rows_at(j->e, begin, stripes[i].column, nn->element).data,
                                     .a_row = j->e.row,
                                     .a_col = 1,
                                     .b = j->weight + (size_t)(stripes[i].row * j->width) * nn->element,
                                     .b_row = j->width,
                                     .init = j->add || i > 0 ? x.data : NULL,
                                     .init_row = x.row,
                                     .c = x.data,
                                     .c_row = x.row});
}

// ---- one chain ----

// dz of the chain's states: of y where one is given, in a form of its own where it does not lie as the chain wants it.
static dpcr_array direct_of(const dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                            const dpcri_recurrent_space *space, int64_t chain, const void *outer) {
    const dpcri_recurrent_flow flow = dpcri_recurrent_flow_of(plan, chain);
    const int64_t H = hidden_of(plan), w = state_of(plan), element = (int64_t)plan->network->element;
    const dpcri_grid from = {.data = (char *)outer + chain % plan->network->directions * H * element,
                             .step = plan->options.batch * outputs_of(plan),
                             .row = outputs_of(plan)};
    if (flow.in_outputs && !plan->options.packed) return dpcri_recurrent_view(plan, from, w, flow.reverse);
    const dpcri_grid to = {.data = space->direct, .step = plan->options.batch * w, .row = w};
    memset(space->direct, 0, (size_t)(plan->options.length * to.step * element));
    dpcri_recurrent_copy(plan, pass->lengths, H, from, to, flow.copied);
    return dpcri_recurrent_view(plan, to, w, flow.reverse && !flow.copied);
}

static dpcr_status back_chain(dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                              const dpcr_recurrent_gradients *gradients, const dpcri_recurrent_space *space,
                              int64_t chain, const void *outer, dpcr_solve_report *report, dpcr_error *error) {
    const dpcr_array z = dpcri_recurrent_states(plan, pass, space, chain),
                     tape = dpcri_recurrent_tape(plan, space, chain);
    const int64_t shape[2] = {plan->options.batch, state_of(plan)};
    const dpcr_dtype dtype = plan->network->options.dtype;
    const dpcr_array z0 = dpcr_array_make(space->initial, dtype, 2, shape),
                     last = dpcr_array_make(space->last, dtype, 2, shape);
    const dpcr_array dz0 = dpcr_array_make(space->initial_back, dtype, 2, shape);
    dpcr_array direct = {0};
    if (outer) direct = direct_of(plan, pass, space, chain, outer);
    dpcri_recurrent_feed(plan, pass, space, chain);
    dpcri_recurrent_join(plan, chain, &pass->h0, &pass->c0, space->initial);
    dpcri_recurrent_join(plan, chain, &gradients->ht, &gradients->ct, space->last);
    const dpcr_status status = dpcr_solve_backward(plan->chains[chain], &z0, &z, &tape, outer ? &direct : NULL, &last,
                                                   NULL, &dz0, space->solve, space->solve_bytes, report, error);
    if (status != DPCR_OK) return status;
    const dpcri_grid back = {.data = space->initial_back, .row = state_of(plan)};
    dpcri_recurrent_part(plan, chain, back, &gradients->h0, &gradients->c0);
    return DPCR_OK;
}

// The gradients of the chain's weights, from e and z in the order in which they lie: of time, or of a copy.
static void weights_of_chain(const dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                             const dpcri_recurrent_space *space, int64_t chain) {
    const dpcr_recurrent *n = plan->network;
    const dpcri_recurrent_flow flow = dpcri_recurrent_flow_of(plan, chain);
    const int64_t B = plan->options.batch, rows = plan->options.length * B;
    if (rows == 0) return;
    const bool turned = flow.reverse && !flow.copied;
    const dpcr_array z = dpcri_recurrent_states(plan, pass, space, chain);
    const dpcri_grid x = dpcri_recurrent_input(plan, pass, space, chain);
    const size_t element = n->element;
    const dpcri_rows e = {space->kept[chain].gates, tape_of(plan)}, h0 = {space->initial, state_of(plan)};
    const dpcri_rows in = {flow.copied ? space->reversed : x.data, x.row};
    // Where z lies in the order of time: its first step is the chain's last one.
    const dpcri_rows lying = {
        (char *)z.data + (turned ? (plan->options.length - 1) * z.strides[0] : 0) * (int64_t)element, z.strides[1]};
    void *weight = dpcri_recurrent_at(n, n->gradients, dpcri_recurrent_offset(n, chain, DPCRI_WEIGHT_HH));
    void *bias = dpcri_recurrent_at(n, n->gradients, dpcri_recurrent_offset(n, chain, DPCRI_BIAS_HH));
    const int64_t H = hidden_of(plan);
    const dpcri_rows first = dpcri_rows_at(e, turned ? rows - B : 0, 0, element);
    add_weights(plan, false, B, H, first, h0, weight, bias);
    add_weights(plan, false, rows - B, H, turned ? e : dpcri_rows_at(e, B, 0, element),
                turned ? dpcri_rows_at(lying, B, 0, element) : lying, weight, bias);
    add_weights(plan, true, rows, plan->layers[chain].inputs, e, in,
                dpcri_recurrent_at(n, n->gradients, dpcri_recurrent_offset(n, chain, DPCRI_WEIGHT_IH)),
                dpcri_recurrent_at(n, n->gradients, dpcri_recurrent_offset(n, chain, DPCRI_BIAS_IH)));
}

// The gradient of what went into the layer, `to` [T][B][inputs]; added where another direction has written before: in
// one order of sums, copied or not, so that a packed batch has the bits of its sequences.
static void inputs_of_chain(const dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                            const dpcri_recurrent_space *space, int64_t chain, void *to, bool add) {
    const bool copied = dpcri_recurrent_flow_of(plan, chain).copied;
    const int64_t width = plan->layers[chain].inputs, rows = plan->options.length * plan->options.batch;
    const dpcri_grid there = {.data = to, .step = plan->options.batch * width, .row = width};
    dpcri_grid own = there;
    if (copied) own.data = space->back_reversed;
    if (copied && add) dpcri_recurrent_copy(plan, pass->lengths, width, there, own, true);
    input_job job = {.plan = plan,
                     .rows = rows,
                     .width = width,
                     .e = {space->kept[chain].gates, tape_of(plan)},
                     .x = {own.data, width},
                     .weight = plan->layers[chain].weight_ih,
                     .add = add};
    dpcri_parallel(plan->context, (rows + BLOCK - 1) / BLOCK, input_task, &job);
    if (copied) dpcri_recurrent_copy(plan, pass->lengths, width, own, there, true);
}

static dpcr_status check_gradients(const dpcr_recurrent_plan *plan, const dpcr_recurrent_gradients *g,
                                   dpcr_error *error) {
    const char *const call = "recurrent_backward";
    if (!plan) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: a plan is wanted", call);
    const dpcr_recurrent *n = plan->network;
    const int64_t T = plan->options.length, B = plan->options.batch;
    const int64_t x[3] = {T, B, n->options.inputs}, y[3] = {T, B, outputs_of(plan)},
                  h[3] = {n->chains, B, hidden_of(plan)};
    dpcr_status status;
    if (!plan->options.training)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the plan is not for training (option training)", call);
    if (!g || g->size < sizeof *g)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: gradients with their size set are wanted", call);
    DPCR_TRY(dpcri_recurrent_check_array(plan, call, "gradients.y", &g->y, true, y, error));
    DPCR_TRY(dpcri_recurrent_check_array(plan, call, "gradients.x", &g->x, true, x, error));
    DPCR_TRY(dpcri_recurrent_check_array(plan, call, "gradients.ht", &g->ht, true, h, error));
    DPCR_TRY(dpcri_recurrent_check_array(plan, call, "gradients.h0", &g->h0, true, h, error));
    if (n->gates != DPCRI_GATES_LSTM && (g->c0.data || g->ct.data))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: gradients of c0 and ct are of an LSTM; this is %s", call,
                          dpcr_recurrent_kind_name(n->options.kind));
    DPCR_TRY(dpcri_recurrent_check_array(plan, call, "gradients.ct", &g->ct, true, h, error));
    DPCR_TRY(dpcri_recurrent_check_array(plan, call, "gradients.c0", &g->c0, true, h, error));
done:
    return status;
}

dpcr_status dpcr_recurrent_backward(dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                                    const dpcr_recurrent_gradients *gradients, void *tape, void *workspace,
                                    size_t workspace_bytes, dpcr_solve_report *reports, dpcr_error *error) {
    dpcri_recurrent_space space;
    dpcr_status status;
    DPCR_TRY(check_gradients(plan, gradients, error));
    DPCR_TRY(
        dpcri_recurrent_open(plan, "recurrent_backward", pass, tape, workspace, workspace_bytes, true, &space, error));
    const int64_t D = plan->network->directions;
    const void *outer = gradients->y.data;
    for (int64_t layer = plan->network->options.layers - 1; layer >= 0; layer--) {
        void *inner = layer > 0 ? space.outer[layer % 2] : gradients->x.data;
        for (int64_t d = 0; d < D; d++) {
            const int64_t chain = layer * D + d;
            DPCR_TRY(back_chain(plan, pass, gradients, &space, chain, outer, reports ? &reports[chain] : NULL, error));
            weights_of_chain(plan, pass, &space, chain);
            if (inner) inputs_of_chain(plan, pass, &space, chain, inner, d > 0);
        }
        outer = inner;
    }
done:
    return status;
}
