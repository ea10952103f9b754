// SPDX-License-Identifier: MIT
// Layers one after another for few rows, in one parallel region. The weights are what costs, so every thread has its
// own part of every layer's columns, which then stays in (or streams into) that core's caches from call to call.
//
// Threads do not meet between layers. A part of a layer sums over the parts of the layer before, k ascending as they
// lie (kern/wide.h: the order decides the bits, who computes does not), and waits for each of them only when it comes
// to it: the first part finds its own numbers first, and the others', on their way between cores for some tenths of a
// microsecond, when it has worked through those; later parts lag behind by that way once, not at every layer. So each
// layer has a buffer of its own.
//
// Whoever waits for a part that no thread has taken does that layer of it: a thread that comes late, or never, costs
// time only. Words of both are numbered by the call, so that nothing needs to be cleared, which would be a way too.
//
// Which of the two shapes of kern/wide.h is quicker is the memory's to say: some calls of one, two or three rows take
// them in turn, and the one that is not usual on such processors serves from then on if it was clearly quicker. The
// first calls, which find the caches cold, are the usual one's. Steps by which a plan times the loop (2 + L/256, and
// maybe 2 + L/16 more) are calls like any: the longer ones time both shapes.
#include <stdatomic.h>

#include "sample/dense.h"

enum {
    MOST_PARTS = 16,
    MOST_LAYERS = 18,
    PARALLEL_FLOPS = 300000,  // of all layers
    HELP_PAUSES = 40,         // about 1 us of waiting for a thread to come before doing its work
    RACE_BEGIN = 4,
    RACE_END = 16,  // calls of so many rows; between them a multiple of four
    ALL = 255
};
static const double CLEARLY = 0.95;  // of the usual shape's time

// call << 8 | layers: taken (ALL: those left too, by the thread whose part it is), and done.
typedef struct part {
    _Alignas(128) _Atomic uint64_t taken;
    _Atomic uint64_t done;
} part;

// A layer as a thread sees it: made by each for itself, since reading another core's costs more.
typedef struct stage {
    int64_t panels, together;  // of the layer; of a call
    dpcri_wide_product p;
    const dpcri_dense *layer;
} stage;

// Of so many rows: calls so far, and the least seconds of one without and with streams.
typedef struct race {
    int calls;
    double least[2];
} race;

struct dpcri_stack {
    part parts[MOST_PARTS];
    // of the call: a cache line
    _Alignas(128) uint64_t call;
    int64_t rows, init_row;
    const float *x, *init;
    float *y;
    int active;  // parts
    bool streams;
    // for good
    _Alignas(128) const dpcri_net *net;
    int first, count;
    int64_t widest;
    float *h;                        // [count - 1][DPCRI_FEW_ROWS][widest]
    race races[DPCRI_FEW_ROWS + 1];  // by rows
};

dpcr_status dpcri_stack_create(const dpcri_net *net, int first, int count, dpcri_stack **stack, dpcr_error *error) {
    *stack = NULL;
    dpcri_stack *s = count <= MOST_LAYERS ? dpcri_alloc_zero(net->context, sizeof *s) : NULL;
    if (!s) return dpcri_fail(error, DPCR_ERROR_MEMORY, "network: no memory for %d layers of few rows", count);
    *s = (dpcri_stack){.net = net, .first = first, .count = count, .widest = 1};
    for (int l = 0; l + 1 < count; l++)
        if (net->layers[first + l].out > s->widest) s->widest = net->layers[first + l].out;
    const int64_t numbers = (count > 1 ? count - 1 : 1) * DPCRI_FEW_ROWS * s->widest;
    s->h = dpcri_alloc_zero(net->context, (size_t)numbers * sizeof *s->h);
    if (!s->h) {
        dpcri_free(net->context, s);
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "network: no memory for %lld numbers", (long long)numbers);
    }
    *stack = s;
    return DPCR_OK;
}

