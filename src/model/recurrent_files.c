// SPDX-License-Identifier: MIT
// Recurrent networks as safetensors, by the names and shapes of PyTorch's state_dict(): the file's tensors say what
// network it is.
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "data/tensors.h"
#include "model/recurrent_internal.h"

enum { NAME_BYTES = 64, PREFIX_BYTES = 256, MOST_PAIRS = 5 };
#define KIND "deeppcr.recurrent"  // metadata

typedef struct reading {
    const dpcr_tensors *tensors;
    const char *path, *prefix;
} reading;

static const dpcr_tensor *find(const reading *r, const char *name) {
    char whole[PREFIX_BYTES + NAME_BYTES];
    snprintf(whole, sizeof whole, "%s%s", r->prefix, name);
    return dpcr_tensors_find(r->tensors, whole);
}

static dpcr_status wrong(const reading *r, const char *name, const char *wanted, dpcr_error *error) {
    char got[96], whole[PREFIX_BYTES + NAME_BYTES];
    snprintf(whole, sizeof whole, "%s%s", r->prefix, name);
    return dpcri_fail(error, DPCR_ERROR_FORMAT, "recurrent_load: %s: tensor '%s' is %s, wanted %s", r->path, whole,
                      dpcri_tensor_text(r->tensors, whole, got, sizeof got), wanted);
}

// How many tensors are called PREFIX...NAME, and how many bytes the shortest of them, *best, has before NAME. A prefix
// that nobody could give does not count.
static int64_t behind(const reading *r, const char *prefix, const char *name, const char **best, int *bytes) {
    const size_t end = strlen(name), given = strlen(prefix);
    int64_t count = 0;
    for (int64_t i = 0; i < r->tensors->count; i++) {
        const char *const whole = r->tensors->items[i].name;
        const size_t length = strlen(whole), before = length - end;
        if (length < given + end || before >= PREFIX_BYTES || strncmp(whole, prefix, given) != 0 ||
            strcmp(whole + before, name) != 0)
            continue;
        if (count++ > 0 && (int)before >= *bytes) continue;
        *best = whole;
        *bytes = (int)before;
    }
    return count;
}

// A network's first tensor is not there: is it behind a prefix that goes on from the given one ("model.rnn" from
// "model.rnn."), or behind any?
static dpcr_status absent(const reading *r, const char *name, const char *wanted, dpcr_error *error) {
    const char *best = NULL;
    int bytes = 0;
    int64_t count = behind(r, r->prefix, name, &best, &bytes);
    if (count == 0) count = behind(r, "", name, &best, &bytes);
    if (count == 0) return wrong(r, name, wanted, error);
    char where[PREFIX_BYTES + NAME_BYTES] = "without a prefix", others[NAME_BYTES] = "";
    if (bytes) snprintf(where, sizeof where, "behind the prefix '%.*s'", bytes, best);
    if (count > 1)
        snprintf(others, sizeof others, " (and behind %lld other%s)", (long long)count - 1, count > 2 ? "s" : "");
    return dpcri_fail(error, DPCR_ERROR_FORMAT, "recurrent_load: %s: tensor '%s%s' is absent, but '%s' stands %s%s",
                      r->path, r->prefix, name, name, where, others);
}

static bool is_matrix(const dpcr_tensor *t) {
    return t && t->array.ndim == 2 && t->array.shape[0] > 0 && t->array.shape[1] > 0;
}

// Metadata of two values; absent: the usual one. Nothing else is taken for either.
static dpcr_status read_choice(const reading *r, const char *key, const char *usual, const char *other, int *chosen,
                               dpcr_error *error) {
    const char *value = dpcr_tensors_metadata(r->tensors, key);
    *chosen = value && strcmp(value, other) == 0;
    if (!value || *chosen || strcmp(value, usual) == 0) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_FORMAT, "recurrent_load: %s: metadata %s is '%.40s', wanted %s or %s", r->path,
                      key, value, usual, other);
}

