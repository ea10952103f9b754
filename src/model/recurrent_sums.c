// SPDX-License-Identifier: MIT
// Each chain's adjoint leaves the gates' gradients e in the tape, window by window; while they lie in cache, of the
// window's rows
//     dx = e_x W_ih,   dW_ih += e_x^T x,   dW_hh += e_h^T h_before,   db_ih += sum e_x,   db_hh += sum e_h
// where e_x and e_h are the columns of e that go with the input's part and with W_hh. Variants leave in e what else
// they multiply: rows of W_hh that met r h, dW_hr += g^T s; and peepholes get sums of e c by element. A task owns rows
// of the result and takes the window's rows in order, so the bits do not depend on the number of threads.
// Where sums are small enough (dpcri_recurrent_blocks) each block of sequences has its own, and its own copies of what
// a window's products read: a core that goes back with a block multiplies what it has just written, and cores exchange
// sums every so many windows instead of e at every step. Which rows are summed together is fixed by the batch. Of a
// packed batch the copies are of the rows that go on, so that what is past the ends takes no time.
// Where units do not mix, W_hh is a diagonal a gate and its gradient a sum over rows, unit by unit.
#include <string.h>

#include "model/recurrent_sums.h"

// LINE_FLOPS, LINE: work on a cache line that has to come from another core, from which sharing the products pays; less
// where one thread alone has written e, few sequences of it, for it takes the lines back at the next step.
enum {
    RESULT_ROWS = 32,
    BLOCK = 64,
    PEEPHOLES = 3,
    UNITS = 64,
    FEW_PRODUCTS = 8192,
    PACKED_ROW = 1024,  // bytes of a row of e, from which its columns fall on few lines of a cache, and
    PACKED_WIDTH = 64,  // columns of the result, from which copying them first pays
    LINE_FLOPS = 2000,
    LINE = 64,
    FEW_ROWS = 8
};

static int64_t hidden_of(const dpcr_recurrent_plan *p) { return p->network->options.hidden; }
static int64_t h_of(const dpcr_recurrent_plan *p) { return dpcri_recurrent_h(p->network); }
static int64_t state_of(const dpcr_recurrent_plan *p) { return dpcri_recurrent_w(p->network); }
static int64_t tape_of(const dpcr_recurrent_plan *p) { return dpcri_recurrent_taped(p->network); }

// Of W_ih (input) or W_hh: a GRU's e is r, z, m, n, and m goes with W_hh, n with W_ih; where it resets before, n goes
// with both, and m is the r h that W_n met. Returns their number.
static int stripes_of(const dpcr_recurrent_plan *plan, bool input, dpcri_stripe stripes[2]) {
    const int64_t H = hidden_of(plan);
    const bool before = plan->network->cell.variant.reset_before;
    const bool split = plan->network->gates == DPCRI_GATES_GRU && (input || before);
    stripes[0] = (dpcri_stripe){0, 0, split ? 2 * H : dpcri_gates_count[plan->network->gates] * H, -1};
    if (!split) return 1;
    stripes[1] = (dpcri_stripe){3 * H, 2 * H, H, before && !input ? 2 * H : -1};
    return 2;
}

// ---- products over the rows of some steps ----

// Rows of e from `row` on, counted as those of z and x are.
static dpcri_rows e_at(const dpcri_recurrent_sums *c, int64_t row, int64_t column) {
    return dpcri_rows_at(c->e, c->windowed ? row - c->first : row, column, c->nn->element);
}

// Whether the products of a window are worth fetching e, z and x for, to other cores than the one that wrote e.
static bool worth_sharing(const dpcri_recurrent_sums *c) {
    const dpcr_recurrent_plan *plan = c->plan;
    const double gates = (double)(dpcri_gates_count[plan->network->gates] * hidden_of(plan));
    const double width = (double)(c->hidden.width * !c->hidden.apart + c->input.width * (c->back.data ? 2 : 1));
    const double bytes = (double)(tape_of(plan) + state_of(plan) + c->input.width) * (double)c->nn->element;
    const bool alone = plan->options.batch < FEW_ROWS || plan->layers[c->chain].apart;
    return !alone || 2 * gates * width * LINE >= LINE_FLOPS * bytes;
}

static int64_t blocks_of(int64_t count, int64_t block) { return (count + block - 1) / block; }

static int64_t tasks_of(const dpcri_weight_sums *w) {
    int64_t tasks = 0;
    if (w->apart) return w->weight ? blocks_of(w->apart->gates.width, UNITS) : 0;
    for (int i = 0; i < w->count; i++) tasks += blocks_of(w->stripes[i].count, RESULT_ROWS);
    return tasks;
}

