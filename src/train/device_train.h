// SPDX-License-Identifier: MIT
// Training whole on a device.
#ifndef DPCRI_TRAIN_DEVICE_TRAIN_H
#define DPCRI_TRAIN_DEVICE_TRAIN_H

#include "train/ledger.h"

// The rest of dpcr_train, from books that are open, where the options name a device.
dpcr_status dpcri_train_on_device(dpcri_ledger *ledger, dpcr_train_state *last, dpcr_error *error);

#endif
