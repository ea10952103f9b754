// SPDX-License-Identifier: MIT
// Stacks of layers and cells drawn at random on a device (random_solve.h): every method there is, forward, back and the
// parameters' gradients, step by step against the definition in double, as far as the report says; the processor's bits
// where the loop has them; overlapped chunks without tolerances against the loop, a sequence alone against itself among
// others, blocks that share units against one, and one device against another that the simulator can be, bit for bit;
// nothing written but what is to be.
#include "device_draws.h"
#include "random_solve.h"
#include "rt/wisdom.h"

static int executed, refused, by_method[DPCR_METHOD_COUNT], as_here;

static bool from_zeros, in_place, summed;  // z0 and the sums NULL, lambda in the place of what comes in

enum { Z0, Z, DIRECT, LAMBDA, DZ0, TABLES };

static void draw_arrays(problem *p) {
    const subject *s = &p->s;
    const int64_t L = s->length, B = s->batch, w = s->width;
    p->z0 = draw_table("z0", s->dtype, -1, B, w, STRIDED);
    from_zeros = draw_chance(15), in_place = draw_chance(30), summed = true;
    fill_with(&p->z0, from_zeros ? 0 : DRAW_OF(0.1, 1, 1, 4));
    p->z = draw_table("z", s->dtype, L, B, w, STRIDED | WRITTEN);
    p->tape = draw_table("tape", s->dtype, 0, B, 1, WRITTEN);
    p->direct = draw_table("direct", s->dtype, L, B, w, STRIDED);
    p->last = draw_table("last", s->dtype, -1, B, w, PLAIN);
    p->lambda = draw_table("lambda", s->dtype, L, B, w, STRIDED | WRITTEN);
    p->dz0 = draw_table("dz0", s->dtype, -1, B, w, STRIDED | WRITTEN);
    fill_with(&p->direct, 1);
    p->has_direct = p->has_lambda = true, p->has_dz0 = draw_chance(70);
    keep_sum(&p->z0), keep_sum(&p->direct), keep_sum(&p->last);
}

static void draw_options(problem *p) {
    static const dpcr_method methods[] = {DPCR_METHOD_AUTO,    DPCR_METHOD_SEQUENTIAL, DPCR_METHOD_SEQUENTIAL,
                                          DPCR_METHOD_OVERLAP, DPCR_METHOD_OVERLAP,    DPCR_METHOD_NEWTON};
    dpcr_solve_options *o = &p->options;
    *o = (dpcr_solve_options){.size = sizeof *o, .method = methods[draw_below(6)], .device = arena.device};
    draw_tolerances(o, p->s.dtype);
    if (draw_chance(60)) o->chunk = draw_log(1, p->s.length + 2);
    if (draw_chance(60)) o->warm_up = draw_log(1, 60);
    if (draw_chance(50)) o->max_sweeps = (int)draw_log(1, 30);
    o->no_fallback = draw_chance(15);
    if (draw_chance(10)) o->planning = DPCR_PLANNING_MEASURE, o->planning_seconds = 0.001;
    if (draw_chance(10)) o->memory_limit = (size_t)draw_log(1, 1 << 22);
    tell(" | %s tol %g %g chunk %lld warm_up %lld sweeps %d%s%s%s%s", dpcr_method_name(o->method), o->atol, o->rtol,
         (long long)o->chunk, (long long)o->warm_up, o->max_sweeps, o->no_fallback ? " no fallback" : "",
         p->has_dz0 ? " dz0" : "", from_zeros ? " from zeros" : "", in_place ? " in place" : "");
    tell(" planning %d limit %zu", (int)o->planning, o->memory_limit);
}

// What a barrier of all blocks takes is what the context believes: units are shared, or not, or as the rule says.
static void draw_barrier(void) {
    dpcr_device_info info = {.size = sizeof info};
    char key[DPCRI_WISDOM_KEY];
    dpcr_error error = {0};
    dpcr_wisdom_forget(draw_contexts[1]);
    check_done(dpcr_device_describe(arena.device, &info, &error), &error, "describe");
    snprintf(key, sizeof key, "device %.100s %d.%d barrier", info.name, info.major, info.minor);
    const char *const seconds = draw_chance(50) ? "1e-12" : "0.5";
    if (draw_chance(80)) dpcri_wisdom_set(draw_contexts[1], key, seconds);
}

// The chain there, of a batch that begins with the row `first`.
typedef struct chain_there {
    dpcr_steps steps;
    dpcr_device_model *model;
    dpcr_cell *cell;
    spot numbers, gradients, input;
    int64_t count;
} chain_there;