// What is not in the tensors' shapes, or only in those that variants have.
static dpcr_status read_variant(const reading *r, int64_t projection, dpcr_recurrent_options *o, dpcr_error *error) {
    const char *const clip = dpcr_tensors_metadata(r->tensors, "onnx.clip");
    dpcr_status status;
    o->projection = projection;
    o->peepholes = find(r, "weight_ch_l0") != NULL;
    DPCR_TRY(read_choice(r, "onnx.direction", "forward", "reverse", &o->reverse, error));
    DPCR_TRY(read_choice(r, "onnx.linear_before_reset", "1", "0", &o->reset_before, error));
    DPCR_TRY(read_choice(r, "onnx.input_forget", "0", "1", &o->input_forget, error));
    const bool alien = (o->kind != DPCR_LSTM && (o->projection || o->peepholes || o->input_forget)) ||
                       (o->kind != DPCR_GRU && o->reset_before) || (o->reverse && o->bidirectional) ||
                       (o->kind >= DPCR_PARAGRU && clip);
    if (alien)
        return dpcri_fail(error, DPCR_ERROR_FORMAT,
                          "recurrent_load: %s: its tensors or metadata tell of a variant that %s%s has not", r->path,
                          dpcr_recurrent_kind_name(o->kind), o->bidirectional ? " of both directions" : "");
    o->clip = 0;
    if (clip && !(dpcri_number_parse(clip, &o->clip) && o->clip > 0 && o->clip <= DBL_MAX))
        return dpcri_fail(error, DPCR_ERROR_FORMAT,
                          "recurrent_load: %s: metadata onnx.clip is '%.40s', wanted a number", r->path, clip);
done:
    return status;
}

// What dpcr_recurrent_save or a converted model says it is; 0: nothing. What it says must be a kind.
static dpcr_status read_kind(const reading *r, dpcr_recurrent_kind *told, dpcr_error *error) {
    const char *const value = dpcr_tensors_metadata(r->tensors, KIND);
    dpcr_error why = {0};
    *told = 0;
    if (!value || dpcr_recurrent_kind_find(value, told, &why) == DPCR_OK) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_FORMAT, "recurrent_load: %s: metadata " KIND ": %s", r->path, why.text);
}

// Kinds whose units do not mix: weight_hh is a vector [3 H], or, of a minGRU, absent; what a file without it is, its
// metadata or the caller say. 0: another kind.
static dpcr_recurrent_kind apart_kind(const reading *r, dpcr_recurrent_kind told, dpcr_recurrent_kind kind) {
    const dpcr_tensor *hh = find(r, "weight_hh_l0");
    if (hh) return hh->array.ndim != 1 ? 0 : find(r, "peephole_l0") ? DPCR_PARALSTM : DPCR_PARAGRU;
    return kind == DPCR_MINGRU || told == DPCR_MINGRU ? DPCR_MINGRU : 0;
}

// Names and shapes of the first layer, layers and directions: the rest of recognise.
static dpcr_status recognise_rest(const reading *r, dpcr_recurrent_kind kind, int64_t hidden, int64_t projection,
                                  dpcr_recurrent_options *o, dpcr_error *error) {
    const dpcr_tensor *ih = find(r, "weight_ih_l0");
    *o = (dpcr_recurrent_options){.size = sizeof *o,
                                  .kind = kind,
                                  .dtype = ih->array.dtype,
                                  .inputs = ih->array.shape[1],
                                  .hidden = hidden,
                                  .bidirectional = find(r, "weight_ih_l0_reverse") != NULL,
                                  .no_bias = find(r, "bias_ih_l0") == NULL};
    const dpcr_status status = read_variant(r, projection, o, error);
    if (status != DPCR_OK) return status;
    char name[NAME_BYTES];
    do snprintf(name, sizeof name, "weight_ih_l%lld", (long long)++o->layers);
    while (o->layers < r->tensors->count && find(r, name));
    return DPCR_OK;
}

// What the weights are must be what the metadata tell and what is asked for, where either is.
static dpcr_status check_kind(const reading *r, dpcr_recurrent_kind found, dpcr_recurrent_kind told,
                              dpcr_recurrent_kind kind, dpcr_error *error) {
    const char *const name = dpcr_recurrent_kind_name(found);
    if (told == DPCR_PARALSTM && found == DPCR_PARAGRU)  // which only this tensor tells apart
        return wrong(r, "peephole_l0", "[2 hidden], as metadata " KIND " is 'paralstm'", error);
    if (told && told != found)
        return dpcri_fail(error, DPCR_ERROR_FORMAT,
                          "recurrent_load: %s: metadata " KIND " is '%s', and its weights are those of %s", r->path,
                          dpcr_recurrent_kind_name(told), name);
    if (kind && kind != found)
        return dpcri_fail(error, DPCR_ERROR_FORMAT, "recurrent_load: %s: its weights are those of %s, wanted %s",
                          r->path, name, dpcr_recurrent_kind_name(kind));
    return DPCR_OK;
}

static dpcr_status recognise_apart(const reading *r, dpcr_recurrent_kind found, dpcr_recurrent_options *o,
                                   dpcr_error *error) {
    const int64_t rows = find(r, "weight_ih_l0")->array.shape[0], gates = found == DPCR_MINGRU ? 2 : 3;
    if (rows % gates) return wrong(r, "weight_ih_l0", "two rows a unit (mingru) or three (paragru, paralstm)", error);
    return recognise_rest(r, found, rows / gates, 0, o, error);
}

