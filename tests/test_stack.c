// SPDX-License-Identifier: MIT
// What context.h promises of the stack: half a megabyte is enough for a thread that calls the library.
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "deeppcr/deeppcr.h"

#define SHAPE(...) ((const int64_t[]){__VA_ARGS__})

typedef struct task {
    dpcr_context *context;
    void (*run)(const struct task *task);
    int64_t length, batch, width;
    dpcr_dtype dtype;
    int what;  // method, kind or branch
} task;

static void *zeros(int64_t count) {
    void *memory = calloc((size_t)count + 1, sizeof(double));
    if (!memory) abort();
    return memory;
}

static void *room(size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (!memory) abort();
    return memory;
}

// No assertion of cmocka's can leave another thread than the test's.
static void fine(dpcr_status status, const dpcr_error *error) {
    if (status == DPCR_OK) return;
    fprintf(stderr, "%s\n", error->text);
    abort();
}

// There and back.
static void solve(const task *t, const dpcr_steps *steps) {
    const dpcr_solve_options options = {.size = sizeof options, .method = (dpcr_method)t->what};
    const int64_t L = steps->length, B = steps->batch, w = steps->width;
    dpcr_solve_plan *plan = NULL;
    dpcr_error error = {0};
    fine(dpcr_solve_plan_create(t->context, steps, &options, &plan, &error), &error);
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    void *workspace = room(bytes), *z = zeros(L * B * w), *ends = zeros(B * w),
         *tape = zeros(L * B * steps->tape_values);
    const dpcr_array states = dpcr_array_make(z, t->dtype, 3, SHAPE(L, B, w));
    const dpcr_array end = dpcr_array_make(ends, t->dtype, 2, SHAPE(B, w));
    const dpcr_array taped = dpcr_array_make(tape, t->dtype, 3, SHAPE(L, B, steps->tape_values));
    for (int with = 0; with < 2; with++) {
        const dpcr_array *kept = with && steps->tape_values ? &taped : NULL;
        fine(dpcr_solve_execute(plan, &end, &states, kept, workspace, bytes, NULL, &error), &error);
        fine(dpcr_solve_backward(plan, &end, &states, kept, &states, NULL, NULL, NULL, workspace, bytes, NULL, &error),
             &error);
    }
    dpcr_solve_plan_destroy(plan);
    free(workspace), free(z), free(ends), free(tape);
}

static void run_cell(const task *t) {
    void *weight = zeros(t->width * t->width), *x = zeros(t->length * t->batch * t->width),
         *gradient = zeros(t->length * t->batch * t->width);
    const int64_t shape[] = {t->length, t->batch, t->width};
    const dpcr_cell_options options = {.size = sizeof options,
                                       .kind = DPCR_CELL_DENSE,
                                       .dtype = t->dtype,
                                       .length = t->length,
                                       .batch = t->batch,
                                       .width = t->width,
                                       .weight = dpcr_array_make(weight, t->dtype, 2, SHAPE(t->width, t->width)),
                                       .input = dpcr_array_make(x, t->dtype, 3, shape),
                                       .input_gradient = dpcr_array_make(gradient, t->dtype, 3, shape)};
    dpcr_steps steps = {.size = sizeof steps};
    dpcr_cell *cell = NULL;
    dpcr_error error = {0};
    fine(dpcr_cell_create(t->context, &options, &cell, &error), &error);
    fine(dpcr_cell_steps(cell, &steps, &error), &error);
    solve(t, &steps);
    dpcr_cell_destroy(cell);
    free(weight), free(x), free(gradient);
}

static void run_network(const task *t) {
    for (int layer_norm = 0; layer_norm < 2; layer_norm++)
        for (int branch = 0; branch < 2; branch++) {
            const dpcr_model_options options = {.size = sizeof options,
                                                .architecture = DPCR_RESNET,
                                                .dtype = t->dtype,
                                                .layers = t->length,
                                                .width = t->width,
                                                .branch = (dpcr_branch)branch,
                                                .layer_norm = layer_norm};
            dpcr_steps steps = {.size = sizeof steps};
            dpcr_model *model = NULL;
            dpcr_error error = {0};
            fine(dpcr_model_create(t->context, &options, &model, &error), &error);
            fine(dpcr_model_steps(model, t->batch, &steps, &error), &error);
            solve(t, &steps);
            dpcr_model_destroy(model);
        }
}

