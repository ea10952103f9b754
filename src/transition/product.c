// SPDX-License-Identifier: MIT
// Products of dense, diagonal and csr transitions: C = A B, A applied later.
//
//   pattern     once:  columns of row i of C = union over the entries (i, k) of A of the columns of row k of B,
//   ascending numbers     often: C_i = sum over k of A_ik B_k, into the places that are known
//
// A diagonal factor leaves the other's pattern; a dense one, or a csr product more than half full, gives dense. Work
// two flops for each pair of entries that meet; planning takes two passes over these pairs (how many columns, which),
// but for rows of A that have the same columns once. Source: Gustavson (1978), rows times matrix; BPPSA (arXiv
// 1907.10134) plans the pattern once. docs/math/bppsa.md.
#include <inttypes.h>
#include <string.h>

#include "rt/watch.h"
#include "transition/transition_internal.h"

enum { MOST_TASKS = 64 };
static const double task_flops = 32768;  // of a task at least

struct dpcr_product {
    dpcr_context *context;
    dpcr_transition later, earlier, c;
    dpcr_pattern pattern;  // of C where it has one of its own
    int64_t *offsets;
    int32_t *columns;
    double flops;
};

static int64_t entries_of_row(const dpcr_transition *t, int64_t i) {
    const dpcr_pattern *p = t->pattern;
    if (t->structure == DPCR_CSR) return p->offsets[i + 1] - p->offsets[i];
    return t->structure == DPCR_DIAGONAL ? 1 : t->cols;
}

double dpcri_product_row_flops(const dpcr_product *product, int64_t i) {
    const dpcr_transition *a = &product->later, *b = &product->earlier;
    if (a->structure == DPCR_DIAGONAL) return 2 * (double)entries_of_row(b, i);
    if (b->structure != DPCR_CSR) return 2 * (double)entries_of_row(a, i) * (double)entries_of_row(b, 0);
    const dpcr_pattern *p = a->pattern, *q = b->pattern;
    if (a->structure == DPCR_DENSE) return 2 * (double)q->offsets[q->rows];
    double matches = 0;
    for (int64_t e = p->offsets[i]; e < p->offsets[i + 1]; e++) matches += (double)entries_of_row(b, p->columns[e]);
    return 2 * matches;
}

// Rows cut where a part has its share of the flops: cuts[0] = 0 .. cuts[parts] = rows.
static void cut_rows(const dpcr_product *product, int64_t parts, int64_t cuts[MOST_TASKS + 1]) {
    const int64_t rows = product->c.rows;
    double done = 0;
    int64_t at = 1;
    cuts[0] = 0;
    for (int64_t i = 0; i < rows && at < parts; i++) {
        done += dpcri_product_row_flops(product, i);
        while (at < parts && done >= product->flops * (double)at / (double)parts) cuts[at++] = i + 1;
    }
    while (at <= parts) cuts[at++] = rows;
}

static int64_t count_tasks(double flops, int64_t rows) {
    const double most = flops / task_flops;
    const int64_t tasks = most < MOST_TASKS ? (int64_t)most : MOST_TASKS;
    return tasks < 1 ? 1 : tasks < rows ? tasks : rows;
}

// ---- the pattern ----

// Rows of A with the same columns give rows of C with the same columns, which are found once and copied: in the
// Jacobian of an unpruned convolution all channels of a pixel are such rows.
typedef struct symbolic {
    dpcr_product *product;
    dpcri_watch *watch;
    int64_t tasks, firsts;
    int64_t *first;    // [firsts] rows of A before which there was none with their columns
    int64_t *next;     // [rows] the next one with the columns of this, or -1
    int64_t *table;    // [buckets] of first rows, by their columns, or -1
    int32_t *scratch;  // [tasks][cols]
} symbolic;

// Whether to leave out the rest, asked once in a million entries.
static bool stopped(const symbolic *s, int64_t *entries, int64_t more) {
    *entries += more;
    if (*entries < 1 << 20) return false;
    *entries = 0;
    return dpcri_watch_stopped(s->watch);
}

static uint64_t hash_row(const dpcr_pattern *p, int64_t i) {
    uint64_t h = 0;
    for (int64_t e = p->offsets[i]; e < p->offsets[i + 1]; e++) {
        h = (h ^ (uint64_t)p->columns[e]) * 0x9e3779b97f4a7c15;
        h ^= h >> 32;
    }
    return h;
}

static bool same_columns(const dpcr_pattern *p, int64_t i, int64_t k) {
    const int64_t n = p->offsets[i + 1] - p->offsets[i];
    return p->offsets[k + 1] - p->offsets[k] == n &&
           (n == 0 ||
            memcmp(p->columns + p->offsets[i], p->columns + p->offsets[k], (size_t)n * sizeof *p->columns) == 0);
}

