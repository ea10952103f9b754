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

static char processor[128] = "unknown processor";
static pthread_once_t named = PTHREAD_ONCE_INIT;

// Virtual machines call processors of several generations, at quite different rates, by one name.
static void name_processor(void) {
#if defined(__x86_64__)
    if (!cpuinfo_initialize() || cpuinfo_get_packages_count() == 0 || !cpuinfo_get_package(0)->name[0]) return;
    const char *const name = cpuinfo_get_package(0)->name;
    const uint32_t id = cpuinfo_get_uarchs_count() > 0 ? cpuinfo_get_uarch(0)->cpuid : 0;
    const uint32_t base = id >> 8 & 15, family = base == 15 ? base + (id >> 20 & 255) : base;
    const uint32_t model = (id >> 4 & 15) | (base == 15 || base == 6 ? id >> 12 & 0xf0 : 0);
    snprintf(processor, sizeof processor, "%.80s (family %u model %u)", name, family, model);
    for (char *c = processor; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e) *c = '?';
#endif
}

const char *dpcr_processor_name(void) {
    pthread_once(&named, name_processor);
    return processor;
}

double dpcri_vector_passes(void) {
    static const double passes[DPCRI_ISA_COUNT] = {4, 2, 1};
    const dpcri_isa isa = dpcri_isa_level();
#if defined(__x86_64__)
    // Family 25, Zen 4: vectors of 512 bits go through units of 256. Later families do them whole.
    if (isa == DPCRI_AVX512 && strstr(dpcr_processor_name(), "AMD") && strstr(dpcr_processor_name(), "(family 25 "))
        return 2;
#endif
    return passes[isa];
}

const char *dpcri_machine_name(char *buffer, size_t bytes) {
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    snprintf(buffer, bytes, "%s, %s, %ld processors", dpcr_processor_name(), dpcr_isa_name(), processors);
    return buffer;
}
