/* See gate_fixture.h. */
#include "tests/e2e/gate_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/e2e/raw_service_fixture.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

static char gate_folder[64], gate_path[96];
static unsigned gate_n; /* calls that gate_wait() has seen */

void gate_make(const char *at)
{
    (void) strcpy(gate_folder, "/tmp/kvcobra-gate-XXXXXX");
    assert(mkdtemp(gate_folder));
    (void) snprintf(gate_path, sizeof(gate_path), "%s/gate", gate_folder);
    gate_n = 0;
    assert(mkfifo(gate_path, 0600) == 0);
    assert(setenv("KVC_TEST_GATE", gate_path, 1) == 0 && setenv("KVC_TEST_GATE_AT", at, 1) == 0);
}

int gate_wait(void)
{
    char text[32];
    int fd = -1;

    (void) snprintf(text, sizeof(text), "at gate %u.", ++gate_n);
    for (struct wait w = wait_begin(); !daemon_logged(&raw_daemon, text) && wait_again(&w);)
        ;
    for (struct wait w = wait_begin(); (fd = open(gate_path, O_WRONLY | O_NONBLOCK | O_CLOEXEC)) < 0;)
        if (errno != ENXIO || !wait_again(&w))
            break;
    CU_ASSERT_FATAL(fd >= 0);
    return fd;
}

void gate_remove(void)
{
    int fd = open(gate_path, O_RDWR | O_CLOEXEC); /* ends an open() that waits */

    assert(fd >= 0 && unlink(gate_path) == 0 && rmdir(gate_folder) == 0);
    (void) close(fd);
}