static void find_firsts(symbolic *s, int64_t buckets) {
    const dpcr_pattern *a = s->product->later.pattern;
    int64_t entries = 0;
    memset(s->table, 0xff, (size_t)buckets * sizeof *s->table);
    for (int64_t i = 0; i < a->rows && !stopped(s, &entries, a->offsets[i + 1] - a->offsets[i]); i++) {
        int64_t at = (int64_t)(hash_row(a, i) & (uint64_t)(buckets - 1));
        while (s->table[at] >= 0 && !same_columns(a, s->table[at], i)) at = (at + 1) & (buckets - 1);
        const int64_t first = s->table[at];
        s->next[i] = first < 0 ? -1 : s->next[first];
        if (first < 0)
            s->table[at] = s->first[s->firsts++] = i;
        else
            s->next[first] = i;
    }
}

// offsets[i + 1] = columns of row i. A stamp is the last row that reached the column.
static void count_columns(void *argument, int64_t task) {
    const symbolic *s = argument;
    const dpcr_pattern *a = s->product->later.pattern, *b = s->product->earlier.pattern;
    int32_t *stamp = s->scratch + task * b->cols;
    int64_t entries = 0;
    memset(stamp, 0xff, (size_t)b->cols * sizeof *stamp);
    for (int64_t k = task; k < s->firsts; k += s->tasks) {
        const int64_t row = s->first[k];
        const int32_t now = (int32_t)row;
        int64_t count = 0;
        for (int64_t e = a->offsets[row]; e < a->offsets[row + 1]; e++) {
            const int64_t from = b->offsets[a->columns[e]], to = b->offsets[a->columns[e] + 1];
            for (int64_t f = from; f < to; f++) {
                count += stamp[b->columns[f]] != now;
                stamp[b->columns[f]] = now;
            }
            if (stopped(s, &entries, to - from + 1)) return;
        }
        for (int64_t i = row; i >= 0; i = s->next[i]) s->product->offsets[i + 1] = count;
    }
}

// Reads the marks in order, eight at a time, and clears them.
static void take_marks(unsigned char *marks, int64_t cols, int32_t *out, const int32_t *end) {
    for (int64_t j = 0; out < end; j += 8) {
        uint64_t eight = 1;
        if (j + 8 <= cols) memcpy(&eight, marks + j, sizeof eight);
        if (!eight) continue;
        for (int64_t k = j; k < j + 8 && k < cols; k++)
            if (marks[k]) {
                marks[k] = 0;
                *out++ = (int32_t)k;
            }
    }
}

static void fill_columns(void *argument, int64_t task) {
    const symbolic *s = argument;
    const dpcr_pattern *a = s->product->later.pattern, *b = s->product->earlier.pattern;
    const int64_t *offsets = s->product->offsets;
    int32_t *columns = s->product->columns;
    unsigned char *marks = (unsigned char *)(s->scratch + task * b->cols);
    int64_t entries = 0;
    memset(marks, 0, (size_t)b->cols);
    for (int64_t k = task; k < s->firsts; k += s->tasks) {
        const int64_t row = s->first[k], count = offsets[row + 1] - offsets[row];
        if (count == 0) continue;  // where no row has columns there is no memory for them
        for (int64_t e = a->offsets[row]; e < a->offsets[row + 1]; e++) {
            const int64_t from = b->offsets[a->columns[e]], to = b->offsets[a->columns[e] + 1];
            for (int64_t f = from; f < to; f++) marks[b->columns[f]] = 1;
            if (stopped(s, &entries, to - from + 1)) return;
        }
        take_marks(marks, b->cols, columns + offsets[row], columns + offsets[row] + count);
        for (int64_t i = s->next[row]; i >= 0; i = s->next[i]) {
            memcpy(columns + offsets[i], columns + offsets[row], (size_t)count * sizeof *columns);
            if (stopped(s, &entries, count)) return;
        }
    }
}

static dpcr_status fail_size(const dpcr_product *p, dpcr_error *error) {
    return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "product: %" PRId64 "x%" PRId64 " has too many values", p->c.rows,
                      p->c.cols);
}

static dpcr_status finished(const symbolic *s, dpcr_error *error) {
    return dpcri_watch_stopped(s->watch) ? dpcri_fail_stopped(error, "product") : DPCR_OK;
}

