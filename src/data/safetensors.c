// SPDX-License-Identifier: MIT
// safetensors: u64 little-endian n, n bytes of JSON, then the tensors' bytes without a gap (offsets count from there).
//   {"__metadata__": {"key": "value"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
// Source: https://github.com/huggingface/safetensors, README, "Format".
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "data/half.h"
#include "data/tensors.h"

#define METADATA "__metadata__"

enum { LENGTH_BYTES = 8, MAX_HEADER = 100000000 };

static const struct {
    dpcr_dtype dtype;  // 0: checked and named, not loaded
    const char *name;
    int64_t bytes;
    dpcri_half half;  // widened to dtype
} dtypes[] = {{DPCR_F32, "F32", 4, 0},
              {DPCR_F64, "F64", 8, 0},
              {DPCR_U32, "U32", 4, 0},
              {DPCR_F32, "F16", 2, DPCRI_BINARY16},
              {DPCR_F32, "BF16", 2, DPCRI_BFLOAT16},
              {0, "I64", 8, 0},
              {0, "I32", 4, 0},
              {0, "I16", 2, 0},
              {0, "I8", 1, 0},
              {0, "U64", 8, 0},
              {0, "U16", 2, 0},
              {0, "U8", 1, 0},
              {0, "BOOL", 1, 0},
              {0, "F8_E4M3", 1, 0},
              {0, "F8_E5M2", 1, 0},
              {0, "F8_E8M0", 1, 0},
              {0, "F8_E4M3FNUZ", 1, 0},
              {0, "F8_E5M2FNUZ", 1, 0},
              {0, "C64", 8, 0}};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static int dtype_find(const char *name) {
    int i = 0;
    while (i < DTYPES && strcmp(dtypes[i].name, name) != 0) i++;
    return i;
}

static const char *dtype_name(dpcr_dtype dtype) {
    for (int i = 0; i < DTYPES; i++)
        if (dtypes[i].dtype == dtype) return dtypes[i].name;
    return NULL;
}

static dpcr_status no_memory(dpcr_error *error, const char *what) {
    dpcri_fail(error, DPCR_ERROR_MEMORY, "safetensors: no memory for %s", what);
    return DPCR_ERROR_MEMORY;
}

// ---- reading ----

// One entry of the header, checked by itself; its place among the others is checked once they are sorted.
typedef struct entry {
    const char *name;  // the JSON object's
    int dtype;         // of `dtypes`
    int32_t ndim;
    int64_t shape[DPCR_MAX_DIMS];
    int64_t begin, end;
    int64_t order;  // of the header, to sort empty tensors reproducibly
} entry;

static dpcr_status read_shape(const dpcri_source *source, const json_t *shape, const char *name, entry *e,
                              dpcr_error *error) {
    const size_t ndim = json_array_size(shape);
    if (ndim > DPCR_MAX_DIMS)
        return dpcri_source_bad(source, error, "safetensors tensor '%s': got %zu dimensions, wanted at most %d", name,
                                ndim, DPCR_MAX_DIMS);
    e->ndim = (int32_t)ndim;
    for (size_t d = 0; d < ndim; d++) {
        const json_t *extent = json_array_get(shape, d);
        if (!json_is_integer(extent) || json_integer_value(extent) < 0)
            return dpcri_source_bad(
                source, error, "safetensors tensor '%s': extent %zu of its shape is no integer of 0 or more", name, d);
        e->shape[d] = json_integer_value(extent);
    }
    return DPCR_OK;
}

static dpcr_status read_offsets(const dpcri_source *source, const json_t *offsets, const char *name, entry *e,
                                dpcr_error *error) {
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return dpcri_source_bad(source, error, "safetensors tensor '%s': data_offsets are not two integers", name);
    e->begin = json_integer_value(begin);
    e->end = json_integer_value(end);
    if (e->begin < 0 || e->end < e->begin)
        return dpcri_source_bad(source, error,
                                "safetensors tensor '%s': got data_offsets [%lld, %lld], wanted 0 <= begin <= end",
                                name, (long long)e->begin, (long long)e->end);
    return DPCR_OK;
}

