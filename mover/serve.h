/* The mover's conversation: requests in, answers out, one after the other, until the daemon is gone. */
#pragma once

struct errmsg;

/**
 * serve() - answer what comes over @socket (borrowed)
 *
 * Everything that comes is checked as if anybody had sent it. A request that cannot be done is answered with
 * an error; one that cannot be read ends the conversation, and so does an error that the GPU's context does
 * not survive, after the answer.
 *
 * Return: 0: the other side closed; -EBADMSG, with a sentence: it sent what is no request; -EIO, likewise:
 * the context is lost; errno of the socket.
 */
int serve(int socket, struct errmsg *e);
