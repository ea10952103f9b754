// SPDX-License-Identifier: MIT
// Sequence models: options, parameters, files.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "data/tensors.h"
#include "deeppcr/embedding.h"
#include "model/recurrent_internal.h"
#include "train/checkpoint.h"
#include "train/sequence.h"

enum { NAME_BYTES = 72, ENDS = 3, MOST_SYMBOLS = 256 };

#define PREFIX "rnn."

static const char *const readout_names[] = {"", "last", "mean", "each"};

const char *dpcr_readout_name(dpcr_readout readout) {
    return readout >= DPCR_READOUT_LAST && readout <= DPCR_READOUT_EACH ? readout_names[readout] : "unknown";
}

dpcr_status dpcr_readout_find(const char *name, dpcr_readout *readout, dpcr_error *error) {
    for (int i = DPCR_READOUT_LAST; name && readout && i <= DPCR_READOUT_EACH; i++)
        if (strcmp(name, readout_names[i]) == 0) {
            *readout = (dpcr_readout)i;
            return DPCR_OK;
        }
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "no readout '%.40s'; there are last, mean, each", name ? name : "");
}

// ---- creating ----

static dpcr_status check_options(const dpcr_sequence_options *o, dpcr_error *error) {
    const char *const call = "sequence_create";
    if (o->symbols < 0 || o->symbols > MOST_SYMBOLS)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: symbols is %lld, wanted 0 (vectors) to %d", call,
                          (long long)o->symbols, MOST_SYMBOLS);
    if (o->outputs < 1 || o->outputs > MOST_SYMBOLS)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: outputs is %lld, wanted 1 to %d", call,
                          (long long)o->outputs, MOST_SYMBOLS);
    if (o->readout < DPCR_READOUT_LAST || o->readout > DPCR_READOUT_EACH)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: readout is %d, wanted last, mean or each", call,
                          (int)o->readout);
    return DPCR_OK;
}

static dpcr_array ends_array(const dpcr_sequence *m, char *vector, int which) {
    const int64_t offsets[ENDS] = {0, m->head, m->bias};
    const int64_t shapes[ENDS][2] = {
        {m->options.symbols, m->options.network.inputs}, {m->options.outputs, m->width}, {m->options.outputs, 1}};
    return dpcr_array_make(dpcri_sequence_at(m, vector, offsets[which]), dpcri_sequence_dtype(m), which < 2 ? 2 : 1,
                           shapes[which]);
}

static const char *const ends_names[ENDS] = {"embedding.weight", "head.weight", "head.bias"};

static void draw_head(dpcr_sequence *m) {
    enum { STREAM = 0x80000001 };  // beyond those of networks
    const double bound = 1 / sqrt((double)m->width);
    for (int64_t i = m->head; i < m->count; i++) {
        const double u = dpcri_random_uniform(m->options.network.seed, DPCRI_STREAM_PARAMETERS | STREAM, (uint64_t)i);
        if (dpcri_sequence_dtype(m) == DPCR_F64)
            ((double *)m->parameters)[i] = bound * (2 * u - 1);
        else
            ((float *)m->parameters)[i] = (float)(bound * (2 * u - 1));
    }
}

// Takes the network over, also on failure.
static dpcr_status make(dpcr_context *context, const dpcr_sequence_options *options, dpcr_recurrent *network,
                        dpcr_sequence **model, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcr_sequence *m = dpcri_alloc_zero(context, sizeof *m);
    if (!m) {
        dpcr_recurrent_destroy(network);
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "sequence_create: no memory for the model");
    }
    m->context = context;
    m->network = network;
    m->options = *options;
    m->options.network = *dpcr_recurrent_get_options(network);
    const dpcr_recurrent_options *n = &m->options.network;
    m->directions = n->bidirectional ? 2 : 1;
    m->chains = n->layers * m->directions;
    m->projected = n->projection ? n->projection : n->hidden;
    m->width = m->directions * m->projected;
    m->kernels = dpcri_nn_kernels_get(n->dtype);
    m->head = options->symbols * n->inputs;  // the network's own matrices are larger and fit
    m->bias = m->head + options->outputs * m->width;
    m->count = m->bias + options->outputs;
    m->parameters = dpcri_alloc_zero(context, (size_t)m->count * m->kernels->element);
    m->gradients = dpcri_alloc_zero(context, (size_t)m->count * m->kernels->element);
    if (!m->parameters || !m->gradients)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "sequence_create: no memory for 2 x %lld numbers",
                            (long long)m->count));
    if (options->symbols) {
        const dpcr_array embedding = ends_array(m, m->parameters, 0);
        DPCR_TRY(dpcr_embedding_initialise(context, &embedding, n->seed, -1, error));
    }
    draw_head(m);
    *model = m;
    return DPCR_OK;
