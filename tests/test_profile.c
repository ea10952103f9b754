// SPDX-License-Identifier: MIT
// Profiles: JSON and graph.txt, damaged ones, built-in models; PipeDream's dynamic program against every partition
// there is; LayerPipe over VGG-16 against the reference's figures.
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>

#include "deeppcr/profile.h"
#include "schedules.h"

static dpcr_profile model(scratch *s, const char *name) {
    dpcr_profile p;
    assert_ok(s, dpcr_profile_model(s->context, name, &p, &s->error));
    return p;
}

static double sum(const double *x, int64_t n) {
    double all = 0;
    for (int64_t i = 0; i < n; i++) all += x[i];
    return all;
}

static void model_shapes(void **state) {
    static const struct {
        const char *name;
        int64_t layers;
        double millions, parameters;  // multiply-adds of a forward pass and parameters, as published
    } models[] = {{"vgg16", 16, 15470, 138.36e6},
                  {"resnet18", 18, 1814, 11.68e6},
                  {"resnet50", 50, 4089, 25.5e6},
                  {"alexnet", 8, 714, 61.1e6},
                  {"equal-5", 5, 5, 1.25}};
    scratch *s = *state;
    for (size_t k = 0; k < sizeof models / sizeof models[0]; k++) {
        dpcr_profile p = model(s, models[k].name);
        assert_int_equal(p.layers, models[k].layers);
        assert_true(fabs(sum(p.forward, p.layers) / models[k].millions - 1) < 0.005);
        assert_true(fabs(sum(p.parameter_bytes, p.layers) / 4 / models[k].parameters - 1) < 0.005);
        assert_true(p.input[0] == 0 && p.input[1] == p.forward[1]);
        dpcr_profile_free(s->context, &p);
    }
    dpcr_profile p;
    assert_refused_at(s, dpcr_profile_model(s->context, "lenet", &p, &s->error), DPCR_ERROR_ARGUMENT, "there are vgg16",
                      __FILE__, __LINE__);
    assert_refused_at(s, dpcr_profile_model(s->context, "equal-0", &p, &s->error), DPCR_ERROR_ARGUMENT,
                      "wanted 1 to 100000", __FILE__, __LINE__);
}

static const char graph[] =
    "node3 -- Conv2d(3, 64, (3, 3)) -- forward_compute_time=2.5, backward_compute_time=6.000, activation_size=100.0, "
    "parameter_size=40.0\n"
    "node1 -- Input0 -- forward_compute_time=600.0, backward_compute_time=0.000, activation_size=50.0, "
    "parameter_size=0.000\n"
    "node2 -- Add -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=[10.0; 20.0], "
    "parameter_size=0.0, stage_id=1\n"
    "\tnode1 -- node3\n\tnode3 -- node2\n";

static void reads_graph_and_json(void **state) {
    static const char json[] =
        "{\"layers\": [{\"name\": \"a\", \"forward\": 1, \"input\": 0, \"weight\": 2.5, \"parameter_bytes\": 8},"
        "{\"forward\": 3, \"input\": 3, \"weight\": 3}]}";
    scratch *s = *state;
    dpcr_profile p;
    assert_ok(s, dpcr_profile_read(s->context, graph, strlen(graph), &p, &s->error));
    assert_int_equal(p.layers, 2);
    assert_string_equal(p.names[0], "Conv2d(3, 64, (3, 3))");
    assert_string_equal(p.names[1], "Add");
    assert_true(p.forward[0] == 2.5 && p.input[0] == 3 && p.weight[0] == 3 && p.parameter_bytes[0] == 40);
    assert_true(p.activation_bytes[1] == 30 && p.forward[1] == 1);
    dpcr_profile_free(s->context, &p);
    assert_ok(s, dpcr_profile_read(s->context, json, strlen(json), &p, &s->error));
    assert_true(p.layers == 2 && p.weight[0] == 2.5 && p.parameter_bytes[0] == 8 && p.activation_bytes[1] == 0);
    assert_string_equal(p.names[0], "a");
    assert_string_equal(p.names[1], "layer 1");
    dpcr_profile_free(s->context, &p);
    static const char *const escapes[] = {
        "node1 -- a\x1b[2Jb\x7f -- forward_compute_time=1, backward_compute_time=1, activation_size=1, "
        "parameter_size=1\n",
        "{\"layers\": [{\"name\": \"a\\u001b[2Jb\\u007f\", \"forward\": 1, \"input\": 1, \"weight\": 1}]}"};
    for (int i = 0; i < 2; i++) {
        assert_ok(s, dpcr_profile_read(s->context, escapes[i], strlen(escapes[i]), &p, &s->error));
        assert_string_equal(p.names[0], "a?[2Jb?");
        dpcr_profile_free(s->context, &p);
    }
}

