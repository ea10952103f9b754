// SPDX-License-Identifier: MIT
// The networks of bench bppsa, random weights and inputs:
//
//   mlp     784 - 256 - 256 - 256 - 10 with ReLU        lenet  LeNet-5 with ReLU and max-pooling, images 28x28
//   vgg11   the CIFAR-10 form: 8 convolutions 3x3, 5 max-pools, one linear layer; images 3x32x32
//   rnn     h <- tanh(W h + x), a dense and a diagonal step each time; W and x so that gradients neither grow nor
//           vanish within some thousand steps
//
// The others' weights are drawn for ReLU (He), the smallest taken out, and what is left scaled to the norm that was
// drawn for.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench_bppsa.h"

const char *const bppsa_networks[BPPSA_NETWORKS] = {"mlp", "lenet", "vgg11", "rnn"};

enum { STREAM_INPUT = 71, STREAM_END, STREAM_WEIGHTS };
static const double rnn_gain = 1.4, rnn_input = 0.1;  // norm of W by that of N(0, 1/w); deviation of x

// What is under way: the network, and the states that come out of its last step so far.
typedef struct maker {
    dpcr_context *context;
    const bppsa_asked *asked;
    bppsa_network *n;
    dpcr_array state;                 // [1][B][w]
    int64_t channels, height, width;  // of images
    dpcr_error error;
} maker;

static int fail(maker *m) { return cli_fail_error(&m->error, CLI_COMPUTING); }

// ---- weights ----

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int draw(maker *m, int64_t count, int64_t fan_in, dpcr_array *weights) {
    const bppsa_asked *a = m->asked;
    const double gain = !strcmp(bppsa_networks[a->network], "rnn") ? rnn_gain * rnn_gain : 2,
                 wanted = gain * (double)count / (double)fan_in;
    if (!cli_array_create(a->dtype, 1, &count, weights)) return CLI_RESOURCES;
    cli_array_normal(weights, a->common.seed, STREAM_WEIGHTS + (uint64_t)m->n->length);
    double *sizes = cli_allocate((size_t)count * sizeof *sizes), squares = 0;
    if (!sizes) return cli_fail_memory("weights");
    for (int64_t i = 0; i < count; i++) sizes[i] = fabs(cli_array_get(weights, i));
    qsort(sizes, (size_t)count, sizeof *sizes, by_size);
    const int64_t out = (int64_t)floor(a->prune * (double)count);
    const double least = out > 0 && out < count ? sizes[out] : out > 0 ? HUGE_VAL : 0;
    cli_release(sizes);
    for (int64_t i = 0; i < count; i++) {
        const double w = cli_array_get(weights, i);
        if (fabs(w) < least) cli_array_set(weights, i, 0);
        squares += fabs(w) < least ? 0 : w * w;
    }
    const double scale = squares > 0 ? sqrt(wanted / squares) : 0;
    for (int64_t i = 0; i < count; i++) {
        const double w = cli_array_get(weights, i);
        cli_array_set(weights, i, scale * w);
        m->n->kept += w != 0;
    }
    m->n->weights += count;
    return CLI_DONE;
}

// Some hundred million numbers, drawn and sorted, take a minute: a signal ends the program, of which nothing is kept.
static int draw_weights(maker *m, int64_t count, int64_t fan_in, dpcr_array *weights) {
    const bool before = cli_signals_at_once(true);
    const int status = draw(m, count, fan_in, weights);
    cli_signals_at_once(before);
    return status;
}

// ---- steps ----

static int create_values(const bppsa_network *n, const dpcr_transition *t, bool shared, dpcr_array *values) {
    const int64_t shape[] = {shared ? 1 : n->batch, dpcr_transition_values(t)};
    return cli_array_create(n->dtype, 2, shape, values) ? CLI_DONE : CLI_RESOURCES;
}

static dpcr_array rows_of(const dpcr_array *state) {
    return dpcr_array_make(state->data, state->dtype, 2, state->shape + 1);
}

// z_out = (A^T) z_in, for what is linear.
static int advance_linearly(maker *m, const dpcr_transition *t, const dpcr_array *values) {
    const int64_t shape[] = {1, m->n->batch, t->cols}, one[] = {1, 1, dpcr_transition_values(t)};
    const dpcr_array a = dpcr_array_make(values->data, values->dtype, 3, one);
    dpcr_array next;
    if (!cli_array_create(m->n->dtype, 3, shape, &next)) return CLI_RESOURCES;
    const dpcr_status status = dpcr_transition_apply(t, 1, &a, &m->state, NULL, &next, &m->error);
    cli_array_destroy(&m->state);
    m->state = next;
    return status == DPCR_OK ? CLI_DONE : fail(m);
}

