/* Steps of the demonstration: a heading, a command line that is printed and run; see demo.h. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/terminal.h"
#include "tools/demo/demo.h"

enum { ARGS_MAX = 24 };

const char *const demo_budgets[DEMO_BUDGETS] = {"3", "4"};
const char demo_question[] = "What is this text about? Answer in one sentence.";

void demo_heading(const char *fmt, ...)
{
    _cleanup_(freep) char *text = NULL;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0)
        text = NULL;
    terminal_print(stdout, 3, "\n== %s\n\n", text ? text : "");
    (void) fflush(stdout);
}

struct demo_path demo_path(const struct demo *d, const char *name)
{
    struct demo_path p;

    (void) snprintf(p.text, sizeof(p.text), "%.*s/%.30s", PATH_MAX, d->dir, name);
    return p;
}

int demo_start(const struct demo *d, struct process *p, enum process_output output, const char *const *args,
               struct errmsg *e)
{
    const char *argv[ARGS_MAX + 1] = {"kvcobra"};
    _cleanup_(freep) char *text = NULL;
    size_t n = 1, bytes;
    FILE *line;

    line = open_memstream(&text, &bytes);
    if (!line)
        return fail(e, -ENOMEM, "out of memory");

    for (; args[n - 1] && n < ARGS_MAX; n++) {
        argv[n] = args[n - 1];
        fprintf(line, strchr(argv[n], ' ') ? " '%s'" : " %s", argv[n]);
    }
    if (fclose(line) != 0)
        return fail(e, -ENOMEM, "out of memory");
    if (args[n - 1])
        return fail(e, -E2BIG, "a step of the demonstration has too many arguments");

    terminal_print(stdout, 2, "$ kvcobra%s\n", text);
    (void) fflush(stdout); /* the command line must stand before the output of the child */

    return process_start(p, d->self, argv, output, e);
}

int demo_run(const struct demo *d, struct process *p, enum process_output output, const char *const *args,
             struct errmsg *e)
{
    struct process *const ps[] = {p};
    int r;

    r = demo_start(d, p, output, args, e);
    if (r < 0)
        return r;

    r = process_wait(ps, 1, 0, PROCESS_EXITS, d->signal_fd, e);
    if (r < 0)
        return r;

    return process_succeeded(p, e) ? 0 : -ECANCELED;
}
