// SPDX-License-Identifier: MIT
// Models as safetensors: tensors by PyTorch's names and shapes, options and the user's strings as metadata. Options
// have the prefix "deeppcr."; whatever else the metadata hold is the user's.
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "data/tensors.h"
#include "model/model_internal.h"

enum { OPTION_COUNT = 13, VALUE_BYTES = 40 };

typedef struct option_text {
    const char *key;
    char value[VALUE_BYTES];
} option_text;

static const char *const architecture_names[] = {"", "mlp", "resnet"};
static const char *const branch_names[] = {"linear", "two-layer"};

// Their number: what models without ties have not is left out, as files had it before there were any.
static int option_texts(const dpcr_model_options *o, option_text text[OPTION_COUNT]) {
    int n = 0;
#define TEXT(name, ...)            \
    text[n].key = "deeppcr." name; \
    snprintf(text[n++].value, VALUE_BYTES, __VA_ARGS__)
    TEXT("architecture", "%s", architecture_names[o->architecture]);
    TEXT("dtype", "%s", dpcr_dtype_name(o->dtype));
    TEXT("inputs", "%" PRId64, o->inputs);
    TEXT("outputs", "%" PRId64, o->outputs);
    TEXT("layers", "%" PRId64, o->layers);
    TEXT("width", "%" PRId64, o->width);
    TEXT("hidden", "%" PRId64, o->hidden);
    TEXT("activation", "%s", dpcr_activation_name(o->activation));
    TEXT("branch", "%s", branch_names[o->branch]);
    TEXT("layer_norm", "%d", o->layer_norm);
    TEXT("scale", "%s", dpcri_number_text(o->scale).text);
    TEXT("seed", "%" PRIu64, o->seed);
    if (o->tie) {
        TEXT("tie", "%" PRId64, o->tie);
    }
#undef TEXT
    return n;
}

static void copy_strided(dpcr_dtype dtype, const dpcr_array *from, const dpcr_array *to) {
    const int64_t cols = from->ndim == 2 ? from->shape[1] : 1;
    const int64_t from_col = from->ndim == 2 ? from->strides[1] : 0, to_col = to->ndim == 2 ? to->strides[1] : 0;
    for (int64_t i = 0; i < from->shape[0]; i++)
        for (int64_t j = 0; j < cols; j++) {
            const int64_t f = i * from->strides[0] + j * from_col, t = i * to->strides[0] + j * to_col;
            if (dtype == DPCR_F32)
                ((float *)to->data)[t] = ((const float *)from->data)[f];
            else
                ((double *)to->data)[t] = ((const double *)from->data)[f];
        }
}

// What save hands to the writer: names and contiguous copies in one piece of memory each.
typedef struct bundle {
    dpcr_tensors tensors;
    char *names, *numbers;
    option_text options[OPTION_COUNT];
} bundle;

static void bundle_add(bundle *b, const dpcr_tensors *extra) {
    for (int64_t i = 0; i < extra->count; i++) b->tensors.items[b->tensors.count++] = extra->items[i];
    for (int64_t i = 0; i < extra->metadata_count; i++, b->tensors.metadata_count++) {
        b->tensors.metadata_keys[b->tensors.metadata_count] = extra->metadata_keys[i];
        b->tensors.metadata_values[b->tensors.metadata_count] = extra->metadata_values[i];
    }
}

static dpcr_status bundle_fill(bundle *b, const dpcr_model *m, dpcr_error *error) {
    const int64_t count = dpcri_model_parameters(&m->options);
    enum { NAME_BYTES = 64 };
    int64_t offset = 0;
    for (int64_t i = 0; i < count; i++) {
        dpcr_array parameter;
        char *name = b->names + i * NAME_BYTES;
        const dpcr_status status = dpcr_model_parameter(m, i, name, NAME_BYTES, &parameter, NULL, error);
        if (status != DPCR_OK) return status;
        dpcr_tensor *item = &b->tensors.items[i];
        item->name = name;
        item->array =
            dpcr_array_make(dpcri_model_at(m, b->numbers, offset), m->options.dtype, parameter.ndim, parameter.shape);
        copy_strided(m->options.dtype, &parameter, &item->array);
        offset += parameter.shape[0] * (parameter.ndim == 2 ? parameter.shape[1] : 1);
    }
    const int options = option_texts(&m->options, b->options);
    for (; b->tensors.metadata_count < options; b->tensors.metadata_count++) {
        option_text *text = &b->options[b->tensors.metadata_count];
        b->tensors.metadata_keys[b->tensors.metadata_count] = (char *)text->key;
        b->tensors.metadata_values[b->tensors.metadata_count] = text->value;
    }
    for (const dpcri_metadata *item = m->metadata; item; item = item->next, b->tensors.metadata_count++) {
        b->tensors.metadata_keys[b->tensors.metadata_count] = item->key;
        b->tensors.metadata_values[b->tensors.metadata_count] = item->value;
    }
    b->tensors.count = count;
    return DPCR_OK;
}

