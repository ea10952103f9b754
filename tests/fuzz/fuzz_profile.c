// SPDX-License-Identifier: MIT
// Profiles: JSON and graph.txt; what is read is partitioned on three ranks.
#include "deeppcr/profile.h"
#include "fuzz_data.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
    dpcr_context *context = fuzz_context();
    const int64_t live = fuzz_live;
    dpcr_error error = {0};
    dpcr_profile p;
    const dpcr_status status = dpcr_profile_read(context, (const char *)bytes, count, &p, &error);
    if (status == DPCR_OK) {
        const dpcr_partition_options o = {.size = sizeof o, .ranks = 3, .bandwidth = 1, .transfers = 1};
        dpcr_partition q;
        for (int64_t l = 0; l < p.layers; l++) fuzz_check(p.names[l] && p.forward[l] >= 0 && p.input[l] >= 0);
        if (dpcr_partition_pipedream(context, &p, &o, &q, &error) == DPCR_OK)
            fuzz_check(q.first[0] == 0 && q.first[q.stages] == p.layers);
        dpcr_partition_free(context, &q);
    } else {
        fuzz_check(status == DPCR_ERROR_FORMAT && error.text[0] && !p.names);
    }
    dpcr_profile_free(context, &p);
    fuzz_check(fuzz_live == live);
    return 0;
}
