// SPDX-License-Identifier: MIT
// Limits of control groups, of version 2 and 1: the least of the process's own group and of those that it lies in. In a
// container the path may be one outside of what is mounted there; what is not found is passed over, up to the mount.
#include "cgroup.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static size_t read_limit(const char *path) {
    unsigned long long limit = 0;
    FILE *file = fopen(path, "re");
    if (!file) return SIZE_MAX;
    const int read = fscanf(file, "%llu", &limit);  // "max" is no number
    fclose(file);
    return read == 1 && limit > 0 ? (size_t)limit : SIZE_MAX;
}

// The least in the files `name` of a group and of those above it, up to the mount.
static size_t least_limit(const char *root, const char *mount, const char *group, const char *name) {
    char folder[PATH_MAX], path[PATH_MAX + 64];
    const int top = snprintf(folder, sizeof folder, "%s%s", root, mount);
    snprintf(folder + top, sizeof folder - (size_t)top, "%.*s", (int)strcspn(group, "\n"), group);
    size_t least = SIZE_MAX;
    for (char *end;; *end = 0) {
        snprintf(path, sizeof path, "%s/%s", folder, name);
        const size_t limit = read_limit(path);
        if (limit < least) least = limit;
        end = strrchr(folder, '/');
        if (end < folder + top) return least;
    }
}

// Of a line of /proc/self/cgroup, "number:controllers:path": the path, where the controller is one of them. Version 2
// has one line, whose controllers are "".
static const char *group_of(const char *line, const char *controller) {
    const char *first = strchr(line, ':'), *second = first ? strchr(first + 1, ':') : NULL;
    const size_t length = strlen(controller);
    for (const char *before = first; second && before < second; before += 1 + strcspn(before + 1, ",:"))
        if (!strncmp(before + 1, controller, length) && strchr(",:", before[1 + length])) return second + 1;
    return NULL;
}

size_t cli_cgroup_limit(const char *root) {
    static const struct {
        const char *controller, *mount, *name;
    } versions[] = {{"", "/sys/fs/cgroup", "memory.max"}, {"memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes"}};
    char line[PATH_MAX];
    size_t least = SIZE_MAX;
    for (int v = 0; v < 2; v++) {
        snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
        FILE *file = fopen(line, "re");
        const char *group = NULL;
        while (file && !group && fgets(line, sizeof line, file)) group = group_of(line, versions[v].controller);
        if (file) fclose(file);
        const size_t limit = least_limit(root, versions[v].mount, group ? group : "", versions[v].name);
        if (limit < least) least = limit;
    }
    return least;
}
