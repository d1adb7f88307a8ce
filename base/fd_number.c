/* See fd_number.h. */
#include "base/fd_number.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/cleanup.h"

int fd_above_standard(int fd)
{
    _cleanup_(closep) int low = fd;

    if (fd < 0 || fd > STDERR_FILENO)
        return take_fd(&low);
    return fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
}
