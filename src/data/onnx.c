// SPDX-License-Identifier: MIT
// The graph of an ONNX model: lists of nodes, values and tensors over the file's bytes, every size checked before use.
//
//   ModelProto { graph = 7 { node = 1, initializer = 5, input = 11, output = 12, value_info = 13 }, opset_import = 8 }
//
// Numbers behind the names are fields of onnx/onnx.proto (ONNX, IR version 14); fields that are not named are skipped.
#include "data/onnx.h"

#include "data/half.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MODEL_GRAPH = 7, MODEL_OPSET = 8, MODEL_FUNCTION = 25, OPSET_DOMAIN = 1, FUNCTION_NODE = 7 };
enum { GRAPH_NODE = 1, GRAPH_INITIALIZER = 5, GRAPH_INPUT = 11, GRAPH_OUTPUT = 12, GRAPH_VALUE_INFO = 13 };
enum { NODE_INPUT = 1, NODE_OUTPUT = 2, NODE_NAME = 3, NODE_TYPE = 4, NODE_ATTRIBUTE = 5, NODE_DOMAIN = 7 };
enum { ATTRIBUTE_NAME = 1, ATTRIBUTE_F = 2, ATTRIBUTE_I = 3, ATTRIBUTE_S = 4, ATTRIBUTE_T = 5, ATTRIBUTE_INTS = 8 };
enum { ATTRIBUTE_G = 6, ATTRIBUTE_TENSORS = 10, ATTRIBUTE_GRAPHS = 11 };
enum { ATTRIBUTE_TYPE = 20 };
enum { INFO_NAME = 1, INFO_TYPE = 2, TYPE_TENSOR = 1, TENSOR_TYPE_SHAPE = 2, SHAPE_DIM = 1, DIM_VALUE = 1 };
enum { ENTRY_KEY = 1, ENTRY_VALUE = 2 };
enum {
    TENSOR_DIMS = 1,
    TENSOR_TYPE = 2,
    TENSOR_FLOATS = 4,
    TENSOR_INT32S = 5,
    TENSOR_INT64S = 7,
    TENSOR_NAME = 8,
    TENSOR_RAW = 9,
    TENSOR_DOUBLES = 10,
    TENSOR_EXTERNAL = 13,
    TENSOR_LOCATION = 14
};
enum { MOST_IDENTITIES = 8, MOST_PATH = 4096 };

dpcr_status dpcri_onnx_refuse(const dpcri_onnx *model, dpcr_error *error, const char *format, ...) {
    char text[320];  // as in dpcri_source_bad
    va_list arguments;
    va_start(arguments, format);
    dpcri_line_print(text, sizeof text, format, arguments);
    va_end(arguments);
    return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s; file %s", text, model->source.name);
}

const char *dpcri_onnx_quote(dpcri_span name, dpcri_quoted *quoted) {
    char text[sizeof quoted->text + 1];
    const size_t length = dpcri_span_bytes(name), n = length < sizeof text - 1 ? length : sizeof text - 1;
    if (n) memcpy(text, name.at, n);
    text[n] = 0;
    return dpcri_quote(text, quoted);
}

static bool is_standard(dpcri_span domain) { return dpcri_span_is(domain, "") || dpcri_span_is(domain, "ai.onnx"); }

// Field `number` of that wire type in a message: the last one, as protobuf has it for what is not repeated.
static bool find_field(dpcri_span message, uint64_t number, dpcri_wire wire, dpcri_field *found) {
    const unsigned char *fault = NULL;
    bool there = false;
    dpcri_field f;
    while (dpcri_field_next(&message, &f, &fault)) {
        if (f.number != number || f.wire != wire) continue;
        *found = f;
        there = true;
    }
    return there;
}

// The string or message of that number; at NULL where it is absent.
static dpcri_span find_bytes(dpcri_span message, uint64_t number) {
    dpcri_field f = {0};
    find_field(message, number, DPCRI_BYTES, &f);
    return f.bytes;
}

