/* See life_fixture.h. */
#include "tests/e2e/life_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/e2e/life_client.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/e2e/supervisor_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

enum { SETTLE_READS = 50 };

/* What the holder answers. */
struct life_answer {
    int r;
    bool resumed;
};

static struct {
    struct life *l;
    pid_t holder;
    int to, from; /* pipes of the holder */
    bool asked;   /* the daemon died before the holder's answer, which comes from the next one */
    unsigned n_held;
    bool broken, died; /* died: the kill has happened */
    unsigned first, n; /* keys of the next visit */
} life;

static void life_break(const char *what, int detail)
{
    printf("    life: %s (%d); log: %s\n", what, detail, raw_daemon.log);
    life.broken = true;
}

/*
 * Whether the daemon ended, and has to be started again. A client learns of a kill before the process is
 * gone, so this waits for the exit. The kill may have met an earlier daemon, which the test had killed
 * itself.
 */
static bool life_has_died(void)
{
    bool killed = life.l->killed && life.l->killed() == raw_daemon.pid && !life.died;
    int status;

    if (raw_daemon.pid <= 0 || waitpid(raw_daemon.pid, &status, killed ? 0 : WNOHANG) <= 0)
        return false;
    raw_daemon.pid = 0;
    life.died = true;
    if (killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return true;
    life_break("the daemon ended with wait status", status);
    return false;
}

static int life_step_start(void);

/*
 * Runs @step until it succeeds. It may fail only if the failure happened in it, and may then be refused with
 * EAGAIN or ENOSPC for a while: kvcobrad tries to make memory again after a pause.
 */
static void life_must(const char *name, int (*step)(void))
{
    /* a kill after the last reply of a step is noticed by the next one */
    bool before = life.l->killed ? life.died : life.l->has_failed(), tolerated = false;
    struct wait w = wait_begin();
    int r = 0;

    if (life.broken)
        return;
    do {
        r = step();
        if (r == 0)
            return;
        life.l->n_steps_failed += !tolerated;
        if (r == LIFE_BROKEN || before || !life.l->has_failed() ||
            (tolerated && r != -EAGAIN && r != -ENOSPC))
            break;
        tolerated = true;
        if (life_has_died()) {
            supervisor_kill(); /* waits until its messages are handled */
            if (life_step_start() != 0)
                break;
        }
    } while (wait_again(&w));
    life_break(name, r);
}

/* ---- children ---- */

/*
 * Waits until @fd is readable. False: the daemon died first; its socket stays open in the supervisor, so a
 * client would wait for its own limit.
 */
static bool life_wait(int fd)
{
    _cleanup_(closep) int daemon = (int) syscall(SYS_pidfd_open, raw_daemon.pid, 0);
    struct pollfd p[] = {{.fd = fd, .events = POLLIN}, {.fd = daemon, .events = POLLIN}};

    assert(daemon >= 0 && poll(p, 2, -1) > 0);
    return p[0].revents != 0;
}

/* Runs @work in a child. Return: its errno; LIFE_BROKEN. */
static int life_in_child(int (*work)(void))
{
    _cleanup_(closep) int child = -1;
    int status;
    bool died;
    pid_t pid;

    (void) fflush(stdout);
    pid = fork();
    assert(pid >= 0);
    if (pid == 0) {
        int r;

        (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
        r = work();
        for (CU_pFailureRecord f = CU_get_failure_list(); f; f = f->pNext)
            printf("    life: %s:%u: %s\n", f->strFileName, f->uiLineNumber, f->strCondition);
        (void) fflush(stdout);
        if (CU_get_number_of_failure_records() > 0)
            _exit(LIFE_BROKEN);
        _exit(r == 0 ? 0 : -r + LIFE_BROKEN);
    }
    child = (int) syscall(SYS_pidfd_open, pid, 0);
    assert(child >= 0);
    died = !life_wait(child);
    if (died)
        (void) kill(pid, SIGKILL);
    assert(waitpid(pid, &status, 0) == pid);
    if (died && WIFSIGNALED(status))
        return -ECONNRESET;
    if (!WIFEXITED(status) || WEXITSTATUS(status) == LIFE_BROKEN)
        return LIFE_BROKEN;
    return WEXITSTATUS(status) == 0 ? 0 : LIFE_BROKEN - WEXITSTATUS(status);
}

static int life_activate_first(void)
{
    return life_activate(0);
}

static int life_activate_second(void)
{
    return life_activate(1);
}

static int life_visit_next(void)
{
    return life_visit(life.first, life.n);
}

static int life_step_activate_first(void)
{
    return life_in_child(life_activate_first);
}

static int life_step_activate_second(void)
{
    int r = life_in_child(life_activate_second);

    if (r == 0)
        life_state->active = 1;
    return r;
}

static int life_step_visit(void)
{
    return life_in_child(life_visit_next);
}

static int life_step_status(void)
{
    return life_in_child(life_read_status);
}

static void life_visit_keys(unsigned first, unsigned n)
{
    life.first = first;
    life.n = n;
    life_must("visit", life_step_visit);
}

/* Whether the accounts are exact: @n_held pages are held, all of them by the holder. */
static bool life_is_exact(unsigned n_held)
{
    if (life_state->held_pages == n_held)
        return n_held > 0 || life_state->sessions == 0;
    /* the lease of the released page could not be restored: the page is held until its process ends */
    return n_held == LIFE_HELD - 1 && life_state->held_pages == LIFE_HELD &&
           daemon_logged(&raw_daemon, "event=holds-orphaned");
}

/* @may_wait: a process has just ended; so have those of a step that was repeated. */
static void life_check_status(unsigned n_held, bool may_wait)
{
    struct wait w = wait_begin();

    may_wait = may_wait || life.l->has_failed();
    do
        life_must("status", life_step_status);
    while (!life.broken && may_wait && !life_is_exact(n_held) && wait_again(&w));
    if (!life.broken && !life_is_exact(n_held))
        life_break("held pages, expected", (int) n_held);
}

/* ---- the holder ---- */

static _Noreturn void life_hold_until_killed(int from, int to)
{
    struct life_answer a = {.r = life_hold()};
    char command;

    for (;;) {
        if (CU_get_number_of_failure_records() > 0)
            a.r = LIFE_BROKEN;
        for (CU_pFailureRecord f = CU_get_failure_list(); f; f = f->pNext)
            printf("    life: %s:%u: %s\n", f->strFileName, f->uiLineNumber, f->strCondition);
        (void) fflush(stdout);
        if (write(to, &a, sizeof(a)) != sizeof(a) || read(from, &command, 1) != 1)
            _exit(0);
        a = (struct life_answer){.r = 0};
        life_check_held();
        if (command == 'r')
            a.r = life_resume(&a.resumed);
    }
}

static struct life_answer life_ask_holder(char command)
{
    struct life_answer a = {.r = LIFE_BROKEN};

    if (command != 0 && !life.asked && write(life.to, &command, 1) != 1)
        return a;
    life.asked = !life_wait(life.from);
    if (life.asked)
        return (struct life_answer){.r = -ECONNRESET};
    return read(life.from, &a, sizeof(a)) == sizeof(a) ? a : (struct life_answer){.r = LIFE_BROKEN};
}

static void life_end_holder(void)
{
    if (life.holder <= 0)
        return;
    (void) kill(life.holder, SIGKILL);
    assert(waitpid(life.holder, NULL, 0) == life.holder);
    life.holder = 0;
    (void) close(life.to);
    (void) close(life.from);
}

static int life_step_hold(void)
{
    int down[2], up[2];

    life_end_holder(); /* of the first try */
    assert(pipe2(down, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0);
    (void) fflush(stdout);
    life.holder = fork();
    assert(life.holder >= 0);
    if (life.holder == 0) {
        (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void) close(down[1]);
        (void) close(up[0]);
        life_hold_until_killed(down[0], up[1]);
    }
    (void) close(down[0]);
    (void) close(up[1]);
    life.asked = false;
    life.to = down[1];
    life.from = up[0];
    return life_ask_holder(0).r;
}

static int life_step_check_held(void)
{
    return life_ask_holder('c').r;
}

static int life_step_resume(void)
{
    bool pending = life.asked;
    struct life_answer a = life_ask_holder('r');

    if (pending && a.r == -ECONNRESET) /* of the connection to the daemon that died */
        a = life_ask_holder('r');
    if (a.r < 0 || a.r == LIFE_BROKEN)
        return a.r;
    if (a.resumed)
        life.n_held = LIFE_HELD - 1;
    else if (!life.l->has_failed()) /* else: its holds are orphaned */
        life_break("the session was not resumed", 0);
    return 0;
}

/* ---- the daemon ---- */

/* Return: 0; -1: it ended with a status other than 0 and a sentence in the log. */
static int life_step_start(void)
{
    int status = 0;

    if (supervisor_try(&status))
        return 0;
    life.l->n_starts_failed++;
    if (life.l->killed && !life.died && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
        life.died = true;
        return -1;
    }
    /* EX_CONFIG: some failures, such as EPERM, are a person's to mend */
    if (!WIFEXITED(status) || (WEXITSTATUS(status) != EXIT_FAILURE && WEXITSTATUS(status) != EX_CONFIG)) {
        life_break("a start that failed has wait status", status);
        return LIFE_BROKEN;
    }
    if (!daemon_logged(&raw_daemon, "event=failed message=\"")) {
        life_break("a start that failed gives no reason", status);
        return LIFE_BROKEN;
    }
    return -1;
}

static void life_check_log(void)
{
    static const char *const bad[] = {"event=self-check-failed", "event=pool-lost", "event=pages-lost",
                                      "event=extent-damaged", "event=page-damaged"};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (daemon_logged(&raw_daemon, bad[i]))
            life_break(bad[i], 0);
}

static size_t life_count_fds(void)
{
    char path[64];
    size_t n = 0;
    DIR *folder;

    (void) snprintf(path, sizeof(path), "/proc/%ld/fd", (long) raw_daemon.pid);
    folder = opendir(path);
    assert(folder);
    while (readdir(folder))
        n++;
    (void) closedir(folder);
    return n;
}

/*
 * The last connection closes a moment after its client's exit. The fault-free life has the smallest number.
 */
static void life_check_fds(void)
{
    struct wait w = wait_begin();
    size_t n;

    if (life_has_died())
        return;
    n = life_count_fds();

    for (int i = 0; life.l->n_fds_at_end == 0 && i < SETTLE_READS; i++) {
        size_t again = life_count_fds();

        n = again < n ? again : n;
        (void) wait_again(&w);
    }
    if (life.l->n_fds_at_end == 0)
        life.l->n_fds_at_end = n;
    while (n != life.l->n_fds_at_end) {
        if (life_has_died())
            return;
        if (!wait_again(&w)) {
            life_break("number of open descriptors", (int) n);
            return;
        }
        n = life_count_fds();
    }
}

/* SIGTERM. The exit status is 0, unless the failure is a kill. */
static void life_end_daemon(void)
{
    int status = 0;

    if (raw_daemon.pid <= 0)
        return;
    assert(kill(raw_daemon.pid, SIGTERM) == 0 && waitpid(raw_daemon.pid, &status, 0) == raw_daemon.pid);
    raw_daemon.pid = 0;
    if (life.l->killed && !life.died && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        life.died = true;
    else if (!WIFEXITED(status) || WEXITSTATUS(status) != EXIT_SUCCESS)
        life_break("an end in order has wait status", status);
}

static void life_restart(bool in_order)
{
    if (life.broken)
        return;
    if (in_order)
        life_end_daemon();
    supervisor_kill();
    life_must("start", life_step_start);
}

static void life_reload(void)
{
    assert(kill(raw_daemon.pid, SIGHUP) == 0);
}

static void life_live(void)
{
    life_must("start", life_step_start);
    life_must("activate", life_step_activate_first);
    life_must("hold", life_step_hold);
    life.n_held = LIFE_HELD;
    life_visit_keys(0, 4);
    if (!life.broken)
        life_reload();
    life_visit_keys(4, 2);
    life_must("activate another", life_step_activate_second);
    life_visit_keys(0, 3);
    life_check_status(life.n_held, false);
    life_must("held pages", life_step_check_held);
    life_restart(false);
    life_check_status(life.n_held, false);
    life_visit_keys(3, 2);
    life_must("resume", life_step_resume);
    life_check_status(life.n_held, false);
    life_restart(true);
    life_visit_keys(5, 1);
    life_check_status(life.n_held, false);
    life_must("held pages", life_step_check_held);
    life_end_holder();
    life_check_status(0, true);
    if (life.broken)
        return;
    life_check_fds();
    life_check_log();
}

/* The pool is larger than all pages together, so nothing is evicted. */
static const char *const life_args[] = {
    "--pool-bytes=1M",   "--extent-bytes=128K", "--span-bytes=64K", "--arena-bytes=64K",
    "--quota-bytes=64M", "--lease-ms=10000",    "--work-threads=1", NULL,
};

void life_begin(void)
{
    raw_geometry = random_table_geometry(2, 4, 2, 32);
    for (uint32_t i = 0; i < LIFE_TABLES; i++)
        life_tables[i] = raw_make_table(i + 1);
    life_state = mmap(NULL, sizeof(*life_state), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert(life_state != MAP_FAILED);
}

void life_end(void)
{
    for (uint32_t i = 0; i < LIFE_TABLES; i++)
        life_tables[i] = table_unref(life_tables[i]);
    (void) munmap(life_state, sizeof(*life_state));
}

bool life_run(struct life *l)
{
    life.l = l;
    life.broken = life.died = false;
    memset(life_state, 0, sizeof(*life_state));
    supervisor_prepare(life_args);
    life_live();
    life_end_holder();
    life_end_daemon();
    supervisor_close(!life.broken);
    return !life.broken;
}
