// SPDX-License-Identifier: MIT
#include "pipe/executor_context.h"

// A context's memory is 64-byte aligned, which is all that the library asks for.
static void *lend(void *user, size_t bytes, size_t alignment) {
    dpcri_lender *lender = user;
    (void)alignment;
    pthread_mutex_lock(&lender->turn);
    void *memory = dpcri_alloc(lender->parent, bytes);
    pthread_mutex_unlock(&lender->turn);
    return memory;
}

static void take_back(void *user, void *memory) {
    dpcri_lender *lender = user;
    pthread_mutex_lock(&lender->turn);
    dpcri_free(lender->parent, memory);
    pthread_mutex_unlock(&lender->turn);
}

dpcr_status dpcri_lender_open(dpcri_lender *lender, dpcr_context *parent, dpcr_error *error) {
    *lender = (dpcri_lender){0};
    if (pthread_mutex_init(&lender->turn, NULL) != 0)
        return dpcri_fail(error, DPCR_ERROR_SYSTEM, "pipeline: the system gave no mutex");
    lender->parent = parent;
    return DPCR_OK;
}

void dpcri_lender_close(dpcri_lender *lender) {
    if (!lender->parent) return;
    pthread_mutex_destroy(&lender->turn);
    lender->parent = NULL;
}

dpcr_status dpcri_lender_context(dpcri_lender *lender, dpcr_context **context, dpcr_error *error) {
    const dpcr_context_options options = {
        .size = sizeof options, .threads = 1, .allocate = lend, .release = take_back, .allocator_user = lender};
    return dpcr_context_create(&options, context, error);
}
