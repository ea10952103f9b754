// SPDX-License-Identifier: MIT
// A sampler's sweeps on a device: what follows the evaluation of a window's steps.
//
//   picard   r_l = f_l - z_l;  delta_l = delta_{l-1} + r_l along the window;  z_l += delta_l, the front's z = f;  the
//            front goes past the leading steps that are within the tolerance; what comes into the window is guessed
//
//   parataa  the same residuals substituted into each other by slopes, and mixed with the last sweeps' by triangular
//            weights (solve/parataa.c)
//
// A block a sequence, in one launch: a warp a step for residuals and updates, a thread a number for the sums along the
// window. Rules, operations and the order of sums are solve/sweeps.c's by the loop, so the bits are those of a host
// that takes the scheme sequential. The network's work is some thousand times this: what it costs is reading the window
// four times from the second cache, by one multiprocessor a sequence. Parataa's inner products are summed by one lane
// each in the host's order, W w dependent additions a sweep, which wide states will feel.
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
    if (p.ended == DPCRI_DEVICE_AT_WORK && p.front >= L) p.ended = DPCRI_DEVICE_LOCKED;
    if (p.ended == DPCRI_DEVICE_AT_WORK && (double)(p.work + next) > (double)a.max_sweeps * (double)L + 0.5)
        p.ended = DPCRI_DEVICE_SPENT;
    // Steps that come into the window are the state before them, and, left open, those that never will.
    const int64_t from = p.filled > v.hi ? p.filled : v.hi, to = p.front + next;
    const int64_t end = p.ended == DPCRI_DEVICE_SPENT && a.no_fallback ? L : to;
    p.filled = to > from ? to : from;
    for (int64_t n = me.thread(); a.guess && n < (end - from) * a.width; n += threads)
        v.z(from + n / a.width)[n % a.width] = v.z(from - 1)[n % a.width];
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
    enum : uint32_t { WITHIN = 1, FINITE = 2 };

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
        for (int64_t k = 0; me.in_warp() == 0 && k < v.a.width; k++) {
            const double size = cells::magnitude(v.r(j)[k]);
            const double part = limit > 0 ? size / limit : size == 0 ? 0 : HUGE_VAL;
            square += part * part;
        }
        return me.shuffle(square, 0) <= (double)v.a.width;
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
            const float *from = j == 0 || (v.a.flags[v.row(j)] & FINITE) ? v.f(j) : v.z(v.lo - 1);
            for (int64_t k = me.in_warp(); (v.a.mean || j >= good) && k < v.a.width; k += simt::warp_size)
                z[k] = j == 0 || lost ? from[k] : z[k] + d[k];
        }
    }

    // Locks the step behind those whose corrections were small too, as its step made it where the sum is rounded by
    // more than is allowed. Returns the first that is not locked.
    SIMT static int64_t lock_beyond(simt::lane &me, const view &v, int64_t small) {
        if (small == v.hi - v.lo || v.a.atol == 0 || !(v.a.flags[v.row(small)] & FINITE)) return small;
        const double limit = unit_of(v.a, v.lo + small) * v.a.atol;
        float *z = v.z(v.lo + small);
        bool drowned = false;
        for (int64_t k = 0; k < v.a.width; k++)
            drowned = drowned || 0x1p-24 * (double)cells::magnitude(z[k]) > limit ||
                      0x1p-24 * (double)cells::magnitude(v.r(small)[k]) > limit;
        me.barrier();
        for (int64_t k = me.thread(); drowned && k < v.a.width; k += threads) z[k] = v.f(small)[k];
        me.barrier();
        return small + 1;
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
        if (a.mean) good = lock_beyond(me, v, small);
        if (p.exact == p.front && (a.mean || good == 0)) p.exact++;  // f of a state with the loop's bits
        p.front += good > 0 ? good : 1;
        if (exact) p.exact = p.front;
        go_on(me, v, p);
    }
};

struct parataa {
    typedef dpcri_device_sweep arguments;
    static constexpr int most = threads;
    static constexpr int SUMS = 12, MOST = 3;  // of each difference with the others, and with R
    struct told {
        bool same, close, finite;
        double distance;
    };

