// SPDX-License-Identifier: MIT
// Nonlinear chains drawn at random (random_steps.h): the loop step by step against the definition in double, forward,
// back and the parameters' gradients; every method with any options against the loop, as far as its report says; the
// same bits for any number of threads, for the plan's own options and for a sequence alone; nothing written but what is
// to be, and no more workspace than was asked for.
#include "random_solve.h"

static int executed, refused, by_method[DPCR_METHOD_COUNT], by_backward[DPCR_SCHEME_COUNT];

static void draw_arrays(problem *p) {
    const subject *s = &p->s;
    const dpcr_dtype dtype = s->dtype;
    const int64_t L = s->length, B = s->batch, w = s->width;
    p->z0 = draw_table("z0", dtype, -1, B, w, STRIDED);
    fill_with(&p->z0, DRAW_OF(0.1, 1, 1, 4));
    p->z = draw_table("z", dtype, L, B, w, STRIDED | WRITTEN);
    p->has_tape = s->steps.tape_values > 0 && draw_chance(60);
    p->tape = draw_table("tape", dtype, L, B, p->has_tape ? s->steps.tape_values : 1, STRIDED | WRITTEN);
    p->has_direct = draw_chance(70), p->has_last = draw_chance(50);
    if (!p->has_direct) p->has_last = true;
    p->has_lambda = draw_chance(60), p->has_dz0 = draw_chance(70);
    p->direct = draw_table("direct", dtype, L, B, w, STRIDED);
    p->last = draw_table("last", dtype, -1, B, w, STRIDED);
    p->lambda = draw_table("lambda", dtype, L, B, w, STRIDED | WRITTEN);
    p->dz0 = draw_table("dz0", dtype, -1, B, w, STRIDED | WRITTEN);
    fill_with(&p->direct, 1), fill_with(&p->last, 1);
    keep_sum(&p->z0), keep_sum(&p->direct), keep_sum(&p->last);
    tell("%s%s%s%s%s", p->has_tape ? " tape" : "", p->has_direct ? " direct" : "", p->has_last ? " last" : "",
         p->has_lambda ? " lambda" : "", p->has_dz0 ? " dz0" : "");
}

static void draw_options(problem *p) {
    dpcr_solve_options *o = &p->options;
    const subject *s = &p->s;
    *o = (dpcr_solve_options){.size = sizeof *o, .method = (dpcr_method)draw_below(DPCR_METHOD_COUNT)};
    if (draw_chance(40)) o->method = draw_chance(50) ? DPCR_METHOD_OVERLAP : DPCR_METHOD_AUTO;
    // Products of dense matrices are dear, and a method that has no Jacobians takes a sweep a step.
    const double w = (double)s->width, steps = (double)s->length * (double)s->batch;
    const bool dense = s->steps.jacobian.structure == DPCR_DENSE;
    if (dense && steps * w * w * w > 3e6 &&
        (o->method == DPCR_METHOD_NEWTON || o->method == DPCR_METHOD_SHOOTING || o->method == DPCR_METHOD_DAMPED))
        o->method = DPCR_METHOD_OVERLAP;
    if (draw_chance(50)) o->scheme = (dpcr_scheme)draw_below(DPCR_SCHEME_COUNT);
    const int way = (int)draw_below(10);
    o->backward = way < 4   ? DPCR_SCHEME_SEQUENTIAL
                  : way < 7 ? DPCR_SCHEME_OVERLAP
                            : (dpcr_scheme)draw_below(DPCR_SCHEME_COUNT);
    if (dense && steps * w * w * w > 3e6 && o->backward != DPCR_SCHEME_SEQUENTIAL) o->backward = DPCR_SCHEME_OVERLAP;
    o->guess = draw_chance(50) ? DPCR_GUESS_ZERO : (dpcr_guess)draw_below(DPCR_GUESS_COUNT);
    draw_tolerances(o, s->dtype);
    if (draw_chance(25)) o->window = draw_log(1, s->length + 2);
    if (draw_chance(50)) o->chunk = draw_log(1, s->length + 2);
    if (draw_chance(30)) o->backward_chunk = draw_log(1, s->length + 2);
    if (draw_chance(60)) o->warm_up = draw_log(1, 200);
    if (draw_chance(50)) o->block = draw_between(1, 4);
    if (draw_chance(20)) o->damping = draw_unit();
    if (draw_chance(60)) o->max_sweeps = (int)draw_log(1, 60);
    if (steps * w * w > 1e5 && o->max_sweeps == 0 && o->method != DPCR_METHOD_OVERLAP) o->max_sweeps = 12;
    o->no_fallback = draw_chance(15);
    o->consume_tape = draw_chance(40);
    if (draw_chance(10)) o->planning = DPCR_PLANNING_MEASURE;
    if (o->planning == DPCR_PLANNING_MEASURE || draw_chance(5)) o->planning_seconds = 0.003;
    if (draw_chance(20)) o->start = &p->z0.view;
    if (o->method == DPCR_METHOD_PICARD && draw_chance(20)) o->lock = DPCR_LOCK_MEAN_SQUARE;
    if (draw_chance(20)) o->order = draw_log(1, s->length + 2);
    if (draw_chance(20)) o->mixed = (int)draw_between(1, 4);
    if (draw_chance(6)) {
        p->step_scale = calloc((size_t)s->length + 1, sizeof *p->step_scale);
        for (int64_t l = 0; l < s->length; l++) p->step_scale[l] = draw_unit() + 0.1;
        o->step_scale = p->step_scale;
    }
    tell(
        " | %s %s back %s guess %s tol %g %g window %lld chunk %lld/%lld warm_up %lld block %lld damping %g sweeps %d"
        "%s%s planning %d lock %d order %lld mixed %d%s",
        dpcr_method_name(o->method), dpcr_scheme_name(o->scheme), dpcr_scheme_name(o->backward),
        dpcr_guess_name(o->guess), o->atol, o->rtol, (long long)o->window, (long long)o->chunk,
        (long long)o->backward_chunk, (long long)o->warm_up, (long long)o->block, o->damping, o->max_sweeps,
        o->no_fallback ? " no fallback" : "", o->consume_tape ? " consume" : "", (int)o->planning, (int)o->lock,
        (long long)o->order, o->mixed, o->step_scale ? " scaled" : "");
}

