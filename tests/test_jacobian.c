// SPDX-License-Identifier: MIT
// Transposed Jacobians of layers against the layers themselves, written as plain loops: entry by entry, by differences,
// and through a whole convolutional network, whose gradients BPPSA gives at every limit on levels.
#include "budget.h"
#include "sparse_common.h"

static dpcr_context *context;

static int open_context(void **state) {
    (void)state;
    const dpcr_context_options options = {.size = sizeof options, .threads = 2};
    return dpcr_context_create(&options, &context, NULL) != DPCR_OK;
}

static int close_context(void **state) {
    (void)state;
    dpcr_context_destroy(context);
    return 0;
}

static dpcr_array matrix(void *data, dpcr_dtype dtype, int64_t rows, int64_t cols) {
    return dpcr_array_make(data, dtype, 2, (const int64_t[]){rows, cols});
}

// ---- the layers ----

static int64_t or_one(int64_t x) { return x ? x : 1; }

static int64_t out_of(const dpcr_conv2d *c, int d) {
    const int64_t in = d ? c->width : c->height;
    return (in + 2 * c->padding[d] - or_one(c->dilation[d]) * (c->kernel[d] - 1) - 1) / or_one(c->stride[d]) + 1;
}

// A[input][output], whole numbers: W summed over the definition z(j,u,v) = sum W[j,a,ky,kx] x(a, u s - p + ky d, ...).
static void conv_entries(const dpcr_conv2d *c, const double *W, double *A) {
    const int64_t oh = out_of(c, 0), ow = out_of(c, 1), groups = or_one(c->groups), per = c->in_channels / groups,
                  outputs = c->out_channels * oh * ow;
    for (int64_t i = 0; i < c->in_channels * c->height * c->width * outputs; i++) A[i] = 0;
    for (int64_t j = 0; j < c->out_channels; j++)
        for (int64_t u = 0; u < oh; u++)
            for (int64_t v = 0; v < ow; v++)
                for (int64_t b = 0; b < per; b++)
                    for (int64_t ky = 0; ky < c->kernel[0]; ky++)
                        for (int64_t kx = 0; kx < c->kernel[1]; kx++) {
                            const int64_t a = j / (c->out_channels / groups) * per + b,
                                          y = u * or_one(c->stride[0]) - c->padding[0] + ky * or_one(c->dilation[0]),
                                          x = v * or_one(c->stride[1]) - c->padding[1] + kx * or_one(c->dilation[1]);
                            if (y < 0 || y >= c->height || x < 0 || x >= c->width) continue;
                            A[((a * c->height + y) * c->width + x) * outputs + (j * oh + u) * ow + v] +=
                                W[((j * per + b) * c->kernel[0] + ky) * c->kernel[1] + kx];
                        }
}

static void pool(const dpcr_pool2d *p, const double *x, double *z, int64_t oh, int64_t ow) {
    for (int64_t c = 0; c < p->channels; c++)
        for (int64_t u = 0; u < oh; u++)
            for (int64_t v = 0; v < ow; v++) {
                double most = -INFINITY;
                for (int64_t ky = 0; ky < p->kernel[0]; ky++)
                    for (int64_t kx = 0; kx < p->kernel[1]; kx++) {
                        const int64_t y = u * (p->stride[0] ? p->stride[0] : p->kernel[0]) - p->padding[0] + ky,
                                      q = v * (p->stride[1] ? p->stride[1] : p->kernel[1]) - p->padding[1] + kx;
                        if (y >= 0 && y < p->height && q >= 0 && q < p->width)
                            most = fmax(most, x[(c * p->height + y) * p->width + q]);
                    }
                z[(c * oh + u) * ow + v] = most;
            }
}

// ---- entry by entry ----

