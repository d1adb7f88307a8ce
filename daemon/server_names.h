/*
 * What the server has in the file system: its state folder, its sockets, and the watch over their names. For
 * server.c.
 */
#pragma once

struct errmsg;
struct server;

/* Opens and locks the state folder, if there is one. Return: 0; errors of state_folder_open(). */
int server_names_open(struct server *s, struct errmsg *e);
void server_names_close(struct server *s);

/*
 * Notices from now on when others can no longer find what this process serves or has locked. Return: 0;
 * errors of names_new() and names_add().
 */
int server_names_watch(struct server *s, struct errmsg *e);