static void draw_limit(problem *p, int threads) {
    dpcr_solve_plan *plan = NULL;
    if (!draw_chance(15) ||
        dpcr_solve_plan_create(draw_contexts[threads], &p->s.steps, &p->options, &plan, NULL) != DPCR_OK)
        return;
    p->options.memory_limit = 1 + (size_t)((double)dpcr_solve_plan_workspace(plan) * pow(draw_unit(), 2));
    dpcr_solve_plan_destroy(plan);
    tell(" limit %zu", p->options.memory_limit);
}

static void draw_guess(problem *p, const result *loop) {
    if (p->options.guess != DPCR_GUESS_GIVEN) return;
    const int64_t count = p->s.length * p->s.batch * p->s.width;
    const double off = DRAW_OF(0, 1e-6, 0.1, 1);
    p->guess = calloc((size_t)count + 1, 8);
    for (int64_t i = 0; i < count; i++)
        put_number(p->s.dtype, p->guess, i, number_at(p->s.dtype, loop->z, i) + off * draw_signed());
    tell(" off %g", off);
}

// Among others a sequence has the bits that it has alone: of networks, whose chain can be had for any batch.
static void check_alone(problem *p, const dpcr_solve_options *options, const result *together) {
    const int64_t row = draw_below(p->s.batch), L = p->s.length, B = p->s.batch, w = p->s.width;
    const size_t size = dpcr_dtype_size(p->s.dtype);
    dpcr_error error = {0};
    dpcr_steps steps = {.size = sizeof steps};
    check_done(dpcr_model_steps(p->s.model, 1, &steps, &error), &error, "steps of one");
    dpcr_solve_plan *plan = NULL;
    dpcr_solve_options o = *options;
    o.start = NULL;
    check_done(dpcr_solve_plan_create(draw_contexts[1], &steps, &o, &plan, &error), &error, "plan of one");
    const int used = drawn.used;
    piece space = draw_scratch(dpcr_solve_plan_workspace(plan));
    table z = draw_table("z of one", p->s.dtype, L, 1, w, WRITTEN),
          d0 = draw_table("dz0", p->s.dtype, -1, 1, w, WRITTEN);
    for (int64_t l = 0; p->guess && l < L; l++)
        for (int64_t i = 0; i < w; i++) table_put(&z, l, 0, i, number_at(p->s.dtype, p->guess, (l * B + row) * w + i));
    table first = p->z0, direct = p->direct, last = p->last;
    table *const all[] = {&first, &direct, &last};
    for (int i = 0; i < 3; i++) {
        all[i]->view.data = (char *)all[i]->view.data + all[i]->row * row * (int64_t)size;
        all[i]->view.shape[all[i]->view.ndim - 2] = 1;
    }
    check_done(dpcr_solve_execute(plan, &first.view, &z.view, NULL, space.data, space.bytes, NULL, &error), &error,
               "one alone");
    for (int64_t l = 0; l < L; l++)
        for (int64_t i = 0; i < w; i++) {
            const double x = table_get(&z, l, 0, i), y = value_of(p, together->z, l, row, i);
            if (memcmp(&x, &y, sizeof x) != 0 && !(isnan(x) && isnan(y)))
                wrong("row %lld alone: z(%lld, %lld) is %.9g, among others %.9g", (long long)row, (long long)l,
                      (long long)i, x, y);
        }
    check_done(
        dpcr_solve_backward(plan, &first.view, &z.view, NULL, p->has_direct ? &direct.view : NULL,
                            p->has_last ? &last.view : NULL, NULL, &d0.view, space.data, space.bytes, NULL, &error),
        &error, "backward of one");
    for (int64_t i = 0; p->has_dz0 && !p->has_tape && i < w; i++) {
        const double x = table_get(&d0, 0, 0, i), y = number_at(p->s.dtype, together->dz0, row * w + i);
        if (memcmp(&x, &y, sizeof x) != 0 && !(isnan(x) && isnan(y)))
            wrong("row %lld alone: dz0(%lld) is %.9g, among others %.9g", (long long)row, (long long)i, x, y);
    }
    dpcr_solve_plan_destroy(plan);
    drawn.used = used;
}