static dpcr_status check_size(const dpcri_source *source, const char *name, const entry *e, int64_t data_bytes,
                              dpcr_error *error) {
    int64_t count = 0, bytes = 0;
    const int64_t element_bytes = dtypes[e->dtype].bytes;
    if (!dpcri_shape_size(element_bytes, e->ndim, e->shape, &count, &bytes))
        return dpcri_source_bad(source, error, "safetensors tensor '%s': the size of its shape does not fit 63 bits",
                                name);
    if (e->end > data_bytes)
        return dpcri_source_bad(
            source, error,
            "safetensors tensor '%s': got data up to byte %lld, wanted at most %lld, which the file holds", name,
            (long long)e->end, (long long)data_bytes);
    if (e->end - e->begin != bytes)
        return dpcri_source_bad(source, error,
                                "safetensors tensor '%s': got %lld bytes of data, wanted %lld for its shape", name,
                                (long long)(e->end - e->begin), (long long)bytes);
    return DPCR_OK;
}

static dpcr_status read_entry(const dpcri_source *source, const char *raw_name, json_t *value, int64_t data_bytes,
                              entry *e, dpcr_error *error) {
    dpcri_quoted quoted;
    dpcr_status status;
    const char *const name = dpcri_quote(raw_name, &quoted);
    const char *const dtype = json_string_value(json_object_get(value, "dtype"));
    json_t *const shape = json_object_get(value, "shape"), *const offsets = json_object_get(value, "data_offsets");
    if (json_object_size(value) != 3 || !dtype || !json_is_array(shape) || !json_is_array(offsets))
        DPCR_TRY(dpcri_source_bad(
            source, error,
            "safetensors tensor '%s': wanted an object of dtype, shape and data_offsets, and nothing else", name));
    e->name = raw_name;
    e->dtype = dtype_find(dtype);
    if (e->dtype == DTYPES) {
        dpcri_quoted got;
        DPCR_TRY(dpcri_source_bad(source, error,
                                  "safetensors tensor '%s': got dtype '%s', wanted F32, F64, F16, BF16, U32 or one to "
                                  "leave out",
                                  name, dpcri_quote(dtype, &got)));
    }
    DPCR_TRY(read_shape(source, shape, name, e, error));
    DPCR_TRY(read_offsets(source, offsets, name, e, error));
    DPCR_TRY(check_size(source, name, e, data_bytes, error));
done:
    return status;
}

static int compare_entries(const void *a, const void *b) {
    const entry *p = a, *q = b;
    if (p->begin != q->begin) return p->begin < q->begin ? -1 : 1;
    if (p->end != q->end) return p->end < q->end ? -1 : 1;
    return p->order < q->order ? -1 : p->order > q->order;
}

// Sorted by their offsets, the tensors must cover the data exactly: then nothing overlaps and nothing is hidden in a
// gap.
static dpcr_status check_cover(const dpcri_source *source, entry *entries, int64_t count, int64_t data_bytes,
                               dpcr_error *error) {
    int64_t covered = 0;
    dpcri_quoted quoted;
    if (count > 1) qsort(entries, (size_t)count, sizeof *entries, compare_entries);
    for (int64_t i = 0; i < count; covered = entries[i].end, i++) {
        if (entries[i].begin == covered) continue;
        return dpcri_source_bad(source, error, "safetensors tensor '%s': got data at byte %lld, wanted %lld (%s)",
                                dpcri_quote(entries[i].name, &quoted), (long long)entries[i].begin, (long long)covered,
                                entries[i].begin < covered ? "tensors overlap" : "a gap");
    }
    if (covered != data_bytes)
        return dpcri_source_bad(source, error,
                                "safetensors data: got %lld bytes in the file, wanted %lld, which the header describes",
                                (long long)data_bytes, (long long)covered);
    return DPCR_OK;
}

static dpcr_status load_tensor(dpcr_context *context, const dpcri_source *source, int64_t data_at, const entry *e,
                               dpcr_tensor *tensor, dpcr_error *error) {
    const size_t bytes = (size_t)(e->end - e->begin), element_bytes = (size_t)dtypes[e->dtype].bytes;
    const dpcri_half half = dtypes[e->dtype].half;
    const size_t wide = half ? bytes / element_bytes * sizeof(float) : bytes;
    tensor->name = dpcri_strdup(context, e->name);
    char *data = dpcri_alloc(context, wide);
    tensor->array = dpcr_array_make(data, dtypes[e->dtype].dtype, e->ndim, e->shape);
    if (!tensor->name || (wide && !data)) return no_memory(error, "a tensor");
    if (wide == 0) return DPCR_OK;
    char *read = data + (wide - bytes);  // where it is widened from the first on
    const dpcr_status status = dpcri_source_read(source, data_at + e->begin, read, bytes, "safetensors data", error);
    if (status != DPCR_OK) return status;
    const int64_t count = (int64_t)(bytes / element_bytes);
    if (!dpcri_host_is_little_endian()) dpcri_swap_bytes(read, count, element_bytes);
    if (half) dpcri_half_widen(half, read, count, (float *)tensor->array.data);
    return DPCR_OK;
}

