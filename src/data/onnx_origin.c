// SPDX-License-Identifier: MIT
// What a value of an ONNX graph is made of: a walk against the way of the data, which enters each value once.
#include <string.h>

#include "data/onnx.h"

typedef struct walk {
    const dpcri_onnx *model;
    bool *seen;                        // a value of the model
    const dpcri_onnx_value **pending;  // seen, and not yet looked at
    int64_t count;
    bool given;  // it came to an input of the model, or to what is told when the model runs
} walk;

static dpcr_status walk_begin(walk *w, const dpcri_onnx *m, dpcr_error *error) {
    const size_t most = (size_t)m->values + 1;
    *w = (walk){.model = m};
    w->seen = dpcri_alloc_zero(m->context, most * sizeof *w->seen);
    w->pending = dpcri_alloc(m->context, most * sizeof *w->pending);
    if (w->seen && w->pending) return DPCR_OK;
    return dpcri_no_memory(error, "ONNX graph", (int64_t)(most * (sizeof *w->seen + sizeof *w->pending)));
}

static void walk_end(walk *w) {
    dpcri_free(w->model->context, w->pending);
    dpcri_free(w->model->context, w->seen);
}

// Inputs of the model and those that are left out have nothing behind them.
static void add(walk *w, dpcri_span name) {
    const dpcri_onnx_value *value = dpcri_span_bytes(name) ? dpcri_onnx_find(w->model, name) : NULL;
    if (!value && dpcri_span_bytes(name)) w->given = true;
    if (!value || w->seen[value - w->model->value]) return;
    w->seen[value - w->model->value] = true;
    w->pending[w->count++] = value;
}

static const unsigned ALL_INPUTS = ~0U;
// `which`: a bit each, the last one for those beyond it too.
static void add_inputs(walk *w, const dpcri_onnx_node *node, unsigned which) {
    dpcri_span rest = node->body, name;
    for (int i = 0; dpcri_onnx_next_input(&rest, &name); i += i < 31)
        if (which >> i & 1) add(w, name);
}

static const dpcri_onnx_value *next(walk *w) { return w->count ? w->pending[--w->count] : NULL; }

static bool is_a(const dpcri_onnx_node *node, const char *type) {
    return node->standard && dpcri_span_is(node->type, type);
}

// ---- constants ----

dpcr_status dpcri_onnx_all_zeros(const dpcri_onnx *m, const dpcri_onnx_tensor *t, const char *what, bool *zeros,
                                 dpcr_error *error) {
    void *data = NULL;
    int64_t count = 1;
    const dpcr_status status = dpcri_onnx_load(m, t, what, &data, error);
    if (status != DPCR_OK) return status;
    for (int32_t d = 0; d < t->ndim; d++) count *= t->shape[d];
    *zeros = true;
    for (int64_t i = 0; *zeros && i < count; i++)
        *zeros = dpcri_onnx_dtype(t) == DPCR_F32 ? ((const float *)data)[i] == 0 : ((const double *)data)[i] == 0;
    dpcri_free(m->context, data);
    return DPCR_OK;
}

// The inputs that a node's numbers are copied from, a bit each; 0: it computes others, or picks out of them by a number
// that is not known before it runs.
static unsigned copied_inputs(const dpcri_onnx *m, const dpcri_onnx_node *node) {
    static const char *const types[] = {"Cast",    "CastLike", "Dropout", "Expand", "Flatten",   "Identity",
                                        "Reshape", "Split",    "Squeeze", "Tile",   "Transpose", "Unsqueeze"};
    dpcri_onnx_tensor index;
    if (!node->standard) return 0;
    if (dpcri_span_is(node->type, "Concat")) return ALL_INPUTS;
    if (dpcri_span_is(node->type, "Pad")) return 1U | 1U << 2;  // what it pads with too
    if (dpcri_span_is(node->type, "Gather") || dpcri_span_is(node->type, "Slice")) {
        const dpcri_span first = dpcri_onnx_input(node, 1);
        return dpcri_span_bytes(first) == 0 || dpcri_onnx_constant(m, first, &index);
    }
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (dpcri_span_is(node->type, types[i])) return 1;
    return 0;
}

