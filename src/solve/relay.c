// SPDX-License-Identifier: MIT
// Overlapped chunks, a chunk a rank:
//
//   sweep 1   every rank runs its range from its guess (which a run-up over its neighbour's steps has made)
//   check     what went out of the neighbour, against the guess: within atol + rtol |z|, or bit for bit where both
//             are 0
//   sweep k   ranks whose guess was wrong run again from what came
//   after     max_sweeps: in order from the first wrong one, each waiting for the one before it
//   scaled    tolerances are (atol + rtol) times the sequence's largest number that goes out of a rank, and in order
//             times that of what came, where it is less
//
// Rank r is right after r + 1 sweeps at the latest. A sequence that agrees keeps its start, so its bits do not hang on
// the others. One message of a state a boundary and sweep, and a word with every rank (scaled: two).
// Source: Song et al. (2002.03629, Jacobi-Gauss-Seidel) over processes; docs/math/overlap.md.
#include "solve/relay.h"

#include <math.h>
#include <string.h>

typedef struct verdict {
    int64_t bad, failed, lost;  // lost: what goes out is not finite
    double defect, ratio;
    dpcri_relay_own own;
} verdict;

typedef struct job {
    dpcri_relay *r;
    const dpcri_row_ops *ops;
    int64_t position;
    size_t row_bytes;
    void *came;                   // [rows][width]
    double *scale;                // [rows]
    double *scales;               // [ranks][rows]
    unsigned char *open, *opens;  // [rows], [ranks][rows]: not 0 where a sequence's boundary was wrong
    bool finishing;               // in order; `open` is then of any rank's boundary
    verdict *verdicts;            // [ranks]
} job;

static char *row_of(const job *j, const void *state, int64_t row) {
    return (char *)(uintptr_t)state + (size_t)row * j->row_bytes;
}

