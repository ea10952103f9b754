// SPDX-License-Identifier: MIT
// What the simulator's device is: DEEPPCR_SIMT="SEED RESIDENT BLOCKS BYTES" says who goes first, how many blocks of a
// plain launch are resident, how many go together at most, and bytes of memory on chip of a block.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "kern/cuda/simt.h"

extern "C" void settings_of_simulator(void);

void settings_of_simulator(void) {
    const char *const text = std::getenv("DEEPPCR_SIMT");
    unsigned long long seed = 0;
    int resident = 0, blocks = 0, bytes = 0;
    if (!text || std::sscanf(text, "%llu %d %d %d", &seed, &resident, &blocks, &bytes) != 4) return;
    simt::host::config.seed = seed;
    simt::host::config.resident = resident;
    simt::host::config.cooperative_blocks = blocks;
    simt::host::config.shared_bytes = bytes;
}
