// SPDX-License-Identifier: MIT
// What the planner learns from solves and keeps in a file.
#include <unistd.h>

#include "planning.h"
#include "sampled.h"

// ---- learning ----

static dpcr_steps slow_steps(chain *c) {
    dpcr_steps steps = chain_steps(c);
    steps.latency = 1e-3;  // so that parallel predictions win
    return steps;
}

static void solves_are_learned_from(void **state) {
    (void)state;
    dpcr_context *context = context_of_many_threads();
    chain c = chain_of(step_forgets, 20000, 2, DPCR_F32);
    const dpcr_steps steps = slow_steps(&c);
    dpcr_solve_plan *plan = plan_of(context, &steps, DPCR_PLANNING_ESTIMATE);
    assert_int_equal(dpcr_solve_plan_method(plan), DPCR_METHOD_OVERLAP);
    const int64_t first = dpcr_solve_plan_options(plan)->warm_up;
    dpcr_solve_report report = {
        .size = sizeof report, .method = DPCR_METHOD_OVERLAP, .reason = DPCR_REASON_CONVERGED, .sweeps = 2};
    assert_int_equal(dpcr_solve_plan_learn(plan, &report, NULL), DPCR_OK);
    dpcr_solve_plan_destroy(plan);
    plan = plan_of(context, &steps, DPCR_PLANNING_ESTIMATE);  // the warm-up was too short
    assert_int_equal(dpcr_solve_plan_options(plan)->warm_up, 2 * first);
    report.reason = DPCR_REASON_FALLBACK;
    assert_int_equal(dpcr_solve_plan_learn(plan, &report, NULL), DPCR_OK);
    dpcr_solve_plan_destroy(plan);
    plan = plan_of(context, &steps, DPCR_PLANNING_ESTIMATE);  // overlap had to be finished in order
    assert_true(dpcr_solve_plan_method(plan) != DPCR_METHOD_OVERLAP);
    if (dpcr_solve_plan_method(plan) == DPCR_METHOD_NEWTON) {
        report = (dpcr_solve_report){
            .size = sizeof report, .method = DPCR_METHOD_NEWTON, .reason = DPCR_REASON_CONVERGED, .sweeps = 9};
        assert_int_equal(dpcr_solve_plan_learn(plan, &report, NULL), DPCR_OK);
        dpcr_solve_plan_destroy(plan);
        plan = plan_of(context, &steps, DPCR_PLANNING_ESTIMATE);
        dpcr_candidate each = {.size = sizeof each};
        for (int64_t i = 0; dpcr_solve_plan_candidate(plan, i, &each); i++)
            if (each.method == DPCR_METHOD_NEWTON) assert_true(each.sweeps == 9);
    }
    report.method = DPCR_METHOD_PICARD;  // of another plan
    assert_int_equal(dpcr_solve_plan_learn(plan, &report, NULL), DPCR_OK);
    assert_int_equal(dpcr_solve_plan_learn(NULL, &report, NULL), DPCR_ERROR_ARGUMENT);
    dpcr_solve_plan_destroy(plan);
    dpcr_context_destroy(context);
}

// ---- the wisdom file ----

typedef struct wisdom_file {
    char path[64], *text;
    long bytes;
} wisdom_file;

