// SPDX-License-Identifier: MIT
// Recurrent networks drawn at random on a device: the loop there against the processor's, forward and back; overlapped
// chunks without tolerances against the loop there, and a sequence alone against itself among others, bit for bit; the
// same bits on every device that the simulator can be; nothing written but what is to be.
#include "device_draws.h"
#include "random_network.h"

static int executed, refused, by_method[DPCR_METHOD_COUNT];
static bool sums_wanted, in_place, ragged;

enum { X, FIRST, FIRST_CELL, Y, LAST, LAST_CELL, DY, DLAST, DLAST_CELL, DX, DFIRST, DFIRST_CELL, TABLES };

static void draw_plan(job *j) {
    dpcr_recurrent_plan_options *p = &j->plan;
    dpcr_solve_options *o = &p->solve;
    static const dpcr_method methods[] = {DPCR_METHOD_AUTO,    DPCR_METHOD_SEQUENTIAL, DPCR_METHOD_SEQUENTIAL,
                                          DPCR_METHOD_OVERLAP, DPCR_METHOD_OVERLAP,    DPCR_METHOD_NEWTON};
    *p = (dpcr_recurrent_plan_options){.size = sizeof *p, .length = j->T, .batch = j->B, .training = draw_chance(65)};
    p->packed = j->packed || draw_chance(10), p->resets = j->resets || draw_chance(10);
    if (p->training && draw_chance(20)) p->dropout = DRAW_OF(0.1, 0.5, 1);
    *o = (dpcr_solve_options){.size = sizeof *o, .method = methods[draw_below(6)], .device = arena.device};
    if (o->method == DPCR_METHOD_NEWTON && j->o.kind > DPCR_RNN_RELU && j->o.kind < DPCR_PARAGRU)
        o->method = DPCR_METHOD_OVERLAP;
    if (draw_chance(60)) o->atol = o->rtol = draw_chance(60) ? -1 : pow(10, -(double)draw_between(3, 6));
    if (draw_chance(60)) o->chunk = draw_log(1, j->T + 2);
    if (draw_chance(70)) o->warm_up = draw_log(1, 40);
    if (draw_chance(40)) o->max_sweeps = (int)draw_log(1, 12);
    if (draw_chance(10)) o->memory_limit = (size_t)draw_log(1, 1 << 24);
    tell(" | %s tol %g chunk %lld warm_up %lld sweeps %d%s dropout %g", dpcr_method_name(o->method), o->atol,
         (long long)o->chunk, (long long)o->warm_up, o->max_sweeps, p->training ? " training" : "", p->dropout);
}

// The parameters' gradients are added to these.
static double gradient_before(int64_t i) { return (double)(i % 5) - 2; }

static spot place_parameters(const job *j, dpcr_recurrent *network, int64_t count, bool gradients) {
    const size_t size = dpcr_dtype_size(j->o.dtype);
    char *numbers = calloc((size_t)count + 1, size);
    if (!gradients) memcpy(numbers, dpcr_recurrent_vector(network, &count), (size_t)count * size);
    for (int64_t i = 0; gradients && i < count; i++) put_number(j->o.dtype, numbers, i, gradient_before(i));
    const spot p = place_numbers(gradients ? "parameters' gradients" : "parameters", numbers, (size_t)count * size,
                                 size, gradients);
    free(numbers);
    return p;
}

static dpcr_array vector_there(const job *j, const spot *p, int64_t count) {
    dpcr_array a = dpcr_array_make(address(p), j->o.dtype, 1, &count);
    a.device = arena.device;
    return a;
}

static void check_reports(const job *j, const dpcr_recurrent_plan_options *o, dpcr_solve_report *reports,
                          const char *what) {
    for (int64_t c = 0; c < j->N; c++) {
        const dpcr_solve_report *r = &reports[c];
        if (r->reason == DPCR_REASON_NOT_CONVERGED || r->reason == 0 || !r->sentence || !r->sentence[0])
            wrong("%s: reason %d, \"%s\"", what, (int)r->reason, r->sentence ? r->sentence : "");
        if ((o->solve.method && r->method != o->solve.method) || !(r->residual >= 0) || r->sweeps < 0)
            wrong("%s: method %s, residual %g, %d sweeps", what, dpcr_method_name(r->method), r->residual, r->sweeps);
    }
}

