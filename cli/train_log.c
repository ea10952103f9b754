// SPDX-License-Identifier: MIT
#include "train_log.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- options ----

enum { KEY_SAVE = 0x9800, KEY_RESUME, KEY_CHECKPOINT, KEY_LOG, KEY_LOG_EVERY, KEY_TEST };

static const struct argp_option report_options[] = {
    {"save", KEY_SAVE, "FILE", 0,
     "Model and checkpoint (safetensors), always whole on disk (default with --resume: the same file)", 0},
    {"resume", KEY_RESUME, "FILE", 0, "Go on from a checkpoint; ends with the bits of a run that was never stopped", 0},
    {"checkpoint-seconds", KEY_CHECKPOINT, "S", 0,
     "At most this much work is lost (default 10); every epoch's end is saved too", 0},
    {"log", KEY_LOG, "FILE", 0, "JSON Lines: an object a step and one an epoch ('-': standard output)", 0},
    {"log-every", KEY_LOG_EVERY, "N", 0, "Log every Nth step (default 1)", 0},
    {"test-every", KEY_TEST, "N", 0, "Test after every Nth epoch (default 1; 0: only at the end)", 0},
    {0},
};

static error_t taken(bool ok) { return ok ? 0 : EINVAL; }

static error_t parse_report(int key, char *arg, struct argp_state *state) {
    cli_report *r = state->input;
    switch (key) {
        case KEY_SAVE: r->train->save = arg; return 0;
        case KEY_RESUME: r->train->resume = arg; return 0;
        case KEY_CHECKPOINT:
            return taken(cli_read_double("--checkpoint-seconds", arg, 1e-3, HUGE_VAL, &r->train->checkpoint_seconds));
        case KEY_LOG: r->log_path = arg; return 0;
        case KEY_LOG_EVERY: return taken(cli_read_int64("--log-every", arg, 1, INT64_MAX, &r->log_every));
        case KEY_TEST: return taken(cli_read_int64("--test-every", arg, 0, INT64_MAX, &r->test_every));
        default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp cli_report_argp = {report_options, parse_report, NULL, NULL, NULL, NULL, NULL};

void cli_report_settle(cli_report *report) {
    dpcr_train_options *o = report->train;
    if (o->resume && !o->save) o->save = o->resume;
    report->resuming = o->resume != NULL;
}

// A log is emptied, or cut back to its last whole line; so a file that is there must be one of ours, or empty. Every
// line is an object with an event.
static int check_log(const char *path) {
    static const char begin[] = "{\"event\": \"";
    char line[1 << 13];
    struct stat info;
    if (!path || cli_is_stdout(path) || stat(path, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0)
        return CLI_DONE;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t got = fd >= 0 ? read(fd, line, sizeof line - 1) : -1;
    const int code = errno;
    if (fd >= 0) close(fd);
    if (got < 0) return cli_fail(CLI_INPUT, "cannot read the log '%s' that is there: %s", path, strerror(code));
    line[got] = 0;
    line[strcspn(line, "\n")] = 0;
    const bool cut = got > 0 && got < (ssize_t)sizeof begin && !memcmp(line, begin, (size_t)got);  // by a full disk
    if (cut || (line[0] == '{' && strstr(line, begin + 1))) return CLI_DONE;
    return cli_fail(CLI_USAGE, "--log '%s' is there and is no log of training: wanted a new name, or such a log", path);
}

int cli_report_check(const cli_report *report) {
    const dpcr_train_options *o = report->train;
    if (o->resume && !cli_resumable(o->resume)) return CLI_INPUT;
    const int status = cli_check_save(o->save, o->checkpoint_seconds);
    if (status != CLI_DONE) return status;
    if (report->log_every && !report->log_path) return cli_fail(CLI_USAGE, "--log-every: wanted with --log");
    const cli_file log = {"--log", report->log_path}, csv = {"--csv", report->common->csv};
    const cli_file written[] = {{"--save", o->save}, log, csv}, read[] = {{"--resume", o->resume}, log, csv};
    if (!cli_stdout_share(report->common, written, 3)) return CLI_USAGE;
    if (!cli_distinct(written, 3) || !cli_distinct(read, 3)) return CLI_USAGE;
    return check_log(report->log_path);
}

// ---- the log ----

static int fail(const cli_log *log) {
    return cli_fail(CLI_RESOURCES, "cannot write the log '%s': %s", log->path, strerror(errno));
}

static bool is_pipe(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISFIFO(info.st_mode);
}

// ENXIO: a pipe that nobody reads yet. To make a file is tried last: where all may write (/tmp) who tries it may not
// open another's.
static int open_to_append(const char *path) {
    const int how = O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, fd = open(path, how);
    return fd < 0 && errno == ENOENT ? open(path, how | O_CREAT, 0666) : fd;
}

// What is there stays until there is something to tell: a run may be refused yet. A pipe is waited for.
static int log_open(cli_log *log, const char *path) {
    log->path = path;
    log->fd = -1;
    if (!path) return CLI_DONE;
    log->stream = cli_is_stdout(path);
    if (log->stream) {
        log->fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
        return log->fd < 0 ? fail(log) : CLI_DONE;
    }
    log->fd = open_to_append(path);
    while (log->fd < 0 && errno == ENXIO && is_pipe(path) && !cli_signal()) {
        poll(NULL, 0, CLI_WAIT_MS);
        log->fd = open_to_append(path);
    }
    if (log->fd < 0) return cli_signal() ? cli_fail_stopped() : fail(log);
    return CLI_DONE;  // nobody shares this opening, as they may standard output's: it stays without blocking
}

static void log_close(cli_log *log) {
    if (log->fd >= 0) close(log->fd);
    log->fd = -1;
}

// The step of a line, or 0 where it has none.
static long long step_of(const char *line) {
    const char *at = strstr(line, "\"step\": ");
    return at ? strtoll(at + 8, NULL, 10) : 0;
}

static bool is_end(const char *line) { return strstr(line, "\"event\": \"end\"") != NULL; }

// Leaves the lines of steps before `step` (0: none), of a run that had ended none of its end.
static int log_rewind(cli_log *log, int64_t step) {
    struct stat info;
    if (log->fd < 0 || log->stream || fstat(log->fd, &info) != 0 || !S_ISREG(info.st_mode)) return CLI_DONE;
    FILE *file = fopen(log->path, "r");
    if (!file) return cli_fail_reading("the log", log->path, errno);
    char *line = NULL;
    size_t room = 0;
    off_t keep = 0;
    // A line without an end was cut off by a full disk; it goes too.
    ssize_t n;
    for (; (n = getline(&line, &room, file)) > 0 && line[n - 1] == '\n'; keep += n)
        if (step_of(line) >= step || is_end(line)) break;
    // Where it cannot be read, or memory is out, no line is to go.
    const int status = n < 0 && !feof(file)            ? cli_fail_reading("the log", log->path, errno)
                       : ftruncate(log->fd, keep) == 0 ? CLI_DONE
                                                       : fail(log);
    free(line);
    fclose(file);
    return status;
}

// A reader that is slow is waited for, but not past a signal; what finds room at once is written after one too.
static bool has_room(int fd, bool again) {
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int ready = again ? 0 : poll(&p, 1, 0);
    while (ready <= 0 && !cli_signal()) ready = poll(&p, 1, CLI_WAIT_MS);
    return ready > 0;
}

// How many bytes are written. Less than all: there was no *room before a signal came, or errno says why.
static size_t write_all(int fd, const char *line, size_t bytes, bool *room) {
    size_t done = 0;
    bool again = false;
    for (; done < bytes && (*room = has_room(fd, again)); again = true) {
        errno = ENOSPC;
        const ssize_t written = write(fd, line + done, bytes - done);
        if (written > 0)
            done += (size_t)written;
        else if (errno == EAGAIN)  // less room than the line takes at once
            poll(NULL, 0, CLI_WAIT_MS);
        else if (errno != EINTR)
            break;
    }
    return done;
}

// Of a file nothing is left of a line that is not whole.
static bool take_back(const cli_log *log, size_t done) {
    struct stat info;
    if (done == 0 || log->stream || fstat(log->fd, &info) != 0 || !S_ISREG(info.st_mode)) return true;
    return info.st_size < (off_t)done || ftruncate(log->fd, info.st_size - (off_t)done) == 0;
}

static int log_write(cli_log *log, json_t *object) {
    if (log->fd < 0 || !object) {
        json_decref(object);
        return log->fd < 0 ? CLI_DONE : cli_fail_memory("a line of the log");
    }
    char *line = cli_json_line(object, 0);
    json_decref(object);
    if (!line) return cli_fail_memory("a line of the log");
    const size_t bytes = strlen(line);
    bool room = true;
    const size_t done = write_all(log->fd, line, bytes, &room);
    const int code = errno;
    free(line);
    if (done == bytes) return CLI_DONE;
    log->missed |= !room;  // who stopped the run is told so by what stops it
    if (!take_back(log, done)) return fail(log);
    errno = code;
    return room ? fail(log) : CLI_DONE;
}

// ---- what all training tells ----

static dpcr_train_state without_tests(const dpcr_train_state *state, double test_seconds) {
    dpcr_train_state s = *state;
    s.seconds -= test_seconds;
    if (s.seconds <= 0) return s;
    const double slowed = state->seconds / s.seconds;
    s.images_per_second *= slowed;
    s.seconds_left /= slowed;
    return s;
}

static json_t *make_line(const char *event, const dpcr_train_state *s, const char *unit) {
    char rate[32];
    snprintf(rate, sizeof rate, "%s_per_second", unit);
    return json_pack("{ss sI sI so sf sf sf}", "event", event, "step", (json_int_t)s->step, "epoch",
                     (json_int_t)s->epoch, "loss", cli_json_real(s->loss), "accuracy", s->accuracy, "seconds",
                     s->seconds, rate, s->images_per_second);
}

// `before`: the step told before; late gradients are told a segment at a time.
static int log_step(cli_log *log, int64_t every, int64_t before, const dpcr_train_state *s, const char *unit) {
    if (log->fd < 0 || s->step / every == before / every) return CLI_DONE;
    json_t *line = make_line("step", s, unit);
    cli_put(&line, "method", json_string(dpcr_method_name(s->method)));
    cli_put(&line, "sweeps", json_integer(s->sweeps));
    cli_put(&line, "reason", json_string(dpcr_reason_name(s->reason)));
    return log_write(log, line);
}

static int write_table(const char *path, const json_t *epochs) {
    static const char *const columns[] = {"epoch", "step", "loss", "accuracy", "test_loss", "test_accuracy", "seconds"};
    enum { COLUMNS = sizeof columns / sizeof columns[0] };
    cli_buffer text;
    FILE *out = cli_buffer_open(&text);
    if (!out) return cli_fail_memory("the CSV table");
    for (int c = 0; c < COLUMNS; c++) fprintf(out, "%s%s", c ? "," : "", columns[c]);
    for (size_t i = 0; i < json_array_size(epochs); i++)
        for (int c = 0; c < COLUMNS; c++) {
            const json_t *value = json_object_get(json_array_get(epochs, i), columns[c]);
            fputc(c ? ',' : '\n', out);
            if (json_is_number(value)) fprintf(out, "%.9g", json_number_value(value));
        }
    fputc('\n', out);
    return cli_buffer_save(&text, "the CSV table", path);
}

// The step that a checkpoint stands at; -1: not told, as of a file that is none, which the training refuses.
static int64_t step_of_checkpoint(dpcr_context *context, const char *path) {
    dpcr_tensors file = {0};
    int64_t step = -1;
    if (dpcr_safetensors_read(context, path, &file, NULL) == DPCR_OK) {
        const char *told = dpcr_tensors_metadata(&file, "deeppcr.train.step");
        if (told) step = strtoll(told, NULL, 10);
    }
    dpcr_tensors_free(context, &file);
    return step;
}

int cli_report_open(cli_report *r, dpcr_context *context) {
    r->epochs = json_array();
    r->from = r->resuming ? step_of_checkpoint(context, r->train->resume) : 0;
    const int status = log_open(&r->log, r->log_path);
    return status || r->epochs ? status : cli_fail_memory("the epochs' figures");
}

void cli_report_close(cli_report *r) {
    log_close(&r->log);
    // Of a run that was stopped or failed, which is told, the epochs that it did; where that takes no reader.
    const char *csv = r->common->csv;
    if (csv && !r->tabled && !is_pipe(csv) && json_array_size(r->epochs) > 0) {
        cli_hold(true);
        write_table(csv, r->epochs);
        cli_hold(false);
    }
    json_decref(r->epochs);
    r->epochs = NULL;
}

static dpcr_status test_after(cli_report *r, int64_t step, dpcr_error *error) {
    const double start = cli_now();
    const dpcr_status status = r->test(r->test_user, &r->test_loss, &r->test_accuracy, error);
    r->test_seconds += cli_now() - start;
    if (status == DPCR_OK) r->tested_step = step;
    return status;
}

// What the steps were planned by serves a test too: it is not supported where it may not fall back.
static int fail_test(const cli_report *r, const dpcr_error *error) {
    return cli_fail_error(error, r->train->solve.no_fallback ? CLI_STRICTLY : CLI_COMPUTING);
}

int cli_report_test(cli_report *r, int64_t step) {
    dpcr_error error = {0};
    const dpcr_status status = test_after(r, step, &error);
    if (status == DPCR_ERROR_CANCELLED && step >= 0 && r->train->save)
        return cli_fail(128 + cli_signal(), "stopped as asked in the last test; the network is trained, in %s",
                        r->train->save);
    if (status == DPCR_ERROR_CANCELLED && step < 0) return 128 + cli_signal();  // whoever asked for the test tells
    if (status == DPCR_ERROR_CANCELLED) return cli_fail_stopped();
    return status == DPCR_OK ? CLI_DONE : fail_test(r, &error);
}

// A test that is stopped or fails leaves an epoch without one, which is kept. The training, which is stopped too, tells
// of the former.
static int end_epoch(cli_report *r, const dpcr_train_state *s) {
    bool tested = (r->test_every > 0 && s->epoch % r->test_every == 0) || s->step == s->steps;
    if (tested) {
        dpcr_error error = {0};
        cli_progress_clear(&r->progress);
        const dpcr_status status = test_after(r, s->step, &error);
        if (status != DPCR_OK && status != DPCR_ERROR_CANCELLED) r->test_status = fail_test(r, &error);
        tested = status == DPCR_OK;
    }
    json_t *line = make_line("epoch", s, r->unit);
    if (tested) {
        cli_put(&line, "test_loss", cli_json_real(r->test_loss));
        cli_put(&line, "test_accuracy", cli_json_real(r->test_accuracy));
    }
    if (json_array_append(r->epochs, line) != 0) {
        json_decref(line);
        return r->test_status ? r->test_status : cli_fail_memory("the epoch's figures");
    }
    cli_progress_clear(&r->progress);
    cli_say(r->common, "epoch %lld/%lld  loss %.4f  accuracy %.2f %%", (long long)s->epoch, (long long)s->epochs,
            s->loss, 100 * s->accuracy);
    if (tested) cli_say(r->common, "  test loss %.4f  test accuracy %.2f %%", r->test_loss, 100 * r->test_accuracy);
    cli_say(r->common, "  %.0f %s/s\n", s->images_per_second, r->unit);
    if (!r->common->json) fflush(stdout);
    return log_write(&r->log, line);
}

// A step that the log lacks would be missing for ever were it saved: it is done again.
int cli_report_step(cli_report *r, const dpcr_train_state *state) {
    const int64_t before = r->begun ? r->state.step : r->from >= 0 ? r->from : state->step - 1;
    if (!r->begun) r->status = log_rewind(&r->log, r->resuming ? before + 1 : 0);
    r->begun = true;
    if (state->sentence) snprintf(r->sentence, sizeof r->sentence, "%s", state->sentence);
    const dpcr_train_state s = without_tests(state, r->test_seconds);
    r->state = s;
    if (!r->status) r->status = log_step(&r->log, r->log_every ? r->log_every : 1, before, &s, r->unit);
    cli_progress_draw(&r->progress, &s, state->epoch_ended != 0);
    if (state->reason == DPCR_REASON_FALLBACK || state->backward_reason == DPCR_REASON_FALLBACK)
        r->finished_in_order += s.step - before;
    if (!r->status && !r->log.missed && state->epoch_ended) r->status = end_epoch(r, &s);
    if (r->status || r->log.missed) return -1;
    r->status = r->test_status;
    return r->status ? r->status : cli_signal();
}

int cli_report_final(cli_report *r, const dpcr_train_state *last, dpcr_train_state *final) {
    const char *save = r->train->save;
    if (r->log.missed)
        return cli_fail(128 + cli_signal(), "stopped as asked before the log had all of the last step%s%s",
                        save ? "; to go on, resume from " : "", save ? save : "");
    *final = r->begun ? r->state : *last;
    if (!r->begun) final->seconds = 0;  // it was complete already
    return r->begun && r->tested_step == final->step ? CLI_DONE : cli_report_test(r, final->step);
}

static json_t *known(const char *text, bool is_unknown) { return is_unknown ? json_null() : json_string(text); }

void cli_report_set(const cli_report *report, const dpcr_train_state *final, const cli_solver *solver, cli_result *r) {
    char rate[32];
    snprintf(rate, sizeof rate, "%s_per_second", report->unit);
    cli_set_real(r, "test_accuracy", report->test_accuracy);
    cli_set_real(r, "test_loss", report->test_loss);
    cli_set_real(r, "train_accuracy", final->accuracy);
    cli_set_real(r, "train_loss", final->loss);
    cli_set_real(r, "seconds", final->seconds);
    cli_set_real(r, "test_seconds", report->test_seconds);
    cli_set_real(r, rate, final->images_per_second);
    cli_set_int(r, "steps", final->step);
    const bool none = !report->begun;  // complete already: what was left open then nobody has decided now
    cli_set(r, "method", known(dpcr_method_name(final->method), none && final->method == DPCR_METHOD_AUTO));
    cli_set_text(r, "scheme", dpcr_scheme_name(solver->options.scheme));
    cli_set(r, "backward", known(dpcr_scheme_name(final->backward), none && final->backward == DPCR_SCHEME_AUTO));
    cli_set_int(r, "finished_in_order", report->finished_in_order);
    cli_set(r, "sentence", known(report->sentence, none && !report->sentence[0]));
    if (final->threads || none) cli_set(r, "threads_used", final->threads ? json_integer(final->threads) : json_null());
    const dpcr_train_phases *p = &final->phases;
    cli_set(r, "phases",
            json_pack("{sf sf sf sf sf sf sf sf}", "gather", p->gather, "encode", p->encode, "forward", p->forward,
                      "head", p->head, "backward", p->backward, "encode_backward", p->encode_backward, "update",
                      p->update, "checkpoint", p->checkpoint));
}

void cli_report_set_optimiser(const dpcr_optimiser_options *o, cli_result *r) {
    cli_set_text(r, "optimiser", cli_optimiser_name(o->kind));
    cli_set_real(r, "rate", o->rate);
    cli_set_real(r, "weight_decay", o->weight_decay);
    cli_set_int(r, "warm_up", o->warm_up);
}

void cli_report_say_sentence(const cli_report *r) {
    if (r->sentence[0]) cli_say(r->common, "%s\n", r->sentence);
    if (r->finished_in_order)
        cli_say(r->common, "%lld step%s finished in order, for the method or the way back did not converge there\n",
                (long long)r->finished_in_order, r->finished_in_order == 1 ? " was" : "s were");
}

int cli_report_end(cli_report *r, const dpcr_train_state *final, cli_result *result) {
    json_t *line = NULL;
    if (!result->failed && (line = json_object()) && json_object_update(line, result->object) != 0) {
        json_decref(line);
        line = NULL;
    }
    cli_put(&line, "event", json_string("end"));
    cli_put(&line, "step", json_integer(final->step));
    // Resumed where it was complete already: its end takes the place of the one that is there.
    int status = r->resuming && !r->begun ? log_rewind(&r->log, INT64_MAX) : CLI_DONE;
    if (!status)
        status = log_write(&r->log, line);
    else
        json_decref(line);
    if (!status && r->log.missed) status = cli_fail_stopped();
    if (!status && r->common->csv) {
        status = write_table(r->common->csv, r->epochs);
        r->tabled = true;
    }
    if (!status && r->common->json) status = cli_print_json(result);
    cli_result_destroy(result);
    return status;
}
