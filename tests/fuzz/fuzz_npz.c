// SPDX-License-Identifier: MIT
#include "fuzz_data.h"

static dpcr_status read_all(dpcr_context *context, const dpcri_source *source, dpcr_tensors *tensors,
                            dpcr_error *error) {
    return dpcri_npz_read_source(context, source, NULL, tensors, error);
}

// One member of an archive that has an a and a b.
static dpcr_status read_some(dpcr_context *context, const dpcri_source *source, dpcr_tensors *tensors,
                             dpcr_error *error) {
    static const char *const names[] = {"a", "other"};
    const dpcri_names wanted = {names, 2};
    return dpcri_npz_read_source(context, source, &wanted, tensors, error);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
    fuzz_tensors(read_all, bytes, count);
    fuzz_tensors(read_some, bytes, count);
    return 0;
}
