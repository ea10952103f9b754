// SPDX-License-Identifier: MIT
// Kernels of recurrent cells: with full recurrent weights (gates.h), their variants, and cells whose units do not mix
// (para.h).
#include <math.h>
#include <stdlib.h>

#include "kern/gates.h"
#include "kern/para.h"
#include "kernels.h"

enum { STEPS = 16 };

typedef struct gates_call {
    const dpcri_gates_kernels *kernels;
    dpcri_gates gates;
    dpcri_gates_forward forward;
    dpcri_gates_adjoint adjoint;
} gates_call;

static void run_forward(void *argument) {
    const gates_call *c = argument;
    if (!c->kernels->advance(&c->gates, &c->forward)) exit(3);
}

static void run_adjoint(void *argument) {
    const gates_call *c = argument;
    if (!c->kernels->adjoint(&c->gates, &c->adjoint)) exit(3);
}

static dpcri_grid grid(void *data, const work *w, int64_t numbers) {
    return (dpcri_grid){data, STEPS * w->rows * numbers, w->rows * numbers, numbers};
}

static dpcri_grid edge(void *data, const work *w, int64_t numbers) {
    return (dpcri_grid){data, w->rows * numbers, 0, numbers};
}

// One lane of `rows` sequences through STEPS steps, or back through as many with a tape drawn.
static void run_strands(work *w, gates_call *c, bool back, double weights, double flops) {
    const int64_t strands = w->rows, all = strands * STEPS, H = w->width;
    const int64_t count = dpcri_gates_count[c->gates.kind] * H, state = dpcri_gates_states(&c->gates),
                  tape = dpcri_gates_tapes(&c->gates);
    const double steps = (double)all, edges = 2 * (double)(strands * state);
    if (!back) {
        c->forward = (dpcri_gates_forward){.lanes = 1,
                                           .steps = STEPS,
                                           .rows = strands,
                                           .input = grid(draw(w, all * count, 1), w, count),
                                           .in = edge(draw(w, strands * state, 1), w, state),
                                           .states = grid(comes_out(w, all * state, 1), w, state),
                                           .tape = grid(comes_out(w, all * tape, 1), w, tape),
                                           .last = edge(comes_out(w, strands * state, 1), w, state)};
        runs(w, run_forward, c, (cost){steps, steps * flops, weights + steps * (double)(count + state + tape) + edges});
        return;
    }
    void *drawn = draw(w, all * tape, 1);
    for (int64_t i = 0; i < all * tape; i++) put(w->dtype, drawn, i, fabs(get(w->dtype, drawn, i)));
    c->adjoint = (dpcri_gates_adjoint){.lanes = 1,
                                       .steps = STEPS,
                                       .rows = strands,
                                       .in = grid(draw(w, all * state, 1), w, state),
                                       .tape = grid(drawn, w, tape),
                                       .direct = grid(draw(w, all * state, 1), w, state),
                                       .kept = grid(comes_out(w, all * state, 1), w, state),
                                       .e = grid(comes_out(w, all * tape, 1), w, tape),
                                       .last = edge(draw(w, strands * state, 1), w, state),
                                       .first_out = edge(comes_out(w, strands * state, 1), w, state)};
    runs(w, run_adjoint, c, (cost){steps, steps * flops, weights + steps * (double)(3 * state + 2 * tape) + edges});
}

// ---- full recurrent weights ----

static void gates(work *w, dpcri_gates_kind kind, const dpcri_gates_variant *variant, bool back) {
    const int64_t H = w->width, rows = dpcri_gates_count[kind] * H, P = variant ? variant->projection : 0;
    const dpcri_nn_kernels *nn = dpcri_nn_kernels_at(w->level, w->dtype);
    gates_call c = {.kernels = dpcri_gates_kernels_at(w->level, w->dtype)};
    c.gates = (dpcri_gates){
        .context = w->context, .kind = kind, .activation = DPCRI_ACT_TANH, .width = H, .bias = draw(w, H, 1)};
    int64_t forward, backward;
    const double size = 1 / sqrt((double)H);
    if (variant) {
        int64_t project, unproject;
        c.gates.varied = true, c.gates.variant = *variant;
        if (variant->peepholes) c.gates.variant.peephole = draw(w, 3 * H, 1);
        if (!dpcri_gates_packed_variant(c.kernels, &c.gates, &forward, &backward) ||
            !dpcri_gates_packed_matrix(c.kernels, P, H, &project, &unproject))
            exit(3);
        const void *weight = draw(w, rows * dpcri_gates_outputs(&c.gates), size);
        void *f = room(w, forward), *b = room(w, backward);
        void *there = room(w, project), *from = room(w, unproject);
        dpcri_gates_pack_variant(c.kernels, nn, &c.gates, weight, f, b);
        if (P > 0) dpcri_gates_pack_matrix(c.kernels, nn, P, H, draw(w, P * H, size), there, from);
        c.gates.forward = f, c.gates.backward = b, c.gates.variant.project = there, c.gates.variant.unproject = from;
    } else {
        if (!dpcri_gates_packed(c.kernels, kind, H, &forward, &backward)) exit(3);
        const void *weight = draw(w, rows * H, size);
        void *f = room(w, forward), *b = room(w, backward);
        dpcri_gates_pack(c.kernels, nn, kind, H, weight, f, b);
        c.gates.forward = f, c.gates.backward = b;
    }
    const double weights = (double)(rows * dpcri_gates_outputs(&c.gates) + P * H);
    run_strands(w, &c, back, weights, 2 * weights + (back ? 10 : FUNCTION) * (double)rows);
}

