/* See loopback.h. */
#include "daemon/config/loopback.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"

bool loopback_is_address(const struct sockaddr_storage *a)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *) a;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *) a;

    if (a->ss_family == AF_INET)
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    return a->ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

/* The last colon separates the port; an IPv6 address stands in brackets. */
static bool loopback_split(const char *text, char host[static 64], uint16_t *ret_port)
{
    const char *colon = strrchr(text, ':');
    size_t n = colon ? (size_t) (colon - text) : 0;
    char *end;
    unsigned long port;

    if (n == 0 || n >= 64 || colon[1] < '0' || colon[1] > '9')
        return false;

    port = strtoul(colon + 1, &end, 10);
    if (*end != '\0' || port == 0 || port > 65535)
        return false;
    if (text[0] == '[' && text[n - 1] == ']' && n > 2) {
        text++;
        n -= 2;
    }

    memcpy(host, text, n);
    host[n] = '\0';
    *ret_port = (uint16_t) port;
    return true;
}

int loopback_parse(const char *text, struct sockaddr_storage *ret, socklen_t *ret_bytes, struct errmsg *e)
{
    struct sockaddr_storage a = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *) &a;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *) &a;
    char host[64];
    uint16_t port;

    if (!loopback_split(text, host, &port))
        return fail(e, -EINVAL, "\"%.60s\" is not an address such as 127.0.0.1:9110 or [::1]:9110", text);
    if (text[0] != '[' && inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
        a.ss_family = AF_INET;
        v4->sin_port = htons(port);
    } else if (text[0] == '[' && inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
        a.ss_family = AF_INET6;
        v6->sin6_port = htons(port);
    } else {
        return fail(
            e, -EINVAL,
            "\"%.60s\" is not an address such as 127.0.0.1:9110 or [::1]:9110: names are not looked up",
            text);
    }

    if (!loopback_is_address(&a))
        return fail(e, -EINVAL,
                    "%.60s can be reached from other machines, and metrics of all tenants are served there: "
                    "use a Unix socket, or an address of 127.0.0.0/8 or [::1]",
                    text);

    *ret = a;
    *ret_bytes = a.ss_family == AF_INET ? sizeof(*v4) : sizeof(*v6);
    return 0;
}
