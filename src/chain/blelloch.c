// SPDX-License-Identifier: MIT
// Work-efficient tree over the steps, vector first, inclusive (Brent-Kung), with a limited number of levels D.
//
//   nodes of level d cover the absolute steps [i 2^d, (i+1) 2^d); S = 2^d; T_d their products (T_0 = A)
//   UP    d = 0..D-1   right r = 2iS + 2S - 1:  z_r <- z_r + T_d[2i+1] z_{r-S},  T_{d+1}[i] = T_d[2i+1] T_d[2i]
//   MID   serially over the ends of the nodes of level D:  z_g <- z_g + T_D z_{g-S}
//   DOWN  d = D-1..0   middle m = 2iS + S - 1 (i > 0):  z_m <- z_m + T_d[2i] z_{m-S}
//
// A node that begins at or before the first step is a vector: its product is never formed, so the left-most node of
// each level and the whole down-sweep are applications alone. A sequence takes C = sum over d < D of
// max(0, floor(n / 2^(d+1)) - 1) compositions (for a range that starts at a multiple of 2^D) and n-1 + C applications:
// the pairs that compose carry a vector too.
// D = 0 is the loop; without a limit D = log2 n. Where all steps share one A, a level needs one product.
//
// Then n applications to look (recheck.h). Depth 2 log2 n (levels), memory n values, and n w where a chain is solved in
// place: its states are made beside b, which the look and the loop need. Wins over pcr on many workers where
// compositions are dear. Source: Blelloch (1990), Brent & Kung (10.1109/TC.1982.1675982), BPPSA (arXiv 1907.10134).
// Derivation: docs/math/blelloch.md.
#include "chain/flow.h"
#include "chain/recheck.h"

enum { MOST_LEVELS = 62 };

typedef struct tree {
    int levels;                 // D at most
    void *node[MOST_LEVELS];    // T_{d+1} of this range
    int64_t base[MOST_LEVELS];  // index of its first node
    int64_t step, row;          // strides of the products; 0 where shared
} tree;

static tree take(const dpcri_flow *f, const dpcr_chain_options *options, dpcri_arena *arena) {
    const int64_t steps = dpcri_flow_a_steps(f), rows = dpcri_flow_a_rows(f);
    tree t = {.step = steps > 1 ? rows * f->values : 0, .row = rows > 1 ? f->values : 0};
    for (int d = 0; d < MOST_LEVELS && d < options->levels - 1 && (INT64_C(1) << d) < f->n; d++, t.levels++) {
        const int64_t span = INT64_C(2) << d;
        t.base[d] = f->first / span;
        t.node[d] = dpcri_flow_take(f, arena, steps > 1 ? f->n / span + 2 : 1, rows, f->values);
    }
    return t;
}

// Without levels it is the loop, in place too; the ring has nothing to lose.
static bool goes_beside(const dpcri_flow *f, const dpcr_chain_options *options) {
    return f->z == f->b && f->lost && options->levels > 1 && (f->dtype == DPCR_F32 || f->dtype == DPCR_F64);
}

static void *take_states(const dpcri_flow *f, const dpcr_chain_options *options, dpcri_arena *arena) {
    return goes_beside(f, options) ? dpcri_flow_take(f, arena, f->n, f->rows, f->w) : NULL;
}

static void carve(const dpcri_flow *flow, const dpcr_chain_options *options, dpcri_arena *arena) {
    take(flow, options, arena);
    dpcri_recheck_space space;
    dpcri_recheck_take(flow, arena, &space);
    take_states(flow, options, arena);
}

static const void *product_at(const dpcri_flow *f, const tree *t, int d, int64_t index) {
    if (d == 0) return dpcri_at(f, f->a, (index - f->first) * f->a_step);
    return dpcri_at(f, t->node[d - 1], (index - t->base[d - 1]) * t->step);
}

// `count` applications z_g <- z_g + T_d[index] z_{g-S}, from end g and node `index` on, `apart` nodes from one to the
// next.
typedef struct pass {
    const dpcri_flow *flow;
    const tree *t;
    int d;
    int64_t apart, index, count, tasks;
    int64_t products_from;  // up: pairs from this one on also form their product
    bool up;
} pass;

static dpcri_span application(const pass *p, int64_t lo, int64_t hi) {
    const dpcri_flow *f = p->flow;
    const int64_t index = p->index + lo * p->apart, step = INT64_C(1) << p->d, m = (index + 1) * step - 1 - f->first;
    dpcri_span span = dpcri_flow_span(f, hi - lo, f->rows);
    span.a = product_at(f, p->t, p->d, index);
    span.a_step = p->apart * (p->d == 0 ? f->a_step : p->t->step);
    span.a_row = p->d == 0 ? f->a_row : p->t->row;
    span.x = dpcri_at(f, f->z, (m - step) * f->z_step);
    span.y = dpcri_at_out(f, f->z, m * f->z_step);
    span.r = span.y;
    span.x_step = span.r_step = span.y_step = p->apart * step * f->z_step;
    span.x_row = span.r_row = span.y_row = f->z_row;
    return span;
}

