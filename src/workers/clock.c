// SPDX-License-Identifier: MIT
// The clock of workers.h. First ticks rise with t, so a group's updates come in the order of minibatches, and what a
// tick sees is a number of them.
#include "workers/clock.h"

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

typedef struct ticks {
    int64_t *forward, *back;  // [minibatches] first tick
} ticks;

static void set_ticks(const dpcri_clock *c, ticks k, int64_t forwards, int64_t backwards, int64_t ahead) {
    const int64_t g = c->groups;
    for (int64_t t = 0; t < c->minibatches; t++) {
        int64_t f = t ? k.forward[t - 1] : 0, b = t ? k.back[t - 1] : 0;
        if (t >= forwards) f = larger(f, k.forward[t - forwards] + g);
        if (t >= ahead) f = larger(f, k.back[t - ahead] + 2 * g);
        k.forward[t] = f;
        if (t >= backwards) b = larger(b, k.back[t - backwards] + 2 * g);
        k.back[t] = larger(b, f + g);
    }
}

// The tick at whose beginning update u of group g is there.
static int64_t updated(const dpcri_clock *c, ticks k, int64_t u, int64_t g) {
    return k.back[u] + 2 * (c->groups - 1 - g) + 2;
}

static void set_seen(const dpcri_clock *c, ticks k) {
    for (int64_t g = 0; g < c->groups; g++) {
        int64_t by_forward = 0, by_input = 0;
        for (int64_t t = 0; t < c->minibatches; t++) {
            const int64_t at = t * c->groups + g, f = k.forward[t] + g, i = k.back[t] + 2 * (c->groups - 1 - g);
            while (by_forward < t && updated(c, k, by_forward, g) <= f) by_forward++;
            while (by_input < t && updated(c, k, by_input, g) <= i) by_input++;
            c->forward[at] = (int32_t)by_forward;
            c->input[at] = (int32_t)by_input;
        }
        int64_t readers = 0, ways_back = 0;
        for (int64_t u = 0; u < c->minibatches; u++) {
            while (readers < c->minibatches && c->forward[readers * c->groups + g] <= u) readers++;
            while (ways_back < c->minibatches && c->input[ways_back * c->groups + g] <= u) ways_back++;
            c->forwards_before[u * c->groups + g] = (int32_t)readers;
            c->backs_before[u * c->groups + g] = (int32_t)ways_back;
        }
    }
}

dpcr_status dpcri_clock_create(dpcri_clock *c, dpcr_context *context, int64_t minibatches, int64_t groups,
                               int64_t forwards, int64_t backwards, int64_t ahead, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    ticks k = {0};
    *c = (dpcri_clock){.context = context, .minibatches = minibatches, .groups = groups};
    int32_t **const tables[] = {&c->forward, &c->input, &c->forwards_before, &c->backs_before};
    const size_t cells = (size_t)minibatches * (size_t)groups;
    for (int i = 0; i < 4; i++) *tables[i] = dpcri_alloc(context, cells * sizeof **tables[i]);
    k.forward = dpcri_alloc(context, (size_t)minibatches * sizeof *k.forward);
    k.back = dpcri_alloc(context, (size_t)minibatches * sizeof *k.back);
    if (!c->forward || !c->input || !c->forwards_before || !c->backs_before || !k.forward || !k.back)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for the clock of %lld updates",
                            (long long)minibatches));
    set_ticks(c, k, forwards, backwards, ahead);
    set_seen(c, k);
done:
    dpcri_free(context, k.forward);
    dpcri_free(context, k.back);
    return status;
}

void dpcri_clock_destroy(dpcri_clock *c) {
    if (!c->context) return;
    dpcri_free(c->context, c->forward);
    dpcri_free(c->context, c->input);
    dpcri_free(c->context, c->forwards_before);
    dpcri_free(c->context, c->backs_before);
    *c = (dpcri_clock){0};
}
