/* See no_syscalls.h. */
#include "tests/unit/client/no_syscalls.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { WARM = 260, TOKENS = 200 };

struct step {
    float *k, *v, *q, *out;
};

static int forbid_system_calls(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof(filter) / sizeof(*filter), filter};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0 ? -errno : 0;
}

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

_Noreturn void decode_without_syscalls(const struct embedded *m, bool make_a_call)
{
    struct step *steps = calloc(m->g.n_layers, sizeof(*steps));
    struct rlimit no_core = {0, 0};
    kvc_seq *s = NULL;

    (void) setrlimit(RLIMIT_CORE, &no_core);
    if (!steps || kvc_seq_new(m->model, NULL, 0, &s) < 0)
        _exit(SYSCALLS_FAILED);
    for (uint32_t layer = 0; layer < m->g.n_layers; layer++) {
        steps[layer].k = embedded_input(m, 0, layer, KVC_K, 5, 1);
        steps[layer].v = embedded_input(m, 0, layer, KVC_V, 5, 1);
        steps[layer].q = embedded_queries(m, 0, layer, 5, 1);
        steps[layer].out = embedded_queries(m, 0, layer, 5, 1);
    }
    for (unsigned i = 0; i < WARM; i++)
        if (decode_step(m, s, steps) < 0)
            _exit(SYSCALLS_FAILED);
    if (forbid_system_calls() < 0)
        _exit(SYSCALLS_NO_SECCOMP);
    for (unsigned i = 0; i < TOKENS; i++)
        if (decode_step(m, s, steps) < 0)
            _exit(SYSCALLS_FAILED);
    if (make_a_call)
        (void) getppid();
    _exit(SYSCALLS_NONE);
}
