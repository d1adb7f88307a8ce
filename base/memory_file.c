/* See memory_file.h. */
#include "base/memory_file.h"

#include <errno.h>
#include <sys/mman.h>

#include "base/fd_number.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3; Debian 12's headers are older */
#endif

int memory_file_open(const char *name)
{
    const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);

    if (fd < 0 && errno == EINVAL) /* kernels before 6.3 reject the flag; later ones may demand it */
        fd = memfd_create(name, flags);
    fd = fd_above_standard(fd);
    return fd < 0 ? -errno : fd;
}
