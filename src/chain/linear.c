// SPDX-License-Identifier: MIT
// From a range of a chain to a flow, and what the schemes share.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "chain/flow.h"
#include "kern/chunked.h"
#include "transition/transition_internal.h"

#ifdef DPCRI_MUTANTS
int dpcri_mutant = 0;
#endif

static const dpcri_scheme_row *const schemes[DPCR_SCHEME_COUNT] = {
    [DPCR_SCHEME_SEQUENTIAL] = &dpcri_sequential, [DPCR_SCHEME_PCR] = &dpcri_pcr,
    [DPCR_SCHEME_BLELLOCH] = &dpcri_blelloch,     [DPCR_SCHEME_CHUNKED] = &dpcri_chunked,
    [DPCR_SCHEME_OVERLAP] = &dpcri_overlap,
};

const dpcri_scheme_row *dpcri_scheme_at(dpcr_scheme scheme) {
    return (int)scheme > 0 && scheme < DPCR_SCHEME_COUNT ? schemes[scheme] : NULL;
}

const char *dpcr_scheme_name(dpcr_scheme scheme) {
    if (scheme == DPCR_SCHEME_AUTO) return "auto";
    return dpcri_scheme_at(scheme) ? dpcri_scheme_at(scheme)->name : "unknown";
}

dpcr_status dpcr_scheme_find(const char *name, dpcr_scheme *scheme, dpcr_error *error) {
    if (!name || !scheme)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "scheme_find: %s is NULL", name ? "scheme" : "name");
    for (int i = 0; i < DPCR_SCHEME_COUNT; i++)
        if (strcmp(name, dpcr_scheme_name((dpcr_scheme)i)) == 0) {
            *scheme = (dpcr_scheme)i;
            return DPCR_OK;
        }
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                      "scheme_find: got \"%s\", wanted auto, sequential, pcr, blelloch, chunked or overlap", name);
}

const void *dpcri_at(const dpcri_flow *flow, const void *base, int64_t elements) {
    return base ? (const char *)base + elements * (int64_t)flow->size : NULL;
}

void *dpcri_at_out(const dpcri_flow *flow, void *base, int64_t elements) {
    return base ? (char *)base + elements * (int64_t)flow->size : NULL;
}

dpcri_flow dpcri_flow_of(dpcr_context *context, const dpcri_linear *p) {
    const bool csr = p->transition.structure == DPCR_CSR;
    dpcri_flow f = {
        .context = context,
        .kernels = dpcri_kernels_at(dpcri_isa_level(), p->dtype),
        .form = csr ? DPCR_DENSE : dpcri_kernel_form(&p->transition),
        .csr = csr ? &p->transition : NULL,
        .dtype = p->dtype,
        .transposed = p->transposed != 0,
        .size = dpcr_dtype_size(p->dtype),
        .w = p->transition.rows,
        .block = p->transition.block,
        .values = dpcr_transition_values(&p->transition),
        .n = p->length,
        .rows = p->rows,
        .first = p->first,
        .flops = dpcr_transition_apply_flops(&p->transition),
        .a = p->a,
        .a_step = p->a_step,
        .a_row = p->a_row,
        .b = p->b,
        .b_step = p->b_step,
        .b_row = p->b_row,
        .z0 = p->z0,
        .z0_row = p->z0_row,
        .z = p->z,
        .z_step = p->z_step,
        .z_row = p->z_row,
        .watch = p->watch,
        .lost = p->lost,
    };
    if (f.values == 0) f.a = NULL;
    if (!f.a) f.a_step = f.a_row = 0;
    if (!p->transposed || p->length == 0) return f;
    // m = L-1-l; the map from state l+1 to state l is A_{l+1}^T: A_m lies at L-m, and A_0 is never read.
    f.a = dpcri_at(&f, f.a, p->length * f.a_step);
    f.b = dpcri_at(&f, f.b, (p->length - 1) * f.b_step);
    f.z = dpcri_at_out(&f, f.z, (p->length - 1) * f.z_step);
    f.a_step = -f.a_step;
    f.b_step = -f.b_step;
    f.z_step = -f.z_step;
    f.z0 = NULL;
    return f;
}

int64_t dpcri_flow_a_steps(const dpcri_flow *flow) {
    return flow->values == 0 || (flow->a && flow->a_step == 0) ? 1 : flow->n;
}
int64_t dpcri_flow_a_rows(const dpcri_flow *flow) {
    return flow->values == 0 || (flow->a && flow->a_row == 0) ? 1 : flow->rows;
}

dpcri_span dpcri_flow_span(const dpcri_flow *flow, int64_t n, int64_t rows) {
    return (dpcri_span){.n = n, .rows = rows, .w = flow->w, .cols = flow->w, .block = flow->block};
}

