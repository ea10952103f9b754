// SPDX-License-Identifier: MIT
// Linear chains drawn at random (draws.h): any structure, dtype, strides, scheme and option against the chain by its
// definition, exactly in the ring of uint32 and in overlapped chunks, else within what rounding explains; the same bits
// for any number of threads and for a sequence alone; nothing written but what is to be.
#include "random_chain.h"

enum { MOST_WIDTH = 192 };
static int executed, refused, by_scheme[DPCR_SCHEME_COUNT];

static void draw_shape(drawn_chain *c) {
    static const dpcr_dtype dtypes[] = {DPCR_F32, DPCR_F32, DPCR_F64, DPCR_U32};
    c->dtype = dtypes[draw_below(4)];
    const dpcr_structure structure = draw_chance(45) ? DPCR_DENSE : (dpcr_structure)draw_below(DPCR_DENSE);
    int64_t block = 0;
    c->w = structure == DPCR_DENSE ? draw_log(1, draw_chance(10) ? 40 : 20) : draw_log(1, 70);
    if (structure == DPCR_BLOCK)
        block = draw_chance(80) ? draw_between(2, 4) : draw_log(1, 16), c->w = block * draw_log(1, MOST_WIDTH / 16);
    const dpcr_transition t = dpcr_transition_square(structure, c->w, block);
    c->values = dpcr_transition_values(&t);
    c->batch = draw_chance(2) ? 0 : draw_chance(40) ? 1 : draw_log(1, 40);
    // Work and memory within bounds: numbers of a, and multiplications of the composing schemes.
    const double each = fmax((double)c->batch, 1) * (double)(c->values + c->w) + 1,
                 products = each * (structure == DPCR_DENSE ? (double)c->w : 1);
    const double most = fmin(fmin(4e5 / each, 4e6 / products), 30000);
    c->length = draw_chance(8) ? draw_below(4) : draw_log(1, most < 1 ? 1 : (int64_t)most);
    c->shape = (dpcr_chain_shape){.size = sizeof c->shape,
                                  .length = c->length,
                                  .batch = c->batch,
                                  .transition = t,
                                  .dtype = c->dtype,
                                  .transposed = draw_chance(30) ? 1 : 0};
    tell(" %s %s w %lld k %lld L %lld B %lld%s", dpcr_dtype_name(c->dtype), dpcr_structure_name(structure),
         (long long)c->w, (long long)block, (long long)c->length, (long long)c->batch,
         c->shape.transposed ? " transposed" : "");
}

static void draw_options(drawn_chain *c) {
    dpcr_chain_options *o = &c->options;
    *o = (dpcr_chain_options){.size = sizeof *o, .scheme = (dpcr_scheme)draw_below(DPCR_SCHEME_COUNT)};
    if (draw_chance(60)) o->chunk = draw_chance(40) ? draw_log(1, c->length + 2) : draw_log(1, 70);
    if (draw_chance(50)) o->levels = (int)draw_between(1, 14);
    if (draw_chance(60)) o->warm_up = draw_log(1, 200);
    if (draw_chance(40)) o->max_sweeps = (int)draw_log(1, 50);
    if (c->dtype != DPCR_U32 && draw_chance(20)) o->tolerance = pow(10, -(double)draw_between(2, 12));
    // Borders of chunks, of the run-up and of the tree.
    if (o->chunk > 0 && draw_chance(50)) {
        const int64_t times = c->length / o->chunk;
        c->length = (times ? times : 1) * o->chunk + draw_between(-1, 1);
        if (c->length < 0) c->length = 0;
        c->shape.length = c->length;
        tell(" L %lld", (long long)c->length);
    }
    tell(" %s chunk %lld levels %d warm_up %lld sweeps %d tolerance %g", dpcr_scheme_name(o->scheme),
         (long long)o->chunk, o->levels, (long long)o->warm_up, o->max_sweeps, o->tolerance);
}

