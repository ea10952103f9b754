// SPDX-License-Identifier: MIT
// The public calls over the tables of devices.
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "rt/dev/device.h"

const char *dpcr_device_type_name(dpcr_device_type type) {
    return type == DPCR_HOST ? "cpu" : type == DPCR_CUDA ? "cuda" : "unknown";
}

dpcr_status dpcr_device_find(const char *name, dpcr_device *device, dpcr_error *error) {
    if (!name || !device)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "device_find: wanted a name and a place for the device");
    int id = 0;
    const char *digits = !strncmp(name, "cuda:", 5) ? name + 5 : NULL;
    for (const char *c = digits; c && *c; c++)
        id = *c >= '0' && *c <= '9' && id >= 0 && id < 10000 ? 10 * id + (*c - '0') : -1;
    const bool good = digits ? digits[0] && id >= 0 : !strcmp(name, "cpu") || !strcmp(name, "cuda");
    if (!good) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "device_find: '%.60s', wanted cpu, cuda or cuda:N", name);
    *device = (dpcr_device){.type = !strcmp(name, "cpu") ? DPCR_HOST : DPCR_CUDA, .id = id};
    return DPCR_OK;
}

dpcr_status dpcr_device_count(dpcr_device_type type, int *count, dpcr_error *error) {
    if (!count) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "device_count: count is NULL");
    *count = 0;
    dpcr_error own = {0};
    const dpcri_device_table *table = dpcri_device_table_of(type, &own);
    const dpcr_status status = table ? table->count(count, &own) : own.status;
    if (status != DPCR_OK) {
        *count = 0;
        if (error) *error = own;
    }
    return status;
}

static void make_printable(char *text, size_t bytes) {
    text[bytes - 1] = 0;
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e) *c = '?';
}

dpcr_status dpcr_device_describe(dpcr_device device, dpcr_device_info *info, dpcr_error *error) {
    if (!info || info->size < offsetof(dpcr_device_info, name) + sizeof info->name)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "device_describe: wanted an info with its size");
    const dpcri_device_table *table = NULL;
    dpcr_device_info all = {.size = sizeof all};
    dpcr_status status = DPCR_OK;
    DPCR_TRY(dpcri_device_ready(device, "device_describe", &table, error));
    DPCR_TRY(table->describe(device.id, &all, error));
    make_printable(all.name, sizeof all.name);
    dpcri_copy_out(info, &all, sizeof all);
done:
    return status;
}

dpcr_status dpcr_device_allocate(dpcr_device device, size_t bytes, void **memory, dpcr_error *error) {
    if (!memory) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "device_allocate: memory is NULL");
    *memory = NULL;
    const dpcri_device_table *table = NULL;
    const dpcr_status status = dpcri_device_ready(device, "device_allocate", &table, error);
    return status != DPCR_OK || bytes == 0 ? status : table->allocate(device.id, bytes, memory, error);
}

// What is there goes, whatever the backend says of its devices by then.
void dpcr_device_release(dpcr_device device, void *memory) {
    const dpcri_device_table *const table = memory ? dpcri_device_table_of(device.type, NULL) : NULL;
    if (table) table->release(device.id, memory);
}

dpcr_status dpcr_device_copy(dpcr_device to_device, void *to, dpcr_device from_device, const void *from, size_t bytes,
                             void *stream, dpcr_error *error) {
    static const char *const function = "device_copy";
    const dpcri_device_table *table = NULL;
    dpcr_status status = DPCR_OK;
    if ((!to || !from) && bytes > 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s is NULL", function, to ? "from" : "to");
    const bool into = to_device.type != DPCR_HOST, out = from_device.type != DPCR_HOST;
    const dpcr_device device = into ? to_device : from_device;
    DPCR_TRY(dpcri_device_ready(device, function, &table, error));
    if (into && out && (to_device.type != from_device.type || to_device.id != from_device.id))
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "%s: between two devices; wanted one device, or the host on one side", function);
    if (bytes > 0)
        status = table->copy(device.id, to, from, bytes,
                             !out    ? DPCRI_TO_DEVICE
                             : !into ? DPCRI_TO_HOST
                                     : DPCRI_ON_DEVICE,
                             stream, error);
done:
    return status;
}

dpcr_status dpcr_stream_create(dpcr_device device, void **stream, dpcr_error *error) {
    if (!stream) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "stream_create: stream is NULL");
    *stream = NULL;
    const dpcri_device_table *table = NULL;
    const dpcr_status status = dpcri_device_ready(device, "stream_create", &table, error);
    return status != DPCR_OK ? status : table->stream_create(device.id, stream, error);
}

