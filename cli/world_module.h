// SPDX-License-Identifier: MIT
// Between the program and its module for MPI, libdeeppcr_mpi.so.0, which is loaded where a launcher has started several
// processes: MPI's libraries take up to half a second to load, and a machine may lack them.
#ifndef DEEPPCR_CLI_WORLD_MODULE_H
#define DEEPPCR_CLI_WORLD_MODULE_H

#include "deeppcr/transport.h"

// What the module asks of the program: functions of cli.h and world.h.
typedef struct cli_world_program {
    int (*fail)(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
    const char *(*get_verb)(void);
    void (*signals_install)(void);
    int (*signal)(void);
    double (*now)(void);
    int64_t (*rank)(void);
    double patience;  // of cli_world_patience; 0: not called
    bool together;    // and this
} cli_world_program;

// What the program has of it: cli_world_open, after which the program's struct still serves, and cli_world_close.
typedef struct cli_world_module {
    size_t size, program_size;  // sizeof(cli_world_module), sizeof(cli_world_program)
    const char *version;        // DPCR_VERSION_STRING
    int (*open)(const cli_world_program *program, dpcr_transport *transport);
    void (*close)(int status);
} cli_world_module;

// The module's only name.
typedef const cli_world_module *cli_world_entry(void);
#define CLI_WORLD_ENTRY "deeppcr_mpi_module"

#endif
