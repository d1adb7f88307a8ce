/*
 * What kvcobrad cannot serve without: system calls that a container, a sandbox or a limit may forbid. Checked
 * once at the start, so that the reason stands in one sentence, not in the errno of each client's request.
 */
#pragma once

struct config;
struct errmsg;

/**
 * needs_check() - try the system calls, and raise the limit of file sizes
 *
 * Memory objects count as files. Return: 0; -EFBIG: the limit of file sizes (RLIMIT_FSIZE) is lower than the
 * largest of them; errno of the system call; with a sentence that names it.
 */
int needs_check(const struct config *c, struct errmsg *e);
