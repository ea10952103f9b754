// SPDX-License-Identifier: MIT
// Recurrent networks drawn at random: the loop against the definition in double (random_recurrent.h), its gradients
// along a direction of all that goes in; every method against the loop; the same bits for any number of threads, for
// recomputing, frozen weights and a sequence alone; nothing written but what is to be.
#include "random_network.h"
#include "random_recurrent.h"

static int executed, refused, by_method[DPCR_METHOD_COUNT], certain_ones;

static void draw_plan(job *j) {
    dpcr_recurrent_plan_options *p = &j->plan;
    dpcr_solve_options *o = &p->solve;
    *p = (dpcr_recurrent_plan_options){.size = sizeof *p, .length = j->T, .batch = j->B, .training = draw_chance(70)};
    p->packed = j->packed || draw_chance(10), p->resets = j->resets || draw_chance(10);
    p->frozen = draw_chance(20);
    if (p->training && draw_chance(20)) p->dropout = DRAW_OF(0.1, 0.5, 1);
    if (p->training && draw_chance(30)) p->recompute = 1;
    if (draw_chance(10)) {
        tell(" | no options");
        return;
    }
    *o = (dpcr_solve_options){.size = sizeof *o, .method = (dpcr_method)draw_below(DPCR_METHOD_COUNT)};
    if (draw_chance(50)) o->method = draw_chance(65) ? DPCR_METHOD_OVERLAP : DPCR_METHOD_SEQUENTIAL;
    const double work = (double)(j->T * j->B * j->N) * pow((double)(j->cells ? 2 * j->H : j->H), 3);
    const bool dense = j->o.kind <= DPCR_LSTM;
    if (dense && work > 3e6 && o->method != DPCR_METHOD_SEQUENTIAL) o->method = DPCR_METHOD_OVERLAP;
    if (draw_chance(40)) o->scheme = (dpcr_scheme)draw_below(DPCR_SCHEME_COUNT);
    o->backward = draw_chance(40)   ? DPCR_SCHEME_SEQUENTIAL
                  : draw_chance(60) ? DPCR_SCHEME_OVERLAP
                                    : (dpcr_scheme)draw_below(DPCR_SCHEME_COUNT);
    if (dense && work > 3e6 && o->backward != DPCR_SCHEME_SEQUENTIAL) o->backward = DPCR_SCHEME_OVERLAP;
    if (draw_chance(50)) o->atol = o->rtol = draw_chance(60) ? -1 : pow(10, -(double)draw_between(3, 6));
    if (draw_chance(50)) o->chunk = draw_log(1, j->T + 2);
    if (draw_chance(30)) o->backward_chunk = draw_log(1, j->T + 2);
    if (draw_chance(60)) o->warm_up = draw_log(1, 100);
    if (draw_chance(20)) o->window = draw_log(1, j->T + 2);
    if (draw_chance(40)) o->max_sweeps = (int)draw_log(1, 30);
    o->guess = draw_chance(60) ? DPCR_GUESS_ZERO : (dpcr_guess)draw_below(DPCR_GUESS_GIVEN);
    o->consume_tape = draw_chance(20);
    tell(" | %s %s back %s guess %s tol %g window %lld chunk %lld/%lld warm_up %lld sweeps %d%s%s%s%s dropout %g",
         dpcr_method_name(o->method), dpcr_scheme_name(o->scheme), dpcr_scheme_name(o->backward),
         dpcr_guess_name(o->guess), o->atol, (long long)o->window, (long long)o->chunk, (long long)o->backward_chunk,
         (long long)o->warm_up, o->max_sweeps, p->training ? " training" : "", p->recompute ? " recompute" : "",
         p->frozen ? " frozen" : "", o->consume_tape ? " consume" : "", p->dropout);
}

// ---- the definition ----

static dual *duals_of(const table *t, int64_t array, bool has, bool varied) {
    const int64_t n = t->steps * t->rows * t->values;
    if (!has) return NULL;
    dual *all = calloc((size_t)n + 1, sizeof *all);
    for (int64_t i = 0; i < n; i++)
        all[i] = (dual){number_at(t->view.dtype, t->view.data, i), varied ? along(array, i) : 0};
    return all;
}

static void compare(const job *j, const char *name, const void *got, const dual *want, int64_t n, double tolerance) {
    for (int64_t i = 0; i < n; i++) {
        const double x = number_at(j->o.dtype, got, i);
        if (!(fabs(x - want[i].x) <= tolerance * fmax(1, fabs(want[i].x))))
            wrong("%s(%lld) is %.9g, by the definition %.9g", name, (long long)i, x, want[i].x);
    }
}

