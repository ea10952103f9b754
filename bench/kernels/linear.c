// SPDX-License-Identifier: MIT
// Kernels of linear chains: spans (kern.def), fused chunks (chunked.def) and summaries (squares.h), against ref/.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kern/chunked.h"
#include "kern/kern.h"
#include "kern/squares.h"
#include "kernels.h"

enum { STEPS = 128, MOST_WIDTH = 64, ROWS = 9 };

static const char *const operation_names[DPCRI_OPERATION_COUNT] = {"apply",   "apply_t", "serial",    "serial_t",
                                                                   "compose", "product", "product_t", "outer"};

// ---- spans ----

typedef struct call {
    dpcri_kernel *kernel;
    dpcri_span span;
} call;

static void run_call(void *argument) {
    const call *c = argument;
    c->kernel(&c->span);
}

static void span_kernel(dpcri_isa level, dpcr_dtype dtype, dpcri_operation operation, dpcr_transition t) {
    const bool product = operation == DPCRI_PRODUCT || operation == DPCRI_PRODUCT_T;
    const bool serial = operation == DPCRI_SERIAL || operation == DPCRI_SERIAL_T, compose = operation == DPCRI_COMPOSE;
    const int64_t values = dpcr_transition_values(&t), w = t.rows, out = operation >= DPCRI_COMPOSE ? values : w;
    char name[64];
    snprintf(name, sizeof name, "%s_%s", operation_names[operation], dpcr_structure_name(t.structure));
    if (!wanted(name) || out == 0) return;
    const dpcr_structure form = dpcri_kernel_form(&t);
    const double size = 0.9 / (form == DPCR_DENSE ? (double)w : form == DPCR_BLOCK ? (double)t.block : 1);
    void *a = numbers(dtype, STEPS * (values + 1), size), *x = numbers(dtype, STEPS * (compose ? values : w), size);
    void *r = numbers(dtype, STEPS * w + values, 1), *y = numbers(dtype, ROWS * STEPS * out, 1);
    // Products of factors about one, so that they do not vanish.
    const int64_t k = form == DPCR_DENSE ? w : form == DPCR_BLOCK ? t.block : 1;
    for (int64_t i = 0; product && i < STEPS * values; i++)
        if (i % values / k % k == i % values % k) put(dtype, a, i, 1 + 0.2 * get(dtype, a, i));
    void *wanted = numbers(dtype, STEPS * out, 1), *scratch = numbers(dtype, values + 1, 1);
    call c = {.kernel = dpcri_kernels_at(level, dtype)->table[operation][form],
              .span = {.n = STEPS,
                       .rows = 1,
                       .w = w,
                       .cols = w,
                       .block = t.block,
                       .a = a,
                       .a_step = values,
                       .x = x,
                       .x_step = compose ? values : w,
                       .r = product ? scratch : r,
                       .r_step = w,
                       .y = wanted,
                       .y_step = out}};
    if (serial) c.span.x_step = 0;
    dpcri_kernels_ref(dtype)->table[operation][form](&c.span);
    c.span.y = y;
    c.kernel(&c.span);
    bool same = true;  // ROWS sequences of the same numbers have the same bits
    if (serial) {
        dpcri_span rows = c.span;
        rows.rows = ROWS, rows.y_row = STEPS * out;
        c.kernel(&rows);
        const size_t bytes = (size_t)(STEPS * out) * dpcr_dtype_size(dtype);
        for (int64_t i = 1; i < ROWS; i++) same &= memcmp((char *)y + (size_t)i * bytes, y, bytes) == 0;
        c.kernel(&c.span);
    }
    const double terms = form == DPCR_DENSE || operation == DPCRI_OUTER ? (double)w
                         : form == DPCR_BLOCK                           ? (double)t.block
                                                                        : 1;
    const double bound = (serial || product ? STEPS + 1 : 1) * (terms + 2) * epsilon(dtype);
    double error = same ? 0 : HUGE_VAL, largest = 0;  // products shrink: measured against their own largest
    for (int64_t i = 0; i < out; i++) largest = fmax(largest, fabs(get(dtype, wanted, i)));
    for (int64_t i = 0; i < (product ? out : STEPS * out); i++) {
        const double want = get(dtype, wanted, i);
        keep_larger(&error, fabs(get(dtype, y, i) - want) / (product ? largest : fmax(1, fabs(want))) / bound);
    }
    const double each = operation == DPCRI_OUTER     ? (double)values
                        : operation >= DPCRI_COMPOSE ? dpcr_transition_compose_flops(&t)
                                                     : dpcr_transition_apply_flops(&t);
    const double moved = (double)values + (double)(operation == DPCRI_OUTER ? w : 0) +
                         (product ? 0
                                  : (double)(compose                    ? values
                                             : operation == DPCRI_OUTER ? w
                                             : serial                   ? w
                                                                        : 2 * w)) +
                         (product ? 0 : (double)out);
    tell(name, level, dtype, w, t.block, 1, (cost){STEPS, STEPS * each, STEPS * moved}, best_seconds(run_call, &c),
         error);
    free(a), free(x), free(r), free(y), free(wanted), free(scratch);
}

