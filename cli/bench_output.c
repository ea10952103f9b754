// SPDX-License-Identifier: MIT
// bench: points as JSON, as CSV (one row a direction) and as text.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static const bench_entrant *loop_of(const bench_race *r) { return &r->entrants[0]; }
static const bench_entrant *best_of(const bench_race *r) { return r->best > 0 ? &r->entrants[r->best] : NULL; }
static const bench_entrant *auto_of(const bench_race *r) { return &r->entrants[r->chosen]; }

static double ratio(const bench_race *r, const bench_entrant *e) { return e ? loop_of(r)->seconds / e->seconds : NAN; }

static double largest_spread(const bench_race *r) {
    const double two = fmax(loop_of(r)->spread, auto_of(r)->spread);
    return best_of(r) ? fmax(two, best_of(r)->spread) : two;
}

// ---- JSON ----

static json_t *text_or_null(const char *text) { return text ? json_string(text) : json_null(); }

static json_t *entrant_json(const bench_race *race, const bench_entrant *e) {
    cli_result r = cli_result_create();
    cli_set_text(&r, "name", e->name);
    if (e->skipped[0]) {
        cli_set_text(&r, "skipped", e->skipped);
        return cli_result_take(&r);
    }
    cli_set_text(&r, "ran", e->chosen);
    cli_set(&r, "scheme", text_or_null(e->scheme));
    cli_set(&r, "reason", text_or_null(e->reason));
    cli_set(&r, "tolerance", e->tolerance >= 0 ? json_real(e->tolerance) : json_null());
    cli_set(&r, "run_up", e->run_up > 0 ? json_integer(e->run_up) : json_null());
    cli_set_real(&r, "seconds", e->seconds);
    cli_set_real(&r, "ratio", ratio(race, e));
    cli_set_real(&r, "spread", e->rounds > 0 ? e->spread : NAN);
    cli_set_int(&r, "rounds", e->rounds);
    cli_set_int(&r, "runs_a_round", e->inner);
    cli_set_int(&r, "sweeps", e->sweeps);
    cli_set_real(&r, "max_error", e->max_error);
    if (e->evaluations >= 0) cli_set_int(&r, "evaluations", e->evaluations);
    if (e->depth >= 0) cli_set_int(&r, "depth", e->depth);
    if (e->flops >= 0) cli_set_real(&r, "flops", e->flops);
    cli_set_int(&r, "workspace_bytes", (json_int_t)e->workspace);
    return cli_result_take(&r);
}

static json_t *race_json(const bench_race *race) {
    const bench_entrant *best = best_of(race), *chosen = auto_of(race);
    cli_result r = cli_result_create();
    cli_set_real(&r, "sequential_seconds", loop_of(race)->seconds);
    cli_set_real(&r, "parallel_seconds", best ? best->seconds : NAN);
    cli_set(&r, "parallel_method", text_or_null(best ? best->name : NULL));
    cli_set_real(&r, "ratio", ratio(race, best));
    cli_set_real(&r, "auto_seconds", chosen->seconds);
    cli_set_text(&r, "auto_method", chosen->chosen);
    cli_set_real(&r, "auto_ratio", ratio(race, chosen));
    cli_set_real(&r, "max_error", best ? best->max_error : NAN);
    cli_set_real(&r, "auto_max_error", chosen->max_error);
    cli_set_real(&r, "spread", largest_spread(race));
    cli_set_int(&r, "rounds", race->rounds);
    cli_set(&r, "sweeps", best ? json_integer(best->sweeps) : json_null());
    cli_set(&r, "reason", text_or_null(best ? best->reason : NULL));
    if (race->bytes > 0) cli_set_real(&r, "bytes", race->bytes);
    json_t *list = json_array();
    for (int i = 0; list && i < race->count; i++) cli_append(&list, entrant_json(race, &race->entrants[i]));
    cli_set(&r, "candidates", list);
    return cli_result_take(&r);
}

static void set_point(cli_result *r, const bench_point *p) {
    cli_set_int(r, "length", p->length);
    cli_set_int(r, "width", p->width);
    cli_set_int(r, "batch", p->batch);
    cli_set(r, "forward", race_json(&p->forward));
    cli_set(r, "backward", race_json(&p->backward));
    const int least = p->forward.rounds < p->backward.rounds ? p->forward.rounds : p->backward.rounds;
    cli_set_int(r, "repetitions", least);
}

static bool is_cell(const bench *b) { return !strcmp(b->kind, "cell"); }

// The structure of a linear chain or of a cell's W; NULL for a network.
static const char *structure_text(const bench *b) {
    return is_cell(b) || !strcmp(b->kind, "chain") ? dpcr_structure_name(b->structure) : NULL;
}

static const char *cell_text(const bench *b) { return is_cell(b) ? dpcr_activation_name(b->cell) : NULL; }

