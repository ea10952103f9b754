// SPDX-License-Identifier: MIT
// A convolution's adjoint by dense products against its Jacobian, entry by entry: whole numbers, so exactly.
#include "budget.h"
#include "sparse_common.h"

enum { BATCH = 3 };

static const dpcr_conv2d convs[] = {
    {sizeof *convs, 2, 3, 5, 5, {3, 3}, {1, 1}, {1, 1}, {0, 0}, 0},
    {sizeof *convs, 1, 2, 6, 9, {5, 5}, {0, 0}, {2, 2}, {0, 0}, 1},
    {sizeof *convs, 3, 2, 4, 6, {2, 2}, {2, 2}, {0, 0}, {0, 0}, 0},
    {sizeof *convs, 5, 70, 3, 4, {3, 2}, {1, 2}, {2, 1}, {1, 1}, 0},
    {sizeof *convs, 2, 2, 9, 8, {3, 3}, {2, 1}, {2, 3}, {2, 3}, 0},
    {sizeof *convs, 40, 10, 1, 1, {1, 1}, {0, 0}, {0, 0}, {0, 0}, 0},
    {sizeof *convs, 65, 9, 4, 4, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 0},
    {sizeof *convs, 1, 2, 3, 3, {2, 2}, {4, 5}, {3, 2}, {0, 0}, 0},
};
enum { CONVS = sizeof convs / sizeof *convs };

static void *whole(dpcr_dtype dtype, int64_t count) {
    void *made = room_for(count);
    for (int64_t i = 0; i < count; i++) put(dtype, made, i, (double)(random_below(13) - 6));
    return made;
}

typedef struct job {
    dpcr_jacobian *jacobian;
    int64_t inputs, outputs, weight_count;
    void *weights, *out, *want, *got;
    dpcr_array w, g_out, g_in;
} job;

static job make_job(dpcr_context *context, const dpcr_conv2d *c, dpcr_dtype dtype) {
    job j = {.weight_count = c->out_channels * c->in_channels * c->kernel[0] * c->kernel[1]};
    assert_int_equal(dpcr_jacobian_conv2d(context, c, NULL, &j.jacobian, NULL), DPCR_OK);
    j.inputs = dpcr_jacobian_transition(j.jacobian)->rows;
    j.outputs = dpcr_jacobian_transition(j.jacobian)->cols;
    j.weights = whole(dtype, j.weight_count);
    j.out = whole(dtype, BATCH * j.outputs);
    j.want = room_for(BATCH * j.inputs);
    j.got = room_for(BATCH * (j.inputs + 1));
    j.w = dpcr_array_make(j.weights, dtype, 1, &j.weight_count);
    j.g_out = dpcr_array_make(j.out, dtype, 2, (const int64_t[]){BATCH, j.outputs});
    j.g_in = dpcr_array_make(j.got, dtype, 2, (const int64_t[]){BATCH, j.inputs});
    j.g_in.strides[0] = j.inputs + 1;
    return j;
}

static void drop_job(job *j) {
    free(j->weights), free(j->out), free(j->want), free(j->got);
    dpcr_jacobian_destroy(j->jacobian);
}

static void by_the_jacobian(const job *j) {
    const dpcr_transition *t = dpcr_jacobian_transition(j->jacobian);
    const dpcr_dtype dtype = j->w.dtype;
    const int64_t entries = dpcr_transition_values(t);
    void *values = room_for(entries);
    const dpcr_array filled = dpcr_array_make(values, dtype, 2, (const int64_t[]){1, entries}),
                     a = dpcr_array_make(values, dtype, 3, (const int64_t[]){1, 1, entries}),
                     x = dpcr_array_make(j->out, dtype, 3, (const int64_t[]){1, BATCH, j->outputs}),
                     y = dpcr_array_make(j->want, dtype, 3, (const int64_t[]){1, BATCH, j->inputs});
    assert_int_equal(dpcr_jacobian_fill(j->jacobian, &j->w, &filled, NULL), DPCR_OK);
    assert_int_equal(dpcr_transition_apply(t, 0, &a, &x, NULL, &y, NULL), DPCR_OK);
    free(values);
}

