// SPDX-License-Identifier: MIT
// The memory that the system lets this process's control group have.
#ifndef CLI_CGROUP_H
#define CLI_CGROUP_H

#include <stddef.h>

// Bytes; SIZE_MAX: no limit. `root` stands before /proc and /sys: "" outside of tests.
size_t cli_cgroup_limit(const char *root);

#endif