// m columns of `rows` rows of e, side by side in `packed`.
static dpcri_rows pack_columns(const dpcri_nn_kernels *nn, int64_t rows, int64_t m, dpcri_rows e, void *packed) {
    const size_t bytes = (size_t)m * nn->element;
    for (int64_t k = 0; k < rows; k++)
        memcpy((char *)packed + (size_t)k * bytes, dpcri_rows_at(e, k, 0, nn->element).data, bytes);
    return (dpcri_rows){packed, m};
}

static void add_pair(const dpcri_nn_kernels *nn, const dpcri_weight_sums *w, const dpcri_rows_pair *pair,
                     int64_t column, int64_t row, int64_t own, int64_t m) {
    const dpcri_rows v = own < 0 ? pair->v : dpcri_rows_at(pair->e, 0, own, nn->element);
    void *weight = w->weight + (size_t)(row * w->width) * nn->element;
    void *bias = w->bias ? w->bias + (size_t)row * nn->element : NULL;
    _Alignas(64) char packed[BLOCK * RESULT_ROWS * sizeof(double)];
    const bool apart = pair->e.row * (int64_t)nn->element >= PACKED_ROW && w->width >= PACKED_WIDTH;
    for (int64_t k = 0; k < pair->rows; k += BLOCK) {
        const int64_t depth = pair->rows - k < BLOCK ? pair->rows - k : BLOCK;
        const dpcri_rows lying = dpcri_rows_at(pair->e, k, column, nn->element);
        const dpcri_rows e = apart ? pack_columns(nn, depth, m, lying, packed) : lying;
        const dpcri_product product = {.m = m,
                                       .n = w->width,
                                       .depth = depth,
                                       .a = e.data,
                                       .a_row = 1,
                                       .a_col = e.row,
                                       .b = v.data ? dpcri_rows_at(v, k, 0, nn->element).data : NULL,
                                       .b_row = v.row,
                                       .init = weight,
                                       .init_row = w->width,
                                       .c = weight,
                                       .c_row = w->width};
        if (v.data && bias)
            nn->product_summing(&product, bias);
        else if (v.data)
            nn->product(&product);
        else if (bias)
            dpcri_column_sums(nn, depth, m, e, bias);
    }
}

static void add_diagonals(const dpcri_weight_sums *w, int64_t task) {
    const int64_t H = w->apart->gates.width, to = (task + 1) * UNITS;
    for (int p = 0; p < w->pairs; p++)
        w->apart->apart->sums(&w->apart->gates, &(dpcri_para_sums){.rows = w->pair[p].rows,
                                                                   .e = w->pair[p].e.data,
                                                                   .before = w->pair[p].v.data,
                                                                   .after = w->pair[p].after.data,
                                                                   .e_row = w->pair[p].e.row,
                                                                   .before_row = w->pair[p].v.row,
                                                                   .after_row = w->pair[p].after.row,
                                                                   .diagonals = w->weight,
                                                                   .peepholes = w->peephole,
                                                                   .from = task * UNITS,
                                                                   .to = to < H ? to : H});
}

static void add_weights(const dpcri_nn_kernels *nn, const dpcri_weight_sums *w, int64_t task) {
    int i = 0;
    if (w->apart) {
        add_diagonals(w, task);
        return;
    }
    for (; task >= blocks_of(w->stripes[i].count, RESULT_ROWS); i++)
        task -= blocks_of(w->stripes[i].count, RESULT_ROWS);
    const dpcri_stripe *s = &w->stripes[i];
    const int64_t begin = task * RESULT_ROWS, left = s->count - begin, m = left < RESULT_ROWS ? left : RESULT_ROWS;
    for (int p = 0; p < w->pairs; p++) add_pair(nn, w, &w->pair[p], s->column + begin, s->row + begin, s->own, m);
}

// sum[j] += e[j] c[j] of all rows, in order.
static void add_products(dpcr_dtype dtype, int64_t rows, int64_t width, dpcri_rows e, dpcri_rows c, void *sum) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < width; j++)
            if (dtype == DPCR_F64)
                ((double *)sum)[j] += ((double *)e.data)[i * e.row + j] * ((double *)c.data)[i * c.row + j];
            else
                ((float *)sum)[j] += ((float *)e.data)[i * e.row + j] * ((float *)c.data)[i * c.row + j];
}