dpcr_status dpcr_model_save(const dpcr_model *m, const char *path, dpcr_error *error) {
    static const dpcr_tensors nothing = {0};
    return dpcri_model_save_with(m, path, &nothing, error);
}

dpcr_status dpcri_model_save_with(const dpcr_model *m, const char *path, const dpcr_tensors *extra, dpcr_error *error) {
    if (!m || !path) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "model_save: a model and a path are wanted");
    const size_t count = (size_t)dpcri_model_parameters(&m->options);
    size_t pairs = OPTION_COUNT + (size_t)extra->metadata_count;
    for (const dpcri_metadata *item = m->metadata; item; item = item->next) pairs++;
    bundle b = {.names = dpcri_alloc(m->context, count * 64 + 1),
                .numbers = dpcri_alloc(m->context, (size_t)m->count * m->program.kernels->element + 1)};
    b.tensors.items = dpcri_alloc_zero(m->context, (count + (size_t)extra->count) * sizeof *b.tensors.items + 1);
    b.tensors.metadata_keys = dpcri_alloc(m->context, pairs * sizeof(char *));
    b.tensors.metadata_values = dpcri_alloc(m->context, pairs * sizeof(char *));
    dpcr_status status;
    if (!b.names || !b.numbers || !b.tensors.items || !b.tensors.metadata_keys || !b.tensors.metadata_values) {
        status = dpcri_fail(error, DPCR_ERROR_MEMORY, "model_save: no memory for a copy of %lld parameters",
                            (long long)m->count);
        goto done;
    }
    DPCR_TRY(bundle_fill(&b, m, error));
    bundle_add(&b, extra);
    // What a run goes on from carries a sum of all of it; what is a model alone may be edited.
    const bool alone = !extra->count && !extra->metadata_count;
    DPCR_TRY((alone ? dpcr_safetensors_write : dpcr_safetensors_write_summed)(path, &b.tensors, error));
done:
    dpcri_free(m->context, b.tensors.metadata_values);
    dpcri_free(m->context, b.tensors.metadata_keys);
    dpcri_free(m->context, b.tensors.items);
    dpcri_free(m->context, b.numbers);
    dpcri_free(m->context, b.names);
    return status;
}

static dpcr_status missing(const char *path, const char *key, const char *got, const char *wanted, dpcr_error *error) {
    if (!got)
        return dpcri_fail(error, DPCR_ERROR_FORMAT,
                          "model_load: %s: there is no metadata '%s', which models of mlp and resnet have; wanted %s",
                          path, key, wanted);
    return dpcri_fail(error, DPCR_ERROR_FORMAT, "model_load: %s: metadata '%s' is '%.60s', wanted %s", path, key, got,
                      wanted);
}

static dpcr_status read_integer(const dpcr_tensors *t, const char *path, const char *key, int64_t *value,
                                dpcr_error *error) {
    const char *text = dpcr_tensors_metadata(t, key);
    char *end = NULL;
    errno = 0;
    const long long number = text ? strtoll(text, &end, 10) : 0;
    if (!text || end == text || *end || errno) return missing(path, key, text, "a whole number", error);
    *value = number;
    return DPCR_OK;
}

static dpcr_status read_word(const dpcr_tensors *t, const char *path, const char *key, const char *const *words,
                             int count, const char *wanted, int *value, dpcr_error *error) {
    const char *text = dpcr_tensors_metadata(t, key);
    for (int i = 0; text && i < count; i++)
        if (*words[i] && strcmp(text, words[i]) == 0) {
            *value = i;
            return DPCR_OK;
        }
    return missing(path, key, text, wanted, error);
}