static void draw_one(void) {
    problem p = {.s = draw_subject((subject_limits){.work = 1e6, .width = 70, .rows = 40, .callbacks = true})};
    settle_subject(&p.s);
    draw_arrays(&p);
    draw_options(&p);
    const dpcr_solve_options in_order = {.size = sizeof in_order,
                                         .method = DPCR_METHOD_SEQUENTIAL,
                                         .backward = DPCR_SCHEME_SEQUENTIAL,
                                         .consume_tape = p.options.consume_tape};
    result loop = p.s.steps.adjoint || p.s.steps.linearise ? run(&p, &in_order, 1, NULL) : (result){.refused = true};
    if (loop.refused) {
        refused++;
        drop_subject(&p.s);
        free(p.step_scale);
        return;
    }
    slack k = {.forward = true, .adjoint = true};
    check_steps(&p, &loop, &k);
    draw_guess(&p, &loop);
    const int threads = (int)draw_between(1, 4);
    draw_limit(&p, threads);
    dpcr_solve_options pinned;
    result mine = run(&p, &p.options, threads, &pinned);
    if (mine.refused) {
        refused++;
    } else {
        executed++;
        by_method[mine.report.method]++, by_backward[pinned.backward]++;
        k = (slack){.adjoint = true};
        check_reason(&p, &mine, &loop, &pinned, &k);
        const double unit = p.s.dtype == DPCR_F32 ? 0x1p-23 : 0x1p-52;
        if (pinned.backward == DPCR_SCHEME_OVERLAP)
            k.back = 2 * ((pinned.atol > 0 ? pinned.atol : 0) + (pinned.rtol > 0 ? pinned.rtol : 0));
        else if (pinned.backward != DPCR_SCHEME_SEQUENTIAL)
            k.back = unit * 4 * (double)(p.s.width + 8) * (double)(p.s.length + 8);
        if (pinned.method == DPCR_METHOD_OVERLAP && p.has_tape) k.taped = k.atol + k.rtol;
        // Chunks that were left open have tapes of their own starts.
        if (mine.report.reason == DPCR_REASON_NOT_CONVERGED && p.has_tape) k.adjoint = false;
        check_steps(&p, &mine, &k);
        const int more = threads % 4 + 1;
        tell(" threads %d, %d", threads, more);
        result other = run(&p, &pinned, more, NULL);
        if (other.refused) wrong("the plan's own options were refused");
        same_results(&p, &mine, &other, "other threads");
        if (p.s.model && p.s.batch > 1 && p.s.length > 0 && !p.options.memory_limit && draw_chance(40))
            check_alone(&p, &pinned, &mine);
        drop_result(&other);
    }
    drop_result(&mine), drop_result(&loop);
    drop_subject(&p.s);
    free(p.guess), free(p.step_scale);
}

static void solves(void **state) {
    (void)state;
    run_draws("solve", 1500, draw_one);
    print_message("%d solved (", executed);
    for (int i = 1; i < DPCR_METHOD_COUNT; i++) print_message(" %s %d", dpcr_method_name((dpcr_method)i), by_method[i]);
    print_message(" ), back (");
    for (int i = 1; i < DPCR_SCHEME_COUNT; i++)
        print_message(" %s %d", dpcr_scheme_name((dpcr_scheme)i), by_backward[i]);
    print_message(" ), reasons (");
    for (int i = 0; i < 8; i++) print_message(" %d: %d", i - 2, by_reason[i]);
    print_message(" ), %d refused\n", refused);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(solves)};
    return cmocka_run_group_tests(tests, draw_open_contexts, draw_close_contexts);
}
