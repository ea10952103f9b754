// SPDX-License-Identifier: MIT
// Recurrent layers as chains: the callbacks. Weights are shared by all steps, so `gradient` only leaves the gates'
// gradients e; what is made of them (the products with inputs and states) is the network's
// (model/recurrent_backward.c). Derivation: docs/math/recurrent.md.
#include "nn/recurrent.h"

#include <math.h>
#include <string.h>

#include "nn/recurrent_views.h"

// W_ih of at least WIDE_INPUT_BYTES, a second cache, is multiplied by kernels for wide matrices, WIDE_ROWS rows at a
// time so that it is read once for them, WIDE_TERMS terms of every sum at a time so that the rows' numbers stay in the
// cache. COPIED_ROWS of them at most lie side by side in scratch.
enum {
    STACK_BYTES = 1 << 16,
    CARRIED_BYTES = 1 << 12,
    PANEL = 32,
    WIDE_INPUT_BYTES = 1 << 19,
    WIDE_ROWS = 64,
    COPIED_ROWS = 2 * WIDE_ROWS,
    WIDE_TERMS = 512,
    LINE = 64,
    // Bytes of a row of inputs, and numbers made of it, from which on the next rows are fetched.
    FETCHED_BYTES = 256,
    FETCHED_GATES = 256
};

static int64_t gates_of(const dpcri_recurrent *c) { return dpcri_gates_count[c->gates.kind] * c->gates.width; }
static int64_t tape_of(const dpcri_recurrent *c) { return dpcri_gates_tapes(&c->gates); }
static int64_t state_of(const dpcri_recurrent *c) { return dpcri_gates_states(&c->gates); }
static int64_t outputs_of(const dpcri_recurrent *c) { return dpcri_gates_outputs(&c->gates); }

// ---- weights ----

// The kernels that multiply by W_ih where it is wide; else NULL.
static const dpcri_wide_kernels *wide_of(const dpcri_recurrent *c) {
    const double bytes = (double)gates_of(c) * (double)c->inputs * (double)c->kernels->element;
    return bytes >= WIDE_INPUT_BYTES ? dpcri_wide_kernels_get(c->dtype) : NULL;
}

bool dpcri_recurrent_sizes_of(const dpcri_recurrent *c, dpcri_recurrent_sizes *sizes) {
    const dpcri_wide_kernels *wide = wide_of(c);
    const int64_t panel = wide ? wide->panel : PANEL, columns = (gates_of(c) + panel - 1) / panel * panel;
    sizes->bias = gates_of(c);
    sizes->hidden_bias = c->gates.width;
    sizes->project = sizes->unproject = 0;
    sizes->peephole = c->gates.varied && c->gates.variant.peepholes ? 3 * c->gates.width : 0;
    if (!dpcri_mul(columns, c->inputs, &sizes->panels)) return false;
    if (c->apart) {  // copies, as they are
        sizes->forward = gates_of(c), sizes->backward = 0;
        sizes->hidden_bias = 2 * c->gates.width;
        return true;
    }
    if (!c->gates.varied)
        return dpcri_gates_packed(c->kernels, c->gates.kind, c->gates.width, &sizes->forward, &sizes->backward);
    return dpcri_gates_packed_variant(c->kernels, &c->gates, &sizes->forward, &sizes->backward) &&
           dpcri_gates_packed_matrix(c->kernels, c->gates.variant.projection, c->gates.width, &sizes->project,
                                     &sizes->unproject);
}

static void add_bias(const dpcri_recurrent *c, const void *from, int64_t count, void *to) {
    if (from) c->nn->multiply_add(1, count, to, count, 1, from, count, NULL, 0, to, count);
}

void dpcri_recurrent_pack_back(dpcri_recurrent *c) {
    if (c->apart) return;
    const dpcri_gates *g = &c->gates;
    if (!g->varied) {
        dpcri_gates_pack(c->kernels, c->nn, g->kind, g->width, c->weight_hh, NULL, (void *)g->backward);
        return;
    }
    dpcri_gates_pack_variant(c->kernels, c->nn, g, c->weight_hh, NULL, (void *)g->backward);
    if (c->weight_hr)
        dpcri_gates_pack_matrix(c->kernels, c->nn, g->variant.projection, g->width, c->weight_hr, NULL,
                                (void *)g->variant.unproject);
}

static void pack_forward(dpcri_recurrent *c) {
    const dpcri_gates *g = &c->gates;
    if (!g->varied) {
        dpcri_gates_pack(c->kernels, c->nn, g->kind, g->width, c->weight_hh, (void *)g->forward, NULL);
        return;
    }
    dpcri_gates_pack_variant(c->kernels, c->nn, g, c->weight_hh, (void *)g->forward, NULL);
    if (c->weight_hr)
        dpcri_gates_pack_matrix(c->kernels, c->nn, g->variant.projection, g->width, c->weight_hr,
                                (void *)g->variant.project, NULL);
}

