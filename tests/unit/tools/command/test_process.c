/* Child processes: their output and their ends; none remains. */
#include "tools/command/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/lib/test.h"

static int signals(void)
{
    sigset_t stop;

    (void) sigemptyset(&stop);
    (void) sigaddset(&stop, SIGTERM);
    (void) sigprocmask(SIG_BLOCK, &stop, NULL);
    return signalfd(-1, &stop, SFD_CLOEXEC);
}

static void shell(struct process *p, const char *script, enum process_output output)
{
    const char *argv[] = {"sh", "-c", script, NULL};
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(process_start(p, "/bin/sh", argv, output, &e), 0);
}

static bool no_children_left(void)
{
    return waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD;
}

static void test_output_is_captured(void)
{
    _cleanup_(closep) int fd = signals();
    _cleanup_(process_deinit) struct process p = PROCESS_INIT("child");
    struct process *const ps[] = {&p};
    struct errmsg e = {""};

    shell(&p, "echo one; echo two", PROCESS_CAPTURE);
    CU_ASSERT_EQUAL(process_wait(ps, 1, 0, PROCESS_EXITS, fd, &e), 0);
    CU_ASSERT_TRUE(process_succeeded(&p, &e));
    CU_ASSERT_STRING_EQUAL(p.out, "one\ntwo\n");
    CU_ASSERT_TRUE(no_children_left());
}

/* More than a megabyte does not fit into a pipe: it must be read, and the part above the limit dropped. */
static void test_much_output(void)
{
    _cleanup_(closep) int fd = signals();
    _cleanup_(process_deinit) struct process p = PROCESS_INIT("child");
    struct process *const ps[] = {&p};
    struct errmsg e = {""};

    shell(&p, "head -c 3000000 /dev/zero", PROCESS_CAPTURE);
    CU_ASSERT_EQUAL(process_wait(ps, 1, 0, PROCESS_EXITS, fd, &e), 0);
    CU_ASSERT_TRUE(process_succeeded(&p, &e));
    CU_ASSERT(p.n_out > 1000000 && p.n_out <= 1 << 20);
}

static void test_first_byte_ends_the_wait(void)
{
    _cleanup_(closep) int fd = signals();
    _cleanup_(process_deinit) struct process p = PROCESS_INIT("child");
    struct process *const ps[] = {&p};
    struct errmsg e = {""};

    shell(&p, "printf x; exec cat /dev/zero >/dev/null", PROCESS_CAPTURE); /* does not end by itself */
    CU_ASSERT_EQUAL(process_wait(ps, 1, 0, PROCESS_WRITES, fd, &e), 0);
    CU_ASSERT_EQUAL(p.n_out, 1);
    CU_ASSERT_TRUE(process_running(&p));
    CU_ASSERT_FALSE(process_succeeded(&p, &e));
    CU_ASSERT_STRING_EQUAL(e.text, "child is still running");
    CU_ASSERT_FALSE(process_stop(&p)); /* by the signal, not with status 0 */
    CU_ASSERT_FALSE(process_succeeded(&p, &e));
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "signal 15"));
    CU_ASSERT_FALSE(process_running(&p));
    CU_ASSERT_TRUE(no_children_left());
}

static void test_how_it_ended(void)
{
    static const struct {
        const char *script, *want;
    } cases[] = {
        {"exit 3", "failed"},
        {"exit 127", "could not be started"},
        {"kill -KILL $$", "signal 9"},
    };
    _cleanup_(closep) int fd = signals();

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_(process_deinit) struct process p = PROCESS_INIT("child");
        struct process *const ps[] = {&p};
        struct errmsg e = {""};

        shell(&p, cases[i].script, PROCESS_SHOW);
        CU_ASSERT_EQUAL(process_wait(ps, 1, 0, PROCESS_EXITS, fd, &e), 0);
        CU_ASSERT_FALSE(process_succeeded(&p, &e));
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, cases[i].want));
    }
}

static void test_no_such_program(void)
{
    _cleanup_(closep) int fd = signals();
    _cleanup_(process_deinit) struct process p = PROCESS_INIT("child");
    const char *argv[] = {"x", NULL};
    struct process *const ps[] = {&p};
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(process_start(&p, "/nonexistent/program", argv, PROCESS_SHOW, &e), 0);
    CU_ASSERT_EQUAL(process_wait(ps, 1, 0, PROCESS_EXITS, fd, &e), 0);
    CU_ASSERT_FALSE(process_succeeded(&p, &e));
    CU_ASSERT_STRING_EQUAL(e.text, "child could not be started");
}