done:
    dpcr_sequence_destroy(m);
    return status;
}

dpcr_status dpcr_sequence_create(dpcr_context *context, const dpcr_sequence_options *options, dpcr_sequence **model,
                                 dpcr_error *error) {
    dpcr_status status;
    if (model) *model = NULL;
    if (!context || !options || !model)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sequence_create: context, options or the place is NULL");
    if (options->size < sizeof *options)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "sequence_create: options.size is %zu, wanted sizeof(dpcr_sequence_options)", options->size);
    dpcr_recurrent *network = NULL;
    dpcr_recurrent_options inner = options->network;
    inner.size = sizeof inner;
    DPCR_TRY(check_options(options, error));
    DPCR_TRY(dpcr_recurrent_create(context, &inner, &network, error));
    DPCR_TRY(make(context, options, network, model, error));
done:
    return status;
}

static void free_string(dpcr_context *context, dpcri_sequence_string *s) {
    if (!s) return;
    dpcri_free(context, s->key);
    dpcri_free(context, s->value);
    dpcri_free(context, s);
}

void dpcr_sequence_destroy(dpcr_sequence *m) {
    if (!m) return;
    for (dpcri_sequence_string *s = m->strings, *next; s; s = next) {
        next = s->next;
        free_string(m->context, s);
    }
    dpcr_recurrent_destroy(m->network);
    dpcri_free(m->context, m->gradients);
    dpcri_free(m->context, m->parameters);
    dpcri_free(m->context, m);
}

const dpcr_sequence_options *dpcr_sequence_get_options(const dpcr_sequence *m) { return m ? &m->options : NULL; }
dpcr_recurrent *dpcr_sequence_network(dpcr_sequence *m) { return m ? m->network : NULL; }

int64_t dpcr_sequence_parameter_count(const dpcr_sequence *m) {
    int64_t inner = 0;
    if (!m) return 0;
    dpcr_recurrent_vector(m->network, &inner);
    return inner + m->count;
}

// ---- metadata ----

// "onnx.": what a network is read by (dpcr_recurrent_load).
static bool is_ours(const char *key) { return strncmp(key, "deeppcr.", 8) == 0 || strncmp(key, "onnx.", 5) == 0; }

dpcr_status dpcr_sequence_set_metadata(dpcr_sequence *m, const char *key, const char *value, dpcr_error *error) {
    dpcr_status status;
    dpcri_quoted quoted;
    if (!m || !key || !value)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sequence_set_metadata: model, key or value is NULL");
    DPCR_TRY(dpcri_metadata_check("sequence_set_metadata", key, value, error));
    if (is_ours(key))
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sequence_set_metadata: the key '%s' is the library's",
                            dpcri_quote(key, &quoted)));
    dpcri_sequence_string *made = dpcri_alloc_zero(m->context, sizeof *made), **at = &m->strings;
    if (made) made->key = dpcri_strdup(m->context, key);
    if (made) made->value = dpcri_strdup(m->context, value);
    if (!made || !made->key || !made->value) {
        free_string(m->context, made);
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "sequence_set_metadata: no memory for '%s'",
                          dpcri_quote(key, &quoted));
    }
    while (*at && strcmp((*at)->key, key) != 0) at = &(*at)->next;
    if (*at) {
        dpcri_sequence_string *old = *at;
        made->next = old->next;
        free_string(m->context, old);
    }
    *at = made;
done:
    return status;
}

const char *dpcr_sequence_metadata(const dpcr_sequence *m, const char *key) {
    for (const dpcri_sequence_string *s = m && key ? m->strings : NULL; s; s = s->next)
        if (strcmp(s->key, key) == 0) return s->value;
    return NULL;
}

// ---- files ----

dpcr_status dpcr_sequence_save(const dpcr_sequence *m, const char *path, dpcr_error *error) {
    static const dpcr_tensors nothing = {0};
    if (!m || !path) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sequence_save: a model and a path are wanted");
    return dpcri_sequence_save_with(m, path, &nothing, error);
}

typedef struct bundle {
    dpcr_tensors tensors;
    char *names;
} bundle;