// Solves by `threads`; the result lies in *z, which is b where the chain is solved in place. False: refused.
static bool solve(drawn_chain *c, const dpcr_chain_options *options, int threads, dpcr_chain_report *report) {
    dpcr_error error = {0};
    dpcr_chain_plan *plan = NULL;
    dpcr_status status = dpcr_chain_plan_create(draw_contexts[threads], &c->shape, options, &plan, &error);
    check_words(status, &error);
    if (status == DPCR_ERROR_UNSUPPORTED) return false;
    check_done(status, &error, "plan");
    if (dpcr_chain_plan_workspace(plan) > MOST_BYTES / 2) {  // chunks of a step or so
        dpcr_chain_plan_destroy(plan);
        return false;
    }
    const int used = drawn.used;
    piece space = draw_scratch(dpcr_chain_plan_workspace(plan));
    *report = (dpcr_chain_report){.size = sizeof *report};
    if (c->in_place)  // b's numbers, as they were
        for (int64_t l = 0; l < c->length; l++)
            for (int64_t r = 0; r < c->batch; r++)
                for (int64_t i = 0; i < c->w; i++)
                    copy_number(c->dtype, c->b.view.data, table_at(&c->b, l, r) + i, c->lb,
                                (l * c->batch + r) * c->w + i);
    const table *z = c->in_place ? &c->b : &c->z;
    status = dpcr_chain_execute(plan, c->values || draw_chance(50) ? &c->a.view : NULL, &c->b.view,
                                c->has_z0 ? &c->z0.view : NULL, &z->view, space.data, space.bytes, report, &error);
    check_done(status, &error, "execute");
    check_around(&space, "workspace");
    check_kept(&c->a);
    if (c->has_z0) check_kept(&c->z0);
    if (!c->in_place) check_kept(&c->b);
    check_gaps(z);
    const dpcr_scheme planned = dpcr_chain_plan_scheme(plan);
    const bool looked = !options || options->scheme == DPCR_SCHEME_AUTO;
    const bool one_by_one = c->a.step == c->values && c->b.step == c->w && z->step == c->w;
    const bool apart = c->a.step == 0 || (c->batch == 1 && !one_by_one);
    const bool loop = planned == DPCR_SCHEME_CHUNKED && report->scheme == DPCR_SCHEME_SEQUENTIAL && apart;
    if (report->scheme != planned && !(looked && (loop || report->scheme == DPCR_SCHEME_OVERLAP)))
        wrong("the plan says %s, the report %s", dpcr_scheme_name(planned), dpcr_scheme_name(report->scheme));
    if (report->sweeps < (c->length && c->batch ? 1 : 0) || report->finished_from < 0 ||
        report->finished_from > c->length || !(report->seconds >= 0))
        wrong("report: sweeps %d, finished_from %lld", report->sweeps, (long long)report->finished_from);
    dpcr_chain_plan_destroy(plan);
    drawn.used = used;
    return true;
}