static const dpcr_conv2d convs[] = {
    {sizeof *convs, 2, 3, 5, 5, {3, 3}, {1, 1}, {1, 1}, {0, 0}, 0},
    {sizeof *convs, 2, 3, 7, 6, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 1},
    {sizeof *convs, 1, 2, 6, 9, {5, 5}, {0, 0}, {2, 2}, {0, 0}, 0},
    {sizeof *convs, 3, 2, 4, 6, {2, 2}, {2, 2}, {0, 0}, {0, 0}, 0},
    {sizeof *convs, 1, 1, 7, 8, {3, 3}, {2, 2}, {0, 0}, {0, 0}, 0},
    {sizeof *convs, 4, 6, 5, 4, {3, 2}, {1, 2}, {2, 1}, {1, 1}, 2},
    {sizeof *convs, 3, 3, 6, 6, {3, 3}, {1, 1}, {1, 1}, {0, 0}, 3},
    {sizeof *convs, 2, 2, 9, 8, {3, 3}, {2, 1}, {2, 3}, {2, 3}, 0},
    {sizeof *convs, 2, 4, 1, 1, {1, 1}, {0, 0}, {0, 0}, {0, 0}, 0},
    {sizeof *convs, 1, 2, 3, 11, {1, 4}, {3, 3}, {0, 2}, {5, 2}, 0},
    {sizeof *convs, 1, 2, 3, 3, {2, 2}, {4, 5}, {3, 2}, {0, 0}, 0},
};
enum { CONVS = sizeof convs / sizeof *convs };

static int64_t weights_of(const dpcr_conv2d *c) {
    return c->in_channels / or_one(c->groups) * c->out_channels * c->kernel[0] * c->kernel[1];
}

static void check_conv(const dpcr_conv2d *c, dpcr_dtype dtype, bool prune) {
    const int64_t weights = weights_of(c), oh = out_of(c, 0), ow = out_of(c, 1),
                  inputs = c->in_channels * c->height * c->width, outputs = c->out_channels * oh * ow;
    double *W = room_for(weights), *want = room_for(inputs * outputs);
    void *given = room_for(weights);
    for (int64_t i = 0; i < weights; i++) {
        W[i] = prune && random_below(3) ? 0 : (double)(1 + i);
        put(dtype, given, i, W[i]);
    }
    const dpcr_array source = dpcr_array_make(
        given, dtype, 4,
        (const int64_t[]){c->out_channels, c->in_channels / or_one(c->groups), c->kernel[0], c->kernel[1]});
    dpcr_jacobian *j = NULL;
    dpcr_error error = {0};
    if (dpcr_jacobian_conv2d(context, c, prune ? &source : NULL, &j, &error) != DPCR_OK) fail_msg("%s", error.text);
    const dpcr_transition *t = dpcr_jacobian_transition(j);
    int64_t size[2];
    dpcr_jacobian_output(j, size);
    assert_true(size[0] == oh && size[1] == ow && t->rows == inputs && t->cols == outputs && dpcr_jacobian_shared(j));
    assert_int_equal(dpcr_transition_check(t, NULL), DPCR_OK);
    assert_int_equal(dpcr_pattern_check(t->pattern, NULL), DPCR_OK);
    const int64_t entries = dpcr_transition_values(t);
    void *values = room_for(entries);
    const dpcr_array filled = matrix(values, dtype, 1, entries);
    assert_int_equal(dpcr_jacobian_fill(j, &source, &filled, NULL), DPCR_OK);
    conv_entries(c, W, want);
    void *got = expand(t, dtype, values);
    int64_t nonzero = 0;
    for (int64_t i = 0; i < inputs * outputs; i++) {
        assert_true(get(dtype, got, i) == want[i]);
        nonzero += want[i] != 0;
    }
    assert_int_equal(entries, nonzero);  // nothing else is stored
    free(W), free(want), free(given), free(values), free(got);
    dpcr_jacobian_destroy(j);
}