void dpcri_recurrent_pack(dpcri_recurrent *c, const void *bias_ih, const void *bias_hh) {
    const int64_t gates = gates_of(c), H = c->gates.width, I = c->inputs;
    const size_t element = c->kernels->element;
    if (c->apart) {
        if (c->weight_hh) memcpy((void *)c->gates.forward, c->weight_hh, (size_t)gates * element);
        if (c->peephole) memcpy((void *)c->gates.bias, c->peephole, (size_t)(2 * H) * element);
    } else {
        pack_forward(c);
        memset((void *)c->gates.bias, 0, (size_t)H * element);
    }
    if (c->weight_ch) memcpy((void *)c->gates.variant.peephole, c->weight_ch, (size_t)(3 * H) * element);
    memset((void *)c->bias, 0, (size_t)gates * element);
    add_bias(c, bias_ih, gates, (void *)c->bias);
    const bool gru = c->gates.kind == DPCRI_GATES_GRU && !(c->gates.varied && c->gates.variant.reset_before);
    add_bias(c, bias_hh, gru ? 2 * H : gates, (void *)c->bias);
    if (gru && bias_hh) add_bias(c, (const char *)bias_hh + (size_t)(2 * H) * element, H, (void *)c->gates.bias);
    const dpcri_wide_kernels *wide = wide_of(c);
    if (wide) {
        wide->pack(true, I, gates, c->weight_ih, I, 0, dpcri_wide_panels(wide, gates), (void *)c->panels);
        return;
    }
    char *panel = (char *)c->panels;
    for (int64_t j = 0; j < gates; j += PANEL, panel += (size_t)(I * PANEL) * element)
        c->nn->transpose(gates - j < PANEL ? gates - j : PANEL, I,
                         (const char *)c->weight_ih + (size_t)(j * I) * element, I, panel, PANEL);
}

// Of the lines of m rows of inputs, x_row numbers apart, those from `from` on: to the second cache.
static void fetch_lines(const dpcri_recurrent *c, int64_t m, const char *x, int64_t x_row, int64_t from, int64_t end) {
    const int64_t element = (int64_t)c->kernels->element, lines = (c->inputs * element + LINE - 1) / LINE;
    for (int64_t i = from; i < end && i < m * lines; i++)
        __builtin_prefetch(x + i / lines * x_row * element + i % lines * LINE, 0, 2);
}

// u = x W_ih^T + bias of m rows, x_row numbers apart, to rows u_row apart. ahead: 0 or numbers from x to what comes
// next, which is fetched panel by panel.
static void project(const dpcri_recurrent *c, int64_t m, const void *x, int64_t x_row, void *u, int64_t u_row,
                    int64_t ahead) {
    const int64_t gates = gates_of(c), I = c->inputs;
    const size_t element = c->kernels->element;
    const dpcri_wide_kernels *wide = wide_of(c);
    for (int64_t k = 0; wide && k < I; k += WIDE_TERMS)
        wide->product(&(dpcri_wide_product){.rows = m,
                                            .depth = I,
                                            .columns = gates,
                                            .a = x,
                                            .a_row = x_row,
                                            .packed = c->panels,
                                            .init = c->bias,
                                            .c = u,
                                            .c_row = u_row,
                                            .from = k,
                                            .to = I - k < WIDE_TERMS ? I : k + WIDE_TERMS,
                                            .streams = wide->streams});
    const int64_t lines = ahead ? m * ((I * (int64_t)element + LINE - 1) / LINE) : 0;
    for (int64_t j = 0; !wide && j < gates; j += PANEL) {
        if (ahead)
            fetch_lines(c, m, (const char *)x + ahead * (int64_t)element, x_row, lines * j / gates,
                        lines * (j + PANEL) / gates);
        c->nn->product(&(dpcri_product){.m = m,
                                        .n = gates - j < PANEL ? gates - j : PANEL,
                                        .depth = c->inputs,
                                        .a = x,
                                        .a_row = x_row,
                                        .a_col = 1,
                                        .b = (const char *)c->panels + (size_t)(j * c->inputs) * element,
                                        .b_row = PANEL,
                                        .init = (const char *)c->bias + (size_t)j * element,
                                        .init_row = 0,
                                        .c = (char *)u + (size_t)j * element,
                                        .c_row = u_row});
    }
}

