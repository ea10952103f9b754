// SPDX-License-Identifier: MIT
#include "train_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail(const cli_log *log) {
    return cli_fail(CLI_RESOURCES, "cannot write the log '%s': %s", log->path, strerror(errno));
}

int cli_log_open(cli_log *log, const char *path, bool append) {
    log->path = path;
    log->fd = -1;
    if (!path) return CLI_DONE;
    log->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_APPEND | (append ? 0 : O_TRUNC), 0666);
    if (log->fd < 0 && errno == EACCES) log->fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);  // a pipe or a device
    return log->fd < 0 ? fail(log) : CLI_DONE;
}

void cli_log_close(cli_log *log) {
    if (log->fd >= 0) close(log->fd);
    log->fd = -1;
}

// The step of a line, or 0 where it has none.
static long long step_of(const char *line) {
    const char *at = strstr(line, "\"step\": ");
    return at ? strtoll(at + 8, NULL, 10) : 0;
}

int cli_log_rewind(cli_log *log, int64_t step) {
    struct stat info;
    if (log->fd < 0 || fstat(log->fd, &info) != 0 || !S_ISREG(info.st_mode)) return CLI_DONE;
    FILE *file = fopen(log->path, "r");
    if (!file) return fail(log);
    char *line = NULL;
    size_t room = 0;
    off_t keep = 0;
    // A line without an end was cut off by a full disk; it goes too.
    for (ssize_t n; (n = getline(&line, &room, file)) > 0 && line[n - 1] == '\n' && step_of(line) < step;) keep += n;
    free(line);
    fclose(file);
    return ftruncate(log->fd, keep) == 0 ? CLI_DONE : fail(log);
}

int cli_log_write(cli_log *log, json_t *object) {
    if (log->fd < 0 || !object) {
        json_decref(object);
        return log->fd < 0 ? CLI_DONE : cli_fail_memory("a line of the log");
    }
    char *text = json_dumps(object, 0), *line = NULL;
    json_decref(object);
    const int bytes = text ? asprintf(&line, "%s\n", text) : -1;
    free(text);
    if (bytes < 0) return cli_fail_memory("a line of the log");
    ssize_t written;
    do written = write(log->fd, line, (size_t)bytes);
    while (written < 0 && errno == EINTR);
    free(line);
    if (written == bytes) return CLI_DONE;
    if (written >= 0) errno = ENOSPC;
    return fail(log);
}

// ---- what all training tells ----

dpcr_train_state cli_train_without_tests(const dpcr_train_state *state, double test_seconds) {
    dpcr_train_state s = *state;
    s.seconds -= test_seconds;
    if (s.seconds <= 0) return s;
    const double slowed = state->seconds / s.seconds;
    s.images_per_second *= slowed;
    s.seconds_left /= slowed;
    return s;
}

json_t *cli_log_line(const char *event, const dpcr_train_state *s, const char *unit) {
    char rate[32];
    snprintf(rate, sizeof rate, "%s_per_second", unit);
    return json_pack("{ss sI sI sf sf sf sf}", "event", event, "step", (json_int_t)s->step, "epoch",
                     (json_int_t)s->epoch, "loss", s->loss, "accuracy", s->accuracy, "seconds", s->seconds, rate,
                     s->images_per_second);
}

int cli_log_step(cli_log *log, int64_t every, const dpcr_train_state *s, const char *unit) {
    if (log->fd < 0 || s->step % every) return CLI_DONE;
    json_t *line = cli_log_line("step", s, unit);
    if (line) {
        json_object_set_new(line, "method", json_string(dpcr_method_name(s->method)));
        json_object_set_new(line, "sweeps", json_integer(s->sweeps));
        json_object_set_new(line, "reason", json_string(dpcr_reason_name(s->reason)));
    }
    return cli_log_write(log, line);
}

int cli_log_table(const char *path, const json_t *epochs) {
    static const char *const columns[] = {"epoch", "step", "loss", "accuracy", "test_loss", "test_accuracy", "seconds"};
    enum { COLUMNS = sizeof columns / sizeof columns[0] };
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return cli_fail_memory("the CSV table");
    for (int c = 0; c < COLUMNS; c++) fprintf(out, "%s%s", c ? "," : "", columns[c]);
    for (size_t i = 0; i < json_array_size(epochs); i++)
        for (int c = 0; c < COLUMNS; c++) {
            const json_t *value = json_object_get(json_array_get(epochs, i), columns[c]);
            fputc(c ? ',' : '\n', out);
            if (json_is_number(value)) fprintf(out, "%.9g", json_number_value(value));
        }
    fputc('\n', out);
    const int status = fclose(out) == 0 ? cli_write_file(path, text, bytes) : cli_fail_memory("the CSV table");
    free(text);
    return status;
}