// A sequence by itself has the bits that it has among others.
static void check_alone(drawn_chain *c, const void *together) {
    drawn_chain one = *c;
    const int64_t row = draw_below(c->batch);
    const size_t size = dpcr_dtype_size(c->dtype);
    table *const all[] = {&one.a, &one.b, &one.z, &one.z0};
    for (int i = 0; i < 4; i++) {
        if (!all[i]->memory.data) continue;
        all[i]->rows = 1;
        all[i]->view.data = (char *)all[i]->view.data + table_at(all[i], 0, row) * (int64_t)size;
        all[i]->view.shape[all[i]->view.ndim - 2] = 1;
    }
    one.batch = one.shape.batch = 1;
    one.nan_row = -1;
    one.lb = table_of(c->length * c->w);
    for (int64_t l = 0; l < c->length; l++)
        for (int64_t i = 0; i < c->w; i++)
            copy_number(c->dtype, one.lb, l * c->w + i, c->lb, (l * c->batch + row) * c->w + i);
    dpcr_chain_report report;
    // What is around this row are other rows now: they stay as they are, in place or not.
    table *z = one.in_place ? &one.b : &one.z;
    dpcr_error error = {0};
    dpcr_chain_plan *plan = NULL;
    check_done(dpcr_chain_plan_create(draw_contexts[1], &one.shape, &one.options, &plan, &error), &error, "one alone");
    const int used = drawn.used;
    piece space = draw_scratch(dpcr_chain_plan_workspace(plan));
    if (one.in_place)
        for (int64_t l = 0; l < c->length; l++)
            for (int64_t i = 0; i < c->w; i++)
                copy_number(c->dtype, one.b.view.data, table_at(&one.b, l, 0) + i, one.lb, l * c->w + i);
    report.size = sizeof report;
    check_done(dpcr_chain_execute(plan, &one.a.view, &one.b.view, one.has_z0 ? &one.z0.view : NULL, &z->view,
                                  space.data, space.bytes, &report, &error),
               &error, "one alone");
    check_around(&space, "workspace of one alone");
    dpcr_chain_plan_destroy(plan);
    drawn.used = used;
    for (int64_t l = 0; l < c->length; l++)
        for (int64_t i = 0; i < c->w; i++) {
            const int64_t at = (l * c->batch + row) * c->w + i, mine = table_at(z, l, 0) + i;
            const char *x = (const char *)together + (size_t)at * size,
                       *y = (const char *)z->view.data + mine * (int64_t)size;
            const double u = get(c->dtype, together, at), v = get(c->dtype, z->view.data, mine);
            if (memcmp(x, y, size) != 0 && !(isnan(u) && isnan(v)))
                wrong("row %lld alone: (%lld, %lld) is %.9g, among others %.9g", (long long)row, (long long)l,
                      (long long)i, v, u);
        }
    free(one.lb);
}

// ---- derivatives ----

// A_l z_{l-1} + b_l of one step, or its absolute value: l = 0 goes by z0, or leaves the product out.
static void one_step(const loop_case *c, const void *z, const void *z0, int64_t l, int64_t row, long double *sum,
                     uint32_t *ring) {
    const int64_t w = c->t.rows, size = (int64_t)dpcr_dtype_size(c->dtype);
    const char *from = l > 0 ? (const char *)z + ((l - 1) * c->batch + row) * w * size
                       : z0  ? (const char *)z0 + row * w * size
                             : NULL;
    long double x[MOST_WIDTH];
    uint32_t u[MOST_WIDTH];
    for (int64_t i = 0; from && i < w; i++) {
        x[i] = get(c->dtype, from, i), u[i] = c->dtype == DPCR_U32 ? ((const uint32_t *)from)[i] : 0;
        if (c->absolute) x[i] = fabsl(x[i]);
    }
    const char *a = c->a ? (const char *)c->a + (l * c->a_step + row * c->a_row) * size : NULL;
    loop_row(c, a, x, u, c->b, (l * c->batch + row) * w, sum, ring, from && (a || c->values == 0));
}

// What the definition gives for right-hand sides and initial states other than the chain's own, given with their size.
static bounds bounds_with(const drawn_chain *c, const void *b, const void *sizes, const void *z0, bool transposed) {
    drawn_chain other = *c;
    other.shape.transposed = transposed;
    other.lz0 = (void *)z0;
    other.lb = (void *)sizes;
    bounds s = bounds_of(&other, c->options.scheme == DPCR_SCHEME_OVERLAP ? c->options.tolerance : 0);
    loop_case l = definition(&other);
    l.b = b;
    plain_loop(&l, s.want, s.ring);
    return s;
}

