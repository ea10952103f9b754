// SPDX-License-Identifier: MIT
// What the files of the suite for a device share: the device, arrays on it and on the host.
#ifndef TESTS_DEVICE_ON_DEVICE_H
#define TESTS_DEVICE_ON_DEVICE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <stdbool.h>

#include "deeppcr/deeppcr.h"

extern dpcr_device there;
extern const dpcr_device here;
extern dpcr_context *context;

void ok(dpcr_status status, const dpcr_error *error);
// Of the suites over forms and lengths: is this one left out, for the share that was asked for?
bool left_out(void);

void *to_device(const void *host, size_t bytes);
void from_device(void *host, const void *device, size_t bytes);

// An array of random numbers, its place on the device, and another on the host for what comes back.
typedef struct moved {
    dpcr_array host, device;
    size_t bytes;
    void *got;
} moved;

moved make_moved(dpcr_dtype dtype, int ndim, const int64_t *shape, uint64_t seed, double scale);
void free_moved(moved *m);
// What lies on the device against what lies here.
void assert_near(moved *m, double allowed, const char *what);

void networks_as_on_the_host(void **state);
void newtons_way_back_is_a_scan_or_chunks(void **state);
void layers_as_on_the_host(void **state);
void units_that_blocks_share(void **state);
void layers_that_are_refused(void **state);
void updates_as_on_the_host(void **state);
void clipping_as_on_the_host(void **state);
void ties_as_on_the_host(void **state);
void training_that_is_refused(void **state);
void training_as_on_the_host(void **state);
void training_goes_on(void **state);
void networks_that_are_refused(void **state);
void steps_that_fail(void **state);
void memory_that_is_refused(void **state);
void checkpoints_of_the_processor(void **state);
void evaluation_is_cancelled(void **state);
void sequences_as_on_the_host(void **state);
void dropout_as_on_the_host(void **state);
void segments_as_on_the_host(void **state);
void wide_batches_of_sequences(void **state);
void sequences_go_on(void **state);
void sequences_of_the_processor(void **state);
void sequences_that_are_refused(void **state);
void steps_of_sequences_that_fail(void **state);
void memory_of_sequences_that_is_refused(void **state);
void copies_of_sequences_that_fail(void **state);
void samples_as_on_the_host(void **state);
void sweeps_as_on_the_host(void **state);
void sweeps_in_blocks(void **state);
void samplers_that_are_refused(void **state);
void reports_of_sweeps_that_fail(void **state);

#endif