// sum of g_i d_i, and of its absolute values
static void add_product(const job *j, const void *g, const dual *d, int64_t array, int64_t n, double *sum,
                        double *size) {
    for (int64_t i = 0; i < n; i++) {
        const double term = number_at(j->o.dtype, g, i) * (d ? d[i].d : along(array, i));
        *sum += term, *size += fabs(term);
    }
}

static void check_definition(const job *j, const result *r) {
    definition n = {.o = j->o, .T = j->T, .B = j->B, .H = j->H, .P = j->P, .D = j->D, .N = j->N};
    dpcr_recurrent *network = NULL;
    dpcr_error error = {0};
    check_done(dpcr_recurrent_create(draw_contexts[1], &j->o, &network, &error), &error, "network");
    scale_network(j, network);
    n.o = *dpcr_recurrent_get_options(network);
    n.count = dpcr_recurrent_parameter_count(network);
    for (int64_t i = 0; i < n.count; i++)
        dpcr_recurrent_parameter(network, i, n.names[i], sizeof n.names[i], &n.parameters[i], NULL, NULL);
    n.lengths = j->packed ? j->lengths : NULL;
    n.resets = j->resets ? j->marks : NULL;
    n.band = j->o.dtype == DPCR_F32 ? 1e-5 : 1e-13;
    n.x = duals_of(&j->x, 1000, true, j->has[GX]);
    n.h0 = duals_of(&j->h0, 1001, j->has[H0], j->has[GH0]);
    n.c0 = duals_of(&j->c0, 1002, j->has[C0], j->has[GC0]);
    n.ht = calloc((size_t)(j->N * j->B * j->P) + 1, sizeof *n.ht);
    n.ct = calloc((size_t)(j->N * j->B * j->H) + 1, sizeof *n.ct);
    run_definition(&n);
    const int64_t ys = j->T * j->B * j->D * j->P, hs = j->N * j->B * j->P, cs = j->N * j->B * j->H;
    const double tolerance = j->o.dtype == DPCR_F32 ? 1e-4 : 1e-12;
    compare(j, "y", r->y, n.y, ys, tolerance);
    if (j->has[HT]) compare(j, "ht", r->ht, n.ht, hs, tolerance);
    if (j->has[CT]) compare(j, "ct", r->ct, n.ct, cs, tolerance);
    if (j->plan.training && n.certain) {
        certain_ones++;
        double want = 0, got = 0, size = 0, unused = 0;
        if (j->has[GY]) add_product(j, j->gy.view.data, n.y, 0, ys, &want, &unused);
        if (j->has[GHT]) add_product(j, j->ght.view.data, n.ht, 0, hs, &want, &unused);
        if (j->has[GCT]) add_product(j, j->gct.view.data, n.ct, 0, cs, &want, &unused);
        if (j->has[GX]) add_product(j, r->gx, n.x, 0, j->T * j->B * j->o.inputs, &got, &size);
        if (j->has[H0] && j->has[GH0]) add_product(j, r->gh0, n.h0, 0, hs, &got, &size);
        if (j->has[C0] && j->has[GC0]) add_product(j, r->gc0, n.c0, 0, cs, &got, &size);
        const char *g = r->gradients;
        const size_t element = dpcr_dtype_size(j->o.dtype);
        for (int64_t i = 0; i < n.count; i++) {
            const int64_t k = numbers_of(&n.parameters[i]);
            add_product(j, g, NULL, i, k, &got, &size);
            g += (size_t)k * element;
        }
        // Rounding of every number, and of the states that all go by.
        const double most = (j->o.dtype == DPCR_F32 ? 1e-4 : 1e-12) * size + 1e-12;
        if (!(fabs(got - want) <= most))
            wrong("the gradients along the direction are %.9g, by the definition %.9g within %.3g", got, want, most);
    }
    free(n.x), free(n.h0), free(n.c0), free(n.y), free(n.ht), free(n.ct);
    dpcr_recurrent_destroy(network);
}

// ---- against the loop ----

static result run_alone(job *one) { return run(one, &one->plan, 1); }