// Memory for the rows' lists, then, once the first rows are known, for the tasks.
static dpcr_status plan_rows(symbolic *s, dpcr_error *error) {
    dpcr_product *p = s->product;
    bool overflow = false;
    int64_t buckets = 1;
    while (buckets < 2 * p->c.rows) buckets *= 2;
    const size_t lists = dpcri_bytes(2 * p->c.rows + buckets, 1, sizeof *s->first, &overflow),
                 offsets = dpcri_bytes(p->c.rows + 1, 1, sizeof *p->offsets, &overflow);
    if (overflow) return fail_size(p, error);
    s->first = dpcri_alloc(p->context, lists);
    p->offsets = dpcri_alloc(p->context, offsets);
    if (!s->first || !p->offsets)
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "product: %zu bytes for the pattern's rows were refused",
                          lists + offsets);
    s->next = s->first + p->c.rows;
    s->table = s->next + p->c.rows;
    find_firsts(s, buckets);
    s->tasks = count_tasks(p->flops * (double)s->firsts / (double)p->c.rows, s->firsts);
    const size_t scratch = dpcri_bytes(s->tasks, p->c.cols, sizeof *s->scratch, &overflow);
    if (overflow) return fail_size(p, error);
    s->scratch = dpcri_alloc(p->context, scratch);
    if (!s->scratch) return dpcri_fail(error, DPCR_ERROR_MEMORY, "product: %zu bytes of scratch were refused", scratch);
    return DPCR_OK;
}

static dpcr_status plan_pattern(dpcr_product *p, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    bool overflow = false;
    dpcri_watch watch;
    symbolic s = {.product = p, .watch = dpcri_watch_begin(&watch, p->context, p->flops)};
    DPCR_TRY(plan_rows(&s, error));
    dpcri_parallel(p->context, s.tasks, count_columns, &s);
    DPCR_TRY(finished(&s, error));
    p->offsets[0] = 0;
    for (int64_t i = 0; i < p->c.rows; i++)
        if (!dpcri_add(p->offsets[i + 1], p->offsets[i], &p->offsets[i + 1])) DPCR_TRY(fail_size(p, error));
    const int64_t entries = p->offsets[p->c.rows];
    if (entries > p->c.rows * p->c.cols / 2) {  // no overflow: C has fitted as dense
        p->c.structure = DPCR_DENSE;
        dpcri_free(p->context, p->offsets);
        p->offsets = NULL;
        goto done;
    }
    const size_t bytes = dpcri_bytes(entries, 1, sizeof *p->columns, &overflow);
    if (overflow) DPCR_TRY(fail_size(p, error));
    p->columns = dpcri_alloc(p->context, bytes);
    if (!p->columns && bytes > 0)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY,
                            "product: %zu bytes for a pattern of %" PRId64 " entries were refused", bytes, entries));
    dpcri_parallel(p->context, s.tasks, fill_columns, &s);
    DPCR_TRY(finished(&s, error));
    p->pattern = (dpcr_pattern){p->c.rows, p->c.cols, p->offsets, p->columns};
    p->c.structure = DPCR_CSR;
    p->c.pattern = &p->pattern;
done:
    dpcri_free(p->context, s.scratch);
    dpcri_free(p->context, s.first);
    return status;
}

// ---- plans ----

static dpcr_status check_factor(const char *name, const dpcr_transition *t, dpcr_error *error) {
    const dpcr_status status = dpcr_transition_check(t, error);
    if (status != DPCR_OK) return status;
    if (t->structure != DPCR_DENSE && t->structure != DPCR_DIAGONAL && t->structure != DPCR_CSR)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "product: %s is %s, wanted dense, diagonal or csr", name,
                          dpcr_structure_name(t->structure));
    return DPCR_OK;
}

dpcr_status dpcr_product_create(dpcr_context *context, const dpcr_transition *later, const dpcr_transition *earlier,
                                dpcr_product **product, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcr_product *p = NULL;
    if (product) *product = NULL;
    if (!context || !product)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "product: %s is NULL", context ? "product" : "context");
    DPCR_TRY(check_factor("later", later, error));
    DPCR_TRY(check_factor("earlier", earlier, error));
    if (later->cols != earlier->rows)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "product: later is %" PRId64 "x%" PRId64 ", earlier %" PRId64 "x%" PRId64
                          ", wanted as many columns as rows of the earlier",
                          later->rows, later->cols, earlier->rows, earlier->cols);
    p = dpcri_alloc_zero(context, sizeof *p);
    if (!p) return dpcri_fail(error, DPCR_ERROR_MEMORY, "product: %zu bytes were refused", sizeof *p);
    p->context = context;
    p->later = *later;
    p->earlier = *earlier;
    int64_t values = 0;
    p->c = (dpcr_transition){.structure = DPCR_DENSE, .rows = later->rows, .cols = earlier->cols};
    if (later->structure == DPCR_DIAGONAL)
        p->c = *earlier;
    else if (earlier->structure == DPCR_DIAGONAL)
        p->c = *later;
    else if (!dpcri_mul(p->c.rows, p->c.cols, &values) || !dpcri_mul(values, (int64_t)sizeof(double), &values))
        DPCR_TRY(fail_size(p, error));
    if (later->structure == DPCR_CSR || earlier->structure == DPCR_CSR)
        for (int64_t i = 0; i < p->c.rows; i++) p->flops += dpcri_product_row_flops(p, i);
    else  // all rows are alike
        p->flops = (double)p->c.rows * dpcri_product_row_flops(p, 0);
    if (later->structure == DPCR_CSR && earlier->structure == DPCR_CSR) DPCR_TRY(plan_pattern(p, error));
    *product = p;
    p = NULL;
