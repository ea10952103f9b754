// SPDX-License-Identifier: MIT
// The sum of all that a file of ours holds: names, strings and numbers, in any order and whatever order a machine's
// bytes have.
#include <stdio.h>
#include <string.h>

#include "base/checksum.h"
#include "data/tensors.h"

// FNV-1a by numbers, folded: else bit 63 of one would stay in bit 63, where that of the next takes it away.
static uint64_t number_sum(uint64_t sum, uint64_t number) {
    sum = (sum ^ number) * UINT64_C(0x100000001b3);
    return sum ^ sum >> 32;
}

static uint64_t text_sum(uint64_t sum, const char *text) { return dpcri_checksum(sum, text, strlen(text) + 1); }

static uint64_t array_sum(uint64_t sum, const dpcr_array *a) {
    enum { BLOCK = 512 };
    uint64_t large[BLOCK];
    uint32_t small[BLOCK];
    const bool wide = dpcr_dtype_size(a->dtype) == sizeof *large;
    int64_t count = 1;
    sum = number_sum(sum, (uint64_t)a->dtype);
    for (int32_t d = 0; d < a->ndim; d++) {
        sum = number_sum(sum, (uint64_t)a->shape[d]);
        count *= a->shape[d];
    }
    for (int64_t first = 0; first < count; first += BLOCK) {
        const int64_t some = count - first < BLOCK ? count - first : BLOCK;
        dpcri_array_gather(a, first, some, wide ? (void *)large : (void *)small);
        for (int64_t i = 0; i < some; i++) sum = number_sum(sum, wide ? large[i] : small[i]);
    }
    return sum;
}

// Every bit of a sum on every bit (MurmurHash3's last step), so that sums of sums hide nothing.
static uint64_t mix(uint64_t sum) {
    sum = (sum ^ sum >> 33) * UINT64_C(0xff51afd7ed558ccd);
    sum = (sum ^ sum >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
    return sum ^ sum >> 33;
}

void dpcri_tensors_sum(const dpcr_tensors *t, char text[static DPCRI_SUM_BYTES]) {
    uint64_t all = 0;
    for (int64_t i = 0; i < t->count; i++)
        all += mix(array_sum(text_sum(DPCRI_CHECKSUM, t->items[i].name), &t->items[i].array));
    for (int64_t i = 0; i < t->metadata_count; i++)
        if (strcmp(t->metadata_keys[i], DPCRI_SUM) != 0)
            all += mix(text_sum(text_sum(DPCRI_CHECKSUM, t->metadata_keys[i]), t->metadata_values[i]));
    snprintf(text, DPCRI_SUM_BYTES, "%016llx", (unsigned long long)all);
}

dpcr_status dpcr_tensors_sum_agrees(const dpcr_tensors *tensors, const char *path, dpcr_error *error) {
    char text[DPCRI_SUM_BYTES];
    if (!tensors || !path)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "tensors_sum_agrees: tensors and their path are wanted");
    const char *saved = dpcr_tensors_metadata(tensors, DPCRI_SUM);
    if (!saved) return DPCR_OK;
    dpcr_tensors loaded = *tensors;
    loaded.other_count = 0;  // of which no sum was made
    const dpcr_status status = dpcri_tensors_check_writable(&loaded, error);
    if (status != DPCR_OK) return status;
    dpcri_tensors_sum(tensors, text);
    if (strcmp(saved, text) == 0) return DPCR_OK;
    const bool printable = strlen(saved) == 16 && strspn(saved, "0123456789abcdef") == 16;
    return dpcri_fail(error, DPCR_ERROR_FORMAT,
                      "%s: damaged: its numbers or names are not those that were saved ('" DPCRI_SUM
                      "' is %s, theirs "
                      "%s)",
                      path, printable ? saved : "no 16 hexadecimal digits", text);
}
