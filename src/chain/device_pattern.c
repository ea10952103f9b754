// SPDX-License-Identifier: MIT
// A csr chain's pattern on its device: rows of op(A), so that a transposed chain goes by rows too, with the place of
// each value. Sent once, when the plan is made.
#include <inttypes.h>

#include "chain/plan.h"
#include "rt/dev/device.h"

// Of the pattern: row by row, or, transposed, column by column. offsets [w + 1], columns and places [entries].
static void lay_out(const dpcr_pattern *p, bool transposed, int32_t *offsets, int32_t *columns, int32_t *places) {
    const int64_t w = p->rows, entries = p->offsets[w];
    if (!transposed) {
        for (int64_t i = 0; i <= w; i++) offsets[i] = (int32_t)p->offsets[i];
        for (int64_t e = 0; e < entries; e++) columns[e] = p->columns[e];
        return;
    }
    for (int64_t i = 0; i <= w; i++) offsets[i] = 0;
    for (int64_t e = 0; e < entries; e++) offsets[p->columns[e] + 1]++;
    for (int64_t i = 0; i < w; i++) offsets[i + 1] += offsets[i];
    for (int64_t i = 0; i < w; i++)
        for (int64_t e = p->offsets[i]; e < p->offsets[i + 1]; e++) {
            const int32_t at = offsets[p->columns[e]]++;
            columns[at] = (int32_t)i;
            places[at] = (int32_t)e;
        }
    for (int64_t i = w; i > 0; i--) offsets[i] = offsets[i - 1];
    offsets[0] = 0;
}

dpcr_status dpcri_plan_pattern(dpcr_chain_plan *plan, dpcr_error *error) {
    const dpcr_pattern *p = plan->shape.transition.pattern;
    const bool transposed = plan->shape.transposed != 0;
    const int64_t w = p->rows, entries = plan->values;
    const int id = plan->options.device.id;
    const size_t count = (size_t)(w + 1) + (size_t)entries * (transposed ? 2 : 1), bytes = count * sizeof(int32_t);
    dpcr_status status = DPCR_OK;
    int32_t *const laid = dpcri_alloc(plan->context, bytes);
    if (!laid)
        return dpcri_fail(error, DPCR_ERROR_MEMORY,
                          "chain_plan: %zu bytes for a pattern of %" PRId64 " entries were refused", bytes, entries);
    int32_t *const columns = laid + w + 1;
    lay_out(p, transposed, laid, columns, columns + entries);
    DPCR_TRY(plan->table->allocate(id, bytes, &plan->pattern, error));
    DPCR_TRY(plan->table->copy(id, plan->pattern, laid, bytes, DPCRI_TO_DEVICE, NULL, error));
    DPCR_TRY(plan->table->stream_wait(id, NULL, error));
done:
    dpcri_free(plan->context, laid);
    return status;
}

void dpcri_plan_pattern_release(dpcr_chain_plan *plan) {
    if (plan->pattern) plan->table->release(plan->options.device.id, plan->pattern);
}
