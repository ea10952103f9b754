// SPDX-License-Identifier: MIT
// The level where cpuinfo knows nothing, as without /proc.
#include "data_testing.h"

#if defined(DPCRI_BUILT_AVX2) || defined(DPCRI_BUILT_AVX512)
#include <cpuinfo.h>

// In place of the library's.
bool cpuinfo_initialize(void) { return false; }

static bool told(const char *flag) {
    static char line[1 << 14];
    char word[32];
    FILE *file = fopen("/proc/cpuinfo", "r");
    assert_non_null(file);
    bool found = false;
    snprintf(word, sizeof word, " %s ", flag);
    while (!found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = ' ';
        found = strncmp(line, "flags", 5) == 0 && strstr(line, word);
    }
    fclose(file);
    return found;
}

static void levels_are_the_processors(void **state) {
    (void)state;
    int level = 0;
    assert_string_equal(dpcr_isa_level_name(level++), "portable");
#if defined(DPCRI_BUILT_AVX2)
    if (told("avx2") && told("fma")) assert_string_equal(dpcr_isa_level_name(level++), "avx2");
#endif
#if defined(DPCRI_BUILT_AVX512)
    if (told("avx512f") && told("avx512dq") && told("avx512bw") && told("avx512vl"))
        assert_string_equal(dpcr_isa_level_name(level++), "avx512");
#endif
    assert_null(dpcr_isa_level_name(level));
    if (!getenv("DEEPPCR_ISA")) assert_string_equal(dpcr_isa_name(), dpcr_isa_level_name(level - 1));
}
#else
static void levels_are_the_processors(void **state) {
    (void)state;
    skip();
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(levels_are_the_processors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
