// SPDX-License-Identifier: MIT
// RNN, GRU and LSTM nodes of an ONNX model as tensors with torch.nn's names, shapes and gate order.
//
//   ONNX     W [D][G H][I]  R [D][G H][H]  B [D][2 G H], input half first    GRU z r h      LSTM i o f c
//   PyTorch  weight_ih [G H][I], weight_hh [G H][H], bias_ih, bias_hh [G H]   GRU r z n      LSTM i f g o
//   ONNX     P [D][3 H]  i o f        ours  weight_ch [3 H]  i f o
//
// D directions, G gates. What no tensor tells is metadata, as dpcr_recurrent_load reads it. Nodes of one kind and
// width, each one's X the former's Y, are the layers of one network: what lies between them (Squeeze, Transpose,
// Reshape) is followed axis by axis and must only join directions and hidden units. Source: ONNX operators RNN, GRU and
// LSTM (github.com/onnx/onnx, docs/Operators.md), opset 1 to 22.
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"
#include "data/onnx.h"
#include "deeppcr/data.h"

enum { MOST_LAYERS = 1024, MOST_HOPS = 8, MOST_GATES = 4, NAME_BYTES = 64 };
enum { INPUT_X, INPUT_W, INPUT_R, INPUT_B, INPUT_LENGTHS, INPUT_H, INPUT_C, INPUT_P };

typedef struct operator_kind {
    const char *type, *name;  // ONNX's and ours
    int gates, functions;
    int place[MOST_GATES];  // of PyTorch's gate g among ONNX's
    const char *function[3];
} operator_kind;

