/* What main.c checks before a server exists, beyond the settings themselves. */
#pragma once

#include <stdbool.h>

#include "daemon/config/config_warnings.h"

struct config;
struct errmsg;

/**
 * start_check() - --check-config: whether the files, folders and sockets of the settings let kvcobrad start
 * @c:             checked (config_check())
 * @makes_folders: --user, which makes the folders of its sockets and of its state
 * @warn:          gets what a start would tolerate, such as a disk tier that would be off
 *
 * Nothing is created, changed or locked, so a running daemon is not disturbed. Root checks as the user who
 * owns the state folder, since kvcobrad runs as this user.
 *
 * Return: 0; errno with the sentence with which a start would end.
 */
int start_check(const struct config *c, bool makes_folders, config_warn_fn *warn, void *ctx,
                struct errmsg *e);

/**
 * needs_check() - try the system calls that kvcobrad needs, and raise the limit of file sizes
 *
 * A container, a sandbox or a limit may forbid them. Checked at the start (needs.c), so that the reason
 * stands in one sentence, not in the errno of each client's request.
 *
 * Memory objects count as files. Return: 0; -EFBIG: the limit of file sizes (RLIMIT_FSIZE) is lower than the
 * largest of them; errno of the system call; with a sentence that names it.
 */
int needs_check(const struct config *c, struct errmsg *e);
