// SPDX-License-Identifier: MIT
// A sampler's sweeps on a device: what follows the evaluation of a window's steps. Not yet run on a device.
//
//   picard   r_l = f_l - z_l;  delta_l = delta_{l-1} + r_l along the window;  z_l += delta_l, the front's z = f;  the
//            front goes past the leading steps that are within the tolerance; what comes into the window is guessed
//
// A block a sequence, in one launch: a warp a step for residuals and updates, a thread a number for the sums along the
// window. Rules, operations and the order of sums are solve/sweeps.c's by the loop, so the bits are those of a host
// that takes the scheme sequential. The network's work is some thousand times this: what it costs is reading the window
// four times from the second cache, by one multiprocessor a sequence.
#ifndef DPCRI_CUDA_SWEEPS_H
#define DPCRI_CUDA_SWEEPS_H

#include <cmath>

#include "kern/cuda/activations.h"
#include "kern/cuda/launch.h"
#include "kern/cuda/simt.h"

namespace sweeps {

constexpr int threads = 256, warps = threads / simt::warp_size;
constexpr int64_t shared_bytes = warps * 16;

// A sequence's window, [lo, hi).
struct view {
    const dpcri_device_sweep &a;
    int64_t item, sequence, lo, hi;
    SIMT int64_t row(int64_t j) const { return j * a.window.count + item; }
    SIMT float *z(int64_t l) const { return a.path + ((l + 1) * a.window.batch + sequence) * a.width; }
    SIMT const float *f(int64_t j) const { return a.f + row(j) * a.width; }
    SIMT float *r(int64_t j) const { return a.r + row(j) * a.width; }
};

SIMT view view_of(simt::lane &me, const dpcri_device_sweep &a) {
    const int64_t sequence = a.window.who[me.block()], lo = a.window.places[sequence].front;
    const int64_t end = lo + a.window.most;
    return {a, me.block(), sequence, lo, end < a.window.length ? end : a.window.length};
}

// The least `first` and the largest `worst` of the block's lanes, to all of them.
SIMT void gather(simt::lane &me, int64_t &first, double &worst) {
    const simt::shared<int64_t> firsts = me.array<int64_t>(0, warps);
    const simt::shared<double> worsts = me.array<double>(warps * 8, warps);
    for (int n = simt::warp_size / 2; n > 0; n /= 2) {
        const int64_t other = me.shuffle_xor(first, n);
        const double more = me.shuffle_xor(worst, n);
        first = other < first ? other : first;
        worst = more > worst ? more : worst;
    }
    me.barrier();
    if (me.in_warp() == 0) firsts.set(me.warp(), first), worsts.set(me.warp(), worst);
    me.barrier();
    for (int w = 0; w < warps; w++) {
        first = firsts.get(w) < first ? firsts.get(w) : first;
        worst = worsts.get(w) > worst ? worsts.get(w) : worst;
    }
}

SIMT double unit_of(const dpcri_device_sweep &a, int64_t l) { return a.scale ? a.scale[l] : 1; }

// Steps from `from` on copy the state before them; then the front, and whether the budget holds another sweep.
SIMT void go_on(simt::lane &me, const view &v, dpcri_device_progress p) {
    const dpcri_device_sweep &a = v.a;
    const int64_t L = a.window.length, left = L - p.front, next = left < a.window.most ? left : a.window.most;
    const int64_t from = p.filled > v.hi ? p.filled : v.hi, to = p.front + next;
    p.filled = to > from ? to : from;
    for (int64_t n = me.thread(); a.guess && n < (to - from) * a.width; n += threads)
        v.z(from + n / a.width)[n % a.width] = v.z(from - 1)[n % a.width];
    if (p.ended == DPCRI_DEVICE_AT_WORK && p.front >= L) p.ended = DPCRI_DEVICE_LOCKED;
    if (p.ended == DPCRI_DEVICE_AT_WORK && (double)(p.work + next) > (double)a.max_sweeps * (double)L + 0.5)
        p.ended = DPCRI_DEVICE_SPENT;
    p.locked = p.front;
    const bool again = p.ended == DPCRI_DEVICE_NOT_FINITE || (p.ended == DPCRI_DEVICE_SPENT && !a.no_fallback);
    if (again) p.front = p.exact;
    if (me.thread() == 0) const_cast<dpcri_device_progress *>(a.window.places)[v.sequence] = p;
}

// The front takes its f, nothing else is looked at.
SIMT void step_in_order(simt::lane &me, const view &v) {
    if (v.lo >= v.hi) return;
    for (int64_t k = me.thread(); k < v.a.width; k += threads) v.z(v.lo)[k] = v.f(0)[k];
    me.barrier();
    if (me.thread() == 0) const_cast<dpcri_device_progress *>(v.a.window.places)[v.sequence].front = v.lo + 1;
}

struct picard {
    typedef dpcri_device_sweep arguments;
    static constexpr int most = threads;
    enum : uint32_t { WITHIN = 1, FINITE = 2, SMALL = 4 };

