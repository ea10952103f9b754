// SPDX-License-Identifier: MIT
// Backward through a recurrent network, layer by layer from the last: each chain's adjoint, and of the gates' gradients
// that it leaves those of its weights and inputs (recurrent_sums.c).
#include "model/recurrent_sums.h"
#include "solve/solve_internal.h"

static int64_t hidden_of(const dpcr_recurrent_plan *p) { return p->network->options.hidden; }
static int64_t h_of(const dpcr_recurrent_plan *p) { return dpcri_recurrent_h(p->network); }
static int64_t state_of(const dpcr_recurrent_plan *p) { return dpcri_recurrent_w(p->network); }
static int64_t outputs_of(const dpcr_recurrent_plan *p) { return dpcri_recurrent_y(p->network); }

// What comes in at the chain's states, of y. By the layer itself where the adjoint loop goes back; a copy with the
// state's width, which other schemes want; and a view where y and states lie alike. Past the ends nothing comes in.
static dpcr_array direct_of(dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                            const dpcri_recurrent_space *space, int64_t chain, const void *outer) {
    const dpcri_recurrent_flow flow = dpcri_recurrent_flow_of(plan, chain);
    const int64_t H = h_of(plan), w = state_of(plan), element = (int64_t)plan->network->element;
    const bool by_loop = dpcri_recurrent_back_by_loop(plan, chain);
    const dpcri_grid from = {.data = (char *)outer + chain % plan->network->directions * H * element,
                             .step = plan->options.batch * outputs_of(plan),
                             .row = outputs_of(plan)};
    const dpcr_array view = dpcri_recurrent_view(plan, from, H, flow.reverse && !flow.copied);
    plan->layers[chain].outer = (dpcri_grid){0};
    if (by_loop && !flow.copied) {
        plan->layers[chain].outer = (dpcri_grid){.data = view.data, .step = view.strides[0], .row = view.strides[1]};
        return (dpcr_array){0};
    }
    if (flow.in_outputs && !plan->options.packed) return view;
    const dpcri_grid to = {.data = space->direct, .step = plan->options.batch * w, .row = w};
    dpcri_recurrent_spread_hidden(plan, pass->lengths, from, to, flow.copied);
    return dpcri_recurrent_view(plan, to, w, flow.reverse && !flow.copied);
}

static dpcr_status solve_back(dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                              const dpcri_recurrent_space *space, int64_t chain, const void *outer,
                              dpcr_solve_report *report, dpcr_error *error) {
    const dpcr_array z = dpcri_recurrent_states(plan, pass, space, chain),
                     tape = dpcri_recurrent_tape(plan, space, chain);
    const int64_t shape[2] = {plan->options.batch, state_of(plan)};
    const dpcr_dtype dtype = plan->network->options.dtype;
    const dpcr_array z0 = dpcr_array_make(space->initial, dtype, 2, shape),
                     last = dpcr_array_make(space->last, dtype, 2, shape);
    const dpcr_array dz0 = dpcr_array_make(space->initial_back, dtype, 2, shape);
    plan->layers[chain].outer = (dpcri_grid){0};
    const dpcr_array direct = outer ? direct_of(plan, pass, space, chain, outer) : (dpcr_array){0};
    return dpcr_solve_backward(plan->chains[chain], &z0, &z, tape.data ? &tape : NULL, direct.data ? &direct : NULL,
                               &last, NULL, &dz0, space->solve, space->solve_bytes, report, error);
}