static void read_back(wisdom_file *f) {
    FILE *file = fopen(f->path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    f->bytes = ftell(file);
    rewind(file);
    f->text = malloc((size_t)f->bytes + 1);
    assert_int_equal(fread(f->text, 1, (size_t)f->bytes, file), f->bytes);
    f->text[f->bytes] = 0;
    fclose(file);
}

static wisdom_file written_wisdom(dpcr_context *context) {
    wisdom_file f = {.path = "deeppcr-wisdom-XXXXXX"};
    const int fd = mkstemp(f.path);
    assert_true(fd >= 0);
    close(fd);
    chain c = chain_of(step_forgets, 500, 2, DPCR_F64);
    const dpcr_steps steps = chain_steps(&c);
    dpcr_solve_plan_destroy(plan_of(context, &steps, DPCR_PLANNING_MEASURE));
    dpcr_error error = {0};
    if (dpcr_wisdom_save(context, f.path, &error) != DPCR_OK) fail_msg("%s", error.text);
    read_back(&f);
    return f;
}

static void wisdom_goes_round(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2), *other = solving_context(2);
    wisdom_file f = written_wisdom(context);
    dpcr_error error = {0};
    if (dpcr_wisdom_load(other, f.path, &error) != DPCR_OK) fail_msg("%s", error.text);
    assert_int_equal(dpcr_wisdom_count(other), dpcr_wisdom_count(context));
    assert_true(dpcr_wisdom_count(other) >= 2);  // the chain, and the machine's rates
    dpcr_machine x = {.size = sizeof x}, y = {.size = sizeof y};
    assert_int_equal(dpcr_context_machine(context, &x, NULL), DPCR_OK);
    assert_int_equal(dpcr_context_machine(other, &y, NULL), DPCR_OK);
    assert_true(fabs(x.flops / y.flops - 1) < 1e-8 && fabs(x.bandwidth / y.bandwidth - 1) < 1e-8);
    assert_true(fabs(x.thread_bandwidth / y.thread_bandwidth - 1) < 1e-8);
    chain c = chain_of(step_forgets, 500, 2, DPCR_F64);
    const dpcr_steps steps = chain_steps(&c);
    dpcr_solve_plan_destroy(plan_of(other, &steps, DPCR_PLANNING_WISDOM));
    // Saved again it is the same, byte for byte.
    wisdom_file again = f;
    assert_int_equal(dpcr_wisdom_save(other, f.path, NULL), DPCR_OK);
    read_back(&again);
    assert_int_equal(again.bytes, f.bytes);
    assert_memory_equal(again.text, f.text, (size_t)f.bytes);
    unlink(f.path);
    free(f.text), free(again.text);
    assert_int_equal(dpcr_wisdom_load(other, f.path, &error), DPCR_ERROR_IO);
    assert_int_equal(dpcr_wisdom_save(other, "/nowhere/at/all", &error), DPCR_ERROR_IO);
    assert_int_equal(dpcr_wisdom_load(NULL, f.path, &error), DPCR_ERROR_ARGUMENT);
    dpcr_context_destroy(other);
    dpcr_context_destroy(context);
}

static void refused(dpcr_context *context, const char *text, size_t bytes, const char *word) {
    dpcr_error error = {0};
    assert_int_equal(dpcri_wisdom_parse(context, "a file", text, bytes, &error), DPCR_ERROR_FORMAT);
    if (!strstr(error.text, word)) fail_msg("got '%s', wanted '%s' in it", error.text, word);
    assert_int_equal(dpcr_wisdom_count(context), 0);
}

// A copy with a checksum that fits.
static char *sealed(const char *format, const char *version, const char *machine) {
    static char text[1024];
    const int used = snprintf(text, sizeof text - 32, format, version, machine);
    uint64_t sum = 0xcbf29ce484222325u;
    for (int i = 0; i < used; i++) sum = (sum ^ (unsigned char)text[i]) * 0x100000001b3u;
    snprintf(text + used, 32, "sum %016llx\n", (unsigned long long)sum);
    return text;
}

