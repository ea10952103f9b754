// SPDX-License-Identifier: MIT
// Pieces of a device's memory that go together: taken one by one, released at once.
#ifndef DPCRI_TRAIN_DEVICE_MEMORY_H
#define DPCRI_TRAIN_DEVICE_MEMORY_H

#include "rt/dev/device.h"

enum { DPCRI_PIECES = 48 };

typedef struct dpcri_pieces {
    const dpcri_device_table *table;
    const char *call;  // a literal, whom errors name
    dpcr_device device;
    void *stream;
    void *owned[DPCRI_PIECES];
    int count;
} dpcri_pieces;

// a b c elements more; `from` of the host, or NULL: anything.
dpcr_status dpcri_pieces_take(dpcri_pieces *pieces, const char *what, int64_t a, int64_t b, int64_t c, size_t element,
                              const void *from, void **place, dpcr_error *error);
// Nothing may still run that uses them.
void dpcri_pieces_release(dpcri_pieces *pieces);

#endif
