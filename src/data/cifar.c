// SPDX-License-Identifier: MIT
// CIFAR-10's binary version: records of 3073 bytes, a label 0..9 and 3 x 32 x 32 bytes, plane by plane (red, green,
// blue), row by row. Source: https://www.cs.toronto.edu/~kriz/cifar.html, "binary version".
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "data/tensors.h"

enum { CHANNELS = 3, SIDE = 32, PIXELS = CHANNELS * SIDE * SIDE, RECORD = 1 + PIXELS, CLASSES = 10, MOST_FILES = 5 };

typedef struct part {
    char path[PATH_MAX];
    dpcri_source source;
    int64_t records;
} part;

static dpcr_status open_part(part *p, const char *directory, const char *name, dpcr_error *error) {
    const int used = snprintf(p->path, sizeof p->path, "%s/%s", directory, name);
    if (used < 0 || (size_t)used >= sizeof p->path)
        return dpcri_fail_code(error, DPCR_ERROR_IO, ENAMETOOLONG,
                               "dataset_read_cifar10: the folder's name is too long");
    const dpcr_status status = dpcri_source_open(&p->source, p->path, true, error);
    if (status != DPCR_OK) return status;
    p->records = p->source.size / RECORD;
    if (p->records > 0 && p->source.size % RECORD == 0) return DPCR_OK;
    return dpcri_source_bad(&p->source, error, "CIFAR-10 images: got %lld bytes, wanted records of %d",
                            (long long)p->source.size, RECORD);
}

static dpcr_status read_part(const part *p, uint8_t *images, uint8_t *labels, dpcr_error *error) {
    for (int64_t i = 0; i < p->records; i++) {
        unsigned char record[RECORD];
        const dpcr_status status =
            dpcri_source_read(&p->source, i * RECORD, record, sizeof record, "CIFAR-10 images", error);
        if (status != DPCR_OK) return status;
        if (record[0] >= CLASSES)
            return dpcri_source_bad(&p->source, error, "CIFAR-10 images: got label %d at record %lld, wanted 0..%d",
                                    record[0], (long long)i, CLASSES - 1);
        labels[i] = record[0];
        memcpy(images + i * PIXELS, record + 1, PIXELS);
    }
    return DPCR_OK;
}

static dpcr_status read_parts(dpcr_context *context, part *parts, int count, dpcr_dataset *dataset, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    int64_t at = 0;
    *dataset = (dpcr_dataset){.rows = SIDE, .cols = SIDE, .channels = CHANNELS, .classes = CLASSES};
    for (int i = 0; i < count; i++) dataset->count += parts[i].records;
    dataset->images = dpcri_alloc(context, (size_t)dataset->count * PIXELS);  // files of that size exist: it fits
    dataset->labels = dpcri_alloc(context, (size_t)dataset->count);
    if (!dataset->images || !dataset->labels)
        DPCR_TRY(dpcri_no_memory(error, "CIFAR-10 images", dataset->count * RECORD));
    for (int i = 0; i < count; at += parts[i++].records)
        DPCR_TRY(read_part(&parts[i], dataset->images + at * PIXELS, dataset->labels + at, error));
done:
    if (status != DPCR_OK) dpcr_dataset_free(context, dataset);
    return status;
}

dpcr_status dpcr_dataset_read_cifar10(dpcr_context *context, const char *directory, const char *split,
                                      dpcr_dataset *dataset, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    if (dataset) *dataset = (dpcr_dataset){0};
    if (!context || !directory || !split || !dataset)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "dataset_read_cifar10: context, directory, split or dataset is NULL");
    const bool train = strcmp(split, "train") == 0;
    if (!train && strcmp(split, "test") != 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "dataset_read_cifar10: split is '%.40s', wanted 'train' or 'test'", split);
    const int count = train ? MOST_FILES : 1;
    part *parts = dpcri_alloc_zero(context, (size_t)count * sizeof *parts);
    if (!parts) return dpcri_no_memory(error, "CIFAR-10 images", count * (int64_t)sizeof *parts);
    for (int i = 0; i < count; i++) parts[i].source.fd = -1;
    for (int i = 0; i < count; i++) {
        char name[32] = "test_batch.bin";
        if (train) snprintf(name, sizeof name, "data_batch_%d.bin", i + 1);
        DPCR_TRY(open_part(&parts[i], directory, name, error));
    }
    DPCR_TRY(read_parts(context, parts, count, dataset, error));
done:
    for (int i = 0; i < count; i++) dpcri_source_close(&parts[i].source);
    dpcri_free(context, parts);
    return status;
}
