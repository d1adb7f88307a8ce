/*
 * A progress line on stderr: the name of the work, the part that is done, the rate and the time left.
 *
 * It appears only if stderr is a terminal and the work takes more than two seconds; otherwise, and with
 * --quiet, every call is cheap and prints nothing, unless progress_say() was called. One line at a time per
 * process.
 */
#pragma once

#include <stdbool.h>

struct progress {
    bool visible;     /* stderr is a terminal and --quiet was not given */
    bool drawn;       /* the line is on the terminal */
    bool quiet;       /* --quiet was given */
    double say_every; /* seconds between lines without a terminal; 0: none */
    char what[64];
    const char *unit;
    double total;                   /* in units; 0 = unknown */
    double first;                   /* units that were done before the step began */
    double begun, step, last_drawn; /* clock: the line appears after begun, the rate counts from step */
};

/**
 * progress_start() - begin a piece of work
 * @what:  "calibrating"; copied
 * @unit:  plural: "tokens"; borrowed. NULL: @total is a fraction of 1 and only the percentage is shown
 * @total: in units; 0 if unknown
 * @quiet: print nothing
 */
void progress_start(struct progress *p, const char *what, const char *unit, double total, bool quiet);

#define PROGRESS_SAY_SECONDS 10 /* usual for the next */

/* For work of minutes: without a terminal, prints a line after two seconds, and then every @seconds. */
void progress_say(struct progress *p, double seconds);

/* A part of the work was done by an earlier run: it counts as done, and not for the rate. Called before the
 * first update. */
void progress_resume(struct progress *p, double done);

/* @done: units so far. May be called at any rate: it draws at most ten times a second. */
void progress_update(struct progress *p, double done);

/* Begins the next step: another name, and the rate counts from here. No change if the name is the same. */
void progress_rename(struct progress *p, const char *what);

/* progress_rename() and progress_update() as a callback of alloc/; @ctx: a struct progress with unit NULL. */
void progress_callback(void *ctx, const char *what, double fraction);

/* Erases the line. May be called twice; usable with _cleanup_. */
void progress_end(struct progress *p);

/* The text of the line: at most @bytes - 1 columns, with a shorter bar if need be. @ret: [bytes]; @seconds:
 * since the start of the step. */
void progress_format(const struct progress *p, double done, double seconds, char *ret, unsigned bytes);
