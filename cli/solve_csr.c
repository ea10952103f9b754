// SPDX-License-Identifier: MIT
// solve linear: the pattern of sparse transitions from SciPy's arrays, indptr and indices.
#include <math.h>
#include <stdlib.h>

#include "solve.h"

// Number i of an array of either type; whole ones are float64 once they are read.
static double number_at(const dpcr_array *array, int64_t i) {
    return array->dtype == DPCR_F64   ? ((const double *)array->data)[i]
           : array->dtype == DPCR_F32 ? (double)((const float *)array->data)[i]
                                      : (double)((const uint32_t *)array->data)[i];
}

static int check_line(const char *name, const dpcr_array *array, int64_t wanted) {
    if (array->ndim != 1) return cli_fail(CLI_INPUT, "%s has %d dimensions: wanted 1", name, (int)array->ndim);
    if (wanted >= 0 && array->shape[0] != wanted)
        return cli_fail(CLI_INPUT, "%s has %lld numbers: wanted %lld, one more than b is wide", name,
                        (long long)array->shape[0], (long long)wanted);
    for (int64_t i = 0; i < array->shape[0]; i++) {
        const double value = number_at(array, i);
        if (!(value >= 0) || value > INT32_MAX || value != floor(value))
            return cli_fail(CLI_INPUT, "%s: number %lld is %.12g: wanted whole ones of 0 to 2^31 - 1", name,
                            (long long)i, value);
    }
    return CLI_DONE;
}

// The pattern, its offsets and its columns are one piece of memory.
int cli_pattern_create(const dpcr_array *indptr, const dpcr_array *indices, int64_t w, dpcr_pattern **pattern) {
    dpcr_error error = {0};
    int status = w < 1 ? CLI_DONE : check_line("indptr", indptr, w + 1);
    if (!status) status = check_line("indices", indices, -1);
    if (status || w < 1) return status;  // b is told of first
    const int64_t entries = indices->shape[0];
    const double told = number_at(indptr, w);
    if (told != (double)entries)
        return cli_fail(CLI_INPUT, "indices has %lld numbers, but indptr ends at %.0f: wanted the same",
                        (long long)entries, told);
    const size_t offsets = (size_t)(w + 1) * sizeof(int64_t), columns = (size_t)entries * sizeof(int32_t);
    dpcr_pattern *p = malloc(sizeof *p + offsets + columns);
    if (!p) return cli_fail_memory("the pattern");
    int64_t *const starts = (int64_t *)(p + 1);
    int32_t *const at = (int32_t *)(starts + w + 1);
    for (int64_t i = 0; i <= w; i++) starts[i] = (int64_t)number_at(indptr, i);
    for (int64_t e = 0; e < entries; e++) at[e] = (int32_t)number_at(indices, e);
    *p = (dpcr_pattern){.rows = w, .cols = w, .offsets = starts, .columns = entries > 0 ? at : NULL};
    *pattern = p;
    if (dpcr_pattern_check(p, &error) == DPCR_OK) return CLI_DONE;
    return cli_fail(CLI_INPUT, "indptr and indices: %.300s", error.text);
}

void cli_pattern_destroy(dpcr_pattern *pattern) { free(pattern); }
