// SPDX-License-Identifier: MIT
// Weights of an ONNX graph that nodes make of constants: exporters leave what is large as parts that are cut and
// joined, such as the gates of a layer in ONNX's order. Sizes first, numbers when they are loaded.
#include <string.h>

#include "data/onnx.h"

enum { MOST_NODES = 256, MOST_DEPTH = 16, MOST_AXES = DPCR_MAX_DIMS };

typedef struct block {
    dpcri_onnx_tensor like;  // type, ndim and shape
    void *data;              // dense, as dpcri_onnx_load has it; NULL where sizes alone are asked for
} block;

typedef struct fold {
    const dpcri_onnx *model;
    const char *what;
    bool numbers;  // not sizes alone
    int left;      // nodes that may still be looked at: values that many nodes share are made for each of them
    bool known;    // false: some operator, or form of one, that is not known
} fold;

static size_t element(const block *b) { return dpcr_dtype_size(dpcri_onnx_dtype(&b->like)); }

static int64_t product(const int64_t *extents, int32_t count) {
    int64_t n = 1;
    for (int32_t d = 0; d < count; d++) n *= extents[d];
    return n;
}

static bool has_a_size(const block *b, int64_t *bytes) {
    int64_t count;
    for (int32_t d = 0; d < b->like.ndim; d++)
        if (b->like.shape[d] < 0) return false;
    return dpcri_shape_bytes(dpcri_onnx_dtype(&b->like), b->like.ndim, b->like.shape, &count, bytes);
}

static dpcr_status unknown(fold *f) {
    f->known = false;
    return DPCR_OK;
}

// Integers of input `index`, or, in older sets of operators, of an attribute. 0: neither is there; -1: not known.
static int integers(const fold *f, const dpcri_onnx_node *node, int64_t index, const char *name, int64_t *to) {
    dpcri_onnx_attribute a;
    if (dpcri_onnx_find_attribute(node, name, &a)) return dpcri_onnx_attribute_integers(&a, to, MOST_AXES);
    const dpcri_span input = dpcri_onnx_input(node, index);
    return dpcri_span_bytes(input) ? dpcri_onnx_integers(f->model, input, to, MOST_AXES) : 0;
}

// Axes from the end are negative. False: one is out of range, or comes twice.
static bool axes_are_sound(int64_t *axis, int count, int32_t ndim) {
    unsigned seen = 0;
    for (int i = 0; i < count; i++) {
        if (axis[i] < 0) axis[i] += ndim;
        if (axis[i] < 0 || axis[i] >= ndim || seen >> axis[i] & 1) return false;
        seen |= 1u << axis[i];
    }
    return true;
}

// The elements at first + sum of i[d] strides[d], to a dense block of that shape.
static void gather(unsigned char *to, const unsigned char *from, size_t size, const block *of, const int64_t *strides) {
    const int64_t count = product(of->like.shape, of->like.ndim);
    int64_t at[MOST_AXES] = {0}, place = 0;
    for (int64_t n = 0; n < count; n++) {
        memcpy(to + (size_t)n * size, from + place * (int64_t)size, size);
        for (int32_t d = of->like.ndim - 1; d >= 0; d--) {
            place += strides[d];
            if (++at[d] < of->like.shape[d]) break;
            place -= at[d] * strides[d];
            at[d] = 0;
        }
    }
}

static void dense_strides(const block *b, int64_t *strides) {
    for (int32_t d = b->like.ndim - 1, n = d; d >= 0; d--)
        strides[d] = d == n ? 1 : strides[d + 1] * b->like.shape[d + 1];
}

// In the place of *b what is picked out of it.
static dpcr_status pick(const fold *f, block *b, const block *shape, int64_t first, const int64_t *strides,
                        dpcr_error *error) {
    const size_t size = element(b);
    const int64_t bytes = product(shape->like.shape, shape->like.ndim) * (int64_t)size;  // no more than it has
    block picked = *shape;
    if (f->numbers) {
        picked.data = dpcri_alloc(f->model->context, (size_t)bytes);
        if (bytes && !picked.data) return dpcri_no_memory(error, "ONNX tensor", bytes);
        if (bytes) gather(picked.data, (unsigned char *)b->data + first * (int64_t)size, size, &picked, strides);
        dpcri_free(f->model->context, b->data);
    }
    *b = picked;
    return DPCR_OK;
}

static int64_t clamp(int64_t x, int64_t least, int64_t most) { return x < least ? least : x > most ? most : x; }