static const char *input_at(const dpcri_recurrent *c, int64_t step, int64_t row) {
    return (const char *)c->x.data + (step * c->x.step + row * c->x.row) * (int64_t)c->kernels->element;
}

static bool copies_rows(const dpcri_recurrent *c, int64_t lanes) { return lanes > 1 && wide_of(c); }

size_t dpcri_recurrent_products_bytes(const dpcri_recurrent *c, int64_t lanes, int64_t steps, int64_t rows) {
    const int64_t all = lanes * steps * rows, most = all < COPIED_ROWS ? all : COPIED_ROWS;
    const int64_t copied = copies_rows(c, lanes) ? most : 0;
    return c->given.data ? 0 : (size_t)(all * gates_of(c) + copied * c->inputs) * c->kernels->element;
}

// The rows of all lanes copied side by side, behind the products, so that one product reads the weights once for
// COPIED_ROWS of them.
static void project_copied(const dpcri_recurrent *c, const dpcr_span *span, int64_t first, int64_t steps, char *u) {
    const int64_t lane = steps * span->rows, all = span->lanes * lane, gates = gates_of(c);
    const size_t element = c->kernels->element, row = (size_t)c->inputs * element;
    char *const copies = u + (size_t)(all * gates) * element;
    for (int64_t from = 0; from < all; from += COPIED_ROWS) {
        const int64_t count = all - from < COPIED_ROWS ? all - from : COPIED_ROWS;
        for (int64_t i = from; i < from + count; i++)
            memcpy(copies + (size_t)(i - from) * row,
                   input_at(c, first + i / lane * span->stride + i % lane / span->rows, span->row + i % span->rows),
                   row);
        project(c, count, copies, c->inputs, u + (size_t)(from * gates) * element, gates, 0);
    }
}

// ---- sequences that end before the batch does ----

// Of `count` steps from `step` on, those before the row's end.
static int64_t live_steps(const dpcri_recurrent *c, int64_t row, int64_t step, int64_t count) {
    const int64_t left = c->ends[row] - step;
    return left < 0 ? 0 : left < count ? left : count;
}

// Of `rows` rows from `row` on, those up to the last one that goes on at `step`.
static int64_t live_rows(const dpcri_recurrent *c, int64_t row, int64_t rows, int64_t step) {
    while (rows > 0 && c->ends[row + rows - 1] <= step) rows--;
    return rows;
}

// [steps][rows]; what is past the ends is left as it is, which nobody reads. By steps, up to the last row that goes on,
// or by rows, whichever makes fewer products of rows: a product takes some two rows' time besides.
static void project_live(const dpcri_recurrent *c, int64_t step, int64_t steps, int64_t row, int64_t rows, char *u) {
    enum { CALL = 2 };
    const int64_t gates = gates_of(c), element = (int64_t)c->kernels->element;
    int64_t by_steps = 0, by_rows = 0;
    for (int64_t k = 0; k < steps; k++) by_steps += live_rows(c, row, rows, step + k) + CALL;
    for (int64_t r = 0; r < rows; r++) by_rows += live_steps(c, row + r, step, steps) + CALL;
    for (int64_t k = 0; k < steps && by_steps <= by_rows; k++) {
        const int64_t live = live_rows(c, row, rows, step + k);
        if (live > 0) project(c, live, input_at(c, step + k, row), c->x.row, u + k * rows * gates * element, gates, 0);
    }
    for (int64_t r = 0; r < rows && by_steps > by_rows; r++) {
        const int64_t live = live_steps(c, row + r, step, steps);
        if (live > 0) project(c, live, input_at(c, step, row + r), c->x.step, u + r * gates * element, rows * gates, 0);
    }
}

static bool all_live(const dpcri_recurrent *c, int64_t row, int64_t rows, int64_t end) {
    bool live = true;
    for (int64_t r = 0; c->ends && r < rows; r++) live = live && c->ends[row + r] >= end;
    return live;
}

