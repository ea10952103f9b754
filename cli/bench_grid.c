// SPDX-License-Identifier: MIT
// The grid of bench planner: networks, maps and linear chains, short and long, narrow and wide, one sequence and many,
// contracting to chaotic; recurrent networks. Chosen so that parallel methods win clearly in about half of it and lose
// in the other.
#include "bench_planner.h"

#define NETWORK(NAME, L, W, B, QUICK) \
    { PLANNER_NETWORK, NAME, L, W, B, CLI_INIT_DEFAULT, DPCR_ACT_DEFAULT, 1, 0, QUICK }
#define NETWORK_OF(NAME, L, W, B, INIT, ACT, GAIN) \
    { PLANNER_NETWORK, NAME, L, W, B, CLI_INIT_##INIT, DPCR_ACT_##ACT, GAIN, 0, false }
#define MAP(NAME, L) \
    { PLANNER_MAP, NAME, L, 0, 1, CLI_INIT_DEFAULT, DPCR_ACT_DEFAULT, 1, 0, false }
#define RECURRENT(NAME, L, W, B, QUICK) \
    { PLANNER_RECURRENT, NAME, L, W, B, CLI_INIT_DEFAULT, DPCR_ACT_DEFAULT, 1, 0, QUICK }
#define LINEAR(NAME, L, W, B, RADIUS, QUICK) \
    { PLANNER_LINEAR, NAME, L, W, B, CLI_INIT_DEFAULT, DPCR_ACT_DEFAULT, 1, RADIUS, QUICK }

const planner_case planner_grid[] = {
    // forget in 10 to 30 layers
    NETWORK("mlp", 64, 2, 1, true), NETWORK("mlp", 256, 2, 1, false), NETWORK("mlp", 1024, 2, 1, true),
    NETWORK("mlp", 4096, 2, 1, false), NETWORK("mlp", 16384, 2, 1, false), NETWORK("mlp", 65536, 2, 1, false),
    NETWORK("mlp", 64, 4, 1, false), NETWORK("mlp", 1024, 1, 1, false), NETWORK("mlp", 16384, 1, 1, false),
    NETWORK("mlp", 1024, 4, 1, false), NETWORK("mlp", 4096, 4, 1, false), NETWORK("mlp", 256, 8, 1, false),
    NETWORK("mlp", 1024, 8, 1, false), NETWORK("mlp", 4096, 8, 1, false), NETWORK("mlp", 128, 16, 1, false),
    NETWORK("mlp", 1024, 16, 1, false), NETWORK("mlp", 4096, 16, 1, false), NETWORK("mlp", 64, 32, 1, false),
    NETWORK("mlp", 1024, 32, 1, true), NETWORK("mlp", 4096, 32, 1, false), NETWORK("mlp", 128, 64, 1, false),
    NETWORK("mlp", 1024, 64, 1, false), NETWORK("mlp", 1024, 4, 16, false), NETWORK("mlp", 1024, 8, 64, false),
    NETWORK("mlp", 512, 32, 16, false), NETWORK("mlp", 256, 64, 64, false), NETWORK("mlp", 128, 64, 256, false),
    NETWORK("mlp", 512, 16, 256, true),
    // tanh that contracts little, and chaos
    NETWORK_OF("mlp", 1024, 4, 1, DEFAULT, TANH, 1), NETWORK_OF("mlp", 16384, 4, 1, DEFAULT, TANH, 1.5),
    NETWORK_OF("mlp", 4096, 8, 1, NORMAL, TANH, 1), NETWORK_OF("mlp", 4096, 2, 1, NORMAL, TANH, 1.2),
    NETWORK_OF("mlp", 1024, 16, 1, NORMAL, TANH, 3), NETWORK_OF("mlp", 4096, 32, 1, NORMAL, TANH, 2),
    NETWORK_OF("mlp", 1024, 8, 16, NORMAL, TANH, 2), NETWORK_OF("mlp", 1024, 32, 1, HE, RELU, 1),
    // keep their past
    NETWORK("resnet", 64, 2, 1, false), NETWORK("resnet", 1024, 1, 1, true), NETWORK("resnet", 1024, 2, 1, false),
    NETWORK("resnet", 16384, 1, 1, false), NETWORK("resnet", 16384, 2, 1, false), NETWORK("resnet", 4096, 4, 1, false),
    NETWORK("resnet", 1024, 8, 1, false), NETWORK("resnet", 1024, 32, 1, false), NETWORK("resnet", 512, 16, 64, false),
    NETWORK("resnet", 256, 32, 128, true), MAP("logistic", 4096), MAP("lorenz", 4096), MAP("lorenz", 65536),
    // linear
    LINEAR("dense", 64, 2, 1, 0.9, false), LINEAR("dense", 512, 2, 1, 0.9, false),
    LINEAR("dense", 4096, 1, 1, 0.9, true), LINEAR("dense", 65536, 1, 1, 1, false),
    LINEAR("dense", 4096, 2, 1, 0.9, false), LINEAR("dense", 65536, 2, 1, 1, false),
    LINEAR("dense", 4096, 4, 1, 0.9, false), LINEAR("dense", 65536, 4, 1, 1, false),
    LINEAR("dense", 4096, 8, 1, 0.9, false), LINEAR("dense", 16384, 8, 1, 1, false),
    LINEAR("dense", 4096, 16, 1, 0.9, false), LINEAR("dense", 1024, 32, 1, 0.9, false),
    LINEAR("dense", 1024, 4, 64, 0.9, false), LINEAR("diagonal", 4096, 4, 1, 0.9, true),
    LINEAR("diagonal", 65536, 16, 1, 0.9, false), LINEAR("diagonal", 4096, 64, 16, 0.9, false),
    LINEAR("block", 16384, 4, 1, 0.9, false), LINEAR("block", 512, 64, 4, 0.9, false),
    // recurrent networks, inference and training
    RECURRENT("rnn", 1024, 32, 1, false), RECURRENT("rnn", 512, 64, 16, false), RECURRENT("rnn", 4096, 128, 1, false),
    RECURRENT("gru", 1024, 16, 4, false), RECURRENT("gru", 1024, 32, 1, true), RECURRENT("gru", 16384, 32, 1, false),
    RECURRENT("gru", 1024, 32, 16, false), RECURRENT("gru", 1024, 128, 1, false), RECURRENT("lstm", 4096, 16, 1, false),
    RECURRENT("lstm", 1024, 32, 1, false), RECURRENT("lstm", 1024, 64, 4, false),
    RECURRENT("lstm", 256, 128, 16, false), RECURRENT("paragru", 4096, 16, 1, false),
    RECURRENT("paragru", 1024, 64, 8, false), RECURRENT("paragru", 2048, 128, 1, false),
    RECURRENT("paralstm", 512, 32, 16, false), RECURRENT("paralstm", 1024, 64, 8, false),
    RECURRENT("paralstm", 2048, 128, 1, false)};

const int planner_grid_count = sizeof planner_grid / sizeof *planner_grid;