// The network's whole work there by a plan.
static result run_there(job *j, const dpcr_recurrent_plan_options *o) {
    result r = {.worst = DPCR_REASON_EXACT};
    dpcr_error error = {0};
    dpcr_recurrent *network = NULL;
    dpcr_recurrent_plan *plan = NULL;
    check_done(dpcr_recurrent_create(draw_contexts[1], &j->o, &network, &error), &error, "network");
    scale_network(j, network);
    const dpcr_status status = dpcr_recurrent_plan_create(network, o, &plan, &error);
    check_words(status, &error);
    if (status == DPCR_ERROR_UNSUPPORTED || (status == DPCR_ERROR_MEMORY && o->solve.memory_limit)) {
        dpcr_recurrent_destroy(network);
        return (result){.refused = true};
    }
    check_done(status, &error, "plan there");
    const size_t bytes = dpcr_recurrent_plan_workspace(plan);
    if (o->solve.memory_limit && bytes > o->solve.memory_limit) wrong("the workspace takes %zu", bytes);
    if (bytes > ARENA_BYTES / 2) {
        dpcr_recurrent_plan_destroy(plan), dpcr_recurrent_destroy(network);
        return (result){.refused = true};
    }
    table *const tables[TABLES] = {&j->x,  &j->h0,  &j->c0,  &j->y,  &j->ht,  &j->ct,
                                   &j->gy, &j->ght, &j->gct, &j->gx, &j->gh0, &j->gc0};
    const int has[TABLES] = {-1, H0, C0, -1, HT, CT, GY, GHT, GCT, GX, GH0, GC0};
    spot at[TABLES];
    dpcr_array arrays[TABLES];
    clear_arena();
    for (int i = 0; i < TABLES; i++) {
        const bool written = (i >= Y && i <= LAST_CELL) || i >= DX, there = has[i] < 0 || j->has[has[i]];
        if (written) forget(tables[i]);
        const bool last = in_place && (i == FIRST || i == FIRST_CELL) && j->has[HT + i - FIRST];
        at[i] = place_table(tables[i], (written || last) && there && j->T > 0);
        arrays[i] = there ? table_there(tables[i], &at[i]) : (dpcr_array){0};
        // The last states in the place of the first.
        if (in_place && (i == LAST || i == LAST_CELL) && there && arrays[i - LAST + FIRST].data)
            at[i] = at[i - LAST + FIRST], arrays[i] = arrays[i - LAST + FIRST];
    }
    dpcr_recurrent_vector(network, &r.count);
    const spot theta = place_parameters(j, network, r.count, false), sums = place_parameters(j, network, r.count, true);
    const spot lengths = place_numbers("lengths", j->lengths, (size_t)j->B * 8, 8, false);
    const spot marks = place_numbers("resets", j->marks, (size_t)(j->T * j->B), 1, false);
    const spot space = place_workspace(bytes);
    send_arena();
    const dpcr_array parameters = vector_there(j, &theta, r.count), gradients = vector_there(j, &sums, r.count);
    const dpcr_recurrent_pass pass = {.size = sizeof pass,
                                      .x = arrays[X],
                                      .h0 = arrays[FIRST],
                                      .c0 = arrays[FIRST_CELL],
                                      .lengths = j->packed ? address(&lengths) : NULL,
                                      .y = arrays[Y],
                                      .ht = arrays[LAST],
                                      .ct = arrays[LAST_CELL],
                                      .resets = j->resets ? address(&marks) : NULL,
                                      .dropout_seed = 5,
                                      .dropout_call = 9};
    dpcr_solve_report reports[8];
    for (int i = 0; i < 8; i++) reports[i] = (dpcr_solve_report){.size = sizeof reports[i]};
    if (bytes > 0)
        check_small(dpcr_recurrent_enqueue(plan, &parameters, &pass, address(&space), bytes - 1, NULL, &error), &error);
    check_done(dpcr_recurrent_enqueue(plan, &parameters, &pass, address(&space), bytes, NULL, &error), &error,
               "enqueue");
    check_done(dpcr_recurrent_collect(plan, address(&space), bytes, NULL, reports, &error), &error, "collect");
    check_reports(j, o, reports, "forward");
    r.method = reports[0].method;
    for (int64_t c = 0; c < j->N; c++)
        if (reports[c].reason == DPCR_REASON_NONFINITE) r.worst = DPCR_REASON_NONFINITE;
    if (o->training) {
        const dpcr_recurrent_gradients g = {.size = sizeof g,
                                            .y = arrays[DY],
                                            .ht = arrays[DLAST],
                                            .ct = arrays[DLAST_CELL],
                                            .x = arrays[DX],
                                            .h0 = arrays[DFIRST],
                                            .c0 = arrays[DFIRST_CELL]};
        check_done(dpcr_recurrent_enqueue_backward(plan, &parameters, &pass, &g, sums_wanted ? &gradients : NULL,
                                                   address(&space), bytes, NULL, &error),
                   &error, "enqueue_backward");
        check_done(dpcr_recurrent_collect_backward(plan, address(&space), bytes, NULL, reports, &error), &error,
                   "collect_backward");
        check_reports(j, o, reports, "back");
    }
    fetch_arena("recurrent");
    for (int i = 0; i < TABLES; i++)
        if (i != FIRST && i != FIRST_CELL) fetch_table(tables[i], &at[i]);
    r.gradients = calloc((size_t)r.count + 1, 8);
    memcpy(r.gradients, arena.got + sums.at, sums.bytes);
    r.y = packed_table(&j->y), r.ht = packed_table(&j->ht), r.ct = packed_table(&j->ct);
    r.gx = packed_table(&j->gx), r.gh0 = packed_table(&j->gh0), r.gc0 = packed_table(&j->gc0);
    dpcr_recurrent_plan_destroy(plan);
    dpcr_recurrent_destroy(network);
    return r;
}