// A linear or convolutional step: j, and `full` where weights were pruned (else NULL). Takes all over.
static int add_weighted(maker *m, dpcr_jacobian *j, dpcr_jacobian *full, dpcr_array weights) {
    bppsa_network *n = m->n;
    const int64_t l = n->length++;
    n->jacobians[l] = j;
    n->full_jacobians[l] = full;
    n->parameters[l] = weights;
    n->shared[l] = 1;
    n->steps[l] = n->full_steps[l] = *dpcr_jacobian_transition(j);
    int status = create_values(n, &n->steps[l], true, &n->values[l]);
    if (!status && dpcr_jacobian_fill(j, &weights, &n->values[l], &m->error) != DPCR_OK) status = fail(m);
    if (!status && full) {
        n->full_steps[l] = *dpcr_jacobian_transition(full);
        status = create_values(n, &n->full_steps[l], true, &n->full_values[l]);
        if (!status && dpcr_jacobian_fill(full, &weights, &n->full_values[l], &m->error) != DPCR_OK) status = fail(m);
    }
    return status ? status : advance_linearly(m, &n->steps[l], &n->values[l]);
}

static int add_linear(maker *m, int64_t outputs) {
    const int64_t inputs = m->state.shape[2];
    dpcr_array weights = {0};
    dpcr_jacobian *j = NULL, *full = NULL;
    if (cli_signal()) return cli_fail_stopped();
    int status = draw_weights(m, inputs * outputs, inputs, &weights);
    if (!status &&
        (dpcr_jacobian_linear(m->context, inputs, outputs, &weights, &j, &m->error) != DPCR_OK ||
         (m->asked->prune > 0 && dpcr_jacobian_linear(m->context, inputs, outputs, NULL, &full, &m->error) != DPCR_OK)))
        status = fail(m);
    if (!status) return add_weighted(m, j, full, weights);
    dpcr_jacobian_destroy(j);
    cli_array_destroy(&weights);
    return status;
}

static int add_conv(maker *m, int64_t out_channels, int64_t kernel, int64_t padding) {
    const dpcr_conv2d layer = {.size = sizeof layer,
                               .in_channels = m->channels,
                               .out_channels = out_channels,
                               .height = m->height,
                               .width = m->width,
                               .kernel = {kernel, kernel},
                               .padding = {padding, padding}};
    const int64_t fan_in = m->channels * kernel * kernel;
    dpcr_array weights = {0};
    dpcr_jacobian *j = NULL, *full = NULL;
    int64_t size[2] = {0};
    if (cli_signal()) return cli_fail_stopped();
    int status = draw_weights(m, fan_in * out_channels, fan_in, &weights);
    if (!status &&
        (dpcr_jacobian_conv2d(m->context, &layer, &weights, &j, &m->error) != DPCR_OK ||
         (m->asked->prune > 0 && dpcr_jacobian_conv2d(m->context, &layer, NULL, &full, &m->error) != DPCR_OK)))
        status = fail(m);
    if (status) {
        dpcr_jacobian_destroy(j);
        cli_array_destroy(&weights);
        return status;
    }
    dpcr_jacobian_output(j, size);
    m->channels = out_channels;
    m->height = size[0];
    m->width = size[1];
    return add_weighted(m, j, full, weights);
}

// A step of values that differ from sequence to sequence; takes the jacobian over.
static int add_sampled(maker *m, dpcr_jacobian *j) {
    bppsa_network *n = m->n;
    const int64_t l = n->length++;
    const dpcr_array source = rows_of(&m->state);
    n->jacobians[l] = j;
    n->steps[l] = n->full_steps[l] = *dpcr_jacobian_transition(j);
    const int status = create_values(n, &n->steps[l], false, &n->values[l]);
    if (status) return status;
    return dpcr_jacobian_fill(j, &source, &n->values[l], &m->error) == DPCR_OK ? CLI_DONE : fail(m);
}

