// SPDX-License-Identifier: MIT
// Sweeps of a window on the CPU: the kernel after every evaluation of a chain that is a formula, against the library's
// solve of the same chain, to the bit, with its sweeps, locks and reasons.
#include <cmath>

#include "cuda_testing.h"
#include "kern/cuda/launch.h"

extern "C" {
#include "deeppcr/deeppcr.h"
}

namespace {

dpcr_context *context;

// Neighbours mix; sequence b is drawn to a place of its own, and beyond `wall` a step has no finite result.
struct chain {
    int64_t length, batch, width;
    double wall;  // of what goes in
    const double *slopes;
    int64_t end;  // the step that is not finite whatever goes in, or -1
    float size;   // of what it starts from
    float f(int64_t l, int64_t b, const float *z, int64_t i) const {
        if (l == end && b == 0) return INFINITY;
        const double next = (double)z[(i + 1) % width];
        if (std::fabs(next) > wall) return l % 2 ? INFINITY : NAN;
        return (float)(0.8 * (double)z[i] + 0.7 * std::sin(next + 0.3 * (double)l) + 0.1 * (double)b);
    }
};

int advance(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states, const dpcr_array *last,
            const dpcr_array *) {
    const chain &c = *static_cast<const chain *>(user);
    std::vector<float> z((size_t)c.width), next((size_t)c.width);
    for (int64_t lane = 0; lane < span->lanes; lane++)
        for (int64_t b = 0; b < span->rows; b++) {
            const float *from = static_cast<const float *>(in->data) + lane * in->strides[0] + b * in->strides[1];
            z.assign(from, from + c.width);
            for (int64_t k = 0; k < span->steps; k++) {
                for (int64_t i = 0; i < c.width; i++)
                    next[(size_t)i] = c.f(span->first + lane * span->stride + k, span->row + b, z.data(), i);
                z = next;
                if (!states) continue;
                std::memcpy(static_cast<float *>(states->data) + lane * states->strides[0] + k * states->strides[1] +
                                b * states->strides[2],
                            z.data(), z.size() * sizeof(float));
            }
            if (last)
                std::memcpy(static_cast<float *>(last->data) + lane * last->strides[0] + b * last->strides[1], z.data(),
                            z.size() * sizeof(float));
        }
    return 0;
}

struct told {
    std::vector<int> reason, sweeps;
    std::vector<int64_t> locked;
    int64_t evaluations;
    double residual;
};

std::vector<float> numbers(int64_t count) {
    std::vector<float> v((size_t)count);
    for (float &x : v) x = (float)((double)(random_bits() >> 11) * 0x1p-52 - 1.0);
    return v;
}

void on_the_host(chain &c, dpcr_solve_options options, const std::vector<float> &start, std::vector<float> &path,
                 told &t) {
    const int64_t shape[3] = {c.length, c.batch, c.width};
    dpcr_steps steps = {};
    steps.size = sizeof steps, steps.user = &c, steps.length = c.length, steps.batch = c.batch, steps.width = c.width;
    steps.dtype = DPCR_F32, steps.advance = advance, steps.slopes = c.slopes;
    options.scheme = options.backward = DPCR_SCHEME_SEQUENTIAL;
    dpcr_solve_plan *plan = nullptr;
    dpcr_error error = {};
    if (dpcr_solve_plan_create(context, &steps, &options, &plan, &error) != DPCR_OK) fail_msg("%s", error.text);
    void *workspace = std::aligned_alloc(64, (dpcr_solve_plan_workspace(plan) + 64) / 64 * 64);
    t.reason.assign((size_t)c.batch, 0), t.sweeps.assign((size_t)c.batch, 0), t.locked.assign((size_t)c.batch, 0);
    dpcr_solve_report report = {};
    report.size = sizeof report, report.batch_capacity = c.batch, report.sequence_reason = t.reason.data();
    report.sequence_sweeps = t.sweeps.data(), report.sequence_locked = t.locked.data();
    dpcr_array z0 = dpcr_array_make(const_cast<float *>(start.data()), DPCR_F32, 2, shape + 1);
    dpcr_array z = dpcr_array_make(path.data(), DPCR_F32, 3, shape);
    if (dpcr_solve_execute(plan, &z0, &z, nullptr, workspace, dpcr_solve_plan_workspace(plan), &report, &error) !=
        DPCR_OK)
        fail_msg("%s", error.text);
    t.evaluations = report.evaluations, t.residual = report.residual;
    std::free(workspace);
    dpcr_solve_plan_destroy(plan);
}

// The same by the kernel, the rest as a sampler's driver has it (sample/sampler_sweeps.c).
struct there {
    const chain &c;
    std::vector<float> path, f, r;  // [L + 1][B][w], [W][B][w]
    std::vector<uint32_t> flags;
    std::vector<dpcri_device_progress> places;
    std::vector<int32_t> who;
    std::vector<double> change, sums;
    std::vector<dpcri_device_past> past;
    std::vector<float> pasts[2], olds[2];
    dpcri_device_sweep a = {};

