/*
 * Coming back to a daemon that was lost: killed and started again, or only the conversation broke.
 *
 * Attempted inside calls that talk to the daemon anyway (match, commit, a new sequence, opening a model),
 * never while appending or attending, never in a thread; at most one attempt per call, and not before the
 * wait of backoff.h is over.
 *
 * What is still good depends on three answers of the greeting (struct resumption):
 *
 *   session resumed             leases go on under their numbers; those whose grant never arrived are given
 * back same daemon               so do arena, references on tables another one               pages in the old
 * arena move to the heap; references are taken again another session, other pool the old extents are nobody's
 * any more: their pages stay readable, are not shared any more, and a commit publishes them again another
 * session, same pool  nothing protects the pages that were held: each is leased again by key, slot and
 *                               generation before it is read again, or its sequence is lost from there on
 */
#pragma once

#include <stdint.h>

struct kvc_client;
struct kvc_model;
struct resumption;

/**
 * client_revive() - a connection, again if it was lost and it is time to try
 * Return: 0: it is open; -ENOTCONN: it is not, with a sentence.
 */
int client_revive(struct kvc_client *c);

/* The same without waiting for the time: somebody asked for it. Return: 0; -ENOTCONN, -EPROTO. */
int client_reconnect(struct kvc_client *c);

/**
 * model_connect() - client_revive(), and the model opened on the connection that there is now
 * Return: 0: model_is_connected(); -ENOTCONN: embedded, lost, or the daemon has nothing for this model now.
 */
int model_connect(struct kvc_model *m);