static double value_at(const void *x, int64_t i, dpcr_dtype dtype) {
    return dtype == DPCR_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

static double largest(const job *j, const void *x) {
    double size = 0;
    for (int64_t i = 0; i < j->r->width; i++) size = fmax(size, fabs(value_at(x, i, j->r->dtype)));
    return size;
}

// From zeros, where y is NULL.
static double farthest(const job *j, const void *x, const void *y) {
    double size = 0;
    for (int64_t i = 0; i < j->r->width; i++) {
        const double d = fabs(value_at(x, i, j->r->dtype) - (y ? value_at(y, i, j->r->dtype) : 0));
        if (d != d) return d;
        size = fmax(size, d);
    }
    return size;
}

// Forward also beside the states themselves, as overlap's chunks join.
static bool close(const job *j, const void *x, const void *y, int64_t row) {
    const dpcri_relay *r = j->r;
    if (memcmp(x, y, j->row_bytes) == 0) return true;
    if (!r->scaled) {
        const double doubt = fmax(DPCRI_DOUBT, r->rtol);
        return j->ops->close(x, y, r->width, r->atol, r->rtol) && farthest(j, x, y) <= doubt * largest(j, x);
    }
    const double allowed = (r->atol + r->rtol) * j->scale[row];
    return allowed > 0 && farthest(j, x, y) <= allowed;
}

// Each sequence's largest number at any boundary.
static dpcr_status find_scales(job *j, dpcr_error *error) {
    const dpcri_relay *r = j->r;
    dpcr_status status = DPCR_OK;
    if (!r->scaled) return DPCR_OK;
    for (int64_t row = 0; row < r->rows; row++) {
        const double size = largest(j, row_of(j, r->end, row));
        j->scale[row] = isfinite(size) ? size : 0;
    }
    DPCR_TRY(dpcri_gather_all(r->comm, j->scale, (size_t)r->rows * sizeof *j->scale, j->scales, error));
    for (int64_t k = 0; k < r->comm->ranks; k++)
        for (int64_t row = 0; row < r->rows; row++) j->scale[row] = fmax(j->scale[row], j->scales[k * r->rows + row]);
done:
    return status;
}

static dpcr_status send_on(const job *j, dpcr_error *error) {
    const dpcri_relay *r = j->r;
    if (j->position + 1 == r->comm->ranks) return DPCR_OK;
    return dpcri_send(r->comm, r->comm->rank + (r->reversed ? -1 : 1), DPCRI_TAG_STATE, r->end,
                      (size_t)r->rows * j->row_bytes, error);
}

static dpcr_status take(const job *j, dpcr_error *error) {
    const dpcri_relay *r = j->r;
    if (j->position == 0) return DPCR_OK;
    return dpcri_receive(r->comm, r->comm->rank - (r->reversed ? -1 : 1), DPCRI_TAG_STATE, j->came,
                         (size_t)r->rows * j->row_bytes, error);
}

// Of a sequence that goes on in order from its right states: further on there may be starts yet that are wrong, and
// large, so it goes by what came.
static bool goes_on(const job *j, int64_t row) {
    if (!j->finishing || !j->r->scaled) return true;
    const double size = largest(j, row_of(j, j->came, row));
    j->scale[row] = isfinite(size) ? fmin(j->scale[row], size) : 0;
    return j->open[row] != 0;
}

// What came takes the place of starts that it differs from.
static verdict compare(job *j) {
    const dpcri_relay *r = j->r;
    verdict v = {0};
    if (!j->finishing) memset(j->open, 0, (size_t)r->rows);
    for (int64_t row = 0; j->position > 0 && row < r->rows; row++) {
        char *start = row_of(j, r->start, row);
        const char *came = row_of(j, j->came, row);
        if (!goes_on(j, row) || memcmp(came, start, j->row_bytes) == 0) continue;
        const double unit = r->scaled ? j->scale[row] : fmax(1, largest(j, start)), d = farthest(j, came, start);
        const double from = farthest(j, came, r->guess ? row_of(j, r->guess, row) : NULL);
        v.defect = fmax(v.defect, !isfinite(d) ? HUGE_VAL : unit > 0 ? d / unit : 0);
        if (from > 0) v.ratio = fmax(v.ratio, d / from);
        if (close(j, came, start, row)) continue;
        memcpy(start, came, j->row_bytes);
        v.bad = j->open[row] = 1;
    }
    return v;
}

// No error is told of a chain that leaves the finite numbers: its boundaries agree, NaN with NaN.
static bool is_lost(const job *j) {
    for (int64_t row = 0; row < j->r->rows; row++)
        if (!isfinite(farthest(j, row_of(j, j->r->end, row), NULL))) return true;
    return false;
}

// Every rank's verdict to every rank.
static dpcr_status tell(const job *j, verdict *mine, dpcr_error *error) {
    mine->lost = is_lost(j);
    mine->own = j->r->own;
    return dpcri_gather_all(j->r->comm, mine, sizeof *mine, j->verdicts, error);
}

static dpcr_status gather_open(job *j, dpcr_error *error) {
    const dpcri_relay *r = j->r;
    const dpcr_status status = dpcri_gather_all(r->comm, j->open, (size_t)r->rows, j->opens, error);
    for (int64_t i = 0; status == DPCR_OK && i < r->comm->ranks * r->rows; i++) j->open[i % r->rows] |= j->opens[i];
    j->finishing = true;
    return status;
}

// From the first wrong rank on, one after another. One that fails sends on what it has, so that nobody waits in vain.
static dpcr_status finish(job *j, int64_t first, bool bad, dpcr_error *error) {
    dpcr_status status = DPCR_OK, ran = DPCR_OK;
    const dpcri_relay *r = j->r;
    if (r->scaled) DPCR_TRY(gather_open(j, error));
    if (j->position > first) {
        DPCR_TRY(take(j, error));
        bad |= compare(j).bad != 0;
    }
    if (j->position >= first) {
        if (bad) ran = r->run(r->user, error);
        DPCR_TRY(send_on(j, error));
    }
    DPCR_TRY(dpcri_agree(r->comm, ran, error));
done:
    return status;
}

// The ranks' own verdicts as one. What is left of an error, at a boundary or of a rank's own steps, is carried on over
// the others, each of which leaves at most `ratio` of it (solve/overlap.c).
static void fold(const job *j, double ratio) {
    dpcri_relay *r = j->r;
    double own = 0;
    bool known = true;
    r->worst = DPCR_REASON_SEQUENTIAL, r->residual = 0;
    for (int64_t q = 0; q < r->comm->ranks; q++) {
        const verdict *v = &j->verdicts[q];
        r->worst = dpcr_reason_worse(r->worst, (dpcr_reason)v->own.reason);
        r->residual = fmax(r->residual, v->own.residual);
        own = fmax(own, v->own.estimate);
        known = known && !v->lost && v->own.estimate >= 0;
    }
    const double wrong = r->defect + own;
    r->estimate = !known ? -1 : wrong == 0 ? 0 : ratio < 1 ? wrong / (1 - ratio) : -1;
}

static dpcr_status sweep(job *j, dpcr_error *error) {
    dpcr_status status;
    dpcri_relay *r = j->r;
    double ratio = 0;
    dpcr_status ran = r->run(r->user, error);
    for (r->sweeps = 1;; r->sweeps++) {
        DPCR_TRY(find_scales(j, error));  // what went out by mistake may have been the largest
        DPCR_TRY(send_on(j, error));
        DPCR_TRY(take(j, error));
        verdict mine = compare(j);
        mine.failed = ran != DPCR_OK;
        DPCR_TRY(tell(j, &mine, error));
        int64_t first = -1, failed = 0;
        r->defect = 0;
        for (int64_t q = 0; q < r->comm->ranks; q++) {
            const verdict *v = &j->verdicts[r->reversed ? r->comm->ranks - 1 - q : q];
            if (v->bad && first < 0) first = q;
            failed |= v->failed;
            r->defect = fmax(r->defect, v->defect);
            if (r->sweeps == 1) ratio = fmax(ratio, v->ratio);
        }
        if (failed) DPCR_TRY(dpcri_agree(r->comm, ran, error));
        if (first < 0) break;
        if (r->sweeps >= r->max_sweeps && r->no_fallback)
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                                "boundaries between ranks did not agree in %d sweep%s, and no_fallback was set",
                                r->sweeps, r->sweeps == 1 ? "" : "s"));
        if (r->sweeps >= r->max_sweeps) {
            r->finished = r->comm->ranks - first;
            DPCR_TRY(finish(j, first, mine.bad != 0, error));
            DPCR_TRY(tell(j, &mine, error));
            break;
        }
        if (mine.bad) ran = r->run(r->user, error);
    }
    fold(j, ratio);