static const operator_kind kinds[] = {
    {"RNN", "rnn", 1, 1, {0}, {"Tanh"}},
    {"GRU", "gru", 3, 2, {1, 0, 2}, {"Sigmoid", "Tanh"}},
    {"LSTM", "lstm", 4, 3, {0, 2, 3, 1}, {"Sigmoid", "Tanh", "Tanh"}},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

typedef struct layer {
    const dpcri_onnx_node *node;
    const operator_kind *kind;
    dpcri_quoted label;
    bool relu;
    bool reverse, before, coupled;  // direction "reverse"; GRU: linear_before_reset 0; LSTM: input_forget 1
    double clip;                    // 0: none
    int64_t directions, layout, hidden, inputs;
    dpcri_onnx_tensor w, r, b, p;
    bool bias, peepholes;
    dpcri_span lengths;  // what gives sequence_lens; empty: all steps
    int64_t after;       // the layer whose Y is this one's X, or -1
    int64_t followed;    // how many have this one as theirs
} layer;

static const operator_kind *kind_of(const dpcri_onnx_node *node) {
    for (int k = 0; node->standard && k < KINDS; k++)
        if (dpcri_span_is(node->type, kinds[k].type)) return &kinds[k];
    return NULL;
}

// ---- one node ----

static bool has_input(const layer *l, int64_t index) { return dpcri_span_bytes(dpcri_onnx_input(l->node, index)) != 0; }

static int64_t integer_or(const layer *l, const char *name, int64_t fallback) {
    dpcri_onnx_attribute a;
    return dpcri_onnx_find_attribute(l->node, name, &a) ? a.i : fallback;
}

static dpcr_status read_direction(const dpcri_onnx *m, layer *l, dpcr_error *error) {
    dpcri_onnx_attribute a;
    dpcri_quoted got;
    l->directions = 1;
    if (!dpcri_onnx_find_attribute(l->node, "direction", &a) || dpcri_span_is(a.s, "forward")) return DPCR_OK;
    l->directions = 2;
    if (dpcri_span_is(a.s, "bidirectional")) return DPCR_OK;
    l->directions = 1;
    l->reverse = dpcri_span_is(a.s, "reverse");
    if (l->reverse) return DPCR_OK;
    return dpcri_source_bad(&m->source, error, "ONNX node '%s' (%s): got direction '%s'", l->label.text, l->kind->type,
                            dpcri_onnx_quote(a.s, &got));
}

static bool is_word(dpcri_span s, const char *word) {
    return dpcri_span_bytes(s) == strlen(word) && strncasecmp((const char *)s.at, word, strlen(word)) == 0;
}

// The usual functions by name are as good as none; an RNN may have ReLU, in all directions.
static dpcr_status read_functions(const dpcri_onnx *m, layer *l, dpcr_error *error) {
    enum { ATTRIBUTE_STRINGS = 9 };
    dpcri_onnx_attribute a;
    dpcri_field f;
    const unsigned char *fault = NULL;
    int64_t count = 0, relus = 0;
    if (!dpcri_onnx_find_attribute(l->node, "activations", &a)) return DPCR_OK;
    while (dpcri_field_next(&a.body, &f, &fault)) {
        if (f.number != ATTRIBUTE_STRINGS || f.wire != DPCRI_BYTES) continue;
        const char *usual = l->kind->function[count++ % l->kind->functions];
        if (is_word(f.bytes, usual)) continue;
        relus++;
        dpcri_quoted got;
        if (l->kind->gates != 1 || !is_word(f.bytes, "Relu"))
            return dpcri_onnx_refuse(m, error, "ONNX node '%s' (%s): activation '%s' is not there yet: wanted %s%s",
                                     l->label.text, l->kind->type, dpcri_onnx_quote(f.bytes, &got), usual,
                                     l->kind->gates == 1 ? " or Relu" : "");
    }
    if (count == 0) return DPCR_OK;
    const int64_t wanted = l->kind->functions * l->directions;
    if (count != wanted)
        return dpcri_source_bad(&m->source, error, "ONNX node '%s' (%s): got %lld activations, wanted %lld",
                                l->label.text, l->kind->type, (long long)count, (long long)wanted);
    if (relus && relus != count)
        return dpcri_onnx_refuse(m, error, "ONNX node '%s' (RNN): different activations a direction are not there yet",
                                 l->label.text);
    l->relu = relus != 0;
    return DPCR_OK;
}

// One that is misspelt, of another type or said twice must not read as one that is absent.
static dpcr_status check_attributes(const dpcri_onnx *m, const layer *l, dpcr_error *error) {
    enum { FLOAT = 1, INT, STRING, FLOATS = 6, STRINGS = 8 };
    static const struct {
        const char *name;
        int64_t type;
    } known[] = {
        {"activations", STRINGS},     {"activation_alpha", FLOATS}, {"activation_beta", FLOATS}, {"clip", FLOAT},
        {"direction", STRING},        {"hidden_size", INT},         {"input_forget", INT},       {"layout", INT},
        {"linear_before_reset", INT}, {"output_sequence", INT}};  // the last: opset 1 to 6
    enum { KNOWN = sizeof known / sizeof known[0] };
    dpcri_span rest = l->node->body, name;
    dpcri_quoted quoted;
    unsigned seen = 0;
    int64_t type;
    while (dpcri_onnx_next_attribute(&rest, &name, &type)) {
        int k = 0;
        while (k < KNOWN && !dpcri_span_is(name, known[k].name)) k++;
        const char *why = k == KNOWN                      ? "which the operator does not have"
                          : seen >> k & 1                 ? "a second time"
                          : type && type != known[k].type ? "which is of another type"
                                                          : NULL;
        if (why)
            return dpcri_source_bad(&m->source, error, "ONNX node '%s' (%s): got attribute '%s', %s", l->label.text,
                                    l->kind->type, dpcri_onnx_quote(name, &quoted), why);
        seen |= 1u << k;
    }
    return DPCR_OK;
}

static dpcr_status read_attributes(const dpcri_onnx *m, layer *l, dpcr_error *error) {
    dpcri_onnx_attribute clip;
    dpcr_status status;
    const char *label = l->label.text, *type = l->kind->type;
    DPCR_TRY(check_attributes(m, l, error));
    DPCR_TRY(read_direction(m, l, error));
    DPCR_TRY(read_functions(m, l, error));
    l->layout = integer_or(l, "layout", 0);
    if (l->layout != 0 && l->layout != 1)
        DPCR_TRY(dpcri_source_bad(&m->source, error, "ONNX node '%s' (%s): got layout %lld, wanted 0 or 1", label, type,
                                  (long long)l->layout));
    if (dpcri_onnx_find_attribute(l->node, "clip", &clip)) {
        if (!(clip.f > 0))
            DPCR_TRY(dpcri_source_bad(&m->source, error, "ONNX node '%s' (%s): got clip = %g, wanted more than 0",
                                      label, type, (double)clip.f));
        l->clip = clip.f >= FLT_MAX ? 0 : (double)clip.f;
    }
    l->before = l->kind->gates == 3 && integer_or(l, "linear_before_reset", 0) == 0;
    l->coupled = l->kind->gates == 4 && integer_or(l, "input_forget", 0) != 0;
done:
    return status;
}

static dpcr_status bad_weights(const dpcri_onnx *m, const layer *l, char letter, const char *wanted,
                               const dpcri_onnx_tensor *got, dpcr_error *error) {
    char text[128] = "no dimensions";
    size_t at = 0;
    for (int d = 0; d < got->ndim && d < DPCR_MAX_DIMS && at < sizeof text; d++)
        at += (size_t)snprintf(text + at, sizeof text - at, "[%lld]", (long long)got->shape[d]);
    return dpcri_source_bad(&m->source, error, "ONNX node '%s' (%s): %c has shape %s, wanted %s", l->label.text,
                            l->kind->type, letter, text, wanted);
}

static dpcr_status find_weights(const dpcri_onnx *m, const layer *l, int64_t index, char letter,
                                dpcri_onnx_tensor *tensor, dpcr_error *error) {
    if (!has_input(l, index))
        return dpcri_source_bad(&m->source, error, "ONNX node '%s' (%s): it has no input %c", l->label.text,
                                l->kind->type, letter);
    const dpcri_span name = dpcri_onnx_input(l->node, index);
    if (!dpcri_onnx_constant(m, name, tensor) && !dpcri_onnx_fold(m, name, tensor))
        return dpcri_onnx_refuse(m, error,
                                 "ONNX node '%s' (%s): %c is computed or given when the model runs, wanted an "
                                 "initialiser, a Constant, or parts of such (fold the model's constants first)",
                                 l->label.text, l->kind->type, letter);
    if (!dpcri_onnx_dtype(tensor))
        return dpcri_onnx_refuse(m, error,
                                 "ONNX node '%s' (%s): %c has data type %lld, wanted 1 (float), 11 (double), 10 "
                                 "(float16) or 16 (bfloat16)",
                                 l->label.text, l->kind->type, letter, (long long)tensor->type);
    return DPCR_OK;
}

static dpcr_status read_weights(const dpcri_onnx *m, layer *l, dpcr_error *error) {
    const int64_t D = l->directions, G = l->kind->gates;
    dpcr_status status;
    DPCR_TRY(find_weights(m, l, INPUT_W, 'W', &l->w, error));
    DPCR_TRY(find_weights(m, l, INPUT_R, 'R', &l->r, error));
    l->bias = has_input(l, INPUT_B);
    if (l->bias) DPCR_TRY(find_weights(m, l, INPUT_B, 'B', &l->b, error));
    const dpcri_onnx_tensor *w = &l->w, *r = &l->r, *b = &l->b;
    l->hidden = r->ndim == 3 ? r->shape[2] : 0;
    l->inputs = w->ndim == 3 ? w->shape[2] : 0;
    int64_t rows = 0, twice = 0;
    const bool fits = l->hidden > 0 && dpcri_mul(G, l->hidden, &rows) && dpcri_mul(2, rows, &twice);
    if (!fits || r->shape[0] != D || r->shape[1] != rows)
        DPCR_TRY(bad_weights(m, l, 'R', "[directions][gates hidden][hidden]", r, error));
    if (l->inputs < 1 || w->shape[0] != D || w->shape[1] != rows)
        DPCR_TRY(bad_weights(m, l, 'W', "[directions][gates hidden][inputs], hidden as in R", w, error));
    if (l->bias && (b->ndim != 2 || b->shape[0] != D || b->shape[1] != twice))
        DPCR_TRY(bad_weights(m, l, 'B', "[directions][2 gates hidden], hidden as in R", b, error));
    if (integer_or(l, "hidden_size", l->hidden) != l->hidden)
        DPCR_TRY(dpcri_source_bad(&m->source, error, "ONNX node '%s' (%s): hidden_size is %lld, and R has %lld columns",
                                  l->label.text, l->kind->type, (long long)integer_or(l, "hidden_size", 0),
                                  (long long)l->hidden));
    if (w->type != r->type || (l->bias && w->type != b->type))
        DPCR_TRY(dpcri_source_bad(&m->source, error, "ONNX node '%s' (%s): W, R and B are not of one type",
                                  l->label.text, l->kind->type));
done:
    return status;
}

static dpcr_status all_zeros(const dpcri_onnx *m, const layer *l, const dpcri_onnx_tensor *t, const char *name,
                             bool *zero, dpcr_error *error) {
    if (t->type == l->w.type) return dpcri_onnx_all_zeros(m, t, name, zero, error);
    return dpcri_source_bad(&m->source, error, "ONNX node '%s' (%s): %s is not of the type of W", l->label.text,
                            l->kind->type, name);
}

// A state that is left out, given or computed when the model runs (then it is the caller's), or zeros says nothing
// that the weights lack. Other constants, and what is copied or computed from them alone, would be lost.
static dpcr_status check_state(const dpcri_onnx *m, const layer *l, int64_t index, const char *name,
                               dpcr_error *error) {
    const dpcri_span value = dpcri_onnx_input(l->node, index);
    dpcri_onnx_tensor t;
    bool zero, computed = false, fixed = false;
    dpcr_status status = dpcri_onnx_constant(m, value, &t)
                             ? all_zeros(m, l, &t, name, &zero, error)
                             : dpcri_onnx_copies_zeros(m, value, name, &zero, &computed, error);
    if (status == DPCR_OK && zero && computed) status = dpcri_onnx_is_fixed(m, value, &fixed, error);
    if (status != DPCR_OK || (zero && !fixed)) return status;
    return dpcri_onnx_refuse(m, error,
                             "ONNX node '%s' (%s): %s %s, which the weights' file has no place for; wanted an input of "
                             "the model (solve has --%s) or none",
                             l->label.text, l->kind->type, name,
                             fixed ? "is computed from constants alone" : "has a constant's numbers other than 0",
                             index == INPUT_H ? "h0" : "c0");
}

// Behind Identity and Cast, which exporters repeat for each node.
static dpcri_span uncast(const dpcri_onnx *m, dpcri_span name) {
    for (int hops = 0; hops < MOST_HOPS; hops++) {
        const dpcri_onnx_value *value = dpcri_onnx_find(m, name);
        const dpcri_onnx_node *node = value && value->node >= 0 ? &m->node[value->node] : NULL;
        if (!node || !node->standard || !(dpcri_span_is(node->type, "Identity") || dpcri_span_is(node->type, "Cast")))
            break;
        name = dpcri_onnx_input(node, 0);
    }
    return name;
}

// Lengths that the model has as constants would be lost, unless it says that they are all of the steps.
static dpcr_status read_lengths(const dpcri_onnx *m, layer *l, dpcr_error *error) {
    const dpcri_span name = dpcri_onnx_input(l->node, INPUT_LENGTHS);
    const int64_t steps = dpcri_onnx_extent(m, dpcri_onnx_input(l->node, INPUT_X), l->layout ? 1 : 0);
    bool others, given;
    if (!has_input(l, INPUT_LENGTHS)) return DPCR_OK;
    const dpcr_status status = dpcri_onnx_copies_others(m, name, steps, &others, &given, error);
    if (status != DPCR_OK) return status;
    if (others)
        return dpcri_onnx_refuse(m, error,
                                 "ONNX node '%s' (%s): sequence_lens is a constant, or has one's numbers, which the "
                                 "weights' file has no place for; wanted an input of the model (solve has --lengths) "
                                 "or none",
                                 l->label.text, l->kind->type);
    if (given) l->lengths = uncast(m, name);
    return DPCR_OK;
}

// Zeros are as good as none.
static dpcr_status read_peepholes(const dpcri_onnx *m, layer *l, dpcr_error *error) {
    dpcr_status status;
    bool zero;
    if (!has_input(l, INPUT_P)) return DPCR_OK;
    DPCR_TRY(find_weights(m, l, INPUT_P, 'P', &l->p, error));
    if (l->p.ndim != 2 || l->p.shape[0] != l->directions || l->p.shape[1] != 3 * l->hidden)
        DPCR_TRY(bad_weights(m, l, 'P', "[directions][3 hidden], hidden as in R", &l->p, error));
    DPCR_TRY(all_zeros(m, l, &l->p, "P", &zero, error));
    l->peepholes = !zero;
done:
    return status;
}

static dpcr_status read_node(const dpcri_onnx *m, const dpcri_onnx_node *node, layer *l, dpcr_error *error) {
    dpcr_status status;
    *l = (layer){.node = node, .kind = kind_of(node), .after = -1};
    dpcri_onnx_quote(dpcri_onnx_label(node), &l->label);
    DPCR_TRY(read_attributes(m, l, error));
    DPCR_TRY(read_weights(m, l, error));
    DPCR_TRY(read_lengths(m, l, error));
    DPCR_TRY(check_state(m, l, INPUT_H, "initial_h", error));
    if (l->kind->gates != 4) goto done;
    DPCR_TRY(check_state(m, l, INPUT_C, "initial_c", error));
    DPCR_TRY(read_peepholes(m, l, error));
done:
    return status;
}

// ---- from one node to the next ----

// The axes of a value on its way: Y is [T][D][B][H], or [B][T][D][H] where the layout is 1; JOINED is D and H as one.
enum { TIME, DIRECTION, BATCH, HIDDEN, JOINED };

typedef struct axes {
    int at[4], count;
} axes;

static bool squeeze(const dpcri_onnx *m, const dpcri_onnx_node *node, const layer *from, axes *v) {
    dpcri_onnx_attribute a;
    int64_t axis;
    const int count = dpcri_onnx_find_attribute(node, "axes", &a)
                          ? dpcri_onnx_attribute_integers(&a, &axis, 1)
                          : dpcri_onnx_integers(m, dpcri_onnx_input(node, 1), &axis, 1);
    if (count != 1) return false;
    if (axis < 0) axis += v->count;
    if (axis < 0 || axis >= v->count || v->at[axis] != DIRECTION || from->directions != 1) return false;
    memmove(v->at + axis, v->at + axis + 1, (size_t)(v->count - 1 - axis) * sizeof v->at[0]);
    v->count--;
    v->at[v->count - 1] = v->at[v->count - 1] == HIDDEN ? JOINED : v->at[v->count - 1];
    return true;
}

static bool transpose(const dpcri_onnx_node *node, axes *v) {
    dpcri_onnx_attribute a = {0};
    int64_t order[4] = {0};
    const axes old = *v;
    unsigned seen = 0;
    const int count =
        dpcri_onnx_find_attribute(node, "perm", &a) ? dpcri_onnx_attribute_integers(&a, order, 4) : old.count;
    if (count != old.count) return false;
    for (int i = 0; i < count; i++) {
        if (!a.body.at) order[i] = count - 1 - i;
        if (order[i] < 0 || order[i] >= count || seen >> order[i] & 1) return false;
        seen |= 1u << order[i];
        v->at[i] = old.at[order[i]];
    }
    return true;
}

// The node that computes a value, when it is of that type of ONNX's own; else NULL.
static const dpcri_onnx_node *maker(const dpcri_onnx *m, dpcri_span name, const char *type) {
    const dpcri_onnx_value *value = dpcri_span_bytes(name) ? dpcri_onnx_find(m, name) : NULL;
    if (!value || value->node < 0) return NULL;
    const dpcri_onnx_node *node = &m->node[value->node];
    return node->standard && dpcri_span_is(node->type, type) ? node : NULL;
}

// The axes of `of` whose extents' product a computed number is, a bit each; 0: something else. Slices of Shape(of),
// multiplied and reshaped to one element, as exporters write what they do not know yet.
static unsigned extents_in(const dpcri_onnx *m, dpcri_span name, dpcri_span of, int depth) {
    const dpcri_onnx_node *node;
    dpcri_onnx_attribute a;
    int64_t first, end;
    if (depth == 0) return 0;
    if ((node = maker(m, name, "Reshape"))) return extents_in(m, dpcri_onnx_input(node, 0), of, depth - 1);
    if ((node = maker(m, name, "Mul"))) {
        const unsigned left = extents_in(m, dpcri_onnx_input(node, 0), of, depth - 1),
                       right = extents_in(m, dpcri_onnx_input(node, 1), of, depth - 1);
        return left && right && !(left & right) ? left | right : 0;
    }
    if (!(node = maker(m, name, "Slice"))) return 0;
    const dpcri_onnx_node *shape = maker(m, dpcri_onnx_input(node, 0), "Shape");
    if (!shape || dpcri_span_compare(dpcri_onnx_input(shape, 0), of) != 0) return 0;
    if (dpcri_onnx_find_attribute(shape, "start", &a) && a.i != 0) return 0;
    if (dpcri_onnx_find_attribute(shape, "end", &a)) return 0;
    // Axes can only be the one there is; steps could go backwards.
    if (dpcri_span_bytes(dpcri_onnx_input(node, 4))) return 0;
    if (dpcri_onnx_integers(m, dpcri_onnx_input(node, 1), &first, 1) != 1) return 0;
    if (dpcri_onnx_integers(m, dpcri_onnx_input(node, 2), &end, 1) != 1) return 0;
    return first >= 0 && first < 4 && (end == first + 1 || (first == 3 && end > 3)) ? 1u << first : 0;
}

// A target shape that is computed: [extent of axis 0][of axis 1][of axes 2 and 3].
static bool computed_shape_joins(const dpcri_onnx *m, const dpcri_onnx_node *node) {
    static const unsigned wanted[3] = {1u << 0, 1u << 1, 1u << 2 | 1u << 3};
    const dpcri_onnx_node *list = maker(m, dpcri_onnx_input(node, 1), "Concat");
    const dpcri_span of = dpcri_onnx_input(node, 0);
    if (!list || dpcri_span_bytes(dpcri_onnx_input(list, 3))) return false;
    for (int i = 0; i < 3; i++)
        if (extents_in(m, dpcri_onnx_input(list, i), of, MOST_HOPS) != wanted[i]) return false;
    return true;
}

// [..][D][H] to [..][D H]: the memory stays, so D and H must be neighbours, or D be 1. An extent that is told as a
// number must be the one that the model declares for this layer's X.
static bool reshape(const dpcri_onnx *m, const dpcri_onnx_node *node, const layer *from, axes *v) {
    dpcri_onnx_attribute a;
    int64_t shape[3];
    axes to = {.count = 0};
    const int count = dpcri_onnx_find_attribute(node, "shape", &a)
                          ? dpcri_onnx_attribute_integers(&a, shape, 3)
                          : dpcri_onnx_integers(m, dpcri_onnx_input(node, 1), shape, 3);
    const bool copies = !dpcri_onnx_find_attribute(node, "allowzero", &a) || a.i == 0;
    if (v->count != 4 || v->at[3] != HIDDEN) return false;
    if (v->at[2] != DIRECTION && from->directions != 1) return false;
    for (int i = 0; i < 4; i++)
        if (v->at[i] == TIME || v->at[i] == BATCH) to.at[to.count++] = v->at[i];
    to.at[to.count++] = JOINED;
    if (count != 3) {
        const bool joins = v->at[2] == DIRECTION && computed_shape_joins(m, node);
        *v = to;
        return joins;
    }
    const dpcri_span x = dpcri_onnx_input(from->node, INPUT_X);
    int open = 0;
    for (int i = 0; i < 3; i++) {
        const int64_t wanted = to.at[i] == JOINED ? from->directions * from->hidden
                                                  : dpcri_onnx_extent(m, x, (to.at[i] == BATCH) != (from->layout == 1));
        if (shape[i] == -1)
            open++;
        else if (shape[i] == 0 ? !copies || v->at[i] != to.at[i] : shape[i] != wanted)
            return false;
    }
    *v = to;
    return open <= 1;
}

static bool passes(const dpcri_onnx *m, const dpcri_onnx_node *node, const layer *from, axes *v) {
    if (dpcri_span_is(node->type, "Squeeze")) return squeeze(m, node, from, v);
    if (dpcri_span_is(node->type, "Transpose")) return transpose(node, v);
    if (dpcri_span_is(node->type, "Reshape")) return reshape(m, node, from, v);
    return true;  // Identity, and Dropout when a model is run
}

static bool may_lie_between(const dpcri_onnx_node *node) {
    static const char *const types[] = {"Squeeze", "Transpose", "Reshape", "Identity", "Dropout"};
    for (size_t i = 0; node->standard && i < sizeof types / sizeof types[0]; i++)
        if (dpcri_span_is(node->type, types[i])) return true;
    return false;
}

// The layer whose Y is the X of `to`, or -1.
static int64_t find_former(const dpcri_onnx *m, const layer *layers, int64_t count, const layer *to) {
    const dpcri_onnx_node *path[MOST_HOPS];
    int hops = 0;
    dpcri_span name = dpcri_onnx_input(to->node, INPUT_X);
    for (;;) {
        const dpcri_onnx_value *value = dpcri_span_bytes(name) ? dpcri_onnx_find(m, name) : NULL;
        if (!value || value->node < 0 || value->output != 0) return -1;
        const dpcri_onnx_node *node = &m->node[value->node];
        if (!kind_of(node)) {
            if (hops == MOST_HOPS || !may_lie_between(node)) return -1;
            path[hops++] = node;
            name = dpcri_onnx_input(node, 0);
            continue;
        }
        int64_t from = 0;
        while (from < count && layers[from].node != node) from++;
        if (from == count) return -1;
        axes v = layers[from].layout ? (axes){{BATCH, TIME, DIRECTION, HIDDEN}, 4}
                                     : (axes){{TIME, DIRECTION, BATCH, HIDDEN}, 4};
        while (hops > 0)
            if (!passes(m, path[--hops], &layers[from], &v)) return -1;
        const int first = to->layout ? BATCH : TIME, second = to->layout ? TIME : BATCH;
        return v.count == 3 && v.at[0] == first && v.at[1] == second && v.at[2] == JOINED ? from : -1;
    }
}

// ---- the stack ----

static void list_nodes(const layer *layers, int64_t count, char *text, size_t bytes) {
    size_t at = 0;
    *text = 0;
    for (int64_t i = 0; i < count && at < bytes; i++)
        at += (size_t)snprintf(text + at, bytes - at, "%s'%s' (%s)", i ? ", " : "", layers[i].label.text,
                               layers[i].kind->type);
}

static dpcr_status no_stack(const dpcri_onnx *m, const layer *layers, int64_t count, const char *why,
                            dpcr_error *error) {
    char list[192];
    list_nodes(layers, count, list, sizeof list);
    return dpcri_onnx_refuse(m, error, "ONNX: %lld recurrent nodes that are no one stack of layers (%s), name one: %s",
                             (long long)count, why, list);
}

static const char *difference(const layer *a, const layer *b) {
    if (a->kind != b->kind || a->relu != b->relu) return "they differ in kind";
    if (a->hidden != b->hidden) return "they differ in width";
    if (a->directions != b->directions) return "they differ in direction";
    if (a->layout != b->layout) return "they differ in layout";
    if (a->reverse != b->reverse) return "they differ in direction";
    if (a->before != b->before || a->coupled != b->coupled || a->clip != b->clip)
        return "they differ in linear_before_reset, input_forget or clip";
    if (a->w.type != b->w.type) return "they differ in type";
    if (dpcri_span_compare(a->lengths, b->lengths) != 0) return "they differ in sequence_lens";
    if (b->inputs != a->directions * a->hidden) return "an X is not as wide as the Y before it";
    return NULL;
}

static bool is_recurrent(const dpcri_onnx_node *node) { return kind_of(node) != NULL; }

// A state that one of several layers makes for another: a run would start that one from zeros.
static dpcr_status check_handed(const dpcri_onnx *m, const layer *layers, int64_t count, dpcr_error *error) {
    bool handed = false;
    if (count == 1) return DPCR_OK;
    dpcri_span *states = dpcri_alloc(m->context, (size_t)(2 * count) * sizeof *states);
    if (!states) return dpcri_no_memory(error, "ONNX nodes", 2 * count * (int64_t)sizeof *states);
    for (int64_t i = 0; i < count; i++) {
        states[2 * i] = dpcri_onnx_input(layers[i].node, INPUT_H);
        states[2 * i + 1] = dpcri_onnx_input(layers[i].node, INPUT_C);
    }
    const dpcr_status status = dpcri_onnx_depends(m, states, 2 * count, is_recurrent, &handed, error);
    dpcri_free(m->context, states);
    if (status != DPCR_OK || !handed) return status;
    return no_stack(m, layers, count, "one begins in a state that another one makes", error);
}

// Sorts the layers so that each one follows the one before.
static dpcr_status make_stack(const dpcri_onnx *m, layer *layers, layer *sorted, int64_t count, dpcr_error *error) {
    int64_t first = -1, used = 0;
    for (int64_t i = 0; i < count; i++) layers[i].after = find_former(m, layers, count, &layers[i]);
    for (int64_t i = 0; i < count; i++) {
        if (layers[i].after < 0) {
            if (first >= 0) return no_stack(m, layers, count, "not each one's X is another one's Y", error);
            first = i;
        } else if (layers[layers[i].after].followed++ > 0) {
            return no_stack(m, layers, count, "one's Y is the X of two", error);
        }
    }
    for (int64_t at = first; at >= 0 && used < count;) {
        int64_t next = -1;
        sorted[used++] = layers[at];
        for (int64_t i = 0; i < count && next < 0; i++)
            if (layers[i].after == at) next = i;
        at = next;
    }
    if (used < count) return no_stack(m, layers, count, "they run in a circle", error);
    const dpcr_status status = check_handed(m, layers, count, error);
    if (status != DPCR_OK) return status;
    for (int64_t i = 1; i < count; i++) {
        const char *why = difference(&sorted[i - 1], &sorted[i]);
        if (why) return no_stack(m, layers, count, why, error);
    }
    return DPCR_OK;
}

// ---- tensors ----

static dpcr_status add_tensor(const dpcri_onnx *m, dpcr_tensors *tensors, dpcr_dtype dtype, const char *name,
                              const char *suffix, int64_t index, int64_t rows, int64_t columns, dpcr_tensor **added,
                              dpcr_error *error) {
    dpcr_tensor *t = &tensors->items[tensors->count];
    const size_t bytes = (size_t)(rows * columns) * dpcr_dtype_size(dtype);
    const bool matrix = name[0] == 'w';
    char text[NAME_BYTES];
    snprintf(text, sizeof text, "%s_l%lld%s", name, (long long)index, suffix);
    t->name = dpcri_strdup(m->context, text);
    t->array = dpcr_array_make(dpcri_alloc(m->context, bytes), dtype, matrix ? 2 : 1, (int64_t[]){rows, columns});
    tensors->count++;
    if (!t->name || !t->array.data) return dpcri_no_memory(error, "ONNX weights", (int64_t)bytes);
    *added = t;
    return DPCR_OK;
}

// PyTorch's gates from ONNX's: blocks of H rows, from element `first` of `from` on; NULL: zeros.
static void place_gates(const layer *l, const dpcr_tensor *to, const void *from, int64_t first, int64_t columns) {
    const size_t element = dpcr_dtype_size(to->array.dtype), block = (size_t)(l->hidden * columns) * element;
    for (int g = 0; g < l->kind->gates; g++) {
        unsigned char *at = (unsigned char *)to->array.data + (size_t)g * block;
        if (from)
            memcpy(at, (const unsigned char *)from + (size_t)first * element + (size_t)l->kind->place[g] * block,
                   block);
        else
            memset(at, 0, block);
    }
}

// i f o from i o f; NULL: zeros.
static void place_peepholes(const layer *l, const dpcr_tensor *to, const void *from, int64_t direction) {
    static const int place[3] = {0, 2, 1};
    const size_t block = (size_t)l->hidden * dpcr_dtype_size(to->array.dtype);
    for (int q = 0; q < 3; q++) {
        unsigned char *at = (unsigned char *)to->array.data + (size_t)q * block;
        if (from)
            memcpy(at, (const unsigned char *)from + ((size_t)direction * 3 + (size_t)place[q]) * block, block);
        else
            memset(at, 0, block);
    }
}

// bias, peepholes: whether any layer has them; then all of them get them.
static dpcr_status convert_layer(const dpcri_onnx *m, const layer *l, int64_t index, bool bias, bool peepholes,
                                 dpcr_tensors *tensors, dpcr_error *error) {
    const dpcr_dtype dtype = dpcri_onnx_dtype(&l->w);
    const int64_t rows = l->kind->gates * l->hidden;
    void *w = NULL, *r = NULL, *b = NULL, *p = NULL;
    dpcr_tensor *to = NULL;
    dpcr_status status;
    DPCR_TRY(dpcri_onnx_load(m, &l->w, "W", &w, error));
    DPCR_TRY(dpcri_onnx_load(m, &l->r, "R", &r, error));
    if (l->bias) DPCR_TRY(dpcri_onnx_load(m, &l->b, "B", &b, error));
    if (l->peepholes) DPCR_TRY(dpcri_onnx_load(m, &l->p, "P", &p, error));
    for (int64_t d = 0; d < l->directions; d++) {
        const char *suffix = d ? "_reverse" : "";
        DPCR_TRY(add_tensor(m, tensors, dtype, "weight_ih", suffix, index, rows, l->inputs, &to, error));
        place_gates(l, to, w, d * rows * l->inputs, l->inputs);
        DPCR_TRY(add_tensor(m, tensors, dtype, "weight_hh", suffix, index, rows, l->hidden, &to, error));
        place_gates(l, to, r, d * rows * l->hidden, l->hidden);
        if (peepholes) {
            DPCR_TRY(add_tensor(m, tensors, dtype, "weight_ch", suffix, index, 3 * l->hidden, 1, &to, error));
            to->array.ndim = 1;
            place_peepholes(l, to, p, d);
        }
        if (!bias) continue;
        DPCR_TRY(add_tensor(m, tensors, dtype, "bias_ih", suffix, index, rows, 1, &to, error));
        place_gates(l, to, b, d * 2 * rows, 1);
        DPCR_TRY(add_tensor(m, tensors, dtype, "bias_hh", suffix, index, rows, 1, &to, error));
        place_gates(l, to, b, (d * 2 + 1) * rows, 1);
    }
done:
    dpcri_free(m->context, p);
    dpcri_free(m->context, b);
    dpcri_free(m->context, r);
    dpcri_free(m->context, w);
    return status;
}

static dpcr_status add_metadata(const dpcri_onnx *m, const layer *l, dpcr_tensors *tensors, dpcr_error *error) {
    enum { PAIRS = 6 };
    const dpcri_number clip = dpcri_number_text(l->clip);
    const struct {
        const char *key, *value;
        bool wanted;
    } pairs[PAIRS] = {
        {"deeppcr.recurrent", l->relu ? "rnn-relu" : l->kind->name, true},
        {"onnx.layout", l->layout ? "1" : "0", true},
        {"onnx.direction", "reverse", l->reverse},
        {"onnx.linear_before_reset", "0", l->before},
        {"onnx.input_forget", "1", l->coupled},
        {"onnx.clip", clip.text, l->clip > 0},
    };
    tensors->metadata_keys = dpcri_alloc_zero(m->context, PAIRS * sizeof *tensors->metadata_keys);
    tensors->metadata_values = dpcri_alloc_zero(m->context, PAIRS * sizeof *tensors->metadata_values);
    if (!tensors->metadata_keys || !tensors->metadata_values) return dpcri_no_memory(error, "ONNX metadata", PAIRS);
    for (int i = 0; i < PAIRS; i++) {
        if (!pairs[i].wanted) continue;
        const int64_t at = tensors->metadata_count++;
        tensors->metadata_keys[at] = dpcri_strdup(m->context, pairs[i].key);
        tensors->metadata_values[at] = dpcri_strdup(m->context, pairs[i].value);
        if (!tensors->metadata_keys[at] || !tensors->metadata_values[at])
            return dpcri_no_memory(error, "ONNX metadata", NAME_BYTES);
    }
    return DPCR_OK;
}

static dpcr_status convert(const dpcri_onnx *m, const layer *layers, int64_t count, dpcr_tensors *tensors,
                           dpcr_error *error) {
    dpcr_status status;
    bool bias = false, peepholes = false;  // all layers have them, or none
    for (int64_t i = 0; i < count; i++) bias |= layers[i].bias, peepholes |= layers[i].peepholes;
    tensors->items = dpcri_alloc_zero(m->context, (size_t)(count * 2 * 5) * sizeof *tensors->items);
    if (!tensors->items) return dpcri_no_memory(error, "ONNX weights", count);
    for (int64_t i = 0; i < count; i++) DPCR_TRY(convert_layer(m, &layers[i], i, bias, peepholes, tensors, error));
    DPCR_TRY(add_metadata(m, &layers[0], tensors, error));
done:
    return status;
}

// ---- the model ----

// How many recurrent nodes there are, of that name where one is given; their places go to `to` where there is one.
static int64_t choose_nodes(const dpcri_onnx *m, const char *name, int64_t *to) {
    int64_t count = 0;
    for (int64_t i = 0; i < m->nodes; i++) {
        if (!kind_of(&m->node[i]) || (name && !dpcri_span_is(dpcri_onnx_label(&m->node[i]), name))) continue;
        if (to && count < MOST_LAYERS) to[count] = i;
        count++;
    }
    return count;
}

static dpcr_status no_node(const dpcri_onnx *m, const char *name, dpcr_error *error) {
    char list[192] = "";
    size_t at = 0;
    dpcri_quoted quoted;
    for (int64_t i = 0; i < m->nodes && at < sizeof list; i++)
        if (kind_of(&m->node[i]))
            at += (size_t)snprintf(list + at, sizeof list - at, "%s'%s'", at ? ", " : "",
                                   dpcri_onnx_quote(dpcri_onnx_label(&m->node[i]), &quoted));
    if (!at)
        return dpcri_source_bad(
            &m->source, error,
            "ONNX: the graph has no node of RNN, GRU or LSTM (loops, branches and functions are not "
            "looked into)");
    return dpcri_source_bad(&m->source, error, "ONNX: no recurrent node '%s', there are %s", dpcri_quote(name, &quoted),
                            list);
}

static dpcr_status read_nodes(const dpcri_onnx *m, const char *name, dpcr_tensors *tensors, dpcr_error *error) {
    int64_t nodes[MOST_LAYERS];
    const int64_t count = choose_nodes(m, name, nodes);
    dpcri_quoted quoted;
    dpcr_status status;
    if (count == 0) return no_node(m, name, error);
    if (name && count > 1)
        return dpcri_source_bad(&m->source, error, "ONNX: %lld recurrent nodes have the name '%s'", (long long)count,
                                dpcri_quote(name, &quoted));
    if (count > MOST_LAYERS)
        return dpcri_onnx_refuse(m, error, "ONNX: %lld recurrent nodes, wanted at most %d", (long long)count,
                                 MOST_LAYERS);
    layer *layers = dpcri_alloc_zero(m->context, (size_t)(2 * count) * sizeof *layers);
    if (!layers) return dpcri_no_memory(error, "ONNX nodes", 2 * count * (int64_t)sizeof *layers);
    for (int64_t i = 0; i < count; i++) DPCR_TRY(read_node(m, &m->node[nodes[i]], &layers[i], error));
    DPCR_TRY(make_stack(m, layers, layers + count, count, error));
    DPCR_TRY(convert(m, layers + count, count, tensors, error));
done:
    dpcri_free(m->context, layers);
    return status;
}

dpcr_status dpcri_onnx_read_bytes(dpcr_context *context, const char *path, const dpcri_source *source,
                                  const void *bytes, size_t count, const char *node, dpcr_tensors *tensors,
                                  dpcr_error *error) {
    static const unsigned char nothing = 0;
    const unsigned char *at = count ? bytes : &nothing;
    dpcri_onnx model;
    dpcr_status status;
    *tensors = (dpcr_tensors){0};
    DPCR_TRY(dpcri_onnx_open(context, path, source, (dpcri_span){at, at + count}, &model, error));
    DPCR_TRY(read_nodes(&model, node, tensors, error));
done:
    if (status != DPCR_OK) dpcr_tensors_free(context, tensors);
    dpcri_onnx_free(&model);
    return status;
}

enum { MOST_BYTES = INT32_MAX };  // protobuf's own limit

dpcr_status dpcr_onnx_read_recurrent(dpcr_context *context, const char *path, const char *node, dpcr_tensors *tensors,
                                     dpcr_error *error) {
    if (tensors) *tensors = (dpcr_tensors){0};
    if (!context || !path || !tensors)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "onnx_read_recurrent: context, path or tensors is NULL");
    char *bytes = NULL;
    int64_t count = 0;
    dpcr_status status = dpcri_file_read(context, path, MOST_BYTES, &bytes, &count, error);
    if (status != DPCR_OK) return status;
    const bool is_file = strcmp(path, "-") != 0;
    const dpcri_source source = dpcri_source_memory(path, bytes, (size_t)count);
    status = dpcri_onnx_read_bytes(context, is_file ? path : NULL, &source, bytes, (size_t)count, node, tensors, error);
    dpcri_free(context, bytes);
    return status;
}

dpcr_status dpcr_onnx_external_files(dpcr_context *context, const char *path,
                                     void (*found)(void *state, const char *file), void *state, dpcr_error *error) {
    if (!context || !path || !found)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "onnx_external_files: context, path or found is NULL");
    if (!strcmp(path, "-")) return DPCR_OK;
    char *bytes = NULL;
    int64_t count = 0;
    dpcri_onnx model;
    dpcr_status status = dpcri_file_read(context, path, MOST_BYTES, &bytes, &count, error);
    if (status != DPCR_OK) return status;
    const dpcri_source source = dpcri_source_memory(path, bytes, (size_t)count);
    const unsigned char *at = (const unsigned char *)bytes;
    status = dpcri_onnx_open(context, path, &source, (dpcri_span){at, at + count}, &model, error);
    if (status == DPCR_OK) dpcri_onnx_external(&model, (dpcri_span){at, at + count}, found, state);
    dpcri_onnx_free(&model);
    dpcri_free(context, bytes);
    return status;
}