// dz_l = A_l dz_{l-1} + da_l z_{l-1} + db_l
static void check_jvp(drawn_chain *c, dpcr_chain_plan *plan, piece *space, const void *z) {
    const bool has_a = c->values > 0 && draw_chance(70), has_b = draw_chance(70), has_0 = draw_chance(60);
    const int64_t count = c->length * c->batch * c->w;
    table da = draw_table("da", c->dtype, c->length, c->batch, c->values, STRIDED | SHARED);
    table db = draw_table("db", c->dtype, c->length, c->batch, c->w, STRIDED);
    table d0 = draw_table("dz0", c->dtype, -1, c->batch, c->w, STRIDED);
    table at = draw_table("z of jvp", c->dtype, c->length, c->batch, c->w, STRIDED);
    table dz = draw_table("dz", c->dtype, c->length, c->batch, c->w, STRIDED | WRITTEN);
    fill_table(&da, 0.5), fill_table(&db, 1), fill_table(&d0, 1);
    for (int64_t l = 0; l < c->length; l++)
        for (int64_t r = 0; r < c->batch; r++)
            for (int64_t i = 0; i < c->w; i++)
                copy_number(c->dtype, at.view.data, table_at(&at, l, r) + i, z, (l * c->batch + r) * c->w + i);
    keep_sum(&da), keep_sum(&db), keep_sum(&d0), keep_sum(&at);
    tell(" jvp%s%s%s", has_a ? " da" : "", has_b ? " db" : "", has_0 ? " dz0" : "");
    dpcr_error error = {0};
    spoil_scratch(space);
    check_done(
        dpcr_chain_jvp(plan, &c->a.view, c->has_z0 ? &c->z0.view : NULL, &at.view, has_a ? &da.view : NULL,
                       has_b ? &db.view : NULL, has_0 ? &d0.view : NULL, &dz.view, space->data, space->bytes, &error),
        &error, "jvp");
    check_around(space, "workspace");
    check_kept(&c->a), check_kept(&da), check_kept(&db), check_kept(&d0), check_kept(&at), check_gaps(&dz);
    void *fa = flat_copy(&da), *fb = has_b ? flat_copy(&db) : table_of(count), *f0 = flat_copy(&d0);
    void *right = table_of(count), *sizes = table_of(count);
    loop_case d = definition(c);
    d.a = has_a ? fa : NULL, d.b = fb;
    for (int64_t l = 0; l < c->length; l++)
        for (int64_t r = 0; r < c->batch; r++)
            for (int absolute = 0; absolute < 2; absolute++) {
                long double sum[MOST_WIDTH];
                uint32_t ring[MOST_WIDTH];
                d.absolute = absolute;
                if (has_a)
                    one_step(&d, z, c->lz0, l, r, sum, ring);
                else
                    for (int64_t i = 0; i < c->w; i++) {
                        const int64_t k = (l * c->batch + r) * c->w + i;
                        sum[i] = c->dtype == DPCR_U32 ? 0 : get(c->dtype, fb, k);
                        if (absolute) sum[i] = fabsl(sum[i]);
                        ring[i] = c->dtype == DPCR_U32 ? ((uint32_t *)fb)[k] : 0;
                    }
                for (int64_t i = 0; i < c->w; i++) {
                    const int64_t k = (l * c->batch + r) * c->w + i;
                    if (c->dtype == DPCR_U32)
                        ((uint32_t *)right)[k] = ring[i];
                    else
                        put(c->dtype, absolute ? sizes : right, k, (double)sum[i]);
                }
            }
    bounds s = bounds_with(c, right, c->dtype == DPCR_U32 ? right : sizes, has_0 ? f0 : NULL, false);
    compare_states(c, &dz, &s, "jvp");
    free_bounds(&s);
    free(fa), free(fb), free(f0), free(right), free(sizes);
}

// da_l = lambda_l z_{l-1}^T in A's structure, dz0 = A_0^T lambda_0, from the library's own lambda.
static void check_outer(const drawn_chain *c, const table *da, const table *lambda, const void *z) {
    const dpcr_transition *t = &c->shape.transition;
    for (int64_t l = 0; l < c->length; l++)
        for (int64_t r = 0; r < c->batch; r++)
            for (int64_t p = 0; p < c->values; p++) {
                long double sum = 0, most = 0;
                uint32_t ring = 0;
                for (int64_t i = 0; i < c->w; i++)
                    for (int64_t j = 0; j < c->w && (l > 0 || c->lz0); j++) {
                        if (t->structure == DPCR_DENSE && i * c->w + j != p) continue;
                        if (place_of(t, i, j) != p) continue;
                        const int64_t k = ((l - 1) * c->batch + r) * c->w + j, k0 = r * c->w + j;
                        const int64_t at = table_at(lambda, l, r) + i;
                        if (c->dtype == DPCR_U32) {
                            ring += ((uint32_t *)lambda->view.data)[at] *
                                    (l > 0 ? ((const uint32_t *)z)[k] : ((const uint32_t *)c->lz0)[k0]);
                            continue;
                        }
                        const long double term = (long double)get(c->dtype, lambda->view.data, at) *
                                                 (l > 0 ? get(c->dtype, z, k) : get(c->dtype, c->lz0, k0));
                        sum += term, most += fabsl(term);
                    }
                const int64_t at = table_at(da, l, r) + p;
                if (c->dtype == DPCR_U32 ? ((uint32_t *)da->view.data)[at] != ring
                                         : !(fabsl(get(c->dtype, da->view.data, at) - sum) <=
                                             epsilon_of(c->dtype) * (double)(c->w + 2) * most + FLT_MIN))
                    wrong("vjp: da(%lld, %lld, %lld) is %.9g, wanted %.9Lg", (long long)l, (long long)r, (long long)p,
                          get(c->dtype, da->view.data, at), c->dtype == DPCR_U32 ? (long double)ring : sum);
            }
}

