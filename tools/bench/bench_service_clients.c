/* Processes side by side; see bench_service_crew.h. */
#include "tools/bench/bench_service_clients.h"

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

struct crew_state {
    _Atomic unsigned n_ready, go, failed;
    struct errmsg error; /* of whoever failed first */
};

int crew_init(struct crew *c, struct errmsg *e)
{
    void *state =
        mmap(NULL, sizeof(struct crew_state), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    *c = (struct crew){.state = state};
    if (state == MAP_FAILED) {
        c->state = NULL;
        return fail(e, -ENOMEM, "out of memory for several processes");
    }
    return 0;
}

static void service_clients_report_failure(struct crew *c, const struct errmsg *e)
{
    if (atomic_fetch_add(&c->state->failed, 1) == 0)
        c->state->error = *e;
}

int crew_add(struct crew *c, int (*run)(void *ctx, unsigned number, struct errmsg *e), void *ctx,
             struct errmsg *e)
{
    pid_t pid = c->n < CREW_MAX ? fork() : -1;

    if (pid < 0)
        return fail(e, -EAGAIN, "cannot start %u processes", c->n + 1);
    if (pid == 0) {
        struct errmsg mine = {""};

        (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (run(ctx, c->n, &mine) < 0)
            service_clients_report_failure(c, &mine);
        _exit(0);
    }
    c->pids[c->n++] = pid;
    return 0;
}

bool crew_wait_go(struct crew *c)
{
    c->state->n_ready++;
    while (!c->state->go && !c->state->failed)
        (void) poll(NULL, 0, 1);
    return !c->state->failed;
}

void crew_go(struct crew *c, unsigned n)
{
    while (c->state->n_ready < n && !c->state->failed)
        (void) poll(NULL, 0, 1);
    c->state->go = 1;
}

bool crew_failed(const struct crew *c)
{
    return c->state->failed > 0;
}

int crew_finish(struct crew *c, struct errmsg *e)
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

void crew_deinit(struct crew *c)
{
    for (unsigned i = 0; i < c->n; i++) {
        (void) kill(c->pids[i], SIGKILL); /* ours and not reaped: the pid is nobody else's */
        (void) waitpid(c->pids[i], NULL, 0);
    }
    if (c->state)
        (void) munmap(c->state, sizeof(*c->state));
    *c = (struct crew){.state = NULL};
}
