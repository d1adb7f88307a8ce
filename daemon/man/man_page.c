/*
 * Writes a man page from its template when kvcobrad is built, so that settings and metrics are described in
 * one place: their tables.
 *
 *     man_page TEMPLATE >PAGE
 *
 * Copies the lines of the template. A line that names a list is replaced by the list:
 *
 *     @options@         options of kvcobrad
 *     @settings GROUP@  settings of one group
 *     @metrics LABEL@   metrics by their first label: device, tenant, table, or other
 *
 * Never installed.
 */
#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/config/command_line.h"
#include "daemon/config/settings.h"
#include "daemon/operator/metrics_table.h"

/* ---- kvcobrad(8) ---- */

static void man_page_option(const struct argp_option *o)
{
    const struct setting *s = command_line_setting(o);
    char value[SETTINGS_VALUE_BYTES];

    printf(".It ");
    if (o->key < 0x80)
        printf("Fl %c , ", o->key);
    printf("Fl Fl %s", o->name);
    if (o->arg)
        printf(" Ar %s", o->arg);
    printf("\n%s.\n", o->doc);
    if (s)
        printf("Default: %s%s.\n", s->default_from ? "the value of " : "", settings_default(s, value));
}

static void man_page_options(void)
{
    printf(".Bl -tag -width Ds\n");
    for (const struct argp_option *o = command_line_options(); o->doc; o++)
        if (o->name)
            man_page_option(o);
    printf(".El\n");
}

/* ---- kvcobrad.conf(5) ---- */

/* One sentence per line: mdoc then sets the space between sentences. */
static void man_page_sentences(const char *text)
{
    for (const char *end; (end = strstr(text, ". ")); text = end + 2)
        printf("%.*s\n", (int) (end + 1 - text), text);
    printf("%s\n", text);
}

static void man_page_setting(const struct setting *s)
{
    char text[SETTINGS_VALUE_BYTES], max[SETTINGS_VALUE_BYTES];

    printf(".It Cm %s Ar %s\n%s.\n", s->name, s->argument, s->help);
    if (s->details)
        man_page_sentences(s->details);
    if (settings_has_range(s))
        printf("From %s to %s.\n", settings_number(s, s->min, text), settings_number(s, s->max, max));
    printf("Default: %s%s.\n", s->default_from ? "the value of " : "", settings_default(s, text));
    if (s->reloads)
        printf("(reload)\n");
}

static int man_page_settings(const char *group)
{
    static const char *const groups[SETTINGS_N_GROUPS] = {
        [SETTINGS_SOCKETS] = "sockets", [SETTINGS_MEMORY] = "memory",   [SETTINGS_GPUS] = "gpus",
        [SETTINGS_TIER] = "tier",       [SETTINGS_CLUSTER] = "cluster", [SETTINGS_TIME] = "time",
        [SETTINGS_COUNTS] = "counts",   [SETTINGS_RUNNING] = "running",
    };
    unsigned g = 0;

    while (g < SETTINGS_N_GROUPS && strcmp(groups[g], group) != 0)
        g++;
    if (g == SETTINGS_N_GROUPS)
        return -ENOENT;

    printf(".Bl -tag -width Ds\n");
    for (size_t i = 0; i < settings_n; i++)
        if (settings[i].group == g)
            man_page_setting(&settings[i]);
    printf(".El\n");
    return 0;
}

/* ---- kvcobrad-metrics(7) ---- */

static bool man_page_unit_is_obvious(const char *unit)
{
    return strcmp(unit, "one") == 0 || strcmp(unit, "boolean") == 0 || strcmp(unit, "ratio") == 0;
}

static void man_page_metric(const struct metrics_row *m)
{
    const char *unit = strcmp(m->unit, "milliseconds") == 0 ? "seconds" : m->unit;

    printf(".It Ic %s\n%s\n%c%s", m->name, m->help, toupper((unsigned char) m->type[0]), m->type + 1);
    if (!man_page_unit_is_obvious(unit))
        printf(", in %s", unit);
    if (m->labels[0] != '\0')
        printf("; labels: %s", m->labels);
    printf(".\n");
}

/* @label: the first label of the metrics that are listed; "other": all but device, tenant and table. */
static bool man_page_has_label(const struct metrics_row *m, const char *label)
{
    static const char *const lists[] = {"device", "tenant", "table"};
    size_t n = strcspn(m->labels, ",");

    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        if (strlen(lists[i]) == n && strncmp(m->labels, lists[i], n) == 0)
            return strcmp(lists[i], label) == 0;
    return strcmp(label, "other") == 0;
}

static int man_page_metrics(const char *label)
{
    unsigned n = 0;

    printf(".Bl -tag -width Ds\n");
    for (unsigned i = 0; i < METRICS_N; i++) {
        if (metrics_table[i].name[0] == '\0' || !man_page_has_label(&metrics_table[i], label))
            continue;
        man_page_metric(&metrics_table[i]);
        n++;
    }
    printf(".El\n");
    return n > 0 ? 0 : -ENOENT;
}

/* ---- templates ---- */

static int man_page_line(const char *line)
{
    char group[32];

    if (line[0] != '@') {
        fputs(line, stdout);
        return 0;
    }

    if (strcmp(line, "@options@\n") == 0) {
        man_page_options();
        return 0;
    }

    if (sscanf(line, "@settings %31[a-z]@", group) == 1)
        return man_page_settings(group);
    if (sscanf(line, "@metrics %31[a-z]@", group) == 1)
        return man_page_metrics(group);
    return -ENOENT;
}

int main(int argc, char **argv)
{
    _cleanup_(fclosep) FILE *f = argc == 2 ? fopen(argv[1], "re") : NULL;
    _cleanup_(freep) char *line = NULL;
    size_t room = 0;

    if (!f) {
        fprintf(stderr, "man_page: cannot read a template: %s\n",
                argc == 2 ? strerror(errno) : "one argument is needed");
        return EXIT_FAILURE;
    }

    while (getline(&line, &room, f) > 0) {
        if (man_page_line(line) < 0) {
            fprintf(stderr, "man_page: %s: there is no list %s", argv[1], line);
            return EXIT_FAILURE;
        }
    }

    return fflush(stdout) == 0 && !ferror(f) ? EXIT_SUCCESS : EXIT_FAILURE;
}