static void call(const dpcri_flow *flow, dpcri_operation operation, const dpcri_span *span) {
    if (dpcri_watch_stopped(flow->watch)) return;
    if (!flow->csr)
        flow->kernels->table[operation][flow->form](span);
    else if (operation == DPCRI_SERIAL || operation == DPCRI_SERIAL_T)
        dpcri_csr_serial(flow->csr, flow->transposed, flow->dtype, span);
    else
        dpcri_csr_apply(flow->csr, flow->transposed, flow->dtype, span);  // nothing composes it
}

static dpcri_span later(const dpcri_flow *flow, const dpcri_span *span, int64_t steps) {
    dpcri_span part = *span;
    part.n -= steps;
    part.a = dpcri_at(flow, span->a, steps * span->a_step);
    part.r = dpcri_at(flow, span->r, steps * span->r_step);
    part.y = dpcri_at_out(flow, span->y, steps * span->y_step);
    return part;
}

void dpcri_flow_apply(const dpcri_flow *flow, const dpcri_span *span) {
    call(flow, flow->transposed ? DPCRI_APPLY_T : DPCRI_APPLY, span);
}

void dpcri_flow_serial(const dpcri_flow *flow, const dpcri_span *span) { dpcri_flow_serial_by(flow, span, span->n); }

void dpcri_flow_serial_by(const dpcri_flow *flow, const dpcri_span *span, int64_t steps) {
    const dpcri_operation serial = flow->transposed ? DPCRI_SERIAL_T : DPCRI_SERIAL;
    const int64_t watched = flow->watch ? dpcri_watch_steps((double)span->rows * flow->flops) : span->n;
    const int64_t most = watched < steps ? watched : steps;
    const double cached = 20e6;  // bytes that a step reads and writes, of all: those of more come from memory
    const double numbers = (double)flow->n * (double)flow->rows * (double)(flow->values + 2 * flow->w);
    const bool far = span->a_step != 0 && span->a_row != 0 && numbers * (double)flow->size > cached;
    dpcri_span rest = *span;
    rest.far = far;
    while (rest.n > most) {  // with a look at the watch in between; each stretch starts from the last one's end
        dpcri_span part = rest;
        part.n = most;
        part.ahead = far && steps < span->n ? most : 0;
        call(flow, serial, &part);
        rest = later(flow, &rest, most);
        rest.x = dpcri_at(flow, part.y, (most - 1) * part.y_step);
        rest.x_row = part.y_row;
    }
    call(flow, serial, &rest);
}

void dpcri_flow_product(const dpcri_flow *flow, const dpcri_span *span) {
    call(flow, flow->transposed ? DPCRI_PRODUCT_T : DPCRI_PRODUCT, span);
}

// Products are stored untransposed: op(C) = op(A2) op(A1) is C = A2 A1, or C = A1 A2 for the transpose.
void dpcri_flow_compose(const dpcri_flow *flow, dpcri_span span) {
    bool swap = flow->transposed;
#ifdef DPCRI_MUTANTS
    if (dpcri_mutant == 2) swap = !swap;
#endif
    if (swap) {
        const dpcri_span later = span;
        span.a = later.x;
        span.a_step = later.x_step;
        span.a_row = later.x_row;
        span.x = later.a;
        span.x_step = later.a_step;
        span.x_row = later.a_row;
    }
    call(flow, DPCRI_COMPOSE, &span);
}

void dpcri_flow_copy(const dpcri_flow *flow, const dpcri_span *span) {
    flow->kernels->table[DPCRI_APPLY][DPCR_ZERO](span);
}

bool dpcri_flow_finite(const dpcri_flow *f, const void *x, int64_t count) {
    bool finite = true;
    if (f->dtype == DPCR_F64)
        for (int64_t i = 0; i < count; i++) finite = finite && isfinite(((const double *)x)[i]);
    else if (f->dtype == DPCR_F32)
        for (int64_t i = 0; i < count; i++) finite = finite && isfinite(((const float *)x)[i]);
    return finite;
}

void dpcri_flow_loop(const dpcri_flow *f, int64_t m, int64_t n, int64_t row, const void *x) {
    dpcri_span span = dpcri_flow_span(f, n, 1);
    span.a = dpcri_at(f, f->a, m * f->a_step + row * f->a_row);
    span.a_step = f->a_step;
    span.x = x;
    span.r = dpcri_at(f, f->b, m * f->b_step + row * f->b_row);
    span.r_step = f->b_step;
    span.y = dpcri_at_out(f, f->z, m * f->z_step + row * f->z_row);
    span.y_step = f->z_step;
    dpcri_flow_serial(f, &span);
}

int64_t dpcri_task_count(int64_t items, double flops) {
    const double most = (double)items * flops / 16384;  // a task of about 3 us, ten times what handing it over costs
    int64_t tasks = most < 64 ? (int64_t)most : 64;
    if (tasks > items) tasks = items;
    return tasks < 1 ? 1 : tasks;
}