static void add_string(dpcr_tensors *t, const char *key, const char *value) {
    t->metadata_keys[t->metadata_count] = (char *)(uintptr_t)key;
    t->metadata_values[t->metadata_count++] = (char *)(uintptr_t)value;
}

static dpcr_status fill(bundle *b, const dpcr_sequence *m, const dpcr_tensors *extra, dpcr_error *error) {
    dpcr_tensors *t = &b->tensors;
    for (int64_t i = 0; i < dpcr_recurrent_parameter_count(m->network); i++) {
        dpcr_tensor *item = &t->items[t->count];
        item->name = b->names + t->count++ * NAME_BYTES;
        memcpy(item->name, PREFIX, sizeof PREFIX);
        const dpcr_status status = dpcr_recurrent_parameter(m->network, i, item->name + sizeof PREFIX - 1,
                                                            NAME_BYTES - sizeof PREFIX, &item->array, NULL, error);
        if (status != DPCR_OK) return status;
    }
    for (int i = m->options.symbols ? 0 : 1; i < ENDS; i++)
        t->items[t->count++] =
            (dpcr_tensor){.name = (char *)(uintptr_t)ends_names[i], .array = ends_array(m, m->parameters, i)};
    for (int64_t i = 0; i < extra->count; i++) t->items[t->count++] = extra->items[i];
    add_string(t, "deeppcr.recurrent", dpcr_recurrent_kind_name(m->options.network.kind));
    add_string(t, "deeppcr.readout", dpcr_readout_name(m->options.readout));
    for (const dpcri_sequence_string *s = m->strings; s; s = s->next) add_string(t, s->key, s->value);
    for (int64_t i = 0; i < extra->metadata_count; i++)
        add_string(t, extra->metadata_keys[i], extra->metadata_values[i]);
    return DPCR_OK;
}

dpcr_status dpcri_sequence_save_with(const dpcr_sequence *m, const char *path, const dpcr_tensors *extra,
                                     dpcr_error *error) {
    dpcr_status status;
    const dpcr_recurrent_options *n = &m->options.network;
    if (n->reverse || n->reset_before || n->input_forget || n->clip != 0)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "sequence_save: a network with reverse, reset_before, input_forget or clip cannot be saved");
    const size_t inner = (size_t)dpcr_recurrent_parameter_count(m->network),
                 items = inner + ENDS + (size_t)extra->count;
    size_t pairs = 2 + (size_t)extra->metadata_count;
    for (const dpcri_sequence_string *s = m->strings; s; s = s->next) pairs++;
    bundle b = {.names = dpcri_alloc_zero(m->context, inner * NAME_BYTES)};
    b.tensors.items = dpcri_alloc_zero(m->context, items * sizeof *b.tensors.items);
    b.tensors.metadata_keys = dpcri_alloc_zero(m->context, pairs * sizeof(char *));
    b.tensors.metadata_values = dpcri_alloc_zero(m->context, pairs * sizeof(char *));
    if (!b.names || !b.tensors.items || !b.tensors.metadata_keys || !b.tensors.metadata_values)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "sequence_save: no memory for %zu names", items));
    DPCR_TRY(fill(&b, m, extra, error));
    const bool alone = !extra->count && !extra->metadata_count;  // else what a run goes on from, with a sum
    DPCR_TRY((alone ? dpcr_safetensors_write : dpcr_safetensors_write_summed)(path, &b.tensors, error));
done:
    dpcri_free(m->context, b.tensors.metadata_values);
    dpcri_free(m->context, b.tensors.metadata_keys);
    dpcri_free(m->context, b.tensors.items);
    dpcri_free(m->context, b.names);
    return status;
}

static dpcr_status wrong(const dpcr_tensors *file, const char *path, const char *name, const char *wanted,
                         dpcr_error *error) {
    char got[96];
    return dpcri_fail(error, DPCR_ERROR_FORMAT, "sequence_load: %s: tensor '%s' is %s, wanted %s", path, name,
                      dpcri_tensor_text(file, name, got, sizeof got), wanted);
}