// Those of i and f met c before the step, that of o c after it.
static void add_peephole(const dpcri_recurrent_sums *c, int64_t which) {
    static const int64_t gate[3] = {0, 1, 3};
    const int64_t H = hidden_of(c->plan), P = h_of(c->plan);
    const dpcr_dtype dtype = c->plan->network->options.dtype;
    void *sum = c->peepholes + (size_t)(which * H) * c->nn->element;
    for (int p = 0; which < 2 && p < c->hidden.pairs; p++) {
        const dpcri_rows_pair *pair = &c->hidden.pair[p];
        add_products(dtype, pair->rows, H, dpcri_rows_at(pair->e, 0, gate[which] * H, c->nn->element),
                     dpcri_rows_at(pair->v, 0, P, c->nn->element), sum);
    }
    if (which == 2)
        add_products(dtype, c->rows, H, e_at(c, c->first, gate[which] * H),
                     dpcri_rows_at(c->z, c->first, P, c->nn->element), sum);
}

// x (+)= e_x W_ih of a block of rows
static void back_to_inputs(const dpcri_recurrent_sums *c, int64_t task) {
    const dpcri_recurrent *layer = &c->plan->layers[c->chain];
    const int64_t begin = task * BLOCK, left = c->rows - begin;
    const dpcri_rows x = dpcri_rows_at(c->back, c->first + begin, 0, c->nn->element);
    for (int i = 0; i < c->input.count; i++)
        c->nn->product(&(dpcri_product){
            .m = left < BLOCK ? left : BLOCK,
            .n = layer->inputs,
            .depth = c->input.stripes[i].count,
            .a = e_at(c, c->first + begin, c->input.stripes[i].column).data,
            .a_row = c->e.row,
            .a_col = 1,
            .b = (const char *)layer->weight_ih + (size_t)(c->input.stripes[i].row * layer->inputs) * c->nn->element,
            .b_row = layer->inputs,
            .init = c->add || i > 0 ? x.data : NULL,
            .init_row = x.row,
            .c = x.data,
            .c_row = x.row});
}

static void product_task(void *argument, int64_t task) {
    const dpcri_recurrent_sums *c = argument;
    const dpcri_weight_sums *const sums[] = {&c->hidden, &c->input, &c->projected};
    for (size_t i = 0; i < sizeof sums / sizeof sums[0]; task -= tasks_of(sums[i++]))
        if (task < tasks_of(sums[i])) {
            add_weights(c->nn, sums[i], task);
            return;
        }
    const int64_t peepholes = c->peepholes ? PEEPHOLES : 0;
    if (task < peepholes)
        add_peephole(c, task);
    else
        back_to_inputs(c, task - peepholes);
}

// The states that went into the steps, zero where they were reset.
static void gather_before(dpcri_recurrent_sums *c, int64_t first, int64_t count) {
    const int64_t B = c->plan->options.batch, T = c->plan->options.length;
    const size_t bytes = (size_t)state_of(c->plan) * c->nn->element;
    const dpcri_marks *resets = &c->plan->layers[c->chain].resets;
    for (int64_t l = first; l < first + count; l++)
        for (int64_t b = 0; b < B; b++) {
            const int64_t at = c->turned ? T - 1 - l : l, former = c->turned ? at + 1 : at - 1;
            const void *from = resets->at[l * resets->step + b] ? resets->zeros
                               : l == 0                         ? dpcri_rows_at(c->z0, b, 0, c->nn->element).data
                                        : dpcri_rows_at(c->z, former * B + b, 0, c->nn->element).data;
            memcpy(dpcri_rows_at(c->before, at * B + b, 0, c->nn->element).data, from, bytes);
        }
}

// So few products that waking the workers would take longer. Tasks have their own bits either way.
static bool are_few(const dpcri_recurrent_sums *c, int64_t rows) {
    return rows * h_of(c->plan) * (c->hidden.width + c->input.width) < FEW_PRODUCTS;
}

// Steps whose e, z and x stay in the second-level cache while every product reads them; more where what the products
// write is larger than that, for it passes once a window.
static int64_t steps_together(const dpcri_recurrent_sums *c) {
    enum { STAY = 448 << 10, LARGE = 1 << 20 };
    const int64_t element = (int64_t)c->nn->element, B = c->plan->options.batch;
    const int64_t step = B * (tape_of(c->plan) + state_of(c->plan) + c->input.width) * element;
    const bool large = dpcri_recurrent_own_parameters(c->plan->network, c->chain) * element > LARGE;
    const int64_t least = (large ? 4 * BLOCK : BLOCK) / (B > 0 ? B : 1), fit = step > 0 ? STAY / step : 1;
    const int64_t steps = fit > least ? fit : least > 0 ? least : 1;
    return steps > BLOCK ? steps / BLOCK * BLOCK : steps;
}

