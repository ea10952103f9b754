// SPDX-License-Identifier: MIT
// BPPSA: the backward pass as a scan, planned. With e = n - l counting along the recurrence, element 0 the given
// vector, element e the step that makes v_e = g_{n-e}:
//
//   v_e = A_e v_{e-1},  v_0 = g_n      rectangular A_e; nodes T_d[i] over elements [iS, (i+1)S), S = 2^d, T_0 = A
//   UP    d = 0..D-1   T_{d+1}[i] = T_d[2i+1] T_d[2i]  for i > 0;   v_{2S-1} = T_d[1] v_{S-1}
//   MID   in order over the ends of the nodes of level D:  v_{gS+S-1} = T_D[g] v_{gS-1}
//   DOWN  d = D-1..0   middles m = 2iS + S - 1, i > 0:  v_m = T_d[2i] v_{m-S}
//
// Vector first: no node that holds element 0 is ever a matrix, and every other state is made by one application, n in
// all. C = sum over d < D of max(0, floor((n+1) / 2^(d+1)) - 1) products. D = 0 is the loop.
//
// Weighed: csr as one more structure of blelloch.c, whose spans have one width, one stride and in-place sums, and
// so would every other scheme's have to grow; and the paper's clamped exclusive tree, which forms a few more products
// (11 against 8 for 14 steps) for the same result. So: a list of operations of its own on the matrices of transition/.
//
// Work: 2 flops a pair of entries that meet; products of csr fill in. Wins where more workers than sequences wait and
// products are cheap (small or very sparse ones): depth 2 log2 n. On few cores the loop has less to do.
// Source: Wang, Bai, Pekhimenko (arXiv 1907.10134). Derivation: docs/math/bppsa.md.
#include "chain/bppsa.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { MOST_LEVELS = 62, MOST_TASKS = 64, LOOK_BACK = 8 };
static const double task_flops = 16384;
static const size_t slots_bytes = (size_t)64 << 20;  // of slots, when there is a choice
static const size_t bundle_bytes = (size_t)1 << 30;  // of a bundle's slot: more, and sequences go by themselves

static int64_t nodes_at(const dpcr_bppsa_plan *p, int d) { return (p->length + 1) >> d; }

// Matrix of node i > 0 of level d.
static int64_t node(const dpcr_bppsa_plan *p, int d, int64_t i) {
    return d == 0 ? p->length - i : p->products_first[d] + i - 1;
}

// ---- what is given ----

static dpcr_status check_step(const dpcr_bppsa_shape *shape, int64_t l, dpcr_error *error) {
    const dpcr_transition *t = &shape->steps[l];
    dpcr_status status = dpcr_transition_check(t, error);
    if (status == DPCR_OK && t->structure == DPCR_CSR && (l == 0 || t->pattern != t[-1].pattern))
        status = dpcr_pattern_check(t->pattern, error);
    if (status != DPCR_OK) return status;
    if (t->structure != DPCR_DENSE && t->structure != DPCR_DIAGONAL && t->structure != DPCR_CSR)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "bppsa_plan: step %" PRId64 " is %s, wanted dense, diagonal or csr", l,
                          dpcr_structure_name(t->structure));
    if (l > 0 && t[-1].cols != t->rows)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "bppsa_plan: step %" PRId64 " has %" PRId64 " columns and step %" PRId64 " %" PRId64
                          " rows, wanted as many",
                          l - 1, t[-1].cols, l, t->rows);
    return DPCR_OK;
}

static dpcr_status check_shape(const dpcr_bppsa_shape *shape, dpcr_error *error) {
    if (shape->size < sizeof *shape)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "bppsa_plan: shape.size is %zu, wanted sizeof(dpcr_bppsa_shape)",
                          shape->size);
    if (shape->length < 0 || shape->batch < 0 || shape->length > INT64_MAX / 1024 || shape->batch > INT64_MAX / 1024)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "bppsa_plan: length %" PRId64 " and batch %" PRId64 ", wanted 0 or more that fit",
                          shape->length, shape->batch);
    if (dpcr_dtype_size(shape->dtype) == 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "bppsa_plan: dtype is %d, wanted float32, float64 or uint32",
                          (int)shape->dtype);
    if (shape->length > 0 && !shape->steps) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "bppsa_plan: steps is NULL");
    for (int64_t l = 0; l < shape->length; l++) {
        const dpcr_status status = check_step(shape, l, error);
        if (status != DPCR_OK) return status;
    }
    return DPCR_OK;
}