void dpcri_task_range(int64_t items, int64_t tasks, int64_t i, int64_t *lo, int64_t *hi) {
    const int64_t each = items / tasks, more = items % tasks;
    *lo = i * each + (i < more ? i : more);
    *hi = *lo + each + (i < more ? 1 : 0);
}

void *dpcri_flow_take(const dpcri_flow *flow, dpcri_arena *arena, int64_t count, int64_t each, int64_t more) {
    int64_t elements = 0;
    if (dpcri_mul(count, each, &elements) && dpcri_mul(elements, more, &elements))
        return dpcri_arena_take(arena, elements, flow->size);
    arena->overflow = true;
    return NULL;
}

typedef struct start_job {
    const dpcri_flow *flow;
    int64_t tasks;
} start_job;

static void copy_task(void *argument, int64_t i) {
    const start_job *job = argument;
    const dpcri_flow *f = job->flow;
    int64_t lo = 0, hi = 0;
    dpcri_task_range(f->n, job->tasks, i, &lo, &hi);
    dpcri_span span = dpcri_flow_span(f, hi - lo, f->rows);
    span.r = dpcri_at(f, f->b, lo * f->b_step);
    span.r_step = f->b_step;
    span.r_row = f->b_row;
    span.y = dpcri_at_out(f, f->z, lo * f->z_step);
    span.y_step = f->z_step;
    span.y_row = f->z_row;
    dpcri_flow_copy(f, &span);
}

void dpcri_flow_start(const dpcri_flow *f) {
    start_job job = {.flow = f, .tasks = dpcri_task_count(f->n, (double)(f->rows * f->w))};
    if (f->z != f->b || f->z_step != f->b_step || f->z_row != f->b_row)
        dpcri_parallel(f->context, job.tasks, copy_task, &job);
    if (!f->z0) return;
    dpcri_span span = dpcri_flow_span(f, 1, f->rows);
    span.a = f->a;
    span.a_row = f->a_row;
    span.x = f->z0;
    span.x_row = f->z0_row;
    span.r = span.y = f->z;
    span.r_row = span.y_row = f->z_row;
    dpcri_flow_apply(f, &span);
}

dpcri_chunks dpcri_chunks_of(const dpcri_flow *flow, int64_t size) {
    const int64_t offset = flow->first % size, room = size - offset;
    dpcri_chunks chunks = {.size = size, .head = room < flow->n ? room : flow->n};
    const int64_t rest = flow->n - chunks.head;
    chunks.count = 1 + rest / size + (rest % size != 0);
    return chunks;
}

int64_t dpcri_chunk_start(const dpcri_chunks *chunks, int64_t c) {
    return c == 0 ? 0 : chunks->head + (c - 1) * chunks->size;
}

int64_t dpcri_chunk_end(const dpcri_flow *flow, const dpcri_chunks *chunks, int64_t c) {
    if (c == 0) return chunks->head;
    const int64_t start = dpcri_chunk_start(chunks, c);
    return flow->n - start < chunks->size ? flow->n : start + chunks->size;
}

int64_t dpcri_chunks_most(int64_t n, int64_t size) { return n / size + 2; }

const void *dpcri_chunks_from_zero(const dpcri_flow *f, const dpcri_chunks *chunks, int64_t c, int64_t count,
                                   int64_t steps, int64_t row, void *states) {
    int64_t last = 0;
    for (int64_t t = 0; t < steps; t += DPCRI_STRETCH) {
        const int64_t m = dpcri_chunk_start(chunks, c) + t, left = steps - t;
        dpcri_span span = dpcri_flow_span(f, left < DPCRI_STRETCH ? left : DPCRI_STRETCH, count);
        span.a = dpcri_at(f, f->a, m * f->a_step + row * f->a_row);
        span.a_step = f->a_step;
        span.a_row = chunks->size * f->a_step;
        span.r = dpcri_at(f, f->b, m * f->b_step + row * f->b_row);
        span.r_step = f->b_step;
        span.r_row = chunks->size * f->b_step;
        span.x = t == 0 ? NULL : dpcri_at(f, states, last * f->w);
        span.y = states;
        span.y_step = f->w;
        span.x_row = span.y_row = DPCRI_STRETCH * f->w;
        dpcri_flow_serial(f, &span);
        last = span.n - 1;
    }
    return dpcri_at(f, states, last * f->w);
}

