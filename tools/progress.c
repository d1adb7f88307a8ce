/* The progress line; see progress.h. */
#include "tools/progress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/report.h"

enum {
    FIRST_AFTER_US = 2000000, /* shorter work is not worth a line */
    EVERY_US = 100000,
    LINE_BYTES = 128,
    BAR_CELLS = 20,
};

static uint64_t now_us(void)
{
    struct timespec ts;

    (void) clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t) ts.tv_sec * 1000000 + (uint64_t) ts.tv_nsec / 1000;
}

void progress_start(struct progress *p, const char *what, const char *unit, double total, bool quiet)
{
    *p = (struct progress) {
        .visible = !quiet && isatty(STDERR_FILENO),
        .unit = unit,
        .total = total,
        .begun_us = now_us(),
    };
    p->step_us = p->begun_us;
    (void) snprintf(p->what, sizeof(p->what), "%s", what);
}

/* "#####.....": a full cell only when it is really done */
static void draw_bar(double fraction, char ret[static BAR_CELLS + 1])
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
        (void) snprintf(rate, sizeof(rate), "  %.*f %s/s", done / seconds < 10 ? 1 : 0, done / seconds, p->unit);
    if (p->total <= 0) {
        (void) snprintf(ret, bytes, "%s  %.0f %s%s", p->what, done, p->unit ? p->unit : "", rate);
        return;
    }
    if (fraction > 0 && fraction < 1)
        (void) snprintf(left, sizeof(left), "  %s left",
                        human_seconds(seconds / fraction * (1 - fraction), duration));
    draw_bar(fraction, bar);
    (void) snprintf(ret, bytes, "%s  [%s] %3.0f%%%s%s", p->what, bar, floor(fraction * 100), rate, left);
}

void progress_update(struct progress *p, double done)
{
    char line[LINE_BYTES];
    uint64_t now;

    if (!p->visible)
        return;
    now = now_us();
    if (now - p->begun_us < FIRST_AFTER_US || (p->drawn && now - p->drawn_us < EVERY_US))
        return;
    progress_format(p, done, (double) (now - p->step_us) * 1e-6, line, sizeof(line));
    fprintf(stderr, "\r\033[K%s", line); /* \033[K: a shorter line leaves nothing of a longer one */
    (void) fflush(stderr);
    p->drawn = true;
    p->drawn_us = now;
}

void progress_rename(struct progress *p, const char *what)
{
    if (strncmp(p->what, what, sizeof(p->what) - 1) == 0)
        return;
    (void) snprintf(p->what, sizeof(p->what), "%s", what);
    p->step_us = now_us();
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