// [lanes][steps][rows], in the fewest products: those of a lane at once where its rows lie evenly, else by steps or by
// rows; or, where there are more lanes, those of a step and row in all lanes.
void dpcri_recurrent_project(const dpcri_recurrent *c, const dpcr_span *span, int64_t begin, int64_t steps, char *u) {
    const int64_t gates = gates_of(c), rows = span->rows, lane = steps * rows * gates,
                  element = (int64_t)c->kernels->element;
    const int64_t first = span->first + begin, row = span->row;
    if (span->lanes == 1 && !all_live(c, row, rows, first + steps)) {
        project_live(c, first, steps, row, rows, u);
        return;
    }
    const bool even = rows == 1 || steps == 1 || c->x.step == rows * c->x.row;
    if (copies_rows(c, span->lanes)) {
        project_copied(c, span, first, steps, u);
        return;
    }
    // Rows of a batch, not lanes, each of which a processor sees coming.
    const bool worth = c->inputs * element >= FETCHED_BYTES && gates >= FETCHED_GATES;
    const int64_t ahead = worth && rows > 1 && begin + 2 * steps <= span->steps ? steps * c->x.step : 0;
    const int64_t together = even ? steps * rows : rows > steps ? rows : steps;
    if (span->lanes > together) {
        for (int64_t k = 0; k < steps; k++)
            for (int64_t r = 0; r < rows; r++)
                project(c, span->lanes, input_at(c, first + k, row + r), span->stride * c->x.step,
                        u + (k * rows + r) * gates * element, lane, ahead);
        return;
    }
    for (int64_t l = 0; l < span->lanes; l++, u += lane * element) {
        const int64_t step = first + l * span->stride;
        if (even)
            project(c, steps * rows, input_at(c, step, row), rows == 1 ? c->x.step : c->x.row, u, gates, ahead);
        else if (rows > steps)
            for (int64_t k = 0; k < steps; k++)
                project(c, rows, input_at(c, step + k, row), c->x.row, u + k * rows * gates * element, gates, ahead);
        else
            for (int64_t r = 0; r < rows; r++)
                project(c, steps, input_at(c, step, row + r), c->x.step, u + r * gates * element, rows * gates, ahead);
    }
}

dpcri_grid dpcri_recurrent_products(const dpcri_recurrent *c, const dpcr_span *span, int64_t begin, int64_t steps,
                                    char *u) {
    const int64_t gates = gates_of(c);
    if (!c->given.data) {
        dpcri_recurrent_project(c, span, begin, steps, u);
        return (dpcri_grid){u, steps * span->rows * gates, span->rows * gates, gates};
    }
    const dpcri_grid all = {c->given.data, span->stride * c->given.step, c->given.step, c->given.row};
    return at(from_step(all, span->first + begin, c->kernels->element), 0, span->row, c->kernels->element);
}

// ---- scratch ----

// Memory for `wanted` bytes: the caller's piece of stack, or of the context where that is too small.
static char *scratch_of(const dpcri_recurrent *c, char *stack, size_t wanted) {
    return wanted <= STACK_BYTES ? stack : dpcri_alloc(c->context, wanted);
}

// Steps whose products fit the stack, a multiple of four: with ten of them a GRU's step took 4 to 7 % longer than with
// eight or twenty. Where no more than four fit: of wide inputs at least as many as make WIDE_ROWS rows.
static int64_t block_of(const dpcri_recurrent *c, int64_t strands, int64_t numbers, int64_t steps) {
    const int64_t each = strands * numbers * (int64_t)c->kernels->element, fit = each > 0 ? STACK_BYTES / each : 1;
    const int64_t least = strands > 0 && wide_of(c) ? (WIDE_ROWS + strands - 1) / strands : 1;
    const int64_t few = fit > least ? fit : least, block = fit > 4 ? fit / 4 * 4 : few;
    return block < steps ? block : steps;
}

enum { NO_MEMORY = DPCR_ERROR_MEMORY };

static dpcri_marks resets_from(const dpcri_recurrent *c, int64_t row) {
    dpcri_marks marks = c->resets;
    if (marks.at) marks.at += row;
    return marks;
}

// ---- forward ----

// Where h of the span's steps from `begin` on goes besides.
static dpcri_grid hidden_of(const dpcri_recurrent *c, const dpcr_span *span, int64_t begin) {
    const dpcri_grid all = {c->hidden.data, span->stride * c->hidden.step, c->hidden.step, c->hidden.row};
    return at(from_step(all, span->first + begin, c->kernels->element), 0, span->row, c->kernels->element);
}

// Whether rows of other threads lie in the pages that a thread writes its rows of every step to, and all of it is more
// than what stays in cache anyhow.
static bool beside_others(const dpcri_recurrent *c, const dpcr_span *span) {
    enum { PAGE = 1 << 12, MANY = 1 << 19 };
    const double row = (double)state_of(c) * (double)c->kernels->element;
    return dpcr_context_threads(c->context) > 1 && span->lanes == 1 && span->rows < c->batch &&
           (double)span->rows * row < PAGE && (double)c->length * (double)c->batch * row >= MANY;
}