static dpcr_status take_options(const dpcr_bppsa_options *given, dpcr_bppsa_options *o, dpcr_error *error) {
    if (given->size < offsetof(dpcr_bppsa_options, lanes))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "bppsa_plan: options.size is %zu, wanted sizeof(dpcr_bppsa_options)", given->size);
    DPCRI_COPY_IN(*o, given);
    if (o->levels < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "bppsa_plan: levels is %d, wanted 0 or more", o->levels);
    if (o->lanes < 0 || o->lanes > 1)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "bppsa_plan: lanes is %d, wanted 0 or 1", o->lanes);
    return DPCR_OK;
}

// ---- matrices ----

static dpcr_status refuse_memory(size_t bytes, dpcr_error *error) {
    return dpcri_fail(error, DPCR_ERROR_MEMORY, "bppsa_plan: %zu bytes were refused", bytes);
}

static dpcr_status take(const dpcr_bppsa_plan *p, int64_t count, size_t each, void *memory, dpcr_error *error) {
    bool overflow = false;
    const size_t bytes = dpcri_bytes(count > 0 ? count : 1, 1, (int64_t)each, &overflow);
    void *taken = overflow ? NULL : dpcri_alloc_zero(p->context, bytes);
    if (!taken) return refuse_memory(bytes, error);
    memcpy(memory, &taken, sizeof taken);
    return DPCR_OK;
}

static dpcr_status take_steps(dpcr_bppsa_plan *p, const dpcr_bppsa_shape *shape, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const int64_t n = shape->length;
    int64_t products = 0;
    for (int d = 0; d < p->cost.levels; d++) {
        p->products_first[d + 1] = n + products;
        products += nodes_at(p, d + 1) > 0 ? nodes_at(p, d + 1) - 1 : 0;
    }
    p->matrix_count = n + products;
    DPCR_TRY(take(p, p->matrix_count, sizeof *p->matrices, &p->matrices, error));
    DPCR_TRY(take(p, products, sizeof(dpcr_product *), &p->products, error));
    DPCR_TRY(take(p, n + products, sizeof *p->operations, &p->operations, error));
    DPCR_TRY(take(p, n + 2 * p->cost.levels, sizeof *p->passes, &p->passes, error));
    DPCR_TRY(take(p, 2 * p->cost.levels + 2, sizeof *p->levels, &p->levels, error));
    DPCR_TRY(take(p, n + 1, sizeof *p->widths, &p->widths, error));
    DPCR_TRY(take(p, n + 2, sizeof *p->vector_at, &p->vector_at, error));
    for (int64_t l = 0; l < n; l++)
        p->matrices[l] = (dpcri_bppsa_matrix){.t = shape->steps[l],
                                              .values = dpcr_transition_values(&shape->steps[l]),
                                              .shared = shape->shared && shape->shared[l]};
    for (int64_t l = 0; l <= n && n > 0; l++) {
        p->widths[l] = l < n ? shape->steps[l].rows : shape->steps[n - 1].cols;
        if (p->widths[l] > p->widest) p->widest = p->widths[l];
        if (!dpcri_add(p->vector_at[l], p->widths[l], &p->vector_at[l + 1]))
            return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "bppsa_plan: the states do not fit the address space");
    }
done:
    return status;
}

static bool same(const dpcr_transition *s, const dpcr_transition *t) {
    return s->structure == t->structure && s->rows == t->rows && s->cols == t->cols && s->pattern == t->pattern;
}

// The product that an operation just before has planned for factors like these, or NULL.
static const dpcr_product *find_product(const dpcr_bppsa_plan *p, int64_t first, const dpcr_transition *later,
                                        const dpcr_transition *earlier) {
    for (int64_t i = p->operation_count - 1; i >= first && i >= p->operation_count - LOOK_BACK; i--) {
        const dpcri_bppsa_operation *o = &p->operations[i];
        if (o->product && same(&p->matrices[o->a].t, later) && same(&p->matrices[o->b].t, earlier)) return o->product;
    }
    return NULL;
}