done:
    dpcr_product_destroy(p);
    return status;
}

void dpcr_product_destroy(dpcr_product *product) {
    if (!product) return;
    dpcri_free(product->context, product->columns);
    dpcri_free(product->context, product->offsets);
    dpcri_free(product->context, product);
}

const dpcr_transition *dpcr_product_transition(const dpcr_product *product) { return product ? &product->c : NULL; }

double dpcr_product_flops(const dpcr_product *product) { return product ? product->flops : 0; }

int64_t dpcri_product_places(const dpcr_product *p) {
    return p->c.structure == DPCR_CSR && p->later.structure == DPCR_CSR && p->earlier.structure == DPCR_CSR ? p->c.cols
                                                                                                            : 0;
}

size_t dpcri_product_bytes(const dpcr_product *p) {
    size_t bytes = sizeof *p;
    if (p->columns) bytes += (size_t)p->offsets[p->c.rows] * sizeof *p->columns;
    if (p->offsets) bytes += (size_t)(p->c.rows + 1) * sizeof *p->offsets;
    return bytes;
}

// ---- numbers ----

typedef struct job {
    const dpcr_product *product;
    const dpcri_sparse_kernels *kernels;
    int64_t size, steps, rows, cuts[MOST_TASKS + 1];
    dpcri_view later, earlier, c;
    int32_t *places;  // [tasks][cols]
} job;

static dpcri_matrix matrix_at(const job *j, const dpcr_transition *t, const dpcri_view *view, int64_t i, int64_t b) {
    return dpcri_matrix_of(t, view->data ? (char *)view->data + (i * view->step + b * view->row) * j->size : NULL,
                           false);
}

static void run_task(void *argument, int64_t task) {
    const job *j = argument;
    const dpcr_product *p = j->product;
    int32_t *places = j->places ? j->places + task * p->c.cols : NULL;
    for (int64_t i = 0; i < j->steps; i++)
        for (int64_t b = 0; b < j->rows; b++) {
            const dpcri_matrix later = matrix_at(j, &p->later, &j->later, i, b),
                               earlier = matrix_at(j, &p->earlier, &j->earlier, i, b),
                               c = matrix_at(j, &p->c, &j->c, i, b);
            j->kernels->single.compose(&later, &earlier, &c, places, j->cuts[task], j->cuts[task + 1]);
        }
}

dpcr_status dpcr_product_execute(const dpcr_product *product, const dpcr_array *later, const dpcr_array *earlier,
                                 const dpcr_array *c, dpcr_error *error) {
    static const char *const function = "product_execute";
    dpcr_status status = DPCR_OK;
    if (!product) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: product is NULL", function);
    DPCR_TRY(dpcri_check_steps(function, c, error));
    job j = {.product = product,
             .kernels = dpcri_sparse_kernels_get(c->dtype),
             .size = (int64_t)dpcr_dtype_size(c->dtype),
             .steps = c->shape[0],
             .rows = c->shape[1]};
    dpcri_wanted w = {.function = function, .dtype = c->dtype, .steps = j.steps, .rows = j.rows, .shareable = true};
    w.name = "later";
    w.values = dpcr_transition_values(&product->later);
    DPCR_TRY(dpcri_view_of(later, &w, &j.later, error));
    w.name = "earlier";
    w.values = dpcr_transition_values(&product->earlier);
    DPCR_TRY(dpcri_view_of(earlier, &w, &j.earlier, error));
    w.name = "c";
    w.values = dpcr_transition_values(&product->c);
    w.shareable = false;
    w.written = true;
    DPCR_TRY(dpcri_view_of(c, &w, &j.c, error));
    if (j.steps == 0 || j.rows == 0 || w.values == 0) return DPCR_OK;
    if (j.c.data == j.later.data || j.c.data == j.earlier.data)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: c is one of the inputs, wanted another array", function);
    const int64_t tasks = count_tasks(product->flops * (double)j.steps * (double)j.rows, product->c.rows),
                  places = dpcri_product_places(product);
    if (places > 0) {
        bool overflow = false;
        const size_t bytes = dpcri_bytes(tasks, places, sizeof *j.places, &overflow);
        j.places = overflow ? NULL : dpcri_alloc(product->context, bytes);
        if (!j.places)
            return dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: %zu bytes of scratch were refused", function, bytes);
    }
    cut_rows(product, tasks, j.cuts);
    dpcri_parallel(product->context, tasks, run_task, &j);
    dpcri_free(product->context, j.places);
done:
    return status;
}