static bool advance_block(const dpcri_recurrent *c, const dpcr_span *span, int64_t begin, int64_t steps, dpcri_grid in,
                          dpcri_grid states, dpcri_grid last, dpcri_grid tape, char *u) {
    const dpcri_gates_forward run = {.lanes = span->lanes,
                                     .steps = steps,
                                     .rows = span->rows,
                                     .input = dpcri_recurrent_products(c, span, begin, steps, u),
                                     .in = in,
                                     .states = states,
                                     .last = last,
                                     .tape = tape,
                                     .hidden = states.data ? hidden_of(c, span, begin) : (dpcri_grid){0},
                                     .beside = beside_others(c, span),
                                     .ends = c->ends ? c->ends + span->row : NULL,
                                     .first = span->first + begin,
                                     .stride = span->stride,
                                     .resets = resets_from(c, span->row)};
    return c->apart ? dpcri_para_advance(c, &run) : dpcri_units_advance(c, &run);
}

static int advance(void *user, const dpcr_span *span, const dpcr_array *in_, const dpcr_array *states_,
                   const dpcr_array *last_, const dpcr_array *tape_) {
    const dpcri_recurrent *c = user;
    _Alignas(64) char stack[STACK_BYTES];
    const size_t element = c->kernels->element;
    const int64_t strands = span->lanes * span->rows;
    const int64_t block = c->given.data ? span->steps : block_of(c, strands, gates_of(c), span->steps);
    char *u = scratch_of(c, stack, dpcri_recurrent_products_bytes(c, span->lanes, block, span->rows));
    if (!u) return NO_MEMORY;
    dpcri_grid in = grid_of(in_), last = grid_of(last_);
    const dpcri_grid states = grid_of(states_), tape = grid_of(tape_);
    _Alignas(64) char carried[CARRIED_BYTES];  // from block to block, where the states leave the cache
    if (!last.data && beside_others(c, span) && span->rows * state_of(c) * (int64_t)element <= CARRIED_BYTES)
        last = (dpcri_grid){.data = carried, .row = state_of(c)};
    bool done = true;
    for (int64_t k = 0; done && k < span->steps; k += block) {
        const int64_t count = span->steps - k < block ? span->steps - k : block;
        done =
            advance_block(c, span, k, count, in, from_step(states, k, element), last, from_step(tape, k, element), u);
        in = last.data ? last : from_step(states, k + count - 1, element);
    }
    if (u != stack) dpcri_free(c->context, u);
    return done ? 0 : NO_MEMORY;
}

// The tape of `count` steps from `first` on, of rows row .. row + rows - 1, at the states that go in.
static bool retrace(const dpcri_recurrent *c, int64_t first, int64_t count, int64_t row, int64_t rows, dpcri_grid in,
                    dpcri_grid tape, char *u) {
    const dpcr_span span = {.first = first, .lanes = count, .stride = 1, .steps = 1, .row = row, .rows = rows};
    return advance_block(c, &span, 0, 1, (dpcri_grid){in.data, in.step, 0, in.row}, (dpcri_grid){0}, (dpcri_grid){0},
                         (dpcri_grid){tape.data, tape.step, 0, tape.row}, u);
}

// ---- Jacobians ----

#define T float
#define J(name) name##_f32
#include "nn/recurrent_jacobian.inc"
#undef T
#undef J
#define T double
#define J(name) name##_f64
#include "nn/recurrent_jacobian.inc"
#undef T
#undef J

// Rows of the Jacobian are what the adjoint makes of the unit vectors.
static bool jacobian_by_adjoint(const dpcri_recurrent *c, const void *state, const void *tape, void *a) {
    const int64_t w = state_of(c);
    for (int64_t i = 0; i < w; i++)
        if (c->dtype == DPCR_F64)
            ((double *)a)[i * (w + 1)] = 1;
        else
            ((float *)a)[i * (w + 1)] = 1;
    const dpcri_grid unit = {.data = a, .lane = w};
    return c->kernels->adjoint(&c->gates, &(dpcri_gates_adjoint){.lanes = w,
                                                                 .steps = 1,
                                                                 .rows = 1,
                                                                 .in = {.data = (void *)state},
                                                                 .tape = {.data = (void *)tape},
                                                                 .last = unit,
                                                                 .first_out = unit,
                                                                 .stride = 1});
}

// False: no memory.
static bool jacobian_of(const dpcri_recurrent *c, int64_t step, int64_t row, const void *state, const void *tape,
                        void *a) {
    const bool past = c->ends && step >= c->ends[row];
    const bool reset = !past && c->resets.at && c->resets.at[step * c->resets.step + row];
    if (reset || c->gates.varied) memset(a, 0, (size_t)(state_of(c) * state_of(c)) * c->kernels->element);
    if (reset) return true;
    if (c->gates.varied && !past) return jacobian_by_adjoint(c, state, tape, a);
    if (c->dtype == DPCR_F64)
        jacobian_f64(&c->gates, past, c->weight_hh, state, tape, a);
    else
        jacobian_f32(&c->gates, past, c->weight_hh, state, tape, a);
    return true;
}