static void damaged_wisdom_is_refused(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2), *clean = solving_context(2);
    wisdom_file f = written_wisdom(context);
    const size_t bytes = (size_t)f.bytes;
    for (size_t n = 0; n < bytes; n++) refused(clean, f.text, n, "wisdom");
    for (size_t i = 0; i < bytes; i++)
        for (int bit = 0; bit < 8; bit++) {
            if (!sampled((int64_t)i * 8 + bit)) continue;
            f.text[i] ^= (char)(1 << bit);
            refused(clean, f.text, bytes, "wisdom");
            f.text[i] ^= (char)(1 << bit);
        }
    assert_int_equal(dpcri_wisdom_parse(clean, "a file", f.text, bytes, NULL), DPCR_OK);
    dpcr_wisdom_forget(clean);
    char name[256];
    dpcri_machine_name(name, sizeof name);
    static const char format[] = "deeppcr wisdom 1\nversion %s\nmachine %s\nkey = value\n";
    const char *text = sealed(format, dpcr_version(), name);
    assert_int_equal(dpcri_wisdom_parse(clean, "a file", text, strlen(text), NULL), DPCR_OK);
    dpcr_wisdom_forget(clean);
    text = sealed(format, "0.0.1", name);
    refused(clean, text, strlen(text), "another library");
    text = sealed(format, dpcr_version(), "VAX 11/780, portable, 1 processors");
    refused(clean, text, strlen(text), "another machine");
    text = sealed("deeppcr wisdom 2\nversion %s\nmachine %s\n", dpcr_version(), name);
    refused(clean, text, strlen(text), "not 'deeppcr wisdom 1'");
    text = sealed("deeppcr wisdom 1\nversion %s\nmachine %s\nkey value\n", dpcr_version(), name);
    refused(clean, text, strlen(text), "line 4");
    text = sealed("deeppcr wisdom 1\nversion %s\nmachine %s\nkey = va\tlue\n", dpcr_version(), name);
    refused(clean, text, strlen(text), "line 4");
    text = sealed("deeppcr wisdom 1\nversion %s\nmachine %s\nkey = value", dpcr_version(), name);
    refused(clean, text, strlen(text), "line 4");
    refused(clean, "", 0, "no wisdom");
    unlink(f.path);
    free(f.text);
    dpcr_context_destroy(clean);
    dpcr_context_destroy(context);
}

// What a file says does not replace what was found out here, but what another file said.
static void own_wisdom_stays(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    char name[256], value[DPCRI_WISDOM_VALUE];
    dpcri_machine_name(name, sizeof name);
    assert_true(dpcri_wisdom_set(context, "own", "found"));
    static const char *const said[] = {"first", "second"};
    for (int i = 0; i < 2; i++) {
        char format[256];
        snprintf(format, sizeof format, "deeppcr wisdom 1\nversion %%s\nmachine %%s\nother = %s\nown = said\n",
                 said[i]);
        const char *text = sealed(format, dpcr_version(), name);
        assert_int_equal(dpcri_wisdom_parse(context, "a file", text, strlen(text), NULL), DPCR_OK);
        assert_int_equal(dpcr_wisdom_count(context), 2);
        assert_true(dpcri_wisdom_find(context, "own", value));
        assert_string_equal(value, "found");
        assert_true(dpcri_wisdom_find(context, "other", value));
        assert_string_equal(value, said[i]);
    }
    assert_true(dpcri_wisdom_set(context, "own", "found again"));
    assert_true(dpcri_wisdom_find(context, "own", value));
    assert_string_equal(value, "found again");
    dpcr_context_destroy(context);
}

// Rates as they are written; as they were before one thread's bandwidth was among them, and as nobody writes them, they
// are measured again.
static void strange_rates_are_not_believed(void **state) {
    (void)state;
    static const struct {
        const char *alone, *end;
        bool believed;
    } values[] = {{" alone 1e10", "3e10", true},    {"", "3e10", false},
                  {" alone", "3e10", false},        {" alone -1", "3e10", false},
                  {" alone 0", "3e10", false},      {" alone inf", "3e10", false},
                  {" alone 1e10 2", "3e10", false}, {" lonely 1e10", "3e10", false},
                  {" alone 1e10", "3e10 4", false}, {" alone 1e10", "", false},
                  {" alone 1e10", "-3e10", false}};
    dpcr_context *context = solving_context(1);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char value[256];
        dpcr_machine m = {.thread_bandwidth = -1};
        snprintf(value, sizeof value,
                 "flops 1e10 latency 1e-9 region 0 wake 0 bandwidth 2e10%s L1 32768 1e11 L2 524288 5e10 L3 33554432 %s",
                 values[i].alone, values[i].end);
        assert_true(dpcri_wisdom_set(context, "rates threads 1", value));
        assert_int_equal(dpcri_wisdom_rates(context, &m), values[i].believed);
        assert_true(m.thread_bandwidth == (values[i].believed ? 1e10 : -1));
    }
    dpcr_context_destroy(context);
}