    // What is to be said of a step's residual, by a warp, to all its lanes.
    SIMT static told look(simt::lane &me, const view &v, int64_t j) {
        const float *f = v.f(j), *z = v.z(v.lo + j);
        const double unit = unit_of(v.a, v.lo + j), atol = unit * v.a.atol, rtol = unit * v.a.rtol;
        bool differs = false, far = false, bad = false;
        double largest = 0, scale = 1;
        for (int64_t k = me.in_warp(); k < v.a.width; k += simt::warp_size) {
            const double d = cells::magnitude((double)f[k] - (double)z[k]), value = cells::magnitude((double)z[k]);
            const float gap = cells::magnitude(f[k] - z[k]);
            differs = differs || cells::bits_of(f[k]) != cells::bits_of(z[k]);
            bad = bad || !cells::finite(f[k]);
            far = far || !(cells::finite(gap) && (double)gap <= atol + rtol * value);
            if (!(d <= largest)) largest = d == d ? d : HUGE_VAL;
            if (value > scale) scale = value;
        }
        for (int n = simt::warp_size / 2; n > 0; n /= 2) {
            const double a = me.shuffle_xor(largest, n), b = me.shuffle_xor(scale, n);
            largest = a > largest ? a : largest;
            scale = b > scale ? b : scale;
        }
        differs = me.any(differs);
        far = me.any(far);
        bad = me.any(bad);
        const bool exact = atol == 0 && rtol == 0;
        return {!differs, exact ? !differs : !far, !bad, largest == HUGE_VAL ? HUGE_VAL : largest / scale};
    }

    SIMT static double slope(const view &v, int64_t l) { return v.a.slopes ? v.a.slopes[l] : 1; }
    SIMT static double *change(const view &v, int64_t j) { return v.a.change + v.row(j) * v.a.width; }
    SIMT static double *sums(const view &v, int64_t j) { return v.a.sums + v.row(j) * SUMS; }

    SIMT static double times(double c, double x) { return c == 0 || x == 0 ? 0 : c * x; }
    SIMT static double residual(const view &v, int64_t j, int64_t k) {
        const double r = (double)v.f(j)[k] - (double)v.z(v.lo + j)[k];
        return cells::finite(r) ? r : 0;
    }

    // R of the window, a thread a number, in the host's blocks.
    SIMT static void substitute(simt::lane &me, const view &v) {
        const int64_t n = v.hi - v.lo, order = v.a.order;
        for (int64_t k = me.thread(); k < v.a.width; k += threads)
            for (int64_t begin = 0, end; begin < n; begin = end) {
                end = n - begin > order ? begin + order : n;
                double sum = 0, product = 1;
                for (int64_t j = begin - 1; begin > 0 && j > begin - order; j--) {
                    sum += times(product, residual(v, j, k));
                    product = times(product, slope(v, v.lo + j));
                    if (j + order - 1 < end) change(v, j + order - 1)[k] = sum;
                }
                product = 1;
                for (int64_t j = begin; j < end; j++) {
                    const double c = slope(v, v.lo + j);
                    const bool more = begin > 0 && j - begin < order - 1;
                    product = times(product, c);
                    sum = residual(v, j, k) + (j > begin ? times(c, sum) : 0);
                    change(v, j)[k] = sum + (more ? times(product, change(v, j)[k]) : 0);
                }
            }
    }

    SIMT static int64_t old_at(const view &v, int64_t l) {
        return (v.sequence * v.a.window.most + l % v.a.window.most) * v.a.width;
    }
    SIMT static int64_t past_at(const view &v, int q, int64_t l) {
        return ((v.sequence * (v.a.mixed - 1) + q) * v.a.window.most + l % v.a.window.most) * v.a.width;
    }

    // The differences from the last sweep, where both had the step.
    SIMT static void remember(simt::lane &me, const view &v, int sweeps, dpcri_device_past &past) {
        const int pasts = v.a.mixed - 1;
        if (pasts < 1) return;
        const int slot = (sweeps + pasts - 2) % pasts;
        const int64_t from = v.lo > past.old_lo ? v.lo : past.old_lo, to = v.hi < past.old_hi ? v.hi : past.old_hi;
        for (int64_t n = me.thread(); n < (v.hi - v.lo) * v.a.width; n += threads) {
            const int64_t j = n / v.a.width, k = n % v.a.width, l = v.lo + j, old = old_at(v, l) + k;
            if (l >= from && l < to) {
                v.a.past_r[past_at(v, slot, l) + k] = (float)(change(v, j)[k] - (double)v.a.old_r[old]);
                v.a.past_z[past_at(v, slot, l) + k] = (float)((double)v.z(l)[k] - (double)v.a.old_z[old]);
            }
            v.a.old_r[old] = (float)change(v, j)[k];
            v.a.old_z[old] = v.z(l)[k];
        }
        for (int q = 0; q < MOST; q++)
            if (q == slot) past.lo[q] = from, past.hi[q] = to;
        if (sweeps > 1 && past.count < pasts) past.count++;
        past.old_lo = v.lo;
        past.old_hi = v.hi;
    }

    SIMT static bool holds(const dpcri_device_past &past, int q, int64_t l) {
        return q < past.count && l >= past.lo[q] && l < past.hi[q];
    }