static int linearise(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *f,
                     const dpcr_array *a) {
    const dpcri_recurrent *c = user;
    const size_t element = c->kernels->element;
    const dpcri_grid from = grid_of(in), to = grid_of(f), jacobian = grid_of(a);
    enum { TAPES = 10 };  // most widths of a tape
    _Alignas(64) char u[DPCRI_RECURRENT_JACOBIAN * DPCRI_GATES_MOST * sizeof(double)],
        kept[DPCRI_RECURRENT_JACOBIAN * TAPES * sizeof(double)];
    for (int64_t l = 0; l < span->lanes; l++)
        for (int64_t r = 0; r < span->rows; r++) {
            const dpcr_span one = {.first = span->first + l * span->stride,
                                   .lanes = 1,
                                   .stride = 1,
                                   .steps = 1,
                                   .row = span->row + r,
                                   .rows = 1};
            const dpcri_grid state = at(from, l, r, element);
            if (!advance_block(c, &one, 0, 1, state, (dpcri_grid){0}, at(to, l, r, element), (dpcri_grid){.data = kept},
                               u))
                return NO_MEMORY;
            if (jacobian.data &&
                !jacobian_of(c, one.first, one.row, state.data, kept, at(jacobian, l, r, element).data))
                return NO_MEMORY;
        }
    return 0;
}

// ---- backward ----

static bool adjoint_of(const dpcri_recurrent *c, const dpcri_gates_adjoint *run) {
    return c->apart ? dpcri_para_adjoint(c, run) : dpcri_units_adjoint(c, run);
}

int64_t dpcri_recurrent_block_of(const dpcri_recurrent *c, int64_t row) {
    int64_t block = 0;
    while (block + 1 < c->blocks && row >= c->block_begin[block + 1]) block++;
    return block;
}

// Products go down the columns of e: rows a multiple of so many bytes apart would fall on few sets of the first cache.
int64_t dpcri_recurrent_block_width(const dpcri_recurrent *c) {
    enum { FEW_SETS = 256 };
    const int64_t tape = tape_of(c), element = (int64_t)c->kernels->element;
    return tape * element % FEW_SETS ? tape : tape + LINE / element;
}

dpcri_grid dpcri_recurrent_block_e(const dpcri_recurrent *c, int64_t step, int64_t row) {
    const int64_t block = dpcri_recurrent_block_of(c, row), window = (c->length - 1 - step) / c->block_window;
    const int64_t begin = c->block_begin[block], rows = c->block_begin[block + 1] - begin;
    const int64_t end = c->length - window * c->block_window, first = end - c->block_window;
    const int64_t width = dpcri_recurrent_block_width(c), one = rows * width;
    const int64_t slot = c->turned ? end - 1 - step : step - (first > 0 ? first : 0);
    const int64_t at = begin * c->block_window * width + slot * one;
    return (dpcri_grid){
        .data = (char *)c->block_e + at * (int64_t)c->kernels->element, .step = c->turned ? -one : one, .row = width};
}

// The adjoint loop of one lane, from its last step down, block by block where the tape must be made again.
static bool adjoint_blocks(const dpcri_recurrent *c, const dpcri_gates_adjoint *run, const dpcr_span *span) {
    const size_t element = c->kernels->element;
    const int64_t tape = tape_of(c), rows = run->rows, block = block_of(c, rows, tape + gates_of(c), run->steps);
    const size_t products = dpcri_recurrent_products_bytes(c, block, 1, rows);
    _Alignas(64) char stack[STACK_BYTES];
    char *u = scratch_of(c, stack, products + (size_t)(block * rows * tape) * element);
    if (!u) return false;
    const dpcri_grid kept = {u + products, 0, rows * tape, tape};
    bool done = true;
    for (int64_t end = run->steps; done && end > 0; end -= block) {
        const int64_t begin = end > block ? end - block : 0;
        dpcri_gates_adjoint part = *run;
        part.steps = end - begin;
        part.first = run->first + begin;
        part.in = from_step(run->in, begin, element);
        part.direct = from_step(run->direct, begin, element);
        part.kept = from_step(run->kept, begin, element);
        part.tape = kept;
        if (end < run->steps) part.last = run->first_out;
        done = retrace(c, part.first, part.steps, span->row, rows, part.in, kept, u) && adjoint_of(c, &part);
    }
    if (u != stack) dpcri_free(c->context, u);
    return done;
}