// ---- the lists ----

static void add_value(dpcri_onnx *m, dpcri_onnx_value value) {
    if (dpcri_span_bytes(value.name) == 0) return;  // an output that is left out
    if (m->value) m->value[m->values] = value;
    m->values++;
}

// A damaged attribute must not read as one that is absent.
static void check_fields(dpcri_onnx *m, dpcri_span message) {
    dpcri_field f;
    while (dpcri_field_next(&message, &f, &m->fault)) continue;
}

static void add_node(dpcri_onnx *m, dpcri_span body) {
    dpcri_onnx_node node = {.body = body};
    dpcri_span domain = {0};
    dpcri_field f;
    int64_t outputs = 0;
    while (dpcri_field_next(&body, &f, &m->fault)) {
        if (f.wire != DPCRI_BYTES) continue;
        if (f.number == NODE_NAME) node.name = f.bytes;
        if (f.number == NODE_TYPE) node.type = f.bytes;
        if (f.number == NODE_DOMAIN) domain = f.bytes;
        if (f.number == NODE_ATTRIBUTE) check_fields(m, f.bytes);
        if (f.number == NODE_OUTPUT)
            add_value(m, (dpcri_onnx_value){.name = f.bytes, .node = m->nodes, .output = outputs++});
    }
    node.standard = is_standard(domain);
    if (m->node) m->node[m->nodes] = node;
    m->nodes++;
}

static void add_info(dpcri_onnx *m, dpcri_span body) {
    if (m->info) m->info[m->infos] = (dpcri_onnx_info){.name = find_bytes(body, INFO_NAME), .body = body};
    m->infos++;
}

static void add_initialiser(dpcri_onnx *m, dpcri_span body) {
    dpcri_span rest = body, name = {0};
    dpcri_field f;
    while (dpcri_field_next(&rest, &f, &m->fault))
        if (f.number == TENSOR_NAME && f.wire == DPCRI_BYTES) name = f.bytes;
    add_value(m, (dpcri_onnx_value){.name = name, .node = -1, .tensor = body});
}

// Once with the lists NULL, which counts, and once with them.
static void read_graph(dpcri_onnx *m, dpcri_span graph) {
    dpcri_field f;
    m->nodes = m->values = m->infos = 0;
    while (dpcri_field_next(&graph, &f, &m->fault)) {
        if (f.wire != DPCRI_BYTES) continue;
        if (f.number == GRAPH_NODE) add_node(m, f.bytes);
        if (f.number == GRAPH_INITIALIZER) add_initialiser(m, f.bytes);
        if (f.number == GRAPH_INPUT || f.number == GRAPH_OUTPUT || f.number == GRAPH_VALUE_INFO) add_info(m, f.bytes);
    }
}

static int compare_values(const void *a, const void *b) {
    return dpcri_span_compare(((const dpcri_onnx_value *)a)->name, ((const dpcri_onnx_value *)b)->name);
}

static int compare_infos(const void *a, const void *b) {
    const dpcri_onnx_info *p = a, *q = b;
    const int order = dpcri_span_compare(p->name, q->name);
    return order ? order : (p->body.at > q->body.at) - (p->body.at < q->body.at);
}

static dpcr_status sort_lists(dpcri_onnx *m, dpcr_error *error) {
    qsort(m->value, (size_t)m->values, sizeof *m->value, compare_values);
    qsort(m->info, (size_t)m->infos, sizeof *m->info, compare_infos);
    dpcri_quoted quoted;
    for (int64_t i = 1; i < m->values; i++)
        if (compare_values(&m->value[i - 1], &m->value[i]) == 0)
            return dpcri_source_bad(&m->source, error, "ONNX graph: value '%s' is made twice",
                                    dpcri_onnx_quote(m->value[i].name, &quoted));
    return DPCR_OK;
}

