// SPDX-License-Identifier: MIT
// Data sets by name or folder.
#include <fts.h>
#include <libgen.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "recordings.h"
#include "sequences.h"

static bool folder_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool cli_data_present(const char *folder) {
    static const char *const names[] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
                                        "t10k-labels-idx1-ubyte"};
    char path[4096];
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        if (access(path, R_OK) == 0) continue;
        snprintf(path, sizeof path, "%s/%s.gz", folder, names[i]);
        if (access(path, R_OK) != 0) return false;
    }
    return true;
}

// CIFAR-10's binary files, where one of them is there.
static bool is_cifar(const char *folder) {
    static const char *const names[] = {"data_batch_1.bin", "test_batch.bin"};
    char path[4096];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        if (access(path, F_OK) == 0) return true;
    }
    return false;
}

// The folder of a data set, or NULL when told that there is none.
static const char *folder_of(const char *data) {
    if (!strcmp(data, CLI_FASHION_MNIST)) {
        if (folder_exists(CLI_FASHION_MNIST_FOLDER)) return CLI_FASHION_MNIST_FOLDER;
        cli_fail(CLI_INPUT, "no %s: '%s' is missing; the Debian package %s has it (apt-get install %s)", data,
                 CLI_FASHION_MNIST_FOLDER, CLI_FASHION_MNIST_PACKAGE, CLI_FASHION_MNIST_PACKAGE);
        return NULL;
    }
    if (folder_exists(data)) return data;
    cli_fail(CLI_INPUT, "no data set '%s': wanted %s, or a folder of IDX files or of CIFAR-10's binary files", data,
             CLI_FASHION_MNIST);
    return NULL;
}

const char *cli_data_place(const char *data) {
    if (!data) return NULL;
    if (!strcmp(data, CLI_FASHION_MNIST)) return CLI_FASHION_MNIST_FOLDER;
    if (!strcmp(data, CLI_SPEAKERS)) return CLI_SPEAKERS_FOLDER;
    const bool made = !strcmp(data, CLI_BITSTREAM) || !strcmp(data, CLI_TEXT);
    return !made || folder_exists(data) ? data : NULL;
}

static bool is_sound_below(const char *folder, const char *path) {
    char *const copy = strdup(path), *const top = realpath(folder, NULL);
    char *const place = copy ? realpath(dirname(copy), NULL) : NULL;
    const size_t n = top ? strlen(top) : 0;
    const bool below = top && place && !strncmp(place, top, n) && (!place[n] || place[n] == '/');
    free(place);
    free(top);
    free(copy);
    return below && cli_sound_name(path);
}

// The same file, which links in the folder lead to.
static bool is_linked_below(const char *folder, const char *path) {
    struct stat file;
    char *const top[] = {(char *)(uintptr_t)folder, NULL};
    bool found = false;
    if (!cli_sound_name(path) || stat(path, &file) != 0) return false;
    FTS *const tree = fts_open(top, FTS_LOGICAL | FTS_NOCHDIR, NULL);
    for (FTSENT *e; tree && !found && (e = fts_read(tree));)
        found = e->fts_info == FTS_F && e->fts_statp->st_dev == file.st_dev && e->fts_statp->st_ino == file.st_ino;
    if (tree) fts_close(tree);
    return found;
}

bool cli_data_holds(const char *folder, const char *path) {
    static const char *const names[] = {"train-images-idx3-ubyte", "train-images-idx3-ubyte.gz",
                                        "train-labels-idx1-ubyte", "train-labels-idx1-ubyte.gz",
                                        "t10k-images-idx3-ubyte",  "t10k-images-idx3-ubyte.gz",
                                        "t10k-labels-idx1-ubyte",  "t10k-labels-idx1-ubyte.gz",
                                        "data_batch_1.bin",        "data_batch_2.bin",
                                        "data_batch_3.bin",        "data_batch_4.bin",
                                        "data_batch_5.bin",        "test_batch.bin"};
    if (!folder_exists(folder)) return false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char file[4096];
        snprintf(file, sizeof file, "%s/%s", folder, names[i]);
        if (cli_is_one_file(file, path)) return true;
    }
    char *const target = realpath(path, NULL);  // of a link
    const bool sound =
        is_sound_below(folder, path) || (target && (is_sound_below(folder, target) || is_linked_below(folder, target)));
    free(target);
    return sound;
}

int cli_data_read(dpcr_context *context, const char *data, const char *split, int64_t classes, int64_t limit,
                  dpcr_dataset *dataset) {
    const char *folder = folder_of(data);
    dpcr_error error = {0};
    if (!folder) return CLI_INPUT;
    const dpcr_status read =
        is_cifar(folder)
            ? dpcr_dataset_read_cifar10(context, folder, strcmp(split, "train") ? "test" : "train", dataset, &error)
            : dpcr_dataset_read_idx(context, folder, split, classes, dataset, &error);
    if (read != DPCR_OK) return cli_fail_error(&error, CLI_READING);
    if (limit > 0 && limit < dataset->count) dataset->count = limit;
    if (dataset->count > 0) return CLI_DONE;
    dpcr_dataset_free(context, dataset);
    return cli_fail(CLI_INPUT, "the %s images of '%s' are none", split, folder);
}

uint64_t cli_data_hash(const dpcr_dataset *dataset) {
    const size_t pixels = (size_t)(dataset->count * dpcr_dataset_pixels(dataset));
    return cli_hash(cli_hash(CLI_HASH, dataset->images, pixels), dataset->labels, (size_t)dataset->count);
}

void cli_data_rows(const dpcr_dataset *dataset, const dpcr_array *x) {
    const int64_t n = x->shape[0] * x->shape[1];
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) sum += dataset->images[i];
    const double mean = n ? sum / (double)n : 0;
    for (int64_t i = 0; i < n; i++) squares += (dataset->images[i] - mean) * (dataset->images[i] - mean);
    const double deviation = n && squares > 0 ? sqrt(squares / (double)n) : 1;
    for (int64_t i = 0; i < n; i++) cli_array_set(x, i, (dataset->images[i] - mean) / deviation);
}
