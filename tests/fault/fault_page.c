/* See fault_page.h. */
#include "tests/fault/fault_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/lib/test.h"

struct fault_page *fault_page_new(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *p;

    assert(fd >= 0 && ftruncate(fd, sizeof(struct fault_page)) == 0);
    p = mmap(NULL, sizeof(struct fault_page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert(p != MAP_FAILED);
    (void) close(fd);
    return p;
}

struct fault_page *fault_page_free(struct fault_page *p)
{
    if (p)
        (void) munmap(p, sizeof(*p));
    return NULL;
}
