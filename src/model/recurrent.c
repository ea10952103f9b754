// SPDX-License-Identifier: MIT
// Recurrent networks: options, memory, the table of parameters, initialisation. One vector of parameters, one of
// gradients; layer by layer, the reverse direction after the forward one:  weight_ih, weight_hh, bias_ih, bias_hh,
// weight_hr, weight_ch, peephole, as far as the network has them.
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/random.h"
#include "model/recurrent_internal.h"

enum { WIDEST = 16384 };

enum { KINDS = DPCR_MINGRU + 1 };
static const char *const kind_names[KINDS] = {"", "rnn", "rnn-relu", "gru", "lstm", "paragru", "paralstm", "mingru"};
static const dpcri_gates_kind kind_gates[KINDS] = {0,
                                                   DPCRI_GATES_RNN,
                                                   DPCRI_GATES_RNN,
                                                   DPCRI_GATES_GRU,
                                                   DPCRI_GATES_LSTM,
                                                   DPCRI_PARA_GRU,
                                                   DPCRI_PARA_LSTM,
                                                   DPCRI_PARA_LINEAR};

static bool is_kind(int kind) { return kind >= DPCR_RNN_TANH && kind < KINDS; }

const char *dpcr_recurrent_kind_name(dpcr_recurrent_kind kind) { return is_kind(kind) ? kind_names[kind] : "unknown"; }

int dpcr_recurrent_kind_has_cell(dpcr_recurrent_kind kind) {
    return is_kind(kind) && dpcri_gates_state[kind_gates[kind]] == 2;
}

dpcr_status dpcr_recurrent_kind_find(const char *name, dpcr_recurrent_kind *kind, dpcr_error *error) {
    for (int i = DPCR_RNN_TANH; name && kind && is_kind(i); i++)
        if (strcmp(name, kind_names[i]) == 0) {
            *kind = (dpcr_recurrent_kind)i;
            return DPCR_OK;
        }
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                      "no recurrent network '%.40s'; there are rnn, rnn-relu, gru, lstm, paragru, paralstm and mingru",
                      name ? name : "");
}

static dpcr_status check_variant(const dpcr_recurrent_options *o, dpcr_error *error) {
    const char *const call = "recurrent_create", *const kind = dpcr_recurrent_kind_name(o->kind);
    if (o->kind != DPCR_LSTM && (o->projection || o->peepholes || o->input_forget))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: projection, peepholes and input_forget are of an LSTM; this is %s", call, kind);
    if (o->kind != DPCR_GRU && o->reset_before)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: reset_before is of a GRU; this is %s", call, kind);
    if (o->projection < 0 || o->projection >= o->hidden)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: projection is %lld, wanted 1..%lld, fewer than hidden, or 0 for none", call,
                          (long long)o->projection, (long long)o->hidden - 1);
    if (o->reverse && o->bidirectional)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: reverse is the only direction, or bidirectional: not both",
                          call);
    if (!(o->clip >= 0 && o->clip <= DBL_MAX))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: clip is %g, wanted 0 (none) or more", call, o->clip);
    if (o->clip > 0 && o->dtype == DPCR_F32 && (float)o->clip == 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: clip is %g, which is 0 in float32, wanted 1e-45 or more",
                          call, o->clip);
    if (o->clip > 0 && dpcri_gates_apart(kind_gates[o->kind]))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: clip is of rnn, rnn-relu, gru and lstm; this is %s", call,
                          kind);
    return DPCR_OK;
}

static dpcr_status check_options(const dpcr_recurrent_options *o, dpcr_error *error) {
    const char *const call = "recurrent_create";
    if (!is_kind((int)o->kind))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: kind is %d, wanted a dpcr_recurrent_kind, 1..%d", call,
                          (int)o->kind, KINDS - 1);
    if (o->dtype != DPCR_F32 && o->dtype != DPCR_F64)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: dtype is %s, wanted float32 or float64", call,
                          dpcr_dtype_name(o->dtype));
    if (o->inputs < 1 || o->inputs > INT32_MAX || o->hidden < 1 || o->hidden > WIDEST || o->layers < 1 ||
        o->layers > 4096)
        return dpcri_fail(
            error, DPCR_ERROR_ARGUMENT,
            "%s: inputs %lld, hidden %lld, layers %lld; wanted inputs >= 1, hidden in 1..%d, layers in 1..4096", call,
            (long long)o->inputs, (long long)o->hidden, (long long)o->layers, WIDEST);
    return check_variant(o, error);
}

