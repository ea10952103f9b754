// SPDX-License-Identifier: MIT
// PyTorch's numbers: every fixtures/torch_*.safetensors is a network with its logits, loss and gradients in double;
// ours agree to 1e-10 relative. Made by fixtures/make_torch_fixtures.py.
#include <glob.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "deeppcr/data.h"
#include "deeppcr/model.h"

static const dpcr_array *find(const dpcr_tensors *t, const char *name) {
    const dpcr_tensor *tensor = dpcr_tensors_find(t, name);
    if (!tensor) fail_msg("no tensor %s", name);
    return &tensor->array;
}

// |got - wanted| <= 1e-10 max |wanted|; `got` strided, `wanted` contiguous.
static void compare(const char *path, const char *name, const dpcr_array *got, const dpcr_array *wanted) {
    const int64_t cols = wanted->ndim == 2 ? wanted->shape[1] : 1, stride = got->ndim == 2 ? got->strides[1] : 0;
    const double *x = got->data, *y = wanted->data;
    double largest = 1e-3;
    for (int64_t i = 0; i < wanted->shape[0] * cols; i++) largest = fmax(largest, fabs(y[i]));
    for (int64_t i = 0; i < wanted->shape[0]; i++)
        for (int64_t j = 0; j < cols; j++) {
            const double a = x[i * got->strides[0] + j * stride], b = y[i * cols + j];
            if (!(fabs(a - b) <= 1e-10 * largest))
                fail_msg("%s: %s[%d][%d] is %.15g, PyTorch has %.15g", path, name, (int)i, (int)j, a, b);
        }
}

static double cross_entropy(const double *logits, const double *labels, int64_t rows, int64_t classes,
                            double *dlogits) {
    double loss = 0;
    for (int64_t i = 0; i < rows; i++) {
        double sum = 0;
        for (int64_t j = 0; j < classes; j++) sum += exp(logits[i * classes + j]);
        loss += log(sum) - logits[i * classes + (int64_t)labels[i]];
        for (int64_t j = 0; j < classes; j++)
            dlogits[i * classes + j] = (exp(logits[i * classes + j]) / sum - (j == (int64_t)labels[i])) / (double)rows;
    }
    return loss / (double)rows;
}

