/*
 * The loop of kvcobra-mover: receives requests and sends replies, one after the other, until the daemon
 * closes the socket. It never trusts a request, and never maps memory of a client.
 */
#pragma once

struct errmsg;

/**
 * serve() - serve requests on @socket (borrowed)
 *
 * Requests are treated as hostile. A failed request gets a reply with an error. A packet that is not a
 * request ends the loop; so does the loss of the GPU's context, after the reply.
 *
 * Return: 0: the daemon closed the socket, or the driver failed to start and this process must end; with a
 * sentence: -EBADMSG: a packet is not a request; -EIO: the context is lost; errno of the socket.
 */
int serve(int socket, struct errmsg *e);
