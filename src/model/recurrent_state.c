// SPDX-License-Identifier: MIT
// Where h and c lie in a chain's state, and what goes between states and the caller's arrays of h and c: h alone; of an
// LSTM h, then c; of a ParaLSTM pairs (c, h), so that the blocks of its Jacobian meet numbers side by side.
#include <string.h>

#include "model/recurrent_internal.h"
#include "rt/rt.h"
#include "rt/watch.h"

enum { STEPS = 64 };  // a task's

static int64_t state_of(const dpcr_recurrent_plan *p) { return dpcri_recurrent_w(p->network); }
// Numbers of h (part 0) or c (1).
static int64_t width_of(const dpcr_recurrent_plan *p, int part) {
    return part ? p->network->options.hidden : dpcri_recurrent_h(p->network);
}

dpcri_recurrent_part_place dpcri_recurrent_place(const dpcr_recurrent_plan *plan, int part) {
    if (plan->network->gates == DPCRI_PARA_LSTM) return (dpcri_recurrent_part_place){1 - part, 2};
    return (dpcri_recurrent_part_place){part * width_of(plan, 0), 1};
}

// to[i to_stride] = from[i from_stride], i < count; from NULL: 0
static void move(const dpcr_recurrent_plan *plan, int64_t count, const char *from, int64_t from_stride, char *to,
                 int64_t to_stride) {
    const int64_t element = (int64_t)plan->network->element;
    if (!from && to_stride == 1) {
        memset(to, 0, (size_t)(count * element));
    } else if (from && from_stride == 1 && to_stride == 1) {
        memcpy(to, from, (size_t)(count * element));
    } else if (from && from_stride == 2 && to_stride == 1) {
        plan->layers[0].apart->every_second(count, from, to);
    } else {
        for (int64_t i = 0; i < count; i++, to += to_stride * element) {
            if (from)
                memcpy(to, from + i * from_stride * element, (size_t)element);
            else
                memset(to, 0, (size_t)element);
        }
    }
}

// ---- initial and last states ----

static char *of_chain(const dpcr_recurrent_plan *plan, const dpcr_array *array, int64_t chain, int part) {
    const int64_t each = plan->options.batch * width_of(plan, part) * (int64_t)plan->network->element;
    return array->data ? (char *)array->data + chain * each : NULL;
}

void dpcri_recurrent_join(const dpcr_recurrent_plan *plan, int64_t chain, const dpcr_array *h, const dpcr_array *c,
                          void *to) {
    const int64_t element = (int64_t)plan->network->element;
    const dpcr_array *const parts[2] = {h, c};
    for (int q = 0; q < dpcri_gates_state[plan->network->gates]; q++) {
        const char *from = of_chain(plan, parts[q], chain, q);
        const int64_t row = width_of(plan, q) * element;
        const dpcri_recurrent_part_place place = dpcri_recurrent_place(plan, q);
        for (int64_t b = 0; b < plan->options.batch; b++)
            move(plan, width_of(plan, q), from ? from + b * row : NULL, 1,
                 (char *)to + (b * state_of(plan) + place.offset) * element, place.stride);
    }
}

static void part_row(const dpcr_recurrent_plan *plan, int64_t chain, int64_t b, const char *from, const dpcr_array *h,
                     const dpcr_array *c) {
    const int64_t element = (int64_t)plan->network->element;
    const dpcr_array *const parts[2] = {h, c};
    for (int q = 0; q < dpcri_gates_state[plan->network->gates]; q++) {
        char *to = of_chain(plan, parts[q], chain, q);
        const int64_t row = width_of(plan, q) * element;
        const dpcri_recurrent_part_place place = dpcri_recurrent_place(plan, q);
        if (to) move(plan, width_of(plan, q), from + place.offset * element, place.stride, to + b * row, 1);
    }
}

void dpcri_recurrent_part(const dpcr_recurrent_plan *plan, int64_t chain, dpcri_grid from, const dpcr_array *h,
                          const dpcr_array *c) {
    for (int64_t b = 0; b < plan->options.batch; b++)
        part_row(plan, chain, b, (const char *)from.data + b * from.row * (int64_t)plan->network->element, h, c);
}

void dpcri_recurrent_part_last(const dpcr_recurrent_plan *plan, int64_t chain, const int64_t *lengths, dpcri_grid z,
                               dpcri_grid first, const dpcr_array *h, const dpcr_array *c) {
    const int64_t element = (int64_t)plan->network->element;
    for (int64_t b = 0; b < plan->options.batch; b++) {
        const int64_t end = lengths ? lengths[b] : plan->options.length;
        const char *last = end > 0 ? (const char *)z.data + ((end - 1) * z.step + b * z.row) * element
                                   : (const char *)first.data + b * first.row * element;
        part_row(plan, chain, b, last, h, c);
    }
}

// ---- h, or what goes in, of all steps ----

typedef struct copying {
    const dpcr_recurrent_plan *plan;
    const int64_t *lengths;
    int64_t width;
    dpcri_grid from, to;
    int64_t from_stride, to_stride;
    bool turn;
} copying;

