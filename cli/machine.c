// SPDX-License-Identifier: MIT
// The machine's rates, measured once and kept in the user's cache: $XDG_CACHE_HOME/deeppcr/rates-N-LEVEL, or
// ~/.cache/deeppcr/..., of N threads. A file of another machine or version is measured anew and replaced; a cache that
// cannot be written costs a measurement each time, nothing more. And wisdom that the user names.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

enum { PATH_BYTES = 4096 };

static bool cache_folder(char *path) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int used = 0;
    if (cache && cache[0] == '/')
        used = snprintf(path, PATH_BYTES, "%s", cache);
    else if (home && home[0] == '/')
        used = snprintf(path, PATH_BYTES, "%s/.cache", home);
    return used > 0 && used < PATH_BYTES - 64;
}

static bool make_folder(const char *path) { return mkdir(path, 0777) == 0 || errno == EEXIST; }

bool cli_machine_load(dpcr_context *context, bool anew) {
    char path[PATH_BYTES];
    struct stat info;
    dpcr_machine machine = {.size = sizeof machine};
    bool cache = cache_folder(path);
    const size_t used = cache ? strlen(path) : 0;
    if (cache)
        snprintf(path + used, sizeof path - used, "/deeppcr/rates-%d-%s", dpcr_context_threads(context),
                 dpcr_isa_name());
    // For what is no file, such as a pipe, a writer or a reader would be waited for.
    if (cache && stat(path, &info) == 0 && !S_ISREG(info.st_mode)) cache = false;
    if (cache && !anew && dpcr_wisdom_load(context, path, NULL) == DPCR_OK) return true;
    dpcr_context_machine(context, &machine, NULL);
    if (cache) {
        path[used] = 0;
        cache = make_folder(path);
        strcpy(path + used, "/deeppcr");
        cache = cache && make_folder(path);
        snprintf(path + used, sizeof path - used, "/deeppcr/rates-%d-%s", dpcr_context_threads(context),
                 dpcr_isa_name());
    }
    // What was saved, wherever, counts as the context's own: a file that --wisdom names does not replace it.
    if (!cli_signal()) dpcr_wisdom_save(context, cache ? path : "/dev/null", NULL);
    return false;
}

static bool is_empty(const struct stat *info) {
    struct stat null;
    if (S_ISREG(info->st_mode)) return info->st_size == 0;
    return S_ISCHR(info->st_mode) && stat("/dev/null", &null) == 0 && null.st_rdev == info->st_rdev;
}

int cli_wisdom_load(dpcr_context *context, const char *path) {
    struct stat info;
    dpcr_error error = {0};
    if (!path || stat(path, &info) != 0 || is_empty(&info)) return CLI_DONE;
    return dpcr_wisdom_load(context, path, &error) == DPCR_OK ? CLI_DONE : cli_fail_error(&error, CLI_READING);
}

// A lock on the file's folder, since the file is replaced and a lock's own file would stay behind. Returns its
// descriptor, or -1: a folder that cannot be read, or a file system without such locks. It holds among the processes of
// one machine, and is waited for 2 s at most: nobody writes for so long.
static int lock_folder(const char *path) {
    static const int turns = 100;
    char *real = realpath(path, NULL), *folder = real ? real : strdup(path),
         *slash = folder ? strrchr(folder, '/') : NULL;
    if (slash) slash[slash == folder] = 0;
    const int fd = folder ? open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    free(folder);
    for (int i = 0; fd >= 0 && i < turns && !cli_signal(); i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
        if (errno != EWOULDBLOCK) break;
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    if (fd >= 0) close(fd);
    return -1;
}

int cli_wisdom_save(dpcr_context *context, const char *path) {
    struct stat info;
    dpcr_error error = {0};
    const int lock = lock_folder(path);
    // What others have written since it was read; damaged, it is replaced.
    if (stat(path, &info) == 0 && S_ISREG(info.st_mode)) dpcr_wisdom_load(context, path, NULL);
    const dpcr_status status = dpcr_wisdom_save(context, path, &error);
    if (lock >= 0) close(lock);
    return status == DPCR_OK ? CLI_DONE : cli_fail_error(&error, CLI_WRITING);
}