// What is not loaded is named: whoever asks for it is told why, and who writes the others does not lose it unawares.
static dpcr_status name_others(dpcr_context *context, const entry *entries, int64_t count, dpcr_tensors *tensors,
                               dpcr_error *error) {
    int64_t others = 0;
    for (int64_t i = 0; i < count; i++) others += dtypes[entries[i].dtype].dtype == 0;
    if (others == 0) return DPCR_OK;
    tensors->other_names = dpcri_alloc_zero(context, (size_t)others * sizeof *tensors->other_names);
    tensors->other_dtypes = dpcri_alloc_zero(context, (size_t)others * sizeof *tensors->other_dtypes);
    if (!tensors->other_names || !tensors->other_dtypes) return no_memory(error, "the names");
    tensors->other_count = others;
    for (int64_t i = 0, n = 0; i < count; i++) {
        if (dtypes[entries[i].dtype].dtype != 0) continue;
        tensors->other_names[n] = dpcri_strdup(context, entries[i].name);
        tensors->other_dtypes[n] = dpcri_strdup(context, dtypes[entries[i].dtype].name);
        if (!tensors->other_names[n] || !tensors->other_dtypes[n]) return no_memory(error, "the names");
        n++;
    }
    return DPCR_OK;
}

static dpcr_status read_metadata(dpcr_context *context, const dpcri_source *source, json_t *metadata,
                                 dpcr_tensors *tensors, dpcr_error *error) {
    if (!json_is_object(metadata))
        return dpcri_source_bad(source, error, "safetensors " METADATA ": wanted an object of strings");
    const size_t count = json_object_size(metadata);
    if (count == 0) return DPCR_OK;
    tensors->metadata_keys = dpcri_alloc_zero(context, count * sizeof *tensors->metadata_keys);
    tensors->metadata_values = dpcri_alloc_zero(context, count * sizeof *tensors->metadata_values);
    if (!tensors->metadata_keys || !tensors->metadata_values) return no_memory(error, "the metadata");
    tensors->metadata_count = (int64_t)count;
    const char *key;
    json_t *value;
    size_t i = 0;
    json_object_foreach(metadata, key, value) {
        dpcri_quoted quoted;
        if (!json_is_string(value))
            return dpcri_source_bad(source, error, "safetensors " METADATA ": the value of '%s' is no string",
                                    dpcri_quote(key, &quoted));
        tensors->metadata_keys[i] = dpcri_strdup(context, key);
        tensors->metadata_values[i] = dpcri_strdup(context, json_string_value(value));
        if (!tensors->metadata_keys[i] || !tensors->metadata_values[i]) return no_memory(error, "the metadata");
        i++;
    }
    return DPCR_OK;
}

// The header's tensors, checked and sorted by offset. *entries belongs to the caller, also on failure.
static dpcr_status read_entries(dpcr_context *context, const dpcri_source *source, json_t *header, int64_t data_bytes,
                                entry **entries, int64_t *count, dpcr_error *error) {
    const char *name;
    json_t *value;
    const size_t most = json_object_size(header);
    *entries = dpcri_alloc_zero(context, most * sizeof **entries);
    if (most && !*entries) return no_memory(error, "the header");
    json_object_foreach(header, name, value) {
        if (strcmp(name, METADATA) == 0) continue;
        (*entries)[*count].order = *count;
        const dpcr_status status = read_entry(source, name, value, data_bytes, &(*entries)[*count], error);
        if (status != DPCR_OK) return status;
        ++*count;
    }
    return check_cover(source, *entries, *count, data_bytes, error);
}

