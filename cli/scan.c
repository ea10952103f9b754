// SPDX-License-Identifier: MIT
// What solve selective and solve attention share: their files, what is wrong with them, and the report's end.
#include <errno.h>
#include <string.h>

#include "scan.h"

error_t cli_scan_parse(int key, const char *text, cli_scan *scan) {
    switch (key) {
        case CLI_SCAN_INPUT: scan->input = text; return 0;
        case CLI_SCAN_OUTPUT: scan->output = text; return 0;
        case CLI_SCAN_FINAL: scan->final = text; return 0;
        case CLI_SCAN_GRAD_OUTPUT: scan->grad_output = text; return 0;
        case CLI_SCAN_GRAD_FINAL: scan->grad_final = text; return 0;
        case CLI_SCAN_GRADS: scan->grads = text; return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static void join_needed(const cli_scan *s, char *text, size_t bytes) {
    cli_join_words(s->names, s->needed, text, bytes);
}

// Of several arrays: npz by its name, else safetensors.
static bool place_gradients(const char *path) {
    if (path && strstr(path, ".npz:")) return cli_array_place(path);
    return cli_name_ends(path, ".npz") || cli_safetensors_name("--grads", path);
}

static int refuse(cli_scan *s) {
    const char *const outputs[] = {s->output, s->final, s->grads};
    const bool back = s->grad_output || s->grad_final;
    char needed[64];
    join_needed(s, needed, sizeof needed);
    if (!s->input) return cli_fail(CLI_USAGE, "no --input: wanted an npz file with %s", needed);
    if (!strcmp(s->input, "-"))
        return cli_fail(CLI_USAGE, "--input '-': wanted a file, for standard input holds one array only");
    if (!s->output && !s->final && !s->grads)
        return cli_fail(CLI_USAGE, "no --output, --final or --grads: nothing would be kept");
    if (back != cli_scan_goes_back(s))
        return cli_fail(CLI_USAGE, back ? "--grad-output and --grad-final want --grads FILE, where the gradients go"
                                        : "--grads wants --grad-output or --grad-final, where the gradients come from");
    if (s->grad_output && s->grad_final && !strcmp(s->grad_output, "-") && !strcmp(s->grad_final, "-"))
        return cli_fail(CLI_USAGE, "standard input ('-') holds one array only");
    if (cli_is_stdout(s->grads)) return cli_fail(CLI_USAGE, "--grads wants a file");
    for (size_t i = 0; i < 2; i++)
        if (!cli_array_place(outputs[i])) return CLI_USAGE;
    const cli_file written[] = {
        {"--output", s->output}, {"--final", s->final}, {"--grads", s->grads}, {"--csv", s->common.csv}};
    const cli_file read[] = {{"--input", s->input}, {"--grad-output", s->grad_output}, {"--grad-final", s->grad_final}};
    if (!cli_outputs_settle(&s->common, written, 4, read, 3)) return CLI_USAGE;
    if (!place_gradients(s->grads)) return CLI_USAGE;
    for (size_t i = 0; i < 3; i++)
        if (outputs[i] && !cli_is_stdout(outputs[i]) && !cli_writable("the output", outputs[i])) return CLI_RESOURCES;
    return CLI_DONE;
}

bool cli_scan_begin(cli_scan *s, const cli_syntax *syntax, int argc, char **argv, int *status) {
    const char *positional[CLI_MAX_POSITIONAL];
    if (!cli_parse(syntax, argc, argv, positional, status) || (*status = refuse(s))) return false;
    s->context = cli_context_create(&s->common, status);
    return s->context != NULL;
}

void cli_scan_release(cli_scan *s) {
    dpcr_array *const made[] = {&s->y, &s->last, &s->zeros};
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++)
        if (made[i]->data) cli_array_destroy(made[i]);
    for (int i = 0; i < s->count; i++)
        if (s->gradients[i].data) cli_array_destroy(&s->gradients[i]);
    if (s->kept) cli_release(s->kept);
    dpcr_tensors_free(s->context, &s->file);
    for (int i = 0; i < 2; i++) dpcr_tensors_free(s->context, &s->gradient_files[i]);
    dpcr_context_destroy(s->context);
}

// ---- what goes in ----

int cli_scan_wrong(const char *what, const dpcr_array *array, const char *wanted) {
    char text[128] = "[]";
    size_t at = 0;
    for (int i = 0; i < array->ndim && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "[%lld]", (long long)array->shape[i]);
    return cli_fail(CLI_INPUT, "%s has shape %s: wanted %s", what, text, wanted);
}

int cli_scan_check(const char *what, const dpcr_array *array, int32_t ndim, const int64_t *shape) {
    char wanted[128] = "[]";
    size_t at = 0;
    if (!array) return CLI_DONE;
    bool fits = array->ndim == ndim;
    for (int i = 0; i < ndim && at < sizeof wanted; i++) {
        fits = fits && array->shape[i] == shape[i];
        at += (size_t)snprintf(wanted + at, sizeof wanted - at, "[%lld]", (long long)shape[i]);
    }
    return fits ? CLI_DONE : cli_scan_wrong(what, array, wanted);
}

// All are of the first member's type.
static int check_dtype(const cli_scan *s, const char *what, const dpcr_array *array) {
    const dpcr_dtype dtype = s->given[0]->dtype;
    if (array->dtype == dtype && (dtype == DPCR_F32 || dtype == DPCR_F64)) return CLI_DONE;
    return cli_fail(CLI_INPUT,
                    "%s is %s and %s is %s (whole numbers are read as float64): wanted all float32 or all float64",
                    what, dpcr_dtype_name(array->dtype), s->names[0], dpcr_dtype_name(dtype));
}

int cli_scan_read(cli_scan *s) {
    dpcr_error error = {0};
    char needed[64];
    join_needed(s, needed, sizeof needed);
    if (!cli_readable("the input", s->input)) return CLI_INPUT;
    if (dpcr_npy_read_named(s->context, s->input, s->names, s->count, &s->file, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_READING);
    for (int i = 0; i < s->count; i++) {
        const dpcr_tensor *found = dpcr_tensors_find(&s->file, s->names[i]);
        if (found) s->given[i] = &found->array;
        if (!found && (i == 0 || i < s->needed))  // all are of the first one's type
            return cli_fail(CLI_INPUT, "'%s' has no array '%s': wanted %s and perhaps others", s->input, s->names[i],
                            needed);
    }
    for (int i = 0; i < s->count; i++)
        if (s->given[i] && check_dtype(s, s->names[i], s->given[i])) return CLI_INPUT;
    return CLI_DONE;
}

// A gradient that goes back, of the shape of what it belongs to.
static int read_gradient(cli_scan *s, const char *option, const char *path, dpcr_tensors *file, const dpcr_array *of,
                         const dpcr_array **to) {
    if (!path) return CLI_DONE;
    char what[32];
    snprintf(what, sizeof what, "--%s", option);
    int status = cli_array_read(s->context, option, path, file, to);
    if (!status) status = check_dtype(s, what, *to);
    return status ? status : cli_scan_check(what, *to, of->ndim, of->shape);
}

static int make_gradients(cli_scan *s) {
    const dpcr_dtype dtype = s->y.dtype;
    for (int i = 0; i < s->count; i++)
        if (s->given[i] && !cli_array_create(dtype, s->given[i]->ndim, s->given[i]->shape, &s->gradients[i]))
            return CLI_RESOURCES;
    if (s->by_output) return CLI_DONE;
    if (!cli_array_create(dtype, 1, (const int64_t[]){1}, &s->zeros)) return CLI_RESOURCES;
    s->zeros = dpcr_array_make(s->zeros.data, dtype, s->y.ndim, s->y.shape);
    memset(s->zeros.strides, 0, sizeof s->zeros.strides);
    s->by_output = &s->zeros;
    return CLI_DONE;
}

int cli_scan_create(cli_scan *s, int32_t ndim, const int64_t *y, const int64_t *last) {
    const dpcr_dtype dtype = s->given[0]->dtype;
    const dpcr_array like_y = dpcr_array_make(NULL, dtype, ndim, y),
                     like_last = dpcr_array_make(NULL, dtype, ndim, last);
    int status = read_gradient(s, "grad-output", s->grad_output, &s->gradient_files[0], &like_y, &s->by_output);
    if (!status) status = read_gradient(s, "grad-final", s->grad_final, &s->gradient_files[1], &like_last, &s->by_last);
    if (status) return status;
    if (!cli_array_create(dtype, ndim, y, &s->y) || !cli_array_create(dtype, ndim, last, &s->last))
        return CLI_RESOURCES;
    return cli_scan_goes_back(s) ? make_gradients(s) : CLI_DONE;
}

int cli_scan_keep(cli_scan *s, size_t bytes) {
    if (!cli_scan_goes_back(s) || !bytes || (s->kept = cli_allocate(bytes))) return CLI_DONE;
    return cli_fail(CLI_RESOURCES, "not enough memory for %zu bytes of states", bytes);
}

// ---- what comes out ----

static int write_gradients(const cli_scan *s) {
    enum { NAME = 16 };
    char text[CLI_SCAN_MEMBERS][NAME];
    dpcr_tensor items[CLI_SCAN_MEMBERS];
    dpcr_tensors all = {.items = items};
    dpcr_error error = {0};
    for (int i = 0; i < s->count; i++) {
        if (!s->given[i]) continue;
        snprintf(text[i], NAME, "%s", s->names[i]);
        items[all.count++] = (dpcr_tensor){.name = text[i], .array = s->gradients[i]};
    }
    const dpcr_status status = cli_name_ends(s->grads, ".npz") ? dpcr_npz_write(s->grads, &all, &error)
                                                               : dpcr_safetensors_write(s->grads, &all, &error);
    return status == DPCR_OK ? CLI_DONE : cli_fail_error(&error, CLI_WRITING);
}

int cli_scan_write(const cli_scan *s, const char *y, const char *last) {
    int status = cli_array_write(s->output, y, &s->y);
    if (!status) status = cli_array_write(s->final, last, &s->last);
    return !status && cli_scan_goes_back(s) ? write_gradients(s) : status;
}

int cli_scan_tell(const cli_scan *s, cli_result *r, const char *line) {
    const int threads = dpcr_context_threads(s->context);
    cli_set_int(r, "threads", threads);
    cli_set_real(r, "seconds", s->seconds);
    if (cli_scan_goes_back(s)) cli_set_real(r, "backward_seconds", s->back_seconds);
    if (s->output) cli_set_text(r, "output", s->output);
    cli_say(&s->common, "%s, %d thread%s: %.3g s%s%s%s\n", line, threads, cli_s(threads), s->seconds,
            cli_scan_goes_back(s) ? ", and back" : "", s->output ? ", in " : "", s->output ? s->output : "");
    const int status = cli_finish(&s->common, r, CLI_DONE);
    cli_result_destroy(r);
    return status;
}