void dpcri_stack_destroy(dpcri_stack *s) {
    if (!s) return;
    dpcri_free(s->net->context, s->h);
    dpcri_free(s->net->context, s);
}

// ---- who does what ----

static uint64_t word_of(const dpcri_stack *s, int layers) { return s->call << 8 | (uint64_t)layers; }

// Of a word: an older call's counts for nothing.
static int layers_of(const dpcri_stack *s, uint64_t word) { return word >> 8 == s->call ? (int)(word & ALL) : 0; }

static bool has_done(const dpcri_stack *s, int p, int layers) {
    return layers_of(s, atomic_load_explicit(&s->parts[p].done, memory_order_acquire)) >= layers;
}

// What is left of a part, for the thread whose it is: from this layer on.
static int take_rest(dpcri_stack *s, int p) {
    uint64_t word = atomic_load_explicit(&s->parts[p].taken, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&s->parts[p].taken, &word, word_of(s, ALL), memory_order_relaxed,
                                                  memory_order_relaxed)) {
    }
    return layers_of(s, word);
}

// The first of these layers of a part that nobody has taken; -1: all are. A part without columns in the layers before
// does not wait for others there, so theirs may lie several layers back.
static int take_layer(dpcri_stack *s, int p, int layers) {
    uint64_t word = atomic_load_explicit(&s->parts[p].taken, memory_order_relaxed);
    const int layer = layers_of(s, word);
    const bool taken =
        layer < layers && atomic_compare_exchange_strong_explicit(&s->parts[p].taken, &word, word_of(s, layer + 1),
                                                                  memory_order_relaxed, memory_order_relaxed);
    return taken ? layer : -1;
}

static void run_stage(dpcri_stack *s, int p, int layer);

// Until part p has done `layers` layers.
static void await_part(dpcri_stack *s, int p, int layers) {
    for (int i = 0; !has_done(s, p, layers); i++) {
        const int layer = i >= HELP_PAUSES ? take_layer(s, p, layers) : -1;
        if (layer >= 0)
            run_stage(s, p, layer);
        else
            dpcri_wait(i);
    }
}

// ---- the work ----

static stage stage_of(const dpcri_stack *s, int layer) {
    const dpcri_dense *d = &s->net->layers[s->first + layer];
    const int64_t place = DPCRI_FEW_ROWS * s->widest;
    const bool last = layer + 1 == s->count;
    return (stage){.layer = d,
                   .panels = dpcri_wide_panels(s->net->wide, d->out),
                   .together = dpcri_wide_together(s->net->wide, s->streams, s->rows),
                   .p = {.rows = s->rows,
                         .depth = d->in,
                         .columns = d->out,
                         .a = layer ? s->h + (layer - 1) * place : s->x,
                         .a_row = d->in,
                         .packed = d->packed,
                         .init = last ? dpcri_dense_bias(s->net, s->first + layer) : s->init + layer * d->out,
                         .init_row = last ? 0 : s->init_row,
                         .c = last ? s->y : s->h + layer * place,
                         .c_row = d->out,
                         .streams = s->streams}};
}

static int64_t first_panel(const dpcri_stack *s, const stage *g, int p) { return g->panels * p / s->active; }

static int64_t first_column(const dpcri_stack *s, const stage *g, int p) {
    const int64_t column = first_panel(s, g, p) * s->net->wide->panel;
    return column < g->p.columns ? column : g->p.columns;
}

static void finish_columns(const dpcri_stack *s, const stage *g, const dpcri_wide_product *u, int64_t column) {
    const bool residual = g->layer->residual;
    if (g->layer->activation == DPCRI_ACT_IDENTITY && !residual) return;
    for (int64_t i = 0; i < u->rows; i++) {
        float *y = (float *)u->c + i * u->c_row;
        const float *x = (const float *)u->a + i * u->a_row + column;  // with a residual: as wide as the layer
        s->net->nn->activate(g->layer->activation, u->columns, y, y, NULL);
        for (int64_t q = 0; residual && q < u->columns; q++) y[q] = x[q] + y[q];
    }
}

