/* See uring.h. */
#include "daemon/loop/uring.h"

#include <errno.h>
#include <string.h>

/* Tries the flags of newer kernels first, then fewer flags. */
int uring_init(struct io_uring *ring, unsigned n_entries, unsigned n_completions)
{
    static const unsigned flags[] = {
        IORING_SETUP_CQSIZE | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
        IORING_SETUP_CQSIZE | IORING_SETUP_COOP_TASKRUN,
        IORING_SETUP_CQSIZE,
    };
    int r = -EINVAL;

    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]) && r == -EINVAL; i++) {
        struct io_uring_params p = {.flags = flags[i], .cq_entries = n_completions};

        r = io_uring_queue_init_params(n_entries, ring, &p);
    }

    return r;
}

const char *uring_explain(int r)
{
    switch (r) {
    case -ENOMEM:
        return "the limit of locked memory is too low for it: raise LimitMEMLOCK= or ulimit -l";
    case -EPERM:
    case -EACCES:
        return "it is forbidden: see the sysctl kernel.io_uring_disabled and the filters of system calls";
    case -ENOSYS:
        return "the kernel does not have it, or a filter of system calls says so";
    default:
        return strerror(-r);
    }
}
