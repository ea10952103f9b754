// SPDX-License-Identifier: MIT
#ifndef DPCRI_CHAIN_FORGETS_H
#define DPCRI_CHAIN_FORGETS_H

#include "chain/auto.h"
#include "chain/chain_internal.h"

// Whether such a chain, for which a scheme was chosen (and the chunk that `chunked` has), may run in overlapped chunks
// of the loop where its data forget; if so, the options that overlap's workspace is to be asked for with.
bool dpcri_chain_may_overlap(const dpcr_chain_shape *shape, dpcr_scheme chosen, int64_t chunk,
                             const dpcri_chain_place *place, dpcr_chain_options *options);

// Looks how soon the chain at hand forgets its start. Where that is soon enough the options become those of a solve by
// overlap, whose bits are the loop's, or, of dense chains wider than 4, whose chunks join within 8 roundings of each
// component. Before, the options are those of the scheme that was chosen. The workspace is scratch.
void dpcri_chain_forgets(dpcr_context *context, const dpcr_chain_shape *shape, const dpcri_chain_place *place,
                         const dpcri_linear *chain, void *workspace, dpcr_chain_options *options);

#endif
