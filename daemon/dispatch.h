/*
 * From a packet to its handler: which request is served on which socket, and in which
 * state of the connection.
 */
#pragma once

struct conn;
struct wire_packet;

/*
 * Decodes a packet, runs its handler, sends the reply. Return: 0; negative: the caller
 * must close the connection.
 */
int dispatch_packet(struct conn *c, const void *data, struct wire_packet *packet);
