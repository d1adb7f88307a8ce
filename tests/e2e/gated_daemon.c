/*
 * kvcobrad whose large memory objects are created or freed, a file replaced or the configuration read again
 * only when a test lets it, linked with -Wl,--wrap. KVC_TEST_GATE names a FIFO; KVC_TEST_GATE_AT is "new",
 * "free", "reload", or the file's name.
 * Such a call waits until the test has opened the FIFO for writing and closed it. So a test sees who else
 * waits meanwhile. Without the FIFO nothing waits. The log has "at gate N." for the Nth call.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "daemon/config/config_file.h"
#include "gpu/device.h"

enum { LARGE_BYTES = 1 << 20 };

int __real_extent_new(const char *name, size_t bytes, enum extent_access access, struct extent **ret_extent,
                      struct errmsg *e);
int __wrap_extent_new(const char *name, size_t bytes, enum extent_access access, struct extent **ret_extent,
                      struct errmsg *e);
int __real_extent_new_kept(const char *name, size_t bytes, enum extent_access access,
                           struct extent **ret_extent, int *ret_owner_fd, struct errmsg *e);
int __wrap_extent_new_kept(const char *name, size_t bytes, enum extent_access access,
                           struct extent **ret_extent, int *ret_owner_fd, struct errmsg *e);
struct extent *__real_extent_free(struct extent *x);
struct extent *__wrap_extent_free(struct extent *x);
int __real_atomic_file_write(const char *path, const void *data, size_t bytes, struct errmsg *e);
int __wrap_atomic_file_write(const char *path, const void *data, size_t bytes, struct errmsg *e);

int __real_config_load_all(struct config *c, const char *path, bool must_exist, FILE *errors,
                           struct errmsg *e);
int __wrap_config_load_all(struct config *c, const char *path, bool must_exist, FILE *errors,
                           struct errmsg *e);

static void pass_gate(const char *at, size_t bytes)
{
    const char *path = getenv("KVC_TEST_GATE"), *selected = getenv("KVC_TEST_GATE_AT");
    static unsigned n; /* one thread at a time comes here */
    char byte;
    int fd;

    if (bytes < LARGE_BYTES || !path || !selected || strcmp(selected, at) != 0)
        return;

    fprintf(stderr, "at gate %u.\n", ++n);
    fd = open(path, O_RDONLY | O_CLOEXEC); /* returns when the test opens it, too */
    if (fd < 0)
        return;

    while (read(fd, &byte, 1) > 0) /* ends when the test closes it */
        ;
    (void) close(fd);
}

int __wrap_extent_new(const char *name, size_t bytes, enum extent_access access, struct extent **ret_extent,
                      struct errmsg *e)
{
    pass_gate("new", bytes);
    return __real_extent_new(name, bytes, access, ret_extent, e);
}

int __wrap_extent_new_kept(const char *name, size_t bytes, enum extent_access access,
                           struct extent **ret_extent, int *ret_owner_fd, struct errmsg *e)
{
    pass_gate("new", bytes);
    return __real_extent_new_kept(name, bytes, access, ret_extent, ret_owner_fd, e);
}

struct extent *__wrap_extent_free(struct extent *x)
{
    if (x)
        pass_gate("free", extent_bytes(x));
    return __real_extent_free(x);
}

int __wrap_atomic_file_write(const char *path, const void *data, size_t bytes, struct errmsg *e)
{
    const char *name = strrchr(path, '/');

    pass_gate(name ? name + 1 : path, LARGE_BYTES);
    return __real_atomic_file_write(path, data, bytes, e);
}

/* As a name service that does not answer. The start reads the configuration once. */
int __wrap_config_load_all(struct config *c, const char *path, bool must_exist, FILE *errors,
                           struct errmsg *e)
{
    static bool has_started;

    if (has_started)
        pass_gate("reload", LARGE_BYTES);
    has_started = true;
    return __real_config_load_all(c, path, must_exist, errors, e);
}