static dpcr_status parse_header(const dpcri_source *source, const char *text, size_t bytes, json_t **header,
                                dpcr_error *error) {
    json_error_t json_error;
    // Other readers want the object to start at once; space before it could hide from them.
    if (bytes == 0 || text[0] != '{')
        return dpcri_source_bad(source, error, "safetensors header: it does not start with '{'");
    *header = dpcri_json_parse(text, bytes, &json_error);
    if (*header) return DPCR_OK;
    if (!json_error.text[0]) return no_memory(error, "the header");
    dpcri_quoted quoted;
    return dpcri_source_bad(source, error, "safetensors header: %s (byte %d of the JSON)",
                            dpcri_quote(json_error.text, &quoted), json_error.position);
}

static dpcr_status load_header(dpcr_context *context, const dpcri_source *source, json_t **header, int64_t *data_at,
                               dpcr_error *error) {
    unsigned char raw[LENGTH_BYTES];
    char *text = NULL;
    dpcr_status status;
    uint64_t length = 0;
    DPCR_TRY(dpcri_source_read(source, 0, raw, sizeof raw, "safetensors header length", error));
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) length = length << 8 | raw[i];
    if (length > MAX_HEADER)
        DPCR_TRY(dpcri_source_bad(source, error, "safetensors header length: got %llu, wanted at most %d",
                                  (unsigned long long)length, MAX_HEADER));
    if ((int64_t)length > source->size - LENGTH_BYTES)
        DPCR_TRY(dpcri_source_bad(source, error,
                                  "safetensors header length: got %llu, wanted at most %lld, which the file holds",
                                  (unsigned long long)length, (long long)(source->size - LENGTH_BYTES)));
    text = dpcri_alloc(context, (size_t)length);
    if (length && !text) DPCR_TRY(no_memory(error, "the header"));
    DPCR_TRY(dpcri_source_read(source, LENGTH_BYTES, text, (size_t)length, "safetensors header", error));
    DPCR_TRY(parse_header(source, text, (size_t)length, header, error));
    *data_at = LENGTH_BYTES + (int64_t)length;
done:
    dpcri_free(context, text);
    return status;
}

dpcr_status dpcri_safetensors_read_source(dpcr_context *context, const dpcri_source *source, dpcr_tensors *tensors,
                                          dpcr_error *error) {
    json_t *header = NULL;
    entry *entries = NULL;
    int64_t count = 0, data_at = 0;
    dpcr_status status;
    *tensors = (dpcr_tensors){0};
    DPCR_TRY(load_header(context, source, &header, &data_at, error));
    DPCR_TRY(read_entries(context, source, header, source->size - data_at, &entries, &count, error));
    json_t *metadata = json_object_get(header, METADATA);
    if (metadata) DPCR_TRY(read_metadata(context, source, metadata, tensors, error));
    DPCR_TRY(name_others(context, entries, count, tensors, error));
    const int64_t loaded = count - tensors->other_count;
    tensors->items = dpcri_alloc_zero(context, (size_t)loaded * sizeof *tensors->items);
    if (loaded && !tensors->items) DPCR_TRY(no_memory(error, "the list of tensors"));
    for (int64_t i = 0; i < count; i++)
        if (dtypes[entries[i].dtype].dtype != 0)
            DPCR_TRY(load_tensor(context, source, data_at, &entries[i], &tensors->items[tensors->count++], error));
done:
    if (status != DPCR_OK) dpcr_tensors_free(context, tensors);
    dpcri_free(context, entries);
    json_decref(header);
    return status;
}

dpcr_status dpcr_safetensors_read(dpcr_context *context, const char *path, dpcr_tensors *tensors, dpcr_error *error) {
    if (tensors) *tensors = (dpcr_tensors){0};
    if (!context || !path || !tensors)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "safetensors_read: context, path or tensors is NULL");
    dpcri_source source;
    dpcr_status status = dpcri_source_open(&source, path, true, error);
    if (status != DPCR_OK) return status;
    status = dpcri_safetensors_read_source(context, &source, tensors, error);
    dpcri_source_close(&source);
    return status;
}

// ---- writing ----

// Wide elements first: without gaps every tensor then starts at a multiple of its element, and of 8 in the file,
// because the header's length is one. Among equals by name, so that the same tensors give the same file.
static int compare_tensors(const void *a, const void *b) {
    const dpcr_tensor *p = *(const dpcr_tensor *const *)a, *q = *(const dpcr_tensor *const *)b;
    const size_t p_bytes = dpcr_dtype_size(p->array.dtype), q_bytes = dpcr_dtype_size(q->array.dtype);
    if (p_bytes != q_bytes) return p_bytes > q_bytes ? -1 : 1;
    return strcmp(p->name, q->name);
}