// Steps first .. first + count - 1 of the chain. The state before its step 0 is z0; before the others, z of the step
// before, which lies one step earlier, or, turned, later; but where states are reset, in a copy.
static void products_of_window(dpcri_recurrent_sums *c, int64_t first, int64_t count) {
    const int64_t B = c->plan->options.batch, T = c->plan->options.length;
    const int64_t from = c->turned ? T - first - count : first, whole = first == 0 ? count - 1 : count;
    c->first = from * B;
    c->rows = count * B;
    c->hidden.pairs = 0;
    if (c->before.data) {
        gather_before(c, first, count);
        c->hidden.pair[c->hidden.pairs++] =
            (dpcri_rows_pair){c->rows, e_at(c, c->first, 0), dpcri_rows_at(c->before, c->first, 0, c->nn->element),
                              dpcri_rows_at(c->z, c->first, 0, c->nn->element)};
    } else {
        const int64_t start = c->turned ? T - 1 : 0, begin = !c->turned && first == 0 ? 1 : from;
        if (first == 0)
            c->hidden.pair[c->hidden.pairs++] =
                (dpcri_rows_pair){B, e_at(c, start * B, 0), c->z0, dpcri_rows_at(c->z, start * B, 0, c->nn->element)};
        if (whole > 0)
            c->hidden.pair[c->hidden.pairs++] =
                (dpcri_rows_pair){whole * B, e_at(c, begin * B, 0),
                                  dpcri_rows_at(c->z, (c->turned ? begin + 1 : begin - 1) * B, 0, c->nn->element),
                                  dpcri_rows_at(c->z, begin * B, 0, c->nn->element)};
    }
    c->input.pairs = 1;
    c->input.pair[0] = (dpcri_rows_pair){
        .rows = c->rows, .e = e_at(c, c->first, 0), .v = dpcri_rows_at(c->x, c->first, 0, c->nn->element)};
    c->projected.pairs = 1;
    c->projected.pair[0] = (dpcri_rows_pair){.rows = c->rows, .e = c->input.pair[0].e};
    const int64_t inputs = (c->back.data ? blocks_of(c->rows, BLOCK) : 0) + (c->peepholes ? PEEPHOLES : 0);
    const int64_t tasks = tasks_of(&c->hidden) + tasks_of(&c->input) + tasks_of(&c->projected) + inputs;
    if (!worth_sharing(c) || are_few(c, c->rows))
        for (int64_t i = 0; i < tasks; i++) product_task(c, i);
    else
        dpcri_parallel(c->plan->context, tasks, product_task, c);
}

// In the order in which they lie, so that sums do not depend on the windows; step 0 begins a call. What holds the
// present steps alone is small enough as it is.
static void products_of_rows(dpcri_recurrent_sums *c, int64_t first, int64_t count) {
    const int64_t most = first > 0 && !c->windowed ? steps_together(c) : count;
    for (int64_t done = 0, steps; done < count; done += steps) {
        steps = count - done < most ? count - done : most;
        products_of_window(c, c->turned ? first + count - done - steps : first + done, steps);
    }
}

// ---- the same by blocks of sequences ----

// Steps of a block, as its task has them.
typedef struct block_products {
    const dpcri_recurrent_sums *c;
    int64_t from, count, block, row, rows;  // steps as they lie, in the chain's order where there are ends; sequences
    dpcri_weight_sums hidden, input;        // onto the block's own sums
} block_products;

static dpcri_weight_sums own_sums(const dpcri_recurrent_sums *c, const dpcri_weight_sums *of, int64_t block,
                                  dpcri_rows_pair pair) {
    const int64_t region = block * dpcri_recurrent_own_parameters(c->plan->network, c->chain);
    dpcri_weight_sums w = *of;
    w.pairs = 1;
    w.pair[0] = pair;
    if (!c->block_sums) return w;
    char *own = c->block_sums + (size_t)region * c->nn->element;
    w.weight = own + (of->weight - c->sums);
    w.bias = of->bias ? own + (of->bias - c->sums) : NULL;
    return w;
}

// Of the block's first `steps` steps, the rows that go on.
static int64_t live_before(const block_products *b, int64_t steps) {
    if (!b->c->ends) return steps * b->rows;
    int64_t live = 0;
    for (int64_t r = 0; r < b->rows; r++) {
        const int64_t left = b->c->ends[b->row + r] - b->from;
        live += left < 0 ? 0 : left < steps ? left : steps;
    }
    return live;
}

// The next rows of the block that go on at step s of its steps: *row at or after the one given, and their number.
static int64_t next_live(const block_products *b, int64_t s, int64_t *row) {
    if (!b->c->ends) return b->rows - *row;
    const int64_t *ends = b->c->ends + b->row, at = b->from + s;
    while (*row < b->rows && ends[*row] <= at) ++*row;
    int64_t to = *row;
    while (to < b->rows && ends[to] > at) to++;
    return to - *row;
}

