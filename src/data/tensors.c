// SPDX-License-Identifier: MIT
// Named arrays: free, find, and the walk over strided views.
#include "data/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void free_strings(dpcr_context *context, char **strings, int64_t count) {
    for (int64_t i = 0; strings && i < count; i++) dpcri_free(context, strings[i]);
    dpcri_free(context, strings);
}

void dpcr_tensors_free(dpcr_context *context, dpcr_tensors *tensors) {
    if (!tensors) return;
    for (int64_t i = 0; tensors->items && i < tensors->count; i++) {
        dpcri_free(context, tensors->items[i].name);
        dpcri_free(context, tensors->items[i].array.data);
    }
    dpcri_free(context, tensors->items);
    free_strings(context, tensors->metadata_keys, tensors->metadata_count);
    free_strings(context, tensors->metadata_values, tensors->metadata_count);
    free_strings(context, tensors->other_names, tensors->other_count);
    free_strings(context, tensors->other_dtypes, tensors->other_count);
    *tensors = (dpcr_tensors){0};
}

const dpcr_tensor *dpcr_tensors_find(const dpcr_tensors *tensors, const char *name) {
    if (!tensors || !name) return NULL;
    for (int64_t i = 0; i < tensors->count; i++)
        if (strcmp(tensors->items[i].name, name) == 0) return &tensors->items[i];
    return NULL;
}

const char *dpcr_tensors_metadata(const dpcr_tensors *tensors, const char *key) {
    if (!tensors || !key) return NULL;
    for (int64_t i = 0; i < tensors->metadata_count; i++)
        if (strcmp(tensors->metadata_keys[i], key) == 0) return tensors->metadata_values[i];
    return NULL;
}

const char *dpcr_tensors_other(const dpcr_tensors *tensors, const char *name) {
    if (!tensors || !name) return NULL;
    for (int64_t i = 0; i < tensors->other_count; i++)
        if (strcmp(tensors->other_names[i], name) == 0) return tensors->other_dtypes[i];
    return NULL;
}

const char *dpcri_tensor_text(const dpcr_tensors *tensors, const char *name, char *buffer, size_t bytes) {
    const dpcr_tensor *found = dpcr_tensors_find(tensors, name);
    const char *other = dpcr_tensors_other(tensors, name);
    if (found) return dpcri_array_text(&found->array, buffer, bytes);
    snprintf(buffer, bytes, "%s%s", other ? "of dtype " : "absent", other ? other : "");
    return buffer;
}

bool dpcri_shape_bytes(dpcr_dtype dtype, int32_t ndim, const int64_t *shape, int64_t *count, int64_t *bytes) {
    return dpcri_shape_size((int64_t)dpcr_dtype_size(dtype), ndim, shape, count, bytes);
}

bool dpcri_shape_size(int64_t element_bytes, int32_t ndim, const int64_t *shape, int64_t *count, int64_t *bytes) {
    int64_t all = element_bytes;
    *count = 1;
    for (int32_t d = 0; d < ndim; d++) {
        if (!dpcri_mul(all, shape[d] ? shape[d] : 1, &all)) return false;
        *count *= shape[d];
    }
    *bytes = *count * element_bytes;
    return true;
}

dpcr_status dpcri_array_check_writable(const dpcr_array *array, const char *name, int64_t *bytes, dpcr_error *error) {
    dpcri_quoted quoted;
    int64_t count = 0;
    dpcri_quote(name, &quoted);
    if (array->device.type != DPCR_HOST)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "array '%s' to write: got device type %d, wanted host memory",
                          quoted.text, (int)array->device.type);
    if (dpcr_dtype_size(array->dtype) == 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "array '%s' to write: got dtype %d, wanted float32, float64 or uint32", quoted.text,
                          (int)array->dtype);
    if (array->ndim < 0 || array->ndim > DPCR_MAX_DIMS)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "array '%s' to write: got %d dimensions, wanted 0..%d",
                          quoted.text, (int)array->ndim, DPCR_MAX_DIMS);
    for (int32_t d = 0; d < array->ndim; d++)
        if (array->shape[d] < 0)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "array '%s' to write: got extent %lld, wanted 0 or more",
                              quoted.text, (long long)array->shape[d]);
    if (!dpcri_shape_bytes(array->dtype, array->ndim, array->shape, &count, bytes))
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "array '%s' to write: its size in bytes does not fit 63 bits",
                          quoted.text);
    if (count > 0 && !array->data)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "array '%s' to write: got no data, wanted %lld elements",
                          quoted.text, (long long)count);
    return DPCR_OK;
}

dpcr_status dpcri_tensors_check_writable(const dpcr_tensors *tensors, dpcr_error *error) {
    if (!tensors || tensors->count < 0 || (tensors->count > 0 && !tensors->items))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "tensors to write: got none, wanted count items");
    if (tensors->other_count > 0) {
        dpcri_quoted quoted;
        return dpcri_fail(
            error, DPCR_ERROR_UNSUPPORTED,
            "tensors to write: '%s' of dtype %s was not read from the file they are of, and would be lost",
            dpcri_quote(tensors->other_names[0], &quoted), tensors->other_dtypes[0]);
    }
    int64_t bytes = 0;
    for (int64_t i = 0; i < tensors->count; i++) {
        if (!tensors->items[i].name)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "tensor %lld to write: got no name", (long long)i);
        const dpcr_status status =
            dpcri_array_check_writable(&tensors->items[i].array, tensors->items[i].name, &bytes, error);
        if (status != DPCR_OK) return status;
    }
    return DPCR_OK;
}

