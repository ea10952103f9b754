// SPDX-License-Identifier: MIT
// deeppcr: sequential neural computations, solved in parallel over their length. One header for all the public ones.
#ifndef DEEPPCR_H
#define DEEPPCR_H

#include "activation.h"
#include "array.h"
#include "attention.h"
#include "bppsa.h"
#include "cell.h"
#include "chain.h"
#include "context.h"
#include "data.h"
#include "device.h"
#include "embedding.h"
#include "export.h"
#include "filter.h"
#include "jacobian.h"
#include "model.h"
#include "pipeline.h"
#include "profile.h"
#include "recurrent.h"
#include "sample.h"
#include "schedule.h"
#include "selective.h"
#include "sequence.h"
#include "solve.h"
#include "status.h"
#include "train.h"
#include "transition.h"
#include "workers.h"
#include "xla.h"

#endif
