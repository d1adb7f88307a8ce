/* Draining: nothing new comes in, what is there goes on until it is done. */
#pragma once

struct request;

/* Whether @rq may begin while draining; asked before its handler. Return: 0; -ESHUTDOWN with a sentence. */
int drain_check(struct request *rq);
int drain_check_session(struct request *rq); /* for a HELLO or CONFIRM that would make a new session */