// Steps first .. first + count - 1 of the chain; window steps at most.
static block_products block_of(const dpcri_recurrent_sums *c, int64_t first, int64_t count, int64_t block) {
    const dpcri_recurrent *layer = &c->plan->layers[c->chain];
    const int64_t T = c->plan->options.length, H = h_of(c->plan), I = layer->inputs;
    const int64_t width = dpcri_recurrent_block_width(layer);
    block_products b = {.c = c, .from = c->turned ? T - first - count : first, .count = count, .block = block};
    b.row = layer->block_begin[block];
    b.rows = layer->block_begin[block + 1] - b.row;
    const size_t at = (size_t)(b.row * c->window) * c->nn->element;
    const int64_t rows = live_before(&b, count);
    const dpcri_rows e = {
        c->in_place ? (char *)dpcri_recurrent_block_e(layer, c->turned ? first + count - 1 : first, b.row).data
                    : c->block_e + at * (size_t)width,
        width};
    b.hidden = own_sums(c, &c->hidden, block,
                        (dpcri_rows_pair){.rows = rows, .e = e, .v = {c->block_before + at * (size_t)H, H}});
    b.input =
        own_sums(c, &c->input, block, (dpcri_rows_pair){.rows = rows, .e = e, .v = {c->block_x + at * (size_t)I, I}});
    return b;
}

static void copy_rows(const dpcri_nn_kernels *nn, int64_t rows, int64_t width, dpcri_rows from, dpcri_rows to) {
    const size_t bytes = (size_t)width * nn->element;
    if (from.row == width && to.row == width)
        memcpy(to.data, from.data, (size_t)rows * bytes);
    else
        for (int64_t r = 0; r < rows; r++)
            memcpy(dpcri_rows_at(to, r, 0, nn->element).data, dpcri_rows_at(from, r, 0, nn->element).data, bytes);
}

static void clear_rows(const dpcri_nn_kernels *nn, int64_t rows, int64_t width, dpcri_rows at) {
    for (int64_t r = 0; r < rows; r++)
        memset(dpcri_rows_at(at, r, 0, nn->element).data, 0, (size_t)width * nn->element);
}

// What the block's products read, row after row of those that go on: x, the states that went in, and e where it lies
// elsewhere, or with others between. Of steps first .. end - 1 of its steps.
static void gather_steps(const block_products *b, int64_t first, int64_t end) {
    const dpcri_recurrent_sums *c = b->c;
    const dpcri_nn_kernels *nn = c->nn;
    const int64_t T = c->plan->options.length, B = c->plan->options.batch, H = h_of(c->plan);
    const dpcri_marks *resets = &c->plan->layers[c->chain].resets;
    for (int64_t s = first, place = live_before(b, first); s < end; s++) {
        const int64_t at = b->from + s, l = c->turned ? T - 1 - at : at, former = c->turned ? at + 1 : at - 1;
        for (int64_t r = 0, n; (n = next_live(b, s, &r)) > 0; r += n, place += n) {
            const int64_t row = b->row + r;
            const dpcri_rows before = dpcri_rows_at(b->hidden.pair[0].v, place, 0, nn->element);
            const dpcri_rows e = dpcri_rows_at(b->input.pair[0].e, place, 0, nn->element);
            copy_rows(nn, n, b->input.width, dpcri_rows_at(c->x, at * B + row, 0, nn->element),
                      dpcri_rows_at(b->input.pair[0].v, place, 0, nn->element));
            copy_rows(nn, n, H,
                      l == 0 ? dpcri_rows_at(c->z0, row, 0, nn->element)
                             : dpcri_rows_at(c->z, former * B + row, 0, nn->element),
                      before);
            for (int64_t i = 0; resets->at && i < n; i++)
                if (resets->at[l * resets->step + row + i])
                    memset(dpcri_rows_at(before, i, 0, nn->element).data, 0, (size_t)H * nn->element);
            if (!c->in_place)
                copy_rows(nn, n, c->e.row, e_at(c, at * B + row, 0), e);
            else if (place < s * b->rows + r)
                memmove(e.data, dpcri_rows_at(b->input.pair[0].e, s * b->rows + r, 0, nn->element).data,
                        (size_t)(n * e.row) * nn->element);
        }
    }
}

enum { BACK_STEPS = 8 };  // steps that one task makes the input's gradients of, or gathers

static int64_t block_tasks(const block_products *b) {
    return tasks_of(&b->hidden) + tasks_of(&b->input) + (b->c->back.data ? blocks_of(b->count, BACK_STEPS) : 0);
}