static void draw_one(void) {
    job j = {0};
    draw_network(&j);
    draw_shape(&j, 2e6, 600);
    draw_arrays(&j);
    draw_plan(&j);
    j.gain = j.o.kind == DPCR_RNN_RELU ? DRAW_OF(0.3, 0.7) : DRAW_OF(0.3, 1, 1, 1.3);
    tell(" gain %g", j.gain);
    dpcr_recurrent_plan_options loop = j.plan;
    loop.solve = (dpcr_solve_options){
        .size = sizeof loop.solve, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL};
    loop.frozen = loop.recompute = 0;
    result in_order = run(&j, &loop, 1);
    if (in_order.refused) {
        refused++;
        free(j.marks);
        return;
    }
    if (!(loop.dropout > 0 && j.o.layers > 1)) check_definition(&j, &in_order);
    const int threads = (int)draw_between(1, 4), more = threads % 4 + 1;
    tell(" threads %d, %d", threads, more);
    result mine = run(&j, &j.plan, threads);
    if (mine.refused) {
        refused++;
    } else {
        executed++;
        by_method[mine.method]++;
        const dpcr_solve_options *o = &j.plan.solve;
        const bool by_loop = !o->size || o->method == DPCR_METHOD_SEQUENTIAL;
        const bool exact = o->method == DPCR_METHOD_OVERLAP && o->atol < 0;
        const bool back_by_loop = !o->size || o->backward == DPCR_SCHEME_SEQUENTIAL;
        const bool back = back_by_loop || (o->backward == DPCR_SCHEME_OVERLAP && o->atol < 0);
        if (mine.worst < 0 && mine.worst != DPCR_REASON_NONFINITE) wrong("%s", dpcr_reason_name(mine.worst));
        if (by_loop || exact) {
            same_results(&j, &mine, &in_order, "not the loop's bits", back, back_by_loop);
        } else {
            // What is left at each step adds up where a method has residuals alone.
            const double tolerance = (100 + (double)j.T) * mine.tolerance + (j.o.dtype == DPCR_F32 ? 1e-5 : 1e-13);
            near(&j, "y", mine.y, in_order.y, j.T * j.B * j.D * j.P, tolerance);
            near(&j, "ht", mine.ht, in_order.ht, j.N * j.B * j.P, tolerance);
            near(&j, "ct", mine.ct, in_order.ct, j.N * j.B * j.H, tolerance);
        }
        if (j.o.kind != DPCR_RNN_RELU && j.o.clip == 0) {
            const double tolerance =
                (1000 + 10 * (double)j.T) * mine.tolerance + (j.o.dtype == DPCR_F32 ? 1e-4 : 1e-12);
            near(&j, "x's gradient", mine.gx, in_order.gx, j.T * j.B * j.o.inputs, tolerance);
            near(&j, "h0's gradient", mine.gh0, in_order.gh0, j.N * j.B * j.P, tolerance);
            near(&j, "the gradients", mine.gradients, in_order.gradients, mine.count, tolerance);
        }
        const bool open = o->size && (o->method == DPCR_METHOD_AUTO || o->backward == DPCR_SCHEME_AUTO);
        if (!open) {
            dpcr_recurrent_plan_options other = j.plan;
            // What a tape holds is what the states give where no chunk began within a tolerance of its neighbour.
            const bool sure = o->method != DPCR_METHOD_OVERLAP || exact;
            if (sure && back && draw_chance(50)) other.recompute = !other.recompute && other.training;
            if (draw_chance(50)) other.frozen = !other.frozen;
            tell(" then%s%s", other.recompute ? " recompute" : "", other.frozen ? " frozen" : "");
            result r = run(&j, &other, more);
            same_results(&j, &mine, &r, "other threads", true, true);
            drop_result(&r);
            // A padded sequence has the bits of its own length where neither chunks nor trees shape the numbers.
            const bool fits = !j.packed || ((by_loop || exact) && back);
            if (j.B > 1 && fits && !(j.plan.dropout > 0) && draw_chance(40)) check_alone(&j, &mine, run_alone);
        }
    }
    drop_result(&mine), drop_result(&in_order);
    free(j.marks);
}

static void networks(void **state) {
    (void)state;
    run_draws("recurrent", 1500, draw_one);
    print_message("%d run (", executed);
    for (int i = 1; i < DPCR_METHOD_COUNT; i++) print_message(" %s %d", dpcr_method_name((dpcr_method)i), by_method[i]);
    print_message(" ), gradients of %d by the definition, %d refused\n", certain_ones, refused);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(networks)};
    return cmocka_run_group_tests(tests, draw_open_contexts, draw_close_contexts);
}
