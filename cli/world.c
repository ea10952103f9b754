// SPDX-License-Identifier: MIT
#include "world.h"

#include <stdlib.h>

// Open MPI's names, MPICH's, and those of Slurm's and other PMI launchers.
static int64_t number_of(const char *const *names, int count, int64_t otherwise) {
    for (int i = 0; i < count; i++) {
        const char *text = getenv(names[i]);
        char *end = NULL;
        const long value = text ? strtol(text, &end, 10) : 0;
        if (text && end != text && !*end && value >= 0) return value;
    }
    return otherwise;
}

int64_t cli_world_size(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    const int64_t size = number_of(names, 2, 1);
    return size > 1 ? size : 1;
}

bool cli_world_launched(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    return number_of(names, 2, 0) > 0;
}

int64_t cli_world_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK"};
    return cli_world_size() > 1 ? number_of(names, 2, 0) : 0;
}

#ifdef DEEPPCR_MPI

int cli_mpi_open(dpcr_transport *transport);
void cli_mpi_close(int status);
void cli_mpi_patience(double seconds);

int cli_world_open(dpcr_transport *transport) { return cli_mpi_open(transport); }
void cli_world_close(int status) { cli_mpi_close(status); }
void cli_world_patience(double seconds) { cli_mpi_patience(seconds); }

#else

int cli_world_open(dpcr_transport *transport) {
    (void)transport;
    return cli_fail(CLI_USAGE, "started as %lld processes, but built without MPI", (long long)cli_world_size());
}
void cli_world_close(int status) { (void)status; }
void cli_world_patience(double seconds) { (void)seconds; }

#endif