static result run_alone(job *one) {
    if (one->T == 0) return (result){.refused = true};  // of which a device writes nothing
    draw_same_device();
    // An RNN of 1, 2 or 4 units without lengths and resets goes by the cells' kernels, which add up in another order.
    one->packed = ragged, one->lengths[0] = one->T;
    return run_there(one, &one->plan);
}

// Is this a way whose sums have the loop's bits?
static bool exact(const dpcr_solve_options *o) {
    return o->method == DPCR_METHOD_SEQUENTIAL || (o->method == DPCR_METHOD_OVERLAP && o->atol < 0);
}

// What is no number in one sequence stays there.
static void check_spoiled(job *j, const result *clean) {
    const int64_t row = draw_below(j->B), t = draw_below(j->T), i = draw_below(j->o.inputs), B = j->B;
    const double kept = table_get(&j->x, t, row, i);
    table_put(&j->x, t, row, i, NAN);
    result r = run_there(j, &j->plan);
    table_put(&j->x, t, row, i, kept);
    const void *const was[] = {clean->y, clean->gx, clean->ht, clean->gh0}, *const is[] = {r.y, r.gx, r.ht, r.gh0};
    const int64_t steps[] = {j->T, j->T, j->N, j->N}, values[] = {j->D * j->P, j->o.inputs, j->P, j->P};
    static const char *const names[] = {"y", "x's gradient", "ht", "h0's gradient"};
    const size_t size = dpcr_dtype_size(j->o.dtype);
    for (int k = 0; !r.refused && k < 4; k++)
        for (int64_t n = 0; n < steps[k] * B; n++)
            if (n % B != row &&
                memcmp((const char *)was[k] + (size_t)(n * values[k]) * size,
                       (const char *)is[k] + (size_t)(n * values[k]) * size, (size_t)values[k] * size) != 0)
                wrong("a NaN in row %lld, step %lld: %s of row %lld, step %lld", (long long)row, (long long)t, names[k],
                      (long long)(n % B), (long long)(n / B));
    drop_result(&r);
}