static void convolutions(void **state) {
    (void)state;
    for (int i = 0; i < CONVS; i++)
        for (int d = 0; d < 3; d++)
            for (int prune = 0; prune < 2; prune++) check_conv(&convs[i], all_dtypes[d], prune);
}

// A25: W[j,a,ky,kx] = 1 + flat index, all-ones gradient.
static void golden_convolution(void **state) {
    (void)state;
    double W[54], g[75], out[50];
    for (int i = 0; i < 54; i++) W[i] = 1 + i;
    for (int i = 0; i < 75; i++) g[i] = 1;
    dpcr_jacobian *j = NULL;
    assert_int_equal(dpcr_jacobian_conv2d(context, &convs[0], NULL, &j, NULL), DPCR_OK);
    const dpcr_transition *t = dpcr_jacobian_transition(j);
    assert_int_equal(dpcr_transition_values(t), 1014);
    double values[1014];
    const dpcr_array source = dpcr_array_make(W, DPCR_F64, 4, (const int64_t[]){3, 2, 3, 3}),
                     filled = matrix(values, DPCR_F64, 1, 1014);
    assert_int_equal(dpcr_jacobian_fill(j, &source, &filled, NULL), DPCR_OK);
    const dpcr_array a = dpcr_array_make(values, DPCR_F64, 3, (const int64_t[]){1, 1, 1014}),
                     x = dpcr_array_make(g, DPCR_F64, 3, (const int64_t[]){1, 1, 75}),
                     y = dpcr_array_make(out, DPCR_F64, 3, (const int64_t[]){1, 1, 50});
    assert_int_equal(dpcr_transition_apply(t, 0, &a, &x, NULL, &y, NULL), DPCR_OK);
    const double first[] = {252, 387, 387, 387, 264}, last[] = {396, 603, 603, 603, 408};
    double total = 0;
    for (int i = 0; i < 50; i++) total += out[i];
    assert_memory_equal(out, first, sizeof first);
    assert_memory_equal(out + 45, last, sizeof last);
    assert_true(out[12] == 621 && total == 27885);
    dpcr_jacobian_destroy(j);
}

static const dpcr_pool2d pools[] = {
    {sizeof *pools, 3, 6, 4, {2, 2}, {0, 0}, {0, 0}}, {sizeof *pools, 1, 7, 5, {3, 2}, {2, 1}, {1, 1}},
    {sizeof *pools, 2, 5, 5, {2, 2}, {0, 0}, {0, 0}}, {sizeof *pools, 2, 4, 4, {3, 3}, {1, 1}, {1, 1}},
    {sizeof *pools, 1, 1, 1, {1, 1}, {1, 1}, {0, 0}}, {sizeof *pools, 1, 9, 9, {2, 2}, {4, 3}, {0, 1}},
};
enum { POOLS = sizeof pools / sizeof *pools, BATCH = 3 };

