// SPDX-License-Identifier: MIT
// Programs of layers. Work of one step and row, w wide, one linear layer: forward 2 w^2, adjoint 2 w^2, gradient 2 w^2,
// linearise 2 w^2 + w^2 flops. Derivations: docs/math/.
#include "nn/program.h"

static const dpcri_rows nothing = {0};

static void append(dpcri_program *p, dpcri_nn_layer layer) {
    layer.parameters = p->parameters;
    layer.tape = p->tape;
    p->parameters += layer.parameter_count;
    p->tape += layer.tape_values;
    if (layer.out > p->widest) p->widest = layer.out;
    p->layers[p->count++] = layer;
}

bool dpcri_program_make(dpcri_program *program, const dpcri_nn_kernels *kernels, const dpcri_program_options *options) {
    const int64_t w = options->width, h = options->two_layer ? options->hidden : w;
    int64_t product = 0;  // 8 (w + 4) (h + 4) bounds every count and its bytes
    if (w < 1 || h < 1 || w > INT64_MAX - 4 || h > INT64_MAX - 4 || !dpcri_mul(w + 4, h + 4, &product) ||
        !dpcri_mul(product, 64, &product))
        return false;
    *program = (dpcri_program){.kernels = kernels,
                               .residual = options->residual,
                               .width = w,
                               .widest = w,
                               .scale = options->residual ? options->scale : 1};
    append(program, dpcri_linear_layer(kernels, w, h, false));
    if (options->norm) append(program, dpcri_norm_layer(kernels, h));
    append(program, dpcri_activation_layer(kernels, h, options->activation));
    if (options->two_layer) append(program, dpcri_linear_layer(kernels, h, w, true));
    program->fused = program->count == 2;
    return true;
}

// tape (when the caller gives none), two buffers of the widest layer, and one of the state
int64_t dpcri_program_scratch(const dpcri_program *p) { return p->tape + 2 * p->widest + p->width; }

typedef struct scratch_rows {
    dpcri_rows tape, a, b, state;
} scratch_rows;

static scratch_rows carve(const dpcri_program *p, int64_t rows, void *scratch) {
    const size_t element = p->kernels->element;
    const dpcri_rows tape = {scratch, p->tape};
    const dpcri_rows a = {dpcri_rows_at(tape, rows, 0, element).data, p->widest};
    const dpcri_rows b = {dpcri_rows_at(a, rows, 0, element).data, p->widest};
    return (scratch_rows){.tape = tape, .a = a, .b = b, .state = {dpcri_rows_at(b, rows, 0, element).data, p->width}};
}

static const void *parameters_of(const dpcri_program *p, int layer, const void *parameters) {
    return (const char *)parameters + p->layers[layer].parameters * (int64_t)p->kernels->element;
}

static dpcri_rows tape_of(const dpcri_program *p, int layer, dpcri_rows tape) {
    return dpcri_rows_at(tape, 0, p->layers[layer].tape, p->kernels->element);
}

// Runs the layers; what comes out lies in the returned one of two buffers.
static dpcri_rows run_layers(const dpcri_program *p, const void *parameters, int64_t rows, dpcri_rows in,
                             dpcri_rows tape, const scratch_rows *s) {
    dpcri_rows x = in;
    for (int i = 0; i < p->count; i++) {
        const dpcri_nn_layer *layer = &p->layers[i];
        const dpcri_rows y = layer->kind->in_place ? x : x.data == s->a.data ? s->b : s->a;
        layer->kind->forward(layer, parameters_of(p, i, parameters), rows, x, y, tape_of(p, i, tape));
        x = y;
    }
    return x;
}

// Spreads the fetching over the rows of a pass.
static void prefetch_next(const dpcri_program *p, int64_t rows, const dpcri_program_next *next,
                          dpcri_prefetch list[DPCRI_PREFETCHES]) {
    int n = 0;
    if (!next || rows < 1) return;
    const int64_t line = 64 / (int64_t)p->kernels->element, lines = p->parameters / line;
    const int64_t share = (lines > rows ? lines / rows : 1) * line;  // rounded down: a few lines are left to demand
    if (next->parameters && share * rows <= p->parameters + line * rows)
        list[n++] = (dpcri_prefetch){next->parameters, share, share, 0};
    if (next->tape.data) list[n++] = (dpcri_prefetch){next->tape.data, next->tape.row, p->tape, next->out.data != NULL};
    if (next->in.data) list[n++] = (dpcri_prefetch){next->in.data, next->in.row, p->width, 0};
    if (next->out.data && n < DPCRI_PREFETCHES) list[n] = (dpcri_prefetch){next->out.data, next->out.row, p->width, 1};
}