static void damaged_profiles(void **state) {
    static const char figures[] =
        " -- forward_compute_time=1, backward_compute_time=1, activation_size=1, parameter_size=1\n";
    char twice[512], circle[512], missing[512];
    snprintf(twice, sizeof twice, "node1 -- a%snode1 -- b%s", figures, figures);
    snprintf(circle, sizeof circle, "node1 -- a%snode2 -- b%s\tnode1 -- node2\n\tnode2 -- node1\n", figures, figures);
    snprintf(missing, sizeof missing, "node1 -- a%s\tnode1 -- node2\n", figures);
    const struct {
        const char *text, *wanted;
    } cases[] = {
        {"", "wanted JSON, or PipeDream's graph.txt"},
        {"node1 -- a\n", "line 1: wanted ' -- forward_compute_time="},
        {"node1 -- a -- forward_compute_time=x\n", "line 1: wanted forward_compute_time"},
        {"node1 -- a -- forward_compute_time=-1, backward_compute_time=1\n", "numbers of at least 0"},
        {"nodex -- a\n", "'nodeN -- description"},
        {twice, "node1 comes twice"},
        {circle, "make a circle"},
        {missing, "line 2: wanted nodes that have a line"},
        {"{", "line 1"},
        {"{\"layers\": 3}", "an array \"layers\""},
        {"[]", "an array \"layers\""},
        {"{\"layers\": []}", "0 layers"},
        {"{\"layers\": [5]}", "layer 0 is no object"},
        {"{\"layers\": [{\"forward\": 1, \"input\": 1}]}", "wanted \"weight\""},
        {"{\"layers\": [{\"forward\": -1, \"input\": 1, \"weight\": 1}]}", "wanted \"forward\", a number"},
        {"{\"layers\": [{\"forward\": 1e100, \"input\": 1, \"weight\": 2e100}]}", "layer 0: 2e+100; wanted times"},
        {"node1 -- a -- forward_compute_time=1, backward_compute_time=1, activation_size=2e100, parameter_size=1\n",
         "layer 0: 2e+100; wanted times and bytes of at most 1e+100"}};
    scratch *s = *state;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        dpcr_profile p;
        const dpcr_status status = dpcr_profile_read(s->context, cases[k].text, strlen(cases[k].text), &p, &s->error);
        assert_refused_at(s, status, DPCR_ERROR_FORMAT, cases[k].wanted, cases[k].text, (int)k);
    }
}

// ---- partition ----

// Every way to cut the layers and share out the ranks, sharing nothing with the library.
static double brute(const dpcr_profile *p, int64_t from, int64_t ranks, const dpcr_partition_options *o) {
    double best = INFINITY, time = 0, weights = 0;
    if (from == p->layers) return ranks == 0 || o->fewer ? 0 : INFINITY;
    for (int64_t to = from; to < p->layers; to++) {
        time += p->forward[to] + p->input[to] + p->weight[to];
        weights += p->parameter_bytes[to];
        for (int64_t n = 1; n <= (o->straight ? 1 : ranks) && n <= ranks; n++) {
            const double copies = (double)n, b = o->bandwidth;
            double period = (time + (b > 0 ? 4 * (copies - 1) * weights / (b * copies) : 0)) / copies;
            if (o->transfers && b > 0 && from > 0)
                period = fmax(period, 2 * p->activation_bytes[from - 1] / (b * copies));
            if (o->transfers && b > 0 && from > 0 && to + 1 < p->layers)
                period = fmax(period, 2 * p->activation_bytes[to] / (b * copies));
            best = fmin(best, fmax(period, brute(p, to + 1, ranks - n, o)));
        }
    }
    return best;
}

static double period_of(const dpcr_profile *p, const dpcr_partition *q, double bandwidth) {
    double most = 0;
    for (int64_t s = 0; s < q->stages; s++) {
        double time = 0, weights = 0;
        const double copies = (double)q->replicas[s];
        for (int64_t l = q->first[s]; l < q->first[s + 1]; l++) {
            time += p->forward[l] + p->input[l] + p->weight[l];
            weights += p->parameter_bytes[l];
        }
        most = fmax(most, (time + (bandwidth > 0 ? 4 * (copies - 1) * weights / (bandwidth * copies) : 0)) / copies);
    }
    return most;
}