static dpcr_status read_options(const dpcr_tensors *file, const char *path, dpcr_sequence_options *o,
                                dpcr_error *error) {
    const char *readout = dpcr_tensors_metadata(file, "deeppcr.readout");
    const dpcr_tensor *embedding = dpcr_tensors_find(file, ends_names[0]),
                      *head = dpcr_tensors_find(file, ends_names[1]);
    if (!readout || dpcr_readout_find(readout, &o->readout, NULL) != DPCR_OK)
        return dpcri_fail(
            error, DPCR_ERROR_FORMAT,
            "sequence_load: %s is no sequence model: 'deeppcr.readout' is %.40s, wanted last, mean or each", path,
            readout ? readout : "absent");
    if (!head || head->array.ndim != 2 || head->array.shape[0] < 1 || head->array.shape[0] > MOST_SYMBOLS)
        return wrong(file, path, ends_names[1], "a matrix of 1 to 256 rows", error);
    if (dpcr_tensors_other(file, ends_names[0])) return wrong(file, path, ends_names[0], "F32 or F64", error);
    if (embedding && (embedding->array.ndim != 2 || embedding->array.shape[0] < 1 ||
                      embedding->array.shape[0] > MOST_SYMBOLS || embedding->array.shape[1] != o->network.inputs))
        return wrong(file, path, ends_names[0], "1 to 256 rows of the network's inputs", error);
    o->size = sizeof *o;
    o->symbols = embedding ? embedding->array.shape[0] : 0;
    o->outputs = head->array.shape[0];
    return DPCR_OK;
}

static dpcr_status read_ends(dpcr_sequence *m, const dpcr_tensors *file, const char *path, dpcr_error *error) {
    for (int i = m->options.symbols ? 0 : 1; i < ENDS; i++) {
        const dpcr_array to = ends_array(m, m->parameters, i);
        const dpcr_tensor *from = dpcr_tensors_find(file, ends_names[i]);
        char wanted[96];
        bool same = from && from->array.dtype == to.dtype && from->array.ndim == to.ndim;
        int64_t count = 1;
        for (int32_t d = 0; same && d < to.ndim; d++) {
            same = from->array.shape[d] == to.shape[d];
            count *= to.shape[d];
        }
        if (!same) return wrong(file, path, ends_names[i], dpcri_array_text(&to, wanted, sizeof wanted), error);
        memcpy(to.data, from->array.data, (size_t)count * m->kernels->element);
    }
    return DPCR_OK;
}

static dpcr_status check_finite(dpcr_sequence *m, const char *path, dpcr_error *error) {
    int64_t inner = 0;
    const void *vector = dpcr_recurrent_vector(m->network, &inner);
    if (dpcri_first_not_finite(dpcri_sequence_dtype(m), vector, inner) < 0 &&
        dpcri_first_not_finite(dpcri_sequence_dtype(m), m->parameters, m->count) < 0)
        return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_FORMAT, "sequence_load: %s holds a number that is not finite", path);
}

static dpcr_status read_strings(dpcr_sequence *m, const dpcr_tensors *file, dpcr_error *error) {
    for (int64_t i = 0; i < file->metadata_count; i++) {
        if (is_ours(file->metadata_keys[i])) continue;
        const dpcr_status status =
            dpcr_sequence_set_metadata(m, file->metadata_keys[i], file->metadata_values[i], error);
        if (status != DPCR_OK) return status;
    }
    return DPCR_OK;
}

dpcr_status dpcri_sequence_of_tensors(dpcr_context *context, const dpcr_tensors *file, const char *path,
                                      dpcr_sequence **model, dpcr_error *error) {
    dpcr_status status;
    dpcr_recurrent *network = NULL;
    dpcr_sequence *made = NULL;
    dpcr_sequence_options options = {0};
    DPCR_TRY(dpcri_recurrent_of_tensors(context, file, path, PREFIX, 0, &network, error));
    options.network = *dpcr_recurrent_get_options(network);
    DPCR_TRY(read_options(file, path, &options, error));
    status = make(context, &options, network, &made, error);
    network = NULL;
    if (status != DPCR_OK) goto done;
    DPCR_TRY(read_ends(made, file, path, error));
    DPCR_TRY(check_finite(made, path, error));
    DPCR_TRY(read_strings(made, file, error));
    DPCR_TRY(dpcr_tensors_sum_agrees(file, path, error));
    *model = made;
    made = NULL;
done:
    dpcr_sequence_destroy(made);
    dpcr_recurrent_destroy(network);
    return status;
}

dpcr_status dpcr_sequence_load(dpcr_context *context, const char *path, dpcr_sequence **model, dpcr_error *error) {
    dpcr_status status;
    dpcr_tensors file = {0};
    if (model) *model = NULL;
    if (!context || !path || !model)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sequence_load: context, path or the place is NULL");
    DPCR_TRY(dpcr_safetensors_read(context, path, &file, error));
    DPCR_TRY(dpcri_sequence_of_tensors(context, &file, path, model, error));
done:
    dpcr_tensors_free(context, &file);
    return status;
}