static dpcr_status slice(fold *f, const dpcri_onnx_node *node, block *b, dpcr_error *error) {
    int64_t start[MOST_AXES], end[MOST_AXES], axis[MOST_AXES], step[MOST_AXES], strides[MOST_AXES], first = 0;
    const int count = integers(f, node, 1, "starts", start), ends = integers(f, node, 2, "ends", end),
              steps = integers(f, node, 4, "steps", step);
    int axes = integers(f, node, 3, "axes", axis);
    for (int i = 0; axes == 0 && i < count; i++) axis[i] = i;
    if (axes == 0) axes = count;
    if (count < 1 || ends != count || axes != count || (steps != 0 && steps != count)) return unknown(f);
    if (count > b->like.ndim || !axes_are_sound(axis, count, b->like.ndim)) return unknown(f);
    block picked = {.like = b->like};
    dense_strides(b, strides);
    for (int i = 0; i < count; i++) {
        int64_t *extent = &picked.like.shape[axis[i]];
        if (steps && step[i] != 1) return unknown(f);
        const int64_t from = clamp(start[i] < 0 ? start[i] + *extent : start[i], 0, *extent),
                      to = clamp(end[i] < 0 ? end[i] + *extent : end[i], from, *extent);
        first += from * strides[axis[i]];
        *extent = to - from;
    }
    return pick(f, b, &picked, first, strides, error);
}

static dpcr_status transpose(fold *f, const dpcri_onnx_node *node, block *b, dpcr_error *error) {
    dpcri_onnx_attribute a;
    int64_t order[MOST_AXES], strides[MOST_AXES], dense[MOST_AXES];
    const int32_t ndim = b->like.ndim;
    int count = ndim;
    for (int32_t d = 0; d < ndim; d++) order[d] = ndim - 1 - d;
    if (dpcri_onnx_find_attribute(node, "perm", &a)) count = dpcri_onnx_attribute_integers(&a, order, MOST_AXES);
    if (count != ndim || !axes_are_sound(order, count, ndim)) return unknown(f);
    block picked = {.like = b->like};
    dense_strides(b, dense);
    for (int32_t d = 0; d < ndim; d++) {
        picked.like.shape[d] = b->like.shape[order[d]];
        strides[d] = dense[order[d]];
    }
    return pick(f, b, &picked, 0, strides, error);
}

static dpcr_status unsqueeze(fold *f, const dpcri_onnx_node *node, block *b) {
    int64_t axis[MOST_AXES];
    const int count = integers(f, node, 1, "axes", axis);
    const int32_t ndim = b->like.ndim + count;
    if (count < 1 || ndim > MOST_AXES || !axes_are_sound(axis, count, ndim)) return unknown(f);
    const dpcri_onnx_tensor old = b->like;
    unsigned made = 0;
    for (int i = 0; i < count; i++) made |= 1u << axis[i];
    b->like.ndim = ndim;
    for (int32_t d = 0, from = 0; d < ndim; d++) b->like.shape[d] = made >> d & 1 ? 1 : old.shape[from++];
    return DPCR_OK;
}

static dpcr_status squeeze(fold *f, const dpcri_onnx_node *node, block *b) {
    int64_t axis[MOST_AXES];
    int count = integers(f, node, 1, "axes", axis);
    if (count == 0)
        for (int32_t d = 0; d < b->like.ndim; d++)
            if (b->like.shape[d] == 1) axis[count++] = d;
    if (count < 0 || !axes_are_sound(axis, count, b->like.ndim)) return unknown(f);
    unsigned gone = 0;
    for (int i = 0; i < count; i++) {
        if (b->like.shape[axis[i]] != 1) return unknown(f);
        gone |= 1u << axis[i];
    }
    const dpcri_onnx_tensor old = b->like;
    b->like.ndim = 0;
    for (int32_t d = 0; d < old.ndim; d++)
        if (!(gone >> d & 1)) b->like.shape[b->like.ndim++] = old.shape[d];
    return DPCR_OK;
}

static dpcr_status reshape(fold *f, const dpcri_onnx_node *node, block *b) {
    dpcri_onnx_attribute a;
    block shaped = {.like = b->like};
    int64_t to[MOST_AXES], bytes = 0, wanted = 0;
    const int count = integers(f, node, 1, "shape", to);
    const bool copies = !dpcri_onnx_find_attribute(node, "allowzero", &a) || a.i == 0;
    int open = -1;
    if (count < 1) return unknown(f);
    for (int i = 0; i < count; i++) {
        if (to[i] == 0 && copies) {
            if (i >= b->like.ndim) return unknown(f);
            to[i] = b->like.shape[i];
        }
        if (to[i] == -1) {
            if (open >= 0) return unknown(f);
            open = i;
            to[i] = 1;
        }
        shaped.like.shape[i] = to[i];
    }
    shaped.like.ndim = count;
    if (!has_a_size(&shaped, &bytes) || !has_a_size(b, &wanted)) return unknown(f);
    if (open >= 0 && bytes) shaped.like.shape[open] = wanted / bytes;
    if (!has_a_size(&shaped, &bytes) || bytes != wanted) return unknown(f);
    b->like = shaped.like;
    return DPCR_OK;
}