static void partition_is_the_best(void **state) {
    scratch *s = *state;
    uint64_t seed = 9;
    for (int k = 0; k < 200; k++) {
        char name[16];
        const int64_t layers = 2 + (int64_t)draw(&seed, 5);
        snprintf(name, sizeof name, "equal-%d", (int)layers);
        dpcr_profile p = model(s, name);
        for (int64_t l = 0; l < layers; l++) {
            p.forward[l] = 1 + (double)draw(&seed, 9);
            p.weight[l] = 1 + (double)draw(&seed, 9);
            p.activation_bytes[l] = (double)draw(&seed, 30);
            p.parameter_bytes[l] = (double)draw(&seed, 30);
        }
        const dpcr_partition_options o = {.size = sizeof o,
                                          .ranks = 1 + (int64_t)draw(&seed, 4),
                                          .bandwidth = (double)draw(&seed, 3),
                                          .straight = (int)draw(&seed, 2),
                                          .transfers = (int)draw(&seed, 2),
                                          .fewer = (int)draw(&seed, 2)};
        dpcr_partition q;
        const dpcr_status status = dpcr_partition_pipedream(s->context, &p, &o, &q, &s->error);
        if (status == DPCR_ERROR_UNSUPPORTED) {
            assert_true(o.straight && !o.fewer && o.ranks > layers);
            dpcr_profile_free(s->context, &p);
            continue;
        }
        assert_ok(s, status);
        const double wanted = brute(&p, 0, o.ranks, &o);
        if (fabs(q.period - wanted) > 1e-9 * wanted) fail_msg("case %d: %g, brute force %g", k, q.period, wanted);
        assert_true(q.first[0] == 0 && q.first[q.stages] == layers);
        assert_true(o.fewer ? q.ranks <= o.ranks : q.ranks == o.ranks);
        assert_true(period_of(&p, &q, o.bandwidth) <= q.period * (1 + 1e-12));
        if (!o.transfers) assert_true(fabs(period_of(&p, &q, o.bandwidth) - q.period) <= 1e-9 * q.period);
        dpcr_partition_free(s->context, &q);
        dpcr_profile_free(s->context, &p);
    }
}

// The reference's own numbers of the model: gain over PipeDream's straight pipeline on VGG-16, first layer without I.
static void layerpipe_over_vgg16(void **state) {
    static const struct {
        int64_t p;
        double whole, half;
    } rows[] = {{2, 1.03, 1.03}, {3, 1.08, 1.08}, {4, 1.20, 1.20}, {5, 1.20, 1.20},  {6, 1.28, 1.30},
                {7, 1.20, 1.24}, {8, 1.38, 1.44}, {9, 1.60, 1.60}, {10, 1.23, 1.23}, {12, 1.33, 1.41}};
    scratch *s = *state;
    dpcr_profile p = model(s, "vgg16");
    const dpcr_schedule_costs costs = dpcr_profile_costs(&p);
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        const dpcr_partition_options o = {.size = sizeof o, .ranks = rows[k].p, .straight = 1};
        dpcr_partition q;
        double gain[2];
        assert_ok(s, dpcr_partition_pipedream(s->context, &p, &o, &q, &s->error));
        for (int half = 0; half < 2; half++) {
            dpcr_schedule_options l = options_of(DPCR_SCHEDULE_LAYERPIPE, rows[k].p, 0, 16);
            l.stages = p.layers;
            l.costs = &costs;
            l.split_input = half;
            dpcr_schedule schedule;
            assert_ok(s, dpcr_schedule_make(s->context, &l, &schedule, &s->error));
            dpcr_simulation x = simulate(s, &schedule, &costs);
            gain[half] = q.period / (x.work / 16);
            dpcr_simulation_free(s->context, &x);
            dpcr_schedule_free(s->context, &schedule);
        }
        // Packing is a heuristic in both; ours may be a little better.
        assert_true(gain[0] > rows[k].whole - 0.006 && gain[0] < rows[k].whole + 0.03);
        assert_true(gain[1] > rows[k].half - 0.006 && gain[1] < rows[k].half + 0.03 && gain[1] >= gain[0]);
        dpcr_partition_free(s->context, &q);
    }
    dpcr_profile_free(s->context, &p);
}

static void groups_add_up(void **state) {
    scratch *s = *state;
    dpcr_profile p = model(s, "alexnet"), q;
    const int64_t first[] = {0, 3, 4, 8}, bad[] = {0, 3, 3, 8};
    assert_ok(s, dpcr_profile_group(s->context, &p, first, 3, &q, &s->error));
    assert_true(q.forward[0] == p.forward[0] + p.forward[1] + p.forward[2] && q.input[1] == p.input[3]);
    assert_true(q.activation_bytes[0] == p.activation_bytes[2] && q.parameter_bytes[1] == p.parameter_bytes[3]);
    dpcr_profile_free(s->context, &q);
    assert_refused_at(s, dpcr_profile_group(s->context, &p, bad, 3, &q, &s->error), DPCR_ERROR_ARGUMENT,
                      "stage 1 has no layers", __FILE__, __LINE__);
    dpcr_profile_free(s->context, &p);
}

