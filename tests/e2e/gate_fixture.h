/*
 * A gate in kvcobrad_gated (gated_daemon.c): calls of one kind stop there until the test lets them go on. The
 * next daemon to start has the gate.
 */
#pragma once

/* @at: "new", "free" for large memory objects; "reload"; the name of a file that is replaced, as "active". */
void gate_make(const char *at);

/*
 * Waits until the daemon is in the next call that the gate stops. Return: a descriptor; closing it ends the
 * call.
 */
int gate_wait(void);

/* From now on nothing waits. */
void gate_remove(void);
