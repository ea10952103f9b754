// SPDX-License-Identifier: MIT
#include "train/device_memory.h"

#include "base/base.h"

dpcr_status dpcri_pieces_take(dpcri_pieces *p, const char *what, int64_t a, int64_t b, int64_t c, size_t element,
                              const void *from, void **place, dpcr_error *error) {
    dpcr_status status;
    bool overflow = false;
    int64_t values = 0;
    if (!dpcri_mul(a, b, &values)) overflow = true;
    const size_t bytes = overflow ? 0 : dpcri_bytes(values, c, (int64_t)element, &overflow);
    if (overflow || p->count == DPCRI_PIECES)
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "%s: the size of %s does not fit", p->call, what);
    DPCR_TRY(dpcr_device_allocate(p->device, bytes, place, error));
    p->owned[p->count++] = *place;
    if (bytes > 0 && from)
        DPCR_TRY(p->table->copy(p->device.id, *place, from, bytes, DPCRI_TO_DEVICE, p->stream, error));
done:
    return status;
}

void dpcri_pieces_release(dpcri_pieces *p) {
    for (int i = 0; i < p->count; i++) dpcr_device_release(p->device, p->owned[i]);
    p->count = 0;
}
