/* The sockets of the server, from the configuration or from another process. For server.c. */
#pragma once

struct errmsg;
struct server;

/* Opens the sockets of clients, operators and monitoring. Return: 0; errno with a sentence. */
int server_sockets_open(struct server *s, struct errmsg *e);