static void span_kernels(dpcri_isa level, dpcr_dtype dtype) {
    static const int64_t widths[] = {1, 2, 3, 4, 8, 16, 32, MOST_WIDTH};
    for (int operation = 0; operation < DPCRI_OPERATION_COUNT; operation++)
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
            const int64_t w = widths[i];
            span_kernel(level, dtype, (dpcri_operation)operation, dpcr_transition_square(DPCR_SCALAR, w, 0));
            span_kernel(level, dtype, (dpcri_operation)operation, dpcr_transition_square(DPCR_DIAGONAL, w, 0));
            span_kernel(level, dtype, (dpcri_operation)operation, dpcr_transition_square(DPCR_DENSE, w, 0));
            for (int64_t k = 2; k <= 4; k++)
                if (w % k == 0 && w > k)
                    span_kernel(level, dtype, (dpcri_operation)operation, dpcr_transition_square(DPCR_BLOCK, w, k));
        }
}

// ---- fused chunks and summaries ----

// A transition that contracts, of that form.
static dpcr_transition transition_of(dpcr_structure form, int64_t w, int64_t block) {
    return dpcr_transition_square(form, w, form == DPCR_BLOCK ? block : 0);
}

// The state after all n steps of `a`, `b` and every one between, by ref/, from x: forward up the memory, or transposed
// down.
static void serial_ref(dpcr_dtype dtype, dpcr_structure form, int64_t w, int64_t block, bool transposed, int64_t n,
                       const void *a, const void *b, const void *x, void *z) {
    const int64_t values = form == DPCR_DENSE ? w * w : form == DPCR_BLOCK ? w * block : w, way = transposed ? -1 : 1;
    const size_t size = dpcr_dtype_size(dtype), last = transposed ? (size_t)n - 1 : 0;
    const dpcri_operation serial = transposed ? DPCRI_SERIAL_T : DPCRI_SERIAL;
    dpcri_kernels_ref(dtype)->table[serial][form](&(dpcri_span){.n = n,
                                                                .rows = 1,
                                                                .w = w,
                                                                .cols = w,
                                                                .block = block,
                                                                .a = (const char *)a + last * (size_t)values * size,
                                                                .a_step = way * values,
                                                                .x = x,
                                                                .r = (const char *)b + last * (size_t)w * size,
                                                                .r_step = way * w,
                                                                .y = (char *)z + last * (size_t)w * size,
                                                                .y_step = way * w});
}

// The largest difference in units of what rounding explains in n steps of sums of `terms` products.
static double difference(dpcr_dtype dtype, const void *got, const void *want, int64_t count, int64_t n, int64_t terms) {
    const double bound = (double)(n + 1) * (double)(terms + 2) * epsilon(dtype);
    double error = 0;
    for (int64_t i = 0; i < count; i++) {
        const double x = get(dtype, want, i);
        keep_larger(&error, fabs(get(dtype, got, i) - x) / fmax(1, fabs(x)) / bound);
    }
    return error;
}

typedef struct window_call {
    const dpcri_chunked_kernels *kernels;
    dpcri_window window;
    dpcr_dtype dtype;
    int64_t width;
    const void *x;
} window_call;

static void run_window(void *argument) {
    const window_call *c = argument;
    double x[16];
    memcpy(x, c->x, (size_t)c->width * dpcr_dtype_size(c->dtype));
    c->kernels->summarise(&c->window);
    c->kernels->carry(&c->window, c->kernels->lanes, x);
    (void)c->kernels->finish(&c->window);
}