static dpcr_status read_options(const dpcr_tensors *t, const char *path, dpcr_model_options *o, dpcr_error *error) {
    dpcr_status status;
    int architecture = 0, branch = 0, dtype = 0;
    int64_t layer_norm = 0;
    static const char *const dtypes[] = {"", "float32", "float64"};
    DPCR_TRY(read_word(t, path, "deeppcr.architecture", architecture_names, 3, "mlp or resnet", &architecture, error));
    DPCR_TRY(read_word(t, path, "deeppcr.dtype", dtypes, 3, "float32 or float64", &dtype, error));
    DPCR_TRY(read_word(t, path, "deeppcr.branch", branch_names, 2, "linear or two-layer", &branch, error));
    DPCR_TRY(read_integer(t, path, "deeppcr.inputs", &o->inputs, error));
    DPCR_TRY(read_integer(t, path, "deeppcr.outputs", &o->outputs, error));
    DPCR_TRY(read_integer(t, path, "deeppcr.layers", &o->layers, error));
    DPCR_TRY(read_integer(t, path, "deeppcr.width", &o->width, error));
    DPCR_TRY(read_integer(t, path, "deeppcr.hidden", &o->hidden, error));
    DPCR_TRY(read_integer(t, path, "deeppcr.layer_norm", &layer_norm, error));
    const char *activation = dpcr_tensors_metadata(t, "deeppcr.activation");
    if (!activation || dpcr_activation_find(activation, &o->activation, NULL) != DPCR_OK)
        return missing(path, "deeppcr.activation", activation, "the name of an activation", error);
    const char *scale = dpcr_tensors_metadata(t, "deeppcr.scale");
    if (!scale || !dpcri_number_parse(scale, &o->scale))
        return missing(path, "deeppcr.scale", scale, "a number", error);
    if (dpcr_tensors_metadata(t, "deeppcr.tie")) DPCR_TRY(read_integer(t, path, "deeppcr.tie", &o->tie, error));
    const char *seed = dpcr_tensors_metadata(t, "deeppcr.seed");
    o->seed = seed ? strtoull(seed, NULL, 10) : 0;
    o->size = sizeof *o;
    o->architecture = (dpcr_architecture)architecture;
    o->dtype = (dpcr_dtype)dtype;
    o->branch = (dpcr_branch)branch;
    o->layer_norm = layer_norm != 0;
    // The tensors bound the sizes before anything of their size is allocated: each step has at least two of them.
    if (o->layers < 0 || o->layers > t->count)
        return dpcri_fail(error, DPCR_ERROR_FORMAT,
                          "model_load: %s: %lld layers announced, but the file has %lld tensors", path,
                          (long long)o->layers, (long long)t->count);
done:
    return status;
}

// Every parameter must be there, with its dtype and shape, before a model of that size is made.
static dpcr_status check_tensor(const dpcr_model *m, const char *path, const dpcr_tensors *t, const char *name,
                                const dpcr_array *parameter, dpcr_error *error) {
    char got[96], wanted[96];
    const dpcr_tensor *tensor = dpcr_tensors_find(t, name);
    bool same = tensor && tensor->array.dtype == m->options.dtype && tensor->array.ndim == parameter->ndim;
    for (int32_t d = 0; same && d < parameter->ndim; d++) same = tensor->array.shape[d] == parameter->shape[d];
    if (same) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_FORMAT, "model_load: %s: tensor '%s' is %s, wanted %s", path, name,
                      dpcri_tensor_text(t, name, got, sizeof got), dpcri_array_text(parameter, wanted, sizeof wanted));
}

static dpcr_status check_ties(const dpcr_model *m, const char *path, dpcr_error *error) {
    const size_t bytes = (size_t)m->program.parameters * m->program.kernels->element;
    const int64_t tie = m->options.tie;
    for (int64_t l = tie; tie && l < m->options.layers; l++)
        if (memcmp(m->parameters + (size_t)l * bytes, m->parameters + (size_t)(l - tie) * bytes, bytes) != 0)
            return dpcri_fail(
                error, DPCR_ERROR_FORMAT,
                "model_load: %s: layers %lld and %lld are tied (metadata 'deeppcr.tie' is %lld), but differ", path,
                (long long)(l - tie), (long long)l, (long long)tie);
    return DPCR_OK;
}