static const char *dtype_text(const bench *b) { return dpcr_dtype_name(b->network.options.dtype); }

static void set_frame(cli_result *r, const bench *b, const bench_limits *limits, int threads) {
    cli_set_text(r, "kind", b->kind);
    if (cell_text(b)) cli_set_text(r, "cell", cell_text(b));
    if (structure_text(b)) cli_set_text(r, "structure", structure_text(b));
    if (structure_text(b)) cli_set_real(r, "radius", b->radius);
    if (is_cell(b)) cli_set_real(r, "input_sd", b->input_sd);
    cli_set_text(r, "dtype", dtype_text(b));
    cli_set_int(r, "threads", threads);
    cli_set_text(r, "isa", dpcr_isa_name());
    cli_set_text(r, "machine", dpcr_processor_name());
    if (b->commit)
        cli_set_text(r, "commit", b->commit);
    else
        cli_set(r, "commit", json_null());
    cli_set_int(r, "seed", (json_int_t)b->common.seed);
    if (!limits) return;
    cli_set_real(r, "triad_bytes_per_second",
                 limits->triad_bytes_per_second > 0 ? limits->triad_bytes_per_second : NAN);
    cli_set_real(r, "fma_latency_seconds", limits->fma_seconds > 0 ? limits->fma_seconds : NAN);
    cli_set_real(r, "line_seconds", limits->line_seconds > 0 ? limits->line_seconds : NAN);
}

static int print_json(const bench *b, const bench_point *points, int count, const bench_limits *limits, int threads) {
    const bool listed = b->lengths.count || b->widths.count || b->batches.count;
    cli_result r = cli_result_create();
    set_frame(&r, b, limits, threads);
    if (!listed) set_point(&r, &points[0]);
    json_t *list = listed ? json_array() : NULL;
    for (int i = 0; list && i < count; i++) {
        cli_result one = cli_result_create();
        set_point(&one, &points[i]);
        cli_append(&list, cli_result_take(&one));
    }
    if (listed) cli_set(&r, "points", list);
    const int status = cli_print_json(&r);
    cli_result_destroy(&r);
    return status;
}

// ---- CSV ----

static const char *const timed[] = {"overlap", "newton", "shooting", "diagonal", "block",  "picard",
                                    "jacobi",  "damped", "pcr",      "blelloch", "chunked"};
enum { TIMED = sizeof timed / sizeof *timed };

static void csv_head(FILE *out) {
    fprintf(
        out,
        "kind,cell,structure,radius,input_sd,direction,length,width,batch,dtype,threads,isa,bytes,sequential_seconds,"
        "parallel_"
        "seconds,"
        "parallel_method,ratio,auto_seconds,auto_method,auto_ratio,sweeps,reason,max_error,auto_max_error,spread,"
        "rounds");
    for (int i = 0; i < TIMED; i++) fprintf(out, ",%s_seconds", timed[i]);
    fprintf(out, ",seed,triad_bytes_per_second,fma_latency_seconds,line_seconds,machine,commit\n");
}

static void csv_real(FILE *out, double value) {
    fputc(',', out);
    if (isfinite(value)) fprintf(out, "%.6g", value);
}
static void csv_text(FILE *out, const char *text) { fprintf(out, ",%s", text ? text : ""); }

// The winner's where the method has won, which others of the name may have undercut in a first look only; else the
// fastest of the name.
static double seconds_of(const bench_race *r, const char *name) {
    const bench_entrant *best = best_of(r);
    double least = HUGE_VAL;
    if (best && !strcmp(best->name, name)) return best->seconds;
    for (int i = 1; i < r->count; i++) {
        const bench_entrant *e = &r->entrants[i];
        if (i != r->chosen && !e->skipped[0] && !strcmp(e->name, name)) least = fmin(least, e->seconds);
    }
    return least;
}