static void chunked_kernel(dpcri_isa level, dpcr_dtype dtype, int64_t w, int64_t k, bool transposed) {
    const dpcr_structure form = k == 1 ? DPCR_DIAGONAL : k == w ? DPCR_DENSE : DPCR_BLOCK;
    const int64_t block = form == DPCR_BLOCK ? k : 0, values = w * k;
    const dpcri_chunked_kernels *kernels = dpcri_chunked_at(level, dtype, form, w, block, transposed);
    char name[64];
    snprintf(name, sizeof name, "chunked%s_%s", transposed ? "_t" : "", dpcr_structure_name(form));
    if (!wanted(name)) return;
    const int64_t lanes = kernels->lanes, steps = kernels->steps, n = lanes * steps;
    void *a = numbers(dtype, n * values, 0.9 / (double)k), *b = numbers(dtype, n * w, 1), *x = numbers(dtype, w, 1);
    void *z = numbers(dtype, n * w, 1), *want = numbers(dtype, n * w, 1);
    void *buffer = numbers(dtype, n * (values + w), 1), *maps = numbers(dtype, lanes * (values + w), 1);
    void *starts = numbers(dtype, 2 * lanes * w, 1);
    const size_t lane0 = transposed ? (size_t)((lanes - 1) * steps) * dpcr_dtype_size(dtype) : 0;
    const char *const first = (char *)a + lane0 * (size_t)values;
    window_call c = {kernels,
                     {.a = first,
                      .b = (char *)b + lane0 * (size_t)w,
                      .z = (char *)z + lane0 * (size_t)w,
                      .first_a = first,
                      .buffer = buffer,
                      .maps = maps,
                      .starts = starts},
                     dtype,
                     w,
                     x};
    run_window(&c);
    serial_ref(dtype, form, w, block, transposed, n, a, b, x, want);
    const dpcr_transition t = transition_of(form, w, block);
    // composing, and the loop twice: for v and for the states
    const double flops = (double)n * (double)(dpcr_transition_compose_flops(&t) + 2 * dpcr_transition_apply_flops(&t));
    tell(name, level, dtype, w, block, 1, (cost){(double)n, flops, (double)(n * (values + 2 * w))},
         best_seconds(run_window, &c), difference(dtype, z, want, n * w, n, k));
    free(a), free(b), free(x), free(z), free(want), free(buffer), free(maps), free(starts);
}

typedef struct summary_call {
    dpcri_summary_kernel *kernel;
    dpcri_summary summary;
} summary_call;

static void run_summary(void *argument) {
    const summary_call *c = argument;
    c->kernel(&c->summary);
}

static void summary_kernel(dpcri_isa level, dpcr_dtype dtype, int64_t w, bool transposed) {
    enum { COUNT = 8, CHUNK = 33 };
    dpcri_summary_kernel *const kernel = dpcri_summary_at(level, dtype, DPCR_DENSE, w, transposed);
    const char *const name = transposed ? "summary_t_dense" : "summary_dense";
    if (!kernel || !wanted(name)) return;
    const int64_t values = w * w, n = COUNT * CHUNK, way = transposed ? -1 : 1, from = transposed ? n - 1 : 0;
    float *a = numbers(dtype, n * values, 0.9 / (double)w), *b = numbers(dtype, n * w, 1), *x = numbers(dtype, w, 1);
    float *m = numbers(dtype, COUNT * values, 1), *v = numbers(dtype, COUNT * w, 1), *z = numbers(dtype, CHUNK * w, 1);
    summary_call c = {kernel,
                      {.n = CHUNK,
                       .count = COUNT,
                       .a = a + from * values,
                       .a_step = way * values,
                       .a_row = way * CHUNK * values,
                       .b = b + from * w,
                       .b_step = way * w,
                       .b_row = way * CHUNK * w,
                       .m = m,
                       .v = v,
                       .ahead = 1}};
    run_summary(&c);
    double error = 0;
    for (int64_t q = 0; q < COUNT; q++) {  // M x + v is what the loop makes of x
        const int64_t chunk = transposed ? COUNT - 1 - q : q;
        float *const end = v + q * w;
        serial_ref(dtype, DPCR_DENSE, w, 0, transposed, CHUNK, a + chunk * CHUNK * values, b + chunk * CHUNK * w, x, z);
        for (int64_t i = 0; i < w; i++)
            for (int64_t j = 0; j < w; j++)
                end[i] = fmaf(m[q * values + (transposed ? j * w + i : i * w + j)], x[j], end[i]);
        keep_larger(&error, difference(dtype, end, z + (transposed ? 0 : (CHUNK - 1) * w), w, CHUNK, w));
    }
    const dpcr_transition t = transition_of(DPCR_DENSE, w, 0);
    const double flops = (double)n * (double)(dpcr_transition_compose_flops(&t) + dpcr_transition_apply_flops(&t));
    tell(name, level, dtype, w, 0, COUNT, (cost){(double)n, flops, (double)(n * (values + w))},
         best_seconds(run_summary, &c), error);
    free(a), free(b), free(x), free(m), free(v), free(z);
}

void show_linear(dpcri_isa level, dpcr_dtype dtype) {
    span_kernels(level, dtype);
    for (int transposed = 0; transposed <= 1; transposed++) {
#define DPCRI_CHUNKED(width, k, steps, name) chunked_kernel(level, dtype, width, k, transposed);
#include "kern/chunked.def"
#undef DPCRI_CHUNKED
        for (int64_t w = 4; w <= 8; w *= 2) summary_kernel(level, dtype, w, transposed);
    }
}
