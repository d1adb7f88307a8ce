/* The progress line; see progress.h. */
#include "tools/command/progress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/command/clock.h"
#include "tools/command/human.h"

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
        .unit = unit,
        .total = total,
        .begun = clock_seconds(),
    };
    p->step = p->begun;
    (void) snprintf(p->what, sizeof(p->what), "%s", what);
}

/* "#####.....": a cell is filled when its whole part is done */
static void progress_draw_bar(double fraction, char ret[static BAR_CELLS + 1])
{
    int full = (int) floor(fraction * BAR_CELLS);

    for (int i = 0; i < BAR_CELLS; i++)
        ret[i] = i < full ? '#' : '.';
    ret[BAR_CELLS] = '\0';
}

void progress_format(const struct progress *p, double done, double seconds, char *ret, unsigned bytes)
{
    double fraction = p->total > 0 ? fmin(fmax(done / p->total, 0), 1) : 0;
    char bar[BAR_CELLS + 1], rate[64] = "", left[64] = "", duration[HUMAN_BYTES];

    if (p->unit && seconds > 0)
        (void) snprintf(rate, sizeof(rate), "  %.*f %s/s", done / seconds < 10 ? 1 : 0, done / seconds,
                        p->unit);
    if (p->total <= 0) {
        (void) snprintf(ret, bytes, "%s  %.0f %s%s", p->what, done, p->unit ? p->unit : "", rate);
        return;
    }

    if (fraction > 0 && fraction < 1)
        (void) snprintf(left, sizeof(left), "  %s left",
                        human_seconds(seconds / fraction * (1 - fraction), duration));
    progress_draw_bar(fraction, bar);
    (void) snprintf(ret, bytes, "%s  [%s] %3.0f%%%s%s", p->what, bar, floor(fraction * 100), rate, left);
}

void progress_update(struct progress *p, double done)
{
    char line[LINE_BYTES];
    double now;

    if (!p->visible)
        return;

    now = clock_seconds();
    if (now - p->begun < FIRST_AFTER_SECONDS || (p->drawn && now - p->last_drawn < EVERY_SECONDS))
        return;

    progress_format(p, done, now - p->step, line, sizeof(line));
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
}