// A value that nobody wrote so, under the right key and checksum, is as good as none.
static void strange_values_are_not_believed(void **state) {
    (void)state;
    static const char *const values[] = {
        "nonsense",
        "forward",
        "forward overlap auto chunk -1 warm-up 3 sweeps 1 seconds 1; seen sweeps 0 warm-up 0 failed 0",
        "forward auto auto chunk 0 warm-up 3 sweeps 1 seconds 1; seen sweeps 0 warm-up 0 failed 0",
        "forward overlap auto chunk 0 warm-up 3 sweeps 1 seconds 1; seen sweeps 0 warm-up 0 failed 0 more",
        "backward sequential auto chunk 0 warm-up 0 sweeps 1 seconds 1; seen sweeps 0 warm-up 0 failed 0",
        "seen sweeps -4 warm-up 0 failed 0",
        "seen sweeps 0 warm-up 0 failed 0 told 6 -1 5",
        "backward sequential overlap chunk 0 warm-up 0 sweeps 1 seconds 1; seen sweeps 0 warm-up 0 failed 0",
        "forward newton pcr chunk 0 warm-up 0 sweeps 1 seconds 1; seen sweeps 0 warm-up 0 failed 0 most -1",
        "seen sweeps 0 warm-up 0 failed 0 told 6 3 5 work 2.7 nan 3",
        "seen sweeps 0 warm-up 0 failed 0 told 6 3 5 work -2.7 1 3",
        "seen sweeps 0 warm-up 0 failed 0 told 6 3 5 work 2.7 1",
        "seen sweeps 0 warm-up 4611686018427387904 failed 0",
        "forward overlap auto chunk 4611686018427387904 warm-up 3 sweeps 1 seconds 1; seen sweeps 0 warm-up 0 failed 0",
        "forward overlap auto chunk 0 warm-up 4611686018427387904 sweeps 1 seconds 1; seen sweeps 0 warm-up 0 failed 0",
        "seen sweeps 0 warm-up 0 failed 0 costs 1 1 1 1 1 spent 1 memory 1 9223372036854775807 0 0.5",
        "seen sweeps 0 warm-up 0 failed 0 costs 1 1 1 1 1 spent 1 memory 1 0 9223372036854775807 0.5"};
    dpcr_context *context = solving_context(1);
    dpcri_known known;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        assert_true(dpcri_wisdom_set(context, "k", values[i]));
        assert_false(dpcri_wisdom_recall(context, "k", &known));
        assert_false(known.chosen[0] || known.chosen[1]);
    }
    assert_true(dpcri_wisdom_set(
        context, "k", "forward overlap auto chunk 0 warm-up 3 sweeps 1 seconds 1; seen sweeps 7 warm-up 0 failed 0"));
    assert_true(dpcri_wisdom_recall(context, "k", &known));
    assert_true(known.chosen[0] && !known.chosen[1] && known.candidate[0].warm_up == 3 && known.sweeps == 7);
    known.max_sweeps = 17;
    dpcri_wisdom_remember(context, "k", &known);
    assert_true(dpcri_wisdom_recall(context, "k", &known));
    assert_true(known.max_sweeps == 17 && known.candidate[0].warm_up == 3);
    const dpcri_known told = {.told = {6, 3, 5}, .work = {2.75, 3, 3.125}};
    dpcri_wisdom_remember(context, "k", &told);
    assert_true(dpcri_wisdom_recall(context, "k", &known));
    assert_memory_equal(known.told, told.told, sizeof told.told);
    assert_memory_equal(known.work, told.work, sizeof told.work);
    assert_false(dpcri_wisdom_set(context, "a = b", "c"));
    assert_false(dpcri_wisdom_set(context, "", "c"));
    assert_false(dpcri_wisdom_set(context, "k", "two\nlines"));
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(solves_are_learned_from),        cmocka_unit_test(wisdom_goes_round),
        cmocka_unit_test(damaged_wisdom_is_refused),      cmocka_unit_test(own_wisdom_stays),
        cmocka_unit_test(strange_rates_are_not_believed), cmocka_unit_test(strange_values_are_not_believed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