    // Entry (q, k) of B, and of d where k is 3, over all steps so far: a lane each, in order.
    SIMT static void add_up(simt::lane &me, const view &v, const dpcri_device_past &past) {
        const int q = me.thread() / 4, k = me.thread() % 4;
        if (me.thread() >= SUMS) return;
        double sum = 0;
        for (int64_t j = 0; j < v.hi - v.lo; j++) {
            const int64_t l = v.lo + j;
            const bool both = holds(past, q, l) && (k == MOST || holds(past, k, l));
            for (int64_t i = 0; both && i < v.a.width; i++) {
                const double x = (double)v.a.past_r[past_at(v, q, l) + i];
                sum += x * (k == MOST ? change(v, j)[i] : (double)v.a.past_r[past_at(v, k, l) + i]);
            }
            sums(v, j)[me.thread()] = sum;
        }
    }

    // gamma = (B + lambda I)^-1 d in the first places of a step's sums.
    SIMT static void solve_small(int n, double *s) {
        double a[MOST][MOST + 1];
        for (int i = 0; i < n; i++) {
            for (int j = 0; j < n; j++) a[i][j] = s[4 * i + j] + (i == j ? 1e-3 : 0);
            a[i][n] = s[4 * i + MOST];
        }
        for (int i = 0; i < n; i++)
            for (int k = i + 1; k < n; k++) {
                const double factor = a[k][i] / a[i][i];
                for (int j = i; j <= n; j++) a[k][j] -= factor * a[i][j];
            }
        for (int i = n - 1; i >= 0; i--) {
            double gamma = a[i][n];
            for (int j = i + 1; j < n; j++) gamma -= a[i][j] * s[j];
            s[i] = gamma / a[i][i];
        }
    }

    // Steps before `good` stay as their residual was measured.
    SIMT static void update(simt::lane &me, const view &v, const dpcri_device_past &past, int n, int64_t good) {
        const int64_t open = good > 0 ? good : 1, steps = v.hi - v.lo;
        for (int64_t k = me.thread(); good == 0 && k < v.a.width; k += threads) v.z(v.lo)[k] = v.f(0)[k];
        if (n) add_up(me, v, past);
        me.barrier();
        for (int64_t j = open + me.thread(); n && j < steps; j += threads) solve_small(n, sums(v, j));
        me.barrier();
        for (int64_t m = me.thread(); m < (steps - open) * v.a.width; m += threads) {
            const int64_t j = open + m / v.a.width, k = m % v.a.width, l = v.lo + j;
            double next = (double)v.z(l)[k] + change(v, j)[k];
            for (int q = 0; q < n; q++)
                if (holds(past, q, l))
                    next -= sums(v, j)[q] *
                            ((double)v.a.past_z[past_at(v, q, l) + k] + (double)v.a.past_r[past_at(v, q, l) + k]);
            v.z(l)[k] = cells::finite(next) ? (float)next : v.z(v.lo)[k];
        }
        me.barrier();
    }

    SIMT static void run(simt::lane &me, const arguments &a) {
        const view v = view_of(me, a);
        if (a.in_order) {
            step_in_order(me, v);
            return;
        }
        dpcri_device_progress p = a.window.places[v.sequence];
        dpcri_device_past past = a.past[v.sequence];
        const int64_t steps = v.hi - v.lo;
        int64_t good = steps;
        double worst = 0;
        bool lost = false;
        for (int64_t k = 0; k < a.width; k++) lost = lost || !cells::finite(v.f(0)[k]);
        p.work += steps;
        p.sweeps++;
        if (lost) {  // what goes into the front is right: the chain itself leaves the finite numbers
            me.barrier();
            p.residual = 0;  // not looked at
            p.ended = DPCRI_DEVICE_NOT_FINITE;
            go_on(me, v, p);
            return;
        }
        for (int64_t j = me.warp(); j < steps; j += warps) {
            const told t = look(me, v, j);
            if (!(t.finite && (t.same || t.close)) && j < good) good = j;
            if (!t.same && !(t.distance <= worst)) worst = t.distance;
        }
        gather(me, good, worst);
        p.residual = worst;
        if (v.lo + good < a.window.length) {
            substitute(me, v);
            me.barrier();
            remember(me, v, p.sweeps, past);
            me.barrier();
            update(me, v, past, p.sweeps > 1 ? (int)past.count : 0, good);
        } else {
            p.sweeps--;  // a check that found nothing to do
        }
        if (p.exact == p.front && good == 0) p.exact++;  // f of a state with the loop's bits
        p.front += good > 0 ? good : 1;
        if (a.atol == 0 && a.rtol == 0) p.exact = p.front;
        if (me.thread() == 0) a.past[v.sequence] = past;
        go_on(me, v, p);
    }
};

}  // namespace sweeps

#endif