static dpcr_status bad_bytes(const dpcri_onnx *m, dpcr_error *error) {
    return dpcri_source_bad(&m->source, error, "ONNX: no protobuf field at byte %lld (damaged or cut short)",
                            (long long)(m->fault - m->bytes));
}

static dpcr_status find_graph(dpcri_onnx *m, dpcri_span file, dpcri_span *graph, dpcr_error *error) {
    dpcri_field f;
    int64_t graphs = 0;
    bool standard = false;
    while (dpcri_field_next(&file, &f, &m->fault)) {
        if (f.wire != DPCRI_BYTES) continue;
        if (f.number == MODEL_GRAPH) {
            *graph = f.bytes;
            graphs++;
        } else if (f.number == MODEL_OPSET) {
            standard |= is_standard(find_bytes(f.bytes, OPSET_DOMAIN));
        }
    }
    if (m->fault) return bad_bytes(m, error);
    if (graphs != 1) return dpcri_source_bad(&m->source, error, "ONNX: got %lld graphs, wanted one", (long long)graphs);
    // Every model says which version of the operators it means; without, it is no model or was cut short.
    if (!standard) return dpcri_source_bad(&m->source, error, "ONNX: it imports no version of ONNX's operators");
    return DPCR_OK;
}

dpcr_status dpcri_onnx_open(dpcr_context *context, const char *path, const dpcri_source *source, dpcri_span file,
                            dpcri_onnx *m, dpcr_error *error) {
    dpcri_span graph = {0};
    dpcr_status status;
    *m = (dpcri_onnx){.context = context, .source = *source, .path = path, .bytes = file.at};
    DPCR_TRY(find_graph(m, file, &graph, error));
    read_graph(m, graph);
    if (m->fault) DPCR_TRY(bad_bytes(m, error));
    m->node = dpcri_alloc(context, (size_t)(m->nodes + 1) * sizeof *m->node);
    m->value = dpcri_alloc(context, (size_t)(m->values + 1) * sizeof *m->value);
    m->info = dpcri_alloc(context, (size_t)(m->infos + 1) * sizeof *m->info);
    if (!m->node || !m->value || !m->info)
        DPCR_TRY(dpcri_no_memory(error, "ONNX graph", (m->nodes + m->values + m->infos) * (int64_t)sizeof *m->value));
    read_graph(m, graph);
    DPCR_TRY(sort_lists(m, error));
done:
    return status;
}

void dpcri_onnx_free(dpcri_onnx *m) {
    dpcri_free(m->context, m->info);
    dpcri_free(m->context, m->value);
    dpcri_free(m->context, m->node);
}

// ---- names ----

static dpcri_span find_nth(dpcri_span body, uint64_t number, int64_t index) {
    const unsigned char *fault = NULL;
    dpcri_field f;
    while (dpcri_field_next(&body, &f, &fault))
        if (f.number == number && f.wire == DPCRI_BYTES && index-- == 0) return f.bytes;
    return (dpcri_span){0};
}

dpcri_span dpcri_onnx_input(const dpcri_onnx_node *node, int64_t index) {
    return find_nth(node->body, NODE_INPUT, index);
}

dpcri_span dpcri_onnx_output(const dpcri_onnx_node *node, int64_t index) {
    return find_nth(node->body, NODE_OUTPUT, index);
}

dpcri_span dpcri_onnx_label(const dpcri_onnx_node *node) {
    dpcri_span label = node->name;
    for (int64_t i = 0; i < 3 && dpcri_span_bytes(label) == 0; i++) label = dpcri_onnx_output(node, i);
    return label;
}

bool dpcri_onnx_next_input(dpcri_span *rest, dpcri_span *name) {
    const unsigned char *fault = NULL;
    dpcri_field f;
    while (dpcri_field_next(rest, &f, &fault)) {
        if (f.number != NODE_INPUT || f.wire != DPCRI_BYTES) continue;
        *name = f.bytes;
        return true;
    }
    return false;
}

