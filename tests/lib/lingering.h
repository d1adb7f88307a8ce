/* A descriptor whose last close() waits: what a hostile client sends. */
#pragma once

#include <stdbool.h>

/*
 * A Unix socket in whose queue there is a TCP socket with unsent bytes and SO_LINGER of an hour. No other
 * descriptor of that TCP socket exists, so the last close of the Unix socket closes it. @ret_peer: the other
 * end of the TCP connection, which does not read; it must stay open. Asserts. Return: the Unix socket.
 */
int lingering_socket(int *ret_peer);

/* Sends one packet of one byte with @n copies of @fd. Return: 0; errno of sendmsg(), negative. */
int lingering_send(int socket, int fd, unsigned n);

/*
 * Reads all bytes at the other end of the TCP connection. True if it then ends: the last reference was
 * closed.
 */
bool lingering_is_closed(int peer);
