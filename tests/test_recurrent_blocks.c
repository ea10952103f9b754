// SPDX-License-Identifier: MIT
// Gradients summed by blocks of sequences (batches beyond eight), or of a packed batch's rows that go on: the sums of
// the sequences' own; the same bits whatever the threads, more or fewer than blocks, and by recomputing; in either
// direction, with lengths and with resets; where overlapped chunks go back, which have no blocks of their own, as where
// the loop does; and where the inputs' gradients go past the caches.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>

#include "recurrent_job.h"
#include "sampled.h"

enum { STEPS = 150, MOST_ROWS = 20, HIDDEN = 40, INPUTS = 3, WIDE = 48 };  // WIDE: half a megabyte in all

typedef struct form {
    dpcr_recurrent_kind kind;
    dpcr_dtype dtype;
    int64_t rows, layers;
    int both, reverse, resets, recompute, overlap, wide;
    enum { WHOLE, MIXED, FALLING, ONE_LONG } packed;  // where the sequences of a batch end
} form;

static int64_t ends[MOST_ROWS];
static unsigned char resets[STEPS * MOST_ROWS];

// Backward, to the last bit.
static const dpcr_solve_options in_chunks = {.size = sizeof in_chunks,
                                             .method = DPCR_METHOD_SEQUENTIAL,
                                             .backward = DPCR_SCHEME_OVERLAP,
                                             .warm_up = 8,
                                             .atol = -1,
                                             .rtol = -1};

static void open_job(job *j, const form *f, int64_t rows) {
    dpcr_error error = {0};
    const dpcr_recurrent_plan_options options = {.size = sizeof options,
                                                 .length = STEPS,
                                                 .batch = rows,
                                                 .training = 1,
                                                 .packed = f->packed != WHOLE,
                                                 .resets = f->resets,
                                                 .recompute = f->recompute,
                                                 .solve = f->overlap ? in_chunks : the_loop};
    if (dpcr_recurrent_plan_create(j->network, &options, &j->plan, &error) != DPCR_OK) fail_msg("%s", error.text);
    j->bytes = dpcr_recurrent_plan_workspace(j->plan);
    const size_t tape = dpcr_recurrent_plan_tape(j->plan);
    j->workspace = aligned_alloc(64, (j->bytes + 127) / 64 * 64);
    j->tape = aligned_alloc(64, (tape + 127) / 64 * 64);
    memset(j->workspace, 0xff, j->bytes);
    memset(j->tape, 0xff, tape);
}

// What it writes begins as NaN.
static job make_job(dpcr_context *context, const form *f, int64_t rows) {
    job j = random_job(context,
                       (dpcr_recurrent_options){.kind = f->kind,
                                                .dtype = f->dtype,
                                                .inputs = f->wide ? WIDE : INPUTS,
                                                .hidden = HIDDEN,
                                                .layers = f->layers,
                                                .bidirectional = f->both,
                                                .reverse = f->reverse,
                                                .seed = 5},
                       STEPS, rows);
    memset(j.gradients.x.data, 0xff, (size_t)count_of(&j.gradients.x) * dpcr_dtype_size(f->dtype));
    return j;
}

static size_t gradient_bytes(const job *j, dpcr_dtype dtype) {
    int64_t count;
    dpcr_recurrent_vector(j->network, &count);
    return (size_t)count * dpcr_dtype_size(dtype);
}

static void end_job(job *j) {
    close_plan(j);
    free_pass(j);
    dpcr_recurrent_destroy(j->network);
}

static job run_batch(int threads, const form *f, dpcr_context **context) {
    *context = make_context(threads);
    job j = make_job(*context, f, f->rows);
    if (f->packed) j.pass.lengths = ends;
    if (f->resets) j.pass.resets = resets;
    if (f->wide) {  // whole vectors, which alone go past the caches
        const size_t bytes = (size_t)count_of(&j.gradients.x) * dpcr_dtype_size(f->dtype);
        free(j.gradients.x.data);
        j.gradients.x.data = aligned_alloc(64, bytes);
        memset(j.gradients.x.data, 0xff, bytes);
    }
    open_job(&j, f, f->rows);
    forward(&j);
    backward(&j);
    return j;
}

// Row b of [n][B][width] to [n][1][width], or the sum's comparison the other way.
static void take_row(const dpcr_array *from, int64_t b, const dpcr_array *to) {
    const int64_t width = from->shape[2], B = from->shape[1];
    for (int64_t t = 0; from->data && t < from->shape[0]; t++)
        for (int64_t i = 0; i < width; i++) put(to, t * width + i, get(from, (t * B + b) * width + i));
}

static void equal_row(const dpcr_array *all, int64_t b, const dpcr_array *one, int64_t steps) {
    const int64_t width = all->shape[2], B = all->shape[1];
    for (int64_t t = 0; t < steps; t++)
        for (int64_t i = 0; i < width; i++)
            if (get(one, t * width + i) != get(all, (t * B + b) * width + i))
                fail_msg("sequence %d, step %d", (int)b, (int)t);
}

