// SPDX-License-Identifier: MIT
// Arrays of the program's own, element access by dtype, and random numbers by counter.
#include <Random123/philox.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "cli.h"

static bool count_bytes(dpcr_dtype dtype, int32_t ndim, const int64_t *shape, size_t *bytes) {
    size_t n = dpcr_dtype_size(dtype);
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0 || __builtin_mul_overflow(n, (size_t)shape[i], &n)) return false;
    }
    *bytes = n;
    return n <= (size_t)INT64_MAX;
}

bool cli_array_create(dpcr_dtype dtype, int32_t ndim, const int64_t *shape, dpcr_array *array) {
    size_t bytes = 0;
    void *data = count_bytes(dtype, ndim, shape, &bytes) ? cli_allocate(bytes) : NULL;
    if (!data) {
        char text[160] = "";
        size_t at = 0;
        for (int i = 0; i < ndim && at < sizeof text; i++)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%lld", i ? " x " : "", (long long)shape[i]);
        cli_fail(CLI_RESOURCES, "not enough memory for an array of %s numbers (%s)", text, dpcr_dtype_name(dtype));
        return false;
    }
    memset(data, 0, bytes);
    *array = dpcr_array_make(data, dtype, ndim, shape);
    return true;
}

void cli_array_destroy(dpcr_array *array) {
    cli_release(array->data);
    memset(array, 0, sizeof *array);
}

int64_t cli_array_count(const dpcr_array *array) {
    int64_t n = 1;
    for (int i = 0; i < array->ndim; i++) n *= array->shape[i];
    return n;
}

double cli_array_get(const dpcr_array *array, int64_t offset) {
    return array->dtype == DPCR_F32   ? (double)((const float *)array->data)[offset]
           : array->dtype == DPCR_U32 ? (double)((const uint32_t *)array->data)[offset]
                                      : ((const double *)array->data)[offset];
}

void cli_array_set(const dpcr_array *array, int64_t offset, double value) {
    if (array->dtype == DPCR_F32)
        ((float *)array->data)[offset] = (float)value;
    else
        ((double *)array->data)[offset] = value;
}

// 128 random bits; the key is the seed, the counter (block, stream). Salmon et al., SC 2011; Random123.
static philox4x32_ctr_t random_block(uint64_t seed, uint64_t stream, uint64_t block) {
    const philox4x32_key_t key = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
    const philox4x32_ctr_t counter = {
        {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)}};
    return philox4x32(counter, key);
}

static double uniform(uint32_t low, uint32_t high) {  // [0, 1): 53 bits
    return (double)(((uint64_t)high << 32 | low) >> 11) * 0x1p-53;
}

// Box and Muller.
double cli_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    const double turn = 6.28318530717958647692;
    const philox4x32_ctr_t bits = random_block(seed, stream, index);
    return sqrt(-2 * log(1 - uniform(bits.v[0], bits.v[1]))) * cos(turn * uniform(bits.v[2], bits.v[3]));
}

uint64_t cli_hash(uint64_t hash, const void *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) hash = (hash ^ ((const uint8_t *)bytes)[i]) * UINT64_C(1099511628211);
    return hash;
}

int cli_hash_file(const char *what, const char *path, uint64_t *hash) {
    char piece[1 << 14];
    FILE *in = fopen(path, "re");
    if (!in) return cli_fail_reading(what, path, errno);
    *hash = CLI_HASH;
    for (size_t n; (n = fread(piece, 1, sizeof piece, in)) > 0;) *hash = cli_hash(*hash, piece, n);
    const int code = ferror(in) ? errno : 0;
    fclose(in);
    return code ? cli_fail_reading(what, path, code) : CLI_DONE;
}

uint64_t cli_random_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n) {
    const philox4x32_ctr_t bits = random_block(seed, stream, index);
    return ((uint64_t)bits.v[1] << 32 | bits.v[0]) % n;  // the bias is n / 2^64
}

void cli_array_normal(const dpcr_array *array, uint64_t seed, uint64_t stream) {
    enum { UNHEARD = 1 << 20 };
    const int64_t n = cli_array_count(array);
    for (int64_t i = 0; i < n && (i % UNHEARD || !cli_signal()); i++)
        cli_array_set(array, i, cli_normal(seed, stream, (uint64_t)i));
}

#define MEMBER ".npz:"

bool cli_array_place(const char *path) {
    if (!path) return true;
    if (cli_name_ends(path, ".safetensors") || cli_name_ends(path, ".st")) {
        cli_fail(CLI_USAGE, "'%s': what is written is npy, or npz by its name; wanted a name that does not end in %s",
                 path, strrchr(path, '.'));
        return false;
    }
    if (!strstr(path, MEMBER)) return true;
    cli_fail(CLI_USAGE, "'%s' names a member of a file, as inputs do: an output is .npz, which has one, or npy", path);
    return false;
}

int cli_array_write(const char *path, const char *name, const dpcr_array *array) {
    char member[64];
    dpcr_tensor item = {.name = member, .array = *array};
    const dpcr_tensors all = {.count = 1, .items = &item};
    dpcr_error error = {0};
    if (!path) return CLI_DONE;
    snprintf(member, sizeof member, "%s", name);
    const dpcr_status status =
        cli_name_ends(path, ".npz") ? dpcr_npz_write(path, &all, &error) : dpcr_npy_write(path, array, &error);
    return status == DPCR_OK ? CLI_DONE : cli_fail_error(&error, CLI_WRITING);
}

char *cli_array_file(const char *path, const char **member) {
    const char *const mark = strstr(path, MEMBER);
    *member = mark ? mark + 5 : NULL;
    return mark ? strndup(path, (size_t)(mark - path) + 4) : strdup(path);
}

// The array that is meant, and why there is none. Of an npz one member alone is read, where its name is known: what
// else lies in the file may be anything.
static int find_array(dpcr_context *context, const char *what, const char *path, const char *member, dpcr_tensors *file,
                      const dpcr_array **array) {
    const char *const name = member ? member : what;
    dpcr_error error = {0};
    dpcr_status code = dpcr_npy_read_named(context, path, &name, 1, file, &error);
    const dpcr_tensor *found = dpcr_tensors_find(file, name);
    if (code == DPCR_OK && !member && !found) {
        if (file->count == 0) {
            dpcr_tensors_free(context, file);
            code = dpcr_npy_read(context, path, file, &error);
            if (code == DPCR_ERROR_FORMAT)
                return cli_fail(CLI_INPUT, "'%s' has no member '%s' ('%s:NAME' takes another): %s", path, name, path,
                                error.text);
        }
        if (file->count == 1) found = &file->items[0];
    }
    if (code != DPCR_OK) return cli_fail_error(&error, CLI_READING);
    if (!found && member) return cli_fail(CLI_INPUT, "'%s' has no member '%s'", path, member);
    if (!found)
        return cli_fail(CLI_INPUT, "'%s' has %lld arrays; '%s:NAME' says which is %s", path, (long long)file->count,
                        path, what);
    *array = &found->array;
    return CLI_DONE;
}

int cli_array_read(dpcr_context *context, const char *what, const char *path, dpcr_tensors *file,
                   const dpcr_array **array) {
    const char *member = NULL;
    char *copy = cli_array_file(path, &member);
    if (!copy) return cli_fail_memory("a file name");
    int status = CLI_INPUT;
    if (!strcmp(copy, "-") || cli_readable(what, copy)) status = find_array(context, what, copy, member, file, array);
    free(copy);
    return status;
}
