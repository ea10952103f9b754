// SPDX-License-Identifier: MIT
// Linked into the programs that are faulty on purpose: the environment variable DEEPPCR_MUTANT chooses the fault.
#include <stdlib.h>

extern int dpcri_mutant;
__attribute__((constructor)) static void choose_mutant(void);

static void choose_mutant(void) {
    const char *number = getenv("DEEPPCR_MUTANT");
    dpcri_mutant = number ? atoi(number) : 0;
}