static void run_recurrent(const task *t) {
    const int64_t T = t->length, B = t->batch, H = t->width;
    const dpcr_recurrent_options options = {.size = sizeof options,
                                            .kind = (dpcr_recurrent_kind)t->what,
                                            .dtype = t->dtype,
                                            .inputs = H,
                                            .hidden = H,
                                            .layers = 2};
    void *x = zeros(T * B * H), *y = zeros(T * B * H), *dx = zeros(T * B * H);
    const dpcr_recurrent_pass pass = {.size = sizeof pass,
                                      .x = dpcr_array_make(x, t->dtype, 3, SHAPE(T, B, H)),
                                      .y = dpcr_array_make(y, t->dtype, 3, SHAPE(T, B, H))};
    const dpcr_recurrent_gradients gradients = {
        .size = sizeof gradients, .y = pass.y, .x = dpcr_array_make(dx, t->dtype, 3, SHAPE(T, B, H))};
    const dpcr_recurrent_plan_options plan_options = {.size = sizeof plan_options,
                                                      .length = T,
                                                      .batch = B,
                                                      .training = 1,
                                                      .solve = {.size = sizeof plan_options.solve},
                                                      .sample = &pass};
    dpcr_recurrent *network = NULL;
    dpcr_recurrent_plan *plan = NULL;
    dpcr_error error = {0};
    fine(dpcr_recurrent_create(t->context, &options, &network, &error), &error);
    fine(dpcr_recurrent_plan_create(network, &plan_options, &plan, &error), &error);
    const size_t bytes = dpcr_recurrent_plan_workspace(plan);
    void *workspace = room(bytes), *tape = room(dpcr_recurrent_plan_tape(plan));
    fine(dpcr_recurrent_execute(plan, &pass, tape, workspace, bytes, NULL, &error), &error);
    fine(dpcr_recurrent_backward(plan, &pass, &gradients, tape, workspace, bytes, NULL, &error), &error);
    dpcr_recurrent_plan_destroy(plan);
    dpcr_recurrent_destroy(network);
    free(x), free(y), free(dx), free(workspace), free(tape);
}

static void run_rest(const task *t) {
    char path[] = P_tmpdir "/deeppcr-stack-XXXXXX";
    double times[50], numbers[500] = {0};
    const dpcr_noise_options noise = {.size = sizeof noise};
    const dpcr_array array = dpcr_array_make(numbers, DPCR_F64, 1, SHAPE(500));
    dpcr_machine machine = {.size = sizeof machine};
    dpcr_tensors tensors = {0};
    dpcr_error error = {0};
    const int file = mkstemp(path);
    if (file < 0) abort();
    close(file);
    fine(dpcr_spacing_fill(DPCR_SPACING_KARRAS, &noise, 50, times, &error), &error);
    fine(dpcr_npy_write(path, &array, &error), &error);
    fine(dpcr_npy_read(t->context, path, &tensors, &error), &error);
    fine(dpcr_context_machine(t->context, &machine, &error), &error);
    dpcr_tensors_free(t->context, &tensors);
    unlink(path);
}

static void *on_thread(void *argument) {
    const task *t = argument;
    t->run(t);
    return NULL;
}

// Frames under a sanitizer are several times the library's own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STACK = 16 * DPCR_STACK_BYTES };
#else
enum { STACK = DPCR_STACK_BYTES };
#endif

// Runs it on a thread with just that stack; more ends the test by a signal.
static void within(const task *t) {
    pthread_attr_t attributes;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstacksize(&attributes, STACK), 0);
    assert_int_equal(pthread_create(&thread, &attributes, on_thread, (void *)t), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
}

static dpcr_context *open_context(void) {
    const dpcr_context_options options = {.size = sizeof options, .threads = 2};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    return context;
}

static const dpcr_dtype dtypes[] = {DPCR_F32, DPCR_F64};

static void cells(void **state) {
    (void)state;
    task t = {.context = open_context(), .run = run_cell};
    for (int d = 0; d < 2; d++)
        for (int method = 0; method < DPCR_METHOD_COUNT; method++)
            for (t.width = 1; t.width <= 16; t.width = t.width < 4 ? t.width + 1 : 4 * t.width) {
                t.dtype = dtypes[d], t.what = method, t.length = t.width > 4 ? 60 : 3000, t.batch = t.width > 4 ? 9 : 1;
                if (method == DPCR_METHOD_BLOCK && t.width % 2) continue;  // its blocks are 2 x 2
                within(&t);
            }
    dpcr_context_destroy(t.context);
}

static void networks(void **state) {
    (void)state;
    static const int64_t widths[] = {2, 4, 32, 130, 700};
    task t = {.context = open_context(), .run = run_network, .batch = 9};
    for (int d = 0; d < 2; d++)
        for (int w = 0; w < 5; w++) {
            t.dtype = dtypes[d], t.width = widths[w], t.length = t.width > 32 ? 2 : 40;
            for (int newton = 0; newton < (t.width > 32 ? 1 : 2); newton++) {
                t.what = newton ? DPCR_METHOD_NEWTON : DPCR_METHOD_SEQUENTIAL;
                within(&t);
            }
        }
    dpcr_context_destroy(t.context);
}

static void recurrent_networks(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{600, 1, 3}, {40, 9, 24}, {6, 17, 300}};  // T, B, H
    task t = {.context = open_context(), .run = run_recurrent};
    for (int d = 0; d < 2; d++)
        for (int kind = DPCR_RNN_TANH; kind <= DPCR_MINGRU; kind++)
            for (int s = 0; s < 3; s++) {
                t.dtype = dtypes[d], t.what = kind, t.length = sizes[s][0], t.batch = sizes[s][1],
                t.width = sizes[s][2];
                within(&t);
            }
    dpcr_context_destroy(t.context);
}

static void files_and_rates(void **state) {
    (void)state;
    const task t = {.context = open_context(), .run = run_rest};
    within(&t);
    dpcr_context_destroy(t.context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cells),
        cmocka_unit_test(networks),
        cmocka_unit_test(recurrent_networks),
        cmocka_unit_test(files_and_rates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
