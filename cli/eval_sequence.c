// SPDX-License-Identifier: MIT
// eval of sequence models: texts go to eval_text.c; classifiers of bit streams and of recordings are told loss and
// accuracy, by the loop and by the method asked for.
#include <math.h>
#include <string.h>

#include "recordings.h"
#include "sequences.h"

#define MOST_PRODUCTS 1e14  // multiply-adds of one evaluation of bit streams

typedef struct subject {
    dpcr_context *context;
    const cli_eval_sequence *e;
    dpcr_sequence *model;
    dpcr_sequence_data data;
    cli_bits bits;
    cli_recordings recordings;
    cli_reader reader;
} subject;

typedef struct score {
    double loss, accuracy, seconds;
    dpcr_reason reason;
} score;

int cli_eval_unsupported(dpcr_sequence *model, int64_t length, int64_t batch, bool packed,
                         const dpcr_solve_options *solve, const dpcr_error *error) {
    dpcr_recurrent_plan_options options = {
        .size = sizeof options, .length = length, .batch = batch, .packed = packed, .solve = *solve};
    dpcr_recurrent_plan *plan = NULL;
    const bool planned = dpcr_recurrent_plan_create(dpcr_sequence_network(model), &options, &plan, NULL) == DPCR_OK;
    dpcr_recurrent_plan_destroy(plan);
    if (planned && solve->no_fallback) return cli_fail(CLI_UNCONVERGED, "%s", error->text);
    return cli_fail_error(error, CLI_COMPUTING);
}

static int take(subject *s, const dpcr_solve_options *solve, score *to) {
    dpcr_error error = {0};
    const double start = cli_now();
    const dpcr_status status = dpcr_sequence_evaluate(s->context, s->model, &s->data, s->e->batch, solve, &to->loss,
                                                      &to->accuracy, &to->reason, &error);
    to->seconds = cli_now() - start;
    if (status == DPCR_OK) return CLI_DONE;
    if (status == DPCR_ERROR_CANCELLED) return cli_fail_stopped();
    if (status == DPCR_ERROR_UNSUPPORTED)
        return cli_eval_unsupported(s->model, s->data.longest, s->e->batch, !s->data.same_length, solve, &error);
    return status == DPCR_ERROR_ARGUMENT ? cli_fail(CLI_INPUT, "%s", error.text)
                                         : cli_fail_error(&error, CLI_COMPUTING);
}

static int tell(const subject *s, const score *own, const score *loop) {
    const dpcr_sequence_options *o = dpcr_sequence_get_options(s->model);
    const char *unit = s->recordings.total ? "recordings" : "sequences";
    const bool train = !strcmp(s->e->split, "train");
    cli_result r = cli_result_create();
    cli_set_real(&r, train ? "train_loss" : "test_loss", own->loss);
    cli_set_real(&r, train ? "train_accuracy" : "test_accuracy", own->accuracy);
    cli_set_real(&r, "loop_loss", loop->loss);
    cli_set_real(&r, "loop_accuracy", loop->accuracy);
    cli_set_real(&r, "difference", fabs(own->loss - loop->loss));
    cli_set_real(&r, "seconds", own->seconds);
    cli_set_real(&r, "loop_seconds", loop->seconds);
    cli_set_int(&r, unit, s->data.count);
    cli_set_int(&r, "length", s->data.longest);
    cli_set_text(&r, "method", dpcr_method_name(s->e->solver->options.method));
    cli_set_text(&r, "reason", dpcr_reason_name(own->reason));
    cli_set_text(&r, "network", dpcr_recurrent_kind_name(o->network.kind));
    cli_set_int(&r, "hidden", o->network.hidden);
    cli_set_int(&r, "threads", dpcr_context_threads(s->context));
    cli_say(s->e->common,
            "%s accuracy %.2f %%, loss %.6f over %lld %s\nloop %.3f s, %s %.3f s, planning included; "
            "losses differ by %.1e%s\n",
            s->e->split, 100 * own->accuracy, own->loss, (long long)s->data.count, unit, loop->seconds,
            dpcr_method_name(s->e->solver->options.method), own->seconds, fabs(own->loss - loop->loss),
            cli_in_order(own->reason));
    const int status = cli_finish(s->e->common, &r, CLI_DONE);
    cli_result_destroy(&r);
    return status;
}

