// SPDX-License-Identifier: MIT
// A VGG-11. Pruned: forward by its sparse Jacobians transposed, back by BPPSA, by the loop over the same Jacobians, or
// by dense products. Whole: dense products.
#include "convnet.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STREAM_WEIGHTS = 171 };

const char *const convnet_ways[CONVNET_WAYS] = {"scan", "loop", "dense"};

typedef struct maker {
    convnet *net;
    const convnet_shape *shape;
    int64_t channels, side;
    dpcr_error error;
} maker;

static int fail(const dpcr_error *error) { return cli_fail_error(error, CLI_COMPUTING); }

// ---- making it ----

static uint32_t size_bits(float x) {  // ordered as |x| is
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & UINT32_C(0x7fffffff);
}

// The size from which on weights are kept: all but `out` of them, ties apart. Half of the bits after the other.
static float least_kept(const convnet_layer *l, int64_t out) {
    enum { HALF = 1 << 16 };
    static int64_t counts[HALF];
    uint32_t high = 0, low = 0;
    for (int half = 0; half < 2; half++) {
        memset(counts, 0, sizeof counts);
        for (int64_t i = 0; i < l->weight_count; i++) {
            const uint32_t bits = size_bits(l->weights[i]);
            if (!half) counts[bits >> 16]++;
            if (half && bits >> 16 == high) counts[bits & 0xffff]++;
        }
        uint32_t at = 0;
        while (at < HALF - 1 && counts[at] <= out) out -= counts[at++];
        *(half ? &low : &high) = at;
    }
    const uint32_t bits = high << 16 | low;
    float least;
    memcpy(&least, &bits, sizeof least);
    return least;
}

// How many of a layer's weights are taken out: of the first and the last none. They are few, all that is known of the
// image goes through the first, and neither costs a scan anything: the chain begins after the first.
static int64_t taken_out(const convnet *net, const convnet_layer *l, double fraction) {
    return l == net->layers || l->kind == CONVNET_LINEAR ? 0 : (int64_t)floor(fraction * (double)l->weight_count);
}

static void keep_largest(const maker *m, convnet_layer *l) {
    const int64_t n = l->weight_count, out = m->net->whole ? 0 : taken_out(m->net, l, m->shape->prune);
    const float least = least_kept(l, out);
    for (int64_t i = 0; i < n; i++)
        if (m->net->whole || (fabsf(l->weights[i]) >= least && l->kept_count < n - out && l->weights[i] != 0))
            l->kept[l->kept_count++] = (int32_t)i;
}

// What is left is scaled to the norm that all of them had: ReLU after ReLU would else see next to nothing.
static void keep_norm(convnet_layer *l) {
    double all = 0, left = 0;
    for (int64_t i = 0; i < l->weight_count; i++) all += (double)l->weights[i] * l->weights[i];
    for (int64_t i = 0; i < l->kept_count; i++) left += (double)l->weights[l->kept[i]] * l->weights[l->kept[i]];
    const double scale = left > 0 ? sqrt(all / left) : 1;
    for (int64_t i = 0; i < l->kept_count; i++) l->weights[l->kept[i]] *= (float)scale;
}

// He's distribution; where most are taken out, what is left is scaled to the norm that was drawn for.
static void draw(const maker *m, convnet_layer *l, int64_t fan_in) {
    double squares = 0;
    for (int64_t i = 0; i < l->weight_count; i++)
        l->weights[i] = (float)cli_normal(m->shape->seed, STREAM_WEIGHTS + (uint64_t)m->net->count, (uint64_t)i);
    keep_largest(m, l);
    for (int64_t i = 0; i < l->kept_count; i++) squares += (double)l->weights[l->kept[i]] * l->weights[l->kept[i]];
    const double scale = sqrt(2.0 * (double)l->weight_count / (double)fan_in / squares);
    for (int64_t i = 0; i < l->kept_count; i++) l->weights[l->kept[i]] *= (float)scale;
}

// The other network's weights: those that a list keeps, or the largest.
static int take_over(const maker *m, convnet_layer *l) {
    const convnet_shape *s = m->shape;
    const int64_t at = m->net->count;
    const convnet_layer *from = &s->from->layers[at];
    if (from->weight_count != l->weight_count || from->outputs != l->outputs)
        return cli_fail(CLI_INPUT, "layer %lld has %lld weights and %lld biases, wanted %lld and %lld", (long long)at,
                        (long long)from->weight_count, (long long)from->outputs, (long long)l->weight_count,
                        (long long)l->outputs);
    memcpy(l->weights, from->weights, (size_t)l->weight_count * sizeof *l->weights);
    if (!s->kept) {
        keep_largest(m, l);
        keep_norm(l);
        return CLI_DONE;
    }
    l->kept_count = s->kept_count[at];
    memcpy(l->kept, s->kept[at], (size_t)l->kept_count * sizeof *l->kept);
    return CLI_DONE;
}