// Differences of the layer along every input; the pattern holds what a window can reach, one entry an output is 1.
static void max_pools(void **state) {
    (void)state;
    for (int q = 0; q < POOLS; q++)
        for (int d = 0; d < 2; d++) {
            const dpcr_pool2d *p = &pools[q];
            dpcr_jacobian *j = NULL;
            dpcr_error error = {0};
            if (dpcr_jacobian_max_pool2d(context, p, &j, &error) != DPCR_OK) fail_msg("%s", error.text);
            const dpcr_transition *t = dpcr_jacobian_transition(j);
            int64_t size[2];
            dpcr_jacobian_output(j, size);
            assert_int_equal(dpcr_pattern_check(t->pattern, NULL), DPCR_OK);
            assert_false(dpcr_jacobian_shared(j));
            const int64_t entries = dpcr_transition_values(t), in = t->rows, out = t->cols,
                          bytes = (int64_t)dpcr_dtype_size(all_dtypes[d]);
            char *x = room_for(BATCH * in), *values = room_for(BATCH * entries);
            fill_values(all_dtypes[d], false, x, BATCH * in);
            const dpcr_array source = matrix(x, all_dtypes[d], BATCH, in),
                             filled = matrix(values, all_dtypes[d], BATCH, entries);
            assert_int_equal(dpcr_jacobian_fill(j, &source, &filled, NULL), DPCR_OK);
            double *at = room_for(in), *before = room_for(out), *after = room_for(out);
            for (int64_t b = 0; b < BATCH; b++) {
                void *got = expand(t, all_dtypes[d], values + b * entries * bytes);
                for (int64_t i = 0; i < in; i++) at[i] = get(all_dtypes[d], x, b * in + i);
                pool(p, at, before, size[0], size[1]);
                for (int64_t i = 0; i < in; i++) {
                    const double h = 1e-9;  // below the gaps between random numbers
                    at[i] += h;
                    pool(p, at, after, size[0], size[1]);
                    at[i] -= h;
                    for (int64_t o = 0; o < out; o++)
                        assert_true(fabs((after[o] - before[o]) / h - get(all_dtypes[d], got, i * out + o)) < 1e-5);
                }
                free(got);
            }
            free(x), free(values), free(at), free(before), free(after);
            dpcr_jacobian_destroy(j);
        }
}

// The first of equals, row by row; the last NaN.
static void ties_and_nan(void **state) {
    (void)state;
    const dpcr_pool2d p = {sizeof p, 1, 2, 2, {2, 2}, {0, 0}, {0, 0}};
    const float x[][4] = {{1, 2, 2, 0}, {3, 3, 3, 3}, {1, NAN, 5, 2}, {NAN, 1, NAN, 4}, {-INFINITY, -INFINITY, -1, -1}};
    const int64_t largest[] = {1, 0, 1, 2, 2};
    dpcr_jacobian *j = NULL, *relu = NULL;
    assert_int_equal(dpcr_jacobian_max_pool2d(context, &p, &j, NULL), DPCR_OK);
    for (int i = 0; i < 5; i++) {
        float values[4];
        const dpcr_array source = matrix((void *)x[i], DPCR_F32, 1, 4), filled = matrix(values, DPCR_F32, 1, 4);
        assert_int_equal(dpcr_jacobian_fill(j, &source, &filled, NULL), DPCR_OK);
        for (int k = 0; k < 4; k++) assert_true(values[k] == (k == largest[i]));
    }
    dpcr_jacobian_destroy(j);
    const float u[] = {-1, 0, -0.0f, 2, NAN, INFINITY}, want[] = {0, 0, 0, 1, 1, 1};
    float slopes[6];
    const dpcr_array source = matrix((void *)u, DPCR_F32, 1, 6), filled = matrix(slopes, DPCR_F32, 1, 6);
    assert_int_equal(dpcr_jacobian_relu(context, 6, &relu, NULL), DPCR_OK);
    assert_int_equal(dpcr_jacobian_transition(relu)->structure, DPCR_DIAGONAL);
    assert_int_equal(dpcr_jacobian_fill(relu, &source, &filled, NULL), DPCR_OK);
    assert_memory_equal(slopes, want, sizeof want);
    dpcr_jacobian_destroy(relu);
}

static void linears(void **state) {
    (void)state;
    for (int prune = 0; prune < 2; prune++) {
        double W[7 * 5], values[35];
        for (int i = 0; i < 35; i++) W[i] = prune && i % 3 ? 0 : i + 1;
        const dpcr_array source = matrix(W, DPCR_F64, 7, 5);
        dpcr_jacobian *j = NULL;
        assert_int_equal(dpcr_jacobian_linear(context, 5, 7, prune ? &source : NULL, &j, NULL), DPCR_OK);
        const dpcr_transition *t = dpcr_jacobian_transition(j);
        const int64_t entries = dpcr_transition_values(t);
        assert_int_equal(entries, prune ? 12 : 35);
        const dpcr_array filled = matrix(values, DPCR_F64, 1, entries);
        assert_int_equal(dpcr_jacobian_fill(j, &source, &filled, NULL), DPCR_OK);
        double *got = expand(t, DPCR_F64, values);
        for (int i = 0; i < 5; i++)
            for (int o = 0; o < 7; o++) assert_true(got[i * 7 + o] == W[o * 5 + i]);
        free(got);
        dpcr_jacobian_destroy(j);
    }
}