static void test_signal_ends_the_wait(void)
{
    _cleanup_(closep) int fd = signals();
    _cleanup_(process_deinit) struct process p = PROCESS_INIT("child");
    struct process *const ps[] = {&p};
    struct signalfd_siginfo info;
    struct errmsg e = {""};

    shell(&p, "exec cat /dev/zero >/dev/null", PROCESS_SHOW);
    (void) kill(getpid(), SIGTERM); /* blocked: it is pending in the signalfd */
    CU_ASSERT_EQUAL(process_wait(ps, 1, 0, PROCESS_EXITS, fd, &e), -EINTR);
    CU_ASSERT_EQUAL(read(fd, &info, sizeof(info)), (ssize_t) sizeof(info)); /* remove it for the next case */
    process_deinit(&p);
    CU_ASSERT_TRUE(no_children_left());
}

/* The child must not inherit our blocked signals: it would ignore SIGTERM. */
static void test_child_has_its_signals(void)
{
    _cleanup_(closep) int fd = signals();
    _cleanup_(process_deinit) struct process p = PROCESS_INIT("child");
    struct process *const ps[] = {&p};
    struct errmsg e = {""};

    shell(&p, "kill -TERM $$; echo alive", PROCESS_CAPTURE);
    CU_ASSERT_EQUAL(process_wait(ps, 1, 0, PROCESS_EXITS, fd, &e), 0);
    CU_ASSERT_EQUAL(p.n_out, 0);
    CU_ASSERT_TRUE(WIFSIGNALED(p.status));
}

/* A daemon writes to descriptor 3 when it is ready, whatever the number of the pipe was here; it inherits our
 * stdout.
 */
static void test_descriptor_three(void)
{
    _cleanup_(closep) int fd = signals();

    for (int low = 0; low < 2; low++) {
        _cleanup_(process_deinit) struct process p = PROCESS_INIT("child");
        _cleanup_(closep) int taken = -1; /* the next pipe gets other numbers */
        struct process *const ps[] = {&p};
        struct errmsg e = {""};

        if (low)
            taken = dup(STDERR_FILENO);
        shell(&p, "echo ready >&3", PROCESS_READY);
        CU_ASSERT_EQUAL(process_wait(ps, 1, 0, PROCESS_EXITS, fd, &e), 0);
        CU_ASSERT_TRUE(process_succeeded(&p, &e));
        CU_ASSERT_PTR_NOT_NULL_FATAL(p.out);
        CU_ASSERT_STRING_EQUAL(p.out, "ready\n");
    }
}

/* A full pipe of one child must not block another. */
static void test_several_at_once(void)
{
    _cleanup_(closep) int fd = signals();
    _cleanup_(process_deinit) struct process a = PROCESS_INIT("a");
    _cleanup_(process_deinit) struct process b = PROCESS_INIT("b");
    struct process unused = PROCESS_INIT("unused");
    struct process *const ps[] = {&a, &unused, &b};
    struct errmsg e = {""};

    shell(&a, "head -c 300000 /dev/zero; printf end", PROCESS_CAPTURE);
    shell(&b, "echo b", PROCESS_CAPTURE);
    CU_ASSERT_EQUAL_FATAL(process_wait(ps, 3, 2, PROCESS_EXITS, fd, &e), 0);
    CU_ASSERT_EQUAL_FATAL(process_wait(ps, 3, 0, PROCESS_EXITS, fd, &e), 0);
    CU_ASSERT_EQUAL(a.n_out, 300003);
    CU_ASSERT_STRING_EQUAL(b.out, "b\n");
    CU_ASSERT_EQUAL(process_wait(ps, 3, 1, PROCESS_EXITS, fd, &e), 0); /* never started */
}

const char test_suite[] = "process";
const struct test_case test_cases[] = {
    TEST(test_output_is_captured),       TEST(test_much_output),
    TEST(test_first_byte_ends_the_wait), TEST(test_how_it_ended),
    TEST(test_no_such_program),          TEST(test_signal_ends_the_wait),
    TEST(test_child_has_its_signals),    TEST(test_descriptor_three),
    TEST(test_several_at_once),          TEST_END,
};
