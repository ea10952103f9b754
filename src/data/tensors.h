// SPDX-License-Identifier: MIT
// What the readers and writers of arrays share.
#ifndef DPCRI_DATA_TENSORS_H
#define DPCRI_DATA_TENSORS_H

#include "data/file.h"
#include "deeppcr/data.h"

// *count elements and *bytes of a shape; false where a product does not fit, even one that a zero extent would hide
// (the strides are products too).
bool dpcri_shape_bytes(dpcr_dtype dtype, int32_t ndim, const int64_t *shape, int64_t *count, int64_t *bytes);
// The same of elements that have no dtype here.
bool dpcri_shape_size(int64_t element_bytes, int32_t ndim, const int64_t *shape, int64_t *count, int64_t *bytes);

// What there is of that name, for messages: shape and dtype, the dtype that it was not loaded for, or "absent".
const char *dpcri_tensor_text(const dpcr_tensors *tensors, const char *name, char *buffer, size_t bytes);

// safetensors files keep strings in UTF-8: DPCR_ERROR_ARGUMENT, naming the call and the key, for others.
dpcr_status dpcri_metadata_check(const char *call, const char *key, const char *value, dpcr_error *error);

// DPCR_OK for an array that can be written: host memory, known dtype, 0..DPCR_MAX_DIMS extents >= 0, data unless empty.
dpcr_status dpcri_array_check_writable(const dpcr_array *array, const char *name, int64_t *bytes, dpcr_error *error);
// The same for all of them, and that they have names.
dpcr_status dpcri_tensors_check_writable(const dpcr_tensors *tensors, dpcr_error *error);

// The elements of any strided view in logical (row-major) order and the host's byte order, block by block.
typedef dpcr_status (*dpcri_block_sink)(void *user, const void *bytes, size_t count, dpcr_error *error);
dpcr_status dpcri_array_stream(const dpcr_array *array, dpcri_block_sink sink, void *user, dpcr_error *error);

// Elements first..first+count-1 of the view in logical order.
void dpcri_array_gather(const dpcr_array *array, int64_t first, int64_t count, void *to);

// Writes the elements little-endian.
dpcr_status dpcri_writer_put_array(dpcri_writer *writer, const dpcr_array *array, dpcr_error *error);

// The sum that dpcr_safetensors_write_summed writes as the string DPCRI_SUM, of arrays that can be written.
#define DPCRI_SUM "deeppcr.checksum"
enum { DPCRI_SUM_BYTES = 17 };
void dpcri_tensors_sum(const dpcr_tensors *tensors, char text[static DPCRI_SUM_BYTES]);

bool dpcri_host_is_little_endian(void);
void dpcri_swap_bytes(void *data, int64_t count, size_t element_bytes);

// The first name that stands twice, or NULL. Sorts `names`.
const char *dpcri_names_twice(const char **names, int64_t count);

// ---- the readers on memory, for the tests and the fuzzers; what the public ones do once the file is open ----
dpcr_status dpcri_safetensors_read_source(dpcr_context *context, const dpcri_source *source, dpcr_tensors *tensors,
                                          dpcr_error *error);
// Of an npz the members of these names alone; NULL: all of them.
typedef struct dpcri_names {
    const char *const *names;
    int64_t count;
} dpcri_names;

dpcr_status dpcri_npy_read_source(dpcr_context *context, const dpcri_source *source, const dpcri_names *wanted,
                                  dpcr_tensors *tensors, dpcr_error *error);
dpcr_status dpcri_npz_read_source(dpcr_context *context, const dpcri_source *source, const dpcri_names *wanted,
                                  dpcr_tensors *tensors, dpcr_error *error);
dpcr_status dpcri_idx_read_sources(dpcr_context *context, const dpcri_source *images, const dpcri_source *labels,
                                   int64_t classes, dpcr_dataset *dataset, dpcr_error *error);

// An ONNX model in memory: `path` is where its external data lie beside (NULL: nowhere), `source` names it in error
// texts.
dpcr_status dpcri_onnx_read_bytes(dpcr_context *context, const char *path, const dpcri_source *source,
                                  const void *bytes, size_t count, const char *node, dpcr_tensors *tensors,
                                  dpcr_error *error);

// zip64: writes every size and offset in the 64-bit form that otherwise only files beyond 4 GiB need.
dpcr_status dpcri_npz_write(const char *path, const dpcr_tensors *tensors, bool zip64, dpcr_error *error);

#endif
