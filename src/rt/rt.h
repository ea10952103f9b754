// SPDX-License-Identifier: MIT
// Run time: the context's inside, threads, instruction set level.
#ifndef DPCRI_RT_H
#define DPCRI_RT_H

#include "base/base.h"

typedef enum dpcri_isa { DPCRI_PORTABLE = 0, DPCRI_AVX2, DPCRI_AVX512, DPCRI_ISA_COUNT } dpcri_isa;

// The level in force: the CPU's best, lowered by DEEPPCR_ISA. Decided once.
dpcri_isa dpcri_isa_level(void);

// Whether its kernels have fma.
static inline bool dpcri_isa_fuses(dpcri_isa isa) {
#if defined(__aarch64__)
    return (void)isa, true;
#else
    return isa != DPCRI_PORTABLE;
#endif
}

// for i in 0..n-1: task(argument, i), on the context's threads, in any order and at once. Calls that meet on one
// context take turns; a call from inside a task runs serially. What a task does is the plan's, never the thread
// count's: same bits for any number of threads. Of at most dpcri_threads_at_hand tasks each may wait for the one before
// it: it is first of a thread's range, or done by a thread that has done its own, and ranges are taken from their ends.
void dpcri_parallel(dpcr_context *context, int64_t n, void (*task)(void *argument, int64_t i), void *argument);

// Threads that a region asked for here has; 1 inside a task.
int64_t dpcri_threads_at_hand(const dpcr_context *context);

// Regions that the calling thread asks for from here on are run by at most so many threads; 0: by all the context has.
// For loops that see by the clock that fewer are faster: bits stay. Returns what it was.
int dpcri_threads_limit(int threads);

// The rates of the context's machine, for the planners' cost models: dpcr_context_machine without a way to fail.
void dpcri_rates_of(dpcr_context *context, dpcr_machine *machine);
// Those of this machine, whatever was described; and whether the context's plans are for one that was, and what was
// said of it (0: nothing; `given` may be NULL).
void dpcri_rates_here(dpcr_context *context, dpcr_machine *machine);
bool dpcri_is_described(dpcr_context *context, dpcr_machine *given);

// Puts those that were measured among the context's wisdom; forgets them.
void dpcri_rates_note(dpcr_context *context);
void dpcri_rates_forget(dpcr_context *context);
// Measures them (rates.c).
dpcr_machine dpcri_rates_measure(dpcr_context *context);

// A moment's rest of a thread that looks out for another's word.
static inline void dpcri_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");  // a yield does nothing on most
#endif
}

// The turn-th moment's rest, from 0, of a wait for what another thread does: a pause for about 5 us; then the processor
// is yielded, for whoever is waited for may have lost his own; after 2000 yields, half a millisecond where nobody else
// wants the processor, it sleeps, some 70 us each time: threads that only yield to each other may keep him waiting
// where they are more than the processors.
enum { DPCRI_PAUSES = 500 };
void dpcri_wait_longer(int64_t turn);
static inline void dpcri_wait(int64_t turn) {
    if (turn < DPCRI_PAUSES)
        dpcri_pause();
    else
        dpcri_wait_longer(turn - DPCRI_PAUSES);
}

// True on a thread that is at work on a task of dpcri_parallel.
bool dpcri_inside_task(void);

// "AMD EPYC 9B45, avx512, 2 processors": what wisdom holds for and nothing else.
const char *dpcri_machine_name(char *buffer, size_t bytes);

// Whether there is a cancel function.
bool dpcri_cancels(const dpcr_context *context);
// What it says; 0 where there is none.
int dpcri_cancel_answer(const dpcr_context *context);

#endif
