// SPDX-License-Identifier: MIT
// What the tests of schedules share: the golden tables, making and timing a schedule.
#ifndef SCHEDULES_H
#define SCHEDULES_H

#include "data_testing.h"
#include "deeppcr/schedule.h"

#define GOLDEN FIXTURES "/../golden/schedules/"

static inline char *golden_text(const char *name, size_t *bytes) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s%s.csv", GOLDEN, name);
    char *text = (char *)load_file(path, bytes);
    text[*bytes] = 0;
    return text;
}

static inline void assert_ok(const scratch *s, dpcr_status status) {
    if (status != DPCR_OK) fail_msg("%s", s->error.text);
}

static inline dpcr_schedule_options options_of(dpcr_schedule_kind kind, int64_t p, int64_t v, int64_t m) {
    return (dpcr_schedule_options){
        .size = sizeof(dpcr_schedule_options), .kind = kind, .ranks = p, .chunks = v, .microbatches = m};
}

static inline dpcr_schedule make(scratch *s, dpcr_schedule_kind kind, int64_t p, int64_t v, int64_t m) {
    const dpcr_schedule_options options = options_of(kind, p, v, m);
    dpcr_schedule schedule;
    assert_ok(s, dpcr_schedule_make(s->context, &options, &schedule, &s->error));
    return schedule;
}

static inline dpcr_schedule_costs costs_of(double f, double i, double w, double hop) {
    return (dpcr_schedule_costs){
        .size = sizeof(dpcr_schedule_costs), .forward = f, .input = i, .weight = w, .hop = hop};
}

static inline dpcr_simulation simulate(scratch *s, const dpcr_schedule *schedule, const dpcr_schedule_costs *costs) {
    dpcr_simulation x;
    assert_ok(s, dpcr_schedule_simulate(s->context, schedule, costs, &x, &s->error));
    return x;
}

// splitmix64
static inline uint64_t draw(uint64_t *state, uint64_t below) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % below;
}

#endif