static bool is_contiguous(const dpcr_array *array) {
    int64_t stride = 1;
    for (int32_t d = array->ndim - 1; d >= 0; d--) {
        if (array->shape[d] != 1 && array->strides[d] != stride) return false;
        stride *= array->shape[d];
    }
    return true;
}

static void copy_run(void *to, const void *from, int64_t count, int64_t stride, size_t element_bytes) {
    if (stride == 1) {
        memcpy(to, from, (size_t)count * element_bytes);
    } else if (element_bytes == 4) {
        uint32_t *t = to;
        const uint32_t *f = from;
        for (int64_t i = 0; i < count; i++) t[i] = f[i * stride];
    } else {
        uint64_t *t = to;
        const uint64_t *f = from;
        for (int64_t i = 0; i < count; i++) t[i] = f[i * stride];
    }
}

void dpcri_array_gather(const dpcr_array *array, int64_t first, int64_t count, void *to) {
    const size_t element_bytes = dpcr_dtype_size(array->dtype);
    const int32_t last = array->ndim - 1;
    int64_t index[DPCR_MAX_DIMS] = {0};
    int64_t rest = first;
    for (int32_t d = last; d >= 0; d--) {
        index[d] = rest % array->shape[d];
        rest /= array->shape[d];
    }
    unsigned char *out = to;
    while (count > 0) {
        int64_t offset = 0;
        for (int32_t d = 0; d <= last; d++) offset += index[d] * array->strides[d];
        int64_t run = last < 0 ? 1 : array->shape[last] - index[last];
        if (run > count) run = count;
        copy_run(out, (const unsigned char *)array->data + offset * (int64_t)element_bytes, run,
                 last < 0 ? 1 : array->strides[last], element_bytes);
        out += (size_t)run * element_bytes;
        count -= run;
        // The next run: the last index starts over, the ones before it count up.
        for (int32_t d = last - 1; d >= 0; d--) {
            if (++index[d] < array->shape[d]) break;
            index[d] = 0;
        }
        if (last >= 0) index[last] = 0;
    }
}

dpcr_status dpcri_array_stream(const dpcr_array *array, dpcri_block_sink sink, void *user, dpcr_error *error) {
    int64_t count = 0, bytes = 0;
    if (!dpcri_shape_bytes(array->dtype, array->ndim, array->shape, &count, &bytes) || count == 0) return DPCR_OK;
    if (is_contiguous(array)) return sink(user, array->data, (size_t)bytes, error);
    uint64_t block[2048];
    const int64_t most = (int64_t)(sizeof block / dpcr_dtype_size(array->dtype));
    for (int64_t first = 0; first < count; first += most) {
        const int64_t n = count - first < most ? count - first : most;
        dpcri_array_gather(array, first, n, block);
        const dpcr_status status = sink(user, block, (size_t)n * dpcr_dtype_size(array->dtype), error);
        if (status != DPCR_OK) return status;
    }
    return DPCR_OK;
}

bool dpcri_host_is_little_endian(void) {
    const uint16_t one = 1;
    unsigned char low;
    memcpy(&low, &one, 1);
    return low == 1;
}

void dpcri_swap_bytes(void *data, int64_t count, size_t element_bytes) {
    unsigned char *bytes = data;
    for (int64_t i = 0; i < count; i++, bytes += element_bytes)
        for (size_t low = 0, high = element_bytes - 1; low < high; low++, high--) {
            const unsigned char keep = bytes[low];
            bytes[low] = bytes[high];
            bytes[high] = keep;
        }
}

typedef struct little_endian_sink {
    dpcri_writer *writer;
    size_t element_bytes;
} little_endian_sink;

static dpcr_status put_block(void *user, const void *bytes, size_t count, dpcr_error *error) {
    const little_endian_sink *sink = user;
    if (dpcri_host_is_little_endian()) return dpcri_writer_put(sink->writer, bytes, count, error);
    const unsigned char *from = bytes;
    for (size_t done = 0; done < count; done += sink->element_bytes) {
        unsigned char element[8];
        memcpy(element, from + done, sink->element_bytes);
        dpcri_swap_bytes(element, 1, sink->element_bytes);
        const dpcr_status status = dpcri_writer_put(sink->writer, element, sink->element_bytes, error);
        if (status != DPCR_OK) return status;
    }
    return DPCR_OK;
}

dpcr_status dpcri_writer_put_array(dpcri_writer *writer, const dpcr_array *array, dpcr_error *error) {
    little_endian_sink sink = {.writer = writer, .element_bytes = dpcr_dtype_size(array->dtype)};
    return dpcri_array_stream(array, put_block, &sink, error);
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

const char *dpcri_names_twice(const char **names, int64_t count) {
    if (count > 1) qsort(names, (size_t)count, sizeof *names, compare_names);
    for (int64_t i = 1; i < count; i++)
        if (strcmp(names[i - 1], names[i]) == 0) return names[i];
    return NULL;
}