static int adjoint_without_tape(const dpcri_recurrent *c, const dpcri_gates_adjoint *run, const dpcr_span *span) {
    const size_t element = c->kernels->element;
    const dpcri_grid own = {.row = state_of(c)};  // where nobody wants what comes out
    void *g = NULL;
    if (!run->first_out.data && !(g = dpcri_alloc(c->context, (size_t)(span->rows * state_of(c)) * element)))
        return NO_MEMORY;
    bool done = true;
    for (int64_t l = 0; done && l < span->lanes; l++) {
        dpcri_gates_adjoint one = *run;
        one.lanes = 1;
        one.first = span->first + l * span->stride;
        one.in = at(run->in, l, 0, element);
        one.direct = at(run->direct, l, 0, element);
        one.kept = at(run->kept, l, 0, element);
        one.last = at(run->last, l, 0, element);
        one.first_out = at(run->first_out, l, 0, element);
        if (g) one.first_out = own, one.first_out.data = g;
        done = adjoint_blocks(c, &one, span);
    }
    dpcri_free(c->context, g);
    return done ? 0 : NO_MEMORY;
}

static int adjoint(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                   const dpcr_array *direct, const dpcr_array *last, const dpcr_array *kept,
                   const dpcr_array *first_out) {
    const dpcri_recurrent *c = user;
    const bool taped = tape && tape->data;
    dpcri_gates_adjoint run = {.lanes = span->lanes,
                               .steps = span->steps,
                               .rows = span->rows,
                               .in = grid_of(in),
                               .tape = grid_of(tape),
                               .direct = grid_of(direct),
                               .kept = grid_of(kept),
                               .last = grid_of(last),
                               .first_out = grid_of(first_out),
                               .ends = c->ends ? c->ends + span->row : NULL,
                               .first = span->first,
                               .stride = span->stride,
                               .resets = resets_from(c, span->row)};
    if (c->outer.data) {
        const dpcri_grid by_step = {c->outer.data, c->outer.step, 0, c->outer.row};
        run.direct = at(by_step, span->first, span->row, c->kernels->element);
        run.direct.step = c->outer.step;
        run.direct.lane = span->stride * c->outer.step;
        run.direct_is_h = true;
    }
    if (taped && !run.kept.data)  // gradient_from_tape
        run.e = c->block_e ? dpcri_recurrent_block_e(c, span->first, span->row) : run.tape;
    if (taped) return adjoint_of(c, &run) ? 0 : NO_MEMORY;
    return adjoint_without_tape(c, &run, span);
}

// Where e of the span's first step lies: in a place of its own, or in the tape.
static dpcri_grid place_of_gradients(const dpcri_recurrent *c, const dpcr_span *span, const dpcr_array *tape) {
    if (!c->gradients.data) return grid_of(tape);
    const dpcri_grid by_lane = {c->gradients.data, c->gradients.step, 0, c->gradients.row};
    if (!c->window) return at(by_lane, span->first, span->row, c->kernels->element);
    return by_lane.lane < 0 ? at(by_lane, 1 - span->lanes, span->row, c->kernels->element) : by_lane;
}

// e of steps first .. first + lanes - 1, where the adjoint loop has not left it.
static int gates_of_adjoint(const dpcri_recurrent *c, const dpcr_span *span, const dpcr_array *in,
                            const dpcr_array *tape, const dpcr_array *lambda) {
    const dpcri_grid e = place_of_gradients(c, span, tape);
    if (!lambda || !lambda->data) return 0;
    if (!e.data) return c->products ? DPCR_ERROR_ARGUMENT : 0;  // nowhere to leave e, which the products want
    dpcri_gates_adjoint run = {.lanes = span->lanes,
                               .steps = 1,
                               .rows = span->rows,
                               .in = grid_of(in),
                               .tape = grid_of(tape),
                               .e = e,
                               .last = grid_of(lambda),
                               .ends = c->ends ? c->ends + span->row : NULL,
                               .first = span->first,
                               .stride = 1,
                               .gates_only = true,
                               .resets = resets_from(c, span->row)};
    if (run.tape.data) return adjoint_of(c, &run) ? 0 : NO_MEMORY;
    // Without a tape it is made again, where e comes to lie.
    _Alignas(64) char stack[STACK_BYTES];
    const size_t element = c->kernels->element;
    const int64_t rows = span->rows, block = block_of(c, rows, gates_of(c), span->lanes);
    char *u = scratch_of(c, stack, dpcri_recurrent_products_bytes(c, block, 1, rows));
    if (!u) return NO_MEMORY;
    const dpcri_gates_adjoint all = run;
    bool done = true;
    for (int64_t l = 0; done && l < span->lanes; l += block) {
        run.lanes = span->lanes - l < block ? span->lanes - l : block;
        run.first = span->first + l;
        run.in = at(all.in, l, 0, element);
        run.last = at(all.last, l, 0, element);
        run.e = run.tape = at(e, l, 0, element);
        done = retrace(c, run.first, run.lanes, span->row, rows, (dpcri_grid){run.in.data, 0, run.in.lane, run.in.row},
                       (dpcri_grid){run.e.data, 0, run.e.lane, run.e.row}, u) &&
               adjoint_of(c, &run);
    }
    if (u != stack) dpcri_free(c->context, u);
    return done ? 0 : NO_MEMORY;
}

