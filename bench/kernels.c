// SPDX-License-Identifier: MIT
// Every kernel of the linear chains' table, and those of narrow steps, at every level that this CPU runs, float and
// double:
//   bench_kernels [--check] [--seconds S] [--level portable|avx2|avx512] [--name PART]
// Each is first proved, the linear ones against ref/ (the definition), narrow loops against a plain loop in double and
// lanes against the loop's bits; then timed on numbers in the first caches, the best of 7 rounds of S seconds (default
// 0.002). CSV, a line a kernel and shape: kernel, level, dtype, width, block, nanoseconds a step (of one sequence),
// 10^9 flops and bytes a second, largest error in units of the rounding error that the shape allows (1 would be too
// much).
// --check: no times. Exit status 1 where an error is too large.
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kern/kern.h"
#include "kern/narrow.h"

enum { STEPS = 128, MOST_WIDTH = 64, ROUNDS = 7, LANES = 160, ROWS = 9 };

static const char *const level_names[] = {"portable", "avx2", "avx512"};
static const char *const operation_names[DPCRI_OPERATION_COUNT] = {"apply",   "apply_t", "serial",    "serial_t",
                                                                   "compose", "product", "product_t", "outer"};

static double sample = 0.002;
static bool check, failed;
static const char *part = "";

static uint64_t state = 0x9E3779B97F4A7C15u;
static double uniform(void) {  // in (-1, 1)
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)state / 9223372036854775808.0;
}

static void put(dpcr_dtype dtype, void *data, int64_t i, double x) {
    if (dtype == DPCR_F64)
        ((double *)data)[i] = x;
    else
        ((float *)data)[i] = (float)x;
}
static double get(dpcr_dtype dtype, const void *data, int64_t i) {
    return dtype == DPCR_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}
// NaN is larger than anything.
static void keep_larger(double *largest, double x) {
    if (!(x <= *largest)) *largest = x;
}
static double epsilon(dpcr_dtype dtype) { return dtype == DPCR_F64 ? DBL_EPSILON : FLT_EPSILON; }

static void *numbers(dpcr_dtype dtype, int64_t count, double size) {
    void *data = aligned_alloc(64, ((size_t)count * 8 + 127) / 64 * 64);
    if (!data) exit(3);
    for (int64_t i = 0; i < count; i++) put(dtype, data, i, size * uniform());
    return data;
}

static double best_seconds(void (*run)(void *), void *argument) {
    if (check) return NAN;
    int64_t inner = 1;
    double best = HUGE_VAL;
    for (int round = 0; round < ROUNDS; round++) {
        const double start = dpcri_seconds();
        for (int64_t i = 0; i < inner; i++) run(argument);
        const double took = dpcri_seconds() - start;
        if (took < sample / 2 && inner < 1 << 24) {
            inner *= 2, round = -1;
            continue;
        }
        best = fmin(best, took / (double)inner);
    }
    return best;
}

// error: in units of what rounding explains
static void tell(const char *kernel, int level, dpcr_dtype dtype, int64_t width, int64_t block, double steps,
                 double flops, double bytes, double seconds, double error) {
    printf("%s,%s,%s,%lld,%lld,", kernel, level_names[level], dpcr_dtype_name(dtype), (long long)width,
           (long long)block);
    if (check)
        printf(",,,%.3f\n", error);
    else
        printf("%.3f,%.2f,%.1f,%.3f\n", seconds / steps * 1e9, flops / seconds * 1e-9, bytes / seconds * 1e-9, error);
    if (error < 1) return;
    failed = true;
    fprintf(stderr, "bench_kernels: %s, %s, %s, width %lld: error %g times what rounding explains\n", kernel,
            level_names[level], dpcr_dtype_name(dtype), (long long)width, error);
}

// ---- linear chains' spans ----

typedef struct call {
    dpcri_kernel *kernel;
    dpcri_span span;
} call;

static void run_call(void *argument) {
    const call *c = argument;
    c->kernel(&c->span);
}