static void check_file(dpcr_context *context, const char *path) {
    dpcr_error error = {0};
    dpcr_model *m = NULL;
    dpcr_tensors t = {0};
    if (dpcr_model_load(context, path, &m, &error) != DPCR_OK) fail_msg("%s", error.text);
    if (dpcr_safetensors_read(context, path, &t, &error) != DPCR_OK) fail_msg("%s", error.text);
    const dpcr_model_options *o = dpcr_model_get_options(m);
    const dpcr_array *x = find(&t, "x"), *labels = find(&t, "labels");
    const int64_t rows = x->shape[0], w = o->width, length = o->layers;
    dpcr_steps steps = {.size = sizeof steps};
    assert_int_equal(dpcr_model_steps(m, rows, &steps, NULL), DPCR_OK);
    double *z = calloc((size_t)((length + 1) * rows * w), sizeof *z),
           *lambda = calloc((size_t)(length * rows * w), sizeof *lambda);
    double *tape = calloc((size_t)(length * rows * steps.tape_values) + 1, sizeof *tape),
           *dz = calloc((size_t)(rows * w), sizeof *dz);
    double *logits = calloc((size_t)(rows * o->outputs), sizeof *logits),
           *dlogits = calloc((size_t)(rows * o->outputs), sizeof *dlogits);

    const dpcr_array z0 = dpcr_array_make(z, DPCR_F64, 2, (const int64_t[]){rows, w});
    const dpcr_array in = dpcr_array_make(z, DPCR_F64, 3, (const int64_t[]){1, rows, w});
    const dpcr_array states = dpcr_array_make(z + rows * w, DPCR_F64, 4, (const int64_t[]){1, length, rows, w});
    const dpcr_array tapes = dpcr_array_make(tape, DPCR_F64, 4, (const int64_t[]){1, length, rows, steps.tape_values});
    const dpcr_array last = dpcr_array_make(z + length * rows * w, DPCR_F64, 2, (const int64_t[]){rows, w});
    const dpcr_array out = dpcr_array_make(logits, DPCR_F64, 2, (const int64_t[]){rows, o->outputs});
    const dpcr_array dout = dpcr_array_make(dlogits, DPCR_F64, 2, (const int64_t[]){rows, o->outputs});
    dpcr_span span = {
        .size = sizeof span, .lanes = 1, .stride = 1, .steps = length, .rows = rows, .device = {DPCR_HOST, 0}};
    assert_int_equal(dpcr_model_encode(m, x, &z0, &error), DPCR_OK);
    assert_int_equal(steps.advance(steps.user, &span, &in, &states, NULL, &tapes), 0);
    assert_int_equal(dpcr_model_head(m, &last, &out, &error), DPCR_OK);
    compare(path, "logits", &out, find(&t, "logits"));
    const double loss = cross_entropy(logits, labels->data, rows, o->outputs, dlogits);
    assert_true(fabs(loss - *(double *)find(&t, "loss")->data) <= 1e-12);

    const dpcr_array dlast = dpcr_array_make(dz, DPCR_F64, 2, (const int64_t[]){rows, w});
    const dpcr_array dlasts = dpcr_array_make(dz, DPCR_F64, 3, (const int64_t[]){1, rows, w});
    const dpcr_array lane_in = dpcr_array_make(z, DPCR_F64, 4, (const int64_t[]){1, length, rows, w});
    const dpcr_array lane_out = dpcr_array_make(lambda, DPCR_F64, 4, (const int64_t[]){1, length, rows, w});
    const dpcr_array inputs = dpcr_array_make(z, DPCR_F64, 3, (const int64_t[]){length, rows, w});
    const dpcr_array adjoints = dpcr_array_make(lambda, DPCR_F64, 3, (const int64_t[]){length, rows, w});
    const dpcr_array flat = dpcr_array_make(tape, DPCR_F64, 3, (const int64_t[]){length, rows, steps.tape_values});
    assert_int_equal(dpcr_model_head_backward(m, &last, &dout, &dlast, &error), DPCR_OK);
    assert_int_equal(steps.adjoint(steps.user, &span, &lane_in, &tapes, NULL, &dlasts, &lane_out, &dlasts), 0);
    span.lanes = length, span.steps = 1;
    assert_int_equal(steps.gradient(steps.user, &span, &inputs, &flat, &adjoints), 0);
    assert_int_equal(dpcr_model_encode_backward(m, x, &dlast, &error), DPCR_OK);
    compare(path, "z0", &dlast, find(&t, "grad.z0"));
    for (int64_t i = 0; i < dpcr_model_parameter_count(m); i++) {
        char name[96] = "grad.";
        dpcr_array gradient;
        assert_int_equal(dpcr_model_parameter(m, i, name + 5, sizeof name - 5, NULL, &gradient, &error), DPCR_OK);
        compare(path, name, &gradient, find(&t, name));
    }
    free(z), free(lambda), free(tape), free(dz), free(logits), free(dlogits);
    dpcr_tensors_free(context, &t);
    dpcr_model_destroy(m);
}

static void pytorch_agrees(void **state) {
    (void)state;
    glob_t files = {0};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(NULL, &context, NULL), DPCR_OK);
    assert_int_equal(glob(FIXTURES "/torch_*.safetensors", 0, NULL, &files), 0);
    assert_true(files.gl_pathc >= 17);
    for (size_t i = 0; i < files.gl_pathc; i++) check_file(context, files.gl_pathv[i]);
    globfree(&files);
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(pytorch_agrees)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