// Kind, widths, layers and directions from the first layer's tensors and the names that are there.
static dpcr_status recognise(const reading *r, dpcr_recurrent_kind kind, dpcr_recurrent_options *o, dpcr_error *error) {
    const dpcr_tensor *ih = find(r, "weight_ih_l0"), *hh = find(r, "weight_hh_l0");
    const char *const matrix = "a matrix [gates hidden][inputs], as torch.nn.RNN, GRU and LSTM have it";
    if (!ih) return absent(r, "weight_ih_l0", matrix, error);
    if (!is_matrix(ih)) return wrong(r, "weight_ih_l0", matrix, error);
    if (ih->array.dtype != DPCR_F32 && ih->array.dtype != DPCR_F64)
        return wrong(r, "weight_ih_l0", "F32 or F64", error);
    dpcr_recurrent_kind told;
    dpcr_status status = read_kind(r, &told, error);
    if (status != DPCR_OK) return status;
    const dpcr_recurrent_kind apart = apart_kind(r, told, kind);
    if (apart) {
        status = check_kind(r, apart, told, kind, error);
        return status == DPCR_OK ? recognise_apart(r, apart, o, error) : status;
    }
    if (!is_matrix(hh)) return wrong(r, "weight_hh_l0", "a matrix [gates hidden][hidden]", error);
    const dpcr_tensor *hr = find(r, "weight_hr_l0");  // an LSTM's projection: [P][H], and weight_hh has P columns
    if (hr && (!is_matrix(hr) || hr->array.shape[0] != hh->array.shape[1] || hr->array.shape[0] >= hr->array.shape[1] ||
               hh->array.shape[0] / 4 != hr->array.shape[1]))
        return wrong(r, "weight_hr_l0",
                     "[projection][hidden], as an LSTM with the columns and rows of weight_hh has it", error);
    const int64_t rows = hh->array.shape[0], hidden = hh->array.shape[hr ? 0 : 1] / (hr ? 4 : 1);
    const int gates = rows == hidden ? 1 : rows == 3 * hidden ? 3 : rows == 4 * hidden ? 4 : 0;
    if (!gates) return wrong(r, "weight_hh_l0", "1, 3 or 4 times as many rows as columns (rnn, gru, lstm)", error);
    const bool relu = (told ? told : kind) == DPCR_RNN_RELU;  // an RNN's weights do not say
    const dpcr_recurrent_kind found = gates == 3   ? DPCR_GRU
                                      : gates == 4 ? DPCR_LSTM
                                      : relu       ? DPCR_RNN_RELU
                                                   : DPCR_RNN_TANH;
    status = check_kind(r, found, told, kind, error);
    return status == DPCR_OK ? recognise_rest(r, found, hidden, hr ? hr->array.shape[0] : 0, o, error) : status;
}

static dpcr_status read_parameters(dpcr_recurrent *n, const reading *r, dpcr_error *error) {
    for (int64_t i = 0; i < dpcr_recurrent_parameter_count(n); i++) {
        char name[NAME_BYTES], wanted[96];
        dpcr_array parameter;
        dpcr_status status = dpcr_recurrent_parameter(n, i, name, sizeof name, &parameter, NULL, error);
        if (status != DPCR_OK) return status;
        const dpcr_tensor *tensor = find(r, name);
        bool same = tensor && tensor->array.dtype == parameter.dtype && tensor->array.ndim == parameter.ndim;
        int64_t count = 1;
        for (int32_t d = 0; same && d < parameter.ndim; d++) {
            same = tensor->array.shape[d] == parameter.shape[d];
            count *= parameter.shape[d];
        }
        if (!same) return wrong(r, name, dpcri_array_text(&parameter, wanted, sizeof wanted), error);
        memcpy(parameter.data, tensor->array.data, (size_t)count * n->element);
    }
    return DPCR_OK;
}

static dpcr_status check_matrix(const reading *r, const dpcr_recurrent_options *o, const char *kind, int64_t chain,
                                int64_t rows, int64_t columns, dpcr_error *error) {
    const int64_t D = o->bidirectional ? 2 : 1;
    char name[NAME_BYTES], wanted[64];
    snprintf(name, sizeof name, "weight_%s_l%lld%s", kind, (long long)(chain / D), chain % D ? "_reverse" : "");
    const dpcr_tensor *t = find(r, name);
    if (is_matrix(t) && t->array.shape[0] == rows && t->array.shape[1] == columns) return DPCR_OK;
    snprintf(wanted, sizeof wanted, "[%lld][%lld]", (long long)rows, (long long)columns);
    return wrong(r, name, wanted, error);
}

