// SPDX-License-Identifier: MIT
// solve linear --scheme distributed: each rank reads its steps of the files, solves them with the others, and writes
// its states into their place of the one output.
#include <string.h>

#include "ranks.h"
#include "solve.h"
#include "world.h"

typedef struct work {
    const cli_linear *s;
    dpcr_array a, b, z0;  // of the whole chain, without data
    dpcr_chain_shape shape;
    dpcr_distributed_report report;  // rank 0's
    double seconds;
    int status;
} work;

static int look(dpcr_context *context, const char *what, const char *path, dpcr_array *array) {
    dpcr_error error = {0};
    if (!cli_readable(what, path)) return CLI_INPUT;
    return dpcr_npy_look(context, path, array, &error) == DPCR_OK ? CLI_DONE : cli_fail_error(&error, CLI_READING);
}

// The files' shapes.
static int look_at_files(dpcr_context *context, work *w) {
    const cli_linear *s = w->s;
    dpcr_array view;
    int status = look(context, "A", s->a, &w->a);
    if (!status) status = look(context, "b", s->b, &w->b);
    if (!status && s->z0) status = look(context, "z0", s->z0, &w->z0);
    if (!status) status = cli_linear_shape(&w->a, &w->b, NULL, s->transposed, &w->shape, &view);
    if (!status && s->z0) status = cli_linear_start(&w->z0, &w->shape, &view);
    if (!status && !cli_writable("the output", s->output)) status = CLI_RESOURCES;
    return status;
}

typedef struct part {
    dpcr_tensors a, b, z0;
    int64_t first, count;
} part;

static dpcr_status read_part(cli_ranks *rank, const work *w, part *p, dpcr_error *error) {
    const cli_linear *s = w->s;
    dpcr_status status = dpcr_npy_read_rows(rank->context, s->a, p->first, p->count, &p->a, error);
    if (status == DPCR_OK) status = dpcr_npy_read_rows(rank->context, s->b, p->first, p->count, &p->b, error);
    if (status == DPCR_OK && s->z0 && rank->transport->rank == 0)
        status = dpcr_npy_read(rank->context, s->z0, &p->z0, error);
    return cli_ranks_agree(rank, CLI_READING, status, error);
}

static dpcr_status solve_part(cli_ranks *rank, work *w, part *p, dpcr_error *error) {
    const cli_linear *s = w->s;
    dpcr_chain_shape shape = w->shape;
    shape.length = p->count;
    const dpcr_array *b = &p->b.items[0].array, *from = &p->a.items[0].array;
    const dpcr_array a =
        dpcr_array_make(from->data, from->dtype, 3,
                        (const int64_t[]){p->count, from->shape[1], dpcr_transition_values(&shape.transition)});
    const dpcr_array z0 = dpcr_array_make(p->z0.count ? p->z0.items[0].array.data : NULL, shape.dtype, 2,
                                          (const int64_t[]){shape.batch, shape.transition.rows});
    const dpcr_distributed_options options = {.size = sizeof options,
                                              .transport = rank->transport,
                                              .scan = s->scan,
                                              .chunk = s->options.chunk,
                                              .deadline = rank->deadline};
    dpcr_distributed_report report = {.size = sizeof report};
    const double start = cli_now();
    rank->doing = CLI_COMPUTING;
    // Where products lose what the states keep, b is asked for again.
    const size_t bytes = (size_t)cli_array_count(b) * dpcr_dtype_size(b->dtype);
    dpcr_array z = *b;
    dpcr_status status = DPCR_OK;
    if (!(z.data = cli_allocate(bytes))) {
        status = error->status = DPCR_ERROR_MEMORY;
        snprintf(error->text, sizeof error->text, "not enough memory for %zu bytes of states", bytes);
    }
    status = cli_ranks_agree(rank, CLI_COMPUTING, status, error);
    if (status == DPCR_OK)
        status = dpcr_chain_distributed(rank->context, &shape, &options, &a, b, p->z0.count ? &z0 : NULL, &z, NULL,
                                        NULL, &report, error);
    if (status == DPCR_OK) memcpy(b->data, z.data, bytes);
    cli_release(z.data);
    if (status == DPCR_OK) status = cli_ranks_agree(rank, CLI_COMPUTING, DPCR_OK, error);
    if (rank->transport->rank == 0) {
        w->report = report;
        w->seconds = cli_now() - start;
    }
    return status;
}