// Lanes from .. from + count - 1 of what is [lanes][rows][w].
static dpcr_array some_lanes(const dpcr_array *all, int64_t from, int64_t count) {
    dpcr_array view = *all;
    view.data = (char *)all->data + from * stride_of(all, 2) * (int64_t)dpcr_dtype_size(all->dtype);
    view.shape[0] = count;
    return view;
}

// Window by window, in the order in which e lies, so that sums have the order of one call.
static int gradient_by_windows(const dpcri_recurrent *c, const dpcr_span *span, const dpcr_array *in,
                               const dpcr_array *lambda) {
    int code = 0;
    for (int64_t done = 0, count; code == 0 && done < span->lanes; done += count) {
        count = span->lanes - done < c->window ? span->lanes - done : c->window;
        const int64_t from = c->gradients.step < 0 ? span->lanes - done - count : done;
        const dpcr_array part = some_lanes(in, from, count), adjoint = some_lanes(lambda, from, count);
        dpcr_span some = *span;
        some.first = span->first + from;
        some.lanes = count;
        code = gates_of_adjoint(c, &some, &part, NULL, &adjoint);
        if (code == 0 && c->products) c->products(c->products_user, some.first, count, span->row, span->rows);
    }
    return code;
}

static int gradient(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                    const dpcr_array *lambda) {
    const dpcri_recurrent *c = user;
    if (c->window) return gradient_by_windows(c, span, in, lambda);
    const int code = gates_of_adjoint(c, span, in, tape, lambda);
    if (code == 0 && c->products) c->products(c->products_user, span->first, span->lanes, span->row, span->rows);
    return code;
}

static void gradient_join(void *user) {
    const dpcri_recurrent *c = user;
    if (c->join) c->join(c->products_user);
}

// Chunks that share one reading of the weights: enough to fill the tiles, of gates that have several twice four; more
// where the weights come from beyond a core's caches, still more beyond all; and no more than that, for each has a
// run-up, and every thread wants a call of its own. Figures and their command: "Chunks a call" in
// docs/performance/recurrent.md.
static int64_t lanes_of(const dpcri_recurrent *c) {
    enum { CORE = 1 << 18, CACHES = 32 << 20 };
    const int64_t bytes = gates_of(c) * outputs_of(c) * (int64_t)c->kernels->element;
    if (bytes > CORE || c->gates.kind == DPCRI_GATES_RNN) return bytes > CACHES ? 48 : 16;
    return 8;
}

void dpcri_recurrent_steps(const dpcri_recurrent *c, dpcr_steps *steps) {
    const int64_t state = state_of(c);
    const double P = (double)outputs_of(c), gates = (double)gates_of(c);
    const double projected = outputs_of(c) < c->gates.width ? 2 * P * (double)c->gates.width : 0;
    *steps = (dpcr_steps){.size = sizeof *steps,
                          .user = (void *)c,
                          .length = c->length,
                          .batch = c->batch,
                          .width = state,
                          .dtype = c->dtype,
                          .concurrent = 1,
                          .jacobian = dpcr_transition_square(DPCR_DENSE, state, 0),
                          .flops = 2 * gates * (P + (c->ahead ? 0 : (double)c->inputs)) + projected,
                          .jacobian_flops = 2 * gates * P * (c->gates.varied ? (double)state : 1),
                          .lanes = lanes_of(c),
                          .tape_values = tape_of(c),
                          .gradient_from_tape = 1,
                          .kinks = c->gates.activation == DPCRI_ACT_RELU ? DPCR_KINKS_AFFINE
                                   : c->gates.variant.clip > 0           ? DPCR_KINKS_CURVED
                                                                         : DPCR_KINKS_NONE,
                          .advance = advance,
                          .linearise = state <= DPCRI_RECURRENT_JACOBIAN ? linearise : NULL,
                          .adjoint = adjoint,
                          .gradient = gradient,
                          .gradient_whole = 1,
                          .gradient_join = c->blocks > 1 ? gradient_join : NULL};
    if (c->apart) dpcri_para_steps(c, steps);
}
