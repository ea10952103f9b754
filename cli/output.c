// SPDX-License-Identifier: MIT
// Results: one JSON object, one CSV table, human text. Files appear whole or not at all.
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

// ---- JSON ----

cli_result cli_result_create(void) {
    cli_result result = {.object = json_object()};
    result.failed = !result.object;
    return result;
}

void cli_result_destroy(cli_result *result) {
    json_decref(result->object);
    result->object = NULL;
}

json_t *cli_result_take(cli_result *result) {
    json_t *object = result->failed ? NULL : json_incref(result->object);
    cli_result_destroy(result);
    return object;
}

void cli_set(cli_result *result, const char *key, json_t *value) {
    if (!value || json_object_set_new(result->object, key, value) != 0) result->failed = true;
}

// JSON has no NaN and no infinity.
json_t *cli_json_real(double value) { return isfinite(value) ? json_real(value) : json_null(); }

void cli_put(json_t **object, const char *key, json_t *value) {
    if (json_object_set_new(*object, key, value) == 0) return;
    json_decref(*object);
    *object = NULL;
}

void cli_append(json_t **list, json_t *value) {
    if (json_array_append_new(*list, value) == 0) return;
    json_decref(*list);
    *list = NULL;
}

json_t *cli_json_reals(const double *values, int64_t count) {
    json_t *list = json_array();
    for (int64_t i = 0; list && i < count; i++) cli_append(&list, cli_json_real(values[i]));
    return list;
}

json_t *cli_json_ints(const int64_t *values, int64_t count) {
    json_t *list = json_array();
    for (int64_t i = 0; list && i < count; i++) cli_append(&list, json_integer(values[i]));
    return list;
}

void cli_set_real(cli_result *result, const char *key, double value) { cli_set(result, key, cli_json_real(value)); }
void cli_set_int(cli_result *result, const char *key, int64_t value) { cli_set(result, key, json_integer(value)); }
void cli_set_bool(cli_result *result, const char *key, bool value) { cli_set(result, key, json_boolean(value)); }

// File names need not be UTF-8, and jansson takes nothing else: what is not ASCII then becomes '?'.
void cli_set_text(cli_result *result, const char *key, const char *text) {
    json_t *value = json_string(text);
    char *copy = value ? NULL : strdup(text);
    for (char *c = copy; c && *c; c++)
        if ((unsigned char)*c >= 0x80) *c = '?';
    cli_set(result, key, value ? value : copy ? json_string(copy) : NULL);
    free(copy);
}

// json_dumps would go on past a growth of its buffer that fails; this one has all the room before.
char *cli_json_line(const json_t *object, size_t flags) {
    const size_t bytes = json_dumpb(object, NULL, 0, flags);
    char *text = bytes > 0 ? malloc(bytes + 2) : NULL;
    if (!text) return NULL;
    memcpy(text + bytes, "\n", 2);
    if (json_dumpb(object, text, bytes, flags) == bytes) return text;
    free(text);
    return NULL;
}

int cli_print_json(const cli_result *result) {
    cli_result whole = *result;
    if (cli_device_sentence()) cli_set_text(&whole, "device", cli_device_sentence());
    char *text = whole.failed ? NULL : cli_json_line(whole.object, 0);
    if (!text) return cli_fail_memory("the JSON result");
    fputs(text, stdout);
    free(text);
    return CLI_DONE;
}

// ---- text in memory ----

static ssize_t text_take(void *cookie, const char *piece, size_t bytes) {
    cli_buffer *t = cookie;
    const size_t wanted = t->bytes + bytes + 1;
    if (!t->failed && wanted > t->room) {
        char *grown = realloc(t->text, 2 * wanted);
        t->failed = !grown;
        if (grown) t->text = grown, t->room = 2 * wanted;
    }
    if (t->failed) return 0;
    memcpy(t->text + t->bytes, piece, bytes);
    t->bytes += bytes;
    t->text[t->bytes] = 0;
    return (ssize_t)bytes;
}

FILE *cli_buffer_open(cli_buffer *text) {
    *text = (cli_buffer){0};
    text->out = fopencookie(text, "w", (cookie_io_functions_t){.write = text_take});
    return text->out;
}

