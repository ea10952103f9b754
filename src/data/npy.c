// SPDX-License-Identifier: MIT
// npy: "\x93NUMPY", version, length of the header, a Python dictionary literal, the elements.
//   {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
// Source: NumPy Enhancement Proposal 1 and the documentation of numpy.lib.format.
#include "data/npy.h"

#include <stdio.h>
#include <string.h>

enum { MAGIC_BYTES = 6, MAX_HEADER = 1 << 20 };
static const char magic[MAGIC_BYTES + 1] = "\x93NUMPY";

typedef dpcri_npy_facts npy_header;

// ---- the dictionary ----

// Reads the text from left to right; nothing is skipped but space between tokens.
typedef struct parser {
    const dpcri_source *source;  // for error texts
    const char *at, *end;
} parser;

static dpcr_status syntax(const parser *p, dpcr_error *error, const char *wanted) {
    char got[24] = "its end";
    if (p->at < p->end)
        snprintf(got, sizeof got, *p->at > ' ' && *p->at < 0x7f ? "'%c'" : "byte 0x%02x", (unsigned char)*p->at);
    return dpcri_source_bad(p->source, error, "npy header: got %s, wanted %s", got, wanted);
}

static void skip_space(parser *p) {
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r')) p->at++;
}

static bool take(parser *p, char c) {
    skip_space(p);
    if (p->at >= p->end || *p->at != c) return false;
    p->at++;
    return true;
}

static bool take_word(parser *p, const char *word) {
    const size_t length = strlen(word);
    skip_space(p);
    if ((size_t)(p->end - p->at) < length || memcmp(p->at, word, length) != 0) return false;
    p->at += length;
    return true;
}

// A string without escapes, at most size - 1 bytes of it kept; none that we want is longer.
static dpcr_status take_string(parser *p, char *text, size_t size, const char *wanted, dpcr_error *error) {
    skip_space(p);
    char quote = 0;
    if (p->at < p->end) quote = *p->at;
    if (quote != '\'' && quote != '"') return syntax(p, error, wanted);
    size_t n = 0;
    for (p->at++; p->at < p->end && *p->at != quote; p->at++) {
        if (*p->at == '\\' || *p->at == '\n' || *p->at == 0) return syntax(p, error, "a string without escapes");
        if (n + 1 < size) text[n++] = *p->at;
    }
    text[n] = 0;
    return take(p, quote) ? DPCR_OK : syntax(p, error, "the end of a string");
}

static dpcr_status take_integer(parser *p, int64_t *value, dpcr_error *error) {
    *value = 0;
    skip_space(p);
    if (p->at >= p->end || *p->at < '0' || *p->at > '9') return syntax(p, error, "an extent, digits only");
    for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
        if (!dpcri_mul(*value, 10, value) || !dpcri_add(*value, *p->at - '0', value))
            return dpcri_source_bad(p->source, error, "npy header: an extent does not fit 63 bits");
    p->at += p->at < p->end && *p->at == 'L';  // Python 2's
    return DPCR_OK;
}

static dpcr_status take_shape(parser *p, npy_header *header, dpcr_error *error) {
    dpcr_status status;
    bool comma = true;
    header->ndim = 0;
    if (!take(p, '(')) return syntax(p, error, "'(', a tuple of extents");
    while (!take(p, ')')) {
        if (!comma) return syntax(p, error, "',' or ')' in the shape");
        if (header->ndim == DPCR_MAX_DIMS)
            return dpcri_source_bad(p->source, error, "npy header: got more than %d dimensions, wanted at most that",
                                    DPCR_MAX_DIMS);
        DPCR_TRY(take_integer(p, &header->shape[header->ndim++], error));
        comma = take(p, ',');
    }
    // (3) is a number in Python, not a tuple.
    if (header->ndim == 1 && !comma) return syntax(p, error, "',' after the only extent");
    status = DPCR_OK;
done:
    return status;
}