static void csv_row(FILE *out, const bench *b, const bench_point *p, bool back, const bench_limits *limits,
                    int threads) {
    const bench_race *r = back ? &p->backward : &p->forward;
    const bench_entrant *best = best_of(r), *chosen = auto_of(r);
    fputs(b->kind, out);
    csv_text(out, cell_text(b));
    csv_text(out, structure_text(b));
    csv_real(out, structure_text(b) ? b->radius : NAN);
    csv_real(out, is_cell(b) ? b->input_sd : NAN);
    fprintf(out, ",%s,%lld,%lld,%lld,%s,%d,%s", back ? "backward" : "forward", (long long)p->length,
            (long long)p->width, (long long)p->batch, dtype_text(b), threads, dpcr_isa_name());
    csv_real(out, r->bytes > 0 ? r->bytes : NAN);
    csv_real(out, loop_of(r)->seconds);
    csv_real(out, best ? best->seconds : NAN);
    csv_text(out, best ? best->name : NULL);
    csv_real(out, ratio(r, best));
    csv_real(out, chosen->seconds);
    csv_text(out, chosen->chosen);
    csv_real(out, ratio(r, chosen));
    csv_real(out, best ? (double)best->sweeps : NAN);
    csv_text(out, best ? best->reason : NULL);
    csv_real(out, best ? best->max_error : NAN);
    csv_real(out, chosen->max_error);
    csv_real(out, largest_spread(r));
    csv_real(out, r->rounds);
    for (int i = 0; i < TIMED; i++) csv_real(out, seconds_of(r, timed[i]));
    fprintf(out, ",%llu", (unsigned long long)b->common.seed);
    csv_real(out, limits && limits->triad_bytes_per_second > 0 ? limits->triad_bytes_per_second : NAN);
    csv_real(out, limits && limits->fma_seconds > 0 ? limits->fma_seconds : NAN);
    csv_real(out, limits && limits->line_seconds > 0 ? limits->line_seconds : NAN);
    fputc(',', out);
    cli_csv_text(out, dpcr_processor_name());
    csv_text(out, b->commit);
    fputc('\n', out);
}

static int write_csv(const bench *b, const bench_point *points, int count, const bench_limits *limits, int threads) {
    cli_buffer text;
    FILE *out = cli_buffer_open(&text);
    if (!out) return cli_fail_memory("the CSV table");
    csv_head(out);
    for (int i = 0; i < count; i++)
        for (int back = 0; back < 2; back++) csv_row(out, b, &points[i], back, limits, threads);
    return cli_buffer_save(&text, "the CSV table", b->common.csv);
}

// ---- text ----

static const char *duration(double seconds, char *text, size_t bytes) {
    const double unit = seconds < 1e-3 ? 1e-6 : seconds < 1 ? 1e-3 : 1;
    snprintf(text, bytes, "%.3g %s", seconds / unit, unit == 1 ? "s" : unit == 1e-3 ? "ms" : "us");
    return text;
}

static void say_race(const bench *b, const char *direction, const bench_race *r) {
    char loop[32], best[32], chosen[32];
    const bench_entrant *e = best_of(r), *a = auto_of(r);
    cli_say(&b->common, "  %-8s  loop %s", direction, duration(loop_of(r)->seconds, loop, sizeof loop));
    if (e) {
        cli_say(&b->common, "   %s %s (%.3gx, error %.1e", e->name, duration(e->seconds, best, sizeof best),
                ratio(r, e), e->max_error);
        if (e->sweeps > 0) cli_say(&b->common, ", %d sweep%s", e->sweeps, cli_s(e->sweeps));
        cli_say(&b->common, "%s)", e->reason && !strcmp(e->reason, "fallback") ? ", finished in order" : "");
    }
    cli_say(&b->common, "   auto %s (%s, %.3gx)   spread %.0f %%, %d round%s\n",
            duration(a->seconds, chosen, sizeof chosen), a->chosen, ratio(r, a), 100 * largest_spread(r), r->rounds,
            cli_s(r->rounds));
}

void bench_say_point(const bench *b, const bench_point *p, int threads) {
    const char *structure = structure_text(b), *cell = cell_text(b);
    cli_say(&b->common, "%s%s%s%s%s, length %lld, width %lld, batch %lld, %s, %d thread%s, %s\n", b->kind,
            cell ? " " : "", cell ? cell : "", structure ? " " : "", structure ? structure : "", (long long)p->length,
            (long long)p->width, (long long)p->batch, dtype_text(b), threads, cli_s(threads), dpcr_isa_name());
    say_race(b, "forward", &p->forward);
    say_race(b, "backward", &p->backward);
    fflush(stdout);
}

void bench_say_limits(const bench *b, const bench_limits *limits) {
    if (limits->triad_bytes_per_second > 0)
        cli_say(&b->common, "triad %.3g GB/s", limits->triad_bytes_per_second / 1e9);
    if (limits->fma_seconds > 0) cli_say(&b->common, ", a dependent fma %.3g ns", limits->fma_seconds * 1e9);
    if (limits->line_seconds > 0)
        cli_say(&b->common, ", a line from thread to thread %.3g ns", limits->line_seconds * 1e9);
    cli_say(&b->common, "\n");
}

// That they cannot be written either is no news.
void bench_keep(const bench *b, const bench_point *points, int count, int threads) {
    if (!b->common.csv || cli_is_stdout(b->common.csv) || count == 0) return;
    cli_silence(true);
    (void)write_csv(b, points, count, NULL, threads);
    cli_silence(false);
}

int bench_finish(const bench *b, const bench_point *points, int count, const bench_limits *limits, int threads) {
    if (b->common.csv) {
        const int written = write_csv(b, points, count, limits, threads);
        if (written) return written;
    }
    return b->common.json ? print_json(b, points, count, limits, threads) : CLI_DONE;
}