static const dpcri_gates_variant reset_before = {.reset_before = true};
static dpcri_gates_variant all_of_lstm(const work *w) {
    return (dpcri_gates_variant){.clip = 2, .peepholes = true, .projection = w->width / 2};
}

static void rnn(work *w) { gates(w, DPCRI_GATES_RNN, NULL, false); }
static void rnn_back(work *w) { gates(w, DPCRI_GATES_RNN, NULL, true); }
static void gru(work *w) { gates(w, DPCRI_GATES_GRU, NULL, false); }
static void gru_back(work *w) { gates(w, DPCRI_GATES_GRU, NULL, true); }
static void lstm(work *w) { gates(w, DPCRI_GATES_LSTM, NULL, false); }
static void lstm_back(work *w) { gates(w, DPCRI_GATES_LSTM, NULL, true); }
static void gru_variant(work *w) { gates(w, DPCRI_GATES_GRU, &reset_before, false); }
static void gru_variant_back(work *w) { gates(w, DPCRI_GATES_GRU, &reset_before, true); }
static void lstm_variant(work *w) {
    const dpcri_gates_variant variant = all_of_lstm(w);
    gates(w, DPCRI_GATES_LSTM, &variant, false);
}
static void lstm_variant_back(work *w) {
    const dpcri_gates_variant variant = all_of_lstm(w);
    gates(w, DPCRI_GATES_LSTM, &variant, true);
}

// ---- units that do not mix ----

static dpcri_gates apart_of(work *w, dpcri_gates_kind kind) {
    const int64_t H = w->width;
    const void *diagonals = draw(w, 3 * H, 0.5), *peepholes = draw(w, 2 * H, 0.5);
    return (dpcri_gates){.context = w->context,
                         .kind = kind,
                         .width = H,
                         .forward = kind == DPCRI_PARA_LINEAR ? NULL : diagonals,
                         .bias = kind == DPCRI_PARA_LSTM ? peepholes : NULL};
}

static void para(work *w, dpcri_gates_kind kind, bool back) {
    gates_call c = {.kernels = &dpcri_para_kernels_at(w->level, w->dtype)->gates, .gates = apart_of(w, kind)};
    const double gate = (double)(dpcri_gates_count[kind] * w->width), numbers = kind == DPCRI_PARA_LINEAR ? 0 : gate;
    run_strands(w, &c, back, numbers, gate * (back ? 10 : FUNCTION + 2));
}
static void para_gru(work *w) { para(w, DPCRI_PARA_GRU, false); }
static void para_gru_back(work *w) { para(w, DPCRI_PARA_GRU, true); }
static void para_lstm(work *w) { para(w, DPCRI_PARA_LSTM, false); }
static void para_lstm_back(work *w) { para(w, DPCRI_PARA_LSTM, true); }
static void para_linear(work *w) { para(w, DPCRI_PARA_LINEAR, false); }
static void para_linear_back(work *w) { para(w, DPCRI_PARA_LINEAR, true); }

typedef struct para_call {
    const dpcri_para_kernels *kernels;
    dpcri_gates gates;
    dpcri_para_linearised linearised;
    dpcri_para_sums sums;
} para_call;

static void run_linearise(void *argument) {
    const para_call *c = argument;
    c->kernels->linearise(&c->gates, &c->linearised);
}