// '<i8' and its kin, and '|b1'; one byte has no order.
static bool take_whole(const char *text, npy_header *header) {
    const int bytes = text[0] && text[1] && text[2] && !text[3] ? text[2] - '0' : 0;
    const bool number = text[1] == 'i' || text[1] == 'u', single = text[0] == '|' && bytes == 1;
    const bool ordered = (text[0] == '<' || text[0] == '>') && (bytes == 2 || bytes == 4 || bytes == 8);
    if (!(number && (single || ordered)) && !(text[1] == 'b' && single)) return false;
    header->dtype = DPCR_F64;
    header->narrow = bytes;
    header->is_signed = text[1] == 'i';
    header->big_endian = text[0] == '>';
    return true;
}

static dpcr_status take_descr(parser *p, npy_header *header, dpcr_error *error) {
    static const struct {
        const char *descr;
        dpcr_dtype dtype;
        dpcri_half half;
    } known[] = {{"f4", DPCR_F32, 0}, {"f8", DPCR_F64, 0}, {"u4", DPCR_U32, 0}, {"f2", DPCR_F32, DPCRI_BINARY16}};
    char text[32];
    dpcri_quoted quoted;
    const dpcr_status status = take_string(p, text, sizeof text, "a dtype such as '<f4' (no structured ones)", error);
    if (status != DPCR_OK) return status;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if ((text[0] != '<' && text[0] != '>') || strcmp(text + 1, known[i].descr) != 0) continue;
        header->dtype = known[i].dtype;
        header->half = known[i].half;
        header->narrow = known[i].half ? 2 : 0;
        header->big_endian = text[0] == '>';
        return DPCR_OK;
    }
    if (take_whole(text, header)) return DPCR_OK;
    return dpcri_source_bad(p->source, error, "npy header: got dtype '%s', wanted f2, f4, f8, i1 to i8, u1 to u8 or b1",
                            dpcri_quote(text, &quoted));
}

static dpcr_status take_fortran_order(parser *p, npy_header *header, dpcr_error *error) {
    header->fortran_order = take_word(p, "True");
    return header->fortran_order || take_word(p, "False") ? DPCR_OK : syntax(p, error, "True or False");
}

static const struct {
    const char *key;
    dpcr_status (*take)(parser *p, npy_header *header, dpcr_error *error);
} keys[] = {{"descr", take_descr}, {"fortran_order", take_fortran_order}, {"shape", take_shape}};
enum { KEYS = sizeof keys / sizeof *keys, ALL_KEYS = (1 << KEYS) - 1 };

static dpcr_status take_item(parser *p, npy_header *header, unsigned *seen, dpcr_error *error) {
    char key[32];
    dpcri_quoted quoted;
    dpcr_status status = take_string(p, key, sizeof key, "a key in quotes", error);
    if (status != DPCR_OK) return status;
    for (unsigned i = 0; i < KEYS; i++) {
        if (strcmp(keys[i].key, key) != 0) continue;
        if (*seen & 1u << i) return dpcri_source_bad(p->source, error, "npy header: key '%s' stands twice", key);
        *seen |= 1u << i;
        return take(p, ':') ? keys[i].take(p, header, error) : syntax(p, error, "':' after a key");
    }
    return dpcri_source_bad(p->source, error, "npy header: got key '%s', wanted descr, fortran_order and shape",
                            dpcri_quote(key, &quoted));
}

static dpcr_status parse(const dpcri_source *source, const char *text, size_t length, npy_header *header,
                         dpcr_error *error) {
    parser p = {.source = source, .at = text, .end = text + length};
    unsigned seen = 0;
    bool comma = true;
    if (!take(&p, '{')) return syntax(&p, error, "'{', a dictionary");
    while (!take(&p, '}')) {
        if (!comma) return syntax(&p, error, "',' or '}'");
        const dpcr_status status = take_item(&p, header, &seen, error);
        if (status != DPCR_OK) return status;
        comma = take(&p, ',');
    }
    skip_space(&p);
    if (p.at != p.end) return syntax(&p, error, "nothing after the dictionary");
    if (seen != ALL_KEYS)
        return dpcri_source_bad(source, error, "npy header: a key is missing, wanted descr, fortran_order and shape");
    return DPCR_OK;
}

// ---- reading ----

