/* A folder that is removed at exit, under $KVC_FUZZ_FOLDER or /tmp. */
#pragma once

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char state_folder_path[256];

static inline int state_folder_remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void) st;
    (void) type;
    (void) ftw;
    return remove(path);
}

static inline void state_folder_remove(void)
{
    (void) nftw(state_folder_path, state_folder_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* The folder of this process, created at the first call. */
static inline const char *state_folder(void)
{
    const char *parent = getenv("KVC_FUZZ_FOLDER");

    if (state_folder_path[0])
        return state_folder_path;
    (void) snprintf(state_folder_path, sizeof(state_folder_path), "%s/kvcobra-fuzz-XXXXXX",
                    parent ? parent : "/tmp");
    if (!mkdtemp(state_folder_path)) {
        perror(state_folder_path);
        abort();
    }
    (void) atexit(state_folder_remove);
    return state_folder_path;
}