    there(const chain &of, const dpcr_solve_options &o, const std::vector<float> &start,
          const std::vector<float> &guess)
        : c(of), path(start) {
        const int64_t most = o.window ? o.window : c.length;
        path.insert(path.end(), guess.begin(), guess.end());
        f.assign((size_t)(most * c.batch * c.width), NAN);
        r = f;
        flags.assign((size_t)(most * c.batch), 77);
        places.assign((size_t)c.batch, {});
        a.window.most = most, a.window.length = c.length, a.window.batch = c.batch;
        a.window.places = places.data(), a.width = c.width, a.atol = o.atol, a.rtol = o.rtol, a.scale = o.step_scale;
        a.mean = o.lock == DPCR_LOCK_MEAN_SQUARE, a.guess = o.guess == DPCR_GUESS_STATE;
        a.max_sweeps = o.max_sweeps, a.no_fallback = o.no_fallback;
        a.path = path.data(), a.f = f.data(), a.r = r.data(), a.flags = flags.data();
        if (o.method == DPCR_METHOD_PICARD) return;
        a.mixed = o.mixed, a.order = o.order, a.r = nullptr, a.flags = nullptr;
        change.assign(f.size(), NAN), sums.assign((size_t)(most * c.batch * 12), NAN), past.assign((size_t)c.batch, {});
        for (int i = 0; i < 2; i++) {
            pasts[i].assign(f.size() * (size_t)(o.mixed - 1) + 1, NAN);
            olds[i].assign(f.size() + 1, NAN);
        }
        a.change = change.data(), a.sums = sums.data(), a.past = past.data(), a.past_z = pasts[0].data();
        a.past_r = pasts[1].data(), a.old_z = olds[0].data(), a.old_r = olds[1].data(), a.slopes = c.slopes;
    }
    // Of those who have ended so; false: nobody.
    bool gather(bool wanted(const there &, const dpcri_device_progress &)) {
        who.clear();
        for (int64_t b = 0; b < c.batch; b++)
            if (wanted(*this, places[(size_t)b])) who.push_back((int32_t)b);
        a.window.who = who.data(), a.window.count = (int64_t)who.size();
        return !who.empty();
    }
    int64_t evaluate() {
        int64_t evaluated = 0;
        for (int64_t row = 0; row < a.window.most * a.window.count; row++) {
            const int64_t b = who[(size_t)(row % a.window.count)], j = row / a.window.count;
            const int64_t l = places[(size_t)b].front + j;
            if (l >= c.length) continue;
            for (int64_t i = 0; i < c.width; i++)
                f[(size_t)(row * c.width + i)] = c.f(l, b, path.data() + (l * c.batch + b) * c.width, i);
            evaluated++;
        }
        return evaluated;
    }
};

void chain_as_the_host(chain c, dpcr_solve_options o, bool bad_guess, uint64_t seed) {
    const int64_t states = c.batch * c.width;
    std::vector<float> start = numbers(states), path = numbers(c.length * states);
    for (float &x : start) x *= c.size;
    for (float &x : path) x *= c.size;
    for (int64_t n = 0; o.guess == DPCR_GUESS_STATE && n < c.length * states; n++)
        path[(size_t)n] = start[(size_t)(n % states)];
    if (bad_guess) path[(size_t)(c.length / 2 * states)] = INFINITY;
    o.size = sizeof o;
    if (!o.max_sweeps) o.max_sweeps = 100;
    dpcr_solve_options given = o;
    if (o.atol == 0) given.atol = given.rtol = -1;
    there t(c, o, start, path);
    told want;
    on_the_host(c, given, start, path, want);
    int64_t evaluations = 0;
    while (t.gather([](const there &, const dpcri_device_progress &p) { return p.ended == DPCRI_DEVICE_AT_WORK; })) {
        evaluations += t.evaluate();
        order(seed, 1 + (int)(seed % 3));
        seed++;
        assert_int_equal(dpcri_cuda_sweep_run(t.a, nullptr), DPCRI_CUDA_OK);
    }
    t.a.in_order = 1, t.a.window.most = 1;
    t.gather([](const there &x, const dpcri_device_progress &p) {
        return p.ended == DPCRI_DEVICE_NOT_FINITE || (p.ended == DPCRI_DEVICE_SPENT && !x.a.no_fallback);
    });
    for (int64_t n; (n = t.evaluate()) > 0; evaluations += n)
        assert_int_equal(dpcri_cuda_sweep_run(t.a, nullptr), DPCRI_CUDA_OK);
    for (int64_t b = 0; b < c.batch; b++) {
        const dpcri_device_progress &p = t.places[(size_t)b];
        const int reason = p.ended == DPCRI_DEVICE_NOT_FINITE ? DPCR_REASON_NONFINITE
                           : p.ended == DPCRI_DEVICE_SPENT
                               ? (o.no_fallback ? DPCR_REASON_NOT_CONVERGED : DPCR_REASON_FALLBACK)
                           : o.atol == 0  ? DPCR_REASON_EXACT
                           : o.step_scale ? DPCR_REASON_SCALED
                                          : DPCR_REASON_RESIDUAL_ONLY;
        assert_int_equal(reason, want.reason[(size_t)b]);
        assert_int_equal(p.sweeps, want.sweeps[(size_t)b]);
        assert_int_equal(p.locked, want.locked[(size_t)b]);
        if (c.batch == 1 && want.residual != p.residual)
            fail_msg("residual %.9g, wanted %.9g", p.residual, want.residual);
    }
    if (c.batch == 1) assert_int_equal(evaluations, want.evaluations);
    for (int64_t n = 0; n < c.length * states; n++) {
        const float got = t.path[(size_t)(states + n)], wanted = path[(size_t)n];
        if (std::memcmp(&got, &wanted, sizeof got) != 0 && got != wanted && !(std::isnan(got) && std::isnan(wanted)))
            fail_msg("state %d of %d x %d x %d: %.9g, wanted %.9g", (int)n, (int)c.length, (int)c.batch, (int)c.width,
                     (double)got, (double)wanted);
    }
}

void sweeps_are_the_hosts(dpcr_method method) {
    std::vector<double> scale(64);
    for (size_t l = 0; l < scale.size(); l++) scale[l] = 0.5 + 0.25 * (double)(l % 5);
    std::vector<double> slopes(64);
    for (size_t l = 0; l < slopes.size(); l++) slopes[l] = 0.7 + 0.1 * (double)(l % 4);
    uint64_t seed = 1;
    for (const int64_t length : {1, 2, 9, 40})
        for (const int64_t width : {1, 5, 33})
            for (int kind = 0; kind < 16; kind++, seed++) {
                chain c = {length, 1 + (int64_t)(seed % 3), width, 1e30, nullptr, -1, kind < 12 ? 1.0F : 100.0F};
                dpcr_solve_options o = {};
                o.method = method;
                o.guess = kind % 2 ? DPCR_GUESS_STATE : DPCR_GUESS_GIVEN;
                o.window = kind % 3 == 1 ? 1 + (int64_t)(seed % 7) : 0;
                if (o.window > length) o.window = length;
                o.atol = o.rtol = kind % 4 == 0 ? 0 : kind % 4 == 1 ? 1e-5 : 1e-2;
                if (kind % 5 == 3) o.step_scale = scale.data();
                if (kind >= 12) o.atol = o.rtol = 1e-6;  // which rounding takes
                if ((kind % 4 == 2 || kind >= 12) && method == DPCR_METHOD_PICARD) o.lock = DPCR_LOCK_MEAN_SQUARE;
                if (kind % 6 == 4) o.max_sweeps = 1 + (int)(seed % 2), o.no_fallback = kind > 6;
                if (kind == 1) o.max_sweeps = 1, o.no_fallback = 1;  // left open behind a window
                if (kind % 6 == 5) c.wall = 1.3;
                if (kind % 2) c.slopes = slopes.data();
                o.mixed = 1 + (int)(seed % 4), o.order = kind % 5 == 1 ? 1 + (int64_t)(seed % 4) : length;
                if (o.order > length) o.order = length;
                if (kind == 7) c.end = length / 2;
                chain_as_the_host(c, o, kind == 6 || kind == 8, seed);
            }
}

void picard_is_the_hosts(void **) { sweeps_are_the_hosts(DPCR_METHOD_PICARD); }
void parataa_is_the_hosts(void **) { sweeps_are_the_hosts(DPCR_METHOD_PARATAA); }

void what_cannot_be_is_refused(void **) {
    float x[4] = {0};
    const int32_t who[1] = {0};
    const dpcri_device_progress places[1] = {};
    uint32_t flags[2];
    dpcri_device_sweep s = {};
    assert_int_equal(dpcri_cuda_sweep_run(s, nullptr), DPCRI_CUDA_ARGUMENT);
    s.window.most = s.window.length = s.window.batch = s.width = 1;
    assert_int_equal(dpcri_cuda_sweep_run(s, nullptr), DPCRI_CUDA_OK);  // nobody
    s.window.count = 1, s.path = x, s.f = x, s.r = x, s.flags = flags;
    assert_int_equal(dpcri_cuda_sweep_run(s, nullptr), DPCRI_CUDA_ARGUMENT);
    s.window.who = who, s.window.places = places, s.r = nullptr;
    assert_int_equal(dpcri_cuda_sweep_run(s, nullptr), DPCRI_CUDA_ARGUMENT);
    dpcri_device_move m = {};
    assert_int_equal(dpcri_cuda_move_run(m, nullptr), DPCRI_CUDA_OK);
    m.steps = m.rows = m.width = 1;
    assert_int_equal(dpcri_cuda_move_run(m, nullptr), DPCRI_CUDA_ARGUMENT);
}

}  // namespace

int main() {
    dpcr_context_options options = {};
    options.size = sizeof options;
    options.threads = 1;
    if (dpcr_context_create(&options, &context, nullptr) != DPCR_OK) return 1;
    const CMUnitTest tests[] = {
        cmocka_unit_test(picard_is_the_hosts),
        cmocka_unit_test(parataa_is_the_hosts),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    const int failed = cmocka_run_group_tests(tests, nullptr, nullptr);
    dpcr_context_destroy(context);
    return failed;
}