void dpcr_stream_destroy(dpcr_device device, void *stream) {
    const dpcri_device_table *const table = stream ? dpcri_device_table_of(device.type, NULL) : NULL;
    if (table) table->stream_destroy(device.id, stream);
}

// Callers give memory back afterwards, so it waits, whatever the backend says of its devices by then.
dpcr_status dpcr_stream_wait(dpcr_device device, void *stream, dpcr_error *error) {
    dpcr_error own = {0};
    const dpcri_device_table *const table = dpcri_device_table_of(device.type, &own);
    if (!table) return dpcri_fail(error, own.status, "stream_wait: %.440s", own.text);
    return table->stream_wait(device.id, stream, error);
}

// ---- rates ----

typedef struct bench {
    const dpcri_device_table *table;
    int id;
    void *events[2], *memory;
    void *host;
    size_t bytes;
} bench;

// Seconds of `times` copies, or fills of four bytes (direction < 0), by the device's own clock.
static dpcr_status time_copies(const bench *b, int direction, int times, double *seconds, dpcr_error *error) {
    const dpcri_device_table *t = b->table;
    dpcr_status status = DPCR_OK;
    char *const half = (char *)b->memory + b->bytes;
    DPCR_TRY(t->event_record(b->id, b->events[0], NULL, error));
    for (int i = 0; i < times; i++) {
        if (direction < 0)
            DPCR_TRY(t->fill(b->id, b->memory, 0, 4, NULL, error));
        else
            DPCR_TRY(t->copy(b->id, direction == DPCRI_TO_HOST ? b->host : b->memory,
                             direction == DPCRI_TO_DEVICE ? b->host : (void *)half, b->bytes,
                             (dpcri_direction)direction, NULL, error));
    }
    DPCR_TRY(t->event_record(b->id, b->events[1], NULL, error));
    DPCR_TRY(t->stream_wait(b->id, NULL, error));
    DPCR_TRY(t->event_seconds(b->id, b->events[0], b->events[1], seconds, error));
done:
    return status;
}

static dpcr_status least_of(const bench *b, int direction, int times, double *seconds, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    for (int i = 0; i < 4; i++) {  // the first warms up
        double one = 0;
        DPCR_TRY(time_copies(b, direction, times, &one, error));
        one /= times;
        if (i == 1 || (i > 1 && one < *seconds)) *seconds = one;
    }
done:
    return status;
}

static double rate(double bytes, double seconds) { return seconds > 0 ? bytes / seconds : 0; }

dpcr_status dpcr_device_measure(dpcr_device device, dpcr_device_rates *rates, dpcr_error *error) {
    if (!rates || rates->size < sizeof rates->size)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "device_measure: wanted rates with their size");
    bench b = {.id = device.id};
    dpcr_device_info info = {.size = sizeof info};
    dpcr_status status = DPCR_OK;
    double on = 0, into = 0, out = 0, launch = 0;
    if (device.type == DPCR_HOST)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "device_measure: cpu; its rates are context_machine's");
    DPCR_TRY(dpcri_device_ready(device, "device_measure", &b.table, error));
    DPCR_TRY(b.table->describe(b.id, &info, error));
    b.bytes = (size_t)32 << 20;
    while (b.bytes > 4096 && b.bytes > info.free_bytes / 8) b.bytes /= 2;
    b.host = calloc(1, b.bytes);
    if (!b.host) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "device_measure: %zu bytes were refused", b.bytes));
    DPCR_TRY(b.table->allocate(b.id, 2 * b.bytes, &b.memory, error));
    for (int i = 0; i < 2; i++) DPCR_TRY(b.table->event_create(b.id, &b.events[i], error));
    DPCR_TRY(b.table->fill(b.id, b.memory, 0, 2 * b.bytes, NULL, error));
    DPCR_TRY(least_of(&b, DPCRI_ON_DEVICE, 4, &on, error));
    DPCR_TRY(least_of(&b, DPCRI_TO_DEVICE, 1, &into, error));
    DPCR_TRY(least_of(&b, DPCRI_TO_HOST, 1, &out, error));
    DPCR_TRY(least_of(&b, -1, 64, &launch, error));
    const dpcr_device_rates all = {.copy = rate(2 * (double)b.bytes, on),
                                   .to_device = rate((double)b.bytes, into),
                                   .to_host = rate((double)b.bytes, out),
                                   .launch = launch};
    dpcri_copy_out(rates, &all, sizeof all);
done:
    if (status != DPCR_OK && b.memory) b.table->stream_wait(b.id, NULL, NULL);  // what was put into it before it failed
    for (int i = 0; i < 2; i++)
        if (b.events[i]) b.table->event_destroy(b.id, b.events[i]);
    if (b.memory) b.table->release(b.id, b.memory);
    free(b.host);
    return status;
}
