// SPDX-License-Identifier: MIT
// Rows of npy files: read and written by processes that each hold some of them.
#include <string.h>
#include <sys/stat.h>

#include "data/npy.h"

// ---- reading ----

// The header, and that the file has the elements which it tells of.
static dpcr_status look(dpcr_context *context, dpcri_source *source, dpcri_npy_facts *facts, dpcr_error *error) {
    dpcr_status status;
    dpcri_stream stream;
    int64_t count = 0, bytes = 0, end = 0;
    unsigned char start[2] = {0};
    size_t got = 0;
    DPCR_TRY(dpcri_source_read_some(source, 0, start, sizeof start, &got, error));
    if (memcmp(start, "PK", 2) == 0)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "an npz cannot be read by rows, wanted npy files; file %s",
                          source->name);
    DPCR_TRY(dpcri_stream_open(&stream, context, source, 0, source->size, DPCRI_PLAIN, error));
    status = dpcri_npy_read_facts(&stream, facts, error);
    dpcri_stream_close(&stream);
    if (status != DPCR_OK) return status;
    if (facts->ndim < 1) return dpcri_source_bad(source, error, "npy shape: no dimensions, wanted rows");
    if (facts->narrow)
        return dpcri_source_bad(source, error, "npy header: %s, wanted f4, f8 or u4 to read rows apart",
                                facts->half ? "f2" : "whole numbers");
    if (!dpcri_shape_bytes(facts->dtype, facts->ndim, facts->shape, &count, &bytes) ||
        !dpcri_add(facts->data_at, bytes, &end))
        return dpcri_source_bad(source, error, "npy shape: its size in bytes does not fit 63 bits");
    if (source->size != end)
        return dpcri_source_bad(source, error, "npy data %s: got %lld bytes, wanted %lld",
                                source->size < end ? "cut short" : "too long",
                                (long long)(source->size - facts->data_at), (long long)bytes);
done:
    return status;
}

dpcr_status dpcr_npy_look(dpcr_context *context, const char *path, dpcr_array *array, dpcr_error *error) {
    if (!context || !path || !array)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "npy_look: context, path or array is NULL");
    dpcri_source source;
    dpcri_npy_facts facts = {0};
    dpcr_status status = dpcri_source_open(&source, path, true, error);
    if (status != DPCR_OK) return status;
    status = look(context, &source, &facts, error);
    dpcri_source_close(&source);
    if (status == DPCR_OK) *array = dpcr_array_make(NULL, facts.dtype, facts.ndim, facts.shape);
    return status;
}

// Of a file whose first dimension runs fastest: for every place behind it, `count` neighbours.
static dpcr_status read_columns(dpcr_context *context, const dpcri_source *source, const dpcri_npy_facts *facts,
                                int64_t first, dpcr_array *array, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const size_t size = dpcr_dtype_size(facts->dtype);
    const int64_t count = array->shape[0];
    int64_t columns = 1;
    for (int32_t d = 1; d < array->ndim; d++) columns *= array->shape[d];
    const size_t run = (size_t)count * size;
    unsigned char *raw = dpcri_alloc(context, run * (size_t)columns);
    if (!raw) return dpcri_no_memory(error, "npy data", (int64_t)run * columns);
    for (int64_t c = 0; c < columns; c++)
        DPCR_TRY(dpcri_source_read(source, facts->data_at + (c * facts->shape[0] + first) * (int64_t)size,
                                   raw + (size_t)c * run, run, "npy data", error));
    dpcr_array view = *array;
    view.data = raw;
    int64_t stride = 1;
    for (int32_t d = 0; d < array->ndim; stride *= array->shape[d], d++) view.strides[d] = stride;
    dpcri_array_gather(&view, 0, count * columns, array->data);
done:
    dpcri_free(context, raw);
    return status;
}

static dpcr_status read_rows(dpcr_context *context, const dpcri_source *source, const dpcri_npy_facts *facts,
                             int64_t first, int64_t count, dpcr_array *array, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    int64_t shape[DPCR_MAX_DIMS], numbers = 0, bytes = 0;
    if (first < 0 || count < 0 || first > facts->shape[0] - count)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "npy_read_rows: rows %lld and %lld more of %lld",
                          (long long)first, (long long)count, (long long)facts->shape[0]);
    memcpy(shape, facts->shape, sizeof shape);
    shape[0] = count;
    if (!dpcri_shape_bytes(facts->dtype, facts->ndim, shape, &numbers, &bytes))
        return dpcri_source_bad(source, error, "npy shape: its size in bytes does not fit 63 bits");
    *array = dpcr_array_make(dpcri_alloc(context, (size_t)bytes), facts->dtype, facts->ndim, shape);
    if (bytes == 0) return DPCR_OK;
    if (!array->data) return dpcri_no_memory(error, "npy data", bytes);
    if (facts->fortran_order && facts->ndim > 1)
        DPCR_TRY(read_columns(context, source, facts, first, array, error));
    else
        DPCR_TRY(dpcri_source_read(source, facts->data_at + first * (bytes / count), array->data, (size_t)bytes,
                                   "npy data", error));
    if (facts->big_endian == dpcri_host_is_little_endian())
        dpcri_swap_bytes(array->data, numbers, dpcr_dtype_size(facts->dtype));
done:
    return status;
}