static void form_products(const pass *p, int64_t lo, int64_t hi) {
    const dpcri_flow *f = p->flow;
    if (lo >= hi) return;
    const int64_t later = p->index + 2 * lo;
    dpcri_span span = dpcri_flow_span(f, hi - lo, dpcri_flow_a_rows(f));
    span.a = product_at(f, p->t, p->d, later);
    span.x = product_at(f, p->t, p->d, later - 1);
    span.a_step = span.x_step = 2 * (p->d == 0 ? f->a_step : p->t->step);
    span.a_row = span.x_row = p->d == 0 ? f->a_row : p->t->row;
    span.y = dpcri_at_out(f, p->t->node[p->d], (later / 2 - p->t->base[p->d]) * p->t->step);
    span.y_step = p->t->step;
    span.y_row = p->t->row;
    dpcri_flow_compose(f, span);
}

static void run_part(void *argument, int64_t i) {
    const pass *p = argument;
    int64_t lo = 0, hi = 0;
    dpcri_task_range(p->count, p->tasks, i, &lo, &hi);
    const dpcri_span span = application(p, lo, hi);
    dpcri_flow_apply(p->flow, &span);
    if (!p->up) return;
    if (dpcri_flow_a_steps(p->flow) > 1)
        form_products(p, lo > p->products_from ? lo : p->products_from, hi);
    else if (i == 0 && p->products_from < p->count)
        form_products(p, p->products_from, p->products_from + 1);
}

static void run_pass(pass *p, dpcr_chain_report *report) {
    const dpcri_flow *f = p->flow;
    if (p->count <= 0) return;
    p->tasks = dpcri_task_count(p->count, (double)f->rows * f->flops * (p->up ? (double)(1 + f->values / f->w) : 1.0));
    dpcri_parallel(f->context, p->tasks, run_part, p);
    report->applications += p->count * f->rows;
    report->depth++;
    if (p->up && p->products_from < p->count)
        report->compositions += (dpcri_flow_a_steps(f) > 1 ? p->count - p->products_from : 1) * dpcri_flow_a_rows(f);
}

static int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

static void up(const dpcri_flow *f, const tree *t, int d, dpcr_chain_report *report) {
    const int64_t step = INT64_C(1) << d, end = f->first + f->n;
    const int64_t pair = ceil_div(f->first + 1 + step, 2 * step) - 1;  // the first whose left end lies in the range
    pass p = {
        .flow = f, .t = t, .d = d, .apart = 2, .index = 2 * pair + 1, .count = end / (2 * step) - pair, .up = true};
    p.products_from = f->first / (2 * step) + 1 - pair;  // pairs that begin after the first step
    if (p.products_from < 0) p.products_from = 0;
    run_pass(&p, report);
}

static void down(const dpcri_flow *f, const tree *t, int d, dpcr_chain_report *report) {
    const int64_t step = INT64_C(1) << d, end = f->first + f->n;
    const int64_t pair =
        ceil_div(f->first + 1, 2 * step);  // its middle's left neighbour, 2 pair S - 1, lies in the range
    const int64_t past = end >= step ? (end - step) / (2 * step) + 1 : 0;
    pass p = {.flow = f, .t = t, .d = d, .apart = 2, .index = 2 * pair, .count = past - pair};
    run_pass(&p, report);
}

static void middle(const dpcri_flow *f, const tree *t, int d, dpcr_chain_report *report) {
    const int64_t step = INT64_C(1) << d, end = f->first + f->n;
    const int64_t node = ceil_div(f->first + 1, step), count = end / step - node;  // node ends at node S + S - 1
    if (count <= 0) return;
    const pass p = {.flow = f, .t = t, .d = d, .apart = 1, .index = node, .count = count};
    const dpcri_span span = application(&p, 0, count);
    dpcri_flow_serial(f, &span);
    report->applications += count * f->rows;
    report->depth += count;
}

static void run(const dpcri_flow *f, const dpcr_chain_options *options, dpcri_arena *arena, dpcr_chain_report *report) {
    const tree t = take(f, options, arena);
    dpcri_recheck_space space;
    dpcri_recheck_take(f, arena, &space);
    void *const beside = take_states(f, options, arena);
    dpcri_flow made = *f;
    if (beside) made.z = beside, made.z_step = f->rows * f->w, made.z_row = f->w;
    dpcri_flow_start(&made);
    report->applications = f->z0 ? f->rows : 0;
    report->depth = 1;
    for (int d = 0; d < t.levels; d++) up(&made, &t, d, report);
    middle(&made, &t, t.levels, report);
    for (int d = t.levels - 1; d >= 0; d--) down(&made, &t, d, report);
    if (t.levels > 0) report->finished_from = dpcri_recheck(&made, &space);
    if (!beside) return;
    dpcri_flow last = *f;
    last.b = beside, last.b_step = made.z_step, last.b_row = made.z_row;
    last.z0 = NULL;
    dpcri_flow_start(&last);
}

const dpcri_scheme_row dpcri_blelloch = {"blelloch", carve, run};