bool dpcri_program_narrow(const dpcri_program *p, const void *parameters, dpcri_narrow *narrow) {
    *narrow = (dpcri_narrow){.dtype = p->kernels->element == sizeof(double) ? DPCR_F64 : DPCR_F32,
                             .width = p->width,
                             .activation = p->layers[1].activation,
                             .residual = p->residual,
                             .weight_in_out = true,
                             .scale = p->scale,
                             .weight = parameters,
                             .bias = (const char *)parameters + p->width * p->width * (int64_t)p->kernels->element,
                             .weight_step = p->parameters,
                             .bias_step = p->parameters};
    return p->fused && dpcri_narrow_serves(narrow);
}

// One fused layer. out.data NULL: only the slopes.
static void run_fused(const dpcri_program *p, const void *parameters, int64_t rows, dpcri_rows in, dpcri_rows out,
                      dpcri_rows tape, const dpcri_program_next *next) {
    const int64_t w = p->width;
    dpcri_narrow narrow;
    if (dpcri_program_narrow(p, parameters, &narrow)) {
        const dpcri_narrow_run run = {.lanes = 1,
                                      .steps = 1,
                                      .rows = rows,
                                      .in = in.data,
                                      .in_row = in.row,
                                      .states = out.data,
                                      .states_row = out.row,
                                      .slopes = tape.data,
                                      .slopes_row = tape.row};
        dpcri_narrow_kernels_get(narrow.dtype)->advance(&narrow, &run);
        return;
    }
    dpcri_layer layer = {.rows = rows,
                         .depth = w,
                         .width = w,
                         .activation = p->layers[1].activation,
                         .weight = parameters,
                         .bias = (const char *)parameters + w * w * (int64_t)p->kernels->element,
                         .in = in.data,
                         .in_row = in.row,
                         .residual = p->residual ? in.data : NULL,
                         .residual_row = in.row,
                         .scale = p->scale,
                         .out = out.data,
                         .out_row = out.row,
                         .slope = tape.data,
                         .slope_row = tape.row};
    prefetch_next(p, rows, next, layer.next);
    p->kernels->layer(&layer);
}

static void copy_rows(const dpcri_program *p, int64_t rows, dpcri_rows from, dpcri_rows to) {
    p->kernels->multiply_add(rows, p->width, NULL, 0, 1, from.data, from.row, NULL, 0, to.data, to.row);
}

void dpcri_program_forward(const dpcri_program *p, const void *parameters, int64_t rows, dpcri_rows in, dpcri_rows out,
                           dpcri_rows tape, void *scratch, const dpcri_program_next *next) {
    const scratch_rows s = carve(p, rows, scratch);
    if (p->fused) {
        const bool through_scratch = out.data == in.data && p->width > p->kernels->columns;
        run_fused(p, parameters, rows, in, through_scratch ? s.state : out, tape, next);
        if (through_scratch) copy_rows(p, rows, s.state, out);
        return;
    }
    const dpcri_rows f = run_layers(p, parameters, rows, in, tape.data ? tape : s.tape, &s);
    p->kernels->multiply_add(rows, p->width, p->residual ? in.data : NULL, in.row, p->scale, f.data, f.row, NULL, 0,
                             out.data, out.row);
}

// The tape at `in`, in the scratch.
static dpcri_rows make_tape(const dpcri_program *p, const void *parameters, int64_t rows, dpcri_rows in,
                            const scratch_rows *s) {
    if (p->fused)
        run_fused(p, parameters, rows, in, nothing, s->tape, NULL);
    else
        run_layers(p, parameters, rows, in, s->tape, s);
    return s->tape;
}

// Jacobian of the layers from number `first` on, forward: x through them; the result lies in the returned buffer.
static dpcri_rows push_forward(const dpcri_program *p, int first, const void *parameters, int64_t rows, dpcri_rows tape,
                               dpcri_rows x, const scratch_rows *s) {
    for (int i = first; i < p->count; i++) {
        const dpcri_nn_layer *layer = &p->layers[i];
        const dpcri_rows y = x.data == s->a.data ? s->b : s->a;
        layer->kind->jvp(layer, parameters_of(p, i, parameters), rows, tape_of(p, i, tape), x, y);
        x = y;
    }
    return x;
}