static int make_weights(const maker *m, convnet_layer *l, int64_t fan_in) {
    l->weights = malloc((size_t)l->weight_count * sizeof *l->weights);
    l->kept = calloc((size_t)l->weight_count, sizeof *l->kept);
    if (!l->weights || !l->kept) return cli_fail_memory("the weights");
    const int status = m->shape->from ? take_over(m, l) : CLI_DONE;
    if (!m->shape->from) draw(m, l, fan_in);
    for (int64_t i = 0, k = 0; i < l->weight_count && !status; i++)  // what is not kept
        if (k < l->kept_count && l->kept[k] == i)
            k++;
        else
            l->weights[i] = 0;
    return status;
}

// Entries for what is kept, be it zero at the moment or not.
static int make_jacobian(maker *m, convnet_layer *l) {
    float *pattern = calloc((size_t)l->weight_count, sizeof *pattern);
    if (!pattern) return cli_fail_memory("the weights");
    for (int64_t i = 0; i < l->kept_count; i++) pattern[l->kept[i]] = 1;
    const dpcr_array kept = dpcr_array_make(pattern, DPCR_F32, 1, &l->weight_count);
    const dpcr_status made = dpcr_jacobian_conv2d(m->net->context, &l->conv, &kept, &l->jacobian, &m->error);
    free(pattern);
    return made == DPCR_OK ? CLI_DONE : fail(&m->error);
}

static convnet_layer *next_layer(maker *m, int kind) {
    convnet_layer *l = &m->net->layers[m->net->count];
    l->kind = kind;
    return l;
}

// Values, output; the layer counts from here on.
static int finish_layer(maker *m, convnet_layer *l) {
    convnet *net = m->net;
    net->count++;
    if (l->jacobian) {
        l->transition = *dpcr_jacobian_transition(l->jacobian);
        const int64_t rows = dpcr_jacobian_shared(l->jacobian) ? 1 : net->batch;
        const int64_t shape[] = {rows, dpcr_transition_values(&l->transition)};
        if (!cli_array_create(DPCR_F32, 2, shape, &l->values)) return CLI_RESOURCES;
    } else {
        l->transition.rows = l->conv.in_channels * l->conv.height * l->conv.width;
        l->transition.cols = l->outputs * l->positions;
    }
    if (!cli_array_create(DPCR_F32, 3, (const int64_t[]){1, net->batch, l->transition.cols}, &l->out))
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
    int status = make_weights(m, l, inputs * kernel * kernel);
    if (!status && !net->whole) status = make_jacobian(m, l);
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
        const int64_t channels = blocks[i].channels / m->shape->divisor;
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

static int make_arrays(convnet *net, bool forward_only) {
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
        for (int w = net->whole ? CONVNET_DENSE : 0; w < CONVNET_WAYS && !forward_only; w++)
            if (!cli_array_create(DPCR_F32, 2, shape, &net->gradients[w][l])) return CLI_RESOURCES;
    }
    for (int64_t i = 0; i < net->count; i++) {
        const convnet_layer *l = &net->layers[i];
        for (int64_t k = 0; k < l->kept_count; k++) net->vector[l->first + k] = l->weights[l->kept[k]];
    }
    return CLI_DONE;
}

static void take_biases(convnet *net, const convnet *from) {
    for (int64_t i = 0; i < net->count; i++) {
        const convnet_layer *l = &net->layers[i];
        if (l->weights)
            memcpy(net->vector + l->bias, from->vector + from->layers[i].bias, (size_t)l->outputs * sizeof(float));
    }
}

int convnet_create(dpcr_context *context, const convnet_shape *shape, convnet *net) {
    *net = (convnet){.context = context,
                     .batch = shape->batch,
                     .rows = shape->batch,
                     .channels = shape->channels,
                     .whole = shape->prune < 0};
    maker m = {.net = net, .shape = shape, .channels = shape->channels, .side = CONVNET_SIDE};
    int status = make_layers(&m);
    if (!status) status = make_arrays(net, shape->forward_only);
    if (!status && shape->from) take_biases(net, shape->from);
    const bool plans = !net->whole && !shape->forward_only;
    if (!status && plans) status = make_plan(net, CONVNET_SCAN, shape->levels + 1);
    if (!status && plans) status = make_plan(net, CONVNET_LOOP, 1);
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
        if (!l->jacobian) continue;
        const dpcr_array weights = dpcr_array_make(l->weights, DPCR_F32, 1, &l->weight_count);
        if (dpcr_jacobian_fill(l->jacobian, &weights, &l->values, &error) != DPCR_OK) return fail(&error);
    }
    return CLI_DONE;
}

