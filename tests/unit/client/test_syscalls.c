/*
 * Appending and attending make no system call: a child in steady state installs a seccomp filter under which every
 * call but write and exit_group kills it, and generates tokens across chunk boundaries.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/test.h"
#include "tests/unit/client/embedded.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

enum { LAYERS = 3, WARM = 260, TOKENS = 200 };

static int forbid_system_calls(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof(filter) / sizeof(*filter), filter };

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0 ? -errno : 0;
}

struct step {
    float *k, *v, *q, *out;
};

static int decode_step(const struct embedded *m, kvc_seq *s, const struct step *steps)
{
    for (uint32_t layer = 0; layer < m->g.n_layers; layer++) {
        const struct step *x = &steps[layer];
        int r = kvc_seq_append(s, layer, KVC_F32, x->k, x->v, 1);

        if (r == 0)
            r = kvc_seq_attend(s, layer, x->q, 1, x->out);
        if (r < 0)
            return r;
    }
    return 0;
}

/* In the child: the client must be its own. Exit status: 0 good, 1 failed, 2 no seccomp here. */
static void generate(bool make_a_call)
{
    struct embedded m = embedded_new(LAYERS, 6, 2, 64, 3, 0, 0);
    struct step steps[LAYERS];
    struct rlimit no_core = { 0, 0 };
    kvc_seq *s = NULL;

    (void) setrlimit(RLIMIT_CORE, &no_core);
    if (kvc_seq_new(m.model, NULL, 0, &s) < 0)
        _exit(1);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        steps[layer].k = embedded_input(&m, 0, layer, KVC_K, 5, 1);
        steps[layer].v = embedded_input(&m, 0, layer, KVC_V, 5, 1);
        steps[layer].q = embedded_queries(&m, 0, layer, 5, 1);
        steps[layer].out = malloc(6 * 64 * sizeof(float));
    }
    for (unsigned i = 0; i < WARM; i++)
        if (decode_step(&m, s, steps) < 0)
            _exit(1);
    if (forbid_system_calls() < 0)
        _exit(2);
    for (unsigned i = 0; i < TOKENS; i++) /* three chunk boundaries */
        if (decode_step(&m, s, steps) < 0)
            _exit(1);
    if (make_a_call)
        (void) getppid();
    _exit(0);
}

static int run(bool make_a_call)
{
    int status = 0;
    pid_t pid = fork();

    if (pid == 0)
        generate(make_a_call);
    CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
    return status;
}

static void test_no_system_calls(void)
{
    int status;

    if (SANITIZED) {
        test_skip("sanitizers make system calls of their own");
        return;
    }
    status = run(false);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 2) {
        test_skip("no seccomp here");
        return;
    }
    CU_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    if (WIFSIGNALED(status))
        printf("    killed by signal %d: a system call\n", WTERMSIG(status));
    status = run(true); /* the filter can fail */
    CU_ASSERT(WIFSIGNALED(status));
}

const struct test_case test_cases[] = { TEST(test_no_system_calls), TEST_END };
const char test_suite[] = "syscalls";