// As json_string has it, whose NULL may tell of a lack of memory too: no surrogates, no code longer than it need be.
static bool is_utf8(const char *text) {
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    for (const unsigned char *c = (const unsigned char *)text; *c;) {
        const int more = *c < 0x80 ? 0 : *c < 0xC0 ? -1 : *c < 0xE0 ? 1 : *c < 0xF0 ? 2 : *c < 0xF8 ? 3 : -1;
        if (more < 0) return false;
        uint32_t code = *c++ & (more ? 0x3FU >> more : 0x7FU);
        for (int i = 0; i < more; i++, c++) {
            if ((*c & 0xC0) != 0x80) return false;
            code = code << 6 | (*c & 0x3FU);
        }
        if (code < least[more] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
    }
    return true;
}

dpcr_status dpcri_metadata_check(const char *call, const char *key, const char *value, dpcr_error *error) {
    dpcri_quoted quoted;
    if (!is_utf8(key))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the key '%s' is not UTF-8", call, dpcri_quote(key, &quoted));
    if (is_utf8(value)) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the value of '%s' is not UTF-8", call,
                      dpcri_quote(key, &quoted));
}

static dpcr_status add_metadata(json_t *header, const dpcr_tensors *tensors, bool summed, dpcr_error *error) {
    if (tensors->metadata_count <= 0 && !summed) return DPCR_OK;
    if (tensors->metadata_count > 0 && (!tensors->metadata_keys || !tensors->metadata_values))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "safetensors_write: metadata_count is %lld, but there are no keys or values",
                          (long long)tensors->metadata_count);
    json_t *metadata = json_object();
    if (json_object_set_new(header, METADATA, metadata) != 0) return no_memory(error, "the header");
    for (int64_t i = 0; i < tensors->metadata_count; i++) {
        const char *key = tensors->metadata_keys[i], *text = tensors->metadata_values[i];
        if (!key || !text || json_object_get(metadata, key))
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                              "safetensors_write: metadata key or value %lld is NULL, or the key stands twice",
                              (long long)i);
        const dpcr_status status = dpcri_metadata_check("safetensors_write", key, text, error);
        if (status != DPCR_OK) return status;
        if (json_object_set_new(metadata, key, json_string(text)) != 0) return no_memory(error, "the header");
    }
    if (!summed) return DPCR_OK;
    char sum[DPCRI_SUM_BYTES];
    dpcri_tensors_sum(tensors, sum);
    return json_object_set_new(metadata, DPCRI_SUM, json_string(sum)) == 0 ? DPCR_OK : no_memory(error, "the header");
}

static dpcr_status add_entry(json_t *header, const dpcr_tensor *tensor, int64_t *offset, dpcr_error *error) {
    dpcri_quoted quoted;
    const dpcr_array *array = &tensor->array;
    int64_t count = 0, bytes = 0, end = 0;
    if (!dpcri_shape_bytes(array->dtype, array->ndim, array->shape, &count, &bytes) || !dpcri_add(*offset, bytes, &end))
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "safetensors_write: the file's size does not fit 63 bits");
    if (strcmp(tensor->name, METADATA) == 0 || json_object_get(header, tensor->name))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "safetensors_write: tensor name '%s' stands twice or is reserved",
                          dpcri_quote(tensor->name, &quoted));
    if (!is_utf8(tensor->name))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "safetensors_write: tensor name '%s' is not UTF-8",
                          dpcri_quote(tensor->name, &quoted));
    json_t *shape = json_array();
    for (int32_t d = 0; d < array->ndim; d++) json_array_append_new(shape, json_integer(array->shape[d]));
    if (json_array_size(shape) != (size_t)array->ndim) {
        json_decref(shape);
        return no_memory(error, "the header");
    }
    json_t *value = json_pack("{s:s, s:o, s:[I,I]}", "dtype", dtype_name(array->dtype), "shape", shape, "data_offsets",
                              (json_int_t)*offset, (json_int_t)end);
    if (!value) return no_memory(error, "the header");
    if (json_object_set_new(header, tensor->name, value) != 0) return no_memory(error, "the header");
    *offset = end;
    return DPCR_OK;
}

