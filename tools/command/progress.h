/*
 * A progress line on stderr: what is being done, how far it is, the rate and the time left.
 *
 * It appears only if stderr is a terminal and the work takes more than two seconds; otherwise, and with
 * --quiet, every call is nearly free and prints nothing. One at a time per process.
 */
#pragma once

#include <stdbool.h>

struct progress {
    bool visible; /* stderr is a terminal and nobody asked for silence */
    bool drawn;   /* a line stands on the terminal */
    char what[64];
    const char *unit;
    double total;                   /* in units; 0 = unknown */
    double begun, step, last_drawn; /* the line waits for the first, the rate counts from the second */
};

/**
 * progress_start() - begin a piece of work
 * @what:  "calibrating"; copied
 * @unit:  what is counted, plural: "tokens"; NULL = @total is a fraction of 1 and only percents are shown;
 * borrowed
 * @total: in units; 0 if unknown
 * @quiet: print nothing
 */
void progress_start(struct progress *p, const char *what, const char *unit, double total, bool quiet);

/* @done units so far. Call as often as convenient: it draws ten times a second at most. */
void progress_update(struct progress *p, double done);

/* The next step: another name, and the rate counts from here. Nothing happens if the name is the same. */
void progress_rename(struct progress *p, const char *what);

/* progress_rename() and progress_update() in the shape that alloc/ calls back; @ctx is a struct progress with
 * unit NULL. */
void progress_callback(void *ctx, const char *what, double fraction);

/* Takes the line away. Also right as a cleanup: does nothing the second time. */
void progress_end(struct progress *p);

/* The line itself, for tests: @ret has room for @bytes. @seconds since the start. */
void progress_format(const struct progress *p, double done, double seconds, char *ret, unsigned bytes);