// Back through a chain; where a copy of its input was turned round, so is the input's gradient, in the same order of
// sums as without a copy: a packed batch has the bits of its sequences.
static dpcr_status back_chain(dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                              const dpcr_recurrent_gradients *gradients, const dpcri_recurrent_space *space,
                              int64_t chain, const void *outer, void *inner, bool add, dpcr_solve_report *report,
                              dpcr_error *error) {
    const bool copied = dpcri_recurrent_flow_of(plan, chain).copied;
    const int64_t width = plan->layers[chain].inputs;
    const dpcri_grid there = {.data = inner, .step = plan->options.batch * width, .row = width};
    dpcri_grid own = there;
    own.data = space->back_reversed;
    dpcri_recurrent_feed(plan, pass, space, chain);
    dpcr_status status = DPCR_OK;
    if (!dpcri_recurrent_back_by_loop(plan, chain))
        status = dpcri_recurrent_multiply(plan, space, chain, "recurrent_backward", error);
    if (status != DPCR_OK) return status;
    dpcri_recurrent_join(plan, chain, &pass->h0, &pass->c0, space->initial);
    dpcri_recurrent_join(plan, chain, &gradients->ht, &gradients->ct, space->last);
    if (copied && inner && add) dpcri_recurrent_copy(plan, pass->lengths, width, there, own, true);
    dpcri_recurrent_sums sums = dpcri_recurrent_sums_of(plan, pass, space, chain, inner, add);
    dpcri_recurrent_sum_by(&plan->layers[chain], space, &sums);
    status = solve_back(plan, pass, space, chain, outer, report, error);
    dpcri_recurrent_let_go(&plan->layers[chain]);
    if (status == DPCR_ERROR_CALLBACK)  // ours abort for one reason alone
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "recurrent_backward: no memory for a block of steps");
    if (status != DPCR_OK) return status;
    if (copied && inner) dpcri_recurrent_copy(plan, pass->lengths, width, own, there, true);
    const dpcri_grid back = {.data = space->initial_back, .row = state_of(plan)};
    dpcri_recurrent_part(plan, chain, back, &gradients->h0, &gradients->c0);
    return DPCR_OK;
}

static dpcr_status check_gradients(const dpcr_recurrent_plan *plan, const dpcr_recurrent_gradients *g,
                                   dpcr_error *error) {
    const char *const call = "recurrent_backward";
    if (!plan) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: a plan is wanted", call);
    const dpcr_recurrent *n = plan->network;
    const int64_t T = plan->length, B = plan->options.batch;
    const int64_t x[3] = {T, B, n->options.inputs}, y[3] = {T, B, outputs_of(plan)}, h[3] = {n->chains, B, h_of(plan)},
                  c[3] = {n->chains, B, hidden_of(plan)};
    dpcr_status status;
    if (!plan->options.training)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the plan is not for training (option training)", call);
    if (!g || g->size < sizeof *g)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: gradients with their size set are wanted", call);
    DPCR_TRY(dpcri_recurrent_check_array(plan, call, "gradients.y", &g->y, true, y, error));
    DPCR_TRY(dpcri_recurrent_check_array(plan, call, "gradients.x", &g->x, true, x, error));
    DPCR_TRY(dpcri_recurrent_check_array(plan, call, "gradients.ht", &g->ht, true, h, error));
    DPCR_TRY(dpcri_recurrent_check_array(plan, call, "gradients.h0", &g->h0, true, h, error));
    if (dpcri_gates_state[n->gates] == 1 && (g->c0.data || g->ct.data))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: gradients of c0 and ct are of an LSTM or a ParaLSTM; this is %s", call,
                          dpcr_recurrent_kind_name(n->options.kind));
    DPCR_TRY(dpcri_recurrent_check_array(plan, call, "gradients.ct", &g->ct, true, c, error));
    DPCR_TRY(dpcri_recurrent_check_array(plan, call, "gradients.c0", &g->c0, true, c, error));
done:
    return status;
}

dpcr_status dpcr_recurrent_backward(dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                                    const dpcr_recurrent_gradients *gradients, void *tape, void *workspace,
                                    size_t workspace_bytes, dpcr_solve_report *reports, dpcr_error *error) {
    dpcri_recurrent_space space;
    dpcr_recurrent_pass whole;
    dpcr_status status;
    const bool given = dpcri_recurrent_take_pass(pass, true, &whole);
    DPCR_TRY(check_gradients(plan, gradients, error));
    DPCR_TRY(dpcri_recurrent_open(plan, "recurrent_backward", given ? &whole : NULL, tape, workspace, workspace_bytes,
                                  true, &space, error));
    DPCR_TRY(dpcri_recurrent_check_apart("recurrent_backward", plan->network, &whole, gradients, true, error));
    DPCR_TRY(dpcri_check_reports("recurrent_backward", reports, plan->network->chains, error));
    pass = &whole;
    const int64_t D = plan->network->directions;
    const void *outer = gradients->y.data;
    for (int64_t layer = plan->network->options.layers - 1; layer >= 0; layer--) {
        void *inner = layer > 0 ? space.outer[layer % 2] : gradients->x.data;
        for (int64_t d = 0; d < D; d++) {
            const int64_t chain = layer * D + d;
            DPCR_TRY(back_chain(plan, pass, gradients, &space, chain, outer, inner, d > 0,
                                dpcri_report_at(reports, chain), error));
        }
        if (layer > 0) dpcri_recurrent_drop(plan, pass, layer - 1, inner, inner);
        outer = inner;
    }
done:
    return status;
}
