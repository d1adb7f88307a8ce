/*
 * The folder with the sockets of a user's own daemon (kvcobrad --user). The daemon makes them there, the
 * library and the command look for them there, so all use these functions:
 *
 *     $XDG_RUNTIME_DIR/kvcobra    if $XDG_RUNTIME_DIR belongs to this user
 *     /run/user/UID/kvcobra       if /run/user/UID does: `su -` and a container set no variable
 *     /tmp/kvcobra-UID            in any case: cron, a container without a login
 *
 * Others may write to /tmp, and may have made the last folder first. Therefore a folder is used only if it
 * belongs to this user and others have no right to it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct errmsg;

enum {
    USER_FOLDERS = 3,
    USER_FOLDER_BYTES = 108, /* as a Unix socket's path */
};

/* The path of folder @i of USER_FOLDERS. Return: false: there is none, or it does not fit. */
bool user_folder_path(unsigned i, char ret[static USER_FOLDER_BYTES]);

/* Whether folder @path is there, belongs to this user, and others have no right to it. */
bool user_folder_is_private(const char *path);

/* Whether the socket at @path is in one of the folders, so that only this user and root may serve it. */
bool user_folder_has(const char *path);

/* The path of the folder that a daemon that starts now uses: the first of the list. */
void user_folder_choose(char ret[static USER_FOLDER_BYTES]);

/**
 * user_folder_open() - make the folder @path, unless it is there, and check it
 *
 * The folder above it is not made.
 *
 * Return: a descriptor of the folder, for the caller to close; -EPERM: it belongs to another user, or others
 * have a right to it; -ENOTDIR: it is a link or no folder; -errno; with a sentence.
 */
int user_folder_open(const char *path, struct errmsg *e);
