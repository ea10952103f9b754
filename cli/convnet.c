// SPDX-License-Identifier: MIT
// A pruned VGG-11: forward by its sparse Jacobians transposed, back by BPPSA, by the loop over the same Jacobians, or
// by dense products.
#include "convnet.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STREAM_WEIGHTS = 171 };

const char *const convnet_ways[CONVNET_WAYS] = {"scan", "loop", "dense"};

typedef struct maker {
    convnet *net;
    int64_t channels, side, divisor;
    double prune;
    uint64_t seed;
    dpcr_error error;
} maker;

static int fail(const dpcr_error *error) { return cli_fail_error(error, CLI_COMPUTING); }

// ---- making it ----

static int by_size(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

// He's distribution, the smallest taken out, what is left scaled to the norm that was drawn for.
static int draw(maker *m, convnet_layer *l, int64_t fan_in) {
    const int64_t n = l->weight_count, out = (int64_t)floor(m->prune * (double)n);
    double squares = 0;
    l->weights = malloc((size_t)n * sizeof *l->weights);
    l->kept = calloc((size_t)(n - out), sizeof *l->kept);
    float *sizes = malloc((size_t)n * sizeof *sizes);
    if (!l->weights || !l->kept || !sizes) {
        free(sizes);
        return cli_fail_memory("the weights");
    }
    for (int64_t i = 0; i < n; i++) {
        l->weights[i] = (float)cli_normal(m->seed, STREAM_WEIGHTS + (uint64_t)m->net->count, (uint64_t)i);
        sizes[i] = fabsf(l->weights[i]);
    }
    qsort(sizes, (size_t)n, sizeof *sizes, by_size);
    const float least = sizes[out];
    free(sizes);
    for (int64_t i = 0; i < n; i++) {
        if (fabsf(l->weights[i]) < least || l->kept_count == n - out || l->weights[i] == 0) {
            l->weights[i] = 0;
            continue;
        }
        l->kept[l->kept_count++] = (int32_t)i;
        squares += (double)l->weights[i] * l->weights[i];
    }
    const double scale = sqrt(2.0 * (double)n / (double)fan_in / squares);
    for (int64_t i = 0; i < l->kept_count; i++) l->weights[l->kept[i]] *= (float)scale;
    return CLI_DONE;
}

static convnet_layer *next_layer(maker *m, int kind) {
    convnet_layer *l = &m->net->layers[m->net->count];
    l->kind = kind;
    return l;
}

// Values, output; the layer counts from here on.
static int finish_layer(maker *m, convnet_layer *l) {
    convnet *net = m->net;
    l->transition = *dpcr_jacobian_transition(l->jacobian);
    const int64_t rows = dpcr_jacobian_shared(l->jacobian) ? 1 : net->batch;
    net->count++;
    if (!cli_array_create(DPCR_F32, 2, (const int64_t[]){rows, dpcr_transition_values(&l->transition)}, &l->values) ||
        !cli_array_create(DPCR_F32, 3, (const int64_t[]){1, net->batch, l->transition.cols}, &l->out))
        return CLI_RESOURCES;
    return CLI_DONE;
}

// Entries of a convolution's unpruned Jacobian: positions of the kernel that lie in the image, along one side.
static double inside(int64_t side, int64_t kernel, int64_t padding) {
    double n = 0;
    for (int64_t u = 0; u < side; u++)
        for (int64_t k = 0; k < kernel; k++) n += u - padding + k >= 0 && u - padding + k < side;
    return n;
}

static int add_weighted(maker *m, int kind, int64_t outputs) {
    convnet *net = m->net;
    convnet_layer *l = next_layer(m, kind);
    const bool conv = kind == CONVNET_CONV;
    const int64_t kernel = conv ? 3 : 1, inputs = conv ? m->channels : m->channels * m->side * m->side,
                  side = conv ? m->side : 1;
    l->conv = (dpcr_conv2d){.size = sizeof l->conv,
                            .in_channels = inputs,
                            .out_channels = outputs,
                            .height = side,
                            .width = side,
                            .kernel = {kernel, kernel},
                            .padding = {conv, conv}};
    l->outputs = outputs;
    l->positions = side * side;
    l->weight_count = outputs * inputs * kernel * kernel;
    int status = draw(m, l, inputs * kernel * kernel);
    const dpcr_array weights = dpcr_array_make(l->weights, DPCR_F32, 1, &l->weight_count);
    if (!status && dpcr_jacobian_conv2d(net->context, &l->conv, &weights, &l->jacobian, &m->error) != DPCR_OK)
        status = fail(&m->error);
    if (!status) status = finish_layer(m, l);
    const double side_entries = inside(side, kernel, conv);
    if (net->count > 1) net->dense_flops += 2.0 * (double)(outputs * inputs) * side_entries * side_entries;
    l->first = net->parameters;
    l->bias = l->first + l->kept_count;
    net->parameters = l->bias + outputs;
    m->channels = outputs;
    m->side = side;
    return status;
}

static int add_relu(maker *m) {
    convnet_layer *l = next_layer(m, CONVNET_RELU);
    if (dpcr_jacobian_relu(m->net->context, m->channels * m->side * m->side, &l->jacobian, &m->error) != DPCR_OK)
        return fail(&m->error);
    return finish_layer(m, l);
}

static int add_pool(maker *m) {
    convnet_layer *l = next_layer(m, CONVNET_POOL);
    const dpcr_pool2d pool = {
        .size = sizeof pool, .channels = m->channels, .height = m->side, .width = m->side, .kernel = {2, 2}};
    if (dpcr_jacobian_max_pool2d(m->net->context, &pool, &l->jacobian, &m->error) != DPCR_OK) return fail(&m->error);
    m->side /= 2;
    return finish_layer(m, l);
}

static int make_layers(maker *m) {
    static const struct {
        int64_t channels;
        bool pool;
    } blocks[] = {{64, true},   {128, true}, {256, false}, {256, true},
                  {512, false}, {512, true}, {512, false}, {512, true}};
    int status = CLI_DONE;
    for (size_t i = 0; !status && i < sizeof blocks / sizeof *blocks; i++) {
        const int64_t channels = blocks[i].channels / m->divisor;
        status = add_weighted(m, CONVNET_CONV, channels > 0 ? channels : 1);
        if (!status) status = add_relu(m);
        if (!status && blocks[i].pool) status = add_pool(m);
    }
    return status ? status : add_weighted(m, CONVNET_LINEAR, CONVNET_CLASSES);
}

static int make_plan(convnet *net, int which, int levels) {
    dpcr_transition steps[CONVNET_MOST_LAYERS];
    unsigned char shared[CONVNET_MOST_LAYERS];
    for (int64_t l = 0; l < net->steps; l++) {
        steps[l] = net->layers[l + 1].transition;
        shared[l] = (unsigned char)dpcr_jacobian_shared(net->layers[l + 1].jacobian);
    }
    const dpcr_bppsa_shape shape = {.size = sizeof shape,
                                    .length = net->steps,
                                    .batch = net->batch,
                                    .steps = steps,
                                    .shared = shared,
                                    .dtype = DPCR_F32};
    const dpcr_bppsa_options options = {
        .size = sizeof options, .levels = levels, .most_bytes = cli_memory_budget() / 4 * 3};
    dpcr_error error = {0};
    const double start = cli_now();
    if (dpcr_bppsa_plan_create(net->context, &shape, &options, &net->plan[which], &error) != DPCR_OK)
        return fail(&error);
    net->plan_seconds[which] = cli_now() - start;
    net->workspace[which] = cli_allocate(dpcr_bppsa_plan_workspace(net->plan[which]));
    return net->workspace[which] ? CLI_DONE : cli_fail_memory("the scan");
}

static int make_arrays(convnet *net) {
    const int64_t width = net->channels * CONVNET_SIDE * CONVNET_SIDE;
    net->steps = net->count - 1;
    net->vector = calloc((size_t)net->parameters, sizeof *net->vector);
    net->gradient = calloc((size_t)net->parameters, sizeof *net->gradient);
    net->labels = calloc((size_t)net->batch, 1);
    if (!net->vector || !net->gradient || !net->labels) return cli_fail_memory("the parameters");
    if (!cli_array_create(DPCR_F32, 3, (const int64_t[]){1, net->batch, width}, &net->input) ||
        !cli_array_create(DPCR_F32, 2, (const int64_t[]){net->batch, CONVNET_CLASSES}, &net->last))
        return CLI_RESOURCES;
    for (int64_t l = 0; l < net->steps; l++) {
        net->values[l] = net->layers[l + 1].values;
        const int64_t shape[] = {net->batch, net->layers[l + 1].transition.rows};
        for (int w = 0; w < CONVNET_WAYS; w++)
            if (!cli_array_create(DPCR_F32, 2, shape, &net->gradients[w][l])) return CLI_RESOURCES;
    }
    for (int64_t i = 0; i < net->count; i++) {
        const convnet_layer *l = &net->layers[i];
        for (int64_t k = 0; k < l->kept_count; k++) net->vector[l->first + k] = l->weights[l->kept[k]];
    }
    return CLI_DONE;
}

int convnet_create(dpcr_context *context, int64_t channels, int64_t batch, int64_t divisor, double prune, int levels,
                   uint64_t seed, convnet *net) {
    *net = (convnet){.context = context, .batch = batch, .channels = channels};
    maker m = {
        .net = net, .channels = channels, .side = CONVNET_SIDE, .divisor = divisor, .prune = prune, .seed = seed};
    int status = make_layers(&m);
    if (!status) status = make_arrays(net);
    if (!status) status = make_plan(net, CONVNET_SCAN, levels + 1);
    if (!status) status = make_plan(net, CONVNET_LOOP, 1);
    return status ? status : convnet_refill(net);
}

void convnet_destroy(convnet *net) {
    for (int64_t i = 0; i < CONVNET_MOST_LAYERS; i++) {
        convnet_layer *l = &net->layers[i];
        dpcr_jacobian_destroy(l->jacobian);
        cli_array_destroy(&l->values);
        cli_array_destroy(&l->out);
        free(l->weights), free(l->kept);
        for (int w = 0; w < CONVNET_WAYS; w++) cli_array_destroy(&net->gradients[w][i]);
    }
    for (int w = 0; w < 2; w++) {
        cli_release(net->workspace[w]);
        dpcr_bppsa_plan_destroy(net->plan[w]);
    }
    cli_array_destroy(&net->input);
    cli_array_destroy(&net->last);
    free(net->vector), free(net->gradient), free(net->labels);
    *net = (convnet){0};
}

int convnet_refill(convnet *net) {
    dpcr_error error = {0};
    for (int64_t i = 0; i < net->count; i++) {
        convnet_layer *l = &net->layers[i];
        if (!l->weights) continue;
        for (int64_t k = 0; k < l->kept_count; k++) l->weights[l->kept[k]] = net->vector[l->first + k];
        const dpcr_array weights = dpcr_array_make(l->weights, DPCR_F32, 1, &l->weight_count);
        if (dpcr_jacobian_fill(l->jacobian, &weights, &l->values, &error) != DPCR_OK) return fail(&error);
    }
    return CLI_DONE;
}

// ---- forward ----

static dpcr_array rows_of(const dpcr_array *state) {
    return dpcr_array_make(state->data, state->dtype, 2, state->shape + 1);
}

static void fill_bias(const convnet *net, const convnet_layer *l) {
    float *to = l->out.data;
    for (int64_t b = 0; b < net->batch; b++)
        for (int64_t j = 0; j < l->outputs; j++)
            for (int64_t p = 0; p < l->positions; p++) *to++ = net->vector[l->bias + j];
}

static dpcr_status run_layer(const convnet *net, const convnet_layer *l, const dpcr_array *in, dpcr_error *error) {
    const dpcr_array rows = rows_of(in);
    const int64_t shape[] = {1, l->values.shape[0], l->values.shape[1]};
    const dpcr_array a = dpcr_array_make(l->values.data, DPCR_F32, 3, shape);
    if (l->weights) {
        fill_bias(net, l);
        return dpcr_transition_apply(&l->transition, 1, &a, in, &l->out, &l->out, error);
    }
    const dpcr_status status = dpcr_jacobian_fill(l->jacobian, &rows, &l->values, error);
    if (status != DPCR_OK || l->kind == CONVNET_POOL)
        return status != DPCR_OK ? status : dpcr_transition_apply(&l->transition, 1, &a, in, NULL, &l->out, error);
    const float *from = in->data;
    float *to = l->out.data;
    for (int64_t i = 0; i < net->batch * l->transition.cols; i++) to[i] = from[i] > 0 ? from[i] : 0;
    return DPCR_OK;
}

// Mean cross-entropy; its gradient into last.
static double judge(convnet *net, const float *logits, int64_t *correct) {
    float *g = net->last.data;
    double loss = 0;
    for (int64_t b = 0; b < net->batch; b++, logits += CONVNET_CLASSES, g += CONVNET_CLASSES) {
        double most = logits[0], sum = 0;
        int best = 0;
        for (int c = 1; c < CONVNET_CLASSES; c++)
            if (logits[c] > most) most = logits[c], best = c;
        for (int c = 0; c < CONVNET_CLASSES; c++) sum += exp(logits[c] - most);
        loss += most + log(sum) - logits[net->labels[b]];
        *correct += best == net->labels[b];
        for (int c = 0; c < CONVNET_CLASSES; c++)
            g[c] = (float)((exp(logits[c] - most) / sum - (c == net->labels[b])) / (double)net->batch);
    }
    return loss / (double)net->batch;
}

int convnet_forward(convnet *net, double *loss, int64_t *correct) {
    dpcr_error error = {0};
    for (int64_t i = 0; i < net->count; i++)
        if (run_layer(net, &net->layers[i], i ? &net->layers[i - 1].out : &net->input, &error) != DPCR_OK)
            return fail(&error);
    *loss = judge(net, net->layers[net->count - 1].out.data, correct);
    return CLI_DONE;
}

// ---- backward ----

static dpcr_status adjoint(const convnet *net, const convnet_layer *l, const dpcr_array *g, const dpcr_array *to,
                           dpcr_error *error) {
    if (l->weights) {
        const dpcr_array weights = dpcr_array_make(l->weights, DPCR_F32, 1, &l->weight_count);
        return dpcr_conv2d_adjoint(net->context, &l->conv, &weights, g, to, error);
    }
    if (l->kind == CONVNET_RELU) {
        const float *mask = l->values.data, *from = g->data;
        for (int64_t i = 0; i < net->batch * l->transition.rows; i++) ((float *)to->data)[i] = mask[i] * from[i];
        return DPCR_OK;
    }
    const int64_t out[] = {1, g->shape[0], g->shape[1]}, in[] = {1, to->shape[0], to->shape[1]},
                  shape[] = {1, l->values.shape[0], l->values.shape[1]};
    const dpcr_array a = dpcr_array_make(l->values.data, DPCR_F32, 3, shape),
                     x = dpcr_array_make(g->data, DPCR_F32, 3, out), y = dpcr_array_make(to->data, DPCR_F32, 3, in);
    return dpcr_transition_apply(&l->transition, 0, &a, &x, NULL, &y, error);
}

int convnet_backward(convnet *net, int way) {
    dpcr_error error = {0};
    dpcr_status status = DPCR_OK;
    const dpcr_array *g = &net->last;
    if (way != CONVNET_DENSE)
        status = dpcr_bppsa_execute(net->plan[way], net->values, &net->last, net->gradients[way], net->workspace[way],
                                    dpcr_bppsa_plan_workspace(net->plan[way]), &error);
    for (int64_t l = net->steps - 1; way == CONVNET_DENSE && status == DPCR_OK && l >= 0; l--) {
        status = adjoint(net, &net->layers[l + 1], g, &net->gradients[way][l], &error);
        g = &net->gradients[way][l];
    }
    return status == DPCR_OK ? CLI_DONE : fail(&error);
}

// Of one weight: sum over images and positions of g_out[j][u][v] z_in[a][u + ky - p][v + kx - p].
static float weight_gradient(const convnet *net, const convnet_layer *l, int64_t weight, const float *g,
                             const float *z) {
    const int64_t k = l->conv.kernel[0], side = l->conv.height, p = l->conv.padding[0], inputs = l->conv.in_channels;
    const int64_t kx = weight % k - p, ky = weight / k % k - p, a = weight / (k * k) % inputs,
                  j = weight / (k * k * inputs);
    const int64_t left = kx < 0 ? -kx : 0, right = kx > 0 ? side - kx : side;
    double sum = 0;
    for (int64_t b = 0; b < net->batch; b++) {
        const float *gb = g + (b * l->outputs + j) * l->positions, *zb = z + (b * inputs + a) * l->positions;
        for (int64_t u = ky < 0 ? -ky : 0; u < (ky > 0 ? side - ky : side); u++) {
            float row = 0;
            for (int64_t v = left; v < right; v++) row += gb[u * side + v] * zb[(u + ky) * side + v + kx];
            sum += row;
        }
    }
    return (float)sum;
}

void convnet_parameters(convnet *net, int way) {
    for (int64_t i = 0; i < net->count; i++) {
        const convnet_layer *l = &net->layers[i];
        if (!l->weights) continue;
        const float *g = i + 1 < net->count ? net->gradients[way][i].data : net->last.data,
                    *z = i ? net->layers[i - 1].out.data : net->input.data;
        for (int64_t k = 0; k < l->kept_count; k++)
            net->gradient[l->first + k] = weight_gradient(net, l, l->kept[k], g, z);
        for (int64_t j = 0; j < l->outputs; j++) {
            double sum = 0;
            for (int64_t b = 0; b < net->batch; b++)
                for (int64_t p = 0; p < l->positions; p++) sum += g[(b * l->outputs + j) * l->positions + p];
            net->gradient[l->bias + j] = (float)sum;
        }
    }
}

double convnet_difference(const convnet *net, int way, int other) {
    double worst = 0;
    for (int64_t s = 0; s < net->steps; s++) {
        const dpcr_array *x = &net->gradients[way][s], *y = &net->gradients[other][s];
        const float *a = x->data, *b = y->data;
        double most = 0, scale = 1e-30;
        for (int64_t i = 0; i < x->shape[0] * x->shape[1]; i++) {
            most = fmax(most, fabs((double)a[i] - b[i]));
            scale = fmax(scale, fabs((double)b[i]));
            if (!isfinite(a[i]) || !isfinite(b[i])) return HUGE_VAL;
        }
        worst = fmax(worst, most / scale);
    }
    return worst;
}