static void near_the_host(const job *j, const result *there, const result *here) {
    const dpcr_solve_options *o = &j->plan.solve;
    const double given = o->atol > 0 ? o->atol + o->rtol : o->atol < 0 ? 0 : j->o.dtype == DPCR_F32 ? 2e-5 : 2e-10;
    const double tolerance = (exact(o) ? 0 : (100 + (double)j->T) * given) + (j->o.dtype == DPCR_F32 ? 1e-4 : 1e-12);
    near(j, "y", there->y, here->y, j->T * j->B * j->D * j->P, tolerance);
    near(j, "ht", there->ht, here->ht, j->N * j->B * j->P, tolerance);
    near(j, "ct", there->ct, here->ct, j->N * j->B * j->H, tolerance);
    const bool bends = j->o.kind == DPCR_RNN_RELU || j->o.clip > 0;
    if (bends && (j->o.dtype == DPCR_F32 || !exact(o))) return;
    near(j, "x's gradient", there->gx, here->gx, j->T * j->B * j->o.inputs, 10 * tolerance);
    near(j, "h0's gradient", there->gh0, here->gh0, j->N * j->B * j->P, 10 * tolerance);
    near(j, "c0's gradient", there->gc0, here->gc0, j->N * j->B * j->H, 10 * tolerance);
    if (!j->plan.training || !sums_wanted) return;
    double *sums = calloc((size_t)there->count + 1, sizeof *sums), *wanted = calloc((size_t)there->count + 1, 8);
    job as_double = *j;
    as_double.o.dtype = DPCR_F64;
    for (int64_t i = 0; i < there->count; i++) {
        sums[i] = number_at(j->o.dtype, there->gradients, i) - gradient_before(i);
        wanted[i] = number_at(j->o.dtype, here->gradients, i);
    }
    near(&as_double, "the parameters' gradients", sums, wanted, there->count, 10 * tolerance);
    free(sums), free(wanted);
}

static void draw_one(void) {
    job j = {0};
    draw_network(&j);
    const bool tiled = draw_chance(20);  // of a form that goes on chip as tiles
    if (tiled) {
        j.o.dtype = DPCR_F32, j.H = j.o.hidden = 4 * draw_between(8, draw_chance(75) ? 17 : 40);
        if (j.o.projection >= j.H) j.o.projection = j.H - 1;
        j.P = j.o.projection ? j.o.projection : j.H;
        tell(" (float32 H %lld)", (long long)j.H);
    }
    draw_shape(&j, !tiled && draw_chance(80) ? 2e5 : 1.5e6, draw_chance(85) ? 90 : 700);
    draw_arrays(&j);
    draw_plan(&j);
    j.gain = j.o.kind == DPCR_RNN_RELU ? DRAW_OF(0.3, 0.7) : DRAW_OF(0.3, 1, 1, 1.3);
    sums_wanted = draw_chance(90), in_place = !j.plan.training && draw_chance(30);
    tell(" gain %g%s%s", j.gain, sums_wanted ? "" : " no sums", in_place ? " in place" : "");
    draw_device();
    result mine = run_there(&j, &j.plan);
    if (mine.refused) {
        refused++;
        free(j.marks);
        return;
    }
    executed++;
    by_method[mine.method]++;
    if (j.T > 0) {  // of length 0 nothing is written there
        dpcr_recurrent_plan_options loop = j.plan;
        loop.solve = (dpcr_solve_options){
            .size = sizeof loop.solve, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL};
        result here = run(&j, &loop, 1);
        if (here.refused) wrong("the processor's loop was refused");
        near_the_host(&j, &mine, &here);
        drop_result(&here);
    }
    draw_device();
    result again = run_there(&j, &j.plan);
    if (!again.refused) same_results(&j, &mine, &again, "another device", true, true);
    drop_result(&again);
    if (j.plan.solve.method == DPCR_METHOD_OVERLAP && exact(&j.plan.solve)) {
        dpcr_recurrent_plan_options loop = j.plan;
        loop.solve =
            (dpcr_solve_options){.size = sizeof loop.solve, .method = DPCR_METHOD_SEQUENTIAL, .device = arena.device};
        again = run_there(&j, &loop);
        same_results(&j, &mine, &again, "not the loop's bits", true, true);
        drop_result(&again);
    }
    if (j.B > 1 && j.T > 0 && exact(&j.plan.solve) && !(j.plan.dropout > 0) && draw_chance(40))
        ragged = j.packed, check_alone(&j, &mine, run_alone);
    if (j.B > 1 && j.T > 0 && draw_chance(20)) check_spoiled(&j, &mine);
    drop_result(&mine);
    free(j.marks);
}

static void networks(void **state) {
    (void)state;
    run_draws("recurrent on a device", 150, draw_one);
    print_message("%d run (", executed);
    for (int i = 1; i < DPCR_METHOD_COUNT; i++)
        if (by_method[i]) print_message(" %s %d", dpcr_method_name((dpcr_method)i), by_method[i]);
    print_message(" ), %d refused\n", refused);
}

int main(void) { return draw_on_device("networks", networks); }
