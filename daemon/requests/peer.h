/* The process at the other end of a connection: the account that it acts for, and whether it may operate. */
#pragma once

#include <stdbool.h>
#include <sys/socket.h>

struct account;
struct errmsg;
struct server;

/*
 * The credentials and the account of the peer of @fd, by the present configuration. @ret_account: with a
 * reference for the caller. Return: 0; -EPERM: @is_operator, and the peer is not one; -ENOSPC, -ENOMEM: of
 * the account; errno of the socket.
 */
int peer_identify(struct server *s, int fd, bool is_operator, struct ucred *ret, struct account **ret_account,
                  struct errmsg *e);
