/*
 * Child processes of the demonstration: started together, watched together, never left behind.
 *
 * The caller blocks SIGINT, SIGTERM and SIGHUP and hands a signalfd in: a signal makes every wait end with
 * -EINTR, and the cleanups then end the children. A child also gets SIGTERM when its parent dies of anything
 * else.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct errmsg;

struct process {
    const char *label; /* "kvcobrad": in messages; borrowed */
    pid_t pid;         /* 0: not started, or reaped */
    int pidfd;         /* readable when it exits; -1 after that */
    int out_fd;        /* what it writes, if captured; -1 at its end */
    char *out;         /* captured so far, NUL-terminated; NULL if nothing came */
    size_t n_out;
    int status; /* of waitpid(), once pid is 0 again */
};

/* Not a child yet; process_deinit() does nothing. */
#define PROCESS_INIT(l)                                                                                      \
    {                                                                                                        \
        .label = (l), .pidfd = -1, .out_fd = -1                                                              \
    }

enum process_output {
    PROCESS_SHOW,    /* stdout is ours */
    PROCESS_CAPTURE, /* stdout goes to p->out */
    PROCESS_READY,   /* descriptor 3 goes to p->out: where a daemon says that it is ready */
};

/**
 * process_start() - run a program
 * @p:       PROCESS_INIT
 * @path:    of the program; no search
 * @argv:    ends with NULL
 *
 * Return: 0; a negative errno with a sentence.
 */
int process_start(struct process *p, const char *path, const char *const *argv, enum process_output output,
                  struct errmsg *e);

/* What process_wait() waits for. */
enum process_event {
    PROCESS_EXITS,  /* it is gone and all it wrote is here */
    PROCESS_WRITES, /* the first captured byte, or it is gone */
};

/**
 * process_wait() - until something happens to ps[which]; what the other @n children write meanwhile is taken
 * in
 * @signal_fd: signalfd of the signals that mean stop
 *
 * Return: 0; -EINTR: a signal came, no sentence; else a negative errno with a sentence.
 */
int process_wait(struct process *const *ps, size_t n, size_t which, enum process_event event, int signal_fd,
                 struct errmsg *e);

/* Whether it is running at this moment, reaped or not. */
bool process_running(const struct process *p);

/* Whether it has exited, and with status 0; else false with a sentence that says how it ended. */
bool process_succeeded(const struct process *p, struct errmsg *e);

/**
 * process_stop() - end it: SIGTERM, and SIGKILL after five seconds; reap it
 * Return: true if it was there and ended on its own or by SIGTERM with status 0.
 */
bool process_stop(struct process *p);

/* process_stop() and free. Right as a cleanup. */
void process_deinit(struct process *p);
