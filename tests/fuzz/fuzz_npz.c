// SPDX-License-Identifier: MIT
#include "fuzz_data.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
    fuzz_tensors(dpcri_npz_read_source, bytes, count);
    return 0;
}
