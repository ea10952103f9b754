// SPDX-License-Identifier: MIT
// Layers one after another for few rows, in one parallel region. A layer's columns are cut into units (panels of the
// packed weights), a part of them for every thread. A thread takes its own units from the first on, then what is left
// of the others' from the last on, then waits until all of the layer are done: whoever comes late, or not at all, costs
// time only. Every sum has its fixed order (kern/wide.h), so who takes a unit decides no bit.
#include <assert.h>
#include <sched.h>
#include <stdatomic.h>

#include "sample/dense.h"

enum {
    MOST_PARTS = 16,
    MOST_LAYERS = 18,
    PARALLEL_FLOPS = 300000,  // of all layers
    WAIT_PAUSES = 400         // about 4 us of waiting for a unit that another thread has taken before yielding to it
};

typedef struct part {
    _Alignas(64) _Atomic uint64_t range;  // first << 32 | last: units not taken
} part;

typedef struct stage {
    part parts[MOST_PARTS];
    _Alignas(64) _Atomic int64_t done;
    int64_t units, panels;  // of the layer; of a unit
    dpcri_wide_product p;
    const dpcri_dense *layer;
} stage;

typedef struct stack_job {
    const dpcri_net *net;
    int count, parts;
    stage *stages;
} stack_job;

static void run_unit(const dpcri_net *net, const stage *s, int64_t unit) {
    const int64_t panel = net->wide->panel, column = unit * s->panels * panel, left = s->p.columns - column;
    dpcri_wide_product p = s->p;
    p.columns = left < s->panels * panel ? left : s->panels * panel;
    p.packed = (const float *)p.packed + column * p.depth;
    p.init = (const float *)p.init + column;
    p.c = (float *)p.c + column;
    net->wide->product(&p);
    const bool residual = s->layer->residual;
    if (s->layer->activation == DPCRI_ACT_IDENTITY && !residual) return;
    for (int64_t i = 0; i < p.rows; i++) {
        float *y = (float *)p.c + i * p.c_row;
        const float *x = (const float *)p.a + i * p.a_row + column;  // with a residual: as wide as the layer
        net->nn->activate(s->layer->activation, p.columns, y, y, NULL);
        for (int64_t q = 0; residual && q < p.columns; q++) y[q] = x[q] + y[q];
    }
}

static uint64_t range_of(int64_t first, int64_t last) { return (uint64_t)first << 32 | (uint64_t)last; }

// The first or the last unit of a part that is not taken; -1: none is left.
static int64_t take_unit(part *p, bool first) {
    uint64_t range = atomic_load_explicit(&p->range, memory_order_relaxed);
    for (;;) {
        const int64_t from = (int64_t)(range >> 32), to = (int64_t)(range & UINT32_MAX);
        if (from >= to) return -1;
        if (atomic_compare_exchange_weak_explicit(&p->range, &range,
                                                  first ? range_of(from + 1, to) : range_of(from, to - 1),
                                                  memory_order_relaxed, memory_order_relaxed))
            return first ? from : to - 1;
    }
}

static void await_stage(const stage *s) {
    for (int i = 0; atomic_load_explicit(&s->done, memory_order_acquire) < s->units; i++) {
        if (i >= WAIT_PAUSES) {
            sched_yield();
            continue;
        }
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
}

static void run_part(void *argument, int64_t own) {
    const stack_job *j = argument;
    for (int l = 0; l < j->count; l++) {
        stage *s = &j->stages[l];
        int64_t done = 0;
        for (int k = 0; k < j->parts; k++) {
            part *p = &s->parts[(own + k) % j->parts];
            for (int64_t unit; (unit = take_unit(p, k == 0)) >= 0; done++) run_unit(j->net, s, unit);
        }
        if (done) atomic_fetch_add_explicit(&s->done, done, memory_order_release);
        await_stage(s);
    }
}

static double flops_of(const dpcri_net *net, int first, int count, int64_t rows) {
    double flops = 0;
    for (int l = first; l < first + count; l++)
        flops += 2 * (double)rows * (double)net->layers[l].in * (double)net->layers[l].out;
    return flops;
}

static void set_stage(const stack_job *j, stage *s) {
    const int64_t panels = dpcri_wide_panels(j->net->wide, s->p.columns);
    s->panels = s->p.rows == 1 ? 2 : 1;  // one row wants two panels at once (wide.inc)
    s->units = (panels + s->panels - 1) / s->panels;
    atomic_init(&s->done, 0);
    for (int k = 0; k < j->parts; k++)
        atomic_init(&s->parts[k].range, range_of(s->units * k / j->parts, s->units * (k + 1) / j->parts));
}

void dpcri_dense_stack(const dpcri_net *net, int first, int count, int64_t rows, const float *x, const float *init,
                       int64_t init_row, float *const h[2], float *y) {
    stage stages[MOST_LAYERS];
    const int threads = dpcr_context_threads(net->context), most = threads < MOST_PARTS ? threads : MOST_PARTS;
    stack_job job = {.net = net, .count = count, .stages = stages};
    job.parts = flops_of(net, first, count, rows) >= PARALLEL_FLOPS ? most : 1;
    assert(count <= MOST_LAYERS);
    for (int l = 0; l < count; l++) {
        const dpcri_dense *d = &net->layers[first + l];
        float *to = l + 1 < count ? h[l % 2] : y;
        stages[l].layer = d;
        stages[l].p = (dpcri_wide_product){.rows = rows,
                                           .depth = d->in,
                                           .columns = d->out,
                                           .a = x,
                                           .a_row = d->in,
                                           .packed = d->packed,
                                           .init = l + 1 < count ? init : dpcri_dense_bias(net, first + l),
                                           .init_row = l + 1 < count ? init_row : 0,
                                           .c = to,
                                           .c_row = d->out};
        set_stage(&job, &stages[l]);
        init += d->out;
        x = to;
    }
    dpcri_parallel(net->context, job.parts, run_part, &job);
}