bool cli_buffer_close(cli_buffer *text) {
    const bool whole = !ferror(text->out);
    if (fclose(text->out) == 0 && whole && !text->failed && text->text) return true;
    free(text->text);
    text->text = NULL;
    return false;
}

int cli_buffer_save(cli_buffer *text, const char *what, const char *path) {
    if (!cli_buffer_close(text)) return cli_fail_memory(what);
    const int status = cli_write_file(path, text->text, text->bytes);
    free(text->text);
    return status;
}

// ---- CSV ----

void cli_csv_text(FILE *out, const char *text) {
    fputc('"', out);
    for (const char *c = text; *c; c++) {
        if (*c == '"') fputc('"', out);
        fputc((unsigned char)*c < 0x20 ? ' ' : *c, out);
    }
    fputc('"', out);
}

static void csv_value(FILE *out, const json_t *value) {
    if (json_is_string(value)) {
        cli_csv_text(out, json_string_value(value));
    } else if (json_is_integer(value)) {
        fprintf(out, "%lld", (long long)json_integer_value(value));
    } else if (json_is_real(value)) {
        fprintf(out, "%.17g", json_real_value(value));
    } else if (json_is_boolean(value)) {
        fputs(json_is_true(value) ? "true" : "false", out);
    }
}

int cli_csv_result(const cli_common *common, const cli_result *result) {
    cli_buffer text;
    FILE *out = result->failed ? NULL : cli_buffer_open(&text);
    if (!out) return cli_fail_memory("the CSV table");
    for (int line = 0; line < 2; line++) {
        const char *comma = "";
        for (void *i = json_object_iter(result->object); i; i = json_object_iter_next(result->object, i)) {
            const char *key = json_object_iter_key(i);
            const json_t *value = json_object_iter_value(i);
            if (json_is_array(value) || json_is_object(value)) continue;
            fputs(comma, out);
            if (line == 0)
                fputs(key, out);
            else
                csv_value(out, value);
            comma = ",";
        }
        fputc('\n', out);
    }
    return cli_buffer_save(&text, "the CSV table", common->csv);
}

// ---- files ----

int cli_write_file(const char *path, const char *text, size_t bytes) {
    dpcr_error error = {0};
    fflush(stdout);  // what was printed before comes first where the path is that stream's
    const bool at_once = cli_signals_at_once(false);  // else its temporary file could stay
    const dpcr_status status = dpcr_text_write(path, text, (int64_t)bytes, &error);
    cli_signals_at_once(at_once);
    return status == DPCR_OK ? CLI_DONE : cli_fail_error(&error, CLI_WRITING);
}

bool cli_readable(const char *what, const char *path) {
    struct stat info = {0};
    int code = stat(path, &info) != 0 ? errno : S_ISDIR(info.st_mode) ? EISDIR : 0;
    // A pipe is opened once, by who reads it: a writer that waits there would go on at the first opening.
    if (!code && !S_ISREG(info.st_mode)) code = access(path, R_OK) == 0 ? 0 : errno;
    if (!code && S_ISREG(info.st_mode)) {
        const int fd = open(path, O_RDONLY | O_CLOEXEC);
        code = fd < 0 ? errno : 0;
        if (fd >= 0) close(fd);
    }
    if (!code) return true;
    cli_fail(CLI_INPUT, "cannot read %s '%s': %s", what, path, strerror(code));
    return false;
}

bool cli_resumable(const char *path) {
    struct stat info;
    if (!cli_readable("the checkpoint", path)) return false;
    if (stat(path, &info) == 0 && S_ISREG(info.st_mode)) return true;
    cli_fail(CLI_INPUT, "cannot go on from '%s': wanted a regular file", path);
    return false;
}

// Does the path name what `fd`, which is written to, goes to? *own: that.
static bool is_of(const char *path, int fd, struct stat *own) {
    struct stat named;
    return stat(path, &named) == 0 && fstat(fd, own) == 0 && own->st_dev == named.st_dev &&
           own->st_ino == named.st_ino && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY;
}