// Chunks that run side by side read and write vectors at so many places at once. Where they lie near to a page's length
// apart they fall on the same sets of the first-level cache, which throw out lines before they are used up: 2^14 steps
// of width 4 took 1.5 times as long in chunks of 1025 steps as in those of 1028. So `steps` or a few more.
static int64_t apart(int64_t steps, int64_t width) {
    enum { PAGE = 4096, LINE = 64, TRIES = 64 };                                   // enough for every other width
    for (int64_t more = 1 - steps % 2; more < TRIES; more += 2) {                  // odd: so matrices lie apart
        const int64_t stride = (steps + more) % PAGE * (width % PAGE * 4) % PAGE;  // of floats; doubles' is twice that
        bool near = false;
        for (int64_t c = 1; c < DPCRI_SIDE; c++) {
            const int64_t place = c * stride % PAGE;
            near = near || place < LINE || place > PAGE - LINE;
        }
        if (!near) return steps + more;
    }
    return steps | 1;  // states of whole KiB: no length helps
}

// Two groups of them where the run-up leaves room, so that two threads find work; at most twelve run-ups long,
// but for very long chains.
int64_t dpcri_chain_overlap_chunk(int64_t length, int64_t warm_up, int64_t width) {
    const int64_t m = warm_up < INT64_MAX / 16 ? warm_up : INT64_MAX / 16;
    const int64_t most = 8 * m, least = 5 * m / 2, two = length / (2 * DPCRI_SIDE), spread = length / 64;
    const int64_t fitting = two < least ? least : two > most ? most : two, chunk = fitting > spread ? fitting : spread;
    const int64_t pairs = (length / chunk + DPCRI_SIDE) / (2 * DPCRI_SIDE);  // of full groups: an odd one is waited for
    const int64_t even = pairs > 0 ? length / (2 * DPCRI_SIDE * pairs) : 0;
    return apart(even >= least ? even : chunk, width);
}

// Chunks of the fused kernels where there are some. Elsewhere odd sizes, for the same reason as those of overlap.
static int64_t default_chunk(dpcr_scheme scheme, const dpcr_transition *transition, int64_t length, int64_t warm_up) {
    const int64_t fused = dpcri_chunked_steps(dpcri_kernel_form(transition), transition->rows, transition->block);
    if (scheme == DPCR_SCHEME_CHUNKED && fused > 0) return fused;
    if (scheme == DPCR_SCHEME_OVERLAP) return dpcri_chain_overlap_chunk(length, warm_up, transition->rows);
    int64_t root = 16;
    while (root < 1024 && root * root < length) root *= 2;
    return root | 1;
}

void dpcri_chain_defaults(const dpcr_transition *transition, int64_t length, int64_t batch,
                          dpcr_chain_options *options) {
    const int64_t endless = (int64_t)1 << 40;  // longer than any chain, and safe to multiply by a step's bytes
    (void)batch;
    options->size = sizeof *options;
    if (options->warm_up == 0) options->warm_up = 64;
    if (options->chunk == 0) options->chunk = default_chunk(options->scheme, transition, length, options->warm_up);
    if (options->chunk > endless) options->chunk = endless;
    if (options->levels == 0) options->levels = 64;
    if (options->max_sweeps == 0) options->max_sweeps = 3;
}

size_t dpcri_linear_workspace(const dpcri_linear *problem, const dpcr_chain_options *options) {
    const dpcri_scheme_row *scheme = dpcri_scheme_at(options->scheme);
    int64_t states = 0, values = 0;
    const bool fits = dpcri_mul(problem->length, problem->rows, &states) &&
                      dpcri_mul(states, dpcr_transition_values(&problem->transition), &values) &&
                      dpcri_mul(states, problem->transition.rows, &states);
    if (!scheme || !fits) return SIZE_MAX;
    if (states == 0) return 0;
    const dpcri_flow flow = dpcri_flow_of(NULL, problem);
    dpcri_arena arena = {0};
    scheme->carve(&flow, options, &arena);
    return arena.overflow ? SIZE_MAX : arena.used;
}

dpcri_watch *dpcri_linear_watch(dpcri_watch *watch, const dpcr_context *context, const dpcr_transition *transition,
                                double steps) {
    const double flops = dpcr_transition_apply_flops(transition) + 1;
    return dpcri_watch_begin(watch, context, steps * (double)transition->rows * flops);
}

void dpcri_linear_solve(dpcr_context *context, const dpcri_linear *problem, const dpcr_chain_options *options,
                        void *workspace, dpcr_chain_report *report) {
    dpcr_chain_report counts = {
        .size = sizeof counts, .scheme = options->scheme, .sweeps = 1, .finished_from = problem->length};
    if (problem->length > 0 && problem->rows > 0) {
        dpcri_flow flow = dpcri_flow_of(context, problem);
#ifdef DPCRI_MUTANTS
        if (dpcri_mutant != 0) flow.lost = NULL;  // nobody looks at what lies in place: tests are to see it
#endif
        dpcri_arena arena = {.base = workspace, .size = workspace ? SIZE_MAX : 0};
        dpcri_scheme_at(options->scheme)->run(&flow, options, &arena, &counts);
    }
    if (report) *report = counts;
}
