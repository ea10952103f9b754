// SPDX-License-Identifier: MIT
// Clipping of gradients: PyTorch's numbers (fixtures/clipped.safetensors, made by make_sequence_fixtures.py), the same
// bits for any number of threads, numbers that are not finite, refusals.

// cmocka.h wants the first three before it.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deeppcr/data.h"
#include "deeppcr/train.h"

static dpcr_context *make_context(int threads) {
    const dpcr_context_options options = {.size = sizeof options, .threads = threads};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    return context;
}

static int64_t count_of(const dpcr_array *a) {
    int64_t count = 1;
    for (int32_t d = 0; d < a->ndim; d++) count *= a->shape[d];
    return count;
}

static double get(const dpcr_array *a, int64_t i) {
    return a->dtype == DPCR_F64 ? ((const double *)a->data)[i] : (double)((const float *)a->data)[i];
}

static const dpcr_array *tensor_of(const dpcr_tensors *t, const char *letter, const char *name, const char *part) {
    char whole[64];
    snprintf(whole, sizeof whole, "%s.%s.%s", letter, name, part);
    const dpcr_tensor *tensor = dpcr_tensors_find(t, whole);
    if (!tensor) fail_msg("no tensor %s", whole);
    return &tensor->array;
}

enum { ARRAYS = 3 };

static void check_case(dpcr_context *context, const dpcr_tensors *t, const char *letter, const char *name) {
    static const char *const parts[ARRAYS] = {"0", "1", "2"};
    const double tolerance = letter[0] == 'd' ? 1e-14 : 1e-6, limit = get(tensor_of(t, letter, name, "limit"), 0);
    const bool value = strcmp(name, "value") == 0;
    dpcr_array gradients[ARRAYS];
    dpcr_error error = {0};
    for (int i = 0; i < ARRAYS; i++) {
        gradients[i] = *tensor_of(t, letter, "given", parts[i]);
        const size_t bytes = (size_t)count_of(&gradients[i]) * dpcr_dtype_size(gradients[i].dtype);
        void *copy = malloc(bytes);
        memcpy(copy, gradients[i].data, bytes);
        gradients[i].data = copy;
    }
    double norm = -1;
    const dpcr_status status = value ? dpcr_gradients_clip_value(context, gradients, ARRAYS, limit, &error)
                                     : dpcr_gradients_clip_norm(context, gradients, ARRAYS, limit, &norm, &error);
    if (status != DPCR_OK) fail_msg("%s", error.text);
    if (!value) {
        const double wanted = get(tensor_of(t, letter, name, "norm"), 0);
        assert_true(fabs(norm - wanted) <= tolerance * wanted);
        assert_true((norm > limit) == (strcmp(name, "norm") == 0));
    }
    for (int i = 0; i < ARRAYS; i++) {
        const dpcr_array *wanted = tensor_of(t, letter, name, parts[i]);
        for (int64_t k = 0; k < count_of(wanted); k++)
            if (!(fabs(get(&gradients[i], k) - get(wanted, k)) <= tolerance))
                fail_msg("%s, %s: [%d][%d] is %.12g, PyTorch has %.12g", letter, name, i, (int)k, get(&gradients[i], k),
                         get(wanted, k));
        free(gradients[i].data);
    }
}

static void clipping_gives_pytorchs_values(void **state) {
    (void)state;
    dpcr_context *context = make_context(2);
    dpcr_tensors t = {0};
    dpcr_error error = {0};
    if (dpcr_safetensors_read(context, FIXTURES "/clipped.safetensors", &t, &error) != DPCR_OK)
        fail_msg("%s", error.text);
    for (int wide = 0; wide < 2; wide++) {
        check_case(context, &t, wide ? "d" : "f", "norm");
        check_case(context, &t, wide ? "d" : "f", "wide");
        check_case(context, &t, wide ? "d" : "f", "value");
    }
    dpcr_tensors_free(context, &t);
    dpcr_context_destroy(context);
}

