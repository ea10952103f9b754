// SPDX-License-Identifier: MIT
// Models: options, memory, the table of parameters, initialisation, metadata. One vector of parameters, one of
// gradients:
//   steps 0..L-1, each [W in][out], b, then the norm's gamma, beta, then [W2], b2;   encoder W, b;   head W, b
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/random.h"
#include "data/tensors.h"
#include "model/model_internal.h"

static dpcr_status check_options(const dpcr_model_options *o, dpcr_error *error) {
    const char *const call = "model_create";
    if (o->architecture != DPCR_MLP && o->architecture != DPCR_RESNET)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: architecture is %d, wanted DPCR_MLP or DPCR_RESNET", call,
                          (int)o->architecture);
    if (o->dtype != DPCR_F32 && o->dtype != DPCR_F64)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: dtype is %s, wanted float32 or float64", call,
                          dpcr_dtype_name(o->dtype));
    if (o->tie < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: tie is %lld, wanted 0 or more", call, (long long)o->tie);
    if (o->inputs < 0 || o->outputs < 0 || o->layers < 0 || o->width < 1 || o->hidden < 0)
        return dpcri_fail(
            error, DPCR_ERROR_ARGUMENT,
            "%s: inputs %lld, outputs %lld, layers %lld, width %lld, hidden %lld; wanted none negative and width >= 1",
            call, (long long)o->inputs, (long long)o->outputs, (long long)o->layers, (long long)o->width,
            (long long)o->hidden);
    if ((int)o->activation < 0 || o->activation >= DPCR_ACT_COUNT)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: activation is %d, wanted one of DPCR_ACT_...", call,
                          (int)o->activation);
    if (o->branch != DPCR_BRANCH_LINEAR && o->branch != DPCR_BRANCH_TWO_LAYER)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: branch is %d, wanted one of DPCR_BRANCH_...", call,
                          (int)o->branch);
    if (o->architecture == DPCR_MLP && o->branch == DPCR_BRANCH_TWO_LAYER)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: an mlp has no two-layer branch; a resnet has", call);
    if (!isfinite(o->scale))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: scale is %g, wanted a finite number", call, o->scale);
    return DPCR_OK;
}

static void fill_defaults(dpcr_model_options *o) {
    o->size = sizeof *o;
    const bool residual = o->architecture == DPCR_RESNET;
    if (!o->dtype) o->dtype = DPCR_F32;
    if (o->branch != DPCR_BRANCH_TWO_LAYER || !o->hidden) o->hidden = o->width;
    if (o->activation == DPCR_ACT_DEFAULT)
        o->activation = residual && o->branch == DPCR_BRANCH_LINEAR ? DPCR_ACT_TANH : DPCR_ACT_RELU;
    if (!residual) o->scale = 1;
    if (o->scale == 0) o->scale = 1 / sqrt(o->layers > 1 ? (double)o->layers : 1);
    o->layer_norm = o->layer_norm != 0;
    if (o->tie >= o->layers) o->tie = 0;
}

// Lays the vectors out; false when a size does not fit.
static bool lay_out(dpcr_model *m) {
    const dpcr_model_options *o = &m->options;
    const dpcri_program_options step = {.width = o->width,
                                        .hidden = o->hidden,
                                        .activation = (int)o->activation - 1,
                                        .residual = o->architecture == DPCR_RESNET,
                                        .norm = o->layer_norm,
                                        .two_layer = o->branch == DPCR_BRANCH_TWO_LAYER,
                                        .scale = o->scale};
    int64_t encoder = 0, head = 0, bytes = 0;
    if (!dpcri_program_make(&m->program, dpcri_nn_kernels_get(o->dtype), &step)) return false;
    if (!dpcri_mul(m->program.parameters, o->layers, &m->encoder)) return false;
    if (o->inputs && (!dpcri_add(o->inputs, 1, &encoder) || !dpcri_mul(encoder, o->width, &encoder))) return false;
    if (o->outputs && (!dpcri_add(o->width, 1, &head) || !dpcri_mul(head, o->outputs, &head))) return false;
    if (!dpcri_add(m->encoder, encoder, &m->head) || !dpcri_add(m->head, head, &m->count)) return false;
    return dpcri_mul(m->count, 64, &bytes);
}