static dpcr_array at_row(dpcr_array a, int64_t row, int64_t rows) {
    a.data = (char *)a.data + row * a.strides[a.ndim - 2] * (int64_t)dpcr_dtype_size(a.dtype);
    a.shape[a.ndim - 2] = rows;
    return a;
}

static void make_chain(problem *p, int64_t first, int64_t rows, chain_there *c) {
    subject *s = &p->s;
    const size_t size = dpcr_dtype_size(s->dtype);
    dpcr_error error = {0};
    c->steps.size = sizeof c->steps;
    if (s->kind == CELL) {
        dpcr_cell_options o = s->cell_options;
        c->numbers = place_table(&s->weight, false), c->input = place_table(&s->input, false);
        o.weight.data = address(&c->numbers), o.weight.device = arena.device;
        o.input = at_row(table_there(&s->input, &c->input), first, rows), o.batch = rows;
        o.input_gradient = o.weight_gradient = (dpcr_array){0};
        check_done(dpcr_cell_create(draw_contexts[1], &o, &c->cell, &error), &error, "cell there");
        check_done(dpcr_cell_steps(c->cell, &c->steps, &error), &error, "steps there");
        return;
    }
    const void *vector = dpcr_model_vector(s->model, &c->count);
    void *zeros = calloc((size_t)c->count + 1, size);
    c->numbers = place_numbers("parameters", vector, (size_t)c->count * size, size, false);
    c->gradients = place_numbers("parameters' gradients", zeros, (size_t)c->count * size, size, true);
    free(zeros);
    dpcr_array theta = dpcr_array_make(address(&c->numbers), s->dtype, 1, &c->count), sums = theta;
    theta.device = sums.device = arena.device, sums.data = address(&c->gradients);
    check_done(dpcr_device_model_create(s->model, rows, &theta, summed ? &sums : NULL, &c->model, &error), &error,
               "model there");
    check_done(dpcr_device_model_steps(c->model, &c->steps, &error), &error, "steps there");
}

static void drop_chain(chain_there *c) { dpcr_device_model_destroy(c->model), dpcr_cell_destroy(c->cell); }

// Solves there and goes back: rows first .. first + rows - 1.
static result run_there(problem *p, const dpcr_solve_options *options, int64_t first, int64_t rows,
                        dpcr_solve_options *pinned) {
    result r = {.report = {.size = sizeof r.report, .batch_capacity = 64}};
    dpcr_error error = {0};
    dpcr_solve_plan *plan = NULL;
    chain_there c = {0};
    table *const tables[TABLES] = {&p->z0, &p->z, &p->direct, &p->lambda, &p->dz0};
    spot at[TABLES];
    dpcr_array arrays[TABLES];
    draw_barrier();
    clear_arena();
    make_chain(p, first, rows, &c);
    forget_table(&p->z), forget_table(&p->lambda), forget_table(&p->dz0);
    for (int64_t l = 0; in_place && l < p->s.length; l++)
        for (int64_t b = 0; b < p->s.batch; b++)
            for (int64_t i = 0; i < p->s.width; i++) table_put(&p->lambda, l, b, i, table_get(&p->direct, l, b, i));
    for (int i = 0; i < TABLES; i++) {
        at[i] = place_table(tables[i], i == Z || i == LAMBDA || (i == DZ0 && p->has_dz0));
        arrays[i] = at_row(table_there(tables[i], &at[i]), first, rows);
    }
    const dpcr_status status = dpcr_solve_plan_create(draw_contexts[1], &c.steps, options, &plan, &error);
    check_words(status, &error);
    if (status == DPCR_ERROR_UNSUPPORTED || (status == DPCR_ERROR_MEMORY && options->memory_limit)) {
        drop_chain(&c);
        return (result){.refused = true};
    }
    check_done(status, &error, "plan there");
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    if (options->memory_limit && bytes > options->memory_limit) wrong("the workspace takes %zu", bytes);
    if (bytes > ARENA_BYTES / 2) {
        dpcr_solve_plan_destroy(plan), drop_chain(&c);
        return (result){.refused = true};
    }
    if (pinned) *pinned = *dpcr_solve_plan_options(plan);
    const spot space = place_workspace(bytes);
    const dpcr_array *const z0 = from_zeros ? NULL : &arrays[Z0], *const direct = &arrays[in_place ? LAMBDA : DIRECT];
    send_arena();
    if (bytes > 0)
        check_small(dpcr_solve_enqueue(plan, z0, &arrays[Z], address(&space), bytes - 1, NULL, &error), &error);
    r.report.sequence_reason = r.reasons;
    check_done(dpcr_solve_enqueue(plan, z0, &arrays[Z], address(&space), bytes, NULL, &error), &error, "enqueue");
    check_done(dpcr_solve_collect(plan, address(&space), bytes, NULL, &r.report, &error), &error, "collect");
    check_done(dpcr_solve_enqueue_backward(plan, z0, &arrays[Z], direct, &arrays[LAMBDA],
                                           p->has_dz0 ? &arrays[DZ0] : NULL, address(&space), bytes, NULL, &error),
               &error, "enqueue_backward");
    fetch_arena("solve");
    for (int i = 0; i < TABLES; i++) fetch_table(tables[i], &at[i]);
    check_gaps(&p->z), check_gaps(&p->lambda), check_gaps(&p->dz0);
    if (r.report.method != dpcr_solve_plan_method(plan)) wrong("the report says %s", dpcr_method_name(r.report.method));
    r.report.sentence = NULL;
    if (p->s.kind == NETWORK && summed)
        memcpy(dpcr_model_gradient_vector(p->s.model), arena.got + c.gradients.at, c.gradients.bytes);
    r.z = packed_table(&p->z), r.lambda = packed_table(&p->lambda), r.dz0 = packed_table(&p->dz0);
    r.gradients = all_gradients(&p->s, &r.gradient_bytes);
    dpcr_solve_plan_destroy(plan), drop_chain(&c);
    return r;
}