// Does the path name standard output or error, or the file that one goes to?
static bool is_stream(const char *path) {
    struct stat own;
    return !strcmp(path, "-") || is_of(path, STDOUT_FILENO, &own) || is_of(path, STDERR_FILENO, &own);
}

// A device, such as /dev/null or the terminal, which is standard error's too, may stand beside it.
bool cli_is_stdout(const char *path) {
    struct stat own;
    return path && (!strcmp(path, "-") || (is_of(path, STDOUT_FILENO, &own) && !S_ISCHR(own.st_mode)));
}

// 0 where files can be made beside `path`, else errno's code.
static int check_folder(const char *path) {
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    struct stat info;
    int code = 0;
    if (!folder || stat(folder, &info) != 0 || (errno = ENOTDIR, !S_ISDIR(info.st_mode)) ||
        access(folder, W_OK | X_OK) != 0)
        code = errno;
    free(folder);
    return code;
}

// What would keep cli_write_file from writing there, as errno's code; 0: nothing.
static int find_obstacle(const char *path) {
    struct stat info;
    if (!*path) return ENOENT;
    if (is_stream(path)) return 0;
    if (stat(path, &info) != 0) return errno == ENAMETOOLONG || errno == ELOOP ? errno : check_folder(path);
    if (S_ISDIR(info.st_mode)) return EISDIR;
    if (!S_ISREG(info.st_mode)) return access(path, W_OK) == 0 ? 0 : errno;
    char *const there = realpath(path, NULL);  // a link is followed, and the file replaced where it is
    if (!there && errno == ENOENT) return access(path, W_OK) == 0 ? 0 : errno;  // without a name: written as it is
    const int code = check_folder(there ? there : path);
    free(there);
    return code;
}

bool cli_writable(const char *what, const char *path) {
    const int code = find_obstacle(path);
    if (code) cli_fail(CLI_RESOURCES, "cannot write %s '%s': %s", what, path, strerror(code));
    return !code;
}

static bool is_terminal(const char *path) {
    const int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    const bool terminal = fd >= 0 && isatty(fd);
    if (fd >= 0) close(fd);
    return terminal;
}

// A device, such as /dev/null, may be written again and again.
int cli_check_save(const char *path, double seconds) {
    struct stat info;
    if (!path && seconds > 0) return cli_fail(CLI_USAGE, "--checkpoint-seconds: wanted with --save");
    if (!path) return CLI_DONE;
    const bool is_there = stat(path, &info) == 0;
    if (is_there && S_ISCHR(info.st_mode)
            ? is_terminal(path)
            : is_stream(path) || (is_there && (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode))))
        return cli_fail(
            CLI_USAGE,
            "cannot keep checkpoints in the stream '%s': wanted a file, where one takes the place of another", path);
    if (!cli_safetensors_name("--save", path)) return CLI_USAGE;
    return cli_writable("the checkpoint", path) ? CLI_DONE : CLI_RESOURCES;
}

const char *cli_in_order(dpcr_reason reason) { return reason == DPCR_REASON_FALLBACK ? ", finished in order" : ""; }

bool cli_name_ends(const char *path, const char *ending) {
    const char *end = path ? strrchr(path, '.') : NULL;
    return end && !strcmp(end, ending);
}

bool cli_safetensors_name(const char *option, const char *path) {
    if (!cli_name_ends(path, ".npy") && !cli_name_ends(path, ".npz")) return true;
    cli_fail(CLI_USAGE, "%s '%s': what is written is safetensors, wanted a name that does not end in %s", option, path,
             strrchr(path, '.'));
    return false;
}

// Where the last part of a path lies, and that part.
static const char *split_path(const char *path, struct stat *folder) {
    char text[4096];
    const char *slash = strrchr(path, '/');
    const int length = slash ? (int)(slash - path) + 1 : 0;
    snprintf(text, sizeof text, "%.*s", length < (int)sizeof text ? length : 0, path);
    if (stat(length ? text : ".", folder) != 0) *folder = (struct stat){0};
    return slash ? slash + 1 : path;
}

