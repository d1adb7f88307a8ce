/*
 * The state folder: its lock, and the secret in it. Tables, the active set, aliases, quotas and trials are
 * files of the folder, too; the files that write them name them.
 */
#pragma once

#include <stdint.h>

struct errmsg;

/*
 * Creates the folder @path (mode 0700) if it does not exist, and locks the file `lock` in it: two daemons
 * would replace each other's files. The kernel releases the lock when the process ends.
 *
 * Return: 0; -EADDRINUSE: another kvcobrad has the folder; errno of the folder or the file.
 */
int state_folder_lock(const char *path, int *ret_fd, struct errmsg *e);

/*
 * Reads the secret of the index keys from the folder, or creates it there, so that keys stay the same over
 * restarts. Operators may copy the file to other hosts, which then derive the same keys. @path: NULL: no
 * folder, a new secret.
 */
int state_folder_secret(const char *path, uint8_t ret[static 32], struct errmsg *e);