void dpcri_program_jvp(const dpcri_program *p, const void *parameters, int64_t rows, dpcri_rows in, dpcri_rows x,
                       dpcri_rows y, void *scratch) {
    const scratch_rows s = carve(p, rows, scratch);
    const dpcri_rows tape = make_tape(p, parameters, rows, in, &s);
    const dpcri_rows f = push_forward(p, 0, parameters, rows, tape, x, &s);
    p->kernels->multiply_add(rows, p->width, p->residual ? x.data : NULL, x.row, p->scale, f.data, f.row, NULL, 0,
                             y.data, y.row);
}

void dpcri_program_adjoint(const dpcri_program *p, const void *parameters, int64_t rows, dpcri_rows in, dpcri_rows tape,
                           dpcri_rows direct, dpcri_rows kept, dpcri_rows g, void *scratch,
                           const dpcri_program_next *next) {
    const scratch_rows s = carve(p, rows, scratch);
    const bool turns = dpcri_program_turns_tape(p) && tape.data && !kept.data;  // e takes the place of the slopes
    if (!tape.data) tape = make_tape(p, parameters, rows, in, &s);
    dpcri_slope_pass pass = {.rows = rows,
                             .width = p->width,
                             .scale = p->scale,
                             .g = g.data,
                             .g_row = g.row,
                             .direct = direct.data,
                             .direct_row = direct.row,
                             .kept = kept.data,
                             .kept_row = kept.row,
                             .e = turns ? tape.data : s.a.data,
                             .e_row = turns ? tape.row : s.a.row};
    if (p->fused) pass.slope = tape.data, pass.slope_row = tape.row;
    prefetch_next(p, rows, next, pass.next);
    if (!p->fused) p->kernels->slope_pass(&pass);  // else with the product below
    dpcri_rows e = turns ? tape : s.a;
    for (int i = p->fused ? 0 : p->count - 1; i > 0; i--) {
        const dpcri_nn_layer *layer = &p->layers[i];
        const dpcri_rows y = layer->kind->in_place ? e : e.data == s.a.data ? s.b : s.a;
        layer->kind->vjp(layer, parameters_of(p, i, parameters), rows, tape_of(p, i, tape), e, y);
        e = y;
    }
    // the first layer is linear: g = [g] + e W^T
    const dpcri_nn_layer *first = &p->layers[0];
    const dpcri_product back = {.m = rows,
                                .n = first->in,
                                .depth = first->out,
                                .a = e.data,
                                .a_row = e.row,
                                .a_col = 1,
                                .b = parameters,
                                .b_row = first->out,
                                .init = p->residual ? g.data : NULL,
                                .init_row = g.row,
                                .c = g.data,
                                .c_row = g.row};
    if (p->fused)
        p->kernels->adjoint(&pass, &back);
    else
        p->kernels->product_transposed(&back);
}

bool dpcri_program_turns_tape(const dpcri_program *p) { return p->fused; }

// g.data NULL: adjoint has left e in the tape.
static void gradient_fused(const dpcri_program *p, void *gradients, int64_t rows, dpcri_rows in, dpcri_rows tape,
                           dpcri_rows g, const scratch_rows *s, const dpcri_program_next *next) {
    const int64_t w = p->width;
    const bool turned = !g.data;
    const dpcri_rows e = turned ? tape : s->a;
    dpcri_slope_pass pass = {.rows = rows,
                             .width = w,
                             .scale = turned ? 1 : p->scale,
                             .g = turned ? e.data : g.data,
                             .g_row = turned ? e.row : g.row,
                             .slope = turned ? NULL : tape.data,
                             .slope_row = tape.row,
                             .e = turned ? NULL : e.data,
                             .e_row = e.row,
                             .sum = (char *)gradients + w * w * (int64_t)p->kernels->element};
    prefetch_next(p, rows, next, pass.next);
    p->kernels->gradient(&pass, &(dpcri_product){.m = w,
                                                 .n = w,
                                                 .depth = rows,
                                                 .a = in.data,
                                                 .a_row = 1,
                                                 .a_col = in.row,
                                                 .b = e.data,
                                                 .b_row = e.row,
                                                 .init = gradients,
                                                 .init_row = w,
                                                 .c = gradients,
                                                 .c_row = w});
}

