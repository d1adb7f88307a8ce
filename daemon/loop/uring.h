/* Starts an io_uring that one thread uses, with the best flags that the kernel has. */
#pragma once

#include <liburing.h>

/* Return: 0; errno of io_uring_setup(): -ENOSYS, -EPERM: it is not available here; -ENOMEM. */
int uring_init(struct io_uring *ring, unsigned n_entries, unsigned n_completions);

/* Why uring_init() returned @r, with what to look at; a part of a sentence. */
const char *uring_explain(int r);