// Where writing would end once the files between are made: dangling links are followed, each from its own folder. A
// loop of them is not written to (find_obstacle).
static void follow_links(const char *path, char file[4096]) {
    enum { MOST = 40 };  // as the kernel's
    char target[2048], next[4096];
    snprintf(file, 4096, "%s", path);
    for (int i = 0; i < MOST; i++) {
        const ssize_t length = readlink(file, target, sizeof target - 1);
        if (length <= 0) return;
        target[length] = 0;
        const char *slash = target[0] == '/' ? NULL : strrchr(file, '/');
        const int folder = slash ? (int)(slash - file) + 1 : 0;
        if (snprintf(next, sizeof next, "%.*s%s", folder, file, target) >= (int)sizeof next) return;
        memcpy(file, next, sizeof next);
    }
}

bool cli_is_one_file(const char *a, const char *b) {
    struct stat first, second;
    char first_file[4096], second_file[4096];
    if (!strcmp(a, "-") || !strcmp(b, "-")) return false;
    const bool there = stat(a, &first) == 0, also = stat(b, &second) == 0;
    if (there != also) return false;
    if (there) return S_ISREG(first.st_mode) && first.st_dev == second.st_dev && first.st_ino == second.st_ino;
    follow_links(a, first_file);
    follow_links(b, second_file);
    const char *const first_name = split_path(first_file, &first);
    const char *const second_name = split_path(second_file, &second);
    return first.st_dev == second.st_dev && first.st_ino == second.st_ino && !strcmp(first_name, second_name);
}

bool cli_distinct(const cli_file *files, size_t count) {
    for (size_t i = 1; i < count; i++)
        for (size_t k = 0; k < i; k++)
            if (files[i].path && files[k].path && cli_is_one_file(files[i].path, files[k].path)) {
                cli_fail(CLI_USAGE, "'%s' is to be written, and is named twice (%s and %s)", files[i].path,
                         files[k].option, files[i].option);
                return false;
            }
    return true;
}

// Does reading `read` read the file `written`?
static bool reads(const char *read, const char *written) {
    const char *member = NULL;
    char *const file = cli_array_file(read, &member);
    const bool held = file && cli_is_one_file(file, written);
    free(file);
    return held || cli_is_one_file(read, written) || cli_data_holds(read, written);
}

bool cli_spares(const cli_file *written, size_t count, const cli_file *read, size_t inputs) {
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < inputs; k++)
            if (written[i].path && read[k].path && reads(read[k].path, written[i].path)) {
                cli_fail(CLI_USAGE,
                         "'%s' is to be read and to be written over (%s and %s): wanted another name for the output",
                         written[i].path, read[k].option, written[i].option);
                return false;
            }
    return true;
}

bool cli_stdout_share(cli_common *common, const cli_file *written, size_t count) {
    const char *taken = common->json ? "--json" : NULL;
    for (size_t i = 0; i < count; i++) {
        if (!cli_is_stdout(written[i].path)) continue;
        if (taken) {
            cli_fail(CLI_USAGE, "standard output is wanted twice (%s and %s)", taken, written[i].option);
            return false;
        }
        taken = written[i].option;
        common->stdout_taken = true;
    }
    return true;
}

bool cli_outputs_settle(cli_common *common, const cli_file *written, size_t count, const cli_file *read,
                        size_t inputs) {
    return cli_stdout_share(common, written, count) && cli_distinct(written, count) &&
           cli_spares(written, count, read, inputs);
}

// ---- text ----

void cli_say(const cli_common *common, const char *format, ...) {
    if (common->json || common->quiet || common->stdout_taken || cli_is_stdout(common->csv)) return;
    static bool told;  // where it runs: before everything else
    if (!told && cli_device_sentence()) printf("device: %s\n", cli_device_sentence());
    told = true;
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
}

int cli_finish(const cli_common *common, const cli_result *result, int status) {
    if (common->csv) {
        const int written = cli_csv_result(common, result);
        if (written) return written;
    }
    const int printed = common->json ? cli_print_json(result) : CLI_DONE;
    return printed ? printed : status;
}
