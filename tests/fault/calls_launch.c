/*
 * Starts the program KVC_FAULT_PROGRAM with this program's arguments, its system calls watched by the test
 * that listens in the folder KVC_FAULT_FOLDER; see calls.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fault/calls.h"

int main(int argc, char **argv)
{
    const char *program = getenv("KVC_FAULT_PROGRAM"), *folder = getenv("KVC_FAULT_FOLDER");
    int r;

    (void) argc;
    if (!program || !folder) {
        (void) fprintf(stderr, "calls_launch: KVC_FAULT_PROGRAM and KVC_FAULT_FOLDER must be set\n");
        return 2;
    }
    r = calls_deliver(folder);
    if (r < 0) {
        (void) fprintf(stderr, "calls_launch: no filter of system calls: %s\n", strerror(-r));
        return 2;
    }
    (void) execv(program, argv);
    (void) fprintf(stderr, "calls_launch: cannot run %s\n", program);
    return 2;
}