const dpcri_onnx_value *dpcri_onnx_find(const dpcri_onnx *m, dpcri_span name) {
    const dpcri_onnx_value key = {.name = name};
    return bsearch(&key, m->value, (size_t)m->values, sizeof key, compare_values);
}

int64_t dpcri_onnx_extent(const dpcri_onnx *m, dpcri_span name, int64_t axis) {
    int64_t low = 0, high = m->infos;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (dpcri_span_compare(m->info[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == m->infos || dpcri_span_compare(m->info[low].name, name) != 0) return -1;
    const dpcri_span type = find_bytes(m->info[low].body, INFO_TYPE), tensor = find_bytes(type, TYPE_TENSOR);
    const dpcri_span dim = find_nth(find_bytes(tensor, TENSOR_TYPE_SHAPE), SHAPE_DIM, axis);
    dpcri_field f;
    return find_field(dim, DIM_VALUE, DPCRI_VARINT, &f) && f.value <= INT64_MAX ? (int64_t)f.value : -1;
}

bool dpcri_onnx_next_attribute(dpcri_span *rest, dpcri_span *name, int64_t *type) {
    const unsigned char *fault = NULL;
    dpcri_field f, number;
    while (dpcri_field_next(rest, &f, &fault)) {
        if (f.number != NODE_ATTRIBUTE || f.wire != DPCRI_BYTES) continue;
        *name = find_bytes(f.bytes, ATTRIBUTE_NAME);
        const bool told = find_field(f.bytes, ATTRIBUTE_TYPE, DPCRI_VARINT, &number) && number.value <= INT32_MAX;
        *type = told ? (int64_t)number.value : 0;
        return true;
    }
    return false;
}

bool dpcri_onnx_find_attribute(const dpcri_onnx_node *node, const char *name, dpcri_onnx_attribute *a) {
    const unsigned char *fault = NULL;
    dpcri_span rest = node->body;
    dpcri_field f;
    while (dpcri_field_next(&rest, &f, &fault)) {
        if (f.number != NODE_ATTRIBUTE || f.wire != DPCRI_BYTES) continue;
        if (!dpcri_span_is(find_bytes(f.bytes, ATTRIBUTE_NAME), name)) continue;
        *a = (dpcri_onnx_attribute){
            .body = f.bytes, .s = find_bytes(f.bytes, ATTRIBUTE_S), .t = find_bytes(f.bytes, ATTRIBUTE_T)};
        dpcri_field number;
        if (find_field(a->body, ATTRIBUTE_I, DPCRI_VARINT, &number)) a->i = (int64_t)number.value;
        if (find_field(a->body, ATTRIBUTE_F, DPCRI_FIXED32, &number)) {
            memcpy(&a->f, number.bytes.at, sizeof a->f);
            if (!dpcri_host_is_little_endian()) dpcri_swap_bytes(&a->f, 1, sizeof a->f);
        }
        return true;
    }
    return false;
}

// ---- tensors ----

// Varints of a repeated field, packed or one by one; -1: more than `most`, or damaged.
static int read_integers(dpcri_span message, uint64_t number, int64_t *to, int most) {
    const unsigned char *fault = NULL;
    dpcri_field f;
    int count = 0;
    while (dpcri_field_next(&message, &f, &fault)) {
        if (f.number != number) continue;
        if (f.wire == DPCRI_VARINT) {
            if (count == most) return -1;
            to[count++] = (int64_t)f.value;
        }
        while (f.wire == DPCRI_BYTES && f.bytes.at < f.bytes.end) {
            uint64_t value;
            if (count == most || !dpcri_varint_next(&f.bytes, &value)) return -1;
            to[count++] = (int64_t)value;
        }
    }
    return fault ? -1 : count;
}

int dpcri_onnx_attribute_integers(const dpcri_onnx_attribute *a, int64_t *to, int most) {
    return read_integers(a->body, ATTRIBUTE_INTS, to, most);
}

static void read_entry(dpcri_onnx_tensor *t, dpcri_span entry) {
    const dpcri_span key = find_bytes(entry, ENTRY_KEY), value = find_bytes(entry, ENTRY_VALUE);
    if (dpcri_span_is(key, "location")) t->location = value;
    if (dpcri_span_is(key, "offset")) t->offset = value;
    if (dpcri_span_is(key, "length")) t->length = value;
}

dpcri_onnx_tensor dpcri_onnx_read_tensor(dpcri_span body) {
    dpcri_onnx_tensor t = {.body = body, .raw = find_bytes(body, TENSOR_RAW)};
    const unsigned char *fault = NULL;
    dpcri_field f;
    const int ndim = read_integers(body, TENSOR_DIMS, t.shape, DPCR_MAX_DIMS);
    t.ndim = ndim < 0 ? DPCR_MAX_DIMS + 1 : ndim;
    if (find_field(body, TENSOR_TYPE, DPCRI_VARINT, &f) && f.value <= INT32_MAX) t.type = (int64_t)f.value;
    if (find_field(body, TENSOR_LOCATION, DPCRI_VARINT, &f)) t.external = f.value != 0;
    while (dpcri_field_next(&body, &f, &fault))
        if (f.number == TENSOR_EXTERNAL && f.wire == DPCRI_BYTES) read_entry(&t, f.bytes);
    return t;
}

bool dpcri_onnx_constant(const dpcri_onnx *m, dpcri_span name, dpcri_onnx_tensor *tensor) {
    for (int hops = 0; hops < MOST_IDENTITIES; hops++) {
        const dpcri_onnx_value *value = dpcri_span_bytes(name) ? dpcri_onnx_find(m, name) : NULL;
        if (!value) return false;
        if (value->node < 0) {
            *tensor = dpcri_onnx_read_tensor(value->tensor);
            return true;
        }
        const dpcri_onnx_node *node = &m->node[value->node];
        dpcri_onnx_attribute a;
        if (!node->standard) return false;
        if (dpcri_span_is(node->type, "Constant")) {
            if (!dpcri_onnx_find_attribute(node, "value", &a) || !a.t.at) return false;
            *tensor = dpcri_onnx_read_tensor(a.t);
            return true;
        }
        if (!dpcri_span_is(node->type, "Identity")) return false;
        name = dpcri_onnx_input(node, 0);
    }
    return false;
}

int dpcri_onnx_integers(const dpcri_onnx *m, dpcri_span name, int64_t *to, int most) {
    dpcri_onnx_tensor t;
    dpcri_onnx_attribute a;
    if (dpcri_onnx_constant(m, name, &t)) return dpcri_onnx_tensor_integers(&t, to, most);
    const dpcri_onnx_value *value = dpcri_span_bytes(name) ? dpcri_onnx_find(m, name) : NULL;
    const dpcri_onnx_node *node = value && value->node >= 0 ? &m->node[value->node] : NULL;
    if (!node || !node->standard || !dpcri_span_is(node->type, "Constant")) return -1;
    if (dpcri_onnx_find_attribute(node, "value_ints", &a)) return dpcri_onnx_attribute_integers(&a, to, most);
    if (most < 1 || !dpcri_onnx_find_attribute(node, "value_int", &a)) return -1;
    to[0] = a.i;
    return 1;
}

int dpcri_onnx_tensor_integers(const dpcri_onnx_tensor *t, int64_t *to, int most) {
    if (t->external) return -1;
    const bool narrow = t->type == DPCRI_ONNX_INT32;
    if (!narrow && t->type != DPCRI_ONNX_INT64) return -1;
    if (!t->raw.at) return read_integers(t->body, narrow ? TENSOR_INT32S : TENSOR_INT64S, to, most);
    const size_t element = narrow ? sizeof(int32_t) : sizeof *to;
    const size_t bytes = dpcri_span_bytes(t->raw), count = bytes / element;
    if (bytes % element != 0 || count > (size_t)most) return -1;
    if (bytes) memcpy(to, t->raw.at, bytes);
    if (!dpcri_host_is_little_endian()) dpcri_swap_bytes(to, (int64_t)count, element);
    for (size_t i = narrow ? count : 0; i-- > 0;) {  // from the end: the wide ones lie over the narrow
        int32_t value;
        memcpy(&value, (const unsigned char *)to + i * sizeof value, sizeof value);
        to[i] = value;
    }
    return (int)count;
}

static dpcri_half half_of(const dpcri_onnx_tensor *t) {
    return t->type == DPCRI_ONNX_FLOAT16    ? DPCRI_BINARY16
           : t->type == DPCRI_ONNX_BFLOAT16 ? DPCRI_BFLOAT16
                                            : DPCRI_NO_HALF;
}

dpcr_dtype dpcri_onnx_dtype(const dpcri_onnx_tensor *t) {
    if (t->type == DPCRI_ONNX_DOUBLE) return DPCR_F64;
    return t->type == DPCRI_ONNX_FLOAT || half_of(t) ? DPCR_F32 : 0;
}

// Numbers of two bytes stand in int32_data, a varint each, their bits the low ones. to NULL: counts their bytes.
static int64_t gather_halves(const dpcri_onnx_tensor *t, unsigned char *to) {
    const unsigned char *fault = NULL;
    dpcri_span rest = t->body;
    dpcri_field f;
    int64_t used = 0;
    while (dpcri_field_next(&rest, &f, &fault)) {
        if (f.number != TENSOR_INT32S) continue;
        uint64_t value = f.value;
        bool more = f.wire == DPCRI_VARINT || (f.wire == DPCRI_BYTES && dpcri_varint_next(&f.bytes, &value));
        for (; more; used += 2) {
            if (to) to[used] = (unsigned char)(value & 0xff), to[used + 1] = (unsigned char)(value >> 8 & 0xff);
            more = f.wire == DPCRI_BYTES && dpcri_varint_next(&f.bytes, &value);
        }
    }
    return used;
}

// The typed lists: packed runs and single numbers, one after the other. to NULL: counts their bytes.
static int64_t gather_typed(const dpcri_onnx_tensor *t, unsigned char *to) {
    if (half_of(t)) return gather_halves(t, to);
    const bool is_float = t->type == DPCRI_ONNX_FLOAT;
    const unsigned char *fault = NULL;
    dpcri_span rest = t->body;
    dpcri_field f;
    int64_t used = 0;
    while (dpcri_field_next(&rest, &f, &fault)) {
        if (f.number != (is_float ? TENSOR_FLOATS : TENSOR_DOUBLES)) continue;
        if (f.wire != DPCRI_BYTES && f.wire != (is_float ? DPCRI_FIXED32 : DPCRI_FIXED64)) continue;
        const size_t bytes = dpcri_span_bytes(f.bytes);
        if (to && bytes) memcpy(to + used, f.bytes.at, bytes);
        used += (int64_t)bytes;
    }
    return used;
}

// A decimal number that fits, or `fallback` where none is told; -1: neither.
static int64_t read_decimal(dpcri_span text, int64_t fallback) {
    int64_t value = 0;
    if (!text.at) return fallback;
    if (text.at == text.end) return -1;
    for (; text.at < text.end; text.at++) {
        if (*text.at < '0' || *text.at > '9') return -1;
        if (!dpcri_mul(value, 10, &value) || !dpcri_add(value, *text.at - '0', &value)) return -1;
    }
    return value;
}

// Where the location of external data lies, seen from the model. Returns it in the path, NULL: it is none.
static const char *make_path(const dpcri_onnx *m, dpcri_span location, char path[MOST_PATH]) {
    const size_t length = dpcri_span_bytes(location);
    const char *slash = strrchr(m->path, '/');
    const size_t folder = slash ? (size_t)(slash - m->path) + 1 : 0, before = folder ? folder : 2;
    if (length == 0 || memchr(location.at, 0, length) || folder + length + 3 > MOST_PATH) return NULL;
    const bool absolute = *location.at == '/';
    snprintf(path, MOST_PATH, "%.*s%.*s", absolute ? 0 : (int)before, folder ? m->path : "./", (int)length,
             (const char *)location.at);
    return path + (absolute ? 0 : before);
}

// The file of external data beside the model. A model of a stranger's must not reach for other folders.
static bool make_location(const dpcri_onnx *m, dpcri_span location, char path[MOST_PATH]) {
    const char *part = make_path(m, location, path);
    if (!part || *part == '/') return false;
    for (; part; part = strchr(part, '/')) {
        part += *part == '/';
        if (part[0] == '.' && part[1] == '.' && (part[2] == '/' || part[2] == 0)) return false;
    }
    return true;
}

static dpcr_status open_external(const dpcri_onnx *m, const dpcri_onnx_tensor *t, const char *what, int64_t bytes,
                                 dpcri_source *file, int64_t *at, dpcr_error *error) {
    char path[MOST_PATH];
    dpcri_quoted quoted;
    int64_t end;
    const int64_t length = read_decimal(t->length, bytes);
    *at = read_decimal(t->offset, 0);
    if (!m->path) return dpcri_onnx_refuse(m, error, "ONNX %s lies in a file of its own, and this model in none", what);
    if (!make_location(m, t->location, path))
        return dpcri_source_bad(&m->source, error, "ONNX %s: got location '%s', wanted a file beside the model", what,
                                dpcri_onnx_quote(t->location, &quoted));
    const dpcr_status status = dpcri_source_open(file, path, true, error);
    if (status != DPCR_OK) return status;
    if (*at >= 0 && length == bytes && dpcri_add(*at, bytes, &end) && end <= file->size) return DPCR_OK;
    return dpcri_source_bad(&m->source, error,
                            "ONNX %s: got %lld bytes at %lld of '%s', wanted %lld of the %lld that it holds", what,
                            (long long)length, (long long)*at, dpcri_onnx_quote(t->location, &quoted), (long long)bytes,
                            (long long)file->size);
}

// ---- files beside the model: of tensors anywhere in it, branches and functions too ----

typedef struct listing {
    const dpcri_onnx *model;
    void (*found)(void *state, const char *file);
    void *state;
} listing;

static void list_tensor(const listing *l, dpcri_span body) {
    char path[MOST_PATH];
    const dpcri_onnx_tensor t = dpcri_onnx_read_tensor(body);
    if (t.external && make_path(l->model, t.location, path)) l->found(l->state, path);
}

static void list_graph(const listing *l, dpcri_span graph, uint64_t node, int depth);

static void list_attribute(const listing *l, dpcri_span attribute, int depth) {
    const unsigned char *fault = NULL;
    dpcri_field f;
    while (dpcri_field_next(&attribute, &f, &fault)) {
        if (f.wire != DPCRI_BYTES) continue;
        if (f.number == ATTRIBUTE_T || f.number == ATTRIBUTE_TENSORS) list_tensor(l, f.bytes);
        if (f.number == ATTRIBUTE_G || f.number == ATTRIBUTE_GRAPHS) list_graph(l, f.bytes, GRAPH_NODE, depth);
    }
}

// `node`: the field of nodes, which graphs and functions have at other numbers.
static void list_graph(const listing *l, dpcri_span graph, uint64_t node, int depth) {
    const unsigned char *fault = NULL;
    dpcri_field f, a;
    while (depth > 0 && dpcri_field_next(&graph, &f, &fault)) {
        if (f.wire != DPCRI_BYTES) continue;
        if (f.number == GRAPH_INITIALIZER && node == GRAPH_NODE) list_tensor(l, f.bytes);
        while (f.number == node && dpcri_field_next(&f.bytes, &a, &fault))
            if (a.number == NODE_ATTRIBUTE && a.wire == DPCRI_BYTES) list_attribute(l, a.bytes, depth - 1);
    }
}

void dpcri_onnx_external(const dpcri_onnx *m, dpcri_span file, void (*found)(void *state, const char *file),
                         void *state) {
    enum { MOST_DEPTH = 64 };
    const listing l = {m, found, state};
    const unsigned char *fault = NULL;
    dpcri_field f;
    while (dpcri_field_next(&file, &f, &fault)) {
        if (f.wire != DPCRI_BYTES) continue;
        if (f.number == MODEL_GRAPH) list_graph(&l, f.bytes, GRAPH_NODE, MOST_DEPTH);
        if (f.number == MODEL_FUNCTION) list_graph(&l, f.bytes, FUNCTION_NODE, MOST_DEPTH);
    }
}

// ---- loading ----

// *bytes as they are stored, *wide as they are loaded.
static dpcr_status check_size(const dpcri_onnx *m, const dpcri_onnx_tensor *t, const char *what, int64_t *count,
                              int64_t *bytes, int64_t *wide, dpcr_error *error) {
    bool sound = t->ndim <= DPCR_MAX_DIMS;
    for (int32_t d = 0; sound && d < t->ndim; d++) sound = t->shape[d] >= 0;
    if (!sound || !dpcri_shape_bytes(dpcri_onnx_dtype(t), t->ndim, t->shape, count, wide))
        return dpcri_source_bad(&m->source, error, "ONNX %s: its shape is none of at most %d extents that fit 63 bits",
                                what, DPCR_MAX_DIMS);
    *bytes = half_of(t) ? *wide / 2 : *wide;
    if (t->external) return DPCR_OK;
    const int64_t got = t->raw.at ? (int64_t)dpcri_span_bytes(t->raw) : gather_typed(t, NULL);
    if (got == *bytes) return DPCR_OK;
    return dpcri_source_bad(&m->source, error, "ONNX %s: got %lld bytes of numbers, wanted %lld for its shape", what,
                            (long long)got, (long long)*bytes);
}

// No memory is asked for before the model, or the file beside it, is known to hold as much.
dpcr_status dpcri_onnx_load(const dpcri_onnx *m, const dpcri_onnx_tensor *t, const char *what, void **data,
                            dpcr_error *error) {
    int64_t count = 0, bytes = 0, wide = 0, at = 0;
    dpcri_source file = {.fd = -1};
    dpcr_status status;
    *data = NULL;
    if (t->folded.at) return dpcri_onnx_load_folded(m, t->folded, what, data, error);
    DPCR_TRY(check_size(m, t, what, &count, &bytes, &wide, error));
    if (t->external) DPCR_TRY(open_external(m, t, what, bytes, &file, &at, error));
    *data = dpcri_alloc(m->context, (size_t)wide);
    if (wide && !*data) DPCR_TRY(dpcri_no_memory(error, "ONNX tensor", wide));
    unsigned char *stored = count ? (unsigned char *)*data + (wide - bytes) : *data;  // widened from the first on
    if (t->external)
        DPCR_TRY(dpcri_source_read(&file, at, stored, (size_t)bytes, "ONNX external data", error));
    else if (!t->raw.at)
        gather_typed(t, stored);
    else if (bytes)
        memcpy(stored, t->raw.at, (size_t)bytes);
    if (!dpcri_host_is_little_endian() && count) dpcri_swap_bytes(stored, count, (size_t)(bytes / count));
    if (half_of(t)) dpcri_half_widen(half_of(t), stored, count, *data);
done:
    dpcri_source_close(&file);
    if (status != DPCR_OK) {
        dpcri_free(m->context, *data);
        *data = NULL;
    }
    return status;
}