// ---- operations ----

static void add_application(dpcr_bppsa_plan *p, int64_t a, int64_t from, int64_t to) {
    p->operations[p->operation_count++] =
        (dpcri_bppsa_operation){.a = a,
                                .c = -1,
                                .in = p->length - from,
                                .out = p->length - to,
                                .flops = dpcr_transition_apply_flops(&p->matrices[a].t)};
}

// `first`: the level's first operation.
static dpcr_status add_composition(dpcr_bppsa_plan *p, int64_t later, int64_t earlier, int64_t c, int64_t first,
                                   size_t most_bytes, dpcr_error *error) {
#ifdef DPCRI_MUTANTS
    if (dpcri_mutant == 4 && same(&p->matrices[later].t, &p->matrices[earlier].t)) {
        const int64_t swapped = later;
        later = earlier;
        earlier = swapped;
    }
#endif
    const dpcri_bppsa_matrix *a = &p->matrices[later], *b = &p->matrices[earlier];
    const dpcr_product *product = find_product(p, first, &a->t, &b->t);
    if (!product) {
        dpcr_product *made = NULL;
        if (dpcri_cancelled(p->context)) return dpcri_fail_stopped(error, "bppsa_plan");
        const dpcr_status status = dpcr_product_create(p->context, &a->t, &b->t, &made, error);
        if (status == DPCR_ERROR_CANCELLED) return dpcri_fail_stopped(error, "bppsa_plan");
        if (status != DPCR_OK) return status;
        p->products[p->product_count++] = made;
        p->cost.pattern_bytes += dpcri_product_bytes(made);
        if (most_bytes > 0 && p->cost.pattern_bytes > most_bytes)
            return dpcri_fail(error, DPCR_ERROR_MEMORY,
                              "bppsa_plan: patterns alone need more than the allowed %zu bytes; fewer levels need less",
                              most_bytes);
        product = made;
    }
    const dpcr_transition *t = dpcr_product_transition(product);
    p->matrices[c] =
        (dpcri_bppsa_matrix){.t = *t, .values = dpcr_transition_values(t), .shared = a->shared && b->shared};
    p->operations[p->operation_count++] = (dpcri_bppsa_operation){
        .a = later, .b = earlier, .c = c, .product = product, .flops = dpcr_product_flops(product)};
    if (p->places < dpcri_product_places(product)) p->places = dpcri_product_places(product);
    p->common_products |= p->matrices[c].shared;
    p->cost.product_values += p->matrices[c].values;
    return DPCR_OK;
}

// Closes a pass over the operations from `first` on, and counts them into `level`.
static void end_pass(dpcr_bppsa_plan *p, int64_t first, dpcr_bppsa_level *level) {
    double dearest = 0;
    if (first == p->operation_count) return;
    for (int64_t i = first; i < p->operation_count; i++) {
        const dpcri_bppsa_operation *o = &p->operations[i];
        if (o->c < 0)
            level->applications++;
        else
            level->compositions++;
        level->flops += o->flops;
        if (o->flops > dearest) dearest = o->flops;
    }
    level->critical_flops += dearest;
    p->cost.depth++;
    p->passes[p->pass_count++] = (dpcri_bppsa_pass){.operation = first, .count = p->operation_count - first};
}

static dpcr_bppsa_level *add_level(dpcr_bppsa_plan *p, dpcr_bppsa_phase phase, int d) {
    dpcr_bppsa_level *level = &p->levels[p->level_count++];
    *level = (dpcr_bppsa_level){.phase = phase, .level = d};
    return level;
}

static dpcr_status plan_up(dpcr_bppsa_plan *p, int d, size_t most_bytes, dpcr_error *error) {
    const int64_t S = INT64_C(1) << d, first = p->operation_count;
    for (int64_t i = 0; i < nodes_at(p, d + 1); i++) {
        if (i == 0) {
            add_application(p, node(p, d, 1), S - 1, 2 * S - 1);
            continue;
        }
        const dpcr_status status =
            add_composition(p, node(p, d, 2 * i + 1), node(p, d, 2 * i), node(p, d + 1, i), first, most_bytes, error);
        if (status != DPCR_OK) return status;
    }
    end_pass(p, first, add_level(p, DPCR_BPPSA_UP, d));
    return DPCR_OK;
}