// ---- a network: conv, relu, pool, conv, relu, pool, linear, relu, linear ----

enum { LAYERS = 9, SAMPLES = 5 };
static const dpcr_conv2d net_convs[] = {{sizeof *convs, 1, 4, 12, 12, {3, 3}, {0, 0}, {1, 1}, {0, 0}, 0},
                                        {sizeof *convs, 4, 6, 6, 6, {3, 3}, {0, 0}, {0, 0}, {0, 0}, 0}};
static const dpcr_pool2d net_pools[] = {{sizeof *pools, 4, 12, 12, {2, 2}, {0, 0}, {0, 0}},
                                        {sizeof *pools, 6, 4, 4, {2, 2}, {0, 0}, {0, 0}}};

typedef struct network {
    dpcr_jacobian *jacobians[LAYERS];
    dpcr_transition steps[LAYERS];
    unsigned char shared[LAYERS];
    double *weights[LAYERS];
    dpcr_array source[LAYERS];
} network;

static network make_network(void) {
    network n = {0};
    const int64_t counts[LAYERS] = {36, 0, 0, 216, 0, 0, 24 * 10, 0, 30};
    for (int l = 0; l < LAYERS; l++)
        if (counts[l]) {
            n.weights[l] = room_for(counts[l]);
            for (int64_t i = 0; i < counts[l]; i++) n.weights[l][i] = random_below(2) ? random_signed() / 2 : 0;
            n.source[l] = dpcr_array_make(n.weights[l], DPCR_F64, 1, &counts[l]);
        }
    dpcr_jacobian **j = n.jacobians;
    assert_int_equal(dpcr_jacobian_conv2d(context, &net_convs[0], &n.source[0], &j[0], NULL), DPCR_OK);
    assert_int_equal(dpcr_jacobian_relu(context, 576, &j[1], NULL), DPCR_OK);
    assert_int_equal(dpcr_jacobian_max_pool2d(context, &net_pools[0], &j[2], NULL), DPCR_OK);
    assert_int_equal(dpcr_jacobian_conv2d(context, &net_convs[1], &n.source[3], &j[3], NULL), DPCR_OK);
    assert_int_equal(dpcr_jacobian_relu(context, 96, &j[4], NULL), DPCR_OK);
    assert_int_equal(dpcr_jacobian_max_pool2d(context, &net_pools[1], &j[5], NULL), DPCR_OK);
    assert_int_equal(dpcr_jacobian_linear(context, 24, 10, &n.source[6], &j[6], NULL), DPCR_OK);
    assert_int_equal(dpcr_jacobian_relu(context, 10, &j[7], NULL), DPCR_OK);
    assert_int_equal(dpcr_jacobian_linear(context, 10, 3, &n.source[8], &j[8], NULL), DPCR_OK);
    for (int l = 0; l < LAYERS; l++) {
        n.steps[l] = *dpcr_jacobian_transition(j[l]);
        n.shared[l] = (unsigned char)dpcr_jacobian_shared(j[l]);
    }
    return n;
}