done:
    return status;
}

dpcr_status dpcri_relay_run(dpcri_relay *r, dpcr_context *context, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    job j = {.r = r,
             .ops = dpcri_row_ops_of(r->dtype),
             .position = dpcri_relay_position(r->comm, r->reversed),
             .row_bytes = (size_t)r->width * dpcr_dtype_size(r->dtype)};
    dpcri_arena arena = {0};
    void *memory = NULL;
    for (int turn = 0; turn < 2; turn++) {
        j.came = dpcri_arena_take(&arena, r->rows * r->width, dpcr_dtype_size(r->dtype));
        j.scale = dpcri_arena_take(&arena, r->rows, sizeof *j.scale);
        j.scales = dpcri_arena_take(&arena, r->rows * r->comm->ranks, sizeof *j.scales);
        j.open = dpcri_arena_take(&arena, r->rows, 1);
        j.opens = dpcri_arena_take(&arena, r->rows * r->comm->ranks, 1);
        j.verdicts = dpcri_arena_take(&arena, r->comm->ranks, sizeof *j.verdicts);
        if (turn == 1) break;
        memory = dpcri_alloc(context, arena.used);
        status = r->ready;
        if (!memory && status == DPCR_OK)
            status = dpcri_fail(error, DPCR_ERROR_MEMORY, "no memory for %zu bytes of boundaries", arena.used);
        DPCR_TRY(dpcri_agree(r->comm, status, error));
        arena = (dpcri_arena){.base = memory, .size = arena.used};
    }
    DPCR_TRY(sweep(&j, error));
done:
    dpcri_free(context, memory);
    return status;
}

void dpcri_relay_tell(dpcri_relay *r, const dpcr_solve_report *own) {
    const bool loops = dpcr_reason_worse(own->reason, DPCR_REASON_EXACT) == DPCR_REASON_EXACT;
    r->own = (dpcri_relay_own){own->reason, own->residual, loops ? 0 : own->error_estimate};
}

void dpcri_relay_report(const dpcri_relay *r, int64_t evaluations, dpcr_solve_report *to) {
    if (!to) return;
    const bool exact = r->atol == 0 && r->rtol == 0;
    const bool loops = exact && dpcr_reason_worse(r->worst, DPCR_REASON_EXACT) == DPCR_REASON_EXACT;
    const bool sure = r->estimate >= 0 && r->estimate <= r->atol + r->rtol;
    dpcr_solve_report report = {.size = sizeof report};
    DPCRI_COPY_IN(report, to);  // its arrays are the caller's
    report.method = DPCR_METHOD_OVERLAP;
    report.scheme = DPCR_SCHEME_AUTO;
    report.sweeps = r->sweeps;
    report.evaluations = evaluations;
    report.residual = fmax(r->defect, r->residual);
    report.error_estimate = loops ? 0 : r->estimate;
    report.seconds = report.seconds_evaluate = report.seconds_linear = report.seconds_finish = 0;
    report.bytes = 0;
    report.history_length = 0;
    report.sentence = "overlap: a range of steps a rank";
    const dpcr_reason boundaries = r->finished ? DPCR_REASON_FALLBACK
                                   : exact     ? DPCR_REASON_EXACT
                                   : sure      ? DPCR_REASON_CONVERGED
                                               : DPCR_REASON_RESIDUAL_ONLY;
    report.reason = dpcr_reason_worse(boundaries, r->worst);
    dpcri_copy_out(to, &report, sizeof report);
}