dpcr_status dpcr_npy_read_rows(dpcr_context *context, const char *path, int64_t first, int64_t count,
                               dpcr_tensors *tensors, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    if (tensors) *tensors = (dpcr_tensors){0};
    if (!context || !path || !tensors)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "npy_read_rows: context, path or tensors is NULL");
    dpcri_source source;
    dpcri_npy_facts facts = {0};
    status = dpcri_source_open(&source, path, true, error);
    if (status != DPCR_OK) return status;
    DPCR_TRY(look(context, &source, &facts, error));
    tensors->items = dpcri_alloc_zero(context, sizeof *tensors->items);
    if (!tensors->items) DPCR_TRY(dpcri_no_memory(error, "npy", sizeof *tensors->items));
    tensors->count = 1;
    tensors->items[0].name = dpcri_strdup(context, "");
    if (!tensors->items[0].name) DPCR_TRY(dpcri_no_memory(error, "npy name", 1));
    DPCR_TRY(read_rows(context, &source, &facts, first, count, &tensors->items[0].array, error));
done:
    dpcri_source_close(&source);
    if (status != DPCR_OK) dpcr_tensors_free(context, tensors);
    return status;
}

// ---- writing ----

struct dpcr_npy_rows {
    dpcri_writer writer;
    char path[PATH_MAX];
};

dpcr_status dpcr_npy_rows_create(dpcr_context *context, const char *path, const dpcr_array *array, dpcr_npy_rows **rows,
                                 dpcr_error *error) {
    dpcr_status status;
    char header[DPCRI_NPY_HEADER];
    int64_t count = 0, bytes = 0;
    if (rows) *rows = NULL;
    if (!context || !path || !array || !rows)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "npy_rows_create: context, path, array or rows is NULL");
    if (array->ndim < 1 || array->ndim > DPCR_MAX_DIMS || strlen(path) >= sizeof(*rows)->path || !strcmp(path, "-") ||
        !dpcri_shape_bytes(array->dtype, array->ndim, array->shape, &count, &bytes))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "npy_rows_create: wanted a path and an array of 1..%d dimensions that fits", DPCR_MAX_DIMS);
    dpcr_npy_rows *made = dpcri_alloc_zero(context, sizeof *made);
    if (!made) return dpcri_no_memory(error, "npy_rows_create", sizeof *made);
    strcpy(made->path, path);
    made->writer.fd = -1;
    DPCR_TRY(dpcri_writer_open(&made->writer, made->path, error));
    if (!made->writer.owned)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                            "npy_rows_create: wanted a file that no standard stream goes to; file %s", path));
    DPCR_TRY(dpcri_writer_put(&made->writer, header, dpcri_npy_header(array, header), error));
    DPCR_TRY(dpcri_writer_reserve(&made->writer, bytes, error));
    *rows = made;
    made = NULL;
done:
    dpcr_npy_rows_destroy(context, made);
    return status;
}

const char *dpcr_npy_rows_name(const dpcr_npy_rows *rows) { return rows ? dpcri_writer_name(&rows->writer) : ""; }

// Whether the file begins with the header of `whole`, and has its `bytes` of data behind. What is no regular file (a
// device that takes anything) is not read.
static dpcr_status check_file(const char *name, const char *header, size_t head, int64_t bytes, dpcr_error *error) {
    char found[DPCRI_NPY_HEADER];
    size_t got = 0;
    struct stat about;
    if (stat(name, &about) == 0 && !S_ISREG(about.st_mode)) return DPCR_OK;
    dpcri_source source;
    dpcr_status status = dpcri_source_open(&source, name, true, error);
    if (status != DPCR_OK) return status;
    DPCR_TRY(dpcri_source_read_some(&source, 0, found, head, &got, error));
    if (got < head || memcmp(found, header, head) != 0 || source.size - (int64_t)head != bytes)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                            "npy_rows_write: the file is none of whole's type and shape; wanted whole as it was given "
                            "to npy_rows_create; file %s",
                            name));
done:
    dpcri_source_close(&source);
    return status;
}

dpcr_status dpcr_npy_rows_write(const char *name, const dpcr_array *whole, int64_t first, const dpcr_array *part,
                                dpcr_error *error) {
    char header[DPCRI_NPY_HEADER];
    int64_t all = 0, bytes = 0, count = 0;
    if (!name || !whole || !part)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "npy_rows_write: name, whole or part is NULL");
    bool like = whole->dtype == part->dtype && whole->ndim == part->ndim && part->ndim >= 1 && first >= 0 &&
                part->shape[0] >= 0 && first <= whole->shape[0] - part->shape[0];
    for (int32_t d = 1; like && d < part->ndim; d++) like = whole->shape[d] == part->shape[d];
    if (!like || !dpcri_shape_bytes(whole->dtype, whole->ndim, whole->shape, &count, &all))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "npy_rows_write: the rows do not fit those of the file");
    dpcr_status status = dpcri_array_check_writable(part, "", &bytes, error);
    if (status != DPCR_OK || bytes == 0) return status;
    dpcr_array packed = dpcr_array_make(NULL, part->dtype, part->ndim, part->shape);
    if (memcmp(packed.strides, part->strides, (size_t)part->ndim * sizeof *part->strides) != 0 ||
        !dpcri_host_is_little_endian())
        return dpcri_fail(
            error, DPCR_ERROR_UNSUPPORTED,
            "npy_rows_write: rows with strides, or a host of the other byte order; wanted contiguous ones");
    const size_t head = dpcri_npy_header(whole, header);
    status = check_file(name, header, head, all, error);
    if (status != DPCR_OK) return status;
    const int64_t at = (int64_t)head + first * (all / whole->shape[0]);
    return dpcri_file_put(name, at, part->data, (size_t)bytes, error);
}

dpcr_status dpcr_npy_rows_commit(dpcr_npy_rows *rows, dpcr_error *error) {
    if (!rows) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "npy_rows_commit: rows is NULL");
    return dpcri_writer_commit(&rows->writer, error);
}

void dpcr_npy_rows_destroy(dpcr_context *context, dpcr_npy_rows *rows) {
    if (!rows) return;
    dpcri_writer_close(&rows->writer);
    dpcri_free(context, rows);
}