// A hostile file must not make us allocate more than it holds: every matrix is there, in its shape, before there is a
// network.
static dpcr_status check_matrices(const reading *r, const dpcr_recurrent_options *o, dpcr_error *error) {
    const int64_t D = o->bidirectional ? 2 : 1, rows = find(r, "weight_ih_l0")->array.shape[0];
    const int64_t out = o->projection ? o->projection : o->hidden;
    dpcr_status status = DPCR_OK;
    for (int64_t c = 0; c < o->layers * D; c++) {
        DPCR_TRY(check_matrix(r, o, "ih", c, rows, c < D ? o->inputs : D * out, error));
        if (o->kind < DPCR_PARAGRU) DPCR_TRY(check_matrix(r, o, "hh", c, rows, out, error));
        if (o->projection) DPCR_TRY(check_matrix(r, o, "hr", c, out, o->hidden, error));
    }
done:
    return status;
}

// KIND_lN, with or without _reverse, as parameters are called; else false.
static bool is_parameter(const char *name, const char *kind, int64_t *layer, bool *reverse) {
    const size_t length = strlen(kind);
    if (strncmp(name, kind, length) != 0 || strncmp(name + length, "_l", 2) != 0) return false;
    const char *digits = name + length + 2;
    char *end = NULL;
    if (*digits < '0' || *digits > '9' || (*digits == '0' && digits[1] >= '0' && digits[1] <= '9')) return false;
    *layer = strtoll(digits, &end, 10);
    *reverse = strcmp(end, "_reverse") == 0;
    return *reverse || !*end;
}

static const char *const kinds[] = {"weight_ih", "weight_hh", "weight_hr", "weight_ch",
                                    "bias_ih",   "bias_hh",   "peephole"};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

// A parameter whose type was not loaded must not pass for one that is not there.
static dpcr_status check_others(const reading *r, dpcr_error *error) {
    const size_t prefix = strlen(r->prefix);
    for (int64_t i = 0; i < r->tensors->other_count; i++) {
        const char *name = r->tensors->other_names[i];
        int64_t layer;
        bool reverse, asked = false;
        if (strncmp(name, r->prefix, prefix) != 0) continue;
        for (int k = 0; k < KINDS; k++) asked |= is_parameter(name + prefix, kinds[k], &layer, &reverse);
        if (asked) return wrong(r, name + prefix, "F32 or F64", error);
    }
    return DPCR_OK;
}

// A layer that misses one tensor must not pass for a network without it.
static dpcr_status check_names(const dpcr_recurrent *n, const reading *r, dpcr_error *error) {
    const dpcr_recurrent_options *o = &n->options;
    const int64_t each = dpcr_recurrent_parameter_count(n) / n->chains;
    const size_t prefix = strlen(r->prefix);
    bool there[KINDS] = {false}, reverse;
    int64_t layer;
    for (int64_t i = 0; i < each; i++) {
        char name[NAME_BYTES];
        const dpcr_status status = dpcr_recurrent_parameter(n, i, name, sizeof name, NULL, NULL, error);
        if (status != DPCR_OK) return status;
        for (int k = 0; k < KINDS; k++) there[k] |= is_parameter(name, kinds[k], &layer, &reverse);
    }
    for (int64_t i = 0; i < r->tensors->count; i++) {
        const char *name = r->tensors->items[i].name;
        if (strncmp(name, r->prefix, prefix) != 0) continue;
        for (int k = 0; k < KINDS; k++)
            if (is_parameter(name + prefix, kinds[k], &layer, &reverse) &&
                (!there[k] || layer >= o->layers || (reverse && !o->bidirectional)))
                return dpcri_fail(error, DPCR_ERROR_FORMAT,
                                  "recurrent_load: %s: tensor '%.64s' has no place among the others, which are those "
                                  "of %s, layers %lld, %s, %s",
                                  r->path, name, dpcr_recurrent_kind_name(o->kind), (long long)o->layers,
                                  o->bidirectional ? "both directions" : "one direction",
                                  o->no_bias ? "no biases" : "biases");
    }
    return DPCR_OK;
}

// What create refuses of a file is the file's fault.
static dpcr_status create(dpcr_context *context, const reading *r, const dpcr_recurrent_options *options,
                          dpcr_recurrent **network, dpcr_error *error) {
    dpcr_error why = {0};
    const dpcr_status status = dpcr_recurrent_create(context, options, network, &why);
    if (status == DPCR_ERROR_ARGUMENT || status == DPCR_ERROR_UNSUPPORTED)
        return dpcri_fail(error, DPCR_ERROR_FORMAT, "recurrent_load: %s: %s", r->path, why.text);
    if (status != DPCR_OK && error) *error = why;
    return status;
}