// A sequence by itself has the bits that it has among others.
static void check_alone(problem *p, const dpcr_solve_options *options, const result *together) {
    const int64_t row = draw_below(p->s.batch), w = p->s.width, B = p->s.batch;
    draw_device();
    result r = run_there(p, options, row, 1, NULL);
    const void *const all[] = {together->z, together->lambda, together->dz0}, *const mine[] = {r.z, r.lambda, r.dz0};
    static const char *const names[] = {"z", "lambda", "dz0"};
    for (int k = 0; !r.refused && k < (p->has_dz0 ? 3 : 2); k++)
        for (int64_t l = 0; l < (k < 2 ? p->s.length : 1); l++)
            for (int64_t i = 0; i < w; i++) {
                const double x = number_at(p->s.dtype, all[k], (l * B + row) * w + i),
                             y = number_at(p->s.dtype, mine[k], (l * B + row) * w + i);
                if (memcmp(&x, &y, sizeof x) != 0 && !(isnan(x) && isnan(y)))
                    wrong("row %lld alone: %s(%lld, %lld) is %.9g, among others %.9g", (long long)row, names[k],
                          (long long)l, (long long)i, y, x);
            }
    drop_result(&r);
}

// What is no number in one sequence stays there.
static void check_spoiled(problem *p, const dpcr_solve_options *options, const result *clean) {
    const int64_t row = draw_below(p->s.batch), w = p->s.width, B = p->s.batch, i = draw_below(w);
    const double kept = table_get(&p->z0, 0, row, i);
    const size_t size = dpcr_dtype_size(p->s.dtype);
    table_put(&p->z0, 0, row, i, NAN);
    result r = run_there(p, options, 0, B, NULL);
    table_put(&p->z0, 0, row, i, kept);
    const void *const was[] = {clean->z, clean->lambda, clean->dz0}, *const is[] = {r.z, r.lambda, r.dz0};
    static const char *const names[] = {"z", "lambda", "dz0"};
    for (int k = 0; !r.refused && k < (p->has_dz0 ? 3 : 2); k++)
        for (int64_t n = 0; n < (k < 2 ? p->s.length : 1) * B; n++)
            if (n % B != row && memcmp((const char *)was[k] + (size_t)(n * w) * size,
                                       (const char *)is[k] + (size_t)(n * w) * size, (size_t)w * size) != 0)
                wrong("a NaN in row %lld: %s of row %lld, step %lld", (long long)row, names[k], (long long)(n % B),
                      (long long)(n / B));
    drop_result(&r);
}

// Of a scan, by which diagonal cells and those of width 1, 2 and 4 go back; else 0.
static double rounding_of_scan(const problem *p) {
    const subject *s = &p->s;
    const int64_t w = s->width;
    bool scan = w == 1 || w == 2 || w == 4;
    if (s->kind == CELL) {
        scan = scan || s->cell_options.kind == DPCR_CELL_DIAGONAL;
    } else {
        const dpcr_model_options *o = dpcr_model_get_options(s->model);
        scan = scan && !o->layer_norm && o->branch != DPCR_BRANCH_TWO_LAYER;
    }
    const double unit = s->dtype == DPCR_F32 ? 0x1p-23 : 0x1p-52;
    return scan ? unit * 4 * (double)(w + 8) * (double)(s->length + 8) : 0;
}

