// SPDX-License-Identifier: MIT
// eval of a model of text: its likelihood over a text as one sequence, by the loop and by the method asked for.
#include <math.h>
#include <string.h>

#include "sequences.h"

static int read_text(dpcr_context *context, const cli_eval_sequence *e, cli_text *text, uint8_t **bytes,
                     int64_t *count) {
    const int status = cli_text_read(context, e->data ? e->data : CLI_TEXT, text);
    if (status) return status;
    const bool train = !strcmp(e->split, "train");
    *bytes = train ? text->train : text->test;
    *count = train ? text->train_count : text->test_count;
    if (e->limit && e->limit < *count) *count = e->limit;
    return *count >= 2 ? CLI_DONE : cli_fail(CLI_INPUT, "one character has no likelihood: wanted --limit 2 or more");
}

static int score(dpcr_context *context, dpcr_sequence *model, const uint8_t *text, int64_t count,
                 const dpcr_solve_options *solve, dpcr_sequence_likelihood_report *report) {
    dpcr_error error = {0};
    *report = (dpcr_sequence_likelihood_report){.size = sizeof *report};
    cli_signals_at_once(true);  // the loop over all of a text is one call
    const dpcr_status status = dpcr_sequence_likelihood(context, model, text, count, solve, report, &error);
    cli_signals_at_once(false);
    if (status == DPCR_OK) return CLI_DONE;
    if (error.status == DPCR_ERROR_UNSUPPORTED) return cli_eval_unsupported(model, count - 1, 1, false, solve, &error);
    if (error.status == DPCR_ERROR_ARGUMENT) return cli_fail(CLI_INPUT, "%s", error.text);
    return cli_fail_error(&error, CLI_COMPUTING);
}

static void set_report(cli_result *r, const dpcr_sequence_likelihood_report *own,
                       const dpcr_sequence_likelihood_report *loop) {
    cli_set_real(r, "loss", own->loss);
    cli_set_real(r, "bits", own->loss / log(2));
    cli_set_real(r, "accuracy", own->accuracy);
    cli_set_text(r, "method", dpcr_method_name(own->method));
    cli_set_text(r, "reason", dpcr_reason_name(own->reason));
    cli_set_real(r, "residual", own->residual);
    cli_set_real(r, "seconds", own->seconds);
    cli_set_real(r, "network_seconds", own->network_seconds);
    cli_set_real(r, "plan_seconds", own->plan_seconds);
    cli_set_real(r, "loop_loss", loop->loss);
    cli_set_real(r, "loop_seconds", loop->seconds);
    cli_set_real(r, "loop_network_seconds", loop->network_seconds);
    cli_set_real(r, "difference", fabs(own->loss - loop->loss));
    cli_set_text(r, "memory", own->memory);
    cli_set_real(r, "memory_rate", own->memory_rate);
    cli_set_int(r, "memory_steps", own->memory_steps);
    cli_set_text(r, "sentence", own->sentence);
}

static void say(const cli_common *common, const dpcr_sequence_likelihood_report *own,
                const dpcr_sequence_likelihood_report *loop, int64_t count) {
    cli_say(common, "%.6f nats a character (%.4f bits), accuracy %.2f %%, over %lld characters as one sequence\n",
            own->loss, own->loss / log(2), 100 * own->accuracy, (long long)count - 1);
    cli_say(common, "%-12s network %.3f s, in all %.3f s\n", "loop:", loop->network_seconds, loop->seconds);
    cli_say(common,
            "%-12s network %.3f s (%.2f times the loop's speed), in all %.3f s; differs by %.1e a character%s\n",
            dpcr_method_name(own->method), own->network_seconds, loop->network_seconds / own->network_seconds,
            own->seconds, fabs(own->loss - loop->loss), cli_in_order(own->reason));
    if (own->memory_steps > 0)
        cli_say(common, "memory: the network %s: two starts agree after %lld step%s\n", own->memory,
                (long long)own->memory_steps, cli_s(own->memory_steps));
    else
        cli_say(common, "memory: %s\n", own->memory);
    cli_say(common, "%s\n", own->sentence);
}

int cli_eval_text_run(dpcr_context *context, const cli_eval_sequence *e, dpcr_sequence *model) {
    cli_text text = {0};
    cli_alphabet alphabet;
    uint8_t *bytes = NULL;
    int64_t count = 0;
    int status = CLI_DONE;
    const dpcr_sequence_options *o = dpcr_sequence_get_options(model);
    if (e->batch_given) return cli_fail(CLI_USAGE, "--batch: '%s' is a model of text, which is one sequence", e->load);
    if (o->readout != DPCR_READOUT_EACH ||
        !cli_alphabet_parse(dpcr_sequence_metadata(model, "text.symbols"), &alphabet) || alphabet.count != o->symbols)
        status = cli_fail(CLI_INPUT, "'%s' is no model of text: its metadata 'text.symbols' do not name its symbols",
                          e->load);
    if (!status) status = read_text(context, e, &text, &bytes, &count);
    if (!status) {
        const int64_t others = cli_alphabet_encode(&alphabet, bytes, count);
        const dpcr_solve_options loop = {.size = sizeof loop, .method = DPCR_METHOD_SEQUENTIAL};
        dpcr_sequence_likelihood_report own, first;
        if (e->solver->options.method == DPCR_METHOD_AUTO) cli_machine_load(context, false);
        status = score(context, model, bytes, count, &loop, &first);
        if (!status) status = score(context, model, bytes, count, &e->solver->options, &own);
        if (!status) {
            cli_result r = cli_result_create();
            set_report(&r, &own, &first);
            cli_set_int(&r, "characters", count);
            cli_set_int(&r, "characters_without_symbol", others);
            cli_set_text(&r, "network", dpcr_recurrent_kind_name(o->network.kind));
            cli_set_int(&r, "hidden", o->network.hidden);
            cli_set_int(&r, "threads", dpcr_context_threads(context));
            say(e->common, &own, &first, count);
            status = cli_finish(e->common, &r, CLI_DONE);
            cli_result_destroy(&r);
        }
    }
    cli_text_free(&text);
    return status;
}