static int compare(subject *s) {
    const dpcr_solve_options loop = {.size = sizeof loop, .method = DPCR_METHOD_SEQUENTIAL};
    score first, own;
    if (s->e->limit && s->e->limit < s->data.count) s->data.count = s->e->limit;
    if (s->e->solver->options.method == DPCR_METHOD_AUTO) cli_machine_load(s->context, false);
    int status = take(s, &loop, &first);
    if (!status) status = take(s, &s->e->solver->options, &own);
    return status ? status : tell(s, &own, &first);
}

// The streams that it was trained on come first; a tenth as many after them are for testing.
static int evaluate_bits(subject *s) {
    const bool train = !strcmp(s->e->split, "train");
    const int64_t trained = s->bits.first;
    if (s->e->data && strcmp(s->e->data, CLI_BITSTREAM) != 0)
        return cli_fail(CLI_USAGE, "'%s' tells bit streams apart: wanted --data bitstream", s->e->load);
    // states and bits of a batch; a file may say anything
    const double batch = (double)(s->e->batch < trained ? s->e->batch : trained),
                 bytes = 8 * batch * (double)s->bits.length *
                         (double)(1 + dpcr_sequence_get_options(s->model)->network.hidden);
    if (bytes > (double)cli_memory_budget() / 2)
        return cli_fail(CLI_RESOURCES,
                        "'%s': %.0f streams of %lld bits would take about %.3g GB; wanted a smaller --batch",
                        s->e->load, batch, (long long)s->bits.length, 1e-9 * bytes);
    // and time: a hundred times BPPSA's 32 000 streams of 30 000 bits are an hour's work, what a file says may be
    // anything
    const double streams = (double)(train ? trained : trained / 10 + 1),
                 asked = s->e->limit && (double)s->e->limit < streams ? (double)s->e->limit : streams,
                 products = asked * (double)s->bits.length * (double)dpcr_sequence_parameter_count(s->model);
    if (products > MOST_PRODUCTS)
        return cli_fail(CLI_RESOURCES,
                        "'%s': %.4g streams of %lld bits would take %.2g multiply-adds, more than %.2g; wanted --limit",
                        s->e->load, asked, (long long)s->bits.length, products, MOST_PRODUCTS);
    if (train) s->bits.first = 0;
    s->data = (dpcr_sequence_data){.size = sizeof s->data,
                                   .count = train ? trained : trained / 10 + 1,
                                   .longest = s->bits.length,
                                   .same_length = 1,
                                   .features = 1,
                                   .read = cli_bits_read,
                                   .user = &s->bits};
    return compare(s);
}

static int evaluate_recordings(subject *s, const cli_features *options) {
    const char *data = s->e->data ? s->e->data : CLI_SPEAKERS;
    if (!cli_recordings_named(data)) return cli_fail(CLI_INPUT, "'%s' is no folder of recordings", data);
    int status = cli_recordings_read(data, options, &s->recordings);
    if (status) return status;
    status = cli_recordings_scale_as(&s->recordings, s->model, s->e->load);
    s->reader = (cli_reader){&s->recordings, !strcmp(s->e->split, "train") ? 0 : 1};
    s->data = cli_recordings_data(&s->reader);
    if (!status) status = compare(s);
    cli_recordings_free(&s->recordings);
    return status;
}

int cli_eval_sequence_run(dpcr_context *context, const cli_eval_sequence *e) {
    subject s = {.context = context, .e = e};
    cli_features features;
    dpcr_error error = {0};
    int status;
    if (dpcr_sequence_load(context, e->load, &s.model, &error) != DPCR_OK) return cli_fail_error(&error, CLI_READING);
    const dpcr_readout readout = dpcr_sequence_get_options(s.model)->readout;
    if (readout == DPCR_READOUT_EACH)
        status = cli_eval_text_run(context, e, s.model);
    else if (cli_bits_noted(s.model, &s.bits))
        status = evaluate_bits(&s);
    else if (cli_recordings_are(s.model)) {
        status = cli_recordings_noted(s.model, e->load, &features);
        if (!status) status = evaluate_recordings(&s, &features);
    } else
        status = cli_fail(CLI_INPUT,
                          "'%s' does not say what it was trained on: wanted metadata 'bitstream' or "
                          "'audio.features'",
                          e->load);
    dpcr_sequence_destroy(s.model);
    return status;
}