static int tell(const work *w) {
    const cli_linear *s = w->s;
    const dpcr_distributed_report *report = &w->report;
    cli_result r = cli_result_create();
    char sentence[128], in_order[64];
    snprintf(sentence, sizeof sentence, "distributed: asked for; %lld rank%s, a %s each", (long long)s->ranks,
             cli_s(s->ranks), cli_world_size() > 1 ? "process" : "thread");
    cli_set_int(&r, "length", w->shape.length);
    cli_set_int(&r, "batch", w->shape.batch);
    cli_set_int(&r, "width", w->shape.transition.rows);
    cli_set_text(&r, "structure", dpcr_structure_name(w->shape.transition.structure));
    cli_set_text(&r, "dtype", dpcr_dtype_name(w->shape.dtype));
    cli_set_bool(&r, "transposed", w->shape.transposed != 0);
    cli_set_text(&r, "scheme", "distributed");
    cli_set_int(&r, "sweeps", 1);
    cli_set_int(&r, "finished_from", report->finished_from);
    cli_set_int(&r, "compositions", report->compositions);
    cli_set_int(&r, "applications", report->applications);
    cli_set_int(&r, "depth", report->depth);
    cli_set_real(&r, "seconds", w->seconds);
    cli_set_int(&r, "workspace_bytes", (json_int_t)report->workspace_bytes);
    cli_set_text(&r, "sentence", sentence);
    cli_set_text(&r, "output", s->output);
    cli_set_int(&r, "ranks", s->ranks);
    cli_set_text(&r, "scan", s->scan == DPCR_SCAN_TRANSPORT ? "mpi" : "messages");
    cli_set_int(&r, "summary_bytes", (json_int_t)report->summary_bytes);
    cli_set_real(&r, "seconds_reduce", report->seconds_reduce);
    cli_set_real(&r, "seconds_scan", report->seconds_scan);
    cli_set_real(&r, "seconds_apply", report->seconds_apply);
    cli_say(&s->common,
            "%lld step%s, batch %lld, width %lld, %s: distributed over %lld rank%s%s, depth %lld, %.3g s, in '%s'\n",
            (long long)w->shape.length, cli_s(w->shape.length), (long long)w->shape.batch,
            (long long)w->shape.transition.rows, dpcr_structure_name(w->shape.transition.structure),
            (long long)s->ranks, cli_s(s->ranks), cli_linear_in_order(report->finished_from, w->shape.length, in_order),
            (long long)report->depth, w->seconds, s->output);
    const int status = cli_finish(&s->common, &r, CLI_DONE);
    cli_result_destroy(&r);
    return status;
}

// Launchers may give processes options of their own.
static dpcr_status agree_on_options(cli_ranks *rank, const cli_linear *s, dpcr_error *error) {
    char options[CLI_RANKS_OPTIONS];
    snprintf(options, sizeof options, "--scan %s --chunk %lld%s%s", s->scan == DPCR_SCAN_TRANSPORT ? "mpi" : "messages",
             (long long)s->options.chunk, s->transposed ? " --transposed" : "",
             cli_flushes_denormals() ? "" : " --denormals keep");
    return cli_ranks_agree_on_options(rank, options, error);
}

static dpcr_status run_rank(cli_ranks *rank, dpcr_error *error) {
    work *w = rank->user;
    const dpcr_transport *t = rank->transport;
    dpcr_status status = DPCR_OK;
    if (cli_world_size() > 1) {
        cli_hold(true);
        status = cli_ranks_agree(rank, CLI_COMPUTING, cli_ranks_held(look_at_files(rank->context, w), error), error);
        cli_hold(false);
        if (status == DPCR_OK) status = cli_ranks_agree_on_length(rank, "--b", w->b.shape[0], error);
        if (status == DPCR_OK) status = agree_on_options(rank, w->s, error);
        if (status != DPCR_OK) return status;
    }
    const int64_t length = w->shape.length;
    part p = {.first = cli_rank_first(length, t->ranks, t->rank)};
    p.count = cli_rank_first(length, t->ranks, t->rank + 1) - p.first;
    status = read_part(rank, w, &p, error);
    if (status == DPCR_OK) status = solve_part(rank, w, &p, error);
    if (status == DPCR_OK) status = cli_ranks_write(rank, w->s->output, &w->b, p.first, &p.b.items[0].array, error);
    dpcr_tensors_free(rank->context, &p.a);
    dpcr_tensors_free(rank->context, &p.b);
    dpcr_tensors_free(rank->context, &p.z0);
    return status;
}

int cli_solve_linear_ranks(const cli_linear *s) {
    work w = {.s = s};
    int status = CLI_DONE;
    const bool alone = cli_world_size() == 1;
    if (alone) {
        dpcr_context *context = cli_context_create(&s->common, &status);
        if (!context) return status;
        status = look_at_files(context, &w);
        dpcr_context_destroy(context);
        if (status) return status;
    }
    status = cli_ranks_run(&s->common, s->ranks, s->deadline, run_rank, &w);
    if (status || cli_world_rank() > 0) return status;
    return tell(&w);
}