int64_t dpcri_recurrent_inputs(const dpcr_recurrent *n, int64_t chain) {
    return chain < n->directions ? n->options.inputs : dpcri_recurrent_y(n);
}

// Rows and columns of a tensor; 0 rows: the network has none.
static void tensor_shape(const dpcr_recurrent *n, int64_t chain, int which, int64_t shape[2]) {
    const int64_t H = n->options.hidden, gates = dpcri_gates_count[n->gates] * H;
    const int64_t bias = n->options.no_bias ? 0 : gates;
    const bool apart = dpcri_gates_apart(n->gates);
    const int64_t shapes[DPCRI_RECURRENT_TENSORS][2] = {
        [DPCRI_WEIGHT_IH] = {gates, dpcri_recurrent_inputs(n, chain)},
        [DPCRI_WEIGHT_HH] = {n->gates == DPCRI_PARA_LINEAR ? 0 : gates, apart ? 1 : dpcri_recurrent_h(n)},
        [DPCRI_BIAS_IH] = {bias, 1},
        [DPCRI_BIAS_HH] = {apart ? 0 : bias, 1},
        [DPCRI_WEIGHT_HR] = {n->options.projection, H},
        [DPCRI_PEEPHOLE] = {n->gates == DPCRI_PARA_LSTM ? 2 * H : 0, 1},
        [DPCRI_WEIGHT_CH] = {n->options.peepholes ? 3 * H : 0, 1},
    };
    memcpy(shape, shapes[which], sizeof shapes[which]);
}

// Numbers of one layer and direction before one of its tensors.
static int64_t tensor_offset(const dpcr_recurrent *n, int64_t chain, int which) {
    int64_t offset = 0, shape[2];
    for (int i = 0; i < which; i++) {
        tensor_shape(n, chain, i, shape);
        offset += shape[0] * shape[1];
    }
    return offset;
}

int64_t dpcri_recurrent_offset(const dpcr_recurrent *n, int64_t chain, dpcri_recurrent_tensor which) {
    int64_t shape[2];
    tensor_shape(n, chain, which, shape);
    if (!shape[0]) return -1;
    const int64_t first = tensor_offset(n, 0, DPCRI_RECURRENT_TENSORS),
                  later = tensor_offset(n, n->directions, DPCRI_RECURRENT_TENSORS), below = n->directions;
    const int64_t begin = chain <= below ? chain * first : below * first + (chain - below) * later;
    return begin + tensor_offset(n, chain, (int)which);
}

static dpcri_gates cell_of(const dpcr_recurrent *n) {
    const dpcr_recurrent_options *o = &n->options;
    const dpcri_gates_variant variant = {.clip = o->clip,
                                         .reset_before = o->reset_before,
                                         .coupled = o->input_forget,
                                         .peepholes = o->peepholes,
                                         .projection = o->projection};
    return (dpcri_gates){.context = n->context,
                         .kind = n->gates,
                         .activation = o->kind == DPCR_RNN_RELU ? DPCRI_ACT_RELU : DPCRI_ACT_TANH,
                         .width = o->hidden,
                         .varied = o->clip > 0 || o->reset_before || o->input_forget || o->peepholes || o->projection,
                         .variant = variant};
}

// False: more than memory can number.
static bool lay_out(dpcr_recurrent *n) {
    const dpcr_recurrent_options *o = &n->options;
    int64_t columns, numbers, bytes;
    n->directions = o->bidirectional ? 2 : 1;
    n->chains = o->layers * n->directions;
    n->gates = kind_gates[o->kind];
    n->cell = cell_of(n);
    n->element = dpcr_dtype_size(o->dtype);
    const int64_t widest = o->inputs > 2 * o->hidden ? o->inputs : 2 * o->hidden;
    if (!dpcri_add(widest, 2 * o->hidden + 3, &columns) || !dpcri_mul(columns, 4 * o->hidden, &numbers)) return false;
    if (!dpcri_mul(numbers, n->chains, &numbers) || !dpcri_mul(numbers, 64, &bytes)) return false;
    n->count = dpcri_recurrent_offset(n, n->chains - 1, DPCRI_WEIGHT_IH) +
               tensor_offset(n, n->chains - 1, DPCRI_RECURRENT_TENSORS);
    return true;
}

