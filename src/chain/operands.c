// SPDX-License-Identifier: MIT
#include "chain/operands.h"

bool dpcri_shares_places(const dpcr_array *a) {
    for (int32_t d = 0; d < a->ndim; d++)
        if (a->shape[d] != 1 && a->strides[d] == 0) return true;
    return false;
}

static bool is_empty(const dpcr_array *a) {
    for (int32_t d = 0; d < a->ndim; d++)
        if (a->shape[d] == 0) return true;
    return false;
}

dpcr_status dpcri_operand_check(const char *call, dpcr_dtype dtype, const char *name, const dpcr_array *a, int32_t ndim,
                                const int64_t *shape, dpcri_role role, dpcr_error *error) {
    char text[96];
    if (!a) return DPCR_OK;
    bool fits = a->device.type == DPCR_HOST && a->dtype == dtype && a->ndim == ndim;
    for (int32_t d = 0; fits && d < ndim; d++) fits = a->shape[d] == shape[d];
    if (!fits) {
        char wanted[96] = "";
        const dpcr_array like = dpcr_array_make(NULL, dtype, ndim, shape);
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s is %s, wanted %s on the host", call, name,
                          dpcri_array_text(a, text, sizeof text), dpcri_array_text(&like, wanted, sizeof wanted));
    }
    if (dpcri_reaches_too_far(a))
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "%s: the strides of %s reach beyond the address space", call,
                          name);
    if (is_empty(a)) return DPCR_OK;
    if (!a->data) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s has no data", call, name);
    if (role == DPCRI_WRITTEN && dpcri_shares_places(a))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s has a stride of 0, and is written", call, name);
    if (role == DPCRI_READ) return DPCR_OK;
    dpcr_array places = *a;  // of what is summed, one of each axis of stride 0
    for (int32_t d = 0; d < ndim; d++)
        if (places.strides[d] == 0) places.shape[d] = 1;
    return dpcri_check_written(call, name, &places, error);
}

static bool is_there(const dpcri_operand *o) { return o->array && o->array->data && !is_empty(o->array); }

dpcr_status dpcri_operands_apart(const char *call, const dpcri_operand *operands, int count, dpcr_error *error) {
    for (int i = 0; i < count; i++)
        for (int k = 0; operands[i].role != DPCRI_READ && is_there(&operands[i]) && k < count; k++)
            if (k != i && is_there(&operands[k]) && operands[i].array->data == operands[k].array->data)
                return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s lies where %s does", call, operands[i].name,
                                  operands[k].name);
    return DPCR_OK;
}

dpcr_status dpcri_kept_check(const char *call, const void *kept, dpcr_error *error) {
    if ((uintptr_t)kept % 64 == 0) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: kept lies %u bytes off, wanted 64-byte alignment", call,
                      (unsigned)((uintptr_t)kept % 64));
}