static void check_vjp(drawn_chain *c, dpcr_chain_plan *plan, piece *space, const void *z) {
    const bool has_a = draw_chance(70), has_0 = draw_chance(60), in_place = draw_chance(30);
    const int64_t count = c->length * c->batch * c->w;
    table g = draw_table("g", c->dtype, c->length, c->batch, c->w, STRIDED);
    table da = draw_table("da of vjp", c->dtype, c->length, c->batch, c->values, STRIDED | WRITTEN);
    table db = in_place ? g : draw_table("lambda", c->dtype, c->length, c->batch, c->w, STRIDED | WRITTEN);
    table d0 = draw_table("dz0 of vjp", c->dtype, -1, c->batch, c->w, STRIDED | WRITTEN);
    table at = draw_table("z of vjp", c->dtype, c->length, c->batch, c->w, STRIDED);
    fill_table(&g, 1);
    for (int64_t l = 0; l < c->length; l++)
        for (int64_t r = 0; r < c->batch; r++)
            for (int64_t i = 0; i < c->w; i++)
                copy_number(c->dtype, at.view.data, table_at(&at, l, r) + i, z, (l * c->batch + r) * c->w + i);
    keep_sum(&g), keep_sum(&at);
    void *fg = flat_copy(&g);
    tell(" vjp%s%s%s", has_a ? " da" : "", has_0 ? " dz0" : "", in_place ? " in place" : "");
    dpcr_error error = {0};
    spoil_scratch(space);
    check_done(
        dpcr_chain_vjp(plan, &c->a.view, c->has_z0 ? &c->z0.view : NULL, &at.view, &g.view, has_a ? &da.view : NULL,
                       &db.view, has_0 ? &d0.view : NULL, space->data, space->bytes, &error),
        &error, "vjp");
    check_around(space, "workspace");
    check_kept(&c->a), check_kept(&at), check_gaps(&da), check_gaps(&db), check_gaps(&d0);
    if (!in_place) check_kept(&g);
    bounds s = bounds_with(c, fg, fg, NULL, true);
    compare_states(c, &db, &s, "vjp");
    free_bounds(&s);
    if (has_a) check_outer(c, &da, &db, z);
    for (int64_t r = 0; has_0 && r < c->batch; r++)
        for (int64_t i = 0; i < c->w; i++) {
            long double sum = 0, most = 0;
            uint32_t ring = 0;
            for (int64_t j = 0; c->length > 0 && j < c->w; j++) {
                const int64_t place = place_of(&c->shape.transition, j, i), k = table_at(&db, 0, r) + j;
                if (place == -1) continue;
                if (c->dtype == DPCR_U32) {
                    ring +=
                        (place == -2 ? 1 : ((uint32_t *)c->la)[r * c->values + place]) * ((uint32_t *)db.view.data)[k];
                    continue;
                }
                const long double term = (long double)(place == -2 ? 1 : get(c->dtype, c->la, r * c->values + place)) *
                                         get(c->dtype, db.view.data, k);
                sum += term, most += fabsl(term);
            }
            const int64_t k = table_at(&d0, 0, r) + i;
            if (c->dtype == DPCR_U32
                    ? ((uint32_t *)d0.view.data)[k] != ring
                    : !isnan((double)sum) && !(fabsl(get(c->dtype, d0.view.data, k) - sum) <=
                                               epsilon_of(c->dtype) * (double)(c->w + 2) * most + FLT_MIN))
                wrong("vjp: dz0(%lld, %lld) is %.9g, wanted %.9Lg", (long long)r, (long long)i,
                      get(c->dtype, d0.view.data, k), c->dtype == DPCR_U32 ? (long double)ring : sum);
        }
    free(fg);
    (void)count;
}

