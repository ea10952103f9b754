// SPDX-License-Identifier: MIT
// Errors as one line on stderr, and the exit code that goes with each library status.
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static const char *verb_name;
static int failed;
static bool silent, held;
static char last[2048];  // the text told last

void cli_set_verb(const char *verb) { verb_name = verb; }
const char *cli_get_verb(void) { return verb_name; }
int cli_failed(void) { return failed; }
const char *cli_failed_text(void) { return last; }
void cli_silence(bool on) { silent = on; }
bool cli_silent(void) { return silent; }
void cli_hold(bool on) { held = on; }

static bool goes_on(char c) { return ((unsigned char)c & 0xc0) == 0x80; }  // a letter of UTF-8 that began before

// What is too long is cut in the middle, where a path is: the reason stands at the end.
static void shorten(char *text, size_t bytes, const char *whole, size_t length) {
    static const char mark[] = " [...] ";
    size_t tail = bytes / 3, head = bytes - tail - sizeof mark;
    for (int n = 0; n < 3 && goes_on(whole[head]); n++) head--;
    for (int n = 0; n < 3 && goes_on(whole[length - tail]); n++) tail--;
    snprintf(text, bytes, "%.*s%s%s", (int)head, whole, mark, whole + length - tail);
}

// File names may hold anything; a message stays one line and sends nothing to the terminal.
static void write_line(char *text, size_t bytes, const char *format, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    const int length = vsnprintf(text, bytes, format, arguments);
    char *const whole = length >= (int)bytes ? malloc((size_t)length + 1) : NULL;
    if (whole) {
        vsnprintf(whole, (size_t)length + 1, format, again);
        shorten(text, bytes, whole, (size_t)length);
        free(whole);
    }
    va_end(again);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
}

static void print_line(const char *text) {
    fprintf(stderr, "deeppcr%s%s: %s\n", verb_name ? " " : "", verb_name ? verb_name : "", text);
}

