// SPDX-License-Identifier: MIT
// The first byte: 0 reads all recurrent nodes, else the one named "one".
#include "fuzz_data.h"

static const char *node;

// A model that cannot be said in our tensors is refused like a damaged one.
static dpcr_status read_model(dpcr_context *context, const dpcri_source *source, dpcr_tensors *tensors,
                              dpcr_error *error) {
    const dpcr_status status =
        dpcri_onnx_read_bytes(context, NULL, source, source->memory, (size_t)source->size, node, tensors, error);
    if (status != DPCR_ERROR_UNSUPPORTED) return status;
    fuzz_check(error->status == status);
    return error->status = DPCR_ERROR_FORMAT;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
    if (count == 0) return 0;
    node = bytes[0] ? "one" : NULL;
    fuzz_tensors(read_model, bytes + 1, count - 1);
    return 0;
}