// *b becomes *b and `more`, one behind the other on an axis.
static dpcr_status append(fold *f, int64_t axis, block *b, const block *more, dpcr_error *error) {
    block both = {.like = b->like};
    int64_t bytes = 0;
    bool fits = b->like.ndim == more->like.ndim && b->like.type == more->like.type;
    for (int32_t d = 0; fits && d < b->like.ndim; d++) fits = d == axis || b->like.shape[d] == more->like.shape[d];
    if (!fits || !dpcri_add(b->like.shape[axis], more->like.shape[axis], &both.like.shape[axis])) return unknown(f);
    if (!has_a_size(&both, &bytes)) return unknown(f);
    if (f->numbers) {
        const int32_t inner = b->like.ndim - (int32_t)axis;
        const size_t left = (size_t)product(b->like.shape + axis, inner) * element(b),
                     right = (size_t)product(more->like.shape + axis, inner) * element(b);
        both.data = dpcri_alloc(f->model->context, (size_t)bytes);
        if (bytes && !both.data) return dpcri_no_memory(error, "ONNX tensor", bytes);
        for (int64_t i = 0; bytes && i < product(b->like.shape, (int32_t)axis); i++) {
            unsigned char *to = (unsigned char *)both.data + (size_t)i * (left + right);
            if (left) memcpy(to, (const unsigned char *)b->data + (size_t)i * left, left);
            if (right) memcpy(to + left, (const unsigned char *)more->data + (size_t)i * right, right);
        }
        dpcri_free(f->model->context, b->data);
    }
    *b = both;
    return DPCR_OK;
}

static dpcr_status evaluate(fold *f, dpcri_span name, int depth, block *b, dpcr_error *error);

static dpcr_status concat(fold *f, const dpcri_onnx_node *node, int depth, block *b, dpcr_error *error) {
    dpcri_onnx_attribute a;
    dpcri_span rest = node->body, name;
    block more = {0};
    dpcr_status status = DPCR_OK;
    if (!dpcri_onnx_find_attribute(node, "axis", &a)) return unknown(f);
    for (bool first = true; f->known && dpcri_onnx_next_input(&rest, &name); first = false) {
        DPCR_TRY(evaluate(f, name, depth - 1, first ? b : &more, error));
        if (first && f->known && !axes_are_sound(&a.i, 1, b->like.ndim)) return unknown(f);
        if (!first && f->known) DPCR_TRY(append(f, a.i, b, &more, error));
        dpcri_free(f->model->context, more.data);
        more.data = NULL;
    }
done:
    dpcri_free(f->model->context, more.data);
    return status;
}

static dpcr_status evaluate(fold *f, dpcri_span name, int depth, block *b, dpcr_error *error) {
    const dpcri_onnx *m = f->model;
    *b = (block){0};
    if (depth == 0 || f->left-- == 0) return unknown(f);
    if (dpcri_onnx_constant(m, name, &b->like)) {
        int64_t bytes;
        if (!dpcri_onnx_dtype(&b->like) || b->like.ndim > MOST_AXES || !has_a_size(b, &bytes)) return unknown(f);
        return f->numbers ? dpcri_onnx_load(m, &b->like, f->what, &b->data, error) : DPCR_OK;
    }
    const dpcri_onnx_value *value = dpcri_span_bytes(name) ? dpcri_onnx_find(m, name) : NULL;
    const dpcri_onnx_node *node = value && value->node >= 0 ? &m->node[value->node] : NULL;
    if (!node || !node->standard) return unknown(f);
    if (dpcri_span_is(node->type, "Concat")) return concat(f, node, depth, b, error);
    static const char *const types[] = {"Identity", "Slice", "Transpose", "Unsqueeze", "Squeeze", "Reshape"};
    enum { IDENTITY, SLICE, TRANSPOSE, UNSQUEEZE, SQUEEZE, RESHAPE, TYPES };
    int type = 0;
    while (type < TYPES && !dpcri_span_is(node->type, types[type])) type++;
    if (type == TYPES) return unknown(f);
    const dpcr_status status = evaluate(f, dpcri_onnx_input(node, 0), depth - 1, b, error);
    if (status != DPCR_OK || !f->known) return status;
    switch (type) {
        case SLICE: return slice(f, node, b, error);
        case TRANSPOSE: return transpose(f, node, b, error);
        case UNSQUEEZE: return unsqueeze(f, node, b);
        case SQUEEZE: return squeeze(f, node, b);
        case RESHAPE: return reshape(f, node, b);
        default: return DPCR_OK;
    }
}

bool dpcri_onnx_fold(const dpcri_onnx *m, dpcri_span name, dpcri_onnx_tensor *tensor) {
    fold f = {.model = m, .left = MOST_NODES, .known = true};
    block b;
    if (evaluate(&f, name, MOST_DEPTH, &b, NULL) != DPCR_OK || !f.known) return false;
    *tensor = (dpcri_onnx_tensor){.type = b.like.type, .ndim = b.like.ndim, .folded = name};
    memcpy(tensor->shape, b.like.shape, sizeof tensor->shape);
    return true;
}

dpcr_status dpcri_onnx_load_folded(const dpcri_onnx *m, dpcri_span name, const char *what, void **data,
                                   dpcr_error *error) {
    fold f = {.model = m, .what = what, .numbers = true, .left = MOST_NODES, .known = true};
    block b;
    const dpcr_status status = evaluate(&f, name, MOST_DEPTH, &b, error);
    *data = b.data;
    if (status == DPCR_OK) return DPCR_OK;
    dpcri_free(m->context, b.data);
    *data = NULL;
    return status;
}
