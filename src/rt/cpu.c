// SPDX-License-Identifier: MIT
// Instruction set level: decided once, from cpuinfo, lowered by the environment variable DEEPPCR_ISA.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rt/rt.h"

#if defined(__x86_64__)
#include <cpuinfo.h>
#endif

static const char *const isa_names[DPCRI_ISA_COUNT] = {"portable", "avx2", "avx512"};
static dpcri_isa level = DPCRI_PORTABLE;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static dpcri_isa cpu_level(void) {
#if defined(__x86_64__)
    if (!cpuinfo_initialize()) return DPCRI_PORTABLE;
    if (cpuinfo_has_x86_avx512f() && cpuinfo_has_x86_avx512dq() && cpuinfo_has_x86_avx512bw() &&
        cpuinfo_has_x86_avx512vl())
        return DPCRI_AVX512;
    if (cpuinfo_has_x86_avx2() && cpuinfo_has_x86_fma3()) return DPCRI_AVX2;
#endif
    return DPCRI_PORTABLE;
}

static void decide(void) {
    level = cpu_level();
    const char *forced = getenv("DEEPPCR_ISA");
    for (int i = 0; forced && i < DPCRI_ISA_COUNT; i++)
        if (strcmp(forced, isa_names[i]) == 0 && (dpcri_isa)i < level) level = (dpcri_isa)i;
}

dpcri_isa dpcri_isa_level(void) {
    pthread_once(&once, decide);
    return level;
}

const char *dpcr_isa_name(void) { return isa_names[dpcri_isa_level()]; }

// The processor's own name where there is one; control characters and commas would break the lines that it stands in.
const char *dpcri_machine_name(char *buffer, size_t bytes) {
    const char *name = "unknown processor";
#if defined(__x86_64__)
    if (cpuinfo_initialize() && cpuinfo_get_packages_count() > 0 && cpuinfo_get_package(0)->name[0])
        name = cpuinfo_get_package(0)->name;
#endif
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    snprintf(buffer, bytes, "%s, %s, %ld processors", name, dpcr_isa_name(), processors);
    for (char *c = buffer; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e) *c = '?';
    return buffer;
}
