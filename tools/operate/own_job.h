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

/* Whether this process is the job: the log is its output. */
bool own_job_is_this(const struct own_daemon *d);

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

/* The process of the job of @j, for own_job_await(); -1: it has ended. */
int own_job_pidfd(const struct own_daemon *d, const struct own_job *j);

/* Waits for the end of a job; -1 ms: without a limit. Return: whether it has ended. */
bool own_job_await(int pidfd, int timeout_ms);

/* Ends the job if it runs, with the steps that it runs. Return: whether one was ended. */
bool own_job_end(const struct own_daemon *d);