// Layer l by its own loop.
static void forward_layer(const network *n, int l, const double *x, double *z) {
    const int64_t in = n->steps[l].rows, out = n->steps[l].cols;
    if (l == 1 || l == 4 || l == 7) {
        for (int64_t i = 0; i < in; i++) z[i] = x[i] > 0 ? x[i] : 0;
    } else if (l == 2 || l == 5) {
        pool(&net_pools[l / 3], x, z, l == 2 ? 6 : 2, l == 2 ? 6 : 2);
    } else {
        double *A = room_for(in * out);
        if (l < 6)
            conv_entries(&net_convs[l / 3], n->weights[l], A);
        else
            for (int64_t i = 0; i < in; i++)
                for (int64_t o = 0; o < out; o++) A[i * out + o] = n->weights[l][o * in + i];
        for (int64_t o = 0; o < out; o++) {
            z[o] = 0;
            for (int64_t i = 0; i < in; i++) z[o] += A[i * out + o] * x[i];
        }
        free(A);
    }
}

// Sum of squares over two of what comes out of layers l.. from x.
static double loss_from(const network *n, int l, const double *x) {
    double z[2][600], loss = 0;
    memcpy(z[l % 2], x, (size_t)n->steps[l].rows * sizeof *x);
    for (; l < LAYERS; l++) forward_layer(n, l, z[l % 2], z[(l + 1) % 2]);
    for (int o = 0; o < 3; o++) loss += z[LAYERS % 2][o] * z[LAYERS % 2][o] / 2;
    return loss;
}

static void whole_network(void **state) {
    (void)state;
    network n = make_network();
    double *states[LAYERS + 1], *gradients[LAYERS], *numbers[LAYERS];
    dpcr_array values[LAYERS], out[LAYERS];
    states[0] = room_for(SAMPLES * 144);
    fill_values(DPCR_F64, false, states[0], SAMPLES * 144);
    for (int l = 0; l < LAYERS; l++) {
        const int64_t in = n.steps[l].rows, width = n.steps[l].cols, rows = n.shared[l] ? 1 : SAMPLES,
                      entries = dpcr_transition_values(&n.steps[l]);
        states[l + 1] = room_for(SAMPLES * width);
        gradients[l] = room_for(SAMPLES * in);
        numbers[l] = room_for(rows * entries);
        for (int b = 0; b < SAMPLES; b++) forward_layer(&n, l, states[l] + b * in, states[l + 1] + b * width);
        values[l] = matrix(numbers[l], DPCR_F64, rows, entries);
        out[l] = matrix(gradients[l], DPCR_F64, SAMPLES, in);
        const dpcr_array inputs = matrix(states[l], DPCR_F64, SAMPLES, in);
        assert_int_equal(dpcr_jacobian_fill(n.jacobians[l], n.shared[l] ? &n.source[l] : &inputs, &values[l], NULL),
                         DPCR_OK);
    }
    const dpcr_array last = matrix(states[LAYERS], DPCR_F64, SAMPLES, 3);  // the loss's gradient is its argument
    for (int levels = 0; levels <= 5; levels++) {
        const dpcr_bppsa_shape shape = {.size = sizeof shape,
                                        .length = LAYERS,
                                        .batch = SAMPLES,
                                        .steps = n.steps,
                                        .shared = n.shared,
                                        .dtype = DPCR_F64};
        const dpcr_bppsa_options options = {.size = sizeof options, .levels = levels};
        dpcr_bppsa_plan *plan = NULL;
        assert_int_equal(dpcr_bppsa_plan_create(context, &shape, &options, &plan, NULL), DPCR_OK);
        const size_t bytes = dpcr_bppsa_plan_workspace(plan);
        void *workspace = aligned_alloc(64, bytes / 64 * 64 + 64);
        assert_int_equal(dpcr_bppsa_execute(plan, values, &last, out, workspace, bytes, NULL), DPCR_OK);
        int compared = 0;
        for (int l = 0; l < LAYERS; l++) {
            const int64_t in = n.steps[l].rows;
            double most = 0;
            for (int64_t i = 0; i < SAMPLES * in; i++) most = fmax(most, fabs(gradients[l][i]));
            assert_true(most > 0);
            for (int k = 0; k < 24; k++) {
                const int64_t b = random_below(SAMPLES), i = random_below(in);
                double *x = states[l] + b * in, h = 1e-6, kept = x[i], above, below;
                if (l == 1 || l == 4 || l == 7)
                    if (fabs(x[i]) < 1e-4) continue;  // beside a kink
                x[i] = kept + h;
                above = loss_from(&n, l, x);
                x[i] = kept - h;
                below = loss_from(&n, l, x);
                x[i] = kept;
                const double middle = loss_from(&n, l, x);
                if (fabs((above - middle) - (middle - below)) > 1e-3 * most * h) continue;  // a kink further on
                assert_true(fabs((above - below) / (2 * h) - gradients[l][b * in + i]) <= 1e-5 * most);
                compared++;
            }
        }
        assert_true(compared > 3 * LAYERS * 24 / 4);
        free(workspace);
        dpcr_bppsa_plan_destroy(plan);
    }
    for (int l = 0; l < LAYERS; l++) {
        free(states[l]), free(gradients[l]), free(numbers[l]), free(n.weights[l]);
        dpcr_jacobian_destroy(n.jacobians[l]);
    }
    free(states[LAYERS]);
}