// The tensor that a value is, or that ConstantOfShape fills it with (of which no attribute means 0).
static bool constant_of(const dpcri_onnx *m, const dpcri_onnx_value *value, dpcri_onnx_tensor *t) {
    dpcri_onnx_attribute a;
    if (dpcri_onnx_constant(m, value->name, t)) return true;
    const dpcri_onnx_node *node = &m->node[value->node];
    if (!is_a(node, "ConstantOfShape")) return false;
    if (!dpcri_onnx_find_attribute(node, "value", &a) || !a.t.at) return false;
    *t = dpcri_onnx_read_tensor(a.t);
    return true;
}

enum { MOST_INTEGERS = 64 };
static bool are_zeros(const int64_t *number, int count) {  // < 0: not known
    for (int i = 0; i < count; i++)
        if (number[i] != 0) return false;
    return count >= 0;
}

// Floats of an attribute's list, one by one or packed; +0 and -0 alike.
static bool floats_are_zeros(dpcri_span attribute) {
    enum { ATTRIBUTE_FLOATS = 7, SIZE = 4, MAGNITUDE = 0x7f };
    const unsigned char *fault = NULL;
    dpcri_field f;
    while (dpcri_field_next(&attribute, &f, &fault)) {
        if (f.number != ATTRIBUTE_FLOATS || (f.wire != DPCRI_BYTES && f.wire != DPCRI_FIXED32)) continue;
        for (const unsigned char *at = f.bytes.at; f.bytes.end - at >= SIZE; at += SIZE)
            if (at[0] || at[1] || at[2] || (at[3] & MAGNITUDE)) return false;
    }
    return true;
}

// Of a Constant that has no tensor.
static bool attributes_are_zeros(const dpcri_onnx *m, const dpcri_onnx_value *value) {
    const dpcri_onnx_node *node = &m->node[value->node];
    dpcri_onnx_attribute a;
    int64_t number[MOST_INTEGERS];
    if (dpcri_onnx_find_attribute(node, "value_float", &a)) return a.f == 0;
    if (dpcri_onnx_find_attribute(node, "value_floats", &a)) return floats_are_zeros(a.body);
    return are_zeros(number, dpcri_onnx_integers(m, value->name, number, MOST_INTEGERS));
}

static dpcr_status tensor_is_zeros(const dpcri_onnx *m, const dpcri_onnx_tensor *t, const char *what, bool *zeros,
                                   dpcr_error *error) {
    int64_t number[MOST_INTEGERS];
    if (dpcri_onnx_dtype(t)) return dpcri_onnx_all_zeros(m, t, what, zeros, error);
    *zeros = are_zeros(number, dpcri_onnx_tensor_integers(t, number, MOST_INTEGERS));  // on their way to a Cast
    return DPCR_OK;
}

dpcr_status dpcri_onnx_copies_zeros(const dpcri_onnx *m, dpcri_span name, const char *what, bool *zeros, bool *computed,
                                    dpcr_error *error) {
    const dpcri_onnx_value *value;
    dpcri_onnx_tensor t;
    dpcr_status status;
    walk w;
    *zeros = true, *computed = false;
    DPCR_TRY(walk_begin(&w, m, error));
    add(&w, name);
    while (*zeros && (value = next(&w))) {
        if (constant_of(m, value, &t)) {
            DPCR_TRY(tensor_is_zeros(m, &t, what, zeros, error));
            continue;
        }
        const dpcri_onnx_node *node = &m->node[value->node];
        if (is_a(node, "Constant")) {
            *zeros = attributes_are_zeros(m, value);
        } else if (!is_a(node, "ConstantOfShape")) {  // which fills with zeros
            const unsigned copied = copied_inputs(m, node);
            *computed = *computed || !copied;
            add_inputs(&w, node, copied);
        }
    }
done:
    walk_end(&w);
    return status;
}

