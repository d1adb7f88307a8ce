/*
 * Hostile clients: each function is one process, which repeats what it does until it is killed. They know
 * the protocol and everything that a client is given, and act as another user than the daemon's.
 */
#pragma once

#include <stdint.h>

/* ---- requests that cost the loop much: packets of 512 items, many connections, many in flight ---- */
void attack_list(void);
void attack_reserve(void);
void attack_lease(void);
void attack_abort(void);
void attack_rubbish(void); /* packets of fields that the protocol does not have */
void attack_fields(void);  /* the same with fields of two bytes */
void attack_deaf(void);    /* requests whose replies the client never reads */
void attack_fetch(void);   /* replies with descriptors, which the client never closes */

/* ---- requests that wait ---- */
void attack_waits(void); /* LEASE of 512 pages on the disk, on many connections; needs a disk tier */

/* ---- HTTP ---- */
extern uint16_t attack_metrics_port; /* at 127.0.0.1 */
void attack_metrics(void);           /* many requests in one packet, and endless bodies */

/* ---- requests that threads serve ---- */
void attack_publish(void);   /* pages, each of which evicts others */
void attack_raw_pages(void); /* APPEND_RAW over 40 connections */

/* ---- objects ---- */
void attack_connections(void); /* as many connections as the daemon accepts, and a new one for each refusal */
void attack_sessions(void);    /* HELLO to BYE, with an arena */
void attack_leases(void);      /* as many leases as the daemon grants */
void attack_index(void);       /* pages whose keys share their homes in the index */
void attack_descriptors(void); /* sent to the daemon, with closes that wait for an hour */
