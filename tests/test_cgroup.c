// SPDX-License-Identifier: MIT
// Memory limits of control groups, in a folder that stands for the system's root.
#include <errno.h>
#include <ftw.h>
#include <sys/stat.h>

#include "../cli/cgroup.h"
#include "data_testing.h"

// Writes a file of the root, and makes the folders above it.
static void put(const scratch *s, const char *name, const char *text) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", s->folder, name);
    for (char *slash = path + strlen(s->folder) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void version_two(void **state) {
    const scratch *s = *state;
    assert_true(cli_cgroup_limit(s->folder) == SIZE_MAX);
    put(s, "sys/fs/cgroup/memory.max", "9000\n");  // a container's, without a /proc to tell more
    assert_int_equal(cli_cgroup_limit(s->folder), 9000);
    put(s, "proc/self/cgroup", "0::/a.slice/b/c\n");
    assert_int_equal(cli_cgroup_limit(s->folder), 9000);
    put(s, "sys/fs/cgroup/a.slice/memory.max", "5000\n");
    put(s, "sys/fs/cgroup/a.slice/b/memory.max", "max\n");
    put(s, "sys/fs/cgroup/a.slice/b/c/memory.max", "7000\n");
    put(s, "sys/fs/cgroup/a.slice/b/c/d/memory.max", "1000\n");
    put(s, "sys/fs/cgroup/memory/memory.max", "1000\n");
    assert_int_equal(cli_cgroup_limit(s->folder), 5000);
    put(s, "sys/fs/cgroup/a.slice/b/c/memory.max", "3000\n");
    assert_int_equal(cli_cgroup_limit(s->folder), 3000);
    put(s, "proc/self/cgroup", "0::/\n");
    assert_int_equal(cli_cgroup_limit(s->folder), 9000);
}

static void version_one(void **state) {
    const scratch *s = *state;
    put(s, "proc/self/cgroup", "9:name=memory:/x\n4:cpu,memory,pids:/a/b\n3:memoryless:/x\n0::/c\n");
    put(s, "sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1000\n");
    put(s, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(cli_cgroup_limit(s->folder), 9223372036854771712);
    put(s, "sys/fs/cgroup/memory/a/memory.limit_in_bytes", "6000\n");
    put(s, "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "8000\n");
    assert_int_equal(cli_cgroup_limit(s->folder), 6000);
    put(s, "sys/fs/cgroup/c/memory.max", "5000\n");
    assert_int_equal(cli_cgroup_limit(s->folder), 5000);
}

static int drop(const char *path, const struct stat *about, int kind, struct FTW *at) {
    (void)about, (void)kind;
    return at->level ? remove(path) : 0;
}

static int drop_all(void **state) {
    nftw(((scratch *)*state)->folder, drop, 8, FTW_DEPTH | FTW_PHYS);
    return scratch_teardown(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(version_two, scratch_setup, drop_all),
        cmocka_unit_test_setup_teardown(version_one, scratch_setup, drop_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
