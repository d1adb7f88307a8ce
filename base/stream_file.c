/* See stream_file.h. */
#include "base/stream_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

enum { STREAM_FILE_STEP = 1 << 16 };

bool stream_file_is_standard(const char *path)
{
    return strcmp(path, "-") == 0 || strcmp(path, "/dev/stdin") == 0 || strcmp(path, "/dev/stdout") == 0;
}

const char *stream_file_name(const char *path)
{
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

/* /dev/stdin is duplicated too: opening it fails if it is a socket, and reads a file from its beginning. */
int stream_file_open(const char *path, struct errmsg *e)
{
    _cleanup_(closep) int fd = stream_file_is_standard(path) ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
                                                             : open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return fail(e, -errno, "cannot read %s: %s", stream_file_name(path), strerror(errno));
    if (S_ISDIR(st.st_mode) || S_ISBLK(st.st_mode))
        return fail(e, S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL, "%s is a %s, not a text",
                    stream_file_name(path), S_ISDIR(st.st_mode) ? "folder" : "disk");
    return take_fd(&fd);
}

/* Reads to the end. Return: 0; -EFBIG; another negative errno. */
static int stream_file_read_all(int fd, size_t max_bytes, void **ret_data, size_t *ret_bytes)
{
    _cleanup_(freep) char *data = NULL;
    size_t room = 0, have = 0;

    for (;;) {
        ssize_t n;

        if (have == room) {
            char *grown;

            if (room > max_bytes)
                return -EFBIG;
            room = room == 0 ? STREAM_FILE_STEP : 2 * room;
            room = room > max_bytes ? max_bytes + 1 : room; /* one more: to see that there is more */
            grown = realloc(data, room);
            if (!grown)
                return -ENOMEM;
            data = grown;
        }

        n = read(fd, data + have, room - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        have += (size_t) n;
    }

    *ret_data = take_ptr(data);
    *ret_bytes = have;
    return have > max_bytes ? -EFBIG : 0;
}

size_t stream_file_mark_bytes(const void *text, size_t n)
{
    return n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

int stream_file_read(const char *path, size_t max_bytes, void **ret_data, size_t *ret_bytes, struct errmsg *e)
{
    _cleanup_(closep) int fd = stream_file_open(path, e);
    _cleanup_(freep) void *data = NULL;
    size_t n = 0, mark;
    struct stat st;
    int r;

    if (fd < 0)
        return fd;
    if (fstat(fd, &st) < 0)
        return fail(e, -errno, "cannot read %s: %s", stream_file_name(path), strerror(errno));
    if (!S_ISREG(st.st_mode) && max_bytes > STREAM_FILE_BYTES_MAX)
        max_bytes = STREAM_FILE_BYTES_MAX;

    r = S_ISREG(st.st_mode) && (uint64_t) st.st_size > max_bytes
            ? -EFBIG
            : stream_file_read_all(fd, max_bytes, &data, &n);
    if (r == -EFBIG)
        return fail(e, r, "%s is larger than the %zu bytes that such a %s may have", stream_file_name(path),
                    max_bytes, S_ISREG(st.st_mode) ? "file" : "stream");
    if (r < 0)
        return fail(e, r, "cannot read %s: %s", stream_file_name(path), strerror(-r));

    mark = stream_file_mark_bytes(data, n);
    if (mark > 0)
        memmove(data, (char *) data + mark, n - mark);
    *ret_data = take_ptr(data);
    *ret_bytes = n - mark;
    return 0;
}

int stream_file_write(const char *path, const void *data, size_t bytes, struct errmsg *e)
{
    if (!stream_file_is_standard(path))
        return atomic_file_write(path, data, bytes, e);
    if (fwrite(data, 1, bytes, stdout) != bytes || fflush(stdout) != 0)
        return fail(e, -errno, "cannot write standard output: %s", strerror(errno));
    return 0;
}
