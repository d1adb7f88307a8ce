/* Client processes; see bench_service_clients.h. */
#include "lab/bench/bench_service_clients.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/errmsg.h"

struct bench_clients_state {
    _Atomic unsigned n_ready, go, failed;
    struct errmsg error; /* of the first failure */
};

int bench_clients_init(struct bench_clients *c, struct errmsg *e)
{
    void *state = mmap(NULL, sizeof(struct bench_clients_state), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    *c = (struct bench_clients){.state = state};
    if (state == MAP_FAILED) {
        c->state = NULL;
        return fail(e, -ENOMEM, "out of memory for several processes");
    }

    return 0;
}

static void service_clients_report_failure(struct bench_clients *c, const struct errmsg *e)
{
    if (atomic_fetch_add(&c->state->failed, 1) == 0)
        c->state->error = *e;
}

int bench_clients_add(struct bench_clients *c, int (*run)(void *ctx, unsigned number, struct errmsg *e),
                      void *ctx, struct errmsg *e)
{
    pid_t pid = c->n < BENCH_CLIENTS_MAX ? fork() : -1;

    if (pid < 0)
        return fail(e, -EAGAIN, "cannot start %u processes", c->n + 1);
    if (pid == 0) {
        struct errmsg own = {""};

        (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (run(ctx, c->n, &own) < 0)
            service_clients_report_failure(c, &own);
        _exit(0);
    }

    c->pids[c->n++] = pid;
    return 0;
}

bool bench_clients_wait_go(struct bench_clients *c)
{
    c->state->n_ready++;
    while (!c->state->go && !c->state->failed)
        (void) poll(NULL, 0, 1);
    return !c->state->failed;
}

void bench_clients_go(struct bench_clients *c, unsigned n)
{
    while (c->state->n_ready < n && !c->state->failed)
        (void) poll(NULL, 0, 1);
    c->state->go = 1;
}

bool bench_clients_failed(const struct bench_clients *c)
{
    return c->state->failed > 0;
}

int bench_clients_finish(struct bench_clients *c, struct errmsg *e)
{
    for (unsigned i = 0; i < c->n; i++) {
        int status;

        while (waitpid(c->pids[i], &status, 0) < 0 && errno == EINTR)
            ;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            service_clients_report_failure(c, &(struct errmsg){"a process of the bench died"});
    }

    c->n = 0;
    return c->state->failed ? fail(e, -EIO, "%s", c->state->error.text) : 0;
}

void bench_clients_deinit(struct bench_clients *c)
{
    for (unsigned i = 0; i < c->n; i++) {
        (void) kill(c->pids[i], SIGKILL); /* not reaped yet: the pid cannot belong to another process */
        (void) waitpid(c->pids[i], NULL, 0);
    }

    if (c->state)
        (void) munmap(c->state, sizeof(*c->state));
    *c = (struct bench_clients){.state = NULL};
}