static dpcr_status read_length(dpcri_stream *stream, size_t *length, int64_t *head, dpcr_error *error) {
    unsigned char raw[MAGIC_BYTES + 2 + 4] = {0};
    const unsigned char *size = raw + MAGIC_BYTES + 2;
    dpcr_status status;
    DPCR_TRY(dpcri_stream_read(stream, raw, MAGIC_BYTES + 2, "npy header", error));
    if (memcmp(raw, magic, MAGIC_BYTES) != 0)
        DPCR_TRY(dpcri_source_bad(stream->source, error,
                                  "npy magic: got 0x%02x%02x%02x%02x.., wanted 0x934e554d (\\x93NUMPY)", raw[0], raw[1],
                                  raw[2], raw[3]));
    const unsigned major = raw[MAGIC_BYTES], minor = raw[MAGIC_BYTES + 1];
    if (major < 1 || major > 3 || minor != 0)
        DPCR_TRY(
            dpcri_source_bad(stream->source, error, "npy version: got %u.%u, wanted 1.0, 2.0 or 3.0", major, minor));
    DPCR_TRY(dpcri_stream_read(stream, raw + MAGIC_BYTES + 2, major == 1 ? 2 : 4, "npy header", error));
    *head = MAGIC_BYTES + 2 + (major == 1 ? 2 : 4);
    *length = (size_t)size[0] | (size_t)size[1] << 8 | (size_t)size[2] << 16 | (size_t)size[3] << 24;
    if (*length > MAX_HEADER || (int64_t)*length > dpcri_stream_most(stream))
        DPCR_TRY(dpcri_source_bad(stream->source, error,
                                  "npy header length: got %zu, wanted at most %d and what the file holds", *length,
                                  MAX_HEADER));
done:
    return status;
}

dpcr_status dpcri_npy_read_facts(dpcri_stream *stream, npy_header *header, dpcr_error *error) {
    size_t length = 0;
    char *text = NULL;
    dpcr_status status;
    DPCR_TRY(read_length(stream, &length, &header->data_at, error));
    header->data_at += (int64_t)length;
    text = dpcri_alloc(stream->context, length);
    if (length && !text) DPCR_TRY(dpcri_no_memory(error, "npy header", (int64_t)length));
    DPCR_TRY(dpcri_stream_read(stream, text, length, "npy header", error));
    DPCR_TRY(parse(stream->source, text ? text : "", length, header, error));
done:
    dpcri_free(stream->context, text);
    return status;
}

// Fortran order is the view with strides 1, n0, n0 n1, ..: gathering it gives row-major order.
static dpcr_status reorder(dpcr_context *context, dpcr_array *array, int64_t count, size_t bytes, dpcr_error *error) {
    dpcr_array columns = *array;
    int64_t stride = 1;
    for (int32_t d = 0; d < array->ndim; d++) {
        columns.strides[d] = stride;
        stride *= array->shape[d];
    }
    void *rows = dpcri_alloc(context, bytes);
    if (!rows) return dpcri_no_memory(error, "npy data", (int64_t)bytes);
    dpcri_array_gather(&columns, 0, count, rows);
    dpcri_free(context, array->data);
    array->data = rows;
    return DPCR_OK;
}

// The number that `size` bytes at p say; false: float64 does not hold it.
static bool whole_number(const void *p, size_t size, bool is_signed, double *value) {
    const int64_t most = (int64_t)1 << 53;
    uint64_t bits = 0;
    if (dpcri_host_is_little_endian())
        memcpy(&bits, p, size);
    else
        memcpy((char *)&bits + sizeof bits - size, p, size);
    const int unused = 64 - 8 * (int)size;
    if (is_signed) {
        const bool negative = bits >> (8 * size - 1) != 0;
        const int64_t x = (int64_t)(negative && unused > 0 ? bits | UINT64_MAX << (8 * size) : bits);
        *value = (double)x;
        return x >= -most && x <= most;
    }
    *value = (double)bits;
    return bits <= (uint64_t)most;
}

static dpcr_status widen_whole(const dpcri_source *source, const npy_header *header, const char *from, int64_t count,
                               double *to, dpcr_error *error) {
    const size_t size = (size_t)header->narrow;
    for (int64_t i = 0; i < count; i++, from += size) {
        double value;
        if (!whole_number(from, size, header->is_signed, &value))
            return dpcri_source_bad(source, error, "npy data: element %lld is beyond 2^53", (long long)i);
        to[i] = value;
    }
    return DPCR_OK;
}

