// SPDX-License-Identifier: MIT
// The first byte: classes; the next two, little-endian: the length of the images' file, which follows; then the
// labels'.
#include "fuzz_data.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
    if (count < 3) return 0;
    const int64_t classes = bytes[0];
    const size_t wanted = (size_t)bytes[1] | (size_t)bytes[2] << 8, rest = count - 3;
    const size_t image_bytes = wanted < rest ? wanted : rest;
    const dpcri_source images = dpcri_source_memory("images", bytes + 3, image_bytes);
    const dpcri_source labels = dpcri_source_memory("labels", bytes + 3 + image_bytes, rest - image_bytes);
    dpcr_context *context = fuzz_context();
    const int64_t live = fuzz_live;
    dpcr_error error = {0};
    dpcr_dataset d;
    const dpcr_status status = dpcri_idx_read_sources(context, &images, &labels, classes, &d, &error);
    if (status == DPCR_OK) {
        fuzz_touch(d.images, d.count * d.rows * d.cols);
        for (int64_t i = 0; i < d.count; i++) fuzz_check(d.labels[i] < d.classes);
    } else {
        fuzz_check(error.status == status && error.text[0] &&
                   (status == DPCR_ERROR_FORMAT || status == DPCR_ERROR_MEMORY));
    }
    dpcr_dataset_free(context, &d);
    fuzz_check(fuzz_live == live);
    return 0;
}