static dpcr_status read_parameters(dpcr_model *m, const char *path, const dpcr_tensors *t, dpcr_error *error) {
    const int64_t count = dpcri_model_parameters(&m->options);
    for (int64_t i = 0; i < count; i++) {
        char name[64];
        dpcr_array parameter;
        dpcr_status status = dpcr_model_parameter(m, i, name, sizeof name, &parameter, NULL, error);
        if (status == DPCR_OK) status = check_tensor(m, path, t, name, &parameter, error);
        if (status != DPCR_OK) return status;
        copy_strided(m->options.dtype, &dpcr_tensors_find(t, name)->array, &parameter);
    }
    return check_ties(m, path, error);
}

// A hostile file must not make us allocate more than it holds: the numbers announced are those of its tensors.
static dpcr_status check_size(const dpcr_model_options *o, const char *path, const dpcr_tensors *t, dpcr_error *error) {
    int64_t held = 0, step = 0;
    for (int64_t i = 0; i < t->count; i++) {
        int64_t numbers = 1;
        for (int32_t d = 0; d < t->items[i].array.ndim; d++)
            if (!dpcri_mul(numbers, t->items[i].array.shape[d], &numbers)) numbers = 0;
        if (!dpcri_add(held, numbers, &held)) held = INT64_MAX;
    }
    const bool fits = o->width >= 0 && o->inputs >= 0 && o->outputs >= 0 && o->hidden >= 0 &&
                      dpcri_mul(o->width, o->hidden, &step) && (o->layers == 0 || step <= held) && o->inputs <= held &&
                      o->outputs <= held && o->width <= (held > 0 ? held : 4096) &&
                      o->hidden <= (held > 0 ? held : 4096);
    if (fits) return DPCR_OK;
    return dpcri_fail(
        error, DPCR_ERROR_FORMAT,
        "model_load: %s: inputs %lld, outputs %lld, width %lld, hidden %lld announced, but the file holds %lld numbers",
        path, (long long)o->inputs, (long long)o->outputs, (long long)o->width, (long long)o->hidden, (long long)held);
}

dpcr_status dpcri_model_of_tensors(dpcr_context *context, const dpcr_tensors *tensors, const char *path,
                                   dpcr_model **model, dpcr_error *error) {
    dpcr_model_options options = {0};
    dpcr_model *made = NULL;
    dpcr_error why = {0};
    dpcr_status status;
    DPCR_TRY(read_options(tensors, path, &options, error));
    DPCR_TRY(check_size(&options, path, tensors, error));
    options.blank = 1;
    status = dpcr_model_create(context, &options, &made, &why);
    if (status == DPCR_ERROR_ARGUMENT)
        status = dpcri_fail(error, DPCR_ERROR_FORMAT, "model_load: %s: %s", path, why.text);
    else if (status != DPCR_OK && error)
        *error = why;
    if (status != DPCR_OK) goto done;
    DPCR_TRY(read_parameters(made, path, tensors, error));
    for (int64_t i = 0; i < tensors->metadata_count; i++)
        if (tensors->metadata_keys[i][0] && strncmp(tensors->metadata_keys[i], "deeppcr.", 8) != 0)
            DPCR_TRY(dpcr_model_set_metadata(made, tensors->metadata_keys[i], tensors->metadata_values[i], error));
    DPCR_TRY(dpcr_tensors_sum_agrees(tensors, path, error));
    *model = made;
    made = NULL;
done:
    dpcr_model_destroy(made);
    return status;
}

dpcr_status dpcr_model_load(dpcr_context *context, const char *path, dpcr_model **model, dpcr_error *error) {
    if (!model) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "model_load: no place for the model given");
    *model = NULL;
    if (!context || !path) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "model_load: a context and a path are wanted");
    dpcr_tensors tensors = {0};
    dpcr_status status;
    DPCR_TRY(dpcr_safetensors_read(context, path, &tensors, error));
    DPCR_TRY(dpcri_model_of_tensors(context, &tensors, path, model, error));
done:
    dpcr_tensors_free(context, &tensors);
    return status;
}