static int64_t parameters_a_step(const dpcr_model_options *o) {
    return 2 + (o->layer_norm ? 2 : 0) + (o->branch == DPCR_BRANCH_TWO_LAYER ? 2 : 0);
}

int64_t dpcri_model_parameters(const dpcr_model_options *o) {
    return (o->inputs ? 2 : 0) + o->layers * parameters_a_step(o) + (o->outputs ? 2 : 0);
}

static void describe(dpcri_parameter *p, const char *prefix, const char *suffix, int64_t offset, int64_t in,
                     int64_t out) {
    snprintf(p->name, sizeof p->name, "%s.%s", prefix, suffix);
    p->offset = offset;
    p->rows = out;
    p->cols = in;
    p->fan_in = in;
    p->constant = 0;
}

// Weight (which = 0) or bias (1) of a linear layer whose W [in][out] begins at `offset`.
static void describe_linear(dpcri_parameter *p, const char *prefix, int which, int64_t offset, int64_t in,
                            int64_t out) {
    describe(p, prefix, which ? "bias" : "weight", which ? offset + in * out : offset, in, out);
    if (which) p->cols = 0;
}

static void describe_step(const dpcr_model *m, int64_t step, int64_t which, dpcri_parameter *p) {
    const dpcr_model_options *o = &m->options;
    const bool two_layer = o->branch == DPCR_BRANCH_TWO_LAYER;
    const int64_t begin = step * m->program.parameters;
    char prefix[48];
    for (int i = 0; i < m->program.count; i++) {
        const dpcri_nn_layer *layer = &m->program.layers[i];
        if (!layer->parameter_count) continue;
        if (which >= 2) {
            which -= 2;
            continue;
        }
        const int64_t offset = begin + layer->parameters;
        const bool norm = layer->keeps_input == false && i == 1;
        snprintf(prefix, sizeof prefix, "layers.%lld%s", (long long)step,
                 norm         ? ".norm"
                 : !two_layer ? ""
                 : i == 0     ? ".linear1"
                              : ".linear2");
        describe_linear(p, prefix, (int)which, offset, norm ? 1 : layer->in, layer->out);
        if (norm) {
            p->cols = p->fan_in = 0;
            p->constant = which ? 0 : 1;
        }
        return;
    }
}

void dpcri_model_parameter(const dpcr_model *m, int64_t index, dpcri_parameter *p) {
    const dpcr_model_options *o = &m->options;
    if (o->inputs) {
        if (index < 2) {
            describe_linear(p, "encoder", (int)index, m->encoder, o->inputs, o->width);
            return;
        }
        index -= 2;
    }
    const int64_t each = parameters_a_step(o);
    if (index < o->layers * each)
        describe_step(m, index / each, index % each, p);
    else
        describe_linear(p, "head", (int)(index - o->layers * each), m->head, o->width, o->outputs);
}

// Number e of a parameter in PyTorch's flat order is number e of the parameter's own stream: neither dtype nor layout
// nor the threads that make them change it.
static void initialise(void *argument, int64_t index) {
    dpcr_model *m = argument;
    const bool wide = m->options.dtype == DPCR_F64;
    dpcri_parameter p;
    dpcri_model_parameter(m, index, &p);
    const uint64_t stream = DPCRI_STREAM_PARAMETERS + (uint64_t)index;
    const double bound = p.fan_in ? 1 / sqrt((double)p.fan_in) : 0;
    const int64_t cols = p.cols ? p.cols : 1;
    for (int64_t j = 0; j < cols; j++)
        for (int64_t i = 0; i < p.rows; i++) {
            const double u = dpcri_random_uniform(m->options.seed, stream, (uint64_t)(i * cols + j));
            const double value = p.fan_in ? bound * (2 * u - 1) : p.constant;
            const int64_t at = p.offset + j * p.rows + i;
            if (wide)
                ((double *)m->parameters)[at] = value;
            else
                ((float *)m->parameters)[at] = (float)value;
        }
}

void dpcr_model_tie_parameters(dpcr_model *m) {
    if (!m || !m->options.tie) return;
    const size_t bytes = (size_t)m->program.parameters * m->program.kernels->element;
    for (int64_t l = m->options.tie; l < m->options.layers; l++)
        memcpy(m->parameters + (size_t)l * bytes, m->parameters + (size_t)(l - m->options.tie) * bytes, bytes);
}