// ---- what is refused ----

static void refusals(void **state) {
    (void)state;
    dpcr_error e = {0};
    dpcr_jacobian *j = NULL;
    dpcr_conv2d c = convs[0];
    dpcr_pool2d p = pools[0];
#define CONV() dpcr_jacobian_conv2d(context, &c, NULL, &j, &e)
#define POOL() dpcr_jacobian_max_pool2d(context, &p, &j, &e)
    expect(dpcr_jacobian_conv2d(NULL, &c, NULL, &j, &e), DPCR_ERROR_ARGUMENT, &e, "context is NULL");
    expect(dpcr_jacobian_conv2d(context, &c, NULL, NULL, &e), DPCR_ERROR_ARGUMENT, &e, "jacobian is NULL");
    expect(dpcr_jacobian_conv2d(context, NULL, NULL, &j, &e), DPCR_ERROR_ARGUMENT, &e, "layer is NULL");
    c.size = 4;
    expect(CONV(), DPCR_ERROR_ARGUMENT, &e, "size");
    c = convs[0], c.groups = 2;
    expect(CONV(), DPCR_ERROR_ARGUMENT, &e, "2 to 3 channels in 2 groups");
    c = convs[0], c.in_channels = 0;
    expect(CONV(), DPCR_ERROR_ARGUMENT, &e, "channels");
    c = convs[0], c.kernel[1] = 8;
    expect(CONV(), DPCR_ERROR_ARGUMENT, &e, "reaches over 8 of 7");
    c = convs[0], c.padding[0] = -1;
    expect(CONV(), DPCR_ERROR_ARGUMENT, &e, "padding -1");
    c = convs[0], c.stride[0] = -2;
    expect(CONV(), DPCR_ERROR_ARGUMENT, &e, "stride -2");
    c = convs[0], c.height = c.width = 1 << 20;
    expect(CONV(), DPCR_ERROR_OVERFLOW, &e, "2^31");
    double W[54] = {0}, values[2000];
    dpcr_array source = dpcr_array_make(W, DPCR_F64, 1, (const int64_t[]){53});
    expect(dpcr_jacobian_conv2d(context, &convs[0], &source, &j, &e), DPCR_ERROR_ARGUMENT, &e,
           "pruned is [53] float64, wanted 54");
    source.shape[0] = 54, source.strides[0] = 2;
    expect(dpcr_jacobian_conv2d(context, &convs[0], &source, &j, &e), DPCR_ERROR_ARGUMENT, &e, "contiguous");
    p.padding[0] = 2;
    expect(POOL(), DPCR_ERROR_ARGUMENT, &e, "at most half");
    p = pools[0], p.size = 0;
    expect(POOL(), DPCR_ERROR_ARGUMENT, &e, "size");
    p = pools[0], p.kernel[0] = 7;
    expect(POOL(), DPCR_ERROR_ARGUMENT, &e, "reaches over 7 of 6");
    expect(dpcr_jacobian_relu(context, 0, &j, &e), DPCR_ERROR_ARGUMENT, &e, "positive");
    expect(dpcr_jacobian_linear(context, 0, 3, NULL, &j, &e), DPCR_ERROR_ARGUMENT, &e, "0 inputs");
    expect(dpcr_jacobian_linear(context, 1 << 20, 1 << 20, NULL, &j, &e), DPCR_ERROR_ARGUMENT, &e, "2^31");
    assert_null(j);
#undef CONV
#undef POOL
    assert_int_equal(dpcr_jacobian_conv2d(context, &convs[0], NULL, &j, NULL), DPCR_OK);
    source.strides[0] = 1;
    dpcr_array filled = matrix(values, DPCR_F64, 1, 1014);
    assert_int_equal(dpcr_jacobian_fill(j, &source, &filled, NULL), DPCR_OK);
    expect(dpcr_jacobian_fill(NULL, &source, &filled, &e), DPCR_ERROR_ARGUMENT, &e, "jacobian is NULL");
    expect(dpcr_jacobian_fill(j, &source, NULL, &e), DPCR_ERROR_ARGUMENT, &e, "values is NULL");
    expect(dpcr_jacobian_fill(j, NULL, &filled, &e), DPCR_ERROR_ARGUMENT, &e, "source is NULL");
    filled.dtype = DPCR_F32;
    expect(dpcr_jacobian_fill(j, &source, &filled, &e), DPCR_ERROR_ARGUMENT, &e, "one dtype");
    filled.dtype = DPCR_F64, filled.shape[1] = 1013;
    expect(dpcr_jacobian_fill(j, &source, &filled, &e), DPCR_ERROR_ARGUMENT, &e, "values is");
    dpcr_jacobian_destroy(j);
    assert_int_equal(dpcr_jacobian_relu(context, 4, &j, NULL), DPCR_OK);
    filled = matrix(values, DPCR_U32, 1, 4);
    expect(dpcr_jacobian_fill(j, &source, &filled, &e), DPCR_ERROR_UNSUPPORTED, &e, "uint32");
    filled = matrix(values, DPCR_F64, 2, 4);
    expect(dpcr_jacobian_fill(j, &source, &filled, &e), DPCR_ERROR_ARGUMENT, &e, "source is");
    dpcr_jacobian_destroy(j);
    dpcr_jacobian_destroy(NULL);
}