// dx += e_x W_ih of `rows` rows of the block from row `first` on, to x; or dx = , unless `add`.
static void block_input_rows(const block_products *b, int64_t first, int64_t rows, dpcri_rows x, bool add) {
    const dpcri_recurrent_sums *c = b->c;
    const dpcri_recurrent *layer = &c->plan->layers[c->chain];
    for (int i = 0; i < c->input.count; i++)
        c->nn->product(&(dpcri_product){
            .m = rows,
            .n = layer->inputs,
            .depth = c->input.stripes[i].count,
            .a = dpcri_rows_at(b->input.pair[0].e, first, c->input.stripes[i].column, c->nn->element).data,
            .a_row = b->input.pair[0].e.row,
            .a_col = 1,
            .b = (const char *)layer->weight_ih + (size_t)(c->input.stripes[i].row * layer->inputs) * c->nn->element,
            .b_row = layer->inputs,
            .init = add || i > 0 ? x.data : NULL,
            .init_row = x.row,
            .c = x.data,
            .c_row = x.row});
}

enum { ROOM = 1 << 14 };

// Whether rows of other threads lie in the pages of dx that a thread writes, and all of it is more than what stays in
// cache anyhow: processors fetch ahead of what they write, into each other's rows.
static bool beside_others(const block_products *b) {
    enum { PAGE = 1 << 12, MANY = 1 << 19 };
    const dpcr_recurrent_plan *plan = b->c->plan;
    const double row = (double)plan->layers[b->c->chain].inputs * (double)b->c->nn->element;
    return dpcr_context_threads(plan->context) > 1 && (double)b->rows * row < PAGE &&
           BACK_STEPS * (double)b->rows * row <= ROOM &&
           (double)plan->options.length * (double)plan->options.batch * row >= MANY;
}

static void block_back_to_inputs(const block_products *b, int64_t task) {
    const dpcri_recurrent_sums *c = b->c;
    const int64_t B = c->plan->options.batch, inputs = c->plan->layers[c->chain].inputs, first = task * BACK_STEPS;
    const int64_t end = first + BACK_STEPS < b->count ? first + BACK_STEPS : b->count, steps = end - first;
    const dpcri_rows x = dpcri_rows_at(c->back, (b->from + first) * B + b->row, 0, c->nn->element);
    int64_t place = live_before(b, first);
    if (!c->add && b->rows > 0 && beside_others(b) && live_before(b, end) - place == steps * b->rows) {
        _Alignas(64) char room[ROOM];
        block_input_rows(b, place, steps * b->rows, (dpcri_rows){room, inputs}, false);
        const dpcri_grid to = {.data = x.data, .step = B * x.row, .row = x.row};
        c->plan->layers[c->chain].kernels->put(steps, b->rows, inputs, room, &to);
        return;
    }
    for (int64_t s = 0; s < steps && b->rows > 0; s++) {
        const dpcri_rows step = dpcri_rows_at(x, s * B, 0, c->nn->element);
        int64_t done = 0;
        for (int64_t r = 0, n; (n = next_live(b, first + s, &r)) > 0; r += n, place += n, done = r) {
            if (!c->add) clear_rows(c->nn, r - done, inputs, dpcri_rows_at(step, done, 0, c->nn->element));
            block_input_rows(b, place, n, dpcri_rows_at(step, r, 0, c->nn->element), c->add);
        }
        if (!c->add) clear_rows(c->nn, b->rows - done, inputs, dpcri_rows_at(step, done, 0, c->nn->element));
    }
}

static void block_task(const block_products *b, int64_t task) {
    const int64_t hidden = tasks_of(&b->hidden), input = tasks_of(&b->input);
    if (task < hidden)
        add_weights(b->c->nn, &b->hidden, task);
    else if (task < hidden + input)
        add_weights(b->c->nn, &b->input, task - hidden);
    else
        block_back_to_inputs(b, task - hidden - input);
}

// e that is moved within its place is so in order.
static int64_t gather_tasks(const block_products *b) { return b->c->in_place ? 1 : blocks_of(b->count, BACK_STEPS); }

static void gather_task(const block_products *b, int64_t task) {
    const int64_t end = (task + 1) * BACK_STEPS;
    if (b->c->in_place)
        gather_steps(b, 0, b->count);
    else
        gather_steps(b, task * BACK_STEPS, end < b->count ? end : b->count);
}

// All blocks, over the context's threads. They have as many steps.
static void any_gather_task(void *argument, int64_t task) {
    const block_products *b = argument;
    gather_task(b + task / gather_tasks(b), task % gather_tasks(b));
}

static void any_block_task(void *argument, int64_t task) {
    const block_products *b = argument;
    for (; task >= block_tasks(b); b++) task -= block_tasks(b);
    block_task(b, task);
}

