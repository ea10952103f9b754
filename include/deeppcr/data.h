// SPDX-License-Identifier: MIT
// Files of numbers: IDX data sets (MNIST, Fashion-MNIST), CIFAR-10, npy and npz arrays, safetensors, recurrent nodes of
// ONNX models. All readers check every size and offset before use.
#ifndef DEEPPCR_DATA_H
#define DEEPPCR_DATA_H

#include "array.h"
#include "context.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- images of bytes with labels ----

typedef struct dpcr_dataset {
    int64_t count, rows, cols, classes;
    uint8_t *images;   // [count][channels][rows][cols], owned
    uint8_t *labels;   // [count], each < classes, owned
    int64_t channels;  // planes of an image; 0: one
} dpcr_dataset;

// Numbers of an image: channels rows cols.
static inline int64_t dpcr_dataset_pixels(const dpcr_dataset *dataset) {
    return (dataset->channels > 0 ? dataset->channels : 1) * dataset->rows * dataset->cols;
}

// IDX: images [count][rows][cols] and labels [count], raw or gzipped.
// Reads DIRECTORY/{train|t10k}-images-idx3-ubyte[.gz] and -labels-idx1-ubyte[.gz] (`split` "train" or "t10k").
// Classes are the largest label + 1 unless `classes` > 0, which then bounds them (larger labels: DPCR_ERROR_FORMAT).
DPCR_API dpcr_status dpcr_dataset_read_idx(dpcr_context *context, const char *directory, const char *split,
                                           int64_t classes, dpcr_dataset *dataset, dpcr_error *error);
// CIFAR-10's binary version: DIRECTORY/data_batch_1.bin to data_batch_5.bin (`split` "train"), test_batch.bin ("test"):
// records of 3073 bytes, any number of them a file, at least one. Three channels of 32 x 32, ten classes.
DPCR_API dpcr_status dpcr_dataset_read_cifar10(dpcr_context *context, const char *directory, const char *split,
                                               dpcr_dataset *dataset, dpcr_error *error);
DPCR_API void dpcr_dataset_free(dpcr_context *context, dpcr_dataset *dataset);

// ---- text: whole files of bytes ----

// Raw or gzipped. *bytes [*count] is to be freed by dpcr_text_free.
DPCR_API dpcr_status dpcr_text_read(dpcr_context *context, const char *path, uint8_t **bytes, int64_t *count,
                                    dpcr_error *error);
DPCR_API void dpcr_text_free(dpcr_context *context, uint8_t *bytes);
// Raw: to a temporary file beside `path`, synced, then renamed; what fails leaves an old file as it was. "-" is
// standard output. A device, a pipe and the file that standard output or error goes to are written where they are.
DPCR_API dpcr_status dpcr_text_write(const char *path, const void *bytes, int64_t count, dpcr_error *error);

// ---- named arrays: npy, npz, safetensors ----

typedef struct dpcr_tensor {
    char *name;        // owned; "" for a single npy array
    dpcr_array array;  // contiguous, row-major; data owned
} dpcr_tensor;

typedef struct dpcr_tensors {
    int64_t count;
    dpcr_tensor *items;
    int64_t metadata_count;  // safetensors' __metadata__: pairs of strings
    char **metadata_keys, **metadata_values;
    int64_t other_count;  // safetensors' tensors of types that are not loaded: names, and types such as "I64"
    char **other_names, **other_dtypes;
} dpcr_tensors;

DPCR_API void dpcr_tensors_free(dpcr_context *context, dpcr_tensors *tensors);
// NULL when there is none of that name.
DPCR_API const dpcr_tensor *dpcr_tensors_find(const dpcr_tensors *tensors, const char *name);
DPCR_API const char *dpcr_tensors_metadata(const dpcr_tensors *tensors, const char *key);
// The type of a tensor that was not loaded for it.
DPCR_API const char *dpcr_tensors_other(const dpcr_tensors *tensors, const char *name);

// npy and npz of f4, f8 (u4 too), either byte order, C or Fortran order, format versions 1 to 3; npz members stored or
// deflated. f2 comes as float32; whole numbers (i1 to i8, u1, u2, u8) and b1 as float64, none beyond 2^53. `path` "-"
// is standard input (npy only).
DPCR_API dpcr_status dpcr_npy_read(dpcr_context *context, const char *path, dpcr_tensors *tensors, dpcr_error *error);
// The same of an npz's members of these `count` names alone, in the file's order; those that it lacks are not in
// `tensors`, and what else it holds may be anything. An npy file has no names: its array comes as by dpcr_npy_read.
DPCR_API dpcr_status dpcr_npy_read_named(dpcr_context *context, const char *path, const char *const *names,
                                         int64_t count, dpcr_tensors *tensors, dpcr_error *error);
// Writes one array (.npy), or several (.npz, stored), to a temporary file beside `path`, synced, then renamed. "-" is
// standard output.
DPCR_API dpcr_status dpcr_npy_write(const char *path, const dpcr_array *array, dpcr_error *error);
DPCR_API dpcr_status dpcr_npz_write(const char *path, const dpcr_tensors *tensors, dpcr_error *error);

// The rows of an npy file, its first dimension, for processes that each hold some of them.
//
// Type and shape of a regular file (no npz, no f2, no whole numbers but u4) that has all its elements; data is NULL,
// one dimension or more.
DPCR_API dpcr_status dpcr_npy_look(dpcr_context *context, const char *path, dpcr_array *array, dpcr_error *error);
// Rows first .. first + count - 1, read by themselves, whatever byte order and order of dimensions.
DPCR_API dpcr_status dpcr_npy_read_rows(dpcr_context *context, const char *path, int64_t first, int64_t count,
                                        dpcr_tensors *tensors, dpcr_error *error);