// json_dumps would go on past a growth of its buffer that fails; this one has all the room before. NULL: no memory.
static char *header_text(const json_t *header) {
    const size_t bytes = json_dumpb(header, NULL, 0, JSON_COMPACT);
    char *text = bytes > 0 ? malloc(bytes + 1) : NULL;
    if (!text) return NULL;
    text[bytes] = 0;
    if (json_dumpb(header, text, bytes, JSON_COMPACT) == bytes) return text;
    free(text);
    return NULL;
}

static dpcr_status make_header(const dpcr_tensors *tensors, bool summed, const dpcr_tensor **sorted, char **text,
                               dpcr_error *error) {
    dpcr_status status;
    int64_t offset = 0;
    json_t *header = json_object();
    if (!header) return no_memory(error, "the header");
    DPCR_TRY(add_metadata(header, tensors, summed, error));
    for (int64_t i = 0; i < tensors->count; i++) DPCR_TRY(add_entry(header, sorted[i], &offset, error));
    *text = header_text(header);
    if (!*text) DPCR_TRY(no_memory(error, "the header"));
done:
    json_decref(header);
    return status;
}

static dpcr_status put_header(dpcri_writer *writer, const char *text, dpcr_error *error) {
    static const char spaces[LENGTH_BYTES + 1] = "        ";
    const size_t length = strlen(text);
    const size_t padded = (length + LENGTH_BYTES - 1) / LENGTH_BYTES * LENGTH_BYTES;
    if (padded > MAX_HEADER)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "safetensors_write: the header has %zu bytes, wanted at most %d",
                          padded, MAX_HEADER);
    unsigned char raw[LENGTH_BYTES];
    for (int i = 0; i < LENGTH_BYTES; i++) raw[i] = (unsigned char)((uint64_t)padded >> (8 * i));
    dpcr_status status;
    DPCR_TRY(dpcri_writer_put(writer, raw, sizeof raw, error));
    DPCR_TRY(dpcri_writer_put(writer, text, length, error));
    DPCR_TRY(dpcri_writer_put(writer, spaces, padded - length, error));
done:
    return status;
}

static dpcr_status write_file(const char *path, const char *text, const dpcr_tensor **sorted, int64_t count,
                              dpcr_error *error) {
    dpcri_writer writer;
    dpcr_status status;
    DPCR_TRY(dpcri_writer_open(&writer, path, error));
    DPCR_TRY(put_header(&writer, text, error));
    for (int64_t i = 0; i < count; i++) DPCR_TRY(dpcri_writer_put_array(&writer, &sorted[i]->array, error));
    DPCR_TRY(dpcri_writer_commit(&writer, error));
done:
    dpcri_writer_close(&writer);
    return status;
}

static dpcr_status write_tensors(const char *path, const dpcr_tensors *tensors, bool summed, dpcr_error *error) {
    char *text = NULL;
    const dpcr_tensor **sorted = NULL;
    dpcr_status status;
    if (!path) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "safetensors_write: path is NULL");
    DPCR_TRY(dpcri_tensors_check_writable(tensors, error));
    // The writers take no context: this list and the header's JSON come from malloc.
    sorted = malloc((size_t)(tensors->count + 1) * sizeof(const dpcr_tensor *));
    if (!sorted) DPCR_TRY(no_memory(error, "the list of tensors"));
    for (int64_t i = 0; i < tensors->count; i++) sorted[i] = &tensors->items[i];
    // NOLINTNEXTLINE(bugprone-sizeof-expression): it is the pointers that are sorted.
    qsort(sorted, (size_t)tensors->count, sizeof sorted[0], compare_tensors);
    DPCR_TRY(make_header(tensors, summed, sorted, &text, error));
    DPCR_TRY(write_file(path, text, sorted, tensors->count, error));
done:
    free(text);
    free(sorted);
    return status;
}

dpcr_status dpcr_safetensors_write(const char *path, const dpcr_tensors *tensors, dpcr_error *error) {
    return write_tensors(path, tensors, false, error);
}

dpcr_status dpcr_safetensors_write_summed(const char *path, const dpcr_tensors *tensors, dpcr_error *error) {
    return write_tensors(path, tensors, true, error);
}