static bool has_fma(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("fma");
#else
    return false;
#endif
}

// Has the loop there the processor's bits (docs/gpu.md)?
static bool bits_of_here(const problem *p) {
    const subject *s = &p->s;
    const int64_t w = s->width;
    const bool cell = s->kind == CELL && s->cell_options.kind == DPCR_CELL_DIAGONAL;
    const bool curved = s->act == DPCR_ACT_TANH || s->act == DPCR_ACT_SIGMOID;
    const bool smooth = s->act == DPCR_ACT_GELU || s->act == DPCR_ACT_SILU;
    const bool wide = w > 4 && !(w == 8 && s->dtype == DPCR_F32);
    if (!has_fma()) return false;
    if (s->kind == NETWORK) {
        const dpcr_model_options *o = dpcr_model_get_options(s->model);
        const int64_t h = o->branch == DPCR_BRANCH_TWO_LAYER ? o->hidden : 0;
        if (o->layer_norm) return false;
        if (h) return !curved && wide && h > 4 && !(h == 8 && s->dtype == DPCR_F32);
    }
    if (cell || w == 1 || w == 2 || w == 4) return s->dtype == DPCR_F32 && !smooth;
    return !curved && wide;
}

static void draw_one(void) {
    const subject_limits most = {.work = draw_chance(80) ? 3e4 : 3e5,
                                 .width = draw_chance(80) ? 70 : MOST_WIDTH,
                                 .rows = draw_chance(85) ? 40 : 1500};
    problem p = {.s = draw_subject(most)};
    settle_subject(&p.s);
    draw_arrays(&p);
    draw_options(&p);
    const dpcr_solve_options here = {
        .size = sizeof here, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL};
    result own = run(&p, &here, 1, NULL);
    p.s.input_gradient.view.data = p.s.weight_gradient.view.data = NULL;  // there are none there
    dpcr_solve_options loop = {.size = sizeof loop, .method = DPCR_METHOD_SEQUENTIAL, .device = arena.device};
    dpcr_solve_options pinned = loop;
    draw_device();
    result in_order = run_there(&p, &loop, 0, p.s.batch, NULL);
    if (own.refused || in_order.refused) wrong("the loop was refused");
    slack k = {.forward = true, .adjoint = true, .back = rounding_of_scan(&p)};
    if (p.s.length > 0) check_steps(&p, &in_order, &k);
    if (bits_of_here(&p)) {
        as_here++;
        same("the loop here and there: z", in_order.z, own.z, p.s.dtype, p.s.length * p.s.batch * p.s.width);
    }
    draw_device();
    result mine = run_there(&p, &p.options, 0, p.s.batch, &pinned);
    if (mine.refused) {
        refused++;
    } else if (p.s.length > 0 && p.s.batch > 0) {
        executed++;
        by_method[mine.report.method]++;
        k = (slack){.adjoint = true, .back = rounding_of_scan(&p)};
        check_reason(&p, &mine, &in_order, &pinned, &k);
        k.taped = k.atol + k.rtol;  // slopes are told by the states that come out
        if (mine.report.reason == DPCR_REASON_NOT_CONVERGED) k.adjoint = false;
        check_steps(&p, &mine, &k);
        draw_device();
        summed = draw_chance(70);  // where not, the model keeps those of the run before
        result other = run_there(&p, &pinned, 0, p.s.batch, NULL);
        if (!other.refused) same_results(&p, &mine, &other, "another device");
        drop_result(&other);
        const bool exact = pinned.method == DPCR_METHOD_SEQUENTIAL || pinned.method == DPCR_METHOD_NEWTON ||
                           (pinned.method == DPCR_METHOD_OVERLAP && pinned.atol < 0 && pinned.rtol < 0);
        if (p.s.batch > 1 && exact && draw_chance(50)) check_alone(&p, &pinned, &mine);
        if (p.s.batch > 1 && !from_zeros && draw_chance(20)) check_spoiled(&p, &pinned, &mine);
    }
    drop_result(&mine), drop_result(&in_order), drop_result(&own);
    drop_subject(&p.s);
}

static void solves(void **state) {
    (void)state;
    run_draws("solve on a device", 120, draw_one);
    print_message("%d solved (", executed);
    for (int i = 1; i < DPCR_METHOD_COUNT; i++)
        if (by_method[i]) print_message(" %s %d", dpcr_method_name((dpcr_method)i), by_method[i]);
    print_message(" ), %d loops with the processor's bits, %d refused\n", as_here, refused);
}

int main(void) { return draw_on_device("solves", solves); }
