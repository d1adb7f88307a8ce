/*
 * Which file a name meant when it was used first: its device, its inode and its owner. A name can be removed
 * and be given to another file; the holder of an open descriptor compares before it uses or removes the name.
 */
#pragma once

#include <sys/types.h>

struct errmsg;

struct file_identity {
    dev_t device;
    ino_t inode;
    uid_t owner;
};

/* Of an open file, also one of O_PATH. The inode's number is not used again while @fd is open. Return: 0;
 * errno. */
int file_identity_of(int fd, struct file_identity *ret);

/**
 * file_identity_check() - compare what a name means now
 * @folder_fd: that @path is relative to, or AT_FDCWD
 * @flags:     of fstatat(): AT_SYMLINK_NOFOLLOW, or 0
 * @name:      of the file, in the sentence
 *
 * Return: 0; -ENOENT, -EACCES ...: nothing has the name, or it cannot be looked up; -ESTALE: another file has
 * it; -EPERM: the file belongs to another user now; with a sentence.
 */
int file_identity_check(const struct file_identity *i, int folder_fd, const char *path, int flags,
                        const char *name, struct errmsg *e);