dpcr_status dpcri_onnx_copies_others(const dpcri_onnx *m, dpcri_span name, int64_t number, bool *others, bool *given,
                                     dpcr_error *error) {
    enum { MOST = 1024 };
    const dpcri_onnx_value *value;
    dpcri_onnx_tensor t;
    int64_t found[MOST];
    dpcr_status status;
    walk w;
    *others = false;
    DPCR_TRY(walk_begin(&w, m, error));
    add(&w, name);
    while (!*others && (value = next(&w))) {
        const bool tensor = constant_of(m, value, &t);
        const dpcri_onnx_node *node = tensor ? NULL : &m->node[value->node];
        if (tensor || is_a(node, "Constant") || is_a(node, "ConstantOfShape")) {  // that one fills with zeros
            const int count =
                tensor ? dpcri_onnx_tensor_integers(&t, found, MOST) : dpcri_onnx_integers(m, value->name, found, MOST);
            *others = count <= 0;
            for (int i = 0; i < count; i++) *others = *others || found[i] != number;
            continue;
        }
        const unsigned copied = copied_inputs(m, node);
        w.given = w.given || !copied;
        add_inputs(&w, node, copied);
    }
    *given = w.given;
done:
    walk_end(&w);
    return status;
}

// ---- nodes ----

// May it make other numbers of the same inputs, or of what its inputs do not tell?
static bool is_open(const dpcri_onnx_node *node) {
    enum { GRAPH = 5, GRAPHS = 10 };  // of AttributeProto.type: branches see values that no input names
    dpcri_span rest = node->body, attribute, input;
    int64_t type;
    if (!node->standard) return true;
    for (bool more = dpcri_onnx_next_attribute(&rest, &attribute, &type); more;
         more = dpcri_onnx_next_attribute(&rest, &attribute, &type))
        if (type == GRAPH || type == GRAPHS) return true;
    rest = node->body;
    if (!dpcri_onnx_next_input(&rest, &input)) return !is_a(node, "Constant");
    static const char *const random[] = {"Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike"};
    for (size_t i = 0; i < sizeof random / sizeof random[0]; i++)
        if (dpcri_span_is(node->type, random[i])) return true;
    return false;
}

static bool is_of_extents(const dpcri_onnx_node *node) { return is_a(node, "Shape") || is_a(node, "Size"); }

dpcr_status dpcri_onnx_is_fixed(const dpcri_onnx *m, dpcri_span name, bool *fixed, dpcr_error *error) {
    const dpcri_onnx_value *value;
    dpcr_status status;
    walk w;
    *fixed = false;
    DPCR_TRY(walk_begin(&w, m, error));
    add(&w, name);
    while (!w.given && (value = next(&w))) {
        if (value->node < 0) continue;
        const dpcri_onnx_node *node = &m->node[value->node];
        w.given = is_open(node);
        if (!is_of_extents(node)) add_inputs(&w, node, ALL_INPUTS);
    }
    *fixed = !w.given;
done:
    walk_end(&w);
    return status;
}

dpcr_status dpcri_onnx_depends(const dpcri_onnx *m, const dpcri_span *names, int64_t count,
                               bool (*on)(const dpcri_onnx_node *), bool *depends, dpcr_error *error) {
    const dpcri_onnx_value *value;
    dpcr_status status;
    walk w;
    *depends = false;
    DPCR_TRY(walk_begin(&w, m, error));
    for (int64_t i = 0; i < count; i++) add(&w, names[i]);
    while (!*depends && (value = next(&w))) {
        if (value->node < 0) continue;
        const dpcri_onnx_node *node = &m->node[value->node];
        *depends = on(node);
        if (!is_of_extents(node)) add_inputs(&w, node, ALL_INPUTS);
    }
done:
    walk_end(&w);
    return status;
}