static void plan_middle(dpcr_bppsa_plan *p, int d) {
    const int64_t S = INT64_C(1) << d;
    dpcr_bppsa_level *level = add_level(p, DPCR_BPPSA_MIDDLE, d);
    for (int64_t g = 1; g < nodes_at(p, d); g++) {
        add_application(p, node(p, d, g), g * S - 1, g * S + S - 1);
        end_pass(p, p->operation_count - 1, level);
    }
}

static void plan_down(dpcr_bppsa_plan *p, int d) {
    const int64_t S = INT64_C(1) << d, first = p->operation_count;
    for (int64_t m = 3 * S - 1; m <= p->length; m += 2 * S) add_application(p, node(p, d, (m + 1) / S - 1), m - S, m);
    end_pass(p, first, add_level(p, DPCR_BPPSA_DOWN, d));
}

static dpcr_status plan_operations(dpcr_bppsa_plan *p, size_t most_bytes, dpcr_error *error) {
    const int D = p->cost.levels;
    for (int d = 0; d < D; d++) {
        const dpcr_status status = plan_up(p, d, most_bytes, error);
        if (status != DPCR_OK) return status;
    }
    p->up_passes = p->pass_count;
    plan_middle(p, D);
    for (int d = D - 1; d >= 0; d--) {
#ifdef DPCRI_MUTANTS
        if (dpcri_mutant == 5 && d == 0) break;
#endif
        plan_down(p, d);
    }
    for (int64_t i = 0; i < p->level_count; i++) {
        p->cost.compositions += p->levels[i].compositions;
        p->cost.applications += p->levels[i].applications;
        p->cost.flops += p->levels[i].flops;
        p->cost.critical_flops += p->levels[i].critical_flops;
    }
    for (int64_t l = 0; l < p->length; l++) p->cost.loop_flops += dpcr_transition_apply_flops(&p->matrices[l].t);
    p->cost.patterns = p->product_count;
    return DPCR_OK;
}

// ---- tasks ----

// Of an operation whose rows are not all alike.
static double row_flops(const dpcr_bppsa_plan *p, const dpcri_bppsa_operation *o, int64_t row) {
    const dpcr_pattern *pattern = p->matrices[o->a].t.pattern;
    if (o->product) return dpcri_product_row_flops(o->product, row);
    return 2 * (double)(pattern->offsets[row + 1] - pattern->offsets[row]);
}

static bool all_rows_alike(const dpcr_bppsa_plan *p, const dpcri_bppsa_operation *o) {
    const dpcr_structure a = p->matrices[o->a].t.structure;
    return a != DPCR_CSR && !(o->product && a == DPCR_DIAGONAL && p->matrices[o->b].t.structure == DPCR_CSR);
}

static double pass_flops(const dpcr_bppsa_plan *p, const dpcri_bppsa_pass *pass) {
    double flops = 0;
    for (int64_t i = 0; i < pass->count; i++) flops += p->operations[pass->operation + i].flops;
    return flops;
}

static int64_t pass_tasks(const dpcr_bppsa_plan *p, const dpcri_bppsa_pass *pass) {
    const double most = pass_flops(p, pass) / task_flops;
    return most < 1 ? 1 : most < MOST_TASKS ? (int64_t)most : MOST_TASKS;
}

// Cuts where a task has its share of the flops, inside operations too.
static void cut_pass(dpcr_bppsa_plan *p, dpcri_bppsa_pass *pass) {
    const double all = pass_flops(p, pass);
    const int64_t end = pass->operation + pass->count;
    double done = 0;
    int64_t task = 1;
    pass->cut = p->cut_count;
    dpcri_bppsa_cut *cuts = p->cuts + p->cut_count;
    cuts[0] = (dpcri_bppsa_cut){pass->operation, 0};
    for (int64_t i = pass->operation; i < end && task < pass->tasks; i++) {
        const dpcri_bppsa_operation *o = &p->operations[i];
        const int64_t rows = p->matrices[o->a].t.rows;
        if (all_rows_alike(p, o)) {
            for (; task < pass->tasks && o->flops > 0; task++) {
                const double share = (all * (double)task / (double)pass->tasks - done) / o->flops;
                if (share > 1) break;
                cuts[task] = (dpcri_bppsa_cut){i, share > 0 ? (int64_t)ceil(share * (double)rows) : 0};
            }
            done += o->flops;
            continue;
        }
        for (int64_t row = 0; row < rows && task < pass->tasks; row++) {
            done += row_flops(p, o, row);
            while (task < pass->tasks && done >= all * (double)task / (double)pass->tasks)
                cuts[task++] = (dpcri_bppsa_cut){i, row + 1};
        }
    }
    while (task <= pass->tasks) cuts[task++] = (dpcri_bppsa_cut){end, 0};
    p->cut_count += pass->tasks + 1;
}