static void products_of_blocks(dpcri_recurrent_sums *c, int64_t first, int64_t count) {
    block_products blocks[DPCRI_RECURRENT_BLOCKS];
    const int64_t all = c->block_sums ? c->plan->layers[c->chain].blocks : 1, B = c->plan->options.batch;
    c->first = (c->turned ? c->plan->options.length - first - count : first) * B;
    // In the order in which they lie: so a longer call sums as shorter ones do.
    for (int64_t done = 0, steps; done < count; done += steps) {
        steps = count - done < c->window ? count - done : c->window;
        const int64_t begin = c->turned ? first + count - done - steps : first + done;
        int64_t tasks = 0;
        for (int64_t k = 0; k < all; k++) {
            blocks[k] = block_of(c, begin, steps, k);
            tasks += block_tasks(&blocks[k]);
        }
        const int64_t gathers = all * gather_tasks(blocks);
        if (are_few(c, steps * B)) {
            for (int64_t i = 0; i < gathers; i++) any_gather_task(blocks, i);
            for (int64_t i = 0; i < tasks; i++) any_block_task(blocks, i);
            continue;
        }
        dpcri_parallel(c->plan->context, gathers, any_gather_task, blocks);
        dpcri_parallel(c->plan->context, tasks, any_block_task, blocks);
    }
}

static void products_of_block(const dpcri_recurrent_sums *c, int64_t first, int64_t count, int64_t row) {
    const int64_t block = dpcri_recurrent_block_of(&c->plan->layers[c->chain], row);
    for (int64_t done = 0, steps; done < count; done += steps) {  // more than a window's fit nowhere
        steps = count - done < c->window ? count - done : c->window;
        const block_products b = block_of(c, c->turned ? first + count - done - steps : first + done, steps, block);
        const int64_t tasks = block_tasks(&b);
        gather_steps(&b, 0, b.count);
        for (int64_t i = 0; i < tasks; i++) block_task(&b, i);
    }
}

enum { JOINED = 2048 };  // numbers of a task

#define ADD_BLOCKS(type)                                                            \
    do {                                                                            \
        type *sums = (type *)(void *)c->sums, *own = (type *)(void *)c->block_sums; \
        for (int64_t k = 0; k < blocks; k++, own += count)                          \
            for (int64_t i = from; i < to; i++) sums[i] += own[i], own[i] = 0;      \
    } while (0)

static void join_task(void *argument, int64_t task) {
    const dpcri_recurrent_sums *c = argument;
    const int64_t count = dpcri_recurrent_own_parameters(c->plan->network, c->chain), from = task * JOINED,
                  to = from + JOINED < count ? from + JOINED : count, blocks = c->plan->layers[c->chain].blocks;
    if (c->plan->network->options.dtype == DPCR_F64)
        ADD_BLOCKS(double);
    else
        ADD_BLOCKS(float);
}
#undef ADD_BLOCKS

static void join_blocks(void *user) {
    dpcri_recurrent_sums *c = user;
    dpcri_parallel(c->plan->context, blocks_of(dpcri_recurrent_own_parameters(c->plan->network, c->chain), JOINED),
                   join_task, c);
}

static void products_of_steps(void *user, int64_t first, int64_t count, int64_t row, int64_t rows) {
    dpcri_recurrent_sums *c = user;
    if (!c->block_e)
        products_of_rows(c, first, count);
    else if (c->block_sums && rows < c->plan->options.batch)
        products_of_block(c, first, count, row);
    else
        products_of_blocks(c, first, count);
}

// ---- of one chain ----

static dpcri_weight_sums sums_of(const dpcr_recurrent_plan *plan, int64_t chain, bool input) {
    const dpcr_recurrent *n = plan->network;
    dpcri_weight_sums w = {.width = input ? plan->layers[chain].inputs : h_of(plan)};
    w.count = stripes_of(plan, input, w.stripes);
    w.weight = dpcri_recurrent_at(n, n->gradients,
                                  dpcri_recurrent_offset(n, chain, input ? DPCRI_WEIGHT_IH : DPCRI_WEIGHT_HH));
    w.bias =
        dpcri_recurrent_at(n, n->gradients, dpcri_recurrent_offset(n, chain, input ? DPCRI_BIAS_IH : DPCRI_BIAS_HH));
    w.peephole = dpcri_recurrent_at(n, n->gradients, dpcri_recurrent_offset(n, chain, DPCRI_PEEPHOLE));
    w.apart = !input && plan->layers[chain].apart ? &plan->layers[chain] : NULL;
    return w;
}

