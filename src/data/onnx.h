// SPDX-License-Identifier: MIT
// An ONNX model's graph: its nodes, what computes each value, its tensors. Everything is a view of the file's bytes.
#ifndef DPCRI_DATA_ONNX_H
#define DPCRI_DATA_ONNX_H

#include "data/protobuf.h"
#include "data/tensors.h"

// TensorProto.DataType, as far as it is read.
enum {
    DPCRI_ONNX_FLOAT = 1,
    DPCRI_ONNX_INT32 = 6,
    DPCRI_ONNX_INT64 = 7,
    DPCRI_ONNX_FLOAT16 = 10,
    DPCRI_ONNX_DOUBLE = 11,
    DPCRI_ONNX_BFLOAT16 = 16
};

typedef struct dpcri_onnx_node {
    dpcri_span body;  // NodeProto
    dpcri_span name, type;
    bool standard;  // an operator of ONNX itself, not of some other domain
} dpcri_onnx_node;

// A value that a node computes (node >= 0, `output` of it), or an initialiser (node -1).
typedef struct dpcri_onnx_value {
    dpcri_span name;
    int64_t node, output;
    dpcri_span tensor;  // TensorProto of an initialiser
} dpcri_onnx_value;

// The declared type of a value: ValueInfoProto.
typedef struct dpcri_onnx_info {
    dpcri_span name, body;
} dpcri_onnx_info;

typedef struct dpcri_onnx {
    dpcr_context *context;
    dpcri_source source;         // for error texts
    const char *path;            // external data lie beside it; NULL: the model is not in a file
    const unsigned char *bytes;  // the caller's
    const unsigned char *fault;  // where the bytes are no protobuf
    int64_t nodes, values, infos;
    dpcri_onnx_node *node;
    dpcri_onnx_value *value;  // sorted by name, no name twice
    dpcri_onnx_info *info;    // sorted by name
} dpcri_onnx;

// Reads the lists. `model` must be freed also after a failure.
dpcr_status dpcri_onnx_open(dpcr_context *context, const char *path, const dpcri_source *source, dpcri_span file,
                            dpcri_onnx *model, dpcr_error *error);
void dpcri_onnx_free(dpcri_onnx *model);

// DPCR_ERROR_UNSUPPORTED with the text and "; file NAME".
dpcr_status dpcri_onnx_refuse(const dpcri_onnx *model, dpcr_error *error, const char *format, ...) DPCRI_PRINTF(3, 4);

// Names for error texts.
const char *dpcri_onnx_quote(dpcri_span name, dpcri_quoted *quoted);
// A node's name, or that of its first output where it has none; empty where it has neither.
dpcri_span dpcri_onnx_label(const dpcri_onnx_node *node);

// Name of input or output `index`; empty where it is left out.
dpcri_span dpcri_onnx_input(const dpcri_onnx_node *node, int64_t index);
dpcri_span dpcri_onnx_output(const dpcri_onnx_node *node, int64_t index);
// The next input's name, empty where it is left out; `rest` is the node's body at first. False: no more.
bool dpcri_onnx_next_input(dpcri_span *rest, dpcri_span *name);
const dpcri_onnx_value *dpcri_onnx_find(const dpcri_onnx *model, dpcri_span name);
// Extent `axis` of a value as the model declares it; -1: unknown.
int64_t dpcri_onnx_extent(const dpcri_onnx *model, dpcri_span name, int64_t axis);

typedef struct dpcri_onnx_attribute {
    dpcri_span body;  // AttributeProto, for its lists
    int64_t i;
    float f;
    dpcri_span s, t;  // t.at NULL: no tensor
} dpcri_onnx_attribute;
bool dpcri_onnx_find_attribute(const dpcri_onnx_node *node, const char *name, dpcri_onnx_attribute *attribute);
// The next attribute's name and AttributeProto.type (0: not told); `rest` is the node's body at first. False: no more.
bool dpcri_onnx_next_attribute(dpcri_span *rest, dpcri_span *name, int64_t *type);