// One step of each of `rows` lanes.
static void para_linearise(work *w, dpcri_gates_kind kind) {
    const int64_t H = w->width, lanes = w->rows, count = dpcri_gates_count[kind] * H,
                  state = dpcri_gates_state[kind] * H, values = kind == DPCRI_PARA_LSTM ? 4 * H : H;
    para_call c = {.kernels = dpcri_para_kernels_at(w->level, w->dtype), .gates = apart_of(w, kind)};
    c.linearised = (dpcri_para_linearised){.lanes = lanes,
                                           .rows = 1,
                                           .input = {draw(w, lanes * count, 1), count, 0, count},
                                           .in = {draw(w, lanes * state, 1), state, 0, state},
                                           .f = {comes_out(w, lanes * state, 1), state, 0, state},
                                           .a = {comes_out(w, lanes * values, 1), values, 0, values},
                                           .stride = 1};
    const double steps = (double)lanes;
    runs(w, run_linearise, &c,
         (cost){steps, steps * (double)count * (FUNCTION + 8), steps * (double)(count + 2 * state + values)});
}
static void para_gru_linearise(work *w) { para_linearise(w, DPCRI_PARA_GRU); }
static void para_lstm_linearise(work *w) { para_linearise(w, DPCRI_PARA_LSTM); }
static void para_linear_linearise(work *w) { para_linearise(w, DPCRI_PARA_LINEAR); }

static void run_sums(void *argument) {
    const para_call *c = argument;
    c->kernels->sums(&c->gates, &c->sums);
}

static void para_sums(work *w, dpcri_gates_kind kind) {
    const int64_t H = w->width, rows = w->rows, tape = dpcri_gates_tape[kind] * H, state = dpcri_gates_state[kind] * H;
    para_call c = {.kernels = dpcri_para_kernels_at(w->level, w->dtype), .gates = apart_of(w, kind)};
    c.sums = (dpcri_para_sums){.rows = rows,
                               .e = draw(w, rows * tape, 1),
                               .before = draw(w, rows * state, 1),
                               .after = draw(w, rows * state, 1),
                               .e_row = tape,
                               .before_row = state,
                               .after_row = state,
                               .diagonals = comes_out(w, 3 * H, 1),
                               .peepholes = kind == DPCRI_PARA_LSTM ? comes_out(w, 2 * H, 1) : NULL,
                               .to = H};
    const double all = (double)(rows * H), sums = kind == DPCRI_PARA_LSTM ? 5 : 3;
    runs(w, run_sums, &c, (cost){(double)rows, 2 * sums * all, (double)(rows * (tape + 2 * state))});
}
static void para_gru_sums(work *w) { para_sums(w, DPCRI_PARA_GRU); }
static void para_lstm_sums(work *w) { para_sums(w, DPCRI_PARA_LSTM); }

void show_recurrent(dpcri_isa level, dpcr_dtype dtype) {
    static const int64_t widths[] = {32, 128};
    enum { ROWS = 16, LANES = 64 };
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        const int64_t H = widths[i];
        static const struct {
            const char *name;
            void (*go)(work *w);
        } cells[] = {
            {"gates_rnn", rnn},
            {"gates_rnn_back", rnn_back},
            {"gates_gru", gru},
            {"gates_gru_back", gru_back},
            {"gates_lstm", lstm},
            {"gates_lstm_back", lstm_back},
            {"gates_gru_reset_before", gru_variant},
            {"gates_gru_reset_before_back", gru_variant_back},
            {"gates_lstm_variant", lstm_variant},
            {"gates_lstm_variant_back", lstm_variant_back},
            {"para_gru", para_gru},
            {"para_gru_back", para_gru_back},
            {"para_lstm", para_lstm},
            {"para_lstm_back", para_lstm_back},
            {"para_linear", para_linear},
            {"para_linear_back", para_linear_back},
        };
        const double roundings = 4 * sqrt((double)H) + FUNCTION_ERROR;
        for (size_t k = 0; k < sizeof cells / sizeof *cells; k++)
            for (int64_t rows = 1; rows <= ROWS; rows *= ROWS)
                show(&(kernel_line){cells[k].name, H, rows, roundings, cells[k].go}, level, dtype);
        const kernel_line lines[] = {
            {"para_gru_linearise", H, LANES, 2 * FUNCTION_ERROR, para_gru_linearise},
            {"para_lstm_linearise", H, LANES, 2 * FUNCTION_ERROR, para_lstm_linearise},
            {"para_linear_linearise", H, LANES, 2 * FUNCTION_ERROR, para_linear_linearise},
            {"para_gru_sums", H, LANES, 4 * sqrt(LANES), para_gru_sums},
            {"para_lstm_sums", H, LANES, 4 * sqrt(LANES), para_lstm_sums},
        };
        for (size_t k = 0; k < sizeof lines / sizeof *lines; k++) show(&lines[k], level, dtype);
    }
}
