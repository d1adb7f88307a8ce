/*
 * TCP addresses of this host's loopback interface, in the form of the setting metrics-address:
 * "127.0.0.1:9110" or "[::1]:9110". Metrics contain the names of all tenants, so every address that another
 * machine could reach is refused.
 *
 * Used by config_check() and metrics_http.c. It never looks up names.
 */
#pragma once

#include <stdbool.h>
#include <sys/socket.h>

struct errmsg;

bool loopback_is_address(const struct sockaddr_storage *a);

/* Return: 0; -EINVAL with a sentence: another form, a host name, port 0, or not a loopback address. */
int loopback_parse(const char *text, struct sockaddr_storage *ret, socklen_t *ret_bytes, struct errmsg *e);
