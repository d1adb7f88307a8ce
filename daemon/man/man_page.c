/*
 * Writes a man page from its template, when kvcobrad is built: what the tables of settings and metrics
 * contain is not written a second time by hand.
 *
 *     man_page TEMPLATE >PAGE
 *
 * Lines of the template are copied, but for those that name a list: "@options@", "@settings GROUP@",
 * "@metrics@". Never installed.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/config/command_line.h"
#include "daemon/config/settings.h"

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

static void man_page_setting(const struct setting *s)
{
    char text[SETTINGS_VALUE_BYTES], max[SETTINGS_VALUE_BYTES];

    printf(".It Cm %s Ar %s\n%s.\n", s->name, s->argument, s->help);
    if (s->details)
        printf("%s\n", s->details);
    if (settings_has_range(s))
        printf("From %s to %s.\n", settings_number(s, s->min, text), settings_number(s, s->max, max));
    printf("Default: %s%s.\n", s->default_from ? "the value of " : "", settings_default(s, text));
    if (s->reloads)
        printf("(reload)\n");
}

static int man_page_settings(const char *group)
{
    static const char *const groups[SETTINGS_N_GROUPS] = {
        [SETTINGS_SOCKETS] = "sockets", [SETTINGS_MEMORY] = "memory", [SETTINGS_GPUS] = "gpus",
        [SETTINGS_TIME] = "time",       [SETTINGS_COUNTS] = "counts", [SETTINGS_RUNNING] = "running",
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
