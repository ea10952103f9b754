// SPDX-License-Identifier: MIT
// What a scan is given, held against what it wants (selective.c, attention.c).
#ifndef DPCRI_OPERANDS_H
#define DPCRI_OPERANDS_H

#include "base/base.h"

typedef enum dpcri_role {
    DPCRI_READ,
    DPCRI_WRITTEN,
    DPCRI_SUMMED  // written, and a stride of 0 stands for the sum over its axis
} dpcri_role;

typedef struct dpcri_operand {
    const char *name;
    const dpcr_array *array;  // NULL, or without data where it is not there
    dpcri_role role;
} dpcri_operand;

// Whether a stride of 0 makes places one.
bool dpcri_shares_places(const dpcr_array *a);

// DPCR_OK where there is none, or one of that shape and dtype on the host, with data, whose strides the role allows.
dpcr_status dpcri_operand_check(const char *call, dpcr_dtype dtype, const char *name, const dpcr_array *a, int32_t ndim,
                                const int64_t *shape, dpcri_role role, dpcr_error *error);

// Refuses two that begin at the same place, one of them written: what overlaps otherwise is not seen.
dpcr_status dpcri_operands_apart(const char *call, const dpcri_operand *operands, int count, dpcr_error *error);

// Memory of ours that a caller holds between two calls.
dpcr_status dpcri_kept_check(const char *call, const void *kept, dpcr_error *error);

#endif