static void span_kernel(int level, dpcr_dtype dtype, dpcri_operation operation, dpcr_transition t) {
    const bool product = operation == DPCRI_PRODUCT || operation == DPCRI_PRODUCT_T;
    const bool serial = operation == DPCRI_SERIAL || operation == DPCRI_SERIAL_T, compose = operation == DPCRI_COMPOSE;
    const int64_t values = dpcr_transition_values(&t), w = t.rows, out = operation >= DPCRI_COMPOSE ? values : w;
    char name[64];
    snprintf(name, sizeof name, "%s_%s", operation_names[operation], dpcr_structure_name(t.structure));
    if (!strstr(name, part) || out == 0) return;
    const dpcr_structure form = dpcri_kernel_form(&t);
    const double size = 0.9 / (form == DPCR_DENSE ? (double)w : form == DPCR_BLOCK ? (double)t.block : 1);
    void *a = numbers(dtype, STEPS * (values + 1), size), *x = numbers(dtype, STEPS * (compose ? values : w), size);
    void *r = numbers(dtype, STEPS * w + values, 1), *y = numbers(dtype, ROWS * STEPS * out, 1);
    // Products of factors about one, so that they do not vanish.
    const int64_t k = form == DPCR_DENSE ? w : form == DPCR_BLOCK ? t.block : 1;
    for (int64_t i = 0; product && i < STEPS * values; i++)
        if (i % values / k % k == i % values % k) put(dtype, a, i, 1 + 0.2 * get(dtype, a, i));
    void *wanted = numbers(dtype, STEPS * out, 1), *scratch = numbers(dtype, values + 1, 1);
    call c = {.kernel = dpcri_kernels_at((dpcri_isa)level, dtype)->table[operation][form],
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
    tell(name, level, dtype, w, t.block, STEPS, STEPS * each, STEPS * moved * (double)dpcr_dtype_size(dtype),
         best_seconds(run_call, &c), error);
    free(a), free(x), free(r), free(y), free(wanted), free(scratch);
}

static void span_kernels(int level, dpcr_dtype dtype) {
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

// ---- narrow steps ----

typedef struct narrow_call {
    const dpcri_narrow_kernels *kernels;
    dpcri_narrow chain;
    dpcri_narrow_run run;
} narrow_call;

static void run_narrow(void *argument) {
    const narrow_call *c = argument;
    c->kernels->advance(&c->chain, &c->run);
}

// z = tanh(W_l z + b_l) of LANES lanes of STEPS steps; one lane alone against a loop in double.
static void narrow_kernel(int level, dpcr_dtype dtype, int64_t w, bool own) {
    const dpcri_narrow_kernels *kernels = dpcri_narrow_kernels_at((dpcri_isa)level, dtype);
    const int64_t steps = LANES * STEPS, values = w * w;
    char name[64];
    snprintf(name, sizeof name, "narrow_%s", own ? "own" : "shared");
    if (!strstr(name, part) || !kernels) return;
    void *weight = numbers(dtype, own ? steps * values : values, 0.8 / (double)w), *bias = numbers(dtype, steps * w, 1);
    void *in = numbers(dtype, LANES * w, 1), *states = numbers(dtype, steps * w, 1),
         *alone = numbers(dtype, STEPS * w, 1);
    narrow_call c = {.kernels = kernels,
                     .chain = {.dtype = dtype,
                               .width = w,
                               .activation = DPCRI_ACT_TANH,
                               .scale = 1,
                               .weight = weight,
                               .weight_step = own ? values : 0,
                               .bias = bias,
                               .bias_step = w},
                     .run = {.lanes = 1,
                             .stride = STEPS,
                             .steps = STEPS,
                             .rows = 1,
                             .in = in,
                             .in_lane = w,
                             .in_row = w,
                             .states = alone,
                             .states_lane = STEPS * w,
                             .states_step = w,
                             .states_row = w}};
    run_narrow(&c);
    double z[DPCRI_NARROW_WIDTH], next[DPCRI_NARROW_WIDTH], error = 0;
    for (int64_t i = 0; i < w; i++) z[i] = get(dtype, in, i);
    for (int64_t l = 0; l < STEPS; l++) {
        for (int64_t i = 0; i < w; i++) {
            next[i] = get(dtype, bias, l * w + i);
            for (int64_t j = 0; j < w; j++) next[i] += get(dtype, weight, (own ? l * values : 0) + i * w + j) * z[j];
        }
        // tanh is right to 10 ulp (narrow_activations.inc), the chain shrinks what was there by 0.8
        for (int64_t i = 0; i < w; i++) {
            z[i] = tanh(next[i]);
            keep_larger(&error, fabs(get(dtype, alone, l * w + i) - z[i]) / (5 * (12 + (double)w) * epsilon(dtype)));
        }
    }
    const double flops = STEPS * (2.0 * (double)values + 20.0 * (double)w), element = (double)dpcr_dtype_size(dtype);
    const double bytes = STEPS * ((double)(own ? values : 0) + 2 * (double)w) * element;
    char line[80];
    snprintf(line, sizeof line, "%s_loop", name);
    tell(line, level, dtype, w, 0, STEPS, flops, bytes, best_seconds(run_narrow, &c), error);
    c.run.lanes = LANES, c.run.states = states;
    run_narrow(&c);
    bool same = true;
    for (int64_t lane = 0; lane < LANES; lane++) {
        const size_t size = dpcr_dtype_size(dtype), whole = (size_t)(STEPS * w) * size;
        dpcri_narrow_run one = c.run;
        one.lanes = 1, one.first = lane * STEPS, one.states = alone, one.in = (char *)in + (size_t)(lane * w) * size;
        kernels->advance(&c.chain, &one);
        same &= memcmp((char *)states + (size_t)lane * whole, alone, whole) == 0;
    }
    snprintf(line, sizeof line, "%s_lanes", name);
    tell(line, level, dtype, w, 0, LANES * STEPS, LANES * flops, LANES * bytes, best_seconds(run_narrow, &c),
         same ? 0 : 9);
    free(weight), free(bias), free(in), free(states), free(alone);
}

static int level_of(const char *name) {
    for (int i = 0; i < DPCRI_ISA_COUNT; i++)
        if (strcmp(name, level_names[i]) == 0) return i;
    fprintf(stderr, "bench_kernels: no level '%s'; portable, avx2, avx512\n", name);
    exit(2);
}

int main(int argc, char **argv) {
    int first = 0, last = (int)dpcri_isa_level();
    for (int i = 1; i < argc; i++) {
        const bool more = i + 1 < argc;
        if (strcmp(argv[i], "--check") == 0) {
            check = true;
        } else if (more && strcmp(argv[i], "--seconds") == 0) {
            sample = strtod(argv[++i], NULL);
        } else if (more && strcmp(argv[i], "--name") == 0) {
            part = argv[++i];
        } else if (more && strcmp(argv[i], "--level") == 0) {
            first = last = level_of(argv[++i]);
        } else {
            fprintf(stderr, "bench_kernels [--check] [--seconds S] [--level portable|avx2|avx512] [--name PART]\n");
            return 2;
        }
    }
    if (last > (int)dpcri_isa_level()) {
        fprintf(stderr, "bench_kernels: this CPU, or DEEPPCR_ISA, has no %s\n", level_names[last]);
        return 2;
    }
    printf("kernel,level,dtype,width,block,ns_a_step,gflops,gbytes_a_second,error\n");
    for (int level = first; level <= last; level++)
        for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++) {
            span_kernels(level, (dpcr_dtype)dtype);
            for (int64_t w = 1; w <= DPCRI_NARROW_WIDTH; w++)
                for (int own = 0; own <= 1; own++) narrow_kernel(level, (dpcr_dtype)dtype, w, own);
        }
    return failed;
}
