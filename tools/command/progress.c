/* The progress line; see progress.h. */
#include "tools/command/progress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/command/clock.h"
#include "tools/command/command.h"
#include "tools/command/human.h"
#include "tools/command/terminal.h"

#define FIRST_AFTER_SECONDS 2.0 /* shorter work shows no line */
#define EVERY_SECONDS 0.1

enum {
    LINE_BYTES = 128,
    BAR_CELLS = 20,
};

void progress_start(struct progress *p, const char *what, const char *unit, double total, bool quiet)
{
    *p = (struct progress){
        .visible = !quiet && isatty(STDERR_FILENO),
        .quiet = quiet,
        .unit = unit,
        .total = total,
        .begun = clock_seconds(),
    };
    p->step = p->begun;
    (void) snprintf(p->what, sizeof(p->what), "%s", what);
}

/* "[#####.....]": a cell is filled when its whole part is done; "" without cells */
static void progress_draw_bar(double fraction, int cells, char ret[static BAR_CELLS + 3])
{
    int full = (int) floor(fraction * cells), n = 0;

    if (cells > 0)
        ret[n++] = '[';
    for (int i = 0; i < cells; i++)
        ret[n++] = i < full ? '#' : '.';
    if (cells > 0)
        ret[n++] = ']';
    ret[n] = '\0';
}

void progress_say(struct progress *p, double seconds)
{
    p->say_every = p->quiet || p->visible ? 0 : seconds;
}

void progress_resume(struct progress *p, double done)
{
    p->first = done;
    p->step = clock_seconds();
}

void progress_format(const struct progress *p, double done, double seconds, char *ret, unsigned bytes)
{
    double fraction = p->total > 0 ? fmin(fmax(done / p->total, 0), 1) : 0;
    double new = fmax(done - p->first, 0);
    char bar[BAR_CELLS + 3], rate[64] = "", left[64] = "", duration[HUMAN_BYTES];
    int cells = BAR_CELLS, n;

    if (p->unit && seconds > 0)
        (void) snprintf(rate, sizeof(rate), "  %.*f %s/s", new / seconds < 10 ? 1 : 0, new / seconds,
                        p->unit);
    if (p->total <= 0) {
        (void) snprintf(ret, bytes, "%s  %.0f %s%s", p->what, done, p->unit ? p->unit : "", rate);
        return;
    }

    if (new > 0 && fraction < 1)
        (void) snprintf(left, sizeof(left), "  %s left",
                        human_seconds(seconds / new *(p->total - done), duration));
    do {
        progress_draw_bar(fraction, cells, bar);
        n = snprintf(ret, bytes, "%s  %s%s%3.0f%%%s%s", p->what, bar, cells > 0 ? " " : "",
                     floor(fraction * 100), rate, left);
    } while (n >= (int) bytes && cells-- > 0);
}

/* A line of its own, for a file or a pipe. */
static void progress_print(struct progress *p, double done)
{
    double now = clock_seconds();
    char line[LINE_BYTES];

    if (now - p->begun < FIRST_AFTER_SECONDS || (p->last_drawn > 0 && now - p->last_drawn < p->say_every))
        return;

    progress_format(p, done, now - p->step, line, sizeof(line));
    fprintf(stderr, "%s: %s\n", command_program(), line);
    p->last_drawn = now;
}

void progress_update(struct progress *p, double done)
{
    unsigned width = terminal_width(stderr);
    char line[LINE_BYTES];
    double now;

    if (p->say_every > 0)
        progress_print(p, done);
    if (!p->visible)
        return;

    now = clock_seconds();
    if (now - p->begun < FIRST_AFTER_SECONDS || (p->drawn && now - p->last_drawn < EVERY_SECONDS))
        return;

    /* a line that fills the last column would begin a new row */
    progress_format(p, done, now - p->step, line, width > 0 && width < sizeof(line) ? width : sizeof(line));
    fprintf(stderr, "\r\033[K%s", line); /* \033[K erases the rest of a longer line */
    (void) fflush(stderr);
    p->drawn = true;
    p->last_drawn = now;
}

void progress_rename(struct progress *p, const char *what)
{
    if (strncmp(p->what, what, sizeof(p->what) - 1) == 0)
        return;

    (void) snprintf(p->what, sizeof(p->what), "%s", what);
    p->step = clock_seconds();
    p->first = 0;
}

void progress_callback(void *ctx, const char *what, double fraction)
{
    struct progress *p = ctx;

    progress_rename(p, what);
    progress_update(p, fraction);
}

void progress_end(struct progress *p)
{
    if (p->drawn) {
        fputs("\r\033[K", stderr);
        (void) fflush(stderr);
    }

    p->drawn = false;
    p->visible = false;
    p->say_every = 0;
}
