/*
 * Where a daemon's sockets are when the program does not say, so that engines, the command and Python
 * packages find the same daemon.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "client/kvcobra.h"
#include "proto/sockets.h"
#include "proto/user_folder.h"

static const struct socket_path_names {
    const char *variable, *file;
} socket_path_of[] = {
    [KVC_SOCKET_CLIENTS] = {"KVCOBRA_SOCKET", SOCKET_CLIENTS},
    [KVC_SOCKET_OPERATORS] = {"KVCOBRA_OPERATOR_SOCKET", SOCKET_OPERATORS},
};

/* A program with more rights than its user (AT_SECURE) must not connect where that user wants. */
static const char *socket_path_variable(const char *name)
{
    const char *value = secure_getenv(name);

    return value && *value ? value : NULL;
}

/* Whether the user's own kvcobrad has a socket; its path is then in @ret. Every folder is looked at, since
 * the daemon may have been started where another one of them was the first. */
static bool socket_path_of_user(const char *file, char *ret, size_t ret_bytes)
{
    char folder[USER_FOLDER_BYTES];
    struct stat st;

    for (unsigned i = 0; i < USER_FOLDERS; i++) {
        int n = 0;

        if (user_folder_path(i, folder) && user_folder_is_private(folder))
            n = snprintf(ret, ret_bytes, "%s/%s", folder, file);
        if (n > 0 && (size_t) n < ret_bytes && lstat(ret, &st) == 0 && S_ISSOCK(st.st_mode))
            return true;
    }
    return false;
}

int kvc_socket_path(enum kvc_socket which, const char *path, char *ret_path, size_t ret_bytes)
{
    char own[sizeof(((struct sockaddr_un *) 0)->sun_path)], system[sizeof(own)];
    const char *found = path && *path ? path : NULL;
    const struct socket_path_names *names;

    if (!ret_path || (which != KVC_SOCKET_CLIENTS && which != KVC_SOCKET_OPERATORS))
        return -EINVAL;

    names = &socket_path_of[which];
    if (!found)
        found = socket_path_variable(names->variable);
    if (!found && socket_path_of_user(names->file, own, sizeof(own)))
        found = own;
    if (!found) {
        (void) snprintf(system, sizeof(system), SOCKET_SYSTEM_FOLDER "/%s", names->file);
        found = system;
    }

    if (strlen(found) >= ret_bytes)
        return -ENOSPC;

    memcpy(ret_path, found, strlen(found) + 1);
    return 0;
}
