/* Servers of tests that take a port, not a descriptor. */
#pragma once

#include <assert.h>
#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

/* A TCP port of the loopback address that is free now; another program may take it. Asserts. */
static inline uint16_t free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert(fd >= 0 && bind(fd, (struct sockaddr *) &a, sizeof(a)) == 0 &&
           getsockname(fd, (struct sockaddr *) &a, &bytes) == 0);
    (void) close(fd);
    return ntohs(a.sin_port);
}
