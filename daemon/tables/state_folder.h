/*
 * The state folder: its lock, and the secret in it. Tables, the active set, aliases, quotas and trials are
 * files of the folder, too; the files that write them name them.
 */
#pragma once

#include <stdint.h>

#include "base/file_identity.h"

struct errmsg;

struct state_folder {
    const char *path; /* borrowed; NULL: not open */
    int fd, lock_fd;  /* of the folder and of the file `lock` in it; both are locked */
    struct file_identity identity;
};

/*
 * Creates the folder @path (mode 0700) if it does not exist, and locks it: two daemons would replace each
 * other's files. The lock is on the folder itself, since a file in it can be removed while it is locked; the
 * file `lock` is for earlier versions. The kernel releases both when the process ends.
 *
 * Return, with a sentence: 0; -EADDRINUSE: another kvcobrad has the folder; -EPERM: it belongs to another
 * user, or others may write to it; errno of the folder or the file.
 */
int state_folder_open(const char *path, struct state_folder *ret, struct errmsg *e);
void state_folder_close(struct state_folder *f); /* of an open one, or zeros */

/*
 * Before a file is written by its path: whether the path still means this folder. Another daemon may have the
 * one that is there now. @f: NULL is allowed: 0. Return: 0; -ENOENT, -ESTALE, -EPERM with a sentence.
 */
int state_folder_check(const struct state_folder *f, struct errmsg *e);

/*
 * Reads the secret of the index keys from the folder, or creates it there, so that keys stay the same over
 * restarts. Operators may copy the file to other hosts, which then derive the same keys. @path: NULL: no
 * folder, a new secret. Return: 0; -EPERM: others may read the file, or it is another user's; errno.
 */
int state_folder_secret(const char *path, uint8_t ret[static 32], struct errmsg *e);

/*
 * Whether a start would refuse the folder or its secret, without changing or locking anything. @ret: the
 * secret; untouched if there is none yet. Return: 0; errno with a sentence.
 */
int state_folder_look(const char *path, uint8_t ret[static 32], struct errmsg *e);
