// SPDX-License-Identifier: MIT
// Instruction set level: decided once, from cpuinfo or the processor, lowered by the environment variable DEEPPCR_ISA.
// Name and caches of the processor.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rt/cache.h"
#include "rt/rt.h"

#if defined(__x86_64__)
#include <cpuinfo.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

static const char *const isa_names[DPCRI_ISA_COUNT] = {"portable", "avx2", "avx512"};
static dpcri_isa level = DPCRI_PORTABLE;
static pthread_once_t once = PTHREAD_ONCE_INIT;

// Levels that this build has kernels of.
static const bool built[DPCRI_ISA_COUNT] = {
    true,
#if defined(DPCRI_BUILT_AVX2)
    [DPCRI_AVX2] = true,
#endif
#if defined(DPCRI_BUILT_AVX512)
    [DPCRI_AVX512] = true,
#endif
};

#if defined(__x86_64__)
// cpuinfo knows nothing where there is no /proc.
static bool cpu_itself_has(dpcri_isa isa) {
    if (isa == DPCRI_AVX2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}
#endif

static bool cpu_has(dpcri_isa isa) {
#if defined(__x86_64__)
    if (isa != DPCRI_PORTABLE && !cpuinfo_initialize()) return cpu_itself_has(isa);
    if (isa == DPCRI_AVX2) return cpuinfo_has_x86_avx2() && cpuinfo_has_x86_fma3();
    if (isa == DPCRI_AVX512)
        return cpuinfo_has_x86_avx512f() && cpuinfo_has_x86_avx512dq() && cpuinfo_has_x86_avx512bw() &&
               cpuinfo_has_x86_avx512vl();
#endif
    return isa == DPCRI_PORTABLE;
}

static void decide(void) {
    dpcri_isa highest = DPCRI_ISA_COUNT - 1;
    const char *forced = getenv("DEEPPCR_ISA");
    for (int i = 0; forced && i < DPCRI_ISA_COUNT; i++)
        if (strcmp(forced, isa_names[i]) == 0) highest = (dpcri_isa)i;
    level = highest;
    while (!built[level] || !cpu_has(level)) level--;
}

dpcri_isa dpcri_isa_level(void) {
    pthread_once(&once, decide);
    return level;
}

const char *dpcr_isa_name(void) { return isa_names[dpcri_isa_level()]; }

const char *dpcr_isa_level_name(int i) {
    for (int isa = 0; i >= 0 && isa < DPCRI_ISA_COUNT; isa++)
        if (built[isa] && cpu_has((dpcri_isa)isa) && i-- == 0) return isa_names[isa];
    return NULL;
}

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
#elif defined(__aarch64__)
    enum { TELLS = 1 << 11 };  // Linux's HWCAP_CPUID: it answers for the register
    if (!(getauxval(AT_HWCAP) & TELLS)) return;
    uint64_t id;
    __asm__("mrs %0, midr_el1" : "=r"(id));
    snprintf(processor, sizeof processor, "ARM (implementer 0x%02x part 0x%03x)", (unsigned)(id >> 24 & 255),
             (unsigned)(id >> 4 & 4095));
#endif
}

const char *dpcr_processor_name(void) {
    pthread_once(&named, name_processor);
    return processor;
}

#if defined(__aarch64__)
// What Linux tells of the first processor's caches, which the C library does not; a line of one.
static bool cache_tells(int index, const char *what, char *line, int bytes) {
    char name[80];
    snprintf(name, sizeof name, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, what);
    FILE *const file = fopen(name, "re");
    if (!file) return false;
    const bool told = fgets(line, bytes, file) != NULL;
    fclose(file);
    return told;
}

static int64_t told_by_linux(int cache) {
    char type[16], number[16], size[32], *unit;
    for (int i = 0; cache_tells(i, "type", type, sizeof type); i++) {
        if (type[0] == 'I' || !cache_tells(i, "level", number, sizeof number) || atoi(number) != cache) continue;
        if (!cache_tells(i, "size", size, sizeof size)) continue;
        const int64_t amount = strtoll(size, &unit, 10);
        return amount << (*unit == 'M' ? 20 : *unit == 'K' ? 10 : 0);
    }
    return 0;
}
#endif

// What the processor tells beats the C library, which calls all L3 of a package one (an EPYC of which a virtual machine
// has one part: 256 MB instead of 32).
int64_t dpcri_cache_bytes(int cache) {
    static const int names[] = {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE};
    const long told_by_libc = sysconf(names[cache - 1]);
    int64_t bytes = told_by_libc > 0 ? told_by_libc : 0;
#if defined(__x86_64__)
    if (cpuinfo_initialize()) {
        const uint32_t counts[] = {cpuinfo_get_l1d_caches_count(), cpuinfo_get_l2_caches_count(),
                                   cpuinfo_get_l3_caches_count()};
        const struct cpuinfo_cache *const first[] = {cpuinfo_get_l1d_caches(), cpuinfo_get_l2_caches(),
                                                     cpuinfo_get_l3_caches()};
        const int64_t told = counts[cache - 1] > 0 ? first[cache - 1]->size : 0;
        if (told > 0 && (bytes == 0 || told < bytes)) bytes = told;
    }
#elif defined(__aarch64__)
    if (bytes == 0) bytes = told_by_linux(cache);
#endif
    return bytes;
}

const char *dpcri_machine_name(char *buffer, size_t bytes) {
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    snprintf(buffer, bytes, "%s, %s, %ld processors", dpcr_processor_name(), dpcr_isa_name(), processors);
    return buffer;
}