// Of kinds whose units do not mix the input's part has the scale of torch.nn.Linear, and diagonals and peepholes lie
// within 1/2, where ParaRNN keeps them.
static double bound_of(const dpcr_recurrent *n, int64_t chain, int which) {
    if (!dpcri_gates_apart(n->gates)) return 1 / sqrt((double)n->options.hidden);
    const bool input = which == DPCRI_WEIGHT_IH || which == DPCRI_BIAS_IH;
    return input ? 1 / sqrt((double)dpcri_recurrent_inputs(n, chain)) : 0.5;
}

static void initialise(dpcr_recurrent *n) {
    int64_t i = 0;
    for (int64_t chain = 0; chain < n->chains; chain++)
        for (int which = 0; which < DPCRI_RECURRENT_TENSORS; which++) {
            const double bound = bound_of(n, chain, which);
            int64_t shape[2];
            tensor_shape(n, chain, which, shape);
            for (const int64_t end = i + shape[0] * shape[1]; i < end; i++) {
                const double u = dpcri_random_uniform(n->options.seed, DPCRI_STREAM_PARAMETERS, (uint64_t)i);
                const double value = bound * (2 * u - 1);
                if (n->options.dtype == DPCR_F64)
                    ((double *)n->parameters)[i] = value;
                else
                    ((float *)n->parameters)[i] = (float)value;
            }
        }
}

dpcr_status dpcr_recurrent_create(dpcr_context *context, const dpcr_recurrent_options *options,
                                  dpcr_recurrent **network, dpcr_error *error) {
    if (!network) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "recurrent_create: no place for the network given");
    *network = NULL;
    if (!context || !options)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "recurrent_create: context and options are wanted");
    if (options->size < offsetof(dpcr_recurrent_options, layers))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "recurrent_create: options.size is %zu, wanted sizeof(dpcr_recurrent_options)",
                          options->size);
    dpcr_recurrent_options given = {0};
    DPCRI_COPY_IN(given, options);
    given.size = sizeof given;
    const dpcr_status room = dpcri_check_reserved("recurrent_create", given.reserved, sizeof given.reserved, error);
    if (room != DPCR_OK) return room;
    if (!given.dtype) given.dtype = DPCR_F32;
    if (!given.layers) given.layers = 1;
    given.bidirectional = given.bidirectional != 0;
    given.no_bias = given.no_bias != 0;
    given.reverse = given.reverse != 0;
    given.reset_before = given.reset_before != 0;
    given.peepholes = given.peepholes != 0;
    given.input_forget = given.input_forget != 0;
    dpcr_status status = check_options(&given, error);
    if (status != DPCR_OK) return status;
    dpcr_recurrent *n = dpcri_alloc_zero(context, sizeof *n);
    if (!n) return dpcri_fail(error, DPCR_ERROR_MEMORY, "recurrent_create: no memory for the network");
    n->context = context;
    n->options = given;
    if (!lay_out(n)) {
        status = dpcri_fail(error, DPCR_ERROR_OVERFLOW,
                            "recurrent_create: inputs %lld, hidden %lld, layers %lld are more than memory can number",
                            (long long)given.inputs, (long long)given.hidden, (long long)given.layers);
        goto done;
    }
    n->parameters = dpcri_alloc_zero(context, (size_t)n->count * n->element + 64);
    n->gradients = dpcri_alloc_zero(context, (size_t)n->count * n->element + 64);
    if (!n->parameters || !n->gradients) {
        status = dpcri_fail(error, DPCR_ERROR_MEMORY,
                            "recurrent_create: no memory for parameters and gradients (2 x %lld numbers)",
                            (long long)n->count);
        goto done;
    }
    initialise(n);
    *network = n;
    return DPCR_OK;
done:
    dpcr_recurrent_destroy(n);
    return status;
}

void dpcr_recurrent_destroy(dpcr_recurrent *n) {
    if (!n) return;
    dpcri_free(n->context, n->gradients);
    dpcri_free(n->context, n->parameters);
    dpcri_free(n->context, n);
}

const dpcr_recurrent_options *dpcr_recurrent_get_options(const dpcr_recurrent *n) { return n ? &n->options : NULL; }