// Narrow numbers lie at the end of the memory that they are to fill, and are widened from the first on.
static dpcr_status read_narrow(dpcri_stream *stream, const npy_header *header, int64_t count, dpcr_array *array,
                               dpcr_error *error) {
    const size_t size = (size_t)header->narrow, wide = dpcr_dtype_size(header->dtype);
    char *from = count ? (char *)array->data + (size_t)count * (wide - size) : NULL;
    dpcr_status status;
    DPCR_TRY(dpcri_stream_read(stream, from, (size_t)count * size, "npy data", error));
    DPCR_TRY(dpcri_stream_finish(stream, "npy data", error));
    if (size > 1 && header->big_endian == dpcri_host_is_little_endian()) dpcri_swap_bytes(from, count, size);
    if (!header->half) return widen_whole(stream->source, header, from, count, array->data, error);
    dpcri_half_widen(header->half, from, count, array->data);
done:
    return status;
}

static dpcr_status read_elements(dpcri_stream *stream, const npy_header *header, dpcr_array *array, dpcr_error *error) {
    int64_t count = 0, bytes = 0;
    dpcr_status status;
    if (!dpcri_shape_bytes(header->dtype, header->ndim, header->shape, &count, &bytes))
        return dpcri_source_bad(stream->source, error, "npy shape: its size in bytes does not fit 63 bits");
    const int64_t stored = header->narrow ? count * header->narrow : bytes;
    if (stored > dpcri_stream_most(stream))
        return dpcri_source_bad(stream->source, error, "npy data cut short: got at most %lld bytes, wanted %lld",
                                (long long)dpcri_stream_most(stream), (long long)stored);
    *array = dpcr_array_make(dpcri_alloc(stream->context, (size_t)bytes), header->dtype, header->ndim, header->shape);
    if (bytes && !array->data) return dpcri_no_memory(error, "npy data", bytes);
    if (header->narrow) {
        DPCR_TRY(read_narrow(stream, header, count, array, error));
    } else {
        DPCR_TRY(dpcri_stream_read(stream, array->data, (size_t)bytes, "npy data", error));
        DPCR_TRY(dpcri_stream_finish(stream, "npy data", error));
        if (header->big_endian == dpcri_host_is_little_endian())
            dpcri_swap_bytes(array->data, count, dpcr_dtype_size(header->dtype));
    }
    if (header->fortran_order && header->ndim > 1 && count > 0)
        DPCR_TRY(reorder(stream->context, array, count, (size_t)bytes, error));
done:
    return status;
}

dpcr_status dpcri_npy_read_stream(dpcri_stream *stream, dpcr_array *array, dpcr_error *error) {
    npy_header header = {0};
    const dpcr_status status = dpcri_npy_read_facts(stream, &header, error);
    return status == DPCR_OK ? read_elements(stream, &header, array, error) : status;
}

static bool is_zip(const dpcri_source *source) {
    unsigned char start[2] = {0};
    size_t got = 0;
    // A pipe cannot be looked at twice, and npz keeps its directory at the end.
    if (!source->seekable) return false;
    return dpcri_source_read_some(source, 0, start, sizeof start, &got, NULL) == DPCR_OK && memcmp(start, "PK", 2) == 0;
}

dpcr_status dpcri_npy_read_source(dpcr_context *context, const dpcri_source *source, const dpcri_names *wanted,
                                  dpcr_tensors *tensors, dpcr_error *error) {
    *tensors = (dpcr_tensors){0};
    if (is_zip(source)) return dpcri_npz_read_source(context, source, wanted, tensors, error);
    dpcri_stream stream;
    dpcr_status status = dpcri_stream_open(&stream, context, source, 0, source->size, DPCRI_PLAIN, error);
    if (status != DPCR_OK) return status;
    tensors->items = dpcri_alloc_zero(context, sizeof *tensors->items);
    if (!tensors->items) DPCR_TRY(dpcri_no_memory(error, "npy", sizeof *tensors->items));
    tensors->count = 1;
    tensors->items[0].name = dpcri_strdup(context, "");
    if (!tensors->items[0].name) DPCR_TRY(dpcri_no_memory(error, "npy name", 1));
    DPCR_TRY(dpcri_npy_read_stream(&stream, &tensors->items[0].array, error));
done:
    dpcri_stream_close(&stream);
    if (status != DPCR_OK) dpcr_tensors_free(context, tensors);
    return status;
}

