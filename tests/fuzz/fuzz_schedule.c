// SPDX-License-Identifier: MIT
// Tables of schedules: the first byte chooses notation, semantics and chains. What is read is validated; what is valid
// is simulated, lowered and written, and what was written reads back the same.
#include <string.h>

#include "deeppcr/schedule.h"
#include "fuzz_data.h"

static void round_trip(dpcr_context *context, const dpcr_schedule *s, dpcr_notation notation, dpcr_error *error) {
    char *text;
    size_t bytes;
    dpcr_schedule again;
    fuzz_check(dpcr_schedule_write(context, s, notation, &text, &bytes, error) == DPCR_OK);
    fuzz_check(dpcr_schedule_read(context, text, bytes, notation, s, &again, error) == DPCR_OK);
    fuzz_check(again.ranks <= s->ranks && again.first[again.ranks] == s->first[s->ranks]);
    fuzz_check(!memcmp(again.actions, s->actions, (size_t)s->first[s->ranks] * sizeof *s->actions));
    dpcr_schedule_free(context, &again);
    dpcr_schedule_text_free(context, text);
}

static void use(dpcr_context *context, const dpcr_schedule *s, dpcr_notation notation, dpcr_error *error) {
    dpcr_simulation x;
    dpcr_schedule lowered;
    fuzz_check(dpcr_schedule_simulate(context, s, NULL, &x, error) == DPCR_OK);
    fuzz_check(x.makespan >= x.work && x.work > 0);
    dpcr_simulation_free(context, &x);
    if (dpcr_schedule_lower(context, s, &lowered, error) == DPCR_OK)
        fuzz_check(dpcr_schedule_validate(context, &lowered, 0, error) == DPCR_OK);
    dpcr_schedule_free(context, &lowered);
    round_trip(context, s, notation, error);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
    dpcr_context *context = fuzz_context();
    const int64_t live = fuzz_live;
    const int choice = count ? bytes[0] : 0;
    const dpcr_notation notation = choice & 1 ? DPCR_NOTATION_OLD : DPCR_NOTATION_NEW;
    const dpcr_schedule like = {.chains = choice & 2 ? 2 : 1,
                                .semantics = (dpcr_semantics)(choice >> 2 & 3),
                                .accumulate = 1 + (choice >> 4 & 3)};
    dpcr_error error = {0};
    dpcr_schedule s;
    const dpcr_status status = dpcr_schedule_read(context, (const char *)bytes + (count > 0), count - (count > 0),
                                                  notation, &like, &s, &error);
    if (status != DPCR_OK)
        fuzz_check(status == DPCR_ERROR_FORMAT && error.text[0] && !s.actions);
    else if (dpcr_schedule_validate(context, &s, 0, &error) == DPCR_OK)
        use(context, &s, notation, &error);
    else
        fuzz_check(error.status == DPCR_ERROR_FORMAT);
    dpcr_schedule_free(context, &s);
    fuzz_check(fuzz_live == live);
    return 0;
}