static void copy_steps(void *argument, int64_t task) {
    const copying *c = argument;
    const dpcr_recurrent_plan *plan = c->plan;
    const int64_t T = plan->options.length, element = (int64_t)plan->network->element;
    const int64_t last = (task + 1) * STEPS < T ? (task + 1) * STEPS : T;
    for (int64_t t = task * STEPS; t < last; t++)
        for (int64_t b = 0; b < plan->options.batch; b++) {
            const int64_t end = c->lengths ? c->lengths[b] : T, at = c->turn ? end - 1 - t : t;
            const char *here = (const char *)c->from.data + (at * c->from.step + b * c->from.row) * element;
            char *there = (char *)c->to.data + (t * c->to.step + b * c->to.row) * element;
            if (here != there || t >= end)
                move(plan, c->width, t < end ? here : NULL, c->from_stride, there, c->to_stride);
        }
}

static void copy_all(copying *c) {
    dpcri_parallel(c->plan->context, (c->plan->options.length + STEPS - 1) / STEPS, copy_steps, c);
}

static dpcri_grid from_number(const dpcr_recurrent_plan *plan, dpcri_grid grid, int64_t number) {
    grid.data = (char *)grid.data + number * (int64_t)plan->network->element;
    return grid;
}

void dpcri_recurrent_copy(const dpcr_recurrent_plan *plan, const int64_t *lengths, int64_t width, dpcri_grid from,
                          dpcri_grid to, bool turn) {
    copy_all(&(copying){plan, lengths, width, from, to, 1, 1, turn});
}

void dpcri_recurrent_copy_hidden(const dpcr_recurrent_plan *plan, const int64_t *lengths, dpcri_grid from,
                                 dpcri_grid to, bool turn) {
    const dpcri_recurrent_part_place h = dpcri_recurrent_place(plan, 0);
    copy_all(&(copying){plan, lengths, width_of(plan, 0), from_number(plan, from, h.offset), to, h.stride, 1, turn});
}

void dpcri_recurrent_spread_hidden(const dpcr_recurrent_plan *plan, const int64_t *lengths, dpcri_grid from,
                                   dpcri_grid to, bool turn) {
    const dpcri_recurrent_part_place h = dpcri_recurrent_place(plan, 0), c = dpcri_recurrent_place(plan, 1);
    copy_all(&(copying){plan, lengths, width_of(plan, 0), from, from_number(plan, to, h.offset), 1, h.stride, turn});
    if (dpcri_gates_state[plan->network->gates] == 1) return;
    for (int64_t i = 0; i < plan->options.length * plan->options.batch; i++)
        move(plan, width_of(plan, 1), NULL, 1,
             (char *)to.data + (i * to.row + c.offset) * (int64_t)plan->network->element, c.stride);
}

// ---- the input's products ahead ----

typedef struct multiplying {
    const dpcri_recurrent *layer;
    int64_t steps;  // a task's
    int64_t begin;  // the first task of a region
} multiplying;

static void multiply_steps(void *argument, int64_t task) {
    const multiplying *m = argument;
    const dpcri_recurrent *c = m->layer;
    const int64_t first = (m->begin + task) * m->steps, left = c->length - first,
                  steps = left < m->steps ? left : m->steps;
    const dpcr_span span = {.first = first, .lanes = 1, .stride = 1, .steps = steps, .row = 0, .rows = c->batch};
    char *to = (char *)c->given.data + first * c->given.step * (int64_t)c->kernels->element;
    dpcri_recurrent_project(c, &span, 0, steps, to);
}

// Region by region of much work, between which the caller may stop.
dpcr_status dpcri_recurrent_multiply(dpcr_recurrent_plan *plan, const dpcri_recurrent_space *space, int64_t chain,
                                     const char *call, dpcr_error *error) {
    dpcri_recurrent *layer = &plan->layers[chain];
    const int64_t gates = dpcri_gates_count[layer->gates.kind] * layer->gates.width, B = plan->options.batch;
    if (!space->products || !layer->ahead || B == 0) return DPCR_OK;
    layer->given = (dpcri_grid){.data = space->products, .step = B * gates, .row = gates};
    multiplying m = {.layer = layer, .steps = B < STEPS ? (STEPS + B - 1) / B : 1};
    const int64_t tasks = (plan->options.length + m.steps - 1) / m.steps;
    const double flops = 2 * (double)m.steps * (double)B * (double)gates * (double)layer->inputs;  // of a task
    dpcri_watch watch, *const watching = dpcri_watch_begin(&watch, plan->context, flops * (double)tasks);
    const int64_t region = watching ? dpcri_watch_steps(flops) * dpcr_context_threads(plan->context) : tasks;
    for (; m.begin < tasks && !dpcri_watch_stopped(watching); m.begin += region)
        dpcri_parallel(plan->context, tasks - m.begin < region ? tasks - m.begin : region, multiply_steps, &m);
    return dpcri_watch_stopped(watching) ? dpcri_fail_stopped(error, call) : DPCR_OK;
}