// TensorProto, its sizes not yet checked.
typedef struct dpcri_onnx_tensor {
    dpcri_span body, raw;  // raw.at NULL: the numbers stand in typed lists
    int64_t type;
    int32_t ndim;  // may exceed DPCR_MAX_DIMS; shape has no more than these
    int64_t shape[DPCR_MAX_DIMS];
    bool external;
    dpcri_span location, offset, length;  // of external data; at NULL: not told
    dpcri_span folded;  // the value that nodes make of constants (dpcri_onnx_fold); at NULL: it is stored
} dpcri_onnx_tensor;

dpcri_onnx_tensor dpcri_onnx_read_tensor(dpcri_span body);
// The tensor of an initialiser or of a Constant node, also behind Identity. False: it is computed, or there is none.
bool dpcri_onnx_constant(const dpcri_onnx *model, dpcri_span name, dpcri_onnx_tensor *tensor);
// What a tensor's numbers are loaded as: float64, float32 (of float16 and bfloat16 too), or 0: none of these.
dpcr_dtype dpcri_onnx_dtype(const dpcri_onnx_tensor *tensor);
// The numbers of such a tensor in the host's byte order; *data belongs to the caller (dpcri_free). `what` is it in
// error texts.
dpcr_status dpcri_onnx_load(const dpcri_onnx *model, const dpcri_onnx_tensor *tensor, const char *what, void **data,
                            dpcr_error *error);
// As dpcr_onnx_external_files; `file`: the model's.
void dpcri_onnx_external(const dpcri_onnx *model, dpcri_span file, void (*found)(void *state, const char *file),
                         void *state);
// Integers of a tensor (int32, int64), of a constant's or of an attribute's list; -1: none, or more than `most`.
int dpcri_onnx_tensor_integers(const dpcri_onnx_tensor *tensor, int64_t *to, int most);
int dpcri_onnx_integers(const dpcri_onnx *model, dpcri_span name, int64_t *to, int most);
int dpcri_onnx_attribute_integers(const dpcri_onnx_attribute *attribute, int64_t *to, int most);

// ---- weights that are made of constants: onnx_fold.c ----

// A value that Slice (by steps of 1), Concat, Transpose, Unsqueeze, Squeeze and Reshape make of constants of floats:
// its type and shape. False: others, or more of them than such a value takes. dpcri_onnx_load has the numbers.
bool dpcri_onnx_fold(const dpcri_onnx *model, dpcri_span name, dpcri_onnx_tensor *tensor);
dpcr_status dpcri_onnx_load_folded(const dpcri_onnx *model, dpcri_span name, const char *what, void **data,
                                   dpcr_error *error);

// ---- what a value is made of: onnx_origin.c ----

// `what`: as in dpcri_onnx_load.
dpcr_status dpcri_onnx_all_zeros(const dpcri_onnx *model, const dpcri_onnx_tensor *tensor, const char *what,
                                 bool *zeros, dpcr_error *error);
// False where a constant with a number other than 0 goes into a value through operators that copy numbers: Expand,
// Slice, Concat, ConstantOfShape and their like. What the model is given, what is computed, and what is picked out when
// it runs say nothing.
// *computed: some of it is, where all that is copied are zeros.
dpcr_status dpcri_onnx_copies_zeros(const dpcri_onnx *model, dpcri_span name, const char *what, bool *zeros,
                                    bool *computed, dpcr_error *error);
// *others: an integer other than `number` goes into a value so, or one that is not known. *given, where none does: so
// does what the model is given, or computes.
dpcr_status dpcri_onnx_copies_others(const dpcri_onnx *model, dpcri_span name, int64_t number, bool *others,
                                     bool *given, dpcr_error *error);
// Whether a value, but for its extents, is computed from constants alone.
dpcr_status dpcri_onnx_is_fixed(const dpcri_onnx *model, dpcri_span name, bool *fixed, dpcr_error *error);
// Whether what a node computes for which `on` is true goes into one of the values, by more than its extents.
dpcr_status dpcri_onnx_depends(const dpcri_onnx *model, const dpcri_span *names, int64_t count,
                               bool (*on)(const dpcri_onnx_node *node), bool *depends, dpcr_error *error);

#endif
