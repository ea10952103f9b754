// SPDX-License-Identifier: MIT
// Embeddings: PyTorch's numbers (fixtures/embedding.safetensors, made by make_sequence_fixtures.py), the same bits for
// any number of threads, initialisation, refusals.

// cmocka.h wants the first three before it.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "deeppcr/data.h"
#include "deeppcr/embedding.h"

enum { ROWS = 7, WIDTH = 5, PADDING = 2, COUNT = 18 };  // of the fixture

static dpcr_context *make_context(int threads) {
    const dpcr_context_options options = {.size = sizeof options, .threads = threads};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    return context;
}

static const double *numbers(const dpcr_tensors *t, const char *name) {
    const dpcr_tensor *tensor = dpcr_tensors_find(t, name);
    if (!tensor) fail_msg("no tensor %s", name);
    return tensor->array.data;
}

static void put(const dpcr_array *a, int64_t i, double value) {
    if (a->dtype == DPCR_F64)
        ((double *)a->data)[i] = value;
    else
        ((float *)a->data)[i] = (float)value;
}

static double get(const dpcr_array *a, int64_t i) {
    return a->dtype == DPCR_F64 ? ((const double *)a->data)[i] : (double)((const float *)a->data)[i];
}

static void embedding_gives_pytorchs_values(void **state) {
    (void)state;
    dpcr_context *context = make_context(2);
    dpcr_tensors t = {0};
    dpcr_error error = {0};
    if (dpcr_safetensors_read(context, FIXTURES "/embedding.safetensors", &t, &error) != DPCR_OK)
        fail_msg("%s", error.text);
    int64_t indices[COUNT];
    for (int i = 0; i < COUNT; i++) indices[i] = (int64_t)numbers(&t, "indices")[i];
    for (int wide = 0; wide < 2; wide++) {
        double memory[3][COUNT * WIDTH] = {{0}};
        const dpcr_dtype dtype = wide ? DPCR_F64 : DPCR_F32;
        const dpcr_array weight = dpcr_array_make(memory[0], dtype, 2, (int64_t[]){ROWS, WIDTH}),
                         y = dpcr_array_make(memory[1], dtype, 3, (int64_t[]){6, 3, WIDTH}),
                         dweight = dpcr_array_make(memory[2], dtype, 2, (int64_t[]){ROWS, WIDTH});
        for (int i = 0; i < ROWS * WIDTH; i++) put(&weight, i, numbers(&t, "weight")[i]);
        assert_int_equal(dpcr_embedding_forward(context, &weight, indices, COUNT, &y, &error), DPCR_OK);
        for (int i = 0; i < COUNT * WIDTH; i++) {
            const double wanted = numbers(&t, "y")[i];
            assert_true(get(&y, i) == (wide ? wanted : (double)(float)wanted));
            put(&y, i, numbers(&t, "grad.y")[i]);
        }
        for (int pass = 1; pass <= 2; pass++) {  // gradients add up
            assert_int_equal(dpcr_embedding_backward(context, &y, indices, COUNT, PADDING, &dweight, &error), DPCR_OK);
            for (int i = 0; i < ROWS * WIDTH; i++)
                assert_true(fabs(get(&dweight, i) - pass * numbers(&t, "grad.weight")[i]) <= (wide ? 1e-14 : 1e-6));
        }
    }
    dpcr_tensors_free(context, &t);
    dpcr_context_destroy(context);
}

static void the_bits_do_not_depend_on_threads(void **state) {
    (void)state;
    enum { V = 61, D = 19, N = 20000 };
    static float weight[V * D], y[N * D], sums[2][V * D];
    static int64_t indices[N];
    for (int i = 0; i < N; i++) indices[i] = (int64_t)(i * 7919 % 10007 % V);
    const dpcr_array w = dpcr_array_make(weight, DPCR_F32, 2, (int64_t[]){V, D}),
                     all = dpcr_array_make(y, DPCR_F32, 2, (int64_t[]){N, D});
    for (int way = 0; way < 2; way++) {
        dpcr_context *context = make_context(way ? 3 : 1);
        const dpcr_array dw = dpcr_array_make(sums[way], DPCR_F32, 2, (int64_t[]){V, D});
        assert_int_equal(dpcr_embedding_initialise(context, &w, 11, 4, NULL), DPCR_OK);
        assert_int_equal(dpcr_embedding_forward(context, &w, indices, N, &all, NULL), DPCR_OK);
        assert_int_equal(dpcr_embedding_backward(context, &all, indices, N, -1, &dw, NULL), DPCR_OK);
        dpcr_context_destroy(context);
    }
    assert_memory_equal(sums[0], sums[1], sizeof sums[0]);
    double sum = 0, squares = 0;
    for (int i = 0; i < V * D; i++) {
        sum += (double)weight[i];
        squares += (double)(weight[i] * weight[i]);
        assert_true((weight[i] == 0) == (i / D == 4));
    }
    assert_true(fabs(sum / (V * D)) < 0.1 && fabs(squares / (V * D) - 1) < 0.15);
}

static void refusals(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    double memory[20] = {0}, y[20] = {0};
    int64_t indices[] = {0, 3, 4};
    const dpcr_array weight = dpcr_array_make(memory, DPCR_F64, 2, (int64_t[]){4, 5}),
                     out = dpcr_array_make(y, DPCR_F64, 2, (int64_t[]){3, 5}),
                     narrow = dpcr_array_make(y, DPCR_F64, 2, (int64_t[]){3, 4}),
                     other = dpcr_array_make(y, DPCR_F32, 2, (int64_t[]){3, 5});
    dpcr_error error = {0};
    for (int i = 0; i < 20; i++) memory[i] = 1;
    assert_int_equal(dpcr_embedding_forward(context, &weight, indices, 3, &out, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "indices[2] is 4, wanted 0..3"));
    assert_true(y[0] == 0);
    indices[2] = -1;
    assert_int_equal(dpcr_embedding_backward(context, &out, indices, 3, -1, &weight, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "indices[2] is -1"));
    indices[2] = 1;
    assert_int_equal(dpcr_embedding_forward(context, &weight, indices, 3, &narrow, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_embedding_forward(context, &weight, indices, 3, &other, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_embedding_forward(context, &weight, indices, 2, &out, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_embedding_forward(context, &weight, NULL, 3, &out, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_embedding_forward(context, &weight, indices, -1, &out, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_embedding_forward(context, NULL, indices, 3, &out, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_embedding_forward(NULL, &weight, indices, 3, &out, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_embedding_initialise(context, NULL, 1, -1, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_embedding_initialise(context, &weight, 1, 4, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "padding is 4, wanted less than 4"));
    assert_int_equal(dpcr_embedding_backward(context, &out, indices, 3, 4, &weight, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "padding is 4"));
    assert_true(memory[0] == 1 && memory[19] == 1);
    assert_int_equal(dpcr_embedding_forward(context, &weight, indices, 3, &out, &error), DPCR_OK);
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_gives_pytorchs_values),
        cmocka_unit_test(the_bits_do_not_depend_on_threads),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