static int64_t tensors_of(const dpcr_recurrent *n) {
    int64_t count = 0;
    for (int i = 0; i < DPCRI_RECURRENT_TENSORS; i++)
        count += dpcri_recurrent_offset(n, 0, (dpcri_recurrent_tensor)i) >= 0;
    return count;
}

// The one of that number among those that there are.
static dpcri_recurrent_tensor tensor_at(const dpcr_recurrent *n, int64_t number) {
    int which = 0;
    for (;; which++)
        if (dpcri_recurrent_offset(n, 0, (dpcri_recurrent_tensor)which) >= 0 && number-- == 0)
            return (dpcri_recurrent_tensor)which;
}

int64_t dpcr_recurrent_parameter_count(const dpcr_recurrent *n) { return n ? n->chains * tensors_of(n) : 0; }

dpcr_status dpcr_recurrent_parameter(const dpcr_recurrent *n, int64_t index, char *name, size_t name_bytes,
                                     dpcr_array *parameter, dpcr_array *gradient, dpcr_error *error) {
    static const char *const names[DPCRI_RECURRENT_TENSORS] = {"weight_ih", "weight_hh", "bias_ih", "bias_hh",
                                                               "weight_hr", "weight_ch", "peephole"};
    if (!n) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "recurrent_parameter: no network given");
    if (index < 0 || index >= dpcr_recurrent_parameter_count(n))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "recurrent_parameter: index %lld, wanted 0..%lld",
                          (long long)index, (long long)dpcr_recurrent_parameter_count(n) - 1);
    const int64_t chain = index / tensors_of(n);
    const dpcri_recurrent_tensor which = tensor_at(n, index % tensors_of(n));
    const int64_t offset = dpcri_recurrent_offset(n, chain, which);
    int64_t shape[2];
    tensor_shape(n, chain, which, shape);
    char own[64];
    const int length = snprintf(own, sizeof own, "%s_l%lld%s", names[which], (long long)(chain / n->directions),
                                chain % n->directions ? "_reverse" : "");
    if (name && name_bytes <= (size_t)length)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "recurrent_parameter: name_bytes is %zu, wanted more than %d for '%s'", name_bytes, length,
                          own);
    if (name) memcpy(name, own, (size_t)length + 1);
    const bool diagonal = which == DPCRI_WEIGHT_HH && dpcri_gates_apart(n->gates);
    const bool vector = diagonal || which == DPCRI_BIAS_IH || which == DPCRI_BIAS_HH || which >= DPCRI_WEIGHT_CH;
    const int32_t dims = vector ? 1 : 2;
    if (parameter)
        *parameter = dpcr_array_make(dpcri_recurrent_at(n, n->parameters, offset), n->options.dtype, dims, shape);
    if (gradient)
        *gradient = dpcr_array_make(dpcri_recurrent_at(n, n->gradients, offset), n->options.dtype, dims, shape);
    return DPCR_OK;
}

void *dpcr_recurrent_vector(dpcr_recurrent *n, int64_t *count) {
    if (count) *count = n ? n->count : 0;
    return n ? n->parameters : NULL;
}

void *dpcr_recurrent_gradient_vector(dpcr_recurrent *n) { return n ? n->gradients : NULL; }

void dpcr_recurrent_zero_gradients(dpcr_recurrent *n) {
    if (n) memset(n->gradients, 0, (size_t)n->count * n->element);
}

// Copies each tensor of `vector` from its place in `from`, or to its place in `to`.
static void copy_tensors(const dpcr_recurrent *n, char *vector, const void *const *from, void *const *to) {
    int64_t i = 0;
    for (int64_t chain = 0; chain < n->chains; chain++)
        for (int which = 0; which < DPCRI_RECURRENT_TENSORS; which++) {
            int64_t shape[2];
            tensor_shape(n, chain, which, shape);
            const size_t bytes = (size_t)(shape[0] * shape[1]) * n->element;
            if (!bytes) continue;
            if (from && from[i]) memcpy(vector, from[i], bytes);
            if (to && to[i]) memcpy(to[i], vector, bytes);
            vector += bytes;
            i++;
        }
}

void dpcr_recurrent_set_parameters(dpcr_recurrent *n, const void *const *tensors) {
    if (n && tensors) copy_tensors(n, n->parameters, tensors, NULL);
}

void dpcr_recurrent_get_gradients(const dpcr_recurrent *n, void *const *tensors) {
    if (n && tensors) copy_tensors(n, n->gradients, NULL, tensors);
}