static void check_sums(const form *f, const job *whole) {
    dpcr_context *context = make_context(1);
    const size_t bytes = gradient_bytes(whole, f->dtype);
    const int64_t count = (int64_t)(bytes / dpcr_dtype_size(f->dtype));
    double *sum = calloc((size_t)count, sizeof *sum);
    dpcr_array view = {.dtype = f->dtype};
    double size = 0;
    for (int64_t b = 0; b < f->rows; b++) {
        job j = make_job(context, f, 1);
        const int64_t own_end = ends[b];
        unsigned char own[STEPS];
        take_row(&whole->pass.x, b, &j.pass.x), take_row(&whole->pass.h0, b, &j.pass.h0);
        if (j.pass.c0.data) take_row(&whole->pass.c0, b, &j.pass.c0);
        take_row(&whole->gradients.y, b, &j.gradients.y);
        for (int64_t t = 0; t < STEPS; t++) own[t] = resets[t * f->rows + b];
        if (f->packed) j.pass.lengths = &own_end;
        if (f->resets) j.pass.resets = own;
        open_job(&j, f, 1);
        forward(&j);
        backward(&j);
        equal_row(&whole->gradients.x, b, &j.gradients.x, STEPS);
        equal_row(&whole->gradients.h0, b, &j.gradients.h0, j.gradients.h0.shape[0]);
        view.data = (void *)dpcr_recurrent_gradient_vector(j.network);
        for (int64_t i = 0; i < count; i++) sum[i] += get(&view, i);
        end_job(&j);
    }
    view.data = (void *)dpcr_recurrent_gradient_vector(whole->network);
    for (int64_t i = 0; i < count; i++) size = fmax(size, fabs(sum[i]));
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(get(&view, i) - sum[i]) <= size * (f->dtype == DPCR_F64 ? 1e-13 : 3e-5)))
            fail_msg("parameter %d: %.17g, wanted %.17g", (int)i, get(&view, i), sum[i]);
    free(sum);
    dpcr_context_destroy(context);
}

static void check(const form *f) {
    static const struct { int threads, recompute; } ways[] = {{2, 0}, {5, 0}, {2, 1}};
    dpcr_context *context, *others;
    job one = run_batch(1, f, &context);
    check_sums(f, &one);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        form other = *f;
        other.recompute = ways[i].recompute;
        job j = run_batch(ways[i].threads, &other, &others);
        const size_t bytes = gradient_bytes(&j, f->dtype);
        assert_memory_equal(dpcr_recurrent_gradient_vector(one.network), dpcr_recurrent_gradient_vector(j.network),
                            bytes);
        assert_memory_equal(one.gradients.x.data, j.gradients.x.data,
                            (size_t)count_of(&j.gradients.x) * dpcr_dtype_size(f->dtype));
        end_job(&j);
        dpcr_context_destroy(others);
    }
    end_job(&one);
    dpcr_context_destroy(context);
}

static void sums_of_blocks(void **state) {
    (void)state;
    static const form forms[] = {
        {.kind = DPCR_GRU, .dtype = DPCR_F64, .rows = 20, .layers = 1},
        {.kind = DPCR_LSTM, .dtype = DPCR_F64, .rows = 9, .layers = 2, .both = 1, .packed = MIXED},
        {.kind = DPCR_RNN_TANH, .dtype = DPCR_F64, .rows = 16, .layers = 1, .reverse = 1, .resets = 1},
        {.kind = DPCR_GRU, .dtype = DPCR_F32, .rows = 17, .layers = 1, .reverse = 1, .packed = MIXED, .resets = 1},
        {.kind = DPCR_LSTM, .dtype = DPCR_F32, .rows = 16, .layers = 1},
        {.kind = DPCR_GRU, .dtype = DPCR_F32, .rows = 18, .layers = 1, .overlap = 1},
        {.kind = DPCR_GRU, .dtype = DPCR_F32, .rows = 20, .layers = 1, .wide = 1},
        {.kind = DPCR_LSTM, .dtype = DPCR_F64, .rows = 20, .layers = 2, .both = 1, .wide = 1},
        {.kind = DPCR_RNN_TANH, .dtype = DPCR_F32, .rows = 19, .layers = 1, .reverse = 1, .packed = MIXED, .wide = 1},
        {.kind = DPCR_GRU, .dtype = DPCR_F32, .rows = 20, .layers = 1, .packed = FALLING},
        {.kind = DPCR_LSTM, .dtype = DPCR_F64, .rows = 20, .layers = 1, .both = 1, .packed = FALLING, .overlap = 1},
        {.kind = DPCR_GRU, .dtype = DPCR_F64, .rows = 18, .layers = 2, .packed = ONE_LONG},
        {.kind = DPCR_RNN_TANH, .dtype = DPCR_F32, .rows = 7, .layers = 2, .both = 1, .packed = FALLING},
        {.kind = DPCR_LSTM, .dtype = DPCR_F32, .rows = 5, .layers = 1, .packed = MIXED, .resets = 1},
        {.kind = DPCR_GRU, .dtype = DPCR_F64, .rows = 3, .layers = 1, .packed = ONE_LONG, .overlap = 1},
    };
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i += 1 + TESTS_SANITIZED) {
        const int64_t B = forms[i].rows;
        for (int64_t b = 0; b < B; b++)
            ends[b] = forms[i].packed == FALLING    ? STEPS * (B - b) / B
                      : forms[i].packed == ONE_LONG ? (b == 1 ? STEPS : b % 4)
                      : b % 3 == 1                  ? (b * 37) % STEPS
                                                    : STEPS;
        memset(resets, 0, sizeof resets);
        for (int64_t b = 0; b < forms[i].rows; b += 2) resets[(b * 11 % STEPS) * forms[i].rows + b] = 1;
        check(&forms[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_of_blocks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
