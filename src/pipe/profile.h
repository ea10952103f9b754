// SPDX-License-Identifier: MIT
// Building profiles.
#ifndef DPCRI_PIPE_PROFILE_H
#define DPCRI_PIPE_PROFILE_H

#include "base/base.h"
#include "deeppcr/profile.h"

// Arrays of zeros for so many layers, names NULL.
dpcr_status dpcri_profile_alloc(dpcr_context *context, int64_t layers, dpcr_profile *profile, dpcr_error *error);
dpcr_status dpcri_profile_set_name(dpcr_context *context, dpcr_profile *profile, int64_t layer, const char *name,
                                   dpcr_error *error);
dpcr_status dpcri_profile_read_graph(dpcr_context *context, const char *text, size_t bytes, dpcr_profile *profile,
                                     dpcr_error *error);

#endif