static dpcr_status plan_tasks(dpcr_bppsa_plan *p, dpcr_error *error) {
    int64_t cuts = 0;
    p->most_tasks = 1;
    for (int64_t i = 0; i < p->pass_count; i++) {
        p->passes[i].tasks = pass_tasks(p, &p->passes[i]);
        if (p->passes[i].tasks > p->most_tasks) p->most_tasks = p->passes[i].tasks;
        cuts += p->passes[i].tasks + 1;
    }
    const dpcr_status status = take(p, cuts, sizeof *p->cuts, &p->cuts, error);
    if (status != DPCR_OK) return status;
    for (int64_t i = 0; i < p->pass_count; i++) cut_pass(p, &p->passes[i]);
    return DPCR_OK;
}

// ---- workspace ----

// count elements at the next 64 bytes; false on overflow.
static bool place(size_t *bytes, int64_t count, int64_t lanes, int64_t size, size_t *at) {
    bool overflow = false;
    const size_t more = dpcri_bytes(count, lanes, size, &overflow);
    if (overflow || more > SIZE_MAX / 4 || *bytes > SIZE_MAX / 4) return false;
    *at = *bytes;
    *bytes += (more + 63) / 64 * 64;
    return true;
}

static bool lay_out(dpcr_bppsa_plan *p, dpcri_bppsa_layout *layout, int64_t lanes) {
    bool fits = place(&layout->bytes, p->vector_at[p->length + (p->length > 0)], lanes, p->size, &layout->vectors) &&
                place(&layout->bytes, p->most_tasks, p->places, (int64_t)sizeof(int32_t), &layout->places) &&
                place(&layout->bytes, 2, p->cost.compositions > 0 ? p->widest : 0, p->size, &layout->spare);
    for (int64_t i = 0; fits && i < p->matrix_count; i++) {
        dpcri_bppsa_matrix *m = &p->matrices[i];
        if (m->shared || (lanes == 1 && i < p->length)) continue;
        fits = place(&layout->bytes, m->values, lanes, p->size, lanes == 1 ? &m->single : &m->bundled);
    }
    return fits;
}

static bool lay_out_common(dpcr_bppsa_plan *p) {
    bool fits = true;
    for (int64_t i = p->length; fits && i < p->matrix_count; i++)
        if (p->matrices[i].shared)
            fits = place(&p->common_bytes, p->matrices[i].values, 1, p->size, &p->matrices[i].single);
    return fits;
}

// What is left after whole bundles is one more, unless it is one sequence or less than a quarter.
static void share_out(dpcr_bppsa_plan *p, bool bundle) {
    const int64_t lanes = p->kernels->lanes, left = p->batch % lanes;
    p->bundles = bundle ? p->batch / lanes + (left > 1 && 4 * left >= lanes) : 0;
    p->singles = p->batch > p->bundles * lanes ? p->batch - p->bundles * lanes : 0;
}