static void run_terms(const dpcri_stack *s, const stage *g, int p, int64_t from, int64_t to) {
    const int64_t wide = g->together * s->net->wide->panel, end = first_column(s, g, p + 1);
    for (int64_t column = first_column(s, g, p), left; (left = end - column) > 0; column += wide) {
        dpcri_wide_product u = g->p;
        u.columns = left < wide ? left : wide;
        u.packed = (const float *)u.packed + column * u.depth;
        u.init = (const float *)u.init + column;
        u.c = (float *)u.c + column;
        u.from = from, u.to = to;
        s->net->wide->product(&u);
        if (to == u.depth) finish_columns(s, g, &u, column);
    }
}

// What other cores have written, on its way all at once.
static void fetch(const stage *g, int64_t from, int64_t to) {
    for (int64_t i = 0; i < g->p.rows; i++)
        for (int64_t k = from; k < to; k += 16) __builtin_prefetch((const float *)g->p.a + i * g->p.a_row + k);
}

static void run_stage(dpcri_stack *s, int p, int layer) {
    const stage here = stage_of(s, layer), there = stage_of(s, layer > 0 ? layer - 1 : 0);
    const stage *g = &here, *before = &there;
    const int64_t depth = g->p.depth;
    const bool any = first_panel(s, g, p) < first_panel(s, g, p + 1);
    int q = 0;
    if (!any && layer > 0) await_part(s, p, layer);  // somebody may be at it
    for (int64_t from = 0, to = 0; any && from < depth; from = to) {
        if (layer == 0) {
            to = depth;
        } else {
            await_part(s, q, layer);
            do to = first_column(s, before, ++q);
            while (q < s->active && has_done(s, q, layer));
            if (to > from) fetch(g, from, to);
        }
        if (to > from) run_terms(s, g, p, from, to);
    }
    atomic_store_explicit(&s->parts[p].done, word_of(s, layer + 1), memory_order_release);
}

static void run_part(void *argument, int64_t p) {
    dpcri_stack *s = argument;
    for (int l = take_rest(s, (int)p); l < s->count; l++) run_stage(s, (int)p, l);
}

static double flops_of(const dpcri_stack *s, int64_t rows) {
    double flops = 0;
    for (int l = s->first; l < s->first + s->count; l++)
        flops += 2 * (double)rows * (double)s->net->layers[l].in * (double)s->net->layers[l].out;
    return flops;
}

// In turn as A B B A: a step that calls twice, as guidance does, finds the weights cold and then warm, and either shape
// is to be first as often as second.
static bool takes_streams(const race *r, bool usual) {
    if (r->calls < RACE_END) return usual != (r->calls >= RACE_BEGIN && (r->calls + 1) / 2 % 2);
    return usual != (r->least[!usual] < CLEARLY * r->least[usual]);
}

static void note(race *r, bool streams, double seconds) {
    double *least = &r->least[streams];
    if (r->calls >= RACE_BEGIN && (*least == 0 || seconds < *least)) *least = seconds;
    r->calls++;
}

void dpcri_stack_run(dpcri_stack *s, int64_t rows, const float *x, const float *init, int64_t init_row, float *y) {
    const int threads = dpcr_context_threads(s->net->context), most = threads < MOST_PARTS ? threads : MOST_PARTS;
    s->call++;
    s->rows = rows, s->init_row = init_row;
    s->x = x, s->init = init, s->y = y;
    s->active = flops_of(s, rows) >= PARALLEL_FLOPS ? most : 1;
    race *r = &s->races[rows];
    const bool differ = dpcri_wide_together(s->net->wide, true, rows) > 1, timed = differ && r->calls < RACE_END;
    s->streams = takes_streams(r, s->net->wide->streams);
    const double began = timed ? dpcri_seconds() : 0;
    dpcri_parallel(s->net->context, s->active, run_part, s);
    if (timed) note(r, s->streams, dpcri_seconds() - began);
}
