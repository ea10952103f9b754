// SPDX-License-Identifier: MIT
// A model's file while it is put together: views of its arrays, strings that describe it, and the sum of all, by which
// a file that was damaged is known from one that was saved so.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "data/tensors.h"
#include "sample/networks.h"

enum { TENSORS = 4 * DPCRI_NET_LAYERS + 16, STRINGS = 64 };

static dpcr_status no_memory(dpcr_error *error) {
    return dpcri_fail(error, DPCR_ERROR_MEMORY, "model file: no memory for its names");
}

dpcr_status dpcri_bundle_create(dpcri_bundle *b, dpcr_context *context, dpcr_error *error) {
    *b = (dpcri_bundle){.context = context};
    b->tensors.items = dpcri_alloc_zero(context, TENSORS * sizeof *b->tensors.items);
    b->tensors.metadata_keys = dpcri_alloc_zero(context, STRINGS * sizeof(char *));
    b->tensors.metadata_values = dpcri_alloc_zero(context, STRINGS * sizeof(char *));
    if (!b->tensors.items || !b->tensors.metadata_keys || !b->tensors.metadata_values) return no_memory(error);
    b->capacity = TENSORS;
    return DPCR_OK;
}

void dpcri_bundle_destroy(dpcri_bundle *b) {
    if (!b->context) return;
    for (int64_t i = 0; b->tensors.items && i < b->tensors.count; i++) dpcri_free(b->context, b->tensors.items[i].name);
    for (int64_t i = 0; i < b->tensors.metadata_count; i++) {
        dpcri_free(b->context, b->tensors.metadata_keys[i]);
        dpcri_free(b->context, b->tensors.metadata_values[i]);
    }
    dpcri_free(b->context, b->tensors.items);
    dpcri_free(b->context, b->tensors.metadata_keys);
    dpcri_free(b->context, b->tensors.metadata_values);
}

dpcr_status dpcri_bundle_array(dpcri_bundle *b, const char *name, dpcr_dtype dtype, int64_t count, const void *data,
                               dpcr_error *error) {
    assert(b->tensors.count < b->capacity);
    dpcr_tensor *t = &b->tensors.items[b->tensors.count];
    t->name = dpcri_strdup(b->context, name);
    if (!t->name) return no_memory(error);
    t->array = dpcr_array_make((void *)(uintptr_t)data, dtype, 1, &count);
    b->tensors.count++;
    return DPCR_OK;
}

dpcr_status dpcri_bundle_text(dpcri_bundle *b, const char *key, const char *value, dpcr_error *error) {
    assert(b->tensors.metadata_count < STRINGS);
    const int64_t i = b->tensors.metadata_count++;
    b->tensors.metadata_keys[i] = dpcri_strdup(b->context, key);
    b->tensors.metadata_values[i] = dpcri_strdup(b->context, value);
    return b->tensors.metadata_keys[i] && b->tensors.metadata_values[i] ? DPCR_OK : no_memory(error);
}

dpcr_status dpcri_bundle_int(dpcri_bundle *b, const char *key, int64_t value, dpcr_error *error) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return dpcri_bundle_text(b, key, text, error);
}

dpcr_status dpcri_bundle_real(dpcri_bundle *b, const char *key, double value, dpcr_error *error) {
    return dpcri_bundle_text(b, key, dpcri_number_text(value).text, error);
}

static dpcr_status bad(const char *path, const char *key, const char *got, dpcr_error *error) {
    return dpcri_fail(error, DPCR_ERROR_FORMAT, "%s: '%s' is %s%.40s%s", path, key, got ? "\"" : "missing",
                      got ? got : "", got ? "\"" : "");
}

dpcr_status dpcri_bundle_get_int(const dpcr_tensors *tensors, const char *path, const char *key, int64_t low,
                                 int64_t high, int64_t *value, dpcr_error *error) {
    const char *text = dpcr_tensors_metadata(tensors, key);
    char *end = NULL;
    const long long got = text ? strtoll(text, &end, 10) : 0;
    if (!text || end == text || *end || got < low || got > high) return bad(path, key, text, error);
    *value = got;
    return DPCR_OK;
}

dpcr_status dpcri_bundle_get_real(const dpcr_tensors *tensors, const char *path, const char *key, double *value,
                                  dpcr_error *error) {
    const char *text = dpcr_tensors_metadata(tensors, key);
    if (!text || !dpcri_number_parse(text, value)) return bad(path, key, text, error);
    return DPCR_OK;
}

const dpcr_tensor *dpcri_bundle_find(const dpcr_tensors *tensors, const char *name, int64_t count) {
    const dpcr_tensor *t = dpcr_tensors_find(tensors, name);
    return t && t->array.dtype == DPCR_F32 && t->array.ndim == 1 && t->array.shape[0] == count ? t : NULL;
}

dpcr_status dpcri_bundle_read(dpcr_context *context, const char *path, dpcr_tensors *tensors, dpcr_error *error) {
    const dpcr_status status = dpcr_safetensors_read(context, path, tensors, error);
    if (status == DPCR_OK && tensors->other_count > 0) {
        dpcri_quoted quoted;
        return dpcri_fail(error, DPCR_ERROR_FORMAT, "%s: the tensor %s is of dtype %s, which none of ours has", path,
                          dpcri_quote(tensors->other_names[0], &quoted), tensors->other_dtypes[0]);
    }
    return status == DPCR_OK ? dpcr_tensors_sum_agrees(tensors, path, error) : status;
}