void dpcri_add_numbers(dpcr_dtype dtype, int64_t count, const void *from, void *to) {
    if (dtype == DPCR_F64)
        for (int64_t i = 0; i < count; i++) ((double *)to)[i] += ((const double *)from)[i];
    else
        for (int64_t i = 0; i < count; i++) ((float *)to)[i] += ((const float *)from)[i];
}

void dpcri_model_copy_tied(dpcr_model *m) {
    const size_t bytes = (size_t)m->program.parameters * m->program.kernels->element;
    for (int64_t l = m->options.tie; l < m->options.layers; l++)
        memcpy(m->gradients + (size_t)l * bytes, m->gradients + (size_t)(l - m->options.tie) * bytes, bytes);
}

// The first step of each set takes the sum of the others, which then copy it.
void dpcr_model_tie_gradients(dpcr_model *m) {
    if (!m || !m->options.tie) return;
    const int64_t each = m->program.parameters, tie = m->options.tie;
    const size_t bytes = (size_t)each * m->program.kernels->element;
    for (int64_t l = tie; l < m->options.layers; l++)
        dpcri_add_numbers(m->options.dtype, each, m->gradients + (size_t)l * bytes,
                          m->gradients + (size_t)(l % tie) * bytes);
    dpcri_model_copy_tied(m);
}

void dpcri_model_own(const dpcr_model *m, void *vector, dpcr_array own[2]) {
    const int64_t each = m->program.parameters, tie = m->options.tie;
    const int64_t after = tie ? each * m->options.layers : m->count,
                  counts[2] = {tie ? each * tie : m->count, m->count - after};
    char *const from = vector;
    own[0] = dpcr_array_make(from, m->options.dtype, 1, &counts[0]);
    own[1] = dpcr_array_make(from + (size_t)after * m->program.kernels->element, m->options.dtype, 1, &counts[1]);
}

dpcr_status dpcr_model_create(dpcr_context *context, const dpcr_model_options *options, dpcr_model **model,
                              dpcr_error *error) {
    if (!model) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "model_create: no place for the model given");
    *model = NULL;
    if (!context || !options)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "model_create: context and options are wanted");
    if (options->size < offsetof(dpcr_model_options, layers))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "model_create: options.size is %zu, wanted sizeof(dpcr_model_options)", options->size);
    dpcr_model_options given = {0};
    DPCRI_COPY_IN(given, options);
    if (!given.dtype) given.dtype = DPCR_F32;
    dpcr_status status = check_options(&given, error);
    if (status != DPCR_OK) return status;

    dpcr_model *m = dpcri_alloc_zero(context, sizeof *m);
    if (!m) return dpcri_fail(error, DPCR_ERROR_MEMORY, "model_create: no memory for the model (%zu bytes)", sizeof *m);
    m->context = context;
    m->options = given;
    m->options.blank = 0;
    fill_defaults(&m->options);
    if (!lay_out(m)) {
        status = dpcri_fail(error, DPCR_ERROR_OVERFLOW,
                            "model_create: %lld layers of width %lld are more than memory can number",
                            (long long)given.layers, (long long)given.width);
        goto done;
    }
    const size_t bytes = (size_t)m->count * m->program.kernels->element;
    m->parameters = dpcri_alloc_zero(context, bytes + 64);
    m->gradients = dpcri_alloc_zero(context, bytes + 64);
    if (!m->parameters || !m->gradients) {
        status = dpcri_fail(error, DPCR_ERROR_MEMORY,
                            "model_create: no memory for parameters and gradients (2 x %zu bytes)", bytes);
        goto done;
    }
    if (!given.blank) dpcri_parallel(context, dpcri_model_parameters(&m->options), initialise, m);
    dpcr_model_tie_parameters(m);
    *model = m;
    return DPCR_OK;
done:
    dpcr_model_destroy(m);
    return status;
}

static void free_metadata(dpcr_context *context, dpcri_metadata *item) {
    dpcri_free(context, item->key);
    dpcri_free(context, item->value);
    dpcri_free(context, item);
}