// Of W_hr: behind the gates e has what was projected [H] and the gradient of what came of it [P].
static dpcri_weight_sums projected_sums(const dpcr_recurrent_plan *plan, int64_t chain) {
    const dpcr_recurrent *n = plan->network;
    const int64_t H = hidden_of(plan);
    dpcri_weight_sums w = {.width = H};
    if (!n->options.projection) return w;
    w.count = 1;
    w.stripes[0] = (dpcri_stripe){5 * H, 0, n->options.projection, 4 * H};
    w.weight = dpcri_recurrent_at(n, n->gradients, dpcri_recurrent_offset(n, chain, DPCRI_WEIGHT_HR));
    return w;
}

dpcri_recurrent_sums dpcri_recurrent_sums_of(const dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                                             const dpcri_recurrent_space *space, int64_t chain, void *to, bool add) {
    const dpcri_recurrent_flow flow = dpcri_recurrent_flow_of(plan, chain);
    const dpcr_array z = dpcri_recurrent_states(plan, pass, space, chain);
    const dpcri_grid x = dpcri_recurrent_input(plan, pass, space, chain);
    const bool turned = flow.reverse && !flow.copied, blocks = plan->layers[chain].blocks > 1;
    const bool gathered = blocks || (pass->lengths && dpcri_recurrent_gathers(plan));
    // e is 0 past the ends, and 0 times what the caller left there may be NaN. Above the first layer it is 0.
    const bool cleared = pass->lengths && !gathered && !flow.copied && chain < plan->network->directions;
    const dpcri_grid zeroed = {.data = space->reversed, .step = x.step, .row = x.row};
    if (cleared) dpcri_recurrent_copy(plan, pass->lengths, plan->layers[chain].inputs, x, zeroed, false);
    const int64_t T = plan->options.length, end = turned ? (T - 1) * z.strides[0] * (int64_t)plan->network->element : 0;
    return (dpcri_recurrent_sums){
        .plan = plan,
        .nn = plan->layers[chain].nn,
        .chain = chain,
        .turned = turned,
        .e = {plan->options.recompute ? space->e : space->kept[chain].gates, tape_of(plan)},
        .windowed = plan->options.recompute,
        .before = {pass->resets ? space->before : NULL, state_of(plan)},
        .z = {z.data ? (char *)z.data + end : NULL, z.strides[1]},  // a rehearsal has its own
        .x = {flow.copied || cleared ? space->reversed : x.data, x.row},
        .z0 = {space->initial, state_of(plan)},
        .hidden = sums_of(plan, chain, false),
        .input = sums_of(plan, chain, true),
        .projected = projected_sums(plan, chain),
        .peepholes = dpcri_recurrent_at(plan->network, plan->network->gradients,
                                        dpcri_recurrent_offset(plan->network, chain, DPCRI_WEIGHT_CH)),
        .back = {to && flow.copied ? space->back_reversed : to, plan->layers[chain].inputs},
        .add = add,
        .ends = pass->lengths,
        .window = dpcri_recurrent_block_window(plan, chain),
        .in_place = blocks && !plan->options.recompute &&
                    dpcr_solve_plan_backward(plan->chains[chain]) == DPCR_SCHEME_SEQUENTIAL,
        .block_e = gathered ? space->block_e : NULL,
        .block_x = gathered ? space->block_x : NULL,
        .block_before = gathered ? space->block_before : NULL,
        .block_sums = blocks ? space->block_sums : NULL,
        .sums = dpcri_recurrent_at(plan->network, plan->network->gradients,
                                   dpcri_recurrent_offset(plan->network, chain, DPCRI_WEIGHT_IH))};
}

// ---- a layer and its sums ----

void dpcri_recurrent_sum_by(dpcri_recurrent *layer, const dpcri_recurrent_space *space, dpcri_recurrent_sums *sums) {
    const dpcr_recurrent_plan *plan = sums->plan;
    if (plan->options.recompute) {
        const int64_t step = plan->options.batch * tape_of(plan);
        layer->gradients = (dpcri_grid){.data = space->e, .step = sums->turned ? -step : step, .row = tape_of(plan)};
        layer->window = dpcri_recurrent_window(plan);
    }
    layer->products = products_of_steps;
    layer->products_user = sums;
    if (!sums->block_sums) return;
    memset(
        sums->block_sums, 0,
        (size_t)(layer->blocks * dpcri_recurrent_own_parameters(plan->network, sums->chain)) * plan->network->element);
    layer->join = join_blocks;
    layer->block_window = sums->window;
    layer->block_e = sums->in_place ? sums->block_e : NULL;
    layer->turned = sums->turned;
}

void dpcri_recurrent_let_go(dpcri_recurrent *layer) {
    layer->products = NULL;
    layer->join = NULL;
    layer->block_e = NULL;
}