static int add_relu(maker *m) {
    dpcr_jacobian *j = NULL;
    if (dpcr_jacobian_relu(m->context, m->state.shape[2], &j, &m->error) != DPCR_OK) return fail(m);
    const int status = add_sampled(m, j);
    for (int64_t i = 0; !status && i < cli_array_count(&m->state); i++)
        if (cli_array_get(&m->state, i) < 0) cli_array_set(&m->state, i, 0);
    return status;
}

// Each output is the sum over its column of A times the input: A has one 1 there.
static int add_max_pool(maker *m) {
    const dpcr_pool2d layer = {
        .size = sizeof layer, .channels = m->channels, .height = m->height, .width = m->width, .kernel = {2, 2}};
    dpcr_jacobian *j = NULL;
    int64_t size[2] = {0};
    if (dpcr_jacobian_max_pool2d(m->context, &layer, &j, &m->error) != DPCR_OK) return fail(m);
    dpcr_jacobian_output(j, size);
    m->height = size[0];
    m->width = size[1];
    const int status = add_sampled(m, j);
    if (status) return status;
    const dpcr_transition *t = &m->n->steps[m->n->length - 1];
    const dpcr_array *values = &m->n->values[m->n->length - 1];
    const int64_t shape[] = {1, m->n->batch, t->cols}, all[] = {1, m->n->batch, values->shape[1]};
    const dpcr_array a = dpcr_array_make(values->data, values->dtype, 3, all);
    dpcr_array next;
    if (!cli_array_create(m->n->dtype, 3, shape, &next)) return CLI_RESOURCES;
    const dpcr_status done = dpcr_transition_apply(t, 1, &a, &m->state, NULL, &next, &m->error);
    cli_array_destroy(&m->state);
    m->state = next;
    return done == DPCR_OK ? CLI_DONE : fail(m);
}

// ---- networks ----

static int start_images(maker *m, int64_t channels, int64_t height, int64_t width) {
    const int64_t shape[] = {1, m->n->batch, channels * height * width};
    m->channels = channels;
    m->height = height;
    m->width = width;
    if (!cli_array_create(m->n->dtype, 3, shape, &m->state)) return CLI_RESOURCES;
    cli_array_normal(&m->state, m->asked->common.seed, STREAM_INPUT);
    return CLI_DONE;
}

static int make_mlp(maker *m) {
    int status = start_images(m, 1, 28, 28);
    for (int i = 0; !status && i < 3; i++) {
        status = add_linear(m, 256 / m->asked->divisor > 0 ? 256 / m->asked->divisor : 1);
        if (!status) status = add_relu(m);
    }
    return status ? status : add_linear(m, 10);
}

static int add_block(maker *m, int64_t channels, int64_t kernel, int64_t padding, bool pool) {
    int status = add_conv(m, channels, kernel, padding);
    if (!status) status = add_relu(m);
    return !status && pool ? add_max_pool(m) : status;
}

static int make_lenet(maker *m) {
    int status = start_images(m, 1, 28, 28);
    if (!status) status = add_block(m, 6, 5, 2, true);
    if (!status) status = add_block(m, 16, 5, 0, true);
    if (!status) status = add_linear(m, 120);
    if (!status) status = add_relu(m);
    if (!status) status = add_linear(m, 84);
    if (!status) status = add_relu(m);
    return status ? status : add_linear(m, 10);
}

static int make_vgg11(maker *m) {
    static const struct {
        int64_t channels;
        bool pool;
    } blocks[] = {{64, true},   {128, true}, {256, false}, {256, true},
                  {512, false}, {512, true}, {512, false}, {512, true}};
    int status = start_images(m, 3, 32, 32);
    for (size_t i = 0; !status && i < sizeof blocks / sizeof *blocks; i++) {
        const int64_t channels = blocks[i].channels / m->asked->divisor;
        status = add_block(m, channels > 0 ? channels : 1, 3, 1, blocks[i].pool);
    }
    return status ? status : add_linear(m, 10);
}