// A file that several processes write together, at a place that all of them see: one creates it (beside `path`, with
// room for all of `array`, whose data is not looked at), all write their rows at the name that dpcr_npy_rows_name
// tells, and once they all have, the creator puts it in its place. Until then, and for ever where one fails, `path` is
// as it was; destroy (NULL-safe) removes what was not committed.
typedef struct dpcr_npy_rows dpcr_npy_rows;
DPCR_API dpcr_status dpcr_npy_rows_create(dpcr_context *context, const char *path, const dpcr_array *array,
                                          dpcr_npy_rows **rows, dpcr_error *error);
DPCR_API const char *dpcr_npy_rows_name(const dpcr_npy_rows *rows);
// Rows first .. of a file like `whole`: `part` has as many rows as are written, and reach the disk before it returns. A
// file that is not of `whole`'s type and shape stays as it is (DPCR_ERROR_ARGUMENT).
DPCR_API dpcr_status dpcr_npy_rows_write(const char *name, const dpcr_array *whole, int64_t first,
                                         const dpcr_array *part, dpcr_error *error);
DPCR_API dpcr_status dpcr_npy_rows_commit(dpcr_npy_rows *rows, dpcr_error *error);
DPCR_API void dpcr_npy_rows_destroy(dpcr_context *context, dpcr_npy_rows *rows);

// safetensors: F32, F64, U32 tensors, F16 and BF16, which come as float32, and string metadata. Tensors of I64, I32,
// I16, I8, U64, U16, U8, BOOL, F8_* and C64 are checked like the others and only named (dpcr_tensors_other). Reads
// refuse overlapping, out-of-range offsets, duplicate names, gaps, and headers over 100 MB; a tensor may begin at any
// byte, as the format has it. Writes are atomic (temporary file, sync, rename, sync of the folder), here and as npz;
// they refuse what was read without some of its tensors, which would be lost (DPCR_ERROR_UNSUPPORTED).
DPCR_API dpcr_status dpcr_safetensors_read(dpcr_context *context, const char *path, dpcr_tensors *tensors,
                                           dpcr_error *error);
DPCR_API dpcr_status dpcr_safetensors_write(const char *path, const dpcr_tensors *tensors, dpcr_error *error);
// The same with one more string, "deeppcr.checksum": 16 hexadecimal digits, a sum of all names, types, shapes, numbers
// and other strings, whatever their order (one of that name in `tensors` is replaced). Not against forgery.
DPCR_API dpcr_status dpcr_safetensors_write_summed(const char *path, const dpcr_tensors *tensors, dpcr_error *error);
// DPCR_ERROR_FORMAT, in words that name `path`, where `tensors`, as they were read from there, carry a sum and it is
// not theirs; DPCR_OK where they carry none. Tensors that were not loaded for their type are not looked at; arrays
// that could not be written are refused as the writer does.
DPCR_API dpcr_status dpcr_tensors_sum_agrees(const dpcr_tensors *tensors, const char *path, dpcr_error *error);

// ---- ONNX ----

// The RNN, GRU and LSTM nodes of an ONNX model, with their initialisers or Constants (float, double; float16 and
// bfloat16, which come as float32; also in files beside the model) or what Slice, Concat, Transpose, Unsqueeze, Squeeze
// and Reshape make of such, as the tensors of torch.nn's state_dict(): names, shapes, order of the gates. What
// dpcr_safetensors_write makes of them dpcr_recurrent_load reads. Metadata: "deeppcr.recurrent" the kind, "onnx.layout"
// "0" or "1", and, where they are not PyTorch's, "onnx.direction", "onnx.linear_before_reset", "onnx.input_forget" and
// "onnx.clip"; an LSTM's peepholes are tensors "weight_ch_l..." [3 H] in the order i, f, o.
//
// `node` NULL: all of them must be the layers of one network: of one kind, width and direction, each one's X the
// former's Y (through Squeeze, Transpose, Reshape, Identity, Dropout), with the same lengths, and none begins in a
// state that comes of another one's numbers. Else that one alone: the name of the node, or of its first output where
// it has none. `path` "-" is standard input.
//
// A run takes x [T][B][I] and h0, c0 [layers directions][B][H] whatever the layout: of layout 0 a node's X, initial_h
// and initial_c as they are; of layout 1, where ONNX has [B][T][I] and [B][directions][H], with the first two axes
// exchanged. y [T][B][directions H] is ONNX's Y [T][directions][B][H] (layout 1: [B][T][directions][H]) with B before
// directions.
//
// DPCR_ERROR_UNSUPPORTED names the node and what cannot be said in these tensors: other activations, weights that are
// computed otherwise, an initial state that is a constant other than 0, copied from one (through Expand, Slice, Concat
// and their like) or computed from constants alone, lengths that are constants, or copied from them, and not, or not
// known to be, all steps; else lengths and states are the run's.
DPCR_API dpcr_status dpcr_onnx_read_recurrent(dpcr_context *context, const char *path, const char *node,
                                              dpcr_tensors *tensors, dpcr_error *error);
// Calls found(state, file) for every tensor of the model, of branches and functions too, that lies in a file of its
// own, with that file's path: what must not be written over while the model is wanted. `path` "-": none can be known,
// and none is told.
DPCR_API dpcr_status dpcr_onnx_external_files(dpcr_context *context, const char *path,
                                              void (*found)(void *state, const char *file), void *state,
                                              dpcr_error *error);

#ifdef __cplusplus
}
#endif
#endif