static void equals_the_jacobian(void **state) {
    (void)state;
    for (int threads = 1; threads < 3; threads++) {
        const dpcr_context_options options = {.size = sizeof options, .threads = threads};
        dpcr_context *context = NULL;
        assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
        for (int i = 0; i < 2 * CONVS; i++) {
            const dpcr_dtype dtype = i % 2 ? DPCR_F64 : DPCR_F32;
            const dpcr_conv2d *c = &convs[i / 2];
            job j = make_job(context, c, dtype);
            dpcr_error error = {0};
            by_the_jacobian(&j);
            if (dpcr_conv2d_adjoint(context, c, &j.w, &j.g_out, &j.g_in, &error) != DPCR_OK) fail_msg("%s", error.text);
            for (int64_t b = 0; b < BATCH; b++)
                for (int64_t k = 0; k < j.inputs; k++)
                    assert_true(get(dtype, j.got, b * (j.inputs + 1) + k) == get(dtype, j.want, b * j.inputs + k));
            drop_job(&j);
        }
        dpcr_context_destroy(context);
    }
}

// Forward and the gradients are the adjoint's too: with whole numbers
//   <y, W x + 1 b> = <W' y, x> + <g_b(y), b>   and   <g_W(x, y), W> = <W x, y>,   exactly.
static void forward_and_gradients_are_adjoint(void **state) {
    (void)state;
    for (int threads = 1; threads < 4; threads += 2) {
        const dpcr_context_options options = {.size = sizeof options, .threads = threads};
        dpcr_context *context = NULL;
        assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
        for (int i = 0; i < 2 * CONVS; i++) {
            const dpcr_dtype dtype = i % 2 ? DPCR_F64 : DPCR_F32;
            const dpcr_conv2d *c = &convs[i / 2];
            job j = make_job(context, c, dtype);
            void *x = whole(dtype, BATCH * j.inputs), *y = room_for(BATCH * j.outputs),
                 *b = whole(dtype, c->out_channels);
            void *g_w = room_for(j.weight_count), *g_b = room_for(c->out_channels);
            const dpcr_array in = dpcr_array_make(x, dtype, 2, (const int64_t[]){BATCH, j.inputs}),
                             out = dpcr_array_make(y, dtype, 2, (const int64_t[]){BATCH, j.outputs}),
                             bias = dpcr_array_make(b, dtype, 1, &c->out_channels),
                             g_weights = dpcr_array_make(g_w, dtype, 1, &j.weight_count),
                             g_bias = dpcr_array_make(g_b, dtype, 1, &c->out_channels);
            by_the_jacobian(&j);
            assert_int_equal(dpcr_conv2d_forward(context, c, &j.w, &bias, &in, &out, NULL), DPCR_OK);
            assert_int_equal(dpcr_conv2d_gradients(context, c, &in, &j.g_out, &g_weights, &g_bias, NULL), DPCR_OK);
            double whole_sum = 0, back = 0, biases = 0, weights = 0;
            for (int64_t k = 0; k < BATCH * j.outputs; k++) whole_sum += get(dtype, y, k) * get(dtype, j.out, k);
            for (int64_t k = 0; k < BATCH * j.inputs; k++) back += get(dtype, j.want, k) * get(dtype, x, k);
            for (int64_t k = 0; k < c->out_channels; k++) biases += get(dtype, g_b, k) * get(dtype, b, k);
            for (int64_t k = 0; k < j.weight_count; k++) weights += get(dtype, g_w, k) * get(dtype, j.weights, k);
            assert_true(whole_sum == back + biases);
            assert_true(weights == back);
            assert_int_equal(dpcr_conv2d_forward(context, c, &j.w, NULL, &in, &out, NULL), DPCR_OK);
            whole_sum = 0;
            for (int64_t k = 0; k < BATCH * j.outputs; k++) whole_sum += get(dtype, y, k) * get(dtype, j.out, k);
            assert_true(whole_sum == back);
            free(x), free(y), free(b), free(g_w), free(g_b);
            drop_job(&j);
        }
        dpcr_context_destroy(context);
    }
}

