// SPDX-License-Identifier: MIT
// A backend of devices as a table of functions: memory, copies, streams, events. Everything above rt/ goes by this
// table and knows no backend. "host" is in the library (host.c); "cuda" is a module that load.c opens at run time,
// whose only exported name is dpcr_device_module. docs/gpu.md; why so: docs/design.md.
//
// Status and words as everywhere: a function that fails fills `error` and leaves the device usable where it can. None
// changes the calling thread's current device. `id` is below what `count` gave. Streams and events are the backend's
// own pointers; stream NULL is the default stream.
#ifndef DPCRI_RT_DEVICE_H
#define DPCRI_RT_DEVICE_H

#include <stddef.h>

#include "deeppcr/device.h"

// Counts changes of the two tables (this one and kern/device.h). A module must have the library's number and version.
#define DPCRI_DEVICE_ABI 11

typedef enum dpcri_direction { DPCRI_TO_DEVICE, DPCRI_TO_HOST, DPCRI_ON_DEVICE } dpcri_direction;

typedef struct dpcri_device_table {
    int abi;  // DPCRI_DEVICE_ABI of its headers; stays the first field, whatever the number
    int reserved;
    const char *version;  // of deeppcr
    const char *name;     // "host", "cuda"
    size_t size;          // sizeof(dpcri_device_table) of its headers

    // > 0 devices, or DPCR_ERROR_DEVICE and why there are none.
    dpcr_status (*count)(int *count, dpcr_error *error);
    // Refuses a device that it could not run on. `info->size` is the library's own.
    dpcr_status (*describe)(int id, dpcr_device_info *info, dpcr_error *error);

    dpcr_status (*allocate)(int id, size_t bytes, void **memory, dpcr_error *error);
    void (*release)(int id, void *memory);
    // Into the stream; the caller keeps both until it has waited.
    dpcr_status (*copy)(int id, void *to, const void *from, size_t bytes, dpcri_direction direction, void *stream,
                        dpcr_error *error);
    dpcr_status (*fill)(int id, void *memory, int byte, size_t bytes, void *stream, dpcr_error *error);

    dpcr_status (*stream_create)(int id, void **stream, dpcr_error *error);
    void (*stream_destroy)(int id, void *stream);
    // The one function that waits; tells of everything that failed in the stream before.
    dpcr_status (*stream_wait)(int id, void *stream, dpcr_error *error);

    dpcr_status (*event_create)(int id, void **event, dpcr_error *error);
    void (*event_destroy)(int id, void *event);
    dpcr_status (*event_record)(int id, void *event, void *stream, dpcr_error *error);
    // Between two events that have happened (their stream was waited for).
    dpcr_status (*event_seconds)(int id, void *from, void *to, double *seconds, dpcr_error *error);

    // DPCR_OK, or what failed last on the device and was not told yet.
    dpcr_status (*last_error)(int id, dpcr_error *error);

    const void *kernels;  // kern/device.h's dpcri_device_kernels; NULL: none
} dpcri_device_table;

// What a module exports under DPCRI_DEVICE_ENTRY.
typedef const dpcri_device_table *dpcri_device_entry(void);
#define DPCRI_DEVICE_ENTRY "dpcr_device_module"

extern const dpcri_device_table dpcri_host_table;

// The table of that type, loaded at the first call and kept; NULL and why.
const dpcri_device_table *dpcri_device_table_of(dpcr_device_type type, dpcr_error *error);

// The table of a device that is there and can be used.
dpcr_status dpcri_device_ready(dpcr_device device, const char *function, const dpcri_device_table **table,
                               dpcr_error *error);

// Opens the module in a file (a name without '/' is looked for as the loader does) and checks it. It stays open.
dpcr_status dpcri_device_open(const char *path, const dpcri_device_table **table, dpcr_error *error);

// "cuda:1".
const char *dpcri_device_text(dpcr_device device, char *buffer, size_t bytes);

#endif
