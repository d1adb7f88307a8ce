/*
 * Child processes of the demonstration and of benches: started, watched together, and always ended.
 *
 * The caller blocks SIGINT, SIGTERM and SIGHUP and passes a signalfd: a signal makes every wait return
 * -EINTR, and the cleanups then end the children. If the parent dies in another way, the kernel sends the
 * child SIGTERM.
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
    int out_fd;        /* its captured output; -1 after the end of it */
    char *out;         /* captured so far, NUL-terminated; NULL: none */
    size_t n_out;
    int status; /* from waitpid(), when pid is 0 again */
};

/* No child yet; process_deinit() does nothing. */
#define PROCESS_INIT(l)                                                                                      \
    {                                                                                                        \
        .label = (l), .pidfd = -1, .out_fd = -1                                                              \
    }

enum process_output {
    PROCESS_SHOW,    /* stdout is inherited */
    PROCESS_CAPTURE, /* stdout goes to p->out */
    PROCESS_READY,   /* descriptor 3 goes to p->out: a daemon writes a byte there when it is ready */
};

/**
 * process_start() - run a program
 * @p:       PROCESS_INIT
 * @path:    of the program; PATH is not searched
 * @argv:    ends with NULL
 *
 * Return: 0; a negative errno with a sentence.
 */
int process_start(struct process *p, const char *path, const char *const *argv, enum process_output output,
                  struct errmsg *e);

/* The event that process_wait() waits for. */
enum process_event {
    PROCESS_EXITS,  /* it exited and all its output is captured */
    PROCESS_WRITES, /* the first byte is captured, or it exited */
};

/**
 * process_wait() - wait for an event of ps[which], and capture the output of all @n children meanwhile
 * @signal_fd: signalfd of the signals that stop the command
 *
 * Return: 0; -EINTR: a signal arrived, no sentence; else a negative errno with a sentence.
 */
int process_wait(struct process *const *ps, size_t n, size_t which, enum process_event event, int signal_fd,
                 struct errmsg *e);

/* Whether it runs at this moment. */
bool process_running(const struct process *p);

/* With what the sentence about a program ends that failed and has said why. */
#define PROCESS_ABOVE "its error message is above"

/* Whether it exited with status 0; false: with a sentence that says how it ended. */
bool process_succeeded(const struct process *p, struct errmsg *e);

/**
 * process_stop() - send SIGTERM, SIGKILL after five seconds, and reap the child
 * Return: true if it was running and exited with status 0.
 */
bool process_stop(struct process *p);

/* process_stop() and free. Usable with _cleanup_. */
void process_deinit(struct process *p);