int cli_fail(int status, const char *format, ...) {
    char text[sizeof last];  // what is told may hold what was told last
    failed = status;
    va_list arguments;
    va_start(arguments, format);
    write_line(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(last, text, sizeof last);
    if (!silent && !held) print_line(text);
    return status;
}

void cli_warn(const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    write_line(text, sizeof text, format, arguments);
    va_end(arguments);
    if (!silent) print_line(text);
}

// A process that was asked to stop may not be this one.
static int stopping_signal(const dpcr_error *error) {
    if (cli_signal()) return cli_signal();
    return error->code > 0 && error->code < NSIG ? error->code : SIGINT;
}

static int status_of(const dpcr_error *error, cli_doing doing) {
    switch (error->status) {
        case DPCR_OK: return CLI_DONE;
        case DPCR_ERROR_UNSUPPORTED:
            if (doing == CLI_STRICTLY) return CLI_UNCONVERGED;
            return doing == CLI_READING ? CLI_INPUT : CLI_USAGE;
        case DPCR_ERROR_ARGUMENT: return doing == CLI_READING ? CLI_INPUT : CLI_USAGE;
        case DPCR_ERROR_OVERFLOW:
        case DPCR_ERROR_IO: return doing == CLI_READING ? CLI_INPUT : CLI_RESOURCES;
        case DPCR_ERROR_FORMAT: return CLI_INPUT;
        case DPCR_ERROR_CALLBACK: return CLI_DISAGREE;
        case DPCR_ERROR_CANCELLED: return 128 + stopping_signal(error);
        case DPCR_ERROR_MEMORY:
        case DPCR_ERROR_SYSTEM:
        case DPCR_ERROR_DEVICE: break;
    }
    return CLI_RESOURCES;
}

int cli_fail_in_words(int status, const char *text) {
    static const char *const options[] = {"no_fallback was set", "no_fallback is set"};
    for (int i = 0; i < 2; i++) {
        const char *const at = strstr(text, options[i]);
        if (at)
            return cli_fail(status, "%.*s--no-fallback was given%s", (int)(at - text), text, at + strlen(options[i]));
    }
    return cli_fail(status, "%s", text);
}

static int fail_with(const dpcr_error *error, const char *text, cli_doing doing) {
    // Who asked us to stop knows of no function; other texts tell how far it came.
    const bool asked = error->status == DPCR_ERROR_CANCELLED && strstr(text, "cancel function");
    if (asked && cli_signal()) return cli_fail_stopped();
    if (asked && !strncmp(text, "rank ", 5))  // another one was
        return cli_fail(status_of(error, doing), "%.*s: stopped as asked", (int)strcspn(text, ":"), text);
    // A signal ended the wait for a pipe's other end, or for another rank.
    const bool waited = error->status == DPCR_ERROR_IO || error->status == DPCR_ERROR_SYSTEM;
    if (waited && error->code == EINTR && cli_signal()) return cli_fail_stopped();
    // The library names its call first; where that is the verb, once is enough.
    const size_t n = verb_name ? strlen(verb_name) : 0;
    if (n && !strncmp(text, verb_name, n) && !strncmp(text + n, ": ", 2)) text += n + 2;
    return cli_fail_in_words(status_of(error, doing), text);
}

int cli_fail_error(const dpcr_error *error, cli_doing doing) {
    return fail_with(error, error->text[0] ? error->text : dpcr_status_name(error->status), doing);
}

int cli_fail_weights(const dpcr_error *error) {
    char text[sizeof error->text + 32];
    if (!strstr(error->text, " stands behind the prefix '")) return cli_fail_error(error, CLI_READING);
    snprintf(text, sizeof text, "%s: give it with --prefix", error->text);
    return fail_with(error, text, CLI_READING);
}

int cli_fail_training(const dpcr_error *error) {
    // What the library compares, and the options that it follows from.
    static const struct {
        const char *says, *hint;
    } hints[] = {
        {": data.count is ", "; --limit says how many"},
        {": data.hash is ", "; the data differ, or the --seed of bit streams"},
        {": optimiser.total is ", "; that many steps follow from --epochs and --batch, and none with --constant-rate"},
        {": optimiser.warm_up is ", "; it follows from --epochs and --batch, or is --warm-up"},
        {": network.inputs is ", "; it follows from the data, or is a text's --embedding"},
        {": the model's inputs is ", "; it follows from the data"},
        {": the model's outputs is ", "; it follows from the data"},
        {": the model's ", "; without any option of the network it is the checkpoint's"}};
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
        if (strstr(error->text, hints[i].says)) {
            char text[sizeof error->text + 128];
            snprintf(text, sizeof text, "%s%s", error->text, hints[i].hint);
            return fail_with(error, text, CLI_COMPUTING);
        }
    return cli_fail_error(error, CLI_COMPUTING);
}

int cli_fail_stopped(void) { return cli_fail(128 + cli_signal(), "stopped as asked"); }

void cli_unconverged_text(int sweeps, char *text, size_t bytes) {
    if (sweeps > 0)
        snprintf(text, bytes, "not converged after %d sweep%s, and told not to fall back", sweeps, cli_s(sweeps));
    else
        snprintf(text, bytes, "not converged within the budget, and told not to fall back");
}

int cli_fail_unconverged(int sweeps) {
    char text[128];
    cli_unconverged_text(sweeps, text, sizeof text);
    return cli_fail(CLI_UNCONVERGED, "%s", text);
}

const char *cli_gave_up_text(bool gave_up, bool agrees) {
    if (!gave_up) return "";
    return agrees ? ", but had not converged within its budget" : ", and had not converged within its budget";
}

int cli_fail_memory(const char *what) { return cli_fail(CLI_RESOURCES, "not enough memory for %s", what); }

int cli_fail_reading(const char *what, const char *path, int code) {
    if (code == ENOMEM) return cli_fail(CLI_RESOURCES, "not enough memory for %s '%s'", what, path);
    return cli_fail(CLI_INPUT, "cannot read %s '%s': %s", what, path, strerror(code));
}