dpcr_status dpcri_recurrent_of_tensors(dpcr_context *context, const dpcr_tensors *tensors, const char *path,
                                       const char *prefix, dpcr_recurrent_kind kind, dpcr_recurrent **network,
                                       dpcr_error *error) {
    const reading r = {.tensors = tensors, .path = path, .prefix = prefix ? prefix : ""};
    dpcr_recurrent_options options = {0};
    dpcr_recurrent *made = NULL;
    dpcr_status status;
    DPCR_TRY(check_others(&r, error));
    DPCR_TRY(recognise(&r, kind, &options, error));
    DPCR_TRY(check_matrices(&r, &options, error));
    DPCR_TRY(create(context, &r, &options, &made, error));
    DPCR_TRY(read_parameters(made, &r, error));
    DPCR_TRY(check_names(made, &r, error));
    *network = made;
    made = NULL;
done:
    dpcr_recurrent_destroy(made);
    return status;
}

dpcr_status dpcr_recurrent_load(dpcr_context *context, const char *path, const char *prefix, dpcr_recurrent_kind kind,
                                dpcr_recurrent **network, dpcr_error *error) {
    if (!network) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "recurrent_load: no place for the network given");
    *network = NULL;
    if (!context || !path)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "recurrent_load: a context and a path are wanted");
    if (prefix && strlen(prefix) >= PREFIX_BYTES)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "recurrent_load: the prefix has %zu bytes, wanted fewer than %d",
                          strlen(prefix), PREFIX_BYTES);
    dpcr_tensors tensors = {0};
    dpcr_status status;
    DPCR_TRY(dpcr_safetensors_read(context, path, &tensors, error));
    DPCR_TRY(dpcri_recurrent_of_tensors(context, &tensors, path, prefix, kind, network, error));
done:
    dpcr_tensors_free(context, &tensors);
    return status;
}

// Metadata that read_variant reads; returns how many.
static int64_t describe(const dpcr_recurrent_options *o, char pairs[MOST_PAIRS][2][NAME_BYTES]) {
    const dpcri_number clip = dpcri_number_text(o->clip);
    const struct {
        const char *key, *value;
        bool wanted;
    } all[MOST_PAIRS] = {
        {KIND, dpcr_recurrent_kind_name(o->kind), true},
        {"onnx.direction", "reverse", o->reverse},
        {"onnx.linear_before_reset", "0", o->reset_before},
        {"onnx.input_forget", "1", o->input_forget},
        {"onnx.clip", clip.text, o->clip > 0},
    };
    int64_t count = 0;
    for (int i = 0; i < MOST_PAIRS; i++) {
        if (!all[i].wanted) continue;
        snprintf(pairs[count][0], NAME_BYTES, "%s", all[i].key);
        snprintf(pairs[count++][1], NAME_BYTES, "%s", all[i].value);
    }
    return count;
}

dpcr_status dpcr_recurrent_save(const dpcr_recurrent *n, const char *path, dpcr_error *error) {
    if (!n || !path) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "recurrent_save: a network and a path are wanted");
    const int64_t count = dpcr_recurrent_parameter_count(n);
    dpcr_tensor *items = dpcri_alloc_zero(n->context, (size_t)count * sizeof *items);
    char *names = dpcri_alloc(n->context, (size_t)count * NAME_BYTES);
    dpcr_status status;
    if (!items || !names) {
        status = dpcri_fail(error, DPCR_ERROR_MEMORY, "recurrent_save: no memory for %lld names", (long long)count);
        goto done;
    }
    for (int64_t i = 0; i < count; i++) {
        items[i].name = names + i * NAME_BYTES;
        DPCR_TRY(dpcr_recurrent_parameter(n, i, items[i].name, NAME_BYTES, &items[i].array, NULL, error));
    }
    char pairs[MOST_PAIRS][2][NAME_BYTES], *keys[MOST_PAIRS], *values[MOST_PAIRS];
    const int64_t told = describe(&n->options, pairs);
    for (int64_t i = 0; i < told; i++) keys[i] = pairs[i][0], values[i] = pairs[i][1];
    const dpcr_tensors tensors = {
        .count = count, .items = items, .metadata_count = told, .metadata_keys = keys, .metadata_values = values};
    DPCR_TRY(dpcr_safetensors_write(path, &tensors, error));
done:
    dpcri_free(n->context, names);
    dpcri_free(n->context, items);
    return status;
}