static void memory_refused(void **state) {
    (void)state;
    double W[54] = {1, 0, 2};
    const dpcr_array source = dpcr_array_make(W, DPCR_F64, 1, (const int64_t[]){54});
    int refused = 0, done = 0;
    for (int64_t grants = 0; !done && grants < 40; grants++) {
        budget left = {.left = grants};
        const dpcr_context_options options = budget_options(&left);
        dpcr_context *poor = NULL;
        dpcr_error error = {0};
        dpcr_jacobian *j = NULL;
        if (dpcr_context_create(&options, &poor, NULL) != DPCR_OK) continue;
        if (dpcr_jacobian_conv2d(poor, &convs[0], &source, &j, &error) == DPCR_OK) {
            done = 1;
        } else {
            expect(error.status, DPCR_ERROR_MEMORY, &error, "refused");
            assert_null(j);
            refused++;
        }
        dpcr_jacobian_destroy(j);
        dpcr_context_destroy(poor);
        assert_int_equal(left.live, 0);
    }
    assert_true(done && refused == 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(convolutions), cmocka_unit_test(golden_convolution),
                                       cmocka_unit_test(max_pools),    cmocka_unit_test(ties_and_nan),
                                       cmocka_unit_test(linears),      cmocka_unit_test(whole_network),
                                       cmocka_unit_test(refusals),     cmocka_unit_test(memory_refused)};
    return cmocka_run_group_tests(tests, open_context, close_context);
}
