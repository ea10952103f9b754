// SPDX-License-Identifier: MIT
#include "fuzz_data.h"

static dpcr_status read_all(dpcr_context *context, const dpcri_source *source, dpcr_tensors *tensors,
                            dpcr_error *error) {
    return dpcri_npy_read_source(context, source, NULL, tensors, error);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
    fuzz_tensors(read_all, bytes, count);
    return 0;
}