// Many blocks, the last of them short.
static void the_bits_do_not_depend_on_threads(void **state) {
    (void)state;
    enum { COUNT = 5000011, THREADS = 3 };
    float *kept = NULL;
    double first = 0;
    for (int threads = 1; threads <= THREADS; threads += THREADS - 1) {
        dpcr_context *context = make_context(threads);
        float *g = malloc(COUNT * sizeof *g);
        assert_non_null(g);
        double plain = 0, norm;
        for (int64_t i = 0; i < COUNT; i++) {
            g[i] = (float)((double)(i * 7919 % 10007) / 5003 - 1) * (i % 1000 == 0 ? 300.0f : 1.0f);
            plain += (double)g[i] * (double)g[i];
        }
        const dpcr_array array = dpcr_array_make(g, DPCR_F32, 1, (int64_t[]){COUNT});
        assert_int_equal(dpcr_gradients_clip_norm(context, &array, 1, 1, &norm, NULL), DPCR_OK);
        assert_true(fabs(norm - sqrt(plain)) <= 1e-12 * norm);
        double after;
        assert_int_equal(dpcr_gradients_clip_norm(context, &array, 1, INFINITY, &after, NULL), DPCR_OK);
        assert_true(fabs(after - 1) < 1e-5 && after <= 1);
        if (!kept) {
            kept = g;
            first = norm;
        } else {
            assert_true(norm == first);
            assert_memory_equal(kept, g, COUNT * sizeof *g);
            free(g);
        }
        dpcr_context_destroy(context);
    }
    free(kept);
}

static void numbers_that_are_not_finite(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    double g[] = {1, NAN, -5, INFINITY};
    const dpcr_array array = dpcr_array_make(g, DPCR_F64, 1, (int64_t[]){4}),
                     two = dpcr_array_make(g + 2, DPCR_F64, 1, (int64_t[]){2});
    double norm;
    assert_int_equal(dpcr_gradients_clip_value(context, &array, 1, 2, NULL), DPCR_OK);
    assert_true(g[0] == 1 && isnan(g[1]) && g[2] == -2 && g[3] == 2);
    g[3] = INFINITY;
    assert_int_equal(dpcr_gradients_clip_norm(context, &two, 1, 2, &norm, NULL), DPCR_OK);
    assert_true(isinf(norm) && g[2] == 0 && isnan(g[3]));  // as PyTorch: scaled by 0
    g[2] = 1;
    assert_int_equal(dpcr_gradients_clip_norm(context, &array, 1, 2, &norm, NULL), DPCR_OK);
    assert_true(isnan(norm) && isnan(g[0]) && isnan(g[2]));
    g[0] = 3;
    assert_int_equal(dpcr_gradients_clip_norm(context, NULL, 0, 2, &norm, NULL), DPCR_OK);
    assert_true(norm == 0);
    dpcr_context_destroy(context);
}

static void refusals(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    double g[4] = {0};
    dpcr_array array = dpcr_array_make(g, DPCR_F64, 1, (int64_t[]){4});
    dpcr_error error = {0};
    assert_int_equal(dpcr_gradients_clip_norm(NULL, &array, 1, 1, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_gradients_clip_norm(context, NULL, 1, 1, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_gradients_clip_norm(context, &array, -1, 1, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_gradients_clip_norm(context, &array, 1, -1, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "most is -1"));
    assert_int_equal(dpcr_gradients_clip_value(context, &array, 1, NAN, &error), DPCR_ERROR_ARGUMENT);
    array.strides[0] = 2;
    assert_int_equal(dpcr_gradients_clip_value(context, &array, 1, 1, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "gradients[0]"));
    array = dpcr_array_make(g, DPCR_U32, 1, (int64_t[]){4});
    assert_int_equal(dpcr_gradients_clip_value(context, &array, 1, 1, &error), DPCR_ERROR_ARGUMENT);
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clipping_gives_pytorchs_values),
        cmocka_unit_test(the_bits_do_not_depend_on_threads),
        cmocka_unit_test(numbers_that_are_not_finite),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