static dpcr_status plan_workspace(dpcr_bppsa_plan *p, const dpcr_bppsa_options *o, dpcr_error *error) {
    const char *const text = "bppsa_plan: the products do not fit the address space; fewer levels need less";
    if (!lay_out_common(p) || !lay_out(p, &p->single, 1)) return dpcri_fail(error, DPCR_ERROR_OVERFLOW, text);
    const bool bundle = o->lanes != 1 && lay_out(p, &p->bundle, p->kernels->lanes) && p->bundle.bytes <= bundle_bytes;
    share_out(p, bundle);
    const int64_t strands = p->bundles + p->singles;
    p->slot_bytes = p->bundles > 0 && p->bundle.bytes > p->single.bytes ? p->bundle.bytes : p->single.bytes;
    if (p->slot_bytes == 0) p->slot_bytes = 64;
    p->slots = p->slot_bytes < slots_bytes ? (int64_t)(slots_bytes / p->slot_bytes) : 1;
    if (p->slots > strands) p->slots = strands;
    bool overflow = false;
    const size_t slots = dpcri_bytes(p->slots, (int64_t)p->slot_bytes, 1, &overflow);
    if (overflow || slots > SIZE_MAX / 2) return dpcri_fail(error, DPCR_ERROR_OVERFLOW, text);
    p->workspace = p->length > 0 && strands > 0 ? p->common_bytes + slots : 0;
    p->cost.workspace_bytes = p->workspace;
    if (o->most_bytes > 0 && p->workspace + p->cost.pattern_bytes > o->most_bytes)
        return dpcri_fail(
            error, DPCR_ERROR_MEMORY,
            "bppsa_plan: a workspace of %zu bytes and patterns of %zu, allowed were %zu; fewer levels need less",
            p->workspace, p->cost.pattern_bytes, o->most_bytes);
    return DPCR_OK;
}

// ---- the plan ----

static int tree_levels(int64_t length, int limit) {
    int d = 0;
    while (d < MOST_LEVELS && (limit == 0 || d < limit - 1) && (INT64_C(1) << d) <= length) d++;
    return d;
}

dpcr_status dpcr_bppsa_plan_create(dpcr_context *context, const dpcr_bppsa_shape *shape,
                                   const dpcr_bppsa_options *options, dpcr_bppsa_plan **plan, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcr_bppsa_plan *p = NULL;
    if (plan) *plan = NULL;
    if (!context || !shape || !plan)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "bppsa_plan: %s is NULL",
                          !context ? "context"
                          : !shape ? "shape"
                                   : "plan");
    dpcr_bppsa_options given = {0};
    DPCR_TRY(check_shape(shape, error));
    if (options) DPCR_TRY(take_options(options, &given, error));
    p = dpcri_alloc_zero(context, sizeof *p);
    if (!p) return refuse_memory(sizeof *p, error);
    p->context = context;
    p->kernels = dpcri_sparse_kernels_get(shape->dtype);
    p->dtype = shape->dtype;
    p->size = (int64_t)dpcr_dtype_size(shape->dtype);
    p->length = shape->length;
    p->batch = shape->batch;
    p->cost = (dpcr_bppsa_cost){.size = sizeof p->cost, .levels = tree_levels(shape->length, given.levels)};
    DPCR_TRY(take_steps(p, shape, error));
    DPCR_TRY(plan_operations(p, given.most_bytes, error));
    DPCR_TRY(plan_tasks(p, error));
    DPCR_TRY(plan_workspace(p, &given, error));
    *plan = p;
    p = NULL;
done:
    dpcr_bppsa_plan_destroy(p);
    return status;
}

void dpcr_bppsa_plan_destroy(dpcr_bppsa_plan *p) {
    if (!p) return;
    for (int64_t i = 0; i < p->product_count; i++) dpcr_product_destroy(p->products[i]);
    dpcri_free(p->context, p->cuts);
    dpcri_free(p->context, p->vector_at);
    dpcri_free(p->context, p->widths);
    dpcri_free(p->context, p->levels);
    dpcri_free(p->context, p->passes);
    dpcri_free(p->context, p->operations);
    dpcri_free(p->context, p->products);
    dpcri_free(p->context, p->matrices);
    dpcri_free(p->context, p);
}

const dpcr_bppsa_cost *dpcr_bppsa_plan_cost(const dpcr_bppsa_plan *plan) { return plan ? &plan->cost : NULL; }

int64_t dpcr_bppsa_plan_levels(const dpcr_bppsa_plan *plan) { return plan ? plan->level_count : 0; }

const dpcr_bppsa_level *dpcr_bppsa_plan_level(const dpcr_bppsa_plan *plan, int64_t index) {
    return plan && index >= 0 && index < plan->level_count ? &plan->levels[index] : NULL;
}

size_t dpcr_bppsa_plan_workspace(const dpcr_bppsa_plan *plan) { return plan ? plan->workspace : 0; }