    // r and what is to be said of each step; the first that is not within its tolerance, and the largest residual.
    SIMT static void residuals(simt::lane &me, const view &v, int64_t &open, double &worst) {
        for (int64_t j = me.warp(); j < v.hi - v.lo; j += warps) {
            const float *f = v.f(j), *z = v.z(v.lo + j);
            const double unit = unit_of(v.a, v.lo + j);
            const float atol = (float)(unit * v.a.atol), rtol = (float)(unit * v.a.rtol);
            bool bad = false, outside = false, lost = false;
            for (int64_t k = me.in_warp(); k < v.a.width; k += simt::warp_size) bad = bad || !cells::finite(f[k]);
            bad = me.any(bad);
            for (int64_t k = me.in_warp(); k < v.a.width; k += simt::warp_size) {
                const float d = bad ? 0 : f[k] - z[k], size = cells::magnitude(d), value = cells::magnitude(z[k]);
                const float relative = value > 1 ? size / value : size;
                v.r(j)[k] = d;
                if (bad) continue;
                if (!((double)relative <= worst)) worst = relative == relative ? (double)relative : HUGE_VAL;
                outside = outside || !(size <= atol + rtol * value);
                lost = lost || !cells::finite(d);
            }
            lost = me.any(lost);
            outside = me.any(outside);
            for (int64_t k = me.in_warp(); lost && k < v.a.width; k += simt::warp_size) v.r(j)[k] = 0;
            if (bad) worst = HUGE_VAL;
            const bool within = !bad && !lost && !outside;
            if (!within && j < open) open = j;
            if (me.in_warp() == 0) v.a.flags[v.row(j)] = (within ? WITHIN : 0u) | (bad ? 0u : FINITE);
        }
    }

    SIMT static void sum_along(simt::lane &me, const view &v) {
        for (int64_t k = me.thread(); k < v.a.width; k += threads) {
            float delta = 0;
            for (int64_t j = 0; j < v.hi - v.lo; j++) {
                const bool linked = j > 0 && (v.a.flags[v.row(j)] & FINITE);
                delta = simt::fma(linked ? 1.0F : 0.0F, delta, v.r(j)[k]);
                v.r(j)[k] = delta;
            }
        }
    }

    // Whether the mean square of a step's correction is small, one lane adding up in order.
    SIMT static bool is_small(simt::lane &me, const view &v, int64_t j) {
        const double limit = unit_of(v.a, v.lo + j) * v.a.atol;
        double square = 0;
        for (int64_t k = 0; me.in_warp() == 0 && k < v.a.width; k++) square += (double)v.r(j)[k] * (double)v.r(j)[k];
        return me.shuffle(square, 0) <= (double)v.a.width * limit * limit;
    }

    // Steps before `good` stay as their residual was measured, unless corrections decide.
    SIMT static void update(simt::lane &me, const view &v, int64_t good, int64_t &open) {
        for (int64_t j = me.warp(); j < v.hi - v.lo; j += warps) {
            float *z = v.z(v.lo + j);
            const float *d = v.r(j);
            bool lost = false;
            for (int64_t k = me.in_warp(); k < v.a.width; k += simt::warp_size)
                lost = lost || !cells::finite(z[k] + d[k]);
            lost = me.any(lost);
            const bool small = v.a.mean && is_small(me, v, j) && !lost && (v.a.flags[v.row(j)] & FINITE);
            if (!small && j < open) open = j;
            const float *from = j == 0 ? v.f(0) : v.z(v.lo - 1);
            for (int64_t k = me.in_warp(); (v.a.mean || j >= good) && k < v.a.width; k += simt::warp_size)
                z[k] = j == 0 || lost ? from[k] : z[k] + d[k];
        }
    }

    SIMT static void run(simt::lane &me, const arguments &a) {
        const view v = view_of(me, a);
        if (a.in_order) {
            step_in_order(me, v);
            return;
        }
        dpcri_device_progress p = a.window.places[v.sequence];
        const int64_t n = v.hi - v.lo;
        const bool exact = a.atol == 0 && a.rtol == 0;
        int64_t good = n, small = n;
        double worst = 0, unread = 0;
        residuals(me, v, good, worst);
        gather(me, good, worst);
        p.residual = worst;
        p.work += n;
        if (a.mean || good < n || v.hi < a.window.length) p.sweeps++;
        if (!(a.flags[v.row(0)] & FINITE)) {  // what goes into the front is right: the chain itself leaves them
            p.ended = DPCRI_DEVICE_NOT_FINITE;
            go_on(me, v, p);
            return;
        }
        sum_along(me, v);
        me.barrier();
        update(me, v, good, small);
        gather(me, small, unread);
        if (a.mean) good = small < n && a.atol > 0 && (a.flags[v.row(small)] & FINITE) ? small + 1 : small;
        if (p.exact == p.front && (a.mean || good == 0)) p.exact++;  // f of a state with the loop's bits
        p.front += good > 0 ? good : 1;
        if (exact) p.exact = p.front;
        go_on(me, v, p);
    }
};

}  // namespace sweeps

#endif