void dpcri_program_gradient(const dpcri_program *p, const void *parameters, void *gradients, int64_t rows,
                            dpcri_rows in, dpcri_rows tape, dpcri_rows g, void *scratch,
                            const dpcri_program_next *next) {
    const scratch_rows s = carve(p, rows, scratch);
    if (!tape.data) tape = make_tape(p, parameters, rows, in, &s);
    if (p->fused) {
        gradient_fused(p, gradients, rows, in, tape, g, &s, next);
        return;
    }
    p->kernels->multiply_add(rows, p->width, NULL, 0, p->scale, g.data, g.row, NULL, 0, s.a.data, s.a.row);
    dpcri_rows e = s.a;
    for (int i = p->count - 1; i >= 0; i--) {
        const dpcri_nn_layer *layer = &p->layers[i];
        void *own = (void *)parameters_of(p, i, gradients);
        if (layer->kind->gradient) layer->kind->gradient(layer, own, rows, in, tape_of(p, i, tape), e);
        if (i == 0) break;
        const dpcri_rows y = layer->kind->in_place ? e : e.data == s.a.data ? s.b : s.a;
        layer->kind->vjp(layer, parameters_of(p, i, parameters), rows, tape_of(p, i, tape), e, y);
        e = y;
    }
}

// a = I + scale diag(slope) W^T for each row: W^T once, in the first row's own place, scaled last.
static void jacobians_fused(const dpcri_program *p, const void *parameters, int64_t rows, dpcri_rows slope,
                            dpcri_rows a) {
    const int64_t w = p->width;
    const dpcri_nn_kernels *k = p->kernels;
    k->transpose(w, w, parameters, w, a.data, w);
    for (int64_t r = rows - 1; r >= 0; r--)
        k->scale_rows(w, w, p->scale, dpcri_rows_at(slope, r, 0, k->element).data, a.data, w, p->residual ? 1 : 0,
                      dpcri_rows_at(a, r, 0, k->element).data, w);
}

static void add_identity(const dpcri_program *p, void *a) {
    for (int64_t i = 0; i < p->width; i++) {
        if (p->kernels->element == sizeof(float))
            ((float *)a)[i * p->width + i] += 1;
        else
            ((double *)a)[i * p->width + i] += 1;
    }
}

// Column by column, a block of unit vectors e_j at a time: what the first layer makes of e_j is row j of its W.
static void jacobian_of_row(const dpcri_program *p, const void *parameters, dpcri_rows tape, void *a, int64_t block,
                            const scratch_rows *s) {
    const dpcri_nn_kernels *k = p->kernels;
    const int64_t w = p->width, h = p->layers[0].out;
    for (int64_t j = 0; j < w; j += block) {
        const int64_t columns = w - j < block ? w - j : block;
        const dpcri_rows x = dpcri_rows_at((dpcri_rows){(void *)parameters, h}, j, 0, k->element);
        const dpcri_rows f = push_forward(p, 1, parameters, columns, (dpcri_rows){tape.data, 0}, x, s);
        k->multiply_add(columns, w, NULL, 0, p->scale, f.data, f.row, NULL, 0, f.data, f.row);
        k->transpose(columns, w, f.data, f.row, (char *)a + j * (int64_t)k->element, w);
    }
    if (p->residual) add_identity(p, a);
}

void dpcri_program_linearise(const dpcri_program *p, const void *parameters, int64_t rows, dpcri_rows in, dpcri_rows f,
                             dpcri_rows a, void *scratch) {
    const scratch_rows s = carve(p, rows, scratch);
    if (f.data)
        dpcri_program_forward(p, parameters, rows, in, f, s.tape, scratch, NULL);
    else
        make_tape(p, parameters, rows, in, &s);
    if (!a.data) return;
    if (p->fused) {
        jacobians_fused(p, parameters, rows, s.tape, a);
        return;
    }
    const size_t element = p->kernels->element;
    for (int64_t r = 0; r < rows; r++)
        jacobian_of_row(p, parameters, dpcri_rows_at(s.tape, r, 0, element), dpcri_rows_at(a, r, 0, element).data, rows,
                        &s);
}