static int make_rnn(maker *m) {
    bppsa_network *n = m->n;
    const int64_t w = m->asked->width, shape[] = {1, n->batch, w}, square[] = {1, w * w};
    dpcr_array weights = {0}, h, x;
    int status = draw_weights(m, w * w, w, &weights);
    n->parameters[0] = weights;
    if (status) return status;
    if (!cli_array_create(n->dtype, 3, shape, &m->state)) return CLI_RESOURCES;
    for (int64_t t = 0; !status && t < m->asked->length; t++) {
        const int64_t l = n->length;
        if (cli_signal()) return cli_fail_stopped();
        n->length += 2;
        n->steps[l] = n->full_steps[l] = dpcr_transition_square(DPCR_DENSE, w, 0);
        n->steps[l + 1] = n->full_steps[l + 1] = dpcr_transition_square(DPCR_DIAGONAL, w, 0);
        n->shared[l] = 1;
        status = create_values(n, &n->steps[l], true, &n->values[l]);
        if (!status) status = create_values(n, &n->steps[l + 1], false, &n->values[l + 1]);
        for (int64_t i = 0; !status && i < square[1]; i++)  // A = W^T
            cli_array_set(&n->values[l], i % w * w + i / w, cli_array_get(&weights, i));
        if (!status) status = advance_linearly(m, &n->steps[l], &n->values[l]);
        h = m->state;
        if (!status && !cli_array_create(n->dtype, 3, shape, &x)) status = CLI_RESOURCES;
        if (status) break;
        cli_array_normal(&x, m->asked->common.seed, STREAM_INPUT + ((uint64_t)t << 8));
        for (int64_t i = 0; i < cli_array_count(&h); i++) {
            const double y = tanh(cli_array_get(&h, i) + rnn_input * cli_array_get(&x, i));
            cli_array_set(&h, i, y);
            cli_array_set(&n->values[l + 1], i, 1 - y * y);
        }
        cli_array_destroy(&x);
    }
    return status;
}

static bool reserve(bppsa_network *n, int64_t capacity) {
    const size_t c = (size_t)capacity;
    n->capacity = capacity;
    return (n->jacobians = calloc(c, sizeof(dpcr_jacobian *))) &&
           (n->full_jacobians = calloc(c, sizeof(dpcr_jacobian *))) && (n->steps = calloc(c, sizeof *n->steps)) &&
           (n->full_steps = calloc(c, sizeof *n->full_steps)) && (n->values = calloc(c, sizeof *n->values)) &&
           (n->full_values = calloc(c, sizeof *n->full_values)) && (n->parameters = calloc(c, sizeof *n->parameters)) &&
           (n->shared = calloc(c, 1));
}

int bppsa_network_create(dpcr_context *context, const bppsa_asked *asked, bppsa_network *n) {
    static int (*const make[BPPSA_NETWORKS])(maker *) = {make_mlp, make_lenet, make_vgg11, make_rnn};
    maker m = {.context = context, .asked = asked, .n = n};
    *n = (bppsa_network){.dtype = asked->dtype, .batch = asked->batch};
    if (asked->length > INT32_MAX || !reserve(n, 2 * asked->length + 40)) return cli_fail_memory("the network");
    int status = make[asked->network](&m);
    if (!status) {
        const int64_t shape[] = {n->batch, n->full_steps[n->length - 1].cols};
        status = cli_array_create(n->dtype, 2, shape, &n->last) ? CLI_DONE : CLI_RESOURCES;
        if (!status) cli_array_normal(&n->last, asked->common.seed, STREAM_END);
    }
    for (int64_t l = 0; l < n->length; l++)
        if (!n->full_values[l].data) n->full_values[l] = n->values[l];
    cli_array_destroy(&m.state);
    return status;
}

void bppsa_network_destroy(bppsa_network *n) {
    for (int64_t l = 0; l < n->capacity && n->shared; l++) {
        if (n->full_values[l].data != n->values[l].data) cli_array_destroy(&n->full_values[l]);
        cli_array_destroy(&n->values[l]);
        cli_array_destroy(&n->parameters[l]);
        dpcr_jacobian_destroy(n->jacobians[l]);
        dpcr_jacobian_destroy(n->full_jacobians[l]);
    }
    cli_array_destroy(&n->last);
    free(n->jacobians), free(n->full_jacobians), free(n->steps), free(n->full_steps);
    free(n->values), free(n->full_values), free(n->parameters), free(n->shared);
}

dpcr_status bppsa_network_refill(const bppsa_network *n, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    for (int64_t l = 0; status == DPCR_OK && l < n->length; l++)
        if (n->jacobians[l] && n->parameters[l].data)
            status = dpcr_jacobian_fill(n->jacobians[l], &n->parameters[l], &n->values[l], error);
    return status;
}
