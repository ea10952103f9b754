// SPDX-License-Identifier: MIT
// What a wide step of the loop takes on a device: by one block a row, which reads all weights through one
// multiprocessor, or shared by several, which read each its own part and meet once a product
// (kern/cuda/layers_shared.h). docs/design.md.
#include <math.h>
#include <stdio.h>

#include "base/text.h"
#include "kern/device.h"
#include "rt/dev/device.h"
#include "rt/wisdom.h"
#include "solve/solve_internal.h"

// What one multiprocessor reads from the last cache by tiles of a layer, and where a whole layer is one, as an H100
// did: 256 units took 16 us a layer, 64 units 0.85. Where nothing was measured: a barrier of all blocks; what taking
// the others' numbers adds to one; a term of a sum, four cycles.
static const double one_reads = 1.6e10, one_tile_reads = 8e10, usual_barrier = 2e-6, usual_exchange = 1e-6,
                    usual_bandwidth = 3e11, term = 2.5e-9;

double dpcri_device_alone_seconds(const dpcri_device_step *step, double bandwidth) {
    const double alone = step->whole ? one_tile_reads : one_reads;
    const double reads = bandwidth > 0 ? fmin(bandwidth, alone) : alone;
    return fmax(step->bytes / reads, term * (double)step->terms);
}

double dpcri_device_shared_seconds(const dpcri_device_step *step, double barrier, double bandwidth) {
    const double rows = fmax(1, (double)step->rows / 2);  // of more than two, sums wait for the chip's memory
    const double read = step->bytes * (double)step->groups / (bandwidth > 0 ? bandwidth : usual_bandwidth);
    return step->passes * ((barrier > 0 ? barrier : usual_barrier) + usual_exchange) +
           fmax(read, term * rows * (double)step->shared_terms);
}

// Seconds of `count` barriers in one launch; not above 0: not known.
static double time_barriers(const dpcri_device_table *table, const dpcri_device_kernels *kernels, int id, int64_t count,
                            void *stream, void *const *events) {
    double seconds = 0;
    dpcr_status status = table->event_record(id, events[0], stream, NULL);
    if (status == DPCR_OK) status = kernels->barriers(id, count, stream, NULL);
    if (status == DPCR_OK) status = table->event_record(id, events[1], stream, NULL);
    const dpcr_status waited = table->stream_wait(id, stream, NULL);  // for a refused launch's event too
    if (status == DPCR_OK) status = waited;
    if (status == DPCR_OK) status = table->event_seconds(id, events[0], events[1], &seconds, NULL);
    return status == DPCR_OK ? seconds : 0;
}

enum { FEW = 8, MANY = 136, ROUNDS = 3 };

// The launch itself is in both counts; the least of a few rounds.
static double measure_barrier(const dpcri_device_table *table, const dpcri_device_kernels *kernels, int id) {
    void *stream = NULL, *events[2] = {NULL, NULL};
    double best = 0;
    dpcr_status status = table->stream_create(id, &stream, NULL);
    for (int i = 0; i < 2 && status == DPCR_OK; i++) status = table->event_create(id, &events[i], NULL);
    if (status == DPCR_OK)
        (void)time_barriers(table, kernels, id, FEW, stream, events);  // the first one loads the code
    for (int i = 0; i < ROUNDS && status == DPCR_OK; i++) {
        const double few = time_barriers(table, kernels, id, FEW, stream, events);
        const double many = time_barriers(table, kernels, id, MANY, stream, events);
        const double each = (many - few) / (MANY - FEW);
        if (few > 0 && each > 0 && (best == 0 || each < best)) best = each;
    }
    for (int i = 0; i < 2; i++)
        if (events[i]) table->event_destroy(id, events[i]);
    if (stream) table->stream_destroy(id, stream);
    return best;
}

double dpcri_device_barrier(dpcr_context *context, dpcr_device device, const dpcr_device_info *info) {
    char key[DPCRI_WISDOM_KEY], text[DPCRI_WISDOM_VALUE];
    const dpcri_device_table *table = NULL;
    double seconds = 0;
    int end = 0;
    snprintf(key, sizeof key, "device %.100s %d.%d barrier", info->name, info->major, info->minor);
    if (dpcri_wisdom_find(context, key, text) && dpcri_text_scan(text, "%lf%n", &seconds, &end) == 1 &&
        text[end] == 0 && seconds > 0 && seconds < 1)
        return seconds;
    if (dpcri_device_ready(device, "solve_plan_create", &table, NULL) != DPCR_OK) return usual_barrier;
    const dpcri_device_kernels *const kernels = dpcri_device_kernels_in(table->kernels);
    if (!kernels || !kernels->barriers) return usual_barrier;
    seconds = measure_barrier(table, kernels, device.id);
    if (!(seconds > 0)) return usual_barrier;
    dpcri_text_print(text, sizeof text, "%.9g", seconds);
    dpcri_wisdom_set(context, key, text);  // refused memory: measured again the next time
    return seconds;
}