void dpcr_model_destroy(dpcr_model *m) {
    if (!m) return;
    while (m->metadata) {
        dpcri_metadata *item = m->metadata;
        m->metadata = item->next;
        free_metadata(m->context, item);
    }
    dpcri_free(m->context, m->gradients);
    dpcri_free(m->context, m->parameters);
    dpcri_free(m->context, m);
}

const dpcr_model_options *dpcr_model_get_options(const dpcr_model *model) { return model ? &model->options : NULL; }

int64_t dpcr_model_parameter_count(const dpcr_model *model) {
    return model ? dpcri_model_parameters(&model->options) : 0;
}

// Weights lie as [in][out] and are seen as PyTorch's [out][in].
static dpcr_array view(const dpcr_model *m, const dpcri_parameter *p, char *vector) {
    const int64_t shape[2] = {p->rows, p->cols};
    dpcr_array array = dpcr_array_make(dpcri_model_at(m, vector, p->offset), m->options.dtype, p->cols ? 2 : 1, shape);
    if (p->cols) array.strides[0] = 1, array.strides[1] = p->rows;
    return array;
}

dpcr_status dpcr_model_parameter(const dpcr_model *m, int64_t index, char *name, size_t name_bytes,
                                 dpcr_array *parameter, dpcr_array *gradient, dpcr_error *error) {
    if (!m) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "model_parameter: no model given");
    const int64_t count = dpcri_model_parameters(&m->options);
    if (index < 0 || index >= count)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "model_parameter: index is %lld, wanted 0..%lld",
                          (long long)index, (long long)count - 1);
    dpcri_parameter p;
    dpcri_model_parameter(m, index, &p);
    if (name && name_bytes <= strlen(p.name))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "model_parameter: name_bytes is %zu, wanted more than %zu for '%s'", name_bytes,
                          strlen(p.name), p.name);
    if (name) memcpy(name, p.name, strlen(p.name) + 1);
    if (parameter) *parameter = view(m, &p, m->parameters);
    if (gradient) *gradient = view(m, &p, m->gradients);
    return DPCR_OK;
}

void *dpcr_model_vector(dpcr_model *model, int64_t *count) {
    if (count) *count = model ? model->count : 0;
    return model ? model->parameters : NULL;
}

void *dpcr_model_gradient_vector(dpcr_model *model) { return model ? model->gradients : NULL; }

void dpcr_model_zero_gradients(dpcr_model *model) {
    if (model) memset(model->gradients, 0, (size_t)model->count * model->program.kernels->element);
}

dpcr_status dpcr_model_set_metadata(dpcr_model *model, const char *key, const char *value, dpcr_error *error) {
    if (!model || !key || !*key)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "model_set_metadata: a model and a key that is not empty are wanted");
    const dpcr_status status = dpcri_metadata_check("model_set_metadata", key, value ? value : "", error);
    if (status != DPCR_OK) return status;
    dpcri_quoted quoted;
    if (strncmp(key, "deeppcr.", 8) == 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "model_set_metadata: key '%s' is the library's own",
                          dpcri_quote(key, &quoted));
    dpcri_metadata **at = &model->metadata;
    while (*at && strcmp((*at)->key, key) != 0) at = &(*at)->next;
    if (!value) {
        dpcri_metadata *item = *at;
        if (!item) return DPCR_OK;
        *at = item->next;
        free_metadata(model->context, item);
        return DPCR_OK;
    }
    char *copy = dpcri_strdup(model->context, value);
    dpcri_metadata *item = *at ? *at : dpcri_alloc_zero(model->context, sizeof *item);
    if (item && !item->key) item->key = dpcri_strdup(model->context, key);
    if (!copy || !item || !item->key) {
        dpcri_free(model->context, copy);
        if (item && !*at) free_metadata(model->context, item);
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "model_set_metadata: no memory for '%s'",
                          dpcri_quote(key, &quoted));
    }
    dpcri_free(model->context, item->value);
    item->value = copy;
    *at = item;
    return DPCR_OK;
}

const char *dpcr_model_metadata(const dpcr_model *model, const char *key) {
    if (!model || !key) return NULL;
    for (const dpcri_metadata *item = model->metadata; item; item = item->next)
        if (strcmp(item->key, key) == 0) return item->value;
    return NULL;
}
