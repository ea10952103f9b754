// SPDX-License-Identifier: MIT
// tanh(x) for 16 floats at a time: 32 segments with a polynomial of degree 4 in |x| each, weighted for the relative
// error and rounded from the highest coefficient down, the lower ones refitted. The segment is bits 20..24 of the float
// u = 0.82 |x| + 0.5 (two exponent bits, three of the mantissa), u in [0.5, 8). The last segment's constant was rounded
// first: its polynomial is 1 to the bit where tanh is, so that gates close and what is saturated has the slope 0.
// Made by scripts/nn_tanh_table.py: do not edit.
#ifndef DPCRI_NN_TANH_TABLE_H
#define DPCRI_NN_TANH_TABLE_H

static const float tanh_table[5][32] __attribute__((aligned(64))) = {
    {
        -0x1.4b5f6c0000000p-4f,
        0x1.d60be40000000p-5f,
        0x1.cbbade0000000p-3f,
        0x1.8f84940000000p-2f,
        0x1.12f5e80000000p-1f,
        0x1.51063a0000000p-1f,
        0x1.81c35e0000000p-1f,
        0x1.a6a8840000000p-1f,
        0x1.cb9ff60000000p-1f,
        0x1.e7ef240000000p-1f,
        0x1.f569160000000p-1f,
        0x1.fb80c00000000p-1f,
        0x1.fe256c0000000p-1f,
        0x1.ff41400000000p-1f,
        0x1.ffb4fa0000000p-1f,
        0x1.ffe30c0000000p-1f,
        0x0.0p+0f,
        0x1.06de0c0000000p-19f,
        0x1.9f41b40000000p-16f,
        0x1.c4c48c0000000p-14f,
        0x1.138a580000000p-12f,
        0x1.8e72f80000000p-12f,
        0x1.259adc0000000p-13f,
        -0x1.096f0c0000000p-10f,
        -0x1.85c4300000000p-8f,
        -0x1.6d5f1e0000000p-6f,
        -0x1.a54ede0000000p-5f,
        -0x1.6ca4460000000p-4f,
        -0x1.01a6620000000p-3f,
        -0x1.36509c0000000p-3f,
        -0x1.4494680000000p-3f,
        -0x1.252f8a0000000p-3f,
    },
    {
        0x1.6fc3600000000p+0f,  0x1.2d71e60000000p+0f,  0x1.ce4b6e0000000p-1f,  0x1.5248e20000000p-1f,
        0x1.dea1e20000000p-2f,  0x1.4a1fe00000000p-2f,  0x1.be74da0000000p-3f,  0x1.2915400000000p-3f,
        0x1.3f9eac0000000p-4f,  0x1.0814740000000p-5f,  0x1.a5e26a0000000p-7f,  0x1.47e21a0000000p-8f,
        0x1.f229de0000000p-10f, 0x1.7333c80000000p-11f, 0x1.100dd60000000p-12f, 0x1.891d4e0000000p-14f,
        0x1.fffffe0000000p-1f,  0x1.fff3e40000000p-1f,  0x1.ffa74c0000000p-1f,  0x1.fee95e0000000p-1f,
        0x1.fddd8e0000000p-1f,  0x1.fd37920000000p-1f,  0x1.fe42d60000000p-1f,  0x1.0152a60000000p+0f,
        0x1.0953ca0000000p+0f,  0x1.1f2e0a0000000p+0f,  0x1.3fc79e0000000p+0f,  0x1.63f1ba0000000p+0f,
        0x1.82f8b80000000p+0f,  0x1.9650b80000000p+0f,  0x1.9b1ef40000000p+0f,  0x1.91d99c0000000p+0f,
    },
    {
        -0x1.85e95a0000000p-1f,  -0x1.28a1fa0000000p-1f,  -0x1.a3d72a0000000p-2f,  -0x1.1bc8840000000p-2f,
        -0x1.7418580000000p-3f,  -0x1.dd8f9e0000000p-4f,  -0x1.2da9160000000p-4f,  -0x1.7878240000000p-5f,
        -0x1.726aaa0000000p-6f,  -0x1.1260d60000000p-7f,  -0x1.8d10320000000p-9f,  -0x1.19f6760000000p-10f,
        -0x1.8a4b8c0000000p-12f, -0x1.101c200000000p-13f, -0x1.7365ce0000000p-15f, -0x1.f610a00000000p-17f,
        0x1.eb6cd80000000p-17f,  0x1.c354980000000p-10f,  0x1.e59d280000000p-8f,   0x1.155f980000000p-6f,
        0x1.bb967a0000000p-6f,   0x1.07e1b40000000p-5f,   0x1.a543320000000p-6f,   0x1.df0e660000000p-10f,
        -0x1.29398e0000000p-4f,  -0x1.eb82480000000p-3f,  -0x1.cbd71e0000000p-2f,  -0x1.4bf2cc0000000p-1f,
        -0x1.98b0680000000p-1f,  -0x1.c3581c0000000p-1f,  -0x1.cd0e7c0000000p-1f,  -0x1.bc9ffa0000000p-1f,
    },
    {
        0x1.82e6ca0000000p-3f,  0x1.0e28380000000p-3f,  0x1.5e02360000000p-4f,  0x1.b2786e0000000p-5f,
        0x1.06cb400000000p-5f,  0x1.38bd9a0000000p-6f,  0x1.701a0e0000000p-7f,  0x1.addf920000000p-8f,
        0x1.81be8e0000000p-9f,  0x1.ff25000000000p-11f, 0x1.4e79000000000p-12f, 0x1.b183320000000p-14f,
        0x1.16b9fc0000000p-15f, 0x1.640b920000000p-17f, 0x1.c43f080000000p-19f, 0x1.1dd7680000000p-20f,
        -0x1.56518e0000000p-2f, -0x1.65946c0000000p-2f, -0x1.7f1cba0000000p-2f, -0x1.9bbe3e0000000p-2f,
        -0x1.b2bdd80000000p-2f, -0x1.bc3d740000000p-2f, -0x1.b2cdce0000000p-2f, -0x1.94750c0000000p-2f,
        -0x1.43ca440000000p-2f, -0x1.5c0ccc0000000p-3f, -0x1.1963a60000000p-6f, 0x1.b9eaf60000000p-4f,
        0x1.85cef80000000p-3f,  0x1.d977480000000p-3f,  0x1.eae9880000000p-3f,  0x1.d104360000000p-3f,
    },
    {
        -0x1.2c69720000000p-6f,  -0x1.7d6caa0000000p-7f,  -0x1.c15a660000000p-8f,  -0x1.fdc0de0000000p-9f,
        -0x1.1b78720000000p-9f,  -0x1.37f67a0000000p-10f, -0x1.5560120000000p-11f, -0x1.746a8a0000000p-12f,
        -0x1.3012480000000p-13f, -0x1.67b7e40000000p-15f, -0x1.a92a920000000p-17f, -0x1.f6637a0000000p-19f,
        -0x1.28cb860000000p-20f, -0x1.5eaa740000000p-22f, -0x1.9e4fd80000000p-24f, -0x1.e98c900000000p-26f,
        0x1.4ba2180000000p-6f,   0x1.2944740000000p-4f,   0x1.d36cfc0000000p-4f,   0x1.2926a20000000p-3f,
        0x1.4f75600000000p-3f,   0x1.5c56020000000p-3f,   0x1.524c220000000p-3f,   0x1.36075c0000000p-3f,
        0x1.ebbbd20000000p-4f,   0x1.2717d20000000p-4f,   0x1.ed81300000000p-6f,   0x1.5808120000000p-11f,
        -0x1.0c1a700000000p-6f,  -0x1.873ada0000000p-6f,  -0x1.9ebb360000000p-6f,  -0x1.801cf60000000p-6f,
    },
};

#endif