static dpcr_status read_path(dpcr_context *context, const char *path, const dpcri_names *wanted, dpcr_tensors *tensors,
                             dpcr_error *error) {
    dpcri_source source;
    dpcr_status status = dpcri_source_open(&source, path, false, error);
    if (status != DPCR_OK) return status;
    source.context = context;
    status = dpcri_npy_read_source(context, &source, wanted, tensors, error);
    dpcri_source_close(&source);
    return status;
}

dpcr_status dpcr_npy_read(dpcr_context *context, const char *path, dpcr_tensors *tensors, dpcr_error *error) {
    if (tensors) *tensors = (dpcr_tensors){0};
    if (!context || !path || !tensors)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "npy_read: context, path or tensors is NULL");
    return read_path(context, path, NULL, tensors, error);
}

dpcr_status dpcr_npy_read_named(dpcr_context *context, const char *path, const char *const *names, int64_t count,
                                dpcr_tensors *tensors, dpcr_error *error) {
    if (tensors) *tensors = (dpcr_tensors){0};
    if (count < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "npy_read_named: got %lld names, wanted 0 or more",
                          (long long)count);
    bool given = names || count == 0;
    for (int64_t i = 0; given && i < count; i++) given = names[i];
    if (!context || !path || !tensors || !given)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "npy_read_named: context, path, tensors or a name is NULL");
    const dpcri_names wanted = {names, count};
    return read_path(context, path, &wanted, tensors, error);
}

// ---- writing ----

size_t dpcri_npy_header(const dpcr_array *array, char header[DPCRI_NPY_HEADER]) {
    const size_t start = MAGIC_BYTES + 4;
    const char *descr = array->dtype == DPCR_F32 ? "<f4" : array->dtype == DPCR_F64 ? "<f8" : "<u4";
    char shape[DPCR_MAX_DIMS * 24] = "";
    size_t used = 0;
    for (int32_t d = 0; d < array->ndim; d++)
        used += (size_t)snprintf(shape + used, sizeof shape - used, d ? ", %lld" : "%lld", (long long)array->shape[d]);
    char *text = header + start;
    const int length =
        snprintf(text, DPCRI_NPY_HEADER - start, "{'descr': '%s', 'fortran_order': False, 'shape': (%s%s), }", descr,
                 shape, array->ndim == 1 ? "," : "");
    // Spaces up to a multiple of 64 and a line end, so that the data can be mapped aligned.
    const size_t total = (start + (size_t)length + 1 + 63) / 64 * 64;
    memset(text + length, ' ', total - start - (size_t)length);
    header[total - 1] = '\n';
    memcpy(header, magic, MAGIC_BYTES);
    header[MAGIC_BYTES] = 1;
    header[MAGIC_BYTES + 1] = 0;
    header[MAGIC_BYTES + 2] = (char)((total - start) & 0xff);
    header[MAGIC_BYTES + 3] = (char)((total - start) >> 8);
    return total;
}

dpcr_status dpcr_npy_write(const char *path, const dpcr_array *array, dpcr_error *error) {
    if (!path || !array) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "npy_write: path or array is NULL");
    char header[DPCRI_NPY_HEADER];
    dpcri_writer writer = {.fd = -1};
    dpcr_status status;
    int64_t bytes = 0;
    DPCR_TRY(dpcri_array_check_writable(array, "", &bytes, error));
    DPCR_TRY(dpcri_writer_open(&writer, path, error));
    DPCR_TRY(dpcri_writer_put(&writer, header, dpcri_npy_header(array, header), error));
    DPCR_TRY(dpcri_writer_put_array(&writer, array, error));
    DPCR_TRY(dpcri_writer_commit(&writer, error));
done:
    dpcri_writer_close(&writer);
    return status;
}
