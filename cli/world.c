// SPDX-License-Identifier: MIT
#include "world.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "world_module.h"

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

// ---- the module ----

#ifndef CLI_LIBRARY_FOLDER
#define CLI_LIBRARY_FOLDER "../lib"  // from the folder of programs to that of libraries
#endif

static const char module_name[] = "libdeeppcr_mpi.so.0";
static const cli_world_module *module;
static double patience;
static bool together, asked;

// As src/rt/dev/load.c looks for the CUDA backend: beside the program, where both are installed, or where the loader
// looks; the first file that is there decides.
static void module_path(char *path, size_t bytes) {
    enum { NAME_BYTES = sizeof CLI_LIBRARY_FOLDER + sizeof module_name + 2 };
    static const char *const below[] = {"", CLI_LIBRARY_FOLDER "/"};
    const ssize_t length = readlink("/proc/self/exe", path, bytes - NAME_BYTES);
    char *const end = length > 0 && (size_t)length < bytes - NAME_BYTES ? memrchr(path, '/', (size_t)length) : NULL;
    for (int i = 0; end && i < 2; i++) {
        snprintf(end + 1, NAME_BYTES, "%s%s", below[i], module_name);
        if (access(path, F_OK) == 0) return;
    }
    snprintf(path, bytes, "%s", module_name);
}

// What is missing on one machine the first rank may not see: one process a machine tells it.
static void tell_host(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"};
    if (number_of(names, 2, 0) == 0) cli_silence(false);
}

static int load(void) {
    char path[4096];
    module_path(path, sizeof path);
    // MPI's own plugins look for its names among all.
    void *const loaded = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!loaded) {
        const char *const why = dlerror();
        tell_host();
        if (why && strncmp(why, module_name, sizeof module_name - 1) == 0)  // else the file that was found comes first
            return cli_fail(CLI_USAGE, "started as %lld processes, but there is no %s (built without MPI?)",
                            (long long)cli_world_size(), module_name);
        return cli_fail(CLI_RESOURCES, "started as %lld processes, but MPI cannot be loaded: %s",
                        (long long)cli_world_size(), why ? why : path);
    }
    cli_world_entry *entry = NULL;
    *(void **)&entry = dlsym(loaded, CLI_WORLD_ENTRY);
    const cli_world_module *const found = entry ? entry() : NULL;
    if (!found || found->size != sizeof *found || found->program_size != sizeof(cli_world_program) || !found->version ||
        strcmp(found->version, DPCR_VERSION_STRING) != 0) {
        tell_host();
        return cli_fail(CLI_RESOURCES, "'%s' is not of this program, deeppcr %s, or built from other sources", path,
                        DPCR_VERSION_STRING);
    }
    module = found;
    return CLI_DONE;
}

int cli_world_open(dpcr_transport *transport) {
    static cli_world_program program;
    asked = true;
    const int status = load();
    if (status) return status;
    program = (cli_world_program){.fail = cli_fail,
                                  .get_verb = cli_get_verb,
                                  .signals_install = cli_signals_install,
                                  .signal = cli_signal,
                                  .now = cli_now,
                                  .rank = cli_world_rank,
                                  .patience = patience,
                                  .together = together};
    const int opened = module->open(&program, transport);
    if (opened || (transport->ranks == cli_world_size() && transport->rank == cli_world_rank())) return opened;
    module->close(0);  // each by itself, they would all do the whole work
    return cli_fail(CLI_USAGE,
                    "process %lld of %lld by its launcher is process %lld of %lld by MPI; wanted the launcher of the "
                    "MPI that the program was built with",
                    (long long)cli_world_rank(), (long long)cli_world_size(), (long long)transport->rank,
                    (long long)transport->ranks);
}

bool cli_world_asked(void) { return asked; }
void cli_world_close(int status) { module->close(status); }

void cli_world_patience(double seconds, bool all_together) {
    patience = seconds > 5 ? seconds : 5;
    together = all_together;
}
