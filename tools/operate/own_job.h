/*
 * The table that kvcobra up --model makes in the background: the job is another kvcobra, with --wait, whose
 * output is a file beside the daemon's log. That file is the whole state: the job holds a lock on it while it
 * runs, the first line names the model, and the last one says how far it is or how it ended.
 */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#include "tools/operate/own_daemon.h"

struct errmsg;

enum { OWN_JOB_LINE_BYTES = 512 };

/* With what the last line begins that a job without a failure writes. */
#define OWN_JOB_DONE "a table of "

struct own_job {
    bool exists; /* one was started since the folder was made */
    pid_t pid;   /* 0: it has ended */
    bool failed; /* it has ended without a table */
    char log[OWN_DAEMON_PATH_BYTES];
    char model[PATH_MAX];          /* as it was given */
    char last[OWN_JOB_LINE_BYTES]; /* last line of the log */
};

/* Not for the job itself: closing its log would end its lock. Return: 0, also if there is none; an errno with
 * a sentence. */
int own_job_look(const struct own_daemon *d, struct own_job *ret, struct errmsg *e);

/**
 * own_job_start() - start one, and return
 * @self:  path of kvcobra
 * @model: as own_table_find_model() takes it
 *
 * The caller holds the folder's lock, and none runs.
 * Return: 0; an errno with a sentence.
 */
int own_job_start(const struct own_daemon *d, const char *self, const char *model, struct errmsg *e);

/* Ends the job if it runs, with the steps that it runs. Return: whether one was ended. */
bool own_job_end(const struct own_daemon *d);
