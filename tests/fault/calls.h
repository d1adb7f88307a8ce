/*
 * Fails the n-th system call of other processes. A watched process runs under a seccomp filter that reports
 * each call that can fail to a thread of the test. The thread lets it pass, returns an errno instead of it,
 * or lets a read or write move half of its bytes. Calls of io_uring are not seen.
 *
 * The test calls calls_begin(). The process to watch calls calls_deliver() with the same folder; a program
 * that cannot do so is started through calls_launch.c. Calls count from the process's first calls_mark() to
 * its second.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

struct calls_result {
    bool fired;     /* the call was reached, and failed */
    bool exhausted; /* the call was reached, and has no failure of this number */
    pid_t pid;      /* that reached it */
    char what[96];  /* the call and its failure */
};

/* A sanitizer makes system calls of its own, and ends the program if they fail. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CALLS_CAN_FAIL false
#else
#define CALLS_CAN_FAIL true
#endif
#define CALLS_CANNOT_FAIL_TEXT "a sanitizer makes system calls of its own"

/* Starts the thread; asserts. False: this kernel has no such filter, skip the test. */
bool calls_begin(const char *folder);
void calls_end(void);

/*
 * Counts from now on, and fails call @nth (from 1) of all watched processes, once, in the way @variant (from
 * 0). @nth 0: none.
 */
void calls_arm(unsigned nth, unsigned variant);
/* The process is killed before call @nth. */
void calls_arm_kill(unsigned nth);
/* What happened since calls_arm(); further calls pass. */
struct calls_result calls_disarm(void);
/* Whether the armed call was reached. */
bool calls_fired(void);
/* The process that made the armed call; 0: it was not reached. */
pid_t calls_fired_in(void);

/* In the process to watch. Return: 0; a negative errno. */
int calls_deliver(const char *folder);
void calls_mark(void);