static void check_derivatives(drawn_chain *c, const void *z) {
    dpcr_error error = {0};
    dpcr_chain_plan *plan = NULL;
    check_done(dpcr_chain_plan_create(draw_contexts[draw_between(1, 4)], &c->shape, &c->options, &plan, &error), &error,
               "plan of derivatives");
    piece space = draw_scratch(dpcr_chain_plan_workspace(plan));
    if (draw_chance(60)) check_jvp(c, plan, &space, z);
    if (draw_chance(60)) check_vjp(c, plan, &space, z);
    dpcr_chain_plan_destroy(plan);
}

static void draw_one(void) {
    drawn_chain c = {0};
    draw_shape(&c);
    draw_options(&c);
    draw_numbers(&c);
    dpcr_chain_report report, other;
    const int threads = (int)draw_between(2, 4);
    tell(" threads 1, %d", threads);
    const bool open = c.options.scheme == DPCR_SCHEME_AUTO;
    const table *z = c.in_place ? &c.b : &c.z;
    // AUTO joins chunks of wide dense chains within eight ulp of the states.
    double joined = c.options.tolerance;
    if (open && c.shape.transition.structure == DPCR_DENSE && c.w > 4) joined = fmax(joined, 8 * epsilon_of(c.dtype));
    if (!solve(&c, &c.options, 1, &report)) {
        refused++;
        free(c.la), free(c.lb), free(c.lz0);
        return;
    }
    executed++;
    by_scheme[report.scheme]++;
    bounds s = bounds_of(&c, report.scheme == DPCR_SCHEME_OVERLAP ? joined : 0);
    compare_states(&c, z, &s, "1 thread");
    free_bounds(&s);
    void *one = packed_table(z);
    if (report.scheme == DPCR_SCHEME_OVERLAP && joined == 0) {
        drawn_chain loop = c;
        loop.options = (dpcr_chain_options){.size = sizeof loop.options, .scheme = DPCR_SCHEME_SEQUENTIAL};
        solve(&loop, &loop.options, 1, &other);
        void *wanted = packed_table(z);
        if (c.nan_row < 0) same_bits(&c, one, wanted, "overlap is not the loop");
        free(wanted);
    }
    solve(&c, &c.options, threads, &other);
    void *more = packed_table(z);
    if (!open || c.dtype == DPCR_U32) {
        if (c.nan_row < 0) same_bits(&c, one, more, "other bits for other threads");
        if (other.sweeps != report.sweeps || other.finished_from != report.finished_from)
            wrong("other threads, another report");
    } else {
        s = bounds_of(&c, joined);
        compare_states(&c, z, &s, "auto, more threads");
        free_bounds(&s);
    }
    if (!open && c.batch > 1 && c.length > 0 && draw_chance(40)) check_alone(&c, one);
    if (!c.shape.transposed && c.nan_row < 0 && draw_chance(40)) check_derivatives(&c, one);
    free(one), free(more);
    free(c.la), free(c.lb), free(c.lz0);
}

static void chains(void **state) {
    (void)state;
    run_draws("chain", 1500, draw_one);
    print_message("%d solved (", executed);
    for (int i = 1; i < DPCR_SCHEME_COUNT; i++) print_message(" %s %d", dpcr_scheme_name((dpcr_scheme)i), by_scheme[i]);
    print_message(" ), %d refused\n", refused);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(chains)};
    return cmocka_run_group_tests(tests, draw_open_contexts, draw_close_contexts);
}
