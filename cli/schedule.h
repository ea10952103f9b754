// SPDX-License-Identifier: MIT
// The verb schedule: what its actions share.
#ifndef CLI_SCHEDULE_H
#define CLI_SCHEDULE_H

#include "cli.h"

typedef struct cli_schedule {
    cli_common common;
    dpcr_schedule_options options;
    dpcr_schedule_costs costs;  // the arrays lie in `profile`
    dpcr_partition_options partition;
    const char *action, *from, *profile_name, *svg, *png, *trace;
    dpcr_notation notation;
    double bandwidth;  // given, or 0
    bool kind_given, times_given;
    unsigned given;               // a bit an option
    int64_t rank_low, rank_high;  // of compare
    dpcr_context *context;
    dpcr_profile profile;  // as read
    bool in_seconds;       // as its file says
    dpcr_profile stages;   // its layers grouped to stages
    dpcr_schedule schedule;
} cli_schedule;

// Reads --profile (a file, or the name of a built-in model) into s->profile. Returns the exit code.
int cli_schedule_profile(cli_schedule *s);
// Can the pictures' files be written, as far as can be told before? False: it said what cannot.
bool cli_schedule_drawable(const cli_schedule *s);
// Gantt chart as SVG, PNG (by gnuplot) and Chrome's trace, into the files asked for. Returns the exit code.
int cli_schedule_draw(const cli_schedule *s, const dpcr_simulation *x);
// Chrome's trace alone; a unit of start and end [actions] is `unit` microseconds.
int cli_schedule_trace(const dpcr_schedule *schedule, const double *start, const double *end, double unit,
                       const char *path);
int cli_schedule_compare(cli_schedule *s, cli_result *r);
int cli_schedule_partition(cli_schedule *s, cli_result *r);
int cli_schedule_measure(int argc, char **argv);  // schedule profile; argv[0] is "profile"

#endif