int convnet_thin(convnet *net, double fraction) {
    for (int64_t i = 0; i < net->count; i++) {
        const convnet_layer *l = &net->layers[i];
        if (!l->weights) continue;
        const int64_t out = taken_out(net, l, fraction);
        const float least = least_kept(l, out);
        int64_t left = l->weight_count - out;
        double all = 0, kept = 0;
        for (int64_t k = 0; k < l->weight_count; k++) {
            const double square = (double)l->weights[k] * l->weights[k];
            const bool stays = fabsf(l->weights[k]) >= least && left-- > 0;
            all += square;
            if (stays) kept += square;
            if (!stays) net->vector[l->first + k] = 0;
        }
        const float scale = kept > 0 ? (float)sqrt(all / kept) : 1;
        for (int64_t k = 0; k < l->weight_count; k++) net->vector[l->first + k] *= scale;
    }
    return convnet_refill(net);
}

void convnet_keep_zeros(convnet *net) {
    for (int64_t i = 0; i < net->count; i++) {
        const convnet_layer *l = &net->layers[i];
        for (int64_t k = 0; k < l->weight_count; k++)
            if (l->weights[k] == 0) net->vector[l->first + k] = 0;
    }
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
    if (!l->jacobian) {
        const dpcr_array out = rows_of(&l->out), weights = dpcr_array_make(l->weights, DPCR_F32, 1, &l->weight_count),
                         bias = dpcr_array_make(net->vector + l->bias, DPCR_F32, 1, &l->outputs);
        return dpcr_conv2d_forward(net->context, &l->conv, &weights, &bias, &rows, &out, error);
    }
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
    for (int64_t b = 0; b < net->rows; b++, logits += CONVNET_CLASSES, g += CONVNET_CLASSES) {
        double most = logits[0], sum = 0;
        int best = 0;
        for (int c = 1; c < CONVNET_CLASSES; c++)
            if (logits[c] > most) most = logits[c], best = c;
        for (int c = 0; c < CONVNET_CLASSES; c++) sum += exp(logits[c] - most);
        loss += most + log(sum) - logits[net->labels[b]];
        *correct += best == net->labels[b] && !isnan(sum);  // of NaN none is best
        for (int c = 0; c < CONVNET_CLASSES; c++)
            g[c] = (float)((exp(logits[c] - most) / sum - (c == net->labels[b])) / (double)net->rows);
    }
    return isnan(loss) ? (double)NAN : loss / (double)net->rows;  // without a sign, which printf would show
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

static void kept_gradients(const convnet *net, const convnet_layer *l, const float *g, const float *z) {
    for (int64_t k = 0; k < l->kept_count; k++) net->gradient[l->first + k] = weight_gradient(net, l, l->kept[k], g, z);
    for (int64_t j = 0; j < l->outputs; j++) {
        double sum = 0;
        for (int64_t b = 0; b < net->batch; b++)
            for (int64_t p = 0; p < l->positions; p++) sum += g[(b * l->outputs + j) * l->positions + p];
        net->gradient[l->bias + j] = (float)sum;
    }
}

int convnet_parameters(convnet *net, int way) {
    dpcr_error error = {0};
    for (int64_t i = 0; i < net->count; i++) {
        const convnet_layer *l = &net->layers[i];
        if (!l->weights) continue;
        const dpcr_array *g = i + 1 < net->count ? &net->gradients[way][i] : &net->last;
        const dpcr_array z = rows_of(i ? &net->layers[i - 1].out : &net->input),
                         weights = dpcr_array_make(net->gradient + l->first, DPCR_F32, 1, &l->weight_count),
                         bias = dpcr_array_make(net->gradient + l->bias, DPCR_F32, 1, &l->outputs);
        if (l->jacobian)
            kept_gradients(net, l, g->data, z.data);
        else if (dpcr_conv2d_gradients(net->context, &l->conv, &z, g, &weights, &bias, &error) != DPCR_OK)
            return fail(&error);
    }
    return CLI_DONE;
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
