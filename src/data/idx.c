// SPDX-License-Identifier: MIT
// IDX, the files of MNIST: two zero bytes, a type (8: bytes), the number of dimensions, the extents as big-endian u32,
// the bytes. Raw or gzipped, told by the first bytes. Source: http://yann.lecun.com/exdb/mnist/, "the IDX file format".
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "data/stream.h"
#include "data/tensors.h"

#define DEBIAN_FOLDER "/usr/share/datasets/fashion-mnist"

enum { TYPE_BYTE = 8, IMAGE_DIMS = 3, LABEL_DIMS = 1 };

static const char *const contents[] = {[IMAGE_DIMS] = "IDX images", [LABEL_DIMS] = "IDX labels"};

static uint32_t big_endian(const unsigned char *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static dpcr_status open_stream(dpcri_stream *stream, dpcr_context *context, const dpcri_source *source,
                               dpcr_error *error) {
    unsigned char start[2] = {0};
    size_t got = 0;
    const dpcr_status status = dpcri_source_read_some(source, 0, start, sizeof start, &got, error);
    if (status != DPCR_OK) return status;
    const bool gzipped = start[0] == 0x1f && start[1] == 0x8b;
    return dpcri_stream_open(stream, context, source, 0, source->size, gzipped ? DPCRI_GZIP : DPCRI_PLAIN, error);
}

static dpcr_status read_header(dpcri_stream *stream, int ndim, int64_t *shape, dpcr_error *error) {
    unsigned char raw[4 + 4 * IMAGE_DIMS];
    dpcr_status status;
    const char *what = contents[ndim];
    DPCR_TRY(dpcri_stream_read(stream, raw, 4, what, error));
    const uint32_t wanted = TYPE_BYTE << 8 | (uint32_t)ndim;
    if (big_endian(raw) != wanted)
        DPCR_TRY(dpcri_source_bad(stream->source, error, "%s: got magic number 0x%08x, wanted 0x%08x", what,
                                  (unsigned)big_endian(raw), (unsigned)wanted));
    DPCR_TRY(dpcri_stream_read(stream, raw + 4, 4 * (size_t)ndim, what, error));
    for (int d = 0; d < ndim; d++) {
        shape[d] = big_endian(raw + 4 + 4 * d);
        if (shape[d] == 0)
            DPCR_TRY(
                dpcri_source_bad(stream->source, error, "%s: got extent 0 in dimension %d, wanted 1 or more", what, d));
    }
done:
    return status;
}

static dpcr_status read_body(dpcri_stream *stream, int ndim, const int64_t *shape, uint8_t **data, dpcr_error *error) {
    int64_t bytes = 1;
    dpcr_status status;
    const char *what = contents[ndim];
    for (int d = 0; d < ndim; d++)
        if (!dpcri_mul(bytes, shape[d], &bytes))
            return dpcri_source_bad(stream->source, error, "%s: the product of the extents does not fit 63 bits", what);
    if (bytes > dpcri_stream_most(stream))
        return dpcri_source_bad(stream->source, error, "%s cut short: got at most %lld bytes, wanted %lld", what,
                                (long long)dpcri_stream_most(stream), (long long)bytes);
    *data = dpcri_alloc(stream->context, (size_t)bytes);
    if (!*data) return dpcri_no_memory(error, what, bytes);
    DPCR_TRY(dpcri_stream_read(stream, *data, (size_t)bytes, what, error));
    DPCR_TRY(dpcri_stream_finish(stream, what, error));
done:
    return status;
}

// *data belongs to the caller, also on failure.
static dpcr_status read_file(dpcr_context *context, const dpcri_source *source, int ndim, int64_t *shape,
                             uint8_t **data, dpcr_error *error) {
    dpcri_stream stream;
    dpcr_status status = open_stream(&stream, context, source, error);
    if (status != DPCR_OK) return status;
    DPCR_TRY(read_header(&stream, ndim, shape, error));
    DPCR_TRY(read_body(&stream, ndim, shape, data, error));
done:
    dpcri_stream_close(&stream);
    return status;
}

static dpcr_status check_labels(const dpcri_source *source, int64_t classes, dpcr_dataset *dataset, dpcr_error *error) {
    int largest = 0;
    for (int64_t i = 0; i < dataset->count; i++) {
        const int label = dataset->labels[i];
        if (classes > 0 && label >= classes)
            return dpcri_source_bad(source, error, "IDX labels: got label %d at %lld, wanted 0..%lld", label,
                                    (long long)i, (long long)(classes - 1));
        if (label > largest) largest = label;
    }
    dataset->classes = classes > 0 ? classes : largest + 1;
    return DPCR_OK;
}

dpcr_status dpcri_idx_read_sources(dpcr_context *context, const dpcri_source *images, const dpcri_source *labels,
                                   int64_t classes, dpcr_dataset *dataset, dpcr_error *error) {
    int64_t image_shape[IMAGE_DIMS], label_shape[LABEL_DIMS];
    dpcr_status status;
    *dataset = (dpcr_dataset){0};
    DPCR_TRY(read_file(context, images, IMAGE_DIMS, image_shape, &dataset->images, error));
    DPCR_TRY(read_file(context, labels, LABEL_DIMS, label_shape, &dataset->labels, error));
    if (label_shape[0] != image_shape[0])
        DPCR_TRY(dpcri_source_bad(labels, error, "IDX labels: got %lld, wanted %lld, one an image",
                                  (long long)label_shape[0], (long long)image_shape[0]));
    dataset->count = image_shape[0];
    dataset->rows = image_shape[1];
    dataset->cols = image_shape[2];
    DPCR_TRY(check_labels(labels, classes, dataset, error));
done:
    if (status != DPCR_OK) dpcr_dataset_free(context, dataset);
    return status;
}

// ---- the files of a folder ----

static bool is_debian_folder(const char *directory) {
    size_t length = strlen(directory);
    while (length > 1 && directory[length - 1] == '/') length--;
    return length == strlen(DEBIAN_FOLDER) && strncmp(directory, DEBIAN_FOLDER, length) == 0;
}

static dpcr_status missing(const char *directory, const char *what, dpcr_error *error) {
    const int code = errno;
    return dpcri_fail_code(
        error, DPCR_ERROR_IO, code, "%s: %s; folder %.300s%s", what, strerror(code), directory,
        is_debian_folder(directory) ? " (the Debian package dataset-fashion-mnist provides it)" : "");
}

typedef struct data_file {
    char path[PATH_MAX];
    dpcri_source source;
} data_file;

// DIRECTORY/SPLIT-KIND, else the same with .gz.
static dpcr_status open_file(data_file *file, const char *directory, const char *split, const char *kind,
                             dpcr_error *error) {
    static const char *const endings[] = {"", ".gz"};
    struct stat about;
    for (int i = 0; i < 2; i++) {
        const int used = snprintf(file->path, sizeof file->path, "%s/%s-%s%s", directory, split, kind, endings[i]);
        if (used < 0 || (size_t)used >= sizeof file->path) {
            errno = ENAMETOOLONG;
            break;
        }
        if (stat(file->path, &about) == 0) return dpcri_source_open(&file->source, file->path, true, error);
    }
    char what[96];
    snprintf(what, sizeof what, "cannot find %s-%s[.gz]", split, kind);
    return missing(directory, what, error);
}

static dpcr_status check_arguments(const char *directory, const char *split, int64_t classes, dpcr_error *error) {
    if (strcmp(split, "train") != 0 && strcmp(split, "t10k") != 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "dataset_read_idx: split is '%.40s', wanted 'train' or 't10k'",
                          split);
    if (classes < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "dataset_read_idx: classes is %lld, wanted 0 or more",
                          (long long)classes);
    struct stat about;
    if (stat(directory, &about) != 0) return missing(directory, "cannot open the data set's folder", error);
    return DPCR_OK;
}

dpcr_status dpcr_dataset_read_idx(dpcr_context *context, const char *directory, const char *split, int64_t classes,
                                  dpcr_dataset *dataset, dpcr_error *error) {
    if (dataset) *dataset = (dpcr_dataset){0};
    if (!context || !directory || !split || !dataset)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "dataset_read_idx: context, directory, split or dataset is NULL");
    dpcr_status status = check_arguments(directory, split, classes, error);
    if (status != DPCR_OK) return status;
    data_file images = {.source = {.fd = -1}}, labels = {.source = {.fd = -1}};
    DPCR_TRY(open_file(&images, directory, split, "images-idx3-ubyte", error));
    DPCR_TRY(open_file(&labels, directory, split, "labels-idx1-ubyte", error));
    DPCR_TRY(dpcri_idx_read_sources(context, &images.source, &labels.source, classes, dataset, error));
done:
    dpcri_source_close(&labels.source);
    dpcri_source_close(&images.source);
    return status;
}

void dpcr_dataset_free(dpcr_context *context, dpcr_dataset *dataset) {
    if (!dataset) return;
    dpcri_free(context, dataset->images);
    dpcri_free(context, dataset->labels);
    *dataset = (dpcr_dataset){0};
}
