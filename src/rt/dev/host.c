// SPDX-License-Identifier: MIT
// The host as a device: what code over the table does on a machine without any. Streams are order itself, so all is
// done when a call returns.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "rt/cache.h"
#include "rt/dev/device.h"

static dpcr_status host_count(int *count, dpcr_error *error) {
    (void)error;
    *count = 1;
    return DPCR_OK;
}

static dpcr_status host_describe(int id, dpcr_device_info *info, dpcr_error *error) {
    (void)id;
    (void)error;
    const long processors = sysconf(_SC_NPROCESSORS_ONLN), pages = sysconf(_SC_PHYS_PAGES),
               page = sysconf(_SC_PAGESIZE), idle = sysconf(_SC_AVPHYS_PAGES);
    *info = (dpcr_device_info){.size = sizeof *info};
    for (size_t i = 0; dpcr_processor_name()[i] && i + 1 < sizeof info->name; i++)
        info->name[i] = dpcr_processor_name()[i];
    info->processors = processors > 0 ? (int)processors : 1;
    info->memory_bytes = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : 0;
    info->free_bytes = idle > 0 && page > 0 ? (size_t)idle * (size_t)page : 0;
    info->cache_bytes = (size_t)dpcri_cache_bytes(3);
    return DPCR_OK;
}

static dpcr_status host_allocate(int id, size_t bytes, void **memory, dpcr_error *error) {
    (void)id;
    const size_t rounded = (bytes + 63) / 64 * 64;
    *memory = rounded < bytes ? NULL : aligned_alloc(64, rounded);
    return *memory ? DPCR_OK : dpcri_fail(error, DPCR_ERROR_MEMORY, "cpu: %zu bytes were refused", bytes);
}

static void host_release(int id, void *memory) {
    (void)id;
    free(memory);
}

static dpcr_status host_copy(int id, void *to, const void *from, size_t bytes, dpcri_direction direction, void *stream,
                             dpcr_error *error) {
    (void)id;
    (void)direction;
    (void)stream;
    (void)error;
    memmove(to, from, bytes);
    return DPCR_OK;
}

static dpcr_status host_fill(int id, void *memory, int byte, size_t bytes, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    memset(memory, byte, bytes);
    return DPCR_OK;
}

static dpcr_status host_stream_create(int id, void **stream, dpcr_error *error) {
    (void)id;
    (void)error;
    *stream = NULL;
    return DPCR_OK;
}

static void host_stream_destroy(int id, void *stream) {
    (void)id;
    (void)stream;
}

static dpcr_status host_stream_wait(int id, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    return DPCR_OK;
}

static dpcr_status host_event_create(int id, void **event, dpcr_error *error) {
    (void)id;
    *event = calloc(1, sizeof(double));
    return *event ? DPCR_OK : dpcri_fail(error, DPCR_ERROR_MEMORY, "cpu: no memory for an event");
}

static void host_event_destroy(int id, void *event) {
    (void)id;
    free(event);
}

static dpcr_status host_event_record(int id, void *event, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    *(double *)event = dpcri_seconds();
    return DPCR_OK;
}

static dpcr_status host_event_seconds(int id, void *from, void *to, double *seconds, dpcr_error *error) {
    (void)id;
    (void)error;
    *seconds = *(const double *)to - *(const double *)from;
    return DPCR_OK;
}

static dpcr_status host_last_error(int id, dpcr_error *error) {
    (void)id;
    (void)error;
    return DPCR_OK;
}

const dpcri_device_table dpcri_host_table = {.abi = DPCRI_DEVICE_ABI,
                                             .version = DPCR_VERSION_STRING,
                                             .name = "host",
                                             .size = sizeof(dpcri_device_table),
                                             .count = host_count,
                                             .describe = host_describe,
                                             .allocate = host_allocate,
                                             .release = host_release,
                                             .copy = host_copy,
                                             .fill = host_fill,
                                             .stream_create = host_stream_create,
                                             .stream_destroy = host_stream_destroy,
                                             .stream_wait = host_stream_wait,
                                             .event_create = host_event_create,
                                             .event_destroy = host_event_destroy,
                                             .event_record = host_event_record,
                                             .event_seconds = host_event_seconds,
                                             .last_error = host_last_error};
