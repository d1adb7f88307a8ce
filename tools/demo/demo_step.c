/* Steps of the demonstration: a heading, a command line that is printed and run; see demo.h. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/errmsg.h"
#include "tools/demo/demo.h"

enum { ARGS_MAX = 24 };

const char *const demo_budgets[DEMO_BUDGETS] = {"2", "3", "4"};

void demo_heading(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fputs("\n== ", stdout);
    vprintf(fmt, ap);
    puts("\n");
    va_end(ap);
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
    size_t n = 1;

    fputs("$ kvcobra", stdout);
    for (; args[n - 1]; n++) {
        if (n == ARGS_MAX)
            return fail(e, -E2BIG, "a step of the demonstration has too many arguments");

        argv[n] = args[n - 1];
        printf(" %s", argv[n]);
    }

    putchar('\n');
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
