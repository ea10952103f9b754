// SPDX-License-Identifier: MIT
#include "rt/watch.h"

static const double soon = 1e7;       // flops that take some milliseconds at most
static const double between = 0.02;   // seconds from question to question
static const double stretch = 6.4e7;  // flops from look to look: below a tenth of a second on a slow thread

dpcri_watch *dpcri_watch_begin(dpcri_watch *watch, const dpcr_context *context, double flops) {
    if (flops < soon || !dpcri_cancels(context)) return NULL;
    watch->context = context;
    watch->caller = pthread_self();
    watch->asked = dpcri_seconds() - between;
    atomic_init(&watch->stopped, false);
    return watch;
}

bool dpcri_watch_stopped(dpcri_watch *watch) {
    if (!watch) return false;
    if (atomic_load_explicit(&watch->stopped, memory_order_relaxed)) return true;
    if (!pthread_equal(pthread_self(), watch->caller)) return false;
    const double now = dpcri_seconds();
    if (now - watch->asked < between) return false;
    watch->asked = now;
    if (!dpcri_cancelled(watch->context)) return false;
    atomic_store_explicit(&watch->stopped, true, memory_order_relaxed);
    return true;
}

bool dpcri_watch_heard(dpcri_watch *watch, dpcr_status status) {
    if (!watch || status != DPCR_ERROR_CANCELLED) return false;
    atomic_store_explicit(&watch->stopped, true, memory_order_relaxed);
    return true;
}

int64_t dpcri_watch_steps(double flops) { return flops < stretch ? (int64_t)(stretch / (flops > 1 ? flops : 1)) : 1; }
