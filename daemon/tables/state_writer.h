/*
 * Replaces the text files of the state folder: the active set, trials, aliases, quotas, exact
 * tables. Syncing a file can
 * take seconds, so a thread does it, one file after the other in the order of the calls.
 *
 * A file is written before what it says is true, so a change of the state runs several times
 * (requests/change.h has the request around it): the first run changes the state in memory and calls
 * state_writer_write(), which gives the text to the thread and fails with -EINPROGRESS; the run undoes the
 * change, as after any failure. When the file is written the change runs again, and the same call returns
 * what the thread met. A change that writes two files runs three times. No other change runs in between.
 *
 * Without threads (at the start, at the end, in tests) files are written at once.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/errmsg.h"
#include "daemon/loop/work.h"

enum state_file { STATE_ACTIVE, STATE_TRIALS, STATE_ALIASES, STATE_QUOTAS, STATE_EXACT, STATE_FILES_MAX };

struct state_folder;
struct state_text; /* a file that waits for the thread */

struct state_change { /* embedded by a request; zeroed at first */
    struct state_result {
        bool is_written; /* with the text of this change */
        int err;         /* of the thread: 0 or a negative errno */
        struct errmsg why;
    } results[STATE_FILES_MAX];
    void (*done)(struct state_change *c); /* on the loop, when the file of -EINPROGRESS is written */
};

struct state_writer {
    struct work_item item; /* first member */
    struct work_share share;
    const char *folder;              /* borrowed; NULL: nothing is stored */
    const struct state_folder *open; /* compared before each write; NULL: not */
    struct work *work;               /* NULL: files are written at once */
    struct state_text *first, *last; /* the thread has the first while @is_busy */
    bool is_busy;
    struct state_change *change; /* from its first run to the end of its last one */
    bool is_running;
    struct state_printer {
        void (*print)(const void *ctx, FILE *f);
        const void *ctx;
    } printers[STATE_FILES_MAX];
};

/* Who prints the text of a file from the state in memory. */
void state_writer_set_printer(struct state_writer *w, enum state_file f,
                              void (*print)(const void *ctx, FILE *f), const void *ctx);

/* From now on a thread writes. */
void state_writer_start(struct state_writer *w, struct work *work);
/* After work_free(): writes the files that still wait, and from now on at once. */
void state_writer_end_threads(struct state_writer *w);

/* Before and after each run of a change. @r: what the run returned; -EINPROGRESS: the change runs again. */
void state_writer_begin(struct state_writer *w, struct state_change *c);
void state_writer_end(struct state_writer *w, int r);

/**
 * state_writer_write() - replace a file by the text of the present state
 *
 * Return: 0: the file is written; -EINPROGRESS, in a change: undo and return it; a negative errno with a
 * sentence: the file is as before.
 */
int state_writer_write(struct state_writer *w, enum state_file f, struct errmsg *e);

/* The same for a file that may be old until the thread has written it. A failure is logged. */
void state_writer_write_later(struct state_writer *w, enum state_file f);

/* At each tick: tries again if the queue of the threads was full. */
void state_writer_tick(struct state_writer *w);