static void refusals(void **state) {
    (void)state;
    dpcr_context *context = NULL;
    dpcr_error e = {0};
    assert_int_equal(dpcr_context_create(NULL, &context, NULL), DPCR_OK);
    job j = make_job(context, &convs[0], DPCR_F64);
#define REFUSED(wanted, part, ...)                                      \
    do {                                                                \
        assert_int_equal(dpcr_conv2d_adjoint(__VA_ARGS__, &e), wanted); \
        assert_non_null(strstr(e.text, part));                          \
    } while (0)
    REFUSED(DPCR_ERROR_ARGUMENT, "NULL", NULL, &convs[0], &j.w, &j.g_out, &j.g_in);
    REFUSED(DPCR_ERROR_ARGUMENT, "NULL", context, &convs[0], &j.w, NULL, &j.g_in);
    REFUSED(DPCR_ERROR_ARGUMENT, "outputs [B][75]", context, &convs[0], &j.w, &j.g_in, &j.g_in);
    dpcr_conv2d other = convs[0];
    other.groups = 2;
    REFUSED(DPCR_ERROR_UNSUPPORTED, "one group", context, &other, &j.w, &j.g_out, &j.g_in);
    other = convs[0];
    other.kernel[0] = 8;
    REFUSED(DPCR_ERROR_ARGUMENT, "larger than the image", context, &other, &j.w, &j.g_out, &j.g_in);
    other.kernel[0] = 0;
    REFUSED(DPCR_ERROR_ARGUMENT, "not positive", context, &other, &j.w, &j.g_out, &j.g_in);
    // Sizes whose products would not fit.
    other = (dpcr_conv2d){sizeof other, 65534, 65534, INT32_MAX, INT32_MAX, {1, 1}, {1, 1}, {32767, 32767}, {1, 1}, 1};
    REFUSED(DPCR_ERROR_OVERFLOW, "counted", context, &other, &j.w, &j.g_out, &j.g_in);
    dpcr_array many = j.w;
    many.ndim = 3;
    many.shape[0] = many.shape[1] = INT64_C(1) << 40, many.shape[2] = j.weight_count;
    REFUSED(DPCR_ERROR_ARGUMENT, "weights", context, &convs[0], &many, &j.g_out, &j.g_in);
    many = j.w;
    many.strides[many.ndim - 1] = 2;
    REFUSED(DPCR_ERROR_ARGUMENT, "weights and rows contiguous", context, &convs[0], &many, &j.g_out, &j.g_in);
    many.ndim = 7;
    REFUSED(DPCR_ERROR_ARGUMENT, "weights and rows contiguous", context, &convs[0], &many, &j.g_out, &j.g_in);
    many = j.g_in;  // its rows overlap
    many.strides[0] = j.inputs - 1;
    REFUSED(DPCR_ERROR_ARGUMENT, "rows overlap", context, &convs[0], &j.w, &j.g_out, &many);
    many.strides[0] = 0;
    REFUSED(DPCR_ERROR_ARGUMENT, "rows overlap", context, &convs[0], &j.w, &j.g_out, &many);
    many = j.g_out;
    many.strides[0] = 0;  // one gradient for all images is read
    assert_int_equal(dpcr_conv2d_adjoint(context, &convs[0], &j.w, &many, &j.g_in, NULL), DPCR_OK);
    dpcr_array there[] = {j.w, j.g_out, j.g_in};
    for (int i = 0; i < 3; i++) {
        there[i].device.type = i == 1 ? (dpcr_device_type)0 : DPCR_CUDA;
        REFUSED(DPCR_ERROR_UNSUPPORTED, "wanted host memory", context, &convs[0], &there[0], &there[1], &there[2]);
        there[i].device.type = DPCR_HOST;
    }
    dpcr_array words = j.w, words_out = j.g_out, words_in = j.g_in;
    words.dtype = words_out.dtype = words_in.dtype = DPCR_U32;
    REFUSED(DPCR_ERROR_UNSUPPORTED, "float or double", context, &convs[0], &words, &words_out, &words_in);
#undef REFUSED
    drop_job(&j);
    dpcr_context_destroy(context);
}

static void memory_refused(void **state) {
    (void)state;
    int refused = 0, done = 0;
    for (int64_t grants = 0; !done && grants < 60; grants++) {
        budget left = {.left = INT64_MAX};
        const dpcr_context_options options = budget_options(&left);
        dpcr_context *poor = NULL;
        assert_int_equal(dpcr_context_create(&options, &poor, NULL), DPCR_OK);
        job j = make_job(poor, &convs[0], DPCR_F32);
        const int64_t live = left.live;
        left.left = grants;
        done = dpcr_conv2d_adjoint(poor, &convs[0], &j.w, &j.g_out, &j.g_in, NULL) == DPCR_OK;
        refused += !done;
        assert_int_equal(left.live, live);
        left.left = INT64_MAX;
        drop_job(&j);
        dpcr_context_destroy(poor);
        assert_int_equal(left.live, 0);
    }
    assert_true(done && refused == 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(equals_the_jacobian),
                                       cmocka_unit_test(forward_and_gradients_are_adjoint), cmocka_unit_test(refusals),
                                       cmocka_unit_test(memory_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