// Sums beyond the largest number made stages on no ranks.
static void sums_beyond_all_numbers(void **state) {
    scratch *s = *state;
    for (int field = 0; field < 5; field++)
        for (int straight = 0; straight < 2; straight++) {
            dpcr_profile p = model(s, "equal-4");
            double *const fields[] = {p.forward, p.input, p.weight, p.activation_bytes, p.parameter_bytes};
            const dpcr_partition_options o = {
                .size = sizeof o, .ranks = 2, .straight = straight, .transfers = 1, .bandwidth = 1e-3};
            dpcr_partition q;
            for (int l = 0; l < 4; l++) fields[field][l] = 1e308;
            const dpcr_status status = dpcr_partition_pipedream(s->context, &p, &o, &q, &s->error);
            if (field == 3 && !straight) {  // one stage on both ranks hands nothing on
                assert_ok(s, status);
                assert_true(q.stages == 1 && q.ranks == 2);
                dpcr_partition_free(s->context, &q);
            } else {
                assert_refused_at(s, status, DPCR_ERROR_OVERFLOW, "no finite number", __FILE__, __LINE__);
            }
            dpcr_profile_free(s->context, &p);
        }
}

// A profile that a program made by itself.
static void below_zero(void **state) {
    scratch *s = *state;
    const double wrong[] = {-1, NAN};
    for (int field = 0; field < 5; field++)
        for (int k = 0; k < 2; k++) {
            dpcr_profile p = model(s, "equal-4");
            double *const fields[] = {p.forward, p.input, p.weight, p.activation_bytes, p.parameter_bytes};
            const dpcr_partition_options o = {.size = sizeof o, .ranks = 2};
            dpcr_partition q;
            fields[field][3] = wrong[k];
            assert_refused_at(s, dpcr_partition_pipedream(s->context, &p, &o, &q, &s->error), DPCR_ERROR_ARGUMENT,
                              "layer 3: ", __FILE__, __LINE__);
            assert_true(!q.first && !q.replicas);
            dpcr_profile_free(s->context, &p);
        }
}

static void memory_runs_out(void **state) {
    scratch *s = *state;
    for (int64_t fail = 0;; fail++) {
        dpcr_profile p = {0}, g = {0};
        dpcr_partition q = {0};
        const dpcr_partition_options o = {.size = sizeof o, .ranks = 2};
        s->memory.fail_at = s->memory.calls + fail;
        dpcr_status status = dpcr_profile_read(s->context, graph, strlen(graph), &p, &s->error);
        if (status == DPCR_OK) status = dpcr_partition_pipedream(s->context, &p, &o, &q, &s->error);
        if (status == DPCR_OK) status = dpcr_profile_group(s->context, &p, q.first, q.stages, &g, &s->error);
        s->memory.fail_at = -1;
        dpcr_partition_free(s->context, &q);
        dpcr_profile_free(s->context, &g);
        dpcr_profile_free(s->context, &p);
        if (status == DPCR_OK) break;
        assert_int_equal(status, DPCR_ERROR_MEMORY);
    }
}

static int parser_calls;

// From allocation number parser_calls on all fail.
static void *parser_allocate(size_t bytes) {
    if (parser_calls-- > 0) return malloc(bytes);
    errno = ENOMEM;
    return NULL;
}

// What it had no memory for is not called wrong, and no name lacks a letter.
static void the_parsers_memory_runs_out(void **state) {
    scratch *s = *state;
    static const char text[] =
        "{\"layers\":[{\"name\":\"a layer of a long name\",\"forward\":1,\"input\":1,\"weight\":1}]}";
    dpcr_profile p;
    dpcr_status status = DPCR_ERROR_MEMORY;
    int n = 0;
    for (; status != DPCR_OK; n++) {
        parser_calls = n;
        json_set_alloc_funcs(parser_allocate, free);
        status = dpcr_profile_read(s->context, text, strlen(text), &p, &s->error);
        json_set_alloc_funcs(malloc, free);
        if (status != DPCR_OK) assert_refused(s, status, DPCR_ERROR_MEMORY, "no memory");
    }
    assert_true(n > 10);
    assert_string_equal(p.names[0], "a layer of a long name");
    dpcr_profile_free(s->context, &p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)
        TEST(model_shapes),
        TEST(reads_graph_and_json),
        TEST(damaged_profiles),
        TEST(partition_is_the_best),
        TEST(layerpipe_over_vgg16),
        TEST(groups_add_up),
        TEST(memory_runs_out),
        TEST(the_parsers_memory_runs_out),
        TEST(sums_beyond_all_numbers),
        TEST(below_zero)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
